"""Integer caches: INT8 and INT4 with one absmax per token vector, or with one fixed scale per tensor."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from kernels_ref import half
from kernels_ref.formats import FORMATS
from kernels_ref.inputs import NonFinite, check_choice, check_scale, row_tensor
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packing import ODD_PAD, look_up, pack_low_first, pick, unpack_low_first
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, nibbles, rows_of

__all__ = ["PerTensorInteger", "PerTokenInteger"]


@inner
def _integer(bits: np.uint16, reciprocal: np.float32) -> np.uint32:
    """rint(fp32(x * reciprocal)) as the bits of a two's complement integer, for finite x."""
    return np.float32(np.float32(half.finite(bits) * reciprocal) + half.TO_INTEGER).view(np.uint32)


@inner
def _to_bytes(bits: np.ndarray, reciprocal: np.float32, codes: np.ndarray) -> None:
    for i in range(codes.size):
        codes[i] = np.int8(_integer(bits[i], reciprocal))


@inner
def _to_nibbles(bits: np.ndarray, reciprocal: np.float32, codes: np.ndarray) -> None:
    for i in range(bits.size):
        codes[i] = np.uint16(_integer(bits[i], reciprocal) & np.uint32(0xF))


@inner
def _from_bytes(codes: np.ndarray, absmax: np.float32, inverse: np.float32, bits: np.ndarray) -> None:
    for i in range(bits.size):
        bits[i] = half.from_f32(np.float32(np.float32(np.float32(codes[i]) * absmax) * inverse))


@inner
def _reciprocal(absmax: np.uint16, levels: np.float32) -> np.float32:
    """fp32(levels / absmax) of a pattern; 0 where all is zero."""
    return np.float32(levels / half.to_f32(absmax)) if absmax else np.float32(0)


@kernel
def _quantize_bytes(bits: np.ndarray, levels: np.float32, codes: np.ndarray, absmax: np.ndarray) -> None:
    """FP16 patterns bits[n, channels] -> codes int8[n, channels], patterns absmax[n]; levels float32, 127."""
    for piece in prange(n_pieces(bits)):
        for row in rows_of(piece, bits):
            absmax[row] = half.absmax(bits[row])
            _to_bytes(bits[row], _reciprocal(absmax[row], levels), codes[row])


@kernel
def _dequantize_bytes(codes: np.ndarray, absmax: np.ndarray, inverse: np.float32, bits: np.ndarray) -> None:
    """The reverse of `_quantize_bytes`: absmax float32[n], inverse float32(1 / 127)."""
    for piece in prange(n_pieces(bits)):
        for row in rows_of(piece, bits):
            _from_bytes(codes[row], absmax[row], inverse, bits[row])


@kernel
def _quantize_nibbles(bits: np.ndarray, levels: np.float32, packed: np.ndarray, absmax: np.ndarray) -> None:
    """FP16 patterns bits[n, channels] -> packed[n, ceil(channels / 2)], patterns absmax[n]; levels float32, 7."""
    for piece in prange(n_pieces(bits)):
        codes = np.full(2 * packed.shape[1], ODD_PAD, np.uint16)
        for row in rows_of(piece, bits):
            absmax[row] = half.absmax(bits[row])
            _to_nibbles(bits[row], _reciprocal(absmax[row], levels), codes)
            pack_low_first(codes, packed[row])


@kernel
def _dequantize_nibbles(packed: np.ndarray, absmax: np.ndarray, inverse: np.float32, bits: np.ndarray) -> None:
    """The reverse of `_quantize_nibbles`: absmax float32[n], inverse float32(1 / 7)."""
    for piece in prange(n_pieces(bits)):
        codes = np.empty(2 * packed.shape[1], np.uint16)
        values = np.empty(16, np.uint16)
        for row in rows_of(piece, bits):
            for code in range(16):
                signed = np.float32((code ^ 8) - 8)
                values[code] = half.from_f32(np.float32(np.float32(signed * absmax[row]) * inverse))
            unpack_low_first(packed[row], codes)
            pick(codes[: bits.shape[1]], values, bits[row])


def _codes(bits: int, channels: int) -> BufferColumn:
    return (
        BufferColumn("codes", dtype=np.int8, items=channels, part="payload")
        if bits == 8
        else nibbles("codes", channels)
    )


