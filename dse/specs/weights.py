"""Formats of weights as servers and checkpoints name them: bits in memory, and how products with them run."""

import re
from dataclasses import dataclass, replace

from dse.core.errors import InputError, did_you_mean, show

#: eighths of a bit: what a parameter takes with its scales is a whole number of them
EIGHTHS = 8
#: of a parameter in 16 bits
WIDE_BITS, WIDE_EIGHTHS = 16, 128
#: format of weights of a model whose files say nothing else
WIDE = "bf16"
#: the format of `--weights` that takes what the publisher released
RELEASED = "released"
#: what a format leaves in 16 bits: nothing; embeddings and output head; these and attention
NOTHING, OUTSIDE, ATTENTION = "nothing", "outside", "attention"
#: the same in words
KEEPS = {NOTHING: "-", OUTSIDE: "embeddings, output head", ATTENTION: "embeddings, output head, attention"}


@dataclass(frozen=True)
class WeightFormat:
    """Storage of the weights of a checkpoint: those outside the routed experts, and those of the experts.

    `*_eighths`: bits of a parameter times 8, scales included. `*_code`: which measured products run with them
    (`dse.specs.stack.WeightCode`), "" where none does. `keeps`: what is left in 16 bits.
    """

    name: str
    title: str
    dense_eighths: int
    expert_eighths: int
    dense_code: str
    expert_code: str
    keeps: str = NOTHING
    #: rows of experts are padded
    pads: bool = False

    @property
    def is_file(self) -> bool:
        """True for what llama.cpp's files are stored in, and no other engine's."""
        return self.dense_code.startswith("gguf")


def _uniform(name: str, title: str, eighths: int, code: str, keeps: str = OUTSIDE) -> WeightFormat:
    return WeightFormat(
        name, title=title, dense_eighths=eighths, expert_eighths=eighths, dense_code=code, expert_code=code, keeps=keeps
    )


def _gguf(name: str, eighths: int) -> WeightFormat:
    """A type of llama.cpp's files, whose tables are packed as well."""
    code = "gguf_grid" if re.fullmatch(_GRIDS, name) else "gguf"
    said = f", a hub's own mix: counted as {_HUBS[name].upper()}" if name in _HUBS else ""
    said = ", of ik_llama.cpp" if name in _OF_IK else said
    form = _uniform(name, f"GGUF {name.upper()}{said}", eighths, code, NOTHING)
    return replace(form, expert_eighths=_EXPERTS.get(_HUBS.get(name, name), eighths))


