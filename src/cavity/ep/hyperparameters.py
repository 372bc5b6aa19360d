r"""Prior variances and noise scale that maximise the evidence, all together and on logarithms.

EP's evidence does not change to first order with the sites, so its gradient is the partial one, and exact:

.. math:: \frac{\partial \log Z}{\partial \log v_g} = \frac12 \sum_{j \in g}
    \Big(\frac{(m_j - \mu_j)^2 + s_j^2}{v_g} - 1\Big), \qquad
    \frac{\partial \log Z}{\partial \log \sigma} = \sum_i \frac{\partial \log \hat Z_i}{\partial \log \sigma},

over the coefficients of a group with posterior means :math:`m_j` and variances :math:`s_j^2`, and over rows under their
cavities. The curvature to begin with is the average information of restricted maximum likelihood (Gilmour, Thompson and
Cullis, Biometrics 51, 1995): with :math:`a = (m - \mu) / v` and the posterior covariance V,

.. math:: A_{gh} = \tfrac12 \big(\delta_{gh}\, a_g^\top (m - \mu)_g - a_g^\top V_{gh}\, a_h\big).

For the squared loss the sites are known for every noise scale, so that Newton's method needs no rows
(`maximise_normal_evidence`). For other losses the variances take such steps with the sites as they are after every
iteration of EP; sites follow the variances, on nearly separable classes far, so the steps are prolonged by the secant
through the last two iterations (`Hyperparameters.update`).

From above a variance is bounded by a prior on the standard deviation of the group's part of the linear predictor, which
is exponential: it vanishes at zero, where it pulls nothing up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from cavity._types import FloatArray
from cavity.ep.posteriors import Posterior, ProductPosterior
from cavity.ep.wide import KernelPosterior, RowsPosterior
from cavity.gaussians.factorial import FactorialGaussian
from cavity.terms.prior import Prior, StructuredPrior
from cavity.terms.structures import LEAST

# What may be left to gain, in nats, and the distance of a logarithm from the maximum where the data determine it: far
# below one nat, at which the data begin to prefer one of two values. Halving both costs about one iteration of EP.
GAIN, CLOSE = 0.01, 0.02
# Last step of normal rows, which are summed up once: a result that does not depend on where the search started.
EXACT = 1e-7
# Longest step of a logarithm where it is prolonged because sites follow, a factor of 4.5 in a variance; a third of it
# before the sites have settled. With twice as much models of mean and spread fail now and then, with half of it EP
# takes longer.
LONGEST = 1.5
# Growth of a posterior variance by the uncertainty of a hyperparameter from which on it is averaged over, and how far
# below the maximum its evidence is looked at, in nats: four standard deviations.
MATTERS, DEPTH = 0.05, 8.0


class Group(NamedTuple):
    """Coefficients whose prior has hyperparameters that are to be found: a variance, or those of a block.

    Parameters
    ----------
    columns
        Their places.
    size
        Average over the rows of the sum of squares of these columns: the variance that the coefficients give to the
        linear predictor, per unit of theirs. Of a block its structure knows that.
    rate
        Of the exponential prior of the standard deviation that they give to it.
    block
        Which block of a `StructuredPrior` they are; None for independent coefficients with one variance.
    """

    columns: NDArray[np.intp]
    size: float = 1.0
    rate: float = 0.0
    block: int | None = None


@dataclass(slots=True)
class NormalRows:
    """Sums over rows with normal noise that the sites do not have: of weights and of weighted squared targets.

    ``scale`` is the standard deviation of the noise in the sites as they are, ``least`` the smallest one allowed.
    """

    weight: float
    squares: float
    scale: float
    least: float = 0.0


class Point(NamedTuple):
    """Log evidence up to a constant, its gradient, and a curvature of minus the evidence, positive semi-definite."""

    value: float
    gradient: FloatArray
    curvature: FloatArray

    def step(self) -> tuple[FloatArray, FloatArray]:
        """Newton's step, and the curvature it was taken with.

        No logarithm moves by more than two: where a variance goes to zero, the evidence is linear in it and the average
        information vanishes, but what is left to gain is the slope.
        """
        curvature = self.curvature.copy()
        diagonal = np.diag_indices_from(curvature)
        least = np.maximum(0.5 * np.abs(self.gradient), 1e-12)
        curvature[diagonal] = np.maximum(curvature[diagonal], least)
        step = np.asarray(np.linalg.lstsq(curvature, self.gradient, rcond=1e-12)[0])
        return step * min(1.0, 2.0 / max(float(np.max(np.abs(step), initial=0.0)), 1e-300)), curvature


def is_found(gradient: FloatArray, step: FloatArray, curvature: FloatArray) -> bool:
    """Whether a step gains next to nothing, and is short where the data determine the logarithm."""
    determined = np.minimum(np.sqrt(np.diagonal(curvature)), 1.0)
    return bool(0.5 * gradient @ step < GAIN and np.all(np.abs(step) * determined < CLOSE))


def hyperparameters_of(prior: Prior, groups: Sequence[Group]) -> FloatArray:
    """Hyperparameters of all groups, one after the other: logarithms of variances, and what structures have."""
    found = [np.empty(0)]
    for group in groups:
        if group.block is None:
            found.append(-np.log(prior.precision[group.columns[:1]]))
        else:
            found.append(prior.blocks[group.block].psi)  # type: ignore[union-attr]
    return np.concatenate(found)


def with_hyperparameters(prior: Any, groups: Sequence[Group], psi: FloatArray) -> Any:
    """Prior with other hyperparameters, as far as the bounds allow."""
    psi = np.clip(psi, *bounds(prior, groups))
    structured = isinstance(prior, StructuredPrior)
    independent = prior.independent if structured else prior
    each = 1.0 / independent.precision
    blocks = [block.psi for block in prior.blocks] if structured else []
    for group, part in zip(groups, _parts(prior, groups), strict=True):
        if group.block is None:
            each[group.columns] = np.exp(psi[part])
        else:
            blocks[group.block] = psi[part]
    moved = FactorialGaussian.from_moments(independent.shift / independent.precision, each)
    return prior.at(moved, blocks) if structured else moved


def bounds(prior: Prior, groups: Sequence[Group]) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest hyperparameters of all groups."""
    lower, upper = [np.empty(0)], [np.empty(0)]
    for group in groups:
        if group.block is None:
            lower.append(np.log([LEAST / group.size]))
            upper.append(-np.log([LEAST * group.size]))
        else:
            structure = prior.blocks[group.block].structure  # type: ignore[union-attr]
            lower.append(structure.lower)
            upper.append(structure.upper)
    return np.concatenate(lower), np.concatenate(upper)


