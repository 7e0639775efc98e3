"""The last word on a trace: what the cards of a recommendation hold of it is simulated, at its own arrivals.

The closed form, by which deployments are searched, has Poisson arrivals and moments of lengths: close where a server is
half full, and optimistic where prompts are very unequal or arrivals come in bursts. So each card's server is run as
`dse simulate` runs it, on the requests that a router by prefix sends to it; where a limit breaks it holds less, and the
best is looked for again.
"""

import math
from dataclasses import replace

from dse.core.progress import Progress, each
from dse.model.point import Point
from dse.questions.common import TIE
from dse.questions.prompt_loads import TraceLoad, TraceRun
from dse.questions.search import OBJECTIVES, Fleet, Search, fleet_of
from dse.questions.server_design import ServerDesign
from dse.serving import routing, simulator, steady_state
from dse.serving.requests import Requests

#: requests of a run and of the trace that it is cut from, and servers that are tried, at most
MOST_REQUESTS, MOST_COPIED, MOST_STEPS = 50_000, 2_000_000, 24
#: requests from which on a run is worth its compilation from the start
LONG = 1000
#: loads that are tried of a server, and how close they bring what it holds
MOST_RUNS, CLOSE = 7, 0.05


def settled(search: Search, progress: Progress | None = None) -> Search:
    """The search with what the best deployments of a trace hold settled by simulation.

    What no run has settled holds as much less than the closed form says as the first server that was run.
    """
    load = search.demand.load
    assert isinstance(load, TraceLoad)
    for _ in each(range(MOST_STEPS), progress, "simulated servers"):
        fleet = next((one for one in _cards(search) if one.each not in load.runs(one.server)), None)
        if fleet is None or not _is_simulated(load, _computed(load, fleet.server)):
            break
        known = fleet.server.known
        if "kept" not in known:
            known["kept"] = _kept(load, fleet.server)
            load.known.setdefault("kept", known["kept"] or 1.0)
            search = _again(search)
            continue
        load.runs(fleet.server)[fleet.each] = times = run(load, fleet.server, fleet.each)
        if not _is_within(fleet.server, times):  # of less load in fewer copies of the trace, which are burstier
            known["kept"] *= (1 - CLOSE) * fleet.each / fleet.server.holds
            search = _again(search)
    cards = _cards(search)
    if cards and load.runs(cards[0].server):
        others = f"; other servers are taken to hold {load.known['kept']:.2f} times what the closed form says"
        said = (
            f"Simulated at the trace's own arrivals: what the cards hold and their times{_again_text(load, cards[0])}"
        )
        load.known["said"] = f"{said}{others if load.known['kept'] < 1 else ''}."
    return search


def _again_text(load: TraceLoad, fleet: Fleet) -> str:
    """The command that runs it again, of the trace at its own rate."""
    if abs(fleet.load / load.own_rate - 1) > TIE:
        return ""
    longest = f" --max-model-len {load.longest_tokens}" if load.n_left_out else ""
    return f" (dse simulate --trace {load.name} --servers {fleet.n_servers}{longest})"


def _cards(search: Search) -> list[Fleet]:
    """The deployments that are shown: the best, the fastest, the roomiest."""
    if not search.ranked:
        return []
    return [search.ranked[0], *((search.fastest, search.roomiest) if search.demand.amount else ())]


def _again(search: Search) -> Search:
    """The search with what its servers are now known to hold."""
    servers = [fleet.server.under(search.demand.limits) for fleet in search.found]
    fleets = [fleet_of(server, search.demand, search.prices, search.budget) for server in servers if server.holds]
    return replace(search, found=tuple(sorted(fleets, key=OBJECTIVES[search.objective])))


def _kept(load: TraceLoad, server: ServerDesign) -> float:
    """The share of the load that the closed form says which a server holds in simulated runs: to 5 %, from below."""
    computed = _computed(load, server)

    def keeps(share: float) -> bool:
        return _is_within(server, run(load, server, share * computed))

    if keeps(1.0):
        return 1.0
    # what a server like it keeps is tried first
    low, high, share = 0.0, 1.0, load.known.get("kept") or 0.5
    for _ in range(MOST_RUNS - 1):
        low, high = (share, high) if keeps(share) else (low, share)
        share = (low + high) / 2
        if high - low <= CLOSE * low:
            break
    return low


def run(load: TraceLoad, server: ServerDesign, requests_per_s: float) -> TraceRun:
    """A server that gets so many requests a second of the trace, at its arrivals, so much faster or slower."""
    design, work = server.design, server.work
    requests = _share(load, requests_per_s)
    if not load.keeps_prefixes(server):
        requests = replace(requests, blocks=None)
    host = load.cache.host(server) if load.with_host(server) else None
    scheduler = steady_state.scheduler_of(design.device, design.plan, work, host)
    served = design.device, design.plan, work
    if "step_times" not in server.known:
        server.known["step_times"] = simulator.times_of(*served, load.arriving, scheduler)
    is_long = len(requests.arrival_s) >= LONG or None
    of = simulator.run(*served, requests, scheduler, server.known["step_times"], compiled=is_long)
    own_s = steady_state.start_s(Point(design.device, design.plan, work), of.mean_running)
    tpot_s, found = of.tpot_s, int((of.device_tokens + of.host_tokens).sum())
    return TraceRun(
        tpot_s=float(tpot_s.mean()) if len(tpot_s) else 0.0,
        ttft_s=float(of.ttft_s(own_s).mean()),
        running=float((of.finish_s - of.first_s).sum()) / of.duration_s,
        hit_rate=max(found, 0) / int(of.requests.input_tokens.sum()),
    )


def _is_within(server: ServerDesign, times: TraceRun) -> bool:
    """Whether times keep the limits at the upper ends of their intervals."""
    limits = server.demand.limits
    return all(getattr(times, name) * server.late[name] <= most * (1 + TIE) for name, most in limits.items())


def _computed(load: TraceLoad, server: ServerDesign) -> float:
    """The load that a server holds by the closed form."""
    return load.held(server, server.demand.limits, True, load.with_host(server))


def _is_simulated(load: TraceLoad, requests_per_s: float) -> bool:
    """Whether copies of the trace give so many requests a second: of prompts that are found all must be run, or the
    beginning, which finds less, would count for the rest."""
    most = MOST_REQUESTS if load.requests else MOST_COPIED
    n_traces = _n_traces(load, requests_per_s)
    return n_traces == 1 or n_traces * len(load.arriving.arrival_s) <= most


def _n_traces(load: TraceLoad, requests_per_s: float) -> int:
    """The fewest copies of the trace that have so many requests a second."""
    return max(math.ceil(requests_per_s / load.own_rate * (1 - TIE)), 1)


def _share(load: TraceLoad, requests_per_s: float) -> Requests:
    """The part of the trace that a server gets, or of as many copies as its rate takes."""
    n_traces = _n_traces(load, requests_per_s)
    n_servers = max(round(n_traces * load.own_rate / requests_per_s), 1)
    if (key := ("share", n_traces, n_servers)) not in load.known:
        all_of = routing.times_as_many(load.arriving, n_traces).take(slice(MOST_REQUESTS * n_servers))
        load.known[key] = routing.share_of(all_of, n_servers).take(slice(MOST_REQUESTS))
    found: Requests = load.known[key]
    return replace(found, arrival_s=found.arrival_s * (n_traces * load.own_rate / n_servers / requests_per_s))
