"""A report about a model that lies on several devices."""

import pytest

from dse.core.errors import InputError
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.operations.declare import words_of
from dse.operations.pages import WriteReport
from dse.questions import tables
from dse.report import throughput
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build

ASKED = {"devices": ["h100"], "models": ["llama3.1-70b"], "quantizers": ["fp16"], "batches": [16]}


def test_every_system_is_split_as_asked():
    request = throughput.ask(**ASKED, work=Workload(tp=4))
    (row,) = tables.one("results", request).to_dict("records")
    plan = build("llama3.1-70b", "fp16")
    work = Workload(16, 1024, 1024, admission="paged", memory="paper", tp=4)
    expected = evaluate(Point(catalog.device("h100"), plan, work))
    for name in ("tp", "n_devices", "weight_bytes", "collective_s", "throughput_tokens_per_s"):
        assert row[name] == expected[name], name
    traffic = tables.one("traffic", request)
    alone = tables.one("traffic", throughput.ask(**ASKED))
    assert traffic["feasible"].all()  # 141 GB of weights on 4 x 80 GB
    assert not alone["feasible"].any()


def test_the_command_that_makes_it_again_has_the_split_alone():
    work = Workload(tp=4, pp=1, dp_attention=True)
    words = " ".join(words_of(WriteReport(out="r", **ASKED, workload=work)))
    assert words.endswith("--batches 16 --tp 4 --dp-attention")


def test_the_papers_devices_are_not_split():
    with pytest.raises(InputError, match="tp = 2: the papers' devices are as the papers have them"):
        throughput.ask(work=Workload(tp=2))
    assert throughput.ask().is_default
