"""Designs in a table and as bars: whether each fits, its numbers with their intervals, and what they mean."""

import html
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from dse.core.units import plain
from dse.explorer import request
from dse.explorer.badge import badge_of
from dse.explorer.bench import Bench, BenchRow
from dse.figures.drawing import style
from dse.model import quality, results
from dse.model.results import RESULT_UNITS
from dse.questions import interactivity
from dse.report import answers
from dse.report.design import as_said
from dse.report.present import number
from dse.specs.device_and_model import ModelSpec
from dse.specs.weights import WIDE, WIDE_BITS

#: what a page says in numbers, under their declared titles (`label`), and what each is
MEANINGS = {
    "throughput_tokens_per_s": "Output tokens a second, of all devices.",
    "tpot_s": "Mean time between a request's tokens.",
    "ttft_s": "Mean time to the first token.",
    "kv_pool_tokens": "Tokens that all requests can hold.",
    "score_drop_frac": "Largest published loss of a benchmark's score, as a share of that of 16 bits.",
    "sample_perplexity_frac": "Rise over 16 bits, of a small language model: not yours.",
    "joules_per_token": "At the power of the whole board.",
    "usd_per_million_tokens": "At the device's price per hour.",
}
#: of the table: the definition of a column
TIPS = {
    "Fits": "Requests at once: surely held within the limits, and those that memory has room for.",
    "tok/s a device": "Output tokens a second, over the number of devices; where 8 of 10 measurements should lie.",
    "tok/s a user": "1 / TPOT: the speed at which a user gets tokens.",
    "TPOT": MEANINGS["tpot_s"],
    "TTFT, no queue": "Mean time to the first token of a request that has a place.",
    "TTFT, queue counted": "Mean time to the first token, of which a request at a rate waits for a place.",
    "Gain": "Tokens a second a device, against the first design.",
    "Accuracy loss": MEANINGS["score_drop_frac"],
    "Perplexity": MEANINGS["sample_perplexity_frac"],
    "USD/M out": "USD per million output tokens, at the device's price per hour.",
    "How sure": "What its times rest on; how far 8 of 10 measurements may be off.",
    "Servers": "Servers that hold the load within the limits.",
}
#: colors of the parts of the memory, as figures have them
_PARTS = {
    "weights": style.BLUE,
    "reserved": style.GRAY,
    "keys and values": style.ORANGE,
    "rest of their blocks": style.SKY,
    "free": "transparent",
}
#: an edge in the color of the words, by which a part is seen on any ground
_EDGE = "box-shadow:inset 0 0 0 1px currentColor"
_BAR = "display:flex;height:14px;border-radius:3px;overflow:hidden"
_SQUARE = f"display:inline-block;width:10px;height:10px;{_EDGE}"
_HEAD, _THIN = "font-weight:600", "display:flex;height:12px"
_LINE = "display:flex;justify-content:space-between;font-size:0.85rem;gap:8px"
#: numbers that are shown as every page and the command line show them
_OF_SCORES = {"score_drop_frac": quality.drop_text, "sample_perplexity_frac": quality.rise_text}


def label(name: str) -> str:
    """The title of a result, else its name in words."""
    text = results.title(name)
    text = text if text != name else name.replace("_", " ").replace(".", ": ", 1)
    return text[:1].upper() + text[1:]


