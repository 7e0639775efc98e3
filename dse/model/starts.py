"""Formats, layouts and models that the software of a device starts with, and why it refuses the others.

Of a GPU the table of the engine's release says it (dse/specs/engines.py), of a designed chip its own engine, of other
devices, and where memory or times are counted as papers do, the code that was published for them. A chip of the user's,
which no software is known for, unpacks every format at the rate that its file gives.
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from dse.core.errors import InputError
from dse.model.kv_layout import KvPlan, TensorGroup, build
from dse.model.records import NO_LIMIT
from dse.model.stacks import DEFAULT_STACK
from dse.quantizers import FAMILIES, engine_names, parse, skipping
from dse.specs import catalog, deployment, engines, llama_cpp
from dse.specs.device_and_model import HardwareSpec, ModelSpec
from dse.specs.engines import Support
from dse.specs.implementation import ANY_GPU, GENERIC, Implementation
from dse.specs.releases import release_of
from dse.specs.servers import GIB
from dse.specs.workload import Workload

#: what stands for 16 bits
PLAIN = "fp16"
_NO_TYPE = "no KV type of"
#: latent heads of 512 + 64 channels that an index chooses from (DeepSeek-V3.2, GLM-5), as tables of engines call them
_CHOSEN_LATENTS = "sparse_latent_576"


#: rows that vLLM and SGLang pad a vocabulary to (DEFAULT_VOCAB_PADDING_SIZE in their vocab_parallel_embedding.py)
VOCABULARY_ROWS = 64
#: formats of groups -> the weights of a group
_GROUPS = {"int4": 128, "int4-ffn": 128, "int4-of-64": 64, "int4-of-32": 32, "int4-experts": 32, "w8a16": 128}
#: formats whose experts vLLM and SGLang slice by whole blocks or groups -> what they call it, and its channels
_SLICED = {"fp8-block": ("block_n", 128)} | {name: ("group_size", size) for name, size in _GROUPS.items()}
#: the release from which vLLM counts them (its pull request 38270; 0.33.0 does)
_COUNTS_STATES = "0.19.0"
#: DeepSeek-V4's, whose shared expert alone is in blocks, and the release of vLLM that pads it (its pull request 46001)
_SHARED_IN_BLOCKS, _PADS_SHARED = "fp8-mxfp4-experts", "0.24.0"
#: the release of vLLM that pads pages of attention that do not divide the largest (its pull request 45181)
_PADS_PAGES = "0.24.0"
#: the releases of vLLM from which --kv-cache-dtype-skip-layers keeps layers in 16 bits, and those of latent heads too
#: (its pull requests 33695, in the wheel of 0.19.0, and 47309, merged after 0.25.1)
_SKIPS_LAYERS, _SKIPS_LATENTS = "0.19.0", "0.26.0"


class Start(NamedTuple):
    """Whether a device's software runs a format: why not, "" where it does, and the row of a table that says it."""

    reason: str = ""
    support: Support | None = None
    #: other software is known to run it
    elsewhere: bool = False

    @property
    def line(self) -> str:
        """Why it does not run, in a line."""
        return self.support.text() if self.support else self.reason


@cache
def kv_dtype(stack: str, release: str, family: str) -> str | None:
    """The name that an engine has for a family, of the types in a release's table; None where it has none."""
    types = engines.types(stack, release)
    names = [
        offer.name
        for offer in engine_names.offered(FAMILIES)
        if offer.engine == engines.ENGINES.get(stack) and offer.text == family
    ]
    return next((name for name in (family, *names) if name in types), None)


def has_table(device: HardwareSpec, stack: str) -> bool:
    """Whether a table tells what an engine (NAME or NAME@RELEASE) runs on a device."""
    name, _, requested = stack.partition("@")
    release = engines.release_for(name, requested)
    return release is not None and (device.architecture or "") in engines.architectures(name, release)


def plain_support(device: HardwareSpec, model: ModelSpec, work: Workload, stack: str) -> Support | None:
    """The row of a release's table for what a model computes with; None where none tells."""
    if not has_table(device, stack):
        return None
    name, _, requested = stack.partition("@")
    return engines.support(name, requested, device, model, engines.AUTO, work.tower)


