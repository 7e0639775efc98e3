"""Claims of the NQKV paper."""

import statistics
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from dse.core import units
from dse.model.formulas import kv_cache, weights
from dse.specs import catalog
from dse.specs.workload import MAX_INPUT_TOKENS
from dse.validate.claims.core import Modeled, Relation, claim, family
from dse.validate.claims.designs import build, results_at, sequence_bits
from dse.validate.claims.published import NQKV_OPT_30B, NQKV_OUTPUT_TOKENS, NQKV_TABLE_4

#: 4.1: block size 256; the cache of SmoothQuant is INT8 with fixed scales
NQKV, SMOOTHQUANT = "nqkv:block=256", "int8:granularity=tensor"
#: weights and activations of both are INT8
W8A8: dict[str, Any] = {"weights_bits": 8, "activation_bits": 8}
#: their PyTorch code runs a prompt at once, logits included
WHOLE_PROMPT: dict[str, Any] = {"prompt_chunk_tokens": MAX_INPUT_TOKENS}
DEVICE = "a100-80gb"
#: Hugging Face's code, on which NQKV was built (4.1)
FRAMEWORK: dict[str, Any] = {"model_kind": "calibrated", "stack": "transformers"}
#: models of Table 4: to whose throughputs the framework was fitted, and by whose it is judged
FITTED_MODEL, JUDGED_MODEL = "opt-6.7b", "opt-30b"
#: the columns of Table 4: SmoothQuant without and with its cache, NQKV
SYSTEMS: tuple[tuple[str, dict[str, Any]], ...] = (("fp16", {"kv_cache": False}), (SMOOTHQUANT, {}), (NQKV, {}))


def _kv_175b_bytes() -> float:
    """OPT-175B, batch 64, 8192 tokens, FP16."""
    return 64 * float(sequence_bits(build("opt-175b"), 8192)) / units.BITS_PER_BYTE


def _weights_175b_bytes() -> int:
    """175e9 parameters, as published."""
    published = catalog.model("opt-175b").published_parameters
    assert published is not None
    return weights.weight_bytes(published, units.FP16_BITS)


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
    tile_tokens = catalog.implementations_of("nqkv")["nqkv-copies"].starts.tile_tokens
    padded = {n + kv_cache.padding_tokens(n, tile_tokens) for n in range(1, 10 * tile_tokens)}
    return max(step for step in range(1, min(padded) + 1) if all(n % step == 0 for n in padded))


class _Cell(NamedTuple):
    """One of Table 4: printed throughput and memory (GB), None where it ran out, and ours in the framework."""

    model: str
    tokens_per_s: float | None
    memory_gb: float | None
    result: dict[str, Any]

    @property
    def over(self) -> float | None:
        """Our throughput over the printed one."""
        return self.result["throughput_tokens_per_s"] / self.tokens_per_s if self.tokens_per_s else None


@cache
def _table_4() -> tuple[tuple[_Cell, ...], ...]:
    """The 12 rows of Table 4, three systems each, as `SYSTEMS` has them."""
    table = []
    for (model, batch, input_tokens), (speeds, memories) in NQKV_TABLE_4.items():
        row = []
        for (quantizer, setting), speed, memory in zip(SYSTEMS, speeds, memories, strict=True):
            work = {"batch": batch, "input_tokens": input_tokens, "output_tokens": NQKV_OUTPUT_TOKENS}
            result = results_at(DEVICE, model, quantizer, **work, **W8A8, **FRAMEWORK, **setting)
            row.append(_Cell(model, speed, memory, result))
        table.append(tuple(row))
    return tuple(table)


def _halves(pairs: list[tuple[str, float]]) -> str:
    """Mean errors of both halves of the table, from ours over printed by model."""
    percent = {
        model: 100 * statistics.fmean(abs(over - 1) for name, over in pairs if name == model)
        for model in (FITTED_MODEL, JUDGED_MODEL)
    }
    return (
        f"mean error {percent[FITTED_MODEL]:.1f} % on OPT-6.7B, to whose throughputs the framework was fitted, "
        f"{percent[JUDGED_MODEL]:.1f} % on OPT-30B, which alone is judged"
    )


