"""GEAR: codes, a low rank of their error, and outliers apart."""

from fractions import Fraction

from dse.core.units import FP16_BITS
from dse.quantizers.base import Family, TensorLayout, TensorShape, Values, param
from dse.quantizers.groups import CODE_BITS, NO_KERNEL, SCALE_BITS, by_channel, by_token, group, zero


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    """GEAR, section 3: X = D + L + S with D quantized, L = A B^T of rank r for each head, S the outliers."""
    grouped = by_channel if shape.which == "key" else by_token
    packed = grouped(values, shape.n_elements, values["bits"])
    packed["outliers"] = values["outliers"] * shape.n_elements * values["outlier_bits"]
    rows = FP16_BITS * values["rank"] * shape.n_heads  # a token's row of A
    columns = FP16_BITS * values["rank"] * shape.n_elements  # B, for the tokens that share it
    if values["chunk"]:
        packed["low_rank"] = rows + Fraction(columns, values["chunk"])
        return TensorLayout(shape, packed=packed, step=values["buffer"])
    return TensorLayout(shape, packed={**packed, "low_rank": rows}, step=values["buffer"], pool={"low_rank": columns})


def _problem(values: Values) -> str:
    if values["buffer"] % values["group"]:
        return f"buffer = {values['buffer']}: must be a multiple of group = {values['group']}, which keys share a scale"
    if values["chunk"] % values["buffer"]:
        return f"chunk = {values['chunk']}: must be 0 or a multiple of buffer = {values['buffer']}"
    return ""


FAMILIES = (
    Family(
        name="gear",
        title="GEAR",
        source="GEAR (arXiv:2403.05527): codes, a low rank of their error in FP16, outliers apart; keys by channel, "
        f"values by token; {NO_KERNEL}",
        layout=_layout,
        params=(
            param("bits", default=2, help="bits of a code", choices=CODE_BITS),
            group(64),
            SCALE_BITS,
            zero("full"),
            param("rank", default=4, help="rank of the approximated error, for each head", low=0, high=1024),
            param("outliers", default=Fraction("0.02"), help="share of elements kept apart", low=0, high=1),
            param(
                "outlier_bits",
                default=32,
                help="bits of an outlier: 16 of value, the rest of position",
                choices=(32, 48),
            ),
            param("buffer", default=64, help="tokens that are compressed at a time, FP16 before", low=1, high=65536),
            param(
                "chunk",
                default=0,
                help="tokens that share the low rank's channels; 0: a whole sequence",
                low=0,
                high=2**20,
            ),
        ),
        problem=_problem,
        by_default=False,
        listed=210,
    ),
)
