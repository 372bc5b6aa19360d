r"""Sites of rows whose loss has several linear predictors.

Under the posterior, with the row's present site included, the predictors of a row are :math:`N(m, V)`. Three schemes
say what a row's next site is, a matrix :math:`T` and a vector :math:`R`; all look at the loss around that posterior and
not around the cavity, so that their nodes lie where the answer is:

- Up to four predictors, *matched moments*: the site under which cavity times site has the mean and covariance of
  cavity times factor, that is EP. In the coordinates :math:`z = m + L e`, :math:`L L^\top = V`, the second differs from
  the posterior by the factor over the site, a weight near one at every node of a grid. Rows with wide
  predictors, or whose weights are uneven, get a finer grid; those at the border of what it sees, the next scheme.
- Beyond, where the loss has derivatives, *expected derivatives*: :math:`T = E[\nabla^2 u]`,
  :math:`R = T m - E[\nabla u]`, by 64 fixed nodes. For a convex loss T is positive semi-definite whatever the nodes.
  The fixed point is the Gaussian nearest to the posterior by Kullback-Leibler divergence, whose deviations are
  smaller than EP's where rows say much about few coefficients. Matched moments need more nodes than can be paid for.
- Else the *star* of the paper in the K predictors: 2 K + 1 values of the loss give its slope and curvature along the
  axes of the symmetric root of V, as a parabola through them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from cavity._types import FloatArray, IndexArray
from cavity.losses.joint import JointLoss
from cavity.quadrature import Precision3

# Gives the weighted mean over nodes, per row.
Averaged = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


# Nodes per axis and radius of grids (`_grid`) by the number of predictors, for narrow and for other ones. On 220 random
# problems of three to five classes, finer grids change deviations by at most 1, 5 and 9 percent; with one predictor
# more, as many nodes would be too far apart.
_GRIDS = {
    1: ((21, 5.0), (61, 6.0)),
    2: ((15, 4.5), (31, 5.0)),
    3: ((9, 4.4), (17, 4.8)),
    4: ((7, 4.2), (11, 4.8)),
}
# Distance of nodes in units of the predictors, where the softmax has a width of about two, up to which the first grid
# will do.
_APART = 2.0
# Shares of nodes that count from which on the two grids are believed: where a factor lies at the border of what the
# nodes see, its site would be far too narrow, and the next one too.
_EVEN = (0.3, 1e-5)
# Pairs of fixed nodes of opposite sign.
_PAIRS = 32
# Numbers held at once, per row, node and predictor: 32 MB.
_NUMBERS_AT_ONCE = 1 << 22


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
    if offset is not None and np.any(offset):  # in the coordinates of the whole predictors, a site has another shift
        precision, shift = site
        moved = shift + _matvec(precision, offset)
        new = joint_sites(loss, y, mean + offset, variance, (precision, moved), power)
        apart = 0.5 * np.einsum("bi,bi->b", shift + moved, offset)
        return JointSite(new.precision, new.shift - _matvec(new.precision, offset), new.log_scale + apart)
    rows, k, has_slopes = (y, mean, variance, *site, power), mean.shape[1], hasattr(loss, "derivatives")
    out = JointSite(*(np.full_like(part, np.nan) for part in (*site, power)))
    left = np.ones(power.size, dtype=bool)

    def put(chosen: IndexArray, found: JointSite) -> None:
        for all_rows, new in zip(out, found, strict=True):
            all_rows[chosen] = new

    if k in _GRIDS:
        for is_fine, least, offered in zip((False, True), _EVEN, (_is_narrow(variance), left), strict=True):
            grid = _grid(k, is_fine)
            for chosen in _slices(np.flatnonzero(offered & left), grid.weights.size * (k + 2)):
                found, even = _tilted(grid, loss, *(part[chosen] for part in rows))
                put(chosen, found)
                left[chosen] = ~(even >= least)
    if has_slopes or k not in _GRIDS:
        for chosen in _slices(np.flatnonzero(left), 2 * _PAIRS * (k + 2)):
            put(chosen, (_expected if has_slopes else _star)(loss, *(part[chosen] for part in rows)))
    return out


def _is_narrow(variance: FloatArray) -> NDArray[np.bool_]:
    """Tell for which rows the first grid will do."""
    widest = np.linalg.eigvalsh(_finite(variance))[:, -1]
    per_axis, radius = _GRIDS[variance.shape[1]][0]
    spacing = 2.0 * radius / (per_axis - 1)
    return np.asarray(spacing**2 * widest <= _APART**2)


def _slices(chosen: IndexArray, per_row: int) -> list[IndexArray]:
    """Rows in pieces that hold so many numbers per row."""
    step = max(1, _NUMBERS_AT_ONCE // per_row)
    return [chosen[i : i + step] for i in range(0, chosen.size, step)]


def _tilted(
    grid: _Grid, loss: JointLoss, y: Any, mean: Any, variance: Any, precision: Any, shift: Any, power: Any
) -> tuple[JointSite, FloatArray]:
    """Match moments; and the share of nodes that count, one where factor and site are the same."""
    (n, k), (nodes, weights, monomials) = mean.shape, grid
    root = _cholesky(variance)
    across = root.transpose(0, 2, 1)
    z = mean[:, None] + nodes @ across
    # Cost of the site in the coordinates of the nodes: e' H e / 2 + g e, from its height at the mean.
    hessian, slope = across @ precision @ root, _matvec(across, _matvec(precision, mean) - shift)
    tilted = np.hstack([slope, 0.5 * hessian.reshape(n, -1)]) @ monomials.T
    tilted -= power[:, None] * loss.value(y[:, None], z)
    highest = np.max(tilted, axis=1)
    tilted -= highest[:, None]
    np.exp(tilted, out=tilted)
    tilted *= weights
    total = np.sum(tilted, axis=1)
    tilted /= total[:, None]
    even = 1.0 / (np.square(tilted) @ (1.0 / weights))
    moments = tilted @ monomials
    moved = moments[:, :k]
    spread = moments[:, k:].reshape(n, k, k) - moved[:, :, None] * moved[:, None, :]
    narrowed = _inverse(spread)
    back = _inverse(root)
    gain = back.transpose(0, 2, 1) @ (narrowed - np.eye(k)) @ back
    new_precision = precision + 0.5 * (gain + gain.transpose(0, 2, 1))
    # The cavity's shift is the posterior's less the site's; the posterior's mean is moved by L e.
    new_shift = shift + _matvec(gain, mean) + _matvec(back.transpose(0, 2, 1), _matvec(narrowed, moved))
    at_mean = 0.5 * np.einsum("bi,bij,bj->b", mean, precision, mean) - np.einsum("bi,bi->b", shift, mean)
    return JointSite(new_precision, new_shift, np.log(total) + highest + at_mean), even


def _expected(loss: Any, y: Any, mean: Any, variance: Any, precision: Any, shift: Any, power: Any) -> JointSite:
    if hasattr(loss, "averages"):
        averaged = loss.averages(y, *_spread_nodes(mean, variance))
    else:
        nodes, weights = _fixed_nodes(mean.shape[1])
        z = mean[:, None] + nodes @ _cholesky(variance).transpose(0, 2, 1)
        averaged = 0.0, 0.0, 0.0
        for j, weight in enumerate(weights):  # one node at a time bounds the memory
            parts = loss.derivatives(y, z[:, j])
            averaged = tuple(total + weight * part for total, part in zip(averaged, parts, strict=True))
    return _from_slopes(averaged, mean, variance, precision, shift, power)


def joint_means(function: Averaged, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Means of a function of the predictors under Gaussians, per row.

    Parameters
    ----------
    function
        Takes nodes ``(rows, nodes, K)``, their weights, and the variance ``(rows,)`` that these leave out: what all
        directions of a wide Gaussian share, which a loss that smooths itself can account for (`cavity.losses.joint`).
    mean, variance
        Means ``(rows, K)`` and covariances ``(rows, K, K)`` of the Gaussians, of at least one row.
    """
    n, k = mean.shape
    if k not in _GRIDS:
        parts = _slices(np.arange(n), 2 * _PAIRS * (k + 2))
        return np.concatenate([function(*_spread_nodes(mean[part], variance[part])) for part in parts])
    found, narrow = None, _is_narrow(variance)
    for is_fine, offered in ((False, narrow), (True, ~narrow)):
        grid = _grid(k, is_fine)
        for part in _slices(np.flatnonzero(offered), grid.weights.size * (k + 2)):
            z = mean[part, None] + grid.nodes @ _cholesky(variance[part]).transpose(0, 2, 1)
            values = function(z, grid.weights, np.zeros(part.size))
            found = np.empty((n, *values.shape[1:])) if found is None else found
            found[part] = values
    assert found is not None
    return found


