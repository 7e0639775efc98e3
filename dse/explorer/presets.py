"""Kinds of use as workloads: lengths, batch, and the limits on waiting that people set for them."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Preset(NamedTuple):
    """A kind of use in a few words, and its fields; batch and limits are assumed, as are lengths without a source."""

    text: str
    values: Mapping[str, Any]


_KEYS = ("batch", "input", "output", "prefix", "ttft_limit", "tpot_limit")
#: lengths of traces: means of the two Azure traces of 2023 (Splitwise, CC-BY 4.0): 1,155 in and 211 out, 2,048 in and
#: 28 out
PRESETS = {
    name: Preset(text, {"load": "batch", **dict(zip(_KEYS, numbers, strict=True))})
    for name, text, *numbers in (
        ("Chat", "1,024 in, 512 out", 64, 1024, 512, 0, 2.0, 50.0),
        ("RAG", "8,192 in, 512 out", 32, 8192, 512, 0, 5.0, 50.0),
        ("Code", "16,384 in, 256 out", 16, 16384, 256, 0, 5.0, 30.0),
        ("Long documents", "65,536 in, 1,024 out", 4, 65536, 1024, 0, 30.0, 100.0),
        ("Agents", "32,768 in (24,576 shared), 512 out", 16, 32768, 512, 24576, 10.0, 50.0),
        ("Trace: conversations", "1,155 in, 211 out (Azure 2023)", 64, 1155, 211, 0, 2.0, 50.0),
        ("Trace: code", "2,048 in, 28 out (Azure 2023)", 64, 2048, 28, 0, 2.0, 50.0),
    )
}
