"""Blocks of consecutive channels with a scale of one byte: fast ways in and out of FP16, from tables.

A block's scale byte depends on its largest magnitude alone, a code on scale byte and element alone, and both never fall
as their argument grows. So a format is a rule for scales and a rule for codes on float32 (kernels_ref/nvfp4.py, mx.py),
and three tables made from them once: the scale byte of every magnitude; for every scale byte the FP16 magnitudes where
the codes 1 to 7 begin; the FP16 value of every scale byte and code. Elements then cost integer comparisons only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels_ref import half
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.minifloat import E2M1_MAGNITUDES
from kernels_ref.inputs import NonFinite, row_tensor
from kernels_ref.rows import Buffers, n_pieces, rows_of

#: FP16 magnitudes that are finite: patterns 0 to 0x7BFF
N_FINITE = int(half.INFINITY)
#: elements that are compared at a time: a block has one or two of them
STEP = 16
#: E2M1 codes without sign
N_CODES = len(E2M1_MAGNITUDES)


@dataclass(frozen=True, eq=False)
class Tables:
    """What turns FP16 into scale bytes and E2M1 codes and back. `signed_from`: the smallest pattern with a sign bit."""

    #: uint8 [32768]: scale byte of a block by the pattern of its largest magnitude
    scales: np.ndarray
    #: uint16 [256, 8]: the first pattern of a code 1 to 7 by scale byte; 0x7C00 where there is none
    starts: np.ndarray
    #: uint16 [256, 16]: FP16 pattern by scale byte and code
    values: np.ndarray
    signed_from: int = 0


def magnitudes() -> np.ndarray:
    """float32 [31744]: the finite FP16 values that are not negative, by pattern."""
    return np.arange(N_FINITE, dtype=np.uint16).view(np.float16).astype(np.float32)


def scale_table(scale_of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """`Tables.scales` from the rule: uint8 scale bytes of float32 largest magnitudes."""
    found = np.zeros(2**15, np.uint8)
    found[:N_FINITE] = scale_of(magnitudes())
    return found


def starts_table(code_of: Callable[[np.ndarray, np.ndarray], np.ndarray], used: np.ndarray) -> np.ndarray:
    """`Tables.starts` of the scale bytes in `used` from the rule: codes of float32 elements with uint8 scale bytes.

    A search by halves for all scale bytes and codes at once.
    """
    values, scales = magnitudes(), np.unique(used)
    low = np.zeros((scales.size, N_CODES), np.int64)  # the code begins at low or later ...
    high = np.full((scales.size, N_CODES), N_FINITE, np.int64)  # ... and at high or before
    wanted = np.arange(N_CODES)
    each = np.repeat(scales, N_CODES)
    while (low < high).any():
        middle = (low + high) // 2
        codes = code_of(values[np.minimum(middle, N_FINITE - 1)].reshape(-1), each).reshape(middle.shape) & 7
        reached = (codes >= wanted) | (middle >= N_FINITE)
        high, low = np.where(reached, middle, high), np.where(reached | (low == high), low, middle + 1)
    found = np.full((256, N_CODES), N_FINITE, np.uint16)
    found[scales] = high
    return found


def value_table(values: np.ndarray) -> np.ndarray:
    """FP16 patterns within +-65504 of float32 values [256, codes]."""
    with np.errstate(invalid="ignore"):
        return np.clip(values, -half.LARGEST_VALUE, half.LARGEST_VALUE).astype(np.float16).view(np.uint16)


def check_head_dim(head_dim: int, block: int, name: str) -> None:
    """Raise ValueError for a head dimension that blocks do not divide."""
    if head_dim % block:
        raise ValueError(f"head_dim = {head_dim}: must be a multiple of {block} for {name} (its blocks)")


def largest_magnitude(x: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> np.float32:
    """max |x| of a tensor as `RowMethod.quantize` takes it, 0 of an empty one. Errors as those of `quantize`."""
    tensor = row_tensor(x, n_heads, nonfinite)
    found = max((int((part & half.ABS).max(initial=0)) for _, part in tensor.row_blocks()), default=0)
    return np.float32(np.uint16(found).view(np.float16))


def quantize(bits: np.ndarray, block: int, tables: Tables, buffers: Buffers) -> None:
    """Fill buffers `codes` and `scales` for FP16 patterns bits[n, channels]."""
    signed_from = np.uint16(tables.signed_from)
    encode(bits, block, tables.scales, tables.starts, signed_from, buffers["codes"], buffers["scales"])


@inner
def absmax(bits):
    """The pattern of the largest magnitude in bits[16]."""
    largest = np.uint16(0)
    for i in range(STEP):
        largest = max(largest, np.uint16(bits[i] & half.ABS))
    return np.uint16(largest)


@inner
def codes_of(bits, starts, signed_from, codes):
    """E2M1 codes uint8[16] of patterns bits[16]: how many codes begin at or below the magnitude."""
    first, second, third, fourth = starts[1], starts[2], starts[3], starts[4]
    fifth, sixth, seventh = starts[5], starts[6], starts[7]
    for i in range(STEP):
        magnitude = np.uint16(bits[i] & half.ABS)
        n = np.uint16(np.uint16(magnitude >= first) + np.uint16(magnitude >= second) + np.uint16(magnitude >= third))
        n += np.uint16(np.uint16(magnitude >= fourth) + np.uint16(magnitude >= fifth))
        n += np.uint16(np.uint16(magnitude >= sixth) + np.uint16(magnitude >= seventh))
        sign = np.uint16(bits[i] >> np.uint16(12)) & np.uint16(8)
        codes[i] = np.uint8(np.uint16(n) | (sign if magnitude >= signed_from else np.uint16(0)))


@inner
def pack(codes, out):
    """codes[2 * n] uint8 below 16 -> out[n]: element 2i in the low nibble, 2i + 1 in the high one."""
    pairs = codes.view(np.uint16)
    for i in range(out.size):
        out[i] = np.uint8(pairs[i] | np.uint16(pairs[i] >> np.uint16(4)))


@inner
def _encode_row(bits, block, scales, starts, signed_from, scratch, codes, found):
    per_block = block // STEP
    for b in range(found.size):
        start = b * block
        largest = absmax(bits[start : start + STEP])
        if per_block == 2:
            largest = max(largest, absmax(bits[start + STEP : start + 2 * STEP]))
        found[b] = scales[largest]
        for part in range(per_block):
            at = start + part * STEP
            codes_of(bits[at : at + STEP], starts[found[b]], signed_from, scratch[at : at + STEP])
    pack(scratch, codes)


@kernel
def encode(bits, block, scales, starts, signed_from, codes, found):
    """FP16 patterns bits[n, channels] -> packed E2M1 codes[n, channels / 2], scale bytes found[n, channels / block].

    block: 16 or 32; the others as in `Tables`.
    """
    for piece in prange(n_pieces(bits)):
        scratch = np.empty(bits.shape[1], np.uint8)
        for row in rows_of(piece, bits):
            _encode_row(bits[row], block, scales, starts, signed_from, scratch, codes[row], found[row])


@inner
def _decode_part(packed, values, bits):
    for i in range(STEP // 2):
        bits[2 * i] = values[packed[i] & np.uint8(0xF)]
        bits[2 * i + 1] = values[packed[i] >> np.uint8(4)]


@kernel
def decode(codes, found, block, values, bits):
    """The reverse of `encode`, by `Tables.values`."""
    for piece in prange(n_pieces(bits)):
        for row in rows_of(piece, bits):
            for at in range(bits.shape[1] // STEP):
                _decode_part(
                    codes[row, at * (STEP // 2) : (at + 1) * (STEP // 2)],
                    values[found[row, at * STEP // block]],
                    bits[row, at * STEP : (at + 1) * STEP],
                )
