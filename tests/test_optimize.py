"""`cavity.minimize`: the lowest point, whatever the costs are, and a true status."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from sklearn.exceptions import ConvergenceWarning

import cavity
from cases import quietly
from cavity import CostFactor, FactorError, FactorialGaussian, LinearFactor, losses
from cavity.ep.result import RunError
from cavity.optimize import Ending
from cavity.schedules import Shuffled
from reference import solvers

VARIANCE = 25.0
# Sums of the same numbers in another order.
ROUNDING = 1e-12
# What is refused whatever the factors.
WRONG_OPTIONS = [
    *(({"max_iter": wrong}, "max_iter must be a whole number of at least 1") for wrong in (0, 2.5, np.inf, "3", True)),
    *(({"tol": wrong}, r"tol must lie in \[0, 1\)") for wrong in (-1.0, 1.0, np.nan, np.inf, None, "x")),
    *(({"beta": wrong}, "beta must be") for wrong in ((1.0, -1.0), "hot", [], [[1.0]], np.nan, True)),
    *(({"damping": wrong}, r"damping must lie in \(0, 1\]") for wrong in (0.0, -5, 2.0, np.nan, None, "a")),
    *(({"order": wrong}, "order must") for wrong in ("backwards", "nonsense", None, 3, [7], [])),
    ({"scheme": "nothing"}, "scheme must be one of"),
]
KINDS = [
    losses.Logistic(),
    losses.QuasiZeroOne(1e-3),
    losses.Absolute(0.1),
    losses.Huber(),
    losses.Poisson(),
    losses.Gamma(),
]


def wide(dim, mean=0.0):
    return FactorialGaussian.from_moments(np.full(dim, mean), VARIANCE)


def signs(rows=60, columns=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns))
    return X, np.sign(X[:, 0] + 0.5 * rng.standard_normal(rows))


def boxes(loss, X, y, size=20):
    """The rows as black boxes."""
    return [
        CostFactor(
            lambda t, k=k: loss.value(y[k : k + size], t @ X[k : k + size].T).sum(axis=1),
            dim=X.shape[1],
            vectorized=True,
        )
        for k in range(0, len(y), size)
    ]


def certified(loss, A):
    """Cost that no point is below, by a proof, and no more than 1e-6 below the minimum."""
    solve = solvers.newton_logistic if isinstance(loss, losses.Logistic) else solvers.hinge_program
    found = solve(A, VARIANCE)
    assert found.gap < 1e-6
    return (solvers.cost(loss, A, found.point, VARIANCE) - found.gap) * (1.0 - ROUNDING)


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge()], ids=repr)
@pytest.mark.parametrize("scale", [1.0, np.array([1e-3, 1.0, 30.0, 1e3])], ids=["even", "uneven"])
def test_minimum_of_convex_losses(loss, scale):
    X, y = signs()
    X = X * scale
    least = certified(loss, y[:, None] * X)
    linear = cavity.minimize(LinearFactor.batches(loss, X, y, 10), wide(4))
    assert least <= linear.cost <= 1.005 * least
    assert linear.status is Ending.CONVERGED
    box = cavity.minimize(boxes(loss, X, y), wide(4))
    assert least <= box.cost <= 1.005 * least


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 6), st.sampled_from(KINDS))
@settings(max_examples=30, deadline=None)
def test_ends_finite_and_no_higher_than_the_prior_mean(seed, rows, columns, loss):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns)) * 10.0 ** rng.uniform(-6.0, 6.0, columns)
    X[:, 0] = X[:, -1] if seed % 2 else 1.0
    y = {"signs": np.sign(rng.standard_normal(rows)), "counts": np.round(rng.gamma(1.0, 5.0, rows))}
    y["positives"] = y["counts"] + 0.1
    targets = y.get(loss.targets, 10.0 ** rng.uniform(-3.0, 3.0) * rng.standard_normal(rows))
    prior = FactorialGaussian.from_moments(rng.standard_normal(columns), 10.0 ** rng.uniform(-6.0, 6.0, columns))
    for factors in (LinearFactor.batches(loss, X, targets, 7), boxes(loss, X, targets)):
        found = quietly(cavity.minimize, factors, prior)
        assert np.all(np.isfinite(found.point))
        assert np.isfinite(found.cost)
        assert found.cost <= found.costs[0]
        assert found.status is not Ending.UNBOUNDED


def test_tol_leads_on_to_the_minimum():
    X, y = signs()
    least = certified(losses.Hinge(), y[:, None] * X)
    factors = LinearFactor.batches(losses.Hinge(), X, y, 10)
    assert cavity.minimize(factors, wide(4), tol=1e-8, max_iter=40).cost == pytest.approx(least, rel=1e-5)


def test_quasi_zero_one_ends_well_below_the_logistic_solution():
    """Whichever of its many minima they end in: the logistic solution costs 36.4, these 27 to 30."""
    X, y = signs(200, 6)
    A, loss = y[:, None] * X, losses.QuasiZeroOne()
    logistic = solvers.cost(loss, A, solvers.newton_logistic(A, VARIANCE).point, VARIANCE)
    assert cavity.minimize(LinearFactor.batches(loss, X, y, 10), wide(6)).cost < 0.9 * logistic
    assert cavity.minimize(boxes(loss, X, y), wide(6)).cost < 0.9 * logistic


def test_cost_is_that_of_factors_and_prior_at_the_point():
    X, y = signs()
    prior = FactorialGaussian.from_moments([1.0, 0.0, -1.0, 0.0], [1.0, 2.0, 3.0, 4.0])
    factors = LinearFactor.batches(losses.Hinge(), X, y, 10)
    for terms in (factors, list(factors), boxes(losses.Hinge(), X, y)):
        found = cavity.minimize(terms, prior)
        away = found.point - prior.mean
        expected = factors.cost(found.point) + 0.5 * np.sum(away**2 / prior.variance)
        assert found.cost == pytest.approx(expected, rel=1e-12)
        assert found.cost <= min(found.costs)
        assert len(found.costs) == len(found.betas)


def test_spread_of_a_parabola_is_its_width():
    def parabola(t):
        return 0.5 * float(np.sum(((t - 1.0) / (0.1, 2.0)) ** 2))

    found = cavity.minimize([CostFactor(parabola, 2)], wide(2))
    width = 1.0 / np.sqrt(1.0 / np.array([0.01, 4.0]) + 1.0 / VARIANCE)
    assert found.spread == pytest.approx(width, rel=1e-6)


def test_valley_that_turns():
    def valley(t):
        return 100.0 * (t[1] - t[0] ** 2) ** 2 + (1.0 - t[0]) ** 2

    found = cavity.minimize([CostFactor(valley, 2)], wide(2, -1.0))
    best = optimize.minimize(lambda t: valley(t) + 0.5 * np.sum((t + 1.0) ** 2) / VARIANCE, [1.0, 1.0], tol=1e-12)
    assert found.cost == pytest.approx(best.fun, rel=1e-3)


def test_passes_over_small_local_minima():
    def waves(t):
        return np.sum(0.5 * (t - 3.0) ** 2 - 0.3 * np.cos(20.0 * (t - 3.0)), axis=1)

    found = cavity.minimize([CostFactor(waves, 2, vectorized=True)], wide(2))
    grid = np.linspace(-2.0, 5.0, 20_000)
    least = np.min(waves(grid[:, None]) + 0.5 * grid**2 / VARIANCE)
    assert found.cost == pytest.approx(2.0 * least, rel=1e-3)


def test_a_scheme_anneals_linear_factors_too():
    X, y = signs()
    least = certified(losses.Hinge(), y[:, None] * X)
    found = cavity.minimize(LinearFactor.batches(losses.Hinge(), X, y, 10), wide(4), "exact")
    assert found.cost <= 1.005 * least
    assert found.betas[-1] > 1.0


def test_factors_of_some_coordinates():
    factors = [
        CostFactor(lambda t: float(np.abs(t - 1.0).sum()), dim=3, coordinates=[0, 2]),
        CostFactor(lambda t: float(np.abs(t - 2.0).sum()), dim=3, coordinates=[1]),
    ]
    assert cavity.minimize(factors, wide(3)).point == pytest.approx([1.0, 2.0, 1.0], abs=1e-3)


def test_same_input_same_output():
    X, y = signs()
    runs = [cavity.minimize(boxes(losses.Hinge(), X, y), wide(4), order=Shuffled(3)) for _ in range(2)]
    assert np.array_equal(runs[0].point, runs[1].point)
    assert runs[0].evaluations == runs[1].evaluations


def test_evaluations_are_those_of_the_black_boxes():
    calls = []
    factors = [CostFactor(lambda t, a=a: calls.append(1) or float(np.abs(t - a).sum()), 2) for a in (1.0, 2.0)]
    found = cavity.minimize(factors, wide(2))
    assert found.evaluations == len(calls)


@pytest.mark.parametrize(
    ("cost", "status"),
    [
        (lambda t: -(float(t @ t) ** 2), Ending.UNBOUNDED),
        (lambda t: -np.inf if t[0] > 1.0 else float((t[0] - 3.0) ** 2), Ending.UNBOUNDED),
        (lambda t: np.nan if t[0] > 0.5 else float((t - 1.0) @ (t - 1.0)), Ending.NONFINITE),
        (lambda t: np.inf if t[0] > 0.5 else float((t - 1.0) @ (t - 1.0)), Ending.NONFINITE),
        (lambda t: np.inf, Ending.NONFINITE),
        (lambda t: 0.0, Ending.CONVERGED),
    ],
    ids=["falls", "falls at once", "nan", "infinite", "infinite everywhere", "flat"],
)
def test_status_is_honest_and_the_point_finite(cost, status):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cavity.minimize([CostFactor(cost, 2)], FactorialGaussian.from_moments(np.zeros(2), 1.0))
    assert found.status is status
    assert np.all(np.isfinite(found.point))
    if status is Ending.CONVERGED:
        assert found.raise_for_status() is found
        assert not caught
    else:
        assert [(w.category, w.filename) for w in caught] == [(ConvergenceWarning, __file__)]
        assert str(caught[0].message) == f"cavity.minimize ended with {status.name}: {status.value}"
        with pytest.raises(RunError, match=found.status.value[:20]):
            found.raise_for_status()


def test_a_cost_that_breaks_off_says_which_and_where():
    def breaks(t):
        if abs(t[0]) > 6.0:
            raise OverflowError("too far out")
        return float((t - 5.0) @ (t - 5.0))

    with pytest.raises(FactorError, match="factor 1 raised OverflowError: too far out") as caught:
        cavity.minimize([CostFactor(lambda t: 0.0, 2), CostFactor(breaks, 2)], wide(2))
    assert caught.value.factor == 1
    assert np.all(np.isfinite(caught.value.result.mean))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"factors": []}, "at least one factor"),
        ({"prior": wide(3)}, "2 coordinates, but the prior has 3"),
        ({"prior": FactorialGaussian.uniform(2)}, "prior must be proper"),
        ({"scheme": "exact"}, "needs a LinearFactor.*got CostFactor"),
        *WRONG_OPTIONS,
        ({"factors": [CostFactor(lambda t: np.nan, 2)]}, "factor 0 returns NaN at the prior mean"),
        (
            {"factors": LinearFactor.batches(losses.Hinge(), np.ones((2, 3)), [1.0, -1.0], 1)},
            "3 columns, but the prior",
        ),
    ],
)
def test_wrong_input_is_refused(options, words):
    arguments = {"factors": [CostFactor(lambda t: 0.0, 2)], "prior": wide(2), **options}
    with pytest.raises(ValueError, match=words):
        cavity.minimize(arguments.pop("factors"), arguments.pop("prior"), **arguments)


@pytest.mark.parametrize(("options", "words"), WRONG_OPTIONS)
def test_linear_factors_refuse_the_same(options, words):
    X, y = signs()
    for factors in (LinearFactor.batches(losses.Hinge(), X, y, 20), list(LinearFactor.batches(losses.Hinge(), X, y))):
        with pytest.raises(ValueError, match=f"{words}.*, got"):
            cavity.minimize(factors, wide(4), **options)


class Breaking(NamedTuple):
    """Half squares, unless a prediction is too large."""

    limit: float = 5.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return self.derivatives(y, z)[0]

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        if np.any(np.abs(z) > self.limit):
            raise OverflowError("too far out")
        return 0.5 * (y - z) ** 2, z - y, 1.0 + 0.0 * z


def test_a_linear_loss_that_raises_is_reported_as_a_factors_error():
    X, _ = signs()
    factors = LinearFactor.batches(Breaking(), X, 100.0 * X[:, 0], 10)
    with pytest.raises(FactorError, match="one of the factors raised OverflowError: too far out"):
        cavity.minimize(factors, wide(4))
    with pytest.raises(FactorError, match="factor 0 raised OverflowError: too far out"):
        cavity.minimize(factors, wide(4, mean=100.0))
