"""Throughput a device against the speed that each user sees; by `dse ask interactivity`, and of any table of results.

The axes are those of InferenceMAX (github.com/InferenceMAX): up and to the right is better.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dse.figures.drawing import axes, marks, rows, style, whiskers
from dse.figures.drawing.chart import Axis, Chart, Panel, Series, hover_box
from dse.figures.registry import Written, figure
from dse.figures.source import Source
from dse.model import uncertainty
from dse.questions.interactivity import Interactivity, front, interval, speeds
from dse.questions.limits import LIMITS, within

USER, DEVICE = "speed of each user", "throughput a device"
POINTS = "Each point: a server that always has so many requests."
BAND = "Pale bands: where 8 of 10 measurements should lie."
BEST, MEASURED = "best within the limits", "measured"


def source_of(answer: Interactivity) -> Source:
    """The table of an answer and what its figure says beside it."""
    best = [{"x": speeds(answer.best)[0], "y": speeds(answer.best)[1]}] if answer.best else []
    notes = [answer.verdict, f"{answer.context}."]
    about = {"notes": notes, "limits": answer.limits, "best": best, "measured": places_of(answer.measured)}
    return Source(answer.table, about=about)


def places_of(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Where the figure shows measured servers."""
    names = {"x": "tokens_per_s_a_user", "y": "tokens_per_s_a_device", "text": "server"}
    return [{key: row[name] for key, name in names.items()} for row in measured]


@figure(
    "interactivity",
    "Throughput a device against the speed of each user: how much does a faster answer cost?",
    Written("dse report --out DIR", ("report", "interactivity"), "results"),
    (
        "model",
        "quantizer",
        "device",
        "batch",
        "n_devices",
        "fits_whole_batch",
        "throughput_tokens_per_s",
        "tpot_s",
        "ttft_s",
        "assumptions",
    ),
    order=25,
    title="Throughput a device against the speed of each user",
    answer=Interactivity,
    source_of=source_of,
)
def chart(source: Source) -> Chart:
    """A panel a model, a curve a system (or quantizer) over batches and splits: the designs that none beats in both.

    Beside the table: `limits` (seconds by column), `best` and `measured` (places), `notes`, and `has_bands`.
    """
    table, about = source.table, source.about
    if "system" not in table:
        one_device = table["device"].nunique() == 1
        names = table["quantizer"].astype(str)
        table = table.assign(system=names if one_device else table["device"].astype(str) + " " + names)
    shown = rows.drawn(table)
    limits = {name: float(most) for name, most in about.get("limits", {}).items() if name in LIMITS}
    panels, none = [], []
    for model in rows.ordered(shown.table, "model") or [""]:  # of a design that fits nowhere an empty panel
        records = shown.table[shown.table["model"] == model].to_dict("records")
        served = [row for row in records if row["fits_whole_batch"] and row["tpot_s"] == row["tpot_s"]]
        panels.append(_panel(str(model), served, shown, limits, about))
        if not served and model:
            none.append(str(model))
    notes = [*about.get("notes", ()), f"{POINTS} {BAND}"]
    if len(shown.systems) > rows.MAX_WHISKERED:
        notes[-1] = POINTS
    if "tpot_s" in limits:
        notes.append(f"Grey: users get less than a TPOT of {1e3 * limits['tpot_s']:g} ms gives.")
    if "ttft_s" in limits:
        notes.append(f"Hollow marks: the first token may come later than {limits['ttft_s']:g} s.")
    if none:
        notes.append(f"No batch of {', '.join(none)} runs whole: no curve.")
    if about.get("measured"):
        notes.append("Crosses: measured servers of this model, device and lengths, of any engine and format.")
    return Chart(
        "Throughput a device against the speed of each user",
        panels=tuple(panels),
        n_columns=min(len(panels), 3),
        panel_height_pt=230 if len(panels) == 1 else 150,
        notes=(*notes, *shown.notes, rows.assumption_note(shown.table)),
    )


