"""Oaken's memory unit and its scheduling by token: by hand, against loops over tokens and heads."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from dse import quantizers
from dse.model import engine, kv_bytes, memory_unit
from dse.model import kv_layout as plan
from dse.model.explain import explained
from dse.model.formulas import memory_unit as formulas
from dse.model.formulas import scheduling
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.device_and_model import Quantity
from dse.specs.workload import Workload
from factories import Sequence, at, build, device, layer, model, sequence

ENGINE = {"key": "engine", "value": "engine"}


def number(value, unit):
    return Quantity(value=value, unit=unit, source="test", kind="assumed")


def with_unit(page=None, burst=None, cores=None, **more):
    fields = {"kv_page": (page, "B"), "kv_burst": (burst, "B"), "token_cores": (cores, "core")}
    given = {name: number(*value) for name, value in fields.items() if value[0]}
    return device(engine=4e12, default="engine", **more).model_copy(update=given)


def slices(g, den):
    """Bits of a token in one head, by stream, and the bits of a token that are in no stream; from the ledger."""
    layout = g.layout
    dense = Fraction(layout.packed["payload"] + layout.packed.get("padding", 0), layout.shape.n_heads)
    sparse = Fraction(layout.packed.get("outliers", 0)) / layout.shape.n_heads
    streams = [bits for bits in (dense, sparse) if bits]
    return streams, Fraction(g.packed_bits, den) - layout.shape.n_heads * sum(streams)


STREAMED = st.sampled_from(
    [
        "oaken",
        "oaken:outer=0.07,inner=0.013",
        "oaken:groups=2/2/90/6,outlier_bits=4",
        "qserve",
        "nqkv:block=64",
        "kvquant",
    ]
)
PLANS = st.builds(
    lambda layers, key, value: plan.build(model(*layers), quantizers.parse(key), quantizers.parse(value)),
    st.lists(
        st.builds(
            layer,
            n_layers=st.integers(1, 3),
            n_kv_heads=st.integers(1, 3),
            dim=st.integers(1, 40),
            window=st.none() | st.integers(1, 60),
        ),
        min_size=1,
        max_size=2,
    ),
    STREAMED,
    STREAMED,
)
PAGES = st.sampled_from([1, 8, 60, 64, 500, 4096])


def in_pages(page, bare):
    """A plan on a device with such pages, and one of its sequences."""
    found = Point(with_unit(page), bare, Workload(1, 1, 1))
    return found.plan, Sequence(found.design)


@pytest.mark.parametrize("name", ["oaken-hbm", "oaken-lpddr"])
def test_entries_of_many_tokens_fill_pages_by_their_own_bits(name):
    """DeepSeek-V4: bytes in pages never fall with the context, and lie between what is packed and a page a stream more.

    A token has a fourth, or a 128th, of an entry's bits.
    """
    kv, device = build("deepseek-v4-flash", "oaken"), catalog.device(f"{name}:memory_capacity=2 TB")
    last = 0
    for n_tokens in (1, 2, 3, 130, 131, 1000, 4095, 4096):
        found = Point(device, kv, Workload(1, n_tokens, 1))
        now = engine.evaluate(found)["kv_bytes"]
        packed = found.plan.bits(n_tokens + 1) / found.plan.den / 8 + engine.evaluate(found)["state_bytes"]
        beside = sum(g.n_stored_layers * len(g.streams) * g.page_row_bits for g in found.plan.groups)
        beside += (n_tokens + 1) * sum(g.n_stored_layers * g.index_bits for g in found.design.tensors)
        assert max(last, packed) <= now <= packed + beside / found.plan.den / 8 + 1
        last = now


def test_llama2_7b_by_hand():
    """64 B dense and 12.8 B sparse a head and token, 4 KiB pages, 64 B bursts, 2000 tokens."""
    asked = Point(catalog.device("oaken-lpddr"), build("llama2-7b", "oaken"), Workload(3, 1000, 1000))
    kv = asked.plan
    # dense: 2000 * 64 = 128,000 B in 32 pages of 4096 B: 3,072 B left; sparse: 25,600 B in 7 pages: 3,072 B left
    tails = 2 * 32 * 32 * (3072 + 3072)
    assert Fraction(Sequence(asked.design).padding_bits(2000, 1), 8 * kv.den) == tails
    # a head writes 64 + 64 B; 76 B of extremes and counts a token and tensor are not rounded (96 + 8 * 64 bits)
    written, packed = 32 * (64 + 64) + 76, 32 * (64 + 12.8) + 76
    assert memory_unit.write_amplification(kv) == pytest.approx(written / packed, rel=1e-15)
    write_s = 3 * 2 * 32 * written / 1.1e12
    assert asked.terms.burst_bits / asked.terms.per_byte == pytest.approx(2 * 32 * written, rel=1e-15)
    no_bursts = asked.device.model_copy(update={"kv_burst": None})
    runs = [Point(dev, build("llama2-7b", "oaken"), asked.work).run(3) for dev in (asked.device, no_bursts)]
    for paid in ([run.wave.quantize_s for run in runs], [run.quantize_busy_s for run in runs]):
        assert paid[0] - paid[1] == pytest.approx(write_s, rel=1e-9)
    assert runs[0].packing_bytes - runs[1].packing_bytes == pytest.approx(3 * 2 * 32 * written, rel=1e-12)
    result = at(catalog.device("oaken-lpddr"), build("llama2-7b", "oaken"), input_tokens=1000, output_tokens=1000)
    assert result["page_tail_bits"] == pytest.approx(8 * tails / (2 * 32 * 4096 * 2000), rel=1e-15)
    # tables: an entry for each of 32 + 7 pages of a head, in 2 * 32 * 32 of them: 256 GB in pages of 4 KiB are
    # 62,500,000, which 26 bits tell apart, and 13 bits tell 0 to 4096 bytes
    values = explained(asked)[1]["page_tail_bits"].terms
    assert (values["table_entries"], values["table_entry_bits"]) == (2 * 32 * 32 * (32 + 7), 26 + 13)
    assert values["table_bytes"] == 2 * 32 * 32 * 39 * 39 / 8
    plain = build("llama2-7b", "oaken")
    assert result["stored_bits"] == pytest.approx(
        plain.bits(2000) / plain.den / plain.elements(2000) + result["page_tail_bits"], rel=1e-15
    )
    assert {"kv_page", "kv_burst", "token_cores"} <= set(result["assumptions"])


@given(st.integers(0, 60), st.integers(1, 300), st.integers(1, 400))
def test_sum_of_rows_is_the_loop(n, token_bits, row_bits):
    assert formulas.sum_of_rows(n, token_bits, row_bits) == sum(
        naive.pages(s * token_bits, row_bits) for s in range(1, n + 1)
    )


def test_sixty_bit_sums_of_tails_stay_exact():
    n, token, row = 2**30, 3 * 2**20 + 1, 5 * 2**41  # tail is 0 until the first page is full, at n > row / token
    step = sum((-s * token) % row for s in range(1, 50))
    assert formulas.sum_of_page_tail_bits(49, token, row) == step
    # over a whole period of lengths (token and row are coprime) the tails are every residue once
    assert formulas.sum_of_page_tail_bits(row, 3, row // 2**41 * 2**41) == row * (row - 1) // 2
    assert formulas.sum_of_page_tail_bits(n, token, row) > 2**63


@given(PLANS, PAGES, st.integers(0, 90), st.integers(0, 90))
def test_pages_are_the_loop_over_tokens_and_heads(bare, page, n, prefix):
    kv, counted = in_pages(page, bare)
    for g, tensor in zip(kv.groups, counted.design.tensors, strict=True):
        streams, other = slices(g, kv.den)
        heads, kept = g.layout.shape.n_heads, min(n, g.window_tokens)
        stored = kept * heads * sum(streams)
        unused = naive.page_bits(kept, streams, heads, 8 * page) - stored
        assert Fraction(kv_bytes.padding_bits(tensor, kept, 1), kv.den) == unused
        shared = naive.shared_page_bits(n, prefix, streams, other, heads, 8 * page) if n <= g.window_tokens else 0
        assert Fraction(kv_bytes.shared_bits_of(tensor, counted.limits, n, prefix), kv.den) == shared


@given(PLANS, PAGES, st.integers(1, 60), st.integers(0, 90))
def test_sums_over_a_generation_are_the_loop(bare, page, first, more):
    _, counted = in_pages(page, bare)
    lengths = range(first, first + more + 1)
    assert counted.sum_of_padding_bits(first, lengths[-1], 1) == sum(counted.padding_bits(n, 1) for n in lengths)
    for prefix in (first, first - 1, first // 2):
        found = counted.sum_of_shared_bits(first, lengths[-1], prefix)
        assert found == sum(counted.shared_bits(n, prefix) for n in lengths)


@given(PLANS, PAGES)
def test_bursts_are_the_loop_over_heads(bare, burst):
    kv = memory_unit.attach(with_unit(burst=burst), bare, ENGINE)
    for g in kv.groups:
        streams, other = slices(g, kv.den)
        written = naive.written_bits(streams, other, g.layout.shape.n_heads, 8 * burst)
        assert Fraction(g.written_bits, kv.den) == written
    assert memory_unit.write_amplification(kv) >= 1


@given(PLANS, PAGES, st.integers(1, 60), st.integers(0, 60), st.integers(0, 60), st.integers(1, 9))
def test_the_largest_length_is_among_the_few(bare, page, first, more, prefix, n_sequences):
    _, counted = in_pages(page, bare)

    def total(n):
        whole = n_sequences * (counted.bits(n) + counted.padding_bits(n, 1))
        return whole - (n_sequences - 1) * counted.shared_bits(n, prefix)

    few = counted.peak_lengths(first, first + more, prefix, 1)
    assert max(map(total, few)) == max(total(n) for n in range(first, first + more + 1))


@given(PLANS, PAGES, st.integers(1, 60), st.integers(1, 60), st.integers(0, 60), st.sampled_from(["reserve", "paged"]))
def test_largest_batch_fits_and_one_more_does_not(bare, page, n_in, n_out, prefix, admission):
    dev = with_unit(page, capacity=4 * 10**6)
    work = Workload(1, n_in, n_out, admission=admission, prefix_tokens=min(prefix, n_in), page_tokens=4)
    memory = Point(dev, bare, work)
    free, lengths = memory.free_bytes * memory.unit, range(n_in, n_in + n_out + 1)
    prefix = work.prefix_tokens // 4 * 4 if admission == "paged" else work.prefix_tokens
    counted = Sequence(memory.design)
    activations = 8 * memory.plan.den * 2 * 64  # of the toy model: one token of 64 elements in FP16

    def own(n):
        return counted.bits(n) + counted.padding_bits(n, 1) - counted.shared_bits(n, prefix) + activations

    def need(n_sequences, n):
        return counted.shared_bits(n, prefix) + n_sequences * own(n)

    if admission == "reserve":
        assert all(need(memory.max_batch, n) <= free for n in lengths if memory.max_batch)
        assert any(need(memory.max_batch + 1, n) > free for n in lengths)
    elif memory.max_batch > 1:
        shared = max(counted.shared_bits(n, prefix) for n in lengths)
        mean = Fraction(sum(own(n) for n in lengths if n > n_in), n_out)
        assert shared + memory.max_batch * mean <= free < shared + (memory.max_batch + 1) * mean
    longest = memory.max_context_tokens
    if longest is not None and longest < 3000:
        assert all(need(1, n) <= free for n in range(1, longest + 1))
        assert need(1, longest + 1) > free


def test_only_what_the_engine_packs_token_by_token_is_in_pages():
    dev = catalog.device("oaken-hbm")
    for name, path in (("fp16", "engine"), ("kivi", "engine"), ("oaken", "fused")):
        bare = build("llama2-7b", name)
        assert memory_unit.attach(dev, bare, dict.fromkeys(ENGINE, path)) == bare
    gpu = at(catalog.device("a100-80gb"), build("llama2-7b", "oaken"))
    assert (gpu["page_tail_bits"], gpu["write_amplification"], gpu["busy_cores"]) == (0, None, None)
    # 2048 = 128 * 16 tokens fill their pages; 2047 leave one slot
    paged = at(catalog.device("a100-80gb"), build("llama2-7b", "fp16"), admission="paged", output_tokens=1023)
    assert paged["page_tail_bits"] == pytest.approx(16 / 2047, rel=1e-12)


def test_a_measured_outlier_share_moves_sparse_pages_and_bursts():
    from dse.specs.measurements import bits_from

    measured = bits_from("measured", None).quantizer("oaken")
    kv = plan.build(catalog.model("llama2-7b"), measured, measured)
    shares = {which: values["outlier_share"] for which, values in measured.realised.items()}
    paged = memory_unit.attach(catalog.device("oaken-hbm"), kv, ENGINE)
    for g in paged.groups:
        assert Fraction(g.streams[1], kv.den) == 8 * shares[g.which] * 4096


def test_cores_and_what_hides_by_hand():
    """One request on 4 cores: a quarter of the arithmetic, and all engine work paid; two hide behind half."""
    kv = build("llama2-7b", "fp16")
    slow = with_unit(cores=4, bandwidth=1e15, peak=1e12)
    parts = [at(slow, kv, batch=n, input_tokens=100, output_tokens=1) for n in (1, 2, 4, 8)]
    assert [part["busy_cores"] for part in parts] == [1, 2, 4, 8 // 2]
    # compute binds: 2 * P * B / (F * min(B, 4) / 4) is the same for 1, 2 and 4 requests, and twice as long for 8
    assert [part["linear_s"] for part in parts] == pytest.approx([8 * 6_738_415_616 / 1e12] * 3 + [16 * 6738.415616e-6])
    assert [part["attention_s"] for part in parts] == pytest.approx(
        [32 * 4 * 4096 * 101 * 4 / 1e12] * 3 + [32 * 4 * 4096 * 101 * 8 / 1e12]
    )
    assert scheduling.hideable_share(1) == 0
    assert scheduling.hideable_share(4) == 0.75


def test_halves_in_turn_by_hand():
    """Two layers, as NeuPIMs' table has them (A to F): Q queries, keys and values, P output and FFN, M attention.

    With Q = 1, P = 3, M = 2 s a layer and half: Q1, Q2|M1, P1Q1|M2, P2Q2|M1, P1|M2, P2 = 1 + 2 + 4 + 4 + 3 + 3 = 17,
    of which one second is M1 beside the shorter Q2. With M = 6: 1 + 6 + 6 + 6 + 6 + 3 = 28.
    """
    assert scheduling.in_turn_s(2 * 4.0, 2 * 6.0, 2) == 28
    assert scheduling.in_turn_s(2 * 4.0, 2 * 1.0, 2) == 1 + 1 + 4 + 4 + 3 + 3  # M is never the longer
    assert scheduling.in_turn_s(2 * 4.0, 2 * 2.0, 2) == 17 - 1


def test_rows_of_a_systolic_array_by_hand():
    """A request fills one row of four: a quarter of the products' rate, and of attention's where heads are its own."""
    slow = with_unit(bandwidth=1e15, peak=1e12).model_copy(update={"array_rows": number(4, "row")})
    kv = build("llama2-7b", "fp16")  # 32 heads of queries, 32 of keys and values: a row each
    parts = [at(slow, kv, batch=n, input_tokens=100, output_tokens=1) for n in (1, 4, 8)]
    # products: 2 * P * B / (F * min(B, 4) / 4), as long for 4 requests as for 1, and twice as long for 8
    assert [part["linear_s"] for part in parts] == pytest.approx([8 * 6.738415616e-3] * 2 + [16 * 6.738415616e-3])
    # attention: 32 layers * 4 * 4096 * 101 operations a request at a quarter of the rate, whatever the batch
    each_s = 4 * 32 * 4 * 4096 * 101 / 1e12
    assert [part["attention_s"] for part in parts] == pytest.approx([each_s, 4 * each_s, 8 * each_s])
    # a prompt fills all rows: 2 * P * 100 / F, and 32 * 4 * 4096 * 5050 / F of attention
    assert parts[0]["prefill_s"] == pytest.approx((2 * 6_738_415_616 * 100 + 32 * 4 * 4096 * 5050) / 1e12)
    # eight query heads to a head of keys and values fill the array
    grouped = build(model(layer(n_layers=1, n_kv_heads=1, dim=32)), "fp16")
    full = at(slow.model_copy(update={"array_rows": None}), grouped, batch=8, input_tokens=100, output_tokens=1)
    assert at(slow, grouped, batch=8, input_tokens=100, output_tokens=1)["attention_s"] == full["attention_s"]
    # 3 of 128 rows, and no more than all of them
    assert (scheduling.filled_share(3, 128), scheduling.filled_share(300, 128)) == (3 / 128, 1)


@given(st.integers(1, 40), st.integers(1, 16), st.sampled_from([1e8, 1e9, 3e9, 1e10]), st.integers(1, 60))
def test_exposed_engine_work_is_the_loop(batch, cores, rate, n_out):
    kv = build(model(layer(n_layers=3, n_kv_heads=2, dim=32)), "oaken")
    rates = {"engine_rate": number(rate, "element/s"), "quantize_rate": number(2 * rate, "element/s")}
    dev = with_unit(cores=cores, bandwidth=1e9, peak=4e9).model_copy(update=rates)
    result = at(dev, kv, batch=batch, input_tokens=20, output_tokens=n_out)
    n, busy = result["running_batch"], min(result["running_batch"], cores)
    attention = unpacked = packed = Fraction(0)
    counted = sequence(kv)
    for s in range(21, 21 + n_out):
        read = Fraction(n * counted.read_bits(s), 8 * kv.den) / 10**9
        step = max(read, Fraction(n * 3 * s * 2 * 8 * 2 * 32 * cores, busy * 4 * 10**9))  # 3 layers, 8 heads of 32
        hidden = step * (busy - 1) / busy
        attention += step
        # engines are part of the cores: those of idle ones rest
        unpacked += max(Fraction(0), Fraction(n * 3 * 2 * 64 * s * cores, busy * int(rate)) - hidden)
        packed += max(Fraction(0), Fraction(n * 3 * 2 * 64 * cores, busy * int(2 * rate)) - hidden)
    found = [result[name] * n_out for name in ("attention_s", "dequantize_s", "quantize_s")]
    assert found == pytest.approx([float(attention), float(unpacked), float(packed)], rel=1e-12, abs=1e-12)
