"""QServe's 4-bit KV cache: per head and token as its kernels store it, or per token as Oaken's artifact runs it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kernels_ref import asymmetric, half
from kernels_ref.asymmetric_rows import (
    columns_of,
    decode_asymmetric,
    decode_block,
    encode_asymmetric,
    encode_block,
    starts_of,
)
from kernels_ref.checks import check_choice, check_count
from kernels_ref.inputs import NonFinite
from kernels_ref.packed import Packed
from kernels_ref.rows import Buffers, channels_of, checked_tensor, decode_rows, encode_rows


@dataclass(frozen=True)
class QServe:
    """QServe KV4, asymmetric.

    mode "head": per head and token, in float32: S = h((max - min) / 15), Z = h(-15 * min / (max - min)),
    code = clip(rint(x * (1 / S) + Z), 0, 15), decoded as h((code - Z) * S). Where S is zero (a constant head, or a
    range of at most 7 subnormal steps) the codes are 0, S = 1 and Z = -min: every element decodes to the minimum.
    Source: QServe (arXiv:2405.04532), released kernel applyBiasRopeUpdateKVCache.h; its fused GPU instructions may
    round differently.

    mode "artifact": per token over all channels, every step in FP16: q = h(h(1 / h(max - min)) * 15), o = h(min * q),
    code = rint(h(h(q * x) - o)), decoded as h(h(code + o) / q). A token whose q is not finite (range zero or below
    2.3e-4) is NaN in the artifact; here its codes are 0, q = 1 and o = min. Codes that the artifact lets run out of 0
    to 15 are clipped. `smooth`: FP16 factors per channel; keys are multiplied by h(1 / smooth) before and by smooth
    after (SmoothAttention; fixed with the weights, not counted as stored).

    In both modes a range, product or decoded value beyond 65504 is taken as 65504.
    Source: artifact casys-kaist/oaken@e0bfbf0, src/qserve/quantize.py.

    Buffers (packing defined here): `codes` uint8 [rows, ceil(channels / 2)], element 2i in the low nibble; `scale` and
    `zero` (S and Z, or q and o) float16 [rows, heads] or [rows, 1]. `n_heads` of a result is what `quantize` was told.
    """

    mode: Literal["head", "artifact"] = "head"
    smooth: tuple[float, ...] | None = None
    n_heads: int = 1

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("head", "artifact"))
        check_count("n_heads", self.n_heads)
        if self.smooth is None:
            return
        if self.mode == "head":
            raise ValueError("smooth: must be None in mode 'head', where it is folded into the weights")
        factors = np.array(self.smooth, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            exact = factors.astype(np.float16) == factors
        if factors.ndim != 1 or not factors.size or not (exact & np.isfinite(factors) & (factors > 2.0**-15)).all():
            raise ValueError("smooth: must be FP16 numbers above 2^-15, one per channel")

    def _starts(self, shape: tuple[int, ...], n_heads: int) -> np.ndarray:
        channels = channels_of(shape)
        if self.mode == "artifact":
            return starts_of((1, channels), 1, max(channels, 1))
        return starts_of(shape, n_heads, max(channels, 1))

    def quantize(self, x: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Quantise [tokens, channels] of `n_heads` heads or [batch, heads, tokens, head_dim].

        Raises TypeError and ValueError for what is not such a tensor, for values that are not finite unless `nonfinite`
        is "replace", and where `smooth` is not of as many channels.
        """
        starts = self._starts(np.shape(x), n_heads)
        method = replace(self, n_heads=n_heads) if n_heads != self.n_heads else self
        if self.smooth is None:
            return encode_asymmetric(method, x, starts, self._form, n_heads, nonfinite)
        channels = checked_tensor(x, n_heads, nonfinite)[0].n_channels
        inverse = (np.float16(1) / self._factors(channels)).astype(np.float32)

        def encode(bits: np.ndarray, buffers: Buffers) -> None:
            scaled = np.empty_like(bits)
            asymmetric.scale_channels(bits, inverse, scaled)
            encode_block(starts, self._form, scaled, buffers)

        columns = columns_of(np.shape(x), 1)
        padding = 4 * (channels % 2)
        return encode_rows(method, x, columns, encode, n_heads=n_heads, nonfinite=nonfinite, padding_bits=padding)

    def dequantize(self, packed: Packed) -> np.ndarray:
        """FP16 of the quantised shape."""
        starts = self._starts(packed.shape, packed.method.n_heads)
        if self.smooth is None:
            return decode_asymmetric(packed, starts, self._form)
        factors = self._factors(channels_of(packed.shape)).astype(np.float32)

        def decode(buffers: Buffers, bits: np.ndarray) -> None:
            scaled = np.empty_like(bits)
            decode_block(starts, self._form, buffers, scaled)
            asymmetric.scale_channels(scaled, factors, bits)

        return decode_rows(packed, columns_of(packed.shape, 1), decode)

    @property
    def _form(self) -> int:
        return asymmetric.QSERVE_HEAD if self.mode == "head" else asymmetric.QSERVE_ARTIFACT

    def _factors(self, channels: int) -> np.ndarray:
        factors = np.array(self.smooth, np.float16)
        if factors.size != channels:
            raise ValueError(
                f"smooth has {factors.size} factors: must have one for each of the {channels} channels of x"
            )
        return factors


def smooth_factors(key: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> tuple[float, ...]:
    """`QServe.smooth` as Oaken's artifact derives it from sample keys: h(sqrt(max |K|)) per channel, alpha 0.5.

    A channel of zeros gets 1.
    """
    tensor, _ = checked_tensor(key, n_heads, nonfinite)
    largest: Sequence[int] | np.ndarray = np.zeros(tensor.n_channels, np.uint16)
    for _, bits in tensor.row_blocks():
        largest = np.maximum(largest, (bits & half.ABS).max(axis=0))
    values = np.asarray(largest, np.uint16).view(np.float16).astype(np.float32)
    return tuple(float(value) for value in np.where(values > 0, np.sqrt(values), 1).astype(np.float16))
