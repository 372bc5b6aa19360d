"""Targets of a regression: how they are normalised, and what follows them in a stream and through a merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cavity import losses
from cavity._checks import shown
from cavity.ep.dense import DensePosterior
from cavity.ep.hyperparameters import Group, Hyperparameters, NormalRows, maximise_evidence, maximise_normal_evidence
from cavity.ep.knowledge import DenseKnowledge, Gaussian, Knowledge, SparseKnowledge
from cavity.ep.result import Result
from cavity.ep.row_sites import noise_slope
from cavity.estimators._design import Data, Totals, coarse, with_intercept
from cavity.estimators._parameters import LARGEST_TARGET, Parameters
from cavity.estimators._plan import Plan
from cavity.estimators._posteriors import RATE
from cavity.estimators._sources import Coding, Prepared, Summary
from cavity.estimators._streaming import StreamingEP, pooled_prior
from cavity.estimators._streams import GROWTH
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss
from cavity.losses.joint import Normal
from cavity.noise import log_normalizer, site_factor, with_scale

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
        return float(self.y_scale_ * _scale_of(self._loss))

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
        normal = self._is_normal and isinstance(self._known()[0], DenseKnowledge | SparseKnowledge)
        information = 2.0 * self._totals.rows if normal else max(float(noise[1]), 1e-3)
        return information, information * float(np.log(_scale_of(self._loss)))

    def _set_noise(self, noise: Any) -> None:
        self._scales = self._scale_found(noise)

    def _note_noise(self, noise: Any) -> None:
        if noise is None or not self._finds_scale:
            return
        slope, information, here = noise
        self._scales = self._scales[0] + information, self._scales[1] + information * here + slope

    def _noise_under(self, posterior: Gaussian, data: Data) -> Any:
        """Slope and information of the log scale, and where they were found: the likeliest scale after these rows."""
        if not self._finds_scale or self._sums_say_all:
            return None
        X = with_intercept(data.X) if self._intercept else data.X
        mean, variance = np.asarray(X @ posterior.mean), posterior.predictor_variance(X)
        weights = np.ones(mean.size) if data.weights is None else data.weights
        known = 0.0 if data.offset is None else data.offset
        past, shift = self._scales
        here = float(np.log(_scale_of(self._loss)))
        for _ in range(20):
            loss = with_scale(self._loss, float(np.exp(here)))
            slope, information = noise_slope(loss, data.targets[0], mean + known, variance, weights)
            total = slope + shift - past * here
            step = total / max(past + information, 0.5 * abs(total), 1e-12)
            if abs(step) < 0.1:
                break
            here += step
        return slope, information, here

    @property
    def _rate(self) -> float:  # type: ignore[override]
        """Logarithms of means have the rate of log odds, real targets a fifth of it."""
        return 0.2 * RATE if self._kind == "reals" else RATE

    def _least_scale(self) -> float:
        if self._kind != "reals":
            return _LEAST_SHARE
        return LEAST_NOISE * (self._totals.spread or 1.0)

    def _forget(self, keep: float) -> None:
        super()._forget(keep)
        self._scales = keep * self._scales[0], keep * self._scales[1]

    def _begin(self, p: Parameters, count: int) -> None:
        super()._begin(p, count)
        self._totals = self._totals._replace(constants=0.0)
        if self._finds_scale:
            self._loss = self._make_loss()

    def _constants(self, rows: Data | Prepared, loss: Loss) -> Totals:
        """Logarithms of what densities of counts are divided by: they depend on the dispersion and on every count."""
        if self._kind != "counts":
            return Totals()
        return Totals(constants=rows.sum_over_targets(lambda targets: log_normalizer(loss, targets)))

    def _prior_units(self) -> tuple[float, float]:
        """Spread and mean of the normalised targets, which begin as one and zero and change in a stream."""
        if not self.normalize_y or self._kind != "reals":
            return 1.0, 0.0
        return self._totals.spread or 1.0, self._totals.mean if self._intercept else 0.0

    def _follow(self, p: Parameters, data: Data, all_rows: bool) -> None:
        self._totals = self._totals.plus(self._constants(data, self._loss))
        # Where all rows were fitted together, the noise scale was found with their sites. Where sums say all, a search
        # starts again from the spread of the targets: from noise found in few rows, that of more may not be reached.
        if self._finds_scale and self._sums_say_all and self._totals.rows >= GROWTH * self._rows_at_revision:
            self._set_scale(self._totals.spread or 1.0)
        elif self._finds_scale and not self._sums_say_all and not all_rows and self._scales[0] > 0.0:
            self._set_scale(float(np.exp(self._scales[1] / self._scales[0])))
        super()._follow(p, data, all_rows)

    @property
    def _sums_say_all(self) -> bool:
        return self._is_normal and isinstance(self._known()[0], DenseKnowledge)

    def _find_variances(self, posterior: Any, groups: tuple[Group, ...]) -> None:
        """Find the noise scale as well where sums of squares say all of it: for the squared loss."""
        if not (self._finds_scale and self._is_normal and isinstance(posterior, DensePosterior)):
            maximise_evidence(posterior, groups)
            return
        totals, before = self._totals, _scale_of(self._loss)
        rows = NormalRows(totals.rows, totals.squares, before, self._least_scale())
        maximise_normal_evidence(posterior, Hyperparameters(groups, True), rows)
        self._set_scale(rows.scale)

    def _noise_known(self) -> tuple[NormalRows | None, float | None]:
        if not self._finds_scale or self._is_joint:
            return None, None
        if self._is_normal:
            totals = self._totals
            return NormalRows(totals.rows, totals.squares, _scale_of(self._loss), self._least_scale()), None
        # With less information the logarithm of the scale is not nearly normal: near zero, say.
        return None, self._scales[0] if self._scales[0] >= 4.0 else None

    def _site_factor(self, scale: float) -> float:
        if scale == _scale_of(self._loss):
            return 1.0
        return site_factor(self._loss, scale, self._totals.mean)

    @property
    def _is_normal(self) -> bool:
        return isinstance(self._loss, losses.Squared)

    def _set_scale(self, scale: float) -> None:
        """Let what is known follow another noise scale."""
        most = np.inf if self._kind == "reals" else _LARGEST_SHARE
        scale = min(max(scale, self._least_scale()), most)
        known, totals = self._rescaled(self._known()[0], self._priors[0], self._totals, scale)
        self._revise(_knowledge=(known,), _totals=totals, _loss=with_scale(self._loss, scale))

    def _rescaled(
        self, known: Knowledge, prior: FactorialGaussian, totals: Totals, scale: float
    ) -> tuple[Knowledge, Totals]:
        """Give what is known, and the sums, as another noise scale has them.

        Where the scale is no mere factor of the loss, this holds for precisions only, and the evidence of rows that
        are gone stays what it was.
        """
        factor = site_factor(self._loss, scale, totals.mean)
        moved = known.times(factor)
        if self._kind != "counts" or factor == 1.0:
            return moved, totals
        more = moved.posterior(prior).log_mass - known.posterior(prior).log_mass
        return moved, totals.plus(Totals(constants=more))

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

    def _set_units(self, mean: float, squares: float, size: float) -> None:
        """Set offset and unit of the targets, of which the largest has this size.

        The mean, and the mean squared distance from it, are given in units of the size: their squares are finite then.
        """
        self.y_offset_, self.y_scale_ = 0.0, 1.0
        if not self.normalize_y or self._kind != "reals":
            return
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
            pooled = float(np.sqrt(share * _scale_of(one._loss) ** 2 + (1.0 - share) * scale**2))
            known, own = one._rescaled(known, one._priors[0], own, pooled)
            self._loss = with_scale(one._loss, scale)
            moved, totals = self._rescaled(moved, prior, totals, pooled)
            self._loss = with_scale(one._loss, pooled)
            information = one._scales[0] + other._scales[0]
            self._scales = information, information * float(np.log(pooled))
        self._knowledge, self._totals = (known.plus(moved),), own.plus(totals)
        self._priors = (pooled_prior(one._priors[0], prior, share),)

    def _in_units_of(self, one: Self, known: Any) -> tuple[Knowledge, Totals, FactorialGaussian, float]:
        """Give what is known, sums, prior and scale of this model in the units in which another sees its targets."""
        ratio, offset = self.y_scale_ / one.y_scale_, (self.y_offset_ - one.y_offset_) / one.y_scale_
        prior = self._priors[0]
        if ratio == 1.0 and offset == 0.0:
            return known, self._totals, prior, _scale_of(self._loss)
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
        return moved, totals, prior, ratio * _scale_of(self._loss)


def _scale_of(loss: Loss) -> float:
    return float(getattr(loss, "scale", 1.0))
