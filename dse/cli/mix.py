"""The command `dse mix`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dse.cli.options import WHOLE, command_line, split_list
from dse.core.errors import InputError, show

if TYPE_CHECKING:
    from dse.measure import mixed_plan


@click.command(short_help="A quantizer for each layer, from measured errors and a budget.")
@click.argument("source", metavar="DIR|TABLE")
@click.option("--budget-bits", metavar="N", help="Most stored bits an element, mean over layers, keys and values.")
@click.option("--budget-bytes", type=WHOLE, help="Or most bytes of all measured keys and values.")
@click.option("--max-error", metavar="E", help="Or the other way round: fewest bits at a relative error of at most E.")
@click.option("--methods", metavar="A,B", help="Methods to choose from; default: all measured ones, and fp16.")
@click.option(
    "--objective",
    metavar="output_error|mse",
    help="Error of the attention output (default where measured) or of keys and values.",
)
@click.option("--context", type=WHOLE, help="Measured context whose errors and bits count; default: the longest.")
@click.option("--out", metavar="FILE.toml", help="The plan, for --quantizer plan:FILE.toml.")
@click.option(
    "--figure",
    metavar="FILE",
    help="Error against bits of all plans: .pdf, .svg, .png, .html; .csv for `dse plot mixed_plans`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def mix(
    source: str,
    budget_bits: str | None,
    budget_bytes: int | None,
    max_error: str | None,
    methods: str | None,
    objective: str | None,
    context: int | None,
    out: str | None,
    figure: str | None,
    as_json: bool,
) -> None:
    """Choose a quantizer for the keys and the values of each layer, so that the total error is least in a budget.

    DIR is the --out of `dse measure`. Exact, by dynamic programming. Squared errors relative to the signal of their
    layer are added over layers and sides, as if they were independent. The plan is a file that `dse point`, `dse ask`
    and `dse sweep` take as a quantizer: --quantizer plan:FILE.toml, on one device or on several (--tp 4).
    """
    from dse.core import files
    from dse.measure import mixed_plan

    given = {"budget-bits": budget_bits, "budget-bytes": budget_bytes, "max-error": max_error}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise InputError("give one of --budget-bits, --budget-bytes and --max-error: what the plan has to keep to")
    ending = _ending(figure)
    if out is not None and not out.lower().endswith(".toml"):
        raise InputError(f"out = {show(out)}: must end in .toml")
    limit = _positive(named[0], str(given[named[0]]))
    errors = mixed_plan.load(source, split_list("methods", methods), objective, context)
    if max_error is not None:
        found = mixed_plan.least_bits(errors, limit, f"error {limit:g}")
    elif budget_bytes is not None:
        found = mixed_plan.least_error(errors, 8 * limit, f"{budget_bytes:,} bytes")
    else:
        found = mixed_plan.least_error(errors, mixed_plan.budget_bits(errors, limit), f"{limit:g} bits an element")
    drawn = _drawn(found, figure, ending) if figure else {}
    if out is not None:
        mixed_plan.write(found, out, command_line())
    for path, content in drawn.items():
        files.write(path, content)
    summary = found.summary()
    if as_json:
        click.echo(json.dumps({**summary, "out": out, "figure": figure}, indent=1, allow_nan=False))
        return
    click.echo(mixed_plan.text(summary))
    for name, written in (("plan", out), ("figure", figure)):
        if written:
            click.echo(f"{name}: {written}")


def _ending(figure: str | None) -> str:
    from dse.figures.export import image as export

    ending = (figure or "x.pdf").rpartition(".")[2].lower()
    if ending not in export.FORMATS:
        raise InputError(f"figure = {show(figure)}: must end in one of {', '.join(export.FORMATS)}")
    return ending


def _drawn(found: "mixed_plan.Mixed", figure: str, ending: str) -> dict[Path, bytes]:
    """The figure's file; of a table also what its figure says beside it."""
    from dse.figures import source as plot_read
    from dse.figures.export import image as export
    from dse.figures.plot import answer

    source, path = answer.source_of(found), Path(figure)
    written = {path: export.export(answer.chart_of(found), ending, command_line(), source.table)}
    if ending in ("csv", "parquet"):
        written[path.parent / f"{path.stem}{plot_read.BESIDE}"] = plot_read.beside(source.about)
    return written


def _positive(name: str, text: str) -> float:
    """A number from 0 on in ASCII digits. Raises InputError naming the option."""
    import re

    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{0,15})?(e-?[0-9]{1,2})?", text, re.ASCII):
        raise InputError(f"{name} = {show(text)}: must be a number from 0 on, such as 4.5")
    return float(text)
