"""Memory as a server counts it: by hand, against start-up logs, and the same interpreted and compiled."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from dse.core.errors import InputError, SpecError
from dse.model.capacity import pool_tokens
from dse.model.engine import evaluate, roomy
from dse.model.explain import explained
from dse.model.formulas import capacity
from dse.model.point import Point
from dse.specs import catalog, servers
from dse.specs.deployment import with_states
from dse.specs.workload import Workload
from factories import build, point

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
    return evaluate(point(device, model, quantizer, **asked))


def test_every_term_by_hand():
    """A100 80 GB, Llama-3.1-8B, vLLM: 256 rows of 128,256 logits at 46 B are more than 2,048 tokens of a layer."""
    found = results(admission="paged", batch=4)
    reported = int(79.25 * GIB)
    logits, layer = 46 * 256 * 128_256, 2 * 2048 * (2 * 4096 + 2 * 14336)
    assert logits > layer
    activations = logits + 3 * 2 * 2048 * 4096
    runtime = int(0.25 * GIB) + 32 * int(0.0083 * GIB) + int(0.25 * GIB)
    weights = 2 * PARAMETERS + TABLE
    pool = int(reported * 0.92) - weights - activations - runtime
    assert (found["memory"], found["prompt_budget_tokens"], found["gpu_memory_utilization"]) == ("server", 2048, 0.92)
    assert found["capacity_bytes"] == reported
    assert found["weight_bytes"] == weights
    assert found["activation_bytes"] == activations
    assert found["runtime_bytes"] == runtime
    assert found["free_bytes"] == pool
    assert found["unused_bytes"] == reported - int(reported * 0.92)
    assert found["kv_pool_tokens"] == found["kv_usable_tokens"] == pool // (16 * TOKEN) * 16
    assert found["max_concurrency"] == pool // (16 * TOKEN) / (2048 // 16)


def test_large_budgets_take_what_a_layer_takes():
    """At 32,768 tokens the two products of the feed-forward are more than the logits."""
    found = results(prompt_budget_tokens=32768)
    assert found["activation_bytes"] == 2 * 32768 * (2 * 4096 + 2 * 14336) + 3 * 2 * 32768 * 4096
    assert found["kv_pool_tokens"] < results()["kv_pool_tokens"]


@pytest.mark.parametrize(("quantizer", "logged"), [("bf16", 389_872), ("fp8", 779_760)])
def test_tokens_of_vllm_logs_qwen3_8b(quantizer, logged, tmp_path):
    """vLLM 0.26.0 on an A100 80 GB (github.com/vllm-project/vllm/issues/42058, comment of 2026-08-01), 0.9 of it."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    found = results(
        model=str(tmp_path / "config.json"),
        quantizer=quantizer,
        admission="paged",
        gpu_memory_utilization=0.9,
        stack="vllm@0.26.0",
    )
    assert found["kv_pool_tokens"] == pytest.approx(logged, rel=0.001)


def test_tokens_of_a_vllm_log_llama_3_1_8b():
    """vLLM 0.31.0 on an A100 80 GB, which may use 0.92: 56.21 GiB, 460,496 tokens, graphs not deducted."""
    found = results(admission="paged", gpu_memory_utilization=0.92, stack="vllm@0.31.0")
    assert found["kv_pool_tokens"] == pytest.approx(460_496, rel=0.03)
    assert found["free_bytes"] == pytest.approx(56.21 * GIB, rel=0.03)
    assert found["activation_bytes"] == pytest.approx(1.44 * GIB, rel=0.03)


#: start-up logs: release, device, model, settings, and what they print: tokens, requests of the longest context,
#: activations in GiB, each None where it is not printed. From llm-d-planner (accuracy/results/v0.19.0 and
#: docs/empirical-vllm-memory-results.md, Apache-2.0) and public threads, named beside them
LOGS = [
    ("0.19.0", "h100", "gemma-3-4b", {"max_model_len": 8192}, 468_144, 57.05, 3.89),
    ("0.19.0", "h100", "gemma-3-12b", {"max_model_len": 8192}, 130_304, 15.88, 3.94),
    ("0.19.0", "h100", "gemma-3-27b", {"max_model_len": 8192}, 36_560, 4.46, 3.99),
    ("0.19.0", "h100", "llama4-scout", {"max_model_len": 8192, "tp": 4}, 365_968, 44.68, 3.19),
    ("0.19.0", "h100", "llama3.1-8b", {"max_model_len": 16384}, 476_016, 29.05, 1.89),
    ("0.19.0", "h100", "llama3.1-8b", {"max_model_len": 8192, "pp": 2}, 1_075_312, 131.26, None),
    ("0.19.0", "h100", "llama3.1-8b", {"max_model_len": 8192, "tp": 2}, 1_044_688, 127.53, 1.89),
    ("0.19.0", "h100", "llama3.1-8b", {"max_model_len": 8192, "tp": 4}, 2_209_792, 269.75, 1.89),
    ("0.19.0", "h100", "qwen2.5-72b", {"max_model_len": 8192, "tp": 2}, 19_920, 2.43, 2.29),
    ("0.19.0", "h100", "deepseek-v2-lite", {"max_model_len": 8192}, 1_505_552, 183.78, 1.93),
    ("0.19.0", "h100", "qwen3-30b-a3b", {"max_model_len": 8192}, 168_288, 20.54, 2.68),
    ("0.19.0", "h100", "qwen1.5-moe-a2.7b", {"max_model_len": 8192}, 250_304, 30.55, 2.47),
    ("0.19.0", "h100", "phi-2", {"max_model_len": 2048}, 226_112, 110.41, 0.79),
    ("0.15.0", "h100", "qwen3-14b", {"max_model_len": 8192}, None, None, 5.64),
    ("0.17.0", "h100", "qwen3-14b", {"max_model_len": 8192}, None, None, 2.23),
    ("0.11.0", "h100", "llama3.1-8b", {"max_model_len": 16000}, None, None, 4.76),
    # github.com/dennislee22/vLLM-benchmarking, log/vllm-7B-*: Qwen2-7B, of the same shape
    ("0.10.1.1", "a100-80gb", "qwen2.5-7b", {"gpu_memory_utilization": 0.25}, 93_872, None, None),
    ("0.10.1.1", "a100-80gb", "qwen2.5-7b", {"gpu_memory_utilization": 0.5}, 464_848, None, None),
    ("0.10.1.1", "a100-80gb", "qwen2.5-7b", {"gpu_memory_utilization": 0.25, "tp": 2}, 450_192, None, None),
    ("0.10.1.1", "a100-80gb", "qwen2.5-7b", {"gpu_memory_utilization": 0.5, "tp": 2}, 1_192_160, None, None),
]


