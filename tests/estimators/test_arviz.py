"""Draws for ArviZ: its estimates work on them, and agree with what the model says itself."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from estimator_cases import line, three_classes, two_classes

from cavity import EPClassifier, EPRegressor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its coming version
    arviz = pytest.importorskip("arviz")


@pytest.mark.parametrize("data", [two_classes, three_classes])
def test_classes(data):
    X, y = data()
    model = EPClassifier().fit(X, y)
    found = model.to_arviz(X, y, n=2000, random_state=0)
    count = model.classes_.size
    assert found.posterior["coef"].shape == ((1, 2000, 4) if count == 2 else (1, 2000, 3, 4))
    np.testing.assert_allclose(found.posterior["coef"].mean(("chain", "draw")), np.squeeze(model.coef_), atol=0.2)
    shares = [np.mean(found.posterior_predictive["y"].values == k, axis=(0, 1)) for k in range(count)]
    np.testing.assert_allclose(np.transpose(shares), model.predict_proba(X), atol=0.05)
    chosen = model.predict_proba(X)[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    mean = np.log(np.mean(np.exp(found.log_likelihood["y"].values), axis=(0, 1)))
    np.testing.assert_allclose(mean, np.log(chosen), atol=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isfinite(arviz.loo(found).elpd_loo)


@pytest.mark.parametrize("loss", ["squared", "huber", "quantile", "poisson", "linear"])
def test_targets(loss):
    X, y = line(n=60)
    y = np.random.default_rng(0).poisson(np.exp(0.3 * X[:, 0])) if loss == "poisson" else 5.0 + 2.0 * y
    choices = {"loss": "normal", "scale": "linear"} if loss == "linear" else {"loss": loss}
    model = EPRegressor(**choices).fit(X, y)
    found = model.to_arviz(X, y, n=400, random_state=0)
    center, std = model.predict(X, return_std=True)
    draws = found.posterior_predictive["y"].values[0]
    if loss != "quantile":  # whose mean is not what it predicts
        np.testing.assert_array_less(np.abs(draws.mean(axis=0) - center), 6.0 * std / np.sqrt(400) + 1e-9)
        np.testing.assert_allclose(draws.std(axis=0), std, rtol=0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimate = arviz.loo(found).elpd_loo
    # Leave-one-out is near the evidence per row, both being densities in units of y.
    assert estimate == pytest.approx(model.log_evidence_, abs=0.25 * len(y))


def test_predictions_belong_to_the_draws_beside_them():
    """The log likelihood of every draw is that of its own coefficients, and the noise does not follow these."""
    X, y = line(n=60)
    model = EPRegressor().fit(X, y)
    found = model.to_arviz(X, y, n=4000, random_state=0)
    coef, intercept = found.posterior["coef"].values[0], found.posterior["intercept"].values[0]
    means = coef @ X.T + intercept[:, None]
    noise = found.posterior_predictive["y"].values[0] - means
    density = -0.5 * ((y - means) / model.scale_) ** 2 - np.log(np.sqrt(2.0 * np.pi) * model.scale_)
    np.testing.assert_allclose(found.log_likelihood["y"].values[0], density, rtol=1e-6)
    each = [np.corrcoef(noise[:, i], coef[:, j])[0, 1] for i in range(len(y)) for j in range(coef.shape[1])]
    assert np.std(each) == pytest.approx(1.0 / np.sqrt(4000), rel=0.2)
    with pytest.raises(ValueError, match="offset must hold one finite number"):
        model.to_arviz(X, y, offset=[1.0, 2.0])


def test_parts_can_be_left_out_and_mistakes_are_named():
    X, y = line()
    model = EPRegressor().fit(X, y)
    assert model.to_arviz(n=5).groups() == ["posterior"]
    assert "log_likelihood" not in model.to_arviz(X, n=5).groups()
    with pytest.raises(ValueError, match="y needs the rows X"):
        model.to_arviz(y=y)
