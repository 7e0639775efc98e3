"""Quantization errors of the page Why, without a browser: what is shown is what the commands give."""

import io
import shlex
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dse.cli import main
from dse.core import files
from dse.core.errors import InputError
from dse.explorer import downloads, request, uploads
from dse.explorer.why import dumps
from dse.explorer.why.form import cached_measured, cached_view, inspection
from dse.figures.export.lab import MAX_CHANNELS
from dse.measure import lab
from dse.specs import measurements
from explorer_page import asked, opened, plain, said, tab_of, wrong


@pytest.fixture(scope="module")
def sample():
    return lab.sample()


def test_the_python_shown_gives_what_the_page_shows(sample):
    chosen = inspection(sample, "nqkv", side="value", layer=2, head=1, first=300)
    space = {}
    exec(downloads.made_by([chosen], "", part=".measured").python, space)
    shown = cached_measured(sample, "nqkv")
    assert space["result"].errors.equals(shown.errors)
    exec(downloads.made_by([chosen], "", part=".view").python, space)
    view = cached_view(sample, chosen)
    assert np.array_equal(space["result"].after, view.after)
    assert view.before.shape == (84, 64)  # from token 300 of 384


def test_the_command_shown_writes_what_the_page_shows(sample, tmp_path, monkeypatch):
    chosen = inspection(sample, "nqkv", side="value", layer=2, head=1, first=300, error="mse")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main.main(shlex.split(request.command_of(chosen))[1:])
    assert stopped.value.code == 0
    shown, view = cached_measured(sample, "nqkv"), cached_view(sample, chosen)
    for name, table in (("bits", shown.ledger), ("errors", shown.errors), ("histogram", view.histogram)):
        assert (tmp_path / "lab" / f"{name}.csv").read_bytes() == files.csv_of(table), name
    values = pd.read_csv(tmp_path / "lab" / "values.csv")
    assert values["after"].tolist() == view.after[:, :MAX_CHANNELS].ravel().tolist()
    own = request.command_of(inspection(replace(sample, name="own.npz", thresholds_file=None), "nqkv"))
    assert own.startswith("dse lab own.npz --quantizer nqkv")


def given(name, content):
    """A file as Streamlit gives it."""
    return SimpleNamespace(name=name, getvalue=lambda: content)


def test_a_dump_is_read_by_its_bytes_and_named_by_its_file():
    buffer = io.BytesIO()
    np.savez(buffer, k_0=np.ones((1, 1, 4, 8), np.float16))
    dumps.OWN.keep(given("../../etc/keys.npz", buffer.getvalue()))
    name, held = dumps.OWN.held()
    assert (name, held.name) == ("keys.npz", "keys.npz")
    assert held.indices == [0]
    with pytest.raises(InputError, match=r"x\.txt: must end with"):
        dumps.OWN.keep(given("x.txt", b""))
    with pytest.raises(InputError) as caught:
        dumps.OWN.keep(given("broken.npz", b"PK"))
    assert str(caught.value).startswith("broken.npz: ")


def shown(**query):
    """The tab with that query."""
    return opened("why", why="error", **query)


def verdict(app):
    return plain(next(text.value for text in app.markdown if "bits an element" in text.value))


def title(app):
    return plain([text.value for text in app.main.markdown if text.value.startswith("**")][-1].strip("*"))


def test_the_page_runs_and_follows_its_widgets():
    app = shown(lab_compared="nqkv; fp8:format=e5m2")
    assert not app.exception
    assert "not your model" in verdict(app)
    assert app.dataframe[0].value["format"].tolist() == ["nqkv", "fp8:format=e5m2"]
    assert app.dataframe[0].value["stored bits"].tolist() == [4.083, 8]  # 4 + 16 / 192
    assert title(app) == "Bits an element as nqkv stores them"
    tab_of(app, "lab_view").set_value("errors").run()
    app.selectbox(key="lab_side").select("value")
    app.selectbox(key="lab_error").select("output_error").run()
    assert title(app) == "Attention output error by layer and head, values, nqkv"
    tab_of(app, "lab_view").set_value("maps").run()
    app.number_input(key="lab_layer").set_value(3)
    app.number_input(key="lab_head").set_value(1)
    app.text_input(key="lab_compared").set_value("nqkv:block=64").run()
    assert not app.exception
    assert "nqkv:block=64 stores 4.25 bits an element" in verdict(app)
    assert "Tokens 0 to 255 of 384" in said(app)
    tab_of(app, "lab_view").set_value("histogram").run()
    assert title(app) == "Values before and after nqkv:block=64, layer 3, head 1, values"
    app.number_input(key="lab_head").set_value(9).run()
    assert any("head = 9: must be 0 to 2" in line for line in wrong(app))
    for text, part in (("fp8:format=e9m9", "e9m9"), ("fp16", "has no kernel")):
        app.text_input(key="lab_compared").set_value(text).run()
        assert any(part in line for line in wrong(app))
    assert not app.exception


def test_the_verdict_has_the_numbers_of_measuring(sample):
    app = shown(lab_compared="fp8; nqkv")
    for name in ("fp8", "nqkv"):
        run = cached_measured(sample, name)
        row = lab.compared({name: run}).iloc[0]
        words = f"{name} stores {row['stored_bits']:.4g} bits an element, its attention is "
        assert f"{words}{100 * row['output_error']:.3g} % off" in verdict(app)


def test_without_a_choice_the_formats_of_the_designs_are_compared_the_current_first():
    """Of those that a kernel runs; 16 bits have none."""

    def compared(designs, **more):
        return shown(designs=designs, **more).dataframe[0].value["format"].tolist()

    assert compared("quantizer.fp16~~quantizer.nqkv~~quantizer.kivi~parameters.bits=4", at="3") == [
        "kivi:bits=4",
        "nqkv",
    ]
    assert compared("quantizer.int8~value_quantizer.nqkv") == ["int8", "nqkv"]
    assert compared("quantizer.fp16") == ["fp8"]


def test_the_measurement_file_gives_designs_the_errors_of_this_dump(sample):
    """It holds what `dse measure` would write."""
    names = ("nqkv", "kivi:bits=4")
    found = {name: cached_measured(sample, name) for name in names}
    upload, _ = uploads.read("own.json", measurements.to_json(lab.measurement_of(sample, found)))
    table = lab.compared(found).set_index("quantizer")
    one = replace(asked(quantizer="nqkv"), measurements="x", measurements_file=upload)
    assert request.answer(one, request.LoadRequest()).result["measured_error"] == pytest.approx(
        table["output_error"]["nqkv"]
    )
    app = shown(lab_compared="nqkv; kivi:bits=4")
    assert [one.label for one in app.get("download_button") if one.label == "Measurement file"]
