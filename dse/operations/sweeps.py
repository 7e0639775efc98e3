"""Many designs: sweep, and the front of what a sweep or a table holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dse.core.documents import json_text
from dse.core.errors import InputError, OutputError, show
from dse.core.field import NAMES, PERCENT, SWITCH, WHOLE
from dse.operations.declare import SILENT, Console, argument, operation, option, words_of
from dse.operations.shared import Printed, json_option, several
from dse.specs.workload import ASKED

if TYPE_CHECKING:
    import pandas as pd

    from dse.sweep.pareto.designs import DesignFront
    from dse.sweep.reading import StoredSweep
    from dse.sweep.run import Estimate
    from dse.sweep.spec import Sweep
    from dse.sweep.store import Manifest


@operation(
    "sweep",
    "Evaluate all points of a sweep into Parquet files.",
    function="sweep",
    positional=("axes", "out"),
    indent=None,
)
class RunSweep(Printed):
    """Evaluate all points of the sweep in FILE (TOML; notebooks/sweep.toml is an example) into DIR.

    Stop it at any time, by Ctrl-C, a kill or a power cut: the same command goes on where it stopped, and the files are
    the same, byte for byte. `dse pareto DIR` finds the best designs in them. `--keep front --maximize A --minimize B`
    stores these alone, for sweeps of which the rows would not fit.

    >>> table = dse.sweep({"device": "h100", "model": "llama3.1-8b", "quantizer": ["fp16", "fp8"], "batch": [1, 64]})
    >>> table.shape[0]
    4
    """

    axes: Mapping[str, Any] | str | Path | None = argument(
        None,
        'Names with values or ranges, a whole specification with "axes", "where" and "keep", or its file.',
        "[FILE]",
    )
    out: str | Path | None = option(
        None, "Directory of the result; one that was begun by this sweep is finished.", metavar="DIR"
    )
    threads: int | None = option(
        None, "Threads; default: one a core. The files do not depend on it.", WHOLE, metavar="N"
    )
    keep: Literal["all", "front"] = option(
        "all", "Rows that are stored: all, or only the designs that no other beats.", choices=("all", "front")
    )
    maximize: Sequence[str] = option((), "With --keep front: columns of which more is better.", NAMES, metavar="A,B")
    minimize: Sequence[str] = option((), "With --keep front: columns of which less is better.", NAMES, metavar="C,D")
    by: Sequence[str] = option(
        (), "With --keep front: a front for each value of these columns.", NAMES, metavar="MODEL,..."
    )
    at_most: Sequence[str] = option(
        (), "With --keep front: only designs with at most N in C.", metavar="C=N", is_repeated=True
    )
    at_least: Sequence[str] = option(
        (), "With --keep front: only designs with at least N in C.", metavar="C=N", is_repeated=True
    )
    drop_missing: bool = option(False, "With --keep front: leave out designs whose objectives are unknown.", SWITCH)
    other_software: bool = option(False, ASKED["other_software"].help, SWITCH)
    scheduler: str | None = option(
        None,
        "Run on a Dask cluster: tcp://HOST:PORT, tls://HOST:PORT, or local:WORKERS to start one here.",
        metavar="WHERE",
    )
    insecure_scheduler: bool = option(False, "Allow tcp:// to another machine, on a network you trust.", SWITCH)
    no_limit: bool = option(
        False, "Start even if it has over 1e10 points or may not fit on the disk.", SWITCH, in_python=False
    )
    limits: bool = option(True, "False: start whatever the number of points and the disk.", in_command=False)
    max_points: int | None = option(None, "Points of a table at most; default: 1,000,000.", in_command=False)
    dry_run: bool = option(False, "Say what it would take, and stop.", SWITCH, in_python=False)
    verify: str | None = option(
        None, "Check the files of a directory against their hashes.", metavar="DIR", in_python=False
    )
    as_json: bool = json_option("Print the summary as JSON.")

    def lacking(self) -> str:
        """A command writes a directory, where a call may return a table."""
        if self.verify is None and self.axes is None:
            return "FILE is missing: see dse sweep --help"
        has_all = self.verify is not None or self.dry_run or self.out is not None
        return "" if has_all else "--out is missing: see dse sweep --help"

    def value(self, outcome: Any) -> pd.DataFrame | StoredSweep:
        """A table of the results; with `out` a handle on the Parquet files, which can be resumed."""
        results: pd.DataFrame | StoredSweep = outcome
        return results

    def run(self, console: Console = SILENT) -> pd.DataFrame | StoredSweep | Estimate | Manifest:
        """The results, what they will take, or what was verified."""
        from dse.sweep import run, sweeps

        if self.verify is not None:
            if self.axes is not None or self.out is not None:
                raise InputError("verify: takes a directory alone: leave FILE and --out out")
            return self._verified(self.verify, console)
        if self.scheduler is not None and self.threads is not None:
            raise InputError(
                "threads: are those of the workers: leave --threads out, or give --scheduler local:WORKERS"
            )
        n_threads = run.check_threads(self.threads)
        spec, has_limits = self.spec(), self.limits and not self.no_limit
        if has_limits and self.out is not None:
            run.check_limits(spec, self.out)
        elif has_limits and self.dry_run:
            run.check_points(spec)
        if self.dry_run:
            return run.estimate(spec)
        if self.out is None:
            if self.keep == "front" or self.scheduler is not None:
                raise InputError("keep and scheduler: need a directory `out`; of a table, dse.front takes the best")
            return run.in_memory(spec, self.max_points or sweeps.MAX_POINTS)
        console.if_stopped(f"stopped: finished parts are kept: `{self._again()}` goes on")
        with _bar(console, spec.n_points) as progress:
            shown: dict[str, Any] = {
                "progress": progress,
                "say": console.say,
                "ready": lambda: None if self.as_json else console.show(_expected_text(spec, run.estimate(spec))),
                "limits": False,
            }
            if self.scheduler is None:
                return run.to_directory(spec, self.out, n_threads, **shown)
            from dse.sweep import cluster

            return cluster.to_directory(spec, self.out, self.scheduler, self.insecure_scheduler, **shown)

    def spec(self) -> Sweep:
        """The sweep with what is kept of it. Raises InputError and SpecError."""
        from dse.sweep import front
        from dse.sweep.pareto import limits
        from dse.sweep.spec import Sweep, from_dict, read

        axes: Any = self.axes
        if isinstance(axes, Mapping):
            sweep = from_dict(axes if "axes" in axes else {"axes": dict(axes)})
        else:
            sweep = axes if isinstance(axes, Sweep) else read(axes)
        if self.other_software:
            sweep = replace(sweep, base=replace(sweep.base, other_software=True))
        of_front = (self.maximize, self.minimize, self.by, self.drop_missing, self.at_most, self.at_least)
        if self.keep == "front":
            within = limits.parse(several(self.at_most), several(self.at_least))
            most, least, by = several(self.maximize), several(self.minimize), several(self.by)
            return front.asked(sweep, most, least, by, self.drop_missing, within)
        if self.keep != "all":
            raise InputError(f'keep = {show(self.keep)}: must be "front" or "all"')
        if any(of_front):
            raise InputError(
                "--maximize, --minimize, --by, --at-most, --at-least and --drop-missing: go with --keep front, or with "
                "dse pareto"
            )
        return sweep

    def _again(self) -> str:
        import shlex

        return shlex.join(words_of(replace(self, threads=None, no_limit=False, as_json=False)))

    def _verified(self, folder: str, console: Console) -> Manifest:
        """The manifest of a directory whose files all have their hashes. Raises OutputError for others."""
        from dse.sweep import store

        manifest, problems = store.verify(folder)
        if not problems:
            return manifest
        whole = {"n_rows": manifest.n_rows, "n_parts": manifest.n_parts, "problems": problems}
        for line in [json_text(whole)] if self.as_json else problems:
            console.show(line)
        counted = f"{len(problems):,} problem{'s' * (len(problems) > 1)}"
        raise OutputError(f"{show(folder)}: {counted}: run `dse sweep` again, it repairs them")

    def text(self, outcome: Any) -> str:
        """A summary of the directory, of what a sweep will take, or of what was verified."""
        from dse.sweep.reading import StoredSweep

        if self.verify is not None:
            parts = f"{outcome.n_parts:,} part{'s' * (outcome.n_parts > 1)}"
            return f"verified: {self.verify} ({outcome.n_rows:,} rows, {parts})"
        return _summary(outcome) if isinstance(outcome, StoredSweep) else _expected_text(self.spec(), outcome)

    def document(self, outcome: Any) -> dict[str, Any]:
        """Return the outcome as a JSON object: counts of points, rows and parts."""
        from dse.sweep.reading import StoredSweep

        if self.verify is not None:
            return {"n_rows": outcome.n_rows, "n_parts": outcome.n_parts, "problems": []}
        if not isinstance(outcome, StoredSweep):
            return {
                "n_points": outcome.n_points,
                "n_rows": outcome.n_rows,
                "n_rows_is_exact": outcome.is_exact,
                "n_bytes_at_most": outcome.n_bytes,
                "expected_s": outcome.seconds,
            }
        return {
            "out": str(outcome.folder),
            "n_points": outcome.spec["n_points"],
            "n_rows": outcome.n_rows,
            "n_parts": outcome.manifest.n_parts,
            "n_parts_written": outcome.n_written,
            "rows_by_infeasible_code": dict(enumerate(outcome.manifest.codes)),
            "set_aside": list(outcome.notes),
        }


def duration(seconds: float) -> str:
    """A time to wait: 20 s, 3 min, 5.2 h, 12 days."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:.2g} s"


