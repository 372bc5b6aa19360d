"""Conformance checks for losses, schemes and terms: the ones shipped here, and your own."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from cavity._types import FloatArray
from cavity.factors import CostFactor, Factor, LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Logistic, Loss, offers
from cavity.losses.joint import JointLoss
from cavity.schemes._protocol import Scheme
from cavity.terms import Part, Term

__all__ = ["check_joint_loss", "check_loss", "check_scheme", "check_term"]

# Targets that are tried, by kind.
_TARGETS = {
    "signs": (-1.0, 1.0),
    "reals": (-1.5, 0.0, 2.0),
    "counts": (0.0, 1.0, 3.5),
    "positives": (0.2, 1.0, 3.5),
}
# Names of the answers of a loss in messages.
_ANSWERS = ("value", "derivatives[0]", "derivatives[1]", "derivatives[2]")
_DIFFERENCE_STEP = 1e-5  # of central differences, relative to max(1, |z|)
_DIFFERENCE_TOL = 1e-5  # share of the largest derivative: above the error of differences, below any mistake
_JUMP_TOL = 1e-3  # difference of one-sided derivatives, as a share of the largest, that counts as a kink
_SAME_TOL = 1e-12  # relative: a last digit may differ between a loop over an array and a single number


def check_loss(loss: Loss, *, largest: float = 1e150, kinks: Sequence[float] = (), seed: int = 0) -> None:
    r"""Raise `AssertionError` unless a loss keeps the contract of `cavity.losses`.

    The loss must be a ``NamedTuple`` of at least one field; name its targets; return one finite answer for a number
    and for any array of margins that broadcast with the targets; agree between ``value`` and ``derivatives``; have
    the derivatives that central differences show; at a kink the half sum of both sides; and its value in ``pieces``.

    Parameters
    ----------
    loss
        The loss.
    largest
        Largest size of a prediction at which it must be finite, without a floating-point warning.
    kinks
        Further places :math:`y z` (for reals :math:`z - y`, for counts :math:`z`, for positives
        :math:`z - \log y`) where slope or curvature jump. Zero, one and the fields, of either sign, are tried anyway.
    seed
        Seed of the margins tried.

    Examples
    --------
    >>> from cavity.losses import Logistic
    >>> check_loss(Logistic(sharpness=2.0))
    """
    _check_kind(loss)
    targets = getattr(loss, "targets", None)
    _require(
        targets in _TARGETS,
        f"targets must be 'signs', 'reals', 'counts' or 'positives', got {targets!r}; return one from the property "
        "`targets`",
    )
    if offers(loss).pieces is not None:
        _check_pieces_of_arrays(loss)
    rng = np.random.default_rng(seed)
    near = np.concatenate([[0.0], 2.0 * rng.standard_normal(200), 0.2 * rng.standard_normal(200)])
    far = np.array([m for m in (1e2, 1e4, 1e8, 1e50, 1e150, largest) if m <= largest])
    fields = (getattr(loss, name) for name in loss._fields)  # type: ignore[attr-defined]
    numbers = (abs(float(field)) for field in (*fields, *kinks) if isinstance(field, (int, float)))
    sizes = {size for size in (0.0, 1.0, *numbers) if np.isfinite(size)}
    for y in _TARGETS[loss.targets]:
        _check_values(loss, y, np.concatenate([near, far, -far]))
        _check_numbers(loss, y, np.concatenate([near[:8], far, -far]))
        _check_differences(loss, y, near)
        _check_pieces(loss, y, near)
        for place in sorted({sign * size for size in sizes for sign in (-1.0, 1.0)}):
            center = {"reals": y, "positives": float(np.log(abs(y) or 1.0))}.get(loss.targets, 0.0)
            z = place * y if loss.targets == "signs" else center + place
            if loss.targets == "signs" or z - center == place:  # else rounding has missed the kink
                _check_kink(loss, y, z)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _check_kind(loss: object) -> None:
    fields = getattr(loss, "_fields", ())
    _require(
        isinstance(loss, tuple) and len(fields) > 0,
        f"a loss must be a NamedTuple with at least one field, got {type(loss).__name__} with fields {tuple(fields)}; "
        "write `class MyLoss(NamedTuple):` and give it a parameter, such as `scale: float = 1.0`",
    )


def _asked(method: Callable[[Any, Any], Any], y: Any, z: Any) -> Any:
    """Call a method of a loss, with floating-point trouble and changed arguments as assertions."""
    given = np.copy(y), np.copy(z)
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            answer = method(y, z)
    except Exception as error:
        shown = f"arrays of shapes {y.shape} and {z.shape}" if np.ndim(z) else f"the number {z}"
        raise AssertionError(
            f"a loss must take every finite prediction, but on {shown} (size up to {np.max(np.abs(z)):g}) it raised "
            f"{type(error).__name__}: {error}; use numpy functions, comparisons as factors in place of `if`, and "
            "exponentials of negative numbers only"
        ) from error
    _require(
        np.array_equal(y, given[0]) and np.array_equal(z, given[1]),
        "a loss must not write into its arguments, but y or z has changed; compute into new arrays",
    )
    return answer


def _derivatives(loss: Loss, y: Any, z: Any) -> tuple[Any, Any, Any, Any]:
    """Value, and all that `derivatives` returns."""
    value, rest = _asked(loss.value, y, z), _asked(loss.derivatives, y, z)
    _require(
        isinstance(rest, tuple) and len(rest) == 3,
        f"derivatives must return three things, value, slope and curvature, got {rest!r}",
    )
    for name, answer in zip(_ANSWERS, (value, *rest), strict=True):
        _check_shape(name, answer, np.shape(z))
    return (value, *rest)


def _check_shape(name: str, answer: Any, wanted: tuple[int, ...]) -> None:
    _require(
        np.shape(answer) == wanted,
        f"{name} must have the shape of y and z, for value also broadcast, {wanted}, got {np.shape(answer)}; "
        "add 0.0 * z to a constant",
    )


def _check_numbers(loss: Loss, y: float, z: FloatArray) -> None:
    """Whether numbers get the answers of arrays, and whether targets and predictions may be broadcast."""
    labels = np.full_like(z, y)
    arrays = _derivatives(loss, labels, z)
    for j, point in enumerate(z.tolist()):
        for name, array, number in zip(_ANSWERS, arrays, _derivatives(loss, y, point), strict=True):
            _require(
                bool(_close(number, array[j], _SAME_TOL)),
                f"{name} must be the same for a number as in an array, got {number} and {array[j]} at y={y}, "
                f"z={point}; avoid what depends on the shape",
            )
    _check_shape("value", _asked(loss.value, labels[:, None], z[None, :]), (z.size, z.size))


def _check_values(loss: Loss, y: float, z: FloatArray) -> None:
    value, first, slope, curvature = _derivatives(loss, np.full_like(z, y), z)
    for name, found in (("value", value), ("slope", slope), ("curvature", curvature)):
        bad = np.flatnonzero(~np.isfinite(found))
        _require(
            bad.size == 0,
            f"{name} must be finite for every finite prediction, got {found[bad[:1]]} at y={y}, z={z[bad[:1]]}; "
            "exponentiate negative numbers only, and avoid inf - inf and 0 * inf",
        )
    worst = int(np.argmax(np.abs(value - first)))
    _require(
        bool(np.all(_close(value, first, _SAME_TOL))),
        f"value(y, z) must equal derivatives(y, z)[0], got {value[worst]} and {first[worst]} at y={y}, z={z[worst]}; "
        "write both from the same lines",
    )


def _check_differences(loss: Loss, y: float, z: FloatArray) -> None:
    """Whether slope and curvature are those of the value, away from kinks."""
    h = _DIFFERENCE_STEP * np.maximum(1.0, np.abs(z))
    value, _, slope, curvature = _derivatives(loss, np.full_like(z, y), z)
    up, _, slope_up, _ = _derivatives(loss, np.full_like(z, y), z + h)
    down, _, slope_down, _ = _derivatives(loss, np.full_like(z, y), z - h)
    jumps = np.zeros(z.size, dtype=bool)
    for name, found, left, here, right in (
        ("slope", slope, down, value, up),
        ("curvature", curvature, slope_down, slope, slope_up),
    ):
        central = (right - left) / (2.0 * h)
        size = 1.0 + float(np.max(np.abs(central[~jumps]), initial=0.0))
        jumps |= np.abs((right - here) - (here - left)) / h > _JUMP_TOL * size
        wrong = ~jumps & ~(np.abs(found - central) <= _DIFFERENCE_TOL * size)
        worst = int(np.argmax(wrong))
        _require(
            not np.any(wrong),
            f"the {name} must be the derivative of what comes before it, {central[worst]:.8g} by central differences, "
            f"got {found[worst]:.8g} at y={y}, z={z[worst]:.6g}; derive it with respect to z, not y z",
        )
    _require(
        int(np.sum(jumps)) <= z.size // 2,
        f"a loss must be smooth almost everywhere, but {np.sum(jumps)} of {z.size} random predictions lie at a jump; "
        "write it as few smooth pieces, at a scale near one",
    )


def _check_kink(loss: Loss, y: float, z: float) -> None:
    """Whether slope and curvature are the half sums of both sides; also true where nothing jumps."""
    h = 1e-3 * _DIFFERENCE_STEP * max(1.0, abs(z))
    below, here, above = (_derivatives(loss, y, float(t))[2:] for t in (z - h, z, z + h))
    for name, left, found, right in zip(("slope", "curvature"), below, here, above, strict=True):
        wanted, size = 0.5 * (left + right), 1.0 + abs(left) + abs(right)
        _require(
            bool(abs(right - left) <= _JUMP_TOL * size or abs(found - wanted) <= _DIFFERENCE_TOL * size),
            f"the {name} at a kink must be the half sum of both sides, {wanted:.8g} between {left:.8g} and "
            f"{right:.8g}, got {found:.8g} at y={y}, z={z}; np.sign is 0 at 0 and gives it: 0.5 + 0.5 * np.sign(t)",
        )


def _check_pieces(loss: Any, y: float, z: FloatArray) -> None:
    """Whether the pieces of a loss, if it names some, are in order, join, and are its value."""
    offered, start = offers(loss).pieces, -np.inf
    pieces = offered(y) if offered is not None else ()
    inner = np.array([piece[0] for piece in pieces[:-1]])
    points = np.concatenate([z, inner - 1.0, inner, inner + 1.0, 0.5 * (inner[1:] + inner[:-1])])
    for end, slope, offset in pieces:
        t = points[(start <= points) & (points <= end)]  # with both ends: where pieces meet, they agree
        excess = np.abs(loss.value(y, t) - offset - slope * t) - _SAME_TOL * (1.0 + abs(offset) + np.abs(slope * t))
        _require(
            all(isinstance(a, float) for a in (end, slope, offset)) and start < end and bool(np.all(excess <= 0.0)),
            "a piece must be three floats, an end beyond the one before, the slope, and the offset with which "
            f"offset + slope * z is the value, got {(end, slope, offset)} after {start} for y={y}",
        )
        start = end
    _require(not pieces or start == np.inf, f"the last piece must end at infinity, got {start} for y={y}")


def _check_pieces_of_arrays(loss: Any) -> None:
    """Whether an array of targets has the pieces of its numbers."""
    y = np.array(_TARGETS[loss.targets])
    try:
        found = [[np.broadcast_to(a, y.shape) for a in piece] for piece in loss.pieces(y)]
    except Exception as error:
        raise AssertionError(
            f"pieces must take an array of targets, but on one of shape {y.shape} it raised {type(error).__name__}: "
            f"{error}; use numpy functions, and comparisons as factors in place of `if`"
        ) from error
    wanted = [loss.pieces(float(a)) for a in y]
    _require(
        np.array_equal(np.transpose(found, (2, 0, 1)), wanted),
        f"pieces must be the same for a number as in an array, got {found} for y={y} and {wanted} one by one",
    )


def _close(a: Any, b: Any, tol: float) -> Any:
    return np.abs(a - b) <= tol * np.maximum(np.abs(a), np.abs(b))


def check_joint_loss(loss: JointLoss, *, largest: float = 1e100, seed: int = 0) -> None:
    r"""Raise `AssertionError` unless a loss of several predictors keeps the contract of `cavity.losses.joint`.

    The loss must be a ``NamedTuple`` of at least one field; name its targets and its number of predictors; return one
    finite value per row for any array of predictors; and, where it offers ``derivatives`` and ``averages``, have those
    that central differences of its values show, and their means.

    Parameters
    ----------
    loss
        The loss.
    largest
        Largest size of a predictor at which it must be finite.
    seed
        Seed of the predictors tried.

    Examples
    --------
    >>> from cavity.losses.joint import Softmax
    >>> check_joint_loss(Softmax(4))
    """
    _check_kind(loss)
    count = getattr(loss, "predictors", None)
    _require(isinstance(count, int) and count >= 1, f"predictors must be a whole number from 1 on, got {count!r}")
    targets = getattr(loss, "targets", None)
    _require(targets in ("classes", "reals"), f"targets must be 'classes' or 'reals', got {targets!r}")
    rng = np.random.default_rng(seed)
    assert isinstance(count, int)
    z = rng.normal(scale=2.0, size=(40, count))
    y = rng.integers(count + 1, size=40).astype(float) if targets == "classes" else rng.normal(size=40)
    value = np.asarray(loss.value(y, z))
    _require(value.shape == (40,), f"value must give one number per row, got the shape {value.shape} for 40 rows")
    _require(bool(np.isfinite(value).all()), "value must be finite at ordinary predictors")
    alone = [float(loss.value(t, row)) for t, row in zip(y, z, strict=True)]
    _require(np.allclose(alone, value, rtol=_SAME_TOL, atol=_SAME_TOL), "value must not depend on the other rows")
    nested = np.asarray(loss.value(y[:, None], np.stack([z, z + 1.0], axis=1)))
    fits = nested.shape == (40, 2) and np.allclose(nested[:, 0], value, rtol=_SAME_TOL, atol=_SAME_TOL)
    _require(fits, "value must take predictors of shape (rows, nodes, K) with targets of shape (rows, 1)")
    with np.errstate(over="ignore"):
        far = np.asarray(loss.value(y, largest * np.sign(z)))
    _require(not np.any(np.isnan(far)), f"value must not be NaN at predictors of {largest:g}")
    if hasattr(loss, "derivatives"):
        first, slopes, curvatures = (np.asarray(part) for part in loss.derivatives(y, z))
        fits = (first.shape, slopes.shape, curvatures.shape) == ((40,), (40, count), (40, count, count))
        _require(fits, f"derivatives must have the shapes (rows,), (rows, {count}) and (rows, {count}, {count})")
        _require(np.allclose(first, value, rtol=_SAME_TOL, atol=_SAME_TOL), "derivatives must begin with the value")
        for j in range(count):
            step = np.zeros_like(z)
            step[:, j] = _DIFFERENCE_STEP * np.maximum(1.0, np.abs(z[:, j]))
            above, below = loss.derivatives(y, z + step), loss.derivatives(y, z - step)
            for i, (name, found) in enumerate((("slopes", slopes[:, j]), ("curvatures", curvatures[:, j]))):
                rise = np.asarray(above[i]) - np.asarray(below[i])
                central = rise / (2.0 * step[:, j]).reshape(-1, *(1,) * (rise.ndim - 1))
                error = np.max(np.abs(central - found)) / max(1.0, float(np.max(np.abs(central))))
                _require(bool(error <= _DIFFERENCE_TOL), f"{name} must be those of differences, in z{j}")
    if hasattr(loss, "averages"):
        nodes, weights = np.stack([z, z + 0.5, z - 0.2], axis=1), np.array([0.5, 0.3, 0.2])
        means = loss.averages(y, nodes, weights, np.zeros(40))
        each = [loss.derivatives(y, nodes[:, j]) for j in range(3)]  # type: ignore[attr-defined]
        for i, name in enumerate(("values", "slopes", "curvatures")):
            wanted = sum(w * np.asarray(parts[i]) for w, parts in zip(weights, each, strict=True))
            _require(np.allclose(means[i], wanted, rtol=1e-9, atol=1e-9), f"averages must give the mean of {name}")


def check_scheme(scheme: Scheme, *, seed: int = 0) -> None:
    r"""Raise `AssertionError` unless a scheme keeps the contract of `cavity.schemes`.

    The site must have the coordinates of the cavity, no coordinate at all included; be finite for a smooth bounded
    factor; be the same when asked again; scale, :math:`\beta` times u being one thing; and be NaN or infinite,
    not an exception, where the cost is not finite. Scheme, factor and cavity must stay as they were. Factors that
    ``check`` refuses are passed over, but it must take a `LinearFactor`.

    Parameters
    ----------
    scheme
        The scheme.
    seed
        Seed of the factors and cavities tried.

    Examples
    --------
    >>> from cavity.schemes import VariationalQuadrature
    >>> check_scheme(VariationalQuadrature())
    """
    _require(
        isinstance(getattr(scheme, "name", None), str) and callable(getattr(scheme, "check", None)),
        f"a scheme must have a string `name` and a method `check(factor)`, got {scheme!r}; "
        "add `name: ClassVar[str]` and a `check` that raises ValueError for factors it cannot serve, or passes",
    )
    rng = np.random.default_rng(seed)
    for dim in (1, 3):
        rows, signs = rng.standard_normal((5, dim)), rng.choice([-1.0, 1.0], 5)
        holes = np.insert(rows, 1, 0.0, axis=1)
        linear = LinearFactor(Logistic(), rows, signs)
        weighted = LinearFactor(Logistic(), holes, signs, weights=np.arange(5.0))
        for factor in (linear, weighted, CostFactor(linear.cost, dim=dim, vectorized=True)):
            if _takes(scheme, factor):
                _check_site(scheme, factor, _random_cavity(rng, dim))
    _check_scaling(scheme, rng)
    _check_nothing_touched(scheme)
    for cost in (np.nan, np.inf, -np.inf):
        _check_trouble(scheme, cost)


class _Fixed(NamedTuple):
    """A loss of one value at every prediction, or beyond a threshold only."""

    cost: float
    threshold: float = -np.inf

    @property
    def targets(self) -> str:
        return "signs"

    def value(self, y: Any, z: Any) -> Any:
        return np.where(z > self.threshold, self.cost, 0.0) + 0.0 * y

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        value = self.value(y, z)
        return value, 0.0 * value, 0.0 * value


def _takes(scheme: Scheme, factor: Factor) -> bool:
    try:
        scheme.check(factor)
    except Exception as error:
        touched = factor.dim if factor.coordinates is None else factor.coordinates.size
        _require(
            isinstance(error, ValueError) and not isinstance(factor, LinearFactor),
            f"check must take a {type(factor).__name__} of {touched} coordinates, or raise ValueError if it is "
            f"no LinearFactor, but raised {type(error).__name__}: {error}; refuse what the factor lacks only",
        )
        return False
    return True


def _random_cavity(rng: np.random.Generator, dim: int) -> FactorialGaussian:
    return FactorialGaussian.from_moments(rng.standard_normal(dim), rng.uniform(0.05, 0.3, dim))


def _site(
    scheme: Scheme, factor: Factor, cavity: FactorialGaussian, beta: float, case: str, needed: str
) -> FactorialGaussian:
    """Ask for a site as a backend does, with exceptions and wrong kinds as assertions."""
    try:
        with np.errstate(all="ignore"):
            site = scheme.approximate(factor, cavity, beta)
    except Exception as error:
        raise AssertionError(
            f"approximate must return {needed} for {case}, but raised {type(error).__name__}: {error}; "
            "numerical trouble is data: return NaN entries, and write into copies only"
        ) from error
    _require(
        isinstance(site, FactorialGaussian) and site.dim == cavity.dim,
        f"approximate must return a FactorialGaussian of the cavity's {cavity.dim} coordinates for {case}, "
        f"got {site!r}; take mean and precision from the cavity it is given, not from factor.dim",
    )
    return site


def _check_site(scheme: Scheme, factor: Factor, cavity: FactorialGaussian) -> None:
    case = f"a {type(factor).__name__} of {cavity.dim} coordinates"
    points = cavity.mean + cavity.std * np.linspace(-1.0, 1.0, 3)[:, None]
    before = repr(scheme), cavity**1.0, factor.cost(points)
    first, second = (_site(scheme, factor, cavity, 0.5, case, "a finite site") for _ in range(2))
    _require(first.is_finite, f"approximate must return a finite site for {case}, smooth and bounded, got {first!r}")
    _require(
        first == second,
        f"approximate must return the same site when asked again, got {first!r} then {second!r} for {case}; "
        "draw random numbers from a seed that is a field of the scheme",
    )
    _require(
        repr(scheme) == before[0] and cavity == before[1] and np.array_equal(factor.cost(points), before[2]),
        f"approximate must leave scheme, cavity and factor as they were, but one of them changed for {case}; "
        "make the scheme a frozen dataclass and compute into new arrays",
    )


def _check_scaling(scheme: Scheme, rng: np.random.Generator) -> None:
    rows, signs = rng.standard_normal((5, 2)), np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    cavity, needed = _random_cavity(rng, 2), "a finite site"
    once, thrice = (LinearFactor(Logistic(), rows, signs, weights=np.full(5, w)) for w in (1.0, 3.0))
    by_cost = _site(scheme, thrice, cavity, 0.5, "a LinearFactor", needed)
    by_beta = _site(scheme, once, cavity, 1.5, "a LinearFactor", needed)
    for name in ("log_scale", "shift", "precision"):
        a, b = np.asarray(getattr(by_cost, name)), np.asarray(getattr(by_beta, name))
        _require(  # up to what iterations that end early may differ by
            bool(np.max(np.abs(a - b)) <= 1e-6 * (1.0 + np.max(np.abs(a)))),
            f"beta and the cost must count as one product, but {name} is {a} for three times the cost at beta 0.5 and "
            f"{b} for the cost at beta 1.5; use beta * cost wherever the cost enters",
        )


def _check_nothing_touched(scheme: Scheme) -> None:
    """Whether a factor of no coordinate gets the exact site, a constant."""
    rows = LinearFactor(Logistic(), np.zeros((2, 3)), [1.0, -1.0])
    constant = CostFactor(lambda _: 1.5, dim=3, coordinates=np.array([], dtype=np.intp))
    for factor, cost in ((rows, 2.0 * np.log(2.0)), (constant, 1.5)):
        if _takes(scheme, factor):
            case = f"a {type(factor).__name__} that touches no coordinate"
            site = _site(scheme, factor, FactorialGaussian.uniform(0), 0.5, case, "a site without coordinates")
            _require(
                abs(site.log_scale + 0.5 * cost) <= 1e-12,
                f"the site of {case} must be the constant of log_scale {-0.5 * cost}, got {site.log_scale}; "
                "let sums over no coordinate be zero",
            )


def _check_trouble(scheme: Scheme, cost: float) -> None:
    """Whether costs that are not finite give such a site, and no exception."""
    cavity = FactorialGaussian.from_moments(mean=[0.1, -0.2], variance=[1.0, 0.5])
    rows, signs = [[1.0, 0.5], [-0.3, 1.0]], [1.0, -1.0]
    needed = "a site with NaN or infinite entries"
    for factor in (
        LinearFactor(_Fixed(cost), rows, signs),
        CostFactor(lambda _: cost, dim=2),
    ):
        if _takes(scheme, factor):
            case = f"a {type(factor).__name__} whose cost is {cost}"
            site = _site(scheme, factor, cavity, 1.0, case, needed)
            _require(
                not site.is_finite,
                f"approximate must return {needed} for {case}, got {site!r}; do not replace NaN by numbers",
            )
    # An infinite cost in places is a density of zero there: a site may exist, an exception may not.
    partial = LinearFactor(_Fixed(cost, threshold=0.5), rows, signs)
    _site(scheme, partial, cavity, 1.0, f"a LinearFactor whose cost is {cost} in places", "a site")


def check_term(term: Term, frame: Any, *, seed: int = 0) -> None:
    r"""Raise `AssertionError` unless a term keeps the contract of `cavity.terms`.

    What it learns must name its coefficients, all differently; have parts of as many; make the columns of a table row
    by row, also after it was pickled; and say the mean square of independent columns. Structures must have the
    derivatives that differences show, the determinant and the products of a dense matrix, bounds around where they
    start, and the spread that is asked for.

    Parameters
    ----------
    term
        The term.
    frame
        A mapping of names to arrays that the term can learn from, small enough for dense matrices.
    seed
        Seed of the hyperparameters tried.

    Examples
    --------
    >>> from cavity.terms import Walk
    >>> check_term(Walk("day"), {"day": np.arange(8.0)})
    """
    rows = len(next(iter(frame.values())))
    learned = term.learn(frame, np.ones(rows))
    names, parts = list(learned.names), learned.parts
    _require(len(set(names)) == len(names), "names must differ from each other")
    widths = [part.width for part in parts]
    _require(sum(widths) == len(names), f"parts of {widths} coefficients must have one name for each, got {len(names)}")
    lacking = [name for name in learned.variables if name not in frame]
    _require(not lacking, f"variables must be columns of the table, got {lacking}")

    def columns(one: Any, table: Any) -> FloatArray:
        made = one.columns(table)
        return np.asarray(made.toarray() if sparse.issparse(made) else made, dtype=np.float64)

    made = columns(learned, frame)
    _require(made.shape == (rows, len(names)), f"columns must have the shape {(rows, len(names))}, got {made.shape}")
    _require(bool(np.all(np.isfinite(made))), "columns must be finite")
    some = {name: np.asarray(values)[rows // 2 :] for name, values in frame.items()}
    _require(np.array_equal(columns(learned, some), made[rows // 2 :]), "columns must not depend on the other rows")
    again = pickle.loads(pickle.dumps(learned))
    _require(np.array_equal(columns(again, frame), made), "columns must be the same after pickling")
    start, rng = 0, np.random.default_rng(seed)
    for part in parts:
        own = made[:, start : start + part.width]
        start += part.width
        if part.structure is not None:
            _check_structure(part, rng)
        elif part.variances is not None:
            fits = np.shape(part.variances) == (part.width,) and bool(np.all(np.asarray(part.variances) > 0.0))
            _require(fits, f"variances of {part.label!r} must be {part.width} positive numbers")
        elif part.size is not None:
            size = float(np.mean(np.sum(own**2, axis=1)))
            _require(
                bool(np.isclose(part.size, size, rtol=1e-6)),
                f"the size of {part.label!r} must be the mean over the rows of the sum of squares of its columns, "
                f"{size:g}, got {part.size:g}",
            )


def _check_structure(part: Part, rng: np.random.Generator) -> None:
    structure, label = part.structure, part.label
    assert structure is not None
    _require(structure.width == part.width, f"the structure of {label!r} must have the width of its part")
    _require(
        bool(np.array_equal(structure.left[: part.width], np.arange(part.width)))
        and bool(np.array_equal(structure.right[: part.width], np.arange(part.width)))
        and bool(np.all(structure.left[part.width :] < structure.right[part.width :])),
        f"entries of {label!r} must be the diagonal, then pairs with left < right",
    )
    first = structure.start(2.0)
    _require(
        bool(np.all((structure.lower < first) & (first < structure.upper))),
        f"the bounds of {label!r} must lie around where it starts",
    )
    spread = structure.spread(first)[0]
    _require(bool(np.isclose(spread, 2.0)), f"{label!r} must start at the spread 2 that is asked for, got {spread:g}")

    def dense(entries: FloatArray) -> FloatArray:
        found = np.zeros((part.width, part.width))
        found[structure.left, structure.right] = entries
        return found + np.triu(found, 1).T

    psi = first + rng.uniform(-0.5, 0.5, first.size)
    x, precision = rng.standard_normal(part.width), dense(structure.entries(psi))
    _require(
        bool(np.isclose(structure.log_det(psi)[0], np.linalg.slogdet(precision)[1], rtol=1e-6, atol=1e-4)),
        f"log_det of {label!r} must be that of its entries",
    )
    slopes, pulled = structure.derivatives(psi), structure.follow(psi, x)
    largest = float(np.max(np.abs(precision)))
    for k, step in enumerate(_DIFFERENCE_STEP * np.eye(psi.size)):
        rise = (structure.entries(psi + step) - structure.entries(psi - step)) / (2.0 * _DIFFERENCE_STEP)
        _require(
            bool(np.max(np.abs(slopes[k] - rise)) <= _DIFFERENCE_TOL * largest),
            f"derivatives of {label!r} must be those of differences, in hyperparameter {k}",
        )
        for name, function, found in (
            ("log_det", lambda at: structure.log_det(at)[0], structure.log_det(psi)[1][k]),
            ("spread", lambda at: np.log(structure.spread(at)[0]), structure.spread(psi)[1][k]),
        ):
            central = (function(psi + step) - function(psi - step)) / (2.0 * _DIFFERENCE_STEP)
            _require(
                bool(abs(central - found) <= 1e-4 * max(1.0, abs(central))),
                f"the gradient of {name} of {label!r} must be that of differences, in hyperparameter {k}",
            )
        slope = dense(slopes[k])
        wanted = slope @ np.linalg.solve(precision, slope @ x)
        _require(
            bool(np.allclose(slope @ pulled[k], wanted, rtol=1e-4, atol=1e-6 * largest)),
            f"follow of {label!r} must solve for the derivatives times x, in hyperparameter {k}",
        )
