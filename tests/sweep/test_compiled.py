"""The compiled evaluation of sweeps: every column that a sweep can keep has the bits of `evaluate`."""

import importlib
import math
import pkgutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from dse.core import compiling
from dse.core.errors import DseError
from dse.model import many, operations
from dse.model.engine import AUTO, COMPILED, INTERPRETED
from dse.sweep import compiled as sweep_fast
from dse.sweep import points as sweep_points
from dse.sweep import spec as sweep_spec
from dse.sweep.grid import kept_digits
from dse.sweep.parts import make_part
from dse.sweep.run import in_memory
from factories import compare_with_rows, sweep_of
from kernels_ref import code_cache

DEVICES = ["h100", "a100-80gb", "2xa100-80gb", "oaken-hbm", "oaken-lpddr", "lpu-hbm", "tender-a100"]
MODELS = ["llama2-7b", "llama2-70b", "llama3-8b", "mistral-7b", "mixtral-8x7b-oaken", "opt-125m", "llama3.1-405b"]
QUANTIZERS = [
    "fp16",
    "fp8",
    "int8",
    "int4:granularity=tensor",
    "kivi",
    "kivi:bits=4,group=64,residual=64",
    "sinkq",
    "sinkq:bits=4,group=32,residual=0",
    "sinkq:sinks=0,evicted=2",
    "nqkv",
    "nqkv:block=100",
    "qserve",
    "atom",
    "tender",
    "oaken",
    "oaken:groups=2/2/90/6",
    "oaken:outer=0.013,inner=0.0371",
    "kvquant",
]
#: places at which numbers turn: one token, a group or window that fills, a page
POLICIES = [
    "full",
    "window:tokens=333",
    "streaming:sinks=4,window=60",
    "h2o",
    "h2o:heavy=0.3,evict=prompt",
    "snapkv",
    "snapkv:share=0.16",
    "sparse:k=512",
    "sparse:k=64,index_dim=0",
    "constant:c=500",
]
LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 160, 161, 1000, 4095, 4096, 4097, 8192, 32768]
BATCHES = [1, 2, 3, 7, 16, 31, 32, 33, 64, 255, 256, 1000, 100_000]


#: devices with fitted kernels: with a core ceiling, with copies of layouts and of FP16, of another device
FITTED = ["h100", "a100-80gb", "l40s", "a800-80gb"]


def test_random_designs_are_equal():
    rng = np.random.default_rng(1)
    n_covered = 0
    for _ in range(60):
        axes = {
            "device": list(rng.choice(DEVICES, 2, replace=False)),
            "model": str(rng.choice(MODELS)),
            "key_quantizer": list(rng.choice(QUANTIZERS, 2, replace=False)),
            "value_quantizer": str(rng.choice(QUANTIZERS)),
            "admission": ["reserve", "paged"],
            "page_tokens": int(rng.integers(1, 70)),
            "weights_bits": int(rng.choice([4, 8, 16])),
            "input_tokens": [int(n) for n in rng.choice(LENGTHS, 2, replace=False)],
            "output_tokens": int(rng.choice(LENGTHS[:-1])),
            "memory_bandwidth": [5e11, float(rng.integers(1, 9000)) * 1e9],
            "batch": [int(n) for n in rng.choice(BATCHES, 3, replace=False)],
            **({"tokens": list(rng.choice(POLICIES, 2, replace=False))} if rng.random() < 0.3 else {}),
            **({"prefix_tokens": [0, int(rng.integers(1, 5000))]} if rng.random() < 0.3 else {}),
        }
        sweep = sweep_of(axes)
        n_covered += sweep.n_points - compare_with_rows(sweep)
    assert n_covered > 5000


