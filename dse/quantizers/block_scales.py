"""Formats of blocks of channels with a scale of a byte each: the layout that NVFP4 and the MX formats share."""

from dse.core.errors import InputError
from dse.core.field import Field
from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values
from dse.quantizers.kernel import KernelRunner
from kernels_ref import ScaledType


def family(
    entry: ScaledType, kernel: KernelRunner, params: tuple[Field, ...], engines: tuple[EngineName, ...], listed: int
) -> Family:
    """A format. Its layout raises InputError for a head dimension that its blocks do not divide."""

    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        if shape.head_dim % entry.block:
            raise InputError(
                f"quantizer = {entry.name}: head_dim = {shape.head_dim}: must be a multiple of {entry.block}, the "
                "channels that share a scale"
            )
        return TensorLayout(
            shape,
            packed={
                "payload": entry.code_bits * shape.n_elements,
                "scales": entry.scale_bits * shape.n_elements // entry.block,
            },
            once={"scales": entry.global_bits} if entry.global_bits else {},
        )

    factor = ", an FP32 factor for keys and one for values" if entry.global_bits else ""
    return Family(
        name=entry.name,
        title=entry.name.upper(),
        source=f"{entry.source}: blocks of {entry.block} channels, {entry.codes} codes, {entry.scales} scale{factor}",
        layout=layout,
        params=params,
        kernel=kernel,
        engines=engines,
        by_default=False,  # not for every head dimension
        listed=listed,
    )
