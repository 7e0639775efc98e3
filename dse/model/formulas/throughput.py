"""Tokens per second over all waves of a batch."""

from dse.core.compiling import formula


@formula(
    "s",
    "linear + attention + quantize + dequantize + collectives + host + power",
    "docs/explanation/model.md, Steps and times",
)
def decode_step_s(
    linear_s: float,
    attention_s: float,
    quantize_s: float,
    dequantize_s: float,
    collective_s: float,
    host_s: float,
    power_s: float,
) -> float:
    """Mean seconds of one decode step; the parts do not overlap (exposed times). `power_s` is what a limit adds."""
    return linear_s + attention_s + quantize_s + dequantize_s + collective_s + host_s + power_s


@formula("s", "output_tokens * decode_step_s + prefill_s", "docs/explanation/model.md, Steps and times")
def wave_s(output_tokens: float, decode_step_s: float, prefill_s: float) -> float:
    """Seconds of one wave from prompt to last token."""
    return output_tokens * decode_step_s + prefill_s


@formula(
    "s", "batch / running_batch * (output * decode_step_s + prefill_s)", "docs/explanation/model.md, Steps and times"
)
def paged_total_s(n_sequences: float, running_batch: float, wave_s: float) -> float:
    """Seconds for all requests when finished ones are replaced at once (steady state)."""
    return n_sequences / running_batch * wave_s


@formula("tok/s", "batch * output_tokens / total_s", "docs/explanation/model.md, Steps and times")
def static_batch_tokens_per_s(n_sequences: float, output_tokens: float, total_s: float) -> float:
    """Output tokens a second of a batch that runs from its prompts to its last tokens, prefill included."""
    return n_sequences * output_tokens / total_s
