"""Designs drawn from all devices, models and splits: each has an answer or one line that says why there is none."""

import json
import math
import random
import re
from pathlib import Path

import click
import pytest

from dse.cli import main as cli
from dse.core.errors import InputError
from dse.figures.export import static as report_static
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.report import page
from dse.report import throughput as report
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build

DEVICES, MODELS = list(catalog.device_files()), list(catalog.model_files())
QUANTIZERS = ["fp16", "fp8", "nqkv", "oaken", "kivi", "nvfp4", "turboquant_4bit_nc"]


def draw(n, what):
    """Designs drawn at random, the same at every run, others for each thing tested."""
    drawn = random.Random(f"20261123 {what}")
    return [
        (drawn.choice(DEVICES), drawn.choice(MODELS), drawn.choice([1, 1, 2, 4, 8]), drawn.choice(QUANTIZERS))
        for _ in range(n)
    ]


def answered(device, model, tp, quantizer):
    """(results, None), or (None, why there are none)."""
    try:
        work = Workload(4, 2000, 50, tp=tp)
        return evaluate(Point(catalog.device(device), build(model, quantizer), work)), None
    except InputError as problem:
        return None, problem


def test_two_hundred_points():
    n_run = 0
    for device, model, tp, quantizer in draw(200, "points"):
        found, problem = answered(device, model, tp, quantizer)
        if problem:
            assert len(problem.lines()) == 1
            continue
        assert (found["infeasible_reason"] is None) == found["feasible"]
        if found["feasible"]:
            n_run += 1
            assert math.isfinite(found["throughput_tokens_per_s"])
            assert found["throughput_tokens_per_s"] > 0
            assert found["kv_bytes"] > 0
    assert n_run > 50


AT = ["--batch", "4", "--input", "2000", "--output", "50"]
LOG = str(Path(__file__).parents[1] / "validate" / "logs" / "vllm-minimax-m2.5-tp4.log")
SHORT = ["--input", "500", "--output", "20", "--requests", "50"]
#: options beside --device, --model, --tp and --quantizer, for each command that takes a model and a device
DRAWN_COMMANDS = {
    "point": [[*AT, "--json", "--operations"], [*AT, "--explain", "decode_step_s"], AT],
    "simulate": [[*SHORT, "--rate", "50%", "--json"], [*SHORT, "--rate", "2"]],
    "traffic": [["azure-conv", "--json"], ["azure-code", "--batch", "16"]],
    "ring": [["--devices", "4", "--json"], ["--devices", "2", "--input", "4000"]],
    "report": [["--batches", "4"]],
    "ask formats": [["--batch", "4", "--quantizers", "fp8", "--json"], ["--batch", "64", "--quantizers", "oaken,int8"]],
    "ask cross": [["--batches", "1,16", "--inputs", "512", "--json"], ["--batches", "4", "--inputs", "512,8192"]],
    "ask need": [
        ["bandwidth", "--throughput", "100", "--json"],
        ["capacity", "--throughput", "50", *AT],
        ["flops", "--step-ms", "40", "--json"],
        ["bits", "--step-ms", "60", *AT],
    ],
    "ask sensitivity": [["--json"], ["--against", "fp16", *AT]],
    "ask doubt": [["--json"], ["--against", "fp16", *AT]],
    "ask map": [["--batches", "1,16", "--inputs", "512,8192", "--json"]],
    "ask load": [["--json"], ["--batch", "16", *SHORT[:4]]],
    "ask interactivity": [
        ["--quantizers", "fp16,int8", "--splits", "1,2", "--json"],
        ["--quantizers", "fp8", *SHORT[:4]],
    ],
    "check-log": [[LOG, "--json"], [LOG]],
    "ask devices": [["--json"], ["--most", "4", *AT]],
}
#: commands without a model and a device, and what they take in their place
NOT_DRAWN = {
    "app": "pages: tests/explorer/test_explorer_any_point.py",
    "calibrate": "a table of measured times",
    "predict attention": "a table of shapes",
    "docs": "nothing",
    "check": "a file: below, of devices",
    "device add": "numbers: below, like a device",
    "list": "a kind",
    "show": "a name: below",
    "dump": "a language model's files",
    "lab": "a KV dump",
    "measure": "a KV dump",
    "mix": "measured errors",
    "quantize": "a KV dump",
    "synthesize": "ranges",
    "thresholds": "KV dumps",
    "model add": "a config.json",
    "model export": "a config.json",
    "scores": "published scores",
    "study": "a language model that ships",
    "sweep": "a file: below",
    "pareto": "what sweep wrote: below",
    "plot": "what other commands wrote: below",
    "validate claims": "what ships",
    "validate gains": "a table",
    "validate report": "what ships",
    "validate serving": "a table",
    "validate silicon": "what ships",
    "validate speed": "a table",
}
#: designs drawn where a command takes seconds: a format near a tie is decided at thousands of batches and prompts
N_DRAWN = {"report": 2, "ask formats": 3, "simulate": 4}
#: options that a command has in place of those of one design
ONE_OF_MANY = {"report": {"--device": "--devices", "--model": "--models", "--quantizer": "--quantizers"}}
#: numbers below 0: signed quantities, and the pool of a design that does not fit, by so many bytes
SIGNED = ("score_drop", "sqnr_db", "free_bytes", "with_room", "change", ".terms.", "log_")


