"""The declaration of an operation: its fields with their options, and the words and values they are written as."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

from dse.core.errors import InputError, show
from dse.core.progress import Progress
from dse.specs.look import Look
from dse.specs.workload import ASKED, Workload


@dataclass(frozen=True)
class Kind:
    """A type of option: `parse(option, text)` makes a value of its text, `write(value)` the text again."""

    parse: Callable[[str, str], Any]
    write: Callable[[Any], str] = str


def parse_whole(name: str, text: str) -> int:
    """ASCII digits as an integer. Raises InputError naming the option."""
    if not re.fullmatch(r"[-+]?[0-9]{1,30}", text, re.ASCII):
        raise InputError(f"{name} = {show(text)}: must be a whole number, such as 64")
    return int(text)


def parse_tokens(name: str, text: str) -> int:
    """A number of tokens, also in units of 1,024 as models' lengths are written: 128k. Raises InputError."""
    found = re.fullmatch(r"([0-9]{1,12})([kKmM])", text.strip(), re.ASCII)
    if found:
        return int(found[1]) * (1024 if found[2] in "kK" else 1024**2)
    if not re.fullmatch(r"[-+]?[0-9]{1,30}", text, re.ASCII):
        raise InputError(f"{name} = {show(text)}: must be a whole number of tokens, such as 4096 or 128k (131,072)")
    return int(text)


def parse_bytes(name: str, text: str) -> int:
    """Bytes as a whole number, or in a unit: 40GiB, 40G (the same, as engines read it), 40GB. Raises InputError."""
    from dse.specs.quantity import number_and_unit

    try:
        number, unit = number_and_unit(text) or (math.nan, "")
    except ValueError as error:
        raise InputError(f"{name} = {show(text)}: {error}") from None
    found = re.fullmatch(r"([kKMGT]?)(iB|B)?", unit, re.ASCII)
    if not found or not 0 <= number < math.inf:
        raise InputError(f"{name} = {show(text)}: must be bytes, such as 40GiB, 40GB or 42949672960")
    power = ("", "K", "M", "G", "T").index(found[1].upper())
    return round(number * (1000 if found[2] == "B" else 1024) ** power)


def parse_share(name: str, text: str) -> float:
    """ASCII digits with a decimal point as a number. Raises InputError naming the option."""
    if not re.fullmatch(r"[-+]?[0-9]{1,30}(\.[0-9]{0,30})?", text, re.ASCII):
        raise InputError(f"{name} = {show(text)}: must be a share from 0 to 1, such as 0.5")
    return float(text)


def parse_percent(name: str, text: str) -> float:
    """A share as people write it, 1% or 0.01, from 0 to 1. Raises InputError naming the option."""
    number, percent = text.removesuffix("%").strip(), text.endswith("%")
    is_number = re.fullmatch(r"[0-9]{1,30}(\.[0-9]{0,30})?", number, re.ASCII)
    share = float(number) / (100 if percent else 1) if is_number else math.nan
    if not 0 <= share <= 1:
        raise InputError(f"{name} = {show(text)}: must be a share from 0 to 1, such as 1% or 0.01")
    return share


def parse_number(name: str, text: str) -> float:
    """A decimal number in ASCII digits. Raises InputError naming the option."""
    is_number = re.fullmatch(r"[-+]?[0-9]{1,30}(\.[0-9]{0,30})?(e[-+]?[0-9]{1,3})?", text, re.ASCII | re.I)
    if not is_number or math.isinf(float(text)):
        raise InputError(f"{name} = {show(text)}: must be a number, such as 40 or 1.5e3")
    return float(text)


def parse_names(name: str, text: str) -> tuple[str, ...]:
    """Names between commas; the commas inside `sinkq:bits=2,group=32` do not separate. Raises InputError."""
    names = tuple(part.strip() for part in re.split(r",(?!\s*[a-z_]+=)", text))
    if not all(names):
        raise InputError(f"{name} = {show(text)}: has an empty entry: separate names by single commas")
    return names


def _several(one: Callable[[str, str], Any]) -> Kind:
    return Kind(lambda name, text: tuple(one(name, part) for part in parse_names(name, text)), _joined)


def _joined(values: Iterable[Any]) -> str:
    return ",".join(map(str, values))


TEXT = Kind(lambda name, text: text)
WHOLE = Kind(parse_whole)
TOKENS = Kind(parse_tokens)
BYTES = Kind(parse_bytes)
#: kinds of whole numbers by their unit
BY_UNIT = {"token": TOKENS, "B": BYTES}
SHARE = Kind(parse_share)
PERCENT = Kind(parse_percent, lambda value: f"{100 * value:.10g}%")
NUMBER = Kind(parse_number, lambda value: f"{value:g}")
NAMES = Kind(parse_names, _joined)
WHOLES = _several(parse_whole)
NUMBERS = _several(parse_number)
SHARES = _several(parse_share)
FLAG = Kind(lambda name, text: True)


