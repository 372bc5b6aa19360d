"""Can a fit be trusted: leave-one-out, calibration, robust errors, skewed intervals, many classes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.bars import Row, markdown
from benchmarks.data import REAL, SIMULATED, load, standardised
from benchmarks.models_softmax import RATIO_BAR, SKEWNESS, held_out, sampled
from cavity import EPClassifier, EPRegressor
from cavity.ep import blocks
from cavity.ep.blocks import Blocks
from cavity.ep.driver import Options
from cavity.ep.posteriors import DensePosterior
from cavity.ep.skewness import marginal_shapes
from cavity.estimators import row_findings
from cavity.estimators.base import LinearEP
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Hinge, Logistic, Poisson
from reference.mcmc import elliptical_slices
from reference.problems import FloatArray

# Leave-one-out: rows that are refitted of every data set, half of them those for which refits matter most.
REFITS, REFITS_QUICK = 60, 10
# Sets of rows of a coverage, and draws of a posterior.
SETS, SETS_QUICK = 500, 10
DRAWS, DRAWS_QUICK = 16_000, 800
QUICK_ROWS = 300


def measure(quick: bool) -> tuple[list[Row], dict[str, str]]:
    """All bars, and the tables behind them."""
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    tables: dict[str, str] = {}
    for part in (left_out, calibration, robust, intervals, exact, classes):
        more, name, table = part(quick)
        rows += more
        tables[f"trust-{name}"] = table
    return rows, tables


# Leave-one-out.


class LeftOutCase(NamedTuple):
    """A model and its rows."""

    name: str
    model: Any
    X: FloatArray
    y: Any


def _left_out_cases() -> Iterator[LeftOutCase]:
    """Eight data sets and five losses: prior variances are given, as those of refits must be."""
    rng = np.random.default_rng(0)
    X, y = load_breast_cancer(return_X_y=True)
    yield LeftOutCase("breast cancer, logistic", EPClassifier(prior_variance=1.0), standardised(X), y)
    yield LeftOutCase("breast cancer, hinge", EPClassifier("hinge", prior_variance=1.0), standardised(X), y)
    X, y = load_iris(return_X_y=True)
    yield LeftOutCase("iris, softmax", EPClassifier(prior_variance=4.0), standardised(X), y)
    X, y = load_diabetes(return_X_y=True)
    options = {"prior_variance": 0.1, "scale": 55.0}
    for loss in ("squared", "huber", "quantile"):
        yield LeftOutCase(f"diabetes, {loss}", EPRegressor(loss, **options), standardised(X), y)
    X = rng.standard_normal((300, 8))
    X[:, 0] = rng.random(300) < 0.02
    y = rng.random(300) < expit(X @ rng.standard_normal(8) - 2.0 * X[:, 0])
    yield LeftOutCase("a rare column, logistic", EPClassifier(prior_variance=25.0), X, y)
    X = rng.standard_normal((200, 5))
    y = rng.poisson(np.exp(0.5 * X @ rng.standard_normal(5)))
    yield LeftOutCase("counts, Poisson", EPRegressor("poisson", prior_variance=4.0), X, y)
    X = rng.integers(0, 2, (200, 4)).astype(float)
    y = rng.random(200) < expit(X @ [1.0, -1.0, 0.5, 0.0])
    yield LeftOutCase("repeated rows, logistic", EPClassifier(prior_variance=4.0), X, y)
    X = rng.standard_normal((200, 10))
    yield LeftOutCase("separable, logistic", EPClassifier(prior_variance=25.0), X, X @ rng.standard_normal(10) > 0.0)


def left_out(quick: bool) -> tuple[list[Row], str, str]:
    """Log densities from cavities against those of refits, and the time that they take."""
    rows, cells = [], []
    for case in _left_out_cases():
        seconds, model = _timed(lambda case=case: case.model.fit(case.X, case.y))
        again = type(model)(**{**model.get_params(), "loo_refit": True}).fit(case.X, case.y)
        # Those that move their predictor farthest, all of them, and a sample of the others.
        order = np.argsort(-np.abs(again.loo_ - model.loo_), kind="stable")
        half = (REFITS_QUICK if quick else REFITS) // 2
        chosen = np.append(order[:half], np.random.default_rng(0).permutation(order[half:])[:half])
        refits = np.array([_without(case, int(row)) for row in chosen])
        cavities, repaired = model.loo_[chosen], again.loo_[chosen]
        away = cavities - refits
        wrong = float(np.sum(away[:half]) + np.mean(away[half:]) * (len(case.y) - half))
        correlation, after = (float(np.corrcoef(a, refits)[0, 1]) for a in (cavities, repaired))
        allowed = max(0.5, 0.01 * abs(model.elpd_loo_))
        met = abs(wrong) <= allowed and correlation > 0.999
        far = model.loo_unreliable_.size
        measured = f"sum {wrong:+.2f} of {model.elpd_loo_:.1f}, correlation {correlation:.5f}; "
        measured += f"{far} unreliable rows refitted {after:.5f}"
        rows.append(Row(f"leave-one-out, {case.name}", measured, "within 1 % or 0.5; above 0.999", met))
        share = seconds["left out"] / seconds["fit"]
        cells.append((case.name, f"{len(case.y)} x {case.X.shape[1]}", f"{100 * share:.1f} %", measured))
    rng = np.random.default_rng(1)
    for n, d in ((20_000, 30), (5_000, 100)):
        X = rng.standard_normal((n // 10 if quick else n, d))
        z = X @ rng.standard_normal(d) / np.sqrt(d)
        for name, model, y in (
            ("logistic", EPClassifier(), rng.random(len(X)) < expit(2.0 * z)),
            ("squared", EPRegressor(), z + rng.standard_normal(len(X))),
        ):
            seconds, _ = _timed(lambda model=model, X=X, y=y: model.fit(X, y))
            share = seconds["left out"] / seconds["fit"]
            title = f"leave-one-out, time, {name}, {len(X):,} x {d}"
            rows.append(Row(title, f"{100 * share:.1f} % of {seconds['fit']:.2f} s", "at most 5 %", share <= 0.05))
    return rows, "left-out", markdown(("data", "size", "share of the time of a fit", "against refits"), cells)


def _timed(fit: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Processor time of a fit, and of leaving rows out within it."""
    spent = {"left out": 0.0}

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **options)
            finally:
                spent["left out"] += time.process_time() - start

        return timed

    # Of the squared loss, the predictors of all rows too.
    densities = [(kind, "_without_themselves") for kind in (EPClassifier, EPRegressor)]
    parts: list[Any] = [(row_findings, "left_out"), *densities, (Blocks, "predict_rows")]
    before = [getattr(place, name) for place, name in parts]
    for (place, name), function in zip(parts, before, strict=True):
        setattr(place, name, wrapped(function))
    try:
        start = time.process_time()
        model = fit()
        spent["fit"] = time.process_time() - start
    finally:
        for (place, name), function in zip(parts, before, strict=True):
            setattr(place, name, function)
    return spent, model


