"""Options and values that several commands share."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from dse.core.errors import InputError, show
from dse.specs import workload

F = TypeVar("F", bound=Callable[..., Any])

#: options of quantizers -> the engines' options for the same, and what they ask
_QUANTIZERS = {
    "quantizer": (
        ("--kv-cache-dtype",),
        "KV quantizer with parameters, e.g. oaken or sinkq:bits=2,group=32, or as engines call it, e.g. fp8_e4m3 "
        "(`dse list quantizers`), or plan:FILE.toml.",
    ),
    "key_quantizer": (("--cache-type-k", "-ctk"), "Quantizer of the keys, if different."),
    "value_quantizer": (("--cache-type-v", "-ctv"), "Quantizer of the values, if different."),
}


def command_line() -> str:
    """The command that runs, as it would be typed again."""
    import shlex

    context = click.get_current_context(silent=True)
    args = context.find_root().obj if context else None
    words = args if isinstance(args, list) else [word for word in sys.argv[1:] if word != "--debug"]
    return shlex.join(["dse", *words])


def new_file(out: str, force: bool) -> Path:
    """The .toml file that a command is to write. Raises InputError where it exists, unless by `force`."""
    if not out.lower().endswith(".toml") or "\0" in out:
        raise InputError(f"out = {show(out)}: must end in .toml")
    path = Path(out)
    if path.is_dir():
        raise InputError(f"out = {show(out)}: is a directory: give a file in it")
    if not force and os.path.lexists(path):
        raise InputError(f"out = {show(out)}: exists: give another --out, or --force to replace it")
    return path


def as_typed(path: Path) -> str:
    """A path as an option takes it, never to be taken for a name."""
    import shlex

    text = str(path)
    return shlex.quote(text if os.sep in text else f".{os.sep}{text}")


class Whole(click.ParamType):
    """A whole number in ASCII digits; its range is checked where the workload is built."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or InputError naming the option; a default is an int already."""
        return value if isinstance(value, int) else parse_whole(_option(param), value)


def _option(param: click.Parameter | None) -> str:
    return param.opts[0].removeprefix("--") if param and param.opts else "value"


def parse_whole(name: str, text: str) -> int:
    """ASCII digits as an integer. Raises InputError naming the option."""
    if not re.fullmatch(r"[-+]?[0-9]{1,30}", text, re.ASCII):
        raise InputError(f"{name} = {show(text)}: must be a whole number, such as 64")
    return int(text)


WHOLE = Whole()


class Share(click.ParamType):
    """A decimal number in ASCII digits; its range is checked where the workload is built."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or InputError naming the option."""
        return value if isinstance(value, float) else parse_share(_option(param), value)


def parse_share(name: str, text: str) -> float:
    """ASCII digits with a decimal point as a number. Raises InputError naming the option."""
    if not re.fullmatch(r"[-+]?[0-9]{1,30}(\.[0-9]{0,30})?", text, re.ASCII):
        raise InputError(f"{name} = {show(text)}: must be a share from 0 to 1, such as 0.5")
    return float(text)


SHARE = Share()


def split_list(option: str, text: str | None) -> list[str] | None:
    """The names given to `--option`, separated by commas; the commas inside `sinkq:bits=2,group=32` do not separate."""
    if text is None:
        return None
    names = [part.strip() for part in re.split(r",(?!\s*[a-z_]+=)", text)]
    if not all(names):
        raise InputError(f"{option} = {show(text)}: has an empty entry: separate names by single commas")
    return names


#: fields of a workload that say how times are modelled
_OF_MODEL = ("model_kind", "stack", "implementation", "strict_kernels")


def work_option(name: str, **changed: Any) -> Callable[[F], F]:
    """The option of a field of a workload; `changed` is what a command asks otherwise."""
    asked = workload.ASKED[name]
    given: dict[str, Any] = {"default": asked.default, "help": asked.help}
    if asked.kind == workload.SWITCH:
        return click.option(f"--{asked.option}/--no-{asked.option}", name, **{**given, **changed})
    whole = asked.kind == workload.WHOLE or (asked.kind == workload.CHOICE and isinstance(asked.default, int))
    if whole:
        given["type"] = WHOLE
    elif asked.kind == workload.SHARE:
        given["type"] = SHARE
    if not whole:
        given["metavar"] = asked.metavar or "|".join(map(str, asked.choices))
    return click.option(f"--{asked.option}", name, **{**given, "show_default": asked.default is not None, **changed})


