"""Settings of engines that `dse recommend` tries: beside every setting of a server by itself, and in its command."""

import math
from dataclasses import replace
from itertools import product

import pytest

import dse
from dse.core.errors import InputError
from dse.model import kv_layout
from dse.model.point import Point
from dse.questions import grid, settings
from dse.questions.common import Candidate
from dse.specs import catalog, server_flags
from dse.specs.measurements import CLOSED
from dse.specs.workload import SETTINGS, Workload
from tests.cases import each, quick_first

TIE = 1 + 1e-9
ASKED = {"model": "qwen3-8b", "devices": ["l40s", "rtx-4090"], "quantizers": ["fp16"], "most": 2}
LENGTHS = {"input_tokens": 2048, "output_tokens": 200}
#: loads with limits that some settings keep and others do not
LOADS = {
    "rate": {**LENGTHS, "rate": 7, "max_tpot": "40 ms", "max_ttft": "3 s"},
    "requests": {**LENGTHS, "requests": 40, "max_tpot": "30 ms"},
}


def every(server):
    """All settings of a server: its engine's, and those that are tried, each by itself."""
    values = settings.tried(server)
    for chosen in product(*((None, *values[name]) for name in values)):
        yield {name: value for name, value in zip(values, chosen, strict=True) if value is not None}


@quick_first(2, "of", list(product(LOADS, ("vllm", "sglang", "trtllm"))))
def test_the_settings_are_those_with_which_the_fewest_servers_hold_the_load(of):
    load, engine = of
    found = dse.recommend(**ASKED, **LOADS[load], engines=[engine]).search
    amount = float(found.demand.amount)
    for server in found.grid.servers[:4]:
        tried = [server if not changed else server.in_settings(changed) for changed in every(server)]
        assert max(one.holds for one in tried) <= settings.most(server) * TIE
        counts = {one: one.count(amount) if one.holds else math.inf for one in tried}
        best = settings.holding(server, amount)
        fewest = min(counts.values())
        assert (best.count(amount) if best.holds else math.inf) == fewest
        least = min(len(one.settings) for one, n in counts.items() if n == fewest)
        assert len(best.settings) == least


def test_a_room_errs_as_the_server_in_these_settings():
    server = dse.recommend(**ASKED, **LOADS["rate"], engines=["vllm"]).search.grid.servers[0]
    for bound, room, changed in settings.rooms(server):
        other = server.in_settings(changed)
        assert (other.traffic.places, other.traffic.design.load.step_tokens) == (room.places, room.step_tokens)
        assert other.holds <= bound * TIE
        for share in (0.5, 0.98, 1.02):
            is_kept = settings.keeps_in(server, room, share * other.holds)
            assert is_kept == (share < 1 and other.holds > 0)


@each("stack", ["vllm", "sglang", "trtllm"])
def test_a_design_in_settings_is_that_which_was_never_laid_out_otherwise(stack):
    changed = {"max_num_seqs": 64, "prompt_budget_tokens": 4096, "gpu_memory_utilization": 0.8}
    own = Workload(stack=stack, tp=2, **LENGTHS)
    work = replace(own, **changed)
    device, model, fp8 = catalog.device("h100"), catalog.model("qwen3-32b"), CLOSED.required("fp8")
    known, fresh = (Candidate(device, kv_layout.build(model, fp8, fp8)) for _ in range(2))
    assert Point(known.device, known.plan, own).lowered.design.memory != known.lowered(work).memory
    assert known.evaluate(work) == fresh.evaluate(work)
    assert known.lowered(work) == fresh.lowered(work)


def test_the_command_starts_the_design_in_its_settings():
    """What the card says is in the line, and is read back from it."""
    asked = {"requests": 20, "input_tokens": 2048, "output_tokens": 100, "max_tpot": "30 ms"}
    found = dse.recommend(**ASKED, **asked, engines=["sglang"])
    changed = found.first.server.settings
    assert changed
    read = server_flags.read(found.command)
    assert read.left_out == []
    assert {name: read.values[name] for name in changed} == changed
    point = found.first.server.point
    back = replace(point.asked, **{name: read.values.get(name) for name in SETTINGS})
    again = Point(point.device, point.asked_plan, back)
    assert again.max_batch == point.max_batch
    assert again.design.memory == point.design.memory
    for title, shown in (settings.TITLES[name] for name in changed):
        assert title in found.text()
        assert shown.split("}")[1] in found.text()


def test_an_engine_keeps_what_is_said():
    """Nothing is tried of what the user fixes, and of full devices, sessions and traces nothing at all."""
    said = {"max_num_seqs": 64, "prompt_budget_tokens": 2048, "gpu_memory_utilization": 0.9}
    found = dse.recommend(**ASKED, **LOADS["rate"], engines=["vllm"], **said)
    assert {settings.n_settings(server) for server in found.search.grid.servers} == {1}
    assert all(fleet.server.settings == {} for fleet in found.search.found)
    one = {**ASKED, "devices": ["2xl40s"], "engines": ["vllm"], "max_tpot": "40 ms"}
    others = (LENGTHS, {"sessions": 5, "turns": 4})
    for asked in others:
        search = dse.recommend(**{**one, **asked}).search
        assert all(fleet.server.settings == {} for fleet in search.found)
        assert "others" not in search.text


#: of a hybrid in states of 32 bits
HYBRID = {"model": "nemotron-nano-12b-v2", "devices": ["h100"], "engines": ["vllm"], "quantizers": ["fp16"], "most": 1}
STATES = {**HYBRID, "requests": 600, "input_tokens": 2000, "output_tokens": 500, "max_tpot": "40 ms"}


