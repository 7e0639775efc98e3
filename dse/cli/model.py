"""`dse model export`: a model file from a config.json."""

from pathlib import Path

import click

from dse.core.errors import InputError


@click.group(short_help="Make model files.")
def model() -> None:
    """Make model files of models that the tool knows or reads."""


@model.command(short_help="A model file from a config.json.")
@click.argument("config")
@click.option("--name", help="Name of the model; default: as the file's.")
@click.option("--title", help="Title in lists.")
@click.option("--source", metavar="TEXT", help="Where the config comes from, such as the repository's name.")
@click.option("--revision", default="", metavar="TEXT", help="The revision of that source.")
@click.option("--published", type=click.IntRange(1, 10**15), metavar="N", help="Published number of parameters.")
@click.option("--published-source", metavar="TEXT", help="Where that is published.")
@click.option("--out", required=True, metavar="FILE.toml", help="Model file to write.")
def export(
    config: str,
    name: str | None,
    title: str | None,
    source: str | None,
    revision: str,
    published: int | None,
    published_source: str | None,
    out: str,
) -> None:
    """Write what the reader finds in CONFIG (a config.json, or any name of a model) as a model file.

    The file holds the layers and the counted parameters alone, and reads back as the same model.
    """
    from dse.core import files, specfile
    from dse.specs import catalog, model_file
    from dse.specs.quantity import Quantity

    if (published is None) != (published_source is None):
        raise InputError("published: a number needs its source, and a source its number: give both or neither")
    if not out.lower().endswith(".toml"):
        raise InputError(f"out = {out!r}: must end in .toml")
    found = catalog.model(config)
    given = {"name": name, "title": title or name, "source": source}
    found = found.model_copy(update={key: value for key, value in given.items() if value})
    count = None
    if published and published_source:
        count = Quantity(value=published, unit="parameter", source=published_source, kind="published")
    text = model_file.text(found, revision, count)
    catalog.model_from(specfile.parse(out, text))  # refuses a name or a number that no file may have
    files.write(Path(out), text.encode())
    click.echo(f"model file: {out}")
