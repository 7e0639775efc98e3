"""Oaken's thresholds, found offline, and the TOML file that keeps them with where they come from."""

import math
import os
import re
import stat
import tempfile
import tomllib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from kernels_ref.oaken.paper import MAX_GROUPS, MIN_GROUPS

FORMAT = "oaken-thresholds-1"
MAX_BYTES = 2**20
#: longer lines and deeper keys than the format has; the parser's time grows with the square of a dotted key
MAX_LINE = 1000
MAX_TEXT = 300

Which = Literal["key", "value"]
Rows = tuple[tuple[float, ...], ...]

_SIDES = ("key_lower", "key_upper", "value_lower", "value_upper")
_TEXTS = ("model", "data", "tool")


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of all layers: `[layers][groups]` for keys and values, lower and upper, outermost group first.

    fracs: shares of the groups, outermost first. The last threshold of a row (all shares summed) parts nothing; it is
    kept because the released profiler writes it. Provenance: model and data are free text, tool is what computed them;
    n_runs: profiled tensors per layer and side; n_elements: elements profiled in all.
    """

    fracs: tuple[float, ...]
    key_lower: Rows
    key_upper: Rows
    value_lower: Rows
    value_upper: Rows
    model: str = ""
    data: str = ""
    tool: str = ""
    n_runs: int = 0
    n_elements: int = 0

    def __post_init__(self) -> None:
        check_fracs(self.fracs)
        object.__setattr__(self, "fracs", tuple(float(frac) for frac in self.fracs))
        for name in _SIDES:
            object.__setattr__(self, name, _rows(name, getattr(self, name), len(self.fracs)))
            if len(getattr(self, name)) != len(self.key_lower):
                raise ValueError(f"{name} has {len(getattr(self, name))} layers: must have {len(self.key_lower)}")
        for layer in range(self.n_layers):
            for which in ("key", "value"):
                _check_nested(layer, which, *self.of(layer, which))  # type: ignore[arg-type]
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
                raise ValueError(
                    f"{name} = {_show(value)}: must be one printable line of at most {MAX_TEXT} characters"
                )
        for name in ("n_runs", "n_elements"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
                raise ValueError(f"{name} = {_show(value)}: must be a count")

    @property
    def n_layers(self) -> int:
        """Layers, counted from 0."""
        return len(self.key_lower)

    def of(self, layer: int, which: Which) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(lower, upper) of one layer's keys or values, a threshold a group. ValueError where there is none.

        layer: Number of the layer, from 0.
        which: "key" or "value".
        """
        if which not in ("key", "value"):
            raise ValueError(f"which = {which!r}: must be 'key' or 'value'")
        if type(layer) is not int or not 0 <= layer < self.n_layers:
            raise ValueError(f"layer = {layer!r}: must be 0 to {self.n_layers - 1}: no other has been profiled")
        return getattr(self, f"{which}_lower")[layer], getattr(self, f"{which}_upper")[layer]

    def to_toml(self) -> str:
        """The file's text; floats are written so that they are read back exactly."""
        lines = [f'format = "{FORMAT}"']
        lines += [f"{name} = {_quoted(getattr(self, name))}" for name in _TEXTS]
        lines += [f"n_runs = {self.n_runs}", f"n_elements = {self.n_elements}", f"fracs = {_numbers(self.fracs)}"]
        for layer in range(self.n_layers):
            lines += ["", "[[layer]]", f"number = {layer}"]
            lines += [f"{name} = {_numbers(getattr(self, name)[layer])}" for name in _SIDES]
        return "\n".join(lines) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file so that it appears complete or not at all. Raises OSError.

        path: A .toml file in a directory that exists.
        """
        path = Path(path)
        descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(self.to_toml().encode())
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        if hasattr(os, "O_DIRECTORY"):
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Thresholds":
        """Read a file that `save` wrote. Raises OSError, and ValueError of one line naming file and field.

        path: The file.
        """
        try:
            return cls(**_fields(_parsed(_content(path))))
        except ValueError as error:
            raise ValueError(f"{_clean(os.fspath(path))}: {_clean(str(error))}") from None


def check_fracs(fracs: Any) -> None:
    """Raise ValueError unless `fracs` are the shares of 2 to 5 groups, summing to 1."""
    good = isinstance(fracs, tuple | list) and all(
        isinstance(frac, int | float) and not isinstance(frac, bool) and 0 < frac < 1 for frac in fracs
    )
    if not good or not MIN_GROUPS <= len(fracs) <= MAX_GROUPS or abs(math.fsum(fracs) - 1) > 1e-9:
        raise ValueError(
            f"fracs = {_show(fracs)}: must be {MIN_GROUPS} to {MAX_GROUPS} shares between 0 and 1 that sum to 1, "
            "outermost group first"
        )


def _rows(name: str, value: Any, n_groups: int) -> Rows:
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, tuple | list) or not value:
        raise ValueError(f"{name} = {_show(value)}: must have a row for every layer")
    for layer, row in enumerate(value):
        good = isinstance(row, tuple | list) and len(row) == n_groups
        if not good or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in row):
            raise ValueError(f"layer {layer}: {name} = {_show(row)}: must be {n_groups} numbers, as many as fracs")
        if not all(abs(v) <= 65504 for v in row):
            raise ValueError(f"layer {layer}: {name} = {_show(row)}: must be within +-65504, the range of FP16")
    return tuple(tuple(float(v) for v in row) for row in value)


def _check_nested(layer: int, which: str, lower: tuple[float, ...], upper: tuple[float, ...]) -> None:
    rising = (*lower[:-1], *reversed(upper[:-1]))
    if any(first > second for first, second in pairwise(rising)):
        raise ValueError(
            f"layer {layer}: {which}_lower = {_show(lower)}, {which}_upper = {_show(upper)}: must be nested: lower "
            "rising, upper falling, no lower above an upper"
        )


def _content(path: str | os.PathLike[str]) -> str:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a regular file: must be a TOML file of thresholds")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"has more than {MAX_BYTES} bytes: must be a TOML file of thresholds")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text: must be a TOML file of thresholds") from None


def _parsed(text: str) -> dict[str, Any]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_LINE:
            raise ValueError(f"line {number}: has {len(line)} characters: must have at most {MAX_LINE}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{str(error)[:200]}: must be TOML") from None
    except RecursionError:
        raise ValueError("is nested too deeply: must be a TOML file of thresholds") from None


def _only(table: Any, wanted: tuple[str, ...], where: str) -> None:
    if not isinstance(table, dict):
        raise ValueError(f"{where}{_show(table)}: must be a table")
    for name in wanted:
        if name not in table:
            raise ValueError(f"{where}{name}: is missing")
    for name in table:
        if name not in wanted:
            raise ValueError(f"{where}{_show(name)}: is not a field: must be one of {', '.join(wanted)}")


def _fields(document: dict[str, Any]) -> dict[str, Any]:
    if document.get("format") != FORMAT:
        raise ValueError(f"format = {_show(document.get('format'))}: must be {FORMAT!r}")
    _only(document, ("format", *_TEXTS, "n_runs", "n_elements", "fracs", "layer"), "")
    layers = document["layer"]
    if not isinstance(layers, list) or not layers:
        raise ValueError(f"layer = {_show(layers)}: must be [[layer]] tables, one a layer")
    for number, layer in enumerate(layers):
        _only(layer, ("number", *_SIDES), f"layer {number}: ")
        if layer["number"] != number or isinstance(layer["number"], bool):
            raise ValueError(f"layer {number}: number = {_show(layer['number'])}: must be {number}: layers in order")
    fields = {name: document[name] for name in (*_TEXTS, "n_runs", "n_elements", "fracs")}
    return fields | {name: [layer[name] for layer in layers] for name in _SIDES}


def _numbers(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(repr(value) for value in values) + "]"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _clean(text: str) -> str:
    """Without line breaks and other characters that a terminal would act on."""
    return re.sub(r"[^\x20-\x7e]", lambda match: ascii(match.group())[1:-1], text)
