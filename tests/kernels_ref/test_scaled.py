"""NVFP4 and MX: blocks by hand, plain twins, FP16's way against float32's, ledgers, growing caches, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

import naive_scaled
from bits import digest, same_bits, without_compilation
from cases import each
from conformance.blocks import packed_of
from conformance.mx_libraries import codes_with, scale_bytes
from dse import quantizers
from dse.core.errors import InputError
from kernels_ref import SCALED_TYPES, nvfp4
from kernels_ref.minifloat import E2M1_VALUES
from kernels_ref.mx import MX, RULES_OF
from kernels_ref.nvfp4 import CODES, NVFP4
from row_cases import cases, normal, scaled

MX_RULES = [(name, rule) for name, rules in RULES_OF.items() for rule in rules]
every_writer = each("code", CODES)
every_rule = each(("name", "rule"), MX_RULES)
every_type = pytest.mark.parametrize("name", SCALED_TYPES)


def block(n, *first):
    """n channels that begin with these, then zeros."""
    return np.array([[*first, *[0.0] * (n - len(first))]], np.float16)


#: what the four writers of E2M1 make of 12 -6 0.5 1.5 2.5 -3.5, all with a scale of 2
FIRST = (12, -6, 0.5, 1.5, 2.5, -3.5)
E2M1_BY_HAND = {
    # 6 -3 0.25 0.75 1.25 -1.75 are ties: to the even code 7 13 0 2 2 12
    "nvfp4": (16, 0x40, "d7 20 c2", [12, -6, 0, 2, 2, -4]),  # E4M3 of 2
    "mxfp4": (32, 128, "d7 20 c2", [12, -6, 0, 2, 2, -4]),  # 2^1: floor(log2 12) - 2 = 1
    "fp4_mx_block16": (16, 128, "d7 21 c3", [12, -6, 1, 2, 3, -4]),  # ties away: codes 7 13 1 2 3 12
}


@pytest.mark.parametrize("name", E2M1_BY_HAND)
def test_a_block_by_hand(name):
    size, scale, codes, values = E2M1_BY_HAND[name]
    packed = scaled(name).quantize(block(size, *FIRST))
    assert packed.buffers["scales"].tolist() == [[scale]]
    assert packed.buffers["codes"].tobytes() == bytes.fromhex(codes) + bytes(size // 2 - 3)
    assert packed.dequantize()[0, :6].tolist() == values


def test_a_block_of_mxfp8_by_hand():
    # 896 / 448 = 2: byte 128; 448 is 0x7e, -1 is 0xb8, 17 / 16 a tie between 1 and 1.125: 0x38
    packed = MX("mxfp8").quantize(block(32, 896, -2, 2.125, 3))
    assert packed.buffers["scales"].tolist() == [[128]]
    assert packed.buffers["codes"][0, :5].tolist() == [0x7E, 0xB8, 0x38, 0x3C, 0]
    assert packed.dequantize()[0, :4].tolist() == [896, -2, 2, 3]
    # floor: exponent of 896 is 9, 9 - 8 = 1; of 900 / 2 = 450 the code saturates
    assert MX("mxfp8", "floor").quantize(block(32, 900)).dequantize()[0, 0] == 896
    assert MX("mxfp8", "sglang").quantize(block(32, 900)).buffers["scales"][0, 0] == 129


@each(
    ("rule", "amax", "byte"),
    [  # e - 127 by hand for E2M1
        ("floor", 7.9, 127),
        ("ceil", 7.9, 128),
        ("rceil", 7.9, 128),
        ("even", 7.9, 128),
        ("floor", 4.0, 127),
        ("ceil", 4.0, 127),
        ("rceil", 6.0, 127),
        ("rceil", 6.01, 128),
        ("even", 6.99, 127),
        ("even", 7.0, 128),
        ("floor", 0.0, 0),
        ("rceil", 0.0, 0),
    ],
)
def test_scales_of_mxfp4_by_hand(rule, amax, byte):
    x = np.zeros((1, 32), np.float32)
    x[0, 5] = -amax
    assert scale_bytes(x, "mxfp4", rule) == byte


def test_four_over_six_by_hand():
    # 6, 4.5 15 times: with 6 at code 6 every 4.5 is 0.5 off; with 6 at code 4 the scale is 1.5 and 4.5 is code 3
    x = np.array([[6.0, *[4.5] * 15]], np.float16)
    six, four = NVFP4(1.0).quantize(x), NVFP4(1.0, "4over6").quantize(x)
    assert six.dequantize()[0].tolist() == [6.0, *[4.0] * 15]
    assert four.buffers["scales"].tolist() == [[0x3C]]  # 1.5
    assert four.dequantize()[0].tolist() == x[0].tolist()
    grid = np.array([[6.0, 1.0] * 8], np.float16)  # both exact: six stays
    assert NVFP4(1.0, "4over6").quantize(grid).buffers["scales"].tolist() == [[0x38]]


def test_the_factor_of_a_tensor_is_modelopts():
    x = np.zeros((3, 32), np.float16)
    x[1, 7] = -1344
    assert NVFP4.measured(x).scale == 0.5  # 1344 / (6 * 448)
    assert NVFP4.measured(x[:1]).scale == 1
    assert NVFP4.measured(x[:0]).scale == 1


def test_zero_blocks_by_writer():
    zeros = np.array([[0.0, -0.0] * 8], np.float16)
    scales = {code: int(NVFP4(1.0, code).quantize(zeros).buffers["scales"][0, 0]) for code in CODES}
    assert scales == {"vllm": 0, "4over6": 0, "flashinfer": 0, "torchao": 8, "torchao_one_level": 8, "modelopt": 0x38}
    assert NVFP4().quantize(zeros).buffers["codes"].tolist() == [[0x80] * 8]
    assert NVFP4(1.0, "modelopt").quantize(zeros).buffers["codes"].tolist() == [[0] * 8]
    assert MX("fp4_mx_block16").quantize(zeros).buffers["scales"].tolist() == [[94]]  # 2^-33 is just above 1e-10


@every_writer
@pytest.mark.parametrize("scale", [1.0, 0.0123])
def test_twin_of_nvfp4(code, scale):
    if code == "torchao_one_level":
        scale = 1.0
    for case, x in cases(32).items():
        codes, scales, values = naive_scaled.nvfp4_rows(x, np.float32(scale), code)
        packed = NVFP4(scale, code).quantize(x)
        assert same_bits(packed.buffers["codes"], packed_of(codes)), case
        assert same_bits(packed.buffers["scales"], scales), case
        assert same_bits(packed.dequantize(), values.clip(-65504, 65504).astype(np.float16)), case


@every_rule
def test_twin_of_mx(name, rule):
    for case, x in cases(64).items():
        codes, scales, values = naive_scaled.mx_rows(x, name, rule)
        wide = x.astype(np.float32)
        assert same_bits(scale_bytes(wide, name, rule), scales), case
        assert same_bits(codes_with(wide, scales, name, rule), codes), case
        packed = MX(name, rule).quantize(x)
        assert same_bits(packed.buffers["codes"], codes if name == "mxfp8" else packed_of(codes)), case
        assert same_bits(packed.buffers["scales"], scales), case
        assert same_bits(packed.dequantize(), values.clip(-65504, 65504).astype(np.float16)), case


def every_magnitude(size):
    """All finite FP16 values as the largest of a block, each with smaller ones beside it and both signs."""
    largest = np.arange(0x7C00, dtype=np.uint16)[:, None]
    shares = np.random.default_rng(size).random((1, size))
    shares[0, 0] = 1
    bits = (largest * shares).astype(np.uint16)
    bits[:, 1::2] |= 0x8000
    return bits.view(np.float16)


def by_rule(x, scale, code):
    """NVFP4's codes and scales by the functions that its tables ask, of 4over6 the one of smaller errors by pairs."""
    wide, factor, number, found = x.astype(np.float32), np.float32(scale), CODES.index(code), []
    for inverse in (nvfp4._SIXTH, nvfp4._QUARTER) if code == "4over6" else (nvfp4._SIXTH,):
        scales, codes = np.empty(len(x), np.uint8), np.empty(x.size, np.uint8)
        nvfp4._scales_of(np.abs(wide).max(axis=1), factor, number, inverse, scales)
        nvfp4._codes_of(wide.reshape(-1), np.repeat(scales, 16), factor, number, codes)
        codes = codes.reshape(x.shape)
        lost = E2M1_VALUES[codes] * nvfp4._factors_back(factor)[scales][:, None] - wide
        pairs = (lost * lost)[:, ::2] + (lost * lost)[:, 1::2]
        found.append((codes, scales, np.add.accumulate(pairs, axis=1)[:, -1]))
    is_other = found[-1][2] < found[0][2]
    codes = np.where(is_other[:, None], found[-1][0], found[0][0])
    return codes, np.where(is_other, found[-1][1], found[0][1])[:, None]


