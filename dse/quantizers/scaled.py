"""Formats with a scale of a byte for every block of channels: NVFP4 and the MX formats, as engines name them."""

from dse.core.errors import InputError
from dse.quantizers.base import Family, Param, TensorLayout, TensorShape, Values
from kernels_ref import SCALED_TYPES, ScaledType

_SCALE = Param(
    "scale",
    "amax",
    "FP32 factor of a layer's keys, and values: largest magnitude / 2688 (ModelOpt), or 1 (no factor)",
    choices=("amax", "one"),
)
_RULES = ("floor", "ceil", "rceil", "even")
_PARAMS = {
    "nvfp4": (_SCALE,),
    "nvfp4_4over6": (_SCALE,),
    "mxfp4": (Param("rule", "floor", "scale from the largest magnitude (floor: OCP, rceil: cuBLAS)", choices=_RULES),),
    "mxfp8": (Param("rule", "sglang", "scale from the largest magnitude", choices=("sglang", *_RULES, "vllm")),),
    "fp4_mx_block16": (),
}


def _family(entry: ScaledType) -> Family:
    """A format. Its layout raises InputError for a head dimension that its blocks do not divide."""

    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        if shape.head_dim % entry.block:
            raise InputError(
                f"quantizer = {entry.name}: head_dim = {shape.head_dim}: must be a multiple of {entry.block}, the "
                "channels that share a scale"
            )
        return TensorLayout(
            shape,
            {
                "payload": entry.code_bits * shape.n_elements,
                "scales": entry.scale_bits * shape.n_elements // entry.block,
            },
            once={"scales": entry.global_bits} if entry.global_bits else {},
        )

    factor = ", an FP32 factor for keys and one for values" if entry.global_bits else ""
    return Family(
        entry.name,
        entry.name.upper(),
        f"{entry.source}: blocks of {entry.block} channels, {entry.codes} codes, {entry.scales} scale{factor}",
        layout,
        _PARAMS[entry.name],
        by_default=False,  # not for every head dimension
    )


FAMILIES = tuple(_family(entry) for entry in SCALED_TYPES.values())
