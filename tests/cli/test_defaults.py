"""Defaults: where nothing is given, all commands, functions and the report ask for the same."""

import dataclasses
import inspect
import json

import click
import pytest

import dse
from cases import each
from dse.cli import main as cli
from dse.core.errors import DseError
from dse.model import engine
from dse.model.point import Point
from dse.operations.declare import work_field
from dse.operations.face import signature_of
from dse.operations.serving import SimulateServing
from dse.questions import systems
from dse.report import throughput
from dse.specs import catalog
from dse.specs.workload import ASKED, Workload
from dse.sweep import spec
from factories import build

#: what some commands take otherwise, and why
OTHERWISE = {
    ("ring", "batch"): "a long context, of one request",
    ("ring", "input_tokens"): "a long context, of one request",
}
#: fields of a workload that a command has no option for, and takes otherwise
FIXED = {"traffic": {"admission": "paged"}}
COMMANDS = [words for words in cli.OPERATIONS if work_field(cli.operation_of(words))]


def test_the_table_of_defaults():
    work = Workload()
    assert (work.batch, work.input_tokens, work.output_tokens) == (None, 1024, 1024)
    assert (work.admission, work.page_tokens, work.max_num_seqs) == (None, 16, None)
    assert SimulateServing(device="h100", model="llama3-8b").workload.batching is None


def options_of(words):
    command = cli.cli
    for word in words.split():
        command = command.commands[word]
    return {parameter.name: parameter for parameter in command.params if isinstance(parameter, click.Option)}


@each("words", COMMANDS)
def test_every_command_takes_the_same(words):
    cls = cli.operation_of(words)
    field = work_field(cls)
    assert field.default == Workload()
    options, asked = options_of(words), field.metadata["work"]
    assert asked.fixed == FIXED.get(words, {})
    for name in asked.names:
        own = (words, name) in OTHERWISE
        assert (asked.default(name) == ASKED[name].default) != own, name
        assert options[name].default == asked.default(name), name
    if cls.function:
        parameters = signature_of(cls).parameters
        for name in asked.parameters:
            assert parameters[name].default == ASKED[name].default, name


def test_commands_of_many_designs_take_the_same():
    axes = {"device": ["h100"], "model": ["llama3-8b"], "quantizer": ["fp16"]}
    assert spec.from_dict({"axes": axes}).base == Workload()
    assert inspect.signature(throughput.ask).parameters["work"].default == Workload()
    request = systems.ReportRequest()
    assert (request.input_tokens, request.output_tokens) == (Workload().input_tokens, Workload().output_tokens)


@each("device", list(catalog.device_files()))
def test_the_report_allocates_memory_as_points_do(device):
    try:
        found = dse.evaluate(device, "llama3-8b")
    except dse.InputError:  # no 16-bit products
        return
    assert found["admission"] == systems.admission_of(catalog.device(device))


def printed(run, *words):
    code, out, _ = run(*words, "--json")
    assert code == 0
    return json.loads(out)


@each("design", [("h100", "llama3-8b"), ("h200", "qwen3-32b"), ("oaken-hbm", "llama2-13b"), ("a100-80gb", "qwen3-8b")])
def test_one_design_has_the_same_batch_wherever_it_is_asked_for(design, run):
    device, model = design
    names = ("--device", device, "--model", model)
    found = dse.evaluate(device, model)
    batch, admission = found["batch"], found["admission"]
    assert batch == found["running_batch"] == found["max_batch"] > 1
    assert found["fits_whole_batch"]
    point = printed(run, "point", *names)
    assert {name: point[name] for name in found} == found
    served = printed(run, "simulate", *names, "--requests", "20", "--rate", "1")
    # a server admits by the memory that is free, up to its own limit; other devices take what fits
    most = {"h100": 1024, "h200": 1024, "a100-80gb": 256}.get(device, batch)
    assert (served["batch"], served["is_full_batch"], served["admission"]) == (most, True, admission)
    assert served["mean_output_tokens"] == found["output_tokens"]
    assert f"{batch:,} (as many as fit)" in printed(run, "ask", "load", *names)["context"]
    formats = printed(run, "ask", "formats", *names, "--quantizers", "fp8")
    assert formats["batch"] in (max(one["max_batch"] for one in formats["formats"]), most)
    assert f"{admission}, as many as fit" in formats["context"]
    axes = {"device": device, "model": model, "quantizer": "fp16"}
    rows = dse.sweep({"axes": axes, "keep": ["batch", "max_batch", "admission"]})
    assert rows["batch"][0] == batch
    assert (rows["max_batch"][0], rows["admission"][0]) == (found["max_batch"], admission)


def test_large_sweeps_by_compiled_code_fill_devices_too():
    """Prompts of 1 to 4,200 tokens, compiled, each batch that of its row."""
    axes = {"device": ["h100", "oaken-hbm"], "model": "llama2-7b", "quantizer": ["fp16", "oaken"]}
    axes["input_tokens"] = {"from": 1, "to": 4200, "step": 1}
    keep = ["batch", "max_batch", "running_batch", "throughput_tokens_per_s", "fits_whole_batch", "kv_bytes"]
    table = dse.sweep({"axes": axes, "keep": keep})
    assert table.shape[0] == 16_800
    for at in range(0, 16_800, 1237):
        row = table.iloc[at]
        work = Workload(input_tokens=int(row["input_tokens"]))
        device = catalog.device(row["device"])
        one = engine.evaluate(Point(device, build("llama2-7b", row["quantizer"]), work))
        assert {name: row[name] for name in keep} == {name: one[name] for name in keep}


@each(
    ("design", "said"),
    [
        (("h200", "qwen3-8b"), ": as many as fit  "),
        (("a100-80gb", "qwen3-0.6b"), "256: as many as the server takes at once  "),
    ],
)
def test_the_head_of_a_point_says_how_its_batch_was_chosen(run, design, said):
    device, model = design
    assert said in run("point", "--device", device, "--model", model)[1].splitlines()[0]


def test_a_batch_that_is_given_is_not_explained(run):
    head = run("point", "--device", "h200", "--model", "llama3.1-8b", "--batch", "7")[1].splitlines()[0]
    assert "  batch 7  " in head


def test_no_batch_is_no_axis():
    with pytest.raises(DseError, match="batch = None: must be a number, or leave the axis out"):
        dse.sweep({"device": "h100", "model": "llama3-8b", "quantizer": "fp16", "batch": [None, 4]})


def test_a_workload_given_whole_keeps_its_own():
    work = Workload(batch=3, admission="reserve", output_tokens=7)
    found = dse.evaluate("h100", "llama3-8b", workload=work)
    assert {name: found[name] for name in ("batch", "admission", "output_tokens")} == {
        "batch": 3,
        "admission": "reserve",
        "output_tokens": 7,
    }
    assert dataclasses.replace(work, batch=None).batch is None
