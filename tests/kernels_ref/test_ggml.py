"""llama.cpp's cache types: blocks by hand, a plain twin, the error bound, refusals."""

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
from kernels_ref import GGML_TYPES
from kernels_ref.ggml import GGML, block_bytes, decode, encode
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
}


@every_type
def test_a_block_by_hand(name):
    x, data, values = BY_HAND[name]
    packed = GGML(name).quantize(x)
    assert GGML(name).blocks(packed).tobytes() == bytes.fromhex(data)
    assert packed.dequantize()[0, :6].tolist()[: len(values)] == values
    assert packed.stored_bytes == block_bytes(name) == len(bytes.fromhex(data))


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
        assert same_bits(encode(x.astype(np.float32), name, code), blocks), case
        assert same_bits(decode(blocks, name), values), case


@every_variant
@given(x=st_np.arrays(np.float16, (2, 32), elements=st.floats(-65504, 65504, width=16)))
def test_an_element_errs_by_half_a_step_where_it_is_not_clipped(name, code, x):
    seen = GGML(name, code).quantize(x).dequantize().astype(np.float64)
    for row, found in zip(x.astype(np.float32), seen, strict=True):
        _, d, low = naive_ggml.codes_of(row, name, code)
        step, exact = abs(float(d)), row.astype(np.float64)
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
    for x in (normal(2, 32), np.zeros((2, 33), np.float32), np.zeros(32, np.float32)):
        with pytest.raises(ValueError, match="must be float32"):
            encode(x, name)
    with pytest.raises(ValueError, match=f"{block_bytes(name)} bytes a block of {name}"):
        decode(np.zeros((1, 33), np.uint8), name)


def test_parameters_that_are_refused():
    with pytest.raises(ValueError, match="type = 'q6_0': must be one of 'q8_0'"):
        GGML("q6_0")
    with pytest.raises(ValueError, match="code = 'cuda': must be one of 'ggml', 'gguf', 'avx2'"):
        GGML("q8_0", "cuda")
    with pytest.raises(ValueError, match="'avx2': is for q8_0"):
        GGML("q4_0", "avx2")


def test_questions_take_them_where_they_are_named():
    found = dse.need("bits", "a100-80gb", "llama2-13b", quantizers=["fp16", "q8_0", "q4_0"], step_ms=1000, batch=4)
    assert {one["quantizer"] for one in found.candidates} == {"fp16", "q8_0", "q4_0"}
