"""A linear regressor with a posterior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, xlogy
from sklearn.base import RegressorMixin

from cavity import losses
from cavity._checks import as_float, flag, number_between, one_of, shown
from cavity._types import FloatArray
from cavity.ep.blocks import noise_slope
from cavity.ep.hyperparameters import Group, Hyperparameters, NormalRows, maximise_normal_evidence
from cavity.ep.posteriors import DenseNatural, NaturalParameters, SparseNatural
from cavity.ep.result import Result
from cavity.estimators.base import over_blocks, predicted_targets
from cavity.estimators.parameters import LARGEST_TARGET, Parameters, Plan, moderate_number, plan_joint
from cavity.estimators.posterior import RATE, joint_latent, mixing
from cavity.estimators.progress import Verbose
from cavity.estimators.rows import (
    Data,
    KeptRows,
    NoWeightError,
    Order,
    Totals,
    checked_offset,
    coarse,
    rows_of_weight,
    with_intercept,
)
from cavity.estimators.runs import Coding, Prepared, Summary, Task, is_source
from cavity.estimators.streams import StreamingEP, of_columns, pooled_prior, scale_of
from cavity.gaussians.factorial import LOG_2PI, FactorialGaussian
from cavity.gaussians.mixture import GaussianMixture, normal_mixture_quantile
from cavity.losses import Loss
from cavity.losses.joint import Normal, spread_log_density, spread_quantile, spread_std
from cavity.losses.noise import log_normalizer, mixture_quantile, predictive_std, site_factor, with_scale
from cavity.moments import tilts

Score = Callable[[Any, Any, Any, Any], Any]


def score_of(loss: Loss, y: ArrayLike | None, predicted: FloatArray, weights: ArrayLike | None) -> float:
    """Share of the loss of a constant prediction that is saved."""
    score = next((score for kind, score in _SCORES.items() if isinstance(loss, kind)), _r2)
    return float(score(loss, y, predicted, weights))


def log_densities(model: Any, X: Any, y: FloatArray, offset: Any = None) -> FloatArray:
    """Logarithm of the density of every target under a regressor, its coefficients integrated out.

    A linear spread is integrated out by a rule of 15 nodes; the predictor as in EP.
    """
    rows, unit = model._checked_for_prediction(X), model.y_scale_
    t = (y - model.y_offset_) / unit
    if model._is_spread:
        mean, variance = model._spread_predictors(rows, offset)
        return spread_log_density(mean, variance, t) - np.log(unit)
    mean, variance = (part[0] for part in model._latent(rows, offset))
    return np.asarray(tilts(model._loss, t, mean, variance).log_mass - log_normalizer(model._loss, t) - np.log(unit))


def accuracy(y: Any, labels: Any, weights: Any) -> float:
    """Share of labels that are as predicted."""
    return float(_metric("accuracy_score")(y, labels, sample_weight=weights))


def _metric(name: str) -> Any:
    # Loaded with the first score: sklearn.metrics brings preprocessing and more.
    return getattr(import_module("sklearn.metrics"), name)


def _r2(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("r2_score")(y, predicted, sample_weight=weights)


def _absolute(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_absolute_error_score")(y, predicted, sample_weight=weights)


def _pinball(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_pinball_score")(y, predicted, sample_weight=weights, alpha=loss.quantile)


def _poisson(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_tweedie_score")(y, _positive(predicted), sample_weight=weights, power=1)


def _gamma(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_tweedie_score")(y, _positive(predicted), sample_weight=weights, power=2)


def _negative_binomial(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    counts, alpha = np.asarray(y, dtype=np.float64), loss.dispersion
    constant = np.full(counts.shape, np.average(counts, weights=weights))

    def deviance(mean: FloatArray) -> float:
        excess = xlogy(counts, counts / mean) - (counts + 1.0 / alpha) * np.log1p(
            alpha * (counts - mean) / (1.0 + alpha * mean)
        )
        return float(np.average(excess, weights=weights))

    least = deviance(_positive(constant))
    return 1.0 - deviance(_positive(predicted)) / least if least > 0.0 else np.nan


def _positive(predicted: Any) -> FloatArray:
    """Means that are numbers above zero."""
    limits = np.finfo(np.float64)
    return np.clip(predicted, limits.tiny, np.sqrt(limits.max))


_SCORES: dict[type, Score] = {
    losses.Absolute: _absolute,
    losses.Quantile: _pinball,
    losses.Poisson: _poisson,
    losses.Gamma: _gamma,
    losses.NegativeBinomial: _negative_binomial,
}


# Smallest noise scale that is found, as a share of the targets' standard deviation: where columns can explain any
# targets, no noise would be left, and with it no digit of a row's cavity.
LEAST_NOISE = 1e-4
# Bounds of a scale that is a share of the mean.
_LEAST_SHARE, _LARGEST_SHARE = 1e-6, 1e3


class NormalisedTargets(StreamingEP):
    """Base of the regressor: targets with an offset and a unit, and a noise scale that may be found."""

    loss: Any
    fit_intercept: bool
    normalize_y: bool
    y_offset_: float
    y_scale_: float
    # Which targets the loss is for.
    _kind: Any
    # What the rows of a stream say of the logarithm of its noise scale, as natural parameters of a Gaussian:
    # information and shift.
    _scales: tuple[float, float] = (0.0, 0.0)

    @property
    def scale_(self) -> float:
        """Scale of the noise in units of y."""
        self._known()
        loss: Any = self._loss
        if isinstance(loss, Normal):
            return float(np.exp(self.posterior_[1].mean[-1] * self._intercept) * self.y_scale_)
        return float(self.y_scale_ * scale_of(self._loss))

    @property
    def _units(self) -> tuple[float, float]:
        return self.y_scale_, self.y_offset_

    def _keep(self, task: Task, outcomes: Sequence[Result], totals: Totals) -> None:
        super()._keep(task, outcomes, totals)
        self._scales = self._scale_found(outcomes[0].noise)

    def _scale_found(self, noise: Any) -> tuple[float, float]:
        """Natural parameters of the log noise scale that was found from all rows."""
        if not self._finds_scale or noise is None:
            return 0.0, 0.0
        normal = self._is_normal and isinstance(self._known()[0], DenseNatural | SparseNatural)
        information = 2.0 * self._totals.rows if normal else max(float(noise[1]), 1e-3)
        return information, information * float(np.log(scale_of(self._loss)))

    def _note_noise(self, data: Data) -> None:
        """Move the noise scale to the likeliest one after standardised rows, which are yet to be taken in."""
        if not self._finds_scale:
            return
        posterior = self._present_posteriors()[0]
        X = with_intercept(data.X) if self._intercept else data.X
        mean, variance = np.asarray(X @ posterior.mean), posterior.predictor_variance(X)
        weights = np.ones(mean.size) if data.weights is None else data.weights
        past, shift = self._scales
        here = float(np.log(scale_of(self._loss)))
        for _ in range(20):
            loss = with_scale(self._loss, float(np.exp(here)))
            slope, information = noise_slope(loss, data.targets[0], mean, variance, weights)
            total = slope + shift - past * here
            step = total / max(past + information, 0.5 * abs(total), 1e-12)
            if abs(step) < 0.1:
                break
            here += step
        both = past + information, shift + information * here + slope
        if both[0] > 0.0:
            most = np.inf if self._kind == "reals" else _LARGEST_SHARE
            scale = min(max(float(np.exp(both[1] / both[0])), self._least_scale()), most)
            known, totals = self._at_scale(
                self._present_knowledge()[0], self._priors[0], self._totals, self._scales, scale
            )
            self._revise(_knowledge=(known,), _totals=totals, _loss=with_scale(self._loss, scale))
        self._scales = both

    def _follow_noise(self, kept: KeptRows, known: tuple[Any, ...], noise: Any) -> None:
        if not self._finds_scale:
            return
        found, totals = self._scale_found(noise), kept.totals
        if totals.rows:
            scale, now = scale_of(self._loss), self._knowledge[0]
            before = with_scale(self._loss, kept.scale)
            moved, totals = self._at_scale(known[0], self._priors[0], totals, kept.noise, scale, before)
            now = now.with_factor(moved.log_scale - known[0].log_scale)
            self._revise(_knowledge=(now,), _totals=self._totals._replace(constants=totals.constants))
        self._scales = kept.noise[0] + found[0], kept.noise[1] + found[1]

    @property
    def _rate(self) -> float:  # type: ignore[override]
        """Logarithms of means have the rate of log odds, real targets a fifth of it."""
        return 0.2 * RATE if self._kind == "reals" else RATE

    @property
    def _spread(self) -> float:
        """Standard deviation of the normalised targets, without an intercept around zero; one where it vanishes."""
        totals = self._totals
        if self.fit_intercept or not totals.rows:
            return totals.spread or 1.0
        return float(np.sqrt(totals.squares / totals.rows)) or 1.0

    def _least_scale(self) -> float:
        if self._kind != "reals":
            return _LEAST_SHARE
        return LEAST_NOISE * self._spread

    def _forget(self, keep: float) -> None:
        super()._forget(keep)
        self._scales = keep * self._scales[0], keep * self._scales[1]

    def _order_with(self, targets: FloatArray) -> Order:
        return self._order.plus(self.y_offset_ + self.y_scale_ * targets[0])

    def _first_loss(self) -> Loss:
        """Loss in the unit of the targets, at the noise scale where a search starts."""
        return self._loss if self._is_joint else self._make_loss()

    def _constants(self, rows: Data | Prepared, loss: Loss) -> Totals:
        """Logarithms of what densities of counts are divided by: they depend on the dispersion and on every count."""
        if self._kind != "counts":
            return Totals()
        return Totals(constants=rows.sum_over_targets(lambda targets: log_normalizer(loss, targets)))

    def _fit_units(self) -> tuple[float, float]:
        return (1.0, 0.0) if isinstance(self.loss, str) else self._prior_units()

    def _prior_units(self) -> tuple[float, float]:
        """Spread and mean of the normalised targets, which begin as one and zero and change in a stream."""
        if not self.normalize_y or self._kind != "reals":
            return 1.0, 0.0
        return self._spread, self._totals.mean if self.fit_intercept else 0.0

    @property
    def _sums_say_all(self) -> bool:
        return self._is_normal and isinstance(self._knowledge[0], DenseNatural)

    def _settle(self) -> None:
        """Find prior variances, noise scale and units of columns anew, of the squared loss from the sums alone."""
        if not self._sums_say_all:
            super()._settle()
            return
        p, totals = Parameters.of(self, self._width), self._totals
        known, before, columns = self._knowledge[0], self._columns, p.columns(self._sums)
        self._columns = columns
        prior, groups = self._stream_prior(p)
        known, scale = of_columns(known, before, columns, self._intercept), scale_of(self._loss)
        free = Hyperparameters(groups, self._finds_scale)
        if free:
            first = self._spread if self._finds_scale else scale
            rows = NormalRows(totals.rows, totals.squares, first, self._least_scale())
            posterior = known.times((scale / first) ** 2).working(prior)
            maximise_normal_evidence(posterior, free, rows)
            known, prior, scale = known.times((scale / rows.scale) ** 2), posterior.prior, rows.scale
        found = {"_knowledge": (known,), "_priors": (prior,), "_free": groups, "_loss": with_scale(self._loss, scale)}
        self._revise(**found, _columns=columns, _unsettled=False, _rows_at_revision=totals.rows)

    def _noise_known(self) -> tuple[NormalRows | None, float | None]:
        if not self._finds_scale or self._is_joint:
            return None, None
        if self._is_normal:
            totals = self._totals
            return NormalRows(totals.rows, totals.squares, scale_of(self._loss), self._least_scale()), None
        # With less information the logarithm of the scale is not nearly normal: near zero, say.
        return None, self._scales[0] if self._scales[0] >= 4.0 else None

    def _site_factor(self, scale: float) -> float:
        if scale == scale_of(self._loss):
            return 1.0
        return site_factor(self._loss, scale, self._totals.mean)

    @property
    def _is_normal(self) -> bool:
        return isinstance(self._loss, losses.Squared)

    def _at_scale(
        self,
        known: Any,
        prior: FactorialGaussian,
        totals: Totals,
        noise: tuple[float, float],
        scale: float,
        before: Loss | None = None,
    ) -> tuple[Any, Totals]:
        """Give sites of rows that are gone, and sums over them, at another noise scale than that of ``before``.

        For the squared loss that is exact. For others precisions follow by a factor, and the evidence by its quadratic
        approximation in the logarithm of the scale: ``noise`` are its information and shift.
        """
        loss: Any = self._loss if before is None else before
        moved = known.times(site_factor(loss, scale, totals.mean))
        if self._is_normal or scale == scale_of(loss):
            return moved, totals
        start, (information, shift) = float(np.log(scale_of(loss))), noise
        step = float(np.log(scale)) - start
        gain = (shift - information * start - 0.5 * information * step) * step
        more = known.posterior(prior).log_mass - moved.posterior(prior).log_mass + gain
        if self._kind == "counts":
            return moved, totals.plus(Totals(constants=-more))
        at = np.exp([totals.mean]) if self._kind == "positives" else np.zeros(1)
        normaliser = float(log_normalizer(with_scale(loss, scale), at)[0] - log_normalizer(loss, at)[0])
        more += totals.rows * normaliser
        return moved.with_factor(more), totals

    def _adopt_targets(self, summary: Summary) -> tuple[Coding, Totals]:
        """Check the targets of a source by their moments, and set their offset and unit."""
        if summary.moments is None:
            raise ValueError("targets must be numbers")
        least, largest, mean, squares, log_mean, log_squares = summary.moments
        self._check_size(np.array([least, largest]))
        self._check_sign(np.array([least]))
        size = max(abs(least), abs(largest)) or 1.0
        self._set_units(mean / size, squares / summary.weight / size / size, size)
        if self._kind == "positives":
            mean, squares = log_mean, log_squares
        center = (mean - self.y_offset_) / self.y_scale_
        totals = Totals(
            summary.weight,
            summary.weight * center,
            squares / self.y_scale_**2 + summary.weight * center**2,
        )
        return Coding(center=self.y_offset_, unit=self.y_scale_), totals

    def _check_size(self, y: FloatArray) -> None:
        """Refuse targets whose squares are not finite."""
        if not np.all(np.abs(y) <= LARGEST_TARGET):
            raise ValueError(f"y must hold finite numbers of at most {LARGEST_TARGET:g} in size; change its units")

    def _check_sign(self, y: FloatArray) -> None:
        """Refuse targets that the loss is not made for."""
        least = float(np.min(y, initial=1.0))
        if self._kind == "counts" and least < 0.0:
            raise ValueError(
                f"loss={shown(self.loss)} needs counts, zero or more, got negative targets, {least:g} among them"
            )
        if self._kind == "positives" and least <= 0.0:
            raise ValueError(
                f"loss={shown(self.loss)} needs positive targets, got {least:g}; drop these rows, or take a loss of "
                "counts, such as loss='poisson'"
            )

    def _normalised(self, X: Any, y: FloatArray, weights: Any, known: Any, reset: bool) -> tuple[Data, Totals]:
        """Rows with targets and offsets in the unit of the targets, and sums over them; set the unit first if asked."""
        if reset:
            unknown = y if known is None else y - known
            size = float(np.max(np.abs(unknown))) or 1.0
            mean = float(np.average(unknown / size, weights=weights))
            self._set_units(mean, float(np.average((unknown / size - mean) ** 2, weights=weights)), size)
        t = (y - self.y_offset_) / self.y_scale_
        if not np.all(np.abs(t) <= LARGEST_TARGET):
            raise ValueError(
                f"y must lie within {LARGEST_TARGET:g} times the spread of the targets seen first, {self.y_scale_:g}"
            )
        known = None if known is None else known / self.y_scale_
        # Of positive targets the logarithm counts: the normaliser of their density is linear in it.
        summed = np.log(t) if self._kind == "positives" else t
        if known is not None and self._kind == "reals":
            summed = t - known
        return Data(X, t[None], weights, known), Totals.of(X.shape[0], weights, summed)

    def _normalised_again(self, data: Data) -> Data:
        X, (t,), weights, offset = data
        known = None if offset is None else offset * self.y_scale_
        data, self._totals = self._normalised(X, self.y_offset_ + self.y_scale_ * t, weights, known, reset=True)
        return data

    def _set_units(self, mean: float, squares: float, size: float) -> None:
        """Set offset and unit of the targets, of which the largest has this size.

        The mean, and the mean squared distance from it, are given in units of the size: their squares are finite then.
        """
        self.y_offset_, self.y_scale_ = 0.0, 1.0
        if not self.normalize_y or self._kind != "reals" or not isinstance(self.loss, str):
            return  # a loss of one's own is one of the targets as they are
        offset = mean if self.fit_intercept else 0.0
        spread = float(np.sqrt(squares + (mean - offset) ** 2))
        self.y_scale_ = coarse(size * (spread if spread > 1e-12 else 1.0))
        self.y_offset_ = coarse(size * offset, self.y_scale_)

    # Merging.

    def _same_loss(self, other: Self) -> bool:
        """Whether the losses are the same in units of y, but for a scale that both found."""
        if type(other._loss) is not type(self._loss) or self._finds_scale != other._finds_scale:
            return False
        if "scale" not in getattr(self._loss, "_fields", ()):
            return super()._same_loss(other) and self.y_scale_ == other.y_scale_
        same_scale = self._finds_scale or np.isclose(self.scale_, other.scale_, rtol=1e-12, atol=0.0)
        return bool(same_scale) and with_scale(other._loss, 1.0) == with_scale(self._loss, 1.0)

    def _absorb(self, one: Self, other: Self) -> None:
        """Bring the other to the units of the first, pool the scales, and add up."""
        moved, totals, prior, scale = other._in_units_of(one, other._in_columns_of(self)[0])
        rows, free = one._totals.rows + totals.rows, one._finds_scale
        share = one._totals.rows / max(rows, np.finfo(np.float64).tiny)
        known, own = one._in_columns_of(self)[0], one._totals
        if free:
            moved_scales = (
                other._scales[0],
                other._scales[1] + other._scales[0] * float(np.log(scale / scale_of(other._loss))),
            )
            self._scales = one._scales[0] + moved_scales[0], one._scales[1] + moved_scales[1]
            information, shift = self._scales
            pooled = float(np.exp(shift / information)) if information > 0.0 else scale_of(one._loss)
            known, own = self._at_scale(known, one._priors[0], own, one._scales, pooled, one._loss)
            before = with_scale(one._loss, scale)
            moved, totals = self._at_scale(moved, prior, totals, moved_scales, pooled, before)
            self._loss = with_scale(one._loss, pooled)
        self._knowledge, self._totals = (known.plus(moved),), own.plus(totals)
        self._priors = (pooled_prior(one._priors[0], prior, share),)

    def _in_units_of(self, one: Self, known: Any) -> tuple[NaturalParameters, Totals, FactorialGaussian, float]:
        """Give what is known, sums, prior and scale of this model in the units in which another sees its targets."""
        ratio, offset = self.y_scale_ / one.y_scale_, (self.y_offset_ - one.y_offset_) / one.y_scale_
        prior = self._priors[0]
        if ratio == 1.0 and offset == 0.0:
            return known, self._totals, prior, scale_of(self._loss)
        shift = np.zeros(prior.dim)
        shift[-1] = offset  # without an intercept there is no offset
        moved = known.moved(ratio, shift)
        mean = ratio * prior.mean + shift
        sums = self._totals
        totals = sums._replace(
            targets=ratio * sums.targets + offset * sums.rows,
            squares=ratio**2 * sums.squares + 2.0 * ratio * offset * sums.targets + offset**2 * sums.rows,
        )
        prior = FactorialGaussian.from_moments(mean, ratio**2 * prior.variance)
        return moved, totals, prior, ratio * scale_of(self._loss)


# Prior variance of the log standard deviation: of its intercept, around that of the targets, where a tenth or ten times
# as much is not rare; and what the features together are expected to add to it.
_LOG_SPREAD, _LOG_SLOPES = 4.0, 0.25
# Rate of the exponential prior of the standard deviation of the log standard deviation: one in twenty is beyond ten.
_LOG_RATE = 0.3


class LinearSpread(NormalisedTargets):
    """Base of the regressor, with coefficients of the log standard deviation where these are asked for."""

    scale: Any
    _kind_of_groups = "predictor"

    @property
    def scale_coef_(self) -> FloatArray:
        """Posterior means of the coefficients of the log standard deviation, for ``scale="linear"``."""
        return np.asarray(self._spread_part().mean[: self._width])

    @property
    def scale_coef_std_(self) -> FloatArray:
        """Posterior standard deviations of `scale_coef_`."""
        return np.sqrt(self._spread_part().variance[: self._width])

    @property
    def scale_intercept_(self) -> float:
        """Posterior mean of the intercept of the log standard deviation, in units of y."""
        return float(np.sum(self._spread_part().mean[self._width :]) + np.log(self.y_scale_))

    @property
    def _groups(self) -> list[str] | None:
        if not self._is_joint:
            return None
        if self._is_linear:
            return ["mean", "log scale"]
        return [f"predictor {k}" for k in range(mixing(self._loss).shape[0])]

    @property
    def _further_units(self) -> list[tuple[float, float]]:
        """Predictors but the first are as the loss sees them; a log standard deviation is given in units of y."""
        moved = float(np.log(self.y_scale_)) if self._is_linear else 0.0
        return [(1.0, moved)] * (mixing(self._loss).shape[0] - 1) if self._is_joint else []

    @property
    def _is_linear(self) -> bool:
        """Whether the log standard deviation is to be linear."""
        return isinstance(self.scale, str) and self.scale == "linear"

    def _spread_part(self) -> Any:
        if not self._is_spread:
            raise AttributeError("only a model with scale='linear' has coefficients of the scale")
        return self.posterior_[1]

    @property
    def _is_spread(self) -> bool:
        return isinstance(self.__dict__.get("_loss"), Normal)

    def _joint(self, rows: int, columns: int, covariance: str, stream: bool) -> tuple[Any, Plan] | None:
        own = getattr(self._make_loss(), "predictors", None)
        if own is None and not self._is_linear:
            return None
        plan = plan_joint(rows, columns, own or 2, covariance, stream)
        if plan is None:
            raise ValueError(
                f"{own or 2} predictors of {columns} columns are too wide, or covariance={covariance!r} does not allow "
                "them: use fewer columns and covariance='auto'"
            )
        return self._make_loss() if own else Normal(), plan

    def _prior_and_groups(
        self, p: Parameters, predictors: int, units: tuple[float, float] = (1.0, 0.0)
    ) -> tuple[FactorialGaussian, tuple[Group, ...]]:
        if predictors == 1 or not self._is_linear:
            return super()._prior_and_groups(p, predictors, units)
        prior, groups = super()._prior_and_groups(p, 1, units)
        features, size = p.prior_mean.size, float(np.sum(self._sizes())) or 1.0
        slopes = _LOG_SLOPES / size
        center = np.append(np.zeros(features), [np.log(units[0])] * int(p.intercept))
        variances = np.append(np.full(features, slopes), [_LOG_SPREAD] * int(p.intercept))
        both = FactorialGaussian.from_moments(
            np.concatenate([prior.mean, center]), np.concatenate([prior.variance, variances])
        )
        return both, (*groups, Group(prior.dim + np.arange(features), size, _LOG_RATE))

    def _spread_predictors(self, X: Any, offset: Any) -> tuple[FloatArray, FloatArray]:
        """Mean and covariance of mean and log standard deviation at rows."""
        mean, variance = joint_latent(self, X)
        known = checked_offset(offset, X.shape[0])
        if known is not None:
            mean[:, 0] += known / self.y_scale_
        return mean, variance

    def _predicted_spread(self, X: Any, offset: Any, levels: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Means, or quantiles in their place, and standard deviations of new targets."""
        mean, variance = self._spread_predictors(X, offset)
        center = mean[:, 0]
        if levels is not None:
            columns = [spread_quantile(mean, variance, float(q)) for q in np.atleast_1d(levels)]
            center = np.column_stack(columns) if np.ndim(levels) else columns[0]
        return self.y_offset_ + self.y_scale_ * center, self.y_scale_ * spread_std(mean, variance)

    def _check_mergeable(self, other: Self) -> None:
        units = [(vars(one).get("y_scale_"), vars(one).get("y_offset_")) for one in (self, other)]
        if self._is_joint and units[0] != units[1]:
            raise ValueError("models of several predictors merge in the same units of y only: give normalize_y=False")
        super()._check_mergeable(other)


