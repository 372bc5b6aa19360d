r"""A posterior with a full covariance that takes in rows as they come: the joint mode of every batch, and nothing kept.

On ordinary data one pass decides within few rows about directions that come up again much later, and a product of
Gaussians forgets how they hang together. Here it is not forgotten: covariance :math:`S S^\top`, :math:`O(d^2)` a row.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs

from cavity.correlated import CorrelatedGaussian
from cavity.gaussian import FactorialGaussian
from cavity.kernels._sweep import NONFINITE
from cavity.losses import Loss
from cavity.mode._curves import Curve, Derived, Kinks, Plain, Unknown, kinks_of, rough_curve

FloatArray = NDArray[np.float64]

# Rows that are settled together.
TOGETHER = 100
# Newton steps: how many at most, when a step is so short, in standard deviations, that no other follows, and how often
# one is cut short at most, to which shares of it.
_STEPS, _SHORT = 60, 0.1
_TRIALS, _LEAST, _MOST = 40, 0.1, 0.5
_SUFFICIENT = 1e-4
# Widths of smoothing: how often they follow the posterior at most, the change that is none, and the least, in those of
# the loss; beyond how many of them a smooth loss is smoothed; how far, in its own width, a predictor may lie on the
# wrong side of zero before its row contradicts what is known.
_ROUNDS, _SAME, _NARROWEST = 4, 0.3, 1e-9
_WIDE, _CONTENT = 1.0, 0.5
# Standard deviation of the noise that makes the logistic function out of a step, as nearly as noise can.
_LOGISTIC = 1.702


class Settled(NamedTuple):
    r"""Where a batch settles, in terms of its rows.

    The mean moves by :math:`S F^\top a`, with rows :math:`F = X S` and the pulls a of the rows; curvatures c of the
    losses there, the lower Cholesky factor L of :math:`I + c^{1/2} F F^\top c^{1/2}`, and the logarithm of the integral
    of posterior times factors over that of the posterior.
    """

    pulls: FloatArray
    curvatures: FloatArray
    lower: FloatArray
    log_mass: float


class FullStream:
    r"""A posterior in a stream. `take` trusts its input: finite, dense, of the right width.

    Every batch is settled at the joint mode of posterior and costs,

    .. math:: \min_a \; \sum_i \beta w_i\, \ell(y_i, z_i) + \tfrac12 a^\top K a, \qquad z = X m + K a, \quad
        K = X S S^\top X^\top,

    by Newton's method with a line search, and taken into the posterior by its second-order expansion there. Negative
    curvatures count as zero. Exact for Gaussian factors.

    Losses with kinks, and losses of signs where the posterior is wide against them, are smoothed by noise of the
    posterior's own width of the predictor, which lets a row settle inside, as the mean does. But a row that contradicts
    what is known is smoothed no wider than the way along which its loss makes a difference of one: it settles at the
    edge, or a rare column would stay where its first rows threw it.

    Parameters
    ----------
    loss
        Any loss.
    posterior
        What is known before.
    beta
        Inverse temperature.
    """

    def __init__(self, loss: Loss, posterior: CorrelatedGaussian, *, beta: float = 1.0) -> None:
        self._loss, self._beta = loss, float(beta)
        self.posterior = posterior

    def fork(self) -> FullStream:
        """Return one that goes its own way."""
        return copy(self)

    def forget(self, keep: float, prior: FactorialGaussian) -> None:
        """Keep a share of what was learned beyond the prior: a power of the posterior times one of the prior."""
        self.posterior = self.posterior**keep * CorrelatedGaussian.of(prior) ** (1.0 - keep)

    def take(self, X: Any, targets: FloatArray, weights: FloatArray | None, batch_size: int) -> NDArray[np.int8]:
        """Take in rows, at least a hundred together where so many came; say for each batch what came of it."""
        size = max(batch_size, TOGETHER)
        outcomes = np.zeros(-(-X.shape[0] // size), dtype=np.int8)
        with np.errstate(all="ignore"):
            for k in range(outcomes.size):
                rows = slice(k * size, (k + 1) * size)
                block = X[rows].toarray() if sparse.issparse(X) else X[rows]
                w = np.full(block.shape[0], self._beta) if weights is None else self._beta * weights[rows]
                after = absorbed(self.posterior, self._loss, np.asarray(block, dtype=np.float64), targets[rows], w)
                if after.is_proper:
                    self.posterior = after
                else:
                    outcomes[k] = NONFINITE
        return outcomes


def absorbed(
    posterior: CorrelatedGaussian, loss: Loss, X: FloatArray, targets: FloatArray, weights: FloatArray
) -> CorrelatedGaussian:
    r"""Take one batch into a posterior, :math:`O(b d^2 + b^3)` for b rows.

    The new square root is :math:`S\,(I - G^\top L^{-\top} (I + L)^{-1} G)` with :math:`G = c^{1/2} F`.
    """
    m, root = posterior.mean, posterior.root
    F = (root.T @ X.T).T  # in Fortran's order, as the solvers want it
    K = F @ F.T
    s = settle(loss, targets, weights, X @ m, K)
    G = np.sqrt(s.curvatures)[:, None] * F
    shifted = s.lower.copy(order="F")
    shifted.flat[:: len(G) + 1] += 1.0
    outer = dtrtrs(s.lower, (root @ G.T).T, lower=1, overwrite_b=1)[0]
    inner = dtrtrs(shifted, G, lower=1, overwrite_b=1)[0]
    return CorrelatedGaussian(m + root @ (s.pulls @ F), root - outer.T @ inner, posterior.log_mass + s.log_mass)


class _Rows(NamedTuple):
    """Inverse temperature times weight of every row; means and covariance of the predictors before."""

    weights: FloatArray
    means: FloatArray
    K: FloatArray


def settle(loss: Loss, targets: FloatArray, weights: FloatArray, means: FloatArray, K: FloatArray) -> Settled:
    """Find the joint mode of rows whose predictors are Gaussian before, with these means and this covariance."""
    rows, z, pulls, variance = _Rows(weights, means, K), means, np.zeros_like(means), np.diag(K)
    curves = _curves_for(loss, targets, rows)
    widths = curves.widths(variance)
    for _ in range(_ROUNDS):
        settled, z = _newton(curves.smoothed(widths), rows, pulls, z, widths)
        pulls = settled.pulls
        # No variance shrinks by more than a factor of one and the trace of curvatures times variances.
        if not np.any(widths) or 1.0 + settled.curvatures @ variance <= (1.0 - _SAME) ** -2:
            break
        wide, left = np.flatnonzero(widths), variance.copy()
        half = dtrtrs(settled.lower, np.sqrt(settled.curvatures)[:, None] * K[:, wide], lower=1)[0]
        left[wide] -= np.sum(half * half, axis=0)
        last, widths = widths, np.where(widths > 0.0, curves.widths(left), 0.0)
        if np.all(np.abs(widths - last) <= _SAME * last):
            break
    return settled


class _Curves(NamedTuple):
    """The losses of a batch, as they are or smoothed.

    Rows are smoothed by noise of the posterior's width of their predictors, up to the most of each; a smooth loss only
    where that exceeds the least, and a loss with kinks everywhere.
    """

    plain: Plain
    rough: Kinks | Unknown | None
    most: FloatArray
    least: FloatArray

    def widths(self, variance: FloatArray) -> FloatArray:
        """Widths of smoothing for such variances of the predictors."""
        std = np.sqrt(np.maximum(variance, 0.0))
        narrow = 0.0 if self.rough is None else self.least
        return np.where(std > self.least, np.minimum(std, self.most), narrow)

    def smoothed(self, widths: FloatArray) -> Curve:
        """Smooth what is to be smoothed."""
        if not np.any(widths):
            return self.plain
        if self.rough is not None:
            return self.rough.smoothed(widths)
        return _Mixed(self.plain, widths)


def _curves_for(loss: Loss, targets: FloatArray, rows: _Rows) -> _Curves:
    """Choose by what is known of the loss."""
    plain, std = Plain(loss, targets), np.sqrt(np.diag(rows.K))
    is_content = (targets * rows.means >= -_CONTENT * std) & (loss.targets == "signs")
    if not hasattr(loss, "pieces") and np.any(plain.derivatives(rows.means)[2] > 0.0):
        least = np.full(targets.size, _WIDE / getattr(loss, "as_logistic", 1.0))
        return _Curves(plain, None, np.where(is_content, np.inf, 0.0), least)
    rough = _kinks_of_signs(loss, targets) or rough_curve(loss, targets)
    own = 1.0 / (rows.weights * rough.bends())
    own = np.where(own < np.inf, own, 1.0)
    return _Curves(plain, rough, np.where(is_content, np.inf, own), _NARROWEST * own)


class _Mixed:
    """Some losses smoothed, where the width is not zero, and some as they are."""

    def __init__(self, plain: Plain, widths: FloatArray) -> None:
        self._plain, self._wide = plain, np.flatnonzero(widths)
        self._smooth = _smoothed(plain.loss, plain.targets[self._wide], widths[self._wide])

    def derivatives(self, z: FloatArray) -> Derived:
        """Put the smoothed in their places."""
        every = self._plain.derivatives(z)
        for numbers, smoothed in zip(every, self._smooth.derivatives(z[self._wide]), strict=True):
            numbers[self._wide] = smoothed
        return every

    def bound(self, z: FloatArray) -> FloatArray:
        """Put the smoothed in their places."""
        every = self._plain.bound(z)
        every[self._wide] = self._smooth.bound(z[self._wide])
        return every


def _kinks_of_signs(loss: Loss, targets: FloatArray) -> Kinks | None:
    """Read the kinks of a loss of signs off those of the two signs; None if it is no such loss."""
    known: Any = loss
    both = _kinks_of_both(type(loss), known) if loss.targets == "signs" else None
    if both is None:
        return None
    which = (targets > 0.0).astype(np.intp)
    return Kinks(both.offset[which], both.slope[which], both.places[:, which], both.jumps[:, which])


@cache
def _kinks_of_both(kind: type, loss: Any) -> Kinks | None:
    """Ask once; losses of two kinds may be equal as tuples, and so the kind is asked too."""
    return kinks_of(loss, np.array([-1.0, 1.0]))


def _smoothed(loss: Loss, targets: FloatArray, widths: FloatArray) -> Curve:
    """Smooth a smooth loss; the logistic one is nearly a hinge at zero under noise, and has a closed form."""
    sharpness = getattr(loss, "as_logistic", None)
    if sharpness is None:
        return Unknown(loss, targets).smoothed(widths)
    zeros, jumps = np.zeros((1, targets.size)), np.full((1, targets.size), sharpness)
    hinge = Kinks(zeros[0], np.where(targets > 0.0, -sharpness, 0.0), zeros, jumps)
    return hinge.smoothed(np.hypot(widths, _LOGISTIC / sharpness))


class _Place(NamedTuple):
    """Pulls of the rows and where they put the predictors; slopes and curvatures of the losses there, and the cost."""

    pulls: FloatArray
    z: FloatArray
    slope: FloatArray
    bend: FloatArray
    cost: float


def _place(curve: Curve, rows: _Rows, pulls: FloatArray, z: FloatArray) -> _Place:
    value, slope, bend = curve.derivatives(z)
    return _Place(pulls, z, slope, bend, float(rows.weights @ value) + 0.5 * float(pulls @ (z - rows.means)))


def _newton(curve: Curve, rows: _Rows, pulls: FloatArray, z: FloatArray, width: Any) -> tuple[Settled, FloatArray]:
    """Minimise; also where the predictors end.

    After a step that had to be cut short, curvatures are raised to a bound that looks as far as the loss bends.
    """
    (weights, _, K), at = rows, _place(curve, rows, pulls, z)
    is_cut = False
    for _ in range(_STEPS):
        c = weights * np.maximum(np.maximum(at.bend, curve.bound(at.z)) if is_cut else at.bend, 0.0)
        rest, c_root = -(at.pulls + weights * at.slope), np.sqrt(c)
        B = c_root[:, None] * K * c_root
        B.flat[:: c.size + 1] += 1.0
        lower = dpotrf(B.T, lower=1, overwrite_a=1)[0]
        way = rest - c_root * dpotrs(lower, c_root * (K @ rest), lower=1)[0]
        move = K @ way
        descent = -float(rest @ move)
        if -descent > _SHORT * _SHORT:
            found, share = _search(curve, rows, at, way, move, descent)
            is_cut = share < 1.0
            if found is None:
                way, move = 0.0 * way, 0.0 * move
                break
            at = found
        elif is_cut:
            is_cut = False
        else:  # so short that it is gone unseen
            break
    log_mass = -at.cost + 0.5 * float(np.sum(c * np.square(width))) - float(np.sum(np.log(np.diag(lower))))
    return Settled(at.pulls + way, c, lower, log_mass), at.z + move


def _search(
    curve: Curve, rows: _Rows, at: _Place, way: FloatArray, move: FloatArray, descent: float
) -> tuple[_Place | None, float]:
    """Go the whole way, or as much of it as lowers the cost enough; None if nothing does."""
    share = 1.0
    for _ in range(_TRIALS):
        there = _place(curve, rows, at.pulls + share * way, at.z + share * move)
        change = there.cost - at.cost
        if change <= _SUFFICIENT * share * descent:
            return there, share
        bend = change - share * descent
        share *= min(max(-0.5 * share * descent / bend, _LEAST), _MOST) if bend < np.inf else _LEAST
    return None, share
