"""
Slopes of shops, and a season
=============================

Visitors of twenty shops over three years: every shop has its own level and its own growth, and all share a season. One
formula has it all, as lme4 and mgcv write it.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import cavity

rng = np.random.default_rng(0)
shops, weeks = 20, 156
table = pd.DataFrame({"shop": np.repeat(np.arange(shops), weeks), "week": np.tile(np.arange(weeks), shops)})
table["year"], table["season"] = table["week"] / 52.0, table["week"] % 52
level, growth = rng.normal(3.0, 0.5, shops), rng.normal(0.1, 0.15, shops)
season = 0.4 * np.sin(2.0 * np.pi * np.arange(52) / 52.0) + 0.3 * np.exp(-0.5 * ((np.arange(52) - 50) / 1.5) ** 2)
log_mean = (level[table["shop"]] + growth[table["shop"]] * table["year"]).to_numpy() + season[table["season"]]
table["visitors"] = rng.poisson(np.exp(log_mean))
seen = table[rng.random(len(table)) < 0.1]  # some weeks only, of some shops

# %%
# ``(year | shop)`` are levels and slopes of shops, which may be correlated; ``s(season)`` is the curve that all share.
# Bands and intervals are those of the posterior.
model = cavity.EPRegressor("poisson", formula="visitors ~ year + (year | shop) + s(season)").fit(seen)
print(model.summary().loc["components"].iloc[:, :4].round(2))
slopes = model.effects("shop").loc["year | shop"] + model.coef_[0]
names = slopes.index.astype(int).to_numpy()
each = [np.polyfit(own["year"], np.log(own["visitors"] + 0.5), 1)[0] for _, own in seen.groupby("shop")]
alone, found = np.array(each)[names], slopes["mean"].to_numpy()
errors = [float(np.sqrt(np.mean((slope - growth[names]) ** 2))) for slope in (found, alone)]
curve = model.partial_effect("season", np.arange(52.0), level=0.9)
truth = season - np.mean(season[seen["season"]])
covered = np.mean((curve["lower 90%"] < truth) & (truth < curve["upper 90%"]))
print(f"error of the slopes {errors[0]:.3f}, of those of every shop alone {errors[1]:.3f}")
print(f"the 90% band covers {covered:.0%} of the season")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
order = np.argsort(found)
ends = np.abs(slopes[["lower 95%", "upper 95%"]].to_numpy() - found[:, None]).T
left.errorbar(found[order], np.arange(shops), xerr=ends[:, order], fmt="o", label="model, 95% interval")
left.plot(alone[order], np.arange(shops), "x", color="0.5", label="every shop alone")
left.plot(growth[names[order]], np.arange(shops), "k|", markersize=10, label="true growth")
left.set(xlabel="growth per year (log)", yticks=[], ylabel="shops", title="slopes")
left.legend(fontsize="small")
right.fill_between(curve["season"], curve["lower 90%"], curve["upper 90%"], alpha=0.3, label="90% band")
right.plot(curve["season"], curve["mean"])
right.plot(truth, "k:", label="true season")
right.set(xlabel="week of the year", ylabel="effect (log)", title="season")
right.legend(fontsize="small")
plt.show()

# %%
# **Conclusion.** Slopes of shops are nearer to the truth than those of every shop alone, since all shops inform each
# other, and the band of the season covers the true curve: levels, growth and season are found in one fit.
