"""What several test files share: components, random problems, and comparisons."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

import cavity
from cavity import CostFactor, FactorialGaussian, LinearFactor
from cavity.losses import Hinge, Logistic, QuasiZeroOne
from cavity.schemes import QuickLaplace

SIGN_LOSSES = (Logistic(), Hinge(), QuasiZeroOne())


def quietly(function, *args, **kwargs):
    """Call, where the test looks at the status itself or does not care: nobody needs to be warned of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return function(*args, **kwargs)


def bare_fit(factors, prior, scheme="vq", **kwargs):
    """Run EP as the paper has it, without safeguards."""
    return cavity.fit(factors, prior, scheme, **{"safeguards": False, "covariance": "diagonal", **kwargs})


def fit(factors, prior, scheme="vq", **kwargs):
    """Do so in plain Python: compiled loops are compared with it elsewhere."""
    return quietly(bare_fit, factors, prior, scheme, **{"compiled": False, **kwargs})


def all_components(module):
    """Everything in ``__all__``, built without arguments."""
    return [getattr(module, name)() for name in module.__all__]


def finite(limit):
    return st.floats(-limit, limit, allow_subnormal=False)


def vectors(dim, elements):
    return hnp.arrays(np.float64, dim, elements=elements)


@st.composite
def gaussians(draw, dim=None, proper=True):
    """Any Gaussian of ``dim`` coordinates (1 to 4 by default), with precisions of any sign unless proper."""
    d = draw(st.integers(1, 4)) if dim is None else dim
    precision = st.floats(1e-3, 1e3) if proper else finite(1e3)
    return FactorialGaussian(draw(finite(50.0)), draw(vectors(d, finite(50.0))), draw(vectors(d, precision)))


seeds = st.integers(0, 2**32 - 1)


def normalized(gaussian):
    """The same Gaussian with integral one."""
    return FactorialGaussian(gaussian.log_scale - gaussian.log_mass, gaussian.shift, gaussian.precision)


def kl_divergence(f, g):
    r"""The paper's generalised divergence, eq. 8, in which masses count: the integral of f log(f/g) - f + g."""
    ratio, a, b = f.variance / g.variance, f.log_mass, g.log_mass
    plain = 0.5 * float(np.sum(ratio - 1.0 - np.log(ratio) + (f.mean - g.mean) ** 2 / g.variance))
    return float(np.exp(a) * (a - b + plain - 1.0) + np.exp(b))


def random_cavity(rng, dim, spread=1.0):
    return FactorialGaussian.from_moments(2.0 * rng.standard_normal(dim), np.exp(spread * rng.standard_normal(dim)))


def random_rows(rng, n, dim, density=0.6, untouched=True):
    """Rows with zeros, and with a column of them if wanted and possible."""
    X = rng.standard_normal((n, dim)) * (rng.uniform(size=(n, dim)) < density)
    if untouched and dim > 1:
        X[:, rng.integers(dim)] = 0.0
    return X


def random_signs(rng, n):
    return rng.choice([-1.0, 1.0], n)


def random_counts(rng, n):
    return rng.poisson(2.0, n).astype(float)


def random_targets(loss, rng, n):
    """Targets of the kind that the loss is for."""
    kinds = {"signs": random_signs, "reals": np.random.Generator.standard_normal, "counts": random_counts}
    kinds["positives"] = lambda r, size: r.gamma(2.0, 1.0, size)
    return kinds[loss.targets](rng, n)


def as_cost_factor(factor):
    """The same cost, as a black box over the same coordinates."""
    return CostFactor(factor.cost, dim=factor.dim, coordinates=factor.coordinates, vectorized=True)


def size(factor):
    return factor.dim if factor.coordinates is None else factor.coordinates.size


def gaussian_cost(center, precision, constant=0.0):
    """A factor whose factor of the density is a factorial Gaussian, with its derivatives, and that Gaussian."""
    center, precision = np.asarray(center, dtype=float), np.asarray(precision, dtype=float)
    factor = CostFactor(
        lambda t: constant + 0.5 * (t - center) ** 2 @ precision,
        dim=center.size,
        gradient=lambda t: precision * (t - center),
        curvature=lambda t: precision,
        vectorized=True,
    )
    exact = FactorialGaussian(-constant - 0.5 * precision @ center**2, precision * center, precision)
    return factor, exact


def gaussian_factors(rng, count=4, dim=2):
    return [gaussian_cost(rng.standard_normal(dim), rng.uniform(0.3, 2.0, dim), rng.uniform())[0] for _ in range(count)]


def exact_posterior(factors, prior, beta=1.0):
    for factor in factors:
        prior = prior * QuickLaplace().approximate(factor, standard_prior(factor.dim), beta)
    return prior


class Turning:
    """A Gaussian cost that is ``bad`` from its call ``first`` to ``last``; call 0 is the check at the start."""

    def __init__(self, bad=np.nan, first=1, last=np.inf, center=1.0):
        self.bad, self.first, self.last, self.center, self.calls = bad, first, last, center, -1

    def __call__(self, points):
        self.calls += 1
        values = 0.5 * np.sum((points - self.center) ** 2, axis=1)
        return np.full_like(values, self.bad) if self.first <= self.calls <= self.last else values

    def factor(self, dim=1):
        return CostFactor(self, dim, vectorized=True)


def concave(strength, dim=1):
    """The factor of the cost ``-strength * t**2 / 2``: its site has a negative precision."""
    return gaussian_cost(np.zeros(dim), np.full(dim, -strength))[0]


def logistic_factors(rng, count=6, rows=4, dim=3, **kwargs):
    return [
        LinearFactor(Logistic(), rng.standard_normal((rows, dim)), random_signs(rng, rows), **kwargs)
        for _ in range(count)
    ]


def standard_prior(dim, variance=1.0):
    return FactorialGaussian.from_moments(np.zeros(dim), variance)


def storages(X):
    return {"dense": X, "csr": sparse.csr_array(X)}


def assert_close(found, wanted, tol):
    """Compare arrays entry by entry, absolutely."""
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=tol)


def assert_same(found, wanted, tol):
    """Compare natural parameters, each vector relative to its size and one."""
    for name in ("log_scale", "shift", "precision"):
        a, b = np.asarray(getattr(found, name)), np.asarray(getattr(wanted, name))
        scale = 1.0 + np.max(np.abs(b), initial=0.0)
        assert np.max(np.abs(a - b), initial=0.0) <= tol * scale, f"{name}: {a} is not {b}"


class Breaking(NamedTuple):
    """Half squares, unless the target is too large; for one row at a time, as compiled code asks."""

    limit: float = 5.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        if y > self.limit:
            raise OverflowError("too far out")
        return 0.5 * (y - z) ** 2

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        if y > self.limit:
            raise OverflowError("too far out")
        return 0.5 * (y - z) ** 2, z - y, 1.0 + 0.0 * z


class Asymmetric(NamedTuple):
    """A user's own loss: steeper on one side, with a kink, and no pieces."""

    steepness: float = 1.5

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.maximum(y - z, 0.0) * self.steepness + np.maximum(z - y, 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        below = 0.5 + 0.5 * np.sign(y - z)
        return self.value(y, z), 1.0 - below - self.steepness * below, 0.0 * z
