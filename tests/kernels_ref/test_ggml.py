"""llama.cpp's cache types: blocks by hand, a plain twin, the error bound, refusals."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

import dse
import naive_ggml
from bits import same_bits
from cases import each
from dse import quantizers
from dse.core.errors import InputError
from dse.quantizers.kernel import Place, Settings
from kernels_ref import GGML_TYPES
from kernels_ref.ggml import GGML, rotated_run
from row_cases import GGML_VARIANTS, cases, normal

TYPES = list(GGML_TYPES)
every_type = each("name", TYPES)
every_variant = pytest.mark.parametrize(("name", "code"), GGML_VARIANTS)


def a_block(*first):
    """32 channels that begin with these, then zeros."""
    return np.array([[*first, *[0.0] * (32 - len(first))]], np.float16)


#: a step of 1 in each: type -> block, its bytes in hexadecimal, first decoded values
BY_HAND = {
    # codes 127 -127 1 2 -1 -3: halves go away from zero
    "q8_0": (a_block(127, -127, 0.5, 1.5, -0.5, -2.5), "003c 7f8101 02fffd" + "00" * 26, [127, -127, 1, 2, -1, -3]),
    # codes 0 16->15 9 8 11, then 8; the upper 16 are the high nibbles
    "q4_0": (a_block(-8, 8, 0.5, -0.5, 3.4), "003c 808f89888b" + "88" * 11, [-8, 7, 1, 0, 3, 0]),
    # codes 0 32->31 17 16 19, then 16: all fifth bits but the first
    "q5_0": (a_block(-16, 16, 0.5, -0.5, 3.4), "003c feffffff 000f010003" + "00" * 11, [-16, 15, 1, 0, 3, 0]),
    # minimum -3 = 0xc200; codes 0 15 3 4 3, then 3
    "q4_1": (a_block(-3, 12, 0, 0.5, -0.5), "003c 00c2 303f333433" + "33" * 11, [-3, 12, 0, 1, 0, 0]),
    # codes 0 31 3 4 3, then 3: one fifth bit
    "q5_1": (a_block(-3, 28, 0, 0.5, -0.5), "003c 00c2 02000000 303f333433" + "33" * 11, [-3, 28, 0, 1, 0, 0]),
    # levels of codes 0, 15, 8 (1 is nearer to 0 than -10), 9, 7: a step of 1, since each is met exactly
    "iq4_nl": (a_block(-127, 113, 0, 13, -10), "003c 808f888987" + "88" * 11, [-127, 113, 1, 13, -10, 1]),
}


@every_type
def test_a_block_by_hand(name):
    x, data, values = BY_HAND[name]
    packed = GGML(name).quantize(x)
    assert GGML(name).blocks(packed).tobytes() == bytes.fromhex(data)
    assert packed.dequantize()[0, :6].tolist()[: len(values)] == values
    assert packed.stored_bytes == len(bytes.fromhex(data))


def test_q8_0_on_x86_rounds_halves_to_even():
    codes = GGML("q8_0", "avx2").quantize(BY_HAND["q8_0"][0]).buffers["codes"]
    assert codes[0, :6].tolist() == [127, -127, 0, 2, 0, -2]


def test_the_first_of_two_largest_gives_the_step():
    for name, step in (("q4_0", 1.0), ("q5_0", 0.5)):
        for sign in (1, -1):
            packed = GGML(name).quantize(a_block(1, sign * -8, sign * 8))
            assert packed.buffers["d"][0, 0] == sign * step


@pytest.mark.parametrize("name", ["q4_0", "q5_0"])
def test_zeros_have_the_sign_of_their_source(name):
    zeros = np.full((1, 32), -0.0, np.float16)
    assert np.signbit(GGML(name).quantize(zeros).buffers["d"][0, 0])
    assert not np.signbit(GGML(name, "gguf").quantize(zeros).buffers["d"][0, 0])
    assert np.signbit(GGML(name, "gguf").quantize(-zeros).buffers["d"][0, 0])


@every_variant
@pytest.mark.parametrize("channels", [32, 64, 160])
def test_twin(name, code, channels):
    method = GGML(name, code)
    for case, x in cases(channels).items():
        blocks, values = naive_ggml.rows(x, name, code)
        packed = method.quantize(x)
        assert same_bits(method.blocks(packed), blocks), case
        assert same_bits(packed.dequantize(), values.clip(-65504, 65504).astype(np.float16)), case


def test_iq4_nl_weighs_the_step_by_squares():
    """By hand: 127 and 60 make step 1 first (v / -127 = -1); levels -127 and -65, so d = (127^3 * -127 + 60^3 * -65) /
    (127^2 * 127^2 + 60^2 * 65^2)."""
    packed = GGML("iq4_nl").quantize(a_block(127, 60))
    exact = -(127**4 + 60**3 * 65) / (127**4 + 60**2 * 65**2)
    assert packed.buffers["d"][0, 0] == np.float16(exact) == np.float16(-0.9957)
    assert packed.buffers["codes"][0, :2].tolist() == [0x80, 0x83]


def test_iq4_nl_as_ggml_makes_it():
    """Arrays of ggml-quants.c's rows of iq4_nl, quantized (_ref) and dequantized (as in llama-cpp-python 0.3.36)."""
    made = np.load(Path(__file__).parent / "ggml_iq4_nl.npz")
    blocks, values = naive_ggml.rows(made["x"], "iq4_nl")
    packed = GGML("iq4_nl").quantize(made["x"])
    assert same_bits(blocks, made["blocks"])
    assert same_bits(values, made["decoded"])
    assert same_bits(GGML("iq4_nl").blocks(packed), made["blocks"])
    assert same_bits(packed.dequantize(), made["decoded"].clip(-65504, 65504).astype(np.float16))


