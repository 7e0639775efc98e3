"""The page Size without a browser: words and numbers are those of `dse recommend`, to the letter."""

import json
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from dse.cli import main
from dse.core.errors import DseError
from dse.explorer import common_fields, request, state, tray
from dse.explorer.app import PAGES
from dse.explorer.size import asked, found, trace, trade_offs
from dse.operations.face import python_of
from dse.questions.load import LOADS
from explorer_page import opened, plain, said, wrong

#: a search of few servers
SMALL = {"size_devices": "h100;l40s", "engines": "vllm", "size_quantizers": "fp16;fp8", "most": "2"}
LIMITED = {**SMALL, "load": "rate", "rate": "2", "tpot_limit": "50", "ttft_limit": "2"}
SESSIONS = {**SMALL, "load": "sessions", "sessions": "8", "turns": "4", "tpot_limit": "50", "output": "256"}


def values_of(**query):
    fields = (*common_fields.DESIGN, *common_fields.SCENARIO, *asked.FIELDS)
    return {field.key: field.default for field in fields} | query


def printed(command):
    """What a command line prints, its lines as one."""
    outcome = CliRunner().invoke(main.cli, shlex.split(command)[1:])
    assert outcome.exit_code == 0, outcome.output
    return " ".join(outcome.stdout.split())


def command_of(app):
    return next(code.value for code in app.code if code.value.startswith("dse recommend"))


@pytest.mark.parametrize("query", [LIMITED, {**LIMITED, "size_devices": ""}, {**SMALL, "batch": "40"}, SESSIONS])
@pytest.mark.slow
def test_the_page_says_what_the_command_beside_it_prints(query):
    app = opened("size", **query)
    assert not app.exception
    assert wrong(app) == []
    text = printed(command_of(app))
    bold = [plain(one.value).strip("*") for one in app.markdown if one.value.startswith("**")]
    assert bold[0].startswith("Run ")
    assert bold[0] in text
    notes = plain("\n".join(one.value for one in app.markdown))
    runner_up = next(line for line in notes.splitlines() if line.startswith("Runner-up: "))
    assert runner_up in text
    assert len([line for line in notes.splitlines() if line.startswith("- ")]) > 5
    for line in notes.splitlines():
        assert not line.startswith("- ") or " ".join(line[2:].split()) in text
    others = app.dataframe[0].value
    assert others[""].tolist() == ["twice the load", "half the load"]
    assert all(f"{row['']} {row['run']} {row['an hour']}" in text for _, row in others.iterrows())


@pytest.mark.slow
def test_cards_have_the_cells_and_commands_of_the_command_to_the_digit():
    few = {"size_devices": ["h100", "l40s"], "engines": ["vllm"], "size_quantizers": ["fp16", "fp8"], "most": 2}
    values = values_of(**few, load="rate", rate=2.0, tpot_limit=50.0)
    operation = asked.recommend_of(values)
    answer = operation.run()
    sized = found.cached(*asked.with_files(operation, values), "qwen3-32b", None)
    lines = answer.card_lines()
    assert [[label, *(card.cells[i] for card in sized.cards)] for i, label in enumerate(sized.labels)] == lines
    assert [card.head for card in sized.cards] == list(answer.shown)
    assert [card.command for card in sized.cards] == [one.server.command.line for one in answer.shown.values()]
    assert all(card.command.startswith("vllm serve Qwen/Qwen3-32B") for card in sized.cards)
    space = {}
    exec(python_of(operation), space)
    assert space["result"].verdict == sized.verdict


@pytest.mark.slow
def test_the_curves_are_those_of_the_command_for_one_server_times_their_number():
    values = values_of(size_devices=["l40s"], engines=["vllm"], size_quantizers=["fp8"], most=2, load="rate", rate=2.0)
    sized = found.cached(*asked.with_files(asked.recommend_of(values), values), "qwen3-32b", None)
    assert max(card.n_servers for card in sized.cards) > 1
    for card, question in zip(sized.cards, sized.questions, strict=True):
        loads = ",".join(map(str, LOADS))
        outcome = CliRunner().invoke(
            main.cli, [*shlex.split(request.command_of(question))[1:], "--loads", loads, "--json"]
        )
        rows = json.loads(outcome.stdout)["rows"]
        ours = sized.table[sized.table["design"] == card.head]
        for name in ("tpot_s", "ttft_s", "running_requests"):
            assert ours[name].tolist() == [row[name] for row in rows]
        assert ours["requests_per_s"].tolist() == [card.n_servers * row["requests_per_s"] for row in rows]


@pytest.mark.slow
def test_a_card_joins_the_designs_with_its_device_format_engine_and_layout():
    app = opened("size", **LIMITED)
    command = command_of(app)
    app.button(key="size add 0").click().run()
    chosen = app.session_state[state._SESSION].tray.current
    design = tray.values_of(chosen, common_fields.DESIGN)
    best = json.loads(CliRunner().invoke(main.cli, [*shlex.split(command)[1:], "--json"]).stdout)["cards"]["cheapest"]
    names = ((design["own_device"] or "h200").upper(), design["quantizer"], design["stack"], design["tp"])
    assert names == (best["device"], best["quantizer"], best["stack"], best["tp"])


