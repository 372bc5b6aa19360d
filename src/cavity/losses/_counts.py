"""Losses of targets of zero or more, of which a logarithm is predicted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Poisson(NamedTuple):
    r"""Poisson loss for counts :math:`y`: the logarithm of their mean is the prediction.

    .. math:: \ell(y, z) = e(z) - y z, \qquad
        e(z) = \begin{cases} e^z & z \le c \\ e^c (1 + z - c) & z > c \end{cases}

    Beyond the ceiling the exponential is continued by its tangent, so that nothing overflows and the loss stays convex.

    Parameters
    ----------
    ceiling
        The prediction :math:`c` beyond which that is done; the default stands for a mean of :math:`10^{13}`.

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
