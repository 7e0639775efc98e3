"""Codes to and from bytes and words; by table where a code depends on the value alone.

Little-endian machines only, as numpy's wheels and numba are.
"""

import numpy as np

from kernels_ref.formats import storage
from kernels_ref.jit import inner, kernel, prange

#: code behind the last one of an odd row of 4-bit codes
ODD_PAD = np.uint16(storage.odd_pad)
#: elements of a unit of work of `look_up`
PIECE = 2**15


@inner
def pack_high_first(codes: np.ndarray, out: np.ndarray) -> None:
    """codes[2 * n] uint16 below 16 -> out[n] uint8: element 2i in the high nibble, 2i + 1 in the low one."""
    pairs = codes.view(np.uint32)
    for i in range(out.size):
        out[i] = np.uint8(((pairs[i] & np.uint32(0xF)) << np.uint32(4)) | (pairs[i] >> np.uint32(16)))


@inner
def pack_low_first(codes: np.ndarray, out: np.ndarray) -> None:
    """codes[2 * n] uint16 below 16 -> out[n] uint8: element 2i in the low nibble, 2i + 1 in the high one."""
    pairs = codes.view(np.uint32)
    for i in range(out.size):
        out[i] = np.uint8((pairs[i] & np.uint32(0xF)) | (pairs[i] >> np.uint32(12)))


@inner
def unpack_high_first(packed: np.ndarray, codes: np.ndarray) -> None:
    """The reverse of `pack_high_first`: packed[n] uint8 -> codes[2 * n] uint16."""
    pairs = codes.view(np.uint32)
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        pairs[i] = (byte >> np.uint32(4)) | ((byte & np.uint32(0xF)) << np.uint32(16))


@inner
def unpack_low_first(packed: np.ndarray, codes: np.ndarray) -> None:
    """The reverse of `pack_low_first`: packed[n] uint8 -> codes[2 * n] uint16."""
    pairs = codes.view(np.uint32)
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        pairs[i] = (byte & np.uint32(0xF)) | ((byte & np.uint32(0xF0)) << np.uint32(12))


@inner
def _join(codes: np.ndarray, shift: np.uint64, two: np.uint64, four: np.uint64, out: np.ndarray) -> None:
    """Eight codes in the bytes of a uint64 into eight neighbouring fields of 8 - shift bits."""
    for i in range(codes.size):
        v = codes[i]
        v = (v | (v >> shift)) & two
        v = (v | (v >> (shift + shift))) & four
        out[i] = v | (v >> (shift * np.uint64(4)))


@inner
def copied(source: np.ndarray, target: np.ndarray) -> None:
    """Copy source[n] into target[n]; numba vectorizes the loop."""
    for i in range(source.size):
        target[i] = source[i]


@inner
def pack_words(codes: np.ndarray, width: int, words: np.ndarray) -> None:
    """codes[n] uint8 below 2^width -> words[n * width / 32] uint32, the first element lowest; width 1, 2, 4 or 8.

    Eight bytes at a time as one uint64.
    """
    if width == 1:
        masks = np.uint64(0x0003000300030003), np.uint64(0x0000000F0000000F)
        _join(codes.view(np.uint64), np.uint64(7), masks[0], masks[1], words.view(np.uint8))
    elif width == 2:
        masks = np.uint64(0x000F000F000F000F), np.uint64(0x000000FF000000FF)
        _join(codes.view(np.uint64), np.uint64(6), masks[0], masks[1], words.view(np.uint16))
    elif width == 4:
        masks = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
        _join(codes.view(np.uint64), np.uint64(4), masks[0], masks[1], words.view(np.uint32))
    else:
        copied(codes, words.view(np.uint8))


@inner
def _split(
    words: np.ndarray, shift: np.uint64, four: np.uint64, two: np.uint64, one: np.uint64, codes: np.ndarray
) -> None:
    """The inverse of `_join`."""
    for i in range(words.size):
        v = np.uint64(words[i])
        v = (v | (v << (shift * np.uint64(4)))) & four
        v = (v | (v << (shift + shift))) & two
        codes[i] = (v | (v << shift)) & one


@inner
def unpack_words(words: np.ndarray, width: int, codes: np.ndarray) -> None:
    """The reverse of `pack_words`."""
    if width == 1:
        masks = np.uint64(0x0000000F0000000F), np.uint64(0x0003000300030003), np.uint64(0x0101010101010101)
        _split(words.view(np.uint8), np.uint64(7), masks[0], masks[1], masks[2], codes.view(np.uint64))
    elif width == 2:
        masks = np.uint64(0x000000FF000000FF), np.uint64(0x000F000F000F000F), np.uint64(0x0303030303030303)
        _split(words.view(np.uint16), np.uint64(6), masks[0], masks[1], masks[2], codes.view(np.uint64))
    elif width == 4:
        masks = np.uint64(0x0000FFFF0000FFFF), np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0F0F0F0F0F0F0F0F)
        _split(words.view(np.uint32), np.uint64(4), masks[0], masks[1], masks[2], codes.view(np.uint64))
    else:
        copied(words.view(np.uint8), codes)


@inner
def pick(codes: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """out[i] = values[codes[i]] for all codes."""
    for i in range(codes.size):
        out[i] = values[codes[i]]


@kernel
def look_up(indices: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """out[i] = table[indices[i]] for flat arrays; the table must hold every value of the indices' type."""
    for piece in prange((indices.size + PIECE - 1) // PIECE):
        part = slice(piece * PIECE, (piece + 1) * PIECE)
        pick(indices[part], table, out[part])


@inner
def _transpose_tile(source: np.ndarray, target: np.ndarray) -> None:
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[j, i] = source[i, j]


@kernel
def transpose_words(source: np.ndarray, target: np.ndarray) -> None:
    """target[heads, j, i] = source[heads, i, j], any strides, tile by tile."""
    n_heads, n, m = source.shape
    n_steps = (n + 15) // 16
    for task in prange(n_heads * n_steps):
        h, rows = task // n_steps, slice(task % n_steps * 16, min(task % n_steps * 16 + 16, n))
        for first in range(0, m, 16):
            columns = slice(first, min(first + 16, m))
            _transpose_tile(source[h, rows, columns], target[h, columns, rows])
