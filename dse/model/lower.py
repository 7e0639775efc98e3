"""From specs to records of numbers: what a device, a model with its quantizers and a workload mean for the formulas."""

import math
from collections.abc import Mapping
from typing import get_args

from dse.core import units
from dse.core.errors import InputError, show
from dse.model import deployed, implementations, memory_unit
from dse.model.formulas import activations, attention, calibrated, linear
from dse.model.kv_layout import KvPlan, TensorGroup, window_of
from dse.model.records import (
    KEYS,
    NO_LIMIT,
    NONE,
    PATHS,
    STATES,
    VALUES,
    Design,
    Device,
    Kernel,
    LanguageModel,
    Layer,
    Load,
    Memory,
    Policy,
    Product,
    Stack,
    Tensor,
)
from dse.specs import catalog, servers
from dse.specs.device_and_model import HardwareSpec, LayerKV, ModelSpec, Quantity
from dse.specs.stack import Fit, GemmFit, HeadCode, HostFit, LatentCode, PackedFit, SparseCode, StackSpec, served
from dse.specs.tokens import TokenPolicy
from dse.specs.weights import WeightFormat
from dse.specs.workload import Workload

#: software stack of a device that has several
DEFAULT_STACK = "vllm"
#: whose stacks a GPU runs by that is known by its data sheet alone, when calibrated is asked for
DEFAULT_STACKS_OF = "h100"
#: in place of a release: kernels alone, as papers and their benchmarks have them
KERNELS = "kernels"
#: heads of at least this dimension run the prompt kernels that were measured for it
PROMPT_HEAD_DIM = 128
#: families whose codes are FP8: kernels read them like those of one scale a tensor
FP8_CODES = frozenset({"fp8", "fp8_per_token_head", "fp8_ds_mla"})
#: kinds of numbers on whose power a bound on time may rest
MEASURED = ("measured", "derived")
#: tokens that a fitted `choice` is named for
CHOICE_TOKENS = 1000
#: every token is stored and read
FULL = Policy(NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0)


def dequant_paths(device: HardwareSpec, plan: KvPlan, work: Workload) -> dict[str, str]:
    """Path of keys and of values: the workload's override, else the device's rule, "none" where nothing is packed.

    Where layers have different quantizers there is a path for each of them, by `TensorGroup.place`. Raises InputError
    for an engine that the device lacks.
    """
    paths: dict[str, str] = {}
    sides = {"key": plan.key_quantizer, "value": plan.value_quantizer}
    places = {g.place: g.quantizer for g in plan.groups} if any(q.layers for q in sides.values()) else sides
    for place, quantizer in places.items():
        own = [g for g in plan.groups if g.place == place]
        packed = any(g.layout.needs_unpacking for g in own)
        path: str = implementations.path_of(device, quantizer, own[0].implementation if own else None, work)
        if packed and path == "engine" and device.engine_rate is None:
            raise InputError(
                f"dequant-path = engine: {device.name} has no engine (engine_rate): use fused or materialised"
            )
        paths[place] = path if packed else "none"
    return paths


def path_text(paths: Mapping[str, str], which: str) -> str:
    """The path of keys or of values; several where layers have different quantizers with different paths."""
    own = (path for place, path in paths.items() if place.partition(" ")[0] == which)
    return ", ".join(dict.fromkeys(own)) or "none"


def laid_out(device: HardwareSpec, plan: KvPlan, work: Workload) -> tuple[KvPlan, dict[str, str]]:
    """The plan in the pages of this device, and its dequantisation paths.

    Raises InputError where nothing is stored but something would have to be packed.
    """
    plan = implementations.implemented(device, deployed.on_one_device(plan, work), work, stack_of(device, work)[0])
    paths = dequant_paths(device, plan, work)
    if not work.kv_cache and any(g.layout.needs_unpacking for g in plan.groups):
        raise InputError(f"quantizer = {plan.quantizer_name}: without a KV cache nothing is stored: use fp16")
    if not work.kv_cache and work.token_policy.name != "full":
        raise InputError(f"tokens = {work.token_policy.name}: without a KV cache nothing is stored: use full")
    if not work.kv_cache and plan.model.read_limit_tokens:
        raise InputError(
            f"kv-cache = False: {plan.model.name} chooses what it reads by an index in the cache: leave it out"
        )
    return memory_unit.attach(device, plan, paths), paths


