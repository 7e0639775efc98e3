"""Inputs of the model: records of plain numbers, by name, for one design.

`lower` makes them from specs. For one point they are these tuples; for many they are rows of arrays with the same
field names (`dtype_of`). Bits are whole numbers over the common denominator `LanguageModel.den`, since nominal outlier
shares give fractions of a bit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

if TYPE_CHECKING:
    import numpy as np

#: a whole number that there is not
MISSING = -(2**63)
#: stands for "no window" and "no limit": beyond any length that the tool accepts
NO_LIMIT = 2**61
#: how a server schedules prompts: a batch together, from its prompts to its last token; whole prompts in steps of
#: their own; parts of prompts beside what decodes
STATIC, CONTINUOUS, CHUNKED = 0, 1, 2
#: dequantization paths
NONE, ENGINE, FUSED, MATERIALISED = range(4)
PATHS = {"none": NONE, "engine": ENGINE, "fused": FUSED, "materialised": MATERIALISED}


#: a tensor of constant states: read and written in every step, so its layers are counted twice in reads
KEYS, VALUES, STATES = range(3)


class Tensor(NamedTuple):
    """Equal keys, or values, of several layers of one sequence; or their constant states, as one token of a window of
    one."""

    #: 0 keys, 1 values, 2 constant states
    side: int
    #: which of `Design.kernels` reads it: keys and values of the same layers share one
    shape: int
    n_stored_layers: int
    n_read_layers: int
    #: elements of a token
    n_elements: int
    #: of the layers themselves, whatever a token policy adds
    window_tokens: int
    #: tokens after which reading starts anew
    chunk_tokens: int
    #: tokens that a step reads at most, by the model's index or a policy
    read_limit_tokens: int
    packed_bits: int
    full_bits: int
    once_bits: int
    pool_bits: int
    #: tokens that are quantised at a time, and those kept in FP16 before
    step_tokens: int
    residual_tokens: int
    #: stored packed, on a path of `PATHS`
    is_packed: int
    path: int
    #: kernels of the method's own, for a decode step and for a packing event
    read_launches: int
    pack_launches: int
    #: the method's code extends its buffers by copying them
    copies_to_append: int
    copies_window: int
    #: tokens to whose multiple the method's code pads what it unpacks
    tile_tokens: int
    #: bits of a token that fill pages of bytes, and such a page of all heads; 0 without a memory unit
    dense_stream_bits: int
    sparse_stream_bits: int
    page_row_bits: int
    #: what an unused slot of a page costs
    tail_bits: int
    #: kept and read for every stored token where a policy reads only some, and what scoring one takes
    index_bits: int
    index_flops: int
    #: sinks kept apart, and seconds of work on them when a layer packs
    pool_rows: float
    sink_s: float
    #: seconds of a core for a packed element, and elements a second unpacked by all; 0: no such ceiling
    packed_core_s: float
    unpack_rate_per_s: float


class Layer(NamedTuple):
    """Equal layers of the model: what attention computes. A constant state is a window of one token."""

    n_layers: int
    window_tokens: int
    #: tokens after which what is read starts anew
    chunk_tokens: int
    #: tokens that a step, or a token of a prompt, reads at most
    read_limit_tokens: int
    #: operations of a query token and a cached token
    pair_flops: int
    #: the same where a prompt is computed: latent heads are expanded there
    prompt_pair_flops: int
    #: of a token of a prompt, however few tokens it reads
    prompt_token_flops: int
    #: operations that score one stored token, where a policy reads only some
    index_flops: int


class AttentionKernel(NamedTuple):
    """The measured attention kernel of equal layers of a stack."""

    n_layers: int
    n_kv_heads: int
    io_bytes: int
    #: operations of one cached token
    token_flops: int
    is_reordered: int
    #: unpacking or reading is limited by the cores
    has_ceiling: int
    launch_s: float
    #: share of the peak bandwidth that it reaches
    memory_frac: float
    #: cores that one sequence and KV head keep busy at most, whatever its length; 0: as many as it has splits
    cores_per_unit: float
    #: share of the peak FLOP/s that its products reach in steps
    flops_frac: float
    split_s: float
    #: scheduling of a work unit, and seconds of a core for an element that is not packed
    unit_s: float
    plain_core_s: float
    #: share of the peak bandwidth at which an index is read before, 0: no kernel of its own; and seconds to choose
    #: among the tokens of a sequence, for each of them
    index_frac: float
    choice_s: float
    #: FP8 elements of the pool, a byte each, that a core writes in 16 bits in a second before the kernel reads them; 0:
    #: it reads what is stored
    cast_per_s: float


class Product(NamedTuple):
    """The products with some of the weights: parameters that a token meets, outside and of the experts."""

    active: float
    dense: float
    #: of these, parameters that stay in 16 bits though the layers do not
    kept: float
    experts: float
    n_products: int
    #: 1: of a prompt for its last token alone
    is_last_only: int


class Exchange(NamedTuple):
    """Equal collectives of a pass of all layers; what they take is in dse/model/formulas/collectives.py."""

    n_per_pass: int
    #: bytes of the whole tensor for a token of a device's batch
    token_bytes: int
    #: 0: only for tokens that are generated
    in_prompt: int
    start_s: float
    bytes_per_s: float
    chunk_share: float
    direct_start_s: float
    direct_bytes_per_s: float
    split_bytes_per_s: float


class LanguageModel(NamedTuple):
    """The model as a whole, and the denominator of all bits."""

    den: int
    n_q_heads: int
    #: query heads that share a head of keys and values, in the layers where the fewest do
    queries_per_head: int
    dense_parameters: int
    #: of these, what stays in 16 bits though the layers do not
    kept_parameters: int
    #: as stored, padding included
    expert_parameters: int
    n_experts: int
    n_active_experts: int
    activation_elements: int
    logits_elements: int
    n_layers: int
    n_products: int
    #: parameters that are looked up, not multiplied: the table of input embeddings, where that is counted apart
    unread_parameters: int
    #: of those that a token meets, the parameters of routed experts
    active_expert_parameters: float
    #: bits that the memory takes to write a token, where slices are rounded up to bursts
    burst_bits: int
    active_parameters: float
    #: attention's own weights where groups of requests have theirs each, which meet the tokens of one group, and of
    #: these what stays in 16 bits; 0 without groups
    own_parameters: int
    own_kept_parameters: int
    #: of those that a token meets, the output head where a prompt needs it for its last token alone; 0: for all
    head_parameters: float


class Policy(NamedTuple):
    """Token policy: tokens stored and read (dse/specs/tokens.py), before the prompt is known."""

    window_tokens: int
    read_limit_tokens: int
    #: tokens that a token of the prompt looks back at
    prompt_window_tokens: int
    prompt_kept_tokens: int
    dropped_tokens: int
    #: 1: tokens of the prompt leave once it is computed, all but `budget_tokens`, or (0) two shares of it
    evicts: int
    budget_tokens: int
    heavy: int
    of_heavy: int
    recent: int
    of_recent: int
    #: 1: a token leaves for each that comes
    rolls: int
    #: kept and read for every stored token of layers that read only some, and what scoring one of them takes
    index_bits: int
    index_flops: int


class Stack(NamedTuple):
    """Launch times and achieved shares of a software stack; zeros, and shares of 1, in the ideal model."""

    has_attention: int
    has_gemm: int
    has_copies: int
    n_cores: int
    gemm_launch_s: float
    gemm_memory_frac: float
    gemm_flops_frac: float
    #: 1 at the peaks of a chip whose kernels were measured: nothing counts that an implementation costs, as packing and
    #: unpacking in registers and starts of collectives do, nor the board's power
    at_peak: int
    layout_copy_s: float
    memory_frac: float
    copy_launch_s: float
    copy_frac: float
    #: shares of the peak FLOP/s by which attention's operations are counted in steps, and that it reaches over prompts
    flops_frac: float
    prompt_flops_frac: float
    #: peak rates of the products' formats; 0: by the bits of activations
    dense_peak_per_s: float
    expert_peak_per_s: float
    #: grouped products of routed experts, where they were measured; else they count with the others
    has_experts: int
    expert_launch_s: float
    expert_memory_frac: float
    expert_flops_frac: float
    #: what a server does beside kernels: of a layer, of a step, of a sequence in it, of a prompt, and of each request
    #: that runs before a first token
    host_layer_s: float
    host_sequence_s: float
    host_prompt_s: float
    host_request_s: float
    #: of a prompt, while which nothing else runs
    host_blocks_s: float
    #: rounds after which requests that started at once have fallen out of step
    rounds_in_step: float
    #: on times per token, by measurements of a server of one's own (dse/model/own_server.py)
    token_time: float


class Device(NamedTuple):
    """A device: peak rates, memory, power. A rate is a value and the size of its unit; nan where there is none."""

    capacity_bytes: int
    #: what its driver reports; 0 where no server runs on it
    reported_bytes: int
    overhead_bytes: int
    token_cores: int
    #: rows of its systolic arrays, 0: none
    array_rows: int
    usable_frac: float
    bandwidth_bytes_per_s: float
    #: at which attention reads keys and values: of the banks where the memory computes, else the same
    kv_bandwidth_bytes_per_s: float
    #: from host memory; 0: not given
    host_bytes_per_s: float
    peak_flops: float
    peak_flops_unit: float
    peak_flops_fp8: float
    peak_flops_fp8_unit: float
    peak_ops_int8: float
    peak_ops_int8_unit: float
    #: of engines that unpack, and of those that pack
    engine_rate_per_s: float
    quantize_rate_per_s: float
    fused_rate_per_s: float
    kernel_launch_s: float
    board_power_w: float
    usd_per_hour: float
    energy_per_byte: float
    energy_per_flop: float
    idle_power_w: float
    #: J of bytes of 8 and 4 bits, of keys and values in 16 bits and fewer, and of operations of 8 and 4 bits; of those
    #: 0: as of 16 bits at the peak
    energy_per_byte_fp8: float
    energy_per_byte_fp4: float
    energy_per_kv_byte: float
    energy_per_kv_byte_fp8: float
    energy_per_flop_fp8: float
    energy_per_flop_fp4: float
    #: W that bounds power, where the energy was measured; 0: no bound
    power_limit_w: float


class Load(NamedTuple):
    """The workload of a design, but for batch and lengths."""

    is_paged: int
    #: tokens that memory is given out by; 1 where every request reserves what it needs
    page_tokens: int
    prefix_tokens: int
    #: of 1,000 bytes of a request's keys and values, those that lie in host memory
    offloaded_permille: int
    #: answers drawn for each prompt, which share its whole blocks
    samples: int
    #: bits of a parameter times 8, outside the experts and of them
    dense_eighths: int
    expert_eighths: int
    activation_bits: int
    #: of the narrowest products with weights, by the peak rate that they run at
    product_bits: int
    chunk_tokens: int
    #: requests that take each place of a steady server, one after the other
    rounds: int
    #: STATIC, CONTINUOUS or CHUNKED, and tokens of a step that computes prompts at most
    batching: int
    step_tokens: int
    #: of all devices, that the server runs at once at most
    max_num_seqs: int
    #: the batch where none is given, at most: what the server takes by default
    most_at_once: int
    has_cache: int
    #: nan: none
    cached_input_discount: float


class Memory(NamedTuple):
    """Memory reserved on a device: none as papers count (all 0, shares of 1), or what a server keeps."""

    is_server: int
    #: as given, or the server's own
    asked_share: float
    #: of what the driver reports, for all that the server keeps
    share: float
    #: of what is then left beside weights, activations, graphs and buffers, for keys and values
    share_of_free: float
    #: activations of the largest batch of prompt tokens; CUDA graphs; context, workspaces and buffers of communication
    prompt_bytes: int
    graph_bytes: int
    buffer_bytes: int
    #: of these, what lies beside the share
    outside_bytes: int
    #: counted with the weights: towers, copies of latent attention, tables of rotary positions, an uneven last stage
    beside_bytes: int
    #: given for keys and values in place of a share; 0: by the share
    given_bytes: int
    #: of keys and values, by a limit of tokens; 0: none
    most_bytes: int
    #: tokens of a block of the pool
    block_tokens: int
    #: longest context that the server takes; 0: that of the requests
    longest_tokens: int
    #: tokens of prompts worked on together, kept of layers with a window beside it
    budget_tokens: int
    #: places that a request keeps for drafted tokens beyond its last, and their bits over the plan's denominator
    lookahead_tokens: int
    lookahead_bits: int
    #: times that keys and values are held at the peak of a step
    cache_copies: int
    #: where layers differ, blocks of the pool (dse/model/pool.py), of all stages; all 0 where they are alike
    block_bits: int
    #: by which a server divides them to print tokens; 0: it prints those of requests of the longest context
    n_groups: int
    printed_tokens: int
    full_groups: int
    full_block_tokens: int
    window_groups: int
    window_block_tokens: int
    window_tokens: int
    window_spare: int
    state_blocks: int
    state_share_bits: int
    most_of_states: int
    #: blocks of the windows and states of all slots, which hold no tokens of the pool (llama.cpp)
    slot_blocks: int


class Deployment(NamedTuple):
    """Split of the model over several devices; all else in a design is one device's part, of all stages."""

    n_devices: int
    #: stages that the layers are split over
    n_stages: int
    #: groups of requests whose KV lies apart
    n_groups: int
    #: batches that are in the pipeline at once
    n_in_flight: int
    #: experts of each device that whole experts are spread over, 0: every device has a slice of each; and by how many
    #: standard deviations the fullest of them is above the mean
    experts_each: float
    fullest: float