@pytest.mark.parametrize(("release", "device", "model", "asked", "tokens", "requests", "activations"), LOGS)
def test_start_up_logs_of_vllm(release, device, model, asked, tokens, requests, activations):
    found = results(
        device,
        model,
        stack=f"vllm@{release}",
        admission="paged",
        **{"gpu_memory_utilization": 0.95, "weights": "bf16", **asked},
    )
    for name, logged, within in (
        ("kv_pool_tokens", tokens, 0.02),
        ("max_concurrency", requests, 0.02),
        ("activation_bytes", activations and activations * GIB, 0.09),
    ):
        assert logged is None or found[name] == pytest.approx(logged, rel=within), name


def pooled(n_gib, device, model, quantizer="bf16", **asked):
    """A pool of so many GiB, whatever lies beside it."""
    return results(device, model, quantizer, kv_cache_memory_bytes=int(n_gib * GIB), admission="paged", **asked)


@pytest.mark.parametrize(
    ("release", "device", "model", "quantizer", "asked", "n_gib", "tokens", "requests"),
    [
        # groups of 10 of 62 layers, windows of 1,023 + 8,192 tokens, more than the longest context
        ("0.19.0", "h100", "gemma-3-27b", "bf16", {"max_model_len": 8192, "weights": "fp8"}, 19.53, 36_560, 4.46),
        ("0.19.0", "h100", "gemma-3-12b", "bf16", {"max_model_len": 8192, "weights": "fp8"}, 47.72, 130_304, 15.88),
        # 18 layers of a window of 127 + 2,048 tokens beside 18 without: 330,018 blocks, 1,161 of them a request
        ("0.19.0", "a100-80gb", "gpt-oss-120b", "bf16", {"max_model_len": 16384, "tp": 4}, 45.325, 2_640_144, 284.25),
        # a state of 3,207,168 B takes 784 tokens of 4,096 B: 1,720 blocks, 6 + 3 of them a request (log: 782,791)
        (
            "0.20.2rc1",
            "b300",
            "qwen3.5-27b",
            "bf16",
            {"max_model_len": 4096, "weights": "nvfp4"},
            82.32,
            782_791,
            191.11,
        ),
        # two states a group: 299 blocks, 63 + 6 of them a request (log of an RTX 5090: 567,978)
        ("0.24.0", "b300", "qwen3.6-35b-a3b", "fp8", {"max_model_len": 131_072}, 5.98, 567_978, 4.33),
        # FP8 of the checkpoint's scheme: blocks of 4,176 tokens (log of a Jetson Thor: 467,712)
        ("0.19.0", "b300", "qwen3.5-122b-a10b", "fp8", {"max_model_len": 131_072}, 21.43, 467_712, None),
        # pages of 8 heads of 256 and of 2 of 512 are one size where the latter hold 32 tokens
        (
            "0.19.0",
            "b300",
            "gemma-4-26b-a4b",
            "fp8",
            {"max_model_len": 131_072, "prompt_budget_tokens": 2048},
            51.62,
            451_040,
            33.42,
        ),
        # an L40S: 1,308 blocks a request of 10,963 tokens in FP8, 1,651 with scales, where pages do not divide
        (
            "0.33.0",
            "b300",
            "gemma-4-26b-a4b",
            "fp8",
            {"max_model_len": 10_963, "prompt_budget_tokens": 2048},
            15.18,
            417_022,
            None,
        ),
        (
            "0.33.0",
            "b300",
            "gemma-4-26b-a4b",
            "fp8_per_token_head",
            {"max_model_len": 10_963, "prompt_budget_tokens": 2048},
            15.18,
            325_335,
            None,
        ),
    ],
)
def test_pools_of_layers_that_differ(release, device, model, quantizer, asked, n_gib, tokens, requests):
    """By hand from the rule of vllm/v1/core/kv_cache_utils.py, and as start-up logs print them."""
    found = pooled(n_gib, device, model, quantizer, stack=f"vllm@{release}", **asked)
    assert found["kv_pool_tokens"] == pytest.approx(tokens, rel=0.002)
    assert requests is None or found["max_concurrency"] == pytest.approx(requests, rel=0.002)


@pytest.mark.parametrize(("dcp", "logged"), [(1, 341_504), (2, 680_192), (4, 1_360_384), (8, 2_720_768)])
def test_tokens_that_devices_share_by_an_index(dcp, logged):
    """vLLM 0.20.2rc1, GLM-5.1-NVFP4 on 8 RTX PRO 6000, FP8 keys and values, 19.5 GiB a GPU."""
    found = pooled(
        19.5,
        "rtx-pro-6000",
        "nvidia/GLM-5.1-NVFP4",
        "fp8_ds_mla",
        stack="vllm@0.20.2rc1",
        tp=8,
        dcp=dcp,
        max_model_len=202_752,
    )
    assert found["kv_pool_tokens"] == pytest.approx(logged, rel=0.005)


@pytest.mark.parametrize(
    ("device", "drafts", "n_layers", "element"),
    [("rtx-pro-6000", "", 78, 656), ("rtx-pro-6000", "mtp", 79, 656), ("h200", "", 78, 656), ("b200", "", 78, 576)],
)
def test_fp8_of_chosen_latents_is_stored_with_scales_and_a_wide_rope(device, drafts, n_layers, element):
    """vLLM's fp8 of DeepSeek-V3.2's layers is fp8_ds_mla: 512 FP8 values, 4 scales in FP32 and 64 RoPE values in 16
    bits, beside an index key of 128 values and a scale. Start-up logs of GLM-5.1 (0.20.2, eight RTX PRO 6000): 19.55
    GiB hold 341,504 tokens of 78 x 788 B; with its layer of multi-token prediction 18.51 GiB 319,232 of 79 x 788."""
    given = 18.51 if drafts else 19.55
    config = '{"method": "mtp", "num_speculative_tokens": 1}' if drafts else None
    asked = {"stack": "vllm@0.20.2", "tp": 8, "weights": "nvfp4-experts", "speculative_config": config}
    found = pooled(given, device, "glm-5.1", "fp8", **asked)
    block = 16 * n_layers * (element + 128 + 4)
    assert found["kv_pool_tokens"] == int(given * GIB) // block * 16
    if element == 656:
        assert found["kv_pool_tokens"] == pytest.approx(319_232 if drafts else 341_504, rel=3e-4)
    assert found["quantizer"] == "fp8"


def test_chosen_latents_in_16_bits_lie_beside_scaled_ones():
    """DeepSeek-V3.2: 59 layers of 656 B and 2 of 576 values in 16 bits, each with an index key of 128 B and a scale."""
    found = dse.evaluate("h200", "deepseek-v3.2", "fp8:skip=0+-1", tp=8, stack="vllm")
    assert found["kv_bytes_per_token"] == 59 * 656 + 2 * 1152 + 61 * 132


def test_devices_that_share_tokens_have_pages_of_their_own():
    """By hand: 17 pages of 16 tokens on each of 8 devices hold 17 * 128 tokens, and a request of 129 takes two of them.

    vLLM 0.33.0, vllm/v1/core/kv_cache_utils.py: blocks of a group hold block_size tokens on each rank.
    """
    page_bytes = 16 * 61 * 576  # 61 layers, one byte an element
    asked = {"stack": "vllm@0.33.0", "tp": 8, "dcp": 8, "page_tokens": 16, "input_tokens": 128, "output_tokens": 1}
    found = pooled((18 * page_bytes - 1) / GIB, "h200", "deepseek-v3", "fp8", **asked)
    assert found["kv_pool_tokens"] == 17 * 128
    assert found["max_concurrency"] == 17 / 2
    assert found["max_batch"] == 17 // 2


