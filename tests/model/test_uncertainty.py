"""How sure times are: where an interval comes from, its numbers by hand, and comparisons of designs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import factories
from dse.model import intervals, uncertainty
from dse.model.engine import evaluate
from dse.model.intervals import Interval
from dse.specs import catalog, servers
from dse.specs.stack import Fit


def point(device="h100", model="llama3.1-8b", **work):
    return factories.point(device, model, **{"batch": 8, "output_tokens": 256, "admission": "paged", **work})


def intervals_at(*args, **work):
    own = point(*args, **work)
    return own.lowered.sure


def fit(held_out, serving=None):
    return Fit(n_points=9, held_out_error=held_out, serving_error=serving, fitted_on="by hand")


def test_a_sum_of_parts_that_err_to_one_side_reaches_what_is_predicted():
    """By hand: two parts of 1, each 1 to 4 times: middles 2 and 2, ends 4 - sqrt(2) = 2.59 and 4 + sqrt(8), over 2."""
    found = intervals.total([(1.0, Interval(1.0, 4.0, "")), (1.0, Interval(1.0, 4.0, ""))])
    assert found.low == 1.0
    assert found.high == pytest.approx((4 + math.sqrt(8)) / 2)


def test_of_a_normal_distribution_eight_of_ten_lie_inside():
    # P(|x| < w) = erf(w / sqrt(2)) of a spread of 1, whose mean absolute error is sqrt(2 / pi)
    width = intervals.WIDTH_80 * math.sqrt(2 / math.pi)
    assert math.erf(width / math.sqrt(2)) == pytest.approx(0.8, abs=2e-4)


def test_kernels_are_as_sure_as_the_worst_fit():
    found = intervals.of_fits([fit(0.02), fit(0.5, serving=0.1)])
    assert (found.low, found.high) == pytest.approx((1 - 0.1606, 1 + 0.1606))
    # a fit that may be off by more than all of a time still leaves a positive one
    assert intervals.of_fits([fit(3.0)]).low == pytest.approx(0.1)
    assert intervals.of_fits([]).low == 1


def test_a_model_with_rows_has_the_interval_of_fits_that_did_not_see_it():
    server = catalog.servers()["trtllm"]
    own, kind = server.models["llama3.1-8b"], server.left_out["dense"]
    found = intervals_at(stack="trtllm@1.0.0rc3")
    assert (found.tokens.low, found.tokens.high) == (own.low, own.high)
    assert (found.first.low, found.first.high) == (own.first_low, own.first_high)
    assert f"{own.n_points} measured rows of llama3.1-8b on trtllm" in found.tokens.why
    assert own.low <= kind.low < 1 < kind.high <= own.high
    other = intervals_at(model="llama2-7b", stack="trtllm@1.0.0rc3")
    assert (other.tokens.low, other.tokens.high) == (kind.low, kind.high)
    assert "left out" in other.tokens.why


#: devices whose kernels were measured; others of which there is a data sheet alone, and that run by those of others
MEASURED = ("a100-80gb", "h100", "h200", "b200", "l40s")
ESTIMATED = ("gaudi2", "gaudi3", "tpu-v6e", "oaken-hbm", "oaken-lpddr", "lpu-hbm", "trainium2")
BORROWING = ("rubin", "mi300x", "h100-pcie", "l4", "v100-32gb")


@pytest.mark.parametrize("model", ["llama3.1-8b", "gpt-oss-120b"])
@pytest.mark.parametrize("estimated", [*ESTIMATED, *BORROWING])
def test_no_estimate_is_surer_than_a_measurement(estimated, model):
    for stack in ("vllm", "sglang", "trtllm"):
        guess = intervals_at(estimated, model, **({"stack": stack} if estimated in BORROWING else {}))
        for device in MEASURED:
            known = intervals_at(device, model, stack=stack)
            for mine, other in zip(guess, known, strict=True):
                assert mine.high / mine.low > other.high / other.low, (device, stack)


def test_a_device_with_a_number_of_your_own_is_less_sure():
    own = catalog.device("h100")
    faster = own.memory_bandwidth.model_copy(update={"value": 4.8, "unit": "TB/s", "kind": "assumed"})
    what_if = own.model_copy(update={"memory_bandwidth": faster})
    for mine, known in zip(intervals_at(what_if), intervals_at("h100"), strict=True):
        assert (mine.low, mine.high) == pytest.approx((known.low / 1.15, known.high * 1.15))


def test_times_per_token_of_amd_are_as_another_device_and_first_tokens_as_another_vendor():
    """MI300X beside H100, whose kernels it runs by: 1.15 and 1.5 times wider, each with its own reason."""
    pairs = zip(intervals_at("mi300x", stack="vllm"), intervals_at("h100", stack="vllm"), strict=True)
    for (mine, known), times in zip(pairs, (1.15, 1.5), strict=True):
        assert (mine.low, mine.high) == pytest.approx((known.low / times, known.high * times))
        assert f"; {times} times wider" in mine.why


def test_a_mixture_that_nobody_measured_is_less_sure_than_a_dense_model():
    dense, mixture = (intervals_at(model=name, stack="vllm").tokens for name in ("llama2-7b", "mixtral-8x7b"))
    assert mixture.low < dense.low < 1 < dense.high <= mixture.high


def test_a_device_with_the_kernels_of_another_is_less_sure(monkeypatch):
    own = catalog.device("h100")
    borrows = own.model_copy(update={"stacks_of": "h200"})
    first, second = (intervals_at(device, "llama2-7b", stack="vllm").tokens for device in (own, borrows))
    assert second.low == pytest.approx(first.low / 1.15)
    assert second.high == pytest.approx(first.high * 1.15)


def test_peaks_are_the_lower_end_of_their_times():
    # measured devices reach 0.85 to 0.93 of the bandwidth and 0.7 to 1.0 of the rate
    for found in intervals.without_kernels("ideal"):
        assert (found.low, found.high) == pytest.approx((1.0, 1 / 0.7))


def test_a_data_sheet_is_derated_to_the_middle_of_what_devices_reach():
    """An estimate takes 0.89 of the bandwidth and 0.85 of the rate; it is no faster than 0.93 and 1.0 of them."""
    found = intervals.without_kernels("estimated")
    assert (found.tokens.low, found.tokens.high) == pytest.approx((0.89 / 0.93, 0.89 / 0.7))
    assert (found.first.low, found.first.high) == pytest.approx((0.85, 0.85 / 0.7))
    peaks, own = (evaluate(point("oaken-hbm", "llama2-7b", model_kind=kind)) for kind in ("ideal", "auto"))
    assert own["model_kind"] == "estimated"
    assert own["decode_step_s"] == pytest.approx(peaks["decode_step_s"] / 0.89)  # bound by bytes
    assert own["prefill_s"] == pytest.approx(peaks["prefill_s"] / 0.85)


@pytest.mark.parametrize("work", [{"model_kind": "ideal"}, {"stack": "vllm"}, {"stack": "sglang@0.5.9"}])
def test_results_lie_inside_where_they_are_positive(work):
    own = point(**work)
    found = uncertainty.as_numbers(evaluate(own), own.stack)
    assert {"decode_step_s", "tpot_s", "throughput_tokens_per_s", "ttft_s", "prefill_s"} <= set(found)
    for name, (low, high) in found.items():
        assert 0 <= low <= high, name
        if work != {"model_kind": "ideal"} and name in uncertainty.TOKEN_TIMES:
            assert low <= evaluate(own)[name] <= high
    # what all of a request's time is in has one interval, whatever it counts
    results = evaluate(own)
    rate, seconds = (found[name][1] / results[name] for name in ("throughput_tokens_per_s", "requests_per_s"))
    assert rate == pytest.approx(seconds)
    for name in ("joules_per_token", "usd_per_million_tokens"):
        if results[name] is not None:
            assert found[name][0] / results[name] == pytest.approx(1 / rate)
    assert not set(found) & {"kv_bytes", "max_batch", "stored_bits"}


def test_a_pool_is_as_unsure_as_start_ups_of_its_class():
    """Shares of an H100's memory beside what is computed, as the server's file has them; tokens go with the pool."""
    server = servers.of("vllm", catalog.device("h100"), "vllm@0.19.0")
    found = evaluate(point(model="qwen3-30b-a3b", admission="paged", stack="vllm@0.19.0"))
    ends = uncertainty.as_numbers(found)
    off = [(n_bytes - found["free_bytes"]) / found["capacity_bytes"] for n_bytes in ends["free_bytes"]]
    assert off == [pytest.approx(server.pool_low.si, abs=1e-9), pytest.approx(server.pool_high.si, abs=1e-9)]
    assert ends["kv_pool_tokens"] == [round(found["kv_pool_tokens"] * found[f"pool_{end}"]) for end in ("low", "high")]
    assert all(isinstance(end, int) for end in ends["kv_pool_tokens"])
    assert ends["max_concurrency"][1] / found["max_concurrency"] == pytest.approx(found["pool_high"])
    unified = evaluate(point("gb10", "qwen3-8b", admission="paged"))
    low = servers.of("vllm", catalog.device("gb10")).pool_low.si
    assert low < server.pool_low.si < 0 < server.pool_high.si
    assert unified["pool_low"] == pytest.approx(1 + low * unified["capacity_bytes"] / unified["free_bytes"])


@pytest.mark.parametrize("work", [{"kv_cache_memory_bytes": 2**34}, {"memory": "paper"}])
def test_a_pool_that_is_given_or_that_no_server_lays_out_has_no_interval(work):
    found = evaluate(point(**work))
    assert (found["pool_low"], found["pool_high"]) == (None, None)
    assert not {"free_bytes", "kv_pool_tokens", "max_concurrency"} & set(uncertainty.as_numbers(found))


def test_a_pool_smaller_than_its_error_may_be_nothing():
    """Two H100 hold the weights of a model of 72 billion parameters in 16 bits, and 1 GiB of keys and values each."""
    work = {"tp": 2, "admission": "paged", "stack": "vllm@0.19.0", "gpu_memory_utilization": 0.925}
    found = evaluate(point(model="qwen2.5-72b", **work))
    assert 0 < found["free_bytes"] < 0.02 * found["capacity_bytes"]
    assert uncertainty.as_numbers(found)["free_bytes"][0] == 0


def test_what_does_not_fit_is_not_unsure():
    own = point("l40s", "llama3.1-70b")
    assert own.max_batch == 0
    assert uncertainty.as_numbers(evaluate(own), own.stack) == {}


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


def test_chances_are_those_of_four_degrees_of_freedom():
    """Quantiles of Student's t as tables print them: 0.741 at 3/4, 1.533 at 0.9, 2.132 at 0.95, 3.747 at 0.99."""
    for end, share in ((0.7407, 0.75), (1.5332, 0.9), (2.1318, 0.95), (3.7469, 0.99), (4.6041, 0.995)):
        wide = math.exp(2 * uncertainty.END_80)
        assert uncertainty.chance(math.exp(end) / math.sqrt(wide), math.exp(end) * math.sqrt(wide)) == pytest.approx(
            share, abs=2e-5
        )


