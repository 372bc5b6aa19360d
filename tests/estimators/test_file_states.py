"""A model from a file whose parts do not fit together is refused, whatever part it is."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from estimator_cases import (
    assert_same_model,
    classifier,
    line,
    product_classifier,
    regressor,
    three_classes,
    two_classes,
)
from scipy import sparse

from cavity import FactorialGaussian
from cavity.estimators.files import check_state
from cavity.estimators.parameters import Plan
from cavity.losses import Squared

# Built when a test asks for them: at import every test process would compile and fit before the first test.
BUILDERS = {
    "full": lambda: classifier().fit(*two_classes()),
    "sparse": lambda: classifier(covariance="sparse").fit(*two_classes()),
    "diagonal": lambda: product_classifier().fit(*two_classes()),
    "stream": lambda: classifier().partial_fit(*two_classes(), [0, 1]),
    "three": lambda: classifier().fit(*three_classes()),
    "regression": lambda: regressor().fit(*line()),
    "regression stream": lambda: regressor().partial_fit(*line()),
}
KINDS = list(BUILDERS)


@pytest.fixture(scope="module")
def fitted():
    return {kind: build() for kind, build in BUILDERS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_consistent_and_comes_back_from_a_pickle(kind, fitted):
    model = fitted[kind]
    check_state(model)
    again = pickle.loads(pickle.dumps(model))
    check_state(again)
    assert_same_model(again, model)
    assert (again.plan_, again.status_, again.trace_) == (model.plan_, model.status_, model.trace_)


def with_first(name, change):
    """Change the first of several parts."""

    def spoil(model):
        parts = list(getattr(model, name))
        parts[0] = change(parts[0])
        setattr(model, name, tuple(parts))

    return spoil


def setting(name, value):
    return lambda model: setattr(model, name, value)


def removing(name):
    return lambda model: delattr(model, name)


ANY = {
    "far too many features": setting("n_features_in_", 200_000),
    "features that are no number": setting("n_features_in_", "4"),
    "no features": setting("n_features_in_", 0),
    "an intercept that is no flag": setting("_intercept", "yes"),
    "no intercept": setting("_intercept", False),
    "no prior": setting("_priors", ()),
    "a prior of other columns": with_first("_priors", lambda p: FactorialGaussian.from_moments(np.zeros(2), 1.0)),
    "an improper prior": with_first("_priors", lambda p: FactorialGaussian.uniform(p.dim)),
    "a prior that is no number": with_first(
        "_priors", lambda p: FactorialGaussian(0.0, np.full(p.dim, np.nan), p.precision)
    ),
    "nothing known": setting("_knowledge", ()),
    "something else known": with_first("_knowledge", lambda k: None),
    "another plan": setting("plan_", Plan("banded", "so")),
    "no plan": removing("plan_"),
    "no totals": removing("_totals"),
    "totals that are no numbers": lambda m: setattr(m, "_totals", m._totals._replace(rows=np.nan)),
    "no loss": removing("_loss"),
    "a loss of another kind": setting("_loss", 3.0),
    "names of other columns": setting("feature_names_in_", np.array(["a"], dtype=object)),
    "no status": setting("status_", "fine"),
}
DENSE = {
    "not finite": lambda k: replace(k, information=np.full_like(k.information, np.nan)),
    "another shape": lambda k: replace(k, information=k.information[:2, :2]),
    "not symmetric": lambda k: replace(k, information=k.information + np.triu(np.ones_like(k.information), 1)),
    "single precision": lambda k: replace(k, information=k.information.astype(np.float32)),
    "improper": lambda k: replace(k, information=-1e6 * np.eye(len(k.shift))),
    "a shift of another shape": lambda k: replace(k, shift=k.shift[:2]),
    "an infinite shift": lambda k: replace(k, shift=k.shift + np.inf),
    "an infinite scale": lambda k: replace(k, log_scale=np.inf),
}
SPARSE = {
    "not finite": lambda k: replace(k, information=k.information * np.nan),
    "another shape": lambda k: replace(k, information=sparse.csc_array((2, 2))),
    "a lower triangle": lambda k: replace(k, information=sparse.csc_array(k.information.T)),
    "a border beyond": lambda k: replace(k, border=np.array([10**6])),
    "a border twice": lambda k: replace(k, border=np.array([1, 1])),
    "a border of fractions": lambda k: replace(k, border=np.array([0.5])),
    "an infinite shift": lambda k: replace(k, shift=k.shift + np.inf),
    "an infinite scale": lambda k: replace(k, log_scale=-np.inf),
}
DIAGONAL = {
    "not finite": lambda k: replace(k, sites=FactorialGaussian(0.0, k.sites.shift * np.nan, k.sites.precision)),
    "another shape": lambda k: replace(k, sites=FactorialGaussian.uniform(2)),
    "improper": lambda k: replace(k, sites=FactorialGaussian(0.0, k.sites.shift, -1e9 + 0.0 * k.sites.precision)),
}


def assert_refused(model, spoil):
    spoilt = copy.deepcopy(model)
    for name in ("_posteriors", "_streams"):
        spoilt.__dict__.pop(name, None)
    spoil(spoilt)
    with pytest.raises(ValueError, match=r"not consistent|not proper|must"):
        check_state(spoilt)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ANY)
def test_parts_that_every_model_has(kind, what, fitted):
    assert_refused(fitted[kind], ANY[what])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("full", DENSE),
        ("stream", DENSE),
        ("three", DENSE),
        ("regression", DENSE),
        ("sparse", SPARSE),
        ("diagonal", DIAGONAL),
    ],
)
def test_what_rows_say(kind, changes, fitted):
    for change in changes.values():
        assert_refused(fitted[kind], with_first("_knowledge", change))


@pytest.mark.parametrize("classes", [np.array([0]), np.array([0, 1, 2]), np.zeros((2, 2)), None, "ab"])
def test_classes(classes, fitted):
    assert_refused(fitted["full"], setting("classes_", classes))


@pytest.mark.parametrize(
    "spoil",
    [
        setting("y_scale_", 0.0),
        setting("y_scale_", -1.0),
        setting("y_scale_", np.nan),
        setting("y_scale_", None),
        setting("y_offset_", np.inf),
        setting("_scales", (np.nan, 1.0)),
        setting("_scales", None),
        setting("_loss", Squared(-1.0)),
        setting("_loss", Squared(np.nan)),
    ],
)
def test_units_and_scales_of_a_regression(spoil, fitted):
    assert_refused(fitted["regression"], spoil)
