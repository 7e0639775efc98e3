"""vLLM's caches with one scale per token and head: int8_per_token_head, fp8_per_token_head, int4_per_token_head.

`PerTokenHead` works on FP16 and on buffers by ledger part; its `slots` are vLLM's own bytes.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from kernels_ref import half, minifloat
from kernels_ref.fp8 import decode_table
from kernels_ref.hadamard import TILE, narrowed, saturated, saturated_value, transform, transposed
from kernels_ref.inputs import check_choice
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packed import Packed
from kernels_ref.packing import pick
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, rows_of

__all__ = ["PerTokenHead"]

Format = Literal["int8", "fp8", "int4"]
FORMATS: tuple[Format, ...] = ("int8", "fp8", "int4")
#: format -> largest code (int4: number of steps), what head_dim must be a multiple of
_LARGEST = {"int8": 127.0, "fp8": 448.0, "int4": 15.0}
_MULTIPLE = {"int8": 4, "fp8": 4, "int4": 8}
#: the smallest scale
FLOOR = np.float32(1e-6)
#: seed of the signs of the rotation (int4_per_token_head.py)
SEED = 0x9E3779B9


@cache
def _signs(block: int) -> np.ndarray:
    """float32 [block] of +-1: bit 23 of the Mersenne Twister's words, as torch.bernoulli of float32 halves draws."""
    twister = np.random.MT19937()
    twister._legacy_seeding(SEED)  # type: ignore[attr-defined]
    words = twister.random_raw(block)
    return np.where(words >> np.uint64(23) & np.uint64(1), -1, 1).astype(np.float32)


def rotation_block(head_dim: int) -> int:
    """Channels that int4_per_token_head rotates together: the largest power of two that divides head_dim."""
    return head_dim & -head_dim


@inner
def _floored(range_: np.float32, levels: np.float32) -> tuple[np.float32, np.float32]:
    """(scale, 1 / scale) of a range."""
    scale = max(np.float32(range_ / levels), FLOOR)
    return scale, np.float32(np.float32(1) / scale)


@inner
def _away(value: np.float32) -> np.int32:
    """The nearest integer of a float32, ties away from zero."""
    return np.int32(np.float32(value + (np.float32(0.5) if value >= np.float32(0) else np.float32(-0.5))))


@inner
def _integers(bits: np.ndarray, inverse: np.float32, codes: np.ndarray) -> None:
    for i in range(bits.size):
        codes[i] = np.uint8(np.int8(_away(np.float32(half.finite(bits[i]) * inverse))))


@inner
def _floats(bits: np.ndarray, inverse: np.float32, codes: np.ndarray) -> None:
    for i in range(bits.size):
        codes[i] = minifloat.e4m3(np.float32(half.finite(bits[i]) * inverse))


@inner
def _from_integers(codes: np.ndarray, scale: np.float32, bits: np.ndarray) -> None:
    for i in range(bits.size):
        bits[i] = saturated(np.float32(np.float32(np.int8(codes[i])) * scale))


@inner
def _from_floats(values: np.ndarray, scale: np.float32, bits: np.ndarray) -> None:
    for i in range(bits.size):
        bits[i] = saturated(np.float32(values[i] * scale))


@kernel
def _quantize_bytes(
    bits: np.ndarray, levels: np.float32, is_float: bool, codes: np.ndarray, scales: np.ndarray
) -> None:
    """FP16 patterns bits[n, head_dim] -> codes uint8[n, head_dim], scales[n]."""
    for piece in prange(n_pieces(bits)):
        for row in rows_of(piece, bits):
            scale, inverse = _floored(half.to_f32(half.absmax(bits[row])), levels)
            scales[row] = scale
            if is_float:
                _floats(bits[row], inverse, codes[row])
            else:
                _integers(bits[row], inverse, codes[row])


