"""Bytes of keys, values, weights and what else a device holds, and what fits beside them."""

from collections.abc import Mapping
from typing import Any

from dse.model.capacity import (
    blocks_of_request,
    counts_blocks,
    longest_tokens,
    most_of_states,
    n_blocks,
    token_blocks,
    whole_blocks,
)
from dse.model.facts import Facts
from dse.model.formulas import activations, capacity, kv_cache
from dse.model.peak_memory import activation_tokens
from dse.model.results.declare import FLAG, NAME, NUMBER, POOLED, WHOLE, Derivation, TextLine, Topic, by, how, of_server
from dse.model.results.reads import MEMORY, POOL, UNUSED

_CAPACITY, _KV = "docs/explanation/model.md, Capacity", "docs/explanation/model.md, KV bytes"
#: of a term that --calibrated gives
_OF_LOG = "as a server's log had it (`dse check-log`)"

topic = Topic()


@topic.result("B/token", NUMBER, "KV cache of a token", TextLine("Memory", 10, ""), reads=("kv_page",))
def kv_bytes_per_token(at: Facts) -> Derivation:
    return how(
        "sum over layers, keys and values of bits at the final length / 8 / kept tokens, page padding included",
        _KV,
        n_tokens=at.n_tokens,
        **at.token_bytes(),
    )


@topic.result(
    "B/token",
    NUMBER,
    "KV cache of a token beyond windows",
    TextLine(
        "Memory",
        11,
        "  KV cache of a token beyond windows",
        lambda results: bool(results["kv_bytes_per_token_beyond_windows"] != results["kv_bytes_per_token"]),
    ),
    reads=("kv_page",),
)
def kv_bytes_per_token_beyond_windows(at: Facts) -> Derivation:
    return how(
        "kv_bytes_per_token of the layers without a window, which alone grow once all windows are full",
        _KV,
        n_tokens=at.n_tokens,
        **at.token_bytes(beyond_windows=True),
    )


@topic.result(
    "B",
    NUMBER,
    "constant states of a request",
    TextLine("Memory", 12, "", lambda results: results["state_bytes"] is not None),
)
def state_bytes(at: Facts) -> Derivation:
    share = " / n_stages" if at.design.deployment.n_stages > 1 else ""
    return how(f"sum over layers of what they keep of a request of any length{share}", _KV, **at.states())


@topic.result(
    "B",
    WHOLE,
    "KV cache of the batch",
    TextLine("Memory", 9, "KV cache of the batch, at final length"),
    reads=("kv_page",),
)
def kv_bytes(at: Facts) -> Derivation:
    den, of_prompts = at.plan.den, {}
    if at.work.samples > 1:
        of_prompts = {"n_prompts": kv_cache.n_prompts(at.point.batch, at.work.samples)}
    shared = "n_prompts * shared_bits" if of_prompts else "shared_bits"
    return how(
        f"({shared} + batch * (bits_per_sequence - shared_bits)) / 8, bits summed over layers, keys and values",
        _KV,
        **of_prompts,
        batch=at.work.batch,
        n_tokens=at.n_tokens,
        bits_per_sequence=at.made.final_bits / den,
        shared_bits=at.made.final_shared_bits / den,
        elements_per_sequence=at.made.n_elements,
        **at.of_groups((g, "packed_token_bits", g.packed_bits / den) for g in at.plan.groups),
    )


@topic.result("B", WHOLE, "peak KV cache of a sequence", reads=("kv_page",))
def peak_kv_bytes_per_sequence(at: Facts) -> Derivation:
    return how(
        "largest KV size between prompt and last token, page padding included: just before a group is packed",
        _CAPACITY,
        first_tokens=at.work.input_tokens,
        last_tokens=at.n_tokens,
    )


@topic.result("B", WHOLE, "weights", TextLine("Memory", 1, "weights"))
def weight_bytes(at: Facts) -> Derivation:
    if at.of_log:
        return how(_OF_LOG, at.of_log.source)
    if size := at.work.weights_size_bytes:
        return how("ceil(weights_size_bytes / n_devices)", _CAPACITY, weights_size_bytes=size, **at.split())
    sizes = {"n_parameters": at.plan.model.parameters, **at.weight_bits(), **at.kept(), **at.beside(), **at.split()}
    rule = "ceil(sum of parameters * bits / 8)" + (", and what a server counts with them" if at.beside() else "")
    return how(rule, _CAPACITY, **sizes)


