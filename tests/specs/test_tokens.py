"""Token policies: what is stored and read, against a cache that is filled and emptied token by token."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
import naive
from dse.cli import main as cli
from dse.core.errors import InputError
from dse.model import engine
from dse.model.formulas import tokens
from dse.model.generation import pieces_of
from dse.model.kv_bytes import limits_for, read_tokens, stored_tokens
from dse.model.lower import policy_of
from dse.model.point import Point
from dse.model.records import NO_LIMIT
from dse.questions import tables
from dse.report import listing
from dse.specs import catalog
from dse.specs import tokens as token_policies
from dse.specs.quantity import Quantity
from dse.specs.workload import Workload
from dse.validate import tokens as validate_tokens
from factories import (
    PLANS,
    Sequence,
    as_groups,
    at,
    build,
    device,
    layer,
    loop,
    model,
    point_of,
    scores_s,
    sequence,
    whole,
)

LIMITED = st.one_of(
    st.builds("window:tokens={}".format, st.integers(1, 80)),
    st.builds("streaming:sinks={},window={}".format, st.integers(0, 9), st.integers(1, 60)),
    st.builds(
        "h2o:heavy={},evict={}".format,
        st.sampled_from(["0,recent=0.1", "0,recent=1", "0.05,recent=0", "0.05,recent=0.45", "0.5,recent=0.5"]),
        st.sampled_from(["always", "prompt"]),
    ),
    st.builds("snapkv:budget={}".format, st.integers(1, 80)),
    st.builds("snapkv:share={}".format, st.sampled_from(["0.01", "0.16", "0.9", "1"])),
    st.builds("scissorhands:budget={}".format, st.integers(1, 80)),
    st.builds("scissorhands:share={}".format, st.sampled_from(["0.01", "0.25", "1"])),
    st.builds(
        "sparse:k={},index_dim={},index_heads={}".format,
        st.integers(1, 90),
        st.sampled_from([0, 3, 128]),
        st.integers(0, 4),
    ),
    st.builds("constant:c={}".format, st.integers(1, 80)),
)
#: none in half of the examples: loops of whole caches have no tests of their own
POLICIES = st.booleans().flatmap(lambda is_limited: LIMITED if is_limited else st.just("full"))


def under(kv, policy, n_in):
    """One sequence of a plan under a policy, after a prompt of `n_in`."""
    return sequence(kv, n_in, tokens=policy)


def generation(counted, first, last):
    """The same sequence while it grows from `first` to `last` tokens, under the limits of its own prompt."""
    there = Sequence(counted.design._replace(input_tokens=first - 1, output_tokens=last - first + 1))
    there.limits = counted.limits
    return there


def sum_of_bits(counted, first, last):
    there = generation(counted, first, last)
    paged = there.design.load._replace(is_paged=1)  # where the sum is needed
    return pieces_of(there.design._replace(load=paged), there.limits)[1]


def naive_stored(policy, n_in, n, window):
    """Tokens in a layer's cache after a prompt of n_in and n - n_in generated tokens, moved one by one."""
    name, values = token_policies.parse(policy).family.name, dict(token_policies.parse(policy).values)
    if name == "constant":
        return min(values["c"], window)
    cache = list(range(n_in))
    most = window
    if name in ("window", "streaming"):
        most = min(most, values.get("tokens") or values["sinks"] + values["window"])
    elif name == "snapkv":
        kept = max(int(values["share"] * n_in), 1) if values["share"] else values["budget"]
        cache = cache[-kept:]
    elif name == "scissorhands":
        most = min(most, values["budget"] or max(int(values["share"] * n_in), 1))
        cache = cache[-most:]
    elif name == "h2o":
        heavy, recent = int(values["heavy"] * n_in), int(values["recent"] * n_in)
        budget = max(heavy + recent, 1)
        cache = cache[-budget:]
        if values["evict"] == "always":
            most = min(most, budget)
    for token in range(n_in, n):
        cache.append(token)
        while len(cache) > most:
            cache.pop(0)
    return min(len(cache), most)


