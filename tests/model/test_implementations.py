"""What implementations of quantizers make of times: rates by hand, both ends, kernels that are not known, sweeps."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.core.errors import InputError
from dse.model import engine, implementations, kernels
from dse.model.assumed import reason
from dse.model.compare import Case, Comparison
from dse.model.explain import explained
from dse.model.formulas import calibrated
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.implementation import ENDS
from dse.specs.workload import Workload
from factories import build

A100, H100, L40S = (catalog.device(name) for name in ("a100-80gb", "h100", "l40s"))


def point(device, model, quantizer, **work):
    return Point(device, build(model, quantizer), Workload(**{"batch": 8, **work}))


def test_triton_in_sglang_splits_a_sequence_in_eight_however_long_it_is():
    """Qwen3.5-397B in NVFP4 on four RTX PRO 6000 under SGLang 0.5.9 with FP8 keys and values, one request: 20.83 ms at
    65,536 tokens, 28.57 at 131,072, and 25.16 and 32.79 with four (github.com/voipmonitor/rtx6kpro, benchmarks)."""
    device = catalog.device("rtx-pro-6000")

    def step_s(quantizer, n_tokens, batch):
        work = {"weights": "nvfp4-experts", "tp": 4, "stack": "sglang", "input_tokens": n_tokens, "output_tokens": 2}
        found = engine.evaluate(point(device, "qwen3.5-397b-a17b", quantizer, batch=batch, **work))
        return found["decode_step_s"]

    for batch, measured in ((1, 28.571e-3 - 20.833e-3), (4, 32.787e-3 - 25.157e-3)):
        slope = step_s("fp8@sglang-triton", 131_072, batch) - step_s("fp8@sglang-triton", 65_536, batch)
        # 15 layers of a KV head of 256 a device: 512 elements a token, in 8 cores of 188
        assert slope == pytest.approx(15 * 65_536 * 512 / (8 * 3.1 * device.core_clock.si), rel=0.05)
        assert slope == pytest.approx(measured, rel=0.1)
        assert step_s("fp8", 131_072, batch) - step_s("fp8", 65_536, batch) < slope / 3


def rate_of(found):
    """Elements a second and core of the packed keys of a point."""
    return 1 / next(g.packed_core_s for g in found.design.tensors if g.is_packed)


@pytest.mark.parametrize(
    ("device", "model", "quantizer", "rate"),
    [
        # elements a cycle, clock, query heads of a KV head where each unpacks for itself
        (A100, "llama2-7b", "qserve", 10.35 * 1.41e9),
        (A100, "llama3-8b", "qserve", 10.35 * 1.41e9 / 4),
        (L40S, "llama3-8b", "qserve", 10.35 * 2.52e9 / 4),
        (A100, "llama3-8b", "qserve@turbomind", 16 * 1.41e9),
        (A100, "llama3-8b", "kivi", 6 * 1.41e9 / 4),
        (A100, "llama3-8b", "kivi:bits=4,group=128@bitdecoding", 16.41 * 1.41e9),
        (A100, "llama3-8b", "kvquant", 3 * 1.41e9 / 4),
        (A100, "llama3-8b", "turboquant_3bit_nc", 4.786 * 1.41e9 / 4),
        (A100, "llama3-8b", "turboquant_k8v4", 16 * 1.41e9 / 4),  # keys in FP8 are not looked up in a table
        (A100, "llama3-8b", "fp8", 8 * 1.41e9),  # no FP8 arithmetic: vLLM converts to 16 bits
        (A100, "llama3-8b", "tender", 6 * 1.41e9 / 4),  # no kernel known
    ],
)
def test_rates_by_hand(device, model, quantizer, rate):
    assert rate_of(point(device, model, quantizer)) == pytest.approx(rate, rel=1e-12)


def test_a_device_without_a_clock_takes_the_usual_one_and_says_so():
    own = A100.model_copy(update={"core_clock": None})
    found = point(own, "llama2-7b", "qserve")
    assert rate_of(found) == pytest.approx(10.35 * 1.7e9)
    assert "core_clock" in engine.evaluate(found)["assumptions"]
    assert reason(found, "core_clock") == "1.7 GHz: assumed, the device's file has none"
    assert "core_clock" not in engine.evaluate(point(own, "llama2-7b", "fp16"))["assumptions"]
    assert "core_clock" not in engine.evaluate(point(A100, "llama2-7b", "qserve"))["assumptions"]


def test_fp8_where_kernels_were_measured_runs_as_they_were():
    """vLLM on Hopper: no number of its own, so the stack's fit holds."""
    found = point(H100, "llama3-8b", "fp8")
    fit = H100.stacks["vllm"].kv["fp8"]
    assert engine.evaluate(found)["implementation"] == "vllm"
    assert rate_of(found) == pytest.approx(min(fit.core_rate.si, rate_of(found)))
    assert found.design.kernels[0].launch_s == max(fit.launch.si, found.stack.attention_terms()["launch_s"])


