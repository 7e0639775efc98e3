"""Summary of the report: the best system of each model, against FP16 on the first GPU."""

from dataclasses import dataclass

import pandas as pd

from dse import quantizers
from dse.model import uncertainty
from dse.questions.systems import ReportRequest, System
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec
from dse.validate.claims.core import load

#: means of Oaken-LPDDR's throughput over GPU systems that Oaken 6.2 prints beside its Figure 11, by claim
FIGURE_11_CLAIMS = {"A100 FP16 (vLLM)": "oaken-tput-vs-vllm", "A100 QServe": "oaken-tput-vs-qserve"}
#: the batch of these means, and models that a system does not run
FIGURE_11_BATCH, FIGURE_11_LACKS = 256, {"A100 QServe": ("mixtral-8x7b-oaken",)}


@dataclass(frozen=True)
class SummaryRow:
    """A line of the summary, as text."""

    model: str
    system: str
    device: str
    bits: str
    throughput: str
    speedup: str
    bound: str
    remark: str


def baseline(request: ReportRequest) -> System | None:
    """Baseline of the speedups: FP16 on an A100, else the first FP16 system; None where FP16 was not asked for."""
    plain = [s for s in request.systems if quantizers.parse(s.quantizer).name == "fp16"]
    a100 = [s for s in plain if s.device.strip().lower() == "a100-80gb"]
    return next(iter(a100 or plain), None)


def answers(request: ReportRequest, results: pd.DataFrame) -> list[SummaryRow]:
    """The best system of every model at the largest batch."""
    base = baseline(request)
    largest = results[results["batch"] == max(request.batches)]
    rows = []
    for model in request.models:
        fitting = largest[(largest["model"] == model.name) & largest["feasible"]]
        running = fitting[fitting["runs"]] if "runs" in fitting else fitting
        if running.empty:
            rows.append(
                SummaryRow(
                    model.name,
                    system="none fits" if fitting.empty else "none runs",
                    device="-",
                    bits="-",
                    throughput="-",
                    speedup="-",
                    bound="-",
                    remark="out of memory on every system" if fitting.empty else "run by no device's own software",
                )
            )
            continue
        best = running.loc[running["throughput_tokens_per_s"].idxmax()]
        reference = fitting[fitting["system"] == (base.label if base else "")]["throughput_tokens_per_s"]
        rate = best["throughput_tokens_per_s"]
        speedup = "it does not fit" if base else "-"
        if len(reference):
            gain = uncertainty.gain(best, fitting.loc[reference.index[0]])
            speedup = f"{gain.ratio:.2f}x ({gain.low:.2f} to {gain.high:.2f})"
        n_running, batch = int(best["running_batch"]), int(best["batch"])
        remark = "whole batch at once" if n_running >= batch else f"{n_running:,} of {batch:,} at once"
        lowest, highest = uncertainty.ends(best)
        rivals = [
            str(row["system"])
            for _, row in running.iterrows()
            if row["system"] != best["system"] and uncertainty.ends(row)[1] > lowest
        ]
        if rivals:
            remark += f"; intervals overlap: {', '.join(rivals)}"
        whole = running[running["fits_whole_batch"]]
        if n_running < batch and not whole.empty:
            first = whole.loc[whole["throughput_tokens_per_s"].idxmax()]
            remark += f"; whole batch: {first['system']}, {first['throughput_tokens_per_s']:,.0f} tok/s"
        bits = f"{best['effective_bits']:.3g}"
        rows.append(
            SummaryRow(
                model.name,
                system=str(best["system"]),
                device=str(best["device"]),
                bits=bits,
                throughput=f"{rate:,.0f} ({lowest:,.0f} to {highest:,.0f})",
                speedup=speedup,
                bound=str(best["bound"]),
                remark=remark,
            )
        )
    return rows


def beside_figure_11(results: pd.DataFrame) -> list[str]:
    """Sentences below Oaken's Figure 11: its two means beside ours, model by model, and where another system is first.

    Empty where the results are not those of the paper: another batch or length.
    """
    at = results[(results["batch"] == FIGURE_11_BATCH) & results["feasible"]]
    speeds = at.pivot_table(index="model", columns="system", values="throughput_tokens_per_s", sort=False)
    lengths = set(zip(results["input_tokens"], results["output_tokens"], strict=True))
    if lengths != {(1024, 1024)} or not {"Oaken-LPDDR", *FIGURE_11_CLAIMS} <= set(speeds.columns):
        return []
    sentences = []
    for system, claim in FIGURE_11_CLAIMS.items():
        ratios = (speeds["Oaken-LPDDR"] / speeds[system]).drop(list(FIGURE_11_LACKS.get(system, ())), errors="ignore")
        by_model = ", ".join(f"{model} {ratio:.2f}" for model, ratio in ratios.items())
        sentences.append(
            f"Oaken-LPDDR over {system} at batch {FIGURE_11_BATCH}: {by_model}; mean {ratios.mean():.2f}, printed "
            f"{load()[claim].published}."
        )
    firsts = speeds.idxmax(axis=1)
    others = [f"{system} of {', '.join(firsts.index[firsts == system])}" for system in dict.fromkeys(firsts)]
    sentences.append(
        f"First at batch {FIGURE_11_BATCH} here: {'; '.join(others)}. In the paper Tender and the GPUs do not scale to "
        "large batches and Oaken-LPDDR does; QServe is given vLLM's server here."
    )
    return sentences


def devices(request: ReportRequest) -> list[HardwareSpec]:
    """Every device that runs a model of the request, once."""
    by_name: dict[str, HardwareSpec] = {}
    for system in request.systems:
        specs = [system.device_for(model) for model in request.models] or [catalog.device(system.device)]
        by_name.update({spec.name: spec for spec in specs})
    return list(by_name.values())