def check_traffic(work: Workload) -> None:
    """Requests of mixed lengths share no prefix, and a policy cannot know their prompts here. Raises InputError."""
    for name, value, only in (
        ("prefix", work.prefix_tokens, 0),
        ("tokens", work.token_policy.name, "full"),
        ("kv-cache", work.kv_cache, True),
    ):
        if value != only:
            raise InputError(f"{name} = {show(value)}: traffic is modelled with {show(only)} only: leave it out")
    if work.pp > 1 and work.pp_batches != 1:
        raise InputError(f"pp = {work.pp}: traffic is modelled with one batch in the pipeline: add --pp-batches 1")


def stack_of(device: HardwareSpec, work: Workload) -> tuple[str | None, StackSpec | None]:
    """The software stack whose calibrated parameters are used, vllm by default; none for the ideal model.

    What was not measured of it on the device is that of the device's other stacks, and of a release that was not
    measured that of the stack in general. `KERNELS` in place of a release leaves a server's own time out. Raises
    InputError for a stack that nobody measured.
    """
    if work.model_kind == "ideal" or (work.model_kind == "auto" and not device.stacks and not work.stack):
        return None, None
    if not device.stacks and device.n_cores is None:
        raise InputError(
            f"model-kind = calibrated: {device.name} has no calibrated parameters: use ideal, or `dse calibrate`"
        )
    stacks = device.stacks or catalog.device(DEFAULT_STACKS_OF).stacks
    asked, _, release = (work.stack or "").partition("@")
    name = asked or (DEFAULT_STACK if DEFAULT_STACK in stacks else next(iter(stacks)))
    servers = catalog.servers()
    known = dict.fromkeys([*(name for name, own in stacks.items() if own.attention or own.gemm), *servers])
    if name not in known:
        raise InputError(f"stack = {show(name)}: {device.name} is calibrated for {', '.join(known)}")
    order = {other: stacks[other] for other in dict.fromkeys([name, DEFAULT_STACK, *stacks]) if other in stacks}
    if release == KERNELS:
        if name not in stacks or not (stacks[name].attention or stacks[name].gemm):
            kernels = ", ".join(f"{name}@{KERNELS}" for name, own in stacks.items() if own.attention or own.gemm)
            raise InputError(f"stack = {show(work.stack)}: {device.name} has no such kernels: use {kernels}")
        return name, served(name, order, None, "")
    return name, served(name, order, servers.get(name), release)


def stack_text(stack_name: str | None, work: Workload) -> str | None:
    """The stack as results have it: its name, with the release that was asked for."""
    _, at, release = (work.stack or "").partition("@")
    return stack_name + at + release if stack_name and release else stack_name


def design_of(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    paths: Mapping[str, str],
    stack: StackSpec | None,
    stack_name: str | None = None,
) -> Design:
    """The design of a plan as `laid_out` on the device. Raises InputError for 8-bit products that it lacks."""
    if device.product_peak(work.activation_bits) is None:
        raise InputError(
            f"activation-bits = {work.activation_bits}: {device.name} has no 8-bit rate: use 16, or add "
            "peak_ops_int8 or peak_flops_fp8 to its file"
        )
    policy = policy_of(work.token_policy)
    latent = latent_fit(plan, paths, stack)
    kernels, core_s, rates = kernels_of(device, plan, paths, stack, latent)
    tensors = tuple(
        tensor_of(g, plan, paths, policy, packed_core_s, rate)
        for g, packed_core_s, rate in zip(plan.groups, core_s, rates, strict=True)
    ) + states_of(plan)
    layers = layers_of(plan, policy)
    products = tuple(product for _, product in weights_by_operation(plan.model, work, stack))
    exchanges = tuple(exchange for _, exchange, _ in deployed.exchanges(device, plan.model, work, stack_name))
    return Design(
        tensors,
        layers,
        kernels,
        products,
        exchanges,
        model_of(plan, work, stack),
        policy,
        kernels_reach(device, plan, work, stack, latent),
        device_of(device),
        load_of(work),
        memory_of(device, plan, work, stack_name),
        deployed.deployment_of(work),
        work.input_tokens,
        work.output_tokens,
    )


