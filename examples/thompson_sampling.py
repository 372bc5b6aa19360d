"""
Thompson sampling for a logistic bandit
=======================================

Each of twenty arms has known features, and its probability of a reward depends on unknown coefficients. Thompson
sampling draws coefficients from the posterior and plays the best arm under the draw. The greedy policy uses the
posterior mean.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import cavity
from cavity.estimators import SortedStreamWarning

# A policy that learns is rewarded ever more often: its labels look sorted, as they should.
warnings.simplefilter("ignore", SortedStreamWarning)
ARMS, WIDTH, ROUNDS, BANDITS = 20, 8, 1000, 8


def play(policy, seed):
    """Cumulative regret of one bandit: the expected reward of the best arm minus that of the arms played."""
    rng = np.random.default_rng(seed)
    arms = rng.standard_normal((ARMS, WIDTH)) / np.sqrt(WIDTH)
    chances = 1.0 / (1.0 + np.exp(-arms @ (3.0 * rng.standard_normal(WIDTH))))
    model = cavity.EPClassifier(prior_variance=9.0, fit_intercept=False)
    model.partial_fit(arms[:1], [int(rng.random() < chances[0])], classes=[0, 1])
    regret = np.empty(ROUNDS)
    for t in range(ROUNDS):
        draws = policy == "Thompson sampling"
        theta = model.sample_coef(random_state=seed * ROUNDS + t)[0] if draws else model.coef_[0]
        arm = int(np.argmax(arms @ theta))
        regret[t] = chances.max() - chances[arm]
        model.partial_fit(arms[[arm]], [int(rng.random() < chances[arm])])
    return np.cumsum(regret)


# %%
# Each round adds one row with ``partial_fit``. Earlier rows need not be stored.
regrets = {name: np.array([play(name, seed) for seed in range(BANDITS)]) for name in ("Thompson sampling", "greedy")}
for name, regret in regrets.items():
    print(f"{name:18} mean regret after {ROUNDS} rounds {regret[:, -1].mean():.1f}, worst {regret[:, -1].max():.1f}")
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for name, regret in regrets.items():
    axes.plot(regret.mean(axis=0), label=name)
    axes.fill_between(np.arange(ROUNDS), regret.min(axis=0), regret.max(axis=0), alpha=0.15)
axes.set(xlabel="round", ylabel=f"cumulative regret, mean and range of {BANDITS}")
axes.legend()
plt.show()

# %%
# **Conclusion.** The greedy policy sometimes plays a poor arm forever, so its regret keeps growing. Thompson sampling
# explores uncertain arms and stops when the best arm is known.
