"""What a fitted model with terms tells its user: blocks of a summary, effects of levels, and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import ndtri
from scipy.stats import qmc

from cavity._checks import number_between
from cavity._types import FloatArray
from cavity.ep.hyperparameters import evidence, hyperparameters_of, interval
from cavity.estimators.fitted import Fitted
from cavity.estimators.reports import Marginals, combined, in_one, is_log, joined, pyplot, text_of
from cavity.estimators.term_design import TermDesign
from cavity.losses import Squared
from cavity.terms.frames import nearest
from cavity.terms.linear import LearnedLinear
from cavity.terms.prior import StructuredPrior

# Draws of several hyperparameters of one block, for intervals of standard deviations and correlations.
_DRAWS = 1024
# Points of a curve.
_POINTS = 100


def terms_of(fitted: Fitted) -> TermDesign:
    """Return the design of a model with terms; `AttributeError` for other models."""
    if not isinstance(fitted.design, TermDesign):
        raise AttributeError("this model has no terms: give a formula, or terms, to the estimator")
    return fitted.design


def components(fitted: Fitted) -> dict[str, dict[str, float]]:
    """Give standard deviations and correlations that were found, and the noise scale, by the parts of the terms."""
    unit = fitted.targets.unit
    found = terms_of(fitted).terms.components(fitted.priors[0], unit)
    return found | ({"residual": {"scale": unit * fitted.scale}} if fitted.targets.finds_scale else {})


def summary(fitted: Fitted, level: float, levels: bool) -> Any:
    """Make the table of `EPRegressor.summary` in blocks: fixed, smooths, components and, where asked for, levels."""
    return table_of(*summary_columns(fitted, level, levels))


def summary_columns(fitted: Fitted, level: float, levels: bool = False) -> tuple[list[Any], dict[str, FloatArray]]:
    """Labels, a block and a name each, and columns of the summary."""
    level = number_between("level", level, 0.0, 1.0, "()")
    design, groups = terms_of(fitted), fitted.targets.names(fitted.loss)
    names, rows, constants = _fixed(design)
    found = _each(fitted, rows, constants, level)
    prefix: list[tuple[str, ...]] = [()] if groups is None else [(group,) for group in groups]
    labels: list[Any] = [(*one, "fixed", name) for one in prefix for name in names]
    freedom = np.full(len(labels), np.nan)
    is_single = len(fitted.priors) == 1 and not fitted.is_joint
    own = design.terms.freedom(fitted.priors[0], *_variances(fitted)) if is_single else {}
    smooths = [part.label for term in design.terms.terms for part in term.parts if term.shown == "curve"]
    blank = prefix[0] if groups is None else ("",)
    empty = [np.nan] * 5
    values: list[tuple[float, ...]] = [*zip(*found, strict=True)]
    for name in dict.fromkeys(smooths):
        if name in own:
            labels.append((*blank, "smooths", name))
            values.append(tuple(empty))
            freedom = np.append(freedom, own[name])
    for name, *numbers in _components(fitted, level) if len(fitted.priors) == 1 else []:
        labels.append((*blank, "components", name))
        values.append((*numbers, np.nan))
        freedom = np.append(freedom, np.nan)
    if levels:
        for term in design.terms.terms:
            if term.shown in ("levels", "regions"):
                for place, one in _levels(fitted, term, level):
                    labels.append((*place[:-2], "levels", f"{place[-2]}[{place[-1]}]"))
                    values.append(one)
                    freedom = np.append(freedom, np.nan)
    columns = _columns(Marginals(*(np.array(part) for part in zip(*values, strict=True))), level, is_log(fitted))
    is_fixed = np.array([label[-2] in ("fixed", "levels") for label in labels])
    for name in columns:
        if name.startswith("exp("):
            columns[name] = np.where(is_fixed, columns[name], np.nan)
    return labels, columns | {"edf": freedom}


def effects(fitted: Fitted, name: str, level: float) -> Any:
    """Make the table of `EPRegressor.effects`."""
    level = number_between("level", level, 0.0, 1.0, "()")
    design = terms_of(fitted).terms
    shown = [term for term in design.terms if term.shown in ("levels", "regions")]
    chosen = [term for term in shown if name in (term.label, _grouping(term))]
    if not chosen:
        known = [known for term in shown for known in (_grouping(term), term.label)]
        raise ValueError(f"there are no effects of {name!r}; {nearest(name, dict.fromkeys(known))}")
    labels, values = [], []
    for term in chosen:
        for place, one in _levels(fitted, term, level):
            labels.append(place)
            values.append(one)
    return table_of(labels, _columns(Marginals(*map(np.array, zip(*values, strict=True))), level, is_log(fitted)), 1)


def partial_effect(fitted: Fitted, name: str, grid: Any, level: float) -> Any:
    """Make the table of `EPRegressor.partial_effect`."""
    level = number_between("level", level, 0.0, 1.0, "()")
    frame, rows = _partial_rows(terms_of(fitted), name, grid)
    found = _each(fitted, rows, np.zeros(rows.shape[0]), level)
    groups = fitted.targets.names(fitted.loss)
    shown = {key: np.tile(np.asarray(value), 1 if groups is None else len(groups)) for key, value in frame.items()}
    if groups is not None:
        shown = {fitted.targets.what: np.repeat(groups, rows.shape[0])} | shown
    ends = _columns(found, level, is_log(fitted))
    columns = shown | {key: value for key, value in ends.items() if key != "P(> 0)"}
    if find_spec("pandas") is None:
        return columns
    return import_module("pandas").DataFrame(columns)


def plot_terms(fitted: Fitted, level: float, top: int) -> Any:
    """Draw what `EPRegressor.plot_terms` draws."""
    plt, design = pyplot(), terms_of(fitted).terms
    terms = [term for term in design.terms if term.shown in ("levels", "regions") or list(_curves(term))]
    if not terms:
        raise ValueError("there is nothing to plot: the terms have no curves and no levels; see plot_coefficients")
    columns = min(len(terms), 3)
    lines = -(-len(terms) // columns)
    _, axes = plt.subplots(lines, columns, figsize=(4.2 * columns, 3.4 * lines), squeeze=False, layout="constrained")
    groups = fitted.targets.names(fitted.loss) or [None]
    for ax, term in zip(axes.ravel(), terms, strict=False):
        curves = list(_curves(term))
        for label, frame in curves:
            rows = _wide(terms_of(fitted), design.partial(term.label, frame))
            found = _each(fitted, rows, np.zeros(rows.shape[0]), level)
            x = next(iter(frame.values()))
            for k, group in enumerate(groups):
                own = found.at(slice(k * len(x), (k + 1) * len(x)))
                (line,) = ax.plot(x, own.mean, label=in_one(tuple(filter(None, (group, label)))) or None)
                ax.fill_between(x, own.lower, own.upper, color=line.get_color(), alpha=0.2, linewidth=0.0)
        if curves:
            ax.set_xlabel(term.variables[0])
            if len(curves) * len(groups) > 1:
                ax.legend(fontsize="small")
        else:
            known = list(_levels(fitted, term, level))
            order = np.argsort([one[0] for _, one in known])
            order = order if order.size <= top else np.append(order[: top // 2], order[-(top - top // 2) :])
            shown = Marginals(*map(np.array, zip(*(known[k][1] for k in order), strict=True)))
            ends = np.abs([shown.mean - shown.lower, shown.upper - shown.mean])
            ax.errorbar(shown.mean, np.arange(order.size), xerr=ends, fmt="o", markersize=3, linewidth=1.0)
            ax.set_yticks(np.arange(order.size), [in_one(known[k][0]) for k in order], fontsize="small")
        (ax.axhline if curves else ax.axvline)(0.0, color="0.6", linewidth=0.8)
        ax.set_title(term.label, fontsize="medium")
    for ax in axes.ravel()[len(terms) :]:
        ax.set_visible(False)
    return axes


def table_of(labels: list[Any], columns: dict[str, FloatArray], last: int = 0) -> Any:
    """Make a table of such columns; ``last`` says which names of the index are left out."""
    if find_spec("pandas") is None:
        return text_of([in_one(label) for label in labels], columns)
    pandas = import_module("pandas")
    depth = len(labels[0])
    names = ["class", "block", "coefficient"][-depth:] if not last else ["class", "term", "level"][-depth:]
    index = pandas.MultiIndex.from_tuples(labels, names=names) if depth > 1 else [label[0] for label in labels]
    table = pandas.DataFrame(columns, index=index)
    if depth == 1:
        table.index.name = names[-1]
    return table


def _columns(found: Marginals, level: float, as_ratios: bool) -> dict[str, FloatArray]:
    lower, upper = (f"{end} {100.0 * level:g}%" for end in ("lower", "upper"))
    columns = {"mean": found.mean, "std": found.std, lower: found.lower, upper: found.upper, "P(> 0)": found.positive}
    if as_ratios:
        with np.errstate(over="ignore"):
            ratios = {"exp(mean)": found.mean, f"exp({lower})": found.lower, f"exp({upper})": found.upper}
            columns |= {name: np.exp(value) for name, value in ratios.items()}
    return columns


def _each(fitted: Fitted, rows: Any, constants: FloatArray, level: float) -> Marginals:
    """Report combinations of the coefficients for every linear predictor; constants are those of the intercept."""
    posterior = fitted.posterior
    units, offsets = (part[:, 0] for part in posterior.units)
    return joined(
        [
            combined(one, rows, level).changed(float(unit), float(offset) * constants)
            for one, unit, offset in zip(posterior.each, units, offsets, strict=True)
        ]
    )


def _fixed(design: TermDesign) -> tuple[list[str], FloatArray, FloatArray]:
    """Names of the intercept and the ordinary coefficients, their combinations, and shares of the intercept."""
    own, width, intercept = design.terms.ordinary, design.width, design.intercept
    names = [*(["intercept"] if intercept else []), *(design.names[j] for j in own)]
    rows = np.zeros((len(names), width + intercept))
    if intercept:  # with the mean of the effects that are relative to it
        rows[0] = np.append(design.terms.level, 1.0)
    rows[np.arange(own.size) + intercept, own] = 1.0
    return names, rows, rows[:, width:].sum(axis=1)


def _wide(design: TermDesign, rows: Any) -> Any:
    """Append a zero for the intercept."""
    if not design.intercept:
        return rows
    if sparse.issparse(rows):
        return sparse.csr_array(sparse.hstack([rows, sparse.csr_array((rows.shape[0], 1))], format="csr"))
    return np.column_stack([rows, np.zeros(rows.shape[0])])


def _variances(fitted: Fitted) -> tuple[FloatArray, FloatArray | None]:
    """Posterior variances of the coefficients that are kept, and covariances of those that the prior couples."""
    prior = fitted.priors[0]
    if not isinstance(prior, StructuredPrior):
        return fitted.posteriors[0].variance, None
    working = fitted.natural[0].working(prior)
    return working.variance(), working.covariances_of_couplings(prior.couplings)


def _components(fitted: Fitted, level: float) -> list[tuple[str, float, float, float, float]]:
    """Name, value, standard error and interval of every standard deviation and correlation that was found."""
    prior, groups, unit = fitted.priors[0], fitted.groups, fitted.targets.unit
    design = terms_of(fitted).terms
    known: Any = fitted.natural[0]
    posterior, (normal, information) = known.working(prior), fitted.targets.noise_found(fitted)
    psi = hyperparameters_of(prior, groups)
    inverse = np.linalg.pinv(evidence(posterior, groups, normal).step()[1])
    tail, found, number = ndtri(0.5 + 0.5 * level), [], 0
    for part, _, _, block in design.groups(predictors=getattr(fitted.loss, "predictors", 1)):
        structure = None if block is None else prior.blocks[block].structure
        count = 1 if structure is None else prior.blocks[block].psi.size
        if structure is None or count == 1:
            error, low, high = interval(posterior, groups, number, normal, fitted.scale, level)
            sd = unit * float(np.exp(0.5 * psi[number]))
            ends = unit * np.exp(0.5 * np.array([low, high]))
            found.append((f"sd of {part.label}", sd, 0.5 * error * sd, float(ends[0]), float(ends[1])))
        else:
            own = slice(number, number + count)
            values, vectors = np.linalg.eigh(inverse[own, own])
            root = vectors * np.sqrt(np.clip(values, 0.0, 4.0))
            noise = ndtri(np.clip(qmc.Sobol(count, seed=0).random(_DRAWS), 1e-9, 1.0 - 1e-9))
            each = [structure.quantities(one) for one in psi[own] + noise @ root.T]
            for name, value in structure.quantities(psi[own]).items():
                factor = unit if name.startswith("sd") else 1.0
                draws = factor * np.array([one[name] for one in each])
                low, high = np.quantile(draws, [0.5 - 0.5 * level, 0.5 + 0.5 * level])
                label = f"{name} of {part.label}"
                found.append((label, factor * value, float(np.std(draws)), float(low), float(high)))
        number += count
    if fitted.targets.finds_scale:
        scale, error = unit * fitted.scale, 0.0
        if isinstance(fitted.loss, Squared):
            error = float(np.sqrt(inverse[-1, -1]))
        elif information:
            error = float(information) ** -0.5
        ends = scale * np.exp(np.array([-1.0, 1.0]) * tail * error)
        found.append(("scale of the noise", scale, error * scale, float(ends[0]), float(ends[1])))
    return found


def _grouping(term: Any) -> str:
    """Name of the grouping of effects."""
    by = getattr(term, "by", None)
    return getattr(term, "region", "") if by is None else by if isinstance(by, str) else ":".join(by)


def _levels(fitted: Fitted, term: Any, level: float) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    """Effects of all levels of a term, of all its effects and linear predictors, with their labels."""
    design, groups = terms_of(fitted), fitted.targets.names(fitted.loss)
    if term.shown == "regions":
        rows = design.terms.partial(term.label, {term.region: np.array(term.regions)})
        names: list[tuple[str, ...]] = [(term.label, region) for region in term.regions]
    else:
        levels, each, places = design.terms.effects(term.label)
        group = _grouping(term)
        names = [
            (f"{effect} | {group}" if len(each) > 1 or effect != "1" else group, one)
            for effect in each
            for one in levels
        ]
        where = places.T.ravel()
        entries = np.ones(where.size), (np.arange(where.size), where)
        rows = sparse.csr_array(entries, shape=(where.size, design.width))
    rows = _wide(design, rows)
    rows = rows.toarray() if sparse.issparse(rows) and rows.shape[0] * rows.shape[1] < 1_000_000 else rows
    found = _each(fitted, rows, np.zeros(len(names)), level)
    labels = names if groups is None else [(group, *name) for group in groups for name in names]
    return zip(labels, zip(*(part.tolist() for part in found), strict=True), strict=True)


def _curves(term: Any) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Tables along the curves of a term, each with the name of its level if it has any."""
    if term.shown != "curve" or not hasattr(term, "knots"):
        return
    if hasattr(term, "time"):
        knots = term.knots
        few = np.unique(np.round(np.linspace(0, knots.size - 1, min(knots.size, 1000))).astype(int))
        yield None, {term.time: knots[few]}
        return
    x = np.linspace(term.origin, term.origin + term.unit, _POINTS)
    if term.levels is not None:
        for level in term.levels:
            yield level, {term.x: x, term.by: np.repeat(level, x.size)}
    else:
        yield None, {term.x: x} | ({} if term.by is None else {term.by: np.ones(x.size)})


