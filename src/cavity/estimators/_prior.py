"""The prior of a linear model, and the choice of its variance by the evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from cavity.gaussian import FactorialGaussian

# Logarithms to base ten: of the variances that "evidence" looks at, of the first step from the start, which doubles
# until the best lies between two others, and of how closely the best is approached.
_LOW, _HIGH = -5.0, 5.0
_STEP = 0.7
_CLOSE = 0.05
# Evidences that differ by less are equal.
_EQUAL = 0.005
_MOST = 20
# Where the search starts: prior variance of a typical row's linear predictor. On the data sets of the paper, and on
# sparse rows of a logistic model, the best lies between 0.4 and 60.
_TYPICAL = 5.0


def build_prior(
    width: int,
    mean: Any,
    variance: Any,
    intercept_variance: float | None,
) -> FactorialGaussian:
    """Prior over ``width`` coefficients and, unless ``intercept_variance`` is None, an intercept after them."""
    means, variances = _each("prior_mean", mean, width), _each("prior_variance", variance, width)
    if not np.all(np.isfinite(means)):
        raise ValueError("prior_mean must be finite")
    if not (np.all(variances > 0.0) and np.all(np.isfinite(variances))):
        raise ValueError(f"prior_variance must be positive and finite, got {_least(variances)}")
    if intercept_variance is None:
        return FactorialGaussian.from_moments(means, variances)
    if not 0.0 < intercept_variance < np.inf:
        raise ValueError(f"intercept_prior_variance must be positive and finite, got {intercept_variance}")
    return FactorialGaussian.from_moments(np.append(means, 0.0), np.append(variances, intercept_variance))


def choose_variance(log_evidence: Callable[[float], float], start: float = 1.0) -> float:
    """Variance of the highest log evidence, at the price of about five evaluations.

    Climbs from the start until the best variance lies between two others, then goes where polynomials in the variance's
    logarithm through the nearest of them are highest, until two of them agree. A variance without a finite evidence is
    worse than any other.
    """
    seen: dict[float, float] = {}
    place, step = min(max(float(np.log10(start)), _LOW), _HIGH), _STEP
    for _ in range(_MOST):
        value = log_evidence(10.0**place)
        seen[place] = float(value) if np.isfinite(value) else -np.inf
        best = max(seen, key=seen.__getitem__)
        below, above = (
            max((t for t in seen if t < best), default=_LOW),
            min((t for t in seen if t > best), default=_HIGH),
        )
        if not np.isfinite(seen[best]):
            if place == _LOW:
                return float(start)
            place, step = max(place - step, _LOW), 2.0 * step
        elif below not in seen:
            place, step = max(best - step, _LOW), step if len(seen) == 1 else 2.0 * step
        elif above not in seen:
            place, step = min(best + step, _HIGH), 2.0 * step
        else:
            place, settled = _between(seen, below, best, above)
            if settled or place in seen:
                return float(10.0**place)
    return float(10.0**best)


def _between(seen: dict[float, float], below: float, best: float, above: float) -> tuple[float, bool]:
    """Place to look at next, between the neighbours of the best, and whether the search may as well end there."""
    levels = [seen[t] for t in (below, best, above)]
    if not levels[1] > min(levels) + _EQUAL:
        return best, True
    if not below < best < above:  # at an end of all that is looked at
        return (best, True) if above - below <= _STEP else (0.5 * (below + above), False)
    for other, level in ((below, levels[0]), (above, levels[2])):
        if not np.isfinite(level):
            return (0.5 * (best + other), False) if abs(other - best) > _CLOSE else (best, True)
    three = np.array([below, best, above])
    near = sorted((t for t in seen if np.isfinite(seen[t])), key=lambda t: abs(t - best))
    here, rough = _highest(seen, np.union1d(three, near[:4])), _highest(seen, three)
    if abs(here - best) > _CLOSE:
        return here, False
    if len(near) > 3 and abs(here - rough) <= _CLOSE and above - below < 3.0 * _STEP:
        return here, True
    return 0.5 * (best + (above if above - best > best - below else below)), False


def _highest(seen: dict[float, float], points: Any) -> float:
    """Where the polynomial through some points is highest, between the neighbours of the best of them."""
    levels = np.array([seen[t] for t in points])
    k = int(np.argmax(levels))
    curve = np.polynomial.Polynomial.fit(points, levels - levels[k], points.size - 1)
    grid = np.linspace(points[k - 1], points[k + 1], 1001)[1:-1]
    return float(grid[np.argmax(curve(grid))])


def typical_variance(X: Any) -> float:
    """Prior variance that leaves the linear predictor of a typical row some units wide: where a search may start."""
    entries = X.data if sparse.issparse(X) else np.asarray(X)
    size = float(np.vdot(entries, entries)) / max(X.shape[0], 1)
    return _TYPICAL / size if 0.0 < size < np.inf else 1.0


def _each(name: str, value: Any, width: int) -> Any:
    """One number a feature."""
    if isinstance(value, str):
        raise ValueError(f"{name} must be a number or one number a feature, got {value!r}")
    array = np.asarray(value, dtype=np.float64)
    if array.ndim > 1 or (array.ndim == 1 and array.size != width):
        raise ValueError(f"{name} must be a number or one number for each of {width} features, got shape {array.shape}")
    return np.broadcast_to(array, (width,)).astype(np.float64)


def _least(variances: Any) -> float:
    return float(np.min(np.where(np.isnan(variances), -np.inf, variances)))
