"""What a fitted model tells its user: tables, contrasts, plots, draws for ArviZ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri
from sklearn.utils import check_random_state

from cavity._checks import as_float, number_between, shown, whole_number
from cavity._types import FloatArray
from cavity.ep.hyperparameters import hyperparameters_of, interval
from cavity.ep.skewness import Shapes
from cavity.estimators.fitted import Fitted
from cavity.gaussians.mixture import GaussianMixture, normal_mixture_quantile
from cavity.losses import offers
from cavity.losses.joint import Normal
from cavity.losses.noise import log_normalizer, predictive_quantile


class Marginals(NamedTuple):
    """Means, standard deviations, ends of intervals and probabilities to be positive, one number per coefficient."""

    mean: FloatArray
    std: FloatArray
    lower: FloatArray
    upper: FloatArray
    positive: FloatArray

    @classmethod
    def of(cls, mean: FloatArray, variance: FloatArray, level: float, weights: FloatArray | None = None) -> Marginals:
        """Marginals of normal variables, or with ``weights`` of mixtures, whose arrays have a row per part."""
        std = np.sqrt(variance)
        with np.errstate(divide="ignore", invalid="ignore"):
            positive = np.where(std > 0.0, ndtr(mean / std), np.where(mean > 0.0, 1.0, 0.0))
        if weights is None:
            reach = ndtri(0.5 + 0.5 * level) * std
            return cls(mean, std, mean - reach, mean + reach, positive)
        center = weights @ mean
        spread = np.sqrt(weights @ (variance + np.square(mean - center)))
        lower, upper = (normal_mixture_quantile(weights, mean, std, 0.5 + 0.5 * sign * level) for sign in (-1.0, 1.0))
        return cls(center, spread, lower, upper, weights @ positive)

    def skewed(self, shapes: Shapes, std: FloatArray, level: float) -> Marginals:
        """Move ends and probabilities as much as those of Gaussians of these deviations, by the shapes of marginals."""
        ends = [
            end + std * (shapes.quantiles(q) - ndtri(q))
            for end, q in ((self.lower, 0.5 - 0.5 * level), (self.upper, 0.5 + 0.5 * level))
        ]
        with np.errstate(divide="ignore", invalid="ignore"):
            more = shapes.above(-self.mean / std) - ndtr(self.mean / std)
        return self._replace(lower=ends[0], upper=ends[1], positive=np.clip(self.positive + more, 0.0, 1.0))

    def changed(self, unit: Any, offset: Any) -> Marginals:
        """Multiply by positive units, and add offsets."""
        mean, lower, upper = (unit * a + offset for a in (self.mean, self.lower, self.upper))
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.where(self.std > 0.0, ndtr(mean / (unit * self.std)), np.where(mean > 0.0, 1.0, 0.0))
        return Marginals(mean, unit * self.std, lower, upper, np.where(offset == 0.0, self.positive, moved))

    def at(self, order: Any) -> Marginals:
        """Choose some coefficients."""
        return Marginals(*(a[order] for a in self))


def coefficient_columns(
    labels: list[Any],
    found: Marginals,
    level: float,
    is_log: bool,
    components: Sequence[tuple[str, float, float, float, float]] = (),
) -> tuple[list[Any], dict[str, FloatArray]]:
    """Labels, and mean, standard deviation, interval and probability to be positive, one coefficient per row.

    ``is_log`` adds the exponential of mean and interval: of log odds an odds ratio, of a log mean a ratio of means.
    Variance components, each a name, a value, its standard error and an interval, follow as further rows.
    """
    lower, upper = (f"{end} {100.0 * level:g}%" for end in ("lower", "upper"))
    columns = {"mean": found.mean, "std": found.std, lower: found.lower, upper: found.upper, "P(> 0)": found.positive}
    if is_log:
        with np.errstate(over="ignore"):
            ratios = {"exp(mean)": found.mean, f"exp({lower})": found.lower, f"exp({upper})": found.upper}
            columns |= {name: np.exp(value) for name, value in ratios.items()}
    for name, *numbers in components:
        row = [*numbers, 1.0] + [np.nan] * (len(columns) - 5)
        columns = {key: np.append(old, new) for (key, old), new in zip(columns.items(), row, strict=True)}
        labels = [*labels, ("", name) if labels and isinstance(labels[0], tuple) else name]
    return labels, columns


def coefficient_table(labels: list[Any], columns: dict[str, FloatArray], kind: str = "class") -> Any:
    """Make a table of such columns; ``kind`` is what the first of two labels stands for."""
    if find_spec("pandas") is not None:
        pandas = import_module("pandas")
        grouped = bool(labels) and isinstance(labels[0], tuple)
        index = pandas.MultiIndex.from_tuples(labels, names=[kind, "coefficient"]) if grouped else labels
        table = pandas.DataFrame(columns, index=index)
        if not grouped:
            table.index.name = "coefficient"
        return table
    return text_of([in_one(label) for label in labels], columns)


def in_one(label: Any) -> str:
    """Write a label, or a pair of them, as text."""
    return " ".join(map(str, label)) if isinstance(label, tuple) else str(label)


def combinations(
    given: Any, names: Sequence[str], groups: Sequence[str] | None = None
) -> tuple[list[str], list[FloatArray]]:
    """Read linear combinations, ``{name: factor}`` or arrays in the order of the names; label them in words.

    Where there are groups, a combination may join them by keys ``(group, name)``: it is then an array of one row per
    group.
    """
    rows = []
    for one in given:
        if isinstance(one, Mapping):
            row = _from_dict(one, names, groups)
        else:
            try:
                row = np.asarray(one, dtype=np.float64)
            except (TypeError, ValueError):
                row = np.empty(0)
        if row.shape[-1:] != (len(names),) or row.ndim > 2 or not np.all(np.isfinite(row)):
            raise ValueError(
                f"a contrast must be a dict of names and finite factors, or {len(names)} finite numbers in the order "
                f"{_listed(names)}; got {shown(one)}"
            )
        rows.append(row)
    if not rows:
        raise ValueError("contrast needs at least one linear combination, such as {'x0': 1, 'x1': -1}")
    if len({row.ndim for row in rows}) > 1:
        raise ValueError("contrasts within and between classes cannot be mixed in one table: ask for two")
    long = [f"{group} {name}" for group in groups or () for name in names]
    return [_in_words(row.ravel(), long if row.ndim == 2 else names) for row in rows], rows


def _from_dict(given: Mapping[Any, Any], names: Sequence[str], groups: Sequence[str] | None) -> FloatArray:
    between = groups is not None and any(isinstance(key, tuple) for key in given)
    row = np.zeros((len(groups or ()), len(names))) if between else np.zeros(len(names))
    for key, factor in given.items():
        fits = isinstance(key, tuple) and len(key) == 2 and str(key[0]) in (groups or ())
        name = str(key[1]) if between and fits else str(key)
        if name not in names or between != fits:
            pairs = f", or pairs of a class among {', '.join(groups)} and such a name" if groups else ""
            raise ValueError(f"a contrast must name coefficients among {_listed(names)}{pairs}; got {key!r}")
        place = names.index(name)
        row[(list(groups or ()).index(str(key[0])), place) if between else place] += as_float(factor)
    return row


def _listed(names: Sequence[str]) -> str:
    """Name the first coefficients."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more, see summary()" if len(names) > 10 else "")


