"""Posterior draws, predictive draws and pointwise log likelihoods in the form of ArviZ."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.utils import check_random_state

from cavity._checks import whole_number
from cavity.estimators._design import checked_offset
from cavity.estimators._posteriors import draws_of
from cavity.losses.joint import Normal
from cavity.losses.noise import log_normalizer, predictive_quantile

FloatArray = NDArray[np.float64]


def inference_data(model: Any, X: Any, y: Any, n: int, random_state: Any, offset: Any) -> Any:
    """Make ArviZ's InferenceData; it is imported here."""
    try:
        arviz = import_module("arviz")
    except ModuleNotFoundError as error:
        raise ImportError("draws for ArviZ need arviz: pip install 'arviz<1'") from error
    if X is None and y is not None:
        raise ValueError("y needs the rows X that it belongs to")
    n, rng = whole_number("n", n, least=1), check_random_state(random_state)
    seed = int(rng.randint(2**31 - 1))
    coef, intercept = model.sample_coef(n, seed, return_intercept=True)
    groups: dict[str, Any] = {"posterior": {"coef": coef[None], "intercept": intercept[None]}}
    if X is not None:
        part = _labels if hasattr(model, "classes_") else _targets
        # The same draws as above; what they predict is drawn from the generator, which goes on.
        new, log_density, observed = part(model, X, y, (n, seed, rng), offset)
        groups["posterior_predictive"] = {"y": new[None]}
        if y is not None:
            groups |= {"log_likelihood": {"y": log_density[None]}, "observed_data": {"y": observed}}
    return arviz.from_dict(**groups)


def _labels(model: Any, X: Any, y: Any, drawing: tuple[int, int, Any], offset: Any) -> tuple[Any, Any, Any]:
    n, seed, rng = drawing
    probabilities = model.predict_proba_samples(X, n, seed, offset=offset)
    chosen = rng.uniform(size=(*probabilities.shape[:2], 1))
    new = np.minimum(np.sum(np.cumsum(probabilities, axis=2) < chosen, axis=2), model.classes_.size - 1)
    if y is None:
        return new, None, None
    codes = np.asarray(model._codes(np.asarray(y), probabilities.shape[1]), dtype=np.intp)
    with np.errstate(divide="ignore"):
        return new, np.log(probabilities[:, np.arange(codes.size), codes]), codes


def _targets(model: Any, X: Any, y: Any, drawing: tuple[int, int, Any], offset: Any) -> tuple[Any, Any, Any]:
    """Draws of targets by inverting their distribution function, and log densities, in units of y."""
    n, seed, rng = drawing
    rows = model._checked_for_prediction(X)
    z = _predictors(model, rows, n, seed, offset)
    unit, center, loss = model.y_scale_, model.y_offset_, model._loss
    uniform = rng.uniform(1e-12, 1.0 - 1e-12, size=z.shape[:2])
    if isinstance(loss, Normal):
        new = z[..., 0] + np.exp(z[..., 1]) * ndtri(uniform)
    else:
        new = predictive_quantile(loss, z, np.zeros_like(z), uniform)
    if y is None:
        return center + unit * new, None, None
    observed = np.asarray(y, dtype=np.float64)
    t = (observed - center) / unit
    constant = np.full(t.shape, 0.5 * np.log(2.0 * np.pi)) if isinstance(loss, Normal) else log_normalizer(loss, t)
    density = -np.asarray(loss.value(t, z)) - constant - np.log(unit)
    return center + unit * new, density, observed


def _predictors(model: Any, rows: Any, n: int, seed: int, offset: Any) -> FloatArray:
    """Draws of the linear predictors of normalised targets, ``(n, rows)``; with a linear spread, of two each."""
    draws, width = np.moveaxis(draws_of(model, n, seed), 1, 0), model._width
    each = [np.asarray(rows @ part[:, :width].T).T + np.sum(part[:, width:], axis=1)[:, None] for part in draws]
    z = np.stack(each, axis=-1)
    known = checked_offset(offset, rows.shape[0])
    if known is not None:
        z[..., 0] += known / model.y_scale_
    return z if z.shape[-1] > 1 else z[..., 0]
