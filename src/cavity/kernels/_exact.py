"""Exact projection on linear factors, all in scratch memory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cavity.kernels._moments import Rules, tilt
from cavity.kernels._schemes import sum_of_logs


class ExactProjection(NamedTuple):
    """Moments of cavity times factor, row by row."""

    rules: Rules

    def fit(self, loss: Any, rows: Any, targets: Any, weights: Any, beta: float, size: int, work: Any) -> float:
        """Take the rows in one after the other, then divide by the cavity."""
        mean, variance, ratios = work.up[:size], work.down[:size], work.buffer[:size]
        log_scale = 0.0
        for j in range(size):
            mean[j] = work.mean[j]
            variance[j] = 1.0 / work.precision[j]
        for i in range(targets.size):
            if weights[i] > 0.0:
                y, b = targets[i], beta * weights[i]
                m, v = rows.project(i, mean, variance)
                if v == 0.0:
                    log_scale -= b * loss.value(y, m)
                else:
                    log_mass, shift, ratio = tilt(loss, y, m, v, b, self.rules)
                    log_scale += log_mass
                    rows.absorb(i, shift / math.sqrt(v), (ratio - 1.0) / v, min(ratio, 1.0), mean, variance)
        for j in range(size):
            m, p, touched = work.mean[j], work.precision[j], work.touched[j]
            inverse, step = 1.0 / variance[j], mean[j] - m
            precision = inverse - p if touched else 0.0
            shift = mean[j] * inverse - m * p if touched else 0.0
            log_scale -= 0.5 * step * step * inverse + (shift - 0.5 * precision * m) * m
            ratios[j] = variance[j] * p if touched else 1.0
            work.fit_shift[j] = shift
            work.fit_precision[j] = precision
        return log_scale - 0.5 * sum_of_logs(ratios)
