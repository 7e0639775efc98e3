"""Oaken to the bit: slow twins, threads, no JIT, blocks, layouts; error bounds."""

import hashlib
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive_oaken as naive
from bits import GOLDEN, on_threads, same_bits, without_compilation
from cases import each
from kernels_ref import inputs
from kernels_ref.oaken import Oaken, Profiler, Thresholds
from kernels_ref.oaken import artifact as released
from kernels_ref.packed import Packed

#: lower, upper, outermost first: usual, all above zero, touching zero and itself, everything inside, nothing but
#: the outer group, touching zero from the other sign, differences beyond the largest number
THRESHOLDS = {
    2: [((-0.5,), (0.75,)), ((1.5,), (2.5,)), ((0.0,), (0.0,))],
    3: [
        ((-2.5, -0.01), (3.0, 0.0134)),
        ((-0.0135, 2.85), (4.3, 2.93)),
        ((-1.0, -0.0), (0.0, 0.0)),
        ((-65504.0, -65504.0), (65504.0, 65504.0)),
        ((0.25, 0.25), (0.25, 0.25)),
        ((-0.5, 0.0), (1.0, -0.0)),
        ((-4e4, -3.5e4), (-2e4, -3e4)),
    ],
    4: [((-3.0, -2.0, -0.02), (3.5, 2.25, 0.01)), ((0.5, 1.0, 2.0), (6.0, 3.0, 2.0))],
    5: [((-3.0, -2.0, -0.02, -0.005), (3.5, 2.25, 0.01, 0.0)), ((0.1, 0.5, 1.0, 2.0), (9.0, 6.0, 3.0, 2.0))],
}
METHODS = [
    Oaken(lower, upper, dense, bits, outlier_code=code)
    for n, pairs in THRESHOLDS.items()
    for lower, upper in pairs
    for dense in range(1, n + 1)
    for bits, code in ((5, "magnitude"), (4, "magnitude"), (4, "signed"))
]
DEFAULT, SATURATING = Oaken(*THRESHOLDS[3][0]), Oaken(*THRESHOLDS[3][-1])


def name_of(method):
    code = f"{method.outlier_bits}{method.outlier_code[0]}"
    return f"{method.n_groups}-{method.dense}-{code}-{method.lower[-1]:g}"


def twins(method):
    """The rest of the twin's arguments."""
    return method.lower, method.upper, (method.dense or 2) - 1, method.outlier_bits, method.outlier_code


