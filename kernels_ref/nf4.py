"""NQKV: NF4 codes in blocks inside one token vector, an absmax per block (NQKV 3.2; codes as bitsandbytes gives them).

Codes are decided by comparing FP16 patterns as integers: the rule in float32 is monotone, so for every absmax there are
15 patterns at which the code goes up by one. They are found once for all absmax values (1 MiB).
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from kernels_ref import half
from kernels_ref.formats import FORMATS
from kernels_ref.inputs import check_choice, check_count
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.packing import pack_high_first, pick, unpack_high_first
from kernels_ref.rows import BufferColumn, Buffers, RowMethod, n_pieces, nibbles, rows_of

__all__ = ["NF4"]

#: the 16 values of NF4 in [-1, 1] (QLoRA, arXiv:2305.14314, Appendix E)
CODEBOOK = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)
#: a scaled value above the i-th has a code above i; a tie goes to the lower code
MIDPOINTS = (CODEBOOK[:-1] + CODEBOOK[1:]) / np.float32(2)
#: the code of zero: what pads an odd number of codes
ZERO = 7


@cache
def thresholds() -> np.ndarray:
    """int16 [32768, 16] by the pattern of absmax: entry i < 15 is the key (`half.order`) of the smallest FP16 value
    whose code is above i.

    Rule: s = fp32(x) * fp32(1 / max(absmax, 1e-38)); the code is the number of midpoints below s. Short last blocks
    divide in bitsandbytes; both give the same thresholds for every absmax. Rows of patterns that are not finite are 0.
    """
    keys = np.zeros((2**15, 16), np.int16)
    absmax = np.arange(half.INFINITY, dtype=np.uint16).view(np.float16).astype(np.float32)[:, None]
    reciprocal = np.float32(1) / np.maximum(absmax, np.float32(1e-38))
    # the product midpoint * absmax is within one pattern of the threshold: count those around it that stay below
    guess = half.order_of((MIDPOINTS * absmax).astype(np.float16).view(np.uint16)).astype(np.int32)
    above = guess - 2
    largest = int(half.LARGEST)
    with np.errstate(over="ignore"):
        for offset in (-2, -1, 0, 1, 2):
            key = np.clip(guess + offset, -largest - 1, largest)
            above += half.values_of(key) * reciprocal <= MIDPOINTS
    keys[: half.INFINITY, :15] = above
    keys.flags.writeable = False
    return keys


@cache
def decoded() -> np.ndarray:
    """uint16 [32768, 16]: FP16 pattern of fp32(codebook * absmax), by the pattern of absmax and the code."""
    absmax = np.arange(2**15, dtype=np.uint16).view(np.float16).astype(np.float32)[:, None]
    with np.errstate(invalid="ignore"):
        patterns = (CODEBOOK * absmax).astype(np.float16).view(np.uint16)
    patterns.flags.writeable = False
    return patterns


@inner
def _codes(bits: np.ndarray, t: np.ndarray, codes: np.ndarray) -> None:
    """Count the thresholds, of 15, that each value reaches."""
    t0, t1, t2, t3, t4, t5, t6, t7 = t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]
    t8, t9, t10, t11, t12, t13, t14 = t[8], t[9], t[10], t[11], t[12], t[13], t[14]
    for i in range(bits.size):
        key = half.order(bits[i])
        low = np.int16(key >= t0) + np.int16(key >= t1) + np.int16(key >= t2) + np.int16(key >= t3)
        low += np.int16(key >= t4) + np.int16(key >= t5) + np.int16(key >= t6) + np.int16(key >= t7)
        high = np.int16(key >= t8) + np.int16(key >= t9) + np.int16(key >= t10) + np.int16(key >= t11)
        high += np.int16(key >= t12) + np.int16(key >= t13) + np.int16(key >= t14)
        codes[i] = np.uint16(low + high)


@kernel
def _quantize(bits: np.ndarray, block: int, table: np.ndarray, packed: np.ndarray, absmax: np.ndarray) -> None:
    """FP16 patterns bits[n, channels] -> packed[n, ceil(channels / 2)] and patterns absmax[n, blocks]."""
    for piece in prange(n_pieces(bits)):
        codes = np.full(2 * packed.shape[1], np.uint16(ZERO))
        for row in rows_of(piece, bits):
            for b in range(absmax.shape[1]):
                part = bits[row, b * block : (b + 1) * block]
                absmax[row, b] = half.absmax(part)
                _codes(part, table[absmax[row, b]], codes[b * block :])
            pack_high_first(codes, packed[row])


@kernel
def _dequantize(packed: np.ndarray, absmax: np.ndarray, block: int, table: np.ndarray, bits: np.ndarray) -> None:
    """The reverse of `_quantize`."""
    for piece in prange(n_pieces(bits)):
        codes = np.empty(2 * packed.shape[1], np.uint16)
        for row in rows_of(piece, bits):
            unpack_high_first(packed[row], codes)
            for b in range(absmax.shape[1]):
                part = bits[row, b * block : (b + 1) * block]
                pick(codes[b * block : b * block + part.size], table[absmax[row, b] & half.ABS], part)


@dataclass(frozen=True)
class NF4(RowMethod):
    """NF4 with one absmax per `block` consecutive channels of a token (NQKV 3.2: 256, all heads concatenated).

    A row of channels that `block` does not divide ends with a short block; an odd row ends with half a byte of code 7.
    `absmax` is the format in which the absmax is stored: FP16 holds it exactly, bitsandbytes stores FP32.

    Buffers: `codes` uint8 [rows, ceil(channels / 2)], element 2i in the high nibble (bitsandbytes' order); `absmax`
    float16 or float32 [rows, ceil(channels / block)]. Source: NQKV 3.2; bitsandbytes 0.50.2, quantize_4bit on CPU.
    """

    block: int = 256
    absmax: Literal["fp16", "fp32"] = "fp16"

    def __post_init__(self) -> None:
        check_count("block", self.block)
        check_choice("absmax", self.absmax, ("fp16", "fp32"))

    def _columns(self, n_heads: int, channels: int) -> tuple[BufferColumn, ...]:
        dtype = {16: np.float16, 32: np.float32}[FORMATS[self.absmax].bits]
        return nibbles("codes", channels), BufferColumn(
            "absmax", dtype=dtype, items=-(-channels // self.block), part="scales"
        )

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> None:
        absmax = buffers["absmax"]
        patterns = absmax.view(np.uint16) if absmax.dtype == np.float16 else np.empty(absmax.shape, np.uint16)
        _quantize(bits, min(self.block, bits.shape[1]), thresholds(), buffers["codes"], patterns)
        if absmax.dtype != np.float16:
            absmax[:] = patterns.view(np.float16)

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        patterns = buffers["absmax"].astype(np.float16, copy=False).view(np.uint16)
        _dequantize(buffers["codes"], patterns, min(self.block, bits.shape[1]), decoded(), bits)
