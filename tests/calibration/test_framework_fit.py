"""Hugging Face's code: found again from the rows of OPT-6.7B in NQKV's Table 4; those of OPT-30B judge."""

from dataclasses import replace

import numpy as np
import pytest

from calibration import frameworks, implementations
from dse.calibrate import evidence
from dse.core.errors import InputError
from dse.specs import catalog
from dse.validate.claims.published import NQKV_OUTPUT_TOKENS, NQKV_TABLE_4

HEAD = "id,device,model,weights,activations,kv,stack,batch,input_tokens,output_tokens,quantity,value,unit,trust"
FITTED, JUDGED = "opt-6.7b", "opt-30b"


def table(path, models=(FITTED, JUDGED)):
    """The throughputs of Table 4 as evidence; those of OPT-30B judge."""
    lines = [HEAD]
    for (model, batch, n), (speeds, _) in NQKV_TABLE_4.items():
        for kv, speed in zip(("none", "int8", "nqkv"), speeds, strict=True):
            if speed and model in models:
                trust = "judged" if model == JUDGED else ""
                lines.append(
                    f"{model}-{batch}-{n}-{kv},A100-80GB,{model},INT8,INT8,{kv},transformers,{batch},{n},"
                    f"{NQKV_OUTPUT_TOKENS},output throughput,{speed},token/s,{trust}"
                )
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_the_frameworks_numbers_are_those_of_its_six_rows(tmp_path):
    done = frameworks.run(table(tmp_path / "t.csv"), str(tmp_path / "out"))
    stack = catalog.device("a100-80gb").stacks["transformers"]
    assert done["n_rows"] == stack.host.n_points == 6
    assert done["layer_us"] == pytest.approx(stack.host.layer.si * 1e6, rel=1e-3)
    assert done["flops_frac"] == pytest.approx(stack.products["w8a8"].flops_frac.si, rel=1e-3)
    assert done["left_out_mean"] == pytest.approx(stack.products["w8a8"].held_out_error, abs=1e-3)
    assert done["judged_mean"] == pytest.approx(stack.products["w8a8"].serving_error, abs=1e-3)
    for part in (stack.host.layer, stack.products["w8a8"].flops_frac):
        assert part.source.startswith(
            "NQKV, Table 4, SmoothQuant without a KV cache, OPT-6.7B: 6 rows, mean error 9.9 %"
        )
    assert (done["mean"], done["left_out_mean"]) == pytest.approx((0.0994, 0.139), abs=1e-3)
    assert 'layer = "537.1 us"' in (tmp_path / "out" / "transformers.toml").read_text()
    assert "537.1 us in a layer, 0.32 of the peak" in frameworks.text(done)


def test_rows_that_judge_change_no_number(tmp_path):
    """Ten times the throughputs of OPT-30B: what is fitted stays, errors on them grow."""
    rows = evidence.read(table(tmp_path / "t.csv"))
    wrong = [
        row if row.cells["model"] == FITTED else replace(row, value=10 * row.value)
        for row in rows
        if row.cells["kv"] == "none"
    ]
    found, shipped = frameworks.fit(wrong), catalog.device("a100-80gb").stacks["transformers"]
    assert found.layer_us == pytest.approx(shipped.host.layer.si * 1e6, rel=1e-3)
    assert found.judged_mean > 0.85


def test_what_reading_keys_and_values_takes_is_found_again(tmp_path):
    done = implementations.run(table(tmp_path / "t.csv"), str(tmp_path / "out"))
    assert [fit["rows"] for fit in done["fits"]] == [6, 6]
    for fit, family in zip(done["fits"], ("int8", "nqkv"), strict=True):
        shipped = catalog.implementations_of(family)["transformers"]
        assert fit["name"] == "transformers"
        assert fit["not_told"] == []
        for name, number in shipped.numbers().items():
            found = fit["numbers"][name]
            ends = (found["value"], found["low"], found["high"])
            assert ends == pytest.approx((number.value, number.low, number.high), rel=5e-3)
            assert f"mean error {100 * fit['mean']:.1f} %, {100 * fit['left_out_mean']:.1f} %" in number.source


def test_the_interval_is_that_of_the_rows_that_judge(tmp_path):
    over = frameworks.judged(evidence.read(table(tmp_path / "t.csv")))
    assert {kv: len(values) for kv, values in over.items()} == {"none": 6, "int8": 5, "nqkv": 6}
    errors = {kv: float(np.abs(values - 1).mean()) for kv, values in over.items()}
    assert errors == pytest.approx({"none": 0.264, "int8": 0.180, "nqkv": 0.147}, abs=1e-3)
    spread = catalog.device("a100-80gb").stacks["transformers"].left_out["dense"]
    ends = np.quantile(np.concatenate(list(over.values())), [0.1, 0.9])
    assert (spread.low, spread.high) == pytest.approx(tuple(ends), abs=5e-3)
    assert spread.n_points == 17


def test_too_few_rows_without_a_cache_are_refused(tmp_path):
    with pytest.raises(InputError, match="fewer than 5 rows with kv = none and trust other than judged"):
        frameworks.run(table(tmp_path / "t.csv", (JUDGED,)), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
