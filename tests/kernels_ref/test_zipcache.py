"""ZipCache in a study: codes, bits and the choice of tokens by hand."""

import numpy as np
import pytest

from studies import zipcache
from studies.zipcache import BLOCK


def test_codes_by_hand():
    # from 0 to 3 in 2 bits: steps of 1; from 0 to 15 in 4 bits: steps of 1; a constant comes back
    assert zipcache.rounded(np.float32([[0, 1.4, 2.6, 3]]), 2, 1).tolist() == [[0, 1, 3, 3]]
    assert zipcache.rounded(np.float32([[0, 1.4, 2.6, 15]]), 4, 1).tolist() == [[0, 1, 3, 15]]
    assert zipcache.rounded(np.float32([[7, 7, 7, 7]]), 2, 1).tolist() == [[7, 7, 7, 7]]


def test_bits_by_hand():
    # 3 heads of 64: a block of 100 tokens and 192 channels a side. Codes (20 * 4 + 80 * 2) * 192 * 2 = 92,160; a bit a
    # token 100; keys 2 classes * 32 * 192 = 12,288; values 32 * 100 + 16 * 192 = 6,272; over 38,400 elements
    assert zipcache.stored_bits(0.2, 3, 64) == pytest.approx((92_160 + 100 + 12_288 + 6_272) / 38_400)


def test_tokens_that_draw_attention_are_salient():
    # a head whose queries all point at keys 3 and 40 of the block, behind a block before it
    key = np.zeros((1, 2 * BLOCK, 4), np.float32)
    key[0, [BLOCK + 3, BLOCK + 40], 0] = 10
    query = np.zeros((2, BLOCK, 4), np.float32)
    query[..., 0] = 10
    assert np.flatnonzero(zipcache.salient(query, key, 0.02, 0.5)).tolist() == [3, 40]


def test_late_tokens_are_not_neglected():
    """Attention is normalised by the queries that see a token, so that one which few see can be salient."""
    key, query = np.zeros((1, BLOCK, 4), np.float32), np.zeros((1, BLOCK, 4), np.float32)
    # query i pays 1 / (i + 1) to each: token j's mean over i >= j is the lower the later it is, its sum falls faster
    chosen = np.flatnonzero(zipcache.salient(query, key, 0.1, 1.0))
    assert chosen.tolist() == list(range(10))
    key[0, 99, 0], query[0, 99, 0] = 30, 1  # one query sees the last token, and pays it all
    assert 99 in np.flatnonzero(zipcache.salient(query, key, 0.1, 1.0))


def test_what_is_not_packed_is_exact():
    rng = np.random.default_rng(1)
    key, value = rng.normal(size=(2, 1, 2, 250, 8)).astype(np.float16)
    cache = zipcache.cache(0.2, 1.0)
    cache.query = rng.normal(size=(4, 250, 8)).astype(np.float32)
    found = cache.decoded(key, value)
    assert (found.n_key(99), found.n_key(100), found.n_value(250)) == (0, 100, 200)
    assert np.array_equal(found.key[:, :, 200:], key[:, :, 200:])
    assert not np.array_equal(found.key[:, :, :200], key[:, :, :200])
    # salient values err by a step of 15, the others by one of 3
    error = np.abs(found.value[0, :, :200].astype(float) - value[0, :, :200]).mean(axis=(0, 2))
    assert np.sort(error)[:40].mean() < 0.4 * np.sort(error)[40:].mean()
