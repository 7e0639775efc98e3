"""Layers kept in 16 bits: the parameter `skip`, TurboQuant's default, points and sweeps, caches, vLLM's arguments."""

import json
from fractions import Fraction
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from dse import quantizers
from dse.core.errors import InputError
from dse.measure import kernels
from dse.model import engine, quality
from dse.model.kv_layout import build
from dse.model.point import Point
from dse.quantizers import skipping, vllm
from dse.specs import catalog
from dse.specs.measurements import Bits, Data, MeasurementFile, MethodMeasurement, TensorMeasurement
from dse.specs.workload import Workload
from factories import layer, model


def file_of_layers(n_layers):
    """fp8 on so many layers, each with a squared error of half an element's."""
    tensors = [
        TensorMeasurement(
            name=f"layer{i}.{side}",
            layer=i,
            which=side,
            n_heads=2,
            head_dim=128,
            n_tokens=1,
            n_elements=256,
            stored_bytes=256,
            ledger={"payload": 2048},
            counts={},
            squared_error=128.0,
            squared_signal=256.0,
            max_abs_error=1.0,
        )
        for i in range(n_layers)
        for side in ("key", "value")
    ]
    data = Data(name="made up", sha256="0" * 64, synthetic=True)
    return MeasurementFile(format=1, data=data, methods=[MethodMeasurement(quantizer="fp8", tensors=tensors)])


def plan_of(text, n_layers=32, head_dim=128):
    spec = quantizers.parse(text)
    return build(model(layer(n_layers, dim=head_dim)), spec, spec)


@each(
    ("text", "bits"),
    [
        ("turboquant_k8v4", Fraction(49, 8)),  # 6 + 16 / 128
        ("turboquant_4bit_nc", Fraction(67, 16)),  # 4 + 24 / 128
        ("turboquant_k3v4_nc", Fraction(59, 16)),
        ("turboquant_3bit_nc", Fraction(51, 16)),
    ],
)
@each("n_layers", [4, 5, 32, 80])
def test_turboquant_keeps_the_first_two_and_last_two_layers(text, bits, n_layers):
    plan = plan_of(text, n_layers)
    mean = ((n_layers - 4) * bits + 64) / n_layers
    assert plan.effective_bits == mean
    assert plan.bits(1000) == mean * plan.elements(1000) * plan.den
    assert plan_of(f"{text}:skip=none", n_layers).effective_bits == bits


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_a_small_model_keeps_all_its_layers(n_layers):
    assert plan_of("turboquant_3bit_nc", n_layers).effective_bits == 16


def test_layers_by_hand():
    spec = skipping.resolved(quantizers.parse("fp8:skip=-1+1+1"), 5, "m")
    assert spec.name == "fp8:skip=1+-1"
    assert [[side.name for side in sides] for sides in spec.layers] == [
        ["fp8", "fp8"],
        ["fp16", "fp16"],
        ["fp8", "fp8"],
        ["fp8", "fp8"],
        ["fp16", "fp16"],
    ]
    assert skipping.bare(quantizers.parse("kivi:bits=4,skip=0")).name == "kivi:bits=4"


@given(st.sets(st.integers(-32, 31), min_size=1, max_size=8))
def test_any_layers_of_any_quantizer(indices):
    text = "+".join(map(str, indices))
    skipped = len({i % 32 for i in indices})
    for name, bits in (("fp8", 8), ("int4_per_token_head", Fraction(17, 4)), ("q4_0", Fraction(9, 2))):
        spec = quantizers.parse(f"{name}:skip={text}")
        assert quantizers.parse(spec.name) == spec
        assert plan_of(spec.name).effective_bits == ((32 - skipped) * bits + 16 * skipped) / Fraction(32)


def test_one_side_alone():
    key, value = quantizers.parse("fp8:skip=0"), quantizers.parse("int8_per_token_head")
    plan = build(model(layer(2, dim=128)), key, value)
    assert plan.effective_bits == (Fraction(16 + 8, 2) + Fraction(33, 4)) / 2


@pytest.mark.parametrize("text", ["fp8:skip=", "fp8:skip=1-2", "fp8:skip=a", "fp8:skip=-0", "fp8:skip=99999"])
def test_what_is_no_list_of_layers(text):
    with pytest.raises(InputError, match=r"skip = .*: must be layers kept in 16 bits, such as 0\+1\+-1"):
        quantizers.parse(text)


def test_layers_that_a_model_lacks():
    with pytest.raises(InputError, match=r"skip = 32: .* has 32 layers: 0 to 31, or -32 to -1 from the end"):
        plan_of("fp8:skip=0+32")
    with pytest.raises(InputError, match="unknown parameter 'skip': it has no parameters"):
        quantizers.parse("fp16:skip=0")


