"""Estimators and streams under odd data: ``python -m benchmarks.fuzz_estimators --cases 20000 --seed 0``.

A case is a model, data and a few calls. It ends well if every call returns, or raises ValueError or one of its kin.
What fails: a crash, more than 20 s, any other exception, a number that is not finite, a standard deviation of zero
unless nothing is uncertain, probabilities that are none, and a model that a refused call has changed.

Cases run in processes of their own, a chunk in each, so that a crash is seen and the rest goes on.
"""

from __future__ import annotations

import argparse
import pickle
import signal
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.exceptions import NotFittedError

from cavity import EPClassifier, EPRegressor, FactorError
from cavity.estimators.columns import columns_of
from cavity.estimators.files import check_state
from cavity.gaussians.factorial import ImproperError

CHUNK, SECONDS = 200, 20
ALLOWED = (ValueError, NotFittedError, ImproperError, FactorError)
# Where scikit-learn itself raises TypeError: sparse rows that hold no numbers, no data at all.
TYPE_ERRORS = ("sparse", "Sparse", "numeric", "Cannot cast", "argument must be a string or a real number")
SIZES = (0.0, 1e-300, 1e-30, 1e-8, 1.0, 1.0, 1.0, 1.0, 1e3, 1e8, 1e30, 1e99, 1e155, 1e300)
# Most cases are calm: numbers that a user could have, and nothing malformed.
CALM, CALM_SIZES = 0.6, (1e-6, 0.1, 1.0, 1.0, 1.0, 10.0, 1e3, 1e6)
ODD = (None, "x", "auto", True, 0, -1, 2.5, np.nan, np.inf, 1e308, 1e-308, [], [1.0, 2.0], {}, object(), 10**30)
CLASSIFIER_LOSSES = ("logistic", "logistic", "hinge", "quasi01")
REGRESSOR_LOSSES = (
    "squared",
    "squared",
    "huber",
    "absolute",
    "quantile",
    "poisson",
    "normal",
    "normal",
    "gamma",
    "negative_binomial",
)


class Alarm(Exception):  # noqa: N818
    """A case that takes too long."""


def one_of(rng: Any, *choices: Any) -> Any:
    """Choose, each with the same probability."""
    return choices[int(rng.integers(len(choices)))]


def draw_rows(rng: Any, n: int, d: int, calm: bool) -> Any:
    """Rows of a size, with a structure."""
    X = rng.normal(size=(n, d))
    kind = one_of(rng, "plain", "plain", "zeros", "equal", "repeated", "ints", "columns", "one")
    if kind == "zeros":
        X *= rng.random((n, d)) < 0.2
    elif kind == "equal":
        X = np.repeat(X[:1], n, axis=0)
    elif kind == "repeated":
        X = X[rng.integers(n, size=n)]
    elif kind == "ints":
        X = rng.integers(-2, 3, size=(n, d)).astype(float)
    elif kind == "columns":
        X[:, 1:] = X[:, :1]
    elif kind == "one":
        X[:, 0] = 1.0
    X = X * one_of(rng, *(CALM_SIZES if calm else SIZES))
    if rng.random() < 0.2:
        X = X * 10.0 ** (rng.uniform(-3.0, 3.0, d) if calm else rng.uniform(-12.0, 12.0, d))
    if not calm and rng.random() < 0.05:
        X[rng.integers(n), rng.integers(d)] = one_of(rng, np.nan, np.inf, -np.inf, 1e300, 1e150)
    return X


