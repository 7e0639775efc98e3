"""The header of a GGUF file and its tensors, walked by our own code: no announced number is believed before it fits.

Format: the page gguf of ggml-org/ggml. The package `gguf` turns blocks into numbers; its reader is not used: it maps
the file into memory, where one that is cut short ends the process, and takes counts and lengths as they come.
"""

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from dse.core.errors import InputError, show
from dse.measure.dumps.source import BLOCK_BYTES, DumpSource
from dse.measure.dumps.stored import check_name

#: bytes of a header that are read: of Llama 4, with 200,000 tokens and 440,000 merges, it has 12 million
MAX_HEADER = 2**26
MAX_ITEMS, MAX_AXES, MAX_ALIGNMENT = 2**22, 4, 2**20
#: `struct`'s letter of each type of a value; 8 is text and 9 an array of one of the others
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_AGAIN = "download the file again"


@dataclass(frozen=True)
class GgufTensor:
    """A tensor as the header describes it: its shape, rows first, and where its blocks lie in the file."""

    name: str
    kind: Any
    shape: tuple[int, ...]
    start: int
    n_bytes: int


class GgufFile:
    """An open GGUF file: `meta`, its values by key, and `tensors` by name. Raises InputError for a damaged one."""

    def __init__(self, path: str) -> None:
        self.source = DumpSource(path, "the path of a .gguf file")
        self.path = path
        self._bytes, self._at = bytearray(), 0
        self.meta: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._walk()
        self._bytes = bytearray()

    def damaged(self, what: str) -> InputError:
        """The error for a file that is not what its header says."""
        return self.source.error(f"is cut or damaged: {what}: {_AGAIN}")

    def _take(self, n_bytes: int) -> int:
        """The place in `_bytes` of the next bytes of the header."""
        start, end = self._at, self._at + n_bytes
        if end > self.source.size:
            raise self.damaged(f"its header wants {n_bytes:,} bytes more at byte {start:,} of {self.source.size:,}")
        if end > MAX_HEADER:
            raise self.source.limit(f"its header has more than {MAX_HEADER:,} bytes: is it a model?")
        while len(self._bytes) < end:
            at = len(self._bytes)
            self._bytes += self.source.read(at, min(BLOCK_BYTES, self.source.size - at))
        self._at = end
        return start

    def _number(self, letter: str) -> Any:
        return struct.unpack_from(f"<{letter}", self._bytes, self._take(struct.calcsize(f"<{letter}")))[0]

    def _count(self, least_bytes: int, what: str) -> int:
        """A number of things to come, of so many bytes each at least."""
        count: int = self._number("Q")
        if count * least_bytes > min(self.source.size, MAX_HEADER) - self._at:
            raise self.damaged(f"it announces {count:,} {what} in {self.source.size:,} bytes")
        if count > MAX_ITEMS:
            raise self.source.limit(f"its header has {count:,} {what}: at most {MAX_ITEMS:,} are read: is it a model?")
        return count

    def _text(self) -> str:
        n_bytes: int = self._number("Q")
        start = self._take(n_bytes)
        return self._bytes[start : start + n_bytes].decode("utf-8", "surrogateescape")

    def _value(self) -> Any:
        kind = self._number("I")
        if kind != _ARRAY:
            return self._one(kind)
        kind = self._number("I")
        if kind == _TEXT:
            return [self._text() for _ in range(self._count(8, "texts"))]
        if kind not in _NUMBERS:
            raise self.damaged(f"it holds an array of type {kind}")
        letter = _NUMBERS[kind]
        size = struct.calcsize(letter)
        count = self._count(size, "numbers")
        start = self._take(count * size)
        return np.frombuffer(self._bytes[start : start + count * size], f"<{letter}").tolist()

    def _one(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind not in _NUMBERS:
            raise self.damaged(f"it holds a value of type {kind}")
        return self._number(_NUMBERS[kind])

    def _walk(self) -> None:
        magic = self.source.read(0, min(4, self.source.size))
        if magic != b"GGUF":
            raise self.source.error(f"begins with {show(magic)}: a GGUF file begins with b'GGUF'")
        self._take(4)
        version = self._number("I")
        if version not in (2, 3):
            raise self.source.error(f"is of version {version:,} of the format: 2 and 3 are read, little-endian")
        n_tensors = self._count(24, "tensors")
        for _ in range(self._count(13, "keys")):
            key = self._text()
            if key in self.meta:
                raise self.damaged(f"key {show(key)} is there twice")
            self.meta[key] = self._value()
        entries = [self._tensor() for _ in range(n_tensors)]
        alignment = self.meta.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self.damaged(f"general.alignment = {show(alignment)}")
        start = -(-self._at // alignment) * alignment
        end = 0
        for name, kind, shape, offset, n_bytes in sorted(entries, key=lambda entry: entry[3]):
            if name in self.tensors:
                raise self.damaged(f"tensor {show(name)} is there twice")
            if offset % alignment or offset < end:
                raise self.damaged(f"tensor {show(name)} begins at byte {offset:,} of the values, in another one")
            end = offset + n_bytes
            if start + end > self.source.size:
                raise self.damaged(f"tensor {show(name)} ends at byte {start + end:,} of {self.source.size:,}")
            self.tensors[name] = GgufTensor(name, kind, shape, start + offset, n_bytes)

    def _tensor(self) -> tuple[str, Any, tuple[int, ...], int, int]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name = self._text()
        check_name(self.source, name)
        n_axes = self._number("I")
        if not 1 <= n_axes <= MAX_AXES:
            raise self.damaged(f"tensor {show(name)} has {n_axes:,} axes")
        shape = tuple(self._number("Q") for _ in range(n_axes))[::-1]
        kind, offset = self._number("I"), self._number("Q")
        try:
            kind = GGMLQuantizationType(kind)
        except ValueError:
            raise self.damaged(f"tensor {show(name)} is of type {kind:,}") from None
        n_values, n_bytes = GGML_QUANT_SIZES[kind]
        if not all(shape) or shape[-1] % n_values:
            raise self.damaged(f"tensor {show(name)} has the shape {show(list(shape))} of type {kind.name}")
        return name, kind, shape, offset, math.prod(shape) // n_values * n_bytes

    def read(self, name: str, rows: np.ndarray | None = None) -> np.ndarray:
        """A tensor, or these rows of it, in float32. Raises InputError, and LimitError where memory is short."""
        from gguf.quants import dequantize

        of = self.tensors[name]
        row_bytes = of.n_bytes // math.prod(of.shape[:-1])
        try:
            if rows is None:
                parts, shape = self.source.blocks(of.start, of.n_bytes), of.shape[:-1]
            else:
                starts = (of.start + row * row_bytes for row in rows.tolist())
                parts, shape = (self.source.read(start, row_bytes) for start in starts), (len(rows),)
            blocks, done = np.empty(math.prod(shape) * row_bytes, np.uint8), 0
            for part in parts:
                blocks[done : done + len(part)] = np.frombuffer(part, np.uint8)
                done += len(part)
            with np.errstate(all="ignore"):  # a damaged scale is a number like others
                return np.asarray(dequantize(blocks.reshape(*shape, row_bytes), of.kind), np.float32)
        except NotImplementedError as error:
            text = f"type {of.kind.name} cannot be dequantized by gguf"
            raise self.source.error(text, name) from error
        except MemoryError as error:
            raise self.source.limit(f"its {4 * math.prod(of.shape):,} bytes do not fit into memory", name) from error
