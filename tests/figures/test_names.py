"""Texts of figures: names as people print them, and names at the ends of lines in place of long legends."""

import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from chart_checks import drawn_texts
from dse.figures import FIGURES, REPORT
from dse.figures.charts import prefix_steps
from dse.figures.drawing import direct, layout, page_layout, rows, to_plotly
from dse.figures.drawing.chart import MAX_LEGEND, Axis, Chart, Panel, Series
from dse.figures.drawing.names import printed
from dse.figures.export import image
from dse.figures.export.image import PRESETS
from dse.figures.plot import answer, load
from dse.figures.source import Source
from dse.specs import catalog

ROOT = Path(__file__).parents[2]
#: kinds whose tables need more than a command of this test: other files, or fits
ELSEWHERE = {"predicted_measured", "servers_measured", "prefix_steps"}
COMMANDS = """
point --device a100-80gb --model llama2-7b --quantizer kivi --batch 16 --out all
ask formats --device h100 --model llama3.1-8b --batch 64 --quantizers fp8,int4_per_token_head --out all
ask cross --device h100 --model llama3.1-8b --quantizer fp8 --batches 1,16 --inputs 512,1024 --out all
ask map --device h100 --model opt-13b --quantizers fp16,fp8,int8,kivi,nqkv,oaken --batches 1,16 --inputs 512 --out all
ask need bandwidth --device oaken-lpddr --model llama2-13b --quantizer oaken --throughput 3000 --out all
ask need bits --device h100 --model llama3.1-8b --throughput 5000 --quantizers fp16,fp8,kivi --out all
ask load --device h200 --model qwen3-32b --quantizer fp8 --batch 8 --out all
ask hits --device h100 --model llama3.1-8b --quantizers fp8 --sessions 64 --out all
recommend --model llama3.1-8b --devices h100,l40s --rate 4 --tpot 30ms --out all
ask sensitivity --device h100 --model llama3.1-8b --quantizer fp8 --batch 64 --out all
ask doubt --device oaken-lpddr --model llama2-13b --quantizer oaken --against qserve --batch 64 --out all
simulate --device h200 --model qwen3-32b --quantizer fp8 --requests 20 --out all
synthesize --layers 2 --tokens 160 --head-dim 64 --queries 4 --out dump.npz
measure dump.npz --quantizers int8,kivi,kivi:bits=4,nqkv,fp8,int4,nvfp4 --contexts 64,160 --out measured
mix measured --budget-bits 5.5 --figure all/mixed_plans.csv --out plan.toml
lab --quantizer kivi --out lab
validate report --out papers
"""


def test_printed_names_by_hand():
    assert printed("llama2-7b, gpt-oss-20b") == "Llama 2 7B, GPT-OSS 20B"
    assert printed("llama2-13b-chat, mistral-7b-instruct-v0.2") == "Llama 2 13B Chat, Mistral 7B Instruct v0.2"
    assert printed("H100 fp8") == "H100 FP8"
    assert printed("a100-80gb") == "A100-80GB"
    assert printed("kivi:bits=4,group=64, batch 8") == "KIVI 4-bit, group 64, batch 8"
    assert printed("turboquant_4bit_nc and q4_0") == "TurboQuant 4bit nc and Q4_0"
    assert printed("token_time_low") == "measured over predicted time per token, low"
    assert printed("price_usd_per_hour") == "price USD per hour"
    assert printed("Kernels as measured (vllm).") == "Kernels as measured (vLLM)."
    # words of English, commands and names of files stay
    for text in ("a full window", "run `dse report --preset oaken`", "front_others.csv", "docs/own_dump", "Llama 2 7B"):
        assert printed(text) == text


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(1, 20)), min_size=1, max_size=14), st.floats(50, 150))
def test_names_below_each_other_stand_apart_and_near(ends, top):
    ends = sorted(ends, reverse=True)
    wanted, heights = zip(*ends, strict=True)
    places = direct._apart(wanted, heights, top)
    assert places[0] + heights[0] / 2 <= top + 1e-6
    for i in range(len(places) - 1):
        assert places[i] - places[i + 1] >= (heights[i] + heights[i + 1]) / 2 - 1e-6
    # where all have room, each is at its end
    roomy = all(a - b >= (ha + hb) / 2 for (a, ha), (b, hb) in pairwise(ends))
    if roomy and wanted[0] + heights[0] / 2 <= top:
        assert places == pytest.approx(list(wanted))


def _lines(n: int, n_panels: int = 1) -> Chart:
    x = Axis("time", "s", 0.0, 10.0, ((0.0, "0"), (10.0, "10")))
    y = Axis("rate", "1/s", 0.0, 10.0, ((0.0, "0"), (10.0, "10")))
    series = tuple(Series(f"line {i}", "line", (1.0, 9.0), (1.0, 9.0 - 0.5 * i)) for i in range(n))
    return Chart("t", tuple(Panel(f"p{k}", x, y, series) for k in range(n_panels)), n_columns=n_panels)


