"""Every command in every way: text, `--json`, `--out`, over designs that fit and that do not, with switches that change
what is computed. It ends in an answer or in one line, and what has no answer leaves nothing behind."""

import io
import json
import math
import random
import re
import shutil
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dse.cli import main as cli
from dse.figures.drawing import layout
from dse.figures.export import image
from dse.specs import catalog

#: of answers, of input that is refused, of a limit
STATUSES = (0, 2, 5)
LOG = str(Path(__file__).parents[1] / "validate" / "logs" / "vllm-minimax-m2.5-tp4.log")
#: commands that take a model and a device, with what keeps them short; whether they take --out
COMMANDS = {
    "point": (("", "--operations", "--explain decode_step_s"), True),
    "simulate": (("--rate 50% --requests 20", "--rate 3 --requests 20", "--requests 20 --batching static"), True),
    "ask formats": (("--quantizers fp8", "--quantizers oaken,kivi --max-drop 1%"), True),
    "ask cross": (("--batches 1,3 --inputs 5", "--batches 2 --inputs 9 --measure step --against bf16"), True),
    "ask need": (
        (
            "bandwidth --throughput 100",
            "capacity --throughput 50",
            "flops --step-ms 40",
            "bits --step-ms 60",
            "bits --throughput 1e9",
        ),
        True,
    ),
    "ask sensitivity": (("", "--against fp16", "--measure energy"), True),
    "ask doubt": (("", "--against fp8"), True),
    "ask map": (("--batches 1,16 --inputs 64,2000 --quantizers fp8,kivi",), True),
    "ask load": (("", "--max-tpot 50ms", "--max-ttft 1s --loads 10%,100%"), True),
    "ask hits": (("--sessions 3 --turns 2 --quantizers fp8", "--sessions 40 --shared 2k --think 1s"), True),
    "ask interactivity": (("--splits 1,2 --quantizers fp8", "--max-tpot 20ms --quantizers fp16 --splits 1"), True),
    "recommend": (
        (
            "--rate 2 --most 2 --engines vllm",
            "--requests 9 --tpot 50ms --most 2",
            "--rate 0.1 --quantizers fp16,fp8 --objective energy --ttft 3s",
            "--requests 3 --quantizers fp16 --objective devices --budget 20/h",
        ),
        True,
    ),
    "ring": (("--devices 2",), False),
    "traffic": (("azure-conv --max-tokens 4096",), False),
    "check-log": ((LOG,), True),
}
#: half of all: one whose weights fit nowhere; with windows, with states, with latent and sparse attention, with experts
MODELS = ("llama3.1-8b", "gemma-3-1b", "mistral-7b", "gpt-oss-20b", "kimi-linear-48b-a3b", "deepseek-v3.2", "gpt2")
#: half of all: without a measured stack, of a paper, of a vendor without vLLM
DEVICES = ("h100", "rtx-4090", "oaken-lpddr", "m4-max", "tpu-v5e", "mi300x", "t4")
ANY_MODEL = st.sampled_from(MODELS) | st.sampled_from([*catalog.model_files()])
ANY_DEVICE = st.sampled_from(DEVICES) | st.sampled_from([*catalog.device_files()])
QUANTIZERS = ("fp16", "bfloat16", "fp8", "kivi", "sinkq", "oaken", "int4", "nvfp4", "turboquant_4bit_nc")
SWITCHES = (
    "--no-kv-cache",
    "--strict-kernels",
    "--model-kind ideal",
    "--memory paper",
    "--admission reserve",
    "--dp-attention",
    "--dequant-path materialised",
    "--tokens window:sinks=4,recent=100",
    "--tokens topk:k=64",
    "--weights fp8",
    "--stack sglang",
    "--kv-cache-memory 1000000",
    "--gpu-memory-utilization 0.0001",
    "--free-memory 1000000000",
    "--max-model-len 100",
    "--max-num-seqs 1",
    "--prompt-budget 1",
    "--pp 2",
    "--ep 2",
    "--dcp 2",
    "--prefix 5",
    "--rounds 3",
    "--page 1",
)
#: commands without a model and a device, and what they take in their place
NOT_DRAWN = {
    "report": "of many designs: tests/report",
    "app": "pages: tests/explorer/test_explorer_any_point.py",
    "calibrate": "a table of measured times",
    "calibrate server": "rows of a server",
    "predict attention": "a table of shapes",
    "docs": "nothing",
    "mcp": "calls of an agent: tests/test_agents.py",
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
#: numbers below 0: signed quantities, and the pool of a design that does not fit, by so many bytes
SIGNED = ("score_drop", "sqnr_db", "free_bytes", "with_room", "change", ".terms.", "log_")
#: a value of each of these, where a command has them
VALUES = {
    "--tp": ("1", "2", "8"),
    "--batch": ("1", "7", "100000"),
    "--input": ("1", "500", "200000"),
    "--output": ("1", "2", "300"),
}


def leaves(command, words=()):
    """(the words of a command, its options) of all commands below one."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from leaves(below, (*words, name))
    else:
        yield " ".join(words), {option for param in command.params for option in (*param.opts, *param.secondary_opts)}


OPTIONS = dict(leaves(cli.cli))


@st.composite
def asked(draw, commands=tuple(COMMANDS)):
    """The words of a command, and whether it writes files."""
    command = draw(st.sampled_from(commands))
    besides, writes = COMMANDS[command]
    words = [*command.split(), *draw(st.sampled_from(besides)).split()]
    words += ["--device", draw(ANY_DEVICE), "--model", draw(ANY_MODEL)]
    own = OPTIONS[command]
    if "--quantizer" in own:
        words += ["--quantizer", draw(st.sampled_from(QUANTIZERS))]
    for name, values in VALUES.items():
        if name in own and draw(st.booleans()):
            words += [name, draw(st.sampled_from(values))]
    for switch in draw(st.lists(st.sampled_from(SWITCHES), max_size=3, unique=True)):
        if switch.split()[0] in own and switch.split()[0] not in words:
            words += switch.split()
    ways = draw(st.sampled_from(("text", "json", "out", "both") if writes else ("text", "json")))
    return [*words, *(["--json"] if ways in ("json", "both") else [])], ways in ("out", "both")


def called(words):
    """Status, standard output and standard error of a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stop:
        cli.main(words)
    return stop.value.code, out.getvalue(), err.getvalue()


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


def check(words, writes, folder):
    """A command ends in an answer with its files, or in one line and no file."""
    target = folder / "new" / "out"
    status, out, err = called([*words, *(["--out", str(target)] if writes else [])])
    assert status in STATUSES, (status, err)
    if status:
        assert not out
        assert err.startswith("error: ")
        assert err.count("\n") == 1, err
        assert not list(folder.iterdir()), "left behind"
        return
    assert out.strip()
    if "--json" in words:
        for name, number in numbers(json.loads(out)):
            assert math.isfinite(number), name
            assert number >= 0 or any(word in name for word in SIGNED), (name, number)
    else:
        assert not re.search(r"(?<![\w./-])(nan|NaN|inf|None)(?![\w./-])", out), out
    if writes:
        written = list(target.rglob("*")) if target.is_dir() else [target]
        assert written
        assert not [path for path in written if path.name.startswith(".")]
    shutil.rmtree(folder / "new", ignore_errors=True)


@pytest.fixture
def laid_out(monkeypatch):
    """Figures are laid out and written as pages, not drawn."""
    monkeypatch.setattr(image, "images", lambda chart, *_: layout.place(chart) and {})


#: designs on which these once failed: no bytes to read, nothing fits, no room on the way; a file in place of a folder;
#: an axis without a power of two
FAILED = (
    "point --device h100 --model llama3.1-8b --no-kv-cache",
    "ask interactivity --device rtx-4090 --model deepseek-v3.2 --splits 1 --quantizers fp16",
    "simulate --device rtx-4090 --model deepseek-v3.2 --requests 2 --rate 1",
    "ask load --device h100 --model kimi-linear-48b-a3b --quantizer fp16",
    "ask load --max-tpot 50ms --device h100 --model llama3.1-8b --quantizer fp16 --output 1 --no-kv-cache",
    f"check-log {LOG} --device h100 --model llama3.1-8b --quantizer fp16",
    "ask cross --batches 1,3 --inputs 5 --device h100 --model gpt2 --quantizer kivi --output 20 --prefix 5",
)


@example((FAILED[0].split(), True))
@example((FAILED[1].split(), True))
@example((FAILED[2].split(), True))
@example((FAILED[3].split(), True))
@example((FAILED[4].split(), False))
@example((FAILED[5].split(), True))
@example((FAILED[6].split(), True))
@given(asked())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_command_in_any_way_ends_in_an_answer_or_a_line(laid_out, drawn):
    with tempfile.TemporaryDirectory() as folder:
        check(*drawn, Path(folder))


def test_no_command_is_forgotten():
    assert set(OPTIONS) == set(COMMANDS) | set(NOT_DRAWN)
    assert not set(COMMANDS) & set(NOT_DRAWN)
    for name, options in OPTIONS.items():
        if name == "calibrate server":  # device and model of rows that do not say them
            continue
        assert ({"--device", "--model"} <= options) == (name in COMMANDS), name
    for command, (_, writes) in COMMANDS.items():
        assert ("--out" in OPTIONS[command]) == writes, command


def draw(n, what):
    """Designs drawn at random, the same at every run, others for each thing tested."""
    drawn, devices, models = random.Random(f"20261123 {what}"), [*catalog.device_files()], [*catalog.model_files()]
    return [
        (drawn.choice(devices), drawn.choice(models), drawn.choice([1, 1, 2, 4, 8]), drawn.choice(QUANTIZERS))
        for _ in range(n)
    ]


def answer(words):
    """What a command prints that must answer."""
    status, out, err = called(words)
    assert (status, err) == (0, "")
    return out


def test_sweeps_fronts_and_figures_of_them(laid_out, tmp_path):
    for i, (device, model, tp, quantizer) in enumerate(draw(4, "sweeps")):
        file, folder = tmp_path / f"{i}.toml", str(tmp_path / str(i))
        file.write_text(
            f'[axes]\ndevice = ["{device}", "h100"]\nmodel = ["{model}", "llama3.1-8b"]\nquantizer = ["{quantizer}", '
            f'"{"fp16" if quantizer == "fp8" else "fp8"}"]\nbatch = [1, 8]\ntp = [1, {2 * tp}]\n'
        )
        assert answer(["sweep", str(file), "--out", folder, "--threads", "1"])
        best = ["pareto", folder, "--maximize", "throughput_tokens_per_s", "--minimize", "stored_bits"]
        assert answer([*best, "--json"])
        assert answer([*best, "--by", "model", "--out", f"{folder}-front"])
        assert answer(["plot", "front", f"{folder}-front", "--out", f"{folder}.csv"])


def test_devices_and_models_shown_and_devices_like_them(tmp_path):
    for i, (device, model, _, quantizer) in enumerate(draw(8, "names")):
        for name in (device, model, quantizer):
            assert answer(["show", name])
        file = str(tmp_path / f"{i}.toml")
        like = ["--memory", "80 GB", "--bandwidth", "2 TB/s", "--flops", "300 TFLOP/s", "--like", device]
        assert answer(["device", "add", f"mine{i}", *like, "--out", file])
        assert answer(["check", file])
        called(
            ["point", "--batch", "4", "--input", "2000", "--output", "50", "--device", file, "--model", model, "--json"]
        )
