"""ZipCache: tokens that draw attention in 4 bits, the others in 2."""

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from dse.core.errors import InputError
from dse.core.units import FP16_BITS
from dse.quantizers.base import Family, TensorLayout, TensorShape, Values, param
from dse.quantizers.kernel import KernelRunner, QuantizedTensor, Settings, Side

if TYPE_CHECKING:
    import numpy as np

    from kernels_ref.zipcache import ZipCacheCache

HIGH_BITS, LOW_BITS = 4, 2


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    """A block's bits over its tokens: codes, a bit that says which, scales, minima, levels of value channels."""
    block, d = values["block"], shape.n_elements
    n_high = round(float(values["salient"]) * block)
    packed = {"payload": Fraction(d * (n_high * HIGH_BITS + (block - n_high) * LOW_BITS), block)}
    if shape.which == "key":
        shared = Fraction(FP16_BITS * d * ((n_high > 0) + (n_high < block)), block)
        packed |= {"scales": shared, "zero_points": shared}
    else:
        packed |= {"scales": FP16_BITS + Fraction(FP16_BITS * d, block), "zero_points": Fraction(FP16_BITS)}
    if shape.which == "key" or shape.alone:  # once for a key and its value
        packed["counts"] = Fraction(1)
    return TensorLayout(shape, packed=packed, step=block)


class _ZipCacheKernel(KernelRunner):
    needs_attention = True

    def run(
        self, values: Values, layer: int, tensors: Mapping[Side, "np.ndarray"], settings: Settings
    ) -> dict[Side, QuantizedTensor]:
        raise InputError(f"zipcache: layer {layer}: chooses tokens by attention, which tensors alone do not give")

    def cache(
        self, values: Values, layer: int, known: Mapping[Side, "np.ndarray"], settings: Settings
    ) -> "ZipCacheCache":
        from kernels_ref.zipcache import ZipCache

        return ZipCache(float(values["salient"]), values["block"]).cache()


FAMILIES = (
    Family(
        name="zipcache",
        title="ZipCache",
        source="ZipCache (arXiv:2405.14256): salient tokens in 4 bits, others in 2; keys by channel, values by token "
        "after levelling their channels",
        layout=_layout,
        params=(
            param("salient", default=Fraction("0.6"), help="share of a block's tokens in 4 bits", low=0, high=1),
            param("block", default=100, help="tokens packed at a time, FP16 before", low=1, high=65536),
        ),
        kernel=_ZipCacheKernel(),
        by_default=False,
        listed=205,
    ),
)
