"""Errors by head against plain loops in float64, and against values worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.measure import errors as measure_errors
from dse.measure import synthetic as kv_sample
from dse.measure.source import About


def naive_weights(query, keys, last):
    """Attention weights of one query, token by token."""
    scores = [sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in keys[: last + 1]]
    top = max(scores)
    parts = [math.exp(score - top) for score in scores]
    total = sum(parts)
    return [part / total for part in parts] + [0.0] * (len(keys) - last - 1)


def naive_attention(queries, lasts, keys, values):
    """squared error of the output, squared output, mass moved, KL: by side."""
    found = {}
    for side, (k, v) in {"key": (1, 0), "value": (0, 1), "both": (1, 1)}.items():
        sums = [0.0] * 4
        for query, last in zip(queries, lasts, strict=True):
            exact, seen = naive_weights(query, keys[0], last), naive_weights(query, keys[k], last)
            for c in range(len(values[0][0])):
                right = sum(w * value[c] for w, value in zip(exact, values[0], strict=True))
                other = sum(w * value[c] for w, value in zip(seen, values[v], strict=True))
                sums[0] += (other - right) ** 2
                sums[1] += right**2
            sums[2] += sum(abs(a - b) for a, b in zip(exact, seen, strict=True)) / 2
            sums[3] += sum(a * math.log(a / b) for a, b in zip(exact, seen, strict=True) if a)
        found[side] = dict(zip(measure_errors.ATTENTION_SUMS, sums, strict=True))
    return found


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 6), st.integers(1, 4))
def test_attention_equals_plain_loops(seed, n_tokens, dim, n_queries):
    rng = np.random.default_rng(seed)
    n_queries = min(n_queries, n_tokens)
    keys, values = (
        tuple(x + noise * rng.standard_normal((n_tokens, dim)) for noise in (0, 0.3))
        for x in 2 * rng.standard_normal((2, n_tokens, dim))
    )
    queries = rng.standard_normal((n_queries, dim))
    last = np.arange(n_tokens - n_queries, n_tokens)
    found = measure_errors.attention_sums(queries, last, keys, values)
    wanted = naive_attention(queries.tolist(), last.tolist(), [k.tolist() for k in keys], [v.tolist() for v in values])
    for side, sums in wanted.items():
        for name, number in sums.items():
            assert found[side][name] == pytest.approx(number, rel=1e-6, abs=1e-12), (side, name)


def test_attention_by_hand():
    # one channel, query 1; keys 0 and 0: weights 1/2 each. Seen keys 0 and ln 3: weights 1/4 and 3/4.
    # values 1 and 3: output 2, seen 1/4 + 9/4 = 2.5; mass moved 1/4; KL = ln(2)/2 + ln(2/3)/2 = ln(4/3)/2
    keys = np.array([[0.0], [0.0]]), np.array([[0.0], [math.log(3)]])
    values = np.array([[1.0], [3.0]]), np.array([[1.0], [5.0]])
    found = measure_errors.attention_sums(np.array([[1.0]]), np.array([1]), keys, values)
    assert found["key"] == pytest.approx(
        {"squared_output_error": 0.25, "squared_output": 4, "mass_moved": 0.25, "kl_nats": math.log(4 / 3) / 2}
    )
    # seen values 1 and 5: output 3, error 1; nothing moves; both: 1/4 + 15/4 = 4, error 2
    assert found["value"] == pytest.approx(
        {"squared_output_error": 1, "squared_output": 4, "mass_moved": 0, "kl_nats": 0}
    )
    assert found["both"]["squared_output_error"] == pytest.approx(4)
    # a query at token 0 sees that token only: nothing can move
    first = measure_errors.attention_sums(np.array([[1.0]]), np.array([0]), keys, values)
    assert first["both"] == pytest.approx(
        {"squared_output_error": 0, "squared_output": 1, "mass_moved": 0, "kl_nats": 0}
    )


def test_tensor_errors_by_hand():
    # x = 3, 4; seen 3, 3: squared error 1, x**2 25, seen**2 18, product 9 + 12, over 2 elements
    sums = measure_errors.tensor_sums(np.array([[[3.0, 4.0]]]), np.array([[[3.0, 3.0]]]))
    found = measure_errors.ratios({**sums, "n_elements": 2})
    assert found["mse"] == 0.5
    assert found["sqnr_db"] == pytest.approx(10 * math.log10(25))
    assert found["max_abs_error"] == 1
    assert found["cosine"] == pytest.approx(21 / (5 * math.sqrt(18)))
    assert found["output_error"] is None


def test_ratios_of_nothing_are_missing_not_infinite():
    zeros = measure_errors.tensor_sums(np.zeros((1, 1, 2)), np.zeros((1, 1, 2)))
    found = measure_errors.ratios({**zeros, "n_elements": 2})
    assert (found["sqnr_db"], found["cosine"], found["mse"]) == (None, None, 0)


def test_rope_turns_channel_pairs():
    # head_dim 4, theta 100: channels (0, 2) turn by the position, (1, 3) by a tenth of it
    x = np.array([[1.0, 0.0, 0.0, 2.0]] * 2)
    found = measure_errors.rotated(x, np.array([0.0, 3.0]), 100.0)
    assert found[0] == pytest.approx(x[0])
    wanted = [math.cos(3), -2 * math.sin(0.3), math.sin(3), 2 * math.cos(0.3)]
    assert found[1] == pytest.approx(wanted)


@given(st.integers(0, 2**32), st.floats(10, 1e6), st.integers(0, 1000))
@settings(max_examples=30)
def test_rope_keeps_norms_and_sees_distances_only(seed, theta, shift):
    x = np.random.default_rng(seed).standard_normal((5, 8))
    here, there = (measure_errors.rotated(x, np.arange(5.0) + start, theta) for start in (0, shift))
    assert np.square(here).sum(axis=1) == pytest.approx(np.square(x).sum(axis=1))
    assert here @ here.T == pytest.approx(there @ there.T, abs=1e-9)


def test_drawn_queries_spread_as_said_and_repeat():
    keys = np.random.default_rng(3).standard_normal((200, 16)) * 7
    queries = measure_errors.drawn(keys, 32, 0, (1, 0, 2))
    scores = queries @ keys.T / 4
    assert math.sqrt(scores.var(axis=1).mean()) == pytest.approx(kv_sample.SPREAD)
    assert np.array_equal(queries, measure_errors.drawn(keys, 32, 0, (1, 0, 2)))
    assert not np.array_equal(queries, measure_errors.drawn(keys, 32, 1, (1, 0, 2)))
    assert np.isfinite(measure_errors.drawn(keys[:1], 2, 0, (0, 0, 0))).all()


def test_rows_of_heads_equal_plain_loops_over_batch_heads_and_groups():
    rng = np.random.default_rng(5)
    shape = (2, 3, 6, 4)
    exact = {side: rng.standard_normal(shape).astype(np.float16) for side in ("key", "value")}
    seen = {side: (x + 0.1 * rng.standard_normal(shape)).astype(np.float16) for side, x in exact.items()}
    query = rng.standard_normal((2, 6, 3, 4)).astype(np.float16)  # two query heads a key head
    rows = list(measure_errors.head_rows(exact, seen, query, About(), 0, measure_errors.Queries(2)))
    assert [(row["side"], row["head"]) for row in rows[:3]] == [("key", 0), ("value", 0), ("both", 0)]
    for head in range(3):
        own = {row["side"]: row for row in rows if row["head"] == head}
        for side in ("key", "value"):
            off = [
                float(a) - float(b)
                for a, b in zip(exact[side][:, head].ravel(), seen[side][:, head].ravel(), strict=True)
            ]
            assert own[side]["squared_error"] == pytest.approx(sum(e * e for e in off), rel=1e-6)
            assert own[side]["max_abs_error"] == max(map(abs, off))
        total = dict.fromkeys(measure_errors.ATTENTION_SUMS, 0.0)
        for batch in range(2):
            for group in (2 * head, 2 * head + 1):
                part = naive_attention(
                    query[batch, group, 1:].astype(float).tolist(),
                    [4, 5],
                    *([x[side][batch, head].astype(float).tolist() for x in (exact, seen)] for side in exact),
                )["both"]
                total = {name: total[name] + part[name] for name in total}
        assert own["both"]["n_queries"] == 8
        for name, number in total.items():
            assert own["both"][name] == pytest.approx(number, rel=1e-6), name
    # pooled over the heads: the sums add up, the largest error is the largest
    keys = [row for row in rows if row["side"] == "key"]
    assert measure_errors.pooled(keys)["squared_error"] == pytest.approx(sum(r["squared_error"] for r in keys))
    assert measure_errors.pooled(keys)["max_abs_error"] == max(r["max_abs_error"] for r in keys)


def test_keys_before_rope_are_turned_for_attention_only():
    rng = np.random.default_rng(6)
    key, value = rng.standard_normal((2, 1, 1, 5, 4)).astype(np.float16)
    near = (key + 0.1).astype(np.float16)
    query = rng.standard_normal((1, 1, 2, 4)).astype(np.float16)
    of = About(rope="before", theta=100.0, first_position=7)
    two = measure_errors.Queries(2)
    before = list(
        measure_errors.head_rows({"key": key, "value": value}, {"key": near, "value": value}, query, of, 0, two)
    )

    def turned(x, first):
        return measure_errors.rotated(x[0, 0].astype(float), 7.0 + first + np.arange(x.shape[2]), 100.0)

    wanted = measure_errors.attention_sums(
        turned(query, 3), np.array([3, 4]), (turned(key, 0), turned(near, 0)), (value[0, 0].astype(float),) * 2
    )
    assert before[0]["squared_output_error"] == pytest.approx(wanted["key"]["squared_output_error"])
    assert before[0]["squared_error"] == pytest.approx(np.square(key.astype(float) - near.astype(float)).sum())


def test_flat_tensors_are_heads_side_by_side():
    x = np.arange(12.0).reshape(2, 6)
    assert measure_errors.by_head(x, 3)[0, 1].tolist() == [[2, 3], [8, 9]]
    assert measure_errors.prefix(x, 1).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_a_bell_has_mean_0_and_variance_1():
    x = kv_sample.bell(np.random.PCG64(1), (200, 100))
    assert abs(x.mean()) < 0.03
    assert x.var() == pytest.approx(1, rel=0.05)
