"""Servers that a search tries: every device, engine, KV format that it runs there, and layout."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

from dse.core.errors import DseError, InputError, LimitError
from dse.model import quality
from dse.model.kv_layout import Same
from dse.model.stacks import DEFAULT_STACK
from dse.quantizers.layered import PREFIX
from dse.questions import common, engine_formats, layouts
from dse.questions.common import Candidate
from dse.questions.server_design import Demand, ServerDesign
from dse.specs import collectives, deployment, server_flags, servers
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import CLOSED, Bits
from dse.specs.weights import FORMATS
from dse.specs.workload import MOST_DEVICES, SEARCHED_ENGINES, USUAL_DROP, StateType, Workload

#: the engine of weights that are a file
OF_FILES = "llama.cpp"
#: servers that a search tries at most
MAX_SERVERS = 50_000
#: settings of an engine that are axes of the search
AXES = ("state_type", "prefix_cache")


@dataclass(frozen=True)
class Choices:
    """Names that the search chooses from, None for all that run, and what it leaves out."""

    #: of these None is the device's usual one
    engines: tuple[str | None, ...] | None = None
    quantizers: tuple[str, ...] | None = None
    #: devices of a server at most, and whether in any number
    most: int = MOST_DEVICES
    any_size: bool = False
    #: numbers of devices of a server, up to `most`
    sizes: tuple[int, ...] | None = None
    #: the largest accuracy loss, a share; None: `USUAL_DROP`, of formats that are named any
    max_drop_frac: float | None = None
    bits: Bits = CLOSED

    def keeps_scores(self, design: Candidate) -> bool:
        """Whether the format of a design loses so little that it may be recommended: by scores of long tasks too, where
        it is not named."""
        if self.quantizers is not None and self.max_drop_frac is None:
            return True
        most = USUAL_DROP if self.max_drop_frac is None else self.max_drop_frac
        is_kept = bool(quality.judged(quality.quality(design.plan), most))
        return is_kept and (self.quantizers is not None or quality.has_long_scores(design.plan))


@dataclass(frozen=True)
class Grid:
    """Servers that the search tries, and over what."""

    servers: tuple[ServerDesign, ...]
    devices: tuple[str, ...]
    engines: tuple[str, ...]
    formats: tuple[str, ...]
    splits: tuple[str, ...]
    #: types of recurrent states, the model's own first, and the prefix cache, as the engine has it first
    states: tuple[str, ...] = ("auto",)
    caches: tuple[str, ...] = ("on",)
    #: formats that lose too much
    left_out: tuple[str, ...] = ()
    #: whether the servers are to be judged in the settings that they have alone
    is_fixed: bool = False

    @property
    def text(self) -> str:
        """The grid in words."""
        axes = {"device": self.devices, "engine": self.engines, "KV format": self.formats, "layout": self.splits}
        axes |= {"state type": self.states} if len(self.states) > 1 else {}
        sizes = [f"{len(names)} {name}{'s' if len(names) > 1 else ''}" for name, names in axes.items()]
        sizes += [f"prefix cache {' and '.join(self.caches)}"] if len(self.caches) > 1 else []
        return f"{len(self.servers):,} servers ({', '.join(sizes)}), each in any number"

    @property
    def left_out_text(self) -> str:
        """Formats that lose too much, in a sentence; "" where there are none."""
        names = ", ".join(self.left_out)
        return f"Left out for the accuracy loss, or as nobody published it of long tasks: {names}." if names else ""


def grid_of(
    devices: Mapping[str, HardwareSpec],
    model: ModelSpec,
    work: Workload,
    demand: Demand,
    choices: Choices,
    counts: Mapping[str, int],
) -> Grid:
    """Every device, engine, format that it runs and layout. Raises InputError and LimitError."""
    engines, splits, states, caches, left_out = (dict[str, None]() for _ in range(5))
    asked: list[tuple[str, Candidate, Workload]] = []
    for name, device in devices.items():
        n_most, _ = collectives.most_devices(device, min(choices.most, counts.get(name, choices.most)))
        for stack in _engines(device, model, work, choices.engines):
            of_stack = replace(work, stack=stack)
            designs = _designs(Same(device), Same(model), of_stack, choices.quantizers, choices.bits)
            kept = [design for design in designs if choices.keeps_scores(design)]
            left_out |= dict.fromkeys(design.name for design in designs if design not in kept)
            ways = _ways(device, model, of_stack, demand, choices, n_most)
            if demand.amount and choices.max_drop_frac is not None:
                left_out |= {f"{type_} states": None for type_ in state_types(model, of_stack)}
            states |= dict.fromkeys(way.state_type for way in ways)
            caches |= dict.fromkeys(way.prefix_cache or "on" for way in ways)
            if len(asked) + len(kept) * len(ways) > MAX_SERVERS:
                raise LimitError(
                    f"the search has more than {MAX_SERVERS:,} servers ({len(devices):,} devices, {len(kept):,} KV "
                    f"formats, {len(ways):,} layouts, ...): name fewer --devices, --quantizers or --engines, leave "
                    "out --any, or lower --most"
                )
            engines[stack or "the device's"] = None
            splits |= dict.fromkeys(layouts.words(vars(way)) for way in ways)
            asked += [(name, design, way) for design in kept for way in ways]
    if left_out and not asked:
        raise InputError(
            f"max-drop = {choices.max_drop_frac:.3g}: {', '.join(left_out)} may lose more: add fp16, or allow more"
        )
    servers, wrong = _servers(asked, work, demand)
    if not servers:
        others = "others" if choices.sizes else "others, or --any"
        raise wrong or InputError(f"{model.name}: is not split over so many devices: give {others}")
    formats = dict.fromkeys(server.design.name for server in servers)
    return Grid(
        tuple(servers),
        devices=tuple(devices),
        engines=tuple(engines),
        formats=tuple(formats),
        splits=tuple(splits),
        states=tuple(states),
        caches=tuple(caches),
        left_out=tuple(left_out),
    )


def _servers(
    asked: Iterable[tuple[str, Candidate, Workload]], work: Workload, demand: Demand
) -> tuple[list[ServerDesign], DseError | None]:
    """The servers that can be laid out, and why the first of the others cannot."""
    servers, wrong = [], None
    for name, design, way in asked:
        try:
            settings = {name: value for name in AXES if (value := getattr(way, name)) != getattr(work, name)}
            servers.append(ServerDesign(name, design, way, demand, settings))
        except DseError as error:
            wrong = wrong or error
    return servers, wrong


def _ways(
    device: HardwareSpec, model: ModelSpec, work: Workload, demand: Demand, choices: Choices, n_most: int
) -> list[Workload]:
    """The layouts over at most so many devices; of a load each type of states, and with and without a prefix cache."""
    ways = [demand.load.served(way) for way in _layouts(model, work, n_most, choices)]
    if demand.amount and choices.max_drop_frac is None:  # nobody published scores of smaller states
        ways += [replace(way, state_type=name) for name in state_types(model, work) for way in ways]
    if demand.amount and cache_costs(device, model, work):
        ways += [replace(way, prefix_cache="off", prefix_tokens=0, samples=1) for way in ways]
    return ways


def _layouts(model: ModelSpec, work: Workload, n_most: int, choices: Choices) -> Iterator[Workload]:
    """The layout that is given, else all over at most so many devices."""
    if work.n_devices > 1:
        yield work
        return
    for tp, pp in layouts.sizes(model, n_most, choices.any_size):
        if choices.sizes is None or tp * pp in choices.sizes:
            yield from layouts.layouts(model, work, tp, pp)


def state_types(model: ModelSpec, work: Workload) -> tuple[StateType, ...]:
    """Types of recurrent states of fewer bytes than the model's that its engine stores, where none is said."""
    engine = server_flags.engines().get((work.stack or DEFAULT_STACK).partition("@")[0])
    codes = {layer.state_code for layer in model.layers if layer.state_code}
    if engine is None or not codes or work.state_type != "auto":
        return ()
    known = set.intersection(*(set(engine.tried_states.get(code, ())) for code in codes))
    in_type = {name: deployment.with_states(model, replace(work, state_type=name)) for name in sorted(known)}
    return tuple(name for name, changed in in_type.items() if changed.state_bytes < model.state_bytes)


