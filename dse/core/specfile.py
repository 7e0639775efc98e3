"""Read a TOML or JSON file that a user wrote, safely, and remember which line each key stands on.

Everything is checked before it is parsed: the kind of file, its size and its depth. No other format is
read, and nothing in a file is ever executed.
"""

import json
import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dse.core import files
from dse.core.errors import InputError, show

MAX_TOML_BYTES = 256 * 1024
MAX_JSON_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 16
MAX_KEYS = 100_000

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A parsed file: its data, and its text, in which a message looks up the line of a key.

    A document that no file stands behind has no text and no lines.
    """

    path: str
    data: dict[str, Any]
    text: str = ""
    is_json: bool = False

    @cached_property
    def lines(self) -> dict[KeyPath, int]:
        """The line of every key, counted when the first message asks for one."""
        return _json_lines(self.text) if self.is_json else _toml_lines(self.text)

    def where(self, key_path: KeyPath) -> str:
        """FILE:LINE of the key, or of its nearest enclosing key that has a line."""
        for length in range(len(key_path), 0, -1):
            if key_path[:length] in self.lines:
                return f"{self.path}:{self.lines[key_path[:length]]}"
        return self.path


#: what to do where a file is empty
IF_EMPTY = "`dse show a100-80gb --toml` prints a file to start from"


def read(path: str | Path, if_empty: str = IF_EMPTY) -> Document:
    """Parse a .toml or .json file. Raises InputError with file and line for whatever is wrong with it."""
    name = str(path)
    is_json = name.lower().endswith(".json")
    most = MAX_JSON_BYTES if is_json else MAX_TOML_BYTES
    content = files.read_bytes(path, most, "spec file", "the path of a .toml or .json file", if_empty)
    return parse(name, decoded(name, content), is_json)


def decoded(name: str, content: bytes) -> str:
    """The text of a file, with what is not text refused by file and line. Raises InputError."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"{name}:{line}: is not UTF-8 text: give a .toml or .json file") from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise InputError(f"{name}:{line}: holds a NUL byte: give a .toml or .json text file")
    return text


def parse(name: str, text: str, is_json: bool = False) -> Document:
    """The document in a text; `name` is the file that messages point to. Raises InputError."""
    is_json = is_json or text.lstrip()[:1] == "{"
    most = MAX_JSON_BYTES if is_json else MAX_TOML_BYTES
    if len(text) > most:
        raise InputError(f"{name}: has {len(text):,} characters: a spec file has at most {most:,}")
    return _read_json(name, text) if is_json else _read_toml(name, text)


#: comments and strings; one that is never closed ends with its line or with the text, so that a scan never goes back
_TOML_BLANKS = re.compile(
    r"""#[^\n]*|\"{3}(?:\\.|[^\\])*?(?:\"{3,5}|\\?\Z)|'{3}.*?(?:'{3,5}|\Z)|"(?:\\.|[^"\\\n])*"?|'[^'\n]*'?""", re.S
)
_JSON_BLANKS = re.compile(r'"(?:\\.|[^"\\])*"?', re.S)
_JSON_TOKENS = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:\n]')
_KEY = r'(?:"[^"\n]*"|\'[^\'\n]*\'|[A-Za-z0-9_-]+)'
_HEADER = rf"\s*(\[\[?)\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*\]"
_ASSIGN = rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*="


def _skeleton(text: str, blanks: re.Pattern[str]) -> str:
    """`text` with strings and comments blanked out, every newline and column kept."""

    def blanked(match: re.Match[str]) -> str:
        literal = match.group()
        return "\n".join("_" * len(line) for line in literal.split("\n")) if "\n" in literal else "_" * len(literal)

    return blanks.sub(blanked, text)


def _check_shape(name: str, skeleton: str, assigns: str) -> None:
    """Raise InputError for a text that nests too deep or holds too many keys; `assigns` stands after each of them."""
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", skeleton):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > MAX_DEPTH:
            line = skeleton.count("\n", 0, bracket.start()) + 1
            raise InputError(f"{name}:{line}: nests more than {MAX_DEPTH} deep: flatten it")
    if (n_keys := skeleton.count(assigns)) > MAX_KEYS:
        raise InputError(f"{name}: has {n_keys:,} keys: a spec file has at most {MAX_KEYS:,}")


