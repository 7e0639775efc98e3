"""Request traces from CSV files: of Azure's schema or BurstGPT's, told apart by their header, of any size.

Azure: TIMESTAMP, ContextTokens, GeneratedTokens (2023 and 2024). BurstGPT: Timestamp, Request tokens, Response tokens,
beside columns that are not read; its rows without tokens are requests that failed and are left out, counted. Names in
any case, other columns allowed anywhere. What is wrong is one line with file, line and column. Files are read block by
block.
"""

import csv
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import BinaryIO

import numpy as np

from dse.core import files
from dse.core.errors import InputError, LimitError, did_you_mean, show
from dse.core.progress import Progress
from dse.serving import trace_scan
from dse.serving.requests import MAX_TOKENS, Counter, Ints, Lengths, Requests
from dse.serving.trace_scan import INPUT, MAX_SECONDS, NANOSECONDS, OUTPUT, SKIP, TIME

#: requests that `read` keeps in memory; longer files have moments and lengths only
MAX_REQUESTS = 20_000_000
#: bytes read at a time: at most 2^18 rows, since a row has 6 bytes or more with its newline
BLOCK_BYTES = 2**20
MAX_LINE_BYTES = 2**17
#: from this size on the rows are scanned by compiled code
COMPILE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Schema:
    """Names of the columns that are read, and whether rows without tokens are failed requests."""

    name: str
    time: str
    input: str
    output: str
    has_failures: bool
    is_iso: bool


SCHEMAS = (
    Schema(
        name="Azure", time="TIMESTAMP", input="ContextTokens", output="GeneratedTokens", has_failures=False, is_iso=True
    ),
    Schema(
        name="BurstGPT",
        time="Timestamp",
        input="Request tokens",
        output="Response tokens",
        has_failures=True,
        is_iso=False,
    ),
)

_OLD_MAC = "lines end with a carriage return alone, as on old Macs: save the file with line feeds (LF or CRLF)"
_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?",
    re.ASCII,
)
_SECONDS = re.compile(r"([0-9]{1,10})(?:\.([0-9]{1,9}))?", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,12}", re.ASCII)


@dataclass(frozen=True)
class Summary:
    """Statistics of a trace of any size."""

    path: str
    schema: str
    lengths: Lengths
    #: rows of failed requests, left out
    n_failed: int


