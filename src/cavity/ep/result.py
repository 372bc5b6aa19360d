"""What a run returns: posterior, status in words, and the trace of what was refused."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cavity._checks import number_between, whole_number
from cavity._types import FloatArray
from cavity.ep.draws import Draws, elliptical_slices
from cavity.ep.importance import LARGEST_SHAPE, weighted_draws
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


def untouched(prior: Any) -> Result:
    """Return the result before anything was computed."""
    return Result(prior, (), Status.MAX_ITER, Trace(0, (), (), Counter(), Counter()), prior)


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
class Check:
    """Whether a posterior can be trusted: what weighted draws and other starts say.

    Attributes
    ----------
    shape
        Shape k of the tail of the weights: below 0.5 the Gaussian is near the density, above 0.7 it is not.
    effective
        Share of the draws that are left after weighting.
    shifts
        Distance of the weighted means from the posterior's, in standard deviations.
    widths
        Weighted standard deviations over the posterior's.
    log_evidence
        Estimate of the evidence by the weighted draws.
    peaks
        Other peaks that were met, with the logarithm of their mass over that of the posterior; the largest first.
    """

    shape: float
    effective: float
    shifts: FloatArray
    widths: FloatArray
    log_evidence: float
    peaks: Sequence[Any]

    @property
    def is_reliable(self) -> bool:
        """Whether the weights are usable and no other peak has more than a hundredth of the mass."""
        return self.shape <= LARGEST_SHAPE and all(peak.log_odds < math.log(0.01) for peak in self.peaks)

    def __str__(self) -> str:
        fit = "near the density" if self.shape < 0.5 else "usable" if self.shape <= LARGEST_SHAPE else "NOT the density"
        lines = [f"Pareto k {self.shape:.2f}: the Gaussian is {fit}; {100 * self.effective:.0f}% of the draws count"]
        if self.shape <= LARGEST_SHAPE:
            low, high = np.min(self.widths), np.max(self.widths)
            shift = np.max(np.abs(self.shifts))
            lines.append(
                f"means within {shift:.2f} standard deviations, widths {low:.2f} to {high:.2f} times the Gaussian's"
            )
        else:
            lines.append("draw from the density instead: result.sample()")
        for peak in self.peaks:
            lines.append(
                f"another peak at {np.round(peak.point, 4)}, {np.exp(min(peak.log_odds, 700.0)):.3g} times the mass"
            )
        return "\n".join(lines)


class Prediction(NamedTuple):
    """A function of the parameters under the posterior.

    Parameters
    ----------
    mean, std
        Mean and standard deviation.
    lower, upper
        Ends of the interval.
    """

    mean: FloatArray
    std: FloatArray
    lower: FloatArray
    upper: FloatArray


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
    evaluations
        How many costs were asked for, each of one factor at one point; zero where they are not counted.
    problem
        The density that was fitted, where it can be asked for again: `sample` and `check` need it.
    bounds
        Bounds of the parameters, if any; ``posterior`` and ``sites`` are then those of the parameters without bounds.
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
    evaluations: int = 0
    problem: Any = field(default=None, repr=False)
    bounds: Any = field(default=None, repr=False)

    @property
    def mean(self) -> FloatArray:
        """Posterior mean."""
        return np.asarray(self.posterior.mean if self.bounds is None else self.bounds.moments(self.posterior)[0])

    @property
    def variance(self) -> FloatArray:
        """Posterior variance of every coordinate."""
        return np.asarray(self.posterior.variance if self.bounds is None else np.diag(self.covariance))

    @property
    def covariance(self) -> FloatArray:
        """Posterior covariance."""
        return np.asarray(self.posterior.covariance if self.bounds is None else self.bounds.moments(self.posterior)[1])

    @property
    def std(self) -> FloatArray:
        """Posterior standard deviation of every coordinate."""
        return np.sqrt(self.variance)

    @property
    def log_evidence(self) -> float:
        r"""Estimate of :math:`\log \int \text{prior} \prod_k e^{-\beta u_k}`; exact for Gaussian factors.

        NaN where there is none: after a run that diverged, or that ended at the prior since updates were refused; with
        all correlations of any factors after every run whose last updates were refused.
        """
        is_prior = self.trace.refused > 0 and np.array_equal(self.posterior.mean, self.prior.mean)
        if isinstance(self.prior, FactorialGaussian):
            is_prior = is_prior and np.array_equal(self.posterior.variance, self.prior.variance)
        refused = (Status.NONFINITE, Status.IMPROPER_CAVITY, Status.NEGATIVE)
        is_partial = self.problem is not None and self.status in refused
        if is_prior or is_partial or self.status is Status.DIVERGED:
            return math.nan
        return float(self.posterior.log_mass)

    def sample(self, draws: int = 4000, *, chains: int = 20, warmup: int = 100, random_state: int = 0) -> Draws:
        """Draw from the density itself, by elliptical slice sampling around the posterior.

        Exact in the limit, kinks included; the Gaussian sets the speed only. `Draws.r_hat` says whether the chains
        agree and `Draws.effective` what the draws are worth.

        Parameters
        ----------
        draws
            Number of draws, of all chains together.
        chains
            Number of chains; every cost is asked for as many points at once.
        warmup
            Number of steps of every chain that are left out.
        random_state
            Seed of the random numbers.
        """
        rng = np.random.default_rng(random_state)
        density = self._problem().log_density
        least = {"draws": whole_number("draws", draws, least=1), "chains": whole_number("chains", chains, least=1)}
        found = elliptical_slices(density, self.posterior, rng=rng, warmup=whole_number("warmup", warmup), **least)
        return found if self.bounds is None else replace(found, chains=self.bounds.inside(found.chains))

    def check(self, draws: int = 1000, *, starts: int = 4, random_state: int = 0) -> Check:
        """Compare the posterior with the density itself.

        Draws from the posterior are weighted by the density; and the search for the peak is repeated from draws of the
        prior.

        Parameters
        ----------
        draws
            Number of draws.
        starts
            Number of searches for other peaks; each costs as much as a fit. None of products of Gaussians.
        random_state
            Seed of the random numbers.
        """
        rng = np.random.default_rng(random_state)
        problem, posterior = self._problem(), self.posterior
        seen = weighted_draws(problem.log_density, posterior, whole_number("draws", draws, least=100), rng)
        peaks = problem.other_peaks(posterior, whole_number("starts", starts, least=0), rng)
        if self.bounds is not None:
            peaks = [peak._replace(point=self.bounds.inside(peak.point)) for peak in peaks]
        std = posterior.std
        return Check(
            seen.shape, seen.effective / draws, (seen.mean - posterior.mean) / std, seen.std / std, seen.log_mass, peaks
        )

    def predict(
        self, function: Callable[[FloatArray], ArrayLike], level: float = 0.95, draws: int | Draws = 1000
    ) -> Prediction:
        """Mean, standard deviation and interval of any function of the parameters.

        Parameters
        ----------
        function
            Function of one point ``(dim,)`` that returns a number or an array.
        level
            Probability of the interval.
        draws
            Number of draws from the posterior, or draws from `sample`.
        """
        tail = 0.5 * (1.0 - number_between("level", level, 0.0, 1.0, "()"))
        if isinstance(draws, Draws):
            points = draws.values
        else:
            noise = np.random.default_rng(0).standard_normal((whole_number("draws", draws, least=2), self.mean.size))
            points = self.posterior.draws(noise)
            points = points if self.bounds is None else self.bounds.inside(points)
        values = np.array([np.asarray(function(point), dtype=np.float64) for point in points])
        lower, upper = np.quantile(values, [tail, 1.0 - tail], axis=0)
        return Prediction(values.mean(axis=0), values.std(axis=0), lower, upper)

    def summary(self, names: Sequence[str] | None = None, level: float = 0.95) -> Any:
        """Table of the parameters: mean, standard deviation and interval.

        Parameters
        ----------
        names
            Names of the parameters; their numbers by default.
        level
            Posterior probability of the intervals.

        Returns
        -------
        pandas.DataFrame or str
            A DataFrame if pandas is installed, text otherwise.
        """
        tail = 0.5 * (1.0 - number_between("level", level, 0.0, 1.0, "()"))
        names = self._names(names)
        from_center = NormalDist().inv_cdf(1.0 - tail) * np.sqrt(self.posterior.variance)
        ends = [self.posterior.mean - from_center, self.posterior.mean + from_center]
        low, high = ends if self.bounds is None else [self.bounds.inside(end) for end in ends]
        columns = {"mean": self.mean, "std": self.std, f"{100 * tail:g}%": low, f"{100 * (1 - tail):g}%": high}
        if find_spec("pandas") is not None:
            return import_module("pandas").DataFrame(columns, index=names)
        width = max(map(len, names))
        lines = [" " * width + "".join(f"{name:>12}" for name in columns)]
        for name, *row in zip(names, *columns.values(), strict=True):
            lines.append(f"{name:<{width}}" + "".join(f"{value:12.5g}" for value in row))
        return "\n".join(lines)

    def plot(self, names: Sequence[str] | None = None, draws: Draws | None = None) -> Any:
        """Plot the posterior by pairs of parameters: draws, and ellipses of two standard deviations of the Gaussian.

        Needs matplotlib (the extra ``plot``).

        Parameters
        ----------
        names
            Names of the parameters; their numbers by default.
        draws
            Draws from `sample`; 2000 by default.

        Returns
        -------
        array of matplotlib Axes
            The panels, one for every pair; only those on and below the diagonal are used.
        """
        try:
            plt = import_module("matplotlib.pyplot")
        except ImportError as error:
            raise ImportError("plots need matplotlib: pip install cavity[plot]") from error
        names, d = self._names(names), self.mean.size
        points = (self.sample(2000) if draws is None else draws).values
        _, panels = plt.subplots(d, d, figsize=(1.6 + 1.5 * d, 1.4 + 1.4 * d), squeeze=False, layout="constrained")
        angles = np.linspace(0.0, 2.0 * np.pi, 100)
        mean, S = self.posterior.mean, np.asarray(self.posterior.covariance)
        for i in range(d):
            for j in range(d):
                axes = panels[i, j]
                if j > i:
                    axes.set_axis_off()
                elif i == j:
                    axes.hist(points[:, i], bins=40, density=True, color="0.8")
                    line = mean[i] + np.sqrt(S[i, i]) * np.linspace(-4.0, 4.0, 200)
                    heights = NormalDist(mean[i], np.sqrt(S[i, i])).pdf
                    slopes = np.ones(200)
                    shown = line
                    if self.bounds is not None:
                        shown, slopes = self.bounds.inside(line, i), np.exp(self.bounds.log_slopes(line, i))
                    axes.plot(shown, np.array([heights(x) for x in line]) / slopes, color="C0")
                    axes.set_yticks([])
                else:
                    axes.plot(points[:, j], points[:, i], ".", color="0.7", markersize=2)
                    root = np.linalg.cholesky(S[np.ix_([j, i], [j, i])])
                    ring = mean[[j, i]] + 2.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1) @ root.T
                    ring = ring if self.bounds is None else self.bounds.inside(ring, np.array([j, i]))
                    axes.plot(*ring.T, color="C0")
                if i == d - 1:
                    axes.set_xlabel(names[j])
                if j == 0 and i > 0:
                    axes.set_ylabel(names[i])
        return panels

    def _names(self, names: Sequence[str] | None) -> list[str]:
        count = self.mean.size
        names = [str(k) for k in range(count)] if names is None else [str(name) for name in names]
        if len(names) != count:
            raise ValueError(f"names must name each of {count} parameters, got {len(names)}")
        return names

    def _problem(self) -> Any:
        if self.problem is None:
            raise ValueError("this run did not keep its density, only cavity.fit with all correlations does")
        return self.problem

    def raise_for_status(self) -> Result:
        """Raise `RunError` unless the run ended as asked; return the result otherwise."""
        if not self.status.is_success:
            raise RunError(f"{self.status.value}\n{self.trace}")
        return self

    def __str__(self) -> str:
        return f"{self.status.value}\nlog evidence {self.log_evidence:.6g}\n{self.trace}"
