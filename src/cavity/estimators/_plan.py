"""Which form of posterior a fit gets: decided once, from the shape of the data, before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from cavity.factors.arranged import Rows
from cavity.gaussians import Analysis, analyse

# Columns up to which a whole covariance is kept: 200 MB for each copy of the matrix.
WIDEST_COVARIANCE = 5000
# Columns up to which `partial_fit` keeps one, whatever the storage: a factorisation then takes a few milliseconds.
WIDEST_STREAM = 500
# Loops that a fit is expected to take, and floating-point operations that are bearable: about 1000 columns at 100,000
# rows, two to four minutes on one core.
_LOOPS, _BEARABLE = 12, 4e12
# Narrower data never need a sparse precision, and it is taken where its predicted work is this share of the full one's.
_NARROW, _SHARE = 200, 0.5
# Share of entries that are not zero up to which dense rows are looked at as sparse ones.
_SPARSE_ENOUGH = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fit does, and why.

    Parameters
    ----------
    covariance
        ``"full"``, ``"sparse"`` or ``"diagonal"``.
    reason
        Why, in words.
    chosen
        Whether the choice was the library's and not the user's.
    """

    covariance: str
    reason: str
    chosen: bool = True

    def __str__(self) -> str:
        words = {
            "full": "full covariance",
            "sparse": "sparse precision, all correlations exact",
            "diagonal": "product of Gaussians, deviations conditional on the other coefficients",
        }
        return f"{words[self.covariance]}: {self.reason}"


def full_work(rows: int, columns: int) -> float:
    """Floating-point operations of a fit with a full covariance: sums, variances and factorisations of all blocks."""
    blocks = max(1, min(16, rows // max(400, columns)))
    return _LOOPS * (3.0 * rows * columns**2 + blocks * columns**3 / 3.0)


def plan_fit(data: Rows, covariance: str) -> tuple[Plan, Analysis | None]:
    """Decide on the posterior of a fit to these rows; if it is sparse, the analysis of its pattern comes with it."""
    rows, columns = data.shape
    if covariance == "diagonal":
        return Plan("diagonal", "asked for by covariance='diagonal'", chosen=False), None
    if covariance == "full":
        check_width(columns)
        return Plan("full", "asked for by covariance='full'", chosen=False), None
    work, size = full_work(rows, columns), f"{rows} rows of {columns} columns"
    bearable = work <= _BEARABLE and columns <= WIDEST_COVARIANCE
    if covariance == "auto" and bearable and columns <= _NARROW:
        return Plan("full", f"{size} take about {work:.1g} operations"), None
    analysis = _analysis_of(data, covariance == "sparse")
    if covariance == "sparse":
        if analysis is None or not np.isfinite(analysis.work):
            raise ValueError(
                f"covariance='sparse' would fill in: the factor of {size} is too large; leave covariance at 'auto'"
            )
        return Plan(
            "sparse", f"asked for by covariance='sparse', {analysis.fill} numbers in its factor", False
        ), analysis
    if analysis is not None and _LOOPS * analysis.work <= (_SHARE * work if bearable else _BEARABLE):
        return Plan("sparse", f"{size}, {analysis.fill} numbers in the factor of the precision matrix"), analysis
    if bearable:
        return Plan("full", f"{size} take about {work:.1g} operations"), None
    why = "its sparse precision would fill in" if analysis is not None else "rows are not sparse"
    return Plan("diagonal", f"{size} would take about {work:.1g} operations with a full covariance, and {why}"), None


def plan_stream(columns: int, covariance: str) -> Plan:
    """Decide on the posterior of a stream of rows of so many columns."""
    if covariance == "sparse":
        raise ValueError("covariance='sparse' needs all rows at once: call fit, or leave covariance at 'auto'")
    if covariance == "diagonal":
        return Plan("diagonal", "asked for by covariance='diagonal'", chosen=False)
    if covariance == "full":
        check_width(columns)
        return Plan("full", "asked for by covariance='full'", chosen=False)
    if columns <= WIDEST_STREAM:
        return Plan("full", f"a stream of {columns} columns, at most {WIDEST_STREAM}")
    return Plan("diagonal", f"a stream of {columns} columns, more than {WIDEST_STREAM}")


def check_width(columns: int) -> None:
    """Refuse a covariance that is too large."""
    if columns > WIDEST_COVARIANCE:
        raise ValueError(
            f"covariance='full' keeps columns² numbers: at most {WIDEST_COVARIANCE} columns, got {columns}; leave "
            "covariance at 'auto'"
        )


def _analysis_of(data: Rows, asked: bool) -> Analysis | None:
    """Predict the sparse factor of rows that have few entries; nothing for others, unless it was asked for."""
    X = data.X
    entries = X.nnz if sparse.issparse(X) else int(np.count_nonzero(X))
    if not asked and entries > _SPARSE_ENOUGH * X.shape[0] * X.shape[1]:
        return None
    return analyse(data.matrix())
