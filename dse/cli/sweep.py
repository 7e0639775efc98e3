"""The commands `dse sweep` and `dse pareto`."""

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from dse.core import interrupt
from dse.core.errors import InputError, OutputError, clean, show


@click.command(short_help="Evaluate all points of a sweep into Parquet files.")
@click.argument("file", required=False)
@click.option("--out", metavar="DIR", help="Directory of the result; one that was begun by this sweep is finished.")
@click.option("--threads", metavar="N", help="Threads; default: one a core. The files do not depend on it.")
@click.option(
    "--keep",
    type=click.Choice(["all", "front"]),
    default="all",
    show_default=True,
    help="Rows that are stored: all, or only the designs that no other beats.",
)
@click.option("--maximize", metavar="A,B", help="With --keep front: columns of which more is better.")
@click.option("--minimize", metavar="C,D", help="With --keep front: columns of which less is better.")
@click.option("--by", metavar="MODEL,...", help="With --keep front: a front for each value of these columns.")
@click.option("--drop-missing", is_flag=True, help="With --keep front: leave out designs whose objectives are unknown.")
@click.option("--at-most", multiple=True, metavar="C=N", help="With --keep front: only designs with at most N in C.")
@click.option("--at-least", multiple=True, metavar="C=N", help="With --keep front: only designs with at least N in C.")
@click.option(
    "--scheduler",
    metavar="WHERE",
    help="Run on a Dask cluster: tcp://HOST:PORT, tls://HOST:PORT, or local:WORKERS to start one here.",
)
@click.option("--insecure-scheduler", is_flag=True, help="Allow tcp:// to another machine, on a network you trust.")
@click.option("--no-limit", is_flag=True, help="Start even if it has over 1e10 points or may not fit on the disk.")
@click.option("--dry-run", is_flag=True, help="Say what it would take, and stop.")
@click.option("--verify", metavar="DIR", help="Check the files of a directory against their hashes.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def sweep(
    ctx: click.Context,
    file: str | None,
    out: str | None,
    threads: str | None,
    keep: str,
    maximize: str | None,
    minimize: str | None,
    by: str | None,
    drop_missing: bool,
    at_most: tuple[str, ...],
    at_least: tuple[str, ...],
    scheduler: str | None,
    insecure_scheduler: bool,
    no_limit: bool,
    dry_run: bool,
    verify: str | None,
    as_json: bool,
) -> None:
    """Evaluate all points of the sweep in FILE (TOML; notebooks/sweep.toml is an example) into DIR.

    Stop it at any time, by Ctrl-C, a kill or a power cut: the same command goes on where it stopped, and the files are
    the same, byte for byte. `dse pareto DIR` finds the best designs in them. `--keep front --maximize A --minimize B`
    stores these alone, for sweeps of which the rows would not fit.
    """
    if verify is not None:
        if file is not None or out is not None:
            raise InputError("verify: takes a directory alone: leave FILE and --out out")
        _verify(verify, as_json)
        return
    if file is None:
        raise InputError("FILE is missing: see dse sweep --help")
    if out is None and not dry_run:
        raise InputError("--out is missing: see dse sweep --help")
    from dse.cli.options import parse_whole, split_list
    from dse.sweep import run as sweep_run
    from dse.sweep import spec as sweep_spec

    if scheduler is not None and threads is not None:
        raise InputError("threads: are those of the workers: leave --threads out, or give --scheduler local:WORKERS")
    n_threads = sweep_run.check_threads(None if threads is None else parse_whole("threads", threads))
    found = sweep_spec.read(file)
    if keep == "front":
        from dse.sweep import front as sweep_front
        from dse.sweep.pareto import limits as pareto_limits

        limits = pareto_limits.parse(at_most, at_least)
        most, least = split_list("maximize", maximize) or [], split_list("minimize", minimize) or []
        found = sweep_front.asked(found, most, least, split_list("by", by) or [], drop_missing, limits)
    elif maximize or minimize or by or drop_missing or at_most or at_least:
        raise InputError(
            "--maximize, --minimize, --by, --at-most, --at-least and --drop-missing: go with --keep front, or with "
            "dse pareto"
        )
    if not no_limit and out is not None:
        sweep_run.check_limits(found, out)
    elif not no_limit:
        sweep_run.check_points(found)
    if dry_run or out is None:
        click.echo(_expected(found, as_json))
        return
    start = time.monotonic()
    given = {"--keep": keep if found.front else None, "--maximize": maximize, "--minimize": minimize, "--by": by}
    words = [word for name, value in given.items() if value for word in (name, value)]
    words += [word for text in at_most for word in ("--at-most", text)]
    words += [word for text in at_least for word in ("--at-least", text)]
    words += ["--drop-missing"] * drop_missing
    words += ["--scheduler", scheduler] if scheduler else []
    words += ["--insecure-scheduler"] * insecure_scheduler
    again = shlex.join(["dse", "sweep", file, "--out", out, *words])
    with _stopping(ctx, again), _bar(found.n_points) as progress:
        shown: dict[str, Any] = {
            "progress": progress,
            "say": lambda line: click.echo(line, err=True),
            "ready": lambda: None if as_json else click.echo(_expected(found, False)),
        }
        if scheduler is None:
            done = sweep_run.to_directory(found, out, n_threads, limits=False, **shown)
        else:
            from dse.sweep import cluster as sweep_cluster

            done = sweep_cluster.to_directory(found, out, scheduler, insecure_scheduler, limits=False, **shown)
    click.echo(_summary(done, time.monotonic() - start, as_json))


