"""A model on several devices: bytes of a device counted by hand, limits that must hold, and what cannot be split."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import factories
from cases import each
from dse.core.errors import InputError
from dse.model import deployed, engine, explain, step
from dse.model.formulas import weights
from dse.model.point import Point
from dse.specs import catalog, deployment
from dse.specs.quantity import Quantity
from dse.specs.workload import Workload
from factories import build

CONFIGS = Path(__file__).parents[1] / "golden" / "hf_configs"
HUGE = Quantity(value=10_000, unit="GB", source="test", kind="assumed")


def point(model, device="h100", quantizer="fp16", **asked):
    return factories.point(device, model, quantizer, **{"input_tokens": 1000, "output_tokens": 24, **asked})


def results(model, device="h100", quantizer="fp16", **asked):
    return engine.evaluate(point(model, device, quantizer, **asked))


def config(name):
    return str(CONFIGS / f"{name}.json")


@pytest.fixture
def gpt_oss_120b(tmp_path):
    """36 layers and 128 experts in place of 24 and 32: all else is the smaller model (arXiv:2508.10925, Table 1)."""
    data = json.loads((CONFIGS / "gpt-oss-20b.json").read_text())
    data |= {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": (data["layer_types"] * 2)[:36]}
    path = tmp_path / "gpt-oss-120b.json"
    path.write_text(json.dumps(data))
    return str(path)


# bytes of a token: layers * (key + value) * heads * head dimension * 2 bytes; 70B: 80 * 2 * 8 * 128 * 2 = 327,680
@each(
    ("model", "asked", "token_bytes"),
    [
        ("llama3.1-70b", {}, 327_680),
        ("llama3.1-70b", {"tp": 2}, 163_840),
        ("llama3.1-70b", {"tp": 4}, 81_920),
        ("llama3.1-70b", {"tp": 8}, 40_960),
        ("llama3.1-70b", {"tp": 16}, 40_960),  # one KV head each, held twice
        ("llama3.1-70b", {"tp": 16, "dcp": 2}, 20_480),  # and its tokens shared again
        ("llama3.1-70b", {"tp": 4, "pp": 2}, 40_960),  # half of the layers
        ("llama3.1-70b", {"tp": 8, "dp_attention": True}, 327_680),
        # one latent of 512 + 64 in each of 61 layers: 61 * 576 * 2 = 70,272, on every device
        ("deepseek-v3", {"tp": 8}, 70_272),
        ("deepseek-v3", {"tp": 8, "dp_attention": True}, 70_272),
        ("deepseek-v3", {"tp": 8, "dcp": 8}, 8_784),
        # and an index of 128 B with a scale in each: 61 * (1,152 + 132) = 78,324
        ("deepseek-v3.2", {"tp": 8}, 78_324),
        ("deepseek-v3.2", {"tp": 8, "dcp": 8}, 9_790.5),
        # 48 * 2 * 4 * 128 * 2 = 98,304
        ("qwen3-30b-a3b", {"tp": 4}, 24_576),
        ("qwen3-30b-a3b", {"tp": 8}, 24_576),
    ],
)
def test_bytes_of_a_token_on_a_device_are_those_counted_by_hand(model, asked, token_bytes):
    name = model if model in catalog.model_files() else config(model)
    assert results(name, **asked)["kv_bytes_per_token"] == token_bytes


def test_devices_that_share_tokens_score_and_choose_among_their_own():
    """Half of the index's operations, reads and choice on each of two; queries and results are exchanged as without."""
    asked = {"device": "b200", "quantizer": "fp8", "tp": 8, "batch": 4, "input_tokens": 60_000, "stack": "sglang"}
    one, two = (point("deepseek-v3.2", dcp=dcp, **asked) for dcp in (1, 2))
    dense = point("deepseek-v3", dcp=2, **asked)
    assert [layer.index_flops for layer in two.design.layers] == [n // 2 for n in (one.design.layers[0].index_flops,)]
    assert two.design.kernels[0].choice_s == one.design.kernels[0].choice_s / 2 > 0
    assert two.design.exchanges == dense.design.exchanges
    per_bit = [p.design.tensors[0].index_bits / p.plan.den for p in (one, two)]
    assert per_bit == [1056, 528]
    assert engine.evaluate(two)["read_tokens"] == engine.evaluate(one)["read_tokens"] == 2048
    assert (
        engine.evaluate(one)["attention_s"] / 2
        < engine.evaluate(two)["attention_s"]
        < engine.evaluate(one)["attention_s"]
    )
    parts = two.ledger(60_000)
    assert parts["index"] * 2 == one.ledger(60_000)["index"]
    assert engine.compiled_results(two) == engine.evaluate(two)


def test_windowed_layers_are_split_as_the_others(gpt_oss_120b):
    # 8 KV heads of 64: 2 * 8 * 64 * 2 = 2,048 B a token and layer; 18 layers hold 1,024 tokens, 18 a window of 128
    whole = 18 * 2048 * (1024 + 128)
    for tp in (1, 2, 4, 8):
        assert results(gpt_oss_120b, batch=1, tp=tp)["kv_bytes"] == whole // tp
    # 128 experts of 3 * 2880 * 2880 with biases: nine tenths and more of the 116.8 billion parameters, split evenly
    one, eight = (results(gpt_oss_120b, weights_bits=4, tp=tp)["weight_bytes"] for tp in (1, 8))
    assert one == pytest.approx(116.8e9 / 2, rel=0.01)
    # but for routers of 36 * 128 * (2880 + 1) at 4 bits, and a table of 131,072 positions of 64 at 16: whole on each
    whole = 36 * 128 * 2881 / 2 + 131_072 * 64 * 2
    assert eight == pytest.approx(one / 8 + whole * 7 / 8, abs=64)


# attention of a layer: 8192 * 128 * (2 * 64 query + 2 * 8 KV heads); KV heads that are copied come on top
ATTENTION = 80 * 8192 * 128 * (2 * 64 + 2 * 8)
PARAMETERS = 70_553_706_496


@pytest.mark.parametrize(
    ("asked", "n_parameters"),
    [
        ({}, PARAMETERS),
        ({"tp": 8}, PARAMETERS / 8),
        ({"tp": 16}, (PARAMETERS + 80 * 8192 * 128 * 2 * 8) / 16),
        ({"tp": 4, "pp": 4}, PARAMETERS / 16),
        ({"tp": 8, "dp_attention": True}, ATTENTION + (PARAMETERS - ATTENTION) / 8),
    ],
)
def test_weights_of_a_device_are_those_counted_by_hand(asked, n_parameters):
    found = results("llama3.1-70b", memory="paper", **asked)
    assert found["weight_bytes"] == pytest.approx(2 * n_parameters, abs=16)


# DeepSeek-V3: embeddings and head, which FP8 leaves in 16 bits; feed-forwards of 3 dense layers; a shared expert and a
# router in each of 58
TABLES = 2 * 129_280 * 7168
OTHERS = 3 * 3 * 7168 * 18_432 + 58 * (3 * 7168 * 2048 + 256 * 7168)


@pytest.mark.parametrize(
    ("stack", "n_bytes"), [("vllm", 2 * TABLES + OTHERS), ("trtllm@1.3", 2 * TABLES + OTHERS), ("sglang", TABLES)]
)
def test_devices_with_requests_of_their_own_have_weights_whole(stack, n_bytes):
    """By hand, beside an eighth of each: vLLM and TensorRT-LLM all but experts, SGLang embeddings alone."""
    asked = {"tp": 8, "ep": 8, "dp_attention": True, "device": "h200", "weights": "fp8"}
    split = results("deepseek-v3", **asked)["weight_bytes"]
    found = results("deepseek-v3", stack=stack, **asked)["weight_bytes"]
    # of FP8, with a scale for 128 * 128; norms count with the layers
    assert found - split == pytest.approx(n_bytes * 7 / 8, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "asked", "gib"),
    [
        # vLLM 0.19.0 on H100s, as its logs say; the last of four stages has the output head beside 8 layers
        ("llama3.1-8b", {}, 14.99),
        ("llama3.1-8b", {"tp": 2}, 7.51),
        ("llama3.1-8b", {"tp": 4}, 3.77),
        ("llama3.1-8b", {"pp": 2}, 7.51),
        ("llama3.1-8b", {"pp": 4}, 4.26),
        # a table of 10,485,760 rotary positions: 2.5 GiB on each
        ("llama4-scout", {"tp": 4}, 53.12),
        # image towers; tables of positions that are scaled eightfold
        ("gemma-3-4b", {}, 8.58),
        ("gemma-3-12b", {}, 23.31),
        ("gemma-3-27b", {}, 51.45),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", {}, 44.76),
        # copies of the up-projections of latent attention
        ("deepseek-v2-lite", {}, 29.43),
        # checkpoints in fewer bits: embeddings and output head stay, attention of the mixtures too
        ("llama3.1-8b", {"weights": "fp8"}, 8.49),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", {}, 8.49),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", {}, 5.38),
        ("MiniMaxAI/MiniMax-M2.5", {"tp": 4}, 53.75),
        ("nvidia/GLM-5.1-NVFP4", {"tp": 8}, 55.67),
        ("Qwen3.5-27B-NVFP4", {}, 18.48),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", {"tp": 2}, 33.88),
    ],
)
def test_weights_are_those_that_start_up_logs_print(model, asked, gib):
    """Lines "Model loading took ... GiB" of public logs of vLLM 0.10 to 0.20."""
    assert results(model, "b300", **asked)["weight_bytes"] / 2**30 == pytest.approx(gib, rel=0.01)


