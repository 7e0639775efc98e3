"""Time of Pareto fronts of 1e7 rows, beside a sum over the same columns and a sort of them in the same run.

    python benchmarks/pareto.py [--rows 10000000] [--rounds 5] [--stored 100000000]

Goals on 2 cores: 0.04 s for 2 and for 3 objectives on independent columns; where every row is on the front, no slower
than a sort by all columns (numpy's lexsort). A sweep of `--stored` rows is written to a folder for the time of the run:
the front of its directory beside reading its columns on one thread. The best of all rounds counts, since the machine is
shared.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dse
from dse.sweep import pareto, reading
from dse.sweep.pareto import designs as pareto_designs


def best(function: Callable[[], Any], rounds: int) -> float:
    """Seconds of the fastest of several calls."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def stored(rows: int, rounds: int) -> None:
    """The front of a sweep's directory."""
    wanted = {"throughput_tokens_per_s": "max", "effective_bits": "min"}
    spec = {
        "title": "benchmark",
        "keep": list(wanted),
        "axes": {
            "device": ["a100-80gb"],
            "model": ["llama2-7b"],
            "quantizer": ["fp16", "kivi", "oaken", "sinkq"],
            "input_tokens": {"from": 1, "to": max(rows // 10_000, 1), "step": 1},
            "batch": {"from": 1, "to": 2500, "step": 1},
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        found = dse.sweep(spec, folder)
        columns = [*wanted, "feasible"]

        def read() -> None:
            for path in found.paths:
                reading.read_part(path, columns)

        front_s = best(lambda: pareto_designs.of_file(folder, wanted), rounds)
        read_s = best(read, rounds)
    print(f"front of {found.n_rows:,} rows stored: {front_s:.2f} s; reading on one thread {read_s:.2f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stored", type=int, default=20_000_000)
    given = parser.parse_args()
    stored(given.stored, given.rounds)
    rng = np.random.default_rng(0)
    print(f"{'objectives':>10}  {'rows are':<12}  {'on the front':>12}  {'front s':>8}  {'sum s':>7}  {'lexsort s':>9}")
    for n_columns in (2, 3, 4):
        free = [rng.random(given.rows) for _ in range(n_columns)]
        worst = [*free[:-1], -np.sum(free[:-1], axis=0)]
        for name, columns in (("independent", free), ("all on it", worst)):
            if name == "all on it" and n_columns > 3:
                continue  # compared pair by pair
            signs = [1.0] * n_columns
            n_front = len(pareto.front_rows(columns, signs))
            rounds = given.rounds if name == "independent" else 1
            front_s = best(lambda columns=columns, signs=signs: pareto.front_rows(columns, signs), rounds)
            sum_s = best(lambda columns=columns: [column.sum() for column in columns], rounds)
            sort_s = best(lambda columns=columns: np.lexsort(columns), 1)
            print(f"{n_columns:>10}  {name:<12}  {n_front:>12,}  {front_s:>8.3f}  {sum_s:>7.3f}  {sort_s:>9.2f}")


if __name__ == "__main__":
    main()
