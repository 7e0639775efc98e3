"""Hits in the prefix cache by KV format: pool, share of the prompts found, TTFT, requests per second, price.

One pass over the prompts gives the hits at every pool (`dse.serving.stack_distances`), so those of all formats, and the
one server (`dse.serving.steady_state`) what they bring.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from dse.core.columns import Column, aligned, cells, percent
from dse.core.errors import InputError
from dse.core.progress import Progress, each
from dse.model.capacity import free_bytes, most_of_states
from dse.model.deployed import n_groups_of
from dse.model.kv_bytes import unit_of
from dse.model.offload import Beginning
from dse.model.point import Point
from dse.model.records import Memory
from dse.model.server import ServerResults
from dse.model.stacks import stack_of
from dse.questions import common, engine_formats
from dse.questions.common import THROUGHPUT, Candidate, QuestionAnswer, Result
from dse.questions.formats import TEXT_WIDTH, unmeasured
from dse.serving import block_traces, stack_distances, steady_state
from dse.serving.agents import Agents, check_agents, requests_of_agents
from dse.serving.requests import Moments, Requests
from dse.serving.stack_distances import Hits
from dse.serving.steady_state import FoundPrompts, HostMemory, TrafficServer
from dse.specs import servers
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import CLOSED, Bits
from dse.specs.workload import Workload

PLAIN = engine_formats.PLAIN
#: share of what a cache without limit finds from which on a pool is large enough: its knee
KNEE_SHARE = 0.95
#: gains below this are none: requests per second are told to some percent
LEAST_GAIN = 1.02
#: and hits of so much more of the prompts
LEAST_HITS = 0.01
#: pools over that of 16 bits at which the figure has gains, and formats that it draws
POOL_FACTORS = tuple(2.0 ** (k / 2) for k in range(-8, 9))
MOST_DRAWN = 5
#: of the number of requests that run at a time: error as a share of the sessions, and tries at most
LOOP_ERROR, MOST_TRIES = 1e-9, 50
#: columns of the figure's table
CURVE = ("format", "block_tokens", "plain_pool_tokens", "pool_tokens", "hit_rate", "requests_per_s", "gain", "is_own")
#: share of the requests that fit which leave so little of the pool that hits are fewer than a stack's
FULL_SHARE = 0.8
NO_TREE_OF_BLOCKS = "stack = llama.cpp: a slot keeps its own last prompt, no tree of blocks"
NO_TREE = "keeps tokens back until a group is packed: no prefix of it is shared"

COLUMNS = (
    Column("name", title="format"),
    Column("pool_tokens", title="pool tokens", form=",.0f"),
    percent("hit_rate", title="found %"),
    Column("agents", form=","),
    Column("ttft_s", title="TTFT s", form=".3g"),
    Column("tpot_s", title="TPOT ms", form=".4g", times=1e3),
    Column("requests_per_s", title="req/s", form=".3g"),
    Column("gain", form=lambda row: f"{row['gain']:.2f}x" if row["gain"] else "-"),
    Column("usd_per_million_tokens", title="$/M", form=".3g"),
    Column("kernels"),
)
#: columns of a second table, of host memory
HOST_COLUMNS = (
    Column("name", title="format"),
    Column("host_tokens", title="host tokens", form=",.0f"),
    percent("host_hit_rate", title="found %"),
    Column("host_ttft_s", title="TTFT s", form=".3g"),
    Column("host_requests_per_s", title="req/s", form=".3g"),
    Column("host_gain", title="gain", form=lambda row: f"{row['host_gain']:.2f}x" if row["host_gain"] else "-"),
    Column("fetch_from_tokens", title="fetch from", form=","),
)


@dataclass(frozen=True)
class PromptLoad:
    """Requests whose prompts are looked up, of one group of them, and the loop that they come from, if any."""

    requests: Requests
    first_counted: int
    moments: Moments
    #: groups of requests that have pools of their own
    n_groups: int
    agents: Agents | None = None
    #: requests of a trace that are longer than the longest context
    n_left_out: int = 0


@dataclass(frozen=True)
class FormatServer:
    """A format on the device: its pool in tokens and pages, of one group, and what it is laid out by."""

    design: Candidate
    work: Workload
    result: Result
    pool_tokens: float
    page_tokens: int
    keeps_prefixes: bool
    #: requests whose recurrent states find places
    most_of_states: int
    #: behind the device, in bytes of its format; bytes of a token that come back from there, and that it takes there
    host: HostMemory | None = None
    token_bytes: float = 0.0
    host_token_bytes: float = 0.0

    @property
    def host_tokens(self) -> float:
        """Tokens that host memory keeps behind the pool."""
        return self.host.capacity_bytes / self.host_token_bytes if self.host and self.host_token_bytes else 0.0

    @property
    def link_tokens_per_s(self) -> float:
        """Tokens a second that come back from host memory."""
        assert self.host
        return self.host.bandwidth_bytes_per_s / self.token_bytes

    def traffic(
        self, hits: Hits, load: PromptLoad, pool_tokens: float, behind_tokens: float = 0.0, times: float = 1.0
    ) -> TrafficServer:
        """The server of the load with so large a pool; `behind_tokens` are kept in host memory behind it, from where
        they are always fetched, as servers do. Of one in `times` of the load's requests, those that begin alike
        together, it finds what of all would be found in memory so many times as large (`FormatServer.served` has all).
        """
        moments, agents = load.moments, load.agents
        on_device, behind = (
            times * tokens // self.page_tokens if self.keeps_prefixes else 0
            for tokens in (pool_tokens, pool_tokens + behind_tokens)
        )
        found, squared, own_squared = hits.means(behind)
        from_host = found - hits.means(on_device)[0]
        load_s = self.host.start_s + from_host / self.link_tokens_per_s if self.host and from_host > 0 else 0.0
        shared = agents.shared_tokens if agents and self.keeps_prefixes else 0
        own_tokens = moments.mean_input_tokens + moments.mean_output_tokens - shared
        fitting = min(max(int((pool_tokens - shared) // own_tokens), 0), self.most_of_states) * load.n_groups
        if agents and agents.last_tokens > pool_tokens:
            fitting = 0
        reused = FoundPrompts(
            fitting=fitting,
            mean_own_tokens=moments.mean_input_tokens - found,
            mean_own_squared=max(own_squared, 0.0),
            mean_found_tokens=found,
            mean_found_squared=squared,
            load_s=load_s,
            loads_beside=self.host is None or self.host.is_beside,
        )
        device, plan = self.design.device, self.design.plan
        how = steady_state.scheduler_of(device, plan, self.work)
        return TrafficServer.of(device, plan, self.work, moments, how, reused)

    def served(self, hits: Hits, load: PromptLoad, pool_tokens: float, behind_tokens: float = 0.0) -> dict[str, Any]:
        """Means over requests of a server with so large a pool, by column; of a pool that holds no request, None.

        Of agents the closed loop of all of them; of a trace a server that is always full. `behind_tokens`: kept in host
        memory behind the pool (`traffic`).
        """
        server = self.traffic(hits, load, pool_tokens, behind_tokens)
        numbers = dict.fromkeys(("ttft_s", "tpot_s", "requests_per_s", "usd_per_million_tokens", "running", "waiting"))
        if server.places:
            numbers = in_loop(server, load.agents) if load.agents else _row(server.full, float(server.places))
        assert server.reused
        is_full = (numbers["running"] or 0.0) >= FULL_SHARE * server.reused.fitting > 0
        found = server.reused.mean_found_tokens
        return {
            "hit_rate": found / load.moments.mean_input_tokens,
            "saved_tokens": found,
            "is_full": is_full,
            **numbers,
        }


def _row(full: ServerResults, running: float, waits_s: float = 0.0, waiting: float = 0.0) -> dict[str, Any]:
    return {
        "ttft_s": full.ttft_s + waits_s,
        "tpot_s": full.tpot_s,
        "requests_per_s": full.requests_per_s,
        "usd_per_million_tokens": full.usd_per_million_tokens,
        "running": running,
        "waiting": waiting,
    }


def in_loop(server: TrafficServer, agents: Agents) -> dict[str, Any]:
    """The closed loop: sessions run, think, or wait for a place. Sessions = requests/s x (think + response) (J. Little,
    1961), the response of a server of n requests that of its own closed loop."""
    n_sessions, think_s = float(agents.sessions), agents.think_s
    full = server.full
    if (waiting := n_sessions - server.places - full.requests_per_s * think_s) >= 0:
        return _row(full, float(server.places), waiting / full.requests_per_s, waiting)
    alone = server.closed(1.0)
    if 1 + alone.requests_per_s * think_s >= n_sessions:  # hardly ever two at a time
        rate = n_sessions / (think_s + 1 / alone.requests_per_s)
        busy = rate / alone.requests_per_s
        price = alone.usd_per_million_tokens / busy
        return _row(alone._replace(requests_per_s=rate, usd_per_million_tokens=price), busy)
    # regula falsi (Illinois): the rate bends little, and is dear
    low, high = 1.0, float(server.places)
    under, over = 1 + alone.requests_per_s * think_s - n_sessions, -waiting
    middle = low
    for _ in range(MOST_TRIES):
        middle = (low * over - high * under) / (over - under)
        off = middle + server.closed(middle).requests_per_s * think_s - n_sessions
        if abs(off) <= LOOP_ERROR * n_sessions:
            break
        if off < 0:
            low, under, over = middle, off, over / 2
        else:
            high, under, over = middle, under / 2, off
    return _row(server.closed(middle), middle)


@dataclass(frozen=True, repr=False)
class HitsByFormat(QuestionAnswer):
    """The answer: 16 bits first, then the other formats, those with most requests per second first."""

    context: str
    load_text: str
    rows: tuple[dict[str, Any], ...]
    #: share that a cache without limit finds, and the smallest pool that finds KNEE_SHARE of it
    endless_rate: float
    knee_tokens: int
    is_loop: bool
    notes: tuple[str, ...]
    load: PromptLoad = field(compare=False)
    servers: tuple[FormatServer, ...] = field(compare=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a format, in SI base units."""
        return pd.DataFrame(self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain data in base units."""
        return {
            "question": "hits",
            "context": self.context,
            "load": self.load_text,
            "answer": self.answer(),
            "best": self.best and self.best["name"],
            "endless_rate": self.endless_rate,
            "knee_tokens": self.knee_tokens,
            "formats": list(self.rows),
            "notes": list(self.notes),
        }

    @property
    def best(self) -> dict[str, Any] | None:
        """The format that pays most, of those with measured kernels where any pays."""
        paying = [row for row in self.rows[1:] if _pays(row, self.rows[0])]
        return max(paying, key=lambda row: (not row["marks"], row["gain"] or 0.0), default=None)

    def answer(self) -> str:
        """The format that pays and why, or that the cache is large enough; agents that fit, and the knee."""
        plain, best = self.rows[0], self.best
        return " ".join([*self._verdict(plain, best), *self._room(), *self._host(best or plain)])

    def _verdict(self, plain: dict[str, Any], best: dict[str, Any] | None) -> list[str]:
        if plain["requests_per_s"] is None:
            runs = [row["name"] for row in self.rows[1:] if row["requests_per_s"] is not None]
            if not runs:
                return ["No format has room for the requests: give more devices (--tp) or shorter contexts."]
            return [f"{PLAIN} has no room for the requests; {', '.join(runs)} {'have' if len(runs) > 1 else 'has'}."]
        found, endless = f"{100 * plain['hit_rate']:.1f} %", f"{100 * self.endless_rate:.1f} %"
        most = max((row["hit_rate"] for row in self.rows), default=0.0)
        said = []
        if self.endless_rate == 0:
            said.append("No prompt begins like another: no cache brings hits.")
        elif plain["hit_rate"] >= KNEE_SHARE * self.endless_rate:
            said.append(
                f"Your cache is large enough: fewer bits bring no hits ({PLAIN} finds {found} of the prompt tokens, a "
                f"cache without limit {endless})."
            )
        elif best is None and most > plain["hit_rate"]:
            said.append(f"Fewer bits find up to {100 * most:.1f} % of the prompt tokens in place of {found}.")
        if best is None:
            return [*said, f"No format serves more than {PLAIN}." if self.rows[1:] else "No other format runs here."]
        why = f"{best['gain']:.2f} times the requests/s of {PLAIN}, TTFT {best['ttft_s']:.3g} s in place of "
        why += f"{plain['ttft_s']:.3g}"
        if best["hit_rate"] > plain["hit_rate"] + LEAST_HITS:
            said.append(
                f"{best['name']} pays: it finds {100 * best['hit_rate']:.1f} % of the prompt tokens in place of "
                f"{found} ({endless} without limit); {why}."
            )
        else:
            said.append(f"{best['name']} pays by its steps and its room: {why}.")
        ahead = [row for row in self.rows[1:] if row["marks"] and (row["gain"] or 0.0) > best["gain"]]
        if ahead and not best["marks"]:
            most_of = f"{ahead[0]['name']} would give {ahead[0]['gain']:.2f} times"
            said.append(f"By rates that nobody measured {most_of}.")
        return said

    def _room(self) -> list[str]:
        if not self.endless_rate or all(row["requests_per_s"] is None for row in self.rows):
            return []
        knee = f"The knee: {100 * KNEE_SHARE:.0f} % of all hits take a pool of {self.knee_tokens:,} tokens"
        if not self.is_loop:
            return [f"{knee}."]
        fitting = [row for row in self.rows if row["agents"] is not None]
        largest = max(fitting, key=lambda row: row["agents"])
        named = {row["name"]: row["agents"] for row in (self.rows[0], self.best or self.rows[0], largest)}
        rooms = ", ".join(f"{n or 0:,} in {name}" for name, n in named.items())
        return [f"{knee}. Agents that a pool keeps so: {rooms}."]

    def _host(self, row: dict[str, Any]) -> list[str]:
        """Say what host memory brings to a format."""
        gain = row.get("host_gain")
        if gain is None:
            return []
        found = f"it finds {100 * row['host_hit_rate']:.1f} % in place of {100 * row['hit_rate']:.1f}"
        sooner = row["fetch_from_tokens"]
        crossing = (
            f"fetching is sooner from {sooner:,} tokens on" if sooner else "no prompt is fetched sooner than computed"
        )
        if gain >= LEAST_GAIN:
            return [f"Host memory pays for {row['name']}: {found}, {gain:.2f} times the requests/s; {crossing}."]
        if gain <= 1 / LEAST_GAIN:
            return [f"Host memory loses for {row['name']}: {gain:.2f} times the requests/s; {crossing}."]
        return [f"Host memory brings {row['name']} no requests/s ({gain:.2f} times): {found}; {crossing}."]

    def text(self) -> str:
        """The table, then the answer."""
        shown = [column for column in COLUMNS if column.name != "agents" or self.is_loop]
        head, *told = (
            textwrap.fill(part, TEXT_WIDTH, break_on_hyphens=False)
            for part in (f"{self.context}; {self.load_text}", self.answer(), " ".join(self.notes))
        )
        tables = ["\n".join(aligned(cells(shown, self.rows), range(1)))]
        if "host_tokens" in self.rows[0]:
            lines = aligned(cells(HOST_COLUMNS, self.rows), range(1))
            tables.append("\n".join(["With host memory behind the device, over the device alone:", *lines]))
        return "\n\n".join([f"Do fewer bits bring hits in the prefix cache?\n{head}", *tables, *told])

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Hit rate and gain over 16 bits of each format that the figure draws, at pools around the device's own.

        `plain_pool_tokens` is of 16 bits, `pool_tokens` the format's own, larger by its bits; `is_own`: of this device.
        """
        if self.servers[0].pool_tokens == 0:
            return pd.DataFrame(columns=CURVE)
        plain, factors = self.servers[0], POOL_FACTORS
        drawn = {row["name"] for row in (self.rows[0], *_drawn(self.rows[1:], self.best))}
        chosen = [server for server in self.servers if server.design.name in drawn and server.pool_tokens]
        made = hits_of(chosen, self.load, factors)
        rows: list[dict[str, Any]] = []
        base: dict[float, float | None] = {}
        for server in chosen:
            for factor in factors:
                numbers = server.served(made[server.page_tokens], self.load, factor * server.pool_tokens)
                rate = numbers["requests_per_s"]
                base.setdefault(factor, rate)
                rows.append(
                    {
                        "format": server.design.name,
                        "block_tokens": server.page_tokens,
                        "plain_pool_tokens": factor * plain.pool_tokens * self.load.n_groups,
                        "pool_tokens": factor * server.pool_tokens * self.load.n_groups,
                        "hit_rate": numbers["hit_rate"],
                        "requests_per_s": rate,
                        "gain": rate / base[factor] if rate and base[factor] else None,
                        "is_own": factor == 1.0,
                    }
                )
        return pd.DataFrame(rows, columns=CURVE)


def _drawn(rows: Sequence[dict[str, Any]], best: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The formats of a figure: the best, then those of most requests per second."""
    ranked = sorted(rows, key=lambda row: (row is not best, -(row["requests_per_s"] or 0.0)))
    return ranked[: MOST_DRAWN - 1]


def _pays(row: Mapping[str, Any], plain: Mapping[str, Any]) -> bool:
    """Whether a format serves more, or as many with a first token that is a tenth sooner."""
    gain = row["gain"]
    if gain is None:
        return False
    return gain >= LEAST_GAIN or (gain > 1 / LEAST_GAIN and row["ttft_s"] < 0.9 * plain["ttft_s"])


def hits_by_format(
    device: HardwareSpec,
    model: ModelSpec,
    work: Workload,
    source: Agents | str,
    names: Sequence[str] | None = None,
    bits: Bits = CLOSED,
    host_of: Callable[[Candidate], HostMemory | None] = lambda design: None,
    progress: Progress | None = None,
) -> HitsByFormat:
    """Hits of agents, or of a trace file, in the pool of each format that the engine runs (or of those named).

    `host_of` gives the host memory behind a design, in bytes of its format.

    Raises InputError where the load goes beyond the model's context, and for a server without a tree of prompts.
    """
    if work.batching == "static":
        raise InputError("batching = static: waits for whole batches, these requests come one by one: leave it out")
    if work.prefix_cache == "off":
        raise InputError("prefix-cache = off: then no prompt is found: leave it out")
    if names is None:
        designs = engine_formats.compared(device, model, work, bits)
    else:
        plain = common.design(device, model, PLAIN, bits=bits)
        others = [common.design(device, model, name, bits=bits) for name in dict.fromkeys(names)]
        designs = [plain, *(design for design in others if design.name != PLAIN)]
    stack = str(designs[0].speed(work)["stack"] or "")
    if stack.partition("@")[0] == "llama.cpp":
        raise InputError(f"{NO_TREE_OF_BLOCKS}: give --stack vllm")
    load = _load_of(designs[0], work, source, progress)
    formats = [server_of(design, work, load, host_of(design)) for design in designs]
    found = hits_of(formats, load, (1.0,), progress)
    rows = []
    for server in each(formats, progress, "formats"):
        of = found[server.page_tokens]
        numbers = server.served(of, load, server.pool_tokens)
        with_host = server.served(of, load, server.pool_tokens, server.host_tokens) if server.host else {}
        rows.append(_format_row(server, of, load, numbers, with_host))
    rates = [row["requests_per_s"] for row in rows]
    for row, rate in zip(rows, rates, strict=True):
        row["gain"] = rate / rates[0] if rate and rates[0] else None
    rows = [rows[0], *sorted(rows[1:], key=lambda row: -(row["requests_per_s"] or 0.0))]
    of_plain = found[formats[0].page_tokens]
    return HitsByFormat(
        context=common.context(device, model, replace(work, output_tokens=_out(load)), formats[0].result),
        load_text=_load_text(load),
        rows=tuple(rows),
        endless_rate=of_plain.endless_rate,
        knee_tokens=of_plain.pages_for(KNEE_SHARE * of_plain.endless_rate) * formats[0].page_tokens * load.n_groups,
        is_loop=load.agents is not None,
        notes=tuple(_notes(formats, of_plain, load, [row["name"] for row in rows if row["is_full"]])),
        load=load,
        servers=tuple(formats),
    )


def _out(load: PromptLoad) -> int:
    return max(round(load.moments.mean_output_tokens), 1)


def _load_of(plain: Candidate, work: Workload, source: Agents | str, progress: Progress | None) -> PromptLoad:
    """The requests. Raises InputError."""
    longest = work.max_model_len or plain.plan.model.max_position_tokens
    if isinstance(source, Agents):
        check_agents(source, longest)
        return agents_load(source, turn_s(plain, work, source), n_groups_of(work))
    if not source.lower().endswith(block_traces.ENDING):
        raise InputError(f"trace = {source}: has no block hashes: give a .jsonl file whose lines have hash_ids")
    return trace_load(source, block_traces.read(source, progress), longest, n_groups_of(work))


def turn_s(plain: Candidate, work: Workload, agents: Agents) -> float:
    """Seconds that a turn takes alone, about: the load's requests are drawn by it, for all formats."""
    mean_tokens = agents.shared_tokens + max(agents.turns * agents.growth_tokens // 2, 1)
    alone = replace(work, batch=1, input_tokens=mean_tokens, output_tokens=agents.output_tokens, max_model_len=None)
    result = plain.evaluate(alone)
    return float((result["ttft_s"] or 1.0) + agents.output_tokens * (result["tpot_s"] or 0.0))


@lru_cache(maxsize=4)  # some are of 100 MB
def agents_load(agents: Agents, answer_s: float, n_groups: int) -> PromptLoad:
    """The requests of agents, of one group where each has a pool of its own. Raises LimitError."""
    requests, first = requests_of_agents(replace(agents, sessions=-(-agents.sessions // n_groups)), answer_s)
    counted = Moments.of(requests.take(slice(first, None)))
    return PromptLoad(requests=requests, first_counted=first, moments=counted, n_groups=n_groups, agents=agents)


def trace_load(source: str, requests: Requests, longest: int | None, n_groups: int) -> PromptLoad:
    """The requests of a trace that the model's context has room for, of one group. Raises InputError."""
    fits = requests.input_tokens + requests.output_tokens <= (longest or np.inf)
    if not fits.any():
        raise InputError(f"trace = {source}: every request is longer than the longest context of {longest:,} tokens")
    mine = requests.take(fits).take(slice(None, None, n_groups))
    return PromptLoad(
        requests=mine, first_counted=0, moments=Moments.of(mine), n_groups=n_groups, n_left_out=int((~fits).sum())
    )


def server_of(design: Candidate, work: Workload, load: PromptLoad, host: HostMemory | None) -> FormatServer:
    """A design as a server of the load, with its pool."""
    of = load.agents or load.moments
    lengths = {"input_tokens": max(round(of.mean_input_tokens), 1), "output_tokens": _out(load)}
    result = design.evaluate(replace(work, **lengths))  # type: ignore[arg-type]
    lowered = design.lowered(replace(work, **lengths))  # type: ignore[arg-type]
    memory = lowered.memory
    pool_tokens = float(result["kv_usable_tokens"] or 0)
    token_bytes, host_token_bytes = _host_bytes(
        design, work, memory, result["free_bytes"] / pool_tokens if pool_tokens else 0.0
    )
    return FormatServer(
        design=design,
        work=work,
        result=result,
        pool_tokens=pool_tokens,
        page_tokens=int(memory.full_block_tokens if memory.block_bits else work.block_tokens),
        keeps_prefixes=work.prefix_cache != "off" and all(g.step_tokens <= 1 for g in design.plan.groups),
        most_of_states=most_of_states(lowered, free_bytes(lowered) * unit_of(lowered)),
        host=host,
        token_bytes=token_bytes,
        host_token_bytes=host_token_bytes,
    )


def _host_bytes(design: Candidate, work: Workload, memory: Memory, token_bytes: float) -> tuple[float, float]:
    """Bytes of a token that come back from host memory, and that it takes there, on a device's side: as in the pool.

    Of models with states each block keeps one there (assumed; docs/explanation/model.md, Hits at every pool, has what
    measured servers say), of which a prompt needs the last alone, less than the rest by far.
    """
    if not (memory.block_bits and memory.state_blocks):
        return token_bytes, token_bytes
    device, unit = design.device, Point(design.device, design.plan, work).unit
    kept = servers.of(stack_of(device, work)[0], device, work.stack).state_blocks.count
    group_bytes = memory.block_bits / unit / memory.full_block_tokens
    return memory.full_groups * group_bytes, (memory.full_groups + memory.state_blocks // kept) * group_bytes


def hits_of(
    formats: Sequence[FormatServer], load: PromptLoad, factors: Sequence[float], progress: Progress | None = None
) -> dict[int, Hits]:
    """Hits by tokens of a page: a pass for each size of pages that the formats have, all pools in one."""
    found = {}
    for page in dict.fromkeys(server.page_tokens for server in formats):
        pools = [server.pool_tokens for server in formats if server.page_tokens == page]
        behind = [server.pool_tokens + server.host_tokens for server in formats if server.page_tokens == page]
        sizes = {int(factor * pool // page) for pool in pools for factor in factors} | {0}
        sizes |= {int(tokens // page) for tokens in behind}
        found[page] = stack_distances.hits(load.requests, page, sorted(sizes), load.first_counted, progress=progress)
    return found


def _format_row(
    server: FormatServer, hits: Hits, load: PromptLoad, numbers: dict[str, Any], with_host: dict[str, Any]
) -> dict[str, Any]:
    marks = unmeasured(server.result["assumptions"])
    agents, room = load.agents, None
    if agents and server.keeps_prefixes and hits.endless_rate:
        knee = hits.pages_for(KNEE_SHARE * hits.endless_rate) * server.page_tokens
        shared = agents.shared_tokens
        one = (knee - shared) / -(-agents.sessions // load.n_groups)
        room = int(max(server.pool_tokens - shared, 0) / max(one, 1.0)) * load.n_groups
    return {
        "name": server.design.name,
        "pool_tokens": server.pool_tokens * load.n_groups,
        "block_tokens": server.page_tokens,
        "agents": room,
        **numbers,
        "gain": None,
        "kernels": "assumed" if marks else "measured",
        "marks": list(marks),
        **_host_row(server, load.n_groups, numbers, with_host),
    }


def _host_row(
    server: FormatServer, n_groups: int, numbers: dict[str, Any], with_host: dict[str, Any]
) -> dict[str, Any]:
    """Host memory of a format: its tokens, hits with it, its gain, and the beginning from which fetching is sooner."""
    if not server.host:
        return {}
    point = Point(server.design.device, server.design.plan, replace(server.work, max_model_len=None))
    beginning = Beginning(point, server.host.bandwidth_bytes_per_s, server.host.start_s)
    first = beginning.fetched_from() if server.pool_tokens else None
    rate, before = with_host["requests_per_s"], numbers["requests_per_s"]
    return {
        "host_tokens": server.host_tokens * n_groups,
        "host_hit_rate": with_host["hit_rate"],
        "host_ttft_s": with_host["ttft_s"],
        "host_requests_per_s": rate,
        "host_gain": rate / before if rate and before else None,
        "fetch_from_tokens": first and -(-first // server.page_tokens) * server.page_tokens,  # whole blocks come back
    }


def _load_text(load: PromptLoad) -> str:
    moments, agents = load.moments, load.agents
    lengths = f"prompts of {moments.mean_input_tokens:,.0f} and answers of {moments.mean_output_tokens:,.0f} tokens"
    if agents is None:
        return (
            f"trace of {moments.n_requests * load.n_groups:,} requests, {lengths} in the mean, the server always full"
        )
    return f"{agents_text(agents)}; {lengths} in the mean"


def agents_text(agents: Agents) -> str:
    """The load of agents in words."""
    shared = f"{agents.shared_tokens:,} shared, " if agents.shared_tokens else ""
    return (
        f"{agents.sessions:,} agents of {agents.turns:,} turns: {shared}{agents.growth_tokens:,} more a turn, "
        f"{agents.think_s:g} s between turns"
    )


def _notes(formats: Sequence[FormatServer], hits: Hits, load: PromptLoad, full: Sequence[str]) -> list[str]:
    """Notes: how hits are counted, what switches them off, what is left out and assumed."""
    pages = {server.page_tokens for server in formats}
    first = "Found: in whole blocks"
    if len(pages) == 1:
        first += f" of {pages.pop():,} tokens"
    else:
        blocks = ", ".join(f"{server.page_tokens:,} in {server.design.name}" for server in formats[:4])
        first += f", which hold a state and grow as bits fall ({blocks})"
    lines = [f"{first}, the blocks used longest ago given up first; means, no intervals."]
    if formats[0].design.plan.model.state_bytes:
        lines.append("Of states the checkpoint at a prompt's last whole block counts as kept.")
    if off := [server.design.name for server in formats if not server.keeps_prefixes]:
        lines.append(f"No hits: {', '.join(off)} ({NO_TREE}).")
    if any(unmeasured(server.result["assumptions"]) for server in formats):
        lines.append("Kernels assumed: of rates that nobody measured.")
    if hits.sampled < 1:
        lines.append(
            f"Of the blocks 1 in {1 / hits.sampled:.0f} was followed: {100 * hits.error:.2f} % standard error."
        )
    if full:
        lines.append(
            f"Requests that run fill the pool of {', '.join(full)}: `dse simulate` finds less there, down to half."
        )
    if load.n_left_out:
        lines.append(f"{load.n_left_out:,} requests beyond the longest context are left out.")
    if refused := engine_formats.other_software([server.design for server in formats], formats[0].work):
        lines.append(refused)
    return [*lines, common.assumption_text([server.result for server in formats], THROUGHPUT)]
