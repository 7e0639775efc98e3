"""Where a dump is given: a file loaded into the session, or a path on this machine."""

import threading
from pathlib import Path
from typing import Any

import streamlit as st

from dse.core.errors import DseError, InputError, clean, show
from dse.explorer import state, uploads, widgets
from dse.explorer.why.dumps import ENDINGS, MARK, MAX_NAME, SAMPLE, free_when_left, loaded, read_dump
from dse.explorer.why.form import DATA, HEADS, PATH, REPLACE
from dse.measure import lab

#: key of the place for a file; session key: what was wrong with the last dump, a file's or a path's
_KEY, _WRONG = "load dump", "load dump said"
#: session key: the path of a dump; bytes of tensors of such a one at most
_PATH, PATH_BYTES = "explorer dump path", 8 * 2**30


def load_dump() -> list[str]:
    """Where a dump is given, and how it is read; one at a time is held. Returns what is wrong with the last."""
    with st.popover("Own dump"):
        wrong = uploads.take(
            _KEY,
            "KV dump, .npz or .safetensors",
            [ending[1:] for ending in ENDINGS],
            "Tensors layer0.key, layer0.value, ...: [batch, heads, tokens, head_dim] or [tokens, channels], in "
            "FP16, BF16 or FP32. It stays in this session on this machine.",
            _keep,
        )
        st.caption("A loaded dump is part of this session only: the address names it, and does not carry it.")
        if serves_this_machine_alone():
            st.text_input(
                PATH.label, key=_PATH, placeholder=PATH.open_means, help=PATH.help, max_chars=4000, on_change=_take_path
            )
        for field in (HEADS, REPLACE):
            widgets.draw(field)
    return wrong


def _keep(file: Any) -> None:
    """Hold the dump of a file in the session, in place of the one before. Raises DseError."""
    state.put({DATA.key: SAMPLE})
    loaded().clear()  # make room first
    try:
        label, dump = read_dump(file.name, file.getbuffer())
    except OSError as error:  # no room to put the bytes
        raise InputError(f"cannot be read: {(error.strerror or type(error).__name__).lower()}") from error
    st.session_state[state.DUMP] = dumps = {label: dump}
    threading.Thread(target=free_when_left, args=(dumps, uploads.session_lives()), daemon=True).start()
    state.put({DATA.key: label})


def serves_this_machine_alone() -> bool:
    """Whether nobody else reaches the explorer: who could would read files of this machine by their paths."""
    return st.get_option("server.address") in ("127.0.0.1", "localhost", "::1")


def _take_path() -> None:
    """Hold the dump that lies at the path of the field."""
    path = Path(st.session_state[_PATH].strip())
    if not str(path).strip(".") or not serves_this_machine_alone():
        return
    try:
        if path.suffix.lower() not in ENDINGS:
            raise InputError(f"{show(str(path))}: must end in {' or '.join(ENDINGS)}")
        if not path.is_file():
            raise InputError(f"{show(str(path))}: is no file of this machine: give the whole path")
        name = clean(path.name, MAX_NAME)
        held = lab.hold(path, name, PATH_BYTES, on_disk=True)
    except DseError as error:
        st.session_state[_WRONG] = error.lines()
    except OSError as error:
        st.session_state[_WRONG] = [f"{show(str(path))}: cannot be read: {error.strerror}"]
    else:
        st.session_state.update({state.DUMP: {name + MARK: held}, _WRONG: []})
        state.put({DATA.key: name + MARK})
