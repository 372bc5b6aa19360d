"""Mixed: random effects of two crossed factors. Sparse: three factors of many levels as one-hot columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, SGDClassifier

from benchmarks.comparison import nuts
from benchmarks.comparison.core import Entry, Prediction, Problem, Task, around, log_loss_of, of_draws
from benchmarks.models_crossed import FEATURES, simulate
from cavity import EPClassifier

MIXED, MIXED_QUICK = (5_000, 100, 200), (300, 5, 10)
# Rows, levels of the factors, and standard deviations of their effects.
SPARSE, SPARSE_QUICK, DEVIATIONS = (40_000, (2_000, 500, 100)), (500, (20, 10, 5)), (0.5, 0.8, 1.0)
FACTORS = ("a", "b", "c")
Solve = Callable[[Problem], Prediction]


def mixed(quick: bool) -> list[Problem]:
    """Five features and two factors; the truth is that of all effects. ``X`` is one-hot, ``extra`` has the tables."""
    rows, first, second = MIXED_QUICK if quick else MIXED
    data = simulate(2 * rows, first, second, seed=0)
    table = data.table()
    levels = [_indicators(codes, data.effects[name].size) for name, codes in data.codes.items()]
    X = sparse.hstack([sparse.csr_matrix(data.x), *levels], format="csr")
    for name, codes in data.codes.items():  # all levels are known from the beginning
        table[name] = pd.Categorical.from_codes(codes, [f"{k:04d}" for k in range(data.effects[name].size)])
    truth = np.concatenate(list(data.effects.values()))
    return [Problem(X[:rows], data.y[:rows], X[rows:], data.y[rows:], truth, (table[:rows], table[rows:]))]


def one_hot(quick: bool) -> list[Problem]:
    """Frequent and rare levels; ``extra`` has the codes, as tables."""
    rows, sizes = SPARSE_QUICK if quick else SPARSE
    rng = np.random.default_rng(0)
    codes = [np.minimum((size * rng.random(2 * rows) ** 1.5).astype(int), size - 1) for size in sizes]
    effects = [std * rng.standard_normal(size) for std, size in zip(DEVIATIONS, sizes, strict=True)]
    effects = [effect - np.mean(effect) for effect in effects]  # their mean cannot be told from the intercept
    z = -1.0 + sum(effect[code] for effect, code in zip(effects, codes, strict=True))
    y = (z + rng.logistic(size=2 * rows) > 0.0).astype(int)
    X = sparse.hstack([_indicators(*pair) for pair in zip(codes, sizes, strict=True)], format="csr")
    columns = {
        name: pd.Categorical.from_codes(code, [f"{k:04d}" for k in range(size)])
        for name, code, size in zip(FACTORS, codes, sizes, strict=True)
    }
    table = pd.DataFrame(columns)
    return [Problem(X[:rows], y[:rows], X[rows:], y[rows:], np.concatenate(effects), (table[:rows], table[rows:]))]


def _indicators(codes: Any, size: int) -> sparse.csr_matrix:
    return sparse.csr_matrix((np.ones(codes.size), (np.arange(codes.size), codes)), shape=(codes.size, size))


def _effects(problem: Problem, values: Any) -> Any:
    """Of all columns those of the levels, which are the last."""
    return np.asarray(values)[..., -problem.truth.size :]


def _of_table(problem: Problem) -> Prediction:
    """Columns of categories are random effects; each has one coefficient more, of levels that are not known."""
    table, new = problem.extra
    model = EPClassifier().fit(table, problem.y)
    start, kept = table.shape[1] - len(model.categories_), []
    for name, levels in model.categories_.items():
        known = pd.Index(table[name].cat.categories).get_indexer(levels)
        kept.append((start, known, table[name].cat.categories.size))
        start += len(levels) + 1
    low, high = around(model.coef_[0], model.coef_std_[0])
    both = []
    for values in (low, high):
        parts = [np.full(size, np.nan) for _, _, size in kept]
        for part, (begin, known, _) in zip(parts, kept, strict=True):
            part[known] = values[begin : begin + known.size]
        both.append(np.concatenate(parts))
    return Prediction(model.predict_proba(new)[:, 1], (both[0], both[1]))


def _of_columns(grouped: bool) -> Solve:
    """One-hot columns: one prior variance for all, or one per factor."""

    def solve(problem: Problem) -> Prediction:
        groups = None
        if grouped:
            sizes = [column.cat.categories.size for _, column in problem.extra[0][list(FACTORS)].items()]
            groups = np.repeat(FACTORS, sizes)
        model = EPClassifier(prior_groups=groups).fit(problem.X, problem.y)
        mean, std = _effects(problem, model.coef_[0]), _effects(problem, model.coef_std_[0])
        return Prediction(model.predict_proba(problem.X_new)[:, 1], around(mean, std))

    return solve


def _sklearn(model: Any) -> Solve:
    return lambda problem: Prediction(model.fit(problem.X, problem.y).predict_proba(problem.X_new)[:, 1])


def _statsmodels(method: str) -> Solve:
    """Variational Bayes or a Laplace approximation, under wide priors."""

    def solve(problem: Problem) -> Prediction:
        from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

        count = problem.truth.size
        fixed, fixed_new = (_fixed(X, count) for X in (problem.X, problem.X_new))
        sizes = [column.cat.categories.size for _, column in problem.extra[0].items() if column.dtype == "category"]
        owners = np.repeat(np.arange(len(sizes)), sizes)
        model = BinomialBayesMixedGLM(
            problem.y, fixed, sparse.csr_matrix(problem.X[:, -count:]), owners, vcp_p=2.0, fe_p=10.0
        )
        found = getattr(model, method)()
        z = fixed_new @ found.fe_mean + problem.X_new[:, -count:] @ found.vc_mean
        return Prediction(expit(z), around(found.vc_mean, found.vc_sd))

    return solve


def _fixed(X: Any, count: int) -> Any:
    return np.column_stack([X[:, : X.shape[1] - count].toarray(), np.ones(X.shape[0])])


def _bandit(name: str) -> Solve:
    def solve(problem: Problem) -> Prediction:
        import bayesianbandits

        both = [sparse.csc_array(sparse.hstack([np.ones((X.shape[0], 1)), X])) for X in (problem.X, problem.X_new)]
        model = getattr(bayesianbandits, name)(sparse=True).fit(both[0], problem.y)
        std = np.sqrt(np.diag(np.linalg.inv(model.cov_inv_.toarray())))
        return Prediction(model.predict(both[1]), around(_effects(problem, model.coef_), _effects(problem, std)))

    return solve


def _river(advised: bool) -> Solve:
    def solve(problem: Problem) -> Prediction:
        from river import linear_model, optim

        model = linear_model.LogisticRegression(optimizer=optim.AdaGrad(0.3) if advised else None)
        for row, label in zip(_dicts(problem.X), problem.y.tolist(), strict=True):
            model.learn_one(row, bool(label))
        return Prediction(np.array([model.predict_proba_one(row)[True] for row in _dicts(problem.X_new)]))

    return solve


def _dicts(X: Any) -> Any:
    ends = X.indptr
    for i in range(X.shape[0]):
        part = slice(ends[i], ends[i + 1])
        yield dict(zip(X.indices[part].tolist(), X.data[part].tolist(), strict=True))


def _levels(problem: Problem) -> Any:
    """Random effects of every factor, with scales found."""
    import pymc

    count = problem.truth.size
    table, fixed = problem.extra[0], _fixed(problem.X, count)
    with pymc.Model() as model:
        z = fixed @ pymc.Normal("fixed", 0.0, 5.0, shape=fixed.shape[1])
        for name, column in table.items():
            if column.dtype == "category":
                scale = pymc.HalfNormal(f"scale_{name}", 1.0)
                raw = pymc.Normal(f"raw_{name}", 0.0, 1.0, shape=column.cat.categories.size)
                z = z + pymc.Deterministic(f"level_{name}", scale * raw)[column.cat.codes.to_numpy()]
        pymc.Bernoulli("y", logit_p=z, observed=problem.y)
    return model


def _read(problem: Problem, draws: dict[str, Any]) -> Prediction:
    names = [name for name in problem.extra[0] if f"level_{name}" in draws]
    levels = np.concatenate([draws[f"level_{name}"] for name in names], axis=1)
    return _averaged(problem, draws["fixed"], levels)


def _averaged(problem: Problem, fixed: Any, levels: Any) -> Prediction:
    count, p = problem.truth.size, np.zeros(problem.X_new.shape[0])
    columns, indicators = _fixed(problem.X_new, count), problem.X_new[:, -count:]
    for one, effects in zip(fixed, levels, strict=True):
        p += expit(columns @ one + indicators @ effects)
    return Prediction(p / len(fixed), of_draws(levels))


def _read_bambi(problem: Problem, model: Any, found: Any) -> Prediction:
    table = problem.extra[0]
    draws = found.posterior.stack(draw_=("chain", "draw"))
    numbers = [name for name in table if table[name].dtype != "category"]
    fixed = np.stack([*(draws[name].values for name in numbers), draws["Intercept"].values], axis=1)
    levels = []
    for name in table.columns.difference(numbers, sort=False):
        part = draws[f"1|{name}"].transpose("draw_", ...)
        known = table[name].cat.categories.get_indexer([str(level) for level in part[f"{name}__factor_dim"].values])
        full = np.zeros((part.shape[0], table[name].cat.categories.size))  # levels without rows: the prior's mean
        full[:, known] = part.values
        levels.append(full)
    return _averaged(problem, fixed, np.concatenate(levels, axis=1))


_X = " + ".join(f"x{k}" for k in range(FEATURES))
_CAREFUL = {"Cs": 20, "scoring": "neg_log_loss", "max_iter": 2000}
COMMON = (
    Entry("scikit-learn", "LogisticRegression", "one-hot, defaults", (), _sklearn(LogisticRegression(max_iter=2000))),
    Entry(
        "scikit-learn",
        "LogisticRegressionCV",
        "one-hot, log loss, 20 values",
        (),
        _sklearn(LogisticRegressionCV(**_CAREFUL)),
    ),
    Entry(
        "scikit-learn",
        "SGDClassifier",
        "one-hot, log loss",
        (),
        _sklearn(SGDClassifier(loss="log_loss", random_state=0)),
    ),
    Entry(
        "statsmodels",
        "BinomialBayesMixedGLM",
        "fit_vb",
        ("statsmodels.genmod.bayes_mixed_glm",),
        _statsmodels("fit_vb"),
    ),
    Entry(
        "statsmodels",
        "BinomialBayesMixedGLM",
        "fit_map",
        ("statsmodels.genmod.bayes_mixed_glm",),
        _statsmodels("fit_map"),
    ),
    Entry("bayesianbandits", "BayesianGLM", "one-hot, defaults", ("bayesianbandits",), _bandit("BayesianGLM")),
    Entry(
        "bayesianbandits", "EmpiricalBayesGLM", "one-hot, defaults", ("bayesianbandits",), _bandit("EmpiricalBayesGLM")
    ),
    Entry("river", "LogisticRegression", "one-hot, defaults, one pass", ("river",), _river(False)),
    Entry("river", "LogisticRegression", "one-hot, AdaGrad 0.3, one pass", ("river",), _river(True)),
    *nuts.entries("random effects", _levels, _read),
)
TASKS = (
    Task(
        "mixed",
        "Mixed: simulated, 5,000 rows, 100 x 200 crossed levels",
        "log loss",
        mixed,
        log_loss_of,
        (
            Entry("cavity", "EPClassifier", "table of categories, defaults", ("cavity",), _of_table),
            *COMMON,
            nuts.of_bambi(f"y ~ {_X} + (1|first) + (1|second)", "bernoulli", _read_bambi),
        ),
    ),
    Task(
        "one-hot",
        "Sparse one-hot: simulated, 40,000 rows, 2,600 levels of three factors",
        "log loss",
        one_hot,
        log_loss_of,
        (
            Entry("cavity", "EPClassifier", "one-hot, defaults", ("cavity",), _of_columns(False)),
            Entry("cavity", "EPClassifier", "one-hot, prior_groups=", ("cavity",), _of_columns(True)),
            *COMMON,
            nuts.of_bambi("y ~ (1|a) + (1|b) + (1|c)", "bernoulli", _read_bambi),
        ),
    ),
)
