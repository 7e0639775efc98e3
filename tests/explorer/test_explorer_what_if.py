"""Maps, crossovers and sensitivities of the page Why, without a browser."""

import shlex
from dataclasses import replace

import pytest

from dse.cli import main
from dse.explorer import downloads, request
from dse.explorer.uploads import FileText
from dse.explorer.why import what_if
from dse.operations.face import python_of
from explorer_page import asked, opened, said, tab_of

ASKED = what_if.CrossoverRequest(
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
    exec(python_of(what_if.operations(ours)[question]), space)
    answer = {
        "map": what_if.cached_map,
        "sensitivity": what_if.cached_sensitivity,
        "doubt": what_if.cached_doubt,
        "cross": what_if.cached_lines,
    }[question]
    if question != "map":  # of which the command takes no cells
        assert space["result"].text() == answer(ours).text()
    words = shlex.split(request.command_of(what_if.operations(ours)[question]))[1:]
    if question == "map":
        words += ["--batches", "1,4", "--inputs", "64,128"]
    with pytest.raises(SystemExit) as stopped:
        main.main(words)
    assert stopped.value.code == 0
    told = capsys.readouterr().out.split("\n\n")
    assert told[0] in space["result"].text()


DESIGNS = {"designs": "device.oaken-lpddr~model.llama2-7b~quantizer.nqkv", "batch": "4", "input": "64", "output": "128"}


def test_each_figure_is_drawn_when_it_is_chosen_with_its_numbers(monkeypatch):
    tables = {}
    monkeypatch.setattr(downloads, "show", lambda name, chart, table, *_, **__: tables.update({name: table()}))
    app = opened("why", why="what-if", **DESIGNS)
    for what in what_if.WHAT.choices:
        tables.clear()
        tab_of(app, "what_if").set_value(what).run()
        assert not app.exception
        assert {name.partition("-")[0] for name in tables} == {what}
        assert all(len(table) for table in tables.values())
    app.selectbox(key="measure").select("step").run()
    assert not app.exception
    assert "".join(app.query_params["measure"]) == "step"


def test_the_verdict_is_the_answers():
    """Of the design that is being changed, against what it is compared with, as `dse ask sensitivity` says it."""
    app = opened("why", why="what-if", **DESIGNS)
    ours = what_if.CrossoverRequest(
        asked(device="oaken-lpddr", quantizer="nqkv", batch=4, input=64, output=128, admission=None),
        ("fp16", "nqkv"),
        "fp16",
        "throughput",
    )
    for line in what_if.cached_sensitivity(ours).verdict:
        assert line in said(app)
        assert f"  {line}" in what_if.cached_sensitivity(ours).text()


def test_where_the_current_design_is_what_is_beaten_that_of_another_is_asked_for():
    """On a first visit, whose current design is fp16: where does fp8, the second, pay against it?"""
    app = opened("why", why="what-if")
    assert not app.exception
    assert "fp8: " in said(app)
    assert "sure that fp8 is better" in said(app)
    alone = opened("why", why="what-if", designs="quantizer.fp16")
    assert "fp8: " in said(alone)
