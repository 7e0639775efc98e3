"""Claims of the Oaken paper."""

from fractions import Fraction
from typing import Any

from dse.core import units
from dse.quantizers import TensorLayout
from dse.quantizers.methods.oaken import coo_entry_bits
from dse.questions import systems, traces
from dse.serving import steady_state
from dse.specs import catalog
from dse.specs.workload import Workload
from dse.validate.claims.core import Relation, claim, family, load
from dse.validate.claims.designs import SERVED, build, operations, results_at, sequence_bits, tokens_per_s
from dse.validate.claims.published import OAKEN_PERPLEXITY, OAKEN_ZERO_SHOT
from kernels_ref import FORMATS

_LLAMA2 = ("llama2-7b", "llama2-13b", "llama2-70b")
A100 = "a100-80gb"
_DEVICES = {"a100": A100, "oaken-hbm": "oaken-hbm", "oaken-lpddr": "oaken-lpddr"}


@family({f"oaken-t1-{name}-capacity": (device,) for name, device in _DEVICES.items()})
def capacity_gb(device: str) -> float:
    """A shipped device's memory in GB."""
    return catalog.device(device).memory_capacity.si / units.to_base(1, "GB")


@family({f"oaken-t1-{name}-bandwidth": (device,) for name, device in _DEVICES.items()})
def bandwidth_tb_per_s(device: str) -> float:
    """A shipped device's bandwidth in TB/s."""
    return catalog.device(device).memory_bandwidth.si / units.to_base(1, "TB/s")


@family({f"oaken-t1-{name}-peak-fp16": (device,) for name, device in _DEVICES.items()})
def peak_tflops(device: str) -> float:
    """A shipped device's dense FP16 peak in TFLOP/s."""
    return catalog.device(device).peak_flops.si / units.to_base(1, "TFLOP/s")


@family(
    {
        **{f"oaken-t2-bits-oaken-{model}": (model, "oaken") for model in _LLAMA2},
        **{f"oaken-t2-bits-kvquant-{model}": (model, "kvquant") for model in _LLAMA2},
        **{f"oaken-t2-bits-atom-{model}": (model, "atom") for model in _LLAMA2},
        "oaken-bits-kivi": ("llama2-7b", "kivi:bits=4"),
        "oaken-bits-qserve": ("llama2-7b", "qserve"),
    }
)
def effective_bits(model: str, quantizer: str) -> float:
    """Bits an element as the paper counts them, keys and values together."""
    return float(build(model, quantizer).effective_bits)


@family({f"oaken-t2-bits-tender-{model}": (model,) for model in _LLAMA2})
def tender_bits(model: str) -> Relation:
    """Per token, and with the centres and scales that Tender stores once a sequence, at 2048 tokens."""
    kv = build(model, "tender")
    n = 2048
    stored = float(sequence_bits(kv, n) / kv.elements(n))
    return Relation(f"{float(kv.effective_bits):.4f}; {stored:.4f} with what is stored once, at {n:,} tokens")


def _without_scales(layout: TensorLayout) -> Fraction:
    """Payload and outliers an element: what Oaken's Table 3 counts."""
    return Fraction(layout.packed["payload"] + layout.packed["outliers"]) / layout.shape.n_elements


_TABLE_3 = {
    f"oaken-t3-bits-{groups.replace('/', '_')}-o{bits}": (groups, bits)
    for groups, bits in (
        ("4/90/6", 5),
        ("90/10", 5),
        ("10/90", 5),
        ("4/90/3/3", 5),
        ("2/2/90/6", 5),
        ("2/2/90/3/3", 5),
        ("4/90/3/3", 4),
        ("2/2/90/6", 4),
        ("2/2/90/3/3", 4),
    )
}


@family(_TABLE_3)
def table_3_bits(groups: str, outlier_bits: int) -> float:
    """Bits an element without scales for the given groups and bits of an outlier."""
    kv = build("llama2-7b", f"oaken:groups={groups},outlier_bits={outlier_bits}")
    return float(_without_scales(kv.groups[0].layout))


@claim("oaken-bitwidth-reduction")
def bitwidth_reduction() -> float:
    """Share of FP16 bits that 4/90/6 saves, without scales."""
    return float(1 - _without_scales(build("llama2-7b", "oaken").groups[0].layout) / units.FP16_BITS)


