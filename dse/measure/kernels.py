"""KV tensors in, measured bits and errors out: every quantizer of the models run by its bit-exact kernel."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import kernels_ref
from dse import quantizers
from dse.core.errors import InputError, show
from dse.measure.dumps import Dump, Limits, Tensor, open_dump
from dse.quantizers import QuantizerSpec, skipping
from dse.quantizers.outliers import group_shares
from dse.specs.measurements import Data, MeasurementFile, MethodMeasurement, TensorMeasurement

Side = Literal["key", "value"]
#: progress(items, label=..., length=...) -> a context manager that gives the items one by one
Progress = Callable[..., AbstractContextManager[Iterable[Any]]]
#: evicted sinks that SinkQ keeps per head (SinkQ 4.1: 32 is enough)
SINKQ_WINDOW = 32
#: families that quantise keys before RoPE (KVQuant 3.2); all others do after it
BEFORE_ROPE = frozenset({"kvquant"})
#: elements whose errors are summed at a time
BLOCK = 2**20
#: the largest finite FP16
FP16_LARGEST = 65504
_WORDS = {"k": "key", "key": "key", "keys": "key", "v": "value", "value": "value", "values": "value"}
_QUERY_WORDS = {"q", "query", "queries"}


@dataclass(frozen=True)
class Settings:
    """What the methods need beside the tensors. `n_heads`: heads of tensors [tokens, channels]."""

    n_heads: int = 1
    nonfinite: Literal["raise", "replace"] = "raise"
    thresholds: Any = None


@dataclass(frozen=True)
class Layer:
    """The tensors of one layer of a dump, by side, and its queries where they were dumped too."""

    index: int
    tensors: Mapping[Side, Tensor]
    query: Tensor | None = None

    @property
    def name(self) -> str:
        """For a progress bar."""
        return f"layer {self.index}"


@dataclass(frozen=True)
class Outcome:
    """A quantised tensor: its packed form, and what attention sees."""

    packed: Any
    seen: np.ndarray
    #: counts for the measurement beside those of the packed form
    counts: Mapping[str, int]


def layers(dump: Dump, path: str = "") -> list[Layer]:
    """Keys and values of a dump by layer, from their names: the first number is the layer, a word says the side.

    `layer0.key`, `k_0`, `past_key_values.3.value`, `model.layers.7.self_attn.v`; `layer0.query` for queries. Raises
    InputError for a name that does not say which side and layer it is, and for two tensors of the same.
    """
    where = f"{path}: tensor" if path else "tensor"
    found: dict[int, dict[Any, Tensor]] = {}
    for tensor in dump.tensors:
        words = re.findall(r"[a-z]+", tensor.name.lower().replace("past_key_values", ""))
        sides = {_WORDS[word] for word in words if word in _WORDS} or {"query" for w in words if w in _QUERY_WORDS}
        numbers = re.findall(r"[0-9]{1,6}", tensor.name)
        if len(sides) != 1 or not numbers:
            raise InputError(
                f"{where} {show(tensor.name)}: does not say which layer and side it is: name it like layer0.key"
            )
        side = sides.pop()
        layer = found.setdefault(int(numbers[0]), {})
        if side in layer:
            raise InputError(f"{where} {show(tensor.name)}: is a second {side} of layer {numbers[0]}: rename one")
        layer[side] = tensor
    return [
        Layer(index, {side: sides[side] for side in sides if side != "query"}, sides.get("query"))
        for index, sides in sorted(found.items())
    ]


def _each(make: Callable[[dict[str, Any], Side, int, Settings, np.ndarray], Any]) -> Any:
    """A family whose keys and values are quantised apart: `make` gives the method for a tensor."""

    def run(
        values: dict[str, Any], index: int, tensors: dict[Side, np.ndarray], settings: Settings
    ) -> dict[Side, Outcome]:
        outcomes: dict[Side, Outcome] = {}
        for side, x in tensors.items():
            method = make(values, side, index, settings, x)
            try:
                packed = method.quantize(x, n_heads=settings.n_heads, nonfinite=settings.nonfinite)
            except ValueError as error:
                raise ValueError(f"{side}: {str(error).removeprefix('x: ')}") from error
            outcomes[side] = Outcome(packed, packed.dequantize(), packed.counts)
        return outcomes

    return run


def _per_head(name: str) -> Callable[[dict[str, Any], int], Any]:
    """A cache of vLLM with a scale per token and head."""
    fmt: Any = name.removesuffix("_per_token_head")
    return lambda values, layer: kernels_ref.PerTokenHead(fmt)


def _latent(name: str) -> Any:
    """A slot of vLLM's latent heads: keys alone."""
    fmt: Any = name.removesuffix("_ds_mla")

    def make(values: dict[str, Any], side: Side, index: int, settings: Settings, x: np.ndarray) -> Any:
        if side == "value":
            raise ValueError(f"{name} is for latent (MLA) heads, which have no values")
        return kernels_ref.Latent(fmt)

    return _each(make)


