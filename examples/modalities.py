"""
Registration of two modalities
==============================

Two pictures of a scene, whose grey values have no simple relation, are aligned by a shift and a rotation. The
correlation ratio measures how well one picture predicts the other; as a cost it gives error bars.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

import cavity

TRUTH, SIZE = np.array([2.0, -1.5, 8.0]), 64  # pixels down and right, degrees
rng = np.random.default_rng(0)
scene = gaussian_filter(rng.standard_normal((128, 128)), 4.0)
scene /= scene.std()
places = np.indices((SIZE, SIZE)) - SIZE / 2.0


def moved(picture, parameters):
    """Shift and rotate the middle of a picture."""
    down, right, angle = parameters[0], parameters[1], np.deg2rad(parameters[2])
    turned = [np.cos(angle) * places[0] - np.sin(angle) * places[1] + down,
              np.sin(angle) * places[0] + np.cos(angle) * places[1] + right]  # fmt: skip
    return map_coordinates(picture, np.array(turned) + 64.0, order=3, mode="nearest")


# The other modality shows dark what is far from the mean, on either side.
other = np.exp(-(moved(scene, TRUTH) ** 2)) + 0.25 * rng.standard_normal((SIZE, SIZE))
scene = scene + 0.1 * rng.standard_normal(scene.shape)
SMOOTHNESS = 60.0  # pixels that are worth one, where neighbours are alike


def cost(parameters):
    """Half the number of independent pixels times the logarithm of the variance that is left."""
    grey = moved(scene, parameters).ravel()
    level = np.digitize(grey, np.quantile(grey, np.linspace(0.0, 1.0, 17)[1:-1]))
    means = np.bincount(level, other.ravel(), 16) / np.bincount(level, minlength=16)
    return 0.5 * grey.size / SMOOTHNESS * np.log(np.mean((other.ravel() - means[level]) ** 2))


# %%
# One factor of single points; ``workers`` threads share them.
prior = cavity.FactorialGaussian.from_moments(np.zeros(3), [9.0, 9.0, 100.0])
result = cavity.fit([cavity.CostFactor(cost, dim=3, workers=2)], prior)
print(result.summary(["down", "right", "degrees"]))
print(result.evaluations, "values;", result.check(400, starts=2))
figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
panels[0].imshow(other, cmap="gray")
panels[1].imshow(moved(scene, result.mean), cmap="gray")
panels[2].errorbar(result.mean - TRUTH, ["down", "right", "degrees"], xerr=2.0 * result.std, fmt="o", capsize=3)
panels[2].set(title="errors, ± 2 standard deviations", xlabel="estimate - true value")
plt.show()

# %%
# **Conclusion.** The pictures are aligned to a fraction of a pixel and of a degree by a cost of which only values are
# known. The error bars show how accurate that is.
