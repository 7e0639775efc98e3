"""KVQuant: keys per channel before RoPE and values per token, outliers apart in FP16."""

from fractions import Fraction

from dse.core.errors import InputError
from dse.quantizers.base import Family, TensorLayout, TensorShape, Values, codes, param
from dse.quantizers.kernel import Method, PerSide, Place
from kernels_ref import storage


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    d = shape.n_elements
    outliers = storage.kvquant_outlier * values["outliers"] * d
    packed = {**codes(d, values["bits"]), "outliers": outliers, "counts": storage.kvquant_count}
    if shape.which == "value":  # keys: per channel, fixed with the weights; values: per token, stored with it
        packed |= {"scales": storage.group_value, "zero_points": storage.group_value}
    return TensorLayout(shape, packed=packed)


def _kernel(values: Values, place: Place) -> Method:
    """Thresholds per channel are offline constants; here those of the tensor itself."""
    import numpy as np

    from kernels_ref.kvquant import KVQuantKeys, KVQuantValues

    if values["bits"] != 4:
        raise InputError(f"kvquant: bits = {values['bits']}: the kernel packs 4-bit codes: give bits=4")
    kept = 1 - float(values["outliers"])
    if place.side == "value":
        return KVQuantValues(kept)
    x = place.x
    channels = x if x.ndim == 2 else x.transpose(0, 2, 1, 3).reshape(-1, x.shape[1] * x.shape[3])
    if not channels.size:
        raise ValueError("key: holds no elements, from which the thresholds of channels are taken")
    ends = np.quantile(channels.astype(np.float32), [(1 - kept) / 2, (1 + kept) / 2], axis=0).astype(np.float16)
    return KVQuantKeys(*(tuple(row.tolist()) for row in ends))


FAMILIES = (
    Family(
        name="kvquant",
        title="KVQuant",
        source="KVQuant (arXiv:2401.18079): per-channel keys, per-token values with offline scales; 1 % outliers in "
        "FP16",
        layout=_layout,
        params=(
            param("bits", default=4, help="bits of a code", choices=(2, 3, 4)),
            param("outliers", default=Fraction("0.01"), help="share of elements kept apart", low=0, high=1),
        ),
        kernel=PerSide(_kernel),
        before_rope=True,
        realised=(("outliers", "n_outliers", "n_elements"),),
        listed=140,
    ),
)
