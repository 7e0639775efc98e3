"""XQuant: the layers' inputs in place of keys and values, which a step recomputes."""

from fractions import Fraction

from dse.quantizers.base import Beside, Family, TensorLayout, TensorShape, Values, param
from dse.quantizers.groups import CODE_BITS, MAC, NO_KERNEL, SCALE_BITS, by_channel, by_token, group, hidden, zero


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    """XQuant, section 3: X instead of K and V (half of it counts for each); with fewer KV heads its projections X U_k
    and X U_v, as large as K and V, keys by channel and values by token."""
    if values["store"] == "x":
        stored = by_token(values, hidden(shape), values["bits"])
        sides = 1 if shape.alone else 2
        shared = {part: Fraction(bits, sides) for part, bits in stored.items()}
        return TensorLayout(shape, packed=shared, read_flops=MAC * hidden(shape) * shape.n_elements)
    flops = MAC * shape.n_elements**2
    if shape.which == "key":  # a group of tokens is quantized at a time
        packed = by_channel(values, shape.n_elements, values["bits"])
        return TensorLayout(shape, packed=packed, step=values["group"], read_flops=flops)
    return TensorLayout(shape, packed=by_token(values, shape.n_elements, values["bits"]), read_flops=flops)


def _beside(values: Values, shape: TensorShape) -> list[Beside]:
    latent = shape.n_elements * hidden(shape) if values["store"] == "latent" else 0
    name, source = "projection_parameters", "U_k and U_v of the SVD of the weights; of a layer, beside the weights"
    return [Beside(name, latent, "parameter", source)] if latent else []


FAMILIES = (
    Family(
        name="xquant",
        title="XQuant",
        source="XQuant (arXiv:2508.10395): the layers' inputs in place of keys and values, which a step recomputes; "
        f"latent: projections of the inputs, for fewer KV heads; {NO_KERNEL}",
        layout=_layout,
        params=(
            param("bits", default=4, help="bits of a code", choices=CODE_BITS),
            group(128),
            SCALE_BITS,
            zero("code"),
            param("store", default="x", help="inputs, or their projections", choices=("x", "latent")),
        ),
        by_default=False,
        beside=_beside,
        listed=230,
    ),
)
