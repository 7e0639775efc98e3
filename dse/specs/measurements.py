"""Measured bits and errors of quantizers on real tensors: the file that holds them, and how they reach the models."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from dse import data, quantizers
from dse.core import specfile, units
from dse.core.errors import InputError, did_you_mean, show
from dse.quantizers import skipping
from dse.quantizers.base import N_SHALLOW_LAYERS, QuantizerSpec, SideMeasurement, TensorShape
from dse.specs import device_and_model, oaken_grid

SHIPPED = "smollm2.measured.json"
#: counts that a measurement may carry
COUNTS = frozenset({"n_outliers", "n_packed_elements", "n_pool", "n_evicted", "n_sink_heads"})
Count = Annotated[int, Field(ge=0, le=2**53)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class AttentionSums(_Entry):
    """Sums over queries and heads of a layer: what its quantized keys and values do to the attention output."""

    #: of the exact output
    squared: Amount
    #: of the error with this side alone quantized, and with both sides by this quantizer
    squared_error: Amount
    squared_error_both: Amount


class TensorMeasurement(_Entry):
    """Keys or values of one layer, quantized: the bytes they take, and their error."""

    name: str = Field(max_length=200)
    layer: Count
    which: Literal["key", "value"]
    n_heads: Annotated[int, Field(ge=1, le=2**20)]
    head_dim: Annotated[int, Field(ge=1, le=2**20)]
    #: tokens of one sequence
    n_tokens: Annotated[int, Field(ge=1, le=2**53)]
    n_elements: Annotated[int, Field(ge=1, le=2**53)]
    stored_bytes: Count
    #: bits by part; they add up to 8 * stored_bytes
    ledger: dict[str, Count]
    #: what depends on the data: outliers, sinks, evicted rows
    counts: dict[str, Count]
    #: sums over the elements of (x - what attention sees)**2 and of x**2
    squared_error: Amount
    squared_signal: Amount
    max_abs_error: Amount
    #: of `dse measure`
    output: AttentionSums | None = None

    @property
    def mse(self) -> float | None:
        """Mean squared error of a packed element; None where nothing is packed."""
        return self.squared_error / self.n_packed_elements if self.n_packed_elements else None

    @property
    def n_packed_elements(self) -> int:
        """Elements that are packed: the others are stored in FP16 and come back exactly."""
        return self.counts.get("n_packed_elements", self.n_elements)

    @property
    def stored_bits(self) -> Fraction:
        """Bits an element, of the packed buffers."""
        return Fraction(units.BITS_PER_BYTE * self.stored_bytes, self.n_elements)

    def nominal_bits(self, spec: QuantizerSpec) -> Fraction:
        """Bits an element by the closed form with nominal shares, at these tokens."""
        shape = TensorShape(
            self.which, n_heads=self.n_heads, head_dim=self.head_dim, shallow=self.layer < N_SHALLOW_LAYERS
        )
        n_sequences = Fraction(self.n_elements, self.n_tokens * shape.n_elements)
        return n_sequences * sum(spec.layout(shape).ledger(self.n_tokens).values()) / self.n_elements

    @property
    def effective_bits(self) -> Fraction | None:
        """Bits a packed element as the papers count them; None where nothing is packed."""
        parts = ("payload", "scales", "zero_points", "outliers")
        packed_bits = sum(self.ledger.get(part, 0) for part in parts)
        return Fraction(packed_bits, self.n_packed_elements) if self.n_packed_elements else None


class MethodMeasurement(_Entry):
    """One quantizer on all tensors of the data."""

    #: canonical name, as `dse.quantizers.parse` gives it
    quantizer: str = Field(max_length=quantizers.registry.MAX_TEXT)
    #: thresholds used and the like
    note: str = Field(default="", max_length=1000)
    tensors: list[TensorMeasurement] = Field(min_length=1, max_length=100_000)

    def side(self, which: str) -> list[TensorMeasurement]:
        """The tensors of keys, or of values."""
        return [tensor for tensor in self.tensors if tensor.which == which]


class Data(_Entry):
    """The data that was quantized."""

    name: str = Field(max_length=200)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    synthetic: bool
    note: str = Field(default="", max_length=1000)


class MeasurementFile(_Entry):
    """Measurements of several quantizers on the same data."""

    format: Literal[1]
    data: Data
    methods: list[MethodMeasurement] = Field(max_length=1000)


def load(path: str | Path) -> MeasurementFile:
    """Read a measurement file. Raises InputError or SpecError, which name the line, field and value."""
    return of(specfile.read(str(path)))


def looks_like_measurement(data: Mapping[str, object]) -> bool:
    """True for the document of a measurement file, right or wrong."""
    return "methods" in data


def of(document: specfile.Document) -> MeasurementFile:
    """The measurements of a document. Raises InputError or SpecError, which name the line, field and value."""
    file: MeasurementFile = device_and_model.load(document, MeasurementFile)
    path = document.path
    names: set[str] = set()
    for method in file.methods:
        try:
            name = quantizers.parse(method.quantizer).name
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        if name in names:
            raise InputError(f"{path}: {show(name)} is measured twice: leave one")
        names.add(name)
        for tensor in method.tensors:
            for count, n in tensor.counts.items():
                if count not in COUNTS or n > tensor.n_elements:
                    raise InputError(
                        f"{path}: {show(name)}: {show(tensor.name)}: counts: {show(count)} = {n}: must be one of "
                        f"{', '.join(sorted(COUNTS))}, at most n_elements: measure again with `dse quantize`"
                    )
            if sum(tensor.ledger.values()) != units.BITS_PER_BYTE * tensor.stored_bytes:
                raise InputError(
                    f"{path}: {show(method.quantizer)}: {show(tensor.name)}: ledger: must add up to 8 * stored_bytes: "
                    "measure again with `dse quantize`"
                )
    return file


def to_json(found: MeasurementFile) -> bytes:
    """The file's content, one tensor a line."""
    import json

    document = found.model_dump(mode="json", exclude_none=True)
    lines = ["{", f'"format": {found.format},', f'"data": {json.dumps(document["data"])},', '"methods": [']
    for i, method in enumerate(document["methods"]):
        head = f'{{"quantizer": {json.dumps(method["quantizer"])}, "note": {json.dumps(method["note"])}, "tensors": ['
        rows = ",\n".join(f"  {json.dumps(tensor)}" for tensor in method["tensors"])
        lines += [head, rows, "]}" + ("," if i + 1 < len(document["methods"]) else "")]
    return ("\n".join([*lines, "]", "}"]) + "\n").encode()


