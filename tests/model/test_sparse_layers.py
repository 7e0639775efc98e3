"""Layers that read chosen or compressed tokens: a step by hand, which kernels run, marks, and compiled sweeps."""

import math

import pytest

from dse.model import attention, kernels
from dse.model.assumed import reason
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.model.results import assumed_behind
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build

B200, H200, A100 = (catalog.device(name) for name in ("b200", "h200", "a100-80gb"))


def point(model, quantizer="fp16", device=B200, **work):
    return Point(device, build(model, quantizer), Workload(**{"batch": 4, "tp": 8, **work}))


def is_marked(found):
    return "nearest_kernels" in evaluate(found)["assumptions"]


def test_a_step_of_chosen_tokens_by_hand():
    """DeepSeek-V3.2 by SGLang on 8 B200: the index of 8,192 tokens, the choice of 2,048, attention over them."""
    batch, s, n_layers, heads = 4, 8192, 61, 128 // 8
    found = point("deepseek-v3.2", stack="sglang", input_tokens=s - 1, output_tokens=1)
    fit = B200.stacks["sglang"].sparse["dsa"]
    bandwidth, peak = B200.memory_bandwidth.si, B200.peak_flops.si
    index = batch * s * 132 / (fit.index_frac.si * bandwidth)  # 128 elements of FP8 and an FP32 scale
    n_bytes = batch * (2048 * 576 * 2 + 2 * heads * (576 + 512))
    flops = batch * 2048 * 2 * heads * (576 + 512)
    root = math.hypot(n_bytes / (fit.memory_frac.si * bandwidth), flops / (fit.flops_frac.si * peak))
    expected = n_layers * (fit.launch.si + s / 1000 * fit.choice.si + index + root)
    assert evaluate(found)["attention_s"] == pytest.approx(expected, rel=1e-9)
    # bytes and operations count whatever share of a peak each kernel reaches
    assert found.largest_wave.attention_bytes == pytest.approx(n_layers * (n_bytes + batch * s * 132), rel=1e-9)
    scored = batch * s * 2 * 64 * 128
    assert found.largest_wave.attention_flops == pytest.approx(n_layers * (flops + scored), rel=1e-9)


def test_prompts_of_chosen_tokens_fill_heads_up_and_read_tokens_that_there_are_not():
    """DeepSeek-V3.2 on 8 H200: 16 of 128 heads a device. FlashMLA's kernel over prompts has 64 rows, and computes a
    share for all 2,048 tokens that may be chosen, of a latent of 576 and values of 512; SGLang has its own kernels."""
    fit = H200.stacks["vllm"].prompt["dsa"]
    (layer,) = point("deepseek-v3.2", device=H200, stack="vllm").design.layers
    of_pair = 2 * 64 * (576 + 512)
    assert fit.head_rows == 64
    assert layer.prompt_pair_flops == round((1 - fit.always_read) * of_pair)
    assert layer.prompt_token_flops == round(fit.always_read * of_pair * 2048)
    found = point("deepseek-v3.2", device=H200, stack="vllm", batch=1, input_tokens=4000, output_tokens=1)
    pairs = 2048 * 2049 // 2 + (4000 - 2048) * 2048
    index = 4000 * 4001 // 2 * 2 * 64 * 128
    by_layer = pairs * layer.prompt_pair_flops + 4000 * layer.prompt_token_flops + index
    assert found.made.prompt_flops == pytest.approx(61 * by_layer, rel=1e-3)
    assert found.design.stack.prompt_flops_frac == fit.flops_frac.si
    (other,) = point("deepseek-v3.2", device=H200, stack="sglang").design.layers
    assert (other.prompt_pair_flops, other.prompt_token_flops) == (2 * 16 * (192 + 128), 0)
    assert "sparse_prompts" not in evaluate(found)["assumptions"]
    assert "sparse_prompts" in evaluate(point("deepseek-v3.2", device=H200, stack="sglang"))["assumptions"]


def test_sglang_writes_its_pool_of_latents_in_16_bits_on_hopper():
    """DeepSeek-R1 on 8 H200, a pool of 131,072 tokens: 13.77 ms of a step (github.com/sgl-project/sglang/issues/35291,
    a server's trace; the rate here is fitted to a benchmark of the kernel alone)."""
    work = {"stack": "sglang", "input_tokens": 1000, "output_tokens": 200, "weights": "fp8-block"}
    small, large = (
        evaluate(point("deepseek-v3", "fp8", H200, max_total_tokens=n, **work))["attention_s"]
        for n in (131_072, 262_144)
    )
    assert large - small == pytest.approx(61 * 131_072 * 576 / (132 * 2.583e9), rel=1e-3)
    assert large - small == pytest.approx(13.77e-3, rel=0.02)
    # what runs adds no more than in 16 bits; a pool of each of eight stages has room for eight layers
    plain = evaluate(point("deepseek-v3", "fp16", H200, max_total_tokens=131_072, **work))["attention_s"]
    assert small - (large - small) == pytest.approx(plain, rel=0.4)
    staged = point("deepseek-v3", "fp8", H200, **{**work, "tp": 1, "pp": 8}, max_total_tokens=131_072)
    assert attention.cast_step_s(staged.design) == pytest.approx(64 / 61 * (large - small), rel=2e-2)
    for device, stack, quantizer in ((H200, "vllm", "fp8"), (H200, "sglang", "fp16"), (B200, "sglang", "fp8")):
        found = point("deepseek-v3", quantizer, device, **{**work, "stack": stack})
        assert attention.cast_step_s(found.design) == 0


