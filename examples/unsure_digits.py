"""
Digits that are hard to classify
================================

Ten classes share one joint posterior (softmax). Draws from the posterior give an interval for every predicted
probability.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split

import cavity

images, y = load_digits(return_X_y=True)
rows, held = train_test_split(np.arange(len(y)), train_size=600, random_state=0, stratify=y)
X = PCA(25, random_state=0).fit(images[rows]).transform(images) / 16.0
model = cavity.EPClassifier().fit(X[rows], y[rows])

# %%
# Sort held-out digits by the probability of their most likely class. The first tenth are the least certain.
p = model.predict_proba(X[held])
order = np.argsort(p.max(axis=1))
right = (p.argmax(axis=1) == y[held])[order]
tenth = len(held) // 10
accuracies = {"all": right.mean(), "unsure tenth": right[:tenth].mean(), "the others": right[tenth:].mean()}
for name, accuracy in accuracies.items():
    print(f"accuracy, {name:12} {accuracy:.1%}")
unsure = held[order[:6]]
p = model.predict_proba(X[unsure])
low, high = np.quantile(model.predict_proba_samples(X[unsure], 300, random_state=0), [0.05, 0.95], axis=0)
figure, axes = plt.subplots(2, 6, figsize=(11, 4.4), layout="constrained", height_ratios=(1.0, 1.5), sharey="row")
places = np.arange(10)
for j, (above, below) in enumerate(axes.T):
    truth = y[unsure[j]]
    above.imshow(images[unsure[j]].reshape(8, 8), cmap="gray_r")
    above.set_axis_off()
    above.set_title(f"true class: {truth}", fontsize="medium")
    below.barh(places, p[j], color=["C0" if k == truth else "0.75" for k in places])
    below.hlines(places, low[j], high[j], color="0.2", linewidth=1.2)
    below.set(xlim=(0.0, 1.0), ylim=(9.6, -0.6), yticks=places, xticks=(0.0, 0.5, 1.0))
axes[1, 0].set_ylabel("class")
figure.supxlabel("probability of each class with its 90% interval (blue: the true class)", fontsize="medium")
plt.show()

# %%
# **Conclusion.** Many errors are among the digits for which the model is least certain. Their probabilities have wide
# intervals: they may change with more training data.
