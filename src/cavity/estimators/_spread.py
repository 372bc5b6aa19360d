"""Regression with a spread of its own for every row: the log standard deviation is linear in the features too."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cavity.ep.hyperparameters import Group
from cavity.estimators._design import checked_offset
from cavity.estimators._joint import mixing
from cavity.estimators._parameters import Parameters
from cavity.estimators._plan import Plan, plan_joint
from cavity.estimators._posteriors import joint_latent
from cavity.estimators._targets import NormalisedTargets
from cavity.gaussians.factorial import FactorialGaussian
from cavity.losses.joint import Normal, spread_quantile, spread_std

FloatArray = NDArray[np.float64]

# Prior variance of the log standard deviation: of its intercept, around that of the targets, where a tenth or ten times
# as much is not rare; and what the features together are expected to add to it.
_LOG_SPREAD, _LOG_SLOPES = 4.0, 0.25
# Rate of the exponential prior of the standard deviation of the log standard deviation: one in twenty is beyond ten.
_LOG_RATE = 0.3


class LinearSpread(NormalisedTargets):
    """Base of the regressor, with coefficients of the log standard deviation where these are asked for."""

    scale: Any
    _kind_of_groups = "predictor"

    @property
    def scale_coef_(self) -> FloatArray:
        """Posterior means of the coefficients of the log standard deviation, for ``scale="linear"``."""
        return np.asarray(self._spread_part().mean[: self._width])

    @property
    def scale_coef_std_(self) -> FloatArray:
        """Posterior standard deviations of `scale_coef_`."""
        return np.sqrt(self._spread_part().variance[: self._width])

    @property
    def scale_intercept_(self) -> float:
        """Posterior mean of the intercept of the log standard deviation, in units of y."""
        return float(np.sum(self._spread_part().mean[self._width :]) + np.log(self.y_scale_))

    @property
    def _groups(self) -> list[str] | None:
        if not self._is_joint:
            return None
        if self._is_linear:
            return ["mean", "log scale"]
        return [f"predictor {k}" for k in range(mixing(self._loss).shape[0])]

    @property
    def _further_units(self) -> list[tuple[float, float]]:
        """Predictors but the first are as the loss sees them; a log standard deviation is given in units of y."""
        moved = float(np.log(self.y_scale_)) if self._is_linear else 0.0
        return [(1.0, moved)] * (mixing(self._loss).shape[0] - 1) if self._is_joint else []

    @property
    def _is_linear(self) -> bool:
        """Whether the log standard deviation is to be linear."""
        return isinstance(self.scale, str) and self.scale == "linear"

    def _spread_part(self) -> Any:
        if not self._is_spread:
            raise AttributeError("only a model with scale='linear' has coefficients of the scale")
        return self.posterior_[1]

    @property
    def _is_spread(self) -> bool:
        return isinstance(self.__dict__.get("_loss"), Normal)

    def _joint(self, rows: int, columns: int, covariance: str, stream: bool) -> tuple[Any, Plan] | None:
        own = getattr(self._make_loss(), "predictors", None)
        if own is None and not self._is_linear:
            return None
        plan = plan_joint(rows, columns, own or 2, covariance, stream)
        if plan is None:
            raise ValueError(
                f"{own or 2} predictors of {columns} columns are too wide, or covariance={covariance!r} does not allow "
                "them: use fewer columns and covariance='auto'"
            )
        return self._make_loss() if own else Normal(), plan

    def _prior_and_groups(
        self, p: Parameters, predictors: int, units: tuple[float, float] = (1.0, 0.0)
    ) -> tuple[FactorialGaussian, tuple[Group, ...]]:
        if predictors == 1 or not self._is_linear:
            return super()._prior_and_groups(p, predictors, units)
        prior, groups = super()._prior_and_groups(p, 1, units)
        features, size = p.prior_mean.size, float(np.sum(self._sizes())) or 1.0
        slopes = _LOG_SLOPES / size
        center = np.append(np.zeros(features), [np.log(units[0])] * int(p.intercept))
        variances = np.append(np.full(features, slopes), [_LOG_SPREAD] * int(p.intercept))
        both = FactorialGaussian.from_moments(
            np.concatenate([prior.mean, center]), np.concatenate([prior.variance, variances])
        )
        return both, (*groups, Group(prior.dim + np.arange(features), size, _LOG_RATE))

    def _spread_predictors(self, X: Any, offset: Any) -> tuple[FloatArray, FloatArray]:
        """Mean and covariance of mean and log standard deviation at rows."""
        mean, variance = joint_latent(self, X)
        known = checked_offset(offset, X.shape[0])
        if known is not None:
            mean[:, 0] += known / self.y_scale_
        return mean, variance

    def _predicted_spread(self, X: Any, offset: Any, levels: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Means, or quantiles in their place, and standard deviations of new targets."""
        mean, variance = self._spread_predictors(X, offset)
        center = mean[:, 0]
        if levels is not None:
            columns = [spread_quantile(mean, variance, float(q)) for q in np.atleast_1d(levels)]
            center = np.column_stack(columns) if np.ndim(levels) else columns[0]
        return self.y_offset_ + self.y_scale_ * center, self.y_scale_ * spread_std(mean, variance)

    def _check_mergeable(self, other: Self) -> None:
        units = [(vars(one).get("y_scale_"), vars(one).get("y_offset_")) for one in (self, other)]
        if self._is_joint and units[0] != units[1]:
            raise ValueError("models of several predictors merge in the same units of y only: give normalize_y=False")
        super()._check_mergeable(other)
