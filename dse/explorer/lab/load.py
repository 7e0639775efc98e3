"""Where the lab takes a dump: a file loaded into the session, or a path on this machine."""

import threading
from pathlib import Path

import streamlit as st

from dse.core.errors import DseError, InputError, clean, show
from dse.explorer import memory, state, uploads, widgets
from dse.explorer.lab.dumps import ENDINGS, MARK, MAX_NAME, SAMPLE, free_when_left, loaded, read_dump
from dse.explorer.lab.request import DATA, PATH
from dse.measure import lab

#: session keys: what the last load said, and how often one was tried
_SAID, _TRIES = "explorer dump said", "explorer dump tries"
#: session key: the path of a dump; bytes of tensors of such a one at most
_PATH, PATH_BYTES = "explorer dump path", 8 * 2**30


def load_dump() -> None:
    """Where a dump is given; one at a time is held, and Streamlit forgets the file at once."""
    with st.expander("Load a KV dump"):
        tries = st.session_state.get(_TRIES, 0)
        file = st.file_uploader(
            "KV dump, .npz or .safetensors",
            type=[ending[1:] for ending in ENDINGS],
            key=f"load dump {tries}",
            help="Tensors layer0.key, layer0.value, ...: [batch, heads, tokens, head_dim] or [tokens, channels], in "
            "FP16, BF16 or FP32. It stays in this session on this machine.",
        )
        st.caption("A loaded dump is part of this session only: the address names it, and does not carry it.")
        if file is not None:
            try:
                loaded().clear()  # make room first
                label, dump = read_dump(file.name, file.getbuffer())
                st.session_state[state.DUMP] = dumps = {label: dump}
                threading.Thread(target=free_when_left, args=(dumps, uploads.session_lives()), daemon=True).start()
                del dump
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
            memory.free()
            st.rerun()
        if serves_this_machine_alone():
            st.text_input(
                PATH.label, key=_PATH, placeholder=PATH.open_means, help=PATH.help, max_chars=4000, on_change=_take_path
            )
        widgets.lines(st.session_state.get(_SAID, []))


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
    except (DseError, OSError) as error:
        lines = (
            error.lines() if isinstance(error, DseError) else [f"{show(str(path))}: cannot be read: {error.strerror}"]
        )
        st.session_state[_SAID] = lines
        return
    st.session_state[state.DUMP] = {name + MARK: held}
    st.session_state[_SAID] = []
    state.put({DATA.key: name + MARK})
