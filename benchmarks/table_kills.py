"""Checkpointed fits that are killed, on a disk that is full, and from a damaged checkpoint, all through the command.

    python -m benchmarks.table_kills --times 100 --seed 0

A fit is killed by ``kill -9`` at a random moment, up to three times, and then run to its end: coefficients and
covariance must have the same bytes as those of a run that was left alone. The same where the disk of the checkpoint is
full from the start, and where it becomes full before the kill (a small tmpfs, which needs root). A checkpoint that was
cut off must be refused and left as it is. Half of the fits keep their rows in memory, half read them from the scratch
file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

import cavity

ROOT = Path(__file__).parents[1]
# Loops of a fit, about as long as the start of a process takes; each writes a checkpoint.
LOOPS = 80
# Options that make fits read their rows from memory, or from the scratch file.
STORES = {"memory": (), "scratch": ("--memory", "0")}


class Fit:
    """The same fit again and again, in a folder of its own."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.model = folder, folder / "model.cavity"
        options = ("--target", "y", "--tol", "0", "--max-iter", str(LOOPS), *STORES[store])
        self._command = [sys.executable, "-m", "cavity.cli", "fit", "rows.csv", *options, "--model", self.model.name]
        self._environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}

    def start(self, checkpoint: Path | None) -> subprocess.Popen[str]:
        """Start it."""
        extra = [] if checkpoint is None else ["--checkpoint", str(checkpoint), "--every", "0"]
        return subprocess.Popen(
            [*self._command, *extra],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, checkpoint: Path | None) -> tuple[int, str]:
        """Run it to its end; give the exit code and what it told."""
        process = self.start(checkpoint)
        told = process.communicate()[1]
        return process.returncode, told

    def numbers(self) -> bytes:
        """Give coefficients and covariance of the model that was written, which is removed."""
        model = cavity.load(self.model)
        self.model.unlink()
        return bytes(model.coef_.tobytes() + np.asarray(model.covariance_).tobytes())


def kill_somewhere(fit: Fit, checkpoint: Path, rng: np.random.Generator, longest: float) -> bool:
    """Start a fit and kill it at a random moment; False if it had ended before."""
    process = fit.start(checkpoint)
    time.sleep(rng.uniform(0.0, longest))
    process.kill()
    process.communicate()
    return process.returncode < 0


def killed(fit: Fit, rng: np.random.Generator, longest: float) -> bytes:
    """Kill up to three times, then let it end."""
    checkpoint = fit.folder / "run.ckpt"
    for _ in range(rng.integers(1, 4)):
        if not kill_somewhere(fit, checkpoint, rng, longest):
            break
    code, told = fit.run(checkpoint)
    if code not in (0, 1) or checkpoint.exists():
        raise AssertionError(f"exit code {code}: {told[-500:]}")
    return fit.numbers()


def truncated(fit: Fit, rng: np.random.Generator, longest: float) -> bytes:
    """Cut a checkpoint off somewhere: it must be refused and stay; once it is deleted, the fit starts over."""
    checkpoint = fit.folder / "run.ckpt"
    process = fit.start(checkpoint)
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    content = checkpoint.read_bytes()
    cut = content[: rng.integers(0, len(content))]
    checkpoint.write_bytes(cut)
    code, told = fit.run(checkpoint)
    if code != 2 or "is damaged" not in told or checkpoint.read_bytes() != cut:
        raise AssertionError(f"exit code {code}: {told[-500:]}")
    checkpoint.unlink()
    fit.run(checkpoint)
    return fit.numbers()


def full_from_the_start(fit: Fit, rng: np.random.Generator, longest: float) -> bytes:
    """Fit with a checkpoint on a disk without room: a warning, no checkpoint, the same numbers."""
    with tmpfs(fit.folder / "disk", "8k") as disk:
        code, told = fit.run(disk / "run.ckpt")
        if code not in (0, 1) or "could not be written" not in told or any(disk.iterdir()):
            raise AssertionError(f"exit code {code}: {told[-500:]}")
    return fit.numbers()


def full_before_the_kill(fit: Fit, rng: np.random.Generator, longest: float) -> bytes:
    """Fill the disk of the checkpoint after some loops, kill, make room, and continue."""
    with tmpfs(fit.folder / "disk", "16m") as disk:
        checkpoint, filler = disk / "run.ckpt", disk / "filler"
        process = fit.start(checkpoint)
        while not checkpoint.exists() and process.poll() is None:
            time.sleep(0.01)
        fill(filler)
        time.sleep(rng.uniform(0.0, 0.5))
        process.kill()
        process.communicate()
        filler.unlink()
        code, told = fit.run(checkpoint)
        if code not in (0, 1):
            raise AssertionError(f"exit code {code}: {told[-500:]}")
    return fit.numbers()


def fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """Mount a small disk in memory."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def write_rows(path: Path) -> None:
    """Write the rows of all fits: numbers, a category, and two classes."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(500, 6)), columns=list("abcdef"))
    frame["group"] = rng.choice(["one", "two", "three"], 500)
    frame["y"] = np.where(frame["a"] + (frame["group"] == "two") + rng.logistic(size=500) > 0.0, "yes", "no")
    frame.to_csv(path, index=False)


def main() -> int:
    """Run every kind of disturbance so often, and count what came of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table_kills", description=__doc__)
    parser.add_argument("--times", type=int, default=100, help="kills; a tenth of it for every other disturbance")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, few = np.random.default_rng(options.seed), max(1, options.times // 10)
    kinds = {killed: options.times, truncated: few, full_from_the_start: few, full_before_the_kill: few}
    if os.geteuid() != 0:
        print("not root: disks that are full are left out")
        kinds = {killed: options.times, truncated: few}
    same: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        fits, expected, longest = {}, {}, {}
        for store in STORES:
            folder = Path(place) / store
            folder.mkdir()
            write_rows(folder / "rows.csv")
            fits[store] = Fit(folder, store)
            start = time.monotonic()
            fits[store].run(None)
            longest[store], expected[store] = time.monotonic() - start, fits[store].numbers()
        for kind, times in kinds.items():
            for k in range(times):
                store = list(STORES)[k % len(STORES)]
                found = kind(fits[store], rng, longest[store])
                same[kind.__name__] += found == expected[store]
            print(f"{kind.__name__.replace('_', ' ')}: same bytes {same[kind.__name__]} of {times}", flush=True)
    return 0 if all(same[kind.__name__] == times for kind, times in kinds.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
