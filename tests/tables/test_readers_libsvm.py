import gzip
import io
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from cavity.kernels._libsvm import Fault, parse_lines
from cavity.tables import open_reader


@pytest.fixture
def written(tmp_path):
    def write(content, name="t.svm"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def gathered_rows(reader, width=None):
    """All batches as one CSR array and labels."""
    parts, labels, following = [], [], 1
    for batch in reader.batches():
        assert batch.first == following
        following += batch.n_rows
        assert list(batch.columns) == ["target"]
        assert batch.rows.shape[0] == batch.n_rows
        assert batch.rows.dtype == np.float64
        batch.rows.check_format(full_check=True)
        labels.append(batch.columns["target"])
        parts.append(batch.rows)
    width = width or max(part.shape[1] for part in parts)
    for part in parts:
        part.resize(part.shape[0], width)
    return sparse.vstack(parts, format="csr"), np.concatenate(labels)


@pytest.mark.parametrize("batch_bytes", [1, 64, 4096, 1 << 23])
@pytest.mark.parametrize("zero_based", [False, True])
def test_reads_what_scikit_learn_reads_whatever_the_batches(tmp_path, batch_bytes, zero_based):
    path, rng = tmp_path / "t.svm", np.random.default_rng(0)
    X = rng.normal(size=(120, 40)) * 10.0 ** rng.integers(-20, 20, (120, 40)) * (rng.random((120, 40)) < 0.2)
    X[0, 0] = 1.0
    dump_svmlight_file(X, rng.normal(size=120), str(path), zero_based=zero_based, query_id=np.arange(120), comment="é")
    expected, labels = load_svmlight_file(str(path), zero_based=zero_based)
    for choice in (zero_based, "auto"):
        reader = open_reader(path, zero_based=choice, batch_bytes=batch_bytes)
        assert (reader.kinds, reader.size) == ({"target": "number"}, os.path.getsize(path))
        for _ in range(2):
            rows, found = gathered_rows(reader, 40)
            assert np.array_equal(rows.toarray(), expected.toarray())
            assert np.array_equal(found, labels)


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(finite, st.dictionaries(st.integers(1, 60), finite, max_size=8)), min_size=1, max_size=12))
def test_numbers_come_back_bit_for_bit(table):
    lines = [f"{label!r} " + " ".join(f"{i}:{row[i]!r}" for i in sorted(row)) for label, row in table]
    found = parse_lines("\n".join(lines).encode(), 1)
    assert found.fault == Fault.NONE
    assert found.labels.tobytes() == np.array([label for label, _ in table]).tobytes()
    assert found.values.tobytes() == np.array([row[i] for _, row in table for i in sorted(row)], float).tobytes()
    assert found.indices.tolist() == [i - 1 for _, row in table for i in sorted(row)]
    assert np.diff(found.starts).tolist() == [len(row) for _, row in table]


