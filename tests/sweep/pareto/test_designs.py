"""Fronts of whole designs: parts merged against the whole, knees by hand, the command and its figure."""

import html
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from cases import quick_first
from dse.core.errors import InputError
from dse.figures.charts import design_front
from dse.figures.export import front as report_front
from dse.figures.plot import answer as report_figure
from dse.figures.plot import load as plot_load
from dse.model import results as point_names
from dse.model.results import RESULT_UNITS
from dse.sweep import pareto, reading
from dse.sweep import points as sweep_points
from dse.sweep import spec as sweep_spec
from dse.sweep.pareto import designs as pareto_designs

SPEC = {
    "axes": {
        "device": ["a100-80gb", "h100"],
        "model": ["llama2-7b", "llama3-8b"],
        "quantizer": ["fp16", "oaken"],
        "oaken.outer": [0.0, 0.05, 0.1],
        "batch": {"from": 1, "to": 40, "step": 1},
    },
    "keep": ["throughput_tokens_per_s", "decode_step_s", "joules_per_token", "max_batch", "bound"],
}


def scattered(found, digits, check=None):
    """Results without sense or cost: whole numbers, so that many are equal, and some designs that do not run."""
    total = sum((7 * i + 3) * (digits[axis.name].astype(np.int64) + 2) for i, axis in enumerate(found.axes))
    codes = (total % 5 == 0).astype(np.int8)
    columns = {"feasible": codes == 0, "infeasible_code": codes, "runs": codes < 2}
    for i, name in enumerate(found.keep):
        values = total * (i + 17) ** 3 % 41
        if name == "bound":
            columns[name] = sweep_points.Names((values % 2).astype(np.int32), ("bandwidth", "compute"))
        elif name == "max_batch":
            columns[name] = values
        else:
            columns[name] = np.where(codes, np.nan, values + 1.0)
    return columns


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """640 designs in some 40 parts; no test changes it."""
    out = tmp_path_factory.mktemp("designs") / "sweep"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_points, "evaluate_points", scattered)
        patch.setattr(sweep_spec, "MIN_PART_POINTS", 16)
        dse.sweep(SPEC, out)
    return out


OBJECTIVES = [
    {"throughput_tokens_per_s": "max", "decode_step_s": "min"},
    {"decode_step_s": "min", "joules_per_token": "min", "max_batch": "max"},
    {"max_batch": "max"},
]
GROUPS = [(), ("model",), ("device", "bound")]


# every two of objectives, groups and rows between merges meet
@quick_first(
    3,
    "objectives, by, merge_rows",
    [(OBJECTIVES[i], GROUPS[k], (1, 10, 10**6)[(i + k) % 3]) for i in range(3) for k in range(3)],
)
def test_the_front_of_a_directory_is_that_of_its_table(folder, monkeypatch, merge_rows, by, objectives):
    monkeypatch.setattr(pareto_designs, "MERGE_ROWS", merge_rows)
    table = reading.stored(folder).read()
    assert len(reading.stored(folder).paths) > 20
    found = pareto_designs.of_file(folder, objectives, by)
    mask = pareto.front(table, objectives, by)
    assert found.row.tolist() == np.flatnonzero(mask).tolist()
    pd.testing.assert_frame_equal(
        found.table, table[mask].reset_index(drop=True), check_exact=True, check_dtype=False, check_categorical=False
    )
    assert (found.n_rows, found.n_feasible) == (len(table), int(table["feasible"].sum()))
    assert found.knee.sum() == (len(table[mask][list(by)].drop_duplicates()) if by else 1)
    whole = pareto_designs.of_table(table, objectives, by)
    assert whole.row.tolist() == found.row.tolist()
    assert whole.knee.tolist() == found.knee.tolist()
    assert found.design == whole.design == ("device", "model", "quantizer", "oaken.outer", "batch")


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=40), st.integers(1, 10), st.booleans())
def test_fronts_of_parts_make_the_front_of_the_whole(rows, size, grouped):
    table = pd.DataFrame(rows, columns=["a", "b", "g"], dtype="float64")
    objectives, by = {"a": "max", "b": "min"}, ["g"] if grouped else []
    pieces = [(str(i), table.iloc[i : i + size]) for i in range(0, len(table), size)]
    found = pareto_designs._front(
        pieces,
        lambda piece, places: table.iloc[int(piece) + places],
        dict.fromkeys(table.columns, ""),
        objectives,
        by,
        False,
    )
    assert found.row.tolist() == np.flatnonzero(pareto.front(table, objectives, by)).tolist()
    assert found.table.equals(table.iloc[found.row].reset_index(drop=True))


