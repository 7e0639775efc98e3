"""Loads whose prompts are found in the prefix cache: sessions of agents in a closed loop, and a trace.

By the formulas of `dse.questions.hits`, at each server's own pool: fewer bits keep more prompts, so fewer servers hold
the load.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from dse.core.errors import InputError, show
from dse.core.progress import Progress
from dse.model.deployed import n_groups_of
from dse.model.kv_layout import KvPlan
from dse.questions import hits
from dse.questions.common import TIE, Candidate, Result
from dse.questions.limits import LEAST_LOAD, MOST_LOAD, N_HALVINGS
from dse.questions.server_design import MEANS, RequestsAtRate, ServedLoad, ServerDesign, largest
from dse.serving import arrivals, stack_distances, trace_tables
from dse.serving.agents import Agents
from dse.serving.at_rate import AtRate, waits_at
from dse.serving.requests import Moments, Requests
from dse.serving.steady_state import FoundPrompts, HostMemory, TrafficServer
from dse.specs import server_flags
from dse.specs.workload import Workload

#: room beyond what a draw of requests says, which is some percent off: a bound is above all draws
BEYOND_DRAWS = 1.05
NOT_SIMULATED = (
    "Not simulated, as a server takes so many times the trace's own rate: times in closed form, of Poisson arrivals "
    "and by the moments of its lengths."
)
HASHED = "a .jsonl file whose lines have hash_ids"
#: pages that no cache has, and a server's part of a load at which it has none
ENDLESS, MOST_TIMES = 2**60, 2.0**80
#: pools at which hits of a trace are known: each so much larger than the one before
SIZE_RATIO, N_SIZES = 2 ** (1 / 8), 8 * 40


@dataclass(frozen=True, kw_only=True)
class PromptCache:
    """Host memory behind a design's prefix cache, if any."""

    host_of: Callable[[Candidate, Workload], HostMemory | None] = lambda design, work: None
    #: whether it was asked for
    asks: bool = False

    def host(self, server: ServerDesign) -> HostMemory | None:
        """Host memory behind a server, where its engine has a flag for that."""
        engine = server_flags.engines().get(str(server.fixed["stack"] or "").partition("@")[0])
        has_flag = engine is not None and "host_cache" in engine.flags
        return self.host_of(server.design, server.work) if has_flag and server.keeps_prompts else None

    def server(self, server: ServerDesign, load: hits.PromptLoad) -> hits.FormatServer:
        """A server with its pool, as `dse ask hits` has it."""
        return hits.server_of(server.design, server.work, load, self.host(server))


@dataclass(frozen=True, kw_only=True)
class CachedLoad(ServedLoad):
    """A load whose prompts are found in part."""

    cache: PromptCache = PromptCache()

    def check(self, server: ServerDesign) -> None:
        """Raise InputError for a server that keeps no tree of prompts."""
        if server.keeps_prompts and str(server.fixed["stack"]).startswith("llama.cpp"):
            raise InputError(hits.NO_TREE_OF_BLOCKS)

    @abstractmethod
    def held(self, server: ServerDesign, limits: Mapping[str, float], is_sure: bool, with_host: bool) -> float:
        """The largest load within limits, with or without host memory behind the server."""

    def holds_within(self, server: ServerDesign, limits: Mapping[str, float], is_sure: bool) -> float:
        """By halving."""
        return self.held(server, limits, is_sure, self.with_host(server))

    def with_host(self, server: ServerDesign) -> bool:
        """Whether host memory is worth its flag: the server holds more than `hits.LEAST_GAIN` times as much with it."""
        if "with_host" not in server.known:
            worth, limits = False, server.demand.limits
            if self.cache.host(server) is not None:
                without, beside = (self.held(server, limits, True, is_there) for is_there in (False, True))
                worth = beside > hits.LEAST_GAIN * without
            server.known["with_host"] = worth
        is_worth: bool = server.known["with_host"]
        return is_worth

    def flags(self, server: ServerDesign) -> dict[str, Any]:
        """Host memory."""
        host = self.cache.host(server) if self.with_host(server) else None
        return {"host_cache": host.capacity_bytes} if host else {}

    def found(self, server: ServerDesign, reused: FoundPrompts, running: float) -> Result:
        """Name what is found of prompts."""
        found = reused.mean_found_tokens
        return {
            "hit_rate": found / (found + reused.mean_own_tokens),
            "host_bytes": self.flags(server).get("host_cache"),
            "is_full": running >= hits.FULL_SHARE * reused.fitting,
            "joules_per_token": None,  # of prompts that are computed whole
        }

    def notes(self) -> list[str]:
        """Say how hits are counted."""
        said = "Found: in whole blocks, those used longest ago given up first"
        if self.cache.asks:
            more = f"{100 * (hits.LEAST_GAIN - 1):.0f} % more"
            said += f"; host memory is used where a server holds {more} with it, of engines with a flag for it"
        return [f"{said}."]


