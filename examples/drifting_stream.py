"""
A stream that drifts
====================

Rows arrive in mini-batches, and the true coefficients change slowly over time. Each model first predicts a mini-batch
and then learns from it.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

import cavity

ROWS, WIDTH, STEPS = 100, 10, 400
rng = np.random.default_rng(0)


def mini_batch(step):
    """Rows of a logistic model whose coefficients make one full turn over the stream."""
    angle = 2.0 * np.pi * step / STEPS
    theta = np.zeros(WIDTH)
    theta[:4] = 3.0 * np.array([np.cos(angle), np.sin(angle), np.sin(angle), -np.cos(angle)])
    X = rng.standard_normal((ROWS, WIDTH))
    return X, (X @ theta + rng.logistic(size=ROWS) > 0.0).astype(int)


# %%
# ``halflife=`` is the number of rows after which a row counts half. Without it, all rows have the same weight.
models = {
    "EPClassifier, no half-life": (cavity.EPClassifier(prior_variance=4.0), {}),
    "EPClassifier, halflife=1400": (cavity.EPClassifier(prior_variance=4.0), {"halflife": 1400}),
    "SGDClassifier": (SGDClassifier(loss="log_loss", random_state=0), {}),
}
losses = {name: [] for name in models}
for step in range(STEPS):
    X, y = mini_batch(step)
    for name, (model, options) in models.items():
        if step:
            losses[name].append(log_loss(y, model.predict_proba(X), labels=[0, 1]))
        model.partial_fit(X, y, classes=[0, 1], **options)
second_half = {name: float(np.mean(values[STEPS // 2 :])) for name, values in losses.items()}
for name, loss in second_half.items():
    print(f"{name:27} mean log loss in the second half {loss:.3f}")
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for name, values in losses.items():
    axes.plot(np.convolve(values, np.full(20, 0.05), mode="valid"), label=name)
axes.set(xlabel="mini-batch (100 rows each)", ylabel="log loss, moving average of 20 batches", ylim=(0.2, 1.2))
axes.legend()
plt.show()

# %%
# **Conclusion.** Without a half-life, the model relies on old rows, and its predictions get worse. With a half-life it
# follows the drift, and its loss stays below that of stochastic gradient descent, without a learning rate to tune.
