"""Questions by name: searches against brute force, answers against their own definition, numbers by hand."""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dse
from cases import quick_first
from dse.core.compiling import FORMULAS
from dse.core.errors import InputError, LimitError
from dse.figures.plot import answer as report_figure
from dse.model import engine, uncertainty
from dse.model import kv_layout as plan
from dse.model.compare import Comparison
from dse.model.point import Point, filled
from dse.model.results import RESULT_UNITS
from dse.questions import best_map, common, crossing, doubt, formats, need, sensitivity
from dse.specs import catalog, measurements
from dse.specs.workload import Workload

THROUGHPUT, STEP = common.MEASURES["throughput"], common.MEASURES["step"]

#: kernels alone, of which numbers here were counted by hand
KERNELS = "vllm@kernels"


def design(device, model, quantizer, capacity_bytes=None):
    spec = catalog.device(device)
    if capacity_bytes:
        spec = common.with_number(spec, "memory_capacity", capacity_bytes, "test")
    return common.design(spec, catalog.model(model), quantizer)


def test_the_crown_is_who_is_likelier_better_than_each_other():
    """Of three, by chances: b over a as computed first, and c over none; in a ring all tie."""
    middles = {("a", "b"): 0.9, ("a", "c"): 1.2, ("b", "c"): 1.1}

    def gain(one, other):
        middle = middles.get((one, other)) or 1 / middles[other, one]
        return uncertainty.gain_within(middle / 1.5, middle * 1.5)

    best, gains = common.crowned(["a", "b", "c"], gain)
    assert best == ("b",)
    assert all(one.sure > 0.5 for one in gains.values())
    middles["b", "c"] = 0.8  # b over a, c over b, a over c
    assert set(common.crowned(["a", "b", "c"], gain)[0]) == {"a", "b", "c"}
    middles.update({("a", "b"): 1.0, ("a", "c"): 1.2, ("b", "c"): 1.2})
    assert common.crowned(["a", "b", "c"], gain)[0] == ("a", "b")


# crossover


class Remembered:
    """A design and what it evaluated to, since the definition asks for the same points under both measures."""

    def __init__(self, of):
        self.of, self.found, self._roomy = of, {}, None

    def evaluate(self, work):
        if work not in self.found:
            self.found[work] = self.of.evaluate(work)
        return self.found[work]

    @property
    def roomy(self):
        if self._roomy is None:
            device = common.with_number(self.of.device, "memory_capacity", 1e15, "test")
            self._roomy = Remembered(common.Candidate(device, self.of.plan))
        return self._roomy


@cache
def remembered(device, model, quantizer, capacity_bytes):
    return Remembered(design(device, model, quantizer, capacity_bytes))


def naive_verdict(new, old, work, measure):
    """The definition, from three plain evaluations; a step of fewer requests on a device with room for all."""
    a, b = new.evaluate(work), old.evaluate(work)
    if measure is STEP:
        a, b = ({**r, "feasible": r["fits_whole_batch"]} for r in (a, b))
    if not a["feasible"] or not b["feasible"]:
        return "none" if not a["feasible"] and not b["feasible"] else "capacity" if a["feasible"] else "no"
    if measure is STEP:
        return "speed" if a["decode_step_s"] < b["decode_step_s"] * (1 - 1e-9) else "no"
    if not a["throughput_tokens_per_s"] > b["throughput_tokens_per_s"] * (1 + 1e-9):
        return "no"
    equal = replace(work, batch=min(a["running_batch"], b["running_batch"]))
    fast, slow = (d.roomy.evaluate(equal)["decode_step_s"] for d in (new, old))
    more = a["running_batch"] > b["running_batch"]
    if fast < slow * (1 - 1e-9):
        return "both" if more else "speed"
    return "capacity" if more else "prompt"


def spread(line):
    return [run.verdict for run in line.runs for _ in range(run.first, run.last + 1)]


CASES = [
    # device, model, quantizer, against, memory in GB, what else, batches and prompts up to
    ("a100-80gb", "opt-30b", "nqkv", "fp16", 80, {"output_tokens": 256}, 40, 250),
    ("a100-80gb", "opt-30b", "nqkv", "fp16", 66, {"output_tokens": 128, "admission": "paged"}, 40, 400),
    ("oaken-lpddr", "llama2-7b", "oaken", "qserve", 20, {"output_tokens": 100, "admission": "paged"}, 24, 500),
    ("h100", "llama3.1-8b", "kivi:bits=4", "fp16", 20, {"output_tokens": 128}, 20, 500),
    ("h100", "llama3.1-8b", "kivi:bits=4", "fp16", 17, {"output_tokens": 150}, 20, 400),  # no whole periods
    ("h100", "llama3.1-8b", "sinkq:bits=4", "kivi:bits=4", 18, {"output_tokens": 200, "admission": "paged"}, 10, 300),
    ("h100", "llama3.1-8b", "fp8", "fp16", 18, {"output_tokens": 64}, 40, 400),
    ("a100-80gb", "mixtral-8x7b-oaken", "qserve", "fp16", 97, {"output_tokens": 64, "prefix_tokens": 50}, 20, 200),
    # right after KIVI has packed a group it reads less than Oaken, with up to 128 tokens in FP16 more
    ("oaken-hbm", "llama2-7b", "kivi:bits=2", "oaken", 80, {"output_tokens": 3}, 30, 600),
    (
        "a100-80gb",
        "llama2-7b",
        "qserve",
        "fp16",
        15.5,
        {"output_tokens": 64},
        12,
        900,
    ),  # more at once from some prompt on
    ("l40s", "llama2-13b", "nqkv", "fp16", 48, {"output_tokens": 256, "model_kind": "ideal"}, 60, 500),
    # the model does not tell them apart, and from some prompt, or some batch at once, on neither fits
    ("a100-80gb", "llama2-7b", "bf16", "fp16", 15.5, {"output_tokens": 64}, 12, 1500),
    ("a100-80gb", "llama2-7b", "qserve", "atom", 15.5, {"output_tokens": 64, "model_kind": "ideal"}, 12, 2500),
]


