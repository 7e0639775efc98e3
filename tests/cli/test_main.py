"""The command line: what it prints, and one line with exit status 2, 4 or 5 for every bad input."""

import json
import os
import pickle
import re
import shlex
import socket
import subprocess
import sys
import time

import pytest

import dse
from cases import each
from dse import quantizers
from dse.cli import main as cli
from dse.model import engine
from dse.model import kv_layout as plan
from dse.model.point import Point
from dse.model.results import RESULT_UNITS
from dse.operations import declare, every
from dse.specs import catalog
from dse.specs import device_and_model as specs
from dse.specs.workload import Workload
from factories import assert_one_line

GOOD = ["point", "--device", "a100-80gb", "--model", "llama2-7b"]

DEVICE = """
name = "Mine"
memory_capacity = "80 GB"
memory_bandwidth = { value = 3.35, unit = "TB/s", source = "data sheet", kind = "datasheet" }
peak_flops = "989 TFLOP/s"
"""

MODEL = """
name = "my-7b"
n_layers = 32
hidden_size = 4096
n_q_heads = 32
n_kv_heads = 8
head_dim = 128
ffn_size = 11008
vocab_size = 32000
"""


@each(
    ("args", "parts"),
    [
        (["--device", "a100"], ["unknown device 'a100'", "A100-80GB".lower()]),
        (["--device", ""], ["unknown device ''"]),
        (["--model", "lama2-7b"], ["unknown model 'lama2-7b'", "did you mean llama2-7b"]),
        (["--quantizer", "oakn"], ["unknown quantizer 'oakn'", "did you mean oaken"]),
        (["--quantizer", "oaken:outer=1.5"], ["outer = '1.5'", "0 to 1"]),
        (["--quantizer", "oaken:outer=0.6,inner=0.6"], ["outer + inner = 1.2"]),
        (["--quantizer", "oaken:outer=nan"], ["outer = 'nan'"]),
        (["--quantizer", "sinkq:group=0"], ["group = '0'", "from 4 to 65,536"]),
        (["--quantizer", "nqkv:block=0"], ["block = '0'"]),
        (["--quantizer", "kivi:group=33"], ["residual = 128", "multiple of group = 33"]),
        (["--quantizer", "sinkq:group=33"], ["group = 33", "multiple of 16"]),
        (["--quantizer", "kivi:group=32,group=64"], ["given twice"]),
        (["--key-quantizer", "x"], ["unknown quantizer 'x'"]),
        (["--quantizer", "oaken:groups=1e999999999/90/6"], ["2 to 5 percentages"]),
        (["--quantizer", "oaken:dense=4"], ["needs groups"]),
        (["--batch", "0"], ["batch = 0", "1 to 16,777,216"]),
        (["--batch", "-1"], ["batch = -1"]),
        (["--batch", "1.5"], ["batch = '1.5'", "whole number"]),
        (["--batch", "many"], ["batch = 'many'"]),
        (["--batch", str(2**63)], ["batch = 9223372036854775808"]),
        (["--batch", "9" * 5000], ["batch = '999", "whole number"]),
        (["--batch", "١٢"], ["whole number"]),
        (["--input", "0"], ["input = 0"]),
        (["--input", "-5"], ["input = -5"]),
        (["--output", "0"], ["output = 0"]),
        (["--output", "nan"], ["output = 'nan'"]),
        (["--page", "0"], ["page = 0"]),
        (["--prefix", "2000"], ["prefix = 2000", "0 to 1,024"]),
        (["--weights-bits", "3"], ["weights-bits = 3", "16, 8, 4"]),
        (["--admission", "maybe"], ["admission = 'maybe'", "reserve, paged"]),
        (["--dequant-path", "magic"], ["dequant-path = 'magic'", "engine, fused, materialised"]),
        (["--quantizer", "oaken", "--dequant-path", "engine"], ["has no engine"]),
        (["--btach", "3"], ["unknown option '--btach'", "--batch"]),
        (["--swap-space", "4"], ["'--swap-space' is an engine's", "not-modeled.md"]),
        (["-q", "awq"], ["'-q' is an engine's", "--weights"]),
        (["--scheduling_policy", "x"], ["'--scheduling-policy' of vLLM 0.33.0 is not modeled"]),
        (["--hicache-ratio", "2"], ["of SGLang 0.5.23 is not modeled", "--kv-offload"]),
        (["--rope-scaling", "yarn"], ["of llama.cpp is not modeled"]),
        (["--flash-attn", "on"], ["flash attention is counted", "leave it out"]),
        (["-sm", "row"], ["'-sm' is an engine's", "--pp", "--tp"]),
        (["-cram", "100"], ["'-cram' of llama.cpp is not modeled"]),  # not -c with the value ram
        (["-md", "x.gguf"], ["'-md' is an engine's", "--speculative-config"]),  # nor -m
        (["-fmoe"], ["'-fmoe' is an engine's"]),  # a parser names -f
        (["--kv-bits", "4"], ["of mlx-lm", "--quantizer mlx:bits=4"]),
        (["--max-beam-width", "2"], ["of TensorRT-LLM is not modeled"]),
        (["--served-model-name", "x"], ["of vLLM 0.33.0 changes no memory"]),
        (["--no-enable-prefix-caching", "--prefix", "64"], ["prefix-cache = off: no prompt is shared", "--prefix"]),
        (["-c", "8192"], ["max-total-tokens = 8192", "is an option of SGLang and llama.cpp"]),
        (["-ot", "ffn=CPU"], ["override-tensor = 'ffn=CPU'", "experts alone", "--n-gpu-layers"]),
        (["-ot", "exps=CUDA1"], ["host memory alone is counted", "=CPU"]),
        (["-ot", "exps(=CPU"], ["is no regular expression"]),
        (["-ngl", "0"], ["n-gpu-layers = 0", "from 1 to 10,000"]),
        (["--speculative-config", "x"], ["speculative-config = 'x'", "JSON object"]),
        (["--cuda-graphs=1"], ["does not take a value"]),
        (["--enforce-eager", "--memory", "paper"], ["cuda-graphs = False", "--memory server"]),
        (["--explain", "throughput"], ["unknown result 'throughput'", "throughput_tokens_per_s"]),
        (["--batch"], ["requires an argument"]),
        (["extra"], ["unexpected extra argument"]),
    ],
)
def test_bad_point(run, args, parts):
    assert_one_line(run(*GOOD, *args), 2, *parts)


