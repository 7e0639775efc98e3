"""Separate pools: servers that compute prompts, servers that decode, and the link that carries keys and values.

A server of prompts is one whose requests ask for one token (`dse.model.server`); one that decodes has the steps without
prompts. A request queues for its prompt, whose keys and values are sent while the next prompt is computed, waits for a
place, and decodes. N = X (TTFT + O TPOT) holds (Little's law); the slowest of the three bounds the rate X.
docs/explanation/model.md, Separate pools.
"""

from typing import NamedTuple

from dse.core.errors import InputError, show
from dse.model import kv_bytes
from dse.model.formulas import collectives, steady
from dse.model.point import Point
from dse.specs.collectives import send_terms

#: halvings of the number of requests that decode
HALVINGS = 40


class Servers(NamedTuple):
    """A pool of equal servers; the requests of those that compute prompts have one token of output."""

    point: Point
    n_servers: int

    @property
    def n_devices(self) -> int:
        """Devices of all servers."""
        return self.n_servers * self.point.work.n_devices


class Disaggregated(NamedTuple):
    """Means over the requests of two pools, and most requests a second of each part."""

    tpot_s: float
    ttft_s: float
    requests_per_s: float
    #: requests that decode at once on a server
    decoding_requests: float
    #: most that prompts, the link and, with all requests there, decoding would allow
    prompts_per_s: float
    sends_per_s: float
    decodes_per_s: float
    #: keys and values of a prompt that a device receives, and the time that takes
    sent_bytes: float
    send_s: float

    @property
    def bound(self) -> str:
        """The slowest part: prompts, link or decoding."""
        rates = {"prompts": self.prompts_per_s, "link": self.sends_per_s, "decoding": self.decodes_per_s}
        return min(rates, key=rates.__getitem__)


def serve(prompts: Servers, decoding: Servers, n_requests: int) -> Disaggregated:
    """Results of two pools with `n_requests` in all, each replaced as it ends.

    Raises InputError for a pool without servers or without room for one request, and for devices without links.
    """
    if n_requests < 1:
        raise InputError(f"requests = {show(n_requests)}: must be a whole number from 1")
    for name, pool in (("prompts", prompts), ("decoding", decoding)):
        if pool.n_servers < 1:
            raise InputError(f"servers of {name} = {show(pool.n_servers)}: must be a whole number from 1")
        if not pool.point.max_batch:
            raise InputError(f"pool of {name}: {pool.point.infeasible_reason}")
    n_prompt, n_decode, design = prompts.n_servers, decoding.n_servers, decoding.point.design
    output_tokens, rounds = float(design.output_tokens), float(design.load.rounds)
    server = prompts.point.cycle
    alone_s = prompts.point.cycle_of(1.0, float(prompts.point.max_batch)).prompt_s
    prompts_per_s = n_prompt * server.n_places / (server.cycle.prompt_steps * server.prompt_step_s)
    sent_bytes, send_s, sends_per_s = _link(prompts, decoding)
    full_per_s = min(prompts_per_s, sends_per_s)
    in_step = min(design.stack.rounds_in_step / rounds, 1.0)
    burst_s = steady.burst_wait_s(max(n_requests - n_prompt, 0), 1 / full_per_s, design.stack.rounds_in_step, rounds)
    each_s = n_prompt / prompts_per_s

    def first_s(per_s: float) -> float:
        """To the first token: queue, prompt and link. A request meets n - 1 others."""
        queue_s = steady.prompt_queue_s(per_s / n_prompt, each_s, each_s**2, 0.0)
        return alone_s + send_s + burst_s + (1 - in_step) * (n_requests - 1) / n_requests * queue_s

    def decode(n: float) -> tuple[float, float]:
        """Seconds of a step of `n` requests on a server, and requests a second of all servers."""
        step_s = _step_s(decoding.point, n)
        return step_s, n_decode * n / (output_tokens * step_s)

    low, high = 0.0, min(n_requests / n_decode, float(decoding.point.max_batch))
    decodes_per_s = decode(high)[1]
    for _ in range(HALVINGS):
        n = (low + high) / 2
        per_s = decode(n)[1]
        if per_s < full_per_s and per_s * first_s(per_s) + n_decode * n < n_requests:
            low = n
        else:
            high = n
    step_s, per_s = decode(high)
    return Disaggregated(
        tpot_s=step_s,
        ttft_s=n_requests / per_s - output_tokens * step_s,
        requests_per_s=per_s,
        decoding_requests=high,
        prompts_per_s=prompts_per_s,
        sends_per_s=sends_per_s,
        decodes_per_s=decodes_per_s,
        sent_bytes=sent_bytes,
        send_s=send_s,
    )


def _step_s(point: Point, n: float) -> float:
    """Seconds of a decode step of `n` requests, straight between whole numbers."""
    n = max(n, 1.0)
    whole = int(n)
    step_s: float = point.run(whole).wave.decode_step_s
    return step_s if n == whole else step_s + (n - whole) * (point.run(whole + 1).wave.decode_step_s - step_s)


def _link(prompts: Servers, decoding: Servers) -> tuple[float, float, float]:
    """Bytes of a prompt's keys and values that a device sends or receives, the longer time, and most sends a second.

    All devices of a group that shares a request send their parts at once.
    """
    n_devices = prompts.n_devices + decoding.n_devices
    most_bytes, longest_s, sends_per_s = 0.0, 0.0, float("inf")
    for pool in (prompts, decoding):
        point, link = pool.point, send_terms(pool.point.device, n_devices, pool.point.stack_name)
        bits = kv_bytes.sequence_bits(point.design, point.made.limits, point.design.input_tokens)
        n_bytes = bits / kv_bytes.unit_of(point.design)
        send_s = collectives.library_collective_s(n_bytes, link.start_s, link.bytes_per_s, link.chunk_share)
        most_bytes, longest_s = max(most_bytes, n_bytes), max(longest_s, send_s)
        sends_per_s = min(sends_per_s, pool.n_servers * point.design.deployment.n_groups / send_s)
    return most_bytes, longest_s, sends_per_s
