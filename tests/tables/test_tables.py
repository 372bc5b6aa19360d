"""Fits from files: the same posterior as from arrays, whatever the format, the order of rows and the memory allowed."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cavity import EPClassifier, EPRegressor, load, save
from cavity.estimators.parameters import plan_fit
from cavity.tables import Table
from cavity.tables.rows import PreparedFile

# Means in standard deviations, and ratios of deviations: twice the tolerance of a fit at most.
SAME = 0.01
NUMBERS = ["a", "b", "c"]
FEATURES = [*NUMBERS, "kind"]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    n = 700
    found = pd.DataFrame({"a": rng.normal(size=n).round(1), "b": 5.0 + 10.0 * rng.normal(size=n).round(), "c": 0.0})
    found["c"] = rng.integers(0, 3, n) * 0.01
    found["kind"] = rng.choice(["x", "y", "z", "ä"], n)
    predictor = found["a"] - 0.03 * found["b"] + (found["kind"] == "y") - 0.5
    found["label"] = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-predictor)), "yes", "no")
    found["three"] = rng.integers(0, 3, n) + (found["a"] > 1.0)
    found["target"] = 100.0 + 3.0 * (predictor + rng.standard_t(5, size=n))
    found["count"] = rng.poisson(np.exp(0.5 * np.clip(predictor, -2.0, 2.0)))
    found["weight"] = rng.integers(0, 3, n)
    found["known"] = rng.normal(size=n)
    return found


@pytest.fixture(scope="module")
def files(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    frame.to_csv(folder / "whole.csv", index=False)
    frame.to_parquet(folder / "whole.parquet")
    frame.sort_values("label").to_csv(folder / "sorted.csv", index=False)
    for k in range(3):
        frame.iloc[k::3].to_parquet(folder / f"part{k}.parquet")
    return {
        "csv": folder / "whole.csv",
        "parquet": folder / "whole.parquet",
        "sorted": folder / "sorted.csv",
        "parts": [folder / f"part{k}.parquet" for k in range(3)],
    }


def table_of(paths, target, **options):
    others = [name for name in ("label", "three", "target", "count", "weight", "known") if name != target]
    used = {options.get("weight"), options.get("offset")}
    return Table(paths, target=target, drop=[name for name in others if name not in used], **options)


def assert_same(one, other):
    for p, q in zip(one.posterior_, other.posterior_, strict=True):
        std = np.sqrt(q.variance)
        assert np.max(np.abs(p.mean - q.mean) / std) < SAME
        assert np.max(np.abs(np.sqrt(p.variance) / std - 1.0)) < SAME


MODELS = {
    "logistic": (lambda: EPClassifier(), "label"),
    "hinge": (lambda: EPClassifier("hinge", class_weight="balanced"), "label"),
    "softmax": (lambda: EPClassifier(), "three"),
    "one against the rest": (lambda: EPClassifier("hinge", prior_variance=1.0), "three"),
    "squared": (lambda: EPRegressor(), "target"),
    "absolute": (lambda: EPRegressor(loss="absolute"), "target"),
    "linear spread": (lambda: EPRegressor(loss="normal", scale="linear"), "target"),
    "poisson": (lambda: EPRegressor(loss="poisson"), "count"),
    "negative binomial": (lambda: EPRegressor(loss="negative_binomial"), "count"),
}


@pytest.mark.parametrize("memory", [1 << 28, 0], ids=["in memory", "from the spool"])
@pytest.mark.parametrize("name", MODELS)
def test_a_table_gives_the_posterior_of_its_array(name, memory, frame, files):
    make, target = MODELS[name]
    expected = make().fit(frame[FEATURES], frame[target], sample_weight=frame["weight"])
    found = make().fit(table_of(files["csv"], target, weight="weight", memory=memory))
    assert_same(found, expected)
    assert found.log_evidence_ == pytest.approx(expected.log_evidence_, abs=0.05)
    assert found.n_features_in_ == 4
    assert found.feature_names_in_.tolist() == FEATURES


@pytest.mark.parametrize("memory", [1 << 28, 0])
@pytest.mark.parametrize("form", ["parquet", "sorted", "parts"])
def test_neither_format_nor_order_nor_cutting_matters(form, memory, files):
    expected = EPClassifier().fit(table_of(files["csv"], "label", memory=memory))
    found = EPClassifier().fit(table_of(files[form], "label", memory=memory))
    assert_same(found, expected)


@pytest.mark.parametrize("memory", [1 << 28, 0])
def test_offsets_are_known_parts_of_the_predictor(memory, frame, files):
    expected = EPRegressor(loss="poisson").fit(frame[FEATURES], frame["count"], offset=frame["known"])
    table = table_of(files["csv"], "count", offset="known", memory=memory)
    found = EPRegressor(loss="poisson").fit(table)
    assert_same(found, expected)
    rates = np.concatenate(list(found.predict(table)))
    np.testing.assert_allclose(rates, expected.predict(frame[FEATURES], offset=frame["known"]), rtol=0.02)


def test_predictions_come_block_by_block_in_the_order_of_the_file(frame, files):
    table = table_of(files["csv"], "label")
    model = EPClassifier().fit(table)
    blocks = model.predict_proba(table)
    assert iter(blocks) is blocks
    found = np.concatenate(list(blocks))
    np.testing.assert_allclose(found, model.predict_proba(frame[FEATURES]), atol=1e-12)
    labels = np.concatenate(list(model.predict(Table(files["csv"], drop=["label"]))))
    assert model.score(table) == pytest.approx(np.mean(labels == frame["label"]))
    assert EPRegressor().fit(table_of(files["csv"], "target")).score(table_of(files["csv"], "target")) > 0.3


def test_a_new_level_has_the_spread_of_the_prior(frame, files, tmp_path):
    model = EPRegressor().fit(table_of(files["csv"], "target"))
    new = frame[FEATURES].iloc[:5].assign(kind="never seen")
    new.to_csv(tmp_path / "new.csv", index=False)
    (found,) = model.predict(Table(tmp_path / "new.csv"), return_std=True)
    for one, other in zip(found, model.predict(new, return_std=True), strict=True):
        np.testing.assert_allclose(one, other)
    assert np.all(found[1] > model.predict(frame[FEATURES].iloc[:5], return_std=True)[1])


def test_numbers_may_stand_for_categories(frame, files):
    model = EPClassifier().fit(table_of(files["csv"], "label", categories=["c"]))
    assert list(model.categories_) == ["c", "kind"]
    assert set(model.prior_variance_) == {"features", "c", "kind"}


@pytest.mark.parametrize("max_iter", [100, 1])
def test_groups_of_columns_have_prior_variances_of_their_own(max_iter, frame, files):
    model = EPClassifier(max_iter=max_iter, prior_groups={"first": ["a"], "others": ["b", "c"]})
    model.fit(table_of(files["csv"], "label"))
    assert set(model.prior_variance_) == {"first", "others", "kind"}
    expected = EPClassifier(max_iter=max_iter, prior_groups=model.prior_groups).fit(frame[FEATURES], frame["label"])
    assert_same(model, expected)


@pytest.mark.parametrize("memory", [1 << 28, 0])
def test_missing_numbers_are_filled_and_marked_if_asked(memory, frame, tmp_path):
    holes = frame[[*FEATURES, "label"]].copy()
    holes.loc[::7, "b"] = np.nan
    holes.to_csv(tmp_path / "holes.csv", index=False)
    with pytest.raises(ValueError, match=r"holes\.csv, row 1, column 'b': the number is missing.*missing='mean'"):
        EPClassifier().fit(Table(tmp_path / "holes.csv", target="label"))
    model = EPClassifier().fit(Table(tmp_path / "holes.csv", target="label", missing="mean", memory=memory))
    assert model.feature_names_in_.tolist() == [*NUMBERS, "b (missing)", "kind"]
    filled = holes.assign(**{"b (missing)": holes["b"].isna().astype(float)})
    filled["b"] = filled["b"].fillna(filled["b"].mean())
    assert_same(model, EPClassifier().fit(filled[model.feature_names_in_], holes["label"]))
    assert np.isfinite(model.predict_proba(holes[FEATURES])).all()


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npy"])
def test_text_that_is_no_category_is_an_error_unless_it_is_declared(suffix, tmp_path):
    rng = np.random.default_rng(0)
    size, name = rng.integers(0, 40, 300).astype(str).astype(object), [f"id {k}" for k in range(300)]
    size[[7, 70]] = "many", "NA"
    found = pd.DataFrame({"x": rng.normal(size=300), "size": size, "name": name, "y": rng.choice(["a", "b"], 300)})
    path = tmp_path / f"t.{suffix}"
    if suffix == "npy":
        types = {"size": "U4", "name": "U6", "y": "U1"}
        np.save(path, found.to_records(index=False, column_dtypes=types).view(np.ndarray))
    else:
        found.to_csv(path, index=False) if suffix == "csv" else found.to_parquet(path)
    with pytest.raises(ValueError, match=r"row 8, column 'size': 'many' is not a number, but 298 of 299 cells"):
        EPClassifier().fit(Table(path, target="y", drop=["name"]))
    with pytest.raises(ValueError, match=r"column 'name': 300 different texts in 300 rows.*drop=\['name'\]"):
        EPClassifier().fit(Table(path, target="y", drop=["size"]))
    with pytest.raises(ValueError, match=r"row 8, column 'size': 'many' is not a number"):
        EPClassifier().fit(Table(path, target="size", drop=["name", "y"]))
    with pytest.raises(ValueError, match=r"row 8, column 'size': targets must be numbers.*, got 'many'"):
        EPRegressor().fit(Table(path, target="size", drop=["name", "y"]))
    with pytest.raises(ValueError, match=r"row 8, column 'size': offset must be a number, got 'many'"):
        EPClassifier().fit(Table(path, target="y", offset="size", drop=["name"]))
    model = EPClassifier().fit(Table(path, target="y", categories=["size", "name"]))
    assert {name: len(levels) for name, levels in model.categories_.items()} == {"size": 42, "name": 300}


def test_a_target_that_is_declared_has_labels_of_text(tmp_path):
    found = pd.DataFrame({"x": np.arange(60.0), "y": ["1", "2", "2 or more"] * 20})
    found.to_csv(tmp_path / "t.csv", index=False)
    table = Table(tmp_path / "t.csv", target="y", categories=["y"])
    model = EPClassifier().fit(table)
    assert model.classes_.tolist() == ["1", "2", "2 or more"]
    assert model.score(table) == pytest.approx(model.score(found[["x"]], found["y"]))


def test_a_word_in_one_of_several_files_is_named(frame, tmp_path):
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.astype({"b": object}).replace({"b": {frame["b"][9]: "ten"}}).to_csv(tmp_path / "b.csv", index=False)
    row = int(np.argmax(frame["b"] == frame["b"][9])) + 1
    for files in (["a.csv", "b.csv"], ["b.csv", "a.csv"]):
        with pytest.raises(ValueError, match=rf"b\.csv, row {row}, column 'b': must be a number as in .*a\.csv.*'ten'"):
            EPClassifier().fit(table_of([tmp_path / name for name in files], "label"))


def test_few_rows_may_have_a_level_each(tmp_path):
    found = pd.DataFrame({"who": [f"p{k}" for k in range(20)], "y": ["a", "b"] * 10})
    found.to_csv(tmp_path / "t.csv", index=False)
    assert len(EPClassifier().fit(Table(tmp_path / "t.csv", target="y")).categories_["who"]) == 20


@pytest.mark.parametrize("memory", [1 << 28, 0])
def test_missing_text_is_a_level_of_its_own_if_asked(memory, frame, tmp_path):
    holes = frame[[*FEATURES, "label"]].copy()
    holes.loc[::7, "kind"] = None
    holes.to_csv(tmp_path / "holes.csv", index=False)
    with pytest.raises(ValueError, match=r"holes\.csv, row 1, column 'kind': the value is missing.*missing='mean'"):
        EPClassifier().fit(Table(tmp_path / "holes.csv", target="label"))
    model = EPClassifier().fit(Table(tmp_path / "holes.csv", target="label", missing="mean", memory=memory))
    filled = holes.assign(kind=holes["kind"].fillna("(missing)"))
    assert_same(model, EPClassifier().fit(filled[FEATURES], filled["label"]))
    found = np.concatenate(list(model.predict_proba(Table(tmp_path / "holes.csv"))))
    np.testing.assert_allclose(found, model.predict_proba(filled[FEATURES]), atol=1e-12)


def test_a_model_file_holds_the_preprocessing(frame, files, tmp_path):
    model = EPClassifier().fit(table_of(files["csv"], "label"))
    save(model, tmp_path / "model.cavity")
    again = load(tmp_path / "model.cavity")
    np.testing.assert_array_equal(again.predict_proba(frame[FEATURES]), model.predict_proba(frame[FEATURES]))
    assert again.preprocessing_["numbers"] == NUMBERS
    design = replace(model._fitted.design, preprocessing={**model.preprocessing_, "filled": NUMBERS})
    model._state = model._fitted.revised(design=design)
    save(model, tmp_path / "forged.cavity")
    with pytest.raises(ValueError, match="its preprocessing makes 7 columns, and it has 4"):
        load(tmp_path / "forged.cavity")


def test_rows_of_a_table_can_be_taken_in_as_a_stream(frame, files):
    model = EPClassifier(prior_variance=1.0).fit(table_of(files["parts"][0], "label"))
    expected = EPClassifier(prior_variance=1.0)
    for k in (0, 1):
        more = frame.iloc[k::3]
        features = model._fitted.design.matrix(model, more[FEATURES])
        expected.partial_fit(features, more["label"], classes=["no", "yes"])
        if k == 1:
            model.partial_fit(more[FEATURES], more["label"])
    # Sites of the first rows were fitted by a table and by a stream, to 0.01 and 0.02 standard deviations.
    numbers = slice(0, 3)
    assert np.max(np.abs(model.coef_ - expected.coef_)[0, numbers] / expected.coef_std_[0, numbers]) < 0.1


def test_a_single_pass_keeps_correlations(files):
    model = EPClassifier(max_iter=1).fit(table_of(files["csv"], "label", memory=0))
    assert model.status_.name == "SINGLE_PASS"
    assert model.plan_.covariance == "full"
    assert model.score(table_of(files["csv"], "label")) > 0.6


def test_many_levels_keep_their_correlations_from_the_spool(tmp_path):
    rng = np.random.default_rng(2)
    rows = pd.DataFrame({"x": rng.normal(size=3000), "shop": rng.integers(0, 300, 3000).astype(str)})
    rows["y"] = rows["x"] + rng.normal(size=300)[rows["shop"].astype(int)] + rng.normal(size=3000)
    rows.to_parquet(tmp_path / "shops.parquet")
    found = EPRegressor().fit(Table(tmp_path / "shops.parquet", target="y", categories=["shop"], memory=0))
    assert found.plan_.covariance == "sparse"
    assert_same(found, EPRegressor().fit(rows[["x", "shop"]], rows["y"]))


def test_a_fit_to_arrays_forgets_the_table(frame, files):
    model = EPClassifier().fit(table_of(files["csv"], "label"))
    model.fit(frame[NUMBERS].to_numpy(), frame["label"])
    assert not hasattr(model, "preprocessing_")
    with pytest.raises(ValueError, match="fitted to arrays"):
        model.predict(table_of(files["csv"], "label"))


BAD = {
    "no target": (lambda p: Table(p), "needs target="),
    "unknown target": (lambda p: Table(p, target="nope"), "has no column 'nope'"),
    "two roles": (lambda p: Table(p, target="label", weight="label"), "two roles"),
    "text as weight": (lambda p: Table(p, target="label", weight="kind"), "must be a number"),
    "negative weights": (lambda p: Table(p, target="label", weight="known"), r"row \d+, column 'known'.*negative"),
    "no files": (lambda p: Table([]), "at least one file"),
    "columns as a string": (lambda p: Table(p, target="label", drop="three"), "must be a list"),
    "memory": (lambda p: Table(p, target="label", memory=-1), "memory must be"),
    "missing": (lambda p: Table(p, target="label", missing="zero"), "missing must be"),
    "nothing left": (
        lambda p: Table(p, target="label", drop=["three", "target", "count", "weight", "known", *FEATURES]),
        "no column of features",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_say_what_is_wrong(case, files):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        EPClassifier().fit(make(files["csv"]))


def test_bad_targets_say_what_is_wrong(frame, files, tmp_path):
    with pytest.raises(ValueError, match="targets must be numbers"):
        EPRegressor().fit(table_of(files["csv"], "label"))
    with pytest.raises(ValueError, match="EPRegressor"):
        EPClassifier().fit(table_of(files["csv"], "known"))
    with pytest.raises(ValueError, match="pass the table alone"):
        EPClassifier().fit(table_of(files["csv"], "label"), frame["label"])
    frame[frame["label"] == "no"].to_csv(tmp_path / "one.csv", index=False)
    with pytest.raises(ValueError, match="all labels are"):
        EPClassifier().fit(table_of(tmp_path / "one.csv", "label"))
    frame.drop(columns="b").to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(ValueError, match=r"less\.csv has no column 'b', which .*whole\.csv has"):
        EPClassifier().fit(table_of([files["csv"], tmp_path / "less.csv"], "label"))
    with pytest.raises(ValueError, match=r"less\.csv has no column 'b', which the model needs"):
        list(EPClassifier().fit(table_of(files["csv"], "label")).predict(Table(tmp_path / "less.csv")))


def test_many_rows_of_a_file_keep_all_correlations():
    """Five gigabytes of 72 columns: to read them takes minutes, and a fit may take more of them."""
    table = type("Rows", (), {"shape": (28_000_000, 72), "density": 0.3})()
    plan, _ = plan_fit(PreparedFile(table), "auto")
    assert plan.covariance == "full"
