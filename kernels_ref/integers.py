"""Integer caches: INT8 and INT4 with one absmax per token vector, or with one fixed scale per tensor."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from kernels_ref import half
from kernels_ref.checks import check_choice, check_scale
from kernels_ref.formats import FORMATS
from kernels_ref.inputs import NonFinite
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.lookup import all_values, look_up
from kernels_ref.nibbles import pack_low_first, unpack_low_first
from kernels_ref.packed import Packed
from kernels_ref.rows import (
    Buffers,
    Column,
    channels_of,
    checked_tensor,
    decode_rows,
    encode_rows,
)

#: elements of a unit of work: several rows where they are short
PIECE = 2**14

#: adding it to a float32 below 2^22 rounds to an integer, ties to even, and leaves that in the low bits of the pattern
_TO_INTEGER = np.float32(1.5 * 2.0**23)
_UP = np.float32(2.0**112)  # as in half.to_f32


@inner
def _integer(bits, reciprocal):
    """rint(fp32(x * reciprocal)) as the bits of a two's complement integer, for finite x."""
    magnitude = np.uint32(np.uint32(bits & half.ABS) << np.uint32(13)).view(np.float32)
    scaled = np.float32(np.float32(magnitude * _UP) * reciprocal)
    signed = -scaled if bits & half.SIGN else scaled
    return np.float32(signed + _TO_INTEGER).view(np.uint32)


@inner
def _to_bytes(bits, reciprocal, codes):
    for i in range(codes.size):
        codes[i] = np.int8(_integer(bits[i], reciprocal))


@inner
def _to_nibbles(bits, reciprocal, codes):
    for i in range(bits.size):
        codes[i] = np.uint16(_integer(bits[i], reciprocal) & np.uint32(0xF))


@inner
def _from_bytes(codes, absmax, inverse, bits):
    for i in range(bits.size):
        bits[i] = half.from_f32(np.float32(np.float32(np.float32(codes[i]) * absmax) * inverse))


@inner
def _from_nibbles(codes, values, bits):
    for i in range(bits.size):
        bits[i] = values[codes[i]]