@pytest.mark.parametrize("page", [layout.REPORT, PRESETS["paper-wide"]], ids=lambda page: page.name)
def test_more_than_five_lines_are_named_at_their_ends(page):
    assert _lines(5).named() == {}
    drawn = _lines(6, 2)
    place = page_layout.on(drawn, page)
    assert place.legend == ()
    names, panels = direct.names(drawn, place)
    assert [name.series for name in names] == [f"line {i}" for i in range(6)]  # once, in the order of the ends
    last = place.panels[1]
    assert all(last.x + last.width < name.x < place.width for name in names)
    assert panels == list(drawn.panels)
    ends = [name.tail[0] for name in names]
    assert ends[0] == pytest.approx((last.x + 0.9 * last.width, last.y + 0.9 * last.height))
    texts = {note["text"] for note in to_plotly.spec(drawn)["layout"]["annotations"]}
    assert {f"line {i}" for i in range(6)} <= texts
    assert len([key for key in to_plotly.spec(drawn, has_size=False)["data"] if key["showlegend"]]) == 6


def test_level_bars_are_named_in_or_behind_a_bar():
    x = Axis("bits", "bit", 0.0, 10.0, ((0.0, "0"), (10.0, "10")))
    y = Axis("quantizer", "", -0.6, 1.6, ((0.0, "a"), (1.0, "b")))
    parts = [Series(f"p{i}", "hbar", (w, w), (0.0, 1.0), base=(b, b)) for i, (b, w) in enumerate(_starts())]
    drawn = Chart("t", (Panel("", x, y, tuple(parts)),))
    place = layout.place(drawn)
    names, _ = direct.names(drawn, place)
    assert {name.series for name in names} == {f"p{i}" for i in range(6)}
    box, by = place.panels[0], {name.series: name for name in names}
    assert by["p0"].is_middle
    assert box.x < by["p0"].x < box.x + 0.4 * box.width
    for name in names[1:]:  # behind the bars, which end at 5 of 10
        assert box.x + 0.5 * box.width < name.x < box.x + box.width
    spots = sorted((name.y, name.x) for name in names[1:])
    assert len(set(spots)) == len(spots)


def _starts():
    widths = (4.0, 0.2, 0.2, 0.2, 0.2, 0.2)
    return list(zip(np.cumsum((0.0, *widths[:-1])), widths, strict=True))


def test_kernels_of_others_are_not_called_measured():
    table = pd.DataFrame(
        {
            "device": ["H200", "M4-Max", "My-GPU"],
            "stack": ["vllm", "llama.cpp", "vllm"],
            "assumptions": ["fused_rate", "core_clock, nearest_kernels", "stacks_of"],
        }
    )
    assert rows.kind_notes(table) == (
        "Kernels as measured (vllm): H200; Nearest measured kernels (llama.cpp): M4-Max; "
        "Nearest measured kernels (vllm): My-GPU.",
    )
    assert rows.kind_notes(table[["device", "stack"]].head(1)) == ("Kernels as measured (vllm): H200.",)


def test_boxes_of_the_tree_of_prompts_are_all_in_the_legend():
    """A stretch of few blocks has no room for a name, in it or beside it."""
    states = list(prefix_steps.STATES)[:6]
    boxes = [(1, "request 1", i, str(i), 0, 2000 if i else 50, state) for i, state in enumerate(states)]
    columns = ["step", "admitted", "first_row", "requests", "start_tokens", "end_tokens", "state"]
    drawn = prefix_steps.chart(Source(pd.DataFrame(boxes, columns=columns)))
    assert {entry.name for entry in layout.place(drawn).legend} == set(states)


def check(kind: str, chart: Chart) -> None:
    """No legend of more than five entries, no raw name in what is drawn, by either library's layout."""
    keys = {*catalog.model_files(), *catalog.device_files()}
    assert len(chart.legend()) <= MAX_LEGEND, kind
    for text in drawn_texts(chart):
        words = re.findall(r"[\w.:+-]*\w", text)
        assert not [word for word in words if re.fullmatch(r"[a-z0-9]*[a-z][a-z0-9]*(_\w+)+", word)], (kind, text)
        assert not keys.intersection(words), (kind, text)
    for place in (layout.place(chart), page_layout.place(chart, PRESETS["paper-wide"])):
        names, panels = direct.names(chart, place)
        beside = {series.name for panel in panels for series in panel.series if series.is_named}
        unnamed = set(chart.named()) - {name.series for name in names} - beside
        shown = {one.name: one for panel in chart.panels for one in panel.series if one.kind == "hbar"}
        # a bar of no length has no name
        assert not [name for name in unnamed if name not in shown or max(shown[name].x, default=0) > 0.05], kind


def test_figures_of_the_report_have_short_legends_and_printed_names(charts):
    for kind, chart in charts.items():
        check(kind, chart)


@pytest.mark.slow
def test_every_kind_has_a_short_legend_and_printed_names(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(image, "images", lambda chart, made_by: {"png": b""})  # tables are what is loaded
    for line in filter(None, COMMANDS.splitlines()):
        code, _, said = run(*line.split())
        assert code == 0, (line, said)
    found = dse.grid("h100", "llama2-7b", ["fp16", "fp8"], batch=[1, 8, 64])
    front = dse.front(found, maximize="throughput_tokens_per_s", minimize="joules_per_token")
    Path("study").mkdir()
    shutil.copy(ROOT / "dse/data/lm/smollm2.study.csv", "study")
    seen = set(REPORT)
    for kind in FIGURES:
        for folder in ("all", "measured", "lab", "papers", "study"):
            only = ["device=A100-80GB"] if kind.startswith("silicon") else []
            try:
                chart, _ = load.load(kind, folder, only)
            except dse.errors.InputError:
                continue
            check(kind, chart)
            seen.add(kind)
    check("front", answer.chart_of(front))
    assert set(FIGURES) - seen - {"front"} <= ELSEWHERE
