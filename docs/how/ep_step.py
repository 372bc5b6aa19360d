"""The figure of "Expectation propagation in two pages": one step, and a posterior with its Gaussians."""

import matplotlib.pyplot as plt
import numpy as np

import cavity
from cavity.moments import tilts


def density(z, mean, variance):
    """Density of a Gaussian."""
    return np.exp(-0.5 * (z - mean) ** 2 / variance) / np.sqrt(2.0 * np.pi * variance)


figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.4), layout="constrained")

# One step: the cavity is N(0, 4), the factor that of a hinge loss with sharp slope.
z, mean, variance = np.linspace(-6.0, 7.0, 600), 0.0, 4.0
loss = cavity.losses.Hinge()
log_mass, shift, ratio = (float(part[0]) for part in tilts(loss, *np.array([[1.0], [mean], [variance]])))
factor = np.exp(-loss.value(1.0, z))
left.plot(z, density(z, mean, variance), "--", color="0.5", label="cavity")
left.plot(z, 0.4 * factor, ":", color="C3", label="factor (not to scale)")
left.fill_between(
    z, density(z, mean, variance) * factor / np.exp(log_mass), color="C1", alpha=0.4, label="their product"
)
left.plot(z, density(z, mean + shift * np.sqrt(variance), ratio * variance), color="C0", label="same mean and variance")
left.set(xlabel="predictor of the row, z", yticks=[], title="one step")

# A skewed posterior: logistic regression with four rows of one label and one that is not far.
X, y = np.array([[1.0], [1.0], [1.5], [0.3]]), np.array([1.0, 1.0, 1.0, -1.0])
prior = cavity.FactorialGaussian.from_moments([0.0], 16.0)
rows = cavity.LinearFactor.batches(cavity.losses.Logistic(), X, y)
t = np.linspace(-3.0, 13.0, 800)
log_posterior = prior.log_density(t[:, None]) - rows.cost(t[:, None])
posterior = np.exp(log_posterior - log_posterior.max())
posterior /= posterior.sum() * (t[1] - t[0])
found = cavity.fit(rows, prior, covariance="full")
peak = int(np.argmax(posterior))
curvature = -np.gradient(np.gradient(log_posterior, t), t)[peak]
right.fill_between(t, posterior, color="C1", alpha=0.4, label="posterior")
right.plot(t, density(t, found.mean[0], found.variance[0]), color="C0", label="EP: the mean")
right.plot(t, density(t, t[peak], 1.0 / curvature), "--", color="C3", label="Laplace: the mode")
right.set(xlabel="coefficient", yticks=[], title="the posterior of a few rows")
for axes in (left, right):
    axes.legend(frameon=False)
    axes.spines[["left", "right", "top"]].set_visible(False)
plt.show()
