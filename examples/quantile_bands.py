"""
Quantile regression with uncertainty
====================================

The noise is skewed and increases with x. Quantile regression fits one model per quantile, without an assumption about
the shape of the noise. The bands show the uncertainty of the fitted curves.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

import cavity

rng = np.random.default_rng(0)


def draw(n):
    """Draw points around a curve, with skewed noise that increases with x."""
    x = rng.uniform(0.0, 10.0, n)
    return x[:, None], np.sin(x) + 0.3 * x + (0.1 + 0.1 * x) * (rng.gamma(2.0, size=n) - 2.0)


x, y = draw(800)
x_new, y_new = draw(20_000)
grid = np.linspace(0.0, 10.0, 200)[:, None]

# %%
# The features are splines of x, computed by scikit-learn. The posterior is that of their coefficients.
shares, lines = {}, {}
for q in (0.1, 0.5, 0.9):
    regressor = cavity.EPRegressor(loss="quantile", quantile=q)
    model = make_pipeline(SplineTransformer(n_knots=8), regressor).fit(x, y)
    lines[q] = model.predict(grid, return_std=True)
    shares[q] = float(np.mean(y_new < model.predict(x_new)))
    print(f"quantile {q}: {shares[q]:.1%} of 20,000 new points lie below")
figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
axes.plot(x, y, ".", color="0.65", markersize=3, label="data")
for k, (q, (line, std)) in enumerate(lines.items()):
    axes.plot(grid, line, color=f"C{k}", label=f"quantile {q}, with ± 2 standard deviations")
    axes.fill_between(grid[:, 0], line - 2.0 * std, line + 2.0 * std, color=f"C{k}", alpha=0.25, linewidth=0.0)
axes.set(xlabel="x", ylabel="y")
axes.legend()
plt.show()

# %%
# **Conclusion.** The curves follow the changing noise, and the share of new points below each curve is close to its
# quantile. The bands are wider where the data are noisy or few.