def rows(d, seed=0):
    """Token vectors of all sorts, [n, d] float16."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal((4, d)) * np.exp(rng.normal(0, 1, d))
    kinds = [
        *normal,
        rng.standard_cauchy(d).clip(-6e4, 6e4),
        rng.standard_normal(d) * 1e-3,
        rng.integers(-1024, 1024, d) * 2.0**-24,
        np.zeros(d),
        -np.zeros(d),
        np.full(d, 0.25),
        np.full(d, -7.5),
        np.full(d, 2.0**-24),
        np.where(np.arange(d) % 2, 65504.0, -65504.0),
        np.where(np.arange(d) % 7, 0.0, 3.25),
        np.where(np.arange(d) % 3, -0.0, 0.0),
        rng.uniform(1, 4, d),
    ]
    x = np.array(kinds).astype(np.float16)
    edges = [v for pairs in THRESHOLDS.values() for sides in pairs for side in sides for v in side]
    edges = np.float16(edges)
    edges = np.concatenate([edges, np.nextafter(edges, np.float16(-65504)), np.nextafter(edges, np.float16(65504))])
    return np.concatenate([x, np.resize(rng.permutation(edges), (2, d))])


def check_against_twin(method, x):
    packed = method.quantize(x)
    twin = naive.encode(x, *twins(method))
    for name, buffer in packed.buffers.items():
        assert buffer.tobytes() == twin[name].tobytes(), name
    assert np.array_equal(method.groups(x), twin["group"])
    y = naive.decode(twin, x.shape[1], *twins(method))
    assert same_bits(packed.dequantize(), y)
    assert packed.counts["n_outliers"] == len(twin["coo"])
    return packed


def test_golden_artifact_exceptions():
    cases = json.loads((GOLDEN / "manifest.json").read_text())["oaken_exceptions"]
    assert {case["case"] for case in cases} == {"all_zero", "all_inside_inner"}
    for case in cases:
        assert "ZeroDivisionError" in case["result"]
        lower, upper = case["thresholds_lower"][:-1], case["thresholds_upper"][:-1]
        x = np.zeros((4, 8), np.float16)
        if case["case"] == "all_inside_inner":
            x[:, ::2] = 0.03
        with pytest.raises(ValueError, match="ZeroDivisionError"):
            Oaken(lower, upper, mode="artifact").fake_quantize(x)


# slow twins -----------------------------------------------------------------------------------------------------------


@each("method", METHODS, ids=name_of)
def test_twin(method):
    check_against_twin(method, rows(70))


@each("d", [1, 2, 63, 64, 65, 129])
@each("method", [DEFAULT, METHODS[2], METHODS[-6]], ids=name_of)
def test_twin_ragged(method, d):
    check_against_twin(method, rows(d, d))


@pytest.mark.parametrize("method", [DEFAULT, SATURATING, METHODS[-1]], ids=name_of)
@pytest.mark.slow
def test_all_finite_inputs(method):
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    x = bits[(bits & 0x7C00) != 0x7C00].view(np.float16)
    check_against_twin(method, np.random.default_rng(1).permutation(x).reshape(-1, 496))


@each("method", [DEFAULT, SATURATING, METHODS[0], METHODS[2], *METHODS[-10:]], ids=name_of)
def test_all_codes_of_all_entries_decode_as_the_twin_does(method):
    rng = np.random.default_rng(2)
    n, d, n_rows = method.n_groups, 200, 12
    group_bits, sign_bits, entry_bytes = naive.entry_bits(n, method.outlier_bits)
    counts, coo = np.zeros((n_rows, 4), np.uint8), []
    for row in range(n_rows):
        for chunk in range(4):
            places = np.flatnonzero(rng.random(min(64, d - 64 * chunk)) < 0.9)
            counts[row, chunk] = places.size
            number = rng.integers(0, n - 1, places.size)
            sign = rng.integers(0, 1 + sign_bits, places.size)
            coo.append(places | number << 6 | sign << (6 + group_bits))
    pairs = np.sort((rng.standard_normal((n_rows, n, 2)) * np.exp(rng.normal(0, 3, (n_rows, n, 1)))), axis=2)
    pairs[0] = 0
    pairs[1] = (-65504, 65504)
    buffers = {
        "dense": rng.integers(0, 256, (n_rows, d // 2)).astype(np.uint8),
        "counts": counts,
        "meta": pairs.reshape(n_rows, -1).astype(np.float16),
        "coo": np.concatenate(coo).astype("u1" if entry_bytes == 1 else "<u2"),
    }
    parts = {"dense": "payload", "counts": "counts", "meta": "scales", "coo": "outliers"}
    y = naive.decode(buffers, d, *twins(method))
    assert same_bits(method.dequantize(Packed(method, (n_rows, d), n_rows * d, buffers, parts)), y)


@each("device", ["cpu", "cuda"])
@each("options", [{}, {"group_shift": False}, {"quantize_outlier": False}], ids=str)
@each("n", [2, 3, 4, 5])
def test_artifact_twin(n, options, device):
    lower, upper = THRESHOLDS[n][0]
    method = Oaken(lower, upper, mode="artifact", device_semantics=device, **options)
    quantize_outlier, shift = options.get("quantize_outlier", True), options.get("group_shift", True)
    for x in (rows(96), rows(96)[:4], (rows(64)[:4] * np.float16(0.01) + np.float16(3)), rows(33)[12:]):
        try:
            y, group = naive.artifact(x, (*lower, 0.0), (*upper, 0.0), device, quantize_outlier, shift)
        except ZeroDivisionError:
            with pytest.raises(ValueError, match="ZeroDivisionError"):
                method.fake_quantize(x)
            continue
        assert same_bits(method.fake_quantize(x), y)
        assert np.array_equal(method.groups(x), group)


def test_artifact_all_inputs():
    """All finite patterns, and then all patterns: one NaN spreads to every element, as in the released code."""
    lower, upper = THRESHOLDS[3][0]
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    for x in (bits[np.isfinite(bits)].reshape(-1, 496), bits.reshape(-1, 512)):
        for device in ("cpu", "cuda"):
            method = Oaken(lower, upper, mode="artifact", device_semantics=device)
            y, _ = naive.artifact(x, (*lower, 0.0), (*upper, 0.0), device)
            assert same_bits(method.fake_quantize(x, nonfinite="propagate"), y)


# how it is computed changes nothing -----------------------------------------------------------------------------------


def stored():
    """A hash of everything that kernels compute on some inputs (also run in other processes)."""
    found = hashlib.sha256()
    for method in (DEFAULT, METHODS[-3]):
        for x in (rows(70), rows(257)):
            packed = method.quantize(x)
            for buffer in packed.buffers.values():
                found.update(buffer.tobytes())
            found.update(packed.dequantize().tobytes())
    lower, upper = THRESHOLDS[3][0]
    y = Oaken(lower, upper, mode="artifact").fake_quantize(rows(70))
    found.update(np.where(np.isnan(y), 1, y).tobytes())
    profiler = Profiler()
    for which in ("key", "value"):
        profiler.add(0, which, rows(70)[:7])
    found.update(repr(profiler.thresholds()).encode())
    return found.hexdigest()


@pytest.mark.parametrize("other", [on_threads, without_compilation])
@pytest.mark.slow
def test_same_bits_elsewhere(other):
    assert set(other("test_oaken.stored()")) == {stored()}


@pytest.mark.parametrize("method", [DEFAULT, METHODS[-1]], ids=name_of)
def test_heads_and_strides(method, monkeypatch):
    """[batch, heads, tokens, head_dim] with odd strides, block by block, is [tokens, channels] row by row."""
    flat = np.resize(rows(96), (2 * 21, 96))
    heads = flat.reshape(2, 21, 3, 32).transpose(0, 2, 1, 3)
    padded = np.zeros((2, 3, 21, 64), np.float16)
    padded[..., ::2] = heads
    whole = method.quantize(flat)
    y = whole.dequantize().reshape(2, 21, 3, 32).transpose(0, 2, 1, 3)
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 2 * 96 * 5)
    for x in (heads, padded[..., ::2], np.ascontiguousarray(heads), heads.astype(np.float32), heads.astype(">f2")):
        before = x.copy()
        packed = method.quantize(x)
        assert {k: v.tobytes() for k, v in packed.buffers.items()} == {k: v.tobytes() for k, v in whole.buffers.items()}
        assert same_bits(packed.dequantize(), np.ascontiguousarray(y))
        assert np.array_equal(before, x)
        assert np.array_equal(method.groups(x), method.groups(flat).reshape(2, 21, 3, 32).transpose(0, 2, 1, 3))


def test_artifact_heads_and_blocks(monkeypatch):
    flat = np.resize(rows(96)[:7], (2 * 20, 96))
    heads = flat.reshape(2, 20, 3, 32).transpose(0, 2, 1, 3)
    method = Oaken(*THRESHOLDS[3][0], mode="artifact")
    y = method.fake_quantize(flat).reshape(2, 20, 3, 32).transpose(0, 2, 1, 3)
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 2 * 96 * 5)
    assert same_bits(method.fake_quantize(heads), y)
    assert same_bits(method.fake_quantize(heads, nonfinite="propagate"), y)


def test_permuting_tokens_permutes_bytes():
    x = rows(130)
    method, order = DEFAULT, np.random.default_rng(3).permutation(len(x))
    one, other = method.quantize(x).buffers, method.quantize(x[order]).buffers
    for name in ("dense", "counts", "meta"):
        assert np.array_equal(one[name][order], other[name], equal_nan=True), name
    ends = np.cumsum(one["counts"].sum(axis=1, dtype=int))
    entries = np.split(one["coo"], ends[:-1])
    assert np.array_equal(np.concatenate([entries[i] for i in order]), other["coo"])


def test_effective_bits_of_table_2():
    """4.82 bit for d = 4096 at a share of 10 % (Oaken Table 2, Llama2-7B)."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((64, 4096)).astype(np.float16)
    profiler = Profiler()
    profiler.add(0, "key", x)
    profiler.add(0, "value", x)
    packed = Oaken.of(profiler.thresholds(), 0, "key").quantize(x)
    assert packed.counts["n_outliers"] / x.size == pytest.approx(0.1, abs=2e-3)
    assert float(packed.effective_bits) == pytest.approx(4.82, abs=0.02)
    assert packed.stored_bits == packed.effective_bits + 1 / 8


