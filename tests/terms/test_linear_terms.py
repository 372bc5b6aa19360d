"""Ordinary columns are those that R and formulaic make, in any table."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from formulaic import model_matrix

from cavity.terms import Formula, Linear
from cavity.terms.linear import split

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "x": RNG.normal(size=40),
        "age of": RNG.uniform(20.0, 60.0, 40),
        "a": RNG.choice(["one", "two", "three"], 40),
        "b": pd.Categorical(RNG.choice(["low", "high", "top"], 40), ["low", "high", "top"], ordered=True),
        "n": RNG.integers(0, 4, 40),
    }
)
ONES = np.ones(40)


def columns(texts, frame=FRAME, **options):
    learned = Linear(texts, **options).learn(frame, ONES)
    made = learned.columns(frame)
    return learned, made.toarray() if hasattr(made, "toarray") else made


@pytest.mark.parametrize(
    "formula",
    [
        "x + a",
        "x * a + C(n)",
        "a:b",
        "a * b",
        "b / x",
        "log(`age of`) + exp(x) + I(x ** 2 + 1)",
        "poly(x, 3):a + center(x)",
        "(x + a + b) ** 2 - a:b",
        "x:n + scale(x)",
        "0 + a + x:a",
        "0 + a:b + x",
    ],
)
def test_columns_span_what_formulaic_makes(formula):
    (term,) = Formula.parse(f"~ {formula}").terms
    learned, made = columns(term.columns, intercept=term.intercept)
    wanted = model_matrix(formula, FRAME, ensure_full_rank=True).to_numpy(dtype=float)
    own = np.column_stack([ONES, made]) if term.intercept else made
    rank = np.linalg.matrix_rank(wanted)
    assert np.linalg.matrix_rank(own) == rank == np.linalg.matrix_rank(np.column_stack([own, wanted]))
    assert len(learned.names) == len(set(learned.names)) == made.shape[1]
    np.testing.assert_allclose(learned.spread, np.std(made, axis=0), rtol=1e-7)


def test_columns_have_the_names_of_their_levels():
    learned, made = columns(("a", "x:a", "C(n, ref=2)"))
    assert learned.names[:2] == ["a=three", "a=two"]
    assert learned.names[2:5] == ["a=one:x", "a=three:x", "a=two:x"]
    assert learned.names[5:] == ["n=0", "n=1", "n=3"]
    np.testing.assert_array_equal(made[:, 0], FRAME["a"] == "three")
    np.testing.assert_array_equal(made[:, 5], FRAME["n"] == 0)


@pytest.mark.parametrize("kind", ["polars", "arrays"])
def test_tables_of_any_kind_give_the_same_columns(kind):
    plain = {name: np.asarray(FRAME[name]) for name in FRAME}
    other = pl.DataFrame({k: v.tolist() for k, v in plain.items()}) if kind == "polars" else plain
    one, two = (columns(("x", "a", "a:n", "log(`age of`)"), frame) for frame in (FRAME, other))
    assert one[0].names == two[0].names
    np.testing.assert_array_equal(one[1], two[1])


def test_what_was_learned_is_used_for_later_rows():
    texts = ("poly(x, 2)", "center(x)", "scale(`age of`)", "a")
    learned, made = columns(texts)
    again = learned.columns(FRAME.iloc[:5])
    again = again.toarray() if hasattr(again, "toarray") else again
    np.testing.assert_allclose(again, made[:5])


def test_polynomials_are_orthonormal():
    made = columns(("poly(x, 3)",))[1]
    np.testing.assert_allclose(made.T @ made, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(made.sum(axis=0), 0.0, atol=1e-12)


def test_priors_are_weak_given_or_found():
    learned = columns(("x", "n"))[0]
    (weak,) = learned.parts
    np.testing.assert_allclose(weak.variances, 1.0 / np.array([FRAME["x"].std(ddof=0), FRAME["n"].std(ddof=0)]) ** 2)
    assert weak.weak
    (given,) = columns(("x", "n"), variance=3.0)[0].parts
    assert not given.weak
    np.testing.assert_array_equal(given.variances, [3.0, 3.0])
    (found,) = columns(("x", "n"), variance="auto")[0].parts
    assert found.variances is None
    with pytest.raises(ValueError, match="the variance of a linear term must be positive"):
        Linear("x", variance=-1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agee", "the table has no column 'agee': did you mean 'age of'"),
        ("lgo(x)", "there is no function 'lgo'; did you mean 'log'"),
        ("log(z)", "'log\\(z\\)' needs a column 'z', which the table lacks: there are 'x', 'age of', 'a', 'b', 'n'"),
        ("log(x)", "'log\\(x\\)' is not a finite number in [0-9]+ rows"),
        ("C(a, ref='four')", "'four' is no level: there are 'one', 'three', 'two'|did you mean"),
        ("a + 1", "needs numbers, but column 'a' holds text or categories"),
        ("C(a, Sum)", "C takes the name of a column, and ref= or levels="),
        ("x.y", "the table has no column 'x.y'"),
        ("[x]", "formulas have columns, numbers"),
        ("x y", "'x y' is neither a column nor an expression"),
        ("poly(n, 9)", "the degree must lie between 1 and 3, got 9"),
        ("x.__class__()", "there is no function 'x.__class__'"),
    ],
)
def test_errors_name_the_part_and_what_exists(text, message):
    with pytest.raises(ValueError, match=message):
        columns(((text,),))


def test_levels_that_are_new_are_named():
    learned = columns(("a",))[0]
    with pytest.raises(
        ValueError, match="column 'a' has the level 'tree', which had no rows in the fit: did you mean 'three'"
    ):
        learned.columns({"a": ["tree"]})


def test_a_category_of_one_level_has_no_column_beside_a_constant():
    frame = {"x": np.arange(3.0), "g": ["a"] * 3}
    learned = Linear(("g", "x", "g:x")).learn(frame, np.ones(3))
    assert learned.names == ["x"]
    np.testing.assert_array_equal(np.asarray(learned.columns(frame).todense()), np.arange(3.0)[:, None])
    assert Linear("g", intercept=False).learn(frame, np.ones(3)).names == ["g=a"]


def test_missing_values_are_named():
    with pytest.raises(ValueError, match="column 'x' has 1 missing or infinite values, the first in row 3"):
        columns(("x",), FRAME.assign(x=np.where(np.arange(40) == 3, np.nan, 1.0)))
    with pytest.raises(ValueError, match="column 'a' has missing values"):
        columns(("a",), FRAME.assign(a=FRAME["a"].where(FRAME["a"] != "two")))


def test_marks_in_brackets_and_quotes_do_not_split():
    assert split("a:f(b:c):'d:e':`g:h`", ":") == ["a", "f(b:c)", "'d:e'", "`g:h`"]
