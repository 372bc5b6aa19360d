"""The conformance checks find what is wrong, and say how to fix it."""

import warnings
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
from scipy import sparse

from cavity import FactorialGaussian, terms
from cavity.losses import Hinge, Huber, Logistic, Poisson, Squared
from cavity.schemes import QuickLaplace, VariationalQuadrature
from cavity.testing import check_loss, check_scheme, check_term


class Base(NamedTuple):
    """A sound loss, of which each mistake below is a variation: the Huber loss of the margin."""

    width: float = 0.5

    @property
    def targets(self):
        return "signs"

    def value(self, y, z):
        return self.derivatives(y, z)[0]

    def derivatives(self, y, z):
        t = 1.0 - y * z
        inside = 0.5 + 0.5 * np.sign(self.width - np.abs(t))
        near = np.clip(t, -self.width, self.width)
        value = 0.5 * near * near + self.width * (np.abs(t) - np.abs(near))
        return value, -y * near, inside + 0.0 * t


def variation(**methods):
    """A loss like `Base` with some methods replaced."""
    return type("Mistaken", (Base,), methods)()


def wrong(position, change):
    """A loss like `Base` with one of its three derivatives changed."""

    def derivatives(self, y, z):
        answers = list(Base.derivatives(self, y, z))
        answers[position] = change(answers[position], y, z)
        return tuple(answers)

    return variation(derivatives=derivatives, value=Base.value)


def in_pieces(pieces):
    """The loss 1 - y z, in one piece if those given are right."""
    return variation(
        value=lambda self, y, z: 1.0 - y * z,
        derivatives=lambda self, y, z: (1.0 - y * z, -y + 0.0 * z, 0.0 * z),
        pieces=lambda self, y: pieces(y),
    )


class NoFields(NamedTuple):
    @property
    def targets(self):
        return "signs"


@dataclass(frozen=True)
class NoTuple:
    width: float = 1.0
    targets: str = "signs"


class Exponential(NamedTuple):
    """Overflows for large negative margins."""

    scale: float = 1.0

    @property
    def targets(self):
        return "signs"

    def value(self, y, z):
        return np.exp(-y * z)

    def derivatives(self, y, z):
        e = np.exp(-y * z)
        return e, -y * e, e


def writes_into(self, y, z):
    answers = Base.derivatives(self, y, z)
    if np.ndim(z):
        z += 1.0
    return answers


MISTAKES = [
    (NoFields(), "a loss must be a NamedTuple with at least one field, got NoFields with fields"),
    (NoTuple(), "a loss must be a NamedTuple with at least one field, got NoTuple"),
    (
        variation(targets=property(lambda self: "labels")),
        "targets must be 'signs', 'reals', 'counts' or 'positives', got",
    ),
    (variation(value=lambda self, y, z: 2.0 * Base.value(self, y, z)), r"value\(y, z\) must equal derivatives\(y, z\)"),
    (Exponential(), "must take every finite prediction, .* FloatingPointError: overflow .*exponentials of negative"),
    (wrong(2, lambda c, y, z: c + np.where(np.abs(z) > 1e3, np.nan, 0.0)), "curvature must be finite for every finite"),
    (wrong(1, lambda s, y, z: y * s), "the slope must be the derivative .* with respect to z, not y z"),
    (wrong(1, lambda s, y, z: 1.001 * s), "the slope must be the derivative of what comes before it"),
    (wrong(2, lambda c, y, z: 0.9 * c), "the curvature must be the derivative of what comes before it"),
    (wrong(2, lambda c, y, z: 1.0), r"derivatives\[2\] must have the shape .* add 0\.0 \* z to a constant"),
    (wrong(2, lambda c, y, z: c + 1e-3 * (np.ndim(z) == 0)), "must be the same for a number as in an array"),
    (
        variation(value=lambda self, y, z: np.diag(np.ravel(Base.value(self, y, z)))),
        "value must have the shape of y and z",
    ),
    (
        variation(derivatives=lambda self, y, z: Base.derivatives(self, y, z)[:2]),
        "derivatives must return three things",
    ),
    (variation(derivatives=lambda self, y, z: (float(z > 0.0), 0.0, 0.0)), "comparisons as factors in place of `if`"),
    (variation(derivatives=writes_into, value=Base.value), "must not write into its arguments"),
    (in_pieces(lambda y: ((y, -y, 1.0), (np.inf, 0.0, 0.0))), r"is the value, got \(inf, 0\.0, 0\.0\) after -1"),
    (in_pieces(lambda y: ((0.0, -y, 1.0), (np.inf, -y, 2.0))), "offset with which .* is the value, got .* after 0"),
    (in_pieces(lambda y: ((-8.0, -y, 0.0), (np.inf, -y, 1.0))), "offset with which .* is the value, got .* after -inf"),
    (in_pieces(lambda y: ((1.0, -y, 1.0), (1.0, -y, 1.0), (np.inf, -y, 1.0))), "an end beyond the one before"),
    (in_pieces(lambda y: ((np.inf, -y, 1),)), "a piece must be three floats"),
    (in_pieces(lambda y: ((9.0, -y, 1.0),)), "the last piece must end at infinity, got 9"),
    (
        in_pieces(lambda y: ((np.inf, -1.0 if y > 0.0 else 1.0, 1.0),)),
        "pieces must take an array of targets, .*ambiguous",
    ),
    (in_pieces(lambda y: ((np.inf, -1.0 if np.ndim(y) else -y, 1.0),)), "pieces must be the same for a number as"),
]


