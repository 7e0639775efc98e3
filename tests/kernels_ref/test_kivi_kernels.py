"""KIVI's kernels: all FP16 values between many extremes, every code of every scale."""

import numpy as np
import pytest

import naive_kivi
from bits import same_bits
from kernels_ref import half
from kernels_ref.kivi import GroupCoding, dequantize_keys, dequantize_values, quantize_keys, quantize_values


def pattern_of(key):
    """The FP16 patterns of order keys."""
    key = np.asarray(key, np.int16)
    return (key ^ ((key >> 15) & 0x7FFF)).astype(np.int16).view(np.uint16)


def extremes():
    """Pairs of order keys of finite FP16 values: near and far, zeros, subnormals, powers of two, the largest."""
    rng = np.random.default_rng(7)
    largest = 0x7BFF
    pairs = [
        (0, largest),
        (-1 - largest, -1),
        (-1 - 0x7800, 0x7400),
        (-1, 0),
        (-1, 1),
        (0, 1),
        (-2, 1),
        (-0x400, 0x3FF),
    ]
    pairs += [(0x3C00, 0x3C00 + n) for n in (0, 1, 2, 3, 5, 255, 1024)] + [(0x6000, 0x6000 + n) for n in (1, 7, 300)]
    for _ in range(24):
        a, b = sorted(rng.integers(-1 - 0x7780, 0x7780, 2).tolist())
        pairs.append((a, b))
    for _ in range(12):
        a = int(rng.integers(-1 - 0x7700, 0x7700))
        pairs.append((a, a + int(2 ** rng.uniform(1, 10))))
    return pairs


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_every_value_between_many_extremes(bits):
    for low, high in extremes():
        x = pattern_of(np.arange(low, high + 1)).view(np.float16)
        n = -(-len(x) // 32) * 32
        x = np.append(x, np.full(n - len(x), x[-1]))
        scale, least = naive_kivi.scale_and_min(np.array([x[0], x[-1]]), bits)
        assert np.isfinite(scale)
        wanted = naive_kivi.words_of(naive_kivi.codes_of(x, scale, least, bits), bits).view(np.uint32)
        patterns, n_words = x.view(np.uint16), n * bits // 32
        words, (scales, mins) = np.empty((1, n_words), np.uint32), np.empty((2, 1, 1), np.uint16)
        quantize_values(patterns.reshape(1, n), GroupCoding(n, bits, False), words, scales, mins)
        assert (words[0] == wanted).all(), (low, high)
        assert scales == scale.view(np.uint16)
        assert mins == least.view(np.uint16)
        words, shape = np.empty((1, n_words, 1), np.uint32), (1, 1, 1)
        quantize_keys(
            patterns.reshape(1, n, 1), GroupCoding(n, bits, False), words, scales.reshape(shape), mins.reshape(shape)
        )
        assert (words[0, :, 0] == wanted).all(), (low, high)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("saturate", [False, True])
def test_every_code_of_every_scale(bits, saturate):
    codes = np.arange(2**bits)
    per_word = 32 // bits
    n = -(-len(codes) // per_word) * per_word
    codes = np.resize(codes, n)
    words = naive_kivi.words_of(codes.tolist(), bits).view(np.uint32)
    scales = np.arange(
        0, 0x7C00 if saturate else 0x7C01, 1 if bits < 8 else 4, dtype=np.uint16
    )  # 0 to the largest, infinity
    for low in np.array([0.0, -0.0, -1.5, 2.0**-24, -65504, 60000, 0.001], np.float16):
        with np.errstate(all="ignore"):
            wanted = naive_kivi.decoded(codes[:, None].astype(np.float16), scales.view(np.float16), low, saturate)
        mins = np.full(scales.shape, low.view(np.uint16))
        out = np.empty((scales.size, n), np.uint16)
        rows = np.tile(words, (scales.size, 1))
        dequantize_values(rows, scales[:, None], mins[:, None], GroupCoding(n, bits, saturate), out)
        assert same_bits(out.view(np.float16), wanted.T)
        keys = np.empty((1, n, scales.size), np.uint16)
        columns = np.ascontiguousarray(rows.T)[None]
        dequantize_keys(columns, scales.reshape(1, 1, -1), mins.reshape(1, 1, -1), GroupCoding(n, bits, saturate), keys)
        assert same_bits(keys[0].view(np.float16), wanted)


def test_order_keys_are_their_own_inverse():
    keys = np.arange(-(2**15), 2**15).astype(np.int16)
    patterns = pattern_of(keys)
    assert [int(half.order(p)) for p in patterns[::97]] == keys[::97].tolist()
