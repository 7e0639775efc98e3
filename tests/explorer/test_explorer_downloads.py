"""What stands beside a figure of the explorer: Python that runs, files that say what made them."""

import io
import re
from xml.etree import ElementTree

import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from dse.explorer import downloads, export, request
from dse.explorer.downloads import MadeBy
from dse.figures.charts import design_bars
from dse.figures.export import image
from dse.figures.export.look import applied
from dse.operations.face import python_of
from dse.specs.look import ASKED, Look
from explorer_page import TIMEOUT_S, opened, said


def test_python_beside_a_figure_runs_and_gives_the_result():
    asked = request.point_request(
        {"quantizer": "kivi", "parameters": "bits=4", "value_quantizer": "fp16", "batch": 8, "admission": "paged"}
    )
    found = {}
    exec(python_of(request.operation(asked)), found)
    assert found["result"] == request.answer(asked, request.LoadRequest(amount=8)).result


MADE = MadeBy("dse point --device a100-80gb\ndse point --device h100", "", "/?batch=64")
SAID = "dse point --device a100-80gb; dse point --device h100 (explorer: /?batch=64)"
ROWS = [("oaken", request.answer(request.DEFAULT, request.LoadRequest()).result)]


def texts_of_png(content):
    """What a picture says of itself, by name."""
    return Image.open(io.BytesIO(content)).text


def state_in(kind, content):
    """What a file says made it, read back as its format keeps it."""
    if kind == "png":
        return texts_of_png(content)["Source"]
    if kind == "svg":
        place = "{http://purl.org/dc/elements/1.1/}source"
        return next(ElementTree.fromstring(content).iter(place)).text
    if kind == "pdf":
        return re.search(rb"/Subject \(Made by: ((?:[^()\\]|\\.)*)\)", content)[1].decode().replace("\\", "")
    if kind == "csv":
        table = pd.read_csv(io.BytesIO(content))
        assert table["kv_bytes"][0] == ROWS[0][1]["kv_bytes"]
        return table["made_by"][0]
    table = pq.read_table(io.BytesIO(content))
    assert table["kv_bytes"][0].as_py() == ROWS[0][1]["kv_bytes"]
    return table.schema.metadata[b"made_by"].decode()


@pytest.mark.parametrize("kind", list(export.FORMATS))
def test_files_of_a_figure_open_and_carry_their_state(kind):
    content = downloads.content(design_bars.memory(ROWS), lambda: design_bars.table(ROWS), kind, MADE)
    assert state_in(kind, content) == SAID


FIGURE = """
from functools import partial
from dse.explorer import downloads, export, request
from dse.figures.charts import design_bars
from dse.operations.face import python_of
rows = [("oaken", request.answer(request.DEFAULT, request.LoadRequest()).result)]
made = downloads.MadeBy("dse point", "import dse", "/?batch=64")
table = partial(design_bars.table, rows)
"""
#: a figure, and its dialog alone: AppTest runs a whole script anew, where a browser runs the dialog
SHOWN = f'{FIGURE}downloads.show("memory", design_bars.memory(rows), table, made)'
OPENED = f"""{FIGURE}
export.show("memory", design_bars.memory(rows), partial(downloads.looking, table, made))
"""


@pytest.fixture
def dialog():
    """The dialog of a figure's export."""
    app = AppTest.from_string(OPENED, default_timeout=TIMEOUT_S).run()
    assert not app.exception
    return app


def test_a_button_beside_a_figure_opens_its_export():
    app = AppTest.from_string(SHOWN, default_timeout=TIMEOUT_S).run()
    assert not app.text_input
    app.button(key="memory export").click().run()
    assert not app.exception
    assert app.text_input(key="export memory title").label == "Title"


def red(app):
    """Lines that say what is wrong."""
    return [text.value for text in app.markdown if text.value.startswith(":red[")]


def buttons(app):
    """Download buttons of the dialog: name, and whether they make a file."""
    found = (element for element in app.get("download_button") if element.proto.id.count(" export "))
    return {element.proto.label: not element.proto.disabled for element in found}


def options(app):
    return next((code.value for code in app.code if code.value.startswith("--")), "")


