"""Seconds of one step that decoding requests and prompts share: starts, host and weights are paid once, whoever is in
it.

With whole prompts alone it is `dse.model.step.Wave.prefill_s` of theirs, with decoding requests alone `decode_step_s`.
"""

from typing import NamedTuple

from dse.core.compiling import inlined
from dse.model.energy import added_s
from dse.model.formulas import dequantize
from dse.model.step import Terms, products_s


class StepWork(NamedTuple):
    """All that a device does in a step."""

    #: tokens that the products multiply, and those of them that meet the output head: decoding, and the last of each
    #: prompt that ends
    n_tokens: float
    n_last: float
    n_decoding: float
    #: weights read, and the peak rate of their products
    read_s: float
    peak: float
    #: products counted apart: of routed experts that were measured so, of the fullest group of requests
    apart_s: float
    exchange_s: float
    #: of decoding: attention, unpacking and packing, and the energy of attention
    decode_s: float
    decode_joules: float
    #: of prompts: attention, packing, what engines pack beside both, and starts of kernels that pack
    attention_s: float
    packing_s: float
    engine_s: float
    launch_s: float


@inlined
def step_s(work: StepWork, terms: Terms) -> float:
    """Seconds of the step; `terms` are those of a design, of any batch and lengths."""
    dense_s, compute_s = products_s(work.n_tokens, work.n_last, work.read_s, work.peak, terms, terms.has_gemm)
    matrix_s = dense_s + work.apart_s
    packing_s = work.packing_s + work.launch_s
    if work.engine_s > 0.0:
        packing_s += dequantize.exposed_s(work.engine_s, matrix_s + work.attention_s)
    host_s = terms.host_s + work.n_decoding * terms.host_sequence_s
    working_s = matrix_s + work.attention_s + packing_s + work.decode_s + work.exchange_s + host_s
    if terms.limit_w > 0.0:
        joules = work.read_s * terms.weight_w + compute_s * terms.gemm_flops_frac * terms.product_w
        joules += work.decode_joules + work.attention_s * terms.prompt_flops_frac * terms.attention_w
        working_s += added_s(working_s, joules, terms.limit_w, terms.idle_w)
    return working_s
