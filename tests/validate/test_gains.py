"""Published gains beside predictions: gains and winners by hand, the files, rows that cannot be predicted."""

import csv
import io
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from dse.calibrate.evidence import EvidenceRow
from dse.cli import main as cli
from dse.core import files
from dse.core.errors import InputError
from dse.model.engine import evaluate
from dse.validate import gains
from dse.validate.gains import JudgedGain
from factories import assert_one_line

VALIDATE = cli.cli.commands["validate"]

HEAD = "id,device,model,weights,kv,stack,batch,input_tokens,output_tokens,quantity,value,unit,cls,group,is_base"
RATE, STEP = "output throughput,{},token/s", "time per output token,{},ms"


def line(name, kv, value, of=RATE, stack="vLLM 0.7.3", group="g", is_base=0, device="A100-80GB", batch=32, cls="c"):
    return f"{name},{device},Llama-2-7B,FP16,{kv},{stack},{batch},1024,512,{of.format(value)},{cls},{group},{is_base}"


def judged(tmp_path, *rows):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return gains.run(str(path))


def test_gains_by_hand(tmp_path):
    """Rates: of a row over its base's; times: of its base over a row's. Predicted from the two predictions."""
    found = judged(
        tmp_path,
        line("b", "FP16", 800, is_base=1),
        line("q", "INT4 per head", 1000, stack="QServe"),
        line("tb", "FP16", 40, STEP, group="t", is_base=1),
        line("tq", "INT4 per head", 32, STEP, "QServe", "t"),
    )
    base, packed, slow, fast = found
    assert (base.gain, base.printed_gain) == (1.0, 1.0)
    assert packed.printed_gain == pytest.approx(1.25)
    assert packed.gain == pytest.approx(packed.value / base.value)
    assert fast.printed_gain == pytest.approx(1.25)
    assert fast.gain == pytest.approx(slow.value / fast.value)
    for one in (packed, fast):
        assert one.gain_low < one.gain < one.gain_high
        assert one.low < one.value < one.high
    assert base.low < base.value < base.high


def test_a_gain_is_at_both_ends_of_its_kernels(tmp_path):
    """The interval of a gain holds what the slow and the fast end of QServe's rate make of it."""
    base, packed = judged(tmp_path, line("b", "FP16", 800, is_base=1), line("q", "INT4 per head", 900, stack="QServe"))
    for end in ("slowest", "fastest"):
        moved = evaluate(packed.row.point(implementation=f":{end}"))["throughput_tokens_per_s"] / base.value
        assert packed.gain_low < moved < packed.gain_high


def test_a_row_without_a_base_or_of_another_quantity_has_no_gain(tmp_path):
    found = judged(
        tmp_path,
        line("b", "FP16", 800, is_base=1),
        line("other", "FP16", 800, group="h"),
        line("time", "FP8", 30, STEP),
        line("alone", "FP16", 800, group=""),
    )
    assert [one.gain for one in found] == [1.0, None, None, None]
    assert all(one.value for one in found)


def test_what_cannot_be_predicted_has_a_reason_and_no_numbers(tmp_path):
    found = judged(
        tmp_path,
        line("b", "FP16", 800, is_base=1),
        line("x", "FP8", 900, stack="abacus"),
        line("y", "INT4 per head", 900, stack="QServe", device="H700"),
    )
    rows = list(csv.DictReader(io.StringIO(gains.predictions_csv(found))))
    assert [row["id"] for row in rows] == ["b", "x", "y"]
    assert "stack = 'abacus': is not known" in rows[1]["reason"]
    assert "unknown device" in rows[2]["reason"]
    for row in rows[1:]:
        assert not any(row[name] for name in ("predicted", "low", "high", "gain", "gain_low", "gain_high"))