@given(POLICIES, st.integers(1, 120), st.integers(0, 120), st.none() | st.integers(1, 90))
def test_stored_and_read_are_the_loop(policy, n_in, more, window):
    kv = build(model(layer(window=window)), "fp16")
    counted, n = under(kv, policy, n_in), n_in + more
    stored = naive_stored(policy, n_in, n_in + more, window or 10**9)
    read = min(stored, dict(token_policies.parse(policy).values).get("k", stored))
    for g in counted.design.tensors:
        assert (stored_tokens(g, counted.limits, n), read_tokens(g, counted.limits, n)) == (stored, read)
    limits = (counted.limits.prompt_kept_tokens, counted.limits.dropped_tokens)
    stored_window = min(window or NO_LIMIT, counted.limits.window_tokens)
    read_window = min(stored_window, policy_of(token_policies.parse(policy)).read_limit_tokens)
    assert tokens.stored_tokens(n, *limits, stored_window) == stored
    assert tokens.read_tokens(n, *limits, stored_window, read_window) == read
    if more:
        found = engine.evaluate(Point(device(), kv, Workload(1, n_in, more, tokens=policy)))
        assert (found["stored_tokens"], found["read_tokens"]) == (stored, read)


def naive_bits(kv, policy, n_in, n, read):
    """Bits of all tensors, from the naive cache and the naive packing; the index is stored and read whole."""
    total = 0
    for g, (layers, *shape, _) in zip(kv.groups, as_groups(kv, read), strict=True):
        window = kv.layers[g.shape_index][0].window or 10**9
        stored = naive_stored(policy, n_in, n, window)
        values = dict(token_policies.parse(policy).values)
        k = values.get("k", 10**9)
        total += layers * naive.tensor_bits(min(stored, k) if read else stored, *shape)
        if g.which == "key" and "k" in values and window > k:
            index = values["index_dim"] * values["index_bits"]
            index += values["index_scale_bits"] if index else 0
            total += layers * stored * index * kv.den
    return total


@given(PLANS, POLICIES, st.integers(1, 120), st.integers(0, 100))
def test_bits_are_the_loop_over_tokens(kv, policy, n_in, more):
    counted, n = under(kv, policy, n_in), n_in + more
    assert counted.bits(n) == naive_bits(kv, policy, n_in, n, read=False)
    assert counted.read_bits(n) == naive_bits(kv, policy, n_in, n, read=True)
    for g in counted.design.tensors:
        assert read_tokens(g, counted.limits, n) <= stored_tokens(g, counted.limits, n)


@given(PLANS, POLICIES, st.integers(1, 120), st.integers(1, 100), st.integers(1, 20))
def test_sums_pieces_and_ledger_are_the_loop(kv, policy, n_in, n_out, page):
    there = point_of(kv, n_in, n_out, page, tokens=policy)
    counted, n = Sequence(there.design), n_in
    lengths = range(n_in + 1, n_in + n_out + 1)
    pieces, stored = pieces_of(counted.design, counted.limits)
    assert stored == sum(counted.bits(n) for n in lengths)
    assert counted.sum_of_padding_bits(lengths[0], lengths[-1], page) == sum(
        counted.padding_bits(n, page) for n in lengths
    )
    for n_tokens in lengths[-3:]:
        ledger = there.ledger(n_tokens)
        assert sum(ledger.values()) * kv.den == counted.bits(n_tokens) + counted.padding_bits(n_tokens, page)
    for piece in pieces:
        read, slope = whole(piece.read_bytes * 8 * kv.den), whole(piece.read_slope * 8 * kv.den)
        for i in range(piece.n_steps):
            n += 1
            assert read + slope * i == counted.read_bits(n)
            assert piece.flops + piece.flops_slope * i == counted.flops(n)
            assert piece.by_cores + piece.by_cores_slope * i == counted.unpacked_elements(n)
    assert n == lengths[-1]


@given(PLANS, POLICIES, st.integers(1, 100), st.integers(0, 150), st.integers(0, 150), st.integers(1, 20))
def test_sums_from_any_length(kv, policy, n_in, before, more, page):
    counted, first = under(kv, policy, n_in), before + 1
    lengths = range(first, first + more + 1)
    assert sum_of_bits(counted, first, lengths[-1]) == sum(counted.bits(n) for n in lengths)
    assert counted.sum_of_padding_bits(first, lengths[-1], page) == sum(counted.padding_bits(n, page) for n in lengths)


@given(
    PLANS,
    POLICIES,
    st.integers(1, 150),
    st.integers(1, 250),
    st.integers(0, 250),
    st.integers(0, 150),
    st.integers(1, 9),
    st.integers(1, 1000),
)
def test_the_largest_length_is_among_the_few(kv, policy, n_in, first, more, prefix, page, n_sequences):
    kv = under(kv, policy, n_in)

    def total(n):
        return n_sequences * (kv.bits(n) + kv.padding_bits(n, page)) - (n_sequences - 1) * kv.shared_bits(n, prefix)

    few = kv.peak_lengths(first, first + more, prefix, page)
    assert all(first <= n <= first + more for n in few)
    assert max(map(total, few)) == max(total(n) for n in range(first, first + more + 1))


