"""`dse calibrate server`: what rows of one's own server say, the file, and rows that say nothing."""

import json
import math
from pathlib import Path

import pytest

from dse.cli import main as cli
from dse.specs import measured_memory
from dse.validate import own_server, speed

HEAD = "id,engine,version,model,device,weights,concurrency,requests,input_tokens,output_tokens,tp,measured_tpot_ms"
#: loads of a server: concurrency, prompt, answer
LOADS = ((4, 1024, 256), (16, 1024, 256), (64, 1024, 256), (16, 4096, 256), (64, 4096, 256))


def row(name, load, tp, tpot_ms, **changes):
    named = {
        "engine": "vllm",
        "version": "0.19.1",
        "model": "llama3.1-8b",
        "device": "h100",
        "weights": "bf16",
    } | changes
    batch, inputs, outputs = load
    return ",".join(map(str, (name, *named.values(), batch, 10 * batch, inputs, outputs, tp, tpot_ms)))


def table(path, *rows, head=HEAD):
    path.write_text("\n".join([head, *rows]) + "\n")
    return str(path)


@pytest.fixture
def run(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, words)])
        return (ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def server(tmp_path):
    """A server that takes 1.5 times as long as predicted on one device and 1.4 times on two, a few percent off at each
    load: its rows by number of devices."""
    rows = {}
    for tp, factor in ((1, 1.5), (2, 1.4)):
        plain = [row(f"{tp}-{i}", load, tp, 10) for i, load in enumerate(LOADS)]
        judged = speed.run(table(tmp_path / "plain.csv", *plain))
        tpots = [next(value.ours for value in one.values if value.what == "tpot") for one in judged]
        noise = (1.03, 0.97, 1.0, 0.98, 1.02)
        rows[tp] = [
            row(f"{tp}-{i}", load, tp, 1e3 * tpot * factor * noise[i])
            for i, (load, tpot) in enumerate(zip(LOADS, tpots, strict=True))
        ]
    return rows


def test_two_points_correct_other_loads_and_other_splits(tmp_path, server):
    """The others of that split were 50 % off and are by a tenth of it; those of two devices follow, a little less."""
    out = tmp_path / "own.toml"
    found = own_server.calibrate([table(tmp_path / "t.csv", *server[1][1:3])], str(out), {})
    assert measured_memory.times_of(str(out)) == found.times
    off = {}
    for tp, rows in server.items():
        judged = speed.read(table(tmp_path / "others.csv", *(rows if tp == 2 else [rows[0], *rows[3:]])))
        for name, calibrated in (("before", None), ("now", str(out))):
            errors = []
            for one in judged:
                work = speed.replace(one.work, calibrated=calibrated)
                value = next(v for v in speed.judge(speed.replace(one, work=work)).values if v.what == "tpot")
                errors.append(abs(value.off))
            off[tp, name] = math.fsum(errors) / len(errors)
    assert off[1, "before"] > 0.3
    assert off[1, "now"] < 0.06
    assert off[2, "before"] > 0.25
    assert off[2, "now"] < 0.06


def test_the_text_says_what_changed_and_how_sure(tmp_path, server, run):
    out = tmp_path / "own.toml"
    code, text, err = run("calibrate", "server", table(tmp_path / "t.csv", *server[1][:3], server[2][0]), "--out", out)
    assert code == 0, err
    lines = text.splitlines()
    assert lines[0] == "vllm: llama3.1-8b on H100, 4 points of t.csv"
    assert any(line.startswith("other tp or pp") for line in lines)
    assert "vllm@0.19.1, bf16, fp16 KV, tp 2" in text
    assert {point.quantizer for point in measured_memory.times_of(str(out)).points} == {"fp16"}
    assert "Points that the others predict: off by" in text
    assert lines[-1] == f"written: {out}"
    words = ("point", "--device", "h100", "--model", "llama3.1-8b", "--stack", "vllm@0.19.1", "--calibrated", out)
    code, text, err = run(*words)
    assert code == 0, err
    assert f"Note: calibrated: {out}, 4 points, factor 1.4" in text
    code, text, _ = run(*words[:2], "h200", *words[3:])
    assert code == 0
    assert f"Note: calibrated: {out}, not used: of H100, not H200" in text


def test_the_result_of_a_benchmark_and_what_it_does_not_say(tmp_path, server, run):
    """Lines of JSON as `vllm bench serve` writes them; device and engine are options."""
    one = {"completed": 160, "output_throughput": 900.0, "total_input_tokens": 160 * 1024, "max_concurrency": 16}
    one |= {"total_output_tokens": 160 * 256, "mean_tpot_ms": 12.0, "model_id": "llama3.1-8b", "request_rate": "inf"}
    path, out = tmp_path / "r.json", tmp_path / "own.toml"
    path.write_text(json.dumps(one) + "\n" + json.dumps({**one, "mean_tpot_ms": 12.5}) + "\n")
    code, _, err = run("calibrate", "server", path, "--out", out)
    assert (code, out.exists()) == (2, False)
    assert "or say it as --device 8xh200" in err
    code, _, err = run(
        "calibrate", "server", path, "--out", out, "--device", "h100", "--stack", "vllm@0.19.1", "--json"
    )
    assert code == 0, err
    assert len(measured_memory.times_of(str(out)).points) == 2


def test_lines_of_numbers_stand_for_files(tmp_path, server, run):
    """Two runs on the command line are two rows of a table; a file may stand beside."""
    out, named = tmp_path / "own.toml", ("--device", "h100", "--model", "llama3.1-8b", "--stack", "vllm@0.19.1")
    lines = ("tpot=9.5ms ttft=41ms concurrency=4 input=1024 output=256", "tpot=0.0125 s, conc=16 isl=1024 output=256")
    code, _, err = run("calibrate", "server", *lines, "--weights", "bf16", *named, "--out", out)
    assert code == 0, err
    by_lines = measured_memory.times_of(str(out)).points
    rows = [row("a", LOADS[0], 1, 9.5), row("b", LOADS[1], 1, 12.5)]
    own_server.calibrate([table(tmp_path / "t.csv", *rows)], str(out), {})
    by_table = measured_memory.times_of(str(out)).points
    assert [one.id for one in by_lines] == ["line 1", "line 2"]
    over = [[one.measured_over_predicted for one in points] for points in (by_lines, by_table)]
    assert over[0] == pytest.approx(over[1])
    code, text, err = run("calibrate", "server", lines[0], table(tmp_path / "t.csv", *rows), *named, "--out", out)
    assert code == 0, err
    assert text.startswith("vllm: llama3.1-8b on H100, 3 points of the command line, t.csv")


LINE = "concurrency=4 input=1024 output=256"
BAD_LINES = [
    (f"tpot=9.5 {LINE}", ": tpot = '9.5': has no unit: unit must be one of ns, us, ms, s"),
    (f"tpot=9.5us {LINE}", "times less than predicted: give milliseconds"),
    (f"tpot=50ms {LINE}", "times more than predicted"),
    (f"tpot=9.5ms tpot=9ms {LINE}", ": tpot = '9ms': is given twice"),
    (f"tpot=9.5ms inptu=4 {LINE}", ": inptu: did you mean input, inp?"),
    ("tpot=9.5ms concurrency=4 input=1024", ": output_tokens: must be there: add output_tokens=OUTPUT_TOKENS"),
    (f"ttft=9.5ms {LINE}", "measured_tpot_ms = '': must be there"),
    ("tpot=9.5ms concurrency=4.5 input=1024 output=256", "concurrency = '4.5': must be a whole number"),
]


@pytest.mark.parametrize(("line", "says"), BAD_LINES)
def test_a_line_that_says_too_little_is_a_line(tmp_path, run, line, says):
    out = tmp_path / "own.toml"
    named = ("--device", "h100", "--model", "llama3.1-8b", "--stack", "vllm@0.19.1", "--out", out)
    code, text, err = run("calibrate", "server", line, *named)
    assert (code, text, out.exists()) == (2, "", False)
    assert says in err
    assert err.count("error: ") == 1
    assert len(err.splitlines()[-1]) <= 310


BAD = [
    ((row("a", LOADS[0], 1, 9), row("b", LOADS[1], 1, 9, device="h200")), "t.csv:3: device = 'H200': is another"),
    ((row("a", LOADS[0], 1, 9), row("b", LOADS[1], 1, 9, engine="sglang")), "t.csv:3: engine = 'sglang': is another"),
    (
        (row("a", LOADS[0], 1, 9), row("b", LOADS[1], 1, 9, model="qwen3-32b")),
        "t.csv:3: model = 'qwen3-32b': is another",
    ),
    ((row("a", LOADS[0], 1, 9), row("b", LOADS[1], 1, 0.009)), "t.csv:3: measured_tpot_ms = 0.009: is"),
    ((row("a", LOADS[0], 1, 9), row("b", LOADS[1], 1, 50)), "times more than predicted"),
    ((row("a", LOADS[0], 1, 9), row("b", LOADS[1], 1, 1)), "times less than predicted"),
    ((row("a", LOADS[0], 1, 9), row("b", LOADS[1], 1, "")), "t.csv:3: measured_tpot_ms = '': nothing was measured"),
    ((row("a", LOADS[0], 1, 9), row("b", LOADS[1], 1, 9, model="")), "t.csv:3: model = '': must be there"),
    ((row("a", LOADS[0], 1, 9), row("b", LOADS[1], 1, 9, model="gpt-9")), "t.csv:3: unknown model 'gpt-9'"),
    ((), "t.csv: "),
]


@pytest.mark.parametrize(("rows", "says"), BAD)
def test_rows_that_say_nothing_are_one_line_and_write_nothing(tmp_path, run, rows, says):
    out = tmp_path / "own.toml"
    out.write_text("as it was\n")
    code, text, err = run("calibrate", "server", table(tmp_path / "t.csv", *rows), "--out", out)
    assert (code, text, out.read_text()) == (2, "", "as it was\n")
    assert says in err
    assert err.count("error: ") == 1
    assert len(err.splitlines()[-1]) <= 310


def test_a_model_that_rows_do_not_name_is_an_option(tmp_path, run):
    rows = [",".join(cell for i, cell in enumerate(row("a", load, 1, 9).split(",")) if i != 3) for load in LOADS[:1]]
    path = table(tmp_path / "t.csv", *rows, head=HEAD.replace("model,", ""))
    out = tmp_path / "own.toml"
    code, _, err = run("calibrate", "server", path, "--out", out)
    assert code == 2
    assert "column model is missing" in err
    code, _, err = run("calibrate", "server", path, "--out", out, "--model", "llama3.1-8b")
    assert code == 0, err


def test_out_is_toml_and_a_table_named_otherwise_still_fits_a_device(tmp_path, run):
    code, _, err = run("calibrate", "server", "t.csv", "--out", tmp_path / "own.json")
    assert (code, "must end in .toml" in err) == (2, True)
    code, _, err = run("calibrate", tmp_path / "none.csv", "--device", "h100", "--out", tmp_path / "d.toml")
    assert code == 2
    assert "none.csv" in err


def test_a_start_up_log_of_the_same_server_is_kept_beside(tmp_path, run):
    """Its memory then counts with the times; a log of another server, here of other weights, is refused."""
    path, out = table(tmp_path / "t.csv", row("a", LOADS[0], 1, 9), row("b", LOADS[1], 1, 10)), tmp_path / "own.toml"
    logs = Path(__file__).parent / "logs"
    named = ("calibrate", "server", path, "--device", "h100", "--out", out)
    code, _, err = run(*named, "--log", logs / "vllm-0.19-llama-3.1-8b-fp32.log")
    assert (code, out.exists()) == (2, False)
    assert "log: is of llama3.1-8b in fp32 on H100 under vllm, tp 1, pp 1, ep 1, which no row was measured on" in err
    code, _, err = run(*named, "--log", logs / "vllm-0.19-llama-3.1-8b.log")
    assert code == 0, err
    words = ("point", "--device", "h100", "--model", "llama3.1-8b", "--stack", "vllm@0.19.0", "--calibrated", out)
    code, text, err = run(*words)
    assert code == 0, err
    assert f"Note: memory as {out} has it (start-up log of vLLM 0.19.0" in text
    assert f"Note: calibrated: {out}, 2 points" in text
