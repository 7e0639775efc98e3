"""RoPE that is scaled to longer contexts: frequencies and temperature by hand from the papers' formulas."""

import math

import numpy as np
import pytest

import model_files
from dse.transformer import load
from dse.transformer.checkpoint import Said, plain_frequencies
from dse.transformer.hugging_face import longrope, yarn

FREQUENCIES = plain_frequencies(10_000.0, 8)  # 1, 0.1, 0.01, 0.001
YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}


def test_yarn_slows_pairs_that_turn_seldom():
    rotation = yarn(Said("config.json", YARN.get), FREQUENCIES, 10_000.0, 16_384)
    # pairs that turn 32 times and once in 4,096 tokens: 8 ln(4096 / (32 * 2 pi)) / (2 ln 10000) = 1.31, down to 1;
    # 8 ln(4096 / (2 pi)) / (2 ln 10000) = 2.81, up to 3. So pairs 0 and 1 stay, pair 3 is slowed by 4, pair 2 halfway:
    # 0.01 (1 + 1/4) / 2
    np.testing.assert_allclose(rotation.frequencies, [1, 0.1, 0.00625, 0.00025], rtol=1e-12)
    # 0.1 ln 4 + 1
    assert rotation.length == pytest.approx(1.1386294)
    assert rotation.context_tokens == 16_384
    cos, sin = rotation.turns(3, 1)
    np.testing.assert_allclose(np.hypot(cos, sin), 1.1386294, rtol=1e-6)


def test_yarn_without_rounded_pairs_and_with_two_scales():
    said = YARN | {"truncate": False, "mscale": 1.0, "mscale_all_dim": 0.5}
    rotation = yarn(Said("config.json", said.get), FREQUENCIES, 10_000.0, 16_384)
    low = 8 * math.log(4096 / (32 * 2 * math.pi)) / (2 * math.log(10_000))
    high = 8 * math.log(4096 / (2 * math.pi)) / (2 * math.log(10_000))
    share = (2 - low) / (high - low)
    assert rotation.frequencies[2] == pytest.approx(0.01 * (share / 4 + 1 - share))
    assert rotation.length == pytest.approx((0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1))


def test_longrope_has_a_list_for_short_texts_and_one_for_long_ones():
    said = {"original_max_position_embeddings": 4096, "short_factor": [1, 1, 1, 2], "long_factor": [1, 2, 4, 10]}
    rotation = longrope(Said("config.json", said.get), FREQUENCIES, 10_000.0, 16_384)
    np.testing.assert_allclose(rotation.frequencies, [1, 0.1, 0.01, 0.0005])
    np.testing.assert_allclose(rotation.long_frequencies, [1, 0.05, 0.0025, 0.0001])
    # sqrt(1 + ln 4 / ln 4096) = sqrt(1 + 2/12)
    assert rotation.length == pytest.approx(math.sqrt(7 / 6))
    short, long = rotation.turns(0, 4096)[0][4000, 3], rotation.turns(0, 4097)[0][4000, 3]
    assert short == pytest.approx(math.sqrt(7 / 6) * math.cos(2.0), rel=1e-5)
    assert long == pytest.approx(math.sqrt(7 / 6) * math.cos(0.4), rel=1e-5)


def test_a_model_with_yarn_runs_as_long_as_its_factor_says(tmp_path):
    scaling = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256}
    of = load.load(
        str(model_files.directory(tmp_path, max_position_embeddings=256, rope_parameters=scaling))
    ).architecture
    assert of.context_tokens == 1024
    assert not of.rotations[0].is_plain
