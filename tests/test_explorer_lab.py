"""The quantizer lab without a browser: every widget moved, what is shown is what the commands give."""

import gc
import io
import json
import shlex
import weakref

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from dse import cli, measure_view
from dse.errors import InputError
from dse.explorer import lab, lab_dump, launch
from dse.measure_view import How


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


def test_the_commands_shown_measure_the_same(sample, tmp_path, monkeypatch, capsys):
    asked = lab.Asked(sample.sha256, "oaken", How())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dse.report_measure.write", lambda *_: "no figures")
    commands = [shlex.split(text)[1:] for text in lab.command(sample, asked).split(" && ")]
    assert [words[0] for words in commands] == ["synthesize", "synthesize", "thresholds", "measure"]
    for words in commands:
        more = ["--static", "matplotlib", "--contexts", "320", "--json"] if words[0] == "measure" else []
        with pytest.raises(SystemExit) as stopped:
            cli.main([*words, *more])
        assert stopped.value.code == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    whole = lab.cached_measured(sample, asked).errors
    whole = whole[whole["layer"].isna()].set_index("side")
    for row in told["rows"]:
        for column in ("sqnr_db", "mse", "output_error"):
            if row[column] is not None:
                assert row[column] == pytest.approx(whole.loc[row["side"], column], rel=1e-12)


def test_a_dump_is_read_by_its_bytes_and_named_by_its_file():
    buffer = io.BytesIO()
    np.savez(buffer, k_0=np.ones((1, 1, 4, 8), np.float16))
    label, held = lab_dump.read("../../etc/keys.npz", buffer.getbuffer())
    assert (label, held.name) == ("keys.npz (loaded)", "keys.npz")
    assert held.indices == [0]
    with pytest.raises(InputError, match=r"x\.txt: must end in"):
        lab_dump.read("x.txt", b"")
    with pytest.raises(InputError) as caught:
        lab_dump.read("broken.npz", b"PK")
    assert str(caught.value).startswith("broken.npz: ")


def test_a_dump_is_freed_when_its_session_was_left(monkeypatch):
    """Nothing but the session's own dictionary holds a dump: with that emptied, its arrays are gone."""
    held = measure_view.sample()
    seen = weakref.ref(held)
    asked = lab.Asked("another", "nqkv", How())
    lab.cached_measured(held, asked)
    lab.cached_view(held, asked)
    dumps = {"own.npz (loaded)": held}
    del held
    gc.collect()
    assert seen() is not None
    lives = iter([True, False, True, False, False, False])  # looked at every 15 s: away once, back, then left
    monkeypatch.setattr(lab_dump.time, "sleep", lambda _: None)
    lab_dump.free_when_left(dumps, lambda: next(lives), look_s=15.0)
    assert seen() is None
    assert list(lives) == []
    assert dumps == {}


def test_a_dump_is_looked_after_until_another_takes_its_place(monkeypatch):
    dumps = {"own.npz (loaded)": None}
    monkeypatch.setattr(lab_dump.time, "sleep", lambda _: dumps.clear())
    lab_dump.free_when_left(dumps, lambda: True)
    assert dumps == {}


def test_a_session_may_return_for_as_long_as_streamlit_keeps_it():
    assert launch.SETTINGS["server.disconnectedSessionTTL"] == lab_dump.RETURN_S


def test_the_page_runs_and_follows_its_widgets():
    app = AppTest.from_string("from dse.explorer import lab; lab.render()", default_timeout=120)
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
