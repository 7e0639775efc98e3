"""Tender's 4-bit KV cache as Oaken's artifact runs it: keys by head and token, values by channel over all tokens."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels_ref import half
from kernels_ref.checks import check_choice, check_count
from kernels_ref.inputs import KVTensor, NonFinite, kv_tensor
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.nibbles import pack_low_first, unpack_low_first
from kernels_ref.packed import Packed
from kernels_ref.rows import Column, decode_rows

_LEVELS = np.float32(7)
_LARGEST = np.float32(65504)
#: adding and subtracting it rounds a float32 below 2^22 to an integer, ties to even
_TO_INTEGER = np.float32(1.5 * 2.0**23)
#: elements of a unit of work
PIECE = 2**14


@inner
def _code(value, scale):
    """clip(rint(value / scale), -8, 7) as a nibble in two's complement; 0 where the scale is 0."""
    steps = (
        min(max(np.float32(value / scale), np.float32(-8)), np.float32(7)) if scale > np.float32(0) else np.float32(0)
    )
    rounded = np.float32(np.float32(steps + _TO_INTEGER) - _TO_INTEGER)
    return np.uint16(np.int32(rounded) & 0xF)


@inner
def _value(code, scale):
    """h(code * scale) as float32, beyond 65504 that value."""
    product = np.float32(np.float32((np.int32(code) ^ 8) - 8) * scale)
    return half.rounded(min(max(product, -_LARGEST), _LARGEST))


@inner
def _centred(bits, centre, into):
    """h(x - centre) of a head as float32; returns the largest magnitude."""
    largest = np.float32(0)
    for i in range(bits.size):
        into[i] = half.rounded(np.float32(half.to_f32(bits[i]) - half.to_f32(centre[i])))
        largest = max(largest, np.float32(abs(into[i])))
    return largest


@inner
def _encode_key_row(bits, centre, head_dim, values, codes, scale):
    for head in range(scale.size):
        start = head * head_dim
        largest = _centred(bits[start : start + head_dim], centre[start : start + head_dim], values)
        scale[head] = half.from_f32(np.float32(largest / _LEVELS))
        step = half.to_f32(scale[head])
        for i in range(head_dim):
            codes[start + i] = _code(values[i], step)


