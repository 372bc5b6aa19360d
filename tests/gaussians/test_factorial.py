import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from cases import assert_close, assert_same, finite, gaussians, kl_divergence, normalized, vectors
from cavity import FactorialGaussian
from cavity.gaussians.factorial import ImproperError

ROUNDING = 1e-10
QUADRATURE = 1e-7
SAMPLES, SAMPLING = 40_000, 0.05


@st.composite
def pairs(draw, proper=True):
    dim = draw(st.integers(1, 4))
    return draw(gaussians(dim, proper)), draw(gaussians(dim, proper))


@st.composite
def triples(draw):
    dim = draw(st.integers(1, 4))
    return tuple(draw(gaussians(dim, proper=False)) for _ in range(3))


@st.composite
def moments(draw):
    dim = draw(st.integers(1, 4))
    return draw(vectors(dim, finite(20.0))), draw(vectors(dim, st.floats(1e-3, 1e3))), draw(finite(20.0))


@given(pairs(proper=False))
def test_quotient_undoes_product(pair):
    a, b = pair
    assert_same(a * b / b, a, ROUNDING)


@given(triples())
def test_product_is_commutative_and_associative(triple):
    a, b, c = triple
    assert a * b == b * a
    assert_same((a * b) * c, a * (b * c), ROUNDING)


@given(gaussians(proper=False), finite(5.0), finite(5.0))
def test_powers_add_up(g, a, b):
    assert_same(g**a * g**b, g ** (a + b), ROUNDING)


@given(gaussians(proper=False))
def test_uniform_is_the_unit_and_the_zeroth_power(g):
    one = FactorialGaussian.uniform(g.dim)
    assert g * one == g
    assert g / one == g
    assert g**0.0 == one
    assert_same(g / g, one, 0.0)
    assert g**2.0 == g * g


@given(pairs(proper=False), st.data())
def test_log_density_of_product_quotient_and_power_is_sum_difference_and_multiple(pair, data):
    a, b = pair
    points = data.draw(vectors((3, a.dim), finite(5.0)))
    la, lb = a.log_density(points), b.log_density(points)
    scale = 1.0 + np.max(np.abs(la)) + np.max(np.abs(lb))
    for found, wanted in ((a * b, la + lb), (a / b, la - lb), (a**0.3, 0.3 * la)):
        assert_close(found.log_density(points), wanted, ROUNDING * scale)


@given(moments())
def test_moments_come_back(triple):
    mean, variance, log_mass = triple
    g = FactorialGaussian.from_moments(mean, variance, log_mass)
    scale = 1.0 + float(np.sum(mean**2 / variance))
    assert_close(g.mean, mean, ROUNDING)
    np.testing.assert_allclose(g.variance, variance, rtol=ROUNDING)
    np.testing.assert_allclose(g.std**2, variance, rtol=ROUNDING)
    assert g.log_mass == pytest.approx(log_mass, abs=ROUNDING * scale)


@given(gaussians())
def test_normalized_has_mass_one_and_the_same_moments(g):
    n = normalized(g)
    scale = 1.0 + abs(g.log_scale) + abs(g.log_mass)
    assert n.log_mass == pytest.approx(0.0, abs=ROUNDING * scale)
    assert np.array_equal(n.mean, g.mean)
    assert np.array_equal(n.variance, g.variance)


@pytest.mark.parametrize(("log_scale", "shift", "precision"), [(0.0, 0.0, 1.0), (-1.3, 2.5, 0.7), (2.0, -30.0, 40.0)])
def test_mass_and_moments_are_those_of_the_integral(log_scale, shift, precision):
    g = FactorialGaussian(log_scale, [shift], [precision])
    ends = g.mean[0] - 12.0 * g.std[0], g.mean[0] + 12.0 * g.std[0]
    m0, m1, m2 = (quad(lambda t, k=k: t**k * np.exp(g.log_density([t])), *ends)[0] for k in range(3))
    assert g.log_mass == pytest.approx(np.log(m0), abs=QUADRATURE)
    assert g.mean[0] == pytest.approx(m1 / m0, abs=QUADRATURE)
    assert g.variance[0] == pytest.approx(m2 / m0 - (m1 / m0) ** 2, abs=QUADRATURE)


