"""KV caches of a language model's layers: exact, FP16, and those of the quantizers by their bit-exact kernels.

Methods that need constants known beforehand (Oaken's thresholds, KVQuant's keys, INT8 per tensor) take them from a
calibration text, as those papers do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

import kernels_ref
from dse.core.errors import InputError, show
from dse.quantizers import FAMILIES, QuantizerSpec, layered, skipping
from dse.quantizers.kernel import SIDES, PerSide, Side
from dse.transformer.checkpoint import Rotation
from dse.transformer.forward import rotate


class LayerCache(Protocol):
    """Keys and values of one layer, [batch, n_kv_heads, tokens, head_dim]."""

    #: keys are kept before RoPE and turned when they are read
    before_rope: bool

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        """Add tokens, float32."""

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of all tokens as attention sees them."""


class CachedModel(Protocol):
    """The facts of a model that its caches depend on."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def n_layers(self) -> int:
        """Layers, each with a cache."""

    def rotation(self, layer: int) -> Rotation:
        """RoPE of a layer."""


def _bf16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to BF16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


_ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "fp32": np.asarray,
    "fp16": lambda x: x.astype(np.float16),
    "bf16": _bf16,
}


class FloatCache:
    """Keys and values as computed (float32), or rounded to FP16 or to BF16."""

    before_rope = False

    def __init__(self, kind: str = "fp32") -> None:
        self.kind, self._round = kind, _ROUND[kind]
        self.stored_bits = 32.0 if kind == "fp32" else 16.0
        self._key: np.ndarray | None = None
        self._value: np.ndarray | None = None
        self._n = 0

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        """Add tokens [batch, heads, tokens, head_dim], float32."""
        key, value = self._round(key), self._round(value)
        self._key, self._value = (_grown(old, self._n, new) for old, new in ((self._key, key), (self._value, value)))
        self._n += key.shape[2]

    def bits(self, side: Side) -> float:
        """Bits an element of the keys, or of the values."""
        return self.stored_bits

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """All keys and values; views."""
        if self._key is None or self._value is None:
            raise ValueError("the cache is empty: append keys and values first")
        return self._key[:, :, : self._n], self._value[:, :, : self._n]


def _grown(store: np.ndarray | None, n: int, new: np.ndarray) -> np.ndarray:
    """`store` with `new` behind its first n tokens, in an array that may have room for more."""
    if store is None:
        return new.copy()
    if n + new.shape[2] > store.shape[2]:
        wide = np.empty((*store.shape[:2], n + max(new.shape[2], n // 2), store.shape[3]), store.dtype)
        wide[:, :, :n] = store[:, :, :n]
        store = wide
    store[:, :, n : n + new.shape[2]] = new
    return store


class QuantizedCache:
    """A streaming cache of `kernels_ref` (RowCache, GroupCache, SinkQCache) as a layer of the model sees it."""

    def __init__(self, cache: Any, before_rope: bool = False) -> None:
        self.cache, self.before_rope = cache, before_rope

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        """Add tokens [batch, heads, tokens, head_dim], float32; kernels take them in FP16."""
        self.cache.append(key, value)

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values as the packed bytes decode, FP16."""
        return cast(tuple[np.ndarray, np.ndarray], self.cache.seen())

    @property
    def stored_bits(self) -> float:
        """Bits an element of the packed bytes."""
        return float(self.cache.stored_bits)

    def bits(self, side: Side) -> float:
        """Bits an element of the packed keys, or of the packed values, without those of the other side."""
        packed = self.cache.packed(side)
        n_bytes = sum(buffer.stored_bytes for buffer in packed)
        if side == "value" and "key_positions" in self.cache.buffers:  # where sinks stand, that keys do not keep then
            n_bytes += self.cache.buffers["key_positions"].nbytes
        return float(8 * n_bytes / sum(buffer.n_elements for buffer in packed))