def _without(case: LeftOutCase, row: int) -> float:
    """Log density of a row under a fit without it."""
    model: LinearEP = type(case.model)(**case.model.get_params())
    X, y = np.delete(case.X, row, axis=0), np.delete(case.y, row)
    if isinstance(model, EPClassifier):
        model.fit(X, y)
        return float(model.predict_log_proba(case.X[[row]])[0, np.searchsorted(model.classes_, case.y[row])])
    # Units of the targets are those of the whole fit: the prior is in these.
    unit, offset = case.model.y_scale_, case.model.y_offset_
    options = {**model.get_params(), "normalize_y": False, "scale": model.scale}
    if case.model._fitted.targets.kind == "reals":
        options |= {"scale": model.scale / unit}
        model = EPRegressor(**options).fit(X, (y - offset) / unit)
        return float(model.log_densities(case.X[[row]], [(case.y[row] - offset) / unit])[0] - np.log(unit))
    return float(model.fit(X, y).log_densities(case.X[[row]], [case.y[row]])[0])


# Calibration.


def _tasks(quick: bool) -> Iterator[tuple[str, FloatArray, Any]]:
    """Tasks of two classes, then of several."""
    X, y = load_digits(return_X_y=True)
    for a in range(10):
        for b in range(a if not quick else min(a, 1)):
            kept = (y == a) | (y == b)
            yield f"digits {b}/{a}", X[kept], y[kept]
    wine, kinds = load_wine(return_X_y=True)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        kept = (kinds == a) | (kinds == b)
        yield f"wine {a}/{b}", wine[kept], kinds[kept]
    iris, species = load_iris(return_X_y=True)
    yield "iris 1/2", iris[species > 0], species[species > 0]
    for name in (*SIMULATED, *REAL):
        data = load(name)
        yield name, data.X[:1000], data.y[:1000]
    rng = np.random.default_rng(5)
    for n, d, size in ((60, 10, 1.0), (100, 30, 1.0), (200, 5, 2.0), (300, 50, 0.5), (150, 20, 3.0)):
        Z = rng.standard_normal((n, d))
        yield f"simulated {n} x {d}", Z, rng.random(n) < expit(size * Z @ rng.standard_normal(d))
    yield "wine", wine, kinds
    yield "iris", iris, species
    for chosen in ("012", "389", "174", "569", "01234", "56789", "1389"):
        kept = np.isin(y, [int(one) for one in chosen])
        yield f"digits {chosen}", X[kept], y[kept]
    for n, d, count, size in ((150, 4, 3, 2.0), (300, 10, 4, 1.0), (200, 20, 3, 1.0)):
        Z = rng.standard_normal((n, d))
        scores = size * Z @ rng.standard_normal((d, count))
        labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
        yield f"simulated {n} x {d}, {count} classes", Z, labels
    if not quick:
        yield "digits", X, y


