"""EP over partitions that do not see each other ends where EP by blocks over all rows does."""

from dataclasses import replace

import numpy as np
import pytest
from partition_cases import InProcess
from scipy import sparse

from cavity import losses
from cavity.ep import blocks, partitions
from cavity.ep.driver import Options
from cavity.ep.hyperparameters import Group, Hyperparameters
from cavity.ep.partitions import Acceleration, Message, sweep
from cavity.ep.posteriors import DensePosterior, JointPosterior, SparsePosterior
from cavity.ep.result import Status
from cavity.factors.rows import Rows
from cavity.gaussians import analyse
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.sparse import analyse_blocks
from cavity.losses.joint import Softmax
from cavity.losses.noise import log_normalizer

OPTIONS = Options(100, 1e-4)


def problem(loss, n=600, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.linspace(0.3, 2.0, d)
    z = X @ np.linspace(-1.0, 1.0, d)
    y = {
        "signs": np.where(z + rng.logistic(size=n) > 0.0, 1.0, -1.0),
        "reals": z + 0.5 * rng.standard_t(4, size=n),
        "counts": rng.poisson(np.exp(np.clip(z, -3.0, 2.0))).astype(float),
        "classes": np.argmax(X[:, :3] + rng.gumbel(size=(n, 3)), axis=1).astype(float),
    }[loss.targets]
    return X, y


def prior_of(loss, d):
    return FactorialGaussian.from_moments(np.zeros(d * getattr(loss, "predictors", 1)), 4.0)


def in_memory(loss, X, y, weights=None, offset=None, hyperparameters=None):
    rows = Rows.arrange(X, y[None], weights, True, offset)
    prior = prior_of(loss, rows.shape[1])
    work = (JointPosterior if hasattr(loss, "predictors") else DensePosterior)(rows, prior)
    return blocks.run(loss, rows, work, OPTIONS, hyperparameters=hyperparameters)


def parts_of(X, y, count, order, weights=None, offset=None):
    pieces = np.array_split(order, count)
    cut = [(X[i], y[i][None], None if weights is None else weights[i], True) for i in pieces]
    return [Rows.arrange(*c, None if offset is None else offset[i]) for c, i in zip(cut, pieces, strict=True)]


def assert_same(found, expected, tol=2e-3, evidence=1e-3, targets=()):
    assert found.status is Status.CONVERGED
    assert np.max(np.abs(found.mean - expected.mean) / expected.std) < tol
    assert np.max(np.abs(np.log(found.std / expected.std))) < tol
    # With normalisers: losses of two noise scales compare by densities.
    densities = [one.log_evidence - np.sum(log_normalizer(one.loss, targets)) for one in (found, expected)]
    assert densities[0] == pytest.approx(densities[1], abs=evidence)


@pytest.mark.parametrize("count", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("order", ["shuffled", "sorted"])
@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge()], ids=repr)
def test_partitions_of_any_number_and_order_have_the_posterior_of_all_rows(loss, order, count):
    X, y = problem(loss)
    places = np.lexsort((X[:, 0], y)) if order == "sorted" else np.random.default_rng(1).permutation(y.size)
    rows = InProcess(parts_of(X, y, count, places))
    assert_same(partitions.run(loss, prior_of(loss, 6), rows, OPTIONS), in_memory(loss, X, y))


@pytest.mark.parametrize("loss", [losses.Squared(0.7), losses.Quantile(0.8), losses.Poisson(), Softmax(3)], ids=repr)
def test_every_kind_of_loss_with_weights_and_offsets(loss):
    X, y = problem(loss)
    weights = np.random.default_rng(2).integers(0, 4, y.size).astype(float)
    offset = None if hasattr(loss, "predictors") else 0.3 * np.sin(np.arange(y.size))
    rows = parts_of(X, y, 4, np.arange(y.size), weights, offset)
    found = partitions.run(loss, prior_of(loss, 6), InProcess(rows), OPTIONS)
    assert_same(found, in_memory(loss, X, y, weights, offset))


@pytest.mark.parametrize("loss", [losses.Squared(), losses.Absolute(), losses.Huber()], ids=repr)
def test_prior_variances_and_the_noise_scale_are_found_as_in_memory(loss):
    X, y = problem(loss)
    free = Hyperparameters((Group(np.arange(3)), Group(np.arange(3, 5))), scale=True)
    expected = in_memory(loss, X, y, hyperparameters=replace(free))
    rows, prior = InProcess(parts_of(X, y, 5, np.argsort(y))), prior_of(loss, 6)
    found = partitions.run(loss, prior, rows, OPTIONS, hyperparameters=free, center=float(np.mean(y)))
    assert_same(found, expected, 0.01, evidence=0.02, targets=y)
    assert found.loss.scale == pytest.approx(expected.loss.scale, rel=1e-3)
    assert np.allclose(found.prior.precision, expected.prior.precision, rtol=0.03)


