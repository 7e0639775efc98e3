"""Requests of layers with windows and constant states: a pool that hands out blocks token by token, against the core.

The rules of vLLM's pool (vllm/v1/core/kv_cache_utils.py), written again as loops: layers in groups of equal number, one
size of block for all, a block a group as a request's tokens need it; blocks of a window's tokens that left are free.
"""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import naive
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.device_and_model import LayerKV
from dse.specs.workload import Workload
from factories import build, layer, model

PAGE = 16
H100 = catalog.device("h100")


def state(n_layers, n_bytes):
    return LayerKV(n_layers=n_layers, state_bytes=n_bytes, state_flops=100, state_code="mamba2")


class Pool:
    """Blocks of a server, and how many a request holds: of each kind (layers, bits of a token, window; or of a state)
    so many groups."""

    def __init__(self, kinds, n_bits):
        numbers = [n for n, *_ in kinds]
        few, most = min(numbers), max(numbers)
        each = most if most < 1.5 * few else few
        tokens = [bits for _, bits, _, is_state in kinds if not is_state]
        self.page_tokens, self.kinds = PAGE, []
        for _, bits, _, is_state in kinds:  # blocks grow until one holds a state
            while is_state and max(tokens) * self.page_tokens < bits:
                self.page_tokens += PAGE
        page = max(tokens) * self.page_tokens
        has_states = any(is_state for *_, is_state in kinds)
        for n, bits, window, is_state in kinds:
            own = 0 if is_state else self.page_tokens
            if own and not has_states and page % (bits * own) == 0:  # smaller tokens: more of them fill a block
                own = page // bits
            self.kinds.append((naive.pages(n, each), own, window))
        self.n_free = n_bits // (each * page)

    def blocks(self, n_tokens):
        """Blocks of a request of `n_tokens`, one token after the other."""
        held = 0
        for n_groups, block_tokens, window in self.kinds:
            own = room = 0
            if block_tokens == 0:
                own = 2  # the state, whatever the length, and one that is kept with a prefix
            else:
                for _ in range(n_tokens if window is None else min(n_tokens, window)):
                    if room == 0:
                        own, room = own + 1, block_tokens
                    room -= 1
                own += window is not None  # a window begins anywhere in its first block
            held += n_groups * own
        return max(held, 1)

    def requests(self, n_tokens):
        """Requests that are let in, one after the other, until the blocks are gone."""
        need, left, count = self.blocks(n_tokens), self.n_free, 0
        while left >= need:
            left, count = left - need, count + 1
        return count


def bits_of(kinds, n_tokens, page):
    """Bits of a request, every layer in whole pages of so many tokens."""
    total = 0
    for n, bits, window, is_state in kinds:
        kept = n_tokens if window is None else min(n_tokens, window)
        total += n * (bits if is_state else bits * naive.pages(kept, page) * page)
    return total


def let_in(kinds, n_bits, final, page):
    """Requests at once, each at its full length: by the pool's blocks, and by bits alone, one more and one more."""
    by_bits, own = 0, bits_of(kinds, final, page)
    while (by_bits + 1) * own <= n_bits:
        by_bits += 1
    return min(Pool(kinds, n_bits).requests(final), by_bits)


COUNTS = st.integers(1, 12)
KINDS = st.tuples(
    st.none() | st.tuples(COUNTS, st.sampled_from([1, 2, 4])),
    st.none() | st.tuples(COUNTS, st.sampled_from([1, 2, 3]), st.integers(1, 300)),
    st.none() | st.tuples(COUNTS, st.integers(1, 60_000)),
)


@given(
    KINDS,
    st.sampled_from(["fp16", "fp8"]),
    st.integers(1, 400),
    st.integers(1, 300),
    st.integers(1, 60),
    st.sampled_from(["reserve", "paged"]),
)
@example(((4, 1), (5, 1, 300), None), "fp16", 300, 100, 40, "paged")  # two groups of windows
@example(((10, 1), (12, 1, 300), None), "fp16", 300, 100, 40, "paged")  # one, of which two layers are padding
def test_as_many_run_as_blocks_are_handed_out_for(kinds, quantizer, n_in, n_out, n_requests, admission):
    full, windowed, states = kinds
    assume((windowed or states) and (full or windowed))
    n_bits_of_value, page = {"fp16": 16, "fp8": 8}[quantizer], PAGE if admission == "paged" else 1
    layers, counted = [], []
    for n, n_heads, window in [(*kind, None)[:3] for kind in (full, windowed) if kind]:
        layers.append(layer(n_layers=n, n_kv_heads=n_heads, dim=32, window=window))
        counted.append((n, 2 * n_heads * 32 * n_bits_of_value, window, False))
    if states:
        layers.append(state(*states))
        counted.append((states[0], 8 * states[1], None, True))
    n_bits = n_requests * bits_of(counted, n_in + n_out, PAGE)
    work = Workload(
        None,
        n_in,
        n_out,
        admission=admission,
        page_tokens=PAGE,
        stack="vllm",
        max_num_seqs=1_000_000,
        kv_cache_memory_bytes=n_bits // 8,
    )
    found = Point(H100, build(model(*layers), quantizer), work)
    assert found.max_batch == let_in(counted, n_bits // 8 * 8, n_in + n_out, page)


@pytest.mark.parametrize("admission", ["paged", "reserve"])
def test_a_server_takes_requests_at_their_full_length(admission):
    """gpt-oss-120b on a B200, 2,048 tokens: 128 blocks of the 18 layers without a window, 8 + 1 of those with one of
    128, however memory is handed out; blocks of 18 x 16 x 2,048 B."""
    work = Workload(None, 1024, 1024, admission=admission, max_num_seqs=2048)
    point = Point(catalog.device("b200"), build("gpt-oss-120b", "fp16"), work)
    n_blocks = point.free_bytes // (18 * 16 * 2048)
    assert point.max_batch == n_blocks // (128 + 8 + 1) > 1000
