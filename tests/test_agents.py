"""Tools of agents: their schemas, their answers beside the commands', and what they refuse."""

import json
import math
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import jsonschema
import mcp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from dse import agents
from dse.cli import main as cli
from dse.core import interrupt
from dse.core.errors import DseError, InputError
from dse.operations import every
from dse.operations.face import python_fields
from dse.specs.workload import ASKED

ROOT = Path(__file__).parent.parent
LOG = ROOT / "tests" / "validate" / "logs" / "vllm-0.19-qwen3-30b-a3b.log"
PAGE = (ROOT / "docs" / "how-to" / "agents.md").read_text()
TOOLS = {agents.name_of(cls): cls for cls in map(cli.operation_of, agents.TOOLS)}
#: what each tool needs, and the command that asks the same
LEAST = {
    "recommend": {"model": "qwen3-32b", "devices": ["h200"], "rate": 2},
    "point": {"device": "h200", "model": "qwen3-32b"},
    "formats": {"device": "h200", "model": "qwen3-32b"},
    "check_log": {"log": LOG.read_text()},
    "scores": {},
}
CALLS = {
    "recommend": (
        {"model": "qwen3-32b", "devices": ["h100", "h200"], "rate": 2, "max_tpot": "30ms", "price": ["h100=2.1"]},
        "recommend --model qwen3-32b --devices h100,h200 --rate 2 --tpot 30ms --price h100=2.1",
    ),
    "point": (
        {"device": "8xh200", "model": "Qwen/Qwen3-32B", "quantizer": "fp8", "batch": 64, "input_tokens": "8k"},
        "point --device 8xh200 --model Qwen/Qwen3-32B --quantizer fp8 --batch 64 --input 8k",
    ),
    "formats": (
        {"device": "h200", "model": "qwen3-32b", "batch": 64, "quantizers": ["fp8", "kivi:bits=2"], "max_drop": 0.01},
        "ask formats --device h200 --model qwen3-32b --batch 64 --quantizers fp8,kivi:bits=2 --max-drop 1%",
    ),
    "check_log": ({"log": LOG.name, "device": "h100"}, f"check-log {LOG} --device h100"),
    "scores": ({"quantizers": ["fp8"], "model": "llama3.1-8b"}, "scores --quantizers fp8 --model llama3.1-8b"),
}
FIELDS = [(tool, name) for tool, cls in TOOLS.items() for name in agents.fields(cls)]
#: in one line: what is wrong with a call
REFUSED = (
    ("point", {"device": "h20o", "model": "qwen3-32b"}, "unknown device 'h20o': did you mean h20, h200?"),
    ("point", LEAST["point"] | {"batch": 0}, "batch = 0: must be a whole number from 1 to 16,777,216"),
    ("check_log", {"log": "-"}, "log = -: standard input has the requests of the agent"),
    ("point", LEAST["point"] | {"batch": "many"}, "batch = 'many': must be a whole number, such as 64"),
    ("point", LEAST["point"] | {"batch": 1.5}, "batch = '1.5': must be a whole number, such as 64"),
    ("point", LEAST["point"] | {"batch": True}, "batch = True: must be of type integer"),
    ("point", LEAST["point"] | {"model": {}}, "model = {}: must be of type string"),
    ("point", LEAST["point"] | {"kv_cache": 1}, "kv-cache = 1: must be true or false"),
    ("point", LEAST["point"] | {"input": 1}, "unknown 'input': did you mean input_tokens?"),
    ("point", {"model": "qwen3-32b"}, "device is missing: Device name or .toml file."),
    ("check_log", {"log": None}, "log is missing: "),
    ("check_log", {"log": "a\n" * 2**21}, "log: has 4,194,304 bytes: give its start-up alone, at most 2,097,152"),
    ("check_log", LEAST["check_log"] | {"out": "x"}, "unknown 'out': "),
    ("formats", LEAST["formats"] | {"static": "auto"}, "unknown 'static': "),
    ("poin", {}, "unknown tool 'poin': did you mean point?"),
)


def call(name, arguments):
    """What a client in this process gets of a tool."""

    async def called():
        async with mcp.Client(agents.server_of([*TOOLS.values()])) as client:
            return await client.call_tool(name, arguments)

    return anyio.run(called)


