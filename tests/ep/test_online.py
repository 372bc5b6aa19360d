"""Online updates: rows that leave a stream leave what they said."""

import numpy as np
import pytest

from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.online import retire, update
from cavity.ep.posteriors import DenseNatural
from cavity.factors.rows import Rows
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Absolute, Hinge, Logistic, Poisson
from cavity.losses.joint import Normal, Softmax


def rows_for(loss, n=120, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    z = X @ [1.0, -0.5, 0.0] + rng.normal(size=n)
    y = {"signs": np.sign(z), "counts": rng.poisson(np.exp(0.3 * z)), "reals": z, "classes": np.digitize(z, [-1, 1])}
    return Rows.arrange(X, y[loss.targets][None].astype(float), None, True)


@pytest.mark.parametrize("loss", [Logistic(), Hinge(), Poisson(), Absolute(0.7), Normal(), Softmax(3)], ids=repr)
def test_rows_that_leave_leave_their_sites(loss):
    """At a fixed point nothing changes: the rest of the rows, and what the others said, make the same posterior."""
    rows = rows_for(loss)
    dim = rows.shape[1] * getattr(loss, "predictors", 1)
    prior, nothing = FactorialGaussian.from_moments(np.zeros(dim), np.full(dim, 2.0)), DenseNatural.zero(dim)
    whole = update(loss, rows, [nothing], [prior], Hyperparameters()).results[0]
    left = retire(rows, [whole], [nothing], [prior], 50)
    assert left.kept.size == 50
    assert sorted([*left.kept, *left.gone]) == list(range(120))
    stay = Rows.arrange(rows.X[rows.order[left.kept]], rows.targets[:, left.kept], None, True)
    again = update(loss, stay, left.known, [prior], Hyperparameters()).results[0]
    assert np.max(np.abs(again.mean - whole.mean) / whole.std) < 0.03
    np.testing.assert_allclose(again.std, whole.std, rtol=0.02)
    assert again.log_evidence == pytest.approx(whole.log_evidence, abs=0.05)


def test_sites_are_found_under_the_wider_prior():
    """Under a prior that is next to zero those of kinked losses are lines, and say nothing of any coefficient."""
    rows = rows_for(Absolute(0.7))
    narrow, wide = (FactorialGaussian.from_moments(np.zeros(4), np.full(4, v)) for v in (1e-12, 1.0))
    nothing = DenseNatural.zero(4)
    found = update(Absolute(0.7), rows, [nothing], [narrow], Hyperparameters()).results[0]
    left = retire(rows, [found], [nothing], [wide], 0)
    whole = update(Absolute(0.7), rows, [nothing], [wide], Hyperparameters()).results[0]
    posterior = left.known[0].posterior(wide)
    assert np.max(np.abs(posterior.mean - whole.mean) / whole.std) < 0.05
    np.testing.assert_allclose(np.sqrt(posterior.variance), whole.std, rtol=0.05)
