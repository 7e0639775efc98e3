"""Writing files: each appears complete under its name or not at all, and those of one run appear together.

Temporary names are `.dse-XXXXXXXX.part` (being written) and `.dse-XXXXXXXX.ready` (complete, being moved into place).
Their writer holds a lock on them, which ends with it, so the next run tells leftovers from work in progress.
"""

import contextlib
import errno
import fcntl
import math
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from dse.core.errors import InputError, OutputError, show

_PREFIX, _PART, _READY = ".dse-", ".part", ".ready"
TEMPORARY = re.compile(r"\.(dse-)?[a-z0-9_]{8}\.(part|ready)")
#: in the temporary folder of a publication: its files, and the names that it removes, one a line
_FILES, _REMOVED = "files", "removed"


def prepare(out: str) -> Path:
    """The output directory, created, seen to be writable and cleared of what a killed run left.

    Raises OutputError, leaving nothing behind.
    """
    if not out or "\0" in out:
        raise InputError(f"out = {show(out)}: is not a directory name: give another --out")
    folder = Path(out)
    try:
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{show(out)} is a file: give a directory with --out")
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(_text(out, error)) from error
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
        recover(folder)
    except OSError as error:
        _remove_empty(missing)
        raise OutputError(_text(out, error)) from error
    return folder


def _remove_empty(folders: list[Path]) -> None:
    for path in folders:
        with contextlib.suppress(OSError):
            path.rmdir()


class Publication:
    """The files of one run, which wait in a folder of their own until all are written."""

    def __init__(self, folder: Path, waiting: Path) -> None:
        self.folder, self._waiting = folder, waiting
        self._removed: list[str] = []

    def write(self, name: str, content: bytes) -> Path:
        """Add a file, `name` relative to the output directory; the path that it will have. Raises OutputError."""
        path = self._waiting / _FILES / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(_text(self.folder / name, error)) from error
        write(path, content)
        return self.folder / name

    def remove(self, name: str) -> None:
        """Remove a file of an earlier run once the new ones stand."""
        self._removed.append(name)

    def commit(self) -> None:
        """Move every file into place; the next run completes what a killed one began. Raises OutputError."""
        try:
            self._commit()
        except OSError as error:
            raise OutputError(_text(self.folder, error)) from error

    def _commit(self) -> None:
        waiting = self._waiting / _FILES
        moves = _moves(waiting, self.folder)
        for parent in {target.parent for _, target in moves}:
            parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=parent):
                pass
        for _, target in moves:
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{target.name} is a directory")
        write(self._waiting / _REMOVED, "\n".join(self._removed).encode())
        sync(self._waiting)
        ready = self._waiting.with_suffix(_READY)
        with _locked(self.folder):
            _settle(self.folder)
            os.rename(self._waiting, ready)
            try:
                _finish(ready, self.folder)
            except KeyboardInterrupt:
                _finish(ready, self.folder)
                raise


@contextlib.contextmanager
def publishing(out: str) -> Iterator[Publication]:
    """A publication into directory `out`: its files appear when the block ends, and none where it fails.

    Directories that it made and that stay empty are removed again. Raises InputError, OutputError.
    """
    missing = [path for path in (Path(out), *Path(out).parents) if out and "\0" not in out and not path.exists()]
    folder = prepare(out)
    handle, waiting = -1, None
    try:
        try:
            handle, waiting = _own_folder(folder)
        except OSError as error:
            raise OutputError(_text(out, error)) from error
        found = Publication(folder, waiting)
        yield found
        found.commit()
    finally:
        if waiting is not None:
            shutil.rmtree(waiting, ignore_errors=True)
        if handle >= 0:
            os.close(handle)
        _remove_empty(missing)


def publish(out: str, contents: Mapping[str, bytes]) -> list[str]:
    """Write files by name into directory `out`, all or none; their paths. Raises InputError, OutputError."""
    with publishing(out) as published:
        return [str(published.write(name, content)) for name, content in contents.items()]


def _own_folder(folder: Path) -> tuple[int, Path]:
    """A new temporary folder inside `folder`, and a descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(dir=folder, prefix=_PREFIX, suffix=_PART))
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if _lock(handle) is not False and path.exists():  # else another run took it for a leftover
            return handle, path
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock an open file or folder; False where another process holds it, None on a file system without locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One run at a time moves its files into a folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def recover(folder: Path) -> None:
    """Complete the publication of a killed run where all of its files were written; remove all other leftovers."""
    with _locked(folder):
        _settle(folder)


def _settle(folder: Path) -> None:
    for name in sorted(name for name in os.listdir(folder) if TEMPORARY.fullmatch(name)):
        path = folder / name
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            if not _lock(handle):
                continue
            if path.suffix == _READY and path.is_dir():
                _finish(path, folder)
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _finish(ready: Path, folder: Path) -> None:
    for source, target in _moves(ready / _FILES, folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
    with contextlib.suppress(FileNotFoundError):
        for name in (ready / _REMOVED).read_text().splitlines():
            (folder / name).unlink(missing_ok=True)
    sync(folder)
    shutil.rmtree(ready, ignore_errors=True)


def _moves(source: Path, target: Path) -> list[tuple[Path, Path]]:
    """Each file below `source`, with its place below `target`."""
    return [(path, target / path.relative_to(source)) for path in sorted(source.rglob("*")) if path.is_file()]


def _text(path: str | Path, error: OSError) -> str:
    reason = (error.strerror or type(error).__name__).lower()
    return f"cannot write {show(str(path))}: {reason}: give another directory with --out"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which appears under `path` when the block ends and not at all where it fails.

    A temporary file beside it, synced, then renamed. Raises OutputError.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _own_file(path.parent) as file:
            temporary = Path(file.name)
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        raise OutputError(_text(path, error)) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _own_file(folder: Path) -> IO[bytes]:
    """A new temporary file inside `folder`, locked as long as it is open."""
    while True:
        file = tempfile.NamedTemporaryFile(dir=folder, prefix=_PREFIX, suffix=_PART, delete=False)  # noqa: SIM115
        is_ours = _lock(file.fileno()) is not False
        if is_ours and os.fstat(file.fileno()).st_nlink:  # else another run took it for a leftover
            return file  # type: ignore[return-value]
        file.close()


def write(path: Path, content: bytes) -> None:
    """Put `content` under `path`, whole or not at all. Raises OutputError."""
    with writing(path) as file:
        file.write(content)


_UMASK = threading.Lock()


def _umask() -> int:
    with _UMASK:  # reading it sets it: two threads at once would leave it 0
        mask = os.umask(0)
        os.umask(mask)
    return mask


def sync(folder: Path) -> None:
    """Make the renames inside `folder` last."""
    with contextlib.suppress(OSError):  # not every file system lets a directory be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def harmless(cell: str) -> str:
    """A cell for a CSV file; text that a spreadsheet would run as a formula gets a quote in front. Numbers stay."""
    if cell[:1] not in ("=", "+", "-", "@", "\t", "\r") or cell == "-":
        return cell
    try:
        return cell if math.isfinite(float(cell)) else "'" + cell
    except ValueError:
        return "'" + cell


def csv_of(table: Any) -> bytes:
    """A pandas table as a CSV file, its text cells made harmless: names in it may come from files of the user."""
    texts = table.select_dtypes(include=["object", "string"])
    safe = {name: texts[name].map(lambda cell: harmless(cell) if isinstance(cell, str) else cell) for name in texts}
    content: str = table.assign(**safe).to_csv(index=False, lineterminator="\n")
    return content.encode()
