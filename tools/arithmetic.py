"""Run the tests under several arithmetic settings: what depends on rounding passes under some and fails under others.

    python tools/arithmetic.py                          the whole suite
    python tools/arithmetic.py tests/test_linear.py     what is given is passed on to pytest

Prints a line for every setting, and names what failed; the exit status is 1 if anything did. A setting that the
processor or the BLAS does not take is skipped, and said to be.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
# Kernels of OpenBLAS, and the flags of /proc/cpuinfo that they need.
CORES = {
    "Prescott": {"pni"},
    "Nehalem": {"pni", "sse4_2"},
    "Haswell": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
# OpenBLAS has one name for its oldest kernels when asked what it uses, and another when asked to use them.
CALLED = {"Prescott": "Katmai"}
ARCHITECTURES = (
    "import numpy, scipy.linalg, threadpoolctl; "
    "print(*(library.get('architecture') for library in threadpoolctl.threadpool_info()))"
)
FEATURES = (
    "from numpy._core._multiarray_umath import __cpu_dispatch__ as known, __cpu_features__ as has; "
    "print(*(name for name in known if has[name]))"
)


class Setting(NamedTuple):
    """Environment of a run, and why it cannot be run here, if it cannot."""

    name: str
    environment: dict[str, str]
    cache: str = "native"
    obstacle: str = ""


class Outcome(NamedTuple):
    """What came of a run."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    failures: list[str]


def settings() -> list[Setting]:
    """Build all settings: threads and kernels of the BLAS, NumPy and Numba without the best of this processor."""
    found = [Setting(f"{n} BLAS threads", {"OPENBLAS_NUM_THREADS": str(n)}) for n in (1, 2)]
    for core, flags in CORES.items():
        environment = {"OPENBLAS_CORETYPE": core}
        found.append(Setting(f"OPENBLAS_CORETYPE={core}", environment, obstacle=why_no_core(core, flags, environment)))
    features = printed(FEATURES, {})
    obstacle = "" if features else "NumPy has nothing to switch off on this processor"
    found.append(Setting("NPY_DISABLE_CPU_FEATURES", {"NPY_DISABLE_CPU_FEATURES": features}, obstacle=obstacle))
    # Code for another processor is no use to the others, so that it gets a cache of its own.
    found.append(Setting("NUMBA_CPU_NAME=generic", {"NUMBA_CPU_NAME": "generic"}, cache="generic"))
    return found


def why_no_core(core: str, flags: set[str], environment: dict[str, str]) -> str:
    """Say why OpenBLAS cannot use these kernels; empty if it can."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"{core} is not of the kind of this processor"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    present = set(next((line for line in lines if line.startswith("flags")), "").split())
    if missing := sorted(flags - present):
        return f"the processor lacks {', '.join(missing)}"
    used = printed(ARCHITECTURES, environment)
    return (
        ""
        if {core, CALLED.get(core)} & set(used.split())
        else f"the BLAS does not take it and stays with {used or 'its own'}"
    )


def printed(code: str, environment: dict[str, str]) -> str:
    """Output of a few lines of Python in this environment."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run(setting: Setting, arguments: list[str], folder: Path) -> Outcome:
    """Run the tests under one setting."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    environment = {**os.environ, **setting.environment, "NUMBA_CACHE_DIR": str(folder / setting.cache)}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    begin = time.monotonic()
    done = subprocess.run(
        [*command, f"--junitxml={report}", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    seconds = time.monotonic() - begin
    if not report.exists():
        return Outcome(0, 1, 0, seconds, [f"no test was run: {(done.stderr or done.stdout).strip()[-500:]}"])
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    total, failed, errors, skipped = (int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped"))
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    passed, failed = total - failed - errors - skipped, failed + errors
    if done.returncode and not failures:
        failures, failed = [f"pytest ended with status {done.returncode}"], max(failed, 1)
    return Outcome(passed, failed, skipped, seconds, failures)


def main(arguments: list[str]) -> int:
    """Run everything and print the table."""
    trouble = False
    print(f"{'setting':<32}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for setting in settings():
            if setting.obstacle:
                print(f"{setting.name:<32}  skipped: {setting.obstacle}", flush=True)
                continue
            o = run(setting, arguments, Path(folder))
            print(f"{setting.name:<32}{o.passed:>8}{o.failed:>8}{o.skipped:>9}{o.seconds:>9.0f}", flush=True)
            for line in o.failures:
                print(f"    {line}", flush=True)
            trouble |= bool(o.failed)
    return int(trouble)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