@pytest.mark.parametrize("measure", [THROUGHPUT, STEP], ids=["throughput", "step"])
@quick_first(6, "case", CASES, ids=lambda case: f"{case[0]}-{case[2]}-{case[4]}")
def test_every_batch_and_prompt_is_decided_as_by_brute_force(case, measure):
    device, model, quantizer, against, gigabytes, more, n_batches, n_inputs = case
    new, old = (remembered(device, model, q, gigabytes * 1e9) for q in (quantizer, against))
    work = Workload(**more)
    found = crossing.crossing(new.of, old.of, work, measure, (7, n_batches), (n_inputs,))
    expected = [
        naive_verdict(new, old, replace(work, batch=b, input_tokens=n_inputs), measure) for b in range(1, n_batches + 1)
    ]
    assert spread(found.from_batch[0]) == expected
    for line in found.from_input:
        first = max(1, work.prefix_tokens)
        assert line.runs[0].first == first
        expected = [
            naive_verdict(new, old, replace(work, batch=line.at, input_tokens=n), measure)
            for n in range(first, n_inputs + 1)
        ]
        assert spread(line) == expected


def test_designs_that_are_one_need_not_fit_at_every_shorter_prompt():
    """KIVI keeps up to 128 tokens in 16 bits: a prompt may not fit where a longer one does, whose tokens are packed."""
    one = design("h100", "llama3.1-8b", "kivi:bits=2", 16.3e9)
    pair = crossing.DesignPair(one, one, Workload(output_tokens=3, memory="paper"), STEP)
    verdicts = [pair.verdict(3, n) for n in range(2500, 2769)]
    assert sum(a != b for a, b in pairwise(verdicts)) > 1
    found = crossing.runs(lambda n: pair.verdict(3, n), lambda a, b: pair.is_sure(3, a, b), 2500, 2768)
    assert [run.verdict for run in found for _ in range(run.first, run.last + 1)] == verdicts


@settings(max_examples=12)
@given(
    st.sampled_from(["fp8", "qserve", "nqkv", "oaken", "kivi", "sinkq:group=32"]),
    st.integers(15, 40),
    st.integers(1, 60),
    st.integers(1, 300),
    st.sampled_from(["reserve", "paged"]),
    st.sampled_from(["ideal", "auto"]),
)
@example(quantizer="nqkv", gigabytes=16, batch=10, n_out=3, admission="reserve", kind="ideal")
def test_random_searches_equal_brute_force(quantizer, gigabytes, batch, n_out, admission, kind):
    new, old = (Remembered(design("a100-80gb", "llama2-7b", q, gigabytes * 1e9)) for q in (quantizer, "fp16"))
    work = Workload(output_tokens=n_out, admission=admission, model_kind=kind)
    line = crossing.crossing(new.of, old.of, work, THROUGHPUT, (batch,), (260,)).from_input[0]
    assert spread(line) == [
        naive_verdict(new, old, replace(work, batch=batch, input_tokens=n), THROUGHPUT) for n in range(1, 261)
    ]


def test_only_capacity_and_no_monotony_are_said():
    """OPT-30B on an A100 leaves 20 GB for keys and values: NQKV runs more at once, each step far slower."""
    new, old = (design("a100-80gb", "opt-30b", q) for q in ("nqkv", "fp16"))
    found = crossing.crossing(new, old, Workload(memory="paper", stack=KERNELS), THROUGHPUT, (16,), (512,))
    line = found.from_batch[0]
    a, b = (d.evaluate(Workload(batch=16, input_tokens=512, memory="paper", stack=KERNELS)) for d in (new, old))
    assert a["decode_step_s"] > b["decode_step_s"]
    assert a["throughput_tokens_per_s"] > b["throughput_tokens_per_s"]
    assert line.pays_in == [(10, 16)]
    assert line.pays_from == 10
    assert {run.verdict for run in line.runs} == {"no", "capacity"}
    assert "only capacity" in found.text()
    many = crossing.CrossingLine(
        "batch",
        1,
        tuple(
            crossing.VerdictRun(first, last, verdict)
            for first, last, verdict in (
                (1, 4, "no"),
                (5, 9, "speed"),
                (10, 11, "both"),
                (12, 12, "no"),
                (13, 20, "capacity"),
            )
        ),
    )
    assert many.pays_in == [(5, 11), (13, 20)]
    assert many.pays_from == 13
    assert replace(many, runs=(*many.runs, crossing.VerdictRun(21, 30, "none"))).pays_from == 13
    assert replace(many, runs=many.runs[:-1]).pays_from is None
    assert crossing._answer(many).startswith("from 13 on, and before that in 5-11: ")
    assert crossing._answer(replace(many, runs=many.runs[:-1])).startswith("not up to the end, only in 5-11: ")


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60))
def test_runs_cover_the_range_with_what_holds(verdicts):
    def is_sure(first, last):
        return len(set(verdicts[first : last + 1])) == 1

    for sure in (is_sure, lambda first, last: False):
        found = list(crossing.runs(lambda i: verdicts[i], sure, 0, len(verdicts) - 1))
        assert [run.verdict for run in found for _ in range(run.first, run.last + 1)] == verdicts
        assert all(a.verdict != b.verdict and a.last + 1 == b.first for a, b in pairwise(found))


def test_few_evaluations_decide_many_prompts():
    """What makes it usable: 32,768 prompts are decided by monotony, not one by one."""
    new, old = (design("a100-80gb", "llama2-13b", q) for q in ("qserve", "fp16"))
    pair = crossing.DesignPair(new, old, Workload(admission="paged"), THROUGHPUT)
    list(crossing.runs(lambda n: pair.verdict(16, n), lambda a, b: pair.is_sure(16, a, b), 1, 32768))
    assert len(pair.seen) < 1500


