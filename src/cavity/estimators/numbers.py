"""Numbers as targets: unit and offset, losses of reals, counts and positive numbers, and the scale of the noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from cavity import losses
from cavity._checks import as_float, flag, number_between, one_of, shown
from cavity._types import FloatArray
from cavity.ep.blocks import noise_slope
from cavity.ep.hyperparameters import Group, NormalRows
from cavity.ep.posteriors import DenseNatural, NaturalParameters, SparseNatural
from cavity.ep.wide import RowsNatural
from cavity.estimators.parameters import LARGEST_TARGET, Plan, moderate_number, plan_joint
from cavity.estimators.posterior import RATE, mixing
from cavity.estimators.rows import (
    Data,
    KeptRows,
    Order,
    Totals,
    checked_offset,
    coarse,
    rows_of_weight,
    with_intercept,
)
from cavity.estimators.runs import Coding, Summary
from cavity.factors.columns import Columns
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss
from cavity.losses.joint import Normal
from cavity.losses.noise import log_normalizer, site_factor, with_scale
from cavity.terms.prior import Prior, StructuredPrior

if TYPE_CHECKING:
    from cavity.estimators.fitted import Fitted

# Losses that have a name, and the targets of losses of a regression.
LOSSES: dict[str, Any] = {
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
# Variance that coefficients give to the linear predictor where the search for their prior variance starts.
_FIRST_SPREAD = 1.0
# Smallest noise scale that is found, as a share of the targets' standard deviation: where columns can explain any
# targets, no noise would be left, and with it no digit of a row's cavity.
LEAST_NOISE = 1e-4
# Bounds of a scale that is a share of the mean.
_LEAST_SHARE, _LARGEST_SHARE = 1e-6, 1e3
# Prior variance of the log standard deviation: of its intercept, around that of the targets, where a tenth or ten times
# as much is not rare; and what the features together are expected to add to it.
_LOG_SPREAD, _LOG_SLOPES = 4.0, 0.25
# Rate of the half-normal prior of the standard deviation of the log standard deviation: one in twenty is beyond ten.
_LOG_RATE = 0.2


@dataclass(frozen=True, eq=False)
class Numbers:
    """How numbers become targets of a loss: less an offset, in a unit.

    Parameters
    ----------
    asked
        The loss as asked for, a name or an object.
    scale
        The noise scale as asked for.
    quantile, epsilon
        Of losses that have these.
    normalised
        Whether the prior is one of targets with mean zero and standard deviation one.
    intercept
        Whether there is an intercept, which takes the offset.
    units
        Unit and offset of the targets; None before any were seen.
    """

    asked: Any
    scale: Any = "auto"
    quantile: Any = 0.5
    epsilon: Any = 1.35
    normalised: bool = True
    intercept: bool = True
    units: tuple[float, float] | None = None

    is_single = True
    what = "predictor"  # what there are several linear predictors for

    @classmethod
    def of(cls, model: Any, before: Numbers | None = None) -> Numbers:
        """Check the parameters of a regressor that only it has; units are those of before, if there are any."""
        flags = flag("normalize_y", model.normalize_y), flag("fit_intercept", model.fit_intercept)
        units = None if before is None else before.units
        found = cls(model.loss, model.scale, model.quantile, model.epsilon, *flags, units)
        if not isinstance(found.scale, str):
            moderate_number("scale", found.scale)
        elif found.scale not in ("auto", "linear"):
            raise ValueError(f"scale must be a positive number, 'auto' or 'linear', got {shown(found.scale)}")
        if found.is_linear and (model.formula is not None or model.terms is not None):
            raise ValueError("scale='linear' is for columns, not for a formula or terms")
        if found.is_linear and not (isinstance(found.asked, str) and found.asked in ("squared", "normal")):
            raise ValueError(f"scale='linear' is for loss='normal', got loss={shown(found.asked)}")
        found._make_loss()
        return found

    @property
    def unit(self) -> float:
        """Unit of the targets."""
        return 1.0 if self.units is None else self.units[0]

    @property
    def offset(self) -> float:
        """What is subtracted from the targets."""
        return 0.0 if self.units is None else self.units[1]

    @property
    def kind(self) -> Any:
        """Which targets the loss is for."""
        loss = LOSSES.get(self.asked, losses.Squared)() if isinstance(self.asked, str) else self.asked
        return getattr(loss, "targets", None)

    @property
    def is_linear(self) -> bool:
        """Whether the log standard deviation is to be linear."""
        return isinstance(self.scale, str) and self.scale == "linear"

    @property
    def finds_scale(self) -> bool:
        """Whether the scale of the noise is to be found."""
        return (
            isinstance(self.asked, str)
            and self.asked != "poisson"
            and isinstance(self.scale, str)
            and not self.is_linear
        )

    @cached_property
    def loss(self) -> Loss:
        """Loss in the unit of the targets, at the noise scale where a search for it starts."""
        return self._make_loss()

    def _make_loss(self) -> Loss:
        loss: Any = self.asked
        if not isinstance(loss, str):
            if isinstance(loss, type) or getattr(loss, "targets", None) not in _KINDS:
                raise ValueError(f"loss must be made for real or positive targets or counts, got {loss!r}")
            given: Loss = loss
            return given
        kind = LOSSES[one_of("loss", loss, tuple(LOSSES))]
        made: Loss = kind()
        if kind is losses.Poisson or self.is_linear:
            return made
        unit = self.unit if self.kind == "reals" else 1.0
        scale = 1.0 if self.finds_scale else moderate_number("scale", self.scale) / unit
        if loss == "quantile":
            level = number_between("quantile", self.quantile, 0.0, 1.0, "()")
            # The search for the scale starts at that of normal noise, of targets without any predictor.
            start = float(np.exp(-0.5 * ndtri(level) ** 2) / np.sqrt(2.0 * np.pi))
            return losses.Quantile(level, start if self.finds_scale else scale)
        if loss == "huber":
            return losses.Huber(moderate_number("epsilon", self.epsilon), scale)
        return with_scale(made, scale)

    def with_intercept(self, intercept: bool) -> Numbers:
        """Numbers for a design with an intercept, or without one."""
        return self if intercept == self.intercept else replace(self, intercept=intercept)

    # Reading.

    def can_read(self, y: Any, rows: int) -> bool:
        """Whether targets need no other check than that of `read`."""
        return type(y) is np.ndarray and y.shape == (rows,)

    def read(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> tuple[Numbers, Data, Totals]:
        """Check targets, weights and offsets, and normalise the targets; unless there are units, these set them."""
        y = np.asarray(y, dtype=np.float64)
        self._check_size(y)
        self._check_sign(y)
        known = None if offset is None else checked_offset(offset, X.shape[0])
        X, both, weights = rows_of_weight(X, y if known is None else np.stack([y, known]), sample_weight)
        y, known = (both, None) if known is None else (both[0], both[1])
        return self._normalise(X, y, weights, known)

    def adopt(self, summary: Summary) -> tuple[Numbers, Coding, Totals]:
        """Check the targets of a source by their moments, and set their offset and unit."""
        if summary.moments is None:
            raise ValueError("targets must be numbers")
        least, largest, mean, squares, log_mean, log_squares = summary.moments
        self._check_size(np.array([least, largest]))
        self._check_sign(np.array([least]))
        size = max(abs(least), abs(largest)) or 1.0
        targets = self._with_units(mean / size, squares / summary.weight / size / size, size)
        if self.kind == "positives":
            mean, squares = log_mean, log_squares
        center = (mean - targets.offset) / targets.unit
        totals = Totals(
            summary.weight,
            summary.weight * center,
            squares / targets.unit**2 + summary.weight * center**2,
        )
        return targets, Coding(center=targets.offset, unit=targets.unit), totals

    def refuse_offset(self, offset: Any) -> None:
        """All losses of numbers take offsets."""

    def _check_size(self, y: FloatArray) -> None:
        """Refuse targets whose squares are not finite."""
        if not np.all(np.abs(y) <= LARGEST_TARGET):
            raise ValueError(f"y must hold finite numbers of at most {LARGEST_TARGET:g} in size; change its units")

    def _check_sign(self, y: FloatArray) -> None:
        """Refuse targets that the loss is not made for."""
        least = float(np.min(y, initial=1.0))
        if self.kind == "counts" and least < 0.0:
            raise ValueError(
                f"loss={shown(self.asked)} needs counts, zero or more, got negative targets, {least:g} among them"
            )
        if self.kind == "positives" and least <= 0.0:
            raise ValueError(
                f"loss={shown(self.asked)} needs positive targets, got {least:g}; drop these rows, or take a loss of "
                "counts, such as loss='poisson'"
            )

    def _normalise(self, X: Any, y: FloatArray, weights: Any, known: Any) -> tuple[Numbers, Data, Totals]:
        """Rows with targets and offsets in the unit of the targets, and sums over them."""
        targets = self
        if self.units is None:
            unknown = y if known is None else y - known
            size = float(np.max(np.abs(unknown))) or 1.0
            mean = float(np.average(unknown / size, weights=weights))
            targets = self._with_units(mean, float(np.average((unknown / size - mean) ** 2, weights=weights)), size)
        t = (y - targets.offset) / targets.unit
        if not np.all(np.abs(t) <= LARGEST_TARGET):
            raise ValueError(
                f"y must lie within {LARGEST_TARGET:g} times the spread of the targets seen first, {targets.unit:g}"
            )
        known = None if known is None else known / targets.unit
        # Of positive targets the logarithm counts: the normaliser of their density is linear in it.
        summed = np.log(t) if self.kind == "positives" else t
        if known is not None and self.kind == "reals":
            summed = t - known
        return targets, Data(X, t[None], weights, known), Totals.of(X.shape[0], weights, summed)

    def normalised_again(self, data: Data) -> tuple[Numbers, Data, Totals | None]:
        """Give all rows of a stream so far in the unit of their targets."""
        X, (t,), weights, offset = data
        known = None if offset is None else offset * self.unit
        return replace(self, units=None)._normalise(X, self.offset + self.unit * t, weights, known)

    def _with_units(self, mean: float, squares: float, size: float) -> Numbers:
        """Set offset and unit of the targets, of which the largest has this size.

        The mean, and the mean squared distance from it, are given in units of the size: their squares are finite then.
        """
        if not self.normalised or self.kind != "reals" or not isinstance(self.asked, str):
            return replace(self, units=(1.0, 0.0))  # a loss of one's own is one of the targets as they are
        offset = mean if self.intercept else 0.0
        spread = float(np.sqrt(squares + (mean - offset) ** 2))
        unit = coarse(size * (spread if spread > 1e-12 else 1.0))
        return replace(self, units=(unit, coarse(size * offset, unit)))

    # Several predictors.

    def joint(self, rows: int, columns: int, covariance: str, stream: bool) -> tuple[Any, Plan] | None:
        """Loss of several predictors with one posterior, and its plan; None where there is one predictor."""
        own = getattr(self.loss, "predictors", None)
        if own is None and not self.is_linear:
            return None
        plan = plan_joint(rows, columns, own or 2, covariance, stream)
        if plan is None:
            raise ValueError(
                f"{own or 2} predictors of {columns} columns are too wide, or covariance={covariance!r} does not allow "
                "them: use fewer columns and covariance='auto'"
            )
        return self.loss if own else Normal(), plan

    def of_joint(self, data: Data) -> tuple[Numbers, Data]:
        """Targets of a loss of several predictors are those of one."""
        return self, data

    def of_joint_coding(self, coding: Coding, summary: Summary) -> tuple[Numbers, Coding]:
        """Do the same for a source."""
        return self, coding

    def mixing(self, loss: Any) -> FloatArray:
        """Matrix that gives the public predictors, one per row, from those of the loss."""
        return mixing(loss)

    def names(self, loss: Any) -> list[str] | None:
        """Names of the linear predictors, where there are several."""
        if not hasattr(loss, "predictors"):
            return None
        return ["mean", "log scale"] if self.is_linear else [f"predictor {k}" for k in range(len(mixing(loss)))]

    # Prior and units.

    def prior(
        self, design: Any, columns: Columns, sizes: FloatArray, loss: Any, units: tuple[float, float] = (1.0, 0.0)
    ) -> tuple[Prior, tuple[Group, ...]]:
        """Prior of all coefficients of a posterior, and groups whose hyperparameters are to be found."""
        predictors = getattr(loss, "predictors", 1)
        # Logarithms of means have the rate of log odds, real targets a fifth of it.
        rate = 0.2 * RATE if self.kind == "reals" else RATE
        if predictors == 1 or not self.is_linear:
            return design.prior(columns, sizes, _FIRST_SPREAD, rate, *units, predictors)
        prior, groups = design.prior(columns, sizes, _FIRST_SPREAD, rate, *units)
        features, size = design.width, float(np.sum(sizes)) or 1.0
        center = np.append(np.zeros(features), [np.log(units[0])] * self.intercept)
        variances = np.append(np.full(features, _LOG_SLOPES / size), [_LOG_SPREAD] * self.intercept)
        both = FactorialGaussian.from_moments(
            np.concatenate([prior.mean, center]), np.concatenate([prior.variance, variances])
        )
        return both, (*groups, Group(prior.dim + np.arange(features), size, _LOG_RATE))

    def prior_units(self, totals: Totals, stream: bool = True) -> tuple[float, float]:
        """Return the unit of the coefficients, and the centre of the intercept's prior.

        Spread and mean of the normalised targets: in a fit one and zero, but for a loss of one's own. In a stream they
        begin as these, and change.
        """
        if not self.normalised or self.kind != "reals" or not (stream or not isinstance(self.asked, str)):
            return 1.0, 0.0
        return self._spread(totals), totals.mean if self.intercept else 0.0

    def _spread(self, totals: Totals) -> float:
        """Return the standard deviation of the normalised targets, without an intercept around zero; never zero."""
        return totals.spread_around(self.intercept) or 1.0

    def units_of_predictors(self, loss: Any, count: int) -> list[tuple[float, float]]:
        """Return unit and offset of every linear predictor.

        Predictors but the first are as the loss sees them; a log standard deviation is given in units of y.
        """
        if not hasattr(loss, "predictors"):
            return [(self.unit, self.offset)] * count
        moved = float(np.log(self.unit)) if self.is_linear else 0.0
        return [(self.unit, self.offset), *[(1.0, moved)] * (count - 1)]

    # Noise.

    def least_scale(self, totals: Totals) -> float:
        """Smallest noise scale that is found."""
        return LEAST_NOISE * self._spread(totals) if self.kind == "reals" else _LEAST_SHARE

    def noise_of_fit(self, loss: Any, sites: Any, totals: Totals, noise: Any) -> tuple[float, float]:
        """Natural parameters of the log noise scale that was found from all rows of a fit."""
        if not self.finds_scale or noise is None:
            return 0.0, 0.0
        normal = isinstance(loss, losses.Squared) and isinstance(sites, DenseNatural | SparseNatural | RowsNatural)
        slope, here = 0.0 if normal else float(noise[0]), float(np.log(getattr(loss, "scale", 1.0)))
        information = 2.0 * totals.rows if normal else max(float(noise[1]), 0.5 * abs(slope), 1e-3)
        return information, information * here + slope

    def noise_found(self, fitted: Fitted) -> tuple[NormalRows | None, float | None]:
        """Return sums over rows of normal noise whose scale was found, or the information of its logarithm."""
        if not self.finds_scale or fitted.is_joint:
            return None, None
        if isinstance(fitted.loss, losses.Squared):
            totals = fitted.totals
            return NormalRows(totals.rows, totals.squares, fitted.scale, self.least_scale(totals)), None
        # With less information the logarithm of the scale is not nearly normal: near zero, say.
        return None, fitted.noise[0] if fitted.noise[0] >= 4.0 else None

    def with_noise_of(self, fitted: Fitted, data: Data) -> Fitted:
        """Move the noise scale to the likeliest one after standardised rows, which are yet to be taken in."""
        posterior = fitted.posteriors[0]
        X = with_intercept(data.X) if self.intercept else data.X
        mean, variance = np.asarray(X @ posterior.mean), posterior.predictor_variance(X)
        weights = np.ones(mean.size) if data.weights is None else data.weights
        past, shift = fitted.noise
        here = float(np.log(fitted.scale))
        for _ in range(20):
            loss = with_scale(fitted.loss, float(np.exp(here)))
            slope, information = noise_slope(loss, data.targets[0], mean, variance, weights)
            total = slope + shift - past * here
            step = total / max(past + information, 0.5 * abs(total), 1e-12)
            if abs(step) < 0.1:
                break
            here += step
        both = past + information, shift + information * here + slope
        if both[0] > 0.0:
            most = np.inf if self.kind == "reals" else _LARGEST_SHARE
            scale = min(max(float(np.exp(both[1] / both[0])), self.least_scale(fitted.totals)), most)
            known, totals = self.at_scale(
                fitted.loss, fitted.natural[0], fitted.priors[0], fitted.totals, fitted.noise, scale
            )
            loss = with_scale(fitted.loss, scale)
            fitted = fitted.revised(sites=(known,), live=None, totals=totals, loss=loss)
        return fitted.revised(noise=both)

    def with_noise_of_kept(self, fitted: Fitted, kept: KeptRows, noise: Any) -> tuple[Fitted, KeptRows]:
        """Let what was known before the kept rows follow the noise scale that was found with them."""
        found = self.noise_of_fit(fitted.loss, fitted.sites[0], fitted.totals, noise)
        fitted = fitted.revised(noise=(kept.noise[0] + found[0], kept.noise[1] + found[1]))
        if not kept.totals.rows:
            return fitted, kept._replace(scale=fitted.scale)
        before, known = with_scale(fitted.loss, kept.scale), kept.known[0]
        now: Any = fitted.sites[0]
        rest = now.plus(known.times(-site_factor(before, fitted.scale, kept.totals.mean)))
        moved, totals = self.at_scale(before, known, fitted.priors[0], kept.totals, kept.noise, fitted.scale, rest)
        now = now.with_factor(moved.log_scale - known.log_scale)
        fitted = fitted.revised(sites=(now,), totals=fitted.totals._replace(constants=totals.constants))
        return fitted, kept._replace(known=(moved,), totals=totals, scale=fitted.scale)

    def totals_of(self, data: Data) -> Totals:
        """Add up rows of a stream."""
        targets = data.targets[0]
        if self.kind == "positives":
            targets = np.log(targets)
        if data.offset is not None and self.kind == "reals":
            targets = targets - data.offset
        return Totals.of(data.X.shape[0], data.weights, targets)

    def at_scale(
        self,
        loss: Any,
        known: Any,
        prior: Prior,
        totals: Totals,
        noise: tuple[float, float],
        scale: float,
        rest: Any = None,
    ) -> tuple[Any, Totals]:
        """Give sites of rows that are gone, and sums over them, at another noise scale than that of ``loss``.

        ``rest`` are the natural parameters of other rows.

        For the squared loss that is exact. For others precisions follow by a factor, and the evidence by its quadratic
        approximation in the logarithm of the scale: ``noise`` are its information and shift.
        """
        moved = known.times(site_factor(loss, scale, totals.mean))
        if isinstance(loss, losses.Squared) or scale == loss.scale:
            return moved, totals
        start, (information, shift) = float(np.log(loss.scale)), noise
        step = float(np.log(scale)) - start
        gain = (shift - information * start - 0.5 * information * step) * step
        both = [one if rest is None else one.plus(rest) for one in (known, moved)]
        more = both[0].posterior(prior).log_mass - both[1].posterior(prior).log_mass + gain
        if self.kind == "counts":
            return moved, totals.plus(Totals(constants=-more))
        at = np.exp([totals.mean]) if self.kind == "positives" else np.zeros(1)
        normaliser = float(log_normalizer(with_scale(loss, scale), at)[0] - log_normalizer(loss, at)[0])
        more += totals.rows * normaliser
        return moved.with_factor(more), totals

    # Streams.

    def order(self, before: Order, targets: FloatArray) -> Order:
        """Order of a stream with the rows of another call."""
        return before.plus(self.offset + self.unit * targets[0])

    # Merging.

    def check_mergeable(self, one: Fitted, other: Fitted) -> None:
        """Refuse models of other losses, or in other units where there are several predictors."""
        if one.is_joint and one.targets.units != other.targets.units:
            raise ValueError("models of several predictors merge in the same units of y only: give normalize_y=False")
        if not self._same_loss(one, other):
            raise ValueError(f"the models have different losses, {one.loss} and {other.loss}")

    def _same_loss(self, one: Fitted, other: Fitted) -> bool:
        """Whether the losses are the same in units of y, but for a scale that both found."""
        if type(other.loss) is not type(one.loss) or self.finds_scale != other.targets.finds_scale:
            return False
        if "scale" not in getattr(one.loss, "_fields", ()):
            return other.loss == one.loss and self.unit == other.targets.unit
        a, b = (fitted.targets.unit * fitted.scale for fitted in (one, other))
        same_scale = self.finds_scale or np.isclose(a, b, rtol=1e-12, atol=0.0)
        return bool(same_scale) and with_scale(other.loss, 1.0) == with_scale(one.loss, 1.0)

    def moved(self, other: Fitted, one: Fitted) -> Fitted:
        """Give another model in the units in which this one sees its targets, and at the same noise scale if found."""
        ratio, offset = other.targets.unit / self.unit, (other.targets.offset - self.offset) / self.unit
        if ratio == 1.0 and offset == 0.0:
            return other.revised(targets=self)
        prior, sums, known = other.priors[0], other.totals, other.natural[0]
        shift = np.zeros(prior.dim)
        shift[-1] = offset  # without an intercept there is no offset
        totals = sums._replace(
            targets=ratio * sums.targets + offset * sums.rows,
            squares=ratio**2 * sums.squares + 2.0 * ratio * offset * sums.targets + offset**2 * sums.rows,
        )
        structured, own = isinstance(prior, StructuredPrior), getattr(prior, "independent", prior)
        own = FactorialGaussian.from_moments(ratio * own.mean + shift, ratio**2 * own.variance)
        # Those of blocks are found again, and only start here.
        prior = prior.at(own, [block.psi for block in prior.blocks]) if structured else own
        scale = ratio * other.scale
        loss = with_scale(other.loss, scale) if hasattr(other.loss, "scale") else other.loss
        information, along = other.noise
        noise = information, along + information * float(np.log(ratio))
        moved: NaturalParameters = known.moved(ratio, shift)
        return other.revised(
            targets=self, sites=(moved,), live=None, priors=(prior,), totals=totals, loss=loss, noise=noise
        )

    def pooled(self, one: Fitted, other: Fitted) -> tuple[Fitted, Fitted]:
        """Bring two models, in the same units, to the noise scale that both found."""
        noise = one.noise[0] + other.noise[0], one.noise[1] + other.noise[1]
        scale = float(np.exp(noise[1] / noise[0])) if noise[0] > 0.0 else one.scale
        moved = []
        for fitted in (one, other):
            known, totals = self.at_scale(
                fitted.loss, fitted.natural[0], fitted.priors[0], fitted.totals, fitted.noise, scale
            )
            loss = with_scale(fitted.loss, scale)
            moved.append(fitted.revised(sites=(known,), live=None, totals=totals, loss=loss, noise=noise))
        return moved[0], moved[1]

    # Files.

    def fault(self, fitted: Fitted) -> str | None:
        """Name what does not fit together, if anything does not."""
        units = self.units if isinstance(self.units, tuple) and len(self.units) == 2 else (np.nan, np.nan)
        noise = fitted.noise if isinstance(fitted.noise, tuple) and len(fitted.noise) == 2 else (np.nan,)
        if not (as_float(units[0]) > 0.0 and all(np.isfinite(as_float(n)) for n in (*units, *noise))):
            return "its normalisation is not finite"
        if len(fitted.sites) != 1 or fitted.loss.targets not in _KINDS:
            return "its loss is not one of a regression, or it has no posterior"
        return None