class WholeCache:
    """For a method that needs all tokens at once (Tender): all are quantized anew whenever they are read.

    So the artifact runs it; no published form of it grows by tokens.
    """

    before_rope = False

    def __init__(self, methods: dict[Side, Any]) -> None:
        self._methods, self._held = methods, FloatCache("fp16")

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        """Add tokens [batch, heads, tokens, head_dim], float32."""
        self._held.append(key, value)

    def _packed(self) -> list[Any]:
        sides: tuple[Side, Side] = ("key", "value")
        return [self._methods[s].quantize(x) for s, x in zip(sides, self._held.seen(), strict=True)]

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values as the packed bytes decode, FP16."""
        key, value = (packed.dequantize() for packed in self._packed())
        return key, value

    @property
    def stored_bits(self) -> float:
        """Bits an element of the packed bytes."""
        return (self.bits("key") + self.bits("value")) / 2

    def bits(self, side: Side) -> float:
        """Bits an element of the packed keys, or of the packed values."""
        packed = self._packed()[side == "value"]
        return 8 * packed.stored_bytes / packed.n_elements


class DecodingCache:
    """A cache that says by a function what its tokens decode to: of a study, beside those of the quantizers."""

    before_rope = False

    def __init__(self, decode: "Callable[[np.ndarray, np.ndarray], Decoded]", stored_bits: float) -> None:
        self.decoded, self.stored_bits = decode, stored_bits


class SplitCache:
    """Keys by one cache and values by another one. Both are given both sides: SinkQ chooses its sinks by the keys."""

    def __init__(self, key: Any, value: Any, rotation: Rotation) -> None:
        self._key, self._value, self._rotation = key, value, rotation
        self.before_rope = key.before_rope
        self._n = 0

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        """Add tokens [batch, heads, tokens, head_dim], float32."""
        self._key.append(key, value)
        if self.before_rope and not self._value.before_rope:
            key = rotate(key, *self._rotation.turns(self._n, key.shape[2]))
        self._value.append(key, value)
        self._n += key.shape[2]

    def decoded(self, key: np.ndarray, value: np.ndarray) -> "Decoded":
        """Keys of the one and values of the other, each with its own count of packed tokens."""
        is_turned = self.before_rope and not self._value.before_rope
        turned = rotate(key, *self._rotation.turns(0, key.shape[2])) if is_turned else key
        keys, values = decoded(self._key, key, value), decoded(self._value, turned, value)
        return Decoded(keys.key, values.value, keys.n_key, values.n_value)

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys as the one decodes them, values as the other does."""
        return self._key.seen()[0], self._value.seen()[1]

    def show_queries(self, query: np.ndarray) -> None:
        """As the function of that name, to both."""
        for cache in (self._key, self._value):
            show_queries(cache, query)

    @property
    def stored_bits(self) -> float:
        """Bits an element of what is packed: keys of the one, values of the other."""
        return float(self._key.bits("key") + self._value.bits("value")) / 2


@dataclass(frozen=True)
class Calibration:
    """Keys before and after RoPE and values of a calibration text, by layer: FP16 [batch, heads, tokens, head_dim]."""

    key_before: tuple[np.ndarray, ...]
    key: tuple[np.ndarray, ...]
    value: tuple[np.ndarray, ...]

    def of(self, layer: int, side: Side, before_rope: bool = False) -> np.ndarray:
        """One side of a layer."""
        keys = self.key_before if before_rope else self.key
        return (keys if side == "key" else self.value)[layer]


def cached() -> list[str]:
    """Families that a layer of the model can be given a cache of."""
    return [name for name, family in FAMILIES.items() if family.exact or (family.kernel and not family.latent)]


