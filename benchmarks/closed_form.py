"""How far the server in closed form is from the simulator, over designs drawn by lot.

    python benchmarks/closed_form.py [--designs 400] [--seconds 1800] [--seed 1]

Six models, five devices, prompts of 32 to 65,536 tokens, answers of 16 to 4,096, 1 to 512 requests, in a closed loop or
at a rate of 0.1 to 0.9 of what the server holds. Both take the mean lengths; the simulator's requests have lengths
within 20 % of them, as public benchmarks do, so that they do not stay in step. Bars: TPOT and throughput within 3 % in
the median and 8 % in the 95th percentile, TTFT 10 and 25 %.
"""

import argparse
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dse import quantizers
from dse.core.errors import DseError
from dse.model import engine, kv_layout
from dse.model.point import Point
from dse.serving import simulator
from dse.serving.at_rate import waits_at
from dse.serving.requests import Requests
from dse.serving.steady_state import FixedLengths, TrafficServer, scheduler_of
from dse.specs import catalog
from dse.specs.workload import Workload

DEVICES = ("h100", "h200", "b200", "a100-80gb", "l40s")
MODELS = ("llama3.1-8b", "qwen3-32b", "llama3.1-70b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-3-12b")
REQUESTS = tuple(2**k for k in range(10))
INPUTS = tuple(32 * 2**k for k in range(12))
OUTPUTS = tuple(16 * 2**k for k in range(9))
#: of the rate that a server holds; None, for three in ten: a closed loop
LOADS = (None, None, None, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9)
#: lengths are within this share of their mean
SPREAD = 0.2
#: requests of a run: rounds of the places, and some more; at a rate up to so many, as queues are long at times
ROUNDS, MORE, MOST_REQUESTS = 6, 200, 12_000
#: tokens of answers, and of all, that a run takes at most
MOST_OUTPUT_TOKENS, MOST_TOKENS = 6_000_000, 120_000_000


class Drawn(NamedTuple):
    """A design and the load on it."""

    device: str
    model: str
    quantizer: str
    tp: int
    n: int
    n_input: int
    n_output: int
    load: float | None


class Means(NamedTuple):
    """What a request of a server sees, and what the server gives."""

    tpot_s: float
    ttft_s: float
    tokens_per_s: float


class Compared(NamedTuple):
    """Both sides for a design."""

    drawn: Drawn
    closed_form: Means
    simulated: Means

    @property
    def errors(self) -> Means:
        """Size of the logarithm of each ratio: 0.03 is 3 % either way."""
        return Means(*np.abs(np.log(np.array(self.closed_form) / np.array(self.simulated))))


def drawn(rng: random.Random) -> Drawn:
    """One by lot; most do not need a split."""
    return Drawn(
        device=rng.choice(DEVICES),
        model=rng.choice(MODELS),
        quantizer=rng.choice(("fp16", "fp8")),
        tp=rng.choice((1, 1, 2, 4)),
        n=rng.choice(REQUESTS),
        n_input=rng.choice(INPUTS),
        n_output=rng.choice(OUTPUTS),
        load=rng.choice(LOADS),
    )


