"""Effects of regions that are like those of their neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from cavity._types import FloatArray, IndexArray
from cavity.gaussians.sparse import SparsePrecision
from cavity.terms.frames import codes, level_order, level_text, nearest, places_of
from cavity.terms.protocol import Part, scattered
from cavity.terms.structures import Scaled


@dataclass(frozen=True, eq=False)
class Neighbours:
    r"""Effects of regions: a part that varies smoothly over a graph, and one that does not (BYM2).

    The first is an intrinsic conditional autoregression, :math:`x_i - x_j \sim N(0, v)` for neighbours up to a scale
    that makes v the mean variance of a region; the second has independent effects. Both variances are found. Every
    connected part of the graph is scaled for itself; in parts but the largest the level is one more such effect.

    Parameters
    ----------
    region
        Column of the regions.
    graph
        Neighbours: a mapping of regions to their neighbours, pairs of regions, or a symmetric matrix, dense or sparse,
        whose entries are weights.
    regions
        Names of the rows of a matrix; without them they are 0, 1, 2 and so on.

    Examples
    --------
    >>> term = Neighbours("county", [("a", "b"), ("b", "c")])
    >>> term.learn({"county": ["a", "c"]}, np.ones(2)).parts[1].label
    'neighbours(county), unstructured'
    """

    region: str
    graph: Any
    regions: Sequence[Any] | None = None

    @property
    def label(self) -> str:
        """The term as formulas write it."""
        return f"neighbours({self.region})"

    def linear(self, frame: Any) -> tuple[str, ...]:
        """None."""
        return ()

    def learn(self, frame: Any, weights: FloatArray) -> LearnedNeighbours:
        """Scale the graph."""
        names, adjacent = self._adjacency()
        n = len(names)
        count, part = connected_components(adjacent, directed=False)
        sizes = np.bincount(part, minlength=count)
        main = int(np.argmax(sizes))
        degrees = np.asarray(adjacent.sum(axis=1)).ravel()
        laplacian = sparse.csr_array(sparse.diags_array(degrees) - adjacent)
        kept = np.ones(n, dtype=bool)
        blocks, order = [], []
        for number in range(count):
            own = np.flatnonzero(part == number)
            if own.size == 1:
                block = sparse.csr_array(np.ones((1, 1)))
            else:
                block = _mean_variance(laplacian[own[1:]][:, own[1:]]) * laplacian[own][:, own]
            if number == main and own.size > 1:
                kept[own[0]], own, block = False, own[1:], block[1:][:, 1:]
            elif own.size > 1:  # a level, with the variance of a region
                block = sparse.csr_array(block.toarray() + 1.0 / own.size**2)
            blocks.append(block)
            order.append(own)
        places = np.full(n, -1)
        places[np.concatenate(order)] = np.arange(int(np.sum(kept)))
        upper = sparse.coo_array(sparse.triu(sparse.block_diag(blocks)))
        left, right = (np.asarray(one, dtype=np.intp) for one in upper.coords)
        learned = LearnedNeighbours(self.region, names, places, left, right, np.asarray(upper.data), self.label)
        learned.places_of(frame)
        return learned

    def _adjacency(self) -> tuple[tuple[str, ...], sparse.csr_array]:
        """Names of the regions, and the symmetric matrix of weights."""
        graph, where = self.graph, self.label
        if hasattr(graph, "shape"):
            regions = getattr(graph, "index", None) if self.regions is None else self.regions
            names = tuple(map(level_text, range(graph.shape[0]) if regions is None else regions))
            matrix = sparse.csr_array(graph, dtype=np.float64)
            if matrix.shape != (len(names),) * 2 or len(set(names)) < len(names):
                raise ValueError(
                    f"{where}: its graph of shape {matrix.shape} must be square, with a name for every row"
                )
        else:
            pairs = list(_pairs(graph, where))
            found = {level_text(one) for pair in pairs for one in pair if one is not None}
            names = tuple(sorted(found, key=level_order))
            place = {name: k for k, name in enumerate(names)}
            ends = np.array(
                [[place[level_text(a)], place[level_text(b)]] for a, b in pairs if b is not None], dtype=np.intp
            )
            ends = ends.reshape(-1, 2)
            matrix = sparse.csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(names),) * 2)
            matrix = sparse.csr_array(matrix + matrix.T)
            matrix.data[:] = 1.0
        matrix.setdiag(0.0)
        matrix.eliminate_zeros()
        if not matrix.nnz:
            raise ValueError(f"{where}: no region of its graph has a neighbour")
        if np.min(matrix.data) < 0.0 or abs(matrix - matrix.T).max() > 1e-8 * matrix.data.max():
            raise ValueError(f"{where}: the matrix of its graph must be symmetric, without negative entries")
        return names, matrix


def _pairs(graph: Any, where: str) -> Iterable[tuple[Any, Any]]:
    """Neighbours one by one; None beside a region that has none."""
    if isinstance(graph, Mapping):
        for region, others in graph.items():
            others = [others] if isinstance(others, str) else list(others)
            yield from ((region, other) for other in others or [None])
        return
    for pair in graph:
        if isinstance(pair, str) or len(pair) != 2:
            raise ValueError(
                f"{where}: its graph must be a mapping, pairs of regions or a matrix, got {pair!r} as a pair"
            )
        yield pair[0], pair[1]


def _mean_variance(pinned: Any) -> float:
    """Mean variance of regions relative to their mean, from the Laplacian without one of them."""
    factor = SparsePrecision.of(sparse.csc_array(sparse.triu(pinned)), np.empty(0, dtype=np.intp))
    m, sums = pinned.shape[0] + 1, factor.solve(np.ones(pinned.shape[0]))
    return float((np.sum(factor.variances()) - np.sum(sums) / m) / m)


@dataclass(frozen=True, eq=False)
class LearnedNeighbours:
    """Regions of `Neighbours`, and the upper triangle of the precision matrix of their structured effects.

    The first region of the largest part of the graph has no structured effect: its level is that of the intercept.
    """

    region: str
    regions: tuple[str, ...]
    structured: IndexArray
    left: IndexArray
    right: IndexArray
    values: FloatArray
    label: str

    shown = "regions"

    @property
    def variables(self) -> tuple[str, ...]:
        """Columns of the table that are read."""
        return (self.region,)

    @property
    def width(self) -> int:
        """Number of structured effects."""
        return int(np.sum(self.structured >= 0))

    @property
    def names(self) -> list[str]:
        """Names of the coefficients."""
        names = [""] * self.width
        for region, place in zip(self.regions, self.structured, strict=True):
            if place >= 0:
                names[place] = f"{self.label}[{region}, structured]"
        return names + [f"{self.label}[{region}, unstructured]" for region in self.regions]

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """A structure, and independent effects."""
        n = self.width
        upper = sparse.csr_array((self.values, (self.left, self.right)), shape=(n, n))
        structure = Scaled(sparse.csr_array(upper + sparse.triu(upper, 1).T), n)
        return (
            Part(f"{self.label}, structured", n, structure, floats=True),
            Part(f"{self.label}, unstructured", len(self.regions)),
        )

    def places_of(self, frame: Any) -> IndexArray:
        """Place of every row's region."""
        own, each = codes(frame, self.region, self.label)
        place = places_of(each, self.regions)
        used = np.bincount(own, minlength=len(each)) > 0
        lacking = [each[k] for k in np.flatnonzero(used & (place == len(self.regions)))]
        if lacking:
            raise ValueError(
                f"{self.label}: {len(lacking)} regions of the data are not in its graph, such as {lacking[0]!r}: "
                f"{nearest(lacking[0], self.regions)}"
            )
        return place[own]

    def columns(self, frame: Any) -> sparse.csr_array:
        """Two entries per row."""
        place, n = self.places_of(frame), self.width
        structured = self.structured[place]
        values = np.column_stack([structured >= 0, np.ones(place.size)])
        made = scattered(values, np.column_stack([np.maximum(structured, 0), n + place]), n + len(self.regions))
        made.eliminate_zeros()
        return made
