"""The compiled evaluation of sweeps: every column that a sweep can keep has the bits of `dse.point.evaluate`."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse import sweep_cases, sweep_fast, sweep_kernel, sweep_points, sweep_spec, utilisation
from dse.errors import DseError
from dse.sweep_points import Names

DEVICES = ["h100", "a100-80gb", "2xa100-80gb", "oaken-hbm", "oaken-lpddr", "lpu-hbm", "tender-a100"]
MODELS = ["llama2-7b", "llama2-70b", "llama3-8b", "mistral-7b", "mixtral-8x7b", "opt-125m", "llama3.1-405b"]
QUANTIZERS = [
    "fp16", "fp8", "int8", "int4:granularity=tensor", "kivi", "kivi:bits=4,group=64,residual=64", "sinkq",
    "sinkq:bits=4,group=32,residual=0", "sinkq:sinks=0,evicted=2", "nqkv", "nqkv:block=100", "qserve", "atom",
    "tender", "oaken", "oaken:groups=2/2/90/6", "oaken:outer=0.013,inner=0.0371", "kvquant",
]  # fmt: skip
#: places at which numbers turn: one token, a group or window that fills, a page
LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 160, 161, 1000, 4095, 4096, 4097, 8192, 32768]
BATCHES = [1, 2, 3, 7, 16, 31, 32, 33, 64, 255, 256, 1000, 100_000]


#: devices with fitted kernels: with a core ceiling, with copies of layouts and of FP16, of another device
FITTED = ["h100", "a100-80gb", "l40s", "a800-80gb"]


def of(axes, where=(), model_kind="ideal"):
    """A sweep, of the ideal model if not told otherwise, that keeps every column there is."""
    keep = [name for name in sweep_cases.COLUMNS if name not in axes]
    return sweep_spec.from_dict({"axes": {"model_kind": model_kind, **axes}, "where": list(where), "keep": keep})


def bits_of(column):
    """A column as whole numbers and names, so that equal means equal bits; missing numbers are alike."""
    if isinstance(column, Names):
        normal = column.normal()
        return [*normal.names, None], normal.codes.tolist()
    if column.dtype == np.float64:
        return np.where(np.isnan(column), np.nan, column).view(np.int64).tolist()
    return column.tolist()


def compare(sweep, first=0, last=None):
    """Columns by the kernel and row by row; how many points were left to rows."""
    digits = sweep_points.kept_digits(sweep, first, sweep.n_points if last is None else last)
    n_left, by_rows = 0, sweep_points.evaluate_rows

    def counted(sweep, digits, check):
        nonlocal n_left
        n_left += len(digits["device"])
        return by_rows(sweep, digits, check)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_points, "evaluate_rows", counted)
        found = sweep_fast.evaluate(sweep, digits)
    expected = by_rows(sweep, digits)
    if found is None:
        return len(digits["device"])
    assert list(found) == list(expected)
    for name, column in expected.items():
        if isinstance(column, np.ndarray):
            assert found[name].dtype == column.dtype, name
        assert bits_of(found[name]) == bits_of(column), name
    return n_left


@pytest.mark.parametrize("admission", ["reserve", "paged"])
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_equal_on_a_grid(quantizer, admission):
    axes = {
        "device": ["h100", "oaken-hbm"], "model": ["llama3-8b", "mistral-7b"], "quantizer": quantizer,
        "admission": admission, "input_tokens": [1, 4000, 33_000], "output_tokens": [1, 300], "batch": [1, 5, 500],
    }  # fmt: skip
    assert compare(of(axes)) == 0


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
        }
        sweep = of(axes)
        n_covered += sweep.n_points - compare(sweep)
    assert n_covered > 4000


@pytest.mark.parametrize("quantizer", ["fp16", "fp8", "kivi", "nqkv", "sinkq", "oaken"])
def test_calibrated_is_equal_on_a_grid(quantizer):
    """Prompts below and above 128 tokens, cores that idle (few sequences) and all busy, waves of two sizes."""
    axes = {
        "device": ["h100", "a100-80gb"], "model": ["llama3-8b", "mistral-7b"], "quantizer": quantizer,
        "admission": ["reserve", "paged"], "input_tokens": [1, 5000], "output_tokens": 300, "batch": [1, 2, 5, 500],
    }  # fmt: skip
    assert compare(of(axes, model_kind="calibrated")) == 0


def test_random_calibrated_designs_are_equal():
    rng = np.random.default_rng(2)
    n_covered = 0
    for _ in range(12):
        axes = {
            "device": str(rng.choice(FITTED)), "stack": str(rng.choice(["vllm", "sglang"])),
            "model": str(rng.choice(MODELS)), "key_quantizer": str(rng.choice(QUANTIZERS)),
            "value_quantizer": str(rng.choice(QUANTIZERS)), "admission": ["reserve", "paged"],
            "dequant_path": ["auto", str(rng.choice(["fused", "materialised"]))],
            "input_tokens": [int(n) for n in rng.choice(LENGTHS[:-3], 2, replace=False)],
            "output_tokens": int(rng.choice(LENGTHS[:14])), "memory_bandwidth": [1e12, 3e12],
            "memory_capacity": "900 GB", "batch": [int(n) for n in rng.choice(BATCHES, 2, replace=False)],
            **({"token_cores": int(rng.integers(1, 40))} if rng.random() < 0.3 else {}),
            **({"n_cores": int(rng.integers(1, 300))} if rng.random() < 0.3 else {}),
        }  # fmt: skip
        sweep = of(axes, model_kind="calibrated")
        n_covered += sweep.n_points - compare(sweep)
    assert n_covered > 250


def test_calibrated_sums_of_many_sequences_are_those_of_one_times_their_number():
    """65 and 130 sequences of 32 heads keep the 132 cores of an H100 busy: all but the launches doubles, exactly."""
    axes = {"device": "h100", "model": "llama2-7b", "quantizer": "fp8", "memory_capacity": "900 GB", "batch": [65, 130]}
    sweep = of({**axes, "input_tokens": 100, "output_tokens": 28}, model_kind="calibrated")
    columns = sweep_fast.evaluate(sweep, sweep_points.kept_digits(sweep, 0, 2))
    one, two = columns["attention_s"]
    launches = 32 * 13.03e-6  # a layer's, of the FP8 kernels; contexts up to 128 tokens are not split
    assert two - launches == pytest.approx(2 * (one - launches), rel=1e-12)


@settings(max_examples=60, deadline=None)
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
        "kernel_launch": 0,
    }.items():
        if data.draw(st.booleans()):
            axes[name] = int(value) if name == "token_cores" else value
    try:
        sweep = of(axes)
    except DseError:  # not a sweep
        return
    compare(sweep)


def test_every_column_that_a_sweep_can_keep_is_known():
    found = sweep_spec.from_dict({"axes": {"device": "h100", "model": "llama2-7b"}, "keep": "all"})
    assert set(found.keep) <= sweep_cases.COLUMNS


def test_a_column_that_the_kernel_does_not_know_leaves_all_to_rows(monkeypatch):
    monkeypatch.setattr(sweep_cases, "COLUMNS", sweep_cases.COLUMNS - {"total_s"})
    sweep = sweep_spec.from_dict({"axes": {"device": "h100", "model": "llama2-7b"}, "keep": ["total_s"]})
    assert sweep_fast.evaluate(sweep, sweep_points.kept_digits(sweep, 0, 1)) is None


def test_what_is_not_covered_is_left_to_rows():
    """Devices and policies x 2 batches: a prefix, a policy and no cache are left, the rest is not."""
    calibrated = of({"device": ["h100", "oaken-hbm"], "model": "llama3-8b", "model_kind": "auto", "batch": [1, 2]})
    assert compare(calibrated) == 0
    prefix = of({"device": "h100", "model": "llama3-8b", "prefix_tokens": [0, 64], "batch": [1, 2]})
    assert compare(prefix) == 2
    tokens = of({"device": "h100", "model": "llama3-8b", "tokens": ["full", "streaming"], "batch": [1, 2]})
    assert compare(tokens) == 2
    uncached = of({"device": "h100", "model": "llama3-8b", "kv_cache": [True, False], "batch": [1, 2]})
    assert compare(uncached) == 2


def test_whole_numbers_beyond_float64_are_left_to_rows():
    """Shares of 12 digits give a denominator of 1e12: 4096 * 64 layers' bits a token times that are over 2^53."""
    axes = {"device": "h100", "model": "llama2-7b", "quantizer": "oaken:outer=0.012345678901", "batch": [1, 2]}
    assert compare(of(axes)) == 2
    paged = {"device": "h100", "model": "llama2-7b", "admission": "paged", "output_tokens": 16_777_216, "batch": [1]}
    assert compare(of(paged)) in (0, 1)