def joint_log_masses(loss: Any, y: FloatArray, mean: FloatArray, variance: FloatArray) -> FloatArray:
    r"""Logarithms of the means of :math:`e^{-u(y, z)}` under Gaussians, by nodes around the peak of the product.

    Parameters
    ----------
    loss
        A loss with derivatives.
    y, mean, variance
        Targets ``(rows,)``, means ``(rows, K)`` and covariances ``(rows, K, K)`` of the Gaussians.
    """
    n, k = mean.shape
    nodes, weights = _grid(k, True)[:2] if k in _GRIDS else _fixed_nodes(k)
    found = np.empty(n)
    for part in _slices(np.arange(n), weights.size * (k + 2)):
        found[part] = _log_masses(loss, y[part], mean[part], variance[part], nodes, weights)
    return found


def _log_masses(loss: Any, y: Any, mean: Any, variance: Any, nodes: FloatArray, weights: FloatArray) -> FloatArray:
    root = _cholesky(variance)
    across, e, length = root.transpose(0, 2, 1), np.zeros_like(mean), np.ones(y.size)

    def height(e: FloatArray) -> Any:
        return -loss.value(y, mean + _matvec(root, e)) - 0.5 * np.sum(e * e, axis=-1)

    for _ in range(100):  # Newton's method with steps that are halved until they rise
        _, slope, curvature = loss.derivatives(y, mean + _matvec(root, e))
        hessian = np.eye(mean.shape[1]) + across @ curvature @ root
        step = np.linalg.solve(hessian, (-_matvec(across, slope) - e)[..., None])[..., 0]
        length, before = np.ones(y.size), height(e)
        for _ in range(60):
            short = ~(height(e + length[:, None] * step) >= before)
            if not short.any():
                break
            length[short] *= 0.5
        e += length[:, None] * step
        if np.max(np.abs(length[:, None] * step), initial=0.0) < 0.01:
            break
    width = _cholesky(_inverse(hessian))
    x = e[:, None] + nodes @ width.transpose(0, 2, 1)
    f = 0.5 * (np.sum(nodes * nodes, axis=1) - np.sum(x * x, axis=2))
    f -= loss.value(y[:, None], mean[:, None] + x @ across)
    top = np.max(f, axis=1)
    log_width = np.sum(np.log(np.diagonal(width, axis1=1, axis2=2)), axis=1)
    return np.asarray(np.log(np.exp(f - top[:, None]) @ weights) + top + log_width)


