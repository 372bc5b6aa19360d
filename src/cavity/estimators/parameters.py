"""Parameters of the estimators, checked, and the form of the posterior that follows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import numpy as np
from sklearn.utils import check_random_state
from threadpoolctl import ThreadpoolController

from cavity._checks import as_float, flag, nonnegative_number, one_of, shown, whole_number
from cavity._types import FloatArray
from cavity.estimators.progress import Verbose
from cavity.gaussians import Analysis
from cavity.gaussians.dense import WIDEST_COVARIANCE
from cavity.terms import Formula

# Largest size of an entry, a weight and a parameter, and of a target: their squares, times variances of any reasonable
# prior, are finite. The inverse of the first is the smallest prior variance and noise scale.
LARGEST_NUMBER, LARGEST_TARGET = 1e100, 1e150


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """The parameters that both estimators share, checked as far as that is possible without the data.

    ``prior_mean`` and ``prior_variance`` are a number or one number per feature; the variance is None where one is to
    be found for all features.
    """

    prior_mean: FloatArray
    prior_variance: FloatArray | None
    prior_groups: Any
    intercept: bool
    intercept_variance: float
    covariance: str
    max_iter: int
    tol: float
    random_state: Any
    verbose: Verbose
    formula: Formula | None = None

    @classmethod
    def of(cls, model: Any) -> Parameters:
        """Check the parameters of an estimator."""
        variance, means = model.prior_variance, numbers_per_feature("prior_mean", model.prior_mean)
        each = None
        if not isinstance(variance, str):
            each = numbers_per_feature("prior_variance", variance)
            if not np.all((each >= 1.0 / LARGEST_NUMBER) & (each <= LARGEST_NUMBER)):
                raise _not_moderate("prior_variance", variance)
        elif variance != "auto":
            raise ValueError(
                f"prior_variance must be 'auto', a positive number or one number per feature, got {variance!r}"
            )
        groups = model.prior_groups
        is_plain = groups is None or isinstance(groups, Mapping) or (isinstance(groups, str) and groups == "categories")
        if not is_plain and (isinstance(groups, str | bytes) or np.ndim(groups) != 1):
            raise ValueError(
                "prior_groups must be None, 'categories', one label per feature, or a dict of names and features, got "
                f"{shown(groups)}"
            )
        if not np.all(np.abs(means) <= LARGEST_NUMBER):
            raise ValueError(f"prior_mean must be finite and at most {LARGEST_NUMBER:g} in size")
        verbose = model.verbose
        if not (verbose is None or callable(verbose) or verbose in (0, 1)):
            raise ValueError(f"verbose must be True, False, None or a function, got {shown(verbose)}")
        return cls(
            means,
            each,
            groups,
            flag("fit_intercept", model.fit_intercept),
            moderate_number("intercept_prior_variance", model.intercept_prior_variance),
            one_of("covariance", model.covariance, ("auto", "full", "sparse", "rows", "diagonal")),
            whole_number("max_iter", model.max_iter, least=1),
            nonnegative_number("tol", model.tol),
            model.random_state,
            verbose if verbose is None or callable(verbose) else bool(verbose),
            None if model.formula is None and model.terms is None else _formula_of(model),
        )

    @property
    def seed(self) -> int:
        """Seed of the visiting order of a product of Gaussians."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))


def _formula_of(model: Any) -> Formula:
    """Read a formula, or a list of terms, which exclude other parameters of columns."""
    if model.formula is not None and model.terms is not None:
        raise ValueError("formula and terms exclude each other: give one of them")
    if not (isinstance(model.prior_variance, str) and model.prior_groups is None and np.all(model.prior_mean == 0.0)):
        raise ValueError(
            "prior_variance, prior_mean and prior_groups are for columns without a formula or terms; a term has a "
            "variance of its own, as in terms=[Linear(['x', 'z'], variance=1.0)]"
        )
    if not flag("fit_intercept", model.fit_intercept):
        raise ValueError("fit_intercept=False is for columns without a formula or terms; write 0 + in the formula")
    structures = model.structures
    if not (structures is None or isinstance(structures, Mapping)):
        raise ValueError(f"structures must be a dict of names and graphs or matrices, got {shown(structures)}")
    if model.formula is not None:
        return Formula.parse(model.formula, structures)
    terms = model.terms
    if isinstance(terms, str | Mapping) or not hasattr(terms, "__iter__"):
        raise ValueError(f"terms must be a list of terms, such as [Linear('x'), Effects('g')], got {shown(terms)}")
    for term in terms:
        if not (hasattr(term, "learn") and hasattr(term, "linear")):
            raise ValueError(f"terms must hold terms, such as Linear('x') and Effects('g'), got {shown(term)}")
    return Formula("", None, tuple(terms), ())


def moderate_number(name: str, value: Any) -> float:
    """Check a positive number whose square and its inverse are finite."""
    number = as_float(value)
    if not 1.0 / LARGEST_NUMBER <= number <= LARGEST_NUMBER:
        raise _not_moderate(name, value)
    return number


