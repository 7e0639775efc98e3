"""A sweep as written: ranges by hand, points against itertools.product, conditions against Python, bad files."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from cases import each
from dse import quantizers
from dse.core import specfile
from dse.core.errors import DseError, InputError, LimitError
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.specs.workload import Workload
from dse.sweep import axes as sweep_axes
from dse.sweep import conditions as sweep_where
from dse.sweep import grid as sweep_digits
from dse.sweep import points as sweep_points
from dse.sweep import spec as sweep_spec
from dse.sweep.axes import AxisError
from dse.sweep.columns import Names, join
from factories import assert_one_line

EXAMPLE = Path(__file__).parents[2] / "notebooks" / "sweep.toml"
BASE = {"device": ["h100"], "model": ["llama3-8b"]}


def values(name, raw):
    return list(sweep_axes.build(name, raw).values)


@each(
    ("name", "raw", "expected"),
    [
        ("batch", 7, [7]),
        ("batch", [4, 1], [4, 1]),
        ("batch", range(1, 4), [1, 2, 3]),
        ("batch", {"from": 1, "to": 9, "step": 3}, [1, 4, 7]),
        ("batch", {"from": 1, "to": 10, "step": 3}, [1, 4, 7, 10]),
        ("batch", {"from": 1, "to": 256, "factor": 4}, [1, 4, 16, 64, 256]),
        ("batch", {"from": 3, "to": 100, "factor": 3}, [3, 9, 27, 81]),
        # 1, 10 ** 0.25 = 1.78, 3.16, 5.62, 10 as whole numbers
        ("batch", {"from": 1, "to": 10, "count": 5, "scale": "log"}, [1, 2, 3, 6, 10]),
        # 1, 1.26, 1.59, 2: each whole number once
        ("batch", {"from": 1, "to": 2, "count": 4, "scale": "log"}, [1, 2]),
        ("batch", {"from": 1, "to": 4, "count": 3}, [1, 2, 4]),  # 2.5 to even
        ("oaken.outer", {"from": 0.0, "to": 0.3, "step": 0.1}, [0.0, 0.1, 0.2, 0.3]),
        ("oaken.outer", {"from": 0.01, "to": 0.03, "count": 3}, [0.01, 0.02, 0.03]),
        ("memory_bandwidth", {"from": "1 TB/s", "to": "4 TB/s", "count": 3, "scale": "log"}, [1e12, 2e12, 4e12]),
        ("memory_bandwidth", {"from": "1 TB/s", "to": 2e12, "step": "500 GB/s"}, [1e12, 1.5e12, 2e12]),
        ("memory_capacity", ["40 GB", "1 GiB", 8e10], [4e10, 2.0**30, 8e10]),
        ("usd_per_hour", {"from": 0.5, "to": 4.5, "factor": 3}, [0.5, 1.5, 4.5]),
        ("usable_frac", ["90 %", 1], [0.9, 1.0]),
        ("admission", ["paged", "reserve"], ["paged", "reserve"]),
        ("dequant_path", ["auto", "fused"], ["auto", "fused"]),
        ("weights_bits", {"from": 4, "to": 16, "factor": 2}, [4, 8, 16]),
        ("activation_bits", [16, 8], [16, 8]),
        ("prefix_tokens", [0, 100_000], [0, 100_000]),
        ("kv_cache", [True, False], ["true", "false"]),
        ("cached_input_discount", [0.5, 1], [0.5, 1]),
        ("tokens", ["full", "streaming:sinks=4"], ["full", "streaming"]),
        ("oaken.groups", ["4/90/6", "10/90"], ["4/90/6", "10/90"]),
        ("device", ["a100-80gb", "H100"], ["A100-80GB", "H100"]),
        ("quantizer", "sinkq:group=32,bits=2", ["sinkq:group=32"]),
    ],
)
def test_values(name, raw, expected):
    assert values(name, raw) == expected


def test_values_that_a_workload_takes_for_none():
    assert sweep_axes.build("dequant_path", ["auto", "fused"]).items == (None, "fused")


def test_every_number_of_a_device_and_every_field_of_a_workload_is_an_axis():
    known = sweep_axes.known_axes()
    for name in ("memory_bandwidth", "memory_capacity", "peak_flops", "usd_per_hour", "board_power", "engine_rate"):
        assert name in known
    assert set(Workload.__dataclass_fields__) <= set(known)
    assert "sinkq.group" in known


@given(low=st.integers(1, 10**6), length=st.integers(1, 2000), step=st.integers(1, 400))
def test_steps_are_those_of_python(low, length, step):
    assert values("input_tokens", {"from": low, "to": low + length, "step": step}) == list(
        range(low, low + length + 1, step)
    )


@given(low=st.floats(1e9, 1e12), ratio=st.floats(1.001, 1e3), count=st.integers(2, 50))
def test_log_ranges_have_their_ends_and_equal_ratios(low, ratio, count):
    found = values("memory_bandwidth", {"from": low, "to": low * ratio, "count": count, "scale": "log"})
    assert found[0] == low
    assert found[-1] == low * ratio
    for a, b in itertools.pairwise(found):
        assert math.isclose(b / a, ratio ** (1 / (count - 1)), rel_tol=1e-10)


AXES = {
    "batch": st.lists(st.integers(1, 512), min_size=1, max_size=4, unique=True),
    "input_tokens": st.lists(st.integers(1, 4096), min_size=1, max_size=3, unique=True),
    "admission": st.permutations(["paged", "reserve"]),
    "memory_bandwidth": st.lists(st.integers(10**9, 10**13), min_size=1, max_size=3, unique=True),
    "quantizer": st.lists(
        st.sampled_from(["fp16", "oaken", "oaken:outlier_bits=4", "oaken:groups=10/90", "sinkq", "sinkq:bits=4"]),
        min_size=1,
        max_size=5,
        unique=True,
    ),
    "oaken.outer": st.lists(st.sampled_from([0.0, 0.02, 0.04, 0.1]), min_size=1, max_size=3, unique=True),
    "oaken.outlier_bits": st.permutations([4, 5]),
    "sinkq.bits": st.permutations([2, 4, 8]),
}


@st.composite
def sweeps(draw):
    names = draw(st.lists(st.sampled_from(sorted(AXES)), unique=True))
    axes = dict(draw(st.permutations([*BASE.items(), *((name, draw(AXES[name])) for name in names)])))
    listed = " ".join(axes.get("quantizer", []))
    for name in [name for name in axes if "." in name]:
        open_ones = [q for q in axes.get("quantizer", []) if q.startswith(name.split(".")[0])]
        if not any(name.split(".")[1] not in q and "groups" not in q for q in open_ones) or not listed:
            del axes[name]
    return axes


def naive_points(axes):
    """All points as dicts, loops in the order of the axes, a quantizer's own parameters right after it."""
    axes = dict(axes)
    axes.setdefault("quantizer", ["fp16"])
    plain = {name: values for name, values in axes.items() if "." not in name}
    own = {name: values for name, values in axes.items() if "." in name}
    columns = []
    for name, listed in plain.items():
        entries = []
        for value in listed:
            varied = {}
            if name == "quantizer":
                family = value.split(":")[0]
                varied = {
                    key: numbers
                    for key, numbers in own.items()
                    if key.split(".")[0] == family
                    and key.split(".")[1] not in value
                    and not ("groups" in value and key in ("oaken.outer", "oaken.inner"))
                }
            for combination in itertools.product(*varied.values()):
                entries.append({name: value, **dict(zip(varied, combination, strict=True))})
        columns.append(entries)
    for combination in itertools.product(*columns):
        yield {key: value for entry in combination for key, value in entry.items()}


