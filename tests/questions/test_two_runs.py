"""Two runs that separate the best from its runner-up: their commands, which `dse calibrate server` takes, and what they
bring."""

import json
import math
import shlex

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from dse.model.uncertainty import END_80, FREEDOM, gain_within
from dse.questions.two_runs import RERUN_80, sure_then, two_runs

DESIGN = {
    "device": "H200",
    "model": "llama3.1-70b",
    "stack": "vllm@0.19.0",
    "weights": "fp8",
    "quantizer": "fp8",
    "batch": 45,
    "input_tokens": 4096,
    "output_tokens": 1024,
    "prefix_tokens": 0,
    "tp": 2,
    "pp": 1,
    "ep": 1,
    "dp_attention": False,
    "dcp": 1,
}
GAIN = gain_within(0.928, 1.111)


def test_the_line_by_hand():
    """Ten times as many requests as run at once; what the second does otherwise is said beside."""
    line = two_runs(DESIGN, {**DESIGN, "tp": 1, "pp": 2, "batch": 40}, ("--tp 2", "--pp 2"), GAIN).text()
    assert line == (
        "Two runs would tell --tp 2 from --pp 2 (60 % sure now, 89 % then): `vllm bench serve --ignore-eos "
        "--save-result --max-concurrency 45 --num-prompts 450 --random-input-len 4096 --random-output-len 1024 "
        "--metadata tp=2 kv_dtype=fp8`, and with `--max-concurrency 40 --num-prompts 400 --metadata tp=1 pp=2 "
        "kv_dtype=fp8` of the second; `dse calibrate server FIRST SECOND --device h200 --model llama3.1-70b "
        "--weights fp8 --out FILE.toml` takes both."
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stack": "sglang"}, "`python3 -m sglang.bench_serving --backend sglang "),
        ({"stack": "trtllm@1.2.0"}, "tensorrt_llm.serve.scripts.benchmark_serving --model MODEL "),
        ({"stack": "llama.cpp"}, None),
        ({"stack": None}, None),
        ({"prefix_tokens": 512}, None),
    ],
)
def test_each_engine_has_its_own_benchmark(changes, says):
    found = two_runs(DESIGN | changes, DESIGN | changes, ("a", "b"), GAIN)
    assert (found is None) if says is None else (says in found.text())


def test_the_runs_of_a_command_are_what_calibrate_server_takes(run, tmp_path):
    """Results as `vllm bench serve` writes them, with what the line's --metadata says."""
    asked = {"devices": ["h200"], "engines": ["vllm"], "quantizers": ["fp8"], "most": 2, "objective": "devices"}
    runs = dse.recommend(model="llama3.1-70b", weights="fp8", requests=200, input_tokens=4096, **asked).two_runs
    first = shlex.split(runs.command)
    second = shlex.split(runs.other.strip("`"))
    paths = []
    for name, words, tpot_ms in (("a", first, 60.0), ("b", second, 61.0)):
        said = dict(word.split("=") for word in words[words.index("--metadata") + 1 :])
        result = {"completed": 1280, "output_throughput": 1600.0, "backend": "vllm", "max_concurrency": 128}
        result |= {
            "total_input_tokens": 1280 * 4096,
            "total_output_tokens": 1280 * 1024,
            "mean_tpot_ms": tpot_ms,
            **said,
        }
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(result))
    words = runs.calibrate.split()
    words[3:5] = paths
    words[-1] = tmp_path / "own.toml"
    code, out, err = run(*words[1:])
    assert code == 0, err
    assert "vllm, fp8, fp8 KV, pp 2" in out
    assert "vllm, fp8, fp8 KV, tp 2" in out


@pytest.mark.parametrize("ends", [(1.3, 1.5), (0.6, 0.7)])
def test_no_runs_where_the_better_design_is_known(ends):
    """Surer than 99 %, and less than 1 %."""
    gain = gain_within(*ends)
    assert not 0.01 <= gain.sure <= 0.99
    assert two_runs(DESIGN, DESIGN, ("a", "b"), gain) is None


def drawn(gain, n=400_000):
    """The share of draws in which a measured gain lies on the side on which the true one does."""
    rng = np.random.default_rng(7)
    middle, half = math.log(gain.low * gain.high) / 2, math.log(gain.high / gain.low) / 2
    true = middle + half / END_80 * rng.standard_t(FREEDOM, n)
    return np.mean((true > 0) == (true + RERUN_80 / END_80 * rng.standard_t(FREEDOM, n) > 0))


@pytest.mark.parametrize("ends", [(0.928, 1.111), (0.824, 1.789), (0.99, 1.01), (0.5, 2.0)])
def test_how_sure_two_runs_make_is_as_drawn(ends):
    assert sure_then(gain_within(*ends)) == pytest.approx(drawn(gain_within(*ends)), abs=0.003)


@given(st.floats(0.5, 2.0), st.floats(1.001, 3.0))
def test_two_runs_are_more_than_a_guess_and_no_proof(middle, half):
    assert 0.5 <= sure_then(gain_within(middle / half, middle * half)) <= 1 + 1e-9