def _expected_text(spec: Sweep, expected: Estimate) -> str:
    """Points, time and bytes that a sweep will take."""
    from dse.core import units

    about = "" if expected.is_exact else "about "
    dropped = f", of which the conditions leave {about}{expected.n_rows:,}" if spec.where else ""
    return (
        f"{expected.n_points:,} points{dropped}; about {duration(expected.seconds)} on one core; "
        f"{'about' if spec.front else 'at most'} {units.human(expected.n_bytes, 'B')}"
    )


def _summary(done: StoredSweep) -> str:
    """The rows, parts and bytes of a directory, and the rows by the reason why they do not fit."""
    from dse.core import units
    from dse.sweep.columns import CODES

    manifest, n_bytes = done.manifest, sum(path.stat().st_size for path in done.paths)
    if done.front is not None:
        return _front_summary(done, n_bytes)
    parts = f"{manifest.n_parts:,} part{'s' * (manifest.n_parts > 1)}"
    lines = [f"sweep: {done.folder} ({done.n_rows:,} rows, {parts}, {units.human(n_bytes, 'B')})"]
    if done.n_written == 0:
        lines.append("  complete before: every part checked against its hash")
    elif done.n_written < manifest.n_parts:
        lines.append(f"  {manifest.n_parts - done.n_written:,} parts were there already, checked against their hashes")
    lines += [f"  {n:,} rows: {text}" for n, text in zip(manifest.codes, CODES, strict=False) if n]
    if not done.n_rows:
        lines.append("  the conditions drop all points")
    return "\n".join(lines)


