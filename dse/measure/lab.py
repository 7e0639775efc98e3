"""A KV dump held in memory and looked at: bits, errors by layer and head, values before and after one quantizer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import kernels_ref
from dse.core.errors import InputError, LimitError, show
from dse.core.units import BITS_PER_BYTE
from dse.measure import errors, kernels, source
from dse.measure.dumps import open_dump
from dse.measure.kernels import DumpLayer, Settings, Side
from dse.measure.source import About
from dse.quantizers import QuantizerSpec
from dse.quantizers.methods import oaken
from dse.specs.measurements import Data, MeasurementFile, MethodMeasurement, TensorMeasurement

#: bytes of a dump's tensors, unless told
MAX_BYTES = 128 * 2**20
#: bins of a histogram
N_BINS = 160
#: last queries of a head that attention is measured with, as `dse measure` does
N_QUERIES = 16
#: keys, values and queries of a few layers of SmolLM2-135M, and thresholds from another text (dse/data/README.md)
SAMPLE = "smollm2.npz"
_SAMPLE_THRESHOLDS = "smollm2.thresholds.toml"
SIDES: tuple[Side, ...] = ("key", "value")


@dataclass(frozen=True, kw_only=True)
class Held:
    """A dump in memory: `tensors` and `queries` by layer, and what the file says of itself."""

    name: str
    sha256: str
    about: About
    layers: tuple[DumpLayer, ...]
    tensors: Mapping[int, Mapping[Side, np.ndarray]]
    queries: Mapping[int, np.ndarray]
    #: file of thresholds profiled on other data of the same kind; None: none came with it
    thresholds_file: Traversable | None = None

    @cached_property
    def thresholds(self) -> Any:
        """The thresholds of that file, read where a quantizer asks for them: that takes the compiler. None without."""
        if self.thresholds_file is None:
            return None
        with resources.as_file(self.thresholds_file) as path:
            return kernels.thresholds_of(str(path))

    @property
    def indices(self) -> list[int]:
        """The layers it has, ascending."""
        return [layer.index for layer in self.layers]


@dataclass(frozen=True)
class ReadOptions:
    """Options for a dump: heads of tensors [tokens, channels] (None: as the file says, else one), and
    whether NaN and infinities are refused or taken as 0 and +-65504."""

    n_heads: int | None = None
    nonfinite: str = "raise"


@dataclass(frozen=True, kw_only=True)
class DumpMeasurement:
    """A quantizer on all layers of a dump.

    `errors`: a row a layer, head and side (key, value, and both where attention was measured) with the ratios of
    `dse.measure.errors.ratios`, and one for all, with layer and head missing; `ledger`: bits an element by part, a row
    for keys, values and both; `nominal_bits`: stored bits by the closed form with nominal shares.
    """

    errors: pd.DataFrame
    ledger: pd.DataFrame
    nominal_bits: float
    #: where Oaken's thresholds come from, and the queries that attention was measured with; "" for none
    thresholds: str
    queries: str
    #: of each layer's keys and values, as a measurement file holds them
    tensors: tuple[TensorMeasurement, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HeadView:
    """One head's keys or values: a window of [tokens, channels] before and after, and the whole head's histogram.

    `histogram`: columns low, high, n_before, n_after. `marks`: name, lower and upper bound, outermost first.
    """

    before: np.ndarray
    after: np.ndarray
    first_token: int
    n_tokens: int
    histogram: pd.DataFrame
    marks: tuple[tuple[str, float, float], ...]


def hold(path: str | Path, name: str = "", max_bytes: int = MAX_BYTES, how: ReadOptions | None = None) -> Held:
    """Read a dump of at most `max_bytes` of tensors; `name` stands for the path in messages.

    Layers may be missing, or one of keys and values. Raises InputError and LimitError, one line each.
    """
    try:
        with open_dump(path, kernels.limits(max_bytes)) as dump:
            layers = kernels.layers(dump)
            about = source.about(dump, str(path), layers, n_heads=(how or ReadOptions()).n_heads)
            source.refuse(str(path), source.problems(layers, about, max_bytes, partial=True))
            layers = [layer for layer in layers if layer.tensors]
            if not layers:
                raise InputError(f"{path}: holds no keys and no values: dump at least one layer")
            sides = {layer.index: {side: tensor.name for side, tensor in layer.tensors.items()} for layer in layers}
            asking = {layer.index: layer.query.name for layer in layers if layer.query is not None}
            tensors = {i: {side: dump.read(t) for side, t in names.items()} for i, names in sides.items()}
            queries = {i: dump.read(t) for i, t in asking.items()}
    except (InputError, LimitError) as error:
        raise type(error)(str(error).replace(str(path), name or Path(path).name)) from None
    return Held(
        name=name or Path(path).name,
        sha256=kernels.sha256(path),
        about=about,
        layers=tuple(layers),
        tensors=tensors,
        queries=queries,
    )


def sample() -> Held:
    """The sample that ships, of SmolLM2-135M, with thresholds from another text."""
    folder = resources.files("dse.data")
    with resources.as_file(folder / SAMPLE) as path:
        return replace(hold(path, SAMPLE), thresholds_file=folder / _SAMPLE_THRESHOLDS)


def about_of(held: Held, how: ReadOptions) -> About:
    """Describe the dump with another number of heads. Raises InputError where they do not fit."""
    if how.n_heads is None:
        return held.about
    of = replace(held.about, n_heads=how.n_heads)
    source.refuse(held.name, source.problems(list(held.layers), of, 2**62, partial=True))
    return of


def shares_of(spec: QuantizerSpec) -> list[float]:
    """Shares of Oaken's groups, outermost first."""
    return [float(share) for share in oaken.group_shares(dict(spec.values))]


