"""The assumed numbers named behind a result are those that move it: found by varying every number of a device."""

import functools
import math

import pytest

from dse import quantizers
from dse.model import engine
from dse.model import kv_layout as plan
from dse.model.point import Point
from dse.model.results import RESULT_UNITS, RESULTS, assumed_behind, assumed_title
from dse.questions import common
from dse.specs import catalog
from dse.specs.quantity import Quantity
from dse.specs.workload import Workload

#: numbers of which a device may have 1 and more, and pages that must hold whole bursts
WHOLE = (
    "memory_capacity",
    "reported_memory",
    "runtime_overhead",
    "n_cores",
    "token_cores",
    "kv_page",
    "kv_burst",
    "array_rows",
)
FACTORS = (1e-3, 1 / 64, 0.25, 0.5, 0.9, 1.1, 2, 4, 64, 1e3)
SYSTEMS = {
    "a static batch of a server": (
        "h100",
        "llama3-8b",
        "fp16",
        {"batch": 900, "batching": "static", "admission": "reserve", "memory": "server"},
    ),
    "fused, ideal": ("a100-80gb", "llama2-7b", "kivi", {"batch": 64, "model_kind": "ideal"}),
    "engine and pages": ("oaken-hbm", "llama2-7b", "oaken", {"batch": 64}),
    "engine and pages, all memory in use": ("oaken-hbm", "llama2-7b", "oaken", {"batch": 300}),
    "engine and pages, nothing yet": ("oaken-hbm", "llama2-7b", "oaken", {"batch": 8, "input_tokens": 1}),
    "fused, 8-bit products": (
        "a100-80gb",
        "llama2-7b",
        "kivi",
        {"batch": 8, "activation_bits": 8, "weights_bits": 8, "model_kind": "ideal"},
    ),
    "copies, calibrated, 8-bit products": (
        "h100",
        "llama3-8b",
        "nqkv",
        {"batch": 64, "activation_bits": 8, "weights_bits": 8},
    ),
    "fused, calibrated": ("h100", "llama2-7b", "kivi", {"batch": 2}),
    "fused, many requests": ("a100-80gb", "llama2-7b", "kvquant", {"batch": 48, "admission": "paged"}),
    "fused, by its cores": ("h100 unrated", "llama2-7b", "kivi", {"batch": 64, "model_kind": "ideal"}),
    "just one that fits": ("oaken-hbm", "llama2-7b", "oaken", {"batch": 2, "input_tokens": 395_000}),
    "nothing packed, paged": ("h100", "llama3-8b", "fp16", {"batch": 400, "admission": "paged"}),
    "products in FP4": ("b200", "llama3-8b", "fp16", {"batch": 8, "weights": "nvfp4"}),
    "products in FP8": ("b200", "llama3-8b", "fp16", {"batch": 8, "weights": "fp8"}),
    "experts in FP4, calibrated": ("b200", "gpt-oss-20b", "fp8", {"batch": 8, "weights": "mxfp4-experts"}),
    "a format in eight bits, ideal": (
        "h100",
        "llama3-8b",
        "fp16",
        {"batch": 64, "weights": "fp8-block", "model_kind": "ideal"},
    ),
    "latent heads and another stack's experts": (
        "b200",
        "deepseek-v3.2",
        "fp16",
        {"batch": 8, "weights": "nvfp4", "tp": 8, "stack": "trtllm@0.0"},
    ),
    "no fit": ("h100", "llama2-70b", "fp16", {"batch": 16}),
    "a server that reserves": ("h100", "llama3-8b", "fp16", {"batch": 600, "admission": "reserve"}),
    "requests that wait": ("h100", "llama2-7b", "kivi", {"batch": 2000}),
    "requests that wait for a memory that computes": ("attacc-a100", "llama2-7b", "kivi", {"batch": 2000}),
    "a share by memory": ("h100", "llama3-8b", "fp16", {"batch": 16, "stack": "sglang"}),
    "two devices": ("a100-40gb", "llama2-7b", "fp16", {"batch": 64, "tp": 2}),
    "a memory that computes": ("attacc-a100", "llama2-7b", "kivi", {"batch": 64}),
    "a memory that computes, and an engine": ("oaken-hbm:pim_bandwidth=2.1 TB/s", "llama2-7b", "oaken", {"batch": 64}),
    "an engine that packs as it unpacks": (
        "oaken-hbm:engine_rate=1 Telement/s unrated",
        "llama2-7b",
        "oaken",
        {"batch": 300},
    ),
    "systolic arrays": ("tender-a100:board_power=400 W", "llama2-7b", "tender", {"batch": 64}),
    "systolic arrays, requests that wait": (
        "tender-a100:board_power=400 W,energy_per_byte=48 pJ/B,energy_per_flop=0.3 pJ/FLOP,idle_power=30 W",
        "llama2-7b",
        "tender",
        {"batch": 600},
    ),
    "without a cache": ("a100-80gb", "llama2-7b", "fp16", {"batch": 4, "kv_cache": False, "model_kind": "ideal"}),
}
#: results that only tell designs apart, or are given
NAMES = ("device", "model", "quantizer", "assumptions")
#: what a perfect machine, kernels of another device or stack, an untimed choice are: no numbers that could be varied
PSEUDO = {
    "peak_rates",
    "reached_rates",
    "stacks_of",
    "eight_bit_kernels",
    "token_policy",
    "exchanges",
    "nearest_format",
    "nearest_kernels",
    "nearest_release",
    "server_memory",
    "implementation",
    "no_kernel",
    "sparse_prompts",
}


