"""One number, one name: labels of the explorer's pages, of `dse point` and of answers against the declared titles."""

import json
import random
import shlex

import pytest

from dse.core.units import plain
from dse.explorer import bench, cards, common_fields, figure, request, tray
from dse.explorer.pages import answer
from dse.figures.drawing import style
from dse.model.results import RESULTS, title
from dse.questions import common, formats
from dse.report import present
from dse.report.design import as_said


def capital(text):
    return text[:1].upper() + text[1:]


def test_lines_of_a_point_begin_with_the_title_of_their_result():
    for result in RESULTS.values():
        for line in result.lines:
            assert not line.words or line.words.strip().startswith(result.title), result.name


@pytest.mark.parametrize("name", sorted(cards.MEANINGS))
def test_rows_of_the_answer_say_the_title(name):
    assert cards.label(name) == capital(title(name))


def test_measures_and_columns_of_formats_say_the_title():
    for measure in common.MEASURES.values():
        assert measure.title == title(measure.column)
    assert {title(name) for name in formats.SHOWN_RESULTS} < {column.title for column in formats.SHOWN}


def test_a_number_reads_the_same_on_every_page():
    """Throughput, TPOT and TTFT of one design: in its row, in `dse ask formats` and in `dse point`."""
    import dse

    found = dse.evaluate("h200", "qwen3-32b", "fp8", batch=64, input_tokens=8192)
    answer = dse.formats("h200", "qwen3-32b", quantizers=["fp8"], batch=64, input_tokens=8192)
    cells = {column.title: column.cell(answer.formats[1]) for column in formats.SHOWN}
    for name in ("throughput_tokens_per_s", "tpot_s", "ttft_s"):
        text = present.number(found[name], RESULTS[name].unit)
        assert cards.shown(name, found) == text
        assert cells[title(name)] == common.value_text(found, name)
        assert common.value_text(found, name) in found.text().splitlines()[3]
        assert cells[title(name)] == f"{text} ({common.ends_text(found, name)})"
    for name in ("score_drop_frac", "sample_perplexity_frac"):
        assert cards.shown(name, found) == cells[title(name)]
        assert cells[title(name)] in found.text()


def test_scores_are_called_alike_in_the_table_and_in_the_opened_row():
    names = [cards.label(name) for name in ("score_drop_frac", "sample_perplexity_frac")]
    assert names == ["Accuracy loss", "Perplexity"]
    assert set(names) <= set(cards.TIPS)


def drawn(n):
    """Designs that run whole, each with its workload as it is at the end: `n` of servers, chips and splits."""
    draw = random.Random(45)
    while n:
        values = {
            "device": draw.choice(["h200", "h100", "a100-80gb", "l40s", "oaken-hbm"]),
            "model": draw.choice(["qwen3-32b", "llama3.1-8b", "llama2-13b", "qwen3-30b-a3b"]),
            "quantizer": draw.choice(["fp16", "fp8", "int4_per_token_head", "kivi"]),
            "tp": draw.choice([1, 2, 4]),
            **draw.choice([{}, {}, {"pp": 2, "pp_batches": 1}]),
            "batch": draw.choice([None, 1, 7, 16, 32, 64]),
            "input": draw.choice([100, 1024, 8192, 30000]),
            "output": draw.choice([1, 33, 512, 2048]),
            "batching": draw.choice([None, None, "continuous", "chunked"]),
            "prompt_budget": draw.choice([None, 1024]),
            "memory": draw.choice(["server", "server", "paper"]),
            "model_kind": draw.choice([None, "ideal"]),
        }
        if values["memory"] == "paper" and not values["batching"]:
            values["batching"] = "continuous"  # requests of traffic that come and go are no static batch
        usual = {field.key: field.default for field in (*common_fields.DESIGN, *common_fields.SCENARIO)}
        here = bench.evaluate({**usual, **values}, tray.Tray((tray.TrayDesign(values=values),)))
        if here.answered and here.current.result["fits_whole_batch"]:
            n -= 1
            yield here


SPEEDS = ("throughput_tokens_per_s", "tpot_s", "ttft_s", "requests_per_s")