def token_flops(plan: KvPlan, shape: int) -> int:
    """Operations of a decode step of one cached token in a layer of this shape: attention, and what makes its keys and
    values from what is stored."""
    recomputed = sum(g.layout.read_flops for g in plan.groups if g.shape_index == shape)
    n_q_heads, layer = plan.model.n_q_heads, plan.layers[shape][0]
    of_entry = int(attention.attention_flops_per_token(n_q_heads, layer.score_dim)) + recomputed
    return of_entry // layer.tokens_per_entry + layer.state_flops


def layers_of(plan: KvPlan, policy: Policy = FULL) -> tuple[Layer, ...]:
    """What attention computes, equal layers together."""
    counts: dict[tuple[int, int, int, int, int], int] = {}
    n_q_heads = plan.model.n_q_heads
    for shape, (layer, n_layers) in enumerate(plan.layers):
        window, limit = window_of(layer), read_limit_of(layer, policy)
        pair_flops = token_flops(plan, shape)
        of_prompt = attention.attention_flops_per_token(n_q_heads, layer.prompt_score_dim or layer.score_dim)
        of_prompt = of_prompt // layer.tokens_per_entry + layer.state_flops
        score_flops = index_of(layer, policy)[1] if window > limit else 0
        same = window, limit, pair_flops, of_prompt, score_flops
        counts[same] = counts.get(same, 0) + n_layers
    return tuple(Layer(n_layers, *same) for same, n_layers in counts.items())


def policy_of(policy: TokenPolicy) -> Policy:
    """The numbers of a token policy, before the prompt is known."""
    return FULL._replace(**dict(policy.numbers))


def read_limit_of(layer: LayerKV, policy: Policy) -> int:
    """Tokens that a step reads of a layer at most: `sparse` takes the place of the model's own index."""
    if policy.read_limit_tokens != NO_LIMIT or layer.state_bytes:
        return NO_LIMIT if layer.state_bytes else policy.read_limit_tokens
    return layer.read_limit_tokens or NO_LIMIT


def index_of(layer: LayerKV, policy: Policy) -> tuple[int, int]:
    """Bits of a token's index in a layer, and operations that score it: those of the policy, else the layer's own."""
    return (policy.index_bits or layer.index_bits), (policy.index_flops or layer.index_flops)


def tensor_of(
    g: TensorGroup, plan: KvPlan, paths: Mapping[str, str], policy: Policy, packed_core_s: float, unpack_rate: float
) -> Tensor:
    """A group of equal tensors as numbers."""
    side = VALUES if g.which == "value" else KEYS
    path = PATHS[paths[g.place]] if g.layout.needs_unpacking else NONE
    limit = read_limit_of(plan.layers[g.shape_index][0], policy)
    indexed = int(side == KEYS and g.window_tokens > limit)
    (read, pack), code = own_kernels(g, side), implementations.starts_of(g)
    dense, sparse = (*g.streams, 0, 0)[:2]
    bits, flops = index_of(plan.layers[g.shape_index][0], policy)
    index = bits * plan.den * indexed
    return Tensor(
        side,
        g.shape_index,
        g.n_stored_layers,
        g.n_read_layers,
        g.n_elements,
        g.window_tokens,
        limit,
        g.packed_bits,
        g.full_bits,
        g.once_bits,
        g.pool_bits,
        g.step_tokens,
        g.residual_tokens,
        int(g.layout.needs_unpacking),
        path,
        read,
        pack,
        int(code.copies_to_append),
        code.tile_tokens,
        dense,
        sparse,
        g.page_row_bits,
        g.tail_bits + index,
        index,
        flops * indexed,
        float(g.layout.pool_rows),
        packed_core_s,
        unpack_rate,
    )


def states_of(plan: KvPlan) -> tuple[Tensor, ...]:
    """Constant states as tensors of one token each, which every step reads and writes; but for what only waits there
    (`LayerKV.state_flops` of 0)."""
    return tuple(
        Tensor(
            STATES,
            shape,
            n_layers,
            2 * n_layers * bool(layer.state_flops),
            0,
            1,
            NO_LIMIT,
            0,
            0,
            units.BITS_PER_BYTE * layer.state_bytes * plan.den,
            0,
            1,
            0,
            0,
            NONE,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            0,
            0,
            0.0,
            0.0,
            0.0,
        )
        for shape, (layer, n_layers) in enumerate(plan.layers)
        if layer.state_bytes
    )


def unread_parameters(model: ModelSpec, stack: StackSpec | None) -> int:
    """Parameters of the table of input embeddings, of which a step looks up a row a token; papers count it as read, and
    so do times without a server's own (`host`)."""
    return model.embedding_parameters if stack and stack.host else 0


