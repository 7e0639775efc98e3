"""Figures that a paper draws without printing their numbers, as modelled here: SinkQ's Figure 3."""

from functools import cache

import pandas as pd

from dse.model.capacity import min_capacity_bytes
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.workload import Workload
from dse.validate.claims.designs import CALIBRATED, build, results_at
from dse.validate.claims.sinkq import DEVICE, FP16, INPUT_TOKENS, KIVI, MODEL, OUTPUT_TOKENS, SINKQ

#: methods of the figure (SinkQ 4.1 and 4.3) and how they are written here
METHODS = {"FP16": FP16, "KIVI": KIVI, "SinkQ G=32": "sinkq:bits=2,group=32,residual=32", "SinkQ G=128": SINKQ}
#: Figure 3c: batch 1, a prompt of one token, the output grows until memory is full
LENGTH_DEVICE = "a100-40gb"
#: what is drawn
ABOUT = (
    f"{MODEL}, {INPUT_TOKENS} tokens in, {OUTPUT_TOKENS} out; by length: one token in. KIVI with group and residual "
    "128, SinkQ with residual 32 and 3 sinks, all at 2 bits. Kernels as measured on the A100; launches of the methods' "
    "own are assumed. FP16 is Hugging Face's cache, which copies itself in every step."
)
#: lengths drawn of the method that holds the longest
N_LENGTHS = 12
#: claims whose published side is read off this figure or printed beside it
CLAIMS = (
    "sinkq-f3-small-batch",
    "sinkq-f3-g128-kivi",
    "sinkq-f3-memory-kivi",
    "sinkq-max-gain",
    "sinkq-ratio-g32",
    "sinkq-ratio-g128",
)


@cache
def sinkq_batches() -> pd.DataFrame:
    """Figures 3a and 3b: columns method, quantizer, batch, throughput_tokens_per_s, peak_memory_bytes, over_kivi.

    `over_kivi` is the throughput over KIVI's at the same batch, missing where KIVI does not hold it. Batches are powers
    of two up to the largest that a method holds at once, and that one.
    """
    rows = []
    for method, quantizer in METHODS.items():
        lengths = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
        largest = int(results_at(DEVICE, MODEL, quantizer, batch=1, **lengths)["max_batch"])
        for batch in sorted({*(2**k for k in range(largest.bit_length())), largest}):
            result = results_at(DEVICE, MODEL, quantizer, batch=batch, **lengths, **CALIBRATED)
            rows.append(
                (method, quantizer, batch, result["throughput_tokens_per_s"], float(result["min_capacity_bytes"]))
            )
    table = pd.DataFrame(rows, columns=["method", "quantizer", "batch", "throughput_tokens_per_s", "peak_memory_bytes"])
    kivi = table[table["method"] == "KIVI"].set_index("batch")["throughput_tokens_per_s"]
    return table.assign(over_kivi=table["throughput_tokens_per_s"] / table["batch"].map(kivi))


def small_groups_against_kivi() -> str:
    """The text's G = 32, where ours differs: throughput over that of KIVI, at every batch that both hold."""
    rate = sinkq_batches().pivot_table(index="batch", columns="method", values="throughput_tokens_per_s")
    ratio = (rate["SinkQ G=32"] / rate["KIVI"]).dropna()
    return (
        "The text also calls SinkQ at G = 32 slightly slower than KIVI; ours is "
        f"{ratio.min():.3f} to {ratio.max():.3f} of KIVI, whose released code packs and copies values in every step, "
        "while SinkQ is taken to do so once a group. What its packing takes is not published."
    )


def _memory(quantizer: str, n_tokens: int) -> Point:
    work = Workload(batch=1, input_tokens=1, output_tokens=n_tokens - 1, memory="paper")
    return Point(catalog.device(LENGTH_DEVICE), build(MODEL, quantizer), work)


@cache
def sinkq_lengths() -> pd.DataFrame:
    """Figure 3c: columns method, quantizer, n_tokens, peak_memory_bytes; up to the longest context that fits."""
    longest = {method: _memory(quantizer, 2).max_context_tokens or 0 for method, quantizer in METHODS.items()}
    top = max(longest.values())
    rows = []
    for method, quantizer in METHODS.items():
        lengths = sorted({2, longest[method], *(n for i in range(1, N_LENGTHS) if (n := i * top // N_LENGTHS) > 1)})
        for n in lengths:
            if n <= longest[method]:
                least = _memory(quantizer, n)
                rows.append((method, quantizer, n, float(min_capacity_bytes(least.design, least.made, 1))))
    return pd.DataFrame(rows, columns=["method", "quantizer", "n_tokens", "peak_memory_bytes"])