def moved(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return not math.isclose(a, b, rel_tol=1e-12)
    return a != b


@functools.cache
def movers(system):
    """The point with every number of its device assumed; by result, the numbers that change it when varied alone."""
    name, model, quantizer, work = SYSTEMS[system]
    device = catalog.device(name.removesuffix(" unrated"))
    if name.endswith(" unrated"):  # of a chip whose kernels nobody measured, by its cores
        device = device.model_copy(update={"stacks": {}, "quantize_rate": None})
    if name != device.name.lower():
        device = device.model_copy(update={"fused_rate": None})
    every = {
        n: q.model_copy(update={"kind": "assumed"})
        for n in type(device).model_fields
        if n != "n_devices" and isinstance(q := getattr(device, n), Quantity)
    }
    for field, si, unit in (("runtime_overhead", 1e9, "B"), ("usd_per_hour", 1.0, "USD/h")):
        every[field] = Quantity(value=si, unit=unit, source="test", kind="assumed")
    device = device.model_copy(update=every)
    spec = quantizers.parse(quantizer)
    kv, asked = (
        plan.build(catalog.model(model), spec, spec),
        Workload(**{"input_tokens": 1024, "output_tokens": 512, **work}),
    )
    base = engine.evaluate(Point(device, kv, asked))
    found = {result: set() for result in RESULT_UNITS}
    for field in {**every, "fused_rate": None}:
        if field == "usable_frac" and base["memory"] == "server":
            continue  # of a server the workload says the share
        for factor in FACTORS:
            value = (getattr(device, field) or device.rate("fused")).si * factor
            if field in WHOLE:
                value = max(int(value), 1)
            if field == "kv_page":
                value = max(value // 64 * 64, 64)
            varied = engine.evaluate(
                Point(
                    common.with_number(device, field, min(value, 1.0) if field == "usable_frac" else value, "test"),
                    kv,
                    asked,
                )
            )
            for result in RESULT_UNITS:
                if result not in NAMES and moved(base[result], varied[result]):
                    found[result].add(field)
    return base, found


@pytest.mark.parametrize("system", SYSTEMS)
def test_whatever_moves_a_result_is_named(system):
    base, found = movers(system)
    for result, fields in found.items():
        named = set(assumed_behind(result, base["assumptions"], base))
        assert fields <= named, (result, fields - named)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("measure", common.MEASURES)
def test_what_a_question_names_moves_its_answer(system, measure):
    base, found = movers(system)
    column = common.MEASURES[measure].column
    if base[column] is not None:
        named = set(assumed_behind(column, base["assumptions"], base))
        assert named - PSEUDO == found[column]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_point_names_what_moves_any_of_its_results(system):
    base, found = movers(system)
    if base["feasible"]:
        assert set(base["assumptions"]) - PSEUDO == set().union(*found.values())


def test_nothing_is_named_that_moves_no_result_anywhere():
    """A larger term can hide a number in one system; in none of them it would be wrong to name it."""
    seen = {result: set() for result in RESULT_UNITS}
    for system in SYSTEMS:
        for result, fields in movers(system)[1].items():
            seen[result] |= fields
    seen["bound"].add("kv_burst")  # one more write of a burst hardly ever is what decides
    for result, fields in ((r.name, r.reads) for r in RESULTS.values() if r.reads):
        assert set(fields) - PSEUDO == seen[result], result
    assert {r.name for r in RESULTS.values() if r.reads} < set(RESULT_UNITS)


def test_energy_and_cost_name_their_own():
    """As shipped: the energy of the board needs no price, the cost no energy, and both the rates behind them."""
    one = common.design("a100-80gb", "llama2-7b", "kivi")
    result = one.evaluate(Workload(batch=64))
    times = {assumed_title(name) for name in ("fused_rate", "kernel_launch", "server_memory", "implementation")}
    for measure, own in (("throughput", set()), ("energy", set()), ("cost", {"rent of the device"})):
        text = common.assumption_text([result], common.MEASURES[measure])
        named = set(text.removeprefix("Rests on assumed numbers: ").removesuffix(".").split(", "))
        assert named - {assumed_title("reached_rates"), assumed_title("stacks_of")} == times | own


def test_assumed_numbers_are_said_in_words():
    names = [*PSEUDO, "fused_rate", "kernel_launch", "usd_per_hour", "own_server"]
    titles = [assumed_title(name) for name in names]
    assert len({*titles}) == len(names)
    assert not [title for title in titles if "_" in title or "," in title]
