"""The directory of a sweep: parts that appear whole or not at all, a manifest with their hashes, one writer at a time.

    _spec.json       what was asked, with its hash and the versions that decide the bytes; written first
    part-000000.parquet, ...   the table in order of the points; `pandas.read_parquet(DIR)` reads them all
    _manifest.json   rows and SHA-256 of every part; "complete" is true at the end
    .lock            held by the process that writes

Nothing in these files depends on time, host, user, path or the number of threads.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dse import __version__, files
from dse.errors import BusyError, InputError, OutputError, clean, show
from dse.sweep_points import CODES
from dse.sweep_spec import Sweep

FORMAT = 1
SPEC, MANIFEST, LOCK = "_spec.json", "_manifest.json", ".lock"
#: bytes read at a time to hash a part, and the largest JSON file that is read
BLOCK_BYTES, MAX_JSON_BYTES = 2**22, 2**26
_PART = re.compile(r"part-([0-9]{6,})\.parquet")
_TEMPORARY = re.compile(r"\..{8}\.part")


@dataclass(frozen=True)
class Part:
    """A finished part: the points first..last-1 of the grid, less those that conditions drop."""

    number: int
    first: int
    last: int
    rows: int
    sha256: str
    #: rows by `infeasible_code`
    codes: tuple[int, ...]

    @property
    def name(self) -> str:
        """Its file."""
        return part_name(self.number)


def part_name(number: int) -> str:
    """File of a part."""
    return f"part-{number:06d}.parquet"


def publish(folder: Path, part: Part, content: Any) -> None:
    """Put the file of a part in place: temporary name, sync, rename, sync of the directory. Raises OutputError."""
    files.write(folder / part.name, content)
    files.sync(folder)


def n_parts(sweep: Sweep) -> int:
    """Parts of a whole sweep."""
    return -(-sweep.n_points // sweep.part_points)


@dataclass
class Manifest:
    """Finished parts by number."""

    spec_sha256: str
    n_parts: int
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True when every part is there."""
        return len(self.parts) == self.n_parts

    @property
    def n_rows(self) -> int:
        """Rows of the finished parts."""
        return sum(part.rows for part in self.parts.values())

    @property
    def codes(self) -> list[int]:
        """Rows of the finished parts by `infeasible_code`."""
        return [sum(column) for column in zip(*(part.codes for part in self.parts.values()), strict=True)] or [0]

    def to_json(self) -> bytes:
        """The file, a part a line, in order."""
        head = {"format": FORMAT, "spec_sha256": self.spec_sha256, "n_parts": self.n_parts, "complete": self.complete}
        rows = [
            json.dumps({"file": p.name, "first": p.first, "last": p.last, "rows": p.rows, "sha256": p.sha256,
                        "codes": p.codes})
            for _, p in sorted(self.parts.items())
        ]  # fmt: skip
        start = json.dumps({**head, "n_rows": self.n_rows})[:-1]
        return (start + ', "parts": [\n' + ",\n".join(rows) + "\n]}\n").encode()

    def write(self, folder: Path) -> None:
        """Put it in place. Raises OutputError."""
        files.write(folder / MANIFEST, self.to_json())
        files.sync(folder)


def header(sweep: Sweep) -> dict[str, Any]:
    """The content of _spec.json."""
    import pyarrow

    return {
        "format": FORMAT,
        "spec_sha256": sweep.sha256,
        "dse": __version__,
        "pyarrow": pyarrow.__version__,
        "title": sweep.title,
        "n_points": sweep.n_points,
        "part_points": sweep.part_points,
        "columns": sweep.columns,
        "infeasible_codes": dict(enumerate(CODES)),
        "spec": sweep.identity,
    }


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()


