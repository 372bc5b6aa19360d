"""The comparison: its simulated truths are true, cavity's entries run, and its table hides nothing."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
NAMES = ["small", "wide", "one-hot", "mixed", "classes", "quantile", "stream", "drift"]


@pytest.fixture
def part(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.comparison.{name}")


def test_there_are_eight_tasks(part):
    assert list(part("tasks").TASKS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_entries_of_cavity_run_on_tiny_data(part, name):
    task, problem = part("tasks").TASKS[name], part("tasks").TASKS[name].load(True)[0]
    ours = [entry for entry in task.entries if entry.library == "cavity"]
    assert ours
    for entry in ours:
        found = entry.solve(problem)
        assert math.isfinite(task.score(problem, found.held_out))
        if found.coefficients is not None and problem.truth is not None:
            assert np.shape(found.coefficients[0]) == np.shape(problem.truth)
            assert part("core").covered(found.coefficients, problem.truth) > 0.5


def test_a_process_of_its_own_measures_all(part):
    task = part("tasks").TASKS["wide"]
    found = part("child").measure(task, task.entries[0], quick=True)
    assert found["seconds"] > 0.0
    assert found["megabytes"] >= 0.0
    assert 0.5 < found["coefficients"] <= 1.0
    assert 0.5 < found["targets"] <= 1.0


def test_true_quantiles_have_the_shares_they_should(part):
    quantiles = part("quantiles")
    problem = quantiles.load(False)[0]
    for level, slopes in zip(quantiles.LEVELS, problem.truth, strict=True):
        above = problem.y_new - problem.X_new @ slopes
        # What is left is the intercept of the quantile, the same for all rows: their shares below it are as well.
        below = above < np.quantile(above, level)
        low = problem.X_new[:, 0] < 0.5
        assert np.mean(below[low]) == pytest.approx(level, abs=0.03)


def test_the_true_coefficients_of_a_drifting_stream_predict_it_best(part):
    streams, core = part("streams"), part("core")
    problem = streams.drift(True)[0]
    z = np.sum(problem.X_new * np.repeat(problem.truth, streams.CHUNK, axis=0), axis=1)
    wrong = np.sum(problem.X_new * np.repeat(problem.truth[::-1, ::-1], streams.CHUNK, axis=0), axis=1)
    right, other = (core.log_loss_of(problem, 1.0 / (1.0 + np.exp(-value))) for value in (z, wrong))
    assert right < other


def test_the_best_of_each_column_is_bold_and_absent_peers_are_named(part):
    report = part("report")
    ours = report.Line("wide", "cavity", "EPRegressor", "defaults", 0.5, 1.25, 0.80, 0.91, 30.0)
    peer = report.Line("wide", "peer", "Ridge", "defaults", 0.2, 1.50, 0.97, None, 30.0)
    absent = report.Line("wide", "PyMC", "y ~ (1|a)", "defaults", note="absent: pymc")
    lines = [line for line in report.tables([ours, peer, absent]).splitlines() if "defaults" in line]
    assert lines == [
        "| cavity: EPRegressor | defaults | 0.50 | **1.2500** | 80.0 % | **91.0 %** | **30** |",
        "| peer: Ridge | defaults | **0.20** | 1.5000 | **97.0 %** | n/a | **30** |",
        "| PyMC: y ~ (1\\|a) | defaults | absent: pymc |  |  |  |  |",
    ]
