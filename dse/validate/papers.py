"""Experiments of the papers run again in the model: NQKV Table 4 and Figures 8 and 9, Oaken Figure 3."""

from typing import Any, NamedTuple

import pandas as pd

from dse import quantizers
from dse.core import units
from dse.model import engine, kv_layout
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.workload import Workload
from dse.validate.claims.designs import KINDS, results_at
from dse.validate.claims.nqkv import (
    DEVICE,
    FIGURE_INPUT_TOKENS,
    FIGURE_MODEL,
    FRAMEWORK,
    NQKV,
    SMOOTHQUANT,
    W8A8,
    WHOLE_PROMPT,
)
from dse.validate.claims.published import NQKV_OUTPUT_TOKENS, NQKV_TABLE_4


class Setting(NamedTuple):
    """One of NQKV's systems: weights, activations and cache, and the key it has in `NQKV_TABLE_4`'s columns."""

    name: str
    quantizer: str
    fields: dict[str, Any]


FP16 = Setting("FP16", "fp16", {})
#: NQKV 4.3: SmoothQuant without KV cache, with an INT8 one of fixed scales, and NQKV on top of its weights
NO_CACHE = Setting("SmoothQuant, no cache", "fp16", {**W8A8, "kv_cache": False})
INT8_CACHE = Setting("SmoothQuant, KV8", SMOOTHQUANT, W8A8)
NQKV_CACHE = Setting("NQKV, KV4", NQKV, W8A8)
TABLE_4 = (NO_CACHE, INT8_CACHE, NQKV_CACHE)
FIGURE_BATCHES = tuple(2**power for power in range(3, 11))
#: the batch of Figure 9 is not stated: this one puts the limits near the 2,048 positions that OPT has
FIGURE_LENGTH_BATCH = 64
FIGURE_LENGTHS = tuple(2**power for power in range(7, 14))


def nqkv_table_4() -> pd.DataFrame:
    """A row per line of the table and system: throughput and peak memory, published and ours (ideal and calibrated).

    Columns: model, batch, input_tokens, system, published_tokens_per_s, ideal_tokens_per_s, calibrated_tokens_per_s,
    published_bytes, ours_bytes and, as ratios of NQKV's throughput over the system's, published_ratio, ideal_ratio and
    calibrated_ratio. Calibrated is Hugging Face's code, fitted to the throughputs of OPT-6.7B alone. Peak memory is
    its own: weights, workspace, and keys and values twice or activations of whole prompts. Published is missing where
    the paper ran out of memory.
    """
    rows = []
    for (model, batch, input_tokens), (speeds, memories) in NQKV_TABLE_4.items():
        work = {"batch": batch, "input_tokens": input_tokens, "output_tokens": NQKV_OUTPUT_TOKENS, **WHOLE_PROMPT}
        line_rows = []
        for setting, speed, memory in zip(TABLE_4, speeds, memories, strict=True):
            ideal, calibrated = (
                results_at(DEVICE, model, setting.quantizer, **fields, **work, **setting.fields)
                for fields in (KINDS["ideal"], FRAMEWORK)
            )
            line_rows.append(
                {
                    "model": model,
                    "batch": batch,
                    "input_tokens": input_tokens,
                    "system": setting.name,
                    "published_tokens_per_s": speed,
                    "ideal_tokens_per_s": ideal["throughput_tokens_per_s"],
                    "calibrated_tokens_per_s": calibrated["throughput_tokens_per_s"],
                    "published_bytes": None if memory is None else units.to_base(memory, "GB"),
                    "ours_bytes": calibrated["min_capacity_bytes"],
                }
            )
        for row in line_rows:
            for kind in ("published", "ideal", "calibrated"):
                other, last = row[f"{kind}_tokens_per_s"], line_rows[-1][f"{kind}_tokens_per_s"]
                row[f"{kind}_ratio"] = last / other if other and last else None  # type: ignore[operator]
        rows += line_rows
    return pd.DataFrame(rows)


def nqkv_memory(axis: str) -> pd.DataFrame:
    """Peak memory of OPT-6.7B on the A100 against "batch" (Figure 8) or "input_tokens" (Figure 9).

    Columns: system, batch, input_tokens, memory_bytes, capacity_bytes, fits. The whole prompt is run at once.
    """
    points = (
        [(batch, FIGURE_INPUT_TOKENS) for batch in FIGURE_BATCHES]
        if axis == "batch"
        else [(FIGURE_LENGTH_BATCH, n_tokens) for n_tokens in FIGURE_LENGTHS]
    )
    rows = []
    for setting in (FP16, INT8_CACHE, NQKV_CACHE):
        for batch, input_tokens in points:
            result = results_at(
                DEVICE,
                FIGURE_MODEL,
                setting.quantizer,
                batch=batch,
                input_tokens=input_tokens,
                output_tokens=NQKV_OUTPUT_TOKENS,
                **WHOLE_PROMPT,
                **setting.fields,
            )
            rows.append(
                {
                    "system": setting.name,
                    "batch": batch,
                    "input_tokens": input_tokens,
                    "memory_bytes": result["min_capacity_bytes"],
                    "capacity_bytes": result["capacity_bytes"],
                    "fits": result["fits_whole_batch"],
                }
            )
    return pd.DataFrame(rows)


#: Oaken 3.1, Figure 3
UTILISATION_MODEL, UTILISATION_TOKENS, UTILISATION_BATCHES = "llama2-13b", 1024, (1, 2, 4, 8, 16, 32)


def oaken_utilisation(model_kind: str = "calibrated") -> pd.DataFrame:
    """Shares of the A100's peaks that Llama2-13B uses, by batch, phase and operation ("all": the phase).

    Columns: batch, phase (prefill, decode), name, seconds, flops, n_bytes, compute_at_peak_s, read_at_peak_s,
    compute_utilisation, bandwidth_utilisation; FP16, 1K in and 1K out, batches that fit at once.
    """
    device, quantizer = catalog.device(DEVICE), quantizers.parse("fp16")
    kv = kv_layout.build(catalog.model(UTILISATION_MODEL), quantizer, quantizer)
    rows = []
    for batch in UTILISATION_BATCHES:
        work = Workload(
            batch=batch,
            input_tokens=UTILISATION_TOKENS,
            output_tokens=UTILISATION_TOKENS,
            memory="paper",
            **KINDS[model_kind],
        )
        result = engine.evaluate(Point(device, kv, work))
        if result["fits_whole_batch"]:
            rows += [{"batch": batch, **op} for op in Point(device, kv, work).operations()]
    return pd.DataFrame(rows)
