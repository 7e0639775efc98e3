"""Largest batch beside the weights, its waves, and the smallest memory that holds a whole batch."""

import math
from typing import NamedTuple

from dse.core.compiling import compilable, inlined, making
from dse.model.formulas import capacity, deployment, weights
from dse.model.generation import Generation
from dse.model.kv_bytes import stored_bits, unit_of
from dse.model.peak_memory import NO_CONTEXT_LIMIT, longest_context, n_shared, on_device
from dse.model.records import MISSING, NO_LIMIT, STATIC, Design


@compilable
def weight_bytes(design: Design) -> int:
    """Bytes of all weights that a device holds."""
    model = design.model
    load = design.load
    n_bytes = weights.stored_weight_bytes(
        model.dense_parameters, model.kept_parameters, model.expert_parameters, load.dense_eighths, load.expert_eighths
    )
    return deployment.stage_bytes(n_bytes, design.deployment.n_stages) + design.memory.beside_bytes


@compilable
def free_bytes(design: Design) -> int:
    """Bytes left for sequences; negative when the weights do not fit."""
    device, memory = design.device, design.memory
    if memory.given_bytes:
        return min(memory.given_bytes, capacity.free_bytes(device.reported_bytes, 1.0, held_bytes(design), 0))
    if memory.is_server:
        left = capacity.pool_bytes(
            device.reported_bytes,
            device.usable_frac * memory.share,
            memory.share_of_free,
            device.usable_frac,
            held_bytes(design),
            memory.outside_bytes,
        )
        return min(left, memory.most_bytes) if memory.most_bytes else left
    return capacity.free_bytes(device.capacity_bytes, device.usable_frac, weight_bytes(design), device.overhead_bytes)


@compilable
def runtime_bytes(design: Design) -> int:
    """Bytes of graphs, context, workspaces and buffers of a device."""
    return design.device.overhead_bytes + design.memory.graph_bytes + design.memory.buffer_bytes


@compilable
def held_bytes(design: Design) -> int:
    """Bytes that a server holds beside keys and values."""
    return weight_bytes(design) + design.memory.prompt_bytes + runtime_bytes(design)


@compilable
def unused_bytes(design: Design) -> int:
    """Bytes that nothing may use: what is left of the memory beside all that is held and the room for sequences."""
    device = design.device
    whole = device.reported_bytes if design.memory.is_server else device.capacity_bytes
    return whole - held_bytes(design) - free_bytes(design)


@compilable
def longest_tokens(design: Design) -> int:
    """Tokens of the longest context that a server takes: as given, else that of the requests."""
    return max(design.memory.longest_tokens, design.input_tokens + design.output_tokens)


