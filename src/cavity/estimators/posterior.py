"""The posterior of a fitted linear model: coefficients with their standard deviations, and draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from cavity._types import FloatArray
from cavity.ep.hyperparameters import Setting, settings_around
from cavity.ep.posteriors import DenseNatural
from cavity.estimators.parameters import threads_for
from cavity.estimators.row_findings import sandwich
from cavity.estimators.rows import checked_offset, squared, with_intercept
from cavity.gaussians.affine import AffineGaussian, Change
from cavity.gaussians.dense import DenseGaussian
from cavity.gaussians.factorial import FactorialGaussian
from cavity.gaussians.mixture import GaussianMixture
from cavity.gaussians.wide import JointRowsGaussian, RowsGaussian
from cavity.losses.joint import Softmax, contrasts
from cavity.losses.noise import site_factor, with_scale

if TYPE_CHECKING:
    from cavity.estimators.fitted import Fitted


def mixing(loss: Any) -> FloatArray:
    """Matrix that gives the public predictors, one per row, from those of the loss."""
    return contrasts(int(loss.classes)) if isinstance(loss, Softmax) else np.eye(int(loss.predictors))


def marginals(joint: DenseGaussian, mix: FloatArray) -> tuple[DenseGaussian, ...]:
    """Gaussians of the public predictors' coefficients, each for itself; the first has the mass of the whole."""
    count = mix.shape[1]
    means = mix @ joint.mean.reshape(count, -1)
    roots = joint.root.reshape(count, -1, joint.dim)
    masses = [joint.log_mass, *[0.0] * (len(mix) - 1)]
    parts = zip(means, mix, masses, strict=True)
    return tuple(DenseGaussian(mean, np.tensordot(row, roots, axes=1), mass) for mean, row, mass in parts)


def joint_draws(joint: DenseGaussian, mix: FloatArray, noise: FloatArray) -> FloatArray:
    """Draws of the public predictors' coefficients, ``(draws, predictors, columns)``."""
    draws = joint.draws(noise).reshape(len(noise), mix.shape[1], -1)
    return np.einsum("pk,nkc->npc", mix, draws)


