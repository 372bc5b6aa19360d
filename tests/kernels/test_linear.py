"""Compiled loops equal the plain engine, whatever the components, the storage and the sites."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit
from scipy import sparse

import cavity
from cases import Asymmetric, bare_fit
from cavity import losses, schemes
from cavity.kernels import moments  # noqa: F401 (opens the methods of losses to compiled code)
from cavity.quadrature import MonteCarlo, Precision3

# Runs of few loops, compared with each other: that they have not converged is no news.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PARITY = 1e-10
ROWS, WIDTH, BATCH = 57, 9, 10


class Branching(NamedTuple):
    """A loss that Numba cannot take."""

    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        return np.array([0.5 * float(v) ** 2 for v in np.ravel(z - y)]).reshape(np.shape(z - y))

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return self.value(y, z), z - y, np.ones_like(z)


class Barrier(NamedTuple):
    """A user's own loss that is infinite beyond an edge, so that stars must shorten their arms."""

    edge: float = 1.5

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.abs(z - y) - np.log(np.maximum(self.edge - z, 0.0))

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        room = 1.0 / np.maximum(self.edge - z, 0.0)
        return self.value(y, z), np.sign(z - y) + room, room * room


# Every loss, scheme and storage is a compilation of 2 to 5 seconds. Kernels have forms of their own for the logistic
# loss, which therefore meets every scheme, and but for Gaussian quadrature in both storages: that reads rows as the
# variational one does. Any other loss they see through `value` (stars) and `derivatives` (expansions) only, which are
# compared by themselves for all losses: each scheme meets one other loss at least, with both storages among them.
# Huber's loss has curved and straight parts, the hinge loss a kink, and the quasi 0-1 loss makes sites negative.
LAPLACE, QUICK, SLOPE = schemes.Laplace(), schemes.QuickLaplace(), schemes.QuickLaplace(curvature="slope")
GAUSS, VARIATIONAL = schemes.GaussQuadrature(), schemes.VariationalQuadrature()
RECENTRED = schemes.RecentredQuadrature()
QUASI = losses.QuasiZeroOne(0.3)
CASES = (
    *itertools.product((losses.Logistic(),), (LAPLACE, QUICK, SLOPE, VARIATIONAL), ("dense", "csr")),
    (losses.Logistic(), GAUSS, "csr"),
    (losses.Huber(), LAPLACE, "csr"),
    (losses.Hinge(), QUICK, "dense"),
    (losses.Hinge(), SLOPE, "dense"),
    (losses.Hinge(), VARIATIONAL, "csr"),
    (QUASI, GAUSS, "dense"),
    (QUASI, VARIATIONAL, "dense"),
    (QUASI, QUICK, "csr"),
    (losses.Squared(2.0), QUICK, "dense"),
    # Recentring is the same for all losses but for the star: of the logistic loss, of any loss, and of sparse rows.
    (losses.Logistic(), RECENTRED, "dense"),
    (QUASI, RECENTRED, "dense"),
    (Barrier(), RECENTRED, "csr"),
)
ALL_LOSSES = (*(getattr(losses, name)() for name in losses.__all__), QUASI, Asymmetric(), Barrier())
STORAGES = {"dense": np.asarray, "csr": sparse.csr_array}


def problem(seed: int = 0) -> tuple[Any, Any, Any, cavity.FactorialGaussian]:
    """Rows with many zeros, one column missing from the first batch, weights of which some are zero."""
    rng = np.random.default_rng(seed)
    X = 0.5 * rng.normal(size=(ROWS, WIDTH)) * (rng.random((ROWS, WIDTH)) < 0.4)
    X[:BATCH, 3] = 0.0
    y = np.where(rng.random(ROWS) < 0.5, 1.0, -1.0)
    weights = rng.integers(0, 3, ROWS).astype(float)
    prior = cavity.FactorialGaussian.from_moments(0.1 * rng.normal(size=WIDTH), 2.0)
    return X, y, weights, prior


