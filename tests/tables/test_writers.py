"""Columns are written whole or not at all, and read back as they were."""

import numpy as np
import pytest
from table_cases import gathered

from cavity.tables import open_reader, open_writer


def columns(rows, seed):
    rng = np.random.default_rng(seed)
    return {
        "label": rng.choice(["no", "ÿes", 'a "b", c'], rows),
        "p": rng.normal(size=rows),
        "n": rng.integers(0, 9, rows),
    }


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv", "npy"])
def test_what_is_written_block_by_block_is_read_back(tmp_path, suffix):
    path, parts = tmp_path / f"a.{suffix}", [columns(7, 0), columns(5, 1)]
    with open_writer(path) as write:
        for part in parts:
            write(part)
    expected = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if suffix == "npy":
        found = np.load(path)
        assert found.dtype.names == tuple(expected)
    else:
        found = gathered(open_reader(path))
        assert found.columns.tolist() == list(expected)
    assert all(np.array_equal(np.asarray(found[name]), expected[name]) for name in expected)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "npy"])
def test_an_error_leaves_what_was_there(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_text("before")

    def interrupted():
        with open_writer(path) as write:
            write(columns(3, 0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the suffix must be one of \.parquet, .*got '\.xls'"), open_writer("a.xls"):
        pass
    with pytest.raises(FileNotFoundError), open_writer(tmp_path / "none" / "a.csv"):
        pass
