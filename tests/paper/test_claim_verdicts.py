"""Verdicts from made-up evidence: worlds in which the paper is right, and worlds in which it is wrong."""

import numpy as np
import pytest

from paper.claim import (
    FAILS,
    HOLDS,
    NOISE,
    ONLY_SLOPE,
    UNDECIDED,
    UNKNOWN,
    Claim,
    Finding,
    judged,
    percent,
    span,
    verdict,
)
from paper.claims import GROUPS
from paper.evidence import Curve, Evidence, Tolerances, assemble
from paper.views import claim_rows
from reference.problems import LARGE, LOSSES, SMALL

CLAIMS = {claim.key: claim for claims in GROUPS.values() for claim in claims}
DIMENSION = {"haberman": 4, "ionosphere": 33, "breast_cancer": 31, "bank": 43, "census": 101}
BATCHES, LOOPS, PASS = 30, 5, 300


def converging(large, to=0.001, speed=15.0, wobble=0.0):
    """Fall from the start to a level, with a wobble that stays."""
    t = np.arange(1, PASS + 1 if large else BATCHES * LOOPS + 1)
    missed = to + (1.0 - to) * np.exp(-t / speed) + wobble * np.sin(t)
    return Curve(missed, PASS if large else BATCHES, 1 if large else LOOPS)


def oscillating(large):
    return converging(large, to=0.4, wobble=0.3)


def stuck(large, at=0.9):
    return Curve(converging(large, to=at, speed=2.0).missed, PASS if large else BATCHES, 1 if large else LOOPS, 0.01)


def diverging(large):
    missed = converging(large).missed.copy()
    missed[-10:] = np.inf
    return Curve(missed, PASS if large else BATCHES, 1 if large else LOOPS)


def world(exact, slope=None, gq=None, vq=None, times=None, slopes=None, sizes=(9.0, 5.0, 2.0)):
    """Evidence on all cells from rules (cell, large) -> curve for each scheme."""
    slope = exact if slope is None else slope
    curves = {}
    for data in (*SMALL, *LARGE):
        for loss in (*LOSSES, *(["zero_one"] if data in SMALL else [])):
            cell, large = (data, loss), data in LARGE
            found = {"gq": gq(cell, large), "vq": vq(cell, large)}
            for scheme in ("la", "qla"):
                found[scheme] = exact(scheme, cell, large)
                found[f"{scheme}_slope"] = slope(scheme, cell, large)
            curves[cell] = found
    usual = {"la": 10.0, "qla": 1.0, "gq": 0.8, "vq": 1.5, "newton": 2.0}
    ms = {cell: {**usual, **((times or {}).get(cell[0], {}))} for cell in curves}
    closedform = {
        "slopes": {"closed": 2.9, "newton": 3.0, "qla": 1.0, "gq": 1.0} if slopes is None else slopes,
        "scaling": [{"d": 4096, "closed": 3.0, "gq": 3.0}],
        "batch_sizes": [
            {"batch_size": s, "qla": 1.0, "vq": 1.0, "newton": r} for s, r in zip((10, 100, 1000), sizes, strict=True)
        ],
    }
    return Evidence(curves, dict.fromkeys(curves, 0.0), ms, ms, DIMENSION, closedform)


def paper_laplace(scheme, cell, large):
    """LA and QLA as the paper describes it."""
    loss = cell[1]
    if loss == "zero_one":
        return stuck(large, at=1.0)
    if loss != "quasi01":
        return converging(large, to=0.002)
    if large:
        return converging(large, to=0.01 if scheme == "qla" else 0.025, wobble=0.002)
    return oscillating(large)


def paper_gq(cell, large):
    if cell == ("haberman", "logistic"):
        return converging(large, to=0.03)
    return stuck(large) if large or cell[1] == "logistic" else oscillating(large)


def paper_vq(cell, large):
    if cell[1] == "zero_one":
        return oscillating(large)
    wobble = 0.01 if cell[0] == "ionosphere" else 0.0
    return converging(large, to=0.02 if large and cell[1] == "quasi01" else 0.001, wobble=wobble)


def as_the_paper_says():
    times = {
        "haberman": {"newton": 1.6},
        "bank": {"newton": 0.7},
        "census": {"newton": 2.5},
    }
    return world(paper_laplace, gq=paper_gq, vq=paper_vq, times=times)


