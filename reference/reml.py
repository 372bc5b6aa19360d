r"""Variances of random effects without EP: restricted maximum likelihood, and the integrated likelihood by quadrature.

Both integrate the fixed effects over a flat prior, as EP does with a wide one. For normal targets the integral is
closed (`reml`); for labels and counts with one factor of random intercepts, `RandomIntercepts` computes

.. math:: L(v) = \int d\beta \prod_j \int N(u_j; 0, v) \prod_{i \in j} p(y_i \mid x_i^\top \beta + u_j) \, du_j

by adaptive Gauss-Hermite rules, one per level inside one for all fixed effects. Dense, for up to a few hundred effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logsumexp

FloatArray = NDArray[np.float64]

_LOG_2PI = float(np.log(2.0 * np.pi))
# Ratios of standard deviations, of effects to noise, from which the search for REML's maximum starts.
_RATIOS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
# Standard deviations of random intercepts that bracket the maximum of the integrated likelihood: a ratio of about two.
_DEVIATIONS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
# Newton steps to a mode, the largest move of a linear predictor in one, and the distance in posterior standard
# deviations at which a rule may be centred beside it.
_STEPS, _LARGEST_MOVE, _NEAR = 50, 2.0, 0.02
# Numbers per array while a grid of fixed effects is evaluated.
_CHUNK = 4_000_000


def dummies(levels: ArrayLike) -> FloatArray:
    """One column of zeros and ones per level, in sorted order."""
    known, codes = np.unique(np.asarray(levels), return_inverse=True)
    return np.eye(known.size)[codes]


class Components(NamedTuple):
    """Variances of the effects and of the noise, and minus twice the log restricted likelihood there."""

    variances: FloatArray
    noise: float
    deviance: float


def reml(y: FloatArray, X: FloatArray, effects: Sequence[FloatArray]) -> Components:
    r"""Restricted maximum likelihood for :math:`y = X\beta + \sum_k Z_k u_k + e`, independent effects of variance v_k.

    ``effects`` are the :math:`Z_k`, of any numbers. With :math:`\theta_k^2 = v_k / \sigma^2` the noise variance is
    maximised in closed form; the search is over :math:`\theta` alone.
    """
    criterion = _Profile.of(y, X, effects)
    starts = np.array(list(product(_RATIOS[:: 1 if len(effects) == 1 else 2], repeat=len(effects))))
    best = starts[int(np.argmin([criterion(theta)[0] for theta in starts]))]
    for _ in range(3):  # restarts from the best point: one simplex may collapse at a bound
        simplex = np.vstack([best, best + np.diag(0.3 * best + 0.05)])
        options = {"initial_simplex": simplex, "xatol": 1e-7, "fatol": 1e-10, "maxiter": 2000}
        bounds = [(0.0, None)] * best.size
        best = minimize(lambda t: criterion(t)[0], best, method="Nelder-Mead", bounds=bounds, options=options).x
    deviance, noise = criterion(best)
    return Components(noise * np.square(best), noise, deviance)


@dataclass(frozen=True, slots=True)
class _Profile:
    """Minus twice the log restricted likelihood with the noise variance at its maximum, from products of columns."""

    rows: int
    sizes: list[int]
    products: FloatArray  # of the columns of all effects, then of X, then of the targets, with each other

    @classmethod
    def of(cls, y: FloatArray, X: FloatArray, effects: Sequence[FloatArray]) -> _Profile:
        residual = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]  # changes no number below, and keeps their digits
        columns = np.column_stack([*effects, X, residual])
        return cls(y.size, [Z.shape[1] for Z in effects], columns.T @ columns)

    def __call__(self, theta: FloatArray) -> tuple[float, float]:
        """Deviance at ratios of standard deviations, and the noise variance."""
        scales, q = np.repeat(theta, self.sizes), sum(self.sizes)
        left = self.rows - (len(self.products) - 1 - q)
        root = cholesky(scales[:, None] * self.products[:q, :q] * scales + np.eye(q), lower=True)
        half = solve_triangular(root, scales[:, None] * self.products[:q, q:], lower=True)
        rest = cholesky(self.products[q:, q:] - half.T @ half, lower=True)
        squares = float(rest[-1, -1] ** 2)
        logs = 2.0 * float(np.sum(np.log(np.diag(root))) + np.sum(np.log(np.diag(rest)[:-1])))
        return logs + left * (1.0 + float(np.log(squares / left)) + _LOG_2PI), squares / left


class Family(NamedTuple):
    """Log density of a target, without constants, and its derivatives in the linear predictor."""

    name: str

    def log_density(self, y: FloatArray, z: FloatArray) -> FloatArray:
        """Log density of labels 0 and 1, or of counts with mean exp(z)."""
        if self.name == "poisson":
            return np.asarray(y * z - np.exp(z))
        return np.asarray(y * z - np.maximum(z, 0.0) - np.log1p(np.exp(-np.abs(z))))

    def slopes(self, y: FloatArray, z: FloatArray) -> tuple[FloatArray, FloatArray]:
        """First derivative, and minus the second one."""
        mean = np.exp(z) if self.name == "poisson" else expit(z)
        return y - mean, mean if self.name == "poisson" else mean * (1.0 - mean)


LOGISTIC, POISSON = Family("logistic"), Family("poisson")


class RandomIntercepts:
    """Likelihood of the variance of random intercepts of one factor, with fixed effects integrated.

    Parameters
    ----------
    family
        `LOGISTIC` for labels 0 and 1, or `POISSON`.
    y, X, levels
        Targets, columns of the fixed effects (with one of ones), and the level of every row.
    nodes
        Of the rule of every level.
    fixed_nodes
        Of the rule of every fixed effect: their power to the number of fixed effects is what one value costs.
    """

    def __init__(
        self, family: Family, y: FloatArray, X: FloatArray, levels: Any, nodes: int = 9, fixed_nodes: int = 5
    ) -> None:
        codes = np.unique(np.asarray(levels), return_inverse=True)[1]
        order = np.argsort(codes, kind="stable")
        self.family, self.y, self.X, self.codes = family, np.asarray(y, dtype=np.float64)[order], X[order], codes[order]
        self.starts = np.flatnonzero(np.diff(self.codes, prepend=-1))
        self.nodes, self.weights = _hermite(nodes)
        places, weights = _hermite(fixed_nodes)
        self.fixed_nodes = np.array(list(product(places, repeat=X.shape[1])))
        self.fixed_weights = np.array([np.prod(one) for one in product(weights, repeat=X.shape[1])])

    def log_likelihood(self, variance: float) -> float:
        """Logarithm of the integral over fixed and random effects, without constants of the targets."""
        deviation = float(np.sqrt(variance))
        beta, root, effects = self._joint_mode(deviation)
        points = beta + self.fixed_nodes @ root.T
        size = max(1, _CHUNK // (self.y.size * self.nodes.size))
        logs = [self._marginal(points[i : i + size], deviation, effects) for i in range(0, len(points), size)]
        terms = np.concatenate(logs) + 0.5 * np.sum(self.fixed_nodes**2, axis=1)
        volume = float(np.sum(np.log(np.diag(root)))) + 0.5 * beta.size * _LOG_2PI
        return float(logsumexp(terms, b=self.fixed_weights)) + volume

    def maximum(self) -> tuple[float, float]:
        """Variance of the largest integrated likelihood, and its logarithm there."""
        values = [self.log_likelihood(s**2) for s in _DEVIATIONS]
        best = int(np.argmax(values))
        low, high = _DEVIATIONS[max(best - 1, 0)], _DEVIATIONS[min(best + 1, len(_DEVIATIONS) - 1)]
        options = {"xatol": 1e-3 * high}
        found = minimize_scalar(
            lambda s: -self.log_likelihood(s**2), bounds=(low, high), method="bounded", options=options
        )
        return max((float(found.x) ** 2, -float(found.fun)), (_DEVIATIONS[best] ** 2, values[best]), key=lambda p: p[1])

    def _sum(self, values: FloatArray) -> FloatArray:
        """Sum over the rows of every level, along the first axis."""
        return np.asarray(np.add.reduceat(values, self.starts, axis=0))

    def _joint_mode(self, deviation: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mode of fixed effects and of standardised random effects, and the root of the fixed effects' covariance."""
        beta, t = np.zeros(self.X.shape[1]), np.zeros(self.starts.size)
        for _ in range(_STEPS):
            slope, curvature = self.family.slopes(self.y, self.X @ beta + deviation * t[self.codes])
            weighted = curvature[:, None] * self.X
            cross, own = deviation * self._sum(weighted), 1.0 + deviation**2 * self._sum(curvature)
            gradient = deviation * self._sum(slope) - t
            schur = self.X.T @ weighted - cross.T @ (cross / own[:, None])
            step = np.linalg.solve(schur, self.X.T @ slope - cross.T @ (gradient / own))
            move = (gradient - cross @ step) / own
            predictors = np.abs(self.X @ step + deviation * move[self.codes])
            shorter = min(1.0, _LARGEST_MOVE / max(float(np.max(predictors)), 1e-300))
            beta, t = beta + shorter * step, t + shorter * move
            if float(np.max(predictors)) < 1e-6:
                break
        try:
            return beta, cholesky(np.linalg.inv(schur), lower=True), t
        except LinAlgError as error:
            raise ValueError("the fixed effects have no mode: columns are collinear, or separate the labels") from error

    def _marginal(self, betas: FloatArray, deviation: float, start: FloatArray) -> FloatArray:
        """Log likelihood of several fixed effects ``(points, columns)``, random effects integrated."""
        fixed, y = self.X @ betas.T, self.y[:, None]
        t = np.repeat(start[:, None], len(betas), axis=1)
        for _ in range(_STEPS):
            slope, curvature = self.family.slopes(y, fixed + deviation * t[self.codes])
            precision = 1.0 + deviation**2 * self._sum(curvature)
            move = (deviation * self._sum(slope) - t) / precision
            if np.max(np.abs(move) * np.sqrt(precision)) < _NEAR:
                break
            t = t + np.clip(move, *(np.array([-1.0, 1.0]) * _LARGEST_MOVE / max(deviation, 1e-300)))
        width = 1.0 / np.sqrt(precision)
        places = t[..., None] + width[..., None] * self.nodes
        logs = self._sum(self.family.log_density(y[..., None], fixed[..., None] + deviation * places[self.codes]))
        logs += 0.5 * (self.nodes**2 - places**2)
        return np.asarray(np.sum(logsumexp(logs, axis=-1, b=self.weights) + np.log(width), axis=0))


def _hermite(count: int) -> tuple[FloatArray, FloatArray]:
    """Rule for the standard normal distribution."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / np.sum(weights)
