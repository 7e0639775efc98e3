"""Packed bytes against the closed forms, exactly; measurements as files and in design points."""

import json
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels_ref
from dse import data, quantizers
from dse.core.errors import InputError, SpecError
from dse.measure import kernels as measure
from dse.measure import synthetic as kv_sample
from dse.measure.dumps import DumpTensor
from dse.measure.kernels import Settings
from dse.model import kv_layout as plan
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.quantizers import Family, QuantizerSpec, TensorShape
from dse.specs import measurements
from dse.specs.workload import Workload
from factories import device, layer, model
from scripts import ship_sample

#: every family and parameter that changes what is stored
NAMES = st.one_of(
    st.sampled_from(
        [
            "fp8",
            "fp8:format=e5m2",
            "int8",
            "int8:scale=fp16",
            "int8:granularity=tensor",
            "int4",
            "int4:granularity=tensor",
            "qserve",
            "qserve:mode=artifact",
            "tender",
            "kvquant",
            "kvquant:outliers=0.1",
            "nqkv",
            "nqkv:absmax=fp32",
            "oaken",
            "oaken:outlier_bits=4",
        ]
    ),
    st.builds("nqkv:block={}".format, st.integers(1, 300)),
    st.builds("atom:group={}".format, st.integers(1, 60)),
    st.builds(
        lambda bits, g, r: f"kivi:bits={bits},group={32 // bits * g},residual={32 // bits * g * r}",
        st.sampled_from([1, 2, 4, 8]),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
    st.builds(
        lambda bits, g, r, s: f"sinkq:bits={bits},group={32 // bits * g},residual={r},sinks={s}",
        st.sampled_from([1, 2, 4, 8]),
        st.integers(1, 3),
        st.integers(0, 20),
        st.integers(0, 5),
    ),
)


def thresholds_of(tensors, fracs=(0.04, 0.9, 0.06), n_layers=1):
    profiler = kernels_ref.Profiler(fracs)
    for index in range(n_layers):
        for side, x in tensors.items():
            profiler.add(index, side, x)
    return profiler.thresholds()


def random_layer(seed, batch, n_heads, n_tokens, key_dim, value_dim):
    rng = np.random.default_rng(seed)
    scale = rng.choice([1e-3, 1.0, 100.0])
    return {
        side: (rng.standard_normal((batch, n_heads, n_tokens, dim)) * scale).astype(np.float16)
        for side, dim in (("key", key_dim), ("value", value_dim))
    }


@given(
    NAMES,
    st.integers(0, 2**32),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 200),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from([0, 1, 2, 5]),
)
@settings(max_examples=2 * settings.default.max_examples)
def test_the_ledger_of_the_formulas_is_that_of_the_packed_bytes(
    name, seed, batch, n_heads, n_tokens, key_dim, value_dim, index
):
    spec = quantizers.parse(name)
    tensors = random_layer(seed, batch, n_heads, n_tokens, key_dim, value_dim)
    thresholds = thresholds_of(tensors, n_layers=index + 1) if spec.family.name == "oaken" else None
    outcomes = measure.quantize(spec, index, tensors, Settings(thresholds=thresholds))
    for side, outcome in outcomes.items():
        x = tensors[side]
        realised = {
            value: Fraction(outcome.counts.get(part, 0), x.size if whole == "n_elements" else outcome.counts[whole])
            for value, part, whole in spec.family.realised
            if whole == "n_elements" or outcome.counts[whole]
        }
        values = {**dict(spec.values), **realised}
        layout = spec.family.layout(values, TensorShape(side, n_heads, x.shape[3], shallow=index < 2))
        closed = {part: batch * bits for part, bits in layout.ledger(n_tokens).items() if bits}
        assert closed == outcome.packed.ledger
        assert sum(closed.values()) == 8 * outcome.packed.stored_bytes
        assert outcome.packed.stored_bits == Fraction(8 * outcome.packed.stored_bytes, x.size)
        if outcome.counts.get("n_packed_elements", 1):
            assert outcome.packed.effective_bits == layout.effective_bits


