"""Sums over rows on the pattern of a sparse matrix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cavity._types import FloatArray
from cavity.gaussians._analysis import AnalysedRows, Pattern


class PatternSums(NamedTuple):
    r"""The matrix :math:`X^\top \mathrm{diag}(t) X` on a pattern: inner entries, coupling with the border, border."""

    entries: FloatArray
    coupling: FloatArray
    border: FloatArray

    @classmethod
    def of(cls, rows: AnalysedRows, weights: FloatArray) -> PatternSums:
        """Sum over rows of these weights."""
        inner = rows.inner.shape[1]
        entries = np.asarray(rows.products.T @ weights)
        entries[inner:] *= 0.5  # products of two columns count twice in a row's variance
        coupling, border = np.zeros((inner, rows.border.shape[1])), np.zeros((rows.border.shape[1],) * 2)
        for part in rows.parts:
            weighted = weights[part, None] * rows.border[part]
            coupling += rows.inner[part].T @ weighted
            border += rows.border[part].T @ weighted
        return cls(entries, coupling, border)

    @classmethod
    def nothing(cls, pattern: Pattern) -> PatternSums:
        """Sum over no rows."""
        inner = pattern.elimination.layout.order.size
        border = pattern.order.size - inner
        return cls(np.zeros(pattern.at.size), np.zeros((inner, border)), np.zeros((border, border)))

    @property
    def flat(self) -> FloatArray:
        """All numbers in one row."""
        return np.concatenate([part.ravel() for part in self])

    def like(self, flat: FloatArray) -> PatternSums:
        """Give such numbers the form of these."""
        cuts = np.cumsum([part.size for part in self])[:-1]
        return PatternSums(*(new.reshape(old.shape) for new, old in zip(np.split(flat, cuts), self, strict=True)))

    def plus(self, other: PatternSums) -> PatternSums:
        """Add sums over other rows."""
        return PatternSums(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> PatternSums:
        """Multiply all by a factor."""
        return PatternSums(*(factor * part for part in self))
