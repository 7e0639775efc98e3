"""Measured kernels of a stack as records: which of them run a design, and what they reach.

Kernels are found by how keys and values are stored, by the dimension of a head and by what a layer reads of them; where
its own were not measured, the nearest stand in.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from dse.core import units
from dse.core.errors import InputError, show
from dse.model import implementations
from dse.model.formulas import attention, calibrated
from dse.model.kv_layout import KvPlan, TensorGroup
from dse.model.records import AttentionKernel, Stack
from dse.specs import catalog
from dse.specs.device_and_model import HardwareSpec, LayerKV, ModelSpec
from dse.specs.stack import (
    Benchmarked,
    Fit,
    GemmFit,
    HeadCode,
    HostFit,
    LatentCode,
    LatentFit,
    PackedFit,
    PromptFit,
    ServedExperts,
    ServedStack,
    SparseCode,
    SparseFit,
    StackSpec,
    WeightCode,
)
from dse.specs.weights import FORMATS, WeightFormat
from dse.specs.workload import OF_EXPERTS, Workload

#: heads of at least this dimension run the prompt kernels that were measured for it
PROMPT_HEAD_DIM = 128
#: layers that read chosen tokens of a latent
CHOSEN = {"dsa", "dsa_fp8", "dsa_shared", "dsa_shared_fp8"}
#: families whose codes are FP8: kernels read them like those of one scale a tensor
FP8_CODES = frozenset({"fp8", "fp8_per_token_head", "fp8_ds_mla"})
#: tokens that a fitted `choice` is named for
CHOICE_TOKENS = 1000
#: what measured devices reach of their data sheets: of bandwidth, and of the rate of products over prompts. A device
#: whose kernels nobody measured is taken to reach the middle
REACHED_BANDWIDTH, REACHED_COMPUTE = (0.85, 0.93), (0.70, 1.00)
MIDDLE_BANDWIDTH, MIDDLE_COMPUTE = (sum(ends) / 2 for ends in (REACHED_BANDWIDTH, REACHED_COMPUTE))


class Unpacking(NamedTuple):
    """Reading a tensor's elements by the cores of a device; zeros where nothing bounds it."""

    #: seconds of a core for a packed element
    core_s: float = 0.0
    #: elements that all cores unpack in a second; 0 where others do it
    rate_per_s: float = 0.0


class LayerFit(NamedTuple):
    """Equal layers, with what was measured of the kernels that read them."""

    layer: LayerKV
    n_layers: int
    token_flops: int
    #: kernels of layers that read chosen or compressed tokens, and their place among the fits
    place: SparseCode | None
    sparse: SparseFit | None
    #: in place of plain attention's: `sparse`, or latent attention's
    special: GemmFit | None
    #: seconds of a core for an element that is not packed; 0: no ceiling
    plain_core_s: float
    #: devices that share the tokens, each of which chooses among its own
    token_shards: int


def kernels_of(
    device: HardwareSpec, plan: KvPlan, paths: Mapping[str, str], stack: StackSpec | None, latent: LatentFit | None
) -> tuple[tuple[AttentionKernel, ...], list[Unpacking]]:
    """Attention kernels by layer shape, and the unpacking of each tensor; none without measured kernels."""
    if stack is None or stack.attention is None:
        return (), [Unpacking()] * len(plan.groups)
    layers = [_layer_fit(plan, paths, stack, shape, latent) for shape in range(len(plan.layers))]
    unpackings = [_unpacking(device, paths, stack, layers[g.shape_index], g, latent) for g in plan.groups]
    kernels = []
    for shape, fit in enumerate(layers):
        if fit.layer.state_bytes:
            kernels.append(_state_kernel(stack, fit))
            continue
        read = [pair for pair in zip(plan.groups, unpackings, strict=True) if pair[0].shape_index == shape]
        bounded = fit.plain_core_s > 0 or any(unpacking.core_s for _, unpacking in read)
        kernels.append(_attention_kernel(plan.model, paths, stack, fit, [g for g, _ in read], bounded))
    return tuple(kernels), unpackings


