"""Ours over published, a mark per claim, where both are numbers above 0."""

import math
from typing import Any

import pandas as pd

from dse.figures.drawing import axes, marks, style
from dse.figures.drawing.chart import Axis, Chart, Panel
from dse.figures.registry import by_validation, figure
from dse.figures.source import Source
from dse.validate import verdicts

#: verdict -> (color, marker), the worst first: told apart by shape as well
LOOKS = {
    "missed": (style.VERMILLION, "x-thin"),
    "erratum": (style.ORANGE, "diamond"),
    "not derivable": (style.ORANGE, "hexagon"),
    "within": (style.SKY, "square"),
    "reproduced": (style.GREEN, "circle"),
}
#: height of a line of the figure in points, and of what a title needs
ROW_PT = 11.5


def _ratio_axis(ratios: list[float]) -> Axis:
    """A base-2 axis with 1 in the middle, a tick at every other power of two at least."""
    reach = max(1, math.ceil(max((abs(math.log2(ratio)) for ratio in ratios), default=1.0)))
    every = -(-reach // 5)
    powers = [power for power in range(-reach, reach + 1) if power % every == 0]
    ticks = tuple((2.0**power, f"{2**power}" if power >= 0 else f"1/{2**-power}") for power in powers)
    return Axis(
        "ours over published", unit="times", low=2.0 ** -(reach + 0.3), high=2.0 ** (reach + 0.3), ticks=ticks, log=True
    )


def short(source: str) -> str:
    """A document's name in a figure."""
    return "textbook" if "textbook" in source else source.split(":")[0]


def _above_zero(value: Any) -> float:
    """The number of a cell, read from a file or not; 0 where it is none above 0."""
    try:
        return max(float(value), 0.0)
    except (TypeError, ValueError):
        return 0.0


def _pairs(table: pd.DataFrame) -> pd.DataFrame:
    """The claims that are one number above 0 on both sides."""
    points = [
        {
            "id": row.id,
            "document": short(row.source),
            "published": number,
            "ours": ours,
            "ratio": ours / number,
            "unit": row.unit,
            "verdict": row.verdict,
            "is_input": row.basis == "input",
        }
        for row in table.itertuples()
        if (number := verdicts.published_number(str(row.published))) and number > 0 and (ours := _above_zero(row.ours))
    ]
    columns = ["id", "document", "published", "ours", "ratio", "unit", "verdict", "is_input"]
    return pd.DataFrame(points, columns=columns)


@figure(
    "claims",
    "Published claims: ours over the published number.",
    by_validation("claims"),
    ("id", "source", "published", "ours", "unit", "verdict", "basis"),
    order=310,
)
def chart(source: Source) -> Chart:
    """One panel, a line for every claim that is not reproduced, the furthest off first, and one for the reproduced of
    a document."""
    table = _pairs(source.table)
    names: list[str] = []
    place: dict[str, int] = {}
    for document in dict.fromkeys(table["document"]):
        claims = table[table["document"] == document]
        for verdict in LOOKS:
            rows = claims[claims["verdict"] == verdict]
            if verdict == "reproduced":
                names.append(f"{document}: {len(rows)} reproduced")
                place.update({claim: len(names) - 1 for claim in rows["id"]})
                continue
            far_first = rows["ratio"].map(lambda ratio: -abs(math.log2(ratio))).sort_values(kind="stable").index
            for claim in rows.loc[far_first, "id"]:
                place[claim] = len(names)
                names.append(claim)
    x, y = _ratio_axis([float(ratio) for ratio in table["ratio"]]), axes.categories("claim", names[::-1])
    series = [marks.rule("equal", y, 1.0, dash="solid", upright=True)]
    for verdict, (color, marker) in LOOKS.items():
        claims = table[table["verdict"] == verdict]
        if len(claims):
            texts = (
                f"{row.id}\npublished {row.published:g}, ours {row.ours:.4g} {row.unit}\n"
                f"{row.ratio:.4g} times, {verdict}"
                for row in claims.itertuples()
            )
            places = (len(names) - 1 - place[claim] for claim in claims["id"])
            opened = tuple(map(bool, claims["is_input"])) if verdict == "reproduced" else ()
            look = style.Style(color, marker=marker)
            series.append(marks.points(verdict, claims["ratio"], places, look, texts, size=0.75, opened=opened))
    return Chart(
        "Ours over published",
        panels=(Panel("", x, y, tuple(series)),),
        panel_height_pt=ROW_PT * len(names),
        notes=(
            "Claims where both are one number above 0, a mark each; claims of a direction or an order are left out. "
            "Hollow: the number is an input of ours.",
        ),
    )
