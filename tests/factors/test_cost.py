import builtins
import importlib

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import assert_close, finite, fit, gaussian_cost, seeds, standard_prior, vectors
from cavity import CostFactor
from cavity.factors import cost as cost_module

ROUNDING = 1e-10
DOUBLE = 1e-12
# Documented for a cost near one: 1e-10 and 1e-8, give or take the last digits of the cost itself.
GRADIENT_ERROR = 1e-9
CURVATURE_ERROR = 1e-7


def bumps(t):
    """A smooth cost of one point, not convex, with mixed second derivatives."""
    return np.sum(np.sin(t)) + 0.5 * np.sum(t) ** 2 / t.size


def bumps_gradient(t):
    return np.cos(t) + np.sum(t) / t.size


def bumps_curvature(t):
    return -np.sin(t) + 1.0 / t.size


def bumps_vectorized(points):
    return np.array([bumps(t) for t in points])


@given(st.integers(1, 5), seeds)
def test_star_is_the_cost_at_the_centre_and_along_every_axis(dim, seed):
    rng = np.random.default_rng(seed)
    center, steps = rng.standard_normal(dim), rng.uniform(0.1, 2.0, dim)
    star = CostFactor(bumps, dim).star(center, steps)
    assert star.center == bumps(center)
    for i, step in enumerate(np.diag(steps)):
        assert star.up[i] == bumps(center + step)
        assert star.down[i] == bumps(center - step)


@given(vectors((4, 3), finite(5.0)))
def test_a_vectorised_cost_is_the_same_as_one_point_at_a_time(points):
    one, many = CostFactor(bumps, 3), CostFactor(bumps_vectorized, 3, vectorized=True)
    assert np.array_equal(one.cost(points), many.cost(points))
    assert one.cost(points).shape == (4,)
    a, b = one.star(points[0], np.ones(3)), many.star(points[0], np.ones(3))
    assert a.center == b.center
    assert np.array_equal(a.up, b.up)
    assert np.array_equal(a.down, b.down)


def test_the_star_of_a_vectorised_cost_is_one_call_and_of_others_one_a_node():
    calls = []

    def counted(points):
        calls.append(np.shape(points))
        return np.sum(np.abs(points), axis=-1)

    CostFactor(counted, 3, vectorized=True).star(np.zeros(3), np.ones(3))
    assert calls == [(7, 3)]
    calls.clear()
    CostFactor(counted, 3).star(np.zeros(3), np.ones(3))
    assert calls == [(3,)] * 7


@given(vectors(3, finite(2.0)))
def test_differences_are_as_close_as_documented(point):
    value, gradient, curvature = CostFactor(bumps, 3).derivatives(point)
    scale = 1.0 + abs(bumps(point))
    assert value == bumps(point)
    assert_close(gradient, bumps_gradient(point), GRADIENT_ERROR * scale)
    assert_close(curvature, bumps_curvature(point), CURVATURE_ERROR * scale)


def test_steps_grow_with_the_point():
    point = np.array([1e6, -1e-6])
    factor = CostFactor(lambda t: 0.5 * (t[0] / 1e6) ** 2 + t[1] ** 2, 2)
    _, gradient, curvature = factor.derivatives(point)
    assert_close(gradient * [1e6, 1.0], [1.0, -2e-6], GRADIENT_ERROR)
    assert_close(curvature * [1e12, 1.0], [1.0, 2.0], 1e2 * CURVATURE_ERROR)


def test_a_step_of_ones_own_is_used():
    factor = CostFactor(lambda t: abs(t[0]), 1, step=0.5)
    assert factor.derivatives(np.array([0.25])).gradient == pytest.approx([0.5])
    assert factor.derivatives(np.array([0.25])).curvature == pytest.approx([2.0])


def test_given_derivatives_are_used_and_nothing_else_is_called():
    calls = []
    factor = CostFactor(
        lambda t: calls.append(t) or 1.0, 2, gradient=lambda t: [3.0, 4.0], curvature=lambda t: np.array([5.0, 6.0])
    )
    value, gradient, curvature = factor.derivatives(np.zeros(2))
    assert value == 1.0
    assert gradient.tolist() == [3.0, 4.0]
    assert curvature.tolist() == [5.0, 6.0]
    assert len(calls) == 1


