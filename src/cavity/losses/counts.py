"""Losses of targets of zero or more whose mean is the exponential of the prediction."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Poisson(NamedTuple):
    r"""Poisson loss for counts :math:`y` with the mean :math:`e^z`.

    .. math:: \ell(y, z) = e(z) - y z, \qquad
        e(z) = \begin{cases} e^z & z \le c \\ e^c (1 + z - c) & z > c \end{cases}

    Above the ceiling, the exponential is continued by its tangent, which prevents overflow and keeps the loss convex.

    Parameters
    ----------
    ceiling
        The ceiling :math:`c`; the default corresponds to a mean of :math:`10^{13}`.

    Examples
    --------
    >>> float(Poisson().value(3.0, 0.0))
    1.0
    """

    ceiling: float = 30.0

    @property
    def targets(self) -> str:
        return "counts"

    def value(self, y: Any, z: Any) -> Any:
        e = np.exp(np.minimum(z, self.ceiling))
        return e * (1.0 + np.maximum(z - self.ceiling, 0.0)) - y * z

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        e = np.exp(np.minimum(z, self.ceiling))
        v = e * (1.0 + np.maximum(z - self.ceiling, 0.0)) - y * z
        return v, e - y, e * (0.5 + 0.5 * np.sign(self.ceiling - z))


class NegativeBinomial(NamedTuple):
    r"""Negative binomial loss for counts :math:`y` with the mean :math:`e^z` that vary more than Poisson counts.

    .. math:: \ell(y, z) = (y + 1/\alpha) \log(1 + \alpha e^z) - y z, \qquad \alpha = s^2

    The variance of a count with mean :math:`m` is :math:`m + \alpha m^2`. In the limit :math:`s \to 0` this is
    `Poisson` without a ceiling. The loss is convex, and linear for large positive and negative :math:`z`.

    Parameters
    ----------
    scale
        Standard deviation :math:`s` of the random rate divided by its mean; :math:`s^2 = \alpha` is the dispersion.

    Examples
    --------
    >>> NegativeBinomial(scale=0.5).dispersion
    0.25
    """

    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "counts"

    @property
    def dispersion(self) -> float:
        """The dispersion: variance minus mean, divided by the squared mean."""
        return self.scale * self.scale

    def value(self, y: Any, z: Any) -> Any:
        shift = 2.0 * np.log(self.scale)
        a = z + shift
        tail = np.log1p(np.exp(-np.abs(a)))
        over, under = np.maximum(a, 0.0) + tail, np.maximum(-a, 0.0) + tail
        return over / (self.scale * self.scale) + y * (under + shift)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        shift, size = 2.0 * np.log(self.scale), 1.0 / (self.scale * self.scale)
        a = z + shift
        e = np.exp(-np.abs(a))
        tail, right = np.log1p(e), 0.5 + 0.5 * np.sign(a)
        over, under = np.maximum(a, 0.0) + tail, np.maximum(-a, 0.0) + tail
        up, down = (right + (1.0 - right) * e) / (1.0 + e), (1.0 - right + right * e) / (1.0 + e)
        return over * size + y * (under + shift), up * size - y * down, (y + size) * up * down


class Gamma(NamedTuple):
    r"""Gamma loss for positive targets :math:`y` with the mean :math:`e^z`, such as waiting times, costs and rates.

    .. math:: \ell(y, z) = \kappa (z + e(\log y - z)), \quad \kappa = s^{-2}, \qquad
        e(t) = \begin{cases} e^t & t \le c \\ e^c (1 + t - c) & t > c \end{cases}

    The standard deviation of a target is :math:`s` times its mean. Above the ceiling, the exponential is continued by
    its tangent, which prevents overflow and keeps the loss convex.

    Parameters
    ----------
    scale
        Standard deviation :math:`s` divided by the mean; the shape of the gamma density is :math:`\kappa = s^{-2}`.
    ceiling
        The ceiling :math:`c` of the logarithm of target divided by predicted mean.

    Examples
    --------
    >>> Gamma(scale=0.5).shape
    4.0
    """

    scale: float = 1.0
    ceiling: float = 30.0

    @property
    def targets(self) -> str:
        return "positives"

    @property
    def shape(self) -> float:
        """The shape of the gamma density."""
        return 1.0 / (self.scale * self.scale)

    def value(self, y: Any, z: Any) -> Any:
        t = np.log(y) - z
        e = np.exp(np.minimum(t, self.ceiling))
        return (z + e * (1.0 + np.maximum(t - self.ceiling, 0.0))) / (self.scale * self.scale)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        t, size = np.log(y) - z, 1.0 / (self.scale * self.scale)
        e = np.exp(np.minimum(t, self.ceiling))
        v = (z + e * (1.0 + np.maximum(t - self.ceiling, 0.0))) / (self.scale * self.scale)
        return v, (1.0 - e) * size, e * size * (0.5 + 0.5 * np.sign(self.ceiling - t))
