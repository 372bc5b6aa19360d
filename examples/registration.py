"""Registration of two photographs: an affine map from pixels, by a cost without derivatives, with error bars."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from _script import run
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.optimize import minimize
from sklearn.datasets import load_sample_image

import cavity

SIZE, MARGIN, PIXELS, BATCH = 256, 24, 4000, 400
# Blur of both pictures from coarse to fine, and how far off, in pixels, every level expects its start to be.
LEVELS = ((8.0, 10.0), (3.0, 2.0), (1.0, 0.5))
# Standard deviation of the noise in either picture, whose greys run from zero to one, and usual size of a difference.
NOISE, DIFFERENCE = 0.04, 0.04
# The true displacement in pixels: down and to the right, each of the centre, and what half the height or width adds.
TRUTH = np.array([6.0, -4.5, 5.0, -3.0, 7.5, -6.0])
NAMES = ("down", "down, by height", "down, by width", "right", "right, by height", "right, by width")
CORNERS = np.array([(1.0, -1.0, -1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, -1.0)])


class Pair(NamedTuple):
    """Two pictures of one scene, to be brought together."""

    fixed: np.ndarray
    moving: np.ndarray

    def blurred(self, width: float) -> Pair:
        """Both without their details."""
        return Pair(gaussian_filter(self.fixed, width), gaussian_filter(self.moving, width))


class Cost:
    """Absolute differences of some pixels of the fixed picture from the places of the moving one where they should be.

    It takes many points at once, and has no derivatives.
    """

    def __init__(self, pair: Pair, places: np.ndarray) -> None:
        self.places, self.features, self.moving = places, features(places), pair.moving
        self.greys = pair.fixed[tuple(places.T)]

    def __call__(self, thetas: np.ndarray) -> np.ndarray:
        """Sum over the pixels for every row of parameters."""
        moved = self.places.T[:, None] + displacement(thetas, self.features)
        greys = map_coordinates(self.moving, moved.reshape(2, -1), order=1, mode="nearest")
        return np.abs(greys.reshape(len(thetas), -1) - self.greys).sum(axis=1) / DIFFERENCE


def main(out: Path) -> dict[str, Any]:
    """Recover a known transform by EP and by Powell's method, and compare what they found and how long it took."""
    rng = np.random.default_rng(0)
    pair = photographs(rng)
    places = rng.integers(MARGIN, SIZE - MARGIN, (PIXELS, 2))
    begin = perf_counter()
    posterior = by_ep(pair, places)
    middle = perf_counter()
    powell = by_powell(pair, places)
    end = perf_counter()
    draw(pair, posterior, powell, out / "registration.png")
    mean, std = posterior.mean, posterior.std
    return {
        **{f"parameter {k}": f"{mean[k]:.3f} ± {std[k]:.3f} pixels, in truth {TRUTH[k]:g}" for k in range(6)},
        "root mean square error in standard deviations": float(np.sqrt(np.mean(((mean - TRUTH) / std) ** 2))),
        "largest error at a corner in pixels, EP": corner_error(mean),
        "largest error at a corner in pixels, Powell": corner_error(powell),
        "seconds, EP": middle - begin,
        "seconds, Powell": end - middle,
    }


def by_ep(pair: Pair, places: np.ndarray) -> cavity.FactorialGaussian:
    """Go from coarse to fine; the mean of every level is where the prior of the next one lies."""
    center = np.zeros(6)
    for blur, width in LEVELS:
        level = pair.blurred(blur)
        batches = np.split(places, range(BATCH, len(places), BATCH))
        factors = [cavity.CostFactor(Cost(level, batch), dim=6, vectorized=True) for batch in batches]
        prior = cavity.FactorialGaussian.from_moments(center, width**2)
        result = cavity.fit(factors, prior, scheme="vq", max_iter=8, tol=0.2)
        center = result.mean
    return result.raise_for_status().posterior


def by_powell(pair: Pair, places: np.ndarray) -> np.ndarray:
    """Go from coarse to fine too, with the same pixels, costs and start."""
    point = np.zeros(6)
    for blur, _ in LEVELS:
        cost = Cost(pair.blurred(blur), places)
        point = minimize(lambda theta, cost=cost: float(cost(theta[None])[0]), point, method="Powell").x
    return point


