"""Atom's 4-bit KV cache: asymmetric codes per group of channels inside a head, as Oaken's artifact runs it."""

from dataclasses import dataclass

import numpy as np

from kernels_ref import half
from kernels_ref.inputs import check_count
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packing import ODD_PAD, pack_low_first, pick, unpack_low_first
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, nibbles, rows_of

__all__ = ["Atom"]

_LEVELS = np.float32(15)
#: the smallest range, as FP16
_SMALLEST = np.float32(np.float16(1e-5))


@inner
def _scale_and_zero(bits: np.ndarray) -> tuple[np.float32, np.float32]:
    """S = h(max(h(max - min), h(1e-5)) / 15) and z = clip(rint(h(-min / S)), 0, 15) of a group, as float32."""
    low, high = half.extent(bits)
    size = half.rounded(half.limited(np.float32(high - low)))
    scale = half.rounded(np.float32(max(size, _SMALLEST) / _LEVELS))
    return scale, np.float32(half.to_nibble(half.rint(half.rounded(np.float32(-low / scale)))))


@inner
def _codes(bits: np.ndarray, scale: np.float32, zero: np.float32, codes: np.ndarray) -> None:
    """code = clip(rint(h(x / S)) + z, 0, 15)."""
    for i in range(bits.size):
        steps = half.rint(half.rounded(np.float32(half.finite(bits[i]) / scale)))
        codes[i] = half.to_nibble(np.float32(steps + zero))


@inner
def _values(scale: np.float32, zero: np.float32, values: np.ndarray) -> None:
    """h((code - z) * S) of all 16 codes."""
    for code in range(16):
        values[code] = half.from_f32(half.limited(np.float32(np.float32(np.float32(code) - zero) * scale)))


@inner
def _group(g: int, head_dim: int, group: int) -> tuple[int, int]:
    """First channel, and the one after the last, of group g: the last group of a head may be short."""
    a_head = (head_dim + group - 1) // group
    head, number = g // a_head, g % a_head
    return head * head_dim + number * group, head * head_dim + min((number + 1) * group, head_dim)


@kernel
def _quantize(
    bits: np.ndarray, head_dim: int, group: int, packed: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> None:
    """FP16 patterns bits[n, channels] -> packed[n, ceil(channels / 2)], patterns scale and zero[n, groups]."""
    for piece in prange(n_pieces(bits)):
        codes = np.full(2 * packed.shape[1], ODD_PAD, np.uint16)
        for row in rows_of(piece, bits):
            for g in range(scale.shape[1]):
                start, stop = _group(g, head_dim, group)
                part = bits[row, start:stop]
                group_scale, group_zero = _scale_and_zero(part)
                scale[row, g], zero[row, g] = half.from_f32(group_scale), half.from_f32(group_zero)
                _codes(part, group_scale, group_zero, codes[start:stop])
            pack_low_first(codes, packed[row])


@kernel
def _dequantize(
    packed: np.ndarray, scale: np.ndarray, zero: np.ndarray, head_dim: int, group: int, bits: np.ndarray
) -> None:
    """The reverse of `_quantize`."""
    for piece in prange(n_pieces(bits)):
        codes, values = np.empty(2 * packed.shape[1], np.uint16), np.empty(16, np.uint16)
        for row in rows_of(piece, bits):
            unpack_low_first(packed[row], codes)
            for g in range(scale.shape[1]):
                start, stop = _group(g, head_dim, group)
                _values(half.to_f32(scale[row, g]), half.to_f32(zero[row, g]), values)
                pick(codes[start:stop], values, bits[row, start:stop])


@dataclass(frozen=True)
class Atom(RowMethod):
    """Atom KV4: S = h(max(h(max - min), h(1e-5)) / 15), z = clip(rint(h(-min / S)), 0, 15),
    code = clip(rint(h(x / S)) + z, 0, 15), decoded as h((code - z) * S), per `group` channels inside a head.

    As in the artifact the zero point is clipped: a group that does not contain zero loses its offset. A range or
    decoded value beyond 65504 is taken as 65504.

    Buffers (packing defined here, the artifact only simulates): `codes` uint8 [rows, ceil(channels / 2)], element 2i in
    the low nibble; `scale` and `zero` float16 [rows, heads * ceil(head_dim / group)].
    Source: Atom (arXiv:2310.19102); artifact casys-kaist/oaken@e0bfbf0, Atom/model/quant.py.
    """

    group: int = 128

    def __post_init__(self) -> None:
        check_count("group", self.group)

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        n_groups = n_heads * -(-(channels // n_heads) // self.group)
        return (
            nibbles("codes", channels),
            BufferColumn("scale", dtype=np.float16, items=n_groups, part="scales"),
            BufferColumn("zero", dtype=np.float16, items=n_groups, part="zero_points"),
        )

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        scale, zero = buffers["scale"].view(np.uint16), buffers["zero"].view(np.uint16)
        _quantize(bits, bits.shape[1] // n_heads, self.group, buffers["codes"], scale, zero)

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        scale, zero = buffers["scale"].view(np.uint16), buffers["zero"].view(np.uint16)
        _dequantize(buffers["codes"], scale, zero, bits.shape[1] // n_heads, self.group, bits)
