"""Experiments of the papers by hand: memory of NQKV's Table 4; areas of Oaken's Table 4."""

import csv
from pathlib import Path

import pytest

from dse import data
from dse.report import listing
from dse.specs import catalog
from dse.validate.claims.designs import results_at
from dse.validate.claims.nqkv import DEVICE, FRAMEWORK, NQKV, SMOOTHQUANT, W8A8, WHOLE_PROMPT


def test_memory_of_table_4_by_hand():
    work = {"batch": 64, "input_tokens": 512, "output_tokens": 338, **WHOLE_PROMPT, **W8A8, **FRAMEWORK}

    def n_bytes(quantizer, **more):
        return results_at(DEVICE, "opt-6.7b", quantizer, **work, **more)["min_capacity_bytes"]

    weights, tokens = 6_658_473_984, 64 * (512 + 338)
    logits = 58464 * 2  # 2 * 4096 + 50272 elements a token, FP16
    # INT8 keys and values: 2 * 32 * 4096 bytes a token, held twice, 14.3 GB each: more than the activations of prompts
    # of 512 tokens, which are gone by then
    int8 = weights + 2 * tokens * 2 * 32 * 4096
    assert 64 * 512 * logits < tokens * 2 * 32 * 4096
    assert n_bytes(SMOOTHQUANT) == int8
    # NQKV: 4 + 16 / 256 bits an element, and FP16 keys and values of one layer, 850 tokens padded to 864
    assert n_bytes(NQKV) == weights + 2 * tokens * 2 * 32 * 4096 * 65 // 128 + 64 * 864 * 2 * 4096 * 2
    # no cache: the activations of all 850 tokens
    assert n_bytes("fp16", kv_cache=False) == weights + tokens * logits


def test_oakens_areas_are_those_of_its_table():
    path = Path(data.__file__).parent / "published.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "Oaken" and row["table"] == "Table 4"]
    for metric, scale in (("area_mm2", 1.0), ("area_ratio_percent", 100 / 3.971)):
        printed = {row["method"].replace(" ", "_"): float(row["value"]) for row in rows if row["metric"] == metric}
        for name in ("oaken-hbm", "oaken-lpddr"):
            ours = {module: scale * area.si for module, area in catalog.device(name).core_area.items()}
            assert ours == pytest.approx(printed, abs=0.02)  # printed 6.03 % of 0.239 / 3.971 = 6.019 %
    assert any("1.86 % of the core" in row["source"] for row in listing.show("oaken-hbm"))
