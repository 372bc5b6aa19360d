"""What changes from iteration to iteration beside the sites: temperature, hyperparameters, and the pace of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.ep.hyperparameters import Hyperparameters, NormalRows, maximise_normal_evidence
from cavity.ep.options import Options
from cavity.ep.pace import Pace
from cavity.ep.result import Ledger, Refusal, Result, Status
from cavity.ep.roles import Posterior
from cavity.ep.snapshots import State
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss, offers
from cavity.losses.noise import site_factor, with_scale

FloatArray = NDArray[np.float64]


class Evolving:
    """A backend of the driver but for its sites, which a subclass keeps: what all do before and after a sweep."""

    def __init__(self, loss: Loss, posterior: Posterior, options: Options, hyperparameters: Hyperparameters) -> None:
        self.loss, self.posterior, self.options, self.hyperparameters = loss, posterior, options, hyperparameters
        self.beta, self.pace = options.temperature.beta(0), Pace(options.tol)
        # Of the last sweep: slope and information of the log evidence in the log noise scale; or, for the squared loss,
        # sums of weights and of weighted squared targets.
        self.noise = np.zeros(2)

    @property
    def is_normal(self) -> bool:
        """Whether sites do not depend on cavities, so that one sweep is exact."""
        return offers(self.loss).squared is not None and self.options.power == 1.0

    def scale_sites(self, precisions: float, shifts: float) -> None:
        """Multiply precisions and shifts of all sites by factors; the posterior has done so."""
        raise NotImplementedError

    def center(self) -> float:
        """Give the weighted mean of the targets."""
        raise NotImplementedError

    def log_scale(self) -> float:
        """Sum up the logarithms of the scales of all sites under the posterior as it stands."""
        raise NotImplementedError

    @property
    def prior(self) -> FactorialGaussian:
        """The prior, which may change from iteration to iteration."""
        return self.posterior.prior

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return self.posterior.mean

    def begin_loop(self, loop: int, beta: float, ledger: Ledger) -> None:
        """Multiply the sites by the ratio of temperatures."""
        if beta != self.beta:
            self._scale(ledger, beta / self.beta, beta / self.beta)
            self.beta = beta

    def _scale(self, ledger: Ledger, precisions: float, shifts: float) -> bool:
        """Multiply precisions and shifts of all sites by factors, if that leaves the posterior proper."""
        done = self.posterior.scale(precisions, shifts)
        if done:
            self.scale_sites(precisions, shifts)
        else:
            ledger.refuse(-1, Refusal.RESCALING)
        return done

    def update_hyperparameters(self, ledger: Ledger) -> bool:
        """Let prior variances and noise scale follow the sites after a sweep; whether nothing is left to find."""
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
        scale, stretch = free.update(self.posterior, self.noise, before, self.pace.change)
        if stretch:
            self._scale(ledger, float(np.exp(-2.0 * stretch)), float(np.exp(-stretch)))
        if scale != before:
            factor = site_factor(loss, scale, self.center())
            if self._scale(ledger, factor, factor):
                self.loss = with_scale(loss, scale)
        return free.is_found

    def snapshot(self) -> dict[str, Any]:
        """Give the posterior and what changes with it."""
        return {
            **self.posterior.snapshot(),
            **self.hyperparameters.snapshot(),
            "numbers": np.array([self.beta, *self.pace.numbers]),
            "noise": self.noise,
            "loss_scale": np.array(float(getattr(self.loss, "scale", 1.0))),
        }

    def restore(self, state: State) -> None:
        """Return to such a state."""
        self.posterior.restore(state)
        self.hyperparameters.restore(state)
        self.beta, *self.pace.numbers = (float(n) for n in state["numbers"])
        self.noise, scale = np.array(state["noise"]), float(state["loss_scale"])
        if scale != getattr(self.loss, "scale", 1.0):
            self.loss = with_scale(self.loss, scale)

    def finish(self, ledger: Ledger) -> None:
        """Nothing to do: the posterior is factorised after every block."""

    def result(self, status: Status, ledger: Ledger) -> Result:
        """Give posterior and the product of all sites as values."""
        loss: Any = self.loss
        # Of the squared loss nothing has to be integrated, and nothing cancels where the noise is small.
        scale = -0.5 * self.beta * self.noise[1] / loss.as_squared**2 if self.is_normal else self.log_scale()
        knowledge = self.posterior.knowledge(float(scale))
        posterior = knowledge.posterior(self.prior)
        return Result(posterior, knowledge, status, ledger.trace(), self.prior, self.loss, self.noise)


__all__ = ["Evolving"]
