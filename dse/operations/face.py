"""The functions of `import dse`, made from the declarations of operations."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from dse.core.errors import InputError, did_you_mean, show
from dse.core.field import NAMES, Field, declarations
from dse.operations.declare import Operation, fields_of, help_of, is_required, option_of, said_fields, work_field
from dse.specs.workload import ASKED, Workload

#: fields of a workload that a printed command or script says even at their defaults
SAID = ("batch", "input_tokens", "output_tokens", "admission", "weights_bits")
#: what stands for a value in help, where it is one of a few texts
_FEW = re.compile(r"[a-z_]+(\|[a-z_]+)+")
#: letters of a line of a printed script
WIDTH = 100


def function_of(cls: type[Operation]) -> Callable[..., Any]:
    """The Python function of an operation: its fields are the parameters, those of its workload among them."""
    signature = signature_of(cls)

    def call(*args: Any, **given: Any) -> Any:
        operation = asked_of(cls, signature, args, given)
        return operation.value(operation.run())

    call.__name__ = call.__qualname__ = cls.function
    call.__doc__ = doc_of(cls)
    call.__module__ = "dse.api"
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return call


def python_fields(cls: type[Operation]) -> dict[str, dataclasses.Field[Any]]:
    """The fields that are parameters in Python, those that may be given by place first."""
    known = {field.name: field for field in fields_of(cls) if option_of(field).in_python}
    return {name: known[name] for name in (*cls.positional, *(name for name in known if name not in cls.positional))}


def work_names(cls: type[Operation]) -> tuple[str, ...]:
    """Fields of the workload that are parameters in Python."""
    field = work_field(cls)
    return () if field is None else field.metadata["work"].parameters


def signature_of(cls: type[Operation]) -> inspect.Signature:
    """The signature of the Python function of an operation."""
    parameters = []
    for name, field in python_fields(cls).items():
        is_work = "work" in field.metadata
        default = inspect.Parameter.empty if is_required(field) else None if is_work else field.default
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if name in cls.positional else inspect.Parameter.KEYWORD_ONLY
        annotation = "Workload | None" if is_work else _annotation(field)
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    parameters += _keywords(Workload, work_names(cls))
    return inspect.Signature(parameters, return_annotation=result_of(cls).__annotations__["return"])


def signature_of_many(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function that takes a value or several for each field of a workload, as keywords."""
    signature = inspect.signature(function)
    named = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    fields = [field.replace(annotation=_or_several(field.annotation)) for field in _keywords(Workload, ASKED)]
    return signature.replace(parameters=[*named, *fields])


def signature_with(function: Callable[..., Any], record: type) -> inspect.Signature:
    """The signature of a function that takes the declared fields of a record as keywords."""
    signature = inspect.signature(function)
    named = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    return signature.replace(parameters=[*named, *_keywords(record, declarations(record))])


def _or_several(annotation: str) -> str:
    """The type of a value or several of a type, None last."""
    single = annotation.removesuffix(" | None")
    return f"{single} | Iterable[{annotation}]{annotation[len(single) :]}"


def _keywords(record: Any, names: Iterable[str]) -> list[inspect.Parameter]:
    """Declared fields of a record, such as a workload, as keywords."""
    types = {field.name: field.type for field in dataclasses.fields(record)}
    known = declarations(record)
    return [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=known[name].default, annotation=_type_text(types[name])
        )
        for name in names
    ]


def _annotation(field: dataclasses.Field[Any]) -> str:
    """The type of a field; of texts that are few the texts, which editors then complete."""
    few, text = few_of(option_of(field)), str(field.type)
    if len(few) < 2 or text not in ("str", "str | None"):
        return text
    return f"Literal{[*few]}{text.removeprefix('str')}"


def few_of(form: Field) -> list[Any]:
    """The values of a field, where it takes no others."""
    return [*form.choices] or (form.metavar.split("|") if form.metavar and _FEW.fullmatch(form.metavar) else [])


def result_of(cls: type[Operation]) -> Callable[..., Any]:
    """The method whose result the Python function returns."""
    return cls.run if cls.value is Operation.value else cls.value


