"""Methods that quantize token by token: layouts, streaming, threads, no compilation, refusals."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bits import on_threads, same_bits, without_compilation
from cases import each
from dse.quantizers import TensorShape, parse
from kernels_ref.cache import RowCache
from kernels_ref.integers import PerTokenInteger
from kernels_ref.nf4 import NF4
from kernels_ref.packed import Packed
from row_cases import METHODS, NAMES, normal, stored

every_method = each(("method", "name"), METHODS)
method_by_method = pytest.mark.parametrize(("method", "name"), METHODS, ids=NAMES)


@every_method
@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(3, 4, 64), (5, 1, 7), (1, 3, 43), (0, 2, 8), (2, 1, 1)])
def test_ledger_is_the_closed_form(method, name, tokens, heads, head_dim):
    x = normal(tokens, heads * head_dim)
    packed = method.quantize(x)
    layout = parse(name).layout(TensorShape("key", heads, head_dim))
    assert packed.ledger == {part: bits * tokens for part, bits in layout.packed.items() if bits * tokens}
    assert sum(packed.ledger.values()) == 8 * packed.stored_bytes
    assert packed.stored_bytes == sum(len(buffer.tobytes()) for buffer in packed.buffers.values())
    if tokens and heads * head_dim % 2 == 0:
        assert packed.effective_bits == layout.effective_bits == packed.stored_bits


@every_method
def test_heads_of_any_layout(method, name):
    batch, heads, tokens, head_dim = 2, 3, 5, 22
    rows = normal(batch * tokens, heads * head_dim)
    x = np.ascontiguousarray(rows.reshape(batch, tokens, heads, head_dim).transpose(0, 2, 1, 3))
    want = method.quantize(rows)
    seen = want.dequantize().reshape(batch, tokens, heads, head_dim).transpose(0, 2, 1, 3)
    before = x.copy()
    strided = np.zeros((batch, heads, tokens, 2 * head_dim), np.float16)[..., ::2]
    strided[:] = x
    views = [x, strided, rows.reshape(batch, tokens, heads, head_dim).transpose(0, 2, 1, 3), np.asfortranarray(x)]
    for view in [*views, x.astype(np.float32), x.astype(">f2")]:
        packed = method.quantize(view)
        assert packed.shape == x.shape
        assert all(same_bits(buffer, want.buffers[key]) for key, buffer in packed.buffers.items())
        assert same_bits(packed.dequantize(), seen)
    assert same_bits(x, before)


@every_method
def test_permuting_tokens_permutes_bytes(method, name):
    x = normal(20, 37)
    order = np.random.default_rng(3).permutation(20)
    one, other = method.quantize(x), method.quantize(x[order])
    for key, buffer in one.buffers.items():
        assert same_bits(buffer[order], other.buffers[key])


@method_by_method
@settings(max_examples=8)
@given(pieces=st.lists(st.integers(0, 5), min_size=1, max_size=6), four_axes=st.booleans(), seed=st.integers(0, 99))
def test_appending_never_changes_old_bytes(method, name, pieces, four_axes, seed):
    n = sum(pieces)
    if four_axes:
        key = normal(2 * 3 * n, 10, seed).reshape(2, 3, n, 10)
        value = normal(2 * 3 * n, 6, seed + 1).reshape(2, 3, n, 6)
    else:
        key, value = normal(n, 30, seed), normal(n, 30, seed + 1)
    cache, start = RowCache(method), 0
    old = {}
    for piece in pieces:
        part = (..., slice(start, start + piece), slice(None))
        cache.append(key[part], value[part])
        start += piece
        held = [packed.buffers for packed in cache.packed("key")]
        new = {buffer_name: buffer.tobytes() for buffer_name, buffer in cache.buffers.items()}
        assert all(new[buffer_name].startswith(data) for buffer_name, data in old.items())
        old = new
        assert cache.n_tokens == start
    for b, packed in enumerate(cache.packed("key")):
        want = method.quantize(key[b : b + 1] if four_axes else key)
        assert (packed.shape, packed.ledger) == (want.shape, want.ledger)
        assert all(same_bits(buffer, want.buffers[which]) for which, buffer in packed.buffers.items())
        assert all(same_bits(buffer, held[b][which]) for which, buffer in packed.buffers.items())
    seen_key, seen_value = cache.seen()
    assert same_bits(seen_key, method.quantize(key).dequantize())
    assert same_bits(seen_value, method.quantize(value).dequantize())
    both = [method.quantize(key), method.quantize(value)]
    assert cache.stored_bytes == sum(packed.stored_bytes for packed in both)
    assert sum(cache.ledger.values()) == 8 * cache.stored_bytes
    assert cache.n_elements == key.size + value.size
    assert cache.stored_bits * cache.n_elements == 8 * cache.stored_bytes
    if n:
        own = sum(packed.effective_bits * packed.n_elements for packed in both)
        assert cache.effective_bits == own / cache.n_elements


class VaryingLength:
    """Stores the values that are not zero, one after the other, and how many each token has."""

    def quantize(self, x, n_heads=1, nonfinite="raise"):
        buffers = {"values": x[x != 0], "lengths": (x != 0).sum(axis=1).astype(np.uint16)}
        parts = {"values": "outliers", "lengths": "counts"}
        return Packed(self, x.shape, x.size, buffers, parts, counts={"n_outliers": int((x != 0).sum())})

    def dequantize(self, packed):
        x = np.zeros(packed.shape, np.float16)
        ends = np.cumsum(packed.buffers["lengths"])
        for row, n, end in zip(x, packed.buffers["lengths"], ends, strict=True):
            row[:n] = packed.buffers["values"][end - n : end]
        return x


def test_entries_of_varying_length():
    rng = np.random.default_rng(5)
    x = np.zeros((9, 6), np.float16)
    for row in x:
        n = rng.integers(0, 7)
        row[:n] = 1 + rng.random(n)
    cache = RowCache(VaryingLength(), PerTokenInteger())
    for t in range(9):
        cache.append(x[t : t + 1], x[t : t + 1])
    assert same_bits(cache.seen()[0], x)
    assert cache.packed("key")[0].counts == {"n_outliers": int((x != 0).sum())}
    assert same_bits(cache.seen()[1], PerTokenInteger().quantize(x).dequantize())


def test_a_refused_append_changes_nothing():
    cache, x = RowCache(NF4(8)), normal(4, 16)
    assert (cache.stored_bytes, cache.stored_bits, cache.effective_bits, cache.n_tokens) == (0, 0, 0, 0)
    with pytest.raises(ValueError, match="the cache is empty"):
        cache.seen()
    cache.append(x, x)
    before = cache.buffers
    bad = x.copy()
    bad[2, 3] = np.inf
    for key, value in (
        (x, bad),
        (x, x[:2]),
        (x[:, :8], x[:, :8]),
        (x[None, None], x[None, None]),
        (x[0], x[0]),
        (1, x),
    ):
        with pytest.raises((TypeError, ValueError), match=r"^value: 1 of 64|must be"):
            cache.append(key, value)
    assert all(same_bits(buffer, before[name]) for name, buffer in cache.buffers.items())
    assert cache.n_tokens == 4


def test_growth_is_amortised():
    cache, x = RowCache(NF4(8)), normal(1, 16)
    moves, address = 0, None
    for _ in range(150):
        cache.append(x, x)
        now = cache.packed("key")[0].buffers["codes"].ctypes.data
        moves, address = moves + (now != address), now
    assert moves < 20


@every_method
def test_values_that_are_not_finite(method, name):
    x = normal(4, 9)
    x[1, 2], x[3, 0], x[3, 8] = np.nan, -np.inf, np.inf
    with pytest.raises(ValueError, match=r"x: 3 of 36 values .* the first at \[1, 2\]"):
        method.quantize(x)
    clean = x.copy()
    clean[1, 2], clean[3, 0], clean[3, 8] = 0, -65504, 65504
    one, other = method.quantize(x, nonfinite="replace"), method.quantize(clean)
    assert all(same_bits(buffer, other.buffers[key]) for key, buffer in one.buffers.items())


def test_what_is_no_tensor():
    for bad in (None, [1.0], np.zeros(3), np.zeros((2, 2), np.int8), np.zeros((1, 1, 1), np.float16)):
        with pytest.raises((TypeError, ValueError), match=r"^x "):
            NF4().quantize(bad)
    with pytest.raises(ValueError, match="at least one"):
        NF4().quantize(np.zeros((2, 0), np.float16))
    packed = NF4(4).quantize(normal(3, 8))
    damaged = Packed(packed.method, (3, 9), 27, packed.buffers, packed.part_of)
    with pytest.raises(ValueError, match="buffer codes"):
        damaged.dequantize()
    with pytest.raises(ValueError, match="buffer absmax: is missing"):
        Packed(packed.method, (3, 8), 24, {"codes": packed.buffers["codes"]}, packed.part_of).dequantize()


def test_no_warning_escapes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method, _ in METHODS:
            for x in (np.full((2, 5), 65504, np.float16), np.zeros((2, 5), np.float16), np.full((2, 5), 1e30, "f4")):
                method.quantize(x, nonfinite="replace").dequantize()


def test_any_number_of_threads():
    assert set(on_threads("row_cases.stored(120, 515)")) == {stored(120, 515)}


def test_without_compilation():
    assert without_compilation("row_cases.stored(6, 67)") == [stored(6, 67)]