def turbo_quant(name: str, side: Side) -> Any:
    """One side of a TurboQuant preset of vLLM."""
    preset: Any = name.removeprefix("turboquant_")
    return kernels_ref.TurboQuant(preset, side)


#: families of vLLM's formats, by what runs them
PER_HEAD = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head")
TURBOQUANT = tuple(f"turboquant_{name}" for name in kernels_ref.TURBOQUANT_TYPES)
LATENT = ("fp8_ds_mla", "nvfp4_ds_mla")


def _turboquant(name: str) -> Any:
    return _each(lambda values, side, *_: turbo_quant(name, side))


def _ggml(name: Any) -> Callable[[dict[str, Any], int], Any]:
    """A cache type of llama.cpp, which has no parameters."""
    return lambda values, layer: kernels_ref.GGML(name)


#: family -> its method for a layer, where the parameters say all
METHODS: dict[str, Callable[[dict[str, Any], int], Any]] = {
    "nqkv": lambda values, layer: kernels_ref.NF4(values["block"], values["absmax"]),
    "int8": lambda values, layer: kernels_ref.PerTokenInteger(8, values["scale"]),
    "int4": lambda values, layer: kernels_ref.PerTokenInteger(4, values["scale"]),
    "fp8": lambda values, layer: kernels_ref.FP8(values["format"], saturate=True),
    "qserve": lambda values, layer: kernels_ref.QServe(values["mode"]),
    "atom": lambda values, layer: kernels_ref.Atom(values["group"]),
    "kivi": lambda values, layer: kernels_ref.KIVI(
        values["bits"], values["group"], values["residual"], overflow="saturate"
    ),
    "sinkq": lambda values, layer: kernels_ref.SinkQ(
        values["bits"], values["group"], values["residual"], values["sinks"], SINKQ_WINDOW, layer, overflow="saturate"
    ),
    **{name: _ggml(name) for name in kernels_ref.GGML_TYPES},
    **{name: _per_head(name) for name in PER_HEAD},
    "mxfp4": lambda values, layer: kernels_ref.MX("mxfp4", values["rule"]),
    "mxfp8": lambda values, layer: kernels_ref.MX("mxfp8", values["rule"]),
    "fp4_mx_block16": lambda values, layer: kernels_ref.MX("fp4_mx_block16"),
}


def nvfp4(name: str, values: dict[str, Any], *of: Any) -> Any:
    """NVFP4 by family name for a tensor and what `NVFP4.measured` takes beside it: with the factor that values say."""
    code: Any = "4over6" if name == "nvfp4_4over6" else "vllm"
    if values["scale"] == "one":
        return kernels_ref.NVFP4(1.0, code)
    return kernels_ref.NVFP4.measured(of[0], code, *of[1:])


def _nvfp4(name: str) -> Any:
    return _each(lambda values, side, index, settings, x: nvfp4(name, values, x, settings.n_heads, settings.nonfinite))


def _rows(family: str) -> Any:
    return _each(lambda values, side, index, *_: METHODS[family](values, index))


def _kept(values: dict[str, Any]) -> float:
    """KVQuant's share that is no outlier. Raises InputError for parameters that no kernel has."""
    if values["bits"] != 4:
        raise InputError(f"kvquant: bits = {values['bits']}: the kernel packs 4-bit codes: give bits=4")
    return 1 - float(values["outliers"])


def kvquant_values(values: dict[str, Any]) -> Any:
    """KVQuant of values. Raises InputError for parameters that no kernel has."""
    return kernels_ref.KVQuantValues(_kept(values))


