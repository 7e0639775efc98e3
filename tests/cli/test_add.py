"""`dse model add` and `dse device add`: files that the next command takes, and one line for whatever is wrong."""

import http.server
import json
import re
import shlex
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from cases import each
from dse.cli import commands
from dse.cli import main as cli
from dse.model import kv_layout
from dse.operations.catalog import numbers
from dse.operations.declare import flag_name, option_of
from dse.quantizers import parse
from dse.specs import catalog, device_file
from dse.specs.device_and_model import HardwareSpec
from factories import assert_one_line

CONFIGS = Path(__file__).parents[1] / "golden" / "hf_configs"
NUMBERS = ["--memory", "120 GB", "--bandwidth", "4 TB/s", "--flops", "1200 TFLOP/s"]


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_a_directory_becomes_a_model_file(run, tmp_path):
    (tmp_path / "Tiny-Gemma").mkdir()
    text = (CONFIGS / "gemma-3-4b.json").read_bytes()
    (tmp_path / "Tiny-Gemma" / "config.json").write_bytes(text)
    code, out, err = run("model", "add", "Tiny-Gemma")
    assert (code, err) == (0, "")
    assert out.startswith("Tiny-Gemma: 34 layers, from config.json of the local directory Tiny-Gemma\n")
    assert "139,264 B of KV cache a token" in out
    assert "\n29 layers: 4 KV heads, key 256, value 256, window 1,024\n5 layers: 4 KV" in out
    assert "\nnote: " in out
    assert out.endswith("model file: tiny-gemma.toml\nnext: dse point --device h100 --model ./tiny-gemma.toml\n")
    code, out, _ = run("point", "--device", "h100", "--model", "./tiny-gemma.toml", "--json")
    assert code == 0
    assert (json.loads(out)["model"], json.loads(out)["kv_bytes_per_token"]) == ("Tiny-Gemma", 139_264)
    assert str(tmp_path) not in Path("tiny-gemma.toml").read_text()
    assert (
        Path("tiny-gemma.toml")
        .read_text()
        .startswith("# Tiny-Gemma: counted from its config.json by `dse model add`.\n")
    )
    assert (
        run("model", "export", CONFIGS / "gemma-3-4b.json", "--name", "x", "--source", "y", "--out", "x.toml")[0] == 0
    )
    assert Path("x.toml").read_text().startswith("# x: counted from its config.json by `dse model export`.\n")


@pytest.mark.parametrize("config", ["qwen3-8b", "deepseek-v2-lite", "gemma-3n-e4b", "mixtral-8x7b", "falcon-7b"])
def test_the_file_is_the_model(run, config):
    code, _, err = run("model", "add", CONFIGS / f"{config}.json", "--out", "sub/m.toml", "--name", "mine")
    assert (code, err) == (0, "")
    ours, theirs = catalog.model("sub/m.toml"), catalog.model(str(CONFIGS / f"{config}.json"))
    own = {"name", "title", "source", "numbers", "published_parameters"}
    assert ours.model_dump(exclude=own) == theirs.model_dump(exclude=own)
    assert ours.name == "mine"
    assert ours.source == f"local file {config}.json"
    fp16 = parse("fp16")
    assert kv_layout.build(ours, fp16, fp16).bits(1) == kv_layout.build(theirs, fp16, fp16).bits(1)


def test_json_says_what_was_read(run):
    _, out, _ = run("model", "add", CONFIGS / "deepseek-v3.json", "--json")
    found = json.loads(out)
    assert (found["n_layers"], found["kv_bytes_per_token"]) == (61, 61 * (512 + 64) * 2)
    assert found["parameters"] > found["active_parameters"]
    assert found["layers"] == ["61 layers: one latent of 576 for all heads (MLA)"]
    assert "auto_map ignored: the model's own code is never run" in found["notes"]
    assert found["next"].endswith(f"--model ./{found['file']}")