def has_thresholds(held: Held, spec: QuantizerSpec) -> bool:
    """True where the dump came with thresholds for the groups of this Oaken."""
    thresholds = held.thresholds
    return thresholds is not None and np.allclose(thresholds.fracs, shares_of(spec), rtol=0, atol=1e-9)


def thresholds_of(held: Held, spec: QuantizerSpec, how: ReadOptions) -> tuple[Any, str]:
    """Oaken's thresholds for a dump and where they come from; (None, "") for another family. Raises InputError."""
    if not kernels.needs_thresholds(spec):
        return None, ""
    if has_thresholds(held, spec):
        return held.thresholds, "Thresholds profiled on another sample of the same kind."
    profiler = oaken.profiler(dict(spec.values))
    try:
        for layer in held.layers:
            for side, x in held.tensors[layer.index].items():
                exact_x = x if how.nonfinite == "raise" else errors.exact(x).astype(np.float16)
                profiler.add(layer.index, side, exact_x)
        return profiler.thresholds(), "Thresholds profiled on these very values: offline they would be of other data."
    except ValueError as error:
        raise InputError(f"{held.name}: {str(error).partition('; nonfinite=')[0].removeprefix('x: ')}") from error


def measured(held: Held, spec: QuantizerSpec, how: ReadOptions, n_queries: int = N_QUERIES) -> DumpMeasurement:
    """Quantize every layer and measure bits and errors. Raises InputError."""
    of = about_of(held, how)
    thresholds, note = thresholds_of(held, spec, how)
    if errors.is_turned_back(spec, of):
        note = "Keys turned back to before RoPE, where the method is defined."
    settings = Settings(of.n_heads, how.nonfinite, thresholds)  # type: ignore[arg-type]
    rows: list[dict[str, Any]] = []
    tensors: list[TensorMeasurement] = []
    for layer in held.layers:
        query = held.queries.get(layer.index)
        query_heads = None if query is None else errors.by_head(query, of.n_heads)
        wanted = errors.Queries(n_queries)
        sums, _, by_side = errors.of_layer(spec, layer, held.tensors[layer.index], query_heads, of, settings, wanted)
        tensors += by_side.values()
        rows += [{"layer": layer.index, **row} for row in sums]
    sides = list(dict.fromkeys(row["side"] for row in rows))
    rows += [{"side": side, **errors.pooled([row for row in rows if row["side"] == side])} for side in sides]
    by_head = pd.DataFrame(
        [
            {"layer": row.get("layer"), "head": row.get("head"), "side": row["side"], **errors.ratios(row)}
            for row in rows
        ]
    ).astype({"layer": "Int64", "head": "Int64"} | dict.fromkeys(ERRORS, float))
    n = sum(t.n_elements for t in tensors)
    nominal = sum(t.nominal_bits(spec) * t.n_elements for t in tensors) / n
    kinds = sorted({str(row["queries"]) for row in rows if row.get("queries")})
    queries = f"Attention of {' and '.join(kinds)} queries." if kinds else ""
    return DumpMeasurement(
        errors=by_head,
        ledger=ledger(tensors),
        nominal_bits=float(nominal),
        thresholds=note,
        queries=queries,
        tensors=tuple(tensors),
    )


