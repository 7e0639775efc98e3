"""The calibrated model in design points: against a token loop in plain Python, and the limits that must hold."""

import math
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.core.errors import InputError
from dse.model import engine, kernels
from dse.model.formulas import generation
from dse.model.kv_bytes import read_tokens, reading_of, stored_tokens
from dse.model.point import Point
from dse.report import listing
from dse.specs import catalog
from dse.specs import device_and_model as specs
from dse.specs.device_and_model import StackSpec
from dse.specs.implementation import Implementation
from dse.specs.quantity import Ranged
from dse.specs.workload import Workload
from factories import CHUNKED_PLANS, Sequence, build, device, layer, model

TOKENS = [
    "full",
    "full",
    "window:tokens=150",
    "streaming:window=40",
    "snapkv:share=0.5",
    "h2o:heavy=0.3,recent=0.4",
    "sparse:k=140",
    "sparse:k=60,index_heads=900",
    "constant:c=131",
]
LINES = st.tuples(st.sampled_from([0.0, 1e-7, 3e-5, 1e-3, 0.2]), st.sampled_from([0.0, 1e-9, 2e-7, 1e-5, 1e-3]))


@given(LINES, LINES, LINES, LINES, st.integers(1, 2000))
def test_sum_of_root_is_the_loop(a, b, c, d, n_steps):
    found = generation.sum_of_root(a, b, c, d, n_steps)
    loop = math.fsum(math.sqrt(sum((first + slope * i) ** 2 for first, slope in (a, b, c, d))) for i in range(n_steps))
    assert found == pytest.approx(loop, rel=1e-11)


def number(value, unit):
    return specs.Quantity(value=value, unit=unit, source="test", kind="measured")


def stack(core=None, copy=None, kv_core=None):
    fit = {"n_points": 9, "held_out_error": 0.1, "fitted_on": "test"}
    rate = {"core_rate": number(core, "element/s")} if core else {}
    attention = {
        **fit,
        "launch": number(12.0, "us"),
        "split": number(6.0, "us"),
        "per_unit": number(4.0, "us"),
        "memory_frac": number(0.8, "1"),
        **rate,
        **({"layout_copy": number(5.0, "us")} if copy else {}),
    }
    packed = {**fit, "launch": number(15.0, "us"), "core_rate": number(kv_core, "element/s")} if kv_core else None
    return StackSpec(
        attention=attention,
        gemm={**fit, "launch": number(5.0, "us"), "memory_frac": number(0.75, "1"), "flops_frac": number(0.7, "1")},
        kv={"int4": packed, "int2": packed} if packed else {},
    )


def on(bandwidth=2e10, peak=4e11, n_cores=12, fused=2e9, **fit):
    base = device(bandwidth=bandwidth, peak=peak, fused=fused, capacity=10**11)
    return base.model_copy(update={"n_cores": number(n_cores, "core"), "stacks": {"toy": stack(**fit)}})


#: cycles a second where a device's file has none
CLOCK = 1.7e9


def implementation(elements=None, cores=None, frac=None, launch_us=None, per="kv_head", name="toy"):
    """Kernels with these numbers, or none of their own."""

    def ranged(value, unit):
        return Ranged(value=value, low=value, high=value, unit=unit, source="test", kind="measured") if value else None

    return Implementation(
        name=name,
        title="toy",
        methods=("kivi",),
        release="1",
        unpacked_per=per,
        arithmetic="",
        new_token="",
        source="test",
        elements_per_cycle=ranged(elements, "element/cycle"),
        cores_per_head=ranged(cores, "core"),
        memory_frac=ranged(frac, "1"),
        launch=ranged(launch_us, "us"),
    )


RUNS = st.builds(
    implementation,
    st.sampled_from([None, 0.3, 8.0]),
    st.sampled_from([None, 0.7, 3.0]),
    st.sampled_from([None, 0.5, 0.9]),
    st.sampled_from([None, 2.0, 41.0]),
    st.sampled_from(["kv_head", "query_head"]),
)


