"""Write TOML: a number with its unit and each list stays on one line, which `tomli_w` would spread over a table."""

import json
import re
from collections.abc import Mapping
from typing import Any


def key(name: str) -> str:
    """A key, in quotes where TOML does not take it bare."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else value(name)


def value(item: Any) -> str:
    """A value on one line; a mapping becomes an inline table."""
    if isinstance(item, Mapping):
        return "{ " + ", ".join(f"{key(name)} = {value(part)}" for name, part in item.items()) + " }"
    if isinstance(item, list | tuple):
        return "[" + ", ".join(map(value, item)) + "]"
    if isinstance(item, str):
        return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(item).lower() if isinstance(item, bool) else repr(item)


def dumps(data: Mapping[str, Any], place: tuple[str, ...] = ()) -> str:
    """A document: mappings are tables, but for a number with its unit ({value, unit, ...})."""
    tables = {name: item for name, item in data.items() if isinstance(item, Mapping) and "value" not in item}
    lines = [f"{key(name)} = {value(item)}\n" for name, item in data.items() if name not in tables]
    head = f"\n[{'.'.join(map(key, place))}]\n" if place and (lines or not tables) else ""
    return head + "".join(lines) + "".join(dumps(item, (*place, name)) for name, item in tables.items())
