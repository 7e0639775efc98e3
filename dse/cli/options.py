"""Options and values that several commands share."""

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from dse.core.errors import InputError, show

_QUANTIZER_HELP = (
    "KV quantizer with parameters, e.g. oaken or sinkq:bits=2,group=32 (`dse list quantizers`), or plan:FILE.toml."
)


def command_line() -> str:
    """The command that runs, as it would be typed again."""
    import shlex

    context = click.get_current_context(silent=True)
    args = context.find_root().obj if context else None
    words = args if isinstance(args, list) else [word for word in sys.argv[1:] if word != "--debug"]
    return shlex.join(["dse", *words])


class Whole(click.ParamType):
    """A whole number in ASCII digits; its range is checked where the workload is built."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or InputError; a default is an int already."""
        name = param.name if param and param.name else "value"
        return value if isinstance(value, int) else parse_whole(name.removesuffix("_tokens"), value)


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
        if isinstance(value, float):
            return value
        if not re.fullmatch(r"[-+]?[0-9]{1,30}(\.[0-9]{0,30})?", value, re.ASCII):
            name = param.opts[0].removeprefix("--") if param and param.opts else "value"
            raise InputError(f"{name} = {show(value)}: must be a share from 0 to 1, such as 0.5")
        return float(value)


SHARE = Share()


def split_list(option: str, text: str | None) -> list[str] | None:
    """The names given to `--option`, separated by commas; the commas inside `sinkq:bits=2,group=32` do not separate."""
    if text is None:
        return None
    names = [part.strip() for part in re.split(r",(?!\s*[a-z_]+=)", text)]
    if not all(names):
        raise InputError(f"{option} = {show(text)}: has an empty entry: separate names by single commas")
    return names


def workload_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that describe a design point, shared by commands."""
    options = [
        click.option("--device", required=True, metavar="NAME|FILE", help="Device name or .toml file."),
        click.option("--model", required=True, metavar="NAME|FILE", help="Model name, .toml file or config.json."),
        click.option("--quantizer", default="fp16", show_default=True, metavar="Q", help=_QUANTIZER_HELP),
        click.option("--key-quantizer", metavar="Q", help="Quantizer of the keys, if different."),
        click.option("--value-quantizer", metavar="Q", help="Quantizer of the values, if different."),
        click.option("--batch", type=WHOLE, default=1, show_default=True, help="Requests."),
        click.option("--input", "input_tokens", type=WHOLE, default=1024, show_default=True, help="Prompt tokens."),
        click.option(
            "--output", "output_tokens", type=WHOLE, default=1024, show_default=True, help="Generated tokens."
        ),
        click.option("--weights-bits", type=WHOLE, default=16, show_default=True, help="Bits a weight: 16, 8 or 4."),
        click.option(
            "--activation-bits", type=WHOLE, default=16, show_default=True, help="Bits of activations: 16, or 8 (W8A8)."
        ),
        click.option(
            "--admission",
            default="reserve",
            show_default=True,
            metavar="reserve|paged",
            help="Memory held from the start, or page by page.",
        ),
        click.option("--page", "page_tokens", type=WHOLE, default=16, show_default=True, help="Tokens of a page."),
        click.option(
            "--prefix",
            "prefix_tokens",
            type=WHOLE,
            default=0,
            show_default=True,
            help="Prompt tokens that all requests share.",
        ),
        click.option(
            "--tokens",
            default="full",
            show_default=True,
            metavar="POLICY",
            help="Which tokens are stored and read, e.g. snapkv:share=0.16 (`dse list tokens`).",
        ),
        click.option(
            "--prompt-chunk",
            "prompt_chunk_tokens",
            type=WHOLE,
            default=1,
            show_default=True,
            help="Prompt tokens of a request whose activations are in memory at once.",
        ),
        click.option("--kv-cache/--no-kv-cache", default=True, help="Without: each step runs the whole prefix."),
        click.option(
            "--cached-input-discount",
            type=SHARE,
            metavar="FRAC",
            help="Price a cached input token so much cheaper, 0 to 1, in place of what sharing the prefix saves (the "
            "default), which may be more.",
        ),
        click.option(
            "--dequant-path",
            metavar="engine|fused|materialised",
            help="How stored keys and values are unpacked; default: as the device says.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def model_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say how times are modelled."""
    function = click.option("--stack", metavar="vllm|sglang|...", help="Software stack of the calibrated model.")(
        function
    )
    return click.option(
        "--model-kind",
        default="auto",
        show_default=True,
        metavar="ideal|calibrated",
        help="Peak rates, or kernels as measured; auto: calibrated where the device has parameters.",
    )(function)


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