def decoded_points(found, first, last):
    digits = sweep_digits.decode_places(found, np.arange(first, last))
    for i in range(last - first):
        yield {a.name: a.values[digits[a.name][i]] for a in found.axes if digits[a.name][i] >= 0}


@given(axes=sweeps(), data=st.data())
def test_points_are_those_of_the_product(axes, data):
    found = sweep_spec.from_dict({"axes": axes})
    expected = [{**p, "device": "H100", "quantizer": quantizers.parse(p["quantizer"]).name} for p in naive_points(axes)]
    assert found.n_points == len(expected)
    assert list(decoded_points(found, 0, found.n_points)) == expected
    first = data.draw(st.integers(0, len(expected)))
    last = data.draw(st.integers(first, len(expected)))
    assert list(decoded_points(found, first, last)) == expected[first:last]


NUMBERS = st.sampled_from(["batch", "input_tokens", "1", "2.5", "64", "memory_bandwidth", "1e12", "-3"])
ARITHMETIC = st.recursive(
    NUMBERS, lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner), max_leaves=4
)
COMPARISONS = st.one_of(
    st.builds("{} {} {}".format, ARITHMETIC, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), ARITHMETIC),
    st.builds("{} < {} <= {}".format, ARITHMETIC, ARITHMETIC, ARITHMETIC),
    st.builds("admission {} '{}'".format, st.sampled_from(["==", "!="]), st.sampled_from(["paged", "reserve"])),
    st.builds("batch {} [1, {}]".format, st.sampled_from(["in", "not in"]), st.integers(1, 99)),
    st.just("admission in ('paged', 'reserve')"),
    st.just("'paged' == admission"),
    st.just("input_tokens % 2 == 0 and batch // 3 > 1 and input_tokens / 2 > batch"),
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=4,
)