def test_random_calibrated_designs_are_equal():
    rng = np.random.default_rng(2)
    n_covered = 0
    for _ in range(12):
        axes = {
            "device": str(rng.choice(FITTED)),
            "stack": str(rng.choice(["vllm", "sglang"])),
            "model": str(rng.choice(MODELS)),
            "key_quantizer": str(rng.choice(QUANTIZERS)),
            "value_quantizer": str(rng.choice(QUANTIZERS)),
            "admission": ["reserve", "paged"],
            "dequant_path": ["auto", str(rng.choice(["fused", "materialised"]))],
            "input_tokens": [int(n) for n in rng.choice(LENGTHS[:-3], 2, replace=False)],
            "output_tokens": int(rng.choice(LENGTHS[:14])),
            "memory_bandwidth": [1e12, 3e12],
            "memory_capacity": "900 GB",
            "batch": [int(n) for n in rng.choice(BATCHES, 2, replace=False)],
            **({"token_cores": int(rng.integers(1, 40))} if rng.random() < 0.3 else {}),
            **({"n_cores": int(rng.integers(1, 300))} if rng.random() < 0.3 else {}),
        }
        sweep = sweep_of(axes, model_kind="calibrated")
        n_covered += sweep.n_points - compare_with_rows(sweep)
    assert n_covered > 250


def test_calibrated_sums_of_many_sequences_are_those_of_one_times_their_number():
    """65 and 130 sequences of 32 heads keep the 132 cores of an H100 busy: all but the launches doubles, exactly."""
    axes = {"device": "h100", "model": "llama2-7b", "quantizer": "fp8", "memory_capacity": "900 GB", "batch": [65, 130]}
    sweep = sweep_of({**axes, "input_tokens": 100, "output_tokens": 28}, model_kind="calibrated")
    columns, _ = sweep_fast.evaluate(sweep, kept_digits(sweep, 0, 2))
    one, two = columns["attention_s"]
    launches = 32 * 13.03e-6  # a layer's, of the FP8 kernels; contexts up to 128 tokens are not split
    assert two - launches == pytest.approx(2 * (one - launches), rel=1e-12)


@given(st.data())
def test_any_design_is_equal(data):
    axes = {
        "device": data.draw(st.sampled_from(DEVICES)),
        "model": data.draw(st.sampled_from(MODELS)),
        "quantizer": data.draw(st.sampled_from(QUANTIZERS)),
        "admission": ["reserve", "paged"],
        "page_tokens": data.draw(st.integers(1, 300)),
        "activation_bits": data.draw(st.sampled_from([8, 16])),
        "weights_bits": data.draw(st.sampled_from([4, 8, 16])),
        "prompt_chunk_tokens": data.draw(st.integers(1, 3000)),
        "dequant_path": data.draw(st.sampled_from(["auto", "fused", "materialised", "engine"])),
        "input_tokens": data.draw(st.integers(1, 70_000)),
        "output_tokens": data.draw(st.integers(1, 5000)),
        "memory_capacity": data.draw(st.integers(10, 900).map(lambda n: f"{n} GB")),
        "usable_frac": data.draw(st.sampled_from([1.0, 0.9, 0.77])),
        "batch": data.draw(st.lists(st.integers(1, 2000), min_size=1, max_size=4, unique=True)),
    }
    for name, value in {
        "token_cores": "7",
        "kv_page": 512,
        "engine_rate": "1e12 element/s",
        "quantize_rate": "3e9 element/s",
        "array_rows": "48",
        "kernel_launch": 0,
    }.items():
        if data.draw(st.booleans()):
            axes[name] = int(value) if name in ("token_cores", "array_rows") else value
    try:
        sweep = sweep_of(axes)
    except DseError:  # not a sweep
        return
    compare_with_rows(sweep)


def test_everything_that_a_workload_can_say_runs_compiled():
    """Prefixes, token policies and no cache, on both models, with pages and without."""
    axes = {"device": ["h100", "oaken-hbm"], "model": "llama3-8b", "model_kind": "auto", "batch": [1, 2, 300]}
    each = {"admission": ["reserve", "paged"], "input_tokens": [100, 5000], "output_tokens": 300}
    prefixes = {**axes, **each, "prefix_tokens": [0, 64, 99], "quantizer": ["fp16", "kivi"]}
    assert compare_with_rows(sweep_of(prefixes)) == 0
    assert (
        compare_with_rows(sweep_of({**axes, **each, "tokens": POLICIES, "quantizer": ["fp16", "sinkq", "oaken"]})) == 0
    )
    assert compare_with_rows(sweep_of({**axes, **each, "kv_cache": [True, False]})) == 0
    mixture = {**axes, **each, "model": "mixtral-8x7b-oaken", "prefix_tokens": 50, "kv_cache": [True, False]}
    assert compare_with_rows(sweep_of(mixture)) == 0


