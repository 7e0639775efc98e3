"""The `dse` command. Heavy libraries are imported inside the commands that need them."""

import json
import re
import sys
from typing import Any

import click

from dse.cli.calibrate import calibrate, predict
from dse.cli.device import device
from dse.cli.docs import docs
from dse.cli.kernels import quantize, thresholds
from dse.cli.lab import lab
from dse.cli.measure import measure, synthesize
from dse.cli.mix import mix
from dse.cli.model import model
from dse.cli.options import (
    bits_options,
    deployment_options,
    model_options,
    parse_whole,
    progress_bar,
    split_list,
    work_option,
    workload_options,
)
from dse.cli.plot import plot
from dse.cli.questions import ask
from dse.cli.ring import ring
from dse.cli.simulate import simulate
from dse.cli.study import study
from dse.cli.sweep import pareto, sweep
from dse.cli.traffic import traffic
from dse.cli.validate import validate
from dse.core import interrupt
from dse.core.errors import DseError, InputError, OutputError, clean, did_you_mean, show
from dse.core.version import VERSION


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before click adds an empty line
            interrupt.say()
            ctx.exit(interrupt.STATUS)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="dse")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """KV-cache quantization design-space exploration.

    For any device, language model, KV quantizer and workload: memory, effective bits, time per step, what fits,
    throughput and energy. Start with `dse report`, or one question: `dse point --device a100-80gb --model
    llama2-7b --quantizer oaken --batch 64`. Add --debug to any command to see a full traceback.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


cli.add_command(quantize)
cli.add_command(thresholds)
cli.add_command(measure)
cli.add_command(synthesize)
cli.add_command(lab)
cli.add_command(mix)
cli.add_command(model)
cli.add_command(device)
cli.add_command(study)
cli.add_command(calibrate)
cli.add_command(predict)
cli.add_command(validate)
cli.add_command(ask)
cli.add_command(sweep)
cli.add_command(pareto)
cli.add_command(ring)
cli.add_command(plot)
cli.add_command(traffic)
cli.add_command(simulate)
cli.add_command(docs)


@cli.command(short_help="Everything about one design point.")
@workload_options
@model_options
@bits_options
@click.option("--json", "as_json", is_flag=True, help="Print every result as JSON, in SI base units.")
@click.option("--explain", metavar="NAME", help="Show the formula, values and sources behind one result.")
@click.option("--operations", is_flag=True, help="Show what each operation takes, and its shares of the peak rates.")
@click.option("--out", metavar="DIR", help="Write the result and the operations of a decode step as tables.")
def point(
    device: str,
    model: str,
    quantizer: str,
    key_quantizer: str | None,
    value_quantizer: str | None,
    bits: str,
    measurements: str | None,
    as_json: bool,
    explain: str | None,
    operations: bool,
    out: str | None,
    **work: Any,
) -> None:
    """Everything about one design point: memory, time, throughput, and what binds."""
    from dse.model import evaluate as design_point
    from dse.model import kv_layout as plan
    from dse.model import uncertainty
    from dse.report import present
    from dse.specs import catalog
    from dse.specs.measurements import bits_from
    from dse.specs.workload import Workload

    spec = catalog.device(device)
    source = bits_from(bits, measurements)
    kv = plan.build(
        catalog.model(model), source.required(key_quantizer or quantizer), source.required(value_quantizer or quantizer)
    )
    asked = Workload(**work)
    asked.refuse_idle()
    point = design_point.Point(spec, kv, asked)
    result = point.results
    if out is not None:
        if explain is not None:
            raise InputError(f"out = {show(out)}: has no effect with --explain: leave it out")
        from dse.figures.export import point as report_point

        report_point.write(out, spec, kv, asked, result)
    ledger = present.bit_ledger(point)
    if explain is not None:
        explanation = present.explain(explain, point)
        click.echo(json.dumps(explanation, allow_nan=False) if as_json else present.explanation_text(explanation))
        return
    each = point.operations() if as_json or operations else []
    with_room = design_point.with_room(spec, kv, asked, result)
    if as_json:
        room = with_room and {name: with_room[name] for name in design_point.ROOM_RESULTS}
        sure = uncertainty.as_numbers(result, point.stack)
        document = {
            **result,
            "intervals": sure,
            "bit_ledger": ledger,
            "operations": each,
            "with_room": room,
            "kernels": present.kernels(point),
        }
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        click.echo(present.point_text(result, spec, kv, ledger, device, with_room, present.kernels(point)))
        if each:
            click.echo(f"\nOperations\n{present.operations_text(each)}")
        if out is not None:
            click.echo(f"\ntables: {out} (dse plot design_memory, design_step, operations)")


@cli.command(short_help="Write the throughput-versus-capacity report.")
@click.option("--out", default="report", show_default=True, metavar="DIR", help="Directory to write into.")
@click.option("--devices", metavar="A,B", help="Devices (names or files); default: the preset's.")
@click.option("--models", metavar="A,B", help="Models (names or files); default: the preset's.")
@click.option("--quantizers", metavar="A,B", help="KV quantizers; default: those each device is evaluated with.")
@click.option(
    "--preset",
    default="today",
    show_default=True,
    metavar="today|oaken",
    help="Where no device is named: models and GPUs of today, or the systems and models of Oaken's Figure 11.",
)
@click.option("--batches", metavar="16,32", help="Batch sizes; default: 16,32,64,128,256.")
@work_option("input_tokens")
@work_option("output_tokens")
@click.option(
    "--tokens", metavar="A,B", help="Token policies of `fewer tokens against fewer bits` (`dse list tokens`)."
)
@click.option(
    "--static",
    type=click.Choice(["auto", "kaleido", "matplotlib"]),
    default="auto",
    show_default=True,
    help="What draws PNG, SVG and PDF; auto is matplotlib; kaleido needs a browser.",
)
@deployment_options
@model_options
@bits_options
def report(
    out: str,
    devices: str | None,
    models: str | None,
    quantizers: str | None,
    batches: str | None,
    input_tokens: int,
    output_tokens: int,
    preset: str,
    tokens: str | None,
    static: str,
    bits: str,
    measurements: str | None,
    model_kind: str,
    stack: str | None,
    **deployment: Any,
) -> None:
    """The throughput-versus-capacity report: one HTML page, the table behind it, every figure."""
    from dse.report import throughput as report_module

    sizes = [parse_whole("batches", text) for text in split_list("batches", batches) or []] or None
    index = report_module.write(
        out,
        split_list("devices", devices),
        split_list("models", models),
        split_list("quantizers", quantizers),
        sizes,
        input_tokens,
        output_tokens,
        static,
        progress=progress_bar,
        bits=bits,
        measurements=measurements,
        model_kind=model_kind,
        stack=stack,
        tokens=split_list("tokens", tokens),
        preset=preset,
        **deployment,
    )
    click.echo(f"report: {index}")


@cli.command()
@click.argument("file")
def check(file: str) -> None:
    """Say all that is wrong with a device file, a model file or a plan by layer."""
    from dse.report import listing

    click.echo(listing.check(file))


@cli.command("list", short_help="Devices, models, quantizers, implementations or token policies.")
@click.argument("kind", metavar="devices|models|quantizers|implementations|tokens")
@click.argument("pattern", default="")
@click.option("--vendor", default="", help="Devices of one vendor alone.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_(kind: str, pattern: str, vendor: str, as_json: bool) -> None:
    """What the tool knows by name: devices, models, quantizers, implementations of these, or token policies.

    PATTERN keeps those that have it in their name or title, in any case: `dse list models qwen3`. Devices come by
    vendor, with whose kernels they run.
    """
    from dse.report import listing

    kinds = {
        "devices": listing.list_devices,
        "models": listing.list_models,
        "quantizers": listing.list_quantizers,
        "implementations": listing.list_implementations,
        "tokens": listing.list_tokens,
    }
    if kind not in kinds:
        raise InputError(f"unknown list {show(kind)}: {did_you_mean(kind, kinds)}")
    if vendor and kind != "devices":
        raise InputError(f"vendor = {show(vendor)}: {kind} have none: leave it out")
    rows = listing.list_devices(vendor) if kind == "devices" else kinds[kind]()
    rows = listing.matching(rows, pattern)
    if pattern and not rows:
        raise InputError(f"no {kind} with {show(pattern)} in the name or title: see `dse list {kind}`")
    click.echo(json.dumps(rows, indent=2) if as_json else listing.rows_text(listing.grouped(rows)))


@cli.command("show", short_help="One of them with every number and its source.")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("--toml", "as_toml", is_flag=True, help="Print the shipped file itself, to copy and edit.")
def show_(name: str, as_json: bool, as_toml: bool) -> None:
    """A device, model, quantizer, implementation or token policy with every number, unit and source."""
    from dse.report import listing

    if as_toml:
        click.echo(listing.shipped_text(name), nl=False)
        return
    rows = listing.show(name)
    click.echo(json.dumps(rows, indent=2) if as_json else listing.rows_text(rows))


@cli.command(context_settings={"ignore_unknown_options": True}, short_help="Open the explorer in a browser.")
@click.argument("streamlit_args", nargs=-1, type=click.UNPROCESSED)
def app(streamlit_args: tuple[str, ...]) -> None:
    """Open the explorer in a browser; it listens on this machine only unless you give another --server.address.

    Options such as --server.port 8600 go to Streamlit.
    """
    from dse.explorer import launch

    launch.run(list(streamlit_args))


def _usage_line(error: click.ClickException) -> str:
    """click's multi-line complaint as one line with a next step."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "dse"
    if isinstance(error, click.NoSuchOption):
        known = [name for param in ctx.command.params for name in param.opts] if ctx else []
        return f"unknown option {show(error.option_name)}: {did_you_mean(error.option_name, known)}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        what = error.param.metavar or (error.param.opts or ["argument"])[0]
        name = error.param.opts[0] if error.param.param_type_name == "option" else what
        return f"{name} is missing: see {path} --help"
    message = error.format_message().rstrip(".")
    unknown = re.match(r"No such command '(.*?)'", message, re.S)
    if unknown:
        return f"unknown command {show(unknown[1])}: {_meant(unknown[1])}"
    return f"{message[:1].lower()}{message[1:]}: see {path} --help"


