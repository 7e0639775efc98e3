"""Sensitivity: a result where each number of the device is halved, and where it is doubled, one at a time."""

from dataclasses import dataclass

from dse.core import units
from dse.core.progress import Progress
from dse.model.point import filled
from dse.questions.common import THROUGHPUT, Candidate, Measure, context, lookup, with_number
from dse.questions.effects import Effects, Number, answer_of, as_given, effects_of
from dse.specs.device_and_model import HardwareSpec
from dse.specs.quantity import Quantity
from dse.specs.workload import Workload

#: numbers that describe how a device is made or counted, and are no resource to have more of
KEPT = (
    "n_devices",
    "n_cores",
    "token_cores",
    "array_rows",
    "l2_cache",
    "kv_page",
    "kv_burst",
    "reported_memory",
    "usable_frac",
    "runtime_overhead",
)
#: half and twice
FACTORS = (0.5, 2.0)


@dataclass(frozen=True, repr=False)
class Sensitivity(Effects):
    """The answer: effects of half and twice each number, the largest first."""

    def name(self) -> str:
        """The question's name in JSON."""
        return "sensitivity"

    def question(self) -> str:
        """The head of the text."""
        return f"What if a number of the device were half or twice? ({self.measure.title})"

    def lines(self) -> list[str]:
        """A table: each number, the measure at half of it and at twice, and over the measure as given."""
        width = max((len(effect.number.name) for effect in self.moving), default=0)
        if not self.moving:
            return []
        lines = [f"  {'':<{width}}  {'as given':<16}  {'halved':<30}  {'doubled':<30}".rstrip()]
        for effect in self.moving:
            number = effect.number
            cells = [f"{self._over(end):<30}" for end in (effect.at_low, effect.at_high)]
            line = f"  {number.name:<{width}}  {units.human(number.value, number.unit, 4):<16}  {'  '.join(cells)}"
            lines.append(f"{line}  {self.flip_text(effect)}".rstrip())
        return lines

    def text(self) -> str:
        """The table, and what stays as it is."""
        stays = "Kernels keep the shares of peak rates that they reach; the server's own time stays as it is."
        return f"{super().text()}\n{stays} How sure each number is: `dse ask doubt`."

    def _over(self, value: float | None) -> str:
        """The measure, and over that as given."""
        ratio = f" ({value / self.base:.2f}x)" if value is not None and self.base else ""
        return f"{self.measure.text(value)}{ratio}"


def numbers(device: HardwareSpec) -> list[Number]:
    """Every number of the device that can be halved and doubled, as given."""
    return [_number(name, quantity) for name, quantity in device.quantities().items() if name not in KEPT]


def _number(name: str, quantity: Quantity) -> Number:
    low, high = (factor * quantity.si for factor in FACTORS)
    if name == "memory_capacity":  # whole bytes
        low, high = float(int(low)), float(int(high))
    return Number.of(name, quantity, low, high, "half and twice")


def sensitivity(
    design: Candidate,
    work: Workload,
    measure: Measure = THROUGHPUT,
    other: Candidate | None = None,
    progress: Progress | None = None,
) -> Sensitivity:
    """Halve and double each number of the device, one at a time; `other` runs on the same device.

    A batch of None is as many requests as fit at each value. Fitted kernels keep their shares of peak rates. Raises
    InputError where the design does not run as given, or the device lacks what the measure needs.
    """
    designs = [design] if other is None else [design, other]
    device, filled_work = design.device, filled(design.device, design.plan, work)
    base = as_given(designs, filled_work, measure)

    def evaluated(name: str, si: float) -> list[float | None]:
        varied = with_number(device, name, si, "varied")
        whole = filled(varied, design.plan, work)
        return [measure.value(Candidate(varied, d.plan).evaluate(whole)) for d in designs]

    params = [number for number in numbers(device) if lookup(device, number.name) or number.name == "fused_rate"]
    effects = effects_of(params, evaluated, designs, base, measure, progress)
    about = context(device, design.plan.model, filled_work, base[0], work.batch is None)
    return answer_of(Sensitivity, designs, filled_work, measure, base, effects, about)
