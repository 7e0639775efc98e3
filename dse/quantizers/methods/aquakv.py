"""AQUA-KV: keys and values predicted from the layer before, the rest quantized."""

from dse.quantizers.base import Beside, Family, TensorLayout, TensorShape, Values
from dse.quantizers.groups import (
    INDEX,
    MAC,
    NO_KERNEL,
    RESIDUAL,
    SCALE_BITS,
    dim,
    dim_problem,
    group,
    index_layout,
    zero,
)


def _predictor_parameters(shape: TensorShape) -> int:
    """Weights that predict keys from the keys of the layer before, values from its values and from this layer's keys
    (AQUA-KV, section 3)."""
    return shape.n_elements**2 * (1 if shape.which == "key" else 2)


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    return index_layout(values, shape, read_flops=MAC * _predictor_parameters(shape))


def _beside(values: Values, shape: TensorShape) -> list[Beside]:
    return [
        Beside(
            "predictor_parameters",
            _predictor_parameters(shape),
            "parameter",
            "keys from the keys before, values from the values before and the keys; of a layer, beside the weights",
        )
    ]


FAMILIES = (
    Family(
        name="aquakv",
        title="AQUA-KV",
        source="AQUA-KV (arXiv:2501.19392): what the layer before does not predict, by HIGGS; the first layer, which "
        f"nothing predicts, has more bits (a plan says which); {NO_KERNEL}",
        layout=_layout,
        params=(INDEX, dim(2), group(1024), SCALE_BITS, zero("none"), RESIDUAL),
        problem=dim_problem,
        by_default=False,
        beside=_beside,
        listed=220,
    ),
)
