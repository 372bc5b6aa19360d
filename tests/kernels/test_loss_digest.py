"""A compiled loss follows every edit of what it reaches, and is found in the cache where nothing was edited."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from cavity import losses
from cavity.kernels._bridge import _TolerantFiles, kinds
from cavity.kernels._digest import digest_of

LOSS = textwrap.dedent(
    """
    import math
    import numpy as np
    from enum import IntEnum
    from functools import partial
    from typing import NamedTuple
    from numba import njit
    from numba.extending import overload, register_jitable

    SCALE = 2.0
    TABLE = np.array([1.0, 2.0])
    CHOICES = {"one": 1.0}
    FAR = 7.0

    class Kind(IntEnum):
        FIRST = 1

    def deep(x):
        return FAR * x

    deep = njit(deep)

    @njit(fastmath=False)
    def helper(x, add=0.25):
        return deep(x) + add

    @register_jitable
    def plain(x):
        return x + 0.125

    def stub(x):
        raise NotImplementedError

    @overload(stub)
    def _(x):
        def implementation(x):
            return x + 0.0625
        return implementation

    def build(offset):
        @njit
        def shifted(x):
            return x + offset
        return shifted

    shifted = build(0.5)

    class Base:
        SHARE = 0.75

    class Own(NamedTuple):
        scale: float = 1.0

        LIMIT = 3.0

        @property
        def targets(self):
            return "reals"

        @staticmethod
        def half(x):
            return 0.5 * x

        def value(self, y, z):
            terms = [helper(k * z) for k in (1.0, 2.0)]
            return SCALE * terms[0] + TABLE[0] + self.LIMIT + shifted(plain(y)) + stub(y) + Kind.FIRST + math.pi

        def derivatives(self, y, z):
            return self.value(y, z), 0.0 * z, 0.0 * z
    """
)
# What is edited, and into what.
EDITS = {
    "a constant of the module": ("SCALE = 2.0", "SCALE = 3.0"),
    "an array of the module": ("[1.0, 2.0]", "[1.0, 2.5]"),
    "a constant of the class": ("LIMIT = 3.0", "LIMIT = 4.0"),
    "a static method": ("0.5 * x", "0.6 * x"),
    "a property": ('"reals"', '"counts"'),
    "a jitted helper": ("return deep(x) + add", "return deep(x) - add"),
    "a helper's default": ("add=0.25", "add=0.5"),
    "a helper's options": ("fastmath=False", "fastmath=True"),
    "a helper of a helper": ("FAR * x", "FAR + x"),
    "a constant of that": ("FAR = 7.0", "FAR = 8.0"),
    "a helper Numba may compile": ("x + 0.125", "x + 0.25"),
    "what Numba compiles instead": ("x + 0.0625", "x + 0.03125"),
    "a closure": ("build(0.5)", "build(0.625)"),
    "a number of an enumeration": ("FIRST = 1", "FIRST = 2"),
    "nested code": ("helper(k * z) for k", "helper(k + z) for k"),
    "its numbers": ("(1.0, 2.0)", "(1.5, 2.0)"),
    "the method": ("+ self.LIMIT", "- self.LIMIT"),
}


def digest(source: str, name: str = "user_module") -> bytes | None:
    """Digest of the loss in a module of its own."""
    module = ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return digest_of(module.Own)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_every_edit_of_what_a_loss_reaches_changes_its_digest(edit: tuple[str, str]) -> None:
    assert LOSS.count(edit[0]) == 1
    assert digest(LOSS.replace(*edit)) != digest(LOSS)


def test_what_a_loss_does_not_reach_leaves_its_digest_alone() -> None:
    wanted = digest(LOSS)
    assert wanted is not None
    for edited in (
        LOSS,
        "# A comment that moves every line.\n" + LOSS,
        LOSS.replace('{"one": 1.0}', '{"one": 2.0}'),
        LOSS.replace("SHARE = 0.75", "SHARE = 0.5"),
        LOSS + "\nmore = 5.0\n",
    ):
        assert digest(edited) == wanted


def test_constants_of_another_module_are_reached_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_constant(value: float) -> bytes | None:
        package, inner = ModuleType("constants_of_mine"), ModuleType("constants_of_mine.inner")
        package.inner, inner.SCALE, inner.other = inner, value, object()  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "constants_of_mine", package)
        source = LOSS.replace("SCALE = 2.0", "import constants_of_mine")
        return digest(source.replace("SCALE *", "constants_of_mine.inner.SCALE *"))

    assert with_constant(1.0) == with_constant(1.0) != with_constant(2.0)


@pytest.mark.parametrize("thing", ["object()", "partial(max, 1.0)", "np.array([object()])", "[object()]"])
def test_a_loss_that_reaches_something_unknown_has_no_digest(thing: str) -> None:
    assert digest(LOSS.replace("SCALE = 2.0", f"SCALE = {thing}")) is None
    assert digest(LOSS.replace('{"one": 1.0}', thing)) == digest(LOSS)


def test_what_holds_itself_is_followed_once() -> None:
    around = "ROUND = [1.0]; ROUND.append(ROUND); SCALE = ROUND"
    recursive = ("FAR * x", "deep(x - 1.0) if x > FAR else x")
    for source in (LOSS.replace("SCALE = 2.0", around), LOSS.replace(*recursive)):
        assert digest(source) is not None
        assert digest(source) == digest(source)


def test_every_loss_of_the_library_has_a_digest_of_its_own() -> None:
    found = {digest_of(getattr(losses, name)) for name in losses.__all__}
    assert None not in found
    assert len(found) == len(losses.__all__)


def test_losses_in_fields_are_part_of_what_is_compiled() -> None:
    class Scaled(NamedTuple):
        inner: Any
        scale: float = 1.0

    assert kinds(losses.Huber()) == (losses.Huber,)
    assert kinds(Scaled(losses.Huber())) == (Scaled, losses.Huber)
    assert kinds(Scaled((losses.Huber(), Scaled(losses.Hinge())))) == (Scaled, tuple, losses.Huber, losses.Hinge)
    assert kinds(np.ones(2)) == (np.ndarray,)


USE = textwrap.dedent(
    """
    from cavity.kernels import _rows  # opens the methods of losses
    from cavity.kernels._bridge import entry, kinds
    from user_loss import Own

    def evaluate(loss, y, z):
        return loss.value(y, z)

    def run(loss=Own()):
        compiled = entry(evaluate, *kinds(loss))
        print(compiled(loss, 1.0, 2.0), sum(compiled.stats.cache_hits.values()))
    """
)
SMALL = textwrap.dedent(
    """
    from typing import Any, NamedTuple
    from numba import njit
    SCALE = 2.0
    @njit
    def helper(x):
        return 10.0 * x
    class Own(NamedTuple):
        scale: float = 1.0
        def value(self, y, z):
            return SCALE * helper(z) + y
    """
)


class Place:
    """A folder with a user's loss, a script that uses it, and a cache."""

    def __init__(self, folder: Any) -> None:
        self.folder, self.cache = folder, folder / "cache"
        (folder / "user_script.py").write_text(USE)

    def run(self, source: str) -> tuple[float, bool]:
        """Value of the loss in a fresh process, and whether it was found in the cache."""
        (self.folder / "user_loss.py").write_text(source)
        paths = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(self.cache), "PYTHONPATH": paths}
        command = [sys.executable, "-Bc", "import user_script; user_script.run()"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        value, hits = done.stdout.split()
        return float(value), hits == "1"


@pytest.fixture
def place(tmp_path: Any) -> Place:
    return Place(tmp_path)


def test_a_fresh_process_follows_edits_and_finds_what_was_not_edited(place: Place) -> None:
    assert place.run(SMALL) == (41.0, False)
    assert place.run(SMALL) == (41.0, True)
    assert place.run(SMALL.replace("SCALE = 2.0", "SCALE = 3.0")) == (61.0, False)
    assert place.run(SMALL.replace("10.0 * x", "100.0 * x")) == (401.0, False)
    for path in place.cache.rglob("*.nb*"):
        path.write_bytes(path.read_bytes()[:-20])
    assert place.run(SMALL) == (41.0, False)


def test_what_reaches_something_unknown_is_compiled_in_every_process(place: Place) -> None:
    unknown = SMALL.replace("SCALE = 2.0", "SCALE = 2.0\nlock = object()")
    unknown = unknown.replace("    def value", "    LOCK = lock\n\n    def value")
    assert place.run(unknown) == (41.0, False)
    assert not list(place.cache.rglob("*.nb*"))


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_files_of_the_cache_that_cannot_be_read_are_not_there(suffix: str, tmp_path: Any) -> None:
    files = _TolerantFiles(str(tmp_path), "kernel", "stamp")
    files.save("key", list(range(50)))
    files.save("other", "data")
    (path,) = tmp_path.glob("kernel.1.nbc" if suffix == "nbc" else "*.nbi")
    whole = path.read_bytes()
    for damaged in (*(whole[:k] for k in range(0, len(whole), 7)), b"", b"text"):
        path.write_bytes(damaged)
        assert files.load("key") is None
    files.save("key", list(range(50)))
    assert files.load("key") == list(range(50))
    path.unlink()
    assert files.load("key") is None
    files.save("key", list(range(50)))
    assert files.load("key") == list(range(50))


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Any) -> None:
    files = _TolerantFiles(str(tmp_path / "absent"), "kernel", "stamp")
    files.save("key", "data")
    assert files.load("key") is None