def log_density(prior: Prior, groups: Sequence[Group], psi: FloatArray) -> float:
    """Log density of priors that are flat in standard deviations and correlations, up to a constant."""
    found = 0.0
    for group, part in zip(groups, _parts(prior, groups), strict=True):
        if group.block is None:
            found += 0.5 * float(psi[part][0])
        else:
            found += prior.blocks[group.block].structure.log_density(psi[part])  # type: ignore[union-attr]
    return found


def _parts(prior: Prior, groups: Sequence[Group]) -> list[slice]:
    """Which of all hyperparameters belong to each group."""
    ends = np.cumsum([0, *(1 if g.block is None else prior.blocks[g.block].psi.size for g in groups)])  # type: ignore[union-attr]
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]


def log_evidence(posterior: Posterior, groups: Sequence[Group], rows: NormalRows | None = None) -> float:
    """Log evidence with the sites as they are, up to a constant, including the exponential priors of the groups."""
    prior = posterior.prior
    penalties = sum(_penalty(prior, group)[0] for group in groups)
    if isinstance(posterior, KernelPosterior):
        if rows is None:
            return posterior.log_mass - penalties
        return posterior.log_mass_of_normal(rows.weight, rows.scale) - penalties
    m = posterior.mean
    apart = m - prior.mean
    pulls = prior.times(apart)
    fitted = 0.5 * float(m @ (posterior.shift + pulls) - apart @ pulls)
    value = fitted + 0.5 * (prior.log_det - posterior.log_det) - penalties
    if rows is None:
        return value
    return value - 0.5 * rows.squares / rows.scale**2 - rows.weight * float(np.log(rows.scale))


