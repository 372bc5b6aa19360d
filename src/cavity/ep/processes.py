r"""Gaussian processes: EP for functions whose prior covariance a kernel gives, and its hyperparameters.

The evidence has the gradient of `cavity.ep.wide` in the hyperparameters of the kernel, and that of
`cavity.ep.hyperparameters` in the noise scale, so that a quasi-Newton method finds its maximum; every evaluation is EP
until it converges, from the sites of the one before. A half-normal prior of the standard deviation that the functions
have bounds it from above, as it does for linear models: classes that can be separated leave it open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from cavity._types import FloatArray
from cavity.ep.blocks import RowSites, noise_slope, run
from cavity.ep.driver import Options
from cavity.ep.hyperparameters import GAIN
from cavity.ep.result import Result, Status
from cavity.ep.wide import KernelPosterior
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import ImproperError
from cavity.gaussians.wide import ProcessGaussian
from cavity.losses import Loss
from cavity.losses.noise import log_normalizer, with_scale

# Smallest noise scale that is found, as a share of where the search starts.
_LEAST_SCALE = 1e-4
# Evaluations that a search may take in all.
_EVALUATIONS = 100

# Prior covariance at the inputs, and its derivatives, from hyperparameters.
Covariance = Callable[[FloatArray], tuple[FloatArray, FloatArray]]


class GivenCovariance(NamedTuple):
    """Prior of functions at some inputs: mean zero, and the same covariance for each."""

    mean: FloatArray
    covariance: FloatArray


class _Given:
    """The kernel of such a prior, for this number of functions."""

    def __init__(self, count: int) -> None:
        self.count = count

    def at(self, prior: GivenCovariance) -> tuple[FloatArray, list[FloatArray]]:
        """Prior means and covariances."""
        return prior.mean, [prior.covariance] * self.count

    def slopes(self, prior: GivenCovariance, groups: Sequence[Any]) -> list[list[FloatArray | None]]:
        """No hyperparameters: they are found outside."""
        return []


class Process(NamedTuple):
    """A fitted Gaussian process.

    Parameters
    ----------
    gaussian
        The posterior of the functions at the inputs.
    result
        How the last run of EP ended.
    loss
        The loss, with the noise scale that was found.
    theta
        Hyperparameters of the kernel.
    log_evidence
        Logarithm of the evidence, targets normalised.
    """

    gaussian: ProcessGaussian
    result: Result
    loss: Loss
    theta: FloatArray
    log_evidence: float


class ProcessRows:
    """Targets of a Gaussian process, with the sites that EP has for them."""

    def __init__(self, loss: Loss, targets: FloatArray, offset: float, max_iter: int, tol: float) -> None:
        n = targets.size
        self.loss, self.offset, self.options = loss, offset, Options(max_iter, tol, keep_state=False)
        self.rows = Rows(np.empty((n, 1)), range(n), targets[None], np.ones(n), False, np.full(n, offset))
        self.predictors = getattr(loss, "predictors", None)
        self.sites: RowSites | None = None

    def fit(self, theta: FloatArray, covariance: FloatArray, scale: float | None = None) -> Process:
        """Run EP, from the sites of the last run if there were any.

        Parameters
        ----------
        theta
            Hyperparameters of the kernel, which belong to the result.
        covariance
            Prior covariance at the inputs.
        scale
            Noise scale; that of the loss by default.
        """
        loss = self.loss if scale is None else with_scale(self.loss, scale)
        count, n = self.predictors or 1, self.rows.shape[0]
        prior, kernel = GivenCovariance(np.zeros((count, n)), covariance), _Given(count)
        start = None if self.sites is None else (self.sites.precision, self.sites.shift)
        try:
            posterior = KernelPosterior(kernel, prior, self.predictors, start)
        except ImproperError:  # sites of negative precision under another prior
            self.sites = None
            posterior = KernelPosterior(kernel, prior, self.predictors)
        if self.sites is None:
            self.sites = RowSites.uniform(n, self.predictors, self.rows.offset)
        result = run(loss, self.rows, posterior, self.options, sites=self.sites)
        constants = 0.0
        if self.predictors is None:
            constants = float(np.sum(log_normalizer(loss, self.rows.targets[0])))
        return Process(result.posterior, result, loss, theta, float(result.posterior.log_mass) - constants)

    def slope_of_scale(self, process: Process) -> float:
        """Slope of the log evidence in the logarithm of the noise scale."""
        sites, found = self.sites, process.gaussian
        assert sites is not None
        left = 1.0 - sites.precision * found.variance
        proper = left > 1e-10
        variance = found.variance / np.where(proper, left, 1.0)
        mean = found.mean + variance * (sites.precision * found.mean - sites.shift)
        weights = np.where(proper, self.rows.weights, 0.0)
        return float(noise_slope(process.loss, self.rows.targets[0], mean + self.offset, variance, weights)[0])


def maximise(
    rows: ProcessRows,
    covariance: Covariance,
    starts: Sequence[FloatArray],
    bounds: FloatArray,
    finds_scale: bool,
    rate: float,
) -> Process:
    """Find hyperparameters of a kernel, and the noise scale, that maximise the evidence.

    Parameters
    ----------
    rows
        The targets.
    covariance
        Prior covariance at the inputs and its derivatives ``(n, n, hyperparameters)``.
    starts
        Hyperparameters where searches start; the best end is kept.
    bounds
        Their bounds, ``(hyperparameters, 2)``.
    finds_scale
        Whether the noise scale of the loss is to be found.
    rate
        Inverse of the standard deviation of the half-normal prior of the standard deviation of the functions.
    """
    first = float(getattr(rows.loss, "scale", 1.0))
    best: tuple[float, Process | None] = (np.inf, None)

    def cost(psi: FloatArray) -> tuple[float, FloatArray]:
        nonlocal best
        theta = psi[: len(bounds)]
        K, slopes = covariance(theta)
        penalty = 0.5 * rate**2 * float(np.mean(np.diagonal(K)))
        try:
            found = rows.fit(theta, K, float(np.exp(psi[-1])) if finds_scale else None)
        except ImproperError:
            found = None
        # Where EP does not converge it has no evidence: the search takes a shorter step.
        is_known = found is not None and found.result.status is Status.CONVERGED
        value = penalty - found.log_evidence if found is not None and is_known else np.inf
        if best[1] is None:
            best = value, found
        if found is None or not np.isfinite(value):
            rows.sites = None
            return (best[0] if np.isfinite(best[0]) else 0.0) + 1e3, np.zeros_like(psi)
        gradient = -found.gaussian.slopes(slopes)
        gradient += 0.5 * rate**2 * np.einsum("iij->j", slopes) / len(K)
        if finds_scale:
            gradient = np.append(gradient, -rows.slope_of_scale(found))
        if value < best[0]:
            best = value, found
        return value, gradient

    limits = [tuple(pair) for pair in bounds]
    if finds_scale:
        limits.append((np.log(_LEAST_SCALE * first), np.log(10.0 * first)))
    for start in starts:
        rows.sites = None
        psi = np.append(start, np.log(first)) if finds_scale else start
        value, gradient = cost(psi)
        # The first step goes down the gradient: in this unit of the cost no logarithm moves by more than one.
        unit = max(float(np.max(np.abs(gradient), initial=0.0)), 1.0)

        def scaled(psi: FloatArray, unit: float = unit) -> tuple[float, FloatArray]:
            value, gradient = cost(psi)
            return value / unit, gradient / unit

        # In nats: what is left to gain far below where the data begin to prefer one of two values.
        enough = {"ftol": 0.1 * GAIN / max(abs(value), unit), "maxfun": _EVALUATIONS}
        minimize(scaled, psi, jac=True, method="L-BFGS-B", bounds=limits, options=enough)
    if best[1] is None:
        raise ValueError("the evidence is beyond what numbers can hold: bring inputs and targets to ordinary sizes")
    return best[1]
