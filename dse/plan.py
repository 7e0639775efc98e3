"""A model and its quantizers laid out: which bits every layer stores, read, and unpacks at a context length.

The plan is the border between specs and formulas: it holds plain numbers only, and everything it reports is a sum
over its groups of a formula from `dse.formulas`. Bits are exact integers over the common denominator `den`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dse.errors import LimitError
from dse.formulas import attention, kv_cache, memory_unit
from dse.quantizers import QuantizerSpec, TensorShape
from dse.quantizers.base import N_SHALLOW_LAYERS, PARTS, TensorLayout
from dse.specs import LayerKV, ModelSpec

#: stands for "no window": beyond any length that the tool accepts
NO_WINDOW = 2**61
#: straight pieces of one generation; more than this would take seconds
MAX_PIECES = 2_000_000


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
    #: a memory unit's: bits of a token that fill pages of their own, of all heads; a page and a burst of every head
    streams: tuple[int, ...] = ()
    page_row_bits: int = 0
    burst_row_bits: int = 0

    def bits(self, n_tokens: int) -> int:
        """Bits of one layer and sequence at a context of `n_tokens`."""
        return kv_cache.tensor_bits(
            kv_cache.kept_tokens(n_tokens, self.window_tokens),
            self.packed_bits,
            self.full_bits,
            self.once_bits,
            self.pool_bits,
            self.step_tokens,
            self.residual_tokens,
        )

    def slope(self, n_tokens: int) -> int:
        """Bits that the next token adds inside the straight piece at `n_tokens`."""
        return kv_cache.piece_slope(
            n_tokens, self.packed_bits, self.full_bits, self.step_tokens, self.residual_tokens, self.window_tokens
        )

    def packed(self, n_tokens: int) -> int:
        """Packed tokens at a context of `n_tokens`."""
        return kv_cache.packed_tokens(
            kv_cache.kept_tokens(n_tokens, self.window_tokens), self.step_tokens, self.residual_tokens
        )

    def packed_slope(self, n_tokens: int) -> int:
        """Packed tokens that the next token adds inside the straight piece at `n_tokens`."""
        return kv_cache.piece_slope(n_tokens, 1, 0, self.step_tokens, self.residual_tokens, self.window_tokens)

    def padding_bits(self, n_tokens: int, page_tokens: int) -> int:
        """Bits of the unused slots of the last page of one layer and sequence."""
        kept = kv_cache.kept_tokens(n_tokens, self.window_tokens)
        if self.page_row_bits:
            return sum(memory_unit.page_tail_bits(kept, bits, self.page_row_bits) for bits in self.streams)
        return self.tail_bits * kv_cache.padding_tokens(kept, page_tokens)

    def sum_of_padding_bits(self, n_tokens: int, page_tokens: int) -> int:
        """`padding_bits` summed over the lengths 1..n_tokens; closed form, exact."""
        inside = min(n_tokens, self.window_tokens)
        beyond = (n_tokens - inside) * self.padding_bits(inside, page_tokens)
        if self.page_row_bits:
            tails = (memory_unit.sum_of_page_tail_bits(inside, bits, self.page_row_bits) for bits in self.streams)
            return sum(tails) + beyond
        slots = page_tokens * kv_cache.sum_of_pages(inside, page_tokens)
        return self.tail_bits * (slots - inside * (inside + 1) // 2) + beyond

    def shared_bits(self, n_tokens: int, prefix_tokens: int) -> int:
        """Bits of one layer and sequence of `n_tokens` that a common prefix lets sequences share."""
        if self.window_tokens < n_tokens:  # the window has moved past the start of the prompt
            return 0
        if self.page_row_bits:  # pages that the prefix fills; a sequence that is nothing but prefix is shared whole
            if n_tokens <= prefix_tokens:
                return n_tokens * self.packed_bits + self.padding_bits(n_tokens, 1)
            whole = (memory_unit.whole_page_bits(prefix_tokens, bits, self.page_row_bits) for bits in self.streams)
            return sum(whole) + prefix_tokens * (self.packed_bits - sum(self.streams))
        packed = self.packed(n_tokens)
        shared = kv_cache.shareable_tokens(min(prefix_tokens, n_tokens), packed, self.step_tokens)
        inside = min(shared, packed)
        return inside * self.packed_bits + (shared - inside) * self.full_bits

    @property
    def written_bits(self) -> int:
        """Bits that the memory takes to write one packed token of one layer: slices of a head rounded up to bursts."""
        rounded = sum(memory_unit.written_bits(bits, self.burst_row_bits) for bits in self.streams)
        return rounded + self.packed_bits - sum(self.streams)

    @property
    def tile_tokens(self) -> int:
        """Tokens to whose multiple the method's code pads unpacked tensors before its product; 1 for none."""
        return self.quantizer.family.gpu_code.tile_tokens

    @property
    def tail_bits(self) -> int:
        """Bits of the slot that the next token will take: what an unused slot of a page costs."""
        per_token = self.step_tokens == 1 and self.residual_tokens == 0
        return self.packed_bits if per_token else self.full_bits


