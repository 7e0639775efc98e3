"""vLLM's slots for one latent (MLA) head: the latent in blocks with scales, RoPE channels beside it."""

from typing import Literal

from dse.core.errors import InputError
from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values
from dse.quantizers.engine_names import VLLM
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import storage


def _family(fmt: Literal["fp8", "nvfp4"], block: int, code_bits: int, scale_bits: int, rope_bits: int) -> Family:
    """`block` latent channels share a scale."""
    name, width = f"{fmt}_ds_mla", storage.mla_latent + storage.mla_rope

    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        if shape.other_dim or shape.which != "key" or shape.n_heads != 1 or shape.head_dim != width:
            dims = f"{shape.n_heads} KV heads of {shape.head_dim}"
            raise InputError(
                f"quantizer = {name}: the model has {dims}: is for one latent (MLA) head of {storage.mla_latent} + "
                f"{storage.mla_rope} channels"
            )
        payload = code_bits * storage.mla_latent + rope_bits * storage.mla_rope
        return TensorLayout(shape, packed={"payload": payload, "scales": scale_bits * storage.mla_latent // block})

    def kernel(values: Values, place: Place) -> Method:
        from kernels_ref.latent import Latent

        if place.side == "value":
            raise ValueError(f"{name} is for latent (MLA) heads, which have no values")
        return Latent(fmt)

    rope = "RoPE in 16 bits" if fmt == "fp8" else "RoPE in E4M3"
    latent = "E4M3 in blocks of 128, FP32 scale" if fmt == "fp8" else "E2M1 in blocks of 16, E4M3 scale"
    return Family(
        name=name,
        title=f"{fmt.upper()} latent slot",
        source=f"vLLM 0.33.0 --kv-cache-dtype {name}: latent in {latent}; {rope} (csrc)",
        layout=layout,
        kernel=PerSide(kernel),
        engines=(EngineName("vLLM", name, name, VLLM),),
        by_default=False,
        latent=True,
        listed=190,
    )


FAMILIES = (
    _family("fp8", block=128, code_bits=8, scale_bits=32, rope_bits=16),
    _family("nvfp4", block=16, code_bits=4, scale_bits=8, rope_bits=8),
)
