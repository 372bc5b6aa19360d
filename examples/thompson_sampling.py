"""
Thompson sampling on a logistic bandit
======================================

Twenty arms have known features, and one hidden vector decides how often each pays. Thompson sampling draws coefficients
from the posterior and plays the arm that is best under the draw; the plug-in policy always trusts the mean.
"""

import matplotlib.pyplot as plt
import numpy as np

import cavity

ARMS, WIDTH, ROUNDS, BANDITS = 20, 8, 1000, 8


def play(policy, seed):
    """Cumulated regret of one bandit: how much less was won than by the best arm."""
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
# Every round is one row of a stream: ``partial_fit`` takes it in, and earlier rows need not be kept.
regrets = {name: np.array([play(name, seed) for seed in range(BANDITS)]) for name in ("Thompson sampling", "plug-in")}
for name, regret in regrets.items():
    print(f"{name:18} mean regret after {ROUNDS} rounds {regret[:, -1].mean():.1f}, worst {regret[:, -1].max():.1f}")
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for name, regret in regrets.items():
    axes.plot(regret.mean(axis=0), label=name)
    axes.fill_between(np.arange(ROUNDS), regret.min(axis=0), regret.max(axis=0), alpha=0.15)
axes.set(xlabel="round", ylabel=f"regret, mean and range of {BANDITS} bandits")
axes.legend()
plt.show()

# %%
# **Conclusion.** The plug-in policy is sometimes lucky and sometimes stays with a poor arm for ever. Draws from the
# posterior try what is still uncertain, and stop trying once it is known.