@pytest.mark.parametrize(
    "args",
    [
        ["--max_model_len", "4096", "--tensor_parallel_size", "2"],
        ["--max-model-len", "4096", "-tp", "2"],
        ["--max_seq_len", "4096", "--tp_size", "2"],
    ],
)
def test_options_as_engines_write_them(run, args):
    plain = run(*GOOD, "--json", "--max-model-len", "4096", "--tp", "2")
    assert run(*GOOD, "--json", *args) == plain


@pytest.mark.parametrize("args", [["pont"], ["list", "devcies"], ["show", "a100"], ["list"], ["check"], ["point"]])
def test_bad_command(run, args):
    assert_one_line(run(*args), 2)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("reprt", "did you mean report?"),
        ("front", "did you mean pareto?"),
        ("Trace", "did you mean traffic, simulate?"),
        ("a(", "known: app, ask, "),
    ],
)
def test_an_unknown_command_names_those_of_a_near_name_or_that_say_the_word(run, typed, meant):
    assert_one_line(run(typed), 2, f"unknown command '{typed}': {meant}")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["ask", "format"], "unknown command 'format': did you mean formats?"),
        (["model", "make"], "unknown command 'make': known: add, export"),
        (["show", "Qwen3.8-Flash-Next"], "its architecture is not read; nearest by shape is qwen3-next-80b-a3b"),
        (["show", "AMD Radeon RX 7950"], "did you mean rx-7900-xt"),
        (["show", "kivii"], "did you mean kivi?"),
        (["show", "xyzzy"], "unknown name 'xyzzy': see `dse list`"),
    ],
)
def test_what_is_near_is_said_and_no_list_of_all(run, args, says):
    assert_one_line(run(*args), 2, says)


