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

NQKV = asked(device="oaken-lpddr", quantizer="nqkv", batch=4, input=64, output=64, model_kind="ideal")
FP16 = request.with_quantizer(NQKV, "fp16")

pytestmark = pytest.mark.usefixtures("few_cells")
PLAN = "".join(f'[[layers]]\nlayer = {i}\nkey = "kivi"\nvalue = "fp16"\n' for i in range(32))
WITH_PLAN = request.with_quantizer(NQKV, "p.toml (loaded plan)", FileText("p.toml", PLAN))


@pytest.mark.parametrize("against", [FP16, WITH_PLAN], ids=["names", "plan"])
@pytest.mark.parametrize("what", list(what_if.WHAT.choices))
def test_command_and_python_shown_ask_the_same_question(what, against, capsys, tmp_path, monkeypatch):
    """The verdict of the page is in what the command prints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PLAN)
    ours, space = what_if.WhatIf(what, NQKV, against, "throughput"), {}
    exec(python_of(ours.operation()), space)
    answer = what_if.cached(ours)
    assert space["result"].text() == answer.text()
    words = shlex.split(request.command_of(ours.operation()))[1:]
    with pytest.raises(SystemExit) as stopped:
        main.main(words)
    assert stopped.value.code == 0
    told = capsys.readouterr().out
    assert answer.verdict
    assert all(f"  {line}\n" in told for line in answer.verdict)


#: how the verdict of each question begins
VERDICTS = {
    "sensitivity": "nqkv at 4 at once: ",
    "doubt": "nqkv at 4 at once: ",
    "cross": "From which batch on nqkv pays against fp16: ",
    "map": "Best of 4 batches and prompts: ",
}
DESIGNS = {"designs": "device.oaken-lpddr~model.llama2-7b~quantizer.nqkv", "batch": "4", "input": "64", "output": "128"}


def test_each_figure_is_drawn_when_it_is_chosen_below_its_verdict(monkeypatch):
    tables = {}
    monkeypatch.setattr(downloads, "show", lambda name, chart, table, *_, **__: tables.update({name: table()}))
    app = opened("why", why="what-if", **DESIGNS)
    for what in what_if.WHAT.choices:
        tables.clear()
        tab_of(app, "what_if").set_value(what).run()
        assert not app.exception
        assert {name.partition("-")[0] for name in tables} == {what}
        assert all(len(table) for table in tables.values())
        assert VERDICTS[what] in said(app)
    app.selectbox(key="measure").select("step").run()
    assert not app.exception
    assert "".join(app.query_params["measure"]) == "step"


def test_the_verdict_is_the_answers():
    """Of the design that is being changed, against what it is compared with, as `dse ask sensitivity` says it."""
    app = opened("why", why="what-if", **DESIGNS)
    point = asked(device="oaken-lpddr", quantizer="nqkv", batch=4, input=64, output=128, admission=None)
    ours = what_if.WhatIf("sensitivity", point, request.with_quantizer(point, "fp16"), "throughput")
    for line in what_if.cached(ours).verdict:
        assert line in said(app)
        assert f"  {line}" in what_if.cached(ours).text()


def test_verdicts_of_searches_count_what_their_tables_hold():
    ours = what_if.WhatIf("cross", NQKV, FP16, "throughput")
    answer = what_if.cached(ours)
    for line, verdict in zip((answer.from_batch, answer.from_input), answer.verdict, strict=True):
        for one in line:
            assert f"{one.at:,}" in verdict.partition(": ")[2]
        if line[0].pays_from and line[0].pays_from > line[0].runs[0].first:
            assert f"from {line[0].pays_from:,} on" in verdict
    best = what_if.cached(replace(ours, what="map"))
    counts = best.table["best"].value_counts()
    for name, n in counts.items():
        assert f"{name} in {n:,}" in best.verdict[0]
    assert f"Best of {len(best.cells)} batches and prompts" in best.verdict[0]


def test_where_the_current_design_is_what_is_beaten_that_of_another_is_asked_for():
    """On a first visit, whose current design is fp16: where does fp8, the second, pay against it?"""
    app = opened("why", why="what-if")
    assert not app.exception
    assert "fp8 at 127 at once: " in said(app)
    assert "sure that fp8 is better" in said(app)
    alone = opened("why", why="what-if", designs="quantizer.fp16")
    assert "fp8 at 127 at once: " in said(alone)
