"""The fields that operations share: device, model, quantizers, where bits come from, and how an answer is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from dse.core.errors import InputError, show
from dse.core.field import BYTES, SWITCH, TOKENS, WHOLE
from dse.operations.declare import Console, Operation, operation, option, work, work_field
from dse.specs.workload import DEPLOYMENT, MAX_INPUT_TOKENS, MEMORY, TIMING, Workload

if TYPE_CHECKING:
    from dse.model.kv_layout import KvPlan
    from dse.quantizers import QuantizerSpec
    from dse.questions.common import Candidate
    from dse.serving.agents import Agents
    from dse.serving.steady_state import HostMemory
    from dse.specs.device_and_model import HardwareSpec, ModelSpec
    from dse.specs.measurements import Bits

#: a device, a model or a quantizer: its name or file, or what `dse.device`, `dse.model` and `dse.quantizer` return
Device: TypeAlias = "str | Path | HardwareSpec"
Model: TypeAlias = "str | Path | ModelSpec"
Quantizer: TypeAlias = "str | QuantizerSpec"


#: headings of a long help
DESIGN, OUTPUT = "Design", "Output"


def device_option(default: Any = MISSING, help: str = "Device name or .toml file.") -> Any:
    """The field of a device."""
    return option(default, help, metavar="NAME|FILE", group=DESIGN)


def model_option(default: Any = MISSING) -> Any:
    """The field of a language model."""
    return option(
        default,
        "Model name, .toml file or config.json.",
        former=("-m", "-hf", "-hfr", "--hf-repo"),
        metavar="NAME|FILE",
        group=DESIGN,
    )


def quantizer_option() -> Any:
    """The field of a quantizer, which has the engines' names too."""
    return option(
        "fp16",
        "KV quantizer with parameters, e.g. oaken or sinkq:bits=2,group=32, or as engines call it, e.g. fp8_e4m3 "
        "(`dse list quantizers`), or plan:FILE.toml.",
        also=("--kv-cache-dtype",),
        former=("--quantizers",),
        metavar="Q",
        is_said=True,
        group=DESIGN,
    )


def json_option(help: str = "Print as JSON, in SI base units.") -> Any:
    """The switch for JSON, which only the command line has."""
    return option(False, help, SWITCH, name="json", in_python=False, group=OUTPUT)


def _spec(name: str, given: Any, load: Callable[[str], Any]) -> Any:
    """A device or model by its name or file, or itself. Raises InputError for what is neither."""
    if isinstance(given, list | tuple | set | dict | int | float) or given is None:
        raise InputError(f"{name} = {show(given)}: must be one name or file, or what dse.{name}() gives")
    return load(str(given)) if isinstance(given, str | Path) else given


#: fields of a workload by which requests come and are served one by one
TRAFFIC = (
    "batch",
    "max_num_seqs",
    "admission",
    "page_tokens",
    "batching",
    "weights_bits",
    "weights",
    "activation_bits",
    "dequant_path",
    *MEMORY,
    *DEPLOYMENT,
    *TIMING,
)


def hardware(device: Device) -> HardwareSpec:
    """The device. Raises InputError for a name that is not known, SpecError for a bad file."""
    from dse.specs import catalog

    return _spec("device", device, catalog.device)


def language_model(model: Model) -> ModelSpec:
    """The model. Raises InputError for a name that is not known, SpecError for a bad file."""
    from dse.specs import catalog

    return _spec("model", model, catalog.model)


def quantizer_spec(quantizer: Quantizer, bits: Bits | None = None) -> QuantizerSpec:
    """The quantizer with its errors; `bits` says where bits and errors come from. Raises InputError."""
    from dse.specs.measurements import CLOSED

    if isinstance(quantizer, str):
        return (bits or CLOSED).required(quantizer)
    if bits is not None:
        raise InputError("bits and measurements: go with the name of a quantizer, not with what dse.quantizer returned")
    return quantizer