@pytest.mark.parametrize(("loss", "message"), MISTAKES)
def test_a_mistaken_loss_is_found(loss, message):
    with pytest.raises(AssertionError, match=message):
        check_loss(loss)


SOUND = [Base(), Base(1.0), Base(2.0), Logistic(), Squared(0.3), Poisson(), in_pieces(lambda y: ((np.inf, -y, 1.0),))]


@pytest.mark.parametrize("loss", SOUND, ids=repr)
def test_a_sound_loss_passes_without_a_word(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_loss(loss) is None


def test_losses_that_grow_fast_are_checked_as_far_as_they_go():
    check_loss(Exponential(), largest=500.0)


def one_sided(margin):
    class OneSided(NamedTuple):
        """A hinge with the slope of one side at its kink, ``margin`` from the origin."""

        scale: float = 1.0

        @property
        def targets(self):
            return "signs"

        def value(self, y, z):
            return np.maximum(margin - y * z, 0.0)

        def derivatives(self, y, z):
            return self.value(y, z), -y * (y * z <= margin) + 0.0 * z, 0.0 * z

    return OneSided()


def test_the_half_sum_is_asked_at_kinks_that_are_found_and_at_those_that_are_named():
    with pytest.raises(
        AssertionError, match=r"slope at a kink must be the half sum of both sides, 0\.5 between 0 and 1, got 1"
    ):
        check_loss(one_sided(1.0))
    check_loss(one_sided(0.7))  # nobody knows of this one
    with pytest.raises(AssertionError, match="half sum of both sides"):
        check_loss(one_sided(0.7), kinks=[0.7])
    check_loss(Hinge(0.7), kinks=[0.7])


def test_a_jump_of_the_curvature_needs_its_half_sum_too():
    with pytest.raises(AssertionError, match="curvature at a kink must be the half sum"):
        check_loss(wrong(2, lambda c, y, z: np.ceil(c)), kinks=[0.5, 1.5])
    check_loss(Base(), kinks=[0.5, 1.5])


def test_the_place_of_a_kink_depends_on_the_kind_of_the_targets():
    class OneSided(Poisson):
        def derivatives(self, y, z):
            value, slope, _ = Poisson.derivatives(self, y, z)
            return value, slope, np.exp(np.minimum(z, self.ceiling)) * (z <= self.ceiling)

    with pytest.raises(AssertionError, match=r"curvature at a kink must be the half sum .* at y=0\.0, z=2\.0"):
        check_loss(OneSided(2.0))
    # Here 2.0 + 0.3 misses the kink by rounding, which is no fault of the loss.
    assert (2.0 + 0.3) - 2.0 != 0.3
    check_loss(Huber(0.3))


@dataclass(frozen=True)
class Scheme:
    """A sound scheme, of which each mistake below is a variation."""

    name: ClassVar[str] = "own"
    inner: QuickLaplace = field(default_factory=QuickLaplace)

    def check(self, factor):
        self.inner.check(factor)

    def approximate(self, factor, cavity, beta=1.0):
        return self.inner.approximate(factor, cavity, beta)


class Nameless(Scheme):
    name = None


class Uncheckable(Scheme):
    check = None


class Refusing(Scheme):
    def check(self, factor):
        raise ValueError("not today")


class Crashing(Scheme):
    def check(self, factor):
        raise KeyError("oops")


class Wide(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        return FactorialGaussian.uniform(factor.dim)


class Bare(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        return super().approximate(factor, cavity, beta).precision


class Empty(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        return FactorialGaussian(np.nan, np.full(cavity.dim, np.nan), np.full(cavity.dim, np.nan))


class Random(Scheme):
    rng = np.random.default_rng(0)

    def approximate(self, factor, cavity, beta=1.0):
        return super().approximate(factor, cavity, beta) ** self.rng.uniform(0.9, 1.0)


class Remembering(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        object.__setattr__(self, "inner", QuickLaplace("slope" if factor.has_slope else "exact"))
        return QuickLaplace().approximate(factor, cavity, beta)


class Writing(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        cavity.shift[:] = 0.0
        return super().approximate(factor, cavity, beta)


class Scribbling(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        site = super().approximate(factor, cavity, beta)
        factor.weights[:] = 1.0 + factor.weights
        return site


class Hot(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        return super().approximate(factor, cavity, beta**2)


class Careless(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        if not np.isfinite(factor.cost(cavity.mean[None])[0]):
            raise ArithmeticError("not finite")
        return super().approximate(factor, cavity, beta)


class Sanguine(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        s = super().approximate(factor, cavity, beta)
        return s if s.is_finite else FactorialGaussian.uniform(cavity.dim)


class Dimensional(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        cavity.mean[0]
        return super().approximate(factor, cavity, beta)


class Inexact(Scheme):
    def approximate(self, factor, cavity, beta=1.0):
        s = super().approximate(factor, cavity, beta)
        return s if cavity.dim else FactorialGaussian(0.0, [], [])


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Nameless(), "a scheme must have a string `name` and a method `check"),
        (Uncheckable(), "a scheme must have a string `name` and a method `check"),
        (Refusing(), "check must take a LinearFactor of 1 coordinates, .* raised ValueError: not today"),
        (Crashing(), "or raise ValueError if it is no LinearFactor, but raised KeyError"),
        (Wide(), "of the cavity's 1 coordinates for a LinearFactor .*not from factor.dim"),
        (Bare(), "must return a FactorialGaussian of the cavity's 1 coordinates"),
        (Empty(), "must return a finite site for a LinearFactor of 1 coordinates, smooth and bounded"),
        (Random(), "must return the same site when asked again.* seed that is a field"),
        (Remembering(), "must leave scheme, cavity and factor as they were.* frozen dataclass"),
        (Writing(), "raised ValueError: assignment destination is read-only.* write into copies only"),
        (Scribbling(), "must return the same site when asked again|must leave scheme, cavity and factor"),
        (Hot(), "beta and the cost must count as one product, but log_scale is"),
        (Careless(), "must return a site with NaN or infinite entries for .* cost is nan, but raised ArithmeticError"),
        (Sanguine(), "must return a site with NaN or infinite entries for .* do not replace NaN by numbers"),
        (Dimensional(), "must return a site without coordinates for a LinearFactor that touches no .* IndexError"),
        (Inexact(), "that touches no coordinate must be the constant of log_scale"),
    ],
)
def test_a_mistaken_scheme_is_found(scheme, message):
    with pytest.raises(AssertionError, match=message):
        check_scheme(scheme)


@pytest.mark.parametrize("scheme", [Scheme(), VariationalQuadrature()], ids=repr)
def test_a_sound_scheme_passes_without_a_word(scheme):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_scheme(scheme) is None


# Terms.

TABLE = {
    "x": np.random.default_rng(0).normal(size=40),
    "t": np.random.default_rng(1).integers(0, 9, 40),
    "g": np.random.default_rng(2).choice(["a", "b", "c"], 40),
}
TERMS = [
    terms.Linear(("x", "g", "x:g")),
    terms.Linear(("x", "t"), variance=2.0),
    terms.Effects("g"),
    terms.Effects("g", ("x", "t")),
    terms.Effects(("g", "t"), "x", correlated=False),
    terms.Smooth("x", k=8),
    terms.Smooth("x", k=6, cyclic=(-4.0, 4.0)),
    terms.Walk("t"),
    terms.Walk("t", order=2),
    terms.Walk("t", order=2, period=10.0),
    terms.Autoregressive("t", ahead=2),
    terms.Neighbours("g", {"a": ["b", "c"], "d": ["e"], "f": []}),
    terms.Known("g", np.eye(3) + 0.3, levels=("a", "b", "c")),
]


@pytest.mark.parametrize("term", TERMS, ids=lambda term: type(term).__name__)
def test_terms_keep_the_contract(term):
    check_term(term, TABLE)


class Doubled:
    """A term of its own: a column twice, with one variance, and a mistake if asked for."""

    label, shown, variables = "twice(x)", "coefficients", ("x",)

    def __init__(self, mistake=""):
        self.mistake = mistake

    def linear(self, frame):
        return ()

    def learn(self, frame, weights):
        found = Doubled(self.mistake)
        found.size = 2.0 * float(np.mean(np.square(frame["x"])))
        return found

    @property
    def names(self):
        return ["one", "one" if self.mistake == "names" else "two"]

    @property
    def parts(self):
        if self.mistake == "structure":
            return (terms.Part(self.label, 2, Crooked(sparse.csr_array(np.eye(2)), 2)),)
        size = 1.0 if self.mistake == "size" else self.size
        return (terms.Part(self.label, 3 if self.mistake == "width" else 2, size=size),)

    def columns(self, frame):
        x = np.asarray(frame["x"])
        x = x - x.mean() if self.mistake == "rows" else x
        return np.column_stack([x, x])


class Crooked(terms.Scaled):
    """A structure whose derivatives are wrong."""

    def derivatives(self, psi):
        return 1.01 * super().derivatives(psi)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("", None),
        ("names", "names must differ"),
        ("width", "one name for each, got 2"),
        ("size", "the size of 'twice\\(x\\)' must be the mean over the rows"),
        ("rows", "must not depend on the other rows"),
        ("structure", "derivatives of 'twice\\(x\\)' must be those of differences, in hyperparameter 0"),
    ],
)
def test_mistakes_of_terms_are_named(mistake, message):
    if message is None:
        check_term(Doubled(), TABLE)
    else:
        with pytest.raises(AssertionError, match=message):
            check_term(Doubled(mistake), TABLE)
