"""
A robust fit of a nonlinear curve
=================================

A damped oscillation with outliers is fitted with an absolute loss. The cost is a Python function of three parameters,
without derivatives, and is split into mini-batches of ten points.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import least_squares

import cavity

TRUTH = np.log([0.8, 0.2, 2.0])  # amplitude at t = 2.5, rate of decay, frequency
rng = np.random.default_rng(0)


def curve(parameters, t):
    """Curves of shape (n, times), one per row of parameters; exponents are limited to avoid overflow."""
    level, decay, frequency = parameters.T[..., None]
    return np.exp(np.minimum(level - np.exp(np.minimum(decay, 10)) * (t - 2.5), 20)) * np.cos(np.exp(frequency) * t)


def misfit(t, y):
    """Cost of some points, for many parameters at once."""
    return lambda parameters: np.abs(curve(parameters, t) - y).sum(axis=1) / 0.1


t = rng.uniform(0.0, 10.0, 120)
y = curve(TRUTH[None], t)[0] + rng.laplace(scale=0.1, size=120)
y[:18] = rng.uniform(0.5, 2.0, 18)

# %%
# Each mini-batch is one factor. EP approximates the product of the prior and the factors by a Gaussian.
prior = cavity.FactorialGaussian.from_moments(mean=[0.0, -2.0, np.log(2.2)], variance=[1.0, 1.0, 0.01])
factors = [cavity.CostFactor(misfit(t[b], y[b]), 3, vectorized=True) for b in np.split(rng.permutation(120), 12)]
result = cavity.fit(factors, prior, max_iter=50, tol=0.02)
squares = least_squares(lambda p: curve(p[None], t)[0] - y, prior.mean).x

# %%
# To check the Gaussian, compare its moments with those of the true posterior, computed by importance sampling.
draws = result.posterior.draws(rng.standard_normal((20_000, 3)))
log_weights = prior.log_density(draws) - misfit(t, y)(draws) - result.posterior.log_density(draws)
weights = np.exp(log_weights - log_weights.max())
mean, std = np.average(draws, axis=0, weights=weights), np.sqrt(np.diag(np.cov(draws.T, aweights=weights)))
print("EP", result.mean.round(3), "±", result.std.round(3), "\nimportance sampling", mean.round(3), "±", std.round(3))
grid, (figure, axes) = np.linspace(0.0, 10.0, 400), plt.subplots(figsize=(9, 4.5), layout="constrained")
low, high = np.quantile(curve(draws[:2000], grid), [0.025, 0.975], axis=0)
axes.plot(t, y, ".", color="0.6", label="data")
axes.fill_between(grid, low, high, color="C0", alpha=0.35, label="EP, 95% interval")
for name, color, p in (("true curve", "k", TRUTH), ("least squares", "C1", squares)):
    axes.plot(grid, curve(p[None], grid)[0], color=color, linewidth=1.0, label=name)
axes.set(xlabel="time", ylabel="height", ylim=(-1.6, 2.2))
axes.legend()
plt.show()

# %%
# **Conclusion.** The means agree with importance sampling, and the standard deviations nearly do. The outliers distort
# the least squares fit, but have little effect on the posterior with an absolute loss.
