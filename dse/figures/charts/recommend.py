"""Time per token against the cost of an hour, of the deployments that hold a load; by `dse recommend`."""

import pandas as pd

from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Chart, Panel
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.questions import layouts
from dse.questions.recommend import Recommendation


def source_of(answer: Recommendation) -> Source:
    """The table of an answer of `dse recommend` and what its figure says beside it."""
    cards = [
        {"name": name, "usd_per_hour": card.usd_per_hour, "time_high_s": card.time_s}
        for name, card in answer.shown.items()
    ]
    pace = answer.first.server.pace
    about = {
        "pace": pace,
        "notes": [answer.verdict, f"{answer.question}."],
        "limits": answer.search.demand.limits,
        "cards": cards,
    }
    spent = max([answer.search.spent_usd, *(card.usd_per_hour for card in answer.cards.values())])
    return Source(answer.table[answer.table["usd_per_hour"] <= spent], about=about)


@figure(
    "recommend",
    "Time per token against the cost of an hour: what a load can run on.",
    by("recommend ... --out DIR", "recommend"),
    ("device", "stack", "quantizer", "n_servers", "n_devices_a_server", "usd_per_hour", "holds", "time_high_s"),
    answer=Recommendation,
    source_of=source_of,
)
def chart(source: Source) -> Chart:
    """A mark a deployment, a color a device; beside the table: `cards`, with their places, and `limits` (seconds)."""
    table, about = source.table, source.about
    cards, limit = about.get("cards", []), about.get("limits", {}).get(about.get("pace", "tpot_s"))
    pace = str(about.get("pace", "tpot_s")).removesuffix("_s").upper()
    usd = [*table["usd_per_hour"].astype(float), *(card["usd_per_hour"] for card in cards)]
    times = [*table["time_high_s"].astype(float), *(card["time_high_s"] for card in cards), *([limit] if limit else [])]
    x, y = axes.linear("cost of an hour", "USD", usd), axes.linear(f"{pace}, at most", "ms", times, 1e-3)
    series = []
    for device, look in style.looks(list(dict.fromkeys(table["device"]))).items():
        rows = table[table["device"] == device]
        texts = (_text(row, pace) for _, row in rows.iterrows())
        series.append(marks.points(str(device), rows["usd_per_hour"], rows["time_high_s"], look, texts))
    for card in cards:
        place = (card["usd_per_hour"],), (card["time_high_s"],)
        series.append(style.mark(style.KEY_CHOSEN, *place, 1.3, (card["name"],)))
    if limit:
        series.append(marks.rule("limit", x, limit, style.GRAY, "dot"))
    notes = [*about.get("notes", ()), "Each mark: the fewest servers of a device, engine, KV format and layout."]
    return Chart(
        "What holds the load: time per token against cost",
        panels=(Panel("", x, y, tuple(series)),),
        keys=(style.KEY_CHOSEN,) if cards else (),
        n_columns=1,
        panel_height_pt=230,
        notes=tuple(notes),
    )


def _text(row: pd.Series, pace: str) -> str:
    split = layouts.words(row.to_dict())
    return (
        f"{row['n_servers']:,} x {row['n_devices_a_server']} {row['device']}, {row['stack']}, {row['quantizer']}"
        f"{', ' + split if split else ''}\n{row['usd_per_hour']:,.2f} USD an hour, {pace} at most "
        f"{1e3 * row['time_high_s']:,.3g} ms\nholds {row['holds']:,.4g}"
    )
