"""INT8 and INT4, per token and per tensor: a plain twin, every FP16 pattern."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

import naive_rows
from bits import same_bits
from cases import each
from kernels_ref import half
from kernels_ref.integers import PerTensorInteger, PerTokenInteger
from row_cases import cases, normal

finite = st.floats(-65504, 65504, width=16)


def stored(codes, bits):
    return codes.astype(np.int8) if bits == 8 else naive_rows.nibbles(codes, False, 0)


@each("channels", [1, 2, 7, 64, 131, 256])
@each("bits", [8, 4])
def test_twins(channels, bits):
    levels = 2 ** (bits - 1) - 1
    for name, x in cases(channels).items():
        codes, absmax, decoded = naive_rows.integer_rows(x, levels)
        assert np.abs(codes).max() <= levels
        for storage, dtype in (("fp16", np.float16), ("fp32", np.float32)):
            packed = PerTokenInteger(bits, storage).quantize(x)
            assert same_bits(packed.buffers["codes"], stored(codes, bits)), name
            assert same_bits(packed.buffers["absmax"], absmax.astype(dtype)[:, None]), name
            assert same_bits(packed.dequantize(), decoded), name
        for scale in (0.03, 1e-6, 900.0):
            codes, decoded = naive_rows.integer_tensor(x, levels, scale)
            packed = PerTensorInteger(scale, bits).quantize(x)
            assert same_bits(packed.buffers["codes"], stored(codes, bits)), name
            assert same_bits(packed.dequantize(), decoded), name


@pytest.mark.parametrize("bits", [8, 4])
def test_every_pattern(bits):
    """All patterns below an absmax, for several of them, at once as rows of one width."""
    levels = 2 ** (bits - 1) - 1
    patterns = np.arange(half.INFINITY, dtype=np.uint16)
    both = np.concatenate([patterns, patterns | half.SIGN])
    largest = np.array([1, 2, 126, 127, 128, 0x3FF, 0x400, 0x3C00, 0x3C01, 0x5555, 0x7BFF], np.uint16)
    x = np.where((both & half.ABS) <= largest[:, None], both, largest[:, None]).view(np.float16)
    codes, absmax, decoded = naive_rows.integer_rows(x, levels)
    packed = PerTokenInteger(bits).quantize(x)
    assert same_bits(packed.buffers["codes"], stored(codes, bits))
    assert same_bits(packed.buffers["absmax"][:, 0], absmax)
    assert same_bits(packed.dequantize(), decoded)
    codes, decoded = naive_rows.integer_tensor(x, levels, 0.7)
    packed = PerTensorInteger(0.7, bits).quantize(x)
    assert same_bits(packed.buffers["codes"], stored(codes, bits))
    assert same_bits(packed.dequantize(), decoded)


@given(st_np.arrays(np.float16, st.tuples(st.integers(1, 4), st.integers(1, 40)), elements=finite))
def test_error_and_repetition(x):
    for bits in (8, 4):
        method = PerTokenInteger(bits)
        packed = method.quantize(x)
        y = packed.dequantize()
        step = packed.buffers["absmax"].astype(np.float64) / float(method.levels)
        # half a step, float32 roundings of the product, one rounding of the result to FP16
        bound = step / 2 * (1 + 2.0**-14) + np.abs(y.astype(np.float64)) * 2.0**-11 + 2.0**-25
        assert (np.abs(x.astype(np.float64) - y) <= bound).all()
        again = method.quantize(y)
        assert all(same_bits(buffer, again.buffers[name]) for name, buffer in packed.buffers.items())
        opposite = method.quantize(-x)
        assert same_bits(opposite.dequantize() + np.float16(0), -y + np.float16(0))


def test_measured_scale():
    x = normal(50, 64)
    method = PerTensorInteger.measured(x)
    assert method.scale == float(np.float32(np.abs(x).max()) / np.float32(127))
    packed = method.quantize(x)
    assert np.abs(packed.buffers["codes"].astype(int)).max() == 127
    assert np.abs(x.astype(np.float64) - packed.dequantize()).max() <= method.scale * 0.5001 + 2.0**-11 * 100
    assert PerTensorInteger.measured(np.zeros((0, 4), np.float16), 4) == PerTensorInteger(1.0, 4)
    assert PerTensorInteger.measured(np.zeros((3, 4), np.float16)).scale == 1.0


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PerTokenInteger(2), "bits"),
        (lambda: PerTokenInteger(8, "bf16"), "scale"),
        (lambda: PerTensorInteger(0.0), "scale"),
        (lambda: PerTensorInteger(float("nan")), "scale"),
        (lambda: PerTensorInteger(1e39), "scale"),
        (lambda: PerTensorInteger("1"), "scale"),
        (lambda: PerTensorInteger(1.0, 3), "bits"),
        (lambda: PerTensorInteger.measured(np.zeros((1, 1), np.float16), 5), "bits"),
    ],
)
def test_parameters(make, name):
    with pytest.raises(ValueError, match=name):
        make()
