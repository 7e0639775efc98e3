"""What was promised of a deployment, beside its server's log or benchmark: by hand, and as `dse check-log` has it."""

import contextlib
import json
from pathlib import Path

import pytest

import dse
from cases import each
from dse.core.errors import DseError, InputError
from dse.core.version import VERSION
from dse.validate import saved_plan

LOGS = Path(__file__).parent / "logs"
#: tokens that vllm-0.19-llama-3.1-8b.log prints
PRINTED = 476016
LENGTHS = {"input_tokens": 2048, "output_tokens": 500}
#: the server of vllm-0.19-llama-3.1-8b.log, under a number of requests; and one at a rate
MEMORY = {"gpu_memory_utilization": 0.95, "max_model_len": 8192}
AT_ONCE = {"model": "llama3.1-8b", "requests": 64, "engines": ["vllm@0.19.0"], **MEMORY}
AT_RATE = {"model": "qwen3-32b", "rate": 5, "max_tpot": "30 ms", "engines": ["vllm"]}


def saved(folder, asked):
    """The answer, and the path of its plan."""
    found = dse.recommend(devices=["h100"], quantizers=["fp16"], most=4, **asked, **LENGTHS)
    path = folder / f"{asked['model']}.json"
    path.write_bytes(saved_plan.content(found, asked["model"], "dse recommend"))
    return found, str(path)


@pytest.fixture(scope="module")
def at_once(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("plans"), AT_ONCE)


@pytest.fixture(scope="module")
def at_rate(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("plans"), AT_RATE)


def result(found, tpot_ms, ttft_ms, n=400, **load):
    """What `vllm bench serve` writes of one server of a plan."""
    best, lengths = found.best, LENGTHS.values()
    return json.dumps(
        {
            "backend": "vllm",
            "model_id": found.model,
            "completed": n,
            **{f"total_{name}_tokens": n * of_one for name, of_one in zip(("input", "output"), lengths, strict=True)},
            "output_throughput": best["tokens_per_s"] / best["n_servers"],
            "mean_tpot_ms": tpot_ms,
            "mean_ttft_ms": ttft_ms,
            "request_rate": "inf",
            "max_concurrency": None,
            **load,
        }
    )


def test_a_plan_holds_what_was_asked_recommended_and_promised(at_rate):
    found, path = at_rate
    plan, work = saved_plan.read(path).plan, saved_plan.read(path).work
    assert (plan.dse, plan.device, plan.model) == (VERSION, "h100", "qwen3-32b")
    assert plan.asked["requests_per_s"] == 5
    assert plan.asked["limits_s"] == {"tpot_s": 0.03}
    assert plan.recommended["command"] == found.command
    assert work == found.first.server.work
    assert plan.requests_per_s == 5 / found.best["n_servers"]
    for name in ("tpot_s", "ttft_s"):
        promise = plan.promised[name]
        assert (promise.value, promise.low, promise.high) == tuple(
            found.best[f"{name}{end}"] for end in ("", "_low", "_high")
        )
    full = plan.promised["full_requests_per_s"]
    assert full.low < full.value < full.high
    # at 0.9 of the low end a server still holds its load
    assert plan.requests_per_s <= 0.9 * full.low