def _penalty(prior: Prior, group: Group) -> tuple[float, FloatArray]:
    """Minus the logarithm of the exponential prior of a group, and the gradient of the logarithm of its variance."""
    if group.block is None:
        return group.rate * float(np.sqrt(group.size / prior.precision[group.columns[0]])), np.ones(1)
    block = prior.blocks[group.block]  # type: ignore[union-attr]
    variance, slopes = block.structure.spread(block.psi)
    return group.rate * float(np.sqrt(variance)), slopes


def evidence(posterior: Posterior, groups: Sequence[Group], rows: NormalRows | None = None) -> Point:
    """Evidence in all hyperparameters with the sites as they are, and in the log noise scale if rows are given.

    It includes the exponential priors of the groups.
    """
    prior, parts = posterior.prior, _parts(posterior.prior, groups)
    if isinstance(posterior, KernelPosterior):
        gradient, curvature = posterior.slopes(groups, None if rows is None else rows.weight)
    else:
        gradient, curvature = _slopes(posterior, groups, rows)
    for group, part in zip(groups, parts, strict=True):
        penalty, by_log = _penalty(prior, group)
        gradient[part] -= 0.5 * penalty * by_log
        curvature[part, part] += 0.25 * penalty * np.outer(by_log, by_log)
    psi, (lower, upper) = hyperparameters_of(prior, groups), bounds(prior, groups)
    k = psi.size
    is_lowest, is_highest = psi <= lower + 1e-9, psi >= upper - 1e-9
    fixed = np.flatnonzero((is_lowest & (gradient[:k] < 0.0)) | (is_highest & (gradient[:k] > 0.0)))
    if rows is not None and rows.scale <= rows.least and gradient[k] < 0.0:
        fixed = np.append(fixed, k)
    gradient[fixed], curvature[fixed, :], curvature[:, fixed], curvature[fixed, fixed] = 0.0, 0.0, 0.0, 1.0
    return Point(log_evidence(posterior, groups, rows), gradient, curvature)


def _slopes(posterior: Posterior, groups: Sequence[Group], rows: NormalRows | None) -> tuple[FloatArray, FloatArray]:
    """Gradient of the evidence and average information, from coefficients, without the priors of the groups."""
    prior, m, variance, parts = posterior.prior, posterior.mean, posterior.variance(), _parts(posterior.prior, groups)
    k, apart = (parts[-1].stop if parts else 0), m - prior.mean
    pulls, pinned = prior.times(apart), prior.precision * variance
    shared = _coupled(posterior)
    # Minus the derivatives of the prior precision, times the distances from its mean.
    directions = np.zeros((m.size, k + (rows is not None)), order="F")
    directions[:, k:] = pulls[:, None]
    gradient, own = np.zeros(k), np.zeros((k, k))
    for group, part in zip(groups, parts, strict=True):
        if isinstance(prior, StructuredPrior) and group.block is not None:
            slopes = prior.slopes(group.block, apart)
            directions[:, part] = -slopes.sum(axis=0).T
            own[part, part] = prior.information(group.block, apart, slopes)
            gradient[part] = prior.slopes_of_log_det(group.block) - slopes.sum(axis=0) @ apart
            gradient[part] -= prior.traces(group.block, variance, shared)
        else:
            places = group.columns
            directions[places, part] = pulls[places, None]
            own[part, part] = length = float(apart[places] @ pulls[places])
            gradient[part] = length - places.size + float(np.sum(pinned[places]))
    gradient *= 0.5
    curvature = -0.5 * directions.T @ posterior.solve(directions)
    curvature[:k, :k] += 0.5 * own
    if rows is not None:
        residual = rows.squares / rows.scale**2 - float(m @ (posterior.shift + pulls))
        gradient = np.append(gradient, residual + m.size - _pinned(posterior, shared) - rows.weight)
        # The average information of log sigma and log v: signs and factors of two follow from sigma^2 and v.
        curvature[:k, k] *= -2.0
        curvature[k, :k] *= -2.0
        curvature[k, k] = 2.0 * residual + 4.0 * curvature[k, k]
    return gradient, curvature


