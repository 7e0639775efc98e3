"""Reserved against paged memory on traces: by loops over requests and steps, and against a batch of equal requests."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from dse import quantizers
from dse.core.errors import InputError
from dse.model import kv_layout as plan
from dse.model.kv_bytes import padding_bits
from dse.model.point import Point
from dse.serving import admission
from dse.serving import trace_tables as traffic_tables
from dse.serving.requests import Lengths, Requests
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build

DEVICE = catalog.device("a100-80gb")


def lengths(pairs):
    inputs, outputs = zip(*pairs, strict=True)
    return Lengths.of(Requests(np.zeros(len(pairs)), np.array(inputs), np.array(outputs)))


def by_loops(device, kv, work, pairs, longest):
    """Sums over every decode step of every request of (held KV, held in all), per rule, and used KV.

    Pages of bytes leave their tails unused under every rule; pages of tokens where memory is paged.
    """
    memory = Point(device, kv, work)
    kv, tensors = memory.plan, memory.design.tensors
    in_bytes = any(g.page_row_bits for g in tensors)
    sums = {rule: [0, 0] for rule in admission.RULES}
    used = 0

    def unused(n, page_tokens):
        return sum(g.n_stored_layers * padding_bits(g, min(n, g.window_tokens), page_tokens) for g in tensors)

    def held(n):
        return kv.bits(n) + (unused(n, 1) if in_bytes else 0)

    def peak(last):
        return max(held(n) for n in range(1, last + 1)), max(held(n) + memory.extra_bits(n) for n in range(1, last + 1))

    for i, o in pairs:
        for s in range(i + 1, i + o + 1):
            page = unused(s, work.page_tokens)
            used += kv.bits(s)
            for rule, now in (
                ("longest", peak(longest)),
                ("final", peak(i + o)),
                ("paged", (kv.bits(s) + page, kv.bits(s) + page + memory.extra_bits(s))),
            ):
                sums[rule] = [total + part for total, part in zip(sums[rule], now, strict=True)]
    return memory, sums, used


@each("quantizer", ["fp16", "oaken", "kivi:bits=4", "sinkq:group=16,residual=32", "nqkv"])
@each(("device", "model"), [("a100-80gb", "opt-125m"), ("a100-80gb", "mistral-7b"), ("oaken-lpddr", "mistral-7b")])
def test_fits_equal_loops(device, model, quantizer):
    device = catalog.device(device)
    pairs = [(3, 5), (40, 1), (17, 30), (17, 2), (100, 20)]
    kv = build(model, quantizer)
    if model == "mistral-7b":  # a window inside the lengths
        layers = tuple(layer.model_copy(update={"window": 48}) for layer in kv.model.layers)
        spec = quantizers.parse(quantizer)
        kv = plan.build(kv.model.model_copy(update={"layers": layers}), spec, spec)
    work = Workload(page_tokens=16)
    memory, sums, used = by_loops(device, kv, work, pairs, 150)
    n_steps = sum(o for _, o in pairs)
    for fit in admission.fits(device, kv, work, lengths(pairs), 150):
        held, own = sums[fit.rule]
        assert fit.held_bytes == pytest.approx(held / n_steps / memory.unit, rel=1e-14)
        assert fit.used_bytes == pytest.approx(used / n_steps / memory.unit, rel=1e-14)
        assert fit.n_sequences == int(Fraction(memory.free_bytes * memory.unit * n_steps, own))
        assert fit.waste_share == pytest.approx(1 - used / held, abs=1e-14)


@given(st.integers(1, 3000), st.integers(1, 500), st.sampled_from(["fp16", "int8", "kvquant", "qserve"]))
@settings(max_examples=25)
def test_equal_requests_are_one_batch(n_in, n_out, quantizer):
    kv = build("llama2-7b", quantizer)
    found = {
        f.rule: f.n_sequences
        for f in admission.fits(DEVICE, kv, Workload(memory="paper"), lengths([(n_in, n_out)] * 3))
    }
    for rule, own in (("final", "reserve"), ("paged", "paged")):
        work = Workload(1, n_in, n_out, admission=own, memory="paper")
        assert found[rule] == Point(DEVICE, kv, work).max_batch
    assert found["longest"] <= found["final"]


def test_paging_wastes_less_than_a_page():
    typical = Lengths.of(traffic_tables.load("azure-conv").typical(4096))
    longest, final, paged = admission.fits(DEVICE, build("llama2-13b", "fp16"), Workload(), typical)
    assert longest.waste_share > final.waste_share > paged.waste_share
    assert paged.waste_share < 16 / 1227  # at most a page of 16 tokens at the mean context
    assert longest.n_sequences < final.n_sequences < paged.n_sequences
    # FP16 tokens: waste of the longest length is 1 - mean context / longest
    context = typical.moments.mean_decode_context_tokens
    assert longest.waste_share == pytest.approx(1 - context / (len(typical.final_counts) - 1), rel=1e-12)


def test_nothing_fits_where_the_longest_request_does_not():
    kv = build("llama2-13b", "fp16")
    found = admission.fits(DEVICE, kv, Workload(), lengths([(100, 100)] * 1000 + [(200_000, 1)]))
    assert [fit.n_sequences for fit in found] == [0, 0, 0]


def test_a_longest_length_below_the_trace():
    with pytest.raises(InputError, match="max-tokens = 100: must be a whole number from 200"):
        admission.fits(DEVICE, build("opt-125m", "fp16"), Workload(), lengths([(100, 100)]), 100)


def test_the_model_says_what_is_longest():
    kv = build("llama2-13b", "fp16")
    assert admission.longest_tokens(kv, lengths([(100, 100)]), None) == max(kv.model.max_position_tokens or 0, 200)
    assert admission.longest_tokens(kv, lengths([(100, 100)]), 500) == 500