def memory_parts(result: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of a device by what holds them: keys and values of all that runs, at their final lengths."""
    pool = int(result["free_bytes"])
    held = min(int(result["kv_bytes"]), pool)
    weights, whole = int(result["weight_bytes"]), int(result["capacity_bytes"])
    running, most = int(result["running_batch"]), int(result["max_batch"])
    # by their bytes more would fit: padding, and copies of states, fill what they are given whole
    taken = pool * running // most if most and held * (most + 1) <= pool * running else held
    parts = {
        "weights": weights,
        "reserved": whole - weights - pool,
        "keys and values": held,
        "rest of their blocks": taken - held,
        "free": pool - taken,
    }
    return {name: n for name, n in parts.items() if n > 0}


def memory_bar(result: Mapping[str, Any], name: str) -> str:
    """The memory of a device as a bar of its parts with its total, as HTML, with the parts in words."""
    parts = memory_parts(result)
    whole, free = sum(parts.values()), parts.get("free", 0)
    head = f"Memory of a device, {name}: {(whole - free) / 1e9:,.4g} of {whole / 1e9:,.4g} GB"
    words = ", ".join(f"{part} {n / 1e9:,.3g} GB" for part, n in parts.items())
    pieces = "".join(f'<div style="flex:{n};background:{_PARTS[part]};{_EDGE}"></div>' for part, n in parts.items())
    keys = " ".join(
        f'<span style="white-space:nowrap"><span style="{_SQUARE};background:{_PARTS[part]}"></span> {part} '
        f"{n / 1e9:,.3g} GB</span>"
        for part, n in parts.items()
    )
    return (
        f'<div style="{_HEAD}">{html.escape(head)}</div>'
        f'<div role="img" aria-label="{html.escape(head)}: {words}" style="{_BAR}">{pieces}</div>'
        f'<div style="font-size:0.8rem">{keys}</div>'
    )


def room_bars(rows: Sequence[BenchRow]) -> str:
    """Requests at once of each design as bars, as HTML: held within the limits, or that run at the load, and those that
    memory has room for."""
    most = max(int(row.result["max_batch"]) for row in rows) or 1
    is_at_once = all(row.load.kind == "batch" for row in rows)
    title = f"Requests at once: {'within the limits' if is_at_once else 'at this load'}, of those that fit"
    pieces = [f'<div style="{_HEAD};margin-top:10px">{title}</div>']
    for row in rows:
        fit, held = int(row.result["max_batch"]), held_of(row)
        text = f"{held:,} of {fit:,}"
        inside = (
            f'<div style="width:{100 * min(held, fit) / most:.1f}%;background:{style.ORANGE};{_EDGE}"></div>'
            f'<div style="width:{100 * max(fit - held, 0) / most:.1f}%;background:{style.SKY};{_EDGE}"></div>'
        )
        pieces.append(
            f'<div style="{_LINE}"><span>{html.escape(row.name)}</span><span>{text}</span></div>'
            f'<div role="img" aria-label="{html.escape(row.name)}: {text}" style="{_THIN}">{inside}</div>'
        )
    return "".join(pieces)


def held_of(row: BenchRow) -> int:
    """Requests at once of a design at its load, that it surely holds within the limits."""
    assert row.answer is not None
    n = min(int(row.result["batch"]), int(row.result["max_batch"]))
    if row.load.kind == "batch":
        return min(n, int(row.answer.holds))
    return n if row.answer.holds else 0


def shown(name: str, result: Mapping[str, Any]) -> str:
    """A number with its unit, as `dse point` prints it."""
    if result[name] is None:
        return "-"
    return _OF_SCORES[name](result) if name in _OF_SCORES else number(result[name], RESULT_UNITS[name])


def keeps_weights(model: ModelSpec, result: Mapping[str, Any]) -> bool:
    """True where the weights are no narrower than those that the model was released with."""
    is_wide = result["weights"] in (None, WIDE) and result["weights_bits"] >= WIDE_BITS
    return is_wide or result["weights"] == model.released


def loss(row: BenchRow) -> str:
    """The accuracy loss of a design, that it is of short answers alone, and that it leaves out what narrower weights
    than the release's lose."""
    text = shown("score_drop_frac", row.result)
    text += "" if text == "-" or quality.has_long_scores(row.request.plan()) else ", short answers"
    return text if keeps_weights(row.request.model_spec(), row.result) else f"{text}, weights not known"


def time_text(name: str, result: Mapping[str, Any], limits: Mapping[str, float]) -> str:
    """A time with its unit, beside the limit that it misses: 51.37 ms > 50 ms."""
    is_missed = name in limits and result[name] is not None and result[name] > limits[name]
    return shown(name, result) + (f" > {number(limits[name], RESULT_UNITS[name])}" if is_missed else "")


def design_table(bench: Bench) -> pd.DataFrame:
    """The designs as a table, a row each: what a narrow screen shows first comes first."""
    first = next((row for row in bench.answered if row.result["feasible"]), None)
    cells = [_cells(bench, row, first) for row in bench.rows]
    return pd.DataFrame(cells, columns=[column for column in cells[0] if any(row[column] for row in cells)])


def _cells(bench: Bench, row: BenchRow, first: BenchRow | None) -> dict[str, str]:
    ttft = f"TTFT, {request.LoadRequest(bench.values['load']).queue}"
    cells = {"Design": row.name, "Fits": "", "tok/s a device": "", "tok/s a user": "", "TPOT": "", ttft: ""}
    cells |= {
        "Gain": "",
        "Accuracy loss": "",
        "Perplexity": "",
        "USD/M out": "",
        "Servers": "",
        "How sure": badge_of(row).text,
    }
    if row.answer is None:
        return cells | {"Fits": "cannot be computed"}
    result = as_said(row.result)
    cells |= {"Accuracy loss": loss(row), "Perplexity": shown("sample_perplexity_frac", result), "Fits": fits(result)}
    if not result["feasible"]:
        return cells
    if row.load.kind != "batch" and not row.answer.holds:  # its numbers are of almost no load, which nobody asked for
        return cells | {"Servers": "none holds it", "Fits": f"0 of {result['max_batch']:,} at once"}
    low, high, _ = interactivity.interval(result)
    device = result["throughput_tokens_per_s"] / result["n_devices"]
    three = partial(plain, digits=3)
    cells |= {
        "tok/s a device": f"{three(device)} ({three(device * low)} to {three(device * high)})",
        "tok/s a user": three(1 / result["tpot_s"]) if result["tpot_s"] else "-",
        "USD/M out": shown("usd_per_million_tokens", result).partition(" ")[0],
    }
    limits = request.limits_s(bench.values)
    cells |= {"TPOT": time_text("tpot_s", result, limits), ttft: time_text("ttft_s", result, limits)}
    if first is not None and row is not first:
        cells["Gain"] = answers.gain_text(answers.gain(result, first.result))
    if row.load.kind != "batch":
        cells["Servers"] = f"{row.answer.n_servers:,}"
    elif limits and (held := held_of(row)) < min(result["batch"], result["max_batch"]):
        cells["Fits"] = f"{held:,} of {result['max_batch']:,} at once"
    return cells


def fits(result: Mapping[str, Any]) -> str:
    """Whether a design fits, in the few words of a cell."""
    if not result["feasible"]:
        return "does not fit"
    if result["fits_whole_batch"]:
        return f"{result['batch']:,} of {result['max_batch']:,} at once"
    return f"{result['max_batch']:,} of {result['batch']:,}"
