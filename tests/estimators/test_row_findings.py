"""What estimators say by their rows: leave-one-out, comparisons, calibration, robust errors, skewed intervals."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris

import cavity
from cavity import EPClassifier, EPRegressor

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 4))
Y = 3.0 + 2.0 * X[:, 0] - X[:, 1] + RNG.standard_normal(120)
LABELS = np.where(X[:, 0] + RNG.logistic(size=120) > 0.0, "yes", "no")
COUNTS = RNG.poisson(np.exp(0.5 * X[:, 0]))
CLASSES = np.argmax(X[:, :3] + RNG.gumbel(size=(120, 3)), axis=1)

MODELS = [
    (EPClassifier(prior_variance=1.0), LABELS),
    (EPClassifier("hinge", prior_variance=1.0), LABELS),
    (EPClassifier(prior_variance=1.0), CLASSES),
    (EPClassifier("hinge", prior_variance=1.0), CLASSES),
    (EPRegressor("poisson", prior_variance=1.0), COUNTS),
    (EPRegressor(prior_variance=1.0, scale=1.0, normalize_y=False), Y),
    (EPRegressor("huber", prior_variance=1.0, scale=1.0, normalize_y=False), Y),
]
NAMES = ["logistic", "hinge", "softmax", "hinge, three classes", "poisson", "squared", "huber"]


def density(model, X, y):
    if isinstance(model, EPRegressor):
        return model.log_densities(X, y)
    return model.predict_log_proba(X)[np.arange(len(y)), np.searchsorted(model.classes_, y)]


@pytest.mark.parametrize(("model", "y"), MODELS, ids=NAMES)
def test_rows_have_the_densities_of_fits_without_them(model, y):
    """In the order of the rows given, in units of the targets."""
    model = clone(model).fit(X, y)
    for row in (0, 17, 55, 119):
        other = clone(model).fit(np.delete(X, row, axis=0), np.delete(y, row))
        assert model.loo_[row] == pytest.approx(density(other, X[[row]], y[[row]])[0], abs=0.02)
    assert model.elpd_loo_ == pytest.approx(np.sum(model.loo_), rel=1e-12)
    assert model.elpd_loo_std_ == pytest.approx(np.sqrt(120.0) * np.std(model.loo_, ddof=1), rel=1e-12)
    # The rows themselves are fitted better than without them.
    assert np.sum(density(model, X, y)) > model.elpd_loo_


def test_densities_are_in_units_of_the_targets():
    one, ten = (EPRegressor().fit(X, unit * Y) for unit in (1.0, 10.0))
    assert_allclose(ten.loo_, one.loo_ - np.log(10.0), atol=1e-6)


@pytest.mark.parametrize("k", [0, 2, 5])
def test_repeated_rows_and_weights_say_the_same(k):
    model, y = MODELS[k]
    twice = clone(model).fit(np.repeat(X, 2, axis=0), np.repeat(y, 2))
    weighted = clone(model).fit(X, y, sample_weight=np.full(120, 2.0))
    assert_allclose(twice.loo_, np.repeat(weighted.loo_, 2), atol=1e-6)
    assert twice.elpd_loo_ == pytest.approx(weighted.elpd_loo_, rel=1e-9)
    assert twice.elpd_loo_std_ == pytest.approx(weighted.elpd_loo_std_, rel=1e-9)


def test_rows_of_weight_zero_are_not_left_out():
    weights = np.ones(120)
    weights[[3, 70]] = 0.0
    model = EPClassifier().fit(X, LABELS, sample_weight=weights)
    assert np.flatnonzero(np.isnan(model.loo_)).tolist() == [3, 70]
    without = EPClassifier().fit(np.delete(X, [3, 70], axis=0), np.delete(LABELS, [3, 70]))
    assert_allclose(np.delete(model.loo_, [3, 70]), without.loo_, atol=1e-9)
    assert model.elpd_loo_ == pytest.approx(without.elpd_loo_, abs=1e-9)


def test_offsets_are_known():
    offset = RNG.standard_normal(120)
    model = EPRegressor("poisson", prior_variance=1.0).fit(X, COUNTS, offset=offset)
    other = clone(model).fit(X[1:], COUNTS[1:], offset=offset[1:])
    assert model.loo_[0] == pytest.approx(other.log_densities(X[:1], COUNTS[:1], offset[:1])[0], abs=0.01)


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_unreliable_rows_are_named_and_refitted(kind):
    far, y = X.copy(), LABELS if kind == "logistic" else CLASSES
    far[5] = 0.0
    far[5, 0] = -12.0
    y = y.copy()
    y[5] = y[np.argmax(X[:, 0])]
    model = EPClassifier(prior_variance=4.0).fit(far, y)
    assert 5 in model.loo_unreliable_
    again = clone(model).set_params(loo_refit=True).fit(far, y)
    assert again.loo_unreliable_.size == 0
    other = clone(model).fit(np.delete(far, 5, axis=0), np.delete(y, 5))
    assert again.loo_[5] == pytest.approx(density(other, far[[5]], y[[5]])[0], abs=0.02)


def test_streams_have_no_rows_to_leave_out():
    model = EPClassifier().partial_fit(X, LABELS, classes=["no", "yes"])
    with pytest.raises(AttributeError, match="rows are left out after fit"):
        _ = model.loo_
    fitted = EPClassifier().fit(X, LABELS)
    assert fitted.elpd_loo_ < 0.0
    with pytest.raises(AttributeError, match="rows are left out after fit"):
        _ = fitted.partial_fit(X[:5], LABELS[:5]).elpd_loo_


def test_models_are_compared_by_what_they_predict():
    table = cavity.compare({"noise": EPRegressor().fit(X[:, 2:], Y), "both": EPRegressor().fit(X, Y)})
    assert table.index.tolist() == ["both", "noise"]
    assert table["difference"].tolist()[0] == 0.0
    best, worst = EPRegressor().fit(X, Y), EPRegressor().fit(X[:, 2:], Y)
    assert table["difference"].iloc[1] == pytest.approx(worst.elpd_loo_ - best.elpd_loo_)
    error = np.sqrt(120.0) * np.std(worst.loo_ - best.loo_, ddof=1)
    assert table["error of difference"].iloc[1] == pytest.approx(error)
    assert table["difference"].iloc[1] < -4.0 * error / 2.0
    with pytest.raises(ValueError, match="the same rows"):
        cavity.compare([best, EPRegressor().fit(X[1:], Y[1:])])
    with pytest.raises(ValueError, match="at least two models"):
        cavity.compare([best])


# Calibration.


def test_calibration_repairs_separable_classes_and_leaves_coefficients():
    digits, y = load_digits(return_X_y=True)
    kept = (y == 3) | (y == 8)
    digits, y = digits[kept][:, digits[kept].std(axis=0) > 0.0], y[kept]
    train = np.arange(y.size) % 2 == 0
    plain, calibrated = (EPClassifier(calibration=c).fit(digits[train], y[train]) for c in (None, "loo"))
    assert plain.calibration_ == 1.0
    assert calibrated.calibration_ > 2.0
    assert_allclose(calibrated.coef_, plain.coef_)
    losses = [-np.mean(density(m, digits[~train], y[~train])) for m in (plain, calibrated)]
    assert losses[1] < 0.7 * losses[0]
    assert calibrated.elpd_loo_ > plain.elpd_loo_
    odds = [m.decision_function(digits[~train]) for m in (plain, calibrated)]
    assert_allclose(odds[1], calibrated.calibration_ * odds[0], rtol=1e-6)
    assert_allclose(np.log(calibrated.predict_proba(digits[~train])), calibrated.predict_log_proba(digits[~train]))


def test_many_rows_leave_probabilities_as_they_are():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((5000, 3))
    model = EPClassifier(calibration="loo").fit(rows, rng.random(5000) < expit(rows @ [1.0, -1.0, 0.0]))
    assert model.calibration_ == pytest.approx(1.0, abs=0.1)


def test_several_classes_have_one_factor():
    rows, y = load_iris(return_X_y=True)
    model = EPClassifier(calibration="loo").fit(rows, y)
    plain = EPClassifier().fit(rows, y)
    scaled = plain.predict_proba(rows) ** model.calibration_
    assert_allclose(model.predict_proba(rows), scaled / np.sum(scaled, axis=1, keepdims=True), atol=1e-6)
    assert np.array_equal(model.predict(rows), plain.predict(rows))


def test_calibration_is_checked():
    with pytest.raises(ValueError, match="calibration must be"):
        EPClassifier(calibration="isotonic").fit(X, LABELS)


# Robust errors.


def test_errors_of_quantiles_are_those_of_the_rows():
    model = EPRegressor("quantile", quantile=0.9).fit(X, Y)
    plain = clone(model).set_params(errors="posterior").fit(X, Y)
    assert_allclose(model.coef_, plain.coef_)
    assert np.all(model.coef_std_ != plain.coef_std_)
    table = model.summary()
    assert_allclose(table["std"].to_numpy()[1:5], model.coef_std_)
    assert_allclose(np.sqrt(np.diag(model.covariance_))[:4], model.coef_std_)
    assert model.contrast({"x0": 1.0})["std"].iloc[0] == pytest.approx(model.coef_std_[0])
    rows = np.vstack([np.zeros(4), np.eye(4)[0]])
    at_zero = model.predict(rows[:1], return_std=True)[1][0]
    assert at_zero == pytest.approx(np.sqrt(model.covariance_[-1, -1]))
    assert at_zero == pytest.approx(model.predict(rows[:1], return_std="mean")[1][0])


def test_robust_errors_of_least_squares_are_the_jackknife():
    """In raw units, with an intercept, columns centred inside."""
    rows = X * [1.0, 10.0, 0.1, 1.0] + [0.0, 100.0, 0.0, -3.0]
    model = EPRegressor(errors="robust", prior_variance=1e6, scale=1.0, intercept_prior_variance=1e6).fit(rows, Y)
    A = np.column_stack([rows, np.ones(120)])
    inverse = np.linalg.inv(A.T @ A)
    residuals = (Y - A @ inverse @ A.T @ Y) / (1.0 - np.einsum("ij,jk,ik->i", A, inverse, A))
    wanted = np.sqrt(np.diag(inverse @ (A.T * residuals**2) @ A @ inverse))
    assert_allclose(np.append(model.coef_std_, model.intercept_std_), wanted, rtol=0.01)


def test_clusters_widen_errors_where_their_rows_are_alike():
    rng = np.random.default_rng(2)
    members = rng.integers(0, 30, 600)
    rows = rng.standard_normal((30, 2))[members]
    y = rows @ [1.0, -1.0] + rng.standard_normal(30)[members] + 0.1 * rng.standard_normal(600)
    plain, clustered = EPRegressor().fit(rows, y), EPRegressor().fit(rows, y, clusters=members)
    assert np.all(clustered.coef_std_ > 2.5 * plain.coef_std_)
    named = EPRegressor(errors="cluster").fit(rows, y, clusters=[f"shop {k}" for k in members])
    assert_allclose(named.coef_std_, clustered.coef_std_)
    own = EPRegressor(errors="robust").fit(rows, y).coef_std_
    alone = EPRegressor().fit(rows, y, clusters=np.arange(600)).coef_std_
    assert_allclose(alone, own * np.sqrt(599.0 / 600.0), rtol=1e-6)


def test_softmax_has_robust_errors_of_all_classes():
    model = EPClassifier(errors="robust").fit(X, CLASSES)
    plain = EPClassifier().fit(X, CLASSES)
    assert_allclose(model.coef_std_, plain.coef_std_, rtol=0.5)
    assert not np.allclose(model.coef_std_, plain.coef_std_, rtol=0.01)
    assert_allclose(model.predict_proba(X), plain.predict_proba(X))


def test_errors_and_clusters_are_checked():
    with pytest.raises(ValueError, match="errors must be"):
        EPRegressor(errors="hc3").fit(X, Y)
    with pytest.raises(ValueError, match="belong together"):
        EPRegressor(errors="cluster").fit(X, Y)
    with pytest.raises(ValueError, match="one label for each"):
        EPRegressor().fit(X, Y, clusters=[1, 2])
    with pytest.raises(ValueError, match="at least two clusters"):
        EPRegressor().fit(X, Y, clusters=np.zeros(120))
    with pytest.raises(ValueError, match="covariance='full'"):
        EPRegressor(errors="robust", covariance="diagonal").fit(X, Y)


# Skewed intervals.


def test_intervals_lean_where_the_posterior_does():
    """A level whose rows are all of one class: its coefficient is bounded on one side only."""
    rng = np.random.default_rng(4)
    rows = np.column_stack([rng.standard_normal((200, 2)), np.arange(200) < 8])
    y = rng.random(200) < expit(rows[:, 0])
    y[:8] = True
    model = EPClassifier(prior_variance=9.0).fit(rows, y)
    table = model.summary(level=0.9)
    ends = table[["lower 90%", "upper 90%"]].sub(table["mean"], axis=0)
    assert -ends.loc["x2", "upper 90%"] / ends.loc["x2", "lower 90%"] > 1.15
    assert -ends.loc["x0", "upper 90%"] / ends.loc["x0", "lower 90%"] == pytest.approx(1.0, abs=0.15)


def test_findings_survive_files(tmp_path):
    model = EPClassifier(calibration="loo").fit(X, LABELS)
    cavity.save(model, tmp_path / "model.cavity")
    again = cavity.load(tmp_path / "model.cavity")
    assert_allclose(again.loo_, model.loo_)
    assert again.calibration_ == model.calibration_
    assert_allclose(again.predict_proba(X), model.predict_proba(X))
    assert_allclose(again.summary().to_numpy(), model.summary().to_numpy())
    quantile = EPRegressor("quantile").fit(X, Y)
    cavity.save(quantile, tmp_path / "quantile.cavity")
    assert_allclose(cavity.load(tmp_path / "quantile.cavity").coef_std_, quantile.coef_std_)


def test_few_rows_of_quantile_losses_keep_the_errors_of_the_posterior():
    """Rows that are met exactly scatter by nothing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 3))
    y = X @ [1.0, -1.0, 0.5] + rng.normal(size=9)
    model = EPRegressor("quantile").fit(X, y)
    np.testing.assert_array_equal(model.coef_std_, EPRegressor("quantile", errors="posterior").fit(X, y).coef_std_)
