"""Atom's KV4: a scale and a zero point for each group of a head's channels."""

from dse.quantizers.base import Family, TensorLayout, TensorShape, Values, ceil_div, codes, param
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import storage

CODE_BITS = 4


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    scale = storage.group_value * shape.n_heads * ceil_div(shape.head_dim, values["group"])
    return TensorLayout(shape, packed={**codes(shape.n_elements, CODE_BITS), "scales": scale, "zero_points": scale})


def _kernel(values: Values, place: Place) -> Method:
    from kernels_ref.atom import Atom

    return Atom(values["group"])


FAMILIES = (
    Family(
        name="atom",
        title="Atom",
        source="Atom (arXiv:2310.19102), KV4: scale and zero per group inside a head",
        layout=_layout,
        params=(param("group", default=128, help="elements sharing a scale", low=1, high=65536),),
        kernel=PerSide(_kernel),
        listed=100,
    ),
)
