"""Changes of flags from a server that runs today to the best one on its devices, and the gain of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dse.core.errors import DseError
from dse.core.units import plain
from dse.model import starts
from dse.questions import common, layouts
from dse.questions.common import Candidate, Result
from dse.questions.search import Fleet, Search, fleet_of
from dse.questions.server_design import ServerDesign
from dse.specs import server_flags
from dse.specs.device_and_model import ModelSpec
from dse.specs.measurements import CLOSED, Bits
from dse.specs.server_flags import ReadCommand
from dse.specs.workload import Workload

#: a saving below this share of the cost, or of throughput, is no reason to change; assumed
WORTH = 0.02
#: engines that do not start with more tokens than the model has positions (vllm/config/model.py,
#: `_derive_context_length` in sglang/srt/configs/model_config.py), and what of a line stretches or allows these
CHECK_POSITIONS = ("vllm", "sglang")
_STRETCHES = ("rope", "hf-overrides", "hf_overrides", "model-override", "ALLOW_LONG", "ALLOW_OVERWRITE")


@dataclass(frozen=True)
class Change:
    """One difference from today's server, with the servers that the load then takes; None where it does not run,
    holds no load within the limits, or more are needed than there are, with why."""

    what: str
    fleet: Fleet | None
    why: str = ""
    starts: bool = True


@dataclass(frozen=True)
class Changes:
    """Today's server under the load, each difference from the best server on its devices, and all of them; without
    differences where its engine refuses the line."""

    line: str
    left_out: tuple[str, ...]
    today: Change
    single: tuple[Change, ...]
    best: Fleet | None

    @property
    def n_today(self) -> int:
        """Servers as today's that the load takes; 0 where no number holds it."""
        return self.today.fleet.n_servers if self.today.fleet else 0

    @property
    def saves_usd(self) -> float:
        """USD an hour that all changes save; 0 where they are not worth it."""
        if self.best is None or self.today.fleet is None:
            return 0.0
        saved = self.today.fleet.usd_per_hour - self.best.usd_per_hour
        return saved if saved > WORTH * self.today.fleet.usd_per_hour else 0.0

    @property
    def times(self) -> float:
        """Throughput after all changes over today's, where the devices are full; 1 where it is not worth it, and where
        a load is asked for."""
        if self.best is None or self.today.fleet is None or self.best.server.demand.amount:
            return 1.0
        times = self.best.tokens_per_s / self.today.fleet.tokens_per_s
        return times if times > 1 + WORTH else 1.0

    @property
    def is_nothing(self) -> bool:
        """Whether doing nothing is the answer: today's server holds the load, and no change saves or gives much."""
        return self.today.fleet is not None and not self.saves_usd and self.times == 1.0

    def to_json(self) -> Result:
        """All of it; USD an hour None where a change does not hold the load."""
        every = (self.today, *self.single)
        return {
            "line": self.line,
            "left_out": list(self.left_out),
            "do_nothing": self.is_nothing,
            "saves_usd_per_hour": self.saves_usd,
            "changes": [
                {
                    "what": change.what,
                    "n_servers": change.fleet and change.fleet.n_servers,
                    "usd_per_hour": change.fleet and change.fleet.usd_per_hour,
                    "holds_a_server": change.fleet and change.fleet.server.holds,
                    "why": change.why or None,
                }
                for change in every
            ],
        }


def changes(line: str, command: ReadCommand, found: Search, bits: Bits = CLOSED) -> Changes:
    """Compare a server with the best of a search on the first of its devices. `command` is what its line says.

    Raises InputError for a line that says what no server has.
    """
    first, said = found.grid.servers[0], command.values
    device, model, work = first.design.device, first.design.plan.model, first.work
    best = next((fleet for fleet in found.ranked if fleet.server.asked == first.asked), None)
    if refused := command.refused | _too_long(line, said, model):
        left_out = tuple(flag for flag in command.left_out if flag not in refused)
        return Changes(line, left_out, _unstarted("today", starts.why_not(refused)), (), best)
    alone = layouts.on_one_device(work, stack=None)
    own = {name: value for name, value in said.items() if name in vars(work)}
    if own.get("prefix_cache") == "on":  # as without the flag
        del own["prefix_cache"]
    own.setdefault("weights", None)  # as released, whatever --weights says
    today_work = replace(alone, **own)
    formats = str(said.get("quantizer", "fp16")), str(said.get("value_quantizer", ""))
    design = common.design(device, model, *formats, bits)

    def tried(what: str, design: Candidate = design, **changed: Any) -> Change:
        try:
            changed_work = found.demand.load.served(replace(today_work, **changed))
            server = ServerDesign(first.asked, design, changed_work, found.demand)
            if not common.competes(server.fixed):
                return _unstarted(what, server.fixed["runs_why"])
            if server.holds <= 0:
                return Change(what, None, "does not hold the load within the limits, however many there are")
        except DseError as error:
            return Change(what, None, f"does not run this: {error.lines()[0]}", starts=False)
        fleet = fleet_of(server, found.demand, found.prices, found.budget)
        n_there = found.budget.counts.get(first.asked, fleet.n_devices)
        return Change(what, fleet) if fleet.n_devices <= n_there else Change(what, None, _lacks(fleet, n_there))

    single: list[Change] = []
    if best:
        single = [*_of_design(tried, best.server, today_work, design), *_of_flags(tried, best.server, today_work, own)]
    return Changes(line, tuple(command.left_out), tried("today"), tuple(single), best)