def calibration(quick: bool) -> tuple[list[Row], str, str]:
    """Held-out log loss, calibrated and not, and of LogisticRegressionCV."""
    cells, found = [], {"two classes": [], "several classes": []}
    for name, X, y in _tasks(quick):
        _, codes = np.unique(y, return_inverse=True)
        losses, factors = _log_losses(X, codes)
        found["two classes" if np.max(codes) == 1 else "several classes"].append(losses)
        cells.append((name, f"{len(y)} x {X.shape[1]}", *(f"{a:.4f}" for a in losses), f"{np.mean(factors):.2f}"))
    rows = []
    for kind, values in found.items():
        plain, calibrated, peer = np.array(values).T
        worse, beyond = np.max(calibrated / plain) - 1.0, np.max(calibrated / peer) - 1.0
        better, count = int(np.sum(calibrated < peer)), len(values)
        sums = f"sums {np.sum(plain):.3f}, calibrated {np.sum(calibrated):.3f}, LogisticRegressionCV {np.sum(peer):.3f}"
        bar = "never more than 2 % worse than uncalibrated"
        rows.append(Row(f"calibration, {kind}", f"at most {100 * worse:+.1f} %; {sums}", bar, worse <= 0.02))
        bar = "better than LogisticRegressionCV on two thirds"
        rows.append(Row(f"calibration, {kind}", f"{better} of {count}", bar, 3 * better >= 2 * count))
        bar = "never more than 25 % worse than LogisticRegressionCV"
        rows.append(Row(f"calibration, {kind}", f"at most {100 * beyond:+.0f} %", bar, beyond <= 0.25))
    header = ("data", "size", "EPClassifier", "calibrated", "LogisticRegressionCV", "factor")
    return rows, "calibration", markdown(header, cells)


