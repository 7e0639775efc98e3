"""QServe's KV4: a scale and a zero point for each token and head."""

from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values, codes, param
from dse.quantizers.engine_names import LMDEPLOY
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import storage

CODE_BITS = 4


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    scale = storage.group_value * (shape.n_heads if values["mode"] == "head" else 1)
    return TensorLayout(shape, packed={**codes(shape.n_elements, CODE_BITS), "scales": scale, "zero_points": scale})


def _kernel(values: Values, place: Place) -> Method:
    from kernels_ref.qserve import QServe

    return QServe(values["mode"])


FAMILIES = (
    Family(
        name="qserve",
        title="QServe",
        source="QServe (arXiv:2405.04532), KV4: scale and zero per head and token; artifact: per token, as Oaken ran "
        "it",
        layout=_layout,
        params=(param("mode", default="head", help="what shares a scale", choices=("head", "artifact")),),
        kernel=PerSide(_kernel),
        engines=(EngineName("LMDeploy", "quant_policy_4", "qserve", LMDEPLOY),),
        listed=90,
    ),
)