@inner
def _rows_a_piece(channels):
    return max(PIECE // channels, 1)


@kernel
def _quantize_bytes(bits, levels, codes, absmax):
    """FP16 patterns bits[n, channels] -> codes int8[n, channels], patterns absmax[n]; levels float32, 127."""
    n_rows, channels = bits.shape
    rows = _rows_a_piece(channels)
    for piece in prange((n_rows + rows - 1) // rows):
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            absmax[row] = half.absmax(bits[row])
            largest = half.to_f32(absmax[row])
            reciprocal = np.float32(levels / largest) if absmax[row] else np.float32(0)
            _to_bytes(bits[row], reciprocal, codes[row])


@kernel
def _quantize_nibbles(bits, levels, packed, absmax):
    """FP16 patterns bits[n, channels] -> packed[n, ceil(channels / 2)], patterns absmax[n]; levels float32, 7."""
    n_rows, channels = bits.shape
    rows = _rows_a_piece(channels)
    for piece in prange((n_rows + rows - 1) // rows):
        codes = np.zeros(2 * packed.shape[1], np.uint16)  # an odd row ends with a zero
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            absmax[row] = half.absmax(bits[row])
            largest = half.to_f32(absmax[row])
            reciprocal = np.float32(levels / largest) if absmax[row] else np.float32(0)
            _to_nibbles(bits[row], reciprocal, codes)
            pack_low_first(codes, packed[row])


@kernel
def _dequantize_bytes(codes, absmax, inverse, bits):
    """The reverse of `_quantize_bytes`: absmax float32[n], inverse float32(1 / 127)."""
    n_rows, channels = bits.shape
    rows = _rows_a_piece(channels)
    for piece in prange((n_rows + rows - 1) // rows):
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            _from_bytes(codes[row], absmax[row], inverse, bits[row])


@kernel
def _dequantize_nibbles(packed, absmax, inverse, bits):
    """The reverse of `_quantize_nibbles`: absmax float32[n], inverse float32(1 / 7)."""
    n_rows, channels = bits.shape
    rows = _rows_a_piece(channels)
    for piece in prange((n_rows + rows - 1) // rows):
        codes = np.empty(2 * packed.shape[1], np.uint16)
        values = np.empty(16, np.uint16)
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            for code in range(16):
                signed = np.float32((code ^ 8) - 8)
                values[code] = half.from_f32(np.float32(np.float32(signed * absmax[row]) * inverse))
            unpack_low_first(packed[row], codes)
            _from_nibbles(codes, values, bits[row])


def _columns(bits: int, channels: int) -> tuple[Column, ...]:
    if bits == 8:
        return (Column("codes", np.int8, channels, "payload"),)
    return (Column("codes", np.uint8, -(-channels // 2), "payload"),)


@dataclass(frozen=True)
class PerTokenInteger:
    """INT8 or INT4 with one absmax per token vector, all heads concatenated.

    levels = 127 or 7: code = rint(fp32(x * fp32(levels / absmax))), ties to even; decoded as
    fp32(fp32(code * absmax) * fp32(1 / levels)) in FP16. A row of zeros has codes 0 and absmax 0.
    `scale` is the format in which the absmax is stored: FP16 holds it exactly, bitsandbytes stores FP32.

    Buffers: `codes` int8 [rows, channels], or uint8 [rows, ceil(channels / 2)] of two's complement nibbles, element 2i
    in the low one, an odd row padded with 0; `absmax` float32 or float16 [rows, 1]. Source: bitsandbytes 0.50.2,
    int8_vectorwise_quant; INT4: the same rule, packing defined here.
    """

    bits: Literal[8, 4] = 8
    scale: Literal["fp16", "fp32"] = "fp32"

    def __post_init__(self) -> None:
        check_choice("bits", self.bits, (4, 8))
        check_choice("scale", self.scale, ("fp16", "fp32"))

    @property
    def levels(self) -> np.float32:
        """The largest code: 127 or 7."""
        return np.float32(FORMATS[f"int{self.bits}"].largest)

    def _columns(self, shape: tuple[int, ...]) -> tuple[Column, ...]:
        dtype = {16: np.float16, 32: np.float32}[FORMATS[self.scale].bits]
        return (*_columns(self.bits, channels_of(shape)), Column("absmax", dtype, 1, "scales"))

    def quantize(self, x: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Quantise [tokens, channels], [batch, heads, tokens, head_dim] or [n] as one row; heads are of no consequence.

        Raises TypeError and ValueError for what is not such a tensor, and for values that are not finite unless
        `nonfinite` is "replace".
        """
        padding = 4 * (channels_of(np.shape(x)) % 2) if self.bits == 4 else 0
        columns = self._columns(np.shape(x))
        return encode_rows(self, x, columns, self._encode, n_heads=n_heads, nonfinite=nonfinite, padding_bits=padding)

    def _encode(self, bits: np.ndarray, buffers: Buffers) -> None:
        patterns = np.empty(len(bits), np.uint16)
        kernel_of_bits = _quantize_bytes if self.bits == 8 else _quantize_nibbles
        kernel_of_bits(bits, self.levels, buffers["codes"], patterns)
        buffers["absmax"][:, 0] = patterns.view(np.float16)

    def dequantize(self, packed: Packed) -> np.ndarray:
        """FP16 of the quantised shape."""
        return decode_rows(packed, self._columns(packed.shape), self._decode)

    def _decode(self, buffers: Buffers, bits: np.ndarray) -> None:
        absmax = buffers["absmax"][:, 0].astype(np.float32)
        kernel_of_bits = _dequantize_bytes if self.bits == 8 else _dequantize_nibbles
        kernel_of_bits(buffers["codes"], absmax, np.float32(1) / self.levels, bits)


@cache
def _encode_table(bits: int, scale: float) -> np.ndarray:
    """int8 [65536]: code of every FP16 pattern that is finite."""
    levels = np.float32(FORMATS[f"int{bits}"].largest)
    with np.errstate(over="ignore", invalid="ignore"):
        codes = np.clip(np.rint(all_values() / np.float32(scale)), -levels, levels)
    return np.nan_to_num(codes).astype(np.int8)


@cache
def _decode_table(bits: int, scale: float) -> np.ndarray:
    """uint16 [256] or [16]: FP16 pattern of every code, by the code's bits."""
    codes = np.arange(2**bits)
    signed = (codes ^ 2 ** (bits - 1)) - 2 ** (bits - 1)
    with np.errstate(over="ignore"):
        return (signed.astype(np.float32) * np.float32(scale)).astype(np.float16).view(np.uint16)


@kernel
def _pack_rows(codes, packed):
    """int8 codes[n, channels] -> packed[n, ceil(channels / 2)], low nibble first."""
    n_rows, channels = codes.shape
    rows = _rows_a_piece(channels)
    for piece in prange((n_rows + rows - 1) // rows):
        wide = np.zeros(2 * packed.shape[1], np.uint16)
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            _widen(codes[row], wide)
            pack_low_first(wide, packed[row])


@inner
def _widen(codes, wide):
    for i in range(codes.size):
        wide[i] = np.uint16(codes[i]) & np.uint16(0xF)


@kernel
def _unpack_rows(packed, table, bits):
    """The reverse of `_pack_rows`, with a value from the table for every code."""
    n_rows, channels = bits.shape
    rows = _rows_a_piece(channels)
    for piece in prange((n_rows + rows - 1) // rows):
        codes = np.empty(2 * packed.shape[1], np.uint16)
        for row in range(piece * rows, min((piece + 1) * rows, n_rows)):
            unpack_low_first(packed[row], codes)
            _from_nibbles(codes, table, bits[row])


@dataclass(frozen=True)
class PerTensorInteger:
    """INT8 or INT4 with one `scale` per tensor, fixed with the weights and not counted as stored (SmoothQuant).

    levels = 127 or 7: code = clip(rint(fp32(x / scale)), -levels, levels), ties to even; decoded as fp32(code * scale)
    in FP16. `measured` takes the scale from a tensor.

    Buffer: `codes` int8 [rows, channels], or uint8 [rows, ceil(channels / 2)] of two's complement nibbles, element 2i
    in the low one, an odd row padded with 0. Source: SmoothQuant (arXiv:2211.10438), static per-tensor activations.
    """

    scale: float
    bits: Literal[8, 4] = 8

    def __post_init__(self) -> None:
        check_scale("scale", self.scale)
        check_choice("bits", self.bits, (4, 8))

    @classmethod
    def measured(
        cls, x: np.ndarray, bits: Literal[8, 4] = 8, n_heads: int = 1, nonfinite: NonFinite = "raise"
    ) -> "PerTensorInteger":
        """With scale = fp32(max |x| / levels), 1 for a tensor of zeros. Errors as those of `quantize`."""
        check_choice("bits", bits, (4, 8))
        tensor, _ = checked_tensor(x, n_heads, nonfinite)
        largest = max((int((part & half.ABS).max()) for _, part in tensor.row_blocks()), default=0)
        absmax = np.float32(np.uint16(largest).view(np.float16))
        return cls(float(absmax / np.float32(FORMATS[f"int{bits}"].largest)) if largest else 1.0, bits)

    def quantize(self, x: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Quantise [tokens, channels], [batch, heads, tokens, head_dim] or [n]; heads are of no consequence.

        Raises TypeError and ValueError for what is not such a tensor, and for values that are not finite unless
        `nonfinite` is "replace".
        """
        channels = channels_of(np.shape(x))
        padding = 4 * (channels % 2) if self.bits == 4 else 0
        columns = _columns(self.bits, channels)
        return encode_rows(self, x, columns, self._encode, n_heads=n_heads, nonfinite=nonfinite, padding_bits=padding)

    def _encode(self, bits: np.ndarray, buffers: Buffers) -> None:
        codes = buffers["codes"] if self.bits == 8 else np.empty(bits.shape, np.int8)
        look_up(bits.reshape(-1), _encode_table(self.bits, float(self.scale)), codes.reshape(-1))
        if self.bits == 4:
            _pack_rows(codes, buffers["codes"])

    def dequantize(self, packed: Packed) -> np.ndarray:
        """FP16 of the quantised shape."""
        return decode_rows(packed, _columns(self.bits, channels_of(packed.shape)), self._decode)

    def _decode(self, buffers: Buffers, bits: np.ndarray) -> None:
        table = _decode_table(self.bits, float(self.scale))
        if self.bits == 8:
            look_up(buffers["codes"].view(np.uint8).reshape(-1), table, bits.reshape(-1))
        else:
            _unpack_rows(buffers["codes"], table, bits)
