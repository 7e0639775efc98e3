"""Measured servers beside predictions: times per token and to the first, row by row, and errors by model."""

import io
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.calibrate.servers import is_suspect
from dse.core import files
from dse.figures.drawing import axes, marks, rows, style, to_matplotlib
from dse.figures.drawing.chart import Axis, Chart, Dash, Panel, Series
from dse.figures.export import web_page
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.validate.serving import JudgedServer, errors, group_name

#: rows drawn; more do not show more
MAX_POINTS = 1500
SECOND = 1.0
_COMMAND = "validate serving TABLE.csv --out DIR"
#: columns of servers.csv: what was measured, and what was predicted of it, in seconds
COLUMNS = (
    "id",
    "model",
    "kind",
    "system",
    "stack",
    "release",
    "n_devices",
    "concurrency",
    "suspect",
    "tpot_measured_s",
    "tpot_s",
    "tpot_low_s",
    "tpot_high_s",
    "ttft_measured_s",
    "ttft_s",
    "ttft_low_s",
    "ttft_high_s",
    "kernels_s",
    "naive_s",
)
#: stack -> color and mark
_LOOKS = {
    "vllm": ("vLLM", style.BLUE, "circle"),
    "sglang": ("SGLang", style.ORANGE, "triangle-up"),
    "trtllm": ("TensorRT-LLM", style.GREEN, "square"),
}
_INTERVAL = "#E0E0E0"
#: lines beside the diagonal: what they are called, by which factor they are off it, how they are drawn
_LINES: dict[str, tuple[tuple[str, float, Dash], ...]] = {
    "tpot": (("equal", 1.0, "solid"), ("10 % off", 1.1, "dash"), ("20 % off", 1.2, "dot")),
    "ttft": (("equal", 1.0, "solid"), ("twice or half", 2.0, "dashdot")),
}
MAX_TICKS = 8
#: column of errors.csv -> name, color and hatch of its bars
_BARS = {
    "tpot_mean": ("this model", style.BLUE, ""),
    "kernels_mean": ("kernels alone", style.SKY, "/"),
    "naive_mean": ("data sheet (naive roofline)", style.VERMILLION, "\\"),
}
_BAR = 0.26
_MILLI = axes.MILLISECOND


def table_of(judged: Sequence[JudgedServer]) -> pd.DataFrame:
    """The rows that a figure can show: measured and predicted, a row each."""
    records = []
    for server in judged:
        row = server.row
        if server.tpot_s is None or server.ttft_s is None or row.spec is None or row.tpot_s is None:
            continue
        records.append(
            (
                row.id,
                row.spec.name,
                server.kind,
                row.system,
                row.stack,
                row.release or "-",
                row.n_devices,
                row.concurrency,
                is_suspect(row),
                row.tpot_s,
                *server.tpot_s,
                row.ttft_s,
                *server.ttft_s,
                server.kernels_s,
                server.naive_s,
            )
        )
    return pd.DataFrame(records, columns=list(COLUMNS))


