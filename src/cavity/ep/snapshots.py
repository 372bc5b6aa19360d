"""The state of a run between two loops, as numbers and arrays by name: `numpy.savez` can write it to a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cavity.gaussians.factorial import FactorialGaussian

State = Mapping[str, Any]


def arrays_of(name: str, gaussian: FactorialGaussian) -> dict[str, Any]:
    """Give a Gaussian as part of a snapshot."""
    parts = {"scale": gaussian.log_scale, "shift": gaussian.shift, "precision": gaussian.precision}
    return {f"{name}_{part}": value for part, value in parts.items()}


def gaussian_of(name: str, state: State) -> FactorialGaussian:
    """Read a Gaussian from a snapshot."""
    scale, shift, precision = (state[f"{name}_{part}"] for part in ("scale", "shift", "precision"))
    return FactorialGaussian(float(scale), np.asarray(shift), np.asarray(precision))
