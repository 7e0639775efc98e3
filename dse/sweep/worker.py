"""Cluster worker: check that it would write the same bytes, then evaluate one part of a sweep.

A task carries the whole sweep, packed, and the versions of whoever asks; it depends on nothing else, so that it may run
anywhere, twice, and after any loss. The file of the part goes back as bytes: workers need no file system in common.
"""

import functools
import hashlib
import io
import pickle
import platform
import zlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import dse
from dse import quantizers
from dse.core import files
from dse.core.errors import MAX_LINE, InputError, clean
from dse.core.version import VERSION
from dse.quantizers import layered
from dse.quantizers.base import Family
from dse.sweep import parts
from dse.sweep.conditions import parse
from dse.sweep.spec import Sweep, lay_out
from dse.sweep.store import Part

#: packages of which another version may change bytes, or what is sent
PACKAGES = ("numba", "numpy", "pyarrow", "pydantic", "distributed")
#: code and data of this project, in every directory of it that a worker uses
_FOLDERS = ("dse", "kernels_ref", "hwspecs")
#: characters of a reason
MAX_REASON = 120
_KINDS = (".py", ".toml", ".csv", ".json", ".npz")


@functools.cache
def versions() -> dict[str, str]:
    """Everything that decides the bytes of a part: versions, machine, a hash of all formulas and data."""
    return {
        "dse": VERSION,
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: metadata.version(name) for name in PACKAGES},
        "machine": platform.machine(),
        "formulas": _formulas(),
    }


def _formulas() -> str:
    root, digest = Path(dse.__file__).parent.parent, hashlib.sha256()
    paths = [path for folder in _FOLDERS for path in (root / folder).rglob("*") if path.suffix in _KINDS]
    for path in sorted(paths, key=lambda path: path.relative_to(root).parts):
        digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
        digest.update(files.read_bytes(path))
    return digest.hexdigest()


def differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    """Differences between versions, as "pyarrow 1 instead of 2"; "" for none."""
    return ", ".join(
        f"{name} {str(found.get(name))[:12]} instead of {value[:12]}"
        for name, value in wanted.items()
        if found.get(name) != value
    )


class _Packer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Families hold functions without a name; both sides know them by theirs."""
        return (_family, (obj.name,)) if isinstance(obj, Family) else NotImplemented


def _family(name: str) -> Family:
    return layered.FAMILY if name == layered.FAMILY.name else quantizers.FAMILIES[name]


def pack(sweep: Sweep) -> bytes:
    """A sweep as bytes, for a process with the same `versions`."""
    file = io.BytesIO()
    conditions = [condition.text for condition in sweep.where]
    _Packer(file, pickle.HIGHEST_PROTOCOL).dump(
        (sweep.axes, conditions, sweep.keep, sweep.base, sweep.bits, sweep.title, sweep.front)
    )
    return zlib.compress(file.getvalue(), 1)


@functools.lru_cache(maxsize=2)
def unpack(packed: bytes) -> Sweep:
    """The sweep again. It comes from a scheduler that the user named: never from a file."""
    axes, conditions, keep, base, bits, title, front = pickle.loads(zlib.decompress(packed))
    where = tuple(parse(text, axes) for text in conditions)
    return Sweep(
        axes=axes, dimensions=lay_out(axes), where=where, keep=keep, base=base, bits=bits, title=title, front=front
    )


@dataclass(frozen=True)
class Made:
    """A worker's result: a part and its file, or the reason for its failure as text: the exception may be of a kind
    that no other process can read."""

    part: Part | None = None
    content: bytes = b""
    failure: str = ""
    #: what is wrong with the sweep itself: no worker could make this part
    refusal: str = ""
    #: how this worker differs, where it would write other bytes
    mismatch: str = ""


def make_part(packed: bytes, number: int, wanted: dict[str, str]) -> Made:
    """A part and its file. Raises nothing."""
    try:
        if text := differences(versions(), wanted):
            return Made(mismatch=text)
        part, content = parts.make_part(unpack(packed), number)
        return Made(part, content.to_pybytes())
    except InputError as error:
        return Made(refusal=clean(str(error), MAX_LINE))
    except Exception as error:  # goes back as words: not every exception can be pickled
        return Made(failure=in_words(error))


def in_words(error: BaseException) -> str:
    """An exception as one line."""
    lines = f"{type(error).__name__}: {error}".splitlines() or [""]
    return clean(lines[0].removesuffix(": "), MAX_REASON)


def is_intact(part: Part, content: bytes, sweep: Sweep, number: int) -> bool:
    """True if this is the part that was asked for, with the bytes that its worker hashed."""
    first = number * sweep.part_points
    wanted = (number, first, min(first + sweep.part_points, sweep.n_points), sweep.front is not None)
    return (part.number, part.first, part.last, part.is_front) == wanted and hashlib.sha256(
        content
    ).hexdigest() == part.sha256
