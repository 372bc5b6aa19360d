import gzip
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from table_cases import gathered, small_table

from cavity.tables import open_reader


@pytest.fixture
def written(tmp_path):
    def write(content, name="t.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize("batch_bytes", [1 << 12, 1 << 14, 1 << 23])
def test_reads_what_was_written_and_what_pandas_reads_whatever_the_batches(tmp_path, batch_bytes):
    path, table = tmp_path / "t.csv", small_table()
    table.to_csv(path, index=False)
    reader = open_reader(path, batch_bytes=batch_bytes)
    assert reader.kinds == {"a": "number", "n": "number", "shop": "text", "yes": "number", "big": "number"}
    assert reader.size == os.path.getsize(path)
    assert (len(list(reader.batches())) > 2) == (batch_bytes < 1 << 20)
    for _ in range(2):
        pd.testing.assert_frame_equal(gathered(reader), table, check_dtype=False, check_exact=True)
    pandas = pd.read_csv(path)
    assert list(pandas["shop"].isna()) == list(gathered(reader)["shop"].isna())
    pd.testing.assert_frame_equal(pandas.drop(columns="shop"), table.drop(columns="shop"), check_dtype=False)


def test_batches_are_bounded_and_many(written):
    path = written("x,y\n" + "0.25,1\n" * 20_000)
    sizes = [batch.n_rows for batch in open_reader(path, batch_bytes=1 << 14).batches()]
    assert sum(sizes) == 20_000
    assert max(sizes) * 2 * 8 <= 1 << 14


def test_only_the_columns_asked_for_are_read_in_the_order_of_the_file(written):
    path = written("a,b,c\n" + "1,2,3\n" * 3000 + "1,2,oops\n")
    reader = open_reader(path, batch_bytes=1 << 10)
    assert list(gathered(reader, ["b", "a"]).columns) == ["a", "b"]
    assert len(gathered(reader, {"b"})) == 3001


def test_columns_read_as_text(written):
    path = written('a,b\n007,x\n7,"y,\nz"\n,\n')
    reader = open_reader(path, text=["a"])
    assert reader.kinds == {"a": "text", "b": "text"}
    assert list(gathered(reader)["a"]) == ["007", "7", None]
    assert list(gathered(reader)["b"]) == ["x", "y,\nz", None]


def test_whole_numbers_may_turn_into_fractions_and_gaps_after_the_first_block(written):
    path = written("a,b\n" + "1,true\n" * 2000 + "0.5,false\n,\nNA,true\n")
    values = gathered(open_reader(path, batch_bytes=1 << 10))
    assert list(values["a"][-3:].fillna(-1)) == [0.5, -1, -1]
    assert list(values["b"][-3:].fillna(-1)) == [0, -1, 1]


def test_only_empty_text_is_missing_and_numbers_may_be_written_as_not_available(written):
    values = gathered(open_reader(written('a,b\n1,NA\nNA,x\nnull,""\n2,\nNaN,null\n')))
    assert list(values["a"].fillna(-1)) == [1, -1, -1, 2, -1]
    assert list(values["b"]) == ["NA", "x", None, None, "null"]


@pytest.mark.parametrize(("name", "mark"), [("t.csv", ","), ("t.csv", ";"), ("t.tsv", "\t"), ("t.txt", "|")])
def test_the_delimiter_is_found_in_the_header(written, name, mark):
    path = written(f'"a,b;c|d\t"{mark}b{mark}c\n1{mark}2{mark}3\n', name)
    assert list(gathered(open_reader(path)).loc[0]) == [1, 2, 3]
    assert list(open_reader(path, delimiter="#").kinds) != list(open_reader(path).kinds)


@pytest.mark.parametrize(
    "content",
    [b"a,b\r\n1,2\r\n3,4\r\n", b"\xef\xbb\xbfa,b\n1,2\n3,4", b"\n\na,b\n1,2\n\n3,4\n\n", b'"a","b"\n"1","2"\n3,4\n'],
    ids=["crlf", "byte order mark", "blank lines", "quotes"],
)
def test_forms_of_csv(written, content):
    for path in (written(content), written(gzip.compress(content), "t.csv.gz"), written(content, "T.CSV")):
        assert gathered(open_reader(path)).to_dict("list") == {"a": [1, 3], "b": [2, 4]}


def test_a_last_row_may_have_lines(written):
    for end in ('"two\nlines"', '"two\nlines"\n', '"two\nlines\n"', '"two\nlines\n"\n'):
        assert len(gathered(open_reader(written(f"a,b\n1,x\n1,{end}")))) == 2


def test_a_header_longer_than_a_block(written):
    names = [f"column{i}" for i in range(3000)]
    path = written(",".join(names) + "\n" + (",".join(["1"] * 3000) + "\n") * 5)
    assert gathered(open_reader(path, batch_bytes=1 << 10)).shape == (5, 3000)


ROWS = "1,x\n" * 2000
PLAIN = {
    "empty": ("", "t.csv is empty"),
    "blank": ("\n\n", "t.csv is empty"),
    "header only": ("a,b\n", "t.csv has columns but no rows; it must have at least one"),
    "two of one name": ("a,b,a\n1,2,3\n", "t.csv, column 'a': two columns have this name; rename one of them"),
    "too long": ("a,b\n1,2\n1,2,3\n", "t.csv, row 2: the row is too long: 3 fields for 2 columns, '1,2,3'"),
    "too short": ("a,b\n1,2\n\n1\n", "t.csv, row 2: the row is too short: 1 fields for 2 columns, '1'"),
    "too long later": (f"a,b\n{ROWS}\n1,2,3\n", "row 2001: the row is too long: 3 fields for 2 columns, '1,2,3'"),
    "text later": (
        f"a,b\n{ROWS}1.2.3,x\n",
        "t.csv, row 2001, column 'a': '1.2.3' is not a number, as in the first rows; "
        "correct it, or read the column as text (text=['a']; of tables categories=['a'], --category a)",
    ),
    "no truth later": ("b\n" + "true\n" * 2000 + "maybe\n", "row 2001, column 'b': 'maybe' is not true or false"),
    "bytes": (b"a,b\n1,x\n2,\xff\n", "t.csv, row 2, column 'b': text must be valid UTF-8; convert the file to it"),
    "bytes later": (f"a,b\n{ROWS}".encode() + b"1,\xff\n", "row 2001, column 'b': text must be valid UTF-8"),
    "bytes in the header": (b"a,\xff\n1,2\n", "t.csv: the header must be valid UTF-8; convert the file to it"),
    "open quote": (f'a,b\n1,"x\n{ROWS}', "t.csv: a row is very long, perhaps for a quote that is not closed"),
    "open quote in a short file": (
        'a,b\n1,x\n1,"y\n1,z\n',
        "t.csv, row 2, column 'b': the quote before 'y 1,z' is not closed",
    ),
    "date": (
        "a,b\n1,2020-02-02\n",
        "t.csv, column 'b': dates are not numbers; convert them in all files, for example to days since 1970 by "
        "pandas: frame['b'] = (pandas.to_datetime(frame['b'], utc=True) - pandas.Timestamp(0, tz='UTC')) / "
        "pandas.Timedelta(days=1); or drop the column (drop=['b'], --drop b); or make every date a category "
        "(categories=['b'], --category b)",
    ),
}


@pytest.mark.parametrize("case", PLAIN)
def test_a_bad_file_is_an_error_of_one_line_that_says_where(written, case):
    content, message = PLAIN[case]
    path = written(content)
    with pytest.raises(ValueError, match=r".") as caught:
        list(open_reader(path, batch_bytes=1 << 10).batches())
    assert type(caught.value) is ValueError
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_cannot_be_read_may_be_left_or_read_as_text(written):
    path = written("a,b\n1,2020-02-02\n")
    assert open_reader(path).kinds == {"a": "number", "b": "date32[day]"}
    assert list(gathered(open_reader(path), ["a"])["a"]) == [1]
    assert list(gathered(open_reader(path, text=["b"]))["b"]) == ["2020-02-02"]


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b[:20], lambda b: b"no" + b, lambda b: b[:50]])
def test_a_damaged_archive(written, damage):
    path = written(damage(gzip.compress(f"a,b\n{np.arange(50_000)}".encode() + os.urandom(500))), "t.csv.gz")
    with pytest.raises(ValueError, match=r"t\.csv\.gz cannot be read, it may be truncated or damaged"):
        list(open_reader(path).batches())


