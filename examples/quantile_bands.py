"""
Quantile regression with its own uncertainty
============================================

The noise is skewed and widens to the right, so no single spread describes it. Each quantile is a model of its own, and
its line has a band: how well the line itself is known.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

import cavity

rng = np.random.default_rng(0)


def draw(n):
    """Points around a curve, with skewed noise that widens."""
    x = rng.uniform(0.0, 10.0, n)
    return x[:, None], np.sin(x) + 0.3 * x + (0.1 + 0.1 * x) * (rng.gamma(2.0, size=n) - 2.0)


x, y = draw(800)
x_new, y_new = draw(20_000)
grid = np.linspace(0.0, 10.0, 200)[:, None]

# %%
# The features are splines of x; scikit-learn makes them, and the posterior is that of their coefficients.
shares, lines = {}, {}
for q in (0.1, 0.5, 0.9):
    regressor = cavity.EPRegressor(loss="quantile", quantile=q)
    model = make_pipeline(SplineTransformer(n_knots=8), StandardScaler(), regressor).fit(x, y)
    lines[q] = model.predict(grid, return_std=True)
    shares[q] = float(np.mean(y_new < model.predict(x_new)))
    print(f"quantile {q}: {shares[q]:.1%} of 20,000 new points lie below")
figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
axes.plot(x, y, ".", color="0.65", markersize=3)
for k, (q, (line, std)) in enumerate(lines.items()):
    axes.plot(grid, line, color=f"C{k}", label=f"quantile {q}")
    axes.fill_between(grid[:, 0], line - 2.0 * std, line + 2.0 * std, color=f"C{k}", alpha=0.25, linewidth=0.0)
axes.set(xlabel="x", ylabel="y")
axes.legend()
plt.show()

# %%
# **Conclusion.** The lines follow the spread of the data, and the shares of new points below them are close to what
# was asked for. Where data are few or noisy the band around a line is wider.