def test_the_rule_of_what_llama_cpp_rotates():
    dims = (32, 64, 80, 96, 128, 192, 256, 512)
    assert [rotated_run("key", dim) for dim in dims] == [0, 64, 0, 0, 128, 64, 256, 512]
    assert [rotated_run("value", dim) for dim in dims] == [0, 64, 0, 0, 64, 64, 64, 64]
    assert not any(rotated_run("", dim) for dim in dims)


def test_a_rotation_by_hand():
    """One channel becomes 64 of 1 / 8, with the signs of its column of the matrix."""
    x = np.zeros((1, 64), np.float32)
    x[0, 3] = 8
    assert naive_ggml.turned(x, 64)[0, :8].tolist() == [1, -1, -1, 1, 1, -1, -1, 1]
    constant = np.full((1, 128), 2, np.float32)
    assert naive_ggml.turned(constant, 64)[0].nonzero()[0].tolist() == [0, 64]
    assert naive_ggml.turned(constant, 64)[0, 64] == 16
    # 16 is code 0 of a step of -2, exactly, the other channels of its run are 0
    assert GGML("q4_0", rotated="value").quantize(constant.astype(np.float16)).dequantize().tolist() == [[2] * 128]


@each("side", ["key", "value"])
@each("name", ["q4_0", "q5_1", "q8_0", "iq4_nl"])
def test_rotated_twin(name, side):
    for heads, head_dim, run in ((2, 64, 64), (1, 192, 64), (2, 128, 128 if side == "key" else 64), (1, 96, 0)):
        for case, x in cases(heads * head_dim).items():
            packed = GGML(name, rotated=side).quantize(x, n_heads=heads)
            blocks, values = naive_ggml.rows(naive_ggml.turned(x, run) if run else x, name)
            back = naive_ggml.turned(values, run) if run else values
            assert same_bits(GGML(name).blocks(packed), blocks), (case, head_dim)
            assert same_bits(packed.dequantize(), back.clip(-65504, 65504).astype(np.float16)), (case, head_dim)


@given(x=st_np.arrays(np.float32, (3, 256), elements=st.floats(-1000, 1000, width=32)), run=st.sampled_from((64, 256)))
def test_a_rotation_keeps_lengths_and_undoes_itself(x, run):
    there = naive_ggml.turned(x, run)
    near = 1e-5 * max(np.abs(x).max(), np.finfo(np.float32).tiny) * np.sqrt(run)  # below, digits are lost
    np.testing.assert_allclose(naive_ggml.turned(there, run), x, atol=near, rtol=0)
    by_run = x.astype(np.float64).reshape(-1, run), there.astype(np.float64).reshape(-1, run)
    np.testing.assert_allclose(*((one**2).sum(axis=1) ** 0.5 for one in by_run), atol=near, rtol=1e-5)


