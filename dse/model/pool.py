"""Cut the pool of a server into blocks: groups of equal layers that share blocks, and the blocks of a request.

As vLLM lays out models whose layers differ (vllm/v1/core/kv_cache_utils.py): every group has the same number of layers,
the last of a kind padded; all blocks have one size; a block holds as many tokens as its kind of layer needs for it.
"""

import math
from typing import NamedTuple

from dse.core import units
from dse.model.kv_layout import KvPlan
from dse.model.records import NO_LIMIT
from dse.specs import llama_cpp, servers
from dse.specs.huggingface import mixers
from dse.specs.workload import Workload

#: tokens that blocks of latent heads beside states are multiples of (vLLM 0.33.0, vllm/platforms/interface.py)
_LATENT_TOKENS = 128


class PoolBlocks(NamedTuple):
    """A pool of blocks. Bits are numerators over the plan's denominator, of all stages; all 0: layers do not differ."""

    #: of all layers of a group
    block_bits: int
    #: by which a server divides the blocks to print tokens (0: it prints those of requests), and tokens of a part
    n_groups: int
    printed_tokens: int
    #: groups of layers that keep all tokens, and the tokens of their blocks
    full_groups: int
    full_block_tokens: int
    #: the same of layers with a window, and their window
    window_groups: int = 0
    window_block_tokens: int = 1
    window_tokens: int = 1
    #: one more a group, as windows begin anywhere
    window_spare: int = 0
    #: blocks of the constant states of a request
    state_blocks: int = 0
    #: of the room for keys, values and states, what a request must have that its states find places; 0: they are
    #: among its blocks, or their places are counted
    state_share_bits: int = 0
    #: requests whose states have places; 0: not counted
    most_of_states: int = 0
    #: blocks of the windows and states of all slots
    slot_blocks: int = 0


#: layers do not differ: tokens are those of the mean over a sequence
ALIKE = PoolBlocks._make([0] * len(PoolBlocks._fields))


class _Kind(NamedTuple):
    """Layers that are alike: bits of a token, or of a request (constant states)."""

    n_layers: int
    bits: int
    window_tokens: int
    is_state: bool


