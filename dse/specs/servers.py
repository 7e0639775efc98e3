"""Memory that a server keeps beside weights and the KV cache, by engine, release and device, each number with its
source.

`dse point ... --explain free_bytes` shows them in use; docs/explanation/model.md, Memory of a server, has the rules.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from dse.specs.device_and_model import HardwareSpec
from dse.specs.quantity import Quantity
from dse.specs.releases import release_of

#: how a server takes the share that it may use: of what the driver reports, for all that it keeps; of the same, for
#: weights and keys and values alone; of what is left beside all else, for keys and values
WHOLE, STATIC, LEFT = "whole", "static", "left"
#: what a server prints as the tokens of its pool where layers differ: blocks over groups of layers, requests of the
#: longest context times its length, or tokens of the layers without a window
BLOCKS, REQUESTS, TOKENS = "blocks", "requests", "tokens"
#: devices by their memory, as servers choose their defaults
SMALL, LARGE, LARGEST = "small", "large", "largest"
GIB = 2**30
#: the server where no stack, or one without numbers of its own, is named
DEFAULT = "vllm"


@dataclass(frozen=True)
class Server:
    """The memory of a server of one device, and what communication of several adds."""

    rule: str
    printing: str
    #: share of the memory where none is given
    utilization: Quantity
    #: tokens of the largest batch of prompt tokens; None: the longest context, which is computed whole
    prompt_budget: Quantity | None
    #: rows of logits in the largest step, and bytes of a logit with its copies
    sequences: Quantity
    #: requests that run at once, where these are not as many
    running: Quantity | None
    logit: Quantity
    #: copies of the hidden states of the tokens of a batch
    hidden_copies: Quantity
    #: CUDA graphs, and what each layer adds to them
    graphs: Quantity
    layer_graphs: Quantity
    #: context of the device, workspaces of libraries
    buffers: Quantity
    #: buffers of communication, where several devices share the layers
    communication: Quantity
    #: blocks that the constant states of a request take in each group of layers
    state_blocks: Quantity
    #: tokens kept of layers with a window, of those without; states, of the memory of keys and values
    window_share: Quantity
    state_share: Quantity

    def buffer_bytes(self, tp: int) -> int:
        """Bytes of context, workspaces and buffers on each of `tp` devices that share the layers."""
        return self.buffers.count + (self.communication.count if tp > 1 else 0)

    def graph_bytes(self, n_layers: int) -> int:
        """Bytes of graphs of a model, or stage, of `n_layers`."""
        return self.graphs.count + n_layers * self.layer_graphs.count

    def quantities(self) -> dict[str, Quantity]:
        """Every number by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Quantity)}


class ServerSetting(NamedTuple):
    """A number of a server from a release on, on devices of a class or on all; later ones of a table take its place."""

    name: str
    number: Quantity | None
    since: tuple[int, ...] = ()
    on: str = ""


def _published(value: float, unit: str, source: str) -> Quantity:
    return Quantity(value=value, unit=unit, kind="published", source=source)


def _derived(value: float, unit: str, source: str) -> Quantity:
    return Quantity(value=value, unit=unit, kind="derived", source=source)


def _assumed(value: float, unit: str, source: str) -> Quantity:
    return Quantity(value=value, unit=unit, kind="assumed", source=f"assumed: {source}")


_LOGS_H100 = "19 start-up logs of vLLM 0.19.0 on H100 (llm-d-planner, accuracy/results/v0.19.0, Apache-2.0)"
_LOGS_A100 = "start-up logs of vLLM 0.26 and 0.31 on an A100 80 GB"
_ARGUMENTS = "vLLM 0.33.0, vllm/engine/arg_utils.py:2973-3006"
_NONE = _published(0, "GiB", "logs before 0.21: the pool is laid out before graphs are recorded")
_SGLANG = "SGLang 0.5.23, sglang/srt/arg_groups/memory_hook.py:84-165"

