"""The one module that opens files: it reads regular files of a bounded size, and writes whole files or none.

What is read is a regular file: a pipe, a device or a directory is refused without waiting for it. What is written
appears complete under its name or not at all, and the files of one run appear together.

Temporary names are `.dse-XXXXXXXX.part`. Their writer holds a lock on them, which ends with it, so the next run tells
leftovers from work in progress; those of another owner or mode are nobody's leftovers and stay. No leftover says what
to do: none holds a name or a path.
"""

import contextlib
import errno
import fcntl
import math
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from dse.core.errors import InputError, OutputError, show

_PREFIX, _PART = ".dse-", ".part"
TEMPORARY = re.compile(r"\.dse-[a-z0-9_]{8}\.part")
#: in the temporary folder of a publication, each file under its number: the new ones, a second link to each of them,
#: a link to each old one in whose place it comes, and one to each that is removed at the end
_NEW, _PLACED, _OLD, _GONE = "new", "placed", "old", "gone"
#: folders below the output directory in which files are published
_DEPTH = 3
#: bytes of a file that is read at once where its reader names no other limit
MAX_BYTES = 2**28
#: folders that files are read from, and what to give in place of others; None: all of them
_readable: tuple[list[Path], str] | None = None


@contextlib.contextmanager
def read_below(folders: Collection[Path], give: str) -> Iterator[None]:
    """Read no file outside these folders until the block ends, in all threads; the error says what to `give`."""
    global _readable
    before, _readable = _readable, ([folder.resolve() for folder in folders], give)
    try:
        yield
    finally:
        _readable = before


def _refuse_elsewhere(path: str | os.PathLike[str]) -> None:
    """Raises InputError for a file that may not be read, links followed."""
    if _readable is not None and not any(Path(path).resolve().is_relative_to(folder) for folder in _readable[0]):
        raise InputError(f"{show(os.fspath(path))}: is no file that is read here: {_readable[1]}")


def open_regular(path: str | os.PathLike[str], give: str, name: str | None = None) -> tuple[BufferedReader, int]:
    """A regular file open for reading, and its size; anything else is an InputError that says what to `give`.

    Symbolic links are followed. `name` is the path as messages show it.
    """
    name = str(path) if name is None else name
    try:
        _refuse_elsewhere(path)
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        is_loop = getattr(error, "errno", 0) == errno.ELOOP
        reason = "is a symbolic link loop" if is_loop else str(getattr(error, "strerror", None) or error).lower()
        raise InputError(f"{name}: cannot be read: {reason}") from error
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise InputError(f"{name}: is {kind}: give {give}")
    return os.fdopen(handle, "rb"), status.st_size