@dataclass(frozen=True)
class Piece:
    """A stretch of lengths over which every amount is first + slope * i, i = 0 .. n_steps - 1."""

    start: int
    n_steps: int
    read_bits: int
    read_slope: int
    flops: int
    flops_slope: int
    #: elements unpacked per path
    unpacked: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class KvPlan:
    """All tensors of a model under one key and one value quantizer, for one sequence."""

    model: ModelSpec
    key_quantizer: QuantizerSpec
    value_quantizer: QuantizerSpec
    groups: tuple[TensorGroup, ...]
    den: int
    #: layer shapes by `shape_index`, and how many layers of the model have them
    layers: tuple[tuple[LayerKV, int], ...]

    @property
    def quantizer_name(self) -> str:
        """One name where keys and values agree, else both."""
        key, value = self.key_quantizer.name, self.value_quantizer.name
        return key if key == value else f"K {key} / V {value}"

    @property
    def effective_bits(self) -> Fraction:
        """Mean over all stored elements of what the methods' papers count."""
        elements = sum(g.n_stored_layers * g.n_elements for g in self.groups)
        bits = sum((g.n_stored_layers * g.n_elements * g.layout.effective_bits for g in self.groups), Fraction(0))
        return bits / elements

    def elements(self, n_tokens: int) -> int:
        """Elements that one sequence stores at a context of `n_tokens`."""
        return sum(
            g.n_stored_layers * g.n_elements * kv_cache.kept_tokens(n_tokens, g.window_tokens) for g in self.groups
        )

    def bits(self, n_tokens: int) -> int:
        """Bits (numerator) that one sequence stores, without page padding."""
        return sum(g.n_stored_layers * g.bits(n_tokens) for g in self.groups)

    def padding_bits(self, n_tokens: int, page_tokens: int) -> int:
        """Bits (numerator) of the unused slots of last pages."""
        return sum(g.n_stored_layers * g.padding_bits(n_tokens, page_tokens) for g in self.groups)

    def read_bits(self, n_tokens: int) -> int:
        """Bits (numerator) that a decode step reads for one sequence."""
        return sum(g.n_read_layers * g.bits(n_tokens) for g in self.groups)

    def flops(self, n_tokens: int) -> int:
        """Operations of attention in one decode step of one sequence."""
        return sum(
            layer.n_layers
            * kv_cache.kept_tokens(n_tokens, _window(layer))
            * attention.attention_flops_per_token(self.model.n_q_heads, layer.score_dim)
            for layer in self.model.layers
        )

    def prompt_flops(self, n_tokens: int) -> int:
        """Operations of causal attention over a prompt of one sequence."""
        return sum(
            layer.n_layers
            * kv_cache.sum_of_kept_tokens(n_tokens, _window(layer))
            * attention.attention_flops_per_token(self.model.n_q_heads, layer.score_dim)
            for layer in self.model.layers
        )

    def shared_bits(self, n_tokens: int, prefix_tokens: int) -> int:
        """Bits (numerator) of the part of a sequence of `n_tokens` that a common prefix lets sequences share."""
        return sum(g.n_stored_layers * g.shared_bits(n_tokens, prefix_tokens) for g in self.groups)

    def ledger(self, n_tokens: int, page_tokens: int = 1) -> dict[str, Fraction]:
        """Bits of one sequence by part; the parts add up to bits + padding_bits, exactly."""
        parts = {part: Fraction(0) for part in PARTS}
        for g in self.groups:
            for part, bits in g.layout.ledger(kv_cache.kept_tokens(n_tokens, g.window_tokens)).items():
                parts[part] += g.n_stored_layers * bits
        parts["padding"] += Fraction(self.padding_bits(n_tokens, page_tokens), self.den)
        return parts

    def sum_of_bits(self, first: int, last: int) -> int:
        """Stored bits (numerator) summed over the lengths first..last, piece by piece; exact."""
        total = 0
        for start, n_steps in self.spans(first, last, self.groups):
            bits, slope = self.bits(start), sum(g.n_stored_layers * g.slope(start) for g in self.groups)
            total += n_steps * bits + slope * (n_steps * (n_steps - 1) // 2)
        return total

    def sum_of_padding_bits(self, first: int, last: int, page_tokens: int) -> int:
        """Page padding (numerator) summed over the lengths first..last; closed form, exact."""
        return sum(
            g.n_stored_layers
            * (g.sum_of_padding_bits(last, page_tokens) - g.sum_of_padding_bits(first - 1, page_tokens))
            for g in self.groups
        )

    def unpacked_elements(self, n_tokens: int) -> int:
        """Packed elements that a decode step reads for one sequence."""
        return sum(g.n_read_layers * g.n_elements * g.packed(n_tokens) for g in self.groups if g.layout.needs_unpacking)

    def workspace_elements(self, n_tokens: int, paths: dict[str, str]) -> int:
        """FP16 elements of one sequence that the materialised path keeps for the layer it works on.

        Where a method's code pads the token dimension for its product (NQKV 3.3), the padding counts.
        """
        by_layer: dict[int, int] = {}
        for g in self.materialised(paths):
            kept = kv_cache.kept_tokens(n_tokens, g.window_tokens)
            elements = g.n_elements * (kept + kv_cache.padding_tokens(kept, g.tile_tokens))
            by_layer[g.shape_index] = by_layer.get(g.shape_index, 0) + elements
        return max(by_layer.values(), default=0)

    def materialised(self, paths: dict[str, str]) -> list[TensorGroup]:
        """The tensors that are written back as FP16 before they are used."""
        return [g for g in self.groups if paths[g.which] == "materialised" and g.layout.needs_unpacking]

    def tile_padding(self, n_tokens: int, paths: dict[str, str]) -> tuple[int, int]:
        """What padding the token dimension costs one sequence (NQKV Figure 7), in padded elements.

        First where only the layer in work is padded, then where the stored cache is: in every layer.
        """
        by_layer: dict[int, tuple[int, int]] = {}
        for g in self.materialised(paths):
            kept = kv_cache.kept_tokens(n_tokens, g.window_tokens)
            elements = g.n_elements * kv_cache.padding_tokens(kept, g.tile_tokens)
            so_far, n_layers = by_layer.get(g.shape_index, (0, g.n_stored_layers))
            by_layer[g.shape_index] = (so_far + elements, n_layers)
        one_layer = max((elements for elements, _ in by_layer.values()), default=0)
        return one_layer, sum(elements * n_layers for elements, n_layers in by_layer.values())

    def spans(
        self, first: int, last: int, groups: Sequence[TensorGroup], breaks: Sequence[int] = ()
    ) -> Iterator[tuple[int, int]]:
        """(start, n_steps) of the straight pieces of `groups` that cover first..last; each of `breaks` starts one."""
        shapes = {(g.step_tokens, g.residual_tokens, g.window_tokens) for g in groups}
        length, n_pieces = first, 0
        while length <= last:
            end = min(min(kv_cache.next_break(length, *shape) for shape in shapes), last + 1)
            end = min([end, *(at for at in breaks if at > length)])
            yield length, end - length
            length, n_pieces = end, n_pieces + 1
            if n_pieces > MAX_PIECES:
                raise LimitError(
                    f"output = {last - first + 1}: packs more than {MAX_PIECES:,} groups: take a larger group"
                )

    def pieces(self, first: int, last: int, paths: dict[str, str]) -> Iterator[Piece]:
        """The straight pieces of a generation whose steps read the lengths first..last."""
        for start, n_steps in self.spans(first, last, self.groups):
            unpacked = {path: (0, 0) for path in ("engine", "fused", "materialised")}
            for g in self.groups:
                if g.layout.needs_unpacking:
                    per_token = g.n_read_layers * g.n_elements
                    now, slope = unpacked[paths[g.which]]
                    unpacked[paths[g.which]] = (
                        now + per_token * g.packed(start),
                        slope + per_token * g.packed_slope(start),
                    )
            flops = self.flops(start)
            yield Piece(
                start,
                n_steps,
                read_bits=self.read_bits(start),
                read_slope=sum(g.n_read_layers * g.slope(start) for g in self.groups),
                flops=flops,
                flops_slope=self.flops(start + 1) - flops if n_steps > 1 else 0,
                unpacked=unpacked,
            )


def _window(layer: LayerKV) -> int:
    return layer.window if layer.window is not None else NO_WINDOW


def build(model: ModelSpec, key_quantizer: QuantizerSpec, value_quantizer: QuantizerSpec) -> KvPlan:
    """The plan of a model under two quantizers. SinkQ treats the first two layers apart, so runs may split."""
    counts: dict[tuple[LayerKV, bool], list[int]] = {}
    index = 0
    for layer in model.layers:
        shape = layer.model_copy(update={"n_layers": 1, "stored": True})
        n_shallow = max(min(N_SHALLOW_LAYERS - index, layer.n_layers), 0)
        for shallow, n_layers in ((True, n_shallow), (False, layer.n_layers - n_shallow)):
            if n_layers:
                entry = counts.setdefault((shape, shallow), [0, 0])
                entry[0] += n_layers if layer.stored else 0
                entry[1] += n_layers
        index += layer.n_layers
    alone = key_quantizer.name != value_quantizer.name
    tensors = []
    for shape_index, ((layer, shallow), (n_stored, n_read)) in enumerate(counts.items()):
        sides = (("key", key_quantizer, layer.key_dim), ("value", value_quantizer, layer.value_dim))
        for which, quantizer, head_dim in sides:
            if head_dim:
                layout = quantizer.layout(TensorShape(which, layer.n_kv_heads, head_dim, shallow, alone))  # type: ignore[arg-type]
                tensors.append((which, quantizer, layout, shape_index, n_stored, n_read, _window(layer)))
    den = math.lcm(*(
        Fraction(bits).denominator
        for _, _, layout, *_ in tensors for bits in (layout.packed_bits_per_token, *layout.pool.values())
    ))  # fmt: skip
    groups = tuple(
        TensorGroup(
            which,
            quantizer,
            layout,
            shape_index,
            n_stored,
            n_read,
            layout.shape.n_elements,
            window,
            packed_bits=int(layout.packed_bits_per_token * den),
            full_bits=layout.full_bits_per_token * den,
            once_bits=sum(layout.once.values()) * den,
            pool_bits=int(sum(layout.pool.values()) * den),
            step_tokens=layout.step,
            residual_tokens=layout.residual,
        )
        for which, quantizer, layout, shape_index, n_stored, n_read, window in tensors
    )
    layers = tuple((layer, n_read) for (layer, _), (_, n_read) in counts.items())
    return KvPlan(model, key_quantizer, value_quantizer, groups, den, layers)
