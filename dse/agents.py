"""Tools of an agent over the Model Context Protocol: a view of operations, as commands and Python functions are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hwspecs
from dse.core import files
from dse.core.documents import json_text
from dse.core.errors import InputError, did_you_mean, install, show, told
from dse.core.field import NAMES, NUMBERS, SHARES, SWITCH, WHOLES, Field
from dse.core.version import VERSION
from dse.operations.declare import Console, Operation, flag_name, help_of, is_required, option_of
from dse.operations.face import asked_of, few_of, python_fields, signature_of, work_names
from dse.specs.workload import ASKED

if TYPE_CHECKING:
    from mcp.server import Server

#: words of the commands that an agent has as tools
TOOLS = ("recommend", "point", "ask formats", "check-log", "scores")
#: what the server says of itself
INSTRUCTIONS = (
    "KV caches of LLM serving, by device, model, KV format and load: whether a design fits, its times, rates and "
    "energy with 80 % intervals, which format pays, what to run for a load, why a server does not start. Names are as "
    "people write them (8xh200, Qwen/Qwen3-32B, fp8); a wrong one is answered by those near it. Numbers of JSON are in "
    "SI base units. Say what a result rests on where it is assumed."
)
_TYPES = {"text": "string", "whole": "integer", "number": "number", "switch": "boolean"}
_LISTS = {NAMES: "string", WHOLES: "integer", NUMBERS: "number", SHARES: "number"}


def name_of(cls: type[Operation]) -> str:
    """The name of an operation's tool: the last word of its command."""
    return cls.words.rpartition(" ")[2].replace("-", "_")


def fields(cls: type[Operation]) -> dict[str, tuple[Field, bool]]:
    """Fields of a tool, and whether each is required: those that Python has but `out`, for an agent writes no file.

    An argument is required, as standard input, which commands read in its place, has the agent's requests.
    """
    found: dict[str, tuple[Field, bool]] = {}
    for name, field in python_fields(cls).items():
        form = option_of(field)
        if "work" in field.metadata:
            found |= {of_work: (ASKED[of_work], False) for of_work in work_names(cls)}
        elif form.in_command and name != "out":
            found[name] = replace(form, name=flag_name(field)), form.is_argument or is_required(field)
    return found


def schema(cls: type[Operation]) -> dict[str, Any]:
    """The JSON Schema of what a tool takes."""
    taken = fields(cls)
    return {
        "type": "object",
        "properties": {name: _property(form) for name, (form, _) in taken.items()},
        "required": [name for name, (_, is_needed) in taken.items() if is_needed],
        "additionalProperties": False,
    }


def _property(form: Field) -> dict[str, Any]:
    kind, is_text = form.kind, form.kind.sort == "text"
    unit = f" Unit: {form.unit}." if form.unit not in ("", "1") and not is_text else ""
    made: dict[str, Any] = {"type": _TYPES[kind.sort], "description": form.help + unit}
    example = (form.metavar or "").strip("'")
    if few := few_of(form):
        made["enum"] = few
    elif is_text and kind not in _LISTS and any(map(str.isdigit, example)):
        made["examples"] = [[example] if form.is_repeated else example]
    if kind in _LISTS or form.is_repeated:
        made |= {"type": "array", "items": {"type": _LISTS.get(kind, "string")}}
    bounds = {} if is_text else {"minimum": form.low, "maximum": form.high}
    made |= {name: bound for name, bound in bounds.items() if abs(bound) < float("inf")}
    default = [*form.default] if isinstance(form.default, tuple) else form.default
    return made if default in (None, [], "") else made | {"default": default}