def test_knees():
    # scaled to 0..1: (0, 1), (0.1, 0.1), (1, 0): squared distances 1, 0.02, 1
    front = pd.DataFrame({"x": [0.0, 1.0, 10.0], "y": [10.0, 1.0, 0.0]})
    assert pareto_designs.knees(front, {"x": "min", "y": "min"}).tolist() == [False, True, False]
    # best in x is 10 now: (1, 1), (0.9, 0.1), (0, 0)
    assert pareto_designs.knees(front, {"x": "max", "y": "min"}).tolist() == [False, False, True]
    groups = pd.DataFrame({"x": [3.0, 3.0, 5.0], "g": ["a", "a", "b"]})
    assert pareto_designs.knees(groups, {"x": "min"}, ["g"]).tolist() == [True, False, True]
    assert pareto_designs.knees(front.iloc[:0], {"x": "min"}).tolist() == []


def test_a_design_is_listed_once_whatever_batch_is_asked_for():
    """Of four rows with 600 tok/s two ask for more than runs, and two have another device's name and all its numbers;
    the H200 is as fast there, and not in a step; 500 tok/s in 16 bits is no knee: as far as 600 is, and behind it."""
    table = pd.DataFrame(
        [
            ("HBM", "fp8", 256, 600.0, 0.07, 0.1),
            ("HBM", "fp8", 64, 600.0, 0.07, 0.1),
            ("LPDDR", "fp8", 64, 600.0, 0.07, 0.1),
            ("LPDDR", "fp8", 256, 600.0, 0.07, 0.1),
            ("H200", "fp8", 64, 600.0, 0.07, 0.2),
            ("H200", "fp16", 64, 500.0, 0.0, 0.3),
        ],
        columns=["device", "quantizer", "batch", "throughput_tokens_per_s", "measured_error", "decode_step_s"],
    )
    aims = {"maximize": ["throughput_tokens_per_s"], "minimize": ["measured_error"]}
    once = dse.front(table, **aims)
    assert once.row.tolist() == [1, 4, 5]
    assert once.table.equals(table.iloc[[1, 4, 5]].reset_index(drop=True))
    assert once.knee.tolist() == [True, False, False]
    assert "3 of 6 designs (6 feasible, 3 more are these at another batch or device)" in str(once)
    assert dse.front(table, by=["device"], **aims).row.tolist() == [1, 2, 4, 5]
    assert dse.front(table.drop(columns="batch"), **aims).row.tolist() == [0, 4, 5]
    assert once.listed_once() is once