def _log_losses(X: FloatArray, codes: Any) -> tuple[tuple[float, ...], list[float]]:
    """Mean log losses over five folds: plain, calibrated and the peer's; and the factors."""
    sums, factors = np.zeros(3), []
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, codes):
        scaler, own = StandardScaler().fit(X[train]), (np.arange(test.size), codes[test])
        ours = EPClassifier(calibration="loo").fit(scaler.transform(X[train]), codes[train])
        plain = EPClassifier().fit(scaler.transform(X[train]), codes[train])
        peer = make_pipeline(LogisticRegressionCV(scoring="neg_log_loss", max_iter=2000))
        peer.fit(scaler.transform(X[train]), codes[train])
        for k, model in enumerate((plain, ours, peer)):
            sums[k] -= np.sum(model.predict_log_proba(scaler.transform(X[test]))[own])
        factors.append(ours.calibration_)
    return tuple(sums / codes.size), factors


# Robust errors.


def _comparison(rng: Any) -> tuple[FloatArray, FloatArray, Callable[[float], FloatArray]]:
    """The comparison's task: noise of a gamma distribution, whose spread grows with the features."""
    X, slopes, growth, noise = rng.random((1000, 5)), rng.standard_normal(5), rng.random(5), stats.gamma(2.0)
    y = X @ slopes + (0.2 + X @ growth) * (rng.gamma(2.0, size=1000) - 2.0) / np.sqrt(2.0)
    return X, y, lambda q: slopes + growth * (noise.ppf(q) - 2.0) / np.sqrt(2.0)


def _heavy(rng: Any) -> tuple[FloatArray, FloatArray, Callable[[float], FloatArray]]:
    """300 rows with the noise of Student's t."""
    X, slopes = rng.standard_normal((300, 3)), rng.standard_normal(3)
    return X, X @ slopes + rng.standard_t(4, size=300), lambda q: slopes


def _uneven(rng: Any) -> tuple[FloatArray, FloatArray, Callable[[float], FloatArray]]:
    """500 rows of a skewed, a binary and a normal feature, two of which widen the noise."""
    X = np.column_stack([rng.exponential(size=500), rng.random(500) < 0.3, rng.standard_normal(500)])
    slopes, growth = rng.standard_normal(3), np.array([0.5, 0.5, 0.0])
    y = X @ slopes + (0.3 + X @ growth) * rng.standard_normal(500)
    return X, y, lambda q: slopes + growth * stats.norm.ppf(q)


def robust(quick: bool) -> tuple[list[Row], str, str]:
    """Coverage of 90 % intervals of slopes, of quantiles and of means of clustered rows."""
    rows, cells, sets = [], [], SETS_QUICK if quick else SETS
    for name, make in (("the comparison's", _comparison), ("heavy tails", _heavy), ("uneven", _uneven)):
        for q in (0.05, 0.5, 0.95):
            rng, hits = np.random.default_rng(1), []
            for _ in range(sets):
                X, y, truth = make(rng)
                model = EPRegressor("quantile", quantile=q).fit(X, y)
                plain = np.sqrt(np.diag(model._fitted.targets.unit**2 * model.posterior_[0].covariance))[: X.shape[1]]
                away = np.abs(model.coef_ - truth(q))
                hits.append([np.mean(away < 1.645 * std) for std in (plain, model.coef_std_)])
            before, after = 100.0 * np.mean(hits, axis=0)
            measured = f"{after:.1f} % (posterior {before:.1f} %)"
            rows.append(Row(f"robust, quantile {q:g}, {name}", measured, "86 to 93 %", 86.0 <= after <= 93.0))
            cells.append((f"quantile {q:g}, {name}", f"{before:.1f}", f"{after:.1f}"))
    for count in (20, 50, 200):
        rng, hits = np.random.default_rng(2), []
        for _ in range(sets):
            members = rng.integers(0, count, 1000)
            X = 0.7 * rng.standard_normal((count, 2))[members] + 0.7 * rng.standard_normal((1000, 2))
            slopes = rng.standard_normal(2)
            y = X @ slopes + rng.standard_normal(count)[members] + rng.standard_normal(1000)
            away = [
                np.mean(np.abs(m.coef_ - slopes) < 1.645 * m.coef_std_)
                for m in (EPRegressor().fit(X, y), EPRegressor().fit(X, y, clusters=members))
            ]
            hits.append(away)
        before, after = 100.0 * np.mean(hits, axis=0)
        measured = f"{after:.1f} % (posterior {before:.1f} %)"
        rows.append(Row(f"robust, {count} clusters", measured, "86 to 93 %", 86.0 <= after <= 93.0))
        cells.append((f"{count} clusters", f"{before:.1f}", f"{after:.1f}"))
    return rows, "robust", markdown(("rows", "posterior", "robust"), cells)


