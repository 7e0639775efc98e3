"""TurboQuant's presets in vLLM: rotated keys as norm and indices, values with scale and minimum."""

from typing import Any

from dse.core.errors import InputError
from dse.core.units import BITS_PER_BYTE
from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values
from dse.quantizers.engine_names import LMDEPLOY, TURBO, VLLM, VLLM_033
from dse.quantizers.kernel import Method, PerSide, Place
from dse.quantizers.slots import check_sides
from kernels_ref import TURBOQUANT_TYPES, TurboQuantType, storage

#: layers kept in 16 bits where no others are named (vLLM 0.33.0, quantization/turboquant/config.py)
SKIPPED = "0+1+-2+-1"


def _octave(bits: str) -> str:
    return f"has {bits} in a code of its own for heads of 256 on CDNA3 and RDNA3"


#: preset -> types of engines that are near to it
_NEAR = {
    "k3v4_nc": (
        EngineName("vLLM", "octave_k3v4", "turboquant_k3v4_nc", VLLM_033, _octave("keys in 3 bits, values in 4")),
    ),
    "4bit_nc": (
        EngineName("llama.cpp", "turbo4", "turboquant_4bit_nc", TURBO, "of a fork has a code of its own in 4 bits"),
    ),
    "3bit_nc": (
        EngineName("llama.cpp", "turbo3", "turboquant_3bit_nc", TURBO, "of a fork has a code of its own in 3 bits"),
        EngineName("llama.cpp", "turbo2", "turboquant_3bit_nc", TURBO, "of a fork has a code of its own in 2 bits"),
        *(
            EngineName("vLLM", name, "turboquant_3bit_nc", VLLM_033, _octave("keys and values in 3 bits"))
            for name in ("octave_k3v3", "octave_k3v3_compact")
        ),
        EngineName(
            "LMDeploy",
            "quant_policy_42",
            "turboquant_3bit_nc",
            LMDEPLOY,
            "has rotated keys in 3 bits with a sign of what is left, values in 2",
        ),
    ),
}


def _family(entry: TurboQuantType) -> Family:
    name, preset = f"turboquant_{entry.name}", entry.name

    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        check_sides(name, shape)
        if problem := entry.problem(shape.head_dim):
            raise InputError(f"quantizer = {name}: {problem.partition(' for ')[0]}")
        value = storage.group_value * shape.n_heads
        if shape.which == "key":
            packed = {"payload": entry.key_bits * shape.n_elements}
            return TensorLayout(shape, packed=packed | ({"scales": value} if entry.key_bits < BITS_PER_BYTE else {}))
        packed = {"payload": entry.value_bits * shape.n_elements, "scales": value, "zero_points": value}
        if padding := entry.padding_bytes(shape.head_dim):
            packed["padding"] = BITS_PER_BYTE * padding * shape.n_heads
        return TensorLayout(shape, packed=packed)

    def kernel(values: Values, place: Place) -> Method:
        from kernels_ref.turboquant import TurboQuant

        known: Any = preset
        return TurboQuant(known, place.side)

    keys = "E4M3 keys" if entry.key_bits == BITS_PER_BYTE else f"keys as norm and {entry.key_bits}-bit indices, rotated"
    return Family(
        name=name,
        title=f"TurboQuant {preset}",
        source=f"vLLM 0.33.0 --kv-cache-dtype {name}: {keys}; {entry.value_bits}-bit values with scale and minimum "
        "(triton_turboquant_store.py)",
        layout=layout,
        kernel=PerSide(kernel),
        engines=(EngineName("vLLM", name, name, VLLM), *_NEAR.get(preset, ())),
        aliases={f"turboquant:{preset}": name},
        by_default=False,
        skip=SKIPPED,
        listed=180,
    )


FAMILIES = tuple(_family(entry) for entry in TURBOQUANT_TYPES.values())