def the_opposite():
    """Everything the paper praises fails, everything it blames works, and times are upside down."""

    def laplace(scheme, cell, large):
        if cell[1] == "quasi01":
            return stuck(large) if large else converging(large)
        return oscillating(large) if scheme == "la" else stuck(large)

    def gq(cell, large):
        return converging(large, speed=40.0 if large else 10.0)

    def vq(cell, large):
        return converging(large, speed=2.0) if cell[1] == "zero_one" else oscillating(large)

    ms = {"la": 0.5, "qla": 1.0, "gq": 2.0, "vq": 1.0, "newton": 20.0}
    odd = {name: dict(ms) for name in (*SMALL, *LARGE)}
    odd["haberman"]["newton"] = 90.0
    slopes = {"closed": 1.0, "newton": 2.0, "qla": 1.0, "gq": 1.0}
    return world(laplace, gq=gq, vq=vq, times=odd, slopes=slopes, sizes=(2.0, 5.0, 9.0))


@pytest.mark.parametrize("key", CLAIMS)
def test_every_claim_holds_in_the_world_of_the_paper(key):
    found, findings = verdict(CLAIMS[key], as_the_paper_says(), Tolerances())
    assert found == HOLDS, findings


# An LA that fails everywhere is no better than QLA and VQ: this claim has a world of its own below.
@pytest.mark.parametrize("key", [key for key in CLAIMS if key != "la-no-better"])
def test_no_claim_holds_in_the_opposite_world(key):
    found, findings = verdict(CLAIMS[key], the_opposite(), Tolerances())
    assert found == FAILS, findings


def test_la_no_better_fails_where_la_wins():
    def laplace(scheme, cell, large):
        return converging(large, to=0.0 if scheme == "la" else 0.3)

    evidence = world(laplace, gq=paper_gq, vq=lambda c, large: converging(large, to=0.3))
    assert verdict(CLAIMS["la-no-better"], evidence, Tolerances())[0] == FAILS


def test_hinge_holds_only_with_slope():
    def exact(scheme, cell, large):
        return oscillating(large) if cell[1] == "hinge" else paper_laplace(scheme, cell, large)

    evidence = world(exact, paper_laplace, paper_gq, paper_vq)
    assert verdict(CLAIMS["laplace-hinge"], evidence, Tolerances())[0] == ONLY_SLOPE
    row = judged(CLAIMS["laplace-hinge"], evidence, Tolerances())
    assert row["verdict_slope"] == HOLDS
    assert "0 of 6" in row["measured"]
    assert "6 of 6" in row["measured_slope"]


def test_nothing_is_judged_without_cells():
    empty = Evidence({}, {}, {}, {}, {}, as_the_paper_says().closedform)
    unknown = {key for key, claim in CLAIMS.items() if verdict(claim, empty, Tolerances())[0] == UNKNOWN}
    assert set(CLAIMS) - unknown == {"orders", "drawback", "larger-batches"}


@pytest.mark.parametrize("large", [False, True])
def test_curves_are_told_apart(large):
    tolerances = Tolerances()
    assert converging(large).converged(tolerances)
    assert not oscillating(large).is_steady(tolerances)
    assert stuck(large).is_steady(tolerances)
    assert not stuck(large).is_close(tolerances)
    assert not diverging(large).is_steady(tolerances)
    assert diverging(large).movement == np.inf


def test_a_jump_in_the_last_but_one_loop_is_not_steady():
    missed = converging(large=False).missed.copy()
    missed[-BATCHES - 5] += 0.5
    assert not Curve(missed, BATCHES, LOOPS).is_steady(Tolerances())


