r"""Integration rules for the standard normal density in any dimension, as nodes and weights.

A rule for a cavity with mean :math:`\mu` and deviation :math:`\sigma` has its points at
:math:`\mu + \sigma x_j`, :math:`x_j` the nodes. *Precision n* means exact for polynomials of degree n.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Literal, NamedTuple, Protocol

import numpy as np
from scipy.special import roots_genlaguerre

from cavity._checks import as_float, flag, shown, whole_number
from cavity._types import FloatArray

__all__ = ["GaussHermite", "MonteCarlo", "Precision3", "Precision5", "Spherical"]

_MAX_NODES = 2_000_000  # of a grid: 16 MB per dimension


@cache
def hermite(order: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of a Gauss-Hermite rule for the mean under the standard normal density."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    return x, w / np.sum(w)


@cache
def hermite_polynomials(order: int) -> tuple[FloatArray, FloatArray]:
    """Nodes, and their weights for the means of a function times 1, x and x² - 1, of shape ``(3, order)``."""
    x, w = hermite(order)
    return x, np.stack([np.ones(order), x, x * x - 1.0]) * w


class Star(NamedTuple):
    """A rule with one node at the centre and two on every axis.

    Parameters
    ----------
    spread
        Distance of the nodes on the axes from the centre.
    center_weight, arm_weight
        Weight of the node at the centre, and of each of the others.
    """

    spread: float
    center_weight: float
    arm_weight: float


class NodeSet(NamedTuple):
    """Nodes and weights of a rule.

    Parameters
    ----------
    nodes
        Places of shape ``(n, dim)``.
    weights
        Numbers of shape ``(n,)`` that sum to one.
    """

    nodes: FloatArray
    weights: FloatArray


class Rule(Protocol):
    """What is asked of a rule."""

    def star(self, dim: int) -> Star | None:
        """Return the rule as a star, or None where its nodes are no star.

        Parameters
        ----------
        dim
            Number of dimensions.
        """

    def node_set(self, dim: int) -> NodeSet:
        """Build nodes and weights.

        Parameters
        ----------
        dim
            Number of dimensions.
        """


@dataclass(frozen=True, slots=True)
class Precision3:
    r"""The paper's rule of :math:`2d + 1` nodes (eq. 7): centre and :math:`\pm\gamma` along every axis.

    Weights are :math:`1 - d/\gamma^2` at the centre and :math:`1/(2\gamma^2)` elsewhere. Exact to degree 3
    for every :math:`\gamma`, so exact moments for constant factors only.

    Parameters
    ----------
    spread
        :math:`\gamma`: ``"paper"`` for :math:`\gamma^2 = d + 1/2`, all weights equal; ``"yu"`` for
        :math:`\gamma^2 = d`, weight zero at the centre; ``"julier"`` for :math:`\gamma^2 = 3`, negative
        weight at the centre beyond three dimensions; or a positive number for :math:`\gamma` itself.

    Examples
    --------
    >>> Precision3().node_set(1).weights
    array([0.33333333, 0.33333333, 0.33333333])
    """

    spread: Literal["paper", "yu", "julier"] | float = "paper"

    def __post_init__(self) -> None:
        known = isinstance(self.spread, str) and self.spread in ("paper", "yu", "julier")
        # Squares of these, and their inverses, are finite in double precision.
        if not known and not 1e-150 <= as_float(self.spread) <= 1e150:
            raise ValueError(f"spread must be 'paper', 'yu', 'julier' or a positive number, got {shown(self.spread)}")

    def star(self, dim: int) -> Star:
        """Return spread and weights in ``dim`` dimensions."""
        squares = {"paper": dim + 0.5, "yu": float(max(dim, 1)), "julier": 3.0}
        square = squares[self.spread] if isinstance(self.spread, str) else float(self.spread) ** 2
        return Star(float(np.sqrt(square)), 1.0 - dim / square, 0.5 / square)

    def node_set(self, dim: int) -> NodeSet:
        """Build the nodes: the centre, then every axis upwards, then every axis downwards."""
        star = self.star(dim)
        arms = star.spread * np.eye(dim)
        weights = np.full(2 * dim + 1, star.arm_weight)
        weights[0] = star.center_weight
        return NodeSet(np.concatenate([np.zeros((1, dim)), arms, -arms]), weights)


@dataclass(frozen=True, slots=True)
class GaussHermite:
    r"""Tensor product of Gauss-Hermite rules: precision :math:`2n - 1` with :math:`n^d` nodes.

    Parameters
    ----------
    order
        Number of nodes :math:`n` along every axis.

    Examples
    --------
    >>> GaussHermite(order=4).node_set(2).nodes.shape
    (16, 2)
    """

    order: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", whole_number("order", self.order, least=1))

    def star(self, dim: int) -> None:
        """Return None: the nodes fill a grid."""
        return

    def node_set(self, dim: int) -> NodeSet:
        """Build the grid; refused where it would have more than two million nodes."""
        if self.order**dim > _MAX_NODES:
            raise ValueError(
                f"GaussHermite(order={self.order}) needs {self.order}**{dim} nodes in {dim} dimensions, more than "
                f"{_MAX_NODES}; use Precision5() or MonteCarlo() there, or a lower order"
            )
        x, w = hermite(self.order)
        nodes = np.array(list(product(x, repeat=dim)))
        weights = np.array(list(product(w, repeat=dim))).prod(axis=1)
        return NodeSet(nodes.reshape(len(weights), dim), weights)


@dataclass(frozen=True, slots=True)
class Precision5:
    r"""A rule of precision 5 with positive weights and :math:`O(d^2)` nodes.

    Two nodes on every axis at :math:`\sqrt{(d+2)/2}`, and corners of a cube at
    :math:`\pm\sqrt{(d+2)/(d-2)}` in every coordinate. The corners are all :math:`2^d` in low dimension and,
    beyond, a linear orthogonal array of strength 5 (columns :math:`(1, x, x^3)` over :math:`GF(2^m)`, any five
    of which are linearly independent), which has at most :math:`8 d^2` rows. For :math:`d \le 2` the
    tensor rule of three nodes per axis.

    Parameters
    ----------
    degree
        Degree of the polynomials that are integrated exactly; 5 is the only one.

    Examples
    --------
    >>> rule = Precision5().node_set(20)
    >>> rule.nodes.shape, bool(rule.weights.min() > 0)
    ((2088, 20), True)
    """

    degree: Literal[5] = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "degree", whole_number("degree", self.degree, least=5, most=5))

    def star(self, dim: int) -> None:
        """Return None: the corners lie on no axis."""
        return

    def node_set(self, dim: int) -> NodeSet:
        """Build axes and corners."""
        if dim <= 2:
            return GaussHermite(3).node_set(dim)
        corners = _strength_five_signs(dim) * np.sqrt((dim + 2.0) / (dim - 2.0))
        arms = np.sqrt(0.5 * (dim + 2.0)) * np.eye(dim)
        axis_weight = (2.0 / (dim + 2.0)) ** 2
        corner_weight = ((dim - 2.0) / (dim + 2.0)) ** 2 / len(corners)
        weights = np.concatenate([np.full(2 * dim, axis_weight), np.full(len(corners), corner_weight)])
        return NodeSet(np.concatenate([arms, -arms, corners]), weights)


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """Random nodes of equal weight; the same for every factor, so that a fixed point exists.

    Parameters
    ----------
    size
        Number of nodes; None for ``8 * dim + 8``.
    reflect
        Whether every node comes with its mirror image about the mean, which makes all odd moments exact.
    seed
        Seed of the generator that draws them.

    Examples
    --------
    >>> MonteCarlo(size=100).node_set(3).nodes.mean(axis=0).round(12) + 0.0
    array([0., 0., 0.])
    """

    size: int | None = None
    reflect: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "reflect", flag("reflect", self.reflect))
        object.__setattr__(self, "seed", whole_number("seed", self.seed, least=0))
        if self.size is not None:
            object.__setattr__(self, "size", whole_number("size", self.size, least=1))
            if self.reflect and self.size % 2:
                raise ValueError(f"size must be even with reflect=True, got {self.size}")

    def star(self, dim: int) -> None:
        """Return None: the nodes lie anywhere."""
        return

    def node_set(self, dim: int) -> NodeSet:
        """Draw the nodes."""
        size = 8 * dim + 8 if self.size is None else self.size
        rng = np.random.default_rng(self.seed)
        if self.reflect:
            half = rng.standard_normal((size // 2, dim))
            nodes = np.concatenate([half, -half])
        else:
            nodes = rng.standard_normal((size, dim))
        return NodeSet(nodes, np.full(size, 1.0 / size))


@dataclass(frozen=True, slots=True)
class Spherical:
    r"""Spheres of several radii with nodes at the corners and edges of a simplex: precision 5 by :math:`O(d^2)` nodes.

    On every sphere :math:`(d+1)(d+2)` nodes: the corners of a regular simplex, the middles of its edges, and their
    mirror images, exact for polynomials of degree 5 (Mysovskikh). The radii are those of a Gauss rule for the length of
    a standard normal vector, so that functions of the length are integrated to degree :math:`4 n - 1`. No node lies on
    an axis, and rotations show a function at other places. Up to seven dimensions all weights are positive.

    Parameters
    ----------
    radii
        Number of spheres.
    rotations
        Number of random rotations of all nodes; each adds as many.
    seed
        Seed of the rotations.

    Examples
    --------
    >>> Spherical().node_set(4).nodes.shape
    (90, 4)
    """

    radii: int = 3
    rotations: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radii", whole_number("radii", self.radii, least=2))
        object.__setattr__(self, "rotations", whole_number("rotations", self.rotations, least=1))
        object.__setattr__(self, "seed", whole_number("seed", self.seed, least=0))

    def star(self, dim: int) -> None:
        """Return None: the nodes lie on no axis."""
        return

    def node_set(self, dim: int) -> NodeSet:
        """Build the spheres."""
        return _spheres(self.radii, self.rotations, self.seed, dim)


@cache
def _spheres(radii: int, rotations: int, seed: int, dim: int) -> NodeSet:
    """Nodes of `Spherical`."""
    if dim == 0:
        return NodeSet(np.zeros((1, 0)), np.ones(1))
    if dim == 1:
        directions, shares = np.array([[1.0], [-1.0]]), np.array([0.5, 0.5])
    elif dim == 2:  # the middles of the edges are corners of the mirror image
        angles = np.arange(6) * np.pi / 3.0
        directions, shares = np.stack([np.cos(angles), np.sin(angles)], axis=1), np.full(6, 1.0 / 6.0)
    else:
        # Unit vectors without their mean are the corners, in coordinates of the hyperplane in which they lie.
        plane = np.linalg.svd(np.eye(dim + 1) - 1.0 / (dim + 1.0))[0][:, :dim]
        corners = plane / np.linalg.norm(plane, axis=1)[:, None]
        i, j = np.array(list(combinations(range(dim + 1), 2))).T
        edges = corners[i] + corners[j]
        edges /= np.linalg.norm(edges, axis=1)[:, None]
        directions = np.concatenate([corners, -corners, edges, -edges])
        whole = dim * (dim + 1.0) ** 2 * (dim + 2.0)
        corner, edge = 0.5 * dim**2 * (7.0 - dim) / whole, 2.0 * (dim - 1.0) ** 2 / whole
        shares = np.concatenate([np.full(2 * dim + 2, corner), np.full(2 * len(edges), edge)])
    halves, weights = roots_genlaguerre(radii, 0.5 * dim - 1.0)  # of half the squared length
    nodes = (np.sqrt(2.0 * halves)[:, None, None] * directions).reshape(-1, dim)
    rng, turned = np.random.default_rng(seed), []
    for _ in range(rotations):
        turned.append(nodes @ np.linalg.qr(rng.standard_normal((dim, dim)))[0])
    each = np.outer(weights / np.sum(weights), shares).ravel() / rotations
    return NodeSet(np.concatenate(turned), np.tile(each, rotations))


# Irreducible polynomials over GF(2) of degree 2 to 12, as bit masks with the leading bit.
_IRREDUCIBLE = dict(enumerate((0x7, 0xB, 0x13, 0x25, 0x43, 0x83, 0x11B, 0x211, 0x409, 0x805, 0x1053), start=2))


def _strength_five_signs(dim: int) -> FloatArray:
    """Rows of signs in which any five columns show every pattern equally often."""
    m = max(2, int(np.ceil(np.log2(dim))))
    if dim <= 2 * m + 1:
        columns, bits = [1 << i for i in range(dim)], dim
    elif m in _IRREDUCIBLE:
        columns = [1 | (x << 1) | (_times(_times(x, x, m), x, m) << (m + 1)) for x in range(dim)]
        bits = 2 * m + 1
    else:
        raise ValueError(f"Precision5 serves at most {2 ** max(_IRREDUCIBLE)} dimensions, got {dim}")
    if dim << bits > 100 * _MAX_NODES:
        raise ValueError(
            f"Precision5 needs {1 << bits} nodes in {dim} dimensions, too many to hold; use Precision3() there"
        )
    words = np.arange(1 << bits, dtype=np.int64)[:, None] & np.array(columns, dtype=np.int64)[None, :]
    signs: FloatArray = 1.0 - 2.0 * (np.bitwise_count(words) & 1).astype(np.float64)
    return signs


def _times(a: int, b: int, m: int) -> int:
    """Product in GF(2^m): carry-less multiplication, reduced as it goes."""
    result = 0
    while b:
        if b & 1:
            result ^= a
        a <<= 1
        if a >> m:
            a ^= _IRREDUCIBLE[m]
        b >>= 1
    return result