def _partial_rows(design: TermDesign, name: str, grid: Any) -> tuple[dict[str, Any], Any]:
    """Table along a term, by its label or by the column that it reads, and rows that give its effect."""
    terms = design.terms
    beside = [term for term in terms.terms if not isinstance(term, LearnedLinear)]
    chosen = next((term for term in beside if term.label == name), None)
    chosen = chosen or next((term for term in beside if term.shown == "curve" and term.variables[0] == name), None)
    if chosen is not None:
        if grid is None:
            curves = list(_curves(chosen))
            if len(curves) != 1:
                raise ValueError(f"the effect of {chosen.label} needs a grid, a table of {', '.join(chosen.variables)}")
            frame = curves[0][1]
        else:
            frame = _frame(grid, chosen.variables)
        return frame, _wide(design, terms.partial(chosen.label, frame))
    start, found = 0, None
    for term in terms.terms:
        if isinstance(term, LearnedLinear):
            own = tuple(product for product in term.products if name in _read(term, product))
            if own and found is None:
                found = start, term, own
        start += len(term.names)
    if found is None:
        known = [*(term.label for term in beside), *terms.variables]
        raise ValueError(f"there is no term {name!r}; {nearest(name, dict.fromkeys(known))}")
    start, term, own = found
    if grid is None:
        raise ValueError(f"the effect of {name!r} needs a grid, such as values of {name!r}")
    variables = dict.fromkeys(one for product in own for one in _read(term, product))
    frame = _frame(grid, tuple(variables))
    made = term.columns(frame, own)
    made = made.toarray() if sparse.issparse(made) else np.asarray(made, dtype=np.float64)
    rows = np.zeros((len(made), design.width))
    for product in own:
        places = term.places(product)
        rows[:, start + places] = made[:, places] - terms.means[start + places]
    return frame, _wide(design, rows)


def _read(term: LearnedLinear, product: tuple[str, ...]) -> list[str]:
    """Columns of the table that a product reads."""
    return [name for factor in product for name in term.states[f"read {factor}"]]


def _frame(grid: Any, variables: tuple[str, ...]) -> dict[str, Any]:
    """Table of values of some columns: given as one, or as the values of the only column."""
    if hasattr(grid, "columns") or isinstance(grid, Mapping):
        lacking = [name for name in variables if name not in grid]
        if lacking:
            raise ValueError(f"the grid needs a column {lacking[0]!r}; {nearest(lacking[0], map(str, grid))}")
        return {name: np.asarray(grid[name]) for name in variables}
    if len(variables) != 1:
        raise ValueError(f"the grid must be a table with the columns {', '.join(variables)}")
    return {variables[0]: np.atleast_1d(np.asarray(grid))}