def test_the_cache_of_the_hugging_face_libraries(run, tmp_path):
    commit = "0123456789" * 4
    folder = tmp_path / "cache" / "models--org--Some-7B"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit / "config.json").write_bytes((CONFIGS / "llama-2-7b.json").read_bytes())
    code, out, _ = run("model", "add", "org/Some-7B")
    assert code == 0
    source = f"config.json of org/Some-7B (Hugging Face cache), revision {commit}"
    assert out.startswith(f"Some-7B: 32 layers, from {source}\n")
    assert catalog.model("some-7b.toml").source == source


def test_a_hub_is_asked_where_asked(run):
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            known = self.path == "/org/Some-7B/resolve/v1/config.json"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write((CONFIGS / "llama-2-7b.json").read_bytes() if known else b"Entry not found")

    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    asked = ["model", "add", "org/Some-7B", "--revision", "v1", "--hub", f"http://127.0.0.1:{hub.server_port}"]
    assert_one_line(run(*asked), 2, "hub = ", "has no effect without --from-hub")
    assert_one_line(run(*asked[:-2]), 2, "org/Some-7B", "is not in the Hugging Face cache", "--from-hub")
    code, out, _ = run(*asked, "--from-hub")
    assert code == 0
    assert "config.json of org/Some-7B (from 127.0.0.1), revision v1" in out
    assert_one_line(run(*asked, "--from-hub"), 2, "out = 'some-7b.toml': exists", "--force")
    asked[4] = "v2"
    assert_one_line(run(*asked, "--from-hub", "--force"), 2, "HTTP 404: not there at revision v2")
    hub.shutdown()
    hub.server_close()
    assert catalog.model("some-7b.toml").source.endswith("revision v1")


def test_files_that_exist_stay(run, tmp_path):
    asked = ["model", "add", CONFIGS / "qwen3-8b.json"]
    for out in ("qwen3-8b.toml", "other.toml", "link.toml"):
        Path(out).write_text("mine") if out != "link.toml" else Path(out).symlink_to("gone")
        given = ["--out", out] if out != "qwen3-8b.toml" else []
        assert_one_line(run(*asked, *given), 2, f"out = '{out}': exists", "--force")
    assert Path("qwen3-8b.toml").read_text() == "mine"
    assert run(*asked, "--force")[0] == 0
    assert catalog.model("qwen3-8b.toml").n_layers == 36
    (tmp_path / "dir.toml").mkdir()
    assert_one_line(run(*asked, "--out", "dir.toml", "--force"), 2, "is a directory")
    assert_one_line(run(*asked, "--out", "x.json"), 2, "must end in .toml")
    assert_one_line(run(*asked, "--name", "../up"), 2, "name = '../up'")
    assert_one_line(run(*asked, "--name", ""), 2, "name = ''")
    assert not list(tmp_path.parent.glob("up*"))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Qwen/Qwen3-8B", ["ships with the tool", "give it to --model as it is"]),
        ("a/b/c", ["'a/b/c'", "ORG/NAME"]),
        ("../x", ["'../x'", "no file"]),
        ("e\x1b[31mx", ["ORG/NAME"]),
        ("llama.toml", ["no file"]),
    ],
)
def test_models_that_are_not_there(run, name, parts):
    assert_one_line(run("model", "add", name), 2, *parts)


def test_all_that_the_reader_refuses_is_said(run):
    Path("config.json").write_text('{"model_type": "llama",\n"num_hidden_layers": 0}')
    code, out, err = run("model", "add", "config.json")
    assert (code, out) == (2, "")
    assert "config.json:2: num_hidden_layers = 0" in err
    assert "hidden_size" in err
    assert not list(Path().glob("*.toml"))


def test_a_device_of_three_numbers(run):
    code, out, err = run("device", "add", "My-GPU", *NUMBERS)
    assert (code, err) == (0, "")
    assert out.startswith("My-GPU: memory_capacity 120 GB, memory_bandwidth 4 TB/s, peak_flops 1200 TFLOP/s\n")
    assert "\nwithout --power: no energy\nwithout --price: no costs\n" in out
    assert out.endswith("device file: my-gpu.toml\nnext: dse point --device ./my-gpu.toml --model llama3.1-8b\n")
    code, out, _ = run("point", "--device", "./my-gpu.toml", "--model", "llama3.1-8b", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["device"], found["capacity_bytes"]) == ("My-GPU", 120 * 10**9)
    assert found["idle_joules_per_token"] is None
    number = catalog.device("my-gpu.toml").memory_bandwidth
    assert (number.source, number.kind) == ("given by the user", "assumed")
    assert run("check", "my-gpu.toml")[0] == 0


