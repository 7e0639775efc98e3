"""Oaken's Figure 14 from moments: the table's rows, padding, and what must hold between them."""

import pytest

from dse.questions import systems
from dse.questions import traces as tables_traffic
from dse.report import throughput as report
from dse.serving import steady_state as serving
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build


@pytest.fixture(scope="module")
def table():
    return tables_traffic.throughput_of_traces(report.ask())


def test_rows_are_those_of_the_figure(table):
    assert set(table["model"]) == set(tables_traffic.MODELS)
    assert sorted(set(table["batch"])) == [16, 32, 64, 128]
    assert set(table["system"]) == set(tables_traffic.SYSTEMS)
    mixtral = table[table["model"] == "mixtral-8x7b-oaken"]
    assert "A100 QServe" not in set(mixtral["system"])  # no mixtures of experts (Oaken 6.2)
    assert not mixtral[mixtral["system"] == "Oaken-HBM"]["feasible"].any()  # as Oaken 6.2 has it
    assert len(table) == 3 * 4 * (6 + 5)


def test_a_row_from_its_parts():
    """Oaken-LPDDR, Conversation, 64 at once: E[O] / (E[O] / 64 * step + prompt)."""
    conversation = tables_traffic.traces()[0]
    kv = build("llama2-13b", "oaken")
    system = next(s for s in systems.DEFAULT if s.label == "Oaken-LPDDR")
    work = Workload(64, admission="reserve", model_kind="ideal")
    row = tables_traffic.evaluate(system, kv, conversation, work)
    mean_out = 211.12594237323142
    request_s = mean_out / 64 * row["decode_step_s"] + row["prefill_s"]
    assert row["throughput_tokens_per_s"] == pytest.approx(mean_out / request_s, rel=1e-12)
    assert row["input_tokens"] == pytest.approx(1154.697, abs=1e-3)
    # products of a step of 64 read 26.03 GB at 1.1 TB/s: the step takes longer than these 23.7 ms
    assert 0.0237 < row["decode_step_s"] < 0.06
    # a prompt of 1,155 tokens: 2 * 13.0e9 * 1,155 FLOP at 270 TFLOP/s are 0.111 s, and attention
    assert row["prefill_s"] == pytest.approx(2 * 13.016e9 * 1154.7 / 270e12, rel=0.06)


def test_tender_pays_the_padding_of_its_prompts():
    conversation = tables_traffic.traces()[0]
    kv = build("llama2-13b", "tender")
    system = next(s for s in systems.DEFAULT if s.label == "Tender")
    work = Workload(32, admission="reserve")
    row = tables_traffic.evaluate(system, kv, conversation, work)
    assert row["padding_factor"] == pytest.approx(3.714, rel=0.002)  # E[longest of 32 prompts] / E[prompt], of the file
    plain = serving.steady(catalog.device("tender-a100"), kv, work, conversation.moments)
    mean_out = conversation.moments.mean_output_tokens
    request_s = mean_out / 32 * plain["decode_step_s"] + row["padding_factor"] * plain["prefill_s"]
    assert row["throughput_tokens_per_s"] == pytest.approx(mean_out / request_s, rel=1e-12)
    assert row["throughput_tokens_per_s"] < 0.7 * plain["throughput_tokens_per_s"]


def test_only_tender_pads(table):
    assert set(table[table["padding_factor"] > 1]["system"]) == {"Tender"}


def test_assumed_lengths_are_named(table):
    longer = table[table["trace"] == "Long answers"]
    assert longer["assumptions"].str.contains("answer_lengths").all()
    assert not table[table["trace"] != "Long answers"]["assumptions"].str.contains("answer_lengths").any()


def test_a_users_report_shows_its_own_systems():
    own = report.ask(["h100"], ["opt-125m"], ["fp16", "qserve"], [4])
    found = tables_traffic.throughput_of_traces(own)
    assert set(found["device"]) == {"H100"}
    assert set(found["batch"]) == {4}
    assert len(found) == 2 * 3
