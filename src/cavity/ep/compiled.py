"""Linear factors on compiled loops: the same contract as `engine.run`, one call a loop.

`why_not` says what no kernel serves; `run` keeps the books as the engine does, and gives the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba.core.errors import NumbaError
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.factorised import (
    FactorError,
    Guard,
    Settings,
    check_site,
    check_started,
    distance,
    prior_cost,
    temperature_is_final,
    visits_with_next,
)
from cavity.ep.lowering import lower
from cavity.ep.result import Ledger, Refusal, Result
from cavity.ep.stored_sites import StoredSites, fill_store
from cavity.ep.stores import is_proper_against
from cavity.factors import LinearBatches
from cavity.gaussians.factorial import FactorialGaussian
from cavity.kernels import _schemes as compiled
from cavity.kernels._border import check_rows, check_visits
from cavity.kernels._bridge import entry, kinds
from cavity.kernels._exact import ExactProjection as CompiledProjection
from cavity.kernels._single import posterior_and_scratch, read_posterior, single_star, single_taylor
from cavity.kernels._single_exact import moments_and_notes, read_moments, single_exact
from cavity.kernels._store import NONE, OWN, TIED, Store
from cavity.kernels._sweep import (
    DAMPED,
    FLOOR,
    IMPROPER_CAVITY,
    IMPROPER_POSTERIOR,
    KEEP,
    NEGATIVE,
    NONFINITE,
    SKIP,
    DenseData,
    Options,
    SparseData,
    State,
    list_supports,
    survey,
    sweep,
)
from cavity.kernels._work import work_for
from cavity.mode import BatchSites

FloatArray = NDArray[np.float64]
# The batches visited in a loop, and for each the one visited after it.
Route = tuple[NDArray[np.intp], NDArray[np.intp]]

REFUSALS = {
    IMPROPER_CAVITY: Refusal.IMPROPER_CAVITY,
    NONFINITE: Refusal.NONFINITE,
    NEGATIVE: Refusal.NEGATIVE,
    IMPROPER_POSTERIOR: Refusal.IMPROPER_POSTERIOR,
}
POLICIES = {"keep": KEEP, "floor": FLOOR, "skip": SKIP}
# Outcome of a visit that has not come to its end; no kernel gives it.
_UNVISITED = np.iinfo(np.int8).max


class NotCompilableError(TypeError):
    """A loss that Numba does not take."""


def why_not(loss: object, scheme: object, settings: Settings) -> str:
    """Say why no kernel serves this run; empty if one does."""
    if not isinstance(loss, tuple):
        return f"the loss {type(loss).__name__} is not a NamedTuple"
    if settings.sites == "averaged":
        return "sites='averaged' has no compiled form"
    if lower(scheme) is None:
        return f"{scheme!r} has no compiled form"
    return ""


def run(
    factors: LinearBatches,
    prior: FactorialGaussian,
    scheme: object,
    settings: Settings,
    after_loop: Callable[[int, int], object] | None = None,
    start: Sequence[FactorialGaussian] | BatchSites | None = None,
) -> Result:
    """Run EP from the prior, or from given sites, until it settles or its loops are used up; as `engine.run` does."""
    try:
        state = _run_class(factors, scheme, settings)(factors, prior, scheme, settings)
        if start is not None:
            state.begin_at(start)
        state.loop(0)
    except NumbaError as error:
        raise NotCompilableError(
            f"{type(factors.loss).__name__} could not be compiled; write it as a NamedTuple with arithmetic and numpy "
            "functions only, comparisons as factors and no if (cavity.testing.check_loss tells more)"
        ) from error
    for loop in range(settings.loops):
        if loop:
            state.loop(loop)
        if after_loop is not None:
            after_loop(loop, state.ledger.updates)
        if state.has_settled:
            break
    state.finish()
    return state.result()


class LinearRun:
    """The working state of a compiled run."""

    def __init__(self, factors: LinearBatches, prior: FactorialGaussian, scheme: object, settings: Settings) -> None:
        self.factors, self.prior, self.settings = factors, prior, settings
        self.scheme: Any = lower(scheme)
        self.weights = readonly(np.empty(0) if factors.weights is None else np.ascontiguousarray(factors.weights))
        self.targets = readonly(np.ascontiguousarray(factors.targets))
        check_rows(factors.X, self.targets, self.weights, factors.cuts, prior.dim)
        self.data, self.width, self.entries = _lower_data(factors)
        self.rows = int(np.max(np.diff(factors.cuts)))
        self.beta = settings.temperature.beta(0)
        self.ledger = Ledger()
        self.guard = Guard(settings, self.cost)
        self._allocate()

    def _allocate(self) -> None:
        self.work: Any = work_for(self.width, self.rows, self.entries)
        records = np.zeros((self.prior.dim, 4))
        records[:, 2] = self.prior.precision
        # Places begin at one: zero, which the records hold, stands for never seen.
        self.state: Any = State(records, records.view(np.uint64), np.zeros(1), np.ones(1, dtype=np.uint64))
        self._set_posterior(self.prior)
        self.store = self._make_store()

    @property
    def posterior(self) -> FactorialGaussian:
        """The posterior as a value."""
        return FactorialGaussian(self.state.scale[0], self.state.records[:, 0], self.state.records[:, 1])

    @property
    def has_settled(self) -> bool:
        """Whether the last loop changed little, refused nothing and was at the final temperature."""
        tol = self.settings.tol * self.guard.relative_damping
        return self.ledger.has_settled(tol) and temperature_is_final(self.settings, self.ledger.loops)

    def begin_at(self, start: Sequence[FactorialGaussian] | BatchSites) -> None:
        """Put given sites in the place of the uniform ones."""
        s = self.store
        if isinstance(start, BatchSites):
            fill_store(s, start)
        elif isinstance(start, StoredSites) and start.fits(s):
            start.copy_to(s)
        else:
            for k, site in enumerate(start):
                own = self.factors[k].coordinates
                check_site(k, site, self.prior.dim if own is None else own.size)
                begin, end = s.starts[k], s.starts[k + 1]
                place = np.argsort(s.support[begin:end]) if s.support.size else slice(None) if own is None else own
                s.shifts[begin:end][place], s.precisions[begin:end][place] = site.shift, site.precision
                s.scales[k] = site.log_scale
        posterior = self._product()
        check_started(posterior, self.prior)
        self._set_posterior(posterior)

    def loop(self, loop: int) -> None:
        """Visit every batch of a loop."""
        single = self.settings.sites == "none"
        before = None if single else self.posterior
        beta = self.settings.temperature.beta(loop)
        self.ledger.begin_loop(beta)
        if beta != self.beta:
            self._rescale(beta / self.beta)
            self.beta = beta
        self._renew()
        s = self.settings
        route = visits_with_next(s, len(self.factors), loop)
        check_visits(*route, len(self.factors))
        options = Options(beta, s.power, self.guard.damping, POLICIES[s.negative], self.guard.retries)
        if self.guard.is_on and self.guard.begin_loop(beta, self.prior.mean, self.posterior.mean):
            self.kept = self._copied()
        self._visit_all(route, options)
        change = math.nan if before is None else distance(before, self.posterior)
        if self.guard.is_on and self.guard.end_loop(change, self.posterior.mean):
            self.kept = self._copied()
        self.ledger.end_loop(change)

    def finish(self) -> None:
        """Go back to the best loop if the last one is worse than the prior mean; multiply the posterior up anew."""
        if self.guard.is_lost:
            self.store, posterior = self.kept
            self._set_posterior(posterior)
            self.ledger.refuse(-1, Refusal.DIVERGED)
        self._renew()

    def _renew(self) -> None:
        """Multiply the posterior up from prior and sites; where rounding leaves that improper, say so and keep it."""
        if self.settings.sites == "none":
            return
        product = self._product()
        if is_proper_against(product, self.prior):
            self._set_posterior(product)
        else:
            self.ledger.refuse(-1, Refusal.IMPROPER_POSTERIOR)

    def _copied(self) -> tuple[Any, FactorialGaussian]:
        """Copy what a run may have to go back to."""
        s = self.store
        copies = (s.shifts.copy(), s.precisions.copy(), s.scales.copy())
        return s._replace(shifts=copies[0], precisions=copies[1], scales=copies[2]), self.posterior

    def cost(self, point: FloatArray) -> float:
        """Beta times all costs at a point, and the prior's term."""
        with np.errstate(all="ignore"):
            try:
                costs = self.factors.cost(point)
            except Exception as error:  # of the loss, which is asked for all rows at once
                raise FactorError(self._who_raises(point), self.result(), error) from error
            return float(self.beta * costs + prior_cost(self.prior, point))

    def _who_raises(self, point: FloatArray) -> int:
        """Index of the first factor that has no cost at a point; -1 if each has one by itself."""
        for k, factor in enumerate(self.factors):
            try:
                factor.cost((point if factor.coordinates is None else point[factor.coordinates])[None])
            except Exception:
                return k
        return -1

    def _visit_all(self, route: Route, options: Options) -> None:
        """Sweep and note what came of it; a loss that raises is told with its factor and the state before that."""
        visits, outcomes = route[0], np.full(route[0].size, _UNVISITED, dtype=np.int8)
        try:
            self._sweep(route, options, outcomes)
        except NumbaError:
            raise
        except Exception as error:
            done = int(np.argmax(outcomes == _UNVISITED))
            self._note(visits[:done], outcomes[:done])
            self.ledger.updates += 1
            self._undo_visit()
            raise FactorError(int(visits[done]), self.result(), error) from error
        self._note(visits, outcomes)

    def _sweep(self, route: Route, options: Options, outcomes: Any) -> None:
        f = self.factors
        data = (self.data, self.targets, self.weights, f.cuts)
        entry(sweep, *kinds(f.loss))(
            f.loss, self.scheme, data, self.state, self.store, (*route, outcomes), options, self.work
        )

    def _undo_visit(self) -> None:
        """Put back what a visit that broke off has changed: nothing, since a site is fitted before it is used."""

    def result(self) -> Result:
        """Everything so far as a value."""
        status = self.ledger.status(self.settings.sites == "none", self.has_settled)
        return Result(self.posterior, self._sites(), status, self.ledger.trace())

    def _note(self, visits: NDArray[np.intp], outcomes: NDArray[np.int8]) -> None:
        self.ledger.updates += visits.size
        for visit in np.flatnonzero(outcomes):
            k, outcome = int(visits[visit]), int(outcomes[visit])
            if outcome == DAMPED:
                self.ledger.damp(k)
            else:
                self.ledger.refuse(k, REFUSALS[outcome])

    def _set_posterior(self, posterior: FactorialGaussian) -> None:
        self.state.records[:, 0], self.state.records[:, 1] = posterior.shift, posterior.precision
        self.state.scale[0] = posterior.log_scale

    def _make_store(self) -> Any:
        none = np.empty(0)
        if self.settings.sites == "none":
            starts, support = np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64)
            return Store(NONE, starts, support, none, none, none, none)
        starts, support, touches = self._supports()
        if self.settings.sites == "own":
            total, count = int(starts[-1]), len(self.factors)
            return Store(OWN, starts, support, np.zeros(total), np.zeros(total), np.zeros(count), none)
        d = self.prior.dim
        return Store(TIED, starts, support, np.zeros(d), np.zeros(d), np.zeros(1), np.maximum(touches, 1.0))

    def _supports(self) -> tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]:
        """Where every batch's coordinates begin, which they are (none listed: all), and how often each is touched."""
        f, starts = self.factors, np.zeros(len(self.factors) + 1, dtype=np.int64)
        touches, support = np.zeros(f.dim), np.empty(0, dtype=np.int64)
        arguments = (self.data, self.weights, f.cuts, self.state, starts)
        entry(survey)(*arguments, touches, self.work)
        if sparse.issparse(f.X):
            support = np.empty(starts[-1], dtype=np.int64)
            entry(list_supports)(*arguments, support, self.work)
        return starts, support, touches

    def _rescale(self, ratio: float) -> None:
        if self.settings.sites == "none":
            return
        before = self.store
        self.store = before._replace(
            shifts=ratio * before.shifts, precisions=ratio * before.precisions, scales=ratio * before.scales
        )
        if not is_proper_against(self._product(), self.prior):
            self.store = before
            self.ledger.refuse(-1, Refusal.RESCALING)

    def _product(self) -> FactorialGaussian:
        """Prior times all sites."""
        s, d = self.store, self.prior.dim
        if self.settings.sites == "tied":
            site = FactorialGaussian(len(self.factors) * s.scales[0], s.touches * s.shifts, s.touches * s.precisions)
            return self.prior * site
        if s.support.size:
            shift = np.bincount(s.support, weights=s.shifts, minlength=d).astype(np.float64)
            precision = np.bincount(s.support, weights=s.precisions, minlength=d).astype(np.float64)
        else:
            shift, precision = s.shifts.reshape(-1, d).sum(axis=0), s.precisions.reshape(-1, d).sum(axis=0)
        return self.prior * FactorialGaussian(float(np.sum(s.scales)), shift, precision)

    def _sites(self) -> Sequence[FactorialGaussian]:
        if self.settings.sites == "none":
            return ()
        s = self.store
        if self.settings.sites == "tied":
            return (FactorialGaussian(s.scales[0], s.shifts, s.precisions),)
        return StoredSites(self.factors, s)


