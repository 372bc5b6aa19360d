"""Mixed, additive and structured models: beside lme4 and mgcv, in simulations, against sampling, and times.

`python -m benchmarks.terms NAME [--quick] [--sets N]` runs one of the studies alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # one thread: set before any library reads it
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[_name] = "1"

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.special import expit

from benchmarks.bars import Row, markdown
from benchmarks.sampling import draw, summary
from cavity import EPClassifier, EPRegressor
from cavity.estimators.reports import combined
from cavity.terms.prior import upper_of
from reference.problems import FloatArray
from reference.reml import LOGISTIC, POISSON, RandomIntercepts, dummies, reml

Outcome = tuple[list[Row], dict[str, str]]


def measure(quick: bool, sets: int | None = None) -> Outcome:
    """All bars, and the tables behind them."""
    rows: list[Row] = []
    tables: dict[str, str] = {}
    for study in STUDIES.values():
        more, behind = study(quick, sets)
        rows += more
        tables |= behind
    return rows, tables


def per_cent(share: float, digits: int = 1) -> str:
    """A share for people."""
    return f"{100.0 * share:.{digits}f} %"


FAMILIES = ("normal", "logistic", "poisson")
LOSSES = {"normal": "squared", "poisson": "poisson"}


class Model:
    """A formula fitted by an estimator.

    Parameters
    ----------
    formula
        Right side of the formula.
    frame, y
        The table, and targets: numbers, labels -1 and 1, or counts.
    family
        One of `FAMILIES`.
    given
        Graphs by name.
    tol
        Tolerance of EP.
    """

    def __init__(self, formula: str, frame: Any, y: Any, family: str, given: Any = None, tol: float = 0.01) -> None:
        options = {"formula": formula, "structures": given, "tol": tol, "max_iter": 200}
        make: Any = EPClassifier if family == "logistic" else partial(EPRegressor, LOSSES[family])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = make(**options).fit(pd.DataFrame(frame), y)
        self.fitted = self.model._fitted
        self.design: Any = self.fitted.design.terms

    @property
    def components(self) -> dict[str, dict[str, float]]:
        """Standard deviations and correlations of all parts, and of the noise."""
        found: dict[str, dict[str, float]] = self.model.components_
        return found

    @property
    def fixed(self) -> dict[str, float]:
        """Intercept and ordinary coefficients, in units of the data."""
        means = self.model.summary().loc["fixed"]["mean"]
        return {str(name): float(mean) for name, mean in means.items()}

    def intervals(self, rows: Any, constant: float = 1.0, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Ends of the intervals of linear predictors; ``constant`` is what multiplies the intercept."""
        found = self.marginals(rows, constant, level)
        return found.lower, found.upper

    def marginals(self, rows: Any, constant: float = 1.0, level: float = 0.9) -> Any:
        """Means, deviations and intervals of linear predictors."""
        whole, posterior = rows.toarray() if sparse.issparse(rows) else rows, self.fitted.posterior
        if self.design.intercept:
            whole = np.column_stack([whole, np.full(len(whole), constant)])
        unit, offset = (float(part[0, 0]) for part in posterior.units)
        return combined(posterior.each[0], whole, level).changed(unit, constant * offset)

    def effects(self, label: str, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Ends of the intervals of a term's effects ``(levels, effects)``, those of a new level last."""
        _, _, places = self.design.effects(label)
        new = [k for k, name in enumerate(self.design.names) if name.endswith("(unseen)]")]
        chosen = np.vstack([places, new])
        low, high = self.intervals(np.eye(self.design.width)[chosen.ravel()], 0.0, level)
        return low.reshape(chosen.shape), high.reshape(chosen.shape)

    def variance_interval(self, part: str) -> tuple[float, float]:
        """The 95 % interval of the variance of a part."""
        found = self.model.summary().loc[("components", f"sd of {part}")]
        return float(found["lower 95%"]) ** 2, float(found["upper 95%"]) ** 2


# 1. lme4's own tables.

TABLES: dict[str, tuple[str, str, str]] = {
    "sleepstudy": ("normal", "Reaction", "~ Days + (Days | Subject)"),
    "sleepstudy, uncorrelated": ("normal", "Reaction", "~ Days + (Days || Subject)"),
    "Dyestuff": ("normal", "Yield", "~ (1 | Batch)"),
    "Penicillin": ("normal", "diameter", "~ (1 | plate) + (1 | sample)"),
    "Pastes": ("normal", "strength", "~ (1 | batch/cask)"),
    "cake": ("normal", "angle", "~ recipe * C(temperature) + (1 | recipe:replicate)"),
    "InstEval": ("normal", "y", "~ C(service) + (1 | s) + (1 | d) + (1 | dept:service)"),
    "cbpp": ("logistic", "ill", "~ C(period) + (1 | herd)"),
    "VerbAgg": ("logistic", "yes", "~ Anger + Gender + btype + situ + (1 | id) + (1 | item)"),
    "grouseticks": ("poisson", "TICKS", "~ C(YEAR) + height + (1 | BROOD) + (1 | INDEX) + (1 | LOCATION)"),
}
TABLES_HEADER = ("model", "quantity", "cavity", "lme4", "difference", "")
CLOSE, FASTER = 0.01, 3.0


def tables(quick: bool, sets: int | None = None) -> Outcome:
    """Components, correlations, fixed effects and times beside lme4."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not peers("tables", folder, quick):
            return [Row("lme4's tables: lme4 not installed", "not compared", f"within {per_cent(CLOSE, 0)}", True)], {}
        rows, lines = [], []
        theirs, fixed, seconds = (pd.read_csv(folder / f"{one}.csv") for one in ("components", "fixed", "seconds"))
        for model, (family, target, formula) in TABLES.items():
            frame = pd.read_csv(folder / f"{model.partition(',')[0]}.csv", keep_default_na=False)
            y = frame[target].to_numpy(dtype=np.float64)
            found, spent = processor_time(partial(Model, formula, frame, 2.0 * y - 1.0 if family == "logistic" else y,
                                                  family))  # fmt: skip
            compared = [*_components(found, theirs[theirs.model == model]), *_fixed(found, fixed[fixed.model == model])]
            lines += [
                (model, what, f"{own:.4f}", f"{peer:.4f}", per_cent(apart, 2), "MISSED" if is_bad else "")
                for what, own, peer, apart in compared
                for is_bad in [family == "normal" and abs(apart) > CLOSE]
            ]
            if family == "normal":
                what, own, peer, apart = max(compared, key=lambda one: abs(one[3]))
                text = f"{own:.4f} against {peer:.4f}: {100.0 * apart:+.2f} % ({what})"
                rows.append(Row(f"{model}: components, correlations and fixed effects", text,
                                f"within {per_cent(CLOSE, 0)} of lme4's REML", abs(apart) <= CLOSE))  # fmt: skip
            other = float(seconds[seconds.model == model].seconds.iloc[0])
            rows.append(Row(f"{model}: time", f"{1e3 * spent:.1f} ms against {1e3 * other:.1f} ms",
                            "at most a third of lme4's", spent <= other / FASTER))  # fmt: skip
    return rows, {"terms-tables": markdown(TABLES_HEADER, lines)}


def _components(found: Model, theirs: pd.DataFrame) -> list[tuple[str, float, float, float]]:
    """Quantity, ours, theirs, and the difference: as a share, of correlations as it is."""
    compared = []
    for one in theirs.fillna("").itertuples():
        first, second = (str(name).replace("(Intercept)", "1") for name in (one.first, one.second))
        group = str(one.group).removesuffix(".1")
        group = {"cask:batch": "batch:cask", "Residual": "residual"}.get(group, group)
        parts = {label: each for label, each in found.components.items() if label.rpartition("| ")[2] == group}
        names = {name: value for each in parts.values() for name, value in each.items()}
        if second:
            own = names[f"correlation({first}, {second})"]
            compared.append((f"{group}, correlation", own, one.value, own - one.value))
            continue
        own = (
            names.get(f"sd({first})")
            or names.get("scale")
            or next(each["sd"] for label, each in parts.items() if len(parts) == 1 or label.startswith(f"{first} |"))
        )
        compared.append((f"{group}, sd({first})" if first else group, own, one.value, own / one.value - 1.0))
    return compared


def _fixed(found: Model, theirs: pd.DataFrame) -> list[tuple[str, float, float, float]]:
    """The same of fixed effects, of which small ones count as shares of the largest."""
    own, largest = list(found.fixed.values()), float(np.max(np.abs(theirs.value)))
    by_name = {
        name.replace("(Intercept)", "intercept"): value for name, value in zip(theirs.name, theirs.value, strict=True)
    }
    compared = []
    for name, value in zip(found.fixed, own, strict=True):
        peer = _peer(name, by_name)
        compared.append((name, value, peer, (value - peer) / max(abs(peer), 0.02 * largest)))
    return compared


def _peer(name: str, theirs: dict[str, float]) -> float:
    """R writes a level right behind the name of its factor."""
    plain = name.replace("=", "")
    if plain not in theirs:
        plain = ":".join(sorted(plain.split(":")))
    found = {":".join(sorted(one.split(":"))): value for one, value in theirs.items()}
    return theirs.get(plain, found.get(plain, float("nan")))


def peers(mode: str, folder: Path, quick: bool) -> bool:
    """Run the models of R's packages; whether these are installed."""
    if shutil.which("Rscript") is None:
        return False
    script = Path(__file__).with_name("peers_terms.R")
    command = ["Rscript", str(script), mode, str(folder), *(["quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"Rscript {script.name} failed: {done.stderr[-500:]}")
    return done.returncode == 0


def processor_time(work: Callable[[], Any], most: int = 5) -> tuple[Any, float]:
    """Answer and least seconds of up to so many calls, of which short ones are repeated."""
    best = np.inf
    for _ in range(most):
        start = time.process_time()
        found = work()
        best = min(best, time.process_time() - start)
        if best > 1.0:
            break
    return found, best


# 2. Simulated components.

LEVELS = ((5, 20), (10, 20), (50, 20))
TRUTHS = (0.0, 0.01, 0.1, 1.0)
SETS, SETS_QUICK = 200, 4
RELATIVE, ABSOLUTE, COMPONENT_COVERED, EFFECT_COVERED = 0.10, 0.005, (0.90, 0.98), (0.87, 0.93)
COMPONENTS_HEADER = (
    *("model", "levels x rows", "true", "cavity, mean", "reference, mean", "95 % interval of the variance covers"),
    *("90 % intervals of effects cover", "of a new level", ""),
)


class Component(NamedTuple):
    """Mean estimates of one setting, and the shares of the intervals that hold the truth."""

    family: str
    levels: int
    rows: int
    truth: float
    estimate: float
    reference: float
    covered: float
    effects: float
    new: float

    @property
    def excess(self) -> float:
        """Distance of the means as a share of what is allowed."""
        return abs(self.estimate - self.reference) / max(RELATIVE * self.reference, ABSOLUTE)

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of a table."""
        means = f"{self.truth:g}", f"{self.estimate:.4f}", f"{self.reference:.4f}"
        shares = (per_cent(share) for share in (self.covered, self.effects, self.new))
        missed = "MISSED" if self.excess > 1.0 else ""
        return self.family, f"{self.levels} x {self.rows}", *means, *shares, missed


def components(quick: bool, sets: int | None = None) -> Outcome:
    """One factor of few levels: variance, effects, and levels to come."""
    count = sets or (SETS_QUICK if quick else SETS)
    found = [component(f, *shape, truth, count) for f in FAMILIES for shape in LEVELS for truth in TRUTHS]
    rows = []
    for family in FAMILIES:
        here = [one for one in found if one.family == family]
        worst = max(here, key=lambda one: one.excess)
        text = f"{worst.estimate:.4f} against {worst.reference:.4f} ({worst.levels} levels, true variance "
        text += f"{worst.truth:g}); {sum(one.excess > 1.0 for one in here)} of {len(here)} settings beyond the bar"
        title = f"variance of a factor, {family}, {count} sets"
        bar = f"within {per_cent(RELATIVE, 0)} or {ABSOLUTE:g} of {'REML' if family == 'normal' else 'quadrature'}"
        rows.append(Row(f"{title}: mean estimate, worst", text, bar, worst.excess <= 1.0))
    for levels, _ in LEVELS:
        here = [one for one in found if one.levels == levels]
        zero = float(np.mean([one.covered for one in here if one.truth == 0.0]))
        some = [one for one in here if one.truth > 0.0]
        title = f"{levels} levels, {count} sets"
        rows.append(_covered(f"{title}: 95 % intervals of variances above zero, zero in {per_cent(zero)}",
                             float(np.mean([one.covered for one in some])), COMPONENT_COVERED))  # fmt: skip
        # Where effects vary less than the means of levels do by noise, no interval can be short enough.
        for text, chosen in (("", [one for one in some if one.truth == TRUTHS[-1]]), (" of all variances", some)):
            for what, shares in (("effects", "effects"), ("new levels", "new")):
                share = float(np.mean([getattr(one, shares) for one in chosen]))
                which = text or f" of variance {TRUTHS[-1]:g}"
                rows.append(_covered(f"{title}: 90 % intervals of {what}{which}", share, EFFECT_COVERED))
    return rows, {"terms-components": markdown(COMPONENTS_HEADER, [one.cells for one in found])}


def _covered(what: str, share: float, bar: tuple[float, float]) -> Row:
    text = f"{per_cent(bar[0], 0)} to {per_cent(bar[1], 0)}"
    return Row(what, f"cover {per_cent(share)}", text, bar[0] <= share <= bar[1])


def component(family: str, levels: int, rows: int, truth: float, sets: int) -> Component:
    """y = 0.5 x + effect of the level, and noise, or labels and counts with this linear predictor."""
    found = []
    for k in range(sets):
        rng = np.random.default_rng((levels, int(1000 * truth), k))
        codes, own = np.repeat(np.arange(levels), rows), np.sqrt(truth) * rng.standard_normal(levels + 1)
        x = rng.standard_normal(codes.size)
        z = 0.5 * x + own[codes]
        X = np.column_stack([np.ones(codes.size), x])
        if family == "normal":
            y = z + rng.standard_normal(codes.size)
            reference = float(reml(y, X, [dummies(codes)]).variances[0])
        elif family == "logistic":
            y = np.where(z + rng.logistic(size=codes.size) > 0.0, 1.0, -1.0)
            reference = RandomIntercepts(LOGISTIC, 0.5 * (y + 1.0), X, codes).maximum()[0]
        else:
            y = rng.poisson(np.exp(z)).astype(float)
            reference = RandomIntercepts(POISSON, y, X, codes).maximum()[0]
        model = Model("~ x + (1 | g)", {"x": x, "g": codes}, y, family)
        low, high = model.variance_interval("1 | g")
        lower, upper = (each[:, 0] for each in model.effects("(1 | g)"))
        inside = (lower <= own) & (own <= upper)
        estimate = model.components["1 | g"]["sd"] ** 2
        found.append((estimate, reference, low - 1e-9 <= truth <= high, np.mean(inside[:-1]), inside[-1]))
    return Component(family, levels, rows, truth, *(float(mean) for mean in np.mean(found, axis=0)))


# 3. Correlated slopes, and processes.

TRUE_COVARIANCE = np.array([[1.0, 0.3], [0.3, 0.5]])
SLOPES_HEADER = ("model", "levels x rows", *(f"90 % intervals of {what}" for what in ("intercepts", "slopes")),
                 "of a new intercept", "of a new slope")  # fmt: skip


def slopes(quick: bool, sets: int | None = None) -> Outcome:
    """Correlated intercepts and slopes: effects, and those of levels to come."""
    count, rows, lines = sets or (SETS_QUICK if quick else SETS), [], []
    for family in FAMILIES:
        for levels, each in LEVELS:
            inside = []
            for k in range(count):
                rng = np.random.default_rng((3, levels, k))
                own = rng.multivariate_normal(np.zeros(2), TRUE_COVARIANCE, levels + 1)
                codes, x = np.repeat(np.arange(levels), each), rng.standard_normal(levels * each)
                y = _targets(family, own[codes, 0] + own[codes, 1] * x, rng)
                low, high = Model("~ x + (x | g)", {"x": x, "g": codes}, y, family).effects("(x | g)")
                inside.append((low <= own) & (own <= high))
            shares = np.mean(np.array(inside)[:, :-1], axis=(0, 1)), np.mean(np.array(inside)[:, -1], axis=0)
            lines.append((family, f"{levels} x {each}", *(per_cent(one) for one in np.concatenate(shares))))
            title = f"correlated slopes, {family}, {levels} levels, {count} sets: 90 % intervals of"
            rows += [_covered(f"{title} {what}", float(np.mean(share)), EFFECT_COVERED)
                     for what, share in zip(("effects", "new levels"), shares, strict=True)]  # fmt: skip
    return rows, {"terms-slopes": markdown(SLOPES_HEADER, lines)}


# 4. Smooths beside mgcv.

CURVES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "straight": lambda x: 2.0 * x - 1.0,
    "one sine": lambda x: np.sin(2.0 * np.pi * x),
    "three sines": lambda x: np.sin(6.0 * np.pi * x),
    "bump": lambda x: 2.0 * np.exp(-0.5 * ((x - 0.5) / 0.1) ** 2) - 0.5,
    "step-like": lambda x: 2.0 * expit(25.0 * (x - 0.5)) - 1.0,
    "spikes": lambda x: 1.5 * np.exp(-60.0 * np.abs(x - 0.3)) + 1.5 * np.exp(-60.0 * np.abs(x - 0.7)) - 0.2,
    "exponential": lambda x: np.exp(2.0 * x) / 3.0 - 1.0,
    "chirp": lambda x: np.sin(2.0 * np.pi / (x + 0.3)),
}
CURVE_SETS, CURVE_SETS_QUICK, CURVE_ROWS, LARGER_ERROR = 100, 3, 400, 0.03
SMOOTHS_HEADER = ("family", "curve", "cavity covers", "mgcv covers", "cavity, root mean square error", "mgcv", "ratio")


def smooths(quick: bool, sets: int | None = None) -> Outcome:
    """Bands and errors of curves, beside mgcv on the same data."""
    count = sets or (CURVE_SETS_QUICK if quick else CURVE_SETS)
    data, own = [], []
    for f, family in enumerate(FAMILIES):
        for c, (name, curve) in enumerate(CURVES.items()):
            for k in range(count):
                rng = np.random.default_rng((7, c, k))
                x = np.sort(rng.random(CURVE_ROWS))
                z = curve(x)
                y = _targets(family, z, rng)
                model = Model("~ s(x, k=20)", {"x": x}, y, family)
                found = model.marginals(model.design.matrix({"x": x}))
                inside = (found.lower <= z) & (z <= found.upper)
                own.append((family, name, np.mean(inside), np.mean((found.mean - z) ** 2)))
                response = 0.5 * (y + 1.0) if family == "logistic" else y
                kind = {"normal": "gaussian", "logistic": "binomial"}.get(family, family)
                number = (f * len(CURVES) + c) * count + k
                data.append(pd.DataFrame({"set": number, "family": kind, "x": x, "y": response, "z": z}))
    ours = pd.DataFrame(own, columns=["family", "curve", "covered", "error"])
    with tempfile.TemporaryDirectory() as folder:
        whole = pd.concat(data, ignore_index=True)
        whole.to_csv(Path(folder) / "smooths.csv", index=False)
        has_peer = peers("smooths", Path(folder), quick)
        if has_peer:
            theirs = pd.read_csv(Path(folder) / "curves.csv")
            apart = theirs.fit - whole.z
            covered = np.abs(apart) < 1.6448536 * theirs.se
            sums = pd.DataFrame({"set": whole.set, "covered": covered, "error": apart**2}).groupby("set").mean()
            ours = ours.assign(other=sums.covered.to_numpy(), apart=sums.error.to_numpy())
    rows, lines = [], []
    means = ours.groupby(["family", "curve"], sort=False).mean().reset_index()
    for one in means.itertuples():
        theirs = (per_cent(one.other), f"{np.sqrt(one.apart):.4f}") if has_peer else ("", "")
        ratio = f"{np.sqrt(one.error / one.apart):.3f}" if has_peer else ""
        lines.append((one.family, one.curve, per_cent(one.covered), theirs[0], f"{np.sqrt(one.error):.4f}", theirs[1],
                      ratio))  # fmt: skip
    for family in FAMILIES:
        here = means[means.family == family]
        beside = f", mgcv's {per_cent(here.other.mean())}" if has_peer else ""
        rows.append(_covered(f"smooths, {family}, {len(CURVES)} curves, {count} sets: 90 % bands{beside}",
                             float(here.covered.mean()), EFFECT_COVERED))  # fmt: skip
        if has_peer:
            ratio = float(np.sqrt(here.error.mean() / here.apart.mean()))
            rows.append(Row(f"smooths, {family}: root mean squared error", f"{ratio:.3f} times mgcv's",
                            f"at most {1.0 + LARGER_ERROR:g} times", ratio <= 1.0 + LARGER_ERROR))  # fmt: skip
    return rows, {"terms-smooths": markdown(SMOOTHS_HEADER, lines)}


NOISE = 0.5


def _targets(family: str, z: FloatArray, rng: np.random.Generator) -> FloatArray:
    if family == "normal":
        return np.asarray(z + NOISE * rng.standard_normal(z.size))
    if family == "logistic":
        return np.where(z + rng.logistic(size=z.size) > 0.0, 1.0, -1.0)
    return rng.poisson(np.exp(z)).astype(float)


# 5. Against sampling, with the hyperparameters that were found.

DRAWS, DRAWS_QUICK = 4_000, 200
MEANS, DEVIATIONS = 0.1, (0.95, 1.05)


class Density(NamedTuple):
    """Minus the log posterior of the coefficients under a prior of any precision matrix."""

    X: Any
    y: FloatArray
    family: str
    precision: Any
    center: FloatArray

    def value(self, theta: FloatArray) -> FloatArray:
        """At points ``(chains, dim)``."""
        z, y, apart = self.X @ theta.T, self.y[:, None], theta - self.center
        costs = np.logaddexp(0.0, -y * z) if self.family == "logistic" else np.exp(z) - y * z
        return np.asarray(np.sum(costs, axis=0) + 0.5 * np.sum(apart * (self.precision @ apart.T).T, axis=1))

    def gradient(self, theta: FloatArray) -> FloatArray:
        """At points."""
        z, y, apart = self.X @ theta.T, self.y[:, None], theta - self.center
        slopes = -y * expit(-y * z) if self.family == "logistic" else np.exp(z) - y
        return np.asarray((self.X.T @ slopes + self.precision @ apart.T).T)


def sampled(quick: bool, _sets: int | None = None) -> Outcome:
    """Means and deviations of linear predictors and coefficients."""
    rows = []
    for title, (formula, frame, y, family, given) in _small_models().items():
        model = Model(formula, frame, y, family, given, tol=1e-3)
        # The posterior of the columns in their units, with the hyperparameters that were found.
        fitted = model.fitted
        prior, gaussian = fitted.priors[0], fitted.natural[0].posterior(fitted.priors[0])
        made = model.design.matrix(frame)
        whole = (made.toarray() if sparse.issparse(made) else made) - fitted.columns.center
        X = np.column_stack([whole / fitted.columns.unit, np.ones(len(y))])
        upper = upper_of(prior).toarray()
        density = Density(X, y, family, upper + np.triu(upper, 1).T, prior.mean)
        draws = draw(density, gaussian.mean, gaussian.covariance, DRAWS_QUICK if quick else DRAWS)
        both = np.concatenate([draws, draws @ X.T], axis=2)
        truth = summary(both[..., : X.shape[1]])
        mean, sd = np.mean(both, axis=(0, 1)), np.std(both, axis=(0, 1))
        own = np.concatenate([gaussian.mean, X @ gaussian.mean])
        spread = np.sqrt(np.concatenate([gaussian.variance, gaussian.predictor_variance(X)]))
        apart, ratio = np.max(np.abs(own - mean) / sd), spread / sd
        effective = f"; {np.min(truth.effective):,.0f} effective draws"
        rows.append(Row(f"{title}, against sampling: means", f"{apart:.3f} sd{effective}", f"within {MEANS:g} sd",
                        bool(apart <= MEANS)))  # fmt: skip
        rows.append(Row(f"{title}, against sampling: deviations", f"{np.min(ratio):.3f} to {np.max(ratio):.3f}",
                        f"{DEVIATIONS[0]:g} to {DEVIATIONS[1]:g}",
                        bool(DEVIATIONS[0] <= np.min(ratio) and np.max(ratio) <= DEVIATIONS[1])))  # fmt: skip
    return rows, {}


def _small_models() -> dict[str, tuple[str, Any, FloatArray, str, Any]]:
    rng = np.random.default_rng(11)
    found: dict[str, tuple[str, Any, FloatArray, str, Any]] = {}
    frame, y = crossed(600, 30, 0, rng)
    found["correlated slopes, logistic"] = ("~ x + (x | a)", frame, y, "logistic", None)
    frame, y = chain(150, rng, 6.0)
    found["random walk of order 2, Poisson"] = ("~ walk(t, order=2)", frame, y, "poisson", None)
    frame, y, given = grid(8, rng)
    found["regions (BYM2), Poisson"] = ("~ neighbours(r, graph)", frame, y, "poisson", given)
    return found


# 6. Times.


def crossed(n: int, levels: int, others: int, rng: np.random.Generator) -> tuple[Any, FloatArray]:
    """Labels: correlated intercepts and slopes of one factor, and intercepts of another, if there are any."""
    frame = {"x": rng.standard_normal(n), "a": rng.integers(0, levels, n)}
    own = rng.multivariate_normal([0.0, 0.0], [[0.5, 0.1], [0.1, 0.2]], levels)
    z = 0.3 + 0.5 * frame["x"] + own[frame["a"], 0] + own[frame["a"], 1] * frame["x"]
    if others:
        frame["b"] = rng.integers(0, others, n)
        z = z + 0.7 * rng.standard_normal(others)[frame["b"]]
    return pd.DataFrame(frame), _targets("logistic", z, rng)


def chain(n: int, rng: np.random.Generator, waves: float) -> tuple[Any, FloatArray]:
    """Counts along a curve."""
    t = np.arange(n)
    z = 1.0 + np.sin(waves * t / n) + 0.5 * np.sin(7.0 * waves * t / n)
    return pd.DataFrame({"t": t}), _targets("poisson", z, rng)


def grid(side: int, rng: np.random.Generator) -> tuple[Any, FloatArray, dict[str, Any]]:
    """Counts of regions of a square."""
    numbers = np.arange(side**2).reshape(side, side)
    beside = [np.stack([numbers[:, :-1], numbers[:, 1:]], axis=-1), np.stack([numbers[:-1], numbers[1:]], axis=-1)]
    pairs = [(int(a), int(b)) for each in beside for a, b in each.reshape(-1, 2)]
    i, j = np.divmod(np.arange(side**2), side)
    z = 1.0 + 0.6 * np.sin(5.0 * i / side) + 0.6 * np.cos(7.0 * j / side) + 0.3 * rng.standard_normal(side**2)
    return pd.DataFrame({"r": numbers.ravel()}), _targets("poisson", z, rng), {"graph": pairs}


def additive(n: int, rng: np.random.Generator) -> tuple[pd.DataFrame, FloatArray]:
    """Labels: curves of five columns, one of which says nothing."""
    X = rng.random((n, 5))
    z = np.sin(6.0 * X[:, 0]) + 6.0 * (X[:, 1] - 0.5) ** 2 + np.exp(X[:, 2]) - 1.7 + 0.5 * np.cos(12.0 * X[:, 3])
    return pd.DataFrame(X, columns=[f"x{k}" for k in range(5)]), _targets("logistic", z, rng)


def times(quick: bool, _sets: int | None = None) -> Outcome:
    """Processor time of large fits."""
    rng, share = np.random.default_rng(0), 10 if quick else 1
    works: list[tuple[str, float, Callable[[], Any]]] = []
    frame, y = crossed(100_000 // share, 1_000 // share, 10_000 // share, rng)
    works.append(("100,000 rows, 1,000 x 10,000 levels, correlated slope, logistic", 10.0,
                  partial(Model, "~ x + (x | a) + (1 | b)", frame, y, "logistic")))  # fmt: skip
    frame, y = chain(100_000 // share, rng, 30.0)
    works.append(("random walk of order 2, 100,000 times, Poisson", 10.0,
                  partial(Model, "~ walk(t, order=2)", frame, y, "poisson")))  # fmt: skip
    frame, y, given = grid(100 // (3 if quick else 1), rng)
    works.append(("100 x 100 regions (BYM2), Poisson", 20.0,
                  partial(Model, "~ neighbours(r, graph)", frame, y, "poisson", given)))  # fmt: skip
    rows = []
    for title, bar, work in works:
        model, spent = processor_time(work, 1)
        text = f"{spent:.1f} s, {model.model.n_iter_} iterations, {model.model.status_.name}"
        rows.append(Row(f"{title}: time", text, f"at most {bar:g} s", spent <= bar))
    frame, y = additive(100_000 // share, rng)
    formula = "~ " + " + ".join(f"s({name}, k=20)" for name in frame)
    _, spent = processor_time(partial(Model, formula, frame, y, "logistic"), 3)
    _, less = processor_time(partial(Model, formula, frame[:20_000], y[:20_000], "logistic"), 3)
    with tempfile.TemporaryDirectory() as folder:
        frame.assign(y=0.5 * (y + 1.0)).to_csv(Path(folder) / "additive.csv", index=False)
        if peers("additive", Path(folder), quick):
            seconds = pd.read_csv(Path(folder) / "additive_seconds.csv").set_index("model").seconds
            rows.append(Row("logistic additive model, five smooths, 100,000 rows: time",
                            f"{spent:.2f} s against {seconds['bam']:.2f} s", "at most twice bam(discrete = TRUE)",
                            spent <= 2.0 * seconds["bam"]))  # fmt: skip
            rows.append(Row("logistic additive model, five smooths, 20,000 rows: time",
                            f"{less:.2f} s against {seconds['gam']:.2f} s", "at most a tenth of gam(method = 'REML')",
                            less <= 0.1 * seconds["gam"]))  # fmt: skip
        else:
            rows.append(Row("logistic additive model, five smooths: mgcv not installed", f"{spent:.2f} s", "", True))
    return rows, {}


STUDIES: dict[str, Callable[[bool, int | None], Outcome]] = {
    "tables": tables, "components": components, "slopes": slopes, "smooths": smooths, "sampled": sampled, "times": times
}  # fmt: skip


def main() -> int:
    """Run one of the studies."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.terms", description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sets", type=int, help="simulated data sets per setting")
    chosen = parser.parse_args()
    rows, behind = STUDIES[chosen.study](chosen.quick, chosen.sets)
    for table in behind.values():
        print(f"{table}\n")
    print(markdown(("work", "measured", "bar", ""), [row.cells for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