def bad_files():
    """(text or bytes of a device file, what the message must name)."""
    ok = DEVICE
    return {
        "nan": (ok.replace('"80 GB"', "nan"), [":3:", "memory_capacity", "nan"]),
        "inf": (ok.replace('"80 GB"', "inf"), ["memory_capacity", "inf"]),
        "1e999": (ok.replace('"80 GB"', "1e999"), ["memory_capacity"]),
        "word": (ok.replace("80 GB", "eighty"), ["memory_capacity = 'eighty'", '"80 GB"']),
        "slip": (ok.replace('"TB/s"', '"B/s"'), [":4:", "3.35 B/s", "did you mean 3.35 TB/s"]),
        "gigabits": (ok.replace('"80 GB"', '"80 Gb"'), ["unit must be one of", "did you mean GB?"]),
        "negative": (ok.replace("80 GB", "-80 GB"), ["memory_capacity = '-80 GB'", "must be 1 MB to 10 PB"]),
        "zero": (ok.replace("80 GB", "0 GB"), ["memory_capacity = '0 GB'"]),
        "bool": (ok.replace('"80 GB"', "true"), ["memory_capacity = True"]),
        "text value": (ok.replace("value = 3.35", 'value = "3.35"'), ["memory_bandwidth"]),
        "duplicate": (ok + 'name = "Again"\n', [":6:"]),
        "unknown": (ok + 'memory_bandwith = "1 TB/s"\n', [":6:", "memory_bandwith", "did you mean memory_bandwidth"]),
        "nested": (ok + "[memory_capacity.value]\nx = 1\n", ["TOML"]),
        "wrong nesting": (ok.replace('"80 GB"', "{ value = { value = 1 }, unit = 'B' }"), [":3:"]),
        "missing": (ok.replace("peak_flops", "board_power").replace("989 TFLOP/s", "400 W"), ["peak_flops", "missing"]),
        "empty": ("", ["is empty"]),
        "blank": ("\n \n", ["is empty"]),
        "binary": (b"\x80\x81\xff\x00", ["UTF-8"]),
        "nul": (b"name = 'x'\n\0", [":2:", "NUL"]),
        "utf16": ("name = 'x'".encode("utf-16"), ["UTF-8"]),
        "huge": (b"# " + b"x" * 10_000_000, ["at most 262,144"]),
        "brackets": (b"a = " + b"[" * 200_000, ["16 deep"]),
        "dots": (b"a" + b".a" * 20_000 + b" = 1", ["16 parts"]),
        "digits": ("memory_capacity = " + "9" * 5000, ["TOML"]),
        "not toml": ("this is not a spec", [":1:", "TOML"]),
        "bad name": (ok.replace("Mine", "../../etc"), ["name = '../../etc'"]),
        "bad path": (ok + '[dequant_path]\ndefault = "magic"\n', [":7:", "magic"]),
        "bad families": (
            ok + '[dequant_path]\ndefalt = "fused"\nkivvi = "fused"\nnqkv = "magic"\n',
            [":7:", "'defalt'", "did you mean default", ":8:", "did you mean kivi", ":9:", "'magic'"],
        ),
        "percent": (ok + "usable_frac = 90\n", [":6:", "usable_frac = 90", "0.001 to 1", "did you mean 90 %"]),
        "TFLOPS": (ok.replace("TFLOP/s", "TFLOPS"), ["did you mean TFLOP/s?"]),
        "quote": (ok.replace('"80 GB"', '"80 GB'), [":3:", "memory_capacity"]),
    }


@each("name", bad_files())
def test_bad_device_file(run, tmp_path, name):
    content, parts = bad_files()[name]
    path = tmp_path / "d.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for args in (["check", path], [*GOOD[:1], "--device", path, "--model", "llama2-7b"]):
        code, out, err = run(*args)
        assert code == 2, err
        assert out == ""
        assert all(line.startswith("error: ") and len(line) <= 310 for line in err.splitlines())
        for part in parts:
            assert part in err, err


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("n_kv_heads = 8", "n_kv_heads = 7", [":6:", "n_kv_heads = 7", "must divide n_q_heads = 32"]),
        ("n_layers = 32", "n_layers = 0", [":3:", "n_layers = 0", "1 layer to 10,000"]),
        ("n_layers = 32", "n_layers = 1.5", ["n_layers = 1.5", "whole number"]),
        ("n_layers = 32", "n_layers = 1000000000000", ["n_layers"]),
        ("head_dim = 128", "head_dim = -1", ["head_dim"]),
        ("vocab_size = 32000", "", ["vocab_size", "missing"]),
        ("head_dim", "head_dims", ["unknown key", "did you mean head_dim"]),
    ],
)
def test_bad_model_file(run, tmp_path, old, new, parts):
    path = tmp_path / "m.toml"
    path.write_text(MODEL.replace(old, new))
    code, out, err = run("point", "--device", "h100", "--model", path)
    assert (code, out) == (2, "")
    for part in parts:
        assert part in err, err