@pytest.mark.parametrize("batching", ["static", "continuous", "chunked"])
def test_batches_that_wait_for_room_share_what_runs(batching):
    """Mixtures and splits, up to far more requests than fit, then few again: those that fit differ one by one."""
    axes = {"device": "h100", "model": ["llama3-8b", "qwen3-30b-a3b"], "batching": batching, "quantizer": "fp8"}
    each = {"input_tokens": [64, 9000], "output_tokens": [1, 300], "memory": ["server", "paper"]}
    batches = [1, 2, 3, 40, 41, 1000, 4096, 4097, 100_000, 5, 6000, 7000, 2000]
    assert compare_with_rows(sweep_of({**axes, **each, "tp": [1, 2], "batch": batches}, model_kind="calibrated")) == 0
    alone = {**axes, "input_tokens": 64, "output_tokens": 30, "kv_cache": False, "batch": batches}
    assert compare_with_rows(sweep_of(alone, model_kind="calibrated")) == 0


def test_a_batch_far_beyond_what_fits_is_not_left_to_rows():
    """A server counts a request at its full length, not the sum over its steps: near 262,144 all fits int64. In parts
    of 1e4 the bits of the whole batch do not: what is counted in them is left to rows, the default columns are not."""
    axes = {"device": "a100-80gb", "model": "llama2-7b", "output_tokens": 1024, "input_tokens": [1024, 8192]}
    batches = {"batch": [4096, 262_143, 262_145, 2**22]}
    assert compare_with_rows(sweep_of({**axes, **batches, "quantizer": "oaken"})) == 0
    sweep = sweep_of({**axes, **batches, "quantizer": "oaken:outer=0.013,inner=0.0371"})
    assert compare_with_rows(sweep) == 8
    assert compare_with_rows(replace(sweep, keep=(*sweep_spec.DEFAULT_KEEP, "activation_bytes", "tpot_s"))) == 0


def test_whole_numbers_beyond_float64_are_left_to_rows():
    """Shares of 12 digits give a denominator of 1e12: 4096 * 64 layers' bits a token times that are over 2^53."""
    axes = {"device": "h100", "model": "llama2-7b", "quantizer": "oaken:outer=0.012345678901", "batch": [1, 2]}
    assert compare_with_rows(sweep_of(axes)) == 2
    paged = {"device": "h100", "model": "llama2-7b", "admission": "paged", "output_tokens": 16_777_216, "batch": [1]}
    assert compare_with_rows(sweep_of(paged)) in (0, 1)


def test_a_sweep_of_many_points_uses_the_kernel(monkeypatch):
    axes = {"device": "h100", "model": "llama2-7b", "batch": {"from": 1, "to": 5000, "step": 1}}
    sweep = sweep_spec.from_dict({"axes": {"model_kind": "ideal", **axes}})
    monkeypatch.setattr(sweep_points, "evaluate_rows", lambda *args: pytest.fail("row by row"))
    columns = sweep_points.evaluate_chunk(sweep, 1000, 1500)
    assert columns["feasible"].all()
    assert len(columns["bound"].codes) == 500