def test_the_command(folder, run, tmp_path):
    aims = ["--maximize", "throughput_tokens_per_s", "--minimize", "decode_step_s", "--by", "model"]
    status, out, err = run("pareto", folder, *aims, "--json")
    assert (status, err) == (0, "")
    answer = json.loads(out)
    expected = pareto.front(
        reading.stored(folder).read(), {"throughput_tokens_per_s": "max", "decode_step_s": "min"}, ["model"]
    )
    told = ["device", "model", "quantizer", "oaken.outer", "throughput_tokens_per_s", "decode_step_s"]
    once = reading.stored(folder).read()[expected].sort_values("batch", kind="stable").drop_duplicates(told)
    once = once.drop_duplicates([name for name in once if name not in ("device", "batch")]).sort_index()
    assert answer["n_front"] == len(answer["front"]) == len(once) == expected.sum() - answer["n_again"]
    assert answer["n_again"] > 0
    assert [row["row"] for row in answer["front"]] == once.index.tolist()
    assert [row["model"] for row in answer["front"] if row["knee"]] == ["llama2-7b", "llama3-8b"]
    status, out, _ = run("pareto", folder, *aims, "--out", tmp_path / "front")
    assert status == 0
    assert out.startswith(f"front: {len(once)} of 640 designs (")
    assert "knee" in out
    assert out.splitlines()[-1] == f"front: {tmp_path}/front/front.html"
    assert {path.name for path in (tmp_path / "front").iterdir()} == {
        "front.csv",
        "front-others.csv",
        "front.figure.json",
        "front.html",
        "front.png",
        "front.svg",
        "front.pdf",
    }
    again, _ = plot_load.load("front", str(tmp_path / "front"))  # `dse plot` draws the same
    assert html.escape(again.notes[0]) in (tmp_path / "front" / "front.svg").read_text()
    page = (tmp_path / "front" / "front.html").read_text()
    assert "dse pareto" in page
    # the whole design is in the hover box of a point of the front
    assert "oaken.outer: 0.1" in page
    assert "largest batch: " in page
    table = pd.read_csv(tmp_path / "front" / "front.csv")
    assert len(table) == len(once)
    # its rows are a front of their own
    status, out, _ = run("pareto", tmp_path / "front" / "front.csv", *aims, "--json")
    assert json.loads(out)["n_front"] == len(once)
    part = reading.stored(folder).paths[3]
    assert run("pareto", part, *aims)[0] == 0


def test_missing_objectives(run, tmp_path):
    table = pd.DataFrame({"device": ["a", "b", "c"], "cost": [1.0, None, 3.0], "speed": [1.0, 9.0, 2.0]})
    table.to_csv(tmp_path / "t.csv", index=False)
    status, out, err = run("pareto", tmp_path / "t.csv", "--minimize", "cost", "--maximize", "speed")
    assert (status, out) == (2, "")
    assert err == "error: row 1: cost is missing: drop such rows, or mark them by a column `feasible`" + (
        "; or leave them out with --drop-missing\n"
    )
    status, out, _ = run(
        "pareto", tmp_path / "t.csv", "--minimize", "cost", "--maximize", "speed", "--drop-missing", "--json"
    )
    answer = json.loads(out)
    assert [row["device"] for row in answer["front"]] == ["a", "c"]
    assert (answer["n_rows"], answer["n_feasible"], answer["n_missing"]) == (3, 3, 1)


def test_bad_input(folder, run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "t.csv").write_text('a,feasible\n1,yes\n2,"no')
    (tmp_path / "yes.csv").write_text("a,feasible\n1,yes\n")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "none.csv").write_text("")
    for source, aims, text in (
        (folder, ["--maximize", "throughput"], "did you mean throughput_tokens_per_s"),
        (folder, ["--maximize", "max_batch,"], "empty entry"),
        (tmp_path / "empty", ["--maximize", "a"], "holds no sweep"),
        (tmp_path / "gone", ["--maximize", "a"], "is no file"),
        (tmp_path / "t.csv", ["--maximize", "a"], "cannot be read as a table"),
        (tmp_path / "yes.csv", ["--maximize", "a"], "feasible: must be True or False"),
        (tmp_path / "t.parquet", ["--maximize", "a"], "cannot be read"),
        (tmp_path / "none.csv", ["--maximize", "a"], "cannot be read as a table"),
    ):
        status, out, err = run("pareto", source, *aims)
        assert (status, out) == (2, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert text in err


def test_a_front_of_nothing(tmp_path):
    table = pd.DataFrame({"device": ["a"], "cost": [1.0], "speed": [2.0], "feasible": [False]})
    found = pareto_designs.of_table(table, {"cost": "min", "speed": "max"}, ["device"])
    assert (len(found.table), found.n_rows, found.n_feasible) == (0, 1, 0)
    assert str(found) == "front: 0 of 1 designs (0 feasible); minimize cost, maximize speed, a front for each device"
    assert report_front.text(found).startswith(f"{found}\n")
    assert report_front.to_json(found)["front"] == []
    report_front.write(found, str(tmp_path / "out"), "dse pareto")
    with pytest.raises(InputError, match="none given"):
        pareto_designs.objectives_of([], [])


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([1.0, 5.0], False),
        ([1.0, 100.0], True),
        ([1.0, 1e9], True),
        ([0.0, 1e9], False),
        ([-40.0, 30.0], False),
        ([-3.0, -3.0], False),
        ([], False),
        ([math.inf, 1.0], False),
    ],
)
def test_axes_hold_their_values(values, log):
    axis = design_front.axis("x", "", values)
    assert axis.log == log
    assert all(axis.low <= value <= axis.high for value in values if math.isfinite(value))
    assert all(axis.low <= at <= axis.high * (1 + 1e-9) for at, _ in axis.ticks)