def _layer_fit(
    plan: KvPlan, paths: Mapping[str, str], stack: StackSpec, shape: int, latent: LatentFit | None
) -> LayerFit:
    layer, n_layers = plan.layers[shape]
    place = sparse_place(plan, paths, stack, shape)
    sparse = stack.sparse[place] if place else None
    special = sparse or latent
    rate = 0.0 if special else stack.attention_terms()["core_rate_per_s"]
    return LayerFit(
        layer=layer,
        n_layers=n_layers,
        token_flops=token_flops(plan, shape),
        place=place,
        sparse=sparse,
        special=special,
        plain_core_s=1 / rate if rate else 0.0,
        token_shards=plan.token_shards,
    )


def _unpacking(
    device: HardwareSpec,
    paths: Mapping[str, str],
    stack: StackSpec,
    layer_fit: LayerFit,
    g: TensorGroup,
    latent: LatentFit | None,
) -> Unpacking:
    """The unpacking of a tensor of these layers; a packed element takes a core no less than one that is not."""
    if not g.layout.needs_dequantizing:
        return Unpacking(core_s=layer_fit.plain_core_s)
    path = paths[g.place]
    rate = core_rate(device, stack, g, path, stored_as_measured(g, paths, stack, layer_fit.place, latent))
    return Unpacking(
        core_s=max(1 / rate, layer_fit.plain_core_s) if rate else layer_fit.plain_core_s,
        rate_per_s=rate * n_cores_of(device) if path in ("fused", "engine") else 0.0,
    )


def _attention_kernel(
    model: ModelSpec,
    paths: Mapping[str, str],
    stack: StackSpec,
    layer_fit: LayerFit,
    groups: Sequence[TensorGroup],
    has_ceiling: bool,
) -> AttentionKernel:
    """The kernel that reads `groups`, the keys and values of these layers: as fitted, or as an implementation says."""
    terms, layer, special, sparse = stack.attention_terms(), layer_fit.layer, layer_fit.special, layer_fit.sparse
    fused = [g for g in groups if paths[g.place] == "fused"]
    runs = [run for g in groups if (run := g.implementation) and paths[g.place] in ("fused", run.path)]
    packed = [fit for g in groups if (fit := packed_fit(stack, g, paths[g.place]))]
    launch_s = special.launch.si if special else max([terms["launch_s"], *(fit.launch.si for fit in packed)])
    launch_s = max((run.launch.si for run in runs if run.launch), default=launch_s)
    memory_frac = special.memory_frac.si if special else terms["memory_frac"]
    index_frac = choice_s = 0.0
    cast = special.cast_rate if isinstance(special, LatentFit) else None
    if sparse:
        index_frac = sparse.index_frac.si if sparse.index_frac else 1.0
        choice = sparse.choice.si if sparse.choice and not layer.joined else 0.0
        choice_s = choice / CHOICE_TOKENS / layer_fit.token_shards
    return AttentionKernel(
        n_layers=layer_fit.n_layers,
        n_kv_heads=layer.n_kv_heads,
        io_bytes=0 if sparse and layer.joined else calibrated.attention_io_bytes(1, model.n_q_heads, layer.score_dim),
        token_flops=layer_fit.token_flops,
        is_reordered=int(model.n_q_heads > layer.n_kv_heads and not layer.joined and not sparse),
        has_ceiling=int(has_ceiling),
        launch_s=0.0 if layer.joined else launch_s,  # of a kernel that has started already
        memory_frac=min((run.memory_frac.si for run in runs if run.memory_frac), default=memory_frac),
        cores_per_unit=min((implementations.cores_per_unit(g) for g in fused), default=0.0),
        flops_frac=special.flops_frac.si if special else calibrated.ATTENTION_FLOPS_FRAC,
        split_s=0.0 if special else terms["split_s"],
        unit_s=0.0 if special else terms["unit_s"],
        plain_core_s=layer_fit.plain_core_s,
        index_frac=index_frac,
        choice_s=choice_s,
        cast_per_s=cast.si if cast else 0.0,
    )


def _state_kernel(stack: StackSpec, layer_fit: LayerFit) -> AttentionKernel:
    """The kernels that update a layer's state: as measured, else what attention's start and reach."""
    layer, terms = layer_fit.layer, stack.attention_terms()
    fit = stack.state.get(layer.state_code) if layer.state_code else None
    return AttentionKernel(
        n_layers=layer_fit.n_layers * bool(layer.state_flops),
        n_kv_heads=0,
        io_bytes=layer.state_bytes,
        token_flops=layer_fit.token_flops,
        is_reordered=0,
        has_ceiling=0,
        launch_s=fit.launch.si if fit else terms["launch_s"],
        memory_frac=fit.memory_frac.si if fit else terms["memory_frac"],
        cores_per_unit=0.0,
        flops_frac=calibrated.ATTENTION_FLOPS_FRAC,
        split_s=0.0,
        unit_s=0.0,
        plain_core_s=0.0,
        index_frac=0.0,
        choice_s=0.0,
        cast_per_s=0.0,
    )


