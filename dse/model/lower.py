"""From specs to records of numbers: what a device, a model with its quantizers and a workload mean for the formulas."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import replace

from dse.core import units
from dse.core.errors import InputError, show
from dse.model import deployed, implementations, memory_unit, pool, stacks
from dse.model.formulas import activations, attention, linear, tokens, weights
from dse.model.formulas.deployment import stage_bytes
from dse.model.kernels import Unpacking, kernels_of, kernels_reach, latent_fit, product_peaks, prompt_fit, token_flops
from dse.model.kv_layout import KvPlan, TensorGroup, chunk_of, window_of
from dse.model.records import (
    CHUNKED,
    CONTINUOUS,
    KEYS,
    NO_LIMIT,
    NONE,
    PATHS,
    STATES,
    STATIC,
    VALUES,
    Design,
    Device,
    LanguageModel,
    Layer,
    Load,
    Memory,
    Policy,
    Product,
    Tensor,
)
from dse.specs import deployment, drafts, measured_memory, servers, sglang_memory
from dse.specs import tokens as token_policies
from dse.specs.device_and_model import HardwareSpec, LayerKV, ModelSpec
from dse.specs.stack import PromptFit, StackSpec
from dse.specs.tokens import TokenPolicy
from dse.specs.weights import NOTHING, WeightFormat
from dse.specs.workload import MAX_BATCH, Workload

#: kinds of numbers on whose power a bound on time may rest
MEASURED = ("measured", "derived")
#: vLLM before 0.8 works on whole prompts up to this length, and by chunks where the longest context is longer
WHOLE_PROMPTS, CHUNK_TOKENS = 32_768, 2048
#: tokens of a step with prompts where no server's budget counts: vLLM's default for long (max_num_batched_tokens)
PAPER_STEP_TOKENS = 2048
#: bits that a parameter of a checkpoint may have, fewest and most
WEIGHT_BITS = (1, 32)
BATCHINGS = {"static": STATIC, "continuous": CONTINUOUS, "chunked": CHUNKED}
#: every token is stored and read
FULL = Policy(
    window_tokens=NO_LIMIT,
    read_limit_tokens=NO_LIMIT,
    prompt_window_tokens=NO_LIMIT,
    prompt_kept_tokens=NO_LIMIT,
    dropped_tokens=0,
    evicts=0,
    budget_tokens=0,
    heavy=0,
    of_heavy=1,
    recent=0,
    of_recent=1,
    rolls=0,
    index_bits=0,
    index_flops=0,
)


def dequant_paths(device: HardwareSpec, plan: KvPlan, work: Workload) -> dict[str, str]:
    """Path of keys and of values: the workload's override, else the device's rule, "none" where nothing is packed.

    Where layers have different quantizers there is a path for each of them, by `TensorGroup.place`. Raises InputError
    for an engine that the device lacks.
    """
    paths: dict[str, str] = {}
    sides = {"key": plan.key_quantizer, "value": plan.value_quantizer}
    places = {g.place: g.quantizer for g in plan.groups} if any(q.layers for q in sides.values()) else sides
    for place, quantizer in places.items():
        groups = [g for g in plan.groups if g.place == place]
        packed = any(g.layout.needs_dequantizing for g in groups)
        path: str = implementations.path_of(device, quantizer, groups[0].implementation if groups else None, work)
        if packed and path == "engine" and device.engine_rate is None and not device.is_own_chip:
            raise InputError(
                f"dequant-path = engine: {device.name} has no engine (engine_rate): use fused or materialised"
            )
        paths[place] = path if packed else "none"
    return paths


def path_text(paths: Mapping[str, str], which: str) -> str:
    """The path of keys or of values; several where layers have different quantizers with different paths."""
    used = (path for place, path in paths.items() if place.partition(" ")[0] == which)
    return ", ".join(dict.fromkeys(used)) or "none"


def laid_out(device: HardwareSpec, plan: KvPlan, work: Workload) -> tuple[KvPlan, dict[str, str]]:
    """The plan in the pages of this device, and its dequantization paths.

    Raises InputError where nothing is stored but something would have to be packed.
    """
    plan = implementations.implemented(
        device, deployed.on_one_device(plan, work), work, stacks.stack_of(device, work)[0]
    )
    paths = dequant_paths(device, plan, work)
    if not work.kv_cache and any(g.layout.needs_dequantizing for g in plan.groups):
        raise InputError(f"quantizer = {plan.quantizer_name}: without a KV cache nothing is stored: use fp16")
    if not work.kv_cache and work.token_policy.name != "full":
        raise InputError(f"tokens = {work.token_policy.name}: without a KV cache nothing is stored: use full")
    if not work.kv_cache and plan.model.read_limit_tokens:
        raise InputError(
            f"kv-cache = False: {plan.model.name} chooses what it reads by an index in the cache: leave it out"
        )
    check_samples(device, plan, work)
    if work.kv_offload and device.host_link is None:
        raise InputError(
            f"kv-offload = {work.kv_offload:g}: {device.name} has no host_link: add to its file what PCIe gives in one "
            "direction, such as 64 GB/s"
        )
    return memory_unit.attach(device, plan, paths), paths


def check_samples(device: HardwareSpec, plan: KvPlan, work: Workload) -> None:
    """Raises InputError where the answers of one prompt cannot share the blocks of its keys and values."""
    if work.samples == 1:
        return
    asked = f"samples = {work.samples}"
    if with_admission(device, work).admission == "reserve":
        raise InputError(
            f"{asked}: where each answer reserves its memory (admission = reserve) it has a prompt of its own: use "
            "--admission paged"
        )
    policy = policy_of(work.token_policy)
    if policy.evicts or policy.window_tokens < NO_LIMIT:
        raise InputError(
            f"{asked}: {work.token_policy.name} gives up tokens of the prompt, each answer's own: use --tokens full, "
            "or 1"
        )
    apart = next((g for g in plan.groups if g.step_tokens > 1 or g.residual_tokens or g.pool_bits), None)
    if apart is not None:
        raise InputError(
            f"{asked}: {apart.quantizer.name} packs groups of tokens and keeps others of each sequence in 16 bits, in "
            "no block that answers could share: use a format of single tokens, such as fp8 or int4, or 1"
        )
    if not any(g.n_stored_layers and g.window_tokens >= NO_LIMIT for g in plan.groups):
        raise InputError(
            f"{asked}: {plan.model.name} keeps states or windows of the last tokens, which every answer changes: none "
            "is shared: use a model with full attention, or 1"
        )


def check_traffic(work: Workload) -> None:
    """Requests of mixed lengths share no prefix, and a policy cannot know their prompts here. Raises InputError."""
    for name, value, only in (
        ("prefix", work.prefix_tokens, 0),
        ("samples", work.samples, 1),
        ("kv-offload", work.kv_offload, 0.0),
        ("tokens", work.token_policy.name, "full"),
        ("kv-cache", work.kv_cache, True),
    ):
        if value != only:
            raise InputError(f"{name} = {show(value)}: traffic is modelled with {show(only)} only: leave it out")
    if work.pp > 1 and work.pp_batches != 1:
        raise InputError(f"pp = {work.pp}: traffic is modelled with one batch in the pipeline: add --pp-batches 1")


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
    policy = policy_in(work.token_policy, plan)
    latent = latent_fit(plan, paths, stack)
    kernels, unpackings = kernels_of(device, plan, paths, stack, latent)
    tensors = tuple(
        tensor_of(g, plan, paths, policy, unpacking) for g, unpacking in zip(plan.groups, unpackings, strict=True)
    ) + states_of(plan)
    layers = layers_of(plan, policy, prompt_fit(plan, paths, stack))
    products = tuple(product for _, product in weights_by_operation(plan.model, work, stack, as_served(device, stack)))
    exchanges = tuple(exchange for _, exchange, _ in deployed.exchanges(device, plan.model, work, stack_name))
    return Design(
        tensors=tensors,
        layers=layers,
        kernels=kernels,
        products=products,
        exchanges=exchanges,
        model=model_of(plan, work, stack, as_served(device, stack)),
        policy=policy,
        stack=kernels_reach(device, plan, paths, work, stack, latent),
        device=device_of(device),
        load=load_of(
            work,
            most_at_once(device, work, stack_name),
            product_bits(device, plan.model, work, stack),
            BATCHINGS[batching_of(device, work, stack_name)],
            step_tokens_of(device, work, stack_name),
        ),
        memory=memory_of(device, plan, work, stack_name),
        deployment=deployed.deployment_of(plan.model, work),
        input_tokens=work.input_tokens,
        output_tokens=work.output_tokens,
    )


def in_settings(design: Design, device: HardwareSpec, plan: KvPlan, work: Workload, stack_name: str | None) -> Design:
    """The design of a plan as `laid_out` in other settings of its server (`SETTINGS`)."""
    load = load_of(
        work,
        most_at_once(device, work, stack_name),
        design.load.product_bits,
        design.load.batching,
        step_tokens_of(device, work, stack_name),
    )
    return design._replace(load=load, memory=memory_of(device, plan, work, stack_name))


def layers_of(plan: KvPlan, policy: Policy = FULL, prompt: PromptFit | None = None) -> tuple[Layer, ...]:
    """Collect the operations of attention, equal layers together; over prompts as their kernel, `prompt`, has them."""
    counts: dict[Layer, int] = {}
    n_q_heads = plan.model.n_q_heads
    for shape, (layer, n_layers) in enumerate(plan.layers):
        window, limit = window_of(layer), read_limit_of(layer, policy)
        pair_flops = token_flops(plan, shape)
        of_prompt = attention.attention_flops_per_token(n_q_heads, layer.prompt_score_dim or layer.score_dim)
        of_prompt = of_prompt // layer.tokens_per_entry + layer.state_flops
        of_prompt_token = 0
        if prompt and prompt.head_rows > 1 and layer.is_latent and layer.read_limit_tokens == limit:
            # in the space of the latent, where heads that are filled up to rows count, and tokens that there are not
            n_heads = -(-n_q_heads // int(prompt.head_rows)) * int(prompt.head_rows)
            of_latent = attention.attention_flops_per_token(n_heads, layer.score_dim)
            of_prompt = round((1 - prompt.always_read) * of_latent)
            of_prompt_token = round(prompt.always_read * of_latent * limit)
        score_flops = index_of(layer, policy, plan)[1] if window > limit else 0
        same = Layer(
            n_layers=0,
            window_tokens=window,
            chunk_tokens=chunk_of(layer),
            read_limit_tokens=limit,
            pair_flops=pair_flops,
            prompt_pair_flops=of_prompt,
            prompt_token_flops=of_prompt_token,
            index_flops=score_flops,
        )
        counts[same] = counts.get(same, 0) + n_layers
    return tuple(layer._replace(n_layers=n_layers) for layer, n_layers in counts.items())


def policy_of(policy: TokenPolicy) -> Policy:
    """The numbers of a token policy, before the prompt is known."""
    return FULL._replace(**dict(policy.numbers))


def policy_in(policy: TokenPolicy, plan: KvPlan) -> Policy:
    """The numbers of a token policy in a plan: a trained state is worth as many tokens as take its bytes.

    Raises InputError where a layer has no keys and values of heads that a state could take the place of.
    """
    if not policy.trained:
        return policy_of(policy)
    state_bits = token_bits = 0
    for shape, (layer, n_layers) in enumerate(plan.layers):
        groups = [g for g in plan.groups if g.shape_index == shape]
        if not layer.value_dim or layer.window or layer.tokens_per_entry > 1:
            raise InputError(
                f"tokens = {policy.name}: {plan.model.name} has layers that do not attend in full with keys and values "
                "of heads: give the state's size, constant:c=N tokens"
            )
        if groups[0].n_stored_layers:
            of_layer = tokens.trained_bits(plan.model.n_q_heads, layer.value_dim, policy.trained)
            state_bits += n_layers * plan.den * of_layer
            token_bits += sum(g.n_stored_layers * g.packed_bits for g in groups)
    return policy_of(token_policies.parse(f"constant:c={tokens.worth_tokens(state_bits, token_bits)}"))


def read_limit_of(layer: LayerKV, policy: Policy) -> int:
    """Tokens that a step reads of a layer at most: `sparse` takes the place of the model's own index."""
    if policy.read_limit_tokens != NO_LIMIT or layer.state_bytes:
        return NO_LIMIT if layer.state_bytes else policy.read_limit_tokens
    return layer.read_limit_tokens or NO_LIMIT


