"""Scores of regressions, each by the loss that the model is for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy

from cavity import losses
from cavity.losses import Loss
from cavity.losses.joint import spread_log_density
from cavity.losses.noise import log_normalizer
from cavity.moments import tilts

FloatArray = NDArray[np.float64]
Score = Callable[[Any, Any, Any, Any], Any]


def score_of(loss: Loss, y: ArrayLike | None, predicted: FloatArray, weights: ArrayLike | None) -> float:
    """Share of the loss of a constant prediction that is saved."""
    score = next((score for kind, score in _SCORES.items() if isinstance(loss, kind)), _r2)
    return float(score(loss, y, predicted, weights))


def log_densities(model: Any, X: Any, y: FloatArray, offset: Any = None) -> FloatArray:
    """Logarithm of the density of every target under a regressor, its coefficients integrated out.

    A linear spread is integrated out by a rule of 15 nodes; the predictor as in EP.
    """
    rows, unit = model._checked_for_prediction(X), model.y_scale_
    t = (y - model.y_offset_) / unit
    if model._is_spread:
        mean, variance = model._spread_predictors(rows, offset)
        return spread_log_density(mean, variance, t) - np.log(unit)
    mean, variance = (part[0] for part in model._latent(rows, offset))
    return np.asarray(tilts(model._loss, t, mean, variance).log_mass - log_normalizer(model._loss, t) - np.log(unit))


def accuracy(y: Any, labels: Any, weights: Any) -> float:
    """Share of labels that are as predicted."""
    return float(_metric("accuracy_score")(y, labels, sample_weight=weights))


def _metric(name: str) -> Any:
    # Loaded with the first score: sklearn.metrics brings preprocessing and more.
    return getattr(import_module("sklearn.metrics"), name)


def _r2(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("r2_score")(y, predicted, sample_weight=weights)


def _absolute(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_absolute_error_score")(y, predicted, sample_weight=weights)


def _pinball(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_pinball_score")(y, predicted, sample_weight=weights, alpha=loss.quantile)


def _poisson(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_tweedie_score")(y, _positive(predicted), sample_weight=weights, power=1)


def _gamma(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    return _metric("d2_tweedie_score")(y, _positive(predicted), sample_weight=weights, power=2)


def _negative_binomial(loss: Any, y: Any, predicted: Any, weights: Any) -> Any:
    counts, alpha = np.asarray(y, dtype=np.float64), loss.dispersion
    constant = np.full(counts.shape, np.average(counts, weights=weights))

    def deviance(mean: FloatArray) -> float:
        excess = xlogy(counts, counts / mean) - (counts + 1.0 / alpha) * np.log1p(
            alpha * (counts - mean) / (1.0 + alpha * mean)
        )
        return float(np.average(excess, weights=weights))

    least = deviance(_positive(constant))
    return 1.0 - deviance(_positive(predicted)) / least if least > 0.0 else np.nan


def _positive(predicted: Any) -> FloatArray:
    """Means that are numbers above zero."""
    limits = np.finfo(np.float64)
    return np.clip(predicted, limits.tiny, np.sqrt(limits.max))


_SCORES: dict[type, Score] = {
    losses.Absolute: _absolute,
    losses.Quantile: _pinball,
    losses.Poisson: _poisson,
    losses.Gamma: _gamma,
    losses.NegativeBinomial: _negative_binomial,
}

__all__ = ["accuracy", "log_densities", "score_of"]
