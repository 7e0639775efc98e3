"""`dse mix`: a quantizer for the keys and values of each layer, from the errors that `dse measure` found, in a budget.

Errors are squared, relative to the signal of their own layer, and added over layers and sides, which takes them to be
independent; divergences of `dse measure --perplexity --by-layer` are added as they are (docs/reference/dumps.md, Mixed
plans). Bits are those of the packed bytes at the measured context.
"""

import json
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pandas as pd

from dse import quantizers
from dse.core import files, tables, units
from dse.core.errors import InputError, OutputError, did_you_mean, show
from dse.core.version import VERSION
from dse.measure import mixed_solve
from dse.measure.mixed_solve import Choice, Numbers
from dse.measure.parts import SUMMARY, TABLE
from dse.quantizers import vllm
from dse.quantizers.layered import MAX_LAYERS, OBJECTIVES
from dse.sweep import store

Objective = Literal["output_error", "mse", "divergence"]
#: what is stored as it is and has no error: an option beside the measured methods
EXACT = "fp16"
SIDES = ("key", "value")
#: squared error and squared signal of an objective
SUMS = {
    "output_error": ("squared_output_error", "squared_output"),
    "mse": ("squared_error", "squared_signal"),
    "divergence": ("kl_nats", "whole"),
}
#: table of `dse measure --perplexity --out`
SCORES = "perplexity.csv"
MAX_BYTES, MAX_ROWS = 2**30, 5_000_000
_COLUMNS = (
    "method",
    "layer",
    "side",
    "head",
    "context_tokens",
    "n_elements",
    "stored_bits",
    *SUMS["mse"],
    "data",
    "synthetic",
)


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors of each method on the keys and values of each layer: the items are layer 0's keys, its values, ...

    `bits` and `costs` hold an array over `methods` for each item: bits of the packed bytes, and squared error over
    squared signal. `squared_outputs` are (squared error, squared output) of the attention output, nan without.
    """

    methods: tuple[str, ...]
    n_layers: int
    objective: Objective
    bits: list[Numbers]
    costs: list[Numbers]
    elements: list[int]
    outputs: list[tuple[Numbers, float]]
    context_tokens: int
    source: str
    model: str
    synthetic: bool
    #: squared error of each layer's attention output with both sides by one method, an array over `methods`
    both: list[Numbers] = field(default_factory=list)

    def stored_bits(self, weight: float) -> float:
        """Bits an element, mean over all layers and sides."""
        return weight / sum(self.elements)

    def error(self, cost: float) -> float:
        """Relative error: the root of the mean over layers; of `output_error` both sides' squares are added, of `mse`
        the mean over both is taken. Of `divergence` the sum, in nats."""
        if self.objective == "divergence":
            return cost
        n = self.n_layers if self.objective == "output_error" else len(self.costs)
        return math.sqrt(cost / n)

    def cost(self, error: float) -> float:
        """The sum that a relative error, or a divergence, stands for."""
        if self.objective == "divergence":
            return error
        n = self.n_layers if self.objective == "output_error" else len(self.costs)
        return error * error * n

    def of(self, options: Sequence[int]) -> tuple[float, float]:
        """(stored bits, relative error) of a choice."""
        bits = sum(float(b[i]) for b, i in zip(self.bits, options, strict=True))
        return self.stored_bits(bits), self.error(
            math.fsum(float(c[i]) for c, i in zip(self.costs, options, strict=True))
        )

    def measured_error(self, options: Sequence[int]) -> float | None:
        """As design points show it: the root of all layers' squared output errors over their squared outputs.

        Where one method packs both sides of a layer, their error together is the measured one.
        """
        pairs = [(float(e[i]), signal) for (e, signal), i in zip(self.outputs, options, strict=True)]
        squared = math.fsum(signal for _, signal in pairs) / len(SIDES)  # the same output for both sides
        alone = [e for e, _ in pairs]
        sums = list(map(sum, zip(alone[::2], alone[1::2], strict=True)))
        for layer, both in enumerate(self.both):
            if options[2 * layer] == options[2 * layer + 1] and math.isfinite(joint := float(both[options[2 * layer]])):
                sums[layer] = joint
        error = math.fsum(sums)
        return math.sqrt(error / squared) if squared > 0 and math.isfinite(error) else None


@dataclass(frozen=True)
class Mixed:
    """A chosen plan: `layers` are the methods of keys and of values by layer."""

    errors: Errors
    options: tuple[int, ...]
    asked: str

    @property
    def layers(self) -> list[tuple[str, str]]:
        """(method of the keys, method of the values) of every layer."""
        names = [self.errors.methods[i] for i in self.options]
        return list(zip(names[::2], names[1::2], strict=True))

    def vllm(self) -> dict[str, str]:
        """`arguments`: what vLLM is started with to store this plan, or `why_not` in one line."""
        try:
            return {"arguments": vllm.arguments(self.layers)}
        except InputError as error:
            return {"why_not": str(error)}

    def summary(self) -> dict[str, Any]:
        """The plan and what is predicted of it, as plain data."""
        bits, error = self.errors.of(self.options)
        return {
            "asked": self.asked,
            "objective": self.errors.objective,
            "context_tokens": self.errors.context_tokens,
            "source": self.errors.source,
            "model": self.errors.model,
            "synthetic": self.errors.synthetic,
            "stored_bits": bits,
            "error": error,
            "measured_error": self.errors.measured_error(self.options),
            "stored_bytes": round(bits * sum(self.errors.elements)) // units.BITS_PER_BYTE,
            "layers": [{"layer": i, "key": k, "value": v} for i, (k, v) in enumerate(self.layers)],
            "vllm": self.vllm(),
        }


def load(
    where: str, methods: Sequence[str] | None = None, objective: str | None = None, context: int | None = None
) -> Errors:
    """The errors in a directory of `dse measure`, or in its table; divergences by layer where it holds those. Raises
    InputError.

    `methods` (default: all that were measured, and fp16), `objective` (default: output_error where attention was
    measured), `context`: one of the measured lengths in tokens (default: the longest).
    """
    path = Path(where)
    if path.is_dir():
        path /= SCORES if (path / SCORES).is_file() else TABLE
    is_scores = path.suffix.lower() == ".csv"
    totals = _divergences(path) if is_scores else _totals(path, _table(path))
    lengths = sorted({int(n) for n in totals["context_tokens"][totals["side"].isin(SIDES)]})
    if not lengths:
        raise InputError(f"{path}: has no rows of whole layers: measure again with `dse measure`")
    if context is not None and context not in lengths:
        raise InputError(f"context = {context}: was not measured: one of {', '.join(map(str, lengths))}")
    context_tokens = context or lengths[-1]
    totals = totals[totals["context_tokens"] == context_tokens]
    rows = totals[totals["side"].isin(SIDES)]
    names = _chosen(methods, list(dict.fromkeys(rows["method"])))
    kind = _objective(path, rows, objective, is_scores)
    layers = _whole_layers(path, rows)
    parts = pd.MultiIndex.from_product((layers, SIDES))
    first = rows.drop_duplicates(["layer", "side"]).set_index(["layer", "side"]).reindex(parts)

    def by_method(column: str, exact: Any) -> pd.DataFrame:
        """A column by part and method, with what is said of fp16 where nobody measured it."""
        table = rows.assign(**{column: rows.get(column, math.nan)}).pivot(
            index=["layer", "side"], columns="method", values=column
        )
        return (table if EXACT in table else table.assign(**{EXACT: exact})).reindex(parts)[[*names]]

    elements = first["n_elements"]
    _check_all_there(path, by_method("n_elements", elements), set(rows["method"]))
    error, signal = (by_method(name, math.nan) for name in SUMS[kind])
    bits = by_method("stored_bits", float(units.FP16_BITS)).mul(elements, axis=0).round()
    costs = (error / signal).where(signal > 0, 0.0)  # nothing is lost of a tensor of zeros, nor by fp16
    if not (np.isfinite(bits) & np.isfinite(costs) & (bits >= 0) & (costs >= 0)).all(axis=None):
        raise InputError(f"{path}: holds errors or bits that are no numbers from 0 on: measure again")
    outputs = by_method("squared_output_error", 0.0)
    joint = totals[totals["side"] == "both"].drop_duplicates(["layer", "method"], keep="last")
    both = joint.assign(squared=joint.get("squared_output_error")).pivot(
        index="layer", columns="method", values="squared"
    )
    both = both.reindex(index=layers, columns=[*names]).fillna({EXACT: 0.0})
    synthetic = bool(rows["synthetic"].any())
    source = f"{rows['data'].iloc[0]}, {context_tokens} tokens" + (", synthetic" if synthetic else "")
    return Errors(
        methods=names,
        n_layers=len(layers),
        objective=kind,
        bits=[*bits.to_numpy(float)],
        costs=[*costs.to_numpy(float)],
        elements=[int(n) for n in elements],
        outputs=[*zip(outputs.to_numpy(float), first.get("squared_output", elements * math.nan), strict=True)],
        context_tokens=context_tokens,
        source=source[:500],
        model=_model(path),
        synthetic=synthetic,
        both=[*both.to_numpy(float)],
    )


def _chosen(methods: Sequence[str] | None, measured: list[str]) -> tuple[str, ...]:
    """Names of the methods that a plan chooses from. Raises InputError for those not measured."""
    wanted = [*measured, EXACT] if methods is None else [quantizers.parse(name).name for name in methods]
    for name in wanted:
        if name not in measured and name != EXACT:
            raise InputError(f"quantizers = {show(name)}: was not measured: {did_you_mean(name, [*measured, EXACT])}")
    if not wanted:
        raise InputError("quantizers = '': must name at least one that was measured")
    return tuple(dict.fromkeys(wanted))


def _objective(path: Path, rows: pd.DataFrame, wanted: str | None, is_scores: bool) -> Objective:
    """The error that a plan minimizes: the one asked for, or the best that was measured. Raises InputError."""
    has_output = "squared_output" in rows and bool(rows["squared_output"].gt(0).all())
    kind = wanted or ("divergence" if is_scores else "output_error" if has_output else "mse")
    if kind not in OBJECTIVES:
        raise InputError(f"objective = {show(kind)}: {did_you_mean(kind, OBJECTIVES)}")
    if (kind == "divergence") != is_scores:
        scored = "the --out of `dse measure --perplexity --sides key,value --by-layer`"
        do = "leave it out" if is_scores else f"it and --max-rise need {scored}"
        has = "divergences alone" if is_scores else "no divergences"
        raise InputError(f"objective = {show(kind)}: {path} has {has}: {do}")
    if kind == "output_error" and not has_output:
        raise InputError(
            "objective = 'output_error': attention was not measured (keys or values missing, or --queries 0): use mse"
        )
    return cast(Objective, kind)


def _whole_layers(path: Path, rows: pd.DataFrame) -> list[int]:
    """All layers of the model, from 0. Raises InputError where one is missing or there twice."""
    layers = sorted({int(n) for n in rows["layer"]})
    if missing := sorted({*range(layers[-1] + 1)} - {*layers}):
        raise InputError(f"{path}: layer {missing[0]}: is missing: a plan needs all layers: measure a whole dump")
    if (again := rows.duplicated(["layer", "side", "method"])).any():
        twice = rows[again].iloc[0]
        raise InputError(
            f"{path}: row {twice.name}: {show(twice['method'])}: {twice['side']} of layer "
            f"{twice['layer']:.0f} is there twice: leave one"
        )
    return layers


def _check_all_there(path: Path, elements: pd.DataFrame, measured: set[str]) -> None:
    """Raise InputError for the first side of a layer (row) that a method (column) was not measured on.

    FP16 alone needs no measurement, but its elements have to be counted.
    """
    for (layer, side), lacks in elements.isna().iterrows():
        if lacks.any():
            name = next((f"{show(name)}: " for name in elements if lacks[name] and name in measured), "")
            raise InputError(f"{path}: {name}{side} of layer {layer}: is missing: measure a whole dump")


#: columns of scores by layer that plans are chosen by; numbers with the least
_SCORED = {"layer": 0, "stored_bits": 0, "kl_nats": 0, "n_scored_tokens": 1}
MAX_SCORE_BYTES = 2**26


def _divergences(path: Path) -> pd.DataFrame:
    """Scores of each layer's keys and values by themselves, as rows of whole layers. Raises InputError."""
    again = "score with `dse measure --perplexity --sides key,value --by-layer --out DIR`"
    give = "a directory of `dse measure --perplexity --out`"
    table = tables.read_csv(path, give, MAX_SCORE_BYTES, "is not a table of scores")
    if missing := [name for name in ("model", "method", "sides", *_SCORED) if name not in table]:
        raise InputError(f"{path}: has no column {missing[0]}: {again}")
    scores = table[table["sides"].isin(SIDES) & table["layer"].notna()]
    if scores.empty:
        raise InputError(f"{path}: has no layer's keys or values by themselves: {again}")
    for name, least in _SCORED.items():
        column = pd.to_numeric(scores[name], errors="coerce")
        _refuse(path, scores, name, list(~(column >= least)), f"must be a number from {least} on")
        scores = scores.assign(**{name: column})
    n_parts = 2 * (1 + int(scores["layer"].max()))
    return scores.assign(
        side=scores["sides"],
        context_tokens=scores["n_scored_tokens"] + 1,
        # all layers and sides hold as many elements, and all but this one take 16 bits
        n_elements=2**20,
        stored_bits=(n_parts * scores["stored_bits"] - units.FP16_BITS * (n_parts - 1)).clip(lower=0),
        whole=1.0,
        data=scores["model"].astype(str),
        synthetic=False,
    )