#: columns of `DumpMeasurement.errors`: name, unit, and whether more is better
ERRORS = {
    "sqnr_db": ("signal to noise", "dB", True),
    "mse": ("mean squared error", "", False),
    "max_abs_error": ("largest error", "", False),
    "cosine": ("cosine", "", True),
    "output_error": ("attention output error", "", False),
    "mass_moved": ("attention moved", "", False),
    "kl_nats": ("attention divergence", "nat", False),
}


#: those that need queries
ATTENTION = ("output_error", "mass_moved", "kl_nats")


def measurement_of(held: Held, measurements: Mapping[str, DumpMeasurement]) -> MeasurementFile:
    """Measurement file of a dump, by the quantizers' full names, as `dse measure` writes it."""
    data = Data(name=held.name, sha256=held.sha256, synthetic=held.about.synthetic)
    return MeasurementFile(
        format=1,
        data=data,
        methods=[
            MethodMeasurement(quantizer=name, note=result.thresholds[:1000], tensors=list(result.tensors))
            for name, result in measurements.items()
        ],
    )


def compared(measurements: Mapping[str, DumpMeasurement]) -> pd.DataFrame:
    """A row a quantizer: bits as stored and as papers count them, errors of keys, values and of attention."""
    rows = []
    for name, result in measurements.items():
        bits = result.ledger.iloc[-1]  # of both sides, where there are both
        whole = result.errors[result.errors["layer"].isna()].set_index("side")
        row = {"quantizer": name, "stored_bits": bits["stored_bits"], "effective_bits": bits["effective_bits"]}
        for side in SIDES:
            row[f"{side}_sqnr_db"] = whole["sqnr_db"].get(side, math.nan)
        row["max_abs_error"] = whole["max_abs_error"].max()
        row["output_error"] = whole["output_error"].get("both", math.nan)
        rows.append(row)
    return pd.DataFrame(rows)


def ledger(tensors: Sequence[TensorMeasurement]) -> pd.DataFrame:
    """Bits an element by part as stored: a row for keys, for values and for both, where there are such."""
    rows = []
    for name, which in (("keys", ("key",)), ("values", ("value",)), ("keys and values", SIDES)):
        chosen = [t for t in tensors if t.which in which]
        n = sum(t.n_elements for t in chosen)
        if not n or (len(which) > 1 and len({t.which for t in chosen}) < 2):
            continue
        packed = sum(t.n_packed_elements for t in chosen)
        paper = sum((t.effective_bits or 0) * t.n_packed_elements for t in chosen)
        rows.append(
            {
                "quantizer": name,
                **{f"{part}_bits": sum(t.ledger.get(part, 0) for t in chosen) / n for part in kernels_ref.PARTS},
                "stored_bits": BITS_PER_BYTE * sum(t.stored_bytes for t in chosen) / n,
                "effective_bits": float(paper / packed) if packed else math.nan,
            }
        )
    return pd.DataFrame(rows)


