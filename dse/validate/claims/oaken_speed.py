"""Claims of the Oaken paper about measured time: GPUs as vLLM serves them, Oaken and LPU as estimated.

Nothing here is fitted to what it is compared with, but for the rates of Oaken's engines: those are the two shares that
6.2 prints to Figure 12(b), which count as inputs, and are judged by what the same text says of hiding them and of
attention. No paper gives kernel times of Oaken, which is taken to reach the middle of what measured devices reach of
their peaks; its cores and Tender's arrays follow from Table 1, and the A100's parameters from kernel tables
(docs/explanation/calibration.md).
"""

from collections.abc import Sequence
from typing import Any

from dse.core import units
from dse.model import memory_unit
from dse.model.kv_layout import KvPlan
from dse.questions import systems
from dse.specs import catalog
from dse.validate.claims.core import Modeled, Relation, claim, family
from dse.validate.claims.designs import CALIBRATED, SERVED, build, results_at, tokens_per_s

#: 6.2: "for a batch size of 256", 1K in and out
BATCH = 256
#: the axis of Figure 13
TOTAL_TOKENS = tuple(1024 * 2**k for k in range(6))
FIGURE_13_BATCH = 16
#: 6.2, latency breakdown
SHARES_MODEL, SHARES_BATCH = "llama2-7b", 64


#: fields of a Workload for a device by its peaks, and as estimated
IDEAL: dict[str, Any] = {"model_kind": "ideal"}
ESTIMATED: dict[str, Any] = {"model_kind": "auto"}


def _gpu(model: str, quantizer: str, **work: Any) -> float:
    """Tokens per second on one A100, or on two as a pipeline where Oaken 6.1 takes two; paged admission."""
    system = systems.System("", "a100-80gb", quantizer, "paged", "2xa100-80gb")
    name = system.device_for(catalog.model(model)).name.lower()
    return tokens_per_s(name, model, quantizer, admission="paged", **work)


#: 6.2, Figure 12(b): share of attention time that Oaken saves over FP16 on the same memory, as published
PUBLISHED_ATTENTION_SHORTER = 0.55


def _oaken(model: str, slower_attention: bool = False, **kind: Any) -> float:
    """Tokens per second of Oaken-LPDDR; with attention as long as Figure 12(b) has it instead of as estimated."""
    result = results_at("oaken-lpddr", model, "oaken", batch=BATCH, **(kind or ESTIMATED))
    if not slower_attention:
        return float(result["throughput_tokens_per_s"])
    times = (1 - PUBLISHED_ATTENTION_SHORTER) / (1 - _attention_saved())
    more_s = result["n_waves"] * result["output_tokens"] * result["attention_s"] * (times - 1)
    return float(BATCH * result["output_tokens"] / (result["total_s"] + more_s))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@family(
    {
        "oaken-tput-vs-vllm": (
            systems.MODELS,
            "fp16",
            "nobody publishes Oaken's kernels: it is taken to reach 0.89 of its bandwidth and 0.85 of its rates, the "
            "middle of what measured devices reach, the GPU as measured",
        ),
        "oaken-tput-vs-qserve": (
            tuple(name for name in systems.MODELS if name != "mixtral-8x7b-oaken"),
            "qserve",
            "QServe is taken to unpack 10.35 elements a cycle and core for each query head (fitted to its throughputs "
            "on an L40S) beside vLLM's share of the bandwidth, with FP16 weights, in vLLM's server: what its own loses "
            "is not modelled",
        ),
    }
)
def throughput_gain(models: tuple[str, ...], quantizer: str, note: str) -> Modeled:
    """Mean throughput of Oaken-LPDDR over a GPU system at batch 256."""
    gpu = [_gpu(model, quantizer, batch=BATCH, **SERVED) for model in models]
    kernels = [_gpu(model, quantizer, batch=BATCH, **CALIBRATED) for model in models]
    peak = [_gpu(model, quantizer, batch=BATCH) for model in models]
    ratios = [_oaken(model) / other for model, other in zip(models, gpu, strict=True)]
    without_server = _mean([_oaken(model) / other for model, other in zip(models, kernels, strict=True)])
    slower = _mean([_oaken(model, True) / other for model, other in zip(models, gpu, strict=True)])
    ideal = _mean([_oaken(model, **IDEAL) / other for model, other in zip(models, peak, strict=True)])
    above = _mean([_oaken(model, **IDEAL) / other for model, other in zip(models, gpu, strict=True)])
    by_model = ", ".join(f"{name} {ratio:.2f}" for name, ratio in zip(models, ratios, strict=True))
    return Modeled(
        _mean(ratios),
        f"{note}; {without_server:.2f} over its kernels without the server's own time, {above:.2f} with Oaken at its "
        f"peaks, {slower:.2f} with its attention as long as its Figure 12(b) has it, {ideal:.2f} with all at peak "
        f"rates; {by_model}",
    )