@dataclass
class _RowReader:
    """A file on the way: its header, and where it has got to."""

    path: str
    schema: Schema
    kinds: list[int]
    line: int = 1
    #: time of the row above, in nanoseconds
    before: int = 0
    n_failed: int = 0
    #: times, prompts and answers of a block
    numbers: Ints = field(default_factory=lambda: np.empty((3, BLOCK_BYTES // 4 + 1), np.int64))

    @property
    def least_tokens(self) -> int:
        """Zero is allowed where it marks a failed request."""
        return 0 if self.schema.has_failures else 1

    def problem(self, text: str) -> InputError:
        return InputError(f"{self.path}:{self.line}: {text}")

    def rows(self, lines: bytes, scan: Callable[..., tuple[int, int]] | None) -> tuple[Ints, Ints, Ints]:
        """Times, prompts and answers of whole lines, each ended by a newline."""
        n, position, end = 0, 0, len(lines)
        data = np.frombuffer(lines, np.uint8)
        columns = trace_scan.Columns(np.array(self.kinds), self.schema.is_iso, self.least_tokens, MAX_TOKENS)
        while position < end:
            if scan:
                begun = n
                position, n = scan(data, position, columns, self.before, self.numbers, n)
                self.line += n - begun
                self.before = int(self.numbers[0, n - 1]) if n > begun else self.before
                if position == end:
                    break
            after = lines.index(b"\n", position) + 1
            self.line += 1
            row = self.row(lines[position:after])
            position = after
            if row:
                self.numbers[:, n] = row
                self.before = row[0]
                n += 1
        times, inputs, outputs = self.numbers[:, :n]
        if self.schema.has_failures:
            good = (inputs > 0) & (outputs > 0)
            self.n_failed += n - int(good.sum())
            return times[good], inputs[good], outputs[good]
        return times, inputs, outputs

    def row(self, line: bytes) -> tuple[int, int, int] | None:
        """One line, read with care; None where it is blank. Raises InputError for whatever is wrong with it."""
        cells = self.cells(line)
        if not any(cells):
            return None
        if len(cells) != len(self.kinds):
            n = len(cells)
            raise self.problem(f"has {n} cell{'' if n == 1 else 's'}: the header has {len(self.kinds)} columns")
        schema = self.schema
        time = self.time(cells[self.kinds.index(TIME)])
        inputs = self.length(schema.input, cells[self.kinds.index(INPUT)])
        outputs = self.length(schema.output, cells[self.kinds.index(OUTPUT)])
        return time, inputs, outputs

    def cells(self, line: bytes) -> list[str]:
        """The cells of a line, without blanks around them."""
        if len(line) > MAX_LINE_BYTES:
            raise self.problem(f"has {len(line):,} bytes: a row has at most {MAX_LINE_BYTES:,}: give a CSV file")
        if b"\0" in line:
            raise self.problem("holds a NUL byte: give a CSV file, saved as UTF-8")
        if b"\r" in line.rstrip(b"\r\n") and b'"' not in line:
            raise self.problem(_OLD_MAC)
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise self.problem("is not UTF-8 text: save the CSV file as UTF-8") from error
        try:
            # line by line: an unterminated quote must not swallow the rest of the file
            rows = list(csv.reader([text.rstrip("\r\n")], strict=True))
        except csv.Error as error:
            raise self.problem(f"is not valid CSV: {error}: look for a quote that is not closed") from error
        return [cell.strip(" \t") for cell in rows[0]] if rows else []

    def length(self, name: str, cell: str) -> int:
        """Tokens of a cell."""
        least = self.least_tokens
        if not _DIGITS.fullmatch(cell) or not least <= int(cell) <= MAX_TOKENS:
            raise self.problem(f"{name} = {show(cell)}: must be a whole number from {least} to {MAX_TOKENS:,}")
        return int(cell)

    def time(self, cell: str) -> int:
        """Nanoseconds, not before those of the row above."""
        name = self.schema.time
        moment = _iso(cell) if self.schema.is_iso else _seconds(cell)
        if moment is None:
            like = "a time such as 2023-11-16 18:15:46.6805900" if self.schema.is_iso else "seconds such as 45 or 45.5"
            raise self.problem(f"{name} = {show(cell)}: must be {like}")
        if moment < self.before:
            raise self.problem(f"{name} = {show(cell)}: must not be before the row above: sort the rows by time")
        return moment


def _nanoseconds(fraction: str | None) -> int:
    return int((fraction or "").ljust(9, "0"))


def _iso(cell: str) -> int | None:
    match = _ISO.fullmatch(cell)
    if not match:
        return None
    try:
        whole = datetime.fromisoformat(f"{match[1]}T{match[2]}{match[4] or '+00:00'}")
    except ValueError:
        return None
    seconds = (whole - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution * 1_000_000)
    return seconds * NANOSECONDS + _nanoseconds(match[3]) if 0 <= seconds <= MAX_SECONDS else None


def _seconds(cell: str) -> int | None:
    match = _SECONDS.fullmatch(cell)
    if not match or int(match[1]) > MAX_SECONDS:
        return None
    return int(match[1]) * NANOSECONDS + _nanoseconds(match[2])


def _kinds(path: str, header: list[str]) -> tuple[Schema, list[int]]:
    """The schema of a header and what each of its columns holds. Raises InputError naming what is missing."""

    def columns(schema: Schema) -> dict[str, list[str]]:
        """Each name with the cells of the header that are it: as written, else in another case."""
        names = (schema.time, schema.input, schema.output)
        return {
            name: [cell for cell in header if cell == name] or [cell for cell in header if cell.lower() == name.lower()]
            for name in names
        }

    schema = max(SCHEMAS, key=lambda s: (sum(map(bool, columns(s).values())), sum(c in header for c in columns(s))))
    given = columns(schema)
    if not any(given.values()):
        hint = "separate cells by commas" if len(header) == 1 and ";" in header[0] else "the first line names columns"
        known = " or ".join(f"{s.time}, {s.input}, {s.output} ({s.name})" for s in SCHEMAS)
        raise InputError(f"{path}:1: header = {show(','.join(header))}: must have {known}: {hint}")
    others = [cell for cell in header if not any(cell in cells for cells in given.values())]
    for name, cells in given.items():
        if not cells:
            hint = did_you_mean(name, others)
            if not others or not hint.startswith("did"):
                hint = f"the header has {show(','.join(header))}"
            raise InputError(f"{path}:1: column {name} is missing: {hint}")
        if len(cells) > 1:
            raise InputError(f"{path}:1: column {show(cells[0])} is given twice: give it once")
    places = {given[schema.time][0]: TIME, given[schema.input][0]: INPUT, given[schema.output][0]: OUTPUT}
    return schema, [places.get(name, SKIP) for name in header]


def _whole_lines(file: BinaryIO, path: str) -> Iterator[bytes]:
    """Blocks of whole lines, each ended by a newline. Memory is flat: a line has at most MAX_LINE_BYTES."""
    rest = b""
    n_lines = 0
    while block := file.read(BLOCK_BYTES):
        block = rest + block
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        n_lines += block.count(b"\n", 0, end)
        if len(rest) > MAX_LINE_BYTES:
            if n_lines == 0 and b"\r" in rest:
                raise InputError(f"{path}:1: {_OLD_MAC}")
            raise InputError(
                f"{path}:{n_lines + 1}: has more than {MAX_LINE_BYTES:,} bytes: give a CSV file with a row a line"
            )
        if end:
            yield block[:end]
    if rest:
        yield rest + b"\n"


def _blocks(
    path: str, progress: Progress | None, compile_bytes: int
) -> Iterator[tuple[_RowReader, tuple[Ints, Ints, Ints]]]:
    """The reader and the times, prompts and answers of one block after the other."""
    file, size = files.open_regular(path, "the path of a .csv file, or a shipped trace")
    scan = trace_scan.compiled() if size >= compile_bytes else None
    reader: _RowReader | None = None
    with file:
        blocks = _whole_lines(file, path)
        n_blocks = -(-size // BLOCK_BYTES)
        with progress(blocks, label="trace", length=n_blocks) if progress else nullcontext(blocks) as shown:
            for lines in shown:
                if reader is None:
                    if lines.startswith((b"\xff\xfe", b"\xfe\xff")):
                        raise InputError(f"{path}:1: is UTF-16 text: save the CSV file as UTF-8")
                    header, _, lines = lines.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
                    cells = _RowReader(path=path, schema=SCHEMAS[0], kinds=[]).cells(header)
                    schema, kinds = _kinds(path, cells)
                    reader = _RowReader(path=path, schema=schema, kinds=kinds)
                yield reader, reader.rows(lines, scan)
    if reader is None:
        raise InputError(f"{path}: is empty: give a CSV file with a header and a row for each request")


def _no_rows(reader: _RowReader) -> InputError:
    if reader.n_failed:
        failed = f"{reader.n_failed:,} failed request{'' if reader.n_failed == 1 else 's'}"
        return InputError(f"{reader.path}: has {failed} and no other: give another trace")
    return InputError(f"{reader.path}: has a header but no rows: add a row for each request")


def summary(path: str, progress: Progress | None = None, compile_bytes: int = COMPILE_BYTES) -> Summary:
    """Moments and lengths of a trace of any size, read block by block: memory is flat.

    Raises InputError with file, line and column.
    """
    counter = Counter()
    first, last = None, 0
    for reader, (times, inputs, outputs) in _blocks(path, progress, compile_bytes):  # noqa: B007
        if len(times):
            first, last = int(times[0]) if first is None else first, int(times[-1])
            counter.add(inputs, outputs)
    if first is None:
        raise _no_rows(reader)
    return Summary(path, reader.schema.name, counter.lengths((last - first) / NANOSECONDS), reader.n_failed)


def read(
    path: str, progress: Progress | None = None, max_requests: int = MAX_REQUESTS, compile_bytes: int = COMPILE_BYTES
) -> Requests:
    """All requests of a trace, in memory. Raises InputError as `summary`, LimitError above `max_requests`."""
    parts: list[tuple[Ints, Ints, Ints]] = []
    n = 0
    for reader, block in _blocks(path, progress, compile_bytes):  # noqa: B007
        parts.append(tuple(values.copy() for values in block))  # type: ignore[arg-type]
        n += len(block[0])
        if n > max_requests:
            raise LimitError(
                f"{path}: has more than {max_requests:,} requests: too many to keep in memory: give a part of it"
            )
    if not n:
        raise _no_rows(reader)
    times, inputs, outputs = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Requests((times - times[0]) / NANOSECONDS, inputs, outputs)
