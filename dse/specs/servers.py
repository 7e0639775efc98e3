"""Memory that a server keeps beside weights and the KV cache, and its defaults, by engine, release and device.

Numbers and sources are in hwspecs/servers. `dse point ... --explain free_bytes` shows them in use;
docs/explanation/model.md, Memory of a server, has the rules.
"""

from collections.abc import Iterable
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import hwspecs
from dse.core import specfile
from dse.specs import sglang_memory
from dse.specs.device_and_model import HardwareSpec, load
from dse.specs.quantity import Overhead, Quantity, Share, Tokens, quantity
from dse.specs.releases import release_of
from dse.specs.stack import Spec

if TYPE_CHECKING:
    Requests: TypeAlias = Quantity
    Part: TypeAlias = Quantity
    Copies: TypeAlias = Quantity
    Off: TypeAlias = Quantity
else:
    Requests = quantity("1", 1, 1e6, whole=True)
    Part = quantity("1", 0.0, 1.0)
    Copies = quantity("1", 0.0, 100.0)
    Off = quantity("1", -1.0, 1.0)

#: how a server takes the share that it may use: of what the driver reports, for all that it keeps; of the same, for
#: weights and keys and values alone; of what is left beside all else, for keys and values
WHOLE, STATIC, LEFT = "whole", "static", "left"
#: what a server prints as the tokens of its pool where layers differ: blocks over groups of layers, requests of the
#: longest context times its length, or tokens of the layers without a window
BLOCKS, REQUESTS, TOKENS = "blocks", "requests", "tokens"
#: pages of layers whose tokens take less room than others': more tokens a page and the rest padded, or padded alone
#: where they do not divide
SCALED, PADDED = "scaled", "padded"
#: devices by their memory, as servers choose their defaults; GPUs of AMD; and those whose memory the host uses too
SMALL, LARGE, LARGEST, ROCM, UNIFIED = "small", "large", "largest", "rocm", "unified"
#: what the last are called
_UNIFIED_NAMES = ("spark", "gb10", "thor", "strix")
GIB = 2**30
#: largest batch that vLLM records a graph for
MOST_RECORDED = 512
#: the server where no stack, or one without numbers of its own, is named
DEFAULT = "vllm"
#: software that lays out no pool, and how often it holds keys and values at the peak of a step: the tuples of Hugging
#: Face's models keep all past ones until those of the last layer are joined to the new (torch.cat([past, new]) in each
#: layer, transformers before 4.36; OPTModel's next_decoder_cache), and run each prompt whole
WITHOUT_POOL = {"transformers": 2}
#: what servers have in common whose own files say nothing else
_COMMON = "common"
_FOLDER = Path(hwspecs.__file__).parent / "servers"


class Server(Spec):
    """The memory of a server of one device, and what communication of several adds."""

    rule: Literal["whole", "static", "left"]
    printing: Literal["blocks", "requests", "tokens"]
    #: prompts are computed before decoding goes on, or steps are filled with parts of them (`Workload.batching`)
    batching: Literal["continuous", "chunked"]
    #: share of the memory where none is given
    utilization: Share
    #: tokens of the largest batch of prompt tokens; None: the longest context, which is computed whole
    prompt_budget: Tokens | None = None
    #: rows of logits in the largest step, and bytes of a logit with its copies
    sequences: Requests
    #: requests that run at once, where these are not as many
    running: Requests | None = None
    logit: Overhead
    #: copies of the hidden states of the tokens of a batch
    hidden_copies: Copies
    #: copies of the values of a tower of images: those that each device holds, and those that devices share
    tower_copies: Copies
    split_tower_copies: Copies
    #: CUDA graphs, and what each layer adds to them
    graphs: Overhead
    layer_graphs: Overhead
    #: graphs of the fewest requests; None: graphs do not depend on how many run
    least_graphs: Overhead | None = None
    #: context of the device, workspaces of libraries
    buffers: Overhead
    #: of these, what is taken before the share is counted
    context: Overhead
    #: buffers of communication, where several devices share the layers
    communication: Overhead
    #: states that a request takes, with those kept for its prefix, where they lie beside tokens
    request_states: Copies
    #: blocks that the constant states of a request take in each group of layers
    state_blocks: Copies
    #: kinds of layers whose numbers differ less than so many times make groups of the larger number
    alike: Copies
    unlike_pages: Literal["scaled", "padded"]
    #: tokens kept of layers with a window, of those without; states, of the memory of keys and values
    window_share: Part
    state_share: Part
    #: ends of what 8 of 10 pools have beyond the computed one, as shares of the device's memory
    pool_low: Off
    pool_high: Off

    @property
    def has_slots(self) -> bool:
        """True for llama.cpp, which lays out windows and states for each slot, and cells for all tokens."""
        return self.rule == WHOLE and self.printing == TOKENS

    def without_prefixes(self) -> "Server":
        """The server with its prefix cache off: a request takes one state, none is kept for others.

        Source: vLLM 0.33.0, vllm/v1/kv_cache_interface.py, MambaSpec.max_memory_usage_bytes; SGLang 0.5.23,
        KVCacheConfigurator._calculate_mamba_ratio.
        """
        names = ("request_states", "state_blocks")
        return self.model_copy(update={name: getattr(self, name).model_copy(update={"value": 1}) for name in names})

    def buffer_bytes(self, tp: int) -> int:
        """Bytes of context, workspaces and buffers on each of `tp` devices that share the layers."""
        return self.buffers.count + (self.communication.count if tp > 1 else 0)

    def graph_bytes(self, n_layers: int, n_sequences: int, largest: int | None = None) -> int:
        """Bytes of graphs of a model, or stage, of `n_layers`, of the batches that `n_sequences` have recorded, up to
        `largest`."""
        whole = self.graphs.count + n_layers * self.layer_graphs.count
        if self.least_graphs is None:
            return whole
        share = Fraction(recorded_batches(n_sequences, largest), recorded_batches(MOST_RECORDED))
        return min(whole, max(self.least_graphs.count, int(whole * share)))