def matrix_products(model: ModelSpec, stack: StackSpec | None) -> int:
    """Matrix products that a pass starts, beside those of routed experts that were measured apart."""
    if stack is None or not stack.host:
        return int(linear.matrix_products(model.n_layers))
    return int(linear.served_products(model.n_layers, model.is_latent, model.n_experts > 1))


def model_of(plan: KvPlan, work: Workload, stack: StackSpec | None) -> LanguageModel:
    """The model as a whole, with the denominator of its plan."""
    model = plan.model
    experts = model.expert_parameters * model.n_active_experts / model.n_experts
    burst_bits = sum(g.n_stored_layers * g.written_bits for g in plan.groups if g.burst_row_bits)
    return LanguageModel(
        plan.den,
        model.n_q_heads,
        model.dense_parameters,
        model.expert_parameters,
        model.n_experts,
        model.n_active_experts,
        model.activation_elements,
        min(model.activation_elements, 2 * model.hidden_size + model.vocab_size),
        model.n_layers,
        matrix_products(model, stack),
        unread_parameters(model, stack),
        deployed.n_groups_of(work) * (1.0 + work.expert_skew) * experts,
        burst_bits,
        deployed.active_parameters(model, work),
    )


def kernels_of(
    device: HardwareSpec, plan: KvPlan, paths: Mapping[str, str], stack: StackSpec | None, latent: GemmFit | None
) -> tuple[tuple[Kernel, ...], list[float], list[float]]:
    """Attention kernels by layer shape; by tensor, seconds of a core for a packed element, and what is unpacked a
    second where the cores do it. All zeros without measured kernels."""
    nothing = [0.0] * len(plan.groups)
    if stack is None or stack.attention is None:
        return (), nothing, nothing
    terms = stack.attention_terms()
    n_cores, q_heads = n_cores_of(device), plan.model.n_q_heads
    places = [sparse_place(plan, paths, stack, shape) for shape in range(len(plan.layers))]
    sparse = [stack.sparse[place] if place else None for place in places]
    measured = [fit or latent for fit in sparse]
    plain_rates = [0.0 if fit else terms["core_rate_per_s"] for fit in measured]
    plain_of = [1 / rate if rate else 0.0 for rate in plain_rates]
    core_rates = [
        core_rate(device, stack, g, paths[g.place], stored_as_measured(g, paths, stack, places[g.shape_index], latent))
        if g.layout.needs_unpacking
        else plain_rates[g.shape_index]
        for g in plan.groups
    ]
    core_s = [
        max(1 / each, plain_of[g.shape_index]) if each else plain_of[g.shape_index]
        for g, each in zip(plan.groups, core_rates, strict=True)
    ]
    rates = [
        each * n_cores if g.layout.needs_unpacking and paths[g.place] in ("fused", "engine") else 0.0
        for g, each in zip(plan.groups, core_rates, strict=True)
    ]
    kernels = []
    for shape, (layer, n_layers) in enumerate(plan.layers):
        fitted, chosen, plain_s = measured[shape], sparse[shape], plain_of[shape]
        own = [(g, s) for g, s in zip(plan.groups, core_s, strict=True) if g.shape_index == shape]
        fits = [packed_fit(stack, g, paths[g.place]) for g, _ in own]
        runs = [g.implementation for g, _ in own if g.implementation and paths[g.place] == "fused"]
        launches = [one.launch.si for one in runs if one.launch]
        launch_s = fitted.launch.si if fitted else max([terms["launch_s"], *(fit.launch.si for fit in fits if fit)])
        shares = [one.memory_frac.si for one in runs if one.memory_frac]
        if layer.state_bytes:
            kernels.append(_state_kernel(stack, layer, n_layers, token_flops(plan, shape)))
            continue
        if layer.joined:  # of a kernel that has started already
            launches, launch_s = [], 0.0
        io_bytes = calibrated.attention_io_bytes(1, q_heads, layer.score_dim)
        index_frac = chosen.index_frac.si if chosen and chosen.index_frac else 1.0 if chosen else 0.0
        kernels.append(
            Kernel(
                n_layers,
                layer.n_kv_heads,
                0 if chosen and layer.joined else io_bytes,
                token_flops(plan, shape),
                int(q_heads > layer.n_kv_heads and not layer.joined and not chosen),
                int(any((plain_s, *(s for _, s in own)))),
                max(launches, default=launch_s),
                min(shares, default=fitted.memory_frac.si if fitted else terms["memory_frac"]),
                min((implementations.cores_per_unit(g) for g, _ in own if paths[g.place] == "fused"), default=0.0),
                fitted.flops_frac.si if fitted else calibrated.ATTENTION_FLOPS_FRAC,
                0.0 if fitted else terms["split_s"],
                0.0 if fitted else terms["unit_s"],
                plain_s,
                index_frac,
                chosen.choice.si / CHOICE_TOKENS if chosen and chosen.choice and not layer.joined else 0.0,
            )
        )
    return tuple(kernels), core_s, rates