def test_padded_experts_of_gpt_oss_take_what_logs_say():
    # rows of 2,880 become 3,072 and 2,944: logs of vLLM say 64.4 to 66.0 GiB, by what each kernel pads
    found = results("gpt-oss-120b", "b300")["weight_bytes"]
    experts, rest, table = 114_701_598_720, 2_127_557_952, 131_072 * 64
    assert found == pytest.approx(experts * (3072 * 2944) / 2880**2 * 4.25 / 8 + 2 * (rest + table), rel=1e-9)
    assert 64.4 <= found / 2**30 <= 66.0


def stage_layers(n_layers, n_stages):
    """As vLLM cuts layers (vllm/distributed/utils.py, get_pp_indices): what is left over before the last stage."""
    layers = [n_layers // n_stages] * n_stages
    for i in range(n_layers % n_stages):
        layers[-2 - i] += 1
    return layers


def test_layers_are_cut_as_vllm_cuts_them():
    assert stage_layers(61, 4) == [15, 15, 16, 15]
    assert stage_layers(35, 2) == [18, 17]
    assert stage_layers(32, 3) == [11, 11, 10]


def uniform(tmp_path, n_layers, tied=False):
    """Llama-3.1-8B with other layers."""
    text = catalog.model_files()["llama3.1-8b"].read_text().replace("published_parameters", "# ")
    text = text.replace("tied_embeddings = false", f"tied_embeddings = {str(tied).lower()}")
    path = tmp_path / "model.toml"
    path.write_text(re.sub(r"(?m)^n_layers = .*$", f"n_layers = {n_layers}", text))
    return str(path)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("n_layers", "pp"), [(61, 4), (35, 2), (32, 3), (32, 4), (32, 1), (36, 5), (80, 3), (13, 8), (7, 7)]
)
def test_the_pool_is_the_least_of_all_stages(tmp_path, n_layers, pp, tied):
    """By hand, from layers of 218,112,000 parameters, tables of 128,256 * 4,096 and 4,096 B of a token and layer."""
    found = results(uniform(tmp_path, n_layers, tied), "h100", stack="vllm@0.19.0", pp=pp, tp=1)
    layer, table, gib = 218_112_000, 128_256 * 4096, 2**30
    usable = int(int(79.19 * gib) * 0.9) - found["activation_bytes"] - found["runtime_bytes"]
    tokens, weights = [], []
    for stage, n in enumerate(stage_layers(n_layers, pp)):
        n_tables = (stage == 0) + (stage == pp - 1) - (tied and pp == 1)
        weights.append(2 * (n * layer + n_tables * table + 131_072 * 128))
        tokens.append((usable - weights[-1]) // (n * 4096))
    assert found["kv_pool_tokens"] == pytest.approx(min(tokens), rel=1e-3)
    assert found["weight_bytes"] == pytest.approx(weights[tokens.index(min(tokens))], rel=1e-3)


def test_kinds_of_layers_are_cut_in_proportion():
    # 62 layers, 52 of them with windows, are 64 of which 54 have windows: four stages of 16
    plan = point("gemma-3-27b", pp=4).plan
    assert plan.model.n_layers == sum(n for _, n in plan.layers) == 64
    assert [n for layer, n in plan.layers if layer.window is None] == [10]
    # a plan by layer has three kinds in 32 layers, and 33 on three stages
    by_layer = "plan:" + str(CONFIGS.parent / "inputs" / "plans" / "32-1.toml")
    each_layer = point("llama3.1-8b", quantizer=by_layer, pp=3).plan
    keys = [g.n_stored_layers for g in each_layer.groups if g.which == "key"]
    assert sum(keys) == 33


def test_a_tower_can_be_left_out():
    with_tower, without = (results("gemma-3-12b", "h100", tower=tower)["weight_bytes"] for tower in (True, False))
    # SigLIP: 27 layers of 4 * 1152^2 + 2 * 1152 * 4304, patches of 14 * 14 * 3, 64 * 64 positions; and its projection
    siglip = 27 * (4 * 1152**2 + 2 * 1152 * 4304) + 1152 * (14 * 14 * 3 + 64 * 64)
    assert with_tower - without == 2 * (siglip + 1152 * 3840)


def test_experts_are_split_evenly_whole_or_in_slices():
    # 48 layers, 128 experts of 3 * 2048 * 768: 28,991,029,248 of 30,532,122,624 parameters
    for asked in ({"tp": 4}, {"tp": 4, "ep": 4}, {"tp": 4, "ep": 2}):
        found = results(config("qwen3-30b-a3b"), memory="paper", **asked)["weight_bytes"]
        # routers of 48 * 128 * 2048 are whole on each of four
        assert found == pytest.approx((30_532_122_624 + 3 * 12_582_912) / 2, abs=16)


def test_each_device_holds_the_requests_of_its_own():
    # batch 20 on 8 devices: 3 at most on one; 1,024 tokens of 70,272 B
    found = results(config("deepseek-v3"), batch=20, tp=8, dp_attention=True, weights_bits=4, device="b200")
    assert found["kv_bytes"] == 3 * 1024 * 70_272
    alone = results(config("deepseek-v3"), batch=1, tp=8, dp_attention=True, weights_bits=4, device="b200")
    assert found["max_batch"] == alone["max_batch"]
    assert found["max_batch"] % 8 == 0


def test_a_pipeline_of_two_is_what_oaken_takes_two_gpus_for():
    """Oaken 6.1: capacity doubles, bandwidth and compute do not. One batch in the pipeline; sends come on top, and both
    devices have activations and FP16 copies of the layer at work, which the file counts once."""
    for quantizer, batch in (("fp16", 16), ("kivi", 64), ("oaken", 256)):
        asked = {"batch": batch, "weights_bits": 8, "memory": "paper"}
        file = results("llama2-70b", "2xa100-80gb", quantizer, **asked)
        ours = results("llama2-70b", "a100-80gb", quantizer, pp=2, pp_batches=1, **asked)
        same = ("running_batch", "linear_s", "attention_s", "quantize_s", "dequantize_s")
        assert {name: ours[name] for name in same} == {name: file[name] for name in same}
        for name in ("max_batch", "max_context_tokens"):
            assert file[name] * (0.95 if quantizer == "oaken" else 0.998) <= ours[name] <= file[name]
        assert ours["decode_step_s"] - ours["collective_s"] == pytest.approx(file["decode_step_s"], rel=1e-12)
        assert ours["throughput_tokens_per_s"] == pytest.approx(file["throughput_tokens_per_s"], rel=2e-3)
        assert ours["joules_per_token"] == pytest.approx(file["joules_per_token"], rel=2e-3)


def test_full_pipelines_give_more_and_one_batch_waits_as_long():
    one, full = (results("llama3.1-70b", batch=64, tp=4, pp=2, pp_batches=n) for n in (1, None))
    half = results("llama3.1-70b", batch=32, tp=4, pp=2, pp_batches=1)
    assert full["decode_step_s"] == half["decode_step_s"]  # a batch of 32 passes both stages
    assert full["decode_step_s"] < one["decode_step_s"]
    assert full["throughput_tokens_per_s"] > one["throughput_tokens_per_s"]


def test_skew_counts_the_busiest_device_of_the_experts():
    # prompts of a big batch are bound by their products: 1.25 times as many with the experts alone
    spec = catalog.model("mixtral-8x7b")
    # routers of 32 * 4096 * 8 are whole on each of four
    n_dense, n_met = (spec.dense_parameters + 3 * 32 * 4096 * 8) / 4, spec.expert_parameters / 4 * 2 / 8
    even, skewed = (
        point("mixtral-8x7b", tp=4, ep=4, expert_skew=skew, batch=64).design.model.active_parameters
        for skew in (0.0, 0.25)
    )
    assert even == pytest.approx(n_dense + n_met, rel=1e-9)
    assert skewed == pytest.approx(n_dense + 1.25 * n_met, rel=1e-9)


def test_ideal_links_without_starts_divide_the_time(monkeypatch):
    """No starts, no exchange: tp devices take 1 / tp of the time, while KV heads and all else divide."""
    monkeypatch.setattr(deployed, "exchanges", lambda *_: iter(()))
    device = catalog.device("h100").model_copy(
        update={"memory_capacity": HUGE, "kernel_launch": Quantity(value=0, unit="us", source="test", kind="assumed")}
    )
    plan = build("llama3.1-70b", "fp8")
    works = [Workload(batch=32, model_kind="ideal", tp=tp) for tp in (1, 2, 4, 8)]
    one, *more = [engine.evaluate(Point(device, plan, work)) for work in works]
    for work, found in zip(works[1:], more, strict=True):
        for name in ("linear_s", "attention_s", "dequantize_s", "decode_step_s", "prefill_s"):
            assert found[name] == pytest.approx(one[name] / work.tp, rel=1e-9), (name, work.tp)


SHAPES = ["llama3.1-8b", "llama3.1-70b", "mixtral-8x7b", *map(config, ("deepseek-v3", "gemma-2-9b", "qwen3-30b-a3b"))]


def splits(name):
    """Every way to split the model that `check` lets pass."""
    model, fields = catalog.model(name), ("tp", "pp", "pp_batches", "dp_attention", "dcp", "ep")
    for values in itertools.product((1, 2, 4, 8, 16), (1, 2, 4), (None, 1), (False, True), (1, 2, 4), (1, 2, 4)):
        asked = dict(zip(fields, values, strict=True))
        try:
            deployment.check(model, Workload(**asked))
        except InputError:
            continue
        yield name, asked


SPLITS = [split for name in SHAPES for split in splits(name)]
ASKED = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3000),
        "input_tokens": st.integers(1, 5000),
        "output_tokens": st.integers(1, 300),
        "admission": st.sampled_from(["reserve", "paged"]),
        "model_kind": st.sampled_from(["ideal", "auto"]),
        "kv_cache": st.sampled_from([True, True, True, False]),
    }
)