def layer_seconds(dev, fit, kv, counted, index, n, s, runs):
    """One layer at a context of s tokens, written again: (as stored, with 16-bit elements).

    `runs`: what runs packed keys, and packed values.
    """
    shape, limits = kv.layers[index][0], counted.limits
    groups = [g for g in counted.design.tensors if g.shape == index]
    own = [runs[g.side] if g.is_packed else None for g in groups]
    known = [one for one in own if one]
    n_shared = max(kv.model.n_q_heads // shape.n_kv_heads, 1)
    unpackings = [n_shared if one and one.unpacked_per == "query_head" else 1 for one in own]
    keys, cores, attention = groups[0], dev.n_cores.si, fit.attention
    kept = read_tokens(keys, limits, s)  # held against loops in test_tokens.py, as what follows in test_plan.py
    units = n * shape.n_kv_heads
    n_bytes = sum(reading_of(g, limits, s).bits for g in groups)
    reached = min((one.memory_frac.si for one in known if one.memory_frac), default=attention.memory_frac.si)
    memory = (n * float(n_bytes) / (8 * kv.den) + 2 * n * kv.model.n_q_heads * shape.score_dim) / (
        reached * dev.memory_bandwidth.si
    )
    scored = stored_tokens(keys, limits, s) * keys.index_flops
    recomputed = kept * sum(g.layout.read_flops for g in kv.groups if g.shape_index == index)
    flops = n * (kept * 2 * kv.model.n_q_heads * shape.score_dim + recomputed + scored) / (0.6 * dev.peak_flops.si)
    unit = attention.per_unit.si * units / cores
    active = min(cores, units * max(1.0, kept / 128))
    if known and all(one.cores_per_head for one in known):
        filled = min(one.cores_per_head.si * times for one, times in zip(own, unpackings, strict=True) if one)
        active = min(cores, units * filled)
    slow = 1 / attention.core_rate.si if attention.core_rate else 0.0
    packs = fit.kv and any(not one.elements_per_cycle for one in known)
    starts = [one.launch.si for one in known if one.launch]
    fixed = max(starts, default=(fit.kv["int4"] if packs else attention).launch.si)
    fixed += attention.split.si if kept > 128 else 0.0
    if attention.layout_copy and kv.model.n_q_heads > shape.n_kv_heads and n > 1:
        fixed += attention.layout_copy.si
    stored = plain = 0.0
    for g, one, times in zip(groups, own, unpackings, strict=True):
        packed = reading_of(g, limits, s).packed
        rate = fit.kv["int4"].core_rate.si if fit.kv else dev.fused_rate.si / cores
        if one and one.elements_per_cycle:
            rate = one.elements_per_cycle.si * CLOCK / times
        stored += n * g.n_elements * (packed * max(1 / rate, slow) + (kept - packed) * slow)
        plain += n * g.n_elements * kept * slow
    return tuple(fixed + math.sqrt(memory**2 + unit**2 + flops**2 + (core / active) ** 2) for core in (stored, plain))


@given(
    CHUNKED_PLANS,
    st.integers(1, 9),
    st.integers(1, 300),
    st.integers(1, 200),
    st.sampled_from([None, 1e7, 2e8]),
    st.sampled_from([None, 3e7]),
    st.booleans(),
    st.sampled_from(TOKENS),
    st.tuples(RUNS, RUNS),
)
def test_a_generation_is_the_token_loop_within_1e_9(kv, batch, n_in, n_out, core, kv_core, copy, tokens, runs):
    names = [kv.key_quantizer.family.name, kv.value_quantizer.family.name]
    runs = (runs[0], runs[0]) if names[0] == names[1] else runs
    wide = {kernels.kv_code(g) for g in kv.groups} & {"fp8", "int8"}  # the toy stack has kernels of fewer bits
    dev = on(core=core, kv_core=None if wide else kv_core, copy=copy)
    work = Workload(batch, n_in, n_out, tokens=tokens, dequant_path="fused")
    by_name = dict(zip(names, runs, strict=True))
    with mock.patch.object(catalog, "implementation", lambda device, family, *asked: by_name[family]):
        asked = Point(dev, kv, work)
        result, counted = engine.evaluate(asked), Sequence(asked.design)
    assert (result["model_kind"], result["stack"]) == ("calibrated", "toy")
    n = result["running_batch"]
    stored = plain = 0.0
    for s in range(n_in + 1, n_in + n_out + 1):
        for index, (_, n_layers) in enumerate(kv.layers):
            pair = layer_seconds(dev, dev.stacks["toy"], kv, counted, index, n, s, runs)
            stored, plain = stored + n_layers * pair[0], plain + n_layers * pair[1]
    assert result["attention_s"] == pytest.approx(plain / n_out, rel=1e-9)
    sinks = n * asked.made.score_bytes / n_out / (0.8 * 2e10)
    assert result["attention_s"] + result["dequantize_s"] == pytest.approx(stored / n_out + sinks, rel=1e-9)


def test_matrix_products_by_hand():
    kv = build(model(layer(n_layers=3)), "fp16")
    result = engine.evaluate(Point(on(), kv, Workload(4, 10, 10)))
    compute, memory = 2 * 1000 * 4 / (0.7 * 4e11), 2000 / (0.75 * 2e10)
    assert result["linear_s"] == pytest.approx(13 * 5e-6 + math.hypot(compute, memory), rel=1e-12)
    assert result["linear_bound"] == "latency"


def test_ideal_calibrated_and_stacks_by_name():
    a100, kv = catalog.device("a100-80gb"), build("llama2-7b", "fp16")
    kinds = {
        (kind, name): engine.evaluate(Point(a100, kv, Workload(64, model_kind=kind, stack=name)))
        for kind, name in (("auto", None), ("ideal", None), ("calibrated", "sglang"))
    }
    assert kinds["auto", None]["stack"] == "vllm"
    assert kinds["ideal", None]["stack"] is None
    assert kinds["calibrated", "sglang"]["stack"] == "sglang"
    assert kinds["ideal", None]["decode_step_s"] < kinds["auto", None]["decode_step_s"]
    with pytest.raises(InputError, match="stack = 'tgi': A100-80GB is calibrated for vllm, sglang"):
        engine.evaluate(Point(a100, kv, Workload(stack="tgi")))
    with pytest.raises(InputError, match="Oaken-HBM has no calibrated parameters"):
        engine.evaluate(Point(catalog.device("oaken-hbm"), kv, Workload(model_kind="calibrated")))
    with pytest.raises(InputError, match="the ideal model has no software stack"):
        Workload(model_kind="ideal", stack="vllm")


def test_the_same_chip_runs_the_same_kernels_and_says_so():
    two = catalog.device("2xa100-80gb")
    assert two.stacks == catalog.device("a100-80gb").stacks
    result = engine.evaluate(Point(two, build("llama2-7b", "fp16"), Workload(64)))
    assert result["model_kind"] == "calibrated"
    assert "stacks_of" in result["assumptions"]


def test_a_gpu_known_by_its_data_sheet_runs_by_default_parameters_when_asked():
    own = on().model_copy(update={"stacks": {}})
    kv = build("llama2-7b", "fp16")
    assert engine.evaluate(Point(own, kv, Workload()))["model_kind"] == "estimated"
    result = engine.evaluate(Point(own, kv, Workload(model_kind="calibrated")))
    assert (result["model_kind"], result["stack"]) == ("calibrated", "vllm")
    assert "stacks_of" in result["assumptions"]


def test_a_file_with_kernels_of_another_device_names_it_instead_of_listing_them(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        'name = "Own"\nmemory_capacity = "80 GB"\nmemory_bandwidth = "3 TB/s"\npeak_flops = "900 TFLOP/s"\n'
        'n_cores = 100\nstacks_of = "l40s"\n'
    )
    text = listing.check(str(path))
    assert "stacks_of" in text
    assert "dse show l40s" in text
    assert "stacks.vllm" not in text
    assert "stacks.vllm" in listing.check("l40s")


def test_stacks_of_an_unknown_device_are_refused(tmp_path):
    text = (
        'name = "own"\nmemory_capacity = "80 GB"\nmemory_bandwidth = "2 TB/s"\npeak_flops = "300 TFLOP/s"\n'
        'n_cores = 100\nstacks_of = "a100"\n'
    )
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"own.toml:6: stacks_of = 'a100': must be one of a100-80gb"):
        catalog.device(str(path))
    path.write_text(text.replace('"a100"', '"H100"'))
    assert catalog.device(str(path)).stacks == catalog.device("h100").stacks