@given(
    st.sampled_from([(4, 90, 6), (10, 90), (2, 2, 90, 6), (4, 90, 3, 3), (2, 2, 90, 3, 3)]),
    st.sampled_from([4, 5]),
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 140),
)
def test_any_groups_of_oakens_table_3(groups, outlier_bits, seed, n_tokens, dim):
    spec = quantizers.parse(f"oaken:groups={'/'.join(map(str, groups))},outlier_bits={outlier_bits}")
    tensors = random_layer(seed, 1, 1, n_tokens, dim, dim)
    fracs = [g / 100 for g in groups]
    found = measure.quantize(spec, 0, tensors, Settings(thresholds=thresholds_of(tensors, fracs)))
    for side, outcome in found.items():
        share = Fraction(outcome.counts["n_outliers"], tensors[side].size)
        layout = spec.family.layout({**dict(spec.values), "outlier_share": share}, TensorShape(side, 1, dim))
        assert {part: bits for part, bits in layout.ledger(n_tokens).items() if bits} == outcome.packed.ledger


def test_every_family_has_a_kernel_but_those_that_store_what_they_get():
    in_closed_form, by_attention = {"rotated", "gear", "aquakv", "xquant"}, {"zipcache"}
    assert set(quantizers.FAMILIES) - set(measure.measurable()) == {"fp16", "bf16"} | in_closed_form | by_attention
    with pytest.raises(InputError, match=r"zipcache.*attention of the whole text.*dse measure --perplexity"):
        measure.check(quantizers.parse("zipcache"), Settings())
    with pytest.raises(InputError, match=r"fp16.*has no kernel: it stores what it is given"):
        measure.check(quantizers.parse("fp16"), Settings())


def test_a_family_in_closed_form_alone_says_that_its_error_is_not_known():
    """As a new one is until its kernel is written: its bits count, in design points too."""
    family = Family(
        name="halved",
        title="8 of 16 bits",
        source="none",
        layout=lambda values, shape: quantizers.parse("int8").layout(shape),
    )
    spec = QuantizerSpec(family, (), "halved")
    result = evaluate(Point(device(), plan.build(model(layer()), spec, spec), Workload()))
    assert result["stored_bits"] < 16
    assert result["measured_error"] is None
    with pytest.raises(InputError, match="'halved': has no kernel: its bits are known, its error is not; known: fp8"):
        measure.check(spec, Settings())


def test_errors_by_hand():
    x = np.array([[1.0, -2.0, 3.0]], np.float16)
    seen = np.array([[1.5, -2.0, 1.0]], np.float16)
    assert measure.errors(x, seen) == (0.25 + 4, 14.0, 2.0)


def dump_of(*names):
    class Dump:
        tensors = tuple(DumpTensor(name, "fp16", (4, 8)) for name in names)

    return Dump()


def test_names_say_layer_and_side():
    names = ("layer0.key", "layer0.value", "k_3", "model.layers.7.self_attn.v", "past_key_values.9.key")
    found = measure.layers(dump_of(*names))
    assert [(each.index, sorted(each.tensors)) for each in found] == [
        (0, ["key", "value"]),
        (3, ["key"]),
        (7, ["value"]),
        (9, ["key"]),
    ]


@pytest.mark.parametrize("names", [["weights"], ["key"], ["layer0.keyvalue"], ["0.key", "layer0.k"], ["k_v_0"]])
def test_names_that_do_not_say_so_are_refused(names):
    with pytest.raises(InputError, match=r"rename one|name it like layer0.key"):
        measure.layers(dump_of(*names))


DATA = Path(data.__file__).parent


