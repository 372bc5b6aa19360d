"""Tables of coefficients hold what the model knows, with pandas and without."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from estimator_cases import classifier, line, regressor, three_classes, two_classes
from scipy.stats import norm
from sklearn.exceptions import NotFittedError

from cavity.estimators import reports as _table


@pytest.fixture(scope="module")
def model():
    X, y = two_classes()
    return classifier().fit(pd.DataFrame(X, columns=["age", "height", "mass", "wealth"]), y)


def test_the_table_is_a_frame_of_means_deviations_and_intervals(model):
    table = model.summary()
    assert isinstance(table, pd.DataFrame)
    assert table.columns[:4].tolist() == ["mean", "std", "lower 95%", "upper 95%"]
    assert table.index.tolist() == ["intercept", "age", "height", "mass", "wealth"]
    assert table.index.name == "coefficient"
    np.testing.assert_allclose(table["mean"], [*model.intercept_, *model.coef_[0]])
    np.testing.assert_allclose(table["std"], [*model.intercept_std_, *model.coef_std_[0]])


def test_marginals_of_normal_noise_are_normal():
    X, y = line()
    table = regressor(scale=1.0, prior_variance=1.0).fit(X, y).summary(level=0.9)
    for end, probability in (("lower", 0.05), ("upper", 0.95)):
        np.testing.assert_allclose(norm.cdf(table[f"{end} 90%"], table["mean"], table["std"]), probability)
    np.testing.assert_allclose(table["P(> 0)"], norm.sf(0.0, table["mean"], table["std"]))


def test_the_level_is_free(model):
    table = model.summary(level=0.5)
    assert table.columns[2:4].tolist() == ["lower 50%", "upper 50%"]
    assert np.all(table["upper 50%"] - table["lower 50%"] < model.summary()["upper 95%"] - model.summary()["lower 95%"])
    assert model.summary(level=0.999).columns[2] == "lower 99.9%"
    for level in (0.0, 1.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="level must lie in"):
            model.summary(level)


def test_a_regression_is_in_the_units_of_its_targets():
    X, y = line()
    model = regressor().fit(X, y)
    table = model.summary()
    assert table.index.tolist() == ["intercept", "x0", "x1", "x2", "x3"]
    np.testing.assert_allclose(table["mean"], [model.intercept_, *model.coef_])
    np.testing.assert_allclose(table["std"], [model.intercept_std_, *model.coef_std_])
    assert table.loc["intercept", "mean"] == pytest.approx(1.0, abs=0.15)
    bare = regressor(fit_intercept=False).fit(X, y).summary()
    assert bare.index.tolist() == ["x0", "x1", "x2", "x3"]


def test_without_pandas_it_is_text(model, monkeypatch):
    frame = model.summary()
    monkeypatch.setattr(_table, "find_spec", lambda name: None)
    lines = model.summary().splitlines()
    assert lines[0].split()[:7] == ["coefficient", "mean", "std", "lower", "95%", "upper", "95%"]
    assert [line.split()[0] for line in lines[1:]] == frame.index.tolist()
    for line_of_text, numbers in zip(lines[1:], frame.to_numpy(), strict=True):
        np.testing.assert_allclose([float(word) for word in line_of_text.split()[1:]], numbers, rtol=1e-3)
    assert len({len(line_of_text) for line_of_text in lines}) == 1


def test_text_names_classes(monkeypatch):
    monkeypatch.setattr(_table, "find_spec", lambda name: None)
    lines = classifier().fit(*three_classes()).summary().splitlines()
    assert len(lines) == 1 + 3 * 5
    assert [" ".join(row.split()[:2]) for row in lines[1:4]] == ["ash intercept", "ash x0", "ash x1"]


def test_it_has_the_probability_to_be_positive_and_odds_ratios(model):
    table = model.summary(level=0.9)
    assert np.all(np.abs(table["P(> 0)"] - norm.sf(0.0, table["mean"], table["std"])) < 0.01)  # skewed a little
    assert table.columns[5:].tolist() == ["exp(mean)", "exp(lower 90%)", "exp(upper 90%)"]
    for name in ("mean", "lower 90%", "upper 90%"):
        np.testing.assert_allclose(np.log(table[f"exp({name})"]), table[name])


def test_only_logarithms_are_exponentiated():
    X, y = line()
    assert "exp(mean)" not in regressor().fit(X, y).summary()
    assert "exp(mean)" in regressor(loss="poisson").fit(0.1 * X, np.round(np.abs(y))).summary()
    assert "exp(mean)" not in classifier(loss="hinge").fit(*two_classes()).summary()


def test_a_contrast_has_the_deviation_of_the_joint_posterior(model):
    table = model.contrast({"age": 1.0, "height": -1.0}, {"mass": 2}, [1.0, 0.0, 0.0, 0.0, 1.0])
    assert table.index.tolist() == ["age - height", "2 mass", "intercept + wealth"]
    coef, intercept = model.sample_coef(40_000, random_state=0, return_intercept=True)
    drawn = np.array([coef[:, 0] - coef[:, 1], 2.0 * coef[:, 2], intercept + coef[:, 3]])
    np.testing.assert_allclose(table["std"], drawn.std(axis=1), rtol=0.02)
    np.testing.assert_allclose(table["mean"], drawn.mean(axis=1), atol=0.05 * table["std"].max())
    np.testing.assert_allclose(table["mean"].iloc[1], 2.0 * model.summary().loc["mass", "mean"])
    np.testing.assert_allclose(table["std"].iloc[1], 2.0 * model.summary().loc["mass", "std"])


@pytest.mark.parametrize("covariance", ["full", "sparse", "diagonal"])
def test_a_contrast_of_one_coefficient_is_its_row_of_the_summary(covariance):
    X, y = line()
    model = regressor(covariance=covariance).fit(X, y)
    names = model.summary().index.tolist()
    found = model.contrast(*({name: 1} for name in names))
    assert found.index.tolist() == names
    pd.testing.assert_frame_equal(found, model.summary(), rtol=1e-8)


def test_a_contrast_of_several_classes_is_given_for_each():
    X, y = three_classes()
    model = classifier().fit(X, y)
    table = model.contrast({"x0": 1, "x1": -1})
    assert table.index.tolist() == [(str(c), "x0 - x1") for c in model.classes_]
    np.testing.assert_allclose(table["mean"], model.coef_[:, 0] - model.coef_[:, 1])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((), "at least one linear combination"),
        (({"weight": 1.0},), "coefficients among intercept, age, height, mass, wealth; got 'weight'"),
        (([1.0, 2.0],), "5 finite numbers in the order intercept, age"),
        (({"age": np.nan},), "names and finite factors"),
        (({"age": "x"},), "names and finite factors"),
        (("age",), "names and finite factors"),
        ((None,), "names and finite factors"),
    ],
)
def test_a_contrast_that_is_none_is_refused(model, weights, message):
    with pytest.raises(ValueError, match=message):
        model.contrast(*weights)


def test_a_contrast_needs_a_fitted_model():
    with pytest.raises(NotFittedError):
        classifier().contrast({"x0": 1})
