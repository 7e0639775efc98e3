"""Every field of the question and of a design, one by one: a change of it changes the command and the numbers as `dse`
has them, stays in the address, and is taken back by Undo."""

import json
import shlex

import pytest

from cases import each, quick_first
from dse.explorer import cards, common_fields, fields, request, tray, verdict
from dse.explorer.fields import sort_of
from dse.operations.face import python_of
from dse.report.design import as_said
from explorer_page import address_of, command_of, measured_file, numbers, of, opened, press

DRAFTS = '{"method": "ngram", "num_speculative_tokens": 3}'
MIXTURE = {"model": "gpt-oss-120b", "devices": 2}
STATES = {"model": "qwen3.8-27b", "stack": "sglang"}
SESSIONS = {"model": "llama3.1-8b", "load": "sessions", "sessions": 8, "batch": None}
#: a file that the reader loads
LOADED = object()
#: field -> its other value, and what else the question and the design have
PAIRS = {
    "model": ("llama3.1-8b", {}),
    "devices": (2, {}),
    "device": ("b200", {}),
    "input": (2048, {}),
    "output": (33, {}),
    "tpot_limit": (20.0, {"batch": None}),
    "ttft_limit": (0.2, {"batch": None}),
    "load": ("rate", {"model": "llama3.1-8b"}),
    "batch": (16, {}),
    "rate": (7.5, {"model": "llama3.1-8b", "load": "rate"}),
    "sessions": (9, SESSIONS),
    "turns": (3, SESSIONS),
    "growth": (1500, SESSIONS),
    "think": ("3 s", SESSIONS),
    "shared": (512, SESSIONS),
    "prefix": (64, {}),
    "samples": (2, {}),
    "kv_offload": (0.5, {}),
    "rounds": (3, {"batch": None}),
    "kv_cache": (False, {}),
    "cached_input_discount": (0.25, {"prefix": 64}),
    "model_kind": ("ideal", {}),
    "memory": ("paper", {"batching": "continuous"}),
    "gpu_memory_utilization": (0.8, {}),
    "own_device": ("a100-80gb", {}),
    "edits": ("memory_bandwidth=3 TB/s", {}),
    "own_model": ("llama3.1-8b", {}),
    "quantizer": ("kivi", {}),
    "parameters": ("bits=4", {"quantizer": "kivi"}),
    "value_quantizer": ("int4", {}),
    "value_parameters": ("bits=4", {"value_quantizer": "kivi"}),
    "own_batch": (3, {}),
    "admission": ("reserve", {}),
    "page": (64, {}),
    "weights_bits": (8, {}),
    "dequant_path": ("fused", {"quantizer": "kivi"}),
    "stack": ("sglang", {}),
    "tokens": ("snapkv", {}),
    "token_parameters": ("budget=100", {"tokens": "snapkv"}),
    "activation_bits": (8, {"weights_bits": 8}),
    "weights": ("fp8", {}),
    "tower": (False, {"model": "gemma-3-27b"}),
    "state_type": ("bfloat16", {"model": "qwen3.8-27b"}),
    "max_mamba_cache_size": (100, STATES),
    "mamba_full_memory_ratio": (0.1, STATES),
    "prefix_cache": ("off", STATES),
    "max_total_tokens": (100_000, {"stack": "sglang"}),
    "swa_full_tokens_ratio": (0.5, {"model": "gemma-3-12b", "stack": "sglang"}),
    "cuda_graph_max_bs": (16, {"stack": "sglang"}),
    "cuda_graphs": (False, {}),
    "speculative_config": (DRAFTS, {}),
    "cpu_offload_gb": (2.0, {}),
    "weights_size": (12_000_000_000, {}),
    "n_gpu_layers": (16, {"stack": "llama.cpp"}),
    "n_cpu_moe": (4, {"model": "gpt-oss-120b", "stack": "llama.cpp"}),
    "prompt_chunk": (512, {"memory": "paper"}),
    "max_num_seqs": (4, {}),
    "kv_cache_memory": (20_000_000_000, {}),
    "free_memory": (149_000_000_000, {}),
    "max_model_len": (8192, {}),
    "batching": ("continuous", {}),
    "prompt_budget": (2048, {}),
    "tp": (2, {}),
    "pp": (2, {}),
    "pp_batches": (1, {"pp": 2}),
    "ep": (2, MIXTURE),
    "expert_skew": (0.5, {**MIXTURE, "ep": 2}),
    "dp_attention": (True, {**MIXTURE, "ep": 2}),
    "dcp": (2, {"devices": 16, "model": "llama3.1-70b"}),
    "implementation": ("generic", {"quantizer": "kivi"}),
    "strict_kernels": (True, {}),
    "other_software": (True, {"other_software": False}),
    "measurements": (LOADED, {"quantizer": "oaken", "model": "llama2-7b"}),
}
FIELDS = {field.key: field for field in (*common_fields.DESIGN, *common_fields.SCENARIO)}
OF_DESIGN = {field.key for field in common_fields.DESIGN}
#: KIVI and the like are compared as if others ran them
USUAL = {"batch": 8, "other_software": True}