def kvquant_keys(values: dict[str, Any], x: np.ndarray) -> Any:
    """KVQuant of keys with the thresholds of keys x, [batch, heads, tokens, head_dim] or [tokens, channels].

    Raises InputError for parameters that no kernel has.
    """
    kept = _kept(values)
    channels = x if x.ndim == 2 else x.transpose(0, 2, 1, 3).reshape(-1, x.shape[1] * x.shape[3])
    ends = np.quantile(channels.astype(np.float32), [(1 - kept) / 2, (1 + kept) / 2], axis=0).astype(np.float16)
    return kernels_ref.KVQuantKeys(*(tuple(row.tolist()) for row in ends))


def _integer(bits: Literal[8, 4]) -> Any:
    def make(values: dict[str, Any], side: Side, index: int, settings: Settings, x: np.ndarray) -> Any:
        if values["granularity"] == "token":
            return METHODS[f"int{bits}"](values, index)
        return kernels_ref.PerTensorInteger.measured(x, bits, settings.n_heads, settings.nonfinite)

    return _each(make)


def _oaken(values: dict[str, Any], side: Side, index: int, settings: Settings, x: np.ndarray) -> Any:
    return kernels_ref.Oaken.of(
        settings.thresholds, index, side, dense=values["dense"], outlier_bits=values["outlier_bits"]
    )


def _kvquant(values: dict[str, Any], side: Side, index: int, settings: Settings, x: np.ndarray) -> Any:
    # offline thresholds per channel; here of the tensor itself
    return kvquant_keys(values, x) if side == "key" else kvquant_values(values)


def _kivi(
    values: dict[str, Any], index: int, tensors: dict[Side, np.ndarray], settings: Settings
) -> dict[Side, Outcome]:
    method = METHODS["kivi"](values, index)
    outcomes: dict[Side, Outcome] = {}
    for side, x in tensors.items():
        packed = method.quantize(x, side, settings.n_heads, settings.nonfinite)
        outcomes[side] = Outcome(packed, packed.dequantize(), packed.counts)
    return outcomes


def _sinkq(
    values: dict[str, Any], index: int, tensors: dict[Side, np.ndarray], settings: Settings
) -> dict[Side, Outcome]:
    if len(tensors) != 2:
        raise InputError(f"sinkq: layer {index} has no {'value' if 'key' in tensors else 'key'}s: it needs both")
    method = METHODS["sinkq"](values, index)
    cache = method.quantize(tensors["key"], tensors["value"], settings.n_heads, settings.nonfinite)
    key, value = cache.seen()
    n_heads = cache.n_evicted.size if method.pool_size and cache.counts["n_packed_elements"] else 0
    seen: dict[Side, np.ndarray] = {"key": key, "value": value}
    outcomes: dict[Side, Outcome] = {}
    for side in seen:
        (packed,) = cache.packed(side)
        outcomes[side] = Outcome(packed, seen[side], {**packed.counts, "n_sink_heads": n_heads})
    return outcomes


#: family -> what quantises a layer of it
RUN: dict[str, Callable[[dict[str, Any], int, dict[Side, np.ndarray], Settings], dict[Side, Outcome]]] = {
    "nqkv": _rows("nqkv"),
    "int8": _integer(8),
    "int4": _integer(4),
    "fp8": _rows("fp8"),
    "qserve": _rows("qserve"),
    "atom": _rows("atom"),
    "tender": _each(lambda values, side, *_: kernels_ref.Tender(side)),
    "kvquant": _each(_kvquant),
    "kivi": _kivi,
    "sinkq": _sinkq,
    "oaken": _each(_oaken),
    **{name: _rows(name) for name in (*kernels_ref.GGML_TYPES, *PER_HEAD, "mxfp4", "mxfp8", "fp4_mx_block16")},
    **{name: _turboquant(name) for name in TURBOQUANT},
    **{name: _latent(name) for name in LATENT},
    **{name: _nvfp4(name) for name in ("nvfp4", "nvfp4_4over6")},
}
#: families that lose nothing, so that none is needed
_AS_GIVEN = ("fp16", "bf16")


