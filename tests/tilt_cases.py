"""Losses, references and checks of moments, for the array form and the compiled one."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from cases import all_components
from cavity import losses
from cavity.moments import Tilts, tilts

CLOSED = 1e-9
MIXED = 1e-10
INTEGRATED = 1e-6

# Computed with 150 digits: target, mean, width, beta; log mass, shift of the mean in widths, ratio of variances.
REFERENCES = [
    (losses.Hinge(), 1.0, 0.25, 0.75, 1.0, (-0.62864097433271538, 0.52688383929665336, 0.77727397199023194)),
    (losses.Hinge(), 1.0, -1e6, 1e-8, 1.0, (-1000001.0, 1e-8, 1.0)),
    (losses.Hinge(), 1.0, 1e6, 1e8, 1.0, (-0.68520012955711547, 0.79152928288636714, 0.36556610150452971)),
    (losses.Hinge(), 1.0, -1e6, 1e3, 1.0, (-500001.69155268545, 999.2033886400173, 0.36381712081636199)),
    (losses.Hinge(), 1.0, -1e6, 1.0, 2e6, (-500001000014.5413, 1000001.0, 1.999999999996e-12)),
    (losses.Hinge(), 1.0, 3.0, 1e4, 1e6, (-0.69298761630011377, 0.79775724114515953, 0.36342383267245903)),
    (losses.Hinge(), 1.0, -40.0, 1.0, 0.01, (-0.40995, 0.01, 1.0)),
    (losses.Hinge(), 1.0, 0.99, 1e-3, 1e5, (-53.124956633347068, 10.087077983080755, 0.0095866064710262378)),
    (losses.QuasiZeroOne(), -1.0, 0.25, 0.75, 1.0, (-0.56593419744722042, -0.43651914354759183, 0.96065010266985507)),
    (losses.QuasiZeroOne(), -1.0, -1e6, 1e-8, 1.0, (0.0, 0.0, 1.0)),
    (losses.QuasiZeroOne(), -1.0, 1e6, 1e8, 1.0, (-0.70115786415310955, -0.80426161681215196, 0.36120583859956461)),
    (losses.QuasiZeroOne(), -1.0, 3.0, 1e4, 1e6, (-0.69339455535647587, -0.79808192340091673, 0.36331264892896674)),
    (losses.QuasiZeroOne(), -1.0, 0.99, 1e-3, 1e5, (-109850.0, -10.0, 1.0)),
    (losses.Absolute(), 0.5, 0.25, 0.75, 1.0, (-0.53407077172058262, 0.14354357693608518, 0.57624947073749137)),
    (losses.Absolute(), 0.5, 1e6, 1e8, 1.0, (-18.646522096547093, -0.009999994999999998, 2e-16)),
    (losses.Absolute(), 0.5, -1e6, 1e3, 1.0, (-500001.19234961441, 999.20275204949338, 0.36359845776146101)),
    (losses.Absolute(), 0.5, -1e6, 1.0, 2e6, (-500000500014.57177, 1000000.4999993333, 1.1111120740692778e-12)),
    (losses.Absolute(), 0.5, 3.0, 1e4, 1e6, (-23.251642313835184, -0.00025, 2e-20)),
]
TAILS = [
    (0.0, (1.2533141373155003, 0.79788456080286536, 0.36338022763241866)),
    (2.0, (0.42136922928805447, 0.37321553282284087, 0.11427910041408126)),
    (4.4, (0.21700110806030058, 0.2082713998037211, 0.040228864887425633)),
    (4.6, (0.20831136169438402, 0.2005062799556344, 0.037468343902434587)),
    (8.0, (0.1231319632579323, 0.12136811223611268, 0.01432488344334091)),
    (30.0, (0.033296419072497213, 0.033259667433677037, 0.001103771511890091)),
    (1e8, (9.999999999999999e-9, 9.999999999999998e-9, 9.9999999999999617e-17)),
]


class Insensitive(NamedTuple):
    """A user's own loss of three pieces: nothing within a width."""

    width: float = 1e-3

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.maximum(np.abs(z - y) - self.width, 0.0)

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        r = z - y
        return self.value(y, z), np.sign(r) * (0.5 + 0.5 * np.sign(np.abs(r) - self.width)), 0.0 * r

    def pieces(self, y: float) -> tuple[tuple[float, float, float], ...]:
        low, high = y - self.width, y + self.width
        return (low, -1.0, low), (high, 0.0, 0.0), (np.inf, 1.0, -high)


class WithoutPieces(NamedTuple):
    """The absolute loss as a user writes it: a kink, and no pieces."""

    scale: float = 1.0

    @property
    def targets(self) -> str:
        return "reals"

    def value(self, y: Any, z: Any) -> Any:
        return np.abs(z - y) / self.scale

    def derivatives(self, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return self.value(y, z), np.sign(z - y) / self.scale, 0.0 * z


LOSSES = [*all_components(losses), Insensitive(), WithoutPieces()]
PIECEWISE = [loss for loss in LOSSES if losses.offers(loss).pieces]
TARGETS = {"signs": (-1.0, 1.0), "reals": (-1.5, 2.0), "counts": (0.0, 3.0), "positives": (0.2, 3.0)}


def tilt(loss, y, m, v, beta, order=8):
    """Take one row by itself."""
    return Tilts(*(float(a[0]) for a in tilts(loss, *(np.array([a]) for a in (y, m, v, beta)), order)))


def random_rows(loss, seed, n=60, power=None):
    """Means, widths and powers over the whole range, real targets anywhere."""
    rng = np.random.default_rng(seed)
    y, s = rng.choice(TARGETS[loss.targets], n), 10.0 ** rng.uniform(-3.0, 4.0, n)
    if loss.targets == "reals":
        y += rng.standard_normal(n)
    m = np.minimum(2.0 * s * rng.standard_normal(n) + 2.0 * rng.standard_normal(n), 20.0)
    return y, m, s * s, 10.0 ** rng.uniform(-1.0, 1.0, n) if power is None else np.full(n, power)


def assert_tilts(found, wanted, tol):
    """Compare log masses, means in units of the tilted width or their own size, and variances relatively."""
    size = np.maximum(np.sqrt(wanted.ratio), np.abs(wanted.shift))
    np.testing.assert_allclose(found.log_mass, wanted.log_mass, rtol=tol, atol=tol)
    np.testing.assert_array_less(np.abs(found.shift - wanted.shift), tol * size)
    np.testing.assert_allclose(found.ratio, wanted.ratio, rtol=tol)


def assert_tilt(found, wanted, tol):
    """Compare log masses, means in units of the tilted width or their own size, and variances relatively."""
    assert found[0] == pytest.approx(wanted[0], rel=tol, abs=tol)
    assert found[1] == pytest.approx(wanted[1], rel=tol, abs=tol * math.sqrt(wanted[2]))
    assert found[2] == pytest.approx(wanted[2], rel=tol)