def numbers_per_feature(name: str, value: Any, features: int | None = None) -> FloatArray:
    """Check a number, or one number per feature; and their count, where the features are known."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty((0, 0))
    fits = array.ndim == 0 or (array.ndim == 1 and features in (None, array.size))
    if isinstance(value, bool | str | None.__class__) or not fits:
        which = "feature" if features is None else f"of {features} features"
        raise ValueError(f"{name} must be a number or one number for each {which}, got {shown(value)}")
    return array


def _not_moderate(name: str, value: Any) -> ValueError:
    bounds = f"from {1.0 / LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}"
    return ValueError(f"{name} must be positive and finite, {bounds}, got {shown(value)}")


# Columns up to which `partial_fit` keeps one, whatever the storage: a factorisation then takes a few milliseconds.
WIDEST_STREAM = 500
# Rows, times linear predictors, up to which a posterior in their space is kept: 200 MB per matrix.
MOST_ROWS = 5000
# Loops that a fit is expected to take, for the estimate of its work only.
_EXPECTED_LOOPS = 12
# Floating-point operations that are done in the time in which a pair of entries of a row is looked at.
_PAIR = 100
# Floating-point operations that are bearable: about 1000 columns at 100,000 rows, two to four minutes on one core.
_BEARABLE = 4e12


@dataclass(frozen=True, slots=True)
class Plan:
    """The form of the posterior, and why it was chosen.

    Parameters
    ----------
    covariance
        ``"full"``, ``"sparse"``, ``"rows"`` or ``"diagonal"``.
    reason
        The reason, as text.
    chosen
        Whether the library made the choice, and not the user.
    """

    covariance: str
    reason: str
    chosen: bool = True

    def __str__(self) -> str:
        words = {
            "full": "full covariance",
            "sparse": "sparse precision matrix, all correlations exact",
            "rows": "all correlations, in the space of the rows",
            "diagonal": "diagonal covariance, standard deviations conditional on the other coefficients",
        }
        return f"{words[self.covariance]}: {self.reason}"


class PlannedRows(Protocol):
    """What is asked of rows before a fit."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns with the constant one."""

    @property
    def density(self) -> float:
        """Share of the entries that are not zero, the constant column left out."""

    @property
    def widest(self) -> int:
        """Most columns with which a full covariance can be fitted to these rows."""

    @property
    def patience(self) -> float:
        """How many times the work that is bearable in one process may be taken."""

    @property
    def most_rows(self) -> int:
        """Most rows with which a posterior in their space can be fitted to these; zero where they are not in memory."""

    def analysis(self) -> Analysis | None:
        """Analyse the pattern of a sparse precision matrix; None where these rows cannot have one."""


def plan_fit(data: PlannedRows, covariance: str) -> tuple[Plan, Analysis | None]:
    """Decide on the posterior of a fit to these rows; if it is sparse, the analysis of its pattern comes with it."""
    rows, columns = data.shape
    if covariance in ("full", "diagonal"):
        if covariance == "full" and columns > data.widest:
            raise ValueError(
                f"covariance='full' has at most {data.widest} columns here, got {columns}; leave covariance at 'auto'"
            )
        return _plan_as_asked(covariance, columns), None
    work, size = full_work(rows, columns), f"{rows} rows of {columns} columns"
    if covariance == "rows":
        if rows > data.most_rows:
            most = f"at most {data.most_rows} rows, got {rows}" if data.most_rows else "all rows in memory"
            raise ValueError(f"covariance='rows' keeps rows² numbers: it needs {most}; leave covariance at 'auto'")
        return Plan("rows", f"asked for by covariance='rows', {size}", chosen=False), None
    in_rows = _rows_work(rows, columns, data.density)
    is_wide = covariance == "auto" and rows < columns and rows <= data.most_rows and in_rows < work
    full = Plan("full", f"{size} take about {work:.1g} operations")
    # On a cluster as much is bearable as its user can wait for.
    bearable = work <= _BEARABLE * data.patience and columns <= data.widest
    if covariance == "auto" and bearable and columns <= 200:  # a sparse precision never pays
        return full, None
    # Dense rows with up to a tenth of entries that are not zero are treated as sparse ones, unless looking at all pairs
    # of entries of a row would take longer than a fit in the space of the rows.
    looks = _PAIR * rows * (data.density * columns) ** 2 <= in_rows or not is_wide
    analysis = data.analysis() if covariance == "sparse" or (data.density <= 0.1 and looks) else None
    if covariance == "sparse":
        if analysis is None:
            raise ValueError(f"covariance='sparse' needs all rows in memory, and {size} are too many")
        if not np.isfinite(analysis.work):
            raise ValueError(
                f"covariance='sparse' would fill in: the factor of {size} is too large; leave covariance at 'auto'"
            )
        return Plan(
            "sparse", f"asked for by covariance='sparse', {analysis.fill} numbers in its factor", False
        ), analysis
    # A sparse precision must save half of the work of a full fit.
    least = in_rows if is_wide else 0.5 * work if bearable else _BEARABLE
    if analysis is not None and _EXPECTED_LOOPS * analysis.work <= least:
        return Plan("sparse", f"{size}, {analysis.fill} numbers in the factor of the precision matrix"), analysis
    if is_wide:
        return Plan("rows", f"{size}, fewer rows than columns"), None
    if bearable:
        return full, None
    wide = f"{size} would take about {work:.1g} operations with a full covariance (covariance='full' if you can wait)"
    if columns > data.widest:
        wide = f"{size} are too many for a full covariance, of at most {data.widest} columns"
        wide += f", and for the space of the rows, of at most {data.most_rows} rows" * (rows < columns)
    why = "its sparse precision would fill in" if analysis is not None else "rows are not sparse"
    if analysis is None and data.density <= 0.1:
        why = "a sparse precision needs all rows in memory"
    return Plan("diagonal", f"{wide}, and {why}"), None


