import numpy as np
import pandas as pd
import pytest
from table_cases import gathered

from benchmarks import table_files
from cavity.tables import open_reader


@pytest.fixture
def _small_chunks(monkeypatch):
    monkeypatch.setattr(table_files, "ROWS_PER_CHUNK", 500)


@pytest.mark.usefixtures("_small_chunks")
def test_csv_and_parquet_hold_the_same_rows(tmp_path):
    rows = [
        table_files.write_csv(tmp_path / "t.csv", 150_000),
        table_files.write_parquet(tmp_path / "t.parquet", 150_000),
    ]
    tables = [gathered(open_reader(tmp_path / name, batch_bytes=1 << 16)) for name in ("t.csv", "t.parquet")]
    assert [len(table) for table in tables] == rows
    common = min(rows)
    assert common > 500
    pd.testing.assert_frame_equal(tables[0][:common], tables[1][:common], check_exact=True)
    assert table_files.write_csv(tmp_path / "again.csv", 150_000) == rows[0]
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "t.csv").read_bytes()


@pytest.mark.usefixtures("_small_chunks")
def test_libsvm_rows_are_sparse_and_their_features_as_frequent_as_words(tmp_path):
    rows = table_files.write_libsvm(tmp_path / "t.svm", 400_000)
    batches = list(open_reader(tmp_path / "t.svm").batches())
    assert sum(batch.n_rows for batch in batches) == rows
    labels = np.concatenate([batch.columns["target"] for batch in batches])
    assert set(labels) == {-1.0, 1.0}
    indices = np.concatenate([batch.rows.indices for batch in batches])
    shares = [np.mean(indices < 2**k) for k in (6, 12, 18)]
    assert shares[0] < 0.5 * shares[2]
    assert shares[1] == pytest.approx(0.6, abs=0.1)
