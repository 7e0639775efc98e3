"""Short ways to the product that every claim uses: plans and design points by name."""

from fractions import Fraction
from functools import cache
from typing import Any

from dse import quantizers
from dse.model import engine, kv_layout
from dse.model.point import Point
from dse.model.stacks import DEFAULT_STACK, KERNELS
from dse.specs import catalog
from dse.specs.device_and_model import ModelSpec
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


def results_at(name: str, model: str, quantizer: str = "fp16", **work: Any) -> dict[str, Any]:
    """All results of a design point on device `name`; `work` are the fields of a Workload. One request, ideal, unless
    asked."""
    fields: dict[str, Any] = {"batch": 1, "model_kind": "ideal", **PAPER, **work}
    return engine.evaluate(Point(catalog.device(name), build(model, quantizer), Workload(**fields)))


def operations(name: str, model: str, quantizer: str = "fp16", **work: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Every operation of a design point by phase and name, as `evaluate` times them. One request unless asked."""
    fields: dict[str, Any] = {"batch": 1, "model_kind": "ideal", **PAPER, **work}
    device, kv, workload = catalog.device(name), build(model, quantizer), Workload(**fields)
    ops = Point(device, kv, workload).operations()
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
