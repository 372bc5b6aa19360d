"""Streams: mini-batches one by one are a single pass, forgetting decays to the prior, refused rows leave no mark."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
from estimator_cases import (
    CLASSES,
    PARITY,
    STORAGES,
    assert_same_model,
    batches,
    classifier,
    frozen,
    gaussian_regressor,
    line,
    product_classifier,
    regressor,
    three_classes,
    two_classes,
    unsettled,
)
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

import cavity
from cavity import EPRegressor, LinearFactor
from cavity.losses import Logistic

SIZE = 10


class Interpreted:
    """The logistic loss as an object that is not a NamedTuple."""

    targets, value, derivatives = "signs", Logistic().value, Logistic().derivatives


def weights_for(n):
    return np.random.default_rng(5).uniform(0.2, 3.0, n)


def streamed(model, X, y, weights=None, size=SIZE, **first):
    """Feed rows in calls of so many; what the first call needs besides comes with it."""
    for rows in batches(X.shape[0], size):
        model.partial_fit(X[rows], y[rows], sample_weight=None if weights is None else weights[rows], **first)
        first = {}
    return model


# One by one or at once.


@pytest.mark.parametrize("count", CLASSES)
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_mini_batches_of_a_product_one_by_one_equal_one_call(storage, count):
    X, y = CLASSES[count]()
    X, classes = STORAGES[storage](X), np.unique(y)
    for weights in (None, weights_for(y.size)):
        for intercept in (True, False):
            options = {"fit_intercept": intercept}
            one_by_one = streamed(product_classifier(**options), X, y, weights, classes=classes)
            in_threes = streamed(product_classifier(**options), X, y, weights, size=3 * SIZE, classes=classes)
            assert_same_model(in_threes, one_by_one, PARITY)
            assert one_by_one.trace_.updates == len(one_by_one.posterior_) * len(batches(y.size, SIZE))


@pytest.mark.parametrize("weights", [None, weights_for(600)], ids=["plain", "weighted"])
@pytest.mark.parametrize("storage", STORAGES)
def test_streams_of_gaussian_factors_are_exact_however_they_are_cut(storage, weights):
    X, y = line()
    X = STORAGES[storage](X)
    whole = gaussian_regressor().fit(X, y, weights)
    for size in (1, 7, 100, 600):
        assert_same_model(streamed(gaussian_regressor(), X, y, weights, size), whole, 1e-8)
    assert whole.scale_ == 0.7


@pytest.mark.parametrize("loss", ["logistic", "hinge", "quasi01"])
@pytest.mark.parametrize("count", CLASSES)
def test_one_row_per_call_is_a_chunk_of_one_row(count, loss):
    """The short path of one row against the path of blocks, which a weight of one leads to."""
    X, y = CLASSES[count]()
    short, long = (classifier(loss=loss).partial_fit(X[:9], y[:9], np.unique(y)) for _ in range(2))
    with unsettled():
        for i in range(9, 57):
            short.partial_fit(X[i : i + 1], y[i : i + 1])
            long.partial_fit(X[i : i + 1], y[i : i + 1], sample_weight=[1.0])
    assert_same_model(short, long, 1e-8)
    assert short.trace_.updates >= 48
    assert short.status_ == long.status_


def test_one_row_per_call_of_a_regression_is_a_chunk_of_one_row():
    X, y = line(n=80)
    for loss in ("squared", "huber", "absolute"):
        short, long = (regressor(loss=loss, normalize_y=False).partial_fit(X[:9], y[:9]) for _ in range(2))
        for i in range(9, 80):
            short.partial_fit(X[i : i + 1], y[i : i + 1])
            long.partial_fit(X[i : i + 1], y[i : i + 1], sample_weight=[1.0])
        assert_same_model(short, long, 1e-6)
        assert short.scale_ == pytest.approx(long.scale_, rel=1e-8)


def test_a_row_of_zeros_tells_nothing_of_coefficients_and_counts_in_the_evidence():
    X, y = two_classes()
    model = classifier(fit_intercept=False).partial_fit(X, y, [0, 1])
    before, evidence = model.coef_, model.log_evidence_
    for weights in (None, [1.0]):
        model.partial_fit(np.zeros((1, 4)), y[:1], sample_weight=weights)
        np.testing.assert_allclose(model.coef_, before, rtol=1e-12)
        evidence -= np.log(2.0)
        assert model.log_evidence_ == pytest.approx(evidence, rel=1e-10)


def test_a_stream_goes_on_from_a_fit_with_all_it_knows():
    X, y = two_classes()
    for covariance in ("full", "sparse", "diagonal"):
        model = classifier(covariance=covariance).fit(X[:30], y[:30])
        mean, std = model.coef_, model.coef_std_
        model.set_params(covariance="diagonal" if covariance == "diagonal" else "auto")
        model.partial_fit(X[30:31], y[30:31], sample_weight=[1e-12])
        np.testing.assert_allclose(model.coef_, mean, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(model.coef_std_, std, rtol=1e-6)
        assert model.plan_.covariance == ("diagonal" if covariance == "diagonal" else "full")


def test_a_fit_and_then_a_stream_is_near_one_fit_to_all():
    X, y = two_classes(n=600, seed=4)
    model = classifier().fit(X[:300], y[:300]).partial_fit(X[300:], y[300:])
    whole = classifier().fit(X, y)
    np.testing.assert_array_less(np.abs(model.coef_ - whole.coef_), 0.2 * whole.coef_std_)
    np.testing.assert_allclose(model.coef_std_, whole.coef_std_, rtol=0.1)


def test_sparse_rows_are_taken_by_a_stream_begun_with_dense_ones():
    X, y = two_classes()
    for make in (classifier, product_classifier):
        model = make().partial_fit(X, y, classes=[0, 1])
        wanted = copy.deepcopy(model).partial_fit(X, y)
        assert_same_model(model.partial_fit(sparse.csr_array(X), y), wanted, PARITY)


def test_labels_may_be_of_any_kind_and_come_in_any_order():
    X, y = two_classes()
    wanted = streamed(classifier(), X, y, classes=[0, 1])
    for labels, classes in (
        (np.array(["no", "yes"])[y], ["yes", "no"]),
        (y == 1, [True, False]),
        (y.astype(float), (1.0, 0.0)),
        (np.array(["no", "yes"], dtype=object)[y], np.array(["no", "yes"], dtype=object)),
    ):
        model = streamed(classifier(), X, labels, classes=classes)
        assert_same_model(model, wanted)
        np.testing.assert_array_equal(model.predict(X) == model.classes_[1], wanted.predict(X) == 1)


def test_lists_and_other_kinds_of_arrays_are_rows_too():
    X, y = two_classes()
    wanted = streamed(classifier(), X, y, classes=[0, 1])
    model = classifier().partial_fit(X[:SIZE], y[:SIZE], classes=[0, 1])
    forms = (np.ndarray.tolist, np.asfortranarray, lambda a: a[:, ::-1][:, ::-1], sparse.csr_matrix, lambda a: a)
    for form, rows in zip(forms, batches(57, SIZE)[1:], strict=True):
        model.partial_fit(form(X[rows]), y[rows].tolist())
    assert_same_model(model, wanted, PARITY)


def test_labels_in_a_column_are_taken_with_scikit_learns_warning():
    X, y = two_classes()
    for options in ({}, {"class_weight": {0: 2.0, 1: 1.0}}):
        wanted = classifier(**options).partial_fit(X, y, classes=[0, 1]).partial_fit(X, y)
        model = classifier(**options).partial_fit(X, y, classes=[0, 1])
        with pytest.warns(DataConversionWarning):
            model.partial_fit(X, y[:, None])
        assert_same_model(model, wanted)


def test_rows_of_weight_zero_are_absent_from_a_stream():
    X, y = three_classes()
    weights = np.random.default_rng(0).integers(0, 3, y.size).astype(float)
    kept, classes = weights > 0.0, np.unique(y)
    a = classifier().partial_fit(X, y, classes, weights)
    b = classifier().partial_fit(X[kept], y[kept], classes, weights[kept])
    assert_same_model(a, b)


def test_huge_rows_are_not_taken_for_infinite_ones():
    """Their sum overflows, but they are finite."""
    X, y = two_classes()
    model = classifier().partial_fit(X, y, classes=[0, 1])
    large = np.full((4, 4), 1e38, dtype=np.float32)
    with unsettled():
        model.partial_fit(large, y[:4])


# Forgetting.


def at_rest(model):
    """Give a model without an intercept a row of zeros, from which nothing can be learned."""
    return np.zeros((1, model.n_features_in_))


@pytest.mark.parametrize("count", CLASSES)
@pytest.mark.parametrize("forget", [0.0, 0.1, 0.5, 0.9])
def test_natural_parameters_decay_geometrically_to_those_of_the_prior(forget, count):
    X, y = CLASSES[count]()
    loss = "logistic" if count == 2 else "hinge"  # a softmax knows no mean that all classes share
    model = classifier(loss=loss, fit_intercept=False, prior_mean=[0.1, 0.2, -0.3, 0.4])
    model.fit(X, y)  # the rows of a fit are not kept
    precisions = np.linalg.inv(model.covariance_)
    shifts = np.array([p @ m for p, m in zip(precisions, model.coef_, strict=True)]) - [0.1, 0.2, -0.3, 0.4]
    for step in range(1, 5):
        model.partial_fit(at_rest(model), y[:1], forget=forget)
        share, now = (1.0 - forget) ** step, np.linalg.inv(model.covariance_)
        np.testing.assert_allclose(now - np.eye(4), share * (precisions - np.eye(4)), rtol=1e-8, atol=1e-9)
        found = np.array([p @ m for p, m in zip(now, model.coef_, strict=True)]) - [0.1, 0.2, -0.3, 0.4]
        np.testing.assert_allclose(found, share * shifts, rtol=1e-8, atol=1e-9)


def test_forgetting_nothing_is_the_default_and_nearly_all_returns_to_the_prior():
    X, y = two_classes()
    model = classifier(fit_intercept=False).partial_fit(X, y, [0, 1])
    twin = copy.deepcopy(model)
    assert_same_model(model.partial_fit(X, y, forget=0.0), twin.partial_fit(X, y))
    model.partial_fit(at_rest(model), y[:1], forget=1.0 - 1e-9)
    np.testing.assert_allclose(model.coef_, 0.0, atol=1e-7)
    np.testing.assert_allclose(model.coef_std_, 1.0, rtol=1e-7)


def test_a_product_that_forgets_is_a_pass_from_the_tempered_posterior():
    X, y = two_classes()
    model = product_classifier(fit_intercept=False).partial_fit(X[:30], y[:30], [0, 1])
    prior = cavity.FactorialGaussian.from_moments(np.zeros(4), 1.0)
    between = model.posterior_[0] ** 0.7 * prior**0.3
    model.partial_fit(X[30:], y[30:], forget=0.3)
    rest = LinearFactor.batches(Logistic(), X[30:], 2.0 * y[30:] - 1.0, SIZE)
    wanted = cavity.fit(rest, between, "exact", sites="none").posterior
    np.testing.assert_allclose(model.posterior_[0].shift, wanted.shift, rtol=PARITY, atol=PARITY)
    np.testing.assert_allclose(model.posterior_[0].precision, wanted.precision, rtol=PARITY, atol=PARITY)
    assert model.posterior_[0].log_scale == pytest.approx(wanted.log_scale, rel=PARITY)


def test_forgetting_follows_a_drift():
    rng = np.random.default_rng(0)
    models = {forget: classifier(fit_intercept=False) for forget in (0.0, 0.2)}
    for sign, length in ((1.0, 60), (-1.0, 15)):
        for _ in range(length):
            X = rng.normal(size=(SIZE, 2))
            y = (sign * X[:, 0] + 0.3 * rng.normal(size=SIZE) > 0.0).astype(int)
            for forget, model in models.items():
                model.partial_fit(X, y, [0, 1], forget=forget)
    X = rng.normal(size=(1000, 2))
    assert np.mean(models[0.2].predict(X) == (X[:, 0] < 0.0)) > 0.95
    assert np.mean(models[0.0].predict(X) == (X[:, 0] < 0.0)) < 0.9


# Refusals.

N = 12


def damaged(value, dtype=float):
    X = np.ones((N, 4), dtype=dtype)
    X[5, 2] = value
    return X


GOOD = np.ones((N, 4))
LABELS = np.array([0, 1] * (N // 2))
BAD_ROWS = {
    "nan": (damaged(np.nan), "contains NaN"),
    "inf": (damaged(np.inf), "contains infinity"),
    "nan in csr": (sparse.csr_array(damaged(np.nan)), "contains NaN"),
    "nan in float32": (damaged(np.nan, np.float32), "contains NaN"),
    "strings": (np.full((N, 4), "a"), "could not convert string to float|dtype='numeric' is not compatible"),
    "complex": (GOOD + 1j, "Complex data not supported"),
    "too few columns": (GOOD[:, :3], "X has 3 features, but EP.* is expecting 4 features as input"),
    "too many columns": (sparse.csr_array(np.ones((N, 5))), "X has 5 features, but EP.* is expecting 4 features"),
    "a vector": (GOOD[:, 0], "Expected 2D array, got 1D array instead"),
    "a cube": (np.ones((N, 4, 2)), "Found array with dim 3|expected <= 2"),
    "no rows": (GOOD[:0], "minimum of 1 is required|inconsistent numbers of samples"),
    "fewer rows than targets": (GOOD[:7], "inconsistent numbers of samples"),
}
BAD_WEIGHTS = {
    "negative": (np.linspace(-1.0, 1.0, N), "Negative values in data passed to `sample_weight`"),
    "nan": (np.where(np.arange(N) == 3, np.nan, 1.0), "sample_weight contains NaN"),
    "inf": (np.where(np.arange(N) == 3, np.inf, 1.0), "sample_weight contains infinity"),
    "too few": (np.ones(N - 1), r"sample_weight.shape == \(11,\), expected \(12,\)"),
    "a matrix": (np.ones((N, 2)), "must be 1D array or scalar"),
}
BAD_FORGET = {"negative": -0.1, "all": 1.0, "more than all": 1.5, "nan": np.nan}


def assert_refused(model, match, *arguments, error=ValueError, **options):
    """The call is refused, the model is what it was, and goes on as if nothing had happened."""
    untouched, before = copy.deepcopy(model), frozen(model)
    with pytest.raises(error, match=match):
        model.partial_fit(*arguments, **options)
    assert frozen(model) == before
    first = {} if hasattr(model, "coef_") or hasattr(model, "normalize_y") else {"classes": [0, 1]}
    X, y = two_classes()
    assert_same_model(model.partial_fit(X, y, **first), untouched.partial_fit(X, y, **first))


def models():
    """A classifier and a regressor, before any row, after a stream, and after a fit."""
    X, y = two_classes()
    yield pytest.param(classifier, {"classes": [0, 1]}, id="classifier-first")
    yield pytest.param(lambda: classifier().partial_fit(X, y, [0, 1]), {}, id="classifier-stream")
    yield pytest.param(lambda: classifier().fit(X, y), {}, id="classifier-fit")
    yield pytest.param(gaussian_regressor, {}, id="regressor-first")
    yield pytest.param(lambda: gaussian_regressor().partial_fit(X, y), {}, id="regressor-stream")


every_model = pytest.mark.parametrize(("make", "first"), list(models()))


@every_model
@pytest.mark.parametrize("what", BAD_ROWS)
def test_bad_rows_leave_the_model_as_it_was(make, first, what):
    X, match = BAD_ROWS[what]
    model = make()
    if not hasattr(model, "coef_") and "columns" in what:
        model.partial_fit(X, LABELS, **first)  # any number of columns will do at first
        assert model.n_features_in_ == X.shape[1]
        return
    y = LABELS[:0] if what == "no rows" else LABELS
    assert_refused(model, match, X, y, **first)
    if hasattr(model, "coef_"):
        assert_refused(model, match, X, y, forget=0.5)


@every_model
@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_bad_weights_leave_the_model_as_it_was(make, first, what):
    weights, match = BAD_WEIGHTS[what]
    assert_refused(make(), match, GOOD, LABELS, sample_weight=weights, **first)


@every_model
@pytest.mark.parametrize("what", BAD_FORGET)
def test_bad_forgetting_leaves_the_model_as_it_was(make, first, what):
    assert_refused(make(), r"forget must lie in \[0, 1\)", GOOD, LABELS, forget=BAD_FORGET[what], **first)


@every_model
def test_targets_that_do_not_fit_leave_the_model_as_it_was(make, first):
    for y, match in (
        (LABELS[:-1], "inconsistent numbers of samples"),
        (np.where(LABELS == 1, np.nan, 0.0), "NaN|finite|not among the classes"),
        (np.where(LABELS == 1, np.inf, 0.0), "infinity|finite|not among the classes"),
        (np.column_stack([LABELS, LABELS]), "y should be a 1d array"),
        (None, "y cannot be None|requires y to be passed|y should be a 1d array"),
    ):
        assert_refused(make(), match, GOOD, y, **first)


@pytest.mark.parametrize("count", CLASSES)
def test_labels_that_were_not_announced_leave_the_model_as_it_was(count):
    X, y = CLASSES[count]()
    model = classifier().partial_fit(X, y, np.unique(y))
    untouched, before = copy.deepcopy(model), frozen(model)
    strange = ["fir", "yew"] if count == 3 else [7, 8]
    for labels in (np.where(np.arange(y.size) == 9, strange[0], y), np.where(np.arange(y.size) % 2, *strange)):
        with pytest.raises(ValueError, match="not among the classes"):
            model.partial_fit(X, labels)
        assert frozen(model) == before
    with pytest.raises(ValueError, match="is not the same as on last call to partial_fit"):
        model.partial_fit(X, y, classes=[*np.unique(y), strange[0]])
    assert frozen(model) == before
    assert_same_model(model.partial_fit(X, y, classes=np.unique(y)), untouched.partial_fit(X, y))


@pytest.mark.parametrize("labels", [np.array([0, 1, 2]), np.array([0, 1])])
def test_words_are_not_taken_for_numbers(labels):
    X = GOOD[: labels.size]
    model = classifier().partial_fit(X, labels, labels)
    before = frozen(model)
    with pytest.raises(ValueError, match="not among the classes"):
        model.partial_fit(X, labels.astype(str))
    assert frozen(model) == before


def test_the_first_call_needs_classes_at_least_two():
    for classes, match in (
        (None, r"classes must be passed on the first call to partial_fit\."),
        ([0], "number of classes has to be greater than one"),
        ([0, 2], "not among the classes"),
    ):
        model = classifier()
        before = frozen(model)
        with pytest.raises(ValueError, match=match):
            model.partial_fit(GOOD, LABELS, classes=classes)
        assert frozen(model) == before


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"covariance": "sparse"}, "needs all rows at once"),
        ({"class_weight": "balanced"}, "class_weight 'balanced' is not supported for partial_fit"),
        ({"covariance": "diagonal", "loss": Interpreted()}, "needs a compiled form"),
        ({"loss": "cubic"}, "loss must be one of"),
        ({"max_iter": 0}, "max_iter"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_parameters_that_no_stream_can_have_are_refused(options, match):
    model = classifier(**options)
    before = frozen(model)
    with pytest.raises(ValueError, match=match):
        model.partial_fit(GOOD, LABELS, [0, 1])
    assert frozen(model) == before


def test_a_parameter_spoilt_in_mid_stream_leaves_the_posterior_alone():
    X, y = two_classes()
    for spoilt in (0, 2.5, -3):
        model = classifier().partial_fit(X, y, [0, 1])
        model.set_params(max_iter=spoilt)
        before = frozen(model)
        with pytest.raises(ValueError, match="max_iter"):
            model.partial_fit(X, y, forget=0.5)
        assert frozen(model) == before


def test_counts_must_not_be_negative():
    model = regressor(loss="poisson").partial_fit(GOOD, LABELS)
    before = frozen(model)
    for y in (LABELS - 1.0, LABELS - 1):
        with pytest.raises(ValueError, match="counts"):
            model.partial_fit(GOOD, y)
        assert frozen(model) == before


def test_no_warning_comes_with_a_refusal():
    model = classifier().partial_fit(GOOD, LABELS, [0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for X in (*(X for X, _ in BAD_ROWS.values()), np.full((N, 4), np.inf)):
            with pytest.raises(ValueError):  # noqa: PT011
                model.partial_fit(X, LABELS)


# Half-lives.


@pytest.mark.parametrize("sizes", [[60], [30, 30], [1] * 60, [7, 13, 40]])
def test_a_half_life_does_not_depend_on_the_rows_per_call(sizes):
    X, y = line(n=60)
    chosen = {"scale": 0.5, "normalize_y": False, "prior_variance": 1.0}
    once = EPRegressor(**chosen).partial_fit(X, y, halflife=20.0)
    model, start = EPRegressor(**chosen), 0
    for size in sizes:
        model.partial_fit(X[start : start + size], y[start : start + size], halflife=20.0)
        start += size
    np.testing.assert_allclose(model.coef_, once.coef_, rtol=1e-8)
    np.testing.assert_allclose(model.coef_std_, once.coef_std_, rtol=1e-8)
    weights = 0.5 ** (np.arange(59.0, -1.0, -1.0) / 20.0)
    np.testing.assert_allclose(model.coef_, EPRegressor(**chosen).fit(X, y, weights).coef_, rtol=1e-6)


def test_a_half_life_is_a_positive_number_and_no_second_forgetting():
    X, y = line()
    with pytest.raises(ValueError, match="halflife must be"):
        EPRegressor().partial_fit(X, y, halflife=0.0)
    with pytest.raises(ValueError, match="give one of them"):
        EPRegressor().partial_fit(X, y, halflife=5.0, forget=0.1)
