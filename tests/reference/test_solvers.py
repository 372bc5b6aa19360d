"""Offline solvers against closed conditions and another program."""

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from cavity.losses import Hinge, Logistic
from reference import solvers

VARIANCE = 25.0
# Sums of the same numbers in another order.
ROUNDING = 1e-9


@pytest.fixture(params=[(60, 3), (8, 12)], ids=["tall", "wide"])
def rows(request):
    return np.random.default_rng(0).standard_normal(request.param) * 0.3 + 0.1


def test_newton_finds_the_logistic_minimum(rows):
    found = solvers.newton_logistic(rows, VARIANCE)
    here = solvers.cost(Logistic(), rows, found.point, VARIANCE)
    assert 0.0 <= found.gap < 1e-12
    for step in 0.01 * np.eye(rows.shape[1]):
        assert here < solvers.cost(Logistic(), rows, found.point + step, VARIANCE)


def test_the_hinge_program_equals_liblinear(rows):
    found = solvers.hinge_program(rows, VARIANCE)
    here = solvers.cost(Hinge(), rows, found.point, VARIANCE)
    signs = np.where(np.arange(len(rows)) % 2, 1.0, -1.0)
    other = LinearSVC(loss="hinge", C=VARIANCE, fit_intercept=False, tol=1e-10, max_iter=10_000_000, random_state=0)
    other.fit(rows * signs[:, None], signs)
    there = solvers.cost(Hinge(), rows, other.coef_[0], VARIANCE)
    assert here == pytest.approx(there, rel=1e-6)
    assert -ROUNDING * here <= found.gap <= 1e-7 * here
    assert there >= here - found.gap - ROUNDING * here


def test_a_loose_hinge_program_still_bounds_its_error(rows):
    best = solvers.cost(Hinge(), rows, solvers.hinge_program(rows, VARIANCE).point, VARIANCE)
    loose = solvers.hinge_program(rows, VARIANCE, tol=0.5)
    above = solvers.cost(Hinge(), rows, loose.point, VARIANCE) - best
    assert 0.0 < above <= loose.gap
