"""Methods in closed form alone, without kernels: what they store and recompute is known, their error is not.

Rotation with a codebook (QuaRot, SpinQuant, RotateKV, HIGGS), low rank beside codes (GEAR), prediction from the layer
before (AQUA-KV), recomputation from the layers' inputs (XQuant).
"""

from fractions import Fraction

from dse.core.units import FP16_BITS
from dse.quantizers.base import Beside, Family, Param, TensorLayout, TensorShape, Values, ceil_div, codes

#: multiplication and addition
_MAC = 2


def _zero_bits(values: Values, code_bits: int) -> int:
    """Bits of a group's zero point."""
    return {"full": values["scale_bits"], "code": code_bits, "none": 0}[values["zero"]]


def _by_token(values: Values, n_elements: int, code_bits: int, dim: int = 1) -> dict[str, Fraction | int]:
    """Ledger of a token's `n_elements` in groups of consecutive channels, the last of which may be short: a code for
    every `dim` elements, a scale and a zero point for every group."""
    n_groups = ceil_div(n_elements, values["group"])
    return {
        **codes(ceil_div(n_elements, dim), code_bits),
        "scales": n_groups * values["scale_bits"],
        "zero_points": n_groups * _zero_bits(values, code_bits),
    }


def _by_channel(values: Values, n_elements: int, code_bits: int) -> dict[str, Fraction | int]:
    """The same of groups of tokens in every channel: a token's share, exact over a group."""
    return {
        "payload": code_bits * n_elements,
        "scales": Fraction(values["scale_bits"] * n_elements, values["group"]),
        "zero_points": Fraction(_zero_bits(values, code_bits) * n_elements, values["group"]),
    }


def _rotated(values: Values, shape: TensorShape) -> TensorLayout:
    """QuaRot 4.2 (asymmetric, groups of 128), HIGGS section 4 (indices of a grid of dimension p, no zero point)."""
    packed = _by_token(values, shape.n_elements, values["index"], values["dim"])
    return TensorLayout(shape, packed, residual=values["residual"])


def _rotated_problem(values: Values) -> str:
    if values["group"] % values["dim"]:
        return f"group = {values['group']}: must be a multiple of dim = {values['dim']}"
    return ""


def _gear(values: Values, shape: TensorShape) -> TensorLayout:
    """GEAR, section 3: X = D + L + S with D quantised, L = A B^T of rank r for each head, S the outliers."""
    grouped = _by_channel if shape.which == "key" else _by_token
    packed = grouped(values, shape.n_elements, values["bits"])
    packed["outliers"] = values["outliers"] * shape.n_elements * values["outlier_bits"]
    rows = FP16_BITS * values["rank"] * shape.n_heads  # a token's row of A
    columns = FP16_BITS * values["rank"] * shape.n_elements  # B, for the tokens that share it
    if values["chunk"]:
        packed["low_rank"] = rows + Fraction(columns, values["chunk"])
        return TensorLayout(shape, packed, step=values["buffer"])
    return TensorLayout(shape, {**packed, "low_rank": rows}, step=values["buffer"], pool={"low_rank": columns})


def _gear_problem(values: Values) -> str:
    if values["buffer"] % values["group"]:
        return f"buffer = {values['buffer']}: must be a multiple of group = {values['group']}, which keys share a scale"
    if values["chunk"] % values["buffer"]:
        return f"chunk = {values['chunk']}: must be 0 or a multiple of buffer = {values['buffer']}"
    return ""


def _predictor_parameters(shape: TensorShape) -> int:
    """Weights that predict keys from the keys of the layer before, values from its values and from this layer's keys
    (AQUA-KV, section 3)."""
    return shape.n_elements**2 * (1 if shape.which == "key" else 2)


def _aquakv(values: Values, shape: TensorShape) -> TensorLayout:
    packed = _by_token(values, shape.n_elements, values["index"], values["dim"])
    return TensorLayout(shape, packed, residual=values["residual"], read_flops=_MAC * _predictor_parameters(shape))


def _aquakv_beside(values: Values, shape: TensorShape) -> list[Beside]:
    return [
        Beside(
            "predictor_parameters",
            _predictor_parameters(shape),
            "parameter",
            "keys from the keys before, values from the values before and the keys; of a layer, beside the weights",
        )
    ]


def _hidden(shape: TensorShape) -> int:
    """Elements of a layer's input; where nothing says it, those of a model with as many KV heads as query heads."""
    return shape.hidden_size or shape.n_elements


