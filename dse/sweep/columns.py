"""Columns of a sweep's table: whole numbers, floats, flags and names, each with its form of a missing value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.model.results import FLAGS, INTEGERS, RESULT_UNITS

#: `infeasible_code` of a point and what it means; points that do not run stay in the table
CODES = (
    "feasible",
    "the weights alone are larger than the memory",
    "the weights fit, but not one request beside them",
    "the combination is not allowed (`dse point` says why)",
    "beyond a limit: a number of bytes over 2^63, or too many packed groups",
)
FEASIBLE, WEIGHTS_TOO_LARGE, REQUEST_TOO_LARGE, NOT_ALLOWED, BEYOND_LIMIT = range(len(CODES))

#: a whole number that is missing
MISSING = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Names:
    """A column of names: `codes` are places in `names`, -1 where there is none."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]
    #: names are sorted, and all of them occur
    is_normal: bool = False

    def __len__(self) -> int:
        return len(self.codes)

    def normal(self) -> "Names":
        """Normal form: only names that occur, sorted, so that equal columns are equal records."""
        if self.is_normal:
            return self
        changes = self.codes[1:][self.codes[1:] != self.codes[:-1]]  # runs make it fast
        used = np.flatnonzero(np.bincount(np.append(changes, self.codes[:1]) + 1, minlength=1)[1:])
        names = sorted({self.names[code] for code in used})
        place = {name: i for i, name in enumerate(names)}
        table = np.full(len(self.names) + 1, -1, dtype=np.int32)  # the last: no name
        for code in used:
            table[code] = place[self.names[code]]
        return Names(table.take(self.codes, mode="wrap"), tuple(names), True)


#: by name, equally long: float64 (NaN missing), int64 (MISSING missing), bool, int8 codes, Names
Columns = dict[str, Any]


def column_of(name: str, values: Sequence[Any]) -> Any:
    """The column of a result from its values, None where there is none."""
    if name in FLAGS:
        return np.array([bool(value) for value in values], dtype=bool)
    if name in INTEGERS:
        return np.array([MISSING if value is None else value for value in values], dtype=np.int64)
    if RESULT_UNITS[name]:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return names_of([", ".join(value) if isinstance(value, list) else value for value in values])


def names_of(texts: Sequence[str | None]) -> Names:
    """A column of names from its texts."""
    place = {text: code for code, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    return Names(np.array([-1 if text is None else place[text] for text in texts], dtype=np.int32), tuple(place))


def at_places(column: Any, places: NDArray[np.int64]) -> Any:
    """The column's values at some places, in that order."""
    return Names(column.codes[places], column.names) if isinstance(column, Names) else column[places]


def blank(name: str, column: Any, absent: NDArray[np.bool_]) -> None:
    """Remove the values at the places `absent`."""
    if isinstance(column, Names):
        column.codes[absent] = -1
    elif name in FLAGS:
        column[absent] = False
    else:
        column[absent] = MISSING if name in INTEGERS else np.nan


def merged(column: Any, rest: Any, left: NDArray[np.bool_]) -> Any:
    """`column` with `rest` at the places `left`."""
    if not isinstance(column, Names):
        column[left] = rest
        return column
    names = tuple(dict.fromkeys((*column.names, *rest.names)))
    place = np.array([*(names.index(name) for name in rest.names), -1], np.int32)
    codes = column.codes.copy()
    codes[left] = place[rest.codes]
    return Names(codes, names)


def join(chunks: Sequence[Columns]) -> Columns:
    """Concatenate the tables of consecutive chunks."""
    if len(chunks) == 1:
        return chunks[0]
    joined: Columns = {}
    for name, column in chunks[0].items():
        columns = [chunk[name] for chunk in chunks]
        joined[name] = _join_names(columns) if isinstance(column, Names) else np.concatenate(columns)
    return joined


def _join_names(columns: Sequence[Names]) -> Names:
    place: dict[str, int] = {}
    codes = []
    for column in columns:
        table = np.array([*(place.setdefault(name, len(place)) for name in column.names), -1], dtype=np.int32)
        codes.append(table[column.codes])
    return Names(np.concatenate(codes), tuple(place))