def test_turboquant_with_fp8_keys_beside_fp8():
    """vLLM issue 55610: Qwen3.8-27B in W8/W4 on an RTX 3090, one request at 3,000 tokens, decodes at 0.972 of FP8's
    speed (steps of INT4 and INT8 weights lie on both sides); with a table for the keys it would be slower."""
    device, work = catalog.device("rtx-3090"), {"batch": 1, "input_tokens": 3000, "output_tokens": 32, "stack": "vllm"}
    over = {}
    for weights in ("int4", "int8"):
        steps = {
            name: engine.evaluate(point(engine.roomy(device), "qwen3.8-27b", name, weights=weights, **work))[
                "decode_step_s"
            ]
            for name in ("fp8", "turboquant_k8v4", "turboquant_3bit_nc")
        }
        over[weights] = steps["fp8"] / steps["turboquant_k8v4"]
        assert steps["turboquant_k8v4"] < steps["turboquant_3bit_nc"]
    assert over["int4"] < 0.972 < over["int8"]
    assert over["int8"] / over["int4"] < 1.02


def test_filled_cores_by_hand():
    """vLLM's first TurboQuant kernels: 32 requests of 8 KV heads, 1.633 cores a query head, of which 4 share."""
    found = point(H100, "llama3-8b", "turboquant_4bit_nc@vllm-0.20", batch=32)
    packed = [k for k in found.design.kernels if k.cores_per_unit]
    assert packed[0].cores_per_unit == pytest.approx(4 * 1.633)
    assert calibrated.filled_cores(32 * 8, 4 * 1.633, 132) == 132
    assert calibrated.filled_cores(1 * 8, 4 * 1.633, 132) == pytest.approx(52.256)
    assert calibrated.filled_cores(1, 0.5, 132) == 0.5
    assert packed[0].launch_s == pytest.approx(41e-6)


def test_one_request_of_a_short_context_by_hand():
    """Llama3-8B on an H100 by vLLM's first TurboQuant kernels: one layer of one step, written out."""
    batch, n_in, group = 1, 500, 4
    found = point(H100, "llama3-8b", "turboquant_4bit_nc@vllm-0.20", batch=batch, input_tokens=n_in, output_tokens=1)
    design, terms = found.design, found.stack.attention_terms()
    s = n_in + 1
    own = [g for g in design.tensors if g.is_packed]
    elements = sum(g.n_elements * s for g in own)
    assert elements == 2 * 8 * 128 * s
    rate = 4.786 * 1.98e9 / group
    core = elements / rate / (8 * 4 * 1.633)
    n_bytes = sum(g.packed_bits * s for g in own) / 8 / design.model.den + 2 * 32 * 256
    memory = n_bytes / (terms["memory_frac"] * 3.35e12)
    unit = terms["unit_s"] * 8 / 132
    compute = s * 2 * 32 * 256 / (0.6 * H100.peak_flops.si)
    fixed = 41e-6 + terms["split_s"]
    packed_layers = next(k for k in design.kernels if k.cores_per_unit).n_layers
    assert engine.evaluate(found)["implementation"] == "vllm-0.20"
    expected = packed_layers * (fixed + math.sqrt(memory**2 + unit**2 + compute**2 + core**2))
    # the first and last two layers are kept in 16 bits
    plain = [k for k in design.kernels if not k.cores_per_unit]
    for kernel in plain:
        full = (4 * 8 * 128 * s + 2 * 32 * 256) / (terms["memory_frac"] * 3.35e12)
        slow = 2 * 8 * 128 * s / terms["core_rate_per_s"] if terms["core_rate_per_s"] else 0.0
        slow /= calibrated.active_cores(s, 8, 132)
        fixed = terms["launch_s"] + terms["split_s"]
        expected += kernel.n_layers * (fixed + math.sqrt(full**2 + unit**2 + compute**2 + slow**2))
    results = engine.evaluate(found)
    assert results["attention_s"] + results["dequantize_s"] == pytest.approx(expected, rel=1e-9)