@pytest.mark.parametrize(("new", "old"), [("bf16", "fp16"), ("fp8", "fp8:format=e5m2")])
def test_designs_that_the_model_does_not_tell_apart_are_a_tie_at_once(new, old, monkeypatch):
    """Equal numbers of both are equal results at every prompt: 32,768 of them would be evaluated one by one."""
    seen = []
    monkeypatch.setattr(
        common.Candidate,
        "speed",
        lambda self, work: seen.append(work) or engine.speed(Point(self.device, self.plan, work)),
    )
    work = Workload(strict_kernels=True, output_tokens=64)
    found = crossing.crossing(*(design("h100", "llama3.1-8b", q) for q in (new, old)), work, THROUGHPUT, (1,), (32768,))
    assert [run.verdict for line in (*found.from_batch, *found.from_input) for run in line.runs] == ["no", "no"]
    assert found.note.startswith(f"{found.new} and {found.old} take the same memory and time here.")
    assert len(seen) < 20
    seen.clear()
    found = crossing.crossing(*(design("h100", "llama3.1-8b", q) for q in (new, old)), work, STEP, (4096,), (512,))
    (line,) = found.from_batch  # a step of more requests than fit at once is not told
    assert [run.verdict for run in line.runs] == ["no", "none"]
    assert len(seen) < 100


# inverse design


NEEDS = [
    ("bandwidth", "fp16", 1500.0, None),
    ("bandwidth", "qserve", 1500.0, None),
    ("capacity", "fp16", 850.0, None),
    ("capacity", "fp16", None, 130.0),
    ("capacity", "qserve", 1200.0, None),
    ("flops", "qserve", 1450.0, None),
    ("bandwidth", "qserve", None, 65.0),
    ("flops", "fp16", 400.0, None),
    ("bandwidth", "nqkv", 340.0, None),
]


@pytest.mark.parametrize("admission", ["reserve", "paged"])
@pytest.mark.parametrize(("what", "quantizer", "rate", "step_ms"), NEEDS)
def test_the_value_meets_the_target_and_the_next_smaller_does_not(what, quantizer, rate, step_ms, admission):
    one = design("a100-80gb", "llama2-13b", quantizer)
    work = Workload(batch=96, admission=admission, stack=KERNELS)
    goal = need.target(rate, step_ms)
    found = need.smallest(one, work, what, goal)
    assert found.value is not None

    def meets(value):
        result = replace(one, device=need.varied(one.device, what, value)).evaluate(work)
        if step_ms is not None:
            return result["fits_whole_batch"] and result["decode_step_s"] <= step_ms / 1000
        return result["feasible"] and result["throughput_tokens_per_s"] >= rate

    below = found.value - 1 if what == "capacity" else math.nextafter(found.value, 0.0)
    assert meets(found.value)
    assert not meets(below)
    assert found.result_below is not None
    for share in (0.5, 0.9, 0.99, 0.999):  # nor does any other smaller one
        assert not meets(int(found.value * share) if what == "capacity" else found.value * share)
    assert f"{found.target.measure.text(found.target.value)}" in found.text()


def test_the_head_of_an_answer_says_where_the_batch_is_what_fits():
    one, goal = design("a100-80gb", "llama2-7b", "fp16"), need.target(None, 100.0)
    for batch, is_full in ((None, True), (8, False)):
        found = need.smallest(one, Workload(batch=batch), "bandwidth", goal)
        assert ("as many as fit" in found.context) == is_full
        assert ("as many as fit" in found.text()) == is_full


def test_bandwidth_and_memory_by_hand():
    """One request of Llama2-7B at peak rates waits for reading alone, so half the time takes twice the bandwidth."""
    one = design("a100-80gb", "llama2-7b", "fp16")
    work = Workload(batch=1, model_kind="ideal", memory="paper")
    step_ms = 1000 * one.evaluate(work)["decode_step_s"]
    found = need.smallest(one, work, "bandwidth", need.target(None, step_ms / 2))
    assert found.value == pytest.approx(2 * 2.039e12, rel=1e-12)
    assert found.binding == "bandwidth"
    # its memory: weights 13.477 GB, 2,048 tokens of 524,288 B, activations
    memory = need.smallest(one, work, "capacity", need.target(None, 2 * step_ms))
    assert memory.value == one.evaluate(work)["min_capacity_bytes"]
    assert memory.value == pytest.approx(6738415616 * 2 + 2048 * 524288, rel=1e-4)
    assert memory.binding == "capacity"
    assert "less does not run at all" in memory.why()


def test_what_cannot_be_met_is_an_answer():
    """A batch of 64 computes 2 * 6.6e9 * 64 FLOP a step: at 312 TFLOP/s no bandwidth brings it below 2.71 ms."""
    one = design("a100-80gb", "llama2-7b", "int4")
    work = Workload(batch=64, model_kind="ideal", input_tokens=1, output_tokens=1, dequant_path="fused")
    found = need.smallest(one, work, "bandwidth", need.target(None, 2.7))
    assert found.value is None
    assert found.binding == "compute"
    multiplied = 6_738_415_616 - 4096 * 32_000  # but for the input embeddings
    assert found.result["linear_s"] == pytest.approx(2 * multiplied * 64 / 312e12, rel=1e-3)
    assert "cannot be met: at infinite memory bandwidth still 2.7" in found.text()
    assert found.to_json()["can_be_met"] is False
    small = design("a100-80gb", "llama2-70b", "fp16")  # 138 GB of weights
    assert "capacity" in need.smallest(small, work, "bandwidth", need.target(10.0, None)).why()


def test_memory_thresholds_equal_a_scan_over_batches():
    """More memory never hurts: the smallest is the smallest over all numbers of requests that it may hold."""
    work = Workload(batch=48, input_tokens=700, output_tokens=300)
    for quantizer, rate, memory in (("fp16", 300.0, "paper"), ("nqkv", 150.0, "server"), ("kivi", 300.0, "server")):
        work = replace(work, memory=memory)
        one = design("a100-80gb", "opt-30b", quantizer)
        sizes = [one.evaluate(replace(work, batch=n))["min_capacity_bytes"] for n in range(1, 49)]
        varied = [replace(one, device=need.varied(one.device, "capacity", size)) for size in sizes]
        rates = [THROUGHPUT.value(d.evaluate(work)) for d in varied]
        met = [size for size, value in zip(sizes, rates, strict=True) if value >= rate]
        assert need.smallest(one, work, "capacity", need.target(rate, None)).value == min(met)


