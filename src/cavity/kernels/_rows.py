"""Rows of a mini-batch: predictors, gradients, stars. Dense rows stream through memory once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cavity.kernels._bridge import open_method
from cavity.kernels._four import ROWS_AHEAD, dot, fetch_row, four_derivatives, four_dots, weighted
from cavity.kernels._star import dense_star


class DenseRows(NamedTuple):
    """Rows as a C-ordered block, float64 or float32."""

    entries: Any

    def predict(self, point: Any, weights: Any, z: Any) -> None:
        """Linear predictor of every row of positive weight."""
        X = self.entries
        for i in range(X.shape[0]):
            if weights[i] > 0.0:
                z[i] = dot(X, i, point)

    def pull(self, values: Any, weights: Any, out: Any) -> None:
        """Sum of the rows, each times its value."""
        X = self.entries
        out[: X.shape[1]] = 0.0
        for i in range(X.shape[0]):
            if weights[i] > 0.0:
                v = values[i]
                for j in range(X.shape[1]):
                    out[j] += v * X[i, j]

    def pull_squares(self, values: Any, weights: Any, out: Any) -> None:
        """Sum of the rows squared entry by entry, each times its value."""
        X = self.entries
        out[: X.shape[1]] = 0.0
        for i in range(X.shape[0]):
            if weights[i] > 0.0:
                v = values[i]
                for j in range(X.shape[1]):
                    x = np.float64(X[i, j])
                    out[j] += v * x * x

    def taylor(self, loss: Any, by_slope: bool, targets: Any, weights: Any, point: Any, out: Any) -> float:
        """Cost at a point; gradient into ``out[0]``, curvature into ``out[1]``. Four rows at a time, read once."""
        X = self.entries
        n, d = X.shape
        gradient, curvature = out
        gradient[:d] = 0.0
        curvature[:d] = 0.0
        total, done = 0.0, n - n % 4
        for i in range(0, done, 4):
            fetch_row(X, i + ROWS_AHEAD)
            z = four_dots(X, i, point)
            fetch_row(X, i + ROWS_AHEAD + 1)
            v, (g0, g1, g2, g3), (c0, c1, c2, c3) = four_derivatives(loss, by_slope, targets, weights, i, z)
            total += v
            fetch_row(X, i + ROWS_AHEAD + 2)
            for j in range(d):
                x0, x1 = np.float64(X[i, j]), np.float64(X[i + 1, j])
                x2, x3 = np.float64(X[i + 2, j]), np.float64(X[i + 3, j])
                gradient[j] += g0 * x0 + g1 * x1 + g2 * x2 + g3 * x3
                curvature[j] += c0 * x0 * x0 + c1 * x1 * x1 + c2 * x2 * x2 + c3 * x3 * x3
            fetch_row(X, i + ROWS_AHEAD + 3)
        for i in range(done, n):
            z0 = dot(X, i, point)
            v0, g0, c0 = weighted(loss, by_slope, targets[i], weights[i], z0)
            total += v0
            for j in range(d):
                x0 = np.float64(X[i, j])
                gradient[j] += g0 * x0
                curvature[j] += c0 * x0 * x0
        return total

    def star(self, loss: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
        """Cost at the centre; rises along every axis into ``work.up`` and ``work.down``."""
        return dense_star(loss, self.entries, targets, weights, point, steps, work)

    def project(self, i: int, mean: Any, variance: Any) -> tuple[float, float]:
        """Mean and variance of the linear predictor of row ``i``."""
        X = self.entries
        fetch_row(X, i + ROWS_AHEAD)
        m = v = 0.0
        for j in range(mean.size):
            x = np.float64(X[i, j])
            m += x * mean[j]
            v += x * x * variance[j]
        return m, v

    def absorb(self, i: int, gain: float, bend: float, least: float, mean: Any, variance: Any) -> None:
        """Let every mean follow row ``i``, and every variance, down to ``least`` of it at most."""
        X = self.entries
        for j in range(mean.size):
            s = variance[j]
            covariance = s * X[i, j]
            mean[j] += covariance * gain
            s, floor = s + covariance * covariance * bend, least * s
            variance[j] = floor if s < floor else s


class SparseRows(NamedTuple):
    """Rows in CSR form, with the same methods; ``local`` holds their columns renumbered to the touched ones."""

    data: Any
    local: Any
    starts: Any

    def predict(self, point: Any, weights: Any, z: Any) -> None:
        base = self.starts[0]
        for i in range(self.starts.size - 1):
            if weights[i] > 0.0:
                total = 0.0
                for e in range(self.starts[i] - base, self.starts[i + 1] - base):
                    total += self.data[e] * point[self.local[e]]
                z[i] = total

    def pull(self, values: Any, weights: Any, out: Any) -> None:
        base = self.starts[0]
        out[:] = 0.0
        for i in range(self.starts.size - 1):
            if weights[i] > 0.0:
                for e in range(self.starts[i] - base, self.starts[i + 1] - base):
                    out[self.local[e]] += values[i] * self.data[e]

    def pull_squares(self, values: Any, weights: Any, out: Any) -> None:
        base = self.starts[0]
        out[:] = 0.0
        for i in range(self.starts.size - 1):
            if weights[i] > 0.0:
                for e in range(self.starts[i] - base, self.starts[i + 1] - base):
                    x = np.float64(self.data[e])
                    out[self.local[e]] += values[i] * x * x

    def taylor(self, loss: Any, by_slope: bool, targets: Any, weights: Any, point: Any, out: Any) -> float:
        base = self.starts[0]
        gradient, curvature = out
        gradient[:] = 0.0
        curvature[:] = 0.0
        total = 0.0
        for i in range(self.starts.size - 1):
            if weights[i] > 0.0:
                first, last = self.starts[i] - base, self.starts[i + 1] - base
                z = 0.0
                for e in range(first, last):
                    z += self.data[e] * point[self.local[e]]
                v, g, c = weighted(loss, by_slope, targets[i], weights[i], z)
                total += v
                for e in range(first, last):
                    x, j = np.float64(self.data[e]), self.local[e]
                    gradient[j] += g * x
                    curvature[j] += c * x * x
        return total

    def star(self, loss: Any, targets: Any, weights: Any, point: Any, steps: Any, work: Any) -> float:
        base = self.starts[0]
        up, down = work.up, work.down
        up[: point.size] = 0.0
        down[: point.size] = 0.0
        total = 0.0
        for i in range(self.starts.size - 1):
            w, y = weights[i], targets[i]
            if w > 0.0:
                first, last = self.starts[i] - base, self.starts[i + 1] - base
                z = 0.0
                for e in range(first, last):
                    z += self.data[e] * point[self.local[e]]
                here = loss.value(y, z)
                total += w * here
                for e in range(first, last):
                    j = self.local[e]
                    t = self.data[e] * steps[j]
                    up[j] += w * (loss.value(y, z + t) - here)
                    down[j] += w * (loss.value(y, z - t) - here)
        return total

    def project(self, i: int, mean: Any, variance: Any) -> tuple[float, float]:
        base = self.starts[0]
        m = v = 0.0
        for e in range(self.starts[i] - base, self.starts[i + 1] - base):
            x, j = np.float64(self.data[e]), self.local[e]
            m += x * mean[j]
            v += x * x * variance[j]
        return m, v

    def absorb(self, i: int, gain: float, bend: float, least: float, mean: Any, variance: Any) -> None:
        base = self.starts[0]
        for e in range(self.starts[i] - base, self.starts[i + 1] - base):
            j = self.local[e]
            s = variance[j]
            covariance = s * self.data[e]
            mean[j] += covariance * gain
            s, floor = s + covariance * covariance * bend, least * s
            variance[j] = floor if s < floor else s


# As a loss writes it: reassociation would undo its care, and turn products with a reciprocal back into divisions.
open_method("value", 2, reassociate=False)
open_method("derivatives", 2, reassociate=False)
open_method("predict", 3)
open_method("pull", 3)
open_method("pull_squares", 3)
open_method("taylor", 6)
open_method("star", 6)
open_method("project", 3)
open_method("absorb", 6)
