"""Memory as a server counts it: by hand, against start-up logs, and the same interpreted and compiled."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.core.errors import InputError
from dse.model import many
from dse.model.capacity import pool_tokens
from dse.model.evaluate import Point, evaluate, roomy
from dse.model.explain import explained
from dse.model.formulas import capacity
from dse.specs import catalog, servers
from dse.specs.workload import Workload
from factories import build, compare_with_rows, sweep_of

GIB = 2**30
#: parameters of Llama-3.1-8B, bytes of a token in 16 bits: 32 layers, 8 heads of 128
PARAMETERS, TOKEN = 8_030_261_248, 2 * 2 * 32 * 8 * 128
#: bytes of cosines and sines of 131,072 positions
TABLE = 2 * 131_072 * 128
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def results(device="a100-80gb", model="llama3.1-8b", quantizer="bf16", **asked):
    return evaluate(catalog.device(device), build(model, quantizer), Workload(**asked))


def test_every_term_by_hand():
    """A100 80 GB, Llama-3.1-8B, vLLM: 1,024 rows of 128,256 logits at 12 B are more than 8,192 tokens of a layer."""
    found = results(admission="paged", batch=4)
    reported = int(79.25 * GIB)
    logits, layer = 12 * 1024 * 128_256, 2 * 8192 * (2 * 4096 + 2 * 14336)
    assert logits > layer
    runtime = int(0.5 * GIB) + int(0.26 * GIB)
    weights = 2 * PARAMETERS + TABLE
    pool = int(reported * 0.9) - weights - logits - runtime
    assert (found["memory"], found["prompt_budget_tokens"], found["gpu_memory_utilization"]) == ("server", 8192, 0.9)
    assert found["capacity_bytes"] == reported
    assert found["weight_bytes"] == weights
    assert found["activation_bytes"] == logits
    assert found["runtime_bytes"] == runtime
    assert found["free_bytes"] == pool
    assert found["unused_bytes"] == reported - int(reported * 0.9)
    assert found["kv_pool_tokens"] == pool // (16 * TOKEN) * 16


def test_large_budgets_take_what_a_layer_takes():
    """At 32,768 tokens the two products of the feed-forward are more than the logits."""
    found = results(prompt_budget_tokens=32768)
    assert found["activation_bytes"] == 2 * 32768 * (2 * 4096 + 2 * 14336)
    assert found["kv_pool_tokens"] < results()["kv_pool_tokens"]


@pytest.mark.parametrize(("quantizer", "logged"), [("bf16", 389_872), ("fp8", 779_760)])
def test_tokens_of_vllm_logs_qwen3_8b(quantizer, logged, tmp_path):
    """vLLM 0.26.0 on an A100 80 GB (github.com/vllm-project/vllm/issues/42058, comment of 2026-08-01)."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    found = results(model=str(tmp_path / "config.json"), quantizer=quantizer, admission="paged")
    assert found["kv_pool_tokens"] == pytest.approx(logged, rel=0.001)


def test_tokens_of_a_vllm_log_llama_3_1_8b():
    """vLLM 0.31.0 on an A100 80 GB, which may use 0.92: 56.21 GiB, 460,496 tokens, graphs not deducted."""
    found = results(admission="paged", gpu_memory_utilization=0.92)
    assert found["kv_pool_tokens"] == pytest.approx(460_496, rel=0.03)
    assert found["free_bytes"] == pytest.approx(56.21 * GIB, rel=0.03)
    assert found["activation_bytes"] == pytest.approx(1.44 * GIB, rel=0.03)


def test_each_server_by_its_own_rule():
    """SGLang: the share is for weights, buffers, keys and values; TensorRT-LLM: of what all else leaves."""
    reported = int(79.19 * GIB)
    asked = {"device": "h100", "gpu_memory_utilization": 0.83}
    logits = 12 * 1024 * 128_256
    sglang = results(stack="sglang", **asked)
    assert sglang["free_bytes"] == int(reported * 0.83) - 2 * PARAMETERS - TABLE - GIB // 2
    trtllm = results(stack="trtllm", **asked)
    left = reported - 2 * PARAMETERS - TABLE - logits - GIB // 2 - int(0.54 * GIB)
    assert trtllm["free_bytes"] == int(left * 0.83)
    for found in (sglang, trtllm):
        taken = ("weight_bytes", "activation_bytes", "runtime_bytes", "free_bytes", "unused_bytes")
        assert sum(found[name] for name in taken) == reported


