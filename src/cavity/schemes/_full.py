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
    give: what is smaller than the posterior is smoothed over. A Newton step follows, at most four arms of the nodes
    long, and shortened until the true density rises. Negative curvatures count by their size, and none counts less than
    the Gaussian's own. Where no step helps, or a node has no finite cost, the nodes come nearer. The search ends
    when the step is shorter than ``tol`` standard deviations and the width stays, or after ``most`` rounds.
    """
    center, S = near.mean, near.covariance
    frame, places = prior.root, [slice(None) if s is None else s for s in supports]

    def height(point: FloatArray) -> float:
        total = sum(float(f.cost(point[place][None])[0]) for f, place in zip(factors, places, strict=True))
        away = point - prior.mean
        return -math.inf if math.isnan(total) else -beta * total - 0.5 * float(away @ prior.precision @ away)

    here, best = height(center), None
    if not math.isfinite(here):
        return None
    for _ in range(most):
        slope, precision = prior.precision @ (center - prior.mean), prior.precision.copy()
        quadratics = []
        for factor, support in zip(factors, supports, strict=True):
            grid = np.ix_(*[np.arange(center.size) if support is None else support] * 2)
            root: FloatArray = np.asarray(np.linalg.cholesky(S[grid]), dtype=np.float64)
            found = interpolated(factor, center if support is None else center[support], root)
            quadratics.append(found)
            if not found.is_finite:
                break
            inverse = np.linalg.inv(root)
            slope[slice(None) if support is None else support] += beta * (found.slope @ inverse)
            precision[grid] += beta * (inverse.T @ found.hessian @ inverse)
        if not quadratics[-1].is_finite:
            S = S / 16.0
            continue
        values, vectors = np.linalg.eigh(frame.T @ precision @ frame)
        half = (frame @ vectors) / np.sqrt(np.maximum(np.abs(values), 1.0))
        wanted = half @ half.T
        arms = np.linalg.cholesky(S)
        step = -wanted @ slope
        length = float(np.linalg.norm(np.linalg.solve(arms, step)))
        step *= min(1.0, 4.0 / length) if length > 0.0 else 1.0
        size = float(np.linalg.norm(np.linalg.solve(np.linalg.cholesky(wanted), step)))
        inward = np.linalg.inv(arms)
        ratios, axes = np.linalg.eigh(inward @ wanted @ inward.T)
        is_same = ratios[0] > 0.5 and ratios[-1] < 2.0
        best = Peak(center, quadratics, FullGaussian.from_moments(center, wanted), is_same)
        if is_same and size <= tol:
            return best
        share, moved = 1.0, False
        while share * size > 0.3 * tol:
            there = height(center + share * step)
            if there >= here + 1e-4 * share * size**2:
                center, here, moved = center + share * step, there, True
                break
            share *= 0.5 if share > 0.3 else 0.25
        if not moved and is_same:
            return best  # no better point within reach: a kink
        ratios = np.clip(ratios, 0.01, 100.0) if moved else np.minimum(np.clip(ratios, 0.0625, 1.0), 0.25 + 0 * ratios)
        S = (arms @ axes * ratios) @ (arms @ axes).T
    return None if best is None else best._replace(found=False)