class SparsePass(LinearRun):
    """A single pass over sparse rows that keeps no site, for the schemes that have a form of their own for it."""

    def _allocate(self) -> None:
        p = self.prior
        self.state, self.work = posterior_and_scratch(
            p.shift, p.precision, p.log_scale, self.width, self.entries, self.rows
        )

    @property
    def posterior(self) -> FactorialGaussian:
        """The posterior as a value."""
        return FactorialGaussian(self.state.scale[0], *read_posterior(self.state))

    def _sweep(self, route: Route, options: Options, outcomes: Any) -> None:
        f = self.factors
        batches = (self.data, self.targets, self.weights, f.cuts)
        arguments = (batches, self.state, route[0], options, outcomes, self.work)
        if isinstance(self.scheme, compiled.VariationalQuadrature):
            entry(single_star, *kinds(f.loss))(f.loss, self.scheme.spread, *arguments)
        else:
            entry(single_taylor, *kinds(f.loss))(f.loss, self.scheme.by_slope, *arguments)


class ExactSparsePass(LinearRun):
    """The same for exact projection, where negative precisions are kept and whole sites are fitted."""

    def _allocate(self) -> None:
        p = self.prior
        self.state, self.work = moments_and_notes(p.shift, p.precision, p.log_mass, self.width)

    @property
    def posterior(self) -> FactorialGaussian:
        """The posterior as a value."""
        shape = FactorialGaussian(0.0, *read_moments(self.state))
        return FactorialGaussian(self.state.log_mass[0] - shape.log_mass, shape.shift, shape.precision)

    def _sweep(self, route: Route, options: Options, outcomes: Any) -> None:
        f = self.factors
        batches = (self.data, self.targets, self.weights, f.cuts)
        arguments = (batches, self.state, route[0], options, outcomes, self.work)
        entry(single_exact, *kinds(f.loss))(f.loss, self.scheme.rules, *arguments)

    def _undo_visit(self) -> None:
        """Put back the coordinates that the batch has seen, which it has noted: their places count from the cursor."""
        s, seen = self.state, self.work.coordinate[: len(self.work.before)]
        is_noted = s.places[seen, 3] == s.cursor[0] + np.arange(seen.size, dtype=np.uint64)
        s.records[seen[is_noted], :2] = self.work.before[is_noted]


def _run_class(factors: LinearBatches, scheme: object, settings: Settings) -> type[LinearRun]:
    if settings.sites != "none" or not sparse.issparse(factors.X):
        return LinearRun
    lowered = lower(scheme)
    if isinstance(lowered, CompiledProjection) and settings.power == 1.0 and settings.negative == "keep":
        return ExactSparsePass
    return SparsePass if isinstance(lowered, compiled.QuickLaplace | compiled.VariationalQuadrature) else LinearRun


def _lower_data(factors: LinearBatches) -> tuple[Any, int, int]:
    """Return the data as a kernel takes it, and the most coordinates and entries a batch can have."""
    X = factors.X
    if not sparse.issparse(X):
        return DenseData(readonly(np.ascontiguousarray(X))), factors.dim, 0
    entries = int(np.max(np.diff(X.indptr[factors.cuts])))
    return SparseData(readonly(X.data), readonly(X.indices), readonly(X.indptr)), min(factors.dim, entries), entries


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """View that cannot be written, so that one compiled form serves all arrays, memory maps included."""
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view
