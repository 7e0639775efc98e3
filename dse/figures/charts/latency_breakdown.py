"""The parts of a decode step against batch (Oaken Figure 12(b))."""

from collections.abc import Mapping

import pandas as pd

from dse.figures.drawing import axes, marks, rows, style, whiskers
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.registry import by_report, figure
from dse.figures.source import Source

#: how far from the middle of a bar its whisker stands, beside it
_ASIDE = 0.38


@figure(
    "latency_breakdown",
    "Where does the time of a decode step go, and what does quantization cost (Oaken Figure 12(b))?",
    by_report("breakdown"),
    (*rows.POINT, *rows.STEP),
    order=60,
    key=("device", "system", "batch"),
    title="Decode step by part",
)
def chart(source: Source) -> Chart:
    """Stacked bars of the mean decode step of the running batch, a panel per system."""
    table = source.table
    table = table[table["model"] == table["model"].iloc[0]]
    shown = rows.drawn(table, max_systems=6)
    table, batches, left_out = rows.few_batches(shown.table)
    x = axes.categories("batch", [axes.count_text(batch) for batch in batches], "sequences")
    reached = [1.12 * float(v) for v in table["decode_step_s"].dropna()]
    reached += whiskers.spread(table.to_dict("records"), "decode_step_s")
    y = axes.linear("mean decode step", "ms", reached, axes.MILLISECOND)
    panels, parts = [], rows.step_parts(table.to_dict("records"))
    for system in shown.systems:
        steps = table[table["system"] == system]
        good = steps[steps["feasible"]]
        places = tuple(float(batches.index(int(batch))) for batch in good["batch"])
        texts = tuple(rows.hover(row, *_parts(row, parts)) for _, row in good.iterrows())
        shown_parts = {name: good[column] for column, name in parts.items()}
        series = marks.stacked(shown_parts, places, lambda _, texts=texts: texts, 0.62, "bar")  # type: ignore[misc]
        for place, row in zip(places, good.to_dict("records"), strict=True):  # beside the mark over a bar
            series += whiskers.upright(place + _ASIDE, whiskers.ends(row, "decode_step_s"))
        waits = [bool(row["running_batch"] < row["batch"]) for _, row in good.iterrows()]
        over = tuple(place for place, wait in zip(places, waits, strict=True) if wait)
        if over:
            last = series[len(parts) - 1]
            ends = [top + 0.03 * y.high for top in map(float.__add__, last.base, last.y)]
            tops = tuple(end for end, wait in zip(ends, waits, strict=True) if wait)
            running = [str(int(n)) for n, wait in zip(good["running_batch"], waits, strict=True) if wait]
            series.append(style.mark(style.KEY_NOT_AT_ONCE, over, tops, 0.7, tuple(running)))
        out = tuple(float(batches.index(int(batch))) for batch in steps[~steps["feasible"]]["batch"])
        if out:
            heights = (0.03 * y.high,) * len(out)
            series.append(style.mark(style.KEY_OUT_OF_MEMORY, out, heights))
        panels.append(Panel(system, x, y, tuple(series)))
    return Chart(
        f"Decode step by part, {table['model'].iloc[0]}",
        panels=tuple(panels),
        n_columns=3,
        panel_height_pt=150,
        keys=rows.mark_keys(table),
        notes=(
            "Exposed: what does not hide behind the reads. Numbers over hollow marks: sequences that do run at once.",
            *rows.mark_notes(table),
            *rows.kernel_notes(table, "Not facts"),
            *whiskers.notes(table.to_dict("records"), "decode_step_s"),
            *shown.notes,
            *left_out,
            rows.assumption_note(table),
        ),
    )


def _parts(row: pd.Series, parts: Mapping[str, str]) -> list[str]:
    return [f"{name}: {row[column] / axes.MILLISECOND:,.4g} ms" for column, name in parts.items()]
