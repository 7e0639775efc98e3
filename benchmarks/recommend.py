"""How fast `dse recommend` searches servers and settings, beside a loop that evaluates each by itself in the same run.

    python benchmarks/recommend.py [--servers 12] [--rounds 3]

Goals on 2 cores: the first answer within 3 s of a cold start, each later one within 0.5 s. The loop takes some of the
servers, one of each few, in all of their settings; seconds are of the processor, as the machine is shared.
"""

import argparse
import os
import subprocess
import sys
import time
from itertools import product

import dse
from dse.core.errors import DseError
from dse.questions import settings
from dse.questions.server_design import ServerDesign

ASKED = {
    "model": "qwen3-32b",
    "devices": ["h100", "h200", "b200", "l40s"],
    "input_tokens": 4096,
    "output_tokens": 500,
    "max_tpot": "30 ms",
    "max_ttft": "1 s",
}
RATES = (20.0, 7.0, 45.0)
COLD = "import dse; dse.recommend(rate=20, **{asked!r}).text()"


def in_every_setting(server: ServerDesign) -> int:
    """What a server holds in each of its settings, one after the other; returns how many there are."""
    values, n = settings.tried(server), 0
    for chosen in product(*((None, *values[name]) for name in values)):
        changed = {name: value for name, value in zip(values, chosen, strict=True) if value is not None}
        n += 1
        try:
            one = server.in_settings(changed) if changed else server
        except DseError:
            continue
        _ = one.most and one.holds
    return n


def main() -> None:
    """Print seconds, candidates a second, and the ratio to the loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=12, help="servers that the loop takes")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    subprocess.run([sys.executable, "-c", COLD.format(asked=ASKED)], check=True)
    of_child = os.times()
    print(f"first answer, from a cold start: {of_child.children_user + of_child.children_system:.2f} s")
    found = dse.recommend(rate=RATES[0], **ASKED)
    n = sum(settings.n_settings(server) for server in found.search.grid.servers)
    warm = []
    for rate in RATES * args.rounds:
        begin = time.process_time()
        dse.recommend(rate=rate, **ASKED)
        warm.append(time.process_time() - begin)
    print(f"later ones: {min(warm):.2f} s at best, {n:,} candidates, {n / min(warm):,.0f} a second")
    servers = dse.recommend(rate=RATES[0], **ASKED).search.grid.servers
    few = servers[:: max(len(servers) // args.servers, 1)]
    begin = time.process_time()
    n_few = sum(in_every_setting(server) for server in few)
    each = (time.process_time() - begin) / n_few
    print(f"one by one: {1 / each:,.0f} a second; the search is {each * n / min(warm):.0f} times as fast")


if __name__ == "__main__":
    main()
