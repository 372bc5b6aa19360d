"""Several linear predictors with one joint posterior, as users see them: one Gaussian per class or part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity.ep.hyperparameters import Group
from cavity.ep.natural import DenseNatural
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses.joint import Softmax, contrasts

FloatArray = NDArray[np.float64]


def mixing(loss: Any) -> FloatArray:
    """Matrix that gives the public predictors, one per row, from those of the loss."""
    return contrasts(int(loss.classes)) if isinstance(loss, Softmax) else np.eye(int(loss.predictors))


def marginals(joint: DenseGaussian, mix: FloatArray) -> tuple[DenseGaussian, ...]:
    """Gaussians of the public predictors' coefficients, each for itself; the first has the mass of the whole."""
    count = mix.shape[1]
    means = mix @ joint.mean.reshape(count, -1)
    roots = joint.root.reshape(count, -1, joint.dim)
    masses = [joint.log_mass, *[0.0] * (len(mix) - 1)]
    parts = zip(means, mix, masses, strict=True)
    return tuple(DenseGaussian(mean, np.tensordot(row, roots, axes=1), mass) for mean, row, mass in parts)


def joint_draws(joint: DenseGaussian, mix: FloatArray, noise: FloatArray) -> FloatArray:
    """Draws of the public predictors' coefficients, ``(draws, predictors, columns)``."""
    draws = joint.draws(noise).reshape(len(noise), mix.shape[1], -1)
    return np.einsum("pk,nkc->npc", mix, draws)


def joint_predictors(joint: DenseGaussian, rows: Any, count: int) -> tuple[FloatArray, FloatArray]:
    """Means ``(n, K)`` and covariances ``(n, K, K)`` of the loss's own predictors at rows, a part at a time."""
    n, dim = rows.shape[0], joint.dim
    mean = np.asarray(rows @ joint.mean.reshape(count, -1).T)
    variance = np.empty((n, count, count))
    roots = joint.root.reshape(count, -1, dim)
    length = max(1, (1 << 22) // (count * dim))  # 32 MB
    for i in range(0, n, length):
        halves = np.stack([np.asarray(rows[i : i + length] @ root) for root in roots], axis=1)
        variance[i : i + length] = halves @ halves.transpose(0, 2, 1)
    return mean, variance


def repeated(prior: FactorialGaussian, count: int) -> FactorialGaussian:
    """Give the same prior to every predictor."""
    return FactorialGaussian.from_moments(np.tile(prior.mean, count), np.tile(prior.variance, count))


def repeated_groups(groups: Sequence[Group], count: int, columns: int) -> tuple[Group, ...]:
    """Let groups have the same columns of every predictor."""
    places = [np.concatenate([g.columns + k * columns for k in range(count)]) for g in groups]
    return tuple(g._replace(columns=place) for place, g in zip(places, groups, strict=True))


def turned(known: DenseNatural, rotation: FloatArray) -> DenseNatural:
    """Say the same of predictors that are a rotation of these."""
    count = len(rotation)
    blocks = known.information.reshape(count, known.shift.size // count, count, -1)
    information = np.einsum("ij,jakb,lk->ialb", rotation, blocks, rotation, optimize=True)
    flat = information.reshape(known.information.shape)
    shift = (rotation @ known.shift.reshape(count, -1)).ravel()
    return DenseNatural(0.5 * (flat + flat.T), shift, known.log_scale)
