"""Hits and gain of fewer bits against the pool, by `dse ask hits`."""

import math
from collections.abc import Iterable

import pandas as pd

from dse.core.errors import InputError
from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Axis, Chart, Panel, Series
from dse.figures.registry import by, figure
from dse.figures.source import Source
from dse.questions.hits import CURVE, KNEE_SHARE, HitsByFormat

FOUND, OWN, KNEE = "found", "pool of this device", "knee"
_READ = (
    "Left: large marks are each format's pool on this device. Right: the same requests on devices with smaller and "
    "larger pools; a format of fewer bits always has a pool larger by its bits."
)


def source_of(answer: HitsByFormat) -> Source:
    """The curves of an answer and what its figure says beside it."""
    about = {
        "notes": [answer.answer(), f"{answer.context}; {answer.load_text}.", _READ],
        "endless_rate": answer.endless_rate,
        "knee_tokens": answer.knee_tokens,
    }
    return Source(answer.curves, about=about)


@figure(
    "hits",
    "Hits in the prefix cache, and the gain of fewer bits, against the pool.",
    by("ask hits --out DIR", "hits"),
    CURVE,
    order=136,
    key=("format", "plain_pool_tokens"),
    answer=HitsByFormat,
    source_of=source_of,
)
def chart(source: Source) -> Chart:
    """Two panels: prompt tokens found by pool, with each format's own; requests/s over 16 bits by the pool of 16 bits.

    Beside the table: `knee_tokens`, `endless_rate`, `notes`.
    """
    table, about = source.table, source.about
    unknown = table[table["pool_tokens"] <= 0]
    if len(unknown):
        raise InputError(f"pool_tokens = {unknown['pool_tokens'].iloc[0]:g}: must be more than 0 tokens")
    looks = style.looks(list(dict.fromkeys(table["format"])))
    return Chart(
        "Do fewer bits bring hits?",
        panels=(_found(table, about, looks), _gains(table, looks)),
        n_columns=2,
        panel_height_pt=210,
        notes=tuple(about.get("notes", ())),
    )


def _found(table: pd.DataFrame, about: dict[str, float], looks: dict[str, style.Style]) -> Panel:
    knee, endless = float(about.get("knee_tokens", 0)), float(about.get("endless_rate", 0))
    x = _pools("pool", [*table["pool_tokens"].astype(float), *([knee] if knee else [])])
    y = axes.shares("prompt tokens found", 20)
    series: list[Series] = []
    if table["block_tokens"].nunique() <= 1:  # one curve for all formats
        line = table.sort_values("pool_tokens")
        look = style.Style(style.BLACK, marker="")
        series.append(marks.line(FOUND, line["pool_tokens"], line["hit_rate"], look, map(_found_text, _rows(line))))
    for name, look in looks.items():
        rows = table[table["format"] == name]
        if table["block_tokens"].nunique() > 1:
            bare = style.Style(look.color, look.dash, "")
            texts = map(_found_text, _rows(rows))
            series.append(marks.line(name, rows["pool_tokens"], rows["hit_rate"], bare, texts, in_legend=False))
        own = rows[rows["is_own"].astype(bool)]
        texts = map(_found_text, _rows(own))
        series.append(marks.points(name, own["pool_tokens"], own["hit_rate"], look, texts, size=1.4, in_legend=False))
    if endless:
        series.append(marks.rule("a cache without limit", x, endless, style.GRAY, "dot"))
    if knee:
        title = f"{KNEE}: {100 * KNEE_SHARE:.0f} % of all hits"
        series.append(marks.rule(title, y, knee, style.GRAY, "dash", upright=True))
    return Panel("Hits", x, y, tuple(series))


def _gains(table: pd.DataFrame, looks: dict[str, style.Style]) -> Panel:
    shown = table[table["gain"].notna()]
    x = _pools("pool of 16 bits", table["plain_pool_tokens"].astype(float))
    y = axes.linear("requests/s over those of 16 bits", "", [1.0, *shown["gain"].astype(float)])
    series: list[Series] = []
    for name, look in looks.items():
        rows = shown[shown["format"] == name]
        if len(rows):
            texts = map(_gain_text, _rows(rows))
            series.append(marks.line(name, rows["plain_pool_tokens"], rows["gain"], look, texts))
    own = table[table["is_own"].astype(bool)]["plain_pool_tokens"]
    if len(own):
        series.append(marks.rule(OWN, y, float(own.iloc[0]), style.BLACK, "dot", upright=True))
    return Panel("Gain of fewer bits", x, y, tuple(series))


def _pools(name: str, tokens: Iterable[float]) -> Axis:
    """Powers of two of tokens around the pools, at most five or so."""
    ends = [math.log2(n) for n in tokens] or [10.0, 20.0]
    first, last = math.floor(min(ends)), math.ceil(max(ends))
    every = max(-(-(last - first) // 4), 1)
    return axes.log2_at(name, "tokens", [2.0**e for e in range(first, last + every, every)], in_k=True)


def _rows(table: pd.DataFrame) -> list[dict[str, float]]:
    return table.to_dict("records")  # type: ignore[return-value]


def _found_text(row: dict[str, float]) -> str:
    own = f"\n{OWN}" if row["is_own"] else ""
    return f"{row['format']}\n{row['pool_tokens']:,.0f} tokens find {100 * row['hit_rate']:.1f} % of prompts{own}"


def _gain_text(row: dict[str, float]) -> str:
    return (
        f"{row['format']}\npool of 16 bits: {row['plain_pool_tokens']:,.0f} tokens, its own {row['pool_tokens']:,.0f}\n"
        f"{row['requests_per_s']:.3g} requests/s, {row['gain']:.2f} times those of 16 bits"
    )