def _coupled(posterior: Posterior) -> FloatArray:
    """Posterior covariances of the pairs of coefficients that the prior couples."""
    prior = posterior.prior
    if isinstance(prior, StructuredPrior) and not isinstance(posterior, ProductPosterior):
        return posterior.covariances_of_couplings(prior.couplings)
    return np.empty(0)


def _pinned(posterior: Posterior, shared: FloatArray) -> float:
    """Trace of the prior precision times the posterior covariance: coefficients that the rows do not determine."""
    found = float(posterior.prior.precision @ posterior.variance())
    if isinstance(posterior.prior, StructuredPrior):
        found += 2.0 * float(posterior.prior.couplings.values @ shared)
    return found


def maximise_evidence(
    posterior: Posterior,
    groups: Sequence[Group],
    rows: NormalRows | None = None,
    most: int = 100,
    point: Point | None = None,
    last: bool = True,
) -> Point:
    """Move the prior of a posterior to the largest evidence with the sites as they are, by Newton's method.

    With ``rows`` the noise scale takes part: ``rows.scale`` becomes the one found, and the sites follow it. At most
    ``most`` steps are taken. ``point`` is where it starts, if that is known; ``last`` says whether a step is taken from
    where next to nothing is left to gain. Returns the point where it ends.
    """
    point = evidence(posterior, groups, rows) if point is None else point
    for _ in range(most):
        step, curvature = point.step()
        found = is_found(point.gradient, step, curvature)
        if found and not last:
            break
        prior, scale = posterior.prior, 1.0 if rows is None else rows.scale
        psi, new = hyperparameters_of(prior, groups), None
        k = psi.size
        for _ in range(30):
            moved = with_hyperparameters(prior, groups, psi + step[:k])
            if set_hyperparameters(posterior, moved, scale * float(np.exp(np.sum(step[k:]))), rows):
                new = evidence(posterior, groups, rows)
                if new.value >= point.value - 1e-9 * (1.0 + abs(point.value)):
                    break
            step, new = 0.5 * step, None
        if new is None:
            set_hyperparameters(posterior, prior, scale, rows)
            break
        point = new
        if found and (rows is None or float(np.max(np.abs(step))) < EXACT):  # normal rows are asked only once
            break
    return point


def set_hyperparameters(posterior: Posterior, prior: Any, scale: float = 1.0, rows: NormalRows | None = None) -> bool:
    """Exchange the prior, and the noise scale of normal rows; False, and nothing changed, if that is improper."""
    if rows is None:
        return posterior.scale(1.0, 1.0, prior)
    scale = max(scale, rows.least)
    factor = (rows.scale / scale) ** 2
    if not posterior.scale(factor, factor, prior):
        return False
    rows.scale = scale
    return True