def check(spec: QuantizerSpec, settings: Settings) -> None:
    """Raises InputError for a plan, a family that has no kernel, and thresholds that are missing or of other shares."""
    if spec.layers:
        names = ", ".join(dict.fromkeys(side.name for sides in spec.layers for side in sides))
        raise InputError(
            f"method = {show(spec.name)}: a plan is made of methods: measure those, {show(names)}, or give it to "
            "`dse measure --perplexity`"
        )
    if skipping.layers_of(spec) and skipping.is_named(spec):
        packed = skipping.bare(spec).name
        raise InputError(
            f"method = {show(spec.name)}: layers in 16 bits lose nothing: measure {packed}, or give it to `dse measure "
            "--perplexity`"
        )
    name = spec.family.name
    if name == "oaken":
        _check_thresholds(spec, settings.thresholds)
    if name not in RUN:
        why = "it stores what it is given" if name in _AS_GIVEN else "its bits are known, its error is not"
        raise InputError(f"method = {show(spec.name)}: has no kernel: {why}; known: {', '.join(RUN)}")


def _check_thresholds(spec: QuantizerSpec, thresholds: Any) -> None:
    if thresholds is None:
        raise InputError(
            f"{spec.name}: needs thresholds profiled offline: give --thresholds (`dse thresholds FILES --out T.toml`)"
        )
    wanted = [round(float(share), 9) for share in group_shares(dict(spec.values))]
    if [round(frac, 9) for frac in thresholds.fracs] != wanted:
        have, want = ("/".join(f"{100 * share:.6g}" for share in shares) for shares in (thresholds.fracs, wanted))
        raise InputError(
            f"{spec.name}: thresholds are for groups of {have} %, must be for {want}: "
            f"run `dse thresholds FILES --shares {want}`"
        )


def quantize(
    spec: QuantizerSpec, index: int, tensors: dict[Side, np.ndarray], settings: Settings
) -> dict[Side, Outcome]:
    """Quantise keys and values of layer `index`. Raises InputError with the reason of the kernel."""
    check(spec, settings)
    try:
        return RUN[spec.family.name](dict(spec.values), index, tensors, settings)
    except (ValueError, TypeError) as error:
        text = str(error).replace("nonfinite='replace'", "--nonfinite replace")
        raise InputError(f"{spec.name}: layer {index}: {text}") from error


def limits(max_bytes: int) -> Limits:
    """The limits of a dump. Raises InputError."""
    if not 1 <= max_bytes <= 2**50:
        raise InputError(f"max-bytes = {max_bytes}: must be 1 to {2**50:,}")
    return Limits(max_bytes=max_bytes)


def thresholds_of(path: str | None) -> Any:
    """Oaken's thresholds of a file, None without one. Raises InputError."""
    if path is None:
        return None
    try:
        return kernels_ref.Thresholds.load(path)
    except ValueError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or type(error).__name__).lower()}") from error


def methods_of(
    methods: Sequence[str], nonfinite: str, thresholds: str | None, n_heads: int = 1
) -> tuple[list[QuantizerSpec], Settings]:
    """The quantizers by these names, each once, and what they need, checked before a tensor is read.

    `thresholds` is a file of Oaken's. Raises InputError.
    """
    parsed = [quantizers.parse(name) for name in methods]
    if nonfinite not in ("raise", "replace"):
        raise InputError(f"nonfinite = {show(nonfinite)}: must be raise or replace")
    settings = Settings(n_heads, nonfinite, thresholds_of(thresholds))  # type: ignore[arg-type]
    for spec in parsed:
        check(spec, settings)
    return list({spec.name: spec for spec in map(skipping.bare, parsed)}.values()), settings


class LayerReader:
    """Reads the keys, values and queries of a dump, one layer in memory at a time; `read` gives a tensor by name."""

    def __init__(self, read: Callable[[str], np.ndarray]) -> None:
        self._read, self._held = read, -1
        self._tensors: dict[Side, np.ndarray] = {}
        self._query: np.ndarray | None = None

    def tensors(self, layer: Layer) -> dict[Side, np.ndarray]:
        """Keys and values of a layer."""
        if self._held != layer.index:
            self._tensors, self._query, self._held = {}, None, -1
            self._tensors = {side: self._read(tensor.name) for side, tensor in layer.tensors.items()}
            self._held = layer.index
        return self._tensors

    def query(self, layer: Layer) -> np.ndarray | None:
        """Queries of a layer, None where it has none."""
        self.tensors(layer)
        if self._query is None and layer.query is not None:
            self._query = self._read(layer.query.name)
        return self._query


