"""Methods that treat outliers apart: Oaken's fused dense-and-sparse groups, KVQuant's sparse outliers."""

import re
from fractions import Fraction

from dse.core.units import BITS_PER_BYTE
from dse.quantizers.base import Family, Param, TensorLayout, TensorShape, Values, ceil_div, codes
from kernels_ref import storage


def group_shares(values: Values) -> list[Fraction]:
    """Shares of the groups, outermost first: from `groups` where given, else outer / the rest / inner."""
    if values["groups"]:
        return [Fraction(part) / 100 for part in values["groups"].split("/")]
    return [values["outer"], 1 - values["outer"] - values["inner"], values["inner"]]


def _dense_index(values: Values) -> int:
    """Index of the dense group: `dense` counts from 1; 0 means the largest (the first of equals)."""
    if not values["groups"]:
        return 1  # outer, middle, inner: the middle group is dense whatever its share
    shares = group_shares(values)
    return values["dense"] - 1 if values["dense"] else shares.index(max(shares))


def coo_entry_bits(n_groups: int, outlier_bits: int) -> int:
    """Bits of one sparse entry beside its dense nibble: index, group and sign, padded to a byte (Oaken Table 3)."""
    group_bits = (n_groups - 2).bit_length()  # one of n - 1 sparse groups: 2 groups 0 bits, 3 groups 1, 4 or 5 groups 2
    sign_bits = outlier_bits - storage.oaken_dense
    return BITS_PER_BYTE * ceil_div(storage.coo_index + group_bits + sign_bits, BITS_PER_BYTE)


def _oaken(values: Values, shape: TensorShape) -> TensorLayout:
    shares = group_shares(values)
    outlier_share = values.get("outlier_share", 1 - shares[_dense_index(values)])
    d = shape.n_elements
    per_group = storage.group_value * len(shares)
    return TensorLayout(
        shape,
        {
            **codes(d, storage.oaken_dense),
            "scales": per_group,  # the maximum of each group
            "zero_points": per_group,  # and its minimum
            "outliers": coo_entry_bits(len(shares), values["outlier_bits"]) * outlier_share * d,
            "counts": storage.chunk_count * ceil_div(d, storage.coo_chunk),
        },
    )


def _oaken_problem(values: Values) -> str:
    if not values["groups"]:
        if values["outer"] + values["inner"] > 1:
            return f"outer + inner = {float(values['outer'] + values['inner']):g}: must be at most 1"
        return "dense: needs groups, whose positions it counts" if values["dense"] else ""
    parts = values["groups"].split("/")
    shares = [Fraction(part) for part in parts if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?", part, re.ASCII)]
    if not 2 <= len(parts) <= 5 or len(shares) != len(parts):
        return f"groups = {values['groups']}: must be 2 to 5 percentages such as 4/90/6, outermost first"
    if sum(shares) != 100:
        return f"groups = {values['groups']}: must sum to 100, not {float(sum(shares)):g}"
    if values["dense"] > len(parts):
        return f"dense = {values['dense']}: must be 1 to {len(parts)}, the position of the dense group"
    return ""


def _kvquant(values: Values, shape: TensorShape) -> TensorLayout:
    d = shape.n_elements
    outliers = storage.kvquant_outlier * values["outliers"] * d
    packed = {**codes(d, values["bits"]), "outliers": outliers, "counts": storage.kvquant_count}
    if shape.which == "value":  # keys: per channel, fixed with the weights; values: per token, stored with it
        packed |= {"scales": storage.group_value, "zero_points": storage.group_value}
    return TensorLayout(shape, packed)


FAMILIES = (
    Family(
        "oaken",
        "Oaken",
        "Oaken sections 4.3 to 4.5, Table 3: 4-bit dense codes, outliers fused with 8- or 16-bit sparse entries",
        _oaken,
        (
            Param("outer", Fraction("0.04"), "share of the outer group", low=0, high=1, unless="groups"),
            Param("inner", Fraction("0.06"), "share of the inner group", low=0, high=1, unless="groups"),
            Param("groups", "", "shares in percent, outermost first, such as 2/2/90/6; replaces outer and inner"),
            Param("dense", 0, "position of the dense group in `groups`, from 1; 0: the largest", low=0, high=5),
            Param("outlier_bits", 5, "bits of an outlier", choices=(4, 5)),
        ),
        _oaken_problem,
        realised=(("outlier_share", "n_outliers", "n_elements"),),
    ),
    Family(
        "kvquant",
        "KVQuant",
        "KVQuant (arXiv:2401.18079): per-channel keys, per-token values with offline scales; 1 % outliers in FP16",
        _kvquant,
        (
            Param("bits", 4, "bits of a code", choices=(2, 3, 4)),
            Param("outliers", Fraction("0.01"), "share of elements kept apart", low=0, high=1),
        ),
        realised=(("outliers", "n_outliers", "n_elements"),),
    ),
)
