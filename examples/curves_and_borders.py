"""
Curves and borders of any form
==============================

A Gaussian process is a prior for a function without a given form. Expectation propagation lets it have any loss: here a
loss that outliers do not bend, and labels of two classes. Kernels are those of scikit-learn.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import cavity

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0.0, 6.0, 100))[:, None]
truth = np.sin(2.0 * x[:, 0])
y = truth + 0.15 * rng.normal(size=100)
y[rng.permutation(100)[:12]] += rng.uniform(2.0, 4.0, 12)  # outliers, all on one side

# %%
# The length and the height of the waves, and the noise, are found by the evidence, for both losses.
kernel = ConstantKernel() * RBF()
robust = cavity.EPGaussianProcessRegressor(kernel, loss="absolute").fit(x, y)
normal = GaussianProcessRegressor(kernel + WhiteKernel(), normalize_y=True).fit(x, y)
grid = np.linspace(0.0, 6.0, 200)[:, None]
curve, std = robust.predict(grid, return_std="mean")
for name, model in (("absolute loss, EP", robust), ("normal noise", normal)):
    print(f"{name:18} mean error of the curve {np.abs(model.predict(x) - truth).mean():.3f}")

# %%
# A classifier: probabilities are near one half along the border and where there are no rows.
X, labels = make_moons(150, noise=0.2, random_state=0)
border = cavity.EPGaussianProcessClassifier(kernel).fit(X, labels)
print(border.kernel_)

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
left.plot(x[:, 0], y, ".", color="0.4")
left.plot(grid[:, 0], np.sin(2.0 * grid[:, 0]), color="0.6", label="truth")
left.plot(grid[:, 0], normal.predict(grid), "--", label="normal noise")
left.plot(grid[:, 0], curve, label="absolute loss")
left.fill_between(grid[:, 0], curve - 2 * std, curve + 2 * std, alpha=0.25)
left.set(title="a curve with outliers", xlabel="x", ylabel="y")
left.legend()
a, b = np.meshgrid(np.linspace(-2.5, 3.5, 80), np.linspace(-2.0, 2.5, 80))
shares = border.predict_proba(np.column_stack([a.ravel(), b.ravel()]))[:, 1].reshape(a.shape)
colors = right.contourf(a, b, shares, levels=np.linspace(0.0, 1.0, 11), cmap="RdBu_r", alpha=0.7)
right.contour(a, b, shares, levels=[0.5], colors="0.2")
right.scatter(*X[labels == 0].T, s=12, label="first class")
right.scatter(*X[labels == 1].T, s=12, marker="^", label="second class")
right.set(title="probability of the second class")
right.legend()
figure.colorbar(colors, ax=right)
plt.show()

# %%
# **Conclusion.** The curve follows the rows that belong to it, and its band is narrow where there are many. The border
# has no given form, and far from the rows the classifier says that it does not know.