@given(axes=sweeps(), text=CONDITIONS)
def test_conditions_drop_what_python_says(axes, text):
    axes = {
        "admission": ["reserve", "paged"],
        "batch": [1, 7],
        "input_tokens": [3, 64],
        "memory_bandwidth": [1e12],
    } | axes
    if not any(name in text for name in axes):
        with pytest.raises(InputError, match="names no axis"):
            sweep_spec.from_dict({"axes": axes, "where": [text]})
        return
    found = sweep_spec.from_dict({"axes": axes, "where": [text]})
    kept = [p for p in naive_points(axes) if eval(text, {}, {**p, "memory_bandwidth": float(p["memory_bandwidth"])})]
    digits = sweep_points.kept_digits(found, 0, found.n_points)
    assert [found.axis["batch"].values[i] for i in digits["batch"]] == [p["batch"] for p in kept]
    assert len(digits["admission"]) == len(kept)


@pytest.mark.parametrize(
    ("text", "batches"),
    [("-batch < -2", [3, 4]), ("8 - -batch == 11", [3]), ("+batch - 3 == -1", [2]), ("batch * -1 + 4 > 2", [1])],
)
def test_signs_in_conditions(text, batches):
    axes = {"device": ["h100"], "model": ["llama2-7b"], "quantizer": ["fp16"], "batch": [1, 2, 3, 4]}
    found = sweep_spec.from_dict({"axes": axes, "where": [text]})
    digits = sweep_points.kept_digits(found, 0, found.n_points)
    assert [found.axis["batch"].values[i] for i in digits["batch"]] == batches


def test_a_condition_says_nothing_about_points_without_its_axis():
    axes = {**BASE, "quantizer": ["fp16", "oaken"], "oaken": {"outer": [0.0, 0.1]}, "batch": [1, 2]}
    found = sweep_spec.from_dict({"axes": axes, "where": ["oaken.outer > 0.05"]})
    kept = sweep_points.evaluate_chunk(found, 0, found.n_points)
    assert kept["batch"].tolist() == [1, 2, 1, 2]
    assert np.isnan(kept["oaken.outer"][:2]).all()
    assert kept["oaken.outer"][2:].tolist() == [0.1, 0.1]
    both = sweep_spec.from_dict({"axes": axes, "where": ["quantizer == 'Oaken'", "batch == 2"]})
    assert sweep_points.evaluate_chunk(both, 0, both.n_points)["batch"].tolist() == [2, 2]


