"""Rows of a trace from the bytes of a block, fast: only those written plainly, the others are read with care elsewhere.

A plain row has as many cells as the header, none quoted, lengths of up to 7 ASCII digits, a time as `YYYY-MM-DD
hh:mm:ss.fffffffff` or as seconds with up to 9 decimals, all printable ASCII. What a row means, and what is refused, is
written once, in dse/serving/trace_files.py; this file says the same for the common case (a test holds them equal).

`pyarrow.csv` is not used instead: its columns take `0x10` and `1e3`, its errors of numbers name no line, and with these
refused it reads 0.4 to 0.6 times as many bytes a second (pyarrow 26); pandas takes `5.0`, and reads 0.4 to 0.85 times
as many where it refuses nothing.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

#: what a column holds
SKIP, TIME, INPUT, OUTPUT = 0, 1, 2, 3
#: nanoseconds of a second, in which times are kept: whole numbers, so that order is never a rounding
NANOSECONDS = 1_000_000_000
#: largest time in whole seconds whose nanoseconds fit 64 bits
MAX_SECONDS = 9_000_000_000

_NEWLINE, _RETURN, _QUOTE, _PLUS, _COMMA, _MINUS, _DOT, _ZERO, _NINE, _COLON = 10, 13, 34, 43, 44, 45, 46, 48, 57, 58
_SPACE, _T, _DELETE = 32, 84, 127


def _date(data: Bytes, at: int, end: int) -> int:
    """Seconds since 1970 of `YYYY-MM-DD hh:mm:ss` at `at`, or -1. 29 February takes the careful way."""
    if end - at < 20:
        return -1
    year, month, day, hour, minute, second = 0, 0, 0, 0, 0, 0
    for i in range(19):
        c = data[at + i]
        if i in (4, 7):
            good = c == _MINUS
        elif i == 10:
            good = c in (_SPACE, _T)
        elif i in (13, 16):
            good = c == _COLON
        else:
            good = _ZERO <= c <= _NINE
            digit = int(c) - _ZERO
            if i < 4:
                year = year * 10 + digit
            elif i < 7:
                month = month * 10 + digit
            elif i < 10:
                day = day * 10 + digit
            elif i < 13:
                hour = hour * 10 + digit
            elif i < 16:
                minute = minute * 10 + digit
            else:
                second = second * 10 + digit
        if not good:
            return -1
    n_days = 28 if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    if year < 1970 or year > 2200 or month < 1 or month > 12 or day < 1 or day > n_days:
        return -1
    if hour > 23 or minute > 59 or second > 59:
        return -1
    # Gregorian calendar, years taken to begin in March; 719469 days are from its start to 1970-01-01
    if month <= 2:
        year, month = year - 1, month + 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469
    return ((days * 24 + hour) * 60 + minute) * 60 + second


def _time(data: Bytes, at: int, end: int, is_iso: bool) -> tuple[int, int]:
    """(nanoseconds, position after it) of the time at `at`; (-1, at) where it is not plain."""
    if is_iso:
        whole = _date(data, at, end)
        if whole < 0:
            return -1, at
        at += 19
    else:
        whole, first = 0, at
        while _ZERO <= data[at] <= _NINE and at - first < 10:
            whole = whole * 10 + (int(data[at]) - _ZERO)
            at += 1
        if at == first or whole > MAX_SECONDS:
            return -1, at
    fraction, scale = 0, NANOSECONDS
    if data[at] == _DOT:
        at += 1
        first = at
        while _ZERO <= data[at] <= _NINE and at - first < 9:
            fraction = fraction * 10 + (int(data[at]) - _ZERO)
            scale //= 10
            at += 1
        if at == first:
            return -1, at
    if is_iso and data[at] == _PLUS and end - at > 6:  # +00:00
        if data[at + 3] != _COLON:
            return -1, at
        for i in (1, 2, 4, 5):
            if data[at + i] != _ZERO:
                return -1, at
        at += 6
    return whole * NANOSECONDS + fraction * scale, at


def _length(data: Bytes, at: int, least: int, most: int) -> tuple[int, int]:
    """(number, position after it) of the digits at `at`; (-1, at) where it is not plain or out of range."""
    first, value = at, 0
    while _ZERO <= data[at] <= _NINE and at - first < 8:
        value = value * 10 + (int(data[at]) - _ZERO)
        at += 1
    if at == first or at - first > 7 or value < least or value > most:
        return -1, at
    return value, at


class Columns(NamedTuple):
    """Columns of the rows of a file."""

    #: of each column
    kinds: Ints
    is_iso: bool
    #: bounds of the lengths
    least: int
    most: int


def scan(data: Bytes, position: int, columns: Columns, before: int, rows: Ints, n: int) -> tuple[int, int]:
    """Rows of data[position:] into `rows` (times, prompts, answers) from place `n` on, until one is not plain.

    Returns (position of that row, or the end; rows there). `data` holds whole lines, each ended by a newline; `before`
    is the time of the row above in nanoseconds.
    """
    kinds, is_iso, least, most = columns
    n_columns, end = len(kinds), len(data)
    while position < end:
        at, plain = position, True
        time, n_input, n_output = 0, 0, 0
        for column in range(n_columns):
            kind = kinds[column]
            if kind == TIME:
                time, at = _time(data, at, end, is_iso)
                plain = time >= before
            elif kind == INPUT:
                n_input, at = _length(data, at, least, most)
                plain = n_input >= 0
            elif kind == OUTPUT:
                n_output, at = _length(data, at, least, most)
                plain = n_output >= 0
            else:
                while _SPACE <= data[at] < _DELETE and data[at] != _COMMA and data[at] != _QUOTE:
                    at += 1
            if column < n_columns - 1:
                plain = plain and data[at] == _COMMA
                at += 1
            if not plain:
                return position, n
        if data[at] == _RETURN:
            at += 1
        if data[at] != _NEWLINE:
            return position, n
        rows[0, n], rows[1, n], rows[2, n] = time, n_input, n_output
        before = time
        n += 1
        position = at + 1
    return position, n


@cache
def compiled() -> Callable[..., Any]:
    """`scan` as machine code. Compiling takes a second or two once: worth it for files of many megabytes."""
    from numba.extending import register_jitable

    from kernels_ref import sequential

    for function in (_date, _time, _length):
        register_jitable(error_model="numpy")(function)
    return sequential(scan, sources=(Path(__file__),))
