"""EP with a full covariance: equal to a plain form of itself, exact where a closed form or brute force tells."""

from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse
from scipy.integrate import dblquad, quad

import cavity
from cavity.factors import LinearBatches
from cavity.full import FullResult, fit_full
from cavity.gaussian import FactorialGaussian
from cavity.losses import Absolute, Hinge, Logistic, QuasiZeroOne, Squared
from cavity.mode import find_mode
from cavity.moments import tilt
from cavity.result import Refusal, RunError, Status

PARITY = 1e-8
CLOSED_FORM = 1e-9
SIGNED = [Logistic(), Hinge(), QuasiZeroOne()]


def plain_full_ep(factors, prior, loops, beta=1.0, damping=1.0, start="mode"):
    """The same, with a fresh inverse for every row: mean, covariance, log evidence."""
    X = factors.X.toarray() if sparse.issparse(factors.X) else np.asarray(factors.X, dtype=float)
    n, d = X.shape
    w = beta * (np.ones(n) if factors.weights is None else factors.weights)
    C, R, T = np.zeros((3, n))
    if start == "mode":
        mode = find_mode(factors, prior, beta)
        z = X @ mode.point
        T = w * np.maximum(mode.curvatures, 0.0)
        R = T * z - w * mode.slopes
        C = -w * factors.loss.value(factors.targets, z) - R * z + 0.5 * T * z**2
    for _ in range(loops):
        for i in np.flatnonzero(w > 0.0):
            cavity_precision = np.diag(prior.precision) + (X.T * T) @ X - T[i] * np.outer(X[i], X[i])
            S = np.linalg.inv(cavity_precision)
            m, v = X[i] @ S @ (prior.shift + X.T @ R - R[i] * X[i]), X[i] @ S @ X[i]
            t = tilt(factors.loss, factors.targets[i], m, v, w[i])
            if v == 0.0:
                C[i] = t.log_mass
                continue
            mean, variance = m + t.shift * np.sqrt(v), t.ratio * v
            precision, shift = 1.0 / variance - 1.0 / v, mean / variance - m / v
            scale = t.log_mass + 0.5 * (m**2 / v + np.log(v) - mean**2 / variance - np.log(variance))
            T[i] += damping * (precision - T[i])
            R[i] += damping * (shift - R[i])
            C[i] += damping * (scale - C[i])
    P, b = np.diag(prior.precision) + (X.T * T) @ X, prior.shift + X.T @ R
    m = np.linalg.solve(P, b)
    evidence = prior.log_scale + C.sum() + 0.5 * (b @ m + d * np.log(2.0 * np.pi) - np.linalg.slogdet(P)[1])
    return m, np.linalg.inv(P), evidence


