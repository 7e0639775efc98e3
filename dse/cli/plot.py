"""The command `dse plot`."""

import json
from typing import Any

import click

from dse.cli.looks import look_of, look_options
from dse.cli.options import command_line
from dse.cli.unused import refuse
from dse.core.errors import InputError, show


@click.command(short_help="Any figure for a paper or a slide, or its table.")
@click.argument("kind", required=False)
@click.argument("source", required=False, metavar="DIR|TABLE")
@click.option("--out", metavar="FILE", help="File to write: .pdf, .svg, .png, .html, .csv or .parquet.")
@look_options
@click.option("--only", multiple=True, metavar="COLUMN=A,B", help="Rows to draw, such as model=llama2-13b.")
@click.option("--list", "as_list", is_flag=True, help="Every figure: what it shows, which command writes its table.")
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
def plot(
    kind: str | None,
    source: str | None,
    out: str | None,
    only: tuple[str, ...],
    as_list: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Draw the figure KIND of what another command wrote: sized for a column of a paper or for a slide.

    DIR is the --out of that command, TABLE a CSV or Parquet file with the figure's columns (a directory of `dse sweep`
    will do where it keeps them). PDF holds its fonts, SVG draws letters as paths; both, PNG and Parquet say in
    their metadata which command and version made them, HTML beneath the figure, CSV in FILE-metadata.json beside it.
    `dse plot` alone lists the figures.
    """
    from dse.figures.plot import write as plot_write

    if kind is None or as_list or (kind == "list" and source is None):
        click.echo(json.dumps(plot_write.listing(), indent=2) if as_json else plot_write.listing_text())
        return
    if as_json:
        raise InputError("json = True: has no effect without --list: leave it out")
    plot_write.how_to(kind)  # an unknown one is said first
    ending = plot_write.ending(out) if out is not None else ""
    if source is None:
        raise InputError(f"DIR or TABLE is missing: {plot_write.how_to(kind)}")
    if out is None:
        raise InputError("--out is missing: name a file that ends in .pdf, .svg, .png, .html, .csv or .parquet")
    if ending not in plot_write.SIZED:
        words = ("title", "x_label", "y_label")
        without = [name for name in given if ending != "html" or name not in words]
        refuse(dict.fromkeys(without, f"in .{ending}"))
    if given["title"] is not None and given["no_title"]:
        raise InputError(f"title = {show(given['title'])}: has no effect with --no-title: leave one out")
    for line in plot_write.write(kind, source, out, command_line(), look_of(given), only):
        click.echo(line)
