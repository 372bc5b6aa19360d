"""Effects have a column per level and one for new levels; known covariances are those that were given."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from cavity.terms import Effects, Known
from cavity.terms.effects import UNSEEN

RNG = np.random.default_rng(0)
N = 60
FRAME = pd.DataFrame(
    {
        "a": RNG.choice(["red", "blue", "green"], N),
        "b": RNG.integers(1, 4, N),
        "x": RNG.normal(2.0, 1.0, N),
        "z": RNG.normal(size=N),
    }
)
ONES = np.ones(N)


def learn(term, frame=FRAME, weights=ONES):
    learned = term.learn(frame, weights)
    return learned, learned.columns(frame).toarray()


def test_intercepts_are_indicators_of_levels():
    learned, made = learn(Effects("a"))
    assert learned.levels == ("blue", "green", "red")
    assert learned.names == [f"(1 | a)[{level}]" for level in ("blue", "green", "red", UNSEEN)]
    for k, level in enumerate(learned.levels):
        np.testing.assert_array_equal(made[:, k], FRAME["a"] == level)
    assert not np.any(made[:, 3])
    assert learned.parts[0]._replace(variances=None) == learned.parts[0]
    assert (learned.parts[0].width, learned.parts[0].size, learned.parts[0].structure) == (4, 1.0, None)


def test_new_levels_have_a_column_of_their_own():
    learned, _ = learn(Effects("a", "x"))
    made = learned.columns({"a": ["purple", "red"], "x": [3.0, 4.0]}).toarray()
    np.testing.assert_array_equal(made, [[0, 0, 0, 0, 0, 0, 1, 3], [0, 0, 0, 0, 1, 4, 0, 0]])


@pytest.mark.parametrize("correlated", [True, False])
def test_slopes_multiply_their_columns(correlated):
    learned, made = learn(Effects("a", ("x", "z"), correlated=correlated))
    theta = RNG.normal(size=(4, 3))
    flat = theta.ravel() if correlated else theta.T.ravel()
    level = np.searchsorted(learned.levels, FRAME["a"])
    values = np.column_stack([ONES, FRAME["x"], FRAME["z"]])
    np.testing.assert_allclose(made @ flat, np.sum(theta[level] * values, axis=1))
    parts = learned.parts
    if correlated:
        np.testing.assert_allclose(parts[0].structure.moments, values.T @ values / N)
        assert parts[0].label == "1 + x + z | a"
    else:
        np.testing.assert_allclose([part.size for part in parts], np.mean(values**2, axis=0))
        assert [part.label for part in parts] == ["1 | a", "x | a", "z | a"]
    assert sum(part.width for part in parts) == len(learned.names) == made.shape[1]


def test_moments_are_weighted():
    weights = RNG.integers(0, 3, N).astype(float)
    repeated = FRAME.loc[np.repeat(np.arange(N), weights.astype(int))]
    one = Effects("b", "x").learn(FRAME, weights)
    other = Effects("b", "x").learn(repeated, np.ones(len(repeated)))
    np.testing.assert_allclose(one.moments, other.moments)


def test_combinations_that_occur_are_groups():
    learned, made = learn(Effects(("a", "b")))
    texts = FRAME["a"] + ":" + FRAME["b"].astype(str)
    assert set(learned.levels) == set(texts)
    np.testing.assert_array_equal(np.array(learned.levels)[np.argmax(made, axis=1)], texts)
    new = learned.columns({"a": ["red", "pink"], "b": [9, 1]}).toarray()
    np.testing.assert_array_equal(new[:, -1], 1.0)


def test_types_of_a_column_do_not_matter():
    forms = [
        {"b": FRAME["b"].to_numpy()},
        {"b": FRAME["b"].astype(float).tolist()},
        {"b": FRAME["b"].astype(str).to_numpy()},
        pd.DataFrame({"b": FRAME["b"].astype("category")}),
        pl.DataFrame({"b": FRAME["b"].tolist()}),
        pl.DataFrame({"b": FRAME["b"].astype(str).tolist()}).cast(pl.Enum(["1", "2", "3"])),
        pl.DataFrame({"b": FRAME["b"].astype(str).tolist()}).cast(pl.Categorical),
    ]
    made = [learn(Effects("b"), frame) for frame in forms]
    for learned, matrix in made[1:]:
        assert learned.levels == made[0][0].levels
        np.testing.assert_array_equal(matrix, made[0][1])


def test_effects_that_cannot_be_told_apart_are_named():
    with pytest.raises(
        ValueError, match=r"\(x \| a\): the effects 1, x are collinear; leave out a slope that is constant"
    ):
        Effects("a", "x").learn({"a": FRAME["a"], "x": np.full(N, 2.0)}, ONES)
    with pytest.raises(ValueError, match=r"\(x \| a\): 'x' is zero in all rows"):
        Effects("a", "x").learn({"a": FRAME["a"], "x": np.zeros(N)}, ONES)
    with pytest.raises(ValueError, match=r"\(1 \| colour\) needs a column 'colour', which the table lacks"):
        Effects("colour").learn(FRAME, ONES)
    with pytest.raises(ValueError, match="need an intercept or slopes"):
        Effects("a", intercept=False)


def test_a_slope_that_does_not_vary_within_levels_is_named():
    level = np.repeat(np.arange(5), 4)
    frame = {"a": level, "x": 2.0 * level + 1.0, "z": RNG.normal(size=20)}
    with pytest.warns(UserWarning, match=r"^\(x \+ z \| a\): within no level is there any variation of 'x', so"):
        Effects("a", ("x", "z")).learn(frame, np.ones(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Effects("a", "z").learn(frame, np.ones(20))
        Effects("a", "x", intercept=False).learn(frame, np.ones(20))


# Known covariances.

ROOT = RNG.normal(size=(5, 7))
COVARIANCE = ROOT @ ROOT.T / 7.0
LEVELS = ("ann", "bob", "cy", "di", "ed")
PEOPLE = {"who": RNG.choice(LEVELS[:4], 30)}


@pytest.mark.parametrize("given", ["covariance", "precision"])
@pytest.mark.parametrize("form", ["dense", "sparse", "frame"])
def test_known_covariances_are_those_of_the_coefficients(given, form):
    matrix = COVARIANCE if given == "covariance" else np.linalg.inv(COVARIANCE)
    matrix = 0.5 * (matrix + matrix.T)
    levels = LEVELS
    if form == "sparse":
        matrix = sparse.csr_array(matrix)
    elif form == "frame":
        matrix, levels = pd.DataFrame(matrix, LEVELS, LEVELS), None
    learned = Known("who", levels=levels, **{given: matrix}).learn(PEOPLE, np.ones(30))
    structure = learned.parts[0].structure
    values = structure.entries(np.zeros(1))
    precision = np.zeros((5, 5))
    precision[structure.left, structure.right] = values
    precision += np.triu(precision, 1).T
    np.testing.assert_allclose(np.linalg.inv(precision), COVARIANCE, rtol=1e-8)
    place = np.searchsorted(LEVELS, PEOPLE["who"])
    assert structure.size == pytest.approx(np.mean(np.diagonal(COVARIANCE)[place]))
    np.testing.assert_array_equal(learned.columns(PEOPLE).toarray(), np.eye(5)[place])


def test_chains_have_sparse_precision_matrices():
    chain = 0.9 ** np.abs(np.subtract.outer(np.arange(50), np.arange(50)))
    learned = Known("t", chain, levels=range(50)).learn({"t": np.arange(50)}, np.ones(50))
    assert learned.values.size == 99


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs either a covariance or a precision matrix"),
        ({"covariance": COVARIANCE, "precision": COVARIANCE}, "needs either"),
        ({"covariance": COVARIANCE}, "needs levels=, the names of the rows"),
        ({"covariance": COVARIANCE, "levels": LEVELS[:3]}, "one row for each of 3 levels, got \\(5, 5\\)"),
        ({"covariance": COVARIANCE, "levels": ["a"] * 5}, "one row for each of 1 levels"),
        ({"covariance": ROOT[:, :5], "levels": LEVELS}, "is not symmetric"),
        ({"covariance": np.ones((5, 5)), "levels": LEVELS}, "is not positive definite"),
        (
            {"covariance": COVARIANCE, "levels": (*LEVELS[1:], "flo")},
            "1 levels of the data are not in its matrix, such as 'ann'",
        ),
    ],
)
def test_matrices_that_do_not_fit_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Known("who", **options).learn({"who": list(LEVELS[:4])}, np.ones(4))
