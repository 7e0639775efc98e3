"""One open file of a dump: a regular file, read by position, whose failures are one line each."""

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dse.core import files
from dse.core.errors import DseError, InputError, LimitError, clean, show

#: bytes read at a time
BLOCK_BYTES = 4 * 2**20
_MAX_PATH = 120


def _short(text: str) -> str:
    """A path as messages show it: one line, the end of a long one."""
    text = clean(text, 10_000)
    return text if len(text) <= _MAX_PATH else "..." + text[3 - _MAX_PATH :]


class DumpSource:
    """A regular file held open by one descriptor; `size` is its length in bytes when it was opened.

    Never mapped into memory: a file that shrinks while it is read is an error, not a signal. FIFOs, devices and
    directories are refused without waiting for them; symbolic links are followed. Raises InputError.
    """

    def __init__(
        self, path: str | os.PathLike[str], give: str = "the path of a .npy, .npz or .safetensors file"
    ) -> None:
        self._file: BinaryIO | None = None
        #: what the file says of itself beside its tensors: names to text
        self.metadata: dict[str, str] = {}
        self.path = Path(path)
        self.name = _short(str(path))
        self._file, self.size = files.open_regular(path, give, self.name)

    @property
    def fd(self) -> int:
        """The descriptor; -1 once it is closed."""
        return -1 if self._file is None else self._file.fileno()

    def close(self) -> None:
        """Give the descriptor back; reading afterwards is an error. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        self.close()

    def read(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes from byte `offset`. Raises InputError where the file ends before."""
        parts = []
        while count:
            try:
                part = os.pread(self.fd, count, offset)
            except (OSError, OverflowError) as error:
                raise self._unreadable(error) from error
            if not part:
                raise self.error(f"ends at byte {offset:,}, {count:,} bytes early: copy or write the file again")
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def blocks(self, offset: int, count: int) -> Iterator[bytes]:
        """`count` bytes from `offset`, at most BLOCK_BYTES at a time."""
        for start in range(0, count, BLOCK_BYTES):
            yield self.read(offset + start, min(BLOCK_BYTES, count - start))

    def error(self, text: str, tensor: str | None = None) -> InputError:
        """An InputError that names the file and, where there is one, the tensor."""
        return InputError(self._line(text, tensor))

    def limit(self, text: str, tensor: str | None = None) -> LimitError:
        """A LimitError that names the file and, where there is one, the tensor."""
        return LimitError(self._line(text, tensor))

    def _line(self, text: str, tensor: str | None) -> str:
        return f"{self.name}: {text}" if tensor is None else f"{self.name}: tensor {show(tensor)}: {text}"

    def _unreadable(self, error: Exception) -> DseError:
        reason = str(getattr(error, "strerror", None) or error).lower()
        return self.error(f"cannot be read: {reason}")


class SourceFile(io.RawIOBase):
    """A dump as a file object with a position of its own, for `zipfile`."""

    def __init__(self, source: DumpSource) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """The new position in bytes; raises OSError before the start of the file."""
        at = offset + (0, self._at, self._source.size)[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "a position before the start of the file")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        """The number of bytes read into `buffer`: 0 at the end of the file."""
        view = memoryview(buffer).cast("B")
        count = max(min(len(view), self._source.size - self._at), 0)
        view[:count] = self._source.read(self._at, count) if count else b""
        self._at += count
        return count
