"""Formats of weights as servers name them: bits in memory, and how products with them run."""

from dataclasses import dataclass

from dse.core.errors import InputError, did_you_mean, show

#: eighths of a bit: what a parameter takes with its scales is a whole number of them
EIGHTHS = 8


@dataclass(frozen=True)
class WeightFormat:
    """Storage of the weights of a checkpoint: those outside the routed experts, and those of the experts.

    `*_eighths`: bits of a parameter times 8, scales included. `*_code`: which measured products run with them
    (`dse.specs.stack.WeightCode`), "" where none does.
    """

    name: str
    title: str
    dense_eighths: int
    expert_eighths: int
    dense_code: str
    expert_code: str


def _uniform(name: str, title: str, eighths: int, code: str) -> WeightFormat:
    return WeightFormat(
        name, title=title, dense_eighths=eighths, expert_eighths=eighths, dense_code=code, expert_code=code
    )


#: a block of 16 has an 8-bit scale (NVFP4), of 32 an 8-bit scale (MXFP4), of 128 a 16-bit scale (INT4), and of 128 x
#: 128 a 32-bit scale (FP8 in blocks: 0.002 bits, not counted)
_NVFP4, _MXFP4, _INT4 = 36, 34, 33
FORMATS: dict[str, WeightFormat] = {
    each.name: each
    for each in (
        _uniform("bf16", "16 bits", 128, "bf16"),
        _uniform("fp8", "FP8, a scale a tensor or channel", 64, "fp8"),
        _uniform("fp8-block", "FP8, a scale a block of 128 x 128", 64, "fp8_block"),
        _uniform("nvfp4", "NVFP4, all of the layers", _NVFP4, "nvfp4"),
        _uniform("int4", "INT4, 16-bit activations, groups of 128", _INT4, "int4"),
        WeightFormat(
            "nvfp4-experts",
            title="NVFP4 experts, the rest 16 bits",
            dense_eighths=128,
            expert_eighths=_NVFP4,
            dense_code="bf16",
            expert_code="nvfp4",
        ),
        WeightFormat(
            "mxfp4-experts",
            title="MXFP4 experts, the rest 16 bits",
            dense_eighths=128,
            expert_eighths=_MXFP4,
            dense_code="bf16",
            expert_code="mxfp4",
        ),
        WeightFormat(
            "int4-experts",
            title="INT4 experts, the rest 16 bits",
            dense_eighths=128,
            expert_eighths=_INT4,
            dense_code="bf16",
            expert_code="int4",
        ),
    )
}


def parse(text: str) -> WeightFormat:
    """The format of that name. Raises InputError for one that is not known."""
    found = FORMATS.get(text.strip().lower().replace("_", "-"))
    if found is None:
        raise InputError(f"weights = {show(text)}: is not known: {did_you_mean(text, FORMATS)}")
    return found


def weight_format(weights: str | None, weights_bits: int, activation_bits: int) -> WeightFormat:
    """The format that a workload asks for: by name, else by the bits of weights and activations."""
    if weights is not None:
        return parse(weights)
    if activation_bits == 8:  # of 8-bit activations only FP8 with FP8 weights was measured
        code = "fp8" if weights_bits == 8 else ""
    else:
        code = {16: "bf16", 8: "int8", 4: "int4"}[weights_bits]
    return _uniform(f"{weights_bits} bits", f"{weights_bits} bits, scales not counted", 8 * weights_bits, code)
