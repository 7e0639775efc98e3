"""Throughput against effective capacity: a line for each memory over its bits (after Oaken Figure 1)."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from dse.figures.drawing import axes, marks, rows, style, whiskers
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.registry import by_report, figure
from dse.figures.source import Source

#: after the name of a quantizer that the device's software does not run, or by kernels that nobody measured
OTHER_SOFTWARE, KERNELS_ASSUMED = "*", "†"


@figure(
    "throughput_capacity",
    "Which memory turns fewer bits into throughput: tok/s against effective capacity, a line a device?",
    by_report("capacity"),
    (*rows.POINT, *rows.MEMORY, "quantizer", "runs_why", "effective_capacity_bytes"),
    order=10,
    key=("device", "quantizer", "model", "input_tokens", "output_tokens", "batch"),
    title="Throughput against effective capacity",
)
def chart(source: Source) -> Chart:
    """A line a device through its quantizers, each named at its mark; a panel for each model and lengths."""
    table = rows.with_system(source.table)
    devices = rows.ordered(table, "device")
    shown = table[table["device"].isin(devices[: style.MAX_SYSTEMS])]
    by = ["model", "input_tokens", "output_tokens"]
    shown = shown[shown["batch"] == shown.groupby(by)["batch"].transform("max")]
    groups = list(shown.groupby(by, sort=False))
    shown = pd.concat([part for _, part in groups[: style.MAX_PANELS]])
    looks = _looks(table, devices[: style.MAX_SYSTEMS])
    panels = [_panel(part, looks, _title(*key) if len(groups) > 1 else "") for key, part in groups[: style.MAX_PANELS]]
    batches = sorted(set(shown["batch"]))
    what = f"{_title(*groups[0][0])}, batch {batches[0]:,}" if len(groups) == 1 else f"batch {batches[-1]:,}"
    return Chart(
        f"Throughput against effective capacity: {what}",
        panels=tuple(panels),
        n_columns=1 if len(panels) < 4 else 2,
        panel_height_pt=250 if len(panels) == 1 else 180,
        notes=(
            "Effective capacity: memory times 16 / effective bits, what FP16 keys and values would need.",
            *rows.mark_notes(shown),
            *_left_out(devices, "devices", style.MAX_SYSTEMS),
            *_left_out(groups, "models and lengths", style.MAX_PANELS),
            *_other_software(shown),
            *rows.kernel_notes(shown[[not _why(row) for row in shown.to_dict("records")]], KERNELS_ASSUMED),
            *rows.run_notes(shown),
            *rows.sure_notes(shown.assign(system=shown["device"])),
            rows.assumption_note(shown.drop(columns="runs_why", errors="ignore")),
        ),
    )


def _left_out(found: list[Any], what: str, most: int) -> tuple[str, ...]:
    return (f"The first {most} of {len(found)} {what} are drawn; the table has all.",) if len(found) > most else ()


def _title(model: str, input_tokens: int, output_tokens: int) -> str:
    return f"{model}, {axes.tokens_text(int(input_tokens))} in, {axes.tokens_text(int(output_tokens))} out"


def _looks(table: pd.DataFrame, devices: list[str]) -> dict[str, style.Style]:
    """The look of each device: of its first system in the report."""
    known: dict[str, int] = {}
    for place, (_, device, _quantizer) in enumerate(table.attrs.get("systems", ())):
        known.setdefault(device, place)
    return {device: style.STYLES[place] for device, place in style.places(devices, known).items()}


def _panel(part: pd.DataFrame, looks: dict[str, style.Style], title: str) -> Panel:
    part = part.sort_values("effective_capacity_bytes", kind="stable")
    x = axes.log2("effective capacity", "GB", part["effective_capacity_bytes"], axes.GB)
    y = axes.linear("throughput", "tok/s", rows.rates(part.assign(system=part["device"])))
    y = rows.room_for_crosses(y, part, "effective_capacity_bytes")
    return Panel(title, x, y, tuple(_lines(part, looks, y)))


def _lines(part: pd.DataFrame, looks: dict[str, style.Style], y: Axis) -> Iterable[Series]:
    for i, (device, look) in enumerate(looks.items()):
        aside = 2 ** (rows.DODGE * (i - (len(looks) - 1) / 2))
        records = part[part["device"] == device].to_dict("records")
        good, bad = ([row for row in records if row["feasible"] is fits] for fits in (True, False))
        for row in good if len(looks) <= rows.MAX_WHISKERED else ():
            at = aside * float(row["effective_capacity_bytes"])
            yield from whiskers.upright(at, whiskers.ends(row, "throughput_tokens_per_s"), look.color)
        yield marks.line(
            device,
            (row["effective_capacity_bytes"] for row in good),
            (row["throughput_tokens_per_s"] for row in good),
            look,
            map(rows.hover, good),
            opened=tuple(bool(row["running_batch"] < row["batch"]) for row in good),
            labels=tuple(map(_name, good)),
            is_named=True,
        )
        if bad:
            cross = style.Style(look.color, marker="x-thin")
            texts = (f"{row['system']}, {row['model']}\n{row['infeasible_reason']}" for row in bad)
            places = [row["effective_capacity_bytes"] for row in bad]
            names = tuple(f"{device} {_name(row)}" for row in bad)
            feet = [-rows.CROSS_ROOM * y.high] * len(bad)
            yield marks.points(
                style.OUT_OF_MEMORY, places, feet, cross, texts, labels=names, is_note=True, in_legend=False
            )


def _name(row: dict[str, Any]) -> str:
    """The quantizer, with what is to be said of its software."""
    sign = OTHER_SOFTWARE if _why(row) else KERNELS_ASSUMED if row["feasible"] and rows.kernels_assumed(row) else ""
    return f"{row['quantizer']}{sign}"


def _why(row: dict[str, Any]) -> str:
    """The reason for which the device's software does not run it; empty where it does."""
    why = row["runs_why"]
    return why.removeprefix(f"{row['quantizer']}: ") if isinstance(why, str) else ""


def _other_software(table: pd.DataFrame) -> tuple[str, ...]:
    refused = {(row["device"], why): None for row in table.to_dict("records") if (why := _why(row))}
    whys = [why if device in why else f"{why} ({device})" for device, why in refused]
    return (f"{OTHER_SOFTWARE}: as if other software ran it: {', '.join(whys)}.",) if whys else ()
