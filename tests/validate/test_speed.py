"""Public benchmarks beside predictions: kinds of measurement, what is read off, bad rows, the table as printed."""

import csv
import io
import json
import math

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


def test_a_loop_of_several_lengths_comes_to_its_prompts_one_by_one(tmp_path):
    """sgl-cookbook's loop of 16: prompts of 496 tokens in the mean run alone, so that a first token waits for its own
    and for the host, 16 * 1.834 ms (docs/reference/fits.md); lengths that somebody chose stay in step."""
    chosen = CLOSED.replace("c,", "d,", 1).replace("496,510", "500,512")
    drawn, alike, said = speed.run(
        table(tmp_path, CLOSED + ",", chosen + ",", chosen.replace("d,", "e,", 1) + ",varied", head=HEAD + ",lengths")
    )
    assert [row.row.is_varied for row in (drawn, alike, said)] == [True, False, True]
    first = {id(row): row.values[1].ours for row in (drawn, alike, said)}
    assert first[id(said)] == pytest.approx(first[id(drawn)], rel=0.01)
    alone = speed.run(table(tmp_path, CLOSED.replace(",16,80,", ",1,5,")))[0].values[1].ours
    assert first[id(drawn)] == pytest.approx(alone + 15 * 1.834e-3, rel=0.03)
    assert first[id(alike)] > 2 * first[id(drawn)]


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
    """A table without the columns is refused with its place: all of them at once, or the one that is nearest."""
    with pytest.raises(SystemExit) as stop:
        cli.main(["validate", "speed", table(tmp_path, "1,2", head="id,engine")])
    missing = "columns device, concurrency, input_tokens, output_tokens, model, measured_tpot_ms are missing"
    assert_one_line((stop.value.code, *capsys.readouterr()), 2, f"t.csv:1: {missing}: the header has id, engine")
    with pytest.raises(InputError, match=r"t.csv:1: column device is missing: did you mean devices"):
        speed.run(table(tmp_path, CLOSED + ",", head=HEAD.replace("device", "devices") + ",more"))


def test_names_of_other_tables_are_taken(tmp_path):
    """As benchmarks print them: no id, no weights, eight devices in the cell of the device."""
    head = "backend,device,model_id,max_concurrency,random_input_len,random_output_len,mean_tpot_ms,output_throughput"
    (row,) = speed.read(table(tmp_path, "openai-chat,8xh200,llama3.1-70b,16,1024,256,9.7,1500", head=head))
    assert (row.id, row.engine, row.kind, row.device.name, row.work.tp) == ("2", "vllm", "closed", "H200", 8)
    assert (row.work.batch, row.work.input_tokens, row.work.output_tokens) == (16, 1024, 256)
    assert row.measured == {"tpot": pytest.approx(9.7e-3), "output": 1500}
    (row,) = speed.read(table(tmp_path, "vllm,8xh200,llama3.1-70b,16,1024,256,9.7,1500,4", head=head + ",tp"))
    assert "device = '8xh200': tp 4 x pp 1 are other numbers of devices: give h200 for one" in row.reason
    (row,) = speed.read(table(tmp_path, "vllm,8xh200,llama3.1-70b,16,1024,256,9.7,1500,4,2", head=head + ",tp,pp"))
    assert (row.work.tp, row.work.pp) == (4, 2)


#: what `vllm bench serve --save-result` writes, shortened: 320 requests, 32 at any time, of 1,024 and 512 tokens
VLLM_RESULT = {
    "endpoint_type": "openai",
    "backend": "openai",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 321,
    "request_rate": "inf",
    "max_concurrency": 32,
    "completed": 320,
    "total_input_tokens": 327680,
    "total_output_tokens": 163840,
    "output_throughput": 3000.5,
    "mean_ttft_ms": 150.5,
    "mean_tpot_ms": 9.5,
    "device": "1xh100",
}
#: a line of SGLang's bench_serving: 4 requests a second, nothing drafted
SGLANG_RESULT = {
    "backend": "sglang",
    "request_rate": 4.0,
    "max_concurrency": None,
    "concurrency": 15.87,
    "completed": 400,
    "total_input_tokens": 409600,
    "total_output_tokens": 102400,
    "output_throughput": 1000.1,
    "mean_ttft_ms": 112.5,
    "mean_tpot_ms": 15.9,
    "accept_length": None,
    "server_info": {"model_path": "Qwen/Qwen3-14B", "tp_size": 1, "version": "0.5.9", "kv_cache_dtype": "auto"},
    "gpu": "H100",
}


def result(tmp_path, *runs):
    path = tmp_path / f"{len([*tmp_path.iterdir()])}.json"
    path.write_text("\n".join(json.dumps(run) for run in runs))
    return str(path)


def test_results_of_benchmarks_are_read(tmp_path):
    (row,) = speed.read(result(tmp_path, VLLM_RESULT))
    assert (row.engine, row.kind, row.n_requests, row.work.tp) == ("vllm", "closed", 320, 1)
    assert (row.work.batch, row.work.input_tokens, row.work.output_tokens) == (32, 1024, 512)
    assert row.measured == pytest.approx({"tpot": 9.5e-3, "output": 3000.5, "ttft": 150.5e-3})
    (row,) = speed.read(result(tmp_path, VLLM_RESULT | {"max_concurrency": None}))
    assert (row.kind, row.work.batch) == ("burst", 320)
    rate, drafts = speed.read(result(tmp_path, SGLANG_RESULT, SGLANG_RESULT | {"accept_length": 2.4}))
    assert (rate.kind, rate.requests_per_s, rate.release, rate.plan.model.name) == ("rate", 4, "0.5.9", "qwen3-14b")
    assert not rate.marks
    assert "speculates" in drafts.marks
    (drafts,) = speed.read(result(tmp_path, VLLM_RESULT | {"spec_decode_acceptance_length": 2.7}))
    assert "speculates" in drafts.marks