def test_all_problems_of_a_file_at_once(run, tmp_path):
    path = tmp_path / "d.toml"
    path.write_text('name = "x"\nmemory_capacity = "0 GB"\nmemory_bandwidth = "fast"\nspeed = 3\n')
    code, _, err = run("check", path)
    assert code == 2
    lines = err.splitlines()
    assert [line.split(": ")[1].rsplit(":", 1)[1] for line in lines[:2]] == ["2", "3"]
    assert len(lines) == 4  # two values, one unknown key, one missing


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "device", "loop"])
def test_what_is_not_a_file(run, tmp_path, kind):
    path = tmp_path / "d.toml"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    if kind == "device":
        path.symlink_to("/dev/zero")
    started = time.monotonic()
    assert_one_line(run("check", path), 2, "d.toml")
    assert time.monotonic() - started < 5


def test_json_lines_and_duplicates(run, tmp_path):
    path = tmp_path / "d.json"
    path.write_text(
        '{\n "name": "x",\n "memory_capacity": "80 GB",\n "memory_bandwidth": 5,\n "peak_flops": "1 TFLOP/s"\n}'
    )
    assert_one_line(run("check", path), 2, "d.json:4", "memory_bandwidth = 5")
    path.write_text('{"name": "x", "name": "y"}')
    assert_one_line(run("check", path), 2, "'name' is given twice")
    path.write_text('{"name": NaN}')
    assert_one_line(run("check", path), 2, "NaN")


def test_control_characters_never_reach_the_terminal(run):
    code, _, err = run("point", "--device", "a\x1b[31m\u202e\nb", "--model", "llama2-7b")
    assert code == 2
    assert err.count("\n") == 1
    assert not any(c in err for c in "\x1b\u202e")


def test_own_device_and_model_in_every_place_a_name_goes(run, tmp_path):
    (tmp_path / "d.toml").write_text(DEVICE)
    (tmp_path / "m.toml").write_text(MODEL)
    code, out, _ = run("point", "--device", tmp_path / "d.toml", "--model", tmp_path / "m.toml", "--json")
    result = json.loads(out)
    assert code == 0
    assert (result["device"], result["model"]) == ("Mine", "my-7b")
    assert result["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    assert result["capacity_bytes"] == 80 * 10**9
    for name in ("d.toml", "m.toml"):
        code, out, _ = run("check", tmp_path / name)
        assert code == 0
        assert "no problem found" in out


def test_point_json_has_every_result(run):
    code, out, err = run(*GOOD, "--quantizer", "oaken", "--batch", "64", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    more = ["intervals", "bit_ledger", "operations", "with_room", "kernels", "time_shares", "command", "would_fit"]
    assert list(result) == [*RESULT_UNITS, *more]
    assert result["would_fit"] == []
    assert result["with_room"] is None  # all 64 run at once
    assert sum(result["bit_ledger"].values()) == pytest.approx(result["stored_bits"], rel=1e-12)
    assert result["bit_ledger"]["outliers"] == pytest.approx(0.8)  # 8 bits for a tenth of the elements


def test_a_point_ends_with_the_command_that_starts_it_as_json_and_python_have_it(run):
    asked = ["--device", "h100", "--model", "llama3.1-8b", "--quantizer", "fp8"]
    last = run("point", *asked)[1].rstrip().splitlines()[-1]
    assert last.startswith("Run it: vllm serve meta-llama/Llama-3.1-8B-Instruct ")
    command = json.loads(run("point", *asked, "--json")[1])["command"]
    assert (f"Run it: {command['line']}", command["cannot"]) == (last, [])
    found = dse.evaluate("h100", "llama3.1-8b", "fp8")
    assert found.command.line == pickle.loads(pickle.dumps(found)).command.line == command["line"]
    assert "command" not in found
    assert "Run it" not in run(*GOOD, "--memory", "paper")[1]


def test_an_answer_of_one_token_has_no_tpot(run):
    words = ("point", "--device", "h100", "--model", "llama3.1-8b", "--output", "1")
    _, out, _ = run(*words)
    assert " tok/s (" in out
    assert "no TPOT (an answer of one token), TTFT " in out
    assert "TPOT" not in run(*words, "--all")[1].replace("no TPOT", "")
    found = json.loads(run(*words, "--json")[1])
    assert found["tpot_s"] is None
    assert "tpot_s" not in found["intervals"]
    assert dse.evaluate("h100", "llama3.1-8b", output_tokens=1).tpot_s is None
    assert dse.evaluate("h100", "llama3.1-8b", output_tokens=2).tpot_s > 0


def test_point_text_is_grouped(run):
    _, out, _ = run(*GOOD, "--quantizer", "oaken", "--batch", "64", "--all")
    for heading in ("Memory", "Bits per element", "Time", "Throughput", "Bottleneck"):
        assert f"\n{heading}\n" in out
    assert "(12.55 GiB)" in out  # 13,476,831,232 B of weights


@pytest.mark.parametrize(
    ("quantizer", "split", "line"),
    [
        # 4 + 0.8 bit, and 96 bits a token over 8 or 2 heads of 128
        ("oaken", ("--tp", "4"), "    groups span the 2 of 8 KV heads that a device has; unsplit 4.894 bit effective"),
        ("oaken", ("--tp", "4", "--dp-attention"), None),  # all heads of its requests
        ("kivi", ("--tp", "4"), None),  # groups inside a head
    ],
)
def test_point_text_says_what_a_split_makes_of_groups(run, quantizer, split, line):
    _, out, _ = run("point", "--device", "h100", "--model", "llama3.1-70b", "--quantizer", quantizer, *split, "--all")
    assert ("groups span" in out) == (line is not None)
    assert line is None or line in out.splitlines()


@pytest.mark.parametrize(("admission", "is_paged"), [("reserve", False), ("paged", True)])
def test_point_text_says_how_paged_requests_are_counted(run, admission, is_paged):
    _, out, _ = run(*GOOD, "--admission", admission, "--memory", "paper", "--all")
    assert ("\n  paged: requests are taken as staggered" in out) is is_paged


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("oaken-hbm --model-kind ideal", "How sure: the times above are at peak rates; 8 of 10"),
        ("oaken-hbm", "How sure: no kernels were measured here, so the times above are in the middle of what devices"),
        ("h100", "How sure: 8 of 10"),
    ],
)
def test_point_text_says_where_no_kernels_were_measured(run, device, said):
    assert said in run("point", "--device", *device.split(), "--model", "llama2-7b", "--all")[1]


