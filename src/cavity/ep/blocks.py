r"""EP by blocks of rows, with all correlations.

A loop visits blocks of rows in turn. All rows of a block are revised at once against the same posterior, each with a
step of its own; then the posterior takes over the block and the next one follows. It starts at the prior. In the first
loop a block holds no more rows than were visited before it (`Work.parts`), so that no block can claim more than what is
already known: that is what makes it converge from a wide prior without any search for a mode.

Prior variances and noise scale, where they are free, are updated after every loop (`cavity.ep.hyperparameters`) and
converge with the posterior. Sites of the squared loss do not depend on cavities: one loop is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity.ep import joint_sites, row_sites
from cavity.ep.driver import Change, Run, Step
from cavity.ep.driver import run as run_backend
from cavity.ep.evolving import Evolving
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.options import Options
from cavity.ep.pace import change_between
from cavity.ep.result import Ledger, Refusal, Result
from cavity.ep.roles import Sites, Work
from cavity.ep.row_sites import RowSites, by_row
from cavity.ep.snapshots import State
from cavity.factors.arranged import Rows
from cavity.losses import Loss

FloatArray = NDArray[np.float64]


class Course(NamedTuple):
    """Where a run continues from, `Result.state` of one with the same rows, and what is called after every loop."""

    state: State | None = None
    after_loop: Callable[[Run], object] | None = None


def run(
    loss: Loss,
    rows: Rows,
    work: Work,
    options: Options,
    *,
    predictor: int = 0,
    hyperparameters: Hyperparameters | None = None,
    sites: Sites | None = None,
    course: Course | None = None,
) -> Result:
    """Revise the sites of all rows until the posterior has converged.

    Parameters
    ----------
    loss
        Loss of every row.
    rows
        Rows, targets and weights.
    work
        The posterior, which stands at the prior of these rows.
    options
        When to stop.
    predictor
        Which row of the targets is meant.
    hyperparameters
        Prior variances and noise scale that are to be found.
    sites
        Where the sites of all rows are kept; in memory by default.
    course
        Where to continue from, and what is called after every loop.
    """
    kept = sites_in_memory(rows, getattr(loss, "predictors", None)) if sites is None else sites
    backend = Blocks(loss, rows, work, options, predictor, hyperparameters or Hyperparameters(), kept)
    going = Course() if course is None else course
    return run_backend(backend, options, after_loop=going.after_loop, state=going.state)


def first_of(count: int) -> FloatArray:
    """Weights that choose the first of several predictors, which offsets belong to."""
    return np.asarray(np.eye(1, count)[0])


def sites_in_memory(rows: Rows, predictors: int | None) -> RowSites:
    """Uniform sites of all rows, with their offsets; of so many linear predictors, None for a single one."""
    sites = RowSites.start(rows.shape[0], predictors)
    if rows.offset is not None:
        sites.offset[:] = rows.offset if predictors is None else rows.offset[:, None] * first_of(predictors)
    return sites


class Blocks(Evolving):
    """Sites of all rows, and the posterior that they make with the prior."""

    def __init__(
        self,
        loss: Loss,
        rows: Rows,
        work: Work,
        options: Options,
        predictor: int,
        hyperparameters: Hyperparameters,
        sites: Sites,
    ) -> None:
        super().__init__(loss, work, options, hyperparameters)
        self.rows, self.work, self.sites, self.targets = rows, work, sites, rows.targets[predictor]
        self.fitting: Any = row_sites if getattr(loss, "predictors", None) is None else joint_sites
        self.held_back = False

    def sweep(self, step: Step, ledger: Ledger) -> Change:
        """Visit every row once."""
        first = step.loop == 0
        mean, variance = self.work.mean, self.work.variance()
        self.held_back, self.noise, farthest = False, np.zeros(2), np.zeros(mean.size)
        if self.is_normal:
            self.take_normal(ledger)
        else:
            for part in self.work.parts(first):
                here = self.work.mean
                self.visit(part, first, ledger)
                farthest = np.maximum(farthest, np.abs(self.work.mean - here))
        after = self.work.variance()
        change = change_between(mean, variance, self.work.mean, after)
        if self.is_normal:
            self.update_hyperparameters(ledger)
            return Change(change, 0.0)
        pending = float(np.max(farthest / np.sqrt(after), initial=0.0))
        remaining = self.pace.close(step.loop, change, pending, self.sites.average_step, self.held_back)
        self.sites.ceiling = self.pace.ceiling
        return Change(change, remaining if self.update_hyperparameters(ledger) else np.inf)

    def take_normal(self, ledger: Ledger) -> None:
        """Give all rows the sites of the squared loss, which do not depend on their cavities."""
        loss: Any = self.loss
        flat, shift = self.work.flat, self.work.shift
        for part in self.work.parts(False):
            sites, weights = self.sites.part(part), self.rows.weights[part]
            targets = self.targets[part] - sites.offset
            precisions = self.beta * weights / loss.as_squared**2
            changes = precisions - sites.precision, precisions * targets - sites.shift
            flat = flat + self.work.flat_of_sites(part, changes[0])
            shift = shift + self.work.sum_of_shifts(part, changes[1])
            sites.precision[:], sites.shift[:] = precisions, precisions * targets
            self.sites.put(part, sites)
            self.noise += float(np.sum(weights)), float(weights @ targets**2)
            ledger.updates += targets.size
        if not self.work.replace(flat, shift):
            ledger.refuse(-1, Refusal.NONFINITE)

    def scale_sites(self, precisions: float, shifts: float) -> None:
        """Multiply precisions and shifts of all sites by factors."""
        self.sites.scale_by(precisions, shifts)

    def snapshot(self) -> dict[str, Any]:
        """Give sites, what their damping remembers, the posterior, and what adapts with it."""
        return {**self.sites.arrays(), **super().snapshot()}

    def restore(self, state: State) -> None:
        """Return to such a state."""
        super().restore(state)
        self.sites.set_arrays(state)
        self.sites.ceiling = self.pace.ceiling

    def log_scale(self) -> float:
        """Scale of all sites under the posterior as it stands: one more look at every row, for the evidence."""
        total, o = 0.0, self.options
        for part in self.work.parts(False):
            sites = self.sites.part(part)
            sites.mean[:], sites.variance[:] = self.work.predictors(part)
            weights = self.rows.weights[part]
            total += self.fitting.log_scale(
                self.loss, self.targets[part], weights, sites, beta=self.beta, power=o.power
            )
        return total

    def center(self) -> float:
        """Give the weighted mean of the targets."""
        sums = np.zeros(2)
        for part in self.work.parts(False):
            weights = self.rows.weights[part]
            sums += float(weights @ self.targets[part]), float(np.sum(weights))
        return float(sums[0] / sums[1])

    def visit(self, part: slice, fresh: bool, ledger: Ledger) -> row_sites.Revision:
        """Revise the rows of a block; halve their steps while the posterior would be improper. Gives the full steps."""
        sites = self.sites.part(part)
        sites.mean[:], sites.variance[:] = self.work.predictors(part)
        o = self.options
        revision: row_sites.Revision
        revision, step = self.fitting.propose(
            self.loss,
            self.targets[part],
            self.rows.weights[part],
            sites,
            beta=self.beta,
            power=o.power,
            fresh=fresh,
            noise=self.hyperparameters.scale,
        )
        if revision.noise is not None:
            self.noise += revision.noise
        ledger.updates += step.size
        self._note(ledger, part, revision.improper, Refusal.IMPROPER_CAVITY)
        self._note(ledger, part, revision.nonfinite, Refusal.NONFINITE)
        shortened = 1.0
        # The predictors of a block may move by five of their standard deviations: beyond, what the rows said of their
        # surroundings has no meaning, and with narrow priors losses of straight pieces overshoot. This bound shortens
        # a step to a tenth at most, so that sites which are far too narrow can widen.
        least = 0.1
        for _ in range(8):
            farthest = 5.0 if shortened > least else np.inf
            share = self.work.add(part, by_row(step, revision.precision), by_row(step, revision.shift), farthest)
            if share >= 1.0:
                sites.accept(revision, step)
                self.sites.put(part, sites)
                self.held_back |= shortened < 1.0
                return revision
            # At first in proportion; where prior and rows leave no room for that, by halves.
            factor = max(0.8 * share, least) if shortened == 1.0 and farthest < np.inf else 0.5
            step, shortened = factor * step, factor * shortened
            ledger.damp(-1)
        self.sites.put(part, sites)
        self._note(ledger, part, np.ones(step.size, dtype=bool), Refusal.IMPROPER_POSTERIOR)
        return revision

    def _note(self, ledger: Ledger, part: slice, refused: NDArray[np.bool_], why: Refusal) -> None:
        for row in np.flatnonzero(refused):
            ledger.refuse(int(self.rows.order[part][row]), why)
