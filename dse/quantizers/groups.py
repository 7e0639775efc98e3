"""Codes in groups that share a scale and a zero point: ledgers and parameters of the methods in closed form alone.

These have no kernel: what they store and recompute is known, their error is not.
"""

from fractions import Fraction

from dse.core.field import Field
from dse.quantizers.base import TensorLayout, TensorShape, Values, ceil_div, codes, param

#: multiplication and addition
MAC = 2
#: note in the source of a method
NO_KERNEL = "closed form: no kernel, error not known"

INDEX = param("index", default=4, help="bits of an index: 4 are 16 grid points", low=1, high=16)
SCALE_BITS = param("scale_bits", default=16, help="bits of a group's scale", choices=(8, 16, 32))
RESIDUAL = param("residual", default=0, help="most recent tokens kept in FP16", low=0, high=65536)
CODE_BITS = (1, 2, 3, 4, 8)


def dim(default: int) -> Field:
    """The parameter `dim`."""
    return param("dim", default=default, help="elements that an index stands for (p)", choices=(1, 2, 4, 8))


def group(default: int) -> Field:
    """The parameter `group`."""
    return param("group", default=default, help="elements sharing a scale", low=1, high=65536)


def zero(default: str) -> Field:
    """The parameter `zero`."""
    return param(
        "zero",
        default=default,
        help="a group's zero point: as its scale, as a code, none",
        choices=("full", "code", "none"),
    )


def _zero_bits(values: Values, code_bits: int) -> int:
    """Bits of a group's zero point."""
    return {"full": values["scale_bits"], "code": code_bits, "none": 0}[values["zero"]]


def by_token(values: Values, n_elements: int, code_bits: int, dim: int = 1) -> dict[str, Fraction | int]:
    """Ledger of a token's `n_elements` in groups of consecutive channels, the last of which may be short: a code for
    every `dim` elements, a scale and a zero point for every group."""
    n_groups = ceil_div(n_elements, values["group"])
    return {
        **codes(ceil_div(n_elements, dim), code_bits),
        "scales": n_groups * values["scale_bits"],
        "zero_points": n_groups * _zero_bits(values, code_bits),
    }


def by_channel(values: Values, n_elements: int, code_bits: int) -> dict[str, Fraction | int]:
    """Ledger of a token in groups of tokens in every channel: its share, exact over a group."""
    return {
        "payload": code_bits * n_elements,
        "scales": Fraction(values["scale_bits"] * n_elements, values["group"]),
        "zero_points": Fraction(_zero_bits(values, code_bits) * n_elements, values["group"]),
    }


def index_layout(values: Values, shape: TensorShape, read_flops: int = 0) -> TensorLayout:
    """Indices of a grid of dimension `dim` in groups of a token's channels."""
    packed = by_token(values, shape.n_elements, values["index"], values["dim"])
    return TensorLayout(shape, packed=packed, residual=values["residual"], read_flops=read_flops)


def dim_problem(values: Values) -> str:
    """A message where an index would stand for elements of two groups, else ""."""
    if values["group"] % values["dim"]:
        return f"group = {values['group']}: must be a multiple of dim = {values['dim']}"
    return ""


def hidden(shape: TensorShape) -> int:
    """Elements of a layer's input; where it is not known, those of a model with as many KV heads as query heads."""
    return shape.hidden_size or shape.n_elements
