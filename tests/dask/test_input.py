"""What does not fit is refused with what to do, before or where it is read."""

import importlib
import sys

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask_cases import chunked, labelled

import cavity
import cavity.dask


def refused(message, X, y, **more):
    with pytest.raises(ValueError, match=message):
        cavity.dask.fit(cavity.EPClassifier(), X, y, **more)


def test_collections_that_do_not_fit_together():
    X, y = labelled(60)
    rows, labels = chunked(X, 3), chunked(y, 3)
    refused(r"compute_chunk_sizes", rows[rows[:, 0] > 0.0], labels)
    refused(r"y must have the chunks of X.*y\.rechunk", rows, chunked(y, 2))
    refused(r"sample_weight must have the chunks of X", rows, labels, sample_weight=da.ones(60, chunks=60))
    refused(r"rechunk\(\{1: -1\}\)", rows.rechunk({1: 2}), labels)
    refused(r"numbers, got dtype object", rows.astype(object), labels)
    refused(r"y must hold one value for each of 60 rows", rows, y[:50])
    refused(r"y is missing", rows, None)
    refused(r"two dimensions", rows[:, 0], labels)
    refused(r"a Dask array, a Dask DataFrame or a list of blocks", X, y)
    refused(r"at least one block", [], [])
    refused(r"y must be a list of 2 blocks", [X, X], [y])
    refused(r"a list of pairs", [X, X], None)


def test_tables_whose_partitions_differ():
    dd = pytest.importorskip("dask.dataframe", reason="Dask DataFrames need pyarrow")
    X, y = labelled(60)
    table = dd.from_pandas(pd.DataFrame(X), npartitions=3)
    labels = pd.Series(y)
    refused(r"3 partitions of X, got 2", table, dd.from_pandas(labels, npartitions=2))
    refused(r"must be divided as X", table, dd.from_pandas(labels.set_axis(range(1, 61)), npartitions=3))
    refused(r"a column with the partitions of X", table, y)


def test_blocks_with_other_columns_or_types_are_named():
    X, y = labelled(60)
    refused(r"partition 1 has 4 columns.*partition 0 has 5", [X, X[:, :4]], [y, y])
    refused(r"partition 1 failed: X has 60 rows here, but y has 59", [X, X], [y, y[1:]])
    refused(r"no rows in any partition", [X[:0], X[:0]], [y[:0], y[:0]])
    refused(r"zeros only", [X], [y], sample_weight=[np.zeros(60)])
    text = pd.DataFrame({"a": list("xy") * 30})
    refused(r"give it one type", [text, pd.DataFrame({"a": X[:, 0]})], [y, y])


def test_a_bad_number_is_found_where_it_is_read():
    X, y = labelled(60)
    bad = X.copy()
    bad[50, 1] = np.nan
    refused(r"partition 2 failed: .*NaN", chunked(bad, 3), chunked(y, 3))
    refused(r"partition 0 failed: offset must hold one finite number", [X], [y], offset=[np.full(60, np.inf)])


def test_the_estimator_is_whole_or_not_changed_at_all():
    X, y = labelled(60)
    model = cavity.EPClassifier().fit(X, y)
    before = model.coef_.copy()
    with pytest.raises(ValueError, match="one type"):
        cavity.dask.fit(model, [pd.DataFrame({"a": list("xy") * 30}), pd.DataFrame({"a": X[:, 0]})], [y, y])
    assert np.array_equal(model.coef_, before)


def test_what_a_cluster_cannot_do_is_said():
    X, y = labelled(60)
    with pytest.raises(ValueError, match="on Dask a posterior has all correlations"):
        cavity.dask.fit(cavity.EPClassifier(covariance="diagonal"), chunked(X, 2), chunked(y, 2))


def test_other_estimators_and_clients_are_refused():
    X, y = labelled(60)
    with pytest.raises(ValueError, match="an EPClassifier or an EPRegressor"):
        cavity.dask.fit(object(), chunked(X, 2), chunked(y, 2))
    with pytest.raises(ValueError, match=r"a distributed\.Client"):
        cavity.dask.fit(cavity.EPClassifier(), chunked(X, 2), chunked(y, 2), client="here")
    model = cavity.EPRegressor().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="must be a classifier"):
        cavity.dask.predict_proba(model, chunked(X, 2))
    for rows in (X, chunked(X, 2).rechunk({1: 2})):
        with pytest.raises(ValueError, match="X must be"):
            cavity.dask.predict(model, rows)


def test_an_error_in_a_block_ends_the_fit_with_its_name():
    def broken():
        raise OSError("the disk is gone")

    X, y = labelled(60)
    with pytest.raises(OSError, match="the disk is gone"):  # by Dask's own scheduler, in this process
        cavity.dask.fit(cavity.EPClassifier(), [X, dask.delayed(broken)()], [y, y])


def test_without_dask_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("cavity.dask")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"pip install 'dask\[array\]' distributed"):
        importlib.import_module("cavity.dask")
