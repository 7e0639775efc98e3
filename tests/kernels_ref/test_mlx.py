"""MLX's affine quantization: arrays that mlx 0.32.4 made, a plain twin, the error bound, refusals."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from bits import same_bits
from dse import quantizers
from dse.core.errors import InputError
from kernels_ref.mlx import BITS, GROUPS, MLX
from row_cases import cases, normal

F32 = np.float32
#: `mx.quantize` and `mx.dequantize` of the CPU backend on FP16: x, and codes, scale, bias, seen by bits and group
MADE = np.load(Path(__file__).parent / "mlx_0.32.4.npz")
every_setting = pytest.mark.parametrize(("bits", "group"), [(bits, group) for bits in BITS for group in GROUPS])


@every_setting
def test_what_mlx_made(bits, group):
    packed = MLX(bits, group).quantize(MADE["x"], n_heads=1)
    for name in ("codes", "scale", "bias"):
        assert same_bits(packed.buffers[name], MADE[f"{bits}.{group}.{name}"]), name
    seen = MADE[f"{bits}.{group}.seen"]
    is_finite = np.isfinite(seen)  # steps to 65504 that FP16 rounds beyond it
    assert same_bits(packed.dequantize()[is_finite], seen[is_finite])
    assert is_finite.mean() > 0.96


def twin(x, bits, group):
    """Codes, scale and bias of x [rows, channels], a group at a time."""
    levels, codes, scales, biases = F32(2**bits - 1), [], [], []
    for part in x.astype(F32).reshape(-1, group):
        low, high = part.min(), part.max()
        is_low = abs(low) > abs(high)
        scale, edge = max((high - low) / levels, F32(1e-7)), low if is_low else high
        scale, bias = scale if is_low else -scale, F32(0)
        if steps := np.rint(edge / scale):
            scale, bias = edge / steps, edge
        codes += np.rint((part - bias) / scale).clip(0, levels).astype(np.uint8).tolist()
        scales.append(scale)
        biases.append(bias)
    by_row = (len(x), -1)
    found = np.float16(np.clip(scales, -65504, 65504)), np.float16(biases)
    return np.array(codes).reshape(x.shape), *(one.reshape(by_row) for one in found)


@every_setting
def test_twin(bits, group):
    for case, x in cases(2 * group).items():
        packed = MLX(bits, group).quantize(x, n_heads=2)
        codes, scale, bias = twin(x, bits, group)
        bytes_of = sum(codes[:, i :: 8 // bits] << i * bits for i in range(8 // bits)).astype(np.uint8)
        for name, expected in (("codes", bytes_of), ("scale", scale), ("bias", bias)):
            assert same_bits(packed.buffers[name], expected), (case, name)


@given(x=st_np.arrays(np.float16, (2, 64), elements=st.floats(-30000, 30000, width=16)), bits=st.sampled_from(BITS))
def test_an_element_errs_by_a_step_at_most(x, bits):
    """Half a step, where the far end is a whole number of them; else the near end may be clipped by a step."""
    packed = MLX(bits).quantize(x)
    exact, seen = x.astype(np.float64), packed.dequantize().astype(np.float64)
    step = np.abs(packed.buffers["scale"].astype(np.float64))
    rounding = 2**bits * (step * 2**-10 + 2**-24) + np.abs(exact).max(axis=1, keepdims=True) * 2**-9 + 2**-23
    even = (exact.max(axis=1, keepdims=True) - exact.min(axis=1, keepdims=True)) / (2**bits - 1)
    assert (np.abs(seen - exact) <= np.maximum(step, even) + rounding).all()


def test_bits_by_hand():
    """A scale and a bias of 16 bits for 64 channels."""
    shape = quantizers.TensorShape("key", 8, 128)
    for text, bits in (("mlx:bits=4", 4.5), ("mlx", 8.5), ("mlx:bits=2,group=32", 3.0), ("mlx:bits=4,group=128", 4.25)):
        assert quantizers.parse(text).layout(shape).effective_bits == bits


def test_what_is_refused():
    with pytest.raises(ValueError, match="bits = 3: must be one of 2, 4, 8"):
        MLX(3)
    with pytest.raises(ValueError, match="group = 16: must be one of 32, 64, 128"):
        MLX(4, 16)
    with pytest.raises(ValueError, match="head_dim = 96: must be a multiple of group = 64"):
        MLX().quantize(normal(2, 96))
    with pytest.raises(InputError, match=r"^quantizer = mlx: head_dim = 80: must be a multiple of group = 64"):
        quantizers.parse("mlx:bits=4").layout(quantizers.TensorShape("key", 4, 80))
