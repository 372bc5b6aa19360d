"""The contract of schemes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from cavity.factors import CostFactor, Factor, LinearFactor
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses import Logistic
from cavity.schemes._protocol import Scheme
from cavity.testing._losses import require


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
    require(
        isinstance(getattr(scheme, "name", None), str) and callable(getattr(scheme, "check", None)),
        f"a scheme must have a string `name` and a method `check(factor)`, got {scheme!r}; "
        "add `name: ClassVar[str]` and a `check` that raises ValueError for factors it cannot serve, or passes",
    )
    rng = np.random.default_rng(seed)
    for factor in _smooth_factors(scheme, rng):
        _check_site(scheme, factor, _random_cavity(rng, _size(factor)))
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


def _smooth_factors(scheme: Scheme, rng: np.random.Generator) -> Iterator[Factor]:
    """Smooth bounded factors in one and three coordinates, of every kind that the scheme takes."""
    for d in (1, 3):
        rows, signs = rng.standard_normal((5, d)), rng.choice([-1.0, 1.0], 5)
        holes = np.insert(rows, 1, 0.0, axis=1)
        linear = LinearFactor(Logistic(), rows, signs)
        for factor in (
            linear,
            LinearFactor(Logistic(), holes, signs, weights=np.arange(5.0)),
            CostFactor(linear.cost, dim=d, vectorized=True),
        ):
            if _takes(scheme, factor):
                yield factor


def _takes(scheme: Scheme, factor: Factor) -> bool:
    try:
        scheme.check(factor)
    except Exception as error:
        require(
            isinstance(error, ValueError) and not isinstance(factor, LinearFactor),
            f"check must take a {type(factor).__name__} of {_size(factor)} coordinates, or raise ValueError if it is "
            f"no LinearFactor, but raised {type(error).__name__}: {error}; refuse what the factor lacks only",
        )
        return False
    return True


def _size(factor: Factor) -> int:
    return factor.dim if factor.coordinates is None else factor.coordinates.size


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
    require(
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
    require(first.is_finite, f"approximate must return a finite site for {case}, smooth and bounded, got {first!r}")
    require(
        first == second,
        f"approximate must return the same site when asked again, got {first!r} then {second!r} for {case}; "
        "draw random numbers from a seed that is a field of the scheme",
    )
    require(
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
        require(  # up to what iterations that end early may differ by
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
            require(
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
            require(
                not site.is_finite,
                f"approximate must return {needed} for {case}, got {site!r}; do not replace NaN by numbers",
            )
    # An infinite cost in places is a density of zero there: a site may exist, an exception may not.
    partial = LinearFactor(_Fixed(cost, threshold=0.5), rows, signs)
    _site(scheme, partial, cavity, 1.0, f"a LinearFactor whose cost is {cost} in places", "a site")
