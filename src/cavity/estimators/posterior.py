"""The posterior of a fitted linear model: coefficients with their standard deviations, and draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_random_state

from cavity._checks import whole_number
from cavity._types import FloatArray
from cavity.ep.hyperparameters import Group, NormalRows, Setting, settings_around
from cavity.ep.posteriors import (
    DenseNatural,
    Gaussian,
    NaturalParameters,
)
from cavity.ep.result import Status
from cavity.estimators.columns import columns_of
from cavity.estimators.parameters import Parameters, Plan, threads_for
from cavity.estimators.rows import Totals, checked_offset, squared, with_intercept
from cavity.factors.columns import Columns, ColumnSums
from cavity.gaussians.affine import AffineGaussian, Change
from cavity.gaussians.dense import WIDEST_COVARIANCE, DenseGaussian
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.mixture import GaussianMixture
from cavity.losses import Loss
from cavity.losses.joint import Softmax, contrasts


def mixing(loss: Any) -> FloatArray:
    """Matrix that gives the public predictors, one per row, from those of the loss."""
    return contrasts(int(loss.classes)) if isinstance(loss, Softmax) else np.eye(int(loss.predictors))


def marginals(joint: DenseGaussian, mix: FloatArray) -> tuple[DenseGaussian, ...]:
    """Gaussians of the public predictors' coefficients, each for itself; the first has the mass of the whole."""
    count = mix.shape[1]
    means = mix @ joint.mean.reshape(count, -1)
    roots = joint.root.reshape(count, -1, joint.dim)
    masses = [joint.log_mass, *[0.0] * (len(mix) - 1)]
    parts = zip(means, mix, masses, strict=True)
    return tuple(DenseGaussian(mean, np.tensordot(row, roots, axes=1), mass) for mean, row, mass in parts)


def joint_draws(joint: DenseGaussian, mix: FloatArray, noise: FloatArray) -> FloatArray:
    """Draws of the public predictors' coefficients, ``(draws, predictors, columns)``."""
    draws = joint.draws(noise).reshape(len(noise), mix.shape[1], -1)
    return np.einsum("pk,nkc->npc", mix, draws)


