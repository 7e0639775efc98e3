"""What a quantizer gives back: the packed buffers, and what they cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from kernels_ref.formats import PARTS


def _frozen(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


@dataclass(frozen=True)
class Packed:
    """A quantised tensor: the very bytes it would occupy, by buffer.

    `part_of` names the ledger part of every buffer (one of `PARTS`, or several in equal shares: "scales+zero_points");
    `padding_bits` of the payload only fill up a byte or a word. `n_elements` are the elements of the tensor.
    """

    method: Any
    shape: tuple[int, ...]
    n_elements: int
    buffers: Mapping[str, np.ndarray]
    part_of: Mapping[str, str]
    padding_bits: int = 0
    #: counts that depend on the data, for the closed-form ledger: n_outliers, n_pool, n_evicted, ...
    counts: Mapping[str, int] = None  # type: ignore[assignment]
    #: bits in the buffers that are stored once, however long the tensor
    once_bits: int = 0

    def __post_init__(self) -> None:
        for name in self.buffers:
            if not set(self.part_of.get(name, "").split("+")) <= set(PARTS):
                raise ValueError(f"buffer {name}: has no ledger part")
        object.__setattr__(self, "buffers", {name: _frozen(array) for name, array in self.buffers.items()})
        object.__setattr__(self, "counts", dict(self.counts or {}))

    @property
    def stored_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(array.nbytes for array in self.buffers.values())

    @property
    def ledger(self) -> dict[str, int]:
        """Bits by part, in the order of `PARTS`, zeros left out; the sum is 8 * stored_bytes."""
        bits = dict.fromkeys(PARTS, 0)
        for name, array in self.buffers.items():
            parts = self.part_of[name].split("+")
            for part in parts:
                bits[part] += 8 * array.nbytes // len(parts)
        bits["payload"] -= self.padding_bits
        bits["padding"] += self.padding_bits
        return {part: n for part, n in bits.items() if n}

    @property
    def stored_bits(self) -> Fraction:
        """8 * stored_bytes / elements: what drives bytes, time and capacity (0 for an empty tensor)."""
        return Fraction(8 * self.stored_bytes, self.n_elements) if self.n_elements else Fraction(0)

    @property
    def effective_bits(self) -> Fraction:
        """Bits an element as the method's paper counts them: without chunk counts and padding, and without what the
        length decides (tokens kept in FP16, sinks); 0 where nothing is packed."""
        ledger = self.ledger
        own = sum(bits for part, bits in ledger.items() if part in ("payload", "scales", "zero_points", "outliers"))
        elements = self.counts.get("n_packed_elements", self.n_elements)
        return Fraction(own - self.once_bits, elements) if elements else Fraction(0)

    def dequantize(self) -> np.ndarray:
        """The tensor that attention sees, FP16, of the shape that was quantised."""
        return self.method.dequantize(self)
