"""Maps, crossovers and sensitivities of the page Formats, without a browser."""

import shlex
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from dse.cli import main
from dse.explorer import crossovers, downloads, request
from dse.explorer.uploads import FileText
from dse.operations.face import python_of
from explorer_page import TIMEOUT_S, asked

ASKED = crossovers.CrossoverRequest(
    asked(device="oaken-lpddr", quantizer="nqkv", batch=4, input=64, output=64, model_kind="ideal"),
    ("fp16", "nqkv"),
    "fp16",
    "throughput",
)


pytestmark = pytest.mark.usefixtures("few_cells")
PLAN = "".join(f'[[layers]]\nlayer = {i}\nkey = "kivi"\nvalue = "fp16"\n' for i in range(32))
LABEL = "p.toml (loaded plan)"
WITH_PLAN = replace(ASKED, quantizers=("fp16", LABEL), against=LABEL, files=((LABEL, FileText("p.toml", PLAN)),))


@pytest.mark.parametrize("ours", [ASKED, WITH_PLAN], ids=["names", "plan"])
@pytest.mark.parametrize("question", ["map", "sensitivity", "doubt", "cross"])
def test_command_and_python_shown_ask_the_same_question(question, ours, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PLAN)
    space = {}
    exec(python_of(crossovers.operations(ours)[question]), space)
    answer = {
        "map": crossovers.cached_map,
        "sensitivity": crossovers.cached_sensitivity,
        "doubt": crossovers.cached_doubt,
        "cross": crossovers.cached_lines,
    }[question]
    if question != "map":  # of which the command takes no cells
        assert space["result"].text() == answer(ours).text()
    words = shlex.split(request.command_of(crossovers.operations(ours)[question]))[1:]
    if question == "map":
        words += ["--batches", "1,4", "--inputs", "64,128"]
    with pytest.raises(SystemExit) as stopped:
        main.main(words)
    assert stopped.value.code == 0
    told = capsys.readouterr().out.split("\n\n")
    assert told[0] in space["result"].text()


def test_each_figure_is_drawn_once_it_is_opened_and_errors_are_a_line():
    app = AppTest.from_string("from dse.explorer.app import main; main('formats')", default_timeout=TIMEOUT_S)
    text = "device.oaken-lpddr~model.llama2-7b~quantizer.nqkv"
    for key, value in {"designs": text, "batch": "4", "input": "64", "output": "128", "formats": "nqkv;fp16"}.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception
    titles = {text.value for text in app.subheader}
    for i in range(4):
        app.session_state[f"crossovers {i}"] = True  # as pressed
    app.run()
    assert not app.exception
    assert len({text.value for text in app.subheader} - titles) >= 4
    app.selectbox(key="measure").select("step").run()
    assert not app.exception
    assert "".join(app.query_params["measure"]) == "step"
    app.multiselect(key="formats").set_value([]).run()
    assert not app.exception


def test_where_the_current_design_is_what_is_beaten_the_next_of_the_tray_is_asked_for():
    """On a first visit, whose current design is fp16: from where on does fp8 beat it?"""
    app = AppTest.from_string("from dse.explorer.app import main; main('formats')", default_timeout=TIMEOUT_S)
    app.run()
    assert "From which batch and prompt on does fp8 beat fp16?" in [box.label for box in app.expander]


def test_the_downloads_of_the_figures_have_the_numbers(monkeypatch):
    tables = {}
    monkeypatch.setattr(downloads, "show", lambda name, chart, table, *_, **__: tables.update({name: table()}))
    app = AppTest.from_string("from dse.explorer.app import main; main('formats')", default_timeout=TIMEOUT_S)
    text = "device.oaken-lpddr~model.llama2-7b~quantizer.nqkv"
    for key, value in {"designs": text, "batch": "4", "input": "64", "output": "128", "formats": "nqkv;fp16"}.items():
        app.query_params[key] = value
    for i in range(4):
        app.session_state[f"crossovers {i}"] = True  # as pressed
    app.run()
    assert not app.exception
    assert {"map", "sensitivity-0", "doubt-0", "cross-0"} <= {*tables}
    assert all(len(table) for table in tables.values())
