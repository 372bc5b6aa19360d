"""A model from a file whose parts do not fit together is refused, whatever part it is."""

from __future__ import annotations

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
    state_of,
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
    check_state(state_of(model))
    again = pickle.loads(pickle.dumps(model))
    check_state(state_of(again))
    assert_same_model(again, model)
    assert (again.plan_, again.status_, again.trace_) == (model.plan_, model.status_, model.trace_)


def with_first(name, change):
    """Change the first of several parts."""
    return lambda state: state.revised(**{name: (change(getattr(state, name)[0]), *getattr(state, name)[1:])})


def setting(name, value):
    return lambda state: state.revised(**{name: value})


def of(part, name, value):
    """Change a part of a part."""
    return lambda state: state.revised(**{part: replace(getattr(state, part), **{name: value})})


ANY = {
    "far too many features": of("design", "features", 200_000),
    "features that are no number": of("design", "features", "4"),
    "no features": of("design", "features", 0),
    "an intercept that is no flag": of("design", "intercept", "yes"),
    "no intercept": of("design", "intercept", False),
    "prior means of other columns": of("design", "means", np.zeros(2)),
    "groups beyond the columns": of("design", "groups", {"a": np.array([10**6])}),
    "no design": setting("design", None),
    "no prior": setting("priors", ()),
    "a prior of other columns": with_first("priors", lambda p: FactorialGaussian.from_moments(np.zeros(2), 1.0)),
    "an improper prior": with_first("priors", lambda p: FactorialGaussian.uniform(p.dim)),
    "a prior that is no number": with_first(
        "priors", lambda p: FactorialGaussian(0.0, np.full(p.dim, np.nan), p.precision)
    ),
    "no sites": setting("sites", ()),
    "other sites": with_first("sites", lambda k: None),
    "another plan": setting("plan", Plan("banded", "so")),
    "no plan": setting("plan", None),
    "no totals": setting("totals", None),
    "totals that are no numbers": lambda state: state.revised(totals=state.totals._replace(rows=np.nan)),
    "no targets": setting("targets", None),
    "no loss": setting("loss", None),
    "a loss of another kind": setting("loss", 3.0),
    "names of other columns": of("design", "feature_names", np.array(["a"], dtype=object)),
    "no status": setting("status", "fine"),
    "no stream": setting("stream", None),
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
    state = spoil(replace(state_of(model), found=None, live=None, sites=state_of(model).natural))
    with pytest.raises(ValueError, match=r"not consistent|not proper|must"):
        check_state(state)


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
        assert_refused(fitted[kind], with_first("sites", change))


@pytest.mark.parametrize("classes", [np.array([0]), np.array([0, 1, 2]), np.zeros((2, 2)), None, "ab"])
def test_classes(classes, fitted):
    assert_refused(fitted["full"], of("targets", "classes", classes))


@pytest.mark.parametrize(
    "spoil",
    [
        of("targets", "units", (0.0, 0.0)),
        of("targets", "units", (-1.0, 0.0)),
        of("targets", "units", (np.nan, 0.0)),
        of("targets", "units", (None, 0.0)),
        of("targets", "units", (1.0, np.inf)),
        setting("noise", (np.nan, 1.0)),
        setting("noise", None),
        setting("loss", Squared(-1.0)),
        setting("loss", Squared(np.nan)),
    ],
)
def test_units_and_scales_of_a_regression(spoil, fitted):
    assert_refused(fitted["regression"], spoil)
