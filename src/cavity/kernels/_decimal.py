"""Decimal numbers in text to the nearest float64.

Short numbers take one exact product or quotient. Others take the algorithm of D. Lemire, *Number parsing at a gigabyte
per second* (2021): the digits times a power of five of 128 bits. Where that cannot tell which of two numbers is nearer,
and for more than 19 digits and numbers near the ends of the range, `number_at` says so, and the caller takes `float`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cavity.kernels.bridge import INNER

kernel = njit(**INNER)


def _powers_of_five(first: int, last: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Leading 128 bits of 5**q, in two halves; rounded up for negative q, down for others."""
    table = []
    for q in range(first, last + 1):
        power = 5 ** abs(q)
        if q < 0:
            bits = 2 * power.bit_length() + 128
            leading = (1 << bits) // power + 1
        else:
            leading = power << 128
        leading >>= leading.bit_length() - 128
        table.append((leading >> 64, leading & (2**64 - 1)))
    return np.array(table, dtype=np.uint64)


# Of q from -300 to 300: numbers outside are left to the caller.
_FIVES = _powers_of_five(-300, 300)
# Those that are exact.
_TENS = np.array([10.0**q for q in range(23)])


@kernel
def is_digit(byte: int) -> bool:
    return 48 <= byte <= 57


@kernel
def _digits_at(text: Any, at: int, stop: int) -> tuple[Any, int, int, int]:
    """Read digits and a point: the digits as a number, modulo 2**64, the power of ten, how many there are, the end."""
    number, begin = np.uint64(0), at
    while at < stop and is_digit(text[at]):
        number = number * np.uint64(10) + np.uint64(text[at] - 48)
        at += 1
    seen, power = at - begin, 0
    if at < stop and text[at] == 46:
        begin = at = at + 1
        while at < stop and is_digit(text[at]):
            number = number * np.uint64(10) + np.uint64(text[at] - 48)
            at += 1
        power = begin - at
    return number, power, seen - power, at


@kernel
def _significant(text: Any, at: int, end: int) -> int:
    """Count digits from the first that is not zero."""
    count = 0
    for place in range(at, end):
        count += is_digit(text[place]) and (count > 0 or text[place] != 48)
    return count


@kernel
def _exponent_at(text: Any, at: int, stop: int) -> tuple[Any, int]:
    """Read what follows an e: the exponent, cut off where it is absurd, and the end, negative if there is none."""
    sign, exponent = np.int64(1), np.int64(0)
    if at < stop and (text[at] == 43 or text[at] == 45):
        sign = np.int64(44) - np.int64(text[at])
        at += 1
    if at >= stop or not is_digit(text[at]):
        return exponent, -1
    while at < stop and is_digit(text[at]):
        exponent = min(exponent * np.int64(10) + np.int64(text[at]) - np.int64(48), np.int64(1 << 40))
        at += 1
    return sign * exponent, at


@kernel
def number_at(text: Any, at: int, stop: int) -> tuple[Any, int, bool]:
    """Read a number: its bits as float64, where it ends, and whether the bits are right.

    The end is negative where there is no number. What follows the number is not looked at.
    """
    begin, sign = at, np.uint64(0)
    if at < stop and (text[at] == 43 or text[at] == 45):
        if text[at] == 45:
            sign = np.uint64(1) << np.uint64(63)
        at += 1
    first = at
    number, power, seen, at = _digits_at(text, at, stop)
    is_long = seen > 19 and _significant(text, first, at) > 19
    if seen == 0:
        return np.uint64(0), -1 - begin, True
    if at < stop and (text[at] == 101 or text[at] == 69):
        exponent, at = _exponent_at(text, at + 1, stop)
        if at < 0:
            return np.uint64(0), -1 - begin, True
        power += exponent
    if is_long:
        return np.uint64(0), at, False
    if number == 0:
        return sign, at, True
    bits, is_right = _nearest(number, power)
    return bits | sign, at, is_right


@kernel
def _nearest(number: Any, power: int) -> tuple[Any, bool]:
    """Bits of number times ten to the power, if they can be told."""
    if -22 <= power <= 22 and number <= np.uint64(1 << 53):
        exact = np.float64(number)
        exact = exact / _TENS[-power] if power < 0 else exact * _TENS[power]
        return np.float64(exact).view(np.uint64), True
    if not -300 <= power <= 300:
        return np.uint64(0), False
    zeros = _leading_zeros(number)
    number <<= np.uint64(zeros)
    high, low = _product(number, _FIVES[power + 300, 0])
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):  # the lower half may carry into what is kept
        more, _ = _product(number, _FIVES[power + 300, 1])
        low += more
        if low < more:
            high += np.uint64(1)
    top = np.int64(high >> np.uint64(63))
    shift = np.uint64(top + 9)
    kept = high >> shift  # 53 bits and one to round by
    exponent = ((217706 * power) >> 16) + 63 + top - zeros + 1023
    is_tie = low <= np.uint64(1) and kept & np.uint64(3) == np.uint64(1) and kept << shift == high
    if low == ~np.uint64(0) or is_tie or not 1 <= exponent <= 2045:
        return np.uint64(0), False
    kept = (kept + (kept & np.uint64(1))) >> np.uint64(1)
    # A carry out of 53 bits leaves zeros, and adds one to the exponent.
    return (np.uint64(exponent - 1) << np.uint64(52)) + kept, True


@kernel
def _leading_zeros(number: Any) -> int:
    zeros = 0
    for step in (32, 16, 8, 4, 2, 1):
        if number >> np.uint64(64 - step) == np.uint64(0):
            number <<= np.uint64(step)
            zeros += step
    return zeros


@kernel
def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """Upper and lower half of the product of two numbers of 64 bits."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = a >> half, a & mask, b >> half, b & mask
    middle = a1 * b0 + ((a0 * b0) >> half)
    other = a0 * b1 + (middle & mask)
    return a1 * b1 + (middle >> half) + (other >> half), a * b
