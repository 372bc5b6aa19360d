r"""Moments of Gaussians times rows' factors, :math:`N(z; m, v)\, e^{-\beta \ell(y, z)}`, for arrays of rows.

The array form of `cavity.moments`, in NumPy and SciPy alone: nothing is compiled. A row's answer does not depend on the
other rows, and memory beyond the answers does not grow with their number.

- Losses that have ``pieces``: the closed form, of errors below 1e-9 over means to 1e6, widths from 1e-8 to 1e8 and
  powers to 1e6.
- The squared loss, which says ``as_squared``: the closed form.
- The logistic loss, which says ``as_logistic``: one Gauss-Hermite rule where the Gaussian is narrow, a mixture of
  probits where it is wide and the power is one; errors below 1e-9.
- Any other, and a wide logistic one of another power: Gauss-Hermite rules of doubling order about the peak of the
  product, and panels where no two of them agree; errors below 1e-6.
"""

from cavity.tilting._tilts import tilts
from cavity.tilting._values import Tilts

__all__ = ["Tilts", "tilts"]
