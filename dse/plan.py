"""A model and its quantizers laid out: which bits every layer stores, read, and unpacks at a context length.

The plan is the border between specs and formulas: it holds plain numbers only, and everything it reports is a sum
over its groups of a formula from `dse.formulas`. Bits are exact integers over the common denominator `den`.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

from dse.errors import LimitError
from dse.formulas import attention, kv_cache
from dse.plan_groups import NO_WINDOW, TensorGroup, joined
from dse.quantizers import QuantizerSpec, TensorShape, layered
from dse.quantizers.base import N_SHALLOW_LAYERS, PARTS
from dse.specs import LayerKV, ModelSpec
from dse.token_policies import FULL, TokenLimits

T = TypeVar("T")

__all__ = ["NO_WINDOW", "KvPlan", "Piece", "TensorGroup", "build"]

#: straight pieces of one generation; more than this would take seconds
MAX_PIECES = 2_000_000
#: answers that a plan keeps for being asked again; and pieces of a generation in one of them
MAX_KNOWN = 1024
MAX_KNOWN_PIECES = 256


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
    #: what a token policy means for the prompt of a workload; see `under`
    limits: TokenLimits = FULL

    def under(self, limits: TokenLimits) -> "KvPlan":
        """The same plan under a token policy; each layer keeps its own window where that is smaller."""
        if limits == self.limits:
            return self
        return self.once(limits, lambda: self._under(limits))

    def once(self, key: Hashable, build: Callable[[], T]) -> T:
        """What `build` gives, built once for a `key`: the points of a curve ask the same of a plan again and again."""
        known: T | None = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = build()
        return known

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    def _under(self, limits: TokenLimits) -> "KvPlan":
        groups = []
        for g in self.groups:
            own = g.layer_window_tokens or g.window_tokens
            indexed = g.which == "key" and own > limits.read_limit_tokens
            groups.append(replace(
                g, limits=limits, layer_window_tokens=own, window_tokens=min(own, limits.window_tokens),
                index_bits=limits.index_bits * self.den * indexed, index_flops=limits.index_flops * indexed,
            ))  # fmt: skip
        return replace(self, groups=tuple(groups), limits=limits)

    def mean_tokens(self, n_tokens: int) -> tuple[Fraction, Fraction]:
        """Tokens stored and tokens that a step reads at a context of `n_tokens`: means over all layers."""
        keys = [g for g in self.groups if g.which == "key"]
        n_layers = sum(g.n_read_layers for g in keys)
        stored = Fraction(sum(g.n_read_layers * g.stored(n_tokens) for g in keys), n_layers)
        return stored, Fraction(sum(g.n_read_layers * g.read(n_tokens) for g in keys), n_layers)

    @cached_property
    def _stored(self) -> tuple[tuple[int, TensorGroup], ...]:
        return joined(self.groups, "n_stored_layers")

    @cached_property
    def _read(self) -> tuple[tuple[int, TensorGroup], ...]:
        return joined(self.groups, "n_read_layers")

    @cached_property
    def regime_ends(self) -> frozenset[int]:
        """Contexts at which a window is full, or between which the prompt's tokens are dropped."""
        return frozenset(end for g in self.groups for end in (g.length_of(g.window_tokens), *g.limits.ends))

    @cached_property
    def packings(self) -> tuple[tuple[int, int], ...]:
        """(step_tokens, residual_tokens) of the groups that are packed several tokens at a time, each once."""
        return tuple(dict.fromkeys((g.step_tokens, g.residual_tokens) for g in self.groups if g.step_tokens > 1))

    @property
    def quantizer_name(self) -> str:
        """One name where keys and values agree, else both."""
        key, value = self.key_quantizer.name, self.value_quantizer.name
        return key if key == value else f"K {key} / V {value}"

    @cached_property
    def effective_bits(self) -> Fraction:
        """Mean over all stored elements of what the methods' papers count."""
        elements = sum(g.n_stored_layers * g.n_elements for g in self.groups)
        bits = sum((g.n_stored_layers * g.n_elements * g.layout.effective_bits for g in self.groups), Fraction(0))
        return bits / elements

    def elements(self, n_tokens: int) -> int:
        """Elements that one sequence stores at a context of `n_tokens`."""
        return sum(g.n_stored_layers * g.n_elements * g.stored(n_tokens) for g in self.groups)

    def bits(self, n_tokens: int) -> int:
        """Bits (numerator) that one sequence stores, without page padding."""
        return sum(layers * g.bits(n_tokens) for layers, g in self._stored)

    def padding_bits(self, n_tokens: int, page_tokens: int) -> int:
        """Bits (numerator) of the unused slots of last pages."""
        return sum(layers * g.padding_bits(n_tokens, page_tokens) for layers, g in self._stored)

    def read_bits(self, n_tokens: int) -> int:
        """Bits (numerator) that a decode step reads for one sequence."""
        return sum(layers * g.read_bits(n_tokens) for layers, g in self._read)

    def flops(self, n_tokens: int) -> int:
        """Operations of attention in one decode step of one sequence, scoring for sparse reading included."""
        entered = self.limits.entered(n_tokens)
        return self._flops(lambda window: kv_cache.kept_tokens(entered, window), self.limits.read_limit_tokens)

    def prompt_flops(self, n_tokens: int) -> int:
        """Operations of causal attention over a prompt of one sequence."""
        return self._flops(
            lambda window: kv_cache.sum_of_kept_tokens(n_tokens, window), self.limits.prompt_window_tokens, prompt=True
        )

    def _flops(self, pairs: Callable[[int], int], read_limit: int, prompt: bool = False) -> int:
        """Operations over the query-key pairs that `pairs` counts for a window, index scores included."""
        total = 0
        for layer in self.model.layers:
            window = _window(layer) if prompt else min(_window(layer), self.limits.window_tokens)
            per_pair = attention.attention_flops_per_token(self.model.n_q_heads, layer.score_dim)
            total += layer.n_layers * pairs(min(window, read_limit)) * per_pair
            if self.limits.index_flops and _window(layer) > self.limits.read_limit_tokens:
                total += layer.n_layers * pairs(window) * self.limits.index_flops
        return total

    def shared_bits(self, n_tokens: int, prefix_tokens: int) -> int:
        """Bits (numerator) of the part of a sequence of `n_tokens` that a common prefix lets sequences share."""
        return sum(g.n_stored_layers * g.shared_bits(n_tokens, prefix_tokens) for g in self.groups)

    def ledger(self, n_tokens: int, page_tokens: int = 1) -> dict[str, Fraction]:
        """Bits of one sequence by part; the parts add up to bits + padding_bits, exactly."""
        parts = {part: Fraction(0) for part in PARTS}
        for g in self.groups:
            for part, bits in g.layout.ledger(g.stored(n_tokens)).items():
                parts[part] += g.n_stored_layers * bits
            if g.index_bits:
                index = Fraction(g.n_stored_layers * g.stored(n_tokens) * g.index_bits, self.den)
                parts["index"] = parts.get("index", Fraction(0)) + index
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
        return sum(
            g.n_read_layers * g.n_elements * g.read_packed(n_tokens) for g in self.groups if g.layout.needs_unpacking
        )

    def workspace_elements(self, n_tokens: int, paths: dict[str, str]) -> int:
        """FP16 elements of one sequence that the materialised path keeps for the layer it works on.

        Where a method's code pads the token dimension for its product (NQKV 3.3), the padding counts.
        """
        by_layer: dict[int, int] = {}
        for g in self.materialised(paths):
            kept = g.read(n_tokens)
            elements = g.n_elements * (kept + kv_cache.padding_tokens(kept, g.tile_tokens))
            by_layer[g.shape_index] = by_layer.get(g.shape_index, 0) + elements
        return max(by_layer.values(), default=0)

    def materialised(self, paths: dict[str, str]) -> list[TensorGroup]:
        """The tensors that are written back as FP16 before they are used."""
        return [g for g in self.groups if paths[g.place] == "materialised" and g.layout.needs_unpacking]

    def tile_padding(self, n_tokens: int, paths: dict[str, str]) -> tuple[int, int]:
        """What padding the token dimension costs one sequence (NQKV Figure 7), in padded elements.

        First where only the layer in work is padded, then where the stored cache is: in every layer.
        """
        by_layer: dict[int, tuple[int, int]] = {}
        for g in self.materialised(paths):
            elements = g.n_elements * kv_cache.padding_tokens(g.read(n_tokens), g.tile_tokens)
            so_far, n_layers = by_layer.get(g.shape_index, (0, g.n_stored_layers))
            by_layer[g.shape_index] = (so_far + elements, n_layers)
        one_layer = max((elements for elements, _ in by_layer.values()), default=0)
        return one_layer, sum(elements * n_layers for elements, n_layers in by_layer.values())

    def spans(
        self, first: int, last: int, groups: Sequence[TensorGroup], breaks: Sequence[int] = ()
    ) -> Iterator[tuple[int, int]]:
        """(start, n_steps) of the straight pieces of `groups` that cover first..last; each of `breaks` starts one."""
        shapes = {(g.step_tokens, g.residual_tokens, g.window_tokens): g for g in groups}  # limits are the plan's
        length, n_pieces = first, 0
        while length <= last:
            end = min(min(g.next_break(length) for g in shapes.values()), last + 1)
            end = min([end, *(at for at in breaks if at > length)])
            yield length, end - length
            length, n_pieces = end, n_pieces + 1
            if n_pieces > MAX_PIECES:
                raise LimitError(
                    f"output = {last - first + 1}: packs more than {MAX_PIECES:,} groups: take a larger group"
                )

    def few(self, key: Hashable, build: Callable[[], Iterator[T]]) -> Iterable[T]:
        """What `build` yields, kept like `once` does where that is little."""
        found = self.once(key, lambda: tuple(islice(build(), MAX_KNOWN_PIECES + 1)))
        return found if len(found) <= MAX_KNOWN_PIECES else build()

    def pieces(self, first: int, last: int, paths: dict[str, str]) -> Iterable[Piece]:
        """The straight pieces of a generation whose steps read the lengths first..last."""
        return self.few((first, last, *paths.values()), lambda: self._pieces(first, last, paths))

    def _pieces(self, first: int, last: int, paths: dict[str, str]) -> Iterator[Piece]:
        for start, n_steps in self.spans(first, last, self.groups):
            unpacked = {path: (0, 0) for path in ("engine", "fused", "materialised")}
            for g in self.groups:
                if g.layout.needs_unpacking:
                    per_token = g.n_read_layers * g.n_elements
                    now, slope = unpacked[paths[g.place]]
                    unpacked[paths[g.place]] = (
                        now + per_token * g.read_packed(start),
                        slope + per_token * g.read_packed_slope(start),
                    )
            flops = self.flops(start)
            yield Piece(
                start,
                n_steps,
                read_bits=self.read_bits(start),
                read_slope=sum(g.n_read_layers * g.read_slope(start) for g in self.groups),
                flops=flops,
                flops_slope=self.flops(start + 1) - flops if n_steps > 1 else 0,
                unpacked=unpacked,
            )


