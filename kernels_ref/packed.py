"""Stored form of a quantized tensor: its buffers, and their bits by ledger part."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from kernels_ref.formats import PARTS


class Stored:
    """Buffers and their bits: what packed tensors and caches have in common.

    `part_of` names the ledger part of every buffer (one of `PARTS`, or several in equal shares: "scales+zero_points");
    `padding_bits` of the payload only fill up a byte or a word; `once_bits` are stored once, however long the tensor.
    `counts` depend on the data: n_outliers, n_pool, ...; n_packed_elements where some elements are kept in FP16.
    """

    buffers: Mapping[str, np.ndarray]
    part_of: Mapping[str, str]
    n_elements: int
    padding_bits: int
    counts: Mapping[str, int]
    once_bits: int = 0

    @property
    def stored_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(array.nbytes for array in self.buffers.values())

    @property
    def ledger(self) -> dict[str, int]:
        """Bits by part, in the order of `PARTS`, zeros left out; the sum is 8 * stored_bytes."""
        bits = dict.fromkeys(PARTS, 0)
        part_of = self.part_of
        for name, array in self.buffers.items():
            parts = part_of[name].split("+")
            for part in parts:
                bits[part] += 8 * array.nbytes // len(parts)
        padding = self.padding_bits
        bits["payload"] -= padding
        bits["padding"] += padding
        return {part: n for part, n in bits.items() if n}

    @property
    def stored_bits(self) -> Fraction:
        """8 * stored_bytes / elements: what drives bytes, time and capacity (0 while empty)."""
        return Fraction(8 * self.stored_bytes, self.n_elements) if self.n_elements else Fraction(0)

    @property
    def effective_bits(self) -> Fraction:
        """Bits an element as the method's paper counts them: without chunk counts and padding, and without what the
        length decides (tokens kept in FP16, sinks); 0 where nothing is packed."""
        n_bits = sum(n for part, n in self.ledger.items() if part in ("payload", "scales", "zero_points", "outliers"))
        elements = self.counts.get("n_packed_elements", self.n_elements)
        return Fraction(n_bits - self.once_bits, elements) if elements else Fraction(0)


@dataclass(frozen=True)
class Packed(Stored):
    """A quantized tensor: the very bytes it would occupy, by buffer."""

    method: Any
    shape: tuple[int, ...]
    n_elements: int
    buffers: Mapping[str, np.ndarray]
    part_of: Mapping[str, str]
    padding_bits: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    once_bits: int = 0
    #: heads of a tensor [tokens, channels]
    n_heads: int = 1

    def __post_init__(self) -> None:
        for name in self.buffers:
            if not set(self.part_of.get(name, "").split("+")) <= set(PARTS):
                raise ValueError(f"buffer {name}: has no ledger part")
        object.__setattr__(self, "buffers", {name: _frozen(array) for name, array in self.buffers.items()})
        object.__setattr__(self, "counts", dict(self.counts))

    @property
    def axes(self) -> tuple[int, int, int, int]:
        """(batch, heads, tokens, head_dim) of the tensor; [n] is one token, zeros for a shape that is no tensor's."""
        shape = self.shape
        if len(shape) == 4:
            return shape[0], shape[1], shape[2], shape[3]
        if len(shape) not in (1, 2):
            return 0, 0, 0, 0
        return 1, self.n_heads, shape[0] if len(shape) == 2 else 1, shape[-1] // self.n_heads

    def dequantize(self) -> np.ndarray:
        """The tensor that attention sees, FP16, of the shape that was quantized."""
        tensor: np.ndarray = self.method.dequantize(self)
        return tensor


def _frozen(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
