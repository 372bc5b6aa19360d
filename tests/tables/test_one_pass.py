"""Labelled rows that are taken in while they are read for the first time."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import log_loss

from cavity import EPClassifier, EPRegressor
from cavity.estimators._preprocessing import Preprocessing, encode_rows
from cavity.tables import Table
from cavity.tables import _table as tables

NUMBERS, CATEGORIES = ["a", "b"], ["kind", "shop"]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(3)
    n = 3000
    found = pd.DataFrame({"a": rng.normal(size=n), "b": 5.0 + 10.0 * rng.normal(size=n)})
    found["kind"] = rng.choice(["x", "y", "z"], n)
    found["shop"] = rng.choice([f"shop {k}" for k in range(20)], n)
    z = found["a"] - 0.05 * (found["b"] - 5.0) + (found["kind"] == "y") - 0.5
    found["label"] = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-z)), "yes", "no")
    found["three"] = rng.integers(0, 2, n)
    found.loc[n - 1, "three"] = 2
    return found


def parts_of(frame, folder, columns, cuts=(200, 1000)):
    """Write consecutive rows to files: each is read in batches of its own."""
    edges, paths = [0, *cuts, len(frame)], []
    for k in range(len(edges) - 1):
        paths.append(folder / f"part{k}.csv")
        frame.iloc[edges[k] : edges[k + 1]][columns].to_csv(paths[-1], index=False)
    return paths


@pytest.fixture
def reads(monkeypatch):
    """Count how often rows are read from a file, and forbid a scratch file."""
    counts = []
    opened = tables.open_reader

    def counted(path, **options):
        reader = opened(path, **options)
        kind, batches = type(reader), type(reader).batches

        def count(self, columns=None):
            counts.append(self.path)
            return batches(self, columns)

        monkeypatch.setattr(kind, "batches", count)
        monkeypatch.setattr(tables, "open_reader", opened)
        return reader

    monkeypatch.setattr(tables, "open_reader", counted)
    monkeypatch.setattr(tables, "Spool", None)
    return counts


@pytest.mark.parametrize("by", [None, "a", "kind"])
def test_files_are_read_once_and_give_the_columns_of_a_fit(by, frame, tmp_path, reads):
    """Sorted files: means, scales and levels of the first rows are not those of all, nor are the first rows alike."""
    rows = frame if by is None else frame.sort_values(by, ignore_index=True)
    paths = parts_of(rows, tmp_path, [*NUMBERS, *CATEGORIES, "label"])
    model = EPClassifier(max_iter=1).fit(Table(paths, target="label"))
    assert reads == paths
    assert model.status_.name == "SINGLE_PASS"
    done = Preprocessing.of(model.preprocessing_)
    np.testing.assert_allclose(done.means, frame[NUMBERS].mean(), rtol=1e-12)
    np.testing.assert_allclose(done.scales, frame[NUMBERS].std(ddof=0), rtol=1e-12)
    assert {name: list(levels) for name, levels in model.categories_.items()} == {
        name: sorted(frame[name].unique()) for name in CATEGORIES
    }


def test_rows_in_any_order_are_learned(frame, tmp_path):
    paths = parts_of(frame, tmp_path, [*NUMBERS, *CATEGORIES, "label"])
    once = EPClassifier(max_iter=1).fit(Table(paths, target="label"))
    fit = EPClassifier().fit(Table(paths, target="label"))
    # A row is fitted to what the rows before it say: after thousands of rows little of that is left.
    assert np.max(np.abs(once.coef_ - fit.coef_) / fit.coef_std_) < 0.5
    np.testing.assert_allclose(once.coef_std_, fit.coef_std_, rtol=0.1)
    assert once.prior_variance_ == pytest.approx(fit.prior_variance_, rel=0.5)
    assert once.log_evidence_ == pytest.approx(fit.log_evidence_, abs=0.02 * abs(fit.log_evidence_))
    losses = [log_loss(frame["label"], model.predict_proba(frame)[:, 1]) for model in (once, fit)]
    assert losses[0] < 1.01 * losses[1]


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_columns_of_a_fit_are_linear_functions_of_those_that_are_taken_in(missing, frame, tmp_path):
    rows = frame.sort_values("a", ignore_index=True)
    if missing == "mean":
        rows.loc[::7, "b"] = np.nan
    table = Table(parts_of(rows, tmp_path, [*NUMBERS, *CATEGORIES, "label"]), target="label", missing=missing)
    model, taken = EPClassifier(max_iter=1), []
    going = table.cavity_one_pass(True)
    coding, totals, _ = model._adopt(going.summary())
    encode = going._dense
    going._dense = lambda read, wide: taken.append(encode(read, wide)) or taken[-1]
    assert going.take(model._task(totals), coding)
    model._adopt(going.summary())
    change = going._change(model._width + 1)
    padded = [np.pad(block, ((0, 0), (0, change.shape[1] - block.shape[1]))) for block in taken]
    codes = np.column_stack([pd.Categorical(rows[name]).codes for name in CATEGORIES])
    done = Preprocessing.of(model.preprocessing_)
    expected = encode_rows(rows[NUMBERS].to_numpy(), codes, [3, 20], done, dense=True, constant=True)
    np.testing.assert_allclose(np.concatenate(padded) @ change.T, expected, atol=1e-12)


def test_what_the_first_rows_do_not_show_is_read_before(frame, tmp_path):
    rows = frame.sort_values("label", ignore_index=True)
    paths = parts_of(rows, tmp_path, [*NUMBERS, *CATEGORIES, "label"])
    assert EPClassifier(max_iter=1).fit(Table(paths, target="label")).classes_.tolist() == ["no", "yes"]
    paths = parts_of(frame, tmp_path, [*NUMBERS, "three"])
    assert EPClassifier(max_iter=1).fit(Table(paths, target="three")).classes_.tolist() == [0, 1, 2]
    assert EPClassifier("hinge", max_iter=1).fit(Table(paths, target="three")).classes_.tolist() == [0, 1, 2]
    balanced = EPClassifier(max_iter=1, class_weight="balanced", prior_variance=1.0).fit(Table(paths, target="three"))
    assert balanced.status_.name == "SINGLE_PASS"
    assert EPRegressor(max_iter=1).fit(Table(paths, target="b")).status_.name == "SINGLE_PASS"


def test_without_a_constant_numbers_are_centred_before(frame, tmp_path):
    paths = parts_of(frame, tmp_path, [*NUMBERS, "label"])
    model = EPClassifier(max_iter=1, fit_intercept=False).fit(Table(paths, target="label"))
    np.testing.assert_allclose(model.preprocessing_["means"], frame[NUMBERS].mean(), rtol=1e-12)


def test_features_of_libsvm_files_are_taken_as_they_appear(tmp_path, reads):
    rng = np.random.default_rng(0)
    X = sparse.random_array((4000, 3000), density=0.004, random_state=rng, format="lil")
    X[:500, 1500:] = 0.0  # the first file has fewer features
    X = sparse.csr_array(X)
    y = np.where(rng.random(4000) < 1.0 / (1.0 + np.exp(-3.0 * (X @ rng.normal(size=3000)))), 1, -1)
    paths = [tmp_path / "first.svm", tmp_path / "rest.svm"]
    dump_svmlight_file(X[:500], y[:500], str(paths[0]), zero_based=False)
    dump_svmlight_file(X[500:], y[500:], str(paths[1]), zero_based=False)
    options = {"covariance": "diagonal", "prior_variance": 1.0}
    model = EPClassifier(max_iter=1, **options).fit(Table(paths, memory=0))
    assert reads == paths
    expected = EPClassifier(**options)
    for part in (slice(0, 500), slice(500, 4000)):
        expected.partial_fit(X[part], y[part], classes=[-1, 1])
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-9)
    np.testing.assert_allclose(model.coef_std_, expected.coef_std_, rtol=1e-9)
    assert model.log_evidence_ == pytest.approx(expected.log_evidence_)