def test_a_card_joins_the_designs_with_its_settings():
    answer = asked.recommend_of(values_of(size_devices=["h100"], engines=["vllm"], load="rate", rate=1.0)).run()
    settings = {"prompt_budget_tokens": 2048, "max_num_seqs": 256, "gpu_memory_utilization": 0.95}
    fleet = replace(answer.first, server=answer.first.server.in_settings(settings))
    joined = found.server_fields(fleet)
    assert {name: joined[common_fields.WORK[name].key] for name in settings} == settings


@pytest.mark.slow
def test_without_a_number_the_questions_devices_are_filled_and_the_page_says_so():
    few = {name: SMALL[name] for name in ("engines", "size_quantizers", "most")}
    app = opened("size", **few, devices="2", tpot_limit="50", batch="")
    command = command_of(app)
    assert "--devices 2xh200 " in command
    assert "Requests at once is open: this fills 2xh200. Give a number to size for it." in said(app)
    assert printed(command)
    chosen = opened("size", **SMALL, devices="2", tpot_limit="50")
    assert "--devices 2xh100,2xl40s" in command_of(chosen)
    assert "this fills 2xh100 or 2xl40s." in said(chosen)
    sized = opened("size", **SMALL, batch="40")
    assert "is open" not in said(sized)


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ({"tpot_limit": "0.001"}, "nothing surely keeps TPOT 0.001 ms: allow --max-tpot "),
        ({"budget": "1/h"}, "budget = '1/h': one device costs"),
        ({"budget": "much"}, "budget = 'much': must be USD an hour above 0, such as 40/h"),
        ({"price": "h100=0"}, "price"),
        ({"load": "sessions", "objective": "energy"}, "objective = energy: is not known of prompts that are found"),
        ({"load": "sessions", "growth": "20000", "turns": "1000"}, "turns"),
        ({"model": "deepseek-v3", "most": "1"}, "no layout fits"),
    ],
)
@pytest.mark.slow
def test_what_keeps_it_from_an_answer_is_said_in_one_line(query, line):
    app = opened("size", **{**SMALL, "load": "rate", **query})
    assert not app.exception
    found_lines = wrong(app) or [app.code[0].value]
    assert line in found_lines[0]
    assert len(set(found_lines)) <= 2


def test_old_addresses_lead_to_the_page():
    leads_to = {path: page.path for page in PAGES for path in page.former}
    assert (leads_to["front"], leads_to["serving"]) == ("size", "size")


def test_a_part_that_is_not_chosen_costs_nothing(monkeypatch):
    """Neither a search nor a sweep is begun behind another part."""
    monkeypatch.setattr(found, "cached", None)
    monkeypatch.setattr(trade_offs, "cached", None)
    app = opened("size", size_tab="rate", load="rate", rate="1")
    assert not app.exception
    assert wrong(app) == []
    app = opened("size", size_tab="trace")
    assert not app.exception
    assert wrong(app) == []


CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{i:02d}.0000000,{300 + 10 * i},{20 + i}\n" for i in range(60)
)
JSONL = "".join(
    json.dumps({"timestamp": 500 * i, "input_length": 1024, "output_length": 64, "hash_ids": [0, i]}) + "\n"
    for i in range(60)
)


def file(name, text):
    return SimpleNamespace(name=name, getvalue=text.encode)


@pytest.mark.parametrize(("name", "text"), [("own.csv", CSV), ("own.jsonl", JSONL)])
@pytest.mark.slow
def test_a_trace_of_ones_own_is_recommended_for_as_the_command_does(name, text, monkeypatch, tmp_path):
    held = {}
    monkeypatch.setattr(trace.st, "session_state", held)
    trace.OWN.keep(file(name, text))
    values = values_of(
        size_devices=["h100"], engines=["vllm"], size_quantizers=["fp16"], most=1, tpot_limit=50.0, trace_rate=1.0
    )
    operation = asked.recommend_of(values, name)
    sized = found.cached(*asked.with_files(operation, values), "qwen3-32b", trace.OWN.held()[1])
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    command = request.command_of(operation, tuple(operation.unused()))
    shown = printed(command)
    assert sized.verdict in shown
    assert all(cell in shown for card in sized.cards for cell in card.cells)
    assert all(" ".join(note.split()) in shown for note in sized.notes)
    assert ("prompts found" in sized.labels) == name.endswith(".jsonl")


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("own.csv", "a,b\n1,2\n", "own.csv"),
        ("own.jsonl", '{"timestamp": "x"}\n', "own.jsonl"),
        ("own.txt", "x", "own.txt: must end with .csv or .jsonl"),
        ("own.csv", "0" * (trace.OWN.max_bytes + 1), "own.csv: has 33,554,433 bytes: at most 33,554,432"),
    ],
)
def test_another_file_is_refused_in_a_line_by_its_name(name, text, line):
    with pytest.raises(DseError, match=line) as caught:
        trace.OWN.keep(file(name, text))
    assert "/tmp" not in str(caught.value)
    assert "\n" not in str(caught.value)
