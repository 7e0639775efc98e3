"""The papers' accuracy tables (dse/data/published.csv) beside the bits that this tool computes for each method."""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pandas as pd

from dse import data, quantizers
from dse.core.errors import InputError
from dse.model import kv_layout
from dse.specs import catalog

COLUMNS = ("source", "table", "model", "method", "config", "task", "metric", "value")
#: what a table prints where it has no number: empty (a dash), not a number, out of memory
NO_NUMBER = ("", "nan", "oom")
#: models that the papers tuned or renamed -> the shipped model of the same shape
SAME_SHAPE = {
    "llama2-7b-chat": "llama2-7b",
    "llama2-13b-chat": "llama2-13b",
    "llama2-70b-chat": "llama2-70b",
    "llama3-8b-instruct": "llama3-8b",
    "mistral-7b-instruct-v0.2": "mistral-7b",
}
_SINKQ = re.compile(r"2 bit, G=(\d+), R=(\d+), sink_num=(\d+)")
_OAKEN = re.compile(r"groups ([0-9/]+), ([45])-bit outliers")


class AccuracyView(NamedTuple):
    """A set of published values that one figure shows: each is the mean over the tasks of its table."""

    name: str
    title: str
    axis: str
    unit: str
    wanted: Callable[[dict[str, str]], bool]
    note: str


def _is(source: str, metric: str, *tables: str) -> Callable[[dict[str, str]], bool]:
    def wanted(row: dict[str, str]) -> bool:
        return row["source"] == source and row["metric"] == metric and row["table"] in tables

    return wanted


VIEWS = (
    AccuracyView(
        name="perplexity",
        title="Perplexity on WikiText-2 against effective bits (Oaken, Tables 2 and 3)",
        axis="perplexity",
        unit="1",
        wanted=_is("Oaken", "perplexity", "Table 2", "Table 3"),
        note="Lower is better.",
    ),
    AccuracyView(
        name="zero-shot-oaken",
        title="Zero-shot accuracy against effective bits (Oaken, Table 2)",
        axis="accuracy",
        unit="%",
        wanted=_is("Oaken", "accuracy_percent", "Table 2"),
        note="Mean of PIQA, WinoGrande and HellaSwag.",
    ),
    AccuracyView(
        name="zero-shot-nqkv",
        title="Zero-shot accuracy against effective bits (NQKV, Table 3)",
        axis="accuracy",
        unit="%",
        wanted=_is("NQKV", "accuracy_percent", "Table 3"),
        note="Mean of seven tasks. SmoothQuant has INT8 weights too.",
    ),
    AccuracyView(
        name="zero-shot-nqkv-alone",
        title="Zero-shot accuracy against effective bits (NQKV, Table 2)",
        axis="accuracy",
        unit="%",
        wanted=_is("NQKV", "accuracy_percent", "Table 2"),
        note="Mean of six tasks; FP16 weights.",
    ),
    AccuracyView(
        name="generation-sinkq",
        title="Generation tasks against effective bits (SinkQ, Table 1)",
        axis="accuracy",
        unit="%",
        wanted=_is("SinkQ", "accuracy_percent", "Table 1"),
        note="Mean of GSM8K (3), BBH (3) and HumanEval (2).",
    ),
    AccuracyView(
        name="longbench-sinkq",
        title="LongBench score against effective bits (SinkQ, Table 2)",
        axis="score",
        unit="%",
        wanted=_is("SinkQ", "score", "Table 2"),
        note="Mean of eight tasks, each with its own score of 0 to 100.",
    ),
)


@cache
def published() -> tuple[dict[str, str], ...]:
    """Every row of dse/data/published.csv as printed; `value` is a number or one of NO_NUMBER."""
    return data.rows("published.csv")


def quantizer_of(source: str, method: str, config: str) -> str | None:
    """The quantizer that a row was measured with, as this tool names it; None where it has none."""
    if sinkq := _SINKQ.fullmatch(config):
        group, residual, sinks = sinkq.groups()
        return f"sinkq:bits=2,group={group},residual={residual},sinks={sinks}"
    if oaken := _OAKEN.fullmatch(config):
        return f"oaken:groups={oaken[1]},outlier_bits={oaken[2]}"
    known = {
        "FP16": "fp16",
        "KVQuant": "kvquant",
        "Tender": "tender",
        "Atom": "atom",
        "QServe": "qserve",
        "Oaken": "oaken",
        "NQKV": "nqkv:block=256",
        "SmoothQuant": "int8:granularity=tensor",
        "SmoothQuant+NQKV": "nqkv:block=256",
        "KIVI": "kivi:bits=4" if source == "Oaken" else "kivi:bits=2,group=128,residual=128",
        "SinkQ": "sinkq:bits=2,group=128,residual=32",
    }
    return known.get(method)


@cache
def effective_bits(model: str, quantizer: str) -> float | None:
    """Bits an element as the method's paper counts them, on the shape of `model`; None where that is unknown."""
    try:
        spec = catalog.model(SAME_SHAPE.get(model, model))
    except InputError:
        return None
    side = quantizers.parse(quantizer)
    return float(kv_layout.build(spec, side, side).effective_bits)


def table(view: AccuracyView) -> pd.DataFrame:
    """Mean value and effective bits for every model and method of a view: one row a point of its figure."""
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for row in published():
        if view.wanted(row) and row["value"] not in NO_NUMBER:
            key = (row["source"], row["model"], row["method"], row["config"])
            values.setdefault(key, []).append(float(row["value"]))
    rows = []
    for (source, model, method, config), scores in values.items():
        quantizer = quantizer_of(source, method, config)
        bits = effective_bits(model, quantizer) if quantizer else None
        if bits is not None:
            rows.append(
                {
                    "source": source,
                    "model": model,
                    "method": method,
                    "config": config,
                    "quantizer": quantizer,
                    "effective_bits": bits,
                    "value": sum(scores) / len(scores),
                    "n_tasks": len(scores),
                }
            )
    return pd.DataFrame(rows)