def _type_text(annotation: Any) -> str:
    if isinstance(annotation, type):
        return "None" if annotation is type(None) else annotation.__name__
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(_type_text, get_args(annotation)))
    return str(annotation).replace("typing.", "")


def asked_of(
    cls: type[Operation], signature: inspect.Signature, args: tuple[Any, ...], given: dict[str, Any]
) -> Operation:
    """The operation that a call asks for. Raises InputError for names and values."""
    field = work_field(cls)
    searched = field.metadata["work"].searched if field else {}
    for name in given:
        if name in searched:
            raise InputError(f"{name}: is what the question searches: give {searched[name]}")
        if name not in signature.parameters:
            raise InputError(f"unknown {show(name)}: {did_you_mean(name, signature.parameters)}")
    values = {name: value for name, value in signature.bind(*args, **given).arguments.items() if value is not None}
    of_work = {name: given[name] for name in given if name in work_names(cls)}
    values = {name: value for name, value in values.items() if name not in of_work}
    if field is not None and of_work:
        if field.name in values:
            raise InputError(f"{field.name}: cannot stand beside {show(next(iter(of_work)))}: give one of both")
        values[field.name] = Workload(**of_work)
    fields = python_fields(cls)
    for name, value in values.items():
        if isinstance(value, str) and option_of(fields[name]).kind is NAMES:
            values[name] = NAMES.parse(name, value)
    operation = cls(**values)
    for name, why in operation.unused().items():
        if name in values or name in of_work:
            raise InputError(f"{name} = {show(values.get(name, of_work.get(name)))}: has no effect {why}: leave it out")
    return operation


def doc_of(cls: type[Operation]) -> str:
    """The text of the function: what the operation does, its parameters, what it returns, an example."""
    text = inspect.getdoc(cls) or ""
    example = text[len(help_of(cls)) :].strip()
    lines = [help_of(cls), ""]
    for name, field in python_fields(cls).items():
        if help := option_of(field).help or _own_help(field):
            lines += textwrap.wrap(f"{name}: {help}", WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    if work_names(cls):
        lines.append("Further parameters are the fields of `Workload`, in place of one.")
    lines += ["", f"Returns: {inspect.getdoc(result_of(cls)) or ''}".replace("\n", " ")]
    lines += ["Raises InputError and SpecError for names, files and values, LimitError beyond what can be computed."]
    return "\n".join([*lines, "", example] if example else lines)


def _own_help(field: dataclasses.Field[Any]) -> str:
    if "work" in field.metadata:
        return "Requests, lengths, memory, weights and devices, as `dse.Workload(batch=64, tp=2)`."
    return (option_of(field).metavar or "").replace("|", ", ")


class Name(str):
    """A name that a printed script has given to a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def script(*lines: str) -> str:
    """A script that needs `import dse` alone."""
    return "\n".join(["import dse", "", *lines])


def python_of(asked: Operation, said: Iterable[str] = SAID, without: Collection[str] = ()) -> str:
    """A script that ends with `result`, what the operation returns."""
    return script(f"result = {call_of(asked, said, without)}")


def call_of(asked: Operation, said: Iterable[str] = SAID, without: Collection[str] = ()) -> str:
    """The call of the function that asks for an operation; `said` and `without` as `words_of` has them."""
    arguments = ", ".join(_arguments(asked, said, without))
    text = textwrap.fill(arguments, WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"dse.{asked.function}(\n{textwrap.indent(text, '    ')},\n)"


def _arguments(operation: Operation, said: Iterable[str], without: Collection[str]) -> Iterator[str]:
    cls, by_place = type(operation), True
    for name, field in python_fields(cls).items():
        value = getattr(operation, name)
        if "work" in field.metadata:
            continue
        if not is_required(field) and value == field.default and not option_of(field).is_said:
            by_place = by_place and name not in cls.positional
            continue
        text = repr(list(value)) if isinstance(value, tuple) else repr(value)
        yield text if by_place and name in cls.positional else f"{name}={text}"
    if field_of_work := work_field(cls):
        workload, options = getattr(operation, field_of_work.name), field_of_work.metadata["work"]
        for name, value in said_fields(workload, options, said, without, in_python=True):
            yield f"{name}={value!r}"
