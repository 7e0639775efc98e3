"""Plans by layer: files that stand for a quantizer, against uniform quantizers, sums by layer, and brute force."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse import catalog, plan, point, quantizers, sweep_spec, sweep_worker
from dse.errors import DseError
from dse.measurements import CLOSED
from dse.quantizers import TensorShape
from dse.questions import common
from dse.workload import Workload
from test_plan import QUANTIZERS, layer, model
from test_sweep_kernel import compare, of


def plan_file(folder, pairs, name="plan.toml", head=""):
    tables = [f'[[layers]]\nlayer = {i}\nkey = "{k}"\nvalue = "{v}"\n' for i, (k, v) in enumerate(pairs)]
    path = folder / name
    path.write_text(head + "\n".join(tables))
    return str(path)


def mixed(pairs):
    layers = tuple((quantizers.parse(k), quantizers.parse(v)) for k, v in pairs)
    return quantizers.QuantizerSpec(quantizers.layered.FAMILY, (), "plan:test", layers=layers)


@pytest.mark.parametrize("name", ["oaken-lpddr", "a100-80gb"])
@pytest.mark.parametrize(("key", "value"), [("kivi:bits=4", "nqkv"), ("sinkq", "sinkq"), ("oaken", "fp16")])
def test_a_plan_of_one_pair_is_that_pair(name, key, value, tmp_path):
    lm, device, work = catalog.model("llama2-7b"), catalog.device(name), Workload(16, 700, 300)
    file = CLOSED.quantizer("plan:" + plan_file(tmp_path, [(key, value)] * 32))
    by_file = point.evaluate(device, plan.build(lm, file, file), work)
    alone = point.evaluate(device, plan.build(lm, CLOSED.quantizer(key), CLOSED.quantizer(value)), work)
    other = {"quantizer", "key_quantizer", "value_quantizer", "measured_bits", "mse", "sqnr_db", "measured_error",
             "measured_on"}  # fmt: skip
    assert {k: v for k, v in by_file.items() if k not in other} == {k: v for k, v in alone.items() if k not in other}


@given(st.lists(st.tuples(st.sampled_from(QUANTIZERS), st.sampled_from(QUANTIZERS)), min_size=5, max_size=5),
       st.integers(1, 200))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_bits_of_a_mixed_plan_are_those_of_its_layers(pairs, n_tokens):
    lm = model(layer(3, 2, 24), layer(2, 1, 32, window=50))
    spec = mixed(pairs)
    kv, expected, effective = plan.build(lm, spec, spec), Fraction(0), Fraction(0)
    for i, sides in enumerate(pairs):
        heads, dim, kept = (2, 24, n_tokens) if i < 3 else (1, 32, min(n_tokens, 50))
        for which, name in zip(("key", "value"), sides, strict=True):
            shape = TensorShape(which, heads, dim, shallow=i < 2, alone=sides[0] != sides[1])
            layout = quantizers.parse(name).layout(shape)
            expected += sum(layout.ledger(kept).values())
            effective += layout.effective_bits * heads * dim
    assert Fraction(kv.bits(n_tokens), kv.den) == expected
    assert kv.effective_bits == effective / (3 * 2 * 2 * 24 + 2 * 2 * 32)  # elements of a token
    assert sum(kv.ledger(n_tokens).values()) == expected


def test_every_quantizer_of_a_plan_has_the_path_of_its_own():
    # the engine of this device unpacks oaken, kernels write NF4 back as FP16, fp16 is used as it is
    device, work = catalog.device("oaken-lpddr"), Workload(4, 100, 20)
    pairs = [("oaken", "fp16"), ("nqkv", "oaken")] * 16
    kv = plan.build(catalog.model("llama2-7b"), mixed(pairs), mixed(pairs))
    paths = point.dequant_paths(device, kv, work)
    assert paths == {
        "key oaken": "engine", "value fp16": "none", "key nqkv": device.path_of("nqkv"), "value oaken": "engine"
    }  # fmt: skip
    result = point.evaluate(device, kv, work)
    assert result["key_dequant_path"] == f"engine, {device.path_of('nqkv')}"
    assert result["value_dequant_path"] == "none, engine"


def test_one_side_of_a_plan_goes_with_another_quantizer():
    lm, spec = model(layer(2)), mixed([("int8", "int4"), ("int4", "int8")])
    kv = plan.build(lm, spec, quantizers.parse("fp16"))
    assert [(g.which, g.quantizer.name) for g in kv.groups] == [
        ("key", "int8"), ("value", "fp16"), ("key", "int4"), ("value", "fp16")
    ]  # fmt: skip
    assert kv.quantizer_name == "K plan:test / V fp16"


def test_sweeps_take_plans_by_point_and_by_kernel(tmp_path):
    pairs = [("oaken", "kivi:bits=4"), ("sinkq", "nqkv"), ("fp16", "fp8"), ("int4", "oaken")] * 8
    name = "plan:" + plan_file(tmp_path, pairs)
    compared = of({
        "device": ["a100-80gb", "oaken-lpddr"], "model": ["llama2-7b"], "quantizer": ["fp16", name], "batch": [1, 48],
        "input_tokens": [100, 1000],
    }, model_kind="auto")  # fmt: skip
    assert compare(compared) == 0  # none left to rows
    packed = sweep_worker.unpack(sweep_worker.pack(compared))
    assert packed.axes == compared.axes
    # another content of the file is another sweep
    same = sweep_spec.from_dict({"axes": {"device": ["h100"], "model": ["llama2-7b"], "quantizer": [name]}}).sha256
    plan_file(tmp_path, [("oaken", "kivi:bits=4")] * 32)
    other = sweep_spec.from_dict({"axes": {"device": ["h100"], "model": ["llama2-7b"], "quantizer": [name]}}).sha256
    assert same != other


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[layers]]\nlayer = 0\nkey = "kiwi"\nvalue = "oaken"\n', "plan.toml:3: unknown quantizer 'kiwi': did you"),
        ('[[layers]]\nlayer = 1\nkey = "kivi"\nvalue = "oaken"\n', "layer = 1: must be a whole number from 0 to 0"),
        ('[[layers]]\nlayer = 0\nkey = "kivi"\n', "value = None: must be a quantizer"),
        ('[[layers]]\nlayer = 0\nkey = "plan:x.toml"\nvalue = "fp16"\n', "a plan holds quantizers, no plans"),
        ('[[layers]]\nlayer = 0\nkey = "kivi"\nvalue = "fp16"\n' * 2, "layer = 0: is given twice"),
        ('layers = 3\n', "layers: must be 1 to 1,024 tables"),
        ('x = 3\n', "unknown key 'x'"),
        ('format = 2\n', "format = 2: must be 1"),
        ('objective = ["mse"]\n', "objective = ['mse']: must be text"),
        ('[predicted]\nerror = -1\n', "error = -1: must be a number from 0 on"),
        ('[[layers]]\nlayer = 0\nkey = "kivi"\nvalue = "fp16"\n', "has 1 layers, llama2-7b has 32"),
    ],
)  # fmt: skip
def test_a_bad_plan_is_one_line(text, says, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(DseError) as caught:
        common.design("a100-80gb", "llama2-7b", f"plan:{path}")
    assert says in str(caught.value)
    assert len(caught.value.lines()) == 1