@kernel
def _encode_keys(bits, centre, packed, scale):
    """FP16 patterns bits[n, channels], centre[channels] -> packed[n, ceil(channels / 2)], scale[n, heads]."""
    n_rows, channels = bits.shape
    rows = max(PIECE // channels, 1)
    for piece in prange((n_rows + rows - 1) // rows):
        codes = np.zeros(2 * packed.shape[1], np.uint16)
        values = np.empty(channels // scale.shape[1], np.float32)
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            _encode_key_row(bits[row], centre, values.size, values, codes, scale[row])
            pack_low_first(codes, packed[row])


@inner
def _decode_head(codes, values, centre, bits):
    for i in range(bits.size):
        value = np.float32(values[codes[i]] + centre[i])
        bits[i] = half.from_f32(min(max(value, -_LARGEST), _LARGEST))


@inner
def _decode_key_row(codes, centre, head_dim, scale, values, bits):
    for head in range(scale.size):
        step = half.to_f32(scale[head])
        for code in range(16):
            values[code] = _value(code, step)
        start, stop = head * head_dim, (head + 1) * head_dim
        _decode_head(codes[start:stop], values, centre[start:stop], bits[start:stop])


@kernel
def _decode_keys(packed, centre, scale, bits):
    """The reverse of `_encode_keys`, with the centre (float32) added: h(h(code * scale) + centre)."""
    n_rows, channels = bits.shape
    rows = max(PIECE // channels, 1)
    for piece in prange((n_rows + rows - 1) // rows):
        codes, values = np.empty(2 * packed.shape[1], np.uint16), np.empty(16, np.float32)
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            unpack_low_first(packed[row], codes)
            _decode_key_row(codes, centre, channels // scale.shape[1], scale[row], values, bits[row])


@inner
def _encode_value_row(bits, scale, codes):
    for i in range(bits.size):
        codes[i] = _code(half.to_f32(bits[i]), scale[i])


@kernel
def _encode_values(bits, scale, packed):
    """FP16 patterns bits[n, channels], scale float32[channels] -> packed[n, ceil(channels / 2)]."""
    n_rows, channels = bits.shape
    rows = max(PIECE // channels, 1)
    for piece in prange((n_rows + rows - 1) // rows):
        codes = np.zeros(2 * packed.shape[1], np.uint16)
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            _encode_value_row(bits[row], scale, codes)
            pack_low_first(codes, packed[row])


@inner
def _decode_value_row(codes, scale, bits):
    for i in range(bits.size):
        product = np.float32(np.float32((np.int32(codes[i]) ^ 8) - 8) * scale[i])
        bits[i] = half.from_f32(min(max(product, -_LARGEST), _LARGEST))


@kernel
def _decode_values(packed, scale, bits):
    """The reverse of `_encode_values`."""
    n_rows, channels = bits.shape
    rows = max(PIECE // channels, 1)
    for piece in prange((n_rows + rows - 1) // rows):
        codes = np.empty(2 * packed.shape[1], np.uint16)
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            unpack_low_first(packed[row], codes)
            _decode_value_row(codes, scale, bits[row])


@inner
def _widen(bits, low, high):
    for i in range(bits.size):
        key = half.order(bits[i])
        low[i], high[i] = min(low[i], key), max(high[i], key)


@kernel
def _extent(bits, low, high):
    """Widen the int16 keys low and high [channels] to hold all rows of the FP16 patterns bits[n, channels]."""
    step = 64
    for piece in prange((low.size + step - 1) // step):
        part = slice(piece * step, (piece + 1) * step)
        for row in range(bits.shape[0]):
            _widen(bits[row, part], low[part], high[part])


def _channel_extents(tensor: KVTensor) -> tuple[np.ndarray, np.ndarray]:
    """(minimum, maximum) float32 [batch, channels] over the tokens of every sequence; zeros where there are none."""
    n_batch, n_tokens = tensor.array.shape[0], tensor.array.shape[2]
    low = np.full((n_batch, tensor.n_channels), 0x7FFF, np.int16)
    high = np.full((n_batch, tensor.n_channels), -0x8000, np.int16)
    for row, bits in tensor.row_blocks():
        _extent(bits, low[row // n_tokens], high[row // n_tokens])
    if not n_tokens:
        low[:], high[:] = 0, 0
    values = [(keys ^ ((keys >> 15) & np.int16(half.ABS))).view(np.float16).astype(np.float32) for keys in (low, high)]
    return values[0], values[1]


def _half(values: np.ndarray) -> np.ndarray:
    """float32 rounded to FP16, beyond 65504 that value."""
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float16)


@dataclass(frozen=True)
class Tender:
    """Tender KV4, symmetric, codes clip(rint(fp32(v / S)), -8, 7), decoded as h(code * S).

    Keys (`which` = "key"): v = h(x - C), C = h(h(max + min) / 2) per channel over all tokens of a sequence and head,
    S = h(max |v| / 7) per head and token. C is the same for all tokens of a channel, so attention weights do not depend
    on it and the artifact drops it; here it is stored and added back: h(h(code * S) + C).
    Values: v = x, S = h(max |x| / 7) per channel over all tokens of a sequence.
    Where S is 0 the codes are 0. A sum or decoded value beyond 65504 is taken as 65504.

    All tokens must be there at once: nothing can be appended. `n_heads` of a result is what `quantize` was told.

    Buffers (packing defined here, the artifact only simulates): `codes` uint8 [rows, ceil(channels / 2)], element 2i in
    the low nibble, two's complement; keys `scale` float16 [rows, heads] and `centre` float16 [batch, channels]; values
    `scale` float16 [batch, channels].
    Source: Tender (arXiv:2406.12930); artifact casys-kaist/oaken@e0bfbf0, tender/models/modeling_llama_tender_eval.py.
    """

    which: Literal["key", "value"]
    n_heads: int = 1

    def __post_init__(self) -> None:
        check_choice("which", self.which, ("key", "value"))
        check_count("n_heads", self.n_heads)

    def _columns(self, n_heads: int, channels: int) -> tuple[Column, ...]:
        codes = Column("codes", np.uint8, -(-channels // 2), "payload")
        return (codes, Column("scale", np.float16, n_heads, "scales")) if self.which == "key" else (codes,)

    @property
    def _once(self) -> tuple[str, str]:
        """Name and ledger part of what is stored per sequence and channel."""
        return ("centre", "zero_points") if self.which == "key" else ("scale", "scales")

    def quantize(self, x: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Quantise [tokens, channels] of `n_heads` heads or [batch, heads, tokens, head_dim].

        Raises TypeError and ValueError for what is not such a tensor, and for values that are not finite unless
        `nonfinite` is "replace".
        """
        tensor = kv_tensor(x, n_heads, nonfinite)
        low, high = _channel_extents(tensor)
        if self.which == "key":
            once = _half(_half(low + high).astype(np.float32) / np.float32(2))
        else:
            once = _half(np.maximum(np.abs(low), np.abs(high)) / _LEVELS)
        columns = self._columns(tensor.array.shape[1], tensor.n_channels)
        buffers = {column.name: np.empty((tensor.n_rows, column.items), column.dtype) for column in columns}
        for row, bits in tensor.row_blocks():
            rows, one = slice(row, row + len(bits)), once[row // tensor.array.shape[2]]
            if self.which == "key":
                scale = buffers["scale"][rows].view(np.uint16)
                _encode_keys(bits, one.view(np.uint16), buffers["codes"][rows], scale)
            else:
                _encode_values(bits, one.astype(np.float32), buffers["codes"][rows])
        name, part = self._once
        return Packed(
            Tender(self.which, n_heads),
            x.shape,
            x.size,
            buffers | {name: once},
            {column.name: column.part for column in columns} | {name: part},
            padding_bits=4 * (tensor.n_channels % 2) * tensor.n_rows,
            once_bits=8 * once.nbytes,
        )

    def dequantize(self, packed: Packed) -> np.ndarray:
        """FP16 of the quantised shape."""
        shape = packed.shape
        n_heads = shape[1] if len(shape) == 4 else packed.method.n_heads
        n_batch, n_tokens, channels = (
            (shape[0], shape[2], shape[1] * shape[3]) if len(shape) == 4 else (1, shape[0], shape[1])
        )
        name = self._once[0]
        once, done = packed.buffers.get(name, np.empty(0)), 0
        if once.shape != (n_batch, channels) or once.dtype != np.float16:
            raise ValueError(f"buffer {name}: must be float16 [{n_batch}, {channels}]")

        def decode(buffers: dict[str, np.ndarray], bits: np.ndarray) -> None:
            nonlocal done
            stop = done + len(bits)
            while done < stop:  # a block may hold several sequences
                b = done // n_tokens
                n = min((b + 1) * n_tokens, stop) - done
                at = slice(len(bits) - (stop - done), len(bits) - (stop - done) + n)
                if self.which == "key":
                    scale = buffers["scale"][at].view(np.uint16)
                    _decode_keys(buffers["codes"][at], once[b].astype(np.float32), scale, bits[at])
                else:
                    _decode_values(buffers["codes"][at], once[b].astype(np.float32), bits[at])
                done += n

        return decode_rows(packed, self._columns(n_heads, channels), decode)
