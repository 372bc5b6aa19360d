"""The loop of EP, one for every backend.

The driver owns the temperature, the damping, the diagnostics with the rejected updates, when to stop, the return to the
best iteration, and the result. A backend owns sites and posterior, and updates every site once when asked to
(`Backend.sweep`).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from cavity._checks import flag, nonnegative_number, number_between, one_of, positive_number, whole_number
from cavity._types import FloatArray
from cavity.ep.result import FactorError, Refusal, Result, Status, Trace
from cavity.gaussians.factorial import FactorialGaussian
from cavity.schedules import Cyclic, FiniteTemperature, Order, Steps, Temperature, resolve_beta, resolve_order
from cavity.terms.prior import Prior

Negative = Literal["floor", "keep", "skip"]
SiteMode = Literal["own", "tied", "averaged", "none"]
# Retries of an improper cavity with safeguards, each with half as much of the site removed.
RETRIES = 4
Cost = Callable[[FloatArray], float]
# State of a run between two iterations: numbers and arrays by name, which `numpy.savez` writes to a file.
State = Mapping[str, Any]


def arrays_of(name: str, gaussian: Any) -> dict[str, Any]:
    """Return a Gaussian as part of a state."""
    parts = {"scale": gaussian.log_scale, "shift": gaussian.shift, "precision": gaussian.precision}
    return {f"{name}_{part}": value for part, value in parts.items()}


def gaussian_of(name: str, state: State, family: Any = FactorialGaussian) -> Any:
    """Read a Gaussian of a family from a state."""
    scale, shift, precision = (state[f"{name}_{part}"] for part in ("scale", "shift", "precision"))
    return family(float(scale), np.asarray(shift), np.asarray(precision))


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of a run, checked by `cavity.fit` and the estimators, which explain them.

    Parameters
    ----------
    max_iter
        Iterations at most.
    tol
        The run ends when no mean is expected to move by more than this many standard deviations any more, and no
        variance by more than this share.
    temperature
        Inverse temperature of every iteration.
    power
        Power of Power EP: how much of a factor is removed and fitted at a time.
    damping
        Largest step towards a new site, in (0, 1].
    safeguards
        Whether to damp more while the posterior's change does not shrink, and to go back from an iteration that ends
        at a higher cost than the prior mean.
    single_pass
        Whether a single iteration was asked for, so that convergence is not checked.
    keep_state
        Whether the result has a state to continue from.
    sites, order, negative
        Of a product of Gaussians: which sites are stored, their order, and what becomes of negative precisions.
    """

    max_iter: int = 100
    tol: float = 0.01
    temperature: FiniteTemperature = field(default=Steps((1.0,)))
    power: float = 1.0
    damping: float = 1.0
    safeguards: bool = False
    single_pass: bool = False
    keep_state: bool = True
    sites: SiteMode = "own"
    order: Order = field(default=Cyclic())
    negative: Negative = "keep"


def make_options(
    count: int,
    *,
    max_iter: int,
    tol: float = 1e-3,
    sites: SiteMode = "own",
    beta: float | Sequence[float] | Temperature = 1.0,
    power: float = 1.0,
    damping: float = 1.0,
    order: str | Order | ArrayLike = "cyclic",
    random_state: int = 0,
    negative: Negative = "keep",
    safeguards: bool = False,
) -> Options:
    """Check the choices of a run over ``count`` factors."""
    sites = one_of("sites", sites, ("own", "tied", "averaged", "none"))
    max_iter = whole_number("max_iter", max_iter, least=1)
    if sites == "none" and max_iter > 1:
        raise ValueError(
            f"sites='none' keeps no site to update, so it allows one loop only, got max_iter={max_iter}; "
            "use sites='tied' for several loops at the same memory"
        )
    visiting = resolve_order(order, whole_number("random_state", random_state, least=0))
    visits = visiting.visits(count, 0)
    if sites == "none" and np.max(np.bincount(visits)) > 1:
        raise ValueError("sites='none' counts a factor as often as it is visited: order must name each once at most")
    return Options(
        max_iter,
        nonnegative_number("tol", tol),
        resolve_beta(beta),
        positive_number("power", power),
        number_between("damping", damping, 0.0, 1.0, "(]"),
        flag("safeguards", safeguards),
        sites == "none",
        sites != "none",
        sites,
        visiting,
        one_of("negative", negative, ("floor", "keep", "skip")),
    )


class Step(NamedTuple):
    """What a backend needs for one sweep: number of the iteration, damping, and retries of an improper cavity."""

    loop: int
    damping: float
    retries: int


class Change(NamedTuple):
    """What a sweep changed: largest move of a mean in standard deviations, or of the logarithm of a variance.

    ``remaining`` estimates what all later iterations together will change. NaN after a single pass.
    """

    last: float
    remaining: float


