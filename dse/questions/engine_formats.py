"""Formats that the software of a device runs for a model, and why it does not run the others (dse/model/starts.py)."""

from collections.abc import Iterable
from dataclasses import dataclass

from dse import quantizers
from dse.core.errors import InputError
from dse.model import stacks, starts
from dse.questions import common
from dse.questions.common import Candidate
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.engines import Support
from dse.specs.measurements import CLOSED, Bits
from dse.specs.workload import Workload

#: what formats are told over
PLAIN = starts.PLAIN


@dataclass(frozen=True)
class EngineFormat:
    """A format with what is known of it: a design, None where the model's heads do not take it, and why the engine does
    not run it; "" where it does."""

    name: str
    design: Candidate | None
    reason: str
    support: Support | None = None
    #: other software that runs it, which is compared where that is asked for
    elsewhere: bool = False


def each(device: HardwareSpec, model: ModelSpec, work: Workload, bits: Bits = CLOSED) -> list[EngineFormat]:
    """Every family of fewer bits than 16."""
    stack = stacks.stack_text(stacks.stack_of(device, work.of_model(model))[0], work) or ""
    formats = []
    for family in quantizers.FAMILIES:
        try:
            design = common.design(device, model, family, bits=bits)
        except InputError as error:
            formats.append(EngineFormat(family, None, _short(str(error))))
            continue
        if not any(g.layout.needs_dequantizing for g in design.plan.groups):
            continue  # 16 bits by another name
        told = starts.of_format(device, model, work, stack, family)
        formats.append(EngineFormat(family, design, *told))
    return formats


def compared(device: HardwareSpec, model: ModelSpec, work: Workload, bits: Bits = CLOSED) -> list[Candidate]:
    """16 bits, and every format that the engine runs and that takes no seconds to count: what is compared where no
    format is named."""
    told = each(device, model, work, bits)
    runs = [entry for entry in told if not entry.reason or (work.other_software and entry.elsewhere)]
    designs = [entry.design for entry in runs if entry.design]
    return [common.design(device, model, PLAIN, bits=bits), *(d for d in designs if not d.takes_long(work))]


def other_software(designs: Iterable[Candidate], work: Workload) -> str:
    """A note on formats that the engine does not run, each with the reason; "" where it runs all."""
    return common.refused_text(design.speed(work) for design in designs)


def _short(problem: str) -> str:
    """Why a format is not for the model, from the message of its error."""
    return "not for this model's heads" if "head" in problem else problem.partition(": ")[2] or problem