def test_a_kernel_s_own_share_of_the_bandwidth():
    qserve = catalog.implementations_of("qserve")["omniserve"]
    number = qserve.elements_per_cycle.model_copy(update={"value": 0.4, "low": 0.4, "high": 0.4, "unit": "1"})
    base = point(A100, "llama2-7b", "qserve", batch=64)
    groups = tuple(
        replace(g, implementation=qserve.model_copy(update={"memory_frac": number})) for g in base.plan.groups
    )
    found, _ = kernels.kernels_of(A100, replace(base.plan, groups=groups), base.paths, base.stack, None)
    assert found[0].memory_frac == 0.4
    assert base.design.kernels[0].memory_frac == base.stack.attention_terms()["memory_frac"]


# both ends


@given(
    st.sampled_from(
        [
            "qserve",
            "kivi",
            "fp8",
            "turboquant_4bit_nc",
            "turboquant_4bit_nc@vllm-53060",
            "int8",
            "tender",
            "kivi:bits=4,group=128@bitdecoding",
        ]
    ),
    st.sampled_from(["a100-80gb", "h100", "l40s"]),
    st.sampled_from(["llama2-7b", "llama3-8b"]),
    st.sampled_from([1, 8, 40]),
    st.sampled_from([100, 3000]),
)
def test_a_design_lies_between_both_ends(quantizer, device, model, batch, n_in):
    work = Workload(batch=batch, input_tokens=n_in, output_tokens=32)
    kv, own = build(model, quantizer), catalog.device(device)
    usual = engine.evaluate(Point(own, kv, work))
    slow, fast = (engine.evaluate(Point(own, kv, implementations.at_end(work, end))) for end in ENDS)
    if usual["feasible"]:
        assert slow["decode_step_s"] >= usual["decode_step_s"] * (1 - 1e-12)
        assert fast["decode_step_s"] <= usual["decode_step_s"] * (1 + 1e-12)
    paths = {each["key_dequant_path"] for each in (usual, slow, fast)}
    assert len(paths) == 1
    assert slow["kv_bytes"] == fast["kv_bytes"] == usual["kv_bytes"]


def test_an_end_keeps_what_the_device_s_file_says_of_the_path():
    own = A100.model_copy(update={"dequant_path": {"kivi": "materialised"}})
    kv, work = build("llama2-7b", "kivi"), Workload()
    for asked in (work, *(implementations.at_end(work, end) for end in ENDS)):
        assert engine.evaluate(Point(own, kv, asked))["key_dequant_path"] == "materialised"
    # an implementation that is asked for by name brings its own
    named = engine.evaluate(Point(own, kv, replace(work, implementation="kivi-released")))
    assert named["key_dequant_path"] == "fused"
    asked = replace(work, implementation="kivi-released", dequant_path="materialised")
    assert engine.evaluate(Point(A100, kv, asked))["key_dequant_path"] == "materialised"


def test_a_file_s_default_holds_for_all_that_it_does_not_name():
    everything = A100.model_copy(update={"dequant_path": {"default": "materialised"}})
    assert (
        engine.evaluate(Point(everything, build("llama2-7b", "kivi"), Workload()))["key_dequant_path"] == "materialised"
    )
    fused = A100.model_copy(update={"dequant_path": {"default": "fused"}})
    assert engine.evaluate(Point(fused, build("llama2-7b", "nqkv"), Workload()))["key_dequant_path"] == "fused"
    silent = A100.model_copy(update={"dequant_path": {}})
    assert engine.evaluate(Point(silent, build("llama2-7b", "nqkv"), Workload()))["key_dequant_path"] == "materialised"


def test_unpacking_per_query_head_costs_a_group_and_nothing_without_one():
    for model, n_shared in (("llama2-7b", 1), ("llama3-8b", 4)):
        per_query, per_kv = (
            rate_of(point(A100, model, "qserve", implementation=f"{name}:elements_per_cycle=8"))
            for name in ("omniserve", "turbomind")
        )
        assert per_kv == pytest.approx(n_shared * per_query)


# what is said of them


