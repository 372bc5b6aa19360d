"""
Intervals for noise that changes
================================

With ``scale="linear"``, the logarithm of the noise standard deviation is a linear function of the features. Its
coefficients have a posterior too.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

import cavity

rng = np.random.default_rng(0)


def draw(n):
    """Draw points around a curve, with normal noise that increases with x."""
    x = rng.uniform(0.0, 10.0, n)
    return x[:, None], np.sin(x) + 0.3 * x + np.exp(-2.0 + 0.25 * x) * rng.standard_normal(n)


x, y = draw(400)
x_new, y_new = draw(20_000)
grid = np.linspace(0.0, 10.0, 200)[:, None]

# %%
# Count how many of 20,000 new points lie in their 90% intervals, for small and for large x.
bands, evidence, covered = {}, {}, {}
for scale in ("auto", "linear"):
    regressor = cavity.EPRegressor(loss="normal", scale=scale)
    model = make_pipeline(SplineTransformer(n_knots=6), regressor).fit(x, y)
    bands[scale] = model.predict(grid, quantile=[0.05, 0.5, 0.95]).T
    low, high = model.predict(x_new, quantile=[0.05, 0.95]).T
    inside, evidence[scale] = (low < y_new) & (y_new < high), float(regressor.log_evidence_)
    covered[scale] = [float(inside[rows].mean()) for rows in (x_new[:, 0] < 3.0, x_new[:, 0] > 7.0)]
    left, right = covered[scale]
    print(f"scale={scale!r:9} within: {left:.1%} for x < 3, {right:.1%} for x > 7; log evidence {evidence[scale]:.0f}")
figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for axes, (scale, (low, middle, high)) in zip(panels, bands.items(), strict=True):
    axes.plot(x, y, ".", color="0.6", markersize=4, label="data")
    axes.plot(grid, middle, color="C0", label="median")
    axes.fill_between(grid[:, 0], low, high, color="C0", alpha=0.25, linewidth=0.0, label="90% interval")
    axes.set(xlabel="x", title=f'scale="{scale}"')
panels[0].set_ylabel("y")
panels[0].legend(loc="upper left")
plt.show()

# %%
# **Conclusion.** With one noise scale, intervals are too wide for small x and too narrow for large x. With
# ``scale="linear"`` they cover about 90% of new points in both regions, and the log evidence is higher.