def test_each_server_by_its_own_rule():
    """SGLang: the share is for weights, buffers, keys and values; TensorRT-LLM: of what all else leaves."""
    reported = int(79.19 * GIB)
    asked = {"device": "h100", "gpu_memory_utilization": 0.83}
    activations = 14 * 2048 * 128_256 + 3 * 2 * 8192 * 4096
    graphs = int(0.4 * GIB) + 32 * int(0.015 * GIB)
    sglang = results(stack="sglang", **asked)
    # 0.83 of what is free beside a context of 0.4 GiB, less the weights and 0.1 GiB beside them
    held = 2 * PARAMETERS + TABLE + GIB // 2 - round(0.17 * int(0.4 * GIB))
    assert sglang["free_bytes"] == int(reported * 0.83) - held
    trtllm = results(stack="trtllm", **asked)
    left = reported - 2 * PARAMETERS - TABLE - activations - graphs - int(0.54 * GIB)
    assert trtllm["free_bytes"] == pytest.approx(int(left * 0.83), abs=64)
    for found in (sglang, trtllm):
        taken = ("weight_bytes", "activation_bytes", "runtime_bytes", "free_bytes", "unused_bytes")
        assert sum(found[name] for name in taken) == reported


def test_sglang_sets_its_share_by_what_it_sets_aside():
    """H100: 512 + 1.5 * 8,192 + 128 + 2 * 256 of 81,090 MiB; of eight 128 each, and graphs of 512."""
    one, eight = results("h100", stack="sglang"), results("h100", "llama3.1-70b", stack="sglang", tp=8)
    mib = int(79.19 * GIB) / 2**20
    assert one["gpu_memory_utilization"] == round(1 - (512 + 12_288 + 128 + 512) / mib, 3)
    assert eight["gpu_memory_utilization"] == round(1 - (512 + 12_288 + 8 * 128 + 1024) / mib, 3)


@pytest.mark.parametrize(
    ("release", "device", "tp", "tokens", "share"),
    [
        ("0.4.3", "l4", 4, 2048, 0.85),  # by the devices
        ("0.4.3", "h100", 1, 8192, 0.88),
        ("0.4.9", "rtx-4090", 2, 2048, round(1 - 3.0 / 23.65, 3)),  # 2.8 GiB and a tenth each
        ("0.4.9", "h100", 8, 8192, round(1 - 13.5 / 79.19, 3)),  # 9.5 and a half each
        ("0.5.10", "rtx-4090", 2, 2048, round(1 - (512 + 3072 + 256 + 96) / (23.65 * 1024), 3)),
        ("0.5.23", "rtx-4090", 2, 4096, round(1 - (512 + 6144 + 256 + 96) / (23.65 * 1024), 3)),
        ("", "b200", 8, 16384, None),
    ],
)
def test_defaults_of_sglang_by_release(release, device, tp, tokens, share):
    model = "qwen3-32b" if tp > 1 else "llama3.1-8b"
    found = results(device, model, stack=f"sglang@{release}" if release else "sglang", tp=tp)
    assert found["prompt_budget_tokens"] == tokens
    assert share is None or found["gpu_memory_utilization"] == pytest.approx(share, abs=0.001)


def test_tokens_of_a_trtllm_log():
    """0.19 on an RTX 5090, FP8 in all, 2,048 slots and 1,024 tokens (NVIDIA/TensorRT-LLM issue 4275)."""
    asked = {"gpu_memory_utilization": 0.9, "prompt_budget_tokens": 1024, "max_model_len": 2048, "weights": "fp8"}
    found = results("rtx-5090", quantizer="fp8", stack="trtllm@0.19.0", **asked)
    assert found["kv_pool_tokens"] == pytest.approx(263_008, rel=0.02)
    given = results("rtx-5090", quantizer="fp8", stack="trtllm@0.19.0", max_num_seqs=2048, **asked)
    assert given["free_bytes"] == found["free_bytes"]


@pytest.mark.parametrize(
    ("stack", "device", "model", "asked", "tokens"),
    [
        # docs.sglang.ai/start/send_request; QwQ-32B on four L4: 6.09 - 0.15 x 21.63 GiB; Qwen3.5-9B on two cards
        ("sglang@0.4.1", "h100", "llama3.1-8b", {"gpu_memory_utilization": 0.88}, 444_500),
        ("sglang@0.4.3", "l4", "qwen2.5-32b", {"gpu_memory_utilization": 0.85, "tp": 4}, 46_611),
        ("sglang@0.5.10", "rtx-4090", "qwen3.5-9b", {"tp": 2}, 327_310),
    ],
)
def test_tokens_of_sglang_logs(stack, device, model, asked, tokens):
    found = results(device, model, stack=stack, max_model_len=32768, **asked)
    assert found["kv_pool_tokens"] == pytest.approx(tokens, rel=0.02)


def test_sglang_keeps_states_and_windows_beside_tokens():
    """0.9 of the memory of keys and values for states; 0.8 of the tokens in layers with a window."""
    hybrid = pooled(40, "h200", "qwen3.5-27b", stack="sglang", weights="fp8")
    assert hybrid["kv_pool_tokens"] == pytest.approx(40 * GIB / 1.9 / (16 * 4096), rel=1e-4)
    windowed = pooled(20, "h100", "gemma-3-12b", stack="sglang")
    token = 2 * 2 * 8 * 256
    assert windowed["kv_pool_tokens"] == pytest.approx(20 * GIB / ((8 + 0.8 * 40) * token), rel=1e-4)


@pytest.mark.parametrize(
    ("release", "asked"),
    [
        ("0.7.2", ("prompt_budget_tokens", 2048)),
        ("0.20.2", ("gpu_memory_utilization", 0.9)),
        ("0.21.0", ("gpu_memory_utilization", 0.92)),
        ("0.32.0", ("prompt_budget_tokens", 8192)),
        ("0.33.0", ("prompt_budget_tokens", 16384)),
        ("", ("prompt_budget_tokens", 16384)),
    ],
)
def test_defaults_are_the_releases(release, asked):
    found = results("b200", stack=f"vllm@{release}" if release else "vllm", max_model_len=100_000)
    assert found[asked[0]] == asked[1]


def test_options_reach_the_memory():
    """Rows of logits, the pool itself, and what others took before."""
    usual, few = results("h100"), results("h100", max_num_seqs=512)
    assert usual["activation_bytes"] - few["activation_bytes"] == 14 * 512 * 128_256
    assert pooled(10, "h100", "llama3.1-8b")["free_bytes"] == 10 * GIB
    assert (
        results("h100", stack="sglang", free_memory_bytes=70 * GIB)["free_bytes"]
        < results("h100", stack="sglang")["free_bytes"]
    )
    assert results("h100", free_memory_bytes=79 * GIB)["free_bytes"] == usual["free_bytes"]


