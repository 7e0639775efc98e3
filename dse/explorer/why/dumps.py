"""KV dumps of a session: the sample that ships, or one of the reader's own, in memory."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import streamlit as st

from dse.core.errors import InputError, clean
from dse.explorer import memory, state, uploads
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


def load(field: str) -> list[str]:
    """A place for a dump, which the list `field` then names; one at a time is held. Returns what was wrong with it."""
    with st.popover("Own dump"):
        wrong = uploads.take(
            "load dump",
            "KV dump, .npz or .safetensors",
            [ending[1:] for ending in ENDINGS],
            "Tensors layer0.key, layer0.value, ...: [batch, heads, tokens, head_dim] or [tokens, channels], in "
            "FP16, BF16 or FP32. It stays in this session on this machine.",
            partial(_keep, field),
        )
        st.caption("It is part of this session only: the address names it, and does not carry it.")
    return wrong


def _keep(field: str, file: Any) -> None:
    """Hold the dump of a file in the session, in place of the one before. Raises DseError."""
    state.put({field: SAMPLE})
    loaded().clear()  # make room first
    try:
        label, dump = read_dump(file.name, file.getbuffer())
    except OSError as error:  # no room to put the bytes
        raise InputError(f"cannot be read: {(error.strerror or type(error).__name__).lower()}") from error
    st.session_state[state.DUMP] = dumps = {label: dump}
    threading.Thread(target=free_when_left, args=(dumps, uploads.session_lives()), daemon=True).start()
    state.put({field: label})


def read_dump(file_name: str, content: Any) -> tuple[str, Held]:
    """A dump from the bytes of a file: its name in the list, and itself. Raises InputError and LimitError.

    The name is only shown, never used as a path; the bytes lie on disk while they are read.
    """
    last = PurePosixPath(file_name.replace("\\", "/"))
    name, ending = clean(last.name, MAX_NAME) or "file", last.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"{name}: must end in {' or '.join(ENDINGS)}")
    with uploads.on_disk(f"dump{ending}", content) as path:
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