@each(
    "text",
    [
        "__import__('os').system('true')",
        "batch.real > 1",
        "[x for x in (1,)]",
        "lambda: 1",
        "batch",
        "1 < 2",
        "batch ** 9 > 1",
        "batch > 'a'",
        "device > 'h100'",
        "device == 'h10'",
        "device == 1",
        "batcj > 1",
        "f'{batch}' == 'a'",
        "batch if batch else 1",
        "(batch := 3) > 1",
        "batch > 1; 2",
        "",
        "batch >",
        "batch in 3",
        "batch in []",
        "device in [1]",
        "True",
        "batch > True",
        "batch is 1",
        "batch > 1j",
        "batch > " + "9" * 400,
        "(" * 250 + "batch > 1" + ")" * 250,
        "batch > 1" * 60,
        "batch > 1\0",
        "not batch",
        "admission == 'paged'",
        "quantizer == 'oakn'",
    ],
)
def test_conditions_that_are_refused(text):
    axes = [sweep_axes.build(name, raw) for name, raw in (*BASE.items(), ("batch", [1]), ("quantizer", ["fp16"]))]
    with pytest.raises(InputError, match=r"^where = "):
        sweep_where.parse(text, axes)


def test_results_are_those_of_single_points():
    """Device fields, parameters, both sides and all kinds of workload fields reach the evaluation."""
    spec = {
        "axes": {
            "device": ["oaken-hbm"],
            "model": ["llama2-7b", "llama2-70b"],
            "key_quantizer": ["oaken", "kivi"],
            "value_quantizer": ["oaken"],
            "oaken": {"outer": [0.02, 0.04]},
            "memory_capacity": ["20 GB", "200 GB"],
            "memory_bandwidth": ["3 TB/s"],
            "admission": ["reserve", "paged"],
            "dequant_path": ["auto", "fused"],
            "weights_bits": [16, 4],
            "batch": [1, 8],
        },
        "keep": "all",
    }
    found = sweep_spec.from_dict(spec)
    table = dse.sweep(found)
    assert len(table) == found.n_points == 2 * 2 * 2 * 2 * 2 * 2 * 2 * 2
    codes = table["infeasible_code"].value_counts().to_dict()
    assert set(codes) == {0, 1}
    from dse.model import kv_layout as plan
    from dse.specs import catalog

    quantity = catalog.device("oaken-hbm").memory_capacity
    for i in range(0, len(table), 7):
        row = table.iloc[i]
        device = catalog.device("oaken-hbm").model_copy(
            update={
                "memory_capacity": quantity.model_copy(update={"value": row["memory_capacity"], "unit": "B"}),
                "memory_bandwidth": quantity.model_copy(update={"value": 3.0, "unit": "TB/s", "kind": "assumed"}),
            }
        )
        value = quantizers.parse(f"oaken:outer={row['oaken.outer']:g}")
        key = value if row["key_quantizer"] == "oaken" else quantizers.parse("kivi")
        work = Workload(
            batch=int(row["batch"]),
            admission=row["admission"],
            weights_bits=int(row["weights_bits"]),
            dequant_path=None if row["dequant_path"] == "auto" else row["dequant_path"],
        )
        one = evaluate(Point(device, plan.build(catalog.model(row["model"]), key, value), work))
        assert row["feasible"] == one["feasible"]
        for name in found.keep:
            if isinstance(one[name], float | int) and name not in ("mse", "measured_bits", "sqnr_db"):
                assert row[name] == one[name], name


def test_points_that_cannot_be_stay_with_a_code():
    axes = {
        "device": ["a100-80gb"],
        "model": ["llama2-7b", "llama2-70b"],
        "quantizer": ["fp16", "oaken"],
        "oaken": {"outer": [0.5, 0.9], "inner": [0.2]},
        "input_tokens": [1024, 2**20, 2**30],
        "dequant_path": ["auto", "engine"],
        "batch": [1, 2**20],
    }
    table = dse.sweep({"axes": axes, "keep": ["kv_bytes", "decode_step_s", "bound"]})
    code = table["infeasible_code"]
    assert ((code == 0) == table["feasible"]).all()
    too_much = (table["oaken.outer"] == 0.9).fillna(False)  # 0.9 + 0.2 > 1
    no_engine = (table["dequant_path"] == "engine") & (table["quantizer"] == "oaken")
    assert (code[too_much | no_engine] == 3).all()
    rest = table[~(too_much | no_engine)]
    # 2^20 requests of 2^30 tokens of 512 KiB: 2^69 bytes
    huge = (rest["batch"] == 2**20) & (rest["input_tokens"] == 2**30)
    assert (rest.loc[huge, "infeasible_code"] == 4).all()
    seventy = rest[~huge & (rest["model"] == "llama2-70b")]
    assert (seventy["infeasible_code"] == 1).all()  # 140 GB of weights
    long = rest[~huge & (rest["model"] == "llama2-7b") & (rest["input_tokens"] > 1024)]
    assert (long["infeasible_code"] == 2).all()  # 550 GB of keys and values, 128 GB with 4 bits
    assert table.loc[code > 2, ["kv_bytes", "decode_step_s", "bound"]].isna().all(axis=None)


