"""How sure a front is: the intervals of its objectives, and the chance that a design really beats the next one."""

from itertools import pairwise
from typing import Any

from dse.model import uncertainty
from dse.sweep.pareto.designs import DesignFront


def intervals(found: DesignFront) -> list[dict[str, tuple[float, float]]]:
    """Of each design of a front, objective -> the ends of its 80 % interval; {} where the table has no intervals."""
    rows = found.table.to_dict("records")
    return [
        {name: ends for name in found.objectives if (ends := uncertainty.known_ends(row, name))}  # type: ignore[arg-type]
        for row in rows
    ]


def chances(found: DesignFront) -> list[float | None]:
    """Of each design the chance that it really is better than the next best of its front in the first objective that
    has intervals; None for the last, and where the table lacks columns that comparisons read (`keep = "all"`)."""
    rows: list[dict[Any, Any]] = found.table.to_dict("records")
    sure: list[float | None] = [None] * len(rows)
    column = next((name for name in found.objectives if rows and uncertainty.known_ends(rows[0], name)), None)
    if column is None or any(name not in rows[0] for name in (*uncertainty.COMPARED[:-1], column)):
        return sure
    sign = -1 if found.objectives[column] == "max" else 1
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(tuple(row[name] for name in found.by), []).append(i)
    for places in groups.values():
        places.sort(key=lambda i: sign * rows[i][column])
        for i, after in pairwise(places):
            sure[i] = uncertainty.gain(rows[i], rows[after], column).confidence
    return sure
