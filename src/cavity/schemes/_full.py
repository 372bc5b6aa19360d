r"""What the schemes share where sites have all correlations: quadratics through nodes, moments by rules, the peak.

Coordinates are whitened: :math:`\theta = c + L x`, with :math:`L L^\top` the covariance of a Gaussian nearby.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from cavity._types import FloatArray, IndexArray
from cavity.factors import Factor
from cavity.gaussians.full import FullGaussian
from cavity.quadrature import NodeSet


class Quadratic(NamedTuple):
    r"""The quadratic :math:`v + g^\top x + \tfrac12 x^\top H x` of a cost, :math:`\theta = c + L x`."""

    center: FloatArray
    root: FloatArray
    value: float
    slope: FloatArray
    hessian: FloatArray

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are finite."""
        return math.isfinite(self.value + float(np.sum(self.slope)) + float(np.sum(self.hessian)))

    def raised(self) -> Quadratic:
        """Set negative curvatures to zero."""
        values, vectors = np.linalg.eigh(self.hessian)
        return self._replace(hessian=(vectors * np.maximum(values, 0.0)) @ vectors.T)

    def gaussian(self, beta: float) -> FullGaussian:
        """Give the exponential of minus ``beta`` times the quadratic."""
        if not self.is_finite:
            return FullGaussian.uniform(self.center.size) ** math.nan
        inverse = np.linalg.inv(self.root)
        slope, precision = beta * (self.slope @ inverse), beta * (inverse.T @ self.hessian @ inverse)
        c, precision = self.center, 0.5 * (precision + precision.T)
        log_scale = -beta * self.value + slope @ c - 0.5 * c @ precision @ c
        return FullGaussian(float(log_scale), precision @ c - slope, precision)


@cache
def _pairs(dim: int) -> tuple[IndexArray, IndexArray]:
    i, j = np.triu_indices(dim, 1)
    return i, j


def interpolated(factor: Factor, center: FloatArray, root: FloatArray, spread: float = 1.0) -> Quadratic:
    r"""Interpolate a cost at as many nodes as a Gaussian has numbers, :math:`(d + 1)(d + 2) / 2`.

    The nodes are :math:`0, \pm h e_i` and :math:`h (e_i + e_j) / \sqrt 2` in whitened coordinates, and whatever the
    weights of a rule with these nodes are, the paper's divergence has its minimum at this quadratic.
    """
    d, h = center.size, spread
    i, j = _pairs(d)
    arms = h * np.eye(d)
    corners = np.sqrt(0.5) * (arms[i] + arms[j])
    values = factor.cost(center + np.concatenate([np.zeros((1, d)), arms, -arms, corners]) @ root.T)
    middle, up, down = float(values[0]), values[1 : d + 1], values[d + 1 : 2 * d + 1]
    with np.errstate(all="ignore"):
        slope, hessian = (up - down) / (2.0 * h), np.diag((up + down - 2.0 * middle) / h**2)
        along = np.sqrt(0.5) * h * (slope[i] + slope[j]) + 0.25 * h**2 * (np.diag(hessian)[i] + np.diag(hessian)[j])
        hessian[i, j] = hessian[j, i] = (values[2 * d + 1 :] - middle - along) / (0.5 * h**2)
    return Quadratic(center, root, middle, slope, hessian)


class Moments(NamedTuple):
    """Moments of cavity times factor in whitened coordinates of a Gaussian, and the logarithm of the mass."""

    log_mass: float
    mean: FloatArray
    covariance: FloatArray

    def gaussian(self, near: FullGaussian) -> FullGaussian:
        """Give the Gaussian of these moments."""
        root = near.root
        covariance = root @ self.covariance @ root.T
        return FullGaussian.from_moments(near.mean + root @ self.mean, covariance, self.log_mass)


def moments(factor: Factor, cavity: FullGaussian, beta: float, near: FullGaussian, rule: NodeSet) -> Moments | None:
    """Integrate cavity times factor by a rule for a Gaussian nearby; None where no node has a finite density.

    Costs of NaN and plus infinity count as a density of zero.
    """
    points = near.mean + rule.nodes @ near.root.T
    costs = factor.cost(points)
    with np.errstate(all="ignore"):
        ratio = cavity.log_density(points) - beta * costs - near.log_density(points)
        ratio = np.where(np.isnan(ratio), -np.inf, ratio)
        top = float(np.max(ratio))
        weights = rule.weights * np.exp(ratio - top)
    mass = float(np.sum(weights))
    if not math.isfinite(top) or not mass > 0.0:
        return None
    mean = weights @ rule.nodes / mass
    second = (rule.nodes.T * weights) @ rule.nodes / mass
    return Moments(top + math.log(mass) + near.log_mass, mean, second - np.outer(mean, mean))