@topic.result(
    "B",
    WHOLE,
    "activations",
    TextLine("Memory", 2, "activations of the prompt budget", of_server),
    reads=("reported_memory",),
)
def activation_bytes(at: Facts) -> Derivation:
    if at.of_log:
        return how(_OF_LOG, at.of_log.source)
    if at.is_server:
        return how(
            activations.prompt_bytes.equation,
            at.server_source("prompt_budget", "sequences", "logit", "hidden_copies"),
            prompt_budget_tokens=at.results["prompt_budget_tokens"],
            n_sequences=at.work.max_num_seqs or at.server.sequences.count,
            vocab_size=at.plan.whole_model.vocab_size,
            logit_bytes=at.server.logit.count,
            layer_elements=at.layer_elements,
            hidden_copies=at.server.hidden_copies.count,
            hidden_size=at.plan.model.hidden_size,
            **at.expert_buffers(),
            **at.largest_image(),
        )
    return how(
        f"batch * {activations.activation_bytes.equation}",
        activations.activation_bytes.source,
        batch=at.work.batch,
        n_tokens=int(activation_tokens(at.design, at.n_tokens)),
        activation_elements=at.plan.model.activation_elements,
        logits_elements=at.design.model.logits_elements,
        activation_bits=at.work.activation_bits,
    )


@topic.result("B", WHOLE, "workspace")
def workspace_bytes(at: Facts) -> Derivation:
    return how(
        "batch * 2 bytes * materialised elements of one layer and sequence, padded to tiles of tokens where the "
        "method's code pads them",
        _CAPACITY,
        batch=at.work.batch,
        materialised_elements=at.made.workspace_bytes // 2,
        **at.tiles(),
    )


@topic.result(
    "B",
    WHOLE,
    "graphs and buffers",
    TextLine("Memory", 3, "", of_server),
    reads=("runtime_overhead", "server_memory", "reported_memory"),
)
def runtime_bytes(at: Facts) -> Derivation:
    if at.of_log:
        parts = {"graph_bytes": at.of_log.graph_bytes, "buffer_bytes": at.of_log.buffer_bytes}
        return how(_OF_LOG, at.of_log.source, **parts)
    return how(
        "runtime_overhead + graphs + context, workspaces and buffers",
        at.server_source("graphs", "layer_graphs", "buffers", "communication", named=True)
        if at.is_server
        else _CAPACITY,
        overhead_bytes=at.device.runtime_overhead.count,
        graph_bytes=at.design.memory.graph_bytes,
        buffer_bytes=at.design.memory.buffer_bytes,
    )


@topic.result(
    "B",
    WHOLE,
    "device memory",
    TextLine("Memory", 13, "device memory, as the driver reports it", of_server),
    TextLine("Memory", 13, "device memory, by the data sheet", lambda results: not of_server(results)),
    reads=("memory_capacity", "reported_memory"),
)
def capacity_bytes(at: Facts) -> Derivation:
    if not at.is_server:
        return how("given", at.device.memory_capacity.source)
    reported = at.device.reported_memory or at.device.memory_capacity
    return how("memory that the driver reports, in proportion where memory_capacity is changed", reported.source)


@topic.result("B", WHOLE, "room for keys and values", TextLine("Memory", 4, "", of_server), reads=POOL, interval=POOLED)
def free_bytes(at: Facts) -> Derivation:
    usable, memory = at.device.usable_frac.si, at.design.memory
    if limit := memory.given_bytes or memory.most_bytes:
        return how("as given, where so much is left", capacity.pool_bytes.source, limit_bytes=limit)
    if at.is_server:
        return by(
            capacity.pool_bytes,
            reported_bytes=at.device.reported_bytes,
            share=usable * memory.share,
            share_of_free=memory.share_of_free,
            usable_frac=usable,
            weight_bytes=at.point.weight_bytes,
            activation_bytes=at.results["activation_bytes"],
            runtime_bytes=at.results["runtime_bytes"],
            outside_bytes=memory.outside_bytes,
        )
    return by(
        capacity.free_bytes,
        memory_capacity_bytes=at.device.capacity_bytes,
        usable_frac=usable,
        weight_bytes=at.point.weight_bytes,
        overhead_bytes=at.device.runtime_overhead.count,
    )


def of_blocks(results: Mapping[str, Any]) -> bool:
    """Whether what a server prints is not what requests of these lengths can use."""
    return of_server(results) and results["kv_pool_tokens"] != results["kv_usable_tokens"]


@topic.result(
    "token",
    WHOLE,
    "KV tokens of the pool",
    TextLine("Memory", 5, "  KV tokens of the pool", of_server),
    reads=POOL,
    interval=POOLED,
)
def kv_pool_tokens(at: Facts) -> Derivation:
    memory = at.design.memory
    if not memory.block_bits:
        return by(capacity.pool_tokens, free_bytes=at.point.free_bytes, block_tokens=memory.block_tokens)
    if memory.n_groups:
        return by(
            capacity.tokens_of_groups,
            n_blocks=token_blocks(at.design),
            n_groups=memory.n_groups,
            block_tokens=memory.printed_tokens,
        )
    return by(capacity.tokens_of_requests, n_blocks=n_blocks(at.design), **at.longest())


@topic.result(
    "token",
    WHOLE,
    "KV tokens that requests use",
    TextLine("Memory", 6, "  KV tokens that requests use", of_blocks),
    reads=POOL,
    interval=POOLED,
)
def kv_usable_tokens(at: Facts) -> Derivation:
    memory = at.design.memory
    if not memory.block_bits:
        return by(capacity.pool_tokens, free_bytes=at.point.free_bytes, block_tokens=memory.block_tokens)
    return by(
        capacity.tokens_of_requests,
        n_blocks=n_blocks(at.design),
        request_blocks=blocks_of_request(at.design, at.n_tokens, 1),
        n_tokens=at.n_tokens,
    )