def test_smaller_states_are_told_and_taken_where_nothing_else_holds_the_load():
    found = dse.recommend(**STATES)
    other = found.search.unscored
    assert found.first.server.work.state_type == "auto"
    assert other.usd_per_hour < found.first.usd_per_hour
    assert "--state-type bfloat16 takes them" in " ".join(found.text().split())
    assert dse.recommend(**STATES, state_type="bfloat16").first.usd_per_hour == other.usd_per_hour
    budget = f"{other.usd_per_hour}/h"
    alone = dse.recommend(**STATES, budget=budget)
    assert alone.best["settings"]["state_type"] == "bfloat16"
    assert alone.best["score_drop_frac"] is None
    assert "nobody published what bfloat16 states do to scores" in " ".join(alone.text().split())
    read = server_flags.read(alone.command)
    assert (read.values["state_type"], read.left_out) == ("bfloat16", [])
    with pytest.raises(InputError, match="raise --budget"):
        dse.recommend(**STATES, budget=budget, max_drop=0.2)


#: of a hybrid that SGLang keeps five states a request of
CACHED = {**HYBRID, "engines": ["sglang"], "most": 2, "input_tokens": 2048, "output_tokens": 500, "max_tpot": "40 ms"}


def test_a_hybrid_goes_without_its_prefix_cache_where_that_saves_servers():
    found, kept = (dse.recommend(**CACHED, requests=140, **more) for more in ({}, {"prefix_cache": "on"}))
    first = found.first
    assert found.best["settings"]["prefix_cache"] == "off"
    assert first.usd_per_hour < kept.first.usd_per_hour
    assert "prefix cache on and off" in found.search.text
    assert "prefix cache" not in kept.search.text
    read = server_flags.read(found.command)
    assert (read.values["prefix_cache"], read.left_out) == ("off", [])
    said = " ".join(found.text().split())
    held = next(s.holds for s in kept.search.grid.servers if s.name == first.server.name)
    assert f"a server holds {first.server.holds:.0f}, with it {held:.0f}" in said
    assert f"With it: {kept.first.usd_per_hour:.2f} USD an hour" in said
    assert found.runner_up.server.name != first.server.name
    today = "python -m sglang.launch_server --model-path nvidia/NVIDIA-Nemotron-Nano-12B-v2"
    steps = dse.recommend(**CACHED, requests=140, start=today).changes.single
    assert [(step.what, step.fleet.usd_per_hour) for step in steps] == [("--disable-radix-cache", first.usd_per_hour)]
    # as cheap a server keeps it
    few = dse.recommend(**CACHED, requests=20)
    assert few.best["settings"] == {}
    twin = few.first.server.in_settings({"prefix_cache": "off"})
    assert (twin.holds > few.first.server.holds, few.search.fleet(twin, few.search.demand).n_servers) == (True, 1)


@quick_first(1, "load", [{"requests": 60}, {"rate": 3.0, "max_ttft": "3 s"}])
def test_no_setting_of_a_server_without_a_prefix_cache_holds_more_than_is_thought(load):
    """SGLang sets aside a state for each of the requests that its flag allows, so more of them may leave room for
    fewer."""
    found = dse.recommend(**CACHED, **load).search
    for server in (one for one in found.grid.servers if not one.keeps_prompts and one.most):
        holds = [server.in_settings(changed).holds if changed else server.holds for changed in every(server)]
        assert 0 < max(holds) <= settings.most(server) * TIE
        best = settings.holding(server, float(found.demand.amount))
        assert best.count(found.demand.amount) == min(math.ceil(found.demand.amount / n) for n in holds if n)


@each(
    ("model", "asked", "costs"),
    [
        ("nemotron-nano-12b-v2", {"stack": "vllm"}, True),
        ("qwen3-next-80b-a3b", {"stack": "sglang"}, True),
        ("qwen3-next-80b-a3b", {"stack": "vllm@0.20.1"}, False),  # hybrids keep none there
        ("qwen3-next-80b-a3b", {"stack": "trtllm"}, False),
        ("qwen3-next-80b-a3b", {"stack": "sglang", "prefix_cache": "on"}, False),
        ("gpt-oss-20b", {"stack": "vllm"}, False),
    ],
)
def test_the_prefix_cache_is_tried_off_where_it_takes_states(model, asked, costs):
    assert grid.cache_costs(catalog.device("h100"), catalog.model(model), Workload(**asked)) is costs


@each(
    ("model", "asked", "types"),
    [
        ("nemotron-nano-12b-v2", {"stack": "vllm"}, ("bfloat16",)),
        ("qwen3-next-80b-a3b", {"stack": "sglang@0.5.23"}, ("bfloat16",)),
        ("qwen3-next-80b-a3b", {}, ("bfloat16",)),
        ("qwen3-next-80b-a3b", {"stack": "trtllm"}, ()),  # its YAML file alone says it
        ("qwen3-next-80b-a3b", {"stack": "vllm", "state_type": "float32"}, ()),
        ("kimi-linear-48b-a3b", {"stack": "vllm"}, ()),  # states of KDA stay in 32 bits
        ("granite-4.0-h-small", {"stack": "vllm"}, ()),  # has them in 16 bits
        ("qwen3-8b", {"stack": "vllm"}, ()),
    ],
)
def test_types_of_states_are_those_that_the_engine_stores_in_fewer_bytes(model, asked, types):
    assert grid.state_types(catalog.model(model), Workload(**asked)) == types