@kernel
def _dequantize_bytes(
    codes: np.ndarray, scales: np.ndarray, is_float: bool, table: np.ndarray, bits: np.ndarray
) -> None:
    """The reverse of `_quantize_bytes`; table[256] float32 of E4M3."""
    for piece in prange(n_pieces(bits)):
        values = np.empty(bits.shape[1], np.float32)
        for row in rows_of(piece, bits):
            if is_float:
                pick(codes[row], table, values)
                _from_floats(values, scales[row], bits[row])
            else:
                _from_integers(codes[row], scales[row], bits[row])


@inner
def _round(values: np.ndarray) -> None:
    """float32 to FP16 within +-65504, in place."""
    for i in range(values.size):
        values[i] = saturated_value(values[i])


@inner
def _signed(bits: np.ndarray, signs: np.ndarray, block: int, values: np.ndarray) -> None:
    for run in range(bits.size // block):
        for i in range(block):
            values[run * block + i] = np.float32(half.finite(bits[run * block + i]) * signs[i])


@inner
def _smaller(x: np.ndarray, y: np.ndarray) -> None:
    """The smaller of x[i] and x[i + half] to y[i]; y may be x itself."""
    n = x.size // 2
    first, second = x[:n], x[n:]
    for i in range(n):
        a, b = first[i], second[i]
        y[i] = a if a < b else b


@inner
def _larger(x: np.ndarray, y: np.ndarray) -> None:
    n = x.size // 2
    first, second = x[:n], x[n:]
    for i in range(n):
        a, b = first[i], second[i]
        y[i] = a if a > b else b


@inner
def _extents(y: np.ndarray, n_runs: int, work: np.ndarray) -> None:
    """Smallest and largest of y[channel * n_runs + run] by run, in work[: n_runs] and work[half : half + n_runs].

    The channels are a power of two from 2 on; work is as large as y.
    """
    size = y.size // 2
    low, high = work[:size], work[size : 2 * size]
    _smaller(y, low)
    _larger(y, high)
    while size > n_runs:
        _smaller(low[:size], low)
        _larger(high[:size], high)
        size //= 2


@inner
def _parameters(
    low: np.ndarray,
    high: np.ndarray,
    n_vectors: int,
    runs: int,
    scales: np.ndarray,
    inverses: np.ndarray,
    zeros: np.ndarray,
) -> None:
    """Scales of vectors with the zero point in the low 4 bits; 1 / scale and the zero point of every run."""
    for vector in range(n_vectors):
        at = vector * runs
        smallest, largest = low[at], high[at]
        for run in range(at + 1, at + runs):
            smallest, largest = min(smallest, low[run]), max(largest, high[run])
        scale, inverse = _floored(np.float32(largest - smallest), np.float32(15))
        zero = min(max(_away(max(np.float32(-smallest / scale), np.float32(0))), np.int32(0)), np.int32(15))
        packed = np.uint32(np.uint32(minifloat.pattern(scale) & np.uint32(0xFFFFFFF0)) | np.uint32(zero))
        scales[vector] = minifloat.value_of(packed)
        for run in range(at, at + runs):
            inverses[run] = inverse
            zeros[run] = np.float32(zero)


@inner
def _code_words(y: np.ndarray, n_runs: int, inverses: np.ndarray, zeros: np.ndarray, words: np.ndarray) -> None:
    """Codes of y[channel * n_runs + run], eight channels a word: words[channel / 8 * n_runs + run]."""
    for group in range(words.size // n_runs):
        at = group * n_runs
        for run in range(n_runs):
            words[at + run] = np.uint32(0)
        for i in range(8):
            first, shift = (8 * group + i) * n_runs, np.uint32(4 * i)
            for run in range(n_runs):
                lifted = np.float32(
                    np.float32(np.float32(y[first + run] * inverses[run]) + zeros[run]) + np.float32(0.5)
                )
                code = np.int32(min(max(lifted, np.float32(0)), np.float32(15)))
                words[at + run] |= np.uint32(np.uint32(code) << shift)


@inner
def _transposed_words(words: np.ndarray, n_runs: int, packed: np.ndarray) -> None:
    """words[group * n_runs + run] -> packed[run * groups + group]."""
    groups = words.size // n_runs
    for group in range(groups):
        for run in range(n_runs):
            packed[run * groups + group] = words[group * n_runs + run]


@kernel
def _quantize_nibbles(bits: np.ndarray, signs: np.ndarray, packed: np.ndarray, scales: np.ndarray) -> None:
    """FP16 patterns bits[n * head_dim] -> packed uint32[n, head_dim / 8], scales[n] with zero points."""
    head_dim, block = 8 * packed.shape[1], signs.size
    runs = head_dim // block
    stages = np.int64(np.round(np.log2(block)))
    n_vectors = scales.size
    per_tile = max(TILE // head_dim, 1)
    for tile in prange((n_vectors + per_tile - 1) // per_tile):
        first, last = tile * per_tile, min((tile + 1) * per_tile, n_vectors)
        begin, end = first * head_dim, last * head_dim
        n_runs = (last - first) * runs
        values, work = np.empty(end - begin, np.float32), np.empty(end - begin, np.float32)
        words = np.empty((end - begin) // 8, np.uint32)
        _signed(bits[begin:end], signs, block, values)
        transform(values, work, stages)
        _round(values)
        _extents(values, n_runs, work)
        low, high = work[:n_runs], work[values.size // 2 :][:n_runs]
        inverses, zeros = np.empty(n_runs, np.float32), np.empty(n_runs, np.float32)
        _parameters(low, high, last - first, runs, scales[first:last], inverses, zeros)
        _code_words(values, n_runs, inverses, zeros, words)
        _transposed_words(words, n_runs, packed[first:last].reshape(-1))


@inner
def _unpacked(packed: np.ndarray, codes: np.ndarray) -> None:
    """packed[n] uint8 -> codes[2 * n] uint8, the low nibble first."""
    pairs = codes.view(np.uint16)
    for i in range(packed.size):
        byte = np.uint16(packed[i])
        pairs[i] = np.uint16(
            np.uint16(byte & np.uint16(0xF)) | np.uint16(np.uint16(byte & np.uint16(0xF0)) << np.uint16(4))
        )


@inner
def _steps(codes: np.ndarray, zero: np.int32, scale: np.float32, values: np.ndarray) -> None:
    for i in range(values.size):
        values[i] = np.float32(np.float32(np.int32(np.int32(codes[i]) - zero)) * scale)


@inner
def _decoded(codes: np.ndarray, scales: np.ndarray, head_dim: int, values: np.ndarray) -> None:
    """(code - zero) * scale, in the rotated basis."""
    for vector in range(scales.size):
        bits = minifloat.pattern(scales[vector])
        scale = minifloat.value_of(np.uint32(bits & np.uint32(0xFFFFFFF0)))
        zero = np.int32(bits & np.uint32(0xF))
        at = vector * head_dim
        _steps(codes[at : at + head_dim], zero, scale, values[at : at + head_dim])


@inner
def _unsigned(values: np.ndarray, signs: np.ndarray, n_runs: int) -> None:
    """values[channel * n_runs + run] * signs[channel] / block, in place."""
    for channel in range(signs.size):
        factor = np.float32(signs[channel] / np.float32(signs.size))
        for run in range(n_runs):
            values[channel * n_runs + run] = np.float32(values[channel * n_runs + run] * factor)


@kernel
def _dequantize_nibbles(
    packed: np.ndarray, scales: np.ndarray, signs: np.ndarray, head_dim: int, bits: np.ndarray
) -> None:
    """The reverse of `_quantize_nibbles`."""
    block = signs.size
    stages = np.int64(np.round(np.log2(block)))
    n_vectors = scales.size
    per_tile = max(TILE // head_dim, 1)
    for tile in prange((n_vectors + per_tile - 1) // per_tile):
        first, last = tile * per_tile, min((tile + 1) * per_tile, n_vectors)
        begin, end = first * head_dim, last * head_dim
        n_runs = (last - first) * (head_dim // block)
        values, work = np.empty(end - begin, np.float32), np.empty(end - begin, np.float32)
        codes, narrow = np.empty(end - begin, np.uint8), np.empty(end - begin, np.uint16)
        _unpacked(packed[begin // 2 : end // 2], codes)
        _decoded(codes, scales[first:last], head_dim, values)
        transform(values, work, stages)
        _unsigned(values, signs, n_runs)
        narrowed(values, narrow)
        transposed(narrow, n_runs, bits[begin:end])


#: values of the E4M3 codes
_E4M3 = decode_table("e4m3")


def _check_dim(head_dim: int, fmt: Format) -> None:
    if head_dim % _MULTIPLE[fmt]:
        raise ValueError(
            f"head_dim = {head_dim}: must be a multiple of {_MULTIPLE[fmt]} for {fmt}_per_token_head (scales stand on "
            "addresses of 4 bytes)"
        )


@dataclass(frozen=True)
class PerTokenHead(RowMethod):
    """A cache of vLLM with one float32 scale per token and head, keys and values alike.

    int8: s = max(absmax / 127, 1e-6), code = x * (1 / s) rounded half away from zero, decoded code * s. fp8: 448 and
    E4M3, nearest even. int4: the head is rotated first, in runs of the largest power of two that divides head_dim
    (random signs, Walsh-Hadamard in float32, rounded to FP16); s = max((max - min) / 15, 1e-6), zero = -min / s rounded
    half away and clipped to 0..15, code = x * (1 / s) + zero likewise; the stored scale has the zero point in its low 4
    bits and counts with them cleared; decoded (code - zero) * s, rotated back.

    Buffers: `codes` int8 or uint8 [rows, channels], of int4 uint8 [rows, channels / 2], element 2i in the low nibble;
    `scale` float32 [rows, heads]. `slots` gives vLLM's bytes. head_dim must be a multiple of 4, of int4 of 8.
    Source: vLLM 0.33.0, triton_reshape_and_cache_flash.py, int4_per_token_head.py.
    """

    format: Format = "int8"

    def __post_init__(self) -> None:
        check_choice("format", self.format, FORMATS)

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        _check_dim(channels // n_heads, self.format)
        dtype = np.int8 if self.format == "int8" else np.uint8
        items = channels // 2 if self.format == "int4" else channels
        return BufferColumn("codes", dtype=dtype, items=items, part="payload"), BufferColumn(
            "scale", dtype=np.float32, items=n_heads, part="scales"
        )

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        head_dim = bits.shape[1] // n_heads
        codes, scales = buffers["codes"].view(np.uint8), buffers["scale"].reshape(-1)
        if self.format == "int4":
            signs = _signs(rotation_block(head_dim))
            packed = codes.reshape(-1, head_dim // 2).view(np.uint32)
            _quantize_nibbles(bits.reshape(-1), signs, packed, scales)
        else:
            of_heads = bits.reshape(-1, head_dim), codes.reshape(-1, head_dim)
            _quantize_bytes(of_heads[0], np.float32(_LARGEST[self.format]), self.format == "fp8", of_heads[1], scales)

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        head_dim = bits.shape[1] // n_heads
        codes, scales = buffers["codes"].view(np.uint8), buffers["scale"].reshape(-1)
        if self.format == "int4":
            signs = _signs(rotation_block(head_dim))
            _dequantize_nibbles(codes.reshape(-1), scales, signs, head_dim, bits.reshape(-1))
        else:
            _dequantize_bytes(
                codes.reshape(-1, head_dim), scales, self.format == "fp8", _E4M3, bits.reshape(-1, head_dim)
            )

    def slots(self, packed: Packed) -> np.ndarray:
        """vLLM's bytes of one side: uint8 [rows, heads, codes + 4], the scale after the codes.

        packed: What `quantize` of this method gave.
        """
        codes, scale = packed.buffers["codes"].view(np.uint8), packed.buffers["scale"]
        n_rows, n_heads = scale.shape
        parts = codes.reshape(n_rows, n_heads, -1), scale.view(np.uint8).reshape(n_rows, n_heads, 4)
        return np.concatenate(parts, axis=2)
