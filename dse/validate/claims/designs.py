"""Short ways to the product that every claim uses: plans and design points by name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import cache
from typing import Any, TypeAlias

from dse import quantizers
from dse.model import engine, kv_layout
from dse.model.point import Point
from dse.model.stacks import DEFAULT_STACK, KERNELS
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.workload import Workload

#: fields of a Workload that ask for the kernels of a GPU as measured (vLLM's), where a claim is about measured time;
#: kernels alone: papers time their own code, or servers older than those whose own time was fitted
CALIBRATED: dict[str, Any] = {"model_kind": "calibrated", "stack": f"{DEFAULT_STACK}@{KERNELS}"}
#: a GPU as `dse point`, the report and notebooks run it: measured kernels and the time of the server around them
SERVED: dict[str, Any] = {"model_kind": "calibrated"}
#: fields by kind of times
KINDS: dict[str, dict[str, Any]] = {"ideal": {"model_kind": "ideal"}, "calibrated": CALIBRATED}
#: memory as the papers count it: that of the data sheet, all of it usable
PAPER: dict[str, Any] = {"memory": "paper"}


@cache
def build(model: str, quantizer: str = "fp16") -> kv_layout.KvPlan:
    """The plan of a shipped model, keys and values under one quantizer."""
    return build_model(catalog.model(model), quantizer)


def build_model(model: ModelSpec, quantizer: str = "fp16") -> kv_layout.KvPlan:
    """The plan of any model, keys and values under one quantizer."""
    spec = quantizers.parse(quantizer)
    return kv_layout.build(model, spec, spec)


#: a design point that a claim asks for
Watched: TypeAlias = tuple[HardwareSpec, kv_layout.KvPlan, Workload]
#: changes the device and the plan of one
Change: TypeAlias = Callable[[HardwareSpec, kv_layout.KvPlan, Workload], tuple[HardwareSpec, kv_layout.KvPlan]]
_watched: ContextVar[tuple[list[Watched], Change | None] | None] = ContextVar("_watched", default=None)


@contextmanager
def watched(change: Change | None = None) -> Iterator[list[Watched]]:
    """The design points that claims ask for inside, as they ask for them; `change` is made to each."""
    seen: list[Watched] = []
    token = _watched.set((seen, change))
    try:
        yield seen
    finally:
        _watched.reset(token)


class DoesNotRun(Exception):
    """A design point that runs as a claim asks for it, and no longer as it was changed."""


def _point(name: str, model: str, quantizer: str, work: dict[str, Any]) -> Point:
    """A design point on device `name`: one request, ideal, unless asked."""
    fields: dict[str, Any] = {"batch": 1, "model_kind": "ideal", **PAPER, **work}
    device, kv, workload = catalog.device(name), build(model, quantizer), Workload(**fields)
    if watching := _watched.get():
        seen, change = watching
        seen.append((device, kv, workload))
        device, kv = change(device, kv, workload) if change else (device, kv)
    return Point(device, kv, workload)


def results_at(name: str, model: str, quantizer: str = "fp16", **work: Any) -> dict[str, Any]:
    """All results of a design point on device `name`; `work` are the fields of a Workload. One request, ideal, unless
    asked."""
    results = engine.evaluate(_point(name, model, quantizer, work))
    watching = _watched.get()
    if watching and watching[1] and not results["feasible"] and engine.evaluate(Point(*watching[0][-1]))["feasible"]:
        raise DoesNotRun
    return results


def operations(name: str, model: str, quantizer: str = "fp16", **work: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Every operation of a design point by phase and name, as `evaluate` times them. One request unless asked."""
    ops = _point(name, model, quantizer, work).operations()
    return {(op["phase"], op["name"]): op for op in ops}


def tokens_per_s(name: str, model: str, quantizer: str = "fp16", **work: Any) -> float:
    """Throughput of a design point that fits."""
    throughput: float = results_at(name, model, quantizer, **work)["throughput_tokens_per_s"]
    return throughput


def sequence_bits(kv: kv_layout.KvPlan, n_tokens: int) -> Fraction:
    """Stored bits of one sequence."""
    return Fraction(kv.bits(n_tokens), kv.den)


def with_kv_heads(model: ModelSpec, n_kv_heads: int) -> ModelSpec:
    """Change the number of key and value heads in every layer; parameters stay."""
    layers = tuple(layer.model_copy(update={"n_kv_heads": n_kv_heads}) for layer in model.layers)
    return model.model_copy(update={"layers": layers})