#: a block of 16 has an 8-bit scale (NVFP4), of 32 an 8-bit scale (MXFP4, MXFP8) or a 16-bit one (INT4 experts of Kimi),
#: of 128 a 16-bit scale (INT4, INT8), and of 128 x 128 a 32-bit scale (FP8 in blocks: 0.002 bits, not counted)
_NVFP4, _MXFP4, _INT4, _INT4_OF_64, _INT4_OF_32, _MXFP8, _INT8 = 36, 34, 33, 34, 36, 66, 65
#: what 16 bits of scale and of bias for 64 weights add in MLX (mlx 0.32.4, affine quantize), tables too
_MLX = 4
#: bits a weight of GGUF types: of one type by its blocks; of mixes ("_M", "_S", "_L", and IQ1 to IQ4) as llama.cpp's
#: table for Llama-3.1-8B says (tools/quantize/README.md), to an eighth of a bit
_GGUF = {
    "q8_0": 68,
    "q6_k": 53,
    "q5_k_m": 46,
    "q5_k_s": 45,
    "q5_0": 44,
    "q5_1": 48,
    "q4_k_m": 39,
    "q4_k_s": 37,
    "q4_0": 36,
    "q4_1": 40,
    "iq4_nl": 37,
    "iq4_xs": 36,
    "iq3_m": 30,
    "iq3_s": 29,
    "iq3_xs": 28,
    "iq3_xxs": 26,
    "q3_k_l": 34,
    "q3_k_m": 32,
    "q3_k_s": 29,
    "q2_k": 25,
    "q2_k_s": 24,
    "iq2_m": 23,
    "iq2_s": 22,
    "iq2_xs": 21,
    "iq2_xxs": 19,
    "tq2_0": 17,
    "iq1_m": 17,
    "iq1_s": 16,
    "tq1_0": 14,
    "q1_0": 9,
}
#: of these the layers of mixtures, whose experts are nearly all: the table less its embeddings and output head, which
#: have more bits (src/llama-quant.cpp: Q2_K, IQ3_S or the type itself, and Q5_K or Q6_K)
_EXPERTS = {
    "iq3_m": 29,
    "iq3_s": 28,
    "iq3_xs": 26,
    "iq3_xxs": 25,
    "q3_k_m": 31,
    "q3_k_s": 28,
    "q2_k": 24,
    "q2_k_s": 22,
    "iq2_m": 22,
    "iq2_s": 20,
    "iq2_xs": 19,
    "iq2_xxs": 17,
    "iq1_m": 15,
    "iq1_s": 14,
}
#: types of ik_llama.cpp by their blocks (src/llama.cpp, llama_model_ftype_name); files that mix them take up to a
#: seventh more, which --weights-size says
_OF_IK = {
    "q6_0": 52,
    "iq6_k": 53,
    "iq5_k": 44,
    "iq5_ks": 42,
    "iq4_k": 36,
    "iq4_ks": 34,
    "iq4_kss": 32,
    "iq4_kt": 33,
    "iq3_kl": 32,
    "iq3_k": 28,
    "iq3_ks": 26,
    "iq3_kt": 25,
    "iq2_kl": 22,
    "iq2_k": 19,
    "iq2_ks": 18,
    "iq2_kt": 17,
    "iq2_bn": 16,
    "iq1_kt": 14,
    "iq1_bn": 13,
}
#: mixes that publishers make themselves, other layers of each model in more bits -> the mix that is nearest
_HUBS = {
    "q8_k_xl": "q8_0",
    "q6_k_xl": "q6_k",
    "q6_k_l": "q6_k",
    "q5_k_xl": "q5_k_m",
    "q5_k_l": "q5_k_m",
    "q4_k_xl": "q4_k_m",
    "q4_k_l": "q4_k_m",
    "q3_k_xl": "q3_k_l",
    "q2_k_xl": "q2_k",
    "q2_k_l": "q2_k",
}
#: types whose weights are looked up in a grid, several at once
_GRIDS = r"iq[123]_(?:xxs|xs|s|m)"
FORMATS: dict[str, WeightFormat] = {
    entry.name: entry
    for entry in (
        _uniform(WIDE, "16 bits", WIDE_EIGHTHS, "bf16", NOTHING),
        _uniform("fp32", "32 bits", 2 * WIDE_EIGHTHS, "", NOTHING),
        _uniform("fp8", "FP8, a scale a tensor or channel", 64, "fp8"),
        _uniform("fp8-tensor", "FP8, a scale a tensor or channel, of a mixture that is released in blocks", 64, "fp8"),
        _uniform("fp8-block", "FP8, a scale a block of 128 x 128", 64, "fp8_block"),
        _uniform("mxfp8", "MXFP8, all of the layers", _MXFP8, ""),
        _uniform("int8", "INT8, 8-bit activations, a scale a channel", 64, "w8a8"),
        _uniform("w8a16", "INT8, 16-bit activations, groups of 128", _INT8, "int8"),
        _uniform("nvfp4", "NVFP4, all of the layers", _NVFP4, "nvfp4"),
        _uniform("nvfp4-ffn", "NVFP4 feed-forwards and experts, attention 16 bits", _NVFP4, "nvfp4", ATTENTION),
        _uniform("mxfp4", "MXFP4, all of the layers", _MXFP4, "mxfp4"),
        _uniform("int4", "INT4, 16-bit activations, groups of 128", _INT4, "int4"),
        _uniform("int4-ffn", "INT4 feed-forwards and experts, attention 16 bits", _INT4, "int4", ATTENTION),
        _uniform("int4-of-64", "INT4, 16-bit activations, groups of 64", _INT4_OF_64, "int4"),
        _uniform("int4-of-32", "INT4, 16-bit activations, groups of 32", _INT4_OF_32, "int4"),
        *(
            _uniform(f"mlx-{bits}bit", f"MLX, {bits} bits, groups of 64", 8 * bits + _MLX, code, NOTHING)
            for bits, code in ((2, ""), (3, ""), (4, "int4"), (5, ""), (6, ""), (8, "int8"))
        ),
        _uniform("nf4", "4 bits of bitsandbytes, 16-bit activations", _INT4, ""),
        WeightFormat(
            "nvfp4-experts",
            title="NVFP4 experts, the rest 16 bits",
            dense_eighths=WIDE_EIGHTHS,
            expert_eighths=_NVFP4,
            dense_code="bf16",
            expert_code="nvfp4",
        ),
        WeightFormat(
            "mxfp4-experts",
            title="MXFP4 experts, the rest 16 bits",
            dense_eighths=WIDE_EIGHTHS,
            expert_eighths=_MXFP4,
            dense_code="bf16",
            expert_code="mxfp4",
            pads=True,
        ),
        WeightFormat(
            "int4-experts",
            title="INT4 experts in groups of 32, the rest 16 bits",
            dense_eighths=WIDE_EIGHTHS,
            expert_eighths=_INT4_OF_32,
            dense_code="bf16",
            expert_code="int4",
        ),
        WeightFormat(
            "fp8-mxfp4-experts",
            title="MXFP4 experts, the rest FP8 in blocks of 128 x 128",
            dense_eighths=64,
            expert_eighths=_MXFP4,
            dense_code="fp8_block",
            expert_code="mxfp4",
            keeps=OUTSIDE,
            pads=True,
        ),
        WeightFormat(
            "mxfp4_moe",
            title="GGUF MXFP4_MOE: MXFP4 experts, the rest Q8_0",
            dense_eighths=_GGUF["q8_0"],
            expert_eighths=_MXFP4,
            dense_code="gguf",
            expert_code="gguf",
        ),
        *(_gguf(name, eighths) for name, eighths in (_GGUF | _OF_IK).items()),
        *(_gguf(name, _GGUF[near]) for name, near in _HUBS.items()),
    )
}


