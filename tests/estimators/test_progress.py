"""A function given as ``verbose`` sees every loop of a fit, and may stop it."""

import math

import numpy as np
import pytest

import cavity
from cavity.estimators import Progress


def rows(classes=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    return X, np.digitize(X[:, 0] + rng.logistic(size=120), np.linspace(-1.0, 1.0, classes - 1))


def test_every_loop_is_told_and_the_start():
    told = []
    model = cavity.EPClassifier(verbose=told.append).fit(*rows())
    assert [progress.loop for progress in told] == list(range(model.n_iter_ + 1))
    assert all(isinstance(progress, Progress) and progress.rows == 120 for progress in told)
    assert math.isnan(told[0].change)
    assert [progress.change for progress in told[1:]] == list(model.trace_.changes)
    assert all(math.isnan(progress.left) for progress in told[:2])
    assert all(progress.left >= 0.0 for progress in told[2:])


def test_predictors_that_are_fitted_one_by_one_are_told_apart():
    told = []
    cavity.EPClassifier("hinge", verbose=told.append).fit(*rows(classes=3))
    assert [p.predictor for p in told if p.loop == 0] == [0, 1, 2]
    assert {p.predictors for p in told} == {3}


def test_a_function_does_not_change_the_fit():
    told, silent = (cavity.EPClassifier(verbose=v).fit(*rows()) for v in (lambda progress: None, False))
    assert np.array_equal(told.coef_, silent.coef_)


def test_an_interruption_keeps_the_loop_and_the_fit_continues_from_it(tmp_path):
    X, y = rows()
    path, whole = tmp_path / "run.ckpt", cavity.EPClassifier(tol=0.0, max_iter=9)

    def stop(progress):
        if progress.loop == 4:
            raise KeyboardInterrupt

    with pytest.warns(match="not converged"):
        whole.fit(X, y)
    with pytest.raises(KeyboardInterrupt):
        cavity.EPClassifier(tol=0.0, max_iter=9, verbose=stop).fit(X, y, checkpoint=path)
    loops = []
    model = cavity.EPClassifier(tol=0.0, max_iter=9, verbose=lambda progress: loops.append(progress.loop))
    with pytest.warns(match="not converged"):
        model.fit(X, y, checkpoint=path)
    assert loops == [0, 5, 6, 7, 8, 9]
    assert np.array_equal(model.coef_, whole.coef_)


def test_what_is_neither_a_choice_nor_a_function_is_refused():
    with pytest.raises(ValueError, match="verbose must be True, False, None or a function, got 'loud'"):
        cavity.EPClassifier(verbose="loud").fit(*rows())
