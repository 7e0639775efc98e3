"""Names of a design: device, model, quantizers, the fields of its workload, and the paths chosen."""

from dse.model.facts import Facts
from dse.model.results.declare import FLAG, NAME, NUMBER, WHOLE, Derivation, Topic, how
from dse.specs import workload

_KIND_RULE = "as given; auto: calibrated where the device has kernels of a stack, else ideal"
_SERVER_RULE = "as given, else the server's; none as papers count memory"
#: fields of a workload that `auto` or nothing leaves to the device, and the rule by which results show them
_CHOSEN = {
    "model_kind": _KIND_RULE,
    "stack": _KIND_RULE,
    "implementation": "as given, else the device's, else what its stack has; generic: no kernel is known",
    "memory": "as given, else server where the device names reported_memory and a KV cache is kept, paper elsewhere",
    "batch": "as given, else as many as fit, at most as many as the server takes; 1 where none fits",
    "admission": "as given, else paged on GPUs, reserve on other devices and where memory is counted as papers do",
    "gpu_memory_utilization": _SERVER_RULE,
    "prompt_budget_tokens": _SERVER_RULE,
}
#: numbers of a device by which a server chooses
_READS = {name: ("reported_memory",) for name in ("gpu_memory_utilization", "prompt_budget_tokens")}
#: fields of a workload that stand before the others: they say what times mean
_FIRST = ("model_kind", "stack", "tokens")
_DTYPES = {"whole": WHOLE, "number": NUMBER, "switch": FLAG, "text": NAME}

topic = Topic()

for name, title in (
    ("device", "device"),
    ("model", "model"),
    ("quantizer", "quantizer"),
    ("key_quantizer", "quantizer of keys"),
    ("value_quantizer", "quantizer of values"),
):
    topic.add(name, "", NAME, title, chosen="given")

for name in (*_FIRST, *(name for name, field in workload.ASKED.items() if field.title and name not in _FIRST)):
    field = workload.ASKED[name]
    topic.add(
        name,
        field.unit,
        _DTYPES[field.kind.sort],
        field.title,
        figure_unit="%" if field.kind.word == "share" else "",
        chosen=_CHOSEN.get(name, "given"),
        reads=_READS.get(name, ()),
    )

topic.add("n_devices", "device", WHOLE, "devices")


@topic.result("", FLAG, "run by its software")
def runs(at: Facts) -> Derivation:
    return how(
        "the table of the engine's release, else the chip's engines, else published code; --other-software: any",
        "dse/model/starts.py, hwspecs/engines",
        stack=at.point.lowered.results["stack"],
    )


@topic.result("", NAME, "why not run")
def runs_why(at: Facts) -> Derivation:
    return how("what of the format or the layout the software refuses; none where it runs", "dse/model/starts.py")


def _path(at: Facts, side: str) -> Derivation:
    family = at.quantizers[side].family.name
    rule = f"--dequant-path, else the rule of {at.device.name} for {family}; none where nothing is packed"
    return how(rule, "docs/explanation/model.md, Dequantization")


@topic.result("", NAME, "unpacking of keys")
def key_dequant_path(at: Facts) -> Derivation:
    return _path(at, "key")


@topic.result("", NAME, "unpacking of values")
def value_dequant_path(at: Facts) -> Derivation:
    return _path(at, "value")
