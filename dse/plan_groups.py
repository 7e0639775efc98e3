"""Equal keys or values of several layers: how many tokens they store and read, and in how many bits."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from dse.formulas import kv_cache, memory_unit, tokens
from dse.quantizers import QuantizerSpec
from dse.quantizers.base import TensorLayout
from dse.token_policies import FULL, NO_LIMIT, TokenLimits

#: stands for "no window": beyond any length that the tool accepts
NO_WINDOW = NO_LIMIT


@dataclass(frozen=True)
class TensorGroup:
    """Equal tensors (keys or values) of several layers. Bit fields are numerators over the plan's denominator."""

    which: str
    quantizer: QuantizerSpec
    layout: TensorLayout
    #: keys and values of the same layers carry the same index
    shape_index: int
    n_stored_layers: int
    n_read_layers: int
    n_elements: int
    window_tokens: int
    packed_bits: int
    full_bits: int
    once_bits: int
    pool_bits: int
    step_tokens: int
    residual_tokens: int
    #: what a token policy changes (dse/token_policies.py); the defaults store and read every token of the window
    limits: TokenLimits = FULL
    #: the layer's own window where a policy is applied, so that another policy can take its place
    layer_window_tokens: int = 0
    index_bits: int = 0
    index_flops: int = 0
    #: what its dequantisation path is found by, where layers have different quantizers
    own_place: str = ""
    #: a memory unit's: bits of a token that fill pages of their own, of all heads; a page and a burst of every head
    streams: tuple[int, ...] = ()
    page_row_bits: int = 0
    burst_row_bits: int = 0

    @property
    def place(self) -> str:
        """What its dequantisation path is found by: "key" or "value", with the quantizer where layers differ."""
        return self.own_place or self.which

    @cached_property
    def read_window_tokens(self) -> int:
        """Most tokens that a step reads."""
        return min(self.window_tokens, self.limits.read_limit_tokens)

    @property
    def whole_tokens(self) -> int:
        """Longest context of which every token is stored."""
        return min(self.window_tokens, self.limits.prompt_kept_tokens)

    def entered(self, n_tokens: int) -> int:
        """Tokens that have come into the cache at a context of `n_tokens`, whether or not a window keeps them."""
        return self.limits.entered(n_tokens) if self.limits.dropped_tokens else n_tokens

    def length_of(self, entered: int) -> int:
        """Shortest context at which `entered` tokens have come into the cache."""
        return self.limits.length_of(entered)

    def stored(self, n_tokens: int) -> int:
        """Tokens stored at a context of `n_tokens`."""
        return kv_cache.kept_tokens(self.entered(n_tokens), self.window_tokens)

    def read(self, n_tokens: int) -> int:
        """Tokens that a step reads at a context of `n_tokens`."""
        return kv_cache.kept_tokens(self.entered(n_tokens), self.read_window_tokens)

    def _bits_of(self, kept: int) -> int:
        bits = (self.packed_bits, self.full_bits, self.once_bits, self.pool_bits)
        return kv_cache.tensor_bits(kept, *bits, self.step_tokens, self.residual_tokens)

    def bits(self, n_tokens: int) -> int:
        """Bits that one layer and sequence stores at a context of `n_tokens`."""
        kept = self.stored(n_tokens)
        return self._bits_of(kept) + kept * self.index_bits

    def read_bits(self, n_tokens: int) -> int:
        """Bits that a step reads: those of a cache of as many tokens as are read, and the index of all stored ones."""
        return self._bits_of(self.read(n_tokens)) + self.stored(n_tokens) * self.index_bits

    def _slope(self, n_tokens: int, packed: int, full: int, window: int) -> int:
        """What the next token adds inside the straight piece at `n_tokens`; nothing while the prompt drops tokens."""
        first, last = self.limits.ends
        if first <= n_tokens < last:
            return 0
        return kv_cache.piece_slope(
            self.entered(n_tokens), packed, full, self.step_tokens, self.residual_tokens, window
        )  # fmt: skip

    def stored_slope(self, n_tokens: int) -> int:
        """Tokens stored that the next token adds: 1 or 0."""
        return self._slope(n_tokens, 1, 1, self.window_tokens)

    def read_token_slope(self, n_tokens: int) -> int:
        """Tokens read that the next token adds: 1 or 0."""
        return self._slope(n_tokens, 1, 1, self.read_window_tokens)

    def slope(self, n_tokens: int) -> int:
        """Stored bits that the next token adds inside the straight piece at `n_tokens`."""
        added = self._slope(n_tokens, self.packed_bits, self.full_bits, self.window_tokens)
        return added + self.index_bits * self.stored_slope(n_tokens) if self.index_bits else added

    def read_slope(self, n_tokens: int) -> int:
        """Bits read that the next token adds inside the straight piece at `n_tokens`."""
        added = self._slope(n_tokens, self.packed_bits, self.full_bits, self.read_window_tokens)
        return added + self.index_bits * self.stored_slope(n_tokens) if self.index_bits else added

    def packed(self, n_tokens: int) -> int:
        """Packed tokens stored at a context of `n_tokens`."""
        return kv_cache.packed_tokens(self.stored(n_tokens), self.step_tokens, self.residual_tokens)

    def read_packed(self, n_tokens: int) -> int:
        """Packed tokens that a step reads at a context of `n_tokens`."""
        return kv_cache.packed_tokens(self.read(n_tokens), self.step_tokens, self.residual_tokens)

    def read_packed_slope(self, n_tokens: int) -> int:
        """Packed tokens read that the next token adds inside the straight piece at `n_tokens`."""
        return self._slope(n_tokens, 1, 0, self.read_window_tokens)

    def padding_bits(self, n_tokens: int, page_tokens: int) -> int:
        """Bits of the unused slots of the last page of one layer and sequence."""
        return self._padding_of(self.stored(n_tokens), page_tokens)

    def _padding_of(self, kept: int, page_tokens: int) -> int:
        if self.page_row_bits:
            return sum(memory_unit.page_tail_bits(kept, bits, self.page_row_bits) for bits in self.streams)
        return self.tail_bits * kv_cache.padding_tokens(kept, page_tokens)

    def sum_of_padding_bits(self, n_tokens: int, page_tokens: int) -> int:
        """`padding_bits` summed over the lengths 1..n_tokens; closed form, exact."""
        kept, dropped = self.limits.prompt_kept_tokens, self.limits.dropped_tokens
        if not self.page_row_bits:
            return self.tail_bits * tokens.sum_of_padding_tokens(
                n_tokens, kept, dropped, self.window_tokens, page_tokens
            )  # fmt: skip
        still = min(max(n_tokens - kept, 0), max(dropped, 0))
        grown = self._sum_of_tails(self.entered(n_tokens)) - self._sum_of_tails(self.entered(0))
        return grown + still * self._padding_of(min(kept, self.window_tokens), page_tokens)

    def _sum_of_tails(self, entered: int) -> int:
        """What last pages of bytes leave unused, summed while tokens come in one by one."""
        inside = min(entered, self.window_tokens)
        tails = (memory_unit.sum_of_page_tail_bits(inside, bits, self.page_row_bits) for bits in self.streams)
        return sum(tails) + (entered - inside) * self._padding_of(inside, 1)

    def shared_bits(self, n_tokens: int, prefix_tokens: int) -> int:
        """Bits of one layer and sequence of `n_tokens` that a common prefix lets sequences share."""
        if n_tokens > self.whole_tokens:  # a window has moved past the start of the prompt, or tokens were evicted
            return 0
        index = min(prefix_tokens, n_tokens) * self.index_bits
        if self.page_row_bits:  # pages that the prefix fills; a sequence that is nothing but prefix is shared whole
            if n_tokens <= prefix_tokens:
                return n_tokens * self.packed_bits + self.padding_bits(n_tokens, 1) + index
            whole = (memory_unit.whole_page_bits(prefix_tokens, bits, self.page_row_bits) for bits in self.streams)
            return sum(whole) + prefix_tokens * (self.packed_bits - sum(self.streams)) + index
        packed = self.packed(n_tokens)
        shared = kv_cache.shareable_tokens(min(prefix_tokens, n_tokens), packed, self.step_tokens)
        inside = min(shared, packed)
        return inside * self.packed_bits + (shared - inside) * self.full_bits + shared * self.index_bits

    @property
    def written_bits(self) -> int:
        """Bits that the memory takes to write one packed token of one layer: slices of a head rounded up to bursts."""
        rounded = sum(memory_unit.written_bits(bits, self.burst_row_bits) for bits in self.streams)
        return rounded + self.packed_bits - sum(self.streams)

    @property
    def tile_tokens(self) -> int:
        """Tokens to whose multiple the method's code pads unpacked tensors before its product; 1 for none."""
        return self.quantizer.family.gpu_code.tile_tokens

    def next_break(self, n_tokens: int) -> int:
        """First length after `n_tokens` that starts a new straight piece of what is stored or read."""
        entered, shape = self.entered(n_tokens), (self.step_tokens, self.residual_tokens)
        windows = {self.window_tokens, self.read_window_tokens}
        found = self.length_of(min(kv_cache.next_break(entered, *shape, window) for window in windows))
        return min([found, *(end + 1 for end in self.limits.ends if end >= n_tokens)])

    @property
    def tail_bits(self) -> int:
        """Bits of the slot that the next token will take: what an unused slot of a page costs."""
        per_token = self.step_tokens == 1 and self.residual_tokens == 0
        return (self.packed_bits if per_token else self.full_bits) + self.index_bits


def joined(groups: Iterable[TensorGroup], layers: str) -> tuple[tuple[int, TensorGroup], ...]:
    """Groups whose sums over `layers` ("n_stored_layers", "n_read_layers") are the same, fewer: (layers, group).

    Those that keep, read and pack the same tokens become one, whose bits are summed: whole numbers, so exact.
    """
    found: dict[object, tuple[int, TensorGroup]] = {}
    for g in groups:
        n = getattr(g, layers)
        if g.page_row_bits:  # pages of bytes are rounded tensor by tensor
            found[id(g)] = n, g
            continue
        key = (g.step_tokens, g.residual_tokens, g.window_tokens)
        so_far = found[key][1] if key in found else None
        found[key] = 1, replace(g, **{
            name: n * getattr(g, name) + (getattr(so_far, name) if so_far else 0)
            for name in ("packed_bits", "full_bits", "once_bits", "pool_bits", "index_bits")
        })  # fmt: skip
    return tuple(found.values())