def test_chances_by_hand():
    # of ten measurements one is above the upper end, nine above the lower, five above the middle
    ends = (0.5, 2.0)
    assert uncertainty.chance(*ends) == pytest.approx(0.5)
    assert uncertainty.chance(1.0, 2.0) == pytest.approx(0.9, abs=1e-4)
    assert uncertainty.chance(0.5, 1.0) == pytest.approx(0.1, abs=1e-4)
    assert (uncertainty.chance(2, 2), uncertainty.chance(1, 1), uncertainty.chance(0.5, 0.5)) == (1, 0.5, 0)


def test_a_product_by_hand():
    # half widths of 3 and 4 in logarithms give one of 5
    found = intervals.product(
        [Interval(math.exp(-3), math.exp(3), ""), Interval(2 * math.exp(-4), 2 * math.exp(4), "")]
    )
    assert found[:2] == pytest.approx((2 * math.exp(-5), 2 * math.exp(5)))
    assert intervals.product([SURE])[:2] == pytest.approx(SURE[:2])


def test_a_sum_by_hand():
    # 3 J from half to twice and 4 J for sure: 1.5 below and 3 above 7
    exact = Interval(1.0, 1.0, "")
    found = intervals.total([(3.0, Interval(0.5, 2.0, "")), (4.0, exact)])
    assert found[:2] == pytest.approx((5.5 / 7, 10 / 7))
    # twice 3 J and 4 J from half to twice: 1.5 and 2 below are 2.5, 3 and 4 above are 5
    found = intervals.total([(3.0, Interval(0.5, 2.0, "")), (4.0, Interval(0.5, 2.0, ""))])
    assert found[:2] == pytest.approx((4.5 / 7, 12 / 7))
    assert intervals.total([(1.0, exact), (2.0, exact)])[:2] == pytest.approx((1, 1))