def test_point_says_what_binds_with_room_for_all(run):
    work = ["point", "--device", "a100-80gb", "--model", "llama2-13b", "--batch", "128"]
    _, out, _ = run(*work)
    said = re.search(
        r"capacity: the whole batch does not fit at once; with room for all it would be (.*) tok/s, "
        r"bound by (\w+) \(",
        out,
    )
    large = specs.Quantity(value=1000, unit="TB", source="test", kind="assumed")
    device = catalog.device("a100-80gb").model_copy(update={"memory_capacity": large})
    spec = quantizers.parse("fp16")
    held = engine.evaluate(Point(device, plan.build(catalog.model("llama2-13b"), spec, spec), Workload(batch=128)))
    assert said[1] == f"{held['throughput_tokens_per_s']:,.4g}"
    assert said[2] == held["bound"] != "capacity"
    _, out, _ = run(*work, "--json")
    assert json.loads(out)["with_room"] == {name: held[name] for name in engine.ROOM_RESULTS}


def test_a_point_names_assumed_numbers_by_what_they_reach(run):
    _, out, _ = run("point", "--device", "a100-80gb", "--model", "llama2-7b", "--all")
    line = next(line for line in out.splitlines() if line.startswith("Rests on assumed numbers: "))
    assert line.startswith(
        "Rests on assumed numbers: memory that the server keeps for itself; for energy also energy per byte, "
        "energy per flop, idle power; for the price also rent of the device (`"
    )
    assert "USD per million tokens\n" in out
    assert "USD per request\n" in out


def test_memory_says_who_counts_it_and_a_context_what_the_model_was_made_for(run):
    out = run("point", "--device", "h200", "--model", "llama3.1-8b", "--batch", "1", "--all")[1]
    assert "  device memory, as the driver reports it 150.1 GB" in out
    assert "  effective capacity, by the data sheet   141 GB" in out
    assert "  longest context at this batch           906,080 tokens (model: 131,072 positions)\n" in out
    out = run("point", "--device", "h200", "--model", "llama3.1-8b", "--memory", "paper", "--batch", "64", "--all")[1]
    assert "  device memory, by the data sheet        141 GB" in out
    assert "positions" not in out


