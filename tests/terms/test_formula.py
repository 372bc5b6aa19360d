"""Formulas become the terms that they name, or an error that names the part."""

import re
from pathlib import Path

import numpy as np
import pytest

from cavity.terms import Autoregressive, Effects, Formula, Known, Linear, Neighbours, Smooth, Walk

PAIRS = [("a", "b")]
GIVEN = {"graph": PAIRS, "region": PAIRS, "A": np.eye(2)}


def effects(text):
    return [term for term in Formula.parse(f"y ~ {text}").terms if isinstance(term, Effects)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("(1 | g)", [Effects("g")]),
        ("(x | g)", [Effects("g", (("x",),))]),
        ("(1 + x | g)", [Effects("g", (("x",),))]),
        ("(0 + x | g)", [Effects("g", (("x",),), intercept=False)]),
        ("(x - 1 | g)", [Effects("g", (("x",),), intercept=False)]),
        ("(x || g)", [Effects("g", (("x",),), correlated=False)]),
        ("(x * z | g)", [Effects("g", (("x",), ("z",), ("x", "z")))]),
        ("(1 | a:b)", [Effects(("a", "b"))]),
        ("(1 | a/b)", [Effects("a"), Effects(("a", "b"))]),
        ("(1 | a/b/c)", [Effects("a"), Effects(("a", "b")), Effects(("a", "b", "c"))]),
        ("(1 | `the group`)", [Effects("the group")]),
        ("(log(x + 1) | g)", [Effects("g", (("log(x + 1)",),))]),
        ("x + (1 | a) + z + (1 | b)", [Effects("a"), Effects("b")]),
    ],
)
def test_brackets_with_bars_are_effects(text, wanted):
    assert effects(text) == wanted


@pytest.mark.parametrize(
    ("text", "columns", "intercept"),
    [
        ("", (), True),
        ("1", (), True),
        ("0 + x", (("x",),), False),
        ("x - 1", (("x",),), False),
        ("-1 + x", (("x",),), False),
        ("s(z) + x + (1 | g) - 1", (("x",),), False),
        ("a * b - a", (("b",), ("a", "b")), True),
        ("(a + b) ** 2", (("a",), ("b",), ("a", "b")), True),
        ("a / b", (("a",), ("a", "b")), True),
        ("`my col` + C(site, ref='x + (1 | y)')", (("my col",), ("C(site, ref='x + (1 | y)')",)), True),
        ("cos(x) + log1p(x - 1)", (("cos(x)",), ("log1p(x - 1)",)), True),
    ],
)
def test_the_rest_is_ordinary_coefficients(text, columns, intercept):
    first = Formula.parse(f"~ {text}").terms[0]
    assert first == Linear(columns, intercept=intercept)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s(x)", Smooth("x")),
        ("s(x, 8)", None),
        ("s(x, k=8, cyclic=True, by=g)", Smooth("x", 8, True, "g")),
        ("s(x, cyclic=(0, 24))", Smooth("x", cyclic=(0, 24))),
        ("walk(t)", Walk("t")),
        ("walk(t, order=2)", Walk("t", 2)),
        ("walk( week , period = 52 )", Walk("week", 1, 52)),
        ("ar(t, ahead=3)", Autoregressive("t", 3)),
    ],
)
def test_calls_are_terms(text, wanted):
    if wanted is None:
        with pytest.raises(
            ValueError, match=r"'s\(x, 8\)' of the formula: s\(\) takes one column, then options by name"
        ):
            Formula.parse(f"~ {text}")
    else:
        assert Formula.parse(f"~ {text}").terms[1] == wanted


def test_graphs_and_matrices_are_found_by_name():
    for text in ("neighbours(county, graph)", "neighbours(county, graph=graph)", "neighbours(region)"):
        term = Formula.parse(f"~ {text}", GIVEN).terms[1]
        assert isinstance(term, Neighbours)
        assert term.graph is PAIRS
    assert Formula.parse("~ known(animal, A)", GIVEN).terms[1].covariance is GIVEN["A"]
    term = Formula.parse("~ known(animal, precision=A)", GIVEN).terms[1]
    assert isinstance(term, Known)
    assert term.precision is GIVEN["A"]


