"""Kinds of `dse plot` beyond the report: every chart is one, from a command's table or one's own; what is refused."""

import ast
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dse.core.errors import InputError, LimitError
from dse.figures import FIGURES, registry
from dse.figures.charts import bit_ledger, lab
from dse.figures.drawing import axes, chart, fit, layout, page_layout, to_plotly
from dse.figures.export import image
from dse.figures.plot import load
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.questions import operations
from dse.specs import catalog
from dse.specs.workload import Workload
from dse.validate import silicon
from factories import build

ROOT = Path(__file__).parents[2] / "dse"


def test_every_module_declares_what_it_draws():
    drawing = [getattr(one.draw, "func", one.draw) for one in FIGURES.values()]  # of views of one kind a partial
    modules = {Path(inspect.getsourcefile(draw)) for draw in drawing}
    making = {path for path in (ROOT / "figures" / "charts").glob("*.py") if "-> Chart" in path.read_text()}
    assert {"operations", "lab", "need_curve"} < {path.stem for path in making}
    assert making == {path for path in modules if path.is_relative_to(ROOT)}
    assert len(FIGURES) >= 60


def test_the_figure_of_the_docs_is_one_declaration(run, tmp_path, monkeypatch):
    """docs/contributing/figures.md adds a figure by one file: `dse plot` lists it, checks its columns and draws it."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT.parent / "docs/contributing/figures.md").read_text(), re.S)
    monkeypatch.setattr(registry, "DECLARED", {})
    exec(code, {})
    ((name, added),) = registry.DECLARED.items()
    monkeypatch.setitem(FIGURES, name, added)
    with pytest.raises(ValueError, match=f"two figures are called {name}"):
        exec(code, {})
    assert f"{name}\n  {added.shows}\n  from: dse report --out DIR\n  columns: quantizer, " in run("plot", "--list")[1]
    designs = "quantizer,throughput_tokens_per_s,joules_per_token\nfp16,100,0.5\nfp16,,\nnqkv,300,0.2\n"
    (tmp_path / "point.csv").write_text(designs)
    assert run("plot", name.replace("_", "-"), tmp_path, "--out", tmp_path / "f.svg")[0] == 0
    drawn, _ = load.load(name, str(tmp_path))
    assert [(one.name, one.x, one.y) for one in drawn.panels[0].series] == [
        ("FP16", (100.0,), (0.5,)),
        ("NQKV", (300.0,), (0.2,)),
    ]
    (tmp_path / "point.csv").write_text(designs.replace("joules", "watts"))
    code, _, problem = run("plot", name, tmp_path, "--out", tmp_path / "g.svg")
    assert code == 2
    assert "lacks joules_per_token: `dse report --out DIR` writes such a table" in problem


def test_every_answer_has_one_figure():
    drawn = [one.answer for one in FIGURES.values() if one.answer]
    assert len(drawn) == len(set(drawn)) == 13  # ten of dse ask, recommend, a front, a plan by layer
    assert all((one.answer is None) == (one.source_of is None) for one in FIGURES.values())


def test_charts_are_made_in_one_place():
    for path in ROOT.rglob("*.py"):
        if path.parent in (ROOT / "figures/charts", ROOT / "figures/drawing") or "Chart(" not in path.read_text():
            continue
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        assert not [n for n in calls if ast.unparse(n.func) in ("Chart", "chart.Chart")], path


def pages_hold(drawn: chart.Chart) -> None:
    for page in (image.PRESETS["paper"], image.PRESETS["slide"]):
        fitted = fit.fitted(drawn, page)
        for box in page_layout.place(fitted, page).panels:
            assert box.width > 30 * page.scale
            assert box.height > 20 * page.scale
    assert to_plotly.figure(drawn)


def test_a_point_writes_what_its_figures_need(run, tmp_path):
    design = ("--device", "a100-80gb", "--model", "llama2-7b", "--quantizer", "oaken", "--batch", "16")
    code, said, _ = run("point", *design, "--out", tmp_path)
    assert code == 0
    assert "dse plot design_memory, design_step, operations" in said
    drawn, table = load.load("operations", str(tmp_path))
    kv = build("llama2-7b", "oaken")
    own = operations.decode_step(catalog.device("a100-80gb"), [kv], Workload(16, 1024, 1024))
    assert list(table["operation"]) == list(own["operation"])
    # the ceiling of an A100: 312 TFLOP/s, from 153 FLOP/B on at 2.039 TB/s
    line = drawn.panels[0].series[0]
    assert (line.x[1], line.y[1], line.y[2]) == (pytest.approx(312 / 2.039), 312e12, 312e12)
    result = evaluate(Point(catalog.device("a100-80gb"), kv, Workload(16, 1024, 1024)))
    step, _ = load.load("design_step", str(tmp_path))
    *parts, whisker = step.panels[0].series
    assert sum(part.x[0] for part in parts) == pytest.approx(result["decode_step_s"])
    ends = [result["decode_step_s"] * result[f"token_time_{end}"] for end in ("low", "high")]
    assert whisker.x == pytest.approx(ends)
    memory, _ = load.load("design_memory", str(tmp_path))
    assert [text for _, text in memory.panels[0].y.ticks] == ["A100-80GB, Llama 2 7B, Oaken"]
    assert memory.panels[0].series[-1].x == (result["capacity_bytes"],)
    for one in (drawn, step, memory):
        pages_hold(one)
    code, _, error = run("point", *design, "--explain", "kv_bytes", "--out", tmp_path)
    assert (code, error.count("\n")) == (2, 1)
    table = pd.DataFrame([result] * 25)
    table.to_csv(tmp_path / "many.csv", index=False)
    with pytest.raises(LimitError, match="25 designs: a figure shows 24"):
        load.load("design_memory", str(tmp_path / "many.csv"))


def test_the_lab_writes_what_its_figures_need(run, tmp_path):
    dump = tmp_path / "d.npz"
    assert run("synthesize", "--layers", 2, "--tokens", 40, "--head-dim", 64, "--out", dump)[0] == 0
    code, said, _ = run(
        "lab", dump, "--quantizer", "nqkv", "--side", "value", "--head", 1, "--first", 3, "--out", tmp_path / "lab"
    )
    assert code == 0
    assert "lab_before or lab_after or lab_error" in said
    charts = {}
    for name in ("lab_bits", "lab_heads", "lab_histogram", "lab_before", "lab_after", "lab_error"):
        charts[name], _ = load.load(name, str(tmp_path / "lab"))
        assert name in said
        pages_hold(charts[name])
    assert charts["lab_heads"].title == "Signal to noise by layer and head, values"
    assert [text for _, text in charts["lab_heads"].panels[0].y.ticks] == ["0", "1"]
    tensor = np.load(dump)
    name = next(key for key in tensor.files if "value" in key and "1" not in key.rpartition("value")[0])
    head = np.asarray(tensor[name], dtype=np.float64).reshape(-1, 2, 40, 64)[0, 1]
    # tokens 3..39 as [channels, tokens], to four digits
    assert charts["lab_before"].panels[0].series[0].values[:2] == tuple(float(f"{v:.4g}") for v in head[3:5, 0])
    before, after, error = (charts[f"lab_{part}"].panels[0].series[0].values for part in ("before", "after", "error"))
    assert error[5] == pytest.approx(abs(before[5] - after[5]), abs=2e-3)
    (mark,) = {series.name for series in charts["lab_histogram"].panels[0].series} - {"before", "after"}
    assert mark == "smallest and largest value after"
    for args, words in (
        (("--quantizer", "nqkv", "--side", "both"), "side = 'both'"),
        (("--quantizer", "fp16"), "has no kernel"),
        (("--quantizer", "nqkv", "--error", "sqnr"), "did you mean sqnr_db"),
        (("--quantizer", "nqkv", "--head", "7"), "head = 7: must be 0 to 1"),
    ):
        code, _, problem = run("lab", dump, *args, "--out", tmp_path / "none")
        assert (code, problem.count("\n")) == (2, 1)
        assert words in problem
        assert not (tmp_path / "none").exists()


def test_heads_are_drawn_of_one_method_of_a_measurement(tmp_path):
    rows = [
        {"method": m, "side": s, "layer": i, "head": h, "context_tokens": 64, "mse": 0.1 * i + h}
        for m in ("a", "b")
        for s in ("key", "value")
        for i in (0, 3)
        for h in (0, 1)
    ]
    pd.DataFrame([*rows, {**rows[0], "layer": None, "head": None}]).to_parquet(tmp_path / "measured.parquet")
    with pytest.raises(InputError, match="method = a, b: a figure shows one: choose it with --only method=a"):
        load.load("lab_heads", str(tmp_path))
    drawn, _ = load.load("lab_heads", str(tmp_path), ["method=b", "side=value"])
    assert drawn.title == "Mean squared error by layer and head, values, b"
    assert drawn.panels[0].series[0].values == pytest.approx((0.0, 1.0, 0.3, 1.3))
    pd.DataFrame([*rows[:2], rows[0]]).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="several rows of one head"):
        load.load("lab_heads", str(tmp_path / "t.csv"))
    pd.DataFrame(rows).drop(columns="mse").to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="must have one of sqnr_db, mse"):
        load.load("lab_heads", str(tmp_path / "t.csv"), ["method=b"])


def test_silicon_errors_are_of_one_device(tmp_path):
    table = pd.DataFrame(silicon.to_json(silicon.Silicon(silicon.recorded_rows(), [], [])))
    table.to_csv(tmp_path / "silicon.csv", index=False)
    with pytest.raises(InputError, match="a figure shows one: choose it with --only device=A100-80GB"):
        load.load("silicon_errors", str(tmp_path))
    drawn, _ = load.load("silicon_errors", str(tmp_path), ["device=H100"])
    own = pd.DataFrame([vars(row) for row in silicon.recorded_rows("h100")])
    assert drawn.panels[0].series[0].x == FIGURES["silicon_errors"].chart(own).panels[0].series[0].x
    # names on two lines do not touch
    page = image.PRESETS["paper"]
    fitted = fit.fitted(drawn, page)
    (panel,), (box,) = fitted.panels, page_layout.place(fitted, page).panels
    assert any("\n" in text for _, text in panel.y.ticks)
    assert box.height / (panel.y.high - panel.y.low) >= 2 * page_layout.LINE * page.text


def test_plans_by_layer(tmp_path):
    table = pd.DataFrame(
        {
            "kind": ["mixed plans", "mixed plans", "one method", "chosen plan"],
            "method": ["", "", "nqkv", ""],
            "stored_bits": [4.0, 6.0, 4.1, 5.0],
            "error": [0.2, 0.1, 0.25, 0.15],
        }
    )
    table.to_csv(tmp_path / "mixed_plans.csv", index=False)
    assert len(load.load("mixed_plans", str(tmp_path))[0].panels) == 1
    beside = {"layers": [["nqkv", "nqkv"]], "methods": ["nqkv"], "objective": "mse", "source": "a dump"}
    (tmp_path / "mixed_plans.figure.json").write_text(json.dumps(beside))
    drawn, _ = load.load("mixed_plans", str(tmp_path))
    assert [panel.title for panel in drawn.panels] == ["", "Method by layer"]
    assert drawn.panels[0].y.name == "relative error, keys and values"
    pages_hold(drawn)
    table.assign(error=0.0).to_csv(tmp_path / "mixed_plans.csv", index=False)
    assert [panel.title for panel in load.load("mixed_plans", str(tmp_path))[0].panels] == ["Method by layer"]
    (tmp_path / "mixed_plans.figure.json").unlink()
    with pytest.raises(InputError, match="must be above 0 in some row"):
        load.load("mixed_plans", str(tmp_path))


def test_own_tables_of_need_say_enough(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "decode_step_s,memory_capacity,running_batch,bound,meets\n"
        "0.02,40e9,8,capacity,True\n0.05,20e9,4,capacity,False\n,10e9,0,capacity,False\n"
    )
    drawn, _ = load.load("need", str(path))
    (panel,) = drawn.panels
    assert drawn.title == "Decode step against memory"
    assert [series.name for series in panel.series] == ["decode step", "smallest that meets it"]
    assert panel.series[0].x == (20e9, 40e9)  # sorted; what does not run has no point
    assert panel.series[0].opened == (True, False)
    assert (panel.series[1].x, panel.series[1].y) == ((40e9,), (0.02,))
    path.write_text(
        "quantizer,stored_bits,throughput_tokens_per_s,bound,meets\nfp16,16,100,capacity,False\n"
        "nqkv,4.06,400,bandwidth,True\n"
    )
    drawn, _ = load.load("need_bits", str(path))
    assert drawn.title == "Throughput by quantizer"
    assert {series.name: series.x for series in drawn.panels[0].series} == {
        "meets the target": (400.0,),
        "misses it": (100.0,),
    }
    path.write_text("quantizer,stored_bits,bound,meets\nfp16,16,capacity,False\n")
    with pytest.raises(InputError, match="must have a result: throughput_tokens_per_s or decode_step_s"):
        load.load("need_bits", str(path))
    path.write_text("running_batch,throughput_tokens_per_s,bound,meets\n1,16,capacity,False\n")
    with pytest.raises(InputError, match="must have memory_bandwidth or memory_capacity or peak_flops"):
        load.load("need", str(path))


def test_an_own_map_may_have_ties_and_no_gains(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("batch,input_tokens,best\n1,256,a = b\n2,256,a\n1,512,\n2,512,c\n")
    drawn, _ = load.load("map", str(path))
    assert [key.name for key in drawn.legend()] == ["A  a", "B  b", "C  c", "none runs"]
    assert drawn.panels[0].series[-1].labels == ("A=B", "A", "-", "C")
    path.write_text("batch,input_tokens,best\n1,256,a\n1,256,b\n")
    with pytest.raises(InputError, match="2 rows of one mark differ in best"):
        load.load("map", str(path))
    path.write_text("batch,input_tokens,best\n1,256,a\n1,256,a\n")
    with pytest.raises(InputError, match="2 rows of one mark are the same: leave one"):
        load.load("map", str(path))


def test_parts_of_bits_add_up(tmp_path):
    table = pd.DataFrame({"model": "m", "quantizer": ["q"], "n_tokens": 8, "effective_bits": 4.0, "stored_bits": 5.0})
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="must have the parts of stored_bits, such as payload_bits"):
        load.load("bit_ledger", str(tmp_path / "t.csv"))
    table = table.assign(payload_bits=4.0, scales_bits=0.5)
    table.to_csv(tmp_path / "t.csv", index=False)
    for kind in ("bit_ledger", "lab_bits"):
        with pytest.raises(InputError, match=r"stored_bits = 5: payload_bits, scales_bits add up to 4\.5"):
            load.load(kind, str(tmp_path / "t.csv"))
    table.assign(scales_bits=1.0).to_csv(tmp_path / "t.csv", index=False)
    assert load.load("lab_bits", str(tmp_path / "t.csv"))[0].panels[0] == bit_ledger.panel(
        table.assign(scales_bits=1.0), "side"
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_doubled_columns_are_refused(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    if suffix == "csv":
        path.write_text("\ufeffbatch,input_tokens,best,batch\n1,256,a,1\n")
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table([[1], [256], ["a"], [1]], names=["batch", "input_tokens", "best", "batch"]), path)
    with pytest.raises(InputError, match="column 'batch' is there twice: leave one"):
        load.load("map", str(path))


def test_what_must_stand_beside_is_said_first_and_listed(run, tmp_path):
    (tmp_path / "t.csv").write_text("knee\nFalse\n")
    for kind in ("front", "sensitivity", "doubt"):
        with pytest.raises(InputError, match=rf"{kind} needs 't\.figure\.json' beside its table: `dse"):
            load.load(kind, str(tmp_path / "t.csv"))
    (tmp_path / "front.csv").write_text("knee\nFalse\n")
    with pytest.raises(InputError, match=r"front needs front\.figure\.json beside it"):
        load.load("front", str(tmp_path))
    assert "`" not in run("plot", "--list")[1]
    listed = {one["kind"]: one["beside"] for one in json.loads(run("plot", "--list", "--json")[1])}
    assert {kind for kind, beside in listed.items() if beside} == {"front", "sensitivity", "doubt"}
    code, said, _ = run("plot", "list")
    assert code == 0
    assert "  needs beside its table: front.figure.json, as that command writes it\n" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pareto", "did you mean front?"),
        ("tornado", "did you mean sensitivity, doubt?"),
        ("qqq", "`dse plot` alone lists"),
        ("lab-hist", "did you mean lab_histogram"),
    ],
)
def test_an_unknown_kind_is_said_before_anything_else(run, name, words):
    code, _, error = run("plot", name, "nowhere")
    assert (code, error.count("\n")) == (2, 1)
    assert words in error


def test_ticks_have_thousands_and_their_room():
    assert [text for _, text in axes.around("x", "", [1000.0, 4000.0]).ticks] == ["1,000", "2,000", "3,000", "4,000"]
    assert [text for _, text in axes.around("x", "ms", [-2e-3, 2e-3], 1e-3).ticks] == ["-2", "0", "2"]
    assert [axes.count_text(n) for n in (16, 1024, 131072, 2.0**24, 2.0**40)] == [
        "16",
        "1,024",
        "131k",
        "16.8M",
        "1.1e+12",
    ]
    assert [text for _, text in axes.log10("x", "%", [0.2, 0.9], 0.01).ticks] == ["10", "20", "50", "100"]
    assert [text for _, text in axes.log10("x", "", [2.0, 900.0]).ticks] == ["1", "10", "100", "1,000"]
    x = axes.log10("x", "B", [1.0, 1e5])
    y = axes.linear("y", "s", [1.0])
    drawn = chart.Chart("t", (chart.Panel("", x, y, ()),))
    (box,) = layout.place(drawn).panels
    room = layout.WIDTH - box.x - box.width
    assert room >= layout.text_width("100,000", layout.TEXT_SIZE) / 2  # the last name is centred on the edge


def test_texts_are_broken_into_lines_of_about_the_same_length():
    width = page_layout.measured("one two three four", 8.0)
    assert page_layout.wrapped("one two three four five", width, 8.0) == ["one two three four", "five"]
    assert page_layout.balanced("one two three four five", width, 8.0) == ["one two three", "four five"]
    narrow = page_layout.measured("mistral-7b-", 8.0)
    assert page_layout.wrapped("mistral-7b-instruct", narrow, 8.0) == ["mistral-7b-", "instruct"]
    assert page_layout.balanced("word", 1.0, 8.0) == ["word"]


def test_a_change_of_the_better_design_is_no_mark_at_a_value():
    table = pd.DataFrame(
        {
            "at_low": [1.0, 3.0],
            "at_high": [5.0, 4.0],
            "other_at_low": [2.0, 2.0],
            "other_at_high": [2.0, 2.0],
            "winner_at_low": ["b", "a"],
            "winner_at_high": ["a", "a"],
            "flips_at": ["2 TB/s", ""],
        }
    )
    beside = {
        "rows": [0, 1],
        "labels": ["x", "y"],
        "measure": "throughput",
        "base": [3.5, 2.0],
        "names": ["a", "b"],
        "winner": "a",
        "title": "t",
    }
    drawn = FIGURES["sensitivity"].chart(table, beside)
    for panel in drawn.panels:
        (band,) = [series for series in panel.series if series.name == "the better design changes"]
        assert (band.base[0], band.base[0] + band.x[0]) == pytest.approx((panel.x.low, panel.x.high))
        assert band.y == (1.0,)  # the first of two rows, counted from below
        assert not [series for series in panel.series if series.kind == "scatter"]
    assert drawn.notes == ("As given a is better; in a shaded range that changes.",)


def test_colors_of_a_map_have_round_ticks():
    assert [text for _, text in lab.scale("value", "", [0.0, 4000.0]).axis.ticks] == ["0", "2,000", "4,000"]


def test_names_that_read_like_numbers_are_names(run, tmp_path):
    table = tmp_path / "mixed_plans.csv"
    table.write_text("kind,method,stored_bits,error\none method,3,4,0.1\none method,4.5,5,0.2\nchosen plan,,4,0.1\n")
    (tmp_path / "mixed_plans.figure.json").write_text(
        json.dumps(
            {"layers": [["3", "3"]], "methods": ["3", "4.5"], "objective": "mse", "source": "x", "synthetic": False}
        )
    )
    code, _, error = run("plot", "mixed_plans", table, "--out", tmp_path / "f.svg")
    assert (code, error) == (0, "")
    assert load.load("mixed_plans", str(table))[1]["method"].tolist()[:2] == ["3", "4.5"]
    for name in ("system", "device"):
        rows = pd.DataFrame(
            {
                "system": ["a", "b"],
                "device": ["d", "d"],
                "model": "m",
                "batch": [1, 1],
                "throughput_tokens_per_s": [1.0, 2.0],
                "feasible": True,
                "running_batch": 1,
                "infeasible_reason": "",
                "max_batch": 9,
                "quantizer": ["a", "b"],
            }
        )
        rows[name] = range(2)
        rows.to_parquet(tmp_path / "report.parquet")
        code, _, error = run("plot", "throughput_batch", tmp_path / "report.parquet", "--out", tmp_path / "g.svg")
        assert "unexpected" not in error
        assert code in (0, 2)
