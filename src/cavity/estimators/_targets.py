"""Targets of a regression: how they are normalised, and what follows them in a stream and through a merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cavity import losses
from cavity._checks import shown
from cavity.ep.adaptation import LEAST_NOISE
from cavity.ep.knowledge import DenseKnowledge, Gaussian, Knowledge
from cavity.ep.result import Result
from cavity.estimators._design import Data, Totals, coarse
from cavity.estimators._parameters import LARGEST_TARGET, Parameters
from cavity.estimators._plan import Plan
from cavity.estimators._sources import Coding, Prepared, Summary
from cavity.estimators._streaming import StreamingEP, pooled_prior
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss
from cavity.losses.joint import Normal
from cavity.noise import log_normalizer, scale_of_sums, scale_sums, site_factor, sums_of_scale, with_scale

FloatArray = NDArray[np.float64]


class NormalisedTargets(StreamingEP):
    """Base of the regressor: targets with an offset and a unit, and a noise scale that may be found."""

    loss: Any
    fit_intercept: bool
    normalize_y: bool
    y_offset_: float
    y_scale_: float
    # Which targets the loss is for.
    _kind: Any
    # Two sums over rows whose ratio says the noise scale of a stream, `cavity.noise.scale_sums`.
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
        self._scales = self._sums_of_scale(totals)

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

    def _sums_of_scale(self, totals: Totals) -> tuple[float, float]:
        """Give the sums as if all rows had been seen with the noise scale of the loss."""
        if not self._finds_scale:
            return totals.rows * _scale_of(self._loss), totals.rows
        return sums_of_scale(self._loss, totals.rows, totals.mean)

    def _prior_units(self) -> tuple[float, float]:
        """Spread and mean of the normalised targets, which begin as one and zero and change in a stream."""
        if not self.normalize_y or self._kind != "reals":
            return 1.0, 0.0
        return self._totals.spread or 1.0, self._totals.mean if self._intercept else 0.0

    def _follow(self, p: Parameters, data: Data, all_rows: bool) -> None:
        self._totals = self._totals.plus(self._constants(data, self._loss))
        if self._finds_scale:
            if all_rows:  # the noise scale was found with their sites
                self._scales = self._sums_of_scale(self._totals)
            scale = _scale_of(self._loss) if all_rows else self._followed_scale(data)
            known, totals = self._rescaled(self._known()[0], self._priors[0], self._totals, scale)
            self._revise(_knowledge=(known,), _totals=totals, _loss=with_scale(self._loss, scale))
        super()._follow(p, data, all_rows)

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

    def _followed_scale(self, data: Data) -> float:
        """Noise scale after rows of a stream: from sums of squares where they say all, else from running sums."""
        floor = LEAST_NOISE * (self._totals.spread or 1.0 if self._kind == "reals" else 1.0)
        known, (t,), weights = self._known()[0], data.targets, data.weights
        if isinstance(self._loss, losses.Squared) and isinstance(known, DenseKnowledge):
            return max(_residual_scale(self._loss.scale, known, self._whole_posteriors()[0], self._totals), floor)
        mean, variance = self._latent(data.X, posteriors=self._whole_posteriors())
        whole = mean[0] if data.offset is None else mean[0] + data.offset
        more = scale_sums(self._loss, t, whole, variance[0], weights)
        self._scales = self._scales[0] + more[0], self._scales[1] + more[1]
        return max(scale_of_sums(self._loss, self._scales), floor)

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
            summary.sizes,
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
        moved, totals, prior, scale = other._in_units_of(one)
        rows, free = one._totals.rows + totals.rows, one._finds_scale
        share = one._totals.rows / max(rows, np.finfo(np.float64).tiny)
        known, own = one._known()[0], one._totals
        if free:
            pooled = float(np.sqrt(share * _scale_of(one._loss) ** 2 + (1.0 - share) * scale**2))
            known, own = one._rescaled(known, one._priors[0], own, pooled)
            self._loss = with_scale(one._loss, scale)
            moved, totals = self._rescaled(moved, prior, totals, pooled)
            self._loss = with_scale(one._loss, pooled)
            self._scales = self._sums_of_scale(own.plus(totals))
        self._knowledge, self._totals = (known.plus(moved),), own.plus(totals)
        self._priors = (pooled_prior(one._priors[0], prior, share),)

    def _in_units_of(self, one: Self) -> tuple[Knowledge, Totals, FactorialGaussian, float]:
        """Give knowledge, sums, prior and scale of this model in the units in which another sees its targets."""
        ratio, offset = self.y_scale_ / one.y_scale_, (self.y_offset_ - one.y_offset_) / one.y_scale_
        prior = self._priors[0]
        if ratio == 1.0 and offset == 0.0:
            return self._known()[0], self._totals, prior, _scale_of(self._loss)
        shift = np.zeros(prior.dim)
        shift[-1] = offset  # without an intercept there is no offset
        moved = self._known()[0].moved(ratio, shift)
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


def _residual_scale(scale: float, known: DenseKnowledge, posterior: Gaussian, totals: Totals) -> float:
    r"""Noise scale of the squared loss from sums: residuals at the mean over rows not used up, MacKay's fixed point.

    .. math:: \sigma^2 = \frac{\sum_i t_i^2 - 2 m^\top h + m^\top G m}{n - \mathrm{tr}(G\, C)},

    with G and h for a scale of one, and posterior covariance C; their units cancel in the trace.
    """
    m, unit = posterior.mean, scale**2
    squares = totals.squares - 2.0 * unit * float(m @ known.shift) + unit * float(m @ known.information @ m)
    used = float(np.sum(known.information * posterior.covariance))
    return float(np.sqrt(max(squares, 1e-12 * totals.squares) / max(totals.rows - used, 0.5)))