# Skewed intervals.


def _skewed(rng: Any) -> Iterator[tuple[str, Any, FloatArray, FloatArray, float]]:
    """Rare columns, levels of which nearly all rows are of one class, small and separable data."""
    X = rng.standard_normal((800, 12))
    X[:, 0] = rng.random(800) < 0.01
    y = np.where(rng.random(800) < expit(X @ rng.standard_normal(12) - 2.0 + 3.0 * X[:, 0]), 1.0, -1.0)
    yield "a rare column, logistic", Logistic(), X, y, 25.0
    yield "a rare column, hinge", Hinge(), X, y, 25.0
    level = rng.integers(0, 30, 300)
    y = np.where(rng.random(300) < expit(2.0 + rng.standard_normal(30)[level]), 1.0, -1.0)
    yield "levels of one class", Logistic(), np.eye(30)[level], y, 9.0
    X = rng.standard_normal((60, 6))
    y = np.where(X[:, 0] + 0.5 * rng.logistic(size=60) > 0.0, 1.0, -1.0)
    yield "60 rows, logistic", Logistic(), X, y, 9.0
    X = rng.standard_normal((40, 5))
    yield "separable, logistic", Logistic(), X, np.where(X[:, 0] > 0.0, 1.0, -1.0), 9.0
    X = rng.standard_normal((100, 4))
    X[:, 0] = rng.random(100) < 0.1
    yield "rare counts, Poisson", Poisson(), X, rng.poisson(np.exp(-1.0 - X[:, 0] + 0.5 * X[:, 1])).astype(float), 4.0


def intervals(quick: bool) -> tuple[list[Row], str, str]:
    """What exact draws leave beyond both ends of 90 % intervals."""
    rows, cells, count = [], [], DRAWS_QUICK if quick else DRAWS
    rng = np.random.default_rng(3)
    for name, loss, X, y, variance in _skewed(rng):
        distinct, found = _fitted(loss, X, y, variance)
        shapes = marginal_shapes(loss, distinct, distinct.targets[0], found.row_sites, found.posterior)
        mean, std = found.posterior.mean, found.posterior.std
        draws = _draws(loss, X, y, variance, found.posterior, count, rng)
        width = std * np.sqrt(shapes.widening) / np.std(draws, axis=0)
        outside = np.array(
            [
                [np.mean(sign * draws > sign * (mean + std * end), axis=0) for sign, end in ((-1, low), (1, high))]
                for low, high in (
                    (stats.norm.ppf(0.05), stats.norm.ppf(0.95)),
                    (shapes.quantiles(0.05), shapes.quantiles(0.95)),
                )
            ]
        )
        least, most = 100.0 * np.min(outside[1]), 100.0 * np.max(outside[1])
        measured = f"{least:.1f} to {most:.1f} % (Gaussian {100.0 * np.min(outside[0]):.1f} to "
        measured += f"{100.0 * np.max(outside[0]):.1f} %)"
        rows.append(Row(f"intervals, {name}", measured, "3.5 to 6.5 %", least >= 3.5 and most <= 6.5))
        spread = f"{np.min(std / np.std(draws, axis=0)):.3f}", f"{np.min(width):.3f} to {np.max(width):.3f}"
        cells.append((name, f"{np.max(np.abs(shapes.skewness)):.2f}", *spread, measured))
    header = ("posterior", "largest skewness", "EP's deviation, least ratio", "with widening", "beyond both ends")
    return rows, "intervals", markdown(header, cells)