def _window(layer: LayerKV) -> int:
    return layer.window if layer.window is not None else NO_WINDOW


def _runs(
    first: int, n_layers: int, key: QuantizerSpec, value: QuantizerSpec
) -> Iterator[tuple[bool, tuple[QuantizerSpec, QuantizerSpec], int]]:
    """Layers from `first` on, by depth and quantizers: (shallow, quantizers, layers); one by one if they may differ."""
    if key.layers or value.layers:
        for i in range(first, first + n_layers):
            yield i < N_SHALLOW_LAYERS, (key.of("key", i), value.of("value", i)), 1
        return
    n_shallow = max(min(N_SHALLOW_LAYERS - first, n_layers), 0)
    for shallow, n in ((True, n_shallow), (False, n_layers - n_shallow)):
        if n:
            yield shallow, (key, value), n


def build(model: ModelSpec, key_quantizer: QuantizerSpec, value_quantizer: QuantizerSpec) -> KvPlan:
    """The plan of a model under two quantizers, either of them a plan by layer (dse/quantizers/layered.py).

    SinkQ treats the first two layers apart, so runs may split. Raises InputError for a plan of other layers.
    """
    for side in (key_quantizer, value_quantizer):
        layered.check(side, sum(layer.n_layers for layer in model.layers), model.name)
    counts: dict[tuple[LayerKV, bool, str, str], list[int]] = {}
    by_name: dict[tuple[str, str], QuantizerSpec] = {}
    index = 0
    for layer in model.layers:
        shape = layer.model_copy(update={"n_layers": 1, "stored": True})
        for shallow, (key, value), n_layers in _runs(index, layer.n_layers, key_quantizer, value_quantizer):
            by_name["key", key.name], by_name["value", value.name] = key, value
            entry = counts.setdefault((shape, shallow, key.name, value.name), [0, 0])
            entry[0] += n_layers if layer.stored else 0
            entry[1] += n_layers
        index += layer.n_layers
    mixed = bool(key_quantizer.layers or value_quantizer.layers)
    tensors = []
    for shape_index, ((layer, shallow, *names), (n_stored, n_read)) in enumerate(counts.items()):
        alone = names[0] != names[1]
        sides = zip(("key", "value"), names, (layer.key_dim, layer.value_dim), strict=True)
        for which, name, head_dim in sides:
            if head_dim:
                quantizer = by_name[which, name]
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
            own_place=f"{which} {quantizer.name}" if mixed else "",
        )
        for which, quantizer, layout, shape_index, n_stored, n_read, window in tensors
    )
    layers = tuple((layer, n_read) for (layer, *_), (_, n_read) in counts.items())
    return KvPlan(model, key_quantizer, value_quantizer, groups, den, layers)
