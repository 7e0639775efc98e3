"""llama.cpp's cache types: blocks of 32 channels with an FP16 step and, in some, a minimum."""

from typing import Any

from dse.core.errors import InputError
from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values
from dse.quantizers.engine_names import LLAMA_CPP
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import GGML_TYPES, BlockType, storage


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

        return GGML(name)

    of_block = f"blocks of {storage.ggml_block} channels, {entry.code_bits}-bit codes, FP16 step"
    near = (EngineName("llama.cpp", "iq4_nl", name, LLAMA_CPP, "has uneven levels"),) if name == "q4_0" else ()
    return Family(
        name=name,
        title=name.upper(),
        source=f"llama.cpp --cache-type {name}: {of_block}{' and minimum' if entry.minimum else ''} (ggml-quants.c)",
        layout=layout,
        kernel=PerSide(kernel),
        engines=(*near, EngineName("llama.cpp", name, name, LLAMA_CPP)),
        by_default=False,  # not for every head dimension
        listed=120,
    )


FAMILIES = tuple(_family(entry) for entry in GGML_TYPES.values())