def test_pairs_name_every_field():
    assert list(PAIRS) == [*dict.fromkeys(PAIRS)]
    assert {*PAIRS} == {*FIELDS}


def address(values):
    """The query of a question with one design."""
    design = tray.design_of(values, common_fields.DESIGN)
    text = tray.text_of(tray.Tray((design,)), common_fields.DESIGN, {})
    return {**fields.query_of(common_fields.SCENARIO, {**common_fields.DEFAULTS, **values}), "designs": text}


def change(app, field, value):
    """Change a field in the page."""
    if value is LOADED:
        app.file_uploader[0].upload("m.json", measured_file(), "application/json").run()
        return
    kinds = {"choice": app.selectbox, "switch": app.checkbox, "text": app.text_input}
    kinds.get(sort_of(field), app.number_input)(key=field.key).set_value(value).run()


def shows_what_dse_has(app, run):
    """The numbers of the opened row, and how its server starts, are those of the command below it; returns it."""
    command = command_of(app)
    status, out, err = run(*shlex.split(command)[1:], "--json")
    assert status == 0, err
    printed, shown = json.loads(out), numbers(app)
    if command.startswith("dse recommend"):
        (card, *_) = printed["cards"].values()
        printed = card | {"throughput_tokens_per_s": card["tokens_per_s"] / card["n_servers"]}
    line = printed["command"]["line"] if isinstance(printed["command"], dict) else printed["command"]
    assert not line or line in [code.value for code in app.code]
    compared = [name for name in cards.MEANINGS if printed.get(name) is not None and cards.label(name) in shown]
    assert {"tpot_s", "ttft_s", "throughput_tokens_per_s"} - {*compared} <= {"tpot_s"}
    for name in compared:
        text = cards.shown(name, as_said(printed) if "kv_bytes" in printed else printed)
        assert shown[cards.label(name)].partition(", weights")[0] == text, name
    return command


@quick_first(5, "key", PAIRS)
def test_a_changed_field_is_that_of_dse_stays_in_the_address_and_is_undone(key, run, tmp_path, monkeypatch):
    value, beside = PAIRS[key]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_bytes(measured_file())
    app = opened("answer", **address(USUAL | beside))
    assert not app.exception
    before, former = shows_what_dse_has(app, run), address_of(app)
    change(app, FIELDS[key], value)
    assert not app.exception
    after, query = shows_what_dse_has(app, run), address_of(app)
    assert after != before
    assert query != former
    again = opened("answer", **query)
    assert not again.warning
    assert (command_of(again), numbers(again), address_of(again)) == (after, numbers(app), query)
    press(app, "Undo")
    assert (command_of(app), address_of(app)) == (before, former)


@each("key", [key for key in PAIRS if key in OF_DESIGN and PAIRS[key][0] is not LOADED])
def test_designs_that_differ_in_one_field_have_a_chance_in_their_row(key, run):
    """Through `verdict.lead`, the sentence of the row: in either order, and beside weights of another format.

    The script beside the design's command gives its results too.
    """
    value, beside = PAIRS[key]
    both = USUAL | beside
    question = {name: both.pop(name) for name in list(both) if name not in OF_DESIGN}
    weights = {"weights": "fp8"} if key not in ("weights", "weights_bits", "activation_bits") else {}
    here = of(both, {**both, key: value}, {**both, key: value, **weights}, **question)
    assert [row.wrong for row in here.rows] == [None] * 3
    one, other, third = here.answered
    space = {}
    exec(python_of(request.operation(other.request)), space)
    assert space["result"] == as_said(other.result)
    for first, second in ((one, other), (other, one), (one, third), (third, one)):
        text = verdict.lead(second, first)
        is_equal = first.result["throughput_tokens_per_s"] == second.result["throughput_tokens_per_s"]
        assert "sure to be" in text or (is_equal and not text), text


@pytest.mark.slow
@pytest.mark.parametrize(
    "load",
    [
        {"load": "rate", "rate": 12.0},
        {"load": "rate", "rate": 12.0, "tpot_limit": 0.5},  # which none holds: at the least load
        {"load": "sessions", "sessions": 40},
    ],
)
@pytest.mark.parametrize(
    "design",
    [
        {"quantizer": "fp8"},
        {"own_device": "b200", "stack": "sglang"},
        {"tp": 2, "weights": "fp8", "max_num_seqs": 64},
        {"own_device": "a100-pcie-80gb", "value_quantizer": "fp8", "other_software": True},
        {"pp": 2, "own_model": "qwen3-8b", "edits": "memory_bandwidth=3 TB/s,usd_per_hour=3 USD/h"},
    ],
)
def test_a_design_under_a_load_has_a_command_with_its_numbers(design, load, run):
    values = {"model": "llama3.1-8b", "tpot_limit": 60.0, "ttft_limit": 3.0, **load, **design}
    shows_what_dse_has(opened("answer", **address(values)), run)
