"""Random streams against a fit to the same rows: ``python -m benchmarks.fuzz_streams [--cases 2000] [--seed 0]``.

A case is a model, rows in any units, first rows that mislead, and calls of any size. ``partial_fit`` in these calls is
compared with ``fit`` on all rows, and every difference is divided by the allowed one; the largest quotient is the
badness of the case. Where ``fit`` itself has trouble, the stream must only go through and stay finite. In a few cases
the rows are sorted by label or target; numbers are not compared there, and calls of one class each must give a warning.

A stream keeps its rows, and fits them together, as long as these hold few numbers: short streams then are fits.
``--kept 0`` lowers that limit of the library to sixty rows per coefficient, of which thirty stay, so that online
updates are tested as well; the table counts the streams that had more rows than are kept.

Every case has a seed of its own: ``--only SEED`` repeats that case and prints both posteriors.
"""

from __future__ import annotations

import argparse
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from benchmarks.bars import markdown
from cavity import EPClassifier, EPRegressor
from cavity.estimators import streams
from reference.problems import FloatArray

# What may lie between a stream and a fit: means in standard deviations of the fit, the ratio of standard deviations,
# the evidence in nats or as a share, whichever is more, and predictions as multiples of the distance of those of the
# fit. A stream with the squared loss is exact.
MEANS, LEAST_RATIO, LARGEST_RATIO, EXACT = 0.3, 0.7, 1.4, 1e-6
NATS, SHARE, EXPLOSION = 2.0, 0.01, 10.0
SECONDS = 20
WORST = 10
SORTED = 0.05
# Lines of the table, and how often each is drawn.
REALS = ("squared", "absolute", "huber", "quantile", "normal, linear scale")
LOG_MEANS = ("poisson", "negative_binomial", "gamma")
CLASSES = ("logistic", "logistic, 3 classes", "hinge", "hinge, 3 classes", "quasi01")
LOSSES = (*REALS, *LOG_MEANS, *CLASSES)
CHANCES = np.array([3, 2, 2, 2, 2, 2, 3, 2, 4, 1.5, 1.5, 0.5, 1])
CHECKS = ("means", "deviations", "evidence", "predictions")


class Alarm(BaseException):
    """A case that takes too long."""


class Case(NamedTuple):
    """A model, rows and calls; ``first`` says how the first call misleads."""

    seed: int
    loss: str
    parameters: dict[str, Any]
    X: Any
    y: Any
    weights: FloatArray | None
    first: str
    calls: str
    sizes: list[int]
    is_sorted: bool

    @property
    def classifies(self) -> bool:
        """Whether targets are labels."""
        return self.loss in CLASSES

    def model(self) -> Any:
        """Give a new estimator."""
        return (EPClassifier if self.classifies else EPRegressor)(**self.parameters)

    def fitted(self) -> Any:
        """Fit all rows at once."""
        return self.model().fit(self.X, self.y, sample_weight=self.weights)

    def streamed(self) -> Any:
        """Take the rows in call by call."""
        model, start = self.model(), 0
        options: dict[str, Any] = {"classes": np.unique(self.y)} if self.classifies else {}
        for size in self.sizes:
            part = slice(start, start + size)
            weights = None if self.weights is None else self.weights[part]
            model.partial_fit(self.X[part], self.y[part], sample_weight=weights, **options)
            start += size
        return model

    def __str__(self) -> str:
        """Describe it in one line."""
        given = [name for name in ("scale", "prior_variance") if not isinstance(self.parameters.get(name, ""), str)]
        parts = [
            self.loss + (f" {self.parameters['quantile']:.2f}" if self.loss == "quantile" else ""),
            f"{self.X.shape[0]} x {self.X.shape[1]}" + (", sparse" if sparse.issparse(self.X) else ""),
            f"{len(self.sizes)} calls ({self.calls}), first {self.sizes[0]}",
            f"first rows: {self.first}",
        ]
        parts += [] if self.parameters["fit_intercept"] else ["no intercept"]
        parts += [f"given {' and '.join(given)}"] * bool(given)
        parts += ["weights"] * (self.weights is not None) + ["SORTED"] * self.is_sorted
        return "; ".join(parts)


