"""Layers as llama.cpp's options name them: all of them, a number, or a pattern of the names of tensors."""

import re
from dataclasses import replace

from dse.core.errors import InputError, show
from dse.core.field import WHOLE

#: more layers than a model has
MOST_LAYERS = 10_000
#: layers that a pattern is tried on, and the names of their experts (src/llama-arch.cpp)
_TRIED = 256
_EXPERTS = tuple(f"ffn_{part}_exps.weight" for part in ("gate", "up", "down"))
_OTHERS = ("attn_q.weight", "attn_output.weight", "ffn_up.weight", "ffn_up_shexp.weight", "attn_norm.weight")


def _layers(name: str, text: str) -> int:
    return MOST_LAYERS if text.strip().lower() in ("all", "auto") else int(WHOLE.parse(name, text))


def _expert_layers(name: str, text: str) -> int:
    """Layers whose experts patterns of -ot put into host memory. Raises InputError for what else they name."""
    if "=" not in text:
        return _layers(name, text)
    found = set[int]()
    for pattern, _, place in (part.rpartition("=") for part in text.split(",")):
        said = f"override-tensor = {show(text)}"
        try:
            rule = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(f"{said}: is no regular expression ({error})") from None
        hit = [n for n in range(_TRIED) if any(rule.search(f"blk.{n}.{part}") for part in _EXPERTS)]
        if not hit or any(rule.search(f"blk.{n}.{part}") for n in range(_TRIED) for part in _OTHERS):
            raise InputError(
                f"{said}: experts alone are counted in host memory: use '.ffn_.*_exps.=CPU', or --n-gpu-layers"
            )
        if place.strip().upper() != "CPU":
            raise InputError(f"{said}: host memory alone is counted: use =CPU, or --pp for several devices")
        found |= {*hit}
    return MOST_LAYERS if len(found) == _TRIED else len(found)


LAYERS = replace(WHOLE, parse=_layers)
EXPERT_LAYERS = replace(WHOLE, parse=_expert_layers)
