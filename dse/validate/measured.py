"""Measured rows beside predictions: the marks of a row, values in another unit, errors by group."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from dse.core.columns import Column
from dse.model.assumed import reason
from dse.model.engine import evaluate
from dse.model.point import Point

Row = TypeVar("Row")
#: the first columns of errors by group
GROUP = (Column("by"), Column("group"), Column("rows", form="{predicted}/{rows}"))


def marks(point: Point, names: Collection[str]) -> list[str]:
    """Assumptions of a prediction, of these, each with its reason: what was measured on none of its own."""
    return [f"{name}: {reason(point, name)}" for name in evaluate(point)["assumptions"] if name in names]


def joined(*parts: str) -> str:
    """Marks of a row as its cell has them."""
    return "; ".join(filter(None, parts))


#: a value that is off by more is in another unit
UNIT_SLIP = 100.0


def slip(over: float) -> str:
    """Words for a measured value that can only be in another unit; `over` is measured over predicted, and the words ""
    where it is not."""
    if 1 / UNIT_SLIP <= over <= UNIT_SLIP:
        return ""
    factor, word = (1 / over, "less") if over < 1 else (over, "more")
    return f"{factor:,.0f} times {word} than predicted"


def errors_by_group(
    rows: Iterable[Row],
    groups_of: Callable[[Row], Mapping[str, str]],
    summary: Callable[[list[Row]], dict[str, Any]],
    order: Sequence[str],
) -> list[dict[str, Any]]:
    """A record a group: by what rows are grouped (in this `order`), the group's name, and the summary of its rows.

    `groups_of` has the groups of a row: by what -> the name.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for group in groups_of(row).items():
            groups.setdefault(group, []).append(row)
    keys = sorted(groups, key=lambda group: (order.index(group[0]), group[1]))
    return [{"by": by, "group": name, **summary(groups[by, name])} for by, name in keys]


def statistic(of: Callable[[Any], Any], values: Any) -> float | None:
    """A statistic such as `np.median` of the values; None of no values."""
    return float(of(values)) if len(values) else None


def p90(values: Any) -> float:
    """The 90th percentile."""
    return float(np.quantile(values, 0.9))
