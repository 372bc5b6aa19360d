"""The bars on the posterior for ordinary data: against full EP and sampling, on large sets, and in time."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import speed
from benchmarks.posterior_safety import safety
from benchmarks.timing import Row, at_most, best_times, markdown
from cavity import losses
from cavity.experiments.mcmc import Draws
from cavity.experiments.posterior_fits import (
    Case,
    Fit,
    by_estimator,
    by_full_covariance,
    by_sampling,
    distance_of_means,
    ratio_of_deviations,
)
from cavity.experiments.posterior_sites import site_distances
from cavity.experiments.problems import LARGE, LOSSES, SMALL
from cavity.full import FullResult, fit_full
from cavity.schemes import NAMES

HEADER = ("data, loss", "fitted by", "loops", "cost", "dm, full EP", "sdr, full EP", "dm, sampling", "sdr, sampling")
SITES_HEADER = ("scale", "data, loss", *(f"{name}: slope, precision" for name in NAMES if name != "exact"))
# Chains and draws kept of each, for what is held against a bar and for what is not convex and mixes slowly.
_SAMPLING = {"logistic": (64, 500), "hinge": (64, 500), "quasi01": (64, 2000)}
_SAMPLING_QUICK = (32, 50)
# Sampling counts as long enough with so many effective draws and so small an R-hat.
_DRAWS, _R_HAT = 1000.0, 1.03
# Loops of EP with a full covariance on large sets.
_LARGE_LOOPS = 30
_SGD = {"logistic": "log_loss", "hinge": "hinge", "quasi01": "hinge"}

Tables = tuple[list[Row], dict[str, str]]


def measure(quick: bool) -> Tables:
    """All bars, and tables of all numbers behind them by the names of their files."""
    small, small_cells = small_sets(quick)
    large, large_cells = ([], []) if quick else large_sets(5)
    rows = [*small, *large, *speed_rows(2 if quick else 10), *safety(quick)]
    tables = {
        "posterior-cells": markdown(HEADER, [*small_cells, *large_cells]),
        "posterior-sites": markdown(SITES_HEADER, sites(quick)),
    }
    return rows, tables


def small_sets(quick: bool) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Small sets, columns of unit variance: exact projection in three bases, and full EP, against the truth."""
    rows, cells = [], []
    for case in (Case(data, loss) for data in SMALL[: 1 if quick else None] for loss in LOSSES):
        full = by_full_covariance(case)
        drawn = by_sampling(case, full, *(_SAMPLING_QUICK if quick else _SAMPLING[case.loss]))
        fits = {
            "EPClassifier's defaults": by_estimator(case),
            "exact, PCA basis": by_estimator(case, basis="pca"),
            "exact, curvature basis": by_estimator(case, basis="curvature"),
            "exact, own columns": by_estimator(case, basis=None),
            "full EP": Fit(full.mean, full.std, len(full.trace.changes), full.status.name),
        }
        ours = fits["EPClassifier's defaults"]
        rows.append(_near(f"{case.title}: defaults against full EP", ours, full, 0.25, (0.9, 1.1)))
        if case.loss != "quasi01":
            rows.append(_near(f"{case.title}: defaults against sampling", ours, drawn, 0.3, (0.85, 1.15)))
            rows.append(_long_enough(case, drawn))
        cells += [_cells(case, name, fit, full, drawn) for name, fit in fits.items()]
    return rows, cells