def compare(one: Drawn, seed: int, most_requests: int = MOST_REQUESTS) -> Compared | None:
    """Both sides; None where the device does not take so many requests, or the run is too long."""
    device, spec = catalog.device(one.device), quantizers.parse(one.quantizer)
    kv = kv_layout.build(catalog.model(one.model), spec, spec)
    work = Workload(batch=one.n, input_tokens=one.n_input, output_tokens=one.n_output, tp=one.tp)
    try:
        point = Point(device, kv, work)
        results = engine.evaluate(point)
    except DseError:
        return None
    if one.n > (results["max_batch"] or 0):
        return None
    rng, n, rate = np.random.default_rng(seed), ROUNDS * one.n + MORE, 0.0
    if one.load is None:
        mine = Means(results["tpot_s"], results["ttft_s"], results["throughput_tokens_per_s"])
    else:
        n = max(n, min(most_requests, MOST_OUTPUT_TOKENS // one.n_output, MOST_TOKENS // (one.n_input + one.n_output)))
        server = TrafficServer.of(device, kv, work, FixedLengths(one.n_input, one.n_output))
        rate = one.load * server.full.requests_per_s
        found = waits_at(server, rate)
        assert found is not None, one
        mine = Means(found.tpot_s, found.ttft_s, rate * one.n_output)
    if n * one.n_output > MOST_OUTPUT_TOKENS or n * (one.n_input + one.n_output) > MOST_TOKENS:
        return None
    arrivals = np.concatenate([[0.0], np.cumsum(rng.exponential(1 / rate, n - 1))]) if rate else np.zeros(n)
    requests = Requests(arrivals, spread(rng, n, one.n_input), spread(rng, n, one.n_output))
    run = simulator.run(device, kv, work, requests, scheduler_of(device, kv, work), compiled=True)
    # of a request that waits beside the loop, which the simulator leaves out
    start_s = point.design.stack.host_prompt_s - point.design.stack.host_blocks_s
    return Compared(one, mine, means_of(run, one.n, rate, start_s))


def spread(rng: np.random.Generator, n: int, mean: int) -> np.ndarray:
    """Lengths of `n` requests."""
    return rng.integers(max(round(mean * (1 - SPREAD)), 1), round(mean * (1 + SPREAD)) + 1, n)


def means_of(run: simulator.Simulation, n_places: int, rate: float, start_s: float) -> Means:
    """Means of a run over requests that neither its start nor its end touches; at rate 0 of its closed loop."""
    n, answers = len(run.first_s), run.requests.output_tokens
    if rate:
        ttft_s, counted = run.first_s - run.requests.arrival_s, np.arange(n // 10, n)
    else:  # all have been there from the start: each was sent when the one before it in its place ended
        order = np.argsort(run.start_s, kind="stable")
        sent_s = np.empty(n)
        sent_s[order] = np.concatenate([np.zeros(n_places), np.sort(run.finish_s)])[:n]
        ttft_s, counted = run.first_s - sent_s, order[2 * n_places : n - n_places]
    mean_answer = answers[counted].mean()
    tpot_s = (run.finish_s - run.first_s)[counted].sum() / answers[counted].sum()
    first_s = ttft_s[counted].mean() + start_s
    # Little's law: so many requests are there at all times
    tokens_per_s = rate * mean_answer if rate else n_places * mean_answer / (first_s + tpot_s * mean_answer)
    return Means(tpot_s, first_s, tokens_per_s)


def compared(seed: int, most_requests: int = MOST_REQUESTS) -> Iterator[Compared]:
    """Designs that run, one after the other, without end."""
    rng, n = random.Random(seed), 0
    while True:
        if found := compare(drawn(rng), n, most_requests):
            n += 1
            yield found


def main() -> None:
    """The errors by load, and the designs with the largest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--designs", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rows: list[Compared] = []
    begin = time.perf_counter()
    for one in compared(args.seed):
        rows.append(one)
        if len(rows) >= args.designs or time.perf_counter() - begin > args.seconds:
            break
    print(f"{len(rows)} designs in {time.perf_counter() - begin:.0f} s; error in the median and 95th percentile")
    loads = np.array([one.drawn.load or 0.0 for one in rows])
    errors = np.array([one.errors for one in rows])
    for title, chosen in (
        ("all", loads >= 0),
        ("closed loop", loads == 0),
        ("load 0.1 to 0.5", (loads > 0) & (loads < 0.6)),
        ("load 0.7, 0.8", (loads > 0.6) & (loads < 0.85)),
        ("load 0.9", loads > 0.85),
    ):
        if chosen.any():
            parts = zip(Means._fields, *np.quantile(errors[chosen], (0.5, 0.95), axis=0), strict=True)
            said = "; ".join(f"{name} {middle:.2%} {high:.2%}" for name, middle, high in parts)
            print(f"{title}, {chosen.sum()} designs: {said}")
    for i, name in enumerate(Means._fields[:2]):
        print(f"largest errors of {name}:")
        for at in np.argsort(-errors[:, i])[:6]:
            ratio = rows[at].closed_form[i] / rows[at].simulated[i]
            print(f"  {ratio:.3f} {rows[at].drawn._asdict()}")


if __name__ == "__main__":
    main()
