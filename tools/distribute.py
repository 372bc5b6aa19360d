"""Build the sdist and the wheel into dist/, check both, and try the wheel in a clean environment.

Run: make dist
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
LARGEST_WHEEL = 1_500_000  # bytes; the four data sets are 0.6 MB of it
# Files of the repository that an sdist leaves out (see pyproject.toml), and those that only an sdist has.
REPOSITORY_ONLY, SDIST_ONLY = (".ci/", ".github/"), {"PKG-INFO"}


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)  # the wheel is built from the sdist
    sdist, wheel = only("*.tar.gz"), only("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    run(sys.executable, "-m", "check_wheel_contents", wheel)
    check_size(wheel)
    check_sdist(sdist)
    try_out(wheel)
    print(f"\n{sdist.name} and {wheel.name} are in {DIST}")


def run(*command: str | Path, **options: object) -> str:
    print(f"\n$ {' '.join(map(str, command))}", flush=True)
    return subprocess.run(command, check=True, text=True, **options).stdout


def only(pattern: str) -> Path:
    (path,) = DIST.glob(pattern)
    return path


def check_size(wheel: Path) -> None:
    size = wheel.stat().st_size
    if size > LARGEST_WHEEL:
        raise SystemExit(f"{wheel.name} has {size:,} bytes; at most {LARGEST_WHEEL:,} are allowed")
    print(f"{wheel.name}: {size:,} bytes")


def check_sdist(sdist: Path) -> None:
    """Compare the files of an sdist with those under version control: all of them, and nothing generated."""
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    tracked = run("git", "ls-files", cwd=ROOT, stdout=subprocess.PIPE).splitlines()
    wanted = {name for name in tracked if not name.startswith(REPOSITORY_ONLY)} | SDIST_ONLY
    if held != wanted:
        raise SystemExit(f"{sdist.name} lacks {sorted(wanted - held)} and has too much: {sorted(held - wanted)}")
    print(f"{sdist.name}: {len(held)} files, those of the repository")


def try_out(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "env", with_pip=True)
        python = Path(folder) / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        run(python, "-m", "pip", "install", "--quiet", wheel)
        run(python, "-m", "pip", "check")
        run(python, "-I", ROOT / "tools" / "smoke.py", cwd=folder)


if __name__ == "__main__":
    main()