def test_other_designs_of_a_figure_are_those_that_are_beaten():
    table = pd.DataFrame({"g": ["x", "x", "x", None], "a": [1.0, 2.0, 2.0, 0.0], "b": [1.0, 2.0, 2.0, 0.0]})
    found = pareto_designs.of_table(table, {"a": "max", "b": "max"}, ["g"])
    assert found.row.tolist() == [1, 2, 3]  # two are equal, one is alone in its group
    chart = design_front.chart(found.table, list(found.knee), found.cloud, found.objectives, found.units, str, found.by)
    assert [s.x for s in chart.panels[0].series if s.name == design_front.OTHERS] == [(1.0,)]
    assert "Other designs: 1 of those that are beaten." in chart.notes


def test_figures_of_many_groups_and_of_one_objective():
    n = 40
    table = pd.DataFrame({"device": [f"d{i % 20}" for i in range(n)], "a": range(n), "b": range(n)}, dtype=object)
    table = table.astype({"a": float, "b": float})
    found = pareto_designs.of_table(table, {"a": "max", "b": "min"}, ["device"])
    arguments = (found.table, list(found.knee), found.cloud)
    chart = design_front.chart(*arguments, found.objectives, found.units, lambda row: row["device"], found.by)
    assert any("first 13 of 20 groups" in note for note in chart.notes)
    assert sum(len(s.x) for s in chart.panels[0].series if s.kind == "line") == 26
    one = design_front.chart(*arguments, {"a": "max"}, found.units, lambda row: row["device"])
    assert [s.name for s in one.panels[0].series] == ["knee", "front"]  # the star lies under the mark
    stars = [s for s in one.panels[0].series if s.name == "knee"]
    assert "device: d0" in "".join(stars[0].hover)


def test_only_takes_the_fronts_of_some_groups():
    table = pd.DataFrame(
        {
            "device": ["a", "a", "a", "b", "b"],
            "batch": [1, 2, 2, 1, 1],
            "memory_bandwidth": [1e12] * 5,
            "throughput_tokens_per_s": [5.0, 7.0, 6.0, 9.0, 8.0],
        }
    )
    by = ["device", "batch", "memory_bandwidth"]
    found = pareto_designs.of_table(table, {"throughput_tokens_per_s": "max"}, by, units={"memory_bandwidth": "B/s"})
    assert list(found.row) == [0, 1, 3]
    one = found.only(device="a")
    # rows 0 and 1 are the best of device a at batch 1 and 2; row 2 is beaten and beside the front
    assert (list(one.row), list(one.knee), one.by) == ([0, 1], [True, True], ("batch", "memory_bandwidth"))
    assert list(one.table["throughput_tokens_per_s"]) == [5.0, 7.0]
    assert set(one.cloud["throughput_tokens_per_s"]) <= {5.0, 6.0, 7.0}
    assert list(found.only(device="a", batch=2).row) == [1]
    names = [series.name for series in report_figure.chart_of(one).panels[0].series]
    groups = [name for name in names if name not in ("knee", design_front.OTHERS)]
    assert groups[:2] == ["batch 1, 1 TB/s", "batch 2, 1 TB/s"]
    with pytest.raises(InputError, match="unknown group 'quantizer'"):
        found.only(quantizer="fp16")
    with pytest.raises(InputError, match="no front has device = 'c'"):
        found.only(device="c")


