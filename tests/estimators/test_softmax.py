"""More than two classes: one joint posterior under the softmax, symmetric in the classes."""

from __future__ import annotations

import numpy as np
import pytest
from estimator_cases import state_of, three_classes
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import cavity
from cavity import EPClassifier
from cavity.estimators import labels as _labels


def classes_of_five(n=400, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.argmax(X @ rng.normal(size=(d, 5)) + rng.gumbel(size=(n, 5)), axis=1)


DATA = {3: three_classes, 5: classes_of_five}


@pytest.fixture(scope="module", params=DATA)
def fitted(request):
    X, y = DATA[request.param]()
    return X, y, EPClassifier().fit(X, y)


def test_coefficients_sum_to_zero_over_the_classes(fitted):
    X, _, model = fitted
    count = model.classes_.size
    assert model.coef_.shape == model.coef_std_.shape == (count, X.shape[1])
    assert model.covariance_.shape == (count, X.shape[1] + 1, X.shape[1] + 1)
    np.testing.assert_allclose(model.coef_.sum(axis=0), 0.0, atol=1e-10)
    draws = model.sample_coef(5, random_state=0)
    np.testing.assert_allclose(draws.sum(axis=1), 0.0, atol=1e-10)
    assert isinstance(model.prior_variance_, float)
    assert "together" in str(model.plan_)


def test_permuting_the_labels_permutes_the_answer(fitted):
    X, y, model = fitted
    names = np.unique(y)
    order = np.random.default_rng(1).permutation(names.size)
    renamed = np.array([f"class {order[np.searchsorted(names, label)]}" for label in y])
    other = EPClassifier().fit(X, renamed)
    np.testing.assert_allclose(other.coef_[order], model.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(other.predict_proba(X)[:, order], model.predict_proba(X), rtol=1e-9, atol=1e-12)


def test_probabilities_are_means_over_the_posterior(fitted):
    X, _, model = fitted
    p = model.predict_proba(X[:6])
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    draws = model.predict_proba_samples(X[:6], 4000, random_state=0)
    # Sampling error, and that of the nodes of the mean, which is below a hundredth.
    bound = 5.0 * draws.std(axis=0) / np.sqrt(len(draws)) + 0.01
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - p), bound)
    np.testing.assert_array_equal(model.predict(X), model.classes_[np.argmax(model.predict_proba(X), axis=1)])
    np.testing.assert_array_equal(model.classes_[np.argmax(model.decision_function(X), axis=1)], model.predict(X))


def test_storage_order_and_repetition_do_not_matter(fitted):
    X, y, model = fitted
    order = np.random.default_rng(0).permutation(len(X))
    for rows, labels, weights in (
        (sparse.csr_array(X), y, None),
        (X[order], y[order], None),
        (np.repeat(X, 2, axis=0), np.repeat(y, 2), np.full(2 * len(X), 0.5)),
    ):
        other = EPClassifier().fit(rows, labels, weights)
        assert np.max(np.abs(other.coef_ - model.coef_) / model.coef_std_) < 1e-6
        np.testing.assert_allclose(other.coef_std_, model.coef_std_, rtol=1e-6)


def test_with_much_data_the_means_are_those_of_multinomial_regression():
    X, y = classes_of_five(n=20_000)
    model = EPClassifier(prior_variance=1.0).fit(X, y)
    plain = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000).fit(X, y)
    assert np.max(np.abs(model.coef_ - plain.coef_) / model.coef_std_) < 0.1


