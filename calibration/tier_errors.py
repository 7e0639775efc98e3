"""Print the gains of host memory and file systems behind the pool beside measured servers, and from where fetching is
sooner: `python -m calibration.tier_errors TIERS.csv [FETCH_OR_RECOMPUTE.csv]`.

No fitter runs, and no row is left out: the loads below were settled with the rows in view. Of loads the table says
sessions and rates, of servers utilization and `--max-num-seqs`. Agents: turns, answers and the mean prompt of 100,474
tokens are of 40 sessions of published traces of the same kind (kv-cache-tester 94f6046, prompts up to 256k); growth
follows from them as nothing is shared (the traces' own mean is 2,261). 50 s between turns are read from the rates of up
to 4 sessions a server, where both arms serve the same. Document questions: prompts as stated; of gpt-oss-120b chosen to
find about what was measured in host memory and on the device (0.504 and 0.011).
"""

import csv
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import dse
from dse.core.columns import Column, aligned, cells
from dse.model.offload import Beginning
from dse.model.point import Point

AGENTS: dict[str, Any] = {
    "turns": 69,
    "growth": 2_871,
    "output_tokens": 408,
    "think": "50 s",
    "gpu_memory_utilization": 0.55,
}
AGENTS |= {"tp": 2, "max_num_seqs": 256, "quantizers": ["fp16"]}
#: arm -> bytes for each device, and bandwidth: of PCIe 5.0 as devices reach it, of the file system 21.0 GB/s a node of
#: eight (its own test at a depth of 4)
TIERS = {
    "host memory 256 GiB a server": (128 * 2**30, "50 GB/s"),
    "host memory + CephFS (21 NVMe)": (10**13, "2.6 GB/s"),
}
#: servers of 70B in C, of four devices, and their file system, whose bandwidth is not stated: at 2 GB/s a device gains
#: are as measured, at 1 GB/s it brings nothing
LLAMA: dict[str, Any] = {"tp": 4, "gpu_memory_utilization": 0.65, "batch": 5, "quantizers": ["fp16"]}
LUSTRE = (1_140 * 2**30, "2 GB/s")
#: documents of A: their number, and their tokens and those of a question
GPT_OSS = (400, 8_448, 8_307, 370)
GLM: dict[str, Any] = {
    "sessions": 16,
    "growth": 4_000,
    "turns": 10,
    "tp": 16,
    "ep": 16,
    "dp_attention": True,
    "weights": "fp8",
}
GLM |= {"other_software": True}
#: gains below this are none
LEAST = 1.02
COLUMNS = (
    Column("set"),
    Column("gpus"),
    Column("load"),
    Column("arm"),
    Column("base_told", title="base req/s told", form=".3f"),
    Column("base", title="measured", form=".3f"),
    Column("rate_told", title="arm req/s told", form=".3f"),
    Column("rate", title="measured", form=".3f"),
    Column("gain_told", title="gain told", form=".2f"),
    Column("gain", title="measured", form=".2f"),
    Column("level", title="told/measured", form=".2f"),
    Column("sign"),
)


class TierGain(NamedTuple):
    """Requests a second of an arm and of the one without it, told and measured, all servers together."""

    set: str
    gpus: int
    load: str
    arm: str
    base_told: float
    base: float
    rate_told: float
    rate: float

    def row(self) -> dict[str, Any]:
        """The gains, and whether both lie on one side of 1."""
        told, measured = self.rate_told / self.base_told, self.rate / self.base
        sides = [(gain >= LEAST) - (gain <= 1 / LEAST) for gain in (told, measured)]
        sign = "right" if sides[0] == sides[1] else "wrong" if sides[0] == -sides[1] else "near"
        return {**self._asdict(), "gain_told": told, "gain": measured, "level": told / measured, "sign": sign}