def test_normalised_log_density_is_the_normal_density():
    mean, variance = np.array([1.0, -2.0, 0.5]), np.array([0.3, 4.0, 1.0])
    points = np.random.default_rng(0).normal(size=(2, 5, 3))
    found = FactorialGaussian.from_moments(mean, variance).log_density(points)
    assert_close(found, stats.norm.logpdf(points, mean, np.sqrt(variance)).sum(axis=-1), ROUNDING)


@given(pairs())
def test_divergence_is_zero_to_itself_and_never_negative(pair):
    a, b = pair
    light, other = normalized(a), normalized(b) ** 1.0
    assert kl_divergence(light, light) == pytest.approx(0.0, abs=ROUNDING * (1.0 + abs(a.log_mass)))
    assert kl_divergence(light, other) >= -ROUNDING * (1.0 + abs(a.log_mass) + abs(b.log_mass))


def test_divergence_is_that_of_the_integral_with_and_without_the_masses():
    f = FactorialGaussian.from_moments([0.4], [0.6], log_mass=0.7)
    g = FactorialGaussian.from_moments([-0.5], [1.5], log_mass=-0.2)

    def divergence(a, b):
        def integrand(t):
            la, lb = float(a.log_density([t])), float(b.log_density([t]))
            return np.exp(la) * (la - lb) - np.exp(la) + np.exp(lb)

        return quad(integrand, -15.0, 15.0)[0]

    assert kl_divergence(f, g) == pytest.approx(divergence(f, g), abs=QUADRATURE)
    assert kl_divergence(normalized(f), normalized(g)) == pytest.approx(
        divergence(normalized(f), normalized(g)), abs=QUADRATURE
    )


def test_divergence_adds_over_coordinates():
    a = normalized(FactorialGaussian(0.0, [1.0, -2.0], [1.0, 3.0]))
    b = normalized(FactorialGaussian(0.0, [0.5, 4.0], [2.0, 0.5]))
    parts = [kl_divergence(*(normalized(g.take(np.array([i]))) for g in (a, b))) for i in range(2)]
    assert kl_divergence(a, b) == pytest.approx(sum(parts), rel=ROUNDING)


def test_draws_have_the_moments():
    g = FactorialGaussian.from_moments([3.0, -1.0], [4.0, 0.25])
    points = g.draws(np.random.default_rng(0).standard_normal((SAMPLES, 2)))
    assert points.shape == (SAMPLES, 2)
    assert_close(points.mean(axis=0), g.mean, SAMPLING)
    assert_close(points.var(axis=0) / g.variance, 1.0, SAMPLING)
    assert abs(np.corrcoef(points.T)[0, 1]) < SAMPLING


@given(gaussians(dim=3, proper=False), st.sets(st.integers(0, 2)))
def test_scatter_undoes_take_and_is_constant_elsewhere(g, chosen):
    coordinates = np.array(sorted(chosen), dtype=np.intp)
    part = g.take(coordinates)
    wide = part.scatter(coordinates, 3)
    assert part.dim == len(chosen)
    assert wide.take(coordinates) == part
    others = np.setdiff1d(np.arange(3), coordinates)
    assert not np.any(wide.shift[others])
    assert not np.any(wide.precision[others])
    assert wide.log_scale == g.log_scale