def test_four_bit_outliers_by_hand():
    """One token, outer group beyond +-2: 2.5, 9.5 and -3 have magnitudes 0.5, 7.5 and 1: 7 steps of 1 from 0.5 on.

    2.5: code 0; 9.5: 7; -3: (1 - 0.5) / 1 is half way, to the even 0, and 8 for its sign: -2.5. 0 is alone in the dense
    group. The signed code has 15 steps of 8.5 / 15 from -1 to 7.5 and takes 0.5 to 3 steps: 0.7; -1 to its end.
    """
    x = np.array([[2.5, 9.5, -3.0, 0.0]], np.float16)
    packed = Oaken((-2.0,), (2.0,), 2, 4).quantize(x)
    assert packed.buffers["dense"].tolist() == [[0x70, 0x08]]
    assert packed.dequantize().tolist() == [[2.5, 9.5, -2.5, 0.0]]
    signed = Oaken((-2.0,), (2.0,), 2, 4, outlier_code="signed").quantize(x)
    assert signed.buffers["dense"].tolist() == [[0xF3, 0x00]]
    assert signed.dequantize()[0] == pytest.approx([2.7, 9.5, -3.0, 0.0], abs=0.01)
    assert signed.stored_bits == packed.stored_bits


# properties -----------------------------------------------------------------------------------------------------------


