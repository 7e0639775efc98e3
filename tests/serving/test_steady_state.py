"""Throughput in steady state: against one batch of `dse.model.engine`, by hand, and what must hold of it."""

from dataclasses import replace

import numpy as np
import pytest

from cases import each
from dse.core.errors import InputError
from dse.model import engine
from dse.model.explain import recorded
from dse.model.point import Point
from dse.serving import steady_state as serving
from dse.serving.requests import Lengths, Requests
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build


@pytest.mark.parametrize(
    ("device", "model", "quantizer"),
    [
        ("a100-80gb", "llama2-13b", "fp16"),
        ("a100-80gb", "llama2-7b", "kivi"),
        ("oaken-lpddr", "llama2-13b", "oaken"),
        ("h100", "llama2-70b", "fp8"),
    ],
)
@pytest.mark.parametrize("batching", ["continuous", "chunked"])
def test_equal_requests_are_the_point(device, model, quantizer, batching):
    """Requests that are all alike: what `dse point` says of a server of so many."""
    spec, kv = catalog.device(device), build(model, quantizer)
    work = Workload(batch=64, input_tokens=1024, output_tokens=256, admission="paged", batching=batching)
    wanted = engine.evaluate(Point(spec, kv, work))
    found = serving.steady(spec, kv, work, serving.FixedLengths(1024, 256))
    assert found["n_sequences"] == wanted["running_batch"]
    if wanted["feasible"] and wanted["fits_whole_batch"]:
        for name in ("tpot_s", "ttft_s", "throughput_tokens_per_s", "requests_per_s", "decode_step_s"):
            assert found[name] == wanted[name]


def test_by_hand():
    """OPT-6.7B, FP16, ideal A100 (2e12 B/s, 312e12 FLOP/s), 4 sequences, 99 in, 1 out: every number by hand."""
    spec, kv = catalog.device("a100-80gb:memory_bandwidth=2 TB/s"), build("opt-6.7b", "fp16")
    work = Workload(batch=4, model_kind="ideal", admission="paged")
    found = serving.steady(spec, kv, work, serving.FixedLengths(99, 1), scheduler=serving.Scheduler("continuous"))
    weights_s = 2 * kv.model.active_parameters / 2e12  # all weights once, in the step and in the prompt (99 < 156)
    kv_s = 4 * 100 * (32 * 2 * 4096 * 2) / 2e12  # context 100: 32 layers, K and V, 4096 channels, 2 B
    prompt_s = 4 * 32 * 4096 * (99 * 100 / 2) / 312e12  # 4 * heads * dim * layers * sum of 1..99
    assert found["mean_decode_context_tokens"] == 100
    assert found["decode_step_s"] == pytest.approx(weights_s + kv_s, rel=1e-12)
    # four prompts in one step: 396 tokens multiply longer than the weights are read
    n = kv.model.active_parameters
    step_s = 2 * n * 396 / 312e12 - 2 * (396 - 4) * kv.model.vocab_size * kv.model.hidden_size / 312e12 + 4 * prompt_s
    assert found["ttft_s"] == pytest.approx(step_s, rel=0.02)
    assert found["request_s"] == pytest.approx((weights_s + kv_s + found["ttft_s"]) / 4, rel=1e-12)
    assert found["throughput_tokens_per_s"] == pytest.approx(1 / found["request_s"], rel=1e-12)
    assert found["tpot_s"] == pytest.approx(weights_s + kv_s, rel=1e-12)  # all in step: no prompt between its tokens


@each("n", [1, 2, 8, 64, 400])
@each("chunk", [1, 16, 512, 4096])
def test_chunks_give_a_rate_at_any_size(n, chunk):
    spec, kv = catalog.device("a100-80gb:memory_bandwidth=2 TB/s"), build("opt-6.7b", "fp16")
    work = Workload(batch=n, admission="paged", model_kind="ideal")
    found = serving.steady(spec, kv, work, serving.FixedLengths(300, 100), n, serving.Scheduler("chunked", chunk))
    assert found["throughput_tokens_per_s"] > 0


def test_a_recording_says_how():
    spec, kv = catalog.device("a100-80gb:memory_bandwidth=2 TB/s"), build("opt-6.7b", "fp16")
    found, said = recorded(lambda: serving.steady(spec, kv, Workload(batch=8), serving.FixedLengths(99, 10)))
    for name in ("throughput_tokens_per_s", "mean_decode_context_tokens"):
        assert said[name].value == found[name]


@pytest.mark.parametrize("change", [{"prefix_tokens": 16}, {"tokens": "snapkv"}])
def test_bad_input(change):
    spec, kv = catalog.device("a100-80gb:memory_bandwidth=2 TB/s"), build("opt-6.7b", "fp16")
    with pytest.raises(InputError, match=" only: leave it out"):
        serving.steady(spec, kv, replace(Workload(), **change), serving.FixedLengths(99, 10))
    with pytest.raises(InputError, match="step_tokens = 0"):
        serving.steady(spec, kv, Workload(), serving.FixedLengths(99, 10), scheduler=serving.Scheduler("chunked", 0))
    with pytest.raises(InputError, match="n_sequences = 0"):
        serving.steady(spec, kv, Workload(), serving.FixedLengths(99, 10), n_sequences=0)


def test_where_nothing_fits_nothing_runs():
    """140 GB of weights on a device of 48 GB."""
    spec, kv, work = catalog.device("l40s"), build("llama2-70b", "fp16"), Workload(batch=4, admission="paged")
    found = serving.steady(spec, kv, work, serving.FixedLengths(1024, 256))
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    context = 1024 + 257 / 2
    assert numbers == {
        "n_sequences": 0,
        "fitting_sequences": 0,
        "running_sequences": 0,
        "mean_decode_context_tokens": context,
    }
    assert found["limited_by"] == "memory"


def test_requests_shorter_than_a_packed_group_fit_as_one_of_their_mean_length():
    """KIVI keeps 32 tokens in 16 bits until they are packed: requests of 2 to 14 tokens never are."""
    spec, work = catalog.device("a100-80gb"), Workload(batch=10**6, admission="paged", memory="paper")
    lengths = Lengths.of(Requests(np.zeros(2), np.array([2, 6]), np.array([4, 8]))).moments
    found = [
        serving.fitting_sequences(spec, build("opt-6.7b", name), work, lengths)
        for name in ("fp16", "kivi:group=32,residual=32")
    ]
    # in a page of 16 tokens each, and logits of a token: 2 * 4096 + 50272 elements
    free = spec.memory_capacity.si - 2 * build("opt-6.7b", "fp16").model.dense_parameters
    each = 16 * 32 * 2 * 4096 * 2 + 2 * 58464
    assert found == [int(free / each)] * 2
