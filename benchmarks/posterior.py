"""The posterior of every coefficient against sampling, from every storage, and two methods of weighting."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks import weighting
from benchmarks.bars import Row, markdown
from benchmarks.data import REAL, SIMULATED, Data, load
from benchmarks.sampling import Summary, Target, sample
from cavity import EPClassifier
from reference.problems import LARGE, FloatArray

LOSSES = ("logistic", "hinge")
PRIOR_VARIANCE = 25.0
# What the bars ask: errors of means in standard deviations, ratios of deviations, and below which skewness.
MEAN_BAR, RATIO_BAR, SKEWNESS = 0.15, (0.9, 1.1), 0.4
SAME = 0.01
# Effective draws of every coefficient; the bar asks for 2,000.
DRAWS, DRAWS_LARGE, DRAWS_QUICK = 10_000, 2_000, 500
# Summaries of draws that were made before, by their problem.
CACHE = Path("bench-results") / "draws"

HEADER = ("data", "loss", "loops", "coefficients", "largest error of a mean, sd", "deviations, ratio", "draws")
SKEWED_HEADER = ("data", "loss", "coefficients", "skewness", "largest error of a mean, sd", "deviations, ratio")


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All bars, and the tables behind them."""
    names = ("haberman", *SIMULATED) if quick else (*REAL, *SIMULATED)
    rows, cells, skewed = [], [], []
    for name in names:
        for loss in LOSSES if name != "census" else ():  # `benchmarks.posterior_census`
            row, line, rest = against_sampling(load(name), loss, quick)
            rows.append(row)
            cells.append(line)
            skewed += rest
    same = [same_posterior(load(name), loss) for name in names for loss in LOSSES]
    rows += [row for row, _ in same]
    tables = {
        "posterior-coefficients": markdown(HEADER, cells),
        "posterior-skewed": markdown(SKEWED_HEADER, skewed),
        "posterior-storage": markdown(("data", "loss", *VARIANTS), [line for _, line in same]),
        "posterior-weights": markdown(weighting.HEADER, weighting.lines(DRAWS_QUICK if quick else DRAWS)),
    }
    return rows, tables


def fitted(loss: str, X: Any, y: FloatArray, **options: Any) -> EPClassifier:
    """A classifier whose prior is that of the draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return EPClassifier(loss, prior_variance=PRIOR_VARIANCE).fit(X, y, **options)


def against_sampling(
    data: Data, loss: str, quick: bool, most_skewed: float = np.inf
) -> tuple[Row, tuple[str, ...], list[tuple[str, ...]]]:
    """Bar, line of the table, and a line for skewed coefficients if there are any.

    Coefficients more skewed than ``most_skewed`` may have fewer effective draws.
    """
    model = fitted(loss, data.X, data.y)
    count = DRAWS_QUICK if quick else DRAWS_LARGE if data.name in LARGE else DRAWS
    draws = drawn(data, loss, count, most_skewed)
    posterior = model.posterior_[0]
    errors = np.abs(posterior.mean - draws.mean) / draws.std
    ratios = np.sqrt(posterior.variance) / draws.std
    even = np.abs(draws.skewness) < SKEWNESS
    low, high = _range(ratios[even])
    found = f"means within {np.max(errors[even]):.3f} sd, deviations {low:.3f} to {high:.3f}"
    found += f" of {np.sum(even)} of {even.size} coefficients; {model.status_.name}, {model.n_iter_} loops"
    bar = f"{MEAN_BAR:g} sd, {RATIO_BAR[0]:g} to {RATIO_BAR[1]:g}"
    met = bool(np.max(errors[even]) <= MEAN_BAR and low >= RATIO_BAR[0] and high <= RATIO_BAR[1])
    loops = f"{model.n_iter_}" if model.status_.is_success else f"{model.n_iter_}, {model.status_.name}"
    line = (data.title, loss, loops, f"{np.sum(even)} of {even.size}", f"{np.max(errors[even]):.3f}")
    line += (f"{low:.3f} to {high:.3f}", f"{np.min(draws.effective[even]):,.0f}")
    rest = []
    if not np.all(even):
        skew, odd = _range(draws.skewness[~even]), _range(ratios[~even])
        rest.append(
            (data.title, loss, f"{np.sum(~even)}", f"{skew[0]:.2f} to {skew[1]:.2f}", f"{np.max(errors[~even]):.3f}",
             f"{odd[0]:.3f} to {odd[1]:.3f}")
        )  # fmt: skip
    return Row(f"{data.title}, {loss}", found, bar, met), line, rest


def _range(values: FloatArray) -> tuple[float, float]:
    return float(np.min(values)), float(np.max(values))


def drawn(data: Data, loss: str, draws: int, most_skewed: float = np.inf) -> Summary:
    """Draws of the posterior, or what is kept of earlier ones."""
    design = np.ascontiguousarray(np.column_stack([data.X, np.ones(data.y.size)]))
    key = hashlib.sha256(f"{loss} {draws} {PRIOR_VARIANCE}".encode() + design.tobytes() + data.y.tobytes()).hexdigest()
    path = CACHE / f"{key[:16]}.npz"
    if path.exists():
        with np.load(path) as kept:
            return Summary(*(kept[name] for name in Summary.__slots__))
    model = fitted(loss, data.X, data.y)
    variances = np.append(np.full(data.X.shape[1], PRIOR_VARIANCE), model.intercept_prior_variance)
    near = model.posterior_[0]
    target = Target(loss, design, data.y, variances)
    found = sample(target, near.mean, near.covariance, draws, most_skewed=most_skewed)
    CACHE.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: getattr(found, name) for name in Summary.__slots__})
    return found


# The same rows in another form: matrix, labels and weights of a fit that must come to the same.
VARIANTS: dict[str, Callable[[FloatArray, FloatArray, np.random.Generator], tuple[Any, FloatArray]]] = {
    "CSR": lambda X, y, rng: (sparse.csr_array(X), y),
    "Fortran order": lambda X, y, rng: (np.asfortranarray(X), y),
    "float32": lambda X, y, rng: (X.astype(np.float32), y),
    "shuffled": lambda X, y, rng: (lambda order: (X[order], y[order]))(rng.permutation(y.size)),
    "repeated": lambda X, y, rng: (X, y),
}


def same_posterior(data: Data, loss: str) -> tuple[Row, tuple[str, ...]]:
    """Largest difference of a mean or a deviation, in standard deviations, by variant."""
    rng = np.random.default_rng(0)
    reference, apart = fitted(loss, data.X, data.y).posterior_[0], {}
    for name, vary in VARIANTS.items():
        if name == "repeated":
            counts = rng.integers(1, 4, data.y.size)
            one = fitted(loss, data.X, data.y, sample_weight=counts).posterior_[0]
            other = fitted(loss, np.repeat(data.X, counts, axis=0), np.repeat(data.y, counts)).posterior_[0]
        else:
            one, other = reference, fitted(loss, *vary(data.X, data.y, rng)).posterior_[0]
        std = np.sqrt(one.variance)
        apart[name] = float(
            max(np.max(np.abs(one.mean - other.mean) / std), np.max(np.abs(np.sqrt(other.variance) / std - 1.0)))
        )
    worst = max(apart, key=lambda name: apart[name])
    found = f"{apart[worst]:.2g} sd ({worst})"
    row = Row(f"{data.title}, {loss}: the same posterior", found, f"{SAME:g} sd", apart[worst] <= SAME)
    return row, (data.title, loss, *(f"{value:.2g}" for value in apart.values()))