@each("words", [cls.words for cls in every() if cls.words])
def test_any_operation_has_a_schema_whose_defaults_it_takes(words):
    made = agents.schema(cli.operation_of(words))
    jsonschema.Draft202012Validator.check_schema(made)
    for name, one in made["properties"].items():
        assert one["description"] or words not in agents.TOOLS, name
        for value in (*([one["default"]] if "default" in one else ()), *one.get("examples", ())):
            jsonschema.validate(value, one)


def test_a_tool_takes_what_python_takes_and_no_file_to_write():
    for cls in TOOLS.values():
        names = {*python_fields(cls), *agents.work_names(cls)} - {"workload", "out"}
        assert {*agents.fields(cls)} == {*agents.schema(cls)["properties"]} == names
        assert not names & {"as_json", "static", "everything", "wide"}


def test_a_schema_says_unit_bounds_choices_and_what_is_needed():
    made = agents.schema(TOOLS["formats"])
    assert made["required"] == ["device", "model"]
    fields = made["properties"]
    assert fields["input_tokens"] == {
        "type": "integer",
        "description": "Prompt tokens of a request. Unit: token.",
        "minimum": 1,
        "maximum": 2**30,
        "default": 1024,
    }
    assert fields["admission"]["enum"] == ["reserve", "paged"]
    assert fields["bits"]["enum"] == ["closed", "measured"]
    assert fields["weights_bits"]["enum"] == [16, 8, 4]
    assert fields["quantizers"]["items"] == {"type": "string"}
    assert fields["max_drop"]["examples"] == ["1%"]
    assert agents.schema(TOOLS["check_log"])["required"] == ["log"]


@each(("tool", "name"), FIELDS)
def test_a_field_takes_its_default_and_refuses_what_its_schema_does(tool, name):
    cls, least = TOOLS[tool], LEAST[tool]
    one = agents.schema(cls)["properties"][name]
    if "default" in one:
        assert agents.asked(cls, least | {name: one["default"]}) == agents.asked(cls, least)
    wrong = [one[end] + by for end, by in (("minimum", -1), ("maximum", 1)) if end in one]
    if name in ASKED and "enum" in one:
        wrong.append("x")
    for value in [*wrong, {"a": 1}]:
        with pytest.raises(InputError):
            agents.asked(cls, least | {name: value})


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(FIELDS), ANY_JSON)
def test_any_json_is_an_operation_or_an_error_of_lines(field, value):
    tool, name = field
    try:
        lines = [repr(agents.asked(TOOLS[tool], LEAST[tool] | {name: value}))]
    except DseError as error:
        lines = error.lines()
    assert all(line.isprintable() for line in lines)


def test_texts_and_numbers_mean_the_same():
    def asked(**values):
        return agents.asked(TOOLS["formats"], LEAST["formats"] | values)

    assert asked(batch=64, input_tokens=8192, max_drop=0.01) == asked(batch="64", input_tokens="8k", max_drop="1%")
    assert asked(batch=64.0, gpu_memory_utilization=0.9).workload.batch == 64
    assert asked(kv_offload=1e-5).workload.kv_offload == 1e-5
    assert asked(quantizers=["fp8", "sinkq:bits=2,group=32"]).quantizers == ("fp8", "sinkq:bits=2,group=32")
    assert asked(quantizers="fp8,sinkq:bits=2,group=32") == asked(quantizers=["fp8", "sinkq:bits=2,group=32"])
    with pytest.raises(InputError, match="kv-offload = 'Infinity'"):
        asked(kv_offload=math.inf)


@each(("tool", "arguments", "line"), REFUSED)
def test_a_call_that_cannot_be_answered_is_told_in_a_line(tool, arguments, line):
    answer = call(tool, arguments)
    assert answer.is_error
    assert answer.structured_content is None
    (content,) = answer.content
    assert content.text.startswith(line)
    assert "\n" not in content.text


def test_an_unforeseen_error_is_a_line_too(monkeypatch):
    monkeypatch.setattr(TOOLS["scores"], "run", lambda self, console: 1 / 0)
    answer = call("scores", {})
    assert answer.is_error
    assert answer.content[0].text.startswith("unexpected ZeroDivisionError: division by zero: please report it")