# Losses that have a name, and the targets of losses of a regression.
_LOSSES: dict[str, Any] = {
    "squared": losses.Squared,
    "normal": losses.Squared,
    "absolute": losses.Absolute,
    "huber": losses.Huber,
    "quantile": losses.Quantile,
    "poisson": losses.Poisson,
    "negative_binomial": losses.NegativeBinomial,
    "gamma": losses.Gamma,
}
_KINDS = ("reals", "counts", "positives")


class EPRegressor(RegressorMixin, LinearSpread):  # type: ignore[misc]
    r"""Linear regressor with a posterior: means, standard deviations and correlations of all coefficients.

    Each loss corresponds to a noise distribution: squared to Gaussian, absolute to Laplace, quantile to asymmetric
    Laplace, and Huber to Gaussian noise with heavy tails. Poisson and negative binomial are for counts, and gamma for
    positive targets, all with the mean :math:`e^z`. The noise scale is estimated unless it is given.

    Parameters
    ----------
    loss : name or loss object, default="squared"
        Loss of the linear predictor: ``"squared"`` (or ``"normal"``, which is the same), ``"absolute"``, ``"huber"``,
        ``"quantile"``, ``"poisson"``, ``"negative_binomial"``, ``"gamma"``, or your own loss (`cavity.losses`).
    quantile : float in (0, 1), default=0.5
        The quantile that ``loss="quantile"`` predicts.
    epsilon : float, default=1.35
        Distance at which ``loss="huber"`` changes from squared to absolute, in units of the scale.
    scale : float, "auto" or "linear", default="auto"
        Noise scale in units of y, for losses given by name. ``"auto"`` estimates it by maximum likelihood during the
        fit, and updates it in a stream. For ``"gamma"``, it is the standard deviation divided by the mean, and the
        shape is ``scale**-2``. For ``"negative_binomial"``, it is the same for the random rate: the variance of a count
        with mean m is ``m + (scale * m)**2``. Poisson has no scale. With ``"linear"``, for ``loss="normal"``, the
        logarithm of the noise standard deviation is a linear function of the features, with coefficients
        `scale_coef_`.
    normalize_y : bool, default=True
        Whether the prior refers to targets with mean zero and standard deviation one, so that predictions do not
        depend on the units of y. Ignored for losses that predict the logarithm of a mean: ``"poisson"``,
        ``"negative_binomial"`` and ``"gamma"``.
    prior_variance, prior_groups, prior_mean, fit_intercept, intercept_prior_variance, covariance, max_iter, tol
        As in `EPClassifier`.
    random_state, verbose
        As in `EPClassifier`.

    Attributes
    ----------
    coef_, coef_std_ : ndarray of shape (n_features,)
        Posterior means and standard deviations.
    intercept_, intercept_std_ : float
        Posterior mean and standard deviation of the intercept.
    covariance_ : ndarray of shape (n, n)
        Posterior covariances of the n coefficients; the intercept is last.
    scale_ : float
        Noise scale, given or estimated, in the units of the parameter.
    scale_coef_, scale_coef_std_, scale_intercept_
        For ``scale="linear"``: posterior of the coefficients of the log standard deviation, and mean of its intercept.
    posterior_ : tuple of one Gaussian
        The posterior for the normalised targets, with the uncertainty of an estimated prior variance; the intercept is
        the last coefficient.
    log_evidence_ : float
        Estimate of the log evidence, the logarithm of the density of y in its original units. Use it to compare sets of
        columns, scales and priors.
    n_features_in_, feature_names_in_, n_iter_, prior_variance_, prior_units_, plan_, trace_, status_
        As in `EPClassifier`; the prior variance is in squared units of the normalised targets.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-1.0, 1.0, 50)[:, None]
    >>> model = EPRegressor().fit(X, 3.0 * X[:, 0] + 1.0)
    >>> model.predict(X[:2]).round(2), round(model.intercept_, 2)
    (array([-2.  , -1.88]), 1.0)
    """

    _first_spread = 1.0
    _is_single = True

    def __init__(
        self,
        loss: Any = "squared",
        *,
        quantile: float = 0.5,
        epsilon: float = 1.35,
        scale: Any = "auto",
        normalize_y: bool = True,
        prior_variance: Any = "auto",
        prior_groups: Any = None,
        prior_mean: Any = 0.0,
        fit_intercept: bool = True,
        intercept_prior_variance: float = 100.0,
        covariance: str = "auto",
        max_iter: int = 100,
        tol: float = 0.01,
        random_state: Any = None,
        verbose: Verbose = None,
    ) -> None:
        self.loss = loss
        self.quantile = quantile
        self.epsilon = epsilon
        self.scale = scale
        self.normalize_y = normalize_y
        self.prior_variance = prior_variance
        self.prior_groups = prior_groups
        self.prior_mean = prior_mean
        self.fit_intercept = fit_intercept
        self.intercept_prior_variance = intercept_prior_variance
        self.covariance = covariance
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        forget: float = 0.0,
        offset: ArrayLike | None = None,
        halflife: float | None = None,
    ) -> Self:
        """Update the posterior with new rows, of which some are kept for a while.

        See `EPClassifier.partial_fit`. With the squared loss sums are kept instead, and the result is that of `fit`.
        The prior, the normalisation of y and the noise scale, unless given, follow the rows.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`.
        forget : float in [0, 1), default=0.0
            Share of the information from earlier rows that is discarded before the update, for data that
            drift.
        halflife : float, optional
            Number of rows after which a row counts half, instead of ``forget``. The result does not depend on the
            number of rows per call.

        Returns
        -------
        Self
            The estimator. If the rows are invalid, or all have weight zero, it is unchanged.
        """
        if self._took_row(X, y, sample_weight, forget or None, offset, halflife):
            return self
        try:
            with self._whole_or_not_at_all():
                self._take(X, y, sample_weight, forget, offset, halflife)
        except NoWeightError:
            if not self.__sklearn_is_fitted__():
                raise
        return self

    def _read(
        self, X: Any, y: Any, sample_weight: Any, offset: Any = None, reset: bool = True, stream: bool = False
    ) -> tuple[Data, Totals]:
        """Check rows, targets, weights and offsets, and normalise the targets; the first call sets unit and offset."""
        if reset or not (self._is_plain(X) and type(y) is np.ndarray and y.shape == X.shape[:1]):
            X, y = self._check_X(X, y=y, y_numeric=True, reset=reset)
        y = np.asarray(y, dtype=np.float64)
        self._check_size(y)
        self._check_sign(y)
        known = checked_offset(offset, X.shape[0])
        X, both, weights = rows_of_weight(X, y if known is None else np.stack([y, known]), sample_weight)
        y, known = (both, None) if known is None else (both[0], both[1])
        return self._normalised(X, y, weights, known, reset)

    @over_blocks
    def predict(self, X: Any, return_std: Any = False, quantile: Any = None, offset: ArrayLike | None = None) -> Any:
        """Predict targets.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Rows.
        return_std : bool or "mean", default=False
            Whether to also return the standard deviation of a new target, which includes the noise and the uncertainty
            of the coefficients. For ``loss="quantile"``, the standard deviation of the predicted quantile. With
            ``"mean"``, the standard deviation of the mean of new targets: the uncertainty of the coefficients alone.
        quantile : float or array of floats in (0, 1), optional
            Return this quantile of a new target instead of its mean; for several quantiles, one column each. With
            ``return_std="mean"``, the quantile of the mean: ``predict(X, return_std="mean", quantile=(0.05, 0.95))[0]``
            has the borders of its 90 % interval.
        offset : array-like of shape (n_samples,), optional
            Known part of the linear predictor, such as the logarithm of an exposure.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_quantiles), or two of them
            Posterior mean of the linear predictor, or of its exponential for losses of counts and positive targets.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.linspace(-1.0, 1.0, 50)[:, None]
        >>> model = EPRegressor().fit(X, 2.0 * X[:, 0] + np.sin(37.0 * np.arange(50)))
        >>> of_target = model.predict([[0.0]], return_std=True)[1]
        >>> of_mean = model.predict([[0.0]], return_std="mean")[1]
        >>> print((of_target / of_mean).round(1))
        [7.1]
        """
        X, levels = self._checked_for_prediction(X), None if quantile is None else _levels(quantile)
        if isinstance(return_std, str):
            one_of("return_std", return_std, ("mean",))
            return self._predicted_mean(X, offset, levels)
        if self._is_spread:
            both = self._predicted_spread(X, offset, levels)
            return both if return_std else both[0]
        unit, center = self._units
        if levels is None and self._kind == "reals":
            (mean,), (variance,) = self._latent(X, offset)
            if not isinstance(self._loss, losses.Quantile):
                variance = variance + self._noise_variance()
            return (center + unit * mean, unit * np.sqrt(variance)) if return_std else center + unit * mean
        weights, parts, means, variances = self._parts(X, offset)
        with np.errstate(over="ignore", invalid="ignore"):  # infinite where it is too large
            each = means if self._kind == "reals" else np.exp(means + 0.5 * variances)
            found = weights @ each
            stds = np.array([predictive_std(*part) for part in zip(parts, means, variances, strict=True)])
            spread = np.sqrt(weights @ (np.square(stds) + np.square(each - found)))
        if levels is not None:
            columns = [mixture_quantile(parts, weights, means, variances, float(q)) for q in np.atleast_1d(levels)]
            found = np.column_stack(columns) if np.ndim(levels) else columns[0]
        found = center + unit * found
        return (found, unit * np.where(np.isnan(spread), np.inf, spread)) if return_std else found

    def _predicted_mean(self, X: Any, offset: Any, levels: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Means of new targets, or quantiles of these means, and their standard deviations."""
        if self._is_spread:
            mean, covariance = self._spread_predictors(X, offset)
            weights, means, variances = np.ones(1), mean[None, :, 0], covariance[None, :, 0, 0]
        else:
            weights, _, means, variances = self._parts(X, offset)
        unit, center = self._units
        is_log, each, spreads = self._kind != "reals", means, variances
        with np.errstate(over="ignore", invalid="ignore"):  # infinite where it is too large
            if is_log:
                each = np.exp(means + 0.5 * variances)
                spreads = np.square(each) * np.expm1(variances)
            found = weights @ each
            std = np.sqrt(weights @ (spreads + np.square(each - found)))
            if levels is not None:
                args = weights, means, np.sqrt(variances)
                quantiles = np.array([normal_mixture_quantile(*args, float(q)) for q in np.atleast_1d(levels)])
                found = (np.exp(quantiles) if is_log else quantiles).T
                found = found if np.ndim(levels) else found[:, 0]
        return center + unit * found, unit * np.where(np.isnan(std), np.inf, std)

    def _noise_variance(self) -> float:
        """Variance of the noise of real targets, averaged over hyperparameters."""
        zero, loss, total = np.zeros(1), self._loss, 0.0
        for setting in self._settings()[0]:
            one = with_scale(loss, setting.scale) if "scale" in getattr(loss, "_fields", ()) else loss
            total += setting.weight * float(predictive_std(one, zero, zero)[0]) ** 2
        return total

    def _parts(self, X: Any, offset: Any) -> tuple[FloatArray, list[Any], FloatArray, FloatArray]:
        """Weights, losses, and means and variances of the predictor at rows, for all hyperparameters averaged over."""
        posterior, settings = self.posterior_[0], self._settings()[0]
        if not isinstance(posterior, GaussianMixture):
            mean, variance = self._latent(X, offset)
            return np.ones(1), [self._loss], mean, variance
        rows = with_intercept(X.astype(np.float64, copy=False)) if self._intercept else X.astype(np.float64, copy=False)
        means, variances = posterior.predictors(rows)
        known = checked_offset(offset, X.shape[0])
        means = means + (0.0 if known is None else known / self._units[0])
        parts: list[Any] = [self._loss] * len(settings)
        if "scale" in getattr(self._loss, "_fields", ()):
            parts = [with_scale(self._loss, setting.scale) for setting in settings]
        return posterior.weights, parts, means, variances

    def score(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> float:
        """Score of the predictions: 1 is perfect, 0 is as good as a constant prediction.

        The score is R² for the squared loss, the Huber loss and your own losses. For the other losses it is D², as in
        scikit-learn: of the absolute error, the pinball loss, the Poisson deviance (`d2_tweedie_score` with power 1),
        the gamma deviance (power 2), or the negative binomial deviance with the dispersion of the model.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`.

        Returns
        -------
        float
            The score of `predict`.
        """
        if is_source(X):
            return score_of(self._loss, *predicted_targets(self, X))
        return score_of(self._loss, y, self.predict(X, offset=offset), sample_weight)

    @property
    def log_evidence_(self) -> float:
        """Estimate of the logarithm of the density of y in its original units."""
        mass = super().log_evidence_
        if self._kind == "counts":
            return mass - self._totals.constants
        if self._kind == "positives":
            return mass - self._totals.rows * float(log_normalizer(self._loss, np.exp([self._totals.mean]))[0])
        constant = 0.5 * LOG_2PI if self._is_spread else float(log_normalizer(self._loss, np.zeros(1))[0])
        return mass - self._totals.rows * (constant + float(np.log(self.y_scale_)))

    def _make_loss(self) -> Loss:
        flag("normalize_y", self.normalize_y)
        loss: Any = self.loss
        if self._is_linear and not (isinstance(loss, str) and loss in ("squared", "normal")):
            raise ValueError(f"scale='linear' is for loss='normal', got loss={shown(loss)}")
        if not isinstance(loss, str):
            if isinstance(loss, type) or getattr(loss, "targets", None) not in _KINDS:
                raise ValueError(f"loss must be made for real or positive targets or counts, got {loss!r}")
            given: Loss = loss
            return given
        kind = _LOSSES[one_of("loss", loss, tuple(_LOSSES))]
        made: Loss = kind()
        if kind is losses.Poisson or self._is_linear:
            return made
        unit = self.__dict__.get("y_scale_", 1.0) if self._kind == "reals" else 1.0
        scale = 1.0 if self._finds_scale else moderate_number("scale", self.scale) / unit
        if loss == "quantile":
            level = number_between("quantile", self.quantile, 0.0, 1.0, "()")
            # The search for the scale starts at that of normal noise, of targets without any predictor.
            start = float(np.exp(-0.5 * ndtri(level) ** 2) / np.sqrt(2.0 * np.pi))
            return losses.Quantile(level, start if self._finds_scale else scale)
        if loss == "huber":
            return losses.Huber(moderate_number("epsilon", self.epsilon), scale)
        return with_scale(made, scale)

    @property
    def _finds_scale(self) -> bool:
        if not isinstance(self.scale, str):
            moderate_number("scale", self.scale)
        elif self.scale not in ("auto", "linear"):
            raise ValueError(f"scale must be a positive number, 'auto' or 'linear', got {shown(self.scale)}")
        return (
            isinstance(self.loss, str)
            and self.loss != "poisson"
            and isinstance(self.scale, str)
            and not self._is_linear
        )

    @property
    def _kind(self) -> Any:
        loss = _LOSSES.get(self.loss, losses.Squared)() if isinstance(self.loss, str) else self.loss
        return getattr(loss, "targets", None)

    def _check_own_state(self) -> None:
        scales: Any = self._scales
        sums = scales if isinstance(scales, list | tuple) and len(scales) == 2 else (np.nan,)
        offset, unit, *sums = (as_float(n) for n in (vars(self).get("y_offset_"), vars(self).get("y_scale_"), *sums))
        if not (np.isfinite(offset) and 0.0 < unit < np.inf and np.all(np.isfinite(sums))):
            raise ValueError("the model is not consistent: its normalisation is not finite")
        if len(self._knowledge) != 1 or self._loss.targets not in _KINDS:
            raise ValueError("the model is not consistent: its loss is not one of a regression, or it has no posterior")


def _levels(quantile: Any) -> FloatArray:
    """Check one probability, or a list of them."""
    try:
        levels = np.asarray(quantile, dtype=np.float64)
    except (TypeError, ValueError):
        levels = np.array([np.nan])
    if (
        isinstance(quantile, bool | str)
        or levels.ndim > 1
        or levels.size == 0
        or not np.all((levels > 0.0) & (levels < 1.0))
    ):
        raise ValueError(f"quantile must be one or several numbers in (0, 1), got {shown(quantile)}")
    return levels
