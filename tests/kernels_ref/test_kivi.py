"""KIVI: a plain twin, streaming, bounds, refused values; see `test_kivi_core` for the kernels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive_kivi
from bits import digest, on_threads, same_bits, without_compilation
from cases import each
from kernels_ref.kivi import KIVI
from kivi_cases import KINDS, heads, stored

SIDES = ("key", "value")

pytestmark = pytest.mark.usefixtures("one_thread")


def expected(x, side, method):
    """Arrays of all heads by the twin: codes, scales, mins, recent, decoded."""
    found = []
    for one in x.reshape(-1, *x.shape[2:]):
        core, recent = naive_kivi.kivi(
            one, side, method.bits, method.group, method.residual, method.overflow == "saturate"
        )
        found.append((*core[:3], recent, np.concatenate((core[3].reshape(-1, x.shape[3]), recent))))
    return [np.array(arrays).reshape(*x.shape[:2], *arrays[0].shape) for arrays in zip(*found, strict=True)]


@each("kind", KINDS)
@each(
    ("bits", "group", "residual", "n_tokens", "head_dim"),
    [
        (2, 32, 32, 101, 64),
        (1, 32, 0, 64, 37),
        (4, 8, 16, 53, 20),
        (8, 4, 4, 30, 7),
        (2, 16, 16, 50, 96),
        (2, 48, 48, 97, 100),
        (4, 64, 64, 130, 24),
        (8, 160, 0, 160, 3),
        (4, 24, 24, 48, 48),
    ],
)
def test_twin(kind, bits, group, residual, n_tokens, head_dim):
    method = KIVI(bits, group, residual)
    x = heads(kind, 1, 2, n_tokens, head_dim)
    for side in SIDES:
        packed = method.quantize(x, side)
        codes, scales, mins, recent, decoded = expected(x, side, method)
        for name, wanted in (("codes", codes), ("scales", scales), ("mins", mins), ("recent", recent)):
            found = packed.buffers[f"{side}_{name}"]
            assert found.size == wanted.size
            assert not wanted.size or same_bits(found, wanted), (side, name)
        assert same_bits(packed.dequantize(), decoded)
        transposed = KIVI(bits, group, residual, key_layout="triton").quantize(x, side)
        if side == "key":
            assert same_bits(transposed.buffers["key_codes"], packed.buffers["key_codes"].swapaxes(2, 3))
        assert same_bits(transposed.dequantize(), decoded)


@given(st.data())
def test_streaming_in_any_pieces_is_a_prompt_at_once(data):
    bits = data.draw(st.sampled_from([2, 4, 8]))
    group = data.draw(st.sampled_from([16, 32]))
    residual = data.draw(st.sampled_from([0, group, 2 * group]))
    pieces = data.draw(st.lists(st.integers(0, 70), min_size=1, max_size=6))
    n, layout = sum(pieces), data.draw(st.sampled_from(["torch", "triton"]))
    method = KIVI(bits, group, residual, key_layout=layout)
    key, value = heads("normal", 2, 3, n, 24, 1), heads("heavy", 2, 3, n, 20, 2)
    cache, at = method.cache(), 0
    for piece in pieces:
        cache.append(key[:, :, at : at + piece], value[:, :, at : at + piece])
        at += piece
    once = {**method.quantize(key, "key").buffers, **method.quantize(value, "value").buffers}
    assert digest(cache.buffers) == digest(once)
    for seen, x, side in zip(cache.seen(), (key, value), SIDES, strict=True):
        assert same_bits(seen, method.quantize(x, side).dequantize())
        recent = method.quantize(x, side).buffers[f"{side}_recent"]
        assert same_bits(seen[:, :, n - recent.shape[2] :], x[:, :, n - recent.shape[2] :])


@given(st.data())
def test_error_bound_and_same_codes_again(data):
    bits = data.draw(st.sampled_from([1, 2, 4, 8]))
    values = st.floats(-30000, 30000, width=16)
    x = np.array(data.draw(st.lists(values, min_size=32, max_size=32)), np.float16)
    packed = KIVI(bits, 32, 0).quantize(x.reshape(1, 32), "value")
    scale, low = packed.buffers["value_scales"].item(), packed.buffers["value_mins"].item()
    y = packed.dequantize()[0]
    extent, levels = float(x.max()) - float(x.min()), 2**bits - 1
    largest = max(abs(float(x.max())), abs(float(x.min())), extent)
    clipped = max(extent - levels * scale, 0)
    # half a step, what the stored scale clips, and four FP16 roundings
    bound = scale / 2 + clipped + 4 * max(largest * 2.0**-11, 2.0**-25)
    assert np.abs(y.astype(float) - x.astype(float)).max() <= bound
    if scale >= 2 * float(np.spacing(np.float16(np.abs(x).max()))):
        stored = np.float16(scale), np.float16(low)
        assert naive_kivi.codes_of(y, *stored, bits) == naive_kivi.codes_of(x, *stored, bits)


def test_permuting_tokens_permutes_the_bytes_of_values():
    x = heads("heavy", 1, 2, 40, 50)
    order = np.random.default_rng(3).permutation(40)
    one, other = (KIVI(2, 16, 0).quantize(y, "value").buffers for y in (x, x[:, :, order]))
    for name in ("value_codes", "value_scales", "value_mins"):
        assert same_bits(one[name][:, :, order], other[name])


def test_any_strides_and_layouts_of_the_input():
    x = heads("normal", 1, 3, 75, 20)
    flat = np.ascontiguousarray(x[0].transpose(1, 0, 2).reshape(75, 60))
    wide = np.zeros((1, 75, 3, 40), np.float16)
    wide[..., ::2] = x.transpose(0, 2, 1, 3)
    before = flat.copy()
    method = KIVI(2, 16, 32)
    for side in SIDES:
        packed = method.quantize(x, side)
        for other in (wide.transpose(0, 2, 1, 3)[..., ::2], np.asfortranarray(x), x.astype(np.float32)):
            assert digest(method.quantize(other, side).buffers) == digest(packed.buffers)
        two = method.quantize(flat, side, n_heads=3)
        assert digest(two.buffers) == digest(packed.buffers)
        assert same_bits(two.dequantize(), packed.dequantize()[0].transpose(1, 0, 2).reshape(75, 60))
    cache = method.cache(n_heads=3)
    cache.append(flat, flat)
    assert cache.seen()[0].shape == (75, 60)
    assert (flat == before).all()


def test_long_sequences_are_done_in_pieces():
    x = heads("normal", 1, 2, 70_000, 64)  # more than a block of 8 MiB a head
    for side in SIDES:
        whole = KIVI(2, 32, 64).quantize(x, side)
        for h in range(2):
            one = KIVI(2, 32, 64).quantize(x[:, h : h + 1], side)
            for name, array in one.buffers.items():
                assert same_bits(whole.buffers[name][:, h : h + 1], array)
            assert same_bits(whole.dequantize()[:, h : h + 1], one.dequantize())


def test_ranges_beyond_fp16():
    x = np.zeros((8, 8), np.float16)
    x[3] = [-40000, 40000, 65504, 1, -65504, 7, 0, 3]  # its range is infinite
    x[5] = [-1, 65504, 1, 2, 3, 4, 5, 6]  # its scale is not, but its largest code decodes to infinity
    with pytest.raises(ValueError, match=r"^x: 2 groups of 8 reach beyond 65504 .* overflow='saturate'"):
        KIVI(4, 8, 0).quantize(x, "value")
    saturated = KIVI(4, 8, 0, overflow="saturate").quantize(x, "value")
    (_, scales, mins, _, decoded) = expected(x[None, None], "value", saturated.method)
    assert same_bits(saturated.buffers["value_scales"], scales)
    assert same_bits(saturated.buffers["value_mins"], mins)
    found = saturated.dequantize()
    assert same_bits(found, decoded[0, 0])
    assert np.isfinite(found).all()
    assert found[3, 2] == 0  # -65504 + 65504: the range is cut there
    propagated = KIVI(4, 8, 0, overflow="propagate").quantize(x, "value")
    assert np.isinf(propagated.buffers["value_scales"]).sum() == 1
    assert np.isnan(propagated.dequantize()[3]).all()
    assert np.isinf(propagated.dequantize()[5, 1])
    assert (propagated.buffers["value_codes"][0, 0, 3] == 0).all()


def test_values_that_are_not_finite():
    x = heads("normal", 1, 2, 40, 16)
    x[0, 1, 30, 2], x[0, 1, 39, 3] = np.nan, np.inf
    with pytest.raises(ValueError, match=r"^x: 2 of 1280 values .* the first at \[0, 1, 30, 2\]"):
        KIVI(2, 16, 16).quantize(x)
    replaced = x.copy()
    replaced[0, 1, 30, 2], replaced[0, 1, 39, 3] = 0, 65504
    packed = KIVI(2, 16, 16).quantize(x, nonfinite="replace")
    assert digest(packed.buffers) == digest(KIVI(2, 16, 16).quantize(replaced).buffers)


def test_an_append_that_fails_changes_nothing():
    good, bad = heads("normal", 1, 2, 50, 16), heads("normal", 1, 2, 60, 16)
    bad[0, 1, 59, 0] = np.nan
    cache = KIVI(2, 16, 32).cache()
    cache.append(good, good)
    before = digest(cache.buffers)
    with pytest.raises(ValueError, match=r"^value: 1 of 1920 values"):
        cache.append(bad[:, :, :40].copy() * 0 + good[:, :, :40], bad[:, :, 20:]) if False else cache.append(
            heads("normal", 1, 2, 60, 16), bad
        )
    wide = np.full((1, 2, 60, 16), 60000, np.float16)
    wide[0, 0, 3, 3] = -60000
    with pytest.raises(ValueError, match=r"^value: 1 groups of 16 reach beyond"):
        cache.append(heads("normal", 1, 2, 60, 16), wide)
    for key, value, words in (
        (good[:, :1], good[:, :1], "key has shape"),
        (good, good[:, :, 1:], "value has shape"),
        (good[0, 0], good[0, 0], "key has shape"),
        ([1.0], good, "key is list"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            cache.append(key, value)
    assert digest(cache.buffers) == before
    cache.append(good, good)
    twice = np.concatenate((good, good), axis=2)
    once = {**KIVI(2, 16, 32).quantize(twice).buffers, **KIVI(2, 16, 32).quantize(twice, "value").buffers}
    assert digest(cache.buffers) == digest(once)


def test_nothing_to_do():
    for shape, n_heads in (((0, 64), 2), ((1, 2, 0, 32), 1), ((0, 2, 5, 32), 1)):
        x = np.empty(shape, np.float16)
        for side in SIDES:
            packed = KIVI().quantize(x, side, n_heads)
            assert packed.stored_bytes == 0
            assert packed.dequantize().shape == shape
    cache = KIVI().cache()
    assert cache.stored_bytes == cache.stored_bits == cache.effective_bits == cache.n_tokens == 0
    with pytest.raises(ValueError, match="the cache is empty"):
        cache.seen()
    cache.append(np.empty((0, 4), np.float16), np.empty((0, 4), np.float16))
    assert cache.seen()[0].shape == (0, 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bits": 3}, "bits = 3: must be one of 1, 2, 4, 8"),
        ({"bits": True}, "bits = True"),
        ({"group": 24}, "group = 24: must be a multiple of 16"),
        ({"group": 0}, "group = 0"),
        ({"residual": 100}, "residual = 100: must be a multiple of group = 32"),
        ({"residual": -32}, "residual = -32"),
        ({"overflow": "wrap"}, "overflow = 'wrap'"),
        ({"key_layout": "cuda"}, "key_layout = 'cuda'"),
    ],
)
def test_parameters_are_checked(given, message):
    with pytest.raises(ValueError, match=message):
        KIVI(**given)
    with pytest.raises(ValueError, match="side = 'both'"):
        KIVI().quantize(np.zeros((2, 2), np.float16), "both")


@pytest.mark.slow
def test_threads_and_plain_python_give_the_same_bits():
    call = "kivi_cases.stored()"
    assert {*on_threads(call), *without_compilation(call)} == {stored()}