def test_the_commands_of_the_docs_run(run):
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "own-device.md").read_text()
    commands = re.findall(r"^dse (device add .*)$", text, re.M)
    assert len(commands) == 2
    for command in commands:
        assert run(*shlex.split(command))[0] == 0, command


def test_each_number_reaches_its_field(run):
    options = [word for one in numbers() for word in (f"--{flag_name(one)}", option_of(one).example)]
    code, _, err = run("device", "add", "all", *options, "--datasheet", 'Data "sheet", 2026')
    assert (code, err) == (0, "")
    found = catalog.device("all.toml")
    for one in numbers():
        number = getattr(found, one.name)
        assert f"{number.value:g} {number.unit}".removesuffix(" core") == option_of(one).example
        assert (number.source, number.kind) == ('Data "sheet", 2026', "datasheet")
    needed = {one.name for one in numbers() if device_file.is_needed(one.name)}
    assert needed == {name for name, field in HardwareSpec.model_fields.items() if field.is_required()} - {"name"}


def test_the_rest_is_borrowed(run):
    code, out, _ = run("device", "add", "X1", *NUMBERS, "--cores", "264", "--like", "H100", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["borrowed"]["stacks_of"] == said["borrowed"]["from"] == "h100"
    assert not {*said["borrowed"]["fields"]} & {"memory_capacity", "n_cores", "usd_per_hour", "title", "links"}
    found, other = catalog.device("x1.toml"), catalog.device("h100")
    assert found.stacks == other.stacks
    assert found.architecture == other.architecture
    assert found.dequant_path == other.dequant_path
    assert found.board_power.value == 700
    assert (found.board_power.kind, found.board_power.source) == ("assumed", "as h100: NVIDIA H100 data sheet, SXM5")
    # in proportion: to the memory 120 of 80, to the peak 1200 of 989, to the cores 264 of 132
    assert found.reported_memory.value == pytest.approx(79.19 * 120 / 80, rel=1e-5)
    assert found.peak_flops_fp8.value == pytest.approx(1979 * 1200 / 989, rel=1e-5)
    assert found.fused_rate.value == pytest.approx(2 * other.fused_rate.value)
    assert found.usd_per_hour is None


@pytest.mark.parametrize(
    ("power", "idle_w", "pj_per_flop"),
    [
        # 15 % of 1,400 W; 1,400 - 210 - 48 pJ/B of 8 TB/s = 806 W over 2.5 PFLOP/s
        (["--power", "1400 W"], 210, 0.3224),
        # as b300, 1,100 W: 1,100 - 165 - 384 = 551 W
        ([], 165, 0.2204),
    ],
)
def test_assumed_energies_follow_from_the_board_power(run, power, idle_w, pj_per_flop):
    asked = ["--memory", "288 GB", "--bandwidth", "8 TB/s", "--flops", "2.5 PFLOP/s", *power, "--like", "b300"]
    assert run("device", "add", "x", *asked)[0] == 0
    found, other = catalog.device("x.toml"), catalog.device("b300")
    assert (found.idle_power.value, found.energy_per_flop.value) == pytest.approx((idle_w, pj_per_flop))
    drawn_w = found.idle_power.si + found.energy_per_byte.si * 8e12 + found.energy_per_flop.si * 2.5e15
    assert drawn_w == pytest.approx(found.board_power.si)
    for field in ("idle_power", "energy_per_flop"):
        theirs = getattr(other, field).source.removeprefix("assumed: ")
        assert getattr(found, field).source == f"by the rule of the shipped devices: {theirs}"
        assert getattr(found, field).kind == "assumed"


def test_measured_energies_are_kept_and_said_to_be(run):
    assert run("device", "add", "x", *NUMBERS, "--power", "900 W", "--like", "h200")[0] == 0
    found, other = catalog.device("x.toml"), catalog.device("h200")
    for field in ("idle_power", "energy_per_flop"):
        assert getattr(found, field).si == getattr(other, field).si
        assert getattr(found, field).source.startswith("as h200, measured there and kept whatever the board power: ")


def test_a_board_power_too_small_for_its_memory_has_no_energy_by_parts(run):
    """15 % of 200 W and 48 pJ/B of 4 TB/s: 30 + 192 W."""
    _, out, _ = run("device", "add", "x", *NUMBERS, "--power", "200 W", "--like", "b300")
    warning = "no energy by parts: idling and memory alone would draw 222 W of board_power 200 W"
    assert f"\nWarning: {warning}\n" in out
    assert catalog.device("x.toml").energy_per_flop is None
    _, out, _ = run("point", "--device", "./x.toml", "--model", "llama3.1-8b", "--json")
    assert json.loads(out)["joules_per_token"] > 0
    assert json.loads(out)["idle_joules_per_token"] is None


@each("like", sorted(name for name in catalog.device_files() if name != "2xa100-80gb"))
def test_every_shipped_device_can_lend(run, like):
    code, out, err = run("device", "add", "new", *NUMBERS, "--like", like, "--force")
    assert (code, err) == (0, "")
    assert "borrowed from " + like in out
    found, other = catalog.device("new.toml"), catalog.device(like)
    assert found.stacks == other.stacks
    for name, number in found.quantities().items():
        theirs = getattr(other, name) or number
        assert theirs.unit == number.unit or name in ("memory_capacity", "memory_bandwidth", "peak_flops")
    assert found.implementations == other.implementations


def test_what_is_given_is_not_borrowed(run):
    run("device", "add", "X2", *NUMBERS, "--power", "1 kW", "--flops-fp8", "3 PFLOP/s", "--like", "h100")
    found = catalog.device("x2.toml")
    assert (found.board_power.si, found.peak_flops_fp8.si) == (1000, 3e15)


@each(
    ("args", "parts"),
    [
        (["x"], ["memory, bandwidth, flops: not given", '--memory "80 GB"']),
        (["x", *NUMBERS[:4]], ["flops: not given", '--flops "989 TFLOP/s"']),
        (["x", *NUMBERS, "--memory", "80 XB"], ["memory = '80 XB'", "unit must be one of"]),
        (["x", *NUMBERS, "--memory", "80"], ["memory = '80': has no unit: unit must be one of", 'such as "80 GB"']),
        (["x", *NUMBERS, "--memory", "-80 GB"], ["memory = '-80 GB'", "must be 1 MB to 10 PB"]),
        (["x", *NUMBERS, "--bandwidth", "3.35 B/s"], ["bandwidth = '3.35 B/s'", "did you mean 3.35 TB/s?"]),
        (["x", *NUMBERS, "--flops", "nan"], ["flops = 'nan'", "312 TFLOP/s"]),
        (["x", *NUMBERS, "--flops", "1e999 TFLOP/s"], ["flops = '1e999 TFLOP/s'", "finite"]),
        (["x", *NUMBERS, "--cores", "1.5"], ["cores = '1.5'", "whole number"]),
        (["x", *NUMBERS, "--power", ""], ["power = ''", "400 W"]),
        (["x", *NUMBERS, "--like", "h10"], ["like = 'h10'", "did you mean", "h100"]),
        (["x", *NUMBERS, "--like", "2xa100-80gb"], ["stands for 2 devices"]),
        (["x", *NUMBERS, "--like", "../h100"], ["must be a shipped device"]),
        (["x", *NUMBERS, "--datasheet", " "], ["datasheet", "1 to 300"]),
        (["x", *NUMBERS, "--out", "x.json"], ["must end in .toml"]),
        (["../x", *NUMBERS], ["name = '../x'", "My-GPU"]),
        (["", *NUMBERS], ["name = ''"]),
        (["a" * 65, *NUMBERS], ["name = "]),
        (["x", *NUMBERS, "--mem", "1 GB"], ["unknown option '--mem'", "--memory"]),
    ],
)
def test_devices_that_cannot_be_written(run, args, parts):
    assert_one_line(run("device", "add", *args), 2, *parts)
    assert not list(Path().glob("*.toml"))


def test_a_device_file_that_exists_stays(run):
    Path("x.toml").write_text("mine")
    assert_one_line(run("device", "add", "X", *NUMBERS), 2, "out = 'x.toml': exists", "--force")
    assert Path("x.toml").read_text() == "mine"
    assert run("device", "add", "X", *NUMBERS, "--force")[0] == 0
    assert catalog.device("x.toml").name == "X"


def test_unusual_numbers_and_names_are_warned_of(run):
    _, out, _ = run("device", "add", "H100", *NUMBERS[2:], "--memory", "120 MB")
    assert "\nWarning: memory_capacity = 120 MB is unusual" in out
    assert "\nWarning: a device h100 ships: --device h100 still means that one" in out


def test_a_terminal_is_asked(monkeypatch):
    monkeypatch.setattr(commands, "_is_terminal", lambda: True)
    answers = "\nlots\n80 XB\n80 GB\n3.35 TB/s\n-1 TFLOP/s\n989 TFLOP/s\n"
    done = CliRunner().invoke(cli.cli, ["device", "add", "Asked", "--power", "700 W", "--like", "h100"], input=answers)
    assert done.exit_code == 0, done.output
    assert done.stderr.count("Memory, such as 80 GB: ") == 4
    assert done.stderr.count("Error: ") == 3
    assert "Error: memory = '80 XB': unit must be one of" in done.stderr
    assert "Power" not in done.stderr
    assert done.stdout.startswith("Asked: ")
    found = catalog.device("asked.toml")
    assert (found.memory_capacity.si, found.peak_flops.si, found.board_power.si) == (80e9, 989e12, 700)
    assert found.stacks


def test_who_answers_nothing_more_writes_nothing(monkeypatch):
    monkeypatch.setattr(commands, "_is_terminal", lambda: True)
    done = CliRunner().invoke(cli.cli, ["device", "add", "asked"], input="80 GB\n")
    assert done.exit_code == 1
    assert not list(Path().glob("*.toml"))


def test_a_model_read_as_another_type_is_called_so(run, tmp_path, monkeypatch):
    """Ouro's total_ut_steps is not understood: a file made all the same says in its name what it was read as."""
    monkeypatch.chdir(tmp_path)
    config = {
        "model_type": "ouro",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "vocab_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
        "total_ut_steps": 4,
    }
    (tmp_path / "ouro").mkdir()
    (tmp_path / "ouro" / "config.json").write_text(json.dumps(config))
    assert_one_line(run("model", "add", "ouro"), 2, "total_ut_steps = 4", "--assume-like llama")
    code, out, _ = run("model", "add", "ouro", "--assume-like", "llama")
    assert code == 0
    assert out.startswith("ouro-as-llama: 2 layers")
    assert "\nnote: model_type 'ouro' unknown: read as llama, assumed\n" in out
    assert "counted as for llama" not in out
    assert [path.name for path in tmp_path.glob("*.toml")] == ["ouro-as-llama.toml"]


@pytest.mark.parametrize("name", ["my-gpu", "My-gpu.TOML", "./MY-GPU"])
def test_a_file_whose_name_differs_by_capitals_or_its_ending_is_suggested(run, name):
    assert run("device", "add", "My-GPU", *NUMBERS, "--out", "My-GPU.toml")[0] == 0
    file = "./My-GPU.toml" if name.startswith("./") else "My-GPU.toml"
    assert run("point", "--device", name, "--model", "llama3.1-8b") == (
        2,
        "",
        f"error: unknown device '{name}': did you mean the file {file}?\n",
    )
    assert run("point", "--device", "h100", "--model", name)[2] == (
        f"error: unknown model '{name}': did you mean the file {file}?\n"
    )
    assert run("point", "--device", "My-GPU.toml", "--model", "llama3.1-8b")[0] == 0
