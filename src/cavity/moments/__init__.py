r"""Moments of Gaussians times rows' factors, :math:`N(z; m, v)\, e^{-\beta \ell(y, z)}`, for arrays of rows.

A row of a linear model sees :math:`\theta` through :math:`z = x^\top \theta` only, and under a Gaussian cavity z is
Gaussian: these moments are all that exact projection needs. This is the form for arrays, in NumPy and SciPy;
`cavity.kernels` has the compiled one for a single row, with the same steps, names and constants. A row's answer does
not depend on the other rows, and memory beyond the answers does not grow with their number.

What serves a loss depends on what it offers (`cavity.losses.offers`):

- Straight pieces: the closed form, of errors below 1e-9 over means to 1e6, widths from 1e-8 to 1e8 and powers to 1e6.
- A squared form: the closed form.
- A logistic form: one Gauss-Hermite rule where the Gaussian is narrow, a mixture of probits where it is wide and the
  power is one; errors below 1e-9.
- Nothing, or a wide logistic form of another power: Gauss-Hermite rules of doubling order about the peak of the
  product, and panels where no two of them agree; errors below 1e-6.

The mean of the logistic function alone, for predictions, is the mixture at every width and far into the tails
(`log_mean_logistic`).
"""

from cavity.moments.joint import JointSite, joint_log_masses, joint_means, joint_sites
from cavity.moments.logistic import log_mean_logistic
from cavity.moments.tilted import Tilts, tilts

__all__ = ["JointSite", "Tilts", "joint_log_masses", "joint_means", "joint_sites", "log_mean_logistic", "tilts"]
