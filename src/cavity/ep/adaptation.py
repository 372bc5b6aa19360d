r"""Prior variance and noise scale, found while EP runs.

The prior variance follows MacKay's fixed point, with :math:`\nu` coefficients of a typical variance :math:`v_0` added:

.. math:: v \leftarrow \frac{\sum_j (m_j - \mu_j)^2 + \nu v_0}{\sum_j (1 - s_j^2 / v) + \nu},

over coefficients of posterior mean :math:`m_j`, variance :math:`s_j^2` and prior mean :math:`\mu_j`, for every group of
coefficients that share a variance. Its fixed point
maximises the evidence, up to the added coefficients, which keep it finite where the data alone do not: one column, none
that matters, or separable classes.

The variance takes a step after every block of rows, so that sites and prior converge together. Where classes are almost
separable the sites follow the prior: loop after loop moves both in the same direction. Then the remaining distance is
extrapolated from the last two loops, and posterior and prior are stretched together, as if the unit of the coefficients
had changed.

The noise scale follows the step of expectation maximisation, :mod:`cavity.noise`, lengthened where the coefficients
explain much of the rows: there plain steps are short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.roles import Posterior
from cavity.ep.row_sites import RowSites
from cavity.ep.snapshots import State
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss, offers
from cavity.noise import estimate_scale, scale_of_terms, with_scale

FloatArray = NDArray[np.float64]

# Coefficients of typical size that are added: enough to bound the variance, too few to matter beside five columns.
_ADDED = 0.5
# Rows per coefficient from which on they are asked about the variance. Fewer are often separable, or leave no noise,
# and suggest variances that are far off: sites that are fitted under these stay in a stream, and need not come back
# where the loss is not convex.
ROWS_PER_COEFFICIENT = 10
# Largest factor by which one loop changes a variance or a scale: bounds what a posterior far from converged can do.
_LARGEST_FACTOR = 10.0
# Smallest noise scale that is found, as a share of the targets' standard deviation, or of their mean where its
# logarithm is predicted: where columns can explain any targets, no noise would be left, and with it no digit of a row's
# cavity.
LEAST_NOISE = 1e-4


# Largest share of the rows' information that is believed to be taken up by coefficients: it lengthens a step of the
# noise scale twentyfold. And the step of its logarithm beyond which the prior variance follows it.
_MOST_EXPLAINED, _SCALE_MOVES = 0.95, 0.005
# Steps of the variance in a loop, at least, and the step of its logarithm below which none is taken: a factorisation
# each.
_STEPS_PER_LOOP, _SMALLEST_STEP = 4, 0.001
# Movements of a loop that shrink by a third per loop or less are prolonged: from so many times on, and at most. Chosen
# on 44 problems, real and simulated, logistic and hinge: with 2 in place of 3, orders of rows agree less on the
# variance; with 3 in place of 10 separable problems take a fifth more loops.
_SLOW, _LONGEST = 3.0, 10.0
# Largest growth of a posterior variance by the uncertainty of the prior variance that is left out.
_WORTH_ADDING = 0.005
# Gain of the log evidence by the next loop below which the variance is found: far below the unit at which evidence for
# one of two variances begins.
_NEGLIGIBLE_GAIN = 0.05


class Group(NamedTuple):
    """Coefficients that share a prior variance which is to be found, and a typical variance of theirs.

    ``accuracy`` is the largest change of the logarithm that may be left, where a user wants to read the variance.
    """

    columns: NDArray[np.intp]
    typical: float = 1.0
    accuracy: float = np.inf


@dataclass(slots=True, eq=False)
class Adaptive:
    """Revises prior variances, noise scale, or both, in one run.

    Parameters
    ----------
    groups
        Coefficients that share a prior variance to be found; none if all are given.
    scale
        Whether the field ``scale`` of the loss is to be found.
    beta
        Power of all factors.
    weight
        Number of rows, or sum of their weights; without it the noise scale takes plain steps.
    """

    groups: Sequence[Group] = ()
    scale: bool = False
    beta: float = 1.0
    weight: float = np.inf
    _loops: FloatArray | None = None
    _found: bool = False
    _stretched: float = 0.0
    _explained: float = 0.0
    _scale_step: float = 0.0
    _trust: float = 1.0

    @property
    def is_done(self) -> bool:
        """Whether the prior variances are found, or none are to be found."""
        return not self.groups or (self._found and abs(self._scale_step) <= _SCALE_MOVES)

    def revise(self, posterior: Posterior, parts: int) -> None:
        """Move the prior variances towards their fixed point, after one of so many parts of a loop."""
        if self.is_done:
            return
        for _ in range(-(-_STEPS_PER_LOOP // parts)):
            before = posterior.prior
            new = revised_variances(before, posterior.mean, posterior.variance(), self.groups)
            if np.max(np.abs(np.log(new / variances_of(before, self.groups)))) < _SMALLEST_STEP:
                return
            if not posterior.set_prior(with_variances(before, self.groups, new)):
                return

    def end_loop(self, posterior: Posterior, variance: FloatArray, loop: int, change: float) -> float:
        """Decide whether the variances are found; the logarithm by which prior and posterior are to be stretched.

        ``variance`` are posterior variances, ``change`` is that of the posterior in this loop, in standard deviations.
        """
        # The share of the rows' information that the coefficients take up.
        taken_up = (variance.size - float(posterior.prior.precision @ variance)) / self.weight
        self._explained = min(max(taken_up, 0.0), _MOST_EXPLAINED)
        if self.is_done:
            return 0.0
        v = variances_of(posterior.prior, self.groups)
        here = np.log(v)
        if self._loops is None or loop == 0:  # the first loop moves the posterior from the prior to the data
            self._loops = np.array([here, np.full(here.size, np.nan), np.full(here.size, np.nan)])
            return 0.0
        start, last_start, last_moved = self._loops
        moved = here - start
        lengths = _lengths(start - last_start, moved, last_moved)
        determined = [_determined(variance[group.columns], one) for group, one in zip(self.groups, v, strict=True)]
        gain = float(np.sum(0.25 * np.array(determined) * moved**2 * lengths))
        accurate = np.all(np.abs(moved) * lengths < [group.accuracy for group in self.groups])
        little = 0.2  # standard deviations: a posterior that moves says little of the variance
        # Where movements hardly shrink, the rest of them is extrapolated; else it comes with the posterior.
        exact, slow = gain < 0.02 * _NEGLIGIBLE_GAIN, bool(np.all(lengths >= _SLOW))
        self._found = bool(change <= little and accurate and (exact or (slow and gain < _NEGLIGIBLE_GAIN)))
        stretch = 0.0
        if slow and not (self._found and exact) and len(self.groups) == 1 and not self.scale:
            stretch = limited(float(moved[0] * (lengths[0] - 1.0)))
            if stretch * self._stretched < 0.0:  # the last one went too far: this one must be shorter
                stretch = float(np.clip(stretch, -0.3 * abs(self._stretched), 0.3 * abs(self._stretched)))
            self._stretched = stretch
        self._loops = np.array([here + stretch, start, moved])
        return stretch

    def stretched(self, prior: FactorialGaussian, factor: float) -> FactorialGaussian:
        """Prior whose variances, those that are to be found, are multiplied by a factor."""
        return with_variances(prior, self.groups, factor * variances_of(prior, self.groups))

    def snapshot(self) -> dict[str, Any]:
        """Give what is remembered between two loops."""
        loops = np.full((3, len(self.groups)), np.nan) if self._loops is None else self._loops
        return {"adaptation": np.array([self._found, self._stretched, self._scale_step, self._trust, *np.ravel(loops)])}

    def restore(self, state: State) -> None:
        """Return to such a state."""
        found, self._stretched, self._scale_step, self._trust, *loops = (
            float(number) for number in state["adaptation"]
        )
        self._found = bool(found)
        self._loops = np.reshape(loops, (3, len(self.groups)))
        if np.any(np.isnan(self._loops[0])):
            self._loops = None

    def loss(self, loss: Loss, targets: FloatArray, weights: FloatArray, sites: RowSites) -> Loss:
        """Loss with the revised scale."""
        if not self.scale:
            return loss
        mean, floor = sites.mean + sites.offset, LEAST_NOISE * unit_of(loss, _spread(targets, weights))
        found = estimate_scale(loss, targets, mean, sites.variance, weights, beta=self.beta, floor=floor)
        return self._followed(loss, found)

    def loss_of_terms(self, loss: Loss, terms: FloatArray, unit: float) -> Loss:
        """Loss with the likeliest scale that sums over all rows say, `cavity.noise.scale_terms`."""
        if not self.scale:
            return loss
        return self._followed(loss, max(scale_of_terms(loss, terms, beta=self.beta), LEAST_NOISE * unit))

    def _followed(self, loss: Loss, found: float) -> Loss:
        """Give the loss the scale found, or one on its way there; the same loss where that makes no difference."""
        if not np.isfinite(found):
            return loss
        before = float(loss.scale)  # type: ignore[attr-defined]
        ratio = (found / before) ** 2
        # Where the loss is curved, a step of expectation maximisation leaves the explained share of the distance: go
        # the whole way, or less of it where steps turned round.
        turned = self._scale_step * (ratio - 1.0) < 0.0
        self._trust = min(1.5 * self._trust, 1.0) if not turned else 0.5 * self._trust
        share = self._trust * self._explained if offers(loss).smooth else 0.0
        if ratio > share:
            found = before * float(np.sqrt((ratio - share) / (1.0 - share)))
        new = min(max(found, before / _LARGEST_FACTOR), before * _LARGEST_FACTOR)
        step = float(np.log(new / before))
        # Gain of the log evidence by the step, from as many rows as the coefficients leave over.
        gain = self.weight * (1.0 - self._explained) * step**2
        self._scale_step = 0.0 if abs(step) < 1e-4 or gain < 0.1 * _NEGLIGIBLE_GAIN else step
        return with_scale(loss, new) if self._scale_step else loss


def unit_of(loss: Loss, spread: float) -> float:
    """Give the unit of targets with this standard deviation, of which the smallest noise is a share."""
    return spread or 1.0 if loss.targets == "reals" else 1.0


def _spread(targets: FloatArray, weights: FloatArray) -> float:
    """Give the standard deviation of targets."""
    center = np.average(targets, weights=weights)
    return float(np.sqrt(np.average((targets - center) ** 2, weights=weights)))


def revised_variance(v: float, deviations: FloatArray, variances: FloatArray, typical: float) -> float:
    """One step of the fixed point from the variance ``v``."""
    new = (float(deviations @ deviations) + _ADDED * typical) / _determined(variances, v)
    return float(v * np.exp(limited(float(np.log(new / v)))))


def widened(posterior: DenseGaussian, prior: FactorialGaussian, groups: Sequence[Group]) -> DenseGaussian:
    r"""Posterior that knows how uncertain the prior variances are which were found.

    With the sites as they are, a change of the logarithm of v moves the mean by :math:`S (m - \mu) / v`, over the
    coefficients of the group. That logarithm has the information :math:`\frac12 \sum_j (1 - s_j^2 / v)^2`; one more
    keeps its standard deviation below one, beyond which the mean does not move in proportion.
    """
    if not groups:
        return posterior
    apart, variance = prior.precision * (posterior.mean - prior.mean), posterior.variance
    directions, uncertain = np.zeros((prior.dim, len(groups))), np.zeros(len(groups))
    for k, (group, v) in enumerate(zip(groups, variances_of(prior, groups), strict=True)):
        directions[group.columns, k] = apart[group.columns]
        uncertain[k] = 1.0 / (0.5 * float(np.sum(np.square(1.0 - variance[group.columns] / v))) + 1.0)
    # No variance grows by more than the sum of these shares: beside many coefficients, nothing is worth a copy.
    shares = uncertain * np.sum(np.square(posterior.root.T @ directions), axis=0)
    return posterior.widened(directions, uncertain) if np.sum(shares) > _WORTH_ADDING else posterior


def _lengths(apart: FloatArray, moved: FloatArray, last_moved: FloatArray) -> FloatArray:
    """Distances to the fixed points in movements of the last loop, by the secant through the last two loops.

    One where a movement turned round; two where movements do not shrink, and nothing more is known.
    """
    with np.errstate(all="ignore"):
        slopes = (last_moved - moved) / apart
        longer = np.where(slopes > 0.0, 1.0 / np.clip(slopes, 1.0 / _LONGEST, 1.0), 2.0)
    return np.where(moved * last_moved > 0.0, longer, 1.0)


def _determined(variances: FloatArray, v: float) -> float:
    """Count the coefficients that the data determine, the added ones included."""
    return max(variances.size - float(np.sum(variances)) / v, 0.0) + _ADDED


def variances_of(prior: FactorialGaussian, groups: Sequence[Group]) -> FloatArray:
    """Prior variance of every group."""
    return np.array([1.0 / float(prior.precision[group.columns[0]]) for group in groups])


def with_variances(prior: FactorialGaussian, groups: Sequence[Group], variances: FloatArray) -> FactorialGaussian:
    """Prior with other variances of the groups."""
    each = 1.0 / prior.precision
    for group, v in zip(groups, variances, strict=True):
        each[group.columns] = v
    return FactorialGaussian.from_moments(prior.shift / prior.precision, each)


def revised_variances(
    prior: FactorialGaussian, mean: FloatArray, variance: FloatArray, groups: Sequence[Group]
) -> FloatArray:
    """One step of the fixed point for every group, from posterior means and variances of all coefficients."""
    apart = mean - prior.shift / prior.precision
    return np.array(
        [
            revised_variance(v, apart[g.columns], variance[g.columns], g.typical)
            for g, v in zip(groups, variances_of(prior, groups), strict=True)
        ]
    )


def limited(step: float) -> float:
    """Keep the change of a logarithm within the largest factor."""
    most = float(np.log(_LARGEST_FACTOR))
    return min(max(step, -most), most)


def typical_variance(X: Any, spread: float = 5.0) -> float:
    """Variance of the coefficients under which the predictor of an average row has the variance ``spread``.

    By default log odds of two standard deviations around two. On the data sets of the paper, standardised, the variance
    found gives 0.4 to 60.
    """
    entries = X.data if sparse.issparse(X) else np.asarray(X)
    flat = entries.astype(np.float64, copy=False).ravel()
    size = float(flat @ flat) / max(X.shape[0], 1)
    return spread / size if 0.0 < size < np.inf else 1.0