def _attention_saved() -> float:
    """Share of a token's attention time that Oaken-LPDDR saves over the LPU, mean over batches 16 to 256."""
    shares = []
    for batch in systems.BATCHES:
        oaken = results_at("oaken-lpddr", SHARES_MODEL, "oaken", batch=batch)
        lpu = results_at("lpu-lpddr", SHARES_MODEL, batch=batch)
        per_token = [result["attention_s"] / result["running_batch"] for result in (oaken, lpu)]
        shares.append(1 - per_token[0] / per_token[1])
    return _mean(shares)


@claim("oaken-attn-shorter")
def attention_shorter() -> Modeled:
    """Attention time of a token on Oaken-LPDDR against the LPU, mean over batches 16 to 256."""
    return Modeled(
        _attention_saved(),
        "attention is KV bytes over bandwidth here and shrinks as they do; the part of the real one that does not "
        "(softmax, scheduling, short reads) is published by nobody",
    )


def _step(name: str, batch: int) -> tuple[float, float, float]:
    """Seconds of a decode step that the engine or its writes are busy, that are exposed, and that the rest takes."""
    result = results_at("oaken-lpddr", SHARES_MODEL, "oaken", batch=batch)
    busy, exposed = result[f"{name}_busy_s"], result[f"{name}_s"]
    return busy, exposed, result["decode_step_s"] - exposed


def _write_s(plan: KvPlan, bandwidth_bytes_per_s: float) -> float:
    """Seconds a step that writing one new token of `SHARES_BATCH` sequences takes, rounded up to bursts."""
    bits = sum(g.n_stored_layers * g.written_bits for g in plan.groups if g.burst_row_bits)
    return SHARES_BATCH * bits / (units.BITS_PER_BYTE * plan.den) / bandwidth_bytes_per_s


@family({"oaken-quant-share": ("quantize", 0.0129), "oaken-dequant-share": ("dequantize", 0.0323)})
def engine_share(name: str, published: float) -> Modeled:
    """Share of a decode step's latency, without overlap, and what overlap leaves."""
    busy, exposed, rest = _step(name, SHARES_BATCH)
    _, alone, rest_alone = _step(name, 1)
    device, kv = catalog.device("oaken-lpddr"), build(SHARES_MODEL, "oaken")
    rate = device.rate("quantize" if name == "quantize" else "engine")
    paged = memory_unit.attach(device, kv, {"key": "engine", "value": "engine"})
    write_s = _write_s(paged, device.memory_bandwidth.si) if name == "quantize" else 0.0
    written = f", {write_s / (rest + busy):.2%} of it the bursts written" if write_s else ""
    low, high = (factor * rate.value for factor in rate.factors)
    return Modeled(
        busy / (rest + busy),
        f"the rate of the engines, {rate.value:g} T element/s on all cores ({low:g} to {high:g}), is the one that "
        f"gives this share{written}; overlap leaves {exposed / (rest + exposed):.2%}, and "
        f"{alone / (rest_alone + alone):.2%} for a batch of one, which has nothing to hide behind",
    )


