"""Public benchmarks beside predictions: kinds of measurement, what is read off, bad rows, the table as printed."""

import csv
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner

from dse.cli import main as cli
from dse.core.errors import InputError
from dse.model.engine import evaluate
from dse.serving import burst
from dse.validate import speed
from factories import assert_one_line

VALIDATE = cli.cli.commands["validate"]
HEAD = (
    "id,engine,version,dse_model,device,weights,concurrency,requests,input_tokens,output_tokens,all_at_once,"
    "measured_tpot_ms,measured_output_tok_s,server"
)
#: gpustack.ai performance lab, gpt-oss-20b on an H100, vLLM 0.11.0: a burst of prompts of 4,000 tokens
BURST = "b,vllm,0.11.0,gpt-oss-20b,h100,mxfp4-experts,500,500,3998,105,True,184.3,847,vllm serve openai/gpt-oss-20b"
#: sgl-cookbook, Llama 3.1 70B on eight A100, SGLang 0.5.6: 16 at any time
CLOSED = "c,sglang,0.5.6,llama3.1-8b,h100,bf16,16,80,496,510,False,26.1,513,"


def table(tmp_path, *rows, head=HEAD):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return str(path)


def test_kinds_and_values(tmp_path):
    """A burst, a closed loop and a rate; each measured value has ours and an interval around it."""
    rate = CLOSED.replace("c,", "r,", 1) + ",2"
    found = speed.run(table(tmp_path, BURST + ",", CLOSED + ",", rate, head=HEAD + ",requests_per_s"))
    assert [each.row.kind for each in found] == ["burst", "closed", "rate"]
    for each in found:
        assert not each.reason
        for one in each.values:
            assert one.low < one.ours < one.high
            assert one.off is None or one.off == pytest.approx(one.ours / one.measured - 1)
    for row in speed.rows_of_values(found):  # in the table's units
        assert row["low"] < row["ours"] < row["high"]
        assert row["inside"] == (row["low"] <= row["measured"] <= row["high"])
    (output,) = (one.ours for one in found[2].values if one.what == "output")
    assert output == 2 * 510


def test_a_burst_by_hand(tmp_path):
    """One request of a burst: its prompt, then a step for every token but the first."""
    (row,) = speed.read(table(tmp_path, "b,vllm,0.19.1,llama3.1-8b,h100,bf16,1,1,512,101,True,7,120,"))
    point = speed.Point(row.device, row.plan, row.work)
    run = burst.serve(point, np.array([512]), np.array([101]))
    assert run.duration_s == pytest.approx(run.ttft_s + 100 * run.tpot_s)
    assert run.output_tokens_per_s == pytest.approx(101 / run.duration_s)
    assert run.tpot_s == pytest.approx(evaluate(point)["decode_step_s"], rel=0.01)


def test_varied_lengths_have_their_means():
    """Lengths of a chat trace: the means that were printed, none above the longest, the same at every call."""
    inputs, outputs = burst.varied_lengths(1000, 217, 200)
    assert inputs.mean() == pytest.approx(217, rel=0.01)
    assert outputs.mean() == pytest.approx(200, rel=0.01)
    assert 1 <= inputs.min() < inputs.max() <= burst.LONGEST_TOKENS
    assert (burst.varied_lengths(1000, 217, 200)[0] == inputs).all()


def test_settings_are_read_off_the_command(tmp_path):
    """What engines call memory, longest context, requests and prompt tokens."""
    server = "vllm serve m --gpu-memory-utilization 0.5 --max-model-len=32768 --max-num-seqs 64"
    (row,) = speed.read(table(tmp_path, BURST.replace("vllm serve openai/gpt-oss-20b", server)))
    assert (row.work.gpu_memory_utilization, row.work.max_model_len, row.work.max_num_seqs) == (0.5, 32768, 64)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (BURST.replace("vllm,", "tgi,", 1), "t.csv:2: engine = 'tgi': must be one of"),
        (BURST.replace(",500,500,", ",many,500,"), "t.csv:2: concurrency = 'many': must be a number"),
        (BURST.replace("184.3,847", "inf,"), "t.csv:2: measured_tpot_ms = '': nothing was measured"),
        (BURST.replace("gpt-oss-20b", "gpt-oss-21b", 1), "t.csv:2: unknown model 'gpt-oss-21b'"),
    ],
)
def test_a_bad_row_is_one_line(tmp_path, row, says):
    """A bad row does not stop the others; the text has one line of it."""
    found = speed.run(table(tmp_path, row, CLOSED))
    assert says in found[0].reason
    assert "\n" not in found[0].reason
    assert found[1].values
    assert found[0].reason in speed.text(found)


def test_units_that_slipped(tmp_path):
    """Where most rows are off by a factor of a unit the table is refused; one row among others is marked."""
    slipped = CLOSED.replace("c,", "s,", 1).replace(",26.1,", ",0.0261,")
    with pytest.raises(
        InputError, match=r"measured_tpot_ms = 0.0261: is .* less than predicted, as most rows: give ms"
    ):
        speed.run(table(tmp_path, slipped))
    assert "tpot: is" in speed.text(speed.run(table(tmp_path, CLOSED, CLOSED.replace("c,", "d,", 1), slipped)))


def test_a_release_that_was_not_measured_is_said(tmp_path):
    """The text names releases whose time nobody measured."""
    assert "sglang@0.4.1 was not measured" in speed.text(speed.run(table(tmp_path, CLOSED.replace("0.5.6", "0.4.1"))))


def test_the_command(tmp_path):
    """Text, JSON and the CSV file have the same rows; a missing column is one line."""
    path, out = table(tmp_path, BURST, CLOSED), tmp_path / "speed.csv"
    told = CliRunner().invoke(VALIDATE, ["speed", path, "--out", str(out)])
    assert told.exit_code == 0, told.output
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    document = json.loads(CliRunner().invoke(VALIDATE, ["speed", path, "--json"]).output)
    assert [row["id"] for row in rows] == [row["id"] for row in document["rows"]] == ["b", "b", "c", "c"]
    assert document["summary"][0]["predicted"] == 2


def test_a_missing_column_is_one_line(tmp_path, capsys):
    """A table without the columns is refused with its place."""
    with pytest.raises(SystemExit) as stop:
        cli.main(["validate", "speed", table(tmp_path, "1,2", head="id,engine")])
    assert_one_line((stop.value.code, *capsys.readouterr()), 2, "t.csv:1: column device is missing")