def test_the_export_has_a_field_for_every_part_of_the_look(dialog):
    shown = [*dialog.text_input, *dialog.selectbox, *dialog.number_input, *dialog.checkbox]
    assert {element.label for element in shown} == {asked.label for asked in ASKED.values()}
    assert dialog.text_input(key="export memory title").placeholder == design_bars.memory(ROWS).title
    assert buttons(dialog) == dict.fromkeys(("PNG", "SVG", "PDF", "CSV", "Parquet"), True)
    assert (red(dialog), options(dialog)) == ([], "--preset report")
    assert dialog.get("image")[0].proto.imgs[0].alt == f"Preview: {design_bars.memory(ROWS).title}"


def test_the_preview_follows_the_fields_and_the_files_are_of_it(dialog, monkeypatch):
    drawn = []
    preview = image.preview
    monkeypatch.setattr(image, "preview", lambda chart, page: drawn.append((chart, page)) or preview(chart, page))
    dialog.selectbox(key="export preset").set_value("slide")
    dialog.selectbox(key="export legend").set_value("below")
    dialog.text_input(key="export memory title").set_value("Memory, mine")
    dialog.number_input(key="export font").set_value(20.0)
    dialog.checkbox(key="export shows_notes").uncheck().run()
    assert not dialog.exception
    wanted = Look(preset="slide", legend="below", title="Memory, mine", font=20.0, shows_notes=False)
    assert drawn == [applied(wanted, design_bars.memory(ROWS))]
    assert options(dialog) == wanted.options
    content = downloads.looking(lambda: design_bars.table(ROWS), MADE, *drawn[0], "png", wanted.options)
    assert texts_of_png(content)["Title"] == "Memory, mine"
    assert texts_of_png(content)["Source"] == f"{SAID} (drawn with {wanted.options})"
    rows = downloads.looking(lambda: design_bars.table(ROWS), MADE, *drawn[0], "csv", wanted.options)
    assert rows == downloads.content(drawn[0][0], lambda: design_bars.table(ROWS), "csv", MADE)


def test_what_no_figure_can_have_is_a_red_line_and_makes_no_picture(dialog):
    dialog.number_input(key="export font").set_value(0.0).run()
    assert red(dialog) == [":red[font = 0\\: must be a number from 4 to 60 pt]"]
    assert buttons(dialog) == {"PNG": False, "SVG": False, "PDF": False, "CSV": True, "Parquet": True}
    dialog.text_input(key="export memory title").set_value("x" * 400).run()
    assert len(red(dialog)) == 2
    assert "must be one line of at most 200 printable characters" in red(dialog)[0]
    dialog.text_input(key="export memory title").set_value("").run()
    dialog.number_input(key="export font").set_value(None).run()
    assert red(dialog) == []
    assert all(buttons(dialog).values())
    dialog.number_input(key="export font").set_value(40.0)
    dialog.number_input(key="export height").set_value(40.0).run()  # of a size that cannot hold the figure
    assert len(red(dialog)) == 1
    assert "too small for this figure" in red(dialog)[0]
    assert not buttons(dialog)["PDF"]


@pytest.fixture
def copied(monkeypatch):
    """Notes of the pictures that are drawn to be copied."""
    drawn = []
    monkeypatch.setattr(downloads, "content", lambda chart, *given: drawn.append(chart.notes) or b"")
    downloads.cached_picture.clear()
    yield drawn
    downloads.cached_picture.clear()


def test_an_open_panel_draws_its_picture_once(copied):
    app = opened("answer", designs="quantizer.fp16", batch="64")
    app.session_state["speeds beside"] = True
    app.run()
    app.run()
    assert len(copied) == 1
    app.number_input(key="input").set_value(512).run()  # another figure
    assert not app.exception
    assert len(copied) == 2


def test_the_copied_picture_has_what_the_page_says_of_it(copied):
    app = opened("answer", designs="quantizer.fp16~~quantizer.fp8", batch="64")
    app.session_state["speeds beside"] = True  # as pressed
    app.run()
    assert not app.exception
    assert "64 requests at once" in copied[0][0]
    assert copied[0][0] in said(app).replace("**", "")
