"""Short ways to the product that every claim uses: plans and design points by name."""

from fractions import Fraction
from functools import cache
from typing import Any

from dse import catalog, plan, point, quantizers
from dse.specs import ModelSpec
from dse.workload import Workload


@cache
def build(model: str, quantizer: str = "fp16") -> plan.KvPlan:
    """The plan of a shipped model, keys and values under one quantizer."""
    return build_model(catalog.model(model), quantizer)


def build_model(model: ModelSpec, quantizer: str = "fp16") -> plan.KvPlan:
    """The plan of any model, keys and values under one quantizer."""
    spec = quantizers.parse(quantizer)
    return plan.build(model, spec, spec)


def evaluate(device: str, model: str, quantizer: str = "fp16", **work: Any) -> dict[str, Any]:
    """All results of a design point; `work` are the fields of a Workload."""
    return point.evaluate(catalog.device(device), build(model, quantizer), Workload(**work))


def tokens_per_s(device: str, model: str, quantizer: str = "fp16", **work: Any) -> float:
    """Throughput of a design point that fits."""
    throughput: float = evaluate(device, model, quantizer, **work)["throughput_tokens_per_s"]
    return throughput


def sequence_bits(kv: plan.KvPlan, n_tokens: int) -> Fraction:
    """Stored bits of one sequence."""
    return Fraction(kv.bits(n_tokens), kv.den)


def with_kv_heads(model: ModelSpec, n_kv_heads: int) -> ModelSpec:
    """The same model with another number of key and value heads in every layer; its parameters stay."""
    layers = tuple(layer.model_copy(update={"n_kv_heads": n_kv_heads}) for layer in model.layers)
    return model.model_copy(update={"layers": layers})
