"""The quantizer lab without a browser: every widget moved, what is shown is what the commands give."""

import io
import shlex
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from dse.cli import main as cli
from dse.core import files
from dse.core.errors import InputError
from dse.explorer.pages import lab
from dse.measure import lab as measure_view
from dse.measure.lab import How


@pytest.fixture(scope="module")
def sample():
    return measure_view.sample()


def test_the_python_shown_gives_what_the_page_shows(sample):
    asked = lab.Asked(sample.sha256, "nqkv", How(), "value", 2, 1, 300)
    space = {}
    exec(lab.python(sample, asked, "measured"), space)
    shown = lab.cached_measured(sample, asked)
    assert space["result"].errors.equals(shown.errors)
    exec(lab.python(sample, asked, "view"), space)
    view = lab.cached_view(sample, asked)
    assert np.array_equal(space["result"].after, view.after)
    assert view.before.shape == (20, 128)


def test_the_command_shown_writes_what_the_page_shows(sample, tmp_path, monkeypatch):
    asked = lab.Asked(sample.sha256, "nqkv", How(), "value", 2, 1, 300, "mse")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main(shlex.split(lab.command(sample, asked))[1:])
    assert stopped.value.code == 0
    shown, view = lab.cached_measured(sample, asked), lab.cached_view(sample, asked)
    for name, table in (("bits", shown.ledger), ("errors", shown.errors), ("histogram", view.histogram)):
        assert (tmp_path / "lab" / f"{name}.csv").read_bytes() == files.csv_of(table), name
    values = pd.read_csv(tmp_path / "lab" / "values.csv")
    assert values["after"].tolist() == view.after[:, : lab.MAX_CHANNELS].ravel().tolist()
    own = lab.command(replace(sample, name="own.npz", thresholds=None), replace(asked, how=How(4, "replace")))
    assert own.startswith("dse lab own.npz --method nqkv")
    assert "--heads 4 --nonfinite replace --out lab" in own


def test_a_dump_is_read_by_its_bytes_and_named_by_its_file():
    buffer = io.BytesIO()
    np.savez(buffer, k_0=np.ones((1, 1, 4, 8), np.float16))
    label, held = lab.read_dump("../../etc/keys.npz", buffer.getbuffer())
    assert (label, held.name) == ("keys.npz (loaded)", "keys.npz")
    assert held.indices == [0]
    with pytest.raises(InputError, match=r"x\.txt: must end in"):
        lab.read_dump("x.txt", b"")
    with pytest.raises(InputError) as caught:
        lab.read_dump("broken.npz", b"PK")
    assert str(caught.value).startswith("broken.npz: ")


def test_the_page_runs_and_follows_its_widgets():
    app = AppTest.from_string("from dse.explorer.pages import lab; lab.render()", default_timeout=120)
    app.query_params["lab_quantizer"] = "nqkv"
    app.run()
    assert not app.exception
    assert "Synthetic data" in app.warning[0].value
    assert [metric.value for metric in app.metric][:3] == ["4.062 bit", "4.062 bit", "4.062 bit"]
    app.selectbox(key="lab_side").select("value")
    app.selectbox(key="lab_error").select("output_error")
    app.number_input(key="lab_layer").set_value(3)
    app.number_input(key="lab_head").set_value(1)
    app.number_input(key="lab_first").set_value(256)
    app.number_input(key="lab_heads").set_value(4)
    app.checkbox(key="lab_replace").check()
    app.text_input(key="lab_parameters").set_value("block=64").run()
    assert not app.exception
    assert app.query_params["lab_parameters"] == "block=64"
    assert app.metric[0].value == "4.25 bit"
    app.selectbox(key="lab_quantizer").select("fp8").run()
    assert not app.exception
    assert "lab_parameters" not in app.query_params
    app.number_input(key="lab_head").set_value(9).run()
    assert any("head = 9: must be 0 to 1" in text.value for text in app.text)
    app.text_input(key="lab_parameters").set_value("format=e9m9").run()
    assert any("e9m9" in text.value for text in app.text)
    assert not app.metric
    assert not app.exception