@dataclass(frozen=True)
class Sessions(CachedLoad):
    """Agents in a closed loop: `amount` sessions at a time, each of which stays on its server."""

    agents: Agents
    #: 16 bits, by whose times requests are drawn
    plain: KvPlan

    unit = "sessions"
    one = "session"
    no_room = "no pool holds the last turn of a session"
    tokens = "loop_tokens_per_s"
    how = "a session stays on its server, none waits for a place, and TPOT and TTFT are means over its turns"

    def bound(self, server: ServerDesign) -> str:
        """Requests that run at once."""
        return "places"

    def words(self, work: Workload) -> str:
        """The load in words."""
        return hits.agents_text(replace(self.agents, sessions=int(self.amount or 1)))

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {"requests_per_s": None, "requests": None, "agents": {**vars(self.agents), "sessions": self.amount}}

    def served(self, work: Workload) -> Workload:
        """A turn in the mean, with room for the last one."""
        agents = self.agents
        return replace(
            super().served(work),
            input_tokens=max(round(agents.mean_input_tokens), 1),
            output_tokens=agents.output_tokens,
            max_model_len=work.max_model_len or agents.last_tokens,
        )

    def _drawn(self, server: ServerDesign, n: int) -> hits.PromptLoad:
        """The requests of so many sessions; of one these do not depend on its times."""
        known, asked = server.known, replace(self.agents, sessions=n)
        if n > 1 and "turn_s" not in known:
            known["turn_s"] = hits.turn_s(replace(server.design, plan=self.plain), server.work, self.agents)
        return hits.agents_load(asked, known["turn_s"] if n > 1 else 1.0, n_groups_of(server.work))

    def _format(self, server: ServerDesign) -> hits.FormatServer:
        if "format" not in server.known:
            server.known["format"] = self.cache.server(server, self._drawn(server, 1))
        of: hits.FormatServer = server.known["format"]
        return of

    def traffic(self, server: ServerDesign, n: int, with_host: bool) -> TrafficServer:
        """The server of so many sessions."""
        if (key := (n, with_host)) not in server.known:
            of, drawn = self._format(server), self._drawn(server, n)
            found = hits.hits_of([of], drawn, (1.0,))[of.page_tokens]
            for behind in (False, True) if of.host else (False,):
                tokens = of.host_tokens if behind else 0.0
                server.known[n, behind] = of.traffic(found, drawn, of.pool_tokens, tokens)
        server_of: TrafficServer = server.known[key]
        return server_of

    def _endless(self, server: ServerDesign) -> TrafficServer:
        """The server where all that was ever computed is found."""
        if "endless" not in server.known:
            of, drawn = self._format(server), self._drawn(server, 1)
            found = _endless_hits(self.agents, of.page_tokens)
            server.known["endless"] = of.traffic(found, drawn, of.pool_tokens, times=MOST_TIMES)
        endless: TrafficServer = server.known["endless"]
        return endless

    def most(self, server: ServerDesign, limits: Mapping[str, float]) -> float:
        """Sessions that it holds where all that was ever computed is found."""
        return self._most(server, limits, True)

    def _most(self, server: ServerDesign, limits: Mapping[str, float], is_sure: bool) -> float:
        full, late = self._endless(server), server.late if is_sure else {}
        if not full.places or (server.work.max_model_len or math.inf) < self.agents.last_tokens:
            return 0.0

        def keeps(n_running: int) -> bool:
            row = full.closed(float(n_running))
            return all(getattr(row, name) * late.get(name, 1.0) <= limit for name, limit in limits.items())

        n_kept = largest(full.places, keeps) if limits else full.places
        n = min(n_kept + 1, full.places)
        n_sessions = n + full.closed(float(n)).requests_per_s * self.agents.think_s
        return float(int(BEYOND_DRAWS * min(n_sessions, self._places(full, server, is_sure)))) if n_kept else 0.0

    def _places(self, full: TrafficServer, server: ServerDesign, is_sure: bool) -> float:
        """Sessions of which none waits for a place: all places are taken, and the others think."""
        rate = full.full.requests_per_s * (server.slowest if is_sure else 1.0)
        return full.places + rate * self.agents.think_s

    def least(self, server: ServerDesign) -> float:
        """One."""
        return 1.0

    def _keeps(self, server: ServerDesign, n: int, limits: Mapping[str, float], is_sure: bool, with_host: bool) -> bool:
        full = self.traffic(server, n, with_host)
        if not full.places or n > self._places(full, server, is_sure):
            return False
        row, late = self._row(server, n, with_host), server.late if is_sure else {}
        return all(row[name] * late.get(name, 1.0) <= limit * (1 + TIE) for name, limit in limits.items())

    def _row(self, server: ServerDesign, n: int, with_host: bool) -> dict[str, Any]:
        """Means over the turns of so many sessions."""
        if (key := ("row", n, with_host)) not in server.known:
            loop = replace(self.agents, sessions=n)
            server.known[key] = hits.in_loop(self.traffic(server, n, with_host), loop)
        row: dict[str, Any] = server.known[key]
        return row

    def held(self, server: ServerDesign, limits: Mapping[str, float], is_sure: bool, with_host: bool) -> float:
        """By halving over whole numbers."""
        most = self._most(server, limits, is_sure)
        return largest(most, lambda n: self._keeps(server, n, limits, is_sure, with_host))

    def time_s(self, server: ServerDesign, amount: float, name: str) -> float:
        """The mean over the turns."""
        return float(self._row(server, int(amount), self.with_host(server))[name]) * server.late[name]

    def results(self, server: ServerDesign, amount: float) -> Result:
        """Results of the turns that run in the mean, with rate, TPOT and TTFT of the loop."""
        n, with_host = int(amount), self.with_host(server)
        row, reused = self._row(server, n, with_host), self.traffic(server, n, with_host).reused
        assert reused
        running = max(round(row["running"]), 1)
        return server.design.evaluate(replace(server.work, batch=running)) | {
            "tpot_s": row["tpot_s"],
            "ttft_s": row["ttft_s"],
            "running_batch": running,
            self.tokens: row["requests_per_s"] * self.agents.output_tokens,
            **self.found(server, reused, row["running"]),
        }


