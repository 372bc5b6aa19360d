r"""Hyperparameters of the prior, and the noise scale, that maximise the evidence, all together; and averages over them.

EP's evidence does not change to first order with the sites, so its gradient is the partial one, and exact. With the
prior precision P of mean :math:`\mu`, posterior mean m and covariance V, and the cavities of the rows,

.. math:: \frac{\partial \log Z}{\partial \psi} = \frac12 \mathrm{tr}\Big(\big(P^{-1} - V - (m - \mu)(m - \mu)^\top\big)
    \frac{\partial P}{\partial \psi}\Big), \qquad
    \frac{\partial \log Z}{\partial \log \sigma} = \sum_i \frac{\partial \log \hat Z_i}{\partial \log \sigma},

for a hyperparameter :math:`\psi`, such as the logarithm of the variance of a group of coefficients, and for the noise
scale. The curvature to begin with is the average information of restricted maximum likelihood (Gilmour, Thompson and
Cullis, Biometrics 51, 1995), with :math:`f_k = -\partial P / \partial \psi_k\, (m - \mu)`:

.. math:: A_{kl} = \tfrac12 f_k^\top (P^{-1} - V) f_l.

For the squared loss the sites are known for every noise scale, so that Newton's method needs no rows
(`maximise_normal_evidence`). For other losses hyperparameters take such steps with the sites as they are after every
iteration of EP; sites follow the variances, on nearly separable classes far, so the steps are prolonged by the secant
through the last two iterations (`Hyperparameters.update`).

From above a variance is bounded by a half-normal prior of the standard deviation that the group gives to the linear
predictor: near zero, where it is flat to second order, it moves nothing.

Where few levels or rows leave hyperparameters uncertain, posteriors are averaged over them (`settings_around`), under
Jeffreys' prior of every group, the root of the determinant of the information that the rows have about it,

.. math:: I_{kl} = \tfrac12 \mathrm{tr}\Big((P^{-1} - V) \frac{\partial P}{\partial \psi_k} (P^{-1} - V)
    \frac{\partial P}{\partial \psi_l}\Big).

For one factor of equally many rows per level, whose means have the variance :math:`v + s^2`, it is flat in
:math:`\log(v + s^2)`: there intervals of effects, and of levels to come, are those of Student.
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
# Shorter steps of logarithms are not checked while EP runs: what Newton's method leaves of them is about half their
# square, and the next iteration has another.
SHORT = 0.5
# Longest step of a logarithm where it is prolonged because sites follow, a factor of 4.5 in a variance; a third of it
# before the sites have settled. With twice as much models of mean and spread fail now and then, with half of it EP
# takes longer.
LONGEST = 1.5
# Growth of a posterior variance by the uncertainty of a hyperparameter from which on it is averaged over, and how far
# below its maximum a density is looked at, in nats: four standard deviations.
MATTERS, DEPTH = 0.05, 8.0
# Hyperparameters that are averaged over, at most, and points along each of one, two or three.
POINTS = (11, 8, 5)


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
        Inverse of the standard deviation of the half-normal prior of the standard deviation that they give to it.
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
    """Log evidence up to a constant, its gradient, and a curvature of minus the evidence, positive semi-definite.

    ``psi`` are the hyperparameters of the prior there.
    """

    psi: FloatArray
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


class Coordinates(NamedTuple):
    """Hyperparameters of all groups, one after the other, their bounds, and which belong to each group."""

    psi: FloatArray
    lower: FloatArray
    upper: FloatArray
    parts: list[slice]


def coordinates(prior: Prior, groups: Sequence[Group]) -> Coordinates:
    """Find the hyperparameters of groups: logarithms of variances, and what structures have."""
    found: list[tuple[FloatArray, ...]] = [(np.empty(0),) * 3]
    for group in groups:
        if group.block is None:
            logs = -np.log(prior.precision[group.columns[:1]]), np.log([LEAST / group.size])
            found.append((*logs, -np.log([LEAST * group.size])))
        else:
            block = prior.blocks[group.block]  # type: ignore[union-attr]
            found.append((block.psi, block.structure.lower, block.structure.upper))
    ends = np.cumsum([psi.size for psi, _, _ in found])
    parts = [slice(int(a), int(b)) for a, b in pairwise(ends)]
    psi, lower, upper = (np.concatenate(each) for each in zip(*found, strict=True))
    return Coordinates(psi, lower, upper, parts)


def hyperparameters_of(prior: Prior, groups: Sequence[Group]) -> FloatArray:
    """Hyperparameters of all groups alone."""
    return coordinates(prior, groups).psi


def with_hyperparameters(prior: Any, groups: Sequence[Group], psi: FloatArray) -> Any:
    """Prior with other hyperparameters, as far as the bounds allow."""
    _, lower, upper, parts = coordinates(prior, groups)
    psi, structured = np.clip(psi, lower, upper), isinstance(prior, StructuredPrior)
    independent = prior.independent if structured else prior
    each = 1.0 / independent.precision
    blocks = [block.psi for block in prior.blocks] if structured else []
    for group, part in zip(groups, parts, strict=True):
        if group.block is None:
            each[group.columns] = np.exp(psi[part])
        else:
            blocks[group.block] = psi[part]
    moved = FactorialGaussian.from_moments(independent.shift / independent.precision, each)
    return prior.at(moved, blocks) if structured else moved


def evidence(
    posterior: Posterior, groups: Sequence[Group], rows: NormalRows | None = None, derivatives: bool = True
) -> Point:
    """Evidence in all hyperparameters with the sites as they are, and in the log noise scale if rows are given.

    It includes the half-normal priors of the groups. Without derivatives the point has a value alone.
    """
    prior = posterior.prior
    psi, lower, upper, parts = coordinates(prior, groups)
    k, value = psi.size, 0.0
    gradient, own = np.zeros(k), np.zeros((k, k))
    for group, part in zip(groups, parts, strict=True):
        if group.block is None:
            spread, by_log = group.size / float(prior.precision[group.columns[0]]), np.ones(1)
        else:
            structure = prior.blocks[group.block].structure  # type: ignore[union-attr]
            spread, by_log = structure.spread(psi[part])
        penalty = 0.5 * group.rate**2 * spread
        value -= penalty
        gradient[part] -= 2.0 * penalty * by_log
        own[part, part] += 2.0 * penalty * np.outer(by_log, by_log)
    if isinstance(posterior, KernelPosterior):
        value += posterior.log_mass if rows is None else posterior.log_mass_of_normal(rows.weight, rows.scale)
        curvature = own
        if derivatives:
            slopes, curvature = posterior.slopes(groups, None if rows is None else rows.weight)
            slopes[:k] += 0.5 * gradient
            curvature[:k, :k] += 0.5 * own
            gradient = slopes
    else:
        value, gradient, curvature = _of_coefficients(posterior, groups, parts, rows, value, gradient, own, derivatives)
    if derivatives:
        low, high = psi <= lower + 1e-9, psi >= upper - 1e-9
        fixed = np.flatnonzero((low & (gradient[:k] < 0.0)) | (high & (gradient[:k] > 0.0)))
        if rows is not None and rows.scale <= rows.least and gradient[k] < 0.0:
            fixed = np.append(fixed, k)
        gradient[fixed], curvature[fixed, :], curvature[:, fixed], curvature[fixed, fixed] = 0.0, 0.0, 0.0, 1.0
    return Point(psi, value, gradient, curvature)


def _of_coefficients(
    posterior: Any,
    groups: Sequence[Group],
    parts: Sequence[slice],
    rows: NormalRows | None,
    value: float,
    gradient: FloatArray,
    own: FloatArray,
    derivatives: bool,
) -> tuple[float, FloatArray, FloatArray]:
    """Add to log evidence, twice its gradient and twice its curvature what the coefficients say, and halve these."""
    prior, m, k = posterior.prior, posterior.mean, gradient.size
    apart = m - prior.mean
    pulls = prior.times(apart)
    fitted = float(m @ (posterior.shift + pulls))
    value += 0.5 * (fitted - float(apart @ pulls) + prior.log_det - posterior.log_det)
    if rows is not None:
        value -= 0.5 * rows.squares / rows.scale**2 + rows.weight * float(np.log(rows.scale))
    if not derivatives:
        return value, gradient, own
    variance, shared = posterior.variance(), _coupled(posterior)
    pinned = prior.precision * variance
    # Minus the derivatives of the prior precision, times the distances from its mean.
    directions = np.zeros((m.size, k + (rows is not None)), order="F")
    directions[:, k:] = pulls[:, None]
    for group, part in zip(groups, parts, strict=True):
        if isinstance(prior, StructuredPrior) and group.block is not None:
            slopes = prior.slopes(group.block, apart)
            directions[:, part] = -slopes.sum(axis=0).T
            own[part, part] += prior.information(group.block, apart, slopes)
            gradient[part] += prior.slopes_of_log_det(group.block) - slopes.sum(axis=0) @ apart
            gradient[part] -= prior.traces(group.block, variance, shared)
        else:
            places = group.columns
            directions[places, part] = pulls[places, None]
            length = float(apart[places] @ pulls[places])
            own[part, part] += length
            gradient[part] += length - places.size + float(np.sum(pinned[places]))
    gradient *= 0.5
    curvature = -0.5 * directions.T @ posterior.solve(directions)
    curvature[:k, :k] += 0.5 * own
    if rows is not None:
        residual = rows.squares / rows.scale**2 - fitted
        gradient = np.append(gradient, residual + m.size - _pinned(posterior, variance, shared) - rows.weight)
        # The average information of log sigma and log v: signs and factors of two follow from sigma^2 and v.
        curvature[:k, k] *= -2.0
        curvature[k, :k] *= -2.0
        curvature[k, k] = 2.0 * residual + 4.0 * curvature[k, k]
    return value, gradient, curvature


def _coupled(posterior: Posterior) -> FloatArray:
    """Posterior covariances of the pairs of coefficients that the prior couples."""
    prior = posterior.prior
    if isinstance(prior, StructuredPrior) and not isinstance(posterior, ProductPosterior):
        return posterior.covariances_of_couplings(prior.couplings)
    return np.empty(0)


def _determined(posterior: Any) -> float:
    """How many coefficients the rows determine: the trace of the posterior covariance times what they add."""
    if isinstance(posterior, KernelPosterior):
        return posterior.explained
    found: float = posterior.prior.dim - _pinned(posterior, posterior.variance(), _coupled(posterior))
    return found


def _pinned(posterior: Posterior, variance: FloatArray, shared: FloatArray) -> float:
    """Trace of the prior precision times the posterior covariance: coefficients that the rows do not determine."""
    found = float(posterior.prior.precision @ variance)
    if isinstance(posterior.prior, StructuredPrior):
        found += 2.0 * float(posterior.prior.couplings.values @ shared)
    return found


def maximise_evidence(
    posterior: Posterior,
    groups: Sequence[Group],
    rows: NormalRows | None = None,
    most: int = 100,
    point: Point | None = None,
    short: float = 0.0,
) -> Point:
    """Move the prior of a posterior to the largest evidence with the sites as they are, by Newton's method.

    With ``rows`` the noise scale takes part: ``rows.scale`` becomes the one found, and the sites follow it. At most
    ``most`` steps are taken; where ``short`` is given, none from where next to nothing is left to gain, and none that
    changes no logarithm by as much. ``point`` is where it starts, if that is known. Returns the point where it ends.
    """
    point = evidence(posterior, groups, rows) if point is None else point
    for _ in range(most):
        step, curvature = point.step()
        found = is_found(point.gradient, step, curvature)
        if short and (found or float(np.max(np.abs(step), initial=0.0)) < short):
            break
        prior, scale = posterior.prior, 1.0 if rows is None else rows.scale
        psi, new = point.psi, None
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


def leave_zero(
    posterior: Posterior, groups: Sequence[Group], start: FloatArray, point: Point, rows: NormalRows | None = None
) -> Point:
    """Look for more evidence at variances larger than those of the start, where a search ended with all next to zero.

    The evidence is level there, and may have a second maximum: of columns that share nearly all of their variance small
    coefficients explain nothing, and large ones the rest. All variances are raised together; the sites stay as they
    are. Returns the point where the posterior is then.
    """
    _, lower, upper, _ = coordinates(posterior.prior, groups)
    is_level = (np.diagonal(point.curvature)[: lower.size] < GAIN) | (point.psi <= lower + 1e-9)
    if not (lower.size and np.all(is_level)):
        return point
    prior, best, highest = posterior.prior, posterior.prior, point.value + GAIN
    scale, psi, last = 1.0 if rows is None else rows.scale, start, -np.inf
    while np.any(psi < upper):
        psi = psi + 2.0
        if not set_hyperparameters(posterior, with_hyperparameters(prior, groups, psi), scale, rows):
            break
        value = evidence(posterior, groups, rows, derivatives=False).value
        if value > highest:
            highest, best = value, posterior.prior
        if value < last - DEPTH:
            break
        last = value
    set_hyperparameters(posterior, best, scale, rows)
    return point if best is prior else evidence(posterior, groups, rows)


def maximise_normal_evidence(posterior: Posterior, free: Hyperparameters, rows: NormalRows) -> None:
    """Find the prior variances, and the noise scale if it is free, of rows with normal noise.

    Where rows are fewer than twice the coefficients that they can determine, the evidence can have two maxima, one that
    takes everything for noise and one for signal: searches start from ever less noise, and the best end is kept.
    """
    noise, start = rows if free.scale else None, posterior.prior
    end = maximise_evidence(posterior, free.groups, noise)
    left = leave_zero(posterior, free.groups, hyperparameters_of(start, free.groups), end, noise)
    best = end.value if left is end else maximise_evidence(posterior, free.groups, noise, point=left).value
    if not free.scale or not free.groups or rows.weight >= 2.0 * start.dim:
        return
    prior, scale, spread = posterior.prior, rows.scale, float(np.sqrt(rows.squares / rows.weight))
    shares = (0.1, 0.01, 0.001)
    is_moved = set_hyperparameters(posterior, start, shares[-1] * spread, noise)
    if is_moved and rows.weight >= 2.0 * _determined(posterior):
        set_hyperparameters(posterior, prior, scale, noise)
        return
    for share in shares:
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
    _has_looked: bool = False  # for a maximum beyond the start

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
        point = evidence(posterior, groups)
        here, k = point.psi, point.psi.size
        curvature = point.step()[1]
        point = maximise_evidence(posterior, groups, most=5, point=point, short=SHORT)
        if change <= 1.0 and not self._has_looked:  # once: sites that follow may send the search back
            self._has_looked, end = True, point
            point = leave_zero(posterior, groups, here, end)
            if point is not end:
                point = maximise_evidence(posterior, groups, most=5, point=point, short=SHORT)
        apart = point.psi - here + point.step()[0]
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
        # A secant from where sites were still moving by themselves says nothing of how they follow.
        self._here, self._apart = (here, kept) if change <= 1.0 else (np.empty(0), np.empty(0))
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
        numbers = np.array([self.is_found, self._closer, self._smallest, self._has_looked])
        return {"hyperparameters": np.array([self._here, self._apart]), "hyperparameters_found": numbers}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to such a state."""
        self._here, self._apart = np.array(state["hyperparameters"])
        found, self._closer, self._smallest, looked = (float(number) for number in state["hyperparameters_found"])
        self.is_found, self._has_looked = bool(found), bool(looked)