def _fitted(loss: Any, X: FloatArray, y: FloatArray, variance: float) -> tuple[Any, Any]:
    """EP with a constant column and given prior variances."""
    d = X.shape[1]
    prior = FactorialGaussian.from_moments(np.zeros(d + 1), np.append(np.full(d, variance), 100.0))
    rows = Rows.arrange(X, y[None], None, intercept=True)
    return rows, blocks.run(loss, rows, DensePosterior(rows, prior), Options(100, 1e-4))


def _draws(loss: Any, X: FloatArray, y: FloatArray, variance: float, around: Any, count: int, rng: Any) -> FloatArray:
    """Exact draws of the coefficients and, last, an intercept of prior variance 100, in long chains."""
    A, prior = np.column_stack([X, np.ones(len(X))]), np.append(np.full(X.shape[1], variance), 100.0)
    root = np.linalg.cholesky(1.3 * around.covariance)

    def level(z: FloatArray) -> FloatArray:
        theta = around.mean + z @ root.T
        fit = np.sum(loss.value(y, theta @ A.T), axis=1) + 0.5 * np.sum(theta**2 / prior, axis=1)
        return np.asarray(0.5 * np.sum(z * z, axis=1) - fit)

    values = elliptical_slices(level, rng.standard_normal((64, len(prior))), count // 64, 4, 40, rng)
    return np.asarray(around.mean + values.reshape(-1, len(prior)) @ root.T)


# Checks and exact draws.


def _posteriors(count: int) -> Iterator[tuple[str, Any, FloatArray, FloatArray]]:
    """Posteriors from nearly Gaussian ones to those of separable classes and rare columns, of four losses."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        n, d = int(rng.choice([30, 60, 150, 400])), int(rng.choice([2, 4, 8]))
        X = rng.standard_normal((n, d))
        if rng.random() < 0.4:
            X[:, 0] = rng.random(n) < 0.05
        z = rng.choice([0.5, 1.5, 4.0]) * X @ rng.standard_normal(d) / np.sqrt(d)
        variance, kind = float(rng.choice([1.0, 9.0, 25.0])), ("logistic", "hinge", "poisson", "huber")[seed % 4]
        title = f"{kind}, {n} x {d}, prior variance {variance:g}"
        if kind in ("logistic", "hinge"):
            y = np.where(z + 0.3 * rng.logistic(size=n) > 0.0, 1.0, -1.0)
            yield title, EPClassifier(kind, prior_variance=variance, tol=1e-3), X, y
            continue
        y = rng.poisson(np.exp(0.3 * z - 0.5)) if kind == "poisson" else z + rng.standard_t(3, n)
        options = {"prior_variance": variance, "scale": 1.0, "normalize_y": False, "tol": 1e-3}
        yield title, EPRegressor(kind, **options), X, y.astype(float)


def exact(quick: bool) -> tuple[list[Row], str, str]:
    """Verdicts of `check`, and draws of `sample`, against long chains of the reference."""
    cells, wrong, told = [], 0, {"right": 0, "off": 0, "not known": 0}
    shifts, widths = [], []
    for k, (name, model, X, y) in enumerate(_posteriors(6 if quick else 60)):
        if np.unique(y).size < 2:
            continue
        model.fit(X, y)
        found, rng = model.posterior_[0], np.random.default_rng(k)
        longer = 4 * (DRAWS_QUICK if quick else DRAWS) if k % 3 == 0 else DRAWS
        chains = _draws(model.loss_, X, y, model.prior_variance, found, longer, rng)
        mean, std = np.mean(chains, axis=0), np.std(chains, axis=0)
        ratios, verdict = found.std / std, model.check(X, y)
        said = "right" if verdict.is_right else "off" if verdict.is_believed else "not known"
        told[said] += 1
        wrong += said == "right" and float(np.max(np.abs(ratios - 1.0))) > 0.15
        line = [name, said, f"{verdict.shape:.2f}", f"{np.min(ratios):.3f} to {np.max(ratios):.3f}", "", ""]
        if k % 3 == 0:
            draws = model.sample(X, y, draws=DRAWS_QUICK if quick else DRAWS, max_seconds=120.0)
            shifts.append(float(np.max(np.abs(draws.mean - mean) / std)))
            widths.append(float(np.max(np.abs(draws.std / std - 1.0))))
            line[4] = f"{shifts[-1]:.3f} sd, {100 * widths[-1]:.1f} %"
            line[5] = f"{np.min(draws.effective) / draws.seconds:.0f}"
        cells.append(tuple(line))
    said = ", ".join(f"{number} {what}" for what, number in told.items())
    bar = "none called right with a deviation off by more than 15 %"
    rows = [Row(f"check, {sum(told.values())} problems", f"{wrong} wrong; {said}", bar, wrong == 0)]
    measured = f"means within {max(shifts):.3f} sd, deviations within {100 * max(widths):.1f} %; "
    measured += f"typically {np.median(shifts):.3f} sd, {100 * np.median(widths):.1f} %"
    met = max(shifts) <= 0.05 and max(widths) <= 0.03
    rows.append(
        Row(f"exact draws, {len(shifts)} problems", measured, "0.05 sd and 3 %, Monte Carlo error included", met)
    )
    header = ("posterior", "verdict", "Pareto k", "EP's deviations, ratio", "draws, apart", "effective/s")
    return rows, "exact", markdown(header, cells)


# Many classes.


def classes(quick: bool) -> tuple[list[Row], str, str]:
    """Deviations of small data against sampling, and digits."""
    rows, cells = [], []
    for count, n, d, size in ((6, 60, 3, 1.5), (10, 120, 3, 1.5), (20, 200, 3, 1.5)):
        rng = np.random.default_rng(1)
        X = rng.standard_normal((n, d))
        scores = X @ rng.normal(0.0, size, (d, count))
        y = np.unique(np.argmax(scores + rng.gumbel(size=scores.shape), axis=1), return_inverse=True)[1]
        free = EPClassifier().fit(X, y)
        model = EPClassifier(prior_variance=free.prior_variance_ / free.prior_units_**2, tol=1e-3).fit(X, y)
        draws = sampled(model, X, y, DRAWS_QUICK if quick else 4000)
        ratios = np.sqrt(np.concatenate([p.variance for p in model.posterior_])) / draws.std
        even = np.abs(draws.skewness) < SKEWNESS
        least, most = np.min(ratios[even]), np.max(ratios[even])
        met = bool(least >= RATIO_BAR[0] and most <= RATIO_BAR[1])
        measured = f"{least:.3f} to {most:.3f} of sampling, {np.sum(even)} of {even.size}"
        rows.append(Row(f"many classes, {count}, {n} x {d}", measured, "0.9 to 1.1", met))
        cells.append((f"{count} classes, {n} x {d}", f"{free.prior_variance_:.2f}", measured))
    X, y = load_digits(return_X_y=True)
    X, y = (X[:QUICK_ROWS], y[:QUICK_ROWS]) if quick else (X, y)
    start = time.process_time()
    EPClassifier().fit(X, y)
    seconds = time.process_time() - start
    rows.append(Row("many classes, fit to digits", f"{seconds:.2f} s", "at most 1 s", seconds <= 1.0))
    peer = held_out(X, y, lambda: LogisticRegressionCV(scoring="neg_log_loss", max_iter=3000))[0]
    for name, options in (("", {}), (", calibrated", {"calibration": "loo"})):
        ours = held_out(X, y, lambda options=options: EPClassifier(**options))[0]
        title = f"many classes, digits{name}"
        measured = f"log loss {ours:.4f} against {peer:.4f}"
        rows.append(Row(title, measured, "at most 5 % above LogisticRegressionCV", ours <= 1.05 * peer))
    return rows, "classes", markdown(("data", "prior variance", "deviations where the skewness is below 0.4"), cells)
