"""Rounds that all do the same are extrapolated to where they lead."""

import numpy as np
from partition_cases import InProcess

from cavity import losses
from cavity.ep import partitions
from cavity.ep.acceleration import Acceleration
from cavity.ep.driver import Options
from cavity.ep.result import Status
from cavity.factors.arranged import Rows
from cavity.gaussians.factorial import FactorialGaussian


def test_a_linear_map_with_as_many_modes_as_rounds_are_combined_is_solved():
    rates = np.array([0.9, -2.0, 0.3, 0.9, -2.0, 0.3])  # of three modes, one of them unstable
    acceleration, x, proposed = Acceleration(), np.full(6, 0.01), []
    for _ in range(8):
        proposed.insert(0, rates * x)
        found = acceleration.after(rates * x - x, comparable=True)
        x = found.coefficients @ proposed[: found.coefficients.size]
    assert np.max(np.abs(x)) < 1e-6


def test_far_moves_and_rounds_that_differ_are_not_combined():
    acceleration, small = Acceleration(), np.full(4, 0.01)
    for move, comparable in ((100.0 * small, True), (small, False), (small, True)):
        assert acceleration.after(move, comparable).remaining == np.inf
    assert acceleration.after(small, True).coefficients.size == 1
    assert acceleration.after(0.5 * small, True).coefficients.size == 2
    acceleration.forget()
    assert acceleration.after(small, True).coefficients.size == 1


def test_rows_of_one_class_in_many_partitions_do_not_slow_the_fit_down():
    # 48 rows of a rare level, all of one class, three in each of 16 partitions: together they overshoot, and damped
    # rounds take more than 30.
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=1600), 25.0 * (np.arange(1600) % 100 < 3)])
    y = np.where(X[:, 0] + rng.logistic(size=1600) > 0.0, 1.0, -1.0)
    y[X[:, 1] > 0.0] = -1.0
    prior = FactorialGaussian.from_moments(np.zeros(3), 25.0)

    def fitted(count, tol):
        cut = np.array_split(np.arange(1600), count)
        rows = InProcess([Rows.arrange(X[i], y[None, i], None, True) for i in cut])
        return partitions.run(losses.Hinge(), prior, rows, Options(100, tol))

    exact, found = fitted(1, 1e-6), fitted(16, 0.01)
    assert found.status is Status.CONVERGED
    assert len(found.trace.changes) <= 20
    assert np.max(np.abs(found.mean - exact.mean) / exact.std) < 0.01
