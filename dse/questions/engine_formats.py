"""Formats that the named engine runs on a device for a model, and why it does not run the others.

Of a GPU the engine's table says it (dse/specs/engines.py), of a designed chip its own engine, of other devices the
implementations that are known.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dse import quantizers
from dse.core.errors import InputError
from dse.model.kv_layout import KvPlan
from dse.quantizers import engine_names
from dse.questions import common
from dse.questions.common import Candidate
from dse.specs import catalog, engines
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.engines import Support
from dse.specs.implementation import GENERIC
from dse.specs.measurements import CLOSED, Bits
from dse.specs.workload import Workload

#: what formats are told over
PLAIN = "fp16"
_NO_TYPE = "no KV type of"


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


def kv_dtype(stack: str, release: str, family: str) -> str | None:
    """The name that an engine has for a family, of the types in a release's table; None where it has none."""
    types = engines.types(stack, release)
    own = [
        one.name
        for one in engine_names.offered(quantizers.FAMILIES)
        if one.engine == engines.ENGINES.get(stack) and one.text == family
    ]
    return next((name for name in (family, *own) if name in types), None)


def has_table(device: HardwareSpec, stack: str) -> bool:
    """Whether a table tells what an engine (NAME or NAME@RELEASE) runs on a device."""
    name, _, asked = stack.partition("@")
    release = engines.release_for(name, asked)
    return release is not None and (device.architecture or "") in engines.architectures(name, release)


def plain_support(device: HardwareSpec, model: ModelSpec, work: Workload, stack: str) -> Support | None:
    """The row of a release's table for what a model computes with; None where none tells."""
    if not has_table(device, stack):
        return None
    name, _, asked = stack.partition("@")
    return engines.support(name, asked, device, model, engines.AUTO, work.tower)


def told_text(device: HardwareSpec, model: ModelSpec, work: Workload, stack: str, family: str) -> str:
    """Whether an engine runs a format here, in a line; "" where no table tells."""
    if not has_table(device, stack):
        return ""
    reason, row = _why_not(device, model, work, stack, family)
    if row is None:
        return f"{reason}: other software would have to run it" if reason.startswith(_NO_TYPE) else ""
    other = row.runs and row.stored_as not in ("", family, row.kv_dtype)
    return row.text() + (f"; stored as {row.stored_as}, which --quantizer {row.stored_as} counts" if other else "")


def may_run(device: HardwareSpec, model: ModelSpec, work: Workload, stack: str, family: str) -> bool:
    """Whether an engine runs a format here; where no table tells, whether a kernel of the device is known to."""
    if has_table(device, stack):
        return not _why_not(device, model, work, stack, family)[0]
    try:
        runs = catalog.implementation(device, family, stack.partition("@")[0] or None, work.implementation or "")
    except InputError:
        return False
    return runs is not None and not runs.name.startswith(GENERIC)


def refusals(device: HardwareSpec, plan: KvPlan, work: Workload, stack: str) -> dict[str, str]:
    """Families of a design that the engine's table says it does not run, each with the line that says so."""
    if work.implementation or not has_table(device, stack):
        return {}
    model = (plan.whole or plan).model
    packed = dict.fromkeys(g.quantizer.family.name for g in plan.groups if g.layout.needs_dequantizing)
    reasons = {family: _why_not(device, model, work, stack, family) for family in packed}
    found = {family: row.text() if row else reason for family, (reason, row) in reasons.items() if reason}
    plain = plain_support(device, model, work, stack)
    if len(packed) < len({g.quantizer.family.name for g in plan.groups}) and plain and not is_plain(plain):
        found[PLAIN] = (
            plain.text() if not plain.runs else f"{plain.engine} {plain.release} stores it as {plain.stored_as}"
        )
    return found


def is_plain(support: Support) -> bool:
    """Whether an engine that is asked for nothing else keeps 16 bits."""
    return support.runs and support.stored_as in ("", engines.AUTO)


def _offers(stack: str, family: str) -> bool:
    """Whether an engine has a name for a family."""
    known = engine_names.offered(quantizers.FAMILIES)
    return any(one.engine == engines.ENGINES.get(stack) and one.text == family for one in known)


