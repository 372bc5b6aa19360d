"""The exact posterior of a fitted model, given its hyperparameters: whether EP's can be trusted, and draws."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from cavity._types import FloatArray
from cavity.ep.draws import effective_draws, elliptical_slices, r_hat
from cavity.ep.importance import weighted_draws
from cavity.estimators.fitted import Fitted
from cavity.estimators.posterior import marginals
from cavity.estimators.rows import Data, with_intercept
from cavity.gaussians.affine import Change
from cavity.losses import Loss
from cavity.terms.prior import Prior, upper_of

# Predictors that are computed at once, of rows times points: 32 MB.
_AT_ONCE = 1 << 22
# Shape of the tail of the weights below which their means have a variance, and weighted deviations can be believed.
_BELIEVED = 0.5
# Share by which a deviation may be off, its Monte Carlo error included, and the posterior still be called right.
_RIGHT = 0.1
# Standard deviations by which a mean may be off.
_FAR = 0.2
# Split potential scale reduction at which chains agree.
_AGREE = 1.01
# More chains need more draws to agree, which each of them must have on its own; fewer take longer per draw.
_CHAINS = 8


@dataclass(frozen=True, slots=True, eq=False)
class RowDensity:
    """Logarithm of the prior times the likelihood of rows, at points ``(n, dim)`` of the coefficients that are kept."""

    loss: Loss
    rows: Any
    targets: FloatArray
    weights: FloatArray
    offset: FloatArray | None
    prior: Prior

    def __call__(self, points: FloatArray) -> FloatArray:
        """One number per point, up to a constant."""
        upper = upper_of(self.prior)
        away = upper @ points.T + upper.T @ points.T - upper.diagonal()[:, None] * points.T
        found = points @ self.prior.shift - 0.5 * np.einsum("dn,nd->n", away, points)
        count = self.prior.dim // self.rows.shape[1]
        length = max(1, _AT_ONCE // (count * max(self.rows.shape[0], 1)))
        for i in range(0, len(points), length):
            found[i : i + length] -= self._cost(points[i : i + length], count)
        return np.asarray(found)

    def _cost(self, points: FloatArray, count: int) -> FloatArray:
        z = np.asarray(self.rows @ points.reshape(-1, self.rows.shape[1]).T).T
        if hasattr(self.loss, "predictors"):
            z = np.moveaxis(z.reshape(len(points), count, -1), 1, 2)
            if self.offset is not None:
                z = z + self.offset[:, None] * np.eye(1, count)
        elif self.offset is not None:
            z = z + self.offset
        return np.asarray(self.loss.value(self.targets, z) @ self.weights)


def densities(fitted: Fitted, data: Data) -> list[RowDensity]:
    """Posteriors of rows that were checked, one per linear predictor or one of all together."""
    if fitted.is_joint:
        data = fitted.targets.of_joint(data)[1]
    X = fitted.columns.standardised(data.X)
    X = with_intercept(X) if fitted.design.intercept else X
    weights = np.ones(X.shape[0]) if data.weights is None else data.weights
    each = zip(data.targets, fitted.priors, strict=True)
    return [RowDensity(fitted.loss, X, t, weights, data.offset, prior) for t, prior in each]


class _Public:
    """Coefficients as users see them, from those that are kept: of all predictors one after the other."""

    def __init__(self, fitted: Fitted) -> None:
        self.fitted, self.posterior = fitted, fitted.posterior
        self.change = Change(*fitted.columns, fitted.design.intercept, fitted.design.effects)
        self.width = fitted.design.width + int(fitted.design.intercept)

    def coefficients(self, kept: list[FloatArray]) -> FloatArray:
        """Coefficients ``(..., predictors, columns)``, the intercept last, of points of every posterior."""
        shape, parts = kept[0].shape[:-1], []
        for points in kept:
            flat = points.reshape(-1, points.shape[-1])
            for i in range(0, flat.shape[1], self.width):
                own = flat[:, i : i + self.width].T
                parts.append(own if self.change.is_identity else self.change.coefficients(own))
        found = np.stack(parts)  # predictors, columns, points
        if self.fitted.is_joint:
            found = np.tensordot(self.posterior.mixing, found, axes=1)
        unit, offset = self.posterior.units
        found = unit[:, :, None] * found
        found[:, self.fitted.design.width :] += offset[:, :, None]
        return np.asarray(np.moveaxis(found, 2, 0).reshape(*shape, *found.shape[:2]))

    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Means and deviations of EP's posterior given the hyperparameters."""
        given: Any = self.posterior.given
        each = marginals(given[0], self.posterior.mixing) if self.fitted.is_joint else given
        unit, offset = self.posterior.units
        means = unit * np.array([one.mean for one in each])
        means[:, self.fitted.design.width :] += offset
        return means, unit * np.sqrt(np.array([one.variance for one in each]))