@pytest.mark.parametrize(("quantizer", "bits"), [("fp8", 8), ("fp16", 16)])
def test_a_step_of_compressed_caches_by_hand(quantizer, bits):
    """DeepSeek-V4 Flash by TensorRT-LLM on 8 B200: 2 layers of a window, 21 of CSA and 20 of HCA, windows beside.

    In FP16 such layers were not measured: the kernels of FP8 stand in, with twice the bytes to read.
    """
    batch, s, heads = 2, 16384, 8
    found = point("deepseek-v4-flash", quantizer, batch=batch, stack="trtllm", input_tokens=s - 1, output_tokens=1)
    stack, bandwidth, peak = B200.stacks["trtllm"], B200.memory_bandwidth.si, B200.peak_flops.si

    def root(fit, n_tokens, io_bytes):
        elements = next(g.n_elements for g in found.design.tensors if g.n_elements == 512)
        n_bytes = batch * (n_tokens * elements * bits / 8 + io_bytes)
        flops = batch * n_tokens * 2 * heads * 1024
        return math.hypot(n_bytes / (fit.memory_frac.si * bandwidth), flops / (fit.flops_frac.si * peak))

    io_bytes, csa, hca, latent = (
        2 * heads * 1024,
        stack.sparse["csa_fp8"],
        stack.sparse["hca_fp8"],
        stack.latent[quantizer],
    )
    index = batch * s / 4 * 64 / (csa.index_frac.si * bandwidth)  # 128 elements of FP4 for every 4 tokens
    of_csa = csa.launch.si + s / 1000 * csa.choice.si + index + root(csa, 512, io_bytes)
    of_hca = hca.launch.si + root(hca, s / 128, io_bytes)
    of_window = latent.launch.si + root(latent, 128, io_bytes)
    expected = 21 * of_csa + 20 * of_hca + 41 * root(hca, 128, 0) + 2 * of_window
    results = evaluate(found)
    # scales of FP8 are a few bits that the elements above leave out
    assert results["attention_s"] + results["dequantize_s"] == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "quantizer", "codes"),
    [
        ("deepseek-v3.2", "fp16", {"dsa"}),
        ("deepseek-v3.2", "fp8", {"dsa_fp8"}),
        ("glm-5.2", "fp16", {"dsa", "dsa_shared"}),
        ("minimax-m3", "fp8", {"", "msa_fp8"}),
        ("deepseek-v4-pro", "fp8", {"csa_fp8", "hca_fp8"}),
        ("deepseek-v4-flash", "fp8", {"", "csa_fp8", "hca_fp8"}),
        ("deepseek-v3", "fp16", {""}),
        ("gpt-oss-20b", "fp16", {""}),
    ],
)
def test_which_kernels_read_a_model(model, quantizer, codes):
    found = point(model, quantizer, memory="paper", batch=1)
    plan, paths = found.plan, found.paths
    assert {kernels.sparse_code(plan, paths, g.shape_index) for g in plan.groups} == codes


def test_what_was_measured_of_the_stack_itself_carries_no_mark():
    asked = {"memory": "paper", "batch": 1, "weights": "fp8_block"}
    assert not is_marked(point("deepseek-v3.2", stack="sglang", **asked))
    assert not is_marked(point("glm-5.2", "fp8", stack="sglang", **asked))
    assert not is_marked(point("minimax-m3", "fp8", stack="vllm", **asked))
    assert not is_marked(point("deepseek-v4-pro", "fp8", stack="vllm", **asked))


def test_what_was_not_is_marked():
    asked = {"memory": "paper", "batch": 1, "weights": "fp8_block"}
    assert is_marked(point("deepseek-v3.2", device=A100, **asked))  # no table of the device
    assert is_marked(point("deepseek-v3.2", stack="vllm", **asked))  # SGLang's stand in
    assert is_marked(point("deepseek-v4-pro", "fp16", stack="vllm", **asked))  # FP8 alone was measured
    said = reason(point("deepseek-v4-pro", "fp16", stack="vllm", **asked), "nearest_kernels")
    assert "of csa layers none were measured: csa_fp8's stand in" in said
    assert is_marked(point("minimax-m3", "fp16", stack="trtllm", **asked))  # not trusted
    assert not is_marked(point("deepseek-v3", stack="sglang", **asked))
    said = reason(point("deepseek-v3.2", device=A100, **asked), "nearest_kernels")
    assert said.endswith("of dsa layers none were measured: attention's stand in")


def test_prompts_are_marked_whatever_was_measured_of_steps():
    asked = {"memory": "paper", "batch": 1, "weights": "fp8_block", "stack": "sglang"}
    found = point("deepseek-v3.2", **asked)
    names = evaluate(found)["assumptions"]
    assert "sparse_prompts" in assumed_behind("ttft_s", names, evaluate(found))
    assert "sparse_prompts" not in assumed_behind("attention_s", names, evaluate(found))
    assert "plain attention" in reason(found, "sparse_prompts")
    assert "sparse_prompts" not in evaluate(point("deepseek-v3", **asked))["assumptions"]


def test_longer_contexts_cost_the_index_and_the_choice_alone():
    times = [
        evaluate(point("deepseek-v3.2", stack="sglang", batch=1, input_tokens=n, output_tokens=1))["attention_s"]
        for n in (1000, 4000, 16000, 28000)
    ]
    assert times[0] < times[1]
    # above 2,048 tokens a straight line of the context
    assert times[3] - times[2] == pytest.approx(times[2] - times[1], rel=1e-6)
