"""SinkQ: a plain twin that appends token by token, streaming, sinks kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive_kivi
from bits import digest, same_bits
from cases import each
from kernels_ref.kivi import KIVI
from kernels_ref.sinkq import SinkQ, key_norms
from kivi_cases import KINDS, heads

SIDES = ("key", "value")

pytestmark = pytest.mark.usefixtures("one_thread")


def in_pieces(method, key, value, ends):
    cache, at = method.cache(), 0
    for end in ends:
        cache.append(key[:, :, at:end], value[:, :, at:end])
        at = end
    return cache


CASES = [
    # bits, group, residual, sinks, window, tokens, key and value head_dim
    (2, 32, 8, 3, 32, 150, 20, 20),
    (2, 16, 0, 2, 2, 130, 12, 18),
    (2, 16, 5, 1, 0, 100, 8, 8),
    (4, 8, 3, 10, 5, 75, 16, 9),
    (8, 4, 1, 6, 9, 40, 5, 33),
    (1, 32, 31, 3, 32, 100, 33, 7),
    (2, 16, 4, 0, 4, 60, 16, 16),
]


def falling(n_tokens):
    """Factors from 1 down, in steps of 8 tokens."""
    steps = 4 + np.arange(n_tokens)[::-1, None] // 8
    return (steps / steps[0]).astype(np.float16)


@each("kind", KINDS)
@each("case", CASES)
def test_twin(case, kind):
    bits, group, residual, sinks, window, n_tokens, key_dim, value_dim = case
    method = SinkQ(bits, group, residual, sinks, window)
    key = heads(kind, 1, 2, n_tokens, key_dim, 1)
    value = heads(kind, 1, 2, n_tokens, value_dim, 2)
    # smaller and smaller keys now and then, and equal ones, so that the pool changes and ties occur
    key[:, 0] *= falling(n_tokens)
    key[:, :, 7::13] = key[:, :, 7:8]
    cache = method.quantize(key, value)
    seen = dict(zip(SIDES, cache.seen(), strict=True))
    kept = {"key_positions": [], "key_sinks": [], "value_sinks": []}
    for h in range(2):
        naive = naive_kivi.sinkq(key[0, h], value[0, h], bits, group, residual, sinks, window)
        pool, out = cache.pool_positions[0, h], cache.window_positions[0, h]
        assert pool[pool >= 0].tolist() == naive["pool"]
        assert out[out >= 0].tolist() == naive["evicted"]
        assert cache.stopped[0, h] == naive["stopped"]
        tokens = naive["pool"] + naive["evicted"]
        kept["key_positions"] += tokens
        for side, x in (("key", key), ("value", value)):
            kept[f"{side}_sinks"] += x[0, h, tokens].tolist()
            assert same_bits(seen[side][0, h], naive["seen"][side])
            for i, name in enumerate(("codes", "scales", "mins")):
                found = cache.buffers[f"{side}_{name}"][0, h]
                assert same_bits(found, np.concatenate([core[i] for core in naive["packed"][side]]))
    for name, rows in kept.items():
        assert cache.buffers[name].tolist() == rows


def test_the_pool_is_lively_in_these_cases():
    """The twin's cases see tokens pushed out, windows that fill up, and tokens that tie."""
    pushed = stopped = 0
    for bits, group, residual, sinks, window, n_tokens, key_dim, _ in CASES:
        key = heads("normal", 1, 2, n_tokens, key_dim, 1)
        key[:, 0] *= falling(n_tokens)
        cache = SinkQ(bits, group, residual, sinks, window).quantize(key, key)
        pushed += int(cache.n_evicted.sum())
        stopped += int(cache.stopped.sum())
    assert pushed > 20
    assert stopped >= 3


def test_ties_stay_in_order():
    key = np.ones((1, 1, 64, 4), np.float16)
    cache = SinkQ(2, 16, 0, sinks=3).quantize(key, key)
    assert cache.pool_positions.tolist() == [[[0, 1, 2]]]
    assert cache.n_evicted.tolist() == [[0]]
    key[0, 0, 40] = key[0, 0, 20] = 0.5
    cache = SinkQ(2, 16, 0, sinks=3).quantize(key, key)
    assert cache.pool_positions.tolist() == [[[20, 40, 0]]]
    assert cache.window_positions[0, 0].tolist()[:2] == [2, 1]


@given(st.data())
def test_streaming_in_any_pieces_is_a_prompt_at_once(data):
    group = data.draw(st.sampled_from([8, 16]))
    method = SinkQ(
        4,
        group,
        data.draw(st.integers(0, 20)),
        data.draw(st.integers(0, 4)),
        data.draw(st.integers(0, 6)),
        layer=data.draw(st.integers(0, 3)),
        key_layout=data.draw(st.sampled_from(["torch", "triton"])),
    )
    pieces = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
    n = sum(pieces)
    key, value = heads("normal", 2, 2, n, 6, n), heads("heavy", 2, 2, n, 10, n + 1)
    before = digest({"key": key, "value": value})
    cache = in_pieces(method, key, value, np.cumsum(pieces).tolist())
    once = method.quantize(key, value)
    assert digest(cache.buffers) == digest(once.buffers)
    assert cache.ledger == once.ledger
    assert cache.counts == once.counts
    for name in ("pool_positions", "n_evicted", "stopped"):
        assert (getattr(cache, name) == getattr(once, name)).all()
    for seen, other, x in zip(cache.seen(), once.seen(), (key, value), strict=True):
        assert same_bits(seen, other)
        for b, h in np.ndindex(2, 2):  # what is kept is kept to the bit
            kept = cache.pool_positions[b, h]
            assert same_bits(seen[b, h, kept[kept >= 0]], x[b, h, kept[kept >= 0]])
            kept = once.window_positions[b, h]
            assert same_bits(seen[b, h, kept[kept >= 0]], x[b, h, kept[kept >= 0]])
    assert digest({"key": key, "value": value}) == before


