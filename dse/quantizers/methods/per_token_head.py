"""vLLM's formats with an FP32 scale for each token and head."""

from typing import Literal

from dse.core.errors import InputError
from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values
from dse.quantizers.engine_names import LMDEPLOY, VLLM
from dse.quantizers.kernel import Method, PerSide, Place
from dse.quantizers.slots import check_sides
from kernels_ref import FORMATS

#: as many bits, another code
_NEAR = (
    EngineName(
        "LMDeploy",
        "quant_policy_8",
        "int8_per_token_head",
        LMDEPLOY,
        "has a zero point and a scale of 16 bits each for a token and head",
    ),
)


def _family(fmt: Literal["int8", "fp8", "int4"], bits: int, multiple: int) -> Family:
    """`multiple` divides head_dim: scales stand on addresses of 4 bytes."""
    name = f"{fmt}_per_token_head"

    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        check_sides(name, shape)
        if shape.head_dim % multiple:
            raise InputError(
                f"quantizer = {name}: head_dim = {shape.head_dim}: must be a multiple of {multiple}: its scales stand "
                "on addresses of 4 bytes"
            )
        scales = FORMATS["fp32"].bits * shape.n_heads
        return TensorLayout(shape, packed={"payload": bits * shape.n_elements, "scales": scales})

    def kernel(values: Values, place: Place) -> Method:
        from kernels_ref.per_head import PerTokenHead

        return PerTokenHead(fmt)

    how = "rotated, zero point in the low bits of the FP32 scale" if fmt == "int4" else "FP32 scale"
    return Family(
        name=name,
        title=f"{fmt.upper()} per token and head",
        source=f"vLLM 0.33.0 --kv-cache-dtype {name}: one per token and head, {how} "
        "(triton_reshape_and_cache_flash.py)",
        layout=layout,
        kernel=PerSide(kernel),
        engines=(EngineName("vLLM", name, name, VLLM), *(_NEAR if fmt == "int8" else ())),
        by_default=False,
        listed=170,
    )


FAMILIES = (_family("int8", 8, 4), _family("fp8", 8, 4), _family("int4", 4, 8))
