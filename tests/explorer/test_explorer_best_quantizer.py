"""The page "Where does it pay" without a browser."""

import shlex
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from dse.cli import main as cli
from dse.explorer import request
from dse.explorer.pages import best_quantizer as where

ASKED = where.Asked(
    request.of({
        "device": "oaken-lpddr", "quantizer": "nqkv", "batch": 4, "input": 64, "output": 64, "model_kind": "ideal"
    }),
    ("fp16", "nqkv"), "fp16", "throughput",
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("few_cells")
PLAN = "".join(f'[[layers]]\nlayer = {i}\nkey = "kivi"\nvalue = "fp16"\n' for i in range(32))
LABEL = "p.toml (loaded plan)"
WITH_PLAN = replace(ASKED, quantizers=("fp16", LABEL), against=LABEL, files=((LABEL, ("p.toml", PLAN)),))


@pytest.mark.parametrize("asked", [ASKED, WITH_PLAN], ids=["names", "plan"])
@pytest.mark.parametrize("question", ["map", "sensitivity", "cross"])
def test_command_and_python_shown_ask_the_same_question(question, asked, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PLAN)
    space = {}
    exec(where.python(asked, question), space)
    ours = {"map": where.cached_map, "sensitivity": where.cached_sensitivity, "cross": where.cached_lines}[question]
    if question != "map":  # of which the command takes no cells
        assert space["result"].text() == ours(asked).text()
    words = shlex.split(where.commands(asked)[question])[1:]
    if question == "map":
        words += ["--batches", "1,4", "--inputs", "64,128"]
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 0
    told = capsys.readouterr().out.split("\n\n")
    assert told[0] in space["result"].text()


def test_the_page_runs_and_follows_its_widgets():
    app = AppTest.from_string(
        "from dse.explorer.pages import best_quantizer as where; where.render()", default_timeout=120
    )
    for key, value in (("device", "oaken-lpddr"), ("batch", "4"), ("output", "128"), ("quantizer", "nqkv")):
        app.query_params[key] = value
    app.run()
    assert not app.exception
    app.selectbox(key="where_measure").select("step")
    app.multiselect(key="where_quantizers").set_value(["nqkv", "fp16"]).run()
    assert not app.exception
    assert app.query_params["where_measure"] == "step"
    app.selectbox(key="where_against").select("nqkv").run()
    assert not app.exception
    assert any("is the same as the quantizer" in text.value for text in app.text)
    app.multiselect(key="where_quantizers").set_value([]).run()
    assert not app.exception
    assert any("must name at least one" in text.value for text in app.text)
