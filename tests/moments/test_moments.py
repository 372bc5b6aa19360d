"""Moments of Gaussians times factors: 150 digits, brute-force integration, laws, and rows apart from each other."""

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cases import all_components
from cavity import losses
from cavity.moments import Tilts, tilts
from cavity.moments.logistic import LEAST_MASS
from cavity.moments.tilted import tail
from tilt_cases import (
    CLOSED,
    INTEGRATED,
    LOSSES,
    MIXED,
    PIECEWISE,
    REFERENCES,
    TAILS,
    TARGETS,
    assert_tilt,
    assert_tilts,
    random_rows,
    tilt,
)

OTHERS = [loss for loss in LOSSES if not losses.offers(loss).pieces and loss.targets != "positives"]
CONVEX = [loss for loss in LOSSES if not isinstance(loss, losses.QuasiZeroOne)]
NON_NEGATIVE = [loss for loss in LOSSES if loss.targets not in ("counts", "positives")]

widths = st.floats(-3.0, 4.0).map(lambda a: 10.0**a)
means = st.floats(-6.0, 6.0)
seeds = st.integers(0, 2**32 - 1)
betas = st.sampled_from([0.1, 0.7, 1.0, 5.0])


def brute(loss, y, m, s, beta):
    """Integrate on panels graded about every place where the loss or the product may bend."""
    places = [0.0, y, *(piece[0] for piece in (loss.pieces(y)[:-1] if losses.offers(loss).pieces else ()))]
    if isinstance(loss, losses.Huber):
        places += [y - loss.threshold, y + loss.threshold]
    grades = np.geomspace(1e-7, 1e3, 180)
    slope = loss.derivatives(y, m)[1]
    edges = [m + s * np.linspace(-40.0, 40.0, 321), m - beta * s * s * slope + s * np.linspace(-12.0, 12.0, 97)]
    edges += [np.concatenate([p - grades, [p], p + grades]) for p in places]
    cuts = np.unique(np.concatenate(edges))
    x, w = np.polynomial.legendre.leggauss(30)
    half = 0.5 * np.diff(cuts)[:, None]
    z = 0.5 * (cuts[1:] + cuts[:-1])[:, None] + half * x
    t = (z - m) / s
    height = -beta * loss.value(y, z) - 0.5 * t * t
    f = half * w * np.exp(height - np.max(height))
    mass = np.sum(f)
    shift = np.sum(f * t) / mass
    log_mass = np.max(height) + np.log(mass / (s * np.sqrt(2.0 * np.pi)))
    return float(log_mass), float(shift), float(np.sum(f * (t - shift) ** 2) / mass)


@pytest.mark.parametrize(("loss", "y", "m", "s", "beta", "wanted"), REFERENCES)
def test_closed_forms_neither_underflow_nor_cancel(loss, y, m, s, beta, wanted):
    assert_tilt(tilt(loss, y, m, s * s, beta), wanted, CLOSED)


@pytest.mark.parametrize(("a", "wanted"), TAILS)
def test_tails_are_right_on_both_sides_of_the_switch(a, wanted):
    with np.errstate(all="ignore"):  # as in tilts
        found = tail(np.array([a]))
    assert [float(part[0]) for part in found] == pytest.approx(wanted, rel=2e-12)


