"""Open a dump of any kind: what it holds is known and checked before memory is taken for it."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from dse.core.errors import InputError, did_you_mean, show
from dse.measure.dumps import npy, npz, safetensors
from dse.measure.dumps.source import DumpSource
from dse.measure.dumps.stored import DumpLimits, DumpTensor, StoredTensor, load

_READERS: dict[str, Callable[[DumpSource, DumpLimits], list[StoredTensor]]] = {
    ".npy": npy.stored,
    ".npz": npz.stored,
    ".safetensors": safetensors.stored,
}


class Dump:
    """An open dump: `tensors` in the order of the file; a context manager that closes it.

    `metadata` is what the file says of itself: `__metadata__` of a .safetensors file, the member `meta` of a .npz.
    """

    def __init__(self, source: DumpSource, stored: list[StoredTensor]) -> None:
        self._source = source
        self._stored = {entry.tensor.name: entry for entry in stored}
        self.metadata: dict[str, str] = dict(source.metadata)
        self.tensors: tuple[DumpTensor, ...] = tuple(entry.tensor for entry in stored)

    def read(self, name: str) -> np.ndarray:
        """The values of a tensor: a new array, C order, float16 for FP16, float32 for FP32 and, widened, for BF16.

        Raises InputError for an unknown name and for a file that is damaged or cannot be read, LimitError where
        memory is short, ValueError for a closed dump.
        """
        if self._source.fd < 0:
            raise ValueError(f"{self._source.name}: the dump is closed")
        if name not in self._stored:
            raise InputError(
                f"{self._source.name}: tensor {show(name)}: is not there: {did_you_mean(str(name), self._stored)}"
            )
        return load(self._source, self._stored[name])

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._source.close()

    def __enter__(self) -> "Dump":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def open_dump(path: str | os.PathLike[str], limits: DumpLimits | None = None) -> Dump:
    """Open a .npy, .npz or .safetensors file of FP16, BF16 and FP32 tensors; the ending decides how it is read.

    Names, dtypes, shapes and sizes of all tensors are checked here, before any of them is allocated; nothing in the
    file is executed. A .npy or .npz stores BF16 as 2-byte void ("V2"), as numpy saves the bfloat16 of ml_dtypes.
    Raises InputError (exit status 2) for a file that cannot be used, LimitError (5) for one that asks for more than
    `limits` allows: one line with file, tensor, value, what is allowed and what to do.
    """
    source = DumpSource(path)
    try:
        reader = _READERS.get(source.path.suffix.lower())
        if reader is None:
            raise source.error(f"ends in {show(source.path.suffix)}: give a {', '.join(_READERS)} file")
        return Dump(source, reader(source, limits or DumpLimits()))
    except BaseException:
        source.close()
        raise