_SEQUENCES = _published(1024, "1", f"max_num_seqs of 70 GiB or more, neither A100 nor GB10: {_ARGUMENTS}")
_FEW_SEQUENCES = _published(256, "1", f"max_num_seqs below 70 GiB, A100, GB10: {_ARGUMENTS}")
_LOGIT = _derived(14, "B", f"{_LOGS_H100}: 1.9 GiB of activations for a vocabulary of 128,256, 2.2 for 151,936")
_SMALL_LOGIT = _derived(46, "B", f"{_LOGS_A100}: 1.44 GiB of activations for a vocabulary of 128,256, with 256 rows")
_GRAPHS = _derived(0.4, "GiB", f"{_LOGS_H100}: 0.5 to 1.6 GiB; with 0.015 GiB a layer within a third")
_LAYER_GRAPHS = _derived(0.015, "GiB", f"{_LOGS_H100}: 8 to 80 layers")
_SMALL_GRAPHS = _derived(
    0.25, "GiB", "start-up log of vLLM 0.26, Qwen3-8B on an A100: 0.55 GiB, less than half an H100's"
)
_SMALL_LAYER_GRAPHS = _derived(0.0083, "GiB", "the same log, 36 layers")

#: what all servers have that say nothing else
_COMMON = (
    ServerSetting("sequences", _SEQUENCES),
    ServerSetting("sequences", _FEW_SEQUENCES, on=SMALL),
    ServerSetting("running", None),
    ServerSetting("logit", _LOGIT),
    ServerSetting("logit", _SMALL_LOGIT, on=SMALL),
    ServerSetting(
        "hidden_copies",
        _derived(3, "1", f"{_LOGS_H100}: what activations take beside logits, within 8 % with fused experts' buffers"),
    ),
    ServerSetting("graphs", _GRAPHS),
    ServerSetting("layer_graphs", _LAYER_GRAPHS),
    ServerSetting(
        "communication",
        _assumed(
            0.75,
            "GiB",
            "0.34 to 0.38 for NCCL (aiconfigurator-core 0.12.0, system files); logs of vLLM under tp say 0.1 to 1.9 "
            "more than on one device",
        ),
    ),
    ServerSetting("state_blocks", _published(1, "1", "a state of each request, nothing kept for reuse")),
    ServerSetting("window_share", _published(1, "1", "windows are kept by request")),
    ServerSetting("state_share", _published(0, "1", "states lie in the blocks of keys and values")),
)
#: settings by stack, oldest first; a stack that is not here is taken to be as vLLM
SETTINGS: Mapping[str, tuple[str, str, tuple[ServerSetting, ...]]] = {
    "vllm": (
        WHOLE,
        BLOCKS,
        (
            ServerSetting("utilization", _published(0.9, "1", "vLLM up to 0.20: gpu_memory_utilization")),
            ServerSetting(
                "utilization",
                _published(0.92, "1", "vLLM, from pull request 38284 on (0.33.0, vllm/config/cache.py:215)"),
                since=(0, 21),
            ),
            ServerSetting("prompt_budget", None),
            ServerSetting(
                "prompt_budget", _published(8192, "token", f"max_num_batched_tokens: {_ARGUMENTS}"), since=(0, 8)
            ),
            ServerSetting(
                "prompt_budget",
                _published(2048, "token", f"max_num_batched_tokens below 70 GiB, A100, GB10: {_ARGUMENTS}"),
                since=(0, 8),
                on=SMALL,
            ),
            ServerSetting(
                "prompt_budget",
                _published(16384, "token", f"max_num_batched_tokens of 160 GiB or more: {_ARGUMENTS}"),
                since=(0, 33),
                on=LARGEST,
            ),
            ServerSetting("sequences", _published(256, "1", "vLLM before 0.8: max_num_seqs")),
            ServerSetting("sequences", _SEQUENCES, since=(0, 8)),
            ServerSetting("sequences", _FEW_SEQUENCES, since=(0, 8), on=SMALL),
            ServerSetting(
                "logit",
                _derived(3, "B", "start-up log of vLLM 0.7.2: 0.19 GiB of activations with 256 rows of 152,064 logits"),
            ),
            ServerSetting(
                "logit",
                _derived(
                    37, "B", "start-up logs of vLLM 0.11 and 0.15 on H100: 4.76 GiB for 128,256, 5.64 for 151,936"
                ),
                since=(0, 8),
            ),
            ServerSetting(
                "logit",
                _derived(14, "B", "start-up logs of vLLM 0.10.1.1 on A100: 0.56 GiB in all beside Qwen2-7B, 256 rows"),
                since=(0, 8),
                on=SMALL,
            ),
            ServerSetting("logit", _LOGIT, since=(0, 17)),
            ServerSetting("logit", _SMALL_LOGIT, since=(0, 17), on=SMALL),
            ServerSetting("graphs", _NONE),
            ServerSetting("layer_graphs", _NONE),
            ServerSetting("graphs", _GRAPHS, since=(0, 21)),
            ServerSetting("layer_graphs", _LAYER_GRAPHS, since=(0, 21)),
            ServerSetting("graphs", _SMALL_GRAPHS, since=(0, 21), on=SMALL),
            ServerSetting("layer_graphs", _SMALL_LAYER_GRAPHS, since=(0, 21), on=SMALL),
            ServerSetting("buffers", _derived(0.35, "GiB", "start-up logs of vLLM 0.6.4: non_torch_memory")),
            ServerSetting(
                "buffers",
                _derived(0.13, "GiB", "start-up logs of vLLM 0.11 to 0.17: memory beside PyTorch"),
                since=(0, 7),
            ),
            ServerSetting(
                "buffers",
                _derived(0.25, "GiB", f"{_LOGS_H100}: memory beside PyTorch on one device; 0.07 under pp"),
                since=(0, 18),
            ),
            ServerSetting(
                "communication",
                _derived(0.12, "GiB", "start-up logs of vLLM 0.7.2 and 0.10.1.1: two devices beside one"),
            ),
            ServerSetting(
                "communication",
                _derived(1.85, "GiB", f"{_LOGS_H100}: 2.07 to 2.17 beside PyTorch under tp, 0.25 on one device"),
                since=(0, 18),
            ),
            ServerSetting(
                "state_blocks",
                _derived(2, "1", "start-up log of vLLM 0.24.0, Qwen3.6-35B-A3B: prefixes of hybrids are kept"),
                since=(0, 21),
            ),
        ),
    ),
    "sglang": (
        STATIC,
        TOKENS,
        (
            ServerSetting("utilization", _published(0.9, "1", "by what is set aside (`static_share`)")),
            ServerSetting(
                "running",
                _published(2048, "1", "SGLang: max_running_requests, at least 2,048 where memory holds so many"),
            ),
            ServerSetting("prompt_budget", _published(8192, "token", f"chunked_prefill_size: {_SGLANG}")),
            ServerSetting("prompt_budget", _published(4096, "token", f"below 60 GiB: {_SGLANG}"), on=SMALL),
            ServerSetting("prompt_budget", _published(16384, "token", f"160 GiB or more: {_SGLANG}"), on=LARGEST),
            ServerSetting("window_share", _published(0.8, "1", "SGLang 0.5.23: swa_full_tokens_ratio")),
            ServerSetting("state_share", _published(0.9, "1", "SGLang 0.5.23: mamba_full_memory_ratio")),
            ServerSetting(
                "buffers",
                _assumed(0.5, "GiB", "the 512 MiB that SGLang sets aside for other data as it chooses its share"),
            ),
        ),
    ),
    "trtllm": (
        LEFT,
        TOKENS,
        (
            ServerSetting("utilization", _published(0.9, "1", "TensorRT-LLM: free_gpu_memory_fraction")),
            ServerSetting("running", _published(2048, "1", "TensorRT-LLM: max_batch_size")),
            ServerSetting("prompt_budget", _published(8192, "token", "TensorRT-LLM: max_num_tokens")),
            ServerSetting(
                "buffers",
                _assumed(
                    0.54, "GiB", "551 MiB of context and libraries (aiconfigurator-core 0.12.0, comment of its files)"
                ),
            ),
        ),
    ),
}
#: first release of vLLM that prints tokens as requests of the longest context
_REQUESTS_SINCE = (0, 20, 2)
#: how releases schedule prompts (`Workload.batching`), oldest first. vLLM fills steps with parts of prompts since its
#: engine V1 (on by default from 0.8.0); TensorRT-LLM batches context and generation in one step (in-flight batching);
#: SGLang computes prompts, in chunks, before it goes on decoding (enable_mixed_chunk is off by default, 0.5.23)
BATCHING: Mapping[str, tuple[tuple[tuple[int, ...], str], ...]] = {
    "vllm": (((), "continuous"), ((0, 8), "chunked")),
    "sglang": (((), "continuous"),),
    "trtllm": (((), "chunked"),),
}


