"""Atom, QServe, Tender, Quanto and KVQuant: plain twins, parameters."""

import numpy as np
import pytest

import naive_baselines as naive
from bits import same_bits
from cases import each
from kernels_ref.atom import Atom
from kernels_ref.kvquant import KVQuantKeys, KVQuantValues
from kernels_ref.qserve import QServe
from kernels_ref.tender import Tender
from naive_rows import nibbles
from row_cases import cases, normal
from studies.quanto import Quanto


def quiet():
    return np.errstate(all="ignore")


def plain(x):
    """-0 as +0: integer codes have no sign of zero."""
    return x + np.float16(0)


# --- twins


@pytest.mark.parametrize(("heads", "head_dim", "group"), [(2, 64, 128), (1, 7, 3), (3, 43, 20), (4, 1, 1), (2, 66, 32)])
def test_asymmetric_twins(heads, head_dim, group):
    channels = heads * head_dim
    for name, x in cases(channels).items():
        for method, rule, n_heads, size in (
            (Atom(group), naive.atom_vector, heads, group),
            (QServe(), naive.qserve_head_vector, heads, head_dim),
            (QServe("artifact"), naive.qserve_artifact_vector, 1, channels),
        ):
            with quiet():
                codes, scale, zero, decoded = naive.by_group(rule, x, n_heads, size)
            packed = method.quantize(x, n_heads=heads)
            assert same_bits(packed.buffers["codes"], nibbles(codes, False, 0)), (name, method)
            assert same_bits(packed.buffers["scale"], scale), (name, method)
            assert same_bits(plain(packed.buffers["zero"]), plain(zero)), (name, method)
            assert same_bits(plain(packed.dequantize()), plain(decoded)), (name, method)
            assert np.isfinite(packed.dequantize()).all()


def test_zero_points_close_to_a_tie():
    """Groups with opposite ends: their zero points are 7.5 but for the rounding of the steps before."""
    rng = np.random.default_rng(8)
    ends = (rng.random((3000, 1)) * 4 + 0.01).astype(np.float16)
    x = np.concatenate([-ends, ends, (ends * rng.uniform(-1, 1, (3000, 6))).astype(np.float16)], axis=1)
    for method, rule in (
        (Atom(8), naive.atom_vector),
        (QServe(), naive.qserve_head_vector),
        (QServe("artifact"), naive.qserve_artifact_vector),
    ):
        codes, scale, zero, decoded = naive.by_group(rule, x, 1, 8)
        packed = method.quantize(x)
        assert same_bits(packed.buffers["codes"], nibbles(codes, False, 0))
        assert same_bits(packed.buffers["scale"], scale)
        assert same_bits(packed.buffers["zero"], zero)
        assert same_bits(plain(packed.dequantize()), plain(decoded))


def test_smoothed_keys():
    rng = np.random.default_rng(1)
    factors = (0.1 + 3 * rng.random(33)).astype(np.float16)
    x = normal(9, 33)
    packed = QServe("artifact", tuple(factors.tolist())).quantize(x)
    plain_method = QServe("artifact").quantize(x * (np.float16(1) / factors))
    assert same_bits(packed.buffers["codes"], plain_method.buffers["codes"])
    assert same_bits(packed.dequantize(), plain_method.dequantize() * factors)
    with pytest.raises(ValueError, match="smooth has 33 factors"):
        QServe("artifact", tuple(factors.tolist())).quantize(x[:, :32])


@pytest.mark.parametrize(("heads", "head_dim"), [(2, 16), (1, 7), (3, 5)])
def test_tender_twin(heads, head_dim):
    for name, x in cases(heads * head_dim).items():
        with quiet():
            key_codes, key_scale, centre, key_decoded = naive.tender_key(x, heads)
            codes, scale, decoded = naive.tender_value(x)
        key, value = Tender("key").quantize(x, n_heads=heads), Tender("value").quantize(x, n_heads=heads)
        assert same_bits(key.buffers["codes"], nibbles(key_codes, False, 0)), name
        assert same_bits(key.buffers["scale"], key_scale), name
        assert same_bits(plain(key.buffers["centre"][0]), plain(centre)), name
        assert same_bits(plain(key.dequantize()), plain(key_decoded)), name
        assert same_bits(value.buffers["codes"], nibbles(codes, False, 0)), name
        assert same_bits(value.buffers["scale"][0], scale), name
        assert same_bits(plain(value.dequantize()), plain(decoded)), name


