"""Bytes of keys, values, weights and what else a device holds, and what fits beside them."""

from dse.model.formulas import activations, capacity
from dse.model.results.declare import FLAG, NAME, NUMBER, WHOLE, How, Line, Result, by, of_server
from dse.model.results.reads import MEMORY, POOL, UNUSED

_CAPACITY, _KV = "docs/explanation/model.md, Capacity", "docs/explanation/model.md, KV bytes"

RESULTS = (
    Result(
        "kv_bytes_per_token",
        "B/token",
        NUMBER,
        "KV cache of a token",
        lines=(Line(section="Memory", place=8, words="KV cache per token of one request"),),
        reads=("kv_page",),
        how=(
            How(
                equation=(
                    "sum over layers, keys and values of bits at the final length / 8 / kept tokens, page padding "
                    "included"
                ),
                source=_KV,
                terms=lambda at: {"n_tokens": at.n_tokens, **at.token_bytes()},
            ),
        ),
    ),
    Result(
        "kv_bytes_per_token_beyond_windows",
        "B/token",
        NUMBER,
        "KV cache of a token beyond windows",
        lines=(
            Line(
                section="Memory",
                place=9,
                words="  beyond windows",
                shown=lambda results: results["kv_bytes_per_token_beyond_windows"] != results["kv_bytes_per_token"],
            ),
        ),
        reads=("kv_page",),
        how=(
            How(
                equation=(
                    "kv_bytes_per_token of the layers without a window, which alone grow once all windows are full"
                ),
                source=_KV,
                terms=lambda at: {"n_tokens": at.n_tokens, **at.token_bytes(beyond_windows=True)},
            ),
        ),
    ),
    Result(
        "state_bytes",
        "B",
        NUMBER,
        "constant states of a request",
        lines=(
            Line(
                section="Memory",
                place=10,
                words="constant states of one request",
                shown=lambda results: results["state_bytes"] is not None,
            ),
        ),
        how=(
            How(
                equation=lambda at: (
                    "sum over layers of what they keep of a request of any length"
                    + (" / n_stages" if at.design.deployment.n_stages > 1 else "")
                ),
                source=_KV,
                terms=lambda at: at.states(),
            ),
        ),
    ),
    Result(
        "kv_bytes",
        "B",
        WHOLE,
        "KV cache of the batch",
        lines=(Line(section="Memory", place=7, words="KV cache, whole batch at final length"),),
        reads=("kv_page",),
        how=(
            How(
                equation=(
                    "(shared_bits + batch * (bits_per_sequence - shared_bits)) / 8, bits summed over layers, keys and "
                    "values"
                ),
                source=_KV,
                terms=lambda at: dict(
                    batch=at.work.batch,
                    n_tokens=at.n_tokens,
                    bits_per_sequence=at.made.final_bits / at.plan.den,
                    shared_bits=at.made.final_shared_bits / at.plan.den,
                    elements_per_sequence=at.made.n_elements,
                    **at.of_groups((g, "packed_token_bits", g.packed_bits / at.plan.den) for g in at.plan.groups),
                ),
            ),
        ),
    ),
    Result(
        "peak_kv_bytes_per_sequence",
        "B",
        WHOLE,
        "peak KV cache of a sequence",
        reads=("kv_page",),
        how=(
            How(
                equation=(
                    "largest KV size between prompt and last token, page padding included: just before a group is "
                    "packed"
                ),
                source=_CAPACITY,
                terms=lambda at: dict(first_tokens=at.work.input_tokens, last_tokens=at.n_tokens),
            ),
        ),
    ),
    Result(
        "weight_bytes",
        "B",
        WHOLE,
        "weights",
        lines=(Line(section="Memory", place=1, words="weights"),),
        how=(
            How(
                equation="ceil(sum of parameters * bits / 8)",
                source=_CAPACITY,
                terms=lambda at: dict(n_parameters=at.plan.model.parameters, **at.weight_bits(), **at.split()),
            ),
        ),
    ),
    Result(
        "activation_bytes",
        "B",
        WHOLE,
        "activations",
        lines=(Line(section="Memory", place=2, words="activations of the prompt budget", shown=of_server),),
        how=(
            How(
                where=lambda at: at.is_server,
                equation=activations.prompt_bytes.equation,
                source=lambda at: at.server_source("prompt_budget", "sequences", "logit"),
                terms=lambda at: dict(
                    prompt_budget_tokens=at.results["prompt_budget_tokens"],
                    n_sequences=at.server.sequences.count,
                    vocab_size=(at.plan.whole or at.plan).model.vocab_size,
                    logit_bytes=at.server.logit.count,
                    layer_elements=at.layer_elements,
                ),
            ),
            How(
                equation=f"batch * {activations.activation_bytes.equation}",
                source=activations.activation_bytes.source,
                terms=lambda at: dict(
                    batch=at.work.batch,
                    n_tokens=at.activation_tokens,
                    activation_elements=at.plan.model.activation_elements,
                    logits_elements=at.design.model.logits_elements,
                    activation_bits=at.work.activation_bits,
                ),
            ),
        ),
    ),
    Result(
        "workspace_bytes",
        "B",
        WHOLE,
        "workspace",
        how=(
            How(
                equation=(
                    "batch * 2 bytes * materialised elements of one layer and sequence, padded to tiles of tokens "
                    "where the method's code pads them"
                ),
                source=_CAPACITY,
                terms=lambda at: dict(
                    batch=at.work.batch, materialised_elements=at.made.workspace_bytes // 2, **at.tiles()
                ),
            ),
        ),
    ),
    Result(
        "runtime_bytes",
        "B",
        WHOLE,
        "graphs and buffers",
        lines=(Line(section="Memory", place=3, words="graphs, context and buffers", shown=of_server),),
        reads=("runtime_overhead", "server_memory"),
        how=(
            How(
                equation="runtime_overhead + graphs + context, workspaces and buffers",
                source=lambda at: (
                    at.server_source("graphs", "buffers", "communication", named=True) if at.is_server else _CAPACITY
                ),
                terms=lambda at: dict(
                    overhead_bytes=at.device.runtime_overhead.count,
                    graph_bytes=at.design.memory.graph_bytes,
                    buffer_bytes=at.design.memory.buffer_bytes,
                ),
            ),
        ),
    ),
    Result(
        "capacity_bytes",
        "B",
        WHOLE,
        "device memory",
        lines=(
            Line(section="Memory", place=11, words="device memory, as the driver reports it", shown=of_server),
            Line(
                section="Memory",
                place=11,
                words="device memory, by the data sheet",
                shown=lambda results: not of_server(results),
            ),
        ),
        reads=("memory_capacity", "reported_memory"),
        how=(
            How(
                equation=lambda at: (
                    "memory that the driver reports, in proportion where memory_capacity is changed"
                    if at.is_server
                    else "given"
                ),
                source=lambda at: (
                    (
                        at.device.reported_memory
                        if at.is_server and at.device.reported_memory
                        else at.device.memory_capacity
                    ).source
                ),
            ),
        ),
    ),
    Result(
        "free_bytes",
        "B",
        WHOLE,
        "room for keys and values",
        lines=(Line(section="Memory", place=4, words="pool of keys and values", shown=of_server),),
        reads=POOL,
        how=(
            by(
                capacity.pool_bytes,
                where=lambda at: at.is_server,
                terms=lambda at: dict(
                    reported_bytes=at.device.reported_bytes,
                    share=at.device.usable_frac.si * at.design.memory.share,
                    share_of_free=at.design.memory.share_of_free,
                    usable_frac=at.device.usable_frac.si,
                    weight_bytes=at.point.weight_bytes,
                    activation_bytes=at.results["activation_bytes"],
                    runtime_bytes=at.results["runtime_bytes"],
                    outside_bytes=at.design.memory.outside_bytes,
                ),
            ),
            by(
                capacity.free_bytes,
                terms=lambda at: dict(
                    memory_capacity_bytes=at.device.capacity_bytes,
                    usable_frac=at.device.usable_frac.si,
                    weight_bytes=at.point.weight_bytes,
                    overhead_bytes=at.device.runtime_overhead.count,
                ),
            ),
        ),
    ),
    Result(
        "kv_pool_tokens",
        "token",
        WHOLE,
        "KV tokens of the pool",
        lines=(Line(section="Memory", place=5, words="  in tokens", shown=of_server),),
        reads=POOL,
        how=(
            by(
                capacity.pool_tokens,
                lambda at: dict(free_bytes=at.point.free_bytes, block_tokens=at.design.memory.block_tokens),
            ),
        ),
    ),
    Result(
        "unused_bytes",
        "B",
        WHOLE,
        "memory kept from use",
        lines=(Line(section="Memory", place=6, words="kept from the server", shown=of_server),),
        reads=UNUSED,
        how=(
            How(
                equation="device memory - weights - activations of prompts - graphs and buffers - room for sequences",
                source=capacity.pool_bytes.source,
                terms=lambda at: dict(capacity_bytes=at.results["capacity_bytes"], free_bytes=at.point.free_bytes),
            ),
        ),
    ),
    Result(
        "min_capacity_bytes",
        "B",
        WHOLE,
        "smallest memory for the batch",
        lines=(Line(section="Memory", place=12, words="smallest memory to run the whole batch"),),
        reads=("server_memory", "usable_frac", "runtime_overhead", "kv_page"),
        how=(
            How(
                equation=lambda at: (
                    (
                        capacity.min_reported_bytes.equation
                        if at.is_server
                        else "(weights + overhead + shared + batch * bytes_per_sequence) / usable_frac"
                    )
                    + f"; a request counts {at.counted.rule}"
                ),
                source=_CAPACITY,
                terms=lambda at: dict(
                    weight_bytes=at.point.weight_bytes,
                    overhead_bytes=at.device.runtime_overhead.count,
                    usable_frac=at.device.usable_frac.si,
                    shared_bytes=at.counted.shared_bytes,
                    batch=at.work.batch,
                    bytes_per_sequence=at.counted.own_bytes,
                ),
            ),
        ),
    ),
    Result(
        "feasible",
        "",
        FLAG,
        "one request fits",
        reads=MEMORY,
        how=(
            How(
                equation="max_batch >= 1: at least one request fits",
                source=_CAPACITY,
                terms=lambda at: dict(max_batch=at.point.max_batch),
            ),
        ),
    ),
    Result(
        "infeasible_reason",
        "",
        NAME,
        "why none fits",
        reads=MEMORY,
        how=(
            How(
                equation="what is missing for one request; none where one fits",
                source=_CAPACITY,
                terms=lambda at: dict(
                    free_bytes=at.point.free_bytes,
                    bytes_per_sequence=max(size.shared + size.own for size in at.made.sizes) / at.point.unit,
                ),
            ),
        ),
    ),
    Result(
        "fits_whole_batch",
        "",
        FLAG,
        "whole batch fits",
        reads=MEMORY,
        how=(
            How(
                equation="max_batch >= batch",
                source=capacity.max_batch.source,
                terms=lambda at: dict(max_batch=at.point.max_batch, batch=at.work.batch),
            ),
        ),
    ),
    Result(
        "max_batch",
        "sequence",
        WHOLE,
        "largest batch",
        lines=(Line(section="Memory", place=13, words="largest batch"),),
        reads=MEMORY,
        how=(
            How(
                equation=lambda at: (
                    f"{capacity.max_batch.equation}{'' if at.work.max_num_seqs is None else ', at most max_num_seqs'}; "
                    f"a request counts {at.counted.rule}"
                ),
                source=capacity.max_batch.source,
                terms=lambda at: dict(
                    free_bytes=at.point.free_bytes,
                    shared_bytes=at.counted.shared_bytes,
                    bytes_per_sequence=at.counted.own_bytes,
                    activation_bytes_per_sequence=at.made.activation_bytes,
                    workspace_bytes_per_sequence=at.made.workspace_bytes,
                    admission=at.work.admission,
                    **({} if at.work.max_num_seqs is None else {"max_num_seqs": at.work.max_num_seqs}),
                ),
            ),
        ),
    ),
    Result(
        "max_context_tokens",
        "token",
        WHOLE,
        "longest context",
        lines=(Line(section="Memory", place=14, words="longest context, all requests at once"),),
        reads=MEMORY,
        how=(
            How(
                equation=(
                    "largest s such that the whole batch fits with all requests at s' tokens at once, for every "
                    "s' <= s; where a token policy follows the prompt, s less the output is the prompt"
                ),
                source=_CAPACITY,
                terms=lambda at: dict(free_bytes=at.point.free_bytes, batch=at.work.batch),
            ),
        ),
    ),
)
