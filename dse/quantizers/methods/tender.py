"""Tender as Oaken's artifact runs it: keys per head and token, values per channel."""

from dse.quantizers.base import Family, TensorLayout, TensorShape, Values, codes
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import storage

CODE_BITS = 4


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    per_channel = storage.group_value * shape.n_elements
    payload = codes(shape.n_elements, CODE_BITS)
    if shape.which == "key":  # a scale per head and token, a center per channel
        scales = storage.group_value * shape.n_heads
        return TensorLayout(shape, packed={**payload, "scales": scales}, once={"zero_points": per_channel})
    return TensorLayout(shape, packed=payload, once={"scales": per_channel})


def _kernel(values: Values, place: Place) -> Method:
    from kernels_ref.tender import Tender

    return Tender(place.side)


FAMILIES = (
    Family(
        name="tender",
        title="Tender",
        source="Tender (arXiv:2406.12930) as in Oaken's artifact: keys per head and token, values per channel",
        layout=_layout,
        kernel=PerSide(_kernel, streams=False),  # the artifact has all tokens at once, no published form grows
        listed=110,
    ),
)
