"""Energy by bits and the limit of a board: shipped numbers, the same in interpreted and compiled code."""

import pytest

from cases import each
from dse.model.energy import joules_per_kv_byte, joules_per_weight_byte, watts_at_peak
from dse.model.engine import compiled_results, evaluate
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build

B200 = catalog.device("b200")
LONG = {"batch": 64, "input_tokens": 8192, "output_tokens": 64}


def point(quantizer="fp16", device=B200, **asked):
    return Point(device, build("llama3.1-8b", quantizer), Workload(**{**LONG, **asked}))


def test_keys_and_values_in_8_bits_cost_more_than_half():
    wide, narrow = B200.energy_per_kv_byte.si, B200.energy_per_kv_byte_fp8.si
    assert 0.5 < narrow / 2 / wide < 1
    h200 = catalog.device("h200")
    assert h200.energy_per_kv_byte_fp8.si / 2 / h200.energy_per_kv_byte.si > 0.6
    # of a whole design: what attention reads halves, its energy does not
    found = [point(quantizer) for quantizer in ("fp16", "fp8")]
    joules = [joules_per_kv_byte(one.design) * one.largest_wave.attention_bytes for one in found]
    assert joules[1] / joules[0] > 0.5


def test_each_format_has_its_own_energy():
    narrow = point(weights="fp8").design
    assert joules_per_weight_byte(narrow) == B200.energy_per_byte_fp8.si
    assert joules_per_weight_byte(point(weights="nvfp4").design) == B200.energy_per_byte_fp4.si
    assert joules_per_weight_byte(point().design) == B200.energy_per_byte.si
    assert watts_at_peak(narrow, 4.5e15) == pytest.approx(4.5e15 * B200.energy_per_flop_fp8.si)
    assert watts_at_peak(point(weights="nvfp4").design, 9e15) == pytest.approx(9e15 * B200.energy_per_flop_fp4.si)
    # where only 16 bits are known, an 8-bit operation takes the same power at the higher rate
    assumed = point(device=catalog.device("h100")).design
    assert watts_at_peak(assumed, 1.979e15) == watts_at_peak(assumed, 0.9895e15)


@each("weights", ["fp8", "nvfp4"])
@each("peak", ["1 PFLOP/s", "2.25 PFLOP/s", "3.2 PFLOP/s", "4.4 PFLOP/s"])
def test_energy_of_a_format_does_not_hang_on_the_rate_of_16_bits(weights, peak):
    """A product in 8 bits at 4.5 PFLOP/s and 0.278 pJ draws 1,251 W however fast one in 16 bits is; in 4 bits 1,377."""
    own = point(device=catalog.device(f"b200:peak_flops={peak}"), weights=weights, model_kind="ideal")
    rate = own.design.stack.dense_peak_per_s
    assert watts_at_peak(own.design, rate) == pytest.approx(1251 if weights == "fp8" else 1377)


def test_the_limit_stretches_a_step_at_peak_rates_to_its_power():
    """Of a chip whose energies were measured and whose kernels were not; a peak is no peak where power is short."""
    assert point(model_kind="ideal").largest_wave.wave.power_s == 0
    own = point(device=B200.model_copy(update={"stacks": {}}), model_kind="ideal")
    terms, wave, results = own.terms, own.largest_wave.wave, evaluate(own)
    assert wave.power_s > 0
    without = wave.decode_step_s - wave.power_s
    # by hand: 7.7 TB/s of weights and of keys and values, and operations, at the limit of 1,000 W
    run = own.largest_wave
    joules = 117e-12 * 7.7e12 * run.linear_read_s + 102e-12 * run.attention_bytes
    joules += 2250e12 * 0.451e-12 * run.linear_compute_s + 0.451e-12 * run.attention_flops
    assert wave.decode_step_s == pytest.approx(joules / (1000 - terms.idle_w), rel=1e-6)
    assert wave.decode_step_s > without
    assert results["joules_per_token_by_parts"] <= results["joules_per_token"] * (1 + 1e-9)


@each("kind", ["ideal", "calibrated"])
@each("quantizer", ["fp16", "fp8"])
@each("device", ["b200", "gb200", "h200"])
def test_compiled_results_are_the_interpreted_ones(kind, quantizer, device):
    own = point(quantizer, catalog.device(device), model_kind=kind)
    compiled = compiled_results(own)
    assert compiled is not None
    for name, value in evaluate(own).items():
        if isinstance(value, float):
            assert compiled[name] == pytest.approx(value, rel=1e-9), name


def test_what_is_assumed_and_what_was_measured_within_the_limit_stretch_nothing():
    assert evaluate(point(model_kind="calibrated"))["power_s"] == 0
    assumed = catalog.device("h100")
    assert assumed.energy_per_byte.kind == "assumed"
    assert point(device=assumed, model_kind="ideal").design.device.power_limit_w == 0
    assert evaluate(point(device=assumed, model_kind="ideal"))["power_s"] == 0


def test_measured_energy_has_its_own_range():
    results = evaluate(point())
    assert results["byte_energy_low"] == pytest.approx(B200.energy_per_byte.low / B200.energy_per_byte.value)
    assert not {"energy_per_byte", "energy_per_flop", "idle_power"} & set(results["assumptions"])
