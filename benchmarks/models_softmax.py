"""Softmax of `EPClassifier`: held-out log loss, time, and the posterior against sampling."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.bars import Row, at_most, markdown
from benchmarks.data import standardised
from benchmarks.sampling import Summary, draw, summary
from cavity import EPClassifier
from cavity.losses.joint import contrasts
from reference.problems import FloatArray
from reference.timing import best_times

# Log loss above the peer's by at most this share on any set, and below it on so many.
NEVER_BY, AT_LEAST = 0.02, 3
# Time of a fit to all of digits, in fits of LogisticRegression at one strength of its penalty.
TIMES = 20.0
# Ratio of deviations to those of sampling, and below which skewness a marginal is nearly a Gaussian.
RATIO_BAR, SKEWNESS = (0.9, 1.1), 0.4
# Effective draws of every coefficient; the error of a deviation is then below 1 %.
DRAWS, DRAWS_QUICK = 10_000, 500
# Draws of the approximate posterior, from which the sampler takes its coordinates.
_NEAR = 20_000
QUICK_ROWS = 400
# Orders of the rows, so other folds, of the small sets: there the folds change log losses by more than the bar.
ORDERS, ORDERS_QUICK = 10, 2
_MOST_STEPS = 3000

MODELS: dict[str, Callable[[], Any]] = {
    "EPClassifier": EPClassifier,
    "LogisticRegressionCV": lambda: LogisticRegressionCV(scoring="neg_log_loss", max_iter=_MOST_STEPS),
}


def _simulated(rows: int, columns: int, spread: float, uneven: float, seed: int) -> tuple[FloatArray, Any]:
    """Twenty classes of a softmax model, coefficients and intercepts normal with these deviations."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns))
    scores = X @ rng.normal(0.0, spread, (columns, 20)) + rng.normal(0.0, uneven, 20)
    y = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    kept = np.isin(y, np.flatnonzero(np.bincount(y, minlength=20) >= 5))  # as many as folds
    return X[kept], y[kept]


