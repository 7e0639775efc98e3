"""Atom, QServe, Tender, Quanto and KVQuant: third-party vectors, plain twins, ledgers, streaming where they stream."""

import numpy as np
import pytest

import naive_baselines as naive
from bits import golden as load
from bits import same_bits
from cases import each
from conformance.checks import smooth_factors
from dse.quantizers import TensorShape, parse
from kernels_ref.atom import Atom
from kernels_ref.cache import RowCache
from kernels_ref.kvquant import KVQuantKeys, KVQuantValues
from kernels_ref.packed import Packed
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


# --- third-party vectors


def test_atom_vectors():
    golden = load("base_atom")
    for which, out in (("key", "atom_k"), ("value", "atom_v")):
        assert same_bits(Atom().quantize(golden[which]).dequantize(), golden[out])


def test_qserve_vectors():
    golden = load("base_qserve")
    key, value = golden["key"][0], golden["value"][0]
    assert same_bits(QServe("artifact").quantize(value).dequantize(), golden["v_out"][0])
    smooth = smooth_factors(key)
    assert same_bits(smooth, golden["smooth_scale"])
    assert same_bits(QServe("artifact", tuple(smooth.tolist())).quantize(key).dequantize(), golden["k_out"][0])


def test_tender_vectors():
    golden = load("base_tender")
    key = Tender("key").quantize(golden["key"][None])
    codes = nibbles(golden["k_code"].transpose(1, 0, 2).reshape(40, -1), False, 0)
    assert same_bits(key.buffers["codes"], codes)
    assert same_bits(key.buffers["scale"], golden["k_scale"][:, :, 0].T.copy())
    assert same_bits(key.buffers["centre"], golden["k_bias"].reshape(1, -1))
    # the artifact leaves the centre out; its codes keep the sign of zero
    assert same_bits(plain(key.dequantize()[0]), plain(golden["k_dequant"] + golden["k_bias"]))
    value = Tender("value").quantize(golden["value"][None])
    codes = nibbles(golden["v_code"].transpose(1, 0, 2).reshape(40, -1), False, 0)
    assert same_bits(value.buffers["codes"], codes)
    assert same_bits(value.buffers["scale"], golden["v_scale"].reshape(1, -1))
    assert same_bits(plain(value.dequantize()[0]), plain(golden["v_dequant"]))


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize(("axis", "axis_name"), [(0, "ax0"), (-1, "axm1")])
@pytest.mark.parametrize("group", [32, 64])
def test_quanto_vectors(bits, axis, axis_name, group):
    golden = load("hf_quanto")
    for which, name in (("key", "k"), ("value", "v")):
        packed = Quanto(bits, group, axis).quantize(golden[which])
        key = f"{name}_b{bits}_{axis_name}_g{group}"
        codes = golden[f"{key}_code"] if axis == 0 else golden[f"{key}_code"].T
        shifts = np.arange(0, 8, bits)
        unpacked = (packed.buffers["codes"][:, :, None] >> shifts.astype(np.uint8)) & (2**bits - 1)
        assert same_bits(unpacked.reshape(codes.shape), codes)
        assert same_bits(packed.buffers["scale"], golden[f"{key}_scale"].reshape(-1))
        assert same_bits(packed.buffers["shift"], golden[f"{key}_shift"].reshape(-1))
        assert same_bits(packed.dequantize(), golden[f"{key}_dequant"])


def test_kvquant_vectors():
    """Informative in the set, and right nonetheless."""
    golden = load("base_kvquant")
    lut = tuple(golden["lut"].reshape(-1).tolist())
    for table, key_out, value_out in ((None, "k_zp_out", "v_zp_out"), (lut, "k_nuq_out", "v_nuq_out")):
        keys = KVQuantKeys(tuple(golden["k_lower"].tolist()), tuple(golden["k_upper"].tolist()), table)
        for method, x, mask, out in (
            (keys, golden["key"], golden["k_mask"], golden[key_out]),
            (KVQuantValues(lut=table), golden["value"], golden["v_mask"], golden[value_out]),
        ):
            packed = method.quantize(x)
            assert same_bits(packed.buffers["outlier_index"], np.nonzero(mask)[1].astype(np.uint16))
            assert same_bits(packed.buffers["outlier_value"], x[mask])
            assert packed.counts == {"n_outliers": int(mask.sum())}
            assert same_bits(packed.dequantize(), out)


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


# --- what they share


