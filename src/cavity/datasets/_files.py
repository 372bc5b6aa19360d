"""The UCI files inside the package: found, decompressed, and checked on every read."""

import bz2
import hashlib
from importlib import resources

# Digests of the files as the UCI repository has them, by name.
SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "bank-full.csv": "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
    "haberman.data": "b4b7a32586a5668f9f4d6dc8be9d1bc8cd4822523affb1f6b5bfc350681ef3e2",
    "ionosphere.data": "46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd",
}
"""Checksum of each original file, as UCI publishes it."""


class DataError(RuntimeError):
    """A data file of the package is missing or damaged; reinstall the package."""


def packed(filename: str) -> bytes:
    """Return the compressed bytes of one UCI file, unchecked."""
    return resources.files(__package__).joinpath("data", f"{filename}.bz2").read_bytes()


def text(filename: str) -> str:
    """Return one UCI file, exactly as published.

    Raises
    ------
    DataError
        If the file is missing, cannot be decompressed, or differs from the original.
    """
    try:
        original = bz2.decompress(packed(filename))
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(filename, str(error)) from error
    found = hashlib.sha256(original).hexdigest()
    if found != SHA256[filename]:
        raise _damaged(filename, f"sha256 is {found}, must be {SHA256[filename]}")
    return original.decode("ascii")


def _damaged(filename: str, reason: str) -> DataError:
    return DataError(
        f"data file {filename}.bz2 of cavity.datasets is damaged ({reason}); "
        "install the package again: pip install --force-reinstall --no-deps . in its folder"
    )