#: what counts as hidden (assumed: the text gives no number)
HIDDEN = 0.01


@claim("oaken-engines-hidden")
def engines_hidden() -> Relation:
    """Share of a decode step that overlap leaves of quantizing and dequantizing, batches of Figures 11 and 12(b)."""
    left: dict[str, list[float]] = {}
    for device in ("oaken-lpddr", "oaken-hbm"):
        results = [results_at(device, SHARES_MODEL, "oaken", batch=batch) for batch in systems.BATCHES]
        left[device] = [(r["quantize_s"] + r["dequantize_s"]) / r["decode_step_s"] for r in results]
    alone = results_at("oaken-lpddr", SHARES_MODEL, "oaken", batch=1)
    return Relation(
        f"at most {max(left['oaken-lpddr']):.2%} of a step on Oaken-LPDDR, {max(left['oaken-hbm']):.2%} on Oaken-HBM "
        f"at batch {systems.BATCHES[0]} to {systems.BATCHES[-1]}, bursts written included; "
        f"{(alone['quantize_s'] + alone['dequantize_s']) / alone['decode_step_s']:.1%} of a batch of one",
        holds=max(max(shares) for shares in left.values()) < HIDDEN,
    )


@claim("oaken-f13-crossover")
def crossover_tokens() -> Modeled:
    """First total length on Figure 13's axis at which Oaken-LPDDR is faster than vLLM or QServe on the A100."""

    def faster_from(quantizer: str, **kind: Any) -> int | None:
        for n_tokens in TOTAL_TOKENS:
            half = n_tokens // 2
            work: dict[str, Any] = {"batch": FIGURE_13_BATCH, "input_tokens": half, "output_tokens": half}
            oaken = tokens_per_s("oaken-lpddr", "llama2-13b", "oaken", **work, **(ESTIMATED if kind else IDEAL))
            if oaken > _gpu("llama2-13b", quantizer, **work, **kind):
                return n_tokens
        return None

    calibrated = {name: faster_from(name, **SERVED) for name in ("fp16", "qserve")}
    ideal = {name: faster_from(name) for name in ("fp16", "qserve")}
    first = min((n for n in calibrated.values() if n), default=2 * TOTAL_TOKENS[-1])

    def shown(lengths: dict[str, int | None]) -> str:
        names = {"fp16": "vLLM", "qserve": "QServe"}
        return " and ".join(
            f"{names[name]} from {n:,}" if n else f"{names[name]} at no length up to {TOTAL_TOKENS[-1]:,}"
            for name, n in lengths.items()
        )

    return Modeled(
        float(first),
        f"Oaken-LPDDR as estimated passes the measured {shown(calibrated)} tokens; "
        f"with all at peak rates {shown(ideal)}; how much of them Oaken's own kernels reach is not published",
    )


#: Figure 11's other baselines on GPUs, as `systems` names them
_BASELINES = {"vLLM": "fp16", "KVQuant": "kvquant", "KIVI": "kivi:bits=4", "QServe": "qserve"}


def _designed(device: str, model: str, quantizer: str, **work: Any) -> float:
    """Tokens per second of a chip whose kernels nobody measured, as estimated."""
    return tokens_per_s(device, model, quantizer, **work, **ESTIMATED)


