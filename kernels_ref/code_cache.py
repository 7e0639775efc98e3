"""Compiled code that is kept between runs, and between checkouts with equal sources, in a folder that is ours alone.

It lies below `NUMBA_CACHE_DIR`, else in `dse` below `XDG_CACHE_HOME` or `~/.cache`, in a folder for each state of the
sources and of Python, numba and numpy. Loading compiled code runs it: what others can write is refused.
"""

import hashlib
import os
import pickle
import platform
import re
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

try:
    import fcntl
    import grp
    import pwd
except ImportError:  # Windows: no owners to check, and processes that start together compile each for itself
    fcntl = None  # type: ignore[assignment]

import numba
import numpy as np
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

#: states of the sources that are kept for each kind of code, those used last
KEPT_STATES = 12
#: errors of content that is damaged, or made by code that has gone
_DAMAGE = (OSError, EOFError, ValueError, TypeError, AttributeError, ImportError, LookupError, pickle.PickleError)
_DIGEST_BYTES = hashlib.sha256().digest_size

_said: set[str] = set()


def warn_once(reason: str) -> None:
    """Warn that compiled code is not kept: one warning for all kernels and each reason."""
    if reason not in _said:
        _said.add(reason)
        warnings.warn(
            f"compiled kernels are not kept, each start compiles anew: {reason}; set NUMBA_CACHE_DIR to a folder of "
            "your own",
            stacklevel=5,
        )


def _writable_by_others(info: os.stat_result) -> bool:
    if info.st_mode & stat.S_IWOTH:
        return True
    if not info.st_mode & stat.S_IWGRP:
        return False
    try:  # a group of the user's own name, without further members, is the user alone
        group, user = grp.getgrgid(info.st_gid), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return True
    return group.gr_name != user or not set(group.gr_mem) <= {user}


def _problem_of(info: os.stat_result, is_shared: bool) -> str:
    if fcntl is None:
        return ""
    if info.st_uid not in (os.getuid(), 0):
        return "belongs to another user"
    if _writable_by_others(info) and not (is_shared and info.st_mode & stat.S_ISVTX):
        return "can be written by other users"
    return ""


def folder_problem(folder: Path, root: Path) -> str:
    """Return why code in `folder` must not be loaded, "" where it may: checks every folder on the way down to it.

    Above `root` a folder may be shared where its entries are protected by the sticky bit, as `/tmp` is.
    """
    for path in (*reversed(folder.parents), folder):
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode):
            return f"{path}: is not a directory"
        if problem := _problem_of(info, is_shared=path in root.parents):
            return f"{path}: {problem}"
    return ""


def cache_root() -> Path:
    """Return the folder below which compiled code is kept, without links."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    root = Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dse"
    return Path(os.path.realpath(root.expanduser()))


@cache
def stamp(sources: tuple[Path, ...]) -> str:
    """Return a digest of all files of this package, of `sources`, and of the versions that compile them."""
    digest = hashlib.sha256(f"{platform.python_version()} {numba.__version__} {np.__version__}".encode())
    for path in (*sorted(Path(__file__).parent.rglob("*.py")), *sources):
        content = path.read_bytes()
        digest.update(f"\n{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@cache
def code_folder(kind: str, sources: tuple[Path, ...]) -> Path | None:
    """Make and return the folder of this state of the sources; None, with a warning, where it must not be used."""
    root = cache_root()
    folder = root / f"{kind}-{stamp(sources)}"
    try:
        is_new = not folder.exists()
        for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            path.mkdir(0o700, exist_ok=True)
        if problem := folder_problem(folder, root):
            warn_once(problem)
            return None
        os.utime(folder)
    except OSError as error:
        warn_once(f"{root}: {(error.strerror or type(error).__name__).lower()}")
        return None
    if is_new:
        _prune(root, kind)
    return folder


def _prune(root: Path, kind: str) -> None:
    """Remove states of the sources that were not used for longest."""
    states = [path for path in root.iterdir() if re.fullmatch(rf"{re.escape(kind)}-[0-9a-f]{{16}}", path.name)]
    for _, path in sorted(((path.lstat().st_mtime_ns, path) for path in states), reverse=True)[KEPT_STATES:]:
        shutil.rmtree(path, ignore_errors=True)


class CodeCache(_Cache):  # type: ignore[misc]
    """numba's cache of one function: a file for each tuple of argument types, checked for its owner and its digest."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self.function, self.folder = function, folder
        self.name = f"{function.__module__}.{function.__qualname__}"

    @property
    def cache_path(self) -> str:
        return str(self.folder)

    def _key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        """The argument types, the processor and the function's own code."""
        return signature, codegen.magic_tuple(), hashlib.sha256(self.function.__code__.co_code).hexdigest()

    def _path(self, key: tuple[Any, ...]) -> Path:
        return self.folder / f"{self.name}-{hashlib.sha256(str(key).encode()).hexdigest()[:16]}.code"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        key = self._key(sig, target_context.codegen())
        try:
            content = _read(self._path(key))
            if content is None:
                return None
            kept_key, payload = pickle.loads(content)
            return CompileResult._rebuild(target_context, *payload) if kept_key == key else None
        except _DAMAGE:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if data.library.has_dynamic_globals or any(not part.can_cache for part in data.lifted):
            return
        key = self._key(sig, data.codegen)
        content = dumps((key, data._reduce()))
        try:
            _write(self._path(key), content)
        except OSError as error:
            warn_once(f"{self.folder}: {(error.strerror or type(error).__name__).lower()}")

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the function's lock, so that of processes that start together one compiles and the others load."""
        handle = None
        with suppress(OSError):  # some shared folders know no locks
            if fcntl is not None:
                handle = os.open(self.folder / f"{self.name}.lock", os.O_CREAT | os.O_WRONLY, 0o600)
                fcntl.lockf(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if handle is not None:
                os.close(handle)


def _read(path: Path) -> bytes | None:
    """Read a file that only we can have written; None where there is none, it is not ours or it is damaged."""
    try:
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            problem = _problem_of(info, is_shared=False) if stat.S_ISREG(info.st_mode) else "is not a file"
            if problem:
                warn_once(f"{path}: {problem}")
                return None
            content = file.read()
    except FileNotFoundError:
        return None
    digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def _write(path: Path, content: bytes) -> None:
    """Put `content` and its digest under `path`, whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as file:
        try:
            file.write(hashlib.sha256(content).digest() + content)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