def test_what_lies_beside_the_share_never_makes_more_than_there_is():
    """SGLang with all of the memory: activations and graphs still need room."""
    found = results("h100", stack="sglang", gpu_memory_utilization=1.0)
    assert found["unused_bytes"] == 0


def test_requests_count_no_activations_of_their_own():
    found, paper = results(batch=100), results(batch=100, memory="paper")
    assert found["max_batch"] == found["free_bytes"] // (2048 * TOKEN)
    assert paper["max_batch"] == paper["free_bytes"] // (2048 * TOKEN + 2 * (128_256 + 2 * 4096))
    assert found["activation_bytes"] == results(batch=1)["activation_bytes"]


def test_devices_count_what_each_has():
    one, two = results(model="llama3.1-70b", tp=4), results(model="llama3.1-70b", tp=8)
    assert two["runtime_bytes"] == one["runtime_bytes"] == int(0.5 * GIB) + int(0.26 * GIB) + int(0.75 * GIB)
    assert two["activation_bytes"] == 12 * 1024 * 128_256  # all logits come together on every device
    assert two["free_bytes"] > one["free_bytes"]
    stages = results(model="llama3.1-70b", pp=8)
    # the fullest stage has the output head, or the input table, beside an eighth of the layers
    ends = 2 * 128_256 * 8192 * (1 - 2 / 8)
    assert stages["weight_bytes"] == pytest.approx(two["weight_bytes"] + ends, rel=1e-6)
    # a token's keys and values are 1/8 of all layers, or of all heads
    assert stages["kv_pool_tokens"] == pytest.approx(two["kv_pool_tokens"], rel=0.05)


def test_the_smallest_memory_is_where_the_batch_begins_to_fit():
    for stack in ("vllm", "sglang", "trtllm"):
        device, kv, work = catalog.device("h100"), build("llama3.1-8b", "bf16"), Workload(64, stack=stack)
        least = evaluate(device, kv, work)["min_capacity_bytes"]
        for n_bytes, fits in ((least, True), (least - 1, False)):
            size = device.memory_capacity.model_copy(update={"value": n_bytes, "unit": "B"})
            own = device.model_validate({**dict(device), "memory_capacity": size, "reported_memory": size})
            assert evaluate(own, kv, work)["fits_whole_batch"] is fits


@given(
    st.integers(1, 10**14),
    st.floats(0.01, 1),
    st.sampled_from([1.0, 0.9, 0.5]),
    st.floats(0.5, 1),
    st.integers(0, 10**12),
    st.integers(0, 10**10),
)
def test_smallest_reported_memory_is_the_inverse_of_the_pool(needed, share, of_free, usable, held, outside):
    asked = (usable * share, of_free, usable, held + outside, outside)
    least = capacity.min_reported_bytes(needed, *asked)
    assert capacity.pool_bytes(least, *asked) >= needed
    assert capacity.pool_bytes(least - 1, *asked) < needed


def test_a_changed_memory_changes_what_the_driver_reports():
    plain = catalog.device("h100")
    twice = catalog.device("h100:memory_capacity=160 GB")
    assert twice.reported_bytes == 2 * plain.reported_bytes
    assert catalog.device("h100:reported_memory=79 GiB").reported_bytes == 79 * GIB
    assert catalog.device("h100:memory_capacity=160 GB,reported_memory=79 GiB").reported_bytes == 79 * GIB
    assert roomy(plain).reported_bytes > 2**53
    assert catalog.device("oaken-hbm").reported_bytes == 0


def test_gpus_of_today_default_to_a_server_and_papers_devices_do_not():
    kinds = {
        name: results(name, "opt-125m", "fp16", input_tokens=8, output_tokens=8)["memory"]
        for name in catalog.device_files()
    }
    gpus = {
        "a100-40gb",
        "a100-80gb",
        "a800-80gb",
        "b200",
        "b300",
        "gb200",
        "gb300",
        "h100",
        "h200",
        "l40s",
        "rtx-pro-6000",
        "h100-pcie",
        "rtx-3090",
        "rtx-4090",
        "rtx-a6000",
        "a10",
        "a40",
        "a100-pcie-40gb",
        "a100-pcie-80gb",
        "l4",
        "l20",
        "t4",
        "v100-16gb",
        "v100-32gb",
        "rtx-5090",
        "rtx-6000-ada",
        "h20",
        "h100-nvl",
        "gh200-96gb",
    }
    assert {name for name, kind in kinds.items() if kind == "server"} == gpus
    assert results("h100", kv_cache=False, model_kind="ideal")["memory"] == "paper"
    paper = results("h100", memory="paper")
    assert (paper["gpu_memory_utilization"], paper["prompt_budget_tokens"]) == (None, None)
    assert paper["capacity_bytes"] == 80 * 10**9
    assert paper["unused_bytes"] == paper["runtime_bytes"] == 0


