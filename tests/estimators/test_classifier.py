"""The classifier shows what EP finds, by blocks or as a product of Gaussians, and predicts with all of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import exp, pi, sqrt
from typing import Any

import numpy as np
import pandas as pd
import pytest
from estimator_cases import (
    CLASSES,
    STORAGES,
    Broken,
    SquaredHinge,
    assert_same_model,
    cancer,
    classifier,
    frozen,
    numbers_of,
    product_classifier,
    three_classes,
    two_classes,
    unsettled,
)
from scipy import sparse
from scipy.integrate import quad
from scipy.special import expit, logit, softmax
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

import cavity
from cavity import EPClassifier, LinearFactor, Status
from cavity.losses import Hinge, Logistic, QuasiZeroOne, Squared

LOSSES = ["logistic", "hinge", "quasi01", SquaredHinge()]


@pytest.fixture(scope="module", params=LOSSES, ids=lambda loss: loss if isinstance(loss, str) else "own")
def fitted(request):
    """A model of every loss, trained on two classes."""
    with unsettled():
        return classifier(loss=request.param).fit(*two_classes())


@pytest.fixture(scope="module")
def of_three():
    return classifier().fit(*three_classes())


# Fitted attributes.


@pytest.mark.parametrize("count", CLASSES)
@pytest.mark.parametrize("intercept", [True, False])
def test_attributes_have_the_shapes_of_scikit_learns_classifiers(intercept, count):
    X, y = CLASSES[count]()
    rows = 1 if count == 2 else count
    model = classifier(fit_intercept=intercept).fit(X, y)
    assert model.coef_.shape == model.coef_std_.shape == (rows, 4)
    assert model.intercept_.shape == model.intercept_std_.shape == (rows,)
    assert np.all(model.coef_std_ > 0.0)
    assert np.all((model.intercept_std_ > 0.0) == intercept)
    np.testing.assert_array_equal(model.classes_, np.unique(y))
    assert model.n_features_in_ == 4
    assert not hasattr(model, "feature_names_in_")
    assert len(model.posterior_) == rows
    assert model.posterior_[0].dim == 4 + intercept
    assert isinstance(model.log_evidence_, float)
    assert model.status_ is Status.CONVERGED
    assert 1 < model.n_iter_ <= 100
    assert model.decision_function(X).shape == ((57,) if count == 2 else (57, 3))
    assert model.predict_proba(X).shape == (57, count)
    assert model.predict(X).dtype == np.asarray(y).dtype


@pytest.mark.parametrize("count", CLASSES)
@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("max_iter", [1, 50])
def test_a_product_of_gaussians_is_that_of_the_library_on_the_same_mini_batches(max_iter, storage, count):
    X, y = CLASSES[count]()
    X, seed = STORAGES[storage](X), 3
    weights = np.random.default_rng(0).uniform(0.5, 2.0, y.size)
    options = {"max_iter": max_iter, "tol": 1e-4, "prior_mean": 0.1}
    with unsettled():
        model = product_classifier(random_state=seed, **options).fit(X, y, weights)
    ones = np.ones((y.size, 1), dtype=X.dtype)
    rows = sparse.hstack([X, ones], format="csr") if storage == "csr" else np.hstack([X, ones])
    prior = cavity.FactorialGaussian.from_moments([0.1] * 4 + [0.0], [1.0] * 4 + [100.0])
    labels = np.unique(y)[1:] if count == 2 else np.unique(y)
    results = [
        cavity.fit(
            LinearFactor.batches(Logistic(), rows, np.where(y == label, 1.0, -1.0), 10, weights),
            prior,
            "exact",
            max_iter=max_iter,
            sites="none" if max_iter == 1 else "own",
            order="shuffled",
            random_state=np.random.RandomState(seed).randint(2**31 - 1),
            tol=1e-4,
            safeguards=True,
            start=None if max_iter == 1 else "mode",
        )
        for label in labels
    ]
    np.testing.assert_allclose(model.coef_, [r.mean[:4] for r in results], rtol=1e-12)
    np.testing.assert_allclose(model.coef_std_, [r.std[:4] for r in results], rtol=1e-12)
    np.testing.assert_allclose(model.intercept_, [r.mean[4] for r in results], rtol=1e-12)
    assert model.log_evidence_ == pytest.approx(sum(r.log_evidence for r in results), rel=1e-12)
    assert model.n_iter_ == max(len(r.trace.changes) for r in results)
    traces = model.trace_ if count == 3 else (model.trace_,)
    assert [t.refusals for t in traces] == [r.trace.refusals for r in results]
    assert model.status_ in [r.status for r in results]


@pytest.mark.parametrize("count", CLASSES)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_full_covariance_is_that_of_ep_by_blocks(storage, count):
    X, y = CLASSES[count]()
    X = STORAGES[storage](X)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, y.size)
    loss = Logistic() if count == 2 else Hinge()  # more classes than two have a softmax for the logistic loss
    model = classifier(loss=loss, prior_mean=0.1).fit(X, y, weights)
    ones = np.ones((y.size, 1), dtype=X.dtype)
    rows = sparse.hstack([X, ones], format="csr") if storage == "csr" else np.hstack([X, ones])
    prior = cavity.FactorialGaussian.from_moments([0.1] * 4 + [0.0], [1.0] * 4 + [100.0])
    labels = np.unique(y)[1:] if count == 2 else np.unique(y)
    results = [
        cavity.fit(
            LinearFactor.batches(loss, rows, np.where(y == label, 1.0, -1.0), 7, weights),
            prior,
            covariance="full",
            tol=1e-5,
        )
        for label in labels
    ]
    # A constant column is hashed where it is one of the rows', which gives another order of them.
    for posterior, result in zip(model.posterior_, results, strict=True):
        assert np.max(np.abs(posterior.mean - result.mean) / result.std) < 1e-4
        np.testing.assert_allclose(posterior.covariance, result.posterior.covariance, rtol=1e-3, atol=1e-5)
        assert result.status is Status.CONVERGED
    assert model.status_ is Status.CONVERGED
    assert model.log_evidence_ == pytest.approx(sum(r.log_evidence for r in results), abs=1e-3)


def test_shuffling_follows_the_seed_and_full_covariances_need_none():
    X, y = two_classes()
    with unsettled():
        models = [product_classifier(max_iter=2, tol=0.0, random_state=seed).fit(X, y) for seed in (0, 0, 1)]
        drawn = [np.random.RandomState(0) for _ in range(2)]
        generators = [product_classifier(max_iter=2, tol=0.0, random_state=r).fit(X, y) for r in drawn]
        full = [classifier(max_iter=2, tol=0.0, random_state=seed).fit(X, y) for seed in (0, None)]
    assert_same_model(models[0], models[1])
    assert_same_model(models[0], generators[0])
    assert_same_model(generators[0], generators[1])
    assert_same_model(*full)
    assert models[0].posterior_ != models[2].posterior_


# Warnings.


def test_a_fit_that_does_not_settle_warns_and_says_what_to_do():
    X, y = cancer()
    with pytest.warns(ConvergenceWarning, match="raise max_iter, or narrow the prior") as record:
        model = classifier(max_iter=2, tol=0.0).fit(X, y)
    assert record[0].filename == __file__
    assert model.status_ is Status.MAX_ITER
    assert model.n_iter_ == 2
    assert "damping" not in str(record[0].message)  # estimators have no such parameter


def test_one_class_of_three_that_does_not_settle_is_enough():
    X, y = three_classes()
    with pytest.warns(ConvergenceWarning, match="not converged"):
        model = classifier(max_iter=2, tol=1e-9).fit(X, y)
    assert model.status_ is Status.MAX_ITER


def test_refused_updates_warn_in_fit_and_in_streams():
    X, y = two_classes()
    bad = np.vstack([X, np.full((2, 4), 1e8)])
    labels = np.append(y, [0, 1])
    good = classifier(loss=Broken()).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="not finite"):
        model = classifier(loss=Broken()).fit(bad, labels)
    assert {row for row, _ in model.trace_.refusals} == {57, 58}
    assert_same_model(model, good, 1e-4)  # as if the two rows were not there
    stream = classifier(loss=Broken()).partial_fit(X, y, [0, 1])
    before = numbers_of(stream.posterior_[0])
    with pytest.warns(ConvergenceWarning, match="not finite"):
        stream.partial_fit(bad[-1:], labels[-1:])
    for now, then in zip(numbers_of(stream.posterior_[0]), before, strict=True):
        np.testing.assert_allclose(now, then, rtol=1e-12)
    assert stream.trace_.refused == 1
    assert stream.status_ is Status.NONFINITE
    stream.partial_fit(X, y)
    assert stream.status_ is Status.SINGLE_PASS
    assert stream.trace_.refused == 1


def test_a_single_pass_and_a_settled_fit_do_not_warn():
    """Warnings are errors here."""
    assert classifier(max_iter=1).fit(*cancer()).status_ is Status.SINGLE_PASS
    assert classifier().fit(*two_classes()).status_ is Status.CONVERGED


# Probabilities.


def link(loss, z):
    return expit(loss.value(-1.0, z) - loss.value(1.0, z))


def integrated(loss, mean, std):
    """Mean of the link by adaptive integration, kinks and steep parts given as borders."""
    kinks = [-30.0, -5.0, -1.0, -0.1, 0.0, 0.1, 1.0, 5.0, 30.0]
    borders = sorted({mean - 9.0 * std, mean + 9.0 * std, *(k for k in kinks if abs(k - mean) < 9.0 * std)})

    def density(z):
        u = (z - mean) / std
        return link(loss, z) * exp(-0.5 * u * u) / (std * sqrt(2.0 * pi))

    return sum(quad(density, a, b, epsabs=1e-9)[0] for a, b in pairwise(borders))


def test_probabilities_are_those_of_the_link_under_the_posterior(fitted):
    X, _ = two_classes()
    tolerance = 1e-6 if isinstance(fitted.loss_, Logistic) else 1e-3
    X = np.concatenate([X[:5], 30.0 * X[5:10], 1000.0 * X[10:13]])
    mean, std = fitted.decision_function(X, return_std=True)
    wanted = [integrated(fitted.loss_, m, s) for m, s in zip(mean, std, strict=True)]
    probabilities = fitted.predict_proba(X)
    np.testing.assert_allclose(probabilities[:, 1], wanted, rtol=0.0, atol=tolerance)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), probabilities, rtol=1e-12)


def test_the_predictor_has_the_moments_of_the_posterior(fitted):
    X, _ = two_classes()
    mean, std = fitted.decision_function(X, return_std=True)
    np.testing.assert_allclose(mean, X @ fitted.coef_[0] + fitted.intercept_[0], rtol=1e-12, atol=1e-12)
    rows = np.column_stack([X, np.ones(len(X))])
    np.testing.assert_allclose(std**2, np.sum(rows @ fitted.covariance_[0] * rows, axis=1), rtol=1e-10)


def test_scores_are_the_log_odds_of_the_probabilities(fitted):
    X, _ = two_classes()
    for rows in (X, 10.0 * X):
        scores, probabilities = fitted.decision_function(rows), fitted.predict_proba(rows)
        np.testing.assert_allclose(scores, logit(probabilities[:, 1]), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(fitted.predict(rows), (scores > 0.0).astype(int))
        np.testing.assert_array_equal(fitted.predict(rows), np.argmax(probabilities, axis=1))


def test_far_scores_stay_finite_and_keep_their_order():
    """Where probabilities are one to rounding, their log odds still tell rows apart."""
    X, y = two_classes(n=3000, seed=5)
    model = classifier(prior_variance=1e4).fit(X, y)
    row = X[:1] / np.linalg.norm(X[0])
    scores = model.decision_function(np.linspace(-60.0, 60.0, 241)[:, None] * row)
    assert np.all(np.isfinite(scores))
    assert np.all(np.diff(np.sign(scores[-1]) * scores) > 0.0)
    assert np.max(np.abs(scores)) > 40.0


def test_doubt_moderates(fitted):
    """The wider the posterior, the nearer to one half, and never further from it than at the mean."""
    X, _ = two_classes()
    row = X[:1] / np.linalg.norm(X[0])
    mean, std = fitted.decision_function(row, return_std=True)
    plug_in = link(fitted.loss_, mean[0])
    whole = fitted.predict_proba(row)[0, 1]
    assert abs(whole - 0.5) < abs(plug_in - 0.5)
    assert abs(whole - plug_in) > 1e-3
    assert std[0] > 0.1
    mean, std = fitted.decision_function(1e4 * row, return_std=True)
    assert fitted.predict_proba(1e4 * row)[0, 1] == pytest.approx(norm.cdf(mean[0] / std[0]), abs=1e-3)


@pytest.mark.parametrize("count", CLASSES)
def test_draws_of_probabilities_agree_with_their_mean(count):
    X, y = CLASSES[count]()
    model, n = classifier().fit(X, y), 2000
    draws = model.predict_proba_samples(X[:8], n, random_state=0)
    assert draws.shape == (n, 8, count)
    np.testing.assert_allclose(draws.sum(axis=2), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(draws, model.predict_proba_samples(X[:8], n, random_state=0))
    gap = np.abs(draws.mean(axis=0) - model.predict_proba(X[:8]))
    np.testing.assert_array_less(gap, 5.0 * draws.std(axis=0) / np.sqrt(n) + 1e-3)
    coef, intercept = model.sample_coef(n, random_state=0, return_intercept=True)
    z = X[0] @ coef[1].T + intercept[1]
    wanted = [expit(z)] if count == 2 else softmax(z)
    np.testing.assert_allclose(draws[1, 0, 1:] if count == 2 else draws[1, 0], wanted)


def test_draws_of_probabilities_have_the_shape_asked_for(of_three):
    X, _ = three_classes()
    assert of_three.predict_proba_samples(X).shape == (100, 57, 3)
    assert of_three.predict_proba_samples(sparse.csr_array(X[:2]), 3, np.random.RandomState(0)).shape == (3, 2, 3)


def test_three_classes_one_against_the_rest_share_a_probability_of_one():
    X, y = three_classes()
    loss = Logistic(sharpness=2.0)  # only a sharpness of one is the softmax's
    of_three = classifier(loss=loss).fit(X, y)
    for rows in (X, 1e3 * X, 1e6 * X, np.zeros((1, 4))):
        probabilities = of_three.predict_proba(rows)
        assert np.all((probabilities >= 0.0) & (probabilities <= 1.0))
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)
    mean, std = of_three.decision_function(X[:3], return_std=True)
    each = np.array(
        [[integrated(loss, m, s) for m, s in zip(*row, strict=True)] for row in zip(mean, std, strict=True)]
    )
    wanted = each / each.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(of_three.predict_proba(X[:3]), wanted, rtol=0.0, atol=1e-6)
    scores = of_three.decision_function(X)
    np.testing.assert_allclose(scores[:3], logit(each), rtol=0.0, atol=1e-5)
    np.testing.assert_array_equal(of_three.predict(X), of_three.classes_[np.argmax(scores, axis=1)])
    np.testing.assert_array_equal(of_three.predict(X), of_three.classes_[np.argmax(of_three.predict_proba(X), axis=1)])
    assert of_three.score(X, y) > 0.5


def test_every_class_of_three_is_one_against_the_rest_for_other_losses_than_the_logistic():
    X, y = three_classes()
    of_three = classifier(loss="hinge").fit(X, y)
    for k, label in enumerate(np.unique(y)):
        binary = classifier(loss="hinge").fit(X, y == label)
        np.testing.assert_allclose(binary.coef_[0], of_three.coef_[k], rtol=0.0, atol=1e-4)
        np.testing.assert_allclose(binary.covariance_[0], of_three.covariance_[k], rtol=1e-3, atol=1e-5)


def test_real_data_are_learned():
    X, y = cancer()
    model = EPClassifier(prior_variance=1.0).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) > 0.95
    chosen = model.predict_proba(X[1::2])[np.arange(y[1::2].size), y[1::2]]
    assert np.mean(-np.log(chosen)) < 0.15


# Losses.


@dataclass(frozen=True)
class Lopsided:
    """A loss that spares one sign."""

    favour: float = 2.0

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        return np.logaddexp(0.0, -y * (z + self.favour))

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        p = 1.0 / (1.0 + np.exp(np.minimum(y * (z + self.favour), 700.0)))
        return self.value(y, z), -y * p, p * (1.0 - p)


def test_a_loss_that_is_not_symmetric_decides_by_its_own_link():
    X, y = two_classes()
    model = classifier(loss=Lopsided(), fit_intercept=False).fit(X, y)
    scores, probabilities = model.decision_function(X), model.predict_proba(X)
    moments = zip(*model.decision_function(X[:3], return_std=True), strict=True)
    wanted = [integrated(Lopsided(), mean, std) for mean, std in moments]
    np.testing.assert_allclose(probabilities[:3, 1], wanted, rtol=0.0, atol=1e-3)
    np.testing.assert_array_equal(model.predict(X), (scores > 0.0).astype(int))
    np.testing.assert_array_equal(model.predict(X), np.argmax(probabilities, axis=1))


def test_a_loss_has_a_name_or_is_an_object():
    X, y = two_classes()
    for name, loss in (("logistic", Logistic()), ("hinge", Hinge()), ("quasi01", QuasiZeroOne())):
        with unsettled():
            assert_same_model(classifier(loss=name).fit(X, y), classifier(loss=loss).fit(X, y))
    for wrong in ("squared", Squared(), 3, None):
        with pytest.raises(ValueError, match="loss must be"):
            classifier(loss=wrong).fit(X, y)


def test_targets_that_are_no_classes_are_refused():
    X, y = two_classes()
    for labels in (np.where(y == 1, None, "a"), np.array([3, "a"], dtype=object)[y]):
        labels[0] = None
        with pytest.raises(ValueError, match=r"y must hold labels of one kind|Unknown label type|contains NaN|None"):
            classifier().fit(X, labels)
        with pytest.raises(ValueError, match=r"not among the classes|None"):
            classifier().partial_fit(X, y, [0, 1]).partial_fit(X, labels)
    with pytest.raises(ValueError, match="Unknown label type"):
        classifier().fit(X, y + 0.5)
    with pytest.raises(ValueError, match="number of classes has to be greater than one; got 1 class"):
        classifier().fit(X, np.zeros_like(y))
    for rows in (X, X[:, :2]):
        with pytest.raises(ValueError, match=r"X has \d features, but EPClassifier is expecting \d features"):
            classifier().fit(rows, y).predict(X[:, :3])


@pytest.mark.parametrize("covariance", ["full", "sparse", "diagonal"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_loop_hides_a_number_that_is_not_finite(value, storage, covariance):
    X, y = two_classes()
    for row in (0, 13, 56):
        for label in (0, 1):
            bad, labels = np.array(X), np.array(y)
            bad[row, 1], labels[row] = value, label
            model = classifier(covariance=covariance)
            for max_iter in (1, 3):
                before = frozen(model.set_params(max_iter=max_iter))
                with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
                    model.fit(STORAGES[storage](bad), labels)
                assert frozen(model) == before


# The classifier's table names classes; more of tables in test_table.py.


def test_columns_and_classes_name_the_rows_of_the_table():
    X, y = three_classes()
    table = classifier().fit(pd.DataFrame(X, columns=list("abcd")), y).summary()
    assert table.index.names == ["class", "coefficient"]
    assert table.index[:6].tolist() == [("ash", "intercept"), *(("ash", c) for c in "abcd"), ("birch", "intercept")]
