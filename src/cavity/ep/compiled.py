"""A product of Gaussians for linear factors of one loss: `cavity.ep.factorised` with one compiled call per loop.

`why_not` says what no kernel serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.core.errors import NumbaError
from numpy.typing import NDArray
from scipy import sparse

from cavity.ep.driver import Change, Diagnostics, Failure, Options, State, Step, arrays_of, gaussian_of
from cavity.ep.factorised import (
    change_between,
    check_site,
    check_start,
    is_proper_against,
    prior_cost,
    visits_with_next,
)
from cavity.ep.lowering import lower
from cavity.ep.result import Refusal, Result, Status
from cavity.ep.stored_sites import StoredSites, fill_store, product, sites_of
from cavity.factors import LinearBatches
from cavity.gaussians.factorial import FactorialGaussian
from cavity.kernels import _schemes as compiled
from cavity.kernels import _sweep
from cavity.kernels._border import check_rows, check_visits
from cavity.kernels._bridge import entry, kinds
from cavity.kernels._single import posterior_and_scratch, read_posterior, single_star, single_taylor
from cavity.kernels._store import NONE, OWN, TIED, Store
from cavity.kernels._work import work_for
from cavity.mode import BatchSites

FloatArray = NDArray[np.float64]
# The batches visited in a loop, and for each the one visited after it.
Route = tuple[NDArray[np.intp], NDArray[np.intp]]

# What the codes of the kernels stand for.
REFUSALS = {
    _sweep.IMPROPER_CAVITY: Refusal.IMPROPER_CAVITY,
    _sweep.NONFINITE: Refusal.NONFINITE,
    _sweep.NEGATIVE: Refusal.NEGATIVE,
    _sweep.IMPROPER_POSTERIOR: Refusal.IMPROPER_POSTERIOR,
}
POLICIES = {"keep": _sweep.KEEP, "floor": _sweep.FLOOR, "skip": _sweep.SKIP}
# Outcome of a visit that was not finished; no kernel gives it.
_UNVISITED = np.iinfo(np.int8).max


class NotCompilableError(TypeError):
    """A loss that Numba does not take."""


def why_not(loss: object, scheme: object, options: Options) -> str:
    """Say why no kernel serves this run; empty if one does."""
    if not isinstance(loss, tuple):
        return f"the loss {type(loss).__name__} is not a NamedTuple"
    if options.sites == "averaged":
        return "sites='averaged' has no compiled form"
    if lower(scheme) is None:
        return f"{scheme!r} has no compiled form"
    return ""


def backend_for(factors: LinearBatches, prior: FactorialGaussian, scheme: object, options: Options) -> Compiled:
    """Make the backend that is quickest for these factors."""
    kind, lowered = Compiled, lower(scheme)
    has_own_form = isinstance(lowered, compiled.QuickLaplace | compiled.VariationalQuadrature)
    if has_own_form and options.sites == "none" and sparse.issparse(factors.X):
        kind = SparsePass
    return kind(factors, prior, lowered, options)


class Compiled:
    """Sites and posterior of a product of Gaussians in arrays, as kernels take them."""

    def __init__(self, factors: LinearBatches, prior: FactorialGaussian, scheme: Any, options: Options) -> None:
        self.factors, self.prior, self.scheme, self.options = factors, prior, scheme, options
        self.weights = readonly(np.empty(0) if factors.weights is None else np.ascontiguousarray(factors.weights))
        self.targets = readonly(np.ascontiguousarray(factors.targets))
        check_rows(factors.X, self.targets, self.weights, factors.cuts, prior.dim)
        self.data, self.width, self.entries = _lower_data(factors)
        self.rows = int(np.max(np.diff(factors.cuts)))
        self.beta = options.temperature.beta(0)
        self._allocate()

    def _allocate(self) -> None:
        self.work: Any = work_for(self.width, self.rows, self.entries)
        records = np.zeros((self.prior.dim, 4))
        records[:, 2] = self.prior.precision
        # Places begin at one: zero, which the records hold, stands for never seen.
        self.state: Any = _sweep.State(records, records.view(np.uint64), np.zeros(1), np.ones(1, dtype=np.uint64))
        self._set_posterior(self.prior)
        self.store = self._make_store()

    @property
    def posterior(self) -> FactorialGaussian:
        """The posterior as a value."""
        return FactorialGaussian(self.state.scale[0], self.state.records[:, 0], self.state.records[:, 1])

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return self.posterior.mean

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
        posterior = product(self.store, self.prior)
        check_start(posterior, self.prior)
        self._set_posterior(posterior)

    def begin_loop(self, loop: int, beta: float, diagnostics: Diagnostics) -> None:
        """Raise the sites to the ratio of temperatures, and multiply the posterior up from them."""
        if beta != self.beta and not self.options.single_pass:
            before, ratio = self.store, beta / self.beta
            self.store = before._replace(
                shifts=ratio * before.shifts, precisions=ratio * before.precisions, scales=ratio * before.scales
            )
            if not is_proper_against(product(self.store, self.prior), self.prior):
                self.store = before
                diagnostics.reject(-1, Refusal.RESCALING)
        self.beta = beta
        self.finish(diagnostics)

    def sweep(self, step: Step, diagnostics: Diagnostics) -> Change:
        """Visit the batches in one compiled call; a loss that raises is named with the state before that batch."""
        o, before = self.options, None if self.options.single_pass else self.posterior
        route = visits_with_next(o, len(self.factors), step.loop)
        check_visits(*route, len(self.factors))
        numbers = _sweep.Options(self.beta, o.power, step.damping, POLICIES[o.negative], step.retries)
        visits, outcomes = route[0], np.full(route[0].size, _UNVISITED, dtype=np.int8)
        try:
            self._sweep(route, numbers, outcomes)
        except NumbaError as error:
            raise NotCompilableError(
                f"{type(self.factors.loss).__name__} could not be compiled; write it as a NamedTuple with arithmetic "
                "and numpy functions only, comparisons as factors and no if (cavity.testing.check_loss says more)"
            ) from error
        except Exception as error:
            done = int(np.argmax(outcomes == _UNVISITED))
            self._note(visits[:done], outcomes[:done], diagnostics)
            diagnostics.updates += 1
            raise Failure(int(visits[done]), error) from error  # a site is fitted before it is used: nothing to undo
        self._note(visits, outcomes, diagnostics)
        return change_between(self.prior if before is None else before, self.posterior, o)

    def cost(self, point: FloatArray) -> float:
        """Beta times all costs at a point, and the prior's term."""
        with np.errstate(all="ignore"):
            try:
                costs = self.factors.cost(point)
            except Exception as error:  # of the loss, which is asked for all rows at once
                raise Failure(self._who_raises(point), error) from error
            return float(self.beta * costs + prior_cost(self.prior, point))

    def snapshot(self) -> dict[str, Any]:
        """Give sites, posterior and temperature."""
        if self.options.single_pass:
            return {}
        s, posterior = self.store, arrays_of("posterior", self.posterior)
        sites = {"scales": s.scales.copy(), "shifts": s.shifts.copy(), "precisions": s.precisions.copy()}
        return {**sites, **posterior, "beta": self.beta}

    def restore(self, state: State) -> None:
        """Return to such a state."""
        arrays = {name: np.array(state[name]) for name in ("scales", "shifts", "precisions")}
        self.store = self.store._replace(**arrays)
        self.beta = float(state["beta"])
        self._set_posterior(gaussian_of("posterior", state))

    def finish(self, diagnostics: Diagnostics) -> None:
        """Multiply the posterior up from prior and sites; where rounding makes that improper, keep it and say so."""
        if self.options.single_pass:
            return
        posterior = product(self.store, self.prior)
        if is_proper_against(posterior, self.prior):
            self._set_posterior(posterior)
        else:
            diagnostics.reject(-1, Refusal.IMPROPER_POSTERIOR)

    def result(self, status: Status, diagnostics: Diagnostics) -> Result:
        """Give posterior and sites as values."""
        sites = () if self.options.single_pass else sites_of(self.factors, self.store)
        return Result(self.posterior, sites, status, diagnostics.trace(), self.prior)

    def _who_raises(self, point: FloatArray) -> int:
        """Index of the first factor that has no cost at a point; -1 if each has one by itself."""
        for k, factor in enumerate(self.factors):
            try:
                factor.cost((point if factor.coordinates is None else point[factor.coordinates])[None])
            except Exception:
                return k
        return -1

    def _sweep(self, route: Route, options: Any, outcomes: Any) -> None:
        f = self.factors
        data = (self.data, self.targets, self.weights, f.cuts)
        entry(_sweep.sweep, *kinds(f.loss))(
            f.loss, self.scheme, data, self.state, self.store, (*route, outcomes), options, self.work
        )

    def _note(self, visits: NDArray[np.intp], outcomes: NDArray[np.int8], diagnostics: Diagnostics) -> None:
        diagnostics.updates += visits.size
        for visit in np.flatnonzero(outcomes):
            k, outcome = int(visits[visit]), int(outcomes[visit])
            if outcome == _sweep.DAMPED:
                diagnostics.damp(k)
            else:
                diagnostics.reject(k, REFUSALS[outcome])

    def _set_posterior(self, posterior: FactorialGaussian) -> None:
        self.state.records[:, 0], self.state.records[:, 1] = posterior.shift, posterior.precision
        self.state.scale[0] = posterior.log_scale

    def _make_store(self) -> Any:
        """Make room for sites: where every batch's coordinates begin, and which they are (none listed: all)."""
        none = np.empty(0)
        if self.options.sites == "none":
            starts, support = np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64)
            return Store(NONE, starts, support, none, none, none, none)
        f, starts = self.factors, np.zeros(len(self.factors) + 1, dtype=np.int64)
        touches, support = np.zeros(f.dim), np.empty(0, dtype=np.int64)
        arguments = (self.data, self.weights, f.cuts, self.state, starts)
        if self.options.sites == "own" and not sparse.issparse(f.X):
            starts[:] = f.dim * np.arange(starts.size)  # what a survey would find, and nothing to compile
        else:
            entry(_sweep.survey)(*arguments, touches, self.work)
        if sparse.issparse(f.X):
            support = np.empty(starts[-1], dtype=np.int64)
            entry(_sweep.list_supports)(*arguments, support, self.work)
        if self.options.sites == "own":
            total, count = int(starts[-1]), len(self.factors)
            return Store(OWN, starts, support, np.zeros(total), np.zeros(total), np.zeros(count), none)
        d = self.prior.dim
        return Store(TIED, starts, support, np.zeros(d), np.zeros(d), np.zeros(1), np.maximum(touches, 1.0))


class SparsePass(Compiled):
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

    def _sweep(self, route: Route, options: Any, outcomes: Any) -> None:
        f = self.factors
        batches = (self.data, self.targets, self.weights, f.cuts)
        arguments = (batches, self.state, route[0], options, outcomes, self.work)
        if isinstance(self.scheme, compiled.VariationalQuadrature):
            entry(single_star, *kinds(f.loss))(f.loss, self.scheme.spread, *arguments)
        else:
            entry(single_taylor, *kinds(f.loss))(f.loss, self.scheme.by_slope, *arguments)


def _lower_data(factors: LinearBatches) -> tuple[Any, int, int]:
    """Return the data as a kernel takes it, and the most coordinates and entries a batch can have."""
    X = factors.X
    if not sparse.issparse(X):
        return _sweep.DenseData(readonly(np.ascontiguousarray(X))), factors.dim, 0
    entries = int(np.max(np.diff(X.indptr[factors.cuts])))
    data = _sweep.SparseData(readonly(X.data), readonly(X.indices), readonly(X.indptr))
    return data, min(factors.dim, entries), entries


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """View that cannot be written, so that one compiled form serves all arrays, memory maps included."""
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view
