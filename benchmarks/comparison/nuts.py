"""Posteriors by NUTS: PyMC's own sampler, nutpie's on the same model, and bambi, one chain after another.

Models have a prior whose scale is found with the coefficients. Code is compiled before time is taken.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from benchmarks.comparison.core import Entry, Prediction, Problem, of_draws

SEED = 0
# Draws per chain, four chains, after as many to adapt: the default. nutpie adapts in its own default, fewer.
# A smoke test takes less of both.
DRAWS = {"draws": 1000, "tune": 1000}
Build = Callable[[Problem], Any]
Read = Callable[[Problem, dict[str, Any]], Prediction]


def entries(title: str, build: Build, read: Read) -> tuple[Entry, Entry]:
    """One model by both samplers: PyMC at its defaults, and nutpie, which is the faster one."""
    return (
        Entry("PyMC", title, "NUTS, defaults", ("pymc",), _by_pymc(build, read), _sampled_briefly(build)),
        Entry("PyMC", title, "NUTS of nutpie", ("pymc", "nutpie"), _by_nutpie(build, read), _compiled(build)),
    )


def of_bambi(formula: str, family: str, read: Callable[[Problem, Any, Any], Prediction]) -> Entry:
    """A formula under the default priors and sampler; ``extra`` holds both tables."""

    def model_of(problem: Problem) -> Any:
        import bambi

        table = problem.extra[0].assign(y=problem.y)
        return bambi.Model(formula, table, family=family)

    def solve(problem: Problem) -> Prediction:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = model_of(problem)
            found = model.fit(**DRAWS, cores=1, random_seed=SEED, progressbar=False)
        return read(problem, model, found)

    def prepare(problem: Problem) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model_of(problem).fit(tune=2, draws=2, chains=1, cores=1, random_seed=SEED, progressbar=False)

    return Entry("bambi", formula, "defaults", ("bambi",), solve, prepare)


def _by_pymc(build: Build, read: Read) -> Callable[[Problem], Prediction]:
    def solve(problem: Problem) -> Prediction:
        import pymc

        with warnings.catch_warnings(), build(problem):
            warnings.simplefilter("ignore")
            found = pymc.sample(**DRAWS, cores=1, random_seed=SEED, progressbar=False, compute_convergence_checks=False)
        return read(problem, _draws(found))

    return solve


def _sampled_briefly(build: Build) -> Callable[[Problem], object]:
    """The compiled code is kept on disk, where the sampling that counts finds it."""

    def prepare(problem: Problem) -> object:
        import pymc

        with warnings.catch_warnings(), build(problem):
            warnings.simplefilter("ignore")
            return pymc.sample(2, tune=2, chains=1, cores=1, progressbar=False, compute_convergence_checks=False)

    return prepare


def _by_nutpie(build: Build, read: Read) -> Callable[[Problem], Prediction]:
    def solve(problem: Problem) -> Prediction:
        import nutpie

        found = nutpie.sample(
            _compiled(build)(problem), draws=DRAWS["draws"], chains=4, cores=1, seed=SEED, progress_bar=False
        )
        return read(problem, _draws(found))

    return solve


def _compiled(build: Build) -> Callable[[Problem], Any]:
    """The second time is faster: what all models share is compiled in the first."""

    def compile_(problem: Problem) -> Any:
        import nutpie

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return nutpie.compile_pymc_model(build(problem))

    return compile_


def _draws(found: Any) -> dict[str, Any]:
    """Draws of all chains by name, the first axis theirs."""
    stacked = found.posterior.stack(draw_=("chain", "draw"))
    return {name: np.moveaxis(stacked[name].values, -1, 0) for name in stacked.data_vars}


def logistic(problem: Problem) -> Any:
    """Two classes, or several by a softmax."""
    import pymc

    classes, d = int(np.max(problem.y)) + 1, problem.X.shape[1]
    with pymc.Model() as model:
        scale = pymc.HalfNormal("scale", 1.0)
        if classes == 2:
            slopes, level = pymc.Normal("slopes", 0.0, scale, shape=d), pymc.Normal("level", 0.0, 5.0)
            pymc.Bernoulli("y", logit_p=problem.X @ slopes + level, observed=problem.y)
        else:
            slopes = pymc.Normal("slopes", 0.0, scale, shape=(d, classes))
            level = pymc.Normal("level", 0.0, 5.0, shape=classes)
            pymc.Categorical("y", logit_p=problem.X @ slopes + level, observed=problem.y)
    return model


def probabilities(problem: Problem, draws: dict[str, Any]) -> Prediction:
    """Probabilities averaged over the draws."""
    slopes, level = draws["slopes"], draws["level"]
    if slopes.ndim == 2:
        return Prediction(np.mean(expit(slopes @ problem.X_new.T + level[:, None]), axis=0), of_draws(slopes))
    mean = np.zeros((problem.X_new.shape[0], slopes.shape[2]))
    for one, constant in zip(slopes, level, strict=True):
        mean += softmax(problem.X_new @ one + constant, axis=1)
    return Prediction(mean / len(slopes))


def squared(problem: Problem) -> Any:
    """Real targets with Gaussian noise; standardised targets."""
    import pymc

    with pymc.Model() as model:
        scale, noise = pymc.HalfNormal("scale", 1.0), pymc.HalfNormal("noise", 1.0)
        raw, level = pymc.Normal("raw", 0.0, 1.0, shape=problem.X.shape[1]), pymc.Normal("level", 0.0, 5.0)
        slopes = pymc.Deterministic("slopes", scale * raw)
        pymc.Normal("y", problem.X @ slopes + level, noise, observed=problem.y)
    return model


def moments(problem: Problem, draws: dict[str, Any]) -> Prediction:
    """Means and deviations of new targets, and the central part of their draws."""
    mean = draws["slopes"] @ problem.X_new.T + draws["level"][:, None]
    noise = draws["noise"][:, None]
    new = mean + noise * np.random.default_rng(SEED).standard_normal(mean.shape)
    std = np.sqrt(np.var(mean, axis=0) + np.mean(noise**2))
    return Prediction((np.mean(mean, axis=0), std), of_draws(draws["slopes"]), of_draws(new))
