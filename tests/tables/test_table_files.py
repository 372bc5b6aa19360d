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