def any_point(model, device, quantizer, work):
    """The point, where its parts go together."""
    try:
        return point(model, device, quantizer if work.get("kv_cache", True) else "fp16", **work)
    except InputError:
        return None


@given(
    st.sampled_from(SPLITS),
    st.sampled_from(["h100", "b200", "l40s"]),
    st.sampled_from(["fp16", "fp8", "kivi", "oaken", "nqkv", "sinkq"]),
    ASKED,
)
def test_compiled_code_finds_what_the_interpreter_finds(split, device, quantizer, asked):
    model, deployed_as = split
    found = any_point(model, device, quantizer, {**asked, **deployed_as})
    quick = found and engine.compiled_results(found)
    if quick is None:  # a quantizer that is not split so, or nothing fits
        return
    assert quick == engine.evaluate(found)
    assert sum(
        part
        for name, part in quick.items()
        if name in ("linear_s", "attention_s", "quantize_s", "dequantize_s", "collective_s", "host_s", "power_s")
    ) == pytest.approx(quick["decode_step_s"], rel=1e-12)


#: designs as servers run them: formats of weights, experts, latent heads, an index, kernels of other stacks, releases
SERVED = [
    ("h100", "llama3.1-70b", {"weights": "fp8", "stack": "trtllm"}),
    ("b200", "llama3.1-8b", {"weights": "nvfp4", "stack": "vllm@0.18.0"}),
    ("h100", "llama3.1-8b", {"weights": "int4"}),
    ("h200", "qwen3-32b", {"weights": "fp8-block", "stack": "trtllm"}),
    ("b200", "gpt-oss-120b", {"weights": "mxfp4-experts", "stack": "trtllm"}),
    ("h100", "mixtral-8x7b", {"weights": "bf16", "stack": "sglang@0.5.9"}),
    ("b200", "qwen3-235b-a22b", {"weights": "nvfp4-experts", "stack": "sglang@0.0"}),
    ("b200", "deepseek-v3", {"weights": "nvfp4", "stack": "vllm"}),
    ("gb300", "deepseek-v3.2", {"weights": "fp8-block", "stack": "sglang"}),
    ("h200", "kimi-k2.5", {"weights": "int4-experts", "stack": "vllm@0.16.0"}),
    ("h200", "deepseek-v3", {"weights": "fp8-block", "stack": "sglang"}),
    ("h200", "deepseek-v3.2", {"weights": "fp8-block", "stack": "vllm"}),
    ("b200", "deepseek-v3.2", {"weights": "fp8-block", "stack": "trtllm"}),
    ("a100-80gb", "mixtral-8x7b", {"stack": "trtllm"}),
    ("h100", "llama3.1-8b", {"stack": "sglang@kernels"}),
]