def recorded_batches(n_sequences: int, largest: int | None = None) -> int:
    """Sizes of batches that vLLM records graphs for: 1, 2, 4, by 8 below 256, by 16 to `largest`, by default
    512 and twice the requests at most.

    Source: vLLM 0.33.0, vllm/config/vllm.py, _set_cudagraph_sizes.
    """
    most = min(2 * n_sequences, MOST_RECORDED) if largest is None else largest
    return sum(size <= most for size in (1, 2, 4)) + min(most, 255) // 8 + max(0, most - 240) // 16


def device_class(device: HardwareSpec) -> str:
    """The class of a device by which vLLM chooses its defaults: memory as its file has it reported, and two names.

    A memory that is changed does not change the class: the defaults are those of the device that there is.

    Source: vLLM 0.33.0, vllm/engine/arg_utils.py:2973-3006.
    """
    n_bytes, name = (device.reported_memory or device.memory_capacity).count, device.name.lower()
    if n_bytes < 70 * GIB or "a100" in name or "spark" in name or "gb10" in name:
        return SMALL
    return LARGEST if n_bytes >= 160 * GIB else LARGE


def kinds_of(device: HardwareSpec) -> tuple[str, ...]:
    """The kinds of a device whose numbers hold for it, later ones in place of earlier ones."""
    is_unified = any(name in device.name.lower() for name in _UNIFIED_NAMES)
    return device_class(device), *[ROCM] * (device.vendor == "AMD"), *[UNIFIED] * is_unified


@cache
def stacks() -> frozenset[str]:
    """Software stacks whose servers have a file; any other is taken to be as vLLM."""
    return frozenset(path.stem for path in _FOLDER.glob("*.toml")) - {_COMMON}


def of(stack: str | None, device: HardwareSpec, asked: str | None = None) -> Server:
    """The server of a software stack on a device, in the release that `asked` (vllm@0.19.0) names, else the newest."""
    kinds = kinds_of(device)
    server = _server(stack, kinds, asked)
    if server.rule == STATIC and device.reported_memory:
        return _with_budget(stack, kinds, asked, device.reported_memory.count)
    return server


@lru_cache(maxsize=256)
def _with_budget(stack: str | None, kinds: tuple[str, ...], asked: str | None, reported_bytes: int) -> Server:
    """The server of SGLang, whose batches of prompts go by the memory."""
    server, release = _server(stack, kinds, asked), (asked or "").partition("@")[2]
    assert server.prompt_budget is not None
    n_tokens = sglang_memory.prompt_tokens(reported_bytes, release)
    budget = server.prompt_budget.model_copy(update={"value": n_tokens, "source": sglang_memory.__name__})
    return server.model_copy(update={"prompt_budget": budget})


def cache_copies(stack: str | None) -> int:
    """Return the times that a stack, of any release, holds keys and values at the peak of a step."""
    return WITHOUT_POOL.get((stack or "").partition("@")[0], 1)


@lru_cache(maxsize=256)
def _server(stack: str | None, kinds: tuple[str, ...], engine: str | None) -> Server:
    name, release = stack if stack in stacks() else DEFAULT, release_of((engine or "").partition("@")[2])
    settings: dict[str, Any] = {}
    for document in (_read(_COMMON), document_of_stack := _read(str(name))):
        for since in sorted(document.data, key=release_of):
            if release_of(since) <= release:
                block = document.data[since]
                settings |= {
                    key: item for key, item in block.items() if key not in (SMALL, LARGE, LARGEST, ROCM, UNIFIED)
                }
                for kind in kinds:
                    settings |= block.get(kind, {})
    server: Server = load(specfile.Document(document_of_stack.path, settings), Server)
    return server


@cache
def _read(name: str) -> specfile.Document:
    return specfile.read(_FOLDER / f"{name}.toml")


def batching(stack: str | None, asked: str | None = None) -> str:
    """Schedule of prompts by a stack's release, "continuous" or "chunked"; the newest where `asked` names none."""
    return _server(stack, (LARGE,), asked).batching


def numbers(stack: str | None, device: HardwareSpec, asked: str | None = None) -> Iterable[Quantity]:
    """Every number of a server, once."""
    return of(stack, device, asked).quantities().values()
