"""How sure a front is: intervals of what has any, and chances of neighbours by the comparison itself."""

import json
from itertools import pairwise

import pandas as pd
import pytest

import factories
from dse.core.errors import InputError
from dse.figures.export import front as report_front
from dse.model import uncertainty
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.workload import Workload
from dse.sweep.pareto import designs, sure

RATE = "throughput_tokens_per_s"
OBJECTIVES = {RATE: "max", "stored_bits": "max"}


def results(names=("fp16", "fp8", "qserve"), batches=(64,)):
    device = catalog.device("a100-80gb")
    works = {batch: Workload(batch, other_software=True) for batch in batches}  # QServe's, which vLLM has not
    return [
        {**evaluate(Point(device, factories.build("llama2-13b", name), works[batch])), "assumptions": ""}
        for batch in batches
        for name in names
    ]


def test_a_rate_has_an_interval_and_bits_have_none():
    rows = results()
    found = designs.of_table(pd.DataFrame(rows), OBJECTIVES)
    assert len(found.table) == 3
    for row, ends in zip(found.table.to_dict("records"), sure.intervals(found), strict=True):
        assert set(ends) == {RATE}
        assert ends[RATE][0] < row[RATE] < ends[RATE][1]
        if row["unpack_rate_low"] == 1:  # else the range of its kernels widens it
            # between what the ends of both times alone would give
            slow = max(row["token_time_high"], row["first_time_high"])
            fast = min(row["token_time_low"], row["first_time_low"])
            assert row[RATE] / slow < ends[RATE][0] < ends[RATE][1] < row[RATE] / fast


def test_each_design_is_compared_with_the_next_best_of_its_front():
    rows = results(batches=(16, 64))
    found = designs.of_table(pd.DataFrame(rows), OBJECTIVES, by=("batch",))
    chances = sure.chances(found)
    for batch in (16, 64):
        own = [
            (row, chance)
            for row, chance in zip(found.table.to_dict("records"), chances, strict=True)
            if row["batch"] == batch
        ]
        own.sort(key=lambda pair: -pair[0][RATE])
        assert own[-1][1] is None
        for (row, chance), (after, _) in pairwise(own):
            assert chance == uncertainty.gain(row, after).sure
            assert 0.5 < chance <= 1


def test_a_table_without_intervals_has_a_front_all_the_same():
    table = pd.DataFrame(results())[["quantizer", "feasible", *OBJECTIVES]]
    found = designs.of_table(table, OBJECTIVES)
    assert sure.intervals(found) == [{}] * 3
    nothing = designs.of_table(pd.DataFrame(results())[:0], OBJECTIVES)
    assert sure.intervals(nothing) == []
    assert sure.chances(found) == [None] * 3
    assert "80 %" not in report_front.text(found)


def test_text_and_json_say_it():
    found = designs.of_table(pd.DataFrame(results()), OBJECTIVES)
    document = json.loads(json.dumps(report_front.to_json(found)))
    for row in document["front"]:
        low, high = row["intervals"][RATE]
        assert low < row[RATE] < high
    assert sum(row["sure"] is None for row in document["front"]) == 1
    text = report_front.text(found)
    assert f"80 % of {RATE}" in text
    assert "beats the next" in text


def test_text_in_a_column_of_intervals_is_refused_by_name():
    found = designs.of_table(pd.DataFrame(results()).assign(unpack_rate_low="fast"), OBJECTIVES)
    with pytest.raises(InputError, match="unpack_rate_low: is not a column of numbers"):
        sure.intervals(found)
