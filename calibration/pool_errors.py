"""Fit how far pools of keys and values are off, by engine and class of device: `python -m calibration.pool_errors
LOGS.csv...`.

A row is a start-up: device, model, options, and the memory or the tokens that the server printed. What it prints are
the ends `pool_low` and `pool_high` of hwspecs/servers, whose files are written by hand. Rows of the tables do not ship.
"""

import csv
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import dse
from dse.core.errors import DseError, InputError
from dse.specs import catalog, device_names, servers

#: share of the start-ups between the ends
INSIDE = 0.8
#: what columns are called in tables of several sources
COLUMNS = {
    "version": ("version", "vllm"),
    "weights": ("weights_format", "weights"),
    "tp": ("tp", "gpus"),
    "utilization": ("util", "utilization", "gpu_memory_utilization"),
    "n_sequences": ("max_num_seqs",),
    "prompt_tokens": ("prompt_budget", "batched_tokens"),
    "kv": ("kv", "kv_dtype"),
}
#: engines of which too few start-ups are known for ends of their own
FEW = "common"
#: weights of a log and of its model's name differ by less, as a share
SAME_WEIGHTS = 0.1
#: step by which the ends are moved apart, of the device's memory, until as many of what was left out lie between them
STEP = 0.001


class Start(NamedTuple):
    """A start-up: whose, on what, and its pool less ours as a share of the device's memory."""

    engine: str
    kind: str
    device: str
    model: str
    off: float


def _number(text: str) -> float | None:
    found = re.match(r"\d+(\.\d+)?", text.replace(",", ""))
    return float(found[0]) if found else None


def _options(row: Mapping[str, str]) -> dict[str, Any]:
    """What a row says to `dse.evaluate`: only what it states."""
    said = {name: next((row[key] for key in keys if row.get(key)), "") for name, keys in COLUMNS.items()}
    engine, release = row.get("engine") or servers.DEFAULT, re.search(r"\d+\.\d+(\.\d+)?", said["version"])
    length = int(_number(row["max_model_len"]) or 8192)
    named = said["weights"].split(" ")[0].lower()
    is_named = named in row["model"].lower() or named in ("bf16", "fp16", "auto", "taken", "")
    kv = "fp8" if said["kv"] in ("fp8_e4m3", "fp8_e5m2") else said["kv"]
    return {
        "model": row["model"] if is_named else f"{row['model']}-{named}",
        "quantizer": "bf16" if kv in ("", "auto", "bfloat16", "f16") else kv,
        "stack": engine + (f"@{release[0]}" if release else ""),
        "input_tokens": length - 1,
        "output_tokens": 1,
        "max_model_len": length,
        "gpu_memory_utilization": _number(said["utilization"]),
        "max_num_seqs": int(_number(said["n_sequences"]) or 0) or None,
        "prompt_budget_tokens": int(_number(said["prompt_tokens"]) or 0) or None,
        **{name: int(_number(said.get(name) or row.get(name) or "") or 1) for name in ("tp", "pp", "dcp")},
    }


def start_of(row: Mapping[str, str]) -> Start | str:
    """The start-up of a row beside ours; why not, where it does not say enough, or cannot be asked."""
    if row.get("suspect") or row.get("draft", "none") not in ("", "none", "none stated"):
        return "suspect, or has a draft"
    if row.get("outcome", "starts") != "starts" or row.get("status", "ok") != "ok":
        return "does not start"
    asked, tokens = _options(row), _number(row.get("kv_tokens") or row.get("kv_tokens_printed") or "")
    if asked["gpu_memory_utilization"] is None and asked["stack"].startswith(servers.DEFAULT):
        return "does not state its share of the memory"
    if not row["kv_gib"] and tokens is None:
        return "has no pool (kv_gib, kv_tokens)"
    if not re.search(r"\d", row.get("version") or row.get("vllm") or ""):
        return "names no release"
    name = device_names.meant(row["gpu"], catalog.device_aliases())
    if name is None:
        return "names no shipped device"
    try:
        found = dse.evaluate(name, **asked)
    except DseError as error:
        return f"cannot be asked: {error.lines()[0]}"
    if not found.free_bytes or found.free_bytes <= 0:
        return "does not fit by ours"
    weights_gib = _number(row.get("model_gib") or "")
    if weights_gib and abs(found.weight_bytes / servers.GIB / weights_gib - 1) > SAME_WEIGHTS:
        return "has weights of another format than its name says"
    if row["kv_gib"]:
        pool_bytes = float(row["kv_gib"]) * servers.GIB
    else:
        assert tokens is not None
        pool_bytes = tokens * found.free_bytes / found.kv_pool_tokens
    engine = asked["stack"].partition("@")[0]
    kind = servers.kinds_of(catalog.device(name))[-1]
    if kind == servers.LARGEST:
        kind = servers.LARGE
    is_many = engine == servers.DEFAULT
    return Start(
        engine if is_many else FEW,
        kind if is_many else "any",
        found.device,
        found.model,
        (pool_bytes - found.free_bytes) / found.capacity_bytes,
    )


