"""Rules that vLLM's cache slots share: one slot holds a key and its value."""

from dse.core.errors import InputError
from dse.quantizers.base import TensorShape


def check_sides(name: str, shape: TensorShape) -> None:
    """Raise InputError unless keys and values have one head dimension, where that of the other side is known."""
    if shape.other_dim == 0:
        raise InputError(
            f"quantizer = {name}: is for keys and values, not for latent (MLA) heads: take fp8, fp8_ds_mla or "
            "nvfp4_ds_mla"
        )
    if shape.other_dim not in (None, shape.head_dim):
        dims = sorted((shape.head_dim, shape.other_dim or 0), reverse=True)
        raise InputError(
            f"quantizer = {name}: head_dim = {dims[0]} and {dims[1]}: keys and values must have the same in a slot"
        )
