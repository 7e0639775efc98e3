"""Memory of a server as its start-up log had it: the file that `dse check-log --out` writes and --calibrated takes.

It holds for one model, in one format of weights, on one device and split: another is refused.
"""

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from dse.core import specfile
from dse.core.errors import InputError, show
from dse.specs import device_and_model, servers
from dse.specs.weights import WIDE, WIDE_BITS
from dse.specs.workload import LEAST_SHARE

if TYPE_CHECKING:
    from dse.specs.device_and_model import HardwareSpec, ModelSpec
    from dse.specs.workload import Workload

#: what a file says it is, and the version of its fields
KIND: Literal["memory of a server"] = "memory of a server"
VERSION: Literal[1] = 1
#: engines whose logs are read
Engine = Literal["vllm", "sglang", "trtllm", "llama.cpp"]
_IF_EMPTY = "`dse check-log LOG --out FILE` writes one"
_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Bytes = Annotated[int, Field(ge=0, le=2**50)]
_Devices = Annotated[int, Field(ge=1, le=1024)]


class MeasuredMemory(BaseModel):
    """Bytes of a device of a running server, in place of those that are computed."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    kind: Literal["memory of a server"] = KIND
    version: Literal[1] = VERSION
    #: the log, with engine and release
    source: Annotated[str, Field(min_length=1, max_length=500)]
    engine: Engine
    #: "" where the log does not say it
    release: Annotated[str, Field(max_length=40)]
    device: _Name
    model: _Name
    #: format of the weights
    weights: _Name
    tp: _Devices
    pp: _Devices
    ep: _Devices
    #: share of the memory that the server was given; None where a pool was given in its place
    gpu_memory_utilization: Annotated[float, Field(ge=LEAST_SHARE, le=1)] | None
    weight_bytes: _Bytes
    activation_bytes: _Bytes
    graph_bytes: _Bytes
    #: all else beside keys and values; below 0 where the other terms are more than the log leaves room for
    buffer_bytes: Annotated[int, Field(ge=-(2**50), le=2**50)]
    #: memory for keys and values where it was given in place of a share
    given_bytes: _Bytes | None

    @property
    def stack(self) -> str:
        """The engine with its release, as --stack takes it."""
        return f"{self.engine}@{self.release}" if self.release else self.engine


def of(path: str | None) -> MeasuredMemory | None:
    """The memory in a file, read again where it has changed; None without a path. Raises InputError, SpecError."""
    if path is None:
        return None
    try:
        status = os.stat(path)
        stamp = status.st_mtime_ns, status.st_size
    except (OSError, ValueError):  # reading says what is wrong
        stamp = 0, 0
    return _read(path, stamp)


@lru_cache(maxsize=64)
def _read(path: str, stamp: tuple[int, int]) -> MeasuredMemory:
    document = specfile.read(path, _IF_EMPTY)
    if document.data.get("kind") != KIND:
        raise InputError(f"calibrated = {show(path)}: is not memory of a server: {_IF_EMPTY}")
    memory: MeasuredMemory = device_and_model.load(document, MeasuredMemory)
    return memory


def fitting(
    work: "Workload", device: "HardwareSpec", model: "ModelSpec", stack_name: str | None
) -> MeasuredMemory | None:
    """The memory that a workload takes from a log; None where it takes none.

    Raises InputError for a file that was measured with another model, format of weights, device, split or engine.
    """
    memory = of(work.calibrated)
    if memory is None:
        return None
    is_asked = {
        "model": (memory.model, model.name, "--model"),
        "device": (memory.device, device.name.partition("+")[0], "--device"),
        "weights": (memory.weights, weights_name(work), "--weights"),
        "tp": (memory.tp, work.tp, "--tp"),
        "pp": (memory.pp, work.pp, "--pp"),
        "ep": (memory.ep, work.ep, "--ep"),
    }
    if stack_name is not None and memory.engine != "llama.cpp":
        is_asked["stack"] = (memory.engine, stack_name, "--stack")
    for name, (measured, value, option) in is_asked.items():
        if measured != value:
            raise InputError(
                f"calibrated = {show(work.calibrated)}: was measured with {name} {measured}, not {value}: add {option} "
                f"{measured}, or leave --calibrated out"
            )
    return memory


def weights_name(work: "Workload") -> str:
    """The format of the weights of a workload, by its name."""
    return work.weights or (WIDE if work.weights_bits == WIDE_BITS else f"{work.weights_bits} bits")


def server_of(
    found: MeasuredMemory | None, device: "HardwareSpec", work: "Workload", stack_name: str | None
) -> servers.Server:
    """The server whose rules a pool follows: that of the log, in its release where none is asked for."""
    engine, name = work.stack, stack_name
    if found:
        name, engine = found.engine, engine if "@" in (engine or "") else found.stack
    return servers.of(name, device, engine)
