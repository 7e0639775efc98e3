"""KV tensors in, measured bits and errors out: every quantizer of the models run by its bit-exact kernel."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kernels_ref
from dse import quantizers
from dse.core import files
from dse.core.errors import InputError, show
from dse.core.progress import Progress
from dse.measure.dumps import Dump, DumpLimits, DumpTensor, open_dump
from dse.quantizers import QuantizerSpec, skipping
from dse.quantizers.kernel import QuantizedTensor, Settings, Side
from dse.specs.measurements import Data, MeasurementFile, MethodMeasurement, TensorMeasurement

#: elements whose errors are summed at a time
BLOCK = 2**20
#: the largest finite FP16
FP16_LARGEST = 65504
_WORDS = {"k": "key", "key": "key", "keys": "key", "v": "value", "value": "value", "values": "value"}
_QUERY_WORDS = {"q", "query", "queries"}


@dataclass(frozen=True)
class DumpLayer:
    """The tensors of one layer of a dump, by side, and its queries where they were dumped too."""

    index: int
    tensors: Mapping[Side, DumpTensor]
    query: DumpTensor | None = None

    @property
    def name(self) -> str:
        """For a progress bar."""
        return f"layer {self.index}"


def layers(dump: Dump, path: str = "") -> list[DumpLayer]:
    """Keys and values of a dump by layer, from their names: the first number is the layer, a word says the side.

    `layer0.key`, `k_0`, `past_key_values.3.value`, `model.layers.7.self_attn.v`; `layer0.query` for queries. Raises
    InputError for a name that does not say which side and layer it is, and for two tensors of the same.
    """
    where = f"{path}: tensor" if path else "tensor"
    by_layer: dict[int, dict[Any, DumpTensor]] = {}
    for tensor in dump.tensors:
        words = re.findall(r"[a-z]+", tensor.name.lower().replace("past_key_values", ""))
        sides = {_WORDS[word] for word in words if word in _WORDS} or {"query" for w in words if w in _QUERY_WORDS}
        numbers = re.findall(r"[0-9]{1,6}", tensor.name)
        if len(sides) != 1 or not numbers:
            raise InputError(
                f"{where} {show(tensor.name)}: does not say which layer and side it is: name it like layer0.key"
            )
        side = sides.pop()
        layer = by_layer.setdefault(int(numbers[0]), {})
        if side in layer:
            raise InputError(f"{where} {show(tensor.name)}: is a second {side} of layer {numbers[0]}: rename one")
        layer[side] = tensor
    return [
        DumpLayer(index, {side: sides[side] for side in sides if side != "query"}, sides.get("query"))
        for index, sides in sorted(by_layer.items())
    ]


def shape_problem(tensor: DumpTensor) -> str:
    """A line where a tensor has neither four axes nor two, else ""."""
    if len(tensor.shape) in (2, 4):
        return ""
    return (
        f"tensor {show(tensor.name)}: shape {list(tensor.shape)}: must be [batch, heads, tokens, head_dim] or "
        "[tokens, channels]: reshape it"
    )


def check_shapes(path: str, layers: Iterable[DumpLayer]) -> None:
    """Raise InputError for a tensor that has neither four axes nor two."""
    for layer in layers:
        for tensor in layer.tensors.values():
            if problem := shape_problem(tensor):
                raise InputError(f"{path}: {problem}")


def measurable() -> list[str]:
    """Families whose kernel runs on keys and values alone."""
    return [name for name, family in quantizers.FAMILIES.items() if family.kernel and not family.kernel.needs_attention]


def check(spec: QuantizerSpec, settings: Settings) -> None:
    """Raise InputError for a plan, a family without a kernel for a dump, and thresholds missing or of other shares."""
    if spec.layers:
        names = ", ".join(dict.fromkeys(side.name for sides in spec.layers for side in sides))
        raise InputError(
            f"quantizer = {show(spec.name)}: a plan is made of methods: measure those, {show(names)}, or give it to "
            "`dse measure --perplexity`"
        )
    if skipping.layers_of(spec) and skipping.is_named(spec):
        packed = skipping.bare(spec).name
        raise InputError(
            f"quantizer = {show(spec.name)}: layers in 16 bits lose nothing: measure {packed}, or give it to `dse "
            "measure --perplexity`"
        )
    kernel = spec.family.kernel
    if kernel is None:
        why = "it stores what it is given" if spec.family.exact else "its bits are known, its error is not"
        raise InputError(f"quantizer = {show(spec.name)}: has no kernel: {why}; known: {', '.join(measurable())}")
    if kernel.needs_attention:
        raise InputError(
            f"quantizer = {show(spec.name)}: chooses tokens by the attention of the whole text, which a dump does not "
            "hold: give it to `dse measure --perplexity`"
        )
    kernel.check(spec.name, dict(spec.values), settings)


def quantize(
    spec: QuantizerSpec, index: int, tensors: dict[Side, np.ndarray], settings: Settings
) -> dict[Side, QuantizedTensor]:
    """Quantize keys and values of layer `index`. Raises InputError with the reason of the kernel."""
    check(spec, settings)
    assert spec.family.kernel is not None
    try:
        return spec.family.kernel.run(dict(spec.values), index, tensors, settings)
    except (ValueError, TypeError) as error:
        text = str(error).replace("nonfinite='replace'", "--nonfinite replace")
        raise InputError(f"{spec.name}: layer {index}: {text}") from error


def limits(max_bytes: int) -> DumpLimits:
    """The limits of a dump. Raises InputError."""
    if not 1 <= max_bytes <= 2**50:
        raise InputError(f"max-bytes = {max_bytes}: must be 1 to {2**50:,}")
    return DumpLimits(max_bytes=max_bytes)


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

    def tensors(self, layer: DumpLayer) -> dict[Side, np.ndarray]:
        """Keys and values of a layer."""
        if self._held != layer.index:
            self._tensors, self._query, self._held = {}, None, -1
            self._tensors = {side: self._read(tensor.name) for side, tensor in layer.tensors.items()}
            self._held = layer.index
        return self._tensors

    def query(self, layer: DumpLayer) -> np.ndarray | None:
        """Queries of a layer, None where it has none."""
        self.tensors(layer)
        if self._query is None and layer.query is not None:
            self._query = self._read(layer.query.name)
        return self._query


def needs_thresholds(spec: QuantizerSpec) -> bool:
    """True for a method with thresholds profiled offline."""
    return spec.family.kernel is not None and spec.family.kernel.needs_thresholds


def measurement_file(
    data: Data, specs: Sequence[QuantizerSpec], tensors: Mapping[str, list[TensorMeasurement]], thresholds: str | None
) -> MeasurementFile:
    """Collect the measurements of each quantizer by its name, with a note on the file of its thresholds."""
    note = f"thresholds: {Path(thresholds).name}" if thresholds else ""
    return MeasurementFile(
        format=1,
        data=data,
        methods=[
            MethodMeasurement(
                quantizer=spec.name, note=note if needs_thresholds(spec) else "", tensors=tensors[spec.name]
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
    wanted, decoded = kernels_ref.fp16_patterns(x).reshape(-1), seen.reshape(-1)
    squared = signal = largest = 0.0
    for start in range(0, wanted.size, BLOCK):
        exact = as_taken(wanted[start : start + BLOCK])
        off = exact - decoded[start : start + BLOCK]
        squared += float(np.square(off).sum())
        signal += float(np.square(exact).sum())
        largest = max(largest, float(np.abs(off).max()))
    return squared, signal, largest


def measure(
    spec: QuantizerSpec, layer: DumpLayer, tensors: dict[Side, np.ndarray], settings: Settings
) -> Iterator[tuple[TensorMeasurement, QuantizedTensor]]:
    """Quantize one layer and count: a measurement and the outcome for each of its tensors that is not empty."""
    held = {side: x for side, x in tensors.items() if x.size}
    for side, outcome in (quantize(spec, layer.index, held, settings) if held else {}).items():
        x, tensor = held[side], layer.tensors[side]
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
    with files.open_regular(path, "a dump")[0] as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def profile(paths: Sequence[str], fracs: Sequence[float], model: str, limits: DumpLimits, progress: Progress) -> Any:
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
            held = layers(dump, path)
            check_shapes(path, held)
            n_tensors += sum(len(layer.tensors) for layer in held)
    with progress(runs(), label="profiling", length=n_tensors) as shown:
        for _ in shown:
            pass
    try:
        return profiler.thresholds()
    except ValueError as error:
        raise InputError(f"{', '.join(paths)}: {error}") from error
