"""
A dose-response curve with outliers
===================================

A curve of four parameters is fitted to sixty measurements, six of which went wrong. ``curve_fit`` is called as SciPy's;
the absolute loss and the noise scale that is found make outliers harmless.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import optimize
from scipy.special import expit

import cavity

NAMES = ["bottom", "height", "log EC50", "steepness"]
TRUTH = np.array([0.5, 2.5, 0.3, 1.2])
rng = np.random.default_rng(0)


def curve(dose, bottom, height, log_ec50, steepness):
    """Response to a dose."""
    return bottom + height * expit(steepness * (np.log(dose) - log_ec50))


dose = np.geomspace(0.01, 100.0, 60)
response = curve(dose, *TRUTH) + 0.15 * rng.standard_normal(60)
response[3::10] += rng.uniform(1.0, 3.0, 6)

# %%
# The first two values are those of SciPy: parameters and their covariance. The last one is the posterior.
start = np.array([0.0, 1.0, 0.0, 1.0])
popt, pcov, scale, result = cavity.curve_fit(curve, dose, response, start, loss="absolute")
squares, covariance = optimize.curve_fit(curve, dose, response, start)
draws = result.sample(4000)  # exact, and from all parameters: the logarithm of the noise scale is the last
print(result.summary([*NAMES, "log scale"]), result.check(starts=0), sep="\n")

# %%
# ``predict`` gives mean and interval of any function of the parameters, here of the whole curve.
grid = np.geomspace(0.01, 100.0, 200)
band = result.predict(lambda t: curve(grid, *t[:4]))
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", width_ratios=(2, 1))
left.semilogx(dose, response, ".", color="0.5", label="data")
left.fill_between(grid, band.lower, band.upper, color="C0", alpha=0.35, label="cavity.curve_fit, 95% interval")
for name, color, p in (("true curve", "k", TRUTH), ("SciPy, least squares", "C1", squares)):
    left.plot(grid, curve(grid, *p), color=color, linewidth=1.0, label=name)
left.set(xlabel="dose", ylabel="response")
for k, (name, mean, deviation) in enumerate(
    (("draws", draws.mean[:4], draws.std[:4]), ("cavity", popt, np.sqrt(np.diag(pcov))),
     ("SciPy", squares, np.sqrt(np.diag(covariance))))
):  # fmt: skip
    right.errorbar(mean - TRUTH, np.arange(4) + 0.2 * (k - 1), xerr=2.0 * deviation, fmt="o", capsize=3, label=name)
right.set_yticks(range(4), NAMES)
right.set_xlabel("estimate - true value, ± 2 standard deviations")
left.legend(), right.legend()
plt.show()

# %%
# **Conclusion.** The outliers pull least squares away and widen its error bars. With the absolute loss the curve is
# found, and the error bars are those of exact draws, though this cost has a kink at every point.
