"""A fit over Dask collections is the fit of the same rows in memory, by Dask's local scheduler."""

import pickle

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask_cases import assert_same, chunked, labelled
from scipy import sparse

import cavity
import cavity.dask
from cavity.dask import _sum_of_hashes, joined
from cavity.factors.rows import Rows


@pytest.mark.parametrize("count", [1, 2, 4, 16])
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_labels_in_any_number_of_partitions(loss, count):
    X, y = labelled()
    order = np.argsort(y, kind="stable")
    expected = cavity.EPClassifier(loss, prior_variance=4.0).fit(X, y)
    model = cavity.EPClassifier(loss, prior_variance=4.0)
    found = cavity.dask.fit(model, chunked(X[order], count), chunked(y[order], count), join=False)
    assert_same(found, expected)
    assert list(found.classes_) == ["no", "yes"]


def test_the_prior_variance_is_found_as_in_memory():
    X, y = labelled()
    expected = cavity.EPClassifier().fit(X, y)
    found = cavity.dask.fit(cavity.EPClassifier(), chunked(X, 6), chunked(y, 6), join=False)
    assert found.prior_variance_ == pytest.approx(expected.prior_variance_, rel=0.15)  # its accuracy is 0.2
    assert_same(found, expected, 0.05)


@pytest.mark.parametrize("loss", ["squared", "huber", "quantile", "poisson", "negative_binomial", "gamma"])
def test_targets_with_weights_offsets_and_a_scale_that_is_found(loss):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 3))
    mean = np.exp(X @ [0.5, -0.3, 0.2] + 1.0)
    y = {
        "poisson": rng.poisson(mean),
        "negative_binomial": rng.poisson(mean * rng.gamma(2.0, 0.5, 500)),
        "gamma": mean * rng.gamma(3.0, 1.0 / 3.0, 500),
    }.get(loss, 100.0 + 20.0 * np.log(mean) + 5.0 * rng.standard_t(4, size=500))
    more = {"sample_weight": rng.integers(0, 3, 500).astype(float), "offset": 0.1 * rng.normal(size=500)}
    # Quantile losses have robust errors in memory only.
    expected = cavity.EPRegressor(loss=loss, errors="posterior").fit(X, y, **more)
    parts = {name: chunked(part, 3) for name, part in more.items()}
    found = cavity.dask.fit(cavity.EPRegressor(loss=loss), chunked(X, 3), chunked(y, 3), join=False, **parts)
    assert_same(found, expected)
    assert found.scale_ == pytest.approx(expected.scale_, rel=0.01)


def test_several_classes_by_softmax_and_one_against_the_rest():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(500, 3))
    y = np.argmax(X + rng.gumbel(size=(500, 3)), axis=1)
    for options in ({}, {"loss": "hinge"}):
        expected = cavity.EPClassifier(**options).fit(X, y)
        found = cavity.dask.fit(cavity.EPClassifier(**options), chunked(X, 4), chunked(y, 4), join=False)
        assert_same(found, expected)
        assert np.allclose(found.predict_proba(X), expected.predict_proba(X), atol=0.01)


def test_a_spread_that_is_linear_in_the_features():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 2))
    y = X[:, 0] + np.exp(0.5 * X[:, 1]) * rng.normal(size=400)
    expected = cavity.EPRegressor("normal", scale="linear").fit(X, y)
    found = cavity.dask.fit(cavity.EPRegressor("normal", scale="linear"), chunked(X, 3), chunked(y, 3), join=False)
    assert_same(found, expected)
    assert np.allclose(found.scale_coef_, expected.scale_coef_, atol=0.02 * np.max(expected.scale_coef_std_))


def test_csr_chunks_of_another_precision():
    rng = np.random.default_rng(5)
    X = sparse.random_array((600, 8), density=0.3, format="csr", random_state=rng).astype(np.float32)
    y = (X @ np.linspace(-2.0, 2.0, 8) + rng.logistic(size=600)) > 0.0
    lazy = chunked(X.toarray(), 4).map_blocks(sparse.csr_array, meta=sparse.csr_array((0, 0), dtype=np.float32))
    found = cavity.dask.fit(cavity.EPClassifier(), lazy, y, join=False)
    assert_same(found, cavity.EPClassifier().fit(X, y))


