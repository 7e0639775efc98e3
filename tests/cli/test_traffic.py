"""`dse traffic`: what it prints, what it refuses."""

import json

import pytest
from click.testing import CliRunner

from cases import each
from dse.cli import main as cli

ROWS = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,1\n2023-11-16 18:15:48,200,3\n"


def run(*args):
    return CliRunner().invoke(cli.cli, ["traffic", *args])


def refused(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        cli.main(["traffic", *args])
    shown = capsys.readouterr().err.strip().split("\n")
    assert caught.value.code == 2
    assert len(shown) == 1
    return shown[0]


def test_a_file_by_hand(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(ROWS)
    found = json.loads(run(str(path), "--batch", "1,2", "--json").output)
    assert (found["n_requests"], found["duration_s"], found["rate_per_s"]) == (2, 2.0, 0.5)
    assert (found["mean_input_tokens"], found["mean_output_tokens"]) == (150.0, 2.0)
    assert found["mean_decode_context_tokens"] == (101 + 201 + 202 + 203) / 4
    one, two = found["batching"]
    assert (one["batching_gain"], one["padding_factor"]) == (1.0, 1.0)
    assert two["largest_output_tokens"] == 2.5  # (1 + 3 + 3 + 3) / 4
    assert two["padding_factor"] == 175 / 150  # (100 + 3 * 200) / 4
    assert "fit" not in found
    assert "gain of continuous batching" in run(str(path)).output


def test_failed_requests_are_counted(tmp_path):
    path = tmp_path / "burst.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n1,5,5\n2,5,0\n3,0,0\n")
    assert json.loads(run(str(path), "--json").output)["n_failed"] == 2
    assert "failed requests, left out" in run(str(path)).output


def test_what_fits():
    asked = ("azure-conv", "--device", "a100-80gb", "--model", "llama2-13b", "--memory", "paper", "--json")
    found = json.loads(run(*asked).output)
    fit = found["fit"]
    longest, final, paged = fit["rules"]
    assert longest["n_sequences"] < final["n_sequences"] < paged["n_sequences"]
    # free 80e9 - 26.03e9 B over 819,200 B/token at 1,227.5 tokens, half a page (7.5) and activations on top
    assert paged["n_sequences"] == pytest.approx((80e9 - 26.03e9) / (819_200 * (1227.5 + 7.5)), rel=0.02)
    assert longest["throughput_tokens_per_s"] < paged["throughput_tokens_per_s"]
    assert fit["assumptions"] == ["usable_frac"]
    mean_out = found["mean_output_tokens"]
    assert paged["requests_per_s"] == pytest.approx(paged["throughput_tokens_per_s"] / mean_out, rel=1e-12)
    assert (
        "requests are longer than the 4,096 positions the model was trained for"
        in run("azure-conv", "--device", "a100-80gb", "--model", "llama2-13b").output
    )
    text = run("azure-conv", "--device", "a100-80gb", "--model", "llama2-13b").output
    assert "pages as they fill (16 tokens)" in text
    assert "CC BY 4.0" in text


def test_nothing_fits():
    result = run("azure-conv", "--device", "a100-80gb", "--model", "llama2-70b")
    assert result.exit_code == 0
    assert "the longest request of the trace does not fit" in result.output


@each(
    ("args", "text"),
    [
        (["azure"], "did you mean azure-code, azure-conv"),
        (["none.csv"], "cannot be read: no such file"),
        (["azure-conv", "--device", "h100"], "model is missing"),
        (["azure-conv", "--model", "opt-125m"], "device is missing"),
        (["azure-conv", "--max-tokens", "5"], "max-tokens = 5"),
        (["azure-conv", "--device", "h100", "--model", "opt-125m", "--max-tokens", "5"], "max-tokens = 5: must be"),
        (["azure-conv", "--device", "h100", "--model", "opt-125m", "--quantizer", "nope"], "nope"),
        (["azure-conv", "--quantizer", "oaken"], "quantizer = 'oaken': has no effect without a device: leave it out"),
        (["azure-conv", "--page", "16"], "page = 16: has no effect without a device"),
        (["azure-conv", "--model-kind", "ideal"], "model-kind = 'ideal': has no effect without a device"),
        (["a\0b"], "trace = 'a\\x00b'"),
    ],
)
def test_refused(capsys, args, text):
    assert text in refused(capsys, *args)


def test_bad_rows_are_one_line(capsys, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(ROWS + "2023-11-16 18:15:49,=cmd(),3\n")
    assert f"{path}:4: ContextTokens = '=cmd()': must be a whole number" in refused(capsys, str(path))


def test_what_fits_says_how_sure_its_rate_is_and_on_which_devices():
    design = ("azure-conv", "--device", "h100", "--model", "llama3.1-8b", "--stack", "vllm@0.16.0", "--tp", "2")
    fit = json.loads(run(*design, "--json").output)["fit"]
    assert (fit["n_devices"], fit["tp"]) == (2, 2)
    for row in fit["rules"]:
        # no row of the model on vLLM: 0.786 to 1.26 for dense models left out, as hwspecs/stacks/vllm.toml has it; and
        # 0.617 to 3.13 of what a request waits for its first token, which is little of its time
        low, high = (row["throughput_tokens_per_s"] / row[f"throughput_{end}"] for end in ("high", "low"))
        assert 0.782 < low < 0.8
        assert 1.25 < high < 1.28
    text = run(*design).output
    assert "2 devices: tp 2; memory is that of each" in text
    assert "80 % interval" in text


def test_a_trace_that_names_blocks_is_described(run, tmp_path):
    """Mooncake's form: two requests, ten seconds apart."""
    path = tmp_path / "own.jsonl"
    row = '{{"timestamp": {}, "input_length": {}, "output_length": 4, "hash_ids": {}}}'
    path.write_text(f"{row.format(0, 500, [1])}\n{row.format(10000, 700, [1, 2])}\n")
    code, out, _ = run("traffic", path, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["n_requests"], found["mean_input_tokens"], found["mean_output_tokens"]) == (2, 600, 4)
