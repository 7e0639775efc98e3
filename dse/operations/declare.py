"""The declaration of an operation: its fields with their options, and the words and values they are written as."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, replace
from typing import Any, ClassVar, TypeVar, dataclass_transform

from dse.core.field import SWITCH, TEXT, Field, Kind, declarations, declared
from dse.core.progress import Progress
from dse.specs.look import Look
from dse.specs.workload import ASKED, Workload


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
    return declared(default, help=help, kind=kind, **more)


def argument(default: Any = MISSING, help: str = "", metavar: str | None = None, **more: Any) -> Any:
    """A field of an operation that the command line takes by its place."""
    return option(default, help, metavar=metavar, is_argument=True, **more)


def record(cls: type[Any], **more: Any) -> Any:
    """A record of declared fields: an option for each of them, which is what the operation runs with."""
    return dataclasses.field(default=cls(), metadata={"field": Field(**more), "record": cls})


def look() -> Any:
    """The look of a figure."""
    return record(Look, in_python=False, group="Look")


def work(*left_out: str, only: Iterable[str] = tuple(ASKED), **more: Any) -> Any:
    """The workload of an operation: options for the fields in `only` but those left out and those it searches."""
    without = {*left_out, *more.get("searched", {})}
    names = tuple(name for name in only if name not in without)
    return dataclasses.field(default=Workload(), metadata={"field": Field(), "work": WorkOptions(names=names, **more)})


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
    #: fields that may have few values or values in bounds
    bounded: ClassVar[dict[str, Field]] = {}

    def __post_init__(self) -> None:
        """Raises InputError for a value that its declaration does not allow."""
        for name, form in self.bounded.items():
            form.check(getattr(self, name))

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
        made = dataclasses.dataclass(init=is_made, repr=is_made, eq=is_made, frozen=True, kw_only=True)(cls)
        made.bounded = {
            field.name: replace(option_of(field), name=flag_name(field))
            for field in dataclasses.fields(made)
            if option_of(field).is_bounded
        }
        return made  # type: ignore[return-value]

    return declared


def fields_of(cls: type[Operation]) -> list[dataclasses.Field[Any]]:
    """The fields of an operation: arguments, required options, those of its own, those that it shares."""
    known = {field.name: field for field in dataclasses.fields(cls)}
    place = {name: at for at, base in enumerate(cls.__mro__) for name in inspect.get_annotations(base)}
    names = dict.fromkeys(name for base in cls.__mro__ for name in inspect.get_annotations(base) if name in known)
    fields = [known[name] for name in sorted(names, key=place.__getitem__)]
    return sorted(fields, key=lambda field: (not option_of(field).is_argument, not is_required(field)))


def option_of(field: dataclasses.Field[Any]) -> Field:
    """The option of a field."""
    form: Field = field.metadata["field"]
    return form


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
            for name, setting in said_fields(value, field.metadata["work"], said, without):
                options += _option_words(ASKED[name].name, setting, form)
        elif "record" in field.metadata:
            for name, of_record in declarations(value).items():
                if (setting := getattr(value, name)) != of_record.default:
                    options += _option_words(of_record.name or name.replace("_", "-"), setting, of_record)
        elif form.is_argument:
            arguments += [] if value is None else [form.kind.write(value)]
        elif form.is_repeated:
            options += [word for item in value for word in _option_words(flag_name(field), item, form)]
        elif value is not None and (value != field.default or form.is_said):
            options += _option_words(flag_name(field), value, form)
    return [*start, *arguments, *options]


def _option_words(name: str, value: Any, form: Field) -> list[str]:
    if form.kind is SWITCH and name.startswith("no-"):
        return [f"--{name}"]
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
