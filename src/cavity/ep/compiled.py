"""A product of Gaussians for linear factors of one loss: `cavity.ep.factorised` with one compiled call per loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numba.core.errors import NumbaError
from numpy.typing import NDArray
from scipy import sparse

from cavity import schemes
from cavity.ep.driver import Change, Diagnostics, Failure, Options, State, Step, arrays_of, gaussian_of
from cavity.ep.factorised import (
    change_between,
    check_site,
    check_start,
    prior_cost,
    visits_with_next,
)
from cavity.ep.result import Refusal, Result, Status
from cavity.factors import LinearBatches
from cavity.gaussians.factorial import FactorialGaussian
from cavity.kernels import schemes as compiled
from cavity.kernels import sweep as kernels
from cavity.kernels.bridge import entry
from cavity.kernels.moments import rules_for
from cavity.kernels.rows import DenseData, SparseData
from cavity.mode import BatchSites
from cavity.quadrature import Precision3

FloatArray = NDArray[np.float64]

# What the codes of the kernels stand for.
REFUSALS = {
    kernels.IMPROPER_CAVITY: Refusal.IMPROPER_CAVITY,
    kernels.NONFINITE: Refusal.NONFINITE,
    kernels.NEGATIVE: Refusal.NEGATIVE,
    kernels.IMPROPER_POSTERIOR: Refusal.IMPROPER_POSTERIOR,
}
POLICIES = {"keep": kernels.KEEP, "floor": kernels.FLOOR, "skip": kernels.SKIP}
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


def lower(scheme: object) -> Any | None:
    """Return the compiled form of a scheme, with its numbers in it, or None where there is none."""
    match scheme:
        case schemes.QuickLaplace():
            return compiled.QuickLaplace(scheme.curvature == "slope")
        case schemes.Laplace():
            return compiled.Laplace(scheme.curvature == "slope", scheme.tol, scheme.max_steps)
        case schemes.VariationalQuadrature() if scheme.solver == "closed" and isinstance(scheme.rule, Precision3):
            return compiled.VariationalQuadrature(_spread(scheme.rule))
        case schemes.GaussQuadrature() if isinstance(scheme.rule, Precision3):
            return compiled.GaussQuadrature(_spread(scheme.rule))
        case schemes.RecentredQuadrature():
            return compiled.RecentredQuadrature(scheme.spread, scheme.tol, scheme.max_stars)
        case schemes.ExactProjection():
            return compiled.ExactProjection(rules_for(scheme.order))
        case _:
            return None


def _spread(rule: Precision3) -> float:
    """Spread of a star as the kernels know it."""
    named = {"paper": 0.0, "yu": -1.0, "julier": float(np.sqrt(3.0))}
    return named[rule.spread] if isinstance(rule.spread, str) else float(rule.spread)


class Compiled:
    """Sites and posterior of a product of Gaussians in arrays, as kernels take them."""

    def __init__(self, factors: LinearBatches, prior: FactorialGaussian, scheme: Any, options: Options) -> None:
        self.factors, self.prior, self.scheme, self.options = factors, prior, lower(scheme), options
        self.weights = readonly(np.empty(0) if factors.weights is None else np.ascontiguousarray(factors.weights))
        self.targets = readonly(np.ascontiguousarray(factors.targets))
        kernels.check_rows(factors.X, self.targets, self.weights, prior.dim)
        self.beta = options.temperature.beta(0)
        rows, width, entries = int(np.max(np.diff(factors.cuts))), factors.dim, 0
        if sparse.issparse(factors.X):
            entries = int(np.max(np.diff(factors.X.indptr[factors.cuts])))
            width = min(width, entries)
        self.data = data_of(factors.X)
        self.work: Any = kernels.work_for(width, rows, entries)
        records = np.zeros((prior.dim, 4))
        records[:, 2] = prior.precision
        # Places begin at one: zero, which the records hold, stands for never seen.
        self.state: Any = kernels.State(records, records.view(np.uint64), np.zeros(1), np.ones(1, dtype=np.uint64))
        self._set_posterior(prior)
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

    def refresh(self, beta: float, diagnostics: Diagnostics) -> None:
        """Raise the sites to the ratio of temperatures, and multiply the posterior up from them.

        Where rounding makes that improper, the posterior stays, and this is noted.
        """
        if beta != self.beta and not self.options.single_pass:
            before, ratio = self.store, beta / self.beta
            self.store = before._replace(
                shifts=ratio * before.shifts, precisions=ratio * before.precisions, scales=ratio * before.scales
            )
            if not product(self.store, self.prior).is_proper_beside(self.prior):
                self.store = before
                diagnostics.reject(-1, Refusal.RESCALING)
        self.beta = beta
        if self.options.single_pass:
            return
        posterior = product(self.store, self.prior)
        if posterior.is_proper_beside(self.prior):
            self._set_posterior(posterior)
        else:
            diagnostics.reject(-1, Refusal.IMPROPER_POSTERIOR)

    def sweep(self, step: Step, diagnostics: Diagnostics) -> Change:
        """Visit the batches in one compiled call; a loss that raises is named with the state before that batch."""
        o, before = self.options, None if self.options.single_pass else self.posterior
        route = visits_with_next(o, len(self.factors), step.loop)
        numbers = kernels.Options(self.beta, o.power, step.damping, POLICIES[o.negative], step.retries)
        visits, outcomes = route[0], np.full(route[0].size, _UNVISITED, dtype=np.int8)
        try:
            f = self.factors
            batches = (self.data, self.targets, self.weights, f.cuts)
            sweep, arrays = entry(kernels.sweep, f.loss), (self.state, self.store, (*route, outcomes))
            sweep(f.loss, self.scheme, batches, *arrays, numbers, self.work)
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

    def result(self, status: Status, diagnostics: Diagnostics) -> Result:
        """Give posterior and sites as values."""
        s = self.store
        sites: Sequence[FactorialGaussian]
        if s.mode == kernels.NONE:
            sites = ()
        elif s.mode == kernels.TIED:
            sites = (FactorialGaussian(s.scales[0], s.shifts, s.precisions),)
        else:
            sites = StoredSites(self.factors, s)
        return Result(self.posterior, sites, status, diagnostics.trace(), self.prior)

    def _who_raises(self, point: FloatArray) -> int:
        """Index of the first factor that has no cost at a point; -1 if each has one by itself."""
        for k, factor in enumerate(self.factors):
            try:
                factor.cost((point if factor.coordinates is None else point[factor.coordinates])[None])
            except Exception:
                return k
        return -1

    def _note(self, visits: NDArray[np.intp], outcomes: NDArray[np.int8], diagnostics: Diagnostics) -> None:
        diagnostics.updates += visits.size
        for visit in np.flatnonzero(outcomes):
            k, outcome = int(visits[visit]), int(outcomes[visit])
            if outcome == kernels.DAMPED:
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
            return kernels.Store(kernels.NONE, starts, support, none, none, none, none)
        f, starts = self.factors, np.zeros(len(self.factors) + 1, dtype=np.int64)
        touches, support = np.zeros(f.dim), np.empty(f.X.nnz if sparse.issparse(f.X) else 0, dtype=np.int64)
        if self.options.sites == "own" and not sparse.issparse(f.X):
            starts[:] = f.dim * np.arange(starts.size)  # what a survey would find, and nothing to compile
        else:
            survey = entry(kernels.survey)
            survey(self.data, self.weights, f.cuts, self.state, starts, support, touches, self.work)
            support = support[: starts[-1]].copy()
        if self.options.sites == "own":
            total, count = int(starts[-1]), len(self.factors)
            return kernels.Store(kernels.OWN, starts, support, np.zeros(total), np.zeros(total), np.zeros(count), none)
        d = self.prior.dim
        touches = np.maximum(touches, 1.0)
        return kernels.Store(kernels.TIED, starts, support, np.zeros(d), np.zeros(d), np.zeros(1), touches)


def data_of(X: Any) -> Any:
    """Rows as kernels take them."""
    if sparse.issparse(X):
        return SparseData(readonly(X.data), readonly(X.indices), readonly(X.indptr))
    return DenseData(readonly(np.ascontiguousarray(X)))


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """View that cannot be written, so that one compiled form serves all arrays, memory maps included."""
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view


class StoredSites(Sequence[FactorialGaussian]):
    """The sites of a compiled run in their factors' own coordinates, each made when asked for."""

    def __init__(self, factors: LinearBatches, store: kernels.Store) -> None:
        self._factors, self._store = factors, store

    def __len__(self) -> int:
        return len(self._factors)

    def fits(self, store: kernels.Store) -> bool:
        """Whether the sites lie as those of another store do."""
        own = self._store
        return np.array_equal(own.starts, store.starts) and np.array_equal(own.support, store.support)

    def copy_to(self, store: kernels.Store) -> None:
        """Write the sites into another store of the same layout."""
        own = self._store
        store.shifts[:], store.precisions[:], store.scales[:] = own.shifts, own.precisions, own.scales

    @overload
    def __getitem__(self, index: int) -> FactorialGaussian: ...
    @overload
    def __getitem__(self, index: slice) -> list[FactorialGaussian]: ...
    def __getitem__(self, index: int | slice) -> FactorialGaussian | list[FactorialGaussian]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        s, own = self._store, self._factors[k].coordinates
        span = slice(s.starts[k], s.starts[k + 1])
        site = FactorialGaussian(s.scales[k], s.shifts[span], s.precisions[span])
        if s.support.size:
            return site.take(np.argsort(s.support[span]))
        return site if own is None else site.take(own)


def fill_store(store: kernels.Store, sites: BatchSites) -> None:
    """Write sites of all batches into a store of own sites."""
    order: Any = slice(None)
    if store.support.size:  # a store has columns as they first appear, the sites have them in ascending order
        batch = np.repeat(np.arange(store.starts.size - 1), np.diff(store.starts))
        order = np.lexsort((store.support, batch))
    store.shifts[order], store.precisions[order] = sites.shifts, sites.precisions
    store.scales[:] = sites.log_scales


def product(store: kernels.Store, prior: FactorialGaussian) -> FactorialGaussian:
    """Give prior times all sites."""
    s, d = store, prior.dim
    if s.mode == kernels.TIED:
        count = s.starts.size - 1
        return prior * FactorialGaussian(count * s.scales[0], s.touches * s.shifts, s.touches * s.precisions)
    if s.support.size:
        shift = np.bincount(s.support, weights=s.shifts, minlength=d).astype(np.float64)
        precision = np.bincount(s.support, weights=s.precisions, minlength=d).astype(np.float64)
    else:
        shift, precision = s.shifts.reshape(-1, d).sum(axis=0), s.precisions.reshape(-1, d).sum(axis=0)
    return prior * FactorialGaussian(float(np.sum(s.scales)), shift, precision)