def layout(model: Model, keys: Quantizer, values: Quantizer, bits: Bits | None = None) -> KvPlan:
    """The model with its keys and values stored by two quantizers; that of shipped names is kept."""
    from dse.model import kv_layout
    from dse.specs import catalog

    if (
        bits is None
        and isinstance(model, str)
        and model in catalog.model_files()
        and _is_fixed(keys)
        and _is_fixed(values)
    ):
        return _shipped_layout(model, str(keys), str(values))
    return kv_layout.build(language_model(model), quantizer_spec(keys, bits), quantizer_spec(values, bits))


def _is_fixed(quantizer: Quantizer) -> bool:
    """True for a name that no file can change."""
    from dse.quantizers import layered

    return isinstance(quantizer, str) and not quantizer.strip().lower().startswith(layered.PREFIX)


@lru_cache(maxsize=256)
def _shipped_layout(model: str, keys: str, values: str) -> KvPlan:
    """A layout of names that always mean the same."""
    from dse.model import kv_layout

    return kv_layout.build(language_model(model), quantizer_spec(keys), quantizer_spec(values))


def several(values: Any) -> list[Any]:
    """Several values as a list; one as a list of it."""
    is_one = isinstance(values, str | Path) or not hasattr(values, "__iter__") or hasattr(type(values), "model_fields")
    return [values] if is_one else list(values)


@operation()
class AssumesLike(Operation):
    """Options for reading a config.json of an unknown model_type."""

    assume_like: str = option(
        "",
        "Read a config.json of an unknown model_type as one of this type, such as llama.",
        metavar="TYPE",
        in_python=False,
        shows_default=False,
        group=DESIGN,
    )

    def context(self) -> AbstractContextManager[Any]:
        """Read configs of unknown types as asked while the operation runs."""
        if not self.assume_like:
            return nullcontext()
        from dse.specs.huggingface import config

        return config.assumed_like(self.assume_like)


def counted(device: Device) -> tuple[int, str] | None:
    """The number of devices and the name of a shipped one, where a name says both and is no device's or file's own."""
    from dse.specs import catalog, device_names

    name = device.partition(":")[0] if isinstance(device, str) else ""
    found = device_names.counted(name)
    if not isinstance(device, str) or not found:
        return None
    if device_names.meant(device, catalog.device_aliases()) or Path(device).exists():
        return None
    return found[0], found[1] + device[len(name) :]