class Backend(Protocol):
    """Sites and posterior of a run. Every method leaves them consistent."""

    @property
    def prior(self) -> Prior:
        """The prior, which may change from iteration to iteration."""

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""

    def refresh(self, beta: float, diagnostics: Diagnostics) -> None:
        """Rescale the sites to an inverse temperature, and remove rounding errors: before every iteration, and last."""

    def sweep(self, step: Step, diagnostics: Diagnostics) -> Change:
        """Update every site once; `Failure` if a factor raises, after its own update was undone."""

    def snapshot(self) -> dict[str, Any]:
        """State between two iterations."""

    def restore(self, state: State) -> None:
        """Return to such a state."""

    def result(self, status: Status, diagnostics: Diagnostics) -> Result:
        """Posterior and sites as values."""


class Failure(Exception):  # noqa: N818  (never reaches a user)
    """A factor raised an error; ``factor`` is its index, -1 where all were evaluated at once."""

    def __init__(self, factor: int, error: Exception) -> None:
        super().__init__(str(error))
        self.factor, self.error = factor, error


@dataclass(slots=True, eq=False)
class Diagnostics:
    """The record of a run: updates, changes and temperatures of the iterations, rejected and damped updates.

    ``last_refusals`` are those of the present or last iteration, ``remaining`` is what is expected to change yet.
    """

    updates: int = 0
    changes: list[float] = field(default_factory=list)
    betas: list[float] = field(default_factory=list)
    refusals: Counter[tuple[int, Refusal]] = field(default_factory=Counter)
    dampings: Counter[int] = field(default_factory=Counter)
    last_refusals: Counter[Refusal] = field(default_factory=Counter)
    remaining: float = math.inf

    def reject(self, factor: int, why: Refusal, times: int = 1) -> None:
        """Count rejected updates of a factor; -1 stands for all."""
        self.refusals[factor, why] += times
        self.last_refusals[why] += times

    def damp(self, factor: int, times: int = 1) -> None:
        """Count updates of a factor that were damped further."""
        self.dampings[factor] += times

    def status(self, single_pass: bool, converged: bool) -> Status:
        """How the run ended."""
        if Refusal.DIVERGED in self.last_refusals:
            return Status.DIVERGED
        if self.last_refusals:
            named = {Refusal.NONFINITE: Status.NONFINITE, Refusal.NEGATIVE: Status.NEGATIVE}
            return named.get(self.last_refusals.most_common(1)[0][0], Status.IMPROPER_CAVITY)
        if single_pass:
            return Status.SINGLE_PASS
        return Status.CONVERGED if converged else Status.MAX_ITER

    def trace(self) -> Trace:
        """Everything so far as a value."""
        return Trace(
            self.updates, tuple(self.changes), tuple(self.betas), Counter(self.refusals), Counter(self.dampings)
        )