decimal = st.from_regex(r"[+-]?([0-9]{1,25}(\.[0-9]{0,25})?|\.[0-9]{1,25})([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@given(st.lists(decimal, min_size=1, max_size=50))
def test_any_decimal_is_what_python_makes_of_it(words):
    found = parse_lines("\n".join(words).encode(), 1)
    expected = np.array([float(word) for word in words])
    if np.isinf(expected).any():
        assert found.fault == Fault.RANGE
    else:
        assert found.labels.tobytes() == expected.tobytes()


HARD = ["9007199254740993", "9007199254740993e0", "5e-324", "2.2250738585072011e-308", "1.7976931348623157e308", "-0"]
HARD += [
    "0e99999999999999999999",
    "5.",
    "+.5E+1",
    "1" * 19,
    "1" * 20,
    "0." + "0" * 400 + "1e401",
    "0e-5",
    "1e23",
    "8.5e15",
]
HARD += [f"{2**k + 1}e{e}" for k in (53, 54, 60, 63) for e in range(-30, 60, 3)]


def test_hard_decimals_are_rounded_to_the_nearest():
    found = parse_lines("\n".join(HARD).encode(), 1)
    assert found.labels.tobytes() == np.array([float(word) for word in HARD]).tobytes()


@given(st.one_of(st.binary(max_size=200), st.text("0123456789:.eE+- \t\r\n#qid", max_size=200).map(str.encode)))
def test_any_bytes_are_rows_or_a_fault_with_its_place(content):
    found = parse_lines(content, 0)
    rows = found.labels.size
    assert found.starts.size == rows + 1
    assert (found.fault == Fault.NONE) == (found.place == len(content))
    assert 0 <= found.place <= len(content)
    if found.fault == Fault.NONE:
        assert found.starts[-1] == found.indices.size == found.values.size
        assert np.isfinite(found.labels).all()
        assert np.isfinite(found.values).all()
        expected, labels = load_svmlight_file(
            io.BytesIO(content.replace(b"\r", b" ")), zero_based=True, n_features=2**31
        )
        assert np.array_equal(labels, found.labels)
        assert np.array_equal(expected.indices, found.indices)
        assert np.array_equal(expected.data, found.values)


FORMS = {
    "crlf": b"1 1:2 3:4\r\n-1 2:5\r\n",
    "blank lines and comments": b"# c 1:2\n\n1 1:2 3:4# c\n \t\n-1 2:5 # 7:8\n\n",
    "no final end": b"1 1:2 3:4\n-1 2:5",
    "tabs, spaces, signs, exponents": b"+1\t1:+2  3:0.4e1 \n -1.0 2:500E-2",
    "queries": b"1 qid:3 1:2 3:4\n-1 qid:-1 2:5\n",
}


@pytest.mark.parametrize("batch_bytes", [1, 1 << 23])
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_lines(written, form, batch_bytes):
    for path in (written(FORMS[form]), written(gzip.compress(FORMS[form]), "t.libsvm.gz")):
        rows, labels = gathered_rows(open_reader(path, zero_based=False, batch_bytes=batch_bytes))
        assert rows.toarray().tolist() == [[2, 0, 4], [0, 5, 0]]
        assert labels.tolist() == [1, -1]


def test_a_line_without_features_is_a_row(written):
    rows, labels = gathered_rows(open_reader(written("1\n2 2:1\n3")))
    assert rows.toarray().tolist() == [[0, 0], [0, 1], [0, 0]]
    assert labels.tolist() == [1, 2, 3]


BAD = {
    "x 1:2": "a line must begin with a label, a number, got 'x'",
    "1:2 3:4": "a line must begin with a label, a number, got '1:2'",
    "nan 1:2": "a line must begin with a label, a number, got 'nan'",
    "1,2 1:2": "a line must begin with a label, a number, got '1,2'",
    "1 1": "features must be index:value with a whole number as index, got '1'",
    "1 -1:2": "features must be index:value with a whole number as index, got '-1:2'",
    "1 1.5:2": "features must be index:value with a whole number as index, got '1.5:2'",
    "1 a:2": "features must be index:value with a whole number as index, got 'a:2'",
    "1 \udcff:2": "features must be index:value with a whole number as index, got '\ufffd:2'",
    "1 1:": "the value of a feature must be a number, got '1:'",
    "1 1: 2": "the value of a feature must be a number, got '1:'",
    "1 1:x": "the value of a feature must be a number, got '1:x'",
    "1 1:2e": "the value of a feature must be a number, got '1:2e'",
    "1 1:inf": "the value of a feature must be a number, got '1:inf'",
    "1 1:2:3": "the value of a feature must be a number, got '1:2:3'",
    "1 2:1 2:1": "indices must ascend within a line, '2:1' does not",
    "1 2:1 1:1": "indices must ascend within a line, '1:1' does not",
    "1 0:1": "index 0 in '0:1', and features are counted from 1; open the file with zero_based=True if they begin at 0",
    "1 99999999999999999999999:1": "indices must be below 2147483647, got '99999999999999999999999:1'",
    "1 qid:x 1:1": "expected qid: and a whole number, got 'qid:x'",
    "1 1:1 qid:1": "features must be index:value with a whole number as index, got 'qid:1'",
    "1 1:2e999": "'2e999' is too large for a number of 64 bits",
    "-2e999 1:2": "'-2e999' is too large for a number of 64 bits",
}


@pytest.mark.parametrize("line", BAD)
@pytest.mark.parametrize("batch_bytes", [64, 1 << 23])
def test_a_bad_line_is_an_error_of_one_line_that_says_where(written, line, batch_bytes):
    path = written(("1 1:1\n\n" * 20 + line + "\n1 1:1").encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r".") as caught:
        list(open_reader(path, zero_based=False, batch_bytes=batch_bytes).batches())
    assert str(caught.value) == f"{path}, line 41: {BAD[line]}"


def test_features_count_from_zero_where_the_first_block_says_so(written):
    assert gathered_rows(open_reader(written("1 0:1 2:1")))[0].shape == (1, 3)
    assert gathered_rows(open_reader(written("1 1:1 2:1")))[0].shape == (1, 2)
    assert gathered_rows(open_reader(written("1 1:1 2:1"), zero_based=True))[0].shape == (1, 3)
    later = written("1 1:1\n" * 10 + "1 0:1\n")
    assert gathered_rows(open_reader(later))[0].shape == (11, 2)
    with pytest.raises(ValueError, match=r"line 11: index 0 in '0:1', .* zero_based=True"):
        list(open_reader(later, batch_bytes=64).batches())


@pytest.mark.parametrize("content", ["", "\n\n", "# nothing\n"])
def test_a_file_without_rows(written, content):
    with pytest.raises(ValueError, match=r"t\.svm (is empty|has no rows)"):
        open_reader(written(content))


def test_damaged_archives_and_arguments_that_do_not_fit(written):
    whole = gzip.compress(os.urandom(3000).hex().encode())
    for content in (whole[:-20], b"no" + whole, whole[:100] + b"no" + whole[102:]):
        with pytest.raises(ValueError, match=r"t\.svm\.gz cannot be read, it may be truncated or damaged: "):
            open_reader(written(content, "t.svm.gz"))
    path = written("1 1:1\n")
    with pytest.raises(ValueError, match=r"t\.svm has no column 'a'; it has 'target'"):
        open_reader(path).batches(["a"])
    with pytest.raises(ValueError, match=r"labels of libsvm files are numbers"):
        open_reader(path, text=["target"])
    with pytest.raises(ValueError, match=r"zero_based must be True, False or 'auto', got 'no'"):
        open_reader(path, zero_based="no")


PROGRAM = """
import random
from numba import config
from cavity.kernels._libsvm import parse_lines
assert config.BOUNDSCHECK == 1
generator = random.Random(0)
for _ in range(3000):
    size = generator.randrange(40)
    parse_lines("".join(generator.choice("01239:.eE+- \\r\\n#qid") for _ in range(size)).encode(), 0)
    parse_lines(f"1 1:{generator.random()}\\n2 3:{generator.getrandbits(64)}e{size - 20}".encode(), 1)
    parse_lines(f"1 1:1e{generator.randrange(-310, 300)}".encode(), 1)
print("within bounds")
"""


def test_the_parser_stays_within_its_arrays(tmp_path):
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "within bounds" in done.stdout