def _in_words(row: FloatArray, names: Sequence[str]) -> str:
    """Write a linear combination as ``a - 2 b``."""
    words = ""
    for name, factor in zip(names, row, strict=True):
        if factor != 0.0:
            sign = "-" if factor < 0.0 else "+" if words else ""
            size = "" if abs(factor) == 1.0 else f"{abs(factor):g} "
            words += f" {sign} {size}{name}" if words else f"{sign}{size}{name}"
    return words or "0"


def text_of(labels: list[str], columns: dict[str, FloatArray]) -> str:
    """Write columns of numbers under their names, the labels before them."""
    room = max([len("coefficient"), *map(len, labels)])
    lines = [f"{'coefficient':{room}s}" + "".join(f"{name:>14s}" for name in columns)]
    for label, *numbers in zip(labels, *columns.values(), strict=True):
        lines.append(f"{label:{room}s}" + "".join(f"{number:14.4g}" for number in numbers))
    return "\n".join(lines)


def summary(fitted: Fitted, level: float, top: int | None = None) -> Any:
    """Make the table of `EPClassifier.summary`."""
    return coefficient_table(*summary_columns(fitted, level, top), fitted.targets.what)


def summary_columns(
    fitted: Fitted, level: float = 0.95, top: int | None = None
) -> tuple[list[Any], dict[str, FloatArray]]:
    """Labels and columns of the summary, of all coefficients or of those that are largest for their deviations."""
    level = number_between("level", level, 0.0, 1.0, "()")
    labels, found = _named_coefficients(fitted, level)
    if top is not None:
        order = np.argsort(-np.abs(found.mean) / found.std, kind="stable")[:top]
        labels, found = [labels[j] for j in order], found.at(order)
    return coefficient_columns(labels, found, level, is_log(fitted), _components(fitted, level))


