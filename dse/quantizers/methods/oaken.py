"""Oaken: dense 4-bit codes in groups by thresholds profiled offline, outliers fused with sparse entries."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from dse.core.errors import InputError
from dse.core.units import BITS_PER_BYTE
from dse.quantizers.base import Family, TensorLayout, TensorShape, Values, ceil_div, codes, param
from dse.quantizers.kernel import SIDES, Method, PerSide, Place, Settings, Side
from kernels_ref import storage

if TYPE_CHECKING:
    import numpy as np

    from kernels_ref.oaken import Profiler


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


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    shares = group_shares(values)
    outlier_share = values.get("outlier_share", 1 - shares[_dense_index(values)])
    d = shape.n_elements
    per_group = storage.group_value * len(shares)
    return TensorLayout(
        shape,
        packed={
            **codes(d, storage.oaken_dense),
            "scales": per_group,  # the maximum of each group
            "zero_points": per_group,  # and its minimum
            "outliers": coo_entry_bits(len(shares), values["outlier_bits"]) * outlier_share * d,
            "counts": storage.chunk_count * ceil_div(d, storage.coo_chunk),
        },
    )


def _problem(values: Values) -> str:
    if values["outlier_code"] == "signed" and values["outlier_bits"] != storage.oaken_dense:
        return "outlier_code = signed: must be with outlier_bits = 4: 5 bits are a sign and a magnitude of 4"
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


def profiler(values: Values, model: str = "") -> "Profiler":
    """An empty profiler of thresholds for these groups."""
    from kernels_ref.oaken import Profiler

    return Profiler([float(share) for share in group_shares(values)], model=model)


def _method(values: Values, place: Place) -> Method:
    from kernels_ref.oaken import Oaken

    thresholds = place.settings.thresholds
    assert thresholds is not None, "`check` comes first"
    options = {name: values[name] for name in ("dense", "outlier_bits", "outlier_code")}
    return Oaken.of(thresholds, place.layer, place.side, **options)


class _OakenKernel(PerSide):
    needs_thresholds = True

    def check(self, name: str, values: Values, settings: Settings) -> None:
        if settings.thresholds is None:
            raise InputError(
                f"{name}: needs thresholds profiled offline: give --thresholds (`dse thresholds FILES --out T.toml`)"
            )
        wanted = [round(float(share), 9) for share in group_shares(values)]
        if [round(frac, 9) for frac in settings.thresholds.fracs] != wanted:
            have, want = (
                "/".join(f"{100 * share:.6g}" for share in shares) for shares in (settings.thresholds.fracs, wanted)
            )
            raise InputError(
                f"{name}: thresholds are for groups of {have} %, must be for {want}: "
                f"run `dse thresholds FILES --shares {want}`"
            )

    def calibrated(self, values: Values, layers: Sequence[Mapping[Side, "np.ndarray"]], model: str) -> Settings:
        """Thresholds of a calibration text: each of its sequences is a run of the profiler."""
        runs = profiler(values, model)
        for index, tensors in enumerate(layers):
            for side in SIDES:
                for sequence in tensors[side]:
                    runs.add(index, side, sequence[None].copy())
        return Settings(thresholds=runs.thresholds())


FAMILIES = (
    Family(
        name="oaken",
        title="Oaken",
        source="Oaken sections 4.3 to 4.5, Table 3: 4-bit dense codes, outliers fused with 8- or 16-bit sparse entries",
        layout=_layout,
        params=(
            param("outer", default=Fraction("0.04"), help="share of the outer group", low=0, high=1, unless="groups"),
            param("inner", default=Fraction("0.06"), help="share of the inner group", low=0, high=1, unless="groups"),
            param(
                "groups",
                default="",
                help="shares in percent, outermost first, such as 2/2/90/6; replaces outer and inner",
            ),
            param(
                "dense",
                default=0,
                help="position of the dense group in `groups`, from 1; 0: the largest",
                low=0,
                high=5,
            ),
            param("outlier_bits", default=5, help="bits of an outlier", choices=(4, 5)),
            param(
                "outlier_code",
                default="magnitude",
                help="4-bit outliers: a sign and 3 bits (magnitude), or one code for both sides (signed)",
                choices=("magnitude", "signed"),
            ),
        ),
        problem=_problem,
        kernel=_OakenKernel(_method),
        realised=(("outlier_share", "n_outliers", "n_elements"),),
        listed=130,
    ),
)