def joint_predictors(joint: DenseGaussian, rows: Any, count: int) -> tuple[FloatArray, FloatArray]:
    """Means ``(n, K)`` and covariances ``(n, K, K)`` of the loss's own predictors at rows, a part at a time."""
    n, dim = rows.shape[0], joint.dim
    mean = np.asarray(rows @ joint.mean.reshape(count, -1).T)
    variance = np.empty((n, count, count))
    roots = joint.root.reshape(count, -1, dim)
    length = max(1, (1 << 22) // (count * dim))  # 32 MB
    for i in range(0, n, length):
        halves = np.stack([np.asarray(rows[i : i + length] @ root) for root in roots], axis=1)
        variance[i : i + length] = halves @ halves.transpose(0, 2, 1)
    return mean, variance


def repeated(prior: FactorialGaussian, count: int) -> FactorialGaussian:
    """Give the same prior to every predictor."""
    return FactorialGaussian.from_moments(np.tile(prior.mean, count), np.tile(prior.variance, count))


def repeated_groups(groups: Sequence[Group], count: int, columns: int) -> tuple[Group, ...]:
    """Let groups have the same columns of every predictor."""
    places = [np.concatenate([g.columns + k * columns for k in range(count)]) for g in groups]
    return tuple(g._replace(columns=place) for place, g in zip(places, groups, strict=True))


def turned(known: DenseNatural, rotation: FloatArray) -> DenseNatural:
    """Say the same of predictors that are a rotation of these."""
    count = len(rotation)
    blocks = known.information.reshape(count, known.shift.size // count, count, -1)
    information = np.einsum("ij,jakb,lk->ialb", rotation, blocks, rotation, optimize=True)
    flat = information.reshape(known.information.shape)
    shift = (rotation @ known.shift.reshape(count, -1)).ravel()
    return DenseNatural(0.5 * (flat + flat.T), shift, known.log_scale)


# Rate of the exponential prior of the standard deviation that coefficients give to a linear predictor, in log odds: one
# in twenty is beyond ten. In units of the spread of real targets, which bound variances by themselves, it is a fifth.
RATE = 0.3

# What is derived from the rest and can be rebuilt.
TRANSIENT = ("_posteriors", "_derived", "_streams", "_path")


class Posteriors(BaseEstimator):  # type: ignore[misc]
    """A prior and what the rows say, for every linear predictor, and all that follows from their product."""

    # Set by fitting. `_streams` are working copies of products of Gaussians in a stream, ahead of `_knowledge`.
    n_features_in_: int
    status_: Status
    trace_: Any
    plan_: Plan
    n_iter_: int
    tol: float
    _intercept: bool
    _knowledge: tuple[NaturalParameters, ...]
    _priors: tuple[FactorialGaussian, ...]
    _totals: Totals
    _loss: Loss

    # Coefficients are kept for columns with these centres and units; sums over the rows decide on them.
    _columns: Columns
    _sums: ColumnSums | None
    # Groups of coefficients whose prior variances were found.
    _free: tuple[Group, ...]
    # What follows from the rest, made when it is asked for: averages over hyperparameters, marginals.
    _derived: dict[str, Any]

    # From parameters, the number of predictors and units of the targets.
    _prior_and_groups: Callable[..., tuple[FactorialGaussian, tuple[Group, ...]]]
    _prior_units: Callable[..., tuple[float, float]]

    # Unit and offset of the targets: posteriors are those of normalised ones.
    _units: Any = (1.0, 0.0)
    # The same of further linear predictors, where they are not in these units.
    _further_units: Any = ()
    # Names of the linear predictors where there are several, and what they are predictors of.
    _groups: Any = None
    _kind_of_groups = "class"
    # Whether there is but one linear predictor, so that attributes have no row per predictor.
    _is_single = False

    @property
    def posterior_(self) -> tuple[Gaussian, ...]:
        """Posterior of every linear predictor, the intercept last: one, or one per class if there are more than two."""
        whole = reported(self)
        if not self._is_joint:
            return whole
        if "marginals" not in self._derived:
            self._derived["marginals"] = marginals(whole[0], self._mixing())  # type: ignore[arg-type]
        found: tuple[Gaussian, ...] = self._derived["marginals"]
        return found

    @property
    def coef_(self) -> FloatArray:
        """Posterior means of the coefficients."""
        return _public(self, moments_of(self)[0][:, : self._width])

    @property
    def coef_std_(self) -> FloatArray:
        """Posterior standard deviations of the coefficients."""
        return _public(self, moments_of(self)[1][:, : self._width])

    @property
    def intercept_(self) -> Any:
        """Posterior mean of the intercept; zero without one."""
        return _public(self, np.sum(moments_of(self)[0][:, self._width :], axis=1))

    @property
    def intercept_std_(self) -> Any:
        """Posterior standard deviation of the intercept; zero without one."""
        return _public(self, np.sum(moments_of(self)[1][:, self._width :], axis=1))

    @property
    def covariance_(self) -> Any:
        """Posterior covariances of coefficients and intercept, the intercept last."""
        posterior = self.posterior_
        if posterior[0].dim > WIDEST_COVARIANCE:
            raise ValueError(
                f"covariance_ holds dim² numbers: at most {WIDEST_COVARIANCE} columns, got {posterior[0].dim}; "
                "coef_std_ has the standard deviations, sample_coef draws"
            )
        return _public(self, self._units[0] ** 2 * np.array([p.covariance for p in posterior]))

    @property
    def prior_variance_(self) -> Any:
        """Prior variance of the coefficients, given or found: a number, or one per feature, per class or per group.

        Where it was found, it is that of coefficients of columns in the units `prior_units_`.
        """
        self._known()
        named = Parameters.of(self, self._width).named
        if len(named) > 1 or (named and not isinstance(self.prior_variance, str)):
            return {name: float(self._priors[0].variance[columns[0]]) for name, columns in named.items()}
        each = np.array([prior.variance[: self._width] for prior in self._priors])
        each = each[:, 0] if np.all(each == each[:, :1]) else each
        return float(each[0]) if each.shape == (1,) else each[0] if len(each) == 1 else each

    @property
    def prior_units_(self) -> FloatArray:
        """Units of the columns in which `prior_variance_` is: ``prior_variance_ / prior_units_**2`` is in raw units."""
        self._known()
        return self._columns.unit.copy()

    @property
    def log_evidence_(self) -> float:
        """Estimate of the logarithm of the data's density under the model, summed over the linear predictors."""
        return float(sum(p.log_mass for p in self._whole_posteriors()))

    def sample_coef(
        self, n: int = 1, random_state: Any = None, return_intercept: bool = False
    ) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Draw coefficients from the posterior.

        Parameters
        ----------
        n : int, default=1
            Number of draws.
        random_state : int, RandomState or None, default=None
            Seed of the draws.
        return_intercept : bool, default=False
            Whether to return the intercepts of the same draws too.

        Returns
        -------
        ndarray
            ``(n, n_features)``, or ``(n, n_classes, n_features)`` for more than two classes; with
            ``return_intercept`` also the intercepts, ``(n,)`` or ``(n, n_classes)``.
        """
        draws, (unit, offset), d = draws_of(self, whole_number("n", n, least=0), random_state), self._units, self._width
        coef, intercept = unit * draws[:, :, :d], offset + unit * np.sum(draws[:, :, d:], axis=2)
        if draws.shape[1] == 1 or self._is_single:
            coef, intercept = coef[:, 0], intercept[:, 0]
        return (coef, intercept) if return_intercept else coef

    def __sklearn_is_fitted__(self) -> bool:
        return "_knowledge" in self.__dict__

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be rebuilt."""
        self._settled()
        state = super().__getstate__()
        if "_knowledge" in state:
            state = {**state, "_knowledge": self._present_knowledge()}
        return {name: value for name, value in state.items() if name not in TRANSIENT}

    @property
    def _is_joint(self) -> bool:
        """Whether several linear predictors share one posterior."""
        return hasattr(self.__dict__.get("_loss"), "predictors")

    def _mixing(self) -> FloatArray:
        """Matrix that gives the linear predictors, one per row, from those of a loss of several."""
        return mixing(self._loss)

    @property
    def _width(self) -> int:
        """Number of coefficients of one linear predictor, the intercept not counted."""
        levels = self.__dict__.get("categories_", {})
        return self.n_features_in_ + sum(len(known) for known in levels.values())

    def _whole_posteriors(self) -> tuple[Gaussian, ...]:
        """Posteriors as they are kept: of every linear predictor, or of all together."""
        self._known()
        return self._present_posteriors()

    def _known(self) -> tuple[NaturalParameters, ...]:
        """Give what the rows say for every linear predictor, apart from the prior."""
        if "_knowledge" not in self.__dict__:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit or partial_fit first")
        self._settled()
        return self._present_knowledge()

    def _settled(self) -> None:
        """Find prior and noise of the last rows of a stream, if that was left until someone asks.

        All happens in a copy, which then takes the place of the model: nobody sees half of it.
        """
        if self.__dict__.get("_unsettled"):
            other = object.__new__(type(self))
            other.__dict__.update(self.__dict__, _unsettled=False)
            other._settle()
            self.__dict__ = other.__dict__

    def _settle(self) -> None:
        """Find prior and noise."""

    def _present_posteriors(self) -> tuple[Gaussian, ...]:
        """Posteriors as they are now, in the middle of a call."""
        found = self.__dict__.get("_posteriors")
        if found is None:
            known = self._present_knowledge()
            found = tuple(k.posterior(prior) for k, prior in zip(known, self._priors, strict=True))
            self._posteriors = found
        return found

    def _present_knowledge(self) -> tuple[NaturalParameters, ...]:
        """Give what the rows say as it is now, in the middle of a call."""
        streams = self.__dict__.get("_streams")
        known: tuple[NaturalParameters, ...] = self._knowledge if streams is None else streams.knowledge()
        return known

    def _settings(self) -> tuple[list[Setting], ...]:
        """Hyperparameters that the posterior of every linear predictor is averaged over."""
        reported(self)
        return tuple(settings for settings, _ in self._derived["averaged"])

    def _noise_known(self) -> tuple[NormalRows | None, float | None]:
        """Give sums over rows of normal noise whose scale was found, or the information of its logarithm."""
        return None, None

    def _site_factor(self, scale: float) -> float:
        """Factor of the sites at another noise scale."""
        return 1.0

    def _latent(
        self, X: Any, offset: Any = None, posteriors: tuple[Gaussian, ...] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors ``(count, n)`` at rows, checked before."""
        X, d, posteriors = X.astype(np.float64, copy=False), self._width, posteriors or self.posterior_
        means = [np.asarray(X @ p.mean[:d]) + np.sum(p.mean[d:]) for p in posteriors]
        if isinstance(posteriors[0], FactorialGaussian):  # without a copy of the rows
            squares = squared(X)
            variances = [np.asarray(squares @ p.variance[:d]) + np.sum(p.variance[d:]) for p in posteriors]
        else:
            rows = with_intercept(X) if self._intercept else X
            variances = [p.predictor_variance(rows) for p in posteriors]
        known = checked_offset(offset, X.shape[0])
        return np.array(means) + (0.0 if known is None else known / self._units[0]), np.array(variances)


def _public(model: Posteriors, values: FloatArray) -> Any:
    """One linear predictor per row, as scikit-learn's classifiers have it, or the only one."""
    if not model._is_single:
        return values
    return float(values[0]) if values.ndim == 1 else values[0]


def reported(model: Posteriors) -> tuple[Gaussian, ...]:
    """Posteriors as users see them: of coefficients of the columns as they came, averaged over hyperparameters."""
    model._known()  # not fitted: raised here
    derived = model.__dict__.setdefault("_derived", {})
    if "averaged" not in derived:
        with threads_for((model._columns.unit.size, model._priors[0].dim)):
            derived["averaged"] = averaged(model)
    return tuple(posterior for _, posterior in derived["averaged"])


def averaged(model: Posteriors) -> tuple[tuple[list[Setting], Any], ...]:
    """Posterior of every linear predictor, and the hyperparameters that it is averaged over.

    A mixture where their uncertainty matters; for several predictors together a Gaussian of the same moments.
    """
    groups, scale, (rows, information) = model._free, float(getattr(model._loss, "scale", 1.0)), model._noise_known()
    levels = columns_of(model.n_features_in_, vars(model).get("categories_", {})).values()
    change = Change(*model._columns, model._intercept, tuple(levels))
    found = []
    for known, prior, whole in zip(model._known(), model._priors, model._whole_posteriors(), strict=True):
        settings = [Setting(1.0, prior, scale)]
        if groups or rows is not None or information is not None:
            posterior = known.working(prior)
            settings = settings_around(posterior, groups, rows, scale, information)
        if len(settings) == 1:
            found.append((settings, in_raw_units(whole, change)))
            continue
        now, kept, parts = scale, [], []
        for setting in settings:
            factor = model._site_factor(setting.scale) / model._site_factor(now)
            if posterior.scale(factor, factor, setting.prior):
                now = setting.scale
                kept.append(setting)
                parts.append(in_raw_units(posterior.gaussian(), change))
        weights = np.array([setting.weight for setting in kept])
        mixture: Any = GaussianMixture(weights / np.sum(weights), tuple(parts), whole.log_mass)
        if model._is_joint:
            mixture = DenseGaussian(mixture.mean, mixture.root, mixture.log_mass)
        found.append((kept, mixture))
    return tuple(found)


def in_raw_units(posterior: Any, change: Change) -> Any:
    """Posterior of the coefficients that users see, from that of the ones that are kept."""
    if change.is_identity:
        return posterior
    if not isinstance(posterior, DenseGaussian):
        return AffineGaussian(posterior, change)
    width = change.unit.size + int(change.intercept)
    parts = range(0, posterior.dim, width)
    mean = [change.coefficients(posterior.mean[i : i + width, None])[:, 0] for i in parts]
    root = [change.coefficients(posterior.root[i : i + width]) for i in parts]
    return DenseGaussian(np.concatenate(mean), np.concatenate(root), posterior.log_mass)


def units_of(model: Posteriors) -> tuple[FloatArray, FloatArray]:
    """Give the unit of every linear predictor, and what its intercept is moved by, as columns."""
    each = np.array([model._units, *model._further_units])
    each = np.broadcast_to(each, (len(model.posterior_), 2)) if len(each) == 1 else each
    return each[:, :1], each[:, 1:]


def moments_of(model: Posteriors) -> tuple[FloatArray, FloatArray]:
    """Means and standard deviations of all coefficients, a linear predictor per row, the intercept last."""
    posteriors = model.posterior_
    unit, offset = units_of(model)
    means = unit * np.array([p.mean for p in posteriors])
    means[:, model._width :] += offset
    return means, unit * np.sqrt(np.array([p.variance for p in posteriors]))


def draws_of(model: Posteriors, n: int, random_state: Any) -> FloatArray:
    """Draws of the coefficients ``(n, predictors, columns)`` of normalised targets, the intercept last."""
    rng, posterior = check_random_state(random_state), model.posterior_
    if model._is_joint:
        whole: Any = reported(model)[0]
        return joint_draws(whole, model._mixing(), rng.standard_normal((n, whole.dim)))
    noise = rng.standard_normal((n, len(posterior), posterior[0].dim))
    return np.stack([p.draws(noise[:, k]) for k, p in enumerate(posterior)], axis=1)


def joint_latent(model: Posteriors, X: Any) -> tuple[FloatArray, FloatArray]:
    """Means ``(n, K)`` and covariances ``(n, K, K)`` at rows of the predictors of a loss of several."""
    whole: Any = reported(model)[0]
    rows, loss = X.astype(np.float64, copy=False), model._loss
    return joint_predictors(whole, with_intercept(rows) if model._intercept else rows, loss.predictors)  # type: ignore[attr-defined]