@given(
    st.sampled_from(SERVED),
    st.sampled_from(["fp16", "fp8"]),
    ASKED,
    st.sampled_from([1, 2, 8]),
    st.sampled_from([False, False, True]),
    st.integers(1, 40),
)
def test_compiled_servers_are_what_the_interpreter_finds(served, quantizer, asked, tp, dp_attention, rounds):
    device, model, work = served
    asked = {**asked, **work, "model_kind": "auto", "tp": tp, "dp_attention": dp_attention and tp > 1, "rounds": rounds}
    found = any_point(model, device, quantizer, asked)
    quick = found and engine.compiled_results(found)
    if quick is None:
        return
    assert quick == engine.evaluate(found)
    assert bool(found.stack.host) == (quick["host_s"] > 0) == (not work.get("stack", "").endswith("kernels"))
    if quick["kv_cache"]:
        assert quick["tpot_s"] > 0
        assert 0 < quick["decoding_requests"] <= quick["max_batch"]
    model, reach = found.design.model, found.design.stack
    if quick["kv_cache"] and not asked["dp_attention"] and (reach.has_experts or not model.expert_parameters):
        for phase, seconds in (("decode", quick["decode_step_s"]), ("prefill", quick["prefill_s"])):
            own = [op for op in found.operations() if op["phase"] == phase and op["name"] != "all"]
            assert sum(op["seconds"] for op in own) == pytest.approx(seconds, rel=1e-9)
            assert all(op["compute_utilisation"] <= 1 + 1e-9 for op in own)