#: columns of text; of numbers with the least and the most of a whole layer's row; whole ones among them
_TEXTS = ("method", "side", "data")
_NUMBERS = {
    "layer": (0, MAX_LAYERS - 1),
    "context_tokens": (1, 2**40),
    "n_elements": (1, 2**53),
    "stored_bits": (0, 2**20),
    **dict.fromkeys((*SUMS["mse"], *SUMS["output_error"]), None),
}
_WHOLE = ("layer", "context_tokens", "n_elements")


def _totals(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of whole layers that hold elements, numbers as numbers. Raises InputError naming row and column.

    Any type of number will do (int32, float16, decimals); text will not, and no number outside its limits.
    """
    table = table.reset_index(drop=True)
    columns = {name: _number_column(path, table[name]) for name in ("head", *_NUMBERS) if name in table}
    table = table.assign(**columns)
    table = table[table["head"].isna() & ~table["n_elements"].le(0)]
    for name in _TEXTS:
        _refuse(path, table, name, [not isinstance(value, str) for value in table[name]], "must be text")
    flags = [not isinstance(value, bool | np.bool_) for value in table["synthetic"]]
    _refuse(path, table, "synthetic", flags, "must be true or false")
    for name, limits in _NUMBERS.items():
        if limits is None:
            continue
        # keys and values together ("both") have errors only
        mine = table if name in _WHOLE else table[table["side"].isin(SIDES)]
        is_whole = np.floor(mine[name]) == mine[name] if name in _WHOLE else True
        good = mine[name].between(*limits) & is_whole
        what = "a whole number" if name in _WHOLE else "a number"
        _refuse(path, mine, name, list(~good), f"must be {what} from {limits[0]:,} to {limits[1]:,}")
    return table


def _number_column(path: Path, column: pd.Series) -> pd.Series:
    """A column as float64, missing ones as nan. Raises InputError for what is no number."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    if not pd.api.types.is_numeric_dtype(column) or column.dtype == bool:
        bad = [
            not (value is None or value is pd.NA or isinstance(value, numbers.Number)) or isinstance(value, bool)
            for value in column
        ]
        _refuse(path, column.to_frame(), str(column.name), bad, "must be a number")
    return (
        pd.Series(
            data=pd.array([float("nan") if pd.isna(value) else float(value) for value in column], "float64"),
            index=column.index,
        )
        if column.dtype == object
        else column.astype("float64")
    )


def _refuse(path: Path, table: pd.DataFrame, name: str, bad: Sequence[bool], rule: str) -> None:
    """Raise InputError that names the first row whose `bad` is true."""
    place = next((i for i, is_bad in enumerate(bad) if is_bad), None)
    if place is not None:
        value = table[name].iloc[place]
        value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
        raise InputError(
            f"{path}: row {table.index[place]}: {name} = {show(value)}: {rule}: measure again with `dse measure`"
        )


def _table(path: Path) -> pd.DataFrame:
    give = "a directory of `dse measure --out`"
    with tables.parquet(path, give, None, "is not a table of `dse measure`", MAX_BYTES) as file:
        names = file.schema_arrow.names
        of_output = SUMS["output_error"] if {*SUMS["output_error"]} & {*names} else ()
        if missing := [name for name in (*_COLUMNS, *of_output) if name not in names]:
            raise InputError(f"{path}: has no column {missing[0]}: give what `dse measure --out` wrote")
        if file.metadata.num_rows > MAX_ROWS:
            raise InputError(f"{path}: has {file.metadata.num_rows:,} rows: at most {MAX_ROWS:,}")
        return file.read().to_pandas()


def _model(path: Path) -> str:
    try:
        return str((store.load_json(path.parent / SUMMARY) or {}).get("model") or "")[:200]
    except OutputError:
        return ""


def least_error(errors: Errors, bits: float, asked: str) -> Mixed:
    """The plan of least error at no more than `bits` in all. Raises InputError where no plan is that small."""
    choice = mixed_solve.least(errors.bits, errors.costs, bits)
    if choice is None:
        smallest = sum(float(b.min()) for b in errors.bits)
        raise InputError(
            f"budget = {asked}: is below the smallest plan: {errors.stored_bits(smallest):.6g} bits an element, "
            f"{math.ceil(smallest / units.BITS_PER_BYTE):,} bytes: raise it, or name smaller methods"
        )
    return Mixed(errors, choice.options, asked)


def least_bits(errors: Errors, error: float, asked: str) -> Mixed:
    """The plan of fewest bits at a relative error of at most `error`. Raises InputError where no plan is that good."""
    choice = mixed_solve.least(errors.costs, errors.bits, errors.cost(error))
    if choice is None:
        best = errors.error(sum(float(c.min()) for c in errors.costs))
        number = asked.removeprefix("error ")
        raise InputError(
            f"max-error = {number}: is below the best plan's: {best:.6g}: raise it, or add fp16 to methods"
        )
    return Mixed(errors, choice.options, asked)


def budget_bits(errors: Errors, bits_per_element: float) -> float:
    """All bits that so many an element are."""
    return bits_per_element * sum(errors.elements)


def frontier(errors: Errors) -> list[Choice]:
    """Plans at the corners of the convex hull of bits and squared error, each the best of its bits."""
    return mixed_solve.frontier(errors.bits, errors.costs)


def frontier_table(mixed: Mixed) -> pd.DataFrame:
    """Bits and error of the plans on the hull, of each method alone, and of the plan, for figures: a row each."""
    errors, n = mixed.errors, len(mixed.options)
    rows = [("mixed plans", "", *errors.of(choice.options)) for choice in frontier(errors)]
    rows += [("one method", name, *errors.of((i,) * n)) for i, name in enumerate(errors.methods)]
    rows.append(("chosen plan", "", *errors.of(mixed.options)))
    return pd.DataFrame(rows, columns=["kind", "method", "stored_bits", "error"])


def to_toml(mixed: Mixed, command: str) -> bytes:
    """The file of a plan, as `plan:FILE` takes it."""
    summary = mixed.summary()
    text = {name: json.dumps(summary[name], ensure_ascii=False) for name in ("model", "source", "objective", "asked")}
    lines = [
        f"# A quantizer for the keys and values of each layer: --quantizer plan:FILE. Written by dse {VERSION}.",
        "# " + "".join(c if c.isprintable() else "?" for c in command),
        "",
        "format = 1",
        *(f"{name} = {value}" for name, value in text.items()),
        "",
        "# stored bits an element; error: root of the mean over layers of squared errors relative to the signal;",
        "# measured_error: of the attention output, all layers' squares together"
        + (" (by divergence: error in nats)" if summary["objective"] == "divergence" else ""),
        "[predicted]",
        *(
            f"{name} = {summary[name]!r}"
            for name in ("stored_bits", "error", "measured_error")
            if summary[name] is not None
        ),
    ]
    for i, (key, value) in enumerate(mixed.layers):
        lines += ["", "[[layers]]", f"layer = {i}", f'key = "{key}"', f'value = "{value}"']
    return ("\n".join(lines) + "\n").encode()


def write(mixed: Mixed, path: str, command: str) -> None:
    """Write the plan to a file, whole or not at all. Raises InputError, OutputError."""
    if not path.lower().endswith(".toml"):
        raise InputError(f"out = {show(path)}: must end in .toml")
    files.write(Path(path), to_toml(mixed, command))


def text(summary: dict[str, Any]) -> str:
    """A summary for the terminal: what is predicted, and which layers have which methods."""
    is_nats = summary["objective"] == "divergence"
    lines = [
        f"{summary['source']}: {summary['objective']}, asked {summary['asked']}",
        f"  stored   {summary['stored_bits']:.6g} bit an element ({summary['stored_bytes']:,} bytes)",
        f"  error    {summary['error']:.6g} {'nat, divergence' if is_nats else 'relative to the signal'}",
    ]
    width = max(len(row["key"]) for row in summary["layers"])
    runs: list[tuple[int, int, str, str]] = []
    for layer in summary["layers"]:
        same = runs and runs[-1][2:] == (layer["key"], layer["value"])
        first = runs.pop()[0] if same else layer["layer"]
        runs.append((first, layer["layer"], layer["key"], layer["value"]))
    for first, last, key, value in runs:
        where = f"layer {first}" if first == last else f"layers {first} to {last}"
        lines.append(f"  {where:<16}keys {key.ljust(width)}  values {value}")
    served = summary["vllm"]
    lines.append(f"  vLLM     {served.get('arguments') or 'no: ' + served['why_not']}")
    return "\n".join(lines)