@dataclass(frozen=True, slots=True, eq=False)
class PosteriorCheck:
    """Whether EP's posterior is right, by draws from it that are weighted by the exact one.

    Attributes
    ----------
    shape
        Shape k of the tail of the weights: below 0.5 they can be believed.
    effective
        Number of exact draws that are worth as much.
    names
        Names of the coefficients, those of one predictor after the other.
    shifts, ratios
        Per coefficient, distance of EP's mean from the weighted one in standard deviations, and EP's deviation over
        the weighted one.
    error
        Monte Carlo error of a ratio.
    """

    shape: float
    effective: float
    names: tuple[str, ...]
    shifts: FloatArray
    ratios: FloatArray
    error: float

    @property
    def is_believed(self) -> bool:
        """Whether the weights can be believed."""
        return self.shape < _BELIEVED

    @property
    def is_right(self) -> bool:
        """Whether means and deviations are right to a tenth of a deviation."""
        return (
            self.is_believed and self.worst + 2.0 * self.error <= _RIGHT and float(np.max(np.abs(self.shifts))) <= 0.2
        )

    @property
    def worst(self) -> float:
        """Largest share by which a deviation is off."""
        return float(np.max(np.abs(self.ratios - 1.0)))

    def __str__(self) -> str:
        if not self.is_believed:
            return (
                f"Not known (k = {self.shape:.2f}): the exact posterior is too far from a Gaussian for weighted draws. "
                "Draw from it: model.sample(X, y)"
            )
        if self.is_right:
            return (
                f"Means and deviations are right to {100.0 * max(self.worst, self.error):.0f} % (k = {self.shape:.2f})"
            )
        small = int(np.sum(self.ratios < 1.0 - _RIGHT + 2.0 * self.error))
        far = int(np.sum(np.abs(self.shifts) > _FAR))
        worst = int(np.argmax(np.abs(self.ratios - 1.0)))
        return (
            f"The deviations of {small} of {self.ratios.size} coefficients are too small, the means of {far} too far "
            f"off; {self.names[worst]} has {self.ratios[worst]:.2f} of its deviation (k = {self.shape:.2f}). "
            "Draw from the exact posterior: model.sample(X, y)"
        )