def token_flops(plan: KvPlan, shape: int) -> int:
    """Operations of a decode step of one cached token in a layer of this shape: attention, and what makes its keys and
    values from what is stored."""
    recomputed = sum(g.layout.read_flops for g in plan.groups if g.shape_index == shape)
    n_q_heads, layer = plan.model.n_q_heads, plan.layers[shape][0]
    of_entry = int(attention.attention_flops_per_token(n_q_heads, layer.score_dim)) + recomputed
    return of_entry // layer.tokens_per_entry + layer.state_flops


def core_rate(
    device: HardwareSpec, stack: StackSpec, group: TensorGroup, path: str, is_measured: bool = False
) -> float:
    """Packed elements per second and core: as fitted, else the device's (assumed) rate; 0 stands for no ceiling, as
    where a fit `is_measured` with elements stored like these."""
    if is_measured:
        return 0.0
    run_by = group.implementation
    if run_by and run_by.elements_per_cycle and path == "fused":
        return run_by.elements_per_cycle.si * implementations.core_clock(device) / group.unpackings
    if fit := packed_fit(stack, group, path):
        return float(fit.core_rate.si) if fit.core_rate else 0.0
    if path not in ("fused", "engine"):
        return float(stack.attention.core_rate.si) if stack.attention and stack.attention.core_rate else 0.0
    return device.rate(path).si / n_cores_of(device)


def packed_fit(stack: StackSpec, group: TensorGroup, path: str) -> PackedFit | None:
    """Return the stack's fit of a fused kernel for keys or values stored like this.

    None where they are not unpacked in the kernel, or an implementation gives the rate. The fit may lack a ceiling.
    """
    if group.implementation and group.implementation.elements_per_cycle:
        return None
    return stack.kv.get(kv_code(group)) if path == "fused" else None  # type: ignore[call-overload]


def kv_code(group: TensorGroup) -> str:
    """Return the storage format by which kernels differ: fp16, fp8, int8, int4 or int2."""
    if not group.layout.needs_dequantizing:
        return "fp16"
    if group.quantizer.family.name in FP8_CODES:
        return "fp8"
    bits = group.layout.packed["payload"] / group.layout.shape.n_elements
    return "int8" if bits > 4 else "int4" if bits > 2 else "int2"


def sparse_code(plan: KvPlan, paths: Mapping[str, str], shape: int) -> str:
    """Return the code of the sparse kernels that read the layers of a shape; "" where they read all tokens.

    A window beside compressed entries is read by their kernels: of several, by those to which it is the most.
    """
    layer = plan.layers[shape][0]
    beside = {spec.sparse_kind for spec, _ in plan.layers} if layer.joined and layer.key_dim else set()
    kind = max(beside, default=layer.sparse_kind)  # "hca" before "csa", which reads more beside
    if not kind:
        return ""
    codes = {kv_code(g) if paths[g.place] == "fused" else "fp16" for g in plan.groups if g.shape_index == shape}
    return kind + ("_fp8" if codes == {"fp8"} else "")


def sparse_place(plan: KvPlan, paths: Mapping[str, str], stack: StackSpec | None, shape: int) -> SparseCode | None:
    """The measured kernels that stand for `sparse_code`: its own, else those of such layers in other bits, so that
    formats are compared over the same kernels; None where neither was measured."""
    code = sparse_code(plan, paths, shape)
    if not code or stack is None or stack.attention is None:
        return None
    others: tuple[SparseCode, ...] = get_args(SparseCode)
    near = sorted(
        (place for place in others if place.removesuffix("_fp8") == code.removesuffix("_fp8")), key=code.__ne__
    )
    return next((place for place in near if place in stack.sparse), None)


