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
from kernels_ref.inputs import NonFinite, row_tensor
from kernels_ref.jit import inner, kernel, prange
from kernels_ref.minifloat import E2M1_MAGNITUDES
from kernels_ref.rows import n_pieces, rows_of

#: FP16 magnitudes that are finite: patterns 0 to 0x7BFF
N_FINITE = int(half.INFINITY)
#: elements that are compared at a time: a block has one or two of them
STEP = 16
#: E2M1 codes without sign
N_CODES = len(E2M1_MAGNITUDES)


@dataclass(frozen=True, eq=False)
class Tables:
    """Tables that turn FP16 into scale bytes and E2M1 codes and back."""

    #: uint8 [32768]: scale byte of a block by the pattern of its largest magnitude
    scales: np.ndarray
    #: uint16 [256, 8]: by scale byte the first pattern that has a sign, then those of codes 1 to 7; 0x7C00 for none
    starts: np.ndarray
    #: uint16 [256, 16]: FP16 pattern by scale byte and code
    values: np.ndarray


def magnitudes() -> np.ndarray:
    """float32 [31744]: the finite FP16 values that are not negative, by pattern."""
    return np.arange(N_FINITE, dtype=np.uint16).view(np.float16).astype(np.float32)


def scale_table(scale_of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """`Tables.scales` from the rule: uint8 scale bytes of float32 largest magnitudes."""
    table = np.zeros(2**15, np.uint8)
    table[:N_FINITE] = scale_of(magnitudes())
    return table


def starts_table(
    code_of: Callable[[np.ndarray, np.ndarray], np.ndarray], used: np.ndarray, signed_from: int = 0
) -> np.ndarray:
    """`Tables.starts` of the scale bytes in `used` from the rule: codes of float32 elements with uint8 scale bytes.

    A search by halves for all scale bytes and codes at once. signed_from: 1 where -0 has no sign bit.
    """
    values, scales = magnitudes(), np.unique(used)
    low = np.zeros((scales.size, N_CODES), np.int64)  # the code begins at low or later ...
    high = np.full((scales.size, N_CODES), N_FINITE, np.int64)  # ... and at high or before
    wanted = np.arange(N_CODES)
    scale_of_code = np.repeat(scales, N_CODES)
    while (low < high).any():
        middle = (low + high) // 2
        codes = code_of(values[np.minimum(middle, N_FINITE - 1)].reshape(-1), scale_of_code).reshape(middle.shape) & 7
        reached = (codes >= wanted) | (middle >= N_FINITE)
        high, low = np.where(reached, middle, high), np.where(reached | (low == high), low, middle + 1)
    starts = np.full((256, N_CODES), N_FINITE, np.uint16)
    starts[scales] = high
    starts[:, 0] = signed_from
    return starts


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
    largest = max((int((part & half.ABS).max(initial=0)) for _, part in tensor.row_blocks()), default=0)
    return np.float32(np.uint16(largest).view(np.float16))


@inner
def _larger_of_pairs(pairs: np.ndarray, out: np.ndarray) -> None:
    """out[n] uint16: the larger magnitude of the two patterns in each of pairs[n] uint32."""
    for i in range(out.size):
        first = np.uint32(pairs[i] & np.uint32(0x7FFF))
        second = np.uint32(np.uint32(pairs[i] >> np.uint32(16)) & np.uint32(0x7FFF))
        out[i] = np.uint16(max(first, second))


@inner
def absmax(bits: np.ndarray, spare: np.ndarray, found: np.ndarray) -> None:
    """uint16 found[n]: the pattern of the largest magnitude in each of n blocks of 16 or 32 patterns.

    Halves the whole row again and again, which vectorizes where a search in one block would not. spare: [2, bits / 2].
    """
    n, size = found.size, bits.size // 2
    _larger_of_pairs(bits.view(np.uint32), spare[0, :size])
    source, target = 0, 1
    while size > 2 * n:
        size //= 2
        _larger_of_pairs(spare[source, : 2 * size].view(np.uint32), spare[target, :size])
        source, target = target, source
    _larger_of_pairs(spare[source, : 2 * n].view(np.uint32), found)


@inner
def codes_of(bits: np.ndarray, starts: np.ndarray, scales: np.ndarray, shift: int, codes: np.ndarray) -> None:
    """E2M1 codes uint8[n, 16] of patterns bits[n, 16]: how many codes begin at or below the magnitude.

    scales[n >> shift]: scale bytes. Reading `starts` in the inner loop is faster than keeping a row of it as an array.
    """
    for b in range(codes.shape[0]):
        k = scales[b >> shift]
        for i in range(STEP):
            magnitude = np.uint16(bits[b, i] & half.ABS)
            n = np.uint16(np.uint16(magnitude >= starts[k, 1]) + np.uint16(magnitude >= starts[k, 2]))
            n += np.uint16(np.uint16(magnitude >= starts[k, 3]) + np.uint16(magnitude >= starts[k, 4]))
            n += np.uint16(np.uint16(magnitude >= starts[k, 5]) + np.uint16(magnitude >= starts[k, 6]))
            n += np.uint16(magnitude >= starts[k, 7])
            sign = np.uint16(bits[b, i] >> np.uint16(12)) & np.uint16(8)
            codes[b, i] = np.uint8(np.uint16(n) | (sign if magnitude >= starts[k, 0] else np.uint16(0)))


@inner
def pack(codes: np.ndarray, out: np.ndarray) -> None:
    """codes[2 * n] uint8 below 16 -> out[n]: element 2i in the low nibble, 2i + 1 in the high one."""
    pairs = codes.view(np.uint16)
    for i in range(out.size):
        out[i] = np.uint8(pairs[i] | np.uint16(pairs[i] >> np.uint16(4)))


@inner
def scale_row(bits: np.ndarray, scales: np.ndarray, spare: np.ndarray, found: np.ndarray) -> None:
    """Scale bytes found[n] of the n blocks of patterns bits, by `Tables.scales`; spare as of `absmax`, a row longer."""
    largest = spare[2, : found.size]
    absmax(bits, spare, largest)
    for b in range(found.size):
        found[b] = scales[largest[b]]


@kernel
def encode(bits: np.ndarray, scales: np.ndarray, starts: np.ndarray, codes: np.ndarray, found: np.ndarray) -> None:
    """FP16 patterns bits[n, channels] -> packed E2M1 codes[n, channels / 2], scale bytes found[n, blocks].

    Blocks of 16 or 32 channels; the tables as in `Tables`.
    """
    shift = 0 if found.shape[1] * STEP == bits.shape[1] else 1
    for piece in prange(n_pieces(bits)):
        spare = np.empty((3, bits.shape[1] // 2), np.uint16)
        wide = np.empty(bits.shape[1], np.uint8)
        for row in rows_of(piece, bits):
            scale_row(bits[row], scales, spare, found[row])
            codes_of(bits[row].reshape(-1, STEP), starts, found[row], shift, wide.reshape(-1, STEP))
            pack(wide, codes[row])


@inner
def _decode_row(packed: np.ndarray, scales: np.ndarray, shift: int, values: np.ndarray, bits: np.ndarray) -> None:
    for b in range(bits.shape[0]):
        k = scales[b >> shift]
        for i in range(STEP // 2):
            bits[b, 2 * i] = values[k, packed[b, i] & np.uint8(0xF)]
            bits[b, 2 * i + 1] = values[k, packed[b, i] >> np.uint8(4)]


@kernel
def decode(codes: np.ndarray, found: np.ndarray, values: np.ndarray, bits: np.ndarray) -> None:
    """The reverse of `encode`, by `Tables.values`."""
    shift = 0 if found.shape[1] * STEP == bits.shape[1] else 1
    for piece in prange(n_pieces(bits)):
        for row in rows_of(piece, bits):
            packed = codes[row].reshape(-1, STEP // 2)
            _decode_row(packed, found[row], shift, values, bits[row].reshape(-1, STEP))
