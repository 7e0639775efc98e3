"""Design points: by hand, against a token loop in exact fractions, and the limits that must always hold."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
from dse.core.errors import InputError
from dse.model import engine, many, point, uncertainty
from dse.model.engine import AUTO, COMPILED, INTERPRETED
from dse.model.explain import explained
from dse.model.peak_memory import workspace_bytes
from dse.model.point import Point
from dse.model.results import RESULT_UNITS
from dse.specs import catalog
from dse.specs import device_and_model as specs
from dse.specs.workload import ASKED, Workload
from dse.sweep import sweeps
from dse.sweep.run import in_memory
from factories import PLANS, Sequence, at, build, device, layer, model, point_of, sequence

GB = 10**9


def test_what_decoding_and_prompts_wait_for_apart():
    """An ideal A100 with 16 requests of Llama2-7B reads in every step and computes in every prompt; four H200 exchange
    and unpack as their step says."""

    def designed(on, plan, **work):
        return Point(on, plan, Workload(**work))

    a100 = catalog.device("a100-80gb:memory_bandwidth=2 TB/s")
    found = engine.time_shares(designed(a100, build("llama2-7b", "fp16"), batch=16, model_kind="ideal"))
    assert found["decoding"] == {
        "bandwidth": 1.0,
        "compute": 0.0,
        "latency": 0.0,
        "dequantization": 0.0,
        "communication": 0.0,
    }
    assert found["prompts"]["compute"] == 1.0
    served = designed(catalog.device("h200"), build("llama3.1-70b", "fp8"), batch=64, tp=4, stack="vllm")
    parts = engine.time_shares(served)
    results = engine.evaluate(served)
    step = results["decode_step_s"]
    assert parts["decoding"]["communication"] == pytest.approx(results["collective_s"] / step)
    assert parts["decoding"]["dequantization"] == pytest.approx(
        (results["dequantize_s"] + results["quantize_s"]) / step
    )
    for shares in parts.values():
        assert sum(shares.values()) == pytest.approx(1)
    assert engine.time_shares(designed(a100, build("llama3.1-70b", "fp16"), batch=1, model_kind="ideal")) == {}


def test_llama2_7b_fp16_on_a100_by_hand():
    result = at(
        catalog.device("a100-80gb:memory_bandwidth=2 TB/s"), build("llama2-7b", "fp16"), batch=16, model_kind="ideal"
    )
    kv_per_token = 2 * 32 * 4096 * 2
    assert result["kv_bytes_per_token"] == kv_per_token
    assert result["kv_bytes"] == 16 * 2048 * kv_per_token
    assert result["weight_bytes"] == 2 * 6_738_415_616
    table = 4096 * 32_000  # of input embeddings, of which rows are read; the head is as large
    assert result["linear_s"] == pytest.approx(2 * (6_738_415_616 - table) / 2e12, rel=1e-12)
    mean_context = 1024 + 1025 / 2
    assert result["attention_s"] == pytest.approx(16 * kv_per_token * mean_context / 2e12, rel=1e-12)
    assert result["quantize_s"] == result["dequantize_s"] == 0
    # activations: logits over 32000 tokens and twice the hidden size, FP16
    assert result["max_batch"] == (80 * GB - 2 * 6_738_415_616) // (2048 * kv_per_token + 2 * (32000 + 8192))
    prefill_flops = (
        2 * (6_738_415_616 - 2 * table) * 16 * 1024 + 2 * table * 16 + 32 * 4 * 4096 * 16 * (1024 * 1025 // 2)
    )
    assert result["prefill_s"] == pytest.approx(prefill_flops / 312e12, rel=1e-12)
    total = 1024 * (result["linear_s"] + result["attention_s"]) + result["prefill_s"]
    assert result["total_s"] == pytest.approx(total, rel=1e-12)
    assert result["throughput_tokens_per_s"] == pytest.approx(16 * 1024 / total, rel=1e-12)
    assert result["joules_per_token"] == pytest.approx(400 * total / (16 * 1024), rel=1e-12)
    assert result["bound"] == "bandwidth"


def quantising(dev, kv, paths, first, last):
    """Seconds by path in which one sequence quantises what it packs as it grows from `first` to `last` tokens."""
    found = dict.fromkeys(("fused", "engine", "materialised"), Fraction(0))
    for g in kv.groups:
        path = paths[g.place]
        if not g.layout.needs_dequantizing or g.window_tokens < g.step_tokens + g.residual_tokens:
            continue
        after, before = (naive.packed_tokens(n, g.step_tokens, g.residual_tokens) for n in (last, first))
        elements = (after - before) * g.n_stored_layers * g.n_elements
        if path == "materialised":  # FP16 is read again, the packed form written
            packed = Fraction((after - before) * g.n_stored_layers * g.packed_bits, 8 * kv.den)
            found[path] += (2 * elements + packed) / Fraction(dev.memory_bandwidth.si)
        else:
            found[path] += elements / Fraction(dev.rate(path).si)
    return found


@given(
    PLANS,
    st.integers(1, 9),
    st.integers(1, 100),
    st.integers(1, 100),
    st.integers(0, 100),
    st.sampled_from([1e9, 2e10]),
    st.sampled_from([1e7, 4e9]),
    st.sampled_from(["fused", "materialised", "engine"]),
)
def test_quantising_is_the_token_loop_within_1e_12(kv, n, n_in, n_out, prefix, bandwidth, rate, path):
    """The cores' work and traffic add up; an engine's hides behind attention of each step, and behind the prompt."""
    dev = device(bandwidth=bandwidth, peak=4e9, fused=rate, engine=2 * rate, default=path)
    work = Workload(
        batch=n, input_tokens=n_in, output_tokens=n_out, prefix_tokens=min(prefix, n_in), model_kind="ideal"
    )
    asked = Point(dev, kv, work)
    wave, counted = asked.run(n).wave, Sequence(asked.design)
    added = quantising(dev, kv, asked.paths, n_in, n_in + n_out)
    paid = n * (added["fused"] + added["materialised"])
    attention = Fraction(0)
    for s in range(n_in + 1, n_in + n_out + 1):
        read = Fraction(n * counted.read_bits(s), 8 * kv.den) / Fraction(bandwidth)
        step = max(read, Fraction(n * counted.flops(s)) / Fraction(4e9))
        attention, paid = attention + step, paid + max(Fraction(0), n * added["engine"] / n_out - step)
    choice_s = n * asked.made.choice_bytes / bandwidth  # loop in test_sink_work.py
    assert wave.quantize_s * n_out == pytest.approx(float(paid) + choice_s, rel=1e-12, abs=1e-12 * float(attention))
    once, own = (
        quantising(dev, kv, asked.paths, 0, work.prefix_tokens),
        quantising(dev, kv, asked.paths, work.prefix_tokens, n_in),
    )
    prompt = {name: float(once[name] + n * own[name]) for name in once}
    exposed_s = max(0.0, prompt["engine"] - wave.prompt_compute_s)
    expected = prompt["fused"] + prompt["materialised"] + exposed_s
    assert wave.prompt_quantize_s == pytest.approx(expected, rel=1e-12, abs=1e-12 * wave.prompt_compute_s)
    assert wave.prefill_s == wave.prompt_compute_s + wave.prompt_quantize_s


@given(PLANS, st.integers(1, 20), st.integers(-3, 4), st.integers(1, 60))
def test_scaling_all_rates_scales_all_times_bit_for_bit(kv, batch, k, n_out):
    dev = device(bandwidth=2e11, peak=4e11, fused=3e11)
    fast = device(bandwidth=2e11 * 2.0**k, peak=4e11 * 2.0**k, fused=3e11 * 2.0**k)
    before = at(dev, kv, batch=batch, input_tokens=40, output_tokens=n_out)
    after = at(fast, kv, batch=batch, input_tokens=40, output_tokens=n_out)
    for name, unit in RESULT_UNITS.items():
        if unit == "s":
            assert after[name] == before[name] * 2.0**-k, name


def test_waves_when_a_batch_does_not_fit():
    kv = build("llama2-7b", "fp16")
    result = at(catalog.device("a100-80gb"), kv, batch=256)
    assert result["max_batch"] == 61
    assert result["n_waves"] == 5  # ceil(256 / 61)
    assert result["running_batch"] == 52  # ceil(256 / 5): one wave of 52, four of 51
    one, four = (at(catalog.device("a100-80gb"), kv, batch=n)["total_s"] for n in (52, 51))
    assert result["total_s"] == pytest.approx(one + 4 * four, rel=1e-12)
    assert result["bound"] == "capacity"
    assert not result["fits_whole_batch"]


def test_shared_prefix_is_stored_and_computed_once():
    kv = build("llama3-8b", "fp16")
    per_token = 2 * 32 * 1024 * 2
    result = at(device(), kv, batch=100, input_tokens=2500, output_tokens=1, prefix_tokens=2000)
    assert result["kv_bytes"] == (2000 + 100 * 501) * per_token
    whole = at(device(), kv, batch=100, input_tokens=2500, output_tokens=1)
    assert whole["kv_bytes"] == 100 * 2501 * per_token
    tokens = 2000 + 100 * 500
    pairs = 2000 * 2001 // 2 + 100 * (2500 * 2501 // 2 - 2000 * 2001 // 2)
    flops = 2 * 8_030_261_248 * tokens + 32 * 4 * 4096 * pairs
    assert result["prefill_s"] == pytest.approx(flops / 312e12, rel=1e-12)


def test_fractions_of_a_byte_are_rounded_up():
    kv = build(model(layer(n_layers=1, n_kv_heads=1, dim=10)), "oaken")
    result = at(device(), kv, batch=1, input_tokens=1, output_tokens=2)
    # keys and values, 3 tokens, d = 10: 40 payload + 96 scales + 8 count bits + 8 * 0.1 * 10 outliers = 152 bits
    assert result["kv_bytes"] == 2 * 3 * 152 // 8
    odd = build(model(layer(n_layers=1, n_kv_heads=1, dim=10)), "oaken:outer=0.045")
    # 8 * 0.105 * 10 = 8.4: 152.4 bits a token and tensor, 914.4 bits in all: 114.3 bytes
    assert at(device(), odd, batch=1, input_tokens=1, output_tokens=2)["kv_bytes"] == 115


def test_mixture_reads_only_the_experts_it_touches():
    kv = build("mixtral-8x7b-oaken", "fp16")
    dev = device(capacity=10**12)
    one = at(dev, kv, batch=1)
    found = catalog.model("mixtral-8x7b-oaken")
    assert one["linear_s"] == pytest.approx(2 * (found.dense_parameters + found.expert_parameters / 4) / 2e12)
    many = at(dev, kv, batch=64)["linear_s"]
    assert many == pytest.approx(2 * (found.dense_parameters + found.expert_parameters * (1 - 0.75**64)) / 2e12)


def test_materialised_costs_traffic_and_one_layer_of_workspace():
    kv = build("llama2-7b", "nqkv")
    fused, slow = (at(device(nqkv=path), kv, batch=4) for path in ("fused", "materialised"))
    elements = 4 * 2 * 32 * 4096 * (1024 + 1025 / 2)  # batch, K and V, layers, channels, mean context
    assert slow["dequantize_s"] == pytest.approx(4 * elements / 2e12)
    assert slow["workspace_bytes"] == 4 * 2 * 4096 * 2048 * 2
    assert fused["workspace_bytes"] == 0


def test_nqkv_pads_one_layer_to_tiles_of_sixteen_tokens():
    dev, kv = catalog.device("a100-80gb"), build("opt-6.7b", "nqkv")
    for n_out, padded in ((5, 1040), (16, 1040), (17, 1056)):  # ceil(1029 / 16) * 16 = 65 * 16
        result = at(dev, kv, batch=3, output_tokens=n_out)
        assert result["workspace_bytes"] == 3 * 2 * 4096 * padded * 2  # batch, K and V, channels, FP16
    # 1040 - 1029 = 11 slots: of one layer, or of each of 32
    one_layer, every_layer = 2 * 4096 * 11, 32 * 2 * 4096 * 11
    terms = explained(Point(dev, kv, Workload(3, 1024, 5)))[1]["workspace_bytes"].terms
    assert (terms["padded_elements"], terms["padded_elements_if_stored_padded"]) == (one_layer, every_layer)
    for name, n_out in (("nqkv", 16), ("oaken", 5)):  # a multiple of 16, and a method whose code pads nothing
        told = explained(Point(dev, build("opt-6.7b", name), Workload(3, 1024, n_out)))[1]["workspace_bytes"]
        assert not [term for term in told.terms if term.startswith("padded")]
    materialised = point_of(build("opt-6.7b", "oaken"), dequant_path="materialised").design
    assert workspace_bytes(materialised, Sequence(materialised).limits, 1029) == 2 * 2 * 4096 * 1029


def test_an_engine_that_keeps_pace_costs_nothing_and_a_slow_one_the_rest():
    kv = build("llama2-7b", "oaken")
    keeping = at(device(engine=4e12, oaken="engine"), kv, batch=16)
    assert keeping["dequantize_s"] == 0
    assert keeping["dequantize_busy_s"] > 0
    slow = at(device(engine=1e12, oaken="engine"), kv, batch=16)
    busy = 16 * 2 * 32 * 4096 * (1024 + 1025 / 2) / 1e12
    assert slow["dequantize_s"] == pytest.approx(busy - slow["attention_s"], rel=1e-9)


def test_workload_copies_are_checked_too():
    with pytest.raises(InputError, match="batch = 0: must be a whole number from 1"):
        replace(Workload(), batch=0)


def test_a_gpu_pays_for_a_methods_own_kernels_and_copies():
    kv = build("llama2-7b", "kivi:group=128")
    work = {"batch": 4, "input_tokens": 1024, "output_tokens": 1024}
    free, gpu = at(device(), kv, **work), at(device(launch=5e-6), kv, **work)
    # reading: one more product for keys and for values in each of 32 layers
    assert gpu["dequantize_s"] - free["dequantize_s"] == pytest.approx(64 * 5e-6)
    # packing: 8 kernels for values every step, for keys every 128
    launches = 32 * 8 * (1 + 1 / 128) * 5e-6
    # copies: values hold 896 packed tokens at first, one more a step; keys 8 groups of 128, up to 16
    value_tokens = sum(n - 1 + n for n in range(897, 1921))
    key_tokens = sum(128 * (k - 1 + k) for k in range(9, 17))
    copies = 4 * 32 * 4096 * 2.25 / 8 * (value_tokens + key_tokens) / 1024 / 2e12
    # 16-bit tokens that wait, read and written in every step: 128 values, and as many keys as came since the last 128
    waiting = sum(128 + n % 128 for n in range(1025, 2049))
    copies += 2 * 4 * 32 * 4096 * 2 * waiting / 1024 / 2e12
    assert gpu["quantize_s"] - free["quantize_s"] == pytest.approx(launches + copies)
    # prompt: 8 kernels for keys and for values in each layer, once
    assert gpu["prefill_s"] - free["prefill_s"] == pytest.approx(32 * 16 * 5e-6)


@given(PLANS, st.integers(1, 30), st.integers(1, 60), st.integers(1, 60), st.sampled_from([1e9, 1e10, 1e12]))
def test_a_time_is_the_larger_of_bytes_and_operations_and_is_named_so(kv, batch, n_in, n_out, peak):
    dev = device(bandwidth=2e10, peak=peak)
    result = at(dev, kv, batch=batch, input_tokens=n_in, output_tokens=n_out)
    running = result["running_batch"]
    bytes_s, flops_s = result["weight_bytes"] / 2e10, 2 * kv.model.parameters * running / peak
    assert result["linear_s"] == max(bytes_s, flops_s)
    assert result["linear_bound"] == ("compute" if flops_s > bytes_s else "bandwidth")
    lengths = range(n_in + 1, n_in + n_out + 1)
    counted = sequence(kv)
    reads = sum(running * counted.read_bits(s) / (8 * kv.den) / 2e10 for s in lengths) / n_out
    flops = sum(running * counted.flops(s) / peak for s in lengths) / n_out
    assert result["attention_s"] >= max(reads, flops) * (1 - 1e-12)
    assert result["attention_bound"] == ("compute" if flops > reads else "bandwidth") or reads == pytest.approx(flops)


def test_a_users_gpu_runs_quantizers_as_the_shipped_ones_do():
    h100 = catalog.device("h100")
    numbers = {name: getattr(h100, name) for name in ("memory_capacity", "memory_bandwidth", "peak_flops", "n_cores")}
    own = specs.HardwareSpec(name="own", architecture="sm_90", **numbers)
    for name in ("fp16", "oaken", "nqkv", "kivi", "qserve", "sinkq"):
        kv = build("llama3.1-8b", name)
        mine, shipped = at(own, kv, batch=64), at(h100, kv, batch=64, model_kind="ideal")
        assert mine["throughput_tokens_per_s"] <= shipped["throughput_tokens_per_s"], name
        # at the peaks of a chip whose kernels were measured, what is unpacked in registers is free
        bare = h100.model_copy(update={"stacks": {}, "fused_rate": None})
        assert mine["throughput_tokens_per_s"] == at(bare, kv, batch=64)["throughput_tokens_per_s"], name


def test_nothing_is_charged_before_anything_is_packed():
    short = {"batch": 4, "input_tokens": 16, "output_tokens": 16}
    for name in ("kivi", "sinkq"):
        result = at(device(launch=5e-6), build("llama2-7b", name), **short)
        assert result["stored_bits"] == 16
        assert result["dequantize_s"] == 0
        # but the 16-bit tokens are copied to append: 17 to 32 of them, keys and values
        copies = 2 * 4 * 2 * 32 * 4096 * 2 * sum(range(17, 33)) / 16 / device().memory_bandwidth.si
        assert result["quantize_s"] == pytest.approx(copies)
    # a window of 37 tokens never holds the 128 that KIVI packs at a time
    narrow = build(model(layer(window=37)), "kivi")
    result = at(device(launch=5e-6), narrow, batch=4, input_tokens=500, output_tokens=100)
    assert (result["stored_bits"], result["dequantize_s"]) == (16, 0)
    assert result["quantize_s"] == pytest.approx(2 * 4 * 37 * narrow.bits(1) / 8 / device().memory_bandwidth.si)


def test_reading_kernels_start_with_the_first_packed_group():
    # SinkQ packs at 160 tokens: of the steps at 101..200 tokens, 41 read packed keys (3 kernels) and values (2), in the
    # two layers that keep no sinks one kernel each
    free, gpu = (
        at(device(launch=launch), build("llama2-7b", "sinkq"), input_tokens=100, output_tokens=100)
        for launch in (0.0, 5e-6)
    )
    assert gpu["dequantize_s"] - free["dequantize_s"] == pytest.approx((30 * 5 + 2 * 2) * 41 / 100 * 5e-6)
    assert gpu["prefill_s"] == free["prefill_s"]  # the prompt is too short to pack any of it


def test_sinkq_keeps_positions_with_the_values_where_the_keys_have_none():
    both, key_only, value_only = (
        point_of(build("llama2-7b", *names)).ledger(1024)["sinks"]
        for names in (("sinkq",), ("sinkq", "fp16"), ("fp16", "sinkq"))
    )
    positions = 30 * 32 * 3 * 32  # layers, heads, sinks, bits
    assert key_only == value_only == (both + positions) / 2


@pytest.mark.parametrize("admission", ["reserve", "paged"])
@pytest.mark.parametrize("quantizer", ["sinkq", "oaken"])
def test_every_result_explains_itself(quantizer, admission):
    work = Workload(batch=8, admission=admission)
    result, steps = explained(Point(catalog.device("a100-80gb"), build("llama2-7b", quantizer), work))
    given = {*ASKED, "device", "model", "quantizer", "key_quantizer", "value_quantizer", "capacity_bytes", "n_devices"}
    assert set(result) - given <= set(steps)
    for name in set(result) & set(steps) - {"effective_bits"}:
        assert steps[name].value == result[name], name


@settings(max_examples=30)
@given(
    st.sampled_from(["h100", "oaken-hbm", "a100-80gb"]),
    st.sampled_from(["fp16", "kivi", "oaken", "nqkv"]),
    st.integers(1, 2000),
    st.integers(1, 9000),
    st.sampled_from(["reserve", "paged"]),
    st.booleans(),
)
def test_speed_is_some_of_the_results(name, quantizer, batch, n_in, admission, is_large):
    kv = build("llama2-70b" if is_large else "llama3.1-8b", quantizer)
    work = Workload(batch=batch, input_tokens=n_in, output_tokens=70, admission=admission)
    whole = engine.evaluate(Point(catalog.device(name), kv, work))
    found = engine.speed(Point(catalog.device(name), kv, work))
    assert found == {name: whole[name] for name in found}
    assert {*uncertainty.COMPARED} <= {*found}


def test_a_plan_asked_again_answers_the_same():
    """What a plan keeps between points reaches no result: every order, and a plan that is asked for the first time."""
    works = [
        Workload(batch=batch, input_tokens=n_in, output_tokens=n_out, tokens=tokens)
        for tokens in ("full", "snapkv:budget=100", "streaming")
        for n_in, n_out in ((90, 300), (90, 170), (700, 300))
        for batch in (3, 40)
    ]
    for where, name in (("oaken-hbm", "oaken"), ("h100", "kivi"), ("h100", "sinkq")):
        device = catalog.device(where)
        kept = build("llama2-7b", name)
        fresh = [engine.evaluate(Point(device, build("llama2-7b", name), work)) for work in works]
        for order in (works, works[::-1]):
            assert [engine.evaluate(Point(device, kept, work)) for work in order] == (
                fresh if order is works else fresh[::-1]
            )


@pytest.mark.parametrize("admission", ["reserve", "paged"])
def test_what_does_not_fit_is_the_same_with_its_steps_uncounted(admission, monkeypatch):
    work = Workload(input_tokens=64, output_tokens=1_000_000, admission=admission)
    gpu, plan = catalog.device("h100"), build(catalog.model("llama2-7b"), "kivi")
    counted = Point(gpu, plan, work)
    assert counted.made.pieces
    monkeypatch.setattr(point, "MANY_GROUPS", 10)
    uncounted = Point(gpu, plan, work)
    assert not uncounted.made.pieces
    assert not uncounted.takes_long
    assert not uncounted.max_batch
    assert engine.evaluate(uncounted) == engine.evaluate(counted)


def test_a_point_goes_the_way_that_it_is_asked_for_whatever_ran_before(monkeypatch):
    """Interpreted alone, compiled among 4,096: compiled code that a process has loaded changes neither."""
    compiled, real = [], many.numbers_of
    monkeypatch.setattr(many, "numbers_of", lambda *args: compiled.append(1) or real(*args))
    asked = Point(catalog.device("h100"), build("llama3.1-8b", "kivi"), Workload(batch=8))
    ways = [(INTERPRETED, 10**6), (AUTO, 1), (COMPILED, 1), (AUTO, 1), (AUTO, 4095), (AUTO, 4096), (INTERPRETED, 4096)]
    counts, results = [], []
    for by, n_points in ways:
        results.append(engine.evaluate(asked, by, n_points))
        counts.append(len(compiled))
    assert counts == [0, 0, 1, 1, 1, 2, 2]
    assert all(list(each.items()) == list(results[0].items()) for each in results)


def test_a_small_sweep_is_interpreted_also_where_compiled_code_is_loaded(monkeypatch):
    run, real = [], many.evaluate
    monkeypatch.setattr(many, "evaluate", lambda *args: run.append(1) or real(*args))
    engine.evaluate(Point(catalog.device("h100"), build("llama2-7b", "fp16"), Workload(batch=1)), COMPILED)
    assert len(run) == 1
    axes = {"device": ["h100"], "model": ["llama2-7b"], "quantizer": ["fp16"], "batch": [*range(1, 65)]}
    assert len(in_memory(sweeps.from_dict({"axes": axes}), 64)) == 64
    assert len(run) == 1