def is_plain(support: Support) -> bool:
    """Whether an engine that is asked for nothing else keeps 16 bits."""
    return support.runs and support.stored_as in ("", engines.AUTO)


def told_text(device: HardwareSpec, model: ModelSpec, work: Workload, stack: str, family: str) -> str:
    """Whether an engine runs a format here, in a line; "" where no table tells."""
    if not has_table(device, stack):
        return ""
    start = _by_table(device, model, work, stack, family)
    if (row := start.support) is None:
        is_known = start.reason.startswith(_NO_TYPE)
        return f"{start.reason}: other software would have to run it" if is_known else ""
    other = row.runs and row.stored_as not in ("", family, row.kv_dtype)
    return row.text() + (f"; stored as {row.stored_as}, which --quantizer {row.stored_as} counts" if other else "")


def of_format(
    device: HardwareSpec, model: ModelSpec, work: Workload, stack: str, family: str, implementation: str = ""
) -> Start:
    """Whether the software of a device runs a format of fewer bits than 16 for a model.

    `stack` is as results have it, "" for none; `implementation` one that the quantizer itself names.
    """
    kernel = (work.implementation or "").partition(":")[0] or implementation
    stack = engine_of(device, work, stack)
    name = stack.partition("@")[0]
    if device.is_own_chip and not name and not kernel:
        return Start()
    try:
        runs = catalog.implementation(device, family, name or None, kernel)
    except InputError:
        return Start("other kernels than asked for")
    is_known = runs is not None and _is_for(runs, device)
    if not kernel and has_table(device, stack) and not _as_papers(work):
        start = _by_table(device, model, work, stack, family)
        return start._replace(elsewhere=bool(start.reason) and is_known)
    if device.engine_rate is not None and not kernel:
        has_engine = device.path_of(family) == "engine"
        return Start() if has_engine else Start(f"no engine of {device.name} runs it", None, is_known)
    if not is_known:
        return Start(f"no kernel known for {device.name}")
    if kernel or not name or runs is None or runs.stack == name or _as_papers(work):
        return Start()
    if not _offers(name, family):
        return Start(f"{_NO_TYPE} {engines.ENGINES.get(name, name)}", None, elsewhere=True)
    return Start(f"a kernel of {runs.stack} alone", None, elsewhere=True) if runs.stack else Start()


def as_stored(device: HardwareSpec, plan: KvPlan, work: Workload, stack: str) -> KvPlan:
    """The plan in the type that an engine stores in place of one that is asked for, by the table of its release: vLLM's
    fp8 of latent heads that an index chooses from is fp8_ds_mla on most GPUs."""
    stack, (key, value) = engine_of(device, work, stack), (plan.key_quantizer, plan.value_quantizer)
    is_one = key.name == value.name and skipping.bare(key).name == key.family.name
    is_one &= not (work.implementation or "").partition(":")[0]
    if not is_one or key.family.exact or engines.kinds(plan.model, work.tower) != [_CHOSEN_LATENTS]:
        return plan
    if not has_table(device, stack) or _as_papers(work):
        return plan
    row = _by_table(device, plan.model, work, stack, key.family.name).support
    if row is None or not row.runs or row.stored_as in (key.family.name, row.kv_dtype) or row.stored_as not in FAMILIES:
        return plan
    kept = "+".join(map(str, skipping.layers_of(key)))
    stored = parse(f"{row.stored_as}:skip={kept or skipping.NONE}")
    return plan.once(("stored", stored.name), lambda: build(plan.model, stored, stored))


