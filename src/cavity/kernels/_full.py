"""EP with a full covariance: rows of a linear model, each with a site of two numbers on its predictor."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from cavity.kernels._bridge import kernel
from cavity.kernels._four import AHEAD, fetch_row
from cavity.kernels._moments import tilt
from cavity.kernels._sweep import ACCEPTED, IMPROPER_CAVITY, IMPROPER_POSTERIOR, NONFINITE

# Least share of a predictor's precision that a cavity, or a revised posterior, must keep: below, it is mostly rounding.
LEFT = 1e-10


class Moments(NamedTuple):
    """Mean and covariance of the posterior, C-ordered and symmetric, and scratch memory of the mean's size."""

    mean: Any
    covariance: Any
    lever: Any


class RowSites(NamedTuple):
    """Site of every row, the exponential of scale + shift z - precision z²/2 in its predictor z."""

    scales: Any
    shifts: Any
    precisions: Any


class Step(NamedTuple):
    """Numbers of a loop."""

    beta: float
    damping: float


def full_sweep(
    loss: Any, X: Any, targets: Any, weights: Any, step: Any, rules: Any, sites: Any, moments: Any, outcomes: Any
) -> None:
    """Revise the site of every row of a dense block. No weights stand for ones."""
    for i in range(X.shape[0]):
        fetch_row(X, i + AHEAD)
        weight = weights[i] if weights.size else 1.0
        if weight > 0.0:
            outcomes[i] = revise(loss, X, i, targets[i], step.beta * weight, step.damping, rules, sites, moments)


@kernel
def revise(
    loss: Any, X: Any, i: int, y: float, beta: float, damping: float, rules: Any, sites: Any, moments: Any
) -> int:
    """Revise the site of one row, and the moments by a change of rank one; or refuse, and leave all as it was."""
    m, v = project(X, i, moments)
    scale, shift, precision = sites.scales[i], sites.shifts[i], sites.precisions[i]
    if v == 0.0:
        change = -beta * loss.value(y, m) - scale
        if not np.isfinite(change):
            return NONFINITE
        sites.scales[i] = scale + damping * change
        return ACCEPTED
    left = 1.0 - precision * v
    if not (v > 0.0 and left > LEFT):
        return IMPROPER_CAVITY
    # The cavity; then what the row makes of it, as a site.
    cavity_v = v / left
    cavity_m = m + cavity_v * (precision * m - shift)
    log_mass, move, ratio = tilt(loss, y, cavity_m, cavity_v, beta, rules)
    if not (ratio > 0.0 and np.isfinite(log_mass + move + 1.0 / ratio)):
        return NONFINITE
    new_precision = (1.0 / ratio - 1.0) / cavity_v
    new_shift = cavity_m * new_precision + move / (ratio * math.sqrt(cavity_v))
    new_scale = log_mass - 0.5 * (np.log(ratio) + move * move / ratio)
    new_scale -= (new_shift - 0.5 * new_precision * cavity_m) * cavity_m
    bend, push = damping * (new_precision - precision), damping * (new_shift - shift)
    if not np.isfinite(bend + push + new_scale):
        return NONFINITE
    left = 1.0 + bend * v
    if not left > LEFT:
        return IMPROPER_POSTERIOR
    absorb((push - bend * m) / left, bend / left, moments)
    sites.scales[i] = scale + damping * (new_scale - scale)
    sites.shifts[i] = shift + push
    sites.precisions[i] = precision + bend
    return ACCEPTED


@kernel
def project(X: Any, i: int, moments: Any) -> tuple[float, float]:
    """Mean and variance of the predictor of a row; its covariances with all coordinates into ``lever``.

    Lines of the covariance that belong to zeros of the row are not read.
    """
    mean, covariance, lever = moments
    d = mean.size
    lever[:] = 0.0
    for j in range(d):
        x = np.float64(X[i, j])
        if x != 0.0:
            for k in range(d):
                lever[k] += x * covariance[j, k]
    m = v = 0.0
    for j in range(d):
        x = np.float64(X[i, j])
        m += x * mean[j]
        v += x * lever[j]
    return m, v


@kernel
def absorb(gain: float, bend: float, moments: Any) -> None:
    """Move the mean along the lever, and take its square off the covariance, which stays symmetric to the bit."""
    mean, covariance, lever = moments
    d = mean.size
    root, sign = math.sqrt(abs(bend)), 1.0 if bend < 0.0 else -1.0
    for j in range(d):
        mean[j] += gain * lever[j]
        lever[j] *= root
    for j in range(d):
        u = sign * lever[j]
        for k in range(d):
            covariance[j, k] += u * lever[k]