def test_what_lies_beside_the_share_never_makes_more_than_there_is():
    """SGLang with all of the memory: activations and graphs still need room."""
    found = results("h100", stack="sglang", gpu_memory_utilization=1.0)
    assert found["unused_bytes"] == 0


def test_requests_count_no_activations_of_their_own():
    found = results(batch=100, admission="reserve")
    paper = results(batch=100, admission="reserve", memory="paper")
    assert found["max_batch"] == found["free_bytes"] // (2048 * TOKEN)
    assert paper["max_batch"] == paper["free_bytes"] // (2048 * TOKEN + 2 * (128_256 + 2 * 4096))
    assert found["activation_bytes"] == results(batch=1)["activation_bytes"]


def test_devices_count_what_each_has():
    one, two = results(model="llama3.1-70b", tp=4), results(model="llama3.1-70b", tp=8)
    graphs = int(0.25 * GIB) + 80 * int(0.0083 * GIB)
    assert two["runtime_bytes"] == one["runtime_bytes"] == graphs + int(0.25 * GIB) + int(0.5 * GIB)
    # all logits come together on every device
    assert two["activation_bytes"] == 46 * 256 * 128_256 + 3 * 2 * 2048 * 8192
    assert two["free_bytes"] > one["free_bytes"]
    stages = results(model="llama3.1-70b", pp=8)
    # the fullest stage has the output head, or the input table, beside an eighth of the layers
    ends = 2 * 128_256 * 8192 * (1 - 2 / 8)
    assert stages["weight_bytes"] == pytest.approx(two["weight_bytes"] + ends, rel=1e-6)
    # a token's keys and values are 1/8 of all layers, or of all heads
    assert stages["kv_pool_tokens"] == pytest.approx(two["kv_pool_tokens"], rel=0.05)


def test_the_smallest_memory_is_where_the_batch_begins_to_fit():
    for stack in ("vllm", "sglang", "trtllm"):
        device, kv, work = (
            catalog.device("h100"),
            build("llama3.1-8b", "bf16"),
            Workload(260, stack=stack, gpu_memory_utilization=0.9),
        )
        least = evaluate(Point(device, kv, work))["min_capacity_bytes"]
        for n_bytes, fits in ((least, True), (least - 1, False)):
            size = device.memory_capacity.model_copy(update={"value": n_bytes, "unit": "B"})
            own = device.model_validate({**dict(device), "memory_capacity": size, "reported_memory": size})
            assert evaluate(Point(own, kv, work))["fits_whole_batch"] is fits


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


def test_only_designs_of_papers_default_to_a_papers_memory():
    kinds = {
        name: results(name, "opt-125m", "fp16", input_tokens=8, output_tokens=8)["memory"]
        for name in catalog.device_files()
    }
    designs = {
        "oaken-hbm",
        "oaken-lpddr",
        "lpu-hbm",
        "lpu-lpddr",
        "tender-a100",
        "2xa100-80gb",
        "attacc-a100",
        "neupims",
    }
    assert {name for name, kind in kinds.items() if kind == "paper"} == designs
    assert results("h100", kv_cache=False, model_kind="ideal")["memory"] == "paper"
    paper = results("h100", memory="paper")
    assert (paper["gpu_memory_utilization"], paper["prompt_budget_tokens"]) == (None, None)
    assert paper["capacity_bytes"] == 80 * 10**9
    assert paper["unused_bytes"] == paper["runtime_bytes"] == 0


@pytest.mark.parametrize("name", ["mi300x", "dgx-spark", "gaudi2", "tpu-v6e", "m4-max", "trainium2"])
def test_a_share_of_the_memory_is_that_of_what_drivers_report(name):
    """None of it is ignored without a word: AMD, unified memory, Gaudi, TPU, Metal, Trainium."""
    found = results(name, gpu_memory_utilization=0.5)
    reported = catalog.device(name).reported_bytes
    assert found["capacity_bytes"] == reported
    assert found["unused_bytes"] == reported - int(reported * 0.5)


@pytest.mark.parametrize("name", [name for name in catalog.device_files() if catalog.device(name).reported_memory])
def test_what_drivers_report_is_near_what_data_sheets_print(name):
    """From Metal's share of 8 GB, two thirds, to memories whose data sheets say GB for GiB; a slip of units is more."""
    device = catalog.device(name)
    assert 0.66 < device.reported_bytes / device.capacity_bytes < 1.11


def test_assumed_numbers_of_the_server_are_named():
    server, paper = results(), results(memory="paper")
    assert "server_memory" in server["assumptions"]
    assert "usable_frac" not in server["assumptions"]
    assert "usable_frac" in paper["assumptions"]
    assert "server_memory" not in paper["assumptions"]
    for stack in servers.stacks():
        assert all(number.source for number in servers.numbers(stack, catalog.device("h100")))


def test_explanations_name_terms_and_sources():
    point = Point(catalog.device("a100-80gb"), build("llama3.1-8b", "fp8"), Workload())
    found, steps = explained(point)
    assert steps["free_bytes"].terms["reported_bytes"] == int(79.25 * GIB)
    assert steps["free_bytes"].terms["share"] == 0.92
    assert "start-up log" in steps["activation_bytes"].source
    assert "start-up log" in steps["runtime_bytes"].source
    assert steps["kv_pool_tokens"].value == found["kv_pool_tokens"] == pool_tokens(point.design, point.made)


@pytest.mark.parametrize(
    ("device", "asked", "text"),
    [
        ("h100", {"gpu_memory_utilization": 0.0}, r"gpu-memory-utilization = 0: must be a share from 0.0001 to 1"),
        ("h100", {"gpu_memory_utilization": 1.2}, r"gpu-memory-utilization = 1.2: must be a share from 0.0001 to 1"),
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
    with pytest.raises(InputError, match=r"gpu-memory-utilization = 0.5: Oaken-HBM has no driver that reports"):
        dse.evaluate("oaken-hbm", "llama2-7b", gpu_memory_utilization=0.5)
    with pytest.raises(InputError, match=r"prompt-budget = 4096: a paper's memory has none: use --memory server"):
        Workload(memory="paper", prompt_budget_tokens=4096).refuse_idle()
    with pytest.raises(InputError, match=r"gpu-memory-utilization = 0.5: a paper's memory has none"):
        Workload(memory="paper", gpu_memory_utilization=0.5).refuse_idle()


def test_every_release_and_class_of_device_has_a_server_within_bounds():
    assert servers.stacks() == {"vllm", "sglang", "trtllm", "llama.cpp"}
    for stack in servers.stacks():
        for release in ("0", "0.7", "0.8", "0.17", "0.18", "0.20.2", "0.21", "0.33", "99"):
            for device in ("l4", "h100", "b200"):
                assert servers.of(stack, catalog.device(device), f"{stack}@{release}").utilization.si >= 0.9


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('graph = { value = 1, unit = "GiB", source = "x", kind = "measured" }', "graph: unknown key"),
        ('graphs = { value = 1, unit = "s", source = "x", kind = "measured" }', "unit must be one of B, "),
        ("utilization = 1.5", "utilization = 1.5: must be 0.001 to 1"),
    ],
)
def test_a_file_of_a_server_is_checked(tmp_path, monkeypatch, line, said):
    for path in servers._FOLDER.glob("*.toml"):
        (tmp_path / path.name).write_text(path.read_text())
    with (tmp_path / "vllm.toml").open("a") as file:
        file.write(f'\n["99"]\n{line}\n')
    monkeypatch.setattr(servers, "_FOLDER", tmp_path)
    servers._read.cache_clear()
    try:
        with pytest.raises(SpecError, match=r"vllm\.toml: ") as error:
            servers.of("vllm", catalog.device("h100"), "vllm@99.1")
        assert said in str(error.value)
    finally:
        servers._read.cache_clear()


