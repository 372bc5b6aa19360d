"""The state of a fitted model, one value: what it was fitted to, what was found, and what a stream keeps."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cavity.ep.hyperparameters import Group
from cavity.ep.posteriors import Gaussian, NaturalParameters
from cavity.ep.result import Status
from cavity.estimators.parameters import Plan
from cavity.estimators.posterior import Posterior, RobustPosterior
from cavity.estimators.row_findings import RowFindings
from cavity.estimators.rows import KeptRows, Order, Totals
from cavity.factors.columns import Columns, ColumnSums


class StreamState(NamedTuple):
    """What a stream keeps beside the posterior.

    Parameters
    ----------
    parameters
        Parameters of its first call, by their content; None where it began with a fit.
    rows_before
        Rows seen when prior and noise were last found; None before the first call.
    order
        How far the targets seen look sorted.
    kept
        The last rows, with a full covariance and other losses than the squared one.
    is_behind
        Whether rows were added since prior and noise were found.
    """

    parameters: dict[str, str] | None = None
    rows_before: float | None = None
    order: Order = Order()
    kept: KeptRows | None = None
    is_behind: bool = False


_NO_STREAM = StreamState()


@dataclass(frozen=True, eq=False)
class Fitted:
    """The state of a fitted model.

    Parameters
    ----------
    design
        The columns, their coefficients and the prior that was asked for.
    targets
        How labels or numbers become targets of the loss.
    loss
        The loss, with the noise scale that was found.
    columns
        Coefficients are kept for columns with these centres and units.
    sums
        Sums over the rows that decide on these; None where all variances are given.
    sites
        Product of all sites of every linear predictor, or of all together.
    priors
        Their priors.
    groups
        Coefficients whose hyperparameters were found.
    totals
        Sums over the targets.
    plan, status, trace, loops
        The form of the posterior, and how the fit went.
    noise
        What the rows say of the logarithm of the noise scale, as natural parameters of a Gaussian: information and
        shift.
    stream
        What a stream keeps.
    live
        Working memory of products of Gaussians in a stream, which is ahead of ``sites``.
    found
        Posteriors given the hyperparameters, where these were found with the sites.
    rows
        What the rows of a fit say beside the posterior; None where they were not seen together.
    """

    design: Any  # ColumnDesign or TermDesign
    targets: Any  # Labels or Numbers
    loss: Any
    columns: Columns
    sums: ColumnSums | None
    sites: tuple[NaturalParameters, ...]
    priors: tuple[Any, ...]
    groups: tuple[Group, ...]
    totals: Totals
    plan: Plan
    status: Status
    trace: Any
    loops: int
    noise: tuple[float, float] = (0.0, 0.0)
    stream: StreamState = _NO_STREAM
    live: Any = None
    found: tuple[Gaussian, ...] | None = None
    rows: RowFindings | None = None

    def revised(self, **parts: Any) -> Fitted:
        """Change some parts."""
        has_moved = not parts.keys().isdisjoint(("sites", "priors", "live"))
        return replace(self, **({"found": None, "rows": None} if has_moved else {}) | parts)

    @cached_property
    def is_joint(self) -> bool:
        """Whether several linear predictors share one posterior."""
        return hasattr(self.loss, "predictors")

    @property
    def scale(self) -> float:
        """Noise scale of the loss, in units of the normalised targets; one where it has none."""
        return float(getattr(self.loss, "scale", 1.0))

    @cached_property
    def natural(self) -> tuple[NaturalParameters, ...]:
        """Natural parameters of the product of all sites, as they are now."""
        return self.sites if self.live is None else self.live.natural()

    @cached_property
    def posteriors(self) -> tuple[Gaussian, ...]:
        """Posteriors of the coefficients that are kept, given the hyperparameters."""
        if self.found is not None:
            return self.found
        return tuple(known.posterior(prior) for known, prior in zip(self.natural, self.priors, strict=True))

    @cached_property
    def posterior(self) -> Posterior:
        """The posterior as users see it."""
        return Posterior(self)

    @cached_property
    def errors(self) -> Posterior:
        """The same with the errors that were asked for: of the posterior, or of the scatter of rows or clusters."""
        return self.posterior if self.rows is None or self.rows.scatter is None else RobustPosterior(self)

    @cached_property
    def factor(self) -> float:
        """Factor of log odds by which predictions are calibrated."""
        return 1.0 if self.rows is None else self.rows.factor

    def check_finite(self) -> None:
        """Refuse a posterior that numbers cannot hold."""
        fine = True
        for posterior in self.posteriors:
            stds = self.targets.unit * np.sqrt(posterior.variance)  # in units of y, in which they may underflow
            stds[: self.columns.unit.size] /= self.columns.unit
            fine &= bool(np.all(np.isfinite(posterior.mean)) and np.all((stds > 0.0) & (stds < np.inf)))
        what = "evidence" if fine else "posterior"
        if not fine or not np.isfinite(sum(posterior.log_mass for posterior in self.posteriors)):
            raise ValueError(
                f"the {what} is beyond what numbers can hold: bring columns and targets to ordinary sizes, or narrow "
                "the prior"
            )

    def stored(self) -> dict[str, Any]:
        """All parts but those that follow from others; working memory becomes natural parameters."""
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        return parts | {"sites": self.natural, "live": None, "found": None}

    def __reduce__(self) -> tuple[Any, ...]:
        return Fitted, tuple(self.stored().values())