class Setting(NamedTuple):
    """Hyperparameters that are averaged over, and their weight."""

    weight: float
    prior: Prior
    scale: float


@dataclass(frozen=True, eq=False)
class Density:
    """Density of all hyperparameters with the sites as they are: points have the logarithm of the noise scale last.

    ``rows`` are given for normal noise whose scale was found; for other losses the ``information`` of the log scale,
    None where it was given. Looking at another point moves the posterior there. More evidence than at the maximum is
    that of sites far from where they were fitted: those of kinked losses, found under a prior next to zero, are
    straight lines, whose evidence grows with the variance for ever. The surplus is how wrong they are, and
    counts against the point. Sites of normal rows are exact.
    """

    posterior: Posterior
    groups: Sequence[Group]
    rows: NormalRows | None
    information: float | None
    prior: Prior
    here: FloatArray
    lower: FloatArray
    upper: FloatArray
    best: float

    @classmethod
    def of(
        cls,
        posterior: Posterior,
        groups: Sequence[Group],
        rows: NormalRows | None,
        scale: float,
        information: float | None,
    ) -> Density:
        """Begin where the posterior is."""
        psi, lower, upper, _ = coordinates(posterior.prior, groups)
        bounds = np.append(lower, -100.0), np.append(upper, 100.0)  # no noise scale is beyond exp(100)
        here = np.append(psi, np.log(scale))
        best = np.inf if rows is not None else evidence(posterior, groups, derivatives=False).value
        return cls(posterior, groups, rows, information, posterior.prior, here, *bounds, best)

    def at(self, point: FloatArray) -> tuple[float, float]:
        """Log evidence, and log density of the prior, up to constants; minus infinity where there is none."""
        least = 0.0 if self.rows is None else (1.0 - 1e-9) * self.rows.least
        if np.any(point > self.upper + 1e-9) or np.exp(point[-1]) < least or not self.move(point):
            return -np.inf, 0.0
        value = evidence(self.posterior, self.groups, self.rows, derivatives=False).value
        value = min(value, 2.0 * self.best - value)
        if self.rows is None and self.information is not None:
            value -= 0.5 * self.information * float(point[-1] - self.here[-1]) ** 2
        work: Any = self.posterior
        if isinstance(work, RowsPosterior):
            return value, sum(work.log_information(group.columns) for group in self.groups)
        prior, variance, shared = self.posterior.prior, self.posterior.variance(), _coupled(self.posterior)
        known = 0.0
        for group in self.groups:
            if isinstance(prior, StructuredPrior) and group.block is not None:
                known += prior.log_information(group.block, variance, shared)
            else:
                free = self.posterior.shares()[group.columns]
                known += float(np.log(np.linalg.norm(free) or 1.0))
        return value, known

    def move(self, point: FloatArray) -> bool:
        """Move the posterior to a point; False, and nothing changed, if that is improper."""
        moved = self.prior if point is self.here else with_hyperparameters(self.prior, self.groups, point[:-1])
        return set_hyperparameters(self.posterior, moved, float(np.exp(point[-1])), self.rows)

    def along(self, number: int, error: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Values of one hyperparameter, the others at the maximum, with log evidence and log prior density.

        Down to where the density is negligible, by steps of about one standard error.
        """
        found = {float(self.here[number]): self.at(self.here)}
        for direction, end in ((-1.0, self.lower[number]), (1.0, self.upper[number])):
            value, step = float(self.here[number]), float(np.clip(error, 0.01, 0.7))
            while sum(found[value]) > max(map(sum, found.values())) - DEPTH and direction * (end - value) > 0.0:
                value, step = value + direction * step, min(1.1 * step, 1.0)
                point = self.here.copy()
                point[number] = value
                found[value] = self.at(point)
        self.move(self.here)
        grid = np.array(sorted(found))
        values, known = np.array([found[value] for value in grid]).T
        lowest = np.min(values[np.isfinite(values)])
        return grid, np.where(np.isfinite(values), values, lowest - DEPTH), known


def settings_around(
    posterior: Posterior, groups: Sequence[Group], rows: NormalRows | None, scale: float, information: float | None
) -> list[Setting]:
    """Hyperparameters around the maximum of the evidence, with weights, where their uncertainty matters; one otherwise.

    It matters where it would raise a posterior variance by `MATTERS` or more. Arguments are those of `Density`.
    Afterwards the posterior is where it was.
    """
    alone = [Setting(1.0, posterior.prior, scale)]
    if rows is not None and rows.scale <= (1.0 + 1e-9) * rows.least:  # the rows are interpolated
        return alone
    chosen = _uncertain(posterior, groups, rows, information)
    if not chosen:
        return alone
    density = Density.of(posterior, groups, rows, scale, information)
    if not np.isfinite(sum(density.at(density.here))):  # beyond what numbers can hold
        return alone
    axes = []
    for number, error in chosen:
        grid, values, known = density.along(number, error)
        if grid.size < 2:  # at both of its bounds
            continue
        fine = np.linspace(grid[0], grid[-1], 400)
        # Points are spread by the square root of the density: wider than that, for the others.
        flat = 0.5 * interpolated(grid, values + known, fine)
        below = np.append(0.0, np.cumsum(np.exp(flat - np.max(flat))))
        ends = np.append(fine, fine[-1]) - 0.5 * (fine[1] - fine[0]) * np.append(np.ones(400), -1.0)
        count = POINTS[len(chosen) - 1]
        points = np.interp((np.arange(count) + 0.5) / count, below / below[-1], ends)
        axes.append((number, points, np.interp(points, fine, flat)))
    found, logs = [], []
    for cell in np.ndindex(*(points.size for _, points, _ in axes)):
        point, log = density.here.copy(), 0.0
        for (number, points, densities), i in zip(axes, cell, strict=True):
            point[number], log = points[i], log - densities[i]
        log += sum(density.at(point))
        if log > -np.inf:
            logs.append(log)
            found.append((posterior.prior, float(np.exp(point[-1]))))
    density.move(density.here)
    if not found:
        return alone
    weights = np.exp(np.array(logs) - np.max(logs))
    kept = weights > 1e-3 * np.max(weights)
    weights = weights / np.sum(weights[kept])
    return [Setting(float(w), *one) for w, one, keep in zip(weights, found, kept, strict=True) if keep]


def _uncertain(
    posterior: Any, groups: Sequence[Group], rows: NormalRows | None, information: float | None
) -> list[tuple[int, float]]:
    """Which hyperparameters to average over, with standard errors: those that raise a posterior variance most."""
    psi, lower, _, parts = coordinates(posterior.prior, groups)
    curvature = np.diagonal(evidence(posterior, groups, rows).step()[1])[: psi.size]
    # Where the maximum is at zero, the logarithm is hardly determined.
    uncertain = np.where(psi <= lower + 1e-9, 4.0, np.minimum(1.0 / curvature, 4.0))
    in_rows = isinstance(posterior, RowsPosterior)
    grown = posterior.growth(groups) if in_rows else _growth(posterior, groups, parts)
    impact = [(float(v * g), k, float(v) ** 0.5) for k, (v, g) in enumerate(zip(uncertain, grown, strict=True))]
    if rows is not None:
        freedom = max(rows.weight - _determined(posterior), 0.5)
        impact.append((2.0 / freedom, psi.size, (0.5 / freedom) ** 0.5))
    elif information is not None:
        impact.append((4.0 / max(information, 1.0), psi.size, max(information, 1.0) ** -0.5))
    worst = sorted((one for one in impact if one[0] > MATTERS), key=lambda one: -one[0])[: len(POINTS)]
    return [(number, error) for _, number, error in worst]


def _growth(posterior: Posterior, groups: Sequence[Group], parts: Sequence[slice]) -> list[float]:
    """Largest growth of a posterior variance by the uncertainty of every hyperparameter, per variance of that."""
    prior, variance = posterior.prior, posterior.variance()
    apart, shares = posterior.mean - prior.mean, posterior.shares()
    pulls, pinned = prior.times(apart), np.minimum(prior.precision * variance, 1.0)
    found = []
    for group, part in zip(groups, parts, strict=True):
        for number in range(part.start, part.stop):
            right = np.zeros(variance.size)
            if isinstance(prior, StructuredPrior) and group.block is not None:
                right -= prior.slopes(group.block, apart)[:, number - part.start].sum(axis=0)
            else:
                right[group.columns] = pulls[group.columns]
            moves = posterior.solve(right[:, None])[group.columns, 0]
            grown = np.square(moves) / variance[group.columns] + 0.5 * pinned[group.columns]
            has_said = group.block is not None or np.any(shares[group.columns])
            found.append(float(np.max(grown)) if has_said else 0.0)  # rows that say nothing decide on no weights
    return found


def interpolated(x: FloatArray, y: FloatArray, fine: FloatArray) -> FloatArray:
    """Interpolate a smooth function by cubic polynomials."""
    slopes, steps = np.gradient(y, x), np.diff(x)
    k = np.clip(np.searchsorted(x, fine, side="right") - 1, 0, steps.size - 1)
    t, h = (fine - x[k]) / steps[k], steps[k]
    left, right = (1.0 + 2.0 * t) * y[k] + t * h * slopes[k], (3.0 - 2.0 * t) * y[k + 1] + (t - 1.0) * h * slopes[k + 1]
    return np.asarray((1.0 - t) ** 2 * left + t**2 * right)


def interval(
    posterior: Posterior, groups: Sequence[Group], number: int, rows: NormalRows | None, scale: float, level: float
) -> tuple[float, float, float]:
    """Return the standard error of a hyperparameter, and an interval for it; minus infinity is a variance of zero.

    By the curvature of the evidence where that is large; else by the density that is averaged over, from zero where the
    likelihood does not exclude zero. Afterwards the posterior is where it was.
    """
    point = evidence(posterior, groups, rows)
    psi = point.psi
    inverse = np.linalg.pinv(point.step()[1])
    error, far = float(np.sqrt(max(inverse[number, number], 0.0))), float(ndtri(0.5 + 0.5 * level))
    if error < 0.2:
        return error, float(psi[number]) - far * error, float(psi[number]) + far * error
    grid, values, known = Density.of(posterior, groups, rows, scale, None).along(number, min(error, 1.0))
    fine = np.linspace(grid[0], grid[-1], 400)
    density = interpolated(grid, values + known, fine)
    below = np.cumsum(np.exp(density - np.max(density)))
    if values[0] - np.max(values) > -0.5 * far**2:
        return error, -np.inf, float(np.interp(level, below / below[-1], fine))
    low, high = np.interp([0.5 - 0.5 * level, 0.5 + 0.5 * level], below / below[-1], fine)
    return error, float(low), float(high)
