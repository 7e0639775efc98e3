"""The KV dump of the quantizer lab: the sample that ships, or the reader's own, held in this session's memory only."""

import ctypes
import gc
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import streamlit as st

from dse import measure_view
from dse.errors import DseError, InputError, clean
from dse.explorer import state, uploads, widgets
from dse.explorer.fields import Field
from dse.measure_view import Held

SAMPLE = "sample"
ENDINGS = (".npz", ".safetensors")
_MARK = " (loaded)"
_MAX_NAME = 60
#: seconds for which a browser may be away and find its session again: `server.disconnectedSessionTTL`
RETURN_S = 30
#: session keys: what the last load said, and how often one was tried
_SAID, _TRIES = "explorer dump said", "explorer dump tries"


def _names() -> list[str]:
    return [SAMPLE, *_loaded()]


def _loaded() -> dict[str, Held]:
    try:
        found: dict[str, Held] = st.session_state.get(state.DUMP, {})
    except RuntimeError as error:  # no session: outside the app
        raise InputError("no session holds a dump") from error
    return found


DATA = Field(
    "lab_data", "KV dump", "choice", SAMPLE, choices=_names,
    titles=lambda name: "the sample that ships (synthetic)" if name == SAMPLE else name,
    help="Keys and values as a cache holds them. The sample is made up, no language model's.",
)  # fmt: skip


@st.cache_resource(show_spinner=False)
def sample() -> Held:
    """The sample, read once a process."""
    return measure_view.sample()


def held(name: str) -> Held:
    """The dump of that name."""
    return sample() if name == SAMPLE else _loaded()[name]


def read(file_name: str, content: Any) -> tuple[str, Held]:
    """A dump from the bytes of a file: its name in the list, and itself. Raises InputError and LimitError.

    The name is only shown, never used as a path; the bytes lie on disk while they are read.
    """
    name = clean(PurePosixPath(file_name.replace("\\", "/")).name, _MAX_NAME) or "file"
    ending = PurePosixPath(name).suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"{name}: must end in {' or '.join(ENDINGS)}")
    with tempfile.TemporaryDirectory(prefix="dse-dump-") as folder:
        path = Path(folder) / f"dump{ending}"
        path.write_bytes(content)
        return name + _MARK, measure_view.hold(path, name)


def free_when_left(dumps: dict[str, Held], lives: Callable[[], bool], look_s: float = 5.0) -> None:
    """Empty `dumps` when the session has been away for longer than it may come back; ends when they are gone.

    Streamlit keeps what a session that was left held until others come and go.
    """
    away_s = 0.0
    while dumps and away_s <= RETURN_S:
        time.sleep(look_s)
        away_s = 0.0 if lives() else away_s + look_s
    dumps.clear()
    free()


def free() -> None:
    """Give memory that holds nothing back to the system, which the C library keeps for later by itself."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)


def load() -> None:
    """Where a dump is given; one at a time is held, and Streamlit forgets the file at once."""
    with st.expander("Load a KV dump"):
        tries = st.session_state.get(_TRIES, 0)
        file = st.file_uploader(
            "KV dump, .npz or .safetensors", type=[ending[1:] for ending in ENDINGS], key=f"load dump {tries}",
            help="Tensors layer0.key, layer0.value, ...: [batch, heads, tokens, head_dim] or [tokens, channels], in "
            "FP16, BF16 or FP32. It stays in this session on this machine.",
        )  # fmt: skip
        st.caption("A loaded dump is part of this session only: the address cannot carry it.")
        if file is not None:
            try:
                _loaded().clear()  # make room first
                label, found = read(file.name, file.getbuffer())
                st.session_state[state.DUMP] = dumps = {label: found}
                threading.Thread(target=free_when_left, args=(dumps, uploads.session_lives()), daemon=True).start()
                del found
                state.put({DATA.key: label})
                st.session_state[_SAID] = []
            except DseError as error:
                state.put({DATA.key: SAMPLE})
                st.session_state[_SAID] = error.lines()
            except OSError as error:  # no room to put the bytes
                state.put({DATA.key: SAMPLE})
                st.session_state[_SAID] = [f"cannot be read: {(error.strerror or type(error).__name__).lower()}"]
            uploads.let_go(file)
            st.session_state[_TRIES] = tries + 1  # another key: an empty uploader
            file = None
            free()
            st.rerun()
        widgets.lines(st.session_state.get(_SAID, []))