@each(("device", "model", "work"), SERVED)
def test_what_is_explained_of_a_server_adds_up(device, model, work):
    found = point(model, device, "fp16", batch=16, tp=8, rounds=3, **work)
    results, steps = explain.explained(found)
    given = {name: steps[name].terms for name in ("host_s", "linear_s", "prefill_s", "tpot_s", "ttft_s")}
    host, linear, prompt = given["host_s"], given["linear_s"], given["prefill_s"]
    assert results["host_s"] == pytest.approx(
        host["layer_s"] * host["n_layers"] + host["sequence_s"] * host["n_sequences"], rel=1e-12
    )
    root = math.hypot(linear["compute_s"], linear["memory_s"])
    assert results["linear_s"] == pytest.approx(
        linear["n_products"] * linear["launch_s"] + root + linear.get("experts_s", 0.0), rel=1e-12
    )
    assert ("experts_s" in linear) == bool(found.design.stack.has_experts)
    if "experts_s" in linear:
        of = steps["experts_s"].terms
        each = of["n_products"] * of["launch_s"] + math.hypot(of["compute_s"], of["memory_s"])
        assert linear["experts_s"] == pytest.approx(each, rel=1e-12)
    assert steps["memory_s"].value == pytest.approx(
        steps["memory_s"].terms["weight_read_bytes"]
        / (steps["memory_s"].terms["memory_frac"] * steps["memory_s"].terms["bandwidth_bytes_per_s"]),
        rel=1e-12,
    )
    assert results["prefill_s"] == pytest.approx(
        prompt["prefill_compute_s"]
        + prompt["quantize_s"]
        + prompt["exchange_s"]
        + prompt.get("host_s_of_a_prompt", 0.0),
        rel=1e-12,
    )
    each, first = given["tpot_s"], given["ttft_s"]
    others_s = (each["prompt_steps"] - each["own_steps"]) * each["prompt_step_s"]
    decoding_s = (each["all_steps"] - each["prompt_steps"]) * each["decode_step_s"]
    assert results["tpot_s"] == pytest.approx((others_s + decoding_s) / each["output_tokens"], rel=1e-12)
    assert results["ttft_s"] == pytest.approx(
        first["own_prompt_s"] + first["burst_wait_s"] + first["place_wait_s"], rel=1e-12
    )
    for name in results["assumptions"]:
        assert steps["assumptions"].terms[name]


