"""The .npy format: a header of at most 10,000 bytes, matched by a grammar of our own, then the values.

Format: numpy.lib.format, versions 1.0 to 3.0. numpy's own reader of headers is not used: it evaluates them, takes the
last of two equal fields and `True` for a 1, and ends in MemoryError, RecursionError, TokenError or TypeError on others.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from dse.core.errors import clean, show
from dse.measure.dumps.source import DumpSource
from dse.measure.dumps.stored import MAX_NAME, DumpLimits, DumpTensor, StoredTensor, check_shape, check_total

MAX_HEADER = 10_000
_MAGIC = b"\x93NUMPY"
#: descr of what is read: dtype and whether big-endian; V2 is how numpy saves bfloat16
_DTYPES = {
    "<f2": ("fp16", False),
    ">f2": ("fp16", True),
    "<f4": ("fp32", False),
    ">f4": ("fp32", True),
    "<V2": ("bf16", False),
    "|V2": ("bf16", False),
}
_ALLOWED = "must be float16, float32 or bfloat16 (V2): save it as one of these"
_FIELD = re.compile(
    r"\s*'(descr|fortran_order|shape)'\s*:\s*"
    r"(?:'([^'\\]{0,100})'|(True|False)|\(([-0-9, ]*)\)|([^\s']))\s*(,|(?=\}))"
)
_AXES = re.compile(r"\s*|(?:\s*-?[0-9]{1,19}\s*,)+(?:\s*-?[0-9]{1,19})?\s*")


@dataclass(frozen=True)
class Header:
    """The header before the values: `n_bytes` is its own length."""

    dtype: str
    shape: tuple[int, ...]
    big_endian: bool
    fortran_order: bool
    n_bytes: int

    def tensor(self, name: str) -> DumpTensor:
        """The tensor it describes."""
        return DumpTensor(name, self.dtype, self.shape)


def read_header(source: DumpSource, name: str, read: Callable[[int], bytes]) -> Header:
    """Read a header through `read(count)`, which gives up to `count` next bytes. Raises InputError."""
    start = read(8)
    if start[:6] != _MAGIC or len(start) < 8:
        raise source.error(f"does not begin as a .npy file does: {show(start[:6])}: write it with numpy.save", name)
    if start[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise source.error(f"format version {start[6]}.{start[7]}: must be 1.0, 2.0 or 3.0", name)
    width = 2 if start[6] == 1 else 4
    counted = read(width)
    length = int.from_bytes(counted, "little")
    if length > MAX_HEADER:
        raise source.error(f"a header of {length:,} bytes: at most {MAX_HEADER:,} are read: write it again", name)
    text = read(length)
    if len(counted) < width or len(text) < length:
        raise source.error("ends inside its header: copy or write the file again", name)
    if not text.isascii():
        raise source.error("its header is not ASCII text: write it with numpy.save", name)
    descr, fortran, axes = _fields(source, name, text.decode("ascii"))
    if descr not in _DTYPES:
        raise source.error(f"dtype {show(descr)}: {_ALLOWED}", name)
    if not _AXES.fullmatch(axes):
        raise source.error(f"shape = {show(f'({axes})')}: must be whole numbers: write it with numpy.save", name)
    shape = tuple(int(axis) for axis in axes.split(",") if axis.strip())
    check_shape(source, name, shape)
    dtype, big_endian = _DTYPES[descr]
    return Header(dtype, shape, big_endian, fortran == "True", 8 + width + length)


def _fields(source: DumpSource, name: str, text: str) -> tuple[str, str, str]:
    """(descr, fortran_order, axes) of the dictionary that a header holds, as text."""
    entries: dict[str, tuple[str, ...]] = {}
    start = re.match(r"\s*\{", text)
    at = start.end() if start else len(text)
    while match := _FIELD.match(text, at):
        if match[1] in entries:
            raise source.error(f"its header gives {match[1]} twice: write it with numpy.save", name)
        entries[match[1]] = (match[2], match[3], match[4])
        at = match.end()
    if re.match(r"\s*'descr'\s*:\s*\[", text[at:]):
        raise source.error(f"dtype with fields: {_ALLOWED}", name)
    complete = len(entries) == 3 and re.fullmatch(r"\s*\}\s*", text[at:])
    if not complete or None in (entries["descr"][0], entries["fortran_order"][1], entries["shape"][2]):
        raise source.error(
            f"its header {show(text.strip())} is not that of a .npy file: write it with numpy.save", name
        )
    return entries["descr"][0], entries["fortran_order"][1], entries["shape"][2]


def stored(source: DumpSource, limits: DumpLimits) -> list[StoredTensor]:
    """The one tensor of a .npy file, named after the file. Raises InputError and LimitError."""
    name = clean(source.path.stem, MAX_NAME)
    at = 0

    def read(count: int) -> bytes:
        nonlocal at
        part = source.read(at, min(count, source.size - at))
        at += len(part)
        return part

    header = read_header(source, name, read)
    tensor = header.tensor(name)
    check_total(source, tensor.stored_bytes, limits)
    check_length(source, tensor, source.size - header.n_bytes)
    return [
        StoredTensor(
            tensor, lambda: source.blocks(header.n_bytes, tensor.stored_bytes), header.big_endian, header.fortran_order
        )
    ]


def check_length(source: DumpSource, tensor: DumpTensor, there: int) -> None:
    """Refuse values that are fewer or more than the shape says. Raises InputError."""
    if there != tensor.stored_bytes:
        text = f"{there:,} bytes of values: shape {show(tensor.shape)} of {tensor.dtype} takes {tensor.stored_bytes:,}"
        raise source.error(f"{text}: copy or write the file again", tensor.name)