@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(3, 4, 64), (5, 1, 7), (4, 3, 43), (0, 2, 8)])
def test_ledgers_are_the_closed_forms(tokens, heads, head_dim):
    x = normal(tokens, heads * head_dim)
    for method, name, which in (
        (Atom(), "atom", "key"),
        (Atom(20), "atom:group=20", "value"),
        (QServe(), "qserve", "key"),
        (QServe("artifact"), "qserve:mode=artifact", "value"),
        (Tender("key"), "tender", "key"),
        (Tender("value"), "tender", "value"),
    ):
        packed = method.quantize(x, n_heads=heads)
        layout = parse(name).layout(TensorShape(which, heads, head_dim))
        want = {part: int(bits * tokens + layout.once.get(part, 0)) for part, bits in layout.packed.items()}
        want |= {part: bits for part, bits in layout.once.items() if part not in want}
        assert packed.ledger == {part: bits for part, bits in want.items() if bits}, name
        assert sum(packed.ledger.values()) == 8 * packed.stored_bytes
    thresholds = (-20.0,) * (heads * head_dim), (20.0,) * (heads * head_dim)
    for method in (KVQuantKeys(*thresholds), KVQuantValues()):
        packed = method.quantize(x)
        layout = parse("kvquant:outliers=0").layout(TensorShape("key", heads, head_dim))
        for part in ("payload", "padding"):
            assert packed.ledger.get(part, 0) == layout.packed.get(part, 0) * tokens
        assert packed.ledger.get("outliers", 0) == 32 * packed.counts["n_outliers"]


STREAMING = [
    Atom(5),
    QServe(),
    QServe("artifact", (0.5,) * 12),
    KVQuantKeys((-1.0,) * 12, (1.0,) * 12),
    KVQuantValues(0.8),
]


@pytest.mark.parametrize("method", STREAMING, ids=lambda method: type(method).__name__)
def test_streaming(method):
    x = normal(2 * 3 * 9, 4).reshape(2, 3, 9, 4)
    rows = x.transpose(0, 2, 1, 3).reshape(2, 9, 12)
    cache, flat = RowCache(method), RowCache(method, n_heads=3)
    for start, stop in ((0, 4), (4, 5), (5, 5), (5, 9)):
        cache.append(x[:, :, start:stop], x[:, :, start:stop])
        flat.append(rows[0, start:stop], rows[0, start:stop])
    whole = method.quantize(x)
    assert same_bits(cache.seen()[0], whole.dequantize())
    assert cache.stored_bytes == 2 * whole.stored_bytes
    assert same_bits(flat.seen()[1].reshape(9, 3, 4).transpose(1, 0, 2), whole.dequantize()[0])
    for name, buffer in flat.buffers.items():
        assert same_bits(buffer, cache.buffers[name])


@pytest.mark.parametrize("method", [*STREAMING, Tender("key"), Tender("value"), Quanto(2, 12), Quanto(4, 2, -1)])
def test_layouts_refusals_and_empty_tensors(method):
    x = normal(2 * 3 * 2, 4).reshape(2, 3, 2, 4)
    want = method.quantize(x)
    for view in (np.asfortranarray(x), np.repeat(x, 2, axis=3)[..., ::2], x.astype(np.float32)):
        packed = method.quantize(view)
        assert all(same_bits(buffer, want.buffers[name]) for name, buffer in packed.buffers.items())
        assert same_bits(packed.dequantize(), want.dequantize())
    rows = x[0].transpose(1, 0, 2).reshape(2, 12)
    flat, four = method.quantize(rows, n_heads=3), method.quantize(x[:1])
    assert same_bits(flat.dequantize().reshape(2, 3, 4).transpose(1, 0, 2), four.dequantize()[0])
    assert method.quantize(x[:, :, :0]).dequantize().shape == (2, 3, 0, 4)
    bad = x.copy()
    bad[1, 0, 0, 2] = np.nan
    with pytest.raises(ValueError, match=r"1 of 48 values .* \[1, 0, 0, 2\]"):
        method.quantize(bad)
    assert np.isfinite(method.quantize(bad, nonfinite="replace").dequantize()).all()
    with pytest.raises((TypeError, ValueError), match=r"^x "):
        method.quantize(None)
    with pytest.raises(ValueError, match="buffer codes"):
        Packed(method, want.shape, 48, {**want.buffers, "codes": want.buffers["codes"][:1]}, want.part_of).dequantize()
    with pytest.raises(ValueError, match="buffer"):
        Packed(method, want.shape, 48, {"codes": want.buffers["codes"]}, want.part_of).dequantize()


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