class Design(NamedTuple):
    """One design, as every function of the model takes it."""

    tensors: Sequence[Tensor]
    layers: Sequence[Layer]
    #: of the stack, by shape of layers; none in the ideal model
    kernels: Sequence[AttentionKernel]
    products: Sequence[Product]
    exchanges: Sequence[Exchange]
    model: LanguageModel
    policy: Policy
    stack: Stack
    device: Device
    load: Load
    memory: Memory
    deployment: Deployment
    input_tokens: int
    output_tokens: int


Record = (
    Tensor
    | Layer
    | AttentionKernel
    | Product
    | Exchange
    | LanguageModel
    | Policy
    | Stack
    | Device
    | Load
    | Memory
    | Deployment
)


def known(number: Any) -> Any:
    """A number of the core as results show it: None for one that there is not."""
    return None if number == MISSING or number != number else number


_DTYPES: "dict[type[Any], np.dtype[Any]]" = {}


def dtype_of(record: type[Record]) -> "np.dtype[Any]":
    """The row of an array that holds such a record."""
    import numpy as np  # not needed for one point

    if record in _DTYPES:
        return _DTYPES[record]
    fields = [(name, "f8" if kind is float else "i8") for name, kind in get_type_hints(record).items()]
    return _DTYPES.setdefault(record, np.dtype(fields, align=True))
