"""Rotation with a codebook: QuaRot, SpinQuant, RotateKV, HIGGS."""

from dse.quantizers.base import Family
from dse.quantizers.groups import INDEX, NO_KERNEL, RESIDUAL, SCALE_BITS, dim, dim_problem, group, index_layout, zero

FAMILIES = (
    Family(
        name="rotated",
        title="Rotated",
        source="QuaRot (arXiv:2404.00456), SpinQuant (2405.16406): 4 bits, groups of 128; RotateKV (2501.16383): "
        f"index=2; HIGGS (2411.17525): dim=2,index=8,group=1024,zero=none; {NO_KERNEL}",
        # QuaRot 4.2 (asymmetric, groups of 128), HIGGS section 4 (indices of a grid of dimension p, no zero point)
        layout=index_layout,
        params=(INDEX, dim(1), group(128), SCALE_BITS, zero("full"), RESIDUAL),
        problem=dim_problem,
        by_default=False,
        listed=200,
    ),
)
