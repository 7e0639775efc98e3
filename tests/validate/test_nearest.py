"""What was measured nearest to a design: groups as the shipped tables have them, and what is said where none are."""

import csv
from pathlib import Path

import pytest

from dse import quantizers
from dse.model import kv_layout
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.workload import Workload
from dse.validate import nearest

DATA = Path(nearest.__file__).parents[1] / "data"


def rows(name):
    with (DATA / name).open() as file:
        return list(csv.DictReader(file))


def of(device, model, **work):
    plan = kv_layout.build(catalog.model(model), *[quantizers.parse("fp16")] * 2)
    return Point(catalog.device(device), plan, Workload(batch=8, **work))


def test_a_measured_design_names_its_kernels_and_its_servers():
    point = of("h200", "qwen3-32b", stack="sglang", tp=2)
    like_serving = [
        row
        for row in rows("silicon.csv")
        if (row["device"], row["stack"], row["size_class"]) == ("H200", "sglang", "like serving")
    ]
    assert sorted(row.mean for row in nearest.kernels_of(point)) == sorted(float(row["mean"]) for row in like_serving)
    groups = nearest.groups_of(point)
    assert groups.items() >= {"model": "qwen3-32b", "system": "h200_sxm", "stack": "sglang", "kind": "dense"}.items()
    table = {(row["by"], row["group"]): row for row in rows("serving.csv")}
    assert groups.items() <= table.keys()
    row = table["model", "qwen3-32b"]
    said = nearest.sentence(point).replace("\u00a0", " ")
    worst = max(float(row["mean"]) for row in like_serving)
    assert f"SGLang's kernels on H200 were timed ({100 * worst:.0f} % off at most in the mean)" in said
    assert f"{row['rows']} servers of qwen3-32b were measured, on SGLang ({100 * float(row['tpot_mean']):.0f} %" in said
    assert said.endswith(f"; the interval: {point.lowered.sure.tokens.why}.")
    assert nearest.is_of_model("qwen3-32b", point.stack_name)


def test_every_device_of_the_table_is_one_of_a_design():
    measured = {row["group"] for row in rows("serving.csv") if row["by"] == "system"}
    assert measured == {nearest.groups_of(of(name, "qwen3-32b"))["system"] for name in ("h100", "h200", "b200", "b300")}


def test_a_design_of_which_little_was_measured_says_so():
    point = of("mi300x", "mixtral-8x7b")
    said = nearest.sentence(point)
    assert said.startswith("Kernels of H100 stand in for those of MI300X, servers of mixtral-8x7b were not measured")
    assert "(the nearest that was, minimax-m2.5, has 0.86 times its active parameters)" in said
    assert nearest.groups_of(point).keys() == {"stack", "release", "kind"}
    assert not nearest.is_of_model("mixtral-8x7b", "vllm")


def test_a_device_without_kernels_is_one_of_its_data_sheet():
    assert nearest.sentence(of("oaken-hbm", "llama2-7b")).startswith("Nobody timed kernels on Oaken-HBM, ")
    assert nearest.kernels_of(of("oaken-hbm", "llama2-7b")) == []
    assert nearest.sentence(of("h200", "qwen3-32b", model_kind="ideal")).startswith("Times are those of peak rates, ")


def test_kernels_alone_are_not_a_server_of_the_model():
    assert nearest.is_of_model("llama3.1-70b", "vllm@0.19.0")
    assert not nearest.is_of_model("llama3.1-70b", "vllm@kernels")
    assert not nearest.is_of_model("llama3.1-70b", "llama.cpp")
    assert not nearest.is_of_model("llama3.1-70b", None)


@pytest.mark.parametrize(
    ("model", "near", "ratio", "is_far"),
    [
        ("llama3.1-70b", "llama3.1-70b", 1.0, False),
        ("qwen3-4b", "llama3.1-8b", 0.50, False),
        ("llama3.2-1b", "llama3.1-8b", 0.154, True),
        ("llama3.1-405b", "llama3.1-70b", 5.75, True),
        ("mixtral-8x7b", "minimax-m2.5", 1.17, False),
        ("kimi-k3", "glm-5", 2.5, True),
    ],
)
def test_a_model_is_far_where_no_measured_one_was_as_far_from_the_others(model, near, ratio, is_far):
    """Dense: 8, 33 and 71 billion, so 8 to 33 is the widest step, 4.1. Mixtures by active parameters: gpt-oss's 5.7
    billion are 1.9 times less than MiniMax-M2.5's."""
    spec = catalog.model(model)
    found = nearest.nearest_model(spec)
    assert (found[0], found[1]) == (near, pytest.approx(ratio, rel=0.02))
    assert nearest.is_far(spec) == is_far


def test_a_toy_model_is_far():
    """A config of some thousands of parameters is a model like any other, which nobody measured."""
    toy = catalog.model("llama3.1-8b").model_copy(update={"name": "toy", "dense_parameters": 53_000})
    assert nearest.is_far(toy)
    assert nearest.nearest_model(toy)[1] == pytest.approx(53_000 / 8.03e9, rel=0.01)
