"""How the classifier and the regressor come by their posteriors: from all data at once, or as rows come."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, assert_all_finite, validate_data

from cavity import schemes
from cavity.correlated import CorrelatedGaussian
from cavity.estimators._design import rows_of_weight
from cavity.estimators._frame import Frame, completed_basis, directions, principal_basis
from cavity.estimators._posteriors import WIDEST_COVARIANCE, Posteriors
from cavity.estimators._prior import build_prior, choose_variance, typical_variance
from cavity.factors import LinearBatches, canonical, checked_batch_size
from cavity.fitting import fit, make_settings, mode_of
from cavity.full import FullResult, fit_full
from cavity.full_stream import FullStream
from cavity.gaussian import FactorialGaussian
from cavity.linear import REFUSALS, why_not
from cavity.losses import Loss
from cavity.mode import Mode, information, is_convex
from cavity.result import Ledger, Refusal, Result, Trace
from cavity.schedules import resolve_beta
from cavity.stream import Stream

FloatArray = NDArray[np.float64]

_KINDS = (np.float64, np.float32)
# Columns up to which dense data get a basis of their own.
WIDEST = 500
# Rows a column from which on that basis is the curvature's.
ROWS_A_COLUMN = 15


class LinearEP(Posteriors):
    """Base of the estimators, which document the parameters: fits at once or as rows come."""

    # Declared for the reader: subclasses set them in their constructors.
    loss: Any
    scheme: Any
    batch_size: int
    loops: int
    tol: float
    prior_variance: Any
    prior_mean: Any
    basis: Any
    covariance: str
    init: str
    fit_intercept: bool
    intercept_prior_variance: float
    beta: Any
    damping: float
    power: float
    safeguards: bool
    shuffle: bool
    random_state: Any
    warm_start: bool
    verbose: Any

    def _named_loss(self) -> Loss:
        """Return the loss object that the parameters mean."""
        raise NotImplementedError

    # Fitting.

    def _check_X(self, X: Any, **options: Any) -> Any:  # noqa: N802
        return validate_data(self, X, accept_sparse="csr", dtype=_KINDS, order="C", **options)

    def _check_data(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
        """Check rows and targets of a fit; plain arrays are taken as they are.

        With a single loop finite rows are not looked for: `_check_finite` follows if a mini-batch is refused.
        """
        if not (is_plain_matrix(X) and is_plain_vector(y, X.shape[0]) and (self.loops == 1 or _is_finite(X))):
            return self._check_X(X, y=y, ensure_all_finite=self.loops > 1, **options)
        self.__dict__.pop("feature_names_in_", None)
        self.n_features_in_ = X.shape[1]
        return X, y

    def _check_finite(self, X: Any) -> None:
        """Look at the rows once more where something was not finite: `fit` itself reads them no more than it must."""
        entries = X.data if sparse.issparse(X) else X
        assert_all_finite(entries, estimator_name=type(self).__name__, input_name="X")

    def _fit_posteriors(self, X: Any, targets: FloatArray, weights: FloatArray | None, loss: Loss) -> None:
        """Fit one posterior for every row of ``targets`` and keep them."""
        X, targets, weights = rows_of_weight(checked_rows(X), targets, weights)

        columns, full = [np.ascontiguousarray(t) for t in targets], self._has_full_covariance()

        def runs(variance: Any) -> tuple[Frame, Sequence[Result | FullResult]]:
            frame, modes = self._prepared(X, columns, weights, loss, variance)
            rows, prior = frame.rows(X), frame.inner_prior
            every = [LinearBatches.unchecked(loss, rows, t, self.batch_size, weights) for t in columns]
            if full:
                return frame, [self._run_full(factors, prior) for factors in every]
            return frame, [self._run(f, prior, self._start(k, f, modes[k])) for k, f in enumerate(every)]

        variance = self.prior_variance
        if isinstance(variance, str):
            if variance != "evidence":
                raise ValueError(f"prior_variance must be a number, one a feature, or 'evidence', got {variance!r}")
            start = typical_variance(X)
            variance = choose_variance(lambda v: sum(r.log_evidence for r in runs(v)[1]), start)
        frame, results = runs(variance)
        if any(why is Refusal.NONFINITE for r in results for _, why in r.trace.refusals):
            self._check_finite(X)
        self._forget_all()
        self.prior_variance_, self._loss, self._frame = variance, loss, frame
        self._posteriors = tuple(r.posterior for r in results)
        self._sites = [r.sites for r in results] if self.warm_start else None
        self.n_iter_ = max(len(r.trace.changes) for r in results)
        self.trace_ = results[0].trace if len(results) == 1 else tuple(r.trace for r in results)
        self.status_ = next((r.status for r in results if not r.status.is_success), results[0].status)

    def _run(self, factors: LinearBatches, prior: FactorialGaussian, start: Any) -> Result:
        """Run EP on one linear predictor."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) if self.shuffle else 0
        return fit(
            factors,
            prior,
            self.scheme,
            loops=self.loops,
            sites="none" if self.loops == 1 else "own",
            beta=self.beta,
            power=self.power,
            damping=self.damping,
            order="shuffled" if self.shuffle else "cyclic",
            seed=seed,
            tol=self.tol,
            safeguards=self.safeguards,
            start=start,
            progress=bool(self.verbose),
        )

    def _run_full(self, factors: LinearBatches, prior: FactorialGaussian) -> FullResult:
        """Run EP with a full covariance on one linear predictor."""
        return fit_full(
            factors,
            prior,
            loops=self.loops,
            beta=self.beta,
            damping=self.damping,
            tol=self.tol,
            start=self._start_by_name(),
        )

    def _has_full_covariance(self) -> bool:
        """Whether a full covariance is asked for, with nothing that goes against it."""
        if self.covariance not in ("auto", "diagonal", "full"):
            raise ValueError(f"covariance must be 'auto', 'diagonal' or 'full', got {self.covariance!r}")
        if self.covariance != "full":
            return False
        if not isinstance(schemes.resolve(self.scheme), schemes.ExactProjection):
            raise ValueError(f"covariance='full' has exact moments only: leave scheme at 'exact', got {self.scheme!r}")
        if not isinstance(self.beta, Real) or self.power != 1.0:
            raise ValueError(
                "covariance='full' needs one number for beta, and power=1, "
                f"got beta={self.beta!r} and power={self.power!r}"
            )
        return True

    def _start_by_name(self) -> Literal["mode"] | None:
        """Where a fit starts that has no sites yet."""
        if self.init not in ("mode", "prior"):
            raise ValueError(f"init must be 'mode' or 'prior', got {self.init!r}")
        return "mode" if self.init == "mode" else None

    def _start(self, k: int, factors: LinearBatches, mode: Mode | None) -> Any:
        """Sites of the fit before, if they are wanted and fit; else the mode, if wanted."""
        named = self._start_by_name()
        if self.loops == 1:
            return None
        sites = getattr(self, "_sites", None)
        sites = sites if sites and k < len(sites) else None
        if self.warm_start and sites and len(sites[k]) == len(factors) and self._posteriors[0].dim == factors.dim:
            return sites[k]
        return mode if named and mode is not None else named

    def _prepared(
        self, X: Any, targets: Sequence[FloatArray], weights: FloatArray | None, loss: Loss, variance: Any
    ) -> tuple[Frame, Sequence[Mode | None]]:
        """Prior and basis for rows, checked before, and the modes of their predictors where the basis comes of them."""
        frame = self._frame_for(X, variance)
        if frame.basis is not None or not self._wants_curvature(X, frame):
            return frame, [None] * len(targets)
        rows, beta = frame.rows(X), resolve_beta(self.beta).beta(0)
        every = [LinearBatches.unchecked(loss, rows, t, self.batch_size, weights) for t in targets]
        modes = [mode_of(factors, frame.prior, beta) for factors in every]
        total = np.sum([information(f, m, beta) for f, m in zip(every, modes, strict=True)], axis=0)
        turned = replace(frame, basis=directions(total, frame.prior.std))
        return turned, [replace(m, point=turned.inner(m.point)) for m in modes]

    def _frame_for(self, X: Any, variance: Any) -> Frame:
        """Prior and, unless it takes the modes of the fit, basis for rows, checked before."""
        d, intercept, basis = X.shape[1], bool(self.fit_intercept), self.basis
        prior = build_prior(d, self.prior_mean, variance, self.intercept_prior_variance if intercept else None)
        frame = Frame(d, intercept, prior)
        if self.covariance == "full":
            if prior.dim > WIDEST_COVARIANCE:
                raise ValueError(
                    f"covariance='full' takes dim² numbers and as many operations a row: at most {WIDEST_COVARIANCE} "
                    f"columns, got {prior.dim}; leave covariance at 'auto'"
                )
            return frame
        if self.warm_start and getattr(self, "_sites", None) and self._frame.prior.dim == prior.dim:
            return replace(frame, basis=self._frame.basis)  # the sites kept are sites in it
        if basis is None:
            return frame
        if not isinstance(basis, str):
            return replace(frame, basis=completed_basis(basis, d, intercept))
        if basis not in ("auto", "pca", "curvature"):
            raise ValueError(f"basis must be 'auto', 'pca', 'curvature', None or an orthonormal matrix, got {basis!r}")
        if (basis == "auto" and (sparse.issparse(X) or d > WIDEST)) or self._wants_curvature(X, frame):
            return frame
        return replace(frame, basis=principal_basis(X, prior, intercept))

    def _wants_curvature(self, X: Any, frame: Frame) -> bool:
        """Whether the basis is the curvature's: asked for, or by default where a row's own part in it is small."""
        if not isinstance(self.basis, str) or self.covariance == "full":
            return False
        moderate = not sparse.issparse(X) and frame.features <= WIDEST and self.loops > 1 and self.init == "mode"
        many = X.shape[0] >= ROWS_A_COLUMN * frame.prior.dim
        return self.basis == "curvature" or (self.basis == "auto" and moderate and many)

    # Streams.

    def _begin_stream(self, X: Any, count: int, loss: Loss) -> None:
        """Stand at the prior, before any row; where the posterior is a product, the first rows decide on its basis."""
        if isinstance(self.prior_variance, str):
            raise ValueError(
                "prior_variance='evidence' needs all data at once: call fit first, or give partial_fit a number"
            )
        self._forget_all()
        self.prior_variance_, self._loss = self.prior_variance, loss
        if isinstance(self.basis, str) and self.basis == "curvature":
            raise ValueError("basis='curvature' needs all data at once: call fit first, or stream with another basis")
        with_covariance = self._has_full_covariance()
        if not with_covariance and self._streams_by_default() and not sparse.issparse(X) and X.shape[1] <= WIDEST:
            width, spread = X.shape[1], self.intercept_prior_variance if self.fit_intercept else None
            self._frame = Frame(
                width, bool(self.fit_intercept), build_prior(width, self.prior_mean, self.prior_variance, spread)
            )
            with_covariance = True
        else:
            self._frame = self._frame_for(X, self.prior_variance)
        prior = self._frame.inner_prior
        self._posteriors = ((CorrelatedGaussian.of(prior) if with_covariance else prior),) * count
        self.n_iter_ = 1

    def _take(self, X: Any, targets: FloatArray, weights: FloatArray | None, forget: float) -> None:
        """Take rows, checked before, into the posteriors."""
        if not 0.0 <= forget < 1.0:
            raise ValueError(f"forget must lie in [0, 1), the share of what was learned that is given up, got {forget}")
        batch_size = checked_batch_size(self.batch_size)
        X, targets, weights = rows_of_weight(X, targets, weights)
        streams = self._streams = [s.fork() for s in getattr(self, "_streams", None) or self._open_streams()]
        X = self._frame.rows(X, getattr(self, "_padded", None))
        self._padded = X if self._frame.intercept else None
        refused: Counter[Refusal] = Counter()
        for k, stream in enumerate(streams):
            if forget:
                stream.forget(1.0 - forget, self._frame.inner_prior)
            outcomes = stream.take(X, targets[k], weights, batch_size)
            self._updates = getattr(self, "_updates", 0) + outcomes.size
            if outcomes.any():
                refused.update(REFUSALS[int(o)] for o in outcomes if o in REFUSALS)
        self._note_refusals(refused)

    def _open_streams(self) -> Sequence[Stream | FullStream]:
        settings = make_settings(1, "none", self.beta, self.power, self.damping, "cyclic", 0, "keep", self.tol, count=1)
        if self._streams_covariances():
            # What is known is written out in the user's columns, in which no basis is needed any more.
            posteriors = tuple(self._frame.opened(posterior) for posterior in self._posteriors)
            self._posteriors, self._frame = posteriors, replace(self._frame, basis=None)
            beta = settings.temperature.beta(0)
            return [FullStream(self._loss, posterior, beta=beta) for posterior in posteriors]
        scheme = schemes.resolve(self.scheme)
        reason = why_not(self._loss, scheme, settings)
        if reason:
            raise ValueError(f"partial_fit needs a compiled form: {reason}; fit works without one")
        return [
            Stream(
                self._loss,
                scheme,
                posterior,
                self._frame.inner_prior.precision,
                beta=settings.temperature.beta(0),
                power=settings.power,
                damping=settings.damping,
            )
            for posterior in self._posteriors
            if isinstance(posterior, FactorialGaussian)
        ]

    def _streams_covariances(self) -> bool:
        """Whether a stream keeps a full covariance: one that does goes on so, and by default all in a basis of ours."""
        if self._has_full_covariance() or isinstance(self._posteriors[0], CorrelatedGaussian):
            return True
        return self._frame.basis is not None and self._streams_by_default()

    def _streams_by_default(self) -> bool:
        """Whether nothing was asked for that only a product of Gaussians has."""
        named = self.covariance == "auto" and isinstance(self.basis, str) and self.basis == "auto"
        exact = self.scheme == "exact" and self.damping == self.power == 1.0
        return bool(named and exact and is_convex(self._loss, np.array([-1.0, 1.0])))

    def _note_refusals(self, refused: Counter[Refusal]) -> None:
        before: Counter[Refusal] = getattr(self, "_refused", None) or Counter()
        self._refused = before + refused
        ledger = Ledger()
        for why, times in refused.items():
            ledger.refuse(-1, why, times)
        self.status_ = ledger.status(single_pass=True, settled=False)
        self.trace_ = Trace(self._updates, (), (), Counter({(-1, w): c for w, c in self._refused.items()}), Counter())

    def _atomically(self, change: Callable[[], None]) -> Self:
        """Make a change whole or not at all; warn where EP had trouble."""
        before = dict(self.__dict__)
        try:
            change()
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        if not self.status_.is_success:
            warnings.warn(f"EP ended with trouble: {self.status_.value}", ConvergenceWarning, stacklevel=3)
        return self

    def _is_plain(self, X: Any) -> bool:
        """Whether rows need no further look: finite, of the right kind, order and width, and without names."""
        return (
            is_plain_matrix(X)
            and X.shape[1] == self.n_features_in_
            and "feature_names_in_" not in self.__dict__
            and _is_finite(X)
        )


def is_plain_matrix(X: Any) -> bool:
    """Whether it is a C-ordered matrix of floats with at least one row and column."""
    return type(X) is np.ndarray and X.ndim == 2 and X.dtype in _KINDS and X.flags.c_contiguous and X.size > 0


def is_plain_vector(y: Any, rows: int) -> bool:
    """Whether it is a vector of so many finite numbers."""
    return type(y) is np.ndarray and y.shape == (rows,) and y.dtype.kind in "iubf" and _is_finite(y)


@np.errstate(over="ignore", invalid="ignore")
def _is_finite(values: Any) -> bool:
    """Whether the sum is finite; where it overflows, a closer look is due."""
    return bool(np.isfinite(np.sum(values)))


def checked_weights(weights: ArrayLike | None, X: Any) -> FloatArray | None:
    """Weights as an array, or None where there are none."""
    if weights is None:
        return None
    checked: FloatArray = _check_sample_weight(weights, X, dtype=np.float64, ensure_non_negative=True)
    return checked


def checked_rows(X: Any) -> Any:
    """Sparse rows in canonical form; dense rows as they are."""
    return canonical(X) if sparse.issparse(X) else X
