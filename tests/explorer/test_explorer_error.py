"""Quantization errors of the page Why, without a browser: what is shown is what the commands give."""

import io
import shlex
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dse import quantizers
from dse.cli import main
from dse.core import files
from dse.core.errors import InputError
from dse.explorer import downloads, request, uploads
from dse.explorer.why import dumps, load
from dse.explorer.why.form import cached_measured, cached_view, how_of, inspection
from dse.figures.export.lab import MAX_CHANNELS
from dse.measure import lab
from dse.measure.lab import ReadOptions
from dse.specs import measurements
from explorer_page import asked, opened, plain, said, tab_of, wrong


@pytest.fixture(scope="module")
def sample():
    return lab.sample()


def test_the_python_shown_gives_what_the_page_shows(sample):
    chosen = inspection(sample, "nqkv", ReadOptions(), side="value", layer=2, head=1, first=300)
    space = {}
    exec(downloads.made_by([chosen], "", part=".measured").python, space)
    shown = cached_measured(sample, "nqkv", ReadOptions())
    assert space["result"].errors.equals(shown.errors)
    exec(downloads.made_by([chosen], "", part=".view").python, space)
    view = cached_view(sample, chosen)
    assert np.array_equal(space["result"].after, view.after)
    assert view.before.shape == (84, 64)  # from token 300 of 384


def test_the_command_shown_writes_what_the_page_shows(sample, tmp_path, monkeypatch):
    chosen = inspection(sample, "nqkv", ReadOptions(), side="value", layer=2, head=1, first=300, error="mse")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main.main(shlex.split(request.command_of(chosen))[1:])
    assert stopped.value.code == 0
    shown, view = cached_measured(sample, "nqkv", ReadOptions()), cached_view(sample, chosen)
    for name, table in (("bits", shown.ledger), ("errors", shown.errors), ("histogram", view.histogram)):
        assert (tmp_path / "lab" / f"{name}.csv").read_bytes() == files.csv_of(table), name
    values = pd.read_csv(tmp_path / "lab" / "values.csv")
    assert values["after"].tolist() == view.after[:, :MAX_CHANNELS].ravel().tolist()
    own = request.command_of(
        inspection(replace(sample, name="own.npz", thresholds_file=None), "nqkv", ReadOptions(4, "replace"))
    )
    assert own.startswith("dse lab own.npz --quantizer nqkv")
    assert own.endswith("--heads 4 --nonfinite replace")


@pytest.mark.parametrize(("asked", "how"), [(False, "raise"), (True, "replace")])
def test_values_that_are_no_numbers_are_replaced_only_where_asked(asked, how):
    found = how_of({"lab_heads": 4, "lab_replace": asked})
    assert (found.n_heads, found.nonfinite) == (4, how)


def test_a_dump_is_read_by_its_bytes_and_named_by_its_file():
    buffer = io.BytesIO()
    np.savez(buffer, k_0=np.ones((1, 1, 4, 8), np.float16))
    label, held = dumps.read_dump("../../etc/keys.npz", buffer.getbuffer())
    assert (label, held.name) == ("keys.npz (loaded)", "keys.npz")
    assert held.indices == [0]
    with pytest.raises(InputError, match=r"x\.txt: must end in"):
        dumps.read_dump("x.txt", b"")
    with pytest.raises(InputError) as caught:
        dumps.read_dump("broken.npz", b"PK")
    assert str(caught.value).startswith("broken.npz: ")


def shown(**query):
    """The tab with that query."""
    return opened("why", why="error", **query)


def verdict(app):
    return plain(next(text.value for text in app.markdown if "bits an element" in text.value))


def title(app):
    return plain(app.subheader[-1].value)


