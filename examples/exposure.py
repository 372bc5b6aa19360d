"""
Counts with different exposures
===============================

Insurance policies have different durations, so their numbers of claims are not directly comparable. The logarithm of
the duration enters the model as ``offset=``. Two noise models are compared: Poisson and negative binomial.
"""

import matplotlib.pyplot as plt
import numpy as np

import cavity

SPREAD = 0.8  # standard deviation of the rate of a policy, relative to its mean
TRUTH = {"age + 10 years": -0.25, "in a town": 0.5}
rng = np.random.default_rng(0)


def policies(n):
    """Draw age in decades from 45, and whether in a town; policies in towns have shorter durations."""
    age, town = rng.uniform(-2.5, 2.5, n), rng.random(n) < 0.5
    exposure = np.where(town, rng.uniform(0.1, 1.0, n), rng.uniform(1.0, 3.0, n))
    rate = np.exp(0.2 + age * TRUTH["age + 10 years"] + town * TRUTH["in a town"])
    return np.column_stack([age, town]), exposure, rng.poisson(rate * rng.gamma(SPREAD**-2, SPREAD**2, n) * exposure)


# %%
# The log evidence shows which noise model fits better. The share of new counts below their 95% quantile shows whether
# the intervals are correct.
X, exposure, claims = policies(2000)
X_new, exposure_new, claims_new = policies(5000)
models, evidence, below = {}, {}, {}
for loss in ("poisson", "negative_binomial"):
    models[loss] = model = cavity.EPRegressor(loss=loss).fit(X, claims, offset=np.log(exposure))
    upper = model.predict(X_new, quantile=0.95, offset=np.log(exposure_new))
    evidence[loss], below[loss] = float(model.log_evidence_), float(np.mean(claims_new <= upper))
    print(f"{loss:18} log evidence {evidence[loss]:.0f}, new counts below their 95% quantile: {below[loss]:.1%}")
models["poisson, no exposure"] = cavity.EPRegressor(loss="poisson").fit(X, claims)
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
axes.axvline(1.0, color="0.8", linewidth=0.8)
axes.vlines(np.exp(list(TRUTH.values())), [-0.3, 0.7], [0.3, 1.3], color="0.2", linestyle=":", label="true value")
for k, (name, model) in enumerate(models.items()):
    low, high = (np.exp(model.coef_ + sign * 1.645 * model.coef_std_) for sign in (-1, 1))
    places = np.arange(2) + 0.18 * (k - 1)
    axes.hlines(places, low, high, color=f"C{k}", linewidth=2)
    axes.plot(np.exp(model.coef_), places, "o", color=f"C{k}", markersize=5, label=name)
axes.set_yticks([0, 1], TRUTH)
axes.set(xlabel="factor on the claim rate, with its 90% interval", ylim=(1.5, -0.5))
axes.legend(loc="upper right")
plt.show()

# %%
# **Conclusion.** Without the exposure, towns seem to have fewer claims, because their policies have shorter durations.
# The intervals of the Poisson model are too narrow; the negative binomial model has the higher evidence.
