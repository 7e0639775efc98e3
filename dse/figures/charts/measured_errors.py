"""Measured errors of quantizers on a KV dump: against bits, context length and layer."""

import pandas as pd

from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.registry import by, figure
from dse.figures.source import Source

#: heads drawn in a layer; more do not show more
MAX_HEADS = 16
_ERROR = "relative error of the attention output"


def _title(text: str, synthetic: bool) -> str:
    return f"{text}, synthetic data" if synthetic else text


def _is_synthetic(source: Source) -> bool:
    return bool({**source.json("summary.json"), **source.about}.get("synthetic"))


def _notes(table: pd.DataFrame, synthetic: bool) -> tuple[str, ...]:
    queries = "Queries: " + ", ".join(sorted(set(table["queries"].dropna()))) + "."
    return (queries, "Synthetic data: no language model's keys and values.") if synthetic else (queries,)


@figure(
    "error_bits",
    "Measured error of the attention output against stored bits, a point a method.",
    by("measure SOURCE --out DIR", "summary.json"),
    ("method", "side", "context_tokens", "stored_bits", "output_error", "queries"),
    order=170,
)
def error_bits(source: Source) -> Chart | None:
    """Output error against stored bits, a point a method, all layers; None where attention was not measured."""
    summary, synthetic = source.table, _is_synthetic(source)
    errors = summary[(summary["side"] == "both") & summary["output_error"].gt(0)]
    errors = errors[errors["context_tokens"] == summary["context_tokens"].max()]
    if errors.empty:
        return None
    looks, series = style.looks(list(dict.fromkeys(summary["method"]))), []
    for row in errors.itertuples():
        text = f"{row.method}\n{row.stored_bits:.4g} bit an element\n{_ERROR} {row.output_error:.4g}"
        series.append(marks.points(row.method, [row.stored_bits], [row.output_error], looks[row.method], [text]))
    x = axes.linear("stored bits", "bit/element", errors["stored_bits"], n_ticks=8)
    panel = Panel("", x, axes.log10(_ERROR, "%", errors["output_error"], axes.PERCENT), tuple(series))
    title = f"Attention error against stored bits at {errors['context_tokens'].iloc[0]:,} tokens"
    return Chart(_title(title, synthetic), panels=(panel,), panel_height_pt=230, notes=_notes(errors, synthetic))


@figure(
    "error_context",
    "Measured error of the attention output by context length.",
    by("measure SOURCE --out DIR", "summary.json"),
    ("method", "side", "context_tokens", "output_error", "mass_moved", "queries"),
    order=180,
)
def error_context(source: Source) -> Chart | None:
    """Output error and attention mass moved by context length; None for a single length or without attention."""
    summary, synthetic = source.table, _is_synthetic(source)
    errors = summary[(summary["side"] == "both") & summary["output_error"].notna()]
    lengths = sorted(set(errors["context_tokens"]))
    if len(lengths) < 2:
        return None
    x = axes.log2_at("context", "tokens", [float(n) for n in lengths], in_k=True)
    panels = [
        _panel(errors, x, "context_tokens", column, name, "")
        for column, name in (("output_error", _ERROR), ("mass_moved", "share of attention moved"))
    ]
    return Chart(
        _title("Attention error by context length", synthetic),
        panels=tuple(p for p in panels if p),
        n_columns=2,
        panel_height_pt=200,
        notes=_notes(errors, synthetic),
    )


def _panel(errors: pd.DataFrame, x: Axis, at: str, column: str, name: str, title: str) -> Panel | None:
    """A line a method of what is above zero, on a logarithmic axis; None where there is nothing."""
    looks, shown = style.looks(list(dict.fromkeys(errors["method"]))), errors[errors[column].gt(0)]
    if shown.empty:
        return None
    series = []
    for method in dict.fromkeys(shown["method"]):
        points = shown[shown["method"] == method].sort_values(at)
        texts = (f"{method}\n{a:,}: {b:.4g}" for a, b in zip(points[at], points[column], strict=True))
        series.append(marks.line(method, points[at], points[column], looks[method], texts))
    return Panel(title, x, axes.log10(name, "%", shown[column], axes.PERCENT), tuple(series))


@figure(
    "error_layer",
    "Measured errors of keys, values and attention by layer.",
    by("measure SOURCE --out DIR", "measured"),
    ("method", "side", "context_tokens", "layer", "head", "sqnr_db", "output_error", "mass_moved", "queries"),
    order=190,
)
def error_layer(source: Source) -> Chart | None:
    """By layer: signal to noise of keys and of values (heads as hollow points), and the output error."""
    table, synthetic = source.table, _is_synthetic(source)
    errors = table[table["context_tokens"] == table["context_tokens"].max()]
    x = axes.layers(sorted(set(errors["layer"])), 0.5)
    panels = [_sqnr(errors, x, side) for side in ("key", "value")]
    both = errors[(errors["side"] == "both") & errors["head"].isna()]
    panels.append(_panel(both, x, "layer", "output_error", _ERROR, "Attention output") if len(both) else None)
    drawn = tuple(panel for panel in panels if panel)
    if not drawn:
        return None
    title = f"Errors by layer at {errors['context_tokens'].iloc[0]:,} tokens"
    notes = (f"Hollow: single heads, at most {MAX_HEADS} a layer.", *_notes(errors, synthetic))
    return Chart(_title(title, synthetic), panels=drawn, n_columns=3, panel_height_pt=190, notes=notes)


def _sqnr(table: pd.DataFrame, x: Axis, side: str) -> Panel | None:
    looks = style.looks(list(dict.fromkeys(table["method"])))
    errors = table[(table["side"] == side) & table["sqnr_db"].notna()]
    if errors.empty:
        return None
    series: list[Series] = []
    for method in dict.fromkeys(errors["method"]):
        rows = errors[errors["method"] == method].sort_values("layer")
        heads, whole = rows[rows["head"].fillna(MAX_HEADS) < MAX_HEADS], rows[rows["head"].isna()]
        small = {"opened": (True,) * len(heads), "size": 0.5, "in_legend": False}
        series.append(marks.line(method, whole["layer"], whole["sqnr_db"], looks[method], _texts(method, whole)))
        series.append(
            marks.points(method, heads["layer"], heads["sqnr_db"], looks[method], _texts(method, heads), **small)
        )
    y = axes.around("SQNR", "dB", [float(v) for v in errors["sqnr_db"]])
    return Panel(f"{side.capitalize()}s", x, y, tuple(series))


def _texts(method: str, rows: pd.DataFrame) -> list[str]:
    return [
        f"{method}\nlayer {row.layer}{'' if pd.isna(row.head) else f', head {row.head}'}: {row.sqnr_db:.2f} dB"
        for row in rows.itertuples()
    ]
