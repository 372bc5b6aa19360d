r"""Sites of rows whose loss has several linear predictors.

Under the posterior, with the row's present site included, the predictors of a row are :math:`N(m, V)`. Three schemes
say what a row's next site is, a matrix :math:`T` and a vector :math:`R`; all look at the loss around that posterior and
not around the cavity, so that their nodes lie where the answer is:

- Up to three predictors, *matched moments*: the site under which cavity times site has the mean and covariance of
  cavity times factor, that is EP. In the coordinates :math:`z = m + L e`, :math:`L L^\top = V`, the second differs from
  the posterior by the factor over the site, a weight near one at every node of a product of Gauss-Hermite rules. Their
  nodes are too far apart where the predictors' standard deviation is above six; from four on the next scheme takes
  over gradually.
- Beyond, where the loss has derivatives, *expected derivatives*: :math:`T = E[\nabla^2 u]`,
  :math:`R = T m - E[\nabla u]`, by 128 fixed nodes. For a convex loss T is positive semi-definite whatever the nodes.
  The fixed point is the Gaussian nearest to the posterior by Kullback-Leibler divergence, whose deviations are
  smaller than EP's where rows say much about few coefficients. Matched moments need more nodes than can be paid for.
- Else the *star* of the paper in the K predictors: 2 K + 1 values of the loss give its slope and curvature along the
  axes of the symmetric root of V, as a parabola through them.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from cavity._types import FloatArray, IndexArray
from cavity.losses.joint import JointLoss
from cavity.quadrature import GaussHermite, NodeSet, Precision3

# Nodes per axis of a product of Gauss-Hermite rules, by the number of predictors: on iris and wine, 15 in the place of
# 11 change no deviation by more than 1 percent.
_PER_AXIS = {1: 31, 2: 11, 3: 7}
# Variances of predictors between which moments are matched less and less: four and six standard deviations squared.
_NARROW, _WIDE = 16.0, 36.0
# Shares of nodes that count between which they are believed more and more: where a factor lies at the border of what
# the nodes see, its site would be far too narrow, and the next one too.
_UNEVEN, _EVEN = 0.1, 0.3
# Pairs of fixed nodes of opposite sign.
_PAIRS = 64
# Rows held at once are so many over the number of predictors, and two: 32 MB, with the 343 nodes of three predictors.
_AT_ONCE = (1 << 22) // 343


class JointSite(NamedTuple):
    """New sites of rows; not finite where nothing can be said.

    Parameters
    ----------
    precision
        Matrices ``(rows, K, K)``.
    shift
        Vectors ``(rows, K)``.
    log_scale
        Logarithms of the scales at the present sites, ``(rows,)``.
    """

    precision: FloatArray
    shift: FloatArray
    log_scale: FloatArray


def joint_sites(
    loss: JointLoss,
    y: FloatArray,
    mean: FloatArray,
    variance: FloatArray,
    site: tuple[FloatArray, FloatArray],
    power: FloatArray,
    offset: FloatArray | None = None,
) -> JointSite:
    """Fit the factors of rows, to a power each, where the posterior of their predictors is known.

    Parameters
    ----------
    loss
        The loss of a row.
    y
        Targets ``(rows,)``.
    mean, variance
        Posterior means ``(rows, K)`` and covariances ``(rows, K, K)`` of the predictors.
    site
        Present precisions and shifts of the sites.
    power
        Powers of the factors ``(rows,)``.
    offset
        Known parts of the predictors ``(rows, K)``, beside mean and variance.
    """
    if offset is not None and np.any(offset):
        return _with_offset(loss, y, mean, variance, site, power, offset)
    n, k = mean.shape
    scheme = _matched if k <= max(_PER_AXIS) else _expected if hasattr(loss, "derivatives") else _star
    step = max(1, _AT_ONCE // (k + 2))
    parts = [slice(i, i + step) for i in range(0, n, step)] or [slice(0, 0)]
    found = [scheme(loss, y[p], mean[p], variance[p], (site[0][p], site[1][p]), power[p]) for p in parts]
    return JointSite(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))


def _with_offset(loss: JointLoss, y: Any, mean: Any, variance: Any, site: Any, power: Any, offset: Any) -> JointSite:
    """Fit in the coordinates of the whole predictors, where a site has another shift."""
    precision, shift = site
    moved = shift + _times(precision, offset)
    new = joint_sites(loss, y, mean + offset, variance, (precision, moved), power)
    apart = 0.5 * np.einsum("bi,bi->b", shift + moved, offset)
    return JointSite(new.precision, new.shift - _times(new.precision, offset), new.log_scale + apart)


def _matched(loss: JointLoss, y: Any, mean: Any, variance: Any, site: Any, power: Any) -> JointSite:
    """Match moments where nodes can tell them, take expected derivatives, if any, where not, and both in between."""
    if not hasattr(loss, "derivatives"):
        return _tilted(loss, y, mean, variance, site, power)[0]
    widest = np.linalg.eigvalsh(_finite(variance))[:, -1]
    share = np.clip((_WIDE - widest) / (_WIDE - _NARROW), 0.0, 1.0)
    out = JointSite(*(np.zeros_like(part) for part in (site[0], site[1], widest)))

    def add(chosen: IndexArray, found: JointSite, parts: FloatArray) -> None:
        for total, new in zip(out, found, strict=True):
            total[chosen] += parts.reshape(-1, *(1,) * (new.ndim - 1)) * new

    chosen = np.flatnonzero(share > 0.0)
    if chosen.size:
        found, even = _tilted(loss, *_of_rows(chosen, y, mean, variance, site, power))
        share[chosen] *= np.clip((even - _UNEVEN) / (_EVEN - _UNEVEN), 0.0, 1.0)
        sure = share[chosen] > 0.0
        add(chosen[sure], JointSite(*(part[sure] for part in found)), share[chosen[sure]])
    chosen = np.flatnonzero(share < 1.0)
    if chosen.size:
        add(chosen, _expected(loss, *_of_rows(chosen, y, mean, variance, site, power)), 1.0 - share[chosen])
    return out


def _of_rows(chosen: IndexArray, y: Any, mean: Any, variance: Any, site: Any, power: Any) -> tuple[Any, ...]:
    return y[chosen], mean[chosen], variance[chosen], (site[0][chosen], site[1][chosen]), power[chosen]


def _tilted(loss: JointLoss, y: Any, mean: Any, variance: Any, site: Any, power: Any) -> tuple[JointSite, FloatArray]:
    """Match moments; and the share of nodes that count, one where factor and site are the same."""
    precision, shift = site
    nodes, weights = _product_rule(mean.shape[1])
    root = _cholesky(variance)
    across = root.transpose(0, 2, 1)
    z = mean[:, None] + nodes @ across
    # Cost of the site in the coordinates of the nodes: e' H e / 2 + g e, from its height at the mean.
    hessian, slope = across @ precision @ root, _times(across, _times(precision, mean) - shift)
    site_cost = 0.5 * np.einsum("ni,bij,nj->bn", nodes, hessian, nodes, optimize=True) + slope @ nodes.T
    excess = site_cost - power[:, None] * loss.value(y[:, None], z)
    highest = np.max(excess, axis=1)
    tilted = weights * np.exp(excess - highest[:, None])
    total = np.sum(tilted, axis=1)
    tilted /= total[:, None]
    even = 1.0 / (np.square(tilted) @ (1.0 / weights))
    moved = tilted @ nodes
    spread = np.einsum("bn,ni,nj->bij", tilted, nodes, nodes, optimize=True) - moved[:, :, None] * moved[:, None, :]
    narrowed = _inverse(spread)
    back = _inverse(root)
    gain = back.transpose(0, 2, 1) @ (narrowed - np.eye(mean.shape[1])) @ back
    new_precision = precision + 0.5 * (gain + gain.transpose(0, 2, 1))
    # The cavity's shift is the posterior's less the site's; the posterior's mean is moved by L e.
    new_shift = shift + _times(gain, mean) + _times(back.transpose(0, 2, 1), _times(narrowed, moved))
    at_mean = 0.5 * np.einsum("bi,bij,bj->b", mean, precision, mean) - np.einsum("bi,bi->b", shift, mean)
    return JointSite(new_precision, new_shift, np.log(total) + highest + at_mean), even


def _expected(loss: Any, y: Any, mean: Any, variance: Any, site: Any, power: Any) -> JointSite:
    if hasattr(loss, "averages"):
        averaged = loss.averages(y, *_spread_nodes(mean, variance))
    else:
        nodes, weights = _fixed_nodes(mean.shape[1])
        averaged = _averages(loss, y, mean[:, None] + nodes @ _cholesky(variance).transpose(0, 2, 1), weights)
    return _from_slopes(averaged, mean, variance, site, power)


def joint_nodes(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Nodes ``(rows, nodes, K)`` and weights for means under Gaussians, and the variance that they leave out.

    What all directions of a wide Gaussian share can be left to a loss that smooths itself (`cavity.losses.joint`).

    Parameters
    ----------
    mean, variance
        Means ``(rows, K)`` and covariances ``(rows, K, K)`` of the Gaussians.
    """
    if mean.shape[1] > max(_PER_AXIS):
        return _spread_nodes(mean, variance)
    nodes, weights = _product_rule(mean.shape[1])
    return mean[:, None] + nodes @ _cholesky(variance).transpose(0, 2, 1), weights, np.zeros(len(mean))


