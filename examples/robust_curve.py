"""
A robust curve that is not linear in its parameters
===================================================

A damped oscillation with outliers, under an absolute loss. No derivatives are given: the cost is a plain function of
three parameters, cut into mini-batches of ten points.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import least_squares

import cavity

TRUTH = np.log([0.8, 0.2, 2.0])  # amplitude at t = 2.5, rate of decay, frequency
rng = np.random.default_rng(0)


def curve(parameters, t):
    """Curves of shape (n, times), one per row of parameters; what would overflow is cut off."""
    level, decay, frequency = parameters.T[..., None]
    return np.exp(np.minimum(level - np.exp(np.minimum(decay, 10)) * (t - 2.5), 20)) * np.cos(np.exp(frequency) * t)


def misfit(t, y):
    """Cost of some points, for many parameters at once."""
    return lambda parameters: np.abs(curve(parameters, t) - y).sum(axis=1) / 0.1


t = rng.uniform(0.0, 10.0, 120)
y = curve(TRUTH[None], t)[0] + rng.laplace(scale=0.1, size=120)
y[:18] = rng.uniform(0.5, 2.0, 18)

# %%
# Every mini-batch is one factor; EP approximates prior times factors by a Gaussian.
prior = cavity.FactorialGaussian.from_moments(mean=[0.0, -2.0, np.log(2.2)], variance=[1.0, 1.0, 0.01])
batches = np.split(rng.permutation(120), 12)
factors = [cavity.CostFactor(misfit(t[rows], y[rows]), dim=3, vectorized=True) for rows in batches]
result = cavity.fit(factors, prior, max_iter=50, tol=0.02)
squares = least_squares(lambda p: curve(p[None], t)[0] - y, prior.mean).x

# %%
# Is the Gaussian right? Draws from it, weighted by the true density over its own, have the true moments.
draws = result.posterior.draws(rng.standard_normal((20_000, 3)))
log_weights = prior.log_density(draws) - misfit(t, y)(draws) - result.posterior.log_density(draws)
weights = np.exp(log_weights - log_weights.max())
mean, std = np.average(draws, axis=0, weights=weights), np.sqrt(np.diag(np.cov(draws.T, aweights=weights)))
print("EP", result.mean.round(3), "±", result.std.round(3), "\nweighted draws", mean.round(3), "±", std.round(3))
grid, (figure, axes) = np.linspace(0.0, 10.0, 400), plt.subplots(figsize=(9, 4.5), layout="constrained")
band = np.quantile(curve(draws[:2000], grid), [0.025, 0.975], axis=0)
axes.plot(t, y, ".", color="0.6")
axes.fill_between(grid, *band, color="C0", alpha=0.35, label="EP, 95% of curves")
axes.plot(grid, curve(np.array([TRUTH, squares]), grid).T, linewidth=1.0, label=["truth", "least squares"])
axes.set(xlabel="time", ylabel="height", ylim=(-1.6, 2.2))
axes.legend()
plt.show()

# %%
# **Conclusion.** Means agree with those of the weighted draws, and deviations nearly so. The outliers drag least
# squares away, and hardly move the posterior under an absolute loss.
