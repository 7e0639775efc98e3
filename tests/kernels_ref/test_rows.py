"""Methods that quantize token by token: ledgers, layouts, streaming, threads, no compilation, refusals."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bits import on_threads, same_bits, without_compilation
from cases import each
from dse import quantizers
from kernels_ref.cache import RowCache
from kernels_ref.integers import PerTokenInteger
from kernels_ref.nf4 import NF4
from kernels_ref.packed import Packed
from row_cases import METHODS, NAMES, VARYING, WHOLE, normal, stored

every_fixed = each("case", METHODS)
every_method = each("case", [*METHODS, *VARYING, *WHOLE])


def heads_of(case, n_batch, n_tokens, dims=0, seed=0):
    heads, head_dim = case.dims[dims]
    rows = normal(n_batch * n_tokens, heads * head_dim, seed)
    return rows, rows.reshape(n_batch, n_tokens, heads, head_dim).transpose(0, 2, 1, 3)


@every_fixed
@pytest.mark.parametrize(("n_batch", "tokens"), [(1, 3), (2, 5), (1, 0)])
def test_ledger_is_the_closed_form(case, n_batch, tokens):
    spec = quantizers.skipping.bare(quantizers.parse(case.name))
    for dims, (heads, head_dim) in enumerate(case.dims):
        _, x = heads_of(case, n_batch, tokens, dims)
        packed = case.method.quantize(x)
        other_dim = 0 if case.name.endswith("mla") else None
        layout = spec.layout(quantizers.TensorShape(case.which, heads, head_dim, other_dim=other_dim))
        closed = {part: n_batch * int(bits) for part, bits in layout.ledger(tokens).items() if bits}
        assert packed.ledger == closed or not tokens  # the factor of an empty tensor of NVFP4 is there
        assert sum(packed.ledger.values()) == 8 * packed.stored_bytes
        if tokens and heads * head_dim % 2 == 0:
            assert packed.effective_bits == layout.effective_bits


@every_method
def test_heads_of_any_layout(case):
    rows, x = heads_of(case, 1 if case in WHOLE else 2, 6)
    x = np.ascontiguousarray(x)
    n_batch, heads, tokens, head_dim = x.shape
    want = case.method.quantize(rows, n_heads=heads)
    seen = want.dequantize().reshape(n_batch, tokens, heads, head_dim).transpose(0, 2, 1, 3)
    before = x.copy()
    strided = np.zeros((n_batch, heads, tokens, 2 * head_dim), np.float16)[..., ::2]
    strided[:] = x
    views = [x, strided, rows.reshape(n_batch, tokens, heads, head_dim).transpose(0, 2, 1, 3), np.asfortranarray(x)]
    for view in [*views, x.astype(np.float32), x.astype(">f2")]:
        packed = case.method.quantize(view)
        assert packed.shape == x.shape
        assert all(same_bits(packed.buffers[key], want.buffers[key]) for key in packed.buffers.keys() - {"factor"})
        assert same_bits(packed.dequantize(), seen)
    assert same_bits(x, before)
    assert case.method.quantize(x[:, :, :0]).dequantize().shape == (n_batch, heads, 0, head_dim)


@every_fixed
def test_permuting_tokens_permutes_bytes(case):
    x, _ = heads_of(case, 1, 20)
    order = np.random.default_rng(3).permutation(20)
    one, other = (case.method.quantize(rows, case.dims[0][0]) for rows in (x, x[order]))
    for key, buffer in one.buffers.items():
        assert len(buffer) < 20 or same_bits(buffer[order], other.buffers[key])


@pytest.mark.parametrize("case", [*METHODS, *VARYING], ids=NAMES)
@settings(max_examples=8)
@given(pieces=st.lists(st.integers(0, 5), min_size=1, max_size=6), four_axes=st.booleans(), seed=st.integers(0, 99))
def test_appending_never_changes_old_bytes(case, pieces, four_axes, seed):
    n, method, varies = sum(pieces), case.method, case in VARYING
    heads, _ = case.dims[0]
    key, value = (
        heads_of(case, 2, n, 0, seed + i)[1] if four_axes else heads_of(case, 1, n, 0, seed + i)[0] for i in (0, 1)
    )
    cache, start = RowCache(method, n_heads=heads), 0
    old = {}
    for piece in pieces:
        part = (..., slice(start, start + piece), slice(None))
        cache.append(key[part], value[part])
        start += piece
        held = [packed.buffers for packed in cache.packed("key")]
        if not (varies and four_axes):  # entries of two sequences take turns
            new = {buffer_name: buffer.tobytes() for buffer_name, buffer in cache.buffers.items()}
            assert all(new[buffer_name].startswith(data) for buffer_name, data in old.items())
            old = new
        assert cache.n_tokens == start
    for b, packed in enumerate(cache.packed("key")):
        want = method.quantize(key[b : b + 1] if four_axes else key, heads)
        assert (packed.shape, packed.ledger, packed.counts) == (want.shape, want.ledger, want.counts)
        assert all(same_bits(buffer, want.buffers[which]) for which, buffer in packed.buffers.items())
        assert all(same_bits(buffer, held[b][which]) for which, buffer in packed.buffers.items())
    both = [method.quantize(x, heads) for x in (key, value)]
    for seen, packed in zip(cache.seen(), both, strict=True):
        assert same_bits(seen, packed.dequantize())
    assert cache.stored_bytes == sum(packed.stored_bytes for packed in both)
    assert sum(cache.ledger.values()) == 8 * cache.stored_bytes
    assert cache.n_elements == key.size + value.size
    if n:
        assert cache.stored_bits * cache.n_elements == 8 * cache.stored_bytes
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
def test_values_that_are_not_finite(case):
    x, _ = heads_of(case, 1, 4)
    heads, last = case.dims[0][0], x.shape[1] - 1
    x[1, 2], x[3, 0], x[3, last] = np.nan, -np.inf, np.inf
    with pytest.raises(ValueError, match=rf"x: 3 of {x.size} values .* the first at \[1, 2\]"):
        case.method.quantize(x, heads)
    clean = x.copy()
    clean[1, 2], clean[3, 0], clean[3, last] = 0, -65504, 65504
    one, other = case.method.quantize(x, heads, nonfinite="replace"), case.method.quantize(clean, heads)
    assert all(same_bits(buffer, other.buffers[key]) for key, buffer in one.buffers.items())
    assert np.isfinite(one.dequantize()).all() or case.name == "fp8:format=e5m2"  # PyTorch's cast has infinities


@every_method
def test_damaged_buffers_are_refused(case):
    packed = case.method.quantize(heads_of(case, 1, 4)[0], case.dims[0][0])
    for name, buffer in packed.buffers.items():
        if buffer.size:
            for buffers in (
                {**packed.buffers, name: buffer[1:]},
                {n: b for n, b in packed.buffers.items() if n != name},
            ):
                with pytest.raises(ValueError, match="buffer"):
                    Packed(packed.method, packed.shape, packed.n_elements, buffers, packed.part_of).dequantize()


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
        for method, _, _, ((heads, head_dim), *_) in METHODS:
            shape = (2, heads * head_dim)
            for x in (np.full(shape, 65504, np.float16), np.zeros(shape, np.float16), np.full(shape, 1e30, "f4")):
                method.quantize(x, heads, nonfinite="replace").dequantize()


def test_any_number_of_threads():
    assert set(on_threads("row_cases.stored(200, 200)")) == {stored(200, 200)}


def test_without_compilation():
    assert without_compilation("row_cases.stored(2, 0)") == [stored(2, 0)]