def _expected(found: Any, as_json: bool) -> str:
    """Points, time and bytes that a sweep will take."""
    from dse.cli.options import duration
    from dse.core import units
    from dse.sweep import run as sweep_run

    expected = sweep_run.estimate(found)
    if as_json:
        return json.dumps(
            {
                "n_points": expected.n_points,
                "n_rows": expected.n_rows,
                "n_rows_is_exact": expected.is_exact,
                "n_bytes_at_most": expected.n_bytes,
                "expected_s": expected.seconds,
            }
        )
    about = "" if expected.is_exact else "about "
    dropped = f", of which the conditions leave {about}{expected.n_rows:,}" if found.where else ""
    return (
        f"{expected.n_points:,} points{dropped}; about {duration(expected.seconds)} on one core; "
        f"{'about' if found.front else 'at most'} {units.human(expected.n_bytes, 'B')}"
    )


def _summary(done: Any, seconds: float, as_json: bool) -> str:
    from dse.sweep.points import CODES

    manifest = done.manifest
    if as_json:
        return json.dumps(
            {
                "out": str(done.folder),
                "n_points": done.spec["n_points"],
                "n_rows": done.n_rows,
                "n_parts": manifest.n_parts,
                "n_parts_written": done.n_written,
                "rows_by_infeasible_code": dict(enumerate(manifest.codes)),
                "set_aside": list(done.notes),
            }
        )
    n_bytes = sum(path.stat().st_size for path in done.paths)
    from dse.core import units

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


def _front_summary(done: Any, n_bytes: int) -> str:
    from dse.core import units
    from dse.sweep.pareto.limits import Limit
    from dse.sweep.points import CODES

    manifest, asked = done.manifest, done.front
    senses = ", ".join(f"{'most' if sense == 'max' else 'least'} {name}" for name, sense in asked["objectives"])
    by = f" by {', '.join(asked['by'])}" if asked["by"] else ""
    within = ", ".join(str(Limit(*limit)) for limit in asked.get("limits", []))
    lines = [
        f"front: {done.paths[0]} ({done.n_rows:,} of {sum(manifest.codes):,} designs, {units.human(n_bytes, 'B')})",
        f"  {senses}{by}{f'; within {within}' if within else ''}",
    ]
    lines += [f"  {n:,} points: {text}" for n, text in zip(manifest.codes, CODES, strict=False) if n]
    n_beyond = sum(part.n_beyond for part in manifest.parts.values())
    lines += [f"  {n_beyond:,} point{'s' if n_beyond != 1 else ''} left out: beyond the limits"] if n_beyond else []
    n_missing = sum(part.n_missing for part in manifest.parts.values())
    lines += (
        [f"  {n_missing:,} point{'s' if n_missing != 1 else ''} left out: an objective is unknown"] if n_missing else []
    )
    return "\n".join(lines)


def _verify(out: str, as_json: bool) -> None:
    from dse.sweep import store as sweep_store

    manifest, problems = sweep_store.verify(out)
    if as_json:
        click.echo(json.dumps({"n_rows": manifest.n_rows, "n_parts": manifest.n_parts, "problems": problems}))
    else:
        for problem in problems:
            click.echo(problem)
    if problems:
        raise OutputError(
            f"{show(out)}: {len(problems):,} problem{'s' * (len(problems) > 1)}: run `dse sweep` again, it repairs them"
        )
    if not as_json:
        click.echo(
            f"verified: {out} ({manifest.n_rows:,} rows, {manifest.n_parts:,} part{'s' * (manifest.n_parts > 1)})"
        )


