"""A model and its quantizers laid out: how many bits every layer stores of a token, packed or not.

Bits are whole numbers over the common denominator `KvPlan.den`, since nominal outlier shares give fractions of a bit.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

from dse.model.formulas import kv_cache, memory_unit
from dse.model.records import NO_LIMIT
from dse.quantizers import QuantizerSpec, TensorShape, layered, skipping
from dse.quantizers.base import N_SHALLOW_LAYERS, PARTS, TensorLayout
from dse.specs.device_and_model import LayerKV, ModelSpec
from dse.specs.implementation import QUERY_HEAD, Implementation

T = TypeVar("T")

#: what a plan keeps for being asked again
MAX_KNOWN = 1024


class Same:
    """A key that only this very object matches, and that keeps it: comparing all numbers of a device takes longer."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value


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
    #: what its dequantization path is found by, where layers have different quantizers
    own_place: str = ""
    #: a memory unit's: bits of a token that fill pages of their own, of all heads; a page and a burst of every head
    streams: tuple[int, ...] = ()
    page_row_bits: int = 0
    burst_row_bits: int = 0
    #: tokens that make an entry, which is written at once; bits above are a token's part of it
    tokens_per_entry: int = 1
    #: query heads that share a head
    n_queries: int = 1
    #: the kernels that unpack it on a device; None: not laid out on one, or none is known
    implementation: Implementation | None = None

    @property
    def place(self) -> str:
        """Key of its dequantization path: "key" or "value", with the quantizer where layers differ."""
        return self.own_place or self.which

    @property
    def unpackings(self) -> int:
        """Times that a step unpacks what it reads: once, or for each query head of a group."""
        return self.n_queries if self.implementation and self.implementation.unpacked_per == QUERY_HEAD else 1

    def bits(self, kept_tokens: int) -> int:
        """Bits of one layer's tensor with `kept_tokens`."""
        return kv_cache.tensor_bits(
            kept_tokens,
            self.packed_bits,
            self.full_bits,
            self.once_bits,
            self.pool_bits,
            self.step_tokens,
            self.residual_tokens,
        )

    @property
    def written_bits(self) -> int:
        """Bits that the memory takes to write one packed token of one layer, or its part of an entry: slices of a head
        rounded up to bursts."""
        n = self.tokens_per_entry
        rounded = sum(memory_unit.written_bits(n * bits, self.burst_row_bits) for bits in self.streams)
        return -(-rounded // n) + self.packed_bits - sum(self.streams)

    @property
    def tail_bits(self) -> int:
        """Bits of the slot that the next token will take: what an unused slot of a page costs."""
        per_token = self.step_tokens == 1 and self.residual_tokens == 0
        return self.packed_bits if per_token else self.full_bits


@dataclass(frozen=True)
class KvPlan:
    """All tensors of a model under one key and one value quantizer, for one sequence."""

    model: ModelSpec
    key_quantizer: QuantizerSpec
    value_quantizer: QuantizerSpec
    groups: tuple[TensorGroup, ...]
    den: int
    #: layer shapes by `shape_index`, and how many layers of the model have them; those of a constant state last
    layers: tuple[tuple[LayerKV, int], ...]
    #: devices that share the tokens of the cache
    token_shards: int = 1
    #: of which this is what one device has
    whole: "KvPlan | None" = None

    def once(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return `build()`, called once for each `key`: the points of a curve need the same results of a plan."""
        known: T | None = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = build()
        return known

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    @property
    def whole_model(self) -> ModelSpec:
        """The model on all devices, where this is what one of them has."""
        return (self.whole or self).model

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
        """Elements that one sequence of `n_tokens` stores, every token of a layer's window kept."""
        return sum(g.n_stored_layers * g.n_elements * min(n_tokens, g.window_tokens) for g in self.groups)

    def kept_tokens(self, n_tokens: int) -> list[int]:
        """Tokens that each group stores of `n_tokens`, every token of a layer's window kept."""
        return [min(n_tokens, g.window_tokens) for g in self.groups]

    def ledger(self, kept_tokens: Sequence[int]) -> dict[str, Fraction]:
        """Bits of one sequence by part, of which each group stores so many tokens; page padding left out."""
        parts = {part: Fraction(0) for part in PARTS}
        for g, kept in zip(self.groups, kept_tokens, strict=True):
            for part, bits in g.layout.ledger(kept, self.layers[g.shape_index][0].tokens_per_entry).items():
                parts[part] += g.n_stored_layers * bits / self.token_shards
        return parts

    def bits(self, n_tokens: int) -> int:
        """Bits (numerator) that one sequence of `n_tokens` stores, every token of a layer's window kept; no padding."""
        return sum(g.n_stored_layers * g.bits(min(n_tokens, g.window_tokens)) for g in self.groups)


def window_of(layer: LayerKV) -> int:
    """Tokens that a layer keeps at most; a constant state is one."""
    if layer.state_bytes:
        return 1
    return layer.window if layer.window is not None else NO_LIMIT


def chunk_of(layer: LayerKV) -> int:
    """Tokens after which a layer's reading starts anew; NO_LIMIT where it does not."""
    return window_of(layer) if layer.chunked else NO_LIMIT


def shape_of(layer: LayerKV) -> LayerKV:
    """One layer of a run, by which equal ones are counted together."""
    return layer.model_copy(update={"n_layers": 1, "stored": True})


def layers_by_shape(layers: Sequence[LayerKV]) -> dict[LayerKV, int]:
    """Count layers that are alike."""
    counts: dict[LayerKV, int] = {}
    for layer in layers:
        counts[shape_of(layer)] = counts.get(shape_of(layer), 0) + layer.n_layers
    return counts


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


def _denominator(layout: TensorLayout, layer: LayerKV) -> int:
    """The common denominator of the bits that a tensor stores for a token."""
    per_token = [layout.packed_bits_per_token, layout.full_bits_per_token, *layout.pool.values()]
    if layer.tokens_per_entry > 1:
        per_token += layout.packed.values()  # parts that fill pages of their own
    return math.lcm(*(Fraction(Fraction(bits), layer.tokens_per_entry).denominator for bits in per_token))


def build(
    model: ModelSpec,
    key_quantizer: QuantizerSpec,
    value_quantizer: QuantizerSpec,
    *,
    drafts: Sequence[LayerKV] = (),
    n_away: int = 0,
) -> KvPlan:
    """The plan of a model under two quantizers, either of them a plan by layer (dse/quantizers/layered.py), or with
    layers that it skips (dse/quantizers/skipping.py). Layers that draft are stored beside, and not read; the
    first `n_away` are stored elsewhere.

    SinkQ treats the first two layers apart, so runs may split. Raises InputError for a plan of other layers.
    """
    n_layers = model.n_layers
    for side in (key_quantizer, value_quantizer):
        layered.check(side, n_layers, model.name)
    key_quantizer, value_quantizer = (
        skipping.resolved(side, n_layers, model.name, is_hybrid=model.is_hybrid)
        for side in (key_quantizer, value_quantizer)
    )
    counts: dict[tuple[LayerKV, bool, str, str], list[int]] = {}
    by_name: dict[tuple[str, str], QuantizerSpec] = {}
    states: dict[LayerKV, int] = {}
    n_before = 0
    for is_draft, layer in (*((False, layer) for layer in model.layers), *((True, layer) for layer in drafts)):
        shape = shape_of(layer)
        first = n_before - layer.n_layers if layer.joined or is_draft else n_before
        n_before = first + layer.n_layers
        if layer.state_bytes:
            states[shape] = states.get(shape, 0) + layer.n_layers
        if not layer.key_dim:
            continue
        n_seen = first
        for shallow, (key, value), n in _runs(first, layer.n_layers, key_quantizer, value_quantizer):
            by_name["key", key.name], by_name["value", value.name] = key, value
            entry = counts.setdefault((shape, shallow, key.name, value.name), [0, 0])
            n_here = n if is_draft else min(max(n_seen + n - n_away, 0), n)
            n_seen += n
            entry[0] += n_here if layer.stored else 0
            entry[1] += 0 if is_draft else n
    mixed = bool(key_quantizer.layers or value_quantizer.layers)
    tensors = []
    for shape_index, ((layer, shallow, *names), (n_stored, n_read)) in enumerate(counts.items()):
        alone = names[0] != names[1] or not layer.value_dim
        dims = layer.key_dim, layer.value_dim
        for which, name, head_dim, other in zip(("key", "value"), names, dims, dims[::-1], strict=True):
            if head_dim:
                quantizer = by_name[which, name]
                layout = quantizer.layout(
                    TensorShape(
                        which=which,  # type: ignore[arg-type]
                        n_heads=layer.n_kv_heads,
                        head_dim=head_dim,
                        shallow=shallow,
                        alone=alone,
                        other_dim=other,
                        hidden_size=model.hidden_size,
                    )  # type: ignore[arg-type]
                )
                tensors.append((which, quantizer, layout, shape_index, n_stored, n_read, layer))
    den = math.lcm(*(_denominator(layout, layer) for *_, layout, _, _, _, layer in tensors))
    groups = tuple(
        TensorGroup(
            which=which,
            quantizer=quantizer,
            layout=layout,
            shape_index=shape_index,
            n_stored_layers=n_stored,
            n_read_layers=n_read,
            n_elements=layout.shape.n_elements // layer.tokens_per_entry,
            window_tokens=window_of(layer),
            packed_bits=int(layout.packed_bits_per_token * den) // layer.tokens_per_entry,
            full_bits=layout.full_bits_per_token * den // layer.tokens_per_entry,
            once_bits=sum(layout.once.values()) * den,
            pool_bits=int(sum(layout.pool.values()) * den) // layer.tokens_per_entry,
            step_tokens=layout.step,
            residual_tokens=layout.residual,
            own_place=f"{which} {quantizer.name}" if mixed else "",
            tokens_per_entry=layer.tokens_per_entry,
            n_queries=max(model.n_q_heads // layout.shape.n_heads, 1),
        )
        for which, quantizer, layout, shape_index, n_stored, n_read, layer in tensors
    )
    layers = (*((layer, n_read) for (layer, *_), (_, n_read) in counts.items()), *states.items())
    return KvPlan(
        model=model, key_quantizer=key_quantizer, value_quantizer=value_quantizer, groups=groups, den=den, layers=layers
    )
