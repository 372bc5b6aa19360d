"""Fit a design by EP, as estimators do, for tests of terms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from cavity.ep.blocks import run
from cavity.ep.driver import Options
from cavity.ep.hyperparameters import Hyperparameters
from cavity.ep.posteriors import DensePosterior, SparsePosterior
from cavity.estimators.term_design import TermDesign
from cavity.factors.columns import Columns, ColumnSums
from cavity.factors.rows import Rows
from cavity.gaussians import analyse
from cavity.losses import Squared
from cavity.terms import Design, Formula
from cavity.terms.linear import WEAK, WEAK_FOR_REALS


class Fit(NamedTuple):
    design: Design
    posterior: object
    result: object
    found: dict
    columns: Columns
    unit: float
    center: float
    own: TermDesign
    groups: tuple
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


def posterior_of(rows, prior, storage, coupled):
    """A posterior without sites, dense or sparse."""
    if storage == "dense":
        return DensePosterior(rows, prior)
    return SparsePosterior(rows, analyse(rows.matrix(), coupled=coupled), prior, rows.matrix())


def fit(formula, frame, y, loss=None, given=None, storage="auto", tol=1e-5, weights=None, rate=None, groups=None):
    """Fit terms; targets of the squared loss are brought to units of their own, and its noise is found."""
    terms = Formula.parse(formula, given).terms if isinstance(formula, str) else formula
    normal = loss is None
    center, unit = (float(np.mean(y)), float(np.std(y))) if normal else (0.0, 1.0)
    loss = Squared(0.5) if normal else loss
    design, matrix = Design.learn(terms, frame, weights)
    measured, own = ColumnSums.of(matrix, weights), TermDesign(design, 100.0, WEAK_FOR_REALS if normal else WEAK)
    columns = own.columns(measured)
    rate = (0.0 if normal else 0.1) if rate is None else rate
    prior, groups = own.prior(columns, measured.sizes(columns), 1.0, rate)
    rows = Rows.arrange(matrix, ((y - center) / unit)[None], weights, design.intercept, columns=columns)
    if storage == "auto":
        storage = "sparse" if sparse.issparse(matrix) else "dense"
    posterior = posterior_of(rows, prior, storage, own.coupled())
    free = Hyperparameters(groups, normal, 1e-4)
    result = run(loss, rows, posterior, Options(200, tol), hyperparameters=free)
    found = design.components(result.prior, unit)
    if normal:
        found["residual"] = {"sd": unit * result.loss.scale}
    return Fit(design, result.posterior, result, found, columns, unit, center, own, groups, rows)