@pytest.mark.parametrize("name", ["a100-80gb", "oaken-hbm"])
def test_energy_by_parts_is_as_sure_as_its_rates(name):
    own = point(name, "llama2-13b")
    results, found = evaluate(own), uncertainty.as_numbers(evaluate(own))
    for part in ("memory_joules_per_token", "compute_joules_per_token"):  # counted, at half to twice the assumed rate
        assert found[part] == pytest.approx([results[part] / 2, results[part] * 2])
    # idling: a factor of 2 and the time's, squares of logarithms added
    high, low = (results["throughput_tokens_per_s"] / end for end in found["throughput_tokens_per_s"])
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
        "first_time_low": 0.5,
        "first_time_high": 2.0,
        "tpot_s": 0.01,
        "throughput_tokens_per_s": 800.0,
        "running_batch": 8,
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
        "model": "M",
        "stack": "vllm",
        "model_kind": "calibrated",
        **dict.fromkeys((*uncertainty.SPLIT, *uncertainty.GROUPS), 1),
        "weights": "bf16",
        "assumptions": (),
        "linear_s": 2 / rate,
        "token_time_low": 0.8,
        "token_time_high": 1.3,
        "first_time_low": 0.6,
        "first_time_high": 2.0,
        # all of a request's time is between its tokens: four run, and each waits as long as four tokens take
        "tpot_s": 4 / rate,
        "running_batch": 4,
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