def test_tender_sequences_are_apart():
    x = normal(3 * 2 * 5, 8).reshape(3, 2, 5, 8)
    for which in ("key", "value"):
        whole = Tender(which).quantize(x).dequantize()
        for b in range(3):
            assert same_bits(whole[b : b + 1], Tender(which).quantize(x[b : b + 1]).dequantize())


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("axis", [0, -1])
def test_quanto_twin(bits, axis):
    for name, flat in cases(8 * 3 * 8).items():
        x = flat[:3].reshape(1, 3, 8 * 3, 8)
        for group in (4, 8, 24):
            with quiet():
                codes, scale, shift, decoded = naive.quanto(x, bits, group, axis)
            packed = Quanto(bits, group, axis).quantize(x)
            shifts = np.arange(0, 8, bits).astype(np.uint8)
            unpacked = (packed.buffers["codes"][:, :, None] >> shifts) & (2**bits - 1)
            assert same_bits(unpacked.reshape(codes.shape).astype(int), codes), name
            assert same_bits(packed.buffers["scale"], scale), name
            assert same_bits(plain(packed.buffers["shift"]), plain(shift)), name
            assert same_bits(plain(packed.dequantize()), plain(decoded)), name


def test_quanto_refuses_what_it_cannot_group():
    with pytest.raises(ValueError, match="group = 64: must divide the 60"):
        Quanto().quantize(np.zeros((6, 10), np.float16))
    with pytest.raises(ValueError, match="whole bytes"):
        Quanto(2, 6)


@pytest.mark.parametrize("channels", [1, 2, 33, 200])
def test_kvquant_twin(channels):
    lut = tuple(np.tanh(np.linspace(-2, 2, 16)).tolist())
    for name, x in cases(channels).items():
        ordered = np.sort(x.astype(np.float32), axis=0)
        low, high = ordered[len(x) // 3].astype(np.float16), ordered[-1 - len(x) // 3].astype(np.float16)
        low, high = np.minimum(low, high), np.maximum(low, high)
        outlier = (x < low) | (x > high)
        for table in (None, lut):
            with quiet():
                codes, decoded = naive.kvquant(x, outlier, low, high, table, False)
            packed = KVQuantKeys(tuple(low.tolist()), tuple(high.tolist()), table).quantize(x)
            assert same_bits(packed.buffers["codes"], nibbles(codes, False, 0)), name
            assert same_bits(packed.buffers["outlier_value"], x[outlier]), name
            assert same_bits(plain(packed.dequantize()), plain(decoded)), name
            values = KVQuantValues(0.9, table).quantize(x)
            ends = np.cumsum(values.buffers["outlier_count"])
            apart = np.zeros(x.shape, bool)
            for row, index in zip(apart, np.split(values.buffers["outlier_index"], ends[:-1]), strict=True):
                row[index] = True
            # about 5 % at either end, ties included
            least = np.sort(x, axis=1)[:, [0, -1]]
            assert (apart | ((x != least[:, [0]]) & (x != least[:, [1]]))).all()
            middle = np.sort(x, axis=1)[:, [(channels - 1) // 2]]
            kept = np.where(apart, middle, x)
            low_high = kept.min(axis=1, keepdims=True), kept.max(axis=1, keepdims=True)
            with quiet():
                codes, decoded = naive.kvquant(x, apart, *low_high, table, True)
            assert same_bits(values.buffers["codes"], nibbles(codes, False, 0)), name
            assert same_bits(plain(values.dequantize()), plain(decoded)), name


@each(
    ("make", "name"),
    [
        (lambda: Atom(0), "group"),
        (lambda: QServe("token"), "mode"),
        (lambda: QServe("head", (1.0,)), "smooth"),
        (lambda: QServe("artifact", (0.1,)), "smooth"),
        (lambda: Tender("keys"), "which"),
        (lambda: Quanto(3), "bits"),
        (lambda: Quanto(axis=1), "axis"),
        (lambda: KVQuantKeys((1.0,), (0.0,)), "lower"),
        (lambda: KVQuantKeys((1.0,), (1.0, 2.0)), "lower"),
        (lambda: KVQuantKeys((1.0,), (2.0,), (0.0,) * 15), "lut"),
        (lambda: KVQuantValues(1.5), "kept"),
    ],
)
def test_parameters(make, name):
    with pytest.raises(ValueError, match=name):
        make()
