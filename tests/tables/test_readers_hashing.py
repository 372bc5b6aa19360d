import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from cavity.tables import RawTexts, hashed, open_reader


def raw(texts):
    content = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, content)], dtype=np.int64)
    return RawTexts(offsets, np.frombuffer(b"".join(content), dtype=np.uint8))


def words_of(text):
    small = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    return re.findall(r"(?:[a-z0-9]|[^\x00-\x7f])+", small)


texts_of_words = st.lists(st.text(st.sampled_from("aAzZ09 .,_-\n\x00éß漢"), max_size=40), max_size=8)


@given(texts_of_words)
def test_a_row_is_the_sum_of_its_words(texts):
    rows = hashed(raw(texts), "column", bits=20)
    rows.check_format(full_check=True)
    assert rows.shape == (len(texts), 2**20)
    assert rows.has_sorted_indices
    for i, text in enumerate(texts):
        counted = Counter(words_of(text))
        alone = hashed(raw(list(counted)), "column", bits=20)
        expected = sparse.csr_array(np.array([list(counted.values())], dtype=float).reshape(1, -1)) @ alone
        assert abs(rows[[i]] - expected).sum() == 0


@given(texts_of_words)
def test_a_whole_text_is_one_word_as_it_is(texts):
    rows = hashed(raw(texts), "column", bits=30, whole=True)
    assert rows.sum(axis=1).tolist() == [float(text != "") for text in texts]
    places = {text: rows.indices[rows.indptr[i]] for i, text in enumerate(texts) if text}
    assert len(set(places.values())) == len(places)


def test_columns_are_the_same_everywhere_and_spread_evenly():
    # A model in a file relies on them.
    assert hashed(raw(["two words"]), "a", bits=18).indices.tolist() == [85885, 144607]
    assert hashed(raw(["two words"]), "b", bits=18).indices.tolist() == [55136, 122619]
    words, bits = [f"w{i}" for i in range(1 << 16)], 10
    counts = np.bincount(hashed(raw(words), "a", bits).indices, minlength=1 << bits)
    expected = len(words) / (1 << bits)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    degrees = (1 << bits) - 1
    assert abs(chi_squared - degrees) < 5 * np.sqrt(2 * degrees)


def test_a_long_row_is_counted_too():
    words = [f"w{i % 700}" for i in range(5000)]
    rows = hashed(raw([" ".join(words)]), "a", bits=30)
    assert sorted(rows.data) == sorted(Counter(words).values())
    assert np.all(np.diff(rows.indices) > 0)


@pytest.mark.parametrize("batch_bytes", [64, 1 << 20])
def test_a_column_of_a_file(tmp_path, batch_bytes):
    texts = ["Good film, good cast", None, "", "naïve; bad"] * 30
    pq.write_table(pa.table({"x": np.zeros(120), "review": texts}), tmp_path / "t.parquet")
    reader = open_reader(tmp_path / "t.parquet", raw=["review"], batch_bytes=batch_bytes)
    parts = [hashed(batch.columns["review"], "review", bits=12) for batch in reader.batches()]
    expected = hashed(raw([text or "" for text in texts]), "review", bits=12)
    assert abs(sparse.vstack(parts) - expected).sum() == 0


def test_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match="bits must be a whole number from 1 to 30, got 31"):
        hashed(raw(["a"]), "a", bits=31)
    for offsets in ([0, 3], [-1, 2], [0, 2, 1]):
        with pytest.raises(ValueError, match="offsets of texts must ascend"):
            hashed(RawTexts(np.array(offsets), np.zeros(2, dtype=np.uint8)), "a")


PROGRAM = """
import numpy as np
from numba import config
from cavity.kernels._text import count_hashed
assert config.BOUNDSCHECK == 1
rng = np.random.default_rng(0)
for _ in range(1000):
    data = rng.choice(np.frombuffer(b"ab Z9.\\xff", dtype=np.uint8), rng.integers(60))
    offsets = np.sort(rng.integers(0, data.size + 1, rng.integers(1, 9)))
    count_hashed(offsets, data, int(rng.integers(1, 31)), 7, bool(rng.integers(2)))
print("within bounds")
"""


def test_the_kernel_stays_within_its_arrays(tmp_path):
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "within bounds" in done.stdout
