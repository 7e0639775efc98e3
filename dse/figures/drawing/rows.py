"""Reading a table of results for a figure: its systems and models in order, and the marks that figures share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from dse.figures.drawing import axes, marks, style, whiskers
from dse.figures.drawing.chart import Axis, Panel, Series, hover_box
from dse.model.results import assumed_behind, assumed_title, rests_on

#: what hover boxes show, in order: (column, name, unit shown, size of that unit)
_HOVER = (
    ("batch", "batch", "sequences", 1),
    ("input_tokens", "in", "tokens", 1),
    ("output_tokens", "out", "tokens", 1),
    ("throughput_tokens_per_s", "throughput", "tok/s", 1),
    ("decode_step_s", "decode step", "ms", 1e-3),
    ("running_batch", "running at once", "sequences", 1),
    ("effective_bits", "effective", "bit", 1),
    ("bound", "bound by", "", 1),
)


#: columns that figures of design points read: in hover boxes and notes, and with crosses and notes on memory
POINT = (
    "device",
    "model",
    "batch",
    "input_tokens",
    "output_tokens",
    "effective_bits",
    "feasible",
    "running_batch",
    "decode_step_s",
    "throughput_tokens_per_s",
    "bound",
    "assumptions",
)
MEMORY = ("admission", "capacity_bytes", "infeasible_reason")
#: parts of a decode step that every table has, stacked in this order; `step_parts` adds what some have
STEP = {
    "linear_s": "linear layers",
    "attention_s": "attention",
    "quantize_s": "quantize (exposed)",
    "dequantize_s": "dequantize (exposed)",
}


def step_parts(results: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Parts of a decode step by column; exchanges between devices, and the server's own time, only where any has
    them."""
    shown, results = dict(STEP), list(results)
    for column, name in (("collective_s", "exchange"), ("host_s", "host and small kernels")):
        if any((result.get(column) or 0.0) > 0 for result in results):
            shown[column] = name
    return shown


