"""Offline minima: those of the paper, and the best known to us, with a certificate where one exists."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import resources
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paper import quasi01
from paper.curves import fit
from paper.experiment import Experiment, Json, Settings, Task
from reference import solvers
from reference.problems import LARGE, LOSSES, PRIOR_VARIANCE, QUASI01, SCHEMES, SMALL, Problem, design

FloatArray = NDArray[np.float64]
Found = tuple[FloatArray, float | None]

_SEEDS, _HOPS = 2, 40  # searches per small set, and how often each shakes its best point
_DESCENT_TOL = 1e-4  # share of the cost that a program must gain on a large set
# The lowest quasi 0-1 points that `tools/search_quasi01.py` has found: further starts.
_KNOWN_POINTS = "known_points.json"


def tasks(settings: Settings) -> list[Task]:
    """Every set and loss by every method that serves there."""
    chosen = []
    for data in settings.data:
        seconds = 3.0 if data in LARGE else 0.1
        chosen.append(Task(minimum, (data, "logistic", "newton", settings.quick), seconds))
        chosen.append(Task(minimum, (data, "hinge", "program", settings.quick), seconds))
        if data in SMALL:
            chosen += [Task(minimum, (data, loss, "powell", settings.quick)) for loss in ("hinge", "quasi01")]
            seeds = range(1 if settings.quick else _SEEDS)
            chosen += [Task(minimum, (data, "quasi01", "search", settings.quick, s), 2.0) for s in seeds]
        else:
            chosen.append(Task(minimum, (data, "quasi01", "descent", settings.quick), seconds))
    return chosen


def minimum(data: str, loss: str, method: str, quick: bool, seed: int = 0) -> Json:
    """Run one method on one problem; ``gap`` bounds its error where the method proves one."""
    X, y = design(data, quick)
    A = y[:, None] * X
    begin = perf_counter()
    point, gap = METHODS[method].run(Problem(data, loss, quick), A, seed)
    seconds = perf_counter() - begin
    priced = LOSSES[loss]
    return {
        "data": data,
        "loss": loss,
        "method": method,
        "cost": solvers.cost(priced, A, point, PRIOR_VARIANCE),
        "start": solvers.cost(priced, A, np.zeros(A.shape[1]), PRIOR_VARIANCE),
        "errors": int(np.sum(A @ point <= 0.0)),
        "gap": gap,
        "seconds": seconds,
    }


def _newton(problem: Problem, A: FloatArray, seed: int) -> Found:
    return solvers.newton_logistic(A, PRIOR_VARIANCE)


def _program(problem: Problem, A: FloatArray, seed: int) -> Found:
    return solvers.hinge_program(A, PRIOR_VARIANCE)


def _powell(problem: Problem, A: FloatArray, seed: int) -> Found:
    start = solvers.newton_logistic(A, PRIOR_VARIANCE).point
    return solvers.powell(LOSSES[problem.loss], A, PRIOR_VARIANCE, start), None


def _descent(problem: Problem, A: FloatArray, seed: int) -> Found:
    rounds = 2 if problem.quick else 25
    return quasi01.descend(QUASI01, A, PRIOR_VARIANCE, known_point(problem.data), _DESCENT_TOL, rounds), None


def _search(problem: Problem, A: FloatArray, seed: int) -> Found:
    starts = [
        np.zeros(A.shape[1]),
        solvers.newton_logistic(A, PRIOR_VARIANCE).point,
        solvers.hinge_program(A, PRIOR_VARIANCE).point,
        fit(problem, SCHEMES["vq"], problem.batches()).mean,
        known_point(problem.data),
    ]
    hops = 3 if problem.quick else _HOPS
    return quasi01.search(QUASI01, A, PRIOR_VARIANCE, starts, hops, np.random.default_rng(seed)), None


class Method(NamedTuple):
    """A method to find a minimum, and its title."""

    title: str
    run: Callable[[Problem, FloatArray, int], Found]


METHODS = {
    "newton": Method("Newton", _newton),
    "powell": Method("Powell from the logistic minimum", _powell),
    "program": Method("quadratic program, interior point", _program),
    "search": Method("repeated quadratic programs, best of many starts", _search),
    "descent": Method("repeated quadratic programs, from the end of a longer search", _descent),
}


def known_point(data: str) -> FloatArray:
    """Read the lowest quasi 0-1 point known on a data set."""
    text = resources.files(__package__).joinpath(_KNOWN_POINTS).read_text()
    return np.array(json.loads(text)[data], dtype=np.float64)


def gather(settings: Settings, answers: list[Any], needed: Mapping[str, Json]) -> Json:
    """For every problem the paper's minimum, if it had one, and the lowest of all."""
    cells = []
    for data in settings.data:
        for loss in LOSSES:
            found = [a for a in answers if (a["data"], a["loss"]) == (data, loss)]
            best = min(found, key=lambda a: float(a["cost"]))
            paper = [a for a in found if a["method"] in ("newton", "powell")] if data in SMALL else []
            # The search ran from several seeds: its time is that of all.
            seconds = sum(a["seconds"] for a in found if a["method"] == best["method"])
            cells.append(
                {
                    "data": data,
                    "loss": loss,
                    "start": best["start"],
                    "paper": paper[0] if paper else None,
                    "best": {**best, "seconds": seconds},
                }
            )
    return {"cells": cells}


def lookup(results: Json) -> dict[tuple[str, str], Json]:
    """Index the cells by data set and loss."""
    return {(cell["data"], cell["loss"]): cell for cell in results["cells"]}


EXPERIMENT = Experiment("minima", "offline minima of every cost", tasks, gather)
