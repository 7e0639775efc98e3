"""Methods that quantize every token vector on its own: blocks of rows in and out.

Such a method stores, for every token, the same number of items in each buffer, or entries of varying number token after
token: then a new token never changes the bytes of the old ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kernels_ref import inputs
from kernels_ref.inputs import KVTensor, NonFinite, row_tensor
from kernels_ref.jit import inner
from kernels_ref.packed import Packed

Buffers = dict[str, np.ndarray]

#: elements of a kernel's unit of work: their codes stay in the first-level cache
PIECE = 2**14


@inner
def n_pieces(bits: np.ndarray, size: int = PIECE) -> int:
    """Pieces of about `size` elements of bits[rows, channels]: several rows where they are short."""
    per_piece = max(size // bits.shape[1], 1)
    return (bits.shape[0] + per_piece - 1) // per_piece


@inner
def rows_of(piece: int, bits: np.ndarray, size: int = PIECE) -> range:
    """The rows of one of `n_pieces`."""
    per_piece = max(size // bits.shape[1], 1)
    return range(piece * per_piece, min((piece + 1) * per_piece, bits.shape[0]))


@dataclass(frozen=True)
class BufferColumn:
    """A buffer of `dtype` counted under ledger part `part`.

    each "row": [token vectors, items]; "sequence": [batch, items]; "entry": as many items, one after the other, as the
    column of part "counts" says. `padding_bits` of a row only fill up a byte.
    """

    name: str
    dtype: Any
    items: int
    part: str
    padding_bits: int = 0
    each: Literal["row", "sequence", "entry"] = "row"


def nibbles(name: str, channels: int, part: str = "payload") -> BufferColumn:
    """A column of a 4-bit code per channel, two a byte."""
    return BufferColumn(name, dtype=np.uint8, items=-(-channels // 2), part=part, padding_bits=4 * (channels % 2))


class RowMethod:
    """A method that quantizes token vectors [n, channels], all heads concatenated.

    A subclass says its columns and how a block of rows is encoded into them and decoded from them.
    """

    #: bytes of FP16 of a block; 0: as `inputs.BLOCK_BYTES` says
    _block_bytes = 0

    def _columns(self, n_heads: int, channels: int) -> Sequence[BufferColumn]:
        """The buffers. Raises ValueError for a number of channels that the method is not for."""
        raise NotImplementedError

    def _once(self, tensor: KVTensor) -> Buffers:
        """The columns of each "sequence", measured before rows are encoded."""
        return {}

    def _encode(self, bits: np.ndarray, n_heads: int, buffers: Buffers) -> Buffers | None:
        """Fill the rows of `buffers` for FP16 patterns bits[n, channels]; returns their entries."""
        raise NotImplementedError

    def _decode(self, buffers: Buffers, n_heads: int, bits: np.ndarray) -> None:
        """Write the FP16 patterns bits[n, channels] of the rows (and entries) in `buffers`."""
        raise NotImplementedError

    def quantize(self, x: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Quantize a tensor, token by token.

        x: FP16, BF16 or FP32, [tokens, channels], [batch, heads, tokens, head_dim], or [n] as one row.
        n_heads: Heads of tensors [tokens, channels], from 1; those of four axes say theirs.
        nonfinite: "raise" refuses NaN and infinities, "replace" takes them as 0 and +-65504.

        Raises TypeError and ValueError for what is not such a tensor of FP16, BF16 or FP32, and for values that are not
        finite unless `nonfinite` is "replace".
        """
        tensor = row_tensor(x, n_heads, nonfinite)
        _, heads, n_tokens, _ = tensor.array.shape
        columns = self._columns(heads, tensor.n_channels)
        by_row = [column for column in columns if column.each == "row"]
        buffers = {column.name: np.empty((tensor.n_rows, column.items), column.dtype) for column in by_row}
        entries = {column.name: [np.empty(0, column.dtype)] for column in columns if column.each == "entry"}
        once = self._once(tensor)
        for row, bits in tensor.row_blocks(self._block_bytes):
            part = {name: buffer[row : row + len(bits)] for name, buffer in buffers.items()}
            part |= {name: buffer[row // n_tokens] for name, buffer in once.items()}
            for name, entry in (self._encode(bits, heads, part) or {}).items():
                entries[name].append(entry)
        buffers |= once | {name: np.concatenate(chunks) for name, chunks in entries.items()}
        n_entries = [len(buffers[name]) for name in entries]
        return Packed(
            self,
            shape=tensor.shape,
            n_elements=tensor.array.size,
            buffers=buffers,
            part_of={column.name: column.part for column in columns},
            padding_bits=sum(column.padding_bits for column in columns) * tensor.n_rows,
            counts={"n_outliers": n_entries[0]} if n_entries else {},
            once_bits=8 * sum(buffer.nbytes for buffer in once.values()),
            n_heads=n_heads,
        )

    def dequantize(self, packed: Packed) -> np.ndarray:
        """FP16 of the quantized shape. Raises ValueError for buffers that are not those of such a tensor.

        packed: What `quantize` of this method gave.
        """
        n_batch, heads, n_tokens, head_dim = packed.axes
        channels = heads * head_dim
        columns = self._columns(heads, channels)
        _check_buffers(packed, columns)
        counts = [packed.buffers[column.name] for column in columns if column.part == "counts"]
        out = np.empty(packed.shape, np.float16)
        rows = None if heads > 1 and len(packed.shape) == 4 else out.view(np.uint16).reshape(-1, channels)
        step, done = max((self._block_bytes or inputs.BLOCK_BYTES) // (2 * channels), 1), 0
        for b in range(n_batch):
            for t in range(0, n_tokens, step):
                n = min(step, n_tokens - t)
                at = slice(b * n_tokens + t, b * n_tokens + t + n)
                n_entries = sum(int(column[at].sum(dtype=np.int64)) for column in counts)
                where: dict[str, Any] = {"row": at, "sequence": b, "entry": slice(done, done + n_entries)}
                part = {column.name: packed.buffers[column.name][where[column.each]] for column in columns}
                done += n_entries
                if rows is not None:
                    self._decode(part, heads, rows[at])
                    continue
                bits = np.empty((n, channels), np.uint16)
                self._decode(part, heads, bits)
                out[b, :, t : t + n] = bits.view(np.float16).reshape(n, heads, head_dim).transpose(1, 0, 2)
        return out


def _check_buffers(packed: Packed, columns: Sequence[BufferColumn]) -> None:
    """Raise ValueError unless the buffers are those of `columns`: kernels trust their sizes."""
    n_batch, _, n_tokens, _ = packed.axes
    n_rows, n_entries = n_batch * n_tokens, 0
    for column in columns:
        buffer = packed.buffers.get(column.name)
        want = {"row": (n_rows, column.items), "sequence": (n_batch, column.items), "entry": (n_entries,)}[column.each]
        if buffer is None or buffer.shape != want or buffer.dtype != np.dtype(column.dtype):
            got = "missing" if buffer is None else f"{buffer.dtype.name} {list(buffer.shape)}"
            raise ValueError(
                f"buffer {column.name}: is {got}, must be {np.dtype(column.dtype).name} {list(want)} for a tensor of "
                f"shape {list(packed.shape)}"
            )
        if column.part == "counts":
            n_entries = int(buffer.sum(dtype=np.int64))
