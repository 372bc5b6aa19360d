"""
Random effects: shops and products
==================================

The model is ``sold ~ price + (1 | shop) + (1 | product)``. A column of strings in a DataFrame is a random effect, with
one coefficient per level and an estimated variance. Effects of shops with few rows are shrunk towards zero, and a new
shop has the distribution of all shops.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import cavity

SHOPS, PRODUCTS, ROWS = 25, 60, 1500
rng = np.random.default_rng(9)
sizes = rng.dirichlet(np.linspace(0.3, 3.0, SHOPS))
shop, product = rng.choice(SHOPS, p=sizes, size=ROWS), rng.integers(PRODUCTS, size=ROWS)
of_shop, of_product = np.sqrt(0.5) * rng.standard_normal(SHOPS), np.sqrt(1.5) * rng.standard_normal(PRODUCTS)
names = np.array([f"shop {k:02d}" for k in range(SHOPS)])
table = pd.DataFrame({"price": rng.standard_normal(ROWS), "shop": names[shop], "product": [f"p{k}" for k in product]})
odds = np.exp(-0.8 * table["price"] + of_shop[shop] + of_product[product])
sold = rng.random(ROWS) < odds / (1.0 + odds)

# %%
# The true variances are 0.5 for shops and 1.5 for products, and the true coefficient of the price is -0.8.
model = cavity.EPClassifier().fit(table, sold)
summary = model.summary(0.9)
print(summary.loc[["price", "variance of shop", "variance of product"], ["mean", "lower 90%", "upper 90%"]].round(2))

# %%
# To compare two shops, use ``contrast``, which takes their correlation into account.
counts = table["shop"].value_counts()
print(model.contrast({f"shop={counts.index[0]}": 1, f"shop={counts.index[1]}": -1}).round(2).to_string())
truth = pd.Series(of_shop, index=names)[sorted(counts.index)]
shops = summary.loc["shop=" + truth.index].set_axis(truth.index)
inside = float(((shops["lower 90%"] < truth) & (truth < shops["upper 90%"])).mean())
new = pd.DataFrame({"price": 0.0, "shop": [counts.index[0], counts.index[-1], "new shop"], "product": "p0"})
draws = model.predict_proba_samples(new, 2000, random_state=0)[:, :, 1]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 5.4), layout="constrained", width_ratios=(1.6, 1.0))
order = shops["mean"].sort_values().index
left.axvline(0.0, color="0.8", linewidth=0.8)
left.hlines(np.arange(order.size), *shops.loc[order, ["lower 90%", "upper 90%"]].T.to_numpy(), label="90% interval")
left.plot(shops.loc[order, "mean"], np.arange(order.size), "o", color="C0", markersize=4, label="posterior mean")
left.plot(truth[order], np.arange(order.size), "x", color="C3", label="true value")
left.set_yticks(np.arange(order.size), [f"{name} ({counts[name]})" for name in order], fontsize="small")
left.set(xlabel="effect on the log odds of a sale", ylabel="shop (number of rows)", title="effects of shops")
left.legend()
right.violinplot(draws, showextrema=False)
right.plot([1, 2, 3], model.predict_proba(new)[:, 1], "o", color="C0", label="mean of the posterior")
right.set_xticks([1, 2, 3], [f"{name}\n({counts.get(name, 0)} rows)" for name in new["shop"]])
right.set(ylim=(0.0, 1.0), title="product p0 at average price", ylabel="probability of a sale")
right.legend(loc="upper left")
plt.show()

# %%
# **Conclusion.** About nine of ten true effects lie in their 90% intervals, which are wider for shops with few rows.
# The prediction for a new shop uses the average effect, and is the least certain.
