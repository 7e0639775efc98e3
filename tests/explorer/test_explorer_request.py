"""What a page asks for: a field of a workload, declared once, is in its values, its command and its script."""

import json
import shlex

import pytest

import dse
from dse.core.errors import InputError
from dse.explorer import common_fields, request
from dse.explorer.fields import problem_of
from dse.explorer.size import against_rate
from dse.operations.face import python_of
from dse.specs.workload import ASKED, Workload


def answer(values):
    """The answer to a design of such values, under the load and the limits that they ask for."""
    return request.answer(request.point_request(values), request.load_request({**common_fields.DEFAULTS, **values}))


def test_a_page_asks_within_the_range_of_the_workload():
    for name, field in common_fields.WORK.items():
        asked = ASKED[name]
        if asked.kind.sort == "whole":
            assert (field.low, field.high) == (asked.low, asked.high), name
        assert problem_of(field, field.default, {}) == "", name
        assert field.help, name


def test_what_has_no_effect_is_refused_as_by_the_command(run):
    values = {"admission": "reserve", "cached_input_discount": 0.5}
    asked = request.point_request(values)
    with pytest.raises(InputError, match="nothing is cached: give --prefix"):
        answer(values)
    assert run(*shlex.split(request.command_of(request.operation(asked)))[1:])[0] == 2


def test_a_draft_model_is_a_shipped_one(tmp_path):
    """A page opens no file of the machine that it runs on, whoever sends an address or a text."""
    (tmp_path / "draft.json").write_text("{}")
    field = common_fields.WORK["speculative_config"]
    for model, says in ((str(tmp_path / "draft.json"), "files are not read here"), ("qwen3-0.6b", "")):
        text = json.dumps({"model": model, "num_speculative_tokens": 3})
        assert says in problem_of(field, text, {})
        assert bool(problem_of(field, text, {})) == bool(says)
        if says:
            with pytest.raises(InputError, match=says):
                request.point_request({"speculative_config": text})
    assert "must be a JSON object" in problem_of(field, "mtp", {})


def test_stacks_are_those_of_devices_and_of_programs_with_a_backend():
    assert set(common_fields.WORK["stack"].options()) >= {"vllm", "sglang", "trtllm", "llama.cpp"}
    values = {"device": "m4-max", "model": "llama3.1-8b", "weights": "q4_k_m", "stack": "llama.cpp"}
    assert answer(values).result["stack"] == "llama.cpp"


def test_a_batch_of_its_own_is_in_place_of_the_workloads():
    assert request.point_request({"batch": 8, "own_batch": 3}).work.batch == 3
    assert request.point_request({"batch": 8, "own_batch": None}).work.batch == 8


def test_devices_are_split_by_tensors_unless_a_design_says_how():
    for values, split in (
        ({"devices": 8}, (8, 1)),
        ({"devices": 8, "pp": 2}, (4, 2)),
        ({"devices": 8, "tp": 2}, (2, 1)),
        ({"pp": 2}, (1, 2)),
    ):
        work = request.point_request(values).work
        assert (work.tp, work.pp) == split, values


def test_a_design_has_the_device_and_the_model_of_the_question_unless_its_own():
    question = {"device": "h100", "model": "llama3.1-8b"}
    own = request.point_request({**question, "own_device": "b200", "own_model": "qwen3-8b"})
    assert (own.device, own.model) == ("b200", "qwen3-8b")
    plain = request.point_request({**question, "own_device": None, "own_model": None})
    assert (plain.device, plain.model) == ("h100", "llama3.1-8b")


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({"load": "rate", "rate": 20.0, "input": 2048}, "--rate 20 --input 2048"),
        ({"load": "sessions"}, "--sessions 100"),
    ],
)
def test_a_load_within_limits_is_answered_as_recommend_does(load, said, run):
    """How many servers, what they hold and their times are those of the command for the design that it takes."""
    words = f"recommend --model llama3.1-8b --devices h100 --output 256 --tpot 30ms --ttft 1s --json {said}"
    status, out, err = run(*words.split())
    assert (status, err) == (0, "")
    card = json.loads(out)["cards"]["cheapest"]
    values = {"model": "llama3.1-8b", "device": "h100", "output": 256, "tpot_limit": 30.0, "ttft_limit": 1.0, **load}
    own = {key: card[key] for key in ("quantizer", "tp", "pp", "ep", "dp_attention", "stack")}
    found = answer(values | own)
    assert found.n_servers == card["n_servers"]
    assert found.holds * found.n_servers == pytest.approx(card["holds"])
    times = ("tpot_s", "ttft_s", "bound", "joules_per_token")
    assert [found.result[name] for name in times] == [card[name] for name in times]
    assert found.request.work.batch == found.result["batch"]


def test_without_a_batch_a_design_has_the_most_requests_that_keep_the_limits():
    free, limited = answer({"batch": None}), answer({"batch": None, "tpot_limit": 30.0})
    assert free.result["batch"] == free.holds == free.result["max_batch"]
    assert limited.result["batch"] == limited.holds == limited.request.work.batch < free.result["batch"]
    assert limited.result["tpot_s"] <= 0.03
    more = answer({"batch": limited.request.work.batch + 16, "tpot_limit": 30.0})
    assert more.holds == limited.holds
    assert answer({"batch": None, "tpot_limit": 1.0}).holds == 0


def test_pages_take_the_defaults_of_the_commands():
    """A page that nobody has touched asks for the workload of a command without options, and answers as it does."""
    values = common_fields.DEFAULTS
    assert common_fields.work_of(values) == common_fields.work_of({}) == Workload()
    assert request.DEFAULT.work == Workload()
    found = answer(values).result
    plain = dse.evaluate(request.DEFAULT.device, request.DEFAULT.model)
    assert {name: found[name] for name in plain} == plain
    assert "--batch" not in request.command_of(request.operation(request.DEFAULT))
    assert "--admission" not in request.command_of(request.operation(request.DEFAULT))
    assert "batch=" not in python_of(request.operation(request.DEFAULT))
    assert found["batch"] == found["max_batch"] == answer(values).holds  # as many as fit
    assert against_rate.operation(request.DEFAULT, {}).workload == Workload()
