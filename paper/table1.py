"""Table 1: mean time per mini-batch, beside the paper's own figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper.curves import fit
from paper.experiment import Experiment, Json, Settings, Task
from paper.timing import update_time
from reference.problems import LOSSES, PAPER_SCHEMES, SCHEMES, Problem, design

# Milliseconds for LA, QLA, GQ and VQ, as printed in the paper.
PAPER_MS: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("haberman", "logistic"): (4.78, 0.59, 0.34, 1.05),
    ("haberman", "hinge"): (5.61, 0.59, 0.32, 1.03),
    ("haberman", "quasi01"): (11.86, 0.85, 0.41, 1.68),
    ("ionosphere", "logistic"): (8.11, 0.63, 0.44, 2.22),
    ("ionosphere", "hinge"): (7.67, 0.67, 0.40, 5.56),
    ("ionosphere", "quasi01"): (17.15, 0.91, 0.50, 6.38),
    ("breast_cancer", "logistic"): (9.86, 0.63, 0.40, 1.59),
    ("breast_cancer", "hinge"): (7.86, 0.65, 0.38, 1.82),
    ("breast_cancer", "quasi01"): (12.82, 0.91, 0.49, 1.81),
    ("bank", "logistic"): (95.33, 9.85, 4.26, 8.26),
    ("bank", "hinge"): (117.39, 10.37, 3.91, 9.64),
    ("bank", "quasi01"): (323.56, 15.62, 5.78, 10.36),
    ("census", "logistic"): (191.53, 12.20, 8.14, 33.97),
    ("census", "hinge"): (230.76, 12.49, 7.20, 37.98),
    ("census", "quasi01"): (628.13, 17.87, 9.10, 33.93),
}


# The plain loops are timed on the first mini-batches only.
_PLAIN_UPDATES = 30


def keys(settings: Settings) -> list[tuple[str, str, str]]:
    """All cells, in the order of the paper."""
    return [(data, loss, name) for data in settings.data for loss in LOSSES for name in PAPER_SCHEMES]


def tasks(settings: Settings) -> list[Task]:
    """Compile all loops, which takes seconds each, once on a machine; then time one cell after the other."""
    pairs = [] if settings.quick else [(loss, name) for loss in LOSSES for name in PAPER_SCHEMES]
    compiling = [Task(compile_loops, pair, 4.0) for pair in pairs]
    return compiling + [Task(timed, (*key, settings.quick), alone=True) for key in keys(settings)]


def compile_loops(loss: str, scheme: str) -> None:
    """Run the shortest fit that compiles."""
    problem = Problem("haberman", loss)
    fit(problem, SCHEMES[scheme], problem.batches(2), compiled=True)


def timed(data: str, loss: str, scheme: str, quick: bool) -> Json:
    """Time one cell."""
    problem = Problem(data, loss, quick)
    n, d = design(data, quick)[0].shape
    plain = update_time(problem, SCHEMES[scheme], updates=10 if quick else _PLAIN_UPDATES)
    # Compiling takes too long for a quick run.
    time = plain if quick else update_time(problem, SCHEMES[scheme], compiled=True)
    time = {**time, "plain_ms": plain["ms"]}
    return {"shape": {"n": n, "d": d, "batch_size": problem.batch_size}, "time": time}


def gather(settings: Settings, answers: list[Any], needed: Mapping[str, Json]) -> Json:
    """One row for every data set and loss."""
    rows: dict[tuple[str, str], Json] = {}
    cells = keys(settings)
    for (data, loss, name), answer in zip(cells, answers[len(answers) - len(cells) :], strict=True):
        paper = dict(zip(PAPER_SCHEMES, PAPER_MS[data, loss], strict=True))
        new = {"data": data, "loss": loss, **answer["shape"], "paper": paper, "here": {}}
        rows.setdefault((data, loss), new)["here"][name] = answer["time"]
    return {"rows": list(rows.values())}


EXPERIMENT = Experiment("table1", "mean time per mini-batch", tasks, gather)
