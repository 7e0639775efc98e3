"""Writing files: each appears complete under its name or not at all."""

import contextlib
import math
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dse.core.errors import InputError, OutputError, show


def prepare(out: str) -> Path:
    """The output directory, created and seen to be writable. Raises OutputError, leaving nothing behind."""
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
    except OSError as error:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise OutputError(_text(out, error)) from error
    return folder


@contextlib.contextmanager
def prepared(out: str) -> Iterator[Path]:
    """`prepare`; where the block fails, directories that it made and that are empty go again."""
    missing = [path for path in (Path(out), *Path(out).parents) if out and "\0" not in out and not path.exists()]
    folder = prepare(out)
    try:
        yield folder
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def move(source: Path, target: Path) -> None:
    """Move all files below `source` to the same places below `target`, replacing those there. Raises OutputError."""
    try:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)
    except OSError as error:
        raise OutputError(_text(target, error)) from error


def _text(path: str | Path, error: OSError) -> str:
    reason = (error.strerror or type(error).__name__).lower()
    return f"cannot write {show(str(path))}: {reason}: give another directory with --out"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which appears under `path` when the block ends and not at all where it fails.

    A temporary file beside it, synced, then renamed. Raises OutputError.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as file:
            temporary = file.name
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(_text(path, error)) from error
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


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
