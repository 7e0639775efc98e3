"""Build the device, the plan and the workload of a sweep's point, for `dse.model.engine.evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from dse.model import kv_layout
from dse.model.lower import device_of
from dse.quantizers import QuantizerSpec
from dse.specs.device_and_model import HardwareSpec
from dse.specs.measurements import Bits
from dse.specs.workload import Workload
from dse.sweep.axes import QUANTIZER_AXES, SweepAxis

#: devices, quantizers and plans that are kept, each: neighbours share them
KEPT = 1024
Places = tuple[int, ...]


class Designs:
    """Builds devices, plans and workloads from places on axes; what neighbouring points share is built once."""

    def __init__(self, axes: Sequence[SweepAxis], base: Workload, bits: Bits) -> None:
        self.axis = {axis.name: axis for axis in axes}
        self.base, self.bits = base, bits
        by_role = {role: [a.name for a in axes if a.role == role] for role in ("device_field", "parameter", "workload")}
        self.fields, self.parameters, self.work_fields = by_role.values()
        self.sides = [name for name in QUANTIZER_AXES if name in self.axis]
        self.device = lru_cache(maxsize=KEPT)(self._device)
        self.device_numbers = lru_cache(maxsize=KEPT)(lambda *places: device_of(self.device(*places)))
        self.quantizer = lru_cache(maxsize=KEPT)(self._quantizer)
        self.plan = lru_cache(maxsize=KEPT)(self._plan)

    def rows(self, digits: Mapping[str, NDArray[Any]]) -> list[tuple[int, Places, int, Places, Places, Places]]:
        """Places by point: device, its fields, model, quantizers, their parameters, workload."""
        device, model = digits["device"].tolist(), digits["model"].tolist()

        def places(names: Sequence[str]) -> list[Places]:
            return list(zip(*(digits[name].tolist() for name in names), strict=True)) if names else [()] * len(device)

        return list(
            zip(
                device,
                places(self.fields),
                model,
                places(self.sides),
                places(self.parameters),
                places(self.work_fields),
                strict=True,
            )
        )

    def at(
        self, device: int, fields: Places, model: int, sides: Places, parameters: Places, work: Places
    ) -> tuple[HardwareSpec, kv_layout.KvPlan, Workload]:
        """One row of `rows` as specs. Raises InputError where the values do not go together."""
        changes = {name: self.axis[name].items[i] for name, i in zip(self.work_fields, work, strict=True)}
        return self.device(device, fields), self.plan(model, sides, parameters), replace(self.base, **changes)

    def _device(self, place: int, fields: Places) -> HardwareSpec:
        spec: HardwareSpec = self.axis["device"].items[place]
        changes = {name: self.axis[name].items[i] for name, i in zip(self.fields, fields, strict=True)}
        return spec.model_copy(update=changes) if changes else spec

    def _quantizer(self, name: str, place: int, parameters: Places) -> QuantizerSpec:
        spec: QuantizerSpec = self.axis[name].items[place]
        if spec.layers:  # read once, where the sweep was
            return self.bits.attached(spec)
        options = []
        for parameter, i in zip(self.parameters, parameters, strict=True):
            family, _, key = parameter.partition(".")
            text = self.axis[parameter].items[i] if i >= 0 and family == spec.family.name else ""
            options += [f"{key}={text}"] if text else []
        joined = spec.name + (("," if ":" in spec.name else ":") + ",".join(options) if options else "")
        return self.bits.quantizer(joined)

    def _plan(self, model: int, sides: Places, parameters: Places) -> kv_layout.KvPlan:
        by_side = {n: self.quantizer(n, place, parameters) for n, place in zip(self.sides, sides, strict=True)}
        both = by_side.get("quantizer") or self.bits.quantizer("fp16")
        key, value = by_side.get("key_quantizer", both), by_side.get("value_quantizer", both)
        return kv_layout.build(self.axis["model"].items[model], key, value)
