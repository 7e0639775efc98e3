"""Claims of the NQKV paper."""

from typing import Any

from dse import catalog, quantizers, units
from dse.claims.core import Estimate, Finding, claim, family
from dse.claims.designs import CALIBRATED, build, evaluate, sequence_bits
from dse.claims.published import NQKV_OUTPUT_TOKENS, NQKV_TABLE_4
from dse.formulas import kv_cache, linear, prefill, weights

#: 4.1: block size 256; the cache of SmoothQuant is INT8 with fixed scales; weights of both are INT8
NQKV, SMOOTHQUANT, WEIGHTS_BITS = "nqkv:block=256", "int8:granularity=tensor", 8
DEVICE = "a100-80gb"


def _kv_175b_bytes() -> float:
    """OPT-175B, batch 64, 8192 tokens, FP16."""
    return 64 * float(sequence_bits(build("opt-175b"), 8192)) / units.BITS_PER_BYTE


def _weights_175b_bytes() -> int:
    """175e9 parameters, as published."""
    found: int = weights.weight_bytes(catalog.model("opt-175b").published_parameters, units.FP16_BITS)
    return found


@claim("nqkv-175b-kv")
def kv_175b_tib() -> float:
    """KV cache of OPT-175B in TiB."""
    return _kv_175b_bytes() / units.to_base(1, "TiB")


@claim("nqkv-175b-ratio")
def kv_175b_ratio() -> float:
    """That KV cache over the weights."""
    return _kv_175b_bytes() / _weights_175b_bytes()


@claim("nqkv-175b-share")
def kv_175b_percent() -> float:
    """Its share of weights and KV together, in percent."""
    return 100 * _kv_175b_bytes() / (_kv_175b_bytes() + _weights_175b_bytes())


@family({f"nqkv-bits-256-{absmax}": (absmax,) for absmax in ("fp16", "fp32")})
def effective_bits(absmax: str) -> float:
    """Bits an element, block 256, absmax in the given format."""
    return float(build("opt-6.7b", f"{NQKV},absmax={absmax}").effective_bits)


@claim("nqkv-blocks")
def blocks_per_token() -> int:
    """Stored absmax values of a token's keys in one layer."""
    scales = build("opt-6.7b", NQKV).groups[0].layout.packed["scales"]
    return int(scales) // units.FP16_BITS


@claim("nqkv-pad-16")
def padding_multiple() -> int:
    """Largest step on which all padded lengths lie: padding is what the formula adds for NQKV's tiles of tokens."""
    tile_tokens = quantizers.FAMILIES["nqkv"].gpu_code.tile_tokens
    padded = {n + kv_cache.padding_tokens(n, tile_tokens) for n in range(1, 10 * tile_tokens)}
    return max(step for step in range(1, min(padded) + 1) if all(n % step == 0 for n in padded))


def _rows() -> list[tuple[str, int, int, float | None, float | None, float | None]]:
    """Model, batch, prompt and the three published throughputs of Table 4."""
    return [(*key, *throughputs) for key, (throughputs, _) in NQKV_TABLE_4.items()]  # type: ignore[misc]


def _both(model: str, batch: int, input_tokens: int) -> list[dict[str, Any]]:
    """NQKV and SmoothQuant with an INT8 KV cache, on the kernels of the A100 as measured."""
    return [
        evaluate(
            DEVICE, model, quantizer, batch=batch, input_tokens=input_tokens, output_tokens=NQKV_OUTPUT_TOKENS,
            weights_bits=WEIGHTS_BITS, **CALIBRATED,
        )
        for quantizer in (NQKV, SMOOTHQUANT)
    ]  # fmt: skip


@claim("nqkv-t4-slower")
def slower_than_smoothquant() -> Finding:
    """NQKV over SmoothQuant with KV cache, where the paper could run both; and the difference of their step times.

    The difference is what dequantisation costs: the framework's own time, 6 to 40 times the kernels', is in both; so
    printed ratios are nearer to 1 than ours. docs/calibration.md, FP16 copies, has the fit.
    """
    ratios, differences, printed = [], [], []
    for model, batch, input_tokens, _, smoothquant, nqkv in _rows():
        if smoothquant is not None:
            ours = _both(model, batch, input_tokens)
            if all(result["fits_whole_batch"] for result in ours):
                ratios.append(ours[0]["throughput_tokens_per_s"] / ours[1]["throughput_tokens_per_s"])
            differences.append((ours[0]["decode_step_s"] - ours[1]["decode_step_s"]) / units.to_base(1, "ms"))
            assert nqkv is not None
            printed.append((batch / nqkv - batch / smoothquant) / units.to_base(1, "ms"))
    over = sorted(a / b for a, b in zip(differences, printed, strict=True))
    return Finding(
        f"{min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} rows, all below 1; a step takes "
        f"{min(differences):.1f} to {max(differences):.1f} ms more, printed {min(printed):.1f} to {max(printed):.1f}: "
        f"ours is {over[0]:.2f} to {over[-1]:.2f} of it (median {over[len(over) // 2]:.2f}): start and bandwidth of "
        "the copies were fitted to these differences, the ratios were not",
        holds=len(ratios) == len(printed) == 11 and max(ratios) < 1,
    )


