"""A server's start-up log beside our numbers: the command `dse check-log`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.core.errors import InputError, show
from dse.operations.declare import SILENT, Console, argument, operation, option, work
from dse.operations.shared import (
    AssumesLike,
    Device,
    Model,
    Printed,
    Quantizer,
    device_option,
    hardware,
    json_option,
    language_model,
    quantizer_spec,
)
from dse.specs.workload import ASKED, Workload

if TYPE_CHECKING:
    from dse.validate.bench_check import BenchCheck
    from dse.validate.check_log import LogCheck

#: fields of a workload that a log says, and that options say in its place
_SAID = (
    "weights",
    "weights_size_bytes",
    "stack",
    "page_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "free_memory_bytes",
    "max_model_len",
    "prompt_budget_tokens",
    "max_num_seqs",
    "tower",
    "max_total_tokens",
    "swa_full_tokens_ratio",
    "cuda_graph_max_bs",
    "dp_attention",
    "cuda_graphs",
    "speculative_config",
    "cpu_offload_gib",
    "gpu_layers",
    "cpu_moe_layers",
    "tp",
    "pp",
    "ep",
    "dcp",
)
#: what a file of memory is read by
_GIVE = "the output of a server, from its start on"


@operation(
    "check-log",
    "A server's log or benchmark beside ours: memory, why it does not start, times.",
    function="check_log",
    positional=("log",),
)
class CheckLog(AssumesLike, Printed):
    """Read the start-up log of a server, make the design that it describes, and print each term of memory beside ours.

    LOG is what vLLM, SGLang, TensorRT-LLM or llama.cpp print as they start and run, from a file or from standard
    input: model, options, memory of weights, activations and keys and values, tokens, concurrency. Options given here
    stand for what it says; logs of vLLM, SGLang and TensorRT-LLM rarely say the device. `--out FILE` keeps the memory
    of the log: with `--calibrated FILE` every command answers for this server.

    A log that fails to start is answered with why, and with the engine's options that start; lines of a running server
    with what binds it and what to try. The JSON of `vllm bench serve` or SGLang's `bench_serving` is compared with our
    times (`--device 8xh200`).

    >>> found = dse.check_log('''Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-14B', dtype=bf16
    ... Model loading took 27.52 GiB memory and 9.1 seconds
    ... Available KV cache memory: 45.23 GiB''', device="h100", gpu_memory_utilization=0.95)
    >>> found.says
    'Log and design agree; largest difference: keys and values, +0.03 GiB in the log.'
    """

    log: str | Path | None = argument(
        None, "The text of a log (of several lines), or its file; default: standard input.", metavar="[LOG]"
    )
    device: Device | None = device_option(None, "Device name or .toml file; default: as the log says.")
    model: Model | None = option(
        None, "Model name, .toml file or config.json; default: as the log says.", metavar="NAME|FILE"
    )
    quantizer: Quantizer | None = option(
        None, "KV quantizer; default: as the log says.", also=("--kv-cache-dtype",), metavar="Q"
    )
    workload: Workload = work(only=_SAID, takes_all=False)
    out: str | None = option(
        None, "Write the log's memory into this file, which --calibrated of other commands takes.", metavar="FILE"
    )
    as_json: bool = json_option("Print the log, the design and the terms as JSON, in SI base units.")

    def run(self, console: Console = SILENT) -> LogCheck | BenchCheck:
        """The log beside the design: its terms, their table, and a sentence about the largest difference."""
        from dse.validate import bench_result, check_log, startup_log

        content, source = content_of(self.log)
        text = startup_log.text_of(content, source)
        if bench_result.is_result(plain := text.encode()):
            return self._of_bench(plain, source)
        log = startup_log.read(text)
        kind = None if self.quantizer is None else quantizer_spec(self.quantizer)
        check = check_log.check(
            log,
            None if self.device is None else hardware(self.device),
            None if self.model is None else language_model(self.model),
            None if kind is None else (kind, kind),
            self._given(),
            source,
            (_name(self.device), _name(self.model) or log.model),
        )
        if self.out is not None:
            self._keep(check)
        return check

    def _given(self) -> dict[str, Any]:
        """Fields of a workload that stand for what the log says."""
        return {name: value for name in _SAID if (value := getattr(self.workload, name)) != ASKED[name].default}

    def _of_bench(self, content: bytes, source: str) -> BenchCheck:
        """The result of a benchmark beside ours. Raises InputError."""
        from dse.validate import bench_check

        if self.out is not None:
            raise InputError(f"out = {show(self.out)}: a benchmark does not say memory: leave --out out")
        fields = self._given()
        names = {"device": _name(self.device), "model": _name(self.model), "weights": fields.pop("weights", None)}
        names["kv_dtype"] = None if self.quantizer is None else str(self.quantizer)
        names["engine"], _, names["version"] = fields.pop("stack", "").partition("@")
        names |= {name: fields.pop(name, None) for name in ("tp", "pp", "ep")}
        given = {name: str(value) for name, value in names.items() if value}
        return bench_check.check(source, content, given, fields)

    def _keep(self, check: LogCheck) -> None:
        """Write the memory of the log. Raises InputError where it holds none, OutputError."""
        from dse.core import files

        if check.memory is None:
            raise InputError(
                f"out = {show(self.out)}: the log does not say the memory of keys and values of a server on "
                f"{check.device}: leave --out out"
            )
        files.write(Path(self.out or ""), (json.dumps(check.memory.model_dump(), indent=2) + "\n").encode())

    def written(self, outcome: LogCheck | BenchCheck, console: Console) -> list[str]:
        """Say which file was written."""
        if self.out is None:
            return []
        line = f"memory: {self.out} (--calibrated {self.out})"
        if self.as_json:
            console.say(line)
        return [] if self.as_json else [line]


def content_of(log: str | Path | None) -> tuple[bytes, str]:
    """A log, given by its text or its file, of standard input without either, and what it is called.

    Raises InputError.
    """
    from dse.core import files
    from dse.validate.startup_log import MAX_BYTES, refuse_larger

    if isinstance(log, str) and "\n" in log:
        return log.encode(), "a text"
    if log is None or log == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError("LOG is missing: give a file, or the log on standard input")
        content = sys.stdin.buffer.read(MAX_BYTES + 1)
        refuse_larger(len(content), "standard input")
        return content, "standard input"
    return files.read_bytes(str(log), MAX_BYTES, "log", "a file", f"give {_GIVE}"), Path(log).name


def _name(spec: Any) -> str:
    """A device or a model as a command takes it; "" where it is not given."""
    return "" if spec is None else str(spec) if isinstance(spec, str | Path) else str(spec.name)