def test_values_cannot_be_changed_by_anyone():
    shift, precision = np.ones(2), np.ones(2)
    g = FactorialGaussian(0.0, shift, precision)
    shift[0] = 7.0
    assert g.shift[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        g.shift[0] = 7.0
    with pytest.raises(ValueError, match="read-only"):
        g.precision[:] = 7.0
    with pytest.raises(AttributeError):
        g.log_scale = 1.0


def test_equality_is_by_value_and_nothing_is_hashed():
    g = FactorialGaussian(1.0, [1.0], [2.0])
    assert g == FactorialGaussian(1.0, [1.0], [2.0])
    for other in (
        FactorialGaussian(1.5, [1.0], [2.0]),
        FactorialGaussian(1.0, [1.5], [2.0]),
        FactorialGaussian(1.0, [1.0], [2.5]),
        FactorialGaussian(1.0, [1.0, 1.0], [2.0, 2.0]),
        "g",
    ):
        assert g != other
    with pytest.raises(TypeError, match="unhashable"):
        hash(g)


def test_no_coordinates_is_a_number():
    g = FactorialGaussian(-1.5, [], [])
    assert g.dim == 0
    assert g.is_proper
    assert g.log_mass == -1.5
    assert g.mean.shape == (0,)


@pytest.mark.parametrize("name", ["mean", "variance", "std", "log_mass"])
def test_moments_of_an_improper_site_are_refused_but_its_algebra_works(name):
    site = FactorialGaussian(0.0, [1.0, 2.0], [1.0, -0.5])
    assert site.is_finite
    assert not site.is_proper
    with pytest.raises(ImproperError, match=r"positive precisions, but coordinate 1 has precision -0\.5 .* prior"):
        getattr(site, name)
    assert (site * FactorialGaussian(0.0, [0.0, 0.0], [1.0, 1.0])).mean == pytest.approx([0.5, 4.0])
    assert issubclass(ImproperError, ValueError)


@pytest.mark.parametrize(
    ("gaussian", "found"),
    [
        (FactorialGaussian(0.0, [0.0], [0.0]), r"coordinate 0 has precision 0\.0"),
        (FactorialGaussian(0.0, [0.0, 0.0], [1.0, np.nan]), "coordinate 1 has precision nan"),
        (FactorialGaussian(0.0, [np.inf], [1.0]), r"coordinate 0 has precision 1\.0 and shift inf"),
        (FactorialGaussian(np.nan, [0.0], [1.0]), "log_scale is nan"),
        (FactorialGaussian(0.0, [0.0], [np.inf]), "coordinate 0 has precision inf"),
    ],
)
def test_the_error_names_what_makes_it_improper(gaussian, found):
    assert not gaussian.is_proper
    with pytest.raises(ImproperError, match=found):
        normalized(gaussian)


@pytest.mark.parametrize(
    ("mean", "variance", "message"),
    [
        ([0.0], 0.0, r"variance must be positive and finite, got 0\.0"),
        ([0.0, 0.0], [1.0, -2.0], r"variance must be positive and finite, got -2\.0"),
        ([0.0], np.nan, "variance must be positive and finite, got nan"),
        ([0.0], np.inf, "variance must be positive and finite, got inf"),
        ([np.nan], 1.0, "mean must be finite, got"),
        (0.0, 1.0, r"vectors of one length.* got shapes \(\) and \(\)"),
        ([0.0, 1.0], [1.0, 1.0, 1.0], r"vectors of one length.* got shapes \(2,\) and \(3,\)"),
        ([[0.0]], 1.0, r"vectors of one length.* got shapes \(1, 1\) and \(\)"),
    ],
)
def test_bad_moments_are_refused(mean, variance, message):
    with pytest.raises(ValueError, match=message):
        FactorialGaussian.from_moments(mean, variance)


def test_a_number_stands_for_equal_entries():
    assert FactorialGaussian.from_moments(1.0, [2.0, 2.0]) == FactorialGaussian.from_moments([1.0, 1.0], 2.0)


@pytest.mark.parametrize(("shift", "precision"), [([0.0], [1.0, 2.0]), ([[0.0]], [[1.0]]), (0.0, 1.0)])
def test_bad_shapes_are_refused(shift, precision):
    with pytest.raises(ValueError, match="shift and precision must be vectors of one length, got shapes"):
        FactorialGaussian(0.0, shift, precision)


@pytest.mark.parametrize("operation", ["__mul__", "__truediv__"])
def test_gaussians_of_different_size_do_not_mix(operation):
    a, b = FactorialGaussian(0.0, [0.0], [1.0]), FactorialGaussian(0.0, [0.0, 0.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="same number of coordinates, got 1 and 2"):
        getattr(a, operation)(b)


@pytest.mark.parametrize("points", [[0.0], 0.0, np.zeros((2, 3))])
def test_points_of_the_wrong_size_are_refused(points):
    with pytest.raises(ValueError, match="points must have 2 coordinates in their last axis, got shape"):
        FactorialGaussian(0.0, [0.0, 0.0], [1.0, 1.0]).log_density(points)