def test_too_large_is_a_result(run):
    code, out, err = run("point", "--device", "oaken-hbm", "--model", "mixtral-8x7b-oaken")
    assert (code, err) == (0, "")
    assert "Does not fit: weights need 93.41 GB, 13.41 GB more than the 80 GB" in out
    assert "more than the 80 GB that Oaken-HBM has for them\nThese do:\n  dse point --device oaken-hbm" in out
    out = run("point", "--device", "mi300x", "--model", "llama3.1-8b", "--input", "5000000")[1]
    assert "\nDoes not fit: one request of 5,001,024 tokens needs 655.5 GB" in out


NOT_FITTING = (
    ("h100", "llama3.1-70b"),
    ("h100", "llama3.1-405b"),
    ("rtx-4090", "llama3.1-8b", "--input", "200000", "--batch", "4"),
    ("h200", "deepseek-v3.2", "--quantizer", "fp16"),
    ("h100", "llama3.1-8b", "--gpu-memory-utilization", "0.1"),
    ("h200", "qwen3-32b", "--input", "1000000", "--output", "500"),
    ("oaken-hbm", "mixtral-8x7b-oaken", "--quantizer", "oaken"),
    ("2xh100", "llama3.1-405b", "--batch", "8"),
)


@each("design", NOT_FITTING)
def test_what_does_not_fit_names_commands_that_do(run, design):
    """Each proposed command runs, and gives the room that is promised."""
    device, model, *more = design
    out = run("point", "--device", device, "--model", model, *more)[1]
    _, head, rest = out.partition("\nThese do:\n")
    assert head
    lines = rest.partition("\n\n")[0].splitlines()
    assert 2 <= len(lines) <= 6
    for command, said in zip(lines[::2], lines[1::2], strict=True):
        code, printed, _ = run(*shlex.split(command)[1:], "--json")
        found = json.loads(printed)
        assert (code, found["feasible"]) == (0, True)
        assert f": room for {found['max_batch']:,} request" in said
    would = json.loads(run("point", "--device", device, "--model", model, *more, "--json")[1])["would_fit"]
    assert [f"  {one['command']}" for one in would] == lines[::2]


def test_where_nothing_would_do_advice_is_left(run):
    out = run("point", "--device", "m1-max", "--model", "llama3.1-405b")[1]
    assert "\nRoom comes from fewer bits for weights (--weights) or more devices (--tp)\n" in out


@pytest.mark.parametrize(
    ("words", "name", "equation"),
    [
        ((), "batch", "as given, else as many as fit, at most as many as the server takes; 1 where none fits"),
        ((), "model_kind", "as given; auto: calibrated where the device has kernels of a stack, else ideal"),
        (("--no-kv-cache",), "prefill_compute_utilisation", "this design has none"),
        (
            ("--device", "oaken-hbm", "--model", "mixtral-8x7b-oaken"),
            "decode_step_s",
            "the design does not run: weights need 93.41 GB, 13.41 GB more than the 80 GB that Oaken-HBM has for them",
        ),
    ],
)
def test_a_result_that_no_formula_gives_says_why(run, words, name, equation):
    code, out, _ = run(*(GOOD if "--device" not in words else ("point",)), *words, "--explain", name)
    assert code == 0
    assert f"formula  {equation}\n" in out


def test_explanation_names_the_source_of_a_constant(run):
    _, out, _ = run(*GOOD, "--explain", "linear_s")
    assert "bandwidth_bytes_per_s = 2.039e+12 B/s = 2.039 TB/s   [" in out


@pytest.mark.parametrize("kind", ["devices", "models", "quantizers"])
def test_list_and_show(run, kind):
    code, out, _ = run("list", kind, "--json")
    assert code == 0
    names = [row["name"] for row in json.loads(out)]
    assert len(names) > 10
    for name in names:
        code, out, _ = run("show", name, "--json")
        assert code == 0
        assert all(row["source"] for row in json.loads(out))


def test_shipped_file_is_a_starting_point(run, tmp_path):
    _, text, _ = run("show", "H100", "--toml")
    (tmp_path / "copy.toml").write_text(text)
    assert catalog.device(str(tmp_path / "copy.toml")) == catalog.device("h100")


