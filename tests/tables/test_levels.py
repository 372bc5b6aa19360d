"""A level is one level whatever type its column has: 5, 5.0, "5" and "5.0", in tables and DataFrames; so are labels."""

import numpy as np
import pytest

from cavity import EPClassifier, EPRegressor
from cavity.estimators.columns import level_order, level_text
from cavity.tables import Table, open_reader

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

IDS = (2, 5, 10, 700)
FORMS = {
    "integers": lambda ids: ids,
    "floats": lambda ids: ids.astype(float),
    "strings": lambda ids: ids.astype(str).astype(object),
    "strings of floats": lambda ids: ids.astype(float).astype(str).astype(object),
    "objects": lambda ids: np.where(np.arange(ids.size) % 2, ids.astype(object), ids.astype(str).astype(object)),
    "categories": lambda ids: pd.Categorical(ids),
    "categories of strings": lambda ids: pd.Categorical(ids.astype(str)),
    "categories of floats": lambda ids: pd.Categorical(ids.astype(float)),
}


def rows(form="integers", n=400, seed=0):
    rng = np.random.default_rng(seed)
    ids, x = rng.choice(IDS, n), rng.normal(size=n)
    y = x + np.log(ids) + 0.1 * rng.normal(size=n)
    return pd.DataFrame({"x": x, "id": FORMS[form](ids)}), y


def write(path, frame, y):
    data = frame.assign(y=y)
    data.to_parquet(path) if path.suffix == ".parquet" else data.to_csv(path, index=False)
    return Table(path, target="y", categories=["id"])


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The same rows in files, with ids that are integers or floats."""
    folder, found = tmp_path_factory.mktemp("ids"), {}
    for form in ("integers", "floats", "strings"):
        for suffix in (".parquet", ".csv"):
            found[form + suffix] = write(folder / f"{form}{suffix}", *rows(form))
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "kind", ["integers.parquet", "floats.parquet", "integers.csv", "floats.csv", "strings.parquet"]
)
def test_a_model_of_a_table_knows_the_levels_of_a_dataframe(tables, kind, form):
    model = EPRegressor().fit(tables[kind])
    assert model.categories_ == {"id": ["2", "5", "10", "700"]}
    assert model.score(*rows(form, seed=1)) > 0.9


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("integers", "floats")])
def test_a_model_of_a_dataframe_knows_the_levels_of_tables_and_of_other_types(tables, form):
    model = EPRegressor().fit(*rows(form))
    assert model.categories_ == {"id": ["2", "5", "10", "700"]}
    for table in tables.values():
        assert model.score(table) == pytest.approx(model.score(*rows(form)))
    for other in FORMS:
        assert model.score(*rows(other, seed=1)) > 0.9


def test_a_model_of_a_table_knows_the_levels_of_polars(tables):
    pl = pytest.importorskip("polars")
    model, frame = EPRegressor().fit(tables["integers.csv"]), rows("integers", seed=1)[0]
    for kind in (pl.Int32, pl.Float64, pl.String):
        given = pl.DataFrame({"id": frame["id"].to_numpy(), "x": frame["x"].to_numpy()})
        np.testing.assert_array_equal(model.predict(given.cast({"id": kind})), model.predict(frame))


def test_calls_of_a_stream_may_have_other_types():
    model = EPRegressor()
    for k, form in enumerate(("strings", "integers", "floats", "categories", "strings of floats")):
        model.partial_fit(*rows(form, seed=k))
    assert model.score(*rows("integers", seed=9)) > 0.9


def test_models_of_levels_of_other_types_merge(tables):
    models = [EPRegressor().fit(*rows(form)) for form in ("strings", "categories")]
    both = models[0].merge(models[1]).merge(EPRegressor().fit(*rows("categories of strings")))
    assert both.score(*rows("integers", seed=9)) > 0.9
    of_tables = [EPRegressor().fit(tables[kind]) for kind in ("integers.parquet", "floats.csv")]
    assert of_tables[0].merge(of_tables[1]).score(*rows("strings", seed=9)) > 0.9


def test_numbers_of_levels_that_are_no_whole_numbers_and_other_text_stay_apart():
    texts = ["05", "5", "2.5", "5.00", "1.10", "True", "a.0", "-7"]
    assert [level_text(text) for text in texts] == texts
    assert [level_text(level) for level in (5, 5.0, "5.0", np.float32(5), np.int8(5), -0.0)] == ["5"] * 5 + ["0"]
    assert level_text(2**60 + 1) == str(2**60 + 1)
    assert sorted(["b", "10", "2", "nan", "a", "-1.5"], key=level_order) == ["-1.5", "2", "10", "a", "b", "nan"]


def test_truth_values_are_levels_in_files_and_dataframes(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=200), "id": rng.random(200) < 0.5})
    y = 3.0 * frame["id"] + 0.1 * rng.normal(size=200)
    for suffix in (".parquet", ".csv"):
        model = EPRegressor().fit(write(tmp_path / f"flags{suffix}", frame, y))
        assert model.categories_ == {"id": ["False", "True"]}
        assert model.score(frame, y) > 0.9


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npy"])
def test_integer_labels_beyond_double_precision_stay_distinct(tmp_path, suffix):
    labels = 2**53 + np.arange(4)
    rng = np.random.default_rng(0)
    k = rng.integers(4, size=300)
    frame = pd.DataFrame({"a": (k % 2) + 0.1 * rng.normal(size=300), "b": k // 2 + 0.1 * rng.normal(size=300)})
    frame["y"] = labels[k]
    path = tmp_path / f"labels{suffix}"
    if suffix == ".npy":
        np.save(path, frame.to_records(index=False))
    else:
        frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    table = Table(path, target="y")
    model = EPClassifier().fit(table)
    assert model.classes_.dtype == np.int64
    assert model.classes_.tolist() == labels.tolist()
    assert model.score(table) > 0.95
    assert model.score(frame[["a", "b"]], frame["y"]) == model.score(table)
    assert EPClassifier().fit(frame[["a", "b"]], frame["y"]).classes_.tolist() == labels.tolist()


def test_a_fraction_below_labels_that_are_whole_numbers_is_named(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("x,y\n" + "1,0\n2,1\n" * 400 + "3,0.5\n")
    with pytest.raises(ValueError, match=r"row 801, column 'y': '0.5' is not a whole number"):
        list(open_reader(path, exact=["y"], batch_bytes=64).batches())