def _xquant(values: Values, shape: TensorShape) -> TensorLayout:
    """XQuant, section 3: X instead of K and V (half of it counts for each); with fewer KV heads its projections X U_k
    and X U_v, as large as K and V, keys by channel and values by token."""
    if values["store"] == "x":
        stored = _by_token(values, _hidden(shape), values["bits"])
        sides = 1 if shape.alone else 2
        shared = {part: Fraction(bits, sides) for part, bits in stored.items()}
        return TensorLayout(shape, shared, read_flops=_MAC * _hidden(shape) * shape.n_elements)
    flops = _MAC * shape.n_elements**2
    if shape.which == "key":  # a group of tokens is packed at a time
        packed = _by_channel(values, shape.n_elements, values["bits"])
        return TensorLayout(shape, packed, step=values["group"], read_flops=flops)
    return TensorLayout(shape, _by_token(values, shape.n_elements, values["bits"]), read_flops=flops)


def _xquant_beside(values: Values, shape: TensorShape) -> list[Beside]:
    latent = shape.n_elements * _hidden(shape) if values["store"] == "latent" else 0
    name, source = "projection_parameters", "U_k and U_v of the SVD of the weights; of a layer, beside the weights"
    return [Beside(name, latent, "parameter", source)] if latent else []


_INDEX = Param("index", 4, "bits of an index: 4 are 16 grid points", low=1, high=16)
_DIM = Param("dim", 1, "elements that an index stands for (p)", choices=(1, 2, 4, 8))
_SCALE_BITS = Param("scale_bits", 16, "bits of a group's scale", choices=(8, 16, 32))
_RESIDUAL = Param("residual", 0, "most recent tokens kept in FP16", low=0, high=65536)


def _group(default: int) -> Param:
    return Param("group", default, "elements sharing a scale", low=1, high=65536)


def _zero(default: str) -> Param:
    return Param(
        "zero", default, "a group's zero point: as its scale, as a code, none", choices=("full", "code", "none")
    )


_NO_KERNEL = "closed form: no kernel, error not known"

FAMILIES = (
    Family(
        "rotated",
        "Rotated",
        "QuaRot (arXiv:2404.00456), SpinQuant (2405.16406): 4 bits, groups of 128; RotateKV (2501.16383): index=2; "
        f"HIGGS (2411.17525): dim=2,index=8,group=1024,zero=none; {_NO_KERNEL}",
        _rotated,
        (_INDEX, _DIM, _group(128), _SCALE_BITS, _zero("full"), _RESIDUAL),
        _rotated_problem,
        by_default=False,
    ),
    Family(
        "gear",
        "GEAR",
        "GEAR (arXiv:2403.05527): codes, a low rank of their error in FP16, outliers apart; keys by channel, values by "
        f"token; {_NO_KERNEL}",
        _gear,
        (
            Param("bits", 2, "bits of a code", choices=(1, 2, 3, 4, 8)),
            _group(64),
            _SCALE_BITS,
            _zero("full"),
            Param("rank", 4, "rank of the approximated error, for each head", low=0, high=1024),
            Param("outliers", Fraction("0.02"), "share of elements kept apart", low=0, high=1),
            Param("outlier_bits", 32, "bits of an outlier: 16 of value, the rest of position", choices=(32, 48)),
            Param("buffer", 64, "tokens that are compressed at a time, FP16 before", low=1, high=65536),
            Param("chunk", 0, "tokens that share the low rank's channels; 0: a whole sequence", low=0, high=2**20),
        ),
        _gear_problem,
        by_default=False,
    ),
    Family(
        "aquakv",
        "AQUA-KV",
        "AQUA-KV (arXiv:2501.19392): what the layer before does not predict, by HIGGS; the first layer, which nothing "
        f"predicts, has more bits (a plan says which); {_NO_KERNEL}",
        _aquakv,
        (_INDEX, Param("dim", 2, _DIM.help, choices=_DIM.choices), _group(1024), _SCALE_BITS, _zero("none"), _RESIDUAL),
        _rotated_problem,
        by_default=False,
        beside=_aquakv_beside,
    ),
    Family(
        "xquant",
        "XQuant",
        "XQuant (arXiv:2508.10395): the layers' inputs in place of keys and values, which a step recomputes; latent: "
        f"projections of the inputs, for fewer KV heads; {_NO_KERNEL}",
        _xquant,
        (
            Param("bits", 4, "bits of a code", choices=(1, 2, 3, 4, 8)),
            _group(128),
            _SCALE_BITS,
            _zero("code"),
            Param("store", "x", "inputs, or their projections", choices=("x", "latent")),
        ),
        by_default=False,
        beside=_xquant_beside,
    ),
)