def test_a_plan_names_its_layers_itself(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('[[layers]]\nlayer = 0\nkey = "fp8:skip=0"\nvalue = "fp8"\n')
    with pytest.raises(InputError, match="a plan says itself which layers it keeps: leave out skip"):
        quantizers.parse(f"plan:{path}")
    path.write_text('[[layers]]\nlayer = 0\nkey = "turboquant_k8v4"\nvalue = "turboquant_k8v4"\n')
    (sides,) = quantizers.parse(f"plan:{path}").layers
    assert [skipping.layers_of(side) for side in sides] == [(), ()]


def test_the_same_as_a_plan_of_the_same_layers(tmp_path):
    lines = []
    for i in range(32):
        name = "fp16" if i in (0, 1, 30, 31) else "turboquant_4bit_nc"
        lines.append(f'[[layers]]\nlayer = {i}\nkey = "{name}"\nvalue = "{name}"\n')
    path = tmp_path / "plan.toml"
    path.write_text("\n".join(lines))
    device, own = catalog.device("a100-80gb"), catalog.model("llama2-7b")
    found = []
    for text in ("turboquant_4bit_nc", f"plan:{path}"):
        spec = quantizers.parse(text)
        found.append(engine.evaluate(Point(device, build(own, spec, spec), Workload(batch=8))))
    names = ("quantizer", "key_quantizer", "value_quantizer", "measured_on", *quality.NAMES)
    one, other = ({key: value for key, value in result.items() if key not in names} for result in found)
    assert one == other


def test_measurements_of_the_layers_that_are_packed():
    """Of a file with the model's layers the others count as exact; of other files nothing is said."""
    bits = Bits("closed", file_of_layers(4))
    spec = bits.quantizer("fp8:skip=0")
    found = build(model(layer(4, dim=128)), spec, spec)
    assert engine.evaluate(Point(catalog.device("a100-80gb"), found, Workload()))["mse"] == pytest.approx(0.5)
    other = build(model(layer(5, dim=128)), spec, spec)
    assert engine.evaluate(Point(catalog.device("a100-80gb"), other, Workload()))["mse"] is None


def test_error_shown_is_that_of_the_packed_layers_where_the_model_has_others():
    """What ships has no model's layers: the error of the output where all are packed stands in, and is called that."""
    spec = Bits().quantizer("turboquant_k8v4")
    found = engine.evaluate(
        Point(catalog.device("a100-80gb"), build(catalog.model("llama2-7b"), spec, spec), Workload())
    )
    methods = json.loads((resources.files("dse.data") / "smollm2.measured.json").read_text())["methods"]
    packed = next(m for m in methods if m["quantizer"] == "turboquant_k8v4")
    outputs = [t["output"] for t in packed["tensors"] if t["which"] == "key"]
    want = sum(o["squared_error_both"] for o in outputs) / sum(o["squared"] for o in outputs)
    assert found["measured_error"] == pytest.approx(want**0.5)
    assert found["measured_on"] == "SmolLM2-135M, not your model, packed layers alone"
    assert found["measured_bits"] is None


def test_measuring_leaves_them_out():
    specs, _ = kernels.methods_of(["turboquant_k8v4", "fp8:skip=none"], "raise", None)
    assert [spec.name for spec in specs] == ["turboquant_k8v4", "fp8"]
    with pytest.raises(InputError, match="layers in 16 bits lose nothing: measure fp8"):
        kernels.methods_of(["fp8:skip=0"], "raise", None)


PLANS = [
    ([("fp16", "fp16")] * 3, "--kv-cache-dtype auto"),
    ([("fp8", "fp8")] * 3, "--kv-cache-dtype fp8"),
    (
        [("fp16", "fp16"), ("fp8:format=e5m2",) * 2, ("bf16", "fp16")],
        "--kv-cache-dtype fp8_e5m2 --kv-cache-dtype-skip-layers 0 2",
    ),
    (
        [("fp16",) * 2] * 2 + [("turboquant_k3v4_nc",) * 2] + [("fp16",) * 2] * 3,
        "--kv-cache-dtype turboquant_k3v4_nc --kv-cache-dtype-skip-layers 0 1 3 4 5",
    ),
]
NO_PLANS = [
    ([("fp8", "fp16")], "layer 0 has fp8 for keys and fp16 for values: vLLM stores both in one format"),
    ([("fp8", "fp8"), ("int8_per_token_head",) * 2], "vLLM has one format beside 16 bits"),
    ([("kivi", "kivi")], "vLLM has no kivi: it has fp8, fp8_e5m2"),
    ([("turboquant_k8v4",) * 2] * 6, "layer 0 has turboquant_k8v4: vLLM keeps the first two and last two layers"),
]


@pytest.mark.parametrize(("layers", "text"), PLANS)
def test_arguments_of_vllm(layers, text):
    assert vllm.arguments(layers) == text


@pytest.mark.parametrize(("layers", "why"), NO_PLANS)
def test_plans_that_vllm_cannot_store(layers, why):
    with pytest.raises(InputError, match=why):
        vllm.arguments(layers)
