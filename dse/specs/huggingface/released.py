"""Match the quantization_config of a config.json to a format of `--weights`."""

import re
from collections.abc import Mapping
from typing import Any

from dse.specs.weights import FORMATS

#: modules outside the products of layers, which every format leaves at 16 bits
_OUTSIDE = re.compile(
    r"lm_head|embed|norm|vision|visual|audio|projector|mtp|router|eh_proj|(?:^|\.)gate(?:[*.]|$)|shared_expert_gate|e_score"
)
#: what all but routed experts is called, in the files that convert these alone
_ALL_BUT_EXPERTS = ("self_attn", "shared_experts", r"mlp\.(gate|up|gate_up|down)_proj")
#: keys that list the modules left as they are
_KEPT = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")


def note(config: Any, has_own_experts: bool) -> str:
    """A note on a quantization_config, which is not counted; `has_own_experts`: another key gives the storage of
    experts."""
    name = "" if has_own_experts or not isinstance(config, Mapping) else _format(config)
    if not name:
        return "quantization_config ignored: weights count 16 bits unless --weights says otherwise"
    return f"quantization_config ignored: --weights {name} counts weights as it has them ({FORMATS[name].title})"


def _format(config: Mapping[str, Any]) -> str:
    """The name of the format, "" where none is surely meant."""
    if config.get("quant_method") == "mxfp4":  # of transformers: experts alone
        return "mxfp4-experts"
    kept = [name for key in _KEPT for name in _texts(config.get(key)) if not _OUTSIDE.search(name)]
    if not kept:
        return _of_all_layers(config)
    is_experts = len(kept) == len(_ALL_BUT_EXPERTS) and all(
        any(part in name for name in kept) for part in _ALL_BUT_EXPERTS
    )
    return "mxfp4-experts" if is_experts and config.get("format") == "mxfp4-pack-quantized" else ""


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _of_all_layers(config: Mapping[str, Any]) -> str:
    """The format if no layer is left as it was."""
    method, block = config.get("quant_method"), config.get("weight_block_size")
    if method == "fp8":  # dynamic scales of no stated block: servers differ in what they take
        return "fp8-block" if block == [128, 128] else "fp8" if config.get("activation_scheme") == "static" else ""
    if method in ("gptq", "awq"):
        return "int4" if (config.get("bits"), config.get("group_size")) == (4, 128) else ""
    if method in ("modelopt", None):
        return {"FP8": "fp8", "NVFP4": "nvfp4"}.get(str(config.get("quant_algo")), "")
    return ""