def stored_as_measured(
    group: TensorGroup, paths: Mapping[str, str], stack: StackSpec, sparse: str | None, latent: LatentFit | None
) -> bool:
    """True where a fit knows keys and values as they are stored: what unpacks them is part of it."""
    code = kv_code(group)
    if sparse:
        return paths[group.place] == "fused" and code == "fp8" and sparse.endswith("_fp8")
    return paths[group.place] == "fused" and bool(latent) and code in stack.latent


def n_cores_of(device: HardwareSpec) -> int:
    """Cores of a device; 1 where it names none."""
    return device.n_cores.count if device.n_cores else 1


def latent_code(plan: KvPlan, paths: Mapping[str, str], stack: StackSpec | None) -> LatentCode | None:
    """Choose the kernel of latent (MLA) heads by their storage; None for other heads, or if none was measured."""
    if stack is None or stack.attention is None or not plan.model.is_latent:
        return None
    codes = {kv_code(g) if paths[g.place] == "fused" else "fp16" for g in plan.groups}
    candidates: tuple[LatentCode, ...] = ("fp8", "fp16") if codes == {"fp8"} else ("fp16",)
    return next((code for code in candidates if code in stack.latent), None)


def latent_fit(plan: KvPlan, paths: Mapping[str, str], stack: StackSpec | None) -> LatentFit | None:
    """The kernel of latent heads: `latent_code`."""
    code = latent_code(plan, paths, stack)
    return stack.latent[code] if stack and code else None


def product_code(stack: StackSpec, weights: WeightFormat) -> str | None:
    """Choose the measured products: those of the format, else 16-bit ones; None where only `gemm` was fitted.

    Weights and activations of 8 bits that nobody names are FP8's or integers, of which a stack has one.
    """
    integers = ("w8a8",) if weights.dense_code == "fp8" else ()
    return next((code for code in (weights.dense_code, *integers, "bf16") if code in stack.products), None)


def product_start_s(code: str | None, fit: GemmFit) -> float:
    """Return the start of a product: with what quantizes its activations, where that is a kernel of its own."""
    return float(fit.launch.si + (catalog.unmeasured_kernels().block_quantizing.si if code == "fp8_block" else 0.0))


def check_weights(
    device: HardwareSpec, model: ModelSpec, work: Workload, stack: StackSpec | None, stack_name: str | None
) -> None:
    """Raises InputError for a format of weights that a strict workload may not assume: one that the model was not
    released in, and that no measured kernel of the stack runs."""
    form = work.weight_format
    if not work.strict_kernels or not stack or not stack.products or form.name in (model.released, *model.checkpoints):
        return

    def runs(other: WeightFormat) -> bool:
        has_dense = other.dense_code in stack.products
        return has_dense and (model.n_experts == 1 or other.expert_code in stack.experts)

    if not runs(form):
        known = ", ".join(
            name for name, other in FORMATS.items() if runs(other) and (model.n_experts > 1 or OF_EXPERTS not in name)
        )
        raise InputError(
            f"weights = {show(form.name)}: {model.name} was not released in it, and no kernel of {stack_name} on "
            f"{device.name} is known that runs it: use one of {known}, or leave --strict-kernels out"
        )


def expert_code(stack: StackSpec, weights: WeightFormat) -> WeightCode | None:
    """Choose the measured products of routed experts: those of the format, else 16-bit ones, which are grouped too."""
    codes: tuple[Any, ...] = (weights.expert_code, "bf16")
    return next((code for code in codes if code in stack.experts), None)


def has_experts(model: ModelSpec, work: Workload) -> bool:
    """True where routed experts run apart: without a KV cache all products of a step count together."""
    return model.expert_parameters > 0 and work.kv_cache


def prompt_code(plan: KvPlan, paths: Mapping[str, str], stack: StackSpec) -> HeadCode:
    """Choose the prefill attention kernel by the dimension of a head, or as one that reads chosen tokens of a latent,
    where that was measured: by how they are stored, else as in other bits."""
    model, chosen = plan.model, {sparse_code(plan, paths, g.shape_index) for g in plan.groups} & CHOSEN
    if chosen:
        near: tuple[HeadCode, ...] = ("dsa_fp8", "dsa") if chosen == {"dsa_fp8"} else ("dsa", "dsa_fp8")
        if found := next((code for code in near if code in stack.prompt), None):
            return found
    return "d64" if all(layer.key_dim < PROMPT_HEAD_DIM for layer in model.layers if layer.key_dim) else "d128"


