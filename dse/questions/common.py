"""Designs, measures, ties and progress, shared by all questions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from dse.core import units
from dse.core.answer import Answer
from dse.core.errors import InputError, did_you_mean, show
from dse.model import engine, kv_layout, lower, stacks, uncertainty
from dse.model.compare import Case
from dse.model.kv_layout import KvPlan, Same
from dse.model.point import Point
from dse.model.records import Design
from dse.model.results import RESULT_UNITS, assumed_behind, rests_on, shown_unit, title
from dse.model.uncertainty import Gain
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import CLOSED, Bits
from dse.specs.quantity import Quantity
from dse.specs.workload import Workload

Result = dict[str, Any]
T = TypeVar("T")

#: numbers closer than this share are a tie: sums over a generation are exact to 1e-9 (docs/explanation/calibration.md)
TIE = 1e-9
#: reasons that a line tells
MAX_TOLD = 6


#: mark of designs that the software of their device does not run
NOT_RUN = "not run"


def refusals(results: Iterable[Mapping[str, Any]]) -> str:
    """Designs that the software of a device does not run, each once with why; "" where it runs all."""
    told = list(dict.fromkeys(str(why) for result in results if isinstance(why := result.get("runs_why"), str)))
    more = f" and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
    return f"{'; '.join(told[:MAX_TOLD])}{more}"


def refused_text(results: Iterable[Mapping[str, Any]]) -> str:
    """One line that names what the software of a device does not run, and why; "" where it runs all."""
    told = refusals(results)
    return f"Other software would have to run {told}." if told else ""


def competes(result: Mapping[str, Any]) -> bool:
    """Whether a design may be the best of several: the software of its device runs it, or other software is asked for;
    of a table that does not say it, yes."""
    return bool(result.get("runs", True))


class QuestionAnswer(Answer):
    """Answer of a question."""


@dataclass(frozen=True)
class Candidate:
    """A device with a model laid out under its quantizers."""

    device: HardwareSpec
    plan: KvPlan

    @property
    def name(self) -> str:
        """The quantizer's name: what tells designs of one device and model apart."""
        return self.plan.quantizer_name

    def evaluate(self, work: Workload) -> Result:
        """All results at `work`."""
        return engine.evaluate(Point(self.device, self.plan, work))

    def speed(self, work: Workload) -> Result:
        """Capacity and speed at `work`: some of the results, sooner."""
        return engine.speed(Point(self.device, self.plan, work))

    def takes_long(self, work: Workload) -> bool:
        """True where an evaluation at `work` counts so many packed groups that it takes seconds."""
        return Point(self.device, self.plan, work).takes_long

    def lowered(self, work: Workload) -> Design:
        """The numbers that the model is given of the design at `work`: designs of equal ones have equal results."""
        return Point(self.device, self.plan, work).design

    def at(self, work: Workload) -> Case:
        """The design at `work`, for comparisons."""
        return Case(self.device, self.plan, work)

    def roomy(self) -> "Candidate":
        """This design with memory for every batch of interest: a step's time does not depend on the memory."""
        return replace(self, device=engine.roomy(self.device))


def design(
    device: str | HardwareSpec, model: str | ModelSpec, key: str, value: str = "", bits: Bits = CLOSED
) -> Candidate:
    """The design with quantizer `key` for keys and `value` (default: the same) for values.

    Device and model are specs, or names or files as the command line takes them. Raises InputError and SpecError.
    """
    device = catalog.device(device) if isinstance(device, str) else device
    model = catalog.model(model) if isinstance(model, str) else model
    return _design(Same(device), Same(model), key, value or key, Same(bits))


@lru_cache(maxsize=256)
def _design(device: Same, model: Same, key: str, value: str, bits: Same) -> Candidate:
    """A design, kept with its plan, which keeps what is computed of it."""
    of = cast(Bits, bits.value)
    plan = kv_layout.build(cast(ModelSpec, model.value), of.required(key), of.required(value))
    return Candidate(cast(HardwareSpec, device.value), plan)