def test_paths_that_cannot_be_opened(tmp_path, written):
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        open_reader(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(IsADirectoryError, match=r"folder\.csv"):
        open_reader(tmp_path / "folder.csv")
    with pytest.raises(NotADirectoryError, match=r"x\.csv"):
        open_reader(written("a\n1\n") / "x.csv")
    (tmp_path / "null.csv").symlink_to(os.devnull)
    with pytest.raises(ValueError, match=r"null\.csv is not a regular file"):
        open_reader(tmp_path / "null.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_path_without_permission(written):
    path = written("a\n1\n")
    path.chmod(0)
    with pytest.raises(PermissionError, match=r"t\.csv"):
        open_reader(path)


def test_arguments_that_do_not_fit(written):
    path = written("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"t\.csv has no column 'c'; it has 'a', 'b'"):
        open_reader(path, text=["c"])
    with pytest.raises(ValueError, match=r"t\.csv has no column 'c'; it has 'a', 'b'"):
        open_reader(path).batches(["c"])
    with pytest.raises(ValueError, match=r"name at least one column"):
        open_reader(path).batches([])
    with pytest.raises(ValueError, match=r"delimiter must be one character, got '::'"):
        open_reader(path, delimiter="::")
    with pytest.raises(ValueError, match=r"suffix must be one of .*, got '\.xlsx'"):
        open_reader(written("", "t.xlsx"))


def test_cavity_does_without_arrow_and_a_file_names_the_extra_that_brings_it(written):
    path = written("a,b\n1,2\n")
    program = f"""
import sys
import cavity
assert "pyarrow" not in sys.modules
sys.modules["pyarrow"] = None
import cavity.tables
try:
    cavity.tables.open_reader({str(path)!r})
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "files of tables need pyarrow: pip install pyarrow\n"