def prompt_fit(plan: KvPlan, paths: Mapping[str, str], stack: StackSpec | None) -> PromptFit | None:
    """The kernel of attention over prompts: `prompt_code`; None where none was measured."""
    if stack is None or stack.attention is None:
        return None
    return stack.prompt.get(prompt_code(plan, paths, stack), stack.prompt.get("d128"))


def fits_used(plan: KvPlan, paths: Mapping[str, str], work: Workload, stack: StackSpec | None) -> dict[str, Fit]:
    """The fits of a stack that the times of a design rest on, by place (`StackSpec.fits`).

    `plan` and `paths` as `laid_out` gives them.
    """
    if stack is None:
        return {}
    weights, latent = work.weight_format, latent_code(plan, paths, stack)
    fits, dense = stack.fits(), product_code(stack, weights)
    places = {f"products.{dense}" if dense else "gemm"}
    if has_experts(plan.model, work):
        places.add(f"experts.{expert_code(stack, weights)}")
    if stack.attention:
        sparse = [sparse_place(plan, paths, stack, g.shape_index) for g in plan.groups]
        places |= {f"sparse.{place}" for place in sparse} | {f"prompt.{prompt_code(plan, paths, stack)}"}
        others = [g for g, place in zip(plan.groups, sparse, strict=True) if not place]
        if others or not sparse:
            places.add(f"latent.{latent}" if latent else "attention")
        packed = {kv_code(g) for g in others if paths[g.place] == "fused" and g.layout.needs_dequantizing}
        places |= {f"kv.{code}" for code in packed if not (latent and code in stack.latent)}
        places |= {f"state.{layer.state_code}" for layer in plan.model.layers if layer.state_code}
    if "materialised" in paths.values():
        places.add("materialised")
    return {place: fit for place, fit in fits.items() if place in places}


def product_peaks(device: HardwareSpec, model: ModelSpec, work: Workload, stack: StackSpec | None) -> list[str]:
    """The peak rates of the device that products with weights run at, by the names of their fields."""
    weights = work.weight_format
    if work.weights or (stack and weights.dense_code in stack.products):
        names = [device.format_peak_name(weights.dense_code)]
    else:
        names = ["peak_flops_fp8", "peak_ops_int8"] if work.activation_bits < units.FP16_BITS else ["peak_flops"]
    if stack and has_experts(model, work) and expert_code(stack, weights):
        names.append(device.format_peak_name(weights.expert_code))
    return list(dict.fromkeys(names))


def prompt_host_s(model: ModelSpec, host: HostFit) -> float:
    """Seconds that a prompt waits for beside its kernels."""
    return model.n_layers * (host.prompt.si + (host.experts_prompt.si if model.n_experts > 1 else 0.0))