def assert_same(result: FullResult, expected, tolerance):
    mean, covariance, evidence = expected
    np.testing.assert_allclose(result.mean, mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(result.covariance, covariance, rtol=tolerance, atol=tolerance)
    assert result.log_evidence == pytest.approx(evidence, rel=tolerance, abs=tolerance)


def signed_data(n=30, d=4, seed=0, noise=0.7):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.where(X @ rng.normal(size=d) + noise * rng.normal(size=n) > 0.0, 1.0, -1.0)
    return X, y


def wide_prior(d, variance=4.0):
    return FactorialGaussian.from_moments(np.linspace(-0.3, 0.5, d), variance, log_mass=0.4)


@pytest.mark.parametrize("loss", SIGNED, ids=repr)
@pytest.mark.parametrize("start", ["mode", None])
@pytest.mark.parametrize("damping", [1.0, 0.6])
def test_equals_the_plain_form(loss, start, damping):
    X, y = signed_data()
    factors, prior = LinearBatches(loss, X, y, 7), wide_prior(4)
    result = fit_full(factors, prior, loops=3, tol=0.0, beta=0.8, damping=damping, start=start)
    assert result.trace.refused == 0
    assert_same(result, plain_full_ep(factors, prior, 3, 0.8, damping, start), PARITY)


@pytest.mark.parametrize("loss", SIGNED, ids=repr)
def test_weights_are_as_good_as_in_the_plain_form_and_zero_is_absence(loss):
    X, y = signed_data(seed=1)
    w = np.random.default_rng(2).choice([0.0, 0.5, 1.0, 2.3], size=y.size)
    factors, prior = LinearBatches(loss, X, y, weights=w), wide_prior(4)
    result = fit_full(factors, prior, loops=3, tol=0.0)
    assert_same(result, plain_full_ep(factors, prior, 3), PARITY)
    # From the prior: a mode found with smoothing depends a little on how many rows there are.
    result = fit_full(factors, prior, loops=3, tol=0.0, start=None)
    kept = fit_full(LinearBatches(loss, X[w > 0], y[w > 0], weights=w[w > 0]), prior, loops=3, tol=0.0, start=None)
    assert_same(result, (kept.mean, kept.covariance, kept.log_evidence), PARITY)
    assert result.trace.updates == kept.trace.updates == 3 * np.count_nonzero(w)


@pytest.mark.parametrize("start", ["mode", None])
def test_is_bayesian_linear_regression_on_squared_losses(start):
    rng = np.random.default_rng(3)
    X, y, w, beta, scale = rng.normal(size=(25, 5)), rng.normal(size=25), rng.uniform(0.1, 3.0, 25), 1.7, 0.6
    X[4], prior = 0.0, wide_prior(5)
    result = fit_full(LinearBatches(Squared(scale), X, y, weights=w), prior, beta=beta, start=start)
    noise = scale**2 / (beta * w)
    P = np.diag(prior.precision) + (X.T / noise) @ X
    mean = np.linalg.solve(P, prior.shift + X.T @ (y / noise))
    # The evidence of y, less the constants that the loss leaves out.
    G, r = np.diag(noise) + X @ np.diag(prior.variance) @ X.T, y - X @ prior.mean
    evidence = 0.4 - 0.5 * (r @ np.linalg.solve(G, r) + np.linalg.slogdet(G)[1] - np.sum(np.log(noise)))
    assert_same(result, (mean, np.linalg.inv(P), evidence), CLOSED_FORM)
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.precision, P, rtol=CLOSED_FORM, atol=CLOSED_FORM)
    np.testing.assert_allclose(result.std**2, np.diag(result.covariance))
    np.testing.assert_array_equal(result.variance, np.diag(result.covariance))


@pytest.mark.parametrize("loss", SIGNED, ids=repr)
def test_one_row_is_exact(loss):
    x, prior = np.array([1.5]), FactorialGaussian.from_moments([-0.4], 2.0)
    result = fit_full(LinearBatches(loss, x[None], [1.0]), prior, tol=1e-10)

    def density(t, power):
        return t**power * np.exp(-loss.value(1.0, x[0] * t) - (t + 0.4) ** 2 / 4.0) / np.sqrt(4.0 * np.pi)

    mass, first, second = (
        quad(density, -12.0, 12.0, args=(k,), epsabs=1e-13, limit=400, points=[-1.0, 0.0, 0.5, 1.0])[0]
        for k in range(3)
    )
    mean = first / mass
    assert_same(result, ([mean], [[second / mass - mean**2]], np.log(mass)), 1e-7)
    assert result.status is Status.CONVERGED


def test_evidence_is_near_the_integral_in_one_dimension():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=12), np.where(rng.random(12) < 0.6, 1.0, -1.0)
    factors, prior = LinearBatches(Logistic(), x[:, None], y), FactorialGaussian.from_moments([0.0], 3.0)
    result = fit_full(factors, prior, tol=1e-8)

    def density(t):
        return np.exp(-float(factors.cost(np.array([t]))) - t * t / 6.0) / np.sqrt(6.0 * np.pi)

    # EP itself is an approximation: the tolerances are its errors, not those of the arithmetic.
    mass = quad(density, -15.0, 15.0, epsabs=1e-13)[0]
    mean = quad(lambda t: t * density(t), -15.0, 15.0, epsabs=1e-13)[0] / mass
    assert result.log_evidence == pytest.approx(np.log(mass), abs=5e-3)
    assert result.mean[0] == pytest.approx(mean, abs=5e-3)


def test_evidence_and_covariance_are_near_the_integral_in_two_dimensions():
    X, y = signed_data(n=10, d=2, seed=5, noise=2.0)
    factors, prior = LinearBatches(Logistic(), X, y), FactorialGaussian.from_moments([0.0, 0.0], 1.0)
    result = fit_full(factors, prior, tol=1e-8)

    def moment(f):
        def density(a, b):
            t = np.array([a, b])
            return f(t) * np.exp(-float(factors.cost(t)) - 0.5 * (t @ t)) / (2.0 * np.pi)

        return dblquad(density, -6.0, 6.0, -6.0, 6.0, epsabs=1e-6)[0]

    mass = moment(lambda t: 1.0)
    a, b, ab = (moment(f) / mass for f in (lambda t: t[0], lambda t: t[1], lambda t: t[0] * t[1]))
    assert result.log_evidence == pytest.approx(np.log(mass), abs=2e-3)
    assert result.mean == pytest.approx([a, b], abs=5e-3)
    assert result.covariance[0, 1] == pytest.approx(ab - a * b, abs=5e-3)


