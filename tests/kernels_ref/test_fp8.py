"""FP8: a plain twin, the error bound."""

import numpy as np
import pytest

import naive_rows
from bits import same_bits
from kernels_ref import half
from kernels_ref.fp8 import FP8, decode_table, encode

ALL = np.arange(2**16, dtype=np.uint16)
FINITE = ALL[(ALL & half.INFINITY) != half.INFINITY].view(np.float16)


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
@pytest.mark.parametrize("saturate", [True, False])
def test_twin(fmt, saturate):
    """Every 37th pattern, and what lies around every value and every midpoint between values."""
    values = np.array(naive_rows.fp8_values(fmt))
    near = np.concatenate([values, (values[1:] + values[:-1]) / 2, [464.0, 480.0, 61440.0, 65504.0]])
    near = near[(near <= 65504) & (near == near.astype(np.float16))].astype(np.float16).view(np.uint16)
    patterns = np.concatenate([near, near + 1, np.maximum(near, 1) - 1, np.arange(0, 0x7C00, 37, np.uint16)])
    x = np.minimum(patterns, half.LARGEST).view(np.float16)
    x = np.concatenate([x, -x])
    codes = FP8(fmt, saturate=saturate).quantize(x).buffers["codes"][0]
    want = [naive_rows.fp8_code(value, fmt, saturate) for value in x]
    assert codes.tolist() == want


def test_float32_values_round_once():
    """Just beyond a midpoint, where rounding to FP16 first would make a tie of it."""
    values = np.array([1.0625, 1.0625 + 2.0**-20, 1.0625 - 2.0**-20, 2.0**-10, 2.0**-10 + 2.0**-30, 1e-45, -1e30])
    assert encode(values.astype(np.float32), "e4m3").tolist() == [0x38, 0x39, 0x38, 0, 1, 0, 0xFE]
    special = np.array([np.inf, -np.inf, np.nan, -np.nan], np.float32)
    assert encode(special, "e4m3", True).tolist() == [0x7E, 0xFE, 0x7F, 0xFF]
    assert encode(special, "e4m3", False).tolist() == [0x7F, 0xFF, 0x7F, 0xFF]
    assert encode(special, "e5m2", True).tolist() == [0x7B, 0xFB, 0x7F, 0xFF]
    assert encode(special, "e5m2").tolist() == [0x7C, 0xFC, 0x7F, 0xFF]


@pytest.mark.parametrize(
    ("fmt", "largest", "mantissa_bits", "step"), [("e4m3", 448, 3, 2**-9), ("e5m2", 57344, 2, 2**-16)]
)
def test_error_bound_and_repetition(fmt, largest, mantissa_bits, step):
    x = FINITE[np.abs(FINITE) <= largest]
    packed = FP8(fmt).quantize(x)
    y = packed.dequantize()
    exact = x.astype(np.float64)
    assert (np.abs(exact - y) <= np.maximum(np.abs(exact) * 2.0 ** -(mantissa_bits + 1), step / 2)).all()
    assert same_bits(FP8(fmt).quantize(y).buffers["codes"], packed.buffers["codes"])
    assert same_bits(np.signbit(y), np.signbit(x))


@pytest.mark.parametrize("scale", [0.01, 3.0, 1e-30, 1e30])
def test_scale(scale):
    for fmt in ("e4m3", "e5m2"):
        method = FP8(fmt, scale, saturate=True)
        packed = method.quantize(FINITE)
        with np.errstate(over="ignore"):
            want = encode(FINITE.astype(np.float32) / np.float32(scale), fmt, True)
            decoded = (decode_table(fmt)[want] * np.float32(scale)).astype(np.float16)
        assert same_bits(packed.buffers["codes"][0], want)
        assert same_bits(packed.dequantize(), decoded)


@pytest.mark.parametrize(
    "bad", [{"format": "e3m4"}, {"scale": 0}, {"scale": -1.0}, {"scale": np.inf}, {"saturate": 1}, {"scale": True}]
)
def test_parameters(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FP8(**bad)