def test_bits_are_chosen_by_default_from_what_formats_compares():
    """NVFP4 meets what FP8 misses: 4 bits and a scale of 8 a block of 16."""
    b300, llama = catalog.device("b300"), catalog.model("llama3.1-70b")
    work = Workload(batch=256, input_tokens=8192, admission="paged", weights="fp8")
    designs = need.candidates(b300, llama, work)
    names = [one.name for one in designs]
    assert names[0] == "fp16"
    assert {*names} >= {"fp8", "nvfp4", "fp8_per_token_head", "int4_per_token_head"}
    # of no server; for one latent head; not of vLLM; which fails with TurboQuant on Blackwell
    assert not {*names} & {"xquant", "fp8_ds_mla", "int8", "kivi", "turboquant_3bit_nc"}
    found = need.most_bits(designs, work, need.target(1200.0, None))
    told = formats.formats(b300, llama, work, ["nvfp4", "fp8"], has_starts=False).formats[1:]
    rates = {one.name: one.result["throughput_tokens_per_s"] for one in told}
    assert rates["fp8"] < 1200 <= rates["nvfp4"] == found.best["throughput_tokens_per_s"]
    assert found.best["quantizer"] == "nvfp4"
    assert found.best["stored_bits"] == pytest.approx(4.5, rel=1e-5)  # beside them one scale of a whole tensor


def test_most_bits_are_the_first_that_meet():
    work = Workload(batch=128, admission="paged", other_software=True)
    designs = [design("a100-80gb", "llama2-13b", name) for name in ("qserve", "fp16", "oaken", "fp8", "int8")]
    found = need.most_bits(designs, work, need.target(900.0, None))
    values = {d.name: d.evaluate(work) for d in designs}
    met = [r for r in values.values() if r["throughput_tokens_per_s"] >= 900]
    assert found.best["stored_bits"] == max(r["stored_bits"] for r in met)
    # 8 + 32 / 5120 bits, more than FP8, and once for all query heads, which this model does not group
    assert found.best["quantizer"] == "int8"
    assert found.above["quantizer"] == "fp16"
    assert "what stops more: fp16 (16" in found.text()
    assert need.most_bits(designs, work, need.target(1.0, None)).why().startswith("no quantization is needed")
    none = need.most_bits(designs, work, need.target(1e6, None))
    assert none.best is None
    assert "the best is qserve" in none.text()


# sensitivity


def test_every_number_that_moves_the_throughput_is_varied():
    """Each number of the device and its stack by 1 %: whatever moves the result must be among the numbers."""
    work = Workload(batch=64, admission="paged")
    for device, names in (
        ("a100-80gb", ("kivi", "nqkv")),
        ("h100", ("fp8", "sinkq")),
        ("oaken-lpddr", ("oaken", "fp8")),
    ):
        designs = [design(device, "llama3.1-8b", name) for name in names]
        spec = designs[0].device
        known = {number.name for number in doubt.numbers(designs, work, THROUGHPUT)}
        places = set(spec.quantities())
        for stack_name, stack in spec.stacks.items():
            places |= {
                f"stacks.{stack_name}.{part}.{name}"
                for part, fit in stack.fits().items()
                for name in fit.quantities()
                if "kv." not in part
            }
        for one in designs:
            base = one.evaluate(work)["throughput_tokens_per_s"]
            for name in places - {"n_devices", "n_cores"}:  # whole numbers, as the data sheet has them
                number = common.lookup(spec, name) or spec.rate(name.removesuffix("_rate"))
                if number.si:
                    varied = common.with_number(
                        spec, name, float(int(number.si * 0.99)) if number.si > 1e3 else number.si * 0.99, "test"
                    )
                    moved = replace(one, device=varied).evaluate(work)["throughput_tokens_per_s"]
                    assert moved == base or name in known, (device, one.name, name)


def test_effects_are_what_evaluating_gives():
    work = Workload(batch=64, admission="paged", other_software=True)
    one, other = (design("a100-80gb", "llama2-13b", q) for q in ("qserve", "fp16"))
    found = doubt.doubt(one, work, THROUGHPUT, other, ["core_clock=x0.2:x2"])
    assert found.base == one.evaluate(work)["throughput_tokens_per_s"]
    assert found.winner == "qserve"
    spans = [effect.span(found.base) for effect in found.effects]
    assert spans == sorted(spans, reverse=True)
    top = found.effects[0]
    assert top.number.name == "core_clock"  # that QServe's kernels unpack by
    assert (top.number.low, top.number.high) == pytest.approx((0.2 * 1.41e9, 2 * 1.41e9))

    def at(rate):
        spec = common.with_number(one.device, "core_clock", rate, "test")
        return [replace(d, device=spec).evaluate(work)["throughput_tokens_per_s"] for d in (one, other)]

    assert [top.at_low, top.other_at_low] == at(top.number.low)
    assert [top.at_high, top.other_at_high] == at(top.number.high)
    assert (top.winner_at_low, top.winner_at_high) == ("fp16", "qserve")
    (flip,) = top.flips_at
    a, b = at(flip)
    assert not a > b * (1 + 1e-9)
    a, b = at(flip * (1 + 1e-6))
    assert a > b * (1 + 1e-9)


def test_implementations_of_one_name_are_told_apart():
    """NVFP4 and INT4 per token and head both run by what is called vllm: a number of one moves nothing of the other."""
    work = Workload(input_tokens=4096, output_tokens=256, batch=64)
    names = {"nvfp4": "nvfp4", "int4_per_token_head": "int8_per_token_head"}  # the first method of its kernels
    pair = [design("b200", "llama3.1-8b", name) for name in names]
    effects = {effect.number.name: effect for effect in doubt.doubt(pair[0], work, other=pair[1]).effects}
    first, second = (effects[f"implementations.vllm.{own}.elements_per_cycle"] for own in names.values())
    assert first.number.value != second.number.value
    assert first.at_low < first.at_high
    assert first.other_at_low == first.other_at_high
    assert second.at_low == second.at_high
    assert second.other_at_low < second.other_at_high

    def at(one, value):
        run_by = replace(work, implementation=f"vllm:elements_per_cycle={value}")
        return one.evaluate(run_by)["throughput_tokens_per_s"]

    assert first.at_low == pytest.approx(at(pair[0], first.number.low))
    assert second.other_at_high == pytest.approx(at(pair[1], second.number.high))
    # nor do their ranges move together in the interval of a gain, as those of the same kernels do
    gain = Comparison().gain(*(one.at(work) for one in pair))
    assert gain.high / gain.low > second.other_at_high / second.other_at_low


