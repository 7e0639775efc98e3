"""How sure times are: where an interval comes from, its numbers by hand, and comparisons of designs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import factories
from dse.model import uncertainty
from dse.model.evaluate import Point
from dse.model.uncertainty import Interval
from dse.specs import catalog
from dse.specs.stack import Fit
from dse.specs.workload import Workload


def point(device="h100", model="llama3.1-8b", **work):
    own = catalog.device(device) if isinstance(device, str) else device
    return Point(own, factories.build(model, "fp16"), Workload(8, 1024, 256, **{"admission": "paged", **work}))


def intervals(*args, **work):
    own = point(*args, **work)
    return uncertainty.intervals(own.device, own.plan, own.work, own.stack, own.stack_name)


def fit(held_out, serving=None):
    return Fit(n_points=9, held_out_error=held_out, serving_error=serving, fitted_on="by hand")


def test_of_a_normal_distribution_eight_of_ten_lie_inside():
    # P(|x| < w) = erf(w / sqrt(2)) of a spread of 1, whose mean absolute error is sqrt(2 / pi)
    width = uncertainty.WIDTH_80 * math.sqrt(2 / math.pi)
    assert math.erf(width / math.sqrt(2)) == pytest.approx(0.8, abs=2e-4)


def test_kernels_are_as_sure_as_the_worst_fit():
    found = uncertainty.of_fits([fit(0.02), fit(0.5, serving=0.1)])
    assert (found.low, found.high) == pytest.approx((1 - 0.1606, 1 + 0.1606))
    # a fit that may be off by more than all of a time still leaves a positive one
    assert uncertainty.of_fits([fit(3.0)]).low == pytest.approx(0.1)
    assert uncertainty.of_fits([]).low == 1


def test_a_measured_model_has_the_interval_of_its_rows():
    server = catalog.servers()["trtllm"]
    release, own = next(
        (name, f.models["llama3.1-8b"]) for name, f in server.releases.items() if "llama3.1-8b" in f.models
    )
    found = intervals(stack=f"trtllm@{release}")
    assert (found.tokens.low, found.tokens.high) == (own.low, own.high)
    assert (found.first.low, found.first.high) == (own.first_low, own.first_high)
    assert str(own.n_points) in found.tokens.why
    other = intervals(model="llama2-7b", stack=f"trtllm@{release}")
    unseen = server.unseen["dense"]
    assert (other.tokens.low, other.tokens.high) == (unseen.low, unseen.high)
    assert "left out" in other.tokens.why


def test_a_mixture_that_nobody_measured_is_less_sure_than_a_dense_model():
    dense, mixture = (intervals(model=name, stack="vllm").tokens for name in ("llama2-7b", "mixtral-8x7b"))
    assert mixture.low < dense.low < 1 < dense.high < mixture.high


def test_a_device_with_the_kernels_of_another_is_less_sure(monkeypatch):
    own = catalog.device("h100")
    borrows = own.model_copy(update={"stacks_of": "h200"})
    first, second = (intervals(device, "llama2-7b", stack="vllm").tokens for device in (own, borrows))
    assert second.low == pytest.approx(first.low / 1.15)
    assert second.high == pytest.approx(first.high * 1.15)


def test_peaks_are_the_lower_end_of_their_times():
    # measured devices reach 0.85 to 0.93 of the bandwidth and 0.7 to 1.0 of the rate
    for found in uncertainty.without_kernels("ideal"):
        assert (found.low, found.high) == pytest.approx((1.0, 1 / 0.7))


def test_a_data_sheet_is_derated_to_the_middle_of_what_devices_reach():
    """An estimate takes 0.89 of the bandwidth and 0.85 of the rate; it is no faster than 0.93 and 1.0 of them."""
    found = uncertainty.without_kernels("estimated")
    assert (found.tokens.low, found.tokens.high) == pytest.approx((0.89 / 0.93, 0.89 / 0.7))
    assert (found.first.low, found.first.high) == pytest.approx((0.85, 0.85 / 0.7))
    peaks, own = (point("oaken-hbm", "llama2-7b", model_kind=kind).results for kind in ("ideal", "auto"))
    assert own["model_kind"] == "estimated"
    assert own["decode_step_s"] == pytest.approx(peaks["decode_step_s"] / 0.89)  # bound by bytes
    assert own["prefill_s"] == pytest.approx(peaks["prefill_s"] / 0.85)


@pytest.mark.parametrize("work", [{"model_kind": "ideal"}, {"stack": "vllm"}, {"stack": "sglang@0.5.9"}])
def test_results_lie_inside_where_they_are_positive(work):
    own = point(**work)
    found = uncertainty.as_numbers(own.results, own.stack)
    assert {"decode_step_s", "tpot_s", "throughput_tokens_per_s", "ttft_s", "prefill_s"} <= set(found)
    for name, (low, high) in found.items():
        assert 0 <= low <= high, name
        if work != {"model_kind": "ideal"} and name in uncertainty.TOKEN_TIMES:
            assert low <= own.results[name] <= high
    # a rate is lowest where its time is longest
    step, rate = found["decode_step_s"], found["throughput_tokens_per_s"]
    results = own.results
    assert rate[0] / results["throughput_tokens_per_s"] == pytest.approx(results["decode_step_s"] / step[1])
    assert not set(found) & {"kv_bytes", "max_batch", "stored_bits"}


def test_what_does_not_fit_is_not_unsure():
    own = point("l40s", "llama3.1-70b")
    assert own.max_batch == 0
    assert uncertainty.as_numbers(own.results, own.stack) == {}


def test_an_inverse_of_an_inverse_is_itself():
    one = Interval(0.8, 1.25, "")
    assert one.inverse() == pytest.approx(one)
    assert one.inverse().inverse()[:2] == pytest.approx(one[:2])


SURE = Interval(0.8, 1.3, "")


def test_identical_designs_are_equal_for_sure():
    assert uncertainty.ratio(0.02, 0.02, SURE) == (1.0, 1.0)


def test_a_ratio_by_hand():
    # half of the longer time differs: factors of 0.8 ** 0.5 and 1.3 ** 0.5
    assert uncertainty.ratio(0.02, 0.01, SURE) == pytest.approx((2 * 0.894427, 2 * 1.140175), rel=1e-5)
    # the other way round: the reciprocals, since the longer time has what the shorter has not
    low, high = uncertainty.ratio(0.01, 0.02, SURE)
    assert (low, high) == pytest.approx((0.5 / 1.140175, 0.5 / 0.894427), rel=1e-5)


def test_the_more_designs_differ_the_wider_is_their_ratio():
    widths = [high / low for low, high in (uncertainty.ratio(1.0, other, SURE) for other in (1.0, 0.9, 0.7, 0.4, 0.1))]
    assert widths == sorted(widths)
    assert widths[0] == 1
    assert widths[-1] < 1.3 / 0.8


def test_a_gain_by_hand():
    # one end of the interval at 1: of ten, eight lie inside and one beyond either end
    assert uncertainty.gain_within(1.0, 1.44) == pytest.approx((1.2, 1.0, 1.44, 0.9), abs=1e-4)
    assert uncertainty.gain_within(1 / 1.44, 1.0) == pytest.approx((1 / 1.2, 1 / 1.44, 1.0, 0.1), abs=1e-4)
    assert uncertainty.gain_within(1.1, 1.1) == (1.1, 1.1, 1.1, 1)
    assert uncertainty.gain_within(1.0, 1.0) == (1, 1, 1, 0.5)
    grows = [uncertainty.gain_within(r * 0.8, r / 0.8).sure for r in (1.01, 1.1, 1.3, 2.0)]
    assert grows == sorted(grows)
    assert 0.5 < grows[0] < grows[-1] < 1
    assert uncertainty.gain_within(0.6, 1.0).sure_of_side == pytest.approx(0.9, abs=1e-4)


@given(low=st.floats(0.01, 100), wide=st.floats(1, 100))
def test_a_gain_and_its_chance_never_contradict_each_other(low, wide):
    found = uncertainty.gain_within(low, low * wide)
    assert found.low <= found.ratio <= found.high
    assert not found.ratio > 1 + 1e-9 or found.sure > 0.5
    assert not found.ratio < 1 - 1e-9 or found.sure < 0.5


def test_chances_by_hand():
    # of ten measurements one is above the upper end, nine above the lower, five above the middle
    ends = (0.5, 2.0)
    assert uncertainty.chance(*ends) == pytest.approx(0.5)
    assert uncertainty.chance(1.0, 2.0) == pytest.approx(0.9, abs=1e-4)
    assert uncertainty.chance(0.5, 1.0) == pytest.approx(0.1, abs=1e-4)
    assert (uncertainty.chance(2, 2), uncertainty.chance(1, 1), uncertainty.chance(0.5, 0.5)) == (1, 0.5, 0)


def test_a_product_by_hand():
    # half widths of 3 and 4 in logarithms give one of 5
    found = uncertainty.product(
        [Interval(math.exp(-3), math.exp(3), ""), Interval(2 * math.exp(-4), 2 * math.exp(4), "")]
    )
    assert found[:2] == pytest.approx((2 * math.exp(-5), 2 * math.exp(5)))
    assert uncertainty.product([SURE])[:2] == pytest.approx(SURE[:2])


def test_a_sum_by_hand():
    # 3 J from half to twice and 4 J for sure: 1.5 below and 3 above 7
    exact = Interval(1.0, 1.0, "")
    found = uncertainty.total([(3.0, Interval(0.5, 2.0, "")), (4.0, exact)])
    assert found[:2] == pytest.approx((5.5 / 7, 10 / 7))
    # twice 3 J and 4 J from half to twice: 1.5 and 2 below are 2.5, 3 and 4 above are 5
    found = uncertainty.total([(3.0, Interval(0.5, 2.0, "")), (4.0, Interval(0.5, 2.0, ""))])
    assert found[:2] == pytest.approx((4.5 / 7, 12 / 7))
    assert uncertainty.total([(1.0, exact), (2.0, exact)])[:2] == pytest.approx((1, 1))


@pytest.mark.parametrize("name", ["a100-80gb", "oaken-hbm"])
def test_energy_by_parts_is_as_sure_as_its_rates(name):
    own = point(name, "llama2-13b")
    results, found = own.results, uncertainty.as_numbers(own.results)
    for part in ("memory_joules_per_token", "compute_joules_per_token"):  # counted, at half to twice the assumed rate
        assert found[part] == pytest.approx([results[part] / 2, results[part] * 2])
    # idling: a factor of 2 and the time's, squares of logarithms added
    low, high = results["token_time_low"], results["token_time_high"]
    wide = math.exp(math.hypot(2 * math.log(2), math.log(high / low)))
    idle = found["idle_joules_per_token"]
    assert idle[1] / idle[0] == pytest.approx(wide)
    whole = found["joules_per_token_by_parts"]
    parts = [found[part] for part in uncertainty.ENERGY_PARTS]
    assert sum(part[0] for part in parts) < whole[0] < results["joules_per_token_by_parts"] < whole[1]
    assert whole[1] < sum(part[1] for part in parts)
    # energy at board power is power times time
    assert found["joules_per_token"] == pytest.approx([results["joules_per_token"] * end for end in (low, high)])


def test_rates_that_a_file_has_from_elsewhere_leave_only_the_time_of_idling_unsure():
    results = {
        "joules_per_token_by_parts": 6.0,
        "memory_joules_per_token": 1.0,
        "compute_joules_per_token": 2.0,
        "idle_joules_per_token": 3.0,
        "token_time_low": 0.8,
        "token_time_high": 1.25,
        "assumptions": [],
    }
    found = uncertainty.of_energy(results)
    assert found["memory_joules_per_token"][:2] == found["compute_joules_per_token"][:2] == (1, 1)
    assert found["idle_joules_per_token"][:2] == pytest.approx((0.8, 1.25))
    assert found["joules_per_token_by_parts"][:2] == pytest.approx((5.4 / 6, 6.75 / 6))
    assert uncertainty.of_energy({"joules_per_token_by_parts": None}) == {}


def row(rate, **changed):
    return {
        "device": "A",
        "stack": "vllm",
        "model_kind": "calibrated",
        **dict.fromkeys(uncertainty.LAYOUT, 1),
        "weights": "bf16",
        "assumptions": (),
        "linear_s": 2 / rate,
        "token_time_low": 0.8,
        "token_time_high": 1.3,
        "throughput_tokens_per_s": rate,
        "decode_step_s": 8 / rate,
        "key_quantizer": "fp16",
        "value_quantizer": "fp16",
        "tokens": "full",
        "attention_s": 3 / rate,
        "quantize_s": 0.0,
        "dequantize_s": 1 / rate,
        **changed,
    }


@pytest.mark.parametrize("other", [{}, {"device": "B"}, {"stack": "sglang"}, {"token_time_high": 1.5}])
def test_a_gain_the_other_way_round_is_its_reciprocal(other):
    first, second = row(300.0), row(200.0, **other)
    there, back = uncertainty.gain(first, second), uncertainty.gain(second, first)
    assert uncertainty.predicted_gain(first, second) == pytest.approx(1.5)
    assert there.ratio == pytest.approx(math.sqrt(there.low * there.high))
    assert (back.ratio, back.low, back.high) == pytest.approx((1 / there.ratio, 1 / there.high, 1 / there.low))
    assert back.sure == pytest.approx(1 - there.sure)
    # a step that is as many times shorter gains as much
    assert uncertainty.gain(first, second, "decode_step_s") == pytest.approx(there)


def test_designs_of_one_device_are_surer_than_those_of_two():
    alone, apart = (uncertainty.gain(row(300.0), row(200.0, **other)) for other in ({}, {"device": "B"}))
    assert uncertainty.gain(row(300.0), row(200.0, tp=2)) == apart  # other shapes, and links
    # alike: a third of the longer time differs; apart: the widths of both
    assert (alone.low, alone.high) == pytest.approx((1.5 * 0.8 ** (1 / 3), 1.5 * 1.3 ** (1 / 3)))
    assert math.log(apart.high / apart.low) == pytest.approx(math.log(1.3 / 0.8) * math.sqrt(2))
    assert apart.sure < alone.sure
    # at the peak no stack counts
    ideal = {"model_kind": "ideal", "stack": None}
    assert uncertainty.gain(row(300.0, **ideal), row(200.0, **ideal)) == pytest.approx(alone)


def test_kernels_of_other_quantizers_err_by_themselves():
    first, second = row(300.0), row(200.0, key_quantizer="int8")
    # times of 1/300 and 1/200 s, half of each in keys and values; the other halves differ by 1/1200 s
    own = math.hypot(1 / 600, 1 / 400, 1 / 1200) * 200
    found = uncertainty.gain(first, second)
    assert found.high / found.low == pytest.approx((1.3 / 0.8) ** own)
    assert found.high * found.low == pytest.approx(1.5**2 * (1.3 * 0.8) ** (1 / 3))
    back = uncertainty.gain(second, first)
    assert (back.low, back.high) == pytest.approx((1 / found.high, 1 / found.low))
    # equal times, for which nothing is sure but that each is as likely the shorter
    even = uncertainty.gain(row(200.0), second)
    assert even.low < 1 < even.high
    assert even.ratio == pytest.approx(1)
    assert even.sure == pytest.approx(0.5)


def test_products_of_other_weights_err_by_themselves():
    """Times of 1/300 and 1/200 s, a quarter of each in products: 1.5 times as long or short where others stand in."""
    first, second = row(300.0, weights="int8"), row(200.0)
    own = math.hypot(1 / 1200, 1 / 800, 3 / 4 * (1 / 200 - 1 / 300)) * 200
    found = uncertainty.gain(first, second)
    assert found.high / found.low == pytest.approx((1.3 / 0.8) ** own)
    assumed = uncertainty.gain({**first, "assumptions": ("nearest_format",)}, second)
    stand_in = (1 + 0.25 * 0.5) / (1 - 0.25 / 3)
    wide = math.hypot(math.log(found.high / found.low), math.log(stand_in))
    assert math.log(assumed.high / assumed.low) == pytest.approx(wide)
    assert uncertainty.of_weights(first, {**second, "weights": "int8"}) == []


def test_a_gain_that_an_assumed_number_moves_is_less_sure():
    first, second = row(300.0), row(280.0, key_quantizer="int8")
    usual = uncertainty.gain(first, second)
    assert uncertainty.gain(first, second, shifts=[Interval(1.0, 1.0, "")]) == pytest.approx(usual)
    moved = uncertainty.gain(first, second, shifts=[Interval(0.5, 2.0, "")])
    wide = math.hypot(math.log(usual.high / usual.low), math.log(4))
    assert math.log(moved.high / moved.low) == pytest.approx(wide)
    assert 0.5 < moved.sure < usual.sure


def test_the_chance_of_a_target_by_hand():
    own = row(100.0, token_time_low=0.8, token_time_high=1.25)
    # rates from 80 to 125: one of ten measurements below, one above
    for target, chance in ((80, 0.9), (100, 0.5), (125, 0.1)):
        assert uncertainty.chance_of(own, "throughput_tokens_per_s", target) == pytest.approx(chance, abs=1e-4)
    # a step of 80 ms, from 64 to 100 ms
    for target, chance in ((0.1, 0.9), (0.08, 0.5), (0.064, 0.1)):
        assert uncertainty.chance_of(own, "decode_step_s", target) == pytest.approx(chance, abs=1e-4)
    assert uncertainty.ends(own, "decode_step_s") == pytest.approx((0.064, 0.1))
    assert uncertainty.ends(own) == pytest.approx((80, 125))
    with pytest.raises(KeyError):
        uncertainty.ends({**own, "kv_bytes": 1}, "kv_bytes")