def _state_kernel(stack: StackSpec, layer: LayerKV, n_layers: int, token_flops: int) -> Kernel:
    """The kernels that update a layer's state: as measured, else what attention's start and reach."""
    fit = stack.state.get(layer.state_code) if layer.state_code else None
    terms = stack.attention_terms()
    launch_s, share = (fit.launch.si, fit.memory_frac.si) if fit else (terms["launch_s"], terms["memory_frac"])
    return Kernel(
        n_layers * bool(layer.state_flops),
        0,
        layer.state_bytes,
        token_flops,
        0,
        0,
        launch_s,
        share,
        0.0,
        calibrated.ATTENTION_FLOPS_FRAC,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    )


def sparse_code(plan: KvPlan, paths: Mapping[str, str], shape: int) -> str:
    """Which kernels read the layers of a shape that keep or read less than all tokens, by how these are stored; ""
    where they read all.

    A window beside compressed entries is read by their kernels: of several, by those to which it is the most.
    """
    layer = plan.layers[shape][0]
    beside = {one.sparse_kind for one, _ in plan.layers} if layer.joined and layer.key_dim else set()
    kind = max(beside, default=layer.sparse_kind)  # "hca" before "csa", which reads more beside
    codes = {kv_code(g) if paths[g.place] == "fused" else "fp16" for g in plan.groups if g.shape_index == shape}
    return kind and kind + ("_fp8" if codes == {"fp8"} else "")


def sparse_place(plan: KvPlan, paths: Mapping[str, str], stack: StackSpec | None, shape: int) -> SparseCode | None:
    """The measured kernels that stand for `sparse_code`: its own, else those of such layers in other bits, so that
    formats are compared over the same kernels; None where neither was measured."""
    code = sparse_code(plan, paths, shape)
    if not code or stack is None or stack.attention is None:
        return None
    others: tuple[SparseCode, ...] = get_args(SparseCode)
    near = sorted((one for one in others if one.removesuffix("_fp8") == code.removesuffix("_fp8")), key=code.__ne__)
    return next((one for one in near if one in stack.sparse), None)


