"""The commands `dse ask formats`, `cross`, `need`, `sensitivity`, `map`, `load` and `devices`."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from dse.cli.options import (
    WHOLE,
    bits_options,
    command_line,
    model_options,
    parse_share,
    parse_whole,
    progress_bar,
    split_list,
    workload_options,
)

if TYPE_CHECKING:
    from dse.figures.export.question import Answer

Command = Callable[..., None]


@click.group(
    invoke_without_command=True,
    short_help="Questions by name: formats, crossover, inverse design, sensitivity, map, load, devices.",
)
@click.pass_context
def ask(ctx: click.Context) -> None:
    """Questions by name, each a text, JSON (--json), or a figure with its table (--out DIR)."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def question_options(*left_out: str) -> Callable[[Command], Command]:
    """The options of a design point but those named, and how the answer is given."""

    def add(function: Command) -> Command:
        function = click.option(
            "--static",
            type=click.Choice(["auto", "kaleido", "matplotlib"]),
            default="auto",
            show_default=True,
            help="What draws PNG, SVG and PDF; auto is matplotlib; kaleido needs a browser.",
        )(function)
        function = click.option("--out", metavar="DIR", help="Write figure and table into this directory.")(function)
        function = click.option("--json", "as_json", is_flag=True, help="Print as JSON, in SI base units.")(function)
        function = workload_options(model_options(bits_options(function)))
        params: list[click.Parameter] = function.__click_params__  # type: ignore[attr-defined]
        params[:] = [param for param in params if param.name not in left_out]
        return function

    return add


def _numbers(name: str, text: str | None, default: tuple[int, ...]) -> list[int]:
    """The whole numbers of a list option."""
    return [parse_whole(name, part) for part in split_list(name, text) or []] if text is not None else list(default)


def _answer(answer: "Answer", as_json: bool, out: str | None, static: str) -> None:
    """Print an answer and, where a directory is given, write its figure and table."""
    page = ""
    if out is not None:
        from dse.figures.export import question as report_question

        page = report_question.write(out, answer, command_line(), static)
    click.echo(json.dumps(answer.to_json(), indent=2, allow_nan=False) if as_json else answer.text())
    if page:
        click.echo(f"figure: {page}", err=as_json)


@ask.command(short_help="Which KV format pays here: memory, time, error, energy of each over 16 bits.")
@click.option(
    "--formats",
    "names",
    metavar="A,B",
    help="Formats to compare with 16 bits; default: all whose kernels the device and stack have, or code of papers.",
)
@question_options("quantizer", "key_quantizer", "value_quantizer")
def formats(
    device: str,
    model: str,
    names: str | None,
    bits: str,
    measurements: str | None,
    as_json: bool,
    out: str | None,
    static: str,
    **work: Any,
) -> None:
    """Which KV format pays on a device and stack: what each takes and gives, and its gain over 16 bits, with intervals.

    A format whose gain's whole interval lies above 1 pays; where it may lie on both sides, it may pay. Those that only
    let more requests run at once buy room. Formats without a known kernel are left out, unless they are named.
    """
    from dse.questions import formats as module
    from dse.specs import catalog
    from dse.specs.measurements import bits_from
    from dse.specs.workload import Workload

    spec, lm, source = catalog.device(device), catalog.model(model), bits_from(bits, measurements)
    found = module.formats(spec, lm, Workload(**work), split_list("formats", names), source, progress_bar)
    _answer(found, as_json, out, static)


@ask.command(short_help="From which batch and prompt on does a quantizer pay?")
@click.option("--against", default="fp16", show_default=True, metavar="Q", help="The quantizer to compare with.")
@click.option(
    "--measure", default="throughput", show_default=True, metavar="throughput|step", help="What must be better."
)
@click.option("--batches", metavar="1,16", help="Batches to search prompts at; batches are searched up to the largest.")
@click.option(
    "--inputs", metavar="512,8192", help="Prompts to search batches at; prompts are searched up to the largest."
)
@question_options("batch", "input_tokens")
def cross(
    device: str,
    model: str,
    quantizer: str,
    key_quantizer: str | None,
    value_quantizer: str | None,
    against: str,
    measure: str,
    batches: str | None,
    inputs: str | None,
    bits: str,
    measurements: str | None,
    as_json: bool,
    out: str | None,
    static: str,
    **work: Any,
) -> None:
    """From which batch (at each prompt length) and from which prompt length (at each batch) does a quantizer pay?

    Every batch is decided and every prompt length, whole numbers. Where it pays the reason is named: a faster step, or
    only capacity (a step is no faster, more requests run at once). A step time counts where the whole batch runs.
    """
    from dse.questions import common, crossing
    from dse.specs import catalog
    from dse.specs.measurements import bits_from
    from dse.specs.workload import Workload

    spec, lm, source = catalog.device(device), catalog.model(model), bits_from(bits, measurements)
    new = common.design(spec, lm, key_quantizer or quantizer, value_quantizer or quantizer, source)
    found = crossing.crossing(
        new,
        common.design(spec, lm, against, bits=source),
        Workload(**work),
        common.measure(measure, crossing.MEASURES),
        _numbers("batches", batches, crossing.BATCHES),
        _numbers("inputs", inputs, crossing.INPUTS),
        progress_bar,
    )
    _answer(found, as_json, out, static)