def gap(a: Any, b: Any) -> float:
    """Largest difference relative to one plus the size."""
    a, b = np.asarray(a), np.asarray(b)
    return float(np.max(np.abs(a - b) / (1.0 + np.abs(a)), initial=0.0))


def assert_same(plain: cavity.Result, fast: cavity.Result, tol: float = PARITY) -> None:
    """Posterior, evidence, sites, status and trace agree."""
    assert plain.status is fast.status
    assert plain.trace.refusals == fast.trace.refusals
    assert plain.trace.dampings == fast.trace.dampings
    assert plain.trace.updates == fast.trace.updates
    assert gap(plain.mean, fast.mean) < tol
    assert gap(plain.variance, fast.variance) < tol
    # The log mass is the log scale plus terms of its size and other sign: relative to that it is exact.
    assert abs(plain.posterior.log_mass - fast.posterior.log_mass) < tol * (1.0 + abs(plain.posterior.log_scale))
    assert np.isnan(plain.log_evidence) == np.isnan(fast.log_evidence)
    assert np.allclose(plain.trace.changes, fast.trace.changes, rtol=1e3 * tol, atol=1e3 * tol, equal_nan=True)
    assert len(plain.sites) == len(fast.sites)
    for one, other in zip(plain.sites, fast.sites, strict=True):
        assert one.dim == other.dim
        assert gap(one.log_scale, other.log_scale) < tol
        assert gap(one.shift, other.shift) < tol
        assert gap(one.precision, other.precision) < tol


def both(factors: Any, prior: cavity.FactorialGaussian, **options: Any) -> tuple[cavity.Result, cavity.Result]:
    """The same run by the plain engine and compiled."""
    return bare_fit(factors, prior, compiled=False, **options), bare_fit(factors, prior, compiled=True, **options)


@pytest.mark.parametrize(("loss", "scheme", "storage"), CASES, ids=repr)
def test_compiled_equals_plain(loss: Any, scheme: Any, storage: str) -> None:
    X, y, weights, prior = problem()
    for sites in ("own", "tied", "none"):
        for negative in ("keep", "floor", "skip"):
            for w in (None, weights):
                factors = cavity.LinearFactor.batches(loss, STORAGES[storage](X), y, BATCH, w)
                loops = {"max_iter": 1} if sites == "none" else {"max_iter": 3, "beta": [0.5, 1.0]}
                options = {"power": 0.7, "damping": 0.8, "order": "shuffled", "random_state": 3, "tol": 0.0}
                plain, fast = both(factors, prior, scheme=scheme, sites=sites, negative=negative, **loops, **options)
                assert_same(plain, fast)


@njit
def asked(loss: Any, y: float, z: float) -> Any:
    return loss.value(y, z), loss.derivatives(y, z)


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=repr)
def test_losses_say_the_same_when_compiled(loss: Any) -> None:
    """Also at their kinks, which lie at these targets and margins."""
    with np.errstate(divide="ignore"):
        targets = (0.5, 1.0, 2.0) if loss.targets == "positives" else (-1.0, 0.0, 1.0)
        for y, z in itertools.product(targets, np.linspace(-3.0, 3.0, 25)):
            value, derivatives = asked(loss, y, z)
            assert value == pytest.approx(loss.value(y, z), rel=PARITY)
            assert derivatives == pytest.approx(loss.derivatives(y, z), rel=PARITY, abs=PARITY)


@pytest.mark.parametrize("spread", ["yu", "julier", 1.5])
@pytest.mark.parametrize("scheme", [schemes.GaussQuadrature, schemes.VariationalQuadrature])
def test_every_spread_of_the_star(scheme: Any, spread: Any) -> None:
    X, y, _, prior = problem()
    factors = cavity.LinearFactor.batches(QUASI, X, y, BATCH)
    assert_same(*both(factors, prior, scheme=scheme(rule=Precision3(spread)), max_iter=1))


