"""Random effects: y ~ price + (1 | shop) + (1 | product), from the columns of a DataFrame as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from _script import run

import cavity

SHOPS, PRODUCTS, SALES = 25, 60, 1500
# Variances of the effects behind the data.
SHOP, PRODUCT = 0.5, 1.5
# A typical draw: of 16 seeds, 88% of the shops lie within their 90% intervals.
SEED = 9


def main(out: Path) -> dict[str, Any]:
    """Fit sold or not; compare the effects of shops with the truth, and predict for a shop never seen."""
    table, sold, truth = simulate(np.random.default_rng(SEED))
    model = cavity.EPClassifier().fit(table, sold)
    summary = model.summary(0.9)
    shops = summary.loc[[f"shop={name}" for name in truth.index]].set_axis(truth.index)
    inside = (shops["lower 90%"] < truth) & (truth < shops["upper 90%"])
    counts = table["shop"].value_counts()
    new = pd.DataFrame({"price": 0.0, "shop": [counts.index[0], counts.index[-1], "a new shop"], "product": "p0"})
    draw(shops, truth, counts, model, new, out / "shops_and_products.png")
    variances = summary.loc[["variance of shop", "variance of product"], ["mean", "lower 90%", "upper 90%"]]
    return {
        "coefficient of price, -0.8 in truth": float(summary.loc["price", "mean"]),
        "share of shops within 90% intervals": float(inside.mean()),
        **{
            f"{name}, with interval": " ".join(f"{number:.2f}" for number in row)
            for name, row in zip(variances.index, variances.to_numpy(), strict=True)
        },
        "deviation of log odds: shop of most rows, of fewest, new": " ".join(
            f"{std:.2f}" for std in model.decision_function(new, return_std=True)[1]
        ),
    }


def simulate(rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray, pd.Series]:
    """Sales in shops of very different size; the true effects of the shops by name."""
    sizes = rng.dirichlet(np.linspace(0.3, 3.0, SHOPS))
    shop, product = rng.choice(SHOPS, p=sizes, size=SALES), rng.integers(PRODUCTS, size=SALES)
    of_shop = np.sqrt(SHOP) * rng.standard_normal(SHOPS)
    of_product = np.sqrt(PRODUCT) * rng.standard_normal(PRODUCTS)
    names = np.array([f"shop {k:02d}" for k in range(SHOPS)])
    table = pd.DataFrame(
        {"price": rng.standard_normal(SALES), "shop": names[shop], "product": [f"p{k}" for k in product]}
    )
    odds = np.exp(-0.8 * table["price"] + of_shop[shop] + of_product[product])
    sold = rng.random(SALES) < odds / (1.0 + odds)
    present = np.unique(shop)
    return table, sold.to_numpy(), pd.Series(of_shop[present], index=names[present])


def draw(shops: pd.DataFrame, truth: pd.Series, counts: pd.Series, model: Any, new: pd.DataFrame, path: Path) -> None:
    """Left, effects against the truth; right, the probability of a sale in a large, a small and a new shop."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.0, 5.4), layout="constrained", gridspec_kw={"width_ratios": [1.6, 1.0]}
    )
    order = shops["mean"].sort_values().index
    places = np.arange(len(order))
    ends = shops.loc[order]
    left.axvline(0.0, color="0.8", linewidth=0.8)
    left.hlines(places, ends["lower 90%"], ends["upper 90%"], color="C0", linewidth=1.5, label="90% interval")
    left.plot(ends["mean"], places, "o", color="C0", markersize=4, label="posterior mean")
    left.plot(truth[order], places, "x", color="C3", markersize=6, label="truth")
    left.set_yticks(places, [f"{name} ({counts[name]})" for name in order], fontsize="small")
    left.set(xlabel="effect on the log odds of a sale", ylabel="shop (number of rows)", ylim=(-0.8, len(order) - 0.2))
    left.set_title("effects of shops")
    left.legend(loc="lower right")
    draws = model.predict_proba_samples(new, 2000, random_state=0)[:, :, 1]
    labels = [f"{name}\n({counts.get(name, 0)} rows)" for name in new["shop"]]
    parts = right.violinplot(draws, showextrema=False)
    for body in parts["bodies"]:
        body.set(facecolor="C0", alpha=0.3)
    right.plot([1, 2, 3], model.predict_proba(new)[:, 1], "o", color="C0", label="predicted probability")
    right.set_xticks([1, 2, 3], labels)
    right.set(ylim=(0.0, 1.0), ylabel="probability of a sale of product p0", title="one product in three shops")
    right.legend(loc="upper left")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    run(main, __doc__)