def kernels_reach(
    device: HardwareSpec,
    plan: KvPlan,
    paths: Mapping[str, str],
    work: Workload,
    stack: StackSpec | None,
    latent: LatentFit | None,
) -> Stack:
    """Return the fitted launch times and achieved rates of a stack, with weights of the workload's format."""
    weights, model = work.weight_format, plan.model
    named = device.format_peak(weights.dense_code).si if work.weights else 0.0
    reach = Stack(
        has_attention=0,
        has_gemm=0,
        has_copies=0,
        n_cores=n_cores_of(device),
        gemm_launch_s=0.0,
        gemm_memory_frac=1.0,
        gemm_flops_frac=1.0,
        at_peak=int(stack is None and device.has_kernels),
        layout_copy_s=0.0,
        memory_frac=1.0,
        copy_launch_s=0.0,
        copy_frac=1.0,
        flops_frac=1.0,
        prompt_flops_frac=1.0,
        dense_peak_per_s=named,
        expert_peak_per_s=named,
        has_experts=0,
        expert_launch_s=0.0,
        expert_memory_frac=1.0,
        expert_flops_frac=1.0,
        host_layer_s=0.0,
        host_sequence_s=0.0,
        host_prompt_s=0.0,
        host_request_s=0.0,
        host_blocks_s=0.0,
        rounds_in_step=1.0,
        token_time=1.0,
    )
    if stack is None:
        return reach if work.model_kind == "ideal" else as_devices_reach(reach)
    if weights.dense_code in stack.products:
        reach = reach._replace(dense_peak_per_s=device.format_peak(weights.dense_code).si)
    product = product_code(stack, weights)
    if gemm := stack.products.get(product, stack.gemm):  # type: ignore[call-overload]
        reach = reach._replace(
            has_gemm=1,
            gemm_launch_s=product_start_s(product, gemm),
            gemm_memory_frac=gemm.memory_frac.si,
            gemm_flops_frac=gemm.flops_frac.si,
        )
    grouped = expert_code(stack, weights) if has_experts(model, work) else None
    experts = stack.experts[grouped] if grouped else None
    if gemm and experts:
        reach = reach._replace(
            has_experts=1,
            expert_launch_s=experts.launch.si,
            expert_memory_frac=experts.memory_frac.si,
            expert_flops_frac=experts.flops_frac.si,
            expert_peak_per_s=device.format_peak(weights.expert_code).si,
        )
    if stack.host:
        reach = reach._replace(
            host_layer_s=stack.host.layer.si,
            host_sequence_s=stack.host.sequence.si,
            host_prompt_s=prompt_host_s(model, stack.host),
            host_request_s=stack.host.request.si if stack.host.request else 0.0,
            rounds_in_step=stack.host.rounds_in_step.si,
        )
    if stack.materialised:
        reach = reach._replace(has_copies=1, copy_launch_s=stack.materialised.launch.si)
    if stack.attention:
        terms = stack.attention_terms()
        frac = terms["memory_frac"]
        reach = reach._replace(
            has_attention=1,
            layout_copy_s=terms["copy_s"],
            memory_frac=frac,
            copy_frac=stack.materialised.memory_frac.si if stack.materialised else frac,
            flops_frac=calibrated.ATTENTION_FLOPS_FRAC,
            prompt_flops_frac=calibrated.ATTENTION_FLOPS_FRAC,
        )
        if prompt := prompt_fit(plan, paths, stack):
            reach = reach._replace(prompt_flops_frac=prompt.flops_frac.si)
    if latent:
        reach = reach._replace(layout_copy_s=0.0, memory_frac=latent.memory_frac.si, flops_frac=latent.flops_frac.si)
    if by_backend(stack):  # shares of the device's own peaks
        return reach
    share = stand_in_share(device, work, stack)
    reach = reach._replace(gemm_flops_frac=reach.gemm_flops_frac * share)
    if public := benchmarked_as(device, model, work, stack):
        reach = as_benchmarked(reach, model, public)
    elif served := served_experts(device, model, work, stack):
        reach = as_served_experts(reach, served)
    if stack.host and is_other_vendor(device):
        time = catalog.unmeasured_kernels().quantities()[other_vendor_number(model, weights)]
        reach = as_other_vendor(reach, float(time.si))
    return at_lower_rate(reach, device)


def as_devices_reach(reach: Stack) -> Stack:
    """Return the rates of a device whose kernels nobody measured: the middle of what measured devices reach."""
    return reach._replace(
        gemm_memory_frac=MIDDLE_BANDWIDTH,
        gemm_flops_frac=MIDDLE_COMPUTE,
        memory_frac=MIDDLE_BANDWIDTH,
        copy_frac=MIDDLE_BANDWIDTH,
        flops_frac=MIDDLE_COMPUTE,
        prompt_flops_frac=MIDDLE_COMPUTE,
    )


def stand_in_share(device: HardwareSpec, work: Workload, stack: StackSpec) -> float:
    """Return the share of the rate of 16-bit products that those reach whose weights are unpacked, in a format that no
    kernel benchmark has; 1 for all others. A core unpacks as fast whatever its products' rate."""
    weights = work.weight_format
    is_unpacked = (
        weights.dense_eighths < 8 * units.FP16_BITS <= 8 * work.activation_bits
        and device.format_peak_name(weights.dense_code) == "peak_flops"
    )
    if not is_unpacked or weights.dense_code in stack.products:
        return 1.0
    share = catalog.unmeasured_kernels().unpacked_share.si
    return min(share / (device.core_products.si if device.core_products else 1.0), 1.0)


def at_lower_rate(reach: Stack, device: HardwareSpec) -> Stack:
    """Return a stack on a chip whose cores have fewer products a clock than those of the chip that the kernels were
    measured on: at half the rate twice the share of it is reached, up to all."""
    if device.core_products is None:
        return reach
    return reach._replace(
        gemm_flops_frac=min(reach.gemm_flops_frac / device.core_products.si, 1.0),
        prompt_flops_frac=min(reach.prompt_flops_frac / device.core_products.si, 1.0),
    )