@given(
    st.sampled_from(SHAPES),
    st.sampled_from(["fp16", "fp8", "kivi", "oaken", "nqkv", "sinkq"]),
    ASKED,
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([1, 2, 4]),
)
def test_more_devices_never_hold_more_each(model, quantizer, asked, tp, pp):
    """tp adds no bytes to a device until heads are copied, and none then; stages share all of them."""
    few, more = (any_point(model, "h100", quantizer, {**asked, "tp": n, "pp": pp}) for n in (tp, 2 * tp))
    if few is None or more is None:  # does not divide
        return
    for name in ("kv_bytes", "kv_bytes_per_token", "peak_kv_bytes_per_sequence", "workspace_bytes"):
        assert engine.evaluate(more)[name] <= engine.evaluate(few)[name] * (1 + 1e-12)
    # the weights that make a copied head may weigh more than what a small model's other weights save
    if tp < catalog.model(model).layers[0].n_kv_heads:
        assert engine.evaluate(more)["weight_bytes"] <= engine.evaluate(few)["weight_bytes"]
    assert engine.evaluate(few)["bits_kind"] == engine.evaluate(more)["bits_kind"]


@each(
    ("model", "device", "asked", "message"),
    [
        (
            "llama3.1-8b",
            "h100",
            {"tp": 3},
            r"tp = 3: does not divide the 32 query heads.*use one of 1, 2, 4, 8, 16, 32",
        ),
        ("llama2-13b", "h100", {"tp": 16}, r"tp = 16: does not divide the 40 query heads"),
        ("llama3.1-8b", "h100", {"pp": 33}, r"pp = 33: llama3.1-8b has 32 layers, one a stage at least: use fewer"),
        ("llama3.1-8b", "h100", {"pp": 2, "pp_batches": 3}, r"pp-batches = 3: must be at most pp = 2"),
        ("llama3.1-8b", "h100", {"tp": 2, "ep": 2}, r"ep = 2: llama3.1-8b has no experts: leave it out"),
        ("mixtral-8x7b", "h100", {"tp": 4, "ep": 3}, r"ep = 3: must divide tp = 4 and the 8 experts.*1, 2, 4"),
        ("mixtral-8x7b", "h100", {"tp": 4, "expert_skew": 0.5}, r"expert-skew = 0.5: skews.*add --ep"),
        ("mixtral-8x7b", "h100", {"expert_skew": 0.5}, r"expert-skew = 0.5: skews.*add --ep"),
        ("llama3.1-8b", "h100", {"dp_attention": True}, r"dp-attention: .*add --tp"),
        (
            "llama3.1-8b",
            "h100",
            {"tp": 11, "dp_attention": True},
            r"tp = 11: does not divide the hidden size 4,096.*use one of 1, 2, 4, 8, 16, 32, 64",
        ),
        ("llama3.1-8b", "h100", {"tp": 8, "dcp": 2}, r"dcp = 2: .*there are none: use dcp 1"),
        ("llama3.1-8b", "h100", {"tp": 32, "dcp": 3}, r"dcp = 3: .*there are 4: use one of 1, 2, 4"),
        ("llama3.1-8b", "h100", {"tp": 8, "dp_attention": True, "dcp": 2}, r"dcp = 2: with dp-attention"),
        ("llama3.1-8b", "h100", {"tp": 16, "dcp": 2, "tokens": "h2o"}, r"dcp = 2: a token policy \('h2o'\)"),
        ("llama3.1-8b", "oaken-hbm", {"tp": 16, "dcp": 2}, r"dcp = 2: Oaken-HBM keeps heads in pages.*use dcp 1"),
        ("llama3.1-8b", "oaken-hbm", {"tp": 2}, r"Oaken-HBM has no link_bandwidth: add it"),
        ("llama3.1-8b", "h100", {"tp": 2048}, r"tp = 2048: must be a whole number from 1 to 1,024"),
        ("llama3.1-8b", "2xa100-80gb", {"tp": 2}, r"2xA100-80GB stands for 2 devices.*name one"),
    ],
)
def test_what_cannot_be_split_is_refused_with_what_would(model, device, asked, message):
    with pytest.raises(InputError, match=message) as caught:
        point(model, device, **asked)
    assert "\n" not in str(caught.value)