def _panel(
    title: str,
    served: Sequence[dict[str, Any]],
    shown: rows.Drawn,
    limits: Mapping[str, float],
    about: Mapping[str, Any],
) -> Panel:
    places = [speeds(row) for row in served]
    measured, best = about.get("measured", ()), about.get("best", ())
    fronts = {system: front([row for row in served if row["system"] == system]) for system in shown.systems}
    has_bands = about.get("has_bands", len(shown.systems) <= rows.MAX_WHISKERED)
    has_bands = has_bands and all("token_time_low" in row for row in served)
    bands = {system: _around(members) for system, members in fronts.items() if members and has_bands}
    reached = [place for around in bands.values() for place in around]
    x, y = (
        make(
            name,
            "tok/s",
            [
                *whiskers.held([place[i] for place in places], [place[i] for place in reached]),
                *(float(row[way]) for row in (*measured, *best)),
            ],
        )
        for i, (make, name, way) in enumerate(((axes.log2, USER, "x"), (axes.linear, DEVICE, "y")))
    )
    curves = []
    for system, line in fronts.items():
        points = [speeds(row) for row in line]
        in_time = {name: limit for name, limit in limits.items() if name == "ttft_s"}
        curves.append(
            marks.line(
                system,
                (user for user, _ in points),
                (device for _, device in points),
                shown.style(system),
                (_hover(system, row) for row in line),
                opened=tuple(not within(row, in_time) for row in line),
            )
        )
    pale = [_band(around, shown.style(system).color, x, y) for system, around in bands.items()]
    return Panel(title, x, y, (*_outside(limits, x, y), *pale, *_marks(measured, best), *(c for c in curves if c.x)))


def _around(line: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """The closed line between the slow and the fast ends of a curve."""
    sure = [(speeds(row), uncertainty.of_column(row, "tpot_s").inverse(), interval(row)) for row in line]
    slow = [(user * of_user.low, device * of_device.low) for (user, device), of_user, of_device in sure]
    fast = [(user * of_user.high, device * of_device.high) for (user, device), of_user, of_device in sure]
    return [*slow, *reversed(fast)]


def _band(around: Sequence[tuple[float, float]], color: str, x: Axis, y: Axis) -> Series:
    """The inside of a closed line, within the frame."""
    return Series(
        whiskers.NAME,
        kind="area",
        x=tuple(min(max(at, x.low), x.high) for at, _ in around),
        y=tuple(min(max(at, y.low), y.high) for _, at in around),
        color=color,
        marker="",
        is_note=True,
        in_legend=False,
    )


def _outside(limits: Mapping[str, float], x: Axis, y: Axis) -> Iterable[Series]:
    """The speeds at which a limit of TPOT is missed."""
    least = 1 / limits["tpot_s"] if "tpot_s" in limits else 0.0
    if least > x.low:
        edge = min(least, x.high)
        xs, ys = (x.low, edge, edge, x.low), (y.low, y.low, y.high, y.high)
        yield Series("outside", kind="area", x=xs, y=ys, color=style.GRAY, marker="", is_note=True, in_legend=False)


def _marks(measured: Sequence[Mapping[str, Any]], best: Sequence[Mapping[str, Any]]) -> Iterable[Series]:
    for name, points, marker, size in ((MEASURED, measured, "x-thin", 0.8), (BEST, best, "star", 2.0)):
        if points:
            x, y = ([float(point[way]) for point in points] for way in ("x", "y"))
            texts = (
                f"{point.get('text', name)}\n{point['x']:,.3g} tok/s a user, {point['y']:,.0f} a device"
                for point in points
            )
            opened, look = (marker == "star",) * len(points), style.Style(style.BLACK, marker=marker)
            yield marks.points(name, x, y, look, texts, opened=opened, size=size)


def _hover(system: str, row: Mapping[str, Any]) -> str:
    user, device = speeds(row)
    n = int(row["n_devices"])
    return hover_box(
        f"{system}, {row['model']}",
        [
            f"requests at once: {int(row['batch']):,}, on {n} device{'s' if n > 1 else ''}",
            f"{user:,.3g} tok/s a user (TPOT {1e3 * row['tpot_s']:,.3g} ms)",
            f"{device:,.0f} tok/s a device",
            f"first token after {row['ttft_s']:,.3g} s",
        ],
    )