def _spread_nodes(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Place fixed nodes; what all directions share beyond a variance of one, too wide for them, is left out."""
    nodes, weights = _fixed_nodes(mean.shape[1])
    width = np.maximum(0.999 * np.linalg.eigvalsh(_finite(variance))[:, 0] - 1.0, 0.0)
    narrow = variance - width[:, None, None] * np.eye(mean.shape[1])
    return mean[:, None] + nodes @ _cholesky(narrow).transpose(0, 2, 1), weights, width


def _star(loss: JointLoss, y: Any, mean: Any, variance: Any, precision: Any, shift: Any, power: Any) -> JointSite:
    k = mean.shape[1]
    arm = Precision3().star(k)
    assert arm is not None
    values, vectors = np.linalg.eigh(_finite(variance))
    lengths = np.sqrt(np.maximum(values, np.finfo(np.float64).eps * np.max(values, axis=1, keepdims=True, initial=0.0)))
    lengths = np.minimum(lengths, _APART / arm.spread)  # an exponential is none of a parabola's farther out
    root = (vectors * lengths[:, None, :]) @ vectors.transpose(0, 2, 1)
    back = (vectors / np.maximum(lengths, np.finfo(np.float64).tiny)[:, None, :]) @ vectors.transpose(0, 2, 1)
    middle = loss.value(y, mean)
    ends = [[loss.value(y, mean + sign * arm.spread * root[:, :, j]) for j in range(k)] for sign in (1.0, -1.0)]
    above, below = (np.stack(one, axis=1) for one in ends)
    slope = (above - below) / (2.0 * arm.spread)
    bend = (above - 2.0 * middle[:, None] + below) / arm.spread**2
    curvature = (back * bend[:, None, :]) @ back
    value = middle + 0.5 * np.einsum("bij,bij->b", curvature, variance)
    return _from_slopes((value, _matvec(back, slope), curvature), mean, variance, precision, shift, power)


def _from_slopes(averaged: Any, mean: Any, variance: Any, precision: Any, shift: Any, power: Any) -> JointSite:
    """Sites from mean value, slope and curvature of the loss under the posterior."""
    value, slope, curvature = averaged
    new_precision = power[:, None, None] * curvature
    new_shift = _matvec(new_precision, mean) - power[:, None] * slope
    # The mean of factor over site: a lower bound of the evidence follows.
    second = variance + mean[:, :, None] * mean[:, None, :]
    site_cost = 0.5 * np.einsum("bij,bij->b", precision, second) - np.einsum("bi,bi->b", shift, mean)
    return JointSite(new_precision, new_shift, site_cost - power * value)


def _matvec(matrices: FloatArray, vectors: FloatArray) -> FloatArray:
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


class _Grid(NamedTuple):
    """Nodes and weights, and the coordinates of the nodes with their products, one row per node."""

    nodes: FloatArray
    weights: FloatArray
    monomials: FloatArray


@cache
def _grid(k: int, is_fine: bool) -> _Grid:
    """Equally spaced nodes of a standard normal within a ball.

    For functions as smooth as a softmax, as many nodes of a product of Gauss-Hermite rules are ten times less accurate.
    """
    per_axis, radius = _GRIDS[k][is_fine]
    axis = np.linspace(-radius, radius, per_axis)
    nodes = np.stack(np.meshgrid(*[axis] * k, indexing="ij"), axis=-1).reshape(-1, k)
    squares = np.sum(nodes**2, axis=1)
    inside = squares <= radius**2 * (1.0 + 1e-9)
    weights = np.exp(-0.5 * squares[inside])
    weights /= np.sum(weights)
    # Variances of one exactly: a factor that says nothing must leave no site, in none of many rows.
    nodes = nodes[inside] / np.sqrt(weights @ nodes[inside, 0] ** 2)
    return _Grid(nodes, weights, np.hstack([nodes, (nodes[:, :, None] * nodes[:, None, :]).reshape(len(nodes), -1)]))


@cache
def _fixed_nodes(k: int) -> tuple[FloatArray, FloatArray]:
    """Quasi-random normal nodes of both signs, with mean zero and unit covariance exactly."""
    sobol = import_module("scipy.stats").qmc.Sobol(k, seed=0)  # takes longer to import than all of cavity
    half = ndtri(np.clip(sobol.random(_PAIRS), 1e-6, 1.0 - 1e-6))
    nodes = np.concatenate([half, -half])
    nodes = np.linalg.solve(np.linalg.cholesky(nodes.T @ nodes / len(nodes)), nodes.T).T
    return nodes, np.full(len(nodes), 1.0 / len(nodes))
