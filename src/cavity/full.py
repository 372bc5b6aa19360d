r"""EP with a full covariance, for linear factors of moderate width: the yardstick of everything factorised.

The site of a row is two numbers on its predictor :math:`z = x^\top \theta`, and its scale. So the posterior is

.. math:: q(\theta) \propto \text{prior}(\theta) \prod_i e^{R_i z_i - T_i z_i^2 / 2}, \qquad
    P = \text{diag}(p) + X^\top \text{diag}(T)\, X,

and a revised site changes mean and covariance by a rank of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba.core.errors import NumbaError
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from cavity.correlated import CorrelatedGaussian
from cavity.factors import LinearBatches
from cavity.gaussian import FactorialGaussian
from cavity.kernels._bridge import entry
from cavity.kernels._full import Moments, RowSites, Step, full_sweep
from cavity.kernels._moments import rules_for
from cavity.kernels._sweep import IMPROPER_CAVITY, IMPROPER_POSTERIOR, NONFINITE
from cavity.mode import find_mode
from cavity.result import Ledger, Refusal, RunError, Status, Trace

FloatArray = NDArray[np.float64]

_REFUSALS = {
    IMPROPER_CAVITY: Refusal.IMPROPER_CAVITY,
    NONFINITE: Refusal.NONFINITE,
    IMPROPER_POSTERIOR: Refusal.IMPROPER_POSTERIOR,
}
# Order of the first rule of integration, as in scheme="exact".
_ORDER = 8
_WIDEST = 5000
# Rows are taken in blocks of about so many entries; those of CSR matrices are made dense.
_ENTRIES = 1 << 20
_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True, slots=True, eq=False)
class FullResult:
    """The outcome of `fit_full`.

    Parameters
    ----------
    mean, covariance
        Those of the posterior, of shapes ``(dim,)`` and ``(dim, dim)``.
    log_evidence
        Estimate of the logarithm of the integral of prior times factors; exact for Gaussian factors.
    status
        How the run ended.
    trace
        What happened on the way; its factors are rows.
    """

    mean: FloatArray
    covariance: FloatArray
    log_evidence: float
    status: Status
    trace: Trace

    @property
    def variance(self) -> FloatArray:
        """Posterior variance of every coordinate."""
        return np.diag(self.covariance).copy()

    @property
    def std(self) -> FloatArray:
        """Posterior standard deviation of every coordinate."""
        return np.sqrt(self.variance)

    @property
    def precision(self) -> FloatArray:
        """Inverse of the covariance."""
        return _inverse(self.covariance)[0]

    @property
    def posterior(self) -> CorrelatedGaussian:
        """The posterior as a value."""
        scale = self.std
        try:
            root = np.linalg.cholesky(self.covariance / (scale[:, None] * scale))
        except LinAlgError:  # singular by rounding
            values, axes = np.linalg.eigh(self.covariance / (scale[:, None] * scale))
            root = axes * np.sqrt(np.maximum(values, np.finfo(np.float64).eps * values[-1]))
        return CorrelatedGaussian(self.mean, scale[:, None] * root, self.log_evidence)

    @property
    def sites(self) -> tuple[()]:
        """Sites of rows are not given out."""
        return ()

    def raise_for_status(self) -> FullResult:
        """Raise `RunError` unless the run ended as asked; return the result otherwise."""
        if not self.status.is_success:
            raise RunError(f"{self.status.value}\n{self.trace}")
        return self

    def __str__(self) -> str:
        return f"{self.status.value}\nlog evidence {self.log_evidence:.6g}\n{self.trace}"


def fit_full(
    factors: LinearBatches,
    prior: FactorialGaussian,
    *,
    loops: int = 20,
    beta: float = 1.0,
    damping: float = 1.0,
    tol: float = 1e-3,
    start: Literal["mode"] | None = "mode",
) -> FullResult:
    r"""Approximate :math:`\text{prior}(\theta) \prod_i e^{-\beta w_i \ell(y_i, x_i^\top \theta)}` by a Gaussian.

    With mean :math:`m` and variance :math:`v` of a predictor z, a row's cavity and new site are

    .. math:: v_c = \frac{v}{1 - T v}, \quad m_c = m + v_c (T m - R), \qquad
        T' = \frac1{v'} - \frac1{v_c}, \quad R' = \frac{m'}{v'} - \frac{m_c}{v_c}

    with the exact moments :math:`m', v'` of cavity times factor (`cavity.moments`). Every row has its own site; how the
    rows are cut into batches does not matter. Exact for Gaussian factors. Mean and covariance are built anew from the
    sites by Cholesky after every loop, against drift of rounding. :math:`O(d^2)` a row, and :math:`d^2 + 3n` numbers.

    Parameters
    ----------
    factors
        The data as `LinearBatches`, at most 5000 columns wide; dense or CSR, in double or single precision.
    prior
        A proper `FactorialGaussian`.
    loops
        Most loops over the rows.
    beta
        Inverse temperature.
    damping
        Step towards the new site, in (0, 1].
    tol
        A loop that changes no mean by more than this many standard deviations, and no variance by more than this share,
        and refuses nothing, ends the run. 0 never does.
    start
        ``"mode"``: the second-order expansion of every row at the minimum of prior and costs, with no negative
        curvature. None: the prior.

    Returns
    -------
    FullResult
        A row whose cavity is improper, whose moments are not finite, or whose site would make the posterior improper,
        is refused, left as it was, and named in the trace.

    Raises
    ------
    ValueError
        If an argument does not fit; nothing has been computed then.
    TypeError
        If the factors are not `LinearBatches`, or their loss cannot be compiled.

    Examples
    --------
    >>> from cavity.losses import Squared
    >>> factors = LinearBatches(Squared(), [[1.0, 1.0], [1.0, -1.0], [1.0, 0.0]], [3.0, 1.0, 2.0])
    >>> result = fit_full(factors, FactorialGaussian.from_moments(mean=[0.0, 0.0], variance=1.0))
    >>> result.mean.round(3), result.variance.round(3), result.status.name
    (array([1.5  , 0.667]), array([0.25 , 0.333]), 'CONVERGED')
    """
    _check(factors, prior, loops, beta, damping, tol, start)
    with np.errstate(all="ignore"):
        state = _FullRun(factors, prior, float(beta), float(damping))
        if start is not None:
            state.begin_at_mode()
        for _ in range(int(loops)):
            state.loop()
            if state.ledger.has_settled(tol):
                break
        return state.result(tol)


class _FullRun:
    """The working state of a run."""

    def __init__(self, factors: LinearBatches, prior: FactorialGaussian, beta: float, damping: float) -> None:
        n, d = factors.X.shape
        self.factors, self.prior, self.step = factors, prior, Step(beta, damping)
        self.weights = np.empty(0) if factors.weights is None else factors.weights
        self.rows = n if factors.weights is None else int(np.count_nonzero(factors.weights))
        self.sites = RowSites(np.zeros(n), np.zeros(n), np.zeros(n))
        self.moments = Moments(prior.mean, np.diag(prior.variance), np.zeros(d))
        self.log_det = float(np.sum(np.log(prior.variance)))
        self.rules = rules_for(_ORDER)
        self.ledger = Ledger()

    def begin_at_mode(self) -> None:
        """Put the second-order expansion of every row at the mode in the place of uniform sites."""
        f, beta = self.factors, self.step.beta
        mode = find_mode(f, self.prior, beta)
        weights = beta * (np.ones(f.targets.size) if f.weights is None else f.weights)
        costs, z = weights * f.losses(mode.point), f.X @ mode.point
        # A row without curvature there is taken as a line; one that is not finite, as absent.
        precisions = weights * np.maximum(mode.curvatures, 0.0)
        shifts = precisions * z - weights * mode.slopes
        scales = -costs - (shifts - 0.5 * precisions * z) * z
        known = (weights > 0.0) & np.isfinite(precisions) & np.isfinite(shifts) & np.isfinite(scales)
        self.sites = RowSites(*(np.where(known, a, 0.0) for a in (scales, shifts, precisions)))
        if not self._rebuild():
            self.sites = RowSites(*(np.zeros_like(a) for a in self.sites))

    def loop(self) -> None:
        """Revise every row once, and build the moments anew."""
        mean, variance = self.moments.mean.copy(), np.diag(self.moments.covariance).copy()
        self.ledger.begin_loop(self.step.beta)
        outcomes = np.zeros(self.factors.targets.size, dtype=np.int8)
        for rows, X in self._blocks():
            self._sweep(X, rows, outcomes[rows])
        self.ledger.updates += self.rows
        for row in np.flatnonzero(outcomes):
            self.ledger.refuse(int(row), _REFUSALS[int(outcomes[row])])
        if not self._rebuild():
            self.ledger.refuse(-1, Refusal.IMPROPER_POSTERIOR)
            self.log_det = float(np.linalg.slogdet(self.moments.covariance)[1])
        after = np.diag(self.moments.covariance)
        shift, stretch = (self.moments.mean - mean) / np.sqrt(after), np.log(after / variance)
        self.ledger.end_loop(float(max(np.max(np.abs(shift)), np.max(np.abs(stretch)))))

    def result(self, tol: float) -> FullResult:
        """Everything so far as a value."""
        mean, covariance = self.moments.mean, self.moments.covariance
        mean.flags.writeable = covariance.flags.writeable = False
        status = self.ledger.status(single_pass=False, settled=self.ledger.has_settled(tol))
        return FullResult(mean, covariance, self._log_evidence(), status, self.ledger.trace())

    def _sweep(self, X: NDArray[Any], rows: slice, outcomes: NDArray[np.int8]) -> None:
        f, sites = self.factors, RowSites(*(a[rows] for a in self.sites))
        data = (X, f.targets[rows], self.weights[rows])
        try:
            entry(full_sweep, type(f.loss))(f.loss, *data, self.step, self.rules, sites, self.moments, outcomes)
        except NumbaError as error:
            raise TypeError(
                f"{type(f.loss).__name__} could not be compiled; write it as a NamedTuple with arithmetic and numpy "
                "functions only, comparisons as factors and no if (cavity.testing.check_loss tells more)"
            ) from error

    def _rebuild(self) -> bool:
        """Build mean and covariance from prior and sites, unless the precision they make is not positive definite.

        The mean is corrected by what is left of its equation, which loses no digits far from the origin.
        """
        prior, mean = self.prior, self.moments.mean
        precision, left = np.diag(prior.precision), prior.shift - prior.precision * mean
        for rows, X in self._blocks():
            t = self.sites.precisions[rows]
            precision += (t[:, None] * X).T @ X
            left += (self.sites.shifts[rows] - t * (X @ mean)) @ X
        try:
            covariance, log_det = _inverse(precision)
        except (LinAlgError, ValueError):  # not positive definite, or not finite
            return False
        self.moments = Moments(mean + covariance @ left, covariance, self.moments.lever)
        self.log_det = -log_det
        return True

    def _log_evidence(self) -> float:
        """Mass of prior times sites: its height at the mean, times the volume of its covariance."""
        m, p, (scales, shifts, precisions) = self.moments.mean, self.prior, self.sites
        z = self.factors.X @ m
        height = p.log_scale + float(np.sum((p.shift - 0.5 * p.precision * m) * m))
        height += float(np.sum(scales + (shifts - 0.5 * precisions * z) * z))
        return float(height + 0.5 * (m.size * _LOG_2PI + self.log_det))

    def _blocks(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Cut the rows into dense, C-ordered blocks that cannot be written: one compiled form serves all."""
        X = self.factors.X
        length = max(1, _ENTRIES // X.shape[1])
        for first in range(0, X.shape[0], length):
            rows = slice(first, first + length)
            block = X[rows].toarray() if sparse.issparse(X) else np.ascontiguousarray(X[rows])
            view = block.view(np.ndarray)
            view.flags.writeable = False
            yield rows, view


def _inverse(matrix: FloatArray) -> tuple[FloatArray, float]:
    """Inverse of a positive definite matrix, symmetric to the bit, and the logarithm of the matrix's determinant."""
    factor = cho_factor(matrix, lower=True)
    inverse = cho_solve(factor, np.eye(matrix.shape[0]))
    return np.ascontiguousarray(0.5 * (inverse + inverse.T)), 2.0 * float(np.sum(np.log(np.diag(factor[0]))))


def _check(
    factors: object, prior: FactorialGaussian, loops: int, beta: float, damping: float, tol: float, start: object
) -> None:
    if not isinstance(factors, LinearBatches):
        raise TypeError(
            f"factors must be LinearBatches, got {type(factors).__name__}; build them with "
            "LinearFactor.batches(loss, X, y), or gather linear factors with LinearBatches.stack"
        )
    if factors.dim > _WIDEST:
        raise ValueError(
            f"a full covariance takes dim² numbers, and as many operations a row: at most {_WIDEST} columns, got "
            f"{factors.dim}; use cavity.fit, which is factorised"
        )
    if not prior.is_proper or prior.dim != factors.dim:
        raise ValueError(
            f"prior must be proper and have the {factors.dim} coordinates of the factors, got {prior.dim} coordinates; "
            "build it with FactorialGaussian.from_moments(mean, variance)"
        )
    if int(loops) != loops or loops < 1:
        raise ValueError(f"loops must be a whole number of at least 1, got {loops}")
    if not 0.0 < beta < np.inf:
        raise ValueError(f"beta must be positive and finite, got {beta}")
    if not 0.0 < damping <= 1.0:
        raise ValueError(f"damping must lie in (0, 1], got {damping}")
    if not tol >= 0.0:
        raise ValueError(f"tol must not be negative, got {tol}")
    if start not in ("mode", None):
        raise ValueError(f"start must be 'mode' or None, got {start!r}")


__all__ = ["FullResult", "fit_full"]
