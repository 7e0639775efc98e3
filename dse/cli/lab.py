"""The command `dse lab`."""

import json

import click

from dse.cli.options import WHOLE
from dse.core.errors import InputError, show


@click.command(short_help="One quantizer on a KV dump: bits, errors by head, a head's values.")
@click.argument("source", required=False)
@click.option("--method", required=True, metavar="Q", help="A quantizer with parameters, such as kivi:bits=2.")
@click.option("--out", required=True, metavar="DIR", help="Directory of the tables.")
@click.option("--layer", type=WHOLE, help="Layer whose values are shown; default: the first.")
@click.option("--side", default="key", show_default=True, metavar="key|value", help="Keys or values.")
@click.option("--head", type=WHOLE, default=0, show_default=True, help="Head whose values are shown.")
@click.option("--first", type=WHOLE, default=0, show_default=True, help="First token of the map of values.")
@click.option(
    "--error",
    default="sqnr_db",
    show_default=True,
    metavar="sqnr_db|mse|output_error|...",
    help="Error of the map of layers and heads.",
)
@click.option("--heads", type=WHOLE, help="Heads of tensors [tokens, channels].")
@click.option(
    "--nonfinite",
    default="raise",
    show_default=True,
    metavar="raise|replace",
    help="What to do with NaN and infinities: refuse, or take them as 0 and +-65504.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def lab(
    source: str | None,
    method: str,
    out: str,
    layer: int | None,
    side: str,
    head: int,
    first: int,
    error: str,
    heads: int | None,
    nonfinite: str,
    as_json: bool,
) -> None:
    """What one quantizer does to a KV dump (default: the synthetic sample that ships), as tables for `dse plot`.

    Bits an element by part (bits.csv), errors by layer and head (errors.csv), and of one head the histogram with the
    quantizer's thresholds (histogram.csv) and the first 256 tokens before and after (values.csv). Oaken's thresholds
    are profiled on the dump itself; of many quantizers, at all context lengths: `dse measure`.
    """
    from dse import quantizers
    from dse.figures.export import lab as report_lab
    from dse.measure import kernels as measure
    from dse.measure import lab as measure_view

    report_lab.check(side, error)
    if nonfinite not in ("raise", "replace"):
        raise InputError(f"nonfinite = {show(nonfinite)}: must be raise or replace")
    spec = quantizers.parse(method)
    if spec.family.name not in measure.RUN:
        raise InputError(f"method = {show(method)}: has no kernel; known: {', '.join(measure.RUN)}")
    how = measure_view.How(heads, nonfinite)
    held = measure_view.sample() if source is None else measure_view.hold(source, how=how)
    chosen = held.indices[0] if layer is None else layer
    view = measure_view.view(held, spec, how, chosen, side, head, first, report_lab.MAX_TOKENS)  # type: ignore[arg-type]
    found = measure_view.measured(held, spec, how)
    data = held.name + (", synthetic data" if held.about.synthetic else "")
    place = f"{spec.name}, layer {chosen:,}, head {head:,}, {side}s"
    paths = report_lab.write(out, found, view, place, side, error, data, report_lab.MAX_CHANNELS)
    if as_json:
        click.echo(json.dumps({"method": spec.name, "tables": [str(path) for path in paths]}))
        return
    for path in paths:
        click.echo(f"{path} (dse plot {' or '.join(report_lab.KINDS[path.stem])})")