def test_levels_in_great_number_have_a_sparse_precision():
    rng = np.random.default_rng(7)
    data = pd.DataFrame({"x": rng.normal(size=1500), "a": rng.integers(0, 90, 1500), "b": rng.integers(0, 60, 1500)})
    y = data["x"] + rng.normal(size=90)[data["a"]] + rng.normal(size=60)[data["b"]] + rng.normal(size=1500)
    data = data.astype({"a": "category", "b": "category"})
    expected = cavity.EPRegressor(covariance="sparse").fit(data, y)
    cuts = np.array_split(np.arange(1500), 4)
    blocks = [dask.delayed(data.iloc[cut]) for cut in cuts]
    model = cavity.EPRegressor(covariance="sparse")
    found = cavity.dask.fit(model, blocks, [y.to_numpy()[cut] for cut in cuts], join=False)
    assert found.plan_.covariance == "sparse"
    assert_same(found, expected, 0.05)
    assert np.allclose(found.predict(data.head(9)), expected.predict(data.head(9)), atol=0.02)


def table(n=400):
    rng = np.random.default_rng(6)
    shops = rng.choice(list("ABCDEF"), n)
    data = pd.DataFrame({"x": rng.normal(size=n), "shop": shops, "size": rng.normal(size=n)})
    data["kind"] = pd.Categorical(rng.choice(["old", "new"], n), categories=["old", "new", "never seen"])
    data["y"] = data["x"] + (shops == "A") - (shops == "B") + rng.normal(size=n)
    return data


def test_columns_of_categories_are_random_effects_with_the_levels_of_all_partitions():
    dd = pytest.importorskip("dask.dataframe", reason="Dask DataFrames need pyarrow")
    data = table().sort_values("shop", ignore_index=True)  # no partition has all shops
    expected = cavity.EPRegressor().fit(data.drop(columns="y"), data["y"])
    lazy = dd.from_pandas(data, npartitions=4)
    found = cavity.dask.fit(cavity.EPRegressor(), lazy.drop(columns="y"), lazy["y"], join=False)
    assert found.categories_ == expected.categories_
    assert list(found.feature_names_in_) == list(expected.feature_names_in_)
    assert_same(found, expected)
    assert found.prior_variance_.keys() == expected.prior_variance_.keys()
    new = data.drop(columns="y").head(5).assign(shop="Z")
    assert np.allclose(found.predict(new), expected.predict(new), atol=0.01)
    predicted = cavity.dask.predict(found, lazy.drop(columns="y")).compute()
    assert np.allclose(predicted, found.predict(data.drop(columns="y")))


def test_lists_of_delayed_blocks_one_of_them_without_rows():
    X, y = labelled()
    cuts = [slice(0, 100), slice(100, 100), slice(100, 350), slice(350, 600)]
    expected = cavity.EPClassifier().fit(X, y)
    rows, labels = ([dask.delayed(part[cut]) for cut in cuts] for part in (X, y))
    assert_same(cavity.dask.fit(cavity.EPClassifier(), rows, labels, join=False), expected)
    pairs = list(zip(rows, labels, strict=True))
    assert_same(cavity.dask.fit(cavity.EPClassifier(), pairs), expected)


def test_class_weights():
    X, y = labelled()
    for weight in ("balanced", {"no": 3.0, "yes": 1.0}):
        expected = cavity.EPClassifier(class_weight=weight, prior_variance=4.0).fit(X, y)
        model = cavity.EPClassifier(class_weight=weight, prior_variance=4.0)
        assert_same(cavity.dask.fit(model, chunked(X, 3), chunked(y, 3), join=False), expected)


