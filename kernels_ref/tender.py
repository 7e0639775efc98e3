"""Tender's 4-bit KV cache as Oaken's artifact runs it: keys by head and token, values by channel over all tokens."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels_ref import half
from kernels_ref.inputs import KVTensor, check_choice
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packing import ODD_PAD, pack_low_first, unpack_low_first
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, nibbles, rows_of

__all__ = ["Tender"]

_LEVELS = np.float32(7)


@inner
def _code(value: np.float32, scale: np.float32) -> np.uint16:
    """clip(rint(value / scale), -8, 7) as a nibble in two's complement; 0 where the scale is 0."""
    steps = np.float32(value / scale) if scale > np.float32(0) else np.float32(0)
    return np.uint16(np.int32(half.rint(min(max(steps, np.float32(-8)), np.float32(7)))) & 0xF)


@inner
def _value(code: int, scale: np.float32) -> np.float32:
    """code * scale of a nibble as float32, beyond 65504 that value."""
    return half.limited(np.float32(np.float32((np.int32(code) ^ 8) - 8) * scale))


@inner
def _centered(bits: np.ndarray, centre: np.ndarray, into: np.ndarray) -> np.float32:
    """h(x - centre) of a head as float32; returns the largest magnitude."""
    largest = np.float32(0)
    for i in range(bits.size):
        into[i] = half.rounded(np.float32(half.finite(bits[i]) - half.finite(centre[i])))
        largest = max(largest, np.float32(abs(into[i])))
    return largest


@inner
def _encode_key_row(
    bits: np.ndarray, centre: np.ndarray, head_dim: int, values: np.ndarray, codes: np.ndarray, scale: np.ndarray
) -> None:
    for head in range(scale.size):
        start = head * head_dim
        largest = _centered(bits[start : start + head_dim], centre[start : start + head_dim], values)
        scale[head] = half.from_f32(np.float32(largest / _LEVELS))
        step = half.to_f32(scale[head])
        for i in range(head_dim):
            codes[start + i] = _code(values[i], step)