@cache
def _shipped() -> MeasurementFile:
    """The shipped measurements, unlike a user's without the checks that a test does once for all."""
    import json

    return MeasurementFile.model_validate(json.loads(data.text(SHIPPED)))


@dataclass(frozen=True)
class Bits:
    """Where bits come from: `closed` forms with nominal shares, or as measured. Errors come from `file` either way."""

    kind: Literal["closed", "measured"] = "closed"
    #: measurements; None: those that ship, of `oaken_grid.SAMPLE`
    file: MeasurementFile | None = None

    def quantizer(self, text: str) -> QuantizerSpec:
        """`quantizers.parse`, with what was measured of it."""
        return self.attached(quantizers.parse(text))

    def attached(self, spec: QuantizerSpec) -> QuantizerSpec:
        """`spec` with what was measured of it; of a plan by layer, each layer's."""
        if spec.layers:
            layers = tuple((self.attached(key), self.attached(value)) for key, value in spec.layers)
            measured = by_layer(spec, self.file) if self.file else {}
            return replace(spec, layers=layers, measured=measured, bits_kind=self.kind)
        use_bits = self.kind == "measured"
        if skipping.layers_of(spec):
            return self._skipping(spec)
        enriched = attach(spec, self.file or _shipped(), use_bits)
        return enriched if enriched.measured or self.file else oaken_grid.attach(spec, use_bits)

    def _skipping(self, spec: QuantizerSpec) -> QuantizerSpec:
        """A quantizer that keeps layers in 16 bits, with what was measured of the others, and of both together."""
        packed = self.attached(skipping.bare(spec))
        joined = replace(packed, values=spec.values, name=spec.name)
        n_layers = len({t.layer for method in self.file.methods for t in method.tensors}) if self.file else 0
        if not n_layers or any(not -n_layers <= i < n_layers for i in skipping.layers_of(spec)):
            return joined
        measured = by_layer(skipping.resolved(joined, n_layers, "the data"), self.file) if self.file else {}
        return replace(joined, by_depth={n_layers: measured})

    def required(self, text: str) -> QuantizerSpec:
        """Attach measurements, which must be there where bits come from them. Raises InputError."""
        spec = self.quantizer(text)
        for side in {side.name for sides in spec.layers for side in sides}:
            self.required(side)
        if (
            self.kind == "measured"
            and not spec.layers
            and not spec.measured
            and spec.family.name not in ("fp16", "bf16")
        ):
            file = self.file or _shipped()
            held = [method.quantizer for method in file.methods]
            near = did_you_mean(spec.name, held) if held else "it holds none"
            also = "" if self.file else " (or groups of oaken, dse/data/oaken_grid.csv)"
            raise InputError(
                f"bits = measured: {file.data.name} has no measurement of {spec.name}: {near}{also}; or run "
                "`dse quantize`"
            )
        return spec


CLOSED = Bits()