@every_writer
def test_tables_of_nvfp4_are_the_rule_for_every_magnitude(code):
    x = every_magnitude(16)
    for scale in (1.0,) if code == "torchao_one_level" else (1.0, 0.0371, 24.0):
        codes, scales = by_rule(x, scale, code)
        packed = NVFP4(scale, code).quantize(x)
        assert same_bits(packed.buffers["scales"], scales)
        assert same_bits(packed.buffers["codes"], packed_of(codes))


@every_rule
def test_tables_of_mx_are_the_rule_for_every_magnitude(name, rule):
    x = every_magnitude(SCALED_TYPES[name].block)
    scales = scale_bytes(x.astype(np.float32), name, rule)
    codes = codes_with(x.astype(np.float32), scales, name, rule)
    packed = MX(name, rule).quantize(x)
    assert same_bits(packed.buffers["scales"], scales)
    assert same_bits(packed.buffers["codes"], codes if name == "mxfp8" else packed_of(codes))


@every_type
@given(x=st_np.arrays(np.float16, (2, 32), elements=st.floats(-60000, 60000, width=16)))
def test_an_element_errs_by_half_the_largest_gap_and_what_is_clipped(name, x):
    packed = scaled(name, 32.0).quantize(x)
    seen, exact = packed.dequantize().astype(np.float64), x.astype(np.float64)
    by_block = np.abs(exact).reshape(-1, SCALED_TYPES[name].block)
    largest = by_block.max(axis=1, keepdims=True)
    # E2M1: half the gap between 4 and 6 is 1/6 of the largest code, MX scales are up to twice what is needed, and clip
    # up to 8/6 of it; E4M3 scales err by 1/16. Subnormal scales and codes: 2^-9 * 32 of the factor, 1e-10 of SGLang
    share = {"nvfp4": 0.25, "nvfp4_4over6": 0.4, "mxfp4": 0.34, "mxfp8": 0.0715, "fp4_mx_block16": 0.34}[name]
    errors = np.abs(seen - exact).reshape(by_block.shape)
    assert (errors <= share * largest + (6 * 2.0**-9 * 32 if name.startswith("nvfp4") else 2.0**-24)).all()


