r"""Prior variance and noise scale, found while EP runs.

The prior variance follows MacKay's fixed point, with :math:`\nu` coefficients of a typical variance :math:`v_0` added:

.. math:: v \leftarrow \frac{\sum_j (m_j - \mu_j)^2 + \nu v_0}{\sum_j (1 - s_j^2 / v) + \nu},

over coefficients of posterior mean :math:`m_j`, variance :math:`s_j^2` and prior mean :math:`\mu_j`, for every group of
coefficients that share a variance. Its fixed point
maximises the evidence, up to the added coefficients, which keep it finite where the data alone do not: one column, none
that matters, or separable classes. In the first loops, far from the fixed point, it is averaged with the step of
expectation maximisation, which is slower and never overshoots.

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

from cavity.ep.row_sites import RowSites
from cavity.ep.snapshots import State
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss, offers
from cavity.noise import estimate_scale, scale_of_terms, with_scale

FloatArray = NDArray[np.float64]

# Coefficients of typical size that are added: enough to bound the variance, too few to matter beside five columns.
_ADDED = 0.5
# Largest factor by which one loop changes a variance or a scale: bounds what a posterior far from converged can do.
_LARGEST_FACTOR = 10.0
# Smallest noise scale that is found, as a share of the targets' standard deviation, or of their mean where its
# logarithm is predicted: where columns can explain any targets, no noise would be left, and with it no digit of a row's
# cavity.
LEAST_NOISE = 1e-4


# Largest share of the rows' information that is believed to be taken up by coefficients: it lengthens a step of the
# noise scale twentyfold. And the step of its logarithm beyond which the prior variance follows it.
_MOST_EXPLAINED, _SCALE_MOVES = 0.95, 0.005


class Group(NamedTuple):
    """Coefficients that share a prior variance which is to be found, and a typical variance of theirs.

    ``accuracy`` is the largest change of the logarithm that may be left: predictions hardly depend on it, but
    a user may want to read it.
    """

    columns: NDArray[np.intp]
    typical: float = 1.0
    accuracy: float = 0.2


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
    _last: FloatArray | None = None
    _waited: int = 0
    _found: bool = False
    _explained: float = 0.0
    _scale_step: float = 0.0
    _trust: float = 1.0

    def prior(
        self, prior: FactorialGaussian, mean: FloatArray, variance: FloatArray, loop: int, change: float
    ) -> FactorialGaussian:
        """Prior with the revised variances."""
        # The share of the rows' information that the coefficients take up.
        taken_up = (mean.size - float(prior.precision @ variance)) / self.weight
        self._explained = min(max(taken_up, 0.0), _MOST_EXPLAINED)
        if not self.groups or (self._found and abs(self._scale_step) <= _SCALE_MOVES):
            return prior
        cautious = loop < 3  # far from the fixed point
        self._waited += 1
        # After a revision the posterior follows: the next one waits until a loop changes it little, in standard
        # deviations, or for four loops.
        little = 0.2
        if not cautious and change > little and self._waited < 4:
            return prior
        v, new = variances_of(prior, self.groups), revised_variances(prior, mean, variance, self.groups, cautious)
        steps = np.log(new / v)
        if not cautious:
            known = self._last is not None
            steps = self._secant(np.log(v), steps)
            determined = np.array(
                [_determined(variance[g.columns], one) for g, one in zip(self.groups, v, strict=True)]
            )
            gains = 0.25 * np.abs(new / v - 1.0) * determined * np.abs(steps)
            # The next step would hardly raise the log evidence, and would change no variance by more than asked for.
            accuracies = [group.accuracy for group in self.groups]
            little_left = bool(np.sum(gains) < 0.005 and np.all(np.abs(steps) < accuracies))
            self._found = known and little_left and change <= little
        if self._found:
            return prior
        self._waited = 0
        return with_variances(prior, self.groups, v * np.exp(steps))

    def snapshot(self) -> dict[str, Any]:
        """Give what is remembered between two loops."""
        last = np.full((2, len(self.groups)), np.nan) if self._last is None else self._last
        return {"adaptation": np.array([self._waited, self._found, self._scale_step, self._trust, *np.ravel(last)])}

    def restore(self, state: State) -> None:
        """Return to such a state."""
        waited, found, self._scale_step, self._trust, *last = (float(number) for number in state["adaptation"])
        self._waited, self._found = int(waited), bool(found)
        self._last = None if np.any(np.isnan(last)) else np.reshape(last, (2, len(self.groups)))

    def _secant(self, here: FloatArray, steps: FloatArray) -> FloatArray:
        """Take steps of the logarithms, by the secant through the fixed point's steps now and at the last revision.

        Where the data say little of the variance, the plain iteration shortens its distance by a few percent per step.
        A slope is believed up to 0.95, which lengthens a step twentyfold.
        """
        last, self._last = self._last, np.array([here, steps])
        if last is None:
            return steps
        moved = here - last[0]
        slopes = 1.0 + (steps - last[1]) / np.where(moved == 0.0, np.inf, moved)
        longer = np.array([limited(s) for s in steps / (1.0 - np.clip(slopes, -1.0, 0.95))])
        return np.where(moved == 0.0, steps, longer)

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
        self._scale_step = float(np.log(new / before))
        return loss if abs(self._scale_step) < 1e-4 else with_scale(loss, new)


def unit_of(loss: Loss, spread: float) -> float:
    """Give the unit of targets with this standard deviation, of which the smallest noise is a share."""
    return spread or 1.0 if loss.targets == "reals" else 1.0


def _spread(targets: FloatArray, weights: FloatArray) -> float:
    """Give the standard deviation of targets."""
    center = np.average(targets, weights=weights)
    return float(np.sqrt(np.average((targets - center) ** 2, weights=weights)))


def revised_variance(v: float, deviations: FloatArray, variances: FloatArray, typical: float, cautious: bool) -> float:
    """One step of the fixed point from the variance ``v``."""
    squares, added = float(deviations @ deviations), _ADDED * typical
    known = max(deviations.size - float(np.sum(variances)) / v, 0.0)
    new = (squares + added) / (known + _ADDED)
    if cautious:
        averaged = (squares + float(np.sum(variances)) + added) / (deviations.size + _ADDED)
        new = float(np.sqrt(new * averaged))
    return float(v * np.exp(limited(float(np.log(new / v)))))


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
    prior: FactorialGaussian, mean: FloatArray, variance: FloatArray, groups: Sequence[Group], cautious: bool
) -> FloatArray:
    """One step of the fixed point for every group, from posterior means and variances of all coefficients."""
    apart = mean - prior.shift / prior.precision
    return np.array(
        [
            revised_variance(v, apart[g.columns], variance[g.columns], g.typical, cautious)
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
