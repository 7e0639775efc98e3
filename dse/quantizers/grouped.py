"""Methods that store a scale (and a zero point) per group: KIVI, SinkQ, NQKV, QServe, Atom, Tender, ggml's types."""

from fractions import Fraction

from dse.core.errors import InputError
from dse.core.units import FP16_BITS
from dse.quantizers.base import Family, Param, TensorLayout, TensorShape, Values, ceil_div, codes
from kernels_ref import FORMATS, GGML_TYPES, BlockType, storage

#: bits of a code of the 4-bit methods here
_NIBBLE = 4


def _kivi_core(values: Values, shape: TensorShape) -> dict[str, Fraction | int]:
    """Bits a packed token: keys per channel over `group` tokens, values per token over `group` channels (KIVI)."""
    bits, group = values["bits"], values["group"]
    if shape.which == "key":
        # whole groups are packed along the tokens, so a token's share of scale and zero is exact over a group
        share = Fraction(storage.group_value * shape.n_elements, group)
        return {"payload": bits * shape.n_elements, "scales": share, "zero_points": share}
    scale = storage.group_value * shape.n_heads * ceil_div(shape.head_dim, group)
    words = codes(shape.head_dim, bits, unit=storage.word, rows=shape.n_heads)
    return {**words, "scales": scale, "zero_points": scale}


def _kivi(values: Values, shape: TensorShape) -> TensorLayout:
    residual = values["residual"]
    if shape.which == "key":  # packed a whole residual at a time
        return TensorLayout(shape, _kivi_core(values, shape), step=residual)
    return TensorLayout(shape, _kivi_core(values, shape), residual=residual)  # one token a step


def _kivi_problem(values: Values) -> str:
    if values["residual"] % values["group"]:
        return f"residual = {values['residual']}: must be a multiple of group = {values['group']}"
    return _word_problem(values)


def _word_problem(values: Values) -> str:
    codes = storage.word // values["bits"]
    if values["group"] % codes:
        return f"group = {values['group']}: must be a multiple of {codes} ({values['bits']}-bit codes in 32-bit words)"
    return ""


def _sinkq(values: Values, shape: TensorShape) -> TensorLayout:
    sinks = 0 if shape.shallow else values["sinks"] + values["evicted"]
    pool = FP16_BITS * shape.n_elements * sinks
    if shape.which == "key" or shape.alone:  # positions are kept once for a key and its value, per head
        pool += storage.position * shape.n_heads * sinks
    return TensorLayout(
        shape,
        _kivi_core(values, shape),
        pool={"sinks": pool},
        pool_rows=sinks,
        step=values["group"],
        residual=values["residual"],
    )


def _nqkv(values: Values, shape: TensorShape) -> TensorLayout:
    n_blocks = ceil_div(shape.n_elements, values["block"])
    scales = FORMATS[values["absmax"]].bits * n_blocks
    return TensorLayout(shape, {**codes(shape.n_elements, _NIBBLE), "scales": scales})


def _qserve(values: Values, shape: TensorShape) -> TensorLayout:
    n_groups = shape.n_heads if values["mode"] == "head" else 1
    scale = storage.group_value * n_groups
    return TensorLayout(shape, {**codes(shape.n_elements, _NIBBLE), "scales": scale, "zero_points": scale})


def _atom(values: Values, shape: TensorShape) -> TensorLayout:
    scale = storage.group_value * shape.n_heads * ceil_div(shape.head_dim, values["group"])
    return TensorLayout(shape, {**codes(shape.n_elements, _NIBBLE), "scales": scale, "zero_points": scale})


def _tender(values: Values, shape: TensorShape) -> TensorLayout:
    per_channel = storage.group_value * shape.n_elements
    if shape.which == "key":  # a scale per head and token, a centre per channel
        scales = storage.group_value * shape.n_heads
        return TensorLayout(
            shape, {**codes(shape.n_elements, _NIBBLE), "scales": scales}, once={"zero_points": per_channel}
        )
    return TensorLayout(shape, codes(shape.n_elements, _NIBBLE), once={"scales": per_channel})


def _ggml(entry: BlockType) -> Family:
    """A cache type of llama.cpp. Its layout raises InputError for a head dimension that its blocks do not divide."""

    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        if shape.head_dim % storage.ggml_block:
            raise InputError(
                f"quantizer = {entry.name}: head_dim = {shape.head_dim}: must be a multiple of {storage.ggml_block}, "
                "ggml's block"
            )
        value = storage.group_value * shape.n_elements // storage.ggml_block
        bits = {"payload": entry.code_bits * shape.n_elements, "scales": value}
        return TensorLayout(shape, bits | ({"zero_points": value} if entry.minimum else {}))

    of_block = f"blocks of {storage.ggml_block} channels, {entry.code_bits}-bit codes, FP16 step"
    return Family(
        entry.name,
        entry.name.upper(),
        f"llama.cpp --cache-type {entry.name}: {of_block}{' and minimum' if entry.minimum else ''} (ggml-quants.c)",
        layout,
        by_default=False,  # not for every head dimension
    )


_BITS = Param("bits", 2, "bits of a code", choices=(1, 2, 4, 8))

FAMILIES = (
    Family(
        "kivi",
        "KIVI",
        "KIVI (arXiv:2402.02750): keys per channel, values per token; residual in FP16",
        _kivi,
        (
            _BITS,
            Param("group", 32, "elements sharing a scale", low=4, high=65536),
            Param("residual", 128, "most recent tokens kept in FP16", low=4, high=65536),
        ),
        _kivi_problem,
    ),
    Family(
        "sinkq",
        "SinkQ",
        "SinkQ sections 3.2 and 4.1: KIVI's core; the sinks' keys and values stay in FP16",
        _sinkq,
        (
            _BITS,
            Param("group", 128, "tokens packed at a time", low=4, high=65536),
            Param("residual", 32, "most recent tokens kept in FP16", low=0, high=65536),
            Param("sinks", 3, "sink tokens kept in FP16 per head", low=0, high=1024),
            Param("evicted", 0, "replaced sinks still kept in FP16 (depends on data; 0 nominal)", low=0, high=1024),
        ),
        _word_problem,
        realised=(("sinks", "n_pool", "n_sink_heads"), ("evicted", "n_evicted", "n_sink_heads")),
    ),
    Family(
        "nqkv",
        "NQKV",
        "NQKV sections 3.2 and 4.1: NF4 in blocks inside a token",
        _nqkv,
        (
            Param("block", 256, "elements sharing an absmax", low=1, high=2**20),
            Param("absmax", "fp16", "format of the absmax", choices=("fp16", "fp32")),
        ),
    ),
    Family(
        "qserve",
        "QServe",
        "QServe (arXiv:2405.04532), KV4: scale and zero per head and token; artifact: per token, as Oaken ran it",
        _qserve,
        (Param("mode", "head", "what shares a scale", choices=("head", "artifact")),),
    ),
    Family(
        "atom",
        "Atom",
        "Atom (arXiv:2310.19102), KV4: scale and zero per group inside a head",
        _atom,
        (Param("group", 128, "elements sharing a scale", low=1, high=65536),),
    ),
    Family(
        "tender",
        "Tender",
        "Tender (arXiv:2406.12930) as in Oaken's artifact: keys per head and token, values per channel",
        _tender,
    ),
    *(_ggml(entry) for entry in GGML_TYPES.values()),
)
