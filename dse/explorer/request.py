"""One design from the fields of a page: its command line, its Python, and its answer."""

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from dse.core.errors import InputError
from dse.core.field import NUMBER
from dse.explorer import common_fields, uploads
from dse.explorer.uploads import NO_FILE, FileText
from dse.model import kv_layout, uncertainty
from dse.model.point import Point
from dse.operations.declare import Operation, words_of
from dse.operations.face import SAID
from dse.operations.point import EvaluatePoint
from dse.operations.recommend import Recommend
from dse.operations.shared import layout
from dse.quantizers import QuantizerSpec, layered
from dse.questions import common, grid
from dse.questions.interactivity import ALIKE
from dse.questions.prompt_loads import Sessions
from dse.questions.search import Fleet
from dse.questions.server_design import Demand, RequestsAtOnce, RequestsAtRate, ServedLoad, ServerDesign
from dse.serving.agents import Agents, check_agents
from dse.specs import prices
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import Bits
from dse.specs.workload import Workload

_WORK = common_fields.work_of({})


@dataclass(frozen=True)
class PointRequest:
    """One design: what the fields of `dse.explorer.common_fields` ask for.

    The last five are uploaded files, so that a request is all that a cached answer depends on.
    """

    device: str = common_fields.DEVICE.default
    edits: str = ""
    model: str = common_fields.MODEL.default
    quantizer: str = common_fields.QUANTIZER.default
    parameters: str = ""
    value_quantizer: str | None = None
    value_parameters: str = ""
    work: Workload = _WORK
    measurements: str = uploads.SHIPPED
    device_file: FileText = NO_FILE
    model_file: FileText = NO_FILE
    quantizer_file: FileText = NO_FILE
    value_quantizer_file: FileText = NO_FILE
    measurements_file: uploads.Upload | None = None

    @property
    def key_quantizer_text(self) -> str:
        """The quantizer of the keys as the command line takes it; an uploaded plan by the name of its file."""
        return _quantizer_text(self.quantizer, self.parameters, self.quantizer_file)

    @property
    def value_quantizer_text(self) -> str:
        """The quantizer of the values as the command line takes it."""
        if not self.value_quantizer:
            return self.key_quantizer_text
        return _quantizer_text(self.value_quantizer, self.value_parameters, self.value_quantizer_file)

    @property
    def device_text(self) -> str:
        """The device as the command line takes it; an upload by the name of its file."""
        base = self.device_file.name or self.device
        return _with(base, self.edits)

    @property
    def model_text(self) -> str:
        """The model as the command line takes it; an upload by the name of its file."""
        return self.model_file.name or self.model

    def device_spec(self) -> HardwareSpec:
        """The device. Raises InputError or SpecError."""
        return _device(self.device, self.edits, self.device_file)

    def model_spec(self) -> ModelSpec:
        """The model. Raises InputError or SpecError."""
        return _model(self.model, self.model_file)

    def plan(self) -> kv_layout.KvPlan:
        """The model with its quantizers. Raises InputError or SpecError."""
        return _plan(replace(self, work=_WORK, device="", edits="", device_file=NO_FILE))

    def bits(self) -> Bits:
        """Bits by closed forms, errors and measured bits as shipped or as loaded."""
        return Bits(file=self.measurements_file.measured if self.measurements_file else None)

    def point(self) -> Point:
        """The design with its workload. Raises InputError or SpecError."""
        return Point(self.device_spec(), self.plan(), self.work)

    def quantizer_specs(self) -> tuple[QuantizerSpec, QuantizerSpec]:
        """The quantizers of keys and values. Raises InputError."""
        key = uploads.quantizer(self.key_quantizer_text, self.quantizer_file)
        if not self.value_quantizer:
            return key, key
        return key, uploads.quantizer(self.value_quantizer_text, self.value_quantizer_file)


#: kept, as a run of a page asks for each some ten times; with a file given they read nothing of a session
_device, _model = lru_cache(maxsize=64)(uploads.device), lru_cache(maxsize=64)(uploads.model)


@lru_cache(maxsize=32)
def _plan(asked: PointRequest) -> kv_layout.KvPlan:
    return kv_layout.build(asked.model_spec(), *map(asked.bits().attached, asked.quantizer_specs()))


DEFAULT = PointRequest()


def point_request(values: Mapping[str, Any]) -> PointRequest:
    """The design of a page's values; what the page does not ask for is at its default. Raises InputError."""
    known = {field.name for field in fields(PointRequest)}
    chosen = {key: value for key, value in values.items() if key in known}
    chosen |= {"device": common_fields.device_of(values), "model": common_fields.model_of(values)}
    point = PointRequest(**chosen, work=common_fields.work_of(values))
    return replace(
        point,
        device_file=uploads.text_of(point.device),
        model_file=uploads.text_of(point.model),
        quantizer_file=uploads.text_of(point.quantizer),
        value_quantizer_file=uploads.text_of(point.value_quantizer or ""),
        measurements_file=uploads.measurement(point.measurements),
    )