def joint_predictors(joint: DenseGaussian, rows: Any, count: int) -> tuple[FloatArray, FloatArray]:
    """Means ``(n, K)`` and covariances ``(n, K, K)`` of the loss's own predictors at rows, a part at a time."""
    n, dim = rows.shape[0], joint.dim
    mean = np.asarray(rows @ joint.mean.reshape(count, -1).T)
    variance = np.empty((n, count, count))
    roots = joint.root.reshape(count, -1, dim)
    length = max(1, (1 << 22) // (count * dim))  # 32 MB
    for i in range(0, n, length):
        halves = np.stack([np.asarray(rows[i : i + length] @ root) for root in roots], axis=1)
        variance[i : i + length] = halves @ halves.transpose(0, 2, 1)
    return mean, variance


def turned(known: DenseNatural, rotation: FloatArray) -> DenseNatural:
    """Say the same of predictors that are a rotation of these."""
    count = len(rotation)
    blocks = known.information.reshape(count, known.shift.size // count, count, -1)
    information = np.einsum("ij,jakb,lk->ialb", rotation, blocks, rotation, optimize=True)
    flat = information.reshape(known.information.shape)
    shift = (rotation @ known.shift.reshape(count, -1)).ravel()
    return DenseNatural(0.5 * (flat + flat.T), shift, known.log_scale)


# Rate of the half-normal prior of the standard deviation that coefficients give to a linear predictor, in log odds: one
# in twenty is beyond ten. In units of the spread of real targets, which bound variances by themselves, it is a fifth.
RATE = 0.2


class Posterior:
    """The posterior of a fitted model as users see it: of columns as they came, averaged over hyperparameters.

    Parameters
    ----------
    fitted
        The state of the model.
    """

    def __init__(self, fitted: Fitted) -> None:
        self.fitted = fitted

    @cached_property
    def averaged(self) -> tuple[tuple[list[Setting], Any], ...]:
        """Hyperparameters that the posterior of every linear predictor is averaged over, and that posterior.

        A mixture where their uncertainty matters; for several predictors together a Gaussian of the same moments.
        """
        fitted, found = self.fitted, []
        groups, scale, (rows, information) = fitted.groups, fitted.scale, fitted.targets.noise_found(fitted)
        change = Change(*fitted.columns, fitted.design.intercept, fitted.design.effects)
        with threads_for((fitted.columns.unit.size, fitted.priors[0].dim)):
            for known, prior, whole in zip(fitted.natural, fitted.priors, fitted.posteriors, strict=True):
                settings = [Setting(1.0, prior, scale)]
                if groups or rows is not None or information is not None:
                    posterior = known.working(prior)
                    settings = settings_around(posterior, groups, rows, scale, information)
                raw: Callable[..., Any] = partial(in_raw_units, change=change)
                if fitted.is_joint and isinstance(whole, RowsGaussian):
                    raw = partial(JointRowsGaussian, change=change)
                if len(settings) == 1:
                    found.append((settings, raw(whole)))
                    continue
                now, kept, parts = scale, [], []
                for setting in settings:
                    factor = self._site_factor(setting.scale) / self._site_factor(now)
                    if posterior.scale(factor, factor, setting.prior):
                        now = setting.scale
                        kept.append(setting)
                        parts.append(raw(posterior.gaussian()))
                weights = np.array([setting.weight for setting in kept])
                mixture: Any = GaussianMixture(weights / np.sum(weights), tuple(parts), whole.log_mass)
                if fitted.is_joint and isinstance(whole, RowsGaussian):
                    mixture = JointRowsGaussian.mixture(mixture)
                elif fitted.is_joint:
                    mixture = DenseGaussian(mixture.mean, mixture.root, mixture.log_mass)
                found.append((kept, mixture))
        return tuple(found)

    @property
    def shapes(self) -> Any:
        """Shapes of the marginals of all coefficients given the hyperparameters, per predictor; None if not known."""
        return None if self.fitted.rows is None else self.fitted.rows.shapes

    @cached_property
    def given(self) -> tuple[Any, ...]:
        """Posteriors of every linear predictor, or of all together, given the hyperparameters."""
        change = Change(*self.fitted.columns, self.fitted.design.intercept, self.fitted.design.effects)
        return tuple(in_raw_units(one, change) for one in self.fitted.posteriors)

    def _site_factor(self, scale: float) -> float:
        """Factor of the sites at another noise scale."""
        fitted = self.fitted
        return 1.0 if scale == fitted.scale else site_factor(fitted.loss, scale, fitted.totals.mean)

    @property
    def settings(self) -> list[Setting]:
        """Hyperparameters that the posterior of the first linear predictor is averaged over."""
        return self.averaged[0][0]

    @property
    def whole(self) -> tuple[Any, ...]:
        """Posteriors of every linear predictor, or of all together."""
        return tuple(posterior for _, posterior in self.averaged)

    @cached_property
    def each(self) -> tuple[Any, ...]:
        """Posterior of every linear predictor, the intercept last."""
        if not self.fitted.is_joint:
            return self.whole
        if isinstance(self.whole[0], JointRowsGaussian):
            return self.whole[0].marginals(self.mixing)
        return marginals(self.whole[0], self.mixing)

    @property
    def mixing(self) -> FloatArray:
        """Matrix that gives the linear predictors, one per row, from those of a loss of several."""
        return self.fitted.targets.mixing(self.fitted.loss)

    @cached_property
    def units(self) -> tuple[FloatArray, FloatArray]:
        """Unit of every linear predictor, and what its intercept is moved by, as columns."""
        targets, count = self.fitted.targets, len(self.each)
        units = np.array(targets.units_of_predictors(self.fitted.loss, count))
        return units[:, :1], units[:, 1:]

    @cached_property
    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Means and standard deviations of all coefficients, a linear predictor per row, the intercept last."""
        unit, offset = self.units
        means = unit * np.array([p.mean for p in self.each])
        means[:, self.fitted.design.width :] += offset
        return means, unit * np.sqrt(np.array([p.variance for p in self.each]))

    def draws(self, n: int, random_state: Any) -> FloatArray:
        """Draws of the coefficients ``(n, predictors, columns)`` of normalised targets, the intercept last."""
        rng = check_random_state(random_state)
        if self.fitted.is_joint:
            whole: Any = self.whole[0]
            if isinstance(whole, JointRowsGaussian):
                return whole.draws(self.mixing, rng.standard_normal((n, whole.dim)))
            return joint_draws(whole, self.mixing, rng.standard_normal((n, whole.dim)))
        noise = rng.standard_normal((n, len(self.each), self.each[0].dim))
        return np.stack([p.draws(noise[:, k]) for k, p in enumerate(self.each)], axis=1)

    def coefficients(self, n: int, random_state: Any) -> tuple[FloatArray, FloatArray]:
        """Draws of the coefficients and of the intercepts in units of the targets, one predictor per row if several."""
        draws, targets, d = self.draws(n, random_state), self.fitted.targets, self.fitted.design.width
        coef = targets.unit * draws[:, :, :d]
        intercept = targets.offset + targets.unit * np.sum(draws[:, :, d:], axis=2)
        if draws.shape[1] == 1 or targets.is_single:
            return coef[:, 0], intercept[:, 0]
        return coef, intercept

    def predictors(self, X: Any, offset: Any = None) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the linear predictors ``(count, n)`` at rows, checked before."""
        X, d, posteriors = X.astype(np.float64, copy=False), self.fitted.design.width, self.each
        means = np.array([np.asarray(X @ p.mean[:d]) + np.sum(p.mean[d:]) for p in posteriors])
        if isinstance(posteriors[0], FactorialGaussian):  # without a copy of the rows
            squares = squared(X)
            variances = [np.asarray(squares @ p.variance[:d]) + np.sum(p.variance[d:]) for p in posteriors]
        else:
            rows = with_intercept(X) if self.fitted.design.intercept else X
            variances = [p.predictor_variance(rows) for p in posteriors]
        if offset is not None:
            means = means + checked_offset(offset, X.shape[0]) / self.fitted.targets.unit
        return means, np.array(variances)

    def parts(self, X: Any, offset: Any = None) -> tuple[FloatArray, list[Any], FloatArray, FloatArray]:
        """Weights, losses, and means and variances of the predictor at rows, for all hyperparameters averaged over."""
        posterior, loss = self.each[0], self.fitted.loss
        if not isinstance(posterior, GaussianMixture):
            mean, variance = self.predictors(X, offset)
            return np.ones(1), [loss], mean, variance
        rows = X.astype(np.float64, copy=False)
        means, variances = posterior.predictors(with_intercept(rows) if self.fitted.design.intercept else rows)
        if offset is not None:
            means = means + checked_offset(offset, X.shape[0]) / self.fitted.targets.unit
        parts: list[Any] = [loss] * len(self.settings)
        if "scale" in getattr(loss, "_fields", ()):
            parts = [with_scale(loss, setting.scale) for setting in self.settings]
        return posterior.weights, parts, means, variances

    def joint_predictors(self, X: Any, offset: Any = None) -> tuple[FloatArray, FloatArray]:
        """Means ``(n, K)`` and covariances ``(n, K, K)`` at rows of the predictors of a loss of several."""
        whole: Any = self.whole[0]
        loss: Any = self.fitted.loss
        rows = X.astype(np.float64, copy=False)
        rows = with_intercept(rows) if self.fitted.design.intercept else rows
        if isinstance(whole, JointRowsGaussian):
            mean, variance = whole.predictors(rows)
        else:
            mean, variance = joint_predictors(whole, rows, loss.predictors)
        if offset is not None:
            mean[:, 0] += checked_offset(offset, X.shape[0]) / self.fitted.targets.unit
        return mean, variance

    def sampled_predictors(self, X: Any, n: int, random_state: Any, offset: Any = None) -> FloatArray:
        """Draws of the linear predictors of normalised targets at rows, ``(n, rows, predictors)``."""
        draws, width = np.moveaxis(self.draws(n, random_state), 1, 0), self.fitted.design.width
        each = [np.asarray(X @ part[:, :width].T).T + np.sum(part[:, width:], axis=1)[:, None] for part in draws]
        z = np.stack(each, axis=-1)
        if offset is not None:
            z[..., 0] += checked_offset(offset, X.shape[0]) / self.fitted.targets.unit
        return z

    def variance_between(self, rows: FloatArray) -> FloatArray:
        """Variances of combinations ``(n, predictors, columns)`` of the coefficients of several predictors."""
        if self.fitted.is_joint:
            inner = np.einsum("gk,rgc->rkc", self.mixing, rows)
            return np.asarray(self.whole[0].predictor_variance(inner.reshape(len(rows), -1)))
        each = [q.predictor_variance(rows[:, g]) for g, q in enumerate(self.each)]
        return np.asarray(np.sum(each, axis=0))


class RobustPosterior(Posterior):
    """Posterior means with the errors that the scatter of rows or clusters gives (`cavity.ep.robust`)."""

    @cached_property
    def averaged(self) -> tuple[tuple[list[Setting], Any], ...]:
        """Hyperparameters of the fit, and Gaussians with the means of the posterior."""
        fitted, found = self.fitted, []
        change = Change(*fitted.columns, fitted.design.intercept, fitted.design.effects)
        scatters: Any = fitted.rows.scatter if fitted.rows else ()
        each = zip(fitted.priors, fitted.posteriors, scatters, fitted.posterior.whole, strict=True)
        for prior, kept, scatter, told in each:
            raw = in_raw_units(sandwich(kept, scatter), change)
            found.append(([Setting(1.0, prior, fitted.scale)], DenseGaussian(told.mean, raw.root, told.log_mass)))
        return tuple(found)


def in_raw_units(posterior: Any, change: Change) -> Any:
    """Posterior of the coefficients that users see, from that of the ones that are kept."""
    if change.is_identity:
        return posterior
    if not isinstance(posterior, DenseGaussian):
        return AffineGaussian(posterior, change)
    width = change.unit.size + int(change.intercept)
    parts = range(0, posterior.dim, width)
    mean = [change.coefficients(posterior.mean[i : i + width, None])[:, 0] for i in parts]
    root = [change.coefficients(posterior.root[i : i + width]) for i in parts]
    return DenseGaussian(np.concatenate(mean), np.concatenate(root), posterior.log_mass)
