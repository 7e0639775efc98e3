"""Any two objectives against each other with the Pareto front and its knees marked; not a figure of the report."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dse.core.units import human
from dse.figures.charts.interactivity import DEVICE, USER
from dse.figures.drawing import axes, marks, style, whiskers
from dse.figures.drawing.chart import Axis, Chart, Panel, Series, hover_box
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.model import quality
from dse.model.results import RESULT_UNITS, shown_unit, title
from dse.questions.common import refused_text
from dse.sweep.pareto import sure
from dse.sweep.pareto.designs import DesignFront, label

GRAY = "#C8C8C8"
OTHERS = "other designs"
#: what a front of one objective is drawn against
PLACE = "row of the front"
#: units that say little of a number without its name
_COUNTED = ("", "1", "sequence", "token", "bit", "device")
#: from this ratio of largest to smallest on, an axis is logarithmic; and by powers of ten
_LOG, _DECADES = 20.0, 1000.0
MAX_FRONT = 5000
#: designs of a front that are drawn with their intervals
MAX_WHISKERS = 60


def source_of(answer: DesignFront) -> Source:
    """The table of a front, what its figure says beside it, and the other designs."""
    about = {
        "objectives": dict(answer.objectives),
        "units": dict(answer.units),
        "design": list(answer.design),
        "by": list(answer.by),
        "notes": front_notes(answer),
    }
    return Source(answer.table.assign(knee=answer.knee), about=about, others={"front_others": answer.cloud})


def front_notes(answer: DesignFront) -> list[str]:
    """Note what a front rests on, and what of it other software would have to run."""
    rows = answer.table.to_dict("records") if "runs_why" in answer.table else []
    return list(filter(None, [refused_text(rows), sure.assumed(answer)]))


@figure(
    "front",
    "Any two objectives against each other, the Pareto front and its knees marked.",
    by("pareto DIR --maximize ... --minimize ... --out DIR", "front"),
    ("knee",),
    order=100,
    needs_beside=True,
    answer=DesignFront,
    source_of=source_of,
)
def front(source: Source) -> Chart:
    """The front of the table, over the designs of front-others beside it."""
    about, table, cloud = source.about, source.table, source.other("front-others")
    return chart(
        table.drop(columns="knee"),
        [bool(knee) for knee in table["knee"]],
        table.iloc[:0] if cloud is None else cloud,
        objectives=about["objectives"],
        units=about["units"],
        label=partial(label, columns=tuple(about["design"]), units=about["units"]),
        by=tuple(about["by"]),
        rests_on=tuple(about.get("notes", ())),
    )


def axis(name: str, unit: str, values: Sequence[float]) -> Axis:
    """An axis around `values` of a column (base units), by the name and in the unit that people know it by.

    Logarithmic where they span much, from zero where none is negative.
    """
    (shown, size), words = shown_unit(name, unit), title(name)
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    if low > 0 and high / low >= _DECADES:
        return axes.log10(words, shown, finite, size)
    if low > 0 and high / low >= _LOG:
        return axes.log2(words, shown, finite, size)
    if low >= 0:
        return axes.linear(words, shown, finite, size)
    return axes.around(words, shown, finite, per_unit=size)


def chart(
    front: pd.DataFrame,
    knee: Sequence[bool],
    cloud: pd.DataFrame,
    objectives: Mapping[str, str],
    units: Mapping[str, str],
    label: Callable[[pd.Series], str],
    by: Sequence[str] = (),
    rests_on: Sequence[str] = (),
) -> Chart:
    """The first two objectives (one: against the order of the table); each group of `by` has its own mark.

    `label` names a design beside its knee; hovering shows its whole row. `rests_on` are notes of `front_notes`.
    """
    names = list(objectives)[:2]
    is_single = len(names) == 1
    front = front.assign(**{PLACE: range(1, len(front) + 1)}) if is_single else front
    x, y = (PLACE, names[0]) if is_single else names
    cloud = cloud.iloc[:0].assign(**{x: []}) if is_single else _beaten(cloud, front)
    spread = front.to_dict("records") if len(front) <= MAX_WHISKERS else []
    places = [
        axis(name, units.get(name, ""), [*front[name].astype(float), *cloud[name].astype(float), *ends])
        for name in (x, y)
        for ends in [whiskers.spread(spread, name)]
    ]
    notes = []
    if len(front) > MAX_FRONT:
        keep = [i for i in range(len(front)) if i % -(-len(front) // MAX_FRONT) == 0 or knee[i]]
        notes.append(f"{len(keep):,} of the {len(front):,} designs on the front are drawn; the table has all.")
        front, knee = front.iloc[keep], [knee[i] for i in keep]
    others = [marks.points(OTHERS, cloud[x], cloud[y], style.Style(GRAY), size=0.5)] if len(cloud) else []
    if others:
        notes.append(f"Other designs: {len(cloud):,} of those that are beaten.")
    series: list[Series] = []
    groups = _groups(front, by, units)
    if len(groups) > style.MAX_SYSTEMS:
        notes.append(
            f"The fronts of the first {style.MAX_SYSTEMS} of {len(groups)} groups are drawn; the table has all."
        )
        groups = groups[: style.MAX_SYSTEMS]
    knees: list[Series] = []
    whisks: list[Series] = []
    is_knee = pd.Series(list(knee), index=front.index, dtype=bool)
    looks = style.looks([OTHERS, *(name for name, _ in groups)])  # gray stays with the others
    for name, rows in groups:
        look, rows = looks[name], rows.sort_values(list(names), kind="stable")
        draw = marks.line if len(objectives) == 2 else marks.points
        hover = (_hover(name, row, units) for _, row in rows.iterrows())
        series.append(draw(name, rows[x], rows[y], look, hover, size=0.8))
        if len(front) <= MAX_WHISKERS:
            for row in rows.to_dict("records"):
                whisks += whiskers.upright(float(row[x]), whiskers.ends(row, y), look.color)
                whisks += whiskers.level(float(row[y]), whiskers.ends(row, x), look.color)
        best = rows[is_knee[rows.index]]
        hover = (_hover(f"knee of {name}", row, units) for _, row in best.iterrows())
        star, opened = style.Style(look.color, marker="star"), (True,) * len(best)
        knees.append(marks.points(style.KNEE, best[x], best[y], star, hover, opened=opened, size=2.0, in_legend=False))
        notes += [f"Knee{f' of {name}' if by else ''}: {label(row)}." for _, row in best.iterrows()]
    aims = ", ".join(_aim(name, sense) for name, sense in objectives.items())
    notes.append("Knee: closest to best in everything, each objective scaled from best to worst on its front.")
    notes.append(f"Objectives: {aims}.")
    # hollow, and under all marks, which stay in sight
    panel = Panel("", places[0], places[1], (*knees, *others, *whisks, *series))
    notes += [whiskers.NOTE] if whisks else []
    notes += rests_on
    words = f"Pareto front: {title(y)} against {title(x)}"
    return whiskers.cut(Chart(words, panels=(panel,), panel_height_pt=260, keys=(style.KEY_KNEE,), notes=tuple(notes)))


def _aim(name: str, sense: str) -> str:
    """An objective in words: "largest throughput", but "largest batch" once only."""
    wanted, words = "largest" if sense == "max" else "smallest", title(name)
    return words if words.startswith(wanted) else f"{wanted} {words}"


def _groups(front: pd.DataFrame, by: Sequence[str], units: Mapping[str, str]) -> list[tuple[str, pd.DataFrame]]:
    """Designs of a front by their group, each with its name; all together where they have none."""
    if not by or front.empty:
        return [("front", front)]
    return [(_group(key, by, units), rows) for key, rows in front.groupby(list(by), sort=False, dropna=False)]


def _group(key: tuple[Any, ...], by: Sequence[str], units: Mapping[str, str]) -> str:
    """A group by its values: names, numbers with their unit, counts with what they count."""
    parts = []
    for name, value in zip(by, key, strict=True):
        if isinstance(value, str) or pd.isna(value):
            parts.append(str(value))
        else:
            unit = units.get(name, "")
            parts.append(f"{title(name)} {human(value, '')}" if unit in _COUNTED else human(value, unit))
    return ", ".join(parts)


def _hover(name: str, row: pd.Series, units: Mapping[str, str]) -> str:
    """A title, and every value of the row that is there, in the unit people see; of counts the title says it.

    Ends of ranges are left out: error bars draw them.
    """
    parts = []
    for column, value in row.items():
        if value is None or pd.isna(value) or value == "" or str(column).endswith(("_low", "_high")):
            continue
        said = value
        if not isinstance(value, str | bool | np.bool_):
            unit = units.get(str(column), "")
            shown, size = shown_unit(str(column), unit)
            said = human(value / size, shown) if size != 1 else human(value, "" if unit in _COUNTED else shown)
        parts.append(f"{title(str(column))}: {said}")
    return hover_box(name, parts)


def _beaten(cloud: pd.DataFrame, front: pd.DataFrame) -> pd.DataFrame:
    """The other designs less those of the front: designs equal in all objectives are on it together."""
    columns = [name for name in cloud.columns if name in front.columns]

    def rows(table: pd.DataFrame) -> list[tuple[object, ...]]:
        plain = table[columns].astype(object)
        return list(plain.where(plain.notna(), None).itertuples(index=False, name=None))

    best = set(rows(front))
    return cloud.loc[[row not in best for row in rows(cloud)]]


#: by which formats are colored: nothing lost, to most
QUALITY = "sample_perplexity_frac"
#: columns that a sweep does not have -> their words and units
RATES = {"tokens_per_s_a_device": (DEVICE, "tok/s"), "tokens_per_s_a_user": (USER, "tok/s")}
_BEST_COLOR, _WORST_COLOR = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)
_BEST = "best"


def trade_offs(
    table: pd.DataFrame, best: pd.Series | None, across: str, upward: str, wanted: Mapping[str, float], title: str
) -> Chart:
    """A line a format through what none of its designs beats, with a star at the best, where there is one.

    `table` has the designs of the fronts, with a column `quantizer` where they are found by it; `wanted` limits in
    seconds by column.
    """
    x_axis, y_axis = (_rate_axis(name, table[name]) for name in (across, upward))
    groups = list(table.groupby("quantizer", sort=False)) if "quantizer" in table else [("designs", table)]
    lost = {name: float(rows[QUALITY].iloc[0]) if QUALITY in rows else float("nan") for name, rows in groups}
    groups.sort(key=lambda pair: (lost[pair[0]] != lost[pair[0]], lost[pair[0]]))
    series: list[Series] = []
    for i, (name, rows) in enumerate(groups):
        rows = rows.sort_values([across, upward], kind="stable")
        loss = None if lost[name] != lost[name] else lost[name]
        said = f"{name} ({quality.rise_text({QUALITY: loss})})" if QUALITY in table else str(name)
        look = style.Style(_loss_color(i, len(groups)), "solid", style.STYLES[i % len(style.STYLES)].marker)
        texts = (_rates_text(str(name), row, (upward, across)) for _, row in rows.iterrows())
        series.append(marks.line(said, rows[across], rows[upward], look, texts))
    if across == "tokens_per_s_a_user" and "tpot_s" in wanted:
        series.insert(0, marks.rule("limit", y_axis, 1 / wanted["tpot_s"], style.GRAY, "dot", upright=True))
    key = replace(style.KEY_CHOSEN, name=_BEST)
    if best is not None:
        star = style.mark(key, (float(best[across]),), (float(best[upward]),), 2.0)
        series.append(replace(star, name=_BEST))
    notes = ("In brackets: rise of perplexity on the sample.",) if QUALITY in table else ()
    panel = Panel("", x_axis, y_axis, tuple(series))
    return Chart(title, panels=(panel,), panel_height_pt=260, keys=() if best is None else (key,), notes=notes)


def _rates_text(name: str, row: pd.Series, columns: Sequence[str]) -> str:
    """A design by its format, requests at once and devices, and its values."""
    counts = [f"{title(name)}: {row[name]:,}" for name in ("batch", "n_devices") if name in row]
    values = []
    for column in columns:
        words, unit = RATES.get(column) or (title(column), RESULT_UNITS.get(column, ""))
        shown, size = shown_unit(column, unit)
        values.append(f"{words}: {human(float(row[column]) / size, shown)}")
    return hover_box(name, [*counts, *values])


def _rate_axis(name: str, column: pd.Series) -> Axis:
    values = [float(value) for value in column]
    if name in RATES:
        return (axes.log2 if name == "tokens_per_s_a_user" else axes.linear)(*RATES[name], values)
    return axis(name, RESULT_UNITS.get(name, ""), values)


def _loss_color(i: int, n: int) -> str:
    """From that of nothing lost to that of most."""
    share = i / max(n - 1, 1)
    parts = (round(a + share * (b - a)) for a, b in zip(_BEST_COLOR, _WORST_COLOR, strict=True))
    return "#" + "".join(f"{part:02X}" for part in parts)
