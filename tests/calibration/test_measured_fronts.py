"""Ratios of measured servers: cells by hand, and the file that ships as the fitter writes it."""

import csv
import io
from itertools import groupby

import pytest

from calibration import measured_fronts
from calibration.measured_fronts import LIMITS_MS, fronts, loads_of, text_of
from dse import data
from dse.calibrate.servers import read
from dse.core.errors import InputError
from dse.questions.measured_fronts import MeasuredLayout

HEAD = (
    "id,silicon_data_source,backend,backend_version,model_path,system,precision,isl,osl,batch_size,tp_size,"
    "attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms,suspect"
)
DAY = "source_file=2026-04-01.csv; measured=2026-03-27"


def row(name, model, batch, tp, ttft_ms, tpot_ms, ep=1, source="", suspect=""):
    layout = f"{batch},{tp},1,1,{ep}"
    return f"{name},{source},vllm,0.19.0,{model},h200_sxm,,1000,100,{layout},{ttft_ms},{tpot_ms},{suspect}"


def made(tmp_path, *rows):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return fronts(loads_of(read(str(path))))


#: answers of 100 tokens: 10 requests in 0.25 + 1 s are 800 tok/s, 40 in 0.5 + 4 s 888.9; on two devices 10 in
#: 0.125 + 0.5 s are 800 each, 40 in 0.5 + 2 s too
ROWS = (
    row("a", "llama3.1-8b", 10, 1, 250, 10),
    row("b", "llama3.1-8b", 40, 1, 500, 40),
    row("c", "llama3.1-8b", 10, 2, 125, 5),
    row("d", "llama3.1-8b", 40, 2, 500, 20),
)


def test_cells_by_hand(tmp_path):
    """At 20 ms, half way between 10 and 40 in logarithms, one device gives the root of 800 * 888.9 = 843.3; two keep
    more than 20 ms nowhere, so 800 is the least that they give. At 10 ms both give 800; at 5 ms one alone is there."""
    rows = made(tmp_path, *ROWS)
    found = {(one["tpot_limit_ms"], one["tp"]): one for one in rows}
    assert {limit for limit, _ in found} == set(LIMITS_MS) - {5}
    ratios = {key: one["ratio"] for key, one in found.items()}
    assert ratios[20, 1] == 1
    assert ratios[20, 2] == pytest.approx(800 / (800 * 800 / 0.9) ** 0.5)
    assert ratios[30, 2] == pytest.approx(0.9**0.7925, rel=1e-4)  # ln 3 / ln 4 of the way
    assert ratios[100, 2] == pytest.approx(0.9)
    assert (ratios[10, 1], ratios[10, 2]) == pytest.approx((1, 1))
    opened = {key: (one["requests"], one["is_open"]) for key, one in found.items()}
    assert opened[20, 1] == opened[10, 2] == (20, 0)
    assert opened[10, 1] == (10, 0)
    assert opened[20, 2] == opened[100, 1] == (40, 1)
    assert {one["kv"] for one in rows} == {""}  # NVIDIA's rows do not say it
    assert {one["source"] for one in rows} == {"NVIDIA"}
    assert {*rows[0]} == {*MeasuredLayout._fields} - {"limit_s"} | {"tpot_limit_ms"}


def test_loads_too_far_apart_are_not_joined(tmp_path):
    """From 10 to 41 requests is more than four times: 10 is the last load that keeps 20 ms."""
    rows = made(tmp_path, ROWS[0], row("b", "llama3.1-8b", 41, 1, 500, 40), *ROWS[2:])
    one = next(one for one in rows if (one["tpot_limit_ms"], one["tp"]) == (20, 1))
    assert (one["requests"], one["is_open"], one["ratio"]) == (10, 1, 1)


def test_layouts_of_as_many_devices_are_compared_at_one_load_and_reruns_by_their_median(tmp_path):
    """At 16 requests: 1,600 tokens in 1 s, with experts apart in 1.25 s, of which there are three runs. InferenceX's
    types of the cache are known; a row that names no day is a copy, and a suspect one is none."""
    both = [row("a", "gpt-oss-120b", 16, 2, 100, 10, source=DAY)]
    both += [row(f"b{ttft}", "gpt-oss-120b", 16, 2, ttft, 10, ep=2, source=DAY) for ttft in (350, 340, 900)]
    both.append(row("c", "gpt-oss-120b", 16, 2, 1, 1, ep=2, source="db-dump/2026-04-27"))
    both.append(row("d", "gpt-oss-120b", 16, 2, 1, 1, ep=2, source=DAY, suspect="drafts"))
    every = made(tmp_path, *both)
    assert {one["month"] for one in every} == {"2026-03"}
    rows = [one for one in every if one["tpot_limit_ms"] is None]
    assert [(one["ep"], one["requests"], one["kv"], one["month"]) for one in rows] == [
        (1, 16, "fp16", "2026-03"),
        (2, 16, "fp16", "2026-03"),
    ]
    first_s, second_s = 0.1 + 90 * 0.010, 0.35 + 90 * 0.010  # 0.9 of the stated tokens
    assert [one["ratio"] for one in rows] == pytest.approx([1, first_s / second_s])
    assert {one["source"] for one in rows} == {"InferenceX"}


def test_the_file_is_as_the_fitter_writes_it(tmp_path, monkeypatch):
    """The columns and the order of what `fronts` makes, digits as `text_of` writes them; a best one in every cell."""
    shipped = data.text("measured_fronts.csv")
    rows = list(csv.DictReader(io.StringIO(shipped)))
    columns = list(made(tmp_path, *ROWS)[0])
    assert list(rows[0]) == columns
    assert text_of([{**one, "ratio": float(one["ratio"])} for one in rows]) == shipped
    cells = [list(cell) for _, cell in groupby(rows, key=lambda one: [one[name] for name in columns[:4]])]
    for cell in cells:
        assert len(cell) >= 2
        assert max(float(one["ratio"]) for one in cell) == 1
    with pytest.raises(InputError, match="give the path of a table"):
        measured_fronts.main([])
    monkeypatch.setattr(measured_fronts, "SHIPPED", tmp_path / "out.csv")
    path = tmp_path / "t.csv"
    measured_fronts.main([str(path)])
    assert (tmp_path / "out.csv").read_text() == text_of(made(tmp_path, *ROWS))
