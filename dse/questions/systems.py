"""The systems that the report compares: a device, the KV quantizer it is evaluated with, and how it admits requests."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dse import quantizers
from dse.core.units import FP16_BITS
from dse.model.formulas import weights
from dse.model.lower import with_admission
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.measurements import CLOSED, Bits
from dse.specs.workload import ASKED, Workload

Admission = Literal["reserve", "paged"]
#: models whose FP16 weights take more than this share of the device run on `large_device`; Oaken 6.1 puts OPT-30B,
#: Mixtral-8x7B and Llama2-70B on two A100 and Llama2-7B, 13B and Mistral-7B on one, which is this rule
LARGE_SHARE = 0.5


@dataclass(frozen=True)
class System:
    """A device with a quantizer. GPUs page their memory (vLLM); accelerators reserve the final length.

    `large_device` takes over for models that fill more than half of `device` (Oaken 6.1).
    """

    label: str
    device: str
    quantizer: str
    admission: Admission
    large_device: str | None = None

    def device_for(self, model: ModelSpec) -> HardwareSpec:
        """The device that runs `model`."""
        spec = catalog.device(self.device)
        weight_bytes = weights.weight_bytes(model.parameters, FP16_BITS)
        if self.large_device and weight_bytes > LARGE_SHARE * spec.capacity_bytes:
            return catalog.device(self.large_device)
        return spec


def _a100(name: str, quantizer: str) -> System:
    return System(f"A100 {name}", "a100-80gb", quantizer, "paged", "2xa100-80gb")


#: Oaken 6.1 and Figure 11; NQKV and SinkQ as evaluated on GPUs by their own papers
DEFAULT: tuple[System, ...] = (
    _a100("FP16 (vLLM)", "fp16"),
    _a100("KVQuant", "kvquant"),
    _a100("KIVI 4-bit", "kivi:bits=4"),
    _a100("QServe", "qserve"),
    _a100("NQKV", "nqkv"),
    _a100("SinkQ", "sinkq"),
    System("Tender", "tender-a100", "tender", "reserve"),
    System("LPU-HBM FP16", "lpu-hbm", "fp16", "reserve"),
    System("LPU-LPDDR FP16", "lpu-lpddr", "fp16", "reserve"),
    System("Oaken-HBM", "oaken-hbm", "oaken", "reserve"),
    System("Oaken-LPDDR", "oaken-lpddr", "oaken", "reserve"),
)
#: devices and quantizers of "throughput against effective capacity": a GPU and Oaken's two memories, FP16 and a format
#: of each of three papers
CAPACITY_DEVICES, CAPACITY_QUANTIZERS = ("a100-80gb", "oaken-hbm", "oaken-lpddr"), ("fp16", "oaken", "nqkv", "sinkq")
#: Oaken 6.1 and Figure 11
MODELS = ("llama2-7b", "llama2-13b", "llama2-70b", "opt-30b", "mistral-7b", "mixtral-8x7b-oaken")
BATCHES = (16, 32, 64, 128, 256)
#: what `dse report` is about by default: devices with measured servers, and formats that these servers ship
TODAY_DEVICES = ("h100", "h200", "b200")
TODAY_QUANTIZERS = ("fp16", "fp8", "int4_per_token_head", "turboquant_4bit_nc")
TODAY_MODELS = ("llama3.1-8b", "qwen3-32b", "gpt-oss-20b")
#: quantizers of a device that no paper of ours evaluates
GPU_QUANTIZERS = ("fp16", "kvquant", "kivi:bits=4", "qserve")


def admission_of(device: HardwareSpec) -> Admission:
    """The default KV allocation of a device: paged for GPUs (devices that count cores), reserve for the rest."""
    admission = with_admission(device, Workload()).admission
    assert admission is not None
    return admission


def _system(device: str, quantizer: str) -> System:
    spec = catalog.device(device)
    return System(f"{spec.name} {quantizers.parse(quantizer).name}", device, quantizer, admission_of(spec))


def _own(device: str) -> tuple[System, ...]:
    """The systems of one device with the quantizers it is evaluated with."""
    spec = catalog.device(device)
    known = tuple(s for s in DEFAULT if s.device == device.strip().lower())
    if known:
        return known
    if spec.n_cores:
        return tuple(_system(device, name) for name in GPU_QUANTIZERS)
    return tuple(_system(device, name) for name in (("fp16", "oaken") if spec.engine_rate else ("fp16",)))


def chosen(devices: Sequence[str] | None = None, names: Sequence[str] | None = None) -> tuple[System, ...]:
    """The default systems, or every given device with every given quantizer, each pair once.

    Raises InputError or SpecError for what is not known. Without quantizers a device gets those it is evaluated
    with; without devices the quantizers run on each default device.
    """
    if devices is None and names is None:
        return DEFAULT
    systems: list[System] = []
    if names is None:
        systems = [system for device in devices or () for system in _own(device)]
    elif devices is None:
        systems = _on_default({system.device for system in DEFAULT}, names)
    else:
        systems = [_system(device, name) for device in devices for name in names]
    return tuple(dict.fromkeys(systems))


def _on_default(devices: Collection[str], names: Sequence[str]) -> list[System]:
    """Each default device of `devices` with each quantizer."""
    systems = []
    for first in {system.device: system for system in DEFAULT if system.device in devices}.values():
        for name in names:
            named = _system(first.device, name)
            systems.append(System(named.label, named.device, name, first.admission, first.large_device))
    return systems


def systems_of_capacity() -> list[System]:
    """The systems of "throughput against effective capacity" where none are named."""
    return _on_default(CAPACITY_DEVICES, CAPACITY_QUANTIZERS)


@dataclass(frozen=True)
class ReportRequest:
    """Subject of the report, all names resolved."""

    systems: tuple[System, ...] = DEFAULT
    models: tuple[ModelSpec, ...] = ()
    batches: tuple[int, ...] = BATCHES
    input_tokens: int = ASKED["input_tokens"].default
    output_tokens: int = ASKED["output_tokens"].default
    #: True when the user left devices and quantizers to the tool
    is_default: bool = field(default=True)
    bits: Bits = CLOSED
    #: auto: calibrated where a device has parameters, of `stack` if given
    model_kind: Literal["auto", "ideal"] = "auto"
    stack: str | None = None
    #: how the model lies on several devices: fields of a workload (`dse.specs.workload.DEPLOYMENT`)
    deployment: Mapping[str, Any] = field(default_factory=dict)
    #: token policies of "fewer tokens against fewer bits", each with FP16 and a quantizer; None: the default ones
    tokens: tuple[str, ...] | None = None
    #: how memory is counted (`Workload.memory`); None: as the device's server does
    memory: Literal["paper"] | None = "paper"
    #: the first that were named, if any
    first_device: str | None = None
    first_model: str | None = None

    def pick(self, name: str) -> ModelSpec:
        """The model of that name, else the first one."""
        return next((model for model in self.models if model.name == name), self.models[0])