@contextlib.contextmanager
def _stopping(ctx: click.Context, again: str) -> Iterator[None]:
    """Ctrl-C: say how to go on, and leave with the status of an interrupt."""
    interrupt.words(clean(f"stopped: finished parts are kept: `{again}` goes on", 300))
    try:
        yield
    except KeyboardInterrupt:
        interrupt.say()
        ctx.exit(interrupt.STATUS)


@contextlib.contextmanager
def _bar(n_points: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar with points per second and the time left; nothing where standard error is no terminal."""
    start, first = time.monotonic(), [-1]
    with click.progressbar(
        length=n_points,
        label="sweep",
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
        show_eta=True,
        item_show_func=lambda text: text,
    ) as bar:

        def progress(done: int, of: int) -> None:
            if first[0] < 0:
                first[0] = done
            rate = (done - first[0]) / max(time.monotonic() - start, 1e-9)
            bar.update(done - bar.pos, f"{rate:,.0f} points/s")

        yield progress


@click.command(short_help="The front of a sweep or a table: the designs that no other beats.")
@click.argument("source", metavar="DIR|TABLE")
@click.option("--maximize", metavar="A,B", help="Columns of which more is better.")
@click.option("--minimize", metavar="C,D", help="Columns of which less is better.")
@click.option("--by", metavar="MODEL,...", help="A front for each value of these columns.")
@click.option(
    "--at-most", multiple=True, metavar="C=N", help="Only designs with at most N, in base units, in column C."
)
@click.option(
    "--at-least", multiple=True, metavar="C=N", help="Only designs with at least N, in base units, in column C."
)
@click.option("--drop-missing", is_flag=True, help="Leave out designs whose objectives are unknown.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the front as JSON, in SI base units; NaN and infinities as null."
)
@click.option("--out", metavar="DIR", help="Write the front as CSV, page and figures into this directory.")
@click.option(
    "--static",
    type=click.Choice(["auto", "kaleido", "matplotlib"]),
    default="auto",
    show_default=True,
    help="What draws PNG, SVG and PDF.",
)
def pareto(
    source: str,
    maximize: str | None,
    minimize: str | None,
    by: str | None,
    at_most: tuple[str, ...],
    at_least: tuple[str, ...],
    drop_missing: bool,
    as_json: bool,
    out: str | None,
    static: str,
) -> None:
    """The Pareto front of a sweep's directory, of any size, or of a .csv or .parquet TABLE.

    A design is on the front when no other is at least as good in every objective and better in one. Designs that do
    not fit (column feasible) are not considered. A knee is the design closest to being best in everything.

    `--maximize throughput_tokens_per_s --at-most measured_error=0.2` is the fastest design at that error; --at-most and
    --at-least may be given several times. A design without a value in such a column does not count.
    """
    from dse.cli.options import split_list
    from dse.figures.export import front as report_front
    from dse.sweep.pareto import designs as pareto_designs
    from dse.sweep.pareto import limits as pareto_limits

    objectives = pareto_designs.objectives_of(
        split_list("maximize", maximize) or [], split_list("minimize", minimize) or []
    )
    limits = pareto_limits.parse(at_most, at_least)
    found = pareto_designs.of_file(source, objectives, split_list("by", by) or [], drop_missing, limits)
    page = ""
    if out is not None:
        options = {"--maximize": maximize, "--minimize": minimize, "--by": by}
        words = [word for name, value in options.items() if value for word in (name, value)]
        words += [word for text in at_most for word in ("--at-most", text)]
        words += [word for text in at_least for word in ("--at-least", text)]
        words += ["--drop-missing"] if drop_missing else []
        page = report_front.write(found, out, shlex.join(["dse", "pareto", source, *words, "--out", out]), static)
    if as_json:
        click.echo(json.dumps(report_front.to_json(found), allow_nan=False))
        if infinite := report_front.infinite(found):
            name, row = infinite[0]
            more = f" (and {len(infinite) - 1:,} more)" if len(infinite) > 1 else ""
            click.echo(f"note: {show(name)} is infinite in row {row}{more}: null in JSON", err=True)
        return
    click.echo(report_front.text(found))
    if page:
        click.echo(f"front: {page}")
