"""4-bit codes of one token vector to and from bytes: two a byte, every vector in whole bytes."""

import numpy as np

from kernels_ref.jit import inner


@inner
def pack_high_first(codes, out):
    """codes[2 * n] uint16 below 16 -> out[n] uint8: element 2i in the high nibble, 2i + 1 in the low one."""
    pairs = codes.view(np.uint32)
    for i in range(out.size):
        out[i] = np.uint8(((pairs[i] & np.uint32(0xF)) << np.uint32(4)) | (pairs[i] >> np.uint32(16)))


@inner
def pack_low_first(codes, out):
    """codes[2 * n] uint16 below 16 -> out[n] uint8: element 2i in the low nibble, 2i + 1 in the high one."""
    pairs = codes.view(np.uint32)
    for i in range(out.size):
        out[i] = np.uint8((pairs[i] & np.uint32(0xF)) | (pairs[i] >> np.uint32(12)))


@inner
def unpack_high_first(packed, codes):
    """The reverse of `pack_high_first`: packed[n] uint8 -> codes[2 * n] uint16."""
    pairs = codes.view(np.uint32)
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        pairs[i] = (byte >> np.uint32(4)) | ((byte & np.uint32(0xF)) << np.uint32(16))


@inner
def unpack_low_first(packed, codes):
    """The reverse of `pack_low_first`: packed[n] uint8 -> codes[2 * n] uint16."""
    pairs = codes.view(np.uint32)
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        pairs[i] = (byte & np.uint32(0xF)) | ((byte & np.uint32(0xF0)) << np.uint32(12))
