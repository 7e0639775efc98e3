"""KIVI: keys quantised per channel, values per token, the most recent tokens in FP16.

KIVI (arXiv:2402.02750) sections 3 and 4; released code jy-yuan/KIVI@876b4d2: quant/new_pack.py for the codes,
models/llama_kivi.py for what is packed when.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_ref.checks import check_choice, check_count
from kernels_ref.formats import storage
from kernels_ref.inputs import KVTensor, NonFinite, kv_tensor
from kernels_ref.kivi_store import BITS, KEY_LAYOUTS, OVERFLOWS, SIDES, GroupCodec, Side
from kernels_ref.packed import Packed
from kernels_ref.streaming import Half, StreamingCache, complaints_about, empty_result, part_of


def check_core(bits: int, group: int, overflow: str, key_layout: str) -> None:
    """Raise ValueError unless these are parameters of KIVI's core: codes of a group fill whole 32-bit words."""
    check_choice("bits", bits, BITS)
    check_count("group", group)
    codes = storage.word // bits
    if group % codes:
        raise ValueError(
            f"group = {group}: must be a multiple of {codes} ({bits}-bit codes in {storage.word}-bit words)"
        )
    check_choice("overflow", overflow, OVERFLOWS)
    check_choice("key_layout", key_layout, KEY_LAYOUTS)


@dataclass(frozen=True)
class KIVI:
    """KIVI with codes of 1, 2, 4 or 8 bits in groups of `group` elements that share an FP16 scale and minimum.

    Keys: groups of tokens per channel, packed `residual` tokens at a time. Values: groups of channels per token and
    head, one token a step once more than `residual` are held. residual = 0 packs all whole groups.

    overflow: what becomes of groups that would decode to infinity or NaN, since their range or its rounded scale goes
    beyond 65504: "raise" ValueError, "saturate" at 65504, or "propagate" as the released code does.
    key_layout: words of keys as [batch, heads, tokens, channels] ("torch") or [batch, heads, channels, tokens]
    ("triton", the released kernels); the bytes are as many.
    """

    bits: int = 2
    group: int = 32
    residual: int = 128
    overflow: str = "raise"
    key_layout: str = "torch"

    def __post_init__(self) -> None:
        check_core(self.bits, self.group, self.overflow, self.key_layout)
        check_count("residual", self.residual, 0)
        if self.residual % self.group:
            raise ValueError(f"residual = {self.residual}: must be a multiple of group = {self.group}")

    def codec(self, side: Side) -> GroupCodec:
        """The core for keys or for values."""
        return GroupCodec(side, self.bits, self.group, self.overflow)

    def n_packed(self, side: Side, n_tokens: int) -> int:
        """Of n tokens, how many are packed."""
        if side == "value":
            return max(n_tokens - self.residual, 0)
        step = self.residual or self.group
        return n_tokens // step * step

    def quantize(self, x: np.ndarray, side: Side = "key", n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Keys or values of one layer as they are stored at that length.

        x: FP16, BF16 or FP32, [tokens, channels] of n_heads heads or [batch, heads, tokens, head_dim]. Buffers, for
        side "key" (value: value_...): key_codes (int32), key_scales and key_mins (FP16) of the packed tokens,
        key_recent (FP16) [batch, heads, tokens, head_dim] of the others. Raises TypeError and ValueError.
        """
        check_choice("side", side, SIDES)
        kv = kv_tensor(x, n_heads, nonfinite)
        n_batch, heads, n_tokens, head_dim = kv.array.shape
        half = Half(self.codec(side), n_batch, heads, head_dim, self.key_layout)
        n_packed = self.n_packed(side, n_tokens)
        half.pack(kv, n_packed)
        half.commit(n_packed, half.rest(kv, n_packed))
        buffers = {f"{side}_{name}": array for name, array in half.buffers().items()}
        return Packed(
            self,
            kv.shape,
            kv.array.size,
            buffers,
            {name: part_of(name) for name in buffers},
            half.groups.padding_bits,
            {"n_packed_elements": n_packed * n_batch * heads * head_dim},
        )

    def dequantize(self, packed: Packed) -> np.ndarray:
        """The tensor that attention sees, FP16, of the shape that was quantised: h(h(code * scale) + min)."""
        side: Side = "key" if "key_codes" in packed.buffers else "value"
        codes, scales, mins, recent = (
            packed.buffers[f"{side}_{name}"] for name in ("codes", "scales", "mins", "recent")
        )
        n_batch, n_heads, n_recent, head_dim = recent.shape
        half = Half(self.codec(side), n_batch, n_heads, head_dim, self.key_layout)
        n_tokens = packed.shape[0 if len(packed.shape) == 2 else 2]
        half.groups.adopt(n_tokens - n_recent, codes, scales, mins)
        half.recent = recent.view(np.uint16).reshape(n_batch * n_heads, n_recent, head_dim)
        result, patterns = empty_result(packed.shape, n_heads)
        half.unpack(patterns)
        return result

    def cache(self, n_heads: int = 1, nonfinite: NonFinite = "raise") -> "KIVICache":
        """An empty cache of one layer. n_heads: heads of tensors [tokens, channels]."""
        return KIVICache(self, n_heads, nonfinite)


class KIVICache(StreamingCache):
    """A KIVI cache that grows by `append`; `buffers` are those of `KIVI.quantize` for both sides."""

    def __init__(self, method: KIVI, n_heads: int = 1, nonfinite: NonFinite = "raise") -> None:
        super().__init__(method, method.codec, n_heads, nonfinite)

    def _extend(self, halves: dict[Side, Half], tensors: dict[Side, KVTensor]) -> None:
        due: dict[Side, tuple[int, Any]] = {}
        for side, half in halves.items():
            with complaints_about(side):
                kv = tensors[side]
                n = self.method.n_packed(side, half.n_tokens + kv.array.shape[2]) - half.groups.n_tokens
                half.pack(kv, n)
                due[side] = n, half.rest(kv, n)
        for side, half in halves.items():
            half.commit(*due[side])