def _kinds(plan: KvPlan, n_drafted: int = 0) -> list[_Kind]:
    counts: dict[tuple[int, int, bool], int] = {}
    for shape, (layer, n_layers) in enumerate(plan.layers):
        groups = [g for g in plan.groups if g.shape_index == shape]
        if layer.state_bytes:
            n_bytes = layer.state_bytes + n_drafted * mixers.input_bytes(layer)
            key = (units.BITS_PER_BYTE * n_bytes * plan.den, 1, True)
            counts[key] = counts.get(key, 0) + n_layers
        elif groups and groups[0].n_stored_layers:
            key = (
                sum(g.packed_bits for g in groups) + layer.index_bits * (plan.den // plan.token_shards),
                groups[0].window_tokens,
                False,
            )
            counts[key] = counts.get(key, 0) + groups[0].n_stored_layers
    return [_Kind(n, bits, window, is_state) for (bits, window, is_state), n in counts.items()]


def blocks_of(
    plan: KvPlan, server: servers.Server, page_tokens: int, window_share: float, n_drafted: int = 0
) -> PoolBlocks:
    """The blocks of a plan as one device has it; `ALIKE` where no layer has a window or a constant state.

    Where tokens are drafted, a request has a state more for each (vLLM, v1/kv_cache_interface.py, MambaSpec), and each
    state one token's inputs more (model_executor/layers/mamba/mamba_utils.py).
    """
    kinds = _kinds(plan, n_drafted)
    full = [kind for kind in kinds if not kind.is_state and kind.window_tokens >= NO_LIMIT]
    windowed = [kind for kind in kinds if not kind.is_state and kind.window_tokens < NO_LIMIT]
    states = [kind for kind in kinds if kind.is_state]
    if not (windowed or states) or (server.printing == servers.TOKENS and not full):
        return ALIKE
    if server.printing == servers.TOKENS:
        return _by_tokens(full, windowed, states, server, page_tokens, window_share)
    is_mixed = any(len(alike) > 1 for alike in (full, windowed, states))
    if is_mixed or any(layer.tokens_per_entry > 1 or layer.joined for layer, _ in plan.layers):
        return _by_bits(full, windowed, states, server)
    if states and plan.model.is_latent:
        page_tokens = max(page_tokens, _LATENT_TOKENS)
    return _padded(full, windowed, states, server, page_tokens, n_drafted)


def _padded(
    full: list[_Kind],
    windowed: list[_Kind],
    states: list[_Kind],
    server: servers.Server,
    page_tokens: int,
    n_drafted: int,
) -> PoolBlocks:
    """Layers of at most one kind each: groups of equally many, whose blocks are as large as the largest."""
    tokens = [*full, *windowed]
    numbers = [kind.n_layers for kind in (*tokens, *states)]
    group = max(numbers) if max(numbers) < server.alike.si * min(numbers) else min(numbers)
    n_groups = {kind: -(-kind.n_layers // group) for kind in (*tokens, *states)}
    widest = max((kind.bits for kind in tokens), default=0)
    if states and tokens:  # blocks grow until one holds a state
        page_tokens *= max(-(-states[0].bits // (widest * page_tokens)), 1)
    # smaller pages take as many tokens more; those that do not divide are padded, from a release on without more tokens
    keeps = server.unlike_pages == servers.PADDED
    times = {kind: 1 if states or (keeps and widest % kind.bits) else widest // kind.bits for kind in tokens}
    return PoolBlocks(
        block_bits=group * (widest * page_tokens if tokens else states[0].bits),
        n_groups=sum(n_groups.values()) if server.printing == servers.BLOCKS else 0,
        printed_tokens=page_tokens,
        full_groups=sum(n_groups[kind] for kind in full),
        full_block_tokens=page_tokens * times[full[0]] if full else 1,
        window_groups=sum(n_groups[kind] for kind in windowed),
        window_block_tokens=page_tokens * times[windowed[0]] if windowed else 1,
        window_tokens=windowed[0].window_tokens if windowed else 1,
        window_spare=len(windowed),
        state_blocks=(server.state_blocks.count + n_drafted) * sum(n_groups[kind] for kind in states),
    )


def of_slots(
    plan: KvPlan, batch_tokens: int, n_slots: int, *, is_unified: bool, whole_windows: bool, n_held: int
) -> PoolBlocks:
    """The cells of llama.cpp, counted in bits: those of all tokens, and for each slot its windows and states, of which
    `n_held` slots hold theirs whatever runs; `ALIKE` where no layer has any."""
    full, of_slot, has_windows = 0, 0, False
    for kind in _kinds(plan):
        bits = kind.n_layers * kind.bits
        has_windows |= not kind.is_state and kind.window_tokens < NO_LIMIT
        if kind.is_state:
            of_slot += bits
        elif kind.window_tokens < NO_LIMIT and not whole_windows:
            of_slot += bits * llama_cpp.window_cells(kind.window_tokens, batch_tokens, n_slots, is_unified)
        else:
            full += bits
    if not (of_slot or has_windows):
        return ALIKE
    return PoolBlocks(
        block_bits=1,
        n_groups=full,
        printed_tokens=1,
        full_groups=full,
        full_block_tokens=1,
        state_blocks=of_slot,
        slot_blocks=of_slot * n_held,
    )


def slots_bytes(plan: KvPlan, blocks: PoolBlocks, n_tokens: int, work: Workload) -> int:
    """Bytes of llama.cpp's cache of `n_tokens` for all slots."""
    if blocks.block_bits == 0:
        return bytes_of(plan, blocks, n_tokens, work)
    n_bits = n_tokens * blocks.full_groups + blocks.slot_blocks
    return -(-n_bits // (units.BITS_PER_BYTE * plan.den * work.pp))


def bytes_of(plan: KvPlan, blocks: PoolBlocks, n_tokens: int, work: Workload) -> int:
    """Bytes of the whole pages that `n_tokens` fill, in a pool that is not cut by groups of layers."""
    kinds = [kind for kind in _kinds(plan) if not kind.is_state]
    page_bits = blocks.block_bits or work.block_tokens * sum(kind.n_layers * kind.bits for kind in kinds)
    n_bits = n_tokens // work.block_tokens * page_bits
    return max(-(-n_bits // (units.BITS_PER_BYTE * plan.den * work.pp)), 1)


def _by_tokens(
    full: list[_Kind],
    windowed: list[_Kind],
    states: list[_Kind],
    server: servers.Server,
    page_tokens: int,
    window_share: float,
) -> PoolBlocks:
    """A pool that keeps a share of the tokens of layers without a window for those with one, and of its memory for
    states: tokens are those without a window."""
    bits = sum(kind.n_layers * kind.bits for kind in full)
    bits += round(window_share * sum(kind.n_layers * kind.bits for kind in windowed))
    share, of_request = float(server.state_share.si), 0
    if states:
        bits = round(bits * (1 + share))
        states_bits = server.request_states.count * sum(kind.n_layers * kind.bits for kind in states)
        of_request = math.ceil(states_bits * (1 + share) / share) if share else 0
    return PoolBlocks(
        block_bits=max(bits, 1) * page_tokens,
        n_groups=1,
        printed_tokens=page_tokens,
        full_groups=1,
        full_block_tokens=page_tokens,
        state_share_bits=of_request,
    )


def _by_bits(full: list[_Kind], windowed: list[_Kind], states: list[_Kind], server: servers.Server) -> PoolBlocks:
    """Layers of many kinds, or that compress tokens: a block is a bit, nothing is padded."""
    of_full, of_windowed = (sum(kind.n_layers * kind.bits for kind in kinds) for kinds in (full, windowed))
    return PoolBlocks(
        block_bits=1,
        n_groups=max(of_full + of_windowed, 1) if server.printing == servers.BLOCKS else 0,
        printed_tokens=1,
        full_groups=of_full,
        full_block_tokens=1,
        window_groups=of_windowed,
        window_block_tokens=1,
        window_tokens=max((kind.window_tokens for kind in windowed), default=1),
        state_blocks=sum(kind.n_layers * kind.bits for kind in states),
    )
