"""A directory of golden vectors: its manifest, and its files once their SHA-256 is the manifest's."""

import hashlib
import io
import json
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 2**20
#: bytes of one file, and of its arrays
MAX_FILE_BYTES = 2**30
_MAX_SHOWN = 80


class Unusable(Exception):
    """A directory or manifest that nothing can be compared with: one line."""


class Damaged(Exception):
    """A file of the manifest that is missing or not what the manifest says: one line."""


def shown(value: object) -> str:
    """A value of a file as messages show it: its repr in ASCII, cut."""
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


@dataclass(frozen=True)
class Entry:
    """One file of a manifest."""

    file: str
    sha256: str
    oracle: str
    params: Mapping[str, Any]
    arrays: Mapping[str, Mapping[str, Any]]

    @property
    def note(self) -> str:
        """The manifest's remark on the file."""
        return str(self.params.get("note") or "")


@dataclass
class Vectors(Mapping[str, np.ndarray]):
    """The arrays of one file by name; `read` remembers which were asked for."""

    entry: Entry
    arrays: dict[str, np.ndarray]
    read: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> np.ndarray:
        self.read.add(name)
        return self.arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def _read(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError with the reason."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "not a regular file")
        if status.st_size > limit:
            raise OSError(0, f"has {status.st_size:,} bytes, at most {limit:,} are read")
        return file.read(limit)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{shown(name)} is there twice")
        found[name] = value
    return found


def read_manifest(folder: Path) -> list[Entry]:
    """The files that `folder`'s manifest lists, in its order. Raises Unusable."""
    path = folder / MANIFEST
    try:
        content = _read(path, MAX_MANIFEST_BYTES)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error).lower()
        raise Unusable(f"{path}: {reason}: give a directory of golden vectors with a {MANIFEST}") from error
    try:
        data = json.loads(content.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{path}: is not valid JSON: {shown(str(error))}") from error
    files = data.get("files") if isinstance(data, dict) else None
    if not isinstance(files, list) or not files:
        raise Unusable(f"{path}: files = {shown(files)}: must be a list of at least one file")
    entries = [_entry(path, number, given) for number, given in enumerate(files)]
    names = [entry.file for entry in entries]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Unusable(f"{path}: lists {shown(twice)} twice")
    return entries


def _entry(path: Path, number: int, given: Any) -> Entry:
    """One element of the manifest's `files`, checked. Raises Unusable."""
    where = f"{path}: files[{number}]"
    if not isinstance(given, dict):
        raise Unusable(f"{where} = {shown(given)}: must be an object")
    wanted = {"file": str, "sha256": str, "oracle": str, "arrays": dict, "params": dict}
    for name, kind in wanted.items():
        if not isinstance(given.get(name), kind):
            raise Unusable(f"{where}.{name} = {shown(given.get(name))}: must be {kind.__name__}")
    name, digest = given["file"], given["sha256"]
    if Path(name).name != name or name in ("", ".", "..") or "\\" in name or not name.isprintable():
        raise Unusable(f"{where}.file = {shown(name)}: must be the name of a file inside the directory")
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise Unusable(f"{where}.sha256 = {shown(digest)}: must be 64 hexadecimal digits")
    if not all(isinstance(array, dict) for array in given["arrays"].values()):
        raise Unusable(f"{where}.arrays: must map names to objects with shape and dtype")
    return Entry(name, digest, given["oracle"], given["params"], given["arrays"])


def load(folder: Path, entry: Entry) -> Vectors:
    """The arrays of a file; its bytes are hashed before anything looks into them. Raises Damaged.

    Arrays that the manifest does not list, or lists otherwise, are damage too. Nothing is unpickled.
    """
    path = folder / entry.file
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise Damaged("is a link out of the directory")
        content = _read(path, MAX_FILE_BYTES)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error).lower()
        raise Damaged("is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {reason}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != entry.sha256:
        raise Damaged(f"is damaged: its sha256 is {found[:12]}..., the manifest says {entry.sha256[:12]}...")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_FILE_BYTES:
                raise Damaged(f"unpacks to more than {MAX_FILE_BYTES:,} bytes")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, RuntimeError, LookupError, zipfile.BadZipFile, zlib.error) as error:
        raise Damaged(f"is not an .npz file that can be read: {shown(str(error))}") from error
    _check_arrays(entry, arrays)
    return Vectors(entry, arrays)


def _check_arrays(entry: Entry, arrays: Mapping[str, np.ndarray]) -> None:
    for name in sorted(set(arrays) ^ set(entry.arrays)):
        raise Damaged(f"array {shown(name)} is {'not in the manifest' if name in arrays else 'missing'}")
    for name, listed in entry.arrays.items():
        array = arrays[name]
        if list(array.shape) != listed.get("shape") or array.dtype.name != listed.get("dtype"):
            says = f"{shown(listed.get('dtype'))} {shown(listed.get('shape'))}"
            raise Damaged(f"array {shown(name)} is {array.dtype.name} {list(array.shape)}, the manifest says {says}")
