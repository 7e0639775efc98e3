"""What stands beside a figure of the explorer: Python that runs, files that say what made them."""

import io
import re
import struct
from xml.etree import ElementTree

import pandas as pd
import pyarrow.parquet as pq
import pytest

from dse.explorer import downloads as beside
from dse.explorer import request
from dse.explorer.downloads import MadeBy
from dse.figures import design_bars


def test_python_beside_a_figure_runs_and_gives_the_result():
    asked = request.of({
        "quantizer": "kivi", "parameters": "bits=4", "value_quantizer": "fp16", "batch": 8, "admission": "paged"
    })  # fmt: skip
    found = {}
    exec(request.python(asked), found)
    assert found["result"] == request.answer(asked).result


MADE = MadeBy("dse point --device a100-80gb\ndse point --device h100", "", "/?batch=64")
SAID = "dse point --device a100-80gb; dse point --device h100 (explorer: /?batch=64)"
ROWS = [("oaken", request.answer(request.DEFAULT).result)]


def texts_of_png(content):
    """Key and text of each tEXt or iTXt chunk, by the format's own layout: length, type, data, checksum."""
    at, found = 8, {}
    while at < len(content):
        length, kind = struct.unpack(">I4s", content[at : at + 8])
        if kind in (b"tEXt", b"iTXt"):
            key, _, text = content[at + 8 : at + 8 + length].partition(b"\0")
            found[key.decode()] = text.lstrip(b"\0").decode()
        at += length + 12
    return found


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


@pytest.mark.parametrize("kind", list(beside.FORMATS))
def test_files_of_a_figure_open_and_carry_their_state(kind):
    content = beside.content(design_bars.memory(ROWS), lambda: design_bars.table(ROWS), kind, MADE)
    assert state_in(kind, content) == SAID