def load_json(path: Path) -> dict[str, Any] | None:
    """A JSON object that was written here; None if it is missing or damaged. Raises OutputError if unreadable."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return None
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return None
    except OSError as error:
        raise OutputError(f"{show(str(path))} cannot be read: {_reason(error)}") from error
    return found if isinstance(found, dict) else None


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def is_folder(out: str | Path) -> bool:
    """True for a directory, False for what could become one. Raises InputError for a file or no name."""
    text = str(out)
    if not text or "\0" in text:
        raise InputError(f"out = {show(text)}: is not a directory name: give another --out")
    with contextlib.suppress(OSError):
        if Path(out).exists() and not Path(out).is_dir():
            raise InputError(f"out = {show(text)}: is a file: give a directory")
        return Path(out).is_dir()
    return False


@contextlib.contextmanager
def locked(out: str | Path, what: str = "sweep") -> Iterator[Path]:
    """The directory, created if need be, held by this process alone until the block ends.

    The lock is `flock`'s, so that it dies with its holder. Raises InputError for a file or a bad name, BusyError where
    another process holds it, OutputError where it cannot be written.
    """
    is_folder(out)
    text, folder = str(out), Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(folder / LOCK, flags, 0o666)
    except OSError as error:
        raise OutputError(f"cannot write {show(text)}: {_reason(error)}: give another directory with --out") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
                who = f" (process {holder})" if holder.isdigit() else ""
                raise BusyError(f"{show(text)} is being written by another {what}{who}: wait for it") from None
            raise OutputError(f"cannot lock {show(text)}: {_reason(error)}: give a local directory") from error
        try:
            with contextlib.suppress(OSError):  # who holds it is for messages only
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield folder
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def check(folder: Path, sweep: Sweep) -> None:
    """Raises InputError where an existing directory holds something else than this sweep; changes nothing."""
    spec, manifest = load_json(folder / SPEC), load_json(folder / MANIFEST)
    if spec is not None:
        _same(folder, spec, header(sweep))
        return
    own = {LOCK, SPEC, MANIFEST}
    others = sorted(
        path.name for path in folder.iterdir() if path.name not in own and not _TEMPORARY.fullmatch(path.name)
    )
    begun = manifest is not None and manifest.get("spec_sha256") == sweep.sha256
    if not begun and (others or (folder / SPEC).exists() or (folder / MANIFEST).exists()):
        what = f"files such as {show(others[0])}" if others else "a sweep whose _spec.json is damaged"
        raise InputError(f"out = {show(str(folder))}: holds {what}: give another directory")


def begin(folder: Path, sweep: Sweep) -> tuple[Manifest, list[str]]:
    """The finished parts of an earlier run that can be trusted, and a line for each thing that was set aside.

    A new directory gets its _spec.json. Raises InputError where the directory holds something else.
    """
    check(folder, sweep)
    notes: list[str] = []
    wanted = header(sweep)
    spec, manifest = load_json(folder / SPEC), load_json(folder / MANIFEST)
    if spec is None and (folder / SPEC).exists():
        notes.append(_set_aside(folder / SPEC, "is damaged"))
    _clean(folder)
    if spec is None or spec != json.loads(json.dumps(wanted)):
        files.write(folder / SPEC, _json(wanted))
        files.sync(folder)
    if manifest is None and (folder / MANIFEST).exists():
        notes.append(_set_aside(folder / MANIFEST, "is damaged"))
    found = Manifest(sweep.sha256, n_parts(sweep))
    parts = parts_of(manifest) if manifest and manifest.get("spec_sha256") == sweep.sha256 else {}
    for number, part in parts.items():
        if number >= found.n_parts:
            continue
        problem = damage(folder, part)
        if not problem:
            found.parts[number] = part
        elif (folder / part.name).exists():
            notes.append(_set_aside(folder / part.name, problem))
        else:
            notes.append(f"{part.name} {problem}: it is done again")
    for path in sorted(folder.glob("part-*")):
        match = _PART.fullmatch(path.name)
        if not match or int(match[1]) >= found.n_parts or part_name(int(match[1])) != path.name:
            notes.append(_set_aside(path, "is no part of this sweep"))
    return found, notes


def _same(folder: Path, spec: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse the directory of another sweep, or of versions that would write other bytes."""
    where = f"out = {show(str(folder))}"
    if spec.get("format") != FORMAT:
        raise InputError(f"{where}: has format {show(spec.get('format'))}, not {FORMAT}: give another directory")
    if spec.get("spec_sha256") != wanted["spec_sha256"]:
        title = spec.get("title") or f"spec {str(spec.get('spec_sha256'))[:12]}"
        raise InputError(f"{where}: holds another sweep ({show(title)}): give another directory")
    for name in ("dse", "pyarrow"):
        if spec.get(name) != wanted[name]:
            raise InputError(
                f"{where}: was begun with {name} {show(spec.get(name))}, not {wanted[name]}: give another directory"
            )