@pytest.mark.parametrize("scheme", [GAUSS, VARIATIONAL, RECENTRED], ids=repr)
def test_refusals_agree_on_hard_data(scheme: Any) -> None:
    """Correlated columns, noisy labels, a cost that is not convex: updates are refused, and both refuse the same ones.

    No decision hangs on rounding: the plain engine makes the same ones from rows moved by a millionfold of it.
    """
    rng = np.random.default_rng(1)
    common = rng.normal(size=(60, 1))
    X = 0.3 * (common + 0.1 * rng.normal(size=(60, 6)))
    y = np.where(common[:, 0] + 2.5 * rng.normal(size=60) > 0.0, 1.0, -1.0)
    prior = cavity.FactorialGaussian.from_moments(np.zeros(6), 1.0)
    moved = X * (1.0 + 1e-9 * rng.normal(size=X.shape))
    for negative in ("keep", "skip"):
        options = {"scheme": scheme, "max_iter": 2, "tol": 0.0, "negative": negative}
        plain, fast = both(cavity.LinearFactor.batches(QUASI, X, y, 5), prior, **options)
        near = bare_fit(cavity.LinearFactor.batches(QUASI, moved, y, 5), prior, compiled=False, **options)
        for other in (fast, near):
            assert other.trace.refusals == plain.trace.refusals
            assert other.trace.dampings == plain.trace.dampings
        assert bool(plain.trace.refused) == (negative == "skip")
        assert gap(plain.mean, fast.mean) < 1e-7


@pytest.mark.parametrize(
    "variant",
    ["float32", "csr float32", "fortran", "int", "bool", "memmap", "unsorted", "duplicates", "explicit zeros", "coo"],
)
def test_any_storage_gives_the_same_answer(variant: str, tmp_path: Any) -> None:
    rng = np.random.default_rng(2)
    base = (rng.random((40, 7)) < 0.5).astype(float)
    y = np.where(rng.random(40) < 0.5, 1, -1)
    prior = cavity.FactorialGaussian.from_moments(np.zeros(7), 1.0)
    csr = sparse.csr_array(base)
    if variant == "memmap":
        path = tmp_path / "X.npy"
        np.save(path, base)
        X: Any = np.load(path, mmap_mode="r")
    elif variant == "unsorted":
        X = csr.copy()
        for i in range(40):
            span = slice(X.indptr[i], X.indptr[i + 1])
            X.indices[span], X.data[span] = X.indices[span][::-1].copy(), X.data[span][::-1].copy()
        X.has_sorted_indices = False
        X.has_canonical_format = False
    elif variant == "duplicates":
        halves = sparse.coo_array(
            (np.repeat(0.5 * csr.data, 2), (np.repeat(csr.tocoo().row, 2), np.repeat(csr.indices, 2)))
        )
        starts = np.concatenate([[0], np.cumsum(np.bincount(halves.row, minlength=40))])
        X = sparse.csr_array((halves.data, halves.col, starts), shape=(40, 7))
    elif variant == "explicit zeros":
        X = sparse.csr_array(
            (np.append(csr.data, 0.0), np.append(csr.indices, 0), csr.indptr + np.r_[np.zeros(40), 1].astype(int)),
            shape=(40, 7),
        )
    else:
        X = {
            "float32": base.astype(np.float32),
            "csr float32": csr.astype(np.float32),
            "fortran": np.asfortranarray(base),
            "int": base.astype(int),
            "bool": base.astype(bool),
            "coo": csr.tocoo(),
        }[variant]
    reference, result = (
        bare_fit(
            cavity.LinearFactor.batches(losses.Logistic(), rows, y, 8), prior, "qla", compiled=compiled, max_iter=2
        )
        for rows, compiled in ((base, False), (X, True))
    )
    assert gap(reference.mean, result.mean) < PARITY
    assert gap(reference.variance, result.variance) < PARITY


