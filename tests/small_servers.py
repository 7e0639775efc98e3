"""Devices on which few requests fit, and step times of a small model on them."""

from dse.serving import simulator as simulate
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build


def a100(**fields):
    """An A100 with some numbers changed."""
    base = catalog.device("a100-80gb")
    update = {name: getattr(base, name).model_copy(update={"value": value}) for name, value in fields.items()}
    return base.model_copy(update=update)


PLANS = {name: build("opt-125m", name) for name in ("fp16", "kivi:group=32,residual=32", "oaken")}


def weights(work):
    """Bytes of the weights of OPT-125M in FP16 on a device."""
    return simulate.memory_of(a100(), PLANS["fp16"], work, 10).weight_bytes


TABLES = {}


def times_of(kv, n, tp=1):
    key = (kv.quantizer_name, n, tp)
    if key not in TABLES:
        exact = simulate.step_times.Exact.of(
            a100(), kv, Workload(model_kind="ideal", memory="paper", tp=tp, dp_attention=tp > 1)
        )
        TABLES[key] = simulate.step_times.build(exact, n, 200, 4000)
    return TABLES[key]


def room_for(kv, work, n_tokens):
    """A device on which one sequence of `n_tokens` fits beside the weights, and no more."""
    memory = simulate.memory_of(a100(), kv, work, n_tokens)
    return a100(memory_capacity=(weights(work) + memory.to_bytes(memory.own_bits(n_tokens))) / 1e9)
