"""Cost curves: run EP once, keep the mean after every update, and price all of them afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

import cavity
from cavity.ep.factorised import Update
from cavity.factors import LinearBatches
from cavity.schemes._protocol import Scheme
from reference.problems import PRIOR_VARIANCE, SCHEMES, Problem

FloatArray = NDArray[np.float64]

# Entries of the table of predictors that is held at once.
_CHUNK = 2_000_000


def trace(problem: Problem, scheme: Scheme, updates: int | None = None) -> dict[str, Any]:
    r"""Total cost at the posterior mean after every update, and what else the claims ask for.

    Parameters
    ----------
    problem
        What to fit.
    scheme
        How to fit it.
    updates
        Fit only so many mini-batches, still pricing all rows; None for all.

    Returns
    -------
    dict
        ``cost`` after every update, ``spread`` (geometric mean of the standard deviations at the end),
        ``refused`` updates, and ``status``.
    """
    means: list[FloatArray] = []

    def record(update: Update) -> None:
        means.append(update.posterior.mean)

    result = fit(problem, scheme, problem.batches(updates), record)
    with np.errstate(all="ignore"):
        costs = total_costs(problem.batches(), np.array(means))
        spread = float(np.exp(np.mean(np.log(result.std))))
    return {
        "cost": [float(f"{c:.8g}") for c in costs],
        "spread": spread,
        "refused": result.trace.refused,
        "status": result.status.name,
    }


def traced(data: str, loss: str, variant: str, quick: bool) -> dict[str, Any]:
    """Run one curve of figure 2 or 3, by names, and say what it was run on."""
    problem = Problem(data, loss, quick)
    batches = problem.batches()
    cell = {
        "data": data,
        "loss": loss,
        "batches": len(batches),
        "loops": problem.loops,
        "start": float(batches.cost(problem.prior().mean)),
    }
    return {"cell": cell, "variant": variant, "curve": trace(problem, SCHEMES[variant])}


def cells(answers: list[Any]) -> list[dict[str, Any]]:
    """Put the curves together, one cell for every data set and loss."""
    gathered: dict[tuple[str, str], dict[str, Any]] = {}
    for answer in answers:
        cell = answer["cell"]
        kept = gathered.setdefault((cell["data"], cell["loss"]), {**cell, "curves": {}})
        kept["curves"][answer["variant"]] = answer["curve"]
    return list(gathered.values())


def fit(
    problem: Problem,
    scheme: Scheme,
    batches: LinearBatches,
    callback: Callable[[Update], object] | None = None,
    compiled: bool = False,
) -> cavity.Result:
    """Run the paper's settings: prior variance 25, beta 1, precisions raised to the floor of its program.

    The status is in the result and in the report, so that there is no warning.
    """
    sites: Literal["own", "none"] = "none" if problem.is_large else "own"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return cavity.fit(
            batches,
            problem.prior(),
            scheme,
            max_iter=problem.loops,
            sites=sites,
            negative="floor",
            safeguards=False,
            tol=0.0,
            callback=callback,
            compiled=None if compiled else False,
        )


def total_costs(batches: LinearBatches, means: FloatArray) -> FloatArray:
    r"""Price means ``(n, d)`` by :math:`\sum_k \ell_k(\theta) + \lVert\theta\rVert^2 / (2 \cdot 25)`."""
    size = max(1, _CHUNK // len(batches.targets))
    losses = [batches.cost(means[i : i + size]) for i in range(0, len(means), size)]
    costs: FloatArray = np.concatenate(losses) + np.sum(means**2, axis=1) / (2.0 * PRIOR_VARIANCE)
    return costs