def test_speeds_of_a_design_are_equal_in_all_places(run):
    """To the last digit, 40 designs: the command line, the row of the table, and the figure's star."""
    for here in drawn(40):
        row, result = here.current, here.current.result
        code, out, _ = run(*shlex.split(request.command_of(request.operation(row.request)))[1:], "--json")
        assert code == 0
        printed = json.loads(out)
        assert {name: printed[name] for name in SPEEDS} == {name: as_said(result)[name] for name in SPEEDS}
        cells = cards.design_table(here).iloc[0]
        for name, column in (("tpot_s", "TPOT"), ("ttft_s", "TTFT, no queue")):
            assert cells[column].partition(" (")[0] == present.number(printed[name], RESULTS[name].unit)
        device = printed[SPEEDS[0]] / printed["n_devices"]
        assert cells["tok/s a device"].partition(" (")[0] == plain(device, digits=3)
        found = answer.cached_speeds(((row.name, request.any_load(row.request)),), ())
        chart = figure.speeds(found, [(row.name, result)])
        if printed["tpot_s"]:
            (star,) = [series for series in chart.panels[0].series if series.name == style.CHOSEN]
            assert (star.x[0], star.y[0]) == (1 / result["tpot_s"], device)


def test_the_most_within_limits_is_that_of_the_command(run):
    """Requests at once that keep the limits: as `dse ask interactivity` finds them, to the digit."""
    draw = random.Random(51)
    for _ in range(12):
        asked = {
            "device": draw.choice(["h200", "h100", "b200", "mi300x"]),
            "model": draw.choice(["qwen3-32b", "llama3.1-8b", "gpt-oss-120b"]),
            "input": draw.choice([512, 4096, 16384]),
            "output": draw.choice([128, 1024]),
            "tpot_limit": draw.choice([20.0, 50.0, None]),
            "ttft_limit": draw.choice([0.5, 2.0]),
        }
        usual = {field.key: field.default for field in common_fields.SCENARIO}
        names = ("fp16", "fp8")
        here = bench.evaluate(usual | asked, tray.Tray(tuple(tray.TrayDesign(values={"quantizer": q}) for q in names)))
        for row in here.answered:
            words = ["--device", asked["device"], "--model", asked["model"], "--quantizers", row.name, "--splits", "1"]
            words += ["--input", str(asked["input"]), "--output", str(asked["output"])]
            words += ["--max-ttft", f"{asked['ttft_limit']} s"]
            words += ["--max-tpot", f"{asked['tpot_limit']} ms"] if asked["tpot_limit"] else []
            code, out, _ = run("ask", "interactivity", *words, "--json")
            best = json.loads(out)["best"] if code == 0 else None
            if best is None:
                assert not row.answer.holds or row.refusals
                continue
            assert row.answer.holds == best["batch"]
            assert {name: row.result[name] for name in SPEEDS[:3]} == {name: best[name] for name in SPEEDS[:3]}


def test_a_point_begins_with_its_answer():
    import dse

    found = dse.evaluate("h200", "llama3.1-70b", "fp8", weights="fp8", batch=64, input_tokens=8192)
    most, text = int(64 * found["free_bytes"] / found["kv_bytes"]), found.text()
    head, empty, fits, speed, bound, *rest = text.splitlines()
    assert head.startswith("H200  llama3.1-70b")
    assert empty == ""
    assert fits.startswith(f"Exceeds memory: at most {most} of 64 requests run at once")
    assert " tok/s (" in speed
    assert speed.count("TTFT") == text.count("TTFT") == 1
    assert bound.startswith("Bound by capacity: the whole batch does not fit at once; with room for all it would be ")
    assert len(rest) <= 32
    roomy = dse.evaluate("h100", "llama3.1-8b", "fp8", batch=8).text().splitlines()
    assert roomy[2].startswith("Fits: all 8 requests at once; room for ")
    n = int(roomy[2].split("room for ")[1].rstrip(".").replace(",", ""))
    more = dse.evaluate("h100", "llama3.1-8b", "fp8", batch=n)
    said = present.number(more["throughput_tokens_per_s"], "tok/s")
    assert roomy[4].endswith(f"the {n:,} requests that fit would give {said}")