class TestLogs:
    def test_the_pool_of_the_planned_server_lies_inside(self, at_once):
        log = (LOGS / "vllm-0.19-llama-3.1-8b.log").read_text()
        found = saved_plan.check(at_once[1], log, "vllm.log")
        (tokens,) = found.terms
        assert (tokens.name, tokens.log) == ("tokens of the pool", PRINTED)
        assert tokens.ours == at_once[0].first.results["kv_pool_tokens"]
        assert found.differs == ()
        assert tokens.is_inside
        assert found.says.startswith("As planned")
        assert "--check" in found.next_step

    def test_another_pool_lies_outside_and_says_what_to_do(self, at_once):
        log = (LOGS / "vllm-0.19-llama-3.1-8b.log").read_text().replace(f"{PRINTED:,} tokens", "300,000 tokens")
        found = saved_plan.check(at_once[1], log, "vllm.log")
        assert [term.name for term in found.outside] == ["tokens of the pool"]
        assert "dse calibrate server" in found.next_step
        assert "--log vllm.log" in found.next_step

    def test_a_server_that_is_not_the_planned_one_is_said(self, at_once):
        log = (LOGS / "vllm-0.19-llama-3.1-8b-tp4.log").read_text()
        found = saved_plan.check(at_once[1], log, "vllm.log")
        assert found.differs == ("tp 4, planned 1",)
        assert at_once[0].command in found.next_step

    def test_another_kv_format_is_said_with_the_option_of_the_engine(self, at_once, tmp_path):
        plan, log = json.loads(Path(at_once[1]).read_text()), (LOGS / "vllm-0.19-llama-3.1-8b.log").read_text()
        plan["quantizer"], path = "fp8", tmp_path / "plan.json"
        path.write_text(json.dumps(plan))
        found = saved_plan.check(str(path), log, "vllm.log")
        assert found.differs == ("quantizer fp16, planned fp8",)
        assert "another KV format (--kv-cache-dtype)" in found.text()

    def test_another_release_is_said(self, at_once, tmp_path):
        plan, log = json.loads(Path(at_once[1]).read_text()), (LOGS / "vllm-0.19-llama-3.1-8b.log").read_text()
        plan["workload"]["stack"], path = "vllm", tmp_path / "plan.json"
        path.write_text(json.dumps(plan))
        assert saved_plan.check(str(path), log, "vllm.log").differs == ("release 0.19.0, planned the newest (0.33.0)",)

    def test_of_another_model_or_device_is_refused(self, at_rate):
        log = (LOGS / "vllm-0.19-llama-3.1-8b.log").read_text()
        with pytest.raises(InputError, match=r"model = 'llama3.1-8b': is measured, and the plan is of qwen3-32b"):
            saved_plan.check(at_rate[1], log, "vllm.log")


class TestBenchmarks:
    @pytest.mark.parametrize("kind", ["at_once", "at_rate"])
    def test_at_the_load_of_the_plan_times_are_those_that_it_promised(self, kind, request):
        """And `dse check-log` of the same result says the same of the same server."""
        answer, path = request.getfixturevalue(kind)
        load = {"max_concurrency": 64} if kind == "at_once" else {"request_rate": answer.first.each}
        text = result(answer, 1e3 * answer.best["tpot_s"], 1e3 * answer.best["ttft_s"], 64_000, **load)
        found = saved_plan.check(path, text, "result.json")
        assert not found.is_other_load
        assert [term.name for term in found.terms] == ["time per output token", "time to the first token"]
        for term, value, name in zip(found.terms, found.check.runs[0].values, ("tpot_s", "ttft_s"), strict=False):
            promised = tuple(answer.best[f"{name}{end}"] for end in ("", "_low", "_high"))
            # a loop of 1,000 rounds: in the first all requests come at once
            assert (term.ours, *term.ends) == pytest.approx(promised, rel=0.04 if kind == "at_once" else 1e-9)
            assert (value.ours, value.low, value.high) == pytest.approx((term.ours, *term.ends))
        assert found.says.startswith("As planned")

    def test_at_another_load_they_are_predicted_anew(self, at_rate):
        answer, path = at_rate
        found = saved_plan.check(path, result(answer, 10, 100, request_rate=0.5), "result.json")
        assert found.is_other_load
        assert found.terms[0].ours < answer.best["tpot_s"]
        tp = answer.best["tp"]
        anew = dse.load("h100", "qwen3-32b", tp=tp, stack="vllm", **LENGTHS).at(0.5)
        assert found.terms[0].ours == pytest.approx(anew["tpot_s"])

    def test_slower_than_promised_lies_outside(self, at_rate):
        answer, path = at_rate
        tpot_ms = 1e3 * answer.best["tpot_s_high"] + 0.1
        text = result(answer, tpot_ms, 1e3 * answer.best["ttft_s"], request_rate=answer.first.each)
        found = saved_plan.check(path, text, "result.json")
        assert [term.name for term in found.outside] == ["time per output token"]
        assert "Not as planned: time per output token outside" in found.text()
        assert "dse calibrate server result.json" in found.next_step
        assert found.to_json()["terms"][0]["inside"] is False


