"""Codes of one byte by table: formats whose code depends on the value alone (FP8, integers with a fixed scale)."""

import numpy as np

from kernels_ref.jit import inner, kernel, prange

#: elements of a unit of work
PIECE = 2**15


@inner
def _look_up(indices, table, out):
    for i in range(out.size):
        out[i] = table[indices[i]]


@kernel
def look_up(indices, table, out):
    """out[i] = table[indices[i]] for flat arrays; the table must hold every value of the indices' type."""
    for piece in prange((indices.size + PIECE - 1) // PIECE):
        part = slice(piece * PIECE, (piece + 1) * PIECE)
        _look_up(indices[part], table, out[part])


def all_values() -> np.ndarray:
    """The values of all 65,536 FP16 patterns, float32, by pattern."""
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