def contrast(fitted: Fitted, weights: Any, level: float) -> Any:
    """Make the table of `EPClassifier.contrast`."""
    level = number_between("level", level, 0.0, 1.0, "()")
    posterior, design = fitted.errors, fitted.design
    groups, as_ratios, what = fitted.targets.names(fitted.loss), is_log(fitted), fitted.targets.what
    labels, weighted = combinations(weights, _names(fitted), groups)
    rows = np.roll(np.array(weighted), -int(design.intercept), axis=-1)
    units, offsets = posterior.units
    if rows.ndim == 3:
        found = np.einsum("rgc,gc->r", rows, posterior.moments[0])
        marginals = Marginals.of(found, posterior.variance_between(units * rows), level)
        return coefficient_table(*coefficient_columns(labels, marginals, level, as_ratios))
    constants = np.sum(rows[:, design.width :], axis=1)
    each = [
        combined(one, rows, level).changed(float(unit), float(offset) * constants)
        for one, unit, offset in zip(posterior.each, units[:, 0], offsets[:, 0], strict=True)
    ]
    places = labels if groups is None else [(group, label) for group in groups for label in labels]
    return coefficient_table(*coefficient_columns(places, joined(each), level, as_ratios), what)


def plot_coefficients(fitted: Fitted, ax: Any, top: int, level: float) -> Any:
    """Draw what `EPClassifier.plot_coefficients` draws."""
    plt, (labels, found) = pyplot(), _named_coefficients(fitted, level)
    unit = fitted.columns.unit
    plain = bool(np.all(unit == 1.0))
    if not plain:
        units = np.append([0.0] * fitted.design.intercept, unit)
        units = np.tile(units, len(labels) // units.size)
        kept = np.flatnonzero(units)
        labels, found = [labels[j] for j in kept], found.at(kept).changed(units[kept], np.zeros(kept.size))
    order = np.argsort(-np.abs(found.mean) / found.std, kind="stable")[:top][::-1]
    names = [in_one(labels[j]) for j in order]
    if ax is None:
        _, ax = plt.subplots(figsize=(6.4, 1.0 + 0.26 * len(names)), layout="constrained")
    places = np.arange(len(names))
    ax.axvline(0.0, color="0.6", linewidth=0.8)
    drawn = found.at(order)
    ends = np.abs([drawn.mean - drawn.lower, drawn.upper - drawn.mean])
    ax.errorbar(drawn.mean, places, xerr=ends, fmt="o", markersize=4, capsize=2)
    ax.set_yticks(places, names)
    what = "coefficient" if plain else "coefficient per unit of its column"
    ax.set_xlabel(f"{what}, with its {100.0 * level:g}% interval")
    ax.margins(y=0.02)
    return ax


def plot_trace(fitted: Fitted, tol: float, ax: Any) -> Any:
    """Draw what `EPClassifier.plot_trace` draws."""
    plt, traces = pyplot(), fitted.trace if isinstance(fitted.trace, tuple) else (fitted.trace,)
    if ax is None:
        _, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    names: Any = fitted.targets.names(fitted.loss) if len(traces) > 1 else [None]
    for trace, name in zip(traces, names, strict=True):
        ax.plot(np.arange(1, len(trace.changes) + 1), trace.changes, marker="o", markersize=3, label=name)
    ax.axhline(tol, color="0.6", linestyle="--", linewidth=0.8)
    ax.set_yscale("log")
    ax.set_xlabel("loop")
    ax.set_ylabel("largest change, in standard deviations")
    if len(traces) > 1:
        ax.legend(title="class")
    return ax


def inference_data(fitted: Fitted, X: Any, y: Any, n: int, random_state: Any, draw: Any) -> Any:
    """Make ArviZ's InferenceData, which is imported here.

    ``draw`` gives, for a number of draws, a seed and a generator, new targets of the rows and, with ``y``, their log
    densities and what was observed.
    """
    try:
        arviz = import_module("arviz")
    except ModuleNotFoundError as error:
        raise ImportError("draws for ArviZ need arviz: pip install 'arviz<1'") from error
    if X is None and y is not None:
        raise ValueError("y needs the rows X that it belongs to")
    n, rng = whole_number("n", n, least=1), check_random_state(random_state)
    seed = int(rng.randint(2**31 - 1))
    coef, intercept = fitted.posterior.coefficients(n, seed)
    groups: dict[str, Any] = {"posterior": {"coef": coef[None], "intercept": intercept[None]}}
    if X is not None:
        # The same draws as above; what they predict is drawn from the generator, which goes on.
        new, log_density, observed = draw(X, y, n, seed, rng)
        groups["posterior_predictive"] = {"y": new[None]}
        if y is not None:
            groups |= {"log_likelihood": {"y": log_density[None]}, "observed_data": {"y": observed}}
    return arviz.from_dict(**groups)


def drawn_labels(probabilities: FloatArray, codes: Any, rng: Any) -> tuple[Any, Any, Any]:
    """Draw labels, by their numbers, for draws of probabilities; log probabilities of those that were observed."""
    chosen = rng.uniform(size=(*probabilities.shape[:2], 1))
    last = probabilities.shape[2] - 1
    new = np.minimum(np.sum(np.cumsum(probabilities, axis=2) < chosen, axis=2), last)
    if codes is None:
        return new, None, None
    codes = np.asarray(codes, dtype=np.intp)
    with np.errstate(divide="ignore"):
        return new, np.log(probabilities[:, np.arange(codes.size), codes]), codes


def drawn_targets(fitted: Fitted, z: FloatArray, y: Any, rng: Any) -> tuple[Any, Any, Any]:
    """Draw targets for draws of predictors by their distribution function; log densities in units of y."""
    unit, center, loss = fitted.targets.unit, fitted.targets.offset, fitted.loss
    uniform = rng.uniform(1e-12, 1.0 - 1e-12, size=z.shape[:2])
    z = z if z.shape[-1] > 1 else z[..., 0]
    if isinstance(loss, Normal):
        new = z[..., 0] + np.exp(z[..., 1]) * ndtri(uniform)
    else:
        new = predictive_quantile(loss, z, np.zeros_like(z), uniform)
    if y is None:
        return center + unit * new, None, None
    observed = np.asarray(y, dtype=np.float64)
    t = (observed - center) / unit
    constant = np.full(t.shape, 0.5 * np.log(2.0 * np.pi)) if isinstance(loss, Normal) else log_normalizer(loss, t)
    density = -np.asarray(loss.value(t, z)) - constant - np.log(unit)
    return center + unit * new, density, observed


def _named_coefficients(fitted: Fitted, level: float) -> tuple[list[Any], Marginals]:
    """Names of all coefficients, the intercept first, with what is reported of them."""
    names, posterior, design = _names(fitted), fitted.errors, fitted.design
    units, offsets = (part[:, 0] for part in posterior.units)
    each = []
    for k, (one, unit, offset) in enumerate(zip(posterior.each, units, offsets, strict=True)):
        constant = np.append(np.zeros(design.width), [offset] * design.intercept)
        found = marginals_of(one, level)
        shapes = posterior.shapes
        if shapes is not None:
            found = found.skewed(shapes[k], posterior.given[k].std, level)
        found = found.changed(float(unit), constant)
        each.append(found.at(np.roll(np.arange(constant.size), int(design.intercept))))
    groups = fitted.targets.names(fitted.loss)
    labels = names if groups is None else [(g, name) for g in groups for name in names]
    return labels, joined(each)


def marginals_of(posterior: Any, level: float) -> Marginals:
    """Report every coefficient of a posterior."""
    if isinstance(posterior, GaussianMixture):
        means, variances = (np.array([getattr(part, a) for part in posterior.parts]) for a in ("mean", "variance"))
        return Marginals.of(means, variances, level, posterior.weights)
    return Marginals.of(posterior.mean, posterior.variance, level)


def combined(posterior: Any, rows: FloatArray, level: float) -> Marginals:
    """Report linear combinations of the coefficients of a posterior."""
    if isinstance(posterior, GaussianMixture):
        return Marginals.of(*posterior.predictors(rows), level, posterior.weights)
    return Marginals.of(rows @ posterior.mean, posterior.predictor_variance(rows), level)


def joined(parts: Sequence[Marginals]) -> Marginals:
    """Report what several posteriors have, one after the other."""
    return Marginals(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _components(fitted: Fitted, level: float) -> list[tuple[str, float, float, float, float]]:
    """Name, value, standard error and interval of every prior variance that was found.

    In squared units of the coefficients; of columns that are standardised, in squared units of the standardised ones.
    """
    named, groups, prior = fitted.design.groups, fitted.groups, fitted.priors[0]
    if not named or len(fitted.priors) > 1:
        return []
    posterior, (normal, _) = fitted.natural[0].working(prior), fitted.targets.noise_found(fitted)
    unit, found = fitted.targets.unit**2, []
    names = [*named, *(["log scale"] * (len(groups) - len(named)))]
    for g, name in enumerate(names):
        v = float(np.exp(hyperparameters_of(prior, groups)[g]))
        error, *ends = interval(posterior, groups, g, normal, fitted.scale, level)
        lower, upper = np.exp(ends)
        plain = g >= len(named) or bool(np.all(fitted.columns.unit[named[name]] == 1.0))
        factor = 1.0 if g >= len(named) else unit
        label = f"variance of {name}" if plain else f"variance of {name} (standardised)"
        found.append((label, factor * v, factor * v * error, factor * lower, factor * upper))
    return found


def _names(fitted: Fitted) -> list[str]:
    """Names of the coefficients of one linear predictor, the intercept first."""
    return [*(["intercept"] if fitted.design.intercept else []), *fitted.design.names]


def is_log(fitted: Fitted) -> bool:
    """Whether coefficients are logarithms of ratios: of odds, or of means."""
    return offers(fitted.loss).logistic is not None or fitted.loss.targets in ("counts", "positives", "classes")


def pyplot() -> Any:
    """Return matplotlib's interface; an error says how to install it."""
    try:
        return import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