def test_sensitivity_is_the_result_at_half_and_twice_each_number():
    """By evaluating a copy of the device; an open batch is as many requests as fit on that copy."""
    one, other = (design("a100-80gb", "llama2-13b", q) for q in ("fp16", "qserve"))
    for work in (Workload(), Workload(batch=64), Workload(batch=32, admission="reserve")):
        found = sensitivity.sensitivity(one, work, THROUGHPUT)
        effects = {effect.number.name: effect for effect in found.effects}
        for name, effect in effects.items():
            number = effect.number
            assert number.low == pytest.approx(number.value / 2)
            assert number.high == pytest.approx(number.value * 2)
            for si, value in ((number.low, effect.at_low), (number.high, effect.at_high)):
                spec = common.with_number(one.device, name, si, "test")
                whole = filled(spec, one.plan, work)
                assert THROUGHPUT.value(replace(one, device=spec).evaluate(whole)) == value
        assert effects["memory_bandwidth"].at_low < found.base < effects["memory_bandwidth"].at_high
        assert effects["board_power"].span(found.base) == 0
    assert "No effect: " in found.text()
    assert found.to_json()["question"] == "sensitivity"
    # twice the memory holds more requests, though the step is no faster
    assert effects["memory_capacity"].at_high > found.base
    both = sensitivity.sensitivity(one, Workload(batch=64, other_software=True), THROUGHPUT, other)
    assert (both.winner, both.other) == ("qserve", "qserve")


def test_bits_as_measured_are_one_more_number():
    work = Workload(batch=64)
    model, device = catalog.model("llama2-13b"), catalog.device("oaken-hbm")
    one = common.design(device, model, "oaken")
    spec = measurements.Bits("measured").quantizer("oaken")
    counted = common.Candidate(device, plan.build(model, spec, spec))
    found = doubt.doubt(one, work, THROUGHPUT, as_measured=[counted])
    (effect,) = [e for e in found.effects if e.number.name == "stored_bits"]
    results = [one.evaluate(work), counted.evaluate(work)]
    results.sort(key=lambda result: result["stored_bits"])
    assert (effect.number.low, effect.number.high) == tuple(r["stored_bits"] for r in results)
    assert (effect.at_low, effect.at_high) == tuple(r["throughput_tokens_per_s"] for r in results)
    assert effect.at_low > effect.at_high


@pytest.mark.parametrize(
    ("name", "si", "is_valid"),
    [
        ("usable_frac", 1.0, True),
        ("usable_frac", 1.1, False),
        ("memory_bandwidth", 2e12, True),
        ("memory_bandwidth", -1.0, False),
        ("memory_bandwidth", float("inf"), False),
        ("stacks.vllm.gemm.memory_frac", 0.9, True),
        ("stacks.vllm.gemm.memory_frac", 1.5, False),
    ],
)
def test_a_number_of_a_range_keeps_the_limits_of_device_files(name, si, is_valid):
    assert (common.number_problem(catalog.device("a100-80gb"), name, si) == "") == is_valid


def test_ranges_by_kind_and_given():
    one = design("oaken-lpddr", "llama2-7b", "oaken")
    found = {n.name: n for n in doubt.numbers([one], Workload(), THROUGHPUT)}
    assert (found["engine_rate"].low, found["engine_rate"].high) == (28e12, 58e12)  # its own
    # published, within 5 %; of no measured kernels, 0.85 to 0.93 about 0.89
    reached = found["memory_bandwidth"]
    assert (reached.low, reached.high) == pytest.approx((0.95 * 1.1e12, 1.05 * 1.1e12))
    ideal = {n.name: n for n in doubt.numbers([one], Workload(model_kind="ideal"), THROUGHPUT)}["memory_bandwidth"]
    assert (ideal.low, ideal.high) == (0.5 * 1.1e12, 1.05 * 1.1e12)  # at peak rates
    assert (found["memory_capacity"].low, found["memory_capacity"].high) == (0.95 * 256e9, 1.05 * 256e9)  # published
    assert (found["usable_frac"].low, found["usable_frac"].high) == (0.8, 1.0)
    assert "usd_per_hour" not in found
    calibrated = design("a100-80gb", "llama2-7b", "fp16")
    fitted = {n.name: n for n in doubt.numbers([calibrated], Workload(stack=KERNELS), THROUGHPUT)}
    frac = fitted["stacks.vllm.attention.memory_frac"]  # within the error of its fit, 6.45 %
    assert (frac.low, frac.high) == (pytest.approx(0.7636 * (1 - 0.0645)), pytest.approx(0.7636 * (1 + 0.0645)))
    given_range = doubt.with_ranges(
        fitted.values(), ["gemm.launch=1us:0.02ms", "memory_bandwidth=1.6 TB/s:x1.5"], catalog.device("a100-80gb")
    )
    by_name = {n.name: n for n in given_range}
    assert by_name["stacks.vllm.gemm.launch"].low == pytest.approx(1e-6)
    assert by_name["stacks.vllm.gemm.launch"].high == pytest.approx(2e-5)
    assert (by_name["memory_bandwidth"].low, by_name["memory_bandwidth"].high) == (
        1.6e12,
        pytest.approx(1.5 * 2.039e12),
    )


def test_a_device_that_borrows_its_kernels_takes_them_as_assumed(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "Mine"\nmemory_capacity = "80 GB"\nmemory_bandwidth = "3 TB/s"\npeak_flops = "900 TFLOP/s"\n'
        'n_cores = 100\nstacks_of = "h100"\n'
    )
    one = design(str(path), "llama2-7b", "fp16")
    found = {n.name: n for n in doubt.numbers([one], Workload(), THROUGHPUT)}
    launch = found["stacks.vllm.products.bf16.launch"]
    assert launch.kind == "assumed"
    assert launch.high == pytest.approx(2 * launch.value)
    assert "stacks.vllm.gemm.launch" not in found  # 16-bit products of whole steps take its place
    assert doubt.doubt(one, Workload(), THROUGHPUT).effects[0].span(1.0) > 0


