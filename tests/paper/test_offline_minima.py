import numpy as np
import pytest

from cavity.losses import QuasiZeroOne
from paper import quasi01
from paper.minima import minimum
from reference import solvers
from reference.problems import LOSSES, design

VARIANCE = 25.0
# Sums of the same numbers in another order.
ROUNDING = 1e-9


@pytest.fixture(params=[(60, 3), (8, 12)], ids=["tall", "wide"])
def rows(request):
    return np.random.default_rng(0).standard_normal(request.param) * 0.3 + 0.1


def test_the_line_search_finds_the_global_minimum(rows):
    loss, rng = QuasiZeroOne(0.1), np.random.default_rng(1)
    grid = np.linspace(-40.0, 40.0, 80_001)
    for _ in range(5):
        point, u = rng.standard_normal((2, rows.shape[1]))
        z, w = rows @ point, rows @ u
        inner, square = u @ point / VARIANCE, u @ u / VARIANCE

        def along(t, z=z, w=w, inner=inner, square=square):
            return loss.value(1.0, z[:, None] + w[:, None] * t).sum(0) + inner * t + 0.5 * square * t**2

        t = quasi01.line_minimum(loss, z, w, inner, square)
        assert along(np.array([t]))[0] <= along(grid).min() + 1e-9


def test_a_line_along_which_nothing_moves_stays():
    assert quasi01.line_minimum(QuasiZeroOne(), np.ones(3), np.zeros(3), 0.0, 1.0) == 0.0


def test_descent_and_search_never_go_up(rows):
    loss, start = QuasiZeroOne(0.1), np.full(rows.shape[1], 0.5)
    before = solvers.cost(loss, rows, start, VARIANCE)
    down = solvers.cost(loss, rows, quasi01.descend(loss, rows, VARIANCE, start), VARIANCE)
    found = quasi01.search(loss, rows, VARIANCE, [start], hops=3, rng=np.random.default_rng(0))
    assert solvers.cost(loss, rows, found, VARIANCE) <= down * (1.0 + ROUNDING)
    assert down <= before * (1.0 + ROUNDING)


# Haberman's minima, from independent runs: Newton, liblinear, and the lowest from many starts.
PRINTED = 2e-6
HABERMAN = {"logistic": 172.012362, "hinge": 166.599970, "quasi01": 78.938702}


@pytest.mark.parametrize(("loss", "method"), [("logistic", "newton"), ("hinge", "program"), ("quasi01", "search")])
def test_the_best_minima_of_haberman(loss, method):
    answer = minimum("haberman", loss, method, quick=True)
    assert answer["cost"] <= HABERMAN[loss] + PRINTED
    if method == "search":
        assert answer["gap"] is None
    else:  # the others are proved, and nothing lies below
        assert HABERMAN[loss] - PRINTED <= answer["cost"]
        assert 0.0 <= answer["gap"] <= PRINTED


@pytest.mark.parametrize("loss", ["hinge", "quasi01"])
def test_powell_ends_between_its_start_and_the_minimum(loss):
    """Where exactly is a matter of rounding: its line searches stop early, and it goes on from there."""
    X, y = design("haberman", True)
    A = y[:, None] * X
    start = solvers.cost(LOSSES[loss], A, solvers.newton_logistic(A, VARIANCE).point, VARIANCE)
    answer = minimum("haberman", loss, "powell", quick=True)
    assert HABERMAN[loss] - PRINTED <= answer["cost"] < start
    assert answer["gap"] is None


def test_no_search_ends_above_the_best_point_known():
    """It is among the starts; a lower one would be welcome."""
    assert minimum("ionosphere", "quasi01", "search", quick=True)["cost"] <= 26.880082 + PRINTED