def view(
    held: Held,
    spec: QuantizerSpec,
    how: ReadOptions,
    layer: int,
    side: Side,
    head: int,
    first_token: int,
    n_tokens: int,
) -> HeadView:
    """One head of one layer before and after, tokens from `first_token` on; of the first sequence of a batch.

    The histogram is of all its tokens and sequences. Raises InputError for what the dump does not have.
    """
    of = about_of(held, how)
    tensors, before = _head(held, spec, of, layer, side, head, first_token)
    thresholds, _ = thresholds_of(held, spec, how)
    settings = Settings(of.n_heads, how.nonfinite, thresholds)  # type: ignore[arg-type]
    outcome = kernels.quantize(spec, layer, tensors, settings)[side]
    after = errors.by_head(outcome.seen, settings.n_heads)[:, head].astype(np.float64)
    window = slice(first_token, first_token + n_tokens)
    return HeadView(
        before=before[0, window].astype(np.float32),
        after=after[0, window].astype(np.float32),
        first_token=first_token,
        n_tokens=before.shape[1],
        histogram=histogram(before, after),
        marks=_marks(thresholds, layer, side, after),
    )


def _head(
    held: Held, spec: QuantizerSpec, of: About, layer: int, side: Side, head: int, first_token: int
) -> tuple[dict[Side, np.ndarray], np.ndarray]:
    """A layer as the quantizer defines it, and its head's values [batch, tokens, channels]."""
    tensors, _, _ = errors.as_defined(spec, _layer(held, of, layer, side, head), None, of)
    values = errors.exact(errors.by_head(tensors[side], of.n_heads)[:, head])
    if not 0 <= first_token < values.shape[1]:
        raise InputError(f"first token = {first_token:,}: must be 0 to {values.shape[1] - 1:,}: that is what is there")
    return tensors, values


def _layer(held: Held, of: About, layer: int, side: Side, head: int) -> dict[Side, np.ndarray]:
    """The tensors of a layer that has this side and head."""
    if layer not in held.tensors:
        known = ", ".join(map(str, held.indices[:8])) + (", ..." if len(held.indices) > 8 else "")
        raise InputError(f"layer = {layer:,}: must be one of {known}: those are in {show(held.name)}")
    tensors = dict(held.tensors[layer])
    if side not in tensors:
        raise InputError(f"side = {side}: layer {layer} has only {'value' if side == 'key' else 'key'}s")
    n_heads = errors.by_head(tensors[side], of.n_heads).shape[1]
    if not 0 <= head < n_heads:
        raise InputError(f"head = {head:,}: must be 0 to {n_heads - 1:,}: that is what is there")
    return tensors


def histogram(before: np.ndarray, after: np.ndarray, n_bins: int = N_BINS) -> pd.DataFrame:
    """Histogram of both arrays over equal bins: columns low, high, n_before, n_after."""
    edges = np.linspace(*_ends(before, after), n_bins + 1)
    counts = [np.histogram(x, edges)[0] for x in (before, after)]
    return pd.DataFrame({"low": edges[:-1], "high": edges[1:], "n_before": counts[0], "n_after": counts[1]})


def _ends(*parts: np.ndarray) -> tuple[float, float]:
    """Smallest and largest value of all, apart by something."""
    low, high = min(float(x.min()) for x in parts), max(float(x.max()) for x in parts)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _marks(thresholds: Any, layer: int, side: Side, after: np.ndarray) -> tuple[tuple[str, float, float], ...]:
    """Where a quantizer parts values: Oaken's groups; for others the range of what it gives back."""
    if thresholds is None:
        return (("smallest and largest value after", float(after.min()), float(after.max())),)
    lower, upper = thresholds.of(layer, side)
    n = len(thresholds.fracs)
    shares = [f"{100 * share:.4g} %" for share in thresholds.fracs]
    return tuple(  # the last threshold parts nothing
        (f"{shares[i]} beyond, {shares[i + 1]} next within", lower[i], upper[i]) for i in range(n - 1)
    )