def _read_toml(name: str, text: str) -> Document:
    skeleton = _skeleton(text, _TOML_BLANKS)
    _check_shape(name, skeleton, "=")
    for number, line in enumerate(skeleton.split("\n"), 1):
        if line.count(".") >= MAX_DEPTH and re.split("[={]", line, maxsplit=1)[0].count(".") >= MAX_DEPTH:
            raise InputError(f"{name}:{number}: a dotted key of more than {MAX_DEPTH} parts: flatten it")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).rpartition(" (at line ")
        if not reason:
            raise InputError(f"{name}: is not valid TOML: {error}") from error
        number = int(place.partition(",")[0])
        line = text.split("\n")[number - 1].strip()
        reason = reason.replace("Cannot overwrite a value", "a key is given twice")
        raise InputError(f"{name}:{number}: is not valid TOML: {reason}, at {show(line)}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: is not valid TOML: {show(str(error))}") from error
    return Document(name, data, text)


def _parts(dotted: str) -> KeyPath:
    return tuple(part.strip().strip("\"'") for part in re.findall(_KEY, dotted))


def _toml_lines(text: str) -> dict[KeyPath, int]:
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    prefix: KeyPath = ()
    depth = 0
    header_in, assign_in = re.compile(_HEADER).match, re.compile(_ASSIGN).match
    skeleton = _skeleton(text, _TOML_BLANKS).split("\n")
    for number, (raw, bare) in enumerate(zip(text.split("\n"), skeleton, strict=True), 1):
        if depth == 0 and (header := header_in(raw)):
            prefix = _parts(header.group(2))
            if header.group(1) == "[[":
                counts[prefix] = counts.get(prefix, -1) + 1
                prefix = (*prefix, counts[prefix])
            for length in range(len(prefix) if header.group(1) == "[[" else 1, len(prefix) + 1):
                lines.setdefault(prefix[:length], number)
            continue
        if depth == 0 and (assign := assign_in(raw)) and bare[assign.end() - 1] == "=":
            path = prefix + _parts(assign.group(1))
            for length in range(len(prefix) + 1, len(path) + 1):
                lines.setdefault(path[:length], number)
        depth += sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")
    return lines


def _constant(word: str) -> Any:
    """Infinity, which Python's writers put where a bound is none; whoever needs a number refuses it."""
    if word in ("Infinity", "-Infinity"):
        return float(word.replace("Infinity", "inf"))
    raise ValueError(f"{word} is not a number JSON knows")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"key {show(key)} is given twice")
        mapping[key] = value
    return mapping


def load_json(text: str) -> Any:
    """JSON without repeated keys or NaN. Raises ValueError and RecursionError; depth is the caller's."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)


def _read_json(name: str, text: str) -> Document:
    _check_shape(name, _skeleton(text, _JSON_BLANKS), ":")
    try:
        data = load_json(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{name}:{error.lineno}: is not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: is not valid JSON: {show(str(error))}") from error
    if not isinstance(data, dict):
        raise InputError(f"{name}: holds a {type(data).__name__}: a JSON object is expected")
    return Document(name, data, text, is_json=True)


def _json_lines(text: str) -> dict[KeyPath, int]:
    """Line of every key of a JSON text that is known to be valid."""
    lines: dict[KeyPath, int] = {}
    path: list[str | int] = []
    line = 1
    key: str | None = None
    for match in _JSON_TOKENS.finditer(text):
        token = match.group()
        if token == "\n":
            line += 1
        elif token[0] == '"':
            key = json.loads(token)
        elif token == ":" and path and key is not None:
            path[-1] = key
            lines.setdefault(tuple(path), line)
        elif token == "{":
            path.append("")
        elif token == "[":
            path.append(0)
        elif token in "]}":
            path.pop()
        elif token == "," and path and isinstance(path[-1], int):
            path[-1] += 1
    return lines
