"""The contract between factors and schemes."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from cavity._types import FloatArray, IndexArray

Curvature = Literal["exact", "slope"]


class Derivatives(NamedTuple):
    """Cost at a point and its derivatives.

    Parameters
    ----------
    value
        The cost.
    gradient
        Its gradient.
    curvature
        The diagonal of its second derivatives.
    """

    value: float
    gradient: FloatArray
    curvature: FloatArray


class StarCosts(NamedTuple):
    """Cost at the nodes of a star.

    Parameters
    ----------
    center
        Cost at the centre.
    up, down
        Cost at a step up, and down, along every axis.
    """

    center: float
    up: FloatArray
    down: FloatArray


class Factor(Protocol):
    r"""One term :math:`u_k(\theta)` of the cost; its factor of the density is :math:`e^{-\beta u_k}`.

    A factor that touches only some coordinates names them in ``coordinates``, and every point it is given
    then has just those, in that order; all others integrate out of its moments.
    """

    @property
    def dim(self) -> int:
        """Number of coordinates of the whole problem."""

    @property
    def coordinates(self) -> IndexArray | None:
        """Sorted coordinates that matter to the cost, or None for all of them."""

    @property
    def has_slope(self) -> bool:
        """Whether ``curvature="slope"`` has a meaning."""

    def cost(self, points: FloatArray) -> FloatArray:
        """Cost at several points, of shape ``(n,)``.

        Parameters
        ----------
        points
            Places of shape ``(n, d)``.
        """

    def derivatives(self, point: FloatArray, curvature: Curvature = "exact") -> Derivatives:
        """Value, gradient and curvature at one point.

        Parameters
        ----------
        point
            The place, of shape ``(d,)``.
        curvature
            ``"exact"``, or where `has_slope` also ``"slope"``: the size of the loss's slope in place of its second
            derivative.
        """

    def star(self, center: FloatArray, steps: FloatArray) -> StarCosts:
        """Cost at the centre and at a step up and down along every axis.

        Parameters
        ----------
        center
            The place in the middle, of shape ``(d,)``.
        steps
            Length of the step along every axis.
        """

    def newton_direction(
        self, point: FloatArray, gradient: FloatArray, precision: FloatArray, beta: float, curvature: Curvature
    ) -> FloatArray:
        r"""Solve :math:`(\mathrm{diag}(p) + \beta \nabla\nabla^\top u(\theta))\, x = -g` for a descent direction.

        Where the matrix is not positive definite, its non-negative part or diagonal stands in for it.

        Parameters
        ----------
        point
            The place :math:`\theta`.
        gradient
            The gradient :math:`g` of all that is minimised.
        precision
            The precisions :math:`p` of the cavity.
        beta
            Inverse temperature.
        curvature
            As in `derivatives`.
        """