def check(fitted: Fitted, data: Data, draws: int, rng: np.random.Generator, names: tuple[str, ...]) -> PosteriorCheck:
    """Weight draws from EP's posterior by the exact one.

    Parameters
    ----------
    fitted, data
        A model, and the rows that it was fitted to.
    draws
        Number of draws.
    rng
        Random numbers.
    names
        Names of the coefficients.
    """
    public = _Public(fitted)
    # A twentieth wider, so that tails which are heavier than the Gaussian's are visited.
    found = [
        weighted_draws(density, gaussian, draws, rng, widening=1.05)
        for density, gaussian in zip(densities(fitted, data), fitted.posteriors, strict=True)
    ]
    points = public.coefficients([one.points for one in found])
    logs = [one.log_weights for one in found]
    weights = [np.exp(logs[k if len(logs) == points.shape[1] else 0]) for k in range(points.shape[1])]
    mean = np.stack([w @ points[:, k] for k, w in enumerate(weights)])
    std = np.sqrt(np.stack([w @ np.square(points[:, k] - mean[k]) for k, w in enumerate(weights)]))
    ep_mean, ep_std = public.moments()
    effective = min(one.effective for one in found)
    return PosteriorCheck(
        max(one.shape for one in found),
        effective,
        names,
        ((ep_mean - mean) / std).ravel(),
        (ep_std / std).ravel(),
        float(1.0 / np.sqrt(2.0 * effective)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class ExactDraws:
    """Draws from the exact posterior, in units of the targets.

    Attributes
    ----------
    coefficients
        Draws ``(chains, draws, predictors, columns)``, the intercept last.
    names
        Names of the coefficients, those of one predictor after the other.
    effective, r_hat
        Per coefficient, number of independent draws that are worth as much, and potential scale reduction.
    seconds
        Time that was taken.
    """

    coefficients: FloatArray
    names: tuple[str, ...]
    effective: FloatArray
    r_hat: FloatArray
    seconds: float

    @property
    def flat(self) -> FloatArray:
        """All draws, ``(draws, coefficients)``, in the order of the names."""
        return self.coefficients.reshape(-1, len(self.names))

    @property
    def mean(self) -> FloatArray:
        """Means of the coefficients, in the order of the names."""
        return np.asarray(np.mean(self.flat, axis=0))

    @property
    def std(self) -> FloatArray:
        """Standard deviations of the coefficients."""
        return np.asarray(np.std(self.flat, axis=0))

    def quantiles(self, q: Any) -> FloatArray:
        """Quantiles of the coefficients.

        Parameters
        ----------
        q
            One probability, or several.
        """
        return np.asarray(np.quantile(self.flat, q, axis=0))

    def __str__(self) -> str:
        total = len(self.flat)
        return (
            f"{total} draws of {len(self.names)} coefficients in {self.seconds:.1f} s: at least "
            f"{np.min(self.effective):.0f} effective ones, R-hat at most {np.max(self.r_hat):.3f}"
        )


def sample(
    fitted: Fitted, data: Data, draws: int, max_seconds: float, rng: np.random.Generator, names: tuple[str, ...]
) -> ExactDraws:
    """Draw from the exact posterior by elliptical slices around EP's.

    Chains are twice as long with every try, until every coefficient has the effective draws asked for.

    Parameters
    ----------
    fitted, data
        A model, and the rows that it was fitted to.
    draws
        Effective draws of every coefficient at least.
    max_seconds
        When to stop with what there is.
    rng
        Random numbers.
    names
        Names of the coefficients.
    """
    public, start, steps = _Public(fitted), time.monotonic(), 2 * draws
    both = list(zip(densities(fitted, data), fitted.posteriors, strict=True))
    while True:
        began = time.monotonic()
        kept = [elliptical_slices(f, q, steps, rng, chains=_CHAINS, widening=1.1).chains for f, q in both]
        coefficients = public.coefficients(kept)
        flat = coefficients.reshape(*coefficients.shape[:2], -1)
        effective = np.array([effective_draws(column) for column in np.moveaxis(flat, 2, 0)])
        reduction = np.array([r_hat(column) for column in np.moveaxis(flat, 2, 0)])
        now = time.monotonic()
        enough = float(np.min(effective)) >= draws and float(np.max(reduction)) < _AGREE
        if enough or now - start + 2.0 * (now - began) > max_seconds:
            break
        steps *= 2
    found = ExactDraws(coefficients, names, effective, reduction, now - start)
    if not enough:
        warnings.warn(f"sample stopped by max_seconds: {found}", ConvergenceWarning, stacklevel=3)
    return found
