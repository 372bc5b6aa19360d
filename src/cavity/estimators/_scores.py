"""Scores of regressions, each by the loss that the model is for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy
from sklearn.metrics import d2_absolute_error_score, d2_pinball_score, d2_tweedie_score, r2_score

from cavity import losses
from cavity.losses import Loss
from cavity.moments import tilts
from cavity.noise import log_normalizer, spread_log_density

FloatArray = NDArray[np.float64]


def score_of(loss: Loss, y: Any, predicted: FloatArray, weights: ArrayLike | None) -> float:
    """Share of the loss of a constant prediction that is saved, as `EPRegressor.score` has it."""
    if isinstance(loss, losses.Absolute):
        found = d2_absolute_error_score(y, predicted, sample_weight=weights)
    elif isinstance(loss, losses.Quantile):
        found = d2_pinball_score(y, predicted, sample_weight=weights, alpha=loss.quantile)
    elif isinstance(loss, losses.Poisson | losses.Gamma):
        power = 1 if isinstance(loss, losses.Poisson) else 2
        found = d2_tweedie_score(y, _positive(predicted), sample_weight=weights, power=power)
    elif isinstance(loss, losses.NegativeBinomial):
        found = _negative_binomial(loss.dispersion, np.asarray(y, dtype=np.float64), predicted, weights)
    else:
        found = r2_score(y, predicted, sample_weight=weights)
    return float(found)


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


def _negative_binomial(alpha: float, counts: FloatArray, predicted: FloatArray, weights: Any) -> float:
    """Share of the deviance of the mean count that is saved."""

    def deviance(mean: Any) -> float:
        shrunk = np.log1p(alpha * (counts - mean) / (1.0 + alpha * mean))
        excess = xlogy(counts, counts / mean) - (counts + 1.0 / alpha) * shrunk
        return float(np.average(excess, weights=weights))

    least = deviance(_positive(np.average(counts, weights=weights)))
    return 1.0 - deviance(_positive(predicted)) / least if least > 0.0 else np.nan


def _positive(predicted: Any) -> FloatArray:
    """Means that are numbers above zero."""
    limits = np.finfo(np.float64)
    return np.clip(predicted, limits.tiny, np.sqrt(limits.max))
