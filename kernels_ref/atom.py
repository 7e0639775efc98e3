"""Atom's 4-bit KV cache: asymmetric codes per group of channels inside a head, as Oaken's artifact runs it."""

from dataclasses import dataclass, replace

import numpy as np

from kernels_ref import asymmetric
from kernels_ref.asymmetric_rows import decode_asymmetric, encode_asymmetric, starts_of
from kernels_ref.checks import check_count
from kernels_ref.inputs import NonFinite
from kernels_ref.packed import Packed


@dataclass(frozen=True)
class Atom:
    """Atom KV4: S = h(max(h(max - min), h(1e-5)) / 15), z = clip(rint(h(-min / S)), 0, 15),
    code = clip(rint(h(x / S)) + z, 0, 15), decoded as h((code - z) * S), per `group` channels inside a head.

    As in the artifact the zero point is clipped: a group that does not contain zero loses its offset. A range or
    decoded value beyond 65504 is taken as 65504. `n_heads` of a result is what `quantize` was told.

    Buffers (packing defined here, the artifact only simulates): `codes` uint8 [rows, ceil(channels / 2)], element 2i in
    the low nibble; `scale` and `zero` float16 [rows, heads * ceil(head_dim / group)].
    Source: Atom (arXiv:2310.19102); artifact casys-kaist/oaken@e0bfbf0, Atom/model/quant.py.
    """

    group: int = 128
    n_heads: int = 1

    def __post_init__(self) -> None:
        check_count("group", self.group)
        check_count("n_heads", self.n_heads)

    def quantize(self, x: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Quantise [tokens, channels] of `n_heads` heads or [batch, heads, tokens, head_dim].

        Raises TypeError and ValueError for what is not such a tensor, and for values that are not finite unless
        `nonfinite` is "replace".
        """
        starts = starts_of(np.shape(x), n_heads, self.group)
        method = replace(self, n_heads=n_heads) if n_heads != self.n_heads else self
        return encode_asymmetric(method, x, starts, asymmetric.ATOM, n_heads, nonfinite)

    def dequantize(self, packed: Packed) -> np.ndarray:
        """FP16 of the quantised shape."""
        starts = starts_of(packed.shape, packed.method.n_heads, self.group)
        return decode_asymmetric(packed, starts, asymmetric.ATOM)
