"""Token vectors in and out of the 4-bit codes of `asymmetric`: what Atom and QServe share."""

from functools import partial
from typing import Any

import numpy as np

from kernels_ref import asymmetric
from kernels_ref.inputs import NonFinite
from kernels_ref.packed import Packed
from kernels_ref.rows import Buffers, Column, channels_of, decode_rows, encode_rows


def starts_of(shape: tuple[int, ...], n_heads: int, group: int) -> np.ndarray:
    """`asymmetric.group_starts` of a tensor; of one that will be refused an empty group."""
    channels = channels_of(shape)
    heads = shape[1] if len(shape) == 4 else n_heads
    if not channels or not heads > 0 or channels % heads:
        return np.zeros(1, np.int64)
    return asymmetric.group_starts(heads, channels // heads, group)


def columns_of(shape: tuple[int, ...], n_groups: int) -> tuple[Column, ...]:
    """4-bit codes, and an FP16 scale and zero per group."""
    return (
        Column("codes", np.uint8, -(-channels_of(shape) // 2), "payload"),
        Column("scale", np.float16, n_groups, "scales"),
        Column("zero", np.float16, n_groups, "zero_points"),
    )


def encode_asymmetric(
    method: Any, x: np.ndarray, starts: np.ndarray, form: int, n_heads: int, nonfinite: NonFinite
) -> Packed:
    """`rows.encode_rows` with the codes of `asymmetric`."""
    return encode_rows(
        method,
        x,
        columns_of(np.shape(x), len(starts) - 1),
        partial(encode_block, starts, form),
        n_heads=n_heads,
        nonfinite=nonfinite,
        padding_bits=4 * (channels_of(np.shape(x)) % 2),
    )


def encode_block(starts: np.ndarray, form: int, bits: np.ndarray, buffers: Buffers) -> None:
    """Quantise one block of rows."""
    scale, zero = buffers["scale"].view(np.uint16), buffers["zero"].view(np.uint16)
    asymmetric.quantize(bits, starts, form, buffers["codes"], scale, zero)


def decode_asymmetric(packed: Packed, starts: np.ndarray, form: int) -> np.ndarray:
    """`rows.decode_rows` with the codes of `asymmetric`."""
    return decode_rows(packed, columns_of(packed.shape, len(starts) - 1), partial(decode_block, starts, form))


def decode_block(starts: np.ndarray, form: int, buffers: Buffers, bits: np.ndarray) -> None:
    """Dequantise one block of rows."""
    scale, zero = buffers["scale"].view(np.uint16), buffers["zero"].view(np.uint16)
    asymmetric.dequantize(buffers["codes"], scale, zero, starts, form, bits)