def device_class(device: HardwareSpec) -> str:
    """The class of a device by which vLLM chooses its defaults: memory as its file has it reported, and two names.

    A memory that is changed does not change the class: the defaults are those of the device that there is.

    Source: vLLM 0.33.0, vllm/engine/arg_utils.py:2973-3006.
    """
    n_bytes, name = (device.reported_memory or device.memory_capacity).count, device.name.lower()
    if n_bytes < 70 * GIB or "a100" in name or "spark" in name or "gb10" in name:
        return SMALL
    return LARGEST if n_bytes >= 160 * GIB else LARGE


def of(stack: str | None, device: HardwareSpec, asked: str | None = None) -> Server:
    """The server of a software stack on a device, in the release that `asked` (vllm@0.19.0) names, else the newest."""
    name = stack if stack in SETTINGS else DEFAULT
    return _server(name or DEFAULT, device_class(device), release_of((asked or "").partition("@")[2]))


@cache
def _server(name: str, kind: str, release: tuple[int, ...]) -> Server:
    rule, printing, own = SETTINGS[name]
    found: dict[str, Quantity | None] = {}
    for setting in (*_COMMON, *own):
        if setting.since <= release and setting.on in ("", kind):
            found[setting.name] = setting.number
    if printing == BLOCKS and release >= _REQUESTS_SINCE:
        printing = REQUESTS
    return Server(rule=rule, printing=printing, **found)  # type: ignore[arg-type]


