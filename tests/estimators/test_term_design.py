"""The prior of terms has the units that estimators ask for."""

import numpy as np
import pytest

from cavity.estimators.term_design import TermDesign
from cavity.factors.columns import ColumnSums
from cavity.terms import Design, Formula

RNG = np.random.default_rng(0)
FRAME = {"x": RNG.normal(5.0, 2.0, 50), "g": RNG.integers(0, 6, 50), "t": np.arange(50) // 2}


def learn(text="~ x + (1 | g) + (x | t) + walk(t)", frame=FRAME, weak=2.5):
    design, rows = Design.learn(Formula.parse(text).terms, frame)
    return TermDesign(design, 100.0, weak), ColumnSums.of(rows)


def test_ordinary_columns_alone_are_brought_to_units():
    design, sums = learn()
    columns = design.columns(sums)
    assert columns.center[0] == pytest.approx(FRAME["x"].mean(), rel=1e-6)
    assert columns.unit[0] == pytest.approx(FRAME["x"].std(), rel=1e-6)
    assert not np.any(columns.center[1:])
    np.testing.assert_array_equal(columns.unit[1:], 1.0)
    np.testing.assert_array_equal(design.columns(None).center, 0.0)


@pytest.mark.parametrize("unit", [1.0, 20.0])
def test_units_of_the_linear_predictor_change_nothing_but_units(unit):
    design, sums = learn()
    columns = design.columns(sums)
    prior, groups = design.prior(columns, sums.sizes(columns), 0.5, 0.3, unit, 7.0)
    assert prior.mean[-1] == pytest.approx(7.0)
    variance = prior.independent.variance
    assert variance[-1] == pytest.approx(100.0 * unit**2)
    assert variance[0] == pytest.approx((2.5 * unit) ** 2, rel=1e-6)
    for group in groups:
        if group.block is None:
            assert variance[group.columns[0]] * group.size == pytest.approx(0.5)
            deviation = np.sqrt(group.size * variance[group.columns[0]])
        else:
            block = prior.blocks[group.block]
            deviation = np.sqrt(block.structure.spread(block.psi)[0])
            assert deviation == pytest.approx(unit * np.sqrt(0.5))
        assert group.rate * deviation == pytest.approx(0.3 * np.sqrt(0.5))


def test_several_predictors_share_hyperparameters():
    design, sums = learn()
    columns = design.columns(sums)
    prior, groups = design.prior(columns, sums.sizes(columns), 1.0, 0.3, predictors=3)
    assert prior.dim == 3 * (design.width + 1)
    assert [group.columns.size % 3 for group in groups] == [0, 0, 0]
    assert prior.blocks[0].columns.shape[0] == 3


def test_priors_are_the_same_where_terms_and_levels_are():
    one, _ = learn()
    assert one.same_prior(learn()[0])
    assert not one.same_prior(learn("~ x + (1 | g) + walk(t)")[0])
    assert not one.same_prior(learn(weak=25.0)[0])
    assert not one.same_prior(learn(frame={**FRAME, "g": FRAME["g"] + 1})[0])
    assert not one.same_prior(None)


def test_pairs_that_the_prior_couples():
    design, _ = learn("~ x + (x | g) + walk(t)")
    coupled = design.coupled()
    prior = design.terms.prior(1.0)
    assert coupled.nnz == prior.couplings.left.size
    assert learn("~ x + (1 | g)")[0].coupled() is None
