"""Libsvm files and hashed text."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from cavity import EPClassifier
from cavity.estimators import ConditionalDeviationsWarning
from cavity.tables import Table


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = sparse.random_array((800, 60), density=0.1, random_state=rng, format="csr")
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)  # as older dump_svmlight_file needs
    y = np.where(rng.random(800) < 1.0 / (1.0 + np.exp(-4.0 * (X @ rng.normal(size=60)))), 1, -1)
    path = tmp_path_factory.mktemp("wide") / "rows.svm"
    dump_svmlight_file(X, y, str(path), zero_based=False)
    return X, y, path


@pytest.mark.parametrize("memory", [1 << 28, 0], ids=["in memory", "from the spool"])
def test_libsvm_rows_are_taken_as_they_are(memory, problem):
    X, y, path = problem
    expected, found = EPClassifier().fit(X, y), EPClassifier().fit(Table(path, memory=memory))
    assert found.classes_.tolist() == [-1, 1]
    assert np.max(np.abs(found.coef_ - expected.coef_) / expected.coef_std_) < 0.01
    np.testing.assert_allclose(found.coef_std_, expected.coef_std_, rtol=0.01)
    probabilities = np.concatenate(list(found.predict_proba(Table(path))))
    np.testing.assert_allclose(probabilities, expected.predict_proba(X), atol=0.01)


def test_features_that_were_not_seen_are_left_out(problem, tmp_path):
    X, y, path = problem
    model = EPClassifier().fit(Table(path))
    wider = sparse.csr_array(sparse.hstack([X[:5], np.ones((5, 3))]))
    dump_svmlight_file(wider, y[:5], str(tmp_path / "wider.svm"), zero_based=False)
    (found,) = model.predict_proba(Table(tmp_path / "wider.svm"))
    np.testing.assert_allclose(found, model.predict_proba(X[:5]))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    rng = np.random.default_rng(1)
    weights = rng.normal(size=50)
    words = rng.integers(0, 50, (600, 6))
    signs = rng.random(600) < 1.0 / (1.0 + np.exp(-np.sum(weights[words], axis=1)))
    frame = pd.DataFrame({"text": [" ".join(f"w{k}" for k in row) for row in words], "x": rng.normal(size=600)})
    frame["label"] = np.where(signs, "good", "bad")
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    frame.to_csv(path, index=False)
    return path


def test_words_are_hashed(texts):
    table = Table(texts, target="label", hash_columns=["text"], hash_bits=9)
    model = EPClassifier().fit(table)
    assert model.n_features_in_ == 513
    assert model.score(table) > 0.75
    with pytest.raises(ValueError, match=r"predict from a cavity\.tables\.Table"):
        model.predict(pd.read_csv(texts))


def test_wide_rows_beyond_memory_are_taken_in_one_pass_with_a_warning(texts):
    table = Table(texts, target="label", hash_columns=["text"], hash_bits=11, memory=0)
    with pytest.warns(ConditionalDeviationsWarning, match="needs all rows in memory"):
        model = EPClassifier().fit(table)
    assert model.status_.name == "SINGLE_PASS"
    assert model.plan_.covariance == "diagonal"
    assert model.score(table) > 0.7
