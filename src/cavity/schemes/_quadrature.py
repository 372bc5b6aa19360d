"""Schemes that see the factor at the nodes of an integration rule only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from cavity._checks import one_of, positive_number, shown
from cavity._types import FloatArray
from cavity.factors import Factor, StarCosts
from cavity.gaussians.factorial import FactorialGaussian
from cavity.quadrature import NodeSet, Precision3, Rule, Star
from cavity.schemes._protocol import expansion, from_standard
from cavity.schemes.constants import LEAST_SQUARE, LEAST_VARIANCE

# The rule of the paper.
_DEFAULT_RULE = Precision3()


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
            costs = factor.star(cavity.mean, steps)
            slope = (costs.up - costs.down) / (2.0 * steps)
            curvature = (costs.up + costs.down - 2.0 * costs.center) / steps**2
            return expansion(cavity.mean, costs.center, slope, curvature, beta)
        return self._minimize(*_node_costs(factor, cavity, self.rule), cavity, beta)

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

    def _minimize(self, rule: NodeSet, costs: FloatArray, cavity: FactorialGaussian, beta: float) -> FactorialGaussian:
        d = cavity.dim
        features = np.concatenate([np.ones((len(rule.nodes), 1)), rule.nodes, rule.nodes**2], axis=1)
        lowest = float(np.min(costs))
        factor_values = np.exp(-beta * (costs - lowest))
        target = features.T @ (rule.weights * factor_values)

        def surrogate(unknowns: FloatArray) -> tuple[float, FloatArray]:
            with np.errstate(over="ignore"):
                fitted = np.exp(features @ unknowns)
            return float(rule.weights @ fitted - target @ unknowns), fitted

        # From g = 1, above every value of f, the steps of an interpolating rule descend without a line search.
        unknowns = np.zeros(2 * d + 1)
        here, fitted = surrogate(unknowns)
        for _ in range(200):
            gradient = features.T @ (rule.weights * fitted) - target
            hessian = (features * (rule.weights * fitted)[:, None]).T @ features
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
        shift, precision = unknowns[1 : d + 1], -2.0 * unknowns[d + 1 :]
        return from_standard(float(unknowns[0]) - beta * lowest, shift, precision, cavity)