@ask.command(short_help="The smallest device number, or the most bits, that meets a target.")
@click.argument("what", metavar="bandwidth|capacity|flops|bits")
@click.option("--throughput", type=float, metavar="X", help="Target: at least so many token/s.")
@click.option(
    "--step-ms", type=float, metavar="X", help="Target: a decode step of the whole batch in at most so many ms."
)
@click.option(
    "--quantizers", metavar="A,B", help="For bits: quantizers to choose from; default: those of `ask formats`."
)
@question_options()
def need(
    what: str,
    device: str,
    model: str,
    quantizer: str,
    key_quantizer: str | None,
    value_quantizer: str | None,
    throughput: float | None,
    step_ms: float | None,
    quantizers: str | None,
    bits: str,
    measurements: str | None,
    as_json: bool,
    out: str | None,
    static: str,
    **work: Any,
) -> None:
    """The smallest bandwidth, capacity or peak FLOP/s of a device that meets a target, and what stops a smaller one.

    All else is as the device has it. `need bits` names the quantizer with most stored bits that meets the target: how
    far the cache must be compressed. Where no value does, that is the answer, with what stands in the way.
    """
    from dse.core.errors import InputError
    from dse.questions import common
    from dse.questions import need as needs
    from dse.specs import catalog
    from dse.specs.measurements import bits_from
    from dse.specs.workload import Workload

    goal = needs.target(throughput, step_ms)
    spec, lm, source = catalog.device(device), catalog.model(model), bits_from(bits, measurements)
    point = Workload(**work)
    found: needs.Need | needs.NeedBits
    if what == "bits":
        if bits == "measured" and quantizers is None:
            raise InputError("bits = measured: not every family is measured: name some with --quantizers")
        names = split_list("quantizers", quantizers)
        designs = (
            [common.design(spec, lm, name, bits=source) for name in names]
            if names
            else (needs.candidates(spec, lm, point, source))
        )
        found = needs.most_bits(designs, point, goal, progress_bar)
    else:
        one = common.design(spec, lm, key_quantizer or quantizer, value_quantizer or quantizer, source)
        found = needs.smallest(one, point, what, goal, progress_bar)
    _answer(found, as_json, out, static)


@ask.command(short_help="Which assumption moves a result, or which design wins?")
@click.option("--against", metavar="Q", help="A second quantizer on the same device: does the better one change?")
@click.option(
    "--measure", default="throughput", show_default=True, metavar="throughput|step|energy|cost", help="The result."
)
@click.option(
    "--range", "ranges", multiple=True, metavar="NAME=LOW:HIGH", help="A range of your own: x0.5:x2, 1TB/s:2TB/s."
)
@question_options()
def sensitivity(
    device: str,
    model: str,
    quantizer: str,
    key_quantizer: str | None,
    value_quantizer: str | None,
    against: str | None,
    measure: str,
    ranges: tuple[str, ...],
    bits: str,
    measurements: str | None,
    as_json: bool,
    out: str | None,
    static: str,
    **work: Any,
) -> None:
    """Vary every number of the device that a result rests on inside its range, one at a time.

    Ranges by kind: assumed half to twice, derived 0.8 to 1.25, measured 0.9 to 1.1, published 0.95 to 1.05, datasheet
    as printed; fitted parameters within the error of their fit; usable_frac 0.8 to 1, runtime_overhead 0 to 4 GB; peak
    rates of the ideal model down to half; outliers and sinks as nominal or as measured (`--measurements`).
    """
    from dse.questions import common
    from dse.questions import sensitivity as module
    from dse.specs import catalog
    from dse.specs.measurements import bits_from
    from dse.specs.workload import Workload

    spec, lm, source = catalog.device(device), catalog.model(model), bits_from(bits, measurements)
    one = common.design(spec, lm, key_quantizer or quantizer, value_quantizer or quantizer, source)
    other = common.design(spec, lm, against, bits=source) if against else None
    counted = []
    if bits == "closed":
        counted = [module.with_measured_bits(each, measurements) for each in (one, other) if each]
    found = module.sensitivity(one, Workload(**work), common.measure(measure), other, ranges, progress_bar, counted)
    _answer(found, as_json, out, static)