def test_assumed_numbers_of_the_server_are_named():
    server, paper = results(), results(memory="paper")
    assert "server_memory" in server["assumptions"]
    assert "usable_frac" not in server["assumptions"]
    assert "usable_frac" in paper["assumptions"]
    assert "server_memory" not in paper["assumptions"]
    for each in servers.SERVERS.values():
        assert all(number.source for number in each.quantities().values())


def test_explanations_name_terms_and_sources():
    point = Point(catalog.device("a100-80gb"), build("llama3.1-8b", "fp8"), Workload())
    found, steps = explained(point)
    assert steps["free_bytes"].terms["reported_bytes"] == int(79.25 * GIB)
    assert steps["free_bytes"].terms["share"] == 0.9
    assert "start-up log" in steps["activation_bytes"].source
    assert "assumed" in steps["runtime_bytes"].source
    assert steps["kv_pool_tokens"].value == found["kv_pool_tokens"] == pool_tokens(point.design, point.made)


@pytest.mark.parametrize(
    ("device", "asked", "text"),
    [
        ("h100", {"gpu_memory_utilization": 0.0}, r"gpu-memory-utilization = 0.0: must be a share above 0, at most 1"),
        ("h100", {"gpu_memory_utilization": 1.2}, r"gpu-memory-utilization = 1.2: must be a share above 0, at most 1"),
        ("h100", {"prompt_budget_tokens": 0}, r"prompt-budget = 0: must be a whole number from 1"),
        ("h100", {"memory": "all"}, r"memory = 'all': must be one of server, paper"),
        ("oaken-hbm", {"memory": "server"}, r"memory = server: Oaken-HBM has no driver.*use paper, or add reported_m"),
        ("2xa100-80gb", {"memory": "server"}, r"memory = server: 2xA100-80GB has no driver.*use paper"),
        ("h100", {"memory": "server", "kv_cache": False, "model_kind": "ideal"}, r"a server keeps a KV cache: use pap"),
    ],
)
def test_bad_input_says_what_would_do(device, asked, text):
    with pytest.raises(InputError, match=text):
        results(device, **asked)


def test_what_a_papers_memory_has_not_is_refused():
    with pytest.raises(InputError, match=r"prompt-budget = 4096: a paper's memory has none: use --memory server"):
        Workload(memory="paper", prompt_budget_tokens=4096).refuse_idle()
    with pytest.raises(InputError, match=r"gpu-memory-utilization = 0.5: a paper's memory has none"):
        Workload(memory="paper", gpu_memory_utilization=0.5).refuse_idle()


def test_compiled_points_are_bit_for_bit_those_of_the_interpreter():
    left = 0
    for device, stack in (("a100-80gb", "vllm"), ("h100", "sglang"), ("b200", "trtllm"), ("l40s", None)):
        for model, quantizer in (("llama3.1-8b", "fp8"), ("mistral-7b", "kivi"), ("llama2-7b", "nqkv")):
            for asked in (
                {},
                {"admission": "paged", "batch": 300},
                {"tp": 2, "pp": 2, "batch": 64},
                {"gpu_memory_utilization": 0.37, "prompt_budget_tokens": 2048, "prefix_tokens": 512},
                {"tokens": "streaming", "weights_bits": 8},
                {"memory": "paper", "batch": 5},
            ):
                point = Point(catalog.device(device), build(model, quantizer), Workload(stack=stack, **asked))
                quick = many.results_of(point)
                left += quick is None
                assert quick in (None, point.results)
    assert left < 5


@pytest.mark.parametrize(
    "axes",
    [
        {"memory": ["auto", "server", "paper"], "device": ["a100-80gb", "oaken-hbm"], "batch": [1, 64]},
        {"gpu_memory_utilization": [0.5, 0.9, 1.0], "prompt_budget_tokens": [512, 65536], "device": ["l40s"]},
        {"memory_capacity": ["40 GB", "80 GB", "1 TB"], "device": ["h100"], "admission": ["reserve", "paged"]},
        {"reported_memory": ["60 GiB", "79 GiB"], "usable_frac": [0.5, 1.0], "device": ["h100", "lpu-hbm"]},
    ],
)
def test_sweeps_are_bit_for_bit_their_rows(axes):
    sweep = sweep_of({"model": ["llama3.1-8b"], "quantizer": ["fp16", "kivi"], **axes})
    assert compare_with_rows(sweep) == 0
