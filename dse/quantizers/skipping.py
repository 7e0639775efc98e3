"""Layers that a quantizer leaves in 16 bits: its parameter `skip`, vLLM's --kv-cache-dtype-skip-layers.

`fp8:skip=0+1+-1` keeps the first two layers and the last one; `skip=none` keeps none.
"""

import re
from dataclasses import replace

from dse.core.errors import InputError
from dse.quantizers.base import Family, QuantizerSpec, param
from dse.quantizers.methods import fp16

NONE = "none"
_INDEX = re.compile(r"-?[0-9]{1,4}", re.ASCII)
#: what skipped layers are stored as: the model's type, 16 bits
SIXTEEN = QuantizerSpec(fp16.FAMILIES[0], values=(), name=fp16.FAMILIES[0].name)


def canonical(text: str) -> str | None:
    """Layers in order, each once: `1+0+-1` is `0+1+-1`. None for what is no such list."""
    if text == NONE:
        return text
    parts = text.split("+")
    if not all(_INDEX.fullmatch(part) and part != "-0" for part in parts):
        return None
    layers = sorted({int(part) for part in parts}, key=lambda i: (i < 0, i))
    return "+".join(map(str, layers))


def with_skip(family: Family) -> Family:
    """Add the parameter `skip` to a family; 16 bits have none."""
    if family.exact:
        return family
    text = "layers kept in 16 bits, such as 0+1+-1 (from 0; negative: from the end), or none"
    return replace(
        family, params=(*family.params, param("skip", default=family.skip or NONE, help=text, canonical=canonical))
    )


def layers_of(spec: QuantizerSpec) -> tuple[int, ...]:
    """The layers that a quantizer keeps in 16 bits, negative ones from the end."""
    text = dict(spec.values).get("skip", NONE)
    return () if text == NONE else tuple(int(part) for part in text.split("+"))


def is_named(spec: QuantizerSpec) -> bool:
    """True where the text of the quantizer names layers, or says that there are none, itself."""
    return dict(spec.values).get("skip", NONE) != (spec.family.skip or NONE)


def bare(spec: QuantizerSpec) -> QuantizerSpec:
    """The quantizer without layers in 16 bits: that of the other layers."""
    if "skip" not in dict(spec.values):
        return spec
    values = tuple((name, NONE if name == "skip" else value) for name, value in spec.values)
    name, colon, tail = spec.name.partition(":")
    kept = [part for part in tail.split(",") if part and not part.startswith("skip=")]
    return replace(spec, values=values, name=name + (colon + ",".join(kept) if kept else ""))


def resolved(spec: QuantizerSpec, n_layers: int, model: str, *, is_hybrid: bool = False) -> QuantizerSpec:
    """`spec` by layer for a model of so many layers, where it keeps some in 16 bits; otherwise as it is.

    Layers that are there by default and that a small model lacks do not matter, and hybrids, of few layers of
    attention, have none by default (vLLM, quantization/turboquant/config.py, get_boundary_skip_layers). Raises
    InputError for others.
    """
    asked = layers_of(spec)
    if not asked or spec.layers:
        return spec
    if is_hybrid and not is_named(spec):
        return bare(spec)
    for i in asked:
        if not -n_layers <= i < n_layers and is_named(spec):
            raise InputError(
                f"quantizer = {spec.name}: skip = {i}: {model} has {n_layers} layers: 0 to {n_layers - 1}, or "
                f"-{n_layers} to -1 from the end"
            )
    skipped = {i % n_layers for i in asked if -n_layers <= i < n_layers}
    packed = bare(spec)
    layers = tuple((SIXTEEN, SIXTEEN) if i in skipped else (packed, packed) for i in range(n_layers))
    return replace(spec, layers=layers, measured=spec.by_depth.get(n_layers, {}))
