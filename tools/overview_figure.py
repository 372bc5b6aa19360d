"""The picture of README: coefficients beside long sampling, and a probability with its interval.

Run: python tools/overview_figure.py [docs/images/overview.png]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import cavity  # noqa: E402
from reference.mcmc import sample  # noqa: E402

Z = 1.645  # half a 90 % interval, in standard deviations
CHAINS, DRAWS = 64, 500


def draw(path: Path) -> None:
    data = load_diabetes(as_frame=True)
    X = (data.data - data.data.mean()) / data.data.std()
    y = (data.target > data.target.median()).to_numpy()
    # Sampling takes the prior variance as given, and so must the model.
    found = cavity.EPClassifier().fit(X, y)
    model = cavity.EPClassifier(prior_variance=found.prior_variance_ / found.prior_units_**2).fit(X, y)
    draws = by_sampling(model, X, y)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 4.0), layout="constrained", width_ratios=(1.25, 1.0))
    places = np.arange(X.shape[1])
    ends = np.quantile(draws[:, :-1], [0.05, 0.95], axis=0)
    left.axvline(0.0, color="0.8", linewidth=0.8)
    mean, std = model.coef_[0], model.coef_std_[0]
    left.errorbar(mean, places - 0.13, xerr=Z * std, fmt="o", capsize=3, label="cavity, one fit")
    middle = draws[:, :-1].mean(axis=0)
    left.errorbar(middle, places + 0.13, xerr=np.abs(ends - middle), fmt="s", capsize=3, label="long sampling")
    left.set_yticks(places, X.columns)
    left.set(xlabel="coefficient, with its 90 % interval", ylim=(len(places) - 0.4, -0.6))
    left.set_title(f"logistic regression of {len(X)} patients")
    left.legend()
    band(right, model, X, y)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def by_sampling(model: Any, X: Any, y: Any) -> np.ndarray:
    """Draws of the exact posterior, under the prior that the model found."""
    rows = np.column_stack([X, np.ones(len(X))])
    variance = np.append(model.prior_variance_, 100.0)
    prior = cavity.FactorialGaussian.from_moments(np.zeros(rows.shape[1]), variance)
    factors = cavity.LinearFactor.batches(cavity.losses.Logistic(), rows, np.where(y, 1.0, -1.0))
    posterior = model.posterior_[0]
    draws = sample(factors, prior, posterior.mean, posterior.covariance, chains=CHAINS, draws=DRAWS)
    return draws.values.reshape(-1, rows.shape[1])


def band(axes: Any, model: Any, X: Any, y: Any) -> None:
    """Probability along one feature, all others at their mean, with its interval."""
    grid = np.linspace(X["bmi"].min(), X["bmi"].max() + 2.0, 100)
    rows = X.iloc[:1].mul(0.0).loc[np.zeros(100, dtype=int)].assign(bmi=grid)
    low, high = np.quantile(model.predict_proba_samples(rows, 4000, random_state=0)[:, :, 1], [0.05, 0.95], axis=0)
    axes.fill_between(grid, low, high, color="C0", alpha=0.25, linewidth=0.0, label="its 90 % interval")
    axes.plot(grid, model.predict_proba(rows)[:, 1], color="C0", label="predicted probability")
    noise = np.random.default_rng(0).uniform(-0.03, 0.03, len(y))
    axes.plot(X["bmi"], y + noise, ".", color="0.6", markersize=3)
    axes.set(xlabel="body mass index, standardised", ylabel="progression above the median", title="how sure is it?")
    axes.legend(loc="center right")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "overview.png")