def maximise_normal_evidence(posterior: Posterior, free: Hyperparameters, rows: NormalRows) -> None:
    """Find the prior variances, and the noise scale if it is free, of rows with normal noise.

    Where rows are fewer than twice the coefficients, the evidence can have two maxima, one that takes everything for
    noise and one for signal: searches start from ever less noise, and the best end is kept.
    """
    noise, start = rows if free.scale else None, posterior.prior
    best = maximise_evidence(posterior, free.groups, noise).value
    if not free.scale or not free.groups or rows.weight >= 2.0 * start.dim:
        return
    prior, scale, spread = posterior.prior, rows.scale, float(np.sqrt(rows.squares / rows.weight))
    for share in (0.1, 0.01, 0.001):
        if set_hyperparameters(posterior, start, share * spread, noise):
            value = maximise_evidence(posterior, free.groups, noise).value
            if value > best:
                best, prior, scale = value, posterior.prior, rows.scale
    # Where the columns interpolate the targets the evidence is level towards no noise: the search ends at the bound.
    can_move = set_hyperparameters(posterior, prior, rows.least, noise)
    if not can_move or maximise_evidence(posterior, free.groups, noise).value < best - GAIN:
        set_hyperparameters(posterior, prior, scale, noise)


@dataclass(slots=True, eq=False)
class Hyperparameters:
    """Prior variances of groups, and the noise scale if it is free, while EP runs.

    Parameters
    ----------
    groups
        Coefficients that share a prior variance to be found; none if all are given.
    scale
        Whether the field ``scale`` of the loss is to be found.
    least
        Smallest noise scale.
    past
        Gaussian of the logarithm of the scale from earlier rows: information and shift.
    is_found
        Whether the last update left next to nothing to gain.
    """

    groups: Sequence[Group] = ()
    scale: bool = False
    least: float = 0.0
    past: tuple[float, float] = (0.0, 0.0)
    is_found: bool = False
    # Of the last iteration: logarithms, distances to the maximum with the sites as they were (of the noise scale the
    # slope), by which share of a move the maximum comes closer, and the smallest such share that is believed.
    _here: FloatArray = field(default_factory=lambda: np.empty(0))
    _apart: FloatArray = field(default_factory=lambda: np.empty(0))
    _closer: float = 1.0
    _smallest: float = 0.1

    def __bool__(self) -> bool:
        return bool(self.groups) or self.scale

    def update(self, posterior: Posterior, noise: FloatArray, scale: float, change: float) -> tuple[float, float]:
        """Move prior variances and noise scale after an iteration of EP.

        ``noise`` is the derivative of the log evidence in the logarithm of the scale and its information, ``change``
        what the iteration changed, in standard deviations. Variances go to where the evidence has its maximum with the
        sites as they are, and beyond as far as the last two iterations say that sites will follow. Returns the new
        scale, which sites must follow, and the logarithm by which the unit of the coefficients should change in the
        sites: where classes are nearly separable, sites follow in proportion.
        """
        groups, start = self.groups, posterior.prior
        here = hyperparameters_of(start, groups)
        k = here.size
        point = evidence(posterior, groups)
        curvature = point.step()[1]
        point = maximise_evidence(posterior, groups, most=5, point=point, last=False)
        apart = hyperparameters_of(posterior.prior, groups) - here + point.step()[0]
        kept, before = apart, self._apart
        if self.scale:
            past, shift = self.past
            slope, information = float(noise[0]) + shift - past * float(np.log(scale)), float(noise[1]) + past
            information = max(information, 0.5 * abs(slope), 1e-12)
            slope = 0.0 if scale <= self.least and slope < 0.0 else slope
            here, kept = np.append(here, np.log(scale)), np.append(apart, slope)
            apart, curvature = np.append(apart, slope / information), np.pad(curvature, (0, 1))
            curvature[k, k] = information
            before = np.append(before[:k], before[k:] / information)
        step = apart if not before.size else self._prolonged(curvature, here - self._here, before - apart, apart)
        # Before the sites have settled they say little of where the maximum is.
        settled = change <= 1.0 and (not self.scale or abs(apart[k]) < 0.5)
        longest = np.maximum(np.abs(apart), LONGEST) if settled else np.full(apart.size, LONGEST)
        longest[:k] /= 1.0 if change <= 1.0 else 3.0
        step, apart = np.clip(step, -longest, longest), np.clip(apart, -longest, longest)
        was_found, self.is_found = self.is_found, change <= 1.0 and is_found(curvature @ apart, step, curvature)
        if was_found and self.is_found:  # priors that stand still let EP end
            step = apart = np.zeros_like(step)
        self._here, self._apart = here, kept
        if np.any(step[:k]) or posterior.prior is not start:
            posterior.scale(1.0, 1.0, with_hyperparameters(start, groups, here[:k] + step[:k]))
        further = (step - apart)[:k]
        is_variance = not self.scale and k == 1 and groups[0].block is None
        follows = is_variance and float(further[0] * apart[0]) > 0.0
        stretch = float(further[0]) if follows else 0.0
        return max(scale * float(np.exp(step[k])), self.least) if self.scale else scale, 0.5 * stretch

    def _prolonged(self, curvature: FloatArray, moved: FloatArray, closer: FloatArray, apart: FloatArray) -> FloatArray:
        """Step to the maximum, by the secant along the last move; a tenth to ten times as long as without it.

        Where the maximum went away while the logarithms moved towards it, steps become twice as long as before. What
        steps may become at most is halved whenever one ends farther beyond the maximum than it began before it: sites
        follow late.
        """
        along = curvature @ moved
        length = float(moved @ along)
        if not length > 1e-12:
            return apart
        share = float(along @ closer) / length
        before = apart + closer
        if -float(apart @ curvature @ before) > float(before @ curvature @ before):
            self._smallest = min(2.0 * self._smallest, 1.0)
        self._closer = min(max(share if share > 0.0 else 0.5 * min(self._closer, 1.0), self._smallest), 10.0)
        return apart + (1.0 / self._closer - 1.0) * float(along @ apart) / length * moved

    def snapshot(self) -> dict[str, Any]:
        """State between two iterations."""
        numbers = np.array([self.is_found, self._closer, self._smallest])
        return {"hyperparameters": np.array([self._here, self._apart]), "hyperparameters_found": numbers}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to such a state."""
        self._here, self._apart = np.array(state["hyperparameters"])
        found, self._closer, self._smallest = (float(number) for number in state["hyperparameters_found"])
        self.is_found = bool(found)


class Setting(NamedTuple):
    """Hyperparameters that are averaged over, and their weight."""

    weight: float
    prior: Prior
    scale: float


class Axis(NamedTuple):
    """A hyperparameter that is averaged over, by its number, or the noise scale if that is None.

    ``points`` are values of it, or of the logarithm of the scale, that are spread by the evidence along it, and
    ``densities`` the logarithms of the density of that spread.
    """

    number: int | None
    points: FloatArray
    densities: FloatArray


def settings_around(
    posterior: Posterior, groups: Sequence[Group], rows: NormalRows | None, scale: float, information: float | None
) -> list[Setting]:
    """Hyperparameters around the maximum of the evidence, with weights, where their uncertainty matters; one otherwise.

    It matters where it would raise a posterior variance by `MATTERS` or more. The weights are those of the evidence
    under priors that are flat in the standard deviations of the prior and in the logarithm of the noise scale. ``rows``
    are given for normal noise whose scale was found; for other losses the ``information`` of the log scale, None where
    it was given. Afterwards the posterior is where it was.
    """
    start = posterior.prior
    no_noise = rows is not None and rows.scale <= (1.0 + 1e-9) * rows.least  # the rows are interpolated
    chosen = [] if no_noise else _uncertain(posterior, groups, rows, information)
    if not chosen:
        return [Setting(1.0, start, scale)]
    count = {1: 11, 2: 8}.get(len(chosen), 5)
    axes = [_axis(g, count, *_density_along(posterior, groups, rows, g, scale, information)) for g in chosen]
    found, values = [], []
    for cell in np.ndindex(*(axis.points.size for axis in axes)):
        psi, log_scale, value = hyperparameters_of(start, groups), float(np.log(scale)), 0.0
        for axis, i in zip(axes, cell, strict=True):
            point = float(axis.points[i])
            value -= float(axis.densities[i])
            if axis.number is not None:
                psi[axis.number] = point
            else:
                value -= 0.0 if information is None else 0.5 * information * (point - log_scale) ** 2
                log_scale = point
        prior = with_hyperparameters(start, groups, psi)
        if set_hyperparameters(posterior, prior, float(np.exp(log_scale)), rows):
            values.append(value + log_density(start, groups, psi) + log_evidence(posterior, groups, rows))
            found.append((prior, float(np.exp(log_scale))))
    set_hyperparameters(posterior, start, scale, rows)
    if not values:
        return [Setting(1.0, start, scale)]
    weights = np.exp(np.array(values) - np.max(values))
    kept = weights > 1e-3 * np.max(weights)
    weights = weights / np.sum(weights[kept])
    return [Setting(float(w), *one) for w, one, keep in zip(weights, found, kept, strict=True) if keep]


def _uncertain(
    posterior: Any, groups: Sequence[Group], rows: NormalRows | None, information: float | None
) -> list[int | None]:
    """Which hyperparameters to average over: at most three, whose uncertainty raises a posterior variance most."""
    prior = posterior.prior
    psi, lower = hyperparameters_of(prior, groups), bounds(prior, groups)[0]
    curvature = np.diagonal(evidence(posterior, groups, rows).step()[1])
    grown = posterior.growth(groups) if isinstance(posterior, RowsPosterior) else _growth(posterior, groups)
    # Where the maximum is at zero, the logarithm is hardly determined.
    uncertain = np.where(psi <= lower + 1e-9, 4.0, np.minimum(1.0 / curvature[: psi.size], 4.0))
    impact: list[tuple[float, int | None]] = [(float(one), k) for k, one in enumerate(uncertain * grown)]
    if rows is not None:
        if isinstance(posterior, KernelPosterior):
            used = posterior.explained
        else:
            used = prior.dim - _pinned(posterior, _coupled(posterior))
        impact.append((2.0 / max(rows.weight - used, 0.5), None))
    elif information is not None:
        impact.append((4.0 / max(information, 1.0), None))
    worst = sorted((one for one in impact if one[0] > MATTERS), key=lambda one: -one[0])[:3]
    return [g for _, g in worst]


def _growth(posterior: Posterior, groups: Sequence[Group]) -> FloatArray:
    """Largest growth of a posterior variance by the uncertainty of every hyperparameter, per variance of that."""
    prior, variance = posterior.prior, posterior.variance()
    apart = posterior.mean - prior.mean
    pulls, pinned = prior.times(apart), np.minimum(prior.precision * variance, 1.0)
    found: list[float] = []
    for group, part in zip(groups, _parts(prior, groups), strict=True):
        for number in range(part.start, part.stop):
            right = np.zeros(variance.size)
            if isinstance(prior, StructuredPrior) and group.block is not None:
                right -= prior.slopes(group.block, apart)[:, number - part.start].sum(axis=0)
            else:
                right[group.columns] = pulls[group.columns]
            moves = posterior.solve(right[:, None])[group.columns, 0]
            grown = np.square(moves) / variance[group.columns] + 0.5 * pinned[group.columns]
            found.append(float(np.max(grown)))
    return np.array(found)


def _axis(g: int | None, count: int, grid: FloatArray, density: FloatArray) -> Axis:
    """Spread points along one hyperparameter, by the square root of its density: wider than that, for the others."""
    fine = np.linspace(grid[0], grid[-1], 20 * grid.size)
    flat = 0.5 * np.interp(fine, grid, density)
    below = np.append(0.0, np.cumsum(np.exp(flat - np.max(flat))))
    step = fine[1] - fine[0]
    ends = np.append(fine - 0.5 * step, fine[-1] + 0.5 * step)
    points = np.interp((np.arange(count) + 0.5) / count, below / below[-1], ends)
    return Axis(g, points, np.interp(points, fine, flat))


def _density_along(
    posterior: Posterior,
    groups: Sequence[Group],
    rows: NormalRows | None,
    number: int | None,
    scale: float,
    information: float | None,
) -> tuple[FloatArray, FloatArray]:
    """Log density of one hyperparameter, the others at the maximum, over where it is not negligible.

    Or of the logarithm of the noise scale if ``number`` is None.
    """
    start = posterior.prior
    psi, upper = hyperparameters_of(start, groups), bounds(start, groups)[1]
    here = float(np.log(scale)) if number is None else float(psi[number])

    def density(point: float) -> float:
        if number is None and information is not None:
            return -0.5 * information * (point - here) ** 2
        moved, new, known = start, scale, 0.0
        if number is None:
            new = float(np.exp(point))
            if rows is not None and new < rows.least:
                return -np.inf
        else:
            if point > upper[number]:
                return -np.inf
            at = psi.copy()
            at[number] = point
            moved, known = with_hyperparameters(start, groups, at), log_density(start, groups, at)
        if not set_hyperparameters(posterior, moved, new, rows):
            return -np.inf
        return log_evidence(posterior, groups, rows) + known

    step = 0.5 if number is None else 1.0
    top = density(here)
    while (ahead := density(here + step)) > top:  # flat in the standard deviation, the density peaks above the evidence
        here, top = here + step, ahead

    def edge(direction: float) -> float:
        near, reach = 0.0, 0.5 * step
        while density(here + direction * reach) > top - DEPTH and reach < 128.0 * step:
            near, reach = reach, 2.0 * reach
        while reach - near > 0.2 * reach:
            middle = 0.5 * (near + reach)
            near, reach = (middle, reach) if density(here + direction * middle) > top - DEPTH else (near, middle)
        return here + direction * reach

    grid = np.linspace(edge(-1.0), edge(1.0), 17)
    values = np.array([density(float(point)) for point in grid])
    set_hyperparameters(posterior, start, scale, rows)
    return grid, np.maximum(values, top - 4.0 * DEPTH) - top


def interval(
    posterior: Posterior, groups: Sequence[Group], number: int, rows: NormalRows | None, scale: float, level: float
) -> tuple[float, float, float]:
    """Return the standard error of a hyperparameter, and an interval for it; minus infinity is a variance of zero.

    By the curvature of the evidence where that is large; else by the evidence under a prior that is flat in the
    standard deviation, which starts at zero where zero is likely. Afterwards the posterior is where it was.
    """
    start = posterior.prior
    point, psi = evidence(posterior, groups, rows), hyperparameters_of(start, groups)
    inverse = np.linalg.pinv(point.step()[1])
    error = float(np.sqrt(max(inverse[number, number], 0.0)))
    if error < 0.2:
        reach = float(ndtri(0.5 + 0.5 * level) * error)
        return error, float(psi[number]) - reach, float(psi[number]) + reach
    grid, density = _density_along(posterior, groups, rows, number, scale, None)
    fine = np.linspace(grid[0], grid[-1], 400)
    heights = np.exp(np.interp(fine, grid, density))
    below, tail = np.cumsum(heights) / np.sum(heights), 0.5 * (1.0 - level)
    # In the standard deviation the density at zero, by its maximum, says whether zero is likely.
    flat = density - [log_density(start, groups, np.where(np.arange(psi.size) == number, g, psi)) for g in grid]
    if flat[0] - np.max(flat) > -0.5 * ndtri(0.5 + 0.5 * level) ** 2:
        return error, -np.inf, float(np.interp(level, below, fine))
    low, high = np.interp([tail, 1.0 - tail], below, fine)
    return error, float(low), float(high)