#: a word of a name -> formats that it may mean, the likeliest first; words of one name must agree on one
WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"nvfp4(?:a16)?", ("nvfp4",)),
    (r"mxfp4(?:a16)?", ("mxfp4",)),
    (r"mxfp8", ("mxfp8",)),
    (r"fp4", ("nvfp4", "mxfp4")),
    (r"fp8", ("fp8", "fp8-block")),
    (r"w8a8", ("int8", "fp8", "fp8-block")),
    (r"w8a16", ("w8a16", "fp8")),
    (r"int8", ("int8", "w8a16")),
    (r"8bit", ("w8a16", "int8", "nf4")),
    (r"awq|gptq", ("int4", "w8a16")),
    (r"w4a16", ("int4", "nvfp4", "mxfp4")),
    (r"int4|w4a8|w4afp8", ("int4",)),
    (r"4bit", ("int4", "nf4")),
    (r"bnb", ("nf4",)),
    (r"block", ("fp8-block",)),
    (r"bf16|fp16|fp32|f16|f32", (WIDE,)),
)


def gguf_type(text: str) -> str:
    """A type of llama.cpp's files as the table spells it: without Unsloth's UD- before it and rows packed together
    behind it (_R4); a type that stands for a mix (Q4_K) by that mix; a name that is no type as it is."""
    plain = re.sub(r"^ud[-_]|_r[48]$|(?<=q4_0)_[48]_[48]$", "", text.strip().lower().replace("-k-", "_k_"))
    plain = plain if plain in FORMATS else plain.replace("-", "_")
    return f"{plain}_m" if plain not in FORMATS and f"{plain}_m" in FORMATS else plain


def _key(text: str) -> str:
    """A name as the table spells it: types of GGUF keep their underscores."""
    plain = text.strip().lower()
    known = (name for name in (plain, gguf_type(plain)) if name in FORMATS)
    return next(known, plain.replace("_", "-"))


def is_format(text: str) -> bool:
    """True for the name of a format, False for a word that may mean one of several."""
    return _key(text) in FORMATS


def parse(text: str) -> WeightFormat:
    """The format of that name, or the likeliest of a word in names of checkpoints. Raises InputError."""
    if chosen := FORMATS.get(_key(text)):
        return chosen
    for pattern, formats in WORDS:
        if re.fullmatch(pattern, text.strip().lower()):
            return FORMATS[formats[0]]
    if text.lower().endswith(".json"):
        raise InputError(f"weights = {show(text)}: is a file: --model takes it, with the config.json beside it")
    raise InputError(f"weights = {show(text)}: is not known: {did_you_mean(text, FORMATS)}")


def weight_format(weights: str | None, weights_bits: int, activation_bits: int) -> WeightFormat:
    """The format that a workload asks for: by name, else by the bits of weights and activations."""
    if weights not in (None, RELEASED):
        return parse(weights)
    if activation_bits == 8:  # of 8-bit activations only FP8 with FP8 weights was measured
        code = "fp8" if weights_bits == 8 else ""
    else:
        code = {16: "bf16", 8: "int8", 4: "int4"}[weights_bits]
    name, title = f"{weights_bits} bits", f"{weights_bits} bits, scales not counted"
    return _uniform(name, title, 8 * weights_bits, code, NOTHING)
