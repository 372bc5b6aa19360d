"""
Intervals that widen where the data do
======================================

With ``scale="linear"`` the logarithm of the noise's standard deviation is a linear function of the features too, with
coefficients of its own and a posterior for them.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

import cavity

rng = np.random.default_rng(0)


def draw(n):
    """Points around a curve, with normal noise that widens."""
    x = rng.uniform(0.0, 10.0, n)
    return x[:, None], np.sin(x) + 0.3 * x + np.exp(-2.0 + 0.25 * x) * rng.standard_normal(n)


x, y = draw(400)
x_new, y_new = draw(20_000)
grid = np.linspace(0.0, 10.0, 200)[:, None]

# %%
# How many of 20,000 new points lie within their 90% intervals, on the left and on the right?
bands, evidence, covered = {}, {}, {}
for scale in ("auto", "linear"):
    regressor = cavity.EPRegressor(loss="normal", scale=scale)
    model = make_pipeline(SplineTransformer(n_knots=6), StandardScaler(), regressor).fit(x, y)
    bands[scale] = model.predict(grid, quantile=[0.05, 0.5, 0.95]).T
    low, high = model.predict(x_new, quantile=[0.05, 0.95]).T
    inside, evidence[scale] = (low < y_new) & (y_new < high), float(regressor.log_evidence_)
    covered[scale] = [float(inside[rows].mean()) for rows in (x_new[:, 0] < 3.0, x_new[:, 0] > 7.0)]
    left, right = covered[scale]
    print(f"scale={scale!r:9} within: {left:.1%} for x < 3, {right:.1%} for x > 7; log evidence {evidence[scale]:.0f}")
figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for axes, (scale, (low, middle, high)) in zip(panels, bands.items(), strict=True):
    axes.plot(x, y, ".", color="0.6", markersize=4)
    axes.plot(grid, middle, color="C0", label="median")
    axes.fill_between(grid[:, 0], low, high, color="C0", alpha=0.25, linewidth=0.0, label="90% of new points")
    axes.set(xlabel="x", title=f'scale="{scale}"')
panels[0].set_ylabel("y")
panels[0].legend(loc="upper left")
plt.show()

# %%
# **Conclusion.** One spread for all points gives intervals that are too wide on the left and too narrow on the right.
# With a linear spread they cover nine points of ten everywhere, and the evidence says so without any new points.
