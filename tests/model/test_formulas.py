"""Every formula: documented, and the same bits inside numba as in plain Python."""

import importlib
import inspect
import pkgutil
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
from cases import each
from dse.core.compiling import FORMULAS, array, formula, registered
from dse.model import formulas
from dse.model.formulas import calibrated, dequantize, generation, kv_cache, weights
from dse.model.formulas import capacity as capacity_formulas

for _, module, _ in pkgutil.iter_modules(formulas.__path__):
    importlib.import_module(f"{formulas.__name__}.{module}")


@each("name", sorted(FORMULAS))
def test_formula_is_documented(name):
    function = FORMULAS[name]
    assert function.unit
    assert function.equation
    assert function.source
    assert inspect.getdoc(function).rstrip().endswith(".")


def arguments(function, rng, n):
    """Plausible values per parameter: integers for counts, reals for rates, times and lines."""
    columns = {}
    for name in inspect.signature(function).parameters:
        real = name.endswith(("_s", "_per_s", "_w", "share_touched", "usd_per_hour", "effective_bits", "base"))
        real = real or name.startswith(("first", "slope"))
        if name in ("usable_frac", "base", "share_touched", "group_share", "some_share"):
            columns[name] = rng.uniform(0.1, 1.0, n)
        elif name == "exponent":
            columns[name] = rng.integers(0, 40, n)
        elif name.startswith("line_"):  # first and slope
            columns[name] = [tuple(pair) for pair in rng.uniform(0.5, 50.0, (n, 2)).tolist()]
        elif real:
            columns[name] = rng.uniform(0.5, 50.0, n)
        else:
            columns[name] = rng.integers(1, 4000, n)
    if {"n_active_experts", "n_experts"} <= {*columns}:
        columns["n_experts"] = columns["n_active_experts"] + columns["n_experts"]
    return [column if isinstance(column, list) else column.tolist() for column in columns.values()]


def bits_of(value):
    return struct.pack("<d", float(value))


@pytest.mark.slow
def test_plain_and_numba_agree_bit_for_bit():
    """All in one compiled function, as a sweep's loop calls them: each by itself would compile for half a minute."""
    registered()
    rng, names = np.random.default_rng(7), sorted(FORMULAS)
    columns = {name: [*zip(*arguments(FORMULAS[name], rng, 64), strict=True)] for name in names}
    calls = ", ".join(f"{name}(*row[{i}])" for i, name in enumerate(names))
    exec(f"def every(row):\n    return ({calls},)", found := dict(FORMULAS))
    compiled = registered().njit(error_model="numpy")(found["every"])
    for row in zip(*columns.values(), strict=True):
        expected = [FORMULAS[name](*terms) for name, terms in zip(names, row, strict=True)]
        wrong = [one for one, a, b in zip(names, compiled(row), expected, strict=True) if bits_of(a) != bits_of(b)]
        assert not wrong


def test_an_array_has_the_bits_of_plain_python():
    columns = [np.random.default_rng(7).integers(1, 4000, 64) for _ in range(3)]
    rows = [calibrated.layout_copies(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    assert [*map(bits_of, array(calibrated.layout_copies)(*columns))] == [*map(bits_of, rows)]


@given(st.integers(0, 400), st.integers(1, 70), st.integers(0, 70))
def test_packed_tokens_is_the_streaming_buffer(n, step, residual):
    assert kv_cache.packed_tokens(n, step, residual) == naive.packed_tokens(n, step, residual)


@given(st.integers(0, 2**60), st.integers(1, 2**40), st.integers(0, 2**40))
def test_packed_tokens_conserves_tokens_at_any_size(n, step, residual):
    packed = kv_cache.packed_tokens(n, step, residual)
    assert packed % step == 0
    assert 0 <= packed <= max(n - residual, 0)
    assert n - packed < step + residual or packed == 0


@given(st.integers(0, 300), st.integers(1, 40))
def test_sum_of_pages_is_the_loop(n, page):
    assert kv_cache.sum_of_pages(n, page) == sum(naive.pages(s, page) for s in range(1, n + 1))


@given(st.integers(0, 120), st.integers(1, 40), st.integers(1, 40))
def test_sums_in_chunks_are_the_loop(n, window, chunk):
    seen = [min(naive.seen_tokens(s, chunk, True), window) for s in range(1, n + 1)]
    assert kv_cache.sum_of_seen_tokens(n, window, chunk) == sum(seen)
    whole = [naive.seen_tokens(s, chunk, True) for m in range(1, n + 1) for s in range(1, m + 1)]
    assert kv_cache.sum_of_chunked_pairs(n, chunk) == sum(whole)


@given(st.integers(0, 300), st.integers(1, 200))
def test_sum_of_kept_tokens_is_the_loop(n, window):
    assert kv_cache.sum_of_kept_tokens(n, window) == sum(min(s, window) for s in range(1, n + 1))


@given(st.integers(1, 2**60), st.integers(1, 2**30))
def test_padding_is_less_than_a_page(n, page):
    padding = kv_cache.padding_tokens(n, page)
    assert 0 <= padding < page
    assert (n + padding) % page == 0


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 40), st.integers(1, 200))
def test_bits_are_straight_between_breaks(start, step, residual, window):
    end = min(kv_cache.next_break(start, step, residual, window), start + 100)

    def bits(n):
        return naive.tensor_bits(min(n, window), 3, 16, 5, 7, step, residual)

    slope = kv_cache.piece_slope(start, 3, 16, step, residual, window)
    assert [bits(n) for n in range(start, end)] == [bits(start) + slope * i for i in range(end - start)]


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 9), st.integers(0, 12))
def test_copied_tokens_is_the_loop_over_events(first, more, step, window):
    held = copied = 0
    for event in range(1, first + more + 1):
        before, held = held, min(held + 1, window)
        if event > first:  # once the window is full the buffer is read and written at its full size
            copied += step * (before + held)
    assert dequantize.copied_tokens(first, first + more, step, window) == copied


