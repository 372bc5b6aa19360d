import bz2
import csv
import hashlib
from functools import cache
from importlib import resources
from math import sqrt

import numpy as np
import pytest

from cavity import datasets

SHAPES = {
    "haberman": (306, 4),
    "ionosphere": (351, 33),
    "breast_cancer": (569, 31),
    "bank": (45211, 43),
    "census": (32561, 101),
}
POSITIVES = {"haberman": 81, "ionosphere": 225, "breast_cancer": 212, "bank": 5289, "census": 7841}
# Written out again, so that an edit of the package's own table does not go unseen.
PUBLISHED = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "bank-full.csv": "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
    "haberman.data": "b4b7a32586a5668f9f4d6dc8be9d1bc8cd4822523affb1f6b5bfc350681ef3e2",
    "ionosphere.data": "46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd",
}
FILES = {
    "haberman": ("haberman.data", ",", "2"),
    "ionosphere": ("ionosphere.data", ",", "g"),
    "bank": ("bank-full.csv", ";", '"yes"'),
    "census": ("adult.data", ",", " >50K"),
}
ROUNDING = 1e-10


# What tests only read, they read once: decompressing and parsing the two large files takes a second each time.
loaded, designed = cache(datasets.load), cache(datasets.paper)


def shipped(filename):
    return (resources.files("cavity") / "data" / f"{filename}.bz2").read_bytes()


@cache
def unpacked(filename):
    return bz2.decompress(shipped(filename))


def raw_rows(name):
    filename, delimiter, positive = FILES[name]
    lines = unpacked(filename).decode().split("\n")
    rows = [line.split(delimiter) for line in lines if line]
    return (rows[1:] if name == "bank" else rows), positive


@pytest.fixture(params=datasets.NAMES)
def name(request):
    return request.param


@pytest.fixture
def data(name):
    return loaded(name)


@pytest.fixture(params=["norm", "std"])
def scale(request):
    return request.param


@pytest.fixture
def design(name, scale):
    return designed(name, scale)


def test_names_are_the_five_sets():
    assert datasets.NAMES == ("haberman", "ionosphere", "breast_cancer", "bank", "census")


@pytest.mark.parametrize("filename", PUBLISHED)
def test_shipped_file_is_the_uci_original(filename):
    assert hashlib.sha256(unpacked(filename)).hexdigest() == PUBLISHED[filename]


def test_checksums_are_those_that_uci_publishes():
    assert {source.filename: source.sha256 for source in datasets._SOURCES.values()} == PUBLISHED


def test_no_other_file_is_shipped():
    folder = resources.files("cavity") / "data"
    assert {entry.name for entry in folder.iterdir()} == {f"{filename}.bz2" for filename in PUBLISHED}


def test_labels_are_signs_with_the_known_count(name, data):
    assert data.name == name
    assert data.labels.dtype == np.float64
    assert set(data.labels) == {-1.0, 1.0}
    assert int((data.labels == 1.0).sum()) == POSITIVES[name]


def test_columns_are_float64_or_text_of_full_length(name, data):
    assert data.feature_names == tuple(data.features)
    kinds = [column.dtype.kind for column in data.features.values()]
    assert kinds.count("U") == {"bank": 9, "census": 8}.get(name, 0)
    assert kinds.count("f") == {"bank": 7, "census": 6, "ionosphere": 34}.get(name, len(kinds))
    for column in data.features.values():
        assert column.shape == (SHAPES[name][0],)
        assert column.dtype.kind == "U" or (column.dtype == np.float64 and np.isfinite(column).all())


@pytest.mark.parametrize("name", FILES, scope="module")
def test_every_value_and_label_is_that_of_its_line(name, data):
    rows, positive = raw_rows(name)
    *raw_columns, answers = zip(*rows, strict=True)
    np.testing.assert_array_equal(data.labels, [1.0 if answer == positive else -1.0 for answer in answers])
    for column, raw in zip(data.features.values(), raw_columns, strict=True):
        if column.dtype.kind == "U":
            assert column.tolist() == [field.strip('"') for field in raw]
        else:
            assert column.tolist() == [float(field) for field in raw]


def test_known_rows():
    census = loaded("census")
    first = [column[0] for column in census.features.values()]
    assert first[:4] == [39.0, " State-gov", 77516.0, " Bachelors"]
    assert first[-1] == " United-States"
    assert census.features["capital-gain"][-1] == 15024.0
    haberman = loaded("haberman").features
    assert [column[-1] for column in haberman.values()] == [83.0, 58.0, 2.0]
    bank = loaded("bank").features
    assert [bank[key][0] for key in ("age", "job", "balance", "month")] == [58.0, "management", 2143.0, "may"]
    cancer = loaded("breast_cancer")
    assert (cancer.features["mean radius"][0], cancer.labels[0]) == (17.99, 1.0)
    assert (cancer.features["mean radius"][-1], cancer.labels[-1]) == (7.76, -1.0)


def test_bank_names_are_those_of_the_header():
    header = unpacked("bank-full.csv").decode().split("\n")[0]
    [names] = csv.reader([header], delimiter=";")
    assert loaded("bank").feature_names == tuple(names[:-1])


def test_design_shape_and_layout(name, design, data):
    assert design.X.shape == SHAPES[name]
    assert design.X.dtype == np.float64
    assert design.X.flags.c_contiguous
    assert len(design.names) == len(set(design.names)) == SHAPES[name][1]
    assert design.names[-1] == "constant"
    np.testing.assert_array_equal(design.y, data.labels)