def ulp(value):
    """Distance of neighbouring FP16 numbers at |value|."""
    return np.spacing(np.abs(value).astype(np.float16)).astype(float)


def stored_terms(method, x, packed):
    """Per element: group, side, shifted value, step and lower end of its range, in float64."""
    n, dense = method.n_groups, (method.dense or 2) - 1
    order = [dense, *(j for j in range(n) if j != dense)]
    group = method.groups(x)
    lower = np.array([*np.float16(np.float32(method.lower)).astype(float), 0.0])[group]
    upper = np.array([*np.float16(np.float32(method.upper)).astype(float), 0.0])[group]
    values = x.astype(float)
    is_upper = np.where(group == n - 1, ~np.signbit(x), values > upper)
    shift = np.where(is_upper, upper, lower)
    meta = packed.buffers["meta"].astype(float).reshape(len(x), n, 2)
    ends = np.take_along_axis(meta, np.array([order.index(j) for j in range(n)])[group][..., None], axis=1)
    signed = (group == dense) | (method.outlier_code == "signed")
    step = (ends[..., 1] - ends[..., 0]) / np.where(signed | (method.outlier_bits == 5), 15, 7)
    return shift, np.where(signed, upper - lower, 0), step, np.abs(ends).max(axis=2)


@given(
    st.sampled_from([m for m in METHODS if max(m.upper) < 60000]),
    st.integers(1, 90),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_error_is_half_a_step(method, d, seed, scale):
    """|y - x| <= half a step + the FP16 roundings of shifted value and result (+ the thresholds' distance where the
    side of a signed value next to its threshold is lost)."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(3, (6, d)).clip(-1000, 1000) * scale).astype(np.float16)
    packed = method.quantize(x)
    y = packed.dequantize().astype(float)
    shift, apart, step, largest = stored_terms(method, x, packed)
    bound = step / 2 + ulp(x - shift) / 2 + ulp(np.maximum(np.abs(x), np.abs(y))) / 2 + largest * 2.0**-21
    error = np.abs(y - x.astype(float))
    lost = error > bound
    assert (error <= bound + np.where(lost, apart + ulp(apart), 0)).all()
    near = np.abs(x.astype(float) - shift) <= step / 2 + ulp(x - shift) + largest * 2.0**-21
    assert not (lost & ~near).any()  # only values that half a step brings across their threshold


@given(st.integers(-31743, 31743), st.integers(-31743, 31743))
def test_codes_are_kept(first, second):
    """Quantizing dequantized values with the same minimum, maximum, group and side gives the same codes."""
    keys = np.sort([first, second])
    low, high = np.where(keys < 0, 2**15 - 1 - keys, keys).astype(np.uint16).view(np.float16).astype(np.float32)
    size = np.float32(high - low)
    codes = np.arange(16, dtype=np.float32)
    if size > 0:
        values = (codes * (size / np.float32(15)) + low).astype(np.float32)
        assert np.array_equal(np.rint((values - low) * (np.float32(15) / size)), codes)


# what is refused ------------------------------------------------------------------------------------------------------


@each(
    ("arguments", "words"),
    [
        (((-1.0, -0.1), (1.0,)), "upper has 1"),
        (((-0.1, -1.0), (1.0, 0.1)), "nested"),
        (((-1.0, 0.5), (1.0, 0.1)), "nested"),
        (((math.nan,), (1.0,)), "finite"),
        (((-1.0,), (65520.0,)), "finite"),
        (((-1.0,), (True,)), "numbers"),
        ((("a",), (1.0,)), "numbers"),
        (((), ()), "1 to 4"),
        (((-5.0, -4.0, -3.0, -2.0, -1.0),) * 2, "1 to 4"),
        ((-1.0, 1.0), "1 to 4"),
        (((-1.0,), (1.0,)), "dense = 0"),
        (((-1.0,), (1.0,), 3), "dense = 3"),
        (((-1.0,), (1.0,), 1.0), r"dense = 1\.0"),
        (((-1.0,), (1.0,), 1, 6), "outlier_bits = 6"),
        (((-1.0,), (1.0,), 1, 5, "paper", "cpu", True, True, "signed"), "must be 'magnitude' where they have 5 bits"),
        (((-1.0,), (1.0,), 1, 4, "paper", "cpu", True, True, "code"), "outlier_code = 'code'"),
        (((-1.0,), (1.0,), 1, 5, "paged"), "mode = 'paged'"),
        (((-1.0,), (1.0,), 1, 5, "paper", "cuda"), "artifact"),
        (((-1.0,), (1.0,), 1, 5, "artifact", "tpu"), "device_semantics = 'tpu'"),
    ],
)
def test_parameters_are_checked(arguments, words):
    with pytest.raises(ValueError, match=words) as caught:
        Oaken(*arguments)
    assert "\n" not in str(caught.value)


def test_values_that_are_not_finite():
    method, x = DEFAULT, rows(70)
    for value, replacement in ((np.nan, 0), (np.inf, 65504), (-np.inf, -65504)):
        bad, good = x.copy(), x.copy()
        bad[3, 5], good[3, 5] = value, replacement
        with pytest.raises(ValueError, match=r"1 of .* the first at \[3, 5\]"):
            method.quantize(bad)
        with pytest.raises(ValueError, match="first at"):
            method.groups(bad)
        with pytest.raises(ValueError, match="propagate"):
            method.fake_quantize(bad, nonfinite="propagate")
        assert same_bits(method.fake_quantize(bad, nonfinite="replace"), method.fake_quantize(good))
        with pytest.raises(ValueError, match="first at"):
            Oaken(*THRESHOLDS[3][0], mode="artifact").fake_quantize(bad)


def test_artifact_stores_nothing():
    method = Oaken(*THRESHOLDS[3][0], mode="artifact")
    with pytest.raises(ValueError, match="stores nothing"):
        method.quantize(rows(8))
    with pytest.raises(ValueError, match="stores nothing"):
        method.dequantize(DEFAULT.quantize(rows(8)))


def test_scalars_follow_the_devices():
    """`x + s` and `x / s` differ between CPU and CUDA where the number is not an FP16 number."""
    x = np.arange(2**15, dtype=np.uint16).view(np.float16)
    cpu, cuda = released.Scalars("cpu"), released.Scalars("cuda")
    with np.errstate(all="ignore"):
        for s in np.random.default_rng(5).standard_normal(100):
            wide, narrow = x.astype(np.float32), np.float32(s)
            assert same_bits(cpu.multiply(x, s), (wide * narrow).astype(np.float16))
            assert same_bits(cuda.multiply(x, s), (wide * narrow).astype(np.float16))
            assert same_bits(cpu.add(x, s), x + np.float16(narrow))
            assert same_bits(cuda.add(x, s), (wide + narrow).astype(np.float16))
            assert same_bits(cpu.divide(x, s), (wide / narrow).astype(np.float16))
            assert same_bits(cuda.divide(x, s), (wide * (np.float32(1) / narrow)).astype(np.float16))


def test_of_takes_the_largest_group_as_dense():
    fracs, row = (0.02, 0.02, 0.9, 0.06), ((-3.0, -2.0, -0.1, 0.0),)
    upper = ((3.0, 2.0, 0.1, 0.0),)
    thresholds = Thresholds(fracs, row, upper, row, upper)
    assert Oaken.of(thresholds, 0, "key").dense == 3
    assert Oaken.of(thresholds, 0, "value", dense=2, outlier_bits=4).dense == 2
    assert Oaken.of(thresholds, 0, "key").lower == (-3.0, -2.0, -0.1)
    with pytest.raises(ValueError, match="layer = 1"):
        Oaken.of(thresholds, 1, "key")