def test_partitions_without_rows_change_nothing():
    loss = losses.Logistic()
    X, y = problem(loss)
    empty = Rows.arrange(X[:0], y[None, :0], None, True)
    rows = [empty, *parts_of(X, y, 2, np.arange(y.size)), empty]
    assert_same(partitions.run(loss, prior_of(loss, 6), InProcess(rows), OPTIONS), in_memory(loss, X, y))


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge()], ids=repr)
def test_rounds_do_not_depend_on_how_rows_are_divided(loss):
    X, y = problem(loss, 640)
    rows = Rows.arrange(X, y[None], None, True)

    def changes(count):
        cuts = [slice(k, None, count) for k in range(count)]
        parts = [Rows(X, rows.order[cut], rows.targets[:, cut], rows.weights[cut], True) for cut in cuts]
        return np.array(partitions.run(loss, prior_of(loss, 6), InProcess(parts), Options(8, 0.0)).trace.changes)

    assert np.allclose(changes(5), changes(1), rtol=1e-6)


class Forgetful(InProcess):
    """Loses the sites of some partitions in some rounds."""

    def __init__(self, parts, losses_by_round, analysis=None):
        super().__init__(parts, analysis)
        self._losses, self._round = losses_by_round, 0

    def sweep(self, message):
        self._round += message.wave is None
        for k in self._losses.get(self._round, ()):
            self.sites[k] = None
        return super().sweep(message)


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge(), losses.Poisson(), Softmax(3)], ids=repr)
@pytest.mark.parametrize("lost", [{0: [1]}, {1: [0]}, {2: [0, 1, 2, 3], 3: [3]}], ids=repr)
def test_sites_that_are_lost_are_derived_from_the_posterior(loss, lost):
    X, y = problem(loss)
    rows = Forgetful(parts_of(X, y, 4, np.arange(y.size)), lost)
    assert_same(partitions.run(loss, prior_of(loss, 6), rows, OPTIONS), in_memory(loss, X, y))


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge(), losses.Squared(0.5)], ids=repr)
def test_at_the_fixed_point_the_posterior_alone_decides_on_the_sites(loss):
    X, y = problem(loss)
    rows = InProcess(parts_of(X, y, 3, np.arange(y.size)))
    result = partitions.run(loss, prior_of(loss, 6), rows, Options(200, 1e-7))
    message = Message(loss, result.prior, result.sites.information[np.triu_indices(6)], result.sites.shift)
    for part, last in zip(rows.parts, rows.sites, strict=True):
        derived, sums = sweep(part, None, message)
        assert sums.derived == 1
        assert np.allclose(derived.sites.precision, last.sites.precision, rtol=1e-3, atol=1e-5)
        assert np.allclose(derived.sites.shift, last.sites.shift, rtol=1e-3, atol=1e-3)


def test_a_run_continues_from_its_state_in_other_partitions():
    loss = losses.Hinge()
    X, y = problem(loss)
    cut = partitions.run(loss, prior_of(loss, 6), InProcess(parts_of(X, y, 4, np.arange(y.size))), Options(3, 1e-4))
    assert cut.status is Status.MAX_ITER
    rows = InProcess(parts_of(X, y, 7, np.arange(y.size)[::-1]))
    found = partitions.run(loss, prior_of(loss, 6), rows, OPTIONS, state=cut.state)
    assert_same(found, in_memory(loss, X, y))


def totals(rows):
    """Precision matrix and shift of the sites with which the last message starts."""
    total, shift = np.zeros((6, 6)), np.zeros(6)
    for part, last in zip(rows.parts, rows.sites, strict=True):
        A, sites = part.block(slice(None)), last.mixed(rows.message.mix, rows.message.factors)
        total, shift = total + (A.T * sites.precision) @ A, shift + A.T @ sites.shift
    return total, shift


class Overstated(InProcess):
    """Proposes sites in the second round that no posterior can have."""

    def sweep(self, message):
        sums = super().sweep(message)
        self.rounds = getattr(self, "rounds", 0) + (message.wave is None)
        if self.rounds == 1:
            for part, last in zip(self.parts, self.sites, strict=True):
                A = part.block(slice(None))
                last.sites.precision[:] -= 100.0
                sums = sums._replace(information=sums.information - 100.0 * (A.T @ A)[np.triu_indices(6)])
        return sums