def refusals(device: HardwareSpec, plan: KvPlan, work: Workload, stack: str) -> dict[str, str]:
    """Parts of a design that its device's software does not run (a format, a layout), each with the line that says so.

    `plan` may be as laid out on the device, `stack` is as results have it.
    """
    stack = engine_of(device, work, stack)
    model, lines = (plan.whole or plan).model, dict[str, str]()
    packed = {g.quantizer.family.name: g.quantizer for g in plan.groups if g.layout.needs_dequantizing}
    for family, quantizer in packed.items():
        named = (quantizer.implementation or "").partition(":")[0]
        if (start := of_format(device, model, work, stack, family, named)).reason:
            lines[family] = start.line
    if (work.implementation or "").partition(":")[0] or not has_table(device, stack) or _as_papers(work):
        return lines
    plain = plain_support(device, model, work, stack)
    has_plain = len(packed) < len({g.quantizer.family.name for g in plan.groups})
    if has_plain and plain and not is_plain(plain):
        kept = plain.text() if not plain.runs else f"{plain.engine} {plain.release} stores it as {plain.stored_as}"
        lines[PLAIN] = kept
    return lines | _layout_refusals(model, plan, work, stack)


def of_states(
    device: HardwareSpec, work: Workload, stack: str, n_blocks: int, ends: tuple[float, float], n_sequences: int
) -> str:
    """The line for a hybrid of which vLLM may have too few blocks for as many requests at once, as each that decodes
    takes one for its states in graphs of whole steps; "" where it has enough.

    `ends`: what 8 of 10 start-ups have of `n_blocks`.

    Source: vLLM 0.33.0, vllm/config/compilation.py, resolve_cudagraph_mode_and_sizes.
    """
    name, _, asked = engine_of(device, work, stack).partition("@")
    low, high = (int(n_blocks * end) for end in ends)
    is_checked = name == "vllm" and release_of(asked) >= release_of(_COUNTS_STATES) and work.cuda_graphs
    if not is_checked or n_blocks <= 0 or low >= n_sequences:
        return ""
    asks, blocks = f"max_num_seqs ({n_sequences:,})", f"available Mamba cache blocks ({n_blocks:,}, counted"
    mends = f"--max-num-seqs {max(low, 1)} starts"
    if high < n_sequences:
        return f"vLLM: {asks} exceeds {blocks}): {mends}"
    return f"vLLM may not start: {asks} may exceed {blocks}; {low:,} to {high:,} in 8 of 10 start-ups): {mends}"


def of_cells(work: Workload, stack: str, cache_bytes: int, free_bytes: int) -> dict[str, str]:
    """The cache of llama.cpp that was asked for, where a device's memory does not hold its part."""
    cache_bytes = int(cache_bytes * (1 - work.kv_offload))
    if stack.partition("@")[0] != "llama.cpp" or not work.max_total_tokens or cache_bytes <= free_bytes:
        return {}
    left = max(free_bytes, 0)
    said = f"llama.cpp: {cache_bytes / GIB:.2f} GiB of keys and values, {left / GIB:.2f} are left"
    fits = work.max_total_tokens * left // cache_bytes // llama_cpp.CELLS * llama_cpp.CELLS
    ways = [*[f"-c {fits}"] * (fits > 0), "-ctk q8_0 -ctv q8_0", "-ngl with fewer layers"]
    return {f"-c {work.max_total_tokens}": f"{said}: {' or '.join(ways)}"}


def why_not(refused: Mapping[str, str]) -> str:
    """Refusals in a line; "" for none."""
    return "; ".join(f"{subject}: {line}" for subject, line in refused.items())


