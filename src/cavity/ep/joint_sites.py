"""Sites of rows whose loss has several linear predictors, and how they are revised.

As `cavity.ep.row_sites`, with a vector and a matrix per row in the place of two numbers; `cavity.moments.joint_sites`
says what a row's next site is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cavity.ep.row_sites import Revision, RowSites
from cavity.losses.joint import JointLoss
from cavity.moments import joint_sites

FloatArray = NDArray[np.float64]


def propose(
    loss: JointLoss,
    targets: FloatArray,
    weights: FloatArray,
    sites: RowSites,
    *,
    beta: float = 1.0,
    power: float = 1.0,
    fresh: bool = False,
    noise: bool = False,
) -> tuple[Revision, FloatArray]:
    """Fit every row, all under the same posterior; return the revision and the steps to take.

    ``sites.mean`` and ``sites.variance`` hold the predictors under that posterior. ``fresh`` sites have no history.
    There is no Power EP here, ``power`` must be one, and no ``noise``: losses of several predictors have no scale.
    """
    _check(power)
    with np.errstate(all="ignore"):
        present = (sites.precision, sites.shift)
        new = joint_sites(loss, targets, sites.mean, sites.variance, present, beta * weights, sites.offset)
        finite = np.isfinite(np.sum(new.precision, axis=(1, 2)) + np.sum(new.shift, axis=1) + new.log_scale)
        nothing = np.trace(sites.variance, axis1=1, axis2=2) == 0.0  # a row of zeros says nothing of any coefficient
        kept = ~finite | nothing
        d_precision = np.where(kept[:, None, None], 0.0, new.precision - sites.precision)
        d_shift = np.where(kept[:, None], 0.0, new.shift - sites.shift)
        slope = d_shift - np.einsum("bij,bj->bi", d_precision, sites.mean)
        if not fresh:
            sites.damp(_turned(slope, sites.turn_shift) | _turned(d_precision, sites.turn_precision))
    sites.turn_precision[:], sites.turn_shift[:] = d_precision, slope
    return Revision(d_precision, d_shift, np.zeros(kept.size, dtype=bool), ~finite & ~nothing), sites.step.copy()


def log_scale(
    loss: JointLoss, targets: FloatArray, weights: FloatArray, sites: RowSites, *, beta: float = 1.0, power: float = 1.0
) -> float:
    """Sum of the logarithms by which sites are scaled; rows that are refused count as one."""
    _check(power)
    with np.errstate(all="ignore"):
        present = (sites.precision, sites.shift)
        new = joint_sites(loss, targets, sites.mean, sites.variance, present, beta * weights, sites.offset)
    scales = new.log_scale
    return float(np.sum(scales[np.isfinite(scales)]))


def _check(power: float) -> None:
    if power != 1.0:
        raise ValueError(f"power must be 1 for losses of several predictors, got {power:g}")


def _turned(change: FloatArray, before: FloatArray) -> NDArray[np.bool_]:
    """Whether rows go back on what they did before, by a change that counts: 0.3 of the one before."""
    a, b = change.reshape(len(change), -1), before.reshape(len(before), -1)
    along = np.einsum("bi,bi->b", a, b)
    return np.asarray((along < 0.0) & (np.linalg.norm(a, axis=1) > 0.3 * np.linalg.norm(b, axis=1)))