@topic.result(
    "sequence",
    NUMBER,
    "requests of the longest context",
    TextLine("Memory", 7, "  requests of the longest context", of_server),
    reads=POOL,
    interval=POOLED,
)
def max_concurrency(at: Facts) -> Derivation:
    if not at.design.memory.block_bits:
        block, longest = at.design.memory.block_tokens, longest_tokens(at.design)
        return by(
            capacity.concurrency,
            n_blocks=(at.results["kv_pool_tokens"] or 0) // block,
            request_blocks=-(-longest // block),
        )
    return by(capacity.concurrency, n_blocks=n_blocks(at.design), **at.longest())


@topic.result("B", WHOLE, "reserved memory", TextLine("Memory", 8, "", of_server), reads=UNUSED)
def unused_bytes(at: Facts) -> Derivation:
    return how(
        "device memory - weights - activations of prompts - graphs and buffers - room for sequences",
        capacity.pool_bytes.source,
        capacity_bytes=at.results["capacity_bytes"],
        free_bytes=at.point.free_bytes,
    )


@topic.result(
    "B",
    WHOLE,
    "smallest memory for the batch",
    TextLine("Memory", 14, ""),
    reads=("server_memory", "reported_memory", "usable_frac", "runtime_overhead", "kv_page"),
)
def min_capacity_bytes(at: Facts) -> Derivation:
    equation = "(weights + overhead + shared + batch * bytes_per_sequence) / usable_frac"
    return how(
        f"{capacity.min_reported_bytes.equation if at.is_server else equation}; a request counts {at.counted.rule}",
        _CAPACITY,
        weight_bytes=at.point.weight_bytes,
        overhead_bytes=at.device.runtime_overhead.count,
        usable_frac=at.device.usable_frac.si,
        shared_bytes=at.counted.shared_bytes,
        batch=at.work.batch,
        bytes_per_sequence=at.counted.own_bytes,
        **at.copies(),
    )


@topic.result("", FLAG, "one request fits", reads=MEMORY)
def feasible(at: Facts) -> Derivation:
    return how("max_batch >= 1: at least one request fits", _CAPACITY, max_batch=at.point.max_batch)


@topic.result("", NAME, "why none fits", reads=MEMORY)
def infeasible_reason(at: Facts) -> Derivation:
    return how(
        "what is missing for one request; none where one fits",
        _CAPACITY,
        free_bytes=at.point.free_bytes,
        bytes_per_sequence=max(size.shared + size.own for size in at.made.sizes) / at.point.unit,
    )


@topic.result("", FLAG, "whole batch fits", reads=MEMORY)
def fits_whole_batch(at: Facts) -> Derivation:
    source = capacity.max_batch.source
    return how("max_batch >= batch", source, max_batch=at.point.max_batch, batch=at.work.batch)


@topic.result("sequence", WHOLE, "largest batch", TextLine("Memory", 15, "largest batch"), reads=MEMORY)
def max_batch(at: Facts) -> Derivation:
    most = {} if at.work.max_num_seqs is None else {"max_num_seqs": at.work.max_num_seqs}
    if counts_blocks(at.design):
        most |= {"n_blocks": n_blocks(at.design), "request_blocks": whole_blocks(at.design)}
    if at.work.samples > 1:
        most |= {"samples": at.work.samples}
    memory, of_states = at.design.memory, ""
    if memory.state_share_bits or memory.most_of_states:
        most |= {"requests_with_states": most_of_states(at.design, at.point.free_bytes * at.point.unit)}
        of_states = ", at most requests_with_states"
    rule = capacity.max_batch if at.work.samples == 1 else capacity.most_answers
    return how(
        f"{rule.equation}{', at most n_blocks / request_blocks' if 'n_blocks' in most else ''}"
        f"{of_states}{', at most max_num_seqs' if at.work.max_num_seqs else ''}; a request counts {at.counted.rule}",
        capacity.max_batch.source,
        free_bytes=at.point.free_bytes,
        shared_bytes=at.counted.shared_bytes,
        bytes_per_sequence=at.counted.own_bytes,
        activation_bytes_per_sequence=at.made.activation_bytes,
        workspace_bytes_per_sequence=at.made.workspace_bytes,
        admission=at.work.admission,
        **at.copies(),
        **most,
    )


@topic.result("token", WHOLE, "longest context", TextLine("Memory", 16, "longest context at this batch"), reads=MEMORY)
def max_context_tokens(at: Facts) -> Derivation:
    return how(
        "largest s such that the whole batch fits with all requests at s' tokens at once, for every s' <= s; "
        "where a token policy follows the prompt, s less the output is the prompt",
        _CAPACITY,
        free_bytes=at.point.free_bytes,
        batch=at.work.batch,
    )
