"""Fronts of designs, whole rows at a time: of a table, a CSV or Parquet file, or a sweep's directory of any size."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dse.core import tables
from dse.core.errors import InputError, did_you_mean, show
from dse.model.results import RESULT_UNITS
from dse.specs.workload import ASKED
from dse.sweep import axes, filling, pareto, reading
from dse.sweep.pareto import Sense, competing, objectives_of
from dse.sweep.pareto.limits import Limit, within
from dse.sweep.table import POINT, read_part, to_frame

__all__ = ["DesignFront", "knees", "label", "objectives_of", "of_file", "of_table", "read_table"]

#: bytes of a CSV file that is read into memory
MAX_CSV_BYTES = 2**30
#: rows of fronts of parts that are held before they are merged
MERGE_ROWS = 500_000
#: columns whose name says their unit to a reader
COUNTS = frozenset(name for name, field in ASKED.items() if field.unit not in ("", "1"))
#: designs of the front so far that those of the next part are compared with first
MAX_RIVALS = 8
#: files of a sweep that are read at a time, and as many wait
READERS = 2
#: designs beside the front that a figure shows
CLOUD_ROWS = 3000


@dataclass(frozen=True, repr=False)
class DesignFront:
    """The designs that no other beats; printed, how many they are, and of what.

    `table` holds their whole rows in the order they came; `row` their places in it from 0; `knee` marks, for each
    group, the one closest to being best in everything (`knees`). `cloud` are some of the other designs, objectives
    only, evenly taken.
    """

    table: pd.DataFrame
    row: np.ndarray
    knee: np.ndarray
    objectives: dict[str, Sense]
    by: tuple[str, ...]
    n_rows: int
    n_feasible: int
    #: rows left out because an objective was missing
    n_missing: int
    cloud: pd.DataFrame
    units: dict[str, str]
    #: columns that tell the designs apart: axes that vary, in the whole table and not only on the front
    design: tuple[str, ...]
    #: only designs within these compete
    limits: tuple[Limit, ...] = ()
    #: feasible rows beyond the limits; None where a sweep kept its front alone, under other limits than these
    n_beyond: int | None = 0
    #: feasible rows that the software of their device does not run
    n_refused: int = 0
    #: rows left out since they are a listed design again
    n_again: int = 0

    def __repr__(self) -> str:
        missing = f", {self.n_missing:,} left out" if self.n_missing else ""
        if self.limits and self.n_beyond is not None:
            missing += f", {self.n_beyond:,} beyond the limits or without a value there"
        missing += f", {self.n_refused:,} not run by their software" if self.n_refused else ""
        missing += f", {self.n_again:,} more are these at another batch or device" if self.n_again else ""
        aims = ", ".join(f"{sense}imize {name}" for name, sense in self.objectives.items())
        group = f", a front for each {', '.join(self.by)}" if self.by else ""
        group += f"; within {', '.join(map(str, self.limits))}" if self.limits else ""
        return (
            f"front: {len(self.table):,} of {self.n_rows:,} designs "
            f"({self.n_feasible:,} feasible{missing}); {aims}{group}"
        )

    def only(self, **values: Any) -> "DesignFront":
        """The fronts of the groups with these values of columns of `by`. Raises InputError for others, or for none.

        `n_rows`, `n_feasible` and `n_missing` still count the whole table.
        """
        for name in values:
            if name not in self.by:
                raise InputError(f"unknown group {show(name)}: {did_you_mean(name, self.by)}")
        inside, beside = (
            np.logical_and.reduce([(table[name] == value).to_numpy(bool) for name, value in values.items()])
            for table in (self.table, self.cloud)
        )
        if not inside.any():
            raise InputError(f"no front has {', '.join(f'{name} = {show(value)}' for name, value in values.items())}")
        return replace(
            self,
            table=self.table[inside].reset_index(drop=True),
            row=self.row[inside],
            knee=self.knee[inside],
            by=tuple(name for name in self.by if name not in values),
            cloud=self.cloud[beside].reset_index(drop=True),
            design=tuple(name for name in self.design if name not in values),
        )

    def listed_once(self) -> "DesignFront":
        """The front with each design once.

        Of batches with equal objectives the same requests run: the smallest is kept. Of devices with every number
        equal, as where axes set their memory and bandwidth, the first is.
        """
        table = self.table
        named = {*self.design, *self.objectives, *self.by, *({"running_batch"} & {*table.columns})}
        keep = np.ones(len(table), dtype=bool)
        order = np.argsort(table["batch"].to_numpy(), kind="stable") if "batch" in named else np.arange(len(table))
        for free, same in (("batch", named), ("device", {*table.columns} - {"batch"})):
            if free in self.design and free not in self.by:
                kept = order[keep[order]]
                keep[kept[table.iloc[kept].duplicated([*(same - {free})])]] = False
        if keep.all():
            return self
        table = table[keep].reset_index(drop=True)
        marks = knees(table, self.objectives, self.by)
        return replace(self, table=table, row=self.row[keep], knee=marks, n_again=int((~keep).sum()))


def of_table(
    table: pd.DataFrame,
    objectives: Mapping[str, Sense],
    by: Sequence[str] = (),
    drop_missing: bool = False,
    units: Mapping[str, str] | None = None,
    limits: Sequence[Limit] = (),
    other_software: bool = False,
) -> DesignFront:
    """The front of a table; its columns `feasible` and `runs`, if any, say which rows compete, of them those within
    `limits`; with `other_software` those too that do not run.

    `units` are base units of columns of your own; those of results and axes are known. Raises InputError.
    """
    known, known_units = set(axes.known_axes()), {**RESULT_UNITS, **(units or {})}
    names = {n for n in table.columns if pd.api.types.is_string_dtype(table[n]) and n not in RESULT_UNITS}
    design = [n for n in table.columns if n in known | names and table[n].nunique(dropna=False) > 1]
    for name in objectives:
        if name in table and pd.api.types.is_float_dtype(table[name]):
            rows = np.flatnonzero(np.isinf(table[name].to_numpy(float, na_value=np.nan)))
            if len(rows):
                raise InputError(f"objective {show(name)}: is infinite in row {rows[0]:,}: leave that row out")
    result = _front(
        [("", table)],
        lambda _, rows: table.iloc[rows],
        {name: known_units.get(name, "") for name in table.columns},
        objectives,
        by,
        drop_missing,
        limits,
        other_software,
    )
    result.table.attrs = dict(table.attrs)
    return replace(result, design=tuple(name for name in design if name not in objectives))


def of_file(
    path: str | Path,
    objectives: Mapping[str, Sense],
    by: Sequence[str] = (),
    drop_missing: bool = False,
    limits: Sequence[Limit] = (),
    other_software: bool = False,
) -> DesignFront:
    """The front of a sweep's directory, part by part, or of a CSV or Parquet file, within limits; with `other_software`
    of designs too that the software of their device does not run. Raises InputError."""
    if not Path(path).is_dir():
        return of_table(read_table(path), objectives, by, drop_missing, limits=limits, other_software=other_software)
    saved = reading.stored(path)
    wanted = list(dict.fromkeys((*objectives, *by, *(limit.column for limit in limits))))
    _check_names(wanted, list(saved.columns))
    wanted += [name for name in ("feasible", "runs") if name in saved.columns and name not in wanted]
    if saved.front is not None:
        if other_software and not saved.spec["spec"]["workload"].get("other_software"):
            raise InputError(
                f"other-software: {show(str(saved.folder))} keeps the front of what its devices' software runs: run "
                "the sweep with --other-software into another directory"
            )
        return _of_stored_front(saved, objectives, by, limits)
    paths = {part.name: part for part in saved.paths}

    def whole(name: str, rows: np.ndarray) -> pd.DataFrame:
        return to_frame(reading.read_part(paths[name], None).take(rows))

    pieces = zip(paths, _ahead(list(paths.values()), wanted), strict=True)
    design = [axis["name"] for axis in saved.spec["spec"]["axes"] if len(axis["values"]) > 1]
    front = _front(pieces, whole, saved.columns, objectives, by, drop_missing, limits, other_software)
    varied = tuple(name for name in design if name not in objectives)
    return replace(front, table=filling.noted(front.table, saved.spec["spec"]), design=varied)


def _ahead(paths: Sequence[Path], wanted: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Columns of files in order; the next ones are read while one is worked on."""

    def read(path: Path) -> pd.DataFrame:
        return to_frame(reading.read_part(path, wanted))

    with ThreadPoolExecutor(READERS) as pool:
        begun = deque(pool.submit(read, path) for path in paths[: 2 * READERS])
        for path in [*paths[2 * READERS :], *[None] * len(begun)]:
            yield begun.popleft().result()
            if path is not None:
                begun.append(pool.submit(read, path))


