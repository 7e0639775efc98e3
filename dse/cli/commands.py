"""The click command of an operation, made from its declaration."""

from __future__ import annotations

import copy
import dataclasses
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import click

from dse.core import interrupt
from dse.core.documents import json_text
from dse.core.errors import InputError, clean, show
from dse.core.field import BYTES, NUMBER, SWITCH, TEXT, Field, Kind, declarations
from dse.operations.declare import (
    Console,
    Operation,
    WorkOptions,
    fields_of,
    flag_name,
    help_of,
    is_required,
    option_of,
    work_field,
)
from dse.specs import workload

#: seconds after which long work says how far it is
PATIENCE_S = 2.0
#: headings of a long help: that of the design, before the command's own options, and those behind them
HEADINGS = ("Design", *(head for head in ("Workload", *workload.HEADINGS) if head != "Design"), "Look", "Output")
#: fewer are not shown: options and output alone need none
LEAST_HEADINGS = 3
#: letters beside a progress bar
MAX_AT_WORK = 60


class OptionText(click.ParamType):
    """A text that becomes the value of a field; InputError names the option where it cannot."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.name = kind, kind.word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value of the text; a default is a value already."""
        if not isinstance(value, str):
            return value
        return self.kind.parse(param.opts[0].removeprefix("--") if param and param.opts else "value", value)


class DeclaredOption(click.Option):
    """An option under a heading of the help, whose former spellings are taken and not shown."""

    def __init__(self, *args: Any, group: str = "", former: tuple[str, ...] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self.group, self.former = group, former

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The names of today, and the help."""
        shown = copy.copy(self)
        shown.opts = [name for name in self.opts if name not in self.former]
        return click.Option.get_help_record(shown, ctx)


class DeclaredCommand(click.Command):
    """A command whose help has its options in groups, where they are many."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of a design first, then the command's own; all in one where they are few."""
        title = "Question" if ctx.parent and ctx.parent.info_name == "ask" else "Options"
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (HEADINGS[0], title, *HEADINGS[1:])}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                groups[getattr(param, "group", HEADINGS[-1]) or title].append(record)
        if sum(map(bool, groups.values())) < LEAST_HEADINGS:
            super().format_options(ctx, formatter)
            return
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def command_of(cls: type[Operation]) -> click.Command:
    """The command that runs an operation and prints its result."""
    params: list[click.Parameter] = []
    own = {f"--{flag_name(field)}" for field in fields_of(cls)}
    for field in fields_of(cls):
        form = option_of(field)
        form = replace(form, former=tuple(name for name in form.former if name not in own))
        if not form.in_command:
            continue
        if "work" in field.metadata:
            options: WorkOptions = field.metadata["work"]
            params += [_work_option(name, options) for name in options.names]
        elif "record" in field.metadata:
            declared = declarations(field.metadata["record"])
            params += [_option(name, replace(option, group=form.group)) for name, option in declared.items()]
        elif form.is_argument:
            params.append(_argument(field, form))
        else:
            params.append(_option(field.name, form, required=is_required(field)))
    name = cls.words.rpartition(" ")[2]
    return DeclaredCommand(
        name, params=params, callback=partial(start, cls), help=help_of(cls), short_help=cls.short or None
    )


def _argument(field: dataclasses.Field[Any], form: Field) -> click.Argument:
    more: dict[str, Any] = {"nargs": -1} if form.is_repeated else {}
    if not is_required(field):
        more |= {"default": field.default}
    return click.Argument([field.name], required=is_required(field), metavar=form.metavar, **more)


def _option(name: str, form: Field, *, is_work: bool = False, **more: Any) -> click.Option:
    """The option of a field; a switch is given to change its default, that of a workload to turn it on or off."""
    flag = form.name or name.replace("_", "-")
    attrs: dict[str, Any] = {"help": form.help or None, "group": form.group, **more}
    if form.kind is SWITCH:
        if not is_work:
            return DeclaredOption([f"--{flag}", *form.also, *form.former, name], is_flag=True, **attrs)
        off = [f" /{word}" for word in form.also]
        return DeclaredOption([f"--{flag}/--no-{flag}", *off, name], default=form.default, **attrs)
    if is_work:
        attrs |= {"default": form.default, "show_default": form.default is not None}
    elif form.default not in (None, (), ""):
        default = f"{form.default:g}" if isinstance(form.default, float) else form.default
        attrs |= {"default": default, "show_default": form.shows_default}
    few = "|".join(map(str, form.choices)) if form.kind is TEXT else form.unit.upper() if form.kind is NUMBER else ""
    return DeclaredOption(
        [f"--{flag}", *form.also, *form.former, name],
        former=form.former,
        type=None if form.kind is TEXT else OptionText(form.kind),
        multiple=form.is_repeated,
        metavar=form.metavar or few or None,
        **attrs,
    )


def _work_option(name: str, options: WorkOptions) -> click.Option:
    """The option of a field of a workload, as an operation has it."""
    form = replace(
        workload.ASKED[name],
        default=options.default(name),
        help=options.helps.get(name, workload.ASKED[name].help),
        group=workload.heading_of(name),
    )
    return _option(name, form, is_work=True, hidden=name in options.hidden)


