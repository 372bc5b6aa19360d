"""A design puts terms side by side; it comes back from plain form and from pickles, and shows terms one by one."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from cavity.terms import Design, Effects, Formula, Known, Linear, Smooth
from cavity.terms.prior import StructuredPrior

RNG = np.random.default_rng(0)
N = 200
FRAME = pd.DataFrame(
    {
        "x": RNG.normal(size=N),
        "z": RNG.normal(size=N),
        "t": RNG.integers(0, 12, N),
        "g": RNG.integers(0, 30, N),
        "h": RNG.choice(["a", "b", "c"], N),
        "r": RNG.choice(["n", "e", "s", "w"], N),
    }
)
GIVEN = {
    "ring": [("n", "e"), ("e", "s"), ("s", "w"), ("w", "n")],
    "A": pd.DataFrame(0.5 + 0.5 * np.eye(3), list("abc"), list("abc")),
}
EVERYTHING = (
    "~ poly(z, 2) + C(h) + s(x, k=6) + s(z, k=5, by=h) + (x | g) + (z || h) + (1 | g:h) + walk(t, order=2) "
    "+ ar(t) + walk(t, period=12) + neighbours(r, ring) + known(h, A)"
)


def design(text=EVERYTHING, frame=FRAME, weights=None):
    return Design.learn(Formula.parse(text, GIVEN).terms, frame, weights)


def dense(rows):
    return rows.toarray() if sparse.issparse(rows) else rows


def test_columns_names_parts_and_prior_fit_together():
    found, rows = design()
    assert rows.shape == (N, found.width) == (N, len(found.names))
    assert len(set(found.names)) == found.width
    assert [p.places.stop for p in found.parts[:-1]] == [p.places.start for p in found.parts[1:]]
    assert found.parts[-1].places.stop == found.width
    assert list(found.places) == [
        *("linear", "s(x)", "s(z, by=h)", "(x | g)", "(z || h)", "(1 | g:h)", "walk(t, order=2)", "ar(t)"),
        *("walk(t, period=12)", "neighbours(r)", "known(h)"),
    ]
    assert set(found.variables) == set(FRAME)
    prior = found.prior(1.0)
    assert prior.dim == found.width + 1
    assert prior.is_proper
    np.testing.assert_allclose(found.means, dense(rows).mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("way", ["plain", "pickle"])
def test_a_design_comes_back(way):
    found, rows = design()
    again = Design.of(found.plain()) if way == "plain" else pickle.loads(pickle.dumps(found))
    assert again.names == found.names
    np.testing.assert_array_equal(dense(again.matrix(FRAME)), dense(rows))
    np.testing.assert_array_equal(again.means, found.means)
    for one, other in zip(found.parts, again.parts, strict=True):
        assert (one.part.label, one.places, one.block) == (other.part.label, other.places, other.block)
        if one.part.structure is not None:
            psi = one.part.structure.start(2.0)
            np.testing.assert_array_equal(other.part.structure.entries(psi), one.part.structure.entries(psi))
    for label in found.places:
        np.testing.assert_array_equal(dense(again.partial(label, FRAME)), dense(found.partial(label, FRAME)))


def test_tables_without_rows_have_no_rows():
    found, _ = design()
    assert found.matrix(FRAME.iloc[:0]).shape == (0, found.width)


def test_plain_form_has_names_numbers_and_arrays_only():
    def check(value):
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
            any(map(check, value.values()))
        elif isinstance(value, list):
            any(map(check, value))
        else:
            assert value is None or isinstance(value, str | int | float | bool | np.ndarray)

    check(design()[0].plain())


@pytest.mark.parametrize("damage", ["kind", "field", "means", "terms"])
def test_plain_forms_that_do_not_fit_are_refused(damage):
    plain = design("~ x + (1 | g)")[0].plain()
    if damage == "kind":
        plain["terms"][0]["kind"] = "Anything"
    elif damage == "field":
        del plain["terms"][0]["spread"]
    elif damage == "means":
        plain["means"] = plain["means"][:-1]
    else:
        plain["terms"] = plain["terms"][:1]
    with pytest.raises(ValueError, match="the model is not consistent"):
        Design.of(plain)


def test_terms_of_ones_own_have_no_plain_form():
    class Mine:
        label, names, parts, variables, shown = "mine", ["mine"], (), (), "coefficients"

        def columns(self, frame):
            return np.ones((len(frame), 1))

        def learn(self, frame, weights):
            return self

        def linear(self, frame):
            return ()

    found, rows = Design.learn([Mine()], FRAME)
    np.testing.assert_array_equal(rows, 1.0)
    with pytest.raises(ValueError, match="terms of one's own, such as Mine, are not written to files"):
        found.plain()


@pytest.mark.parametrize("text", ["~ x + (1 | g)", "~ s(x) + s(z) + t", "~ 0 + h + walk(t)"])
def test_wide_designs_are_sparse_and_narrow_ones_dense(text):
    found, rows = design(text)
    assert not sparse.issparse(rows)
    wide, sparse_rows = design(f"{text} + (1 | g:h) + (1 | g:t)")
    assert wide.width > 200
    assert sparse.issparse(sparse_rows)
    np.testing.assert_allclose(sparse_rows[:, : found.width].toarray()[:, 0], rows[:, 0])


def test_terms_that_are_left_out_need_no_columns():
    found, rows = design("~ x + s(z, k=5) + (x | g) + (1 | h)")
    left = dense(found.matrix(FRAME[["x", "z", "h"]], exclude=["(x | g)"]))
    place = found.places["(x | g)"]
    assert not np.any(left[:, place])
    kept = np.delete(np.arange(found.width), np.arange(place.start, place.stop))
    np.testing.assert_array_equal(left[:, kept], dense(rows)[:, kept])
    with pytest.raises(ValueError, match=r"exclude names the term '\(1 \| hh\)'; did you mean '\(1 \| h\)'"):
        found.matrix(FRAME, exclude=["(1 | hh)"])


def test_partial_effects_have_their_straight_part_and_mean_zero():
    found, rows = design("~ h + s(x, k=5) + walk(t, order=2) + (1 | g) + neighbours(r, ring)")
    theta = RNG.normal(size=found.width)
    straight = {"s(x)": "x", "walk(t, order=2)": "t"}
    for label in ("s(x)", "walk(t, order=2)", "neighbours(r)"):
        shown = dense(found.partial(label, FRAME)) @ theta
        assert np.mean(shown) == pytest.approx(0.0, abs=1e-10)
        own = np.zeros(found.width, dtype=bool)
        own[found.places[label]] = True
        if label in straight:
            own[found.names.index(straight[label])] = True
        whole = dense(rows)[:, own] @ theta[own]
        np.testing.assert_allclose(shown, whole - np.mean(whole), atol=1e-10)
    np.testing.assert_array_equal(found.partial("(1 | g)", FRAME)[:, found.places["(1 | g)"]].sum(axis=1), 1.0)
    assert found.partial("s(x)", {"x": [0.5, 1.0]}).shape == (2, found.width)
    with pytest.raises(ValueError, match="there is no term 's\\(y\\)'"):
        found.partial("s(y)", FRAME)


def test_the_level_of_intrinsic_effects_belongs_to_the_intercept():
    found, rows = design("~ walk(t) + neighbours(r, ring) + (1 | g)")
    theta = RNG.normal(size=found.width)
    walk, regions = found.places["walk(t)"], found.places["neighbours(r)"]
    wanted = dense(rows)[:, walk] @ theta[walk]
    structured = slice(regions.start, regions.start + 3)
    wanted = wanted + dense(rows)[:, structured] @ theta[structured]
    assert found.level @ theta == pytest.approx(np.mean(wanted))


def test_weights_count_as_rows():
    weights = RNG.integers(1, 4, N).astype(float)
    one, _ = design("~ x + s(z) + (x | g) + walk(t)", FRAME, weights)
    repeated = FRAME.loc[np.repeat(np.arange(N), weights.astype(int))]
    other, _ = design("~ x + s(z) + (x | g) + walk(t)", repeated)
    assert one.names == other.names
    np.testing.assert_allclose(one.means, other.means, atol=1e-10)
    sizes = [[p.part.structure.size for p in d.parts if hasattr(p.part.structure, "size")] for d in (one, other)]
    np.testing.assert_allclose(*sizes)


def test_priors_are_in_the_units_that_are_asked_for():
    found, _ = design("~ x + (1 | g) + walk(t)")
    units = np.ones(found.width)
    units[0] = 4.0
    prior = found.prior(2.0, units, (1.5, 9.0), unit=10.0, weak=2.5)
    assert isinstance(prior, StructuredPrior)
    place = found.places
    variance = prior.independent.variance
    assert variance[0] == pytest.approx((2.5 * 4.0 * 10.0 / FRAME["x"].std(ddof=0)) ** 2)
    np.testing.assert_allclose(variance[place["(1 | g)"]], 200.0)
    assert (prior.mean[-1], variance[-1]) == (1.5, pytest.approx(900.0))
    (block,) = prior.blocks
    assert block.structure.spread(block.psi)[0] == pytest.approx(200.0)
    np.testing.assert_array_equal(block.columns, np.arange(place["walk(t)"].start, place["walk(t)"].stop)[None])


def test_several_predictors_have_copies_of_the_prior():
    found, _ = design("~ x + (z | h)")
    one, two = found.prior(1.0), found.prior(1.0, predictors=2)
    assert two.dim == 2 * one.dim
    np.testing.assert_array_equal(two.precision, np.tile(one.precision, 2))
    for (_, places, size, block), (_, both, same, other) in zip(
        found.groups(), found.groups(predictors=2), strict=True
    ):
        np.testing.assert_array_equal(both, np.append(places, places + one.dim))
        assert (size, block) == (same, other)


def test_one_variance_of_ordinary_columns_has_their_mean_squares_as_size():
    found, _ = Design.learn([Linear(("x", "z"), "auto"), Effects("g")], FRAME)
    sizes = np.array([2.0, 3.0, *np.ones(31)])
    (ridge, effects) = found.groups(sizes)
    assert ridge[2] == 5.0
    assert effects[2] == 1.0
    np.testing.assert_array_equal(found.ordinary, [0, 1])


def test_components_are_those_of_the_prior():
    found, _ = design("~ x + s(z) + (x | g) + walk(t)")
    prior = found.prior(4.0)
    components = found.components(prior, unit=3.0)
    assert list(components) == ["s(z)", "1 + x | g", "walk(t)"]
    assert components["s(z)"]["sd"] == pytest.approx(6.0)
    slopes = components["1 + x | g"]
    assert list(slopes) == ["sd(1)", "sd(x)", "correlation(1, x)"]
    (effects,) = [b for b in prior.blocks if b.structure.width == 62]
    covariance = effects.structure.covariance(effects.psi)
    assert slopes["sd(x)"] == pytest.approx(3.0 * np.sqrt(covariance[1, 1]))


def test_degrees_of_freedom_are_traces():
    found, rows = design("~ x + s(z) + (x | g) + walk(t, order=2)")
    prior = found.prior(1.0)
    precision = np.diag(prior.precision)
    left, right, values = prior.couplings
    precision[left, right] += values
    precision[right, left] += values
    whole = np.column_stack([dense(rows), np.ones(N)])
    covariance = np.linalg.inv(precision + whole.T @ whole)
    used = np.diagonal(covariance @ whole.T @ whole)
    freedom = found.freedom(prior, np.diagonal(covariance), covariance[left, right])
    for part, places, _ in found.parts:
        assert freedom[part.label] == pytest.approx(np.sum(used[places]), abs=1e-6)
    assert freedom["linear"] == pytest.approx(3.0, abs=0.1)


def test_effects_are_found_by_level():
    text = "~ x + (x | g) + (z || h) + known(h, A)"
    found, _ = design(text)
    for label, wanted in (("(x | g)", ("1", "x")), ("(z || h)", ("1", "z")), ("known(h)", ("1",))):
        levels, effects, places = found.effects(label)
        assert effects == wanted
        for k, level in enumerate(levels):
            for j, effect in enumerate(effects):
                name = found.names[places[k, j]]
                assert name.endswith(f"[{level}]")
                assert name.startswith((f"({effect} |", "known"))
    with pytest.raises(ValueError, match=r"there is no term '\(x \| gg\)' with levels; did you mean '\(x \| g\)'"):
        found.effects("(x | gg)")


def test_terms_stand_once():
    with pytest.raises(ValueError, match=r"the term \(1 \| g\) is there twice"):
        design("~ (1 | g) + (1 | g)")


def test_tables_need_names():
    with pytest.raises(ValueError, match="terms need a table with named columns, such as a DataFrame, got ndarray"):
        Design.learn([Smooth("x")], np.ones((3, 2)))
    assert Design.learn([Known("h", np.eye(3), levels="abc")], FRAME)[0].intercept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("~ x + money", "^the table has no column 'money': there are 'x'"),
        ("~ s(money)", r"^s\(money\) needs a column 'money', which the table lacks"),
        ("~ (money | g)", "^the table has no column 'money'"),
        ("~ (1 | G)", r"^\(1 \| G\) needs a column 'G', which the table lacks: did you mean 'g'"),
        ("~ (s(x) | g)", r"^'s\(x\)': s\(\) is a term of its own"),
        ("~ (x | g) + (1 | g)", r"\(x \| g\) and \(1 \| g\) both have an intercept per level: leave out one"),
        ("~ (1 | g) + (1 | g)", r"^the term \(1 \| g\) is there twice"),
        ("~ 0", "^the model has neither columns nor an intercept"),
        ("~ known(r, A)", r"^known\(r\): 4 levels of the data are not in its matrix, such as"),
        ("~ neighbours(h, ring)", r"^neighbours\(h\): 3 regions of the data are not in its graph, such as 'a'"),
    ],
)
def test_errors_name_the_part(text, message):
    with pytest.raises(ValueError, match=message):
        design(text)


def test_levels_of_one_row_each_are_told_from_noise_by_nothing():
    frame = FRAME.assign(row=np.arange(N), some=np.minimum(np.arange(N), N - 2))
    found, rows = design("~ x + (1 | row)", frame)
    with pytest.raises(ValueError, match=r"^\(1 \| row\): every level has one row"):
        found.require_repeats(rows)
    for text in ("~ x + (1 | some)", "~ x + (1 | g) + (0 + x | row)"):
        found, rows = design(text, frame)
        found.require_repeats(rows)