def _of_stored_front(
    saved: reading.StoredSweep, objectives: Mapping[str, Sense], by: Sequence[str], limits: Sequence[Limit]
) -> DesignFront:
    """The front of a sweep that kept it; `row` are places in the grid.

    A front without groups, or with fewer of them, is among the fronts of the groups; other objectives may have others.
    """
    kept = saved.front or {}
    wanted, stored = dict(kept["objectives"]), [Limit(*limit) for limit in kept.get("limits", [])]
    is_within = all(any(limit.implies(other) for limit in limits) for other in stored)
    if dict(objectives) != wanted or not set(by) <= set(kept["by"]) or not is_within:
        options = [
            f"--{word} {','.join(names)}"
            for word, names in (
                ("maximize", [name for name, sense in wanted.items() if sense == "max"]),
                ("minimize", [name for name, sense in wanted.items() if sense == "min"]),
                ("by", kept["by"]),
            )
            if names
        ]
        options += [f"--{limit.kind.replace(' ', '-')} {limit.column}={limit.value!r}" for limit in stored]
        raise InputError(
            f"{show(str(saved.folder))}: keeps the front of {' '.join(options)} alone: ask for it, or run the sweep "
            "with --keep all into another directory"
        )
    for limit in limits:
        if limit not in stored and not limit.keeps_front_of(objectives):
            which = f"designs within {', '.join(map(str, stored))}" if stored else "all designs"
            raise InputError(
                f"{limit}: {show(str(saved.folder))} keeps the front of {which} alone, which does not tell that of "
                "those within: run the sweep with --keep all into another directory"
            )
    table = saved.read()
    front = of_table(table, objectives, by, limits=limits)
    design = [axis["name"] for axis in saved.spec["spec"]["axes"] if len(axis["values"]) > 1]
    codes = saved.manifest.codes
    places = front.table[POINT].to_numpy(dtype=np.int64)
    units = {name: saved.columns.get(name, unit) for name, unit in front.units.items() if name != POINT}
    return replace(
        front,
        table=filling.noted(front.table.drop(columns=POINT), saved.spec["spec"]),
        row=places,
        n_rows=sum(codes),
        n_feasible=codes[0],
        n_missing=sum(part.n_missing for part in saved.manifest.parts.values()),
        n_refused=sum(part.n_refused for part in saved.manifest.parts.values()),
        cloud=_beaten(saved, objectives, by),
        units=units,
        design=tuple(name for name in design if name not in objectives),
        n_beyond=sum(part.n_beyond for part in saved.manifest.parts.values()) if set(limits) == set(stored) else None,
    )