@every_type
def test_what_is_refused(name):
    size, method = SCALED_TYPES[name].block, scaled(name)
    with pytest.raises(ValueError, match=rf"^head_dim = 40: must be a multiple of {size} for"):
        method.quantize(normal(2, 80), n_heads=2)
    with pytest.raises(InputError, match=rf"^quantizer = {name}: head_dim = 72: must be a multiple of {size}"):
        quantizers.parse(name).layout(quantizers.TensorShape("value", 4, 72))


def test_parameters_that_are_refused():
    with pytest.raises(ValueError, match="code = 'cuda': must be one of 'vllm'"):
        NVFP4(1.0, "cuda")
    with pytest.raises(ValueError, match=r"scale = 0: must be a positive number"):
        NVFP4(0)
    with pytest.raises(ValueError, match=r"scale = 0.5: must be 1 with code = 'torchao_one_level'"):
        NVFP4(0.5, "torchao_one_level")
    with pytest.raises(ValueError, match="type = 'mxfp6': must be one of 'mxfp4', 'mxfp8'"):
        MX("mxfp6")
    with pytest.raises(ValueError, match="rule = 'sglang': must be one of 'floor'"):
        MX("mxfp4", "sglang")
    with pytest.raises(InputError, match=r"rule = 'vllm': must be one of floor, ceil"):
        quantizers.parse("mxfp4:rule=vllm")


def small():
    """As `stored` for a few, which plain Python does in seconds."""
    x = normal(3, 64)
    packed = [NVFP4(0.02, "4over6").quantize(x), MX("mxfp8").quantize(x), MX("fp4_mx_block16").quantize(x)]
    found = {f"{i} {key}": buffer for i, one in enumerate(packed) for key, buffer in one.buffers.items()}
    return digest(found | {str(i): one.dequantize() for i, one in enumerate(packed)})


@pytest.mark.slow
def test_without_compilation():
    assert without_compilation("test_scaled.small()") == [small()]
