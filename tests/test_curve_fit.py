"""`cavity.curve_fit`: SciPy's answers where they are right, and right ones where they are not."""

import numpy as np
import pytest
from scipy import optimize

import cavity
from cases import quietly


def decay(x, a, rate, c):
    return a * np.exp(-rate * x) + c


def data(seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    x = np.linspace(0.0, 4.0, 80)
    return x, decay(x, 2.0, 1.3, 0.5) + noise * rng.standard_normal(80)


def test_scipy_and_least_squares_agree_where_the_noise_is_known():
    x, y = data()
    popt, pcov, scale, result = cavity.curve_fit(decay, x, y, sigma=0.1, absolute_sigma=True)
    theirs, covariance = optimize.curve_fit(decay, x, y, sigma=np.full(80, 0.1), absolute_sigma=True)
    std = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(popt - theirs) < 0.15 * std)  # a mean, not a peak
    assert np.sqrt(np.diag(pcov)) == pytest.approx(std, rel=0.05)
    assert scale == 1.0
    assert result.status.is_success


@pytest.mark.parametrize("sigma", [None, 2.0])
def test_the_noise_scale_is_found(sigma):
    x, y = data()
    _, pcov, scale, result = cavity.curve_fit(decay, x, y, sigma=sigma)
    assert scale == pytest.approx(0.1 / (sigma or 1.0), rel=0.2)
    assert result.mean.size == 4
    known = cavity.curve_fit(decay, x, y, sigma=scale * (sigma or 1.0), absolute_sigma=True)
    assert np.sqrt(np.diag(pcov)) == pytest.approx(np.sqrt(np.diag(known.pcov)), rel=0.06)


@pytest.mark.parametrize("loss", ["absolute", "huber", lambda r: np.log1p(r * r)])
def test_outliers_do_not_move_a_robust_fit(loss):
    x, y = data()
    y[::10] += 3.0
    popt, pcov, _, result = quietly(cavity.curve_fit, decay, x, y, loss=loss)
    assert np.all(np.abs(popt - [2.0, 1.3, 0.5]) < 4.0 * np.sqrt(np.diag(pcov)))
    draws = result.sample(4000, warmup=200)
    assert np.all(np.abs(result.mean - draws.mean) < 0.2 * draws.std)


def test_bounds_and_a_start_are_kept():
    x, y = data()
    popt, _, _, result = cavity.curve_fit(decay, x, y, [1.0, 1.0, 0.1], bounds=(0.0, [10.0, 5.0, 0.45]))
    assert popt[2] < 0.45
    assert np.all(result.sample(500).values[:, 2] < 0.45)


def test_units_of_x_and_y_do_not_matter():
    x, y = data()
    plain = cavity.curve_fit(decay, x, y, [1.0, 1.0, 0.0])
    scaled = cavity.curve_fit(decay, 1e3 * x, 1e-4 * y, [1e-4, 1e-3, 0.0])
    assert scaled.popt * [1e4, 1e3, 1e4] == pytest.approx(plain.popt, rel=1e-3)
    assert scaled.scale * 1e4 == pytest.approx(plain.scale, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"f": 3}, "f must be a function"),
        ({"ydata": [np.nan] * 80}, "ydata must be finite"),
        ({"sigma": -1.0}, "sigma must be positive"),
        ({"loss": "cubed"}, "loss must be"),
        ({"p0": [1.0, 1.0, 9.0], "bounds": (0.0, 5.0)}, "p0 must lie between the bounds"),
        ({"f": lambda x, a: np.zeros(3)}, "one number per point, shape"),
        ({"prior": cavity.FactorialGaussian.from_moments([0.0], 1.0)}, "FactorialGaussian of 3 parameters"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    x, y = data()
    with pytest.raises(ValueError, match=message):
        cavity.curve_fit(
            **{"f": decay, "xdata": x, "ydata": y, "p0": [1.0, 1.0, 1.0] if "f" not in change else None, **change}
        )
