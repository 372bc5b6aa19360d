"""Lines of libsvm files: ``label index:value index:value ...``, from bytes to the arrays of a CSR matrix."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from cavity.kernels._decimal import is_digit, number_at
from cavity.kernels.bridge import INNER, OPTIONS

kernel = njit(**INNER)


class Fault(IntEnum):
    """What is wrong with a line."""

    NONE = 0
    LABEL = 1
    FEATURE = 2
    VALUE = 3
    ORDER = 4
    BASE = 5
    SIZE = 6
    QUERY = 7
    RANGE = 8


class Lines(NamedTuple):
    """Rows of some whole lines, up to the first fault, and where in the text it is."""

    labels: NDArray[np.float64]
    starts: NDArray[np.int32]
    indices: NDArray[np.int32]
    values: NDArray[np.float64]
    fault: Fault
    place: int


def parse_lines(text: bytes, first_index: int) -> Lines:
    """Read whole lines; the last may lack its end. Numbers are the nearest float64."""
    buffer = np.frombuffer(text, dtype=np.uint8)
    rows, entries = np.count_nonzero(buffer == ord("\n")) + 1, np.count_nonzero(buffer == ord(":"))
    labels, values = np.empty(rows), np.empty(entries)
    starts, indices = np.zeros(rows + 1, dtype=np.int32), np.empty(entries, dtype=np.int32)
    label_bits, value_bits = labels.view(np.uint64), values.view(np.uint64)
    rows, entries, left, fault, place = _parse(buffer, first_index, label_bits, starts, indices, value_bits)
    labels, values = labels[:rows], values[:entries]
    if left:
        too_large = [*_finish(text, labels), *_finish(text, values)]
        if too_large:
            fault, place = Fault.RANGE, min(too_large)
    return Lines(labels, starts[: rows + 1], indices[:entries], values, Fault(fault), place)


def _finish(text: bytes, numbers: NDArray[np.float64]) -> list[int]:
    """Take `float` for the numbers that are left: the kernel gives the place of each as the payload of a NaN.

    Returns the places of those that are infinite.
    """
    left, word = np.flatnonzero(np.isnan(numbers)), re.compile(rb"[^\s#]+")
    places = (numbers.view(np.uint64)[left] & np.uint64((1 << 51) - 1)).tolist()
    words = (word.match(text, place) for place in places)
    numbers[left] = [float(found[0]) for found in words if found]
    return [place for place, number in zip(places, numbers[left], strict=True) if np.isinf(number)]


@njit(cache=True, nogil=True, **OPTIONS)
def _parse(
    text: Any, first_index: int, labels: Any, starts: Any, indices: Any, values: Any
) -> tuple[int, int, int, int, int]:
    """Numbers of rows, entries and numbers left to the caller; fault and its place.

    There is room for a row per line end and one more, and for an entry per colon. An entry is written when its colon
    has been read, a row when its label has, and the line ends before the next.
    """
    stop, at, rows, entries, left = text.size, 0, 0, 0, 0
    while True:
        at = _after_spaces(text, at, stop)
        if at == stop:
            return rows, entries, left, Fault.NONE.value, at
        if text[at] == 10:
            at += 1
            continue
        if text[at] == 35:
            at = _line_end(text, at, stop)
            continue
        bits, end, is_right = number_at(text, at, stop)
        if end < 0 or not _ends_word(text, end, stop):
            return rows, entries, left, Fault.LABEL.value, at
        labels[rows] = bits if is_right else _left(at)
        left += not is_right
        entries, more, fault, at = _parse_features(text, end, stop, first_index, indices, values, entries)
        left += more
        if fault != Fault.NONE.value:
            return rows, entries, left, fault, at
        rows += 1
        starts[rows] = entries


@kernel
def _parse_features(
    text: Any, at: int, stop: int, first_index: int, indices: Any, values: Any, entries: int
) -> tuple[int, int, int, int]:
    """Read the rest of a line. Gives the number of entries, of numbers left, fault, and the line's end or the place."""
    left, last, is_first = 0, np.int64(-1), True
    while True:
        at = _after_spaces(text, at, stop)
        if at == stop or text[at] == 10 or text[at] == 35:
            return entries, left, Fault.NONE.value, _line_end(text, at, stop)
        if is_first and text[at] == 113:  # q
            end = _after_query(text, at, stop)
            if end < 0:
                return entries, left, Fault.QUERY.value, at
            at, is_first = end, False
            continue
        is_first = False
        index, colon = np.int64(0), at
        while colon < stop and is_digit(text[colon]):
            index = min(index * 10 + np.int64(text[colon]) - 48, 1 << 40)
            colon += 1
        if colon == at or colon >= stop or text[colon] != 58:
            return entries, left, Fault.FEATURE.value, at
        index -= first_index
        if index < 0:
            return entries, left, Fault.BASE.value, at
        if index >= (1 << 31) - 1:
            return entries, left, Fault.SIZE.value, at
        if index <= last:
            return entries, left, Fault.ORDER.value, at
        bits, end, is_right = number_at(text, colon + 1, stop)
        if end < 0 or not _ends_word(text, end, stop):
            return entries, left, Fault.VALUE.value, at
        indices[entries] = index
        values[entries] = bits if is_right else _left(colon + 1)
        left += not is_right
        entries += 1
        last, at = index, end


@kernel
def _after_spaces(text: Any, at: int, stop: int) -> int:
    """Skip spaces, tabs and carriage returns, not line ends."""
    while at < stop and (text[at] == 32 or text[at] == 9 or text[at] == 13):
        at += 1
    return at


@kernel
def _ends_word(text: Any, at: int, stop: int) -> bool:
    return at == stop or text[at] == 32 or text[at] == 10 or text[at] == 9 or text[at] == 13 or text[at] == 35


@kernel
def _line_end(text: Any, at: int, stop: int) -> int:
    while at < stop and text[at] != 10:
        at += 1
    return at


@kernel
def _after_query(text: Any, at: int, stop: int) -> int:
    """Skip ``qid:number``, a whole number; negative if it is none."""
    if at + 4 >= stop or text[at + 1] != 105 or text[at + 2] != 100 or text[at + 3] != 58:
        return -1
    end = at + 5 if text[at + 4] == 45 else at + 4
    begin = end
    while end < stop and is_digit(text[end]):
        end += 1
    return end if end > begin and _ends_word(text, end, stop) else -1


@kernel
def _left(place: int) -> Any:
    """Bits of a NaN with a place in it."""
    return np.uint64(0xFFF) << np.uint64(51) | np.uint64(place)