def test_a_fit_without_a_ceiling_unpacks_for_nothing():
    b200 = catalog.device("b200")
    assert b200.stacks["vllm"].kv["fp8"].core_rate is None
    fp16, fp8 = (
        engine.evaluate(Point(b200, build("llama3.1-8b", name), Workload(32, 4096, 128))) for name in ("fp16", "fp8")
    )
    assert fp8["dequantize_s"] == fp8["dequantize_busy_s"] == 0
    assert fp8["attention_s"] < 0.6 * fp16["attention_s"]
    h100 = catalog.device("h100")
    result = engine.evaluate(Point(h100, build("llama2-7b", "fp8"), Workload(32, 4000, 100)))
    rate = h100.stacks["vllm"].kv["fp8"].core_rate.si * 132
    elements = 32 * 2 * 32 * 4096 * (4000 + 101 / 2)
    assert result["dequantize_busy_s"] == pytest.approx(elements / rate, rel=1e-9)
    assert "fused_rate" in result["assumptions"]  # packing new tokens takes it


@pytest.mark.parametrize("batch", [1, 8])
def test_a_memory_that_computes_reads_keys_and_values_inside_it(batch):
    """Llama2-7B, 1,024 tokens in, 1 out: 524,288 B of each of 1,025 tokens; weights and all else cross the bus."""
    bus = device(bandwidth=2e12, peak=312e12)
    inside = bus.model_copy(
        update={"pim_bandwidth": specs.Quantity(value=18e12, unit="B/s", source="test", kind="assumed")}
    )
    kv, work = build("llama2-7b", "fp16"), Workload(batch, 1024, 1, memory="paper", model_kind="ideal")
    plain, found = (engine.evaluate(Point(one, kv, work)) for one in (bus, inside))
    kv_bytes = batch * 1025 * 524_288
    assert found["attention_s"] == pytest.approx(kv_bytes / 18e12)
    assert plain["attention_s"] == pytest.approx(kv_bytes / 2e12)
    assert found["linear_s"] == plain["linear_s"]
    runs = [Point(one, kv, work).largest_wave for one in (bus, inside)]
    assert runs[0].attention_bytes == pytest.approx(kv_bytes)
    assert runs[1].attention_bytes == pytest.approx(kv_bytes)


def test_a_memory_that_computes_stands_beside_no_fitted_stack():
    fields = catalog.device("h100").model_dump() | {"pim_bandwidth": catalog.device("h100").memory_bandwidth}
    assert specs.HardwareSpec(**fields).problems()[0][0] == "pim_bandwidth"
