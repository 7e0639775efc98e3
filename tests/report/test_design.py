"""Results of a design in Python: a dict, attributes, units, a table, and the text of `dse point`."""

import copy
import json
import pickle
import re
from html.parser import HTMLParser

import pytest

import dse
from dse.cli import main
from dse.model.results import RESULT_UNITS
from dse.model.results.declare import SECTIONS
from dse.report import present

ASKED = ("a100-80gb", "llama2-13b", "qserve")
WORK = {"batch": 128, "admission": "paged"}


@pytest.fixture(scope="module")
def found():
    return dse.evaluate(*ASKED, **WORK)


def printed(capsys, *words):
    with pytest.raises(SystemExit):
        main.main(["point", *words])
    return capsys.readouterr().out


def test_it_is_a_dict_as_before(found):
    assert isinstance(found, dict)
    assert list(found) == list(RESULT_UNITS)
    assert found["max_batch"] == dict(found)["max_batch"] == {**found}["max_batch"] == 114
    assert json.loads(json.dumps(found)) == found.to_dict()
    assert type(found.to_dict()) is dict
    assert found.get("nothing") is None
    assert found == dse.evaluate(*ASKED, **WORK)


def test_results_are_attributes_with_units(found):
    for name, value in found.items():
        assert getattr(found, name) is value
        assert found.unit(name) == RESULT_UNITS[name]
    assert {*RESULT_UNITS} < {*dir(found)}
    assert found._ipython_key_completions_() == list(RESULT_UNITS)
    assert not {*RESULT_UNITS} & {*dir(type(found))}


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("max_bach", "max_batch"), ("throughput", "throughput_tokens_per_s"), ("xyz", r"dse\.results has them all")],
)
def test_a_wrong_name_is_answered_with_the_nearest(found, wrong, near):
    for error, get in (
        (KeyError, lambda: found[wrong]),
        (KeyError, lambda: found.unit(wrong)),
        (AttributeError, lambda: getattr(found, wrong)),
    ):
        with pytest.raises(error, match=rf"unknown result '{wrong}': .*{near}"):
            get()


def test_it_prints_as_the_command(found, capsys):
    text = printed(
        capsys,
        "--device",
        ASKED[0],
        "--model",
        ASKED[1],
        "--quantizer",
        ASKED[2],
        "--batch",
        "128",
        "--admission",
        "paged",
    )
    assert f"{found}\n" == f"{found!r}\n" == text


def test_the_text_of_specs_names_no_command_that_cannot_be(capsys):
    """What does not fit proposes commands, which name devices and models; a spec has no name that a command takes."""
    by_name = str(dse.evaluate("h100", "llama3.1-70b"))
    assert "These do:\n  dse point --device h100" in by_name
    by_spec = str(dse.evaluate(dse.device("h100"), dse.model("llama3.1-70b"), dse.quantizer("fp16")))
    assert "These do" not in by_spec
    assert "dse show H100" in by_spec
    assert max(map(len, by_spec.splitlines())) < 300


class Cells(HTMLParser):
    """The texts of a table's cells."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells.append((self.open[-1], data))


def test_a_notebook_shows_the_sections_as_a_table(found):
    cells = Cells(found._repr_html_()).cells
    heads = [text for tag, text in cells if tag == "th"]
    assert {*SECTIONS, "Quality"} < {*heads}
    place = cells.index(("td", present.number(found.decode_step_s, "s")))
    assert cells[place - 1][1].startswith("decode step")
    squeezed = re.sub(r"\s+", "", "".join(text for _, text in cells))
    assert squeezed == re.sub(r"\s+", "", found.text())


def test_copies_keep_the_text(found):
    for again in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert type(again) is type(found)
        assert again == found
        assert str(again) == str(found)


def test_the_table_has_units_and_intervals(found):
    table = found.table.set_index("result")
    assert table.index.tolist() == list(RESULT_UNITS)
    step = table.loc["decode_step_s"]
    assert (step["value"], step["unit"], step["title"]) == (found.decode_step_s, "s", "decode step")
    assert step["low"] < step["value"] < step["high"]
    assert table["low"].isna().sum() > 50


@pytest.mark.parametrize(("quantizer", "is_noted"), [("oaken", False), ("fp16", False), ("qserve", True)])
def test_a_format_without_an_engine_on_its_chip_is_noted(capsys, quantizer, is_noted):
    """Oaken's chip unpacks its own format; no source says what it would do with another."""
    text = printed(capsys, "--device", "oaken-hbm", "--model", "llama2-7b", "--quantizer", quantizer)
    said = "Not run by the software of the device: qserve: no engine of Oaken-HBM runs it. The numbers are as if"
    assert (said in text) == is_noted


@pytest.mark.parametrize(
    ("model", "first"), [("deepseek-v3", "--weights fp8-block --tp 8"), ("gpt-oss-120b", "--weights mxfp4-experts")]
)
def test_weights_that_are_proposed_are_those_that_a_model_was_released_in(capsys, model, first):
    """In 16 bits neither fits on one H200; servers have DeepSeek's in blocks and gpt-oss's in MXFP4."""
    text = printed(capsys, "--device", "h200", "--model", model, "--weights", "bf16", "--quantizer", "fp8")
    assert text.partition("These do:\n")[2].split("\n")[0].endswith(first)
