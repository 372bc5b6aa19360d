"""Schemes that see the factor at the nodes of an integration rule, or of a star, only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from cavity._checks import one_of, positive_number, shown, whole_number
from cavity._types import FloatArray
from cavity.factors import Factor, StarCosts
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.full import FullGaussian
from cavity.quadrature import NodeSet, Precision3, Rule, Spherical, Star
from cavity.schemes._full import Quadratic, find_peak, interpolated, matched, moments
from cavity.schemes._protocol import expansion
from cavity.schemes.constants import (
    ARMIJO,
    HALVINGS,
    LEAST_SQUARE,
    LEAST_VARIANCE,
    RESERVED_STARS,
    RETREAT,
    ROUNDING,
    SAME_ARM,
    SHORTEST_ARM,
)

# The rule of the paper; that of whitened coordinates.
_DEFAULT_RULE, _WHITENED_RULE = Precision3(), Spherical()


def _check_rule(rule: object) -> None:
    """Refuse what is no integration rule."""
    if isinstance(rule, type) or not all(callable(getattr(rule, name, None)) for name in ("star", "node_set")):
        raise ValueError(f"rule must be an integration rule such as cavity.quadrature.Precision3(), got {shown(rule)}")


def _node_costs(factor: Factor, cavity: FactorialGaussian, rule: Rule) -> tuple[NodeSet, FloatArray]:
    """Nodes of the rule, and the factor's cost at each."""
    rule_nodes, star = rule.node_set(cavity.dim), rule.star(cavity.dim)
    if star is not None:
        costs = factor.star(cavity.mean, star.spread * cavity.std)
        return rule_nodes, np.concatenate([[costs.center], costs.up, costs.down])
    return rule_nodes, factor.cost(cavity.mean + cavity.std * rule_nodes.nodes)


def from_standard(
    log_scale: float, shift: FloatArray, precision: FloatArray, cavity: FactorialGaussian
) -> FactorialGaussian:
    r"""Carry a Gaussian in :math:`x = (\theta - \mu)/\sigma` over to :math:`\theta`."""
    m, s = cavity.mean, cavity.std
    r, p = shift / s, precision / (s * s)
    return FactorialGaussian(float(log_scale - r @ m - 0.5 * p @ (m * m)), r + p * m, p)


@dataclass(frozen=True, slots=True)
class GaussQuadrature:
    r"""Match moments of cavity times factor computed by an integration rule (GQ, section 2.2 of the paper).

    .. math:: \hat m_i = \sum_j w_j f(\theta_j) \phi_i(\theta_j), \qquad
        p = 1/\hat v - 1/\sigma^2, \quad r = \hat m/\hat v - \mu/\sigma^2

    The default rule of precision 3 costs :math:`O(d)`, and is exact for constant factors only. Costs are taken relative
    to their minimum, which prevents underflow. If an estimated mass or variance is not positive, no site exists and its
    entries are NaN.

    Parameters
    ----------
    rule
        An integration rule. Rules of higher order are more accurate and more expensive.

    Examples
    --------
    >>> from cavity import CostFactor, FactorialGaussian
    >>> constant = CostFactor(lambda t: 3.0, dim=1)
    >>> GaussQuadrature().approximate(constant, FactorialGaussian(0.0, [0.3], [2.0])).log_scale
    -3.0
    """

    name: ClassVar[str] = "gq"
    rule: Rule = _DEFAULT_RULE

    def __post_init__(self) -> None:
        _check_rule(self.rule)

    def check(self, factor: Factor) -> None:
        """Build the nodes once, so that a rule that is too large says so at once."""
        if self.rule.star(1) is None:
            self.rule.node_set(factor.dim if factor.coordinates is None else factor.coordinates.size)

    def approximate(self, factor: Factor, cavity: FactorialGaussian, beta: float = 1.0) -> FactorialGaussian:
        """Estimate the moments, then divide by the cavity."""
        star = self.rule.star(cavity.dim)
        if star is not None:
            mass, mean, square, offset = _star_moments(factor.star(cavity.mean, star.spread * cavity.std), star, beta)
        else:
            mass, mean, square, offset = _moments(*_node_costs(factor, cavity, self.rule), beta)
        variance = square - mean * mean
        with np.errstate(all="ignore"):
            known = variance > np.maximum(LEAST_VARIANCE * square, LEAST_SQUARE)
            precision = np.where(known, 1.0 / variance, np.nan) - 1.0
            shift = mean / variance
            # Of the mass of cavity times site, what is not the scale: completed squares and widths.
            excess = 0.5 * np.sum(mean * mean / variance + np.log(np.abs(variance)))
            log_scale = np.log(mass if mass > 0.0 else np.nan) - offset - excess
            return from_standard(float(log_scale), shift, precision, cavity)

    def approximate_full(self, factor: Factor, cavity: FullGaussian, beta: float, near: FullGaussian) -> FullGaussian:
        """Estimate all moments by whitened nodes; `Spherical` stands for a star, which sees no correlations."""
        rule = (Spherical(radii=2) if self.rule.star(1) is not None else self.rule).node_set(cavity.dim)
        normalised = cavity / FullGaussian(cavity.log_mass, 0.0 * cavity.shift, 0.0 * cavity.precision)
        found = moments(factor, cavity, beta, normalised, rule)
        if found is None or not (np.linalg.eigvalsh(found.covariance) > LEAST_VARIANCE).all():
            return cavity**math.nan
        return found.gaussian(normalised) / cavity