def parts(data: Any) -> list[Any]:
    """Copies of the arrays that hold a matrix."""
    return [data.copy()] if isinstance(data, np.ndarray) else [a.copy() for a in (data.data, data.indices, data.indptr)]


@pytest.mark.parametrize("storage", STORAGES)
def test_data_are_left_as_they_were(storage: str) -> None:
    X, y, weights, prior = problem()
    data = STORAGES[storage](X)
    arrays = [data, y, weights, prior.mean, prior.precision]
    before = [part for array in arrays for part in parts(array)]
    factors = cavity.LinearFactor.batches(losses.Logistic(), data, y, BATCH, weights)
    bare_fit(factors, prior, compiled=True, max_iter=2)
    after = [part for array in arrays for part in parts(array)]
    assert [part.dtype for part in after] == [part.dtype for part in before]
    assert [part.tobytes() for part in after] == [part.tobytes() for part in before]
    assert all(part.flags.writeable for part in (y, weights))
    assert data.flags.c_contiguous if storage == "dense" else data.has_canonical_format


@pytest.mark.parametrize("storage", STORAGES)
def test_odd_batches(storage: str) -> None:
    """One row; a batch longer than the data; a batch whose rows all have weight zero; rows of zeros."""
    X, y, weights, prior = problem()
    rows = STORAGES[storage]
    one = cavity.LinearFactor.batches(losses.Logistic(), rows(X[:1]), y[:1], 10)
    assert_same(*both(one, prior, max_iter=2))
    wide = cavity.LinearFactor.batches(losses.Logistic(), rows(X), y, 1000)
    assert_same(*both(wide, prior, max_iter=2))
    weights[BATCH : 2 * BATCH] = 0.0
    idle = cavity.LinearFactor.batches(losses.Logistic(), rows(X), y, BATCH, weights)
    assert_same(*both(idle, prior, max_iter=2))
    X[BATCH : 2 * BATCH] = 0.0
    empty = cavity.LinearFactor.batches(losses.Logistic(), rows(X), y, BATCH)
    assert_same(*both(empty, prior, max_iter=2))


def test_weight_zero_is_the_row_removed_and_a_batch_of_none_is_idle() -> None:
    X, y, _, prior = problem()
    weights = np.ones(ROWS)
    weights[3] = 0.0
    factors = [
        cavity.LinearFactor(losses.Logistic(), X[:BATCH], y[:BATCH], weights[:BATCH]),
        cavity.LinearFactor(losses.Logistic(), X[BATCH:], y[BATCH:]),
    ]
    kept = np.delete(np.arange(BATCH), 3)
    without = [cavity.LinearFactor(losses.Logistic(), X[kept], y[kept]), factors[1]]
    weighted, removed = bare_fit(factors, prior, compiled=True), bare_fit(without, prior, compiled=True)
    # Not to the bit: rows are summed four at a time where all have weight one.
    assert gap(weighted.mean, removed.mean) < PARITY
    assert gap(weighted.variance, removed.variance) < PARITY