@claim("oaken-outlier-entry-fused")
def fused_entry_bits() -> int:
    """One sparse entry of the three-group layout with 5-bit outliers."""
    return coo_entry_bits(3, 5)


@claim("oaken-outlier-entry-mixed")
def mixed_entry_bits() -> int:
    """Index and group bits beside a whole FP16 value, which holds the sign."""
    sign = 1
    return FORMATS["fp16"].bits + coo_entry_bits(3, 5) - sign


@claim("oaken-power")
def power_saving() -> float:
    """Oaken's published power below the A100's, as a share of the A100's."""
    accelerator, gpu = (catalog.device(name).board_power for name in ("oaken-lpddr", "a100-80gb"))
    assert accelerator is not None
    assert gpu is not None
    return 1 - accelerator.si / gpu.si


@claim("oaken-area")
def engine_area() -> float:
    """Both engines over the compute core, from the areas of Table 4."""
    areas = catalog.device("oaken-hbm").core_area
    return (areas["quantization_engine"].si + areas["dequantization_engine"].si) / areas["compute_core"].si


def _area_mm2(unit: str) -> float:
    """The area of a unit of a core, from Table 4."""
    return catalog.device("oaken-hbm").core_area[unit].si / units.to_base(1, "mm2")


@claim("oaken-t4-mpu-share")
def mpu_share_percent() -> float:
    """The matrix unit's area over the compute core's, in percent."""
    return 100 * _area_mm2("matrix_processing_unit") / _area_mm2("compute_core")


@claim("oaken-t4-vpu-share")
def vpu_share_percent() -> Relation:
    """The vector unit's area over the compute core's, in percent, over all areas that print as the two do."""
    unit, core, half = _area_mm2("vector_processing_unit"), _area_mm2("compute_core"), 0.0005
    low, high = (100 * (unit + side * half) / (core - side * half) for side in (-1, 1))
    return Relation(
        f"{low:.2f} to {high:.2f}, as the printed areas are rounded",
        holds=low <= float(load()["oaken-t4-vpu-share"].published) <= high,
    )


@claim("oaken-profiling-runs")
def profiling_runs() -> Relation:
    """Thresholds by the number of runs need the models themselves."""
    return Relation(
        "not computed here; of SmolLM2-135M `dse study` has it (docs/explanation/language_model.md, Oaken 4.2)"
    )


@family({"oaken-hbm-no-mixtral": ("mixtral-8x7b-oaken",), "oaken-hbm-no-llama70": ("llama2-70b",)})
def weights_fit_hbm(model: str) -> bool:
    """FP16 weights leave something of the memory."""
    fits: bool = results_at("oaken-hbm", model, "oaken")["free_bytes"] >= 0
    return fits


@family(
    {
        "oaken-f13-lpddr-32k": ("oaken-lpddr", "oaken", 32 * 1024),
        "oaken-f13-hbm-32k": ("oaken-hbm", "oaken", 16 * 1024 + 1),
        "oaken-f13-qserve-32k": ("a100-80gb", "qserve", 16 * 1024 + 1),
    }
)
def batch_of_16_fits(device: str, quantizer: str, n_tokens: int) -> bool:
    """Llama2-13B, batch 16, half of the tokens in and half out."""
    input_tokens = n_tokens // 2
    result = results_at(
        device, "llama2-13b", quantizer, batch=16, input_tokens=input_tokens, output_tokens=n_tokens - input_tokens
    )
    fits: bool = result["fits_whole_batch"]
    return fits


@claim("oaken-f4-small-hbm-wins")
def hbm_at_small_batch() -> Relation:
    """LPU, Llama2-13B, 1K in and out, FP16, wherever both memories hold the whole batch."""
    ratios = {}
    for batch in (1, 2, 4, 8, 16, 32):
        hbm, lpddr = (results_at(device, "llama2-13b", batch=batch) for device in ("lpu-hbm", "lpu-lpddr"))
        if hbm["fits_whole_batch"] and lpddr["fits_whole_batch"]:
            ratios[batch] = hbm["throughput_tokens_per_s"] / lpddr["throughput_tokens_per_s"]
    return Relation(
        f"HBM faster: {min(ratios.values()):.2f} to {max(ratios.values()):.2f} times at batch 1 to {max(ratios)}",
        holds=min(ratios.values()) > 1,
    )