def _on_devices(op: OnDevice, count: int) -> Workload:
    """The workload of an operation on so many devices. Raises InputError where it says another number."""
    field = work_field(type(op))
    assert field is not None  # whoever is of a device has a workload
    work: Workload = getattr(op, field.name)
    if work.tp == 1 and count % work.pp == 0:
        return replace(work, tp=count // work.pp)
    if work.n_devices == count:
        return work
    raise InputError(
        f"device = {show(op.device)}: says {count} devices, --tp {work.tp} and --pp {work.pp} say {work.n_devices}: "
        "leave the number out, or both"
    )


@operation()
class OnDevice(AssumesLike):
    """A device and a language model."""

    device: Device = device_option()
    model: Model = model_option()

    def __post_init__(self) -> None:
        """Split a name that says how many devices, 8xh100, into the device and the workload's tp. Raises InputError."""
        super().__post_init__()
        if isinstance(self.device, str) and (found := counted(self.device)):
            count, name = found
            object.__setattr__(self, "workload", _on_devices(self, count))
            object.__setattr__(self, "device", name)

    def hardware(self) -> HardwareSpec:
        """The device. Raises InputError and SpecError."""
        return hardware(self.device)

    def language_model(self) -> ModelSpec:
        """The model. Raises InputError and SpecError."""
        return language_model(self.model)


@operation()
class Quantized(Operation):
    """The quantizers of keys and values."""

    quantizer: Quantizer = quantizer_option()
    key_quantizer: Quantizer | None = option(
        None, "Quantizer of the keys, if different.", also=("--cache-type-k", "-ctk"), metavar="Q", group=DESIGN
    )
    value_quantizer: Quantizer | None = option(
        None, "Quantizer of the values, if different.", also=("--cache-type-v", "-ctv"), metavar="Q", group=DESIGN
    )

    def sides(self) -> tuple[Quantizer, Quantizer]:
        """The quantizers of keys and of values."""
        keys, values = self.key_quantizer, self.value_quantizer
        return (self.quantizer if keys is None else keys), (self.quantizer if values is None else values)


@operation()
class Sourced(Operation):
    """Where bits and errors come from."""

    bits: str = option(
        "closed",
        "Nominal outlier and sink counts, or those that the measured data had.",
        metavar="closed|measured",
        group=DESIGN,
    )
    measurements: str | None = option(
        None,
        "measurement.json of `dse measure` or `dse quantize`; default: of the sample of SmolLM2-135M that ships.",
        metavar="FILE",
        group=DESIGN,
    )

    def source(self) -> Bits | None:
        """Bits and errors as asked, None where they are the shipped ones. Raises InputError."""
        from dse.specs.measurements import bits_from

        return None if (self.bits, self.measurements) == ("closed", None) else bits_from(self.bits, self.measurements)

    def design_of(self, device: Device, model: Model, keys: Quantizer, values: Quantizer | None = None) -> Candidate:
        """A device with a model laid out under its quantizers. Raises InputError and SpecError."""
        from dse.questions.common import Candidate

        spec = hardware(device)
        return Candidate(spec, layout(model, keys, keys if values is None else values, self.source()))


@operation()
class WithWorkload(Operation):
    """The requests, and how the server is run."""

    workload: Workload = work()


@operation()
class OnDesign(OnDevice, Quantized, WithWorkload, Sourced):
    """One design: a device, a model, its quantizers and a workload."""

    def plan(self) -> KvPlan:
        """The model laid out under its quantizers. Raises InputError and SpecError."""
        return layout(self.model, *self.sides(), self.source())

    def design(self) -> Candidate:
        """The device with that layout. Raises InputError and SpecError."""
        return self.design_of(self.device, self.model, *self.sides())


@operation()
class WithLimits(Operation):
    """The longest times that a user accepts."""

    max_tpot: str | None = option(
        None, "Most time per token of a user.", also=("--tpot",), metavar="'50 ms'", unit="s", is_said=True
    )
    max_ttft: str | None = option(
        None, "Most time to the first token.", also=("--ttft",), metavar="'2 s'", unit="s", is_said=True
    )

    def limits_s(self, output_tokens: int) -> dict[str, float]:
        """The limits that are given, in seconds, as `tpot_s` and `ttft_s`; an answer of one token has no time between
        tokens, and no limit on it. Raises InputError.
        """
        from dse.specs.quantity import named_quantity

        options = {"tpot_s": ("max-tpot", self.max_tpot), "ttft_s": ("max-ttft", self.max_ttft)}
        limits = {key: named_quantity(name, text, "s", 1e-6, 1e5).si for key, (name, text) in options.items() if text}
        return {key: limit_s for key, limit_s in limits.items() if key != "tpot_s" or output_tokens > 1}

    def say_left_out(self, output_tokens: int, console: Console) -> None:
        """Say of an answer which limit it leaves out."""
        if output_tokens == 1 and self.max_tpot:
            console.say(f"max-tpot = {show(self.max_tpot)}: an answer of one token has no TPOT: left out")


@operation()
class Printed(Operation):
    """A result that can be printed as JSON."""

    as_json: bool = json_option()


@operation()
class WithFigure(Printed):
    """An answer that can be drawn."""

    out: str | None = option(
        None, "Write figure and table into this directory.", metavar="DIR", in_python=False, group=OUTPUT
    )

    def beside(self, outcome: Any, console: Console) -> dict[str, bytes]:
        """Files beside the figure, by name."""
        return {}

    def written(self, outcome: Any, console: Console) -> list[str]:
        """Write the figure and its table where a directory is given."""
        if self.out is None:
            return []
        from dse.figures.export import question

        more = self.beside(outcome, console)
        line = f"figure: {question.write(self.out, outcome, console.command, more)}"
        if self.as_json:
            console.say(line)
        return [] if self.as_json else [line]


@operation()
class WithAgents(Operation):
    """Agents in a closed loop."""

    sessions: int | None = option(None, "Agents at a time.", WHOLE, metavar="N", low=1, high=100_000, is_said=True)
    turns: int = option(20, "Turns of a session, which a new one follows.", WHOLE, metavar="N", low=1, high=10_000)
    growth: int = option(
        1200,
        "Tokens that a turn adds to the context, its answer included.",
        TOKENS,
        metavar="1.2k",
        low=2,
        high=MAX_INPUT_TOKENS,
    )
    think: str = option("8 s", "Time between an answer and the next turn, mean.", metavar="'8 s'", unit="s")
    shared: int = option(
        0,
        "Tokens that all sessions begin with: system prompt and tools.",
        TOKENS,
        metavar="6k",
        low=0,
        high=MAX_INPUT_TOKENS,
    )
    #: what says more of the sessions
    of_sessions: ClassVar[tuple[str, ...]] = ("turns", "growth", "think", "shared")

    def agents(self, output_tokens: int) -> Agents:
        """The agents. Raises InputError."""
        from dse.serving.agents import Agents
        from dse.specs.quantity import named_quantity

        return Agents(
            sessions=self.sessions or 1,
            turns=self.turns,
            growth_tokens=self.growth,
            think_s=named_quantity("think", self.think, "s", 0, 1e6).si,
            shared_tokens=self.shared,
            output_tokens=output_tokens,
        )


@operation()
class WithHost(Operation):
    """Host memory for blocks of prompts that the device gives up."""

    host_cache: int | None = option(
        None, "Host memory for blocks that the device gives up, for each device; default: none.", BYTES, metavar="256GB"
    )
    host_link: str | None = option(
        None,
        "Bandwidth from host memory to a device, one direction; with --host-cache.",
        metavar="'64 GB/s'",
        unit="B/s",
    )
    host_start: str | None = option(
        None, "Time before a load from host memory begins; default: none.", metavar="'20 us'", unit="s"
    )
    host_overlap: Literal["layers", "none"] = option(
        "layers", "Load beside the step that computes the rest, layer by layer, or before it.", metavar="layers|none"
    )
    host_format: Quantizer | None = option(
        None, "Format of blocks in host memory, where it is another than the device's.", metavar="Q"
    )

    def unused_of_host(self) -> dict[str, str]:
        """Options of host memory without any."""
        names = ("host_link", "host_start", "host_overlap", "host_format")
        return {} if self.host_cache is not None else dict.fromkeys(names, "without --host-cache")

    def host(self, design: Candidate, workload: Workload) -> HostMemory | None:
        """Host memory behind the device of a design, where it is asked for, in bytes of the device's format.

        Raises InputError.
        """
        from dse.serving.steady_state import HostMemory
        from dse.specs.quantity import named_quantity

        if self.host_cache is None:
            return None
        if not 1 <= self.host_cache <= 2**50:
            raise InputError(
                f"host-cache = {BYTES.write(self.host_cache)}: must be from 1 byte to 1 PiB, such as 256GB"
            )
        if self.host_overlap not in ("layers", "none"):
            raise InputError(f"host-overlap = {show(self.host_overlap)}: must be one of layers, none")
        if self.host_link is None:
            raise InputError(
                "host-link is missing: the bandwidth from host memory to a device, in one direction, such as '64 GB/s' "
                "(what PCIe 5.0 x16 has at most; 4.0: 32 GB/s)"
            )
        start_s = named_quantity("host-start", self.host_start, "s", 0, 10).si if self.host_start else 0.0
        link = named_quantity("host-link", self.host_link, "B/s", 1e6, 1e13).si
        host = HostMemory(self.host_cache, link, start_s, self.host_overlap == "layers")
        if self.host_format is None:
            return host
        kept = replace(design, plan=layout(design.plan.model, self.host_format, self.host_format))
        n_bytes = [float(side.evaluate(workload)["kv_bytes_per_token"]) for side in (kept, design)]
        return host.in_format(n_bytes[0] / n_bytes[1])


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """The value, where it is allowed. Raises InputError naming the option."""
    if value not in allowed:
        raise InputError(f"{name} = {show(value)}: must be {' or '.join(allowed)}")
    return value
