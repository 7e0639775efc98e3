"""Products that no kernel benchmark has, as shares of 16-bit ones; and chips at a lower rate than the lender."""

import pytest

from cases import each
from dse.calibrate import evidence
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build

LLAMA = build("llama3.1-8b", "fp16")


def reached(device, stack="vllm@0.19.0", **work):
    point = Point(catalog.device(device), LLAMA, Workload(batch=8, stack=stack, model_kind="calibrated", **work))
    return point.design.stack.gemm_flops_frac


def test_products_that_unpack_reach_three_fifths_of_the_rate_of_16_bits():
    """On an A100 vLLM's INT8 weights alone; TensorRT-LLM's were measured (hwspecs/calibrations/a100-80gb.toml). What is
    multiplied in 8 bits is taken to reach the share that 16 bits do."""
    plain = reached("a100-80gb", weights="bf16")
    assert reached("a100-80gb", weights="w8a16") == pytest.approx(0.6 * plain)
    assert reached("a100-80gb", weights="int8") == reached("a100-80gb", weights_bits=8, activation_bits=8) == plain
    assert reached("a100-80gb", "trtllm", weights="w8a16") == pytest.approx(
        catalog.device("a100-80gb").stacks["trtllm"].products["int8"].flops_frac.si
    )
    assert reached("h100", weights="fp8") == catalog.device("h100").stacks["vllm"].products["fp8"].flops_frac.si


def test_a_chip_at_half_the_rate_of_its_kernels_reaches_all_of_it():
    """An RTX 4090 accumulates in FP32 at half the rate of an L40S, of whose rate 0.59 is reached; so does an L20. An
    RTX 6000 Ada has the same rate a core and clock."""
    assert reached("rtx-6000-ada", weights="bf16") == reached("l40s", weights="bf16") < 0.7
    assert reached("rtx-4090", weights="bf16") == 1.0
    # a core unpacks as fast: half the products leave it all the time it needs
    assert reached("rtx-4090", weights="int4") == 1.0


@each(
    ("device", "model", "weights", "time"),
    (
        ("mi300x", "llama3.1-8b", "bf16", 1.2),
        ("mi300x", "llama3.1-8b", "fp8", 1.8),
        ("r9700", "qwen3-30b-a3b", "bf16", 1.2),
        ("r9700", "qwen3-30b-a3b", "int4", 2.7),
        ("mi300x", "gpt-oss-120b", "mxfp4-experts", 2.7),  # dense products in 16 bits, experts in 4
        ("h100", "llama3.1-8b", "fp8", 1.0),
    ),
)
def test_kernels_of_another_vendor_take_longer_by_their_weights(device, model, weights, time):
    """An AMD GPU at the shares of the kernels it borrows: starts so many times as long, rates so many times as low."""
    plan = build(model, "fp16")
    asked = catalog.device(device)
    lender = asked.model_copy(update={"vendor": "NVIDIA"})
    work = {"batch": 8, "stack": "vllm@0.19.0", "model_kind": "calibrated", "weights": weights}
    ours, lent = (Point(one, plan, Workload(**work)).design.stack for one in (asked, lender))
    assert ours.gemm_launch_s == pytest.approx(time * lent.gemm_launch_s)
    assert ours.gemm_memory_frac == pytest.approx(lent.gemm_memory_frac / time)
    assert ours.memory_frac == pytest.approx(lent.memory_frac / time)
    assert ours.host_layer_s == pytest.approx(time * lent.host_layer_s)


def test_a_published_product_of_a_geforce(tmp_path):
    """SGLang's pull request 6457: N 6144, K 4096, 2,048 tokens in FP16 take 612.4 us on an RTX 4090."""
    path = tmp_path / "t.csv"
    head = "id,device,model,weights,activations,kv,stack,batch,quantity,value,unit"
    model = '"matrix product, N 6144, K 4096"'
    path.write_text(f"{head}\na,RTX4090,{model},FP16,FP16,-,SGLang,2048,time of one product,612.352,us\n")
    (row,) = evidence.read(str(path))
    assert evidence.predicted(row) == pytest.approx(row.value, rel=0.05)
