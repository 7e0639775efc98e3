"""Match the quantization_config of a config.json to a format of `--weights`."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dse.specs.weights import FORMATS

if TYPE_CHECKING:
    from dse.specs.huggingface.keys import Keys

#: modules outside the products of layers, which every format leaves at 16 bits
_OUTSIDE = re.compile(
    r"lm_head|^head$|embed|norm|vision|visual|audio|projector|mtp|router|eh_proj|(?:^|\.)gate(?:[*.]|$)|shared_expert_gate"
    r"|e_score|conv1d|indexers_proj|patch_merge"
)
#: what belongs to attention, and to feed-forwards beside routed experts
_ATTENTION = re.compile(r"attn|indexer|mixer\.(?:[qkvo]|in|out)_proj")
_FEED_FORWARD = re.compile(r"shared_expert|mlp(?:\*|\.\*|$|\\?\.\(?(?:gate|up|down))|layers\.\d+(?:\*|\.\*)$")
#: keys that list the modules left as they are
_KEPT = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")
#: formats of experts alone by the format of all layers
_EXPERTS = {"nvfp4": "nvfp4-experts", "mxfp4": "mxfp4-experts", "int4-of-32": "int4-experts"}


def of_config(keys: "Keys") -> dict[str, Any]:
    """The fields of a model that say how its weights were released; a note where the format is not understood."""
    for place in (keys.data, keys.document.data):
        if (quantized := place.get("quantization_config")) is None:
            continue
        inner = quantized if isinstance(quantized, Mapping) else {}
        name = _format(inner, place.get("expert_dtype") or inner.get("expert_dtype")) if inner else ""
        if not name:
            keys.note("quantization_config ignored: weights count 16 bits unless --weights says otherwise")
            return {}
        return {"released": name, "released_source": "quantization_config of its config.json"}
    return {}


def _format(config: Mapping[str, Any], expert_dtype: Any) -> str:
    """The name of the format, "" where none is surely meant."""
    if config.get("quant_method") == "mxfp4":  # of transformers: experts alone
        return "mxfp4-experts"
    kept = [name for key in _KEPT for name in _texts(config.get(key)) if not _OUTSIDE.search(name)]
    layer_format = _of_layers(config)
    if expert_dtype is not None:  # DeepSeek-V4: FP8 in blocks but for its experts
        return "fp8-mxfp4-experts" if (layer_format, expert_dtype, kept) == ("fp8-block", "fp4", []) else ""
    if not kept:
        return layer_format if layer_format in FORMATS else ""
    attention = [name for name in kept if _ATTENTION.search(name)]
    others = [name for name in kept if name not in attention]
    if not attention or not all(_FEED_FORWARD.search(name) for name in others) or _is_partly(attention):
        return ""
    if others:
        return _EXPERTS.get(layer_format, "")
    return "nvfp4-ffn" if layer_format == "nvfp4" else ""


def _is_partly(names: list[str]) -> bool:
    """True where modules of attention are listed one by one, so that others of them are quantised."""
    return not any(re.search(r"attn(?:\.?\*|$)", name) for name in names)


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _of_layers(config: Mapping[str, Any]) -> str:
    """The format of the layers that are not kept as they were."""
    method, block = config.get("quant_method"), config.get("weight_block_size")
    if method == "fp8":  # dynamic scales of no stated block: servers differ in what they take
        return "fp8-block" if block == [128, 128] else "fp8" if config.get("activation_scheme") == "static" else ""
    if method in ("gptq", "awq"):
        groups: dict[Any, str] = {(4, 128): "int4", (8, 128): "w8a16"}
        return groups.get((config.get("bits"), config.get("group_size")), "")
    if method == "bitsandbytes":
        return "nf4" if config.get("load_in_4bit") else ""
    if method == "compressed-tensors":
        return _of_groups(config)
    if method in ("modelopt", None):
        return {"FP8": "fp8", "NVFP4": "nvfp4"}.get(str(config.get("quant_algo")), "")
    return ""


def _of_groups(config: Mapping[str, Any]) -> str:
    """The format of a file of compressed-tensors, all of whose groups are alike."""
    groups = config.get("config_groups")
    schemes = list(_groups(groups.values())) if isinstance(groups, Mapping) else []
    if len(set(schemes)) > 1:
        return ""
    packed = config.get("format")
    if packed in ("mxfp4-pack-quantized", "nvfp4-pack-quantized"):
        return str(packed).partition("-")[0]
    if not schemes:
        return ""
    kind, bits, group, block, activation_bits = schemes[0]
    if kind == "float" and bits == 8:
        return "fp8-block" if block == (128, 128) else "" if block else "fp8"
    if kind == "float" and (bits, group) == (4, 16):
        return "nvfp4"
    if kind == "int" and bits == 8:
        return "int8" if activation_bits == 8 and group is None else "w8a16" if group in (None, 128) else ""
    if kind == "int" and bits == 4:
        return {128: "int4", 32: "int4-of-32"}.get(group, "")  # type: ignore[arg-type]
    return ""


def _groups(groups: Any) -> Iterator[tuple[Any, ...]]:
    for group in groups:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            continue
        inputs = group.get("input_activations")
        activations = inputs if isinstance(inputs, Mapping) else {}
        block = weights.get("block_structure")
        size = weights.get("group_size")
        yield (
            weights.get("type"),
            weights.get("num_bits"),
            size if isinstance(size, int) and size > 0 else None,
            tuple(block) if isinstance(block, list) else None,
            activations.get("num_bits"),
        )