@pytest.mark.parametrize("loss", [Logistic(), Hinge()], ids=repr)
def test_agrees_with_the_factorised_fit_where_the_posterior_factorises(loss):
    rng = np.random.default_rng(6)
    X = np.zeros((40, 3))
    X[np.arange(40), np.arange(40) % 3] = rng.normal(size=40)
    factors, prior = LinearBatches(loss, X, rng.choice([-1.0, 1.0], size=40), 1), wide_prior(3)
    full = fit_full(factors, prior, loops=200, tol=1e-10)
    factorised = cavity.fit(factors, prior, scheme="exact", loops=200, tol=1e-10)
    expected = factorised.mean, np.diag(factorised.variance), factorised.log_evidence
    assert_same(full, expected, 1e-6)


@pytest.mark.parametrize("loss", [Logistic(), Hinge()], ids=repr)
def test_storage_and_precision_of_the_rows_do_not_matter(loss, monkeypatch):
    X, y = signed_data(n=40, seed=7)
    X = np.where(np.abs(X) < 0.6, 0.0, X).astype(np.float32)
    prior = wide_prior(4)
    reference = fit_full(LinearBatches(loss, X.astype(float), y), prior)
    expected = reference.mean, reference.covariance, reference.log_evidence
    assert_same(fit_full(LinearBatches(loss, X, y), prior), expected, 1e-6)
    assert_same(fit_full(LinearBatches(loss, np.asfortranarray(X), y), prior), expected, 1e-6)
    # Several blocks of rows are as one.
    monkeypatch.setattr("cavity.full._ENTRIES", 4 * 7)
    assert_same(fit_full(LinearBatches(loss, X.astype(float), y), prior), expected, PARITY)
    assert_same(fit_full(LinearBatches(loss, sparse.csr_array(X.astype(float)), y), prior), expected, PARITY)


@pytest.mark.parametrize("loss", [Logistic(), Hinge(), Absolute()], ids=repr)
def test_hard_designs(loss):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(20, 3))
    y = np.where(X[:, 0] > 0.0, 1.0, -1.0)
    hard = {
        "separable": (X, y),
        "constant and duplicated columns": (np.column_stack([X, X[:, 0], np.ones(20), np.zeros(20)]), y),
        "more columns than rows": (rng.normal(size=(5, 12)), y[:5]),
        "a row of zeros": (np.vstack([X, np.zeros(3)]), np.append(y, 1.0)),
        "the same row again and again": (np.repeat(X[:1], 30, axis=0), np.repeat(y[:1], 30)),
    }
    for name, (rows, targets) in hard.items():
        prior = FactorialGaussian.from_moments(np.zeros(rows.shape[1]), 25.0)
        factors = LinearBatches(loss, rows, targets)
        result = fit_full(factors, prior, loops=100, tol=1e-6)
        assert result.status is Status.CONVERGED, name
        assert np.all(np.linalg.eigvalsh(result.covariance) > 0.0), name
        assert np.all(result.variance <= prior.variance * (1.0 + 1e-9)), name  # log-concave factors only narrow
        np.testing.assert_array_equal(result.covariance, result.covariance.T)
        assert_same(result, plain_full_ep(factors, prior, len(result.trace.changes)), 1e-6)


def test_start_does_not_matter_in_the_end():
    X, y = signed_data(n=60, seed=9)
    factors, prior = LinearBatches(Logistic(), X, y), wide_prior(4)
    one, other = (fit_full(factors, prior, loops=100, tol=1e-9, start=start) for start in ("mode", None))
    assert_same(one, (other.mean, other.covariance, other.log_evidence), 1e-6)
    assert len(one.trace.changes) <= len(other.trace.changes)


class Broken(NamedTuple):
    """A loss without value beyond a point."""

    edge: float = 5.0

    @property
    def targets(self):
        return "reals"

    def value(self, y, z):
        return 0.5 * (z - y) ** 2 + 0.0 * np.log(self.edge - y + 0.0 * z)

    def derivatives(self, y, z):
        return self.value(y, z), z - y, 1.0 + 0.0 * z


