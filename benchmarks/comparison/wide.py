"""Wide: a regression with three times as many columns as rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, WhiteKernel
from sklearn.linear_model import ARDRegression, BayesianRidge, LassoCV, RidgeCV

from benchmarks.comparison import nuts
from benchmarks.comparison.core import (
    Entry,
    Prediction,
    Problem,
    Task,
    around,
    negative_log_density,
    standardised,
    with_constant,
)
from cavity import EPRegressor

ROWS, COLUMNS, NEW, SETS = 200, 600, 1000, 3
# Columns share so many hidden factors; this part of the variance of targets is noise.
FACTORS, NOISE = 20, 0.2
Solve = Callable[[Problem], Prediction]


def load(quick: bool) -> list[Problem]:
    """Several data sets: the variances that peers find from one of them are uncertain."""
    return [simulated(0, 40, 60, 100)] if quick else [simulated(seed, ROWS, COLUMNS, NEW) for seed in range(SETS)]


def simulated(seed: int, rows: int, columns: int, new: int) -> Problem:
    """Correlated columns, coefficients of a Laplace distribution: many small, some large; targets of variance one."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows + new, FACTORS)) @ rng.standard_normal((FACTORS, columns)) / np.sqrt(FACTORS)
    X += rng.standard_normal(X.shape)
    X, X_new = standardised(X[:rows], X[rows:])
    slopes = rng.laplace(size=columns)
    slopes *= np.sqrt(1.0 - NOISE) / np.std(np.concatenate([X, X_new]) @ slopes)
    y, y_new = (A @ slopes + np.sqrt(NOISE) * rng.standard_normal(A.shape[0]) for A in (X, X_new))
    return Problem(X, y, X_new, y_new, slopes)


def _cavity(problem: Problem) -> Prediction:
    model = EPRegressor().fit(problem.X, problem.y)
    return _gaussian(model.predict(problem.X_new, return_std=True), model.coef_, model.coef_std_)


def _gaussian(new: Any, coef: Any = None, std: Any = None) -> Prediction:
    return Prediction(new, None if coef is None else around(coef, std), around(*new))


def _evidence(model: Any) -> Solve:
    """Peers that find variances by the evidence; a column that ARD leaves out has the interval of one point."""

    def solve(problem: Problem) -> Prediction:
        model.fit(problem.X, problem.y)
        kept = getattr(model, "lambda_", None)
        inside = np.full(problem.X.shape[1], True) if np.ndim(kept) == 0 else kept < model.threshold_lambda
        std = np.zeros(inside.size)
        std[inside] = np.sqrt(np.diag(model.sigma_))
        return _gaussian(model.predict(problem.X_new, return_std=True), model.coef_, std)

    return solve


def _process(model: Any) -> Solve:
    return lambda problem: _gaussian(model.fit(problem.X, problem.y).predict(problem.X_new, return_std=True))


def _cross_validated(model: Any, error: Callable[[Any], float]) -> Solve:
    """No intervals; for the density, the deviation is the root of the cross-validated error."""

    def solve(problem: Problem) -> Prediction:
        mean = model.fit(problem.X, problem.y).predict(problem.X_new)
        return Prediction((mean, np.full(mean.size, np.sqrt(error(model)))))

    return solve


def _bandit(name: str, **options: float) -> Solve:
    """A column of ones stands for the intercept."""

    def solve(problem: Problem) -> Prediction:
        import bayesianbandits

        model = getattr(bayesianbandits, name)(**options).fit(with_constant(problem.X), problem.y)
        covariance = np.linalg.inv(np.asarray(model.cov_inv_))
        new = with_constant(problem.X_new)
        std = np.sqrt(np.sum((new @ covariance) * new, axis=1) + 1.0 / _precision(model))
        return _gaussian((new @ model.coef_, std), model.coef_[:-1], np.sqrt(np.diag(covariance))[:-1])

    return solve


def _precision(model: Any) -> float:
    return float(getattr(model, "beta_", model.beta))


_LINEAR = ConstantKernel(1e-3) * DotProduct() + WhiteKernel()
TASK = Task(
    "wide",
    "Wide: three simulated regressions, 200 x 600",
    "negative log density",
    load,
    negative_log_density,
    (
        Entry("cavity", "EPRegressor", "defaults", ("cavity",), _cavity),
        Entry("scikit-learn", "BayesianRidge", "defaults", (), _evidence(BayesianRidge())),
        Entry(
            "scikit-learn", "BayesianRidge", f"lambda_init={COLUMNS}", (), _evidence(BayesianRidge(lambda_init=COLUMNS))
        ),
        Entry("scikit-learn", "ARDRegression", "defaults", (), _evidence(ARDRegression())),
        Entry(
            "scikit-learn",
            "RidgeCV",
            "50 values",
            (),
            _cross_validated(RidgeCV(np.logspace(-2, 5, 50)), lambda model: -model.best_score_),
        ),
        Entry(
            "scikit-learn",
            "LassoCV",
            "defaults",
            (),
            _cross_validated(LassoCV(max_iter=10_000), lambda model: float(np.min(np.mean(model.mse_path_, axis=1)))),
        ),
        Entry("scikit-learn", "GaussianProcessRegressor", "defaults", (), _process(GaussianProcessRegressor())),
        Entry(
            "scikit-learn",
            "GaussianProcessRegressor",
            "linear kernel and noise, fitted",
            (),
            _process(GaussianProcessRegressor(_LINEAR, n_restarts_optimizer=3, random_state=0)),
        ),
        Entry(
            "bayesianbandits",
            "NormalRegressor",
            "precisions 1",
            ("bayesianbandits",),
            _bandit("NormalRegressor", alpha=1.0, beta=1.0),
        ),
        Entry(
            "bayesianbandits",
            "EmpiricalBayesNormalRegressor",
            "defaults",
            ("bayesianbandits",),
            _bandit("EmpiricalBayesNormalRegressor"),
        ),
        Entry(
            "bayesianbandits",
            "EmpiricalBayesNormalRegressor",
            f"alpha={COLUMNS}",
            ("bayesianbandits",),
            _bandit("EmpiricalBayesNormalRegressor", alpha=float(COLUMNS)),
        ),
        *nuts.entries("Gaussian, prior scale found", nuts.squared, nuts.moments),
    ),
)