def ends(starts: Sequence[Start], wider: float = 0.0) -> tuple[float, float]:
    """The ends between which `INSIDE` of the start-ups lie, each `wider` by so much; each model on a device counts
    once. A prediction lies between its own ends."""
    counts = Counter((start.device, start.model) for start in starts)
    places = sorted((start.off, 1 / counts[start.device, start.model]) for start in starts)

    def end(in_order: Iterable[tuple[float, float]]) -> float:
        beyond = (1 - INSIDE) / 2 * len(counts)
        for off, weight in in_order:
            beyond -= weight
            if beyond < -1e-9:
                return off
        raise AssertionError("weights add up to the number of groups")

    return min(end(places), 0.0) - wider, max(end(reversed(places)), 0.0) + wider


def left_out(starts: Sequence[Start]) -> Iterator[tuple[list[Start], list[Start]]]:
    """Start-ups of each device, and those of the others of its class; of a class of one device, of each model."""
    by_class = defaultdict(list)
    for start in starts:
        by_class[start.engine, start.kind].append(start)
    for of_class in by_class.values():
        key = "device" if len({start.device for start in of_class}) > 1 else "model"
        for name in sorted({getattr(start, key) for start in of_class}):
            others = [start for start in of_class if getattr(start, key) != name]
            if others:
                yield [start for start in of_class if getattr(start, key) == name], others


def share_inside(starts: Sequence[Start], wider: float) -> float:
    """The share of the start-ups that lie between the ends of those that know nothing of them; each model on a device
    counts once."""
    inside = total = 0.0
    for group, others in left_out(starts):
        low, high = ends(others, wider)
        counts = Counter((start.device, start.model) for start in group)
        for start in group:
            weight = 1 / counts[start.device, start.model]
            total += weight
            inside += weight * (low <= start.off <= high)
    if not total:
        raise InputError("no class has start-ups of two devices or models: give more logs")
    return inside / total


def fit(starts: Sequence[Start]) -> tuple[dict[tuple[str, str], tuple[float, float]], float]:
    """The ends of each class, and by how much they are wider than those of its own start-ups, so that `INSIDE` of what
    is left out lies between them."""
    wider = 0.0
    while share_inside(starts, wider) < INSIDE:
        wider += STEP
    classes = sorted({(start.engine, start.kind) for start in starts})
    return {key: ends([start for start in starts if start[:2] == key], wider) for key in classes}, wider


def read(paths: Sequence[str]) -> tuple[list[Start], Counter[str]]:
    """The start-ups of tables of logs, and why others are none."""
    starts, none = [], Counter[str]()
    for path in paths:
        with open(path, newline="", encoding="utf-8") as table:
            for row in csv.DictReader(table):
                found = start_of(row)
                if isinstance(found, Start):
                    starts.append(found)
                else:
                    none[found] += 1
    return starts, none


def main(argv: list[str]) -> None:
    """Print the ends of each class, and why rows are not used. Raises InputError without a table."""
    if not argv:
        raise InputError("give tables of start-up logs")
    starts, none = read(argv)
    by_class, wider = fit(starts)
    lines = []
    for key, (low, high) in by_class.items():
        of_class = [start for start in starts if start[:2] == key]
        devices = ", ".join(sorted({start.device for start in of_class}))
        ends_of = f"pool_low {low:.3f}, pool_high {high:.3f}"
        lines.append(f"{' '.join(key)}: {ends_of}; {len(of_class)} start-ups of {devices}")
    inside, without = (f"{share_inside(starts, by):.0%}" for by in (wider, 0.0))
    lines.append(f"each end moved by {wider:.3f}: of start-ups left out {inside} lie inside, without {without}")
    lines += [f"  {n_rows} rows: {why}" for why, n_rows in none.most_common()]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
