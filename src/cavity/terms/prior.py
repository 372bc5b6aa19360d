"""The prior of all coefficients of a model with terms: independent Gaussians, and blocks that have a structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cavity._types import FloatArray, IndexArray
from cavity.gaussians.factorial import FactorialGaussian
from cavity.terms.structures import Structure


class Block(NamedTuple):
    """Coefficients with mean zero whose precision matrix has a structure.

    ``columns`` are their places, one row per copy: several linear predictors have copies of one block, with the same
    hyperparameters ``psi``.
    """

    structure: Structure
    columns: IndexArray
    psi: FloatArray

    @property
    def left(self) -> IndexArray:
        """First coefficients of the entries of the precision matrix, ``(copies, entries)``."""
        return np.asarray(self.columns[:, self.structure.left])

    @property
    def right(self) -> IndexArray:
        """Second coefficients of the entries."""
        return np.asarray(self.columns[:, self.structure.right])


class Couplings(NamedTuple):
    """Entries of a precision matrix beside its diagonal, each pair of coefficients once."""

    left: IndexArray
    right: IndexArray
    values: FloatArray


@dataclass(frozen=True, eq=False)
class StructuredPrior:
    """A Gaussian whose precision matrix is diagonal but for some blocks.

    Parameters
    ----------
    independent
        Prior of all coefficients as if none belonged to a block; those that do must have mean zero and variance one.
    blocks
        The blocks, of different coefficients each.
    """

    independent: FactorialGaussian
    blocks: tuple[Block, ...]

    @property
    def dim(self) -> int:
        """Number of coefficients."""
        return self.independent.dim

    @property
    def shift(self) -> FloatArray:
        """Precision matrix times mean."""
        return self.independent.shift

    @property
    def mean(self) -> FloatArray:
        """The mean, zero in blocks."""
        return self.independent.mean

    @cached_property
    def precision(self) -> FloatArray:
        """Diagonal of the precision matrix."""
        found = self.independent.precision.copy()
        for block in self.blocks:
            found[block.columns] = block.structure.entries(block.psi)[: block.structure.width]
        return found

    @cached_property
    def couplings(self) -> Couplings:
        """Entries beside the diagonal."""
        parts = []
        for block in self.blocks:
            n = block.structure.width
            values = np.tile(block.structure.entries(block.psi)[n:], len(block.columns))
            parts.append(Couplings(block.left[:, n:].ravel(), block.right[:, n:].ravel(), values))
        return Couplings(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    @cached_property
    def log_det(self) -> float:
        """Logarithm of the determinant of the precision matrix."""
        values = (len(block.columns) * value for block, (value, _) in zip(self.blocks, self._log_dets, strict=True))
        return self.independent.log_det + sum(values)

    @cached_property
    def _log_dets(self) -> list[tuple[float, FloatArray]]:
        return [block.structure.log_det(block.psi) for block in self.blocks]

    @cached_property
    def _derivatives(self) -> list[FloatArray]:
        return [block.structure.derivatives(block.psi) for block in self.blocks]

    @property
    def log_scale(self) -> float:
        """Logarithm of the normalised density at the origin."""
        return self.independent.log_scale + 0.5 * (self.log_det - self.independent.log_det)

    @property
    def is_proper(self) -> bool:
        """Whether it can be normalised."""
        return self.independent.is_proper and bool(np.isfinite(self.log_det))

    def times(self, x: FloatArray) -> FloatArray:
        """Multiply by the precision matrix."""
        left, right, values = self.couplings
        found = self.precision * x
        found += np.bincount(left, values * x[right], x.size) + np.bincount(right, values * x[left], x.size)
        return np.asarray(found)

    def slopes(self, number: int, x: FloatArray) -> FloatArray:
        """Multiply the derivatives of the precision matrix of a block: ``(copies, hyperparameters, dim)``."""
        block = self.blocks[number]
        n, each = block.structure.width, self._derivatives[number]
        found = np.zeros((len(block.columns), len(each), x.size))
        for own, columns, left, right in zip(found, block.columns, block.left[:, n:], block.right[:, n:], strict=True):
            own[:, columns] = each[:, :n] * x[columns]
            for row, values in zip(own, each[:, n:], strict=True):
                row += np.bincount(left, values * x[right], x.size) + np.bincount(right, values * x[left], x.size)
        return found

    def information(self, number: int, x: FloatArray, slopes: FloatArray) -> FloatArray:
        r"""Products :math:`x^\top \dot P_i P^{-1} \dot P_j x` of a block, from its `slopes`."""
        block = self.blocks[number]
        parts = (
            own[:, columns] @ block.structure.follow(block.psi, x[columns]).T
            for own, columns in zip(slopes, block.columns, strict=True)
        )
        found = sum(parts)
        return np.asarray(0.5 * (found + found.T))

    def slopes_of_log_det(self, number: int) -> FloatArray:
        """Gradient of the logarithm of the determinant in the hyperparameters of a block."""
        return np.asarray(len(self.blocks[number].columns) * self._log_dets[number][1])

    def traces(self, number: int, variance: FloatArray, shared: FloatArray) -> FloatArray:
        """Traces of the derivatives of a block times a covariance, of which these are the entries needed."""
        block = self.blocks[number]
        n, each = block.structure.width, self._derivatives[number]
        beside = self._beside(number, shared).sum(axis=0)
        return np.asarray(each[:, :n] @ variance[block.columns].sum(axis=0) + 2.0 * each[:, n:] @ beside)

    def log_information(self, number: int, variance: FloatArray, shared: FloatArray) -> float:
        """Half the log determinant of the information about the hyperparameters of a block, as of `traces`."""
        block = self.blocks[number]
        return block.structure.log_information(block.psi, variance[block.columns], self._beside(number, shared))

    def _beside(self, number: int, shared: FloatArray) -> FloatArray:
        """Covariances of the pairs of a block, ``(copies, pairs)``."""
        counts = [one.columns.shape[0] * (one.structure.left.size - one.structure.width) for one in self.blocks]
        first = sum(counts[:number])
        return shared[first : first + counts[number]].reshape(len(self.blocks[number].columns), -1)

    def at(self, independent: FactorialGaussian, psi: Sequence[FloatArray]) -> StructuredPrior:
        """Exchange the independent part, and the hyperparameters of all blocks."""
        blocks = (block._replace(psi=np.asarray(one)) for block, one in zip(self.blocks, psi, strict=True))
        return replace(self, independent=independent, blocks=tuple(blocks))


# The prior of the coefficients of a linear model.
Prior = FactorialGaussian | StructuredPrior


def upper_of(prior: Prior) -> Any:
    """Upper triangle of the precision matrix, as CSC."""
    found = sparse.diags_array(prior.precision, format="csc")
    if isinstance(prior, FactorialGaussian):
        return found
    left, right, values = prior.couplings
    where = np.minimum(left, right), np.maximum(left, right)
    return sparse.csc_array(found + sparse.csc_array((values, where), shape=(prior.dim, prior.dim)))