def test_arrival_and_progress():
    curve = Curve(np.array([1.0, 0.5, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), 10, 1)
    assert curve.arrival(within=0.2) == pytest.approx(0.2)
    assert curve.arrival(within=2.0) == 0.0
    assert curve.progress(since=0.1) == pytest.approx(0.5)


def test_a_verdict_that_hangs_on_the_tolerances_says_so():
    def judge(evidence, tolerances, suffix):
        return Finding(tolerances.close > 0.04, "0.04")

    row = judged(Claim("k", "s", "q", "c", judge), as_the_paper_says(), Tolerances(close=0.05))
    assert (row["half_tolerances"], row["verdict"], row["double_tolerances"]) == (FAILS, HOLDS, HOLDS)


def test_a_mild_reading_says_so():
    times = {"ionosphere": {"la": 2.0}}
    evidence = world(paper_laplace, gq=paper_gq, vq=paper_vq, times=times)
    row = judged(CLAIMS["qla-much-faster"], evidence, Tolerances())
    assert (row["verdict"], row["every_cell"]) == (HOLDS, False)
    assert "3× in 6 of 9 cells" in row["measured"]
    (shown,) = claim_rows({"claims": [row]})
    assert "every single cell" in shown["note"]


@pytest.mark.parametrize(("share", "wanted"), [(1.5, HOLDS), (1.1, UNDECIDED), (0.9, UNDECIDED), (0.5, FAILS)])
def test_a_ratio_of_times_near_its_threshold_decides_nothing(share, wanted):
    """LA takes so many times three times the time of QLA, where "much" is three times."""
    times = {data: {"la": 3.0 * share} for data in SMALL}
    row = judged(CLAIMS["qla-much-faster"], world(paper_laplace, gq=paper_gq, vq=paper_vq, times=times), Tolerances())
    assert row["verdict"] == wanted
    (shown,) = claim_rows({"claims": [row]})
    assert (f"a factor of {NOISE:g}" in shown["note"]) == (wanted == UNDECIDED)


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [((9.0, 5.0, 2.0), HOLDS), ((9.0, 8.5, 2.0), UNDECIDED), ((9.0, 9.5, 2.0), UNDECIDED), ((5.0, 9.0, 2.0), FAILS)],
)
def test_a_small_step_between_sizes_of_batches_decides_nothing(sizes, wanted):
    evidence = world(paper_laplace, gq=paper_gq, vq=paper_vq, sizes=sizes)
    assert verdict(CLAIMS["larger-batches"], evidence, Tolerances())[0] == wanted


@pytest.mark.parametrize(("closed", "wanted"), [(2.9, HOLDS), (1.55, UNDECIDED), (1.1, FAILS)])
def test_an_exponent_near_its_threshold_decides_nothing(closed, wanted):
    slopes = {"closed": closed, "newton": 3.0, "qla": 1.0, "gq": 1.0}
    evidence = world(paper_laplace, gq=paper_gq, vq=paper_vq, slopes=slopes)
    assert verdict(CLAIMS["drawback"], evidence, Tolerances())[0] == wanted
    assert f"{closed:.2f}" in verdict(CLAIMS["drawback"], evidence, Tolerances())[1][0].measured


def test_costs_do_not_depend_on_the_noise_of_times():
    evidence = as_the_paper_says()
    for claim in (claim for title, claims in GROUPS.items() if title != "Time" for claim in claims):
        found = {verdict(claim, evidence.with_noise(by), Tolerances())[0] for by in (0.01, 1.0, 100.0)}
        assert found == {HOLDS}


def test_missing_costs_count_as_infinite():
    cell = {
        "data": "haberman",
        "loss": "hinge",
        "batches": 1,
        "loops": 2,
        "start": 10.0,
        "curves": {"vq": {"cost": [None, 2.0, None], "spread": None}},
    }
    minima = {
        "cells": [{"data": "haberman", "loss": "hinge", "start": 10.0, "paper": {"cost": 1.5}, "best": {"cost": 1.0}}]
    }
    needed = {
        "minima": minima,
        "fig2": {"cells": [cell]},
        "fig3": {"cells": []},
        "table1": {"rows": []},
        "closedform": {"cells": []},
    }
    evidence = assemble(needed)
    assert evidence.curves["haberman", "hinge"]["vq"].missed.tolist() == [np.inf, pytest.approx(1 / 9), np.inf]
    assert evidence.paper_minimum["haberman", "hinge"] == pytest.approx(0.5 / 9)


def test_numbers_for_people():
    assert percent(0.0) == "0.0\N{NO-BREAK SPACE}%"
    assert percent(0.004) == "0.40\N{NO-BREAK SPACE}%"
    assert percent(0.031) == "3.1\N{NO-BREAK SPACE}%"
    assert percent(30.6) == "3,060\N{NO-BREAK SPACE}%"
    assert percent(np.inf) == "∞"
    assert span([1.234, 123.4]) == "1.2 to 123×"
    assert span([2.0, 2.0]) == "2×"


def test_keys_are_unique():
    assert len(CLAIMS) == sum(map(len, GROUPS.values())) == 37