def _star_moments(costs: StarCosts, star: Star, beta: float) -> tuple[float, FloatArray, FloatArray, float]:
    """Mass, mean and second moments in standard coordinates, and the logarithm taken out of the mass."""
    lowest = min(costs.center, float(np.min(costs.up, initial=np.inf)), float(np.min(costs.down, initial=np.inf)))
    center = np.exp(-beta * (costs.center - lowest))
    up, down = np.exp(-beta * (costs.up - lowest)), np.exp(-beta * (costs.down - lowest))
    mass = star.center_weight * center + star.arm_weight * float(np.sum(up + down))
    with np.errstate(all="ignore"):
        arm = star.arm_weight * star.spread / mass
        return float(mass), arm * (up - down), arm * star.spread * (up + down), beta * lowest


def _moments(rule: NodeSet, costs: FloatArray, beta: float) -> tuple[float, FloatArray, FloatArray, float]:
    """Compute the same for any nodes."""
    lowest = float(np.min(costs))
    weights = rule.weights * np.exp(-beta * (costs - lowest))
    mass = float(np.sum(weights))
    with np.errstate(all="ignore"):
        return mass, weights @ rule.nodes / mass, weights @ rule.nodes**2 / mass, beta * lowest


@dataclass(frozen=True, slots=True)
class VariationalQuadrature:
    r"""Minimise the divergence estimated by an integration rule (VQ, section 2.3 of the paper, eq. 10).

    .. math:: \tilde L(\alpha) = \sum_j w_j\, [g_j - f(\theta_j) \log g_j], \qquad \log g_j = \alpha^\top \phi(\theta_j)

    If there are as many nodes as unknowns, as for the rule of precision 3, the minimiser interpolates :math:`\log f` at
    every node. With :math:`h = \gamma\sigma`, the solution is

    .. math:: g_i = \frac{u_{+i} - u_{-i}}{2 h_i}, \quad c_i = \frac{u_{+i} + u_{-i} - 2 u_0}{h_i^2}, \quad
        p = \beta c, \quad r = \beta(c \mu - g).

    This closed form costs :math:`O(d)`, cannot underflow, and is exact for products of independent Gaussians. Newton's
    method, the solver of the paper, costs :math:`O(d^3)` per step. If :math:`\log f` varies by more than about 30 over
    the nodes, it stops early with a flatter site, because the far nodes no longer count in double precision.

    Parameters
    ----------
    rule
        An integration rule.
    solver
        ``"closed"`` for rules that are stars, or ``"newton"`` for every rule with positive weights and at least
        :math:`2d + 1` nodes.
    tol
        Tolerance: Newton's method ends when a step is smaller than this, relative to the unknowns.

    Examples
    --------
    >>> from cavity import CostFactor, FactorialGaussian
    >>> factor = CostFactor(lambda t: float(np.abs(t[0])), dim=1)
    >>> VariationalQuadrature().approximate(factor, FactorialGaussian(0.0, [0.0], [1.0])).precision.round(6)
    array([1.632993])
    """

    name: ClassVar[str] = "vq"
    rule: Rule = _DEFAULT_RULE
    solver: Literal["closed", "newton"] = "closed"
    tol: float = 1e-5

    def __post_init__(self) -> None:
        _check_rule(self.rule)
        object.__setattr__(self, "tol", positive_number("tol", self.tol))
        one_of("solver", self.solver, ("closed", "newton"))
        if self.solver == "closed" and self.rule.star(1) is None:
            raise ValueError(
                f"the closed form needs as many nodes as unknowns, but {self.rule!r} has more; "
                "use VariationalQuadrature(rule, solver='newton')"
            )

    def approximate(self, factor: Factor, cavity: FactorialGaussian, beta: float = 1.0) -> FactorialGaussian:
        """Interpolate or minimise."""
        star = self.rule.star(cavity.dim)
        if self.solver == "closed" and star is not None:
            steps = star.spread * cavity.std
            arms = factor.star(cavity.mean, steps)
            slope = (arms.up - arms.down) / (2.0 * steps)
            curvature = (arms.up + arms.down - 2.0 * arms.center) / steps**2
            return expansion(cavity.mean, arms.center, slope, curvature, beta)
        rule, costs = _node_costs(factor, cavity, self.rule)
        d, nodes = cavity.dim, rule.nodes
        features = np.concatenate([np.ones((len(nodes), 1)), nodes, nodes**2], axis=1)
        log_scale, unknowns = self._minimize(features, rule.weights, costs, beta)
        return from_standard(log_scale, unknowns[1 : d + 1], -2.0 * unknowns[d + 1 :], cavity)

    def approximate_full(self, factor: Factor, cavity: FullGaussian, beta: float, near: FullGaussian) -> FullGaussian:
        """Interpolate at as many nodes as a full Gaussian has numbers, whitened by the cavity; or minimise."""
        star, root = self.rule.star(cavity.dim), cavity.root
        if self.solver == "closed" and star is not None:
            return interpolated(factor, cavity.mean, root, star.spread).gaussian(beta)
        d, rule = cavity.dim, self.rule.node_set(cavity.dim)
        i, j = np.triu_indices(d)
        features = np.concatenate(
            [np.ones((len(rule.nodes), 1)), rule.nodes, rule.nodes[:, i] * rule.nodes[:, j]], axis=1
        )
        log_scale, unknowns = self._minimize(
            features, rule.weights, factor.cost(cavity.mean + rule.nodes @ root.T), beta
        )
        hessian = np.zeros((d, d))
        np.add.at(hessian, (i, j), -unknowns[d + 1 :])
        fitted = Quadratic(cavity.mean, root, -log_scale, -unknowns[1 : d + 1], hessian + hessian.T)
        return fitted.gaussian(1.0)

    def check(self, factor: Factor) -> None:
        """Refuse a rule that leaves the surrogate without a unique minimum."""
        if self.solver == "closed":
            return
        d = factor.dim if factor.coordinates is None else factor.coordinates.size
        rule = self.rule.node_set(d)
        if len(rule.nodes) < 2 * d + 1 or np.min(rule.weights) <= 0.0:
            raise ValueError(
                f"Newton's method needs positive weights and at least {2 * d + 1} nodes in {d} dimensions, but "
                f"{self.rule!r} has {len(rule.nodes)} nodes and least weight {np.min(rule.weights):.3g}"
            )

    def _minimize(
        self, features: FloatArray, weights: FloatArray, costs: FloatArray, beta: float
    ) -> tuple[float, FloatArray]:
        """Give the log scale and the unknowns of the features at the minimum of the surrogate."""
        lowest = float(np.min(costs))
        factor_values = np.exp(-beta * (costs - lowest))
        target = features.T @ (weights * factor_values)

        def surrogate(unknowns: FloatArray) -> tuple[float, FloatArray]:
            with np.errstate(over="ignore"):
                fitted = np.exp(features @ unknowns)
            return float(weights @ fitted - target @ unknowns), fitted

        # From g = 1, above every value of f, the steps of an interpolating rule descend without a line search.
        unknowns = np.zeros(features.shape[1])
        here, fitted = surrogate(unknowns)
        for _ in range(200):
            gradient = features.T @ (weights * fitted) - target
            hessian = (features * (weights * fitted)[:, None]).T @ features
            try:
                step = cho_solve(cho_factor(hessian), gradient)
            except (LinAlgError, ValueError):  # rounding hides the far nodes: keep what was reached
                break
            there, fitted = surrogate(unknowns - step)
            while not there <= here + 1e-12 * abs(here) and np.any(step):  # rounding of a sum over all nodes
                step = 0.5 * step
                there, fitted = surrogate(unknowns - step)
            unknowns, here = unknowns - step, there
            if np.linalg.norm(step) <= self.tol * np.linalg.norm(unknowns):
                break
        return float(unknowns[0]) - beta * lowest, unknowns