def test_hash_is_of_what_is_asked_not_how_it_is_written(tmp_path):
    toml = tmp_path / "a.toml"
    toml.write_text(
        'keep = ["bound"]\nwhere = ["batch > 1"]\n[axes]\ndevice = "h100"\nmodel = ["llama3-8b"]\n'
        'quantizer = "oaken"\n"oaken.outer" = [0.01, 0.02]\nbatch = { from = 1, to = 4, factor = 2 }\n'
    )
    data = {
        "axes": {
            **BASE,
            "quantizer": ["oaken"],
            "oaken": {"outer": {"from": 0.01, "to": 0.02, "step": 0.01}},
            "batch": [1, 2, 4],
        },
        "where": ["batch > 1"],
        "keep": ["bound"],
        "title": "another",
    }
    assert sweep_spec.read(toml).sha256 == sweep_spec.from_dict(data).sha256
    for change in ({"where": []}, {"keep": ["kv_bytes"]}, {"axes": {**data["axes"], "batch": [1, 4, 2]}}):
        assert sweep_spec.from_dict({**data, **change}).sha256 != sweep_spec.from_dict(data).sha256


def test_the_numbers_of_a_device_file_are_in_the_hash(tmp_path):
    from dse.specs import catalog

    text = catalog.device_text(catalog.device_files()["h100"])
    found = []
    for i, bandwidth in enumerate(("3.35", "3.36")):
        path = tmp_path / f"h{i}" / "gpu.toml"
        path.parent.mkdir()
        path.write_text(text.replace("value = 3.35", f"value = {bandwidth}"))
        found.append(sweep_spec.from_dict({"axes": {**BASE, "device": [str(path)]}}).sha256)
    assert found[0] == sweep_spec.from_dict({"axes": BASE}).sha256 != found[1]


@pytest.mark.parametrize(
    ("n_batches", "n_lengths", "part"),
    [(2, 2, 4096), (512, 512, 4096), (512, 513, 8192), (1024, 1024, 16384), (1025, 1024, 32768)],
)
def test_parts_are_about_64_of_a_power_of_two(n_batches, n_lengths, part):
    """512 * 512 points are 64 times 4,096, the smallest part; more points, and parts are twice as large.

    Files depend on it: a directory that was begun is gone on with in the same parts.
    """
    axes = {"device": ["h100"], "model": ["llama2-7b"], "quantizer": ["fp16"]}
    axes["batch"] = {"from": 1, "to": n_batches, "step": 1}
    axes["input_tokens"] = {"from": 1, "to": n_lengths, "step": 1}
    assert sweep_spec.from_dict({"axes": axes}).part_points == part


def test_the_example_has_about_ten_million_points():
    found = sweep_spec.read(EXAMPLE)
    assert 5e6 < found.n_points < 2e7
    assert len(sweep_points.evaluate_chunk(found, found.n_points - 40, found.n_points)["feasible"])
    first = sweep_points.evaluate_chunk(found, 0, 10)
    assert first["oaken.outer"].tolist() == [0.01] * 10


@settings(max_examples=20)
@given(size=st.integers(1, 200))
def test_joined_chunks_are_the_whole(size):
    found = sweep_spec.from_dict(
        {"axes": {**BASE, "quantizer": ["fp16", "kivi"], "batch": [1, 64, 512]}, "keep": "all"}
    )
    whole = sweep_points.evaluate_chunk(found, 0, 6)
    parts = [sweep_points.evaluate_chunk(found, a, b) for a, b in sweep_points.stretches(0, 6, size)]
    for name, column in join(parts).items():
        if isinstance(column, Names):
            assert column.normal().names == whole[name].normal().names
            assert (column.normal().codes == whole[name].normal().codes).all()
        else:
            np.testing.assert_array_equal(column, whole[name])
            assert column.dtype == whole[name].dtype


