"""More columns than rows, and Gaussian processes: time and memory, exactness, held-out log loss, coverage.

`python -m benchmarks.wide NAME [--quick]` runs one of the studies alone.
"""

from __future__ import annotations

import argparse
import os
import time
import tracemalloc
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

if __name__ == "__main__":  # one thread: set before any library reads it
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[_name] = "1"

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_iris, load_wine, make_circles, make_classification, make_moons
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import BayesianRidge, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from benchmarks.bars import Row, markdown
from cavity import EPClassifier, EPGaussianProcessClassifier, EPRegressor
from reference.mcmc import elliptical_slices
from reference.problems import FloatArray

Outcome = tuple[list[Row], dict[str, str]]


def measure(quick: bool) -> Outcome:
    """All bars, and the tables behind them."""
    rows: list[Row] = []
    tables: dict[str, str] = {}
    for study in STUDIES.values():
        more, behind = study(quick)
        rows += more
        tables |= behind
    return rows, tables


def fitted(model: Any, X: Any, y: Any) -> Any:
    """Fit without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its processor time in seconds."""
    start = time.process_time()
    found = work()
    return found, time.process_time() - start


def expression(n: int, d: int, seed: int, share: float = 0.02, factors: int = 5) -> tuple[FloatArray, FloatArray]:
    """Rows of correlated columns, some of which have an effect, and labels; as many rows again for a test."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=d) * (rng.random(d) < share)
    X = rng.normal(size=(2 * n, d))
    if factors:
        X += rng.normal(size=(2 * n, factors)) @ rng.normal(size=(factors, d))
    z = X @ w
    return X, (rng.random(2 * n) < expit(3.0 * z / z.std())).astype(int)


# 1. Sizes.


def sizes(quick: bool) -> Outcome:
    """Seconds and memory of four sizes, beside peers."""
    cases = [("100 x 2,000", 100, 2000), ("100 x 8,000", 100, 8000), ("300 x 20,000", 300, 20_000)]
    cases = cases[:1] if quick else [*cases, ("1,000 x 100,000, 1 % filled", 1000, 100_000)]
    rows, lines = [], []
    for title, n, d in cases:
        if n == 1000:
            rng = np.random.default_rng(0)
            X: Any = sparse.random_array((n, d), density=0.01, rng=rng, format="csr")
            z = X @ (rng.normal(size=d) * (rng.random(d) < 0.02))
            y = (rng.random(n) < expit(3.0 * z / z.std())).astype(int)
        else:
            X, y = expression(n, d, seed=0)
            X, y = X[:n], y[:n]

        def posterior(X: Any = X, y: Any = y) -> Any:
            model = fitted(EPClassifier(), X, y)
            return model, model.coef_std_

        (model, _), own = min((timed(posterior) for _ in range(1 if n == 1000 else 3)), key=lambda pair: pair[1])
        peer = timed(lambda X=X, y=y: fitted(LogisticRegressionCV(max_iter=1000), X, y))[1]  # type: ignore[misc]
        ridge = np.nan if n == 1000 else timed(lambda X=X, y=y: fitted(BayesianRidge(), X, y))[1]  # type: ignore[misc]
        sparse_peer = np.nan if find_spec("skglm") is None else timed(lambda X=X, y=y: _skglm(X, y))[1]  # type: ignore[misc]
        tracemalloc.start()
        posterior()
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        size = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if sparse.issparse(X) else X.nbytes
        allowed = size + 80 * n * n  # beside the matrix itself
        times = [f"{one:.2f}" for one in (own, peer, ridge, sparse_peer)]
        lines.append((title, model.plan_.covariance, *times, f"{memory / 2**20:.0f} of {allowed / 2**20:.0f}"))
        rows.append(
            Row(f"{title}: seconds", f"{own:.2f} against {peer:.2f}", "at most LogisticRegressionCV's", own <= peer)
        )
        rows.append(
            Row(
                f"{title}: memory beside the matrix",
                f"{memory / 2**20:.1f} MB",
                f"at most the matrix and 10 n² numbers, {allowed / 2**20:.1f} MB",
                memory <= allowed,
            )
        )
    header = ("size", "posterior", "cavity, s", "LogisticRegressionCV, s", "BayesianRidge, s", "skglm, s", "MB")
    return rows, {"wide-sizes": markdown(header, lines)}


def _skglm(X: Any, y: Any) -> Any:
    return fitted(import_module("skglm").SparseLogisticRegression(alpha=0.01), X, y)


# 2. Parity with a full covariance.


def parity(quick: bool) -> Outcome:
    """The posterior in the space of the rows against that with a full covariance, the prior found by both."""
    rows, lines = [], []
    for n, d in ((80, 44), (200, 600)):
        X, y = expression(n, d, seed=1, share=0.3)
        X, y = X[:n], y[:n]
        full, wide = (fitted(EPClassifier(covariance=form, tol=1e-4), X, y) for form in ("full", "rows"))
        mean = float(np.max(np.abs(wide.coef_ - full.coef_) / full.coef_std_))
        std = float(np.max(np.abs(wide.coef_std_ / full.coef_std_ - 1.0)))
        evidence = abs(wide.log_evidence_ - full.log_evidence_)
        lines.append((f"{n} x {d}", f"{mean:.1e}", f"{std:.1e}", f"{evidence:.1e}"))
        rows.append(
            Row(
                f"{n} x {d} against a full covariance",
                f"means {mean:.1e} sd, deviations {std:.1e}, evidence {evidence:.1e}",
                "means 0.01 sd, deviations 1 %, evidence 0.01",
                mean <= 0.01 and std <= 0.01 and evidence <= 0.01,
            )
        )
    return rows, {"wide-parity": markdown(("size", "means, sd", "deviations", "evidence"), lines)}


# 3. Sampling.


class Sampled(NamedTuple):
    """Draws of the predictors of the rows, and a root of their prior covariance."""

    draws: FloatArray
    whitened: FloatArray


def sampled_predictors(K: FloatArray, y: FloatArray, draws: int, seed: int) -> Sampled:
    """Sample predictors with this prior covariance, and logistic likelihoods of labels -1 and 1."""
    values, vectors = np.linalg.eigh(K)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    rng = np.random.default_rng(seed)

    def level(points: FloatArray) -> FloatArray:
        return -np.sum(np.logaddexp(0.0, -y * (points @ root.T)), axis=1)

    start = rng.standard_normal((32, len(K)))
    found = elliptical_slices(level, start, draws, 20, draws // 2, rng).reshape(-1, len(K))
    return Sampled(found @ root.T, found)


def sampling(quick: bool) -> Outcome:
    """Coefficients of 60 x 500 against sampling, given the prior variance that was found."""
    n, d = 60, 500
    X, y = expression(n, d, seed=2, share=0.1)
    X, y = X[:n], y[:n]
    X = StandardScaler().fit_transform(X)
    v = float(fitted(EPClassifier(), X, y).prior_variance_)
    model = fitted(EPClassifier(prior_variance=v), X, y)
    Z, V = np.column_stack([X, np.ones(n)]), np.append(np.full(d, v), 100.0)
    K = (Z * V) @ Z.T
    draws = sampled_predictors(K, 2.0 * y - 1.0, 200 if quick else 2000, 0).draws
    # Given the predictors, coefficients are Gaussian: their moments are averaged, and not those of draws of them.
    gain = np.linalg.solve(K, Z * V).T
    mean = gain @ draws.mean(axis=0)
    variance = V - np.einsum("ji,ij->j", gain, Z * V) + np.einsum("ji,ik,jk->j", gain, np.cov(draws.T), gain)
    std = np.sqrt(variance[:d])
    apart = float(np.max(np.abs(model.coef_[0] - mean[:d]) / std))
    ratio = model.coef_std_[0] / std
    measured = f"means within {apart:.3f} sd, deviations {ratio.min():.3f} to {ratio.max():.3f}"
    bar = "means within 0.15 sd, deviations 0.9 to 1.1"
    met = apart <= 0.15 and bool(np.all((ratio >= 0.9) & (ratio <= 1.1)))
    return [Row(f"{n} x {d} against sampling", measured, bar, met)], {}


# 4. Held-out log loss.


def held_out(quick: bool) -> Outcome:
    """Log loss on rows that were not fitted, beside cross-validated logistic regression."""
    designs = [
        (f"{n} x {d}, {share:.0%} of columns, {factors} factors", n, d, share, factors)
        for n, d in ((100, 1000), (200, 3000))
        for share, factors in ((0.005, 0), (0.02, 5), (0.2, 5), (1.0, 0), (1.0, 20))
    ]
    lines, ratios = [], []
    for seed, (title, n, d, share, factors) in enumerate(designs[:2] if quick else designs):
        X, y = expression(n, d, seed, share, factors)
        losses = []
        for model in (EPClassifier(), LogisticRegressionCV(max_iter=1000)):
            losses.append(log_loss(y[n:], fitted(model, X[:n], y[:n]).predict_proba(X[n:])))
        ratios.append(losses[0] / losses[1])
        lines.append((title, f"{losses[0]:.4f}", f"{losses[1]:.4f}", f"{100.0 * (ratios[-1] - 1.0):+.1f} %"))
    rows = [
        Row(
            f"held-out log loss on {len(lines)} simulated sets, worst",
            f"{100.0 * (max(ratios) - 1.0):+.1f} %",
            "at most 2 % more than LogisticRegressionCV's",
            max(ratios) <= 1.02,
        ),
        Row(
            "the same, on average",
            f"{100.0 * (float(np.mean(ratios)) - 1.0):+.1f} %",
            "less than LogisticRegressionCV's",
            float(np.mean(ratios)) < 1.0,
        ),
    ]
    header = ("data", "cavity", "LogisticRegressionCV", "difference")
    return rows, {"wide-held-out": markdown(header, lines)}


# 5. Coverage.


def coverage(quick: bool) -> Outcome:
    """Intervals of coefficients that were drawn from the model, its variance given or found.

    Rows of many columns without any correlation are nearly orthogonal: their labels say nothing of the variance.
    """
    sets, rows, lines = 5 if quick else 40, [], []
    for n, d, factors in ((100, 500, 10), (200, 1000, 20), (100, 500, 0)):
        for title, kind in (("labels", EPClassifier), ("numbers", EPRegressor)):
            inside: list[list[float]] = [[], []]
            for seed in range(sets):
                rng = np.random.default_rng(seed)
                X = rng.normal(size=(n, d))
                if factors:
                    X = X + 1.5 * rng.normal(size=(n, factors)) @ rng.normal(size=(factors, d))
                X, v = StandardScaler().fit_transform(X), 9.0 / d
                w = np.sqrt(v) * rng.normal(size=d)
                z = X @ w
                y: Any = z + rng.normal(size=n) if kind is EPRegressor else rng.random(n) < expit(z)
                own = {"scale": 1.0, "normalize_y": False} if kind is EPRegressor else {}
                for shares, model in zip(inside, (kind(prior_variance=v, **own), kind()), strict=True):
                    found = fitted(model, X, y)
                    mean, std = np.ravel(found.coef_), np.ravel(found.coef_std_)
                    shares.append(float(np.mean(np.abs(w - mean) <= 1.6449 * std)))
            where = f"{n} x {d}, {factors} factors, {title}"
            each = [
                f"{100.0 * np.mean(one):.1f} % ({100.0 * min(one):.0f} to {100.0 * max(one):.0f})" for one in inside
            ]
            lines.append((where, *each))
            for what, shares in zip(("given", "found"), inside, strict=True):
                share = float(np.mean(shares))
                line = f"coverage of 90 % intervals, {where}, variance {what}, {sets} sets"
                rows.append(Row(line, f"{100.0 * share:.1f} %", "88 to 92 %", 0.88 <= share <= 0.92))
    return rows, {"wide-coverage": markdown(("data", "variance given", "variance found"), lines)}


# 6. Separable classes.


def separable(quick: bool) -> Outcome:
    """Classes that columns can separate: the variance stays bounded, and nothing overflows."""
    worst, finite = 0.0, True
    for seed in range(3 if quick else 10):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(100, 2000))
        y = X[:, seed] > 0.0
        with np.errstate(over="raise", invalid="raise"):
            model = fitted(EPClassifier(), X, y)
            finite &= bool(np.all(np.isfinite(model.predict_log_proba(X))))
        worst = max(worst, float(np.sqrt(model.prior_variance_ * 2000)))
    measured = f"standard deviation of the predictor at most {worst:.1f}, {'finite' if finite else 'not finite'}"
    return [
        Row("labels by the sign of one column of 2,000", measured, "at most 30, finite", finite and worst <= 30)
    ], {}


# 7. Gaussian processes.


def small_sets() -> dict[str, tuple[FloatArray, FloatArray]]:
    """Inputs and labels of two classes."""
    scale = StandardScaler().fit_transform
    iris, wine, cancer = (read(return_X_y=True) for read in (load_iris, load_wine, load_breast_cancer))
    x = np.linspace(-3.0, 3.0, 240)[:, None]
    rng = np.random.default_rng(0)
    wave = rng.random(240) < expit(3.0 * np.sin(3.0 * x[:, 0]))
    some = rng.permutation(len(cancer[0]))[:300]
    return {
        "moons": make_moons(300, noise=0.3, random_state=0),
        "circles": make_circles(300, noise=0.15, factor=0.5, random_state=0),
        "wave": (x, wave.astype(int)),
        "ten columns, four of them informative": make_classification(
            300, 10, n_informative=4, flip_y=0.1, random_state=0
        ),
        "iris, 1 against 2": (scale(iris[0][50:]), iris[1][50:] - 1),
        "wine, 1 against the rest": (scale(wine[0]), (wine[1] == 1).astype(int)),
        "breast cancer": (scale(cancer[0])[some], cancer[1][some]),
        "two clouds that overlap": make_classification(300, 2, n_redundant=0, class_sep=0.6, random_state=1),
    }


def processes(quick: bool) -> Outcome:
    """Held-out log density of Gaussian processes, beside Laplace's method, over halves of the data."""
    lines, wins, kernel = [], 0, ConstantKernel() * RBF()
    sets = small_sets()
    for title, (X, y) in list(sets.items())[: 2 if quick else None]:
        densities, splits = [], 1 if quick else 4
        for seed in range(splits):
            order = np.random.default_rng(seed).permutation(len(y))
            A, B = order[: len(y) // 2], order[len(y) // 2 :]
            pair = (EPGaussianProcessClassifier(kernel), GaussianProcessClassifier(kernel))
            densities.append([-log_loss(y[B], fitted(one, X[A], y[A]).predict_proba(X[B])) for one in pair])
        own, peer = np.mean(densities, axis=0)
        wins += int(own > peer)
        lines.append((title, f"{own:.4f}", f"{peer:.4f}"))
    rows = [
        Row(
            f"held-out log density of Gaussian processes, {len(lines)} sets",
            f"better on {wins}",
            "better than GaussianProcessClassifier's on six of eight",
            wins >= 0.75 * len(lines),
        ),
        latent(quick),
    ]
    return rows, {"wide-processes": markdown(("data", "cavity", "GaussianProcessClassifier"), lines)}


def latent(quick: bool) -> Row:
    """Posterior of the function at the inputs against sampling, given the kernel that was found."""
    X, y = small_sets()["moons"]
    X, y = X[:80], y[:80]
    model = fitted(EPGaussianProcessClassifier(ConstantKernel() * RBF()), X, y)
    given = EPGaussianProcessClassifier(model.kernel_, optimizer=None, tol=1e-4)
    mean, variance = fitted(given, X, y).latent_mean_and_variance(X)
    draws = sampled_predictors(model.kernel_(X), 2.0 * y - 1.0, 200 if quick else 3000, 0).draws
    ratio = np.sqrt(variance) / draws.std(axis=0)
    apart = float(np.max(np.abs(mean - draws.mean(axis=0)) / draws.std(axis=0)))
    return Row(
        "function of a Gaussian process at 80 inputs against sampling",
        f"deviations {ratio.min():.3f} to {ratio.max():.3f}, means within {apart:.3f} sd",
        "deviations 0.95 to 1.05",
        bool(np.all((ratio >= 0.95) & (ratio <= 1.05))),
    )


STUDIES = {
    "sizes": sizes,
    "parity": parity,
    "sampling": sampling,
    "held_out": held_out,
    "coverage": coverage,
    "separable": separable,
    "processes": processes,
}


def main() -> None:
    """Run one study."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide", description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows, tables = STUDIES[options.study](options.quick)
    print(markdown(("work", "measured", "bar", ""), [row.cells for row in rows]))
    for table in tables.values():
        print(f"\n{table}")


if __name__ == "__main__":
    main()