class Verdict(NamedTuple):
    """How a case went: measured differences, and these as shares of what is allowed; none where fit has trouble."""

    seed: int
    loss: str
    line: str
    is_sorted: bool
    trouble: str
    error: str
    warned: bool
    is_online: bool
    measured: dict[str, float]
    badness: dict[str, float]

    @property
    def worst(self) -> float:
        """The largest difference as a multiple of what is allowed."""
        return np.inf if self.error else max(self.badness.values(), default=0.0)

    @property
    def is_good(self) -> bool:
        """Whether all is within what is allowed."""
        unwarned = self.is_sorted and self.loss in CLASSES and not self.warned
        return self.worst <= 1.0 and not unwarned

    @property
    def why(self) -> str:
        """The error, or the differences."""
        return self.error or ", ".join(f"{name} {value:.2g}" for name, value in self.measured.items())


def seeds(count: int, seed: int) -> list[int]:
    """Give every case a seed of its own."""
    return [int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) for number in range(count)]


def draw(seed: int) -> Case:
    """Make the case of this seed."""
    rng = np.random.default_rng(seed)
    loss = str(rng.choice(LOSSES, p=CHANCES / np.sum(CHANCES)))
    n, d = int(10.0 ** rng.uniform(np.log10(5.0), np.log10(2000.0))), int(rng.integers(1, 13))
    is_sorted, intercept = bool(rng.random() < SORTED), bool(rng.random() < 0.85)
    calls = str(rng.choice(["single", "small", "mixed", "one large"], p=[0.2, 0.25, 0.3, 0.25]))
    if is_sorted:  # enough rows for a stream that has dropped its first ones
        d, calls = min(d, 6), "mixed" if calls == "one large" else calls
        n = max(n, 30 * (d + 1))
    if calls in ("single", "small"):  # calls take the time
        n = min(n, 300 if loss == "normal, linear scale" else 400 if calls == "single" else 1000)
    units = _units(rng, d)
    is_sparse = bool(rng.random() < 0.15)
    Z = _standard_rows(rng, n, d)
    if is_sparse:
        Z *= rng.random((n, d)) < 0.3
    z = Z @ rng.normal(size=d) * rng.choice([0.0, 0.3, 1.0, 3.0]) / np.sqrt(d)
    head = int(min(1 + 10.0 ** rng.uniform(0.0, 1.6), max(n // 2, 1)))
    first = "plain" if is_sorted else _misleading(rng, loss)
    if first == "tiny columns":
        Z[:head] *= 10.0 ** -rng.uniform(2.0, 6.0)
    elif first == "outlier":
        Z[0] *= 10.0 ** rng.uniform(1.0, 3.0)
    X = Z * units
    if not is_sparse and (intercept or rng.random() < 0.3):
        X += units * rng.normal(size=d) * rng.choice([0.0, 1.0, 10.0, 100.0])
    y, unit, level = _targets(rng, loss, z, first, head, intercept)
    parameters: dict[str, Any] = {"loss": loss.split(",")[0], "fit_intercept": intercept}
    parameters |= _noise(rng, loss, unit, level)
    if rng.random() < 0.25:
        variance = float(rng.choice([0.1, 1.0, 25.0]))
        parameters["prior_variance"] = variance if np.all(units == 1.0) else variance / units**2
    weights = rng.uniform(0.2, 3.0, n) if rng.random() < 0.15 else None
    if is_sorted:
        order = np.argsort(y, kind="stable")
        X, y, weights = X[order], y[order], None if weights is None else weights[order]
    sizes = _sizes(rng, calls, n, head)
    if is_sorted and loss in CLASSES:
        sizes = _within_classes(y, sizes)
    rows = sparse.csr_array(X) if is_sparse else np.ascontiguousarray(X)
    return Case(seed, loss, parameters, rows, y, weights, first, calls, sizes, is_sorted)


def _units(rng: np.random.Generator, d: int) -> FloatArray:
    kind = rng.choice(["plain", "one", "each"], p=[0.3, 0.2, 0.5])
    if kind == "plain":
        return np.ones(d)
    return np.full(d, 10.0 ** rng.uniform(-4.0, 4.0)) if kind == "one" else 10.0 ** rng.uniform(-4.0, 4.0, d)


def _standard_rows(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    kind = rng.choice(["normal", "correlated", "heavy", "binary", "rare"], p=[0.4, 0.2, 0.15, 0.15, 0.1])
    if kind == "heavy":
        return np.asarray(rng.standard_t(3.0, size=(n, d)))
    if kind in ("binary", "rare"):
        Z = rng.normal(size=(n, d))
        Z[:, 0] = rng.random(n) < (0.5 if kind == "binary" else 0.05)
        return Z
    Z = rng.normal(size=(n, d))
    return Z if kind == "normal" else 0.3 * Z + rng.normal(size=(n, 1))


def _misleading(rng: np.random.Generator, loss: str) -> str:
    """Choose how the first rows differ from the rest."""
    kinds = ["plain", "tiny columns", "outlier"]
    if loss in CLASSES:
        kinds += ["one class", "one class", "separable", "separable"]
    else:
        kinds += ["constant targets", "constant targets", "target outlier"]
        kinds += ["all zero"] * 3 if loss in ("poisson", "negative_binomial") else []
    return str(rng.choice(kinds))


def _targets(
    rng: np.random.Generator, loss: str, z: FloatArray, first: str, head: int, intercept: bool
) -> tuple[Any, float, float]:
    """Targets, their unit, and the level of their noise in this unit."""
    if loss in CLASSES:
        return _labels(rng, 3 if "3" in loss else 2, z, first, head, intercept), 1.0, 1.0
    if loss in REALS:
        y, level = _reals(rng, loss, z)
        unit = float(10.0 ** rng.uniform(-4.0, 4.0)) if rng.random() < 0.7 else 1.0
        y = unit * (y + (rng.normal() * rng.choice([0.0, 1.0, 30.0]) if intercept or rng.random() < 0.2 else 0.0))
    elif loss == "gamma":
        level = float(10.0 ** rng.uniform(-0.7, 0.2))
        unit = float(10.0 ** rng.uniform(-4.0, 4.0)) if rng.random() < 0.7 and intercept else 1.0
        y = unit * np.exp(np.clip(z, -4.0, 4.0)) * rng.gamma(level**-2, level**2, size=z.size)
        y = np.maximum(y, unit * 1e-12)
    else:
        unit, level = 1.0, float(10.0 ** rng.uniform(-0.7, 0.3))
        rate = float(rng.choice([0.02, 0.3, 2.0, 50.0])) if intercept else 1.0
        mean = rate * np.exp(np.clip(z, -4.0, 4.0))
        if loss == "negative_binomial":
            mean = mean * rng.gamma(level**-2, level**2, size=z.size)
        y = rng.poisson(mean).astype(np.float64)
    if first == "constant targets":
        y[:head] = y[0]
    elif first == "all zero":
        y[:head] = 0.0
    elif first == "target outlier":
        far = float(10.0 ** rng.uniform(1.0, 3.0))
        y[0] = np.ceil(far * (y[0] + 1.0)) if loss in ("poisson", "negative_binomial") else far * y[0]
    return y, unit, level


def _reals(rng: np.random.Generator, loss: str, z: FloatArray) -> tuple[FloatArray, float]:
    """Draw real targets: a predictor, and noise of some level and form."""
    level = float(rng.choice([0.01, 0.1, 1.0, 3.0], p=[0.1, 0.3, 0.4, 0.2]))
    if loss == "normal, linear scale":
        return z + level * np.exp(np.clip(rng.choice([0.0, 0.5]) * z, -2.0, 2.0)) * rng.normal(size=z.size), level
    kind = rng.choice(["normal", "laplace", "heavy"], p=[0.5, 0.3, 0.2])
    noise = rng.normal(size=z.size) if kind == "normal" else rng.laplace(size=z.size)
    return z + level * (rng.standard_t(2.0, size=z.size) if kind == "heavy" else noise), level


def _labels(rng: np.random.Generator, count: int, z: FloatArray, first: str, head: int, intercept: bool) -> Any:
    """Labels 0 to ``count`` - 1, every one at least once."""
    center = float(rng.choice([0.0, 0.0, 1.0, 3.0])) if intercept else 0.0
    noise = rng.logistic(size=z.size) if rng.random() < 0.9 else np.zeros(z.size)  # without noise all are separable
    if first == "separable":
        noise[:head] = 0.0
    edges = np.array([0.0]) if count == 2 else np.array([-0.7, 0.7])
    y = np.searchsorted(edges, z + noise - center)
    if first == "one class":
        y[:head] = np.bincount(y).argmax() if rng.random() < 0.5 else rng.integers(count)
    for label in np.setdiff1d(np.arange(count), y):
        frequent = np.flatnonzero(y == np.bincount(y).argmax())
        y[frequent[-1 - rng.integers(max(frequent.size // 2, 1))]] = label
    return y


def _noise(rng: np.random.Generator, loss: str, unit: float, level: float) -> dict[str, Any]:
    """Parameters of the noise: its scale is found, or given near the truth."""
    if loss in CLASSES or loss == "poisson":
        return {}
    if loss == "normal, linear scale":
        return {"scale": "linear"}
    given: dict[str, Any] = {}
    if loss == "quantile":  # robust errors of a fit need all rows, which a stream does not have
        given = {"quantile": float(rng.uniform(0.03, 0.97)), "errors": "posterior"}
    if rng.random() < 0.3:
        given["scale"] = level * (unit if loss in REALS else 1.0) * float(10.0 ** rng.uniform(-0.5, 0.5))
    return given


def _sizes(rng: np.random.Generator, calls: str, n: int, head: int) -> list[int]:
    """Rows of every call; those that mislead are the first call, unless rows come singly."""
    if calls == "single":
        return [1] * n
    if calls == "one large" and rng.random() < 0.2:
        return [n]
    sizes, left = [head], n - head
    most = {"small": 10, "mixed": n, "one large": n}[calls]
    while left > 0:
        size = left if calls == "one large" else min(left, int(10.0 ** rng.uniform(0.0, np.log10(most + 1.0))))
        sizes.append(size)
        left -= size
    return sizes


def _within_classes(y: Any, sizes: list[int]) -> list[int]:
    """Cut calls where the class of sorted rows changes."""
    cuts = np.union1d(np.cumsum(sizes), np.append(np.flatnonzero(np.diff(y)) + 1, y.size))
    return [int(size) for size in np.diff(cuts, prepend=0)]


def posterior(model: Any) -> tuple[FloatArray, FloatArray]:
    """Means and standard deviations of all coefficients, the intercepts last."""
    means, stds = [np.ravel(model.coef_)], [np.ravel(model.coef_std_)]
    if model.fit_intercept:
        means, stds = [*means, np.ravel(model.intercept_)], [*stds, np.ravel(model.intercept_std_)]
    if getattr(model, "scale", None) == "linear":
        means, stds = [*means, model.scale_coef_], [*stds, model.scale_coef_std_]
    return np.concatenate(means), np.concatenate(stds)


def predictions(case: Case, model: Any) -> FloatArray:
    """Distances of predicted targets from the median target, or log odds."""
    if case.classifies:
        return np.asarray(np.abs(model.decision_function(case.X)))
    return np.asarray(np.abs(model.predict(case.X) - np.median(case.y)))


def compare(case: Case, whole: Any, stream: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Differences of a stream from a fit, and these as shares of what is allowed."""
    (m, s), (mean, std) = posterior(whole), posterior(stream)
    apart = float(np.max(np.abs(mean - m) / s))
    logs = np.log(std / s)
    nats = abs(stream.log_evidence_ - whole.log_evidence_)
    least = 1.0 if case.classifies else float(np.std(case.y))
    near = max(float(np.max(predictions(case, whole))), least, np.finfo(float).tiny)
    far = float(np.max(predictions(case, stream))) / near if np.isfinite(near) else 0.0
    measured = {
        "means": apart,
        "deviations": float(np.expm1(np.max(np.abs(logs)))),
        "evidence": float(nats),
        "predictions": far,
    }
    badness = {
        "means": apart / MEANS,
        "deviations": float(np.max(np.where(logs > 0.0, logs / np.log(LARGEST_RATIO), logs / np.log(LEAST_RATIO)))),
        "evidence": float(nats / max(NATS, SHARE * abs(whole.log_evidence_))),
        "predictions": float(np.log(max(far, 1.0)) / np.log(EXPLOSION)),
    }
    if case.loss == "squared":
        badness |= {"means": apart / EXACT, "deviations": measured["deviations"] / EXACT}
    return measured, {name: np.inf if np.isnan(value) else value for name, value in badness.items()}


def outcome(make: Callable[[], Any]) -> tuple[Any, str, list[warnings.WarningMessage]]:
    """What a function gives, or its error, and the warnings."""

    def ring(*_: Any) -> None:
        raise Alarm

    given, error = None, ""
    signal.signal(signal.SIGALRM, ring)
    with warnings.catch_warnings(record=True) as told, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        signal.alarm(SECONDS)
        try:
            given = make()
        except Alarm:
            error = f"took more than {SECONDS} s"
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}".replace("\n", " ")[:200]
        finally:
            signal.alarm(0)
    return given, error, told


def judged(case: Case, show: bool = False) -> Verdict:
    """Stream and fit a case, and compare; ``show`` prints the details."""
    stream, error = None, ""
    told: list[warnings.WarningMessage] = []
    whole, trouble, warned = (None, "", []) if case.is_sorted else outcome(case.fitted)
    fit_raises = bool(trouble)
    if whole is not None:
        finite, trouble, _ = outcome(lambda: is_finite(whole))
        fit_raises = bool(trouble)
        if any(issubclass(w.category, ConvergenceWarning) for w in warned) or not whole.status_.is_success:
            trouble = trouble or whole.status_.name
        trouble = trouble or ("" if finite else "not finite")
    if not fit_raises:  # else the stream may do as it likes
        stream, error, told = outcome(case.streamed)
    if stream is not None:
        finite, error, _ = outcome(lambda: is_finite(stream))
        error = error or ("" if finite else "not finite")
    measured: dict[str, float] = {}
    badness: dict[str, float] = {}
    if stream is not None and whole is not None and not trouble and not error:
        both, error, _ = outcome(lambda: compare(case, whole, stream))
        measured, badness = both or (measured, badness)
    said = any(
        issubclass(w.category, UserWarning) and any(word in str(w.message) for word in ("sorted", "one class"))
        for w in told
    )
    state = None if stream is None else stream._state
    kept = None if state is None else state.stream.kept
    online = kept is not None and kept.totals.rows > 0.0
    verdict = Verdict(case.seed, case.loss, str(case), case.is_sorted, trouble, error, said, online, measured, badness)
    if show:
        print(details(case, verdict, {"fit": (whole, warned), "stream": (stream, told)}))
    return verdict


def is_finite(model: Any) -> bool:
    """Whether all numbers of a posterior are."""
    mean, std = posterior(model)
    return bool(np.all(np.isfinite([*mean, *std, model.log_evidence_])) and np.all(std > 0.0))


def details(case: Case, verdict: Verdict, models: dict[str, tuple[Any, list[warnings.WarningMessage]]]) -> str:
    """All of a case: parameters, calls, and both posteriors."""
    sizes = ", ".join(map(str, case.sizes[:20])) + (", ..." if len(case.sizes) > 20 else "")
    lines = [f"seed {case.seed}: {case}", f"parameters: {case.parameters}", f"rows per call: {sizes}"]
    for name, (model, told) in models.items():
        if model is not None:
            scale = "" if case.classifies else f", scale {model.scale_:.6g}, unit of targets {model.y_scale_:.6g}"
            lines.append(
                f"{name}: {model.status_.name}, evidence {model.log_evidence_:.6f}, "
                f"prior variance {np.array2string(np.asarray(model.prior_variance_), precision=6)}{scale}"
            )
        lines += [f"  {text}" for text in dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in told)]
    whole, stream = models["fit"][0], models["stream"][0]
    if whole is not None and stream is not None:
        cells: list[tuple[str, ...]] = [
            (f"{m:.6g}", f"{s:.6g}", f"{mean:.6g}", f"{std:.6g}", f"{(mean - m) / s:.2g}", f"{std / s:.6g}")
            for m, s, mean, std in zip(*posterior(whole), *posterior(stream), strict=True)
        ]
        header = ("fit: mean", "sd", "stream: mean", "sd", "apart, sd", "ratio of sd")
        lines.append(markdown(header, cells))
    shares = ", ".join(f"{name} {value:.3g}" for name, value in verdict.badness.items())
    lines.append(f"measured: {verdict.why or 'nothing'}\nas multiples of what is allowed: {shares or 'none'}")
    lines += [f"fit has trouble: {verdict.trouble}"] * bool(verdict.trouble)
    return "\n".join(lines)


def summary(verdicts: list[Verdict]) -> str:
    """One line per loss: shares within what is allowed, then median and worst of what was measured."""
    lines = []
    for loss in LOSSES:
        some = [v for v in verdicts if v.loss == loss and not v.is_sorted]
        if not some:
            continue
        compared = [v for v in some if v.measured]
        cells = []
        for name in CHECKS if compared else ():
            values = [v.measured[name] for v in compared]
            share = np.mean([v.badness[name] <= 1.0 for v in compared])
            cells.append(f"{100.0 * share:.0f} %: {np.median(values):.2g}, {np.max(values):.2g}")
        counts = [str(len(some)), str(sum(v.is_online for v in some)), str(sum(bool(v.trouble) for v in some))]
        passed = f"{100.0 * np.mean([not v.error for v in some]):.0f} %"
        within = f"{100.0 * np.mean([v.is_good for v in some]):.0f} %"
        worst = max(some, key=lambda v: v.worst)
        cells = [*counts, passed, *(cells or [""] * len(CHECKS)), within, f"{worst.seed}: {worst.worst:.2g}"]
        lines.append((loss, *cells))
    checks = ("means, sd", "deviations, ratio - 1", "evidence, nats", "predictions, of fit's")
    header = (
        "loss",
        "cases",
        "outgrew",
        "fit has trouble",
        "no exception",
        *checks,
        "all within",
        "worst seed: badness",
    )
    return markdown(header, lines)


def report(verdicts: list[Verdict]) -> str:
    """The table, cases that are sorted, and the worst of the others."""
    lines = [summary(verdicts), ""]
    for name, kind in (("labels", True), ("targets", False)):
        some = [v for v in verdicts if v.is_sorted and (v.loss in CLASSES) == kind]
        silent = [str(v.seed) for v in some if not v.warned]
        lines.append(
            f"sorted by {name}: {len(some)} cases, {len(some) - len(silent)} warned, "
            f"{sum(bool(v.error) for v in some)} exceptions" + (f"; silent: {', '.join(silent[:8])}" if silent else "")
        )
    alarms = [str(v.seed) for v in verdicts if v.warned and not v.is_sorted]
    lines.append(f"not sorted, but warned: {len(alarms)}" + (f": {', '.join(alarms[:8])}" if alarms else ""))
    troubles = Counter(v.trouble for v in verdicts if v.trouble).most_common()
    lines.append(f"fit has trouble: {', '.join(f'{why} {times}' for why, times in troubles) or 'never'}")
    lines.append(f"\nthe worst {WORST}:")
    for v in sorted(verdicts, key=lambda v: -v.worst)[:WORST]:
        lines.append(f"seed {v.seed}, badness {v.worst:.3g}: {v.line}\n    {v.why}")
    return "\n".join(lines)


def run(seed: int, kept: int | None = None, show: bool = False) -> Verdict:
    """Make and judge the case of a seed, with at most ``kept`` numbers in the rows that a stream keeps."""
    if kept is not None:
        streams.KEPT_NUMBERS = kept
    return judged(draw(seed), show)


def main() -> int:
    """Run all cases, or one, and print how they went."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz_streams", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="seed of one case, to be run again in detail")
    parser.add_argument("--kept", type=int, help="most numbers in the rows that a stream keeps")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    if options.only is not None:
        return int(not run(options.only, options.kept, show=True).is_good)
    judge = partial(run, kept=options.kept)
    start, chosen = time.monotonic(), seeds(options.cases, options.seed)
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs) as pool:
            verdicts = list(pool.map(judge, chosen, chunksize=5))
    else:
        verdicts = [judge(seed) for seed in chosen]
    print(report(verdicts))
    outside = sum(not v.is_good for v in verdicts)
    print(f"\n{len(verdicts)} cases, {outside} not within, {time.monotonic() - start:.0f} s")
    return int(outside > 0)


if __name__ == "__main__":
    raise SystemExit(main())