def test_a_sweep_has_the_same_rows_by_each_way_and_goes_the_one_that_it_asks_for(monkeypatch):
    """Infeasible and refused designs among them; the way is no part of what a sweep is, nor of its hash."""
    axes = {"device": ["h100", "tender-a100"], "model": ["llama2-70b", "opt-125m"], "quantizer": ["kivi", "tender"]}
    sweep = replace(sweep_of({**axes, "input_tokens": [100, 4000], "batch": [1, 700]}), keep=sweep_spec.DEFAULT_KEEP)
    runs, real = [], many.evaluate
    monkeypatch.setattr(many, "evaluate", lambda *args: runs.append(1) or real(*args))
    frames, n_runs = [], []
    for by in (INTERPRETED, COMPILED, AUTO):
        asked = replace(sweep, by=by)
        assert asked == sweep
        assert asked.sha256 == sweep.sha256
        assert make_part(asked, 0) == make_part(sweep, 0)
        runs.clear()
        frames.append(in_memory(asked, sweep.n_points))
        n_runs.append(len(runs) > 0)
    assert n_runs == [False, True, False]
    assert 0 < frames[0]["feasible"].sum() < sweep.n_points
    pd.testing.assert_frame_equal(frames[0], frames[1], check_exact=True)
    pd.testing.assert_frame_equal(frames[0], frames[2], check_exact=True)


def test_compiled_code_gives_back_what_it_makes_once():
    """Most functions do not count who holds what they are given: nothing is left over, nothing freed twice."""
    from numba.core.runtime import _nrt_python, rtsys

    def held():
        stats = rtsys.get_allocation_stats()
        return stats.alloc - stats.free, stats.mi_alloc - stats.mi_free

    axes = {"device": "h100", "model": ["llama3-8b", "qwen3-30b-a3b"], "tp": [1, 2], "quantizer": ["fp8", "kivi"]}
    each = {"prefix_tokens": [0, 16], "input_tokens": [64, 9000], "output_tokens": 30, "batch": [1, 40, 4096, 100_000]}
    sweep = sweep_of({**axes, **each, "kv_cache": [True, False]}, model_kind="calibrated")
    points = sweep_fast.points_at(sweep, kept_digits(sweep, 0, sweep.n_points))
    columns, tables, n_keys = points.numbers()
    found, state = many.found_for(sweep.keep, sweep.n_points), sweep_fast.states_of(points)
    many.evaluate(columns, tables, n_keys, found, state.copy())
    were_counted = _nrt_python.memsys_stats_enabled()
    _nrt_python.memsys_enable_stats()
    try:
        before, made = held(), rtsys.get_allocation_stats().alloc
        many.evaluate(columns, tables, n_keys, found, state.copy())
        assert rtsys.get_allocation_stats().alloc > made
        assert held() == before
    finally:
        if not were_counted:
            _nrt_python.memsys_disable_stats()


def test_compiled_code_depends_on_every_source_it_is_made_of(monkeypatch):
    stamp, read = code_cache.stamp.__wrapped__, Path.read_bytes
    before = stamp(compiling.sources())
    folder = Path(dse.__file__).parent / "model"
    for path in (folder / "formulas" / "kv_cache.py", folder / "step.py", folder / "generation.py"):
        monkeypatch.setattr(Path, "read_bytes", lambda self, path=path: read(self) + b"#" * (self == path))
        assert stamp(compiling.sources()) != before
    monkeypatch.setattr(Path, "read_bytes", read)
    assert stamp(compiling.sources()) == before


def test_compiled_code_is_the_same_whatever_was_imported():
    """Or each command would compile for itself. Here every formula is imported, there those of a sweep."""
    for module in pkgutil.walk_packages(importlib.import_module("dse.model").__path__, "dse.model."):
        importlib.import_module(module.name)
    files = {Path(function.__code__.co_filename) for function in compiling._FUNCTIONS}
    assert len(files) > 30
    assert files <= set(compiling.sources())


def test_operations_are_added_from_left_to_right():
    """As compiled code adds them. `sum` of Python 3.12 and later keeps what rounding loses, as `math.fsum` does."""
    values = [1.0, 1e100, 1.0, -1e100]
    each = [
        operations.OperationCost(
            phase=0, kind=0, seconds=1.0, flops=value, n_bytes=value, compute_at_peak_s=value, read_at_peak_s=value
        )
        for value in values
    ]
    whole = operations.total_of(each, 0, 4.0)
    assert (whole.flops, whole.n_bytes, whole.compute_at_peak_s, whole.read_at_peak_s) == (0.0, 0.0, 0.0, 0.0)
    assert math.fsum(values) == 2.0
