"""What changes from loop to loop beside the sites: temperature, prior, noise scale, and the pace of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.ep.options import Options
from cavity.ep.pace import Pace, scale_moved
from cavity.ep.result import Ledger, Refusal, Result, Status
from cavity.ep.roles import Adaptation, Posterior
from cavity.ep.snapshots import State
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Loss
from cavity.noise import site_factor, with_scale

FloatArray = NDArray[np.float64]


class Evolving:
    """A backend of the driver but for its sites, which a subclass keeps: what all do before and after a sweep."""

    def __init__(self, loss: Loss, posterior: Posterior, options: Options, adaptation: Adaptation) -> None:
        self.loss, self.posterior, self.options, self.adaptation = loss, posterior, options, adaptation
        self.beta, self.pace = options.temperature.beta(0), Pace(options.tol)
        self.stretch, self.next_loss = 0.0, loss
        self.after: FloatArray = np.empty(0)

    def scale_sites(self, precisions: float, shifts: float) -> None:
        """Multiply precisions and shifts of all sites by factors; the posterior has done so."""
        raise NotImplementedError

    def center(self) -> float:
        """Give the weighted mean of the targets."""
        raise NotImplementedError

    def log_scale(self) -> float:
        """Sum up the logarithms of the scales of all sites under the posterior as it stands."""
        raise NotImplementedError

    def suggested_loss(self) -> Loss:
        """Ask what the loss of the next loop should be."""
        raise NotImplementedError

    @property
    def prior(self) -> FactorialGaussian:
        """The prior, which may change from loop to loop."""
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

    def prepare(self, loop: int, ledger: Ledger) -> None:
        """Take over the prior and the noise scale that the last loop suggests."""
        if self.next_loss is not self.loss:
            new: Any = self.next_loss
            factor = site_factor(self.loss, new.scale, self.center())
            if self._scale(ledger, factor, factor):
                self.loss = self.next_loss
        if self.stretch:
            squared = float(np.exp(self.stretch))
            prior = self.adaptation.stretched(self.prior, squared)
            self._scale(ledger, 1.0 / squared, squared**-0.5, prior)
            self.stretch = 0.0

    def _scale(self, ledger: Ledger, precisions: float, shifts: float, prior: FactorialGaussian | None = None) -> bool:
        """Multiply precisions and shifts of all sites by factors, and exchange the prior, if that leaves it proper."""
        done = self.posterior.scale(precisions, shifts, prior)
        if done:
            self.scale_sites(precisions, shifts)
        else:
            ledger.refuse(-1, Refusal.RESCALING)
        return done

    def look_ahead(self, loop: int) -> float:
        """Ask how prior and loss should change before the next loop; the largest change of their logarithms."""
        self.stretch = self.adaptation.end_loop(self.posterior, self.after, loop, self.pace.change)
        self.next_loss = self.suggested_loss()
        return scale_moved(self.loss, self.next_loss) if self.adaptation.is_done and not self.stretch else np.inf

    def snapshot(self) -> dict[str, Any]:
        """Give the posterior and what adapts with it."""
        return {
            **self.posterior.snapshot(),
            **self.adaptation.snapshot(),
            "numbers": np.array([self.beta, self.stretch, *self.pace.numbers]),
            "variances": self.after,
            "loss_scales": np.array([float(getattr(one, "scale", 1.0)) for one in (self.loss, self.next_loss)]),
        }

    def restore(self, state: State) -> None:
        """Return to such a state."""
        self.posterior.restore(state)
        self.adaptation.restore(state)
        self.beta, self.stretch, *self.pace.numbers = (float(n) for n in state["numbers"])
        self.after = np.array(state["variances"])
        now, following = (float(scale) for scale in state["loss_scales"])
        if now != getattr(self.loss, "scale", 1.0):
            self.loss = with_scale(self.loss, now)
        self.next_loss = self.loss if following == now else with_scale(self.loss, following)

    def finish(self, ledger: Ledger) -> None:
        """Nothing to do: the posterior is factorised after every block."""

    def result(self, status: Status, ledger: Ledger) -> Result:
        """Give posterior and the product of all sites as values."""
        knowledge = self.posterior.knowledge(self.log_scale())
        return Result(knowledge.posterior(self.prior), knowledge, status, ledger.trace(), self.prior, self.loss)


__all__ = ["Evolving"]