@pytest.mark.slow
def test_what_ships_is_what_the_sample_gives(tmp_path):
    for name in (ship_sample.DUMP, ship_sample.CALIBRATION):
        shutil.copy(DATA / name, tmp_path)
    ship_sample.measure(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 4
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (DATA / path.name).read_bytes(), path.name


def test_the_sample_has_the_features_it_promises():
    for each in kv_sample.synthetic(4, 2, 320, 128, 2025):
        key, value = (x[0].astype(np.float64) for x in each)
        norms = np.abs(key).sum(axis=2)
        assert (norms[:, :2] < 0.2 * np.median(norms, axis=1)[:, None]).all()  # sinks
        means = np.abs(key.mean(axis=1))
        assert (np.sort(means, axis=1)[:, -3] > 4 * np.median(means, axis=1)).all()  # outlier channels
        assert np.abs(value.mean(axis=1)).max() < value.std()


def evaluated(bits, name):
    spec = bits.quantizer(name)
    return evaluate(
        Point(device(), plan.build(model(layer(n_layers=4, n_kv_heads=8, dim=64)), spec, spec), Workload(1))
    )


def test_measured_bits_use_the_realised_share_of_outliers():
    closed, measured = (evaluated(measurements.Bits(kind), "oaken") for kind in ("closed", "measured"))
    table = json.loads((DATA / measurements.SHIPPED).read_text())
    oaken = next(m for m in table["methods"] if m["quantizer"] == "oaken")
    share = {
        side: sum(t["counts"]["n_outliers"] for t in oaken["tensors"] if t["which"] == side)
        / sum(t["n_elements"] for t in oaken["tensors"] if t["which"] == side)
        for side in ("key", "value")
    }
    assert closed["effective_bits"] == 4 + 8 * 0.1 + 96 / 512
    assert measured["effective_bits"] == pytest.approx(4 + 8 * (share["key"] + share["value"]) / 2 + 96 / 512)
    assert (closed["bits_kind"], measured["bits_kind"]) == ("closed", "measured")
    for name in ("measured_bits", "mse", "sqnr_db", "measured_on"):
        assert closed[name] == measured[name]
    error = sum(t["squared_error"] for t in oaken["tensors"]) / sum(t["n_elements"] for t in oaken["tensors"])
    assert measured["mse"] == pytest.approx(error)
    assert measured["measured_on"] == "SmolLM2-135M, not your model"


def test_measured_sinks_count_those_that_were_evicted():
    closed, measured = (evaluated(measurements.Bits(kind), "sinkq:group=32") for kind in ("closed", "measured"))
    table = json.loads((DATA / measurements.SHIPPED).read_text())
    sinkq = next(m for m in table["methods"] if m["quantizer"] == "sinkq:group=32")
    keys = [t["counts"] for t in sinkq["tensors"] if t["which"] == "key"]
    evicted = Fraction(sum(c["n_evicted"] for c in keys), sum(c["n_sink_heads"] for c in keys))
    assert evicted > 0
    # of 4 layers 2 keep sinks; 8 heads of 64: keys, values and a 32-bit position for every evicted row
    more = 2 * 8 * evicted * (2 * 16 * 64 + 32) / 8
    assert measured["kv_bytes"] - closed["kv_bytes"] == pytest.approx(float(more), abs=1)


def test_what_was_not_measured_stays_closed():
    result = evaluated(measurements.Bits("measured"), "oaken:outer=0.023")
    assert result["bits_kind"] == "closed"
    assert result["mse"] is result["measured_bits"] is result["measured_on"] is None


def test_measurement_files_are_read_back_and_checked(tmp_path):
    shipped = DATA / measurements.SHIPPED
    found = measurements.load(shipped)
    assert measurements.to_json(found) == shipped.read_bytes()
    document = json.loads(shipped.read_text())
    document["methods"][0]["tensors"][0]["stored_bytes"] += 1
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document))
    with pytest.raises(InputError, match="must add up to 8"):
        measurements.load(broken)
    document["methods"][0]["tensors"][0]["mse"] = 1
    broken.write_text(json.dumps(document))
    with pytest.raises((InputError, SpecError), match="mse"):
        measurements.load(broken)
    with pytest.raises(InputError, match="bits = 'nominal': must be closed or measured"):
        measurements.bits_from("nominal", None)