def asked(cls: type[Operation], given: Mapping[str, Any]) -> Operation:
    """The operation that a call asks for. Raises InputError for what its command refuses too."""
    taken, values = fields(cls), {}
    for name, value in given.items():
        if name not in taken:
            raise InputError(f"unknown {show(name)}: {did_you_mean(name, taken)}")
        if value is None:
            continue
        read = _read(taken[name][0], value)
        if taken[name][1] or read != taken[name][0].default:  # agents send defaults, also where they have no effect
            values[name] = read
    if missing := [name for name, (_, is_needed) in taken.items() if is_needed and name not in values]:
        raise InputError(f"{missing[0]} is missing: {taken[missing[0]][0].help}")
    operation = asked_of(cls, signature_of(cls), (), values)
    for name in taken:
        if taken[name][0].is_argument and values.get(name) == "-":
            raise InputError(f"{name} = -: standard input has the requests of the agent: give the text, or a file")
    if problem := operation.lacking():
        raise InputError(problem)
    return operation


def answer(operation: Operation) -> tuple[str, dict[str, Any]]:
    """The text of a command and the document that its --json prints; a list is the `result` of one. Raises DseError."""
    notes = list[str]()
    with operation.context():
        outcome = operation.run(Console(say=notes.append))
        document = json.loads(json_text(operation.document(outcome)))
        text = "\n".join([operation.text(outcome), *notes])
    return text, document if isinstance(document, dict) else {"result": document}


def _read(form: Field, value: Any) -> Any:
    """The value of a field as a command reads it from its text. Raises InputError."""
    if form.kind is SWITCH:
        form.check(value)
        return value
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str | int | float) and not isinstance(part, bool) for part in parts):
        raise InputError(f"{form.name} = {show(value)}: must be of type {_property(form)['type']}")
    texts = [part if isinstance(part, str) else f"{Decimal(str(part)):f}".removesuffix(".0") for part in parts]
    if form.is_repeated:
        return tuple(form.kind.parse(form.name, text) for text in texts)
    return form.kind.parse(form.name, ",".join(texts))


def server_of(operations: Sequence[type[Operation]]) -> Server:
    """The server with a tool for each operation. Raises InputError where the package mcp is not installed."""
    try:
        import anyio
        from mcp import types
        from mcp.server import Server
    except ImportError:
        raise InputError(f"mcp is not installed: {install('mcp')}") from None
    known, one_at_a_time = {name_of(cls): cls for cls in operations}, anyio.CapacityLimiter(1)
    tools = [
        types.Tool(
            name=name,
            title=cls.short,
            description=help_of(cls).partition("\n\n")[0].replace("\n", " "),
            input_schema=schema(cls),
            annotations=types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
        )
        for name, cls in known.items()
    ]

    async def listed(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def called(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await anyio.to_thread.run_sync(result, params.name, params.arguments or {}, limiter=one_at_a_time)

    def result(name: str, given: Mapping[str, Any]) -> types.CallToolResult:
        document = None
        try:
            if name not in known:
                raise InputError(f"unknown tool {show(name)}: {did_you_mean(name, known)}")
            text, document = answer(asked(known[name], given))
        except Exception as error:  # as a command: a line, and the server goes on
            text = "\n".join(told(error)[0])
        content: list[types.ContentBlock] = [types.TextContent(text=text)]
        return types.CallToolResult(content=content, structured_content=document, is_error=document is None)

    return Server("dse", version=VERSION, instructions=INSTRUCTIONS, on_list_tools=listed, on_call_tool=called)


def serve(operations: Sequence[type[Operation]], folder: str | None = None) -> None:
    """Serve on standard input and output until they close; files are read in `folder` alone, and named from there.

    Raises InputError for what is no folder, and where the package mcp is not installed.
    """
    server = server_of(operations)
    import anyio
    from mcp.server.stdio import stdio_server

    shipped = [Path(__file__).parent, Path(hwspecs.__file__).parent]
    give = "give a name, a log its text; or start the server with --files DIR"
    if folder is not None:
        try:
            os.chdir(folder)
        except (OSError, ValueError):
            raise InputError(f"files = {show(folder)}: is no folder that can be opened: give another") from None
        shipped.append(Path.cwd())
        give = f"give one in {show(folder)}"

    async def run() -> None:
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())

    with files.read_below(shipped, give):
        anyio.run(run)
