"""KV dumps: the sample that ships, or one of the reader's own."""

from pathlib import PurePath

import streamlit as st

from dse.core.errors import InputError
from dse.explorer.own_file import LOADED, OwnFile
from dse.measure import lab
from dse.measure.lab import Held

#: the dump that ships, among the names of loaded ones
SAMPLE = "sample"
OWN = OwnFile(
    field="lab_data",
    label="KV dump, .npz or .safetensors",
    help="Tensors layer0.key, layer0.value, ...: [batch, heads, tokens, head_dim] or [tokens, channels], in FP16, BF16 "
    "or FP32",
    endings=(".npz", ".safetensors"),
    max_bytes=64 * 2**20,
    larger="`dse lab` takes any size",
    read=lambda path, _: lab.hold(path, PurePath(path).name),
)


@st.cache_resource(show_spinner=False)
def sample() -> Held:
    """The sample, read once a process."""
    return lab.sample()


def dump_of(name: str) -> Held:
    """The dump of that name. Raises InputError for one that is gone."""
    if name == SAMPLE:
        return sample()
    held: tuple[str, Held | None] = OWN.held()
    if held[1] is None:
        raise InputError(f"{name.removesuffix(LOADED)}: is no longer held: load it again")
    return held[1]