def _layout_refusals(model: ModelSpec, plan: KvPlan, work: Workload, stack: str) -> dict[str, str]:
    """Layouts that an engine with a table does not start."""
    name, lines = stack.partition("@")[0], dict[str, str]()
    engine = engines.ENGINES.get(name, name)
    keys, values = ({_type_of(g) for g in plan.groups if g.which == side} for side in ("key", "value"))
    if keys and values and keys != values:
        apart = "computes attention of unlike types on the CPU, but for builds with GGML_CUDA_FA_ALL_QUANTS"
        lines["keys and values"] = f"{engine} {apart if name == 'llama.cpp' else 'keeps both in one type'}"
    if len((keys | values) - {PLAIN}) > 1:
        lines["layers"] = f"{engine} has one KV type beside 16 bits"
    elif PLAIN in keys and len(keys) > 1 and _is_asked_by_layer(plan) and (one := _one_type(stack, model)):
        lines["layers"] = one
    if name == "vllm" and work.ep not in (1, work.tp):
        lines[f"ep {work.ep}"] = f"{engine} spreads whole experts over all devices or over none: ep 1 or {work.tp}"
    if stack.startswith("vllm@") and release_of(stack.partition("@")[2]) < release_of(_PADS_SHARED):
        lines |= _shared_refusals(model, work) | _page_refusals(plan)
    if name in ("vllm", "sglang"):
        lines |= _slice_refusals(model, work, engine) or _vocabulary_refusals(model, work, engine)
    if name == "llama.cpp":
        for field, usual in (("ep", 1), ("dcp", 1), ("dp_attention", False)):
            if getattr(work, field) != usual:
                lines[field.replace("_", "-")] = f"{engine} has no such split"
    return lines


def _is_asked_by_layer(plan: KvPlan) -> bool:
    """Whether layers in 16 bits were asked for, by a plan or a quantizer's name; not those that a format has itself."""
    sides = (plan.key_quantizer, plan.value_quantizer)
    return any(side.layers and (skipping.is_named(side) or not skipping.layers_of(side)) for side in sides)


def _one_type(stack: str, model: ModelSpec) -> str:
    """The line for an engine that keeps all layers in one type; "" for one that leaves some in 16 bits."""
    name, _, release = stack.partition("@")
    since = _SKIPS_LATENTS if model.is_latent else _SKIPS_LAYERS
    if name == "vllm" and (not release or release_of(release) >= release_of(since)):
        return ""
    newer = f": vllm@{since} leaves some in 16 bits" if name == "vllm" else ""
    engine = engines.ENGINES.get(name, name) + (f" {release}" if newer else "")
    return f"{engine} keeps all layers in one KV type{newer}"


def _slice_refusals(model: ModelSpec, work: Workload, engine: str) -> dict[str, str]:
    """Slices of feed-forwards that are no multiple of the blocks that their weights are scaled by: of routed experts,
    of the shared one, which `ep` leaves in slices, and of dense layers. A server on each device slices experts alone.
    """
    word, block = _SLICED.get(work.weight_format.name, ("", 1))
    is_sliced = word == "block_n" and (engine == "SGLang" or not work.dp_attention)
    routed = model.expert_width if work.ep == 1 else None
    others = (model.shared_expert_width, _dense_width(model)) if is_sliced else ()
    widths = [width for width in (routed, *others) if width and width % block == 0]
    narrow = [width for width in widths if width % work.tp == 0 and width % (work.tp * block)]
    if not narrow:  # else refused before
        return {}
    wide = max(tp for tp in range(1, work.tp + 1) if work.tp % tp == 0 and not any(w % (tp * block) for w in widths))
    of = "output_size of gate's and up's weight" if model.expert_width else "Weight output_partition_size"
    said = f"{engine}: {of} = {narrow[0] // work.tp} is not divisible by {word} = {block}"
    whole = "" if any(width in narrow for width in others) else f"--ep {work.tp} runs, or "
    return {f"tp {work.tp}": f"{said}: {whole}--tp {wide} --pp {work.tp // wide * work.pp}{'' if whole else ' runs'}"}


def _dense_width(model: ModelSpec) -> int:
    """Channels of the feed-forward of a dense model with gates; 0 where its layers differ, or are not known."""
    width = ((model.layer_elements or 0) - 2 * model.hidden_size) // 2
    outside = (model.attention_parameters or 0) + model.vocab_size * model.hidden_size + model.embedding_parameters
    counted = 3 * model.hidden_size * width * sum(layer.n_layers for layer in model.layers)
    is_all = abs(model.dense_parameters - outside - counted) < 0.001 * model.dense_parameters
    return width if is_all and not model.expert_width else 0


