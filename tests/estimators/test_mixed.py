"""Columns of categories and groups of features: variances of their own, levels that are not known, bad input."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from estimator_cases import state_of, two_classes
from scipy import sparse
from sklearn.preprocessing import OneHotEncoder

import cavity
from cavity import EPClassifier, EPRegressor
from cavity.estimators.columns import encode, levels_of


def shops(n=3000, shops=30, products=50, seed=0):
    """Sales of products in shops: two features and two random effects."""
    rng = np.random.default_rng(seed)
    shop, product = rng.integers(shops, size=n), rng.integers(products, size=n)
    effects = 0.7 * rng.normal(size=shops), 1.2 * rng.normal(size=products)
    table = pd.DataFrame(
        {
            "price": rng.normal(size=n),
            "shop": [f"s{j}" for j in shop],
            "age": rng.normal(size=n),
            "product": pd.Categorical(product, categories=range(products)),
        }
    )
    z = 0.8 * table["price"] - 0.4 * table["age"] + effects[0][shop] + effects[1][product] - 0.3
    return table, np.asarray(z), effects, rng


@pytest.fixture(scope="module")
def sold():
    table, z, effects, rng = shops()
    y = rng.random(z.size) < 1.0 / (1.0 + np.exp(-z))
    return table, y, effects, EPClassifier().fit(table, y)


def test_every_column_of_categories_has_a_variance_of_its_own(sold):
    _, _, (shop, product), model = sold
    found = model.prior_variance_
    assert list(found) == ["features", "shop", "product"]
    # Thirty and fifty levels tell a variance to within two standard errors of about a quarter and a fifth.
    assert found["shop"] == pytest.approx(np.mean(shop**2), rel=0.5)
    assert found["product"] == pytest.approx(np.mean(product**2), rel=0.4)
    assert model.n_features_in_ == 4
    assert model.coef_.shape == (1, 2 + 31 + 51)


def test_effects_are_covered_by_their_intervals(sold):
    _, _, (shop, product), model = sold
    table = model.summary(0.9)
    wanted = {f"shop=s{j}": u for j, u in enumerate(shop)} | {f"product={j}": u for j, u in enumerate(product)}
    rows = table.loc[list(wanted)]
    truth = np.array(list(wanted.values()))
    inside = (rows["lower 90%"] < truth) & (truth < rows["upper 90%"])
    assert 0.8 < inside.mean() <= 1.0
    assert table.loc["price", "mean"] == pytest.approx(0.8, abs=0.2)


def test_it_is_the_model_of_its_encoded_columns(sold):
    table, y, _, model = sold
    encoder = OneHotEncoder(categories=[model.categories_["shop"], model.categories_["product"]])
    encoded = encoder.fit_transform(table[["shop", "product"]])
    X = sparse.csr_array(sparse.hstack([table[["price", "age"]].to_numpy(), encoded], format="csr"))
    groups = ["features"] * 2 + ["shop"] * 30 + ["product"] * 50
    other = EPClassifier(prior_groups=groups, prior_variance="auto").fit(X, y)
    np.testing.assert_allclose(other.coef_[0, :2], model.coef_[0, :2], atol=0.002)
    # Effects of a text column are relative to their mean: differences of levels are the same.
    apart = np.zeros((4, 83))
    apart[[0, 1, 2, 3], [2, 5, 32, 50]], apart[[0, 1, 2, 3], [3, 20, 33, 80]] = 1.0, -1.0
    with_unknown = np.insert(apart, [32, 82], 0.0, axis=1)
    found, wanted = other.posterior_[0], model.posterior_[0]
    np.testing.assert_allclose(apart @ found.mean, with_unknown @ wanted.mean, atol=0.02)
    np.testing.assert_allclose(found.predictor_variance(apart), wanted.predictor_variance(with_unknown), rtol=0.02)
    np.testing.assert_allclose(other.predict_proba(X), model.predict_proba(table), atol=0.002)
    assert list(other.prior_variance_) == ["features", "shop", "product"]


def test_a_level_that_is_not_known_has_the_prior(sold):
    table, _, _, model = sold
    new = table.iloc[:3].copy()
    new["shop"] = ["new here", "s0", "new here"]
    mean, std = model.decision_function(new, return_std=True)
    known = table.iloc[:3].copy()
    known["shop"] = "s0"
    mean_known, std_known = model.decision_function(known, return_std=True)
    assert std[1] == std_known[1]
    assert np.all(std[[0, 2]] ** 2 > model.prior_variance_["shop"])
    effects = model.summary().loc[[f"shop=s{j}" for j in range(30)], "mean"]
    unseen = model.summary().loc["shop=(unseen)"]
    effect = effects["shop=s0"] - unseen["mean"]
    np.testing.assert_allclose(mean_known - mean, [effect, 0.0, effect], atol=1e-9)
    assert effects.mean() == pytest.approx(0.0, abs=1e-12)
    assert unseen["mean"] == pytest.approx(0.0, abs=1e-4)
    assert unseen["std"] == pytest.approx(np.sqrt(model.prior_variance_["shop"] * 31 / 30), rel=0.1)


def test_variance_components_stand_in_the_summary_with_their_errors(sold):
    _, _, _, model = sold
    table = model.summary()
    for name, variance in model.prior_variance_.items():
        row = table.loc[f"variance of {name}" + (" (standardised)" if name == "features" else "")]
        assert row["mean"] == pytest.approx(variance)
        assert 0.0 <= row["lower 95%"] < variance < row["upper 95%"]
    # With k effects known well, the error of a variance is its size times the root of 2/k.
    known = table.loc["variance of product"]
    assert known["std"] == pytest.approx(known["mean"] * np.sqrt(2.0 / 50), rel=0.35)


@pytest.mark.parametrize("loss", ["hinge", "quasi01"])
def test_other_losses_have_random_effects_too(loss):
    table, z, _, rng = shops(n=800, shops=8, products=10)
    model = EPClassifier(loss=loss, max_iter=300)
    model.fit(table, rng.random(z.size) < 1.0 / (1.0 + np.exp(-3.0 * z)))
    assert set(model.prior_variance_) == {"features", "shop", "product"}


@pytest.mark.parametrize("loss", ["squared", "quantile", "poisson"])
def test_regressions_have_random_effects_too(loss, tmp_path):
    table, z, effects, rng = shops(n=800, shops=8, products=10)
    y = rng.poisson(np.exp(0.5 * z)) if loss == "poisson" else 10.0 + 3.0 * (z + 0.3 * rng.normal(size=z.size))
    model = EPRegressor(loss=loss).fit(table, y)
    found = model.summary().loc[[f"shop=s{j}" for j in range(8)], "mean"]
    assert np.corrcoef(found, effects[0])[0, 1] > 0.95
    cavity.save(model, tmp_path / "model.cavity")
    np.testing.assert_array_equal(cavity.load(tmp_path / "model.cavity").predict(table), model.predict(table))


def test_streams_of_tables_need_all_levels_at_first(sold):
    table, y, _, model = sold
    stream = EPClassifier().partial_fit(table[:1500], y[:1500], classes=[False, True])
    stream.partial_fit(table[1500:], y[1500:])
    gap = np.abs(stream.coef_ - model.coef_) / model.coef_std_
    assert np.max(gap) < 0.5
    new = table.iloc[:1].assign(shop="new here")
    before = stream.coef_.copy()
    with pytest.raises(ValueError, match="'new here'; give it a categorical type"):
        stream.partial_fit(new, y[:1])
    np.testing.assert_array_equal(stream.coef_, before)


def test_a_given_variance_is_that_of_the_features_alone(sold):
    table, y, _, _ = sold
    model = EPClassifier(prior_variance=9.0).fit(table, y)
    assert set(model.prior_variance_) == {"shop", "product"}
    np.testing.assert_allclose(state_of(model).priors[0].variance[:2], 9.0)


def test_groups_of_plain_features():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 20))
    z = X[:, :10] @ (2.0 * rng.normal(size=10)) + 0.1 * X[:, 10:] @ rng.normal(size=10)
    y = rng.random(2000) < 1.0 / (1.0 + np.exp(-z))
    by_label = EPClassifier(prior_groups=["large"] * 10 + ["small"] * 10).fit(X, y)
    by_dict = EPClassifier(prior_groups={"large": range(10), "small": range(10, 20)}).fit(X, y)
    assert by_label.prior_variance_ == by_dict.prior_variance_
    assert by_label.prior_variance_["large"] > 20.0 * by_label.prior_variance_["small"]
    names = [f"a_{j}" for j in range(10)] + [f"b_{j}" for j in range(10)]
    named = EPClassifier(prior_groups="categories").fit(pd.DataFrame(X, columns=names), y)
    assert named.prior_variance_["a"] == by_label.prior_variance_["large"]


BAD = {
    "a text": ("shops", "prior_groups must be None"),
    "too few": ([1, 2], "one label for each of 4 features"),
    "unknown name": ({"a": ["nobody"]}, "'nobody', which is not among"),
    "unknown column": ({"a": [7]}, "columns from 0 to 3"),
    "twice": ({"a": [0], "b": [0]}, "names a feature twice"),
    "empty": ({"a": []}, "has no features"),
    "no names": ("categories", "needs the names of an encoder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_groups_are_refused_in_words(case):
    groups, words = BAD[case]
    X, y = two_classes()
    with pytest.raises(ValueError, match=words):
        EPClassifier(prior_groups=groups).fit(X, y)


def test_columns_of_no_group_have_the_given_variance():
    X, y = two_classes(n=200, seed=3)
    model = EPClassifier(prior_groups={"first": [0, 1]}, prior_variance=3.0, tol=1e-4).fit(X, y)
    assert list(model.prior_variance_) == ["first"]
    np.testing.assert_array_equal(model.prior_units_[2:], 1.0)
    np.testing.assert_allclose(state_of(model).priors[0].variance[2:4], 3.0)
    raw = model.prior_variance_["first"] / model.prior_units_**2
    each = np.where(np.arange(4) < 2, raw, 3.0)
    given = EPClassifier(prior_variance=each, tol=1e-4).fit(X, y)
    mean = state_of(model).posteriors[0].mean[:4] / model.prior_units_  # but for what is not known of the variance
    np.testing.assert_array_less(np.abs(mean - given.coef_[0]), 0.01 * given.coef_std_[0])
    assert model.log_evidence_ == pytest.approx(given.log_evidence_, abs=0.01)


def test_bad_tables_are_refused_in_words(sold):
    table, y, _, model = sold
    with pytest.raises(ValueError, match="column 'shop' has missing values"):
        EPClassifier().fit(table.assign(shop=None), y)
    with pytest.raises(ValueError, match="must be a DataFrame with the columns"):
        model.predict(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table.rename(columns={"price": "cost"}))
    with pytest.raises(ValueError, match="must hold strings, numbers"):
        EPClassifier().fit(table.assign(shop=[("a", 1)] * len(table)), y)
    with pytest.raises(ValueError, match="pass a DataFrame of pandas or polars, whose columns of strings"):
        EPClassifier().fit(table.to_numpy(), y)
    with pytest.raises(ValueError, match="shop=s14 and 75 more, see summary"):
        model.contrast({"shop": 1})
    with pytest.raises(ValueError, match="must hold strings, numbers"):
        EPClassifier().fit(table.assign(shop=["a", ["a"]] * (len(table) // 2)), y)


def test_columns_that_have_numbers_for_names():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({0: rng.normal(size=40), 1: ["a", "b"] * 20})
    model = EPClassifier().fit(table, rng.integers(2, size=40))
    assert model.predict(table).shape == (40,)
    with pytest.raises(ValueError, match="must be a DataFrame with the columns"):
        model.predict(np.zeros((2, 2)))


def test_columns_are_those_of_an_encoder_whatever_the_type_of_the_levels():
    words, n = ["b", "a", "c", "a", "b", "c"], 6
    numbers = np.array([0.0, 1.5, 0.0, -2.0, 0.0, 3.0])
    whole = {"b": 2, "a": 1, "c": 3}
    kinds = {
        "strings": (words, ["a", "b", "c"]),
        "objects": (np.array(words, dtype=object), ["a", "b", "c"]),
        "numbers among objects": (np.array([whole[w] for w in words], dtype=object), ["1", "2", "3"]),
        "categories with one that does not occur": (pd.Categorical(words, ["c", "x", "a", "b"]), ["a", "b", "c", "x"]),
        "categories with an order": (pd.Categorical(words, ["c", "x", "a", "b"], ordered=True), ["c", "x", "a", "b"]),
    }
    for column, known in kinds.values():
        table = pd.DataFrame({"u": column, "x": numbers})
        levels = levels_of(table)
        assert levels == {"u": known}
        expected = np.zeros((n, len(known) + 2))
        expected[:, 0] = numbers
        expected[np.arange(n), [1 + known.index(str(level)) for level in column]] = 1.0
        found = encode(table, levels, unseen=False)
        np.testing.assert_array_equal(found.toarray(), expected)
        assert np.all(found.data != 0.0)


def test_columns_of_polars_are_those_of_pandas():
    pl = pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    shop, x = rng.choice(["b", "a", "10", "2"], 120), rng.normal(size=120)
    y = x + 2.0 * (shop == "a") + 0.1 * rng.normal(size=120)
    table = pd.DataFrame({"x": x, "shop": shop, "open": x > 0.0})
    model = EPRegressor().fit(table, y)
    frame = pl.DataFrame({"x": x, "shop": shop, "open": x > 0.0})
    for kind in (pl.String, pl.Categorical, pl.Enum(["b", "a", "10", "2"])):
        given = frame.with_columns(pl.col("shop").cast(kind))
        found = EPRegressor().fit(given, pl.Series(y))
        assert found.categories_ == model.categories_ == {"shop": ["2", "10", "a", "b"]}
        assert found.feature_names_in_.tolist() == ["x", "shop", "open"]
        for rows in (table, given):
            np.testing.assert_array_equal(found.predict(rows), model.predict(table))
        np.testing.assert_array_equal(model.predict(given), model.predict(table))
        found.partial_fit(given[:5], y[:5])
    first = frame[:60].with_columns(pl.col("shop").cast(pl.Enum(["2", "10", "a", "b", "c"])))
    assert EPRegressor().partial_fit(first, y[:60]).categories_ == {"shop": ["2", "10", "a", "b", "c"]}
    numbers = frame.with_columns(pl.Series("shop", [2, 10] * 60))
    np.testing.assert_allclose(
        model.predict(numbers), model.predict(table.assign(shop=["2", "10"] * 60)), rtol=0.0, atol=0.0
    )
    for bad in (pl.lit(None, dtype=pl.String), pl.date(2020, 1, 1), pl.lit([[1]])):
        with pytest.raises(ValueError, match=r"column 'shop' (has missing values|holds dates|must hold strings)"):
            EPRegressor().fit(frame.with_columns(shop=bad), y)


# Offsets.


@pytest.mark.parametrize("covariance", ["full", "sparse"])
def test_an_offset_is_a_column_of_known_coefficient(covariance):
    X, y = two_classes(n=200)
    offset = 0.7 * X[:, 0]
    plain = EPClassifier(prior_variance=1.0, covariance=covariance, tol=1e-6).fit(X, y)
    shifted = EPClassifier(prior_variance=1.0, prior_mean=[-0.7, 0.0, 0.0, 0.0], covariance=covariance, tol=1e-6)
    shifted.fit(X, y, offset=offset)
    np.testing.assert_allclose(shifted.coef_ - plain.coef_, [[-0.7, 0.0, 0.0, 0.0]], atol=1e-4)
    np.testing.assert_allclose(shifted.coef_std_, plain.coef_std_, rtol=1e-4)
    np.testing.assert_allclose(shifted.predict_proba(X, offset=offset), plain.predict_proba(X), atol=1e-4)
    assert shifted.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-3)


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
def test_streams_and_fits_take_offsets(loss):
    rng = np.random.default_rng(0)
    X, exposure = rng.normal(size=(600, 2)), rng.uniform(0.5, 20.0, 600)
    known = np.log(exposure)
    z = 0.4 * X[:, 0] - 0.2 * X[:, 1] + known
    y = rng.poisson(np.exp(z)) if loss == "poisson" else z + 0.1 * rng.normal(size=600)
    whole, stream = EPRegressor(loss=loss).fit(X, y, offset=known), EPRegressor(loss=loss)
    for i in range(0, 600, 100):
        stream.partial_fit(X[i : i + 100], y[i : i + 100], offset=known[i : i + 100])
    for model in (whole, stream):
        np.testing.assert_allclose(model.coef_, [0.4, -0.2], atol=0.05)
        np.testing.assert_allclose(
            model.predict(X, offset=known), np.exp(z) if loss == "poisson" else z, rtol=0.2, atol=0.2
        )
        assert model.score(X, y, offset=known) > 0.7 > model.score(X, y) + 0.2


def test_the_score_of_a_classifier_takes_an_offset():
    X, y = two_classes(n=200)
    offset = 4.0 * np.sign(X[:, 0])
    model = EPClassifier().fit(X, y, offset=offset)
    assert model.score(X, y, offset=offset) == np.mean(model.predict(X, offset=offset) == y)
    assert model.score(X, y) == np.mean(model.predict(X) == y) != model.score(X, y, offset=offset)


def test_rows_that_differ_in_their_offset_are_not_merged():
    X, y = np.ones((4, 1)), np.array([0, 1, 0, 1])
    model = EPClassifier(fit_intercept=False, prior_variance=1.0).fit(X, y, offset=[5.0, 5.0, -5.0, -5.0])
    np.testing.assert_allclose(model.coef_, 0.0, atol=1e-6)
    with pytest.raises(ValueError, match="one finite number for each of 4 rows"):
        EPClassifier().fit(X, y, offset=[1.0])
    with pytest.raises(ValueError, match="takes no offset"):
        EPClassifier(covariance="diagonal").fit(X, y, offset=np.ones(4))