def test_the_page_runs_and_follows_its_widgets():
    app = shown(lab_compared="nqkv; fp8:format=e5m2")
    assert not app.exception
    assert "not your model" in verdict(app)
    assert app.dataframe[0].value["format"].tolist() == ["nqkv", "fp8:format=e5m2"]
    assert app.dataframe[0].value["stored bits"].tolist() == [4.0833, 8]  # 4 + 16 / 192
    assert title(app) == "Bits an element as nqkv stores them"
    tab_of(app, "lab_view").set_value("errors").run()
    app.selectbox(key="lab_side").select("value")
    app.selectbox(key="lab_error").select("output_error").run()
    assert title(app) == "Attention output error by layer and head, values, nqkv"
    tab_of(app, "lab_view").set_value("maps").run()
    app.number_input(key="lab_layer").set_value(3)
    app.number_input(key="lab_head").set_value(1)
    app.number_input(key="lab_first").set_value(256)
    app.number_input(key="lab_heads").set_value(4)
    app.checkbox(key="lab_replace").check()
    app.text_input(key="lab_compared").set_value("nqkv:block=64").run()
    assert not app.exception
    assert "nqkv:block=64 stores 4.25 bits an element" in verdict(app)
    assert "Tokens 256 to 383 of 384" in said(app)
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
        run = cached_measured(sample, name, ReadOptions())
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


def test_what_was_measured_joins_the_tray_by_one_click(sample):
    """Errors on the card are those of this dump: its file holds what `dse measure` would write."""
    app = shown(lab_compared="nqkv; kivi:bits=4")
    app.button(key="lab add").click().run()
    assert not app.exception
    assert [plain(label) for label in app.sidebar.radio[0].options][3:] == [
        "nqkv, smollm2.lab.json",
        "kivi:bits=4, smollm2.lab.json",
    ]
    assert app.selectbox(key="measurements").value == "smollm2.lab.json (loaded measurement)"
    assert (app.selectbox(key="quantizer").value, app.text_input(key="parameters").value) == ("kivi", "bits=4")
    names = ("nqkv", "kivi:bits=4")
    found = {name: cached_measured(sample, name, ReadOptions()) for name in names}
    content = measurements.to_json(lab.measurement_of(sample, found))
    upload, _ = uploads.read("own.json", content)
    shipped = measurements.Bits(file=upload.measured).attached(quantizers.parse("nqkv"))
    table = lab.compared(found).set_index("quantizer")
    one = replace(asked(quantizer="nqkv"), measurements="x", measurements_file=upload)
    assert shipped is not None
    assert request.answer(one, request.LoadRequest()).result["measured_error"] == pytest.approx(
        table["output_error"]["nqkv"]
    )


def test_a_dump_is_read_where_it_lies_a_layer_at_a_time(tmp_path, monkeypatch):
    path = tmp_path / "large.npz"
    draw = np.random.default_rng(1).standard_normal
    sides = ("key", "value")
    arrays = {f"layer{i}.{side}": draw((1, 2, 64, 64)).astype(np.float16) for i in range(3) for side in sides}
    np.savez(path, **arrays)
    whole, lazy = (lab.hold(path, on_disk=on_disk) for on_disk in (False, True))
    assert isinstance(lazy.tensors, lab.OnDisk)
    assert (list(lazy.tensors), len(lazy.queries)) == ([0, 1, 2], 0)
    assert np.array_equal(lazy.tensors[2]["value"], arrays["layer2.value"])
    spec = quantizers.parse("nqkv")
    assert lab.measured(lazy, spec, ReadOptions()).errors.equals(lab.measured(whole, spec, ReadOptions()).errors)
    monkeypatch.setattr(load, "serves_this_machine_alone", lambda: True)
    app = shown(lab_compared="nqkv")
    app.text_input(key="explorer dump path").set_value(str(path)).run()
    assert not app.exception
    assert app.selectbox(key="lab_data").value == "large.npz (loaded)"
    assert "(large.npz, 3 layers)" in verdict(app)
    assert str(tmp_path) not in "".join("".join(text) for text in app.query_params.values())
    for bad, words in (("x.npz", "is no file of this machine"), ("x.txt", "must end in .npz or .safetensors")):
        app.text_input(key="explorer dump path").set_value(str(tmp_path / bad)).run()
        assert any(words in line for line in wrong(app))
    assert not app.exception


@pytest.mark.parametrize(("address", "is_alone"), [("127.0.0.1", True), ("0.0.0.0", False), (None, False)])
def test_no_path_is_asked_for_where_others_reach_the_explorer(address, is_alone, monkeypatch):
    monkeypatch.setattr(load.st, "get_option", lambda name: address)
    assert load.serves_this_machine_alone() is is_alone