def _page_refusals(plan: KvPlan) -> dict[str, str]:
    """Pages of windows and of whole contexts that the scale of each token and head makes no multiple of each other."""
    scaled = [g for g in plan.groups if g.quantizer.family.name.endswith("_per_token_head")]
    rows: dict[int, int] = {}
    for g in scaled:
        rows[g.shape_index] = rows.get(g.shape_index, 0) + g.packed_bits
    has_windows = len({g.window_tokens < NO_LIMIT for g in scaled}) > 1
    if not has_windows or all(max(rows.values()) % bits == 0 for bits in rows.values()):
        return {}
    said = "vLLM: the page size of the layer is not divisible by the maximum page size"
    return {"pages": f"{said}: vllm@{_PADS_PAGES} pads it; fp8 has pages that divide"}


def _shared_refusals(model: ModelSpec, work: Workload) -> dict[str, str]:
    """Slices of DeepSeek-V4's shared expert."""
    width, (_, block) = model.shared_expert_width or 0, _SLICED["fp8-block"]
    if work.weight_format.name != _SHARED_IN_BLOCKS or width % (work.tp * block) == 0:
        return {}
    said = f"vLLM: Weight input_size_per_partition = {width // work.tp} is not divisible by block_k = {block}"
    return {f"tp {work.tp}": f"{said} of the shared expert: vllm@{_PADS_SHARED} runs it"}


def _vocabulary_refusals(model: ModelSpec, work: Workload, engine: str) -> dict[str, str]:
    """Slices of the embedding, whose rows engines pad to whole VOCABULARY_ROWS and cut evenly."""
    rows = -(-model.vocab_size // VOCABULARY_ROWS) * VOCABULARY_ROWS
    if rows % work.tp == 0:
        return {}
    usual = " or ".join(str(n) for n in deployment.USUAL_SIZES if n > 1 and model.n_q_heads % n == 0)
    said = f"{engine}: {rows} is not divisible by {work.tp} (rows of the vocabulary in whole {VOCABULARY_ROWS})"
    return {f"tp {work.tp}": f"{said}{usual and f': --tp {usual}'}"}


def _type_of(g: TensorGroup) -> str:
    """The type that an engine would keep a tensor in."""
    return g.quantizer.family.name if g.layout.needs_dequantizing else PLAIN


def engine_of(device: HardwareSpec, work: Workload, stack: str) -> str:
    """The engine that a device runs: of its stack, and of a GPU without measured kernels the usual one, whose table
    knows its architecture; none at peak rates, which are a paper's."""
    is_usual = not stack and work.model_kind != "ideal" and has_table(device, DEFAULT_STACK)
    return DEFAULT_STACK if is_usual else stack


def _as_papers(work: Workload) -> bool:
    """Whether a design is counted as papers do, which compare published code and no server's release."""
    return work.memory == "paper" and not work.stack


def _is_for(implementation: Implementation, device: HardwareSpec) -> bool:
    """Whether an implementation is code for a device: that of papers, which names no architectures, is for GPUs."""
    is_gpu = (device.architecture or ANY_GPU).startswith(ANY_GPU)
    return not implementation.name.startswith(GENERIC) and (bool(implementation.architectures) or is_gpu)


@cache
def _offers(stack: str, family: str) -> bool:
    """Whether an engine has a name for a family."""
    known = engine_names.offered(FAMILIES)
    return any(offer.engine == engines.ENGINES.get(stack) and offer.text == family for offer in known)


def _by_table(device: HardwareSpec, model: ModelSpec, work: Workload, stack: str, family: str) -> Start:
    """Whether an engine with a table runs a format."""
    name, _, requested = stack.partition("@")
    release = engines.release_for(name, requested) or ""
    engine = f"{engines.ENGINES.get(name, name)} {release}"
    dtype = kv_dtype(name, release, family)
    if dtype is None:
        return Start(f"{_NO_TYPE} {engine}")
    row = engines.support(name, requested, device, model, dtype, work.tower)
    if row is None:
        kinds = ", ".join(engines.kinds(model, work.tower))
        return Start(f"not told for {kinds} on {device.architecture} by {engine}")
    words = {engines.REFUSED: "refused by", engines.FAILS: "fails as it starts under"}
    return Start(f"{words[row.status]} {engine}" if row.status in words else "", row)
