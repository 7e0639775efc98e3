"""The public face: its examples, the packages that share a name with a function, and what it refuses."""

import ast
import doctest
import importlib.util
import inspect
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import plotly.graph_objects
import pytest

import dse
from dse import api
from dse.core.errors import InputError, LimitError
from dse.specs.workload import ASKED
from factories import plan_file

ROOT = Path(__file__).parents[1]
#: the last notebook is a study of its own
NOTEBOOKS = sorted((ROOT / "notebooks").glob("0[1-6]_*.ipynb"))
WORK = {"batch": 128, "admission": "paged"}


def test_the_examples_in_the_docstrings_are_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    for name in api.__all__:
        for example in finder.find(getattr(api, name), name, module=False, globs={"dse": dse}):
            runner.run(example)
    assert runner.tries >= 10
    assert not runner.failures


def test_editors_are_told_the_signatures():
    """`python scripts/stub.py` writes the stub anew."""
    specification = importlib.util.spec_from_file_location("stub", ROOT / "scripts" / "stub.py")
    stub = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(stub)

    def functions(text):
        found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        return {
            node.name: (ast.unparse(node.args), ast.unparse(node.returns), ast.get_docstring(node)) for node in found
        }

    def attributes(text):
        found = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
        names = [one for one in found.body if isinstance(one, ast.AnnAssign)]
        return {one.target.id: ast.unparse(one.annotation) for one in names}

    assert functions(stub.STUB.read_text()) == functions(stub.text())
    assert attributes(stub.STUB.read_text()) == attributes(stub.text())
    assert list(attributes(stub.text())) == list(dse.results)


def test_a_signature_names_every_field_of_a_workload():
    parameters = inspect.signature(dse.evaluate).parameters
    assert list(parameters)[:4] == ["device", "model", "quantizer", "workload"]
    assert {*ASKED} < {*parameters}
    assert parameters["batch"].default is None
    searched = inspect.signature(dse.crossover).parameters
    assert "batch" not in searched
    assert searched["batches"].default is None


def test_a_grid_takes_a_list_for_every_field_of_a_workload():
    parameters = inspect.signature(dse.grid).parameters
    assert list(parameters) == ["device", "model", "quantizer", *ASKED]
    assert parameters["batch"].annotation == "int | Iterable[int | None] | None"


def test_every_public_name_is_there():
    assert {*api.__all__} == {*dse.__all__} == {name for name in dir(dse) if not name.startswith("__")}
    for name in api.__all__:
        assert getattr(dse, name) is not None