@pytest.mark.parametrize(
    ("n_sequences", "recorded"),
    [
        (1, [1, 2]),
        (2, [1, 2, 4]),
        (64, [1, 2, 4, *range(8, 129, 8)]),
        (150, [1, 2, 4, *range(8, 256, 8), 256, 272, 288]),
    ],
)
def test_graphs_are_recorded_for_twice_the_requests_at_most(n_sequences, recorded):
    """vLLM's sizes: 1, 2, 4, from 8 by 8 below 256, from there by 16 to 512, none above twice max_num_seqs."""
    assert servers.recorded_batches(n_sequences) == len(recorded)


def test_graphs_of_two_requests_take_what_three_logs_say():
    """64 layers: 0.25 + 64 x 0.0083 = 0.78 GiB of 256 requests or more; 3 of 51 sizes are less than 0.13 GiB."""
    server = servers.of("vllm", catalog.device("rtx-3090"))
    assert server.graph_bytes(64, 256) == server.graph_bytes(64, 1024) == int(0.25 * GIB) + 64 * int(0.0083 * GIB)
    assert server.graph_bytes(64, 2) == int(0.13 * GIB)


def test_fewer_graphs_where_the_largest_is_said():
    """Of 0.4 + 64 x 0.015 GiB on an H100: 1, 2, 4 and 8 are 4 of 51 sizes, less than 0.13 GiB; to 256 there are 35."""
    server = servers.of("vllm", catalog.device("h100"))
    whole = int(0.4 * GIB) + 64 * int(0.015 * GIB)
    assert server.graph_bytes(64, 1024, 8) == int(0.13 * GIB)
    assert server.graph_bytes(64, 1024, 256) == whole * 35 // 51


def test_limits_that_sglang_takes():
    """By hand: pages of 16 tokens; 12 of gpt-oss-20b's 24 layers have a window, and all keep 2 * 8 * 64 elements."""
    asked = {"device": "h100", "stack": "sglang"}
    capped = results(**asked, max_total_tokens=100_010)
    assert capped["kv_pool_tokens"] == 100_000
    assert capped["free_bytes"] == 100_000 * 32 * 2 * 1024 * 2
    assert results(**asked, max_total_tokens=10**9)["kv_pool_tokens"] == results(**asked)["kv_pool_tokens"]
    usual, whole = (results(**asked, model="gpt-oss-20b", swa_full_tokens_ratio=ratio) for ratio in (None, 1.0))
    page_bytes = 16 * 12 * 2 * 2 * 8 * 64
    assert usual["kv_pool_tokens"] == usual["free_bytes"] // round(1.8 * page_bytes) * 16
    assert whole["kv_pool_tokens"] == whole["free_bytes"] // (2 * page_bytes) * 16
    few = results(**asked, model="gpt-oss-20b", max_total_tokens=32_000)
    assert few["kv_pool_tokens"] == 32_000


def test_sglang_allows_for_the_graphs_it_records():
    """SGLang 0.5.23 on an H100 reserves 512 + 1.5 * 8192 + 128 + 2 MiB for each request of the largest graph."""
    mib = int(79.19 * GIB) / 2**20
    for largest, reserved in ((None, 13_440), (16, 12_960)):
        share = round((mib - reserved) / mib, 3)
        found = results(device="h100", stack="sglang@0.5.23", cuda_graph_max_bs=largest)
        by_hand = results(device="h100", stack="sglang@0.5.23", gpu_memory_utilization=share)
        assert found["free_bytes"] == by_hand["free_bytes"]


@pytest.mark.parametrize("asked", [{"max_total_tokens": 1000}, {"swa_full_tokens_ratio": 0.5}])
def test_limits_of_sglang_are_its_own(asked):
    with pytest.raises(InputError, match=r"is an option of SGLang and llama.cpp: leave it out, or add --stack sglang"):
        results(device="h100", stack="vllm", **asked)


def test_cells_of_llama_cpp_are_those_that_its_logs_print():
    """Gemma 3 27B: 10 layers of all tokens, 52 of windows of 1,024 and a batch of 512 for each slot, 2 * 16 heads of
    128 in 2 B; tests/validate/test_llama_cpp_sizes.py has the logs."""
    asked = {"device": "h100", "model": "gemma-3-27b", "stack": "llama.cpp", "input_tokens": 8000, "output_tokens": 192}
    token = 2 * 16 * 128 * 2
    alone = results(**asked, max_total_tokens=32_768, max_num_seqs=1)
    assert alone["free_bytes"] == (10 * 32_768 + 52 * 1536) * token
    assert alone["kv_pool_tokens"] == 32_768
    assert (
        results(**asked, max_total_tokens=32_768, max_num_seqs=4)["free_bytes"] == (10 * 32_768 + 52 * 4 * 1536) * token
    )
    # without -np four slots share all cells: four windows and one batch
    assert results(**asked, max_total_tokens=32_768)["free_bytes"] == (10 * 32_768 + 52 * (4 * 1024 + 512)) * token
    whole = results(**asked, max_total_tokens=32_768, max_num_seqs=1, swa_full_tokens_ratio=1.0)
    assert whole["free_bytes"] == 62 * 32_768 * token
    # as many requests fit as their cells do
    free = results(**asked, max_num_seqs=512)
    assert free["max_batch"] == free["free_bytes"] // ((10 * 8192 + 52 * 1536) * token)


def test_states_of_hybrids_lie_in_llama_cpp_beside_the_cells():
    """Qwen3.6 27B's 16 layers of attention, 4 heads of 2 * 256 in 2 B; its other 48 have a state for each slot."""
    asked = {
        "device": "h100",
        "model": "qwen3.6-27b",
        "stack": "llama.cpp",
        "max_num_seqs": 2,
        "max_total_tokens": 65_536,
    }
    state = sum(layer.state_bytes * layer.n_layers for layer in catalog.model("qwen3.6-27b").layers)
    assert state > 0
    assert results(**asked)["free_bytes"] == 65_536 * 16 * 4 * 512 * 2 + 2 * state