def leaves(command, words=()):
    """(the words of a command, its options) of all commands below one."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from leaves(below, (*words, name))
    else:
        yield " ".join(words), {option for param in command.params for option in param.opts}


def test_no_command_is_forgotten():
    found = dict(leaves(cli.cli))
    assert set(found) == set(DRAWN_COMMANDS) | set(NOT_DRAWN)
    assert not set(DRAWN_COMMANDS) & set(NOT_DRAWN)
    for name, options in found.items():
        has_both = {"--device", "--model"} <= options or {"--devices", "--models"} <= options
        assert has_both == (name in DRAWN_COMMANDS), name


def numbers(value, name=""):
    """(name, number) of all numbers of a JSON document."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from numbers(below, f"{name}.{key}")
    elif isinstance(value, list):
        for below in value:
            yield from numbers(below, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def run(asked, capsys):
    """What a command prints; it gives one line on standard error where it has no answer, and no nonsense."""
    status = 0
    try:
        cli.main(asked)
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert "unexpected" not in err, asked
    if status:
        assert not out, asked
        assert len(err.strip().splitlines()) == 1, asked
        assert err.startswith("error: "), asked
        return ""
    assert out.strip(), asked
    if "--json" in asked:
        for name, number in numbers(json.loads(out)):
            assert math.isfinite(number), (asked, name)
            assert number >= 0 or any(word in name for word in SIGNED), (asked, name, number)
    else:
        assert not re.search(r"(?<![\w./-])(nan|NaN|inf|None)(?![\w./-])", out), asked
    return out


@pytest.mark.parametrize("command", DRAWN_COMMANDS)
@pytest.mark.slow
def test_every_command_answers_or_says_why(command, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(report, "REPORT", {})  # figures of any table: tests/figures
    monkeypatch.setattr(page, "REPORT", {})
    monkeypatch.setattr(report_static.Painter, "images", lambda *_: {})
    options = dict(leaves(cli.cli))[command]
    n_answered = n_drawn = 0
    for device, model, tp, quantizer in draw(N_DRAWN.get(command, 6), command):
        for beside in DRAWN_COMMANDS[command]:
            given = {"--device": device, "--model": model, "--quantizer": quantizer, "--tp": str(tp)}
            given = {ONE_OF_MANY.get(command, {}).get(name, name): value for name, value in given.items()}
            asked = [*command.split(), *beside]
            asked += [word for name, value in given.items() if name in options for word in (name, value)]
            asked += ["--out", str(tmp_path)] if command == "report" else []
            n_drawn += 1
            n_answered += bool(run(asked, capsys))
    assert n_answered >= n_drawn / 4


def test_sweeps_fronts_and_figures_of_them(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(report_static.Painter, "images", lambda *_: {})
    for i, (device, model, tp, quantizer) in enumerate(draw(4, "sweeps")):
        file, folder = tmp_path / f"{i}.toml", str(tmp_path / str(i))
        file.write_text(
            f'[axes]\ndevice = ["{device}", "h100"]\nmodel = ["{model}", "llama3.1-8b"]\nquantizer = ["{quantizer}", '
            f'"{"fp16" if quantizer == "fp8" else "fp8"}"]\nbatch = [1, 8]\ntp = [1, {2 * tp}]\n'
        )
        assert run(["sweep", str(file), "--out", folder, "--threads", "1"], capsys)
        best = ["pareto", folder, "--maximize", "throughput_tokens_per_s", "--minimize", "stored_bits"]
        assert run([*best, "--json"], capsys)
        assert run([*best, "--by", "model", "--out", f"{folder}-front"], capsys)
        assert run(["plot", "front", f"{folder}-front", "--out", f"{folder}.csv"], capsys)


def test_devices_and_models_shown_and_devices_like_them(capsys, tmp_path):
    for i, (device, model, _, quantizer) in enumerate(draw(8, "names")):
        for name in (device, model, quantizer):
            assert run(["show", name], capsys)
        file = str(tmp_path / f"{i}.toml")
        like = ["--memory", "80 GB", "--bandwidth", "2 TB/s", "--flops", "300 TFLOP/s", "--like", device]
        assert run(["device", "add", f"mine{i}", *like, "--out", file], capsys)
        assert run(["check", file], capsys)
        run(["point", *AT, "--device", file, "--model", model, "--json"], capsys)
