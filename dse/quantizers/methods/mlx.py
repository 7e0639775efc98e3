"""MLX's quantized cache: groups of a head's channels with a scale and a bias."""

from dse.core.errors import InputError
from dse.quantizers.base import Family, TensorLayout, TensorShape, Values, param
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import storage


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    group = values["group"]
    if shape.head_dim % group:
        raise InputError(f"quantizer = mlx: head_dim = {shape.head_dim}: must be a multiple of group = {group}")
    value = storage.group_value * shape.n_elements // group
    return TensorLayout(
        shape, packed={"payload": values["bits"] * shape.n_elements, "scales": value, "zero_points": value}
    )


def _kernel(values: Values, place: Place) -> Method:
    from kernels_ref.mlx import MLX

    return MLX(values["bits"], values["group"])


FAMILIES = (
    Family(
        name="mlx",
        title="MLX",
        source="mlx-lm 0.32.2 --kv-bits, --kv-group-size: scale and bias in 16 bits for a group of channels of a head "
        "(mlx 0.32.4, affine quantize); its first 5,000 tokens wait in 16 bits (--quantized-kv-start)",
        layout=_layout,
        params=(
            param("bits", default=8, help="bits of a code", choices=(2, 4, 8)),
            param("group", default=64, help="channels that share a scale and a bias", choices=(32, 64, 128)),
        ),
        kernel=PerSide(_kernel),
        by_default=False,  # not for every head dimension
        listed=125,
    ),
)
