"""All choices of a run but the factors, the prior and the scheme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from cavity._checks import flag, nonnegative_number, number_between, one_of, positive_number, whole_number
from cavity.schedules import Cyclic, FiniteTemperature, Order, Steps, Temperature, resolve_beta, resolve_order

Negative = Literal["floor", "keep", "skip"]
SiteMode = Literal["own", "tied", "averaged", "none"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the driver and its backends decide by; checked by `cavity.fit` and the estimators, which explain them.

    Parameters
    ----------
    max_iter
        Loops at most.
    tol
        The run ends when no mean is expected to move by more than this many standard deviations any more, and no
        variance by more than this share.
    temperature
        Inverse temperature of every loop.
    power
        Power of Power EP: how much of a factor is removed and fitted at a time.
    damping
        Largest step towards a new site, in (0, 1].
    safeguards
        Whether to damp more while the posterior's change does not shrink, and to go back from a loop that ends at a
        higher cost than the prior mean.
    single_pass
        Whether one loop is all that was asked for, so that nothing can be said about convergence.
    sites, order, negative
        Of a product of Gaussians: which sites are stored, the order of visits, and what becomes of negative precisions.
    """

    max_iter: int = 100
    tol: float = 0.01
    temperature: FiniteTemperature = field(default=Steps((1.0,)))
    power: float = 1.0
    damping: float = 1.0
    safeguards: bool = False
    single_pass: bool = False
    sites: SiteMode = "own"
    order: Order = field(default=Cyclic())
    negative: Negative = "keep"

    def is_final(self, loops: int) -> bool:
        """Whether the inverse temperature does not change any more after so many loops."""
        return self.temperature.is_final(loops - 1, self.max_iter)


def make_options(
    count: int,
    *,
    max_iter: int,
    tol: float = 1e-3,
    sites: SiteMode = "own",
    beta: float | Sequence[float] | Temperature = 1.0,
    power: float = 1.0,
    damping: float = 1.0,
    order: str | Order | ArrayLike = "cyclic",
    random_state: int = 0,
    negative: Negative = "keep",
    safeguards: bool = False,
) -> Options:
    """Check the choices of a run over so many factors."""
    sites = one_of("sites", sites, ("own", "tied", "averaged", "none"))
    max_iter = whole_number("max_iter", max_iter, least=1)
    if sites == "none" and max_iter > 1:
        raise ValueError(
            f"sites='none' keeps no site to revise, so it allows one loop only, got max_iter={max_iter}; "
            "use sites='tied' for several loops at the same memory"
        )
    visiting = resolve_order(order, whole_number("random_state", random_state, least=0))
    visits = visiting.visits(count, 0)
    if sites == "none" and np.max(np.bincount(visits)) > 1:
        raise ValueError("sites='none' counts a factor as often as it is visited: order must name each once at most")
    return Options(
        max_iter,
        nonnegative_number("tol", tol),
        resolve_beta(beta),
        positive_number("power", power),
        number_between("damping", damping, 0.0, 1.0, "(]"),
        flag("safeguards", safeguards),
        sites == "none",
        sites,
        visiting,
        one_of("negative", negative, ("floor", "keep", "skip")),
    )