def test_drafts_of_llama_cpp_are_of_its_slots():
    """Four slots take 4 of a batch of 512 (512 rows of logits took all of it); the draft's weights count."""
    draft = '{"method": "draft_model", "model": "qwen3-0.6b", "num_speculative_tokens": 4}'
    plain, drafted = (
        results("rtx-4090", "qwen3-8b", weights="q4_k_m", speculative_config=said) for said in (None, draft)
    )
    assert drafted["weight_bytes"] > plain["weight_bytes"] + 0.2e9


def test_a_cache_that_memory_does_not_hold_is_said():
    """Llama-3.1-8B in Q4_K_M: 131,072 B a token, 16 GiB of them beside 4.6 GiB of weights on a 16 GB card."""
    found = results("rtx-5060-ti-16gb", weights="q4_k_m", max_total_tokens=131_072)
    assert not found["runs"]
    assert "-c 131072: llama.cpp: 16.00 GiB of keys and values, " in found["runs_why"]
    fits = int(found["runs_why"].partition(" are left: -c ")[2].split()[0])
    assert results("rtx-5060-ti-16gb", weights="q4_k_m", max_total_tokens=fits)["runs"]
    with pytest.raises(
        InputError, match=r"requests of 1,024 \+ 1,024 tokens are longer than a slot of 2,000: use -c 8192"
    ):
        results("rtx-4090", weights="q4_k_m", max_total_tokens=8000, max_num_seqs=4)


@pytest.mark.parametrize(
    ("device", "model", "asked", "pool_gib", "within"),
    [
        # rows of logits: 37 B for each of 64 x 151,936, 128,256 or 201,088
        ("rtx-4090", "qwen3-30b-a3b", {"weights": "int4"}, 5.07, 0.025),
        ("rtx-5090", "llama3.1-8b", {"gpu_memory_utilization": 0.95}, 14.31, 0.01),
        ("rtx-5090", "gpt-oss-20b", {"gpu_memory_utilization": 0.95}, 15.37, 0.01),
        ("a100-40gb", "gpt-oss-20b", {}, 21.09, 0.01),
        ("rtx-5000-ada", "llama3.1-8b", {"gpu_memory_utilization": 0.95}, 14.46, 0.015),
    ],
)
def test_pools_of_small_cards_in_logs_of_vllm_0_12(device, model, asked, pool_gib, within):
    """Start-up logs of a user's benchmark of local GPUs (2025-12), 2,048 batched tokens and 64 requests."""
    found = results(device, model, stack="vllm@0.12.0", max_num_seqs=64, prompt_budget_tokens=2048, **asked)
    assert found["free_bytes"] / GIB == pytest.approx(pool_gib, rel=within)


@pytest.mark.parametrize(("tp", "pool_gib"), [(1, 15.33), (2, 22.92)])
def test_pools_of_an_amd_card_in_logs_of_vllm_0_13(tp, pool_gib):
    """Llama-3.1-8B on R9700 under ROCm (github.com/kyuz0/amd-r9700-vllm-toolboxes), 0.98 of the memory."""
    asked = {"gpu_memory_utilization": 0.98, "max_num_seqs": 64, "prompt_budget_tokens": 2048}
    found = results("r9700", stack="vllm@0.13.0", tp=tp, **asked)
    assert found["free_bytes"] / GIB == pytest.approx(pool_gib, rel=0.01)


@pytest.mark.parametrize(("kind", "element_bytes"), [("float32", 4), ("bfloat16", 2), ("float8", 1), ("int8", 1)])
def test_recurrent_states_have_the_type_that_is_asked_for(kind, element_bytes):
    """Qwen3.8 27B has 48 layers with 48 heads of 128 by 128 and the last 3 inputs of 10,240 channels, of 2 B: 153.9 MB
    in FP32, as a thread on SGLang says (its issue 40706)."""
    a = dse.evaluate("rtx-5090", "qwen3.8-27b", "fp8", batch=1, state_type=kind)
    assert a.state_bytes == 48 * (48 * 128 * 128 * element_bytes + 3 * 10_240 * 2)


def test_smaller_states_leave_more_tokens():
    """Pages grow until one holds a state, so half the state is half the page; 2.11 times the tokens were admitted in
    INT8 by a model with three layers of states to one of attention's (vLLM, pull request 52962)."""
    pools = [
        dse.evaluate("h200", "qwen3.8-27b", "fp16", batch=1, state_type=kind).kv_pool_tokens
        for kind in ("auto", "float32", "bfloat16", "int8")
    ]
    assert pools[0] == pools[1] < pools[2] < pools[3]


@pytest.mark.parametrize(
    "name", ["nemotron-3-nano-30b-a3b", "granite-4.0-h-small", "kimi-linear-48b-a3b", "nemotron-h-56b", "kimi-k3"]
)
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_states_of_every_code_are_theirs_in_their_own_type(name, kind):
    """A type of a state and back: what the model's own type has is found again, in 4 B or in 2."""
    plain = catalog.model(name)
    asked = [with_states(plain, Workload(state_type=kind)) for kind in ("float32", "bfloat16", kind)]
    again = with_states(with_states(plain, Workload(state_type="bfloat16")), Workload(state_type="float32"))
    assert again.state_bytes == asked[0].state_bytes
    assert plain.state_bytes in {asked[0].state_bytes, asked[1].state_bytes}


def test_a_model_without_states_has_none_of_another_type():
    with pytest.raises(InputError, match=r"state-type = int8: llama3.1-8b has no recurrent states: leave it out"):
        dse.evaluate("h200", "llama3.1-8b", "fp16", batch=1, state_type="int8")