def test_a_server_varies_what_it_borrows_and_its_own_time_over_its_releases():
    server = catalog.servers()["trtllm"]
    one = design("b200", "gpt-oss-20b", "fp16")
    work = Workload(batch=8, stack="trtllm", weights="mxfp4-experts")
    found = {n.name: n for n in doubt.numbers([one], work, THROUGHPUT)}
    experts = catalog.device("b200").stacks["vllm"].experts["mxfp4"]  # trtllm's are not shipped
    frac = found["stacks.trtllm.experts.mxfp4.memory_frac"]
    assert (frac.value, frac.low) == (
        experts.memory_frac.si,
        pytest.approx(experts.memory_frac.si * (1 - experts.serving_error)),
    )
    each = [release.sequence.si for release in server.releases.values()]
    sequence = found["stacks.trtllm.host.sequence"]
    assert (sequence.low, sequence.high) == (min(each), max(each))
    assert sequence.value == server.host.sequence.si
    answer = doubt.doubt(one, work, THROUGHPUT)
    moved = {effect.number.name: effect for effect in answer.effects}
    assert moved["stacks.trtllm.host.sequence"].at_low > answer.base > moved["stacks.trtllm.host.sequence"].at_high
    assert moved["stacks.trtllm.experts.mxfp4.memory_frac"].span(answer.base) > 0.05
    fixed = doubt.numbers([one], replace(work, stack="trtllm@1.0.0rc3"), THROUGHPUT)
    step = next(n for n in fixed if n.name == "stacks.trtllm.host.layer")
    assert step.high == pytest.approx(1.1 * server.releases["1.0.0rc3"].layer.si)  # measured: a tenth


def test_designs_by_name_are_those_of_the_specs():
    specs = common.design(catalog.device("a100-80gb"), catalog.model("llama2-7b"), "qserve")
    assert common.design("A100-80GB", "llama2-7b", "qserve") == specs
    with pytest.raises(InputError, match="unknown device 'a100'"):
        common.design("a100", "llama2-7b", "qserve")
    goal = need.target(step_ms=30)
    assert (goal.measure.name, goal.value) == ("step", pytest.approx(0.03))
    found = need.smallest(specs, Workload(batch=8), "bandwidth", goal)
    drawn = dse.plot(found)
    assert drawn.layout.width == 1000
    assert report_figure.figure_of(found).name == "need"


# best quantizer map


def test_the_map_is_the_largest_of_all_and_names_ties():
    names = ("fp16", "bf16", "qserve", "nqkv", "kivi:bits=4")
    designs = [design("h100", "llama3.1-8b", name) for name in names]
    work = Workload(output_tokens=256, other_software=True)
    found = best_map.best_map(designs, work, THROUGHPUT, (1, 64, 512), (256, 8192, 400_000))
    assert [(cell.batch, cell.input_tokens) for cell in found.cells] == [
        (b, n) for n in (256, 8192, 400_000) for b in (1, 64, 512)
    ]
    for cell in found.cells:
        results = [d.evaluate(replace(work, batch=cell.batch, input_tokens=cell.input_tokens)) for d in designs]
        runs = {name: r["throughput_tokens_per_s"] for name, r in zip(names, results, strict=True) if r["feasible"]}
        assert cell.values == runs
        assert set(cell.best) == {name for name in runs if runs[name] >= max(runs.values()) / (1 + 1e-9)}
    first = found.cells[0]
    assert first.best == ("fp16", "bf16")  # one short request: 16 bits each, nothing to unpack
    assert first.gains["fp16"].ratio == 1.0
    assert first.next_best not in first.best
    assert first.values[first.next_best] == max(v for name, v in first.values.items() if name not in first.best)
    assert 0.5 < first.sure < 1
    assert "fp16 = bf16 1.00x" in found.text()
    empty = best_map.best_map(designs[:2], work, STEP, (512,), (400_000,)).cells[0]
    assert empty.best == ()
    assert found.table["best"].iloc[0] == "fp16 = bf16"


def test_measures_compare_and_a_step_counts_for_the_whole_batch_only():
    assert THROUGHPUT.is_better(2.0, 1.0)
    assert not THROUGHPUT.is_better(1.0 + 1e-10, 1.0)
    assert STEP.is_better(1.0, 2.0)
    assert STEP.is_better(1.0, None)
    assert not STEP.is_better(None, None)
    one = design("a100-80gb", "llama2-13b", "fp16")
    result = one.evaluate(Workload(batch=256))
    assert result["decode_step_s"] is not None
    assert STEP.value(result) is None
    assert THROUGHPUT.value(result) == result["throughput_tokens_per_s"]
    assert {m.column for m in common.MEASURES.values()} <= set(RESULT_UNITS)


def test_a_changed_number_changes_nothing_else():
    spec = catalog.device("a100-80gb")
    varied = common.with_number(spec, "stacks.vllm.gemm.launch", 1e-5, "test")
    assert varied.stacks["vllm"].gemm.launch.si == 1e-5
    assert spec.stacks["vllm"].gemm.launch.si != 1e-5
    assert varied.stacks["vllm"].attention == spec.stacks["vllm"].attention
    assert varied.stacks["sglang"] == spec.stacks["sglang"]
    same = common.with_number(spec, "memory_bandwidth", spec.memory_bandwidth.si, "test")
    one = design("a100-80gb", "llama2-7b", "qserve")
    assert replace(one, device=same).evaluate(Workload()) == one.evaluate(Workload())


# how sure


