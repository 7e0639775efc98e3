"""Every command in every way: text, `--json`, `--out`, over designs that fit and that do not, with switches that change
what is computed. It ends in an answer or in one line, and what has no answer leaves nothing behind."""

import io
import json
import shutil
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dse.cli import main as cli
from dse.figures.drawing import layout
from dse.figures.export import static

#: of answers, of input that is refused, of a limit
STATUSES = (0, 2, 5)
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
    "ask interactivity": (("--splits 1,2 --quantizers fp8", "--max-tpot 20ms --quantizers fp16 --splits 1"), True),
    "ask devices": (("--most 2",), False),
    "ring": (("--devices 2",), False),
    "traffic": (("azure-conv --max-tokens 4096",), False),
}
#: one whose weights fit nowhere; with windows, with states, with latent and sparse attention, with experts
MODELS = ("llama3.1-8b", "gemma-3-1b", "mistral-7b", "gpt-oss-20b", "kimi-linear-48b-a3b", "deepseek-v3.2", "gpt2")
#: without a measured stack, of a paper, of a vendor without vLLM
DEVICES = ("h100", "rtx-4090", "oaken-lpddr", "m4-max", "tpu-v5e", "mi300x", "t4")
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
#: a value of each of these, where a command has them
VALUES = {
    "--tp": ("1", "2", "8"),
    "--batch": ("1", "7", "100000"),
    "--input": ("1", "500", "200000"),
    "--output": ("1", "2", "300"),
}


def options_of(command):
    group = cli.cli
    for word in command.split():
        group = group.commands[word]
    return {option for param in group.params for option in (*param.opts, *param.secondary_opts)}


OPTIONS = {command: options_of(command) for command in COMMANDS}


@st.composite
def asked(draw, commands=tuple(COMMANDS)):
    """The words of a command, and whether it writes files."""
    command = draw(st.sampled_from(commands))
    besides, writes = COMMANDS[command]
    words = [*command.split(), *draw(st.sampled_from(besides)).split()]
    words += ["--device", draw(st.sampled_from(DEVICES)), "--model", draw(st.sampled_from(MODELS))]
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
        json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    if writes:
        assert [one.name for one in target.iterdir() if not one.name.startswith(".")]
        assert not [one.name for one in target.rglob(".*")]
    shutil.rmtree(folder / "new", ignore_errors=True)


@pytest.fixture
def laid_out(monkeypatch):
    """Figures are laid out and written as pages, not drawn."""
    monkeypatch.setattr(static.Painter, "images", lambda self, chart, *_: layout.place(chart) and {})


#: designs on which these once failed: no bytes to read, nothing fits, no room on the way
FAILED = (
    "point --device h100 --model llama3.1-8b --no-kv-cache",
    "ask interactivity --device rtx-4090 --model deepseek-v3.2 --splits 1 --quantizers fp16",
    "simulate --device rtx-4090 --model deepseek-v3.2 --requests 2 --rate 1",
)


@example((FAILED[0].split(), True))
@example((FAILED[1].split(), True))
@example((FAILED[2].split(), True))
@given(asked())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_command_in_any_way_ends_in_an_answer_or_a_line(laid_out, drawn):
    with tempfile.TemporaryDirectory() as folder:
        check(*drawn, Path(folder))


def test_all_of_them_are_commands_with_these_options():
    for command, (_, writes) in COMMANDS.items():
        assert {"--device", "--model", "--json"} <= OPTIONS[command], command
        assert ("--out" in OPTIONS[command]) == writes, command
