"""Releases: what was measured of them, and what stands in where nothing, or too little, was."""

from types import SimpleNamespace

import pytest

import factories
from cases import each
from dse.model.engine import evaluate
from dse.model.kernels import benchmarked_as
from dse.quantizers import parse
from dse.report.present import release_note
from dse.specs import catalog
from dse.specs.releases import NEWEST, release_of
from dse.specs.stack import FEWEST_ROWS

FP8 = parse("fp8")


def point(stack, model="gpt-oss-120b", device="b200", **work):
    return factories.point(device, model, "fp8", **{"batch": 64, "output_tokens": 1024, "stack": stack, **work})


def test_no_fit_rests_on_fewer_than_thirty_rows():
    every = [one for stack in catalog.servers() for one in catalog.benchmarked(stack).values()]
    assert len(every) == 3
    for one in every:
        assert sum(sum(rows.values()) for rows in one.rows.values()) >= FEWEST_ROWS == 30
    kept = catalog.benchmarked("vllm")["dense"]
    assert kept.rows == {"A100-80GB": {"bf16": 31}}
    assert kept.holds("A100-80GB", "bf16")
    assert not kept.model_copy(update={"rows": {"A100-80GB": {"bf16": 29}}}).holds("A100-80GB", "bf16")


def test_a_fit_holds_on_its_devices_and_formats_alone():
    """vLLM's dense models in 16 bits were benchmarked on an A100: neither an H100 nor other weights."""
    assert benchmarked_of("a100-80gb", "vllm@0.12.0") is not None
    assert benchmarked_of("h100", "vllm@0.12.0") is None
    assert benchmarked_of("a100-80gb", "vllm@0.12.0", weights="int4") is None
    mixture = benchmarked_of("a100-80gb", "vllm@0.12.0", model="mixtral-8x7b")
    assert mixture == catalog.benchmarked("vllm")["mixture"]
    assert benchmarked_of("a100-80gb", "vllm@0.15.1") is None  # measured step by step
    assert benchmarked_of("a100-80gb", "vllm@0.15.0") is None
    assert benchmarked_of("a100-80gb", "sglang@0.5.6") is None  # eight rows of dense models


def benchmarked_of(device, stack, model="llama3.1-8b", **work):
    own = point(stack, model, device, **work)
    return benchmarked_as(own.device, own.plan.model, own.work, own.stack)


@each(
    ("stack", "release", "nearest"),
    [
        ("vllm", "0.16.0", "0.16.0"),
        ("vllm", "0.33.0", "0.19.0"),
        ("vllm", "0.17.0", "0.17.0"),
        ("vllm", "0.20.0", "0.19.0"),
        ("vllm", "0.4.1", "0.15.1"),
        ("sglang", "0.5.6.post2", "0.5.9"),  # 24 rows of its own
        ("sglang", "0.7.2", "0.5.10.post1"),
        ("sglang", "0.4", "0.5.1.post1"),
        ("trtllm", "1.2.0rc2", "1.2.0rc6.post2"),
        ("trtllm", "1.1.0", "1.1.0rc2.post2"),
        ("trtllm", "gpt-oss-dev", "gpt-oss-dev"),
        ("trtllm", "0.17", "1.0.0rc3"),
    ],
)
def test_the_nearest_release_that_was_measured(stack, release, nearest):
    assert catalog.servers()[stack].nearest(release) == nearest


@each(
    ("asked", "measured", "device", "model"),
    [
        ("trtllm@1.2.0rc2", "trtllm@1.2.0rc6.post2", "b200", "gpt-oss-120b"),
        ("vllm@0.33.0", "vllm@0.19.0", "h100", "llama3.1-8b"),
        ("sglang@0.5.6.post2", "sglang@0.5.9", "h100", "qwen3-32b"),
    ],
)
def test_a_release_that_nobody_measured_is_as_fast_as_the_nearest_and_less_sure(asked, measured, device, model):
    own, near = (evaluate(point(stack, model, device)) for stack in (asked, measured))
    for name in ("decode_step_s", "prefill_s", "ttft_s"):
        assert own[name] == near[name]
    for kind in ("token_time", "first_time"):
        assert own[f"{kind}_low"] < near[f"{kind}_low"]
        assert own[f"{kind}_high"] > near[f"{kind}_high"]


@pytest.mark.parametrize("stack", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("model", ["gpt-oss-120b", "llama3.1-8b"])
def test_naming_a_release_keeps_a_server_within_a_third(stack, model):
    """TensorRT-LLM's prompts of mixtures took seven times as long by a factor of five rows; no release differs from
    its stack by so much, measured or not."""
    plain = evaluate(point(stack, model))
    named = [name for name in catalog.servers()[stack].releases if release_of(name) != NEWEST]
    for release in (*named, "0.1", "0.5.3", "0.12.0", "1.1.0", "1.2.0rc2", "9.9"):
        found = evaluate(point(f"{stack}@{release}", model))
        for name in ("decode_step_s", "prefill_s"):
            assert found[name] == pytest.approx(plain[name], rel=1 / 3), (release, name)


def test_a_line_says_which_release_stands_in():
    (line,) = release_note(point("trtllm@1.2.0rc2"))
    assert line.startswith("Note: trtllm@1.2.0rc2 was not measured")
    assert "trtllm@1.2.0rc6.post2, the nearest release that was, stands in" in line
    # 1.2.0rc2 is of 2025-11-07, 1.2.0rc6.post2 of 2026-01-22: 76 days
    assert "measured on TensorRT-LLM 1.2.0rc6.post2, 11 weeks after 1.2.0rc2" in line
    assert release_note(point("trtllm@1.2.0rc6.post2")) == []
    (line,) = release_note(point("trtllm"))
    assert line.startswith("Note: measured on TensorRT-LLM up to 1.2.0rc6.post2, ")
    (line,) = release_note(point("vllm@0.12.0", "llama3.1-8b", "a100-80gb"))
    assert "public benchmarks" in line


def test_names_without_numbers_stand_in_for_no_release():
    names = {name for server in catalog.servers().values() for name in server.releases if release_of(name) == NEWEST}
    assert {"unknown", "nightly-dev", "gpt-oss-dev"} <= names
    server = SimpleNamespace(releases={name: SimpleNamespace(n_points=99) for name in names})
    assert type(next(iter(catalog.servers().values()))).nearest(server, "1.0") == ""
