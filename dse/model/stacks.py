"""The software stack that runs a design: its name, and what was fitted to its kernels on a device."""

from dse.core.errors import InputError, show
from dse.specs import catalog, engines, releases
from dse.specs.device_and_model import HardwareSpec
from dse.specs.implementation import ANY_GPU
from dse.specs.stack import ServedStack, StackSpec, served
from dse.specs.workload import Workload

#: software stack of a device that has several
DEFAULT_STACK = "vllm"
#: whose stacks a GPU runs by that is known by its data sheet alone, when calibrated is asked for
DEFAULT_STACKS_OF = "h100"
#: in place of a release: kernels alone, as papers and their benchmarks have them
KERNELS = "kernels"
#: programs that have no stack of their own -> what their times are near to
NEAR = {
    **dict.fromkeys(
        ("ollama", "lmstudio", "lm-studio", "koboldcpp", "ik_llama.cpp", "llamacpp"), "runs llama.cpp's code"
    ),
    **dict.fromkeys(("mlx", "mlx-lm"), "its times are not modeled: its KV types (mlx:bits=4) count in memory"),
}
#: what times of a device are called whose kernels nobody measured
WITHOUT_KERNELS = "estimated"


def stack_of(device: HardwareSpec, work: Workload) -> tuple[str | None, StackSpec | None]:
    """The software stack whose calibrated parameters are used: vllm by default, llama.cpp where the weights are its
    files or nothing else runs; none for the ideal model.

    What was not measured of it on the device is that of the device's other stacks, and of a release that was not
    measured that of the stack in general. `KERNELS` in place of a release leaves a server's own time out. Raises
    InputError for a stack that nobody measured.
    """
    if work.model_kind == "ideal":
        return None, None
    if by_backend := _by_backend(device, work):
        return by_backend
    if work.model_kind == "auto" and not device.stacks and not work.stack:
        return None, None
    if not device.stacks and device.n_cores is None:
        raise InputError(
            f"model-kind = calibrated: {device.name} has no calibrated parameters: use ideal, or `dse calibrate`"
        )
    stacks = device.stacks or catalog.device(DEFAULT_STACKS_OF).stacks
    engine, _, release = (work.stack or "").partition("@")
    name = engine or (DEFAULT_STACK if DEFAULT_STACK in stacks else next(iter(stacks)))
    servers = catalog.servers()
    known = dict.fromkeys(
        [
            *(name for name, spec in stacks.items() if spec.attention or spec.gemm or spec.host),
            *servers,
            *catalog.backends(),
        ]
    )
    if name not in known:
        raise InputError(f"stack = {show(name)}: {device.name} is calibrated for {', '.join(known)}")
    order = {other: stacks[other] for other in dict.fromkeys([name, DEFAULT_STACK, *stacks]) if other in stacks}
    if release != KERNELS:
        engines.check_release(name, release)
    if release == KERNELS:
        if name not in stacks or not (stacks[name].attention or stacks[name].gemm):
            kernels = ", ".join(f"{name}@{KERNELS}" for name, spec in stacks.items() if spec.attention or spec.gemm)
            raise InputError(f"stack = {show(work.stack)}: {device.name} has no such kernels: use {kernels}")
        return name, served(name, order, None, "")
    public = {kind: fit for kind, fit in catalog.benchmarked(name).items() if fit.covers(release)} if release else {}
    return name, served(name, order, servers.get(name), release, public)


def _by_backend(device: HardwareSpec, work: Workload) -> tuple[str, StackSpec] | None:
    """The stack of a program that has a backend for the device, where it is asked for, nothing else runs there, or the
    weights are a file of its types; None for other stacks. Raises InputError for a backend that there is not, and for a
    stack beside the only one."""
    engine, _, release = (work.stack or "").partition("@")
    if engine in NEAR:
        raise InputError(f"stack = {show(work.stack)}: {NEAR[engine]}: use llama.cpp")
    is_file = not engine and work.weight_format.is_file
    architecture = device.architecture or (ANY_GPU if device.n_cores else "")
    for name, program in catalog.backends().items():
        backend = program.backend_of(architecture)
        is_alone = bool(backend and program.backends[backend].is_alone)
        if engine != name and not is_alone and not (is_file and backend):
            continue
        if engine not in ("", name):
            title = program.backends[backend or ""].title
            raise InputError(
                f"stack = {show(work.stack)}: {engines.ENGINES.get(engine, engine)} does not run on {title}, which "
                f"{device.name} has: use {name}, the default there"
            )
        if backend is None:
            titles = ", ".join(known.title for known in program.backends.values())
            raise InputError(
                f"stack = {show(work.stack)}: {program.title} has {titles}, none of them for {device.name}"
            )
        if release == KERNELS:
            raise InputError(f"stack = {show(work.stack)}: was measured by whole steps alone: use {name}")
        engines.check_release(name, release)
        return name, program.stack(backend, device.stacks.get(name), release)
    return None


def kind_of(stack: StackSpec | None, work: Workload) -> str:
    """Where times come from: "calibrated" by measured kernels, "estimated" at the middle of what measured devices reach
    of their peaks, or "ideal", at the peaks, as asked."""
    if stack:
        return "calibrated"
    return "ideal" if work.model_kind == "ideal" else WITHOUT_KERNELS


def stack_text(stack_name: str | None, work: Workload) -> str | None:
    """The stack as results have it: its name, with the release that was asked for."""
    _, at, release = (work.stack or "").partition("@")
    return stack_name + at + release if stack_name and release else stack_name


def age_text(stack_name: str | None, stack: StackSpec | None, work: Workload) -> str:
    """The release that a server's own time was measured on, where that is not the one asked for, and how long before or
    after it came out: "measured on vLLM 0.19.0, 30 weeks before 0.33.0"; of no release in particular the newest of
    both. "" where it is the one asked for, or the days are not known."""
    name, asked = stack_name or "", (work.stack or "").partition("@")[2]
    if not isinstance(stack, ServedStack) or not stack.measured or stack.measured == asked or not releases.dates(name):
        return ""
    weeks = round(releases.weeks_between(name, stack.measured, asked))
    title = f"measured on {engines.ENGINES.get(name, name)} {'' if asked else 'up to '}{stack.measured}"
    when = f"{abs(weeks)} week{'s' * (abs(weeks) != 1)} {'before' if weeks >= 0 else 'after'}"
    return f"{title}, {when} {asked or releases.listed(name, '')}"