def bits_from(kind: str, path: str | None) -> Bits:
    """The options `--bits` and `--measurements` of a command. Raises InputError."""
    if kind not in ("closed", "measured"):
        raise InputError(f"bits = {show(kind)}: must be closed or measured")
    return Bits(kind, load(path) if path else None)  # type: ignore[arg-type]


def attach(spec: QuantizerSpec, file: MeasurementFile, use_bits: bool) -> QuantizerSpec:
    """`spec` with the measurement of the same name, if there is one; its counts drive the bits if `use_bits`."""
    method = next((m for m in file.methods if m.quantizer == spec.name), None)
    if method is None:
        return spec
    sides = {which: tensors for which in ("key", "value") if (tensors := method.side(which))}
    data = file.data.name + (" (synthetic)" if file.data.synthetic else "")
    measured = {which: _summary(tensors, data) for which, tensors in sides.items()}
    realised = {which: realised_values(spec, tensors) for which, tensors in sides.items()} if use_bits else {}
    return replace(spec, measured=measured, realised=realised, bits_kind="measured" if use_bits else "closed")


def by_layer(spec: QuantizerSpec, file: MeasurementFile) -> dict[str, SideMeasurement]:
    """Measurements of a plan by layer, each method in its own layers; empty unless the file has them all.

    FP16 and BF16 need no measurement. The attention output's error of a layer is its method's where one packs both
    sides; of two methods the squares are added, as if their errors were independent.
    """
    by_method: dict[str, dict[tuple[int, str], TensorMeasurement]] = {
        method.quantizer: {(t.layer, t.which): t for t in method.tensors} for method in file.methods
    }
    every = {at: tensor for tensors in by_method.values() for at, tensor in tensors.items()}
    if {layer for layer, _ in every} != set(range(len(spec.layers))):
        return {}
    sides: dict[str, list[TensorMeasurement]] = {"key": [], "value": []}
    for layer, (key, value) in enumerate(spec.layers):
        pair = []
        for which, side in zip(sides, (key, value), strict=True):
            exact = side.family.name in ("fp16", "bf16")
            tensor = (every if exact else by_method.get(side.name, {})).get((layer, which))
            if tensor is None:
                return {}
            pair.append(_exact(tensor) if exact else tensor)
        if pair[0].output and pair[1].output and key.name != value.name:
            both = pair[0].output.squared_error + pair[1].output.squared_error
            pair = [
                t.model_copy(update={"output": t.output.model_copy(update={"squared_error_both": both})})
                for t in pair
                if t.output
            ]
        for tensors, tensor in zip(sides.values(), pair, strict=True):
            tensors.append(tensor)
    data = file.data.name + (" (synthetic)" if file.data.synthetic else "")
    return {which: _summary(tensors, data) for which, tensors in sides.items()}


def _exact(tensor: TensorMeasurement) -> TensorMeasurement:
    """The tensor as stored in 16 bits: nothing is quantized, nothing is lost."""
    output = tensor.output and AttentionSums(squared=tensor.output.squared, squared_error=0.0, squared_error_both=0.0)
    bits = units.FP16_BITS * tensor.n_elements
    return tensor.model_copy(
        update={
            "stored_bytes": bits // units.BITS_PER_BYTE,
            "ledger": {"full_precision": bits},
            "squared_error": 0.0,
            "counts": {"n_packed_elements": 0},
            "max_abs_error": 0.0,
            "output": output,
        }
    )


def _summary(tensors: Iterable[TensorMeasurement], data: str) -> SideMeasurement:
    tensors = list(tensors)
    shapes = {(t.n_heads, t.head_dim) for t in tensors}
    outputs = [t.output for t in tensors if t.output]
    squared = math.fsum(o.squared for o in outputs) if len(outputs) == len(tensors) else 0.0
    return SideMeasurement(
        n_elements=sum(t.n_elements for t in tensors),
        n_packed_elements=sum(t.n_packed_elements for t in tensors),
        stored_bytes=sum(t.stored_bytes for t in tensors),
        squared_error=math.fsum(t.squared_error for t in tensors),
        squared_signal=math.fsum(t.squared_signal for t in tensors),
        data=data,
        shape=shapes.pop() if len(shapes) == 1 else None,
        output_error=math.sqrt(math.fsum(o.squared_error for o in outputs) / squared) if squared else None,
        output_error_both=math.sqrt(math.fsum(o.squared_error_both for o in outputs) / squared) if squared else None,
    )


def realised_values(spec: QuantizerSpec, tensors: Iterable[TensorMeasurement]) -> Mapping[str, Fraction]:
    """Parameters of the family's closed form as the data had them: counts over what they are counted in."""
    tensors = list(tensors)
    values = {}
    for name, part, whole in spec.family.realised:
        total = sum(t.counts.get(whole, t.n_elements if whole == "n_elements" else 0) for t in tensors)
        if total:
            values[name] = Fraction(sum(t.counts.get(part, 0) for t in tensors), total)
    return values