def _set_aside(path: Path, problem: str) -> str:
    """Rename what cannot be used so that no reader takes it for a part; says so."""
    name = f"_{path.name}.bad"
    number = 1
    while (path.parent / name).exists():
        number += 1
        name = f"_{path.name}.{number}.bad"
    try:
        os.replace(path, path.parent / name)
    except OSError as error:
        raise OutputError(f"cannot rename {show(str(path))}: {_reason(error)}") from error
    return f"{path.name} {problem}: set aside as {clean(name, 100)}"


def _clean(folder: Path) -> None:
    """Remove what a killed run left behind under temporary names."""
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def parts_of(manifest: dict[str, Any]) -> dict[int, Part]:
    """The parts that a manifest lists; entries that make no sense are left out, so that they are done again."""
    found: dict[int, Part] = {}
    entries = manifest.get("parts")
    for entry in entries if isinstance(entries, list) else []:
        try:
            match = _PART.fullmatch(entry["file"])
            numbers = [entry["first"], entry["last"], entry["rows"], *entry["codes"]]
            if match and all(type(n) is int and n >= 0 for n in numbers) and len(entry["codes"]) == len(CODES):
                first, last, rows = numbers[:3]
                part = Part(int(match[1]), first, last, rows, str(entry["sha256"]), tuple(entry["codes"]))
                found[part.number] = part
        except (TypeError, KeyError):
            continue
    return found


def damage(folder: Path, part: Part) -> str:
    """What is wrong with the file of a part, or ""."""
    path = folder / part.name
    try:
        if path.is_symlink() or not path.is_file():
            return "is missing" if not path.exists() else "is no file"
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        return f"cannot be read ({_reason(error)})"
    return "" if digest.hexdigest() == part.sha256 else "is damaged (its SHA-256 is another)"


def manifest_of(folder: Path) -> tuple[dict[str, Any], Manifest]:
    """_spec.json and the manifest of a directory. Raises InputError if it holds no sweep."""
    if not folder.is_dir():
        raise InputError(f"{show(str(folder))}: is not a directory: give the --out of `dse sweep`")
    spec, found = load_json(folder / SPEC), load_json(folder / MANIFEST) or {}
    if spec is None or not isinstance(spec.get("n_points"), int) or not isinstance(spec.get("part_points"), int):
        raise InputError(f"{show(str(folder))}: holds no sweep (no readable {SPEC}): give the --out of `dse sweep`")
    if spec.get("format") != FORMAT:
        raise InputError(f"{show(str(folder))}: has format {show(spec.get('format'))}: this version reads {FORMAT}")
    if found and found.get("spec_sha256") != spec.get("spec_sha256"):
        found = {}
    total = -(-spec["n_points"] // max(spec["part_points"], 1))
    parts = {number: part for number, part in parts_of(found).items() if number < total}
    return spec, Manifest(str(spec.get("spec_sha256")), total, parts)


def verify(out: str | Path) -> tuple[Manifest, list[str]]:
    """The manifest of a directory, and a line for each part that is missing or damaged."""
    folder = Path(out)
    _, manifest = manifest_of(folder)
    problems = [f"{part.name} {text}" for _, part in sorted(manifest.parts.items()) if (text := damage(folder, part))]
    if not manifest.complete:
        problems.append(f"{manifest.n_parts - len(manifest.parts):,} of {manifest.n_parts:,} parts are not done")
    return manifest, problems