def test_tokens_that_are_packed_together_are_not_shared():
    with pytest.raises(InputError, match=r"dcp = 2: kivi packs tokens together.*fp8 or fp16"):
        point("llama3.1-8b", "h100", "kivi", tp=16, dcp=2)


def test_power_price_and_idling_are_those_of_all_devices():
    one, four = (results("llama3.1-8b", batch=8, tp=tp) for tp in (1, 4))
    for found, n in ((one, 1), (four, 4)):
        assert found["joules_per_token"] == pytest.approx(n * 700 / found["throughput_tokens_per_s"])
        assert found["usd_per_million_tokens"] == pytest.approx(n * 3.0 / 3600 / found["throughput_tokens_per_s"] * 1e6)
        assert found["idle_joules_per_token"] == pytest.approx(n * 105 / found["throughput_tokens_per_s"])
    # the operations of a token are the same, whoever does them; starts and exchange cost time, no operations
    assert four["compute_joules_per_token"] == pytest.approx(one["compute_joules_per_token"], rel=1e-9)
    assert four["memory_joules_per_token"] == pytest.approx(one["memory_joules_per_token"], rel=1e-9)
    assert four["n_devices"] == 4


def ring_s(n_bytes, sent, start_s=8e-6, link=300e9):
    """Two A100-40GB, whose exchange is assumed: 6 + 2 us, 0.7 of the link, chunks at 0.6.

    docs/explanation/calibration.md, Collectives.
    """
    transfer_s = n_bytes * sent / (0.7 * link)
    return start_s + transfer_s + 2 * 0.6 * math.sqrt(start_s * transfer_s)


def test_a_step_waits_for_two_exchanges_a_layer_one_of_embeddings_and_the_logits():
    found = point("llama2-7b", "a100-40gb", batch=4, tp=2, input_tokens=500, output_tokens=10)
    rows, logits = 4 * 4096 * 2, 4 * 32_000 * 2
    assert engine.evaluate(found)["collective_s"] == pytest.approx(
        65 * ring_s(rows, 1) + ring_s(logits, 1 / 2), rel=1e-12
    )
    # prompts of 500 tokens pass together; only their last tokens have logits, which are not counted
    assert found.largest_wave.wave.prompt_collective_s == pytest.approx(65 * ring_s(500 * rows, 1), rel=1e-12)
    assert engine.evaluate(found)["bound"] in ("bandwidth", "latency")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"tp": 4}, {"layers": (161, 16_384), "logits": (1, 256_512)}),
        ({"tp": 4, "pp": 4}, {"layers": (161, 16_384), "logits": (1, 256_512), "stages": (3, 16_384)}),
        ({"pp": 2}, {"stages": (1, 16_384)}),
        (
            {"tp": 4, "dp_attention": True},
            {"tokens of all": (80, 65_536), "results of all": (80, 65_536), "logits": (1, 4 * 256_512)},
        ),
        # 4 query heads a device, of two devices together: 8 heads of 128
        (
            {"tp": 16, "dcp": 2},
            {"layers": (161, 16_384), "logits": (1, 256_512), "queries": (80, 2048), "shared tokens": (80, 2048)},
        ),
    ],
)
def test_what_is_exchanged_for_a_token(asked, expected):
    """Of Llama-3.1-70B: 80 layers, rows of 8,192 values, 64 query heads of 128, a vocabulary of 128,256."""
    found = point("llama3.1-70b", **asked)
    told = deployed.exchanges(found.device, found.plan.model, found.work, found.stack_name)
    assert {name: (one.n_per_pass, one.token_bytes) for name, one, _ in told} == expected


def test_experts_are_sent_the_tokens_that_chose_them_once_a_device():
    """2 of 8 experts on 4 devices, to them and back in each of 32 layers; rows of 4,096 values. Two devices hold both
    experts of a token 3 times of 4: 4 (1 - (3/4)^2) = 1.75 in the mean. vLLM and SGLang gather all tokens unless told
    otherwise."""

    def first(stack):
        found = point("mixtral-8x7b", tp=4, ep=4, dp_attention=True, stack=stack)
        name, one, _ = next(deployed.exchanges(found.device, found.plan.model, found.work, found.stack_name))
        return name, one.n_per_pass, one.token_bytes

    assert first("trtllm") == ("experts", 64, 14_336)
    assert first("vllm") == first("sglang") == ("tokens of all", 32, 4 * 8192)


def test_a_device_waits_for_the_fullest_share_of_the_experts():
    """Each of 8 devices has 16 of 128 experts, each of which a pass reaches with a chance: drawn 20,000 times. Normal
    numbers stand for the binomial ones: within a tenth, and 1 where all are reached."""
    n_devices, n_each, rng = 8, 16, np.random.default_rng(1)
    for n_tokens in (2, 8, 32, 512):
        share = weights.expert_share_touched(n_tokens, 128, 8)
        drawn = rng.binomial(n_each, share, (20_000, n_devices)).max(axis=1).mean() / n_each
        fullest = weights.fullest_share(share, n_each, deployed.fullest_of(n_devices))
        assert fullest == pytest.approx(drawn, rel=0.1)
        assert share <= fullest <= 1
    for n, expected in ((2, 0.5642), (4, 1.0294), (8, 1.4236), (16, 1.7660)):  # order statistics of normal numbers
        assert deployed.fullest_of(n) == pytest.approx(expected, rel=0.05)
    assert weights.fullest_share(0.3, 0.0, 1.4) == 0.3


