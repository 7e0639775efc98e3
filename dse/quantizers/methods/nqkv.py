"""NQKV: NF4 codes in blocks of a token that share a largest magnitude."""

from dse.quantizers.base import Family, TensorLayout, TensorShape, Values, ceil_div, codes, param
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import FORMATS


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    n_blocks = ceil_div(shape.n_elements, values["block"])
    scales = FORMATS[values["absmax"]].bits * n_blocks
    return TensorLayout(shape, packed={**codes(shape.n_elements, FORMATS["nf4"].bits), "scales": scales})


def _kernel(values: Values, place: Place) -> Method:
    from kernels_ref.nf4 import NF4

    return NF4(values["block"], values["absmax"])


FAMILIES = (
    Family(
        name="nqkv",
        title="NQKV",
        source="NQKV sections 3.2 and 4.1: NF4 in blocks inside a token",
        layout=_layout,
        params=(
            param("block", default=256, help="elements sharing an absmax", low=1, high=2**20),
            param("absmax", default="fp16", help="format of the absmax", choices=("fp16", "fp32")),
        ),
        kernel=PerSide(_kernel),
        listed=80,
    ),
)