@dataclass(frozen=True, kw_only=True)
class Option:
    """The option or argument of a field on the command line, and what help says of it."""

    help: str = ""
    kind: Kind = TEXT
    #: the option's name without dashes, where it is not that of the field
    name: str = ""
    #: further spellings, with their dashes
    also: tuple[str, ...] = ()
    #: former spellings, with their dashes: taken, not shown
    former: tuple[str, ...] = ()
    #: heading of a long help that the option stands under; "": that of the command's own options
    group: str = ""
    metavar: str | None = None
    #: the texts that are allowed, where they are few
    choices: tuple[str, ...] = ()
    unit: str = ""
    #: a text that the field takes, and what there is not without it
    example: str = ""
    without: str = ""
    is_argument: bool = False
    #: may be given several times
    is_repeated: bool = False
    #: a page's command says it even at its default
    is_said: bool = False
    shows_default: bool = True
    #: False for what only the command line has, such as --json
    in_python: bool = True
    #: False for what only Python can give, such as a table of one's own
    in_command: bool = True


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """The fields of a workload that an operation takes as options, and how they differ from those of a point."""

    names: tuple[str, ...] = tuple(ASKED)
    #: fields that the operation varies itself -> the field that says over what
    searched: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    helps: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: values of fields that have no option
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: a Python call takes the fields that have no option too
    takes_all: bool = True
    #: options that are refused with a reason, and not shown
    hidden: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """Fields that are parameters in Python: all but those that the operation searches, or those with an option."""
        return tuple(name for name in ASKED if name not in self.searched) if self.takes_all else self.names

    def default(self, name: str) -> Any:
        """The value of a field where the command line does not say it."""
        return self.defaults.get(name, ASKED[name].default)


def option(default: Any = MISSING, help: str = "", kind: Kind = TEXT, **more: Any) -> Any:
    """A field of an operation with its option; without a default it is required."""
    return dataclasses.field(default=default, metadata={"option": Option(help=help, kind=kind, **more)})


def argument(default: Any = MISSING, help: str = "", metavar: str | None = None, **more: Any) -> Any:
    """A field of an operation that the command line takes by its place."""
    return option(default, help, metavar=metavar, is_argument=True, **more)


def look() -> Any:
    """The look of a figure: an option for each of its fields."""
    return dataclasses.field(default=Look(), metadata={"option": Option(in_python=False), "look": True})


def work(*left_out: str, only: Iterable[str] = tuple(ASKED), **more: Any) -> Any:
    """The workload of an operation: options for the fields in `only` but those left out and those it searches."""
    without = {*left_out, *more.get("searched", {})}
    names = tuple(name for name in only if name not in without)
    return dataclasses.field(
        default=Workload(), metadata={"option": Option(), "work": WorkOptions(names=names, **more)}
    )


@dataclass(frozen=True, kw_only=True)
class Console:
    """Callbacks from a running operation to its caller; silent in a library call."""

    #: a progress bar around items
    progress: Progress | None = None
    #: a line beside the result, on standard error
    say: Callable[[str], None] = lambda line: None
    #: a line of the result that is known before its end
    show: Callable[[str], None] = lambda line: None
    #: what to say when the operation is stopped by Ctrl-C
    if_stopped: Callable[[str], None] = lambda line: None
    #: ask for a value that was not given, None where nobody can answer
    ask: Callable[[str, Callable[[str], Any]], Any] | None = None
    #: the command that files name as what made them
    command: str = ""

    @property
    def bar(self) -> Progress:
        """The progress bar, one that shows nothing where there is none."""
        return self.progress or (lambda items, label, length: nullcontext(items))