def with_quantizer(asked: PointRequest, name: str, file: FileText = NO_FILE) -> PointRequest:
    """Replace the quantizer of keys and values; `name` holds its parameters.

    Of a loaded plan, `name` is that in the lists, and `file` name and text of its file.
    """
    family, _, parameters = (name, "", "") if file.text else name.partition(":")
    return replace(
        asked,
        quantizer=family,
        parameters=parameters,
        value_quantizer=None,
        value_parameters="",
        quantizer_file=file,
        value_quantizer_file=NO_FILE,
    )


def _quantizer_text(name: str, parameters: str, file: FileText) -> str:
    return _with(layered.PREFIX + file.name if file.name else name, parameters)


def _with(name: str, parameters: str) -> str:
    return f"{name}:{parameters.strip()}" if parameters.strip() else name


def operation(request: PointRequest, cls: type[Operation] = EvaluatePoint, **more: Any) -> Any:
    """The operation `cls` on the design, with fields of its own in `more`. Raises InputError."""
    key, value = (spec.name for spec in request.quantizer_specs())
    values = {
        "device": request.device_text,
        "model": request.model_text,
        "quantizer": key,
        "value_quantizer": None if value == key else value,
        "measurements": request.measurements_file.name if request.measurements_file else None,
        "workload": replace(request.work, tokens=request.work.token_policy.name),
    }
    known = {field.name for field in fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in known}, **more)


def stored(point: PointRequest) -> QuantizerSpec:
    """Quantizer of the keys, with the measured bits and errors of the design. Raises InputError."""
    return point.bits().attached(point.quantizer_specs()[0])


def with_files(asked: Operation, point: PointRequest, **more: Any) -> Any:
    """An operation on `point`, as its command asks it, with what the reader's own files hold in place of their names.

    `more` are fields that name other files. Raises InputError and SpecError.
    """
    keys, values = map(point.bits().attached, point.quantizer_specs())
    held = {"device": point.device_spec(), "model": point.model_spec(), "quantizer": keys, "value_quantizer": values}
    known = {field.name for field in fields(asked)}
    held |= {"measurements": None}
    return replace(asked, **{name: value for name, value in held.items() if name in known}, **more)


#: the limit on a time, and how many of the field's units a second is
LIMITS = {"tpot_s": (common_fields.TPOT_LIMIT, 1e3), "ttft_s": (common_fields.TTFT_LIMIT, 1.0)}


def is_untimed(name: str, values: Mapping[str, Any]) -> bool:
    """True of the time per output token of an answer of one token, which has none: no limit counts against it."""
    return name == "tpot_s" and values.get("output") == 1


def limits_s(values: Mapping[str, Any]) -> dict[str, float]:
    """The reader's limits on times, in seconds by result."""
    limits = {name: (values.get(field.key), per_second) for name, (field, per_second) in LIMITS.items()}
    return {
        name: limit / per_second
        for name, (limit, per_second) in limits.items()
        if limit is not None and not is_untimed(name, values)
    }


def limit_fields(limits: Mapping[str, float]) -> dict[str, str]:
    """Limits in seconds, by result, as questions take them."""
    return {f"max_{name.removesuffix('_s')}": f"{most:g} s" for name, most in limits.items()}


def command_of(asked: Operation, without: Collection[str] = ()) -> str:
    """The command line of an operation, but for some fields of the workload."""
    return shlex.join(words_of(asked, SAID, without))


@dataclass(frozen=True)
class LoadRequest:
    """The load and the limits of the question, as a design of it meets them: what `dse recommend` takes."""

    kind: str = common_fields.LOAD.default
    #: None: as many requests at once as the limits allow
    amount: float | None = None
    #: of sessions
    agents: Agents | None = None
    #: most seconds by column
    limits: tuple[tuple[str, float], ...] = ()

    @property
    def queue(self) -> str:
        """Whether TTFT has a queue in it: sessions, and requests at once, come when there is a place."""
        return "queue counted" if self.kind == "rate" else "no queue"

    def demand(self, model: ModelSpec) -> Demand:
        """The load of servers of a model, and the limits."""
        loads: dict[str, Callable[[], ServedLoad]] = {
            "batch": lambda: RequestsAtOnce(self.amount),
            "rate": lambda: RequestsAtRate(self.amount),
            "sessions": lambda: Sessions(
                amount=self.amount, agents=_given(self.agents), plain=layout(model, "fp16", "fp16")
            ),
        }
        return Demand(loads[self.kind](), dict(self.limits))


def _given(agents: Agents | None) -> Agents:
    assert agents is not None  # with every load of sessions
    return agents