def test_a_mixture_whose_experts_are_whole_reads_those_of_the_fullest_device():
    """Qwen3-30B-A3B on 8 devices, 4 requests: slices of all experts are read alike, whole ones are not."""
    sliced, whole = (results("qwen3-30b-a3b", tp=8, ep=n, batch=4, model_kind="ideal") for n in (1, 8))
    share = 1 - (1 - 8 / 128) ** 4
    fullest = share + deployed.fullest_of(8) * (share * (1 - share) / 16) ** 0.5
    experts = catalog.model("qwen3-30b-a3b").expert_parameters / 8 * 2 / 3.35e12
    assert whole["linear_s"] - sliced["linear_s"] == pytest.approx((fullest - share) * experts, rel=1e-6)


def test_one_process_hands_on_the_tokens_of_all_groups():
    """32 requests on 4 devices: each attends to 8 of them, and the server's time for a sequence is paid 32 times."""
    asked = {"tp": 4, "batch": 32, "stack": "vllm@0.19.0", "dp_attention": True}
    host = catalog.servers()["vllm"].releases["0.19.0"]
    n_layers = catalog.model("qwen3-30b-a3b").n_layers
    found = results("qwen3-30b-a3b", **asked)["host_s"]
    assert found == pytest.approx(n_layers * host.layer.si + 32 * host.sequence.si, rel=1e-9)


def test_experts_take_in_a_server_what_its_file_says():
    """gpt-oss-120b on an H200: starts and rates of the kernels' table by the factors that whole servers gave."""
    found = point("gpt-oss-120b", "h200", stack="vllm@0.19.0", batch=8)
    table, served = found.stack.experts["mxfp4"], catalog.servers()["vllm"].experts["mxfp4"]["sm_9"]
    reach = found.design.stack
    assert reach.expert_launch_s == pytest.approx(table.launch.si * served.start, rel=1e-12)
    assert reach.expert_memory_frac == pytest.approx(min(table.memory_frac.si / served.time, 1), rel=1e-12)
    assert reach.expert_flops_frac == pytest.approx(min(table.flops_frac.si / served.time, 1), rel=1e-12)
    said = explain.explained(found)[1]["experts_s"].source
    assert f"launch x {served.start:g}, reads and products x {served.time:g} of the benchmarks'" in said
    unheard = point("gpt-oss-120b", "l40s", stack="vllm@0.19.0", batch=8, tp=4)  # no server of its generation
    assert unheard.design.stack.expert_launch_s == unheard.stack.experts["mxfp4"].launch.si


def test_weights_outside_attention_meet_the_tokens_of_all_groups():
    """Qwen3-30B-A3B: 8 of 128 experts; 16 requests on 8 devices are 2 of each device's own, and 16 for its experts."""
    whole = catalog.model(config("qwen3-30b-a3b"))
    found = point(whole, tp=8, dp_attention=True, batch=16, model_kind="ideal")
    own, rest = whole.attention_parameters, whole.dense_parameters - whole.attention_parameters
    touched = 1 - (1 - 8 / 128) ** 16
    read = rest - whole.embedding_parameters
    read_bytes = 2 * (own + read / 8 + whole.expert_parameters / 8 * touched)
    assert engine.evaluate(found)["linear_s"] == pytest.approx(read_bytes / 3.35e12, rel=1e-6)
    # a token of a device's own, and an eighth of the work for those of all: as on one device
    assert found.design.model.active_parameters == pytest.approx(float(whole.active_parameters), rel=1e-6)
    multiplied = whole.active_parameters - whole.embedding_parameters
    assert sum(part.active for part in found.design.products) == pytest.approx(float(multiplied), rel=1e-6)


def test_a_prompt_alone_meets_the_experts_of_all_groups():
    """Qwen3-30B-A3B, 8,000 tokens: attention's products on one device, an eighth of the others on each of eight, which
    hand over 1,000 tokens each; 989 TFLOP/s, the head multiplies one token."""
    whole = catalog.model(config("qwen3-30b-a3b"))
    asked = {"input_tokens": 8000, "output_tokens": 1, "batch": 1, "model_kind": "ideal"}
    one, eight = point(whole, **asked), point(whole, tp=8, ep=8, dp_attention=True, **asked)
    head = whole.vocab_size * whole.hidden_size
    others = whole.active_parameters - whole.embedding_parameters - head - whole.attention_parameters
    saved_s = 2 * 8000 * others * 7 / 8 / 989e12 - step.exchanges_s(eight.design, 1000.0, 1)
    alone_s = [engine.evaluate(found)["prefill_alone_s"] for found in (one, eight)]
    assert alone_s[0] - alone_s[1] == pytest.approx(saved_s, rel=0.03)
