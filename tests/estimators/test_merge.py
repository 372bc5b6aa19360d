"""Products of models: exact where factors are Gaussian, the prior counted once, both inputs untouched."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from estimator_cases import (
    CLASSES,
    PARITY,
    assert_same_model,
    classifier,
    frozen,
    gaussian_regressor,
    orthogonal,
    regressor,
    two_classes,
)
from sklearn.exceptions import NotFittedError

from cavity.losses import Logistic

HALF = 30


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("prior_mean", [0.0, 1.5])
def test_merged_models_of_gaussian_factors_equal_one_trained_on_all(prior_mean, method):
    X, y = orthogonal()
    make = lambda: gaussian_regressor(fit_intercept=False, prior_mean=prior_mean)  # noqa: E731
    a, b = getattr(make(), method)(X[:HALF], y[:HALF]), getattr(make(), method)(X[HALF:], y[HALF:])
    in_turn = make().partial_fit(X[:HALF], y[:HALF]).partial_fit(X[HALF:], y[HALF:])
    merged = a.merge(b)
    assert_same_model(merged, in_turn, PARITY)
    assert_same_model(merged, make().fit(X, y), PARITY)
    assert merged.log_evidence_ == pytest.approx(in_turn.log_evidence_, rel=PARITY)
    np.testing.assert_allclose(merged.predict(X), in_turn.predict(X), rtol=PARITY, atol=PARITY)


@pytest.mark.parametrize("count", CLASSES)
def test_the_order_does_not_matter_and_both_stay_as_they_were(count):
    X, y = CLASSES[count]()
    a = classifier().partial_fit(X[:HALF], y[:HALF], np.unique(y))
    b = classifier().partial_fit(X[HALF:], y[HALF:], np.unique(y))
    before = frozen(a), frozen(b)
    ab, ba = a.merge(b), b.merge(a)
    assert_same_model(ab, ba)
    c = copy.deepcopy(b)
    assert_same_model(ab.merge(c), a.merge(b.merge(c)), PARITY)
    assert (frozen(a), frozen(b)) == before
    ab.partial_fit(X, y)
    assert (frozen(a), frozen(b)) == before


@pytest.mark.parametrize("count", CLASSES)
def test_the_prior_counts_once(count):
    """A model that has seen only rows of zeros stands at the prior, and adds nothing."""
    X, y = CLASSES[count]()
    model = classifier(fit_intercept=False, prior_mean=0.5).fit(X, y)
    idle = classifier(fit_intercept=False, prior_mean=0.5).partial_fit(np.zeros_like(X), y, np.unique(y))
    np.testing.assert_array_equal(idle.coef_, 0.5)
    merged = model.merge(idle)
    np.testing.assert_allclose(merged.coef_, model.coef_, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(merged.coef_std_, model.coef_std_, rtol=1e-14)


def test_merged_models_know_more_and_predict_as_well_as_one_trained_on_all():
    X, y = two_classes(n=600, seed=4)
    a, b = classifier().fit(X[:300], y[:300]), classifier().fit(X[300:], y[300:])
    merged, whole = a.merge(b), classifier().fit(X, y)
    assert np.all(merged.coef_std_ < np.minimum(a.coef_std_, b.coef_std_))
    np.testing.assert_array_less(np.abs(merged.coef_ - whole.coef_), 0.5 * whole.coef_std_)
    assert merged.score(X, y) > whole.score(X, y) - 0.01
    np.testing.assert_array_equal(merged.classes_, whole.classes_)


def test_models_in_the_same_given_basis_merge_and_in_others_do_not():
    X, y = two_classes()
    turns = [np.linalg.qr(np.random.default_rng(seed).normal(size=(4, 4)))[0] for seed in (0, 1)]
    a, b = classifier(basis=turns[0]).fit(X[:HALF], y[:HALF]), classifier(basis=turns[0]).fit(X[HALF:], y[HALF:])
    assert np.all(a.merge(b).coef_std_ < a.coef_std_)
    with pytest.raises(ValueError, match=r"bas[ei]s"):
        a.merge(classifier(basis=turns[1]).fit(X, y))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"prior_variance": 2.0}, "different priors"),
        ({"prior_mean": 0.5}, "different priors"),
        ({"intercept_prior_variance": 7.0}, "different priors"),
        ({"fit_intercept": False}, "different priors"),
        ({"loss": Logistic(2.0)}, "different losses"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_models_of_other_parameters_are_refused(options, match):
    X, y = two_classes()
    with pytest.raises(ValueError, match=match):
        classifier().fit(X, y).merge(classifier(**options).fit(X, y))


def test_models_of_other_data_or_kind_are_refused():
    X, y = two_classes()
    model = classifier().fit(X, y)
    for other, match in (
        (classifier().fit(X[:, :3], y), "4 and 3 features"),
        (classifier().fit(X, y + 1), "different classes"),
        (gaussian_regressor().fit(X, y), "only another EPClassifier"),
        (None, "only another EPClassifier"),
    ):
        with pytest.raises(ValueError, match=match):
            model.merge(other)
    for pair in ((model, classifier()), (classifier(), model)):
        with pytest.raises(NotFittedError):
            pair[0].merge(pair[1])
    with pytest.raises(ValueError, match=r"normalised their targets differently|different losses"):
        regressor(scale=1.0).fit(X, y).merge(regressor(scale=1.0).fit(X[:HALF], y[:HALF]))
    with pytest.raises(ValueError, match="different losses"):
        gaussian_regressor().fit(X, y).merge(gaussian_regressor(scale=2.0).fit(X, y))
