"""The contract of a scheme, and what several schemes share."""

from __future__ import annotations

from typing import ClassVar, Protocol

from cavity._types import FloatArray
from cavity.factors import Factor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.full import FullGaussian


class Scheme(Protocol):
    """A method that approximates one factor by a product of independent Gaussians (the site), given a cavity."""

    name: ClassVar[str]

    def check(self, factor: Factor) -> None:
        """Raise `ValueError` if this scheme does not support the factor; called before anything is computed.

        Parameters
        ----------
        factor
            The factor.
        """

    def approximate(self, factor: Factor, cavity: FactorialGaussian, beta: float = 1.0) -> FactorialGaussian:
        r"""Fit a site to :math:`e^{-\beta u}`.

        The cavity is proper and has the coordinates of the factor, and so has the site. The site may have negative
        precisions. If no site can be computed, its entries are NaN or infinite, and the update is rejected
        later.

        Parameters
        ----------
        factor
            The factor with cost u.
        cavity
            The prior times the sites of all other factors.
        beta
            Inverse temperature.
        """


class FullScheme(Scheme, Protocol):
    """A scheme that can also fit sites with all correlations."""

    def approximate_full(self, factor: Factor, cavity: FullGaussian, beta: float, near: FullGaussian) -> FullGaussian:
        r"""Fit a site with all correlations.

        Parameters
        ----------
        factor, cavity, beta
            As in `approximate`.
        near
            A proper Gaussian near cavity times factor, of mass one: the posterior before the visit.
        """


def expansion(
    point: FloatArray, value: float, slope: FloatArray, curvature: FloatArray, beta: float
) -> FactorialGaussian:
    r"""Write :math:`-\beta [u + g^\top(\theta - t) + \tfrac12 c^\top (\theta - t)^2]` in natural form.

    .. math:: p = \beta c, \quad r = \beta (c t - g), \quad s = -\beta (u - g^\top t + \tfrac12 c^\top t^2)
    """
    log_scale = -beta * (value - slope @ point + 0.5 * curvature @ point**2)
    return FactorialGaussian(float(log_scale), beta * (curvature * point - slope), beta * curvature)
