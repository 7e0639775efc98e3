"""The `dse` command: a command for each operation. Heavy libraries are imported inside the operations."""

import importlib
import re
import sys
import warnings
from collections.abc import Iterator, MutableMapping

import click

from dse.cli.commands import command_of
from dse.cli.docs import docs
from dse.core import interrupt
from dse.core.errors import OutputError, clean, did_you_mean, show, told
from dse.core.version import VERSION
from dse.operations.declare import Operation
from dse.specs import engine_options

#: groups of commands: the line of the list, and the help
GROUPS = {
    "ask": (
        "Questions by name.",
        "Questions by name, each a text, JSON (--json), or a figure with its table (--out DIR).",
    ),
    "device": ("Make device files.", "Make device files."),
    "model": ("Make model files.", "Make model files of models that the tool knows or reads."),
    "predict": (
        "Predict kernel times with calibrated parameters.",
        "Predict kernel times with a device's calibrated parameters.",
    ),
    "validate": (
        "Published claims and measured kernels beside our values.",
        "Published claims and measured kernels beside our values. A missed row is no failure of a command.",
    ),
}
#: words of each command -> its operation, imported when the command is asked for
OPERATIONS = {
    "recommend": "recommend.Recommend",
    "point": "point.EvaluatePoint",
    "ask formats": "questions.CompareFormats",
    "ask cross": "questions.FindCrossover",
    "ask need": "questions.FindNeed",
    "ask sensitivity": "questions.VaryDevice",
    "ask doubt": "questions.VaryAssumptions",
    "ask map": "questions.MapBest",
    "ask load": "questions.PredictLoad",
    "ask hits": "questions.FindHits",
    "ask interactivity": "questions.TradeSpeeds",
    "scores": "scores.FindScores",
    "sweep": "sweeps.RunSweep",
    "pareto": "sweeps.FindFront",
    "traffic": "serving.DescribeTraffic",
    "simulate": "serving.SimulateServing",
    "ring": "serving.EvaluateRing",
    "report": "pages.WriteReport",
    "plot": "pages.DrawFigure",
    "quantize": "dumps.QuantizeDump",
    "thresholds": "dumps.ProfileThresholds",
    "measure": "dumps.MeasureDump",
    "dump": "language_models.DumpModel",
    "synthesize": "dumps.SynthesizeDump",
    "lab": "dumps.InspectQuantizer",
    "mix": "dumps.MixLayers",
    "study": "dumps.StudyModel",
    "list": "catalog.ListCatalog",
    "show": "catalog.ShowEntry",
    "check": "catalog.CheckFile",
    "check-log": "logs.CheckLog",
    "device add": "catalog.AddDevice",
    "model add": "catalog.AddModel",
    "model export": "catalog.ExportModel",
    "calibrate": "calibration.CalibrateDevice",
    "calibrate server": "calibration.CalibrateServer",
    "predict attention": "calibration.PredictAttention",
    "validate claims": "validation.CheckClaims",
    "validate silicon": "validation.CheckSilicon",
    "validate report": "validation.WriteValidation",
    "validate serving": "validation.CheckServing",
    "validate gains": "validation.CheckGains",
    "validate speed": "validation.CheckSpeed",
}


#: headings of the help, and the commands that stand under each; of `ask` those below it
SECTIONS = {
    "One design": ("point", "scores"),
    "Questions": ("recommend", "ask"),
    "Serving": ("simulate", "traffic", "ring", "check-log"),
    "Many designs": ("sweep", "pareto", "report", "plot"),
    "KV formats on your own data": ("dump", "synthesize", "thresholds", "measure", "quantize", "lab", "mix", "study"),
    "Devices, models, formats by name": ("list", "show", "check", "device", "model"),
    "Calibration and validation": ("calibrate", "calibrate server", "predict", "validate"),
    "Pages and agents": ("app", "docs", "mcp"),
}


class _Commands(MutableMapping[str, click.Command]):
    """The commands of a group by name: those given, and those of operations, each made when it is first asked for."""

    def __init__(self, group: str = "") -> None:
        words = [command.rpartition(" ") for command in OPERATIONS]
        # where the first word is a command by itself, both are one name: calibrate server
        words = [
            (above, "", name) if above in GROUPS else ("", "", f"{above} {name}".lstrip()) for above, _, name in words
        ]
        self._made: dict[str, click.Command | None] = {name: None for above, _, name in words if above == group}
        self._above = f"{group} ".lstrip()

    def __getitem__(self, name: str) -> click.Command:
        made = self._made[name]
        if made is None:
            made = self._made[name] = command_of(operation_of(self._above + name))
        return made

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def operation_of(words: str) -> type[Operation]:
    """The operation that a command's words start."""
    module, _, name = OPERATIONS[words].partition(".")
    operation: type[Operation] = getattr(importlib.import_module(f"dse.operations.{module}"), name)
    return operation