def test_each_end_of_a_stretch_says_how_sure_it_is():
    new, old = (design("a100-80gb", "llama2-13b", name) for name in ("sinkq:bits=4", "fp16"))
    work = Workload(output_tokens=512)
    found = crossing.crossing(new, old, work, THROUGHPUT, (16,), (3072,))
    (line,) = found.from_batch
    for run, document in zip(line.runs, found.to_json()["from_batch"][0]["runs"], strict=True):
        for end in ("first", "last"):
            at = replace(work, batch=getattr(run, end), input_tokens=3072)
            gain = Comparison().gain(new.at(at), old.at(at))
            assert document[f"gain_at_{end}"] == gain.ratio
            assert list(document[f"interval_at_{end}"]) == [gain.low, gain.high]
            assert document[f"sure_at_{end}"] == gain.sure
    # where it just begins to pay nobody is sure of it
    assert line.runs[-1].verdict == "speed"
    assert line.runs[-1].sure_at_first < 0.6
    assert " % sure)" in found.text()
    row = found.table.iloc[-1]
    assert row["gain_low_at_last"] < row["gain_at_last"] < row["gain_high_at_last"]


@pytest.mark.parametrize(
    ("what", "goal"), [("bandwidth", (500.0, None)), ("bandwidth", (None, 25.0)), ("capacity", (500.0, None))]
)
def test_the_interval_of_what_is_needed_meets_the_target_at_the_ends_of_its_times(what, goal):
    one, work, aim = design("a100-80gb", "llama2-7b", "fp16"), Workload(16, 1024, 1024), need.target(*goal)
    found = need.smallest(one, work, what, aim)
    assert found.interval[0] <= found.value < found.interval[1]
    for value, end in zip(found.interval, (0, 1), strict=True):
        result = common.Candidate(need.varied(one.device, what, value), one.plan).evaluate(work)
        # where times are shortest a step is, and a rate is highest
        number = aim.measure.ends(result)[end if aim.measure is STEP else 1 - end]
        if what == "bandwidth":  # which moves times without a jump
            assert number == pytest.approx(aim.value)
        else:
            assert number >= aim.value
    given = one.evaluate(work)
    assert found.given_chance == pytest.approx(aim.measure.chance(given, aim.value))
    document = found.to_json()
    assert document["interval"] == list(found.interval)
    assert document["chance_as_given"] == found.given_chance
    assert "80 % interval" in found.text()


def test_a_target_out_of_reach_has_no_interval_and_one_near_it_no_upper_end():
    one, work = design("a100-80gb", "llama2-7b", "fp16"), Workload(16, 1024, 1024, model_kind="ideal")
    far = need.smallest(one, work, "capacity", need.target(1e6, None))
    assert (far.value, far.interval) == (None, (None, None))
    assert "no value will do" in far.text()
    best = one.roomy().evaluate(work)["throughput_tokens_per_s"]
    near = need.smallest(one, work, "capacity", need.target(0.9 * best, None))
    # times are those predicted or longer, up to more than 1.43 times: 0.9 of the best rate is reached at the low end
    assert near.interval[0] >= near.value
    assert near.interval[1] is None
    assert "nothing will do" in near.text()


def test_candidates_say_how_likely_they_meet_the_target():
    work = Workload(batch=128, admission="paged")
    designs = [design("a100-80gb", "llama2-13b", name) for name in ("qserve", "fp16")]
    found = need.most_bits(designs, work, need.target(1000.0, None)).to_json()
    chances = {row["quantizer"]: row["chance"] for row in found["candidates"]}
    assert chances["qserve"] > 0.5 > chances["fp16"]
    for row in found["candidates"]:
        low, high = row["interval"]
        assert low < row["throughput_tokens_per_s"] < high


def test_a_winner_that_an_assumed_rate_decides_is_not_sure():
    work = Workload(batch=16, input_tokens=4096, other_software=True)
    one, other = (design("a100-80gb", "llama2-13b", name) for name in ("sinkq:bits=4", "fp16"))
    found = doubt.doubt(one, work, THROUGHPUT, other)
    document = found.to_json()
    assert document["winner"] == "sinkq:bits=4"
    assert any(effect["flips_at"] for effect in document["effects"])
    assert found.base > found.other_base
    low, high = document["gain_interval"]
    assert low < document["gain"] < 1 < high
    assert document["gain"] == pytest.approx(math.sqrt(low * high))
    assert document["sure"] < 0.5  # its kernels may be far slower than assumed, hardly faster
    assert document["base_interval"][0] < found.base < document["base_interval"][1]
    assert "% sure that sinkq:bits=4 is better" in found.text()
    alone = doubt.doubt(one, work, THROUGHPUT).to_json()
    assert (alone["gain"], alone["sure"], alone["against_interval"]) == (None, None, None)


# bad input


def test_bad_questions_are_refused():
    new, old = (design("a100-80gb", "llama2-7b", q) for q in ("qserve", "fp16"))
    work = Workload()
    for bad in (
        lambda: crossing.crossing(new, new, work, THROUGHPUT),
        lambda: crossing.crossing(new, old, work, THROUGHPUT, (), (1,)),
        lambda: crossing.crossing(new, old, work, THROUGHPUT, (0,), (1,)),
        lambda: need.target(None, None),
        lambda: need.target(1.0, 1.0),
        lambda: need.target(float("nan"), None),
        lambda: need.target(None, -1.0),
        lambda: need.smallest(new, work, "bandwith", need.target(1.0, None)),
        lambda: need.most_bits([], work, need.target(1.0, None)),
        lambda: common.measure("speed"),
        lambda: best_map.best_map([new, new], work, THROUGHPUT),
        lambda: best_map.best_map([], work, THROUGHPUT),
        lambda: doubt.doubt(design("oaken-hbm", "llama2-7b", "oaken"), work, common.MEASURES["cost"]),
        lambda: doubt.doubt(design("a100-80gb", "llama2-70b", "fp16"), work, THROUGHPUT),
        *(
            lambda text=text: doubt.doubt(new, work, THROUGHPUT, ranges=[text])
            for text in (
                "fused_rate",
                "fuzed_rate=1:2",
                "fused_rate=x2:x1",
                "usable_frac=0.5:2",
                "launch=x1:x2",
                "memory_bandwidth=1GB:2GB",
                "fused_rate=a:b",
                "fused_rate=x1GB:x2",
                "memory_bandwidth=-1:2",
            )
        ),
    ):
        with pytest.raises(InputError):
            bad()
    with pytest.raises(LimitError):
        crossing.crossing(new, old, work, THROUGHPUT, (10**6,), (1,))
    with pytest.raises(LimitError):
        crossing.crossing(new, old, work, THROUGHPUT, (1,), (2**21,))
    with pytest.raises(LimitError):
        best_map.best_map([new, old], work, THROUGHPUT, range(1, 1001), range(1, 1001))


