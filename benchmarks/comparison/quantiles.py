"""Quantile: three quantiles of skewed targets whose spread grows with the features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import QuantileRegressor

from benchmarks.comparison import nuts
from benchmarks.comparison.core import TAILS, Entry, Prediction, Problem, Task, around, of_draws, with_constant
from cavity import EPRegressor

ROWS, COLUMNS, NEW, SETS = 1000, 5, 5000, 5
LEVELS = (TAILS[0], 0.5, TAILS[1])
SHAPE = 2.0  # of the gamma distribution of the noise
Solve = Callable[[Problem], Prediction]


def load(quick: bool) -> list[Problem]:
    """Several data sets, as each has few coefficients."""
    return [simulated(0, 100, 200)] if quick else [simulated(seed, ROWS, NEW) for seed in range(SETS)]


def simulated(seed: int, rows: int, new: int) -> Problem:
    """Features in [0, 1], noise of a gamma distribution times a linear spread: every quantile is linear.

    The truth is that of the slopes of the three quantiles.
    """
    rng = np.random.default_rng(seed)
    X = rng.random((rows + new, COLUMNS))
    slopes, growth = rng.standard_normal(COLUMNS), rng.random(COLUMNS)
    noise = stats.gamma(SHAPE)
    y = X @ slopes + (0.2 + X @ growth) * (noise.rvs(rows + new, random_state=rng) - noise.mean()) / noise.std()
    centred = (noise.ppf(LEVELS) - noise.mean()) / noise.std()
    truth = np.stack([slopes + q * growth for q in centred])
    return Problem(X[:rows], y[:rows], X[rows:], y[rows:], truth)


def pinball(problem: Problem, quantiles: Any) -> float:
    """Mean pinball loss of the three quantiles."""
    above = problem.y_new[:, None] - np.asarray(quantiles)
    return float(np.mean(np.maximum(np.array(LEVELS) * above, (np.array(LEVELS) - 1.0) * above)))


def _three(fit: Callable[[Problem, float], tuple[Any, Any]]) -> Solve:
    """One fit per quantile: its predictions, and intervals of its slopes or None."""

    def solve(problem: Problem) -> Prediction:
        found = [fit(problem, level) for level in LEVELS]
        quantiles = np.stack([values for values, _ in found], axis=1)
        slopes = None
        if found[0][1] is not None:
            slopes = tuple(np.stack([interval[k] for _, interval in found]) for k in range(2))
        return Prediction(quantiles, slopes, (quantiles[:, 0], quantiles[:, 2]))

    return solve


def _cavity(problem: Problem, level: float) -> tuple[Any, Any]:
    model = EPRegressor(loss="quantile", quantile=level).fit(problem.X, problem.y)
    return model.predict(problem.X_new), around(model.coef_, model.coef_std_)


def _spread(problem: Problem) -> Prediction:
    """A Gaussian whose log deviation is linear: no quantile of its own, so no slopes."""
    model = EPRegressor(loss="normal", scale="linear").fit(problem.X, problem.y)
    quantiles = model.predict(problem.X_new, quantile=list(LEVELS))
    return Prediction(quantiles, None, (quantiles[:, 0], quantiles[:, 2]))


def _sklearn(make: Callable[[float], Any]) -> Solve:
    return _three(lambda problem, level: (make(level).fit(problem.X, problem.y).predict(problem.X_new), None))


def _statsmodels(**options: str) -> Solve:
    def fit(problem: Problem, level: float) -> tuple[Any, Any]:
        from statsmodels.regression.quantile_regression import QuantReg

        found = QuantReg(problem.y, with_constant(problem.X)).fit(q=level, **options)
        low, high = np.asarray(found.conf_int(0.1))[:-1].T
        return found.predict(with_constant(problem.X_new)), (low, high)

    return _three(fit)


def _river(rate: float, passes: int) -> Solve:
    def fit(problem: Problem, level: float) -> tuple[Any, Any]:
        from river import linear_model, optim

        model = linear_model.LinearRegression(
            optimizer=optim.SGD(rate), loss=optim.losses.Quantile(level), intercept_lr=rate
        )
        rows = [dict(enumerate(row)) for row in problem.X.tolist()]
        for _ in range(passes):
            for row, target in zip(rows, problem.y.tolist(), strict=True):
                model.learn_one(row, target)
        return np.array([model.predict_one(dict(enumerate(row))) for row in problem.X_new.tolist()]), None

    return _three(fit)


def _bandit(problem: Problem) -> Prediction:
    """Gaussian noise of one unknown deviation; quantiles of draws of targets."""
    import bayesianbandits

    model = bayesianbandits.NormalInverseGammaRegressor().fit(with_constant(problem.X), problem.y)
    new = with_constant(problem.X_new)
    covariance, noise = np.linalg.inv(np.asarray(model.cov_inv_)), stats.t(2.0 * model.a_)
    std = np.sqrt(model.b_ / model.a_ * (1.0 + np.sum((new @ covariance) * new, axis=1)))
    quantiles = (new @ model.coef_)[:, None] + std[:, None] * noise.ppf(LEVELS)
    return Prediction(quantiles, None, (quantiles[:, 0], quantiles[:, 2]))


def _model(problem: Problem) -> Any:
    """Three quantiles side by side, each with asymmetric Laplace noise of a scale that is found."""
    import pymc

    with pymc.Model() as model:
        for k, level in enumerate(LEVELS):
            slopes = pymc.Normal(f"slopes_{k}", 0.0, 5.0, shape=problem.X.shape[1])
            mean = problem.X @ slopes + pymc.Normal(f"level_{k}", 0.0, 5.0)
            scale = pymc.HalfNormal(f"scale_{k}", 1.0)
            pymc.AsymmetricLaplace(f"y_{k}", b=1.0 / scale, q=level, mu=mean, observed=problem.y)
    return model


def _read(problem: Problem, draws: dict[str, Any]) -> Prediction:
    slopes = [draws[f"slopes_{k}"] for k in range(len(LEVELS))]
    means = [np.mean(s, axis=0) for s in slopes]
    quantiles = np.stack([problem.X_new @ m + np.mean(draws[f"level_{k}"]) for k, m in enumerate(means)], axis=1)
    both = [of_draws(s) for s in slopes]
    interval = np.stack([low for low, _ in both]), np.stack([high for _, high in both])
    return Prediction(quantiles, interval, (quantiles[:, 0], quantiles[:, 2]))


_QUANTREG = ("statsmodels.regression.quantile_regression",)
TASK = Task(
    "quantile",
    "Quantile: five simulated sets, 1,000 x 5, spread grows with the features",
    "pinball loss",
    load,
    pinball,
    (
        Entry("cavity", "EPRegressor", 'loss="quantile"', ("cavity",), _three(_cavity)),
        Entry("cavity", "EPRegressor", 'loss="normal", scale="linear"', ("cavity",), _spread),
        Entry("scikit-learn", "QuantileRegressor", "defaults", (), _sklearn(lambda q: QuantileRegressor(quantile=q))),
        Entry(
            "scikit-learn",
            "QuantileRegressor",
            "alpha=0",
            (),
            _sklearn(lambda q: QuantileRegressor(quantile=q, alpha=0.0)),
        ),
        Entry(
            "scikit-learn",
            "GradientBoostingRegressor",
            'loss="quantile"',
            (),
            _sklearn(lambda q: GradientBoostingRegressor(loss="quantile", alpha=q, random_state=0)),
        ),
        Entry("statsmodels", "QuantReg", "defaults", _QUANTREG, _statsmodels()),
        Entry("statsmodels", "QuantReg", "iid errors", _QUANTREG, _statsmodels(vcov="iid")),
        Entry("river", "LinearRegression", "quantile loss, SGD 0.01, one pass", ("river",), _river(0.01, 1)),
        Entry("river", "LinearRegression", "quantile loss, SGD 0.01, 20 passes", ("river",), _river(0.01, 20)),
        Entry("bayesianbandits", "NormalInverseGammaRegressor", "defaults", ("bayesianbandits",), _bandit),
        *nuts.entries("asymmetric Laplace", _model, _read),
    ),
)
