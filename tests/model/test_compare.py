"""Two designs against each other: symmetric, and less sure where an assumed rate decides."""

import math

import pytest

import factories
from cases import each
from dse.model import uncertainty
from dse.model.compare import Case, Comparison
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.questions.common import with_number
from dse.specs import catalog
from dse.specs.workload import Workload


def case(quantizer, device="a100-80gb", **work):
    own = catalog.device(device) if isinstance(device, str) else device
    return Case(own, factories.build("llama2-13b", quantizer), Workload(**{"batch": 16, "admission": "paged", **work}))


@each("column", ["throughput_tokens_per_s", "decode_step_s", "joules_per_token"])
@each("other", [case("kivi"), case("fp16"), case("oaken", "oaken-hbm"), case("qserve", batch=8)])
def test_the_other_way_round_is_the_reciprocal(column, other):
    compared, one = Comparison(column), case("qserve")
    there, back = compared.gain(one, other), compared.gain(other, one)
    assert there.low < there.high
    assert (back.ratio, back.low, back.high) == pytest.approx((1 / there.ratio, 1 / there.high, 1 / there.low))
    assert back.sure == pytest.approx(1 - there.sure)


def test_a_design_is_itself_for_sure():
    one = case("kivi")
    found = Comparison().gain(one, one)
    assert (found.ratio, found.low, found.high) == pytest.approx((1, 1, 1), rel=1e-9)
    assert found.sure == 0.5


def test_an_assumed_rate_moves_the_gain_as_evaluating_at_both_ends_says():
    """KIVI on an A100 packs at an assumed rate: half and twice of it, evaluated here one by one; its kernels' own range
    (tests/model/test_implementations.py) and the start of a kernel make it wider still."""
    one, other = case("kivi"), case("fp16")
    rates = []
    for factor in (0.5, 1, 2):
        rate = factor * one.device.rate("fused").si
        device = with_number(one.device, "fused_rate", rate, "test")
        rates.append(evaluate(Point(device, one.plan, one.work))["throughput_tokens_per_s"])
    base = [evaluate(Point(*each)) for each in (one, other)]
    assert {"fused_rate", "kernel_launch"} <= set(base[0]["assumptions"])
    alone, found = uncertainty.gain(*base), Comparison().gain(one, other)
    assert (alone.ratio, found.ratio) == pytest.approx(
        (math.sqrt(alone.low * alone.high), math.sqrt(found.low * found.high))
    )
    squares = math.log(alone.high / alone.low) ** 2 + math.log(rates[2] / rates[0]) ** 2
    assert math.log(found.high / found.low) ** 2 >= squares * (1 - 1e-9)
    assert found.low < alone.low
    assert found.high > alone.high


def test_what_does_not_run_has_no_gain():
    large = Case(catalog.device("l40s"), factories.build("llama3.1-70b", "fp16"), Workload(batch=8))
    assert Comparison().gain(large, large) is None
