"""`dse ask`: what it prints and writes, figures in both libraries, one line for bad input."""

import json

import pandas as pd
import pytest

from cases import each, quick_first
from chart_checks import has_units_and_numbers, lies_inside_its_axes
from dse.figures.drawing import layout, to_plotly
from dse.figures.plot import answer as of_answer
from dse.questions import best_map, common, crossing, doubt, formats, need
from dse.specs import catalog
from dse.specs.workload import Workload

OPT = ["--device", "a100-80gb", "--model", "opt-30b", "--memory", "paper"]
LLAMA = ["--device", "a100-80gb", "--model", "llama2-13b", "--admission", "paged", "--memory", "paper"]
VLLM = ["--stack", "vllm"]
CROSS = ["ask", "cross", *OPT, "--quantizer", "nqkv", "--batches", "4,20", "--inputs", "64,512"]
NEED = ["ask", "need", "bandwidth", *LLAMA, "--batch", "64"]
DOUBT = ["ask", "doubt", *LLAMA, "--quantizer", "qserve", "--batch", "64"]
FORMATS = [
    "ask",
    "formats",
    "--device",
    "h200",
    "--model",
    "qwen3-32b",
    "--batch",
    "64",
    "--input",
    "8192",
    "--quantizers",
    "fp8,qserve",
]
#: as papers count memory published code runs; a stack that is named is asked what it has
MAP = ["ask", "map", *LLAMA, *VLLM, "--batches", "1,64", "--inputs", "512,8192"]


def test_cross_says_from_where_on_and_why(run):
    code, out, _ = run(*CROSS)
    assert code == 0
    assert "From where on does nqkv pay against fp16?" in out
    assert "prompt of 512  from 19 on, and before that in 10-15: only capacity: more requests at once" in out
    code, out, _ = run(*CROSS, "--json")
    found = json.loads(out)
    assert found["from_batch"][1]["pays_in"] == [[10, 15], [19, 20]]
    assert found["from_batch"][1]["pays_from"] == 19
    assert found["measure"] == "throughput_tokens_per_s"


def test_need_answers_and_refuses_to_be_met(run):
    code, out, _ = run(*NEED, "--throughput", "1500")
    assert code == 0
    assert "x the 2.039 TB/s of the device" in out
    code, out, _ = run(*NEED, "--quantizer", "qserve", "--step-ms", "1")
    assert code == 0
    assert "cannot be met: at infinite memory bandwidth still" in out
    code, out, _ = run(*NEED, "--quantizer", "qserve", "--step-ms", "1", "--json")
    assert json.loads(out)["can_be_met"] is False
    code, out, _ = run("ask", "need", "bits", *LLAMA, *VLLM, "--batch", "128", "--throughput", "1000", "--json")
    found = json.loads(out)
    assert found["quantizer"] == "turboquant_k8v4"  # of more bits too few requests fit, or unpacking takes too long
    assert len(found["candidates"]) == 9


def test_formats_says_which_pays(run):
    code, out, _ = run(*FORMATS)
    assert code == 0
    assert "Which KV format pays on H200?" in out
    assert "fp8 pays: 1." in out
    found = json.loads(run(*FORMATS, "--json", "--stack", "sglang")[1])
    assert [row["format"] for row in found["formats"]] == ["fp16", "fp8", "qserve"]
    assert found["formats"][1]["implementation"] == "sglang"


