"""Words of texts, hashed to columns and counted: from UTF-8 bytes to the arrays of a CSR matrix.

A word is a longest run of ASCII letters, digits and bytes of other characters; ASCII letters are taken as small ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


def count_hashed(
    offsets: NDArray[np.int64], data: NDArray[np.uint8], bits: int, salt: int, whole: bool
) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]]:
    """Count words in 2**bits columns: data, indices, in ascending order, and starts of the rows of a CSR matrix.

    Row i is ``data[offsets[i]:offsets[i + 1]]``. With ``whole`` it is one word as it is, or none where it is empty.
    """
    if offsets[0] < 0 or offsets[-1] > data.size or np.any(offsets[1:] < offsets[:-1]):
        raise ValueError(f"offsets of texts must ascend from 0 to {data.size} at most, got {offsets}")
    starts = np.zeros(offsets.size, dtype=np.int32)
    words = offsets.size - 1 if whole else _count_words(offsets, data)
    indices, counts = np.empty(words, dtype=np.int32), np.empty(words)
    entries = _count(offsets, data, (bits, np.uint64(salt), whole), starts, indices, counts)
    return counts[:entries], indices[:entries], starts


@njit(cache=True)
def _count_words(offsets: Any, data: Any) -> int:
    words = 0
    for row in range(offsets.size - 1):
        inside = False
        for at in range(offsets[row], offsets[row + 1]):
            here: Any = _in_word(data[at])
            words += here and not inside
            inside = here
    return words


@njit(cache=True)
def _count(offsets: Any, data: Any, form: Any, starts: Any, indices: Any, counts: Any) -> int:
    """Fill starts, indices and counts; there is room for every word. Gives the number of entries."""
    bits, salt, whole = form
    entries = 0
    for row in range(offsets.size - 1):
        at, stop, end = offsets[row], offsets[row + 1], entries
        if whole and at < stop:
            indices[end] = _column(data, at, stop, bits, salt, False)
            end += 1
        while not whole and at < stop:
            if not _in_word(data[at]):
                at += 1
                continue
            begin = at
            while at < stop and _in_word(data[at]):
                at += 1
            indices[end] = _column(data, begin, at, bits, salt, True)
            end += 1
        _sort(indices, entries, end)
        entries = _merge(indices, counts, entries, end)
        starts[row + 1] = entries
    return entries


@njit
def _in_word(byte: int) -> bool:
    return byte >= 128 or 97 <= byte <= 122 or 65 <= byte <= 90 or 48 <= byte <= 57


@njit
def _column(data: Any, at: int, stop: int, bits: int, salt: Any, lower: bool) -> Any:
    """Hash bytes to a column: FNV-1a, whose upper bits the last steps of MurmurHash3 make depend on all bytes."""
    code = np.uint64(0xCBF29CE484222325) ^ salt
    for place in range(at, stop):
        byte = data[place]
        if lower and 65 <= byte <= 90:
            byte += np.uint8(32)
        code = (code ^ np.uint64(byte)) * np.uint64(0x100000001B3)
    code = (code ^ (code >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    code = (code ^ (code >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    code ^= code >> np.uint64(33)
    return np.int32(code >> np.uint64(64 - bits))


@njit
def _sort(numbers: Any, begin: int, end: int) -> None:
    """Sort in place, by Shell's method: rows have few words."""
    gap = 1
    while 3 * gap < end - begin:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(begin + gap, end):
            number, j = numbers[i], i
            while j >= begin + gap and numbers[j - gap] > number:
                numbers[j] = numbers[j - gap]
                j -= gap
            numbers[j] = number
        gap //= 3


@njit
def _merge(indices: Any, counts: Any, begin: int, end: int) -> int:
    """Join equal neighbours and count them. Gives the new end."""
    last = begin - 1
    for i in range(begin, end):
        if last >= begin and indices[i] == indices[last]:
            counts[last] += 1.0
        else:
            last += 1
            indices[last], counts[last] = indices[i], 1.0
    return last + 1
