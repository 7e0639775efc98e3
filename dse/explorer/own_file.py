"""Files of the reader's own that pages take: one of a kind at a time, in the memory of the session."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import streamlit as st

from dse.core.errors import InputError, LimitError, clean
from dse.explorer import memory, state, uploads, widgets

#: behind the name of a file in a list
LOADED = " (loaded)"
_MAX_STEM = 50
#: seconds for which a browser may be away and find its session again: `server.disconnectedSessionTTL`
RETURN_S = 30


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """A place for a file: `read(path, content)` gives what is held of it, or raises DseError.

    `field` is the key of the list that then names it, where there is one (`is_listed`); `larger` says what to do with
    a larger file.
    """

    field: str
    label: str
    help: str
    endings: tuple[str, ...]
    max_bytes: int
    read: Callable[[str, bytes], Any]
    larger: str
    is_listed: bool = True

    def draw(self) -> None:
        """Draw the place, and what was wrong with the last file."""
        mib = self.max_bytes // 2**20
        tip = f"{self.help}; at most {mib} MiB. It stays in the memory of this session."
        widgets.lines(uploads.take(f"{self.field} file", self.label, self.endings, tip, self.keep, max_mib=mib))

    def keep(self, file: Any) -> None:
        """Hold a file. Raises InputError and LimitError."""
        path = PurePosixPath(file.name.replace("\\", "/"))  # only shown, never used as a path
        name, content = clean(path.stem, _MAX_STEM) + clean(path.suffix, _MAX_STEM), file.getvalue()
        if len(content) > self.max_bytes:
            raise LimitError(f"{name}: has {len(content):,} bytes: at most {self.max_bytes:,}: {self.larger}")
        if not name.lower().endswith(self.endings):
            raise InputError(f"{name}: must end with {' or '.join(self.endings)}")
        try:
            with uploads.on_disk(name, content) as place:
                held = {name: self.read(place, content)}
        except OSError as error:  # no room to put the bytes
            raise InputError(f"{name}: cannot be read: {(error.strerror or type(error).__name__).lower()}") from error
        st.session_state.get(self._key, {}).clear()
        st.session_state[self._key] = held
        threading.Thread(target=free_when_left, args=(held, uploads.session_lives()), daemon=True).start()
        if self.is_listed:
            state.put({self.field: name + LOADED})

    @property
    def _key(self) -> str:
        return f"own {self.field}"

    def held(self) -> tuple[str, Any]:
        """Name and content of the file, "" and None without one."""
        try:
            return next(iter(st.session_state.get(self._key, {}).items()), ("", None))
        except RuntimeError:  # no session: outside the app
            return "", None

    def names(self) -> dict[str, str]:
        """The file in a list."""
        name, _ = self.held()
        return {name + LOADED: name + LOADED} if name else {}


def free_when_left(held: dict[str, Any], lives: Callable[[], bool], look_s: float = 5.0) -> None:
    """Empty `held` when the session has been away for longer than it may come back; ends when nothing is in it.

    Streamlit keeps what a session that was left held until others come and go.
    """
    away_s = 0.0
    while held and away_s <= RETURN_S:
        time.sleep(look_s)
        away_s = 0.0 if lives() else away_s + look_s
    held.clear()
    memory.free()
