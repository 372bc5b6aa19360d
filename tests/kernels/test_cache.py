"""What is compiled for losses of the library is found on disk by the next process; a user's loss never is."""

import inspect
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import cavity

FIT = textwrap.dedent(
    """
    import warnings
    import numpy as np
    from numba.core import event
    from scipy.sparse import csr_array
    import cavity
    from cavity.kernels import bridge

    bridge.PATIENCE = 0.0
    warnings.simplefilter("ignore")  # one loop need not converge
    prior = cavity.FactorialGaussian.from_moments(np.zeros(3), 1.0)
    with event.install_recorder("numba:compile") as recorder:
        for rows in (np.asarray, csr_array):
            factors = cavity.LinearFactor.batches(cavity.losses.Hinge(), rows(np.eye(3)), np.array([1.0, -1.0, 1.0]), 2)
            cavity.fit(factors, prior, "qla", max_iter=1, compiled=True)
    print(len(recorder.buffer) > 0)
    """
)
ENTRY = textwrap.dedent(
    """
    from cavity.kernels.bridge import entry
    from cavity.kernels import moments  # opens the methods of losses

    def evaluate(loss, y, z):
        return loss.value(y, z)

    def run(loss):
        compiled = entry(evaluate, loss)
        print(compiled(loss, 1.0, -2.0), sum(compiled.stats.cache_hits.values()))
    """
)
OWN_LOSS = textwrap.dedent(
    """
    from typing import NamedTuple
    import numpy as np
    from numba import njit

    SCALE = {scale}

    @njit
    def helper(x):
        return {factor} * x

    class Distance(NamedTuple):
        scale: float = 1.0

        def value(self, y, z):
            return SCALE * helper(np.abs(z - y))
    """
)


class Place:
    """A folder with a cache, and with what a user has written."""

    def __init__(self, folder):
        self.folder, self.cache = folder, folder / "cache"
        (folder / "user_script.py").write_text(ENTRY)

    def python(self, code):
        """Words on standard output, and what is on standard error."""
        paths = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(self.cache), "PYTHONPATH": paths}
        done = subprocess.run([sys.executable, "-Bc", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split(), done.stderr

    def files(self):
        return {path: path.stat().st_mtime_ns for path in self.cache.rglob("*.nb?")}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_the_next_process_compiles_nothing_for_losses_of_the_library(place):
    found, line = place.python(FIT)
    assert found == ["True"]
    assert line.startswith("cavity: compiling loops for Hinge, QuickLaplace; this usually takes")
    assert "once, later runs load it from disk\n" in line
    files = place.files()
    assert files
    assert place.python(FIT) == (["False"], "")
    assert place.files() == files


def test_a_users_loss_is_compiled_in_every_process_so_that_every_edit_is_seen(place):
    for scale, factor in ((1.0, 1.0), (1.0, 1.0), (12.0, 1.0), (12.0, 3.0)):
        (place.folder / "user_loss.py").write_text(OWN_LOSS.format(scale=scale, factor=factor))
        found, _ = place.python("import user_script, user_loss; user_script.run(user_loss.Distance())")
        assert found == [str(3.0 * scale * factor), "0"]
        assert not place.files()


def test_edits_of_the_losses_of_the_library_are_seen(place):
    """Numba itself looks at the file of the entry point only."""
    package = place.folder / "cavity"
    shutil.copytree(Path(cavity.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    edited = package / Path(inspect.getfile(cavity.losses.Hinge)).relative_to(Path(cavity.__file__).parent)
    source = edited.read_text()
    for text, hits in ((source, "0"), (source, "1"), (source + "# edited\n", "0"), (source, "1")):
        edited.write_text(text)
        found, _ = place.python("import user_script, cavity; user_script.run(cavity.losses.Hinge())")
        assert found == ["3.0", hits]