@kernel
def _encode_keys(bits: np.ndarray, centre: np.ndarray, packed: np.ndarray, scale: np.ndarray) -> None:
    """FP16 patterns bits[n, channels], centre[channels] -> packed[n, ceil(channels / 2)], scale[n, heads]."""
    for piece in prange(n_pieces(bits)):
        codes = np.full(2 * packed.shape[1], ODD_PAD, np.uint16)
        values = np.empty(bits.shape[1] // scale.shape[1], np.float32)
        for row in rows_of(piece, bits):
            _encode_key_row(bits[row], centre, values.size, values, codes, scale[row])
            pack_low_first(codes, packed[row])


@inner
def _decode_head(codes: np.ndarray, values: np.ndarray, centre: np.ndarray, bits: np.ndarray) -> None:
    for i in range(bits.size):
        bits[i] = half.from_f32(half.limited(np.float32(values[codes[i]] + centre[i])))


@inner
def _decode_key_row(
    codes: np.ndarray, centre: np.ndarray, head_dim: int, scale: np.ndarray, values: np.ndarray, bits: np.ndarray
) -> None:
    for head in range(scale.size):
        step = half.to_f32(scale[head])
        for code in range(16):
            values[code] = half.rounded(_value(code, step))
        start, stop = head * head_dim, (head + 1) * head_dim
        _decode_head(codes[start:stop], values, centre[start:stop], bits[start:stop])


@kernel
def _decode_keys(packed: np.ndarray, centre: np.ndarray, scale: np.ndarray, bits: np.ndarray) -> None:
    """The reverse of `_encode_keys`, with the centre (float32) added: h(h(code * scale) + centre)."""
    for piece in prange(n_pieces(bits)):
        codes, values = np.empty(2 * packed.shape[1], np.uint16), np.empty(16, np.float32)
        for row in rows_of(piece, bits):
            unpack_low_first(packed[row], codes)
            _decode_key_row(codes, centre, bits.shape[1] // scale.shape[1], scale[row], values, bits[row])


@inner
def _encode_value_row(bits: np.ndarray, scale: np.ndarray, codes: np.ndarray) -> None:
    for i in range(bits.size):
        codes[i] = _code(half.finite(bits[i]), scale[i])


@kernel
def _encode_values(bits: np.ndarray, scale: np.ndarray, packed: np.ndarray) -> None:
    """FP16 patterns bits[n, channels], scale float32[channels] -> packed[n, ceil(channels / 2)]."""
    for piece in prange(n_pieces(bits)):
        codes = np.full(2 * packed.shape[1], ODD_PAD, np.uint16)
        for row in rows_of(piece, bits):
            _encode_value_row(bits[row], scale, codes)
            pack_low_first(codes, packed[row])


@inner
def _decode_value_row(codes: np.ndarray, scale: np.ndarray, bits: np.ndarray) -> None:
    for i in range(bits.size):
        bits[i] = half.from_f32(_value(codes[i], scale[i]))


@kernel
def _decode_values(packed: np.ndarray, scale: np.ndarray, bits: np.ndarray) -> None:
    """The reverse of `_encode_values`."""
    for piece in prange(n_pieces(bits)):
        codes = np.empty(2 * packed.shape[1], np.uint16)
        for row in rows_of(piece, bits):
            unpack_low_first(packed[row], codes)
            _decode_value_row(codes, scale, bits[row])


@inner
def _widen(bits: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    for i in range(bits.size):
        key = half.order(bits[i])
        low[i], high[i] = min(low[i], key), max(high[i], key)


@kernel
def _extent(bits: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Widen the int16 keys low and high [channels] to hold all rows of the FP16 patterns bits[n, channels]."""
    step = 64
    for piece in prange((low.size + step - 1) // step):
        part = slice(piece * step, (piece + 1) * step)
        for row in range(bits.shape[0]):
            _widen(bits[row, part], low[part], high[part])


def _channel_extents(tensor: KVTensor) -> tuple[np.ndarray, np.ndarray]:
    """(minimum, maximum) float32 [batch, channels] over the tokens of every sequence; zeros where there are none."""
    n_batch, _, n_tokens, _ = tensor.array.shape
    low = np.full((n_batch, tensor.n_channels), 0x7FFF if n_tokens else 0, np.int16)
    high = np.full((n_batch, tensor.n_channels), -0x8000 if n_tokens else 0, np.int16)
    for row, bits in tensor.row_blocks():
        _extent(bits, low[row // n_tokens], high[row // n_tokens])
    return half.values_of(low), half.values_of(high)


def _rounded(values: np.ndarray) -> np.ndarray:
    """float32 rounded to FP16, beyond 65504 that value."""
    return np.clip(values, -half.LARGEST_VALUE, half.LARGEST_VALUE).astype(np.float16)


@dataclass(frozen=True)
class Tender(RowMethod):
    """Tender KV4, symmetric, codes clip(rint(fp32(v / S)), -8, 7), decoded as h(code * S).

    Keys (`which` = "key"): v = h(x - C), C = h(h(max + min) / 2) per channel over all tokens of a sequence and head,
    S = h(max |v| / 7) per head and token. C is the same for all tokens of a channel, so attention weights do not depend
    on it and the artifact drops it; here it is stored and added back: h(h(code * S) + C).
    Values: v = x, S = h(max |x| / 7) per channel over all tokens of a sequence.
    Where S is 0 the codes are 0. A sum or decoded value beyond 65504 is taken as 65504.

    All tokens must be there at once: nothing can be appended.

    Buffers (packing defined here, the artifact only simulates): `codes` uint8 [rows, ceil(channels / 2)], element 2i in
    the low nibble, two's complement; keys `scale` float16 [rows, heads] and `centre` float16 [batch, channels]; values
    `scale` float16 [batch, channels].
    Source: Tender (arXiv:2406.12930); artifact casys-kaist/oaken@e0bfbf0, tender/models/modeling_llama_tender_eval.py.
    """

    which: Literal["key", "value"]

    def __post_init__(self) -> None:
        check_choice("which", self.which, ("key", "value"))

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        codes = nibbles("codes", channels)
        if self.which == "value":
            return codes, BufferColumn("scale", dtype=np.float16, items=channels, part="scales", each="sequence")
        centre = BufferColumn("centre", dtype=np.float16, items=channels, part="zero_points", each="sequence")
        return codes, BufferColumn("scale", dtype=np.float16, items=n_heads, part="scales"), centre

    def _once(self, tensor: KVTensor) -> Buffers:
        low, high = _channel_extents(tensor)
        if self.which == "value":
            return {"scale": _rounded(np.maximum(np.abs(low), np.abs(high)) / _LEVELS)}
        return {"centre": _rounded(_rounded(low + high).astype(np.float32) / np.float32(2))}

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        if self.which == "value":
            _encode_values(bits, buffers["scale"].astype(np.float32), buffers["codes"])
        else:
            centre, scale = buffers["centre"].view(np.uint16), buffers["scale"].view(np.uint16)
            _encode_keys(bits, centre, buffers["codes"], scale)

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        if self.which == "value":
            _decode_values(buffers["codes"], buffers["scale"].astype(np.float32), bits)
        else:
            scale = buffers["scale"].view(np.uint16)
            _decode_keys(buffers["codes"], buffers["centre"].astype(np.float32), scale, bits)