def stored(rng: Any, X: Any, calm: bool) -> Any:
    """Rows in a storage, sometimes a malformed one."""
    with np.errstate(over="ignore"):
        kinds = ("dense", "dense", "fortran", "single", "csr", "csr", "csc", "list")
        kind = one_of(rng, *kinds) if calm else one_of(rng, *kinds, "object", "bad csr", "bad csr")
        if kind == "fortran":
            return np.asfortranarray(X)
        if kind == "single":
            return X.astype(np.float32)
        if kind == "csr":
            return sparse.csr_array(X)
        if kind == "csc":
            return sparse.csc_array(X)
        if kind == "list":
            return X.tolist()
        if kind == "object":
            rows = X.astype(object)
            if rng.random() < 0.3:
                rows.flat[rng.integers(rows.size)] = one_of(rng, None, "x", 1j, [])
            return rows
        return spoilt_csr(rng, X) if kind == "bad csr" else X


def spoilt_csr(rng: Any, X: Any) -> Any:
    """CSR whose arrays do not fit each other."""
    rows = sparse.csr_array(X)
    if rows.nnz == 0:
        return rows
    kind = one_of(rng, "above", "negative", "indptr", "short", "falling", "unsorted", "kind")
    place = int(rng.integers(rows.nnz))
    if kind == "above":
        rows.indices[place] = X.shape[1] + int(rng.integers(10**9))
    elif kind == "negative":
        rows.indices[place] = -1 - int(rng.integers(10**6))
    elif kind == "indptr":
        rows.indptr[int(rng.integers(rows.indptr.size))] = int(rng.integers(-(10**6), 10**6))
    elif kind == "short":
        rows.data = rows.data[: rows.nnz // 2]
    elif kind == "falling":
        rows.indptr[:] = rows.indptr[::-1].copy()
    elif kind == "unsorted":
        rows.indices[:] = rows.indices[::-1].copy()
    elif kind == "kind":
        rows.indices = rows.indices.astype(np.float64)
    return rows


def calm_targets(rng: Any, n: int, classify: bool, loss: Any) -> Any:
    """Labels of all classes, or numbers."""
    if classify:
        return np.arange(n) % one_of(rng, 2, 2, 2, 3, 6)
    if loss == "gamma":
        return rng.gamma(2.0, size=n) * one_of(rng, *CALM_SIZES)
    counts = loss in ("poisson", "negative_binomial")
    y = rng.poisson(one_of(rng, 0.3, 2.0, 50.0), size=n).astype(float)
    return y if counts else rng.normal(size=n) * one_of(rng, *CALM_SIZES) + one_of(rng, 0.0, 0.0, 1e3, -1e6)


def draw_targets(rng: Any, n: int, classify: bool) -> Any:
    """Labels or numbers, often unfit for use."""
    if classify:
        count = one_of(rng, 1, 2, 2, 2, 2, 3, 6)
        y: Any = rng.integers(count, size=n)
        form = one_of(rng, "int", "int", "int", "str", "float", "bool", "object", "matrix", "wrong")
        if form == "str":
            return y.astype(str)
        if form == "float":
            return y.astype(float) + one_of(rng, 0.0, 0.5)
        if form == "bool":
            return y > 0
        if form == "object":
            return np.where(y > 0, None, "a") if rng.random() < 0.3 else y.astype(object)
        if form == "matrix":
            return np.column_stack([y, y])
        return y[:-1] if form == "wrong" else y
    y = rng.normal(size=n) * one_of(rng, *SIZES) + one_of(rng, 0.0, 0.0, 1e6, -1e12, 1e155)
    kind = one_of(rng, "plain", "plain", "plain", "constant", "counts", "counts", "outlier", "nan", "object", "wrong")
    if kind == "constant":
        return np.full(n, y[0])
    if kind == "counts":
        return rng.poisson(2.0, size=n) * one_of(rng, 1.0, 1.0, 1e6, 1e30)
    if kind == "outlier":
        y[0] = one_of(rng, 1e300, 1e20, np.inf)
    elif kind == "nan":
        y[0] = np.nan
    elif kind == "object":
        y = y.astype(object)
        y[0] = one_of(rng, None, "x", 1.0)
    return y[:-1] if kind == "wrong" else y


def draw_weights(rng: Any, n: int, calm: bool) -> Any:
    """Weights of the rows, or none."""
    kinds = ("none", "none", "none", "plain", "ints")
    kind = one_of(rng, *kinds) if calm else one_of(rng, *kinds, "large", "tiny", "bad", "wrong", "zero")
    w = rng.uniform(0.0, 3.0, n)
    if kind == "none":
        return None
    if kind == "ints":
        return rng.integers(0, 4, n)
    if kind in ("large", "tiny"):
        w[rng.integers(n)] = one_of(rng, 1e6, 1e30, 1e99, 1e300) if kind == "large" else one_of(rng, 1e-8, 1e-300)
    elif kind == "bad":
        w[rng.integers(n)] = one_of(rng, np.nan, np.inf, -1.0, 1e308)
    return w[:-1] if kind == "wrong" else np.zeros(n) if kind == "zero" else w


def draw_parameters(rng: Any, classify: bool, d: int, calm: bool) -> dict[str, Any]:
    """Parameters of a model; a few at a time are odd."""
    losses = CLASSIFIER_LOSSES if classify else REGRESSOR_LOSSES
    given: dict[str, Any] = {"loss": one_of(rng, *losses), "max_iter": one_of(rng, 1, 5, 30, 100)}
    given["fit_intercept"] = bool(rng.random() < 0.7)
    # The product of Gaussians is compiled for every loss and storage: one loss is enough.
    product = given["loss"] in ("logistic", "squared") and rng.random() < 0.15
    given["covariance"] = "diagonal" if product else one_of(rng, "auto", "auto", "full", "sparse")
    if product:
        given["max_iter"] = 10
    if rng.random() < 0.5:
        given["prior_variance"] = one_of(rng, 1.0, 25.0, 1e-6, 1e6, np.full(d, 2.0))
    elif rng.random() < 0.15:
        given["prior_groups"] = one_of(
            rng, np.arange(d) % 2, {"first": [0]}, {"first": [0], "last": [d - 1]}, "categories"
        )
    if given["loss"] == "normal":
        given["scale"] = one_of(rng, "linear", "linear", "auto")
    return given if calm else spoilt_parameters(rng, given, classify, d)


def spoilt_parameters(rng: Any, given: dict[str, Any], classify: bool, d: int) -> dict[str, Any]:
    """Put in numbers at the limits, and sometimes a value of a wrong kind."""
    if rng.random() < 0.3:
        given["prior_variance"] = one_of(rng, 1e-12, 1e12, 1e-300, 1e300, 1e100)
    if rng.random() < 0.2:
        given["prior_mean"] = one_of(rng, 1.0, -1e6, 1e99, np.linspace(-1.0, 1.0, d))
    if rng.random() < 0.2:
        given["intercept_prior_variance"] = one_of(rng, 1e-12, 1.0, 1e12, 1e300)
    if rng.random() < 0.15:
        given["tol"] = one_of(rng, 0.0, 1e-8, 1.0, 1e300)
    if not classify:
        given["normalize_y"] = bool(rng.random() < 0.7)
        if rng.random() < 0.3:
            given["scale"] = one_of(rng, 1.0, 1e-8, 1e8, 1e-300, 1e300)
        given["quantile"] = one_of(rng, 0.5, 0.1, 1e-9)
        given["epsilon"] = one_of(rng, 1.35, 1e-9, 1e9)
    if rng.random() < 0.1:
        names = ["loss", "prior_variance", "prior_mean", "fit_intercept", "intercept_prior_variance", "covariance"]
        names += ["max_iter", "tol", "random_state", "verbose"]
        names += ["class_weight"] if classify else ["scale", "normalize_y", "quantile", "epsilon"]
        given[names[int(rng.integers(len(names)))]] = one_of(rng, *ODD)
    if given.get("max_iter") == 10**30 or given.get("verbose") is True:
        given.update(max_iter=3, verbose=None)
    return given


def check(model: Any, X: Any) -> None:
    """Look at all numbers of a fitted model."""
    found = model.prior_variance_
    numbers = {
        name: np.asarray(
            list(found.values()) if name == "prior_variance_" and isinstance(found, dict) else getattr(model, name)
        )
        for name in ("coef_", "coef_std_", "intercept_", "intercept_std_", "prior_variance_", "log_evidence_")
    }
    for name, value in numbers.items():
        if not np.all(np.isfinite(value)):
            raise AssertionError(f"{name} is not finite, status {model.status_.name}")
    # The effect of the only level of a column of categories, relative to the mean effect of all, is zero for certain.
    levels = columns_of(model.n_features_in_, getattr(model, "categories_", {}))
    certain = [columns[0] for columns in levels.values() if len(columns) == 2 and model.fit_intercept]
    if not np.all(np.delete(numbers["coef_std_"], certain, axis=-1) > 0.0):
        raise AssertionError(f"coef_std_ is not positive, status {model.status_.name}")
    if isinstance(model, EPClassifier):
        chances = model.predict_proba(X)
        if not np.all((chances >= 0.0) & (chances <= 1.0)) or not np.allclose(chances.sum(axis=1), 1.0):
            raise AssertionError("probabilities are none")
        model.predict(X)
    elif model.loss_.targets != "reals":
        model.predict(X, return_std=True)
    else:
        for value in (*model.predict(X, return_std=True), model.predict(X, quantile=[0.1, 0.9])):
            # A spread that is linear in the features may be too large for numbers, and is infinite then.
            if np.any(np.isnan(value)) if model.scale == "linear" else not np.all(np.isfinite(value)):
                raise AssertionError(f"a prediction is not finite, status {model.status_.name}")
    check_state(model._fitted)
    model.sample_coef(2, random_state=0)


def state_of(model: Any) -> bytes:
    """All that a model is."""
    return pickle.dumps({name: value for name, value in model.__getstate__().items() if "random" not in name})


def call(model: Any, change: Any, X: Any) -> str:
    """Change a model, and look at the outcome."""
    try:
        before = state_of(model)
    except (TypeError, AttributeError, pickle.PicklingError):
        before = b""  # an odd parameter that cannot be pickled
    try:
        change(model)
    except Exception as error:
        allowed = isinstance(error, ALLOWED) or (
            isinstance(error, TypeError) and any(word in str(error) for word in TYPE_ERRORS)
        )
        if not allowed:
            raise
        if before and state_of(model) != before:
            raise AssertionError(f"a refused call changed the model: {error}") from error
        return type(error).__name__
    check(model, X)
    return str(model.status_.name)


def draw_offset(rng: Any, n: int, calm: bool) -> Any:
    """Known parts of the predictors, mostly none."""
    if rng.random() < 0.85:
        return None
    return (
        rng.normal(size=n)
        if calm
        else one_of(rng, rng.normal(size=n), np.full(n, 1e90), np.full(n, np.nan), [1.0], "x")
    )


def as_table(rng: Any, X: Any) -> Any:
    """Rows with names, and a column of categories; sometimes one that has missing levels or odd ones."""
    table = pd.DataFrame(X, columns=[f"a_{j}" for j in range(X.shape[1])])
    levels: Any = rng.choice(["x", "y", "z"], size=len(X)).astype(object)
    if rng.random() < 0.1:
        levels[0] = one_of(rng, None, 1.0, (1, 2), float("nan"))
    table["shop"] = pd.Categorical(levels) if rng.random() < 0.5 and levels[0] in ("x", "y", "z") else levels
    return table


def run_case(seed: int) -> list[str]:
    """Run one case; return how its calls ended."""
    rng = np.random.default_rng(seed)
    n, d = int(10 ** rng.uniform(0.0, 2.3)), int(10 ** rng.uniform(0.0, 1.3))
    classify, calm = bool(rng.random() < 0.5), bool(rng.random() < CALM)
    n = max(n, 6) if calm else n
    model = (EPClassifier if classify else EPRegressor)(**draw_parameters(rng, classify, d, calm))
    X = draw_rows(rng, n, d, calm)
    plain: Any = rng.normal(size=(5, d))
    tabular, endings = bool(rng.random() < 0.1), []
    if tabular:
        plain = pd.DataFrame(plain, columns=[f"a_{j}" for j in range(d)]).assign(shop=list("xyzxw"))
    for _ in range(int(rng.integers(1, 4))):
        rows, weights = as_table(rng, X) if tabular else stored(rng, X, calm), draw_weights(rng, n, calm)
        offset = draw_offset(rng, n, calm)
        y = calm_targets(rng, n, classify, model.loss) if calm else draw_targets(rng, n, classify)
        if rng.random() < 0.5:

            def fit(m: Any, r: Any = rows, t: Any = y, w: Any = weights, o: Any = offset) -> None:
                m.fit(r, t, sample_weight=w, offset=o)

            endings.append(call(model, fit, plain))
            continue
        classes = np.unique(y.astype(str)) if np.asarray(y).dtype.kind in "OU" else np.unique(y)
        part = slice(0, one_of(rng, 1, 1, 10, n))
        # A malformed matrix goes to the library whole: SciPy itself crashes when it is asked for a part of one.
        if isinstance(rows, np.ndarray) or (sparse.issparse(rows) and calm and rng.random() < 0.5):
            try:
                rows, y = rows[part], y[part]
            except Exception:
                continue
            weights = None if weights is None else weights[part]
        options: dict[str, Any] = {"forget": one_of(rng, 0.0, 0.0, 0.3, 0.999, *(() if calm else (1.0, "x", np.nan)))}
        if rng.random() < 0.2:
            options = {"halflife": one_of(rng, 1.0, 100.0, *(() if calm else (1e-9, 1e300, 0.0, "x")))}
        if offset is not None and isinstance(offset, np.ndarray):
            options["offset"] = offset[: np.shape(rows)[0]]
        if classify:
            options["classes"] = classes
        endings.append(
            call(model, lambda m, r=rows, t=y, w=weights, o=options: m.partial_fit(r, t, sample_weight=w, **o), plain)
        )
    return endings


def run_chunk(first: int, count: int) -> None:
    """Run cases one after another, and print how each ended."""

    def ring(*_: Any) -> None:
        raise Alarm

    signal.signal(signal.SIGALRM, ring)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    for seed in range(first, first + count):
        print(f"case {seed}", flush=True)
        signal.alarm(SECONDS)
        try:
            ending = "ok " + " ".join(run_case(seed))
        except Alarm:
            ending = f"FAILED took more than {SECONDS} s"
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename.split('/')[-1]}:{place.lineno}"
            ending = f"FAILED {type(error).__name__}: {str(error)[:150]} ({where})"
        finally:
            signal.alarm(0)
        print(ending.replace("\n", " "), flush=True)


def main() -> int:
    """Run all cases in chunks, and print what failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.chunk:
        run_chunk(*given.chunk)
        return 0
    endings: Counter[str] = Counter()
    failures = []
    first, end = given.seed, given.seed + given.cases
    while first < end:
        count = min(CHUNK, end - first)
        command = [sys.executable, "-m", "benchmarks.fuzz_estimators", "--chunk", str(first), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=count * SECONDS + 120, check=False)
        lines = done.stdout.splitlines()
        for case, ending in zip(lines[::2], lines[1::2], strict=False):
            endings.update([ending.split()[0], *ending.split()[1:]] if ending.startswith("ok") else ["FAILED"])
            if not ending.startswith("ok"):
                failures.append(f"{case}: {ending}")
        if done.returncode != 0:
            failures.append(f"{lines[-1] if lines else first}: the process ended with {done.returncode}")
            first += max((len(lines) + 1) // 2, 1)
            continue
        first += count
    print("\n".join(failures))
    print(", ".join(f"{name} {times}" for name, times in endings.most_common()))
    print(f"{given.cases} cases, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
