"""A framework without a pool: Hugging Face's tuples hold keys and values twice while a step joins them to the new."""

from typing import Any

import pytest

from dse.core.errors import InputError
from dse.model import engine
from dse.model.explain import explained
from dse.model.point import Point
from dse.model.stacks import stack_of
from dse.specs import catalog
from dse.specs.workload import Workload
from dse.validate.claims.designs import build

A100 = catalog.device("a100-80gb")
W8A8: dict[str, Any] = {"weights_bits": 8, "activation_bits": 8, "stack": "transformers"}
INT8 = "int8:granularity=tensor"


def at(model, quantizer, batch, n_in, n_out=338, **fields):
    work = Workload(batch=batch, input_tokens=n_in, output_tokens=n_out, **{**W8A8, **fields})
    return engine.evaluate(Point(A100, build(model, quantizer), work))


def test_the_cell_that_ran_out_of_memory_does_not_fit():
    """OPT-30B, 64 prompts of 512 tokens and 338 generated: 48 layers of keys and values of 7,168 INT8 channels are
    64 * 850 * 2 * 48 * 7168 = 37.43 GB; with the weights, 29.97 GB, 67.4 GB, which fit 80, and twice 104.8, which do
    not. NQKV's 4.0625 bits are 19.0 GB: 68.0 and 1.6 of one layer in 16 bits, of 864 tokens."""
    kv_bytes = 64 * 850 * 2 * 48 * 7168
    assert kv_bytes == pytest.approx(37.43e9, rel=1e-3)
    printed_out = at("opt-30b", INT8, 64, 512)
    assert printed_out["min_capacity_bytes"] == printed_out["weight_bytes"] + 2 * kv_bytes
    assert printed_out["min_capacity_bytes"] == pytest.approx(104.8e9, rel=1e-3)
    assert printed_out["kv_bytes"] == kv_bytes  # a token takes what it takes
    assert not printed_out["fits_whole_batch"]
    work = Workload(batch=64, input_tokens=512, output_tokens=338, **W8A8)
    results, told = explained(Point(A100, build("opt-30b", INT8), work))
    assert told["min_capacity_bytes"].terms["kv_copies_at_peak"] == 2
    assert "eight_bit_kernels" not in results["assumptions"]  # they were fitted
    nqkv = at("opt-30b", "nqkv", 64, 512)
    workspace = 64 * 864 * 2 * 7168 * 2
    assert nqkv["min_capacity_bytes"] == nqkv["weight_bytes"] + 2 * kv_bytes * 65 // 128 + workspace
    assert nqkv["fits_whole_batch"]
    assert at("opt-30b", INT8, 64, 512, stack="vllm@kernels", memory="paper")["fits_whole_batch"]


def test_prompts_run_whole_before_keys_and_values_are_held_twice():
    """OPT-6.7B, one prompt of 2,000 tokens and one token: 2001 * 2 * 32 * 4096 bytes of INT8 are 0.52 GB; the logits
    beside the residual of the whole prompt, 2000 * (2 * 4096 + 50272) * 2 = 0.23 GB, are gone by then: the larger of
    both counts, never their sum."""
    kv_bytes, logits = 2001 * 2 * 32 * 4096, 2000 * (2 * 4096 + 50272) * 2
    found = at("opt-6.7b", INT8, 1, 2000, 1)
    assert logits < kv_bytes
    assert found["min_capacity_bytes"] == found["weight_bytes"] + 2 * kv_bytes
    # 4-bit keys and values of a small model are less than its logits: OPT-125M, 12 layers of 768
    small_kv, small_logits = 2001 * 2 * 12 * 768, 2000 * (2 * 768 + 50272) * 2
    found = at("opt-125m", INT8, 1, 2000, 1)
    assert small_kv < small_logits
    assert found["min_capacity_bytes"] == found["weight_bytes"] + small_kv + small_logits


def test_each_number_of_a_step_is_where_it_belongs():
    """A step of OPT-6.7B, 8 prompts of 128: 32 layers of the framework, and of attention's start."""
    int8, nqkv = (at("opt-6.7b", quantizer, 8, 128) for quantizer in (INT8, "nqkv"))
    assert int8["host_s"] == nqkv["host_s"] == pytest.approx(32 * 537.1e-6)
    elements = 8 * (128 + 339 / 2) * 2 * 32 * 4096
    for found, launch, frac, n_bytes in ((int8, 471.8e-6, 0.01646, 1.0), (nqkv, 686.4e-6, 0.008306, 65 / 128)):
        read_s = elements * n_bytes / frac / 2.039e12
        assert found["attention_s"] == pytest.approx(32 * launch + read_s, rel=0.02)
    assert (int8["implementation"], nqkv["implementation"]) == ("transformers", "transformers")
    # 0.0307 and 0.0335 ns an element in a trial outside of this tool
    assert read_s / elements * 1e9 == pytest.approx(0.030, abs=0.001)


def test_other_stacks_take_nothing_from_it():
    work = Workload(weights_bits=8, activation_bits=8, stack="vllm")
    _, vllm = stack_of(A100, work)
    assert "w8a8" not in vllm.products
    assert vllm.borrowed.get("host") is None
    name, own = stack_of(A100, Workload(**W8A8))
    assert (name, own.borrowed["attention"]) == ("transformers", "vllm")
    for device in ("t4", "m2-max", "oaken-hbm"):  # no other code of INT8 is known there: still not this
        run = engine.evaluate(Point(catalog.device(device), build("opt-6.7b", "int8"), Workload()))["implementation"]
        assert run in (None, "generic")
    plan = build("opt-6.7b", "nqkv")
    assert engine.evaluate(Point(A100, plan, work))["implementation"] == "nqkv-copies"


def test_bad_input_is_one_line():
    with pytest.raises(InputError, match="memory = server: transformers lays out no pool: use paper"):
        at("opt-6.7b", INT8, 8, 128, memory="server")
    with pytest.raises(InputError, match="stack = 'transformers@kernels': A100-80GB has no such kernels: use vllm@"):
        at("opt-6.7b", INT8, 8, 128, stack="transformers@kernels")
    with pytest.raises(InputError, match="stack = 'transformers': H100 is calibrated for"):
        engine.evaluate(Point(catalog.device("h100"), build("opt-6.7b"), Workload(**W8A8)))
