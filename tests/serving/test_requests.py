"""Moments and lengths of traffic: by hand, and against plain loops."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.core.errors import InputError
from dse.serving import requests as traffic
from dse.serving.requests import Lengths, Moments, Requests


def requests(pairs, gap=1.0):
    inputs, outputs = zip(*pairs, strict=True)
    return Requests(np.arange(len(pairs)) * gap, np.array(inputs), np.array(outputs))


PAIRS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=40)


def test_moments_by_hand():
    found = Moments.of(requests([(10, 1), (20, 3), (30, 2)], gap=0.5))
    assert (found.n_requests, found.duration_s, found.rate_per_s) == (3, 1.0, 2.0)  # 2 gaps in 1 s
    assert (found.mean_input_tokens, found.mean_output_tokens) == (20.0, 2.0)
    assert found.mean_input_squared == 1400 / 3  # 100 + 400 + 900
    assert found.mean_output_squared == 14 / 3  # 1 + 9 + 4
    assert found.mean_input_output == 130 / 3  # 10 + 60 + 60
    assert (found.max_input_tokens, found.max_output_tokens) == (30, 3)
    assert found.mean_reciprocal_output == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert found.mean_inverse_output == pytest.approx((1 / 2 + 1 / 3) / 2)  # but the answer of one token
    # steps read 11; 21, 22, 23; 31, 32: 140 / 6
    assert found.mean_decode_context_tokens == pytest.approx(140 / 6, rel=1e-15)


def test_longer_answers():
    pairs = [(10, 1), (20, 3), (30, 2)]
    longer = Moments.of(requests([(i, 5 * o) for i, o in pairs]))
    assert astuple(Moments.of(requests(pairs)).with_longer_answers(5)) == pytest.approx(astuple(longer))


def test_one_request_has_no_rate():
    assert Moments.of(requests([(5, 5)])).rate_per_s is None


@given(PAIRS)
def test_lengths_equal_loops(pairs):
    found = Lengths.of(requests(pairs))
    contexts = [i + t for i, o in pairs for t in range(1, o + 1)]
    assert found.n_steps == len(contexts)
    assert found.steps_at.tolist() == [contexts.count(s) for s in range(max(contexts) + 1)]
    assert found.moments.mean_decode_context_tokens == pytest.approx(sum(contexts) / len(contexts), rel=1e-13)
    assert found.final_steps.tolist() == [
        sum(o for i, o in pairs if i + o == n) for n in range(max(i + o for i, o in pairs) + 1)
    ]


@given(PAIRS, st.integers(1, 200))
def test_expected_largest_is_the_order_statistic(pairs, batch):
    outputs = sorted(o for _, o in pairs)
    n = len(outputs)
    sorted_sum = sum(x * ((i / n) ** batch - ((i - 1) / n) ** batch) for i, x in enumerate(outputs, 1))
    assert Lengths.of(requests(pairs)).largest_output(batch) == pytest.approx(sorted_sum, rel=1e-9)


def test_expected_largest_by_hand():
    # two of {1, 3}: (1,1), (1,3), (3,1), (3,3) -> (1 + 3 + 3 + 3) / 4
    assert traffic.expected_largest(np.array([0, 1, 0, 1]), 2) == 2.5
    assert traffic.expected_largest(np.array([0, 1, 0, 1]), 1) == 2.0


def test_quantiles():
    counts = np.bincount([2, 2, 5, 9])
    assert traffic.quantile(counts, (0, 0.5, 0.51, 0.75, 1)) == [2, 2, 5, 5, 9]


@pytest.mark.parametrize("pairs", [[(0, 1)], [(1, 0)], [(1, traffic.MAX_TOKENS + 1)], [(-1, 1)]])
def test_lengths_out_of_range(pairs):
    with pytest.raises(InputError, match="must be a whole number from 1 to"):
        Moments.of(requests(pairs))


def test_no_requests():
    with pytest.raises(InputError, match="at least one"):
        Moments.of(Requests(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64)))


def test_the_largest_lengths_do_not_overflow():
    n = traffic.BLOCK_REQUESTS
    full = np.full(n, traffic.MAX_TOKENS)
    found = Moments.of(Requests(np.zeros(n), full, full))
    assert found.mean_input_squared == found.mean_input_output == float(traffic.MAX_TOKENS**2)