@pytest.mark.parametrize("loss", PIECEWISE, ids=repr)
@given(st.data(), widths, means, betas)
def test_closed_forms_are_the_integrals(loss, data, s, place, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    m = place * s + data.draw(st.floats(-2.0, 2.0))
    assert_tilt(tilt(loss, y, m, s * s, beta), brute(loss, y, m, s, beta), 1e-8)


class Stairs(NamedTuple):
    """A user's own loss of six pieces with three valleys: absolute errors that are forgiven near multiples of three."""

    depth: float = 2.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        ends, slopes, offsets = zip(*self.pieces(y), strict=True)
        return np.select([z <= end for end in ends], [a + b * z for a, b in zip(offsets, slopes, strict=True)])

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        ends, slopes, _ = zip(*self.pieces(y), strict=True)
        return self.value(y, z), np.select([z <= end for end in ends], [b + 0.0 * z for b in slopes]), 0.0 * z

    def pieces(self, y: Any) -> tuple[tuple[Any, float, Any], ...]:
        found, slope, height = [], -self.depth, 0.0
        for k, place in enumerate((-3.0, -1.5, 0.0, 1.5, 3.0)):
            found.append((y + place, slope, height - slope * (y + place)))
            height += 0.0 if k == 4 else 1.5 * -slope
            slope = -slope
        return (*found, (np.inf, slope, -slope * (y + 3.0)))


@given(st.floats(-3.0, 3.0), widths, means, st.sampled_from([0.3, 1.0, 20.0]))
def test_pieces_of_many_valleys_are_joined(y, s, place, beta):
    loss, m = Stairs(), place * s
    assert_tilt(tilt(loss, y, m, s * s, beta), brute(loss, y, m, s, beta), 1e-8)


@pytest.mark.parametrize("loss", OTHERS, ids=repr)
@given(st.data(), widths, means, betas)
def test_quadrature_is_right_for_every_width(loss, data, s, place, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    m = place * s + data.draw(st.floats(-2.0, 2.0))
    if isinstance(loss, losses.Poisson):  # beyond its ceiling lies another kink, and costs of 1e13
        m = min(m, 20.0)
    assert_tilt(tilt(loss, y, m, s * s, beta), brute(loss, y, m, s, beta), INTEGRATED)


@given(st.sampled_from(TARGETS["positives"]), st.sampled_from([0.3, 1.0, 3.0]), widths, means, betas)
def test_quadrature_is_right_for_gamma(y, scale, s, place, beta):
    m = max(place * s, -20.0)  # below lies a kink, and costs of 1e13
    loss = losses.Gamma(scale)
    assert_tilt(tilt(loss, y, m, s * s, beta), brute(loss, y, m, s, beta), INTEGRATED)


@pytest.mark.parametrize(
    "loss", [losses.Logistic(), losses.Poisson(), losses.NegativeBinomial(), losses.Gamma()], ids=repr
)
@given(st.data(), st.floats(1e-3, 0.7), st.floats(-4.0, 4.0), st.sampled_from([0.9, 1.0]))
def test_narrow_products_of_smooth_losses_are_right_to_ten_digits(loss, data, s, m, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    assert_tilt(tilt(loss, y, m, s * s, beta), brute(loss, y, m, s, beta), 1e-10)


@given(st.sampled_from([0.3, 1.0, 2.5]), st.sampled_from([-1.0, 1.0]), widths, means, st.floats(-10.0, 10.0))
def test_the_mixture_is_right_for_every_width_to_ten_digits(sharpness, y, s, place, move):
    loss, m = losses.Logistic(sharpness), place * s + move
    wanted = brute(loss, y, m, s, 1.0)
    assume(wanted[0] > math.log(LEAST_MASS) + 1e-9)
    assert_tilt(tilt(loss, y, m, s * s, 1.0), wanted, MIXED)


@pytest.mark.parametrize(("m", "s"), [(-30.0, 0.1), (-60.0, 1.0), (-200.0, 4.0)])
def test_far_down_the_tail_the_logistic_function_is_an_exponential(m, s):
    wanted = m + 0.5 * s * s, s, 1.0
    assert_tilt(tilt(losses.Logistic(), 1.0, m, s * s, 1.0), wanted, CLOSED)


@given(st.floats(-1e3, 1e3), widths, st.floats(-10.0, 10.0), st.floats(0.1, 10.0), betas)
def test_the_squared_loss_is_exact_whatever_the_widths(m, s, y, scale, beta):
    v, noise = s * s, scale * scale / beta
    wanted = -0.5 * (y - m) ** 2 / (v + noise) + 0.5 * math.log(noise / (v + noise)), (y - m) * s / (v + noise)
    found = tilt(losses.Squared(scale), y, m, v, beta)
    assert found.log_mass == pytest.approx(wanted[0], rel=1e-10, abs=1e-10)
    assert found.shift == pytest.approx(wanted[1], rel=1e-10, abs=1e-10)
    assert found.ratio == pytest.approx(noise / (v + noise), rel=1e-10)


@pytest.mark.parametrize("loss", CONVEX, ids=repr)
@given(st.data(), widths, means, betas)
def test_a_log_concave_factor_never_widens(loss, data, s, place, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    found = tilt(loss, y, min(place * s, 20.0), s * s, beta)
    assert 0.0 < found.ratio <= 1.0 + INTEGRATED


def test_a_factor_that_is_not_log_concave_may_widen():
    assert tilt(losses.QuasiZeroOne(), 1.0, -1.0, 0.25, 3.0).ratio > 1.1


@pytest.mark.parametrize("loss", NON_NEGATIVE, ids=repr)
@given(st.data(), widths, means, betas)
def test_costs_that_are_not_negative_lose_mass(loss, data, s, place, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    assert tilt(loss, y, place * s, s * s, beta).log_mass <= INTEGRATED


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(st.data(), widths, means, betas)
def test_reflection_changes_signs_only(loss, data, s, place, beta):
    if loss.targets in ("counts", "positives") or isinstance(loss, losses.Quantile):
        loss = losses.Quantile(0.5)
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    there, back = tilt(loss, y, place * s, s * s, beta), tilt(loss, -y, -place * s, s * s, beta)
    assert_tilt((back.log_mass, -back.shift, back.ratio), there, 1e-9)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.targets == "reals"], ids=repr)
@given(st.sampled_from([-512.0, 64.0]), st.floats(0.05, 1e3), means, betas)
def test_targets_and_predictions_move_together(loss, move, s, place, beta):
    there, moved = tilt(loss, 0.5, place * s, s * s, beta), tilt(loss, 0.5 + move, place * s + move, s * s, beta)
    assert_tilt(moved, there, INTEGRATED)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(st.data(), st.floats(0.05, 50.0), st.floats(-3.0, 3.0), betas)
def test_the_shift_is_the_slope_of_the_log_mass(loss, data, s, place, beta):
    y = data.draw(st.sampled_from(TARGETS[loss.targets]))
    m, h = min(place * s, 3.0), 1e-3 * s
    below, here, above = (tilt(loss, y, m + a, s * s, beta) for a in (-h, 0.0, h))
    slope = (above.log_mass - below.log_mass) / (2.0 * h)
    assert slope * s == pytest.approx(here.shift, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_nothing_jumps_as_the_width_grows(loss):
    """Over every switch between forms: a relative step of 1e-6 in the width changes little."""
    y = TARGETS[loss.targets][1]
    for m in (-3.0, 0.1, 2.5):
        for s in np.geomspace(1e-2, 1e3, 60):
            here, next_to_it = tilt(loss, y, m, s * s, 1.0), tilt(loss, y, m, s * s * (1.0 + 1e-6), 1.0)
            assert_tilt(next_to_it, here, 1e-5)


@pytest.mark.parametrize("order", [1, 5, 8, 32])
def test_any_order_arrives(order):
    for s in (0.1, 1.0, 10.0):
        wanted = brute(losses.Logistic(), 1.0, 0.3, s, 0.9)
        assert_tilt(tilt(losses.Logistic(), 1.0, 0.3, s * s, 0.9, order), wanted, INTEGRATED)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_without_variance_the_factor_is_a_constant(loss):
    y = TARGETS[loss.targets][1]
    assert tilt(loss, y, 0.0, 0.0, 2.0) == (-2.0 * loss.value(y, 0.0), 0.0, 1.0)


class Bad(NamedTuple):
    cost: float = np.nan

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return self.cost + 0.0 * z

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return self.value(y, z), 0.0 * self.value(y, z), 0.0 * z


@pytest.mark.parametrize("cost", [np.nan, np.inf, -np.inf])
def test_trouble_is_data(cost):
    assert not np.all(np.isfinite(tilt(Bad(cost), 0.0, 0.1, 1.0, 1.0)))


@pytest.mark.parametrize(("m", "v"), [(np.nan, 1.0), (0.0, np.nan)])
def test_a_mixture_under_no_gaussian_is_data(m, v):
    assert not np.all(np.isfinite(tilt(losses.Logistic(), 1.0, m, v, 1.0)))


@pytest.mark.parametrize("power", [0.1, 0.7, 1.0, 5.0])
@given(st.floats(-2.5, 1.0), seeds)
def test_logistic_rows_are_right_on_both_sides_of_every_switch(power, log_width, seed):
    rng, widths = np.random.default_rng(seed), (0.17, 0.52, 0.95, 1.8)
    s = np.repeat([*widths, 10.0**log_width], 2) * np.tile([1.0 - 1e-9, 1.0 + 1e-9], 5)
    y, m = rng.choice([-1.0, 1.0], 10), 20.0 * rng.uniform(-1.0, 1.0, 10)
    wanted = [brute(losses.Logistic(), *row, power) for row in zip(y, m, s, strict=True)]
    assert_tilts(
        tilts(losses.Logistic(), y, m, s * s, power), Tilts(*np.array(wanted).T), 1e-9 if power == 1.0 else 1e-7
    )


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@given(seeds)
def test_moments_are_the_integrals(loss, seed):
    rows = random_rows(loss, seed, n=5)
    wanted = [brute(loss, y, m, np.sqrt(v), power) for y, m, v, power in zip(*rows, strict=True)]
    assert_tilts(tilts(loss, *rows), Tilts(*np.array(wanted).T), INTEGRATED)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_rows_do_not_depend_on_each_other(loss):
    rows = random_rows(loss, 1, n=1500)
    order = np.random.default_rng(0).permutation(1500)
    together, shuffled = tilts(loss, *rows), tilts(loss, *(a[order] for a in rows))
    assert_tilts(shuffled, Tilts(*(a[order] for a in together)), 1e-12)
    assert_tilts(tilts(loss, *(a[7:8] for a in rows)), Tilts(*(a[7:8] for a in together)), 1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_trouble_stays_in_its_row(loss):
    y, m, v, power = random_rows(loss, 2, n=40)
    known = tilts(loss, y, m, v, power)
    bad = {3: (np.nan, 0.0, 1.0), 11: (y[11], np.nan, 1.0), 17: (y[17], 0.0, np.nan), 23: (y[23], 0.0, -1.0)}
    for place, values in bad.items():
        y[place], m[place], v[place] = values
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tilts(loss, y, m, v, power)
    good = np.setdiff1d(np.arange(40), list(bad))
    assert_tilts(Tilts(*(a[good] for a in found)), Tilts(*(a[good] for a in known)), 1e-12)
    assert np.all(np.isnan([a[list(bad)] for a in found]))


@pytest.mark.parametrize("cost", [np.nan, np.inf, -np.inf])
def test_costs_that_are_not_finite_are_data(cost):
    assert np.all(np.isnan(tilts(Bad(cost), np.zeros(2), np.array([0.1, 3.0]), np.array([1.0, 0.0]))))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_rows_without_variance_are_constants_among_others(loss):
    y, m, v, power = random_rows(loss, 3, n=10)
    v[::3] = 0.0
    found = tilts(loss, y, m, v, power)
    np.testing.assert_allclose(found.log_mass[::3], -(power * loss.value(y, m))[::3])
    np.testing.assert_array_equal((found.shift[::3], found.ratio[::3]), (np.zeros(4), np.ones(4)))
    others = v > 0.0
    known = tilts(loss, *(a[others] for a in (y, m, v, power)))
    assert_tilts(Tilts(*(a[others] for a in found)), known, 1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_one_power_is_that_of_every_row(loss):
    y, m, v, _ = random_rows(loss, 4)
    for power in (1.0, 0.5, 3.0):
        assert_tilts(tilts(loss, y, m, v, power), tilts(loss, y, m, v, np.full(y.size, power)), 1e-12)


@pytest.mark.parametrize("loss", all_components(losses), ids=repr)
def test_no_rows_give_nothing(loss):
    found = tilts(loss, np.zeros(0), np.zeros(0), np.zeros(0))
    assert [a.shape for a in found] == [(0,)] * 3


class Refuses(Bad):
    def derivatives(self, y, z):
        raise RuntimeError("no derivatives today")


def test_what_a_loss_raises_comes_through():
    with pytest.raises(RuntimeError, match="no derivatives today"):
        tilts(Refuses(), np.zeros(2), np.zeros(2), np.ones(2))