@claim("oaken-f11-hbm-first")
def hbm_over_baselines() -> Relation:
    """Oaken-HBM over each baseline of Figure 11, Llama2-7B, batches that all of its designs hold."""
    least: dict[str, float] = {}
    for batch in (16, 32, 64):
        hbm = _designed("oaken-hbm", "llama2-7b", "oaken", batch=batch)
        others = {name: _gpu("llama2-7b", q, batch=batch, **SERVED) for name, q in _BASELINES.items()}
        for name, device, quantizer in (
            ("Oaken-LPDDR", "oaken-lpddr", "oaken"),
            ("LPU-HBM", "lpu-hbm", "fp16"),
            ("Tender", "tender-a100", "tender"),
        ):
            others[name] = _designed(device, "llama2-7b", quantizer, batch=batch)
        least = {name: min(least.get(name, hbm / other), hbm / other) for name, other in others.items()}
    shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in least.items())
    rows = catalog.device("tender-a100").array_rows
    assert rows
    return Relation(
        f"Oaken-HBM over each, at least: {shown}. Tender stores 4.06 bits an element against 4.82 and is given 312 "
        f"TFLOP/s against 270; its arrays of {rows.count} rows (assumed) take one row a head in attention, which keeps "
        "it from using either",
        holds=min(least.values()) > 1,
        orders=least,
    )


def _of_figure_13(n_tokens: int) -> dict[str, float]:
    """Ratios of vLLM and QServe on the A100 over Oaken's two devices at a total length, Llama2-13B, batch 16."""
    work: dict[str, Any] = {"batch": FIGURE_13_BATCH, "input_tokens": n_tokens // 2, "output_tokens": n_tokens // 2}
    gpus = {name: _gpu("llama2-13b", _BASELINES[name], **work, **SERVED) for name in ("vLLM", "QServe")}
    chips = {name: _designed(name.lower(), "llama2-13b", "oaken", **work) for name in ("Oaken-HBM", "Oaken-LPDDR")}
    return {f"{gpu} over {chip}": gpus[gpu] / chips[chip] for chip in chips for gpu in gpus}


@claim("oaken-f13-gpus-first")
def gpus_below_8k() -> Relation:
    """vLLM and QServe on the A100 over Oaken's two devices at total lengths below 8K."""
    by_length = {n: _of_figure_13(n) for n in TOTAL_TOKENS if n < 8192}
    shown = [
        f"{n:,} tokens: {', '.join(f'{name} {ratio:.2f}' for name, ratio in ratios.items())}"
        for n, ratios in by_length.items()
    ]
    orders = {f"{name} at {n:,} tokens": ratio for n, ratios in by_length.items() for name, ratio in ratios.items()}
    return Relation(
        f"{'; '.join(shown)}. Memory decides here, which Oaken-HBM has as much of as the A100 and reads fewer bytes "
        "from; with more cores, of which 16 requests keep 16 busy, the order is nearer to the printed one: `dse ask "
        "doubt --claim oaken-f13-gpus-first`",
        holds=min(orders.values()) > 1,
        orders=orders,
    )


@claim("oaken-f11-f13-13b")
def figures_disagree() -> Relation:
    """The point that two figures share, Llama2-13B, batch 16, 1K in and out, at both ends of the number of cores."""
    cores = catalog.device("oaken-hbm").token_cores
    assert cores
    ends = [round(factor * cores.value) for factor in cores.factors]
    work: dict[str, Any] = {"batch": FIGURE_13_BATCH, "input_tokens": 1024, "output_tokens": 1024}
    gpus = [_gpu("llama2-13b", _BASELINES[name], **work, **SERVED) for name in ("vLLM", "QServe")]
    shown, most = [], 0
    for n in ends:
        hbm = _designed(f"oaken-hbm:token_cores={n} core", "llama2-13b", "oaken", **work)
        orders = {"Figure 11's order": max(gpus) < hbm, "Figure 13's order": min(gpus) > hbm}
        held = [name for name, holds in orders.items() if holds]
        most = max(most, len(held))
        shown.append(f"with {n} cores {gpus[0] / hbm:.2f} and {gpus[1] / hbm:.2f} of it: {' '.join(held) or 'neither'}")
    return Relation(f"{most} of both; vLLM and QServe over Oaken-HBM {'; '.join(shown)}", numbers=(most,))
