"""Gaussian processes: exact where a closed form exists, near the truth elsewhere, and behaved as scikit-learn asks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

import cavity
from cavity import EPClassifier, EPGaussianProcessClassifier, EPGaussianProcessRegressor, losses
from cavity.ep.processes import ProcessRows
from cavity.losses.joint import Softmax
from reference.mcmc import elliptical_slices

SMOOTH = ConstantKernel() * RBF()


@parametrize_with_checks(
    [
        EPGaussianProcessClassifier(SMOOTH, optimizer=None),
        EPGaussianProcessRegressor(),
        EPGaussianProcessRegressor(SMOOTH, loss="absolute", scale=0.5, optimizer=None),
    ]
)
def test_scikit_learn_is_content(estimator, check):
    check(estimator)


def wave(n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 6.0, (n, 1))
    return X, np.sin(2.0 * X[:, 0]), rng


def test_with_normal_noise_it_is_the_exact_regression():
    X, f, rng = wave()
    y = 5.0 + 3.0 * (f + 0.3 * rng.normal(size=len(f)))
    model = EPGaussianProcessRegressor(SMOOTH).fit(X, y)
    noise = WhiteKernel((model.scale_ / np.std(y)) ** 2)
    peer = GaussianProcessRegressor(model.kernel_ + noise, optimizer=None, normalize_y=True).fit(X, y)
    Z = np.linspace(-1.0, 7.0, 30)[:, None]
    for one, other in zip(model.predict(Z, return_std=True), peer.predict(Z, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    expected = peer.log_marginal_likelihood_value_ - len(y) * np.log(np.std(y))
    np.testing.assert_allclose(model.log_evidence_, expected, rtol=1e-8)
    searched = GaussianProcessRegressor(SMOOTH + WhiteKernel(), normalize_y=True, n_restarts_optimizer=2).fit(X, y)
    best = searched.log_marginal_likelihood_value_ - len(y) * np.log(np.std(y))
    assert model.log_evidence_ > best - 0.2  # the prior of the standard deviation takes a little


def sampled(K, y, draws=500):
    values, vectors = np.linalg.eigh(K)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    rng = np.random.default_rng(0)
    start = rng.standard_normal((32, len(K)))
    found = elliptical_slices(
        lambda u: -np.sum(np.logaddexp(0.0, -y * (u @ root.T)), axis=1), start, draws, 5, draws // 2, rng
    )
    return found.reshape(-1, len(K)) @ root.T


def test_functions_are_those_of_sampling():
    X, f, rng = wave(25)
    y = rng.random(25) < expit(3.0 * f)
    kernel = ConstantKernel(6.0) * RBF(0.8)
    model = EPGaussianProcessClassifier(kernel, optimizer=None, tol=1e-4).fit(X, y)
    mean, variance = model.latent_mean_and_variance(X)
    draws = sampled(kernel(X), 2.0 * y - 1.0)
    std = draws.std(axis=0)
    np.testing.assert_allclose((mean - draws.mean(axis=0)) / std, 0.0, atol=0.1)
    np.testing.assert_allclose(np.sqrt(variance) / std, 1.0, atol=0.06)


@pytest.mark.parametrize(
    "loss", [losses.Logistic(), losses.Hinge(), losses.Poisson(), losses.Huber(1.35, 0.4), Softmax(3)], ids=str
)
def test_the_gradient_of_the_evidence_is_that_of_differences(loss):
    X, f, rng = wave(30)
    targets = np.where(f > 0.0, 1.0, -1.0)
    if loss.targets == "counts":
        targets = rng.poisson(np.exp(f)).astype(float)
    elif loss.targets == "reals":
        targets = f + 0.3 * rng.normal(size=30)
    elif isinstance(loss, Softmax):
        targets = np.digitize(f, [-0.5, 0.5]).astype(float)
    rows = ProcessRows(loss, targets, 0.0, 500, 1e-8)

    def at(theta):
        K, slopes = SMOOTH.clone_with_theta(theta)(X, eval_gradient=True)
        return rows.fit(theta, K), slopes

    theta, small = np.array([0.4, -0.3]), 1e-3
    found, slopes = at(theta)
    gradient = found.gaussian.slopes(slopes)
    moves = small * np.eye(2)
    differences = [(at(theta + m)[0].log_evidence - at(theta - m)[0].log_evidence) / (2.0 * small) for m in moves]
    # The evidence of several predictors is not stationary in the sites: they are not matched moments under cavities.
    np.testing.assert_allclose(gradient, differences, rtol=0.05 if isinstance(loss, Softmax) else 1e-3, atol=1e-3)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_linear_kernel_is_the_linear_model(classes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = np.digitize(X @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=60), [0.0] if classes == 2 else [-0.5, 0.5])
    kernel = ConstantKernel(4.0) * DotProduct(0.0, "fixed")
    process = EPGaussianProcessClassifier(kernel, optimizer=None, tol=1e-6).fit(X, y)
    linear = EPClassifier(prior_variance=4.0, fit_intercept=False, tol=1e-6).fit(X, y)
    np.testing.assert_allclose(process.predict_proba(X), linear.predict_proba(X), atol=2e-3)
    np.testing.assert_allclose(process.log_evidence_, linear.log_evidence_, atol=1e-3)


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber", "quantile", "poisson", "negative_binomial", "gamma"])
def test_every_loss_finds_the_function_and_its_noise(loss):
    X, f, rng = wave(120)
    if loss in ("poisson", "negative_binomial"):
        y = rng.poisson(np.exp(1.5 + f)).astype(float)
    elif loss == "gamma":
        y = np.exp(f) * rng.gamma(8.0, 1.0 / 8.0, size=120)
    else:
        y = f + 0.3 * rng.normal(size=120)
    model = EPGaussianProcessRegressor(loss=loss).fit(X, y)
    assert model.status_.is_success
    predicted, std = model.predict(X, return_std=True)
    truth = {"poisson": np.exp(1.5 + f), "negative_binomial": np.exp(1.5 + f), "gamma": np.exp(f)}.get(loss, f)
    assert np.sqrt(np.mean((predicted - truth) ** 2)) < 0.35 * np.std(truth)
    low, high = model.predict(X, quantile=(0.05, 0.95)).T
    assert 0.8 < np.mean((y >= low) & (y <= high)) <= 1.0
    assert np.all(std > 0.0)
    assert np.all(model.predict(X, return_std="mean")[1] <= std + 1e-12)


def test_heavy_tails_do_not_bend_a_robust_function():
    X, f, rng = wave(100)
    y = f + 0.1 * rng.normal(size=100)
    y[::10] += 8.0
    models = [EPGaussianProcessRegressor(loss=loss).fit(X, y) for loss in ("squared", "huber")]
    errors = [np.mean(np.abs(model.predict(X) - f)) for model in models]
    assert errors[1] < 0.5 * errors[0]


def test_draws_of_functions_have_the_moments_of_the_prediction():
    X, f, rng = wave(50)
    model = EPGaussianProcessRegressor(loss="absolute").fit(X, f + 0.2 * rng.normal(size=50))
    Z = np.linspace(0.0, 8.0, 7)[:, None]
    draws = model.sample_y(Z, 5000, random_state=0)
    mean, std = model.predict(Z, return_std="mean")
    assert draws.shape == (7, 5000)
    np.testing.assert_allclose((draws.mean(axis=1) - mean) / std, 0.0, atol=0.06)
    np.testing.assert_allclose(draws.std(axis=1) / std, 1.0, atol=0.05)


def test_more_classes_than_one_posterior_holds_are_taken_one_by_one():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2)) + np.repeat(6.0 * np.array([[i % 3, i // 3] for i in range(6)]), 15, axis=0)
    y = np.repeat(list("abcdef"), 15)
    model = EPGaussianProcessClassifier().fit(X, y)
    assert len(model.kernel_) == 6
    assert model.score(X, y) > 0.95
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))


def test_separable_classes_have_a_bounded_function():
    X = np.linspace(-1.0, 1.0, 40)[:, None]
    model = EPGaussianProcessClassifier(SMOOTH).fit(X, X[:, 0] > 0.0)
    assert np.sqrt(model.kernel_.k1.constant_value) < 30.0
    assert np.all(np.isfinite(model.predict_log_proba(X)))


def test_pickles_predict_the_same_and_files_say_what_to_do(tmp_path):
    X, f, _ = wave(30)
    model = EPGaussianProcessClassifier(SMOOTH).fit(X, f > 0.0)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    with pytest.raises(TypeError, match=r"joblib\.dump can"):
        cavity.save(model, tmp_path / "model")


BAD = [
    (EPGaussianProcessClassifier, {"kernel": "rbf"}, "kernel must be a kernel of sklearn.gaussian_process.kernels"),
    (EPGaussianProcessClassifier, {"loss": "squared"}, "loss must be"),
    (EPGaussianProcessClassifier, {"optimizer": "newton"}, "optimizer must be 'fmin_l_bfgs_b' or None"),
    (EPGaussianProcessClassifier, {"max_iter": 0}, "max_iter must be"),
    (EPGaussianProcessRegressor, {"scale": -1.0}, "scale must be positive"),
    (EPGaussianProcessRegressor, {"scale": "linear"}, "scale must be a positive number or 'auto'"),
    (EPGaussianProcessRegressor, {"optimizer": None}, "scale must be a number where optimizer is None"),
    (EPGaussianProcessRegressor, {"loss": "quantile", "quantile": 1.5}, "quantile must"),
    (EPGaussianProcessRegressor, {"loss": "poisson"}, "y must be zero or more"),
]


@pytest.mark.parametrize(("kind", "parameters", "message"), BAD)
def test_bad_parameters_are_named(kind, parameters, message):
    X, f, _ = wave(20)
    with pytest.raises(ValueError, match=message):
        kind(**parameters).fit(X, f > 0.0 if kind is EPGaussianProcessClassifier else f)


def test_too_many_rows_are_refused_with_what_to_do():
    X = np.arange(6001.0)[:, None]
    with pytest.raises(ValueError, match="at most 6000, got 6001 rows of 1 functions; use fewer rows"):
        EPGaussianProcessRegressor().fit(X, X[:, 0])
    with pytest.raises(NotFittedError):
        clone(EPGaussianProcessRegressor()).predict(X)