def test_only_the_named_coordinates_reach_the_cost():
    seen = []

    def cost(t):
        seen.append(t.copy())
        return 0.5 * float((t - np.array([1.0, 2.0])) @ (t - np.array([1.0, 2.0])))

    factor = CostFactor(cost, dim=4, coordinates=[1, 3])
    result = fit([factor], standard_prior(4))
    assert {t.shape for t in seen} == {(2,)}
    assert result.mean == pytest.approx([0.0, 0.5, 0.0, 1.0])
    assert result.variance == pytest.approx([1.0, 0.5, 1.0, 0.5])
    assert result.sites[0].dim == 2


def test_no_coordinate_at_all_may_be_named():
    for coordinates in ([], np.array([], dtype=np.intp)):
        factor = CostFactor(lambda t: 1.5, dim=2, coordinates=coordinates)
        result = fit([factor], standard_prior(2))
        assert result.log_evidence == pytest.approx(-1.5)
        assert result.mean == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize("given_gradient", [False, True])
def test_newtons_direction_solves_with_all_second_derivatives(given_gradient):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((4, 4))
    A = A @ A.T
    factor = CostFactor(lambda t: 0.5 * t @ A @ t, 4, gradient=(lambda t: A @ t) if given_gradient else None)
    point, gradient, precision = rng.standard_normal(4), rng.standard_normal(4), rng.uniform(0.5, 2.0, 4)
    found = factor.newton_direction(point, gradient, precision, 0.7, "exact")
    assert_close(found, -np.linalg.solve(np.diag(precision) + 0.7 * A, gradient), 1e2 * CURVATURE_ERROR)


@given(vectors(3, finite(3.0)), vectors(3, st.floats(0.01, 3.0)))
def test_newtons_direction_descends_where_the_cost_is_concave(point, gradient):
    factor = CostFactor(lambda t: -5.0 * float(t @ t), 3, gradient=lambda t: -10.0 * t)
    direction = factor.newton_direction(point, gradient, np.ones(3), 1.0, "exact")
    assert np.all(np.isfinite(direction))
    assert gradient @ direction < 0.0


def jax_bumps(t):
    return jnp.sum(jnp.sin(t)) + 0.5 * jnp.sum(t) ** 2 / t.size


def jax_bumps_vectorized(points):
    return jnp.sum(jnp.sin(points), axis=1) + 0.5 * jnp.sum(points, axis=1) ** 2 / points.shape[1]


@pytest.fixture(scope="module", params=[False, True], ids=["one point", "vectorized"])
def jax_factor(request):
    cost = jax_bumps_vectorized if request.param else jax_bumps
    return CostFactor(cost, 3, vectorized=request.param, differentiate="jax")


@given(point=vectors(3, finite(3.0)))
def test_jax_derivatives_are_exact_in_double_precision(jax_factor, point):
    _, gradient, curvature = jax_factor.derivatives(point)
    assert gradient.dtype == curvature.dtype == np.float64
    assert_close(gradient, bumps_gradient(point), DOUBLE)
    assert_close(curvature, bumps_curvature(point), DOUBLE)


@given(point=vectors(3, finite(3.0)))
def test_jax_costs_are_in_double_precision_too(jax_factor, point):
    assert jax_factor.derivatives(point).value == pytest.approx(bumps(point), abs=DOUBLE)
    assert_close(jax_factor.cost(point[None]), [bumps(point)], DOUBLE)


@pytest.mark.parametrize("scheme", ["la", "qla", "vq", "gq"])
def test_jax_gives_the_same_posterior_as_given_derivatives(scheme):
    a, b = (
        fit([CostFactor(dim=2, **kwargs)] * 2, standard_prior(2, 0.3), scheme)
        for kwargs in (
            {"cost_function": jax_bumps, "differentiate": "jax"},
            {"cost_function": bumps, "gradient": bumps_gradient, "curvature": bumps_curvature},
        )
    )
    assert_close(a.mean, b.mean, ROUNDING)
    assert_close(a.variance, b.variance, ROUNDING)
    assert a.log_evidence == pytest.approx(b.log_evidence, abs=ROUNDING)


def test_given_derivatives_come_before_those_of_jax():
    factor = CostFactor(jax_bumps, 1, gradient=lambda t: np.array([7.0]), differentiate="jax")
    assert factor.derivatives(np.zeros(1)).gradient == [7.0]
    assert factor.derivatives(np.zeros(1)).curvature == pytest.approx([1.0])


def test_jax_leaves_its_global_precision_alone():
    CostFactor(jax_bumps, 1, differentiate="jax").derivatives(np.zeros(1))
    assert jnp.asarray(1.5).dtype == jnp.float32