def read_bytes(
    path: str | os.PathLike[str],
    max_bytes: int = MAX_BYTES,
    what: str = "file",
    give: str = "the path of a file",
    if_empty: str = "",
) -> bytes:
    """The content of a regular file of at most `max_bytes`; anything else is an InputError.

    `what` the file is and what to `give` instead are for the messages; `if_empty`: what to do about an empty file,
    which is refused where this is said.
    """
    file, size = open_regular(path, give)
    try:
        with file:
            content = file.read(max_bytes + 1) if size <= max_bytes else b""
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or type(error).__name__).lower()}") from error
    if max(size, len(content)) > max_bytes:
        raise InputError(f"{path}: has {max(size, len(content)):,} bytes: a {what} has at most {max_bytes:,}")
    if if_empty and not content.strip():
        raise InputError(f"{path}: is empty: {if_empty}")
    return content


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
        self._names: list[str] = []
        self._removed: list[str] = []
        for subfolder in (_NEW, _PLACED, _OLD, _GONE):
            (waiting / subfolder).mkdir(mode=0o700)

    def write(self, name: str, content: bytes) -> Path:
        """Add a file, `name` relative to the output directory; the path that it will have. Raises OutputError."""
        if name not in self._names:
            self._names.append(name)
        write(self._waiting / _NEW / str(self._names.index(name)), content)
        return self.folder / name

    def remove(self, name: str) -> None:
        """Remove a file of an earlier run once the new ones stand."""
        self._removed.append(name)

    def commit(self) -> None:
        """Move every file into place; of a killed run the next one takes back what it had moved. Raises OutputError."""
        try:
            self._commit()
        except OSError as error:
            raise OutputError(_text(self.folder, error)) from error

    def _commit(self) -> None:
        targets = [self.folder / name for name in self._names]
        for parent in {target.parent for target in targets}:
            parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=parent):
                pass
        for target in targets:
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{target.name} is a directory")
        with _locked(self.folder):
            _settle(self.folder)
            self._link(targets)
            try:
                self._place(targets)
            except KeyboardInterrupt:
                self._place(targets)
                raise

    def _link(self, targets: list[Path]) -> None:
        """A second name for what is moved and for what that takes the place of.

        On a file system without hard links, and beside files of another owner that may not be linked, there is none:
        what a kill leaves there between two moves is not taken back.
        """
        waiting = self._waiting
        for i, target in enumerate(targets):
            with contextlib.suppress(OSError):
                with contextlib.suppress(FileNotFoundError):
                    os.link(target, waiting / _OLD / str(i), follow_symlinks=False)
                os.link(waiting / _NEW / str(i), waiting / _PLACED / str(i))
        for i, name in enumerate(self._removed):
            with contextlib.suppress(OSError):
                os.link(self.folder / name, waiting / _GONE / str(i), follow_symlinks=False)
        for folder in (waiting / _NEW, waiting / _PLACED, waiting / _OLD, waiting / _GONE, waiting):
            sync(folder)

    def _place(self, targets: list[Path]) -> None:
        for i, target in enumerate(targets):
            with contextlib.suppress(FileNotFoundError):  # it was moved before an interrupt
                os.replace(self._waiting / _NEW / str(i), target)
        for name in self._removed:
            (self.folder / name).unlink(missing_ok=True)
        for parent in {self.folder, *(target.parent for target in targets)}:
            sync(parent)


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
        publication = Publication(folder, waiting)
        yield publication
        publication.commit()
    finally:
        if waiting is not None:
            with contextlib.suppress(OSError), _locked(folder):  # else the next run does it
                _take_back(waiting, folder)
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
    """Take back what a killed run had moved before all of its files stood, and remove what else it left."""
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
            status = os.fstat(handle)
            if not _is_ours(status) or not _lock(handle):
                continue
            if stat.S_ISDIR(status.st_mode):
                _take_back(path, folder)
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _is_ours(status: os.stat_result) -> bool:
    """Whether a temporary name has the owner and the mode that this process would give it."""
    kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode) & 0o777
    modes = {stat.S_IFDIR: (0o700,), stat.S_IFREG: (0o600, _mode())}.get(kind, ())
    return status.st_uid == os.geteuid() and mode in modes


def _take_back(waiting: Path, folder: Path) -> None:
    """Make a folder hold the old files of an unfinished publication; the new ones, where all of them stand.

    Which files those are, no name in `waiting` says: they are the ones that are linked there. A folder that somebody
    else planted changes no file but those that it shares.
    """
    with contextlib.suppress(FileNotFoundError):
        unmoved = set(os.listdir(waiting / _NEW))
        wanted = _linked(waiting / _PLACED, unmoved) if unmoved else _linked(waiting / _GONE)
        for path in _files_below(folder) if wanted else ():
            status = path.lstat()
            if number := wanted.pop((status.st_dev, status.st_ino), None):
                if unmoved and (waiting / _OLD / number).exists():
                    os.replace(waiting / _OLD / number, path)
                else:
                    path.unlink()
        sync(folder)
        if unmoved:  # whoever finds what is left of `waiting` must not take the new files for complete
            shutil.rmtree(waiting / _GONE)


def _linked(folder: Path, but: Collection[str] = ()) -> dict[tuple[int, int], str]:
    """Device and inode of each file in a folder that has another name as well, with its number."""
    statuses = {name: (folder / name).lstat() for name in os.listdir(folder) if name not in but}
    return {
        (status.st_dev, status.st_ino): name
        for name, status in statuses.items()
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    }


def _files_below(folder: Path) -> Iterator[Path]:
    """Files that a publication may have put there; links to folders are not followed."""
    for root, folders, names in os.walk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = [name for name in folders if depth < _DEPTH and not TEMPORARY.fullmatch(name)]
        yield from (Path(root) / name for name in names)


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
            os.fchmod(file.fileno(), _mode())
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


def _mode() -> int:
    """The mode of a file that is written."""
    with _UMASK:  # reading it sets it: two threads at once would leave it 0
        mask = os.umask(0)
        os.umask(mask)
    return 0o666 & ~mask


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