def test_debug_shows_the_traceback(run):
    with pytest.raises(Exception, match="unknown device"):
        cli.main(["point", "--device", "a100", "--model", "llama2-7b", "--debug"])


def test_help_does_not_import_the_heavy_libraries():
    script = "import sys; from dse.cli import main as cli\n"
    script += "try:\n cli.main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "pandas", "numba", "plotly", "matplotlib", "pydantic", "streamlit", "pyarrow"}


def test_one_point_does_not_import_tables_or_compilers():
    script = "import sys; from dse.cli import main as cli\n"
    script += f"try:\n cli.main({GOOD!r})\nexcept SystemExit: pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "pandas", "numba", "plotly", "matplotlib", "streamlit", "pyarrow"}
    # nor what reads other people's files, or serves other commands
    assert not loaded & {"dse.specs.huggingface.config", "dse.operations.sweeps", "webbrowser", "subprocess"}


def test_an_odd_environment_changes_nothing():
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONOPTIMIZE": "2", "COLUMNS": "1", "TZ": "Asia/Kathmandu"}
    command = [sys.executable, "-m", "dse", *GOOD, "--json"]
    odd = subprocess.run(command, capture_output=True, env=env, timeout=60, check=True)
    plain = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert odd.stdout == plain.stdout


def test_unusual_numbers_are_warned_about(run, tmp_path):
    path = tmp_path / "d.toml"
    path.write_text(DEVICE.replace("989 TFLOP/s", "989 GFLOP/s"))
    warning = "Warning: peak_flops = 989 GFLOP/s is unusual (1 TFLOP/s to 50 PFLOP/s): check the unit"
    assert warning in run("check", path)[1]
    assert warning in run("point", "--device", path, "--model", "llama2-7b")[1]


def test_without_a_command_the_help_is_shown(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    sections = out.partition("Options:")[2]
    for title, names in cli.SECTIONS.items():
        assert f"\n{title}:\n" in sections
        assert all(re.search(rf"^  {name} ", sections, re.M) for name in names)
    assert "Others:" not in out  # each command has its section
    assert max(map(len, sections.splitlines())) <= 80  # and a line


def test_a_long_help_has_its_options_in_groups(run):
    headings = ["Design", "Workload", "Memory", "Devices", "Times", "Output"]
    found = re.findall(r"^(\w+):$", run("point", "--help")[1], re.M)
    assert found == headings
    assert re.findall(r"^(\w+):$", run("ask", "cross", "--help")[1], re.M) == ["Design", "Question", *headings[1:]]
    assert re.findall(r"^(\w+):$", run("measure", "--help")[1], re.M) == ["Options"]


def test_former_names_of_the_option_of_kv_formats_are_taken_and_not_shown(run):
    design = ("--device", "h100", "--model", "llama3.1-8b", "--batch", "8")
    now, before = (run("ask", "formats", *design, name, "fp8")[1] for name in ("--quantizers", "--formats"))
    assert now == before
    assert run("scores", "--quantizer", "fp8") == run("scores", "--format", "fp8")
    for words in ("ask formats", "measure", "quantize", "lab", "mix", "scores"):
        shown = run(*words.split(), "--help")[1]
        assert "--quantizer" in shown
        assert not re.search(r"--(formats?|methods?)\b", shown), words


@pytest.mark.parametrize("port", ["0", "99999", "many", "-1"])
def test_a_port_that_cannot_be(run, port):
    assert_one_line(run("app", "--server.port", port), 2, f"server.port = '{port}'")


def test_a_port_in_use(run):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert_one_line(run("app", f"--server.port={port}"), 2, f"server.port = {port}", "in use")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--batches", "1,two"], "batches = 'two'"),
        (["--batches", "0"], "batches = '0': must be whole numbers from 1"),
        (["--devices", ""], "devices = ''"),
        (["--devices", "a100-80gb,,h100"], "empty entry"),
        (["--models", "gpt5"], "unknown model 'gpt5'"),
        (["--quantizers", "oaken:x=1"], "unknown parameter 'x'"),
        (["--out", ""], "out = ''"),
        (["--input", "0"], "input = 0"),
    ],
)
def test_bad_report(run, tmp_path, monkeypatch, args, part):
    monkeypatch.chdir(tmp_path)
    assert_one_line(run("report", *args), 2, part)
    assert not list(tmp_path.iterdir())


