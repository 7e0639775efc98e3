"""Latency, 8-bit activations, no KV cache, utilisation, energy by parts, price of a request: by hand and by loops."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from dse.cli import main as cli
from dse.core.errors import InputError
from dse.model import engine
from dse.model.formulas import activations, kv_cache
from dse.model.lower import weights_by_operation
from dse.model.point import Point
from dse.model.stacks import stack_of
from dse.specs import catalog
from dse.specs import device_and_model as specs
from dse.specs.workload import Workload
from factories import CHUNKED_PLANS, PLANS, at, build, device, layer, model

A100 = catalog.device("a100-80gb:memory_bandwidth=2 TB/s")
IDEAL = {"model_kind": "ideal"}
#: parameters of Llama2-13B and its heads: 40 layers, hidden 5120, 40 heads of 128, feed-forward 13824, vocabulary 32000
P13, LAYERS, HIDDEN, FFN, VOCAB = 13_015_864_320, 40, 5120, 13824, 32000
#: those that a step reads, as it looks up a row of the input embeddings, and of them the head: a prompt's last token
READ13, HEAD13 = P13 - HIDDEN * VOCAB, HIDDEN * VOCAB


def number(value, unit):
    return specs.Quantity(value=value, unit=unit, source="test", kind="assumed")


def test_first_token_is_one_prompt_by_hand():
    result = at(A100, build("llama2-13b", "fp16"), batch=32, input_tokens=1024, output_tokens=512, **IDEAL)
    # one prompt of 1024 tokens: 2 P a token, the head once, 40 layers * 4 * 5120 * 1024 * 1025 / 2 for scores
    prompt_s = (2 * (READ13 - HEAD13) * 1024 + 2 * HEAD13 + LAYERS * 4 * HIDDEN * (1024 * 1025 // 2)) / 312e12
    assert result["prefill_alone_s"] == pytest.approx(prompt_s, rel=1e-12)
    assert result["prefill_alone_s"] < result["prefill_s"]  # not the prompts of all 32


def test_a_cached_prefix_leaves_the_time_to_first_token():
    kv = build("llama2-13b", "fp16")
    work = {"batch": 8, "input_tokens": 1024, "output_tokens": 8, **IDEAL}
    half, whole = (at(A100, kv, prefix_tokens=n, **work) for n in (512, 1024))
    # 512 tokens of their own; their scores are those of the whole prompt less those of the prefix
    scores = LAYERS * 4 * HIDDEN * (1024 * 1025 // 2 - 512 * 513 // 2)
    prompt_s = (2 * (READ13 - HEAD13) * 512 + 2 * HEAD13 + scores) / 312e12
    assert half["prefill_alone_s"] == pytest.approx(prompt_s, rel=1e-9)
    assert whole["prefill_alone_s"] == 0  # nothing is left to compute
    assert at(A100, kv, **work)["prefill_alone_s"] > half["prefill_alone_s"]


def test_eight_bit_products_run_at_the_int8_peak_by_hand():
    kv = build("llama2-13b", "fp16")
    work = {"batch": 1, "input_tokens": 2048, "output_tokens": 1, "weights_bits": 8, **IDEAL}
    wide, narrow = at(A100, kv, **work), at(A100, kv, activation_bits=8, **work)
    saved = 2 * ((READ13 - HEAD13) * 2048 + HEAD13) * (1 / 312e12 - 1 / 624e12)  # attention stays at the FP16 peak
    assert wide["prefill_s"] - narrow["prefill_s"] == pytest.approx(saved, rel=1e-9)
    assert narrow["linear_s"] == wide["linear_s"] == READ13 / 2e12  # one token: bound by the weights
    assert catalog.device("h100").product_peak(8).si == 1979e12  # FP8, where no INT8 rate is given


def test_eight_bit_activations_need_a_rate_and_small_weights():
    with pytest.raises(InputError, match=r"activation-bits = 8: toy has no 8-bit rate: use 16"):
        at(device(), build("opt-1.3b", "fp16"), weights_bits=8, activation_bits=8)
    with pytest.raises(InputError, match=r"activation-bits = 8: must be at least weights-bits = 16"):
        Workload(activation_bits=8)
    with pytest.raises(InputError, match="activation-bits = 4: must be one of 16, 8"):
        Workload(activation_bits=4, weights_bits=4)


def test_activations_by_hand():
    # OPT-6.7B: 2 * 4096 + 50272 logits = 58464 elements a token, which stay FP16 at 8 bits
    kv = build("opt-6.7b", "fp16")
    paper = {"memory": "paper", **IDEAL}
    work = Workload(batch=2, input_tokens=100, output_tokens=20, weights_bits=8, prompt_chunk_tokens=64, **paper)
    assert at(A100, kv, **vars(work))["activation_bytes"] == 2 * 64 * 58464 * 2
    assert at(A100, kv, **vars(replace(work, activation_bits=8)))["activation_bytes"] == 2 * 64 * 58464 * 2
    assert at(A100, kv, **vars(replace(work, prompt_chunk_tokens=10**6)))["activation_bytes"] == 2 * 100 * 58464 * 2
    # a feed-forward wider than the logits halves: 1000 elements, of which 200 are residual and logits
    assert activations.activation_bytes(3, 1000, 200, 16) == 6000
    assert activations.activation_bytes(3, 1000, 200, 8) == 3000
    assert activations.activation_bytes(3, 1000, 700, 8) == 4200


def test_the_longest_context_counts_the_activations_of_its_prompt():
    kv = build("opt-6.7b", "fp16")
    small, whole = (
        at(A100, kv, batch=1, input_tokens=512, output_tokens=338, prompt_chunk_tokens=n, **IDEAL)["max_context_tokens"]
        for n in (1, 2**20)
    )
    free, per_token, one = 80 * 10**9 - 2 * 6_658_473_984, 2 * 32 * 4096 * 2, 58464 * 2
    assert small == (free - one) // per_token
    # s tokens of KV and s - 338 of activations
    assert whole == (free + 338 * one) // (per_token + one)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.integers(1, 200))
def test_live_tokens_grow_with_the_context_up_to_a_chunk(n_in, n_out, chunk, n):
    found = [activations.activation_tokens(s, n_in, n_out, chunk) for s in range(1, n + 1)]
    assert found == sorted(found)
    assert all(1 <= live <= min(s, chunk) for s, live in enumerate(found, 1))
    assert activations.activation_tokens(n_in, n_in, n_out, chunk) == min(n_in, chunk)


@given(st.integers(0, 80), st.integers(1, 90))
def test_causal_pairs_are_the_double_loop(n, window):
    assert kv_cache.sum_of_causal_pairs(n, window) == sum(
        min(s, window) for m in range(1, n + 1) for s in range(1, m + 1)
    )


def no_cache_loop(dev, kv, n, work, peak, bandwidth, fit, prompt_frac=0.6):
    """Mean step of a generation that runs the whole prefix each time: token by token, with root of squares or max.

    As a server runs it (`fit`): two products for attention and two for a feed-forward, or a router. Input embeddings
    are looked up on chips that serve.
    """
    unread = kv.model.embedding_parameters if fit or dev.has_kernels else 0
    linear = scores = 0.0
    attended = [0] * len(kv.model.layers)  # pairs of a query and a key of each layer, over the prefix so far
    for s in range(1, work.final_tokens + 1):
        newest = [naive.seen_tokens(s, layer.window or s, layer.chunked) for layer in kv.model.layers]
        attended = [pairs + more for pairs, more in zip(attended, newest, strict=True)]
        if s <= work.input_tokens:
            continue
        share = 1 - (1 - kv.model.n_active_experts / kv.model.n_experts) ** (n * s)
        read = (kv.model.dense_parameters - unread + kv.model.expert_parameters * share) * work.weights_bits / 8
        compute_s, read_s = 2 * float(kv.model.active_parameters - unread) * n * s / peak, read / bandwidth
        if fit:
            products = (3 if kv.model.n_experts > 1 else 4) * kv.model.n_layers + 1
            square = (compute_s / fit["flops_frac"]) ** 2 + (read_s / fit["memory_frac"]) ** 2
            linear += products * fit["launch_s"] + square**0.5
        else:
            linear += max(compute_s, read_s)
        flops = sum(
            layer.n_layers * pairs * 2 * kv.model.n_q_heads * layer.score_dim
            for pairs, layer in zip(attended, kv.model.layers, strict=True)
        )
        scores += n * flops / (dev.peak_flops.si * (prompt_frac if fit else 1.0))
    return linear / work.output_tokens, scores / work.output_tokens


@given(CHUNKED_PLANS, st.integers(1, 9), st.integers(1, 80), st.integers(1, 120), st.sampled_from([1e9, 1e11]))
def test_without_a_cache_the_closed_form_is_the_loop(kv, n, n_in, n_out, peak):
    dev = device(bandwidth=2e9, peak=peak)
    work = Workload(batch=n, input_tokens=n_in, output_tokens=n_out, kv_cache=False, model_kind="ideal")
    kv = build(kv.model, "fp16")  # nothing is stored, so nothing is quantised
    times = Point(dev, kv, work).run(n).wave
    linear, scores = no_cache_loop(dev, kv, n, work, peak, 2e9, None)
    assert times.linear_s == pytest.approx(linear, rel=1e-12)
    assert times.attention_s == pytest.approx(scores, rel=1e-12)


@pytest.mark.parametrize("name", ["opt-6.7b", "mixtral-8x7b-oaken"])
@pytest.mark.parametrize("kind", ["ideal", "calibrated"])
def test_without_a_cache_shipped_models_are_the_loop(name, kind):
    kv = build(name, "fp16")
    work = Workload(
        batch=2, input_tokens=5, output_tokens=300, weights_bits=4, activation_bits=8, kv_cache=False, model_kind=kind
    )
    _, stack = stack_of(A100, work)
    result = engine.evaluate(Point(A100, kv, work))
    prompt_frac = stack.prompt["d128"].flops_frac.si if stack else 1.0  # heads of 128
    fit = (
        {
            f"{name}_s" if name == "launch" else name: number.si
            for name, number in stack.products["bf16"].quantities().items()
        }
        if stack
        else None
    )
    linear, scores = no_cache_loop(A100, kv, 2, work, 624e12, 2e12, fit, prompt_frac)
    assert result["linear_s"] == pytest.approx(linear, rel=1e-9 if stack else 1e-12)
    assert result["attention_s"] == pytest.approx(scores, rel=1e-12)
    assert result["prefill_s"] == 0
    assert result["ttft_s"] == result["decode_step_s"]  # a step begins with its prompt
    alone = engine.evaluate(Point(A100, kv, replace(work, batch=1, kv_cache=True, weights_bits=work.weights_bits)))
    if stack is None or name == "opt-6.7b":  # with a cache, experts run as they were measured
        assert result["prefill_alone_s"] == pytest.approx(alone["prefill_s"], rel=1e-9)  # FP16 packs nothing


def test_without_a_cache_utilisation_counts_the_experts_of_every_step():
    """Mixtral at peak rates, 1 token in, 8 out: all of a step is reading weights, so its bandwidth is used in full."""
    work = Workload(1, 1, 8, kv_cache=False, model_kind="ideal")
    result = engine.evaluate(
        Point(catalog.device("h100:memory_capacity=192 GB"), build("mixtral-8x7b-oaken", "fp16"), work)
    )
    assert result["bandwidth_utilisation"] == pytest.approx(1, rel=1e-5)
    assert result["bandwidth_utilisation"] <= 1


def test_without_a_cache_memory_holds_no_keys_and_all_activations():
    kv = build("opt-6.7b", "fp16")
    result = at(A100, kv, batch=8, input_tokens=128, output_tokens=338, kv_cache=False)
    assert (result["kv_bytes"], result["peak_kv_bytes_per_sequence"], result["stored_bits"]) == (0, 0, 0)
    assert result["activation_bytes"] == 8 * 466 * 58464 * 2
    assert result["min_capacity_bytes"] == result["weight_bytes"] + result["activation_bytes"]
    paged = at(A100, kv, batch=8, input_tokens=128, output_tokens=338, kv_cache=False, admission="paged")
    assert paged["max_batch"] == result["max_batch"]


def of(dev, kv, **fields):
    work = Workload(**fields)
    result = engine.evaluate(Point(dev, kv, work))
    return result, {(op["phase"], op["name"]): op for op in Point(dev, kv, work).operations()}


def test_utilisation_of_llama2_13b_by_hand():
    result, ops = of(A100, build("llama2-13b", "fp16"), batch=4, input_tokens=1024, output_tokens=1, **IDEAL)
    qkv, out, head = 3 * HIDDEN * HIDDEN * LAYERS, HIDDEN * HIDDEN * LAYERS, HIDDEN * VOCAB
    for name, n in (
        ("qkv", qkv),
        ("output_projection", out),
        ("head", head),
        ("feed_forward", READ13 - qkv - out - head),
    ):
        op = ops["decode", name]
        assert op["n_bytes"] == 2 * n
        assert op["flops"] == pytest.approx(2 * n * 4)
        assert op["seconds"] == pytest.approx(2 * n / 2e12)
        # 4 FLOP a byte of weights against 156 that the device has
        assert op["compute_utilisation"] == pytest.approx(4 * 2e12 / 312e12)
        assert op["bandwidth_utilisation"] == pytest.approx(1)
    attention = ops["decode", "attention"]
    assert attention["n_bytes"] == pytest.approx(4 * 1025 * 2 * LAYERS * HIDDEN * 2)
    assert attention["compute_utilisation"] == pytest.approx(2e12 / 312e12)  # one FLOP a byte, at any batch
    assert result["compute_utilisation"] == pytest.approx(
        (2 * READ13 * 4 + 4 * 1025 * 4 * LAYERS * HIDDEN) / 312e12 / result["decode_step_s"]
    )
    assert result["bandwidth_utilisation"] == pytest.approx(1)
    assert result["prefill_compute_utilisation"] == pytest.approx(1)
    assert READ13 - qkv - out - head - (2 * LAYERS + 1) * HIDDEN == FFN * HIDDEN * 3 * LAYERS  # norms count with it


def test_products_of_grouped_queries_by_hand():
    """Llama3-8B, 32 layers of 4,096 channels: 32 query heads of 128, all of which the output projection takes; 8 KV
    heads."""
    _, ops = of(A100, build("llama3-8b", "fp16"), batch=1, input_tokens=16, output_tokens=1, **IDEAL)
    assert ops["decode", "qkv"]["n_bytes"] == 2 * 32 * 4096 * (32 * 128 + 2 * 8 * 128)
    assert ops["decode", "output_projection"]["n_bytes"] == 2 * 32 * 32 * 128 * 4096


@given(PLANS, st.integers(1, 12), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1e9, 1e11]))
def test_operations_add_up_and_use_no_more_than_the_peaks(kv, batch, n_in, n_out, peak):
    result, ops = of(device(bandwidth=2e9, peak=peak), kv, batch=batch, input_tokens=n_in, output_tokens=n_out)
    for op in ops.values():
        assert 0 <= op["compute_utilisation"] <= 1 + 1e-9
        assert 0 <= op["bandwidth_utilisation"] <= 1 + 1e-9
    for phase, seconds in (("decode", result["decode_step_s"]), ("prefill", result["prefill_s"])):
        own = [op for (of_phase, name), op in ops.items() if of_phase == phase and name != "all"]
        assert sum(op["seconds"] for op in own) == pytest.approx(seconds, rel=1e-9)
        assert ops[phase, "all"]["flops"] == pytest.approx(sum(op["flops"] for op in own))


def test_latent_attention_is_not_split():
    latent = layer().model_copy(update={"value_dim": 0})
    found = weights_by_operation(model(latent).model_copy(update={"dense_parameters": 10**6}), Workload())
    assert [name for name, _ in found] == ["layers", "head"]


def test_energy_by_parts_by_hand():
    dev = device().model_copy(
        update={
            "energy_per_byte": number(50, "pJ/B"),
            "energy_per_flop": number(1, "pJ/FLOP"),
            "idle_power": number(60, "W"),
        }
    )
    result = at(dev, build("llama2-13b", "fp16"), batch=4, input_tokens=1024, output_tokens=1, **IDEAL)
    kv_bytes = 4 * 1025 * 2 * LAYERS * HIDDEN * 2
    assert result["memory_joules_per_token"] == pytest.approx(50e-12 * (4 * P13 + kv_bytes) / 4)
    flops = 2 * P13 * 4 * 1025 + 4 * LAYERS * 4 * HIDDEN * (1024 * 1025 // 2 + 1025)
    assert result["compute_joules_per_token"] == pytest.approx(1e-12 * flops / 4)
    assert result["idle_joules_per_token"] == pytest.approx(60 * result["total_s"] / 4)
    parts = sum(result[f"{name}_joules_per_token"] for name in ("memory", "compute", "idle"))
    assert result["joules_per_token_by_parts"] == pytest.approx(parts)
    assert at(device(), build("opt-1.3b", "fp16"))["joules_per_token_by_parts"] is None


@given(st.sampled_from(sorted(catalog.device_files())), st.sampled_from([1, 16, 300]), st.sampled_from([16, 2048]))
def test_the_parts_never_exceed_the_board(name, batch, n_in):
    found = catalog.device(name)
    result = at(found, build("opt-1.3b", "fp16"), batch=batch, input_tokens=n_in, output_tokens=16)
    if found.energy_per_byte and found.board_power and result["feasible"]:
        assert result["joules_per_token_by_parts"] <= result["joules_per_token"] * 1.01


def test_eight_bit_operations_cost_half_the_energy():
    kv = build("opt-6.7b", "fp16")
    work = {"batch": 1, "input_tokens": 2048, "output_tokens": 1, "weights_bits": 8, **IDEAL}
    wide, narrow = at(A100, kv, **work), at(A100, kv, activation_bits=8, **work)
    head = 4096 * 50_272  # tied: the table is read as the head, which the prompt meets once
    products = 2 * ((6_658_473_984 - head) * 2049 + 2 * head) * 0.776e-12  # twice the rate at the same power
    saved = wide["compute_joules_per_token"] - narrow["compute_joules_per_token"]
    assert saved == pytest.approx(products / 2, rel=1e-6)


def test_price_of_a_request_by_hand():
    dev = device().model_copy(update={"usd_per_hour": number(3.6, "USD/h")})  # a tenth of a cent a second
    kv = build("llama2-13b", "fp16")
    work = {"batch": 8, "input_tokens": 1000, "output_tokens": 100}
    plain = at(dev, kv, **work)
    assert plain["usd_per_request"] == pytest.approx(plain["total_s"] / 8 * 1e-3)
    assert plain["usd_per_request"] == pytest.approx(plain["usd_per_million_tokens"] * 100 / 1e6)
    assert at(dev, kv, cached_input_discount=0.9, **work)["usd_per_request"] == plain["usd_per_request"]  # none cached
    shared = at(dev, kv, prefix_tokens=800, **work)
    assert shared["usd_per_request"] == pytest.approx(shared["total_s"] / 8 * 1e-3)
    listed = [
        at(dev, kv, prefix_tokens=800, cached_input_discount=d, **work)["usd_per_request"] for d in (0.0, 0.5, 1.0)
    ]
    step_s, prompt_s = shared["decode_step_s"] * 100 / 8, plain["prefill_s"] / 8
    for discount, price in zip((0.0, 0.5, 1.0), listed, strict=True):
        assert price == pytest.approx((step_s + prompt_s * (1 - 0.8 * discount)) * 1e-3, rel=1e-9)


def test_energy_of_waves_is_the_sum_over_them():
    kv = build("llama2-7b", "fp16")
    work = {"input_tokens": 1024, "output_tokens": 1024, **IDEAL}
    whole, large, small = (at(A100, kv, batch=n, **work) for n in (256, 52, 51))
    assert (whole["n_waves"], whole["running_batch"]) == (5, 52)  # one wave of 52, four of 51
    for name in ("memory", "compute", "idle"):
        joules = [result["batch"] * result[f"{name}_joules_per_token"] for result in (whole, large, small)]
        assert joules[0] == pytest.approx(joules[1] + 4 * joules[2], rel=1e-12)
    # each of 1024 steps reads all weights and the batch's keys and values at 1024 + 512.5 tokens on average
    read = 6_738_415_616 - 4096 * 32_000
    step_bytes = 2 * read + 52 * 2 * 32 * 4096 * 2 * 1536.5
    per_token = 48e-12 * (1024 * step_bytes + 2 * read) / (52 * 1024)
    assert large["memory_joules_per_token"] == pytest.approx(per_token, rel=1e-9)


def test_price_of_waves_is_the_sum_over_them():
    dev = A100.model_copy(update={"usd_per_hour": number(3.6, "USD/h")})
    kv = build("llama2-7b", "fp16")
    work = {"input_tokens": 1024, "output_tokens": 1024, "prefix_tokens": 300, "cached_input_discount": 0.9, **IDEAL}
    whole = at(dev, kv, batch=352, **work)
    # 524,288 B a token; 300 tokens of the prompt are stored once; one token of activations in FP16
    free, own = 80 * 10**9 - 2 * 6_738_415_616, 1748 * 524_288 + 2 * (32000 + 8192)
    most = (free - 300 * 524_288) // own
    n_waves = -(-352 // most)
    running = -(-352 // n_waves)
    n_smaller = n_waves * running - 352
    assert (whole["n_waves"], whole["running_batch"]) == (n_waves, running)
    assert n_smaller > 1
    large, small = (at(dev, kv, batch=n, **work) for n in (running, running - 1))
    usd = (n_waves - n_smaller) * running * large["usd_per_request"]
    usd += n_smaller * (running - 1) * small["usd_per_request"]
    assert 352 * whole["usd_per_request"] == pytest.approx(usd, rel=1e-12)


def test_products_start_as_many_kernels_as_a_pass():
    for name in ("llama2-13b", "mixtral-8x7b-oaken", "opt-125m"):
        found = catalog.model(name)
        parts = [part for _, part in weights_by_operation(found, Workload())]
        assert sum(part.n_products for part in parts) == 4 * found.n_layers + 1
        assert sum(part.dense for part in parts) == found.dense_parameters
        assert sum(part.experts for part in parts) == found.expert_parameters
    latent = model(layer().model_copy(update={"value_dim": 0})).model_copy(update={"dense_parameters": 10**6})
    tiny = latent.model_copy(update={"dense_parameters": 10})  # less than a head: not split at all
    for found in (latent, tiny):
        assert sum(part.n_products for _, part in weights_by_operation(found, Workload())) == 4 * found.n_layers + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--cached-input-discount", "half"],
            "cached-input-discount = 'half': must be a share from 0 to 1, such as 0.5",
        ),
        (["--cached-input-discount", "1e999"], "cached-input-discount = '1e999': must be a share from 0 to 1"),
        (["--cached-input-discount", "1.01"], "cached-input-discount = 1.01: must be a share from 0 to 1"),
        (["--activation-bits", "4"], "activation-bits = 4: must be one of 16, 8"),
        (["--activation-bits", "8"], "activation-bits = 8: must be at least weights-bits = 16: add --weights-bits 8"),
        (["--prompt-chunk", "0"], "prompt-chunk = 0: must be a whole number from 1 to"),
        (["--no-kv-cache", "--prefix", "7"], "prefix = 7: without a KV cache no prefix is kept"),
        (["--no-kv-cache", "--quantizer", "oaken"], "without a KV cache nothing is stored: use fp16"),
        (["--no-kv-cache", "--tokens", "snapkv"], "tokens = snapkv: without a KV cache nothing is stored: use full"),
    ],
)
def test_bad_options_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["point", "--device", "a100-80gb", "--model", "opt-6.7b", *arguments])
    found = capsys.readouterr()
    assert stop.value.code == 2
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert message in found.err


def test_operations_are_shown_as_a_table(capsys):
    for extra in ([], ["--no-kv-cache"], ["--quantizer", "nqkv"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(["point", "--device", "a100-80gb", "--model", "opt-6.7b", "--operations", *extra])
        lines = capsys.readouterr().out.split("Operations\n")[1].splitlines()
        assert stop.value.code == 0
        assert lines[0].split()[:2] == ["phase", "operation"]
        assert sum(line.startswith("decode") for line in lines) == (8 if "nqkv" in extra else 7)
        assert sum(line.split()[1] == "host" for line in lines[1:]) == (1 if "--no-kv-cache" in extra else 2)
        assert any(line.startswith("prefill") for line in lines) == ("--no-kv-cache" not in extra)
    with pytest.raises(SystemExit):
        cli.main(["point", "--device", "oaken-hbm", "--model", "llama2-70b", "--operations"])
    out = capsys.readouterr().out
    assert "Does not fit: weights need 138 GB" in out
    assert "Operations" not in out


@given(
    st.sampled_from(["oaken-hbm", "oaken-lpddr", "lpu-lpddr", "a100-80gb", "h100"]),
    st.sampled_from([1, 3, 64]),
    st.sampled_from(["fp16", "oaken", "kivi", "sinkq", "nqkv"]),
    st.booleans(),
)
def test_operations_add_up_on_every_kind_of_device(name, batch, quantizer, kv_cache):
    dev = catalog.device(name)
    quantizer = quantizer if kv_cache else "fp16"
    work = {"batch": batch, "input_tokens": 300, "output_tokens": 200, "kv_cache": kv_cache}
    result, ops = of(dev, build("opt-1.3b", quantizer), **work)
    phases = {phase for phase, _ in ops}
    assert phases == ({"decode", "prefill"} if kv_cache else {"decode"})
    for phase, seconds in (("decode", result["decode_step_s"]), ("prefill", result["prefill_s"])):
        own = [op for (of_phase, op_name), op in ops.items() if of_phase == phase and op_name != "all"]
        # without a cache a step of the mean length stands for the mean of the steps, whose times bend a little
        assert sum(op["seconds"] for op in own) == pytest.approx(seconds, rel=1e-9 if kv_cache else 0.02)
        assert all(0 <= op[f"{kind}_utilisation"] <= 1 + 1e-9 for op in own for kind in ("compute", "bandwidth"))


def test_idle_cores_count_against_utilisation_of_all_cores():
    lone = at(catalog.device("oaken-hbm"), build("opt-6.7b", "oaken"), batch=1)
    cores = catalog.device("oaken-hbm").token_cores.count
    assert lone["busy_cores"] == 1
    assert lone["compute_utilisation"] <= 1 / cores * (1 + 1e-9)


@pytest.mark.parametrize(("batch", "prefix"), [(1, 0), (4, 0), (4, 512)])
def test_a_served_prompt_multiplies_the_output_head_once(batch, prefix):
    """Gemma 3 1B on an H100: 1,152 x 262,144 parameters of 1.0e9 meet the last token of each prompt alone."""
    own = Point(
        catalog.device("h100"),
        build("gemma-3-1b", "fp16"),
        Workload(batch, 4096, 16, prefix_tokens=prefix, model_kind="calibrated"),
    )
    model, wave = own.design.model, own.run(batch).wave
    head, n_tokens = 1152 * 262_144, prefix + batch * (4096 - prefix)
    assert model.head_parameters == head
    flops = 2 * (model.active_parameters - model.unread_parameters - head) * n_tokens + 2 * head * batch
    reached = own.terms.product_peak_per_s * own.terms.gemm_flops_frac
    assert wave.prompt_products_s == pytest.approx(flops / reached)
    products = {row["name"]: row for row in own.operations() if row["phase"] == "prefill"}
    assert products["head"]["flops"] == pytest.approx(2 * head * batch)
    # at the peaks of a chip that serves, too; papers count it for every token
    work = Workload(batch, 4096, 16, prefix_tokens=prefix, model_kind="ideal")
    for name, counted in (("h100", head), ("oaken-hbm", 0)):
        ideal = Point(catalog.device(name), build("gemma-3-1b", "fp16"), work)
        assert ideal.design.model.head_parameters == counted
