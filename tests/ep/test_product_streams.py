"""A stream is a single pass of `cavity.fit`, whatever is fed in whichever portions, and forgets by powers."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import cavity
from cases import Breaking, random_cavity, random_rows, random_signs, seeds, standard_prior
from cavity import FactorialGaussian, LinearFactor, schemes
from cavity.ep.product_streams import Stream
from cavity.kernels.sweep import work_for
from cavity.losses import Logistic

PARITY = 1e-10
STORAGES = {"dense": np.asarray, "float32": lambda X: X.astype(np.float32), "csr": sparse.csr_array}


def assert_same(found, wanted, tol=PARITY):
    np.testing.assert_allclose(found.shift, wanted.shift, rtol=tol, atol=tol)
    np.testing.assert_allclose(found.precision, wanted.precision, rtol=tol, atol=tol)
    assert found.log_scale == pytest.approx(wanted.log_scale, rel=tol, abs=tol)


def single_pass(X, y, weights, batch, prior, scheme, **options):
    factors = LinearFactor.batches(Logistic(), X, y, batch, weights)
    return cavity.fit(factors, prior, scheme, sites="none", **options)


# Single precision differs in how rows are read only: one scheme is enough, that of `kernels/test_linear.py`.
@pytest.mark.parametrize(
    ("scheme", "storage"), [("la", "dense"), ("la", "csr"), ("vq", "dense"), ("vq", "csr"), ("qla", "float32")]
)
@settings(max_examples=15)
@given(
    seed=seeds,
    n=st.integers(1, 40),
    d=st.integers(1, 9),
    batch=st.integers(1, 15),
    weighted=st.booleans(),
    cuts=st.lists(st.integers(1, 3), max_size=8),
)
def test_a_stream_is_a_single_pass(scheme, storage, seed, n, d, batch, weighted, cuts):
    """In portions of whole mini-batches, the last of which may be short."""
    rng = np.random.default_rng(seed)
    X, y = 0.5 * STORAGES[storage](random_rows(rng, n, d)), random_signs(rng, n)
    weights = rng.uniform(0.1, 3.0, n) if weighted else None
    prior = random_cavity(rng, d)
    options = {"beta": 0.8, "power": 0.9, "damping": 0.7}
    wanted = single_pass(X, y, weights, batch, prior, scheme, **options)
    stream = Stream(Logistic(), schemes.resolve(scheme), prior, prior.precision, **options)
    done, outcomes = 0, []
    for portion in [*cuts, n]:
        rows = slice(done, min(done + portion * batch, n))
        if rows.start < rows.stop:
            outcomes.extend(stream.take(X[rows], y[rows], None if weights is None else weights[rows], batch).tolist())
            done = rows.stop
    assert done == n
    assert len(outcomes) == wanted.trace.updates
    assert sum(o > 0 for o in outcomes) == wanted.trace.refused
    assert_same(stream.posterior, wanted.posterior)
    np.testing.assert_array_equal(stream.prior_precision, prior.precision)


def test_portions_of_any_storage_may_follow_each_other():
    """Columns without an entry in one portion, and others in the next."""
    rng = np.random.default_rng(0)
    prior = standard_prior(7)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(6)
        stream, wanted = Stream(Logistic(), schemes.Laplace(), prior, prior.precision), prior
        for k in order:
            n = int(rng.integers(2, 12))
            X, y = random_rows(rng, n, 7, density=0.3), random_signs(rng, n)
            wanted = single_pass(X, y, None, 5, wanted, "la").posterior
            stream.take(sparse.csr_array(X) if k % 2 else X, y, None, 5)
            assert_same(stream.posterior, wanted)


def test_a_stream_can_be_opened_anew_at_any_time():
    rng = np.random.default_rng(1)
    X, y, prior = random_rows(rng, 30, 5), random_signs(rng, 30), standard_prior(5)
    one = Stream(Logistic(), schemes.Laplace(), prior, prior.precision)
    one.take(X, y, None, 10)
    other = Stream(Logistic(), schemes.Laplace(), prior, prior.precision)
    other.take(X[:20], y[:20], None, 10)
    other = Stream(Logistic(), schemes.Laplace(), other.posterior, other.prior_precision)
    other.take(X[20:], y[20:], None, 10)
    assert other.posterior == one.posterior


def test_the_posterior_is_a_value_and_does_not_follow_the_stream():
    rng = np.random.default_rng(2)
    X, y, prior = random_rows(rng, 10, 3), random_signs(rng, 10), standard_prior(3)
    stream = Stream(Logistic(), schemes.Laplace(), prior, prior.precision)
    before = stream.posterior
    assert before == prior
    stream.take(X, y, None, 5)
    assert before == prior
    assert stream.posterior != prior


@settings(max_examples=20)
@given(seed=seeds, keep=st.floats(0.0, 1.0), times=st.integers(1, 4))
def test_forgetting_is_a_power_of_the_posterior_times_one_of_the_prior(seed, keep, times):
    rng = np.random.default_rng(seed)
    prior, start = random_cavity(rng, 4), random_cavity(rng, 4)
    stream = Stream(Logistic(), schemes.Laplace(), start, prior.precision)
    for _ in range(times):
        stream.forget(keep, prior)
    share = keep**times
    wanted = start**share * prior ** (1.0 - share)
    assert_same(stream.posterior, wanted, 1e-12)


def test_keeping_all_changes_no_bit_and_keeping_nothing_is_the_prior():
    prior, start = standard_prior(3), FactorialGaussian(0.1, np.array([0.3, 0.7, 1e-9]), np.array([1.1, 3.3, 1e9]))
    stream = Stream(Logistic(), schemes.Laplace(), start, prior.precision)
    stream.forget(1.0, prior)
    assert stream.posterior == start
    stream.forget(0.0, prior)
    assert_same(stream.posterior, prior, 1e-15)


def test_memory_does_not_grow_with_the_stream(monkeypatch):
    made = []
    monkeypatch.setattr("cavity.ep.product_streams.work_for", lambda *room: made.append(room) or work_for(*room))
    rng = np.random.default_rng(3)
    X, y, prior = random_rows(rng, 30, 5), random_signs(rng, 30), standard_prior(5)
    stream = Stream(Logistic(), schemes.Laplace(), prior, prior.precision)
    for n in (30, 20, 7, 30):
        stream.take(X[:n], y[:n], None, 10)
    assert len(made) == 1
    for n in (30, 20, 7, 30):
        stream.take(sparse.csr_array(X[:n]), y[:n], None, 10)
        stream.take(X[:n], y[:n], None, 10)
    assert len(made) == 2


def opened(rng, d=6, scheme="qla"):
    """A stream that has taken in some rows, more rows, and targets for them.

    What a stream keeps and puts back does not depend on the scheme: the one that is compiled soonest.
    """
    prior = standard_prior(d)
    stream = Stream(Breaking(), schemes.resolve(scheme), prior, prior.precision)
    X, y = random_rows(rng, 200, d, density=0.3), rng.uniform(-1.0, 1.0, 200)
    if scheme != "exact":
        stream.take(X[:20], y[:20], None, 10)
    stream.take(sparse.csr_array(X[:20]), y[:20], None, 10)
    return stream, X, y


def interrupted(stream, kind, after):
    """Let the compiled call of a stream raise, after its work or in place of it."""
    sweep = stream._sweep

    def broken(*args):
        if after:
            sweep(*args)
        raise kind

    stream._sweep = broken
    return sweep


# Exact projection has one row in hand when the loss raises, the others a batch; that is the same for all storages.
@pytest.mark.parametrize(("scheme", "storage"), [*(("qla", storage) for storage in STORAGES), ("exact", "csr")])
def test_rows_whose_loss_raises_change_nothing(scheme, storage):
    """The loss raises at row 150, when 149 rows have been taken in; the stream then goes on as if nothing was."""
    stream, X, y = opened(np.random.default_rng(4), scheme=scheme)
    other, rows = stream.fork(), STORAGES[storage](X)
    before, bad = stream.posterior, np.where(np.arange(200) == 150, 9.0, y)
    with pytest.raises(OverflowError, match="too far out"):
        stream.take(rows, bad, None, 10)
    assert stream.posterior == before
    stream.take(rows, y, None, 10)
    other.take(rows, y, None, 10)
    assert stream.posterior == other.posterior != before


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError, SystemExit])
@pytest.mark.parametrize("after", [True, False], ids=["done", "not begun"])
def test_whatever_is_raised_in_the_compiled_call_changes_nothing(storage, kind, after):
    """A signal that comes while compiled code runs is raised when that returns, its work done."""
    stream, X, y = opened(np.random.default_rng(5))
    other, rows = stream.fork(), STORAGES[storage](X)
    before = stream.posterior
    sweep = interrupted(stream, kind, after)
    for portion in (slice(0, 1), slice(1, 7), slice(0, 200)):
        with pytest.raises(kind):
            stream.take(rows[portion], y[portion], None, 10)
        assert stream.posterior == before
    stream._sweep = sweep
    stream.take(rows, y, None, 10)
    other.take(rows, y, None, 10)
    assert stream.posterior == other.posterior


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("keep", [1.0, 0.7])
def test_streams_that_belong_together_go_back_together(storage, keep):
    """Two have forgotten and taken, the third breaks off: snapshots put back all three, more than once if need be."""
    rng = np.random.default_rng(6)
    streams, prior = [opened(rng)[0] for _ in range(3)], standard_prior(6)
    X, y = random_rows(rng, 50, 6, density=0.3), rng.uniform(-1.0, 1.0, 50)
    rows, before = STORAGES[storage](X), [stream.posterior for stream in streams]
    others = [stream.fork() for stream in streams]
    saved = [stream.snapshot(rows if keep == 1.0 else None) for stream in streams]
    sweep = interrupted(streams[2], KeyboardInterrupt, after=True)

    def go_on(together):
        for stream in together:
            stream.forget(keep, prior)
            stream.take(rows, y, None, 10)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            go_on(streams)
        assert streams[0].posterior != before[0]
        for stream, kept in zip(streams, saved, strict=True):
            stream.restore(kept)
        assert [stream.posterior for stream in streams] == before
    streams[2]._sweep = sweep
    go_on([*streams, *others])
    assert [stream.posterior for stream in streams] == [stream.posterior for stream in others]


def test_forgetting_that_breaks_off_changes_nothing():
    class Prior(NamedTuple):
        shift: Any = np.zeros(6)
        precision: Any = np.ones(5)
        log_scale: float = 1.0

    stream, _, _ = opened(np.random.default_rng(7))
    before = stream.posterior
    with pytest.raises(ValueError, match="could not be broadcast"):
        stream.forget(0.5, Prior())
    assert stream.posterior == before


def test_a_fork_goes_its_own_way():
    stream, X, y = opened(np.random.default_rng(8))
    before, other = stream.posterior, stream.fork()
    other.take(X, y, None, 10)
    other.forget(0.5, standard_prior(6))
    assert stream.posterior == before
    changed = other.posterior
    stream.take(X[:30], y[:30], None, 7)
    assert other.posterior == changed


def test_a_snapshot_of_few_sparse_rows_does_not_grow_with_the_columns():
    d = 50_000
    prior = standard_prior(d)
    stream = Stream(Logistic(), schemes.Laplace(), prior, prior.precision)
    rows = sparse.csr_array((np.ones(3), ([0, 0, 1], [5, 40_000, 5])), shape=(2, d))
    assert stream.snapshot(rows).records.shape == (3, 4)
    assert stream.snapshot().records.shape == (d, 4)