@pytest.mark.parametrize(("release", "divisor"), [("0.20.1", 4), ("0.21.0", 1)])
def test_turboquant_packs_all_attention_of_a_hybrid(release, divisor):
    """Qwen3.6 35B-A3B: 10 layers of attention, none left in 16 bits (vLLM, get_boundary_skip_layers), of 776
    bytes a token, and 3 x 10 of states of 2,146,304: blocks of 2,768 tokens, as `Setting attention block size` says.
    Up to 0.20.1 tokens are those of blocks over the four groups, after it those of requests of the longest context."""
    a = dse.evaluate(
        "h200", "qwen3.6-35b-a3b", "turboquant_k8v4", stack=f"vllm@{release}", batch=1, max_model_len=65_536
    )
    blocks = int(a.free_bytes) // (10 * 2_768 * 776)
    of_request = -(-65_536 // 2_768) + 3 * (1 if divisor == 4 else 2)
    want = blocks // 4 * 2_768 if divisor == 4 else blocks / of_request * 65_536
    assert a.kv_pool_tokens == pytest.approx(want, rel=1e-6)


def test_layers_that_are_named_stay_in_16_bits_in_a_hybrid_too():
    all_packed, named = (
        dse.evaluate("h200", "qwen3.6-35b-a3b", quantizer, batch=1).kv_bytes_per_token
        for quantizer in ("turboquant_k8v4", "turboquant_k8v4:skip=-1")
    )
    assert (all_packed, named) == pytest.approx((10 * 776, 9 * 776 + 2048), rel=0.01)


def test_sglang_keeps_states_by_share_or_by_number():
    """Qwen3.5 9B over two devices: 24 layers of states, 25,755,648 B a request and device: a log of SGLang 0.5.10 has
    186 states in 4.38 GiB (`max_mamba_cache_size: 186, ssm_state size: 4.38GB`), the share 0.9 over 1.9 of the pool."""
    asked = {"tp": 2, "batch": 1, "stack": "sglang@0.5.10"}
    plain, same, fewer, counted = (
        dse.evaluate("rtx-4090", "qwen3.5-9b", "bf16", **asked, **more)
        for more in ({}, {"state_share": 0.9}, {"state_share": 0.1}, {"state_slots": 186})
    )
    state = 24 * (16 * 128 * 128 * 4 + 3 * 4096 * 2)
    assert plain.state_bytes == state
    token = 8 * 2 * 2 * 256 * 2
    assert same.kv_pool_tokens == plain.kv_pool_tokens == pytest.approx(plain.free_bytes / 1.9 / token, rel=1e-3)
    assert fewer.kv_pool_tokens == pytest.approx(plain.free_bytes / 1.1 / token, rel=1e-3)
    assert counted.kv_pool_tokens == pytest.approx((plain.free_bytes - 186 * state) / token, rel=1e-3)
    assert pytest.approx(4.38, rel=0.006) == 186 * 24 * 16 * 128 * 128 * 4 / GIB


def test_sglang_runs_as_many_requests_as_have_places_for_states():
    """Five a request, three before the extra buffer: `max_running_requests capped to 7 by max_mamba_cache_size 36`
    (SGLang issue 40706)."""
    asked = {"batch": None, "input_tokens": 512, "output_tokens": 64}
    few = dse.evaluate("h100", "qwen3.8-27b", "bf16", weights="fp8-block", stack="sglang", state_slots=36, **asked)
    assert (few.max_batch, few.running_batch) == (7, 7)
    for stack, n_states in (("sglang@0.5.10", 3), ("sglang", 5)):
        found = dse.evaluate("h100", "qwen3.5-9b", "bf16", stack=stack, **asked)
        of_states = found.free_bytes * 0.9 / 1.9
        assert found.max_batch == int(of_states / (n_states * found.state_bytes))
    with pytest.raises(InputError, match="max-mamba-cache-size = 4: a request takes 5 states: give 5 or more"):
        dse.evaluate("h100", "qwen3.5-9b", "bf16", stack="sglang", state_slots=4)


def test_without_a_prefix_cache_a_request_takes_one_state():
    """Of SGLang those of the share, one each, or where `max_num_seqs` is said one for each of so many in place of a
    share (KVCacheConfigurator._handle_max_mamba_cache); of vLLM one block a group in place of two, before 0.21 one
    anyway. What has no states is alike, and what a prefix shares is not kept."""
    asked = {"batch": None, "input_tokens": 512, "output_tokens": 64}
    off = {**asked, "prefix_cache": "off"}
    sglang = dse.evaluate("h100", "qwen3.5-9b", "bf16", stack="sglang", **off)
    assert sglang.max_batch == int(sglang.free_bytes * 0.9 / 1.9 / sglang.state_bytes)
    few = dse.evaluate("h100", "qwen3.5-9b", "bf16", stack="sglang", max_num_seqs=64, **off)
    assert few.max_batch == 64
    assert few.free_bytes == sglang.free_bytes - 64 * sglang.state_bytes
    plan = build(catalog.model("qwen3.5-9b"), "fp16")
    blocks = [
        Point(catalog.device("h100"), plan, Workload(stack=stack, prefix_cache=cache)).design.memory.state_blocks
        for stack in ("vllm", "vllm@0.20.1")
        for cache in ("on", "off")
    ]
    assert blocks == [6, 3, 3, 3]  # 24 layers with states to 8 of attention
    on, off = (dse.evaluate("h100", "llama3.1-8b", "bf16", **{**asked, "prefix_cache": c}) for c in ("on", "off"))
    assert on.max_batch == off.max_batch
    with pytest.raises(InputError, match="prefix-cache = off: no prompt is shared: leave out --samples, or keep"):
        dse.evaluate("h100", "llama3.1-8b", "bf16", prefix_cache="off", samples=2)
    with pytest.raises(InputError, match="max-num-seqs = 4: a request takes 1 state: give 8 or more"):
        dse.evaluate(
            "h100", "qwen3.5-9b", "bf16", stack="sglang", tp=8, dp_attention=True, max_num_seqs=4, prefix_cache="off"
        )


@pytest.mark.parametrize(
    ("model", "stack", "says"),
    [
        ("qwen3.5-9b", "vllm", "max-mamba-cache-size = 5: this server keeps states with keys and values"),
        ("llama3.1-8b", "sglang", "max-mamba-cache-size = 5: llama3.1-8b has no states: leave it out$"),
    ],
)
def test_states_that_a_server_does_not_set_aside_have_no_number(model, stack, says):
    with pytest.raises(InputError, match=says):
        dse.evaluate("h100", model, "bf16", batch=1, stack=stack, state_slots=5)


def test_without_graphs_their_memory_is_free():
    """Graphs of an A100: 0.25 GiB and 0.0083 GiB a layer, which eager mode leaves to keys and values."""
    plain, eager = results(), results(cuda_graphs=False)
    graphs = int(0.25 * GIB) + 32 * int(0.0083 * GIB)
    assert plain["runtime_bytes"] - eager["runtime_bytes"] == graphs
    assert eager["free_bytes"] - plain["free_bytes"] == graphs


def test_weights_in_host_memory():
    """4 GiB of them leave the device; no more than there are."""
    plain = results()
    assert results(cpu_offload_gib=4.0)["weight_bytes"] == plain["weight_bytes"] - 4 * GIB
    assert results(cpu_offload_gib=4.0)["free_bytes"] == plain["free_bytes"] + 4 * GIB
    assert results(cpu_offload_gib=100.0)["weight_bytes"] == TABLE


def drafting(**fields):
    return json.dumps(fields)


@pytest.mark.parametrize(("n_drafted", "tokens", "requests"), [(4, 605_495, 2.31), (None, 690_562, 2.63)])
def test_drafts_of_a_hybrid_in_a_log(n_drafted, tokens, requests):
    """vLLM 0.21 on two RTX 3090, Qwen3.6-27B INT4 with four tokens of MTP: 11.10 GiB, 605,495 tokens, 2.31 x 262,144
    (github.com/noonghunna/club-3090, BENCHMARKS.md). A state of 1,572,864 + 10,240 x (3 + 4) B takes 1,584 tokens of
    1,040 B, a block 17 layers of them: 425 blocks, 166 + 3 x (2 + 4) of them a request."""
    draft = n_drafted and drafting(method="mtp", num_speculative_tokens=n_drafted)
    asked = {"tp": 2, "max_model_len": 262_144, "stack": "vllm@0.21.0", "speculative_config": draft}
    found = pooled(11.10, "h200", "qwen3.6-27b", "int8_per_token_head", **asked)
    assert found["kv_pool_tokens"] == tokens
    assert found["max_concurrency"] == pytest.approx(requests, abs=0.005)


def test_a_draft_model_is_held_whole():
    """Its weights and its layers' keys and values lie beside; a request keeps places for drafted tokens."""
    draft = drafting(model="llama3.2-1b", num_speculative_tokens=16)
    plain, drafted = (results(batch=4, stack="vllm@0.31.0", speculative_config=config) for config in (None, draft))
    own = 2 * catalog.model("llama3.2-1b").parameters
    assert drafted["weight_bytes"] - plain["weight_bytes"] == own
    # 16 layers of 8 heads of 64
    assert drafted["kv_bytes_per_token"] - plain["kv_bytes_per_token"] == 2 * 2 * 16 * 8 * 64
    token = TOKEN + 2 * 2 * 16 * 8 * 64
    assert drafted["max_batch"] == min(drafted["free_bytes"] // ((2048 + 16) * token), 256)
    times = ("decode_step_s", "prefill_s", "tpot_s", "ttft_s", "throughput_tokens_per_s")
    assert {name: plain[name] for name in times} == {name: drafted[name] for name in times}


def test_drafting_takes_tokens_of_the_budget():
    """One for each request where a draft model drafts: 256 of 256 leave none."""
    draft = drafting(model="llama3.2-1b", num_speculative_tokens=4)
    with pytest.raises(InputError, match=r"drafting takes 256 of max_num_batched_tokens = 256.*--max-num-seqs 255, or"):
        results(prompt_budget_tokens=256, speculative_config=draft)
    assert results(prompt_budget_tokens=257, speculative_config=draft)["max_batch"]


def test_drafts_are_of_one_stage():
    with pytest.raises(InputError, match="in one stage: use --tp, not pp = 2"):
        Workload(pp=2, speculative_config=drafting(method="mtp", num_speculative_tokens=1))


@pytest.mark.parametrize(
    ("asked", "mib", "kv_mib"),
    [
        # 16 bits: 30,631 MiB less 1,002 of input embeddings; the output, 1,002 more, needs -ngl 33; 416 MiB a layer
        ({}, 15_316.51, 1024),
        ({"gpu_layers": 33}, 15_316.51 - 1002, 1024),
        ({"gpu_layers": 32}, 15_316.51 - 2004, 1024),
        ({"gpu_layers": 20}, 15_316.51 - 2004 - 12 * 416.01, 640),
        ({"gpu_layers": 1}, 416.01, 32),
    ],
)
def test_layers_of_llama_cpp_on_the_device(asked, mib, kv_mib):
    """Llama-3.1-8B, 8,192 tokens: the last layers lie on the device with their keys and values."""
    found = results(
        "rtx-4090", input_tokens=8191, output_tokens=1, batch=1, admission="reserve", memory="paper", **asked
    )
    assert found["weight_bytes"] / 2**20 == pytest.approx(mib, abs=1.0)
    assert found["kv_bytes"] == kv_mib * 2**20
    assert (
        found["decode_step_s"]
        == results("rtx-4090", input_tokens=8191, output_tokens=1, batch=1, admission="reserve", memory="paper")[
            "decode_step_s"
        ]
    )


def test_experts_in_host_memory():
    """Qwen3-30B-A3B: 128 experts of 3 x 768 x 2,048 in each of 48 layers."""
    plain, away = (results("h100", "qwen3-30b-a3b", stack="llama.cpp", cpu_moe_layers=n) for n in (0, 20))
    with pytest.raises(InputError, match=r"n-cpu-moe = 20: is an option of llama.cpp: leave it out, or add --stack"):
        results("h100", "qwen3-30b-a3b", cpu_moe_layers=20)
    assert plain["weight_bytes"] - away["weight_bytes"] == 20 * 128 * 3 * 768 * 2048 * 2
    assert away["free_bytes"] - plain["free_bytes"] == 20 * 128 * 3 * 768 * 2048 * 2


def test_sglang_reserves_memory_for_drafts():
    """2 GiB for heads, 6 GiB for a model of its own (SGLang 0.5, server_args.py), of 79.19 GiB."""
    share = [
        results("h100", stack="sglang@0.5.6", speculative_config=config)["gpu_memory_utilization"]
        for config in (
            None,
            drafting(method="ngram", num_speculative_tokens=4),
            drafting(method="eagle3", num_speculative_tokens=4),
            drafting(model="llama3.2-1b", num_speculative_tokens=4),
        )
    ]
    reported = catalog.device("h100").reported_bytes / GIB
    assert share[1] == share[0]
    assert share[0] - share[2] == pytest.approx(2 / reported, abs=0.001)
    assert share[0] - share[3] == pytest.approx(6 / reported, abs=0.001)


def test_the_largest_image_is_what_a_tower_sets_aside():
    """Of two, one whole part and half of what they share; a peak that vLLM 0.27.1 prints on two RTX 5090."""
    asked = {"stack": "vllm@0.27.1", "max_num_seqs": 2, "prompt_budget_tokens": 8192, "weights": "fp8-block"}
    one, two = (results("rtx-5090", "qwen3.8-27b", tp=tp, **asked)["activation_bytes"] for tp in (1, 2))
    values = 2 * 65_536 * 1152
    assert one == pytest.approx(values * 18.0, rel=1e-6)
    assert two == pytest.approx(values * 11.3, rel=1e-6) == pytest.approx(1.59 * GIB, rel=0.01)
    text = 2 * 8192 * (2 * 5120 + 34_816 // 2) + 3 * 2 * 8192 * 5120
    assert results("rtx-5090", "qwen3.8-27b", tp=2, tower=False, **asked)["activation_bytes"] == text
    assert results("rtx-5090", "qwen3.8-27b", tp=2, **asked | {"stack": "sglang"})["activation_bytes"] != two


def test_pools_of_image_models_on_cards_without_nvlink():
    """Logs of vLLM 0.20 to 0.27 that were not fitted: 8,192 tokens and 2 requests at once (club-3090 and others)."""
    asked = {"gpu_memory_utilization": 0.92, "max_num_seqs": 2, "prompt_budget_tokens": 8192}
    for release, model, weights, tp, gib in (
        ("0.27.1", "qwen3.8-27b", "fp8-block", 2, 4.99),
        ("0.20.2", "qwen3.6-27b", "int4", 2, 11.06),
        ("0.21", "qwen3.6-27b", "int4", 4, 15.72),
    ):
        found = results("rtx-3090", model, "fp8", weights=weights, tp=tp, stack=f"vllm@{release}", **asked)
        assert found["free_bytes"] == pytest.approx(gib * GIB, rel=0.04)
