"""What always holds (docs/explanation/model.md), over all times of random designs: ideal and calibrated, any server."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

import factories
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.workload import Workload

#: times that a better device never lengthens
TIMES = ("attention_s", "decode_step_s", "linear_s", "prefill_s", "tpot_s", "ttft_s", "total_s", "tpot_s", "ttft_s")
#: the last bits of floats
ROUNDED = 1e-9
DEVICES = ("a100-80gb", "h100", "h200", "b200", "l40s", "rtx-4090", "mi300x", "oaken-hbm", "lpu-lpddr", "tpu-v6e")
MODELS = ("llama3.1-8b", "llama2-13b", "gemma-3-4b", "qwen3-0.6b", "gpt-oss-20b", "deepseek-v2-lite")
WORK = st.fixed_dictionaries(
    {
        "batch": st.sampled_from([1, 2, 3, 4, 7, 16, 64, 256]),
        "input_tokens": st.integers(1, 30_000),
        "output_tokens": st.integers(1, 2000),
        "rounds": st.sampled_from([1, 2, 10]),
        "tp": st.sampled_from([1, 1, 2, 4]),
    }
)
DESIGN = (st.sampled_from(DEVICES), st.sampled_from(MODELS), st.sampled_from(["fp16", "fp8"]), WORK)
FASTER = st.sampled_from([1.01, 1.1, 1.5, 2.0, 4.0])


def times_of(device, model, quantizer, work):
    """The times of a design, None where nothing fits or it is refused."""
    if device.link_bandwidth is None:
        work = {**work, "tp": 1}
    found = evaluate(Point(device, factories.build(model, quantizer), Workload(**work)))
    return {name: found[name] for name in TIMES} if found["feasible"] else None


def with_more(device, field, factor):
    """The device with a number of it `factor` times as large; of its peak rates, all."""
    names = [field] if field != "peak_flops" else ["peak_flops", "peak_flops_fp8", "peak_flops_fp4", "peak_ops_int8"]
    own = {name: number for name in names if (number := getattr(device, name))}
    return device.model_copy(
        update={name: number.model_copy(update={"value": number.value * factor}) for name, number in own.items()}
    )


@settings(deadline=None, max_examples=60)
@given(*DESIGN, st.sampled_from(["memory_bandwidth", "peak_flops", "link_bandwidth"]), FASTER)
def test_a_faster_device_never_takes_longer(name, model, quantizer, work, field, factor):
    device = catalog.device(name)
    if field == "link_bandwidth" and device.link_bandwidth is None:
        return
    before = times_of(device, model, quantizer, work)
    if before is None:
        return
    after = times_of(with_more(device, field, factor), model, quantizer, work)
    slower = {one: (before[one], after[one]) for one in TIMES if after[one] > before[one] * (1 + ROUNDED)}
    assert not slower


@settings(deadline=None, max_examples=40)
@given(*DESIGN, FASTER)
def test_more_memory_changes_no_time_of_what_fits(name, model, quantizer, work, factor):
    device = catalog.device(name)
    if device.link_bandwidth is None:
        work = {**work, "tp": 1}
    kv, asked = factories.build(model, quantizer), Workload(**work)
    before = evaluate(Point(device, kv, asked))
    if not before["feasible"]:
        return
    more = evaluate(Point(with_more(device, "memory_capacity", factor), kv, asked))
    assert more["throughput_tokens_per_s"] >= before["throughput_tokens_per_s"] * (1 - ROUNDED)
    assert more["ttft_s"] <= before["ttft_s"] * (1 + ROUNDED)
    if before["fits_whole_batch"]:
        assert {one: more[one] for one in TIMES} == {one: before[one] for one in TIMES}


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(DEVICES),
    st.sampled_from(MODELS),
    st.sampled_from([1, 2, 3, 8]),
    st.integers(200, 16_000),
    st.integers(20, 500),
)
@example("a100-80gb", "llama3.1-8b", 8, 5828, 20)  # steps begin to be full of prompts
@example("a100-80gb", "llama3.1-8b", 8, 5831, 20)
def test_a_token_more_costs_little_and_no_less(name, model, batch, n_in, n_out):
    """No jumps: of a prompt, a token more adds at most as much as two of its tokens do; before the first token, where
    prompts take all steps, a token of every request's prompt."""
    device, kv = catalog.device(name), factories.build(model, "fp16")
    one, two = (evaluate(Point(device, kv, Workload(batch, n, n_out))) for n in (n_in, n_in + 1))
    if not (one["fits_whole_batch"] and two["fits_whole_batch"]):
        return
    for time in TIMES:
        more = 4 * (batch if time == "ttft_s" else 1) / n_in
        assert one[time] * (1 - ROUNDED) <= two[time] <= one[time] * (1 + more), time