def plan_stream(columns: int, covariance: str, before: Plan | None = None) -> Plan:
    """Decide on the posterior of a stream: that of the calls before, unless it was of a form that cannot take rows."""
    if before is not None:
        return before if before.covariance not in ("sparse", "rows") else plan_stream(columns, "auto")
    if covariance in ("sparse", "rows"):
        raise ValueError(f"covariance='{covariance}' needs all rows at once: call fit, or leave covariance at 'auto'")
    if covariance != "auto":
        return _plan_as_asked(covariance, columns)
    if columns <= WIDEST_STREAM:
        return Plan("full", f"a stream of {columns} columns, at most {WIDEST_STREAM}")
    full = " (covariance='full' if you can wait)" if columns <= WIDEST_COVARIANCE else ""
    return Plan("diagonal", f"a stream of {columns} columns, more than {WIDEST_STREAM}{full}")


def plan_joint(rows: int, columns: int, predictors: int, covariance: str, stream: bool = False) -> Plan | None:
    """Plan one posterior of several linear predictors; None where it would be too wide.

    In a stream a factorisation of up to 1000 coefficients, some ten milliseconds, is bearable.
    """
    wide, size = columns * predictors, f"{predictors} predictors of {columns} columns"
    work = _EXPECTED_LOOPS * (2.0 * rows * wide**2 + max(1, min(16, rows // wide)) * float(wide) ** 3)
    fits = wide <= (2 * WIDEST_STREAM if stream else WIDEST_COVARIANCE)
    fits_rows = not stream and rows * predictors <= MOST_ROWS
    if covariance == "rows" and fits_rows:
        return Plan("rows", f"asked for by covariance='rows', {rows} rows of {size} together", chosen=False)
    if covariance == "auto" and fits_rows and rows < columns and _rows_work(rows * predictors, columns) < work:
        return Plan("rows", f"{rows} rows of {size} together, fewer rows than columns")
    if covariance == "full" and wide <= WIDEST_COVARIANCE:
        return Plan("full", f"asked for by covariance='full', {size} together", chosen=False)
    if covariance != "auto" or not fits or work > _BEARABLE:
        return None
    return Plan("full", f"{size} together" if stream else f"{rows} rows, {size} together, about {work:.1g} operations")


def of_each(plan: Plan, posteriors: int) -> Plan:
    """Say so where every class has a posterior of its own."""
    return replace(plan, reason=f"{plan.reason}; one posterior for each of {posteriors} classes against the rest")


def full_work(rows: int, columns: int) -> float:
    """Floating-point operations of a fit with a full covariance: sums, variances and factorisations of all blocks."""
    blocks = max(1, min(16, rows // max(400, columns)))
    return _EXPECTED_LOOPS * (3.0 * rows * columns**2 + blocks * columns**3 / 3.0)


def _rows_work(rows: int, columns: int, density: float = 1.0) -> float:
    """Floating-point operations of a fit in the space of the rows: two passes over the columns, and factorisations."""
    return 2.0 * rows**2 * columns * density + 3.0 * _EXPECTED_LOOPS * float(rows) ** 3


def _plan_as_asked(covariance: str, columns: int) -> Plan:
    if covariance == "full" and columns > WIDEST_COVARIANCE:
        raise ValueError(
            f"covariance='full' keeps columns² numbers: at most {WIDEST_COVARIANCE} columns, got {columns}; leave "
            "covariance at 'auto'"
        )
    return Plan(covariance, f"asked for by covariance='{covariance}'", chosen=False)


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looking for thread pools takes milliseconds


def threads_for(shape: tuple[int, int], analysis: Analysis | None = None) -> AbstractContextManager[Any]:
    """Keep BLAS to one thread unless rows and columns are many; a single row is not worth the 50 µs that this takes.

    With a sparse precision matrix, of which there is an analysis, its dense corner must be large.
    """
    rows, columns = shape
    if analysis is not None and analysis.pattern is not None:
        # Measured on two cores: with a corner of 200 columns a fit took 0.61 s with default threads and 0.17 s with
        # one, with one of 1,100 columns 2.1 s and 1.9 s.
        large = analysis.pattern.elimination.layout.corner >= 2000
    else:
        # Measured on two cores. With fewer rows than columns, 300 rows of 600 columns took 0.125 s with default
        # threads, 0.088 s with one.
        large = columns >= 300 and rows >= columns
    if rows == 1 or large:
        return nullcontext()
    limits: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limits
