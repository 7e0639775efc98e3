"""What an explanation lists makes the number that it explains, whatever layers a model has."""

import math
import re

import pytest

from cases import each
from dse.core.errors import InputError
from dse.model import engine, kv_bytes
from dse.model.explain import explained
from dse.model.point import Point
from dse.report.present import bit_ledger
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build, layer, model, point_of

#: models whose layers differ, and one whose layers do not
MIXED = [
    "deepseek-v4-flash",
    "deepseek-v4-pro",
    "gemma-2-9b",
    "gemma-4-31b",
    "glm-5.2",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "kimi-k3",
    "llama2-7b",
    "llama4-scout",
    "mimo-v2-flash",
    "minimax-m3",
    "nemotron-3-nano-30b-a3b",
    "qwen3.5-27b",
    "step-3.7-flash",
]
EXPLAINED = ("kv_bytes_per_token", "kv_bytes_per_token_beyond_windows", "state_bytes")


def of_all(model_name, quantizers=("fp16", "fp8", "nvfp4", "kivi", "sinkq", "oaken", "kivi:bits=4,group=32")):
    """Plans of a model under each quantizer that its layers allow."""
    for quantizer in quantizers:
        try:
            yield build(model_name, quantizer)
        except InputError:  # heads that its groups do not divide
            continue


def summed(step):
    """What the terms of a step make: each says of how many layers it counts."""
    named = ((re.fullmatch(r"each_of_(\d+)_.*_bytes", name), value) for name, value in step.terms.items())
    return sum(int(found[1]) * value for found, value in named if found) / step.terms.get("n_stages", 1)


def differs(terms, value):
    return not math.isclose(terms, value or 0, rel_tol=1e-9)


@each("name", MIXED)
def test_terms_of_layers_make_the_stated_bytes(name):
    long = {"batch": 8, "input_tokens": 32768, "admission": "paged"}
    for work, plans in (({"batch": 8}, of_all(name)), (long, of_all(name, ("fp16", "sinkq")))):
        for kv in plans:
            steps = explained(Point(catalog.device("b300"), kv, Workload(**work)))[1]
            wrong = {one: steps[one] for one in EXPLAINED if differs(summed(steps[one]), steps[one].value)}
            assert not wrong


@pytest.mark.parametrize("work", [{"tp": 4}, {"pp": 2}, {"tokens": "window:tokens=256"}])
@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3.5-27b"])
def test_so_they_do_on_several_devices_and_under_a_policy(name, work):
    asked = Workload(batch=8, **work)
    steps = explained(Point(catalog.device("b300"), build(name, "fp16"), asked))[1]
    assert not {one: steps[one] for one in EXPLAINED if differs(summed(steps[one]), steps[one].value)}


def test_terms_say_which_layers_they_are_of():
    def terms(name, quantizer, asked="kv_bytes_per_token"):
        point = Point(catalog.device("b300"), build(name, quantizer), Workload(batch=8))
        return [term for term in explained(point)[1][asked].terms if term.startswith("each_of_")]

    assert terms("gpt-oss-20b", "fp8") == [
        "each_of_12_window_128_layers_key_bytes",
        "each_of_12_window_128_layers_value_bytes",
        "each_of_12_full_layers_key_bytes",
        "each_of_12_full_layers_value_bytes",
    ]
    # the first two layers keep no sinks
    assert terms("llama2-7b", "sinkq")[::2] == [
        "each_of_2_first_full_layers_key_bytes",
        "each_of_30_full_layers_key_bytes",
    ]
    assert terms("deepseek-v4-pro", "fp8", "state_bytes") == [
        "each_of_31_hca_layers_state_bytes",
        "each_of_30_csa_layers_state_bytes",
    ]
    assert terms("qwen3.5-27b", "fp8", "state_bytes") == ["each_of_48_gdn_layers_state_bytes"]
    assert terms("qwen3.5-27b", "fp8", "stored_tokens") == []  # a constant state is no window


def test_layers_of_one_kind_are_told_apart_by_their_heads():
    kv = build(model(layer(4, n_kv_heads=2), layer(2, n_kv_heads=1)), "fp16")
    step = explained(point_of(kv))[1]["kv_bytes_per_token"]
    assert [name for name in step.terms if name.endswith("key_bytes")] == [
        "each_of_2_with_2_heads_of_24_first_full_layers_key_bytes",
        "each_of_2_with_2_heads_of_24_full_layers_key_bytes",
        "each_of_2_with_1_heads_of_24_full_layers_key_bytes",
    ]
    assert summed(step) == step.value == (4 * 2 + 2 * 1) * 24 * 2 * 2


@each("name", MIXED)
def test_parts_of_the_bits_make_the_whole(name):
    for kv in of_all(name):
        for n_in in (300, 8192):
            point = point_of(kv, n_in=n_in, page=16)
            limits, n = point.made.limits, n_in + 1
            sequence = kv_bytes.sequence_bits(point.design, limits, n)
            states = sum(t.n_stored_layers * t.once_bits for t in point.design.tensors[len(kv.groups) :])
            assert sum(point.ledger(n).values()) * kv.den == sequence - states
            assert math.isclose(sum(bit_ledger(point).values()), engine.evaluate(point)["stored_bits"], rel_tol=1e-12)


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "deepseek-v4-pro"])
@pytest.mark.parametrize(("quantizer", "bits"), [("fp16", 16), ("fp8", 8), ("nvfp4", 4), ("oaken", 4)])
def test_tokens_that_share_an_entry_have_their_part_of_its_codes(name, quantizer, bits):
    assert bit_ledger(point_of(build(name, quantizer), n_in=1023))["payload"] == pytest.approx(bits, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "quantizer", "work"),
    [("llama3.1-8b", "fp16", {}), ("deepseek-v3", "fp8", {"tp": 8}), ("deepseek-v3", "fp16", {"tp": 8})],
)
def test_the_numbers_of_fitted_attention_are_those_of_its_kernels(name, quantizer, work):
    """Of latent heads, too: an H200's kernel reads FP8 at 0.61 of the bandwidth, not at plain attention's 0.89."""
    point = Point(catalog.device("h200"), build(name, quantizer), Workload(batch=8, **work))
    rows = explained(point)[1]["attention_s"].terms
    read_s = rows["kv_read_bytes_at_end"] / rows["bandwidth_bytes_per_s"] / rows["memory_frac"]
    # the mean of 1,025 to 2,048 tokens is 0.75 of the end; beside it queries and results
    assert rows["mean_kv_read_s"] == pytest.approx(0.75 * read_s, rel=0.12)