@pytest.mark.parametrize(("loss", "scheme"), [(losses.Logistic(), VARIATIONAL), (QUASI, GAUSS)], ids=repr)
def test_a_column_of_zeros_keeps_its_prior_to_the_last_digit(loss: Any, scheme: Any) -> None:
    """Also where costs are large, and their rounding is too."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(ROWS, 3)) * [0.0, 300.0, 3.0], np.where(rng.random(ROWS) < 0.5, 1.0, -1.0)
    prior = cavity.FactorialGaussian.from_moments(rng.normal(size=3), 1e-3)
    factors = cavity.LinearFactor.batches(loss, X, y, BATCH)
    result = bare_fit(factors, prior, scheme, beta=1e6, max_iter=1, compiled=True)
    assert result.posterior.precision[0] == prior.precision[0]
    assert result.posterior.shift[0] == prior.shift[0]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_list_of_linear_factors_is_compiled_too(storage: str) -> None:
    X, y, weights, prior = problem()
    cuts = [0, 7, 8, 30, ROWS]
    rows = STORAGES[storage](X)
    factors = [
        cavity.LinearFactor(losses.Logistic(), rows[a:b], y[a:b], weights[a:b]) for a, b in itertools.pairwise(cuts)
    ]
    assert_same(*both(factors, prior, scheme="qla", max_iter=3))


def test_what_has_no_compiled_form_runs_plain() -> None:
    X, y, _, prior = problem()
    factors = cavity.LinearFactor.batches(losses.Logistic(), X, y, BATCH)
    mixed = [*factors, cavity.CostFactor(lambda t: float(t @ t), dim=WIDTH)]
    newton = schemes.VariationalQuadrature(solver="newton")
    sampled = schemes.GaussQuadrature(rule=MonteCarlo(size=200))
    cases: tuple[tuple[Any, dict[str, Any], str], ...] = (
        (mixed, {}, "not linear factors of one loss"),
        (factors, {"callback": lambda update: None}, "callback"),
        (factors, {"sites": "averaged"}, "averaged"),
        (factors, {"scheme": newton}, "no compiled form"),
        (factors, {"scheme": sampled}, "no compiled form"),
    )
    for given, options, reason in cases:
        with pytest.raises(ValueError, match=f"compiled=True is not possible.*{reason}"):
            bare_fit(given, prior, compiled=True, max_iter=1, **options)
        assert np.all(np.isfinite(bare_fit(given, prior, max_iter=1, **options).mean))


def test_a_loss_that_cannot_be_compiled_falls_back_with_a_warning() -> None:
    X, y, _, prior = problem()
    factors = cavity.LinearFactor.batches(Branching(), X, y, BATCH)
    squared = cavity.LinearFactor.batches(losses.Squared(), X, y, BATCH)
    with pytest.warns(UserWarning, match="Branching could not be compiled.*plain Python"):
        result = bare_fit(factors, prior, scheme="qla", max_iter=2)
    assert gap(result.mean, bare_fit(squared, prior, scheme="qla", max_iter=2).mean) < PARITY
    with pytest.raises(TypeError, match="could not be compiled"):
        bare_fit(factors, prior, scheme="qla", max_iter=2, compiled=True)


def test_another_width_is_refused() -> None:
    X, y, _, prior = problem()
    factors = cavity.LinearFactor.batches(losses.Hinge(), X[:, :4], y, BATCH)
    with pytest.raises(ValueError, match="X has 4 columns, but the prior has 9"):
        bare_fit(factors, prior)


def test_progress_bar_of_a_compiled_run(capsys: pytest.CaptureFixture[str]) -> None:
    X, y, _, prior = problem()
    factors = cavity.LinearFactor.batches(losses.Logistic(), X, y, BATCH)
    bare_fit(factors, prior, max_iter=2, tol=0.0, verbose=True)
    assert "12/12" in capsys.readouterr().err


def test_a_single_pass_needs_no_memory_in_proportion_to_the_data() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 50))
    y = np.where(rng.random(40_000) < 0.5, 1.0, -1.0)
    prior = cavity.FactorialGaussian.from_moments(np.zeros(50), 1.0)
    for rows in (X, sparse.csr_array(X * (X > 1.0))):
        factors = cavity.LinearFactor.batches(losses.Hinge(), rows, y, 100)
        bare_fit(factors, prior, scheme="qla", sites="none")
        tracemalloc.start()
        bare_fit(factors, prior, scheme="qla", sites="none")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # The check for NaN at the start holds a few numbers a row; nothing else grows with the data.
        assert peak < 5 * y.nbytes
        assert peak < X.nbytes / 5


def test_importing_the_library_does_not_load_numba() -> None:
    code = "import sys, cavity; print('numba' in sys.modules, 'sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