#: what a design has otherwise, and what its errors have in common with those of the other
OTHERWISE = (
    ({"tp": 2}, 0.8),
    ({"pp": 2}, 0.8),
    ({"ep": 2}, 0.7),
    ({"dcp": 2}, 0.7),
    ({"tp": 2, "ep": 2}, 0.56),
    ({"stack": "sglang"}, 0.1),
    ({"stack": "vllm@0.11.0"}, 0.2),
    ({"device": "B"}, 0.4),
    ({"device": "B", "weights": "fp8", "stack": "sglang@0.5.9"}, 0.02),
    ({"weights": "fp8"}, 0.5),
    ({"model": "N"}, 0.0),
)


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize(("otherwise", "common"), OTHERWISE, ids=lambda one: str(one))
def test_designs_share_what_they_have_in_common(otherwise, common):
    """The variance of a difference of two of one width w is 2 w^2 (1 - correlation)."""
    found = uncertainty.gain(row(300.0), row(200.0, **otherwise))
    wide = math.log(1.3 / 0.8) * math.sqrt(2 * (1 - common))
    assert math.log(found.high / found.low) == pytest.approx(wide)
    assert found.ratio == pytest.approx(1.5)  # both err to the same side


@pytest.mark.usefixtures("by_hand")
def test_designs_of_one_server_are_surer_than_those_of_two():
    alone, apart = (uncertainty.gain(row(300.0), row(200.0, **other)) for other in ({}, {"device": "B"}))
    # alike: a third of the longer time differs
    assert (alone.low, alone.high) == pytest.approx((1.5 * 0.8 ** (1 / 3), 1.5 * 1.3 ** (1 / 3)))
    assert apart.sure < alone.sure
    # at the peak no stack counts
    ideal = {"model_kind": "ideal", "stack": None}
    assert uncertainty.gain(row(300.0, **ideal), row(200.0, **ideal))[:3] == pytest.approx(alone[:3])
    # other kernels of keys and values, half of either time, err by themselves beside
    both = uncertainty.gain(row(300.0), row(200.0, device="B", key_quantizer="int8"))
    own = math.hypot(1 / 600, 1 / 400) * 200 * math.log(1.3 / 0.8)
    assert math.log(both.high / both.low) == pytest.approx(math.hypot(math.log(apart.high / apart.low), own))


@pytest.mark.usefixtures("by_hand")
def test_a_rate_has_the_errors_of_both_times():
    """Three quarters of a request's time are between its tokens: of the logarithms' middles and half widths, three
    quarters of one and a quarter of the other, correlated by 0.3."""
    own = row(100.0, running_batch=8, tpot_s=0.06)
    assert uncertainty.decoding_share(own) == pytest.approx(0.75)
    (a, b), (c, d) = ((math.log(low * high) / 2, math.log(high / low) / 2) for low, high in ((0.8, 1.3), (0.6, 2.0)))
    middle = 0.75 * a + 0.25 * c
    half = math.sqrt((0.75 * b) ** 2 + (0.25 * d) ** 2 + 2 * 0.3 * 0.75 * b * 0.25 * d)
    low, high = uncertainty.ends(own)
    assert (low, high) == pytest.approx((100 * math.exp(-middle - half), 100 * math.exp(half - middle)))
    assert uncertainty.ends(own, "tpot_s") == pytest.approx((0.06 * 0.8, 0.06 * 1.3))
    # inside what the ends of both times give
    assert 100 / (0.75 * 1.3 + 0.25 * 2.0) < low < high < 100 / (0.75 * 0.8 + 0.25 * 0.6)


def test_little_is_sure_of_what_nobody_measured():
    first, second = row(900.0), row(100.0)
    assert uncertainty.gain(first, second).sure > 0.99
    for unknown in ({"model_kind": "estimated"}, {"assumptions": "kv_page, nearest_release"}):
        assert uncertainty.gain({**first, **unknown}, {**second, **unknown}).sure == 0.95
        assert uncertainty.gain({**second, **unknown}, {**first, **unknown}).sure == pytest.approx(0.05)
        assert uncertainty.chance_of({**first, **unknown}, "throughput_tokens_per_s", 1.0) == 0.95
    assert uncertainty.chance_of({**first, "assumptions": ("kv_page",)}, "throughput_tokens_per_s", 1.0) > 0.99


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


@pytest.mark.usefixtures("by_hand")
def test_products_that_others_stand_in_for_err_by_themselves():
    """A quarter of each time in products: 1.5 times as long or short where others stand in."""
    first, second = row(300.0, weights="int8"), row(200.0)
    found = uncertainty.gain(first, second)
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
