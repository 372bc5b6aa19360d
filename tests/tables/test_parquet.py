import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_cases import gathered, small_table

from cavity.tables import Texts, open_reader
from cavity.tables.readers import texts_of


@pytest.mark.parametrize("batch_bytes", [1 << 9, 1 << 12, 1 << 23])
@pytest.mark.parametrize("group", [7, 64, 1000])
def test_reads_what_pandas_wrote_whatever_the_batches(tmp_path, batch_bytes, group):
    path, table = tmp_path / "t.parquet", small_table()
    table.to_parquet(path, row_group_size=group)
    reader = open_reader(path, batch_bytes=batch_bytes)
    assert reader.kinds == {"a": "number", "n": "number", "shop": "text", "yes": "number", "big": "number"}
    assert len(list(reader.batches())) >= max(200 // group, 200 * 8 * 5 // batch_bytes)
    for _ in range(2):
        pd.testing.assert_frame_equal(gathered(reader), table, check_dtype=False, check_exact=True)


def test_batches_are_bounded_also_where_texts_are_long(tmp_path):
    path = tmp_path / "t.pq"
    pq.write_table(pa.table({"x": np.zeros(4000), "words": [f"{i} " + "w" * 1000 for i in range(4000)]}), path)
    sizes = [batch.n_rows for batch in open_reader(path, batch_bytes=1 << 16).batches()]
    assert sum(sizes) == 4000
    assert max(sizes) * 1000 <= 1 << 16
    assert {batch.n_rows for batch in open_reader(path, batch_bytes=1 << 16).batches(["x"])} == {4000}


NUMBERS = {
    "int8": pa.array([1, None], pa.int8()),
    "uint64": pa.array([2**60, None], pa.uint64()),
    "rounded": pa.array([2**60 + 1, None], pa.int64()),
    "half": pa.array(np.array([1.5, np.nan], np.float16)),
    "single": pa.array([0.1, None], pa.float32()),
    "decimal": pa.array([1, None], pa.decimal128(10, 2)),
    "boolean": pa.array([True, None]),
    "nothing": pa.nulls(2),
}


def test_all_numbers_are_float64_and_nan_where_missing(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(NUMBERS), path)
    reader = open_reader(path)
    assert set(reader.kinds.values()) == {"number"}
    values = gathered(reader)
    assert list(values.loc[0][:-1]) == [1, 2**60, 2**60, 1.5, np.float32(0.1), 1, 1]
    assert values.loc[1].isna().all()
    assert values["nothing"].isna().all()


TEXTS = {
    "large": pa.array(["x", None], pa.large_string()),
    "view": pa.array(["x", None], pa.string_view()),
    "category": pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), ["x", "never"]),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_all_texts_are_codes_and_levels_that_occur(kind, tmp_path):
    path = tmp_path / "t.parquet"
    try:
        pq.write_table(pa.table({kind: TEXTS[kind]}), path)
    except pa.ArrowNotImplementedError:
        pytest.skip(f"this version of pyarrow writes no {TEXTS[kind].type}")
    batch = next(iter(open_reader(path).batches()))
    for column in batch.columns.values():
        assert isinstance(column, Texts)
        assert (column.codes.tolist(), column.levels) == ([0, -1], ["x"])


def test_a_dictionary_may_repeat_itself():
    array = pa.DictionaryArray.from_arrays(pa.array([3, 1, None, 2, 3]), ["never", "x", "x", "y"])
    codes, levels = texts_of(array)
    assert (codes.tolist(), levels) == ([1, 0, -1, 0, 1], ["x", "y"])


def test_other_types_are_refused_unless_left_out_or_read_as_text(tmp_path):
    path = tmp_path / "t.parquet"
    table = {"a": [1], "day": [datetime.date(2020, 1, 2)], "many": [[1, 2]], "inner": [{"x": 1}], "bytes": [b"abc"]}
    pq.write_table(pa.table(table), path)
    reader = open_reader(path, text=["bytes"])
    assert list(reader.kinds.values())[:2] == ["number", "date32[day]"]
    assert reader.kinds["bytes"] == "text"
    with pytest.raises(ValueError, match=r"t\.parquet, column 'day': dates are not numbers; convert them"):
        reader.batches(["day"])
    for name in ("many", "inner"):
        with pytest.raises(ValueError, match=rf"t\.parquet, column '{name}': .* is neither a number nor text; drop"):
            reader.batches([name])
    with pytest.raises(ValueError, match="column 'many': list"):
        open_reader(path, text=["many"]).batches(["many"])
    assert gathered(open_reader(path, text=["a", "day"]), ["a", "day"]).to_dict("list") == {
        "a": ["1"],
        "day": ["2020-01-02"],
    }


def test_a_column_name_with_a_dot_is_not_a_part_of_another(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.0], "a.b": [2.0], "c": [{"b": 3}]}), path)
    assert gathered(open_reader(path), ["a"]).to_dict("list") == {"a": [1]}
    assert gathered(open_reader(path), ["a.b"]).to_dict("list") == {"a.b": [2]}


@pytest.mark.parametrize("encoded", [False, True])
def test_invalid_text_names_row_and_column(tmp_path, encoded):
    path = tmp_path / "t.parquet"
    spoilt = pa.array([b"fine"] * 30 + [b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"a": np.zeros(31), "w": spoilt}), path, use_dictionary=encoded)
    with pytest.raises(ValueError, match=r"t\.parquet, row 31, column 'w': text must be valid UTF-8") as caught:
        list(open_reader(path, batch_bytes=256).batches())
    assert type(caught.value) is ValueError


def test_no_rows_and_two_columns_of_one_name(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": pa.array([], pa.float64())}), path)
    with pytest.raises(ValueError, match=r"t\.parquet has columns but no rows"):
        open_reader(path)
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(ValueError, match=r"t\.parquet, column 'a': two columns have this name"):
        open_reader(path)


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.999])
def test_a_truncated_file(tmp_path, kept):
    path = tmp_path / "t.parquet"
    small_table().to_parquet(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"t\.parquet cannot be read, it may be truncated or damaged: ") as caught:
        open_reader(path)
    assert "\n" not in str(caught.value)


def test_damaged_pages_and_no_parquet_at_all(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": np.random.default_rng(0).normal(size=2000)}), path, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[1000:1010] = bytes(10)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"t\.parquet cannot be read, it may be truncated or damaged: "):
        list(open_reader(path).batches())
    path.write_text("a,b\n1,2\n" * 10)
    with pytest.raises(ValueError, match=r"t\.parquet cannot be read, it may be truncated or damaged: "):
        open_reader(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"t\.parquet is empty"):
        open_reader(path)