@dataclass(frozen=True)
class Measure:
    """A result that designs are compared by: a column of `RESULT_UNITS`, and which way is better."""

    name: str
    column: str
    sense: Literal["max", "min"]

    @property
    def title(self) -> str:
        """The title of the result."""
        return title(self.column)

    @property
    def unit(self) -> str:
        """Base unit."""
        return RESULT_UNITS[self.column]

    @property
    def shown_unit(self) -> str:
        """Unit that texts and figures show."""
        return shown_unit(self.column, self.unit)[0]

    @property
    def per_unit(self) -> float:
        """Base units in the unit shown."""
        return shown_unit(self.column, self.unit)[1]

    def value(self, result: Result) -> float | None:
        """The number in base units; None where nothing fits, or (step) where the batch does not run at once.

        A step time of fewer requests than asked for is not what was asked.
        """
        if not result["feasible"] or (self.name == "step" and not result["fits_whole_batch"]):
            return None
        number = result[self.column]
        return None if number is None else float(number)

    def is_better(self, a: float | None, b: float | None) -> bool:
        """True when `a` beats `b` by more than a tie; any number beats None."""
        if a is None or b is None:
            return a is not None
        return a > b * (1 + TIE) if self.sense == "max" else a < b * (1 - TIE)

    def ends(self, result: Result) -> tuple[float, float] | None:
        """Between which values 8 of 10 measurements should lie, in base units; None where there is no value."""
        return None if self.value(result) is None else uncertainty.ends(result, self.column)

    def chance(self, result: Result, target: float) -> float | None:
        """The chance that a result really reaches a target (base units); None where there is no value."""
        return None if self.value(result) is None else uncertainty.chance_of(result, self.column, target)

    def ends_text(self, ends: tuple[float, float] | None) -> str:
        """Both ends as people read them; "" where there are none."""
        return "" if ends is None else " to ".join(self.text(end) for end in ends)

    def text(self, value: float | None) -> str:
        """The number as people read it."""
        if value is None:
            return "does not run"
        return f"{units.plain(value / self.per_unit)} {self.shown_unit}"


COST = "usd_per_million_tokens"
MEASURES = {
    m.name: m
    for m in (
        Measure("throughput", "throughput_tokens_per_s", "max"),
        Measure("step", "decode_step_s", "min"),
        Measure("energy", "joules_per_token", "min"),
        Measure("cost", COST, "min"),
    )
}

THROUGHPUT = MEASURES["throughput"]


def measure(name: str, among: Iterable[str] = MEASURES) -> Measure:
    """The measure of that name. Raises InputError."""
    if name not in (known := list(among)):
        raise InputError(f"measure = {show(name)}: {did_you_mean(name, known)}")
    return MEASURES[name]


def with_number(device: HardwareSpec, name: str, si: float, source: str) -> HardwareSpec:
    """A copy of the device with one number replaced; `name` may lead into a stack (stacks.vllm.gemm.launch).

    `si` is in base units; the copy's number is of kind derived. The bounds of files are not checked.
    """
    number = Quantity(value=si, unit=base_unit(device, name), source=source, kind="derived")
    changed: HardwareSpec = _replaced(device, _places(name), number)
    return changed


def number_problem(device: HardwareSpec, name: str, si: float) -> str:
    """The limit that `si` (base units) breaks for the number at `name` in a device file; "" where it is valid."""
    *places, field = _places(name)
    parent: Any = device
    for part in places:
        parent = parent.get(part) if isinstance(parent, dict) else getattr(parent, part)
    annotation = type(parent).model_fields[field].rebuild_annotation()
    try:
        TypeAdapter(annotation).validate_python(
            {"value": si, "unit": base_unit(device, name), "source": "range", "kind": "derived"}
        )
    except ValidationError as error:
        problem = error.errors()[0]
        return (
            str(problem["ctx"]["error"]).partition("; did you mean")[0]
            if problem["type"] == "value_error"
            else "must be a finite number"
        )
    return ""


def base_unit(device: HardwareSpec, name: str) -> str:
    """The base unit of a number of the device."""
    number = lookup(device, name)
    return units.base_of(number.unit) if number else "element/s"  # a rate that the file leaves out


def lookup(device: HardwareSpec, name: str) -> Quantity | None:
    """The number at a place such as `memory_bandwidth` or `stacks.vllm.gemm.launch`; None where there is none."""
    at: Any = device
    for part in _places(name):
        at = at.get(part) if isinstance(at, dict) else getattr(at, part)
    return at if isinstance(at, Quantity) else None


def _places(name: str) -> list[str]:
    """The steps that lead to a number; names of programs have dots of their own (stacks.llama.cpp.host.layer)."""
    program = next((engine for engine in catalog.backends() if name.startswith(f"stacks.{engine}.")), "")
    return ["stacks", program, *name.removeprefix(f"stacks.{program}.").split(".")] if program else name.split(".")


def _replaced(spec: Any, path: Sequence[str], number: Quantity) -> Any:
    head, rest = path[0], path[1:]
    if isinstance(spec, dict):
        return {**spec, head: _replaced(spec[head], rest, number)}
    return spec.model_copy(update={head: _replaced(getattr(spec, head), rest, number) if rest else number})


