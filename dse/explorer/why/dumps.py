"""KV dumps of a session: the sample that ships, or one of the reader's own, in memory or where it lies."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import streamlit as st

from dse.core import files
from dse.core.errors import InputError, clean
from dse.explorer import memory, state
from dse.measure import lab
from dse.measure.lab import Held

#: the dump that ships among the names of loaded ones; files that can be loaded
SAMPLE, ENDINGS = "sample", (".npz", ".safetensors")
MARK = " (loaded)"
MAX_NAME = 60
#: seconds for which a browser may be away and find its session again: `server.disconnectedSessionTTL`
RETURN_S = 30


def loaded() -> dict[str, Held]:
    """Dump of the session's own, by its name in the list. Raises InputError outside a session."""
    try:
        dumps: dict[str, Held] = st.session_state.get(state.DUMP, {})
    except RuntimeError as error:  # no session: outside the app
        raise InputError("no session holds a dump") from error
    return dumps


@st.cache_resource(show_spinner=False)
def sample() -> Held:
    """The sample, read once a process."""
    return lab.sample()


def dump_of(name: str) -> Held:
    """The dump of that name."""
    return sample() if name == SAMPLE else loaded()[name]


def read_dump(file_name: str, content: Any) -> tuple[str, Held]:
    """A dump from the bytes of a file: its name in the list, and itself. Raises InputError and LimitError.

    The name is only shown, never used as a path; the bytes lie on disk while they are read.
    """
    last = PurePosixPath(file_name.replace("\\", "/"))
    name, ending = clean(last.name, MAX_NAME) or "file", last.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"{name}: must end in {' or '.join(ENDINGS)}")
    with tempfile.TemporaryDirectory(prefix="dse-dump-") as folder:
        path = Path(folder) / f"dump{ending}"
        files.write(path, content)
        return name + MARK, lab.hold(path, name)


def free_when_left(dumps: dict[str, Held], lives: Callable[[], bool], look_s: float = 5.0) -> None:
    """Empty `dumps` when the session has been away for longer than it may come back; ends when they are gone.

    Streamlit keeps what a session that was left held until others come and go.
    """
    away_s = 0.0
    while dumps and away_s <= RETURN_S:
        time.sleep(look_s)
        away_s = 0.0 if lives() else away_s + look_s
    dumps.clear()
    memory.free()