def test_what_comes_back_is_a_plain_estimator():
    X, y = labelled()
    model = cavity.EPClassifier()
    assert cavity.dask.fit(model, chunked(X, 3), chunked(y, 3)) is model
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    merged = model.merge(cavity.EPClassifier().fit(*labelled(seed=1)))
    assert np.all(merged.coef_std_ < model.coef_std_)
    model.partial_fit(X[:50], y[:50])
    assert len(model.summary()) == 7


def test_predictions_are_lazy_and_by_partition():
    X, y = labelled()
    model, rows = cavity.EPClassifier().fit(X, y), chunked(X, 4)
    labels, probabilities = cavity.dask.predict(model, rows), cavity.dask.predict_proba(model, rows)
    assert isinstance(labels, da.Array)
    assert labels.chunks[0] == probabilities.chunks[0] == rows.chunks[0]
    assert np.array_equal(labels.compute(), model.predict(X))
    assert np.allclose(probabilities.compute(), model.predict_proba(X), rtol=1e-12)
    blocks = cavity.dask.predict(model, [dask.delayed(X[:9]), dask.delayed(X[9:])])
    assert np.array_equal(np.concatenate(dask.compute(*blocks)), model.predict(X))


def test_progress_is_shown_where_the_fit_was_called(capsys):
    X, y = labelled()
    cavity.dask.fit(cavity.EPClassifier(verbose=True), chunked(X, 2), chunked(y, 2))
    assert "loop" in capsys.readouterr().err


def test_small_partitions_are_joined_and_large_ones_are_not():
    rows = [10] * 1000
    parts = joined(rows, columns=10, threads=2)
    assert 4 <= len(parts) <= 8
    assert [k for part in parts for k in part] == list(range(1000))
    assert joined([10**6] * 5, columns=50, threads=2) == [range(k, k + 1) for k in range(5)]
    assert joined([600] * 10, columns=1000, threads=1) == [range(k, k + 2) for k in range(0, 10, 2)]
    assert joined([0, 0, 5], columns=3, threads=1) == [range(3)]
    assert joined([0, 0], columns=3, threads=1) == [range(2)]
    assert joined([5, 0, 0], columns=3, threads=1) == [range(3)]


def test_hashes_of_rows_do_not_depend_on_their_partitions():
    """Also where equal rows are one row of the sum of their weights in one partition, and several in others."""
    rng = np.random.default_rng(8)
    X, y, weights = rng.integers(0, 2, (300, 3)).astype(float), np.ones((1, 300)), rng.random(300)

    def hashes(count, weights):
        cuts = np.array_split(np.arange(300), count)
        return sum(_sum_of_hashes(Rows.arrange(X[i], y[:, i], weights[i], True)) for i in cuts)

    assert np.allclose(hashes(5, weights), hashes(1, weights), rtol=1e-12)
    other = weights.copy()
    other[7] += 0.001
    assert not np.allclose(hashes(1, other), hashes(1, weights), rtol=1e-6)


def test_a_fit_continues_from_its_checkpoint_in_other_partitions(tmp_path):
    X, y = labelled()
    expected = cavity.EPClassifier("hinge", prior_variance=4.0).fit(X, y)
    place = tmp_path / "run.ckpt"
    seen = []

    def stop_early(progress):
        seen.append(progress.loop)
        if progress.loop == 3:
            raise KeyboardInterrupt

    first = cavity.EPClassifier("hinge", prior_variance=4.0, verbose=stop_early)
    with pytest.raises(KeyboardInterrupt):
        cavity.dask.fit(first, chunked(X, 4), chunked(y, 4), join=False, checkpoint=place)
    again = cavity.EPClassifier("hinge", prior_variance=4.0, verbose=lambda progress: seen.append(progress.loop))
    found = cavity.dask.fit(again, chunked(X, 7), chunked(y, 7), join=False, checkpoint=place)
    assert_same(found, expected)
    assert seen[:5] == [0, 1, 2, 3, 0]
    assert 4 in seen
    assert 1 not in seen[5:]
    with pytest.raises(ValueError, match="belongs to another fit"):
        cavity.dask.fit(again, chunked(X[1:], 7), chunked(y[1:], 7), join=False, checkpoint=place)