@dataclass(frozen=True)
class PerTokenInteger(RowMethod):
    """INT8 or INT4 with one absmax per token vector, all heads concatenated.

    levels = 127 or 7: code = rint(fp32(x * fp32(levels / absmax))), ties to even; decoded as
    fp32(fp32(code * absmax) * fp32(1 / levels)) in FP16. A row of zeros has codes 0 and absmax 0.
    `scale` is the format in which the absmax is stored: FP16 holds it exactly, bitsandbytes stores FP32.

    Buffers: `codes` int8 [rows, channels], or uint8 [rows, ceil(channels / 2)] of two's complement nibbles, element 2i
    in the low one, an odd row padded with ODD_PAD; `absmax` float32 or float16 [rows, 1]. Source: bitsandbytes 0.50.2,
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

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        dtype = {16: np.float16, 32: np.float32}[FORMATS[self.scale].bits]
        return _codes(self.bits, channels), BufferColumn("absmax", dtype=dtype, items=1, part="scales")

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        patterns = np.empty(len(bits), np.uint16)
        kernel_of_bits = _quantize_bytes if self.bits == 8 else _quantize_nibbles
        kernel_of_bits(bits, self.levels, buffers["codes"], patterns)
        buffers["absmax"][:, 0] = patterns.view(np.float16)

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        absmax = buffers["absmax"][:, 0].astype(np.float32)
        kernel_of_bits = _dequantize_bytes if self.bits == 8 else _dequantize_nibbles
        kernel_of_bits(buffers["codes"], absmax, np.float32(1) / self.levels, bits)


@cache
def _encode_table(bits: int, scale: float) -> np.ndarray:
    """int8 [65536], or uint16 of nibbles: code of every FP16 pattern that is finite."""
    levels = np.float32(FORMATS[f"int{bits}"].largest)
    with np.errstate(over="ignore", invalid="ignore"):
        codes = np.clip(np.rint(half.all_patterns().astype(np.float32) / np.float32(scale)), -levels, levels)
    table = np.nan_to_num(codes).astype(np.int8)
    return table if bits == 8 else table.view(np.uint8).astype(np.uint16) & np.uint16(0xF)


@cache
def _decode_table(bits: int, scale: float) -> np.ndarray:
    """uint16 [256] or [16]: FP16 pattern of every code, by the code's bits."""
    codes = np.arange(2**bits)
    signed = (codes ^ 2 ** (bits - 1)) - 2 ** (bits - 1)
    with np.errstate(over="ignore"):
        return (signed.astype(np.float32) * np.float32(scale)).astype(np.float16).view(np.uint16)


@kernel
def _look_up_nibbles(bits: np.ndarray, table: np.ndarray, packed: np.ndarray) -> None:
    """FP16 patterns bits[n, channels] -> packed[n, ceil(channels / 2)], the code of a pattern from the table."""
    for piece in prange(n_pieces(bits)):
        codes = np.full(2 * packed.shape[1], ODD_PAD, np.uint16)
        for row in rows_of(piece, bits):
            pick(bits[row], table, codes)
            pack_low_first(codes, packed[row])


@kernel
def _look_up_values(packed: np.ndarray, table: np.ndarray, bits: np.ndarray) -> None:
    """The reverse of `_look_up_nibbles`, with a value from the table for every code."""
    for piece in prange(n_pieces(bits)):
        codes = np.empty(2 * packed.shape[1], np.uint16)
        for row in rows_of(piece, bits):
            unpack_low_first(packed[row], codes)
            pick(codes[: bits.shape[1]], table, bits[row])


@dataclass(frozen=True)
class PerTensorInteger(RowMethod):
    """INT8 or INT4 with one `scale` per tensor, fixed with the weights and not counted as stored (SmoothQuant).

    levels = 127 or 7: code = clip(rint(fp32(x / scale)), -levels, levels), ties to even; decoded as fp32(code * scale)
    in FP16. `measured` takes the scale from a tensor.

    Buffer: `codes` int8 [rows, channels], or uint8 [rows, ceil(channels / 2)] of two's complement nibbles, element 2i
    in the low one, an odd row padded with ODD_PAD. Source: SmoothQuant (arXiv:2211.10438), static per-tensor
    activations.
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
        """With scale = fp32(max |x| / levels), 1 for a tensor of zeros. Errors as those of `quantize`.

        x: The tensor that gives the scale, as `quantize` takes it.
        bits: Bits of a code, 8 or 4.
        n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
        nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.
        """
        check_choice("bits", bits, (4, 8))
        tensor = row_tensor(x, n_heads, nonfinite)
        largest = max((int((part & half.ABS).max()) for _, part in tensor.row_blocks()), default=0)
        absmax = np.float32(np.uint16(largest).view(np.float16))
        return cls(float(absmax / np.float32(FORMATS[f"int{bits}"].largest)) if largest else 1.0, bits)

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        return (_codes(self.bits, channels),)

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        table, codes = _encode_table(self.bits, float(self.scale)), buffers["codes"]
        if self.bits == 8:
            look_up(bits.reshape(-1), table, codes.reshape(-1))
        else:
            _look_up_nibbles(bits, table, codes)

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        table, codes = _decode_table(self.bits, float(self.scale)), buffers["codes"]
        if self.bits == 8:
            look_up(codes.view(np.uint8).reshape(-1), table, bits.reshape(-1))
        else:
            _look_up_values(codes, table, bits)