def matched(
    factor: Factor, cavity: FullGaussian, beta: float, near: FullGaussian, rule: NodeSet
) -> FullGaussian | None:
    """Gaussian with the moments of cavity times factor by a rule that moves until it stands where they are.

    A move is at most one standard deviation long and changes widths at most twofold. Eight of them without rest mean
    that there are no moments to be found from here.
    """
    for _ in range(8):
        found = moments(factor, cavity, beta, near, rule)
        if found is None:
            return None
        values, vectors = np.linalg.eigh(found.covariance)
        length = float(np.linalg.norm(found.mean))
        is_near = length < 0.5 and values[0] > 0.5 and values[-1] < 2.0 if values.size else True
        covariance = (vectors * np.clip(values, 0.25, 4.0)) @ vectors.T
        near = found._replace(mean=found.mean / max(length, 1.0), covariance=covariance).gaussian(near)
        if is_near:
            return near
    return None


# Of a search, in arms of the nodes: how far beyond them the interpolant is trusted.
LONGEST_STEP = 16.0


class Peak(NamedTuple):
    """Where a product of a Gaussian and factors is greatest, the quadratics of the factors there, and whether found."""

    center: FloatArray
    quadratics: list[Quadratic]
    gaussian: FullGaussian
    found: bool


def find_peak(
    factors: Sequence[Factor],
    supports: Sequence[IndexArray | None],
    prior: FullGaussian,
    beta: float,
    near: FullGaussian,
    tol: float = 0.1,
    most: int = 60,
) -> Peak | None:
    """Search for the peak of a Gaussian times factors by their values; None where the density is zero at the start.

    Every factor is interpolated about the present point, at the width of the Gaussian that all interpolants together
    give: what is smaller than the posterior is smoothed over. A Newton step follows, at most 16 arms of the nodes
    long, and shortened until the true density rises. Negative curvatures count by their size, and none counts less than
    the Gaussian's own. Where no step helps, or a node has no finite cost, the nodes come nearer. The search ends
    when the step is shorter than ``tol`` standard deviations and the width stays, or after ``most`` rounds.
    """
    center, arms, frame = near.mean, near.root, prior.root
    places = [slice(None) if s is None else s for s in supports]

    def height(point: FloatArray) -> float:
        total = sum(float(f.cost(point[place][None])[0]) for f, place in zip(factors, places, strict=True))
        away = point - prior.mean
        return -math.inf if math.isnan(total) else -beta * total - 0.5 * float(away @ prior.precision @ away)

    here, best, growth = height(center), None, 10.0
    if not math.isfinite(here):
        return None
    for _ in range(most):
        slope, precision = prior.precision @ (center - prior.mean), prior.precision.copy()
        quadratics = []
        for factor, place in zip(factors, places, strict=True):
            root: FloatArray = np.transpose(np.asarray(np.linalg.qr(arms[place].T, mode="r")))
            found = interpolated(factor, center[place], root)
            quadratics.append(found)
            if not found.is_finite:
                break
            inverse = np.linalg.inv(root)
            slope[place] += beta * (found.slope @ inverse)
            block = np.ix_(*[np.arange(center.size)[place]] * 2)
            precision[block] += beta * (inverse.T @ found.hessian @ inverse)
        if not quadratics[-1].is_finite:
            arms = 0.25 * arms
            continue
        values, vectors = np.linalg.eigh(frame.T @ precision @ frame)
        half = (frame @ vectors) / np.sqrt(np.maximum(np.abs(values), 1.0))
        step, inward = -half @ (half.T @ slope), np.linalg.inv(arms)
        share = min(1.0, LONGEST_STEP / max(float(np.linalg.norm(inward @ step)), np.finfo(float).tiny))
        step, size = share * step, share * float(np.linalg.norm(half.T @ slope))
        axes, ratios, _ = np.linalg.svd(inward @ half)  # widths to come, in arms
        is_same = ratios[-1] > 0.7 and ratios[0] < 1.4
        inverse = np.linalg.inv(half)
        best = Peak(center, quadratics, FullGaussian(0.0, inverse.T @ (inverse @ center), inverse.T @ inverse), is_same)
        if not (math.isfinite(size) and best.gaussian.is_proper_beside(prior)):
            return None
        if is_same and size <= tol:
            if values[0] >= 0.0:
                return best
            # A saddle, or between two peaks: down the direction of negative curvature.
            step, size = max((half[:, 0], -half[:, 0]), key=lambda arm: height(center + arm)), 1.0
        share, moved = 1.0, False
        while share * size > 0.3 * tol:
            there = height(center + share * step)
            if there >= here + 1e-4 * share * size**2:
                center, here, moved = center + share * step, there, True
                break
            share *= 0.5 if share > 0.3 else 0.25
        if not moved:
            if is_same or growth < 1.1:
                return best  # no better point within reach, as at a kink
            # Nodes that came nearer in vain once widen less, so that they do not come and go.
            growth = math.sqrt(growth)
        arms = arms @ axes * (np.clip(ratios, 0.1, growth) if moved else np.clip(ratios, 0.25, 0.5))
    return None if best is None else best._replace(found=False)