@claim("oaken-f4-large-lpddr-wins")
def lpddr_at_large_batch() -> Relation:
    """LPU, OPT-30B, 1K in and out, FP16."""
    ratios = [
        tokens_per_s("lpu-lpddr", "opt-30b", batch=batch) / tokens_per_s("lpu-hbm", "opt-30b", batch=batch)
        for batch in (64, 128, 256)
    ]
    return Relation(
        f"LPDDR faster: {min(ratios):.2f} to {max(ratios):.2f} times at batch 64 to 256", holds=min(ratios) > 1
    )


@claim("oaken-f5-weight-only")
def weights_against_kv() -> Relation:
    """Llama2-13B on A100, 1K in and out, batch 64 and 256, KV by QServe's kernels: model, device, batch and kernels of
    Figure 5 are not stated."""
    weights, kv = [], []
    for batch in (64, 256):
        base = tokens_per_s("a100-80gb", "llama2-13b", batch=batch, **SERVED)
        weights.append(tokens_per_s("a100-80gb", "llama2-13b", batch=batch, weights_bits=4, **SERVED) / base)
        kv.append(tokens_per_s("a100-80gb", "llama2-13b", "qserve", batch=batch, **SERVED) / base)
    return Relation(
        f"KV larger: {kv[0]:.2f} and {kv[1]:.2f} against {weights[0]:.2f} and {weights[1]:.2f} at batch 64 and 256",
        holds=all(a > b for a, b in zip(kv, weights, strict=True)),
    )


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


@claim("oaken-acc-vs-original")
def accuracy_loss() -> Relation:
    """Means over Table 2: FP16 less Oaken in accuracy points, relative rise in perplexity."""
    points = _mean(OAKEN_ZERO_SHOT["FP16"]) - _mean(OAKEN_ZERO_SHOT["Oaken"])
    rises = tuple(b / a - 1 for a, b in zip(OAKEN_PERPLEXITY["FP16"], OAKEN_PERPLEXITY["Oaken"], strict=True))
    percent = 100 * _mean(rises)
    return Relation(
        f"{points:.2f} points of zero-shot accuracy; {percent:.2f} percent of perplexity", numbers=(points, percent)
    )


@claim("oaken-acc-vs-methods")
def accuracy_differences() -> Relation:
    """Means over the zero-shot columns of Table 2, Oaken less the other methods."""
    differences = tuple(
        _mean(OAKEN_ZERO_SHOT["Oaken"]) - _mean(OAKEN_ZERO_SHOT[name]) for name in ("KVQuant", "KIVI", "QServe")
    )
    oaken, kivi = OAKEN_ZERO_SHOT["Oaken"], OAKEN_ZERO_SHOT["KIVI"]
    repeated = 2  # KIVI's PIQA of Llama2-70B prints that of 7B again, and less than that of 13B
    without = _mean(oaken[:repeated] + oaken[repeated + 1 :]) - _mean(kivi[:repeated] + kivi[repeated + 1 :])
    return Relation(
        f"{', '.join(f'{value:+.2f}' for value in differences)}; {without:+.2f} over KIVI without its PIQA of "
        f"Llama2-70B, {kivi[repeated]}, which repeats the cell of 7B: suspect",
        numbers=differences,
    )


#: what counts as high and low utilisation here (assumed: the text to Figure 3 gives no numbers)
HIGH_UTILISATION, LOW_UTILISATION = 0.75, 0.25


@claim("oaken-f3-utilisation")
def utilisation() -> Relation:
    """Llama2-13B on A100, FP16, 1K of context: operations over time and peak rate, ideal and calibrated."""
    prefill, generation, attention, fitted = [], [], [], []
    for batch in (1, 4, 16, 32):
        work: dict[str, Any] = {"batch": batch, "input_tokens": 1024, "output_tokens": 1}
        result = results_at(A100, "llama2-13b", **work)
        prefill.append(result["prefill_compute_utilisation"])
        generation.append(result["compute_utilisation"])
        ops = operations(A100, "llama2-13b", **work)
        attention.append(ops["decode", "attention"]["compute_utilisation"])
        measured = operations("a100-80gb", "llama2-13b", **work, **SERVED)
        fitted.append(measured["decode", "attention"]["compute_utilisation"])
    return Relation(
        f"prefill {min(prefill):.0%}, generation {generation[0]:.1%} to {generation[-1]:.1%} at batch 1 to 32, its "
        f"attention {attention[0]:.2%} at any batch; with kernels as measured {min(fitted):.2%} to {max(fitted):.2%}",
        holds=min(prefill) > HIGH_UTILISATION
        and max(generation) < LOW_UTILISATION
        and max(attention) < min(generation) * 1.01
        and max(attention) - min(attention) < 1e-9
        and max(fitted) <= max(attention),
    )