def test_a_channel_that_stands_out_errs_less_once_rotated():
    x = normal(64, 128)
    x[:, 7] *= 30
    error = {}
    for rotate in ("on", "off"):
        quantizer = quantizers.parse(f"q4_0:rotate={rotate}")
        place = Place(0, "key", x, Settings())
        seen = quantizer.family.kernel.make(dict(quantizer.values), place).quantize(x).dequantize()
        error[rotate] = ((seen.astype(float) - x) ** 2).sum()
    assert error["on"] < error["off"] / 2


def test_latent_heads_are_stored_as_they_are():
    quantizer = quantizers.parse("q8_0")
    made = {
        width: quantizer.family.kernel.make(dict(quantizer.values), Place(0, "key", normal(2, width), Settings()))
        for width in (128, 576)
    }
    assert [made[width].rotated for width in (128, 576)] == ["key", ""]


def test_rotation_stores_as_many_bits():
    shape = quantizers.TensorShape("key", 4, 128)
    for name in TYPES:
        assert quantizers.parse(f"{name}:rotate=off").layout(shape) == quantizers.parse(name).layout(shape)


@every_variant
@given(x=st_np.arrays(np.float16, (2, 32), elements=st.floats(-65504, 65504, width=16)))
def test_an_element_errs_by_half_a_step_where_it_is_not_clipped(name, code, x):
    seen = GGML(name, code).quantize(x).dequantize().astype(np.float64)
    for row, found in zip(x.astype(np.float32), seen, strict=True):
        _, d, low = naive_ggml.codes_of(row, name, code)
        step, exact = abs(float(d)), row.astype(np.float64)
        if name == "iq4_nl":  # half of the widest gap, 24, of the step that codes are chosen with; d differs from it
            top = np.abs(exact).max()
            assert (np.abs(found - exact) <= top * (12 + 24) / 127 + 2**-10 * top + 2**-23).all()
            continue
        largest = {"8": 127, "5": 31, "4": 15}[name[1]]
        # d and m are rounded to FP16 (relative 2^-11, below 2^-14 absolute 2^-25), and so is the result
        rounding = largest * max(step * 2**-11, 2**-25) + np.abs(found) * 2**-11 + 2**-24
        rounding += 0 if low is None else max(abs(float(low)) * 2**-11, 2**-25)
        bound = np.full(32, 0.5 * step)
        if name in ("q4_0", "q5_0"):  # the opposite of the first largest has no code
            clipped = exact * np.sign(float(d)) > (largest // 2) * step
            bound[clipped] = step
        assert (np.abs(found - exact) <= bound * (1 + 2**-20) + rounding).all()


@every_type
def test_what_is_refused(name):
    method = GGML(name)
    with pytest.raises(ValueError, match=rf"^head_dim = 48: must be a multiple of 32 for {name}"):
        method.quantize(normal(2, 96), n_heads=2)
    with pytest.raises(InputError, match=rf"^quantizer = {name}: head_dim = 80: must be a multiple of 32"):
        quantizers.parse(name).layout(quantizers.TensorShape("value", 4, 80))


def test_parameters_that_are_refused():
    with pytest.raises(ValueError, match="type = 'q6_0': must be one of 'q8_0'"):
        GGML("q6_0")
    with pytest.raises(ValueError, match="code = 'cuda': must be one of 'ggml', 'gguf', 'avx2'"):
        GGML("q8_0", "cuda")
    with pytest.raises(ValueError, match="'avx2': is for q8_0"):
        GGML("q4_0", "avx2")
    with pytest.raises(ValueError, match="'gguf': the package decodes iq4_nl alone"):
        GGML("iq4_nl", "gguf")
    with pytest.raises(ValueError, match="rotated = 'both': must be one of '', 'key', 'value'"):
        GGML("q4_0", rotated="both")


def test_questions_take_them_where_they_are_named():
    found = dse.need("bits", "a100-80gb", "llama2-13b", quantizers=["fp16", "q8_0", "q4_0"], step_ms=1000, batch=4)
    assert {one["quantizer"] for one in found.candidates} == {"fp16", "q8_0", "q4_0"}
