"""Figures of one design, of one quantizer on a KV dump and of plans by layer, from the tables that commands write."""

from collections.abc import Callable

import pandas as pd

from dse import measure_view
from dse.errors import InputError, LimitError
from dse.pareto_designs import label
from dse.plot_read import Source
from dse.plots import bit_ledger, lab, mixed_plans, operations, silicon_errors, style
from dse.plots.chart import Chart
from dse.point import RESULT_UNITS

#: how far parts may add up to another number of bits than the whole
PARTS_TOLERANCE = 1e-3
#: bars of designs beside each other
MAX_DESIGNS = 24


def one_of(table: pd.DataFrame, name: str) -> str:
    """The one name that a column holds. Raises InputError where a figure of one would mix several."""
    found = list(dict.fromkeys(map(str, table[name])))
    if len(found) > 1:
        raise InputError(f"{name} = {', '.join(found)}: a figure shows one: choose it with --only {name}={found[0]}")
    return found[0]


def bars(draw: Callable[..., Chart]) -> Callable[[Source], Chart]:
    """Bars of the designs of a table of results, named by what tells them apart."""

    def of(source: Source) -> Chart:
        table = source.table
        if len(table) > MAX_DESIGNS:
            raise LimitError(
                f"{len(table):,} designs: a figure shows {MAX_DESIGNS}: choose some with --only COLUMN=A,B"
            )
        asked = [name for name in ("device", "model", "quantizer", "batch", "input_tokens", "output_tokens")
                 if name in table]  # fmt: skip
        shown = [name for name in asked if table[name].nunique() > 1] or asked[:3]
        return draw([(label(row, shown, RESULT_UNITS), row.to_dict()) for _, row in table.iterrows()], is_named=True)

    return of


def roofline(source: Source) -> Chart:
    """The operations of a decode step of one device and model."""
    for name in ("device", "model"):
        one_of(source.table, name)
    return operations.chart(source.table)


def silicon_error(source: Source) -> Chart:
    """The errors of one device."""
    one_of(source.table, "device")
    return silicon_errors.chart(source.table)


def _titles(source: Source, title: str) -> tuple[str, tuple[str, ...]]:
    return source.about.get("title", title), tuple(source.about.get("notes", ()))


def check_parts(table: pd.DataFrame) -> None:
    """Raises InputError where the parts of a ledger of bits do not add up to what is stored."""
    parts = bit_ledger.parts(table)
    if not parts:
        raise InputError("columns: must have the parts of stored_bits, such as payload_bits and scales_bits")
    total, stored = table[parts].astype(float).sum(axis=1), table["stored_bits"].astype(float)
    off = (total - stored).abs() > PARTS_TOLERANCE * stored.abs() + PARTS_TOLERANCE
    if off.any():
        at = off.idxmax()
        raise InputError(
            f"stored_bits = {stored[at]:g}: {', '.join(parts)} add up to {total[at]:g}: must be all the parts of it"
        )


def lab_bits(source: Source) -> Chart:
    """Bits by part as stored."""
    check_parts(source.table)
    return lab.bits(source.table, *_titles(source, "Bits an element as stored"))


def lab_heads(source: Source) -> Chart:
    """One error of one side by layer and head: those that stand beside, else the first that the table has."""
    table = source.table.dropna(subset=["layer", "head"]).astype({"layer": int, "head": int})
    column = source.about.get("error") or next((name for name in measure_view.ERRORS if name in table), "")
    if column not in measure_view.ERRORS or column not in table:
        raise InputError(f"columns: must have one of {', '.join(measure_view.ERRORS)}")
    side = source.about.get("side") or next((str(side) for side in table["side"]), "key")
    table = table[table["side"] == side]
    if "context_tokens" in table:  # of `dse measure`: the longest, as its own figures
        table = table[table["context_tokens"] == table["context_tokens"].max()]
    method = one_of(table, "method") if "method" in table else ""
    if table.empty or table[column].isna().all():
        raise InputError(f"{column}: no head of {side}s has it: choose another with --only side=NAME")
    if table.duplicated(["layer", "head"]).any():
        raise InputError("layer, head: several rows of one head: choose with --only COLUMN=VALUE")
    name, unit, _ = measure_view.ERRORS[column]
    title = f"{name[0].upper()}{name[1:]} by layer and head, {side}s{f', {method}' if method else ''}"
    return lab.heads(table, column, name, unit, *_titles(source, title))


def lab_histogram(source: Source) -> Chart:
    """Values before and after, with the bounds that stand beside the table."""
    marks = [(str(name), float(low), float(high)) for name, low, high in source.about.get("marks", [])]
    return lab.histogram(source.table, marks, *_titles(source, "Values before and after"))


def lab_values(part: str) -> Callable[[Source], Chart]:
    """A map of tokens and channels of one head: `before`, `after` or `error`."""

    def of(source: Source) -> Chart:
        table = source.table
        if table.duplicated(["token", "channel"]).any():
            raise InputError("token, channel: several rows of one element: choose with --only COLUMN=VALUE")
        grids = {name: table.pivot(index="token", columns="channel", values=name) for name in ("before", "after")}
        before, after = (grid.to_numpy(dtype=float) for grid in grids.values())
        first = int(grids["before"].index[0])
        place = source.about.get("place", "one head")
        title = f"{part[0].upper()}{part[1:]}, {place}"
        if part == "error":
            off = abs(after - before)
            return lab.values(off, first, "absolute error", lab.scale("absolute error", "", off, 0), title)
        return lab.values(before if part == "before" else after, first, "value",
                          lab.scale("value", "", before, after), title)  # fmt: skip

    return of


def mixed(source: Source) -> Chart:
    """Error against bits of plans by layer; the methods of each layer where they stand beside the table."""
    about, table = source.about, source.table
    if not table["error"].gt(0).any():
        raise InputError("error: must be above 0 in some row: the axis is logarithmic")
    names = [str(name) for name in table.loc[table["kind"] == "one method", "method"]]
    if len(names) > style.MAX_SYSTEMS:
        raise LimitError(
            f"{len(names)} methods: a figure tells {style.MAX_SYSTEMS} apart: choose with --only method=A,B"
        )
    return mixed_plans.chart(
        table, [tuple(pair) for pair in about.get("layers", [])], about.get("methods", names),
        about.get("objective", "output_error"), about.get("source", "data that the table does not name"),
        bool(about.get("synthetic")),
    )  # fmt: skip