#: full-precision baselines of Figure 14: the memory and compute that Oaken-LPDDR extends, and vLLM on the A100
LPU, VLLM = "LPU-LPDDR FP16", "A100 FP16 (vLLM)"


def _gains(model: str, trace: traces.NamedTrace, baseline: str = LPU) -> list[float]:
    """Oaken-LPDDR over a baseline in FP16 on a trace, at the batches of Figure 14; vLLM as served, chips at their
    peaks beside one another and as estimated beside vLLM."""
    by_label = {system.label: system for system in systems.DEFAULT}

    def tokens_per_s(label: str, quantizer: str, batch: int) -> float:
        work = Workload(
            batch=batch, admission=by_label[label].admission, model_kind="ideal" if baseline == LPU else "auto"
        )
        row = traces.evaluate(by_label[label], build(model, quantizer), trace, work)
        return float(row["throughput_tokens_per_s"])

    return [
        tokens_per_s("Oaken-LPDDR", "oaken", batch) / tokens_per_s(baseline, "fp16", batch)
        for batch in traces.FIGURE_BATCHES
    ]


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


@claim("oaken-f14-burst")
def gain_with_long_outputs() -> Relation:
    """Gain of Oaken-LPDDR over the LPU for long and for short outputs, Llama2-13B."""
    conversation, _, longer = traces.traces()
    short, long = _gains("llama2-13b", conversation), _gains("llama2-13b", longer)
    return Relation(
        f"Llama2-13B over LPU-LPDDR in steady state at batch 16 to 128: {_listed(long)} for answers "
        f"{traces.LONGER_ANSWERS} times as long (assumed; BurstGPT itself needs its file), {_listed(short)} "
        f"for the {conversation.moments.mean_output_tokens:.0f} tokens of Azure's Conversation",
        holds=all(a > b for a, b in zip(long, short, strict=True)),
    )


#: what counts as "little or none" (assumed: the text to Figure 14 gives no number)
LITTLE_GAIN = 1.05


@claim("oaken-f14-mixtral")
def gain_on_mixtral() -> Relation:
    """Gain of Oaken-LPDDR over the full-precision baselines on Mixtral-8x7B, little at the smallest batch."""
    conversation, _, longer = traces.traces()
    gains = {
        (baseline, trace.name): _gains("mixtral-8x7b-oaken", trace, baseline)
        for baseline in (VLLM, LPU)
        for trace in (conversation, longer)
    }
    shown = "; ".join(f"over {baseline} on {trace} {_listed(values)}" for (baseline, trace), values in gains.items())
    return Relation(
        f"at batch 16 to 128 {shown}: it grows with the batch, and over vLLM not with longer answers",
        holds=all(values[0] < LITTLE_GAIN and values[-1] > values[0] for values in gains.values()),
    )


@claim("oaken-f14-tender-padding")
def tender_padding() -> Relation:
    """Tender on the Conversation trace with prompts padded to the longest of a batch, over prompts as long as they are;
    Llama2-13B, the batches of Figure 14."""
    conversation = traces.traces()[0]
    tender = {system.label: system for system in systems.DEFAULT}["Tender"]
    kv, ratios = build("llama2-13b", "tender"), []
    for batch in traces.FIGURE_BATCHES:
        work = Workload(batch=batch, admission="reserve")
        row = traces.evaluate(tender, kv, conversation, work)
        bare = steady_state.steady(tender.device_for(kv.model), kv, work, conversation.moments)
        ratios.append(row["throughput_tokens_per_s"] / bare["throughput_tokens_per_s"])
    return Relation(f"{_listed(ratios)} at batch 16 to 128 of Azure's Conversation", holds=max(ratios) < 1)
