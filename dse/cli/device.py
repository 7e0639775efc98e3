"""`dse device add`: a device file from the few numbers that a user has."""

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from dse.cli.options import as_typed, new_file
from dse.core.errors import InputError


class _Number(NamedTuple):
    """A number of a device: its field, its option, and an example."""

    field: str
    option: str
    example: str
    help: str
    #: what there is not without it
    without: str = ""


_NUMBERS = (
    _Number("memory_capacity", "memory", "80 GB", "Memory"),
    _Number("memory_bandwidth", "bandwidth", "3.35 TB/s", "Peak bandwidth of the memory"),
    _Number("peak_flops", "flops", "989 TFLOP/s", "Peak rate of dense FP16 products"),
    _Number("peak_flops_fp8", "flops-fp8", "1979 TFLOP/s", "The same in FP8, if it has it"),
    _Number("peak_flops_fp4", "flops-fp4", "4500 TFLOP/s", "The same in FP4, if it has it"),
    _Number("peak_ops_int8", "ops-int8", "1979 TOP/s", "The same in INT8, if it has it"),
    _Number("n_cores", "cores", "132", "Cores (a GPU's SMs)", "quantizers unpack at a rate assumed from the memory's"),
    _Number("core_clock", "clock", "1.98 GHz", "Boost clock of a core"),
    _Number("board_power", "power", "700 W", "Power of the whole board", "no energy"),
    _Number("link_bandwidth", "link", "450 GB/s", "Bandwidth to other devices, one direction"),
    _Number("reported_memory", "reported-memory", "79.2 GiB", "Memory as torch.cuda.mem_get_info reports it"),
    _Number("usd_per_hour", "price", "3 USD/h", "Price of an hour", "no costs"),
)


@click.group(short_help="Make device files.")
def device() -> None:
    """Make device files."""


def _number_options(function: Callable[..., None]) -> Callable[..., None]:
    for one in reversed(_NUMBERS):
        text = f'{one.help}, such as "{one.example}".'
        function = click.option(f"--{one.option}", one.field, metavar="NUMBER", help=text)(function)
    return function


@device.command(short_help="A device file from a few numbers.")
@click.argument("name")
@_number_options
@click.option("--like", metavar="DEVICE", help="Shipped device whose fitted kernels and other numbers are borrowed.")
@click.option("--datasheet", metavar="TEXT", help="Data sheet that the numbers are from; default: they are assumed.")
@click.option("--out", metavar="FILE.toml", help="Device file to write; default: the name, in this directory.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def add(
    name: str, like: str | None, datasheet: str | None, out: str | None, force: bool, as_json: bool, **texts: str | None
) -> None:
    """Write a device file that --device takes, from numbers with their units.

    --memory, --bandwidth and --flops are needed; a terminal is asked for those not given.
    """
    from dse.core import files, specfile
    from dse.specs import catalog, device_file

    if datasheet is not None and not 0 < len(datasheet.strip()) <= 300:
        raise InputError("datasheet: must have 1 to 300 letters, such as its title and date")
    device_file.check_name(name)
    path = new_file(out or f"{name.lower()}.toml", force)
    given = {}
    for one in _NUMBERS:
        text = texts[one.field]
        if text is not None:
            given[one.field] = _number(one, text, datasheet)
    missing = [one for one in _NUMBERS if device_file.is_needed(one.field) and one.field not in given]
    if missing and not _is_terminal():
        options = " ".join(f'--{one.option} "{one.example}"' for one in missing)
        raise InputError(f"{', '.join(one.option for one in missing)}: not given: add {options}")
    borrowed = device_file.borrow(like, given) if like is not None else None  # refused before anything is asked
    for one in missing:
        given[one.field] = _asked(one, datasheet)
    given = {one.field: given[one.field] for one in _NUMBERS if one.field in given}
    if like is not None:  # in proportion to what was answered
        borrowed = device_file.borrow(like, given)
    content = device_file.text(name, given, borrowed)
    found = catalog.device_from(specfile.parse(str(path), content))
    files.write(path, content.encode())
    warnings = [*found.warnings(), *(borrowed.warnings if borrowed else ())]
    if name.lower() in catalog.device_files():
        warnings.append(f"a device {name.lower()} ships: --device {name.lower()} still means that one")
    left_out = [one for one in _NUMBERS if one.without and getattr(found, one.field) is None]
    following = f"dse point --device {as_typed(path)} --model llama3.1-8b"
    if as_json:
        numbers = {field: _text(number) for field, number in given.items()}
        lent = borrowed and {"from": borrowed.name, "stacks_of": borrowed.stacks_of, "fields": list(borrowed.fields)}
        document = {
            "device": name,
            "file": str(path),
            "given": numbers,
            "borrowed": lent,
            "left_out": [one.field for one in left_out],
            "warnings": warnings,
            "next": following,
        }
        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    click.echo(f"{name}: " + ", ".join(f"{field} {_text(number)}" for field, number in given.items()))
    if borrowed:
        kernels = f"fitted kernels of {borrowed.stacks_of}" if borrowed.stacks_of else "no fitted kernels: it has none"
        click.echo(f"borrowed from {borrowed.name}, assumed here: {kernels}; {', '.join(borrowed.fields)}")
    for one in left_out:
        click.echo(f"without --{one.option}: {one.without}")
    for warning in warnings:
        click.echo(f"Warning: {warning}")
    click.echo(f"device file: {path}\nnext: {following}")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _text(number: Any) -> str:
    return f"{number.value:g} {number.unit}"


def _number(one: _Number, text: str, datasheet: str | None) -> Any:
    from dse.specs import device_file

    try:
        return device_file.number(one.field, text, datasheet)
    except InputError as error:
        raise InputError(f"{one.option} = {error}") from None


def _asked(one: _Number, datasheet: str | None) -> Any:
    """The answer of who sits at the terminal, asked again until it is a number of that kind."""

    def checked(text: str) -> Any:
        try:
            return _number(one, text, datasheet)
        except InputError as error:
            raise click.BadParameter(error.lines()[0]) from None

    # on standard error: what is printed may be read by a program
    return click.prompt(f"{one.help}, such as {one.example}", value_proc=checked, err=True)