def documents(file: Path, n_documents: int, n_tokens: int, question: int, answer: int, n: int) -> str:
    """Write a trace of questions about documents drawn at random; returns its path."""
    drawn, block = random.Random(1), next(size for size in (256, 128, 64, 16) if n_tokens % size == 0)
    n_own = -(-(n_tokens + question) // block) - n_tokens // block
    with file.open("w") as out:
        for r in range(n):
            document = drawn.randrange(n_documents) * 10**6
            ids = [*range(document, document + n_tokens // block), *range(10**9 + r * 1000, 10**9 + r * 1000 + n_own)]
            row = {"timestamp": r, "input_length": n_tokens + question, "output_length": answer, "hash_ids": ids}
            out.write(json.dumps(row) + "\n")
    return str(file)


def of_agents(rows: list[dict[str, str]]) -> Iterator[TierGain]:
    """Ladders of sessions on Qwen3.6-35B-A3B, two H100 a server (sets D and D2)."""
    told: dict[tuple[int, str], dict[str, Any]] = {}
    base = {_cell(row): float(row["requests_per_s"]) for row in rows if row["arm"] == "device only"}
    for row in rows:
        gpus, sessions = int(row["n_gpus"]), int(row["load"])
        if row["arm"] not in TIERS or 2 * sessions < gpus:
            continue
        n, (cache, link) = 2 * sessions // gpus, TIERS[row["arm"]]
        if (n, row["arm"]) not in told:
            asked: dict[str, Any] = {"sessions": n, "host_cache": cache, "host_link": link, **AGENTS}
            told[n, row["arm"]] = dse.hits("h100", "qwen3.6-35b-a3b", **asked).rows[0]
        one, load = told[n, row["arm"]], f"{sessions} sessions, {n} a server"
        yield TierGain(
            set=row["set"],
            gpus=gpus,
            load=load,
            arm=row["arm"],
            base_told=gpus / 2 * one["requests_per_s"],
            base=base[_cell(row)],
            rate_told=gpus / 2 * one["host_requests_per_s"],
            rate=float(row["requests_per_s"]),
        )


def _cell(row: dict[str, str]) -> tuple[str, str, str]:
    return row["set"], row["n_gpus"], row["load"]


def of_documents(rows: list[dict[str, str]], folder: Path) -> Iterator[TierGain]:
    """Questions about 50 documents on Llama-3.3-70B, four servers of four H100 (set C): a file system behind 20 GB."""
    for n_tokens in (50_000, 70_000):
        trace = documents(folder / "documents.jsonl", 50, n_tokens - n_tokens % 256, 256, 1024, 675)
        answers = [
            dse.hits("h100", "llama3.3-70b", trace=trace, host_cache=cache, host_link=link, **LLAMA)
            for cache, link in ((20 * 10**9, "50 GB/s"), LUSTRE)
        ]
        told = [4 * answer.rows[0]["host_requests_per_s"] for answer in answers]
        here = [row for row in rows if f"{n_tokens:,} prefix" in row["workload"]]
        measured = [float(row["output_tokens_per_s"]) / 1024 for row in here]
        yield TierGain(
            set="C",
            gpus=16,
            load=f"{n_tokens:,}-token documents",
            arm=here[1]["arm"],
            base_told=told[0],
            base=measured[0],
            rate_told=told[1],
            rate=measured[1],
        )


def at_rates(rows: list[dict[str, str]], folder: Path) -> Iterator[TierGain]:
    """Rates of questions about documents on gpt-oss-120b, 16 servers of one H100 (set A)."""
    trace = documents(folder / "documents.jsonl", *GPT_OSS, 8_000)
    one = dse.hits("h100", "gpt-oss-120b", ["fp16"], trace=trace, host_cache=10**12, host_link="50 GB/s").rows[0]
    loads = dict.fromkeys(row["load"] for row in rows if row["load_kind"] == "rate req/s")
    for load in loads:
        pair = {row["arm"]: float(row["output_tokens_per_s"]) / GPT_OSS[-1] for row in rows if row["load"] == load}
        told = [min(float(load), 16 * one[name]) for name in ("requests_per_s", "host_requests_per_s")]
        yield TierGain(
            set="A",
            gpus=16,
            load=f"{load} req/s",
            arm="host memory",
            base_told=told[0],
            base=pair["device only"],
            rate_told=told[1],
            rate=pair["host memory"],
        )


def crossing(rows: list[dict[str, str]]) -> str:
    """The crossing of GLM-5.2, 16 groups of requests on H200: 4.5 GB/s between servers and 1.7 s, both measured."""
    one = dse.hits("h200", "glm-5.2", ["fp16"], host_cache=10**12, host_link="4.5 GB/s", host_start="1.7 s", **GLM)
    server = one.servers[0]
    beginning = Beginning(Point(server.design.device, server.design.plan, server.work))
    pairs = [(int(row["prefix_tokens"]), float(row["recompute_ttft_s"])) for row in rows if row["prefix_tokens"]]
    computed = geometric_mean(beginning.again_s(n) / measured_s for n, measured_s in pairs)
    fetched = one.rows[0]["fetch_from_tokens"]
    return f"GLM-5.2: fetched from {fetched:,} tokens on (measured 13,648); computing told over measured {computed:.2f}"


def main(path: str, fetches: str | None = None) -> None:
    """Print each measured gain beside the predicted one, and how many signs and levels agree, by set and arm."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    if fetches:
        with open(fetches, newline="") as file:
            sys.stdout.write(f"{crossing(list(csv.DictReader(file)))}\n\n")
    by_set = {name: [row for row in rows if row["set"] == name] for name in ("A", "C", "D", "D2")}
    with tempfile.TemporaryDirectory() as folder:
        gains = [*of_agents(by_set["D"] + by_set["D2"])]
        gains += [*of_documents(by_set["C"], Path(folder)), *at_rates(by_set["A"], Path(folder))]
    told = [gain.row() for gain in gains]
    sys.stdout.write("\n".join([*aligned(cells(COLUMNS, told), range(4)), ""]))
    for name, arm in dict.fromkeys((row["set"], row["arm"]) for row in told):
        of = [row for row in told if (row["set"], row["arm"]) == (name, arm)]
        signs = [sum(row["sign"] == sign for row in of) for sign in ("right", "near", "wrong")]
        within = sum(0.8 <= row["level"] <= 1.25 for row in of)
        rates = geometric_mean(row["rate_told"] / row["rate"] for row in of)
        sys.stdout.write(
            f"{name}, {arm}: signs {signs[0]} right, {signs[1]} near, {signs[2]} wrong; {within} of {len(of)} gains "
            f"within 25 %; rates told over measured {rates:.2f} in the mean\n"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