def test_columns_are_centred_and_of_equal_length(name, scale, design):
    n_rows = SHAPES[name][0]
    length = 1.0 if scale == "norm" else sqrt(n_rows)
    np.testing.assert_allclose(np.linalg.norm(design.X, axis=0), length, rtol=ROUNDING)
    np.testing.assert_allclose(design.X[:, :-1].mean(axis=0), 0.0, atol=ROUNDING)
    if scale == "std":
        np.testing.assert_allclose(design.X[:, :-1].std(axis=0), 1.0, rtol=ROUNDING)
        assert set(design.X[:, -1]) == {1.0}
    else:
        np.testing.assert_allclose(design.X[:, -1], 1.0 / sqrt(n_rows), rtol=ROUNDING)


def test_every_design_column_follows_its_raw_column(name, scale, design, data):
    for x, column_name in zip(design.X.T[:-1], design.names, strict=False):
        key, _, level = column_name.partition("=")
        raw = data.features[key]
        raw = np.array([field == level for field in raw], dtype=float) if level else raw
        centred = raw - raw.mean()
        expected = centred / (np.linalg.norm(centred) if scale == "norm" else raw.std())
        np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["bank", "census"], scope="module")
def test_first_level_as_text_and_no_other_is_dropped(name, design, data):
    for key, column in data.features.items():
        if column.dtype.kind == "U":
            levels = sorted(set(column.tolist()))
            present = [column_name for column_name in design.names if column_name.startswith(f"{key}=")]
            assert present == [f"{key}={level}" for level in levels[1:]]


def test_levels_keep_their_leading_space_and_the_question_mark_is_a_level():
    names = designed("census", "norm").names
    assert "workclass= Private" in names
    assert "workclass= ?" not in names  # the first level: the reference
    assert loaded("census").features["workclass"].tolist().count(" ?") == 1836
    assert "job=admin." not in designed("bank", "norm").names


def test_ionosphere_leaves_its_first_two_columns_out():
    raw = loaded("ionosphere")
    assert set(raw.features["Attribute2"]) == {0.0}
    assert designed("ionosphere", "norm").names == (*raw.feature_names[2:], "constant")


def test_loads_share_nothing():
    first = datasets.load("haberman")
    first.features["age"][:] = 0.0
    first.labels[:] = 0.0
    again = datasets.load("haberman")
    assert again.features["age"][0] == 30.0
    assert set(again.labels) == {-1.0, 1.0}


@pytest.mark.parametrize("function", [datasets.load, datasets.paper])
@pytest.mark.parametrize("wrong", ["adult", "", "Census"])
def test_unknown_name_is_refused_with_the_valid_ones(function, wrong):
    with pytest.raises(ValueError, match=r"name must be one of 'haberman'.*'census'; got") as caught:
        function(wrong)
    assert str(caught.value).endswith(f"got {wrong!r}")


def test_raw_columns_are_as_they_come(name, data):
    raw, scaled = datasets.paper(name, "raw"), designed(name, "std")
    assert raw.names == scaled.names
    assert np.all(raw.X[:, -1] == 1.0)
    for column, label in zip(raw.X.T, raw.names, strict=True):
        if label in data.features:
            assert np.array_equal(column, data.features[label])
        elif label != "constant":
            assert set(np.unique(column)) <= {0.0, 1.0}


def test_unknown_scale_is_refused_with_the_valid_ones():
    with pytest.raises(ValueError, match="scale must be one of 'norm', 'std', 'raw'; got 'minmax'"):
        datasets.paper("haberman", scale="minmax")


def flipped(original):
    middle = len(original) // 2
    return original[:middle] + bytes([original[middle] ^ 1]) + original[middle + 1 :]


DAMAGES = {
    "flipped byte": flipped,
    "flipped byte, valid archive": lambda packed: bz2.compress(flipped(bz2.decompress(packed)), 1),
    "truncated": lambda packed: packed[: len(packed) // 2],
    "truncated, valid archive": lambda packed: bz2.compress(bz2.decompress(packed)[:-1], 1),
    "empty": lambda packed: b"",
    "not an archive": lambda packed: b"<html>not found</html>",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", FILES, scope="module")
def test_damaged_file_is_refused(monkeypatch, tmp_path, name, damage):
    filename = FILES[name][0]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{filename}.bz2").write_bytes(damage(shipped(filename)))
    monkeypatch.setattr(datasets.resources, "files", lambda package: tmp_path)
    with pytest.raises(datasets.DataError, match=r"damaged.*reinstall") as caught:
        datasets.load(name)
    assert f"{filename}.bz2" in str(caught.value)


def test_missing_file_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.resources, "files", lambda package: tmp_path)
    with pytest.raises(datasets.DataError, match=r"haberman\.data\.bz2.*reinstall"):
        datasets.paper("haberman")


def test_checksum_is_verified_on_every_load(monkeypatch):
    datasets.load("haberman")
    source = datasets._SOURCES["haberman"]._replace(sha256="0" * 64)
    monkeypatch.setitem(datasets._SOURCES, "haberman", source)
    with pytest.raises(datasets.DataError, match="sha256"):
        datasets.load("haberman")


def test_data_error_is_a_runtime_error():
    assert issubclass(datasets.DataError, RuntimeError)