def measurement_file(
    data: Data, specs: Sequence[QuantizerSpec], tensors: Mapping[str, list[TensorMeasurement]], thresholds: str | None
) -> MeasurementFile:
    """What was measured of each quantizer, by its name; Oaken's say from which file its thresholds are."""
    note = f"thresholds: {Path(thresholds).name}" if thresholds else ""
    return MeasurementFile(
        format=1,
        data=data,
        methods=[
            MethodMeasurement(
                quantizer=spec.name, note=note if spec.family.name == "oaken" else "", tensors=tensors[spec.name]
            )
            for spec in specs
        ],
    )


def as_taken(bits: np.ndarray) -> np.ndarray:
    """FP16 patterns as kernels take them, in float64: NaN as 0, infinities as the largest of their sign."""
    values = bits.view(np.float16).astype(np.float64)
    return np.nan_to_num(values, nan=0.0, posinf=FP16_LARGEST, neginf=-FP16_LARGEST)


def errors(x: np.ndarray, seen: np.ndarray) -> tuple[float, float, float]:
    """(sum of squared errors, sum of squares of x, largest absolute error); x as the kernel took it, in FP16."""
    wanted, found = kernels_ref.fp16_patterns(x).reshape(-1), seen.reshape(-1)
    squared = signal = largest = 0.0
    for start in range(0, wanted.size, BLOCK):
        exact = as_taken(wanted[start : start + BLOCK])
        off = exact - found[start : start + BLOCK]
        squared += float(np.square(off).sum())
        signal += float(np.square(exact).sum())
        largest = max(largest, float(np.abs(off).max()))
    return squared, signal, largest


def measure(
    spec: QuantizerSpec, layer: Layer, tensors: dict[Side, np.ndarray], settings: Settings
) -> Iterator[tuple[TensorMeasurement, Outcome]]:
    """Quantise one layer and count: a measurement and the outcome for each of its tensors that is not empty."""
    for side, outcome in quantize(spec, layer.index, tensors, settings).items():
        x, tensor = tensors[side], layer.tensors[side]
        if not x.size:
            continue
        n_heads = x.shape[1] if x.ndim == 4 else settings.n_heads
        squared, signal, largest = errors(x, outcome.seen)
        yield (
            TensorMeasurement(
                name=tensor.name,
                layer=layer.index,
                which=side,
                n_heads=n_heads,
                head_dim=x.shape[3] if x.ndim == 4 else x.shape[1] // n_heads,
                n_tokens=x.shape[2] if x.ndim == 4 else x.shape[0],
                n_elements=x.size,
                stored_bytes=outcome.packed.stored_bytes,
                ledger=dict(outcome.packed.ledger),
                counts=dict(outcome.counts),
                squared_error=squared,
                squared_signal=signal,
                max_abs_error=largest,
            ),
            outcome,
        )


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def profile(paths: Sequence[str], fracs: Sequence[float], model: str, limits: Limits, progress: Progress) -> Any:
    """Oaken's thresholds from KV dumps, each file one run (`kernels_ref.Profiler`). Raises InputError."""
    profiler = kernels_ref.Profiler(fracs, model=model, data=", ".join(Path(path).name for path in paths)[:200])

    def runs() -> Iterator[str]:
        for path in paths:
            with open_dump(path, limits) as dump:
                for layer in layers(dump, path):
                    for side, tensor in layer.tensors.items():
                        try:
                            profiler.add(layer.index, side, dump.read(tensor.name))
                        except (ValueError, TypeError) as error:
                            text = str(error).partition("; nonfinite=")[0]
                            raise InputError(f"{path}: {tensor.name}: {text.removeprefix('x: ')}") from error
                        yield tensor.name

    n_tensors = 0
    for path in paths:
        with open_dump(path, limits) as dump:
            n_tensors += sum(len(layer.tensors) for layer in layers(dump, path))
    with progress(runs(), label="profiling", length=n_tensors) as shown:
        for _ in shown:
            pass
    try:
        return profiler.thresholds()
    except ValueError as error:
        raise InputError(f"{', '.join(paths)}: {error}") from error