def load_request(values: Mapping[str, Any]) -> LoadRequest:
    """The load of a design's values, and the limits. Raises InputError."""
    limits = tuple(limits_s(values).items())
    if common_fields.is_at_once(values):
        return LoadRequest(amount=common_fields.work_of(values).batch, limits=limits)
    kind = values[common_fields.LOAD.key]
    amount = values[common_fields.AMOUNTS[kind].key]
    if kind != "sessions":
        return LoadRequest(kind, amount, limits=limits)
    named = {field.key: values[field.key] for field in common_fields.OF_SESSIONS}
    work = common_fields.work_of(values)
    agents = Recommend(sessions=amount, **named).agents(work.output_tokens)
    check_agents(agents, work.max_model_len)
    return LoadRequest(kind, amount, agents, limits)


@dataclass(frozen=True)
class PointAnswer:
    """A design under the question's load: with so many requests at once, which is `request`.

    `result` has its numbers by name, `holds` the load that a server keeps the limits at, 0 where it keeps them at none,
    `n_servers` how many servers hold what is asked for, `late_s` the upper ends of times on which limits are tested,
    where they are others than those of the results.
    """

    request: PointRequest
    result: dict[str, Any]
    holds: float
    n_servers: int = 1
    late_s: Mapping[str, float] = field(default_factory=dict)


def answer(asked: PointRequest, load: LoadRequest) -> PointAnswer:
    """Evaluate one design: at the load that is asked for, else at the most that keeps the limits, or at the least.

    Of a rate or of sessions throughput, and USD where the device has a price, are those of the servers that hold it.
    Raises InputError.
    """
    asked.work.refuse_idle()
    server = server_of(asked, load)
    if load.kind == "batch" and load.amount is not None:
        return PointAnswer(asked, server.results(load.amount), server.holds)
    if not server.has_room:
        return PointAnswer(any_load(asked), server.design.evaluate(any_load(asked).work), 0.0)
    n_servers = server.count(load.amount) if server.holds else 1
    amount = (server.holds and load.amount) or server.holds or _least(server)
    device = server.design.device
    price = prices.prices_of({device.name: device})[device.name] if device.usd_per_hour else ALIKE
    fleet = Fleet(server, n_servers, price.usd_per_hour(server.n_devices, n_servers), amount)
    result = fleet.results
    if load.kind != "batch":
        result = result | {uncertainty.RATE: fleet.tokens_per_s / n_servers}
        result |= {"usd_per_million_tokens": fleet.usd_per_million_tokens} if device.usd_per_hour else {}
    shown = replace(asked, work=replace(asked.work, batch=int(result["batch"])))
    return PointAnswer(shown, result, server.holds, n_servers, {} if load.kind == "batch" else fleet.late_s)


def _least(server: ServerDesign) -> float:
    """The least load of a server, in digits that a command has."""
    return float(NUMBER.write(server.demand.load.least(server)))


def command(asked: PointRequest, load: LoadRequest, found: PointAnswer) -> str:
    """The command that gives a design's answer: `dse point`; of a rate or sessions `dse recommend` among it alone.

    Raises InputError.
    """
    if load.kind == "batch" or not found.result["feasible"]:
        return command_of(operation(found.request))
    if asked.quantizer_file.text and asked.value_quantizer:
        raise InputError("dse recommend: takes no plan by layer beside another format: choose one for both")
    server, work = server_of(asked, load), any_load(asked).work
    tried_off = grid.cache_costs(server.design.device, server.design.plan.model, work)
    work = replace(work, stack=None, prefix_cache="on" if tried_off else work.prefix_cache)
    amount, limits = (load.amount, dict(load.limits)) if found.holds else (_least(server), {})
    options: dict[str, Any] = {load.kind: amount}
    if load.agents:
        agents = load.agents
        options = {"sessions": int(amount or 1), "turns": agents.turns, "growth": agents.growth_tokens}
        options |= {"think": f"{agents.think_s:.12g} s", "shared": agents.shared_tokens}
    engine = asked.work.stack or str(found.result["stack"] or "").partition("@")[0]
    device = server.design.device
    question: Recommend = operation(
        replace(asked, work=work),
        Recommend,
        devices=(asked.device_text,),
        engines=(engine,) if engine else None,
        quantizers=("/".join(dict.fromkeys(spec.name for spec in asked.quantizer_specs())),),
        output_tokens=work.output_tokens,
        objective="throughput",  # of one server, in the settings that the design has
        most=None if work.n_devices > 1 else 1,
        price=() if device.usd_per_hour else (f"{device.name.lower()}=1",),
        **options,
        **limit_fields(limits),
    )
    return command_of(question, ("input_tokens",) if load.agents else ())


def server_of(asked: PointRequest, load: LoadRequest, name: str = "") -> ServerDesign:
    """The design as a server of the search, asked for by a name. Raises InputError."""
    demand = load.demand(asked.model_spec())
    work = demand.load.served(any_load(asked).work)
    return ServerDesign(name or asked.device, common.Candidate(asked.device_spec(), asked.plan()), work, demand)


def unquantized(request: PointRequest) -> PointRequest:
    """Store keys and values in FP16."""
    return with_quantizer(request, "fp16")


def any_load(asked: PointRequest) -> PointRequest:
    """The request whatever its load: what it is cached by where its batch does not matter."""
    return replace(asked, work=replace(asked.work, batch=None))
