"""The commands of the calibrated model: `dse calibrate` and `dse predict`."""

import json
from typing import Any

import click

from dse.cli.options import command_line, progress_bar
from dse.core.errors import InputError


@click.command(short_help="Fit a device's kernel parameters to measured times.")
@click.argument("table")
@click.option("--device", metavar="NAME|FILE", help="The device that was measured; not for host and implementation.")
@click.option("--stack", metavar="NAME", help="Software stack, such as vllm; default: the one the table names.")
@click.option(
    "--out",
    required=True,
    metavar="FILE.toml|DIR",
    help="Device file to write, with the fitted stack in it; for host and implementation a directory.",
)
@click.option(
    "--kernel",
    default="attention",
    show_default=True,
    type=click.Choice(["attention", "gemm", "links", "served", "host", "implementation", "power"]),
    help="What to read from aiconfigurator-core (links: collectives; served: products by "
    "format, experts, latent heads, prompts); a CSV file's columns say. host: whole steps of a CSV "
    "table; implementation: published measurements of quantised KV; power: J a byte and an operation, "
    "idle power.",
)
@click.option("--json", "as_json", is_flag=True, help="Print parameters and errors as JSON, in SI units.")
def calibrate(table: str, device: str | None, stack: str | None, out: str, kernel: str, as_json: bool) -> None:
    """Fit a device's kernel parameters to a TABLE of measured times, and write a device file with them.

    TABLE is a CSV file (docs/explanation/calibration.md has the columns), or `aiconfigurator-core` where that package
    is installed. A fifth of the rows is held out to measure the error. A plot of predicted against measured times is
    written beside FILE.toml. A fit that cannot be trusted writes nothing.
    """
    from dse.calibrate import fitters

    fitter = fitters.of_kernel(kernel)
    if device is None and kernel not in fitters.WITHOUT_DEVICE:
        raise InputError("--device is missing: give the device that was measured")
    if kernel in fitters.SHIPPED:
        done = fitter.run(table, out, device=device, stack=stack, progress=progress_bar)
        click.echo(json.dumps(done, indent=2, allow_nan=False) if as_json else fitter.text(done))
        return

    def draw(outcomes: list[Any], device: str, stack: str) -> tuple[bytes, bytes]:
        from dse.figures.export import calibration  # loads plotly and matplotlib: not before the fit is good

        return calibration.plots(outcomes, device, stack, command_line())

    found = fitter.run(table, device, stack, out, progress_bar, kernel, draw)
    click.echo(json.dumps(found, indent=2, allow_nan=False) if as_json else fitter.text(found))


@click.group(short_help="Predict kernel times with calibrated parameters.")
def predict() -> None:
    """Predict kernel times with a device's calibrated parameters."""


@predict.command(short_help="Add predicted_us to a table of decode attention.")
@click.argument("table")
@click.option("--device", required=True, metavar="NAME|FILE", help="Device with calibrated stacks.")
@click.option("--stack", default="vllm", show_default=True, metavar="NAME", help="Which of its stacks.")
@click.option("--out", required=True, metavar="FILE.csv", help="CSV file to write.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def attention(table: str, device: str, stack: str, out: str, as_json: bool) -> None:
    """Write TABLE with a column predicted_us: one layer's decode attention, keys and values read from memory."""
    from dse.calibrate import write as calibrate_write

    found = calibrate_write.predict(table, device, stack, out)
    click.echo(json.dumps(found) if as_json else f"predictions: {found['out']} ({found['rows']:,} rows)")