def test_a_round_that_would_be_improper_is_shortened_with_its_sites():
    loss = losses.Logistic()
    X, y = problem(loss)
    rows = Overstated(parts_of(X, y, 3, np.arange(y.size)))
    result = partitions.run(loss, prior_of(loss, 6), rows, Options(2, 1e-4))
    before, after = rows.message.mix
    assert 0.0 < after == 1.0 - before < 1.0
    assert np.allclose(totals(rows)[0], result.sites.information, rtol=1e-9, atol=1e-6)


def test_sums_of_partitions_are_those_of_their_sites():
    loss = losses.Hinge()
    X, y = problem(loss)
    rows = InProcess(parts_of(X, y, 3, np.arange(y.size)))
    result = partitions.run(loss, prior_of(loss, 6), rows, OPTIONS)
    total, shift = totals(rows)
    assert np.allclose(total, result.sites.information)
    assert np.allclose(shift, result.sites.shift)


def crossed(n=900, seed=0):
    """Rows of two crossed factors and a number, with an intercept: a sparse precision with a border of two."""
    rng = np.random.default_rng(seed)
    one, two = rng.integers(0, 40, n), rng.integers(0, 25, n)
    hot = sparse.csr_array((np.ones(2 * n), (np.tile(np.arange(n), 2), np.concatenate([one, 40 + two]))), shape=(n, 65))
    X = sparse.csr_array(sparse.hstack([rng.normal(size=(n, 1)), hot], format="csr"))
    z = X @ rng.normal(size=66)
    return X, np.where(z + rng.logistic(size=n) > 0.0, 1.0, -1.0)


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge()], ids=repr)
@pytest.mark.parametrize("lost", [{}, {2: [0, 3]}], ids=repr)
def test_a_sparse_precision_over_partitions_is_that_of_all_rows(loss, lost):
    X, y = crossed()
    order = np.argsort(X[:, [1]].toarray().ravel())
    whole = Rows.arrange(X, y[None], None, True)
    parts = [Rows.arrange(X[i], y[None, i], None, True) for i in np.array_split(order, 5)]
    analysis = analyse_blocks(lambda: (part.matrix() for part in parts))
    prior = FactorialGaussian.from_moments(np.zeros(67), 4.0)
    expected = blocks.run(loss, whole, SparsePosterior(whole, analyse(whole.matrix()), prior, whole.matrix()), OPTIONS)
    found = partitions.run(loss, prior, Forgetful(parts, lost, analysis), OPTIONS)
    assert_same(found, expected)
    dense = partitions.run(loss, prior, InProcess(parts), OPTIONS)
    assert_same(found, dense)


def test_a_linear_map_with_as_many_modes_as_rounds_are_combined_is_solved():
    rates = np.array([0.9, -2.0, 0.3, 0.9, -2.0, 0.3])  # of three modes, one of them unstable
    acceleration, x = Acceleration(), np.full(6, 0.01)
    for _ in range(8):
        coefficients = acceleration.after(rates * x - x, (rates * x, np.zeros(1)), comparable=True)
        x = acceleration.combined(coefficients)[0]
    assert np.max(np.abs(x)) < 1e-6


def test_far_moves_and_rounds_that_differ_are_not_combined():
    acceleration, small, posterior = Acceleration(), np.full(4, 0.01), (np.zeros(3), np.zeros(2))
    for move, comparable in ((100.0 * small, True), (small, False), (small, True)):
        assert acceleration.left(acceleration.after(move, posterior, comparable)) == np.inf
    assert acceleration.after(small, posterior, True).size == 1
    assert acceleration.after(0.5 * small, posterior, True).size == 2
    acceleration.forget()
    assert acceleration.after(small, posterior, True).size == 1


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.Hinge()], ids=repr)
@pytest.mark.parametrize("count", [16, 64])
def test_rows_of_a_rare_level_and_one_class_in_many_partitions(loss, count):
    # 48 rows that agree, spread over the partitions: together they overshoot, damped rounds are slow, and a combination
    # that happens to move nothing must not end the fit.
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=1600), 25.0 * (np.arange(1600) % 100 < 3)])
    y = np.where(X[:, 0] + rng.logistic(size=1600) > 0.0, 1.0, -1.0)
    y[X[:, 1] > 0.0] = -1.0
    prior = FactorialGaussian.from_moments(np.zeros(3), 25.0)
    rows = Rows.arrange(X, y[None], None, True)
    exact = blocks.run(loss, rows, DensePosterior(rows, prior), Options(200, 1e-6))
    parts = [Rows.arrange(X[i], y[None, i], None, True) for i in np.array_split(np.arange(1600), count)]
    found = partitions.run(loss, prior, InProcess(parts), Options(100, 0.01))
    assert found.status is Status.CONVERGED
    assert len(found.trace.changes) <= 20
    assert np.max(np.abs(found.mean - exact.mean) / exact.std) < 0.01
