"""Names, lengths and options as people and engines write them, given to commands and functions."""

import json
from pathlib import Path

import click
import pytest

import dse
from cases import each
from dse.cli.main import cli
from dse.core.errors import InputError
from dse.core.field import TOKENS
from dse.model.point import Point


def found(run, *argv: str) -> dict:
    code, out, _ = run("point", *argv, "--json")
    assert code == 0
    return json.loads(out)


def test_a_number_before_a_device_is_its_tensor_parallel_size(run):
    model = ("--model", "llama3.1-70b")
    asked = found(run, "--device", "8xh100", *model)
    assert asked == found(run, "--device", "h100", "--tp", "8", *model)
    assert found(run, "--device", "8x H100", "--pp", "2", *model)["tp"] == 4
    assert found(run, "--device", "8xh100", "--tp", "4", "--pp", "2", *model)["n_devices"] == 8
    assert dse.evaluate("8xh100", "llama3.1-70b")["tp"] == 8
    assert found(run, "--device", "2xa100-80gb", *model)["tp"] == 1  # a device of that name ships


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("point", "--device", "8xh100", "--tp", "4"), "says 8 devices, --tp 4 and --pp 1 say 4: leave the number out"),
        (
            ("point", "--device", "h100", "--max-model-len", "1k"),
            "requests of 1,024 + 1,024 tokens are longer: use 2048",
        ),
        (("point", "--device", "h100", "--free-memory", "40GiB"), "does not start: use --gpu-memory-utilization 0.5"),
        (("point", "--device", "h100", "--kv-cache-memory", "some"), "must be bytes, such as 40GiB, 40GB or"),
        (("point", "--device", "h100", "--input", "12x"), "such as 4096 or 128k (131,072)"),
        (("point", "--device", "h100", "--batch", "1k"), "must be a whole number, such as 64"),
        (("point", "--device", "8xh1000"), "unknown device"),
    ],
)
def test_what_cannot_be_meant_is_one_line(run, argv, message):
    code, out, err = run(*argv, "--model", "llama3.1-8b")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_one_quantizer_may_be_asked_for_by_the_name_of_several(run):
    """And where a command has both, `--quantizers` is its own."""
    design = ("--model", "llama3.1-8b", "--device", "h100")
    assert found(run, *design, "--quantizers", "fp8") == found(run, *design, "--quantizer", "fp8")
    assert run("ask", "load", *design, "--quantizers", "fp8")[0] == 0
    code, out, err = run("ask", "need", "bits", *design, "--throughput", "500", "--quantizers", "fp8,nqkv")
    assert (code, err, "fp8" in out) == (0, "", True)


def test_lengths_in_units_of_1024_and_spellings_of_engines(run):
    design = ("--device", "h100", "--model", "llama3.1-8b")
    engines = (
        "--tensor-parallel-size",
        "2",
        "--pipeline-parallel-size",
        "2",
        "--max-num-seqs",
        "16",
        "--page-size",
        "32",
    )
    memory = ("--max-num-batched-tokens", "4k", "--mem-fraction-static", "0.8", "--kv-cache-dtype", "fp8_e4m3")
    ours = ("--tp", "2", "--pp", "2", "--max-num-seqs", "16", "--page", "32", "--prompt-budget", "4096")
    rest = ("--gpu-memory-utilization", "0.8", "--quantizer", "fp8", "--input", "131072")
    assert found(run, *design, *engines, *memory, "--input", "128k") == found(run, *design, *ours, *rest)
    gemma = ("--device", "h100", "--model", "gemma-3-4b")
    assert found(run, *gemma, "--language-model-only") == found(run, *gemma, "--no-tower")


def test_the_one_of_two_devices_that_a_name_is_taken_for_is_said(run):
    _, out, _ = run("point", "--device", "gh200", "--model", "llama3.1-8b")
    assert "Note: gh200 is taken as GH200-96GB; gh200-144gb would fit the name too" in out
    _, out, _ = run("point", "--device", "rtx4090", "--model", "llama3.1-8b")
    assert out.startswith("RTX-4090  ")
    assert "is taken as" not in out


def test_a_directory_with_a_config_is_a_model(run, tmp_path, monkeypatch):
    config = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "tie_word_embeddings": False}
    for folder in ("Mine", "empty", "qwen3-8b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "Mine" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    for name in ("Mine", "Mine/", str(tmp_path / "Mine"), "./Mine"):
        assert found(run, "--device", "h100", "--model", name)["model"] == "Mine"
    assert found(run, "--device", "h100", "--model", "qwen3-8b")["model"] == "qwen3-8b"  # a name that ships comes first
    with pytest.raises(InputError, match=r"model = 'empty': the directory has no config.json: name one that has"):
        dse.model("empty")


H100 = ["--device", "h100", "--model", "llama3.1-8b"]
#: a call of each command that takes names; whose options other commands share, is asked once
CALLS = {
    "point": H100,
    "simulate": [*H100, "--requests", "5"],
    "ring": H100,
    "ask formats": H100,
    "ask cross": H100,
    "ask need": ["bits", *H100, "--throughput", "100"],
    "ask sensitivity": H100,
    "ask doubt": H100,
    "ask map": H100,
    "ask load": H100,
    "ask hits": [*H100, "--sessions", "3"],
    "ask interactivity": H100,
    "traffic": ["azure-conv", *H100],
    "report": [],
    "sweep": ["s.toml", "--keep", "front", "--maximize", "max_batch"],
    "scores": [],
    "validate silicon": [],
}
#: of files and machines, and of what other options must come with; each may be named as one likes
ANY_TEXT = {"out", "at_most", "at_least"}


def options_of(words):
    """The options of a command that take a value, by their fields."""
    command = cli
    for word in words.split():
        command = command.commands[word]
    return {
        param.name: param.opts[0]
        for param in command.params
        if isinstance(param, click.Option) and not param.is_flag and param.name not in ANY_TEXT
    }


NAMED = {(name, flag): words for words in reversed(CALLS) for name, flag in options_of(words).items()}


@each(("words", "flag"), [(words, flag) for (_, flag), words in NAMED.items()])
def test_a_name_is_checked_before_anything_is_computed_or_written(run, words, flag, monkeypatch, tmp_path):
    computed = property(lambda point: pytest.fail("computed"))
    monkeypatch.setattr(Point, "max_batch", computed)
    monkeypatch.setattr(Point, "waves", computed)
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text('[axes]\ndevice = ["h100"]\nmodel = ["gpt2"]\nquantizer = ["fp16"]\n')
    argv = [*words.split(), *CALLS[words]]
    if flag in argv:
        argv[argv.index(flag) + 1] = "nosuch"
    else:
        argv += [flag, "nosuch"]
    code, out, err = run(*argv)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]


def test_tokens_in_parts_of_1024():
    assert [TOKENS.parse("input", text) for text in ("1.5k", "1.2k", "0.5m", "6k", "77")] == [
        1536,
        1229,
        2**19,
        6144,
        77,
    ]
    for text in ("1.5", ".5k", "1.k", "1e3", "-1.5k"):
        with pytest.raises(InputError, match="whole number of tokens"):
            TOKENS.parse("input", text)
