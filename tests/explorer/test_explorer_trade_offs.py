"""Best trade-offs without a browser: servers of a search as `dse ask interactivity` finds them, and loaded tables."""

import io
import json
import shlex

import pandas as pd
import pytest
from click.testing import CliRunner

import dse
from dse.cli import main
from dse.core.errors import DseError
from dse.explorer import cards, common_fields, request
from dse.explorer.size import asked, trade_offs
from dse.explorer.size.trade_offs import DEVICE, OWN, RATE, USER
from dse.model import results
from dse.model.results import RESULT_UNITS
from dse.operations.face import call_of
from explorer_page import opened, plain, said, wrong

#: few servers
SMALL = {"model": "llama2-13b", "device": "a100-80gb", "size_quantizers": "fp16;fp8", "most": "2"}
#: a device with 16, 8 and 4 bits in one and two devices
AXES = {
    "device": "h200",
    "model": "qwen3-32b",
    "quantizer": ["fp16", "fp8", "int4_per_token_head"],
    "batch": [1, 16, 64, 256],
}


def question(**changed):
    fields = (*common_fields.DESIGN, *common_fields.SCENARIO, *asked.FIELDS)
    values = {field.key: field.default for field in fields} | changed
    point = request.point_request(values)
    return trade_offs.speeds_of(point, values), point


@pytest.fixture(scope="module")
def table():
    keep = ["throughput_tokens_per_s", "tpot_s", "n_devices", "sample_perplexity_frac"]
    return dse.sweep({"axes": {**AXES, "tp": [1, 2]}, "keep": keep})


def printed(command):
    outcome = CliRunner().invoke(main.cli, shlex.split(command)[1:])
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


@pytest.mark.parametrize("limits", [{}, {"tpot_limit": "30", "ttft_limit": "2"}])
def test_the_page_says_what_the_command_of_its_question_prints(limits):
    app = opened("size", size_tab="trade_offs", **SMALL, **limits)
    assert not app.exception
    assert wrong(app) == []
    values = {"model": "llama2-13b", "device": "a100-80gb", "size_quantizers": ["fp16", "fp8"], "most": 2}
    asks, _ = question(**values, **{name: float(value) for name, value in limits.items()})
    text = printed(request.command_of(asks))
    bold = plain(next(one.value for one in app.markdown if one.value.startswith("**"))).strip("*")
    assert bold in text
    shown = app.dataframe[0].value
    for row in shown.to_numpy().tolist():
        assert " ".join(row) in " ".join(text.split())


def test_the_star_is_the_best_of_the_command_and_formats_are_colored_by_what_they_lose():
    asks, point = question(device="a100-80gb", model="llama2-13b", size_quantizers=["fp16", "kivi"], tpot_limit=30.0)
    found = trade_offs.cached(asks, point)
    best = json.loads(printed(request.command_of(asks) + " --json"))["best"]
    chart = trade_offs.trade_offs(found.table, found.best, USER, DEVICE, {"tpot_s": 0.03}, "")
    (star,) = [series for series in chart.panels[0].series if series.name == "best"]
    assert star.y[0] == best[RATE] / best["n_devices"]
    assert star.x[0] == 1 / best["tpot_s"]
    lines = [series for series in chart.panels[0].series if series.kind == "line" and not series.is_note]
    assert [series.color for series in lines] == ["#0072B2", "#D55E00"]
    assert lines[0].name.startswith("fp16 (0.0 %)")
    (limit,) = [series for series in chart.panels[0].series if series.name == "limit"]
    assert limit.x == pytest.approx((1 / 0.03, 1 / 0.03))


def test_the_best_joins_the_designs():
    asks, point = question(device="a100-80gb", model="llama2-13b", size_quantizers=["fp8"], most=2, tpot_limit=30.0)
    design = trade_offs.cached(asks, point).design
    best = json.loads(printed(request.command_of(asks) + " --json"))["best"]
    assert (design["quantizer"], design["tp"]) == (best["quantizer"], best["tp"])


