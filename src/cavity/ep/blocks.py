r"""EP by blocks of rows of a linear model, with all correlations.

An iteration visits blocks of rows in turn. The sites of all rows of a block are updated at once against the same
posterior, each with a step size of its own; then the posterior takes over the block and the next one follows. It starts
at the prior. In the first iteration a block holds no more rows than were visited before it (`DensePosterior.parts`), so
that no block can claim more than what is already known: that is what makes it converge from a wide prior without any
search for a mode.

Prior variances and noise scale, where they are free, are updated after every iteration (`cavity.ep.hyperparameters`)
and converge with the posterior. Sites of the squared loss do not depend on cavities: one iteration is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cavity._types import FloatArray
from cavity.ep import driver
from cavity.ep.driver import Change, Diagnostics, Options, Run, State, Step, arrays_of, gaussian_of
from cavity.ep.hyperparameters import Hyperparameters, NormalRows, maximise_normal_evidence
from cavity.ep.posteriors import DensePosterior, SparsePosterior
from cavity.ep.result import Refusal, Result, Status
from cavity.ep.sites import RowSites, log_scale, propose
from cavity.ep.wide import KernelPosterior
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss, offers
from cavity.losses.noise import site_factor, with_scale
from cavity.terms.prior import Prior

# Largest rate at which changes are believed to fall from iteration to iteration.
_LARGEST_RATE = 0.9
# Largest step size of a row, reached by runs that take long: there changes keep their direction and fall by half per
# iteration. On 12 data sets and 200 random problems, logistic and hinge: with 1.0 the longest take a sixth more
# iterations, with 1.6 as many as with 1.3; 1.3 from the first iteration on costs short runs one.
_LONGEST_STEP = 1.3


def run(
    loss: Loss,
    rows: Rows,
    posterior: DensePosterior | SparsePosterior | KernelPosterior,
    options: Options,
    *,
    predictor: int = 0,
    hyperparameters: Hyperparameters | None = None,
    sites: RowSites | None = None,
    state: State | None = None,
    after_loop: Callable[[Run], object] | None = None,
) -> Result:
    """Update the sites of all rows until the posterior has converged.

    Parameters
    ----------
    loss
        Loss of every row.
    rows
        Rows, targets and weights.
    posterior
        The posterior, which is at the prior of these rows.
    options
        When to stop.
    predictor
        Which row of the targets is meant.
    hyperparameters
        Prior variances and noise scale that are to be found.
    sites
        The sites of all rows, in memory by default.
    state
        `Result.state` of an earlier run with the same rows, to continue it.
    after_loop
        Called after every iteration.
    """
    if sites is None:
        sites = RowSites.uniform(rows.shape[0], getattr(loss, "predictors", None), rows.offset)
    backend = Blocks(loss, rows, posterior, options, predictor, hyperparameters or Hyperparameters(), sites)
    return driver.run(backend, options, after_loop=after_loop, state=state)


def change_between(mean: FloatArray, variance: FloatArray, new_mean: FloatArray, new_variance: FloatArray) -> float:
    """Largest move of a mean in standard deviations, or of the logarithm of a variance."""
    shift = np.max(np.abs(new_mean - mean) / np.sqrt(new_variance), initial=0.0)
    stretch = np.max(np.abs(np.log(new_variance / variance)), initial=0.0)
    return float(max(shift, stretch))


def state_of_prior(prior: Prior) -> dict[str, Any]:
    """Return a prior as part of a state: without the structures of its blocks, which do not change."""
    if isinstance(prior, FactorialGaussian):
        return arrays_of("prior", prior)
    psi = np.concatenate([block.psi for block in prior.blocks])
    return {**arrays_of("prior", prior.independent), "prior_hyperparameters": psi}


def prior_from(state: State, like: Prior) -> Prior:
    """Read a prior from a state, with the structures of another."""
    independent = gaussian_of("prior", state)
    if isinstance(like, FactorialGaussian):
        return independent
    ends = np.cumsum([block.psi.size for block in like.blocks])[:-1]
    return like.at(independent, np.split(np.asarray(state["prior_hyperparameters"]), ends))


def deviations(variance: FloatArray) -> FloatArray:
    """Compute standard deviations of predictors, from variances ``(rows,)`` or covariances ``(rows, K, K)``."""
    each = variance if variance.ndim == 1 else np.einsum("nii->ni", variance)
    return np.sqrt(np.maximum(each, np.finfo(np.float64).tiny))


class LinearBackend:
    """A backend of the driver for rows of one linear model, but for its sites, which a subclass keeps.

    ``change`` is that of the last iteration, ``max_step`` the largest step size of any row, ``growth`` its last growth.
    ``noise`` is of the last sweep: slope and information of the log evidence in the log noise scale; or, for the
    squared loss, sums of weights and of weighted squared targets.
    """

    def __init__(self, loss: Loss, posterior: Any, options: Options, hyperparameters: Hyperparameters) -> None:
        self.loss, self.posterior, self.options, self.hyperparameters = loss, posterior, options, hyperparameters
        self.beta, self.noise = options.temperature.beta(0), np.zeros(2)
        self.change, self.max_step, self.growth = np.inf, 1.0, 1.0
        # Sites of the squared loss do not depend on cavities: one sweep is exact.
        self.is_normal = offers(loss).squared is not None and options.power == 1.0

    def scale_sites(self, precisions: float, shifts: float) -> None:
        """Multiply precisions and shifts of all sites by factors; the posterior has done so."""
        raise NotImplementedError

    def center(self) -> float:
        """Weighted mean of the targets."""
        raise NotImplementedError

    def log_scale(self) -> float:
        """Sum of the logarithms of the scales of all sites, under the posterior as it is."""
        raise NotImplementedError

    @property
    def prior(self) -> Prior:
        """The prior, which may change from iteration to iteration."""
        prior: Prior = self.posterior.prior
        return prior

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return np.asarray(self.posterior.mean)

    def begin_loop(self, loop: int, beta: float, diagnostics: Diagnostics) -> None:
        """Multiply the sites by the ratio of temperatures."""
        if beta != self.beta:
            self._scale(diagnostics, beta / self.beta, beta / self.beta)
            self.beta = beta

    def _scale(self, diagnostics: Diagnostics, precisions: float, shifts: float) -> bool:
        """Multiply precisions and shifts of all sites by factors, if that leaves the posterior proper."""
        done: bool = self.posterior.scale(precisions, shifts)
        if done:
            self.scale_sites(precisions, shifts)
        else:
            diagnostics.reject(-1, Refusal.RESCALING)
        return done

    def remaining_change(
        self, number: int, change: float, pending: float, average_step: float, held_back: bool
    ) -> float:
        """Estimate what all later iterations will change, and choose the largest step size of the next one.

        ``pending`` is the most that a single block moved a mean by, in standard deviations: two blocks can undo each
        other's moves, and what one of them moved is still to come, too. Blocks that were held back by `visit` have more
        to come than that.

        Step sizes become shorter for all rows after an iteration that changes more than the one before, longer
        otherwise. Convex costs hardly need it; of the others it decides whether they converge. Where blocks were held
        back, the change does not depend on the step sizes. After longer steps an iteration may change as much more as
        its steps are longer, and a fiftieth beyond that.
        """
        before, self.change = self.change, change
        if number >= 5 and not held_back and change > self.options.tol:
            is_larger = change > 1.02 * max(self.growth, 1.0) * before
            max_step = min(max((0.8 if is_larger else 1.1) * self.max_step, 0.02), _LONGEST_STEP)
            self.growth, self.max_step = max_step / self.max_step, max_step
        if held_back:
            return np.inf
        # With changes that fall by a constant rate, the sum of those to come; steps below one hide a part of them.
        # Two changes estimate the rate.
        rate = min(change / before, _LARGEST_RATE) if before > 0.0 else 0.0
        return max(change, pending) * max(1.0, rate / (1.0 - rate)) / min(average_step, 1.0)

    def update_hyperparameters(self, diagnostics: Diagnostics) -> bool:
        """Update prior variances and noise scale after a sweep; whether they have converged."""
        free, loss = self.hyperparameters, self.loss
        if not free:
            return True
        before = float(getattr(loss, "scale", 1.0))
        if self.is_normal:
            rows = NormalRows(self.noise[0], self.noise[1], before, free.least)
            maximise_normal_evidence(self.posterior, free, rows)
            if rows.scale != before:
                factor = (before / rows.scale) ** 2
                self.scale_sites(factor, factor)
                self.loss = with_scale(loss, rows.scale)
            return True
        scale, stretch = free.update(self.posterior, self.noise, before, self.change)
        if stretch:
            self._scale(diagnostics, float(np.exp(-2.0 * stretch)), float(np.exp(-stretch)))
        if scale != before:
            factor = site_factor(loss, scale, self.center())
            if self._scale(diagnostics, factor, factor):
                self.loss = with_scale(loss, scale)
        return free.is_found

    def snapshot(self) -> dict[str, Any]:
        """State between two iterations: prior, sums over all sites, hyperparameters and step sizes."""
        return {
            **state_of_prior(self.prior),
            "information": self.posterior.flat,
            "shift": self.posterior.shift,
            **self.hyperparameters.snapshot(),
            "numbers": np.array([self.beta, self.change, self.max_step, self.growth]),
            "noise": self.noise,
            "loss_scale": np.array(float(getattr(self.loss, "scale", 1.0))),
        }

    def restore(self, state: State) -> None:
        """Return to such a state."""
        prior = prior_from(state, self.prior)
        self.posterior.replace(np.array(state["information"]), np.array(state["shift"]), prior)
        self.hyperparameters.restore(state)
        self.beta, self.change, self.max_step, self.growth = (float(n) for n in state["numbers"])
        self.noise, scale = np.array(state["noise"]), float(state["loss_scale"])
        if scale != getattr(self.loss, "scale", 1.0):
            self.loss = with_scale(self.loss, scale)

    def finish(self, diagnostics: Diagnostics) -> None:
        """Nothing to do: the posterior is factorised after every block."""

    def result(self, status: Status, diagnostics: Diagnostics) -> Result:
        """Posterior and the product of all sites as values."""
        loss: Any = self.loss
        # Of the squared loss nothing has to be integrated, and nothing cancels where the noise is small.
        scale = -0.5 * self.beta * self.noise[1] / loss.as_squared**2 if self.is_normal else self.log_scale()
        natural = self.posterior.natural(float(scale))
        posterior = natural.posterior(self.prior)
        return Result(posterior, natural, status, diagnostics.trace(), self.prior, self.loss, self.noise)


class Blocks(LinearBackend):
    """Sites of all rows, and their posterior."""

    def __init__(
        self,
        loss: Loss,
        rows: Rows,
        posterior: DensePosterior | SparsePosterior | KernelPosterior,
        options: Options,
        predictor: int,
        hyperparameters: Hyperparameters,
        sites: RowSites,
    ) -> None:
        super().__init__(loss, posterior, options, hyperparameters)
        self.rows, self.sites, self.targets, self.held_back = rows, sites, rows.targets[predictor], False

    def sweep(self, step: Step, diagnostics: Diagnostics) -> Change:
        """Update the sites of all rows once."""
        posterior = self.posterior
        first, mean, variance = step.loop == 0, posterior.mean, posterior.variance()
        self.held_back, self.noise, farthest = False, np.zeros(2), np.zeros(mean.size)
        if self.is_normal:
            self.take_normal(diagnostics)
        else:
            for part in posterior.parts(first):
                here = self.posterior.mean
                self.visit(part, first, diagnostics)
                farthest = np.maximum(farthest, np.abs(self.posterior.mean - here))
        after = self.posterior.variance()
        change = change_between(mean, variance, self.posterior.mean, after)
        if self.is_normal:
            self.update_hyperparameters(diagnostics)
            return Change(change, 0.0)
        pending = float(np.max(farthest / np.sqrt(after), initial=0.0))
        remaining = self.remaining_change(step.loop, change, pending, self.sites.average_step, self.held_back)
        self.sites.max_step = self.max_step
        return Change(change, remaining if self.update_hyperparameters(diagnostics) else np.inf)

    def take_normal(self, diagnostics: Diagnostics) -> None:
        """Set the sites of the squared loss, which do not depend on the cavities."""
        loss: Any = self.loss
        flat, shift = self.posterior.flat, self.posterior.shift
        for part in self.posterior.parts(False):
            sites, weights = self.sites.part(part), self.rows.weights[part]
            targets = self.targets[part] - sites.offset
            precisions = self.beta * weights / loss.as_squared**2
            changes = precisions - sites.precision, precisions * targets - sites.shift
            flat = flat + self.posterior.flat_of_sites(part, changes[0])
            shift = shift + self.posterior.sum_of_shifts(part, changes[1])
            sites.precision[:], sites.shift[:] = precisions, precisions * targets
            self.noise += float(np.sum(weights)), float(weights @ targets**2)
            diagnostics.updates += targets.size
        if not self.posterior.replace(flat, shift):
            diagnostics.reject(-1, Refusal.NONFINITE)

    def visit(self, part: slice, fresh: bool, diagnostics: Diagnostics) -> None:
        """Update the sites of a block; shorten their steps while the posterior would be improper or move too far."""
        sites, o, order = self.sites.part(part), self.options, self.rows.order[part]
        sites.mean[:], sites.variance[:] = self.posterior.predictors(part)
        changes = propose(
            self.loss,
            self.targets[part],
            self.rows.weights[part],
            sites,
            beta=self.beta,
            power=o.power,
            fresh=fresh,
            noise=self.hyperparameters.scale,
        )
        if changes.noise is not None:
            self.noise += changes.noise
        diagnostics.updates += len(changes.improper)
        rejected = {Refusal.IMPROPER_CAVITY: changes.improper, Refusal.NONFINITE: changes.nonfinite}
        # The predictors of a block may move by five of their standard deviations: beyond, the local fits of the rows
        # have no meaning, and with narrow priors losses of straight pieces overshoot. This bound shortens a step to a
        # tenth at most, so that sites which are far too narrow can widen.
        share, farthest, least = 1.0, 5.0, 0.1
        for _ in range(8):
            new = self.posterior.with_sites(part, share * changes.precision, share * changes.shift)
            allowed = 0.5 if new is None else 1.0
            if new is not None and share > least:
                # In standard deviations before or after the move, whichever is larger, for the same reason.
                moves, spread = np.abs(new.means(part) - sites.mean), deviations(sites.variance)
                if np.any(moves > farthest * spread):
                    spread = np.maximum(spread, deviations(new.predictors(part)[1]))
                    allowed = min(1.0, farthest / float(np.max(moves / spread)))
            if new is not None and allowed == 1.0:
                self.posterior = new
                sites.precision[:] += share * changes.precision
                sites.shift[:] += share * changes.shift
                self.held_back |= share < 1.0
                break
            # At first in proportion; where prior and rows leave no room for that, by halves.
            share *= max(0.8 * allowed, least) if share == 1.0 else 0.5
            diagnostics.damp(-1)
        else:
            rejected[Refusal.IMPROPER_POSTERIOR] = np.ones(len(changes.improper), dtype=bool)
        for why, rows in rejected.items():
            for row in np.flatnonzero(rows):
                diagnostics.reject(int(order[row]), why)

    def scale_sites(self, precisions: float, shifts: float) -> None:
        """Multiply precisions and shifts of all sites by factors."""
        self.sites.scale_by(precisions, shifts)

    def center(self) -> float:
        """Weighted mean of the targets."""
        sums = np.zeros(2)
        for part in self.posterior.parts(False):
            weights = self.rows.weights[part]
            sums += float(weights @ self.targets[part]), float(np.sum(weights))
        return float(sums[0] / sums[1])

    def log_scale(self) -> float:
        """Sum of the logarithms of the scales of all sites: one more look at every row, for the evidence."""
        total, o = 0.0, self.options
        for part in self.posterior.parts(False):
            sites = self.sites.part(part)
            sites.mean[:], sites.variance[:] = self.posterior.predictors(part)
            weights = self.rows.weights[part]
            total += log_scale(self.loss, self.targets[part], weights, sites, beta=self.beta, power=o.power)
        return total

    def snapshot(self) -> dict[str, Any]:
        """State between two iterations, with the sites of all rows."""
        return {**self.sites.arrays(), **super().snapshot()}

    def restore(self, state: State) -> None:
        """Return to such a state."""
        super().restore(state)
        self.sites.set_arrays(state)
        self.sites.max_step = self.max_step
