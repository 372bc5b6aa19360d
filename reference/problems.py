"""The paper's problems: which data, losses and schemes, and how each set was visited."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cavity import datasets
from cavity.factors import LinearBatches, LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Hinge, Logistic, Loss, QuasiZeroOne
from cavity.schemes import GaussQuadrature, Laplace, QuickLaplace, VariationalQuadrature
from cavity.schemes._protocol import Scheme

FloatArray = NDArray[np.float64]

SMALL = ("haberman", "ionosphere", "breast_cancer")
LARGE = ("bank", "census")
PRIOR_VARIANCE = 25.0
SHUFFLE_SEED = 2018
# Quick runs see this many rows of a large set.
QUICK_ROWS = 2000

TITLES = {
    "haberman": "Haberman",
    "ionosphere": "Ionosphere",
    "breast_cancer": "Breast cancer",
    "bank": "Bank marketing",
    "census": "Census income",
}
QUASI01 = QuasiZeroOne(0.1)
LOSSES: dict[str, Loss] = {"logistic": Logistic(), "hinge": Hinge(), "quasi01": QUASI01}
LOSS_TITLES = {"logistic": "logistic", "hinge": "hinge", "quasi01": "quasi 0–1", "zero_one": "0–1"}

# The four schemes of the paper, and the two that follow its program instead of its text.
SCHEMES: dict[str, Scheme] = {
    "la": Laplace(),
    "qla": QuickLaplace(),
    "gq": GaussQuadrature(),
    "vq": VariationalQuadrature(),
    "la_slope": Laplace(curvature="slope"),
    "qla_slope": QuickLaplace(curvature="slope"),
}
PAPER_SCHEMES = ("la", "qla", "gq", "vq")
NEWTON = VariationalQuadrature(solver="newton")
SCHEME_TITLES = {
    "la": "LA",
    "qla": "QLA",
    "gq": "GQ",
    "vq": "VQ",
    "la_slope": "LA with slope",
    "qla_slope": "QLA with slope",
}


class ZeroOne(NamedTuple):
    """The 0-1 loss itself, which the paper found unstable and replaced; flat, so without a slope."""

    height: float = 1.0

    @property
    def targets(self) -> str:
        """Signs."""
        return "signs"

    def value(self, y: FloatArray, z: FloatArray) -> FloatArray:
        """One where the sign is wrong, half where there is none."""
        result: FloatArray = self.height * (0.5 - 0.5 * np.sign(y * z))
        return result

    def derivatives(self, y: FloatArray, z: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Value, and zeros."""
        value = self.value(y, z)
        return value, 0.0 * value, 0.0 * value


@dataclass(frozen=True, slots=True)
class Problem:
    """One data set under one loss, to be visited as the paper did."""

    data: str
    loss: str
    quick: bool = False

    @property
    def is_large(self) -> bool:
        """Whether it is one of the two large sets."""
        return self.data in LARGE

    @property
    def batch_size(self) -> int:
        """Rows of a mini-batch."""
        return 100 if self.is_large else 10

    @property
    def loops(self) -> int:
        """Loops over the mini-batches."""
        if self.is_large:
            return 1
        return 2 if self.quick else 5

    @property
    def title(self) -> str:
        """Name for people."""
        return f"{TITLES[self.data]}, {LOSS_TITLES[self.loss]}"

    def batches(self, first: int | None = None, batch_size: int | None = None) -> LinearBatches:
        """Cut the data, or what the first mini-batches need of it; small sets in file order, large ones shuffled."""
        X, y = design(self.data, self.quick)
        size = batch_size or self.batch_size
        rows = slice(None if first is None else first * size)
        return LinearFactor.batches(LOSSES.get(self.loss) or ZeroOne(), X[rows], y[rows], size)

    def prior(self) -> FactorialGaussian:
        """Build the fixed Gaussian factor of mean zero and variance 25."""
        return FactorialGaussian.from_moments(np.zeros(design(self.data, self.quick)[0].shape[1]), PRIOR_VARIANCE)


@lru_cache(maxsize=len(TITLES))
def design(name: str, quick: bool = False) -> tuple[FloatArray, FloatArray]:
    """Rows and labels in the order of the experiments, kept for the next call of the same process."""
    loaded = datasets.paper(name, scale="norm")
    if name not in LARGE:
        return loaded.X, loaded.y
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(loaded.y))
    order = order[:QUICK_ROWS] if quick else order
    return np.ascontiguousarray(loaded.X[order]), loaded.y[order]