def test_missing_jax_names_what_to_install(monkeypatch):
    def absent(name, *args, **kwargs):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(cost_module, "import_module", absent)
    with pytest.raises(ImportError, match=r"needs JAX: pip install jax, or leave it out for finite diff"):
        CostFactor(jax_bumps, 1, differentiate="jax")
    assert CostFactor(bumps, 1).derivatives(np.zeros(1)).gradient == pytest.approx([1.0])


def test_jax_is_not_needed_by_the_import_of_the_library(monkeypatch):
    real = builtins.__import__

    def without_jax(name, *args, **kwargs):
        if name.split(".")[0] == "jax":
            raise ModuleNotFoundError("No module named 'jax'", name="jax")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_jax)
    spec = importlib.util.find_spec("cavity.factors.cost")
    fresh = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, spec.name, fresh)
    spec.loader.exec_module(fresh)
    assert fresh.CostFactor is not CostFactor


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"cost_function": 3.0}, r"cost must be a function of a point, got 3\.0"),
        *(
            ({"dim": dim}, "dim must be a whole number of at least 1, got")
            for dim in (0, 2.5, np.nan, np.inf, None, "3", True, [3])
        ),
        *(
            ({"step": step}, "step must be positive and finite, got")
            for step in (0.0, -1.0, np.nan, np.inf, "x", True, [0.1, 0.1, 0.1])
        ),
        ({"vectorized": "yes"}, "vectorized must be True or False, got 'yes'"),
        ({"gradient": 1.0}, r"gradient must be a function of a point, or None, got 1\.0"),
        ({"curvature": "exact"}, "curvature must be a function of a point, or None, got 'exact'"),
        ({"coordinates": [[0], [1, 2]]}, "coordinates must be increasing whole numbers"),
        ({"coordinates": 1}, "coordinates must be increasing whole numbers, got 1"),
        ({"coordinates": "01"}, "coordinates must be increasing whole numbers, got '01'"),
        ({"differentiate": None}, "differentiate must be 'differences' or 'jax', got None"),
        ({"coordinates": [1, 0]}, r"coordinates must be increasing whole numbers, got \[1, 0\]"),
        ({"coordinates": [1, 1]}, "coordinates must be increasing whole numbers"),
        ({"coordinates": [0.5]}, "coordinates must be increasing whole numbers"),
        ({"coordinates": [[0]]}, "coordinates must be increasing whole numbers"),
        ({"coordinates": [0, 3]}, r"coordinates must lie in 0\.\.2, got 0\.\.3"),
        ({"coordinates": [-1, 2]}, r"coordinates must lie in 0\.\.2, got -1\.\.2"),
        ({"differentiate": "torch"}, "differentiate must be 'differences' or 'jax', got 'torch'"),
    ],
)
def test_bad_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        CostFactor(**{"cost_function": bumps, "dim": 3, **kwargs})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"cost_function": np.abs},
            r"one number for a point, got shape \(3,\); sum over its parts, or pass vectorized",
        ),
        ({"cost_function": np.sum, "vectorized": True}, r"one number per point, shape \(1,\), got \(\)"),
        ({"gradient": lambda t: t[:2]}, r"gradient must return shape \(3,\), got \(2,\)"),
        ({"curvature": lambda t: 1.0}, r"curvature must return shape \(3,\), got \(\)"),
    ],
)
def test_answers_of_the_wrong_shape_are_refused(kwargs, message):
    factor = CostFactor(**{"cost_function": bumps, "dim": 3, **kwargs})
    with pytest.raises(ValueError, match=message):
        factor.derivatives(np.zeros(3))


def test_a_cost_may_return_one_number_in_any_wrapping():
    for value in (2, 2.0, np.float32(2.0), np.array([2.0]), np.array([[2.0]])):
        assert CostFactor(lambda t, value=value: value, 1).cost(np.zeros((2, 1))).tolist() == [2.0, 2.0]


def test_there_is_no_slope_of_a_loss():
    factor = gaussian_cost([0.0], [1.0])[0]
    assert not factor.has_slope
    for ask in (
        lambda: factor.derivatives(np.zeros(1), "slope"),
        lambda: factor.newton_direction(np.zeros(1), np.ones(1), np.ones(1), 1.0, "slope"),
    ):
        with pytest.raises(ValueError, match="curvature='slope' needs a LinearFactor"):
            ask()


def test_a_whole_number_of_any_type_is_a_dimension():
    for dim in (3, 3.0, np.int8(3), np.float32(3.0), np.array(3)):
        factor = CostFactor(bumps, dim)
        assert factor.dim == 3
        assert type(factor.dim) is int
