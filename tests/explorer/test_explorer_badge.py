"""How sure a design is, in a few words and a color: designs made by hand, and designs of the explorer."""

from types import SimpleNamespace

import pytest

from dse.explorer import badge, bench, common_fields, tray
from dse.explorer.badge import FAR, NEAR, NONE, PEAK, Badge, badge_of
from dse.explorer.pages import trust
from dse.model import uncertainty
from dse.specs import catalog

RESULT = {
    "feasible": True,
    "model_kind": "calibrated",
    "model": "qwen3-32b",
    "stack": "vllm",
    "assumptions": ["usd_per_hour"],
    "throughput_tokens_per_s": 100.0,
    "token_time_low": 0.8,
    "token_time_high": 1.25,
    "first_time_low": 0.8,
    "first_time_high": 1.25,
    "tpot_s": None,
    "running_batch": 1,
    "output_tokens": 1,
}


def row(edits="", model="qwen3-32b", refusals=(), **changed):
    """A design of which a token takes 0.8 to 1.25 of what is predicted, so that it gives 80 to 125 % of the tokens."""
    return SimpleNamespace(
        answer=object(),
        result={**RESULT, "model": model, **changed},
        refusals=refusals,
        request=SimpleNamespace(
            device_text=f"h200:{edits}" if edits else "h200", model_spec=lambda: catalog.model(model)
        ),
    )


@pytest.mark.parametrize(
    ("design", "badge"),
    [
        (row(), Badge("±25 %, kernels timed", NEAR, "kind")),
        (row(model="llama3.1-70b"), Badge("±25 %, servers timed", NEAR, "model")),
        (row(model="llama3.2-1b"), Badge("±25 %, model smaller than measured", FAR, "kind")),
        (row(model="llama3.1-405b"), Badge("±25 %, model larger than measured", FAR, "kind")),
        (row(edits="memory_bandwidth=9.6 TB/s"), Badge("±25 %, what-if", FAR, "kind")),
        (row(assumptions=["stacks_of", "implementation"]), Badge("±25 %, another device's kernels", FAR, "kind")),
        (row(assumptions=["implementation"]), Badge("±25 %, kernel not timed", FAR, "kind")),
        (row(assumptions=["no_kernel"]), Badge("±25 %, kernel unknown", FAR, "kind")),
        (row(assumptions=["nearest_release"]), Badge("±25 %, release not timed", FAR, "kind")),
        (row(stack=None, assumptions=["reached_rates"]), Badge("±25 %, no kernels timed", FAR, "kind")),
        (row(model_kind="ideal", assumptions=["peak_rates"]), Badge("peak rates", PEAK)),
        (row(refusals={"nvfp4": "no backend"}), Badge("not run by vLLM", NONE)),
        (row(refusals={"sinkq": "no engine"}, stack=None), Badge("not run by its software", NONE)),
        (row(feasible=False), Badge("does not fit", NONE)),
        (SimpleNamespace(answer=None), Badge("cannot be computed", NONE)),
        (row(throughput_tokens_per_s=0.0), Badge("±0 %, kernels timed", NEAR, "kind")),
    ],
    ids=lambda value: getattr(value, "text", ""),
)
def test_a_design_made_by_hand(design, badge):
    assert badge_of(design) == badge


def test_what_counts_as_unmeasured_has_words():
    """Every assumption with which little is called sure, but for peak rates, which have a badge of their own."""
    assert badge._NOT_TIMED.keys() == set(uncertainty.UNMEASURED) - {"peak_rates"}


def test_a_badge_leads_to_its_row_of_trust():
    assert badge_of(row()).query == {"trust_by": "kind"}
    assert {badge_of(row()).by, badge_of(row(model="llama3.1-70b")).by} <= set(trust.BY.options())
    assert badge_of(row(feasible=False)).query == {}


def test_designs_of_the_explorer():
    """An H200 at 9.6 TB/s was measured by nobody."""
    designs = ({}, {"quantizer": "int4_per_token_head"}, {"own_device": "oaken-hbm"}, {"own_device": "mi300x"})
    changed = {"edits": "memory_bandwidth=9.6 TB/s"}
    values = {field.key: field.default for field in (*common_fields.DESIGN, *common_fields.SCENARIO)}
    found = bench.evaluate(values, tray.Tray(tuple(tray.TrayDesign(values=each) for each in (*designs, changed))))
    badges = [badge_of(each) for each in found.rows]
    assert [badge.text.partition(", ")[2] for badge in badges] == [
        "kernels timed",
        "kernel not timed",
        "no kernels timed",
        "another device's kernels",
        "what-if",
    ]
    assert [badge.color for badge in badges] == [NEAR, FAR, FAR, FAR, FAR]