def _front_summary(done: StoredSweep, n_bytes: int) -> str:
    from dse.core import units
    from dse.sweep.columns import CODES
    from dse.sweep.pareto.limits import Limit

    manifest, front = done.manifest, done.front
    assert front is not None
    senses = ", ".join(f"{'most' if sense == 'max' else 'least'} {name}" for name, sense in front["objectives"])
    by = f" by {', '.join(front['by'])}" if front["by"] else ""
    within = ", ".join(str(Limit(*limit)) for limit in front.get("limits", []))
    lines = [
        f"front: {done.paths[0]} ({done.n_rows:,} of {sum(manifest.codes):,} designs, {units.human(n_bytes, 'B')})",
        f"  {senses}{by}{f'; within {within}' if within else ''}",
    ]
    lines += [f"  {n:,} points: {text}" for n, text in zip(manifest.codes, CODES, strict=False) if n]
    left_out = {
        "beyond the limits": sum(part.n_beyond for part in manifest.parts.values()),
        "an objective is unknown": sum(part.n_missing for part in manifest.parts.values()),
        "the device's software does not run it (--other-software)": sum(p.n_refused for p in manifest.parts.values()),
    }
    return "\n".join([*lines, *(f"  {n:,} point{'s' * (n != 1)} left out: {why}" for why, n in left_out.items() if n)])


@contextmanager
def _bar(console: Console, n_points: int) -> Iterator[Callable[[int, int], None]]:
    """Progress in points, with points a second."""
    if console.progress is None:
        yield lambda done, of: None
        return
    start, first = time.monotonic(), [-1]
    with console.progress(None, label="sweep", length=n_points) as bar:

        def progress(done: int, of: int) -> None:
            if first[0] < 0:
                first[0] = done
            rate = (done - first[0]) / max(time.monotonic() - start, 1e-9)
            bar.update(done - bar.pos, f"{rate:,.0f} points/s")  # type: ignore[attr-defined]

        yield progress


