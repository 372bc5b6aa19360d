"""Data in memory and the same in partitions."""

import dask.array as da
import numpy as np

import cavity


def labelled(n=600, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.where(X @ np.linspace(-1.5, 1.5, d) + rng.logistic(size=n) > 0.0, "yes", "no")


def chunked(array, count):
    """Rows in so many chunks, the last of another size."""
    size = -(-len(array) // count)
    return da.from_array(array, chunks=(size, *array.shape[1:]))


def assert_same(found, expected, tol=0.02):
    """The same posterior, to the tolerance of both fits."""
    assert found.status_.is_success
    means, stds = (np.ravel(getattr(expected, name)) for name in ("coef_", "coef_std_"))
    assert np.max(np.abs(np.ravel(found.coef_) - means) / stds) < tol
    assert np.max(np.abs(np.log(np.ravel(found.coef_std_) / stds))) < tol
    if found.fit_intercept:
        apart = np.ravel(found.intercept_) - np.ravel(expected.intercept_)
        assert np.max(np.abs(apart) / np.ravel(expected.intercept_std_)) < tol
    assert abs(found.log_evidence_ - expected.log_evidence_) < 0.1
    assert found.n_features_in_ == expected.n_features_in_
    assert type(found) in (cavity.EPClassifier, cavity.EPRegressor)