def test_sensitivity_and_map(run):
    code, out, _ = run(*DOUBT, "--against", "fp16", "--range", "core_clock=x0.2:x2")
    assert code == 0
    assert "flips: fp16 below " in out
    found = json.loads(run(*DOUBT, "--json")[1])["effects"]
    assert "core_clock" in [effect["number"]["name"] for effect in found]
    code, out, _ = run(*MAP, "--quantizers", "fp16,qserve")
    assert code == 0
    assert "qserve 1.98x" not in out
    code, out, _ = run(*MAP, "--quantizers", "fp16,qserve", "--other-software")
    assert code == 0
    assert "qserve 1.98x" in out
    assert "Other software would have to run qserve: no KV type of vLLM 0.33.0.\n" in out
    # without names: what the engine runs on an A100 for these heads
    names = json.loads(run(*MAP, "--json")[1])["quantizers"]
    assert names[:2] == ["fp16", "fp8"]
    assert "int4_per_token_head" in names
    assert "qserve" not in names
    assert len(json.loads(run(*MAP, "--json")[1])["cells"]) == 4


@quick_first(
    2,
    "args, name",
    [
        (CROSS, "cross"),
        ([*NEED, "--throughput", "1500"], "need-bandwidth"),
        (DOUBT, "doubt"),
        (MAP, "map"),
        (FORMATS, "formats"),
        (["ask", "need", "bits", *LLAMA, "--throughput", "100"], "need-bits"),
    ],
)
def test_figure_and_table_are_written(run, tmp_path, args, name):
    code, out, _ = run(*args, "--out", tmp_path / "new")
    assert code == 0
    assert f"{name}.html" in out
    written = {path.name for path in (tmp_path / "new").iterdir()}
    assert written == {f"{name}.{kind}" for kind in ("csv", "figure.json", "html", "png", "svg", "pdf")} | {
        "plotly.min.js"
    }
    page = (tmp_path / "new" / f"{name}.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert len(pd.read_csv(tmp_path / "new" / f"{name}.csv")) > 0


@each(
    ("args", "part"),
    [
        ([*CROSS, "--against", "nqkv"], "against = nqkv: is the same"),
        ([*CROSS, "--measure", "cost"], "measure = 'cost'"),
        ([*CROSS, "--batches", "4,x"], "batches = 'x'"),
        ([*CROSS, "--inputs", "0"], "input = 0"),
        ([*CROSS, "--out", ""], "out = ''"),
        (["ask", "need", "speed", *LLAMA, "--throughput", "1"], "need 'speed'"),
        (NEED, "give one of --throughput (tok/s) and --step-ms"),
        ([*NEED, "--throughput", "nan"], "throughput = 'nan': must be a number"),
        ([*NEED, "--throughput", "abc"], "abc"),
        ([*NEED, "--step-ms", "1e-300"], "step-ms = 1e-300: must be from 1e-09"),
        (["ask", "need", "bits", *LLAMA, "--throughput", "1", "--quantizer", "fp8"], "has no effect on bits"),
        ([*DOUBT, "--range", "nothing=1:2"], "range = 'nothing=1:2'"),
        ([*MAP, "--quantizers", "fp16,fp16"], "names one twice"),
        ([*MAP, "--quantizers", "fp15"], "fp15"),
        ([*FORMATS, "--quantizers", "fp8,fp8"], "names one twice"),
        ([*FORMATS, "--strict-kernels", "--quantizers", "int4"], "strict-kernels: no kernel of int4"),
        (["ask", "maps"], "maps"),
    ],
)
def test_bad_input_is_one_line(run, args, part):
    code, out, err = run(*args)
    assert code == 2, err
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert part in err


def _answers():
    def of(quantizer, device="a100-80gb", model="llama2-13b"):
        return common.design(catalog.device(device), catalog.model(model), quantizer)

    work = Workload(batch=64, admission="paged")
    measures = common.MEASURES
    yield crossing.crossing(
        of("nqkv", model="opt-30b"), of("fp16", model="opt-30b"), Workload(), measures["throughput"], (16,), (512,)
    )
    yield crossing.crossing(of("fp8"), of("fp16"), Workload(), measures["step"], (1, 200), (64, 2000))
    for what, goal in (("bandwidth", (1500.0, None)), ("capacity", (None, 500.0)), ("flops", (1e5, None))):
        yield need.smallest(of("qserve"), work, what, need.target(*goal))
    yield need.smallest(of("fp16"), work, "bandwidth", need.target(None, 50.0))  # no value: the batch does not fit
    for goal in (1000.0, 1e6):
        yield need.most_bits([of(name) for name in ("fp16", "fp8", "nqkv")], work, need.target(goal, None))
    yield doubt.doubt(of("qserve"), work, measures["throughput"], of("sinkq:bits=4"), ["fused_rate=x0.1:x2"])
    yield doubt.doubt(of("qserve"), work, measures["step"], ranges=["memory_capacity=x0.1:x2"])
    yield doubt.doubt(of("oaken", "oaken-lpddr"), work, measures["energy"])
    long = Workload(input_tokens=200_000, output_tokens=16)  # of FP16 not one request fits: one design is drawn
    yield doubt.doubt(of("kivi"), long, measures["throughput"], of("fp16"))
    yield formats.formats(catalog.device("a100-80gb"), catalog.model("llama2-13b"), work, ["fp8", "kivi", "qserve"])
    yield formats.formats(catalog.device("rtx-4090"), catalog.model("qwen3-32b"), work, ["fp8"])  # nothing fits
    designs = [of(name) for name in ("fp16", "bf16", "kivi:bits=4", "qserve")]
    yield best_map.best_map(designs, work, measures["throughput"], (1, 512), (256, 10**5))
    yield best_map.best_map(designs, work, measures["step"], (1, 512), (256, 10**5))


@pytest.mark.slow
def test_answers_are_drawn_by_both_libraries_with_units_and_without_gaps(sketch):
    for answer in _answers():
        source = of_answer.source_of(answer)
        chart = of_answer.figure_of(answer).chart(source.table, json.loads(json.dumps(source.about)))
        has_units_and_numbers(chart, ("quantizer", "number and its range"))
        lies_inside_its_axes(chart, slack=1e-9)
        assert sketch(chart).startswith(b"\x89PNG")
        to_plotly.figure(chart).to_json()
        place = layout.place(chart)
        assert all(box.width > 150 for box in place.panels)
        assert all(box.x + box.width <= place.width for box in place.panels)
        json.dumps(answer.to_json(), allow_nan=False)
        assert "nan" not in answer.text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fused_rate=x0:x0", "fused_rate = 0 element/s: must be 1 Melement/s to 1,000 Pelement/s"),
        ("memory_bandwidth=x0:x1", "memory_bandwidth = 0 B/s: must be 1 GB/s to 1 PB/s"),
        ("peak_flops=x1:x1e308", "peak_flops = "),
        ("usable_frac=x0:x0", "usable_frac = 0: must be 0.001 to 1"),
        ("attention.memory_frac=x0:x1", "stacks.vllm.attention.memory_frac = 0: must be 0.001 to 1"),
        ("memory_bandwidth=x2:x1", "must rise"),
    ],
)
def test_ranges_keep_to_what_a_device_may_have(run, text, says):
    code, out, error = run(
        "ask",
        "doubt",
        "--device",
        "a100-80gb",
        "--model",
        "llama2-7b",
        "--quantizer",
        "kivi",
        "--memory",
        "paper",
        "--range",
        text,
    )
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith(f"error: range = '{text}': {says}")


@pytest.mark.parametrize("words", [("load",), ("interactivity", "--splits", "1", "--quantizers", "fp16")])
def test_an_answer_of_one_token_has_no_tpot_to_keep(run, words):
    design = ("--device", "h100", "--model", "llama3.1-8b", "--output", "1", "--json")
    code, out, error = run("ask", *words, *design, "--max-tpot", "1 ms", "--max-ttft", "2 s")
    assert (code, error) == (0, "max-tpot = '1 ms': an answer of one token has no TPOT: left out\n")
    assert [name.removeprefix("steady_") for name in json.loads(out)["limits_s"]] == ["ttft_s"]
