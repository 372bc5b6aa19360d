r"""Precision matrices of coefficients as functions of hyperparameters.

A structure says which entries of the precision matrix P(ψ) of some coefficients may differ from zero, and what they are
at hyperparameters ψ: real numbers such as the logarithm of a variance or the inverse hyperbolic tangent of a
correlation. EP's evidence needs P, its derivatives, the logarithm of its determinant, and
:math:`P^{-1} (\partial P / \partial \psi_k)\, x`. Independent coefficients with one variance need no structure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy import sparse
from scipy.linalg import solveh_banded

from cavity._types import FloatArray, IndexArray
from cavity.gaussians.sparse import Pattern, SparsePrecision, pattern_of

# Smallest variance that a structure may give to the linear predictor, and the inverse of the largest one: standard
# deviations of 1e-5 and 1e5 in log odds, or in units of the targets' spread.
LEAST = 1e-10
# Precision that keeps intrinsic structures proper: in directions without a penalty a standard deviation of 1000.
RIDGE = 1e-6
# Largest inverse hyperbolic tangent of a correlation: within 2e-6 of one.
_FARTHEST = 7.0
# Share of the largest entry of a matrix below which its factor says nothing of a direction but rounding.
_ROUNDING = 1e-13
# Imaginary step by which analytic functions are differentiated, exactly to rounding.
_IMAGINARY = 1e-100


class Structure(Protocol):
    """Precision matrix of some coefficients as a function of hyperparameters ψ.

    ``left`` and ``right`` are the places of its entries: first the diagonal, then each pair once, with
    ``left < right``; ``lower`` and ``upper`` the bounds of ψ.
    """

    @property
    def width(self) -> int:
        """Number of coefficients."""

    @property
    def left(self) -> IndexArray:
        """Rows of the entries in the upper triangle."""

    @property
    def right(self) -> IndexArray:
        """Columns of the entries in the upper triangle."""

    @property
    def lower(self) -> FloatArray:
        """Smallest hyperparameters."""

    @property
    def upper(self) -> FloatArray:
        """Largest hyperparameters."""

    def start(self, spread: float) -> FloatArray:
        """Hyperparameters that give the linear predictor this variance on average over the rows.

        Parameters
        ----------
        spread
            The variance.
        """

    def entries(self, psi: FloatArray) -> FloatArray:
        """Entries of the precision matrix.

        Parameters
        ----------
        psi
            Hyperparameters.
        """

    def derivatives(self, psi: FloatArray) -> FloatArray:
        """Their derivatives, ``(hyperparameters, entries)``.

        Parameters
        ----------
        psi
            Hyperparameters.
        """

    def log_det(self, psi: FloatArray) -> tuple[float, FloatArray]:
        """Logarithm of the determinant of the precision matrix, and its gradient.

        Parameters
        ----------
        psi
            Hyperparameters.
        """

    def follow(self, psi: FloatArray, x: FloatArray) -> FloatArray:
        r"""Return :math:`P^{-1} (\partial P / \partial \psi_k)\, x`, ``(hyperparameters, width)``.

        Parameters
        ----------
        psi
            Hyperparameters.
        x
            Numbers, one per coefficient.
        """

    def spread(self, psi: FloatArray) -> tuple[float, FloatArray]:
        """Variance of the linear predictor on average over the rows, and the gradient of its logarithm.

        Parameters
        ----------
        psi
            Hyperparameters.
        """

    def log_information(self, psi: FloatArray, variances: FloatArray, covariances: FloatArray) -> float:
        """Half the logarithm of the determinant of the information that rows have about ψ, up to a constant.

        It is Jeffreys' prior, under which ψ is averaged over; entries of the posterior covariance beside those of
        the structure may count as if they followed from these.

        Parameters
        ----------
        psi
            Hyperparameters.
        variances
            Posterior variances of the coefficients, ``(copies, width)``.
        covariances
            Posterior covariances of the pairs of coefficients in the structure, ``(copies, pairs)``.
        """

    def quantities(self, psi: FloatArray) -> dict[str, float]:
        """Return what users see, by name: ``"sd"`` and correlations, in units of the linear predictor.

        Parameters
        ----------
        psi
            Hyperparameters.
        """


def _slopes(function: Callable[[Any], Any], psi: FloatArray) -> FloatArray:
    """Differentiate an analytic function in every hyperparameter, by imaginary steps."""
    steps = 1j * _IMAGINARY * np.eye(psi.size)
    return np.array([np.imag(function(psi + step)) / _IMAGINARY for step in steps])


def _log(value: float) -> float:
    return float(np.log(max(value, np.finfo(np.float64).tiny)))


def _log_information(prior: FloatArray, slopes: FloatArray, posterior: FloatArray) -> float:
    """Half the log determinant of the information about ψ, from covariances of sets of coefficients ``(sets, k, k)``.

    ``slopes`` are the derivatives of the prior ones, ``(hyperparameters, sets, k, k)``.
    """
    # In units of the prior standard deviation: where correlations are next to one, prior covariances have no inverse.
    inverse = np.linalg.inv(np.linalg.cholesky(prior))
    back = np.swapaxes(inverse, -1, -2)
    each = (np.eye(prior.shape[-1]) - inverse @ posterior @ back) @ (inverse @ slopes @ back)
    information = np.einsum("asij,bsji->ab", each, each)
    return 0.5 * _log(float(np.linalg.det(information)))


@dataclass(frozen=True, eq=False)
class Scaled:
    r"""One variance times a known structure: :math:`P = Q / v + \epsilon I`, ψ = (log v).

    Random walks, splines, neighbourhoods (Q of incomplete rank, where the ridge ε keeps P proper) and known
    covariances.

    Parameters
    ----------
    matrix
        Symmetric positive semi-definite Q, sparse.
    rank
        Its rank.
    size
        Variance of the linear predictor on average over the rows where v = 1.
    known_log_det
        Logarithm of the determinant of Q, if it is known and Q has full rank.
    """

    matrix: Any
    rank: int
    size: float = 1.0
    known_log_det: float | None = None
    width: int = field(init=False)
    left: IndexArray = field(init=False)
    right: IndexArray = field(init=False)
    lower: FloatArray = field(init=False)
    upper: FloatArray = field(init=False)
    _values: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        width = int(self.matrix.shape[0])
        upper = sparse.coo_array(sparse.triu(self.matrix, 1))
        everywhere = np.arange(width)
        diagonal = np.asarray(self.matrix.diagonal(), dtype=np.float64)
        bounds = np.log([LEAST / self.size, 1.0 / (LEAST * self.size)])
        found = {
            "width": width,
            "left": np.concatenate([everywhere, upper.coords[0]]),
            "right": np.concatenate([everywhere, upper.coords[1]]),
            "lower": bounds[:1],
            "upper": bounds[1:],
            "_values": np.concatenate([diagonal, upper.data]),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def start(self, spread: float) -> FloatArray:
        """Hyperparameters that give the linear predictor this variance."""
        return np.log([spread / self.size])

    def entries(self, psi: FloatArray) -> FloatArray:
        """Entries of the precision matrix."""
        found = np.exp(-psi[0]) * self._values
        if self.rank < self.width:
            found[: self.width] += RIDGE
        return np.asarray(found)

    def derivatives(self, psi: FloatArray) -> FloatArray:
        """Their derivatives."""
        return np.asarray(-np.exp(-psi[0]) * self._values[None])

    def log_det(self, psi: FloatArray) -> tuple[float, FloatArray]:
        """Logarithm of the determinant, and its gradient.

        The ridge counts wherever it is not small beside :math:`Q / v`: long walks have directions with hardly a
        penalty. Where it is rounding beside the largest entry, the determinant is a power of v.
        """
        if self.rank == self.width:
            return self._log_det_at_one - self.rank * float(psi[0]), np.array([-float(self.rank)])
        at = max(float(psi[0]), float(np.log(_ROUNDING * np.max(self._values[: self.width]) / RIDGE)))
        factor, below = self._factor(at), float(psi[0]) - at
        slope = RIDGE * float(np.sum(factor.variances())) - self.width if below == 0.0 else -float(self.rank)
        return factor.log_det - self.rank * below, np.array([slope])

    @cached_property
    def _log_det_at_one(self) -> float:
        return self._factor(0.0).log_det if self.known_log_det is None else self.known_log_det

    @cached_property
    def _pattern(self) -> Pattern:
        return pattern_of(self._upper(np.zeros(1)), np.empty(0, dtype=np.intp))

    def _upper(self, psi: FloatArray) -> sparse.csc_array:
        shape = (self.width, self.width)
        return sparse.csc_array((self.entries(psi), (self.left, self.right)), shape=shape)

    def _factor(self, log_variance: float) -> SparsePrecision:
        upper = self._upper(np.array([log_variance]))
        return SparsePrecision.of(upper, np.empty(0, dtype=np.intp), self._pattern)

    def follow(self, psi: FloatArray, x: FloatArray) -> FloatArray:
        """Minus the coefficients: directions without a penalty, where this is not so, have derivatives of zero."""
        return -x[None]

    def spread(self, psi: FloatArray) -> tuple[float, FloatArray]:
        """Variance of the linear predictor, and the gradient of its logarithm."""
        return self.size * float(np.exp(psi[0])), np.ones(1)

    def log_information(self, psi: FloatArray, variances: FloatArray, covariances: FloatArray) -> float:
        """Logarithm of how many coefficients the rows determine."""
        values = np.exp(-psi[0]) * self._values
        pinned = np.sum(variances @ values[: self.width]) + 2.0 * np.sum(covariances @ values[self.width :])
        return _log(len(variances) * self.rank - float(pinned))

    def quantities(self, psi: FloatArray) -> dict[str, float]:
        """Return the standard deviation."""
        return {"sd": float(np.exp(0.5 * psi[0]))}


@dataclass(frozen=True, eq=False)
class Correlated:
    r"""Several effects per level that may be correlated: :math:`P = I \otimes \Sigma(\psi)^{-1}`.

    Coefficients are ordered by levels, then effects. With the mean :math:`M = C C^\top` of :math:`z z^\top` over the
    rows, z the values that the effects of a level are multiplied by, :math:`\Sigma = C^{-\top} S\, C^{-1}`, where S has
    log variances and, as inverse hyperbolic tangents, partial correlations ψ: no unit or origin of z matters.

    Parameters
    ----------
    names
        Of the effects, such as ``("Intercept", "days")``.
    levels
        Number of levels.
    moments
        The matrix M.
    """

    names: tuple[str, ...]
    levels: int
    moments: FloatArray
    lower: FloatArray = field(init=False)
    upper: FloatArray = field(init=False)
    left: IndexArray = field(init=False)
    right: IndexArray = field(init=False)
    _root: FloatArray = field(init=False, repr=False)
    _inverse: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        k = len(self.names)
        pairs = k * (k - 1) // 2
        bound = np.append(np.full(k, -np.log(LEAST)), np.full(pairs, _FARTHEST))
        a, b = np.triu_indices(k, 1)
        starts, diagonal = k * np.arange(self.levels)[:, None], np.arange(k * self.levels)
        found = {
            "upper": bound,
            "lower": -bound,
            "left": np.concatenate([diagonal, (starts + a).ravel()]),
            "right": np.concatenate([diagonal, (starts + b).ravel()]),
            "_root": np.linalg.inv(np.linalg.cholesky(self.moments)).T,
            "_inverse": np.linalg.cholesky(self.moments).T,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def width(self) -> int:
        """Number of coefficients."""
        return len(self.names) * self.levels

    def start(self, spread: float) -> FloatArray:
        """Hyperparameters that give the linear predictor this variance, without correlations."""
        k = len(self.names)
        return np.append(np.full(k, np.log(spread / k)), np.zeros(self.lower.size - k))

    def covariance(self, psi: Any) -> Any:
        """Covariance of the effects of one level."""
        half = self._root @ (np.exp(0.5 * psi[: len(self.names)])[:, None] * self._correlations(psi))
        return half @ half.T

    def precision(self, psi: Any) -> Any:
        """Inverse of the covariance, by factors: variances of very different sizes do not cancel."""
        half = np.linalg.solve(self._correlations(psi), np.exp(-0.5 * psi[: len(self.names)])[:, None] * self._inverse)
        return half.T @ half

    def _correlations(self, psi: Any) -> Any:
        """Cholesky factor of the correlations, from partial ones."""
        k = len(self.names)
        partial = np.tanh(psi[k:])
        root = np.zeros((k, k), dtype=psi.dtype)
        place = 0
        for i in range(k):
            left = 1.0
            for j in range(i):
                root[i, j] = partial[place] * np.sqrt(left)
                left, place = left - root[i, j] ** 2, place + 1
            root[i, i] = np.sqrt(left)
        return root

    def entries(self, psi: FloatArray) -> FloatArray:
        """Entries of the precision matrix."""
        return self._repeated(self.precision(psi))

    def derivatives(self, psi: FloatArray) -> FloatArray:
        """Their derivatives."""
        return np.array([self._repeated(slope) for slope in _slopes(self.precision, psi)])

    def _repeated(self, each: FloatArray) -> FloatArray:
        """Entries of a matrix that every level has, the diagonal first."""
        a, b = np.triu_indices(len(each), 1)
        return np.concatenate([np.tile(np.diagonal(each), self.levels), np.tile(each[a, b], self.levels)])

    def log_det(self, psi: FloatArray) -> tuple[float, FloatArray]:
        """Logarithm of the determinant, and its gradient."""
        k = len(self.names)
        # Partial correlations beside the diagonal of the root: 1 - tanh(x)^2 once for each of them in the square.
        correlations = psi[k:]
        value = float(np.sum(psi[:k]) - 2.0 * np.sum(np.log(np.cosh(correlations))))
        value += 2.0 * float(np.linalg.slogdet(self._root)[1])
        return -self.levels * value, -self.levels * np.append(np.ones(k), -2.0 * np.tanh(correlations))

    def follow(self, psi: FloatArray, x: FloatArray) -> FloatArray:
        """Minus the derivatives of the covariance, times the precision, times ``x``."""
        k = len(self.names)
        pulls = self.precision(psi) @ x.reshape(-1, k).T
        return np.array([-(slope @ pulls).T.ravel() for slope in _slopes(self.covariance, psi)])

    def spread(self, psi: FloatArray) -> tuple[float, FloatArray]:
        """Variance of the linear predictor, and the gradient of its logarithm."""
        k = len(self.names)
        variances = np.exp(psi[:k])
        total = float(np.sum(variances))
        return total, np.append(variances / total, np.zeros(psi.size - k))

    def log_information(self, psi: FloatArray, variances: FloatArray, covariances: FloatArray) -> float:
        """From the covariances of the effects of every level."""
        k = len(self.names)
        a, b = np.triu_indices(k, 1)
        each = np.empty((variances.size // k, k, k))
        each[:, np.arange(k), np.arange(k)] = variances.reshape(-1, k)
        each[:, a, b] = each[:, b, a] = covariances.reshape(-1, a.size)
        return _log_information(self.covariance(psi)[None], _slopes(self.covariance, psi)[:, None], each)

    def quantities(self, psi: FloatArray) -> dict[str, float]:
        """Return standard deviations and correlations of the effects as they are named."""
        covariance = self.covariance(psi)
        sd = np.sqrt(np.diagonal(covariance))
        found = {f"sd({name})": float(one) for name, one in zip(self.names, sd, strict=True)}
        for i, first in enumerate(self.names):
            for j in range(i + 1, len(self.names)):
                found[f"correlation({first}, {self.names[j]})"] = float(covariance[i, j] / (sd[i] * sd[j]))
        return found


@dataclass(frozen=True, eq=False)
class Exponential:
    r"""Correlations that fall exponentially with the time between two coefficients: AR(1) for equal steps.

    ψ has the logarithm of the variance and the logit of the correlation ρ at distance one: the correlation over a gap
    g is :math:`\rho^g`, and P has three diagonals.

    Parameters
    ----------
    gaps
        Distances between coefficients that follow each other, all positive, in units of the shortest or the median.
    size
        Mean square of the entries that the coefficients are multiplied by.
    """

    gaps: FloatArray
    size: float = 1.0

    @property
    def width(self) -> int:
        """Number of coefficients."""
        return int(self.gaps.size) + 1

    @property
    def left(self) -> IndexArray:
        """Rows of the entries."""
        return np.concatenate([np.arange(self.width), np.arange(self.width - 1)])

    @property
    def right(self) -> IndexArray:
        """Columns of the entries."""
        return np.concatenate([np.arange(self.width), np.arange(1, self.width)])

    @property
    def lower(self) -> FloatArray:
        """Smallest hyperparameters."""
        return np.array([np.log(LEAST / self.size), -_FARTHEST])

    @property
    def upper(self) -> FloatArray:
        """Largest hyperparameters."""
        return np.array([-np.log(LEAST * self.size), 2.0 * _FARTHEST])

    def start(self, spread: float) -> FloatArray:
        """Hyperparameters that give the linear predictor this variance, with a correlation of a half."""
        return np.array([np.log(spread / self.size), 0.0])

    def _falls(self, psi: Any) -> Any:
        """Minus the logarithms of the correlations of neighbours."""
        return self.gaps * np.log1p(np.exp(-psi[1]))

    def entries(self, psi: Any) -> Any:
        """Entries of the precision matrix."""
        falls = self._falls(psi)
        rho, free = np.exp(-falls), -1.0 / np.expm1(-2.0 * falls)
        diagonal = np.ones(self.width, dtype=psi.dtype)
        diagonal[1:] += rho * rho * free
        diagonal[:-1] += rho * rho * free
        return np.exp(-psi[0]) * np.concatenate([diagonal, -rho * free])

    def derivatives(self, psi: FloatArray) -> FloatArray:
        """Their derivatives."""
        return _slopes(self.entries, psi)

    def log_det(self, psi: FloatArray) -> tuple[float, FloatArray]:
        """Logarithm of the determinant, and its gradient."""

        def value(at: Any) -> Any:
            return -self.width * at[0] - np.sum(np.log(-np.expm1(-2.0 * self._falls(at))))

        return float(value(psi)), _slopes(value, psi)

    def follow(self, psi: FloatArray, x: FloatArray) -> FloatArray:
        """Solve for every derivative times ``x``."""
        n = self.width
        values, slopes = self.entries(psi), self.derivatives(psi)
        right = slopes[:, :n] * x
        right[:, :-1] += slopes[:, n:] * x[1:]
        right[:, 1:] += slopes[:, n:] * x[:-1]
        banded = np.zeros((2, n))
        banded[1], banded[0, 1:] = values[:n], values[n:]
        return np.asarray(solveh_banded(banded, right.T).T)

    def spread(self, psi: FloatArray) -> tuple[float, FloatArray]:
        """Variance of the linear predictor, and the gradient of its logarithm."""
        return self.size * float(np.exp(psi[0])), np.array([1.0, 0.0])

    def log_information(self, psi: FloatArray, variances: FloatArray, covariances: FloatArray) -> float:
        """From the covariances of neighbours in time."""

        def pairs(at: Any) -> Any:
            rho = np.exp(-self._falls(at))[:, None, None]
            return np.exp(at[0]) * np.where(np.eye(2, dtype=bool), 1.0, rho)

        left, right = variances[:, :-1].ravel(), variances[:, 1:].ravel()
        each = np.stack([left, covariances.ravel(), covariances.ravel(), right], axis=1).reshape(-1, 2, 2)
        prior, slopes = (np.concatenate([one] * len(variances), axis=-3) for one in (pairs(psi), _slopes(pairs, psi)))
        return _log_information(prior, slopes, each)

    def quantities(self, psi: FloatArray) -> dict[str, float]:
        """Return the standard deviation, and the correlation at distance one."""
        return {"sd": float(np.exp(0.5 * psi[0])), "correlation": float(1.0 / (1.0 + np.exp(-psi[1])))}