def _why_not(
    device: HardwareSpec, model: ModelSpec, work: Workload, stack: str, family: str
) -> tuple[str, Support | None]:
    """Why an engine with a table does not run a format, "" where it does; and the row that says it."""
    name, _, asked = stack.partition("@")
    release = engines.release_for(name, asked) or ""
    engine = f"{engines.ENGINES.get(name, name)} {release}"
    dtype = kv_dtype(name, release, family)
    if dtype is None:
        return f"{_NO_TYPE} {engine}", None
    found = engines.support(name, asked, device, model, dtype, work.tower)
    if found is None:
        return f"not told for {', '.join(engines.kinds(model, work.tower))} on {device.architecture} by {engine}", None
    said = {engines.REFUSED: "refused by", engines.FAILS: "fails as it starts under"}
    return (f"{said[found.status]} {engine}" if found.status in said else ""), found


def each(device: HardwareSpec, model: ModelSpec, work: Workload, bits: Bits = CLOSED) -> list[EngineFormat]:
    """Every family of fewer bits than 16."""
    stack = str(common.design(device, model, PLAIN).speed(work)["stack"] or "")
    name = stack.partition("@")[0]
    is_told = has_table(device, stack) and not work.implementation
    found = []
    for family in quantizers.FAMILIES:
        try:
            one = common.design(device, model, family, bits=bits)
        except InputError as error:
            found.append(EngineFormat(family, None, _short(str(error))))
            continue
        if not any(g.layout.needs_dequantizing for g in one.plan.groups):
            continue  # 16 bits by another name
        try:
            runs = catalog.implementation(device, family, name or None, work.implementation or "")
        except InputError:
            found.append(EngineFormat(family, one, "other kernels than asked for"))
            continue
        is_known = runs is not None and not runs.name.startswith(GENERIC)
        if is_told:
            reason, row = _why_not(device, model, work, stack, family)
            found.append(EngineFormat(family, one, reason, row, elsewhere=bool(reason) and is_known))
        elif device.engine_rate is not None:
            own = device.path_of(family) == "engine"
            found.append(
                EngineFormat(family, one, "" if own else f"no engine of {device.name} runs it", None, is_known)
            )
        elif not is_known:
            found.append(EngineFormat(family, one, f"no kernel known for {device.name}"))
        elif runs and name and runs.stack != name and not work.implementation and not _offers(name, family):
            found.append(
                EngineFormat(family, one, f"{_NO_TYPE} {engines.ENGINES.get(name, name)}", None, elsewhere=True)
            )
        elif runs and runs.stack and name and runs.stack != name and not work.implementation:
            found.append(EngineFormat(family, one, f"a kernel of {runs.stack} alone"))
        else:
            found.append(EngineFormat(family, one, ""))
    return found


def compared(device: HardwareSpec, model: ModelSpec, work: Workload, bits: Bits = CLOSED) -> list[Candidate]:
    """16 bits, and every format that the engine runs and that takes no seconds to count: what is compared where no
    format is named."""
    own = [one.design for one in each(device, model, work, bits) if one.design and not one.reason]
    return [common.design(device, model, PLAIN, bits=bits), *(one for one in own if not one.takes_long(work))]


def other_software(designs: Iterable[Candidate], work: Workload) -> str:
    """A note on formats that the engine does not run, each with the reason; "" where it runs all."""
    told = {}
    for one in designs:
        stack, family = str(one.speed(work)["stack"] or ""), one.plan.key_quantizer.family.name
        if family in refusals(one.device, one.plan, work, stack):
            told[one.name] = _why_not(one.device, one.plan.model, work, stack, family)[0]
    names = "; ".join(f"{name}: {reason}" for name, reason in told.items())
    return f"Other software would have to run {names}." if told else ""


def _short(problem: str) -> str:
    """Why a format is not for the model, from the message of its error."""
    return "not for this model's heads" if "head" in problem else problem.partition(": ")[2] or problem