def _gains(system: int, other: int) -> list[tuple[str, float, float]]:
    """Model, our gain of one of `SYSTEMS` over another, and the printed one, of the rows that print both."""
    gains = []
    for row in _table_4():
        measured, base = row[system], row[other]
        if measured.tokens_per_s and base.tokens_per_s:
            ours = measured.result["throughput_tokens_per_s"] / base.result["throughput_tokens_per_s"]
            gains.append((measured.model, ours, measured.tokens_per_s / base.tokens_per_s))
    return gains


def _judged_gain(gains: list[tuple[str, float, float]], shown: Callable[..., float]) -> Modeled:
    """Gains of OPT-30B, of which `shown` picks the one to show, beside the printed ones of all rows."""
    judged = tuple(ours for model, ours, _ in gains if model == JUDGED_MODEL)
    rows = ", ".join(f"{ours:.2f} ({printed:.2f})" for _, ours, printed in gains)
    halves = _halves([(model, ours / printed) for model, ours, printed in gains])
    return Modeled(shown(judged), each=judged, note=f"ours (printed), in the order of the table: {rows}; {halves}")


@claim("nqkv-t4-slower")
def slower_than_smoothquant() -> Modeled:
    """NQKV over SmoothQuant with KV cache, where the paper could run both."""
    return _judged_gain(_gains(2, 1), min)


@claim("nqkv-t4-cache-gain")
def cache_gain() -> Modeled:
    """NQKV with its cache over SmoothQuant that runs the prefix in every step, 12 rows."""
    return _judged_gain(_gains(2, 0), max)


