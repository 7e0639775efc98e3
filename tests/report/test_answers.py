"""The page of answers: its tables are those of the question, and no text of it is markup."""

import json
import re

import pytest

import dse
from dse.model import uncertainty
from dse.questions import interactivity
from dse.report import answers


@pytest.fixture(scope="module")
def tables():
    return answers.tables(["llama3.1-8b"], ["h200"])


def test_each_design_is_one_that_can_be_asked_for(tables):
    found = tables["llama3.1-8b"]["h200"]["documents: 8,192 in, 1,024 out"]
    assert list(found)[:2] == ["fp16", "fp8"]
    for name in ("fp16", "fp8"):
        layout, n, batch, user, device, ttft, low, high, *latest = found[name]["rows"][0]
        split = {word.split()[0]: int(word.split()[1]) for word in layout.split(", ")}
        r = dse.evaluate("h200", "llama3.1-8b", name, **split, batch=batch, input_tokens=8192, output_tokens=1024)
        assert r["n_devices"] == n
        row = {**r, "output_tokens": 1024, "n_devices": n, "batch": batch}
        assert latest == pytest.approx([uncertainty.ends(r, time)[1] for time in ("tpot_s", "ttft_s")], rel=1e-3)
        assert (user, device) == pytest.approx(interactivity.speeds(row), rel=1e-3)
        assert (ttft, low, high) == pytest.approx(
            (r["ttft_s"], *(end / r["throughput_tokens_per_s"] for end in uncertainty.ends(r))), rel=1e-3
        )
    most = dse.evaluate("h200", "llama3.1-8b", "fp8", tp=1, input_tokens=8192, output_tokens=1024)["max_batch"]
    assert dict(found["fp8"]["holds"])[1] == most
    assert found["fp8"]["drop"].endswith(" %")
    assert " ± " in found["fp8"]["drop"]
    assert found["fp8"]["rise"] == "+1.1 %"


def test_the_page_holds_its_tables_and_fetches_nothing(tables):
    page = answers.page({"<b>": tables["llama3.1-8b"]})
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1]
    assert "<" not in data
    assert json.loads(data)["tables"]["<b>"]["h200"].keys() == answers.LENGTHS.keys()
    assert not re.findall(r"(?:src|href)=.https?:", page)