@figure(
    "servers_measured",
    "Predicted against measured times of whole servers, with 80 % intervals.",
    by(_COMMAND, "servers"),
    COLUMNS[:17],
    order=350.5,
)
def measured(source: Source) -> Chart | None:
    """A panel of times per output token, and one of times to the first where any was measured."""
    table = source.table
    if table.empty:
        return None
    n_rows = len(table)
    table = table.iloc[:: max(1, -(-n_rows // MAX_POINTS))]
    panels = [
        _panel(table[table[f"{name}_measured_s"].notna()], name, title, per_unit, unit)
        for name, title, per_unit, unit in (
            ("tpot", "Time per output token (TPOT)", _MILLI, "ms"),
            ("ttft", "Time to first token (TTFT)", SECOND, "s"),
        )
        if table[f"{name}_measured_s"].notna().any()
    ]
    notes = [
        f"{n_rows:,} measured servers, medians over their requests. Hollow: mixtures of experts. Gray bars hold "
        "8 of 10 measurements, as predicted."
    ]
    if table["suspect"].astype(bool).any():
        notes.append(
            "Crosses: rows that are no measurement of what they state (docs/explanation/calibration.md, Whole steps)."
        )
    return Chart(
        "Predicted and measured servers", panels=tuple(panels), n_columns=2, panel_height_pt=205, notes=tuple(notes)
    )


def _panel(table: pd.DataFrame, name: str, title: str, per_unit: float, unit: str) -> Panel:
    columns = [f"{name}{end}" for end in ("_measured_s", "_s", "_low_s", "_high_s")]
    here = table[columns].to_numpy(float)
    x, y = (_axis(of, unit, here[:, :2], per_unit) for of in ("measured", "predicted"))
    low, high = np.clip(here[:, 2], y.low, y.high), np.clip(here[:, 3], y.low, y.high)
    gaps = np.full(len(here), np.nan)
    x_ends, y_ends = (
        np.ravel(np.column_stack(columns)) for columns in ((here[:, 0], here[:, 0], gaps), (low, high, gaps))
    )
    series = [marks.line("80 % interval", x_ends, y_ends, style.Style(_INTERVAL, marker=""), is_note=True)]
    suspect = table["suspect"].astype(bool)
    if suspect.any():
        series.append(
            _points(table[suspect], "suspect row", name, unit, per_unit, style.Style("#A9A9A9", marker="x-thin"))
        )
    for stack in rows.ordered(table[~suspect], "stack"):
        shown, color, marker = _LOOKS.get(stack, (stack, style.PURPLE, "diamond"))
        points = table[~suspect & (table["stack"] == stack)]
        series.append(_points(points, shown, name, unit, per_unit, style.Style(color, marker=marker)))
    for words, factor, dash in _LINES[name]:
        series += marks.diagonals(words, x, factor, style.BLACK if factor == 1 else "#4D4D4D", dash)
    return Panel(title, x, y, tuple(series))


def _axis(name: str, unit: str, values: NDArray[np.float64], per_unit: float) -> Axis:
    """A logarithmic axis that ends near the values, with names at 1, 2 and 5, or 1 and 3, of each power of ten."""
    low, high = values.min() / 1.2, values.max() * 1.2
    for steps in ((1, 2, 5), (1, 3), (1,)):
        places = [m * 10.0**e for e in range(-9, 9) for m in steps if low <= m * 10.0**e * per_unit <= high]
        if len(places) <= MAX_TICKS:
            break
    ticks = tuple((at * per_unit, f"{at:,.0f}" if at >= 1 else f"{at:g}") for at in places)
    return Axis(name, unit=unit, low=float(low), high=float(high), ticks=ticks, log=True, per_unit=per_unit)


def _points(points: pd.DataFrame, shown: str, name: str, unit: str, per_unit: float, look: style.Style) -> Series:
    texts = []
    for row in points.to_dict("records"):
        measured_s, ours, low, high = (row[f"{name}{end}"] for end in ("_measured_s", "_s", "_low_s", "_high_s"))
        texts.append(
            f"{row['model']}, {row['n_devices']} x {row['system']}\n{row['stack']} {row['release']}, "
            f"{row['concurrency']:,} requests\nmeasured {measured_s / per_unit:,.4g} {unit}\n"
            f"predicted {ours / per_unit:,.4g} {unit} ({100 * (ours / measured_s - 1):+.0f} %)\n"
            f"8 of 10 from {low / per_unit:,.4g} to {high / per_unit:,.4g} {unit}"
        )
    opened = () if look.marker == "x-thin" else tuple(kind == "mixture" for kind in points["kind"])
    places = points[f"{name}_measured_s"], points[f"{name}_s"]
    return marks.points(shown, *places, look, texts, opened=opened, size=0.5)


@figure(
    "servers_errors",
    "Errors on measured servers by model: this model, kernels alone, the data sheet.",
    by(_COMMAND, "errors", "tables/serving", "serving"),
    ("by", "group", "predicted", *_BARS),
    order=360,
)
def by_model(source: Source) -> Chart | None:
    """Three bars a model, mean errors of times per output token; all dense models and all mixtures first."""
    table = source.table
    groups = table[table["by"].isin(("kind", "model")) & table["tpot_mean"].notna()]
    if groups.empty:
        return None
    names = [f"all {row.group} models" if row.by == "kind" else str(row.group) for row in groups.itertuples()]
    names = [name.replace("all mixture models", "all mixtures") for name in names]
    series = []
    for i, (column, (shown, *fill)) in enumerate(_BARS.items()):
        known = [k for k, value in enumerate(groups[column]) if pd.notna(value)]
        values = [float(groups[column].iloc[k]) for k in known]
        texts = (
            f"{names[k]}, {groups['predicted'].iloc[k]:,} rows\n{shown}: {100 * value:.1f} %"
            for k, value in zip(known, values, strict=True)
        )
        places = (len(names) - 1 - k + _BAR * (1 - i) for k in known)
        series.append(marks.bars(shown, places, values, (fill[0], fill[1]), texts, width=_BAR))
    x = axes.linear("mean error of TPOT", "%", [v for line in series for v in line.x], axes.PERCENT)
    return Chart(
        "Errors on measured servers",
        panels=(Panel("", x, axes.categories("model", names[::-1]), tuple(series)),),
        panel_height_pt=30 + 20 * len(names),
        notes=(
            "Means of |predicted / measured - 1|. Kernels alone: without the server's own time and the prompts of "
            "other requests. Data sheet: bytes and operations of a step at peak rates.",
        ),
    )


#: column of errors.csv -> name and look of its marks; `unseen_` by fits that saw no row of the group
_MARKS = {
    "tpot_mean": ("mean error", style.Style(style.BLUE, marker="circle")),
    "unseen_tpot_mean": ("mean error, group left out of the fit", style.Style(style.ORANGE, marker="square")),
    "tpot_p90": ("9 of 10 servers within", style.Style(style.SKY, marker="diamond")),
}


@figure(
    "servers_accuracy",
    "Errors of TPOT on measured servers by group, with the share inside their intervals.",
    by(_COMMAND, "errors", "tables/serving", "serving"),
    ("by", "group", "predicted", "tpot_mean", "tpot_p90", "tpot_inside"),
    order=365,
)
def by_group(source: Source) -> Chart | None:
    """A line a group in the table's order; a star on those that `about["chosen"]` names."""
    table = source.table[source.table["tpot_mean"].notna()]
    if table.empty:
        return None
    groups = [group_name(by, str(group)) for by, group in zip(table["by"], table["group"], strict=True)]
    names = [
        f"{group} ({n:,} server{'' if n == 1 else 's'}, {100 * inside:.0f} % in interval)"
        for group, n, inside in zip(groups, table["predicted"], table["tpot_inside"], strict=True)
    ]
    place = {k: len(names) - 1 - k for k in range(len(names))}
    series = []
    for column, (shown, look) in _MARKS.items():
        known = [k for k, value in enumerate(table.get(column, ())) if pd.notna(value)]
        values = [float(table[column].iloc[k]) for k in known]
        texts = (f"{names[k]}\n{shown}: {100 * value:.1f} %" for k, value in zip(known, values, strict=True))
        if known:
            series.append(marks.points(shown, values, (place[k] for k in known), look, texts))
    x = axes.linear("error in time per token", "%", [v for line in series for v in line.x], axes.PERCENT)
    chosen = [k for k, group in enumerate(groups) if group in source.about.get("chosen", ())]
    if chosen:
        at = [float(table["tpot_mean"].iloc[k]) for k in chosen]
        look = style.Style(style.BLACK, marker="star")
        series.append(marks.points("the chosen design's", at, (place[k] for k in chosen), look, size=1.5))
    return Chart(
        "How far off on measured servers",
        panels=(Panel("", x, axes.categories("group", names[::-1]), tuple(series)),),
        panel_height_pt=40 + 14 * len(names),
        notes=("Means of |predicted / measured - 1|; intervals should hold 80 %.",),
    )


def charts_of(judged: Sequence[JudgedServer]) -> dict[str, Chart]:
    """Both figures, by the name of their files; empty where no measured row was predicted."""
    table, by_group = table_of(judged), pd.DataFrame(errors(list(judged)))
    drawn = {"servers": measured(Source(table)), "servers-errors": by_model(Source(by_group))}
    return {name: chart for name, chart in drawn.items() if chart}


def files_of(judged: Sequence[JudgedServer]) -> dict[str, bytes]:
    """`servers.csv` with the rows, a page with both figures, and each as SVG and PNG."""
    charts, buffer = charts_of(judged), io.StringIO()
    table = table_of(judged).map(lambda cell: files.harmless(cell) if isinstance(cell, str) else cell)
    table.to_csv(buffer, index=False, lineterminator="\n", float_format="%.6g")
    contents = {"servers.csv": buffer.getvalue().encode()}
    if not charts:
        return contents
    page = web_page.render(
        "servers.html", title="Measured servers beside predictions", charts=charts, made_by="dse " + _COMMAND
    )
    contents["servers.html"] = page.encode()
    for name, chart in charts.items():
        for kind in ("svg", "png"):
            contents[f"{name}.{kind}"] = to_matplotlib.image(chart, kind)
    return contents
