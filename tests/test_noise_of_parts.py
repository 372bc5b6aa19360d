"""The scale of noise from sums over parts of the rows, wherever these are."""

import numpy as np
import pytest

from cavity import losses, noise


@pytest.mark.parametrize(
    "loss",
    [
        losses.Squared(2.0),
        losses.Absolute(0.5),
        losses.Quantile(0.8, 3.0),
        losses.Huber(1.35, 0.2),
        losses.Gamma(0.3),
        losses.NegativeBinomial(1.5),
    ],
    ids=repr,
)
def test_the_scale_of_all_rows_follows_from_sums_over_parts_of_them(loss):
    rng = np.random.default_rng(0)
    m, v, w = rng.normal(size=300), rng.uniform(0.01, 0.2, 300), rng.integers(1, 4, 300).astype(float)
    y = m + rng.normal(size=300) if loss.targets == "reals" else np.exp(m) * rng.gamma(2.0, 0.5, 300)
    y = rng.poisson(y).astype(float) if loss.targets == "counts" else y
    expected = noise.estimate_scale(loss, y, m, v, w)
    for _ in range(8):  # far from the scale, a few rounds
        parts = [noise.scale_terms(loss, y[i::3], m[i::3], v[i::3], w[i::3]) for i in range(3)]
        loss = noise.with_scale(loss, noise.scale_of_terms(loss, sum(parts)))
    assert loss.scale == pytest.approx(expected, rel=1e-6)