@pytest.mark.parametrize("first", ["import dse.model.engine, dse.sweep.sweeps, dse.report.page", "pass"])
def test_packages_with_the_name_of_a_function_can_be_called_and_imported_from(first):
    """Whatever was imported before."""
    code = f"""{first}
import dse
assert dse.model("llama2-7b").name == "llama2-7b"
assert len(dse.sweep({{"device": "h100", "model": "llama2-7b", "batch": [1, 2]}})) == 2
import dse.model.engine
from dse.sweep import sweeps
from dse.model import engine
assert callable(engine.evaluate) and callable(dse.report) and callable(dse.operations)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_loads_nothing():
    code = "import sys, dse; assert not {'numpy', 'pydantic', 'pandas', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def python_of(path):
    """The Python of a page or notebook, block by block."""
    if path.suffix == ".md":
        return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


PAGES = [ROOT / "README.md", *(ROOT / "docs" / "how-to" / f"{name}.md" for name in ("ask", "from-python"))]


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: path.stem)
def test_pages_and_notebooks_need_nothing_deeper(path):
    """Of `dse` they import the package alone, and use public names of it."""
    imported, used = set(), set()
    for code in python_of(path):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dse":
                used.add(node.attr)
    assert {name for name in imported if name.partition(".")[0] == "dse"} == {"dse"}
    assert used
    assert used <= {*api.__all__}


def test_specs_and_names_are_the_same():
    names = "a100-80gb", "llama2-13b", "qserve"
    specs = dse.device(names[0]), dse.model(names[1]), dse.quantizer(names[2])
    assert dse.evaluate(*specs, **WORK) == dse.evaluate(*names, **WORK)
    goal = {"throughput": 1000, **WORK}
    assert dse.need("capacity", *specs, **goal).to_json() == dse.need("capacity", *names, **goal).to_json()
    assert dse.grid(*specs, **WORK).equals(dse.grid(*([name] for name in names), **WORK))


def test_a_design_has_the_errors_measured_on_the_shipped_sample():
    found = dse.evaluate("h100", "llama2-7b", "kivi:bits=4")
    assert 0 < found["measured_error"] < 1
    assert found["measured_on"] == "SmolLM2-135M, not your model"


def test_a_grid_holds_what_evaluate_gives():
    table = dse.grid(["h100", "lpu-hbm"], "llama2-7b", ["fp16", "oaken"], batch=[1, 8], weights_bits=[16, 4])
    assert len(table) == 16
    for row in table.to_dict("records"):
        one = dse.evaluate(
            row["device"].lower(), row["model"], row["quantizer"], batch=row["batch"], weights_bits=row["weights_bits"]
        )
        for name in ("kv_bytes", "max_batch", "decode_step_s", "throughput_tokens_per_s", "measured_error"):
            assert row[name] == one[name], name
    with pytest.raises(LimitError, match=r"1,000,001 designs.*dse\.sweep"):
        dse.grid("h100", "llama2-7b", "fp16", batch=range(1, 1_000_002))


@pytest.mark.parametrize(
    ("question", "arguments", "options"),
    [
        ("crossover", ["h100", "llama2-7b", "fp8"], {"batches": [4], "inputs": [64]}),
        ("need", ["flops", "h100", "llama2-7b"], {"step_ms": 10, "batch": 4}),
        ("need", ["bits", "h100", "llama2-7b"], {"throughput": 10, "quantizers": ["fp16", "fp8"]}),
        ("sensitivity", ["h100", "llama2-7b"], {"measure": "energy", "batch": 4}),
        ("doubt", ["h100", "llama2-7b"], {"measure": "energy", "batch": 4}),
        ("formats", ["h100", "llama2-7b", ["fp8", "kivi"]], {"batch": 4}),
        ("best_map", ["h100", "llama2-7b", ["fp16", "fp8"]], {"batches": [1, 4], "inputs": [64]}),
    ],
)
def test_every_answer_has_a_text_and_a_figure(question, arguments, options):
    answer = getattr(dse, question)(*arguments, **options)
    assert len(answer.text()) > 20
    assert str(answer) == repr(answer) == answer.text()
    assert len(answer.table) > 0
    assert isinstance(dse.plot(answer), plotly.graph_objects.Figure)


def test_doubt_is_that_of_the_command(capsys):
    from dse.cli import main as cli

    words = "ask doubt --device oaken-lpddr --model llama2-13b --quantizer oaken --against qserve --batch 64"
    with pytest.raises(SystemExit):
        cli.main(words.split())
    answer = dse.doubt("oaken-lpddr", "llama2-13b", "oaken", against="qserve", batch=64)
    assert capsys.readouterr().out == answer.text() + "\n"
    assert "stored_bits" in answer.text()


def test_answers_without_a_figure_print_as_their_text():
    waits = dse.load("h200", "qwen3-32b", "fp8", batch=8, admission="paged")
    assert str(waits) == waits.text()
    assert len(waits.table) == 10


def test_lists_and_dicts_print_as_the_text_of_their_command(capsys):
    from dse.cli import main as cli

    scores = dse.scores("fp8", model="llama3.1-8b")
    run = dse.simulate("h200", "qwen3-32b", "fp8", n_requests=20)
    commands = (
        "scores --format fp8 --model llama3.1-8b",
        "simulate --device h200 --model qwen3-32b --quantizer fp8 --requests 20",
    )
    for found, command in zip((scores, run), commands, strict=True):
        with pytest.raises(SystemExit):
            cli.main(command.split())
        assert f"{found}\n" == f"{found!r}\n" == capsys.readouterr().out
        assert pickle.loads(pickle.dumps(found)) == found
        assert len(found.table) > 1
    assert isinstance(scores, list)
    assert isinstance(run, dict)
    lab = dse.lab("kivi:bits=2")
    assert "dB" in str(lab)
    assert len(lab.table) > 10


def test_specs_print_in_a_few_lines():
    for name in ("llama3.1-8b", "deepseek-v3", "gpt-oss-120b"):
        model = dse.model(name)
        assert str(model) == repr(model) == model.text()
        assert f"{model.parameters:,} parameters" in str(model)
        assert str(model).startswith(name)
    device = dse.device("h100")
    assert str(device) == repr(device)
    assert "bandwidth 3.35 TB/s" in str(device)
    assert str(dse.quantizer("kivi:bits=4")) == "kivi:bits=4"


def test_one_name_stands_for_a_list_of_it():
    table = dse.grid(["h100", "h200"], "llama2-7b", batch=[1, 8])
    found = dse.front(table, maximize="throughput_tokens_per_s", by="device", at_most="batch=1")
    same = dse.front(table, maximize=["throughput_tokens_per_s"], by=["device"], at_most=["batch=1"])
    assert found.table["device"].tolist() == same.table["device"].tolist() == ["H100", "H200"]
    assert found.table["batch"].tolist() == [1, 1]
    one = dse.formats("h100", "llama2-7b", "fp8", batch=4)
    assert [format.name for format in one.formats] == ["fp16", "fp8"]


def test_a_front_of_a_table_of_one_s_own_keeps_the_order_of_its_objectives():
    table = dse.sweep({"device": "h100", "model": "llama2-7b", "batch": [1, 8, 64]})
    table = table.assign(power_w=table["batch"] * 2.0)
    senses = {"power_w": "min", "throughput_tokens_per_s": "max"}
    found = dse.front(table, objectives=senses, units={"power_w": "W"})
    assert list(found.objectives) == list(senses)
    assert found.units["power_w"] == "W"
    assert list(dse.front(table, ["throughput_tokens_per_s"], ["power_w"]).objectives) == [*senses][::-1]
    assert isinstance(dse.plot(found), plotly.graph_objects.Figure)
    with pytest.raises(InputError, match="cannot stand beside"):
        dse.front(table, ["batch"], objectives=senses)
    with pytest.raises(InputError, match="'least': must be max or min"):
        dse.front(table, objectives={"batch": "least"})


def test_a_front_of_a_stored_sweep(tmp_path):
    stored = dse.sweep({"device": "h100", "model": "llama2-7b", "batch": [1, 8]}, tmp_path / "designs")
    assert str(stored) == f"sweep: {stored.folder} (2 rows, 1 part)"
    assert stored.table.equals(stored.read())
    for source in (stored, stored.table):
        assert isinstance(dse.plot(source, "throughput_batch"), plotly.graph_objects.Figure)
    best = dse.front(stored, maximize=["throughput_tokens_per_s"])
    assert best.table.equals(dse.front(stored.folder, maximize=["throughput_tokens_per_s"]).table)
    with pytest.raises(InputError, match="units"):
        dse.front(stored, maximize=["throughput_tokens_per_s"], units={"batch": "1"})


def test_a_figure_is_drawn_into_a_file_by_one_call(tmp_path):
    table = dse.grid("h100", "llama2-7b", ["fp16", "fp8"], batch=[1, 8, 64])
    starts = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype html>", "parquet": b"PAR1"}
    only = {"quantizer": "fp8", "batch": [8, 64]}
    for ending, start in starts.items():
        file = tmp_path / f"f.{ending}"
        shown = dse.plot(table, "throughput_batch", out=file, only=only)
        assert isinstance(shown, plotly.graph_objects.Figure)
        assert file.read_bytes().lower().startswith(start.lower()), ending
    lines = [
        trace for trace in shown.data if trace.name == "H100 FP8" and trace.mode == "lines+markers" and len(trace.x) > 1
    ]
    assert [list(line.x) for line in lines] == [[8.0, 64.0]]
    dse.plot(table, "throughput_batch", tmp_path / "f.csv", only=only)
    rows = pd.read_csv(tmp_path / "f.csv")
    assert rows[["quantizer", "batch"]].values.tolist() == [["fp8", 8], ["fp8", 64]]
    # a column of a paper is 85 mm wide; what asked for it stands in the file
    dse.plot(table, "throughput_batch", out=tmp_path / "f.svg", preset="paper", title="Throughput", font=7)
    text = (tmp_path / "f.svg").read_text()
    assert re.search(r'<svg [^>]*width="([\d.]+)pt"', text)[1] == f"{85 * 72 / 25.4:.6f}"
    assert "dse.plot(source, 'throughput_batch', out=" in text
    assert "title='Throughput', font=7" in text
    answer = dse.crossover("h100", "llama2-7b", "fp8", batches=[1, 8])
    dse.plot(answer, out=tmp_path / "cross.csv")
    assert len(pd.read_csv(tmp_path / "cross.csv")) == len(answer.table)
    stored = dse.sweep({"device": "h100", "model": "llama2-7b", "batch": [1, 8]}, tmp_path / "designs")
    dse.plot(stored, "throughput_batch", out=tmp_path / "stored.csv", only={"batch": 8})
    assert pd.read_csv(tmp_path / "stored.csv")["batch"].tolist() == [8]


def test_a_wrong_kind_is_said_before_a_wrong_option(tmp_path):
    table = dse.grid("h100", "llama2-7b", batch=[1, 8])
    out = tmp_path / "f.xyz"
    with pytest.raises(InputError, match="unknown figure 'throughput': did you mean throughput_batch"):
        dse.plot(table, "throughput", out=out, presett="paper", only={"nothing": 1})
    with pytest.raises(InputError, match="kind: must be a figure's name, not a DataFrame"):
        dse.plot("throughput_batch", table)
    refused = {
        "unknown 'presett': did you mean preset": {"out": out, "presett": "paper"},
        r"out = .*f.xyz'?: must end in one of .png, .svg, .pdf, .html, .csv, .parquet": {
            "out": out,
            "preset": "poster",
        },
        "preset = 'poster': must be one of report, paper": {"out": tmp_path / "f.pdf", "preset": "poster"},
        "width = 60: has no effect in .csv: leave it out": {"out": tmp_path / "f.csv", "width": 60},
        "width = 60: has no effect without out: leave it out": {"width": 60},
        "title = 'T': has no effect with": {"out": tmp_path / "f.pdf", "title": "T", "shows_title": False},
        "only = 'batch=7': no row has it: batch is one of '?1, 8": {"only": {"batch": 7}},
        "only = 'bach=1': unknown column: did you mean batch": {"only": {"bach": 1}},
        "only = {'batch': .*}: names no value": {"only": {"batch": []}},
        "only = 7: must be by column": {"only": 7},
    }
    for message, options in refused.items():
        with pytest.raises(InputError, match=message):
            dse.plot(table, "throughput_batch", **options)
    assert not list(tmp_path.iterdir())


def test_what_is_not_known_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"unknown 'batches'.*batch"):
        dse.evaluate("h100", "llama2-7b", batches=3)
    with pytest.raises(InputError, match="unknown 'input': did you mean input_tokens"):
        dse.evaluate("h100", "llama2-7b", input=8192)
    with pytest.raises(InputError, match="unknown 'requests': did you mean n_requests"):
        dse.simulate("h100", "llama2-7b", requests=500)
    with pytest.raises(InputError, match="cannot stand beside"):
        dse.evaluate("h100", "llama2-7b", "fp16", dse.Workload(), batch=3)
    with pytest.raises(AttributeError, match="nothing"):
        dse.nothing  # noqa: B018
    with pytest.raises(InputError, match="batch: is what the question searches: give batches"):
        dse.crossover("h100", "llama2-7b", "fp8", batch=3)
    with pytest.raises(InputError, match="quantizer = 'fp8': has no effect on bits"):
        dse.need("bits", "h100", "llama2-7b", "fp8", throughput=10)
    with pytest.raises(InputError, match=r"quantizers = .*: has no effect on bandwidth"):
        dse.need("bandwidth", "h100", "llama2-7b", quantizers=["fp8"], throughput=10)
    with pytest.raises(InputError, match="did you mean bandwidth"):
        dse.need("bandwith", "h100", "llama2-7b", throughput=10)
    with pytest.raises(InputError, match="no answer with a figure of its own"):
        dse.plot(dse.grid("h100", "llama2-7b"))
    with pytest.raises(InputError, match="lacks"):
        dse.plot(dse.grid("h100", "llama2-7b").drop(columns=["bound"]), "throughput_batch")
    with pytest.raises(InputError, match="not from a str"):
        dse.plot("report", "throughput_batch")
    with pytest.raises(InputError, match="unknown figure"):
        dse.plot(dse.grid("h100", "llama2-7b"), "throughput")
    with pytest.raises(InputError, match="table = 'result'"):
        dse.report_table("result")
    with pytest.raises(dse.errors.SpecError):
        dse.check(ROOT / "pyproject.toml")


@pytest.mark.parametrize("prefix", ["plan:", " PLAN:"])
def test_a_file_that_changes_between_two_calls_is_read_again(tmp_path, prefix):
    found = []
    for name in ("fp8", "int4"):
        path = plan_file(tmp_path, [(name, name)] * 32)
        found.append(dse.evaluate("h100", "llama2-7b", f"{prefix}{path}")["stored_bits"])
    assert found == [dse.evaluate("h100", "llama2-7b", name)["stored_bits"] for name in ("fp8", "int4")]
