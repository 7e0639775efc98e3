"""Limits on columns within which a front is sought: at error <= e, what is the fastest design?"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.core.errors import InputError, show
from dse.sweep.pareto import Sense

_NUMBER = re.compile(r"[+-]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.ASCII | re.IGNORECASE)


#: what a largest accuracy loss is held against: the high end of its interval, so that noise does not pass
DROP = "score_drop_high_frac"


class Limit(NamedTuple):
    """`column` must be at most, or at least, `value` in base units. A design without a value there is beyond it."""

    column: str
    kind: Literal["at most", "at least"]
    value: float

    def __str__(self) -> str:
        return f"{self.column} {'<=' if self.kind == 'at most' else '>='} {self.value:g}"

    def mask(self, table: pd.DataFrame) -> NDArray[np.bool_]:
        """Rows within the limit. Raises InputError for a column that holds no numbers."""
        column = table[self.column]
        if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
            if not column.isna().all():  # a part without any value has no type
                raise InputError(f"limit {self.column}: is not a column of numbers: choose another")
            return np.zeros(len(table), dtype=bool)
        values = column.to_numpy(dtype="float64", na_value=np.nan)
        return values <= self.value if self.kind == "at most" else values >= self.value

    def implies(self, other: "Limit") -> bool:
        """True where all designs within this limit are within the other."""
        is_tighter = self.value <= other.value if self.kind == "at most" else self.value >= other.value
        return self.column == other.column and self.kind == other.kind and is_tighter

    def keeps_front_of(self, objectives: Mapping[str, Sense]) -> bool:
        """True where the front of the designs within the limit is that of all designs, cut by the limit.

        So it is where the column is an objective whose better values are those within: whatever beats a design within
        the limit is within it too.
        """
        return objectives.get(self.column) == ("min" if self.kind == "at most" else "max")


def parse(at_most: Iterable[str] = (), at_least: Iterable[str] = ()) -> tuple[Limit, ...]:
    """`["measured_error=0.1"]` as limits. Raises InputError."""
    return (*(_limit(text, "at most") for text in at_most), *(_limit(text, "at least") for text in at_least))


def _limit(text: str, kind: Literal["at most", "at least"]) -> Limit:
    name, equals, number = (part.strip() for part in text.partition("="))
    value = float(number) if _NUMBER.fullmatch(number) else math.nan
    if not name or not equals or not math.isfinite(value):
        option = kind.replace(" ", "-")
        raise InputError(f"{option} = {show(text)}: must be COLUMN=NUMBER in base units, such as measured_error=0.2")
    return Limit(name, kind, value)


def within(table: pd.DataFrame, limits: Sequence[Limit]) -> NDArray[np.bool_]:
    """Rows within all limits."""
    mask = np.ones(len(table), dtype=bool)
    for limit in limits:
        mask &= limit.mask(table)
    return mask
