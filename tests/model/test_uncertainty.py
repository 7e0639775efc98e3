"""How sure times are: where an interval comes from, its numbers by hand, and comparisons of designs."""

import math

import pytest

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
    return uncertainty.intervals(own.device, own.plan, own.stack, own.stack_name)


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
    dense, mixture = (intervals(model=name, stack="vllm").tokens for name in ("llama2-7b", "mixtral-8x7b-v0.1"))
    assert mixture.low < dense.low < 1 < dense.high < mixture.high


def test_a_device_with_the_kernels_of_another_is_less_sure(monkeypatch):
    own = catalog.device("h100")
    borrows = own.model_copy(update={"stacks_of": "h200"})
    first, second = (intervals(device, "llama2-7b", stack="vllm").tokens for device in (own, borrows))
    assert second.low == pytest.approx(first.low / 1.15)
    assert second.high == pytest.approx(first.high * 1.15)


def test_a_data_sheet_is_derated():
    found = intervals(model_kind="ideal")
    # measured devices reach 0.85 to 0.93 of the bandwidth and 0.7 to 1.0 of the rate: times only grow
    assert (found.tokens.low, found.tokens.high) == pytest.approx((1 / 0.93, 1 / 0.7))
    assert (found.first.low, found.first.high) == pytest.approx((1.0, 1 / 0.7))
    assert found.tokens.low > 1


@pytest.mark.parametrize("work", [{"model_kind": "ideal"}, {"stack": "vllm"}, {"stack": "sglang@0.5.9"}])
def test_results_lie_inside_where_they_are_positive(work):
    own = point(**work)
    found = uncertainty.as_numbers(own.results, own.stack)
    assert {"decode_step_s", "steady_tpot_s", "throughput_tokens_per_s", "steady_ttft_s", "prefill_s"} <= set(found)
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
    assert uncertainty.confidence(1.0, 1.0, 1.0) == 0.5


def test_a_ratio_by_hand():
    # half of the longer time differs: factors of 0.8 ** 0.5 and 1.3 ** 0.5
    assert uncertainty.ratio(0.02, 0.01, SURE) == pytest.approx((2 * 0.894427, 2 * 1.140175), rel=1e-5)
    low, high = uncertainty.ratio(0.01, 0.02, SURE)
    assert (low, high) == pytest.approx((0.5 * 0.894427, 0.5 * 1.140175), rel=1e-5)


def test_the_more_designs_differ_the_wider_is_their_ratio():
    widths = [high / low for low, high in (uncertainty.ratio(1.0, other, SURE) for other in (1.0, 0.9, 0.7, 0.4, 0.1))]
    assert widths == sorted(widths)
    assert widths[0] == 1
    assert widths[-1] < 1.3 / 0.8


def test_confidence_by_hand():
    # one end of the interval at 1: of ten, eight lie inside and one beyond either end
    assert uncertainty.confidence(1.2, 1.0, 1.44) == pytest.approx(0.9, abs=1e-4)
    assert uncertainty.confidence(1 / 1.2, 1 / 1.44, 1.0) == pytest.approx(0.9, abs=1e-4)
    assert uncertainty.confidence(1.1, 1.1, 1.1) == 1
    grows = [uncertainty.confidence(r, r * 0.8, r / 0.8) for r in (1.01, 1.1, 1.3, 2.0)]
    assert grows == sorted(grows)
    assert 0.5 < grows[0] < grows[-1] < 1