def _beaten(saved: reading.StoredSweep, objectives: Mapping[str, Sense], by: Sequence[str]) -> pd.DataFrame:
    """Some designs of the fronts of parts: the others of the sweep are not stored."""
    names, held = list(dict.fromkeys((*objectives, *by))), []
    paths = [saved.folder / part.name for _, part in sorted(saved.manifest.parts.items())]
    step = max(sum(part.rows for part in saved.manifest.parts.values()) // CLOUD_ROWS, 1)
    for path in paths:
        held.append(_plain(to_frame(reading.read_part(path, names)).iloc[::step]))
    return pd.concat(held, ignore_index=True)


def read_table(path: str | Path) -> pd.DataFrame:
    """A table from a CSV or Parquet file. Raises InputError for anything else, LimitError."""
    file = Path(path)
    name = show(str(path))
    if "\0" in str(path) or not file.is_file():
        raise InputError(f"{name}: is no file: give the directory of a sweep, or a .csv or .parquet file")
    if file.suffix.lower() == ".parquet":
        return to_frame(read_part(file))
    table = tables.read_csv(file, "a .csv or .parquet file", MAX_CSV_BYTES)
    for column in ("feasible", "runs"):
        if column in table and table[column].dtype != bool:
            raise InputError(f"{name}: {column}: must be True or False in every row")
    return table


def _check_names(wanted: Sequence[str], columns: Sequence[str]) -> None:
    for name in wanted:
        if name not in columns:
            raise InputError(f"unknown column {show(name)}: {did_you_mean(name, columns)}")


def _front(
    pieces: Any,
    whole: Any,
    units: Mapping[str, str],
    objectives: Mapping[str, Sense],
    by: Sequence[str],
    drop_missing: bool,
    limits: Sequence[Limit] = (),
    other_software: bool = False,
) -> DesignFront:
    """Fronts of the pieces, merged; `whole(piece, rows)` gives whole rows, whose columns have `units`."""
    _check_names((*objectives, *by, *(limit.column for limit in limits)), list(units))
    names = list(dict.fromkeys((*objectives, *by)))
    held: list[_HeldRows] = []
    cloud: list[pd.DataFrame] = []
    rivals: pd.DataFrame | None = None
    n_rows = n_feasible = n_beyond = n_missing = n_refused = step = 0
    pieces_seen: list[str] = []
    for piece, table in pieces:
        pieces_seen.append(piece)
        feasible = table["feasible"].to_numpy(dtype=bool) if "feasible" in table else np.ones(len(table), bool)
        n_rows_before, n_rows, n_feasible = n_rows, n_rows + len(table), n_feasible + int(feasible.sum())
        if "runs" in table and not other_software:
            n_refused += int((feasible & ~table["runs"].to_numpy(dtype=bool)).sum())
            feasible = competing(table)
        if limits:
            inside = within(table, limits)
            n_beyond += int((feasible & ~inside).sum())
            feasible = feasible & inside
        if drop_missing:
            present = table[list(objectives)].notna().all(axis=1).to_numpy(dtype=bool)
            n_missing += int((feasible & ~present).sum())
            feasible = feasible & present
        competitors = table.assign(feasible=feasible, runs=True)
        try:
            rows = np.flatnonzero(pareto.front(competitors, objectives, by, rivals=rivals))
        except InputError as error:
            hint = "; or leave them out with --drop-missing" if "is missing" in str(error) else ""
            raise InputError(f"{piece + ': ' if piece else ''}{error}{hint}") from None
        held.append(
            _HeldRows(
                _plain(table[names].iloc[rows]), np.full(len(rows), len(pieces_seen) - 1), rows, n_rows_before + rows
            )
        )
        if not by and len(rows):
            best = pd.concat([rivals, held[-1].table]).drop_duplicates()
            best = best[pareto.front(best, objectives)]
            rivals = best.iloc[:: -(-len(best) // MAX_RIVALS)]
        step = step or max(int(feasible.sum()) // CLOUD_ROWS, 1)
        cloud.append(_plain(table[names].iloc[np.flatnonzero(feasible)[::step]]))
        if sum(map(len, cloud)) > 2 * CLOUD_ROWS:
            cloud, step = [pd.concat(cloud).iloc[::2]], 2 * step
        if sum(len(part.table) for part in held) > MERGE_ROWS:
            held = [_merged(held, objectives, by)]
    if not held:
        raise InputError("the table has no rows: nothing to compare")
    last = _merged(held, objectives, by)
    tables = [_plain(whole(pieces_seen[number], last.rows[last.piece == number])) for number in np.unique(last.piece)]
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(units))
    marks = knees(last.table, objectives, by)
    others = pd.concat(cloud, ignore_index=True)
    return DesignFront(
        table=table,
        row=last.places,
        knee=marks,
        objectives=dict(objectives),
        by=tuple(by),
        n_rows=n_rows,
        n_feasible=n_feasible,
        n_missing=n_missing,
        cloud=others,
        units=dict(units),
        design=(),
        limits=tuple(limits),
        n_beyond=n_beyond,
        n_refused=n_refused,
    )


@dataclass(frozen=True)
class _HeldRows:
    """Rows that may be on the front: their objectives, and where they are: a numbered piece, and a row of it."""

    table: pd.DataFrame
    piece: np.ndarray
    rows: np.ndarray
    #: row of the whole table
    places: np.ndarray


def _merged(held: Sequence[_HeldRows], objectives: Mapping[str, Sense], by: Sequence[str]) -> _HeldRows:
    table = pd.concat([part.table for part in held], ignore_index=True)
    keep = np.flatnonzero(pareto.front(table, objectives, by))
    piece, rows, places = (
        np.concatenate([getattr(part, name) for part in held])[keep] for name in ("piece", "rows", "places")
    )
    return _HeldRows(table.iloc[keep].reset_index(drop=True), piece, rows, places)


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """The table without categories, whose names differ from part to part."""
    names = [name for name in table.columns if isinstance(table[name].dtype, pd.CategoricalDtype)]
    return table.astype(dict.fromkeys(names, object)) if names else table


def knees(front: pd.DataFrame, objectives: Mapping[str, Sense], by: Sequence[str] = ()) -> np.ndarray:
    """Mask of the knee of each group: the design closest to the corner that is best in everything.

    Each objective is scaled to 0 (best on the group's front) to 1 (worst); distance is Euclidean; the first of equals.
    """
    mask = np.zeros(len(front), dtype=bool)
    groups = front.groupby(list(by), sort=False, dropna=False).indices.values() if by else [np.arange(len(front))]
    for rows in groups:
        if not len(rows):
            continue
        distance = np.zeros(len(rows))
        for name, sense in objectives.items():
            values = front[name].to_numpy(dtype="float64")[rows]
            values = values if sense == "min" else -values
            low, high = values.min(), values.max()
            if np.isfinite(high - low) and high > low:
                distance += ((values - low) / (high - low)) ** 2
        mask[rows[int(distance.argmin())]] = True
    return mask


def label(row: pd.Series, columns: Sequence[str], units: Mapping[str, str]) -> str:
    """A design in a few words: `H100, oaken, batch 64`."""
    from dse.core.units import human
    from dse.model.results import title

    parts = []
    for name in columns:
        value = row[name]
        if value is None or pd.isna(value):
            continue
        unit = "" if name in COUNTS else units.get(name, "")
        shown = value if isinstance(value, str) else human(value.item() if hasattr(value, "item") else value, unit)
        is_name = isinstance(value, str) and name in ("device", "model", "quantizer")
        parts.append(str(shown) if is_name else f"{title(name)} {shown}")
    return ", ".join(parts)
