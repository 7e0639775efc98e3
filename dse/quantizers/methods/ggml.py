"""llama.cpp's cache types: blocks of 32 channels with an FP16 step and, in some, a minimum."""

from collections.abc import Iterator
from typing import Any

from dse.core.errors import InputError
from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values, param
from dse.quantizers.engine_names import IK_LLAMA_CPP, LLAMA_CPP
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import GGML_TYPES, BlockType, storage

#: llama.cpp turns runs of channels by a Hadamard matrix before it quantizes them (April 2026, pull request 21038),
#: unless LLAMA_ATTN_ROT_DISABLE is set; it stores as many bits, with smaller errors
ROTATE = param("rotate", default="on", help="rotate channels before they are quantized", choices=("on", "off"))
#: types of ik_llama.cpp, beside the family that is nearest
_FORK = {
    "q5_1": ("q6_0", "of ik_llama.cpp has 6 bits and an FP16 step for 32 channels, 6.5 each"),
    "q8_0": ("q8_kv", "of ik_llama.cpp has 8 bits and one step for a row"),
}


def _engines(name: str) -> Iterator[EngineName]:
    yield EngineName("llama.cpp", name, name, LLAMA_CPP)
    if name in _FORK:
        yield EngineName("llama.cpp", _FORK[name][0], name, IK_LLAMA_CPP, _FORK[name][1])


def _family(entry: BlockType) -> Family:
    name: Any = entry.name

    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        if shape.head_dim % storage.ggml_block:
            raise InputError(
                f"quantizer = {name}: head_dim = {shape.head_dim}: must be a multiple of {storage.ggml_block}, "
                "ggml's block"
            )
        value = storage.group_value * shape.n_elements // storage.ggml_block
        bits = {"payload": entry.code_bits * shape.n_elements, "scales": value}
        return TensorLayout(shape, packed=bits | ({"zero_points": value} if entry.minimum else {}))

    def kernel(values: Values, place: Place) -> Method:
        from kernels_ref.ggml import GGML

        # latent (MLA) heads, which values are a part of, are stored as they are (llama-graph.cpp, build_attn of attn_k)
        is_latent = place.x.shape[-1] == storage.mla_latent + storage.mla_rope
        return GGML(name, rotated="" if is_latent or values["rotate"] == "off" else place.side)

    codes = "codes of 16 uneven levels" if entry.levels else f"{entry.code_bits}-bit codes"
    of_block = f"blocks of {storage.ggml_block} channels, {codes}, FP16 step"
    return Family(
        name=name,
        title=name.upper(),
        source=f"llama.cpp --cache-type {name}: {of_block}{' and minimum' if entry.minimum else ''} (ggml-quants.c)",
        layout=layout,
        params=(ROTATE,),
        kernel=PerSide(kernel),
        engines=tuple(_engines(name)),
        by_default=False,  # not for every head dimension
        listed=120,
    )


FAMILIES = tuple(_family(entry) for entry in GGML_TYPES.values())
