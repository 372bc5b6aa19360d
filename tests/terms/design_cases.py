"""Fit a design by EP, as estimators do, for tests of terms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from cavity.ep.blocks import run
from cavity.ep.driver import Options
from cavity.ep.hyperparameters import Group, Hyperparameters, hyperparameters_of
from cavity.ep.posteriors import DensePosterior, SparsePosterior
from cavity.factors.columns import Columns, ColumnSums
from cavity.factors.rows import Rows
from cavity.gaussians import analyse
from cavity.losses import Squared
from cavity.terms import Design, Formula
from cavity.terms.linear import WEAK, WEAK_FOR_REALS
from cavity.terms.prior import StructuredPrior


class Fit(NamedTuple):
    design: Design
    posterior: object
    result: object
    found: dict
    columns: Columns
    unit: float
    center: float
    groups: list
    rows: Rows

    def predict(self, frame):
        """Mean and standard deviation of the linear predictor."""
        return self.combined(self.design.matrix(frame), 1.0)

    def partial(self, label, frame):
        """Mean and standard deviation of the effect of a term."""
        return self.combined(self.design.partial(label, frame), 0.0, centred=True)

    def combined(self, rows, constant, centred=False):
        rows = rows.toarray() if sparse.issparse(rows) else np.asarray(rows, dtype=float)
        rows = (rows - (0.0 if centred else self.columns.center)) / self.columns.unit
        if self.design.intercept:
            rows = np.column_stack([rows, np.full(len(rows), constant)])
        gaussian = self.posterior
        mean, variance = rows @ gaussian.mean, gaussian.predictor_variance(rows)
        return constant * self.center + self.unit * mean, self.unit * np.sqrt(variance)

    @property
    def fixed(self):
        """Means of the intercept, then of the ordinary coefficients, in units of the data."""
        own = self.design.ordinary
        each = self.unit * self.posterior.mean[own] / self.columns.unit[own]
        if not self.design.intercept:
            return each
        level = self.center + self.unit * self.posterior.mean[-1] - each @ self.columns.center[own]
        return np.append(level, each)


def posterior_of(rows, prior, storage):
    """A posterior without sites, dense or sparse."""
    if storage == "dense":
        return DensePosterior(rows, prior)
    coupled = None
    if isinstance(prior, StructuredPrior):
        pairs = prior.couplings
        coupled = sparse.csr_array((np.ones(pairs.left.size), (pairs.left, pairs.right)), shape=(prior.dim,) * 2)
    return SparsePosterior(rows, analyse(rows.matrix(), coupled=coupled), prior, rows.matrix())


def fit(formula, frame, y, loss=None, given=None, storage="auto", tol=1e-5, weights=None, rate=None, groups=None):
    """Fit terms; targets of the squared loss are brought to units of their own, and its noise is found."""
    terms = Formula.parse(formula, given).terms if isinstance(formula, str) else formula
    normal = loss is None
    center, unit = (float(np.mean(y)), float(np.std(y))) if normal else (0.0, 1.0)
    loss = Squared(0.5) if normal else loss
    design, matrix = Design.learn(terms, frame, weights)
    measured, columns = ColumnSums.of(matrix, weights), Columns.plain(matrix.shape[1])
    own, all_columns = design.ordinary, measured.columns(design.intercept)
    columns.center[own], columns.unit[own] = all_columns.center[own], all_columns.unit[own]
    rate = (0.0 if normal else 0.1) if rate is None else rate
    groups = [Group(places, size, rate, block) for _, places, size, block in design.groups(measured.sizes(columns))]
    prior = design.prior(1.0, columns.unit, weak=WEAK_FOR_REALS if normal else WEAK)
    rows = Rows.arrange(matrix, ((y - center) / unit)[None], weights, design.intercept, columns=columns)
    if storage == "auto":
        storage = "sparse" if sparse.issparse(matrix) else "dense"
    posterior = posterior_of(rows, prior, storage)
    free = Hyperparameters(groups, normal, 1e-4)
    result = run(loss, rows, posterior, Options(200, tol), hyperparameters=free)
    psi, found = hyperparameters_of(result.prior, groups), {}
    start = 0
    for part, _, _, block in design.groups():
        if block is None:
            found[part.label] = {"sd": unit * float(np.exp(0.5 * psi[start]))}
            start += 1
        else:
            count = part.structure.lower.size
            found[part.label] = {
                name: value * (1.0 if "correlation" in name else unit)
                for name, value in part.structure.quantities(psi[start : start + count]).items()
            }
            start += count
    if normal:
        found["residual"] = {"sd": unit * result.loss.scale}
    return Fit(design, result.posterior, result, found, columns, unit, center, groups, rows)
