"""KIVI: keys quantized per channel, values per token, the most recent tokens in FP16."""

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from dse.quantizers.base import EngineName, Family, TensorLayout, TensorShape, Values, ceil_div, codes, param
from dse.quantizers.engine_names import KVARN
from dse.quantizers.kernel import KernelRunner, QuantizedTensor, Settings, Side
from kernels_ref import storage

if TYPE_CHECKING:
    import numpy as np

    from kernels_ref.groups import GroupCache
    from kernels_ref.kivi import KIVI

BITS = param("bits", default=2, help="bits of a code", choices=(1, 2, 4, 8))


def core(values: Values, shape: TensorShape) -> dict[str, Fraction | int]:
    """Bits of a quantized token: keys per channel over `group` tokens, values per token over `group` channels."""
    bits, group = values["bits"], values["group"]
    if shape.which == "key":
        # whole groups are quantized along the tokens, so a token's share of scale and zero is exact over a group
        share = Fraction(storage.group_value * shape.n_elements, group)
        return {"payload": bits * shape.n_elements, "scales": share, "zero_points": share}
    scale = storage.group_value * shape.n_heads * ceil_div(shape.head_dim, group)
    words = codes(shape.head_dim, bits, unit=storage.word, rows=shape.n_heads)
    return {**words, "scales": scale, "zero_points": scale}


def word_problem(values: Values) -> str:
    """A message where the codes of a group do not fill whole 32-bit words, else ""."""
    n_codes = storage.word // values["bits"]
    if values["group"] % n_codes:
        return (
            f"group = {values['group']}: must be a multiple of {n_codes} ({values['bits']}-bit codes in 32-bit words)"
        )
    return ""


def _layout(values: Values, shape: TensorShape) -> TensorLayout:
    residual = values["residual"]
    if shape.which == "key":  # quantized a whole residual at a time
        return TensorLayout(shape, packed=core(values, shape), step=residual)
    return TensorLayout(shape, packed=core(values, shape), residual=residual)  # one token a step


def _problem(values: Values) -> str:
    if values["residual"] % values["group"]:
        return f"residual = {values['residual']}: must be a multiple of group = {values['group']}"
    return word_problem(values)


class _KiviKernel(KernelRunner):
    def _method(self, values: Values) -> "KIVI":
        from kernels_ref.kivi import KIVI

        return KIVI(values["bits"], values["group"], values["residual"], overflow="saturate")

    def run(
        self, values: Values, layer: int, tensors: Mapping[Side, "np.ndarray"], settings: Settings
    ) -> dict[Side, QuantizedTensor]:
        outcomes: dict[Side, QuantizedTensor] = {}
        for side, x in tensors.items():
            packed = self._method(values).quantize(x, side, settings.n_heads, settings.nonfinite)
            outcomes[side] = QuantizedTensor(packed, packed.dequantize(), packed.counts)
        return outcomes

    def cache(self, values: Values, layer: int, known: Mapping[Side, "np.ndarray"], settings: Settings) -> "GroupCache":
        return self._method(values).cache()


FAMILIES = (
    Family(
        name="kivi",
        title="KIVI",
        source="KIVI (arXiv:2402.02750): keys per channel, values per token; residual in FP16",
        layout=_layout,
        params=(
            BITS,
            param("group", default=32, help="elements sharing a scale", low=4, high=65536),
            param("residual", default=128, help="most recent tokens kept in FP16", low=4, high=65536),
        ),
        problem=_problem,
        kernel=_KiviKernel(),
        engines=(
            EngineName(
                "vLLM",
                "kvarn_k4v2_g128",
                "kivi:bits=4",
                KVARN,
                "evens out the variance of rotated tiles of 128 tokens, keys in 4 bits, values in 2 (a fork)",
            ),
        ),
        listed=60,
    ),
)
