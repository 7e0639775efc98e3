"""Files that sessions have loaded, found again by what an address says of them: their names and their contents."""

import hashlib
import re
import threading
import time
from typing import Any, Protocol

#: files that the explorer keeps for all sessions together, and for how long after they were last used
MAX_FILES, KEEP_S = 64, 8 * 3600.0
_ADDRESS = re.compile(r"(.{1,80})(?:@(?:[0-9a-f]{16}|loaded)| \(loaded\))")


class File(Protocol):
    """A loaded file: what it is, its name, and its text or what stands for it."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...


_files: dict[str, tuple[float, Any]] = {}
_lock = threading.Lock()


def address(file: File) -> str:
    """Stand-in for a file in an address, which nobody can guess without the file."""
    token = hashlib.sha256("\0".join((file.kind, file.name, file.text)).encode()).hexdigest()[:16]
    return f"{file.name.replace(';', '_')}@{token}"  # which stands between the values of an address


def name_in(text: str) -> str:
    """The name of the file that a value of an address stands for; empty where it stands for none."""
    match = _ADDRESS.fullmatch(text)
    return match[1] if match else ""


def remember(file: File) -> None:
    """Keep a file for KEEP_S from now; the one that was not used for longest makes room."""
    with _lock:
        now = time.monotonic()
        _files.pop(address(file), None)
        _files[address(file)] = (now, file)
        for text, (used, _) in list(_files.items()):
            if now - used > KEEP_S or len(_files) > MAX_FILES:
                del _files[text]


def file_of(text: str) -> Any:
    """The file that a value of an address stands for; None where none is kept."""
    with _lock:
        used, file = _files.get(text, (0.0, None))
        return file if file is not None and time.monotonic() - used <= KEEP_S else None


def label(file: File, held: dict[str, Any]) -> str:
    """The name of a file in the lists of a session that holds others: files of one name are numbered."""
    text, number = f"{file.name} (loaded {file.kind})", 2
    while text in held and held[text] != file:
        text, number = f"{file.name} (loaded {file.kind} {number})", number + 1
    return text


def numbered(shown: str, chosen: str) -> str:
    """A file's name with the number that its name in the lists has, where it is not the first of that name."""
    number = re.search(r" \(loaded \w+ (\d+)\)$", chosen)
    return f"{shown} ({number[1]})" if number else shown