def test_three_classes_are_fitted_by_matched_moments():
    """Elliptical slices of the exact posterior: means to 0.1, deviations to a tenth, on rows that are not separable."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 2))
    y = np.argmax(X @ rng.normal(size=(2, 3)) + rng.gumbel(size=(60, 3)), axis=1)
    model = EPClassifier(prior_variance=2.0, fit_intercept=False, tol=1e-4).fit(X, y)
    draws = slices(X, y, 3, 2.0)
    mean, std = draws.mean(axis=0), draws.std(axis=0)
    assert np.max(np.abs(model.coef_ - mean) / std) < 0.1
    np.testing.assert_allclose(model.coef_std_, std, rtol=0.1)


def slices(X, y, classes, variance, draws=25_000):
    """Elliptical slice sampling of coefficients around zero, made to sum to zero."""
    rng = np.random.default_rng(0)

    def log_likelihood(theta):
        z = X @ theta.T
        return float(np.sum(z[np.arange(len(y)), y] - np.logaddexp.reduce(z, axis=1)))

    theta, kept = np.zeros((classes, X.shape[1])), []
    height = log_likelihood(theta)
    for step in range(draws):
        nu = np.sqrt(variance) * rng.normal(size=theta.shape)
        level, angle = height + np.log(rng.random()), 2.0 * np.pi * rng.random()
        low, high = angle - 2.0 * np.pi, angle
        while True:
            other = theta * np.cos(angle) + nu * np.sin(angle)
            height = log_likelihood(other)
            if height > level:
                break
            low, high = (angle, high) if angle < 0.0 else (low, angle)
            angle = low + (high - low) * rng.random()
        theta = other
        if step >= draws // 10:
            kept.append(theta - theta.mean(axis=0))
    return np.array(kept)


@pytest.mark.parametrize("count", DATA)
def test_streams_know_what_a_fit_knows(count):
    X, y = DATA[count](n=300)
    whole, stream = EPClassifier(prior_variance=1.0).fit(X, y), EPClassifier(prior_variance=1.0)
    for i in range(0, 300, 60):
        stream.partial_fit(X[i : i + 60], y[i : i + 60], classes=np.unique(y))
    assert np.max(np.abs(stream.coef_ - whole.coef_) / whole.coef_std_) < 0.5
    np.testing.assert_allclose(stream.coef_std_, whole.coef_std_, rtol=0.15)
    with pytest.raises(ValueError, match=r"not among the classes.*fir"):
        stream.partial_fit(X[:1], ["fir"])


@pytest.mark.parametrize("count", DATA)
def test_merged_models_add_up_whatever_order_their_classes_have_inside(count, monkeypatch):
    X, y = DATA[count](n=300)
    few = (y == np.unique(y)[0]) & (np.arange(300) % 3 > 0)
    parts = [np.flatnonzero(~few)[:150], np.concatenate([np.flatnonzero(few), np.flatnonzero(~few)[150:]])]

    def merged():
        a, b = (EPClassifier(prior_variance=1.0, tol=1e-4).fit(X[p], y[p]) for p in parts)
        return state_of(a).targets.ranks, state_of(b).targets.ranks, a.merge(b)

    one, other, model = merged()
    assert one != other
    monkeypatch.setattr(_labels, "ranks_of_classes", lambda X, codes, weights, count: tuple(range(count)))
    same = merged()[2]
    # Nodes lie elsewhere in another order of the classes.
    assert np.max(np.abs(model.coef_ - same.coef_) / same.coef_std_) < 0.05
    np.testing.assert_allclose(model.coef_std_, same.coef_std_, rtol=0.02)


def test_a_file_keeps_the_model(tmp_path, fitted):
    X, _, model = fitted
    cavity.save(model, tmp_path / "model.cavity")
    loaded = cavity.load(tmp_path / "model.cavity")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.coef_std_, model.coef_std_)


def test_a_wide_table_keeps_all_classes_together_unless_its_precision_is_to_be_sparse():
    rng = np.random.default_rng(0)
    X = sparse.random_array((200, 3000), density=0.002, random_state=rng, format="csr")
    y = rng.integers(3, size=200)
    assert EPClassifier().fit(X, y).plan_.covariance == "rows"
    model = EPClassifier(covariance="sparse").fit(X, y)
    assert len(model.posterior_) == 3
    assert "one posterior for each of 3 classes against the rest" in str(model.plan_)
    stream = EPClassifier("hinge").partial_fit(*three_classes(), classes=np.unique(three_classes()[1]))
    assert "each of 3 classes against the rest" in str(stream.plan_)


def test_default_probabilities_are_better_than_one_class_against_the_rest():
    X, y = load_iris(return_X_y=True)
    X = scale(X)
    train = np.arange(150) % 2 == 0
    softmax = EPClassifier().fit(X[train], y[train]).predict_proba(X[~train])
    apart = EPClassifier(loss=cavity.losses.Logistic(1.0 + 1e-9)).fit(X[train], y[train]).predict_proba(X[~train])
    log_loss = [-np.mean(np.log(p[np.arange(75), y[~train]])) for p in (softmax, apart)]
    assert log_loss[0] < 0.8 * log_loss[1]


def test_an_offset_is_for_two_classes():
    X, y = three_classes()
    with pytest.raises(ValueError, match="offset is for two classes"):
        EPClassifier().fit(X, y, offset=np.zeros(len(X)))
    model = EPClassifier().fit(X, y)
    for method in (model.predict, model.predict_proba, model.decision_function, model.predict_proba_samples):
        with pytest.raises(ValueError, match="offset is for two classes"):
            method(X, offset=np.zeros(len(X)))


def test_contrasts_between_classes_are_those_of_draws(fitted):
    _, _, model = fitted
    a, b = (str(label) for label in model.classes_[:2])
    table = model.contrast({(a, "x0"): 1, (b, "x0"): -1}, {(a, "x1"): 2, (a, "intercept"): 1})
    coef, intercept = model.sample_coef(40_000, random_state=0, return_intercept=True)
    draws = np.stack([coef[:, 0, 0] - coef[:, 1, 0], 2.0 * coef[:, 0, 1] + intercept[:, 0]], axis=1)
    np.testing.assert_allclose(table["mean"], draws.mean(axis=0), atol=6.0 * np.max(draws.std(axis=0)) / 200.0)
    np.testing.assert_allclose(table["std"], draws.std(axis=0), rtol=0.03)
    assert table.index[0] == f"{a} x0 - {b} x0"
    with pytest.raises(ValueError, match="or pairs of a class among"):
        model.contrast({(a, "nobody"): 1})
    with pytest.raises(ValueError, match="cannot be mixed"):
        model.contrast({"x0": 1}, {(a, "x0"): 1})
