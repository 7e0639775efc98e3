"""What fits: against loops over every length, with shared prefixes, pages and windows."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

import naive
from dse.model import capacity as fitting
from dse.model.formulas import capacity
from dse.model.implementations import starts_of
from dse.model.kv_bytes import Limits
from dse.model.point import Point
from dse.model.records import NO_LIMIT
from dse.specs import catalog
from dse.specs.device_and_model import Quantity
from dse.specs.workload import Workload
from factories import PLANS, as_groups, build, device, sequence, unused_bits

PAGE = 4
#: elements of a token's activations of the toy model: what it names, fewer than its logits
ACTIVATIONS = 64


def memory_of(dev, kv, batch=1, n_in=40, n_out=40, prefix=0, admission="reserve"):
    work = Workload(batch, n_in, n_out, admission=admission, prefix_tokens=min(prefix, n_in), page_tokens=PAGE)
    return Point(dev, kv, work)


def workspace_bytes(memory, length):
    """FP16 copies of the layer that needs most of them, of what is materialised."""
    by_shape = {}
    for g in memory.plan.groups:
        if g.layout.needs_dequantizing and memory.paths[g.place] == "materialised":
            kept, tile = min(length, g.window_tokens), starts_of(g).tile_tokens
            elements = g.n_elements * naive.pages(kept, tile) * tile
            by_shape[g.shape_index] = by_shape.get(g.shape_index, 0) + elements
    return 2 * max(by_shape.values(), default=0)


def extra(memory, kv, length):
    """Bits (numerator) of what is worked on: one token of activations, and copies on the materialised path."""
    return 8 * kv.den * (2 * ACTIVATIONS + workspace_bytes(memory, length))


def need(memory, kv, n_sequences, length):
    """Bits (numerator) of a batch at one length, from the slow twins."""
    paged = memory.work.admission == "paged"
    prefix = memory.work.prefix_tokens
    shared = naive.shared_bits(as_groups(kv), length, prefix // PAGE * PAGE if paged else prefix)
    own = naive.sequence_bits(as_groups(kv), length) - shared + extra(memory, kv, length)
    if paged:
        own += unused_bits(kv, length, PAGE)
    return shared + n_sequences * own


ADMISSION = st.sampled_from(["reserve", "paged"])


@given(PLANS, st.integers(1, 200), st.integers(0, 200))
def test_shared_bits_are_the_loop_over_tokens(kv, n, prefix):
    assert sequence(kv).shared_bits(n, prefix) == naive.shared_bits(as_groups(kv), n, prefix)


@given(
    PLANS,
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(0, 60),
    ADMISSION,
    st.sampled_from([0, 1_900_000, 1_980_000]),
)
def test_largest_batch_fits_and_one_more_does_not(kv, n_in, n_out, prefix, admission, taken):
    dev = device(capacity=2 * 10**6, default="materialised")
    dev = dev.model_copy(update={"runtime_overhead": Quantity(value=taken, unit="B", source="test", kind="assumed")})
    memory = memory_of(dev, kv, 1, n_in, n_out, prefix, admission)
    free, lengths = memory.free_bytes * memory.unit, range(n_in, n_in + n_out + 1)
    if any(need(memory, kv, 1, s) > free for s in lengths):
        assert memory.max_batch == 0
        return
    if admission == "reserve":

        def total(n):
            return max(need(memory, kv, n, s) for s in lengths)
    else:
        once = memory.work.prefix_tokens // PAGE * PAGE
        shared = max(naive.shared_bits(as_groups(kv), s, once) for s in lengths)
        own = Fraction(sum(need(memory, kv, 2, s) - need(memory, kv, 1, s) for s in lengths[1:]), n_out)
        own += extra(memory, kv, lengths[-1]) - Fraction(sum(extra(memory, kv, s) for s in lengths[1:]), n_out)

        def total(n):
            return shared + n * own

    assert memory.max_batch == 1 or total(memory.max_batch) <= free
    assert total(memory.max_batch + 1) > free


@given(PLANS, st.integers(1, 40), st.integers(0, 150), ADMISSION)
def test_longest_context_fits_with_all_shorter_and_one_more_does_not(kv, batch, prefix, admission):
    memory = memory_of(device(capacity=1_200_000), kv, batch, 200, 1, prefix, admission)
    longest = memory.max_context_tokens
    if longest is None:
        assert all(g.window_tokens < NO_LIMIT or not g.n_stored_layers for g in kv.groups)
        return
    free = memory.free_bytes * memory.unit
    assert all(need(memory, kv, batch, n) <= free for n in range(1, min(longest, 400) + 1))
    if longest < 400:
        assert need(memory, kv, batch, longest + 1) > free


@given(
    PLANS,
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 30),
    st.integers(0, 40),
    ADMISSION,
    st.sampled_from([1.0, 0.9, 0.37]),
)
def test_smallest_memory_is_what_the_whole_batch_needs(kv, n_in, n_out, batch, prefix, admission, usable):
    dev = device(default="materialised")
    share = dev.usable_frac.model_copy(update={"value": usable})

    def on(capacity_bytes):
        size = dev.memory_capacity.model_copy(update={"value": capacity_bytes})
        spec = dev.model_copy(update={"memory_capacity": size, "usable_frac": share})
        return memory_of(spec, kv, batch, n_in, n_out, prefix, admission)

    asked = on(10**9)
    least = fitting.min_capacity_bytes(asked.design, asked.made, batch)
    assert on(least).max_batch >= batch
    assert on(least - 1).max_batch < batch


@given(PLANS, st.integers(1, 30), st.integers(1, 60), st.integers(1, 60), st.integers(0, 60), ADMISSION)
def test_bytes_of_a_batch_count_a_shared_prefix_once(kv, batch, n_in, n_out, prefix, admission):
    memory = memory_of(device(), kv, batch, n_in, n_out, prefix, admission)
    last = n_in + n_out
    bits = need(memory, kv, batch, last) - batch * extra(memory, kv, last)
    assert fitting.kv_bytes(memory.design, memory.made, batch) == -(-bits // memory.unit)


@given(PLANS, st.integers(1, 60), st.integers(1, 60), ADMISSION)
def test_the_peak_of_a_sequence_is_the_largest_of_all_its_lengths(kv, n_in, n_out, admission):
    memory = memory_of(device(), kv, 1, n_in, n_out, 0, admission)
    most = max(need(memory, kv, 1, n) - extra(memory, kv, n) for n in range(n_in, n_in + n_out + 1))
    assert memory.to_bytes(memory.made.peak_bits) == -(-most // memory.unit)


def few_lengths(limits, page, prefix, first, last, *tensors):
    """Lengths that a search looks at, of tensors of (step, residual, window)."""
    counted = sequence(build("llama2-7b", "fp16"))
    plain = counted.design.tensors[0]
    names = ("step_tokens", "residual_tokens", "window_tokens")
    counted.design = counted.design._replace(
        tensors=tuple(plain._replace(**dict(zip(names, each, strict=True))) for each in tensors)
    )
    counted.limits = Limits(NO_LIMIT, *limits)
    return {*counted.peak_lengths(first, last, prefix, page)}


def test_lengths_that_a_search_looks_at_by_hand():
    """Each regime's end, the length after it, and those before a group is packed in the last 8, the least common
    multiple: residual + a multiple of the step - 1."""
    ends = {
        (10, 100): (99, 92, 96, 92),  # the first and the last; 4 + 96, 5 + 88, 5 + 92 and 5 + 88
        (40, 41): (35, 36, 36, 32),  # the window of the first two
        (70, 71): (67, 68, 68, 64),  # that of the third
        (27, 28): (19, 20, 24, 20),  # 18 of the prefix are packed from 3 * 8 + 4 on in the first,
        (28, 29): (27, 20, 24, 20),  # 3 * 8 + 5 in the second,
        (24, 25): (19, 20, 20, 16),  # and 5 * 4 + 5 in the third
        (18, 19): (11, 12, 16, 12),  # the prefix itself
    }
    found = few_lengths((200, 0), 1, 18, 10, 100, (8, 4, 40), (8, 5, 40), (4, 5, 70))
    assert found == {length for regime, before in ends.items() for length in (*regime, *before)}
    # in the last 6 of 20: 18 and 15 less 1; 20, 18 and 16 less 1; 19, 17 and 15 less 1
    found = few_lengths((200, 0), 1, 0, 1, 20, (3, 0, NO_LIMIT), (2, 0, NO_LIMIT), (2, 1, NO_LIMIT))
    assert found == {1, 20, 17, 14, 19, 15, 18, 16}


def test_lengths_that_a_search_looks_at_begin_pages():
    """Of a prompt 10 tokens are kept and the next 7 dropped: tokens 9, 13, ... that come in begin a page of 4."""
    # 30 is the 23rd that came in, of a page from the 21st on; 11 to 17 add nothing to the 10th; 18 is the 11th
    assert few_lengths((10, 7), 4, 0, 10, 30, (1, 0, NO_LIMIT)) == {30, 28, 10, 11, 17, 16, 18}
    assert few_lengths((10, 7), 4, 0, 9, 30, (1, 0, NO_LIMIT)) == {30, 28, 10, 9, 11, 17, 16, 18}


@given(st.integers(1, 10**16), st.floats(0.01, 1), st.integers(0, 10**12))
def test_smallest_memory_is_the_inverse_of_free_bytes(needed, usable, overhead):
    least = capacity.min_capacity_bytes(needed, usable, 5, overhead)
    assert capacity.free_bytes(least, usable, 5, overhead) >= needed
    assert capacity.free_bytes(least - 1, usable, 5, overhead) < needed


def of(quantizer, **work):
    dev, kv = catalog.device("a100-80gb"), build("llama2-7b", quantizer)
    return Point(dev, kv, Workload(memory="paper", **work))


def test_a_prefix_of_one_packed_group_is_shared_among_many():
    """By hand: 160 shared prompt tokens, one more generated; SinkQ packs 128 of 160 (G + R), so a request adds
    its one token in FP16, the sinks of 30 layers and its activations."""
    found = of("sinkq", batch=2000, prefix_tokens=160, input_tokens=160, output_tokens=1)
    token = 2 * 32 * 4096 * 2
    sinks = 30 * (2 * 3 * 4096 * 2 + 3 * 32 * 4)
    packed = 128 * 32 * (2 * 4096 * 9 // 4) // 8  # K and V at 2.25 bits
    free = 80 * 10**9 - 2 * 6_738_415_616
    prefix = packed + 32 * token
    assert found.max_batch == (free - prefix) // (token + sinks + 2 * (32000 + 8192))


def test_a_prompt_is_packed_layer_by_layer():
    """A prompt of exactly one group never lies in memory unpacked in all layers at once."""
    found = of("sinkq:residual=0,sinks=0", input_tokens=128, output_tokens=1)
    token = 2 * 32 * 4096 * 2
    packed = 128 * 32 * (2 * 4096 * 9 // 4) // 8
    free = 80 * 10**9 - 2 * 6_738_415_616
    assert found.max_batch == free // (packed + token + 2 * (32000 + 8192))
