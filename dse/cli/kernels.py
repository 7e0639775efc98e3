"""The commands that work on real KV tensors: `dse quantize` and `dse thresholds`."""

import json
from collections.abc import Callable, Iterable

import click

from dse.cli.options import WHOLE, progress_bar
from dse.measure import MAX_BYTES


def dump_options(function: Callable[..., None]) -> Callable[..., None]:
    """Options of every command that reads dumps."""
    return click.option(
        "--max-bytes", type=WHOLE, default=MAX_BYTES, show_default=True, help="Largest size of all tensors of a file."
    )(function)


@click.command(short_help="Quantise a KV dump bit-exactly: bits and errors.")
@click.argument("file")
@click.option(
    "--method",
    "methods",
    multiple=True,
    required=True,
    metavar="Q",
    help="Quantizer with parameters, as for `dse point`; may be given several times.",
)
@click.option("--thresholds", metavar="T.toml", help="Oaken's thresholds, from `dse thresholds`.")
@click.option("--heads", type=WHOLE, default=1, show_default=True, help="Heads of tensors [tokens, channels].")
@click.option(
    "--nonfinite",
    default="raise",
    show_default=True,
    metavar="raise|replace",
    help="What to do with NaN and infinities: refuse, or take them as 0 and +-65504.",
)
@click.option("--out", metavar="DIR", help="Directory for the packed buffers and measurement.json.")
@click.option("--synthetic", is_flag=True, help="Mark the measurement as one of synthetic data.")
@dump_options
@click.option("--json", "as_json", is_flag=True, help="Print the measurement as JSON.")
def quantize(
    file: str,
    methods: tuple[str, ...],
    thresholds: str | None,
    heads: int,
    nonfinite: str,
    out: str | None,
    synthetic: bool,
    max_bytes: int,
    as_json: bool,
) -> None:
    """Quantise the keys and values of a KV dump bit-exactly (.npz, .npy, .safetensors; FP16, BF16, FP32).

    Shows, per tensor, stored and effective bits, mean squared and largest error and signal-to-noise ratio. Tensors are
    [tokens, channels] or [batch, heads, tokens, head_dim] and named like layer0.key, layer0.value. With --out, the
    packed buffers and a measurement file for `dse point --measurements` are written.
    """
    from dse.measure import dump as measure_dump
    from dse.specs import measurements

    found = measure_dump.run(
        file, methods, thresholds, heads, nonfinite, out, synthetic, max_bytes, progress=progress_bar
    )
    if as_json:
        click.echo(measurements.to_json(found).decode(), nl=False)
    else:
        click.echo(measure_dump.text(found, out))


@click.command(short_help="Profile Oaken's thresholds from KV dumps.")
@click.argument("files", nargs=-1, required=True)
@click.option("--out", required=True, metavar="T.toml", help="File to write the thresholds to.")
@click.option(
    "--shares",
    default="4/90/6",
    show_default=True,
    metavar="A/B/C",
    help="Shares of the groups in percent, outermost first.",
)
@click.option("--model", default="", help="The model that the dumps come from, for the record.")
@dump_options
@click.option("--json", "as_json", is_flag=True, help="Print the thresholds as JSON.")
def thresholds(files: Iterable[str], out: str, shares: str, model: str, max_bytes: int, as_json: bool) -> None:
    """Profile Oaken's thresholds (its offline step) from KV dumps, each one run; averaged per layer."""
    from dse.measure import dump as measure_dump

    found = measure_dump.profile_to(list(files), out, shares, model, max_bytes, progress=progress_bar)
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"thresholds: {out}")
    click.echo(f"  {found['n_layers']} layers, {found['n_runs']} runs, {found['n_elements']:,} elements")
