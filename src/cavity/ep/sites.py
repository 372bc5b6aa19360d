r"""Sites of rows: what every row says about its linear predictor, and how it is revised.

A row of weight :math:`w \ge 1` stands for :math:`k = w` equal rows that share one site :math:`(T, R)`; one of them is
removed and fitted again, which is Power EP with the power :math:`1/w`:

.. math:: v_c = \frac{v}{1 - (T/k) v}, \quad m_c = m + v_c ((T/k) m - R/k), \qquad
    T' = k \left(\frac1{v'} - \frac1{v_c}\right), \quad R' = k \left(\frac{m'}{v'} - \frac{m_c}{v_c}\right)

with mean and variance :math:`m, v` of the predictor under the posterior, and :math:`m', v'` those of cavity times
factor. A row of weight below one is one row whose cost counts as much less. So a row that occurs w times and one of
weight w have the same fixed point, and a fractional weight never removes more than there is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.losses import Loss
from cavity.tilting import tilts

FloatArray = NDArray[np.float64]

# A cavity is improper where less than this share of the predictor's precision is left.
_LEAST_SHARE = 1e-10
# A row's step shrinks by the first factor when its revision turns round by more than the last share of what it was,
# and grows by the second otherwise, between the third and one. Chosen by loops to 0.01 standard deviations over 60
# random problems, logistic and hinge: median 7, at most 21; with 0.5 and 1.15 median 12, at most 28.
_SHRINK, _GROW, _LEAST_STEP, _TURN = 0.7, 1.3, 0.02, 0.3

_ARRAYS = ("precision", "shift", "log_scale", "step", "turn_precision", "turn_shift", "mean", "variance")


@dataclass(slots=True, eq=False)
class RowSites:
    """Sites of all rows, with what their damping remembers; arrays of one number per row, changed in place.

    Parameters
    ----------
    precision, shift
        Natural parameters T and R of the sites.
    log_scale
        Logarithms of the sites' scales, for the evidence.
    step
        Damping of each row.
    turn_precision, turn_shift
        Last proposed change of T, and of the site's slope at the posterior mean.
    mean, variance
        Mean and variance of the predictor when the row was visited last.
    ceiling
        Largest step of any row.
    """

    precision: FloatArray
    shift: FloatArray
    log_scale: FloatArray
    step: FloatArray
    turn_precision: FloatArray
    turn_shift: FloatArray
    mean: FloatArray
    variance: FloatArray
    ceiling: float = 1.0

    @classmethod
    def start(cls, rows: int, step: float) -> RowSites:
        """Uniform sites that begin with this step."""
        arrays: Any = {name: np.zeros(rows) for name in _ARRAYS}
        arrays["step"][:] = step
        return cls(**arrays)

    def part(self, part: slice) -> RowSites:
        """Give views of the sites of some rows."""
        views = {name: getattr(self, name)[part] for name in _ARRAYS}
        return RowSites(**views, ceiling=self.ceiling)

    def accept(self, revision: Revision, step: FloatArray) -> None:
        """Take over a revision, by so much of it per row."""
        self.precision[:] += step * revision.precision
        self.shift[:] += step * revision.shift
        self.log_scale[:] = revision.log_scale

    def scale_by(self, factor: float) -> None:
        """Multiply all sites by a factor, and forget which way they went."""
        self.precision[:] *= factor
        self.shift[:] *= factor
        self.log_scale[:] *= factor
        self.turn_precision[:] = self.turn_shift[:] = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Revision:
    """Proposed changes of precision and shift, new log scales, and which rows were refused and why."""

    precision: FloatArray
    shift: FloatArray
    log_scale: FloatArray
    improper: NDArray[np.bool_]
    nonfinite: NDArray[np.bool_]

    def without(self, rows: NDArray[np.bool_]) -> Revision:
        """Leave out some rows."""
        return replace(self, precision=np.where(rows, 0.0, self.precision), shift=np.where(rows, 0.0, self.shift))


def propose(
    loss: Loss,
    targets: FloatArray,
    weights: FloatArray,
    sites: RowSites,
    *,
    beta: float = 1.0,
    power: float = 1.0,
    fresh: bool = False,
) -> tuple[Revision, FloatArray]:
    """Fit every row against its own cavity, all under the same posterior; return the revision and the steps to take.

    ``sites.mean`` and ``sites.variance`` hold the predictors under that posterior. ``fresh`` sites have no history. Of
    every row's factor and site the ``power`` is removed and fitted, the whole by default.
    """
    m, v = sites.mean, sites.variance
    copies, exponent = np.maximum(weights, 1.0) / power, beta * power * np.minimum(weights, 1.0)
    with np.errstate(all="ignore"):
        t, r = sites.precision / copies, sites.shift / copies
        share = 1.0 - t * v
        improper = ~(share > _LEAST_SHARE)
        cavity_variance = v / np.where(improper, 1.0, share)
        cavity_mean = m + cavity_variance * (t * m - r)
        tilt = tilts(loss, targets, cavity_mean, cavity_variance, exponent)
        new_t = (1.0 / tilt.ratio - 1.0) / cavity_variance
        new_r = cavity_mean * new_t + tilt.shift / (tilt.ratio * np.sqrt(cavity_variance))
        at_mean = (new_r - 0.5 * new_t * cavity_mean) * cavity_mean
        scale = tilt.log_mass - 0.5 * np.log(tilt.ratio) - at_mean - 0.5 * tilt.shift**2 / tilt.ratio
        nothing = v == 0.0  # a row of zeros says nothing of any coefficient
        finite = np.isfinite(scale + new_t + new_r) & (tilt.ratio > 0.0)
        scale = np.where(nothing, tilt.log_mass, scale)
        refused = improper | ~(finite | nothing)
        kept = refused | nothing
        d_precision = np.where(kept, 0.0, copies * new_t - sites.precision)
        d_shift = np.where(kept, 0.0, copies * new_r - sites.shift)
        log_scale = np.where(refused, sites.log_scale, copies * scale)
        slope = d_shift - d_precision * m
        if not fresh:
            turned = _turned(slope, sites.turn_shift) | _turned(d_precision, sites.turn_precision)
            sites.step[:] = np.clip(sites.step * np.where(turned, _SHRINK, _GROW), _LEAST_STEP, sites.ceiling)
    sites.turn_precision[:], sites.turn_shift[:] = d_precision, slope
    return Revision(d_precision, d_shift, log_scale, improper, refused & ~improper), sites.step.copy()


def _turned(change: FloatArray, before: FloatArray) -> NDArray[np.bool_]:
    return (change * before < 0.0) & (np.abs(change) > _TURN * np.abs(before))