def _unstarted(what: str, why: str) -> Change:
    return Change(what, None, f"does not start: {why}", starts=False)


def _too_long(line: str, said: Mapping[str, Any], model: ModelSpec) -> dict[str, str]:
    """The refusal of a length beyond the model's positions; {} for none, and where the line stretches them."""
    stack, longest = str(said.get("stack") or "").partition("@")[0], said.get("max_model_len")
    is_stretched = any(word in line for word in _STRETCHES)
    if stack not in CHECK_POSITIONS or is_stretched or not model.lacks_positions(longest):
        return {}
    flag = server_flags.flag_of(stack, "max_model_len", longest)
    return {flag: f"{model.alias or model.name} has {model.max_position_tokens:,} positions"}


def _lacks(fleet: Fleet, n_there: int) -> str:
    """Why the devices that there are hold no such fleet."""
    demand, name = fleet.server.demand, fleet.server.design.device.name
    is_are = f"{n_there:,} {'is' if n_there == 1 else 'are'} there"
    if not demand.amount:
        return f"takes {fleet.server.n_devices:,} {name}, and {is_are}"
    holds = f"{plain(fleet.server.holds, 3)} of {plain(float(demand.amount), 3)} {demand.load.unit}"
    return f"holds {holds}: the load takes {fleet.n_servers:,} of it ({fleet.n_devices:,} {name}, and {is_are})"


def _of_design(tried: Callable[..., Change], target: ServerDesign, today: Workload, design: Candidate) -> list[Change]:
    """Engine, format, layout and weights of a server in place of today's, one by one."""
    single = []
    stack, model = today.stack, design.plan.model
    if target.work.stack != stack:
        engine, _, release = (stack or "any engine").partition("@")
        newest = " of its newest release" if release and engine == target.work.stack else ""
        single.append(tried(f"{stack or engine} -> {target.work.stack}{newest}", stack=target.work.stack))
    if target.design.name != design.name:
        single.append(tried(f"{design.name} -> {target.design.name}", target.design))
    split = {name: getattr(target.work, name) for name in layouts.SPLIT}
    if any(getattr(today, name) != value for name, value in split.items()):
        words = [layouts.words(vars(one)) or "one device" for one in (today, target.work)]
        single.append(tried(" -> ".join(words), **split))
    weights = [one.of_model(model).weights_text for one in (today, target.work)]
    if weights[0] != weights[1]:
        single.append(tried(" -> ".join(weights), weights=target.work.weights))
    return single


def _of_flags(
    tried: Callable[..., Change], target: ServerDesign, today: Workload, own: Mapping[str, Any]
) -> list[Change]:
    """The other flags of today's line that a server does not have, together, and each setting of the server."""
    told = (*layouts.SPLIT, "stack", "weights")
    names = [name for name in {**own, **target.settings} if name in vars(today) and name not in told]
    others = {name: getattr(target.work, name) for name in names if getattr(target.work, name) != getattr(today, name)}
    engine = (today.stack or "").partition("@")[0]
    dropped = {name: new for name, new in others.items() if name not in target.settings}
    flags = ", ".join(server_flags.flag_of(engine, name) for name in dropped)
    single = [tried(f"without {flags}", **dropped)] if dropped else []
    for name in (name for name in others if name not in dropped):
        single.append(tried(server_flags.flag_of(engine, name, others[name]), **{name: others[name]}))
    return single