AXIS_ERRORS = [
    ("batch", {"from": 9, "to": 1, "step": 1}, "from = 9: must be below to = 1"),
    ("batch", {"from": 1, "to": 1, "step": 1}, "must be below to"),
    (
        "memory_bandwidth",
        {"from": "4 TB/s", "to": "1 TB/s", "step": "1 TB/s"},
        "from = '4 TB/s': must be below to = '1 TB/s'",
    ),
    ("batch", {"from": 1, "to": 9, "step": 0}, "step = 0: must be above 0"),
    ("batch", {"from": 1, "to": 9, "step": -1}, "must be above 0"),
    ("batch", {"from": 1, "to": 9, "factor": 1}, "factor = 1: must be above 1"),
    ("batch", {"from": 0, "to": 9, "factor": 2}, "from = 0: must be above 0"),
    ("batch", {"from": 1, "to": 9, "count": 0}, "count = 0: must be at least 2"),
    ("batch", {"from": 1, "to": 9}, "give one of step, count and factor"),
    ("batch", {"from": 1, "to": 9, "count": 3, "step": 1}, "has step and count"),
    ("batch", {"from": 1, "to": 9, "step": 1, "scale": "log"}, "takes count or factor"),
    ("batch", {"from": 1, "to": 9, "count": 3, "scale": "ln"}, '"linear" or "log"'),
    ("batch", {"from": 1, "to": 9, "setp": 1}, "did you mean step"),
    ("batch", {"start": 1, "to": 9, "step": 1}, "did you mean from"),
    ("batch", {"to": 9, "step": 1}, "from: is missing"),
    ("batch", {"from": 1, "to": math.inf, "step": 1}, "a finite number"),
    ("batch", {"from": "1", "to": 9, "step": 1}, "must be a number"),
    ("batch", {"from": 0, "to": 4, "step": 1}, "batch = 0"),
    ("batch", [], "has no value"),
    ("batch", [1, 2, 1], "is given twice"),
    ("batch", [0], "batch = 0"),
    ("batch", [1.5], "batch = 1.5"),
    ("batch", [True], "batch = True"),
    ("batch", ["8"], "batch = '8'"),
    ("batch", None, "batch = None"),
    ("admission", {"from": 1, "to": 2, "step": 1}, "cannot be a range"),
    ("admission", ["maybe"], "reserve, paged"),
    ("device", ["a100"], "unknown device"),
    ("device", [3], "must be a name in quotes"),
    ("device", ["h100", "H100"], "is given twice"),
    ("quantizer", ["oakn"], "did you mean oaken"),
    ("memory_bandwidth", ["3.35 B/s"], "did you mean 3.35 TB/s"),
    ("memory_bandwidth", ["3.35 GB"], "unit must be one of"),
    ("memory_bandwidth", [None], "is missing"),
    ("memory_bandwidth", {"from": "1 TB/s", "to": "2 TB/s", "step": "1 GB"}, "a unit of B/s"),
    ("memory_bandwidth", {"to": "2 TB/s", "step": 1}, "from: is missing"),
    ("oaken.outer", [1.5], "0 to 1"),
    ("oaken.outer", ["0.1"], "must be a number"),
    ("oaken.outer", [-0.1], "0 to 1"),
    ("oaken.outer", [0.1, 0.1 + 1e-15], "is given twice"),
    ("sinkq.bits", [5], "sinkq"),
    ("oaken.outre", [0.1], "did you mean oaken.outer"),
    ("bacth", [1], "did you mean batch"),
    ("stacks", [1], "unknown axis"),
]


@each(("name", "raw", "text"), AXIS_ERRORS)
def test_axes_that_are_refused(name, raw, text):
    with pytest.raises(AxisError, match=re.escape(text)):
        sweep_axes.build(name, raw)