class _Fit(NamedTuple):
    """A parabola along every axis, about the centre of the star that it goes through."""

    center: FloatArray
    value: float
    slope: FloatArray
    curvature: FloatArray


@dataclass(frozen=True, slots=True)
class RecentredQuadrature:
    r"""Interpolate the cost around the peak of cavity times fitted factor, without derivatives (RVQ).

    A star is a centre :math:`t` with one node up and down along each axis, at distances :math:`h`. The first star has
    its centre at the cavity mean, and :math:`h = \gamma\sigma`. Each star gives a slope :math:`g` and a curvature
    :math:`c` as in `VariationalQuadrature`. The next star is

    .. math:: t \leftarrow t - a\,\frac{\beta g + (t - \mu)/\sigma^2}{w}, \qquad h = \frac{\gamma}{\sqrt w}, \qquad
        w = \beta \max(c, 0) + 1/\sigma^2,

    with a step size :math:`a \le 1` that increases cavity times factor, until :math:`t` and :math:`h` converge. The
    site is that of the last star, :math:`p = \beta c` and :math:`r = \beta (c t - g)`.

    If no step size increases cavity times factor although all curvatures are positive, :math:`t` is at a kink, where a
    convex cost has many slopes; :math:`g` is then the slope that balances the cavity. Exact for products of independent
    Gaussians. Usually two to four stars per factor are needed. If the cost at a node is not finite, the node is moved
    closer. If the cost at the centre is not finite, there is no site, and its entries are NaN or infinite.

    Parameters
    ----------
    spread
        Distance :math:`\gamma` of the nodes, in standard deviations of cavity times site.
    tol
        Tolerance: the centre has converged when a step is shorter than this, in the same unit.
    max_stars
        Maximum number of stars; the last ten are reserved for nodes that must be moved closer.
    rule
        Integration rule with all correlations, where it takes the place of the star.

    Examples
    --------
    >>> from cavity import CostFactor, FactorialGaussian
    >>> factor = CostFactor(lambda t: 5.0 * abs(float(t[0]) - 1.0), dim=1)
    >>> cavity = FactorialGaussian.from_moments([0.0], variance=1.0)
    >>> (cavity * RecentredQuadrature().approximate(factor, cavity)).mean.round(2)
    array([0.93])
    """

    name: ClassVar[str] = "rvq"
    spread: float = math.sqrt(3.0)
    tol: float = 0.01
    max_stars: int = 40
    rule: Rule = _WHITENED_RULE

    def __post_init__(self) -> None:
        _check_rule(self.rule)
        object.__setattr__(self, "spread", positive_number("spread", self.spread))
        object.__setattr__(self, "tol", positive_number("tol", self.tol))
        object.__setattr__(self, "max_stars", whole_number("max_stars", self.max_stars, least=RESERVED_STARS + 1))

    def check(self, factor: Factor) -> None:
        """Take every factor."""

    def approximate_full(self, factor: Factor, cavity: FullGaussian, beta: float, near: FullGaussian) -> FullGaussian:
        """Minimise the divergence by a rule that stands where cavity times factor has its moments.

        The rule has more nodes than the Gaussian has numbers, and about cavity times factor itself the minimum is where
        the moments agree under the rule. It starts at ``near``; where it finds no rest there, at the peak.
        """
        rule = self.rule.node_set(cavity.dim)
        found = matched(factor, cavity, beta, near, rule)
        if found is None:
            start = FullGaussian.from_moments(cavity.mean, cavity.covariance)
            peak = find_peak([factor], [None], cavity, beta, start)
            found = None if peak is None else matched(factor, cavity, beta, peak.gaussian, rule)
        return cavity**math.nan if found is None else found / cavity

    def approximate(self, factor: Factor, cavity: FactorialGaussian, beta: float = 1.0) -> FactorialGaussian:
        """Move the star to where cavity times factor peaks, then interpolate."""
        return expansion(*self._converged(factor, cavity, beta), beta)

    def _converged(self, factor: Factor, cavity: FactorialGaussian, beta: float) -> _Fit:
        """Fit the star again and again until it stands where it wants to, or the stars are used up."""
        m, p = cavity.mean, cavity.precision
        center, steps, longest = m, self.spread * cavity.std, self.spread * cavity.std
        shortest = SHORTEST_ARM * longest
        for left in reversed(range(self.max_stars)):
            fit = _interpolated(factor, center, steps)
            wild = ~(np.isfinite(fit.slope) & np.isfinite(fit.curvature))
            if not math.isfinite(fit.value) or np.any(wild & (steps <= shortest)):
                break
            if np.any(wild):
                longest = np.where(wild, np.maximum(RETREAT * steps, shortest), longest)
                steps = np.minimum(steps, longest)
                continue
            if left < RESERVED_STARS:
                break
            pull = beta * fit.slope + p * (center - m)
            width = beta * np.maximum(fit.curvature, 0.0) + p
            direction = -pull / width
            size = float(np.max(np.abs(direction) * np.sqrt(width), initial=0.0))
            wanted = np.minimum(np.maximum(self.spread / np.sqrt(width), shortest), longest)
            same = bool(np.all(np.abs(wanted - steps) <= SAME_ARM * steps))
            if same and size <= self.tol:
                break
            length = self._length(factor, cavity, beta, fit, direction, float(pull @ direction), size)
            if same and length == 0.0:
                if np.all(fit.curvature >= 0.0):
                    return fit._replace(slope=-p * (center - m) / beta)
                break
            center, steps = center + length * direction, wanted
        return fit

    def _length(
        self,
        factor: Factor,
        cavity: FactorialGaussian,
        beta: float,
        fit: _Fit,
        direction: FloatArray,
        descent: float,
        size: float,
    ) -> float:
        """Share of a step by which cavity times factor rises; zero where none of more than the tolerance does."""
        offset, p = fit.center - cavity.mean, cavity.precision
        here = beta * fit.value + 0.5 * float(p @ offset**2)
        length = 1.0
        for _ in range(HALVINGS):
            if not length * size > self.tol:
                break
            cost = beta * float(factor.cost((fit.center + length * direction)[None])[0])
            there = cost + 0.5 * float(p @ (offset + length * direction) ** 2)
            if -math.inf < there <= here + ARMIJO * length * descent:
                return length
            length *= 0.5
        return 0.0


def _interpolated(factor: Factor, center: FloatArray, steps: FloatArray) -> _Fit:
    """Go through the costs of a star."""
    costs = factor.star(center, steps)
    with np.errstate(all="ignore"):
        slope = (costs.up - costs.down) / (2.0 * steps)
        second = costs.up + costs.down - 2.0 * costs.center
        scale = np.maximum(np.maximum(np.abs(costs.up), np.abs(costs.down)), abs(costs.center))
        curvature = np.where(np.abs(second) <= ROUNDING * scale, 0.0, second / steps**2)
    return _Fit(center, costs.center, slope, curvature)