SETS: dict[str, Callable[[], tuple[FloatArray, Any]]] = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "digits": lambda: load_digits(return_X_y=True),
    "20 classes, clear": lambda: _simulated(2000, 10, 1.0, 0.0, 0),
    "20 classes, noisy and uneven": lambda: _simulated(3000, 30, 0.3, 1.0, 1),
}


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Bars, and tables of both models and of the coefficients."""
    rows, cells, shares = [], [], []
    for name, load in SETS.items():
        X, y = load()
        if quick and y.size > QUICK_ROWS:
            X, y = _part(X, y)
        found = {model: held_out(X, y, make) for model, make in MODELS.items()}
        (ours, _), (peer, _) = found.values()
        shares.append(ours / peer - 1.0)
        title = f"softmax, {name}, {X.shape[0]:,} x {X.shape[1]}, {np.unique(y).size} classes"
        measured = f"held-out log loss {ours:.4f} against {peer:.4f}: {100.0 * shares[-1]:+.1f} %"
        bar = f"at most {100.0 * NEVER_BY:g} % worse than LogisticRegressionCV"
        rows.append(Row(title, measured, bar, shares[-1] <= NEVER_BY))
        cells += [(title, model, f"{loss:.4f}", f"{seconds:.2f}") for model, (loss, seconds) in found.items()]
    lower = sum(share < 0.0 for share in shares)
    rows.append(Row("softmax, log loss lower", f"{lower} of {len(shares)}", f"at least {AT_LEAST}", lower >= AT_LEAST))
    rows.append(_time(quick))
    lines = []
    for name in ("iris", "wine"):
        more, cells_here = against_sampling(name, DRAWS_QUICK if quick else DRAWS)
        rows += more
        lines += cells_here
    header = ("data", "model", "held-out log loss", "processor seconds, five fits")
    tables = {
        "models-softmax": markdown(header, cells),
        "models-softmax-folds": other_folds(ORDERS_QUICK if quick else ORDERS),
        "models-softmax-posterior": markdown(_HEADER, lines),
    }
    return rows, tables


def _part(X: FloatArray, y: Any) -> tuple[FloatArray, Any]:
    """A random part of the rows, of classes that have a row in every fold."""
    chosen = np.random.default_rng(0).permutation(y.size)[:QUICK_ROWS]
    X, y = X[chosen], y[chosen]
    kept = np.bincount(y)[y] >= 5
    return X[kept], y[kept]


def held_out(X: FloatArray, y: Any, make: Callable[[], Any]) -> tuple[float, float]:
    """Log loss of rows under models fitted to the other four folds, and processor time of the fits."""
    chances, seconds = np.empty((y.size, np.unique(y).size)), 0.0
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
        model = make_pipeline(StandardScaler(), make())
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X[train], y[train])
        seconds += time.process_time() - start
        chances[test] = model.predict_proba(X[test])
    return float(log_loss(y, chances)), seconds


def other_folds(count: int) -> str:
    """A table of held-out log losses of the small sets with their rows in other orders."""
    lines = []
    for name in ("iris", "wine"):
        X, y = SETS[name]()
        orders = [np.random.default_rng(seed).permutation(y.size) for seed in range(count)]
        losses = np.array([[held_out(X[order], y[order], make)[0] for make in MODELS.values()] for order in orders])
        shares = losses[:, 0] / losses[:, 1] - 1.0
        span = f"{100.0 * np.min(shares):+.1f} to {100.0 * np.max(shares):+.1f} %"
        means = np.mean(losses, axis=0)
        lines.append((name, *(f"{m:.4f}" for m in means), f"{100.0 * (means[0] / means[1] - 1.0):+.1f} %", span))
    return markdown((f"mean over {count} orders of the rows", *MODELS, "apart", "apart, order by order"), lines)


def _time(quick: bool) -> Row:
    """Time of one fit to digits: on a machine that does nothing else."""
    X, y = load_digits(return_X_y=True)
    X = standardised(X)
    works = {
        "ours": lambda: EPClassifier().fit(X, y),
        "peer": lambda: LogisticRegression(max_iter=_MOST_STEPS).fit(X, y),
    }
    seconds = best_times(works, 1 if quick else 3)
    title = f"softmax, fit to digits, {X.shape[0]:,} x {X.shape[1]}"
    return at_most(title, seconds["ours"], seconds["peer"], TIMES, "LogisticRegression at one penalty")


# The posterior of every coefficient, against sampling.

_HEADER = ("data", "prior variance", "of", "largest error of a mean, sd", "deviations, ratio", "skewness at the least "
           "ratio", "largest skewness", "ratio where below 0.4", "draws")  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxTarget:
    """Minus the log posterior of the coefficients of the contrasts, row after row, normal with the same prior."""

    X: FloatArray
    y: Any
    classes: int
    prior_variance: FloatArray

    def value(self, theta: FloatArray) -> FloatArray:
        """At points ``(chains, dim)``."""
        scores = self._scores(theta)
        fit = logsumexp(scores, axis=2) - scores[:, np.arange(self.y.size), self.y]
        return np.sum(fit, axis=1) + 0.5 * np.sum(self._split(theta) ** 2 / self.prior_variance, axis=(1, 2))

    def gradient(self, theta: FloatArray) -> FloatArray:
        """At points."""
        apart = softmax(self._scores(theta), axis=2)
        apart[:, np.arange(self.y.size), self.y] -= 1.0
        slopes = (apart @ contrasts(self.classes)).transpose(0, 2, 1) @ self.X
        return (slopes + self._split(theta) / self.prior_variance).reshape(theta.shape)

    def _split(self, theta: FloatArray) -> FloatArray:
        return theta.reshape(len(theta), self.classes - 1, -1)

    def _scores(self, theta: FloatArray) -> FloatArray:
        return (self.X @ self._split(theta).transpose(0, 2, 1)) @ contrasts(self.classes).T


def sampled(model: EPClassifier, X: FloatArray, y: Any, count: int) -> Summary:
    """Sampled coefficients of all classes, which sum to zero, and intercepts, under the prior of a fitted model."""
    classes, width = model.classes_.size, X.shape[1] + 1
    basis = contrasts(classes)
    coef, intercept = model.sample_coef(_NEAR, random_state=0, return_intercept=True)
    near = np.einsum("kj,nkd->njd", basis, np.concatenate([coef, intercept[:, :, None]], axis=2)).reshape(_NEAR, -1)
    variances = np.append(np.broadcast_to(model.prior_variance_, X.shape[1]), model.intercept_prior_variance)
    target = SoftmaxTarget(np.column_stack([X, np.ones(y.size)]), y, classes, variances)
    values = draw(target, np.mean(near, axis=0), np.cov(near.T), count)
    values = values.reshape(*values.shape[:2], classes - 1, width)
    return summary(np.einsum("kj,acjd->ackd", basis, values).reshape(*values.shape[:2], -1))


def against_sampling(name: str, count: int) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Bars on all deviations, and lines that tell skewed coefficients from the rest; intercepts for themselves."""
    X, y = SETS[name]()
    X = standardised(X)
    # Sampling takes the prior variance as given, and so must the model.
    found = EPClassifier().fit(X, y)
    model = EPClassifier(prior_variance=found.prior_variance_ / found.prior_units_**2).fit(X, y)
    draws, classes = sampled(model, X, y, count), model.classes_.size
    mean = np.concatenate([p.mean for p in model.posterior_])
    std = np.sqrt(np.concatenate([p.variance for p in model.posterior_]))
    errors, ratios, skewness = np.abs(mean - draws.mean) / draws.std, std / draws.std, draws.skewness
    last = np.tile(np.arange(X.shape[1] + 1) == X.shape[1], classes)
    rows, lines = [], []
    for what, chosen in (("coefficients", ~last), ("intercepts", last)):
        here, skew = ratios[chosen], skewness[chosen]
        even = np.abs(skew) < SKEWNESS
        rest = f"{np.min(here[even]):.3f} to {np.max(here[even]):.3f}, {np.sum(even)}" if np.any(even) else "none"
        rest += f" of {here.size}"
        span, worst = f"{np.min(here):.3f} to {np.max(here):.3f}", skew[np.argmin(here)]
        measured = f"{span}; where the skewness is below {SKEWNESS:g}: {rest}"
        met = bool(np.min(here) >= RATIO_BAR[0] and np.max(here) <= RATIO_BAR[1])
        title = f"softmax, {name}: deviations of {what} against sampling"
        rows.append(Row(title, measured, f"{RATIO_BAR[0]:g} to {RATIO_BAR[1]:g}", met))
        start = (name, f"{found.prior_variance_:.3g}", what, f"{np.max(errors[chosen]):.3f}", span)
        end = (f"{np.max(np.abs(skew)):.2f}", rest, f"{np.min(draws.effective[chosen]):,.0f}")
        lines.append((*start, f"{worst:.2f}", *end))
    return rows, lines