def _spread_nodes(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Place fixed nodes; what all directions share beyond a variance of one, too wide for them, is left out."""
    nodes, weights = _fixed_nodes(mean.shape[1])
    width = np.maximum(0.999 * np.linalg.eigvalsh(_finite(variance))[:, 0] - 1.0, 0.0)
    narrow = variance - width[:, None, None] * np.eye(mean.shape[1])
    return mean[:, None] + nodes @ _cholesky(narrow).transpose(0, 2, 1), weights, width


def _star(loss: JointLoss, y: Any, mean: Any, variance: Any, site: Any, power: Any) -> JointSite:
    k = mean.shape[1]
    arm = Precision3().star(k)
    assert arm is not None
    values, vectors = np.linalg.eigh(_finite(variance))
    lengths = np.sqrt(np.maximum(values, np.finfo(np.float64).eps * np.max(values, axis=1, keepdims=True, initial=0.0)))
    root = (vectors * lengths[:, None, :]) @ vectors.transpose(0, 2, 1)
    back = (vectors / np.maximum(lengths, np.finfo(np.float64).tiny)[:, None, :]) @ vectors.transpose(0, 2, 1)
    middle = loss.value(y, mean)
    ends = [[loss.value(y, mean + sign * arm.spread * root[:, :, j]) for j in range(k)] for sign in (1.0, -1.0)]
    above, below = (np.stack(one, axis=1) for one in ends)
    slope = (above - below) / (2.0 * arm.spread)
    bend = (above - 2.0 * middle[:, None] + below) / arm.spread**2
    curvature = (back * bend[:, None, :]) @ back
    value = middle + 0.5 * np.sum(bend, axis=1)
    return _from_slopes((value, _times(back, slope), curvature), mean, variance, site, power)


def _from_slopes(averaged: Any, mean: Any, variance: Any, site: Any, power: Any) -> JointSite:
    """Sites from mean value, slope and curvature of the loss under the posterior."""
    value, slope, curvature = averaged
    new_precision = power[:, None, None] * curvature
    new_shift = _times(new_precision, mean) - power[:, None] * slope
    # The mean of factor over site: a lower bound of the evidence follows.
    precision, shift = site
    second = variance + mean[:, :, None] * mean[:, None, :]
    site_cost = 0.5 * np.einsum("bij,bij->b", precision, second) - np.einsum("bi,bi->b", shift, mean)
    return JointSite(new_precision, new_shift, site_cost - power * value)


def _averages(loss: Any, y: Any, z: FloatArray, weights: FloatArray) -> tuple[Any, Any, Any]:
    value, slope, curvature = 0.0, 0.0, 0.0
    for j, weight in enumerate(weights):
        parts = loss.derivatives(y, z[:, j])
        value, slope, curvature = value + weight * parts[0], slope + weight * parts[1], curvature + weight * parts[2]
    return value, slope, curvature


def _times(matrices: FloatArray, vectors: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("bij,bj->bi", matrices, vectors))


def _finite(matrices: FloatArray) -> FloatArray:
    """Put zeros where a matrix is not finite: what follows for its row is discarded."""
    fine = np.all(np.isfinite(matrices), axis=(1, 2))
    return np.where(fine[:, None, None], matrices, 0.0)


def _cholesky(variance: FloatArray) -> FloatArray:
    """Roots of covariances, of which rounding may have left some singular."""
    k = variance.shape[1]
    held = _finite(variance)
    size = np.maximum(np.trace(held, axis1=1, axis2=2), np.finfo(np.float64).tiny)
    try:
        return np.linalg.cholesky(held + (1e-12 * size)[:, None, None] * np.eye(k))
    except np.linalg.LinAlgError:  # rounding left a negative eigenvalue: any root will do
        values, vectors = np.linalg.eigh(held)
        return np.asarray(vectors * np.sqrt(np.maximum(values, (1e-12 * size)[:, None]))[:, None, :])


def _inverse(matrices: FloatArray) -> FloatArray:
    """Inverses; not finite where there is none."""
    fine = np.abs(np.linalg.det(matrices)) > 0.0
    safe = np.where(fine[:, None, None], matrices, np.eye(matrices.shape[1]))
    return np.where(fine[:, None, None], np.linalg.inv(safe), np.nan)


@cache
def _product_rule(k: int) -> NodeSet:
    return GaussHermite(_PER_AXIS[k]).node_set(k)


@cache
def _fixed_nodes(k: int) -> tuple[FloatArray, FloatArray]:
    """Quasi-random normal nodes of both signs, with mean zero and unit covariance exactly."""
    sobol = import_module("scipy.stats").qmc.Sobol(k, seed=0)  # takes longer to import than all of cavity
    half = ndtri(np.clip(sobol.random(_PAIRS), 1e-6, 1.0 - 1e-6))
    nodes = np.concatenate([half, -half])
    nodes = np.linalg.solve(np.linalg.cholesky(nodes.T @ nodes / len(nodes)), nodes.T).T
    return nodes, np.full(len(nodes), 1.0 / len(nodes))