def stored_as_measured(
    group: TensorGroup, paths: Mapping[str, str], stack: StackSpec, sparse: str | None, latent: GemmFit | None
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
    """Which kernel of latent (MLA) heads runs, by how they are stored; None for other heads, or where none was
    measured."""
    if stack is None or stack.attention is None or not plan.model.is_latent:
        return None
    codes = {kv_code(g) if paths[g.place] == "fused" else "fp16" for g in plan.groups}
    own: tuple[LatentCode, ...] = ("fp8", "fp16") if codes == {"fp8"} else ("fp16",)
    return next((code for code in own if code in stack.latent), None)


def latent_fit(plan: KvPlan, paths: Mapping[str, str], stack: StackSpec | None) -> GemmFit | None:
    """The kernel of latent heads: `latent_code`."""
    code = latent_code(plan, paths, stack)
    return stack.latent[code] if stack and code else None


def product_code(stack: StackSpec, weights: WeightFormat) -> str | None:
    """Which measured products run: those of the format, else 16-bit ones; None where only `gemm` was fitted."""
    return next((code for code in (weights.dense_code, "bf16") if code in stack.products), None)


def has_experts(model: ModelSpec, work: Workload) -> bool:
    """True where routed experts run apart: without a KV cache all products of a step count together."""
    return model.expert_parameters > 0 and work.kv_cache


def prompt_code(model: ModelSpec) -> HeadCode:
    """Which attention over prompts runs, by the dimension of a head."""
    return "d64" if all(layer.key_dim < PROMPT_HEAD_DIM for layer in model.layers if layer.key_dim) else "d128"


def fits_used(plan: KvPlan, paths: Mapping[str, str], work: Workload, stack: StackSpec | None) -> dict[str, Fit]:
    """The fits of a stack that the times of a design rest on, by place (`StackSpec.fits`).

    `plan` and `paths` as `laid_out` gives them.
    """
    if stack is None:
        return {}
    weights, latent = work.weight_format, latent_code(plan, paths, stack)
    found, dense = stack.fits(), product_code(stack, weights)
    places = {f"products.{dense}" if dense else "gemm"}
    if has_experts(plan.model, work):
        places.add(f"experts.{weights.expert_code}")
    if stack.attention:
        sparse = [sparse_place(plan, paths, stack, g.shape_index) for g in plan.groups]
        places |= {f"sparse.{place}" for place in sparse} | {f"prompt.{prompt_code(plan.model)}"}
        others = [g for g, place in zip(plan.groups, sparse, strict=True) if not place]
        if others or not sparse:
            places.add(f"latent.{latent}" if latent else "attention")
        packed = {kv_code(g) for g in others if paths[g.place] == "fused" and g.layout.needs_unpacking}
        places |= {f"kv.{code}" for code in packed if not (latent and code in stack.latent)}
        places |= {f"state.{layer.state_code}" for layer in plan.model.layers if layer.state_code}
    if "materialised" in paths.values():
        places.add("materialised")
    return {place: fit for place, fit in found.items() if place in places}


def product_peaks(device: HardwareSpec, model: ModelSpec, work: Workload, stack: StackSpec | None) -> list[str]:
    """The peak rates of the device that products with weights run at, by the names of their fields."""
    weights = work.weight_format
    if work.weights or (stack and weights.dense_code in stack.products):
        found = [device.format_peak_name(weights.dense_code)]
    else:
        found = ["peak_flops_fp8", "peak_ops_int8"] if work.activation_bits < units.FP16_BITS else ["peak_flops"]
    if stack and has_experts(model, work) and weights.expert_code in stack.experts:
        found.append(device.format_peak_name(weights.expert_code))
    return list(dict.fromkeys(found))


def prompt_host_s(model: ModelSpec, host: HostFit) -> float:
    """Seconds that a prompt waits for beside its kernels."""
    return model.n_layers * (host.prompt.si + (host.experts_prompt.si if model.n_experts > 1 else 0.0))


def kernels_reach(
    device: HardwareSpec, plan: KvPlan, work: Workload, stack: StackSpec | None, latent: GemmFit | None
) -> Stack:
    """What the kernels of a stack reach with weights of the workload's format."""
    weights, model = work.weight_format, plan.model
    named = device.format_peak(weights.dense_code).si if work.weights else 0.0
    found = Stack(
        0,
        0,
        0,
        n_cores_of(device),
        0.0,
        1.0,
        1.0,
        0.0,
        1.0,
        0.0,
        1.0,
        1.0,
        1.0,
        named,
        named,
        0,
        0.0,
        1.0,
        1.0,
        0.0,
        0.0,
        0.0,
        1.0,
    )
    if stack is None:
        return found
    if weights.dense_code in stack.products:
        found = found._replace(dense_peak_per_s=device.format_peak(weights.dense_code).si)
    if gemm := stack.products.get(product_code(stack, weights), stack.gemm):  # type: ignore[call-overload]
        found = found._replace(
            has_gemm=1,
            gemm_launch_s=gemm.launch.si,
            gemm_memory_frac=gemm.memory_frac.si,
            gemm_flops_frac=gemm.flops_frac.si,
        )
    experts = stack.experts.get(weights.expert_code) if has_experts(model, work) else None  # type: ignore[call-overload]
    if gemm and experts:
        found = found._replace(
            has_experts=1,
            expert_launch_s=experts.launch.si,
            expert_memory_frac=experts.memory_frac.si,
            expert_flops_frac=experts.flops_frac.si,
            expert_peak_per_s=device.format_peak(weights.expert_code).si,
        )
    if stack.host:
        found = found._replace(
            host_layer_s=stack.host.layer.si,
            host_sequence_s=stack.host.sequence.si,
            host_prompt_s=prompt_host_s(model, stack.host),
            rounds_in_step=stack.host.rounds_in_step.si,
        )
    if stack.materialised:
        found = found._replace(has_copies=1, copy_launch_s=stack.materialised.launch.si)
    if stack.attention:
        terms = stack.attention_terms()
        frac = terms["memory_frac"]
        found = found._replace(
            has_attention=1,
            layout_copy_s=terms["copy_s"],
            memory_frac=frac,
            copy_frac=stack.materialised.memory_frac.si if stack.materialised else frac,
            flops_frac=calibrated.ATTENTION_FLOPS_FRAC,
            prompt_flops_frac=calibrated.ATTENTION_FLOPS_FRAC,
        )
        if prompt := stack.prompt.get(prompt_code(model)):
            found = found._replace(prompt_flops_frac=prompt.flops_frac.si)
    if latent:
        found = found._replace(layout_copy_s=0.0, memory_frac=latent.memory_frac.si, flops_frac=latent.flops_frac.si)
    return found


def _rate(quantity: Quantity | None) -> tuple[float, float]:
    return (quantity.value, float(units.UNITS[quantity.unit][1])) if quantity else (0.0, 1.0)


def device_of(device: HardwareSpec) -> Device:
    """A device as numbers; nan where it names no power or price. Energy by parts needs all of its rates.

    Bytes without an energy of their own take that of more bits. The board's limit bounds power only where its energy
    was measured: what is assumed decides no time.
    """
    parts = (device.energy_per_byte, device.energy_per_flop, device.idle_power)
    by_parts = [part.si if part and all(parts) else math.nan for part in parts]
    wide = by_parts[0]
    fp8 = device.energy_per_byte_fp8.si if device.energy_per_byte_fp8 else wide
    fp4 = device.energy_per_byte_fp4.si if device.energy_per_byte_fp4 else fp8
    kv = device.energy_per_kv_byte.si if device.energy_per_kv_byte else wide
    packed = device.energy_per_kv_byte_fp8 or device.energy_per_kv_byte
    narrow = [one.si if one else 0.0 for one in (device.energy_per_flop_fp8, device.energy_per_flop_fp4)]
    is_measured = all(part and part.kind in MEASURED for part in parts)
    limit_w = device.board_power.si if device.board_power and is_measured else 0.0
    return Device(
        device.capacity_bytes,
        device.reported_bytes,
        device.runtime_overhead.count,
        device.token_cores.count if device.token_cores else 0,
        device.usable_frac.si,
        device.memory_bandwidth.si,
        device.kv_bandwidth.si,
        *_rate(device.peak_flops),
        *_rate(device.peak_flops_fp8),
        *_rate(device.peak_ops_int8),
        device.rate("engine").si,
        device.rate("fused").si,
        device.kernel_launch.si,
        device.board_power.si if device.board_power else math.nan,
        device.usd_per_hour.si if device.usd_per_hour else math.nan,
        by_parts[0],
        by_parts[1],
        by_parts[2],
        fp8,
        fp4,
        kv,
        packed.si if packed else fp8,
        narrow[0],
        narrow[1],
        limit_w,
    )


def load_of(work: Workload) -> Load:
    """What a workload asks, but for batch and lengths."""
    paged, discount = work.admission == "paged", work.cached_input_discount
    return Load(
        int(paged),
        work.page_tokens if paged else 1,
        work.prefix_tokens,
        work.weight_format.dense_eighths,
        work.weight_format.expert_eighths,
        work.activation_bits,
        work.prompt_chunk_tokens,
        work.rounds,
        work.max_num_seqs or NO_LIMIT,
        int(work.kv_cache),
        math.nan if discount is None else discount,
    )


def memory_counted(device: HardwareSpec, work: Workload) -> str:
    """How memory is counted, "server" or "paper": as asked, else as a server does where the device has one.

    Raises InputError for a server that there is not.
    """
    if work.memory == "server" and device.reported_memory is None:
        raise InputError(
            f"memory = server: {device.name} has no driver that reports its memory: use paper, or add reported_memory "
            "to its file"
        )
    if work.memory == "server" and not work.kv_cache:
        raise InputError("memory = server: a server keeps a KV cache: use paper, or keep the cache")
    return work.memory or ("server" if device.reported_memory and work.kv_cache else "paper")


def prompt_budget(work: Workload, server: servers.Server) -> int:
    """Tokens of the largest batch of prompt tokens."""
    return server.prompt_budget.count if work.prompt_budget_tokens is None else work.prompt_budget_tokens


def memory_of(device: HardwareSpec, plan: KvPlan, work: Workload, stack_name: str | None) -> Memory:
    """What a server of the stack holds beside weights and keys and values; nothing as papers count."""
    if memory_counted(device, work) == "paper":
        return Memory(0, 1.0, 1.0, 0, 0, 0, 0, work.page_tokens)
    server, model, share = servers.of(stack_name), plan.model, float(work.gpu_memory_utilization)
    elements = model.activation_elements if model.layer_elements is None else model.layer_elements
    prompt_bytes = activations.prompt_bytes(
        prompt_budget(work, server),
        elements,
        server.sequences.count,
        (plan.whole or plan).model.vocab_size,
        server.logit.count,
    )
    graph_bytes, of_all = server.graphs.count, server.rule != servers.LEFT
    return Memory(
        1,
        share if of_all else 1.0,
        1.0 if of_all else share,
        prompt_bytes,
        graph_bytes,
        server.buffer_bytes(work.n_devices),
        prompt_bytes + graph_bytes if server.rule == servers.STATIC else 0,
        work.page_tokens,
    )


def weights_by_operation(model: ModelSpec, work: Workload, stack: StackSpec | None = None) -> list[tuple[str, Product]]:
    """The products with the weights of a device by name. What is neither QKV, output projection nor head counts with
    the feed-forward: norms, and the table of input embeddings, which the model takes to be read and multiplied like
    the others.

    Latent attention (MLA) has projections of other shapes: there all layers are one operation.
    """
    n_layers, n_groups, skew = model.n_layers, deployed.n_groups_of(work), 1.0 + work.expert_skew

    def product(name: str, dense: int, experts: int, n_products: int, own: int = 0) -> tuple[str, Product]:
        """Of which `own` parameters meet the tokens of the device's own requests alone."""
        met = experts * model.n_active_experts / model.n_experts
        active = own + n_groups * (dense - own) + n_groups * skew * met
        return name, Product(float(active), float(dense), float(experts), n_products)

    n_head, attention = model.vocab_size * model.hidden_size, model.attention_parameters or 0
    unread, n_products = unread_parameters(model, stack), matrix_products(model, stack)
    rest, experts = model.dense_parameters - n_head - unread, model.expert_parameters
    head = product("head", n_head, 0, 1)
    if rest < 0:
        return [product("layers", model.dense_parameters - unread, experts, n_products, attention)]
    whole = [product("layers", rest, experts, n_products - 1, attention), head]
    if not all(layer.value_dim and layer.tokens_per_entry == 1 and not layer.joined for layer in model.layers):
        return whole
    q_heads, hidden = model.n_q_heads, model.hidden_size
    qkv = sum(
        layer.n_layers * hidden * (q_heads * layer.key_dim + layer.n_kv_heads * (layer.key_dim + layer.value_dim))
        for layer in model.layers
    )
    out = sum(layer.n_layers * hidden * q_heads * layer.value_dim for layer in model.layers)
    if rest < qkv + out:
        return whole
    return [
        product("qkv", qkv, 0, n_layers, qkv),
        product("output_projection", out, 0, n_layers, out),
        product(
            "feed_forward", rest - qkv - out, experts, n_products - 1 - 2 * n_layers, max(attention - qkv - out, 0)
        ),
        head,
    ]


def own_kernels(g: TensorGroup, side: int) -> tuple[int, int]:
    """Extra kernels per layer for a decode step and for a packing event; more where sinks are kept."""
    code = implementations.starts_of(g)
    if not g.layout.pool_rows:
        return code.read[side], code.pack[side]
    return code.read[side] + code.pool_read[side], code.pack[side] + code.pool_pack[side]


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
    """What was fitted to the kernel tables of a stack for keys or values stored like this, where a kernel unpacks them
    and no implementation says more; it may know no ceiling."""
    if group.implementation and group.implementation.elements_per_cycle:
        return None
    return stack.kv.get(kv_code(group)) if path == "fused" else None  # type: ignore[call-overload]


def kv_code(group: TensorGroup) -> str:
    """How keys or values are stored, as far as kernels differ: fp16, fp8, int8, int4 or int2."""
    if not group.layout.needs_unpacking:
        return "fp16"
    if group.quantizer.family.name in FP8_CODES:
        return "fp8"
    bits = group.layout.packed["payload"] / group.layout.shape.n_elements
    return "int8" if bits > 4 else "int4" if bits > 2 else "int2"
