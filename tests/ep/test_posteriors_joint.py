"""The joint posterior of several predictors is that of its whole precision matrix."""

from __future__ import annotations

import numpy as np
import pytest

from cavity import FactorialGaussian
from cavity.ep.blocks import run
from cavity.ep.driver import Options
from cavity.ep.posteriors import DensePosterior, JointPosterior
from cavity.factors.rows import Rows
from cavity.losses import Logistic
from cavity.losses.joint import Softmax, contrasts


def problem(n=30, d=4, k=3, seed=0):
    rng = np.random.default_rng(seed)
    rows = Rows.arrange(rng.normal(size=(n, d - 1)), np.zeros((1, n)), None, True)
    prior = FactorialGaussian.from_moments(rng.normal(size=d * k), rng.uniform(0.5, 2.0, d * k))
    roots = rng.normal(size=(n, k, k))
    return rows, prior, roots @ roots.transpose(0, 2, 1), rng.normal(size=(n, k))


@pytest.mark.parametrize("at_once", [1 << 22, 24])
def test_sums_and_predictors_are_those_of_the_whole_matrix(at_once, monkeypatch):
    monkeypatch.setattr("cavity.ep.posteriors._AT_ONCE", at_once)
    rows, prior, precisions, shifts = problem()
    part = slice(3, 25)
    work = JointPosterior(rows, prior).with_sites(part, precisions[part], shifts[part])
    A = rows.block(part)
    wide = np.stack([np.kron(np.eye(3), row) for row in A])  # (rows, predictors, coefficients)
    P = np.diag(prior.precision) + np.einsum("bki,bkl,blj->ij", wide, precisions[part], wide)
    h = prior.shift + np.einsum("bki,bk->i", wide, shifts[part])
    covariance = np.linalg.inv(P)
    np.testing.assert_allclose(work.mean, covariance @ h, rtol=1e-9)
    np.testing.assert_allclose(work.variance(), np.diag(covariance), rtol=1e-9)
    mean, variance = work.predictors(part)
    np.testing.assert_allclose(mean, np.einsum("bki,i->bk", wide, covariance @ h), rtol=1e-8)
    np.testing.assert_allclose(variance, np.einsum("bki,ij,blj->bkl", wide, covariance, wide), rtol=1e-8)
    known = work.natural(0.0)
    np.testing.assert_allclose(known.information, P - np.diag(prior.precision), atol=1e-9)


def test_what_would_be_improper_changes_nothing():
    rows, prior, precisions, shifts = problem()
    work, part = JointPosterior(rows, prior), slice(0, 30)
    before = work.flat, work.shift, work.mean, work.log_det, work.variance()
    assert work.with_sites(part, -100.0 * precisions, shifts) is None
    assert work.with_sites(part, precisions, shifts) is not None
    after = work.flat, work.shift, work.mean, work.log_det, work.variance()
    for value, kept in zip(after, before, strict=True):
        np.testing.assert_array_equal(value, kept)
    assert work.prior == prior


def test_two_classes_are_a_logistic_model_of_one_predictor():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 3))
    codes = (rng.random(80) < 1.0 / (1.0 + np.exp(-2.0 * X[:, 0]))).astype(float)
    prior, options = FactorialGaussian.from_moments(np.zeros(3), 2.0), Options(100, 1e-6)
    sharpness = float(contrasts(2)[1, 0] - contrasts(2)[0, 0])
    single = Rows.arrange(X, (np.sign(sharpness) * (2.0 * codes - 1.0))[None], None, False)
    joint = Rows.arrange(X, codes[None], None, False)
    wanted = run(Logistic(abs(sharpness)), single, DensePosterior(single, prior), options)
    found = run(Softmax(2), joint, JointPosterior(joint, prior), options)
    assert np.max(np.abs(found.mean - wanted.mean) / wanted.std) < 1e-3
    np.testing.assert_allclose(found.posterior.covariance, wanted.posterior.covariance, rtol=1e-3, atol=1e-5)
    assert found.log_evidence == pytest.approx(wanted.log_evidence, abs=1e-3)


@pytest.mark.parametrize("classes", [3, 6])
def test_a_run_continues_bit_for_bit(classes):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 2)), rng.integers(classes, size=90).astype(float)
    rows = Rows.arrange(X, y[None], None, True)
    prior = FactorialGaussian.from_moments(np.zeros(3 * (classes - 1)), 1.0)
    whole = run(Softmax(classes), rows, JointPosterior(rows, prior), Options(9, 0.0))
    begun = run(Softmax(classes), rows, JointPosterior(rows, prior), Options(4, 0.0))
    ended = run(Softmax(classes), rows, JointPosterior(rows, prior), Options(9, 0.0), state=begun.state)
    np.testing.assert_array_equal(ended.mean, whole.mean)
    assert ended.trace == whole.trace


def test_a_loss_of_several_predictors_has_no_power():
    rows, prior, *_ = problem()
    with pytest.raises(ValueError, match="power must be 1"):
        run(Softmax(4), rows, JointPosterior(rows, prior), Options(power=0.5))
