"""Small floats by search: the nearest of all values of a format, in exact fractions."""

from fractions import Fraction

import numpy as np


def magnitudes(exponent_bits, mantissa_bits, bias, n):
    """The first n values that are not negative, in order, from the definition of a float."""
    found = []
    for code in range(n):
        exponent, mantissa = divmod(code, 2**mantissa_bits)
        significand = mantissa + (2**mantissa_bits if exponent else 0)
        found.append(Fraction(significand) * Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits))
    return found


FORMATS = {"e2m1": magnitudes(2, 1, 1, 8), "e4m3": magnitudes(4, 3, 7, 127), "e5m2": magnitudes(5, 2, 15, 124)}
SIGN = {"e2m1": 8, "e4m3": 0x80, "e5m2": 0x80}


def nearest(value, fmt, tie="even"):
    """The code of a finite value, saturating; ties to even, or away from zero."""
    sign = SIGN[fmt] if np.signbit(value) else 0
    exact, table = abs(Fraction(float(value))), FORMATS[fmt]
    at = max(i for i, one in enumerate(table) if one <= exact)
    if at == len(table) - 1:
        return at | sign
    middle = (table[at] + table[at + 1]) / 2
    up = exact > middle or (exact == middle and (tie == "away" or (tie == "even" and at % 2 == 1)))
    return (at + up) | sign
