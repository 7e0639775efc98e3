"""QServe's 4-bit KV cache: per head and token as its kernels store it, or per token as Oaken's artifact runs it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels_ref import half
from kernels_ref.inputs import check_choice
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packing import ODD_PAD, pack_low_first, pick, unpack_low_first
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, nibbles, rows_of

__all__ = ["QServe"]

_LEVELS = np.float32(15)


@inner
def _head_scale_and_zero(low: np.float32, high: np.float32) -> tuple[np.float32, np.float32, bool]:
    """S = h((max - min) / 15), Z = h(-15 * min / (max - min)) as float32, and whether the codes count."""
    size = np.float32(high - low)
    scale = half.rounded(np.float32(size / _LEVELS))
    if scale > np.float32(0):
        return scale, half.rounded(np.float32(np.float32(-_LEVELS * low) / size)), True
    return np.float32(1), np.float32(-low), False


@inner
def _head_codes(bits: np.ndarray, scale: np.float32, zero: np.float32, codes: np.ndarray) -> None:
    """code = clip(rint(x * (1 / S) + Z), 0, 15) in float32."""
    reciprocal = np.float32(np.float32(1) / scale)
    for i in range(bits.size):
        codes[i] = half.to_nibble(half.rint(np.float32(np.float32(half.finite(bits[i]) * reciprocal) + zero)))


@inner
def _artifact_scale_and_zero(low: np.float32, high: np.float32) -> tuple[np.float32, np.float32, bool]:
    """q = h(h(1 / h(max - min)) * 15), o = h(min * q) as float32, and whether the codes count."""
    size = half.rounded(half.limited(np.float32(high - low)))
    factor = half.rounded(np.float32(half.rounded(np.float32(np.float32(1) / size)) * _LEVELS))
    if factor <= half.LARGEST_VALUE:  # neither infinite nor NaN
        return factor, half.rounded(np.float32(low * factor)), True
    return np.float32(1), low, False


@inner
def _artifact_codes(bits: np.ndarray, factor: np.float32, offset: np.float32, codes: np.ndarray) -> None:
    """code = clip(rint(h(h(q * x) - o)), 0, 15)."""
    for i in range(bits.size):
        scaled = half.rounded(np.float32(half.finite(bits[i]) * factor))
        codes[i] = half.to_nibble(half.rint(half.rounded(np.float32(scaled - offset))))


@inner
def _quantize_group(bits: np.ndarray, artifact: bool, codes: np.ndarray) -> tuple[np.float32, np.float32]:
    """Codes of a group; (scale, zero) as float32."""
    low, high = half.extent(bits)
    low, high = np.float32(low + np.float32(0)), np.float32(high + np.float32(0))  # -0 becomes +0
    if artifact:
        scale, zero, counts = _artifact_scale_and_zero(low, high)
    else:
        scale, zero, counts = _head_scale_and_zero(low, high)
    if not counts:
        codes[:] = np.uint16(0)
    elif artifact:
        _artifact_codes(bits, scale, zero, codes)
    else:
        _head_codes(bits, scale, zero, codes)
    return scale, zero


@inner
def _values(artifact: bool, scale: np.float32, zero: np.float32, values: np.ndarray) -> None:
    """h((code - Z) * S), or h(h(code + o) / q), of all 16 codes."""
    for code in range(16):
        if artifact:
            value = np.float32(half.rounded(np.float32(np.float32(code) + zero)) / scale)
        else:
            value = np.float32(np.float32(np.float32(code) - zero) * scale)
        values[code] = half.from_f32(half.limited(value))


@kernel
def _quantize(
    bits: np.ndarray, group: int, artifact: bool, packed: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> None:
    """FP16 patterns bits[n, channels] -> packed[n, ceil(channels / 2)], patterns scale and zero[n, groups]."""
    for piece in prange(n_pieces(bits)):
        codes = np.full(2 * packed.shape[1], ODD_PAD, np.uint16)
        for row in rows_of(piece, bits):
            for g in range(scale.shape[1]):
                channels = slice(g * group, (g + 1) * group)
                group_scale, group_zero = _quantize_group(bits[row, channels], artifact, codes[channels])
                scale[row, g], zero[row, g] = half.from_f32(group_scale), half.from_f32(group_zero)
            pack_low_first(codes, packed[row])


@kernel
def _dequantize(
    packed: np.ndarray, scale: np.ndarray, zero: np.ndarray, group: int, artifact: bool, bits: np.ndarray
) -> None:
    """The reverse of `_quantize`."""
    for piece in prange(n_pieces(bits)):
        codes, values = np.empty(2 * packed.shape[1], np.uint16), np.empty(16, np.uint16)
        for row in rows_of(piece, bits):
            unpack_low_first(packed[row], codes)
            for g in range(scale.shape[1]):
                _values(artifact, half.to_f32(scale[row, g]), half.to_f32(zero[row, g]), values)
                channels = slice(g * group, (g + 1) * group)
                pick(codes[channels], values, bits[row, channels])


@inner
def _scale_row(bits: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    for i in range(bits.size):
        out[i] = half.from_f32(half.limited(np.float32(half.to_f32(bits[i]) * factors[i])))


@kernel
def _scale_channels(bits: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    """out[n, channels] = h(bits * factors[channels]), FP16 patterns by float32; beyond 65504 that value."""
    for row in prange(bits.shape[0]):
        _scale_row(bits[row], factors, out[row])


@dataclass(frozen=True)
class QServe(RowMethod):
    """QServe KV4, asymmetric.

    mode "head": per head and token, in float32: S = h((max - min) / 15), Z = h(-15 * min / (max - min)),
    code = clip(rint(x * (1 / S) + Z), 0, 15), decoded as h((code - Z) * S). Where S is zero (a constant head, or a
    range of at most 7 subnormal steps) the codes are 0, S = 1 and Z = -min: every element decodes to the minimum.
    Source: QServe (arXiv:2405.04532), released kernel applyBiasRopeUpdateKVCache.h; its fused GPU instructions may
    round differently.

    mode "artifact": per token over all channels, every step in FP16: q = h(h(1 / h(max - min)) * 15), o = h(min * q),
    code = rint(h(h(q * x) - o)), decoded as h(h(code + o) / q). A token whose q is not finite (range zero or below
    2.3e-4) is NaN in the artifact; here its codes are 0, q = 1 and o = min. Codes that the artifact lets run out of 0
    to 15 are clipped. `smooth`: FP16 factors per channel; keys are multiplied by h(1 / smooth) before and by smooth
    after (SmoothAttention; fixed with the weights, not counted as stored).

    In both modes a range, product or decoded value beyond 65504 is taken as 65504.
    Source: artifact casys-kaist/oaken@e0bfbf0, src/qserve/quantize.py.

    Buffers (packing defined here): `codes` uint8 [rows, ceil(channels / 2)], element 2i in the low nibble; `scale` and
    `zero` (S and Z, or q and o) float16 [rows, heads] or [rows, 1].
    """

    mode: Literal["head", "artifact"] = "head"
    smooth: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("head", "artifact"))
        if self.smooth is None:
            return
        if self.mode == "head":
            raise ValueError("smooth: must be None in mode 'head', where it is folded into the weights")
        factors = np.array(self.smooth, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            exact = factors.astype(np.float16) == factors
        if factors.ndim != 1 or not factors.size or not (exact & np.isfinite(factors) & (factors > 2.0**-15)).all():
            raise ValueError("smooth: must be FP16 numbers above 2^-15, one per channel")

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        self._factors(channels)
        n_groups = n_heads if self.mode == "head" else 1
        return (
            nibbles("codes", channels),
            BufferColumn("scale", dtype=np.float16, items=n_groups, part="scales"),
            BufferColumn("zero", dtype=np.float16, items=n_groups, part="zero_points"),
        )

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        if self.smooth is not None:
            inverse = (np.float16(1) / self._factors(bits.shape[1])).astype(np.float32)
            plain, bits = bits, np.empty_like(bits)
            _scale_channels(plain, inverse, bits)
        scale, zero = buffers["scale"].view(np.uint16), buffers["zero"].view(np.uint16)
        group = bits.shape[1] // scale.shape[1]
        _quantize(bits, group, self.mode == "artifact", buffers["codes"], scale, zero)

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        scale, zero = buffers["scale"].view(np.uint16), buffers["zero"].view(np.uint16)
        group = bits.shape[1] // scale.shape[1]
        _dequantize(buffers["codes"], scale, zero, group, self.mode == "artifact", bits)
        if self.smooth is not None:
            _scale_channels(bits, self._factors(bits.shape[1]).astype(np.float32), bits)

    def _factors(self, channels: int) -> np.ndarray:
        factors = np.array(self.smooth or (), np.float16)
        if self.smooth is not None and factors.size != channels:
            raise ValueError(
                f"smooth has {factors.size} factors: must have one for each of the {channels} channels of x"
            )
        return factors