def _spread(over: list[float]) -> tuple[float, float, float]:
    """Least, median and most."""
    return min(over), sorted(over)[len(over) // 2], max(over)


@claim("nqkv-t4-speeds")
def speeds_of_table_4() -> Modeled:
    """Ours over printed, of the 17 throughputs of OPT-30B; the median is shown."""
    by_system = list(zip(*_table_4(), strict=True))
    over = [cell.over for column in by_system for cell in column if cell.over and cell.model == JUDGED_MODEL]
    least, median, most = _spread(over)
    said = [
        f"{name}: {_halves([(cell.model, cell.over) for cell in column if cell.over])}"
        for name, column in zip(("without a cache", "INT8", "NQKV"), by_system, strict=True)
    ]
    return Modeled(
        median, each=tuple(over), note=f"{least:.2f} to {most:.2f} times the printed {len(over)}; {'; '.join(said)}"
    )


@claim("nqkv-t4-memories")
def memories_of_table_4() -> Modeled:
    """Ours over printed, of the 35 peaks of memory; the median is shown."""
    gb, gib = units.to_base(1, "GB"), units.to_base(1, "GiB")
    columns: list[list[float]] = [
        [cell.result["min_capacity_bytes"] / (cell.memory_gb * gb) for cell in column if cell.memory_gb]
        for column in zip(*_table_4(), strict=True)
    ]
    without, cached = columns[0], columns[1] + columns[2]
    off = [100 * statistics.fmean(abs(ratio * gb / unit - 1) for ratio in cached) for unit in (gb, gib)]
    return Modeled(
        _spread(without + cached)[1],
        each=(*without, *cached),
        note=f"with a cache {min(cached):.2f} to {max(cached):.2f} times the printed {len(cached)}: weights, and keys "
        "and values twice, as tuples hold the past ones until the last layer has joined them to the new; "
        f"{off[0]:.1f} % off in the mean, {off[1]:.1f} % should GB be GiB; without a cache {min(without):.2f} to "
        f"{max(without):.2f} of {len(without)}: what PyTorch's allocator keeps and scores of whole prompts (NQKV 4.3) "
        "are not in ours",
    )


@claim("nqkv-t4-oom")
def out_of_memory() -> bool:
    """Whether the cell that is printed as out of memory does not fit 80 GB."""
    cell = next(cell for row in _table_4() for cell in row if cell.tokens_per_s is None)
    return not cell.result["fits_whole_batch"]


@claim("nqkv-abs-sequence")
def four_times_the_prompt() -> Relation:
    """Pairs of Table 4 in which NQKV holds prompts of 512 tokens in less memory than an INT8 cache those of 128."""
    short, long = 128, 512
    pairs = [
        (memories[1], NQKV_TABLE_4[model, batch, long][1][2])
        for (model, batch, input_tokens), (_, memories) in NQKV_TABLE_4.items()
        if input_tokens == short
    ]
    n = sum(int8 is not None and nqkv is not None and nqkv < int8 for int8, nqkv in pairs)
    return Relation(f"{n} of {len(pairs)} pairs", holds=n > len(pairs) / 2, numbers=(n, len(pairs)))


@claim("nqkv-t3-drop")
def largest_drop() -> float:
    """Largest drop of OPT-30B in Table 3 on PIQA, HellaSwag and ARC Challenge."""
    return max(before - after for before, after in NQKV_OPT_30B)


@claim("nqkv-t4-saving")
def memory_saved() -> Relation:
    """The Saving column's ratio as a share: SmoothQuant's peak over NQKV's."""
    peaks = [memory[1:] for _, memory in NQKV_TABLE_4.values()]
    saved = [100 * (1 - nqkv / other) for other, nqkv in peaks if other is not None and nqkv is not None]
    return Relation(f"{min(saved):.0f} to {max(saved):.0f} percent", numbers=(min(saved), max(saved)))


@claim("nqkv-t4-5percent")
def extra_memory_percent() -> float:
    """NQKV with cache over SmoothQuant without, OPT-30B, batch 64, 512 prompt tokens."""
    without, _, with_cache = NQKV_TABLE_4["opt-30b", 64, 512][1]
    assert without is not None
    assert with_cache is not None
    return 100 * (with_cache / without - 1)


#: 4.3, Figures 8 and 9
FIGURE_MODEL, FIGURE_INPUT_TOKENS = "opt-6.7b", 512


def _limit(name: str, quantizer: str, **fields: Any) -> float:
    """Largest batch or longest context of OPT-6.7B on the A100."""
    value: float = results_at(
        DEVICE, FIGURE_MODEL, quantizer, input_tokens=FIGURE_INPUT_TOKENS, output_tokens=NQKV_OUTPUT_TOKENS, **fields
    )[name]
    return value


def _limit_gain(name: str, other: str, **fields: Any) -> float:
    """NQKV over another cache, both beside weights and activations of the same bits."""
    return _limit(name, NQKV, **fields) / _limit(name, other, **fields)


@claim("nqkv-f8-batch-fp16")
def batch_over_fp16() -> Modeled:
    """Largest batch of NQKV over FP16, FP16 weights in both."""
    int8 = _limit("max_batch", NQKV, **W8A8) / _limit("max_batch", "fp16")
    whole = _limit_gain("max_batch", "fp16", **WHOLE_PROMPT)
    return Modeled(
        _limit_gain("max_batch", "fp16"),
        f"FP16 weights in both ({int8:.2f} with W8A8 for NQKV); 4.06 bits and an FP16 copy of one layer; "
        f"{whole:.2f} where every request's whole prompt is run at once",
    )


@claim("nqkv-f8-batch-sq")
def batch_over_smoothquant() -> Modeled:
    """Largest batch of NQKV over SmoothQuant, W8A8 in both."""
    whole = _limit_gain("max_batch", SMOOTHQUANT, **W8A8, **WHOLE_PROMPT)
    return Modeled(
        _limit_gain("max_batch", SMOOTHQUANT, **W8A8),
        "W8A8 in both, 4.06 bits and an FP16 copy of one layer against 8 bits; "
        f"{whole:.2f} where every request's whole prompt is run at once",
    )


@family({"nqkv-f9-seq-fp16": ("fp16", {}), "nqkv-f9-seq-sq": (SMOOTHQUANT, W8A8)})
def sequence_gain(other: str, fields: dict[str, Any]) -> Modeled:
    """Longest sequence of NQKV over another cache, prompts run whole; the batch is not stated, one sequence here."""
    small = _limit_gain("max_context_tokens", other, **fields)
    return Modeled(
        _limit_gain("max_context_tokens", other, **fields, **WHOLE_PROMPT),
        "activations of the whole prompt counted, logits included, as they grow with its length in both; "
        f"{small:.2f} where prompts run in small chunks",
    )
