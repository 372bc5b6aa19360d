"""What a fitted model tells its user: tables, contrasts and plots."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavity._checks import number_between
from cavity.ep.hyperparameters import variance_interval, variances_of
from cavity.estimators._arviz import inference_data
from cavity.estimators._categories import names_of
from cavity.estimators._parameters import Parameters
from cavity.estimators._posteriors import Posteriors, moments_of, reported, units_of, working
from cavity.estimators._table import Marginals, coefficient_columns, coefficient_table, combinations, in_one
from cavity.gaussians.mixture import GaussianMixture
from cavity.losses import offers

FloatArray = NDArray[np.float64]


class Reports(Posteriors):
    """Tables and plots of coefficients."""

    def summary(self, level: float = 0.95) -> Any:
        """Table of coefficients with means, standard deviations, intervals and the probability of being positive.

        For the logistic loss, counts and positive targets, the table also contains the exponentials of the mean and the
        interval: the factor by which the odds, or the mean, change when a feature increases by one. Effects of the
        levels of a text column are relative to their mean, which is part of the intercept. Prior variances that were
        found follow with standard errors and intervals, in squared units of the coefficients, or of those of
        standardised columns where these are. If there are several linear predictors, the first index names the class,
        or ``"mean"`` and ``"log scale"``.

        Parameters
        ----------
        level : float, default=0.95
            Posterior probability of the intervals.

        Returns
        -------
        pandas.DataFrame or str
            A DataFrame if pandas is installed, text otherwise.
        """
        return coefficient_table(*summary_columns(self, level), self._kind_of_groups)

    def contrast(self, *weights: Any, level: float = 0.95) -> Any:
        """Table of linear combinations of coefficients, from their joint posterior.

        Parameters
        ----------
        *weights
            Each is a dict of coefficient names and factors, such as ``{"age": 1, "height": -1}`` for a difference, or
            an array of one factor per coefficient in the order of `summary`, with the intercept first. With several
            classes, use pairs of class and feature: ``{("dog", "age"): 1, ("cat", "age"): -1}``.
        level : float, default=0.95
            Posterior probability of the intervals.

        Returns
        -------
        pandas.DataFrame or str
            As in `summary`, with one combination per row, for every linear predictor if there are several.
        """
        level = number_between("level", level, 0.0, 1.0, "()")
        posteriors = self.posterior_  # not fitted: raised here
        names, groups = _names(self), self._groups
        labels, weighted = combinations(weights, names, groups)
        rows = np.roll(np.array(weighted), -int(self._intercept), axis=-1)
        units, offsets = units_of(self)
        if rows.ndim == 3:
            found = np.einsum("rgc,gc->r", rows, moments_of(self)[0])
            marginals = Marginals.of(found, self._variance_between(units * rows), level)
            return coefficient_table(*coefficient_columns(labels, marginals, level, _is_log(self)))
        constants = np.sum(rows[:, self._width :], axis=1)
        each = [
            combined(posterior, rows, level).changed(float(unit), float(offset) * constants)
            for posterior, unit, offset in zip(posteriors, units[:, 0], offsets[:, 0], strict=True)
        ]
        places = labels if groups is None else [(group, label) for group in groups for label in labels]
        columns = coefficient_columns(places, joined(each), level, _is_log(self))
        return coefficient_table(*columns, self._kind_of_groups)

    def _variance_between(self, rows: FloatArray) -> FloatArray:
        """Variances of combinations ``(n, predictors, columns)`` of the coefficients of several predictors."""
        if self._is_joint:
            inner = np.einsum("gk,rgc->rkc", self._mixing(), rows)
            return reported(self)[0].predictor_variance(inner.reshape(len(rows), -1))
        each = [q.predictor_variance(rows[:, g]) for g, q in enumerate(self.posterior_)]
        return np.asarray(np.sum(each, axis=0))

    def to_arviz(
        self, X: Any = None, y: Any = None, n: int = 1000, random_state: Any = None, offset: Any = None
    ) -> Any:
        """Convert to ArviZ, for leave-one-out estimates, predictive checks and plots.

        Needs arviz (``pip install 'arviz<1'``).

        Parameters
        ----------
        X, y, offset : optional
            Rows, their labels or targets, and offsets. With ``X``, draws of new targets for these rows are added. With
            ``y`` as well, the log likelihood of every row for every draw, and the targets, are added.
        n : int, default=1000
            Number of draws.
        random_state : int, RandomState or None, default=None
            Seed of the draws.

        Returns
        -------
        arviz.InferenceData
            Group ``posterior`` and, if rows are given, ``posterior_predictive``, ``log_likelihood`` and
            ``observed_data``. Labels are indices of ``classes_``.
        """
        self._known()
        return inference_data(self, X, y, n, random_state, offset)

    def plot_coefficients(self, ax: Any = None, top: int = 20, level: float = 0.95) -> Any:
        """Plot the coefficients that are largest relative to their standard deviation, with intervals.

        Where columns are in units of their own (`prior_units_`), coefficients are plotted per unit, so that they can be
        compared, and without the intercept.

        Needs matplotlib (the extra ``plot``).

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on. By default a new figure is created.
        top : int, default=20
            Maximum number of coefficients.
        level : float, default=0.95
            Posterior probability of the intervals.

        Returns
        -------
        matplotlib Axes
            The axes of the plot.
        """
        plt, (labels, found) = _pyplot(), _named_coefficients(self, level)
        plain = bool(np.all(self._columns.unit == 1.0))
        if not plain:
            units = np.append([0.0] * self._intercept, self._columns.unit)
            units = np.tile(units, len(labels) // units.size)
            kept = np.flatnonzero(units)
            labels, found = [labels[j] for j in kept], found.at(kept).changed(units[kept], np.zeros(kept.size))
        order = np.argsort(-np.abs(found.mean) / found.std, kind="stable")[:top][::-1]
        names = [in_one(labels[j]) for j in order]
        if ax is None:
            _, ax = plt.subplots(figsize=(6.4, 1.0 + 0.26 * len(names)), layout="constrained")
        places = np.arange(len(names))
        ax.axvline(0.0, color="0.6", linewidth=0.8)
        shown = found.at(order)
        ends = np.abs([shown.mean - shown.lower, shown.upper - shown.mean])
        ax.errorbar(shown.mean, places, xerr=ends, fmt="o", markersize=4, capsize=2)
        ax.set_yticks(places, names)
        what = "coefficient" if plain else "coefficient per unit of its column"
        ax.set_xlabel(f"{what}, with its {100.0 * level:g}% interval")
        ax.margins(y=0.02)
        return ax

    def plot_trace(self, ax: Any = None) -> Any:
        """Plot how much every loop of `fit` changed the posterior. Needs matplotlib.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on. By default a new figure is created.

        Returns
        -------
        matplotlib Axes
            The axes of the plot.
        """
        self._known()
        plt, traces = _pyplot(), self.trace_ if isinstance(self.trace_, tuple) else (self.trace_,)
        if ax is None:
            _, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        for trace, name in zip(traces, self._groups if len(traces) > 1 else [None], strict=True):
            ax.plot(np.arange(1, len(trace.changes) + 1), trace.changes, marker="o", markersize=3, label=name)
        ax.axhline(self.tol, color="0.6", linestyle="--", linewidth=0.8)
        ax.set_yscale("log")
        ax.set_xlabel("loop")
        ax.set_ylabel("largest change, in standard deviations")
        if len(traces) > 1:
            ax.legend(title="class")
        return ax


def summary_columns(model: Reports, level: float = 0.95) -> tuple[list[Any], dict[str, FloatArray]]:
    """Labels and columns of `Reports.summary`."""
    level = number_between("level", level, 0.0, 1.0, "()")
    model._known()  # not fitted: raised here
    components = _components(model, level)
    return coefficient_columns(*_named_coefficients(model, level), level, _is_log(model), components)


def _named_coefficients(model: Reports, level: float) -> tuple[list[Any], Marginals]:
    """Names of all coefficients, the intercept first, with what is reported of them."""
    names, posteriors = _names(model), model.posterior_
    units, offsets = (part[:, 0] for part in units_of(model))
    each = []
    for posterior, unit, offset in zip(posteriors, units, offsets, strict=True):
        constant = np.append(np.zeros(model._width), [offset] * model._intercept)
        found = marginals_of(posterior, level).changed(float(unit), constant)
        each.append(found.at(np.roll(np.arange(constant.size), int(model._intercept))))
    labels = names if model._groups is None else [(g, name) for g in model._groups for name in names]
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


def _components(model: Reports, level: float) -> list[tuple[str, float, float, float, float]]:
    """Name, value, standard error and interval of every prior variance that was found.

    In squared units of the coefficients; of columns that are standardised, in squared units of the standardised ones.
    """
    p = Parameters.of(model, model._width)
    if not p.named or len(model._known()) > 1:
        return []
    groups = model._free
    posterior, (normal, _) = working(model._known()[0], model._priors[0]), model._noise_known()
    unit, scale, found = model._units[0] ** 2, float(getattr(model._loss, "scale", 1.0)), []
    names = [*p.named, *(["log scale"] * (len(groups) - len(p.named)))]
    for g, name in enumerate(names):
        v = float(variances_of(model._priors[0], groups)[g])
        error, lower, upper = variance_interval(posterior, groups, g, normal, scale, level)
        plain = g >= len(p.named) or bool(np.all(model._columns.unit[p.named[name]] == 1.0))
        factor = 1.0 if g >= len(p.named) else unit
        label = f"variance of {name}" if plain else f"variance of {name} (standardised)"
        found.append((label, factor * v, factor * v * error, factor * lower, factor * upper))
    return found


def _names(model: Reports) -> list[str]:
    """Names of the coefficients of one linear predictor, the intercept first."""
    features = getattr(model, "feature_names_in_", [f"x{j}" for j in range(model.n_features_in_)])
    names = names_of([str(name) for name in features], vars(model).get("categories_", {}))
    return [*(["intercept"] if model._intercept else []), *names]


def _is_log(model: Reports) -> bool:
    """Whether coefficients are logarithms of ratios: of odds, or of means."""
    return offers(model._loss).logistic is not None or model._loss.targets in ("counts", "positives", "classes")


def _pyplot() -> Any:
    try:
        return import_module("matplotlib.pyplot")
    except ModuleNotFoundError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
