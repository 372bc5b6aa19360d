"""Tables of coefficients hold what the model knows, with pandas and without."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from estimator_cases import classifier, line, regressor, three_classes, two_classes
from scipy.stats import norm

from cavity.estimators import _table


@pytest.fixture(scope="module")
def model():
    X, y = two_classes()
    return classifier().fit(pd.DataFrame(X, columns=["age", "height", "mass", "wealth"]), y)


def test_the_table_is_a_frame_of_means_deviations_and_intervals(model):
    table = model.summary()
    assert isinstance(table, pd.DataFrame)
    assert table.columns.tolist() == ["mean", "std", "lower 95%", "upper 95%"]
    assert table.index.tolist() == ["intercept", "age", "height", "mass", "wealth"]
    assert table.index.name == "coefficient"
    np.testing.assert_allclose(table["mean"], [*model.intercept_, *model.coef_[0]])
    np.testing.assert_allclose(table["std"], [*model.intercept_std_, *model.coef_std_[0]])
    inside = norm.cdf(table["upper 95%"], table["mean"], table["std"]) - norm.cdf(
        table["lower 95%"], table["mean"], table["std"]
    )
    np.testing.assert_allclose(inside, 0.95)


def test_the_level_is_free(model):
    table = model.summary(level=0.5)
    assert table.columns[2:].tolist() == ["lower 50%", "upper 50%"]
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
    assert lines[0].split() == ["coefficient", "mean", "std", "lower", "95%", "upper", "95%"]
    assert [line.split()[0] for line in lines[1:]] == frame.index.tolist()
    for line_of_text, numbers in zip(lines[1:], frame.to_numpy(), strict=True):
        np.testing.assert_allclose([float(word) for word in line_of_text.split()[1:]], numbers, rtol=1e-3)
    assert len({len(line_of_text) for line_of_text in lines}) == 1


def test_text_names_classes(monkeypatch):
    monkeypatch.setattr(_table, "find_spec", lambda name: None)
    lines = classifier().fit(*three_classes()).summary().splitlines()
    assert len(lines) == 1 + 3 * 5
    assert [" ".join(row.split()[:2]) for row in lines[1:4]] == ["ash intercept", "ash x0", "ash x1"]
