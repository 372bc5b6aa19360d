import numpy as np
import pytest

from cavity import datasets
from paper import table1, timing
from paper.curves import cells, total_costs, trace, traced
from paper.panels import ticks
from reference import problems
from reference.problems import LOSSES, QUICK_ROWS, SCHEMES, Problem, ZeroOne, design


def test_small_sets_keep_the_order_of_the_file():
    X, y = design("haberman")
    loaded = datasets.paper("haberman")
    assert np.array_equal(X, loaded.X)
    assert np.array_equal(y, loaded.y)


def test_large_sets_are_shuffled_the_same_way_every_time():
    X, y = design("bank", True)
    loaded = datasets.paper("bank")
    order = np.random.default_rng(problems.SHUFFLE_SEED).permutation(len(loaded.y))[:QUICK_ROWS]
    assert np.array_equal(X, loaded.X[order])
    assert np.array_equal(y, loaded.y[order])
    assert not np.array_equal(y, loaded.y[:QUICK_ROWS])


def test_settings_are_those_of_the_paper():
    small, large = Problem("haberman", "hinge"), Problem("census", "hinge")
    assert (small.batch_size, small.loops, len(small.batches())) == (10, 5, 31)
    assert (large.batch_size, large.loops) == (100, 1)
    assert np.all(small.prior().variance == 25.0)
    assert np.all(small.prior().mean == 0.0)
    assert LOSSES["quasi01"].epsilon == 0.1


def test_the_first_batches_are_those_of_the_whole():
    problem = Problem("haberman", "logistic")
    few = problem.batches(first=3, batch_size=7)
    assert len(few) == 3
    assert np.array_equal(few.X, problem.batches().X[:21])


def test_costs_in_chunks_are_the_costs(monkeypatch):
    problem = Problem("haberman", "hinge")
    batches, means = problem.batches(), np.random.default_rng(0).standard_normal((7, 4))
    expected = [sum(f.cost(m[None])[0] for f in batches) + m @ m / 50.0 for m in means]
    monkeypatch.setattr("paper.curves._CHUNK", 2 * 306)
    assert total_costs(batches, means) == pytest.approx(np.array(expected), rel=1e-12)


def test_a_curve_has_a_cost_an_update_and_ends_at_the_posterior_mean():
    problem = Problem("haberman", "logistic", quick=True)
    curve = trace(problem, SCHEMES["vq"])
    assert len(curve["cost"]) == 2 * 31
    assert curve["refused"] == 0
    assert curve["cost"][-1] == pytest.approx(172.02, abs=0.01)


def test_curves_of_one_problem_share_a_cell():
    answers = [traced("haberman", "hinge", name, True) for name in ("qla", "vq")]
    (cell,) = cells(answers)
    assert (cell["start"], cell["batches"], list(cell["curves"])) == (306.0, 31, ["qla", "vq"])


def test_the_zero_one_loss_counts_errors():
    value, slope, curvature = ZeroOne().derivatives(np.array([1.0, 1.0, -1.0]), np.array([2.0, -2.0, 0.0]))
    assert value.tolist() == [0.0, 1.0, 0.5]
    assert not slope.any()
    assert not curvature.any()


def test_update_times_count_every_update():
    answer = timing.update_time(Problem("haberman", "hinge", quick=True), SCHEMES["qla"], updates=3)
    assert answer["updates"] == 6
    assert 0.0 < answer["ms"] < np.inf
    assert 1 <= answer["repeats"] <= 5


def test_the_papers_table_is_whole():
    assert set(table1.PAPER_MS) == {(data, loss) for data in datasets.NAMES for loss in LOSSES}
    # Sums of the columns LA, QLA, GQ and VQ, taken from the text of the paper by a program.
    assert np.sum(list(table1.PAPER_MS.values()), axis=0) == pytest.approx([1672.42, 84.83, 42.07, 157.28])


@pytest.mark.parametrize("bounds", [(172.0, 210.0), (9.0, 1100.0), (15000.0, 31000.0), (4900.0, 5400.0), (0.001, 3e6)])
def test_ticks_are_few_and_inside(bounds):
    found = ticks(*bounds)
    assert 3 <= len(found) <= 12
    assert min(found) >= bounds[0]
    assert max(found) <= bounds[1]
