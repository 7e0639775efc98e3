"""A file of the reader's own that a part of the page Size takes: one at a time, held in the session's memory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import streamlit as st

from dse.core.errors import InputError, LimitError, clean
from dse.explorer import state, uploads, widgets

#: behind the name of a file in a list
LOADED = " (loaded)"
_MAX_NAME = 60


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """A place for a file: `read(path, content)` gives what is held of it, or raises DseError.

    `field` is the key of the list that then names it, `command` takes files of any size.
    """

    field: str
    label: str
    help: str
    endings: tuple[str, ...]
    max_bytes: int
    command: str
    read: Callable[[str, bytes], Any]

    def draw(self) -> None:
        """Draw the place, and what was wrong with the last file."""
        mib = self.max_bytes // 2**20
        tip = f"{self.help}; at most {mib} MiB. It stays in the memory of this session."
        widgets.lines(uploads.take(f"{self.field} file", self.label, self.endings, tip, self.keep, max_mib=mib))

    def keep(self, file: Any) -> None:
        """Hold a file. Raises InputError and LimitError."""
        name = clean(PurePosixPath(file.name.replace("\\", "/")).name, _MAX_NAME)
        content = file.getvalue()
        if len(content) > self.max_bytes:
            most = f"at most {self.max_bytes:,}: `{self.command}` takes any size"
            raise LimitError(f"{name}: has {len(content):,} bytes: {most}")
        if not name.lower().endswith(self.endings):
            raise InputError(f"{name}: must end with {' or '.join(self.endings)}")
        with uploads.on_disk(name, content) as path:
            st.session_state[self._key] = name, self.read(path, content)
        state.put({self.field: name + LOADED})

    @property
    def _key(self) -> str:
        return f"size {self.field}"

    def held(self) -> tuple[str, Any]:
        """Name and content of the file, "" and None without one."""
        try:
            held: tuple[str, Any] = st.session_state.get(self._key, ("", None))
        except RuntimeError:  # no session: outside the app
            held = "", None
        return held

    def names(self) -> dict[str, str]:
        """The file in a list."""
        name, _ = self.held()
        return {name + LOADED: name + LOADED} if name else {}
