"""MLX's affine quantization of cached keys and values: a scale and a bias for a group of channels of a token."""

from dataclasses import dataclass

import numpy as np

from kernels_ref import half
from kernels_ref.inputs import check_choice
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, rows_of

__all__ = ["MLX"]

#: bits of a code that fill words of 32 bits, and channels of a group
BITS, GROUPS = (2, 4, 8), (32, 64, 128)
_LEAST = np.float32(1e-7)


@inner
def _scale_and_bias(x: np.ndarray, levels: np.float32) -> tuple[np.float32, np.float32]:
    """Scale and bias of a group in float32: the end that is farther from 0 comes back exactly up to their rounding."""
    low, high = x[0], x[0]
    for i in range(x.size):
        low, high = min(low, x[i]), max(high, x[i])
    scale = max(np.float32(np.float32(high - low) / levels), _LEAST)
    is_low = abs(low) > abs(high)
    edge = low if is_low else high
    scale = scale if is_low else -scale
    steps = np.float32(np.rint(np.float32(edge / scale)))  # beyond 2^22 where all are alike
    if steps == np.float32(0):
        return scale, np.float32(0)
    return np.float32(edge / steps), edge


@kernel
def _quantize(
    bits: np.ndarray, group: int, width: int, packed: np.ndarray, scale: np.ndarray, bias: np.ndarray
) -> None:
    """FP16 patterns bits[n, channels] -> codes of `width` bits, lowest first, patterns scale and bias[n, groups]."""
    levels, in_byte = np.float32((1 << width) - 1), 8 // width
    for piece in prange(n_pieces(bits)):
        values = np.empty(bits.shape[1], np.float32)
        for row in rows_of(piece, bits):
            half.widen(bits[row], values)
            packed[row] = 0
            for g in range(scale.shape[1]):
                part = values[g * group : (g + 1) * group]
                step, start = _scale_and_bias(part, levels)
                scale[row, g], bias[row, g] = half.from_f32(half.limited(step)), half.from_f32(start)
                for i in range(group):
                    code = half.rint(np.float32(np.float32(part[i] - start) / step))
                    at = g * group + i
                    code_bits = np.uint8(min(max(code, np.float32(0)), levels))
                    packed[row, at // in_byte] |= np.uint8(code_bits << np.uint8(at % in_byte * width))


@kernel
def _dequantize(
    packed: np.ndarray, scale: np.ndarray, bias: np.ndarray, group: int, width: int, bits: np.ndarray
) -> None:
    """The reverse of `_quantize`."""
    mask, in_byte = np.uint8((1 << width) - 1), 8 // width
    for piece in prange(n_pieces(bits)):
        for row in rows_of(piece, bits):
            for g in range(scale.shape[1]):
                step, start = half.to_f32(scale[row, g]), half.to_f32(bias[row, g])
                for at in range(g * group, (g + 1) * group):
                    code = np.uint8(packed[row, at // in_byte] >> np.uint8(at % in_byte * width)) & mask
                    product = half.rounded(half.limited(np.float32(np.float32(code) * step)))
                    bits[row, at] = half.from_f32(half.limited(np.float32(product + start)))


@dataclass(frozen=True)
class MLX(RowMethod):
    """mlx-lm's `--kv-bits` and `--kv-group-size`: a scale and a bias for `group` channels of a head and token.

    L = 2^bits - 1, s = max((max - min) / L, 1e-7), negative where the maximum is the farther from 0; e that end,
    k = rint(e / s). Of k = 0 the bias is 0, else s = e / k and the bias e. code = clip(rint((x - bias) / s), 0, L) in
    float32; s and bias are kept in FP16, decoded h(h(code * s) + bias). Values beyond 65504 are taken as 65504.

    Buffers: `codes` uint8 [rows, channels * bits / 8], the first channel lowest, as MLX's words of 32 bits; `scale` and
    `bias` float16 [rows, channels / group]. Source: mlx 0.32.4, `quantize` and `dequantize` of its CPU
    backend on FP16.
    """

    bits: int = 8
    group: int = 64

    def __post_init__(self) -> None:
        check_choice("bits", self.bits, BITS)
        check_choice("group", self.group, GROUPS)

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        if channels // n_heads % self.group:
            raise ValueError(f"head_dim = {channels // n_heads}: must be a multiple of group = {self.group}")
        return (
            BufferColumn("codes", dtype=np.uint8, items=channels * self.bits // 8, part="payload"),
            BufferColumn("scale", dtype=np.float16, items=channels // self.group, part="scales"),
            BufferColumn("bias", dtype=np.float16, items=channels // self.group, part="zero_points"),
        )

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        scale, bias = buffers["scale"].view(np.uint16), buffers["bias"].view(np.uint16)
        _quantize(bits, self.group, self.bits, buffers["codes"], scale, bias)

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        scale, bias = buffers["scale"].view(np.uint16), buffers["bias"].view(np.uint16)
        _dequantize(buffers["codes"], scale, bias, self.group, self.bits, bits)
