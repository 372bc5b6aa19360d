"""A log standard deviation that is linear in the features: intervals widen where the data do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import norm

import cavity
from cavity import EPRegressor
from cavity.losses.joint import Normal, spread_quantile, spread_std


def widening(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    std = np.exp(-0.5 + 0.6 * X[:, 0] - 0.3 * X[:, 1])
    return X, 100.0 + 20.0 * (X @ [1.0, 0.0, -2.0] + std * rng.normal(size=n))


@pytest.fixture(scope="module")
def model():
    return EPRegressor(loss="normal", scale="linear").fit(*widening())


def test_both_sets_of_coefficients_are_recovered_in_units_of_y(model):
    assert np.max(np.abs(model.coef_ - [20.0, 0.0, -40.0]) / model.coef_std_) < 4.0
    assert np.max(np.abs(model.scale_coef_ - [0.6, -0.3, 0.0]) / model.scale_coef_std_) < 4.0
    assert model.scale_intercept_ == pytest.approx(np.log(20.0) - 0.5, abs=0.1)
    assert model.scale_ == pytest.approx(np.exp(model.scale_intercept_))
    assert model.coef_.shape == model.scale_coef_.shape == (3,)
    # Of rows of the same spread the coefficient of the log standard deviation has the variance 1 / (2 n).
    np.testing.assert_allclose(model.scale_coef_std_, np.sqrt(1.0 / 4000.0), rtol=0.15)


def test_intervals_cover_in_every_part_of_the_predicted_width(model):
    X, y = widening(n=20_000, seed=1)
    low, high = model.predict(X, quantile=[0.05, 0.95]).T
    fifth = np.digitize(high - low, np.quantile(high - low, [0.2, 0.4, 0.6, 0.8]))
    covered = [np.mean(((low < y) & (y < high))[fifth == k]) for k in range(5)]
    assert min(covered) > 0.88
    assert max(covered) < 0.92


def test_units_of_y_do_not_matter():
    X, y = widening(n=300)
    one, other = (EPRegressor(loss="normal", scale="linear").fit(X, t) for t in (y, 1e-3 * y + 7.0))
    np.testing.assert_allclose(other.scale_coef_, one.scale_coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(
        other.predict(X, return_std=True)[1], 1e-3 * one.predict(X, return_std=True)[1], rtol=1e-6
    )
    assert other.log_evidence_ == pytest.approx(one.log_evidence_ - 300 * np.log(1e-3), rel=1e-6)


def test_its_evidence_tells_whether_the_spread_varies():
    X, y = widening(n=300)
    assert (
        EPRegressor(loss="normal", scale="linear").fit(X, y).log_evidence_ > EPRegressor().fit(X, y).log_evidence_ + 10
    )
    even = X @ [1.0, 0.0, -2.0] + np.random.default_rng(0).normal(size=300)
    linear, plain = EPRegressor(loss="normal", scale="linear").fit(X, even), EPRegressor(loss="normal").fit(X, even)
    assert plain.log_evidence_ > linear.log_evidence_ - 1.0
    np.testing.assert_allclose(linear.coef_, plain.coef_, atol=0.05)


def test_streams_weights_and_files(model, tmp_path):
    X, y = widening()
    stream = EPRegressor(loss="normal", scale="linear")
    for i in range(0, 2000, 200):
        stream.partial_fit(X[i : i + 200], y[i : i + 200])
    assert np.max(np.abs(stream.scale_coef_ - model.scale_coef_) / model.scale_coef_std_) < 0.5
    twice = EPRegressor(loss="normal", scale="linear").fit(X[:200], y[:200], np.full(200, 2.0))
    again = EPRegressor(loss="normal", scale="linear").fit(np.repeat(X[:200], 2, axis=0), np.repeat(y[:200], 2))
    np.testing.assert_allclose(twice.scale_coef_, again.scale_coef_, rtol=1e-6)
    cavity.save(model, tmp_path / "model.cavity")
    np.testing.assert_array_equal(
        cavity.load(tmp_path / "model.cavity").predict(X, quantile=0.9), model.predict(X, quantile=0.9)
    )


def test_an_offset_belongs_to_the_mean():
    X, y = widening(n=500)
    plain = EPRegressor(loss="normal", scale="linear", tol=1e-5).fit(X, y)
    known = 3.0 * X[:, 2]
    other = EPRegressor(loss="normal", scale="linear", tol=1e-5).fit(X, y + known, offset=known)
    np.testing.assert_allclose(other.predict(X, offset=known), plain.predict(X) + known, atol=0.05)
    np.testing.assert_allclose(other.scale_coef_, plain.scale_coef_, atol=1e-3)


def test_bad_choices_are_refused_in_words():
    X, y = widening(n=50)
    with pytest.raises(ValueError, match="scale='linear' is for loss='normal'"):
        EPRegressor(loss="huber", scale="linear").fit(X, y)
    for loss in ("poisson", "gamma", Normal()):
        with pytest.raises(ValueError, match="scale='linear' is for loss='normal'"):
            EPRegressor(loss=loss, scale="linear").fit(X, np.exp(y - 100.0))
    with pytest.raises(ValueError, match="too wide, or covariance='diagonal'"):
        EPRegressor(loss="normal", scale="linear", covariance="diagonal").fit(X, y)
    with pytest.raises(AttributeError, match="scale='linear'"):
        EPRegressor().fit(X, y).scale_coef_  # noqa: B018
    one, other = (EPRegressor(loss="normal", scale="linear").fit(X, t) for t in (y, 2.0 * y))
    with pytest.raises(ValueError, match="same units of y"):
        one.merge(other)


def test_quantiles_and_deviations_are_those_of_draws():
    mean, variance = np.array([[1.0, -0.5]]), np.array([[[0.3, 0.1], [0.1, 0.2]]])
    z = np.random.default_rng(0).multivariate_normal(mean[0], variance[0], size=400_000)
    y = z[:, 0] + np.exp(z[:, 1]) * np.random.default_rng(1).normal(size=len(z))
    assert spread_std(mean, variance)[0] == pytest.approx(y.std(), rel=0.01)
    for q in (0.05, 0.5, 0.99):
        assert spread_quantile(mean, variance, q)[0] == pytest.approx(np.quantile(y, q), abs=0.02)
    sure = np.zeros((1, 2, 2))
    assert spread_quantile(mean, sure, 0.9)[0] == pytest.approx(1.0 + np.exp(-0.5) * norm.ppf(0.9), abs=1e-6)


def test_a_loss_of_ones_own_of_several_predictors_can_be_fitted():
    X, y = widening(n=400)
    t = (y - y.mean()) / y.std()
    own = EPRegressor(loss=Normal(floor=-40.0), normalize_y=False, prior_variance=1.0).fit(X, t)
    np.testing.assert_allclose(own.coef_ * y.std(), [20.0, 0.0, -40.0], atol=4.0)
    assert own.summary().index.unique(0).tolist() == ["predictor 0", "predictor 1"]


def test_tables_and_plots_show_both_predictors_each_in_its_own_units(model):
    table = model.summary()
    assert table.index.names == ["predictor", "coefficient"]
    assert table.loc[("mean", "intercept"), "mean"] == pytest.approx(model.intercept_)
    np.testing.assert_allclose(table.loc["mean"]["mean"].iloc[1:], model.coef_)
    np.testing.assert_allclose(table.loc["log scale"]["mean"].iloc[1:], model.scale_coef_)
    np.testing.assert_allclose(table.loc["log scale"]["std"].iloc[1:], model.scale_coef_std_)
    assert table.loc[("log scale", "intercept"), "mean"] == pytest.approx(model.scale_intercept_)
    found = model.contrast({"x0": 1, "x1": -1})
    assert found.loc[("log scale", "x0 - x1"), "mean"] == pytest.approx(model.scale_coef_[0] - model.scale_coef_[1])
    names = [label.get_text() for label in model.plot_coefficients().get_yticklabels()]
    assert "log scale x0" in names


class HeavySpread(NamedTuple):
    """A median and a log spread of targets with Laplace noise."""

    smallest: float = -30.0

    @property
    def targets(self):
        return "reals"

    @property
    def predictors(self):
        return 2

    def value(self, y, z):
        log_spread = np.maximum(z[..., 1], self.smallest)
        return log_spread + np.abs(y - z[..., 0]) * np.exp(-log_spread)


def test_a_loss_with_kinks_and_a_log_spread_finds_both_sets_of_coefficients():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 2))
    y = 2.0 * X[:, 0] + np.exp(0.5 * X[:, 1]) * rng.laplace(size=1000)
    found = EPRegressor(loss=HeavySpread(), normalize_y=False, intercept_prior_variance=4.0).fit(X, y).summary()
    found = found.iloc[:6]  # the variance of the coefficients follows
    truth = np.array([0.0, 2.0, 0.0, 0.0, 0.0, 0.5])
    assert np.max(np.abs(found["mean"] - truth) / found["std"]) < 4.0
    assert found["std"].max() < 0.06


def test_its_table_has_both_parts_in_units_of_y(model):
    table = model.summary()
    assert list(table.index.names) == ["predictor", "coefficient"]
    np.testing.assert_allclose(table.loc["mean", "mean"].to_numpy()[1:], model.coef_)
    np.testing.assert_allclose(table.loc["log scale", "mean"].to_numpy()[1:], model.scale_coef_)
    assert table.loc[("log scale", "intercept"), "mean"] == pytest.approx(model.scale_intercept_)
    assert table.loc[("mean", "intercept"), "mean"] == pytest.approx(model.intercept_)
    row = model.contrast({("mean", "x0"): 1, ("mean", "x1"): -1}).iloc[0]
    assert row["mean"] == pytest.approx(model.coef_[0] - model.coef_[1])
    covariance = model.covariance_
    assert row["std"] ** 2 == pytest.approx(covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1])
    assert model.sample_coef(3).shape == (3, 3)
    model.plot_coefficients()


def test_few_rows_do_not_decide_on_the_prior_in_the_first_loop():
    """Data sets on which a prior variance that followed the first fifty rows ended improper, or in 100 loops."""
    rng = np.random.default_rng(0)
    for _ in range(14):
        X, slopes = rng.standard_normal((2000, 5)), rng.standard_normal(5)
        std = np.exp(-0.5 + X @ (0.4 * rng.standard_normal(5)))
        y = 100.0 + 20.0 * (X @ slopes + std * rng.standard_normal(2000))
        model = EPRegressor(loss="normal", scale="linear").fit(X[:1000], y[:1000])
        assert model.status_.is_success
        assert model.n_iter_ <= 20


def test_units_of_columns_do_not_matter_with_a_given_prior_variance():
    X, y = widening(n=60)
    one = EPRegressor(loss="normal", scale="linear", prior_variance=1.0).fit(X, y)
    other = EPRegressor(loss="normal", scale="linear", prior_variance=1e-12).fit(1e6 * X, y)
    assert np.max(np.abs(1e6 * other.scale_coef_ - one.scale_coef_) / one.scale_coef_std_) < 0.01
    assert np.max(np.abs(1e6 * other.coef_ - one.coef_) / one.coef_std_) < 0.01
