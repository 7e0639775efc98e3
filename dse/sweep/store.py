"""The directory of a sweep: parts that appear whole or not at all, a manifest with their hashes, one writer at a time.

    _spec.json       what was asked, with its hash and the versions that decide the bytes; written first
    part-000000.parquet, ...   the table in order of the points; `pandas.read_parquet(DIR)` reads them all
    _front-000000.parquet, ..., front.parquet   of a sweep that keeps a front: those of its parts, and that of all
    _manifest.json   rows and SHA-256 of every part; "complete" is true at the end
    .lock            held by the process that writes

Nothing in these files depends on time, host, user, path or the number of threads. `pyarrow.dataset` reads such a
directory but does not write it: its files have their last names before they are whole, are not synced, have no hash.
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
from functools import cache
from pathlib import Path
from typing import Any

import hwspecs
from dse.core import files, specfile
from dse.core.errors import BusyError, InputError, OutputError, clean, show
from dse.core.version import VERSION
from dse.sweep.columns import CODES
from dse.sweep.spec import Sweep

FORMAT = 2
SPEC, MANIFEST, LOCK = "_spec.json", "_manifest.json", ".lock"
#: bytes read at a time to hash a part, and the largest JSON file that is read
BLOCK_BYTES, MAX_JSON_BYTES = 2**22, 2**26
FRONT = "front.parquet"
#: counts of a part of a front that its line of the manifest has
_LEFT_OUT = ("n_missing", "n_beyond", "n_refused")
_PART = re.compile(r"(part|_front)-([0-9]{6,})\.parquet")


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
    #: of a front: points left out since an objective is missing
    n_missing: int = 0
    is_front: bool = False
    #: of a front: feasible points beyond its limits, and those that no software of their device runs
    n_beyond: int = 0
    n_refused: int = 0

    @property
    def name(self) -> str:
        """Its file."""
        return part_name(self.number, self.is_front)


def part_name(number: int, is_front: bool = False) -> str:
    """File of a part; readers of a directory skip those of fronts of parts, as they start with "_"."""
    return f"{'_front' if is_front else 'part'}-{number:06d}.parquet"


def n_parts(sweep: Sweep) -> int:
    """Parts of a whole sweep."""
    return -(-sweep.n_points // sweep.part_points)


@dataclass
class Manifest:
    """Finished parts by number."""

    spec_sha256: str
    n_parts: int
    parts: dict[int, Part] = field(default_factory=dict)
    #: of a sweep that keeps a front: rows and SHA-256 of its file, once that is there
    front: tuple[int, str] | None = None
    is_front: bool = False

    @property
    def complete(self) -> bool:
        """True when every part is there, and the front of them."""
        is_whole = len(self.parts) == self.n_parts and all(number < self.n_parts for number in self.parts)
        return is_whole and (self.front is not None or not self.is_front)

    @property
    def n_rows(self) -> int:
        """Rows of the front, or of the finished parts."""
        return self.front[0] if self.front else sum(part.rows for part in self.parts.values())

    @property
    def codes(self) -> list[int]:
        """Rows of the finished parts by `infeasible_code`."""
        return [sum(column) for column in zip(*(part.codes for part in self.parts.values()), strict=True)] or [0]

    def to_json(self) -> bytes:
        """The file, a part a line, in order."""
        head = {"format": FORMAT, "spec_sha256": self.spec_sha256, "n_parts": self.n_parts, "complete": self.complete}
        rows = [
            json.dumps(
                {
                    "file": p.name,
                    "first": p.first,
                    "last": p.last,
                    "rows": p.rows,
                    "sha256": p.sha256,
                    "codes": p.codes,
                    **({name: getattr(p, name) for name in _LEFT_OUT} if p.is_front else {}),
                }
            )
            for _, p in sorted(self.parts.items())
        ]
        whole = {"front": dict(zip(("rows", "sha256"), self.front, strict=True))} if self.front else {}
        start = json.dumps({**head, "n_rows": self.n_rows, **whole})[:-1]
        return (start + ', "parts": [\n' + ",\n".join(rows) + "\n]}\n").encode()

    def write(self, folder: Path) -> None:
        """Put it in place. Raises OutputError."""
        files.write(folder / MANIFEST, self.to_json())
        files.sync(folder)


#: packages of dse that a row of a sweep is computed by; contracts in pyproject.toml let `sweep` import no others
RESULTS_FROM = ("core", "quantizers", "specs", "model", "sweep", "data")
#: shipped numbers that results depend on beside the devices and models of a sweep, which its plan has
NUMBERS_FROM = (
    "servers",
    "benchmarked",
    "stacks",
    "implementations",
    "links.toml",
    "releases.toml",
    "shared_errors.toml",
)


@cache
def code_sha256() -> str:
    """Hash of the sources that results depend on: rows of other formulas must not be mixed, whatever the version says.

    The packages of RESULTS_FROM and the numbers of NUMBERS_FROM, and no others: commands, figures and pages change no
    result. Nor does `__pycache__`, where compiled code is kept.
    """
    numbers, digest = Path(hwspecs.__file__).parent, hashlib.sha256()
    for folder, names in ((Path(__file__).parents[1], RESULTS_FROM), (numbers, NUMBERS_FROM)):
        places = [folder / name for name in names]
        paths = [path for place in places for path in (place, *place.rglob("*.*")) if "__pycache__" not in path.parts]
        for path in filter(Path.is_file, sorted(paths)):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + files.read_bytes(path))
    return digest.hexdigest()


def header(sweep: Sweep) -> dict[str, Any]:
    """The content of _spec.json."""
    import pyarrow

    return {
        "format": FORMAT,
        "spec_sha256": sweep.sha256,
        "dse": VERSION,
        "pyarrow": pyarrow.__version__,
        "code": code_sha256(),
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
        file, size = files.open_regular(path, "another directory")
        with file:
            data = specfile.load_json(file.read(MAX_JSON_BYTES).decode()) if size <= MAX_JSON_BYTES else None
    except (ValueError, RecursionError):
        return None
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise OutputError(str(error)) from error
    except OSError as error:
        raise OutputError(f"{show(str(path))} cannot be read: {_reason(error)}") from error
    return data if isinstance(data, dict) else None


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
    known = {LOCK, SPEC, MANIFEST}
    others = sorted(
        path.name for path in folder.iterdir() if path.name not in known and not files.TEMPORARY.fullmatch(path.name)
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
    files.recover(folder)
    if spec is None or spec != json.loads(json.dumps(wanted)):
        files.write(folder / SPEC, _json(wanted))
        files.sync(folder)
    if manifest is None and (folder / MANIFEST).exists():
        notes.append(_set_aside(folder / MANIFEST, "is damaged"))
    is_front = sweep.front is not None
    resumed = Manifest(sweep.sha256, n_parts(sweep), is_front=is_front)
    parts = parts_of(manifest) if manifest and manifest.get("spec_sha256") == sweep.sha256 else {}
    for number, part in parts.items():
        if number >= resumed.n_parts or part.is_front != is_front:
            continue
        problem = damage(folder, part)
        if not problem:
            resumed.parts[number] = part
        elif (folder / part.name).exists():
            notes.append(_set_aside(folder / part.name, problem))
        else:
            notes.append(f"{part.name} {problem}: it is done again")
    for path in sorted([*folder.glob("part-*"), *folder.glob("_front-*")]):
        match = _PART.fullmatch(path.name)
        if not match or int(match[2]) >= resumed.n_parts or part_name(int(match[2]), is_front) != path.name:
            notes.append(_set_aside(path, "is no part of this sweep"))
    front = front_of(manifest) if manifest and is_front and parts else None
    if front is not None and len(resumed.parts) == resumed.n_parts:
        problem = damaged(folder / FRONT, front[1])
        if not problem:
            resumed.front = front
        else:
            notes.append(f"{FRONT} {problem}: it is made again")
    return resumed, notes


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
    if spec.get("code") != wanted["code"]:
        raise InputError(
            f"{where}: was begun with other sources of dse, which may give other rows: give another directory"
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


def parts_of(manifest: dict[str, Any]) -> dict[int, Part]:
    """The parts that a manifest lists; entries that make no sense are left out, so that they are done again."""
    parts: dict[int, Part] = {}
    entries = manifest.get("parts")
    for entry in entries if isinstance(entries, list) else []:
        try:
            match = _PART.fullmatch(entry["file"])
            left_out = [entry.get(name, 0) for name in _LEFT_OUT]
            numbers = [entry["first"], entry["last"], entry["rows"], *left_out, *entry["codes"]]
            if match and all(type(n) is int and n >= 0 for n in numbers) and len(entry["codes"]) == len(CODES):
                first, last, rows = numbers[:3]
                sha256, codes, is_front = str(entry["sha256"]), tuple(entry["codes"]), match[1] == "_front"
                part = Part(
                    number=int(match[2]),
                    first=first,
                    last=last,
                    rows=rows,
                    sha256=sha256,
                    codes=codes,
                    is_front=is_front,
                    **dict(zip(_LEFT_OUT, left_out, strict=True)),
                )
                parts[part.number] = part
        except (TypeError, KeyError):
            continue
    return parts


def front_of(manifest: dict[str, Any]) -> tuple[int, str] | None:
    """Rows and SHA-256 of the front that a manifest lists."""
    entry = manifest.get("front")
    if not isinstance(entry, dict) or type(entry.get("rows")) is not int or not isinstance(entry.get("sha256"), str):
        return None
    return entry["rows"], entry["sha256"]


def damage(folder: Path, part: Part) -> str:
    """Describe the damage of a part's file; "" for none."""
    return damaged(folder / part.name, part.sha256)


