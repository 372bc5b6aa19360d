"""Targets of a regression: how they are normalised, and what follows them in a stream and through a merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cavity import losses
from cavity._checks import shown
from cavity.ep.hyperparameters import Hyperparameters, NormalRows, maximise_normal_evidence
from cavity.ep.natural import DenseNatural, NaturalParameters, SparseNatural
from cavity.ep.result import Result
from cavity.ep.sites import noise_slope
from cavity.estimators._design import Data, KeptRows, Order, Totals, coarse, with_intercept
from cavity.estimators._parameters import LARGEST_TARGET, Parameters
from cavity.estimators._plan import Plan
from cavity.estimators._posteriors import RATE, working
from cavity.estimators._sources import Coding, Prepared, Summary
from cavity.estimators._streaming import StreamingEP, of_columns, pooled_prior
from cavity.estimators._streams import scale_of
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss
from cavity.losses.joint import Normal
from cavity.losses.noise import log_normalizer, site_factor, with_scale

FloatArray = NDArray[np.float64]

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

    def _keep(self, plan: Plan, intercept: bool, outcomes: Sequence[Result], totals: Totals) -> None:
        super()._keep(plan, intercept, outcomes, totals)
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
            posterior = working(known.times((scale / first) ** 2), prior)
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