def test_a_note_beside_a_result_reaches_the_agent(monkeypatch):
    cls = TOOLS["scores"]
    monkeypatch.setattr(cls, "run", lambda self, console: console.say("left out") or [])
    monkeypatch.setattr(cls, "text", lambda self, outcome: "table")
    assert agents.answer(agents.asked(cls, {})) == ("table\nleft out", {"result": []})


def test_without_the_package_a_line_says_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(InputError, match=re.escape("mcp is not installed: pip install 'kv-dse[mcp]'")):
        agents.serve([])


def test_the_page_names_the_tools_and_its_json_starts_and_asks_them():
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M)) == {*TOOLS}
    programs = 0
    for block in map(json.loads, re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S)):
        if "arguments" in block:
            agents.asked(TOOLS[block["name"]], block["arguments"])
            continue
        ((server,),) = [servers.values() for servers in block.values()]
        words = [*server["args"]]
        assert cli.cli.commands[words.pop(0)].make_context("mcp", words)
        assert server["command"].endswith("dse")
        programs += 1
    assert programs == 4


@pytest.mark.slow
def test_a_client_of_a_server_gets_what_the_commands_print(run, monkeypatch):
    """As an agent's program does: it starts `dse mcp` and speaks to it over its standard input and output."""
    monkeypatch.chdir(ROOT)
    words = ["-m", "dse", "mcp", "--files", str(LOG.parent)]
    server = mcp.StdioServerParameters(command=sys.executable, args=words, cwd=ROOT)

    async def answers():
        async with mcp.Client(mcp.stdio_client(server)) as client:
            listed = (await client.list_tools()).tools
            called = {name: await client.call_tool(name, arguments) for name, (arguments, _) in CALLS.items()}
            refused = [await client.call_tool("point", REFUSED[i][1]) for i in (0, 1)]
            elsewhere = [
                await client.call_tool("check_log", {"log": str(path)}) for path in (Path(__file__), "../../x.log")
            ]
            return listed, called, refused, elsewhere

    listed, called, refused, elsewhere = anyio.run(answers)
    assert [tool.name for tool in listed] == [*TOOLS] == [*CALLS]
    assert all(tool.annotations.read_only_hint and tool.title and tool.description for tool in listed)
    for tool in listed:
        assert tool.input_schema == agents.schema(TOOLS[tool.name])
        words = CALLS[tool.name][1].split()
        (status, printed, _), (_, text, _) = run(*words, "--json"), run(*words)
        assert status == 0
        document, answer = json.loads(printed), called[tool.name]
        assert not answer.is_error
        assert answer.structured_content == (document if isinstance(document, dict) else {"result": document})
        assert f"{answer.content[0].text}\n" == text
    assert all(answer.is_error and answer.content[0].text.startswith(REFUSED[i][2]) for i, answer in enumerate(refused))
    for answer in elsewhere:
        assert answer.is_error
        assert "is no file that is read here: give one in" in answer.content[0].text


def started(*more):
    """A server that has answered the first request of a client, and the line of its answer."""
    child = subprocess.Popen(
        [sys.executable, "-m", "dse", "mcp"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    requests = [{"id": 0, "method": "initialize", "params": first}, {"method": "notifications/initialized"}, *more]
    child.stdin.writelines(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in requests)
    child.stdin.flush()
    return child, json.loads(child.stdout.readline())["result"]


@pytest.mark.slow
def test_a_server_without_a_folder_reads_no_file_and_ends_with_its_input():
    call = {"name": "check_log", "arguments": {"log": str(LOG)}}
    child, first = started({"id": 1, "method": "tools/call", "params": call})
    assert first["serverInfo"]["name"] == "dse"
    answer = json.loads(child.stdout.readline())["result"]
    assert answer["isError"]
    assert "is no file that is read here: give a name" in answer["content"][0]["text"]
    assert child.communicate(timeout=30) == ("", "")
    assert child.returncode == 0


@pytest.mark.slow
def test_a_press_ends_a_server_that_waits():
    child, _ = started()
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=120) == interrupt.STATUS
    assert child.communicate() == ("", "stopped\n")


@pytest.mark.slow
def test_a_folder_that_is_none_is_told_in_a_line():
    wrong = [sys.executable, "-m", "dse", "mcp", "--files", "nowhere"]
    done = subprocess.run(wrong, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.stderr == "error: files = 'nowhere': is no folder that can be opened: give another\n"
    assert done.returncode == 2