def crowned(order: Sequence[T], gain: Callable[[T, T], Gain]) -> tuple[tuple[T, ...], dict[T, Gain]]:
    """The one of `order` (best as computed first) that is likelier better than each other, with those that tie with it,
    and its gains over all others.

    Where computed values and chances disagree, chances decide; of several that beat one another in a ring all tie.
    """
    first, tried = order[0], [order[0]]
    while True:
        gains = {other: gain(first, other) for other in order if other != first}
        rival = min(gains, key=lambda other: gains[other].sure, default=first)
        if rival == first or gains[rival].ratio >= 1 - TIE:
            return (first, *(other for other in gains if abs(gains[other].ratio - 1) <= TIE)), gains
        if rival in tried:
            return (first, *(other for other in gains if gains[other].ratio < 1 or other in tried)), gains
        first = rival
        tried.append(first)


def ends_text(result: Mapping[str, Any], name: str, high: float | None = None) -> str:
    """Between which values 8 of 10 measurements of a result should lie, as people read it: 361.4 to 561.4; "" where
    that is not known. The unit is said where the ends have another than the value. `high` stands for the upper end."""
    ends = uncertainty.known_ends(result, name)
    if not ends:
        return ""
    unit = units.number(result[name], RESULT_UNITS[name]).partition(" ")[2]
    texts = [units.number(end, RESULT_UNITS[name]) for end in (ends[0], ends[1] if high is None else high)]
    if all(text.endswith(f" {unit}") for text in texts):
        texts = [text.removesuffix(f" {unit}") for text in texts]
    return " to ".join(texts)


def value_text(result: Mapping[str, Any], name: str) -> str:
    """A result with its unit and its interval: 437.3 tok/s (361.4 to 561.4)."""
    text, ends = units.number(result[name], RESULT_UNITS[name]), ends_text(result, name)
    return f"{text} ({ends})" if ends else text


def sure_text(chance: float) -> str:
    """A chance as people read it: 83 %, never 100 %."""
    return "over 99 %" if chance > 0.99 else "under 1 %" if chance < 0.01 else f"{100 * chance:.0f} %"


def seconds_text(seconds: float) -> str:
    """A time as people read it: 50 ms, 2.5 s."""
    return f"{1e3 * seconds:,.4g} ms" if seconds < 1 else f"{seconds:,.4g} s"


def limits_text(limits: Mapping[str, float]) -> str:
    """Limits on times by column, such as `tpot_s` and `ttft_s`, in words."""
    names = {name: name.removesuffix("_s").upper() for name in limits}
    return " and ".join(f"{names[name]} {seconds_text(limit)}" for name, limit in limits.items())


#: chance from which on the one that may be better after all is named
NAMED_FROM = 0.2


#: what the intervals of an answer are
SURE_NOTE = "Intervals: 8 of 10 measurements should lie inside (docs/explanation/model.md, How sure)."


def context(device: HardwareSpec, model: ModelSpec, work: Workload, result: Result, is_full: bool = False) -> str:
    """Devices, model and what of the workload a question keeps fixed, as the head of a text or a figure's note.

    `is_full`: the batch is as many requests as fit.
    """
    how = f"{result['model_kind']} model" + (f", {result['stack']}" if result["stack"] else "")
    full = ["as many as fit"] if is_full else []
    refused = [f"as if other software ran it ({result['runs_why']})"] if result.get("runs_why") else []
    admission = str(lower.with_admission(device, work).admission)
    kept = [work.devices_text(device.name), model.name, *work.ways(model)]
    return ", ".join([*kept, f"{work.output_tokens:,} out", admission, *full, how, *refused])


def options(split: Mapping[str, Any], names: Iterable[str]) -> str:
    """The options that ask for a split, of these of its numbers: "--tp 8 --dp-attention"."""
    said = {
        name: "" if split[name] is True else f" {split[name]}"
        for name in names
        if split[name] is True or split[name] > 1
    }
    return " ".join(f"--{name.replace('_', '-')}{value}" for name, value in said.items())


def age_text(point: Point) -> str:
    """One line that says on which release times were measured, and how old that is; "" where it is the release asked
    for, or its day is not known."""
    aged = stacks.age_text(point.stack_name, point.stack, point.work)
    return f"Times: {aged}." if aged else ""


def assumption_text(results: Iterable[Result], measure: Measure) -> str:
    """One line that names the assumed numbers behind a measure of some results."""
    of = [(result, result["assumptions"]) for result in results]  # of a table's rows they are a text
    lists = [(result, told.split(", ") if isinstance(told, str) else told) for result, told in of]
    kept = sorted({name for result, told in lists for name in assumed_behind(measure.column, told, result) if name})
    return rests_on(kept)