def test_order_of_axes_changes_nothing():
    axes = {
        "device": ["h100", "oaken-hbm"], "model": ["llama2-7b"], "quantizer": ["fp16", "oaken"], "batch": [300, 1, 40],
        "input_tokens": [100, 3000], "memory_bandwidth": [1e12, 3e12],
    }  # fmt: skip
    for names in itertools.permutations(axes, 3):
        order = {**{name: axes[name] for name in names}, **axes}
        assert compare(of(order)) == 0


def test_a_sweep_of_many_points_uses_the_kernel(monkeypatch):
    axes = {"device": "h100", "model": "llama2-7b", "batch": {"from": 1, "to": 5000, "step": 1}}
    sweep = sweep_spec.from_dict({"axes": {"model_kind": "ideal", **axes}})
    monkeypatch.setattr(sweep_points, "evaluate_rows", lambda *args: pytest.fail("row by row"))
    columns = sweep_points.evaluate_chunk(sweep, 1000, 1500)
    assert columns["feasible"].all()
    assert len(columns["bound"].codes) == 500


def test_compiled_code_depends_on_the_formulas(monkeypatch, tmp_path):
    before = sweep_kernel.stamp()
    (tmp_path / "formulas").mkdir()
    monkeypatch.setattr(sweep_kernel, "__file__", str(tmp_path / "sweep_kernel.py"))
    assert sweep_kernel.stamp() != before


def test_operations_are_added_from_left_to_right(monkeypatch):
    """As the kernel adds them. `sum` of Python 3.12 and later keeps what rounding loses, as `math.fsum` does."""
    values = [1.0, 1e100, 1.0, -1e100]
    monkeypatch.setattr(utilisation, "sum", math.fsum, raising=False)
    each = [utilisation.Operation("decode", "head", 1.0, value, value, value, value) for value in values]
    whole = utilisation.total(each, "decode", 4.0)
    assert (whole.flops, whole.n_bytes, whole.compute_at_peak_s, whole.read_at_peak_s) == (0.0, 0.0, 0.0, 0.0)
    assert math.fsum(values) == 2.0
