"""Advice for a load: `dse recommend`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.core.errors import InputError, show
from dse.core.field import NAMES, NUMBER, PERCENT, SWITCH, TOKENS, WHOLE
from dse.operations.declare import SILENT, Console, argument, fields_of, operation, option, work
from dse.operations.shared import (
    AssumesLike,
    Model,
    Sourced,
    WithAgents,
    WithFigure,
    WithHost,
    WithLimits,
    counted,
    hardware,
    language_model,
    layout,
    model_option,
    several,
)
from dse.specs.workload import (
    ASKED,
    MAX_BATCH,
    MAX_DEVICES,
    MAX_OUTPUT_TOKENS,
    MOST_DEVICES,
    SEARCHED_ENGINES,
    USUAL_DROP,
    Workload,
)

if TYPE_CHECKING:
    from dse.questions.recommend import Recommendation
    from dse.questions.server_design import ServedLoad
    from dse.specs.device_and_model import HardwareSpec, ModelSpec
    from dse.specs.server_flags import ReadCommand
    from dse.validate.saved_plan import PlanCheck

#: output tokens of a turn, where none are given
AGENT_OUTPUT = 256
#: without devices
NO_DEVICES = "devices is missing: name those to choose from, such as h100,l40s or 8xh200, or --cloud aws for all it has"
#: fields of a workload that a user says; the search has the rest
SAID = (
    "input_tokens",
    "weights",
    "max_num_seqs",
    "prompt_budget_tokens",
    "gpu_memory_utilization",
    "max_model_len",
    "state_type",
    "prefix_cache",
    "model_kind",
    "other_software",
)
#: fields of a server that a user may fix besides; a layout over several devices is then the only one that is tried
FIXED = tuple(name for name in ASKED if name not in (*SAID, "batch", "output_tokens", "stack", "calibrated"))


@operation("recommend", "What to run for a load: advice that ends in a command.", function="recommend")
class Recommend(AssumesLike, WithAgents, WithHost, WithLimits, Sourced, WithFigure):
    """Recommend what to run for a load: devices, engine, KV format and layout, and how many servers.

    Searches every device with every engine, KV format that the engine runs there, and layout over 1, 2, 4, 8 devices
    and whole nodes, each in as many servers as hold the load within the limits at the upper end of their intervals. Of
    a rate or a number of requests, settings of engines are tried too, where these save servers.
    The load is a rate, a number of requests at all times, sessions of agents, or a trace; without one, as much as the
    devices hold (8xh200). What agents, or a trace that names its blocks, find of their prompts is that of each server's
    pool.

    >>> found = dse.recommend(model="qwen3-32b", devices=["h100", "l40s"], rate=2, max_tpot="30 ms")
    >>> found.best["device"], found.best["n_servers"]
    ('H100', 1)
    """

    model: Model = model_option("")
    log: str | None = argument(
        None, "With --check: the server's start-up log, or its benchmark; default: standard input.", in_python=False
    )
    devices: Sequence[str] = option(
        (),
        kind=NAMES,
        help="Devices to choose from; with a number, 8xh200, no more than so many; default: all that --cloud lists.",
        former=("--device",),
        metavar="A,B",
        is_said=True,
    )
    rate: float | None = option(
        None, "Requests a second, which come at random.", NUMBER, metavar="20", low=1e-6, high=1e12
    )
    requests: int | None = option(
        None, "Requests at all times, in place of a rate.", WHOLE, metavar="64", low=1, high=MAX_BATCH
    )
    trace: str | None = option(
        None,
        "Requests as in a trace: its lengths, its rate or --rate, and what prompts share where a .jsonl file names "
        "their blocks.",
        metavar="azure-conv|azure-code|FILE",
    )
    output_tokens: int | None = option(
        None,
        "Output tokens of a request; default: 1,024, of a turn of --sessions 256.",
        TOKENS,
        name="output",
        metavar="N",
        low=1,
        high=MAX_OUTPUT_TOKENS,
    )
    start: str | None = option(
        None,
        "A server that runs today on the first device, as it is started, or its start-up log: each difference from the "
        "best, and its gain.",
        name="from",
        metavar="'vllm serve ...'|LOG",
    )
    objective: str = option(
        "cost",
        "What must be best.",
        metavar="cost|devices|throughput|energy",
        choices=("cost", "devices", "throughput", "energy"),
    )
    budget: str | None = option(None, "Most USD an hour.", metavar="40/h")
    max_drop: float | None = option(
        None,
        "No KV format whose scores may drop by more, as published; default: none that may drop by more than "
        f"{100 * USUAL_DROP:g} %. Formats without scores of long tasks are tried only where --quantizers names them.",
        PERCENT,
        metavar="1%",
        low=0,
        high=1,
    )
    engines: Sequence[str] | None = option(
        None, f"Engines to choose from; default: {', '.join(SEARCHED_ENGINES)}.", NAMES, metavar="A,B"
    )
    quantizers: Sequence[str] | None = option(
        None,
        "KV quantizers to choose from, fp8/int4 for keys and values; default: fp16 and all that the engine runs there.",
        NAMES,
        former=("--quantizer",),
        metavar="A,B",
    )
    cloud: str | None = option(
        None, "List prices of this cloud, by whole instance; default: the prices of device files.", metavar="aws|azure"
    )
    price: Sequence[str] = option(
        (), "A price of your own, USD an hour of a device.", metavar="h100=2.1", is_repeated=True
    )
    most: int | None = option(
        None, f"Devices of one server at most; default: {MOST_DEVICES}.", WHOLE, unit="device", low=1, high=MAX_DEVICES
    )
    check: str | None = option(
        None,
        "Compare LOG with this plan.json of --out: the pool, TPOT and TTFT against what it promised.",
        metavar="PLAN",
        in_python=False,
    )
    any_size: bool = option(False, "Try other sizes than 1, 2, 4, 8 and whole nodes of 8 too.", SWITCH, name="any")
    workload: Workload = work(only=(*SAID, *FIXED), takes_all=False)

    def lacking(self) -> str:
        """Devices, and a model, by itself or in today's command; a plan has both."""
        if self.check:
            return ""
        if not self.devices and not self.cloud:
            return f"--{NO_DEVICES}"
        if not self.model and not self.start:
            return (
                "--model is missing: name one, such as qwen3-32b (`dse list models`), or a server's command with --from"
            )
        return ""

    def unused(self) -> dict[str, str]:
        """Without a load the devices are full: most throughput is what is left to ask. A plan has all of it."""
        if self.check:
            names = {field.name for field in fields_of(type(self))} | {*SAID, *FIXED}
            return dict.fromkeys(
                sorted(names - {"log", "check", "as_json", "assume_like"}), "beside --check, whose plan says it"
            )
        why = {"log": "without --check PLAN", **self.unused_of_host()}
        if self.sessions is None and self.trace is None:
            shares = "without --sessions or --trace, whose prompts begin alike"
            why |= {"host_cache": shares}
            if self.rate is None and self.requests is None and self.objective != "throughput":
                why |= {"objective": "without --rate or --requests, when the most throughput is searched"}
        if self.sessions is None:
            why |= dict.fromkeys(self.of_sessions, "without --sessions")
        if self.workload.prefix_cache == "off":
            why |= {"host_cache": "with --prefix-cache off: it keeps what the prefix cache gives up"}
        lengths = {"trace": ("input_tokens", "output_tokens"), "sessions": ("input_tokens",)}
        for name, of in lengths.items():
            if getattr(self, name) is not None:
                why |= dict.fromkeys(of, f"with --{name}, which has lengths of its own")
        return why

    def value(self, outcome: Any) -> Recommendation:
        """The deployments that hold the load within the limits."""
        found: Recommendation = outcome
        return found

    def run(self, console: Console = SILENT) -> Recommendation | PlanCheck:
        """The deployments that hold the load within the limits; of a plan what became of it."""
        if self.check:
            return self._checked(self.check)
        from dse.questions import grid, recommend, search, server_design
        from dse.questions.changes import changes
        from dse.specs import prices, server_flags
        from dse.specs.measurements import CLOSED

        self._check_one()
        devices, counts = self._hardware()
        if not devices:
            raise InputError(NO_DEVICES)
        priced = prices.prices_of(devices, self.cloud, prices.own(several(self.price)))
        if unpriced := [name for name in devices if name not in priced]:
            add = f"add --price {unpriced[0]}=USD, an hour of a device"
            console.say(f"left out, as {self.cloud} has no list price of them here: {', '.join(unpriced)}: {add}")
            devices = {name: devices[name] for name in priced}
        today = self._said(next(iter(devices.values())))
        said = today.values
        model, work = self.model or said.get("model"), self.workload
        if not model:
            raise InputError(f"from = {show(self.start)}: names no model that is known here: add --model")
        if said.get("weights") and work.weights is None:
            work = replace(work, weights=said["weights"])
        n_out = self.output_tokens or (AGENT_OUTPUT if self.sessions else work.output_tokens)
        work = replace(work, output_tokens=n_out)
        spec = language_model(model)
        load = self._load(spec, work, console)
        if load.amount is None and len(counts) < len(devices):
            name = next(name for name in devices if name not in counts)
            raise InputError(
                "rate is missing: say the load, such as --rate 5 (a second), --requests 64 (at all times), --sessions "
                f"100 or --trace FILE, or how many devices there are to fill, such as --devices 8x{name}"
            )
        limits_s, budget_usd = self.limits_s(n_out), self.budget_usd()
        least = min(price.usd_per_hour(1, 1) for price in priced.values())
        if budget_usd < least:
            raise InputError(f"budget = {show(self.budget)}: one device costs {least:,.4g} USD an hour: give more")
        asked = server_design.Demand(load, limits_s)
        choices = grid.Choices(
            engines=None if self.engines is None else tuple(map(server_flags.stack_of, several(self.engines))),
            quantizers=None if self.quantizers is None else tuple(several(self.quantizers)),
            most=self.most or MOST_DEVICES,
            any_size=self.any_size,
            max_drop_frac=self.max_drop,
            bits=self.source() or CLOSED,
        )
        found = grid.grid_of(devices, spec, work, asked, choices, counts)
        objective = self.objective if asked.amount else "throughput"
        budget = search.Budget(budget_usd, counts)
        answer = recommend.recommend(found, asked, priced, objective, budget, console.progress)
        if self.start:
            answer = replace(answer, changes=changes(self.start, today, answer.search, choices.bits))
        self.say_left_out(n_out, console)
        return answer

    def _check_one(self) -> None:
        """Raise InputError for two loads, of which a trace may have another rate than its own, and for a layout over
        more devices than a server may have."""
        if (n := self.workload.n_devices) > (self.most or n):
            raise InputError(
                f"most = {self.most}: the given layout takes {n:,} devices: give --most {n}, or fewer (--tp, --pp)"
            )
        given = {name: getattr(self, name) for name in ("sessions", "trace", "requests", "rate")}
        said = [name for name, value in given.items() if value is not None]
        if len(said) > 1 and said != ["trace", "rate"]:
            first, other = said[:2]
            raise InputError(f"{first} = {show(given[first])}: cannot stand beside --{other}: give one of both")
        if self.objective == "energy" and (self.sessions or self.trace):
            raise InputError(
                "objective = energy: is not known of prompts that are found: give cost, devices or throughput"
            )

    def _load(self, model: ModelSpec, work: Workload, console: Console) -> ServedLoad:
        """The load that is asked for. Raises InputError."""
        from dse.questions import server_design

        if self.sessions is None and self.trace is None:
            return (
                server_design.RequestsAtRate(self.rate)
                if self.rate is not None
                else server_design.RequestsAtOnce(self.requests)
            )
        from dse.questions import prompt_loads
        from dse.serving.agents import check_agents

        longest = work.max_model_len or model.max_position_tokens
        cache = prompt_loads.PromptCache(host_of=self.host, asks=self.host_cache is not None)
        if self.trace is not None:
            return prompt_loads.trace_of(self.trace, self.rate, longest, cache, console.progress)
        agents = self.agents(work.output_tokens)
        check_agents(agents, longest)
        return prompt_loads.Sessions(
            amount=self.sessions, agents=agents, plain=layout(model, "fp16", "fp16"), cache=cache
        )

    def _checked(self, plan: str) -> PlanCheck:
        """A log or a benchmark beside a plan. Raises InputError."""
        from dse.operations.logs import content_of
        from dse.validate import saved_plan, startup_log

        content, source = content_of(self.log)
        return saved_plan.check(plan, startup_log.text_of(content, source), self.log or "LOG")

    def beside(self, outcome: Any, console: Console) -> dict[str, bytes]:
        """The plan of the best deployment, which --check takes."""
        from dse.specs import catalog
        from dse.validate import saved_plan

        model = outcome.first.server.design.plan.model
        given = str(self.model) if isinstance(self.model, str | Path) else ""
        name = given or catalog.hub_name(model) or model.name
        return {saved_plan.NAME: saved_plan.content(outcome, name, console.command)}

    def _said(self, device: HardwareSpec) -> ReadCommand:
        """The fields that today's server sets, and the flags of its command that no field has. Raises InputError."""
        from dse.specs import catalog, server_flags

        if not self.start:
            return server_flags.ReadCommand()

        text = self.start.replace("\\\n", " ").strip()
        if "\n" in text or (len(text.split()) == 1 and text != "-"):
            return server_flags.ReadCommand(self._of_log(device))
        command = server_flags.read(text)
        if not command.values:
            allowed = "a server's command, such as 'vllm serve MODEL', or its log, by a path without spaces"
            raise InputError(f"from = {show(self.start)}: must be {allowed}")
        # as typed: several checkpoints have one shape, and one file
        named = {"model": command.model_name} if command.model_name else {}
        shipped = catalog.shipped_model_file(str(self.model)) if self.model else None
        is_other = self.model and named and (shipped is None or shipped.stem != command.values["model"])
        other = [f"its model {command.model_name}, as --model is given"] if is_other else []
        return replace(command, values=command.values | named, left_out=[*other, *command.left_out])

    def _of_log(self, device: HardwareSpec) -> dict[str, Any]:
        """The fields that the server of a start-up log sets. Raises InputError for one that does not start."""
        from dse.operations.logs import content_of
        from dse.specs import server_flags
        from dse.specs.engines import ENGINES
        from dse.validate import check_log, startup_log

        content, source = content_of(self.start)
        log = startup_log.read(startup_log.text_of(content, source))
        if log.engine not in server_flags.engines():
            known = ", ".join(ENGINES[stack] for stack in server_flags.engines())
            raise InputError(f"from = {show(source)}: is of {log.title}: must be of one of {known}")
        if log.failure:
            raise InputError(f"from = {show(source)}: does not start or breaks down: `dse check-log` says what to do")
        model = language_model(self.model) if self.model else check_log.model_of(log)
        return {"model": log.model, "stack": log.engine, **check_log.fields_of(log, device, model)}

    def budget_usd(self) -> float:
        """USD an hour at most. Raises InputError."""
        if self.budget is None:
            return math.inf
        text = str(self.budget).strip().lower().removesuffix("usd/h").removesuffix("/h").strip()
        try:
            usd = float(NUMBER.parse("budget", text))
        except InputError:
            usd = math.nan
        if not usd > 0:
            raise InputError(f"budget = {show(self.budget)}: must be USD an hour above 0, such as 40/h")
        return usd

    def _hardware(self) -> tuple[dict[str, HardwareSpec], Mapping[str, int]]:
        """Devices by name, and how many there are of those that say it. Raises InputError and SpecError."""
        from dse.specs import prices

        devices, counts = {}, {}
        for asked in several(self.devices) or (prices.listed(self.cloud) if self.cloud else ()):
            count, name = counted(asked) or (None, asked)
            spec = hardware(name)
            key = name if isinstance(name, str) else spec.name
            if key in devices:
                raise InputError(f"devices = {show(key)}: is there twice: name each once")
            devices[key] = spec
            if count:
                counts[key] = count
        return devices, counts