@pytest.mark.parametrize(
    "raw", [{"from": 1, "to": 10**9, "step": 1}, {"from": 1, "to": 10**7, "factor": 1.000001}, range(2_000_000)]
)
def test_too_many_values(raw):
    with pytest.raises(LimitError, match="at most 1,000,000"):
        sweep_spec.from_dict({"axes": {**BASE, "batch": raw}})


PIECES = re.findall(r"[A-Za-z_.]+|[0-9.]+|\n|[^A-Za-z_.0-9\n]", EXAMPLE.read_text())


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(PIECES) - 1),
            st.one_of(
                st.sampled_from(
                    [*sorted(set(PIECES)), "", "-1", "0", "1e400", "nan", '""', "[]", "{}", "10" * 20, "'", "1e-320"]
                ),
                st.text(max_size=3),
            ),
        ),
        max_size=3,
    )
)
def test_any_file_is_a_sweep_or_lines_that_say_why_not(changes):
    pieces = list(PIECES)
    for place, piece in changes:
        pieces[place] = piece
    lines = []
    try:
        found = sweep_spec.of_document(specfile.parse("FILE", "".join(pieces)))
    except DseError as error:
        lines = error.lines()
    if lines:
        assert all("FILE" in line and len(line) <= 300 for line in lines)
        return
    assert 0 < found.n_points <= sweep_spec.MAX_POINTS
    sweep_points.evaluate_chunk(found, found.n_points // 2, found.n_points // 2 + 1)


HEAD = 'title = "t"\n[axes]\ndevice = ["h100"]\nmodel = ["llama3-8b"]\n'
FILES = [
    (HEAD + "batch = { from = 9, to = 1, step = 1 }\n", 2, ["FILE:5: axes.batch.from: from = 9", "below to = 1"]),
    (HEAD + "bacth = [1]\n", 2, ["FILE:5: axes.bacth: unknown axis: did you mean batch"]),
    (HEAD + "oaken.outer = [0.1]\n", 2, ["FILE:5: axes.oaken.outer: varies no quantizer of this sweep"]),
    (HEAD + "oaken.outre = [0.1]\nquantizer = 'oaken'", 2, ["FILE:5: axes.oaken", "unknown axis"]),
    ("keep = ['throughput']\n" + HEAD, 2, ["FILE:1: keep: unknown column 'throughput': did you mean throughput_tok"]),
    ("keep = 'some'\n" + HEAD, 2, ["FILE:1: keep = 'some': must be \"all\" or a list"]),
    ("where = ['batch > 1']\n" + HEAD, 2, ["FILE:1: where = 'batch > 1': 'batch' is not an axis of this sweep"]),
    ("were = []\n" + HEAD, 2, ["FILE:1: were: unknown key: did you mean where"]),
    ("bits = 'some'\n" + HEAD, 2, ["FILE:1: bits = 'some'"]),
    ("axes = 3\n", 2, ["FILE:1: axes = 3"]),
    ("[axes]\nmodel = 'llama2-7b'\n", 2, ["FILE:1: axes.device: is missing"]),
    ("title = 't'\n", 2, ["FILE: axes: is missing"]),
    (HEAD + "device = 'h100'\n", 2, ["FILE:5: is not valid TOML"]),
    ("", 2, ["is empty"]),
    (HEAD + "batch = { from = 1, to = 1000000000, step = 1 }\n", 5, ["FILE:5: axes.batch.step", "at most 1,000,000"]),
    (
        HEAD
        + "".join(f"{n} = {{ from = 1, to = 16777216, count = 1000 }}\n" for n in ("batch", "output_tokens"))
        + "input_tokens = { from = 1, to = 1000000, step = 1 }\n",
        5,
        ["1,000,000,000,000 points: at most 10,000,000,000", "--no-limit"],
    ),
]


@pytest.mark.parametrize(("text", "status", "parts"), FILES)
def test_bad_files_are_answered_with_a_line(text, status, parts, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text(text)
    found = run("sweep", "FILE", "--out", "out")
    assert_one_line(found, status, *parts)
    assert found[2].startswith("error: FILE") or status == 5
    assert not Path("out").exists()