@operation(
    "pareto",
    "Pareto front of a sweep or a table.",
    function="front",
    positional=("designs", "maximize", "minimize", "by", "at_most", "at_least"),
    indent=None,
)
class FindFront(Printed):
    """Find the Pareto front of a sweep's directory, of any size, or of a .csv or .parquet TABLE.

    A design is on the front when no other is at least as good in every objective and better in one. Designs that do
    not fit (column feasible), or that the software of their device does not run (runs), are not considered. A knee is
    the design closest to being best in everything.

    `--maximize throughput_tokens_per_s --at-most measured_error=0.2` is the fastest design at that error; --at-most and
    --at-least may be given several times. A design without a value in such a column does not count.

    >>> table = dse.sweep({"device": ["a100-80gb", "h100"], "model": "llama2-13b", "batch": [16, 64]})
    >>> dse.front(table, maximize=["throughput_tokens_per_s"]).table["device"].tolist()
    ['H100']
    """

    designs: pd.DataFrame | StoredSweep | str | Path = argument(
        help="A table, a handle on a sweep, its directory, or a .csv or .parquet file.", metavar="DIR|TABLE"
    )
    maximize: Sequence[str] = option((), "Columns of which more is better.", NAMES, metavar="A,B")
    minimize: Sequence[str] = option((), "Columns of which less is better.", NAMES, metavar="C,D")
    by: Sequence[str] = option((), "A front for each value of these columns.", NAMES, metavar="MODEL,...")
    at_most: Sequence[str] = option(
        (), "Only designs with at most N, in base units, in column C.", metavar="C=N", is_repeated=True
    )
    at_least: Sequence[str] = option(
        (), "Only designs with at least N, in base units, in column C.", metavar="C=N", is_repeated=True
    )
    max_drop: float | None = option(
        None,
        "Only designs whose format, as published, drops scores by at most so much: the high end of its 95 % interval.",
        PERCENT,
        metavar="1%",
    )
    drop_missing: bool = option(False, "Leave out designs whose objectives are unknown.", SWITCH)
    other_software: bool = option(False, ASKED["other_software"].help, SWITCH)
    objectives: Mapping[str, str] | None = option(
        None, 'Both senses at once, as in {"power_w": "min"}, in the order of a figure\'s axes.', in_command=False
    )
    units: Mapping[str, str] | None = option(None, "Base units of columns of your own.", in_command=False)
    as_json: bool = json_option("Print the front as JSON, in SI base units; NaN and infinities as null.")
    out: str | None = option(
        None, "Write the front as CSV, page and figures into this directory.", metavar="DIR", in_python=False
    )

    def run(self, console: Console = SILENT) -> DesignFront:
        """The front: its `table` has the designs, `only(COLUMN=VALUE)` takes one of several fronts."""
        from dse.sweep.pareto import designs, limits
        from dse.sweep.reading import StoredSweep

        within = limits.parse(several(self.at_most), several(self.at_least))
        if self.max_drop is not None:
            within = (*within, limits.Limit(limits.DROP, "at most", self.max_drop))
        senses, by = self._senses(), several(self.by)
        place = self.designs.folder if isinstance(self.designs, StoredSweep) else self.designs
        if not isinstance(place, str | Path):
            front = designs.of_table(
                place,
                senses,
                by,
                self.drop_missing,
                units=self.units,
                limits=within,
                other_software=self.other_software,
            )
            return front.listed_once()
        if self.units is not None:
            raise InputError("units: are for a table: a file's columns are results and axes")
        front = designs.of_file(place, senses, by, self.drop_missing, limits=within, other_software=self.other_software)
        return front.listed_once()

    def _senses(self) -> dict[str, Any]:
        """The objectives with the sense of each. Raises InputError."""
        from dse.sweep.pareto.designs import objectives_of

        if self.objectives is None:
            return dict(objectives_of(several(self.maximize), several(self.minimize)))
        if self.maximize or self.minimize:
            raise InputError("objectives: cannot stand beside maximize and minimize: give one of both")
        for name, sense in self.objectives.items():
            if sense not in ("max", "min"):
                raise InputError(f"objectives: {show(name)} = {show(sense)}: must be max or min")
        return dict(self.objectives)

    def written(self, outcome: DesignFront, console: Console) -> list[str]:
        """Write the front where a directory is given, and say what JSON cannot hold."""
        import shlex

        from dse.figures.export import front

        if self.as_json and (infinite := front.infinite(outcome)):
            name, row = infinite[0]
            more = f" (and {len(infinite) - 1:,} more)" if len(infinite) > 1 else ""
            console.say(f"note: {show(name)} is infinite in row {row}{more}: null in JSON")
        if self.out is None:
            return []
        made_by = shlex.join(words_of(replace(self, as_json=False)))
        page = front.write(outcome, self.out, made_by)
        return [] if self.as_json else [f"front: {page}"]

    def text(self, outcome: DesignFront) -> str:
        """The front as a table for the terminal."""
        from dse.figures.export import front

        return front.text(outcome)

    def document(self, outcome: DesignFront) -> Any:
        """The front with its objectives and units."""
        from dse.figures.export import front

        return front.to_json(outcome)
