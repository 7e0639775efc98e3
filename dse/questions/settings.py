"""Settings of an engine that a search tries beside its own: tokens of a step, requests at once, share of the memory.

The values stand in hwspecs/commands.toml. Settings change how many requests run at once and how prompts are cut into
steps; layouts and kernels stay, so that a server is laid out once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from dse.core.errors import DseError
from dse.model import capacity, lower
from dse.model.server import ServerResults
from dse.questions.common import TIE
from dse.questions.limits import LEAST_LOAD, MOST_LOAD, within
from dse.questions.server_design import ROUNDING, ErrorEnds, RequestsAtOnce, RequestsAtRate, ServerDesign, errors_of
from dse.serving.at_rate import AtRate, waits_at
from dse.serving.steady_state import TrafficServer
from dse.specs import server_flags
from dse.specs.workload import SETTINGS

#: loads of which settings are tried
LOADS = (RequestsAtOnce, RequestsAtRate)
#: what a search changes, by field; all else as the engine has it
Changed = Mapping[str, Any]


class ServerRoom(NamedTuple):
    """Requests that a server runs at once, and tokens of a step with prompts."""

    places: int
    step_tokens: int


def tried(server: ServerDesign) -> dict[str, tuple[float, ...]]:
    """Values that are tried of each setting beside the engine's own; none of what the user has said."""
    engine = server_flags.engines().get(str(server.fixed["stack"] or "").partition("@")[0])
    memory, load = server.point.lowered.design.memory, server.point.lowered.design.load
    if engine is None or not memory.is_server:
        return {}
    own = dict(zip(SETTINGS, (memory.budget_tokens, load.most_at_once, memory.asked_share), strict=True))
    return {
        name: tuple(value for value in engine.tried.get(name, ()) if value != own[name])
        for name in SETTINGS
        if getattr(server.work, name) is None
    }


def n_settings(server: ServerDesign) -> int:
    """Settings of a server that are tried, the engine's own among them."""
    return math.prod(1 + len(values) for values in tried(server).values())


#: settings as answers name them, and with a value
TITLES = {
    "prompt_budget_tokens": ("tokens of a step", "{:,.0f} tokens a step"),
    "max_num_seqs": ("requests at once", "{:,.0f} at once"),
    "gpu_memory_utilization": ("share of memory", "{:g} of the memory"),
    "state_type": ("recurrent states", "{} states"),
    "prefix_cache": ("prefix cache", "prefix cache {}"),
}


def text(changed: Changed) -> str:
    """Settings in words; "" for the engine's own."""
    return ", ".join(TITLES[name][1].format(value) for name, value in changed.items())


def cell(changed: Changed, name: str) -> str:
    """A setting in a table; "-" for the engine's own."""
    value = changed.get(name)
    return "-" if value is None else value if isinstance(value, str) else f"{value:,g}"


def _room(server: ServerDesign, changed: Changed, most: int | None = None) -> ServerRoom:
    """Places of a server in other settings, of which it takes `most`, and tokens of a step. Raises InputError."""
    # at these lengths, whatever the longest context
    point = server.point if server.demand.load.is_whole else server.traffic.point
    work = replace(point.asked, **changed)
    design = lower.in_settings(point.design, point.device, point.plan, work, point.stack_name)
    most = most or design.load.most_at_once
    design = design._replace(load=design.load._replace(max_num_seqs=most))
    fitting = capacity.max_batch(design, point.made, int(capacity.free_bytes(design)) * point.unit)
    return ServerRoom(min(most, int(fitting)), design.load.step_tokens)


def _largest_rooms(server: ServerDesign) -> dict[ServerRoom, Changed]:
    """For each number of tokens of a step no fewer places than any settings give: those beside the smallest steps, with
    memory for the fewest requests."""
    values, design = tried(server), server.point.lowered.design
    own, own_budget = design.load.most_at_once, design.memory.budget_tokens
    seqs, budgets = values.get("max_num_seqs", ()), values.get("prompt_budget_tokens", ())
    most, changed = int(max((own, *seqs))), dict[str, float]()
    if seqs and min(seqs) < own:
        changed["max_num_seqs"] = min(seqs)
    if budgets and min(budgets) < own_budget:
        changed["prompt_budget_tokens"] = min(budgets)
    if (share := max(values.get("gpu_memory_utilization", ()), default=0.0)) > design.memory.asked_share:
        changed["gpu_memory_utilization"] = share
    room = _room(server, changed, most)
    if design.memory.slot_blocks:  # which are laid out for each place
        room = room._replace(places=most)
    elif not server.keeps_prompts and seqs:  # a server may set as many states aside
        shared = {name: value for name, value in changed.items() if name != "max_num_seqs"}
        ways = [shared, *({**shared, "max_num_seqs": n} for n in seqs)]
        room = room._replace(places=max(_room(server, way).places for way in ways))
    rooms: dict[ServerRoom, Changed] = {room._replace(step_tokens=design.load.step_tokens): {}}
    for budget in budgets:
        step_tokens = design.load.step_tokens + int(budget) - own_budget
        rooms[room._replace(step_tokens=step_tokens)] = {"prompt_budget_tokens": budget}
    return rooms


def _rooms_of(server: ServerDesign, budget: float | None) -> dict[ServerRoom, Changed]:
    """Settings with such a budget by the room that they give, of equal rooms those with the fewest changes."""
    values, found = tried(server), dict[ServerRoom, Changed]()
    choices = {name: (None, *values[name]) for name in values} | {"prompt_budget_tokens": (budget,)}
    every = [{n: v for n, v in zip(choices, of, strict=True) if v is not None} for of in product(*choices.values())]
    for changed in sorted(every, key=len):
        with suppress(DseError):
            found.setdefault(_room(server, changed), changed)
    return found