def caches(spec: QuantizerSpec, model: CachedModel, known: Calibration) -> list[LayerCache]:
    """An empty cache for each layer; of a plan by layer, or where some are kept in 16 bits, each layer's own.

    Raises InputError for a family or parameters that no kernel has, and for a plan of another number of layers.
    """
    spec = skipping.resolved(spec, model.n_layers, model.name)
    if spec.layers:
        return _plan(spec, model, known)
    family, values, n_layers = spec.family, dict(spec.values), model.n_layers
    if family.exact:
        return [FloatCache(family.name) for _ in range(n_layers)]
    kernel = family.kernel
    if kernel is None or family.latent:
        raise InputError(f"quantizer = {show(spec.name)}: has no cache: known: {', '.join(cached())}")
    layers: list[dict[Side, np.ndarray]] = [
        {side: known.of(layer, side, family.before_rope) for side in SIDES} for layer in range(n_layers)
    ]
    try:
        settings = kernel.calibrated(values, layers, model.name)
        kernel.check(spec.name, values, settings)
        if isinstance(kernel, PerSide) and not kernel.streams:
            return [WholeCache(kernel.methods(values, i, layers[i], settings)) for i in range(n_layers)]
        return [
            QuantizedCache(kernel.cache(values, i, layers[i], settings), family.before_rope) for i in range(n_layers)
        ]
    except (ValueError, TypeError) as error:
        raise InputError(f"{spec.name}: {error}") from error


def _plan(spec: QuantizerSpec, model: CachedModel, known: Calibration) -> list[LayerCache]:
    layered.check(spec, model.n_layers, model.name)
    # a method's cache of a layer serves one layer, so each method is made once
    made = {side.name: caches(side, model, known) for sides in spec.layers for side in sides}
    return [
        beside(made[key.name][i], made[value.name][i], model.rotation(i))
        if key.name != value.name
        else made[key.name][i]
        for i, (key, value) in enumerate(spec.layers)
    ]


def beside(key: Any, value: Any, rotation: Rotation) -> LayerCache:
    """Keys as one cache packs them, values as the other does; both are empty."""
    rows = [side.cache for side in (key, value) if isinstance(getattr(side, "cache", None), kernels_ref.RowCache)]
    if len(rows) == 2:
        return QuantizedCache(kernels_ref.RowCache(rows[0].key_method, rows[1].value_method), key.before_rope)
    return SplitCache(key, value, rotation)


def show_queries(cache: Any, query: np.ndarray) -> None:
    """Give a text's queries to a cache that chooses tokens by attention.

    query: [query heads, tokens, head_dim], after RoPE and times the scale of attention.
    """
    if isinstance(cache, SplitCache):
        cache.show_queries(query)
    elif hasattr(getattr(cache, "cache", None), "query"):
        cache.cache.query = query


def stored_bits(layer_caches: Sequence[Any]) -> float:
    """Mean over the layers: all hold as many elements."""
    return sum(cache.stored_bits for cache in layer_caches) / len(layer_caches)


#: of n tokens, how many are packed
Packed = Callable[[int], int]


@dataclass(frozen=True)
class Decoded:
    """Keys and values of a text as their codes decode, [batch, heads, tokens, head_dim], and when they are packed."""

    key: np.ndarray
    value: np.ndarray
    n_key: Packed
    n_value: Packed


def decoded(cache: Any, key: np.ndarray, value: np.ndarray) -> Decoded:
    """Append a text to an empty cache. A token decodes to the same whatever follows, so that one pass shows them all.

    Keys before RoPE where `cache.before_rope`.
    """
    if isinstance(cache, SplitCache | DecodingCache):
        return cache.decoded(key, value)
    cache.append(key, value)
    seen_key, seen_value = cache.seen()
    method = getattr(getattr(cache, "cache", None), "method", None)
    count = getattr(method, "n_packed", None)
    if count is None:
        return Decoded(seen_key, seen_value, lambda n: n, lambda n: n)
    if hasattr(method, "sinks"):
        return Decoded(seen_key, seen_value, count, count)
    return Decoded(seen_key, seen_value, lambda n: count("key", n), lambda n: count("value", n))
