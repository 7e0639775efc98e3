"""Files that --calibrated takes: a server's memory as its start-up log had it, or its times as benchmarks had them.

`dse check-log --out` writes the first, which holds for one model, format of weights, device and split: another is
refused. `dse calibrate server` writes the second (dse/model/own_server.py), which may hold the first too.
"""

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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
TIMES: Literal["times of a server"] = "times of a server"
VERSION: Literal[1] = 1
#: most that a measured time per token may be over what is predicted, or under it: of 1,639 measured servers
#: (whole_steps.csv, whole_steps_2.csv) the farthest is off by 3.6
MOST_OFF = 4.0
#: points of a file, at most
MAX_POINTS = 200
#: engines whose logs are read
Engine = Literal["vllm", "sglang", "trtllm", "llama.cpp"]
_IF_EMPTY = "`dse check-log LOG --out FILE` writes one, or `dse calibrate server ROWS --out FILE.toml`"
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
    gpu_memory_utilization: Annotated[float, Field(ge=LEAST_SHARE, le=1)] | None = None
    weight_bytes: _Bytes
    activation_bytes: _Bytes
    graph_bytes: _Bytes
    #: all else beside keys and values; below 0 where the other terms are more than the log leaves room for
    buffer_bytes: Annotated[int, Field(ge=-(2**50), le=2**50)]
    #: memory for keys and values where it was given in place of a share
    given_bytes: _Bytes | None = None

    @property
    def stack(self) -> str:
        """The engine with its release, as --stack takes it."""
        return f"{self.engine}@{self.release}" if self.release else self.engine


class MeasuredPoint(BaseModel):
    """One run of a benchmark: what was sent to which layout of a server, and its time per token beside ours."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    id: Annotated[str, Field(min_length=1, max_length=200)]
    #: the engine with its release, as results have it
    stack: _Name
    #: format of the weights
    weights: _Name
    #: format of keys and values; "" in files that do not say it
    quantizer: Annotated[str, Field(max_length=200)] = ""
    tp: _Devices
    pp: _Devices
    ep: _Devices
    dp_attention: bool
    dcp: _Devices
    batch: Annotated[int, Field(ge=1, le=2**24)]
    input_tokens: Annotated[int, Field(ge=1, le=2**30)]
    output_tokens: Annotated[int, Field(ge=1, le=2**24)]
    #: time per token
    measured_over_predicted: Annotated[float, Field(ge=1 / MOST_OFF, le=MOST_OFF)]


class MeasuredTimes(BaseModel):
    """Times per token of one model on one engine and device, which predictions of such servers are corrected by."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    kind: Literal["times of a server"] = TIMES
    version: Literal[1] = VERSION
    #: the table or result of a benchmark
    source: Annotated[str, Field(min_length=1, max_length=500)]
    #: of this tool, which predicted the times that these were divided by
    predicted_by: Annotated[str, Field(min_length=1, max_length=40)]
    engine: _Name
    device: _Name
    model: _Name
    points: Annotated[tuple[MeasuredPoint, ...], BeforeValidator(tuple), Field(min_length=1, max_length=MAX_POINTS)]
    #: by a start-up log of the same server
    memory: MeasuredMemory | None = None


def of(path: str | None) -> MeasuredMemory | None:
    """The memory in a file; None without a path, or in one that holds times alone. Raises InputError, SpecError."""
    found = contents(path)
    return found.memory if isinstance(found, MeasuredTimes) else found


def times_of(path: str | None) -> MeasuredTimes | None:
    """The times in a file; None without a path, or in one that holds memory alone. Raises InputError, SpecError."""
    found = contents(path)
    return found if isinstance(found, MeasuredTimes) else None


def contents(path: str | None) -> MeasuredMemory | MeasuredTimes | None:
    """All that a file holds, read again where it has changed; None without a path. Raises InputError, SpecError."""
    if path is None:
        return None
    try:
        status = os.stat(path)
        stamp = status.st_mtime_ns, status.st_size
    except (OSError, ValueError):  # reading says what is wrong
        stamp = 0, 0
    return _read(path, stamp)


@lru_cache(maxsize=64)
def _read(path: str, stamp: tuple[int, int]) -> MeasuredMemory | MeasuredTimes:
    document = specfile.read(path, _IF_EMPTY)
    kinds: dict[object, type[MeasuredMemory | MeasuredTimes]] = {KIND: MeasuredMemory, TIMES: MeasuredTimes}
    kind = document.data.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"calibrated = {show(path)}: is neither memory nor times of a server: {_IF_EMPTY}")
    found: MeasuredMemory | MeasuredTimes = device_and_model.load(document, kinds[kind])
    return found


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
