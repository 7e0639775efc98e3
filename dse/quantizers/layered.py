"""A plan by layer: a file that says which quantizer the keys and the values of every layer have.

`plan:FILE.toml` stands for a quantizer wherever one is named. `dse mix` writes such files; they may be written by hand:

    [[layers]]
    layer = 0
    key = "kivi:bits=4"
    value = "oaken"
"""

from collections.abc import Callable
from typing import Any

from dse.core import specfile
from dse.core.errors import InputError, did_you_mean, show
from dse.quantizers import skipping
from dse.quantizers.base import Family, QuantizerSpec, TensorLayout, TensorShape, Values

PREFIX = "plan:"
MAX_LAYERS, MAX_TEXT, MAX_PATH = 1024, 1000, 1000
OBJECTIVES = ("output_error", "mse", "divergence")
#: keys of a file and of its table `predicted`; only `layers` is required
KEYS = ("format", "model", "source", "objective", "asked", "predicted", "layers")
PREDICTED = ("error", "stored_bits", "measured_error")


def _no_layout(values: Values, shape: TensorShape) -> TensorLayout:
    raise InputError("plan: has one quantizer for each layer: it is laid out with a model only")


FAMILY = Family(
    name="plan",
    title="Plan by layer",
    source="a file with a quantizer for the keys and values of each layer",
    layout=_no_layout,
)


def looks_like_plan(data: dict[str, object]) -> bool:
    """True for the content of a plan file, told from devices and models by what only a plan has."""
    layers = data.get("layers")
    return (
        isinstance(layers, list)
        and bool(layers)
        and all(isinstance(layer, dict) and not {"key", "value"}.isdisjoint(layer) for layer in layers)
    )


def read(path: str, parse: Callable[[str], QuantizerSpec]) -> QuantizerSpec:
    """The plan in a file as a quantizer; `parse` reads the names in it. Raises InputError with file and line."""
    if len(path) > MAX_PATH:
        raise InputError(f"quantizer {show(PREFIX + path)}: is longer than {MAX_PATH:,} characters")
    if not path:
        raise InputError("quantizer 'plan:': names no file: write plan:FILE.toml (`dse mix` writes one)")
    return of(specfile.read(path), parse)


def of(document: specfile.Document, parse: Callable[[str], QuantizerSpec]) -> QuantizerSpec:
    """The plan in a document. Raises InputError with file and line."""
    data = document.data
    for key in data:
        if key not in KEYS:
            raise InputError(f"{document.where((key,))}: unknown key {show(key)}: {did_you_mean(key, KEYS)}")
    if data.get("format", 1) != 1 or isinstance(data.get("format"), bool):
        raise InputError(f"{document.where(('format',))}: format = {show(data['format'])}: must be 1")
    for key in ("model", "source", "objective", "asked"):
        text = data.get(key, "")
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise InputError(f"{document.where((key,))}: {key} = {show(text)}: must be text")
    if data.get("objective", OBJECTIVES[0]) not in OBJECTIVES:
        raise InputError(
            f"{document.where(('objective',))}: objective = {show(data['objective'])}: "
            f"{did_you_mean(str(data['objective']), OBJECTIVES)}"
        )
    predicted = {"objective": data.get("objective"), "source": data.get("source", ""), **_predicted(document)}
    return QuantizerSpec(
        FAMILY, values=(), name=PREFIX + document.path, layers=_layers(document, parse), predicted=predicted
    )


def _predicted(document: specfile.Document) -> dict[str, float]:
    table = document.data.get("predicted", {})
    if not isinstance(table, dict):
        raise InputError(f"{document.where(('predicted',))}: predicted = {show(table)}: must be a table")
    for key, value in table.items():
        where = document.where(("predicted", key))
        if key not in PREDICTED:
            raise InputError(f"{where}: predicted: unknown key {show(key)}: {did_you_mean(key, PREDICTED)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise InputError(f"{where}: predicted: {key} = {show(value)}: must be a number from 0 on")
    return table


def _layers(
    document: specfile.Document, parse: Callable[[str], QuantizerSpec]
) -> tuple[tuple[QuantizerSpec, QuantizerSpec], ...]:
    given = document.data.get("layers")
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_LAYERS:
        raise InputError(f"{document.where(('layers',))}: layers: must be 1 to {MAX_LAYERS:,} tables [[layers]]")
    sides: dict[int, tuple[QuantizerSpec, QuantizerSpec]] = {}
    for i, table in enumerate(given):
        where = document.where(("layers", i))
        if not isinstance(table, dict):
            raise InputError(f"{where}: layers = {show(table)}: must be tables [[layers]]")
        for key in table:
            if key not in ("layer", "key", "value"):
                hint = did_you_mean(key, ("layer", "key", "value"))
                raise InputError(f"{document.where(('layers', i, key))}: unknown key {show(key)}: {hint}")
        layer = table.get("layer")
        if type(layer) is not int or not 0 <= layer < len(given):
            raise InputError(
                f"{where}: layer = {show(layer)}: must be a whole number from 0 to {len(given) - 1}, each once"
            )
        if layer in sides:
            raise InputError(f"{where}: layer = {layer}: is given twice: leave one")
        sides[layer] = _side(document, i, table, "key", parse), _side(document, i, table, "value", parse)
    return tuple(sides[layer] for layer in range(len(given)))


def _side(
    document: specfile.Document, i: int, table: dict[str, Any], side: str, parse: Callable[[str], QuantizerSpec]
) -> QuantizerSpec:
    where, text = document.where(("layers", i, side)), table.get(side)
    if not isinstance(text, str):
        raise InputError(f"{where}: {side} = {show(text)}: must be a quantizer, such as kivi:bits=2")
    if text.strip().lower().startswith(PREFIX):
        raise InputError(f"{where}: {side} = {show(text)}: a plan holds quantizers, no plans")
    try:
        quantizer = parse(text)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if skipping.is_named(quantizer):
        raise InputError(f"{where}: {side} = {show(text)}: a plan says itself which layers it keeps: leave out skip")
    return skipping.bare(quantizer)


def check(spec: QuantizerSpec, n_layers: int, model: str) -> None:
    """Raises InputError where a plan is for another number of layers than the model has."""
    if spec.layers and len(spec.layers) != n_layers:
        raise InputError(
            f"quantizer = {spec.name}: has {len(spec.layers)} layers, {model} has {n_layers}: "
            "take a plan for this model"
        )