def test_servers_of_sglangs_results_are_as_it_started_them(tmp_path):
    """At most 16 requests, of which 15.87 ran in the mean; a rate without a bound is Infinity in its JSON."""
    server = SGLANG_RESULT["server_info"] | {
        "tp_size": 2,
        "mem_fraction_static": 0.8,
        "max_running_requests": 64,
        "chunked_prefill_size": 4096,
        "quantization": "w8a8_fp8",
        "speculative_algorithm": None,
    }
    (row,) = speed.read(
        result(tmp_path, SGLANG_RESULT | {"request_rate": math.inf, "max_concurrency": 16, "server_info": server})
    )
    assert not row.reason
    assert (row.kind, row.work.batch, row.work.tp, row.work.weights) == ("closed", 16, 2, "fp8")
    assert (row.work.gpu_memory_utilization, row.work.max_num_seqs, row.work.prompt_budget_tokens) == (0.8, 64, 4096)
    assert not row.marks
    drafts = server | {"speculative_algorithm": "EAGLE", "quantization": "compressed-tensors"}
    (row,) = speed.read(result(tmp_path, SGLANG_RESULT | {"server_info": drafts}))
    assert "speculates" in row.marks
    assert row.work.weights == "released"


def test_a_list_of_results_is_read_and_what_each_lacks_is_said(tmp_path):
    path = tmp_path / "runs.json"
    without = {name: value for name, value in VLLM_RESULT.items() if name not in ("device", "model_id")}
    path.write_text(json.dumps([VLLM_RESULT, without], indent=2))
    found, lacks = speed.read(str(path))
    assert not found.reason
    assert lacks.reason.endswith(
        f"device, model = '': must be there: give them, for `vllm bench serve` as --metadata device=8xh200 "
        f"model=MODEL, or say it to `dse check-log {path}`, as --device 8xh200 or --model NAME"
    )


def test_tables_that_say_by_a_kind_how_rows_were_measured_are_read(tmp_path):
    """A rate is served by as many requests as come, of 5 rounds of 16 are 80; settings are those of a command. A row
    without its number of requests says so."""
    path = tmp_path / "points.csv"
    head = "id,engine,version,model,gpu,n,tp,ep,dpa,kv,util,mml,seqs,budget,kind,rate,conc,rounds,inp,out,ots,tpot,ttft"
    server = "vllm,0.19.0,llama3.1-8b,H100,2,2,,,auto,0.8,32768,64,4096"
    kinds = ("rate,2,9,,200,180,350,12,90", "concurrency,,16,5,1024,256,900,12,90", "steady decode,,4,,512,32,300,12,")
    kinds += ("burst,,100,1,217,201,650,,146", "offline throughput,,,,229,512,987,,")
    path.write_text("\n".join([head, *(f"{i},{server},{kind}" for i, kind in enumerate(kinds))]) + "\n")
    rate, closed, decode, burst, offline = speed.read(str(path))
    assert [row.kind for row in (rate, closed, decode, burst)] == ["rate", "closed", "decode", "burst"]
    assert (rate.requests_per_s, rate.work.batch, rate.measured["tpot"]) == (2, 1024, pytest.approx(0.012))
    assert (closed.n_requests, closed.work.batch, closed.work.tp, closed.plan.quantizer_name) == (80, 16, 2, "fp16")
    settings = closed.work.gpu_memory_utilization, closed.work.max_model_len
    assert (*settings, closed.work.max_num_seqs, closed.work.prompt_budget_tokens) == (0.8, 32768, 64, 4096)
    assert "concurrency = '': must be there" in offline.reason


def test_check_log_takes_a_result(tmp_path, run):
    """Options stand for what a result does not say; what it lacks is one line."""
    path = result(tmp_path, VLLM_RESULT)
    code, out, err = run("check-log", path, "--stack", "vllm@0.18.0", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [row["what"] for row in found["rows"]] == ["tpot", "ttft", "output"]
    told = run("check-log", path, "--device", "8xh200", "--model", "llama3.1-70b", "--weights", "fp8")[1]
    assert told.startswith("vllm: llama3.1-70b on 8 x H200, 32 requests at any time, 1,024 in, 512 out")
    assert "Most of our step of" in told
    without = {name: value for name, value in VLLM_RESULT.items() if name != "device"}
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps(VLLM_RESULT)[:150])
    for file, options, words in (
        (result(tmp_path, without), (), "device: is missing, a benchmark of meta-llama/Llama-3.1-8B-Instruct does not"),
        (result(tmp_path, VLLM_RESULT | {"completed": 0}), (), "completed = '0': must be more than 0: did any"),
        (result(tmp_path, {"completed": 1}), (), "is no result of `vllm bench serve` or `sglang.bench_serving`"),
        (result(tmp_path, SGLANG_RESULT | {"server_info": None}), (), "model: is missing, the result does not say it"),
        (result(tmp_path, VLLM_RESULT), ("--tp", "3"), "tp 3 x pp 1 are other numbers of devices"),
        (result(tmp_path, VLLM_RESULT), ("--out", "m.json"), "a benchmark does not say memory: leave --out out"),
        (str(cut), (), "is no JSON of a benchmark (cut off?)"),
    ):
        assert_one_line(run("check-log", file, *options), 2, words)