@pytest.mark.parametrize("policy", ["snapkv:budget=7", "h2o:heavy=0.4,recent=0.2", "constant:c=90", "full"])
@pytest.mark.parametrize("page", [1, 5])
def test_peaks_follow_the_phase_of_the_tokens_that_came_in(policy, page):
    kv = under(build(model(layer(n_layers=4)), "sinkq:group=16,residual=8"), policy, 50)
    for last in range(50, 130):
        few = kv.peak_lengths(50, last, 0, page)
        found = max(kv.bits(n) + kv.padding_bits(n, page) for n in few)
        assert found == max(kv.bits(n) + kv.padding_bits(n, page) for n in range(50, last + 1)), last


@given(PLANS, POLICIES, st.integers(1, 120), st.integers(0, 120), st.integers(0, 120))
def test_sum_of_shared_bits_is_the_loop_and_evicted_prompts_share_nothing(kv, policy, prefix, more, n_steps):
    n_in = prefix + more
    kv = under(kv, policy, n_in)
    lengths = range(n_in, n_in + n_steps + 1)
    found = kv.sum_of_shared_bits(lengths[0], lengths[-1], prefix)
    assert found == sum(kv.shared_bits(n, prefix) for n in lengths)
    for n in lengths:
        assert kv.shared_bits(n, prefix) <= kv.bits(n)
        if all(stored_tokens(g, kv.limits, n) < n for g in kv.design.tensors):
            assert kv.shared_bits(n, prefix) == 0


@given(
    PLANS,
    POLICIES,
    st.integers(1, 9),
    st.integers(1, 80),
    st.integers(1, 60),
    st.sampled_from([1e9, 4e9, 1e11]),
    st.sampled_from([1e9, 1e11]),
    st.sampled_from(["fused", "materialised", "engine"]),
)
def test_times_are_the_token_loop_within_1e_12(kv, policy, batch, n_in, n_out, bandwidth, rate, path):
    dev = device(bandwidth=bandwidth, peak=4e9, fused=rate, engine=2 * rate, default=path)
    work = Workload(batch=batch, input_tokens=n_in, output_tokens=n_out, tokens=policy, model_kind="ideal")
    result = engine.evaluate(Point(dev, kv, work))
    attention, exposed = loop(dev, kv, work, result["running_batch"], Point(dev, kv, work).paths)
    assert result["attention_s"] == pytest.approx(attention, rel=1e-12)
    exposed += scores_s(dev, kv, work, result["running_batch"], bandwidth)
    assert result["dequantize_s"] == pytest.approx(exposed, rel=1e-12, abs=1e-12 * attention)