def test_targets_and_offsets_are_evaluated():
    frame = {"y": np.array([1.0, 2.0]), "x": np.array([3.0, 4.0]), "the count": np.array([5, 6])}
    formula = Formula.parse("log(y) ~ x + offset(log(x)) + offset(x)")
    np.testing.assert_allclose(formula.targets(frame), np.log(frame["y"]))
    np.testing.assert_allclose(formula.offset(frame), np.log(frame["x"]) + frame["x"])
    assert Formula.parse("`the count` ~ x").targets(frame) is frame["the count"]
    assert Formula.parse("~ x").target is None
    assert Formula.parse("x").offset(frame) is None
    with pytest.raises(ValueError, match="names no target"):
        Formula.parse("~ x").targets(frame)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a formula must be text"),
        ("y ~ x ~ z", "more than one ~"),
        ("y ~ (1 | g", "a bracket '\\(' that nothing closes"),
        ("y ~ x)", "a bracket '\\)' that nothing opens"),
        ("y ~ x | g", "the part 'x | g' of the formula needs brackets"),
        ("y ~ (1 | g | h)", "the part '\\(1 | g | h\\)' of the formula must be"),
        ("y ~ (| g)", "must be \\(effects | group\\)"),
        ("y ~ (0 | g)", "has no effects"),
        ("y ~ (1 | log(g))", "needs names of columns, possibly with : and /, got 'log\\(g\\)'"),
        ("y ~ x - (1 | g)", "cannot be subtracted"),
        ("y ~ x * (1 | g)", "multiplies effects of a group"),
        ("y ~ x:s(z)", "s\\(\\) is not a summand of its own; s\\(x, by=z\\) multiplies a curve"),
        ("y ~ s(x, kk=3)", "s\\(\\) has no option 'kk'; did you mean 'k'"),
        ("y ~ s(x, k=3, k=4)", "gives k twice"),
        ("y ~ s(x, k=n)", "k must be a number or True or False, got 'n'"),
        ("y ~ s(x, k=2)", "k of s\\(x\\) must be a whole number of at least 4, got 2"),
        ("y ~ s(log(x))", "needs names of columns"),
        ("y ~ s()", "needs names of columns, possibly with : and /, got ''|names no column"),
        ("y ~ walk(t, order=3)", "order of walk"),
        ("y ~ neighbours(r, map)", "nothing is called 'map'; pass graphs and matrices by name beside the formula"),
        ("y ~ x + ", "nothing beside a \\+"),
        ("y ~ x +* z", "cannot be read"),
        ("y ~ .", "name the columns"),
    ],
)
def test_errors_name_the_part(text, message):
    with pytest.raises(ValueError, match=message):
        Formula.parse(text)


def test_unknown_names_are_told_from_known_ones():
    with pytest.raises(ValueError, match="nothing is called 'graphx'; did you mean 'graph'"):
        Formula.parse("~ neighbours(r, graphx)", GIVEN)


def test_formulas_for_people_who_come_from_r_are_read():
    """The right column of every table of the guide."""
    page = (Path(__file__).parents[2] / "docs" / "guide" / "coming_from_r.md").read_text()
    tables = re.findall(r"\| in R \| here \|\n\|---\|---\|\n((?:\|.*\n)+)", page)
    assert len(tables) == 4
    cells = [re.split(r"(?<!\\)\|", line)[2].replace("\\|", "|") for table in tables for line in table.splitlines()]
    spans = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
    calls = [span for span in spans if span.startswith(("EP", "fit(", "predict(", "sample_weight"))]
    formulas = [f"~ {span}" for span in spans if span not in calls]
    formulas += [text for call in calls for text in re.findall(r'formula="([^"]+)"', call)]
    assert len(formulas) > 20
    for formula in formulas:
        assert Formula.parse(formula, {name: np.eye(2) for name in ("A", "W", "Q", "nb")}).text
