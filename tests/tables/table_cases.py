"""Tables to be written to files, and what readers gave put together again."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cavity.tables import Texts


def small_table(rows=200, seed=0):
    """Numbers, whole numbers, yes and no, and text, with gaps."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "a": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows)),
            "n": rng.integers(-5, 5, rows),
            "shop": pd.Series(rng.choice(["x", "ÿz", "a, b", 'say "no"', "two\nlines"], rows), dtype=object),
            "yes": rng.random(rows) < 0.5,
            "big": 10.0 ** rng.integers(-300, 300, rows) * rng.normal(size=rows),
        }
    )
    frame.loc[rng.random(rows) < 0.1, "shop"] = None
    return frame


def gathered(reader, columns=None):
    """All batches as one frame, with texts as objects, None where missing; also checks what holds of any batch."""
    parts, following = [], 1
    for batch in reader.batches(columns):
        assert batch.path == reader.path
        assert batch.first == following
        following += batch.n_rows
        parts.append({name: _values(column, batch.n_rows) for name, column in batch.columns.items()})
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return pd.DataFrame({name: pd.Series(column, dtype=column.dtype) for name, column in columns.items()})


def _values(column, rows):
    if isinstance(column, Texts):
        assert column.codes.dtype == np.int32
        assert len(set(column.levels)) == len(column.levels)
        assert set(column.codes) - {-1} == set(range(len(column.levels)))
        values = np.array([*column.levels, None], dtype=object)[column.codes]
    else:
        assert column.dtype == np.float64
        values = column
    assert values.shape == (rows,)
    return values
