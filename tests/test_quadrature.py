from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import all_components
from cavity import quadrature
from cavity.quadrature import GaussHermite, MonteCarlo, Precision3, Precision5

ROUNDING = 1e-10
SAMPLES, SAMPLING = 100_000, 0.03
STARS = [Precision3(), Precision3("yu"), Precision3("julier"), Precision3(2.5), Precision3(0.7)]
RULES = [
    *all_components(quadrature),
    *STARS[1:],
    GaussHermite(1),
    GaussHermite(8),
    MonteCarlo(30),
    MonteCarlo(31, False),
]


def moment(exponents):
    """Moment of the standard normal: the product of (k - 1)!! over even exponents k, zero with an odd one."""
    return np.prod([0.0 if k % 2 else np.prod(np.arange(k - 1, 0, -2.0)) for k in exponents])


def integral(rule, exponents):
    """The monomial with the exponents ``{coordinate: exponent}`` by the rule, and the sum of its terms' sizes."""
    terms = rule.weights.copy()
    for i, k in exponents.items():
        terms *= rule.nodes[:, i] ** k
    return terms.sum(), 1.0 + np.abs(terms).sum()


def assert_exact(rule, exponents):
    found, scale = integral(rule, exponents)
    assert abs(found - moment(exponents.values())) <= ROUNDING * scale, exponents


def monomials(dim, degree):
    return st.lists(st.integers(0, dim - 1), max_size=degree).map(Counter)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_weights_sum_to_one_and_shapes_fit(rule, dim):
    nodes, weights = rule.node_set(dim)
    assert nodes.shape == (len(weights), dim)
    assert weights.sum() == pytest.approx(1.0, abs=ROUNDING)
    again = rule.node_set(dim)
    assert np.array_equal(nodes, again.nodes)
    assert np.array_equal(weights, again.weights)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_no_dimension_has_a_rule_too(rule):
    nodes, weights = rule.node_set(0)
    assert nodes.shape == (len(weights), 0)
    assert weights.sum() == pytest.approx(1.0, abs=ROUNDING)


@pytest.mark.parametrize("rule", STARS, ids=repr)
@given(st.data())
def test_precision_three_is_exact_to_degree_three_in_any_dimension(rule, data):
    dim = data.draw(st.integers(1, 40))
    assert_exact(rule.node_set(dim), data.draw(monomials(dim, 3)))


@pytest.mark.parametrize("dim", range(1, 41))
def test_precision_five_is_exact_to_degree_five_and_has_positive_weights(dim):
    rule, rng = Precision5().node_set(dim), np.random.default_rng(dim)
    assert rule.weights.min() > 0.0
    assert len(rule.nodes) <= 8 * dim**2 + 2 * dim
    for kind in (
        (),
        (2,),
        (4,),
        (2, 2),
        (1,),
        (3,),
        (5,),
        (1, 1),
        (3, 1),
        (1, 1, 1),
        (1, 1, 1, 1),
        (1,) * 5,
        (2, 1, 1),
    ):
        for _ in range(5 if len(kind) <= dim else 0):
            places = rng.choice(dim, len(kind), replace=False)
            assert_exact(rule, dict(zip(places.tolist(), kind, strict=True)))


@given(st.data())
def test_precision_five_is_exact_on_random_monomials(data):
    dim = data.draw(st.sampled_from([4, 8, 9, 10, 16, 17, 32, 33, 64, 70]))
    assert_exact(Precision5().node_set(dim), data.draw(monomials(dim, 5)))


@pytest.mark.parametrize("order", [1, 2, 3, 5, 9])
@given(st.data())
def test_gauss_hermite_is_exact_to_twice_its_order_less_one(order, data):
    dim = data.draw(st.integers(1, 4 if order < 9 else 2))
    exponents = dict(enumerate(data.draw(st.lists(st.integers(0, 2 * order - 1), min_size=dim, max_size=dim))))
    assert_exact(GaussHermite(order).node_set(dim), exponents)


@pytest.mark.parametrize(("rule", "degree"), [(Precision3(), 4), (Precision5(), 6), (GaussHermite(3), 6)], ids=repr)
def test_precision_ends_where_it_is_said_to_end(rule, degree):
    found, _ = integral(rule.node_set(4), {0: degree})
    assert abs(found - moment([degree])) > 0.1