def test_where_nothing_keeps_the_limits_there_is_no_star():
    app = opened("size", size_tab="trade_offs", **SMALL, tpot_limit="0.001")
    assert not app.exception
    assert "othing surely keeps TPOT 0.001 ms" in said(app)
    assert not [one for one in app.button if one.key == "front add"]


class File:
    """A file as Streamlit gives it."""

    file_id = "1"

    def __init__(self, name, content):
        self.name, self.content = name, content

    def getvalue(self):
        return self.content


def _parquet(table):
    content = io.BytesIO()
    table.to_parquet(content)
    return content.getvalue()


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_of_a_sweep_is_loaded_and_its_script_gives_its_front(name, monkeypatch, tmp_path, table):
    """Of several layouts the rate is a device's."""
    monkeypatch.setattr(trade_offs.st, "session_state", {})
    content = table.to_csv(index=False).encode() if name.endswith("csv") else _parquet(table)
    OWN.keep(File(name, content))
    label, held = OWN.held()
    assert label == name
    front, shown, added = trade_offs.front_of(name, held, {"tpot_s": 0.05, "ttft_s": 2.0})
    assert front.at_most == ("tpot_s=0.05",)
    best = trade_offs.best_of(front, shown)
    rows = table[table["feasible"] & table["runs"] & (table["tpot_s"] <= 0.05)]
    assert best[DEVICE] == (rows[RATE] / rows["n_devices"]).max()
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    space = {}
    exec(trade_offs.script_of(name, front, added), space)
    ours = trade_offs.replace(front, designs=shown).run()
    assert space["result"].table["batch"].tolist() == ours.table["batch"].tolist()


def test_a_table_as_a_sweep_writes_it_by_default_is_drawn_and_its_command_gives_its_front(monkeypatch, tmp_path):
    """Without TPOT, and of one device without its number."""
    table = dse.sweep(AXES)
    front, shown, added = trade_offs.front_of("t.csv", table, {})
    assert (front.maximize, front.minimize, added) == ((RATE,), ("decode_step_s",), "")
    best = trade_offs.best_of(front, shown)
    monkeypatch.chdir(tmp_path)
    table.to_csv("t.csv", index=False)
    rows = json.loads(printed(request.command_of(front) + " --json"))["front"]
    found = trade_offs.replace(front, designs=shown).run()
    assert [row[RATE] for row in rows] == found.table[RATE].tolist()
    assert best[RATE] in found.table[RATE].tolist()
    assert trade_offs.trade_offs(found.table, best, "decode_step_s", RATE, {}, "").panels[0].series
    assert "t.csv" in call_of(front)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"a,b\n1,2\n", "t.csv: lacks throughput_tokens_per_s"),
        ("t.parquet", b"PK", "t.parquet"),
        ("t.txt", b"x", "t.txt: must end with .csv or .parquet"),
        ("t.csv", b"0" * (OWN.max_bytes + 1), "has 16,777,217 bytes: at most 16,777,216"),
    ],
)
def test_another_file_is_refused_in_a_line_by_its_name(name, content, said):
    with pytest.raises(DseError, match=said) as caught:
        OWN.keep(File(name, content))
    assert "/tmp" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_column_has_words_and_a_unit():
    assert set(RESULT_UNITS) <= set(results.RESULTS)
    words = [cards.label(name) for name in RESULT_UNITS]
    assert len(set(words)) == len(words)


def test_a_loaded_table_is_shown(monkeypatch, table):
    monkeypatch.setattr(type(OWN), "held", lambda self: ("t.csv", table) if self is OWN else ("", None))
    app = opened("size", size_tab="trade_offs", front_table="t.csv (loaded)", tpot_limit="50")
    assert not app.exception
    assert wrong(app) == []
    assert "Most throughput within TPOT 50 ms: " in said(app)
    assert isinstance(app.session_state["front_table"], str)
    assert isinstance(table, pd.DataFrame)
