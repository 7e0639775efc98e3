"""The commands `dse validate claims`, `dse validate silicon` and `dse validate report`."""

import json

import click

from dse.cli.options import progress_bar


@click.group(invoke_without_command=True, short_help="Published claims and measured kernels beside our values.")
@click.pass_context
def validate(ctx: click.Context) -> None:
    """Published claims and measured kernels beside our values. A missed row is no failure of a command."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@validate.command(short_help="Every published claim, ours, and the verdict.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects, one a claim.")
def claims(as_json: bool) -> None:
    """Every checkable number that four documents print, beside ours.

    Verdicts: reproduced (exact numbers and relations), within (a model inside the row's tolerance), missed, erratum
    (the printed number does not follow from the document), not attempted.
    """
    from dse.validate import verdicts as validation

    rows = validation.claim_rows()
    click.echo(json.dumps(validation.to_json(rows), indent=2, allow_nan=False) if as_json else validation.text(rows))


@validate.command(short_help="Errors on measured kernel times by device, stack and size.")
@click.option("--device", metavar="NAME|FILE", help="One device; default: all with calibrated stacks.")
@click.option("--stack", metavar="vllm|sglang|...", help="One software stack; default: all.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects, one a row; errors are shares.")
def silicon(device: str | None, stack: str | None, as_json: bool) -> None:
    """Errors of the calibrated kernels on measured times, the naive roofline (bytes over bandwidth) beside ours.

    Computed where `aiconfigurator-core` is installed (extra `calibrate`); else as recorded in the device files.
    """
    from dse.validate import silicon as validate_silicon

    found = validate_silicon.run(device, stack, progress_bar)
    click.echo(
        json.dumps(validate_silicon.to_json(found), indent=2, allow_nan=False)
        if as_json
        else validate_silicon.text(found)
    )


@validate.command(short_help="Both as a page with scatter plots.")
@click.option("--out", default="report", show_default=True, metavar="DIR", help="Directory to write into.")
def report(out: str) -> None:
    """Claims, measured kernels and the papers' accuracy tables as one HTML page, with the tables beside it."""
    from dse.report import validation as report_validation
    from dse.validate import verdicts as validation

    index, rows = report_validation.write(out, progress_bar)
    click.echo(f"validation: {index} ({validation.summary(rows)})")


@validate.command(short_help="Measured servers beside predictions, row by row.")
@click.argument("table")
@click.option("--out", required=True, metavar="DIR", help="Directory to write predictions.csv and errors into.")
@click.option("--json", "as_json", is_flag=True, help="Print the errors by group as JSON; errors are shares.")
def serving(table: str, out: str, as_json: bool) -> None:
    """Predict every row of a TABLE of measured servers, and say how far off it is.

    TABLE is a CSV file with the columns id, backend, model_path, system, isl, osl and batch_size (the requests at any
    time), and where known backend_version, precision, tp_size and other splits, silicon_tpot_ms and silicon_ttft_ms.
    predictions.csv has times in ms with 80 % intervals, marked where the nearest measured release, kernel or format
    stands in; errors.csv the errors by model, system, stack and devices;
    servers.html and .svg the figure.
    """
    from dse.core import files
    from dse.figures.charts import servers_measured
    from dse.validate import serving as validate_serving

    with files.publishing(out) as published:
        found = validate_serving.run(table, progress_bar)
        contents = validate_serving.contents_of(found) | servers_measured.files_of(found)
        written = [str(published.write(name, content)) for name, content in contents.items()]
    if as_json:
        click.echo(json.dumps(validate_serving.errors(found), indent=2, allow_nan=False))
    else:
        click.echo(validate_serving.text(found))
        click.echo("\nwritten: " + ", ".join(written))


@validate.command(short_help="Published gains of quantised KV beside predictions, row by row.")
@click.argument("table")
@click.option("--out", required=True, metavar="DIR", help="Directory to write predictions.csv and errors.json into.")
@click.option("--json", "as_json", is_flag=True, help="Print the errors by class and stack as JSON; they are shares.")
def gains(table: str, out: str, as_json: bool) -> None:
    """Predict every row of a TABLE of printed measurements, and each gain over the base of its group.

    TABLE is a CSV file with the columns id, device, model, kv, stack, quantity, value and unit, and where they apply
    n_devices, weights, activations, batch, input_tokens, output_tokens, cls, group and is_base
    (docs/explanation/implementations.md). predictions.csv has values in the unit of each row with 80 % intervals, the
    gains, and why there is none.
    """
    from dse.core import files
    from dse.validate import gains as validate_gains

    with files.publishing(out) as published:
        found = validate_gains.run(table, progress_bar)
        written = [str(published.write(name, content)) for name, content in validate_gains.contents_of(found).items()]
    if as_json:
        click.echo(json.dumps(validate_gains.errors(found), indent=2, allow_nan=False))
    else:
        click.echo(validate_gains.text(found))
        click.echo("\nwritten: " + ", ".join(written))
