"""Plans by layer: files that stand for a quantizer, against uniform quantizers, sums by layer, and brute force."""

import itertools
import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from dse import quantizers
from dse.cli.main import cli
from dse.core.errors import DseError, InputError
from dse.figures.plot import load as plot_load
from dse.measure import mixed_plan, mixed_solve
from dse.model import kv_layout as plan
from dse.model import quality
from dse.model.engine import evaluate
from dse.model.lower import dequant_paths
from dse.model.point import Point
from dse.quantizers import TensorShape
from dse.questions import common
from dse.specs import catalog
from dse.specs.measurements import CLOSED
from dse.specs.workload import Workload
from dse.sweep import spec as sweep_spec
from dse.sweep import worker as sweep_worker
from factories import QUANTIZERS, assert_one_line, compare_with_rows, layer, model, plan_file, sweep_of


def mixed(pairs):
    layers = tuple((quantizers.parse(k), quantizers.parse(v)) for k, v in pairs)
    return quantizers.QuantizerSpec(quantizers.layered.FAMILY, (), "plan:test", layers=layers)


@pytest.mark.parametrize("name", ["oaken-lpddr", "a100-80gb"])
@pytest.mark.parametrize(("key", "value"), [("kivi:bits=4", "nqkv"), ("sinkq", "sinkq"), ("oaken", "fp16")])
def test_a_plan_of_one_pair_is_that_pair(name, key, value, tmp_path):
    lm, device, work = catalog.model("llama2-7b"), catalog.device(name), Workload(16, 700, 300)
    file = CLOSED.quantizer("plan:" + plan_file(tmp_path, [(key, value)] * 32))
    by_file = evaluate(Point(device, plan.build(lm, file, file), work))
    alone = evaluate(Point(device, plan.build(lm, CLOSED.quantizer(key), CLOSED.quantizer(value)), work))
    other = {
        "quantizer",
        "key_quantizer",
        "value_quantizer",
        "measured_bits",
        "mse",
        "sqnr_db",
        "measured_error",
        "measured_on",
        *quality.NAMES,
    }
    assert {k: v for k, v in by_file.items() if k not in other} == {k: v for k, v in alone.items() if k not in other}


@given(
    st.lists(st.tuples(st.sampled_from(QUANTIZERS), st.sampled_from(QUANTIZERS)), min_size=5, max_size=5),
    st.integers(1, 200),
)
def test_bits_of_a_mixed_plan_are_those_of_its_layers(pairs, n_tokens):
    lm = model(layer(3, 2, 24), layer(2, 1, 32, window=50))
    spec = mixed(pairs)
    kv, expected, effective = plan.build(lm, spec, spec), Fraction(0), Fraction(0)
    for i, sides in enumerate(pairs):
        heads, dim, kept = (2, 24, n_tokens) if i < 3 else (1, 32, min(n_tokens, 50))
        for which, name in zip(("key", "value"), sides, strict=True):
            shape = TensorShape(which, heads, dim, i < 2, alone=sides[0] != sides[1], hidden_size=lm.hidden_size)
            layout = quantizers.parse(name).layout(shape)
            expected += sum(layout.ledger(kept).values())
            effective += layout.effective_bits * heads * dim
    assert Fraction(kv.bits(n_tokens), kv.den) == expected
    assert kv.effective_bits == effective / (3 * 2 * 2 * 24 + 2 * 2 * 32)  # elements of a token
    assert sum(kv.ledger(kv.kept_tokens(n_tokens)).values()) == expected


def test_every_quantizer_of_a_plan_has_the_path_of_its_own():
    # the engine of this device unpacks oaken, kernels write NF4 back as FP16, fp16 is used as it is
    device, work = catalog.device("oaken-lpddr"), Workload(4, 100, 20)
    pairs = [("oaken", "fp16"), ("nqkv", "oaken")] * 16
    kv = plan.build(catalog.model("llama2-7b"), mixed(pairs), mixed(pairs))
    paths = dequant_paths(device, kv, work)
    assert paths == {
        "key oaken": "engine",
        "value fp16": "none",
        "key nqkv": device.path_of("nqkv"),
        "value oaken": "engine",
    }
    result = evaluate(Point(device, kv, work))
    assert result["key_dequant_path"] == f"engine, {device.path_of('nqkv')}"
    assert result["value_dequant_path"] == "none, engine"


