"""Columns in a reader's words, with the units that pages show."""

import re
from collections.abc import Iterable

from dse import point
from dse.plots import design_front

#: columns whose words are not their names with spaces
WORDS = {
    "model": "Language model", "model_kind": "Times", "tokens": "Token policy", "batch": "Batch",
    "input_tokens": "Prompt", "output_tokens": "Generated", "quantizer": "KV quantizer",
    "key_quantizer": "Quantizer of keys", "value_quantizer": "Quantizer of values", "stack": "Software stack",
    "page_tokens": "Page", "prefix_tokens": "Common prefix", "prompt_chunk_tokens": "Prompt chunk",
    "kv_cache": "Keeps a KV cache", "key_dequant_path": "Unpacking of keys",
    "value_dequant_path": "Unpacking of values", "weights_bits": "Weights", "activation_bits": "Activations",
    "stored_tokens": "Tokens stored", "read_tokens": "Tokens read", "effective_bits": "Effective bits",
    "stored_bits": "Stored bits", "page_tail_bits": "Unused in last pages",
    "write_amplification": "Write amplification", "bits_kind": "Source of the bits", "measured_bits": "Measured bits",
    "mse": "Mean squared error", "sqnr_db": "Signal to noise", "measured_error": "Attention error",
    "measured_on": "Error measured on", "kv_bytes_per_token": "KV cache per token", "kv_bytes": "KV cache",
    "peak_kv_bytes_per_sequence": "KV peak, a request", "weight_bytes": "Weights in memory",
    "activation_bytes": "Activations in memory", "workspace_bytes": "Workspace", "capacity_bytes": "Device memory",
    "free_bytes": "Memory beside weights", "min_capacity_bytes": "Memory it needs", "feasible": "Fits",
    "infeasible_reason": "Why it does not fit", "fits_whole_batch": "Fits at once", "max_batch": "Largest batch",
    "max_context_tokens": "Longest context", "running_batch": "Running at once", "n_waves": "Rounds",
    "linear_s": "Linear layers", "attention_s": "Attention", "quantize_s": "Packing, exposed",
    "dequantize_s": "Unpacking, exposed", "quantize_busy_s": "Packing", "dequantize_busy_s": "Unpacking",
    "decode_step_s": "Decode step", "prefill_s": "Prefill", "total_s": "Whole batch", "ttft_s": "Time to first token",
    "tpot_s": "Time per token", "throughput_tokens_per_s": "Throughput", "bound": "What binds",
    "linear_bound": "What binds linear layers", "attention_bound": "What binds attention",
    "compute_utilisation": "Use of compute", "bandwidth_utilisation": "Use of bandwidth",
    "prefill_compute_utilisation": "Prefill: use of compute",
    "prefill_bandwidth_utilisation": "Prefill: use of bandwidth", "joules_per_token": "Energy",
    "joules_per_token_by_parts": "Energy by parts", "memory_joules_per_token": "Energy: bytes moved",
    "compute_joules_per_token": "Energy: operations", "idle_joules_per_token": "Energy: idling",
    "usd_per_million_tokens": "Cost per million tokens", "usd_per_request": "Cost per request",
    "effective_bandwidth_bytes_per_s": "Effective bandwidth", "effective_capacity_bytes": "Effective capacity",
    "assumptions": "Assumed numbers",
}  # fmt: skip
#: units as people write them; a share has none
_UNITS = {"sequence": "requests", "token": "tokens", "1": ""}


def words(name: str) -> str:
    """What a column is called: `decode_step_s` is the decode step."""
    if name in WORDS:
        return WORDS[name]
    text = name.replace("_", " ").replace(".", ": ", 1)
    return text[:1].upper() + text[1:]


def unit(base: str) -> str:
    """A base unit in a reader's words."""
    return _UNITS.get(base, base)


def titled(name: str) -> str:
    """A result with the unit in which figures and tables show it: Decode step (ms)."""
    base = point.RESULT_UNITS.get(name, {"memory_bandwidth": "B/s", "memory_capacity": "B"}.get(name, ""))
    return design_front.axis(words(name), unit(base), []).label


def spoken(text: str) -> str:
    """A text in which the assumed numbers that something rests on are words: kernel launch, not kernel_launch."""
    return re.sub(r"(?<=Rests on assumed numbers: )[^.]*", lambda found: found[0].replace("_", " "), text)


def column(text: str, known: Iterable[str]) -> str:
    """The column that a reader means, by its name or its words; the text itself where there is none."""
    by_words = {words(name).lower(): name for name in known}
    return by_words.get(text.strip().lower(), text.strip())