def test_rows_without_finite_moments_are_refused_and_named():
    factors = LinearBatches(Broken(), [[1.0], [1.0], [1.0]], [1.0, 9.0, 2.0])
    result = fit_full(factors, FactorialGaussian.from_moments([0.0], 1.0), loops=3, start=None)
    assert result.status is Status.NONFINITE
    assert result.trace.refusals == {(1, Refusal.NONFINITE): 3}
    assert result.mean == pytest.approx([1.0])
    assert result.covariance == pytest.approx(np.array([[1.0 / 3.0]]))
    with pytest.raises(RunError, match="factor 1"):
        result.raise_for_status()


def test_a_cavity_of_rounding_is_refused():
    factors = LinearBatches(Squared(1e-6), [[1.0]], [2.0])
    result = fit_full(factors, FactorialGaussian.from_moments([0.0], 1.0), loops=2)
    assert result.trace.refusals == {(0, Refusal.IMPROPER_CAVITY): 2}
    assert result.status is Status.IMPROPER_CAVITY
    assert result.mean == pytest.approx([2.0])
    assert "IMPROPER" not in str(result)
    assert "2 refused" in str(result)


class Hill(NamedTuple):
    """A loss that falls on both sides, and undoes a Gaussian of variance two."""

    height: float = 0.25

    @property
    def targets(self):
        return "reals"

    def value(self, y, z):
        return -self.height * z * z

    def derivatives(self, y, z):
        return self.value(y, z), -2.0 * self.height * z, -2.0 * self.height + 0.0 * z


def test_negative_precisions_are_kept_until_the_posterior_would_be_improper():
    factors = LinearBatches(Hill(), [[1.0]], [0.0])
    result = fit_full(factors, FactorialGaussian.from_moments([0.0], 1.0), start=None)
    assert_same(result, ([0.0], [[2.0]], 0.5 * np.log(2.0)), 1e-6)
    prior = FactorialGaussian.from_moments([0.0], 2.0 - 1e-11)
    refused = fit_full(factors, prior, loops=1, start=None)
    assert refused.trace.refusals == {(0, Refusal.IMPROPER_POSTERIOR): 1}
    assert refused.status is Status.IMPROPER_CAVITY
    assert refused.covariance[0, 0] == pytest.approx(2.0)


def test_loops_that_end_too_early_say_so():
    X, y = signed_data()
    result = fit_full(LinearBatches(Hinge(), X, y), wide_prior(4), loops=1, tol=1e-9)
    assert result.status is Status.MAX_LOOPS
    assert (len(result.trace.changes), result.trace.betas, result.trace.updates) == (1, (1.0,), 30)
    again = fit_full(LinearBatches(Hinge(), X, y), wide_prior(4)).raise_for_status()
    assert again.trace.changes[-1] < 1e-3
    assert not again.mean.flags.writeable
    assert not again.covariance.flags.writeable


class Uncompilable(NamedTuple):
    """A loss that Numba does not take."""

    scale: float = 1.0

    @property
    def targets(self):
        return "reals"

    def value(self, y, z):
        return sum({"loss": 0.5 * (z - y) ** 2, 1: 0.0}.values())

    def derivatives(self, y, z):
        return self.value(y, z), z - y, 1.0 + 0.0 * z


def test_bad_input_is_refused_with_a_remedy():
    X, y = signed_data()
    factors, prior = LinearBatches(Logistic(), X, y), wide_prior(4)
    with pytest.raises(TypeError, match=r"LinearBatches, got list; build them with LinearFactor\.batches"):
        fit_full(list(factors), prior)
    with pytest.raises(ValueError, match="4 coordinates of the factors, got 3"):
        fit_full(factors, wide_prior(3))
    with pytest.raises(ValueError, match="prior must be proper"):
        fit_full(factors, FactorialGaussian.uniform(4))
    wide = LinearBatches(Logistic(), sparse.csr_array(([1.0], ([0], [6000])), shape=(1, 6001)), [1.0])
    with pytest.raises(ValueError, match=r"at most 5000 columns, got 6001; use cavity\.fit"):
        fit_full(wide, wide_prior(6001))
    for name, values in {
        "loops": (0, 1.5),
        "beta": (0.0, np.inf),
        "damping": (0.0, 1.5),
        "tol": (-1.0, np.nan),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{name} must"):
                fit_full(factors, prior, **{name: value})
    with pytest.raises(ValueError, match="start must be 'mode' or None, got 'prior'"):
        fit_full(factors, prior, start="prior")
    with pytest.raises(TypeError, match="Uncompilable could not be compiled"):
        fit_full(LinearBatches(Uncompilable(), X, y), prior)