def _no_cache_s(model: str, batch: int, input_tokens: int) -> float:
    """Seconds of a generation that runs the whole prefix in every step, as long as the cached step's context."""
    kv, device = build(model), catalog.device(DEVICE)
    parameters = float(kv.model.active_parameters)
    read = weights.weight_read_bytes(kv.model.dense_parameters, kv.model.expert_parameters, 1.0, WEIGHTS_BITS)
    peak, bandwidth = device.peak_flops.si, device.memory_bandwidth.si
    total = 0.0
    for n_tokens in range(input_tokens + 1, input_tokens + NQKV_OUTPUT_TOKENS + 1):
        matrix_s = linear.linear_s(batch * n_tokens, parameters, read, peak, bandwidth)
        total += prefill.prefill_compute_s(matrix_s, batch * kv.prompt_flops(n_tokens), 1.0, peak)
    return total


@claim("nqkv-t4-cache-gain")
def cache_gain() -> Finding:
    """NQKV with its cache over recomputing the prefix in every step, 12 rows, ours beside the printed gain."""
    gains: dict[tuple[str, int, int], float] = {}
    printed = {}
    for model, batch, input_tokens, without, _, with_cache in _rows():
        result = evaluate(
            DEVICE, model, NQKV, batch=batch, input_tokens=input_tokens, output_tokens=NQKV_OUTPUT_TOKENS,
            weights_bits=WEIGHTS_BITS,
        )  # fmt: skip
        gains[model, batch, input_tokens] = _no_cache_s(model, batch, input_tokens) / result["total_s"]
        assert without is not None
        assert with_cache is not None
        printed[model, batch, input_tokens] = with_cache / without
    pairs = [(gains[m, b, 128], gains[m, b, 512]) for m, b, n in gains if n == 128]
    shown = ", ".join(f"{m} {b}x{n}: {gain:.1f} ({printed[m, b, n]:.2f})" for (m, b, n), gain in gains.items())
    return Finding(
        f"ours (printed) by batch and prompt: {shown}",
        holds=len(gains) == 12 and min(gains.values()) > 1 and all(short < long for short, long in pairs),
    )


@claim("nqkv-t4-saving")
def memory_saved() -> Finding:
    """What the Saving column's ratios mean as a share: SmoothQuant's peak over NQKV's."""
    peaks = [memory[1:] for _, memory in NQKV_TABLE_4.values()]
    saved = [100 * (1 - nqkv / other) for other, nqkv in peaks if other is not None and nqkv is not None]
    return Finding(f"{min(saved):.0f} to {max(saved):.0f} percent", numbers=(min(saved), max(saved)))


@claim("nqkv-t4-5percent")
def extra_memory_percent() -> float:
    """NQKV with cache over SmoothQuant without, OPT-30B, batch 64, 512 prompt tokens."""
    without, _, with_cache = NQKV_TABLE_4["opt-30b", 64, 512][1]
    assert without is not None
    assert with_cache is not None
    return 100 * (with_cache / without - 1)


#: 4.3, Figures 8 and 9
FIGURE_MODEL, FIGURE_INPUT_TOKENS = "opt-6.7b", 512


def _limit(name: str, quantizer: str, weights_bits: int) -> float:
    """Largest batch or longest context of OPT-6.7B on the A100."""
    found: float = evaluate(
        DEVICE, FIGURE_MODEL, quantizer, input_tokens=FIGURE_INPUT_TOKENS, output_tokens=NQKV_OUTPUT_TOKENS,
        weights_bits=weights_bits,
    )[name]  # fmt: skip
    return found


def _limit_gain(name: str, other: str, weights_bits: int) -> float:
    """NQKV over another cache, both beside weights of the same bits."""
    return _limit(name, NQKV, weights_bits) / _limit(name, other, weights_bits)


@claim("nqkv-f8-batch-fp16")
def batch_over_fp16() -> Estimate:
    """Largest batch of NQKV over FP16, FP16 weights in both."""
    int8 = _limit("max_batch", NQKV, WEIGHTS_BITS) / _limit("max_batch", "fp16", units.FP16_BITS)
    return Estimate(
        _limit_gain("max_batch", "fp16", units.FP16_BITS),
        f"FP16 weights in both ({int8:.2f} with INT8 weights for NQKV); 4.06 bits and an FP16 copy of one layer",
    )


@claim("nqkv-f8-batch-sq")
def batch_over_smoothquant() -> Estimate:
    """Largest batch of NQKV over SmoothQuant, INT8 weights in both."""
    return Estimate(
        _limit_gain("max_batch", SMOOTHQUANT, WEIGHTS_BITS),
        "INT8 weights in both, 4.06 bits and an FP16 copy of one layer against 8 bits",
    )


@family({
    "nqkv-f9-seq-fp16": ("fp16", units.FP16_BITS), "nqkv-f9-seq-sq": (SMOOTHQUANT, WEIGHTS_BITS),
})  # fmt: skip
def sequence_gain(other: str, weights_bits: int) -> Estimate:
    """Longest sequence of NQKV over another cache; the batch is not stated, one sequence here."""
    return Estimate(
        _limit_gain("max_context_tokens", other, weights_bits),
        "prompts run in chunks here, so their activations stay small; a whole prompt's grow with its length in both "
        "and bring the published ratio nearer to 1",
    )
