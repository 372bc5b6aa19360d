r"""Moments of Gaussians times rows' factors, :math:`N(z; m, v)\, e^{-\beta \ell(y, z)}`, for arrays of rows.

The array form of `cavity.moments`, in NumPy and SciPy alone: nothing is compiled.
"""

from cavity.tilting._tilts import tilts
from cavity.tilting._values import Tilts

__all__ = ["Tilts", "tilts"]
