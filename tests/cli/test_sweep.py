"""`dse sweep` from the outside: what it prints, its exit status, Ctrl-C in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cases import each
from dse.cli import main as cli
from dse.core import interrupt
from dse.sweep import parts as sweep_parts
from dse.sweep import spec as sweep_spec
from dse.sweep import store as sweep_store

SPEC = """
title = "Three quantizers"
where = ["batch * input_tokens <= 65536", "oaken.outer <= 0.05"]
[axes]
device = ["a100-80gb", "oaken-hbm"]
model = ["llama2-7b", "llama2-70b"]
quantizer = ["fp16", "oaken", "kivi"]
oaken.outer = { from = 0.0, to = 0.1, step = 0.05 }
input_tokens = [512, 1024]
batch = { from = 1, to = 256, factor = 4 }
"""
#: 2 devices x 2 models x (1 + 3 + 1 quantizers) x 2 lengths x 5 batches
N_POINTS = 200
#: oaken.outer <= 0.05 leaves 4 of 5 quantizers; batch * input <= 65536 drops batch 256 at 512 and 1,024
N_ROWS = 2 * 2 * 4 * (4 + 4)


@pytest.fixture
def run(run, tmp_path, monkeypatch):
    """`run` in a folder that holds SPEC as spec.toml."""
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text(SPEC)
    return run


def test_a_sweep_and_the_same_again(run):
    status, out, err = run("sweep", "spec.toml", "--out", "out", "--threads", "2")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert re.fullmatch(
        rf"{N_POINTS} points, of which the conditions leave {N_ROWS}; "
        r"about [0-9.e-]+ s on one core; at most [0-9.]+ kB",
        lines[0],
    )
    assert re.fullmatch(rf"sweep: out \({N_ROWS} rows, 1 part, [0-9.]+ kB\)", lines[1])
    # 140 GB of weights of Llama2-70B fit into neither device
    assert lines[2:] == ["  64 rows: feasible", "  64 rows: the weights alone are larger than the memory"]
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    status, out, _ = run("sweep", "spec.toml", "--out", "out")
    assert "complete before: every part checked against its hash" in out
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before
    status, out, _ = run("sweep", "spec.toml", "--out", "out", "--json")
    answer = json.loads(out)
    assert (answer["n_points"], answer["n_rows"], answer["n_parts_written"]) == (N_POINTS, N_ROWS, 0)
    assert answer["rows_by_infeasible_code"] == {"0": 64, "1": 64, "2": 0, "3": 0, "4": 0}


def test_verify(run):
    run("sweep", "spec.toml", "--out", "out")
    assert run("sweep", "--verify", "out") == (0, f"verified: out ({N_ROWS} rows, 1 part)\n", "")
    part = Path("out/part-000000.parquet")
    good = part.read_bytes()
    part.write_bytes(good[:99] + bytes([good[99] ^ 1]) + good[100:])
    status, out, err = run("sweep", "--verify", "out")
    assert status == 4
    assert out == "part-000000.parquet is damaged (its SHA-256 is another)\n"
    assert err == "error: 'out': 1 problem: run `dse sweep` again, it repairs them\n"
    status, out, _ = run("sweep", "--verify", "out", "--json")
    assert (status, json.loads(out)["problems"]) == (4, ["part-000000.parquet is damaged (its SHA-256 is another)"])
    status, _, err = run("sweep", "spec.toml", "--out", "out")
    assert (status, err) == (
        0,
        "part-000000.parquet is damaged (its SHA-256 is another): set aside as _part-000000.parquet.bad\n",
    )
    assert part.read_bytes() == good
    assert run("sweep", "--verify", "out")[0] == 0


def test_dry_run_writes_nothing(run):
    status, out, _ = run("sweep", "spec.toml", "--out", "out", "--dry-run")
    assert status == 0
    assert out.startswith("200 points")
    status, out, _ = run("sweep", "spec.toml", "--out", "out", "--dry-run", "--json")
    assert json.loads(out)["n_points"] == 200
    status, nowhere, _ = run("sweep", "spec.toml", "--dry-run", "--json")  # where it would be written is no matter
    times = {"expected_s": 0.0}
    assert (status, json.loads(nowhere) | times) == (0, json.loads(out) | times)
    assert not Path("out").exists()


def test_limits_and_the_flag_that_lifts_them(run, monkeypatch):
    from dse.sweep import run as sweep_run

    monkeypatch.setattr(sweep_run, "MAX_POINTS", 199)
    for where in (("--out", "out"), ("--dry-run",)):
        status, out, err = run("sweep", "spec.toml", *where)
        assert (status, out) == (5, "")
    assert err == "error: sweep of 200 points: at most 199: shorten an axis, or lift it with --no-limit\n"
    assert not Path("out").exists()
    assert run("sweep", "spec.toml", "--out", "out", "--no-limit")[0] == 0


@each(
    ("args", "status", "text"),
    [
        (["spec.toml"], 2, "--out is missing"),
        ([], 2, "FILE is missing"),
        (["none.toml", "--out", "out"], 2, "none.toml: cannot be read"),
        (["spec.toml", "--out", "spec.toml"], 2, "out = 'spec.toml': is a file: give a directory"),
        (["spec.toml", "--out", "."], 2, "holds files such as 'spec.toml': give another directory"),
        (["spec.toml", "--out", "spec.toml/out"], 4, "cannot write 'spec.toml/out': not a directory"),
        (["spec.toml", "--out", "/proc/out"], 4, "cannot write '/proc/out': '/proc' is not a file system"),
        (["spec.toml", "--out", ""], 2, "is not a directory name"),
        (["spec.toml", "--out", "out", "--threads", "0"], 2, "threads = 0"),
        (["spec.toml", "--out", "out", "--threads", "many"], 2, "threads = 'many': must be a whole number"),
        (["spec.toml", "--out", "out", "--threads", "100000"], 2, "from 1 to 1,024"),
        (["spec.toml", "--out", "out", "--thraeds", "2"], 2, "unknown option '--thraeds': did you mean --threads"),
        (["spec.toml", "--verify", "out"], 2, "takes a directory alone"),
        (["--verify", "."], 2, "holds no sweep"),
        (["--verify", "none"], 2, "is not a directory"),
    ],
)
def test_bad_arguments(run, args, status, text):
    found, out, err = run("sweep", *args)
    assert (found, out) == (status, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert text in err
    assert {path.name for path in Path().iterdir()} == {"spec.toml"}


def test_in_use_by_another(run):
    with sweep_store.locked("out"):
        status, _, err = run("sweep", "spec.toml", "--out", "out")
    assert status == 3
    assert err == f"error: 'out' is being written by another sweep (process {os.getpid()}): wait for it\n"


def test_another_sweep(run):
    run("sweep", "spec.toml", "--out", "out")
    Path("spec.toml").write_text(SPEC.replace("512", "513"))
    status, _, err = run("sweep", "spec.toml", "--out", "out")
    assert (status, err) == (
        2,
        "error: out = 'out': holds another sweep ('Three quantizers'): give another directory\n",
    )


#: `dse` whose parts each take a second more, so that there is a middle to stop it in
SLOW = """
import time
from dse.sweep import parts
make_part = parts.make_part
parts.make_part = lambda *given: time.sleep(1) or make_part(*given)
from dse.cli import commands
commands.PATIENCE_S = 86_400.0
from dse.__main__ import main
main()
"""


def test_ctrl_c_whose_error_is_lost_in_a_finalizer(run, monkeypatch):
    """Python ignores errors of finalizers, a KeyboardInterrupt among them: the sweep stops all the same."""
    make_part = sweep_parts.make_part

    def pressed(*given):
        monkeypatch.setattr(interrupt, "_pressed", True)
        return make_part(*given)

    monkeypatch.setattr(sweep_parts, "make_part", pressed)
    Path("spec.toml").write_text(SPEC.replace("factor = 4", "step = 1"))
    status, _, err = run("sweep", "spec.toml", "--out", "out", "--threads", "1")
    assert (status, err) == (130, "stopped: finished parts are kept: `dse sweep spec.toml --out out` goes on\n")


@pytest.mark.slow
def test_ctrl_c_in_a_process_of_its_own(run):
    """Stopped in the middle of a part; finished after that, like an undisturbed run."""
    Path("spec.toml").write_text(SPEC.replace("factor = 4", "step = 1"))
    assert sweep_store.n_parts(sweep_spec.read("spec.toml")) == 3
    command = [sys.executable, "-c", SLOW, "sweep", "spec.toml", "--out", "out", "--threads", "1"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell's background jobs ignore SIGINT, and so would what they start
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not Path("out/_spec.json").exists():
        time.sleep(0.01)
        assert child.poll() is None
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == "stopped: finished parts are kept: `dse sweep spec.toml --out out` goes on\n"
    assert not [path for path in Path("out").iterdir() if path.name.endswith(".part")]
    with pytest.raises(SystemExit):
        cli.main(["sweep", "--verify", "out"])
    assert run("sweep", "spec.toml", "--out", "out")[0] == 0
    assert run("sweep", "spec.toml", "--out", "undisturbed")[0] == 0
    contents = [{path.name: path.read_bytes() for path in Path(out).iterdir()} for out in ("out", "undisturbed")]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("name", ["tpot_s", "ttft_s"])
def test_a_result_that_was_renamed_is_refused_with_its_name_now(run, tmp_path, name):
    path = tmp_path / "own.csv"
    path.write_text(f"{name},throughput_tokens_per_s\n1,2\n")
    code, _, err = run("pareto", path, "--minimize", f"steady_{name}")
    assert (code, len(err.splitlines())) == (2, 1)
    assert err.strip().endswith(f"it is now {name}")