def record_of(cls: type[Any], given: dict[str, Any]) -> Any:
    """The record that the values of its options ask for; a switch that is called no-x turns x off."""
    values: dict[str, Any] = {}
    for name, option in declarations(cls).items():
        if (value := given.pop(name)) is not None:
            values[name] = not value if option.name.startswith("no-") else value
    return cls(**values)


def start(cls: type[Operation], **given: Any) -> None:
    """Run an operation with the values of its options, print the result, leave with its status."""
    field = work_field(cls)
    if field is not None:
        options: WorkOptions = field.metadata["work"]
        given[field.name] = workload.Workload(**options.fixed, **{name: given.pop(name) for name in options.names})
    for record_field in fields_of(cls):
        if "record" in record_field.metadata:
            given[record_field.name] = record_of(record_field.metadata["record"], given)
    for name in ("out", "figure"):
        if "\0" in str(given.get(name, "")):
            raise InputError(f"{name} = {show(given[name])}: is not a file or directory name: give another")
    operation = cls(**{name: value for name, value in given.items() if value is not None})
    if problem := operation.lacking():
        raise InputError(problem)
    _refuse(operation.unused())
    console = Console(
        progress=progress_bar,
        say=partial(click.echo, err=True),
        show=click.echo,
        if_stopped=lambda line: interrupt.words(clean(line, 300)),
        ask=_ask if _is_terminal() else None,
        command=command_line(),
    )
    with operation.context(), told(None, cls.words, None):
        outcome = operation.run(console)
        written = operation.written(outcome, console)
        if getattr(operation, "as_json", False):
            text = json_text(operation.document(outcome), cls.indent)
        else:
            text = operation.text(outcome)
    for line in filter(None, (text, *written)):
        click.echo(line)
    if status := operation.status(outcome):
        click.get_current_context().exit(status)


def _refuse(reasons: dict[str, str]) -> None:
    """Refuse an option that was given and has no effect. Raises InputError."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in reasons and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = parameter.opts[0].removeprefix("--")
            value, kind = context.params[name], getattr(parameter.type, "kind", TEXT)
            shown = kind.write(value) if kind is BYTES else show(value)
            raise InputError(f"{option} = {shown}: has no effect {reasons[name]}: leave it out")


def command_line() -> str:
    """The command that runs, as it would be typed again."""
    context = click.get_current_context(silent=True)
    args = context.find_root().obj if context else None
    words = args if isinstance(args, list) else [word for word in sys.argv[1:] if word != "--debug"]
    return shlex.join(["dse", *words])


def _is_terminal() -> bool:
    """True where somebody can answer."""
    return sys.stdin.isatty()


def _ask(question: str, checked: Callable[[str], Any]) -> Any:
    """The answer of who sits at the terminal, asked again until `checked` takes it."""

    def value(text: str) -> Any:
        try:
            return checked(text)
        except InputError as error:
            raise click.BadParameter(error.lines()[0]) from None

    with _innermost(None):  # on standard error: what is printed may be read by a program
        return click.prompt(question, value_proc=value, err=True)


class Work:
    """Work that takes its time: its items are taken one by one, or `update` says how many more are done."""

    def __init__(self, items: Iterable[Any] | None, label: str, length: int | None) -> None:
        self._items, self._label, self._length, self.pos = () if items is None else items, label, length, 0

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self.pos += 1
            yield item

    def update(self, n_more: int, item: object = None) -> None:
        """Say that so many more are done."""
        self.pos += n_more

    def __str__(self) -> str:
        of = f" of {self._length:,}" if self._length else ""
        return f"{self._label}: at {self.pos:,}{of}" if self.pos or of else f"{self._label}: at work"


#: what runs, each inside the one before it: the last of them is told of, None is silent
_running: list[Work | None] = []


@contextmanager
def _innermost(work: Work | None) -> Iterator[None]:
    _running.append(work)
    try:
        yield
    finally:
        _running.remove(work)


@contextmanager
def told(items: Iterable[Any] | None, label: str, length: int | None) -> Iterator[Work]:
    """Work of which a line says after two seconds how far it is, and then ever more rarely."""
    work, has_ended = Work(items, label, length), threading.Event()

    def tell() -> None:
        wait_s = PATIENCE_S
        while not has_ended.wait(wait_s):
            if _running[-1:] == [work]:
                click.echo(str(work), err=True)
            wait_s *= 2

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        with _innermost(work):
            yield work
    finally:
        has_ended.set()
        teller.join()


@contextmanager
def progress_bar(items: Iterable[Any] | None, label: str, length: int | None) -> Iterator[Any]:
    """A progress bar on the terminal; where standard error is not one, a line now and then in long work."""
    if sys.stderr.isatty():
        bar = click.progressbar(
            items, length=length, label=label, file=sys.stderr, show_pos=True, item_show_func=_at_work
        )
        with _innermost(None), bar as shown:
            yield shown
    else:
        with told(items, label, length) as work:
            yield work


def _at_work(item: Any) -> str:
    """The words of a progress bar for an item: its name, or the names of a tuple's parts; "" where it has none."""
    if isinstance(item, tuple):
        return " ".join(filter(None, map(_at_work, item)))[:MAX_AT_WORK]
    name = getattr(item, "name", None)
    if not isinstance(name, str):  # what is made to be read has a __str__ of its own
        name = str(item) if type(item).__str__ is not object.__str__ else ""
    return name[:MAX_AT_WORK]
