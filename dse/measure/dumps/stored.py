"""Tensors as a dump describes them before any is read, and their bytes as arrays."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dse.core.errors import show
from dse.measure import MAX_BYTES
from dse.measure.dumps.source import DumpSource

#: bytes of one value in the file
ITEM_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
MAX_AXES = 32
MAX_NAME = 255
#: elements no array can have: a shape beyond is refused even where a zero makes it empty
_MAX_ELEMENTS = 2**60


@dataclass(frozen=True)
class DumpLimits:
    """Limits of a dump: `max_bytes` of tensors in all, `max_ratio` times the size of a zip member on disk."""

    max_bytes: int = MAX_BYTES
    max_ratio: int = 200

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_ratio"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} = {show(value)}: must be a whole number of at least 1")


@dataclass(frozen=True)
class DumpTensor:
    """A tensor of a dump: its name, `dtype` (fp16, bf16 or fp32, as stored) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_elements(self) -> int:
        """Values: the product of the shape."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the values in the file, before compression."""
        return self.n_elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor, and a function that yields the bytes of its values, each block a whole number of values."""

    tensor: DumpTensor
    blocks: Callable[[], Iterator[bytes]]
    big_endian: bool = False
    fortran_order: bool = False


def check_name(source: DumpSource, name: str) -> None:
    """Refuse names that could be mistaken for a path elsewhere or that cannot be shown. Raises InputError."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise source.error(f"its name must be 1 to {MAX_NAME} printable characters: rename it", name)
    if name.startswith("/") or "\\" in name or ".." in name.split("/"):
        raise source.error("its name must not be a path out of the file ('/x', '..', '\\'): rename it", name)


def check_shape(source: DumpSource, name: str, shape: tuple[int, ...]) -> None:
    """Refuse shapes that no array can have, before anything is multiplied or allocated. Raises InputError."""
    if len(shape) > MAX_AXES:
        raise source.error(f"has {len(shape)} axes: at most {MAX_AXES} can be read: reshape it", name)
    if any(n < 0 for n in shape) or math.prod(n or 1 for n in shape) > _MAX_ELEMENTS:
        raise source.error(f"shape = {show(shape)}: axes must not be negative nor exceed 2^60 values in all", name)


def check_total(source: DumpSource, n_bytes: int, limits: DumpLimits) -> None:
    """Refuse more than `limits.max_bytes` of tensors. Raises LimitError."""
    if n_bytes > limits.max_bytes:
        raise source.limit(
            f"holds {n_bytes:,} bytes of tensors: at most {limits.max_bytes:,} are read: raise max_bytes (--max-bytes) "
            "or split it"
        )


def load(source: DumpSource, stored: StoredTensor) -> np.ndarray:
    """The values: native byte order, C order, float16 or float32 (BF16 widened exactly).

    Takes the memory of the result and of one block; for Fortran order, of the result twice. Bits are moved, never
    computed with: NaN payloads survive. Raises InputError for a damaged file, LimitError where memory is short.
    """
    tensor = stored.tensor
    item = ITEM_BYTES[tensor.dtype]
    as_stored = np.dtype(f"{'>' if stored.big_endian else '<'}u{item}")
    try:
        bits: np.ndarray = np.empty(tensor.n_elements, np.uint16 if tensor.dtype == "fp16" else np.uint32)
        done = 0
        for block in stored.blocks():
            part = np.frombuffer(block, as_stored)
            bits[done : done + part.size] = part
            done += part.size
        if tensor.dtype == "bf16":
            bits <<= np.uint32(16)
        values = bits.view(np.float16 if tensor.dtype == "fp16" else np.float32)
        if stored.fortran_order:
            return np.ascontiguousarray(values.reshape(tensor.shape[::-1]).T).reshape(tensor.shape)
        return values.reshape(tensor.shape)
    except MemoryError as error:
        text = f"its {tensor.stored_bytes:,} bytes do not fit into memory: split it into smaller tensors"
        raise source.limit(text, tensor.name) from error
