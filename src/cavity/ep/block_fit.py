"""EP by blocks for linear factors and a prior, without an estimator around it."""

from __future__ import annotations

import numpy as np

from cavity._checks import nonnegative_number, positive_number, whole_number
from cavity.ep.blocks import Options, Outcome, run
from cavity.ep.dense import DenseWork
from cavity.factors import LinearBatches
from cavity.factors.arranged import Rows
from cavity.gaussians.factorial import FactorialGaussian

# Columns up to which a whole covariance is kept: 200 MB for each copy of the matrix.
_WIDEST = 5000


def fit_blocks(
    factors: LinearBatches,
    prior: FactorialGaussian,
    *,
    max_iter: int = 100,
    tol: float = 0.01,
    beta: float = 1.0,
    power: float = 1.0,
) -> Outcome:
    r"""Approximate :math:`\text{prior}(\theta) \prod_i e^{-\beta w_i \ell(y_i, x_i^\top \theta)}` by a Gaussian.

    Every row has a site of its own; how the rows are cut into batches does not matter. Exact for Gaussian factors.

    Parameters
    ----------
    factors
        The data as `LinearBatches`, at most 5000 columns wide; dense or CSR, in double or single precision.
    prior
        A proper `FactorialGaussian`.
    max_iter, tol, beta, power
        As in `cavity.ep.blocks.Options`.

    Returns
    -------
    Outcome
        A row whose cavity is improper, whose moments are not finite, or whose site would make the posterior improper,
        is refused, left as it was, and named in the trace.

    Examples
    --------
    >>> from cavity.losses import Squared
    >>> factors = LinearBatches(Squared(), [[1.0, 1.0], [1.0, -1.0], [1.0, 0.0]], [3.0, 1.0, 2.0])
    >>> result = fit_blocks(factors, FactorialGaussian.from_moments(mean=[0.0, 0.0], variance=1.0))
    >>> result.mean.round(3), result.status.name
    (array([1.5  , 0.667]), 'CONVERGED')
    """
    if not isinstance(factors, LinearBatches):
        raise ValueError(
            f"factors must be LinearBatches, got {type(factors).__name__}; build them with "
            "LinearFactor.batches(loss, X, y), or gather linear factors with LinearBatches.stack"
        )
    if factors.dim > _WIDEST:
        raise ValueError(f"a full covariance has at most {_WIDEST} columns, got {factors.dim}; use cavity.fit")
    if not prior.is_proper or prior.dim != factors.dim:
        raise ValueError(
            f"prior must be proper and have the {factors.dim} coordinates of the factors, got {prior.dim} coordinates; "
            "build it with FactorialGaussian.from_moments(mean, variance)"
        )
    options = Options(
        whole_number("max_iter", max_iter, least=1),
        nonnegative_number("tol", tol),
        positive_number("beta", beta),
        positive_number("power", power),
    )
    rows = Rows.arrange(factors.X, np.asarray(factors.targets)[None], factors.weights, intercept=False)
    return run(factors.loss, rows, DenseWork(rows, prior), options)