def features(places: np.ndarray) -> np.ndarray:
    """One, and both coordinates from -1 to 1, for every place: with these all six parameters are pixels."""
    return np.column_stack([np.ones(len(places)), places / (0.5 * SIZE) - 1.0])


def displacement(thetas: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Pixels down and to the right, for every row of parameters and every row of features."""
    return np.stack([thetas[:, :3] @ rows.T, thetas[:, 3:] @ rows.T])


def corner_error(theta: np.ndarray) -> float:
    """How far the corners end up at most from where they belong."""
    return float(np.max(np.hypot(*displacement((theta - TRUTH)[None], CORNERS))))


def photographs(rng: np.random.Generator) -> Pair:
    """Take two pictures of one scene with noise, the second displaced and with something in the way."""
    scene = gaussian_filter(load_sample_image("china.jpg").mean(axis=2) / 255.0, 1.0)
    origin = np.array([[120.0], [200.0]])
    places = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij")).reshape(2, -1).astype(float)
    # The moving picture shows at T(x) what the fixed one shows at x: it is the scene behind the inverse of T.
    matrix = TRUTH.reshape(2, 3)[:, 1:] / (0.5 * SIZE)
    shift = TRUTH.reshape(2, 3)[:, :1] - 0.5 * SIZE * matrix.sum(axis=1, keepdims=True)
    origins = np.linalg.solve(np.eye(2) + matrix, places - shift)
    fixed, moving = (map_coordinates(scene, origin + at, order=3).reshape(SIZE, SIZE) for at in (places, origins))
    moving[150:174, 60:84] = 0.9
    return Pair(*(picture + NOISE * rng.standard_normal(picture.shape) for picture in (fixed, moving)))


def draw(pair: Pair, posterior: cavity.FactorialGaussian, powell: np.ndarray, path: Path) -> None:
    """Show both pictures, their differences before and after, and the errors of the parameters."""
    figure, axes = plt.subplot_mosaic("abe;cde", figsize=(11.0, 6.6), layout="constrained", width_ratios=(1, 1, 1.1))
    grid = np.stack(np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij")).reshape(2, -1)
    moved = grid + displacement(posterior.mean[None], features(grid.T))[:, 0]
    after = map_coordinates(pair.moving, moved, order=1, mode="nearest").reshape(SIZE, SIZE)
    titles = {"a": "fixed picture, a square in it", "b": "moving picture, the square found"}
    for (key, title), picture in zip(titles.items(), pair, strict=True):
        axes[key].imshow(picture, cmap="gray", vmin=0.0, vmax=1.0)
        axes[key].set(title=title, xticks=[], yticks=[])
    for key, title, picture in (("c", "difference before", pair.moving), ("d", "difference after", after)):
        axes[key].imshow(picture - pair.fixed, cmap="RdBu", vmin=-0.6, vmax=0.6)
        axes[key].set(title=title, xticks=[], yticks=[])
    inner = CORNERS * (1.0, 0.75, 0.75)
    square = 0.5 * SIZE * (1.0 + inner[:, 1:].T)
    for key, ends in (("a", square), ("b", square + displacement(posterior.mean[None], inner)[:, 0])):
        axes[key].fill(ends[1], ends[0], fill=False, color="C1", linewidth=1.5)
    rows = np.arange(6)
    axes["e"].axvline(0.0, color="0.7", linewidth=1.0)
    bars = {"fmt": "o", "color": "C0", "capsize": 3}
    axes["e"].errorbar(posterior.mean - TRUTH, rows, xerr=2.0 * posterior.std, label="EP, two deviations", **bars)
    axes["e"].plot(powell - TRUTH, rows + 0.2, "x", color="C3", label="Powell")
    axes["e"].set(title="errors", xlabel="pixels", ylim=(6.0, -0.5), yticks=rows, yticklabels=NAMES)
    axes["e"].legend(fontsize="small", loc="lower right", ncols=2)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    run(main, __doc__)
