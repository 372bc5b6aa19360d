"""Counts over exposures: claims of policies that ran for part of a year, by Poisson and by negative binomial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from _script import run
from scipy import stats

import cavity

LOSSES = {"poisson": "Poisson", "negative_binomial": "negative binomial"}
# Standard deviation of a policy's own rate, as a share of its mean: why counts vary more than Poisson's.
SPREAD = 0.8


def main(out: Path) -> dict[str, Any]:
    """Fit claims with and without the exposure; compare ratios of rates, evidence and coverage of new counts."""
    rng = np.random.default_rng(0)
    X, exposure, claims = policies(2000, rng)
    new, new_exposure, new_claims = policies(5000, rng)
    found, numbers = {}, {}
    for loss, name in LOSSES.items():
        model = cavity.EPRegressor(loss=loss).fit(X, claims, offset=np.log(exposure))
        upper = model.predict(new, quantile=0.95, offset=np.log(new_exposure))
        numbers[f"log evidence, {name}"] = float(model.log_evidence_)
        numbers[f"share of new counts up to the 95% quantile, {name}"] = float(np.mean(new_claims <= upper))
        found[name] = model
    found["Poisson without exposure"] = cavity.EPRegressor(loss="poisson").fit(X, claims)
    numbers["spread of rates found, 0.8 in truth"] = float(found["negative binomial"].scale_)
    draw(found, X, exposure, claims, out / "exposure.png")
    return numbers


def policies(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Age in decades from 45 and whether in a town; people in towns have been insured for a shorter time."""
    age, town = rng.uniform(-2.5, 2.5, n), rng.random(n) < 0.5
    exposure = np.where(town, rng.uniform(0.1, 1.0, n), rng.uniform(1.0, 3.0, n))
    rate = np.exp(0.2 - 0.25 * age + 0.5 * town) * rng.gamma(SPREAD**-2, SPREAD**2, n)
    return np.column_stack([age, town]), exposure, rng.poisson(rate * exposure)


def draw(found: dict[str, Any], X: np.ndarray, exposure: np.ndarray, claims: np.ndarray, path: Path) -> None:
    """Left, ratios of rates with intervals; right, how often every count came, beside what the models expect."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 4.2), layout="constrained")
    left.axvline(1.0, color="0.8", linewidth=0.8)
    left.vlines(np.exp([-0.25, 0.5]), [-0.3, 0.7], [0.3, 1.3], color="0.2", linestyle=":", label="truth")
    for k, (name, model) in enumerate(found.items()):
        mean, width = model.coef_, 1.645 * model.coef_std_
        places = np.arange(2) + 0.18 * (k - 1)
        left.hlines(places, np.exp(mean - width), np.exp(mean + width), color=f"C{k}", linewidth=2)
        left.plot(np.exp(mean), places, "o", color=f"C{k}", markersize=4, label=name)
    left.set_yticks([0, 1], ["ten years\nolder", "in a town"])
    left.set(xlabel="ratio of rates, with 90% intervals", ylim=(1.5, -0.5))
    left.legend(loc="upper right", fontsize="small")
    counts = np.arange(11)
    right.bar(counts, [np.sum(claims == k) for k in counts], color="0.85", label="observed")
    for k, name in enumerate(LOSSES.values()):
        mean = found[name].predict(X, offset=np.log(exposure))[:, None]
        alpha = found[name].scale_ ** 2
        law = stats.nbinom(1.0 / alpha, 1.0 / (1.0 + alpha * mean)) if k else stats.poisson(mean)
        right.plot(counts, law.pmf(counts).sum(axis=0), "o-", color=f"C{k}", markersize=4, label=f"expected, {name}")
    right.set(xlabel="claims of a policy", ylabel="policies", xticks=counts)
    right.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    run(main, __doc__)