def damaged(change):
    """A plan with one thing changed."""

    def of(plan):
        change(plan)
        return json.dumps(plan)

    return of


@each(
    ("change", "says"),
    [
        (lambda plan: json.dumps(plan)[:400], "plan.json"),
        (lambda plan: "", "is empty"),
        (lambda plan: "[]", "plan.json"),
        (lambda plan: '{"a": 1}', "is no plan of a deployment"),
        (damaged(lambda plan: plan.pop("promised")), "promised"),
        (damaged(lambda plan: plan.update(version=2)), "version"),
        (damaged(lambda plan: plan.update(model=3)), "model"),
        (damaged(lambda plan: plan.update(device="h1000")), "h1000"),
        (damaged(lambda plan: plan.update(quantizer="fp1")), "fp1"),
        (damaged(lambda plan: plan["promised"]["tpot_s"].update(low="x")), "low"),
        (damaged(lambda plan: plan["workload"].update(tp="two")), "tp"),
        (damaged(lambda plan: plan["workload"].update(stack=5)), "is no field of a server"),
        (damaged(lambda plan: plan["workload"].update(speed=5)), "is no field of a server"),
        (damaged(lambda plan: plan["workload"].update(calibrated="a.json")), "is no field of a server"),
    ],
)
def test_a_damaged_plan_is_refused_in_a_line(change, says, at_once, tmp_path, run):
    path = tmp_path / "plan.json"
    path.write_text(change(json.loads(Path(at_once[1]).read_text())))
    status, out, err = run("recommend", "--check", str(path), f"{LOGS}/vllm-0.19-llama-3.1-8b.log")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_every_value_of_a_plan_may_be_wrong(at_once):
    """Any of its values replaced by another: it is compared, or refused as input is."""
    text, log = Path(at_once[1]).read_text(), (LOGS / "vllm-0.19-llama-3.1-8b.log").read_text()
    path = Path(at_once[1]).with_name("wrong.json")
    for key in json.loads(text):
        for wrong in (None, -1, 1e300, "", "x", True, [], {}, {"a": 1}):
            path.write_text(json.dumps({**json.loads(text), key: wrong}))
            with contextlib.suppress(DseError):
                assert saved_plan.check(str(path), log, "vllm.log").text()


class TestCommand:
    def test_out_writes_the_plan_that_check_takes(self, tmp_path, run):
        line = "recommend --model llama3.1-8b --devices h100 --requests 64 --engines vllm@0.19.0 --most 1"
        server = "--gpu-memory-utilization 0.95 --max-model-len 8192 --quantizers fp16"
        status, _, err = run(*line.split(), *server.split(), "--out", str(tmp_path / "out"))
        assert (status, err) == (0, "")
        plan = tmp_path / "out" / "plan.json"
        assert json.loads(plan.read_text())["asked"]["command"].startswith("dse recommend ")
        log = str(LOGS / "vllm-0.19-llama-3.1-8b.log")
        status, text, _ = run("recommend", "--check", str(plan), log)
        assert status == 0
        assert "tokens of the pool" in text
        assert "As planned" in text
        status, text, _ = run("recommend", "--check", str(plan), log, "--json")
        assert json.loads(text)["terms"][0]["measured"] == PRINTED

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("--check", "plan.json", "--rate", "2", "a.log"), "rate = 2"),
            (("--check", "plan.json", "--weights", "fp8", "a.log"), "weights = 'fp8'"),
            (("--model", "qwen3-8b", "--devices", "h100", "--rate", "2", "a.log"), "log = 'a.log': has no effect"),
            (("--model", "qwen3-8b", "--rate", "2"), "--devices is missing"),
        ],
    )
    def test_what_has_no_effect_is_refused(self, words, says, run):
        status, out, err = run("recommend", *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert says in err


def test_without_devices_a_call_says_so():
    with pytest.raises(InputError, match="devices is missing"):
        dse.recommend(model="qwen3-8b", rate=1)
