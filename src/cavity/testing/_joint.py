"""The contract of losses of several predictors."""

from __future__ import annotations

from typing import Any

import numpy as np

from cavity._types import FloatArray
from cavity.losses.joint import JointLoss
from cavity.testing._losses import require

_STEP = 1e-5  # of central differences, relative to max(1, |z|)
_TOL = 1e-5  # share of the largest derivative: above the error of differences, below any mistake


def check_joint_loss(loss: JointLoss, *, largest: float = 1e100, seed: int = 0) -> None:
    r"""Raise `AssertionError` unless a loss of several predictors keeps the contract of `cavity.losses.joint`.

    The loss must be a ``NamedTuple`` of at least one field; name its targets and its number of predictors; return one
    finite value per row for any array of predictors; and, where it offers ``derivatives`` and ``averages``, have those
    that central differences of its values show, and their means.

    Parameters
    ----------
    loss
        The loss.
    largest
        Largest size of a predictor at which it must be finite.
    seed
        Seed of the predictors tried.

    Examples
    --------
    >>> from cavity.losses.joint import Softmax
    >>> check_joint_loss(Softmax(4))
    """
    fields = getattr(loss, "_fields", ())
    require(
        isinstance(loss, tuple) and len(fields) > 0,
        f"a loss must be a NamedTuple with at least one field, got {type(loss).__name__} with fields {tuple(fields)}",
    )
    count = getattr(loss, "predictors", None)
    require(isinstance(count, int) and count >= 1, f"predictors must be a whole number from 1 on, got {count!r}")
    targets = getattr(loss, "targets", None)
    require(targets in ("classes", "reals"), f"targets must be 'classes' or 'reals', got {targets!r}")
    rng = np.random.default_rng(seed)
    assert isinstance(count, int)
    z = rng.normal(scale=2.0, size=(40, count))
    y = rng.integers(count + 1, size=40).astype(float) if targets == "classes" else rng.normal(size=40)
    value = np.asarray(loss.value(y, z))
    require(value.shape == (40,), f"value must give one number per row, got the shape {value.shape} for 40 rows")
    require(bool(np.all(np.isfinite(value))), "value must be finite at ordinary predictors")
    alone = np.array([float(loss.value(t, row)) for t, row in zip(y, z, strict=True)])
    require(bool(np.allclose(alone, value, rtol=1e-12, atol=1e-12)), "value must not depend on the other rows")
    nested = np.asarray(loss.value(y[:, None], np.stack([z, z + 1.0], axis=1)))
    fits = nested.shape == (40, 2) and np.allclose(nested[:, 0], value, rtol=1e-12, atol=1e-12)
    require(fits, "value must take predictors of shape (rows, nodes, K) with targets of shape (rows, 1)")
    with np.errstate(over="ignore"):
        far = np.asarray(loss.value(y, largest * np.sign(z)))
    require(not np.any(np.isnan(far)), f"value must not be NaN at predictors of {largest:g}")
    if hasattr(loss, "derivatives"):
        _check_derivatives(loss, y, z, value)
    if hasattr(loss, "averages"):
        _check_averages(loss, y, z)


def _check_derivatives(loss: Any, y: FloatArray, z: FloatArray, value: FloatArray) -> None:
    found, slopes, curvatures = (np.asarray(part) for part in loss.derivatives(y, z))
    n, k = z.shape
    fits = (found.shape, slopes.shape, curvatures.shape) == ((n,), (n, k), (n, k, k))
    require(fits, f"derivatives must have the shapes (rows,), (rows, {k}) and (rows, {k}, {k})")
    require(bool(np.allclose(found, value, rtol=1e-12, atol=1e-12)), "derivatives must begin with the value")
    step = _STEP * np.maximum(1.0, np.abs(z))
    for j in range(k):
        along = np.zeros_like(z)
        along[:, j] = step[:, j]
        above, below = loss.derivatives(y, z + along), loss.derivatives(y, z - along)
        for name, got, i in (("slopes", slopes[:, j], 0), ("curvatures", curvatures[:, j], 1)):
            width = (2.0 * step[:, j]).reshape(-1, *(1,) * (np.ndim(got) - 1))
            shown = (np.asarray(above[i]) - np.asarray(below[i])) / width
            size = max(1.0, float(np.max(np.abs(shown))))
            require(bool(np.all(np.abs(shown - got) <= _TOL * size)), f"{name} must be those of differences, in z{j}")


def _check_averages(loss: Any, y: FloatArray, z: FloatArray) -> None:
    nodes, weights = np.stack([z, z + 0.5, z - 0.2], axis=1), np.array([0.5, 0.3, 0.2])
    found = loss.averages(y, nodes, weights, np.zeros(len(z)))
    each = [loss.derivatives(y, nodes[:, j]) for j in range(3)]
    for i, name in enumerate(("values", "slopes", "curvatures")):
        wanted = sum(w * np.asarray(parts[i]) for w, parts in zip(weights, each, strict=True))
        require(bool(np.allclose(found[i], wanted, rtol=1e-9, atol=1e-9)), f"averages must give the mean of {name}")