def _meant(word: str) -> str:
    """The commands that say of themselves what was typed, as front and trace; else those of a name near it."""
    says = re.compile(rf"\b{re.escape(word)}", re.I)
    found = [name for name, command in cli.commands.items() if says.search(command.get_short_help_str(200))]
    return f"did you mean {', '.join(found)}?" if 0 < len(found) <= 3 else did_you_mean(word, cli.commands)


def main(argv: list[str] | None = None) -> None:
    """Entry point: run a command, show any error as a line, return the documented exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    interrupt.begin()
    try:
        status = cli.main(args=args, prog_name="dse", standalone_mode=False, obj=args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone (`dse ... | head`)
        sys.stderr.close()
        status = 0
    except (click.Abort, KeyboardInterrupt):
        interrupt.say()
        status = interrupt.STATUS
    except Exception as error:  # the last line of defence: one line instead of a traceback
        if debug:
            raise
        if interrupt.was_pressed():
            interrupt.say()
            sys.exit(interrupt.STATUS)
        lines, status = _lines_and_status(error)
        for line in lines:
            click.echo(f"error: {line}", err=True)
    sys.exit(status if isinstance(status, int) else 0)


def _lines_and_status(error: Exception) -> tuple[list[str], int]:
    if isinstance(error, DseError):
        return error.lines(), error.exit_status
    if isinstance(error, click.ClickException):
        return [clean(_usage_line(error), 300)], 2
    if isinstance(error, OSError):
        return [clean(str(error), 300)], OutputError.exit_status
    return [clean(f"unexpected {type(error).__name__}: {error}: please report it; --debug shows where", 300)], 1