@pytest.mark.parametrize("rule", STARS, ids=repr)
@pytest.mark.parametrize("dim", [1, 2, 7])
def test_a_star_names_the_nodes_centre_then_up_then_down(rule, dim):
    star, (nodes, weights) = rule.star(dim), rule.node_set(dim)
    assert np.array_equal(
        nodes, np.concatenate([np.zeros((1, dim)), star.spread * np.eye(dim), -star.spread * np.eye(dim)])
    )
    assert np.array_equal(weights, [star.center_weight, *np.full(2 * dim, star.arm_weight)])


@pytest.mark.parametrize("rule", [GaussHermite(), Precision5(), MonteCarlo()], ids=repr)
def test_other_rules_are_no_stars(rule):
    assert rule.star(3) is None


def test_the_spreads_are_those_of_the_literature():
    for dim in (1, 3, 10):
        assert Precision3().star(dim).spread ** 2 == pytest.approx(dim + 0.5)
        assert Precision3("yu").star(dim).spread ** 2 == pytest.approx(dim)
        assert Precision3("julier").star(dim).spread ** 2 == pytest.approx(3.0)
        assert Precision3(1.7).star(dim).spread == 1.7
        np.testing.assert_allclose(Precision3().node_set(dim).weights, 1.0 / (2 * dim + 1))
        assert Precision3("yu").star(dim).center_weight == pytest.approx(0.0, abs=ROUNDING)
    assert Precision3("julier").star(4).center_weight < 0.0


def test_reflection_makes_odd_moments_zero():
    plain, reflected = (MonteCarlo(50, reflect).node_set(3) for reflect in (False, True))
    for exponents in ({0: 1}, {0: 3}, {0: 2, 1: 1}, {0: 1, 1: 1, 2: 1}, {2: 5}):
        found, scale = integral(reflected, exponents)
        assert abs(found) <= ROUNDING * scale
        assert abs(integral(plain, exponents)[0]) > ROUNDING * scale


@pytest.mark.parametrize("reflect", [False, True])
def test_monte_carlo_tends_to_the_moments(reflect):
    rule = MonteCarlo(SAMPLES, reflect, seed=3).node_set(2)
    assert len(rule.nodes) == SAMPLES
    for exponents in ({0: 1}, {0: 2}, {1: 2}, {0: 1, 1: 1}):
        assert abs(integral(rule, exponents)[0] - moment(exponents.values())) < SAMPLING


def test_monte_carlo_depends_on_its_seed_only():
    a, b = MonteCarlo(10, seed=1).node_set(2), MonteCarlo(10, seed=2).node_set(2)
    assert not np.allclose(a.nodes, b.nodes)
    assert len(MonteCarlo().node_set(5).nodes) == 48


@pytest.mark.parametrize("spread", ["scaled", 0.0, -1.0, np.inf, np.nan, None, True, [1.0], 1e200, 1e-200])
def test_an_unknown_spread_is_refused(spread):
    with pytest.raises(ValueError, match=r"spread must be 'paper', 'yu', 'julier' or a positive number, got"):
        Precision3(spread)


def test_a_spread_of_any_real_type_is_taken():
    assert Precision3(np.float32(2.0)).star(3) == Precision3(2).star(3) == Precision3(2.0).star(3)


@pytest.mark.parametrize(
    ("rule", "kwargs", "message"),
    [
        *((MonteCarlo, {"size": n}, "size must be a whole number of at least 1") for n in (0, -2, 2.5, np.inf, "8")),
        (MonteCarlo, {"size": 7}, "size must be even with reflect=True"),
        (MonteCarlo, {"reflect": "no"}, "reflect must be True or False"),
        *((MonteCarlo, {"seed": s}, "seed must be a whole number of at least 0") for s in (-1, 0.5, "x", None)),
        *((GaussHermite, {"order": n}, "order must be a whole number of at least 1") for n in (0, 2.5, np.nan, None)),
        (Precision5, {"degree": 7}, "degree must be a whole number from 5 to 5"),
    ],
)
def test_arguments_that_cannot_be_are_refused(rule, kwargs, message):
    with pytest.raises(ValueError, match=f"{message}, got"):
        rule(**kwargs)


@pytest.mark.parametrize(
    ("rule", "dim", "message"),
    [
        (GaussHermite(5), 20, r"needs 5\*\*20 nodes in 20 dimensions, more than 2000000; use Precision5\(\) or Monte"),
        (Precision5(), 1000, r"needs 2097152 nodes in 1000 dimensions, too many to hold; use Precision3\(\)"),
        (Precision5(), 5000, "serves at most 4096 dimensions, got 5000"),
    ],
)
def test_rules_too_large_to_hold_say_so(rule, dim, message):
    with pytest.raises(ValueError, match=message):
        rule.node_set(dim)