def test_one_side_of_a_plan_goes_with_another_quantizer():
    lm, spec = model(layer(2)), mixed([("int8", "int4"), ("int4", "int8")])
    kv = plan.build(lm, spec, quantizers.parse("fp16"))
    assert [(g.which, g.quantizer.name) for g in kv.groups] == [
        ("key", "int8"),
        ("value", "fp16"),
        ("key", "int4"),
        ("value", "fp16"),
    ]
    assert kv.quantizer_name == "K plan:test / V fp16"


def test_sweeps_take_plans_by_point_and_by_kernel(tmp_path):
    pairs = [("oaken", "kivi:bits=4"), ("sinkq", "nqkv"), ("fp16", "fp8"), ("int4", "oaken")] * 8
    name = "plan:" + plan_file(tmp_path, pairs)
    compared = sweep_of(
        {
            "device": ["a100-80gb", "oaken-lpddr"],
            "model": ["llama2-7b"],
            "quantizer": ["fp16", name],
            "batch": [1, 48],
            "input_tokens": [100, 1000],
        },
        model_kind="auto",
    )
    assert compare_with_rows(compared) == 0  # none left to rows
    packed = sweep_worker.unpack(sweep_worker.pack(compared))
    assert packed.axes == compared.axes
    # another content of the file is another sweep
    same = sweep_spec.from_dict({"axes": {"device": ["h100"], "model": ["llama2-7b"], "quantizer": [name]}}).sha256
    plan_file(tmp_path, [("oaken", "kivi:bits=4")] * 32)
    other = sweep_spec.from_dict({"axes": {"device": ["h100"], "model": ["llama2-7b"], "quantizer": [name]}}).sha256
    assert same != other