def _largest(server: ServerDesign) -> dict[ServerRoom, Changed]:
    return server.kept("largest", partial(_largest_rooms, server))


def most(server: ServerDesign) -> float:
    """The load that a server holds in any settings: no more than this, and sooner computed."""
    if most not in server.found:
        server.found[most] = max(server.most, *(_most_in(server, room) for room in _largest(server)))
    bound: float = server.found[most]
    return bound


def rooms(server: ServerDesign) -> list[tuple[float, ServerRoom, Changed]]:
    """The load that a server holds at most with other room, the room, and the settings that give it with the fewest
    changes, these first."""
    if rooms in server.found:
        return server.found[rooms]  # type: ignore[no-any-return]
    found = list[tuple[float, ServerRoom, Changed]]()
    for largest, said in _largest(server).items():
        if bound := _most_in(server, largest):
            budget = said.get("prompt_budget_tokens")
            in_budget = server.kept(f"rooms of {budget}", partial(_rooms_of, server, budget))
            found += [(bound, room, changed) for room, changed in in_budget.items() if changed]
    server.found[rooms] = sorted(found, key=lambda one: len(one[2]))
    return server.found[rooms]  # type: ignore[no-any-return]


def _most_in(server: ServerDesign, room: ServerRoom) -> float:
    """The load that a server with other tokens of a step, and as many places or fewer, holds: no more than this."""
    if server.demand.load.is_whole or not room.places:
        return float(room.places)
    full = _in_room(server, room)  # where a request alone keeps the limits
    is_kept = _keeps_limits(server, full.closed(1.0), server.least_late)
    return MOST_LOAD * server.least_slow * full.full.requests_per_s if is_kept else 0.0


def _keeps_limits(server: ServerDesign, times: ServerResults | AtRate, late: Mapping[str, float]) -> bool:
    limits = server.demand.limits
    return all(late[name] * getattr(times, name) <= limit * (1 + TIE) for name, limit in limits.items())


def keeps_in(server: ServerDesign, room: ServerRoom, amount: float) -> bool:
    """Whether a server with other room surely keeps its limits at a load: requests at once, whether it has places."""
    if server.demand.load.is_whole or not room.places:
        return room.places >= amount
    full = _in_room(server, room)
    rate = full.full.requests_per_s
    if amount > MOST_LOAD * rate * (1 + TIE):
        return False
    waits = waits_at(full, max(amount, LEAST_LOAD * rate))
    if waits is None or not _keeps_limits(server, waits, server.least_late):
        return False
    late, slowest = _errors(server, room)
    return amount <= MOST_LOAD * slowest * rate * (1 + TIE) and _keeps_limits(server, waits, late)


def _in_room(server: ServerDesign, room: ServerRoom) -> TrafficServer:
    """The server with other places and tokens of a step; passes that are known stay so."""
    if (key := ("full", room)) not in server.found:
        full = server.traffic
        design = full.design._replace(load=full.design.load._replace(step_tokens=room.step_tokens))
        server.found[key] = replace(full, design=design, fitting=room.places, places=room.places)
    of: TrafficServer = server.found[key]
    return of


def _errors(server: ServerDesign, room: ServerRoom) -> ErrorEnds:
    """The ends of the full server in a room."""
    if (key := ("errors", room)) not in server.found:
        full = _in_room(server, room)
        parts = full.point.run(full.places).wave._asdict() | full.full._asdict()
        server.found[key] = errors_of({**full.point.lowered.results, **parts, "running_batch": full.places})
    ends: ErrorEnds = server.found[key]
    return ends


def _keeps(server: ServerDesign, room: ServerRoom, amount: float) -> bool:
    """`keeps_in`, which holds for less load too, and fails for more."""
    kept, failed = server.found.get(room, (0.0, math.inf))
    if kept < amount < failed:
        is_kept = keeps_in(server, room, amount)
        server.found[room] = (amount, failed) if is_kept else (kept, amount)
        return is_kept
    return bool(amount <= kept)


def holding(server: ServerDesign, amount: float, n_most: float = math.inf) -> ServerDesign:
    """The server in the settings with which the fewest hold a load, fewer than as the engine has it and no more than
    `n_most`, with the fewest changes; as the engine has it where there are none."""
    best, failed = server, set[int]()
    n = min(server.count(amount), n_most + 1) if server.holds else n_most + 1

    def least() -> float:
        return amount / (n - 1) * (1 - ROUNDING) if n > 1 else math.inf

    if most(server) < least():
        return server
    for bound, room, changed in rooms(server):
        if bound < least() or room.step_tokens in failed or not _keeps(server, room, least()):
            continue
        other = server.in_settings(changed)
        if not other.most or other.most < least():
            continue
        if server.demand.load.is_whole and not within(other.row(math.ceil(least()) or 1), server.demand.limits):
            failed.add(room.step_tokens)  # a limit binds, whatever there is room for
        elif other.holds and (fewer := other.count(amount)) < n:
            best, n = other, fewer
    return best


def roomiest(server: ServerDesign) -> ServerDesign:
    """The server in the settings in which it holds most."""
    best = server
    while True:
        more = best.holds + 1 if server.demand.load.is_whole else best.holds * (1 + TIE)
        other = holding(server, more, 1)
        if other.holds <= best.holds:
            return best
        best = other