SILENT = Console()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing that the tool does. Subclasses say by which words it is started, and what it runs."""

    #: words of its command after `dse`
    words: ClassVar[str] = ""
    #: the line of the list of commands
    short: ClassVar[str] = ""
    #: its function in `import dse`, "" where there is none
    function: ClassVar[str] = ""
    #: parameters of that function that may be given by place
    positional: ClassVar[tuple[str, ...]] = ()
    #: spaces by which JSON is indented
    indent: ClassVar[int | None] = 2

    def run(self, console: Console = SILENT) -> Any:
        """Do it and return all that the methods below need. Raises DseError."""
        raise NotImplementedError

    def value(self, outcome: Any) -> Any:
        """The part of an outcome that the Python function returns."""
        return outcome

    def unused(self) -> dict[str, str]:
        """Fields that have no effect beside the others -> why: refused where they are given."""
        return {}

    def lacking(self) -> str:
        """Return the error for an option that a command requires and a call does not; "" if none is missing."""
        return ""

    def context(self) -> AbstractContextManager[Any]:
        """Return the context in which the operation runs."""
        return nullcontext()

    def written(self, outcome: Any, console: Console) -> list[str]:
        """Write the files that were asked for; lines that say which follow the text."""
        return []

    def text(self, outcome: Any) -> str:
        """The result as people read it."""
        return outcome if isinstance(outcome, str) else str(outcome.text())

    def document(self, outcome: Any) -> Any:
        """The result as JSON has it."""
        return outcome.to_json() if hasattr(outcome, "to_json") else outcome

    def status(self, outcome: Any) -> int:
        """The exit status of the command."""
        return 0


Declared = TypeVar("Declared", bound=type[Any])


@dataclass_transform(kw_only_default=True, frozen_default=True)
def operation(
    words: str = "", short: str = "", *, function: str = "", positional: tuple[str, ...] = (), indent: int | None = 2
) -> Callable[[Declared], Declared]:
    """Declare a class as an operation: a frozen dataclass of keyword fields, started by `words` or by `function`.

    A class with neither only holds fields that operations share; it is never made by itself.
    """
    is_made = bool(words or function)

    def declared(cls: Declared) -> Declared:
        cls.words, cls.short, cls.function, cls.positional, cls.indent = words, short, function, positional, indent
        return dataclasses.dataclass(  # type: ignore[return-value]
            init=is_made, repr=is_made, eq=is_made, frozen=True, kw_only=True
        )(cls)

    return declared


def fields_of(cls: type[Operation]) -> list[dataclasses.Field[Any]]:
    """The fields of an operation: arguments, required options, those of its own, those that it shares."""
    known = {field.name: field for field in dataclasses.fields(cls)}
    place = {name: at for at, base in enumerate(cls.__mro__) for name in inspect.get_annotations(base)}
    names = dict.fromkeys(name for base in cls.__mro__ for name in inspect.get_annotations(base) if name in known)
    fields = [known[name] for name in sorted(names, key=place.__getitem__)]
    return sorted(fields, key=lambda field: (not option_of(field).is_argument, not is_required(field)))


def option_of(field: dataclasses.Field[Any]) -> Option:
    """The option of a field."""
    found: Option = field.metadata["option"]
    return found


def is_required(field: dataclasses.Field[Any]) -> bool:
    """True for a field without a default."""
    return field.default is MISSING and field.default_factory is MISSING


def flag_name(field: dataclasses.Field[Any]) -> str:
    """The name of a field's option, without dashes; messages name it."""
    return option_of(field).name or field.name.replace("_", "-")


def work_field(cls: type[Operation]) -> dataclasses.Field[Any] | None:
    """The field of an operation that is its workload."""
    return next((field for field in fields_of(cls) if "work" in field.metadata), None)


def help_of(cls: type[Operation]) -> str:
    """The text of an operation's help: its docstring as far as its examples."""
    return (inspect.getdoc(cls) or "").partition("\n>>>")[0].strip()


def words_of(asked: Operation, said: Iterable[str] = (), without: Collection[str] = ()) -> list[str]:
    """The command that asks for an operation, as words.

    It says the fields of the workload in `said` even at their defaults, and none of those in `without`.
    """
    start, arguments, options = ["dse", *asked.words.split()], list[str](), list[str]()
    for field in fields_of(type(asked)):
        value, form = getattr(asked, field.name), option_of(field)
        if not form.in_command:
            continue
        if "work" in field.metadata:
            for name, each in said_fields(value, field.metadata["work"], said, without):
                options += _option_words(ASKED[name].option, each, form)
        elif form.is_argument:
            arguments += [] if value is None else [form.kind.write(value)]
        elif form.is_repeated:
            options += [word for each in value for word in _option_words(flag_name(field), each, form)]
        elif value is not None and (value != field.default or form.is_said):
            options += _option_words(flag_name(field), value, form)
    return [*start, *arguments, *options]


def _option_words(name: str, value: Any, form: Option) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", form.kind.write(value)]


def said_fields(
    workload: Workload, options: WorkOptions, said: Iterable[str], without: Collection[str], in_python: bool = False
) -> Iterator[tuple[str, Any]]:
    """Fields of a workload that a command or a call has to say, with their values."""
    for name in options.parameters if in_python else options.names:
        value, default = getattr(workload, name), ASKED[name].default if in_python else options.default(name)
        is_said = value != default or (name in said and value is not None)
        if name not in without and name not in options.hidden and is_said:
            yield name, value
