"""Which form serves which loss."""

from __future__ import annotations

import numpy as np

from cavity._types import FloatArray
from cavity.losses import Loss, offers
from cavity.moments._integrals import by_panels, by_rules, find_peaks
from cavity.moments._logistic import by_logistic
from cavity.moments._pieces import by_pieces
from cavity.moments._values import Rows, Tilts, put


def tilts(
    loss: Loss,
    y: FloatArray,
    mean: FloatArray,
    variance: FloatArray,
    power: FloatArray | float = 1.0,
    order: int = 8,
) -> Tilts:
    r"""Compute, for every row, log mass, shift and ratio of :math:`N(z; m, v)\, e^{-\beta \ell(y, z)}`.

    Parameters
    ----------
    loss
        The loss of a row.
    y, mean, variance
        Targets, and means and variances of the Gaussians, of shape ``(n,)``. Where a variance is zero, the factor is a
        constant.
    power
        The power :math:`\beta > 0` of the factors: a number, or one per row.
    order
        Nodes of the first Gauss-Hermite rule for losses without a closed form; doubled until two rules agree.

    Returns
    -------
    Tilts
        NaN in the rows whose cost is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from cavity.losses import Squared
    >>> found = tilts(Squared(), y=np.array([2.0, 0.0]), mean=np.zeros(2), variance=np.ones(2))
    >>> found.log_mass.round(6), found.shift.round(6), found.ratio.round(6)
    (array([-1.346574, -0.346574]), array([1., 0.]), array([0.5, 0.5]))
    """
    n = mean.size
    rows = Rows(y, mean, variance, np.broadcast_to(np.asarray(power, dtype=np.float64), (n,)))
    result = Tilts(*np.empty((3, n)))
    at_once = 2048  # rows: what they need in between stays within the caches
    with np.errstate(all="ignore"):
        for start in range(0, n, at_once):
            some = slice(start, start + at_once)
            put(result, some, _checked(loss, rows.at(some), order))
    return result


def _checked(loss: Loss, rows: Rows, order: int) -> Tilts:
    """Take care of variances of zero and of costs that are not finite."""
    others = np.flatnonzero(rows.variance)
    if others.size == rows.y.size:
        found = _chosen(loss, rows, order)
    else:
        found = Tilts(-rows.power * loss.value(rows.y, rows.mean), np.zeros(rows.y.size), np.ones(rows.y.size))
        if others.size:
            put(found, others, _chosen(loss, rows.at(others), order))
    is_bad = ~np.isfinite(found.log_mass + found.shift + found.ratio)
    if is_bad.any():
        put(found, is_bad, Tilts(*np.full((3, 1), np.nan)))
    return found


def _chosen(loss: Loss, rows: Rows, order: int) -> Tilts:
    """Take the closed form that a loss offers, or integrate."""
    offered = offers(loss)
    if offered.pieces is not None:
        return by_pieces(offered.pieces(rows.y), rows.mean, np.sqrt(rows.variance), rows.power)
    if offered.squared is not None:
        return _by_squares(offered.squared, rows)
    if offered.logistic is None:
        return _by_integration(loss, rows, order)
    found = by_logistic(offered.logistic * rows.y, rows.mean, rows.variance, rows.power)
    left = np.flatnonzero(np.isnan(found.log_mass))
    if left.size:
        put(found, left, _by_integration(loss, rows.at(left), order))
    return found


def _by_squares(scale: float, rows: Rows) -> Tilts:
    """Multiply Gaussians."""
    noise = scale * scale / rows.power
    total = rows.variance + noise
    distance, ratio = rows.y - rows.mean, noise / total
    log_mass = 0.5 * (np.log(ratio) - distance * distance / total)
    return Tilts(log_mass, distance * np.sqrt(rows.variance) / total, ratio)


def _by_integration(loss: Loss, rows: Rows, order: int) -> Tilts:
    """Integrate by one rule where that is enough, else on panels."""
    products = find_peaks(loss, rows)
    moments, left = by_rules(products, order)
    if left.size:
        moments[:, left] = by_panels(products.at(left))
    return products.tilts(moments)