@ask.command("map", short_help="The best quantizer over batch and prompt length.")
@click.option(
    "--quantizers", metavar="A,B", help="Quantizers to choose from; default: fp16,fp8,kivi:bits=4,qserve,nqkv,oaken."
)
@click.option(
    "--measure",
    default="throughput",
    show_default=True,
    metavar="throughput|step|energy|cost",
    help="What must be best.",
)
@click.option("--batches", metavar="1,16", help="Batches; default: powers of two from 1 to 256.")
@click.option("--inputs", metavar="512,8192", help="Prompt tokens; default: powers of two from 256 to 32,768.")
@question_options("batch", "input_tokens", "quantizer", "key_quantizer", "value_quantizer")
def map_(
    device: str,
    model: str,
    quantizers: str | None,
    measure: str,
    batches: str | None,
    inputs: str | None,
    bits: str,
    measurements: str | None,
    as_json: bool,
    out: str | None,
    static: str,
    **work: Any,
) -> None:
    """Which of several quantizers is best at each batch and prompt length, and by how much over FP16? Ties name all."""
    from dse.questions import best_map, common
    from dse.specs import catalog
    from dse.specs.measurements import bits_from
    from dse.specs.workload import Workload

    spec, lm, source = catalog.device(device), catalog.model(model), bits_from(bits, measurements)
    names = split_list("quantizers", quantizers) or list(best_map.QUANTIZERS)
    found = best_map.best_map(
        [common.design(spec, lm, name, bits=source) for name in names],
        Workload(**work),
        common.measure(measure),
        _numbers("batches", batches, best_map.BATCHES),
        _numbers("inputs", inputs, best_map.INPUTS),
        progress_bar,
    )
    _answer(found, as_json, out, static)


@ask.command(short_help="What do requests wait as more of them come a second?")
@click.option("--loads", metavar="0.2,0.8", help="Shares of what a full server serves; default: ten from 0.05 to 0.9.")
@question_options()
def load(
    device: str,
    model: str,
    quantizer: str,
    key_quantizer: str | None,
    value_quantizer: str | None,
    loads: str | None,
    bits: str,
    measurements: str | None,
    as_json: bool,
    out: str | None,
    static: str,
    **work: Any,
) -> None:
    """Time per output token and to the first of requests that come at random, at shares of what a full server serves.

    In closed form, for requests of equal lengths; `dse simulate --rate` runs other lengths one by one.
    """
    from dse.questions import common
    from dse.questions import load as loaded
    from dse.specs import catalog
    from dse.specs.measurements import bits_from
    from dse.specs.workload import Workload

    spec, source = catalog.device(device), bits_from(bits, measurements)
    one = common.design(spec, catalog.model(model), key_quantizer or quantizer, value_quantizer or quantizer, source)
    shares = [parse_share("loads", text) for text in split_list("loads", loads) or []] or loaded.LOADS
    _answer(loaded.under_load(spec, one.plan, Workload(**work), shares), as_json, out, static)


@ask.command(short_help="How many devices does a batch need, and how split?")
@click.option("--most", type=WHOLE, help="Devices at most; default: 16, or fewer where the device's file says so.")
@question_options("tp", "pp", "pp_batches", "out", "static")
def devices(
    device: str,
    model: str,
    quantizer: str,
    key_quantizer: str | None,
    value_quantizer: str | None,
    most: int | None,
    bits: str,
    measurements: str | None,
    as_json: bool,
    **work: Any,
) -> None:
    """Every split of a model by tp and pp over up to so many devices: what each holds, a step, throughput, price.

    A batch that does not fit at once on fewer runs in waves there; the answer is the fewest that hold all of it.
    """
    from dse.questions import common
    from dse.questions.devices import devices as split
    from dse.specs import catalog
    from dse.specs.measurements import bits_from
    from dse.specs.workload import Workload

    spec, source = catalog.device(device), bits_from(bits, measurements)
    one = common.design(spec, catalog.model(model), key_quantizer or quantizer, value_quantizer or quantizer, source)
    found = split(spec, one.plan, Workload(**work), most)
    click.echo(json.dumps(found.to_json(), indent=2, allow_nan=False) if as_json else found.text())