class TraceRun(NamedTuple):
    """Means over the requests of a simulated run; `running` decode at a time."""

    tpot_s: float
    ttft_s: float
    running: float
    hit_rate: float


@dataclass(frozen=True)
class TraceLoad(CachedLoad, RequestsAtRate):
    """Requests of a trace's lengths that come at random, `amount` a second; those that begin alike go to one server.

    A server that takes one of n of them finds what of all would be found in n times its pool: what is kept is given up
    n times as late (H. Che, Y. Tung and Z. Wang, "Hierarchical web caching systems", 2002).
    """

    name: str
    #: all that the model's context has room for
    moments: Moments
    longest_tokens: int
    #: all that come, as they come
    arriving: Requests
    #: whose prompts name their blocks; None: nothing says what they share
    requests: Requests | None = None
    n_left_out: int = 0
    #: of this trace: the requests of a group, their hits by tokens of a page, and what runs said
    known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    is_run = True
    how = f"requests that begin alike go to the same server (a router by prefix); {MEANS}"

    @property
    def own_rate(self) -> float:
        """Requests a second of the trace, in the mean."""
        return self.moments.rate_per_s or 1.0

    def words(self, work: Workload) -> str:
        """The load in words."""
        lengths = f"{self.moments.mean_input_tokens:,.0f} + {self.moments.mean_output_tokens:,.0f} tokens in the mean"
        return f"{self.counted(f'{self.amount:,.3g}')} of {self.name}, {lengths}"

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "requests_per_s": self.amount,
            "requests": None,
            "trace": self.name,
            "trace_requests_per_s": self.own_rate,
        }

    def served(self, work: Workload) -> Workload:
        """The mean lengths, with room for the longest request."""
        of = self.moments
        lengths = {"input_tokens": of.mean_input_tokens, "output_tokens": of.mean_output_tokens}
        rounded = {name: max(round(tokens), 1) for name, tokens in lengths.items()}
        longest = work.max_model_len or self.longest_tokens
        return replace(super().served(work), **rounded, max_model_len=longest)  # type: ignore[arg-type]

    def traffic(self, server: ServerDesign, requests_per_s: float) -> TrafficServer:
        """The server at a rate; at 0 all that was ever computed is found."""
        return self._traffic(server, requests_per_s, requests_per_s > 0 and self.with_host(server))

    def _traffic(self, server: ServerDesign, requests_per_s: float, with_host: bool) -> TrafficServer:
        known = server.known
        if self.requests is None:
            if "trace" not in known:
                known["trace"] = TrafficServer.of(server.design.device, server.design.plan, server.work, self.moments)
            of: TrafficServer = known["trace"]
            return of
        if "format" not in known:
            known["format"] = self.cache.server(server, self._load(n_groups_of(server.work)))
        format_server: hits.FormatServer = known["format"]
        times = min(self.own_rate / requests_per_s, MOST_TIMES) if requests_per_s else MOST_TIMES
        # in steps of the sizes that hits are known at
        step = math.floor(math.log(times, SIZE_RATIO))
        if (key := ("traffic", step, with_host)) not in known:
            found, pool = self._found(format_server), format_server.pool_tokens
            behind = format_server.host_tokens if with_host else 0.0
            known[key] = format_server.traffic(
                found, self._load(n_groups_of(server.work)), pool, behind, SIZE_RATIO**step
            )
        return known[key]  # type: ignore[no-any-return]

    def _load(self, n_groups: int) -> hits.PromptLoad:
        """The requests of a group that has a pool of its own."""
        if n_groups not in self.known:
            assert self.requests
            self.known[n_groups] = hits.trace_load(self.name, self.requests, None, n_groups)
        load: hits.PromptLoad = self.known[n_groups]
        return load

    def _found(self, server: hits.FormatServer) -> stack_distances.Hits:
        """Hits in pools of all sizes, a pass for each size of pages."""
        drawn = self._load(n_groups_of(server.work))
        if (key := (drawn.n_groups, server.page_tokens)) not in self.known:
            sizes = [0, *(int(SIZE_RATIO**k) for k in range(N_SIZES)), ENDLESS]
            self.known[key] = stack_distances.hits(drawn.requests, server.page_tokens, sizes)
        found: stack_distances.Hits = self.known[key]
        return found

    def held(self, server: ServerDesign, limits: Mapping[str, float], is_sure: bool, with_host: bool) -> float:
        """By halving below the saturated rate with all found."""
        late, share = server.late if is_sure else {}, MOST_LOAD * (server.slowest if is_sure else 1.0)

        def keeps(requests_per_s: float) -> bool:
            of = self._traffic(server, requests_per_s, with_host)
            if not of.places or requests_per_s > share * of.full.requests_per_s * (1 + TIE):
                return False
            waits = waits_at(of, requests_per_s)
            return waits is not None and all(
                getattr(waits, name) * late.get(name, 1.0) <= limit * (1 + TIE) for name, limit in limits.items()
            )

        endless = self._traffic(server, 0.0, with_host)
        has_room = endless.places and (server.work.max_model_len or math.inf) >= self.longest_tokens
        most = share * endless.full.requests_per_s if has_room else 0.0
        if not most or keeps(most):
            return most
        low, high = LEAST_LOAD * most, most
        if not keeps(low):
            return 0.0
        for _ in range(N_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if keeps(middle) else (low, middle)
        return low

    def holds_within(self, server: ServerDesign, limits: Mapping[str, float], is_sure: bool) -> float:
        """As much less than the closed form says as runs of it or of the first server said."""
        kept: float = server.known.get("kept", self.known.get("kept", 1.0)) if limits else 1.0
        return kept * super().holds_within(server, limits, is_sure)

    def keeps_prefixes(self, server: ServerDesign) -> bool:
        """Whether a server finds anything of prompts."""
        return self.requests is not None and self.cache.server(server, self._load(1)).keeps_prefixes

    def runs(self, server: ServerDesign) -> dict[float, TraceRun]:
        """Simulated runs of a server by requests a second."""
        runs: dict[float, TraceRun] = server.known.setdefault("runs", {})
        return runs

    def waits(self, server: ServerDesign, requests_per_s: float) -> AtRate | TraceRun:
        """The times of requests at a rate that the server holds: simulated ones, where there are."""
        return self.runs(server).get(requests_per_s) or super().waits(server, requests_per_s)

    def results(self, server: ServerDesign, amount: float) -> Result:
        """Results of the batch that decodes in the mean, and what is found."""
        of, waits = self.traffic(server, amount), self.waits(server, amount)
        found = {} if of.reused is None else self.found(server, of.reused, waits.running)
        if found and isinstance(waits, TraceRun):
            found["hit_rate"] = waits.hit_rate
        return super().results(server, amount) | found

    def notes(self) -> list[str]:
        """Say what is simulated, and what is left out or not known."""
        notes = [self.known.get("said", NOT_SIMULATED)]
        if self.requests is None:
            notes.append(f"{self.name} names no blocks of its prompts: none is found (give {HASHED}).")
        if self.n_left_out:
            notes.append(f"{self.n_left_out:,} requests beyond the longest context are left out.")
        return [*notes, *(super().notes() if self.requests else [])]


@lru_cache(maxsize=64)
def _endless_hits(agents: Agents, page_tokens: int) -> stack_distances.Hits:
    """Hits of a session where nothing is ever given up."""
    alone = hits.agents_load(replace(agents, sessions=1), 1.0, 1)
    return stack_distances.hits(alone.requests, page_tokens, [0, ENDLESS], alone.first_counted)


def trace_of(
    name: str, requests_per_s: float | None, longest: int | None, cache: PromptCache, progress: Progress | None = None
) -> TraceLoad:
    """A trace, shipped or in a file, as a load at its own rate or another; requests that are longer than the longest
    context are left out. Raises InputError."""
    known = name.strip().lower()
    if known in trace_tables.files():
        requests, moments = trace_tables.load(known).typical(), trace_tables.load(known).moments
        arriving = arrivals.requests_of(arrivals.Traffic(trace=name), Workload())
    else:
        requests = arriving = arrivals.requests_of(arrivals.Traffic(trace=name), Workload(), progress)
        moments = Moments.of(requests)
    fits = requests.input_tokens + requests.output_tokens <= (longest or math.inf)
    if not fits.any():
        raise InputError(
            f"trace = {show(name)}: every request is longer than the longest context of {longest:,} tokens"
        )
    if not fits.all():
        requests = requests.take(fits)
        moments = Moments.of(requests)
    if requests.blocks is None and cache.asks:
        raise InputError(f"trace = {show(name)}: names no blocks of its prompts, so none is found: give {HASHED}")
    if (rate := requests_per_s or moments.rate_per_s) is None:
        raise InputError(f"trace = {show(name)}: its requests come all at once: say how many a second (--rate)")
    return TraceLoad(
        rate,
        name=name,
        moments=moments,
        longest_tokens=int((requests.input_tokens + requests.output_tokens).max()),
        arriving=arriving.take(arriving.input_tokens + arriving.output_tokens <= (longest or math.inf)),
        requests=requests if requests.blocks else None,
        cache=cache,
        n_left_out=int((~fits).sum()),
    )
