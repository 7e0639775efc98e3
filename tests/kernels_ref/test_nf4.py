"""NQKV's NF4: a plain twin, every FP16 pattern, every absmax."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

import naive_rows
from bits import same_bits
from cases import each
from kernels_ref import half
from kernels_ref.nf4 import CODEBOOK, MIDPOINTS, NF4, decoded, thresholds
from kernels_ref.packed import Packed
from row_cases import cases, normal

finite = st.floats(-65504, 65504, width=16)


@each(
    ("channels", "block"),
    [(256, 256), (256, 64), (130, 64), (131, 64), (97, 128), (33, 1), (33, 7), (1, 256), (20, 3), (64, 5)],
)
def test_twin(channels, block):
    for name, x in cases(channels).items():
        codes, absmax, decoded_values = naive_rows.nf4(x, block)
        for storage in ("fp16", "fp32"):
            packed = NF4(block, storage).quantize(x)
            assert same_bits(packed.buffers["codes"], naive_rows.nibbles(codes, True, 7)), name
            want = absmax.astype({"fp16": np.float16, "fp32": np.float32}[storage])
            assert same_bits(packed.buffers["absmax"], want), name
            assert same_bits(packed.dequantize(), decoded_values), name


def test_long_rows_are_done_in_pieces():
    for block in (256, 255, 20000):
        x = normal(2, 100_003)
        codes, absmax, decoded_values = naive_rows.nf4(x, block)
        packed = NF4(block).quantize(x)
        assert same_bits(packed.buffers["codes"], naive_rows.nibbles(codes, True, 7))
        assert same_bits(packed.buffers["absmax"], absmax)
        assert same_bits(packed.dequantize(), decoded_values)


def value_of(key):
    """The float32 value of a pattern given by its place in the order of values (-0 is -1)."""
    key = np.asarray(key, np.int64)
    return np.where(key >= 0, key, 0x8000 | (-1 - key)).astype(np.uint16).view(np.float16).astype(np.float32)


def test_thresholds_are_exact_for_every_absmax():
    """The rule in float32 never falls as x grows: right at a threshold and just below it is right everywhere."""
    absmax = np.arange(half.INFINITY, dtype=np.uint16).view(np.float16).astype(np.float32)[:, None]
    found = thresholds()[: half.INFINITY, :15].astype(np.int64)
    divisor = np.maximum(absmax, np.float32(1e-38))
    with np.errstate(over="ignore"):
        for scaled in (lambda x: x * (np.float32(1) / divisor), lambda x: x / divisor):  # full and short last blocks
            assert (scaled(value_of(found)) > MIDPOINTS).all()
            assert not (scaled(value_of(found - 1)) > MIDPOINTS).any()


@pytest.mark.parametrize("seed", range(4))
def test_every_pattern(seed):
    rng = np.random.default_rng(seed)
    some = [*rng.integers(1, 0x7C00, 8), *rng.integers(1, 0x400, 3), [1, 0x400, 0x3FF, 0x7BFF][seed]]
    for absmax in np.array(some, np.uint16):
        magnitude = np.arange(absmax + 1, dtype=np.uint16)
        x = np.concatenate([magnitude, magnitude | half.SIGN]).view(np.float16)
        want = naive_rows.nf4_codes(x, np.float16(x[absmax]))
        packed = NF4(x.size).quantize(x)
        assert same_bits(packed.buffers["codes"], naive_rows.nibbles([want], True, 7))
        assert packed.buffers["absmax"].view(np.uint16)[0, 0] == absmax


def test_every_code_with_every_absmax():
    absmax = np.arange(2**15, dtype=np.uint16).view(np.float16)[:, None]
    codes = np.tile(naive_rows.nibbles([range(16)], True, 7), (2**15, 1))
    parts = {"codes": "payload", "absmax": "scales"}
    packed = Packed(NF4(16), (2**15, 16), 2**19, {"codes": codes, "absmax": absmax}, parts)
    with np.errstate(invalid="ignore"):
        want = (CODEBOOK * absmax.astype(np.float32)).astype(np.float16)
    assert same_bits(packed.dequantize(), want)
    assert same_bits(decoded().view(np.float16), want)


@given(st_np.arrays(np.float16, st.tuples(st.integers(1, 5), st.integers(1, 40)), elements=finite), st.integers(1, 45))
def test_error_order_and_repetition(x, block):
    packed = NF4(block).quantize(x)
    y = packed.dequantize()
    absmax = np.repeat(packed.buffers["absmax"].astype(np.float64), block, axis=1)[:, : x.shape[1]]
    # half the widest gap of the codebook, then one rounding of the product to FP16
    bound = absmax * (float(np.diff(CODEBOOK).max()) / 2 * (1 + 2.0**-20) + 2.0**-11) + 2.0**-25
    assert (np.abs(x.astype(np.float64) - y) <= bound).all()
    again = NF4(block).quantize(y)
    assert all(same_bits(buffer, again.buffers[name]) for name, buffer in packed.buffers.items())
    for start in range(0, x.shape[1], block):
        for row, seen in zip(x[:, start : start + block], y[:, start : start + block], strict=True):
            assert (np.diff(seen[np.argsort(row, kind="stable")].astype(np.float64)) >= 0).all()


@given(st_np.arrays(np.float16, (2, 30), elements=st.floats(-8, 8, width=16)), st.integers(0, 12))
def test_scaling_by_a_power_of_two(x, k):
    x = np.where(np.abs(x) < 2**-10, np.float16(0), x)
    one, other = NF4(16).quantize(x), NF4(16).quantize(x * np.float16(2**k))
    assert same_bits(one.buffers["codes"], other.buffers["codes"])


def test_zero_blocks():
    packed = NF4(4).quantize(np.zeros((1, 7), np.float16))
    assert packed.buffers["codes"].tolist() == [[0x77] * 4]
    assert packed.buffers["absmax"].view(np.uint16).tolist() == [[0, 0]]
    assert packed.dequantize().view(np.uint16).tolist() == [[0] * 7]


@pytest.mark.parametrize("bad", [{"block": 0}, {"block": -1}, {"block": 2.0}, {"block": True}, {"absmax": "bf16"}])
def test_parameters(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        NF4(**bad)