class Guard:
    """Safeguards of a run: damping that follows the changes of the iterations, and the state of lowest cost."""

    def __init__(self, cost: Cost, damping: float, slack: float = 0.0) -> None:
        self.cost, self.asked, self.damping, self.slack = cost, damping, damping, slack
        self.beta, self.changes = math.nan, (math.inf, math.inf)
        self.bound = self.lowest = self.last = math.inf
        self.best: State = {}

    @property
    def is_worse_than_prior(self) -> bool:
        """Whether the last iteration ended at a higher cost than the prior mean."""
        return not self.last <= self.bound + self.slack + 1e-9 * (1.0 + abs(self.bound))

    def begin_loop(self, beta: float, prior_mean: FloatArray, mean: FloatArray, snapshot: Callable[[], State]) -> None:
        """Start over at a new temperature: costs of other temperatures cannot be compared."""
        if beta == self.beta:
            return
        self.beta, self.changes = beta, (math.inf, math.inf)
        self.bound, self.lowest = self.cost(prior_mean), self.cost(mean)
        self.best = snapshot()

    def end_loop(self, change: float, mean: FloatArray, snapshot: Callable[[], State]) -> None:
        """Choose the damping of the next iteration, and keep the state if no iteration ended at a lower cost.

        An iteration must change the posterior less than the larger of the two before it, by a share of 0.05 times the
        damping in use; then the damping grows by 1.2, otherwise it is halved, down to a 16th of the one asked for: what
        needs less does not converge in any number of iterations. Chosen on the study of robustness
        (docs/robustness.md); with a share of 0.1 a few fits take one iteration more.
        """
        share = self.damping / self.asked
        undamped = change / share
        if undamped <= (1.0 - 0.05 * share) * max(self.changes):
            self.damping = min(1.2 * self.damping, self.asked)
        else:
            self.damping = max(0.5 * self.damping, self.asked / 16.0)
        self.changes = (self.changes[1], undamped)
        self.last = self.cost(mean)
        if self.last < self.lowest:
            self.lowest, self.best = self.last, snapshot()


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run in progress."""

    backend: Backend
    options: Options
    diagnostics: Diagnostics
    guard: Guard | None = None

    @property
    def has_converged(self) -> bool:
        """Whether at the final temperature less than the tolerance will change, and no update was rejected."""
        d, o = self.diagnostics, self.options
        is_still = bool(d.changes) and d.remaining < o.tol and not d.last_refusals
        return is_still and o.temperature.is_final(len(d.changes) - 1, o.max_iter)

    def snapshot(self) -> dict[str, Any]:
        """State between two iterations, to continue from: numbers and arrays by name."""
        d, g, names = self.diagnostics, self.guard, list(Refusal)
        refusals = [(factor, names.index(why), count) for (factor, why), count in d.refusals.items()]
        state = {
            **self.backend.snapshot(),
            "updates": d.updates,
            "changes": np.array([d.changes, d.betas]),
            "remaining": d.remaining,
            "refusals": np.array(refusals, dtype=np.int64).reshape(-1, 3),
            "dampings": np.array(list(d.dampings.items()), dtype=np.int64).reshape(-1, 2),
            "refused": np.array([d.last_refusals[why] for why in names], dtype=np.int64),
        }
        if g is not None:
            state["guard"] = np.array((g.damping, g.beta, *g.changes, g.bound, g.lowest, g.last))
            state |= {f"best.{name}": value for name, value in g.best.items()}
        return state

    def restore(self, state: State) -> None:
        """Continue from such a state, of the same factors and options."""
        self.backend.restore(state)
        d, g, names = self.diagnostics, self.guard, list(Refusal)
        d.updates, d.remaining = int(state["updates"]), float(state["remaining"])
        d.changes, d.betas = (part.tolist() for part in state["changes"])
        d.refusals = Counter({(int(k), names[why]): int(count) for k, why, count in state["refusals"]})
        d.dampings = Counter({int(k): int(count) for k, count in state["dampings"]})
        d.last_refusals = +Counter(dict(zip(names, state["refused"].tolist(), strict=True)))
        if g is not None:
            g.damping, g.beta, first, second, g.bound, g.lowest, g.last = (float(x) for x in state["guard"])
            g.changes = (first, second)
            g.best = {name[5:]: value for name, value in state.items() if name.startswith("best.")}


def run(
    backend: Backend,
    options: Options,
    *,
    cost: Cost | None = None,
    slack: float = 0.0,
    after_loop: Callable[[Run], object] | None = None,
    state: State | None = None,
) -> Result:
    """Run EP until it converges or its iterations are used up.

    Parameters
    ----------
    backend
        Sites and posterior, where the run starts.
    options
        The choices of the run.
    cost
        What safeguards compare iterations by: inverse temperature times all costs at a point, and the prior's term.
    slack
        By how much more the mean of a good posterior may cost than the prior mean.
    after_loop
        Called after every iteration.
    state
        `Result.state` of an earlier run to continue.
    """
    is_guarded = options.safeguards and not options.single_pass
    guard = Guard(cost, options.damping, slack) if cost is not None and is_guarded else None
    diagnostics = Diagnostics()
    going = Run(backend, options, diagnostics, guard)
    try:
        if state is not None:
            going.restore(state)
        while (number := len(diagnostics.changes)) < options.max_iter and not going.has_converged:
            damping = options.damping if guard is None else guard.damping
            beta = options.temperature.beta(number)
            diagnostics.betas.append(beta)
            diagnostics.last_refusals = Counter()
            backend.refresh(beta, diagnostics)
            if guard is not None:
                guard.begin_loop(beta, backend.prior.mean, backend.mean, backend.snapshot)
            change = backend.sweep(Step(number, damping, RETRIES if options.safeguards else 0), diagnostics)
            # Damping hides a part of the change.
            diagnostics.remaining = change.remaining / (damping / options.damping)
            if guard is not None:
                guard.end_loop(change.last, backend.mean, backend.snapshot)
            diagnostics.changes.append(change.last)
            if after_loop is not None:
                after_loop(going)
        final = going.snapshot() if options.keep_state else {}
        if guard is not None and guard.is_worse_than_prior:
            backend.restore(guard.best)
            diagnostics.reject(-1, Refusal.DIVERGED)
        backend.refresh(diagnostics.betas[-1], diagnostics)
        status = diagnostics.status(options.single_pass, going.has_converged)
        return replace(backend.result(status, diagnostics), state=final)
    except Failure as failure:
        raise FactorError(
            failure.factor, backend.result(Status.INTERRUPTED, diagnostics), failure.error
        ) from failure.error


@contextmanager
def progress_bar(total: int, visible: bool) -> Iterator[Callable[[int, int | None], None] | None]:
    """Show a progress bar on standard error for ``total`` updates or iterations; None unless ``visible``.

    Its function takes the number of the iteration, and how many are done in all: None for one more than before.
    """
    done, shown = 0, -1

    def show(loop: int, now: int | None = None) -> None:
        nonlocal done, shown
        done = done + 1 if now is None else now
        share = 40 * done // total
        if share != shown:
            shown = share
            sys.stderr.write(f"\rloop {loop + 1} [{'#' * share:<40s}] {done}/{total} ")
            sys.stderr.flush()

    try:
        yield show if visible else None
    finally:
        if shown >= 0:
            sys.stderr.write("\n")
