"""What keeps the explorer quick and small: figures that plotly need not check, garbage, dumps of sessions left."""

import gc
import json
import weakref
from dataclasses import asdict

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
import pytest
from streamlit.testing.v1 import AppTest

from dse.explorer import app as explorer
from dse.explorer import figure, launch, own_file, request, serving
from dse.explorer.pages import answer
from dse.explorer.why import time, what_if
from dse.explorer.why.form import cached_measured, cached_view, inspection
from dse.figures import FIGURES
from dse.figures.charts import lab
from dse.figures.plot.answer import chart_of
from dse.measure.lab import sample
from dse.questions import systems, tables
from dse.specs import catalog
from dse.validate import silicon
from explorer_page import TIMEOUT_S, asked


def _best_map():
    ours = what_if.WhatIf("map", asked(batch=1, input=1), asked(quantizer="fp16", batch=1, input=1), "throughput")
    return figure.cells(chart_of(what_if.cached(ours)))


def _silicon():
    return figure.tall(FIGURES["silicon_errors"].chart(pd.DataFrame(map(asdict, silicon.recorded_rows("A100-80GB")))))


def _values():
    part = np.arange(6.0).reshape(2, 3)
    return figure.map_of(lab.values(part, 0, "value", lab.scale("value", "", part, part), "Before"))


def _speeds():
    return figure.speeds(answer.cached_speeds((("mine", request.any_load(asked())),), ()), [("mine", _result())])


def _result():
    return request.answer(asked(), request.LoadRequest(amount=64)).result


def _labelled():
    table = tables.one(
        "results", tables.ReportRequest(systems.DEFAULT[:2], (catalog.model("llama2-7b"),), (1, 2), 64, 64)
    )
    return FIGURES["throughput_capacity"].chart(table)


#: each way in which pages draw a chart
DRAWN = {
    "fitted": lambda: figure.fitted(_speeds()),
    "labelled": lambda: figure.fitted(_labelled()),
    "map_of": _values,
    "cells": _best_map,
    "tall": _silicon,
}


@pytest.mark.parametrize("name", list(DRAWN))
def test_plotly_would_take_the_figures_that_it_does_not_check(name):
    drawn = DRAWN[name]()
    checked = json.loads(pio.to_json(go.Figure(drawn).to_dict(), validate=False))
    del checked["layout"]["template"]  # in whose place Streamlit puts its own
    unchecked = json.loads(pio.to_json(figure.Plain(drawn).to_dict(), validate=False))
    for axis in (found["layout"].get("coloraxis", {}) for found in (checked, unchecked)):
        axis["colorscale"] = [(round(at, 9), color) for at, color in axis.get("colorscale", [])]
    assert unchecked == checked


def test_hollow_marks_have_the_color_of_the_page():
    table = pd.DataFrame(map(asdict, silicon.recorded_rows("A100-80GB")))
    both = tuple((name, request.with_quantizer(asked(), name)) for name in ("fp16", "oaken"))
    for drawn in (
        figure.tall(FIGURES["silicon_errors"].chart(table)),
        figure.fitted(FIGURES["operations"].chart(time.cached_table(both))),
    ):
        faces = [
            str(trace["marker"]["color"]) for trace in drawn["data"] if trace["type"] == "scatter" and "marker" in trace
        ]
        assert not any("white" in face for face in faces)
    assert any(figure.CLEAR in face for face in faces)


def test_after_its_first_run_a_session_searches_only_what_is_new_for_garbage(monkeypatch):
    monkeypatch.setattr(explorer, "SEARCHED_RUNS", 10**9)
    gc.unfreeze()
    try:
        app = AppTest.from_file(serving.SCRIPT, default_timeout=TIMEOUT_S).run()
        assert gc.get_freeze_count() == 0
        app.run()
        assert gc.get_freeze_count() > 0
        monkeypatch.setattr(explorer, "SEARCHED_RUNS", 1)
        app.run()  # one of many searches all again
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()


@pytest.mark.slow
def test_a_dump_is_freed_when_its_session_was_left(monkeypatch):
    """Nothing but the session's own dictionary holds a dump: with that emptied, its arrays are gone."""
    held = sample()
    seen = weakref.ref(held)
    cached_measured(held, "nqkv")
    cached_view(held, inspection(held, "nqkv"))
    own = {"own.npz (loaded)": held}
    del held
    gc.collect()
    assert seen() is not None
    lives = iter([True, False, True, False, False, False])  # looked at every 15 s: away once, back, then left
    monkeypatch.setattr(own_file.time, "sleep", lambda _: None)
    own_file.free_when_left(own, lambda: next(lives), look_s=15.0)
    assert seen() is None
    assert list(lives) == []
    assert own == {}


def test_a_dump_is_looked_after_until_another_takes_its_place(monkeypatch):
    own = {"own.npz (loaded)": None}
    monkeypatch.setattr(own_file.time, "sleep", lambda _: own.clear())
    own_file.free_when_left(own, lambda: True)
    assert own == {}


def test_a_session_may_return_for_as_long_as_streamlit_keeps_it():
    assert launch.SETTINGS["server.disconnectedSessionTTL"] == own_file.RETURN_S