def test_report_beyond_the_limit(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    batches = ",".join(str(n) for n in range(1, 20_001))
    assert_one_line(run("report", "--batches", batches), 5, "at most 100,000")
    assert not list(tmp_path.iterdir())


def test_a_discount_says_what_it_replaces(run):
    args = ("point", "--device", "h100", "--model", "llama3.1-8b", "--prefix", "512", "--all")
    text = "cost of a request: cached input 50% off what computing it costs, in place of what sharing it saves"
    assert text in run(*args, "--cached-input-discount", "0.5")[1]
    assert "in place of" not in run(*args)[1]


def test_a_fitted_launch_is_not_taken_for_the_assumed_one(run):
    args = ("point", "--device", "h100", "--model", "llama3.1-8b", "--quantizer", "kivi", "--explain")
    _, out, _ = run(*args, "linear_s")
    assert re.search(r"launch_s = 3.256e-06 s = 3.256 us\n", out)
    _, out, _ = run(*args, "quantize_s")
    assert "kernel_launch_s = 5e-06 s = 5 us   [assumed: " in out


@pytest.mark.parametrize("size", [0, -1, 65_537, 2**20, 1e308])
def test_a_model_file_with_a_dimension_out_of_range_is_one_line(run, tmp_path, size):
    file = tmp_path / "m.toml"
    file.write_text(MODEL.replace("head_dim = 128", f"head_dim = {size}"))
    line = MODEL[: MODEL.index("head_dim")].count("\n") + 1
    limit = "must be 1 channel to 65,536 channel"
    assert_one_line(run(*GOOD[:3], "--model", file), 2, f"m.toml:{line}: head_dim = {size}: {limit}")


@pytest.mark.parametrize(("text", "n"), [("8", 8), ("8 device", 8), ("8 devices", 8), ("1", 1)])
def test_a_plain_number_is_a_count(text, n):
    assert catalog.device(f"a100-80gb:n_devices={text}").n_devices.count == n


@pytest.mark.parametrize("text", ["0", "-1", "8.5", "8 GB", "4097", "nan"])
def test_what_is_no_count_is_refused(run, text):
    found = run("point", "--device", f"a100-80gb:n_devices={text}", "--model", "llama2-7b")
    assert_one_line(found, 2, f"n_devices = '{text}': ")
    # a number of what has several units still needs one
    found = run("point", "--device", "a100-80gb:board_power=400", "--model", "llama2-7b")
    assert_one_line(found, 2, "unit must be one of W, kW")


@pytest.mark.parametrize("words", [["point", "--device", "h100"], ["list", "models"]])
def test_a_closed_standard_output_is_one_line(words):
    command = shlex.join([sys.executable, "-m", "dse", *words])
    done = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True, timeout=60)
    assert_one_line((done.returncode, done.stdout, done.stderr), 4, "standard output is closed")


def test_no_memory_is_one_line(run, monkeypatch):
    def refused(*_: object) -> None:
        raise MemoryError("Unable to allocate 40 GiB")

    monkeypatch.setattr(catalog, "device", refused)
    assert_one_line(run(*GOOD), 5, "out of memory (Unable to allocate 40 GiB): ask for fewer")


def test_a_name_with_nul_is_one_line(run):
    """Whatever the command: each operation that writes is asked for a file that cannot be."""
    for one in map(cli.operation_of, cli.OPERATIONS):
        fields = {field.name: field for field in declare.fields_of(one)}
        for name in {"out", "figure"} & {*fields}:
            words = one.words.split()
            for field in fields.values():
                if declare.is_required(field) and field.name != name:
                    option = declare.option_of(field)
                    words += [] if option.is_argument else [f"--{declare.flag_name(field)}"]
                    words.append("kivi")
            assert_one_line(run(*words, f"--{name}", "a\0b.toml"), 2, f"{name} = 'a\\x00b.toml': is not a file")


def test_each_command_is_listed_under_the_words_of_its_operation():
    assert {words: cli.operation_of(words).words for words in cli.OPERATIONS} == {
        words: words for words in cli.OPERATIONS
    }
    assert {one.words for one in every() if one.words} == {*cli.OPERATIONS}


def test_a_command_imports_no_other_operations():
    script = "import sys; from dse.cli import main as cli\n"
    script += "try:\n cli.main(['point', '--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("dse.operations.")}
    assert loaded == {f"dse.operations.{name}" for name in ("declare", "point", "shared")}
