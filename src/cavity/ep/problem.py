"""What a run is given, factors, prior and start, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cavity._checks import shown
from cavity.ep.options import Options
from cavity.ep.result import FactorError, Ledger, Result
from cavity.factors import Factor, LinearBatches, LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.schemes._protocol import Scheme


def check_problem(factors: Any, prior: Any) -> None:
    """Refuse what are no factors, or no proper prior."""
    if not isinstance(prior, FactorialGaussian) or not prior.is_proper:
        got = "" if isinstance(prior, FactorialGaussian) else f", got {shown(prior)}"
        raise ValueError(
            "prior must be proper, with a positive finite variance everywhere; "
            f"build it with FactorialGaussian.from_moments(mean, variance){got}"
        )
    if isinstance(factors, str) or not all(hasattr(factors, name) for name in ("__len__", "__getitem__")):
        raise ValueError(f"factors must be a list of factors, got {shown(factors)}")
    if len(factors) == 0:
        raise ValueError("factors must hold at least one factor, got none")
    if isinstance(factors, LinearBatches):
        return
    for k, factor in enumerate(factors):
        if not all(hasattr(factor, name) for name in ("dim", "coordinates", "cost", "derivatives", "star")):
            raise ValueError(f"factors[{k}] must be a factor, such as CostFactor(cost, dim), got {shown(factor)}")


def are_linear(factors: Sequence[Factor]) -> bool:
    """Whether all are linear factors of one loss and width."""
    if isinstance(factors, LinearBatches):
        return True
    linear = [factor for factor in factors if isinstance(factor, LinearFactor)]
    # Losses are tuples: two of different kinds are equal if their numbers are.
    kinds = {(type(factor.loss), factor.loss, factor.dim) for factor in linear}
    return len(linear) == len(factors) and len(kinds) == 1


def stacked(factors: Sequence[Factor]) -> LinearBatches:
    """Linear factors as one data set."""
    return factors if isinstance(factors, LinearBatches) else LinearBatches.stack(factors)  # type: ignore[arg-type]


def check_sites(start: Sequence[FactorialGaussian], count: int, options: Options) -> None:
    """Refuse what are no sites for so many factors."""
    if options.sites != "own":
        raise ValueError(f"start needs sites='own', one site per factor, got sites={options.sites!r}")
    if not all(hasattr(start, name) for name in ("__len__", "__getitem__")):
        raise ValueError(f"start must be 'mode', a Mode, sites, or None, got {shown(start)}")
    if len(start) != count:
        raise ValueError(f"start must hold one site for each of {count} factors, got {len(start)}")
    if isinstance(start, list | tuple):  # sites that a run returned need no look
        for k, site in enumerate(start):
            if not isinstance(site, FactorialGaussian):
                raise ValueError(f"start[{k}] must be a FactorialGaussian, got {shown(site)}")


def check_factors(factors: Sequence[Factor], prior: FactorialGaussian, scheme: Scheme) -> None:
    """Refuse what cannot work, before anything is computed."""
    for k, factor in enumerate(factors):
        if factor.dim != prior.dim:
            raise ValueError(f"factor {k} has {factor.dim} coordinates, but the prior has {prior.dim}")
        scheme.check(factor)
        if np.isnan(_cost_at_start(k, factor, prior)):
            raise _nan_at_start(k)


def _cost_at_start(k: int, factor: Factor, prior: FactorialGaussian) -> float:
    """Cost of factor ``k`` at the prior mean."""
    point = prior.mean if factor.coordinates is None else prior.mean[factor.coordinates]
    try:
        with np.errstate(all="ignore"):
            return float(factor.cost(point[None])[0])
    except Exception as error:
        raise FactorError(k, untouched(prior), error) from error


def untouched(prior: FactorialGaussian) -> Result:
    """State before anything was computed."""
    nothing = Ledger()
    return Result(prior, (), nothing.status(False, False), nothing.trace(), prior)


def check_batches(factors: LinearBatches, prior: FactorialGaussian) -> None:
    """Do the same for a whole data set at once; the schemes that are compiled serve every linear factor."""
    if factors.dim != prior.dim:
        raise ValueError(f"X has {factors.dim} columns, but the prior has {prior.dim} coordinates")
    try:
        with np.errstate(all="ignore"):
            at_zero = factors.loss.value(np.array([1.0, -1.0]), np.zeros(2))
            if factors.loss.targets == "signs" and not np.any(prior.shift) and not np.any(np.isnan(at_zero)):
                return  # every prediction is zero, and two labels stand for all of them
            losses = factors.losses(prior.mean)
    except Exception:
        for k, factor in enumerate(factors):
            _cost_at_start(k, factor, prior)
        raise
    if np.any(np.isnan(losses)):
        row = np.flatnonzero(np.isnan(losses))[0]
        raise _nan_at_start(int(np.searchsorted(factors.cuts, row, side="right")) - 1)


def _nan_at_start(k: int) -> ValueError:
    need = "its cost must be a number there, so fix the cost or move the prior"
    return ValueError(f"factor {k} returns NaN at the prior mean; {need}")
