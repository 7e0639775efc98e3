"""Kinds of use as workloads: lengths, batch, and the limits on waiting that people set for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A kind of use in a few words, and its fields; batch and limits are assumed, as is what has no source."""

    text: str
    values: Mapping[str, Any]
    source: str = "assumed"


def _preset(
    text: str,
    batch: int,
    input_: int,
    output: int,
    ttft_s: float,
    tpot_ms: float,
    prefix: int = 0,
    source: str = "assumed",
) -> Preset:
    return Preset(
        text,
        {
            "batch": batch,
            "input": input_,
            "output": output,
            "prefix": prefix,
            "ttft_limit": ttft_s,
            "tpot_limit": tpot_ms,
        },
        source,
    )


#: means of the two Azure traces of 2023 (Splitwise, CC-BY 4.0): 1,155 in and 211 out, 2,048 in and 28 out
_AZURE = "Azure LLM inference trace 2023 (CC-BY 4.0): mean lengths; batch and limits assumed"
PRESETS = {
    "Chat": _preset("1,024 in, 512 out", 64, 1024, 512, 2.0, 50.0),
    "RAG": _preset("8,192 in, 512 out", 32, 8192, 512, 5.0, 50.0),
    "Code": _preset("16,384 in, 256 out", 16, 16384, 256, 5.0, 30.0),
    "Long documents": _preset("65,536 in, 1,024 out", 4, 65536, 1024, 30.0, 100.0),
    "Agents": _preset("32,768 in (24,576 shared), 512 out", 16, 32768, 512, 10.0, 50.0, prefix=24576),
    "Trace: conversations": _preset("1,155 in, 211 out (Azure 2023)", 64, 1155, 211, 2.0, 50.0, source=_AZURE),
    "Trace: code": _preset("2,048 in, 28 out (Azure 2023)", 64, 2048, 28, 2.0, 50.0, source=_AZURE),
}
