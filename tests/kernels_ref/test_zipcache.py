"""ZipCache: codes, bits and the choice of tokens by hand."""

import numpy as np
import pytest

from kernels_ref import zipcache
from kernels_ref.zipcache import ZipCache

BLOCK = 100


def test_codes_by_hand():
    # from 0 to 3 in 2 bits: steps of 1; from 0 to 15 in 4 bits: steps of 1; a constant comes back
    assert zipcache.rounded(np.float32([[0, 1.4, 2.6, 3]]), 2, 1).tolist() == [[0, 1, 3, 3]]
    assert zipcache.rounded(np.float32([[0, 1.4, 2.6, 15]]), 4, 1).tolist() == [[0, 1, 3, 15]]
    assert zipcache.rounded(np.float32([[7, 7, 7, 7]]), 2, 1).tolist() == [[7, 7, 7, 7]]


def filled(n_tokens):
    """A cache of 3 KV heads of 64 with two queries each, and its keys and values."""
    rng = np.random.default_rng(1)
    key, value = rng.normal(size=(2, 1, 3, n_tokens, 64)).astype(np.float16)
    cache = ZipCache(0.2).cache()
    cache.query = rng.normal(size=(6, n_tokens, 64)).astype(np.float32)
    cache.append(key, value)
    return cache, key, value


def test_bits_by_hand():
    # 3 heads of 64: a block of 100 tokens and 192 channels a side. Codes (20 * 4 + 80 * 2) * 192 * 2 = 92,160; a bit a
    # token 100; keys 2 classes * 32 * 192 = 12,288; values 32 * 100 + 16 * 192 = 6,272
    block = 92_160 + 100 + 12_288 + 6_272
    keys, values = (zipcache.block_bits(ZipCache(0.2), side, 192) for side in ("key", "value"))
    assert keys + values == block
    # two blocks, and 10 tokens in FP16; a side's bytes are whole
    bits = 8 * sum(-(-(2 * part + 10 * 192 * 16) // 8) for part in (keys, values))
    assert filled(210)[0].stored_bits == pytest.approx(bits / (2 * 210 * 192))
    # without salient tokens there is one class of keys
    assert zipcache.block_bits(ZipCache(0.0), "key", 192) == 100 * 192 * 2 + 100 + 32 * 192


def test_tokens_that_draw_attention_are_salient():
    # a head whose queries all point at keys 3 and 40 of the block, behind a block before it
    key = np.zeros((1, 2 * BLOCK, 4), np.float32)
    key[0, [BLOCK + 3, BLOCK + 40], 0] = 10
    query = np.zeros((2, BLOCK, 4), np.float32)
    query[..., 0] = 5
    assert np.flatnonzero(zipcache.salient(query, key, 2)).tolist() == [3, 40]


def test_late_tokens_are_not_neglected():
    """Attention is normalised by the queries that see a token, so that one which few see can be salient."""
    key, query = np.zeros((1, BLOCK, 4), np.float32), np.zeros((1, BLOCK, 4), np.float32)
    # query i pays 1 / (i + 1) to each: token j's mean over i >= j is the lower the later it is, its sum falls faster
    chosen = np.flatnonzero(zipcache.salient(query, key, 10))
    assert chosen.tolist() == list(range(10))
    key[0, 99, 0], query[0, 99, 0] = 30, 1  # one query sees the last token, and pays it all
    assert 99 in np.flatnonzero(zipcache.salient(query, key, 10))


def test_what_is_not_packed_is_exact():
    cache, key, value = filled(250)
    seen_key, seen_value = cache.seen()
    assert [cache.method.n_packed("key", n) for n in (99, 100, 250)] == [0, 100, 200]
    assert np.array_equal(seen_key[:, :, 200:], key[:, :, 200:])
    assert not np.array_equal(seen_key[:, :, :200], key[:, :, :200])
    # salient values err by a step of 15, the others by one of 3
    error = np.abs(seen_value[0, :, :200].astype(float) - value[0, :, :200]).mean(axis=(0, 2))
    assert np.sort(error)[:40].mean() < 0.4 * np.sort(error)[40:].mean()


def test_it_needs_the_queries_of_the_whole_text():
    key = np.zeros((1, 1, 4, 4), np.float16)
    for query in (None, np.zeros((1, 3, 4), np.float32)):
        cache = ZipCache().cache()
        cache.query = query
        with pytest.raises(ValueError, match="queries of all tokens"):
            cache.append(key, key)


@pytest.mark.parametrize(("arguments", "words"), [((1.5,), "salient = 1.5"), ((0.2, 0), "block = 0")])
def test_parameters_are_checked(arguments, words):
    with pytest.raises(ValueError, match=words):
        ZipCache(*arguments)