@compilable
def n_blocks(design: Design) -> int:
    """Blocks of a pool whose layers differ."""
    return max(free_bytes(design) * unit_of(design) // design.memory.block_bits, 0)


@compilable
def token_blocks(design: Design) -> int:
    """Blocks of a pool beside those that its slots hold."""
    return max(n_blocks(design) - design.memory.slot_blocks, 0)


@compilable
def blocks_of_request(design: Design, n_tokens: int, beside_window: int) -> int:
    """Blocks of a request of `n_tokens`, of which layers keep `beside_window` tokens beside a full window."""
    memory = design.memory
    return capacity.request_blocks(
        n_tokens,
        full_groups=memory.full_groups,
        full_block_tokens=memory.full_block_tokens,
        window_groups=memory.window_groups,
        window_block_tokens=memory.window_block_tokens,
        kept_tokens=memory.window_tokens - 1 + beside_window,
        spare_blocks=memory.window_spare,
        state_blocks=memory.state_blocks,
    )


@compilable
def mean_tokens(design: Design, made: Generation, n_tokens: int) -> int:
    """KV tokens of whole blocks that the room for sequences holds, at the mean of a token of one sequence of
    `n_tokens`, nothing shared and no slot unused."""
    bits = 0
    for g in design.tensors:
        bits += g.n_stored_layers * stored_bits(g, made.limits, n_tokens)
    return capacity.pool_tokens(free_bytes(design) * unit_of(design), bits, n_tokens, design.memory.block_tokens)


@compilable
def pool_tokens(design: Design, made: Generation) -> int:
    """KV tokens of the room for sequences as the server prints them; MISSING without a cache."""
    memory = design.memory
    if design.load.has_cache == 0:
        return MISSING
    if memory.block_bits == 0:
        return mean_tokens(design, made, longest_tokens(design))
    if memory.n_groups:
        return capacity.tokens_of_groups(token_blocks(design), memory.n_groups, memory.printed_tokens)
    longest = longest_tokens(design)
    return capacity.tokens_of_requests(
        n_blocks(design), blocks_of_request(design, longest, memory.budget_tokens), longest
    )


@compilable
def usable_tokens(design: Design, made: Generation) -> int:
    """KV tokens that requests of the design's lengths can use, at their final length; MISSING without a cache."""
    final = design.input_tokens + design.output_tokens
    if design.load.has_cache == 0:
        return MISSING
    if design.memory.block_bits == 0:
        return mean_tokens(design, made, final)
    return capacity.tokens_of_requests(n_blocks(design), blocks_of_request(design, final, 1), final)


@compilable
def max_concurrency(design: Design, made: Generation) -> float:
    """Requests of the longest context that the pool holds, as a server prints it; nan without a cache."""
    memory, longest = design.memory, longest_tokens(design)
    if design.load.has_cache == 0:
        return math.nan
    if memory.block_bits:
        return capacity.concurrency(n_blocks(design), blocks_of_request(design, longest, memory.budget_tokens))
    blocks = mean_tokens(design, made, longest) // memory.block_tokens
    return capacity.concurrency(blocks, -(-longest // memory.block_tokens))


@inlined
def to_bytes(design: Design, bits: int) -> int:
    """Bits over the model's denominator, of all stages, as whole bytes of a device, rounded up."""
    return -(-bits // unit_of(design))


@compilable
def requests_of(design: Design, batch: int) -> int:
    """Requests of a batch whose keys and values a device holds."""
    return deployment.requests_per_device(batch, design.deployment.n_groups)


@compilable
def counts_blocks(design: Design) -> bool:
    """Whether requests are bound by the blocks of a pool whose layers differ; what is shared, or lies
    in host memory, is counted in bits."""
    load = design.load
    is_plain = load.prefix_tokens == 0 and load.samples == 1 and load.offloaded_permille == 0
    return design.memory.block_bits > 0 and load.has_cache == 1 and is_plain


@inlined
def is_replaced(design: Design) -> int:
    """1 where a finished request is replaced at once: by a server, and in paged memory; a static batch that reserves
    its memory runs in waves."""
    return 1 if design.load.is_paged == 1 or design.load.batching != STATIC else 0


@inlined
def counts_mean(design: Design) -> bool:
    """True where a request counts at its mean size: paged memory as papers count it. A server that admits more than
    fit at their full length sends some back, whose work is lost."""
    return design.load.is_paged == 1 and design.memory.is_server == 0


@inlined
def whole_blocks(design: Design) -> int:
    """Blocks of a request at its final length, which is what a server takes it at."""
    final = design.input_tokens + design.output_tokens
    return blocks_of_request(design, final + design.memory.lookahead_tokens, 1)


@compilable
def most_of_states(design: Design, free: int) -> int:
    """Requests of a device whose states find places in `free` (in the unit of bits) where a server sets memory aside
    for them; no limit elsewhere."""
    memory, most = design.memory, NO_LIMIT
    if memory.state_share_bits:
        most = max(free // memory.state_share_bits, 0)
    return min(most, memory.most_of_states) if memory.most_of_states else most


@making
def max_batch(design: Design, made: Generation, free: int) -> int:
    """Most requests that run at once: those that fit into `free` (in the unit of bits) of every device under the
    admission rule, and no more than the server takes; 0 when none fits."""
    most, n_groups, samples = -1, design.deployment.n_groups, design.load.samples
    for size in made.sizes:
        if size.shared + size.own > free:
            return 0
        fitting = capacity.most_answers(free, size.shared, size.own, samples)
        most = fitting if most < 0 else min(most, fitting)
    if counts_mean(design):
        n_steps = design.output_tokens
        room, shared = free * n_steps, made.largest_shared_bits * n_steps
        most = max(capacity.most_answers(room, shared, made.sum_of_own_bits, samples), 1)
    if counts_blocks(design):
        most = min(most, capacity.max_batch(max(free // design.memory.block_bits, 0), 0, whole_blocks(design)))
    most = min(most, most_of_states(design, free))
    return min(most * n_groups, design.load.max_num_seqs)


@inlined
def kv_bytes(design: Design, made: Generation, batch: int) -> int:
    """Keys and values of a device, of the whole batch at the final length."""
    own_bits, n = on_device(design, made.final_bits - made.final_shared_bits), requests_of(design, batch)
    unit = unit_of(design)
    # whole bytes of each apart: no number is far larger than the result, whatever the unit
    shared_bits, copies = made.final_shared_bits, n_shared(design, n)
    whole_bytes = n * (own_bits // unit) + copies * (shared_bits // unit)
    return whole_bytes + to_bytes(design, copies * (shared_bits % unit) + n * (own_bits % unit))


@making
def request_bytes(design: Design, made: Generation) -> int:
    """Most that one request needs between its prompt and its last token."""
    needed = 0
    for size in made.sizes:
        needed = max(needed, size.shared + size.own)
    if counts_blocks(design):
        needed = max(needed, whole_blocks(design) * design.memory.block_bits)
    return to_bytes(design, needed)


@making
def min_capacity_bytes(design: Design, made: Generation, batch: int) -> int:
    """Smallest memory of a device in which the whole batch runs at once under the admission rule.

    Paged, one request alone counts at its largest, not its mean.
    """
    batch = requests_of(design, batch)
    needed, n_sequences = 0, 1 if counts_mean(design) else batch
    for size in made.sizes:
        needed = max(needed, n_shared(design, n_sequences) * size.shared + n_sequences * size.own)
    if counts_mean(design) and batch > 1:
        shared = n_shared(design, batch) * made.largest_shared_bits
        mean = shared - -batch * made.sum_of_own_bits // design.output_tokens
        needed = max(needed, mean)
    if counts_blocks(design):
        needed = max(needed, batch * whole_blocks(design) * design.memory.block_bits)
    device, memory = design.device, design.memory
    if memory.is_server:
        return capacity.min_reported_bytes(
            to_bytes(design, needed),
            device.usable_frac * memory.share,
            memory.share_of_free,
            device.usable_frac,
            held_bytes(design),
            memory.outside_bytes,
        )
    return capacity.min_capacity_bytes(
        to_bytes(design, needed), device.usable_frac, weight_bytes(design), device.overhead_bytes
    )


@compilable
def max_context_tokens(design: Design, batch: int) -> int:
    """Longest context at which the whole batch fits, with every shorter one; MISSING where there is no limit."""
    n_requests = requests_of(design, batch)
    longest = longest_context(design, free_bytes(design) * unit_of(design), n_requests)
    if counts_blocks(design) and longest > 0:
        blocks, short = n_blocks(design), 0
        while short < longest:  # the longest whose requests have blocks
            middle = short + (longest - short + 1) // 2
            if n_requests * blocks_of_request(design, middle, 1) <= blocks:
                short = middle
            else:
                longest = middle - 1
    return MISSING if longest == NO_CONTEXT_LIMIT else longest


class Capacity(NamedTuple):
    """Memory left beside the weights, and the largest batch in it."""

    peak_kv_bytes_per_sequence: int
    weight_bytes: int
    runtime_bytes: int
    free_bytes: int
    kv_pool_tokens: int
    kv_usable_tokens: int
    unused_bytes: int
    max_batch: int


class Pool(NamedTuple):
    """Requests that the pool holds."""

    max_concurrency: float


@inlined
def pool_of(design: Design, made: Generation) -> Pool:
    """The pool by the longest context."""
    return Pool(max_concurrency(design, made))


class Sizes(NamedTuple):
    """Bytes of a running batch."""

    kv_bytes: int
    activation_bytes: int
    workspace_bytes: int


class Needs(NamedTuple):
    """Smallest capacity that holds a batch, and its longest context: both are searched for."""

    min_capacity_bytes: int
    max_context_tokens: int


@compilable
def fit_of(design: Design, made: Generation, most: int) -> Capacity:
    """Collect the memory figures that no batch changes; `most` is the largest batch."""
    return Capacity(
        peak_kv_bytes_per_sequence=to_bytes(design, made.peak_bits),
        weight_bytes=weight_bytes(design),
        runtime_bytes=runtime_bytes(design),
        free_bytes=free_bytes(design),
        kv_pool_tokens=pool_tokens(design, made),
        kv_usable_tokens=usable_tokens(design, made),
        unused_bytes=unused_bytes(design),
        max_batch=most,
    )


@inlined
def sizes_of(design: Design, made: Generation, batch: int) -> Sizes:
    """The sizes of a batch."""
    n = requests_of(design, batch)
    activation_bytes = n * made.activation_bytes + design.memory.prompt_bytes
    return Sizes(kv_bytes(design, made, batch), activation_bytes, n * made.workspace_bytes)


@compilable
def needs_of(design: Design, made: Generation, batch: int, seeks_context: bool) -> Needs:
    """Find the smallest capacity for a batch and, if `seeks_context`, its longest context."""
    longest = max_context_tokens(design, batch) if seeks_context else MISSING
    return Needs(min_capacity_bytes(design, made, batch), longest)


class Waves(NamedTuple):
    """Waves of a batch: `n_full` of `running` sequences, `n_smaller` of one less; whole numbers unless paged."""

    running: float
    #: 0: requests are replaced one by one
    n_waves: float
    n_full: float
    n_smaller: float


@inlined
def waves_of(batch: float, most: float, is_replaced: int) -> Waves:
    """The waves of a batch of which `most` >= 1 fit; none where a finished request is replaced at once."""
    if is_replaced:
        running = min(batch, most)
        return Waves(running, 0.0, batch / running, 0.0)
    n_waves = capacity.n_waves(batch, most)
    running = capacity.running_batch(batch, n_waves)
    n_full = batch - n_waves * (running - 1.0)
    return Waves(running, n_waves, n_full, n_waves - n_full)
