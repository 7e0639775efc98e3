"""KV caches of a language model's layers: exact, FP16, and those of the quantizers by their bit-exact kernels.

Methods that need constants known beforehand (Oaken's thresholds, KVQuant's keys, INT8 per tensor) take them from a
calibration text, as those papers do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

import kernels_ref
from dse.core.errors import InputError, show
from dse.measure.kernels import (
    METHODS,
    PER_HEAD,
    TURBOQUANT,
    Settings,
    Side,
    check,
    kvquant_keys,
    kvquant_values,
    nvfp4,
    turbo_quant,
)
from dse.measure.lm.forward import KVCache, forward, rotate, rotations
from dse.measure.lm.weights import LanguageModel
from dse.quantizers import QuantizerSpec, layered, skipping
from dse.quantizers.outliers import group_shares


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
        self._round = _ROUND[kind]
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
        n_bytes = sum(one.stored_bytes for one in packed)
        if side == "value" and "key_positions" in self.cache.buffers:  # where sinks stand, that keys do not keep then
            n_bytes += self.cache.buffers["key_positions"].nbytes
        return float(8 * n_bytes / sum(one.n_elements for one in packed))


class WholeCache:
    """For a method that needs all tokens at once (Tender): all are quantised anew whenever they are read.

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


class SplitCache:
    """Keys by one cache and values by another one. Both are given both sides: SinkQ chooses its sinks by the keys."""

    def __init__(self, key: Any, value: Any, model: LanguageModel) -> None:
        self._key, self._value, self._model = key, value, model
        self.before_rope = key.before_rope
        self._n = 0

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        """Add tokens [batch, heads, tokens, head_dim], float32."""
        self._key.append(key, value)
        if self.before_rope and not self._value.before_rope:
            key = rotate(key, *rotations(self._model, self._n, key.shape[2]))
        self._value.append(key, value)
        self._n += key.shape[2]

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys as the one decodes them, values as the other does."""
        return self._key.seen()[0], self._value.seen()[1]

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


def calibrate(model: LanguageModel, tokens: np.ndarray) -> Calibration:
    """Run tokens [batch, n] through the model exactly and keep what a cache would hold."""
    found: dict[bool, list[tuple[np.ndarray, np.ndarray]]] = {}
    for before in (False, True):
        caches = [FloatCache("fp16") for _ in model.layers]
        for cache in caches:
            cache.before_rope = before
        forward(model, tokens, caches, own=True, last_only=True)
        found[before] = [cache.seen() for cache in caches]
    return Calibration(
        tuple(key for key, _ in found[True]),
        tuple(key for key, _ in found[False]),
        tuple(value for _, value in found[False]),
    )


Maker = Callable[[dict[str, Any], int, Calibration], KVCache]


def _rows(family: str) -> Maker:
    """A method that quantises token by token, alike for keys and values."""
    return lambda values, layer, known: QuantizedCache(kernels_ref.RowCache(METHODS[family](values, layer)))


def _groups(family: str) -> Maker:
    """A method with a cache of its own."""
    return lambda values, layer, known: QuantizedCache(METHODS[family](values, layer).cache())


def _integer(bits: Any) -> Maker:
    def make(values: dict[str, Any], layer: int, known: Calibration) -> KVCache:
        if values["granularity"] == "token":
            return _rows(f"int{bits}")(values, layer, known)
        sides: tuple[Side, Side] = ("key", "value")
        key, value = (kernels_ref.PerTensorInteger.measured(known.of(layer, side), bits) for side in sides)
        return QuantizedCache(kernels_ref.RowCache(key, value))

    return make


def _turboquant(name: str) -> Maker:
    """Keys and values by methods of their own, token by token."""
    return lambda *_: QuantizedCache(kernels_ref.RowCache(turbo_quant(name, "key"), turbo_quant(name, "value")))


def _nvfp4(name: str) -> Maker:
    """Factors from the calibration text."""

    def make(values: dict[str, Any], layer: int, known: Calibration) -> KVCache:
        key, value = (nvfp4(name, values, known.of(layer, side)) for side in ("key", "value"))
        return QuantizedCache(kernels_ref.RowCache(key, value))

    return make


def _kvquant(values: dict[str, Any], layer: int, known: Calibration) -> KVCache:
    keys = kvquant_keys(values, known.of(layer, "key", before_rope=True))
    return QuantizedCache(kernels_ref.RowCache(keys, kvquant_values(values)), before_rope=True)


def _oaken(spec: QuantizerSpec, model: LanguageModel, known: Calibration) -> list[KVCache]:
    """Thresholds from the calibration text: each of its sequences is a run of the profiler."""
    values = dict(spec.values)
    profiler = kernels_ref.Profiler([float(share) for share in group_shares(values)], model=model.name)
    sides: tuple[Side, Side] = ("key", "value")
    for layer in range(len(model.layers)):
        for side in sides:
            for sequence in known.of(layer, side):
                profiler.add(layer, side, np.ascontiguousarray(sequence[None]))
    thresholds = profiler.thresholds()
    check(spec, Settings(thresholds=thresholds))
    options = {"dense": values["dense"], "outlier_bits": values["outlier_bits"]}
    return [
        QuantizedCache(
            kernels_ref.RowCache(*(kernels_ref.Oaken.of(thresholds, layer, side, **options) for side in sides))
        )
        for layer in range(len(model.layers))
    ]


#: family -> the cache of a layer
MAKERS: dict[str, Maker] = {
    "fp16": lambda *_: FloatCache("fp16"),
    "bf16": lambda *_: FloatCache("bf16"),
    "nqkv": _rows("nqkv"),
    "int8": _integer(8),
    "int4": _integer(4),
    "fp8": _rows("fp8"),
    "qserve": _rows("qserve"),
    "atom": _rows("atom"),
    "tender": lambda *_: WholeCache({"key": kernels_ref.Tender("key"), "value": kernels_ref.Tender("value")}),
    "kvquant": _kvquant,
    "kivi": _groups("kivi"),
    "sinkq": _groups("sinkq"),
    **{name: _rows(name) for name in (*kernels_ref.GGML_TYPES, *PER_HEAD, "mxfp4", "mxfp8", "fp4_mx_block16")},
    **{name: _turboquant(name) for name in TURBOQUANT},
    **{name: _nvfp4(name) for name in ("nvfp4", "nvfp4_4over6")},
}


def caches(spec: QuantizerSpec, model: LanguageModel, known: Calibration) -> list[KVCache]:
    """An empty cache for each layer; of a plan by layer, or where some are kept in 16 bits, each layer's own.

    Raises InputError for a family or parameters that no kernel has, and for a plan of another number of layers.
    """
    spec = skipping.resolved(spec, len(model.layers), model.name)
    if spec.layers:
        return _plan(spec, model, known)
    family = spec.family.name
    if family != "oaken" and family not in MAKERS:
        raise InputError(f"method = {show(spec.name)}: has no cache: known: {', '.join([*MAKERS, 'oaken'])}")
    try:
        if family == "oaken":
            return _oaken(spec, model, known)
        return [MAKERS[family](dict(spec.values), layer, known) for layer in range(len(model.layers))]
    except (ValueError, TypeError) as error:
        raise InputError(f"{spec.name}: {error}") from error


def _plan(spec: QuantizerSpec, model: LanguageModel, known: Calibration) -> list[KVCache]:
    layered.check(spec, len(model.layers), model.name)
    # a method's cache of a layer serves one layer, so each method is made once
    made = {side.name: caches(side, model, known) for sides in spec.layers for side in sides}
    return [
        _beside(made[key.name][i], made[value.name][i], model) if key.name != value.name else made[key.name][i]
        for i, (key, value) in enumerate(spec.layers)
    ]


def _beside(key: Any, value: Any, model: LanguageModel) -> KVCache:
    """Keys as one cache packs them, values as the other does; both are empty."""
    rows = [one.cache for one in (key, value) if isinstance(getattr(one, "cache", None), kernels_ref.RowCache)]
    if len(rows) == 2:
        return QuantizedCache(kernels_ref.RowCache(rows[0].key_method, rows[1].value_method), key.before_rope)
    return SplitCache(key, value, model)


def stored_bits(found: Sequence[Any]) -> float:
    """Mean over the layers: all hold as many elements."""
    return sum(cache.stored_bits for cache in found) / len(found)