def with_system(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column `system`; device and quantizer where it has none."""
    if "system" in table:
        return table
    return table.assign(system=table["device"].astype(str) + " " + table["quantizer"].astype(str))


def ordered(table: pd.DataFrame, column: str) -> list[Any]:
    """Distinct values of a column in order of appearance."""
    return list(dict.fromkeys(table[column].tolist()))


def hover(row: Any, *more: str) -> str:
    """The text of a hover box, of a row by column: what was asked and what came out, and lines that say more."""
    lines = []
    for column, name, unit, size in _HOVER:
        value = row[column]
        if pd.isna(value):
            continue
        lines.append(f"{name}: {value if isinstance(value, str) else f'{value / size:,.5g}'} {unit}".rstrip())
    if row["assumptions"]:
        lines.append(f"assumed: {', '.join(map(assumed_title, row['assumptions'].split(', ')))}")
    return hover_box(f"{row['system']}, {row['model']}", [*lines, *more])


def assumption_note(table: pd.DataFrame, only: tuple[str, ...] = ()) -> str:
    """The footnote that names the assumed numbers under the times and sizes shown; of `only` where given."""
    names = assumed(table)
    names = [name for name in names if name in only] if only else assumed_behind("throughput_tokens_per_s", names, {})
    return " ".join((rests_on(names), *(() if only else kind_notes(table)), *refused_notes(table)))


def assumed(table: pd.DataFrame) -> list[str]:
    """The assumed numbers that rows of a table name."""
    return sorted({name for text in table["assumptions"] for name in str(text).split(", ") if name})


def refused_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """Note on what of a table the software of its device does not run, and why."""
    if "runs_why" not in table:
        return ()
    table = with_system(table)
    bad = table[table["runs_why"].notna() & (table["runs_why"].astype(object) != "")]
    told = [f"{system} ({why})" for system, why in dict.fromkeys(zip(bad["system"], bad["runs_why"], strict=True))]
    return (f"Drawn as if other software ran them: {'; '.join(told)}.",) if told else ()


#: assumptions of rows whose keys and values run by kernels that nobody measured
KERNELS = ("implementation", "no_kernel")


def kernels_assumed(row: Mapping[str, Any]) -> bool:
    """True for a row of a table whose keys and values run by kernels that nobody measured, or that none is known to
    have."""
    return not set(KERNELS).isdisjoint(str(row["assumptions"]).split(", "))


def kernel_notes(table: pd.DataFrame, mark: str = "Squares around marks") -> tuple[str, ...]:
    """Note on systems whose kernels nobody measured, of assumed rates with wide ranges."""
    names = [row["system"] for row in with_system(table).to_dict("records") if row["feasible"] and kernels_assumed(row)]
    if not names:
        return ()
    text = f"{mark}: kernels of keys and values that nobody measured, of assumed rates: {_names(pd.Series(names))}."
    return (text,)


#: what crosses mean
CROSSES = "Crosses at the foot, under all lines: out of memory, not one request fits."


def mark_notes(
    table: pd.DataFrame, mark: str = "Hollow marks", meaning: str = "the batch does not fit at once and runs in parts"
) -> tuple[str, ...]:
    """Meaning of the marks of `mark_keys`; `meaning` is that of `mark`."""
    texts = []
    if (table["feasible"] & (table["running_batch"] < table["batch"])).any():
        texts.append(f"{mark}: {meaning}.")
    if (~table["feasible"]).any():
        texts.append(CROSSES)
    return (" ".join(texts),) if texts else ()


def run_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """Notes on KV allocation, and on models that run on a larger device, where the rows differ in them."""
    table = with_system(table)
    texts = []
    is_paged = table["admission"] == "paged"
    at_mean = is_paged & (table.get("memory", "paper") == "paper")  # a server counts full lengths
    if at_mean.all():
        texts.append("All devices page their memory: requests are staggered, each at its mean size.")
    elif is_paged.nunique() > 1:
        size = " (staggered requests at their mean size)" if at_mean.any() else ""
        texts.append(f"Paged memory{size}: {_names(table[is_paged]['device'])}; reserved: the others.")
    smallest = table.sort_values("capacity_bytes", kind="stable")
    usual = smallest.groupby("system", sort=False)["device"].first()
    other = table[table["device"] != table["system"].map(usual)]
    for device in ordered(other, "device"):
        rows_of = other[other["device"] == device]
        texts.append(f"{_names(rows_of['model'])} run on {device} instead of {_names(rows_of['system'].map(usual))}.")
    return (*texts, *measured_notes(table))


def kernels_said(assumptions: object) -> str:
    """Words of a note on the kernels of a design, by the assumed numbers that its times rest on."""
    is_own = {"nearest_kernels", "stacks_of"}.isdisjoint(str(assumptions).split(", "))
    return "Kernels as measured" if is_own else "Nearest measured kernels"


def kind_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """Note on devices with measured kernels, and on those without."""
    if "stack" not in table or table["stack"].isna().all():
        return ()
    known = table.dropna(subset=["stack"])
    said = [kernels_said(text) for text in known.get("assumptions", known["stack"])]
    by_stack = [
        f"{kernels} ({stack}): {_names(rows['device'])}"
        for (kernels, stack), rows in known.groupby([pd.Series(said, index=known.index), "stack"])
    ]
    others = set(table[table["stack"].isna()]["model_kind"]) if "model_kind" in table else set()
    rest = [f"{WITHOUT[kind]}: the others" for kind in WITHOUT if kind in others]
    return ("; ".join([*by_stack, *rest]) + ".",)


#: how notes call times that no kernels were measured for
WITHOUT = {"estimated": "estimated from data sheets", "ideal": "peak rates"}


def measured_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """Note on rows that rest on measured shares of outliers and sinks."""
    if "bits_kind" not in table or not (table["bits_kind"] != "closed").any():
        return ()
    nominal = table[(table["bits_kind"] == "closed") & (table["quantizer"] != "fp16")]
    rest = f" Not measured, so nominal: {_names(nominal['quantizer'])}." if len(nominal) else ""
    return (f"Outliers and sinks are counted as measured.{rest}",)


def error_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """On what data errors were measured, where any were."""
    data = table["measured_on"].dropna()
    if data.empty:
        return ()
    files = data.map(lambda name: name.partition(",")[0])  # of all layers, or of packed layers alone
    return (f"Errors measured on {_names(files)}, not on these models.",)


def _names(values: pd.Series) -> str:
    """Distinct values as a list in words."""
    names = [str(value) for value in dict.fromkeys(values.tolist())]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def system_places(table: pd.DataFrame) -> dict[str, int]:
    """Place of each system in the report of the table (`dse.questions.tables.build`); none of a table by itself."""
    return {label: place for place, (label, *_) in enumerate(table.attrs.get("systems", ()))}


def quantizer_places(table: pd.DataFrame) -> dict[str, int]:
    """Place of each quantizer in the report: that of its first system on a device of the table, else of its first."""
    devices = set(table["device"])
    by_name: dict[str, int] = {}
    for is_here in (True, False):
        for place, (_, device, quantizer) in enumerate(table.attrs.get("systems", ())):
            if (device in devices) == is_here:
                by_name.setdefault(quantizer, place)
    return by_name


@dataclass(frozen=True)
class Drawn:
    """The part of a table that a figure can hold, with a note of what was left out."""

    table: pd.DataFrame
    systems: list[str]
    notes: list[str]

    def style(self, system: str) -> style.Style:
        """The look of a system: by its place in the whole report, so that it is the same in every figure."""
        return style.STYLES[style.places(self.systems, system_places(self.table))[system]]


def drawn(table: pd.DataFrame, max_systems: int = style.MAX_SYSTEMS) -> Drawn:
    """Limit a table to the systems and models that one figure can tell apart."""
    table = with_system(table)
    notes = []
    systems = ordered(table, "system")
    for column, most in (("system", max_systems), ("model", style.MAX_PANELS)):
        names = ordered(table, column)
        if len(names) > most:
            notes.append(f"The first {most} of {len(names)} {column}s are drawn; the table has all.")
            table = table[table[column].isin(names[:most])]
    return Drawn(table, systems[:max_systems], notes)


#: height of a cross below the zero line, as a share of the axis
CROSS_ROOM = 0.055


def room_for_crosses(axis: Axis, rows: pd.DataFrame, x_column: str) -> Axis:
    """The axis lengthened at its foot (below zero, or below all values where logarithmic) for what does not fit."""
    bad = rows[~rows["feasible"]]
    if bad.empty:
        return axis
    room = (int(bad.groupby(x_column).size().max()) + 0.7) * CROSS_ROOM
    if axis.log:
        return replace(axis, low=axis.low * (axis.low / axis.high) ** room)
    return replace(axis, low=-room * axis.high)


def _cross_height(axis: Axis, slot: int, n_slots: int) -> float:
    """Where the cross of a slot (1 is on top of n_slots) is, on an axis from `room_for_crosses`."""
    if not axis.log:
        return -slot * CROSS_ROOM * axis.high
    room = (n_slots + 0.7) * CROSS_ROOM
    return float(axis.low * (axis.high / axis.low) ** ((room - slot * CROSS_ROOM) / (1 + room)))


def lines(
    rows: pd.DataFrame, shown: Drawn, x_of: Callable[[Any], float], y_column: str, y_axis: Axis
) -> Iterable[Series]:
    """One line per system, hollow where the batch does not fit at once, crosses at the foot where nothing fits."""
    n_out: dict[float, int] = {}
    records = rows.to_dict("records")  # as plain values: a row of a table with many kinds of columns is slow to read
    out = [float(x_of(row)) for row in records if not row["feasible"]]
    n_slots = max((out.count(at) for at in out), default=0)
    for system in shown.systems:
        points = [row for row in records if row["system"] == system]
        if not points:
            continue
        look = shown.style(system)
        good = [row for row in points if row["feasible"]]
        if framed := [row for row in good if kernels_assumed(row)]:
            frame = replace(style.KEY_KERNELS_ASSUMED, color=look.color)
            tops = tuple(float(row[y_column]) for row in framed)
            yield style.mark(frame, tuple(float(x_of(row)) for row in framed), tops, FRAME)
        opened = tuple(bool(row["running_batch"] < row["batch"]) for row in good)
        yield marks.line(
            system, map(x_of, good), (row[y_column] for row in good), look, map(hover, good), opened=opened
        )
        if y_column == "throughput_tokens_per_s" and len(shown.systems) <= MAX_WHISKERED:
            aside = 2 ** (DODGE * (shown.systems.index(system) - (len(shown.systems) - 1) / 2))
            yield from _whiskers(good, lambda row, aside=aside: aside * x_of(row), y_column, look.color)  # type: ignore[misc]
        bad = [row for row in points if not row["feasible"]]
        if bad:
            places, feet = [], []
            for row in bad:
                at = float(x_of(row))
                n_out[at] = n_out.get(at, 0) + 1
                places.append(at)
                feet.append(_cross_height(y_axis, n_out[at], n_slots))
            texts = (f"{row['system']}, {row['model']}\n{row['infeasible_reason']}" for row in bad)
            cross = style.Style(look.color, marker="x-thin")
            yield marks.points(style.OUT_OF_MEMORY, places, feet, cross, texts, is_note=True, in_legend=False)


def by_batch(title: str, points: pd.DataFrame, shown: Drawn, unit: str) -> Panel:
    """A panel of throughputs over batches, a line per system."""
    y = room_for_crosses(axes.linear("throughput", "tok/s", rates(points)), points, "batch")
    x = axes.log2_at("batch", unit, [float(batch) for batch in points["batch"]])
    series = lines(points, shown, lambda row: row["batch"], "throughput_tokens_per_s", y)
    return Panel(title, x, y, tuple(series))


def _whiskers(good: list[Any], x_of: Callable[[Any], float], y_column: str, color: str) -> Iterable[Series]:
    """A thin line a point; none where tables do not say."""
    for row in good:
        yield from whiskers.upright(float(x_of(row)), whiskers.ends(row, y_column), color)


def rates(table: pd.DataFrame) -> list[float]:
    """All throughputs of a table that are drawn, the ends of their intervals too where whiskers show them."""
    if with_system(table)["system"].nunique() > MAX_WHISKERED:
        return [float(rate) for rate in table["throughput_tokens_per_s"].dropna()]
    return whiskers.spread(table.to_dict("records"), "throughput_tokens_per_s")


def notes(shown: Drawn) -> tuple[str, ...]:
    """All footnotes of a figure of throughputs."""
    table = shown.table
    return (
        *mark_notes(table),
        *kernel_notes(table),
        *run_notes(table),
        *sure_notes(table),
        *shown.notes,
        assumption_note(table),
    )


def sure_notes(table: pd.DataFrame) -> tuple[str, ...]:
    """Note on the whiskers of throughputs, where the table has intervals."""
    if "token_time_low" not in table:
        return ()
    if with_system(table)["system"].nunique() > MAX_WHISKERED:
        return ("Intervals could not be told apart here: the table has them.",)
    return (whiskers.NOTE,)


#: size of the square around a mark, over the mark's
FRAME = 1.15
#: octaves by which the whiskers of systems stand apart
DODGE = 0.03
#: systems whose whiskers can be told apart in a panel
MAX_WHISKERED = 5
#: batches that bars beside each other can show
MAX_BARS = 8


def few_batches(table: pd.DataFrame) -> tuple[pd.DataFrame, list[int], tuple[str, ...]]:
    """The rows of at most MAX_BARS batches, those batches, and a note where some are left out."""
    batches = sorted({int(batch) for batch in table["batch"]})
    if len(batches) <= MAX_BARS:
        return table, batches, ()
    kept = [batches[i * (len(batches) - 1) // (MAX_BARS - 1)] for i in range(MAX_BARS)]
    note = f"{MAX_BARS} of {len(batches)} batches are drawn; the table has all."
    return table[table["batch"].isin(kept)], kept, (note,)


def mark_keys(table: pd.DataFrame) -> tuple[Series, ...]:
    """Legend entries of the marks that the table makes necessary."""
    keys = []
    if (table["feasible"] & (table["running_batch"] < table["batch"])).any():
        keys.append(style.KEY_NOT_AT_ONCE)
    if (~table["feasible"]).any():
        keys.append(style.KEY_OUT_OF_MEMORY)
    return tuple(keys)


def line_keys(table: pd.DataFrame) -> tuple[Series, ...]:
    """`mark_keys`, and the mark that `lines` puts around points of kernels that nobody measured."""
    framed = bool(kernel_notes(table))
    return (*mark_keys(table), *([style.KEY_KERNELS_ASSUMED] if framed else ()))