@given(st.integers(0, 300), st.integers(0, 200), st.integers(1, 40), st.integers(0, 40))
def test_waiting_tokens_are_the_loop(first, more, step, residual):
    waits = [s - naive.packed_tokens(s, step, residual) for s in range(first + 1, first + more + 1)]
    assert dequantize.waiting_tokens(first, first + more, step, residual) == sum(waits)


LINE = st.tuples(st.integers(-50, 50), st.integers(-9, 9))


@given(LINE, LINE, st.integers(0, 9), st.integers(0, 60))
def test_sum_of_max2_is_the_loop(line_0, line_1, start, m):
    loop = sum(max(a[0] + a[1] * i for a in (line_0, line_1)) for i in range(start, start + m))
    assert generation.sum_of_max2(*line_0, *line_1, start, m) == loop


@given(LINE, LINE, LINE, st.integers(0, 60))
def test_sum_of_excess_is_the_loop(line_0, line_1, line_2, m):
    def at(line, i):
        return line[0] + line[1] * i

    loop = sum(max(0, at(line_2, i) - max(at(line_0, i), at(line_1, i))) for i in range(m))
    assert generation.sum_of_excess(*line_0, *line_1, *line_2, m) == loop


REAL = st.tuples(st.floats(1e-6, 1.0), st.floats(0.0, 1e-3))


@given(REAL, REAL, st.integers(1, 2000))
def test_sum_of_max2_in_floats_is_the_exact_loop_within_1e_12(line_0, line_1, m):
    from fractions import Fraction

    exact = [tuple(map(Fraction, line)) for line in (line_0, line_1)]
    loop = sum(max(first + slope * i for first, slope in exact) for i in range(m))
    assert generation.sum_of_max2(*line_0, *line_1, 0, m) == pytest.approx(float(loop), rel=1e-12)


def test_integer_power_is_exact_on_powers_of_two():
    assert [weights.integer_power(0.5, n) for n in range(5)] == [1.0, 0.5, 0.25, 0.125, 0.0625]


def test_expert_share_by_hand():
    # 8 experts, 2 active: one token touches 2/8; two tokens 1 - (6/8)**2 = 7/16
    assert weights.expert_share_touched(1, 8, 2) == 0.25
    assert weights.expert_share_touched(2, 8, 2) == 0.4375
    assert weights.expert_share_touched(5, 1, 1) == 1.0


@given(st.integers(1, 2**60), st.sampled_from([4, 8, 16]))
def test_weight_bytes_exact_at_any_size(n, bits):
    assert (weights.weight_bytes(n, bits) - 1) * 8 < n * bits <= weights.weight_bytes(n, bits) * 8


@given(st.integers(0, 2**62), st.integers(0, 2**40), st.integers(1, 2**40))
def test_max_batch_fits_and_one_more_does_not(free, shared, each):
    n = capacity_formulas.max_batch(free, shared, each)
    if n:
        assert shared + n * each <= free
    assert shared + (n + 1) * each > free


@given(st.integers(1, 10**6), st.integers(1, 10**6))
@settings(max_examples=2 * settings.default.max_examples)
def test_waves_cover_the_batch_and_differ_by_at_most_one(batch, most):
    n = capacity_formulas.n_waves(batch, most)
    running = capacity_formulas.running_batch(batch, n)
    assert running <= most
    n_full = batch - n * (running - 1)
    assert 1 <= n_full <= n
    assert n_full * running + (n - n_full) * (running - 1) == batch


def test_a_name_is_a_formulas_once():
    known = FORMULAS["kept_tokens"]

    def kept_tokens(n_tokens: int) -> int:
        return n_tokens

    with pytest.raises(ValueError, match=r"formula kept_tokens of .*: dse\.model\.formulas\.kv_cache has one"):
        formula("token", "n", "here")(kept_tokens)
    assert FORMULAS["kept_tokens"] is known
