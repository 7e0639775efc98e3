"""What a design is: device, model, quantizers, the fields of its workload, and the paths that were chosen."""

from dse.model.results.declare import FLAG, NAME, NUMBER, WHOLE, How, Result
from dse.specs import workload

_KIND_RULE = "as given; auto: calibrated where the device has kernels of a stack, else ideal"
_SERVER_RULE = "as given, else the server's; none as papers count memory"
#: fields of a workload that `auto` or nothing leaves to the device, and the rule by which results show them
_CHOSEN = {
    "model_kind": _KIND_RULE,
    "stack": _KIND_RULE,
    "implementation": "as given, else the device's, else what its stack has; generic: no kernel is known",
    "memory": "as given, else server where the device names reported_memory and a KV cache is kept, paper elsewhere",
    "gpu_memory_utilization": _SERVER_RULE,
    "prompt_budget_tokens": _SERVER_RULE,
}
#: fields of a workload that stand before the others: they say what times mean
_FIRST = ("model_kind", "stack", "tokens")


def _field(name: str) -> Result:
    """Declare a field of a workload as a result."""
    asked = workload.ASKED[name]
    dtypes = {workload.WHOLE: WHOLE, workload.SHARE: NUMBER, workload.SWITCH: FLAG}
    dtype = dtypes.get(asked.kind, WHOLE if asked.unit else NAME)
    figure_unit = "%" if asked.kind == workload.SHARE else ""
    return Result(name, asked.unit, dtype, asked.title, figure_unit=figure_unit, chosen=_CHOSEN.get(name, "given"))


def _path(side: str) -> Result:
    """Declare where keys or values are dequantized."""
    how = How(
        equation=lambda at: (
            f"--dequant-path, else the rule of {at.device.name} for {at.quantizers[side].family.name}; "
            "none where nothing is packed"
        ),
        source="docs/explanation/model.md, Dequantisation",
    )
    return Result(f"{side}_dequant_path", "", NAME, f"unpacking of {side}s", how=(how,))


RESULTS = (
    Result("device", "", NAME, "device", chosen="given"),
    Result("model", "", NAME, "model", chosen="given"),
    Result("quantizer", "", NAME, "quantizer", chosen="given"),
    Result("key_quantizer", "", NAME, "quantizer of keys", chosen="given"),
    Result("value_quantizer", "", NAME, "quantizer of values", chosen="given"),
    *(_field(name) for name in _FIRST),
    *(_field(name) for name, asked in workload.ASKED.items() if asked.title and name not in _FIRST),
    Result("n_devices", "device", WHOLE, "devices"),
    _path("key"),
    _path("value"),
)