def large_sets(repeats: int) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Large sets, columns of unit variance: cost and deviations beside full EP's, and time beside SGD's."""
    rows, cells = [], []
    for case in (Case(data, loss) for data in LARGE for loss in LOSSES):
        full, ours = by_full_covariance(case, _LARGE_LOOPS), by_estimator(case)
        epochs, seconds = sgd_epochs(case, repeats)
        if case.loss != "quasi01":
            cost, reference = case.cost(ours.mean), case.cost(full.mean)
            share = cost / reference - 1.0
            sdr = ratio_of_deviations(ours, full)
            told = f"{cost:.1f} against {reference:.1f}: {100.0 * share:+.3f} %"
            rows += [
                Row(f"{case.title}: cost beside full EP's", told, "within 0.5 %", abs(share) <= 0.005),
                Row(f"{case.title}: s.d. beside full EP's", f"sdr {sdr:.3f}", "sdr 0.9 to 1.1", 0.9 <= sdr <= 1.1),
                Row(
                    f"{case.title}: EPClassifier.fit, {ours.loops} loops, mode included",
                    f"{1e3 * seconds:.0f} ms: {epochs:.1f} epochs",
                    "at most 15 epochs of SGDClassifier",
                    epochs <= 15.0,
                ),
            ]
        reference = Fit(full.mean, full.std, len(full.trace.changes), full.status.name)
        named = {
            f"EPClassifier's defaults ({epochs:.1f} epochs of SGD)": ours,
            "exact, PCA basis": by_estimator(case, basis="pca"),
            f"full EP ({full.status.name.lower()})": reference,
        }
        cells += [_cells(case, name, fit, full, None) for name, fit in named.items()]
    return rows, cells


def sgd_epochs(case: Case, repeats: int) -> tuple[float, float]:
    """Time of the estimator in epochs of SGDClassifier on the same matrix, and in seconds."""
    works = {"ours": partial(by_estimator, case), "sgd": speed.sgd_epoch(_SGD[case.loss], *case.rows)}
    t = best_times(works, repeats)
    return t["ours"] / t["sgd"], t["ours"]


def speed_rows(repeats: int) -> list[Row]:
    """Census income: one pass of exact projection against one epoch of SGD, and one of full covariance."""
    rows = []
    for scale, title in (("norm", "columns of norm one"), ("std", "columns of unit variance")):
        X, y = Case("census", "hinge", scale).rows
        works = {
            "hinge": speed.one_pass(losses.Hinge(), X, y, "exact"),
            "logistic": speed.one_pass(losses.Logistic(), X, y, "exact"),
            "SGD hinge": speed.sgd_epoch("hinge", X, y),
            "SGD log loss": speed.sgd_epoch("log_loss", X, y),
        }
        t = best_times(works, repeats)
        rows += [
            at_most(f"Census income, {title}: one pass, hinge", t["hinge"], t["SGD hinge"], 1.0, "an epoch of SGD"),
            at_most(
                f"Census income, {title}: one pass, logistic", t["logistic"], t["SGD log loss"], 2.0, "an epoch of SGD"
            ),
        ]
    for loss in ("logistic", "hinge"):
        case = Case("census", loss)
        batches, prior = case.batches(), case.prior()
        work = partial(fit_full, batches, prior, loops=1, start=None)
        once = best_times({"pass": work}, max(1, repeats // 5))
        title = f"{case.title}: one pass with a full covariance, d = {batches.dim}"
        rows.append(Row(title, f"{once['pass']:.2f} s", "at most 2 s", once["pass"] <= 2.0))
    return rows


def sites(quick: bool) -> list[tuple[str, ...]]:
    """Distance of the sites of every scheme from exact projection's, in both scalings."""
    names = [name for name in NAMES if name != "exact"]
    rows = []
    for scale in ("std", "norm"):
        for case in (Case(data, loss, scale) for data in (SMALL[:1] if quick else (*SMALL, *LARGE)) for loss in LOSSES):
            found = site_distances(case, names)
            rows.append((scale, case.title, *(_site_cell(found[name]) for name in names)))
    return rows


def _site_cell(found: dict[str, Any]) -> str:
    if found["slope"] is None:
        return "none finite"
    missing = f", {100.0 * found['missing']:.0f} % missing" if found["missing"] else ""
    return f"{found['slope']:.2g}, {found['precision']:.2g}{missing}"


def _near(work: str, ours: Fit, reference: FullResult | Draws, most: float, between: tuple[float, float]) -> Row:
    dm, sdr = distance_of_means(ours, reference), ratio_of_deviations(ours, reference)
    low, high = between
    bar = f"dm at most {most:g}, sdr {low:g} to {high:g}"
    return Row(work, f"dm {dm:.3f}, sdr {sdr:.3f}", bar, dm <= most and low <= sdr <= high)


def _long_enough(case: Case, drawn: Draws) -> Row:
    size, r_hat = drawn.effective_size, drawn.disagreement
    told = f"{size:,.0f} effective draws, R-hat {r_hat:.3f}"
    bar = f"at least {_DRAWS:g}, R-hat at most {_R_HAT:g}"
    return Row(f"{case.title}: sampling is long enough", told, bar, size >= _DRAWS and r_hat <= _R_HAT)


def _cells(case: Case, name: str, fit: Fit, full: FullResult, drawn: Draws | None) -> tuple[str, ...]:
    against = [full] if drawn is None else [full, drawn]
    measures = [f"{f(fit, reference):.3f}" for reference in against for f in (distance_of_means, ratio_of_deviations)]
    return (case.title, name, str(fit.loops), f"{case.cost(fit.mean):.2f}", *measures, *([""] * (4 - len(measures))))
