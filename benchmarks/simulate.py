"""How fast serving is simulated, beside the same loop run as plain Python in the same run.

    python benchmarks/simulate.py [--requests 1000000] [--rounds 3]

Goal on 2 cores: a million requests of a conversation trace's lengths within 20 s. Compiled code is warm; runs take
turns; the best of all rounds counts, since the machine is shared.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from dse.model import kv_layout as plan
from dse.serving import simulator as simulate
from dse.serving import trace_tables as traffic_tables
from dse.serving.requests import Requests
from dse.serving.steady_state import Scheduler
from dse.specs import catalog
from dse.specs.measurements import CLOSED
from dse.specs.workload import Workload

#: requests that plain Python serves
FEW_REQUESTS = 500


def first(requests: Requests, n: int) -> Requests:
    """The first `n`."""
    return requests.take(slice(n))


def main() -> None:
    """Seconds, requests per second, and the ratio to plain Python."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    device, fp16 = catalog.device("a100-80gb"), CLOSED.quantizer("fp16")
    kv = plan.build(catalog.model("llama2-13b"), fp16, fp16)
    work = Workload(batch=256, admission="paged")
    requests = traffic_tables.sample("azure-conv", args.requests, 2.5, seed=1)
    few = first(requests, FEW_REQUESTS)
    times = simulate.tables_for(device, kv, work, requests, 512, work.batch)

    def plain() -> Any:
        return simulate.run(device, kv, work, few, times=times, compiled=False)

    runs: dict[str, tuple[int, Callable[[], Any]]] = {"plain Python": (FEW_REQUESTS, plain)}
    for batching in ("continuous", "chunked", "static"):
        chosen: Any = batching
        simulate.run(device, kv, work, few, Scheduler(chosen), times=times, compiled=True)
        runs[batching] = (
            args.requests,
            lambda chosen=chosen: simulate.run(
                device, kv, work, requests, Scheduler(chosen), times=times, compiled=True
            ),
        )
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(args.rounds):
        for name, (_, function) in runs.items():
            begin = time.perf_counter()
            function()
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
    slow = FEW_REQUESTS / seconds["plain Python"]
    for name, (n, _) in runs.items():
        rate = n / seconds[name]
        print(f"{name:<14}{n:>12,} requests{seconds[name]:9.2f} s{rate:12,.0f} requests/s{rate / slow:10,.0f} x")


if __name__ == "__main__":
    main()
