"""`dse model add` and `dse model export`: a model file from a config.json."""

import json
from pathlib import Path

import click

from dse.cli.options import as_typed, assume_like_option, new_file
from dse.core.errors import InputError, show


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
@assume_like_option
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


@model.command(short_help="A model file from a directory, the Hugging Face cache or the hub.")
@click.argument("config", metavar="ORG/NAME|DIR|config.json")
@click.option("--name", help="Name of the model; default: that of the repository or the directory.")
@click.option("--out", metavar="FILE.toml", help="Model file to write; default: the name, in this directory.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@assume_like_option
@click.option("--from-hub", is_flag=True, help="Fetch config.json from the hub where neither path nor cache has it.")
@click.option("--revision", metavar="R", help="Branch, tag or commit of the repository; default: main.")
@click.option("--hub", metavar="URL", help="Address of the hub; default: HF_ENDPOINT, else https://huggingface.co.")
@click.option("--json", "as_json", is_flag=True, help="Print what was read as JSON.")
def add(
    config: str,
    name: str | None,
    out: str | None,
    force: bool,
    from_hub: bool,
    revision: str | None,
    hub: str | None,
    as_json: bool,
) -> None:
    """Read the config.json of a model and write a model file that --model takes.

    Looks at a local path, then in the Hugging Face cache, and with --from-hub at the hub: one file of plain JSON,
    nothing in it is run. Models behind a login need HF_TOKEN.
    """
    from dse.core import files, specfile
    from dse.report import listing
    from dse.specs import catalog, model_file
    from dse.specs import hub as hubs
    from dse.specs.huggingface import config as config_reader

    if hub is not None and not from_hub:
        raise InputError(f"hub = {show(hub)}: has no effect without --from-hub: add it, or leave this out")
    if out:
        new_file(out, force)  # refused before anything is fetched
    try:
        source = hubs.find(config, revision, from_hub, hub)
    except hubs.NotThereError:
        if catalog.shipped_model_file(config):
            rule = "ships with the tool: give it to --model as it is, or fetch its config.json with --from-hub"
            raise InputError(f"{config}: {rule}") from None
        raise
    found = catalog.model_from(source.document)
    mark = f"-as-{config_reader.ASSUMED_LIKE.get()}"
    name = source.name + (mark if found.name.endswith(mark) else "") if name is None else name
    path = new_file(out or f"{name.lower()}.toml", force)
    found = found.model_copy(update={"name": name, "title": name, "source": source.source})
    text = model_file.text(found, source.revision, by="dse model add")
    read_back = catalog.model_from(specfile.parse(str(path), text))  # refuses a name that no file may have
    files.write(path, text.encode())
    rows = listing.show(str(path))
    facts = {row["name"]: row["value"] for row in rows if row["name"] in _FACTS}
    layers = listing.layers_by_kind(read_back)
    following = f"dse point --device h100 --model {as_typed(path)}"
    if as_json:
        document = {
            "model": name,
            "file": str(path),
            "source": read_back.source,
            "n_layers": read_back.n_layers,
            **facts,
            "layers": layers,
            "notes": read_back.notes,
            "next": following,
        }
        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    click.echo(f"{name}: {read_back.n_layers} layers, from {read_back.source}")
    active = facts["active_parameters"]
    some = f", {active:,.0f} of them active" if active != facts["parameters"] else ""
    click.echo(
        f"{facts['parameters']:,} parameters{some}; {facts['kv_bytes_per_token']:,} B of KV cache a token (FP16)"
    )
    for line in [*layers, *(f"note: {note}" for note in read_back.notes)]:
        click.echo(line)
    click.echo(f"model file: {path}\nnext: {following}")


_FACTS = ("parameters", "active_parameters", "kv_bytes_per_token")