def test_first_two_layers_are_plain_groups():
    key, value = heads("normal", 1, 2, 100, 16, 1), heads("normal", 1, 2, 100, 16, 2)
    caches = [SinkQ(2, 16, 4, layer=layer).quantize(key, value) for layer in range(3)]
    assert digest(caches[0].buffers) == digest(caches[1].buffers)
    assert caches[2].counts["n_pool"] == 6
    kivi = KIVI(2, 16, 0).quantize(key[:, :, :96], "key")
    assert same_bits(caches[0].buffers["key_codes"], kivi.buffers["key_codes"])
    assert caches[0].buffers["key_sinks"].shape == (0, 16)


def test_flat_tensors_and_any_strides():
    key, value = heads("normal", 1, 3, 90, 10, 1), heads("normal", 1, 3, 90, 10, 2)
    method = SinkQ(2, 16, 4)
    cache = method.quantize(key, value)
    flat = [np.ascontiguousarray(x[0].transpose(1, 0, 2).reshape(90, 30)) for x in (key, value)]
    two = method.quantize(*flat, n_heads=3)
    assert digest(two.buffers) == digest(cache.buffers)
    for seen, wide in zip(two.seen(), cache.seen(), strict=True):
        assert same_bits(seen, wide[0].transpose(1, 0, 2).reshape(90, 30))
    other = method.quantize(np.asfortranarray(key), value.astype(np.float32))
    assert digest(other.buffers) == digest(cache.buffers)


def test_long_prompts_are_done_in_pieces():
    key, value = heads("normal", 1, 2, 40_000, 128, 1), heads("normal", 1, 2, 40_000, 128, 2)
    method = SinkQ(2, 128, 32, window=500)
    cache = method.quantize(key, value)
    pieces = in_pieces(method, key, value, [20_000, 20_001, 40_000])
    assert digest(cache.buffers) == digest(pieces.buffers)
    assert (cache.n_evicted > 3).all()
    norms = np.abs(key.astype(np.float64)).sum(axis=3)[:, :, : method.n_packed(40_000)]
    assert (np.sort(cache.pool_positions) == np.sort(np.argsort(norms, kind="stable")[:, :, :3])).all()


def test_norms_are_exact():
    patterns = np.arange(0x7C00, dtype=np.uint16)
    rows = np.concatenate((patterns, patterns | 0x8000)).reshape(-1, 1)
    out = np.empty(len(rows), np.int64)
    key_norms(rows, out)
    assert (out * 2.0**-24 == np.abs(rows[:, 0].view(np.float16).astype(np.float64))).all()
    x = heads("wide", 1, 1, 50, 77)[0, 0]
    key_norms(x.view(np.uint16), out[:50])
    assert [naive_kivi.norm(row) * 2**24 for row in x] == out[:50].tolist()


def test_an_append_that_fails_changes_nothing():
    good, bad = heads("normal", 1, 2, 60, 8, 1), heads("normal", 1, 2, 60, 8, 2)
    bad[0, 1, 59, 0] = np.inf
    method = SinkQ(2, 16, 4)
    cache = method.quantize(good, good)
    before = digest({**cache.buffers, "positions": cache.pool_positions, "out": cache.window_positions})
    for key, value, message in (
        (good, bad, "^value: 1 of 960"),
        (bad, good, "^key: 1 of 960"),
        (good, good[:, 1:], "^value has"),
    ):
        with pytest.raises(ValueError, match=message):
            cache.append(key, value)
    wide = heads("normal", 1, 2, 60, 8, 3)
    wide[0, 0, 3, :2] = 60000, -60000
    with pytest.raises(ValueError, match=r"^value: 1 groups of 16 reach beyond 65504"):
        cache.append(good, wide)
    assert digest({**cache.buffers, "positions": cache.pool_positions, "out": cache.window_positions}) == before
    cache.append(bad[:, :, :59], good[:, :, :59])
    once = method.quantize(*(np.concatenate((good, x[:, :, :59]), axis=2) for x in (bad, good)))
    assert digest(cache.buffers) == digest(once.buffers)


def test_nothing_to_do():
    cache = SinkQ().cache()
    assert cache.stored_bytes == cache.effective_bits == 0
    for ask in (cache.seen, lambda: cache.pool_positions):
        with pytest.raises(ValueError, match="the cache is empty"):
            ask()
    cache.append(np.empty((1, 2, 0, 8), np.float16), np.empty((1, 2, 0, 8), np.float16))
    assert cache.n_tokens == 0
    assert cache.seen()[1].shape == (1, 2, 0, 8)
    assert cache.counts == {"n_packed_elements": 0, "n_pool": 0, "n_evicted": 0}


@pytest.mark.parametrize("name", ["residual", "sinks", "window", "layer"])
def test_parameters_are_checked(name):
    for value in (-1, 1.5, True):
        with pytest.raises(ValueError, match=f"{name} = {value}"):
            SinkQ(**{name: value})
    with pytest.raises(ValueError, match="group = 40: must be a multiple of 16"):
        SinkQ(group=40)