class _Tool(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, a line each; those of `ask` by both words."""
        rows = {name: self._rows(name) for name in self.commands}
        width = max(len(words) for group in rows.values() for words, _ in group)
        placed = {name for names in SECTIONS.values() for name in names}
        for title, names in {**SECTIONS, "Others": tuple(name for name in rows if name not in placed)}.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(words.ljust(width), says) for name in names for words, says in rows[name]])

    def _rows(self, name: str) -> list[tuple[str, str]]:
        """Words and line of a command, of `ask` those of its questions."""
        command = self.commands[name]
        if name == "ask" and isinstance(command, click.Group):
            return [(f"{name} {below}", cmd.get_short_help_str(200)) for below, cmd in command.commands.items()]
        return [(name, command.get_short_help_str(200))]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command of two words before that of the first."""
        both = " ".join(args[:2])
        return super().resolve_command(ctx, [both, *args[2:]] if both in self.commands else args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before click adds an empty line
            interrupt.say()
            ctx.exit(interrupt.STATUS)


@click.group(
    cls=_Tool,
    commands=_Commands(),
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        # engines write --max_model_len too
        "token_normalize_func": lambda word: word.replace("_", "-"),
    },
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


def _add_groups() -> None:
    """Add the groups, each shows its help where none of its commands is named."""

    def show_help() -> None:
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is None:
            click.echo(ctx.get_help())

    for name, (short, text) in GROUPS.items():
        commands = _Commands(name)
        cli.add_command(
            click.Group(name, commands, callback=show_help, invoke_without_command=True, help=text, short_help=short)
        )


_add_groups()
cli.add_command(docs)


@cli.command(context_settings={"ignore_unknown_options": True}, short_help="Open the explorer in a browser.")
@click.argument("streamlit_args", nargs=-1, type=click.UNPROCESSED)
def app(streamlit_args: tuple[str, ...]) -> None:
    """Open the explorer in a browser; it listens on this machine only unless you give another --server.address.

    Options such as --server.port 8600 go to Streamlit.
    """
    from dse.explorer import launch

    launch.serve(list(streamlit_args))


@cli.command(short_help="Serve agents over the Model Context Protocol.")
@click.option(
    "--files",
    metavar="DIR",
    help="Folder whose files an agent may name: logs, devices, models; default: no file is read.",
)
def mcp(files: str | None) -> None:
    """Serve agents over the Model Context Protocol (MCP), on standard input and output.

    An agent's program starts it: docs/how-to/agents.md says how. Its tools are commands with their fields; none of
    them writes a file.
    """
    from dse import agents

    interrupt.at_once()
    if sys.stdin is not None and sys.stdin.isatty():
        click.echo("speaks MCP on standard input and output, for an agent's program that starts it", err=True)
    agents.serve([operation_of(words) for words in agents.TOOLS], files)


def _usage_line(error: click.ClickException) -> str:
    """click's multi-line complaint as one line with a next step."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "dse"
    if isinstance(error, click.NoSuchOption):
        known = [name for param in ctx.command.params for name in param.opts] if ctx else []
        typed = ctx.find_root().obj if ctx else None
        name = error.option_name
        if len(name) == 2:  # of -tp click names a letter alone
            near = [word for word in typed or () if re.fullmatch(rf"-\w*{re.escape(name[1])}\w*", word)]
            near.sort(key=lambda word: (not engine_options.answer(word), not word.startswith(name)))
            name = next(iter(near), name)
        if says := engine_options.answer(name):
            return f"option {show(name)} {says}"
        return f"unknown option {show(name)}: {did_you_mean(name, known)}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        what = error.param.metavar or (error.param.opts or ["argument"])[0]
        name = error.param.opts[0] if error.param.param_type_name == "option" else what
        return f"{name} is missing: see {path} --help"
    message = error.format_message().rstrip(".")
    unknown = re.match(r"No such command '(.*?)'", message, re.S)
    if unknown:
        group = ctx.command if ctx and isinstance(ctx.command, click.Group) else cli
        return f"unknown command {show(unknown[1])}: {_meant(unknown[1], group)}"
    return f"{message[:1].lower()}{message[1:]}: see {path} --help"


def _meant(word: str, group: click.Group) -> str:
    """The commands that say of themselves what was typed, as front and trace; else those of a name near it."""
    says = re.compile(rf"\b{re.escape(word)}", re.I)
    matches = [name for name, command in group.commands.items() if says.search(command.get_short_help_str(200))]
    return f"did you mean {', '.join(matches)}?" if 0 < len(matches) <= 3 else did_you_mean(word, group.commands)


def main(argv: list[str] | None = None) -> None:
    """Entry point: run a command, show any error as a line, return the documented exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    interrupt.begin()
    # a word of pandas to who writes code
    warnings.filterwarnings("ignore", message="DataFrame is highly fragmented")
    try:
        if sys.stdout is None:
            raise OutputError("standard output is closed: nothing can be printed: leave out >&-, or use >/dev/null")
        words = engine_options.spelled_out(args)
        if near := next((word for word in words if engine_options.is_cut(word)), ""):
            raise click.NoSuchOption(near)
        status = cli.main(args=words, prog_name="dse", standalone_mode=False, obj=words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone (`dse ... | head`)
        sys.stderr.close()
        status = 0
    except (click.Abort, KeyboardInterrupt):
        interrupt.say()
        status = interrupt.STATUS
    except Exception as error:  # the last line of defense: one line instead of a traceback
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
    if isinstance(error, click.ClickException):
        return [clean(_usage_line(error), 300)], 2
    return told(error)