@each(
    ("text", "says"),
    [
        ('[[layers]]\nlayer = 0\nkey = "kiwi"\nvalue = "oaken"\n', "plan.toml:3: unknown quantizer 'kiwi': did you"),
        ('[[layers]]\nlayer = 1\nkey = "kivi"\nvalue = "oaken"\n', "layer = 1: must be a whole number from 0 to 0"),
        ('[[layers]]\nlayer = 0\nkey = "kivi"\n', "value = None: must be a quantizer"),
        ('[[layers]]\nlayer = 0\nkey = "plan:x.toml"\nvalue = "fp16"\n', "a plan holds quantizers, no plans"),
        ('[[layers]]\nlayer = 0\nkey = "kivi"\nvalue = "fp16"\n' * 2, "layer = 0: is given twice"),
        ("layers = 3\n", "layers: must be 1 to 1,024 tables"),
        ("x = 3\n", "unknown key 'x'"),
        ("format = 2\n", "format = 2: must be 1"),
        ('objective = ["mse"]\n', "objective = ['mse']: must be text"),
        ("[predicted]\nerror = -1\n", "error = -1: must be a number from 0 on"),
        ('[[layers]]\nlayer = 0\nkey = "kivi"\nvalue = "fp16"\n', "has 1 layers, llama2-7b has 32"),
        (
            "".join(f'[[layers]]\nlayer = {i}\nkey = "kivi"\nvalue = "fp16"\n' for i in range(33)),
            "has 33 layers, llama2-7b has 32",
        ),
    ],
)
def test_a_bad_plan_is_one_line(text, says, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(DseError) as caught:
        common.design("a100-80gb", "llama2-7b", f"plan:{path}")
    assert says in str(caught.value)
    assert len(caught.value.lines()) == 1


#: options of an item: (weight, cost), of which some are equal and some beaten by others
ITEMS = st.integers(1, 4).flatmap(
    lambda n_options: st.lists(
        st.lists(
            st.tuples(st.integers(0, 12), st.integers(0, 40) | st.floats(0, 9)), min_size=n_options, max_size=n_options
        ),
        min_size=1,
        max_size=5,
    )
)


def brute(weights, costs, limit):
    """The least cost, and the least weight of those that cost so little, by trying all choices."""
    sums = [
        tuple(math.fsum(each[i] for each, i in zip(numbers, at, strict=True)) for numbers in (costs, weights))
        for at in itertools.product(*(range(len(w)) for w in weights))
    ]
    return min((cost, weight) for cost, weight in sums if weight <= limit * (1 + 1e-12))


@given(ITEMS, st.floats(0, 1), st.booleans())
def test_the_choice_is_that_of_brute_force(items, share, swapped):
    weights, costs = ([np.array([float(o[side]) for o in item]) for item in items] for side in (0, 1))
    if swapped:  # the other way round: least bits at an error
        weights, costs = costs, weights
    smallest = math.fsum(w.min() for w in weights)
    limit = smallest + share * (math.fsum(w.max() for w in weights) - smallest)
    found = mixed_solve.least(weights, costs, limit)
    assert found is not None
    cost, _ = brute(weights, costs, limit)
    assert found.cost == pytest.approx(cost, rel=1e-9, abs=1e-9)
    assert found.weight <= limit * (1 + 1e-9) + 1e-12
    assert math.fsum(c[i] for c, i in zip(costs, found.options, strict=True)) == pytest.approx(found.cost)
    if smallest > 1e-6:
        assert mixed_solve.least(weights, costs, smallest * 0.999) is None


@given(ITEMS)
def test_every_corner_of_the_frontier_is_the_best_of_its_weight(items):
    weights, costs = ([np.array([float(o[side]) for o in item]) for item in items] for side in (0, 1))
    corners = mixed_solve.frontier(weights, costs)
    for corner in corners:
        assert corner.cost == pytest.approx(brute(weights, costs, corner.weight)[0], rel=1e-9, abs=1e-9)
    assert corners[-1].cost == pytest.approx(math.fsum(c.min() for c in costs), rel=1e-9, abs=1e-9)


def test_a_choice_that_marginal_gains_miss():
    # weights 0, 2, 3 and costs 10, 5, 1: the hull of an item is 0 -> 3; two items and room for 5 hold 2 + 3,
    # cost 5 + 1 = 6, where gains along the hulls stop at 3 + 0, cost 1 + 10 = 11
    weights, costs = [np.array([0.0, 2, 3])] * 2, [np.array([10.0, 5, 1])] * 2
    found = mixed_solve.least(weights, costs, 5)
    assert found is not None
    assert (found.weight, found.cost) == (5, 6)


#: two layers of 100 elements a side; squared errors over a signal of 100 and outputs of 10, by method
def table(folder, drop=()):
    errors = {  # bits an element, then squared errors of (layer 0 key, value), (layer 1 key, value)
        "nqkv": (4, [1.0, 4.0, 9.0, 16.0]),
        "int8": (8, [0.1, 0.2, 0.3, 0.4]),
    }
    rows = [
        {
            "method": method,
            "layer": i // 2,
            "side": ("key", "value")[i % 2],
            "head": None,
            "context_tokens": 64,
            "n_elements": 100,
            "stored_bits": float(bits),
            "squared_error": each[i],
            "squared_signal": 100.0,
            "squared_output_error": each[i] / 100,
            "squared_output": 10.0,
            "data": "x.npz",
            "synthetic": False,
        }
        for method, (bits, each) in errors.items()
        for i in range(4)
    ]
    frame = pd.DataFrame([row for row in rows if (row["method"], row["layer"]) not in drop])
    folder.mkdir(exist_ok=True)
    frame.astype({"head": "Int64"}).to_parquet(folder / "measured.parquet")
    return str(folder)


def test_the_file_of_a_plan_comes_back_as_a_quantizer(tmp_path):
    source, out, figure = table(tmp_path / "m"), tmp_path / "plan.toml", tmp_path / "mix.svg"
    args = [
        "mix",
        source,
        "--budget-bits",
        "6",
        "--quantizers",
        "nqkv,int8",
        "--out",
        str(out),
        "--figure",
        str(figure),
    ]
    result = CliRunner().invoke(cli, [*args, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    # 6 bits: half of the four tensors at 8; layer 1's, which lose most at 4, so that 1 + 4 + 0.3 + 0.4 = 5.7 is left
    assert [(one["key"], one["value"]) for one in found["layers"]] == [("nqkv", "nqkv"), ("int8", "int8")]
    assert found["stored_bits"] == 6
    assert found["stored_bytes"] == 4 * 100 * 6 // 8
    # 5.7 / 100 of an output of 10, two layers: root of 0.0057 / 2; pooled: root of 0.057 / 20, the same
    assert found["error"] == pytest.approx(math.sqrt(0.0057 / 2))
    assert found["measured_error"] == pytest.approx(math.sqrt(0.0057 / 2))
    spec = quantizers.parse(f"plan:{out}")
    assert [(k.name, v.name) for k, v in spec.layers] == [("nqkv", "nqkv"), ("int8", "int8")]
    kv = plan.build(model(layer(2)), spec, spec)
    shown = evaluate(Point(catalog.device("a100-80gb"), kv, Workload(1, 10, 10)))
    assert shown["measured_error"] == pytest.approx(math.sqrt(0.0057 / 2))
    assert (shown["measured_bits"], shown["measured_on"]) == (6, "x.npz, 64 tokens")
    assert b"<svg" in figure.read_bytes()
    checked = CliRunner().invoke(cli, ["check", str(out)])
    assert "plan of 2 layers: no problem found" in checked.output
    # the table of the figure, which `dse plot` draws the same
    args[-1] = str(tmp_path / "mixed_plans.csv")
    assert CliRunner().invoke(cli, args).exit_code == 0
    drawn, _ = plot_load.load("mixed_plans", str(tmp_path))
    ends = {one.name: (one.x, one.y) for one in drawn.panels[0].series}
    assert ends["chosen plan"] == ((6.0,), (pytest.approx(math.sqrt(0.0057 / 2)),))
    assert {one.name: one.x for one in drawn.panels[1].series} == {"NQKV": (0.0, 0.0), "INT8": (1.0, 1.0)}


def test_a_budget_in_bytes_is_the_same_in_bits(tmp_path):
    """400 elements: 300 bytes are 6 bits of each."""
    source = table(tmp_path / "m")
    found = [
        json.loads(CliRunner().invoke(cli, ["mix", source, *words, "--json"]).output)
        for words in (("--budget-bytes", "300"), ("--budget-bits", "6"))
    ]
    assert found[0]["stored_bytes"] == 300
    assert [one["layers"] for one in found] == [found[0]["layers"]] * 2
    assert found[0]["error"] == found[1]["error"]


def test_least_bits_and_mse(tmp_path):
    errors = mixed_plan.load(table(tmp_path / "m"), objective="mse")
    assert errors.methods == ("nqkv", "int8", "fp16")
    # mean over four tensors of squared error / 100: at most 0.0575 / 4 -> 5.75 = 1 + 4 + 0.3 + 0.4 fits, 6 bits
    found = mixed_plan.least_bits(errors, math.sqrt(0.0575 / 4), "e")
    assert found.layers == [("nqkv", "nqkv"), ("int8", "int8")]
    assert errors.of(found.options) == (6.0, pytest.approx(math.sqrt(0.057 / 4)))
    assert mixed_plan.least_bits(errors, 0, "0").layers == [("fp16", "fp16")] * 2
    assert errors.stored_bits(mixed_plan.budget_bits(errors, 4.5)) == 4.5


@each(
    ("args", "says"),
    [
        ("--budget-bits 3", "budget = 3 bits an element: is below the smallest plan: 4 bits an element, 200 bytes"),
        ("--budget-bits x", "budget-bits = 'x': must be a number from 0 on"),
        ("", "give one of --budget-bits, --budget-bytes, --max-error and --max-rise"),
        ("--budget-bits 5 --max-error 1", "give one of"),
        ("--max-error 0.001 --quantizers nqkv", "max-error = 0.001: is below the best plan's"),
        ("--budget-bits 5 --quantizers kivi", "quantizers = 'kivi': was not measured"),
        ("--budget-bits 5 --context 7", "context = 7: was not measured: one of 64"),
        ("--budget-bits 5 --objective speed", "objective = 'speed': known: divergence, mse, output_error"),
        ("--budget-bits 5 --out plan.json", "out = 'plan.json': must end in .toml"),
        ("--budget-bits 5 --figure plan.gif", "figure = 'plan.gif': must end in one of png"),
    ],
)
def test_a_bad_question_is_one_line(args, says, tmp_path):
    result = CliRunner().invoke(cli, ["mix", table(tmp_path / "m"), *args.split()])
    assert isinstance(result.exception, DseError)
    assert says in str(result.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_missing_layers_are_named(tmp_path):
    with pytest.raises(DseError, match="layer 0: is missing: a plan needs all layers"):
        mixed_plan.load(table(tmp_path / "a", drop=[("nqkv", 0), ("int8", 0)]))
    with pytest.raises(DseError, match="'int8': key of layer 1: is missing"):
        mixed_plan.load(table(tmp_path / "b", drop=[("int8", 1)]))
    folder = table(tmp_path / "c")
    keys = pd.read_parquet(tmp_path / "c" / "measured.parquet").query("side == 'key'")
    keys.to_parquet(tmp_path / "c" / "measured.parquet")
    with pytest.raises(DseError, match="value of layer 0: is missing: measure a whole dump"):
        mixed_plan.load(folder, ["fp16"])
    (tmp_path / "b" / "measured.parquet").write_text("no table")
    with pytest.raises(DseError, match="is not a table of `dse measure`"):
        mixed_plan.load(str(tmp_path / "b"))


@each(
    ("column", "value", "says"),
    [
        ("layer", "0", "row 0: layer = '0': must be a number"),
        ("layer", 0.5, "layer = 0.5: must be a whole number from"),
        ("layer", math.nan, "layer = nan: must be a whole number from 0 to 1,023"),
        ("layer", 10**9, "layer = 1000000000.0: must be a whole number from 0 to 1,023"),
        ("context_tokens", "64", "context_tokens = '64': must be a number"),
        ("n_elements", "8", "n_elements = '8': must be a number"),
        ("head", "x", "head = 'x': must be a number"),
        ("stored_bits", math.nan, "stored_bits = nan: must be a number from 0"),
        ("stored_bits", 1e308, "stored_bits = 1e+308: must be a number from 0"),
        ("squared_error", "x", "squared_error = 'x': must be a number"),
        ("method", 3, "method = 3: must be text"),
        ("synthetic", "no", "synthetic = 'no': must be true or false"),
    ],
)
def test_a_table_of_other_types_is_refused_by_row_and_column(tmp_path, column, value, says):
    path = Path(table(tmp_path)) / "measured.parquet"
    pd.read_parquet(path).assign(**{column: value}).to_parquet(path)
    for args in (("--max-error", "0"), ("--budget-bytes", "0"), ("--budget-bits", "8")):
        found = CliRunner().invoke(cli, ["mix", str(path), *args])
        assert isinstance(found.exception, InputError), found.exception
        assert says in str(found.exception)


COLUMNS = (*mixed_plan._COLUMNS, *mixed_plan.SUMS["output_error"])
SCORE_COLUMNS = ("model", "method", "sides", *mixed_plan._SCORED)


@each(("is_scores", "column"), [*((False, name) for name in COLUMNS), *((True, name) for name in SCORE_COLUMNS)])
def test_a_table_without_one_of_its_columns_is_refused_in_a_line(tmp_path, run, is_scores, column):
    path = Path(scores(tmp_path)) / mixed_plan.SCORES if is_scores else Path(table(tmp_path)) / "measured.parquet"
    rows = pd.read_csv(path) if is_scores else pd.read_parquet(path)
    assert column in rows
    rows = rows.drop(columns=column)
    rows.to_csv(path, index=False) if is_scores else rows.to_parquet(path)
    code, out, err = run("mix", path, "--budget-bits", "8", "--out", tmp_path / "plan.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"has no column {column}" in err
    assert not (tmp_path / "plan.toml").exists()


def test_a_table_without_attention_outputs_has_a_plan_by_keys_and_values(tmp_path):
    path = Path(table(tmp_path)) / "measured.parquet"
    pd.read_parquet(path).drop(columns=[*mixed_plan.SUMS["output_error"]]).to_parquet(path)
    assert mixed_plan.load(str(path)).objective == "mse"


def test_other_types_of_numbers_will_do(tmp_path):
    path = Path(table(tmp_path)) / "measured.parquet"
    rows = pd.read_parquet(path)
    expected = mixed_plan.least_error(mixed_plan.load(str(path)), 1e18, "all").summary()
    rows = rows.assign(
        layer=rows["layer"].astype("Int16"),
        n_elements=rows["n_elements"].astype("float64"),
        stored_bits=[None if pd.isna(bits) else Decimal(str(bits)) for bits in rows["stored_bits"]],
        method=rows["method"].astype("category"),
    )
    rows.to_parquet(path)
    assert mixed_plan.least_error(mixed_plan.load(str(path)), 1e18, "all").summary() == expected
    pd.concat([rows, rows]).to_parquet(path)
    with pytest.raises(InputError, match="is there twice: leave one"):
        mixed_plan.load(str(path))


def scores(folder, **changes):
    """Two layers: int8 costs 0.001 nat everywhere, int4 0.01, but for the keys of layer 1: 0.1."""
    rows = []
    for method, bits, nats in (("int8", 8.0, 0.001), ("int4", 4.0, 0.01)):
        for at in (0, 1):
            for side in ("key", "value"):
                costly = 0.1 if (method, at, side) == ("int4", 1, "key") else nats
                # of four parts this one has so many bits, the others 16
                stored = (bits + 3 * 16) / 4
                rows.append((f"toy,{method},{side}", f"{at},{stored},{costly},100"))
    head = "model,method,sides,layer,stored_bits,kl_nats,n_scored_tokens"
    lines = [head, "toy,fp16,both,,16,0,100", *(",".join(row) for row in rows)]
    for old, new in changes.items():
        lines = [line.replace(old, new) for line in lines]
    (folder / "perplexity.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_plan_by_divergences_by_hand(run, tmp_path):
    # 5 bits: one side may have 8 of 4: the keys of layer 1, for 0.001 + 3 * 0.01 nat
    plan = tmp_path / "plan.toml"
    code, out, err = run("mix", scores(tmp_path), "--budget-bits", "5", "--out", plan, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["objective"], found["stored_bits"]) == ("divergence", 5)
    assert found["error"] == pytest.approx(0.031)
    assert found["measured_error"] is None
    pairs = [(one["key"], one["value"]) for one in found["layers"]]
    assert pairs == [("int4", "int4"), ("int8", "int4")]
    assert quantizers.parse(f"plan:{plan}").predicted["objective"] == "divergence"
    # a rise of 1 % is ln 1.01 = 0.00995 nat: int8 everywhere costs 0.004, none may have int4
    assert json.loads(run("mix", tmp_path, "--max-rise", "1%", "--json")[1])["stored_bits"] == 8
    assert "0.031 nat, divergence" in run("mix", tmp_path, "--budget-bits", "5")[1]
    figure = tmp_path / "plan.svg"
    assert run("mix", tmp_path, "--budget-bits", "5", "--figure", figure)[0] == 0
    assert "divergence (nat)" in figure.read_text()


def test_bad_tables_of_scores_are_one_line(run, tmp_path):
    def mixed(*words, **changes):
        return run("mix", scores(tmp_path, **changes), *(words or ("--budget-bits", "5")))

    assert_one_line(mixed(kl_nats="nats"), 2, "has no column kl_nats", "--by-layer")
    assert_one_line(mixed(**{",key,": ",both,", ",value,": ",both,"}), 2, "no layer's keys or values by themselves")
    assert_one_line(mixed(**{"0.01,": "x,"}), 2, "kl_nats = 'x'", "must be a number from 0 on")
    assert_one_line(mixed(**{"int4,key,1": "int4,value,1"}), 2, "'int4'", "layer 1")
    assert_one_line(mixed("--budget-bits", "5", "--objective", "mse"), 2, "objective = 'mse'", "divergences alone")
    assert_one_line(mixed("--max-rise", "1%", "--budget-bits", "5"), 2, "give one of")
    assert_one_line(mixed("--max-rise", "5"), 2, "must be a share from 0 to 1")
