"""The page "Formats" without a browser: what opens, what is asked, what follows the widgets."""

import shlex

import pytest

from dse.cli import main
from dse.explorer import common_fields, downloads, request, tray
from dse.explorer.pages import formats
from dse.operations.face import python_of
from explorer_page import opened, said, wrong

ASKED = request.unquantized(request.point_request({"device": "h200", "model": "qwen3-32b", "batch": 4, "input": 1024}))
NAMES = ("fp8", "qserve")


def test_it_answers_with_figure_and_table():
    app = opened("formats")
    assert not app.exception
    assert app.title[0].value == "Which KV format pays?"
    answer = formats.cached(request.unquantized(request.point_request({})), ())
    assert "fp8 pays" in said(app)
    assert not [text.value for text in app.info if "Limits" in text.value]
    table = app.dataframe[0].value
    assert table["format"].tolist() == [one.name for one in answer.formats]
    assert table["gain"].iloc[1].startswith("1.")
    assert " to " in table["gain"].iloc[1]
    titles = {text.value for text in app.subheader}
    assert {"Throughput over 16 bits", "Requests that fit at once", "Energy"} < titles
    assert any("not your model" in text.value and "Left out" in text.value for text in app.caption)


def test_limits_of_the_workload_are_said_not_to_count():
    app = opened("formats", formats="fp8", batch="4", input="1024", tpot_limit="20")
    assert not app.exception
    assert any("Limits on TTFT and TPOT do not count on this page" in text.value for text in app.info)


def test_the_downloads_of_its_figures_have_the_numbers(monkeypatch):
    tables = []
    monkeypatch.setattr(downloads, "show", lambda name, chart, table, *given, **more: tables.append(table()))
    app = opened("formats", formats="fp8;qserve", batch="4", input="1024")
    assert not app.exception
    assert tables
    assert all({"fp16", "fp8"} <= {*table["format"]} for table in tables)


@pytest.mark.slow
def test_it_follows_its_widgets_and_says_what_is_wrong_in_a_line():
    app = opened("formats", formats="fp8;qserve", batch="1", input="1024")
    assert not app.exception
    assert app.dataframe[0].value["format"].tolist()[0] == "fp16"
    assert "No format pays here: fp8 comes nearest with 1.00 times" in said(app)
    app.number_input(key="batch").set_value(64).run()
    app.number_input(key="input").set_value(8192).run()
    assert "fp8 pays" in said(app)
    app.selectbox(key="device").select("a100-80gb").run()
    assert not app.exception
    assert "".join(app.query_params["designs"]).startswith("device.a100-80gb~~")
    app.multiselect(key="formats").set_value(["fp8_ds_mla"]).run()
    assert not app.exception
    assert any("latent" in line for line in wrong(app))


def test_chosen_formats_join_the_tray():
    app = opened("formats", batch="1", input="1024")
    values = tray.values_of(tray.TrayDesign(values={"tp": 2, "parameters": "x=1"}), common_fields.DESIGN)
    added = formats.designs_of(values, ["fp8", "kivi"])
    assert [design.values for design in added] == [{"quantizer": "fp8", "tp": 2}, {"quantizer": "kivi", "tp": 2}]
    assert next(button for button in app.button if "Choose rows" in button.label).disabled


@pytest.mark.parametrize("names", [NAMES, ()])
@pytest.mark.slow
def test_command_and_python_shown_ask_the_same(names, capsys):
    space = {}
    exec(python_of(formats.operation(ASKED, names)), space)
    ours = formats.cached(ASKED, names).text()
    assert space["result"].text() == ours
    with pytest.raises(SystemExit) as stopped:
        main.main(shlex.split(request.command_of(formats.operation(ASKED, names)))[1:])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == ours + "\n"