def cache_costs(device: HardwareSpec, model: ModelSpec, work: Workload) -> bool:
    """Whether the prefix cache, where nothing is said of it, takes recurrent states of requests that could run instead,
    and its engine has a flag that switches it off."""
    stack = (work.stack or DEFAULT_STACK).partition("@")[0]
    engine = server_flags.engines().get(stack)
    if engine is None or "prefix_cache" not in engine.flags or work.prefix_cache or not model.is_hybrid:
        return False
    server = servers.of(stack, device, work.stack)
    return server != server.without_prefixes()


@lru_cache(maxsize=24)
def _designs(
    device: Same, model: Same, work: Workload, quantizers: tuple[str, ...] | None, bits: Bits
) -> tuple[Candidate, ...]:
    """The named formats on a device, or all that its engine runs; kept, as plans keep what is computed of them."""
    spec, lm = cast(HardwareSpec, device.value), cast(ModelSpec, model.value)
    if quantizers is None:
        return tuple(engine_formats.compared(spec, lm, work, bits))
    sides = [(name, "", "") if name.lower().startswith(PREFIX) else name.partition("/") for name in quantizers]
    return tuple(common.design(spec, lm, keys.strip(), values.strip(), bits=bits) for keys, _, values in sides)


def _engines(
    device: HardwareSpec, model: ModelSpec, work: Workload, engines: tuple[str | None, ...] | None
) -> list[str | None]:
    if engines is not None:
        return list(engines)
    form = FORMATS.get(work.weights or model.released)
    if form and form.is_file:
        return [OF_FILES]
    if work.stack or work.model_kind == "ideal":
        return [work.stack]
    return [name for name in SEARCHED_ENGINES if name in device.stacks] or [None]
