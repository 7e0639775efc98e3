"""Codes of 1, 2, 4 or 8 bits, one a byte, into 32-bit words with the first element lowest, and back.

Eight bytes at a time as one uint64. Little-endian machines only, as numpy's wheels and numba are.
"""

import numpy as np

from kernels_ref.jit import inner


@inner
def _join_bytes(codes, shift, two, four, out):
    """Eight codes in the bytes of a uint64 into eight neighbouring fields of 8 - shift bits."""
    for i in range(codes.size):
        v = codes[i]
        v = (v | (v >> shift)) & two
        v = (v | (v >> (shift + shift))) & four
        out[i] = v | (v >> (shift * np.uint64(4)))


@inner
def _copy(source, target):
    for i in range(source.size):
        target[i] = source[i]


@inner
def join(codes, width, words):
    """One code a byte into words."""
    if width == 1:
        masks = np.uint64(0x0003000300030003), np.uint64(0x0000000F0000000F)
        _join_bytes(codes.view(np.uint64), np.uint64(7), masks[0], masks[1], words.view(np.uint8))
    elif width == 2:
        masks = np.uint64(0x000F000F000F000F), np.uint64(0x000000FF000000FF)
        _join_bytes(codes.view(np.uint64), np.uint64(6), masks[0], masks[1], words.view(np.uint16))
    elif width == 4:
        masks = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
        _join_bytes(codes.view(np.uint64), np.uint64(4), masks[0], masks[1], words.view(np.uint32))
    else:
        _copy(codes, words.view(np.uint8))


@inner
def _split_bytes(words, shift, four, two, one, codes):
    """The inverse of `_join_bytes`."""
    for i in range(words.size):
        v = np.uint64(words[i])
        v = (v | (v << (shift * np.uint64(4)))) & four
        v = (v | (v << (shift + shift))) & two
        codes[i] = (v | (v << shift)) & one


@inner
def split(words, width, codes):
    """Words into one code a byte."""
    if width == 1:
        masks = np.uint64(0x0000000F0000000F), np.uint64(0x0003000300030003), np.uint64(0x0101010101010101)
        _split_bytes(words.view(np.uint8), np.uint64(7), masks[0], masks[1], masks[2], codes.view(np.uint64))
    elif width == 2:
        masks = np.uint64(0x000000FF000000FF), np.uint64(0x000F000F000F000F), np.uint64(0x0303030303030303)
        _split_bytes(words.view(np.uint16), np.uint64(6), masks[0], masks[1], masks[2], codes.view(np.uint64))
    elif width == 4:
        masks = np.uint64(0x0000FFFF0000FFFF), np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0F0F0F0F0F0F0F0F)
        _split_bytes(words.view(np.uint32), np.uint64(4), masks[0], masks[1], masks[2], codes.view(np.uint64))
    else:
        _copy(words.view(np.uint8), codes)
