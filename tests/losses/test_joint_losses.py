"""Losses of several predictors: their contract, and sites that are exact where exact ones are known."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import logsumexp

from cavity.losses import Logistic
from cavity.losses.joint import Normal, Softmax, contrasts
from cavity.moments import joint_means, joint_sites, tilts
from cavity.testing import check_joint_loss

RNG = np.random.default_rng(0)


class Bowl(NamedTuple):
    """A quadratic loss of any number of predictors, without derivatives unless asked for."""

    count: int = 2
    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    @property
    def predictors(self) -> int:
        return self.count

    def value(self, y: Any, z: Any) -> Any:
        steps = (np.asarray(z) - np.asarray(y)[..., None]) / self.scale
        return 0.5 * np.sum(np.square(steps) * np.arange(1.0, self.count + 1.0), axis=-1)


class SmoothBowl(Bowl):
    def derivatives(self, y: Any, z: Any) -> Any:
        bend = np.arange(1.0, self.count + 1.0) / self.scale**2
        z = np.asarray(z)
        curvature = np.broadcast_to(np.diag(bend), (*z.shape, self.count))
        return self.value(y, z), bend * (z - np.asarray(y)[..., None]), curvature


@pytest.mark.parametrize("loss", [Softmax(3), Softmax(4), Softmax(7), Normal(), Bowl(3), SmoothBowl(5)], ids=repr)
def test_shipped_losses_keep_the_contract(loss):
    check_joint_loss(loss)


class Wrong(SmoothBowl):
    def derivatives(self, y: Any, z: Any) -> Any:
        value, slopes, curvatures = super().derivatives(y, z)
        return value, 1.01 * slopes, curvatures


def test_mistakes_are_found():
    with pytest.raises(AssertionError, match="slopes must be those of differences"):
        check_joint_loss(Wrong(3))
    with pytest.raises(AssertionError, match="must be a NamedTuple"):
        check_joint_loss(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [2, 3, 6, 20])
def test_contrasts_are_an_orthonormal_basis_of_differences(classes):
    basis = contrasts(classes)
    np.testing.assert_allclose(basis.T @ basis, np.eye(classes - 1), atol=1e-12)
    np.testing.assert_allclose(basis.sum(axis=0), 0.0, atol=1e-12)


def test_the_softmax_is_what_its_name_says():
    z, y = RNG.normal(size=(10, 4)), np.arange(10) % 5
    scores = z @ contrasts(5).T
    wanted = logsumexp(scores, axis=1) - scores[np.arange(10), y]
    np.testing.assert_allclose(Softmax(5).value(y, z), wanted, rtol=1e-12)


def spread(rows, count, seed=0):
    rng = np.random.default_rng(seed)
    roots = 0.5 * rng.normal(size=(rows, count, count)) + np.eye(count)
    return rng.normal(size=(rows, count)), roots @ roots.transpose(0, 2, 1)


@pytest.mark.parametrize("loss", [Bowl(1), Bowl(2), Bowl(3), Bowl(4), SmoothBowl(5), Bowl(5)], ids=repr)
def test_a_quadratic_loss_is_its_own_site(loss):
    """By matched moments, expected derivatives and the star alike; the star where its axes are those of the loss."""
    k = loss.predictors
    mean, variance = spread(6, k)
    if type(loss) is Bowl and k > 4:
        variance = variance * np.eye(k)
    y, power = RNG.normal(size=6), np.array([1.0, 2.0, 0.5, 1.0, 1.0, 3.0])
    bends = np.arange(1.0, k + 1.0)
    exact = power[:, None, None] * np.diag(bends), power[:, None] * bends * y[:, None]
    # At the site itself nothing changes, and the scale of factor over site is a constant of the row.
    found = joint_sites(loss, y, mean, variance, exact, power)
    np.testing.assert_allclose(found.precision, exact[0], atol=1e-6)
    np.testing.assert_allclose(found.shift, exact[1], atol=1e-6)
    np.testing.assert_allclose(found.log_scale, -0.5 * power * y**2 * bends.sum(), atol=1e-6)
    offset = RNG.normal(size=(6, k))
    moved = joint_sites(
        loss, y, mean - offset, variance, (exact[0], exact[1] - _times(exact[0], offset)), power, offset
    )
    np.testing.assert_allclose(moved.precision, exact[0], atol=1e-6)
    np.testing.assert_allclose(moved.shift, exact[1] - _times(exact[0], offset), atol=1e-6)


def _times(matrices, vectors):
    return np.einsum("bij,bj->bi", matrices, vectors)


def test_one_predictor_is_matched_as_a_single_one_is():
    """A softmax of two classes is a logistic loss of one predictor, whose moments are known to nine digits."""
    mean, variance = np.array([-1.0, 0.0, 2.0]), np.array([0.3, 1.0, 2.0])
    y = np.array([0.0, 1.0, 1.0])
    sharpness = float(contrasts(2)[1, 0] - contrasts(2)[0, 0])
    signs, scale = np.where(y == 1.0, 1.0, -1.0) * np.sign(sharpness), abs(sharpness)
    tilt = tilts(Logistic(scale), signs, mean, variance, np.ones(3))
    new_variance = tilt.ratio * variance
    new_mean = mean + np.sqrt(variance) * tilt.shift
    nothing = np.zeros((3, 1, 1)), np.zeros((3, 1))
    found = joint_sites(Softmax(2), y, mean[:, None], variance[:, None, None], nothing, np.ones(3))
    np.testing.assert_allclose(found.precision[:, 0, 0], 1.0 / new_variance - 1.0 / variance, rtol=2e-4)
    np.testing.assert_allclose(found.shift[:, 0], new_mean / new_variance - mean / variance, rtol=2e-4)
    np.testing.assert_allclose(found.log_scale, tilt.log_mass, rtol=1e-4)


def dense_nodes(mean, variance, per_axis):
    """Points of one Gaussian on a fine grid, and their weights."""
    axis = np.linspace(-6.5, 6.5, per_axis)
    grid = np.stack(np.meshgrid(*[axis] * mean.size, indexing="ij"), axis=-1).reshape(-1, mean.size)
    weights = np.exp(-0.5 * np.sum(grid**2, axis=1))
    return mean + grid @ np.linalg.cholesky(variance).T, weights / weights.sum()


@pytest.mark.parametrize(("classes", "per_axis", "width", "within"), [
    (3, 301, 1.0, 1e-3), (3, 301, 4.0, 3e-3), (3, 301, 8.0, 0.02), (4, 75, 1.0, 2e-3), (4, 75, 4.0, 0.02),
    (5, 25, 1.0, 5e-3), (5, 25, 2.0, 0.02),
])  # fmt: skip
def test_moments_and_means_of_a_softmax_agree_with_a_fine_grid(classes, per_axis, width, within):
    """Also where predictors are wide, as in small data with separable classes."""
    k = classes - 1
    mean, variance = spread(12, k, seed=3)
    variance *= (width**2 / np.linalg.eigvalsh(variance)[:, -1])[:, None, None]
    mean, y = width * mean, np.arange(12) % classes
    nothing = np.zeros((12, k, k)), np.zeros((12, k))
    loss = Softmax(classes)
    found = joint_sites(loss, y, mean, variance, nothing, np.ones(12))
    chances = joint_means(loss.mean_probabilities, mean, variance)
    for i in range(12):
        z, weights = dense_nodes(mean[i], variance[i], per_axis)
        np.testing.assert_allclose(
            chances[i], loss.mean_probabilities(z[None], weights, np.zeros(1))[0], atol=0.5 * within
        )
        tilted = weights * np.exp(-loss.value(np.full(len(z), y[i]), z))
        if tilted.sum() < 0.05:  # a row that contradicts the posterior: its site is known less well
            continue
        tilted /= tilted.sum()
        center = tilted @ z
        second = (z - center).T @ (tilted[:, None] * (z - center))
        # In units of the posterior before the row.
        root = np.linalg.cholesky(np.linalg.inv(variance[i]))
        new = np.linalg.inv(np.linalg.inv(variance[i]) + found.precision[i])
        np.testing.assert_allclose(root.T @ new @ root, root.T @ second @ root, atol=within)
        new_mean = new @ (np.linalg.solve(variance[i], mean[i]) + found.shift[i])
        np.testing.assert_allclose(root.T @ (new_mean - center), 0.0, atol=within)


@pytest.mark.parametrize("classes", [2, 3, 4, 5])
def test_rows_that_say_nothing_leave_no_site(classes):
    """To rounding: what little they left would add up over many rows."""
    mean, variance = spread(6, classes - 1)
    variance[3:] *= 100.0
    nothing = np.zeros((6, classes - 1, classes - 1)), np.zeros((6, classes - 1))
    found = joint_sites(Softmax(classes), np.zeros(6), mean, variance, nothing, np.zeros(6))
    np.testing.assert_allclose(found.precision, 0.0, atol=1e-10)
    np.testing.assert_allclose(found.shift, 0.0, atol=1e-10)


def test_expected_curvatures_of_a_softmax_are_positive_however_wide():
    for width in (1e-3, 1.0, 30.0, 1e4):
        mean, variance = spread(20, 5)
        nothing = np.zeros((20, 5, 5)), np.zeros((20, 5))
        found = joint_sites(Softmax(6), np.arange(20.0) % 6, mean, width * variance, nothing, np.ones(20))
        assert np.min(np.linalg.eigvalsh(found.precision)) > -1e-12
        assert np.all(np.isfinite(found.shift))


def test_expected_derivatives_agree_with_sampling():
    mean, variance = spread(3, 5, seed=2)
    nothing, y = (np.zeros((3, 5, 5)), np.zeros((3, 5))), np.array([0.0, 2.0, 4.0])
    found = joint_sites(Softmax(6), y, mean, variance, nothing, np.ones(3))
    noise = np.random.default_rng(0).normal(size=(200_000, 5))
    for i in range(3):
        z = mean[i] + noise @ np.linalg.cholesky(variance[i]).T
        _, slopes, curvatures = Softmax(6).derivatives(np.full(len(z), y[i]), z)
        np.testing.assert_allclose(found.precision[i], curvatures.mean(axis=0), atol=0.02)
        wanted = curvatures.mean(axis=0) @ mean[i] - slopes.mean(axis=0)
        np.testing.assert_allclose(found.shift[i], wanted, atol=0.04)


def test_rows_do_not_depend_on_each_other_and_singular_covariances_are_survived():
    mean, variance = spread(5, 3)
    variance[2] = 0.0
    variance[3] = np.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    nothing, y = (np.zeros((5, 3, 3)), np.zeros((5, 3))), np.arange(5.0) % 4
    whole = joint_sites(Softmax(4), y, mean, variance, nothing, np.ones(5))
    for i in (0, 1, 4):
        row = slice(i, i + 1)
        alone = joint_sites(
            Softmax(4), y[row], mean[row], variance[row], (nothing[0][row], nothing[1][row]), np.ones(1)
        )
        # Products of matrices round by the shape of the whole.
        np.testing.assert_allclose(alone.precision, whole.precision[row], rtol=0.0, atol=1e-10)
    assert np.all(np.isfinite(whole.log_scale))