@given(
    st.sampled_from(["oaken", "oaken:outer=0.02,inner=0.08", "int4"]),
    POLICIES,
    st.integers(1, 100),
    st.integers(0, 150),
    st.integers(0, 100),
    st.sampled_from([64, 192, 1000]),
)
def test_pages_of_bytes_hold_what_a_policy_keeps(name, policy, n_in, before, more, page):
    dev = device(engine=1e9, default="engine").model_copy(
        update={"kv_page": Quantity(value=page, unit="B", source="test", kind="assumed")}
    )
    work = Workload(1, n_in, tokens=policy, model_kind="ideal")
    kv = Sequence(Point(dev, build(model(layer(n_layers=3)), name), work).design)
    first = before + 1
    lengths = range(first, first + more + 1)
    assert kv.sum_of_padding_bits(first, lengths[-1], 1) == sum(kv.padding_bits(n, 1) for n in lengths)
    for n in lengths:
        by_hand = 0
        for g in kv.design.tensors:
            kept, row = stored_tokens(g, kv.limits, n), g.page_row_bits
            streams = [bits for bits in (g.dense_stream_bits, g.sparse_stream_bits) if bits]
            assert streams
            by_hand += g.n_stored_layers * sum(-(-kept * bits // row) * row - kept * bits for bits in streams)
        assert kv.padding_bits(n, 1) == by_hand
    few = kv.peak_lengths(first, lengths[-1], 0, 1)
    largest = max(kv.bits(n) + kv.padding_bits(n, 1) for n in lengths)
    assert max(kv.bits(n) + kv.padding_bits(n, 1) for n in few) == largest


def same_but(a, b, *names):
    return {k: v for k, v in a.items() if k not in names} == {k: v for k, v in b.items() if k not in names}


#: what a limit that is not reached changes all the same: what it is called, and what happens beyond it
OWN = ("tokens", "assumptions", "max_context_tokens", "kv_bytes_per_token_beyond_windows")


@given(PLANS, st.integers(1, 9), st.integers(1, 80), st.integers(1, 60), st.sampled_from(["reserve", "paged"]))
def test_policies_that_keep_and_read_all_are_full(kv, batch, n_in, n_out, admission):
    work = Workload(batch, n_in, n_out, admission=admission)
    whole = engine.evaluate(Point(device(), kv, work))
    for policy in (
        f"window:tokens={n_in + n_out}",
        f"streaming:sinks=1,window={n_in + n_out}",
        f"snapkv:budget={n_in}",
        "snapkv:share=1",
        "h2o:heavy=1,recent=0,evict=prompt",
        f"sparse:k={n_in + n_out},index_dim=0",
    ):
        assert same_but(engine.evaluate(Point(device(), kv, replace(work, tokens=policy))), whole, *OWN), policy


@given(st.integers(1, 80), st.integers(1, 200), st.integers(1, 60), st.sampled_from(["oaken", "kivi", "fp16"]))
def test_a_window_policy_is_a_model_with_that_window(window, n_in, n_out, quantizer):
    plain, windowed = (build(model(layer(window=w)), quantizer) for w in (None, window))
    work = Workload(4, n_in, n_out)
    found = engine.evaluate(Point(device(), plain, replace(work, tokens=f"window:tokens={window}")))
    assert same_but(found, engine.evaluate(Point(device(), windowed, work)), "tokens", "assumptions")


def test_by_hand():
    kv = build("llama2-7b", "fp16")
    per_token = 2 * 32 * 4096 * 2  # K and V, 32 layers, 4,096 elements of 2 bytes
    got = {
        policy: at(device(), kv, batch=1, input_tokens=1000, output_tokens=100, tokens=policy)
        for policy in (
            "full",
            "window:tokens=500",
            "streaming:sinks=4,window=500",
            "snapkv:share=0.16",
            "h2o",
            "h2o:evict=prompt",
            "constant:c=64",
            "sparse:k=256",
            "snapkv:budget=2000",
        )
    }
    expected = {
        "full": 1100,
        "window:tokens=500": 500,
        "streaming:sinks=4,window=500": 504,
        "snapkv:share=0.16": 160 + 100,  # 16 % of 1,000 and all generated
        "h2o": 200,
        "h2o:evict=prompt": 300,  # 10 % + 10 % of 1,000
        "constant:c=64": 64,
        "snapkv:budget=2000": 1100,
    }
    assert {policy: result["stored_tokens"] for policy, result in got.items() if policy in expected} == expected
    assert all(got[policy]["kv_bytes"] == n * per_token for policy, n in expected.items())
    sparse = got["sparse:k=256"]
    assert (sparse["stored_tokens"], sparse["read_tokens"]) == (1100, 256)
    assert sparse["kv_bytes"] == 1100 * (per_token + 32 * 132)  # 128 FP8 elements and an FP32 scale: 132 bytes
    # ideal: mean over steps of (256 tokens and the index of s), s = 1001..1100
    read = 256 * per_token + 1050.5 * 32 * 132
    assert sparse["attention_s"] == pytest.approx(read / device().memory_bandwidth.si, rel=1e-12)


def test_prompt_attention_by_hand():
    kv = build(model(layer(n_layers=1, n_kv_heads=1, dim=8), n_q_heads=2), "fp16")  # 64 FLOP a pair
    pairs = {
        "full": 10 * 11 // 2,
        "snapkv:budget=3": 55,
        "h2o": 55,  # evicted once the prompt is computed
        "window:tokens=3": 1 + 2 + 8 * 3,
        "streaming:sinks=1,window=2": 27,
        "sparse:k=3,index_dim=0": 27,
        "constant:c=3": 27,
    }
    for policy, n_pairs in pairs.items():
        assert under(kv, policy, 10).prompt_flops(10) == 2 * 2 * 16 * n_pairs, policy
    # 5 heads of 7 dims score all 55 pairs: 70 FLOP each
    assert under(kv, "sparse:k=3,index_dim=7,index_heads=5", 10).prompt_flops(10) == 64 * 27 + 70 * 55


def test_the_full_policy_limits_nothing():
    assert not Workload().token_policy.numbers
    policy = policy_of(Workload().token_policy)
    limits = limits_for(policy, 10)
    assert limits.dropped_tokens == 0
    assert {limits.window_tokens, policy.read_limit_tokens, limits.prompt_kept_tokens} == {NO_LIMIT}


def test_names():
    assert token_policies.parse("STREAMING:sinks=4, window=1020").name == "streaming"
    assert token_policies.parse("snapkv:share=0.160").name == "snapkv:share=0.16"
    for text, message in (
        ("snap", "unknown token policy 'snap': did you mean snapkv"),
        ("window:tokens=0", "tokens = '0': must be a whole number from 1 to"),
        ("snapkv:budget=5,share=0.5", "give budget or share, not both"),
        ("h2o:evict=never", "must be one of always, prompt"),
        ("h2o:heavy=0.9,recent=0.2", "must be above 0 and at most 1"),
        ("h2o:heavy=0,recent=0", "must be above 0 and at most 1"),
        ("snapkv:share=0", "must be a number from 1e-06 to 1"),
        ("full:x=1", "unknown parameter 'x': it has no parameters"),
        ("sparse:k", "k: must be written k=VALUE"),
    ):
        with pytest.raises(InputError, match=message):
            Workload(tokens=text)


@pytest.mark.parametrize("name", token_policies.FAMILIES)
def test_every_policy_has_source_listing_and_note(name, capsys):
    family = token_policies.FAMILIES[name]
    assert family.source
    assert name in [row["name"] for row in listing.list_tokens()]
    assert listing.show(name)
    with pytest.raises(SystemExit, match="0"):
        cli.main(["point", "--device", "h100", "--model", "llama3-8b", "--tokens", name, "--input", "9000"])
    out = capsys.readouterr().out
    assert ("token policy" in out) == (name != "full")
    assert f"Note: {name}: {family.validity}" in out or name == "full"
    assert policy_of(token_policies.parse(name)).read_limit_tokens >= 0


@pytest.mark.parametrize("policy", ["snapkv:budget=128", "window:tokens=500", "streaming", "h2o", "constant:c=64"])
def test_a_prompt_that_is_not_kept_shares_neither_memory_nor_time(policy):
    kv, dev = build("llama2-7b", "fp16"), catalog.device("a100-80gb")
    alone, shared = (
        engine.evaluate(Point(dev, kv, Workload(8, 2000, 200, prefix_tokens=n, tokens=policy))) for n in (0, 1900)
    )
    assert same_but(alone, shared, "prefix_tokens")


def test_the_longest_context_does_not_depend_on_the_prompt_given():
    """Llama2-7B on 80 GB, by hand: weights 13.48 GB; a token of 524,288 B, 16 % of the prompt and all 512 generated."""
    kv = build("llama2-7b", "fp16")
    dev = catalog.device("a100-80gb")
    work = {"output_tokens": 512, "tokens": "snapkv:share=0.16", "memory": "paper"}
    found = {
        n: engine.evaluate(Point(dev, kv, Workload(1, n, **work)))["max_context_tokens"] for n in (1, 8192, 700_000)
    }
    assert len(set(found.values())) == 1
    free = 80 * 10**9 - 2 * 6_738_415_616 - 2 * kv.model.activation_elements
    kept = free // 524_288 - 512
    prompt = max(n for n in range(int(kept / 0.16) - 10, int(kept / 0.16) + 10) if 16 * n // 100 <= kept)
    assert found[1] == prompt + 512


def test_layers_with_their_own_window_take_the_smaller():
    mixed = build(model(layer(window=10), layer()), "fp16")

    def mean_tokens(policy):
        found = at(device(), mixed, input_tokens=50, output_tokens=10, tokens=policy)
        return found["stored_tokens"], found["read_tokens"]

    assert mean_tokens("window:tokens=30") == (20, 20)
    assert mean_tokens("snapkv:budget=5") == (Fraction(10 + 15, 2),) * 2
    assert [g.index_bits > 0 for g in under(mixed, "sparse:k=20", 50).design.tensors] == [False, False, True, False]


def test_largest_batch_with_eviction_by_hand():
    kv = build("llama2-7b", "fp16")
    dev = catalog.device("a100-80gb")
    work = Workload(1, 4096, 256, tokens="snapkv:share=0.16", memory="paper")
    memory = Point(dev, kv, work)
    free = 80_000_000_000 - 13_476_839_424  # weights
    per_request = (655 + 256) * 524_288 + memory.made.activation_bytes  # 0.16 * 4,096 = 655.36
    assert memory.max_batch == free // per_request


def test_sinkq_table_7_beside_our_bytes():
    found = validate_tokens.table_7().set_index("method")
    # as the paper prints the means: Table 7, last column
    means = {"FP16": 45.01, "KIVI": 43.59, "SnapKV": 43.75, "H2O": 42.05, "StreamingLLM": 41.19, "SinkQ": 44.26}
    assert found["mean_score"].to_dict() == pytest.approx(means, abs=0.006)
    # 655 of 4,096 prompt tokens stay (0.16 * 4,096 = 655.36), H2O 2 * 327; SinkQ: 31 groups of 128 at 2.25 bits, 128
    # tokens in FP16, in 30 of 32 layers 3 sinks in FP16 with 32-bit positions for each of 32 heads
    tokens_of = {name: Fraction(kept, 4096) for name, kept in (("SnapKV", 655), ("H2O", 654), ("StreamingLLM", 655))}
    for name, share in tokens_of.items():
        assert found.loc[name, "compression"] == pytest.approx(float(1 / share), rel=1e-12)
    elements = 2 * 32 * 4096
    bits = elements * (31 * 128 * 2.25 + 128 * 16) + 30 * 3 * (2 * 4096 * 16 + 32 * 32)
    assert found.loc["SinkQ", "kv_bytes"] == bits / 8


def test_the_figure_takes_policies_and_quantizers():
    request = tables.ReportRequest(models=(catalog.model("llama2-7b"),), tokens=("h2o", "window:tokens=512"))
    jobs = tables.POINTS["tokens"](request)
    labels = list(dict.fromkeys(job.system.label for job in jobs))
    assert labels == ["h2o, fp16", "h2o, sinkq", "window:tokens=512, fp16", "window:tokens=512, sinkq"]
    assert {job.work.tokens for job in jobs} == {"h2o", "window:tokens=512"}
    with pytest.raises(InputError, match="unknown token policy 'h3o': did you mean h2o"):
        dse.report("nowhere", tokens=["h3o"])


def test_a_trained_state_by_hand():
    """Llama 3.1 8B: 32 layers of 32 heads train 128 x 128 in 16 bits (TTT-Linear), 33,554,432 bytes; a token of its
    cache takes 131,072: 256 of them. TTT-MLP trains two matrices of 128 x 512, eight times as much."""
    dev = catalog.device("h200")
    for quantizer, inner, tokens_worth in (
        ("fp16", "linear", 256),
        ("fp16", "mlp", 2048),
        ("fp8", "linear", 512),
        ("fp8", "mlp", 4096),
    ):
        work = Workload(4, 100_000, 100, tokens=f"constant:ttt={inner}", page_tokens=16, admission="paged")
        found = engine.evaluate(Point(dev, build("llama3.1-8b", quantizer), work))
        assert found["stored_tokens"] == tokens_worth
        assert found["kv_bytes"] == 4 * 32 * 32 * 128 * 128 * 2 * (8 if inner == "mlp" else 1)
        as_c = replace(work, tokens=f"constant:c={tokens_worth}")
        assert same_but(found, engine.evaluate(Point(dev, build("llama3.1-8b", quantizer), as_c)), "tokens")


def test_a_state_over_two_devices_is_halved_with_its_tokens():
    work = Workload(4, 100_000, 100, tokens="constant:ttt=linear", tp=2)
    found = engine.evaluate(Point(catalog.device("h200"), build("llama3.1-8b", "fp16"), work))
    assert found["stored_tokens"] == 256
    assert found["kv_bytes"] == 4 * 33_554_432 / 2


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma3-27b", "gpt-oss-20b"])
def test_a_state_takes_the_place_of_full_attention_alone(name):
    with pytest.raises(InputError, match="give the state's size, constant:c=N tokens"):
        engine.evaluate(Point(catalog.device("h200"), build(name, "fp16"), Workload(tokens="constant:ttt=mlp")))


def test_a_point_says_from_where_on_a_cache_takes_more(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["point", "--device", "h200", "--model", "llama3.1-8b", "--tokens", "constant:ttt=linear"])
    assert "33.55 MB whatever the length, less than a cache from 257 tokens on" in capsys.readouterr().out
    with pytest.raises(InputError, match="give c or ttt, not both"):
        token_policies.parse("constant:c=3,ttt=mlp")