def _all_of(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    def decorated(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


def quantizer_option(name: str = "quantizer") -> Callable[[F], F]:
    """The option of a quantizer, of both sides or of one, which has the engines' names too."""
    engines, text = _QUANTIZERS[name]
    default: dict[str, Any] = {"default": "fp16", "show_default": True} if name == "quantizer" else {}
    return click.option(f"--{name.replace('_', '-')}", *engines, name, metavar="Q", help=text, **default)


def quantizer_options(function: F) -> F:
    """The options of the quantizer, and of that of keys and of values where they differ."""
    return _all_of([quantizer_option(name) for name in _QUANTIZERS])(function)


def _assume_like(ctx: click.Context, param: click.Parameter, value: str) -> None:
    from dse.specs.huggingface import config

    token = config.ASSUMED_LIKE.set(config.check_like(value))
    ctx.call_on_close(lambda: config.ASSUMED_LIKE.reset(token))


def assume_like_option(function: F) -> F:
    """The option that says as what a config.json of an unknown model_type is read."""
    return click.option(
        "--assume-like",
        default="",
        metavar="TYPE",
        expose_value=False,
        is_eager=True,
        callback=_assume_like,
        help="Read a config.json of an unknown model_type as one of this type, such as llama.",
    )(function)


def lm_option(required: bool) -> Callable[[F], F]:
    """The options of the language model: which, and as what a file of an unknown model_type is read."""
    text = "Model name, .toml file or config.json."
    which = click.option("--model", required=required, metavar="NAME|FILE", help=text)
    return lambda function: which(assume_like_option(function))


def workload_options(function: F) -> F:
    """The options that describe a design point, shared by commands: what it is, and each field of its workload."""
    return _all_of(
        [
            click.option("--device", required=True, metavar="NAME|FILE", help="Device name or .toml file."),
            lm_option(required=True),
            *(quantizer_option(name) for name in _QUANTIZERS),
            *(work_option(name) for name in workload.ASKED if name not in _OF_MODEL),
        ]
    )(function)


def memory_options(function: F) -> F:
    """The options that say how memory is counted."""
    return _all_of([work_option(name) for name in workload.MEMORY])(function)


def deployment_options(function: F) -> F:
    """The options that say how a model lies on several devices."""
    return _all_of([work_option(name) for name in workload.DEPLOYMENT])(function)


def refused_deployment(function: F) -> F:
    """The same, not shown in the help of a command that refuses them and says why."""
    return _all_of([work_option(name, hidden=True) for name in workload.DEPLOYMENT])(function)


def model_options(function: F) -> F:
    """The options that say how times are modelled."""
    return _all_of([work_option(name) for name in _OF_MODEL])(function)


def bits_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say where bits and errors come from."""
    function = click.option(
        "--measurements",
        metavar="FILE",
        help="measurement.json of `dse measure` or `dse quantize`; default: of the synthetic sample that ships.",
    )(function)
    return click.option(
        "--bits",
        default="closed",
        show_default=True,
        metavar="closed|measured",
        help="Nominal outlier and sink counts, or those that the measured data had.",
    )(function)


def duration(seconds: float) -> str:
    """A time to wait: 20 s, 3 min, 5.2 h, 12 days."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:.2g} s"


#: letters beside a progress bar
MAX_AT_WORK = 60


def progress_bar(items: Iterable[Any], label: str, length: int) -> Any:
    """A progress bar on the terminal; nothing where standard error is not one."""
    return click.progressbar(
        items,
        length=length,
        label=label,
        hidden=not sys.stderr.isatty(),
        file=sys.stderr,
        show_pos=True,
        item_show_func=_at_work,
    )


def _at_work(item: Any) -> str:
    """What a progress bar says of an item: its name, the names of a tuple's parts; nothing of what has none."""
    if isinstance(item, tuple):
        return " ".join(filter(None, map(_at_work, item)))[:MAX_AT_WORK]
    name = getattr(item, "name", None)
    if not isinstance(name, str):  # what is made to be read has a __str__ of its own
        name = str(item) if type(item).__str__ is not object.__str__ else ""
    return name[:MAX_AT_WORK]
