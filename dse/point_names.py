"""What people call the results and the numbers of a device that are varied, and the units that figures show them in.

`dse.point.RESULT_UNITS` has the names and base units that files and commands use; README's glossary says what each is.
"""

from dse import units

#: column -> the words on an axis or above a column of a table; no two are the same
TITLES = {
    "device": "device", "model": "model", "quantizer": "quantizer", "key_quantizer": "quantizer of keys",
    "value_quantizer": "quantizer of values", "model_kind": "times", "stack": "software stack",
    "tokens": "token policy", "batch": "batch", "input_tokens": "prompt", "output_tokens": "output",
    "admission": "admission", "page_tokens": "page", "prefix_tokens": "shared prefix",
    "weights_bits": "bits of a weight", "activation_bits": "bits of an activation",
    "prompt_chunk_tokens": "chunk of the prompt", "kv_cache": "KV cache",
    "cached_input_discount": "discount on cached input", "key_dequant_path": "unpacking of keys",
    "value_dequant_path": "unpacking of values", "stored_tokens": "stored tokens", "read_tokens": "tokens read",
    "effective_bits": "effective bits", "stored_bits": "stored bits", "page_tail_bits": "bits left unused in pages",
    "write_amplification": "written over packed", "bits_kind": "bits from", "measured_bits": "measured bits",
    "mse": "mean squared error", "sqnr_db": "signal to noise", "measured_error": "error of the attention output",
    "measured_on": "measured on", "kv_bytes_per_token": "KV cache of a token", "kv_bytes": "KV cache of the batch",
    "peak_kv_bytes_per_sequence": "peak KV cache of a sequence", "weight_bytes": "weights",
    "activation_bytes": "activations", "workspace_bytes": "workspace", "capacity_bytes": "device memory",
    "free_bytes": "memory left after weights", "min_capacity_bytes": "smallest memory for the batch",
    "feasible": "one request fits", "infeasible_reason": "why none fits", "fits_whole_batch": "whole batch fits",
    "max_batch": "largest batch", "max_context_tokens": "longest context", "running_batch": "running at once",
    "n_waves": "waves", "linear_s": "linear layers", "attention_s": "attention", "quantize_s": "packing, exposed",
    "dequantize_s": "unpacking, exposed", "quantize_busy_s": "packing", "dequantize_busy_s": "unpacking",
    "busy_cores": "busy cores", "decode_step_s": "decode step", "prefill_s": "prompt of a running batch",
    "total_s": "total time", "ttft_s": "time to first token", "tpot_s": "time per output token",
    "throughput_tokens_per_s": "throughput", "bound": "bound by", "linear_bound": "linear layers bound by",
    "attention_bound": "attention bound by", "compute_utilisation": "share of peak FLOP/s",
    "bandwidth_utilisation": "share of peak bandwidth",
    "prefill_compute_utilisation": "share of peak FLOP/s, prompt",
    "prefill_bandwidth_utilisation": "share of peak bandwidth, prompt", "joules_per_token": "energy",
    "joules_per_token_by_parts": "energy by parts", "memory_joules_per_token": "energy of reads and writes",
    "compute_joules_per_token": "energy of operations", "idle_joules_per_token": "energy of idling",
    "usd_per_million_tokens": "cost of a million tokens", "usd_per_request": "cost of a request",
    "effective_bandwidth_bytes_per_s": "effective bandwidth", "effective_capacity_bytes": "effective capacity",
    "assumptions": "assumed numbers",
    "memory_bandwidth": "memory bandwidth", "memory_capacity": "memory capacity", "peak_flops": "peak FP16 rate",
    "board_power": "board power", "usd_per_hour": "rent of the device",
}  # fmt: skip

#: base unit -> the unit that figures show
_SHOWN = {
    "B": "GB", "B/s": "TB/s", "s": "ms", "FLOP/s": "TFLOP/s", "1": "", "token": "tokens", "sequence": "sequences",
    "bit": "bit",
}  # fmt: skip
#: columns shown in another unit than others of their base unit
_SHOWN_OF = {
    "total_s": "s", "measured_error": "%", "cached_input_discount": "%", "compute_utilisation": "%",
    "bandwidth_utilisation": "%", "prefill_compute_utilisation": "%", "prefill_bandwidth_utilisation": "%",
}  # fmt: skip


def title(name: str) -> str:
    """What people call a column; a name that is not known stays as it is."""
    return TITLES.get(name, name)


def shown_unit(name: str, unit: str) -> tuple[str, float]:
    """The unit that figures show a column of base unit `unit` in, and its size in base units; "" for a bare number."""
    shown = _SHOWN_OF.get(name, _SHOWN.get(unit, unit)) if unit else ""
    return shown, float(units.UNITS.get(shown, ("", 1))[1])
