"""Names, lengths and options as people and engines write them, given to commands and functions."""

import json

import pytest

import dse
from dse.core.errors import InputError


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
        (("ask", "devices", "--device", "8xh100"), "says how many: this answer takes one device by its name"),
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
