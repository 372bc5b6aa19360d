"""Two models that were trained on different rows, as one."""

from __future__ import annotations

import copy
from typing import Self

import numpy as np
from sklearn.exceptions import NotFittedError

from cavity.estimators._parameters import Parameters
from cavity.estimators._reports import Reports
from cavity.gaussians.factorial import FactorialGaussian, ImproperError


class Mergeable(Reports):
    """Adds up what two models know."""

    def merge(self, other: Self) -> Self:
        """Combine with a model trained on other rows.

        What the rows say adds up, and the prior counts once: its variance, where the models found it, is the average
        of theirs by rows. Both models stay as they are.

        Parameters
        ----------
        other : estimator of the same class
            The other model, fitted with the same features, loss, covariance and given prior.

        Returns
        -------
        Self
            A new model that knows what both know.

        Raises
        ------
        ValueError
            If the models differ in kind, features, loss, covariance or given prior, or if the product is not proper.
        """
        self._check_mergeable(other)
        result = copy.copy(self)
        result.__dict__.pop("_rows_at_revision", None)
        result._absorb(self, other)
        try:
            result.posterior_  # noqa: B018
        except ImproperError as error:
            raise ValueError("the product of the two models is not proper: one of them knows too little") from error
        return result

    def _absorb(self, one: Self, other: Self) -> None:
        """Become what two models know together."""
        self._knowledge = tuple(a.plus(b) for a, b in zip(one._known(), other._known(), strict=True))
        self._totals = one._totals.plus(other._totals)
        share = one._totals.rows / max(self._totals.rows, np.finfo(np.float64).tiny)
        self._priors = tuple(pooled_prior(a, b, share) for a, b in zip(one._priors, other._priors, strict=True))

    def _check_mergeable(self, other: Self) -> None:
        if type(other) is not type(self):
            raise ValueError(f"only another {type(self).__name__} can be merged, got {type(other).__name__}")
        if not (self.__sklearn_is_fitted__() and other.__sklearn_is_fitted__()):
            raise NotFittedError("both models must be fitted before they are merged")
        if other.n_features_in_ != self.n_features_in_ or other._intercept != self._intercept:
            raise ValueError(
                f"the models must have the same columns, got {self.n_features_in_} and {other.n_features_in_} features "
                f"with fit_intercept {self._intercept} and {other._intercept}"
            )
        if not self._same_loss(other):
            raise ValueError(f"the models have different losses, {self._loss} and {other._loss}")
        if type(self._known()[0]) is not type(other._known()[0]):
            raise ValueError(
                f"the models keep different posteriors, {self.plan_.covariance} and {other.plan_.covariance}: give "
                "both the same covariance"
            )
        if vars(self).get("categories_") != vars(other).get("categories_"):
            raise ValueError(
                "the models know different levels: give columns of categories a type that names all levels"
            )
        if not Parameters.of(self, self._width).same_prior(Parameters.of(other, other._width)):
            raise ValueError(
                "the models have different priors: give both the same prior_variance, prior_mean and "
                "intercept_prior_variance"
            )

    def _same_loss(self, other: Self) -> bool:
        return type(other._loss) is type(self._loss) and other._loss == self._loss


def pooled_prior(a: FactorialGaussian, b: FactorialGaussian, share: float) -> FactorialGaussian:
    """Prior between two, by the share of the first: means, and variances on a logarithmic scale."""
    if a == b:
        return a
    mean = share * a.mean + (1.0 - share) * b.mean
    return FactorialGaussian.from_moments(mean, a.variance**share * b.variance ** (1.0 - share))