def benchmarked_as(device: HardwareSpec, model: ModelSpec, work: Workload, stack: StackSpec) -> Benchmarked | None:
    """Return the fit to public benchmarks of the release asked for that holds for a design; None where none does, so
    that a measured release counts."""
    if not isinstance(stack, ServedStack) or not stack.stands_in:
        return None
    weights, is_mixture = work.weight_format, model.n_experts > 1
    benchmark = stack.benchmarked.get("mixture" if is_mixture else "dense")
    code = weights.expert_code if is_mixture else weights.dense_code
    return benchmark if benchmark and benchmark.holds(device.name, code) else None


def as_benchmarked(reach: Stack, model: ModelSpec, public: Benchmarked) -> Stack:
    """Return a stack with the shares of rates and the seconds that public benchmarks of its release say."""
    prompt_s = model.n_layers * public.prompt.si
    return reach._replace(
        gemm_flops_frac=reach.gemm_flops_frac * public.dense_share.si,
        expert_flops_frac=reach.expert_flops_frac * public.experts_share.si,
        prompt_flops_frac=reach.prompt_flops_frac * public.prompt_attention_share.si,
        host_layer_s=public.layer.si,
        host_sequence_s=public.sequence.si,
        host_prompt_s=prompt_s,
        host_blocks_s=prompt_s * public.blocking_share.si,
        rounds_in_step=public.rounds_in_step.si,
    )


def generation_of(device: HardwareSpec) -> str:
    """Return the generation of a device by its architecture: sm_10 for sm_100 and sm_103."""
    return (device.architecture or "")[:-1]


def served_experts(
    device: HardwareSpec, model: ModelSpec, work: Workload, stack: StackSpec | None
) -> ServedExperts | None:
    """Return how long routed experts take in a server, where servers were measured with the format on such devices; of
    a release that public benchmarks say it of, None."""
    if not isinstance(stack, ServedStack) or stack.host is None or benchmarked_as(device, model, work, stack):
        return None
    return stack.served_experts.get(work.weight_format.expert_code, {}).get(generation_of(device))


def as_served_experts(reach: Stack, served: ServedExperts) -> Stack:
    """Return a stack whose routed experts take as long as in a server; they read no faster than the memory."""
    return reach._replace(
        expert_launch_s=reach.expert_launch_s * served.start,
        expert_memory_frac=min(reach.expert_memory_frac / served.time, 1.0),
        expert_flops_frac=min(reach.expert_flops_frac / served.time, 1.0),
    )


def by_backend(stack: StackSpec | None) -> bool:
    """True for a stack whose numbers hold for every device of a kind of kernels."""
    return isinstance(stack, ServedStack) and bool(stack.backend)


def is_other_vendor(device: HardwareSpec) -> bool:
    """True for a device that runs by kernels fitted on a GPU of another vendor."""
    return bool(device.stacks_of) and device.vendor not in ("", "NVIDIA")


def other_vendor_number(model: ModelSpec, weights: WeightFormat) -> str:
    """Name the number of `UnmeasuredKernels` by which another vendor's GPU takes longer: kernels for narrow weights are
    further behind than 16-bit ones."""
    eighths = weights.expert_eighths if model.n_experts > 1 else weights.dense_eighths
    if eighths >= 8 * units.FP16_BITS:
        return "other_vendor_time"
    return "other_vendor_experts_time" if model.n_experts > 1 else "other_vendor_narrow_time"


def as_other_vendor(reach: Stack, time: float) -> Stack:
    """Return a stack that runs kernels of another vendor: starts take longer, rates are reached less."""
    return reach._replace(
        gemm_launch_s=reach.gemm_launch_s * time,
        gemm_memory_frac=reach.gemm_memory_frac / time,
        gemm_flops_frac=reach.gemm_flops_frac / time,
        memory_frac=reach.memory_frac / time,
        flops_frac=reach.flops_frac / time,
        prompt_flops_frac=reach.prompt_flops_frac / time,
        expert_launch_s=reach.expert_launch_s * time,
        expert_memory_frac=reach.expert_memory_frac / time,
        expert_flops_frac=reach.expert_flops_frac / time,
        host_layer_s=reach.host_layer_s * time,
        host_sequence_s=reach.host_sequence_s * time,
    )