def batching(stack: str | None, asked: str | None = None) -> str:
    """Schedule of prompts by a stack's release, "continuous" or "chunked"; the newest where `asked` names none."""
    release = release_of((asked or "").partition("@")[2])
    return [how for since, how in BATCHING.get(stack or DEFAULT, BATCHING[DEFAULT]) if since <= release][-1]


def numbers(stack: str | None, device: HardwareSpec, asked: str | None = None) -> Iterable[Quantity]:
    """Every number of a server, once."""
    return of(stack, device, asked).quantities().values()


def static_share(reported_bytes: int, prompt_budget_tokens: int, n_devices: int) -> float:
    """Share of the memory that SGLang gives to weights and keys and values: what is left beside activations of a batch
    of prompt tokens, buffers of each device and graphs.

    Source: SGLang 0.5.23, sglang/srt/arg_groups/memory_hook.py:268-330, prefill graphs left out.
    """
    mib = reported_bytes / 2**20
    graphs = 2 * (8 if mib < 20 * 1024 else 48 if mib < 60 * 1024 else 256 if mib < 160 * 1024 else 512)
    reserved = 512 + 1.5 * max(prompt_budget_tokens, 2048) + 128 * n_devices + graphs
    return round((mib - max(reserved, 10_240 if mib > 60 * 1024 else 0)) / mib, 3)
