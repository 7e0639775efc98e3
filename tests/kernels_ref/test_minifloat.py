"""Codes of E2M1, E4M3 and E8M0: by hand, against a search over all values, against PyTorch's way for arrays."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive_minifloat
from kernels_ref import fp8, minifloat
from kernels_ref.minifloat import ceil_log2, e4m3

E2M1 = {"even": minifloat.e2m1, "away": minifloat.e2m1_away}


def around(fmt):
    """All values of a format, the midpoints between them, their neighbours in float32, and what is beyond."""
    table = [float(one) for one in naive_minifloat.FORMATS[fmt]]
    exact = np.array([*table, *((a + b) / 2 for a, b in itertools.pairwise(table))], np.float32)
    near = np.concatenate([exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf))])
    near = np.concatenate([near, np.array([1e-45, 1e-30, 1e5, 3e38], np.float32)])
    return np.concatenate([near, -near])


@pytest.mark.parametrize("tie", E2M1)
def test_e2m1_around_every_value_and_midpoint(tie):
    for value in around("e2m1"):
        assert E2M1[tie](value) == naive_minifloat.nearest(value, "e2m1", tie), value


def test_e4m3_around_every_value_and_midpoint():
    for value in around("e4m3"):
        assert e4m3(value) == naive_minifloat.nearest(value, "e4m3"), value


def test_ties_by_hand():
    # halfway between 0 0.5 1 1.5 2 3 4 6
    middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    assert [minifloat.e2m1(np.float32(x)) for x in middles] == [0, 2, 2, 4, 4, 6, 6]
    assert [minifloat.e2m1_away(np.float32(x)) for x in middles] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -0.0])
def test_what_is_not_an_ordinary_number(value):
    x = np.float32(value)
    sign = 8 if np.signbit(x) else 0
    assert minifloat.e2m1(x) == (sign if value == 0 else 7 | sign)
    want = 0 if value == 0 else 0x7F if math.isnan(value) else 0x7E
    assert e4m3(x) == want | sign << 4


@given(bits=st.integers(0, 2**32 - 1))
def test_any_pattern_as_for_arrays(bits):
    x = np.array([bits], np.uint32).view(np.float32)
    assert e4m3(x[0]) == fp8.encode(x, "e4m3", saturate=True)[0]


def test_values_come_back():
    for code in range(16):
        assert minifloat.e2m1_value(code) == minifloat.E2M1_VALUES[code]
        assert minifloat.e2m1(minifloat.E2M1_VALUES[code]) == code
    values = np.array([minifloat.e4m3_value(code) for code in range(256)], np.float32)
    assert np.array_equal(values, fp8.decode_table("e4m3"), equal_nan=True)


def test_logarithms_by_hand():
    for value, high in ((1, 0), (1.5, 1), (2, 1), (448, 9), (2**-126, -126), (3e38, 128)):
        assert ceil_log2(np.float32(value)) == high
    above = [np.float32(2.0**e * (1 + j * 2**-23)) for e, j in ((0, 1), (4, 1), (4, 2), (-1, 1), (100, 22), (100, 23))]
    # the logarithm of 16 (1 + 2^-23) is 4 + 1.7e-7: the float32 next to 4 is 4.8e-7 away
    assert [ceil_log2(x) for x in above] == [1, 4, 5, 0, 100, 101]
    # subnormal: 2^-127, 2^-127 and a little, 2^-126 less a little, 2^-149
    bits = np.array([0x400000, 0x400001, 0x40000C, 0x7FFFFF, 1], np.uint32).view(np.float32)
    assert [ceil_log2(x) for x in bits] == [-127, -127, -126, -126, -127]


@given(st.floats(2.0**-126, 2.0**127, width=32))
def test_ceil_log2_is_that_of_the_nearest_float32(value):
    assert ceil_log2(np.float32(value)) == math.ceil(np.float32(math.log2(value)))
