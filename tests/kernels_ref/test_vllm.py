"""vLLM's cache formats: bytes by hand, plain twins, error bounds, ledgers, refusals."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

import naive_vllm
from bits import same_bits
from cases import each
from dse import quantizers
from dse.core.errors import InputError
from kernels_ref import latent, per_head, turboquant
from kernels_ref.hadamard import transform
from kernels_ref.latent import Latent
from kernels_ref.per_head import PerTokenHead
from kernels_ref.turboquant import PRESETS, TurboQuant, codebook
from row_cases import cases, normal

FORMATS = per_head.FORMATS
SIDES = ("key", "value")
every_format = each("fmt", FORMATS)
every_side = each(("preset", "side"), list(itertools.product(PRESETS, SIDES)))
every_latent = each("fmt", latent.FORMATS)


def a_head(*values, d=8):
    return np.array([[*values, *[0.0] * (d - len(values))]], np.float16)


#: a scale of 1 in each: format -> head, bytes in hexadecimal, decoded
BY_HAND = {
    # codes 127 -127 1 2 -1 -3: halves go away from zero
    "int8": (a_head(127, -127, 0.5, 1.5, -0.5, -2.5), "7f8101 02fffd0000 0000803f", [127, -127, 1, 2, -1, -3, 0, 0]),
    # 17 is a tie of 16 and 18: even
    "fp8": (a_head(448, 1, -1, 17, 2**-9), "7e38b858 01000000 0000803f", [448, 1, -1, 16, 2**-9, 0, 0, 0]),
    # 1 15 1 15 .. / 8 times the signs + - + + - - - -: rotated 8 -7 0 0 ..: zero point 7, codes 15 0 7 7 ..
    "int4": (
        np.array([[1, -15, 1, 15, -1, -15, -1, -15]], np.float16) / np.float16(8),
        "0f777777 0700803f",
        [0.125, -1.875, 0.125, 1.875, -0.125, -1.875, -0.125, -1.875],
    ),
}


@every_format
def test_a_head_by_hand(fmt):
    x, data, values = BY_HAND[fmt]
    packed = PerTokenHead(fmt).quantize(x)
    assert PerTokenHead(fmt).slots(packed).tobytes() == bytes.fromhex(data)
    assert packed.dequantize()[0].tolist() == values


def test_int4_loses_a_rotated_row_on_one_side_of_zero():
    """One channel alone rotates to a constant: zero point 0, scale 1e-6, all codes 15, decoded 1.5e-5 in place of 1."""
    packed = PerTokenHead("int4").quantize(a_head(1))
    assert packed.buffers["codes"].tolist() == [[0xFF] * 4]
    assert packed.dequantize()[0, 0] == pytest.approx(1.5e-5, rel=1e-2)


def test_signs_are_those_of_the_seed():
    assert per_head._signs(256).tolist() == naive_vllm.signs(256)
    assert per_head.rotation_block(80) == 16
    assert [per_head.rotation_block(d) for d in (72, 96, 128, 192)] == [8, 32, 128, 64]


@pytest.mark.parametrize("stages", range(9))
def test_butterflies_of_runs_come_out_transposed(stages):
    runs = normal(5, 2**stages).astype(np.float32)
    x, work = runs.reshape(-1).copy(), np.empty(runs.size, np.float32)
    transform(x, work, stages)
    assert same_bits(x.reshape(-1, 5).T.copy(), np.array([naive_vllm.butterflies(run) for run in runs], np.float32))


#: levels of the best quantizers of a normal variable: J. Max, Quantizing for minimum distortion, 1960, table I
#: and where its cells begin, from 0
BOUNDS_1960 = {3: [0, 0.5006, 1.050, 1.748], 4: [0, 0.2582, 0.5224, 0.7996, 1.099, 1.437, 1.844, 2.401]}
MAX_1960 = {3: [0.2451, 0.7560, 1.344, 2.152], 4: [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733]}


@pytest.mark.parametrize("bits", [3, 4])
def test_codebooks_are_the_published_ones(bits):
    for head_dim in (64, 128, 256):
        centroids, midpoints = codebook(bits, head_dim)
        found = centroids * np.sqrt(head_dim)
        # outer cells are summed coarsely
        assert found[2 ** (bits - 1) :] == pytest.approx(MAX_1960[bits], abs=3e-3)
        assert found == pytest.approx(-found[::-1], abs=1e-6)
        bounds = midpoints * np.sqrt(head_dim)
        assert bounds[2 ** (bits - 1) - 1 :] == pytest.approx(BOUNDS_1960[bits], abs=3e-3)
        assert bounds == pytest.approx(-bounds[::-1], abs=1e-6)


@pytest.mark.parametrize("bits", [3, 4])
def test_a_channel_on_a_boundary_belongs_to_the_cell_above(bits):
    """On each boundary, and the nearest number below it; the code is the number of boundaries at or below."""
    midpoints = codebook(bits, 64)[1]
    for x, first in ((midpoints, 1), (np.nextafter(midpoints, np.float32(-1)), 0)):
        codes = np.empty(len(x), np.uint8)
        turboquant._indices(x, midpoints, codes)
        assert codes.tolist() == [first + i for i in range(len(x))]


#: preset, side -> head, bytes, decoded. One channel rotates to 1 standard deviation everywhere: of 16 levels number 11
#: (midpoints 0.800, 1.099), of 8 number 5 (0.501, 1.050)
TURBO_BY_HAND = [
    ("4bit_nc", "key", a_head(2), "bbbbbbbb 0040", [2, 0, 0, 0, 0, 0, 0, 0]),
    ("k3v4_nc", "key", a_head(2), "6ddbb6 0040", [2, 0, 0, 0, 0, 0, 0, 0]),
    ("k8v4", "key", a_head(448, 500, -1, 17), "7e7eb858 00000000", [448, 448, -1, 16, 0, 0, 0, 0]),
    ("4bit_nc", "value", a_head(1, 16, 3, 5, 6, 7, 8, 9), "f042 6587 003c 003c", [1, 16, 3, 5, 6, 7, 8, 9]),
    ("3bit_nc", "value", a_head(*range(8)), "88c6fa 003c 0000", list(range(8))),
]


@pytest.mark.parametrize(("preset", "side", "x", "data", "values"), TURBO_BY_HAND)
def test_a_turboquant_head_by_hand(preset, side, x, data, values):
    packed = TurboQuant(preset, side).quantize(x)
    stored = b"".join(b.tobytes() for name, b in packed.buffers.items() if name != "pad")
    assert stored == bytes.fromhex(data)
    assert packed.dequantize()[0].tolist() == pytest.approx(values, abs=2e-3)


def test_a_slot_of_odd_size_is_padded():
    """k3v4_nc at head_dim 8: 3 + 2 bytes of a key, 4 + 4 of a value, one of padding."""
    key, value = (TurboQuant("k3v4_nc", side).quantize(normal(2, 16), 2) for side in SIDES)
    assert key.stored_bytes + value.stored_bytes == 2 * 2 * 14
    assert value.buffers["pad"].tolist() == [[0, 0], [0, 0]]
    assert value.ledger["padding"] == 4 * 8
    bits = quantizers.parse("turboquant_k3v4_nc").layout(quantizers.TensorShape("value", 2, 8)).packed
    assert bits["padding"] == 16


def test_latent_slots_by_hand():
    x = np.zeros((1, 576), np.float16)
    x[0, :6], x[0, 128], x[0, 512:514] = [6, -0.5, 2.5, 5, 0.25, 0.75], 1e-3, [1, -2]
    slot = Latent("fp8").slots(Latent("fp8").quantize(x))
    # 6 / 448 = 0.0134: scale 2^-6, codes of 384, -32, 160; zero blocks: 2^ceil(log2(1e-4)) = 2^-13
    assert slot[0, :3].tolist() == [0x7C, 0xE0, 0x72]
    assert slot[0, 512:528].copy().view(np.float32).tolist() == [2**-6, 2**-13, 2**-13, 2**-13]
    assert slot[0, 528:532].tobytes().hex() == "003c00c0"
    slot = Latent("nvfp4").slots(Latent("nvfp4").quantize(x))
    # scale 1: 6 -0.5 2.5 5 0.25 0.75 are 7 9 and, ties to even, 4 6 0 2; zero blocks: 2^-9 = 0x01
    assert slot[0, :4].tobytes().hex() == "97642000"
    assert slot[0, 256:258].tobytes().hex() == "38c0"
    assert slot[0, 320] == 0x38
    assert set(slot[0, 321:].tolist()) == {1}


@every_format
@pytest.mark.parametrize("head_dim", [8, 24, 64])
def test_twin_per_head(fmt, head_dim):
    method = PerTokenHead(fmt)
    for case, x in cases(2 * head_dim).items():
        packed = method.quantize(x, 2)
        heads = x.astype(np.float32).reshape(-1, head_dim)
        twins = [naive_vllm.per_head(row, fmt) for row in heads]
        assert method.slots(packed).tobytes() == b"".join(data for data, _ in twins), case
        seen = np.array([[naive_vllm.f16(v) for v in values] for _, values in twins], np.float16)
        assert same_bits(packed.dequantize(), seen.reshape(x.shape)), case


@every_side
@pytest.mark.parametrize("head_dim", [8, 64])
def test_twin_turboquant(preset, side, head_dim):
    method, bits = TurboQuant(preset, side), PRESETS[preset][side == "value"]
    for case, x in cases(2 * head_dim).items():
        packed = method.quantize(x, 2)
        data = np.concatenate(
            [b.view(np.uint8).reshape(2 * len(x), -1) for name, b in packed.buffers.items() if name != "pad"], axis=1
        )
        heads = x.astype(np.float32).reshape(-1, head_dim)
        if bits == 8:
            want = [bytes(map(naive_vllm.e4m3, row)) for row in heads]
            seen = [[naive_vllm.e4m3_value(c) for c in row] for row in want]
        elif side == "value":
            want, seen = zip(*(naive_vllm.turbo_value(row, bits) for row in heads), strict=True)
        else:
            want, _, seen = zip(
                *(naive_vllm.turbo_key(row, bits, *codebook(bits, head_dim)) for row in heads), strict=True
            )
            seen = [[naive_vllm.f16(v) for v in row] for row in seen]
        assert data.tobytes() == b"".join(want), case
        assert same_bits(packed.dequantize(), np.array(seen, np.float16).reshape(x.shape)), case


@every_latent
def test_twin_latent(fmt):
    for case, x in cases(576).items():
        packed = Latent(fmt).quantize(x)
        twins = [naive_vllm.latent_fp8(row, row[512:]) if fmt == "fp8" else naive_vllm.latent_nvfp4(row) for row in x]
        assert Latent(fmt).slots(packed).tobytes() == b"".join(data for data, _ in twins), case
        seen = np.array([list(map(naive_vllm.f16, values)) for _, values in twins], np.float16)
        if fmt == "fp8":  # RoPE stands as it is
            seen = np.concatenate([seen, x[:, 512:]], axis=1)
        assert same_bits(packed.dequantize(), seen), case


heads_of_8 = st_np.arrays(np.float16, (2, 8), elements=st.floats(-60000, 60000, width=16))


@pytest.mark.parametrize("fmt", ["int8", "fp8"])
@given(x=heads_of_8)
def test_an_element_errs_by_half_a_step(fmt, x):
    packed = PerTokenHead(fmt).quantize(x)
    scale = packed.buffers["scale"].astype(np.float64)
    exact, seen = x.astype(np.float64), packed.dequantize().astype(np.float64)
    half_step = scale / 2 if fmt == "int8" else np.maximum(np.abs(exact) * 2**-4, scale * 2**-10)
    assert (np.abs(seen - exact) <= half_step * (1 + 2**-18) + np.abs(exact) * 2**-10 + 2**-24).all()


@given(x=heads_of_8, preset=st.sampled_from(["4bit_nc", "3bit_nc"]))
def test_a_value_errs_by_half_a_step_and_the_rounding_of_its_ends(x, preset):
    packed = TurboQuant(preset, "value").quantize(x)
    levels = 2 ** PRESETS[preset][1] - 1
    exact, seen = x.astype(np.float64), packed.dequantize().astype(np.float64)
    low, high = exact.min(1, keepdims=True), exact.max(1, keepdims=True)
    step = np.maximum((high - low) / levels, 1e-8)
    rounding = levels * np.maximum(step * 2**-11, 2**-25) + (np.abs(low) + np.abs(high)) * 2**-10 + 2**-23
    assert (np.abs(seen - exact) <= step / 2 * (1 + 2**-18) + rounding).all()


@given(x=st_np.arrays(np.float16, (3, 64), elements=st.floats(-400, 400, width=16)))
def test_a_rotated_key_keeps_its_norm(x):
    seen = TurboQuant("4bit_nc", "key").quantize(x).dequantize().astype(np.float64)
    norms = np.linalg.norm(x.astype(np.float64), axis=1)
    assert np.linalg.norm(seen, axis=1) == pytest.approx(norms, rel=2e-3, abs=1e-5)


#: bytes of a slot, key and value of one token and head, at head_dim 128
BYTES_AT_128 = {
    "int8_per_token_head": 264,
    "fp8_per_token_head": 264,
    "int4_per_token_head": 136,
    "turboquant_k8v4": 196,
    "turboquant_4bit_nc": 134,
    "turboquant_k3v4_nc": 118,
    "turboquant_3bit_nc": 102,
}


@each("name", BYTES_AT_128)
def test_bytes_of_a_slot_are_those_of_the_engine(name):
    fmt = name.removesuffix("_per_token_head").removeprefix("turboquant_")
    for tokens, heads in ((3, 4), (0, 2), (2, 3)):
        total = 0
        for side in SIDES:
            method = PerTokenHead(fmt) if fmt in FORMATS else TurboQuant(fmt, side)
            total += method.quantize(normal(tokens, heads * 128), heads).stored_bytes
        assert total == tokens * heads * BYTES_AT_128[name]


@every_latent
def test_bytes_of_a_latent_slot_are_those_of_the_engine(fmt):
    assert Latent(fmt).quantize(normal(7, 576)).stored_bytes == 7 * {"fp8": 656, "nvfp4": 352}[fmt]


REFUSED = [
    ("int8_per_token_head", PerTokenHead("int8"), 6, "must be a multiple of 4"),
    ("int4_per_token_head", PerTokenHead("int4"), 12, "must be a multiple of 8"),
    ("turboquant_4bit_nc", TurboQuant("4bit_nc"), 80, "must be a power of two from 8 on"),
    ("turboquant_3bit_nc", TurboQuant("3bit_nc", "value"), 96, "must be a power of two from 8 on"),
    ("turboquant_k8v4", TurboQuant("k8v4"), 7, "must be even"),
    ("fp8_ds_mla", Latent("fp8"), 128, r"one latent \(MLA\) head of 512 \+ 64 channels"),
    ("nvfp4_ds_mla", Latent("nvfp4"), 128, r"one latent \(MLA\) head of 512 \+ 64 channels"),
]


@pytest.mark.parametrize(("name", "method", "head_dim", "why"), REFUSED)
def test_head_dimensions_that_are_refused(name, method, head_dim, why):
    with pytest.raises(ValueError, match=why):
        method.quantize(normal(2, 2 * head_dim), n_heads=2)
    with pytest.raises(InputError, match=rf"^quantizer = {name}: .*{why}"):
        quantizers.parse(name).layout(quantizers.TensorShape("key", 2, head_dim))


@pytest.mark.parametrize("name", BYTES_AT_128)
def test_sides_that_no_slot_holds(name):
    spec = quantizers.parse(name)
    with pytest.raises(InputError, match=r"head_dim = 128 and 64: keys and values must have the same"):
        spec.layout(quantizers.TensorShape("key", 2, 128, other_dim=64))
    with pytest.raises(InputError, match=r"not for latent \(MLA\) heads: take fp8, fp8_ds_mla or nvfp4_ds_mla"):
        spec.layout(quantizers.TensorShape("key", 1, 576, other_dim=0))


def test_parameters_that_are_refused():
    with pytest.raises(ValueError, match="format = 'int3': must be one of 'int8'"):
        PerTokenHead("int3")
    with pytest.raises(ValueError, match="preset = '2bit': must be one of 'k8v4'"):
        TurboQuant("2bit")
    with pytest.raises(ValueError, match="side = 'both': must be one of 'key'"):
        TurboQuant("k8v4", "both")
    with pytest.raises(ValueError, match="format = 'int8': must be one of 'fp8'"):
        Latent("int8")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("fp8_e5m2", "fp8:format=e5m2"),
        ("fp8_e4m3", "fp8"),
        ("turboquant:3bit_nc", "turboquant_3bit_nc"),
        ("TurboQuant:k8v4,skip=none", "turboquant_k8v4:skip=none"),
        ("fp8_e5m2:skip=0", "fp8:format=e5m2,skip=0"),
    ],
)
def test_other_spellings(text, name):
    assert quantizers.parse(text).name == name
