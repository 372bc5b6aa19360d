import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import gathered

from cavity.tables import open_reader


@pytest.mark.parametrize("batch_bytes", [1, 500, 1 << 23])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("form", ["<f8", ">f8", "<f4", "<f2", "i1", ">u4", "?"])
def test_reads_what_was_saved_whatever_the_batches(tmp_path, batch_bytes, order, form):
    path, rng = tmp_path / "t.npy", np.random.default_rng(0)
    X = np.asarray(rng.normal(size=(37, 5)) * 10, dtype=form, order=order)
    np.save(path, X)
    reader = open_reader(path, batch_bytes=batch_bytes)
    assert reader.kinds == dict.fromkeys("01234", "number")
    assert reader.size == path.stat().st_size
    assert len(list(reader.batches())) == -(-37 // max(1, batch_bytes // (8 * 5)))
    for _ in range(2):
        assert np.array_equal(gathered(reader).to_numpy(), X.astype(float))
    assert np.array_equal(gathered(reader, ["3", "1"]).to_numpy(), X[:, [1, 3]].astype(float))


def test_fields_are_columns(tmp_path):
    path = tmp_path / "t.npy"
    rows = np.array(
        [(1.5, 7, "é", b"x", 1 + 2j, (1, 2)), (np.nan, -7, "", b"yy", 0, (1, 2))],
        dtype=[("a", ">f8"), ("b", "i2"), ("w", "U3"), ("s", "S4"), ("z", "c16"), ("pair", "f8", 2)],
    )
    np.save(path, rows)
    reader = open_reader(path)
    assert list(reader.kinds.values()) == ["number", "number", "text", "text", "complex128", "('<f8', (2,))"]
    expected = {"a": [1.5, np.nan], "b": [7, -7], "w": ["é", None], "s": ["x", "yy"]}
    pd.testing.assert_frame_equal(gathered(reader, "abws"), pd.DataFrame(expected, dtype=object), check_dtype=False)
    for name in ("z", "pair"):
        with pytest.raises(ValueError, match=rf"t\.npy, column '{name}': .* is neither a number nor text; drop"):
            reader.batches([name])
    as_text = gathered(open_reader(path, text=["a", "b"]), ["a", "b"])
    assert as_text.to_numpy().tolist() == [["1.5", "7"], [None, "-7"]]


@pytest.mark.parametrize("batch_bytes", [1, 1 << 23])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_archive_of_rows_and_targets(tmp_path, batch_bytes, order):
    path, rng = tmp_path / "t.npz", np.random.default_rng(0)
    X, y = np.asarray(rng.normal(size=(23, 3)), order=order), rng.choice(["no", "yes"], 23)
    np.savez(path, X=X, y=y)
    reader = open_reader(path, batch_bytes=batch_bytes)
    assert reader.kinds == {"0": "number", "1": "number", "2": "number", "y": "text"}
    found = gathered(reader)
    assert np.array_equal(found[["0", "1", "2"]].to_numpy(float), X)
    assert found["y"].tolist() == y.tolist()
    assert list(gathered(reader, ["y"]).columns) == ["y"]
    np.savez(path, y=np.arange(23)[:, None], X=X)
    assert gathered(open_reader(path))["y"].tolist() == list(range(23))
    np.savez(path, X=X)
    assert list(open_reader(path).kinds) == ["0", "1", "2"]


def test_an_archive_with_other_content(tmp_path):
    path, X = tmp_path / "t.npz", np.zeros((4, 2))
    for arrays in ({"rows": X, "y": X[:, 0]}, {"X": X, "y": X[:, 0], "w": X[:, 0]}, {"y": X[:, 0]}):
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=r"t\.npz must hold the arrays 'X', rows and columns, and 'y'.*; got '"):
            open_reader(path)
    np.savez_compressed(path, X=X, y=X[:, 0])
    with pytest.raises(ValueError, match=r"t\.npz is compressed; write it by numpy\.savez"):
        open_reader(path)
    np.savez(path, X=X, y=np.zeros(3))
    with pytest.raises(ValueError, match=r"t\.npz: X and y must have the same number of rows, got"):
        open_reader(path)
    np.savez(path, X=X, y=X)
    with pytest.raises(ValueError, match=r"t\.npz: the array y must have one axis, got shape \(4, 2\) of float64"):
        open_reader(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"t\.npz cannot be read, it may be truncated or damaged: "):
        open_reader(path)


def test_arrays_of_other_forms(tmp_path):
    path = tmp_path / "t.npy"
    for array, message in [
        (np.zeros(3), r"rows must be an array of two axes, or of one axis and fields, got shape \(3,\) of float64"),
        (np.zeros((2, 2, 2)), r"must be an array of two axes"),
        (np.array([[1, None]], dtype=object), r"holds objects of Python, which are not opened"),
        (np.zeros(2, dtype=[("a", "O")]), r"holds objects of Python"),
        (np.zeros((0, 3)), r"has columns but no rows"),
        (np.zeros((3, 0)), r"has columns but no rows"),
    ]:
        np.save(path, array, allow_pickle=True)
        with pytest.raises(ValueError, match=r"t\.npy.* " + message):
            open_reader(path)


def test_invalid_text_names_row_and_column(tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, np.array([(b"a",), (b"b",), (b"\xff",)], dtype=[("w", "S2")]))
    with pytest.raises(ValueError, match=r"t\.npy, row 3, column 'w': text must be valid UTF-8") as caught:
        list(open_reader(path, batch_bytes=16).batches())
    assert type(caught.value) is ValueError


def test_a_truncated_file(tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, np.zeros((50, 4)))
    reader, content = open_reader(path, batch_bytes=64), path.read_bytes()
    for size in (3, 9, 60, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"t\.npy cannot be read, it may be truncated or damaged: "):
            open_reader(path)
    with pytest.raises(ValueError, match=r"damaged: "):
        list(reader.batches())


@given(st.data())
def test_a_damaged_header_is_an_error_or_another_array(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "t.npy"
    np.save(path, np.zeros((50, 4)))
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, 120), min_size=1, max_size=4)):
        content[place] = data.draw(st.sampled_from([*b"0123456789(),'{}<>fiUSV-: \n\x00\xff"]))
    path.write_bytes(content)
    message, rows = "", 1
    try:
        reader = open_reader(path)
        readable = [name for name, kind in reader.kinds.items() if kind in ("number", "text")]
        rows = len(gathered(reader, readable)) if readable else 1
    except ValueError as error:
        message = str(error)
    assert rows > 0
    assert not message or (str(path) in message and "\n" not in message)