def damaged(path: Path, sha256: str) -> str:
    """Describe the damage of a file that should have this hash; "" for none."""
    try:
        if path.is_symlink() or not path.is_file():
            return "is missing" if not path.exists() else "is no file"
        digest = hashlib.sha256()
        with files.open_regular(path, "another directory")[0] as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        return f"cannot be read ({_reason(error)})"
    return "" if digest.hexdigest() == sha256 else "is damaged (its SHA-256 is another)"


def manifest_of(folder: Path) -> tuple[dict[str, Any], Manifest]:
    """_spec.json and the manifest of a directory. Raises InputError if it holds no sweep."""
    if not folder.is_dir():
        raise InputError(f"{show(str(folder))}: is not a directory: give the --out of `dse sweep`")
    spec, raw = load_json(folder / SPEC), load_json(folder / MANIFEST) or {}
    if spec is None or not isinstance(spec.get("n_points"), int) or not isinstance(spec.get("part_points"), int):
        raise InputError(f"{show(str(folder))}: holds no sweep (no readable {SPEC}): give the --out of `dse sweep`")
    if spec.get("format") != FORMAT:
        raise InputError(f"{show(str(folder))}: has format {show(spec.get('format'))}: this version reads {FORMAT}")
    if raw and raw.get("spec_sha256") != spec.get("spec_sha256"):
        raw = {}
    total = -(-spec["n_points"] // max(spec["part_points"], 1))
    is_front = isinstance(spec.get("spec"), dict) and "front" in spec["spec"]
    parts = {n: part for n, part in parts_of(raw).items() if n < total and part.is_front == is_front}
    front = front_of(raw) if is_front and len(parts) == total else None
    return spec, Manifest(str(spec.get("spec_sha256")), total, parts, front, is_front)


def verify(out: str | Path) -> tuple[Manifest, list[str]]:
    """The manifest of a directory, and a line for each part that is missing or damaged."""
    folder = Path(out)
    _, manifest = manifest_of(folder)
    problems = [f"{part.name} {text}" for _, part in sorted(manifest.parts.items()) if (text := damage(folder, part))]
    if manifest.front is not None and (text := damaged(folder / FRONT, manifest.front[1])):
        problems.append(f"{FRONT} {text}")
    elif not manifest.complete and len(manifest.parts) == manifest.n_parts:
        problems.append(f"{FRONT} is not done")
    if len(manifest.parts) < manifest.n_parts:
        problems.append(f"{manifest.n_parts - len(manifest.parts):,} of {manifest.n_parts:,} parts are not done")
    return manifest, problems