def test_bits_that_capacity_keeps_out_say_what_binds_with_room():
    """FP16 of 128 requests runs in waves; in endless memory it is the step of all 128, which has its own bound."""
    work = Workload(batch=128, memory="paper", stack=KERNELS, other_software=True)
    designs = [design("a100-80gb", "llama2-13b", name) for name in ("fp16", "fp8", "int4")]
    goal = need.target(950.0, None)
    found = need.most_bits(designs, work, goal)
    assert found.best["quantizer"] == "int4"
    assert found.above["bound"] == "capacity"
    room = design("a100-80gb", "llama2-13b", found.above["quantizer"], 2**53).evaluate(work)
    assert room["running_batch"] == 128
    assert found.with_room == room
    rate = goal.measure.text(room["throughput_tokens_per_s"])
    assert f"with room for all it would be {rate}, bound by {room['bound']} (" in found.why()
    none = need.most_bits(designs[:2], work, goal)
    assert none.best is None
    assert f"with room for all it would be {rate}, bound by {room['bound']} (" in none.why()
    # where all run at once nothing is kept out, and a number of the device says the same
    assert need.most_bits(designs, Workload(batch=1), goal).with_room is None
    one = need.smallest(designs[1], work, "flops", need.target(1e6, None))
    assert "with room for all it would be" in one.why()


def test_a_batch_that_no_memory_holds():
    """2**53 B hold 5e6 requests of llama2-13b (819,200 B x 2,048 tokens each): what binds beyond is not said."""
    work = Workload(batch=2**24)
    found = need.most_bits([design("a100-80gb", "llama2-13b", "fp16")], work, need.target(1e12, None))
    assert found.with_room is None
    assert "`dse ask need capacity` says what is missing" in found.why()
    one = need.smallest(design("a100-80gb", "llama2-13b", "fp16"), work, "bandwidth", need.target(1e14, None))
    assert "`dse ask need capacity` says what is missing" in one.why()


def test_a_cost_says_of_what():
    """1 USD an hour at 1000 tok/s is 1 / 3600 / 1000 * 1e6 = 0.2778 USD for a million of them."""
    assert common.MEASURES["cost"].text(1 / 3.6) == "0.2778 USD per million tokens"
    assert common.MEASURES["cost"].unit == FORMULAS["usd_per_million_tokens"].unit


@pytest.mark.parametrize("what", ["bandwidth", "flops"])
@pytest.mark.parametrize(
    ("quantizer", "batch", "goal"),
    [("fp16", 10**6, (1000.0, None)), ("kivi", 64, (500.0, None)), ("fp16", 4, (None, 20.0))],
)
def test_a_search_takes_few_evaluations_and_draws_no_curve(monkeypatch, what, quantizer, batch, goal):
    one, work, aim = (
        design("a100-80gb", "llama2-7b", quantizer),
        Workload(batch, 1024, 1024, stack=KERNELS),
        need.target(*goal),
    )
    asked = []
    for name in ("evaluate", "speed"):
        real = getattr(engine, name)
        monkeypatch.setattr(engine, name, lambda *args, real=real: asked.append(1) or real(*args))
    found = need.smallest(one, work, what, aim)
    # halving takes 62, and the figure's curve, which nobody asked for, 65; cores that unpack bend it more
    assert len(asked) <= (55 if quantizer == "kivi" else 40)
    monkeypatch.undo()

    def is_met(key):
        device = need.varied(one.device, what, need._number(key))
        return aim.is_met(common.Candidate(device, one.plan).evaluate(work))

    low, high = need._key(need.LOWEST), need._key(need.ENDLESS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_met(middle) else (middle, high)
    assert found.value == need._number(high)
    assert len(found.curve) >= need.N_CURVE


def test_a_crossing_begins_with_from_where_on_it_pays():
    """By hand: searches of one answer are told together."""
    pays, late = crossing.VerdictRun(1, 256, "speed"), crossing.VerdictRun(6, 256, "both")
    lines = [
        crossing.CrossingLine("batch", 512, (crossing.VerdictRun(1, 5, "no"), late)),
        crossing.CrossingLine("batch", 2048, (pays,)),
        crossing.CrossingLine("batch", 8192, (pays,)),
    ]
    never = crossing.CrossingLine("input_tokens", 1, (crossing.VerdictRun(1, 512, "no"),))
    answer = crossing.Crossing("new", "old", common.THROUGHPUT, "where", tuple(lines), (never,), "")
    assert answer.verdict == [
        "From which batch on new pays against old: from 6 on at a prompt of 512; always at a prompt of 2,048 and 8,192",
        "From which prompt on new pays against old: never at batch 1",
    ]
    assert [f"  {line}" for line in answer.verdict] == answer.text().splitlines()[3:5]


def test_a_map_begins_with_how_often_each_is_best():
    """By hand: three cells, of which one is sure to 60 %."""

    def cell(batch, best, sure):
        other = {"a": "b", "b": "a"}[best]
        gain = uncertainty.Gain(1.1, 1.0, 1.2, sure)
        return best_map.Cell(batch, 64, (best,), values={}, bounds={}, gains={other: gain}, next_best=other)

    cells = (cell(1, "a", 0.9), cell(2, "b", 0.6), cell(4, "b", 0.95))
    answer = best_map.BestMap(common.THROUGHPUT, "where", quantizers=("a", "b"), cells=cells, assumptions="")
    said = ["Best of 3 batches and prompts: b in 2, a in 1", "In 1 of them less than 80 % sure to beat the next best"]
    assert answer.verdict == said
    assert [f"  {line}" for line in said] == answer.text().splitlines()[3:5]
