"""What a run returns: posterior, status in words, and the trace of what was refused."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib import import_module
from typing import Any

import numpy as np

from cavity._types import FloatArray
from cavity.gaussians.factorial import FactorialGaussian
from cavity.terms.prior import Prior


class Refusal(Enum):
    """Why an update was refused; the state stayed as it was."""

    IMPROPER_CAVITY = "the cavity is improper"
    NONFINITE = "the cost or its site is not finite"
    NEGATIVE = "the site has a negative precision"
    IMPROPER_POSTERIOR = "the posterior or the next cavity would be improper"
    RESCALING = "sites rescaled to the new beta would make the posterior improper"
    DIVERGED = "the last loop ended at a higher cost than the prior mean; an earlier state was kept"


class Status(Enum):
    """How a run ended; the value says what to do about it."""

    CONVERGED = "converged: the last loop changed the posterior by less than tol"
    SINGLE_PASS = "single pass done: every factor was visited once, as asked; convergence is not checked"
    MAX_ITER = "not converged in the loops allowed: raise max_iter, or damp with damping=0.5"
    IMPROPER_CAVITY = (
        "updates were refused in the last loop because a cavity or the posterior would be improper: try "
        "damping=0.5, negative='floor', smaller mini-batches or a narrower prior; result.trace names the factors"
    )
    NONFINITE = (
        "updates were refused in the last loop because a cost or its site was not finite: look at the cost of the "
        "factors that result.trace names, scale the data, or narrow the prior"
    )
    DIVERGED = (
        "the last loop ended at a higher cost than the prior mean, and the best state before it was kept: use "
        "scheme='exact' on linear factors, 'la' or smaller mini-batches elsewhere, or damping=0.1"
    )
    NEGATIVE = (
        "updates were refused in the last loop because of negative='skip' and sites of negative precision: "
        "use negative='keep' or negative='floor'"
    )
    INTERRUPTED = "a factor raised an error, and this is the state before it: fix its cost, then run again"

    @property
    def is_success(self) -> bool:
        """Whether the run ended as asked."""
        return self in (Status.CONVERGED, Status.SINGLE_PASS)


class RunError(RuntimeError):
    """A run that did not end as asked, raised by `Result.raise_for_status`."""


class FactorError(RuntimeError):
    """A factor raised an error.

    Parameters
    ----------
    factor
        Index of the factor; -1 where all were asked at once.
    result
        The state before it.
    error
        What the factor raised.
    """

    def __init__(self, factor: int, result: Result, error: Exception) -> None:
        who = f"factor {factor}" if factor >= 0 else "one of the factors"
        super().__init__(f"{who} raised {type(error).__name__}: {error}; the state before it is in .result")
        self.factor, self.result = factor, replace(result, status=Status.INTERRUPTED)


def warn_of(status: Enum, function: str, stacklevel: int = 3) -> None:
    """Warn the caller of a function of how it ended, by the class that users of scikit-learn know."""
    # scikit-learn is loaded when it is first needed: importing cavity stays quick.
    category = import_module("sklearn.exceptions").ConvergenceWarning
    warnings.warn(f"{function} ended with {status.name}: {status.value}", category, stacklevel=stacklevel)


@dataclass(frozen=True, slots=True)
class Trace:
    """What happened during a run.

    Parameters
    ----------
    updates
        Number of visits, refused ones included.
    changes
        For every loop the largest change of the posterior, in units of its standard deviation for the mean, and
        of the logarithm of its precision; NaN for a single pass, which nothing follows.
    betas
        Inverse temperature of every loop.
    refusals
        How often each factor was refused, and why: ``{(factor, Refusal): count}``; factor -1 is the whole.
    dampings
        How often each factor's update was accepted only after more damping.
    """

    updates: int
    changes: tuple[float, ...]
    betas: tuple[float, ...]
    refusals: Counter[tuple[int, Refusal]]
    dampings: Counter[int]

    @property
    def refused(self) -> int:
        """Number of refused updates."""
        return sum(self.refusals.values())

    def __str__(self) -> str:
        lines = [f"{self.updates} updates in {len(self.changes)} loops, {self.refused} refused"]
        if self.changes and not math.isnan(self.changes[-1]):
            lines.append(f"last loop changed the posterior by {self.changes[-1]:.3g} standard deviations at most")
        for (factor, why), count in self.refusals.most_common(10):
            lines.append(f"  factor {factor}: {why.value}, {count} times")
        if len(self.refusals) > 10:
            lines.append(f"  and {len(self.refusals) - 10} more")
        if self.dampings:
            lines.append(f"{sum(self.dampings.values())} updates of {len(self.dampings)} factors damped further")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The outcome of a run.

    Parameters
    ----------
    posterior
        Product of the prior and all sites, a Gaussian; its mass is the evidence.
    sites
        What the factors say: the stored sites in their factors' own coordinates, one per factor, one in all if tied,
        or none; with ``covariance="full"`` or ``"sparse"`` the product of the sites of all rows.
    status
        How the run ended.
    trace
        What happened in the run.
    prior, loss
        The prior and the loss that the run ended with, where these were found with the posterior.
    noise
        Slope and information of the log evidence in the logarithm of a noise scale that was found.
    row_sites
        Sites of all rows with the predictors under this posterior, in visiting order, of runs by blocks of rows.
    state
        Numbers and arrays by name, from which `cavity.fit` continues bit for bit; `numpy.savez` writes them to a file.
    """

    posterior: Any
    sites: Any
    status: Status
    trace: Trace
    prior: Prior
    loss: Any = None
    noise: FloatArray | None = field(default=None, repr=False)
    row_sites: Any = field(default=None, repr=False)
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return np.asarray(self.posterior.mean)

    @property
    def variance(self) -> FloatArray:
        """Posterior variance of every coordinate."""
        return np.asarray(self.posterior.variance)

    @property
    def std(self) -> FloatArray:
        """Posterior standard deviation of every coordinate."""
        return np.sqrt(self.variance)

    @property
    def log_evidence(self) -> float:
        r"""Estimate of :math:`\log \int \text{prior} \prod_k e^{-\beta u_k}`; exact for Gaussian factors.

        NaN where there is none: after a run that diverged, or that ended at the prior since updates were refused.
        """
        is_prior = self.trace.refused > 0 and np.array_equal(self.posterior.mean, self.prior.mean)
        if isinstance(self.prior, FactorialGaussian):
            is_prior = is_prior and np.array_equal(self.posterior.variance, self.prior.variance)
        return math.nan if is_prior or self.status is Status.DIVERGED else float(self.posterior.log_mass)

    def raise_for_status(self) -> Result:
        """Raise `RunError` unless the run ended as asked; return the result otherwise."""
        if not self.status.is_success:
            raise RunError(f"{self.status.value}\n{self.trace}")
        return self

    def __str__(self) -> str:
        return f"{self.status.value}\nlog evidence {self.log_evidence:.6g}\n{self.trace}"
