"""Golden files of KIVI: words of codes, scales, minima and decoded values of KIVI's own functions."""

import re
from collections.abc import Iterator

import numpy as np

from kernels_ref.conformance.compare import Pair
from kernels_ref.conformance.vectors import Vectors
from kernels_ref.formats import storage
from kernels_ref.kivi import KIVI
from kernels_ref.kivi_store import Side

SIDES: tuple[tuple[Side, str], ...] = (("key", "k"), ("value", "v"))


def kivi(vectors: Vectors) -> Iterator[Pair]:
    """kivi_*: {k,v}_b{bits}_g{group}_{code,scale,mn,dequant} and, of keys, the released kernels' triton_code."""
    for side, letter in SIDES:
        for name in vectors:
            if found := re.fullmatch(rf"{letter}_b(\d+)_g(\d+)_code", name):
                bits, group = int(found[1]), int(found[2])
                yield from _one(vectors, side, f"{letter}_b{bits}_g{group}", bits, group)


def _one(vectors: Vectors, side: Side, name: str, bits: int, group: int) -> Iterator[Pair]:
    method = KIVI(bits, group, residual=0, overflow="propagate")
    packed = method.quantize(vectors[side], side)
    words, scales, mins = (packed.buffers[f"{side}_{part}"] for part in ("codes", "scales", "mins"))
    yield from groups_of(vectors, side, name, bits, group, words, scales, mins)
    expected = vectors[f"{name}_scale"].reshape(scales.shape)
    finite = spread(np.isfinite(expected), side, group)
    yield Pair(f"{name}_dequant", vectors[f"{name}_dequant"], packed.dequantize(), finite)
    if f"{name}_triton_code" in vectors:
        transposed = KIVI(bits, group, residual=0, overflow="propagate", key_layout="triton").quantize(
            vectors[side], side
        )
        good = np.swapaxes(defined(expected, side, bits, group), 2, 3)
        yield Pair(f"{name}_triton_code", vectors[f"{name}_triton_code"], transposed.buffers[f"{side}_codes"], good)


def groups_of(
    vectors: Vectors,
    side: Side,
    name: str,
    bits: int,
    group: int,
    words: np.ndarray,
    scales: np.ndarray,
    mins: np.ndarray,
) -> Iterator[Pair]:
    """Words, scales and minima of packed groups; the golden scales and minima have an axis of length 1 more."""
    expected = vectors[f"{name}_scale"].reshape(scales.shape)
    yield Pair(f"{name}_code", vectors[f"{name}_code"], words, defined(expected, side, bits, group))
    yield Pair(f"{name}_scale", expected, scales)
    yield Pair(f"{name}_mn", vectors[f"{name}_mn"].reshape(mins.shape), mins)


def spread(of_group: np.ndarray, side: Side, n: int) -> np.ndarray:
    """A value of each group, [batch, heads, groups, channels] or [..., tokens, groups], n times along its axis."""
    return np.repeat(of_group, n, axis=2 if side == "key" else 3)


def defined(scales: np.ndarray, side: Side, bits: int, group: int) -> np.ndarray:
    """Words whose codes are defined: where the scale is 0 or not finite, NaN as an integer is the platform's choice."""
    return spread(np.isfinite(scales) & (scales != 0), side, group * bits // storage.word)