def index_of(layer: LayerKV, policy: Policy, plan: KvPlan) -> tuple[int, int]:
    """Bits of a token's index in a layer, over the plan's denominator, and operations that score it: those of the
    policy, else the layer's own. Devices that share the tokens score as many each."""
    bits, flops = (policy.index_bits or layer.index_bits), (policy.index_flops or layer.index_flops)
    return bits * (plan.den // plan.token_shards), -(-flops // plan.token_shards)


def tensor_of(g: TensorGroup, plan: KvPlan, paths: Mapping[str, str], policy: Policy, unpacking: Unpacking) -> Tensor:
    """A group of equal tensors as numbers."""
    side = VALUES if g.which == "value" else KEYS
    path = PATHS[paths[g.place]] if g.layout.needs_dequantizing else NONE
    limit = read_limit_of(plan.layers[g.shape_index][0], policy)
    indexed = int(side == KEYS and g.window_tokens > limit)
    (read, pack), code = own_kernels(g, side), implementations.starts_of(g)
    dense, sparse = (*g.streams, 0, 0)[:2]
    bits, flops = index_of(plan.layers[g.shape_index][0], policy, plan)
    index = bits * indexed
    return Tensor(
        side=side,
        shape=g.shape_index,
        n_stored_layers=g.n_stored_layers,
        n_read_layers=g.n_read_layers,
        n_elements=g.n_elements,
        window_tokens=g.window_tokens,
        chunk_tokens=chunk_of(plan.layers[g.shape_index][0]),
        read_limit_tokens=limit,
        packed_bits=g.packed_bits,
        full_bits=g.full_bits,
        once_bits=g.once_bits,
        pool_bits=g.pool_bits,
        step_tokens=g.step_tokens,
        residual_tokens=g.residual_tokens,
        is_packed=int(g.layout.needs_dequantizing),
        path=path,
        read_launches=read,
        pack_launches=pack,
        copies_to_append=int(code.copies_to_append),
        copies_window=int(code.copies_window),
        tile_tokens=code.tile_tokens,
        dense_stream_bits=dense,
        sparse_stream_bits=sparse,
        page_row_bits=g.page_row_bits,
        tail_bits=g.tail_bits + index,
        index_bits=index,
        index_flops=flops * indexed,
        pool_rows=float(g.layout.pool_rows),
        sink_s=implementations.sink_s(g),
        packed_core_s=unpacking.core_s,
        unpack_rate_per_s=unpacking.rate_per_s,
    )


def states_of(plan: KvPlan) -> tuple[Tensor, ...]:
    """Constant states as tensors of one token each, which every step reads and writes; but for what only waits there
    (`LayerKV.state_flops` of 0)."""
    return tuple(
        Tensor(
            side=STATES,
            shape=shape,
            n_stored_layers=n_layers,
            n_read_layers=2 * n_layers * bool(layer.state_flops),
            n_elements=0,
            window_tokens=1,
            chunk_tokens=NO_LIMIT,
            read_limit_tokens=NO_LIMIT,
            packed_bits=0,
            full_bits=0,
            once_bits=units.BITS_PER_BYTE * layer.state_bytes * plan.den,
            pool_bits=0,
            step_tokens=1,
            residual_tokens=0,
            is_packed=0,
            path=NONE,
            read_launches=0,
            pack_launches=0,
            copies_to_append=0,
            copies_window=0,
            tile_tokens=1,
            dense_stream_bits=0,
            sparse_stream_bits=0,
            page_row_bits=0,
            tail_bits=0,
            index_bits=0,
            index_flops=0,
            pool_rows=0.0,
            sink_s=0.0,
            packed_core_s=0.0,
            unpack_rate_per_s=0.0,
        )
        for shape, (layer, n_layers) in enumerate(plan.layers)
        if layer.state_bytes
    )


def as_served(device: HardwareSpec, stack: StackSpec | None) -> bool:
    """Whether the tables of the vocabulary count as servers use them: a step looks up a row of input embeddings a
    token, and a prompt's last token alone meets the output head.

    Papers count both whole, and so do devices whose kernels nobody measured.
    """
    return bool(stack.host) if stack else device.has_kernels


def unread_parameters(model: ModelSpec, is_served: bool) -> int:
    """Parameters of the table of input embeddings, where a step does not read it whole."""
    return model.embedding_parameters if is_served else 0


def head_parameters(model: ModelSpec, is_served: bool) -> int:
    """Parameters of the output head, where prompts are multiplied with it for their last token alone; 0 where that is
    for every token, and where it is not told from the layers."""
    n_head = model.vocab_size * model.hidden_size
    is_apart = n_head + unread_parameters(model, is_served) <= model.dense_parameters
    return n_head if is_served and is_apart else 0


def matrix_products(model: ModelSpec, stack: StackSpec | None) -> int:
    """Matrix products that a pass starts, beside those of routed experts that were measured apart."""
    if stack is None or not stack.host:
        return int(linear.matrix_products(model.n_layers))
    return int(linear.served_products(model.n_layers, model.is_latent, model.n_experts > 1))


def model_of(plan: KvPlan, work: Workload, stack: StackSpec | None, is_served: bool) -> LanguageModel:
    """The model as a whole, with the denominator of its plan."""
    model = plan.model
    experts = model.expert_parameters * model.n_active_experts / model.n_experts
    burst_bits = sum(g.n_stored_layers * g.written_bits for g in plan.groups if g.burst_row_bits)
    own_parameters = (model.attention_parameters or 0) if deployed.n_groups_of(work) > 1 else 0
    return LanguageModel(
        den=plan.den,
        n_q_heads=model.n_q_heads,
        queries_per_head=min((g.n_queries for g in plan.groups), default=1),
        dense_parameters=model.dense_parameters,
        kept_parameters=model.kept_parameters(work.weight_format),
        expert_parameters=model.stored_expert_parameters(work.weight_format, work.tp // work.ep),
        n_experts=model.n_experts,
        n_active_experts=model.n_active_experts,
        activation_elements=model.activation_elements,
        logits_elements=min(model.activation_elements, 2 * model.hidden_size + model.vocab_size),
        n_layers=model.n_layers,
        n_products=matrix_products(model, stack),
        unread_parameters=unread_parameters(model, is_served),
        active_expert_parameters=deployed.n_groups_of(work) * (1.0 + work.expert_skew) * experts,
        burst_bits=burst_bits,
        active_parameters=deployed.active_parameters(model, work),
        own_parameters=own_parameters,
        own_kept_parameters=model.kept_attention(work.weight_format) if own_parameters else 0,
        head_parameters=float(deployed.n_groups_of(work) * head_parameters(model, is_served)),
    )


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
    narrow = [number.si if number else 0.0 for number in (device.energy_per_flop_fp8, device.energy_per_flop_fp4)]
    is_measured = all(part and part.kind in MEASURED for part in parts)
    limit_w = device.board_power.si if device.board_power and is_measured else 0.0
    flops, flops_fp8, ops_int8 = device.peak_flops, device.peak_flops_fp8, device.peak_ops_int8
    return Device(
        capacity_bytes=device.capacity_bytes,
        reported_bytes=device.reported_bytes,
        overhead_bytes=device.runtime_overhead.count,
        token_cores=device.token_cores.count if device.token_cores else 0,
        array_rows=device.array_rows.count if device.array_rows else 0,
        usable_frac=device.usable_frac.si,
        bandwidth_bytes_per_s=device.memory_bandwidth.si,
        host_bytes_per_s=device.host_link.si if device.host_link else 0.0,
        kv_bandwidth_bytes_per_s=device.kv_bandwidth.si,
        peak_flops=flops.value,
        peak_flops_unit=float(units.UNITS[flops.unit][1]),
        peak_flops_fp8=flops_fp8.value if flops_fp8 else 0.0,
        peak_flops_fp8_unit=float(units.UNITS[flops_fp8.unit][1]) if flops_fp8 else 1.0,
        peak_ops_int8=ops_int8.value if ops_int8 else 0.0,
        peak_ops_int8_unit=float(units.UNITS[ops_int8.unit][1]) if ops_int8 else 1.0,
        engine_rate_per_s=device.rate("engine").si,
        quantize_rate_per_s=device.rate("quantize").si,
        fused_rate_per_s=device.rate("fused").si,
        kernel_launch_s=device.kernel_launch.si,
        board_power_w=device.board_power.si if device.board_power else math.nan,
        usd_per_hour=device.usd_per_hour.si if device.usd_per_hour else math.nan,
        energy_per_byte=by_parts[0],
        energy_per_flop=by_parts[1],
        idle_power_w=by_parts[2],
        energy_per_byte_fp8=fp8,
        energy_per_byte_fp4=fp4,
        energy_per_kv_byte=kv,
        energy_per_kv_byte_fp8=packed.si if packed else fp8,
        energy_per_flop_fp8=narrow[0],
        energy_per_flop_fp4=narrow[1],
        power_limit_w=limit_w,
    )


def most_at_once(device: HardwareSpec, work: Workload, stack_name: str | None) -> int:
    """Requests that the server runs at once: as given, or its own default; MAX_BATCH where none runs."""
    if work.max_num_seqs:
        return work.max_num_seqs
    if not runs_server(device, work):
        return MAX_BATCH
    server = servers.of(stack_name, device, work.stack)
    return (server.running or server.sequences).count


def runs_server(device: HardwareSpec, work: Workload) -> bool:
    """True where a server's defaults hold: on GPUs (devices that count cores) with a KV cache, but where memory is to
    be counted as papers do, or a stack lays out no pool."""
    has_pool = servers.cache_copies(work.stack) == 1
    return bool(device.n_cores) and work.kv_cache and work.memory != "paper" and has_pool


def with_admission(device: HardwareSpec, work: Workload) -> Workload:
    """The workload with its KV allocation: as given, else paged where a server runs."""
    if work.admission is not None:
        return work
    return replace(work, admission="paged" if runs_server(device, work) else "reserve")


def product_bits(device: HardwareSpec, model: ModelSpec, work: Workload, stack: StackSpec | None) -> int:
    """Bits of the narrowest products with weights, by the name of the peak rate that they run at."""
    name = product_peaks(device, model, work, stack)[-1]
    return {"peak_flops_fp4": 4, "peak_flops_fp8": 8, "peak_ops_int8": 8}.get(name, units.FP16_BITS)


def batching_of(device: HardwareSpec, work: Workload, stack_name: str | None) -> str:
    """The schedule of prompts: as given, else as the server's release does; a static batch as papers have it.

    Raises InputError for a server without a KV cache.
    """
    if not work.kv_cache:
        if work.batching not in (None, "static"):
            raise InputError(f"batching = {work.batching}: without a KV cache a batch is static: leave it out")
        return "static"
    if work.batching is not None:
        return work.batching
    if memory_counted(device, work) == "paper":
        return "static"
    return servers.batching(stack_name, work.stack)


def step_tokens_of(device: HardwareSpec, work: Workload, stack_name: str | None) -> int:
    """Most tokens of a step that computes prompts: as given, else the server's budget."""
    if memory_counted(device, work) == "paper":
        return work.prompt_budget_tokens or PAPER_STEP_TOKENS
    logged = measured_memory.of(work.calibrated)
    server = measured_memory.server_of(logged, device, work, stack_name)
    return prompt_budget(work, server) - draft_slots(work, drafting(work, server))


def load_of(
    work: Workload, most: int, narrowest_bits: int, batching: int = STATIC, step_tokens: int = PAPER_STEP_TOKENS
) -> Load:
    """Lower a workload, but for batch and lengths, to numbers; `most` requests run at once where no batch is given."""
    paged, discount = work.admission == "paged", work.cached_input_discount
    return Load(
        is_paged=int(paged),
        page_tokens=work.block_tokens if paged else 1,
        prefix_tokens=work.prefix_tokens,
        samples=work.samples,
        offloaded_permille=round(1000 * work.kv_offload),
        dense_eighths=work.weight_format.dense_eighths,
        expert_eighths=work.weight_format.expert_eighths,
        activation_bits=work.activation_bits,
        product_bits=narrowest_bits,
        chunk_tokens=work.prompt_chunk_tokens if servers.cache_copies(work.stack) == 1 else NO_LIMIT,
        rounds=work.rounds or NO_LIMIT,
        batching=batching,
        step_tokens=step_tokens,
        max_num_seqs=work.max_num_seqs or NO_LIMIT,
        most_at_once=most,
        has_cache=int(work.kv_cache),
        cached_input_discount=math.nan if discount is None else discount,
    )


def memory_counted(device: HardwareSpec, work: Workload) -> str:
    """Choose how memory is counted, "server" or "paper": the workload's choice, else a server's if the device has one.

    Raises InputError for "server" on a device without one.
    """
    if work.memory == "server" and device.reported_memory is None:
        raise InputError(
            f"memory = server: {device.name} has no driver that reports its memory: use paper, or add reported_memory "
            "to its file"
        )
    has_pool = servers.cache_copies(work.stack) == 1
    if work.memory == "server" and not has_pool:
        raise InputError(f"memory = server: {work.stack} lays out no pool: use paper, or leave --memory out")
    if work.memory == "server" and not work.kv_cache:
        raise InputError("memory = server: a server keeps a KV cache: use paper, or keep the cache")
    return work.memory or ("server" if device.reported_memory and work.kv_cache and has_pool else "paper")


def prompt_budget(work: Workload, server: servers.Server) -> int:
    """Tokens of prompts that are worked on together: as given, the server's, or the longest context where it works on
    a prompt whole."""
    if work.prompt_budget_tokens is not None:
        return work.prompt_budget_tokens
    if server.prompt_budget:
        return server.prompt_budget.count
    return work.longest_tokens if work.longest_tokens <= WHOLE_PROMPTS else CHUNK_TOKENS


def memory_share(device: HardwareSpec, work: Workload, server: servers.Server, has_images: bool = False) -> float:
    """Share of the memory that a server may use: as given, else as its release sets it."""
    if work.gpu_memory_utilization is not None:
        return float(work.gpu_memory_utilization)
    if server.rule == servers.STATIC and device.reported_memory:
        return sglang_memory.share(device.reported_memory.count, prompt_budget(work, server), work, has_images)
    return float(server.utilization.si)


def share_of_free_memory(device: HardwareSpec, work: Workload, server: servers.Server, share: float) -> float:
    """Share of the whole memory where some of it was taken before the server started.

    vLLM refuses to start (InputError) where less is free than it may use; others take their share of what is free.
    """
    free, reported = work.free_memory_bytes, device.reported_bytes
    if free is None or work.kv_cache_memory_bytes is not None:
        return share
    if free > reported:
        raise InputError(
            f"free-memory = {free / units.GIB:.2f} GiB: {device.name} has {reported / units.GIB:.2f} GiB: give less"
        )
    if server.rule == servers.WHOLE:
        if free < share * reported:
            raise InputError(
                f"free-memory = {free / units.GIB:.2f} GiB: the server wants {share:g} of {reported / units.GIB:.2f} "
                f"GiB and does not start: use --gpu-memory-utilization {math.floor(100 * free / reported) / 100:g}"
            )
        return share
    return share * free / reported


def beside_bytes(plan: KvPlan, work: Workload) -> int:
    """Bytes that a server counts with the weights of a device, beside those of the language model."""
    if work.weights_size_bytes:
        given = given_weight_bytes(plan.whole_model, work) - own_bytes(plan.model, work)
        return given + draft_bytes(plan, work) - host_bytes(plan.model, work)
    model, n_layers = plan.model, plan.whole_model.n_layers
    tower = (model.tower_parameters or 0) if work.tower else 0
    # one table for both ends is held by both, but counted once among the parameters
    table, head = model.embedding_parameters, model.vocab_size * model.hidden_size
    fullest = deployment.end_parameters(n_layers, work.pp, table or head, head)
    n_bytes = weights.beside_bytes(tower, model.latent_copy_parameters, model.rotary_elements or 0, work.pp)
    n_bytes += stage_bytes(model.wide_expert_bytes(work.weight_format), work.pp)
    n_bytes += stage_bytes(group_copy_bytes(plan, work), work.pp)
    n_bytes += weights.end_stage_bytes(fullest, table + head, work.pp)
    return int(n_bytes) + draft_bytes(plan, work) - host_bytes(model, work)


def drafting(work: Workload, server: servers.Server) -> int:
    """Requests of a step that drafting takes places for: as many as the server takes."""
    return slots_of(work, server) if server.has_slots else work.max_num_seqs or server.sequences.count


def draft_slots(work: Workload, n_sequences: int) -> int:
    """Tokens of a step that drafting takes of the server's budget."""
    return work.draft.slots * n_sequences if work.draft else 0


def _check_drafts(work: Workload, budget: int, n_sequences: int) -> None:
    """Raises InputError where drafting leaves no token of the budget to schedule."""
    if work.draft and (slots := draft_slots(work, n_sequences)) >= budget:
        fitting = (budget - 1) // work.draft.slots
        few = f"--max-num-seqs {fitting}, or " if fitting else ""
        raise InputError(
            f"speculative-config: drafting takes {slots:,} of max_num_batched_tokens = {budget:,}, "
            f"{work.draft.slots} for each of {n_sequences:,} requests, and leaves none: the server does not start: use "
            f"{few}--max-num-batched-tokens {slots + budget}"
        )


def draft_bytes(plan: KvPlan, work: Workload) -> int:
    """Bytes of the weights on a device of what drafts."""
    target = plan.whole_model
    model = deployed.draft_of(target, work)
    if model is None or work.draft is None:
        return 0
    form = drafts.format_of(work.draft, model if work.draft.method == drafts.MODEL else target, work.weight_format)
    return stored_bytes(model, form, work.tp) + int(weights.beside_bytes(0, model.latent_copy_parameters, 0, 1))


def host_bytes(model: ModelSpec, work: Workload) -> int:
    """Bytes of a device's weights that lie in host memory: as many as asked for, and whole layers or their experts.

    llama.cpp keeps the last layers on the device (-ngl), the output with them where there is room for one more, and the
    input embeddings never; experts of the first layers stay where --n-cpu-moe says so.
    """
    form, n_layers, own = work.weight_format, model.n_layers, own_bytes(model, work)
    n_away = deployed.host_layers(model, work)
    head, table = model.vocab_size * model.hidden_size, model.embedding_parameters
    experts = int(stage_bytes(stored_bytes(model.model_copy(update={"dense_parameters": 0}), form, work.tp), work.pp))
    ends = (head + table) * form.dense_eighths // 64 if form.keeps == NOTHING else 2 * (head + table)
    layers = own - experts - ends
    away = experts * min(max(n_away, work.cpu_moe_layers), n_layers) + layers * n_away
    at_ends = 0
    if work.gpu_layers is not None:
        at_ends = ends * (table + head * (work.gpu_layers <= n_layers)) // (head + table)
    return min(round(work.cpu_offload_gib * units.GIB) + away // n_layers + at_ends, own)


def group_copy_bytes(plan: KvPlan, work: Workload) -> int:
    """Bytes of what devices that attend to requests of their own have whole, beyond attention."""
    form, model = work.weight_format, plan.whole_model
    n_parameters, kept = deployment.group_copies(model, plan.model, work)
    return int(weights.stored_weight_bytes(n_parameters, kept, 0, form.dense_eighths, form.expert_eighths))


def given_weight_bytes(model: ModelSpec, work: Workload) -> int:
    """Bytes of weights on a device where those of the whole model are said. Raises InputError for what none can be."""
    size, parameters = work.weights_size_bytes or 0, model.parameters + (model.tower_parameters or 0)
    least, most = (parameters * bits // units.BITS_PER_BYTE for bits in WEIGHT_BITS)
    if not least <= size <= most:
        low, high = (f"{bound / units.GIB:,.4g}" for bound in (least, most))
        raise InputError(
            f"weights-size = {size / units.GIB:,.4g} GiB: of {model.name}'s {parameters / 1e9:,.4g} G parameters: give "
            f"all bytes on all devices together, {low} to {high} GiB (1 to 32 bits each)"
        )
    return -(-size // work.n_devices)


def own_bytes(model: ModelSpec, work: Workload) -> int:
    """Bytes of the weights of a language model on a device, without what a server counts with them."""
    return int(stage_bytes(stored_bytes(model, work.weight_format, work.tp // work.ep), work.pp))


def stored_bytes(model: ModelSpec, form: WeightFormat, n_slices: int) -> int:
    """Bytes of the weights of a model, or a device's part, in a format; each expert is cut into `n_slices`."""
    experts = model.stored_expert_parameters(form, n_slices)
    return int(
        weights.stored_weight_bytes(
            model.dense_parameters, model.kept_parameters(form), experts, form.dense_eighths, form.expert_eighths
        )
    )


def _paper_memory(plan: KvPlan, work: Workload, stack_name: str | None) -> Memory:
    """Nothing reserved, as papers count memory. Raises InputError for a memory that a log measured."""
    if measured_memory.of(work.calibrated):
        raise InputError(
            f"calibrated = {show(work.calibrated)}: memory is counted as papers count it: use --memory server"
        )
    return Memory(
        is_server=0,
        asked_share=1.0,
        share=1.0,
        share_of_free=1.0,
        prompt_bytes=0,
        graph_bytes=0,
        buffer_bytes=0,
        outside_bytes=0,
        beside_bytes=beside_bytes(plan, work) if work.weights_size_bytes else -host_bytes(plan.model, work),
        given_bytes=0,
        most_bytes=0,
        block_tokens=work.block_tokens,
        longest_tokens=0,
        budget_tokens=0,
        lookahead_tokens=0,
        lookahead_bits=0,
        cache_copies=servers.cache_copies(stack_name) if work.kv_cache else 1,
        **pool.ALIKE._asdict(),
    )


def _prompt_bytes(plan: KvPlan, work: Workload, server: servers.Server, budget_tokens: int, n_sequences: int) -> int:
    """Bytes of activations of the largest batch of prompt tokens, or image, with the logits of `n_sequences`."""
    model = plan.model
    elements = model.activation_elements if model.layer_elements is None else model.layer_elements
    kept = server.hidden_copies.count * model.hidden_size
    if model.expert_width:
        width = -(-model.expert_width * work.ep // work.tp)
        kept += activations.expert_elements(model.n_active_experts, width, model.hidden_size)
    image_bytes = activations.image_bytes(
        (model.image_elements or 0) * work.tower, server.tower_copies.si, server.split_tower_copies.si, work.tp
    )
    vocab_size = plan.whole_model.vocab_size
    return activations.prompt_bytes(
        budget_tokens, elements, n_sequences, vocab_size, server.logit.count, kept, image_bytes
    )


def memory_of(device: HardwareSpec, plan: KvPlan, work: Workload, stack_name: str | None) -> Memory:
    """Return the memory that a server reserves beside weights and KV; none where it is counted as papers do.

    Raises InputError for the memory of a log that was measured otherwise.
    """
    if memory_counted(device, work) == "paper":
        return _paper_memory(plan, work, stack_name)
    logged = measured_memory.fitting(work, device, plan.whole_model, stack_name)
    if logged and logged.gpu_memory_utilization and work.gpu_memory_utilization is None:
        work = dataclasses.replace(work, gpu_memory_utilization=logged.gpu_memory_utilization)
    server, model = measured_memory.server_of(logged, device, work, stack_name), plan.model
    has_images = work.tower and bool(plan.whole_model.tower_parameters)
    asked_share, budget = memory_share(device, work, server, has_images), prompt_budget(work, server)
    share = share_of_free_memory(device, work, server, asked_share)
    n_sequences, of_all = work.max_num_seqs or server.sequences.count, server.rule != servers.LEFT
    prompt_bytes = _prompt_bytes(plan, work, server, budget, n_sequences)
    n_drafted = work.draft.lookahead_tokens if work.draft else 0
    _check_drafts(work, budget, drafting(work, server))
    graph_bytes = server.graph_bytes(-(-model.n_layers // work.pp), n_sequences, work.cuda_graph_max_bs)
    graph_bytes *= work.cuda_graphs
    if logged:
        prompt_bytes, graph_bytes = logged.activation_bytes, logged.graph_bytes
    server, kept_bytes, most_of_states = _states_of(plan, work, server)
    context = 0 if logged else round((1 - asked_share) * server.context.count)
    outside = prompt_bytes + graph_bytes + context
    blocks, most_bytes = _pool_of(plan, work, server, budget, n_drafted)
    blocks = blocks._replace(most_of_states=most_of_states)
    return Memory(
        is_server=1,
        asked_share=asked_share,
        share=share if of_all else share / asked_share,
        share_of_free=1.0 if of_all else asked_share,
        prompt_bytes=prompt_bytes,
        graph_bytes=graph_bytes,
        buffer_bytes=kept_bytes + (logged.buffer_bytes if logged else server.buffer_bytes(work.tp)),
        outside_bytes=outside if server.rule == servers.STATIC else 0,
        beside_bytes=beside_bytes(plan, work) if logged is None else logged.weight_bytes - own_bytes(model, work),
        given_bytes=work.kv_cache_memory_bytes or (logged.given_bytes if logged and logged.given_bytes else 0),
        most_bytes=most_bytes,
        block_tokens=work.block_tokens,
        longest_tokens=work.max_model_len or 0,
        budget_tokens=budget,
        lookahead_tokens=n_drafted,
        lookahead_bits=n_drafted * sum(g.n_stored_layers * g.packed_bits for g in plan.groups),
        cache_copies=1,
        **blocks._asdict(),
    )


def _pool_of(
    plan: KvPlan, work: Workload, server: servers.Server, budget: int, n_drafted: int
) -> tuple[pool.PoolBlocks, int]:
    """The blocks of a server's pool, and its bytes at most (0: as many as memory holds).

    Raises InputError for limits that the server does not have.
    """
    ratio, limit = work.swa_full_tokens_ratio, work.max_total_tokens
    for name, n in (("n-gpu-layers", work.gpu_layers), ("n-cpu-moe", work.cpu_moe_layers or None)):
        if n is not None and not server.has_slots:
            raise InputError(f"{name} = {n:,}: is an option of llama.cpp: leave it out, or add --stack llama.cpp")
    if server.printing != servers.TOKENS:
        for name, value in (("max-total-tokens", limit), ("swa-full-tokens-ratio", ratio)):
            if value is not None:
                raise InputError(
                    f"{name} = {value:g}: is an option of SGLang and llama.cpp: leave it out, or add --stack sglang"
                )
    if not server.has_slots:
        share = ratio or float(server.window_share.si)
        blocks = pool.blocks_of(plan, server, work.block_tokens, share, n_drafted)
        return blocks, pool.bytes_of(plan, blocks, limit, work) if limit else 0
    if ratio not in (None, 1):
        raise InputError(
            f"swa-full-tokens-ratio = {ratio:g}: llama.cpp keeps windows, or with 1 (--swa-full) whole contexts"
        )
    n_slots = slots_of(work, server)
    blocks = pool.of_slots(
        plan,
        budget,
        n_slots,
        is_unified=work.max_num_seqs is None,
        whole_windows=ratio is not None,
        n_held=n_slots if work.max_num_seqs or limit else 1,
    )
    return blocks, pool.slots_bytes(plan, blocks, limit, work) if limit else 0


def slots_of(work: Workload, server: servers.Server) -> int:
    """Slots of llama.cpp: as many as asked for (-np), else those of its default, which share all cells."""
    return work.max_num_seqs or (server.running.count if server.running else 1)


def _states_of(plan: KvPlan, work: Workload, server: servers.Server) -> tuple[servers.Server, int, int]:
    """The server with the states that a request takes and the share of memory for them; where a number of states is set
    aside in place of a share, their bytes, and the requests that find places among them (else 0, 0). SGLang sets aside
    as many as are asked for, and without a prefix cache one for each of `max_num_seqs` (0.5.23,
    KVCacheConfigurator._handle_max_mamba_cache).

    Raises InputError for a server, or model, that sets nothing aside for states.
    """
    asked = {"max-mamba-cache-size": work.state_slots, "mamba-full-memory-ratio": work.state_share}
    n_bytes = sum(n * layer.state_bytes for layer, n in plan.layers)
    sets_aside = server.printing == servers.TOKENS and not server.has_slots and n_bytes
    for name, value in asked.items():
        if value is not None and not sets_aside:
            where = "this server keeps states with keys and values" if n_bytes else f"{plan.model.name} has no states"
            raise InputError(f"{name} = {value:g}: {where}: leave it out{', or use --stack sglang' if n_bytes else ''}")
    n_slots = work.state_slots
    if work.prefix_cache == "off":
        server, n_slots = server.without_prefixes(), n_slots or work.max_num_seqs
    if not sets_aside or (n_slots is None and work.state_share is None):
        return server, 0, 0
    share = server.state_share.model_copy(update={"value": 0.0 if n_slots else work.state_share})
    server = server.model_copy(update={"state_share": share})
    if not n_slots:
        return server, 0, 0
    n_groups = deployed.n_groups_of(work)
    n_kept, of_request = n_slots // n_groups, server.request_states.count
    if n_kept < of_request:
        name = "max-mamba-cache-size" if work.state_slots else "max-num-seqs"
        raise InputError(
            f"{name} = {n_slots:g}: a request takes {of_request} state{'s' * (of_request > 1)}: "
            f"give {of_request * n_groups} or more"
        )
    return server, n_kept * n_bytes, n_kept // of_request


def weights_by_operation(
    model: ModelSpec, work: Workload, stack: StackSpec | None = None, is_served: bool = False
) -> list[tuple[str, Product]]:
    """The products with the weights of a device by name. What is neither QKV, output projection nor head counts with
    the feed-forward: norms, and the table of input embeddings where it is taken to be read and multiplied like the
    others.

    Latent attention (MLA) has projections of other shapes: there all layers are one operation.
    """
    n_layers, n_groups, skew = model.n_layers, deployed.n_groups_of(work), 1.0 + work.expert_skew

    def product(
        name: str, dense: int, experts: int, n_products: int, own: int = 0, kept: int = 0
    ) -> tuple[str, Product]:
        """Name a product and count its parameters; `own` of them meet the tokens of the device's own requests alone,
        `kept` of them stay in 16 bits."""
        met = experts * model.n_active_experts / model.n_experts
        active = own + n_groups * (dense - own) + n_groups * skew * met
        stored = model.stored_expert_parameters(form, work.tp // work.ep) if experts else 0
        return name, Product(
            active=float(active),
            dense=float(dense),
            kept=float(kept),
            experts=float(stored),
            n_products=n_products,
            is_last_only=int(name == "head" and head_parameters(model, is_served) > 0),
        )

    form = work.weight_format
    n_head, attention = model.vocab_size * model.hidden_size, model.attention_parameters or 0
    unread, n_products = unread_parameters(model, is_served), matrix_products(model, stack)
    rest, experts = model.dense_parameters - n_head - unread, model.expert_parameters
    kept = max(model.kept_parameters(form) - unread, 0)
    kept_head, kept_attention = min(n_head - model.wide_in(form).narrow_head, kept), model.kept_attention(form)
    head = product("head", n_head, 0, 1, kept=kept_head)
    if rest < 0:
        return [product("layers", model.dense_parameters - unread, experts, n_products, attention, kept)]
    whole = [product("layers", rest, experts, n_products - 1, attention, kept - kept_head), head]
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
    kept_qkv, kept_out = (n * kept_attention // max(attention, 1) for n in (qkv, out))
    return [
        product("qkv", qkv, 0, n_layers, qkv, kept_qkv),
        product("output_projection", out, 0, n_layers, out, kept_out),
        product(
            "feed_forward",
            rest - qkv - out,
            experts,
            n_products - 1 - 2 * n_layers,
            max(attention - qkv - out, 0),
            max(kept - kept_head - kept_qkv - kept_out, 0),
        ),
        head,
    ]


def own_kernels(g: TensorGroup, side: int) -> tuple[int, int]:
    """Extra kernels per layer for a decode step, more where sinks are kept, and for a packing event."""
    code = implementations.starts_of(g)
    if not g.layout.pool_rows:
        return code.read[side], code.pack[side]
    return code.read[side] + code.pool_read[side], code.pack[side]