def test_predictions_have_these_columns(tmp_path):
    out = tmp_path / "out"
    path = tmp_path / "t.csv"
    path.write_text("\n".join([HEAD, line("b", "FP16", 800, is_base=1), line("q", "FP8", 900)]) + "\n")
    done = CliRunner().invoke(VALIDATE, ["gains", str(path), "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    lines = (out / "predictions.csv").read_text().splitlines()
    assert lines[0] == "id,predicted,low,high,gain,gain_low,gain_high,reason,marks"
    (packed,) = [row for row in csv.DictReader(lines) if row["id"] == "q"]
    assert "implementation: vLLM, FP8 keys and values, 16-bit query" in packed["marks"]  # an A100 has no FP8
    errors = json.loads((out / "errors.json").read_text())
    assert [(row["by"], row["group"], row["rows"]) for row in errors] == [
        ("all", "all", 2),
        ("class", "c", 2),
        ("stack", "vLLM 0.7.3", 2),
    ]
    told = CliRunner().invoke(VALIDATE, ["gains", str(path), "--out", str(out), "--json"], catch_exceptions=False)
    assert json.loads(told.output) == errors


ROW = EvidenceRow("r", 2, "g", False, "c", "output throughput", 100.0, "token/s", {"stack": "s"})


def test_errors_by_hand():
    """Values off by 10, 20, 0 and 0 %, three inside; gains of 1.2 for 1.5, 0.9 for 1.02 (a tie), 1.1 for 0.8."""
    found = [
        JudgedGain(ROW, 110.0, 95.0, 130.0, gain=1.2, gain_low=1.0, gain_high=1.4, printed_gain=1.5),
        JudgedGain(ROW, 80.0, 70.0, 90.0, gain=0.9, gain_low=0.8, gain_high=1.1, printed_gain=1.02),
        JudgedGain(ROW, 100.0, 90.0, 120.0, gain=1.1, gain_low=0.7, gain_high=1.3, printed_gain=0.8),
        JudgedGain(ROW, reason="unknown"),
        JudgedGain(replace(ROW, is_base=True), 100.0, 90.0, 110.0, gain=1.0, printed_gain=1.0),
    ]
    whole = gains.errors(found)[0]
    assert (whole["rows"], whole["predicted"], whole["gains"], whole["decided"]) == (5, 4, 3, 2)
    assert whole["mean"] == pytest.approx((0.1 + 0.2 + 0 + 0) / 4)
    assert whole["median"] == pytest.approx(0.05)
    assert whole["inside"] == pytest.approx(3 / 4)
    assert whole["right"] == pytest.approx(1 / 2)
    # 1.2 / 1.5: 20 %; 0.9 / 1.02: 11.8 %; 1.1 / 0.8: 37.5 %
    assert whole["gain_median"] == pytest.approx(0.2)
    assert whole["gain_inside"] == pytest.approx(2 / 3)
    assert gains.errors([JudgedGain(ROW, reason="unknown")])[0]["mean"] is None


def test_where_nothing_fits_there_is_no_gain_and_no_crash(tmp_path):
    """Llama2-70B in 16 bits fits no A100; a table says so with 1, and that its 4-bit cache has a largest batch."""
    big = [
        "a,A100-80GB,Llama-2-70B,FP16,FP16,vLLM 0.7.3,1,1024,512,out of memory,1,bool,c,g,1",
        "b,A100-80GB,Llama-2-70B,FP16,INT4 per head,QServe,1,1024,512,out of memory,1,bool,c,g,0",
        "c,A100-80GB,Llama-2-70B,FP16,FP16,vLLM 0.7.3,1,1024,512,batch of maximum throughput,1,request,c,h,1",
        "d,A100-80GB,Llama-2-7B,FP16,FP16,vLLM 0.7.3,1,1024,512,batch of maximum throughput,8,request,c,h,0",
        "e,A100-80GB,Llama-2-7B,FP16,FP16,vLLM 0.7.3,1,1024,512,out of memory,1,bool,c,k,1",
        "f,A100-80GB,Llama-2-7B,FP16,FP8,vLLM 0.7.3,1,1024,512,out of memory,1,bool,c,k,0",
    ]
    found = judged(tmp_path, *big)
    assert [one.value for one in found][:3] == [1.0, 1.0, 0.0]
    assert found[4].value == 0.0
    assert [one.gain for one in found] == [None] * 6
    assert gains.text(found)
    files.publish(str(tmp_path / "out"), gains.contents_of(found))


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("id,device\nr,H100\n", ["columns model, kv, stack, quantity, value, unit are missing"]),
        ("", ["t.csv"]),
        (HEAD + "\n" + line("a", "FP16", "nan") + "\n", ["t.csv:2: value = 'nan'"]),
        (HEAD + "\n" + line("a", "FP16", 1, is_base=2) + "\n", ["t.csv:2: is_base = '2': must be 0 or 1"]),
    ],
)
def test_bad_tables_are_one_line_and_write_nothing(tmp_path, content, parts, capsys):
    path, out = tmp_path / "t.csv", tmp_path / "out"
    path.write_text(content)
    with pytest.raises(SystemExit) as stop:
        cli.main(["validate", "gains", str(path), "--out", str(out)])
    assert_one_line((stop.value.code, *capsys.readouterr()), 2, *parts)
    assert not (out / "predictions.csv").exists()


def test_a_table_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        gains.run(str(tmp_path / "none.csv"))