def test_results_name_what_ran_and_which_numbers_are_assumed():
    for quantizer, name, marks in (
        ("qserve", "omniserve", set()),
        ("kivi", "kivi-released", {"implementation"}),
        ("tender", "generic", {"no_kernel"}),
        ("fp16", None, set()),
    ):
        results = engine.evaluate(point(A100, "llama3-8b", quantizer))
        assert results["implementation"] == name
        assert {"implementation", "no_kernel"} & set(results["assumptions"]) == marks
    mixed = Point(A100, build("llama3-8b", "kivi", "qserve"), Workload())
    assert engine.evaluate(mixed)["implementation"] == "kivi-released, omniserve"
    assert "6 element/cycle (1 to 20, assumed)" in reason(point(A100, "llama3-8b", "kivi"), "implementation")
    assert "no kernel of it is known for A100-80GB" in reason(point(A100, "llama3-8b", "tender"), "no_kernel")


def test_an_explanation_names_the_rate_that_ran():
    terms = {str(term) for term in explained(point(A100, "llama3-8b", "qserve"))}
    assert any("omniserve 3.648e+09 a core (measured, once for each of 4 query heads)" in term for term in terms)


def test_kernels_that_have_to_be_known():
    assert engine.evaluate(point(A100, "llama3-8b", "qserve", strict_kernels=True))["feasible"]
    assert engine.evaluate(point(A100, "llama3-8b", "fp16", strict_kernels=True))["feasible"]
    for device, quantizer, why in (
        (
            A100,
            "tender",
            "no kernel of tender is known for A100-80GB (sm_80): tender runs on tender: take another quantizer",
        ),
        (
            catalog.device("b200"),
            "qserve",
            "for B200 (sm_100): omniserve runs on sm_80, sm_86, sm_89, sm_90; turbomind",
        ),
        (catalog.device("oaken-hbm"), "qserve", "no kernel of qserve is known for Oaken-HBM (oaken): "),
    ):
        assert engine.evaluate(point(device, "llama2-7b", quantizer))["implementation"] in ("generic", None)
        with pytest.raises(InputError) as told:
            _ = engine.evaluate(point(device, "llama2-7b", quantizer, strict_kernels=True))
        assert why in str(told.value)


def ranged(kv, **asked) -> list[str]:
    one = Point(A100, kv, Workload(**asked))
    return [own.name for own in implementations.ranged(one.plan, one.work, one.stack)]


def test_a_quantizer_names_its_own_and_a_workload_moves_its_ends():
    kv = build("llama3-8b", "qserve@turbomind")
    assert engine.evaluate(Point(A100, kv, Workload()))["implementation"] == "turbomind"
    ends = [engine.evaluate(Point(A100, kv, implementations.at_end(Workload(), end)))["implementation"] for end in ENDS]
    assert ends == ["turbomind:slowest", "turbomind:fastest"]
    assert engine.evaluate(Point(A100, kv, Workload(implementation="omniserve")))["implementation"] == "omniserve"
    assert ranged(kv) == ["turbomind"]
    assert ranged(kv, model_kind="ideal") == []
    assert ranged(kv, implementation=":slowest") == []
    assert ranged(build("llama3-8b", "fp16")) == []


def test_the_range_of_kernels_makes_a_gain_less_sure():
    """KIVI beside FP16 on an A100: the gain at both ends, evaluated here one by one, lies inside its interval."""
    work = Workload(batch=16, admission="paged")
    one, other = (Case(A100, build("llama2-13b", name), work) for name in ("kivi", "fp16"))
    found = Comparison().gain(one, other)
    base = engine.evaluate(Point(*other))["throughput_tokens_per_s"]
    ends = []
    for end in ENDS:
        moved = one._replace(work=implementations.at_end(work, end))
        ends.append(engine.evaluate(Point(*moved))["throughput_tokens_per_s"] / base)
    assert ends[0] < found.ratio < ends[1]
    assert math.log(found.high / found.low) >= math.log(ends[1] / ends[0]) * (1 - 1e-9)


# sweeps


def test_hugging_face_copies_its_cache_in_every_step():
    """Llama2-7B, 4 requests of 1,024 tokens and 512 more: each step reads what is stored and writes it with a token
    more, 524,288 B a token; only where that code is named."""
    plain, copied = (
        engine.evaluate(
            point(A100, "llama2-7b", name, batch=4, input_tokens=1024, output_tokens=512, model_kind="ideal")
        )
        for name in ("fp16", "fp16@transformers-cache")
    )
    assert plain["quantize_s"] == 0
    tokens = sum(n - 1 + n for n in range(1025, 1537)) / 512
    assert copied["quantize_s"] == pytest.approx(4 * 524_288 * tokens / A100.memory_bandwidth.si)
    assert copied["implementation"] == "transformers-cache"