def test_names_of_a_table_of_ones_own_tell_its_designs_apart():
    table = pd.DataFrame({"name": ["a", "b", "c"], "rate": [1.0, 2.0, 0.5], "price": [1.0, 3.0, 2.0]})
    found = pareto_designs.of_table(table, {"rate": "max", "price": "min"})
    assert found.design == ("name",)
    assert list(found.table["name"]) == ["a", "b"]
    with pytest.raises(InputError, match="is infinite in row 1"):
        pareto_designs.of_table(table.assign(rate=[1.0, np.inf, 2.0]), {"rate": "max"})


def test_figures_and_pages_call_a_result_by_one_name_and_unit():
    assert set(RESULT_UNITS) <= set(point_names.RESULTS)
    assert len(set(point_names.RESULTS.values())) == len(point_names.RESULTS)
    axis = design_front.axis("decode_step_s", "s", [0.004, 0.006])
    assert (axis.label, axis.shown(0.004)) == ("decode step (ms)", 4.0)
    share = design_front.axis("measured_error", "1", [0.05, 0.1])
    assert (share.label, share.shown(0.05)) == ("error of the attention output (%)", 5.0)
    assert design_front.axis("my_column", "", [1.0, 2.0]).label == "my_column"
    table = pd.DataFrame({"device": ["d", "d"], "max_batch": [4, 8], "decode_step_s": [0.1, 0.2]})
    found = pareto_designs.of_table(table, {"max_batch": "max", "decode_step_s": "min"})
    chart = report_figure.chart_of(found)
    assert chart.title == "Pareto front: decode step against largest batch"
    assert "Objectives: largest batch, smallest decode step." in chart.notes
    assert "decode step: 100 ms" in chart.panels[0].series[-1].hover[0]


def test_hover_boxes_say_a_design_in_the_words_and_units_of_the_axes():
    table = pd.DataFrame(
        {
            "tp": [1, 2],
            "batch": [128, 256],
            "input_tokens": [10240, 10240],
            "kv_bytes": [21474836480, 42949672960],
            "measured_error": [0.0712458, 0.05],
            "usd_per_million_tokens": [0.123456, 0.3],
        }
    )
    found = pareto_designs.of_table(table, {"measured_error": "min", "usd_per_million_tokens": "min"}, ["tp"])
    hovers = [series.hover[0] for series in report_figure.chart_of(found).panels[0].series if series.hover]
    assert [text.split("\n")[0] for text in hovers] == [
        "knee of tensor parallel 1",
        "knee of tensor parallel 2",
        "tensor parallel 1",
        "tensor parallel 2",
    ]
    assert hovers[2].split("\n")[1:] == [
        "tensor parallel: 1",
        "batch: 128",
        "prompt: 10,240, KV cache of the batch: 21.47 GB",
        "error of the attention output: 7.125 %",
        "cost of a million tokens: 0.1235 USD per million tokens",
    ]


def test_json_has_no_number_that_json_does_not_know(run, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("name,fast,slow,other,more\na,1,0.1,nan,1\nb,2,0.05,inf,-inf\n")
    code, out, error = run("pareto", table, "--maximize", "fast", "--minimize", "slow", "--json")
    assert code == 0
    (row,) = json.loads(out, parse_constant=lambda name: pytest.fail(name))["front"]
    assert row == {
        "name": "b",
        "fast": 2,
        "slow": 0.05,
        "other": None,
        "more": None,
        "row": 1,
        "knee": True,
        "intervals": {},
        "sure": None,
    }
    assert error == "note: 'other' is infinite in row 1 (and 1 more): null in JSON\n"
