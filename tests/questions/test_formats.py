"""Which KV format pays: rows against evaluations one by one, what is left out, what the answer says, the figure."""

import contextlib
import json
import random
from dataclasses import replace

import pytest

from dse import quantizers
from dse.core.errors import DseError, InputError
from dse.figures import FIGURES
from dse.figures.plot import answer as of_answer
from dse.model.compare import Comparison
from dse.model.uncertainty import Gain
from dse.questions import best_map, common
from dse.questions import formats as module
from dse.specs import catalog
from dse.specs.workload import Workload

H200, QWEN = catalog.device("h200"), catalog.model("qwen3-32b")
WORK = Workload(batch=64, input_tokens=8192, admission="paged")
NAMES = ["fp8", "qserve", "int8_per_token_head"]
PRINTED = {"fp16": "FP16", "fp8": "FP8", "qserve": "QServe", "int8_per_token_head": "INT8 per token and head"}


@pytest.fixture(scope="module")
def found():
    return module.formats(H200, QWEN, WORK, NAMES)


def test_rows_are_what_evaluations_and_comparisons_give_one_by_one(found):
    assert found.formats[0].name == "fp16"
    assert sorted(one.name for one in found.formats[1:]) == sorted(NAMES)
    rates = [one.result["throughput_tokens_per_s"] for one in found.formats[1:] if not one.elsewhere]
    assert rates == sorted(rates, reverse=True)
    assert [one.name for one in found.formats if one.elsewhere] == ["qserve"]
    plain = common.design(H200, QWEN, "fp16")
    for one in found.formats:
        design = common.design(H200, QWEN, one.name)
        assert one.result == design.evaluate(WORK)
        if one.gain:
            assert one.gain == Comparison().gain(design.at(WORK), plain.at(WORK))


def test_the_table_has_bytes_and_intervals_of_hand(found):
    """8 KV heads of 128 channels in 64 layers, keys and values: 131,072 elements a token, two bytes each or one."""
    rows = found.table.set_index("format")
    assert rows.loc["fp16", "kv_bytes_per_token"] == 2 * 64 * 8 * 128 * 2
    assert rows.loc["fp8", "kv_bytes_per_token"] == 2 * 64 * 8 * 128
    assert rows.loc["qserve", "stored_bits"] == 4.25  # a scale and a zero of 16 bits for the 128 channels of a head
    for column in ("decode_step_s", "throughput_tokens_per_s", "joules_per_token"):
        assert (rows[f"{column}_low"] < rows[column]).all()
        assert (rows[column] < rows[f"{column}_high"]).all()
    assert rows.loc["fp8", "gain_low"] < rows.loc["fp8", "gain"] < rows.loc["fp8", "gain_high"]
    assert rows.loc["fp8", "kernels"] == "measured"
    assert rows.loc["int8_per_token_head", "kernels"] == "assumed"
    assert set(rows["measured_on"].dropna()) == {"SmolLM2-135M, not your model"}


def test_the_first_batch_at_which_it_is_ahead_is_the_first_of_all():
    """At a short prompt 8 bits gain little: every batch evaluated by itself says from which on they are ahead."""
    work = replace(WORK, input_tokens=1024, batch=1)
    found = module.formats(H200, QWEN, work, ["fp8"])
    designs = [common.design(H200, QWEN, name) for name in ("fp8", "fp16")]
    ahead = [
        batch
        for batch in range(1, module.LAST_BATCH + 1)
        if (a := [d.speed(replace(work, batch=batch))["throughput_tokens_per_s"] for d in designs])[0] > a[1]
    ]
    assert found.from_batch == ahead[0] > 1
    assert ahead == list(range(ahead[0], module.LAST_BATCH + 1))
    assert f"from a batch of {ahead[0]} on" in found.answer()
    gain = found.formats[1].gain
    assert gain.ratio < 1
    said = f"No format pays here: fp8 comes nearest with {gain.ratio:.2f} times (80 % interval {gain.low:.2f} to "
    said += f"{gain.high:.2f}) the throughput of fp16, {100 * gain.sure:.0f} % sure to give more; it is ahead from a"
    assert found.answer().startswith(said)


def test_sentences_and_drops_leave_out_other_software(found):
    """qserve, of other software here, neither pays nor drops least in what the answer says."""
    cells = [one.gain and one.gain._replace(ratio=2.0, low=1.5, high=2.5) for one in found.formats]
    all_pay = tuple(
        replace(one, verdict="pays" if gain else "base", gain=gain)
        for one, gain in zip(found.formats, cells, strict=True)
    )
    assert "qserve" not in replace(found, formats=all_pay).answer()
    slower = [one if not one.gain else replace(one, gain=one.gain._replace(ratio=0.5, high=0.9)) for one in all_pay]
    only = tuple(replace(one, verdict="no") for one in slower if one.name in ("fp8", "qserve"))
    said = replace(found, formats=(found.formats[0], *only)).answer()
    assert said.startswith("No format pays here: fp8 comes nearest with 0.50 times")


def test_sixteen_bits_that_the_engine_does_not_run_are_said_to_be_compared_with_only():
    """DeepSeek-V3.2's sparse heads have no kernels on an A100 (vLLM); V4's are stored as fp8_ds_mla by auto."""
    work = replace(WORK, batch=1, tp=8)
    sparse = module.formats(catalog.device("a100-80gb"), catalog.model("deepseek-v3.2"), work, ["fp8"])
    assert any(note.startswith("fp16 is compared with, not run: vLLM 0.33.0 refuses it") for note in sparse.notes())
    stored = module.formats(catalog.device("b300"), catalog.model("deepseek-v4-flash"), work, ["fp8"])
    told = [note for note in stored.notes() if note.startswith("fp16 is compared with")]
    assert told == ["fp16 is compared with, not run: vLLM 0.33.0 stores it as fp8_ds_mla."]


def with_gains(found, **ratios):
    """The answer with other gains, that no format surely has, all of the engine."""
    changed = [
        replace(
            one,
            result={**one.result, "runs": True},
            verdict="no",
            elsewhere="",
            gain=one.gain._replace(ratio=ratios[one.name]),
        )
        for one in found.formats[1:]
    ]
    return replace(found, formats=(found.formats[0], *changed), from_batch=None, from_input=None)


def test_a_format_that_is_slower_is_not_put_forward(found):
    slower = with_gains(found, fp8=0.5, qserve=0.74, int8_per_token_head=0.6).answer()
    assert slower.startswith("No format pays here: qserve comes nearest with 0.74 times (80 %")
    open_ = with_gains(found, fp8=1.01, qserve=0.74, int8_per_token_head=0.6).answer()
    assert open_.startswith("No format surely pays here: fp8 may, with 1.01 times (80 % interval")
    # the largest gain is named, though its kernel was not measured
    of_others = with_gains(found, fp8=0.94, qserve=0.74, int8_per_token_head=1.01).answer()
    assert of_others.startswith("No format surely pays here: int8_per_token_head may, with 1.01 times (80 % interval")


def test_a_gain_less_sure_than_a_half_is_not_claimed():
    """At peak rates, whose range lies below them: SinkQ is computed to be faster, and it is likelier to be slower."""
    work = Workload(batch=64, input_tokens=2048, model_kind="ideal", other_software=True)
    found = module.formats(catalog.device("attacc-a100"), catalog.model("llama2-13b"), work, ["sinkq", "oaken"])
    first, second = found.formats[:2]
    assert (second.name, second.verdict) == ("sinkq", "room")
    assert second.result["throughput_tokens_per_s"] > first.result["throughput_tokens_per_s"]
    assert second.gain.ratio < 1
    assert second.sure < 0.5
    assert (found.from_batch, found.from_input) == (None, None)  # where it is computed to be ahead says nothing
    assert found.answer() == (
        f"No format pays here: sinkq comes nearest with {second.gain.ratio:.2f} times (80 % interval "
        f"{second.gain.low:.2f} to {second.gain.high:.2f}) the throughput of fp16, {100 * second.sure:.0f} % sure to "
        "give more. Fits more requests, no more tok/s: sinkq, oaken."
    )


def test_where_several_devices_share_it_the_head_says_so():
    """On 8 B300 no gain of DeepSeek-V4-Pro is sure: vLLM runs FP8 alone there, whose gain of 3 % is a measured one."""
    work = Workload(batch=64, input_tokens=32768, admission="paged", weights="nvfp4-experts", tp=8)
    found = module.formats(catalog.device("b300"), catalog.model("deepseek-v4-pro"), work, ["fp8", "nvfp4"])
    assert found.context.startswith("8 x B300, deepseek-v4-pro, tp 8, nvfp4-experts weights, 1,024 out, paged, ")
    assert found.answer().startswith("No format surely pays here: fp8 may, with 1.03 times")
    assert "KV cache of a token, a device" in found.wide_text()
    one = replace(work, tp=1, weights=None, weights_bits=8, input_tokens=512, batch=1)
    head = common.context(catalog.device("b300"), QWEN, one, common.design(H200, QWEN, "fp16").evaluate(one))
    assert head.startswith("B300, qwen3-32b, 8-bit weights, 1,024 out")


def test_by_default_known_kernels_of_the_stack_and_reasons_for_all_others():
    designs, left_out = module.candidates(H200, QWEN, WORK)
    names = {one.name for one in designs}
    assert {"fp8", "nvfp4", "int4_per_token_head"} <= names
    assert "fp16" not in names
    others = {name for own in left_out.values() for name in own}
    assert not names & others
    assert names | others == set(quantizers.FAMILIES) - {"fp16", "bf16"}
    assert {"int4", "qserve", "q8_0", "mxfp8"} <= {*left_out["no KV type of vLLM 0.33.0"]}
    assert "nvfp4_4over6" in left_out["refused by vLLM 0.33.0"]
    assert "fp8_ds_mla" in left_out["not for this model's heads"]
    by_sglang, _ = module.candidates(catalog.device("b200"), QWEN, replace(WORK, stack="sglang"))
    assert {"fp8", "nvfp4", "mxfp8"} <= {one.name for one in by_sglang}
    for design in designs:
        result = design.evaluate(WORK)
        assert result["implementation"] not in (None, "generic"), design.name


@pytest.mark.parametrize(
    ("ratio", "low", "largest", "verdict"),
    [(1.2, 1.1, 50, "pays"), (1.2, 0.9, 50, "open"), (0.9, 0.8, 50, "room"), (0.9, 0.8, 20, "no"), (1, 0.9, 20, "no")],
)
def test_verdicts(ratio, low, largest, verdict):
    base, result = {"max_batch": 20}, {"feasible": True, "max_batch": largest, "measured_error": 0.05}
    result |= {"score_drop_frac": 0.02, "score_drop_low_frac": 0.015, "score_drop_high_frac": 0.03}
    gain = Gain(ratio, low, 1.5, 0.9)
    for tolerance in (module.ANY_LOSS, module.Tolerance(0.03)):
        assert module._verdict(result, base, gain, tolerance) == verdict
    assert module._verdict(result, base, None, module.ANY_LOSS) == "alone"
    assert module._verdict({**result, "feasible": False}, base, None, module.Tolerance(0.01)) == "out"
    assert module._verdict(result, base, gain, module.Tolerance(0.01)) == "drops"
    assert module._verdict(result, base, gain, module.Tolerance(0.02)) == "untold"  # from 1.5 to 3 %: on both sides
    unknown = dict.fromkeys(("score_drop_frac", "score_drop_low_frac", "score_drop_high_frac"))
    assert module._verdict({**result, **unknown}, base, gain, module.Tolerance(0.01)) == "untold"
    assert module._verdict(result, base, gain, module.Tolerance(None, 0.04)) == "errs"
    assert module._verdict({**result, "measured_error": None}, base, gain, module.Tolerance(None, 0.04)) == "untold"


def test_no_format_that_drops_scores_too_far_is_recommended():
    names, work = ["fp8", "int4_per_token_head", "kivi"], Workload(batch=64, input_tokens=8192)
    found = module.formats(catalog.device("h200"), QWEN, work, names, tolerance=module.Tolerance(drop_frac=0.01))
    # FP8's 2.0 % lie from -0.9 to 8.1: noise neither passes nor rejects
    fp8 = next(one for one in found.formats if one.name == "fp8")
    assert fp8.result["score_drop_low_frac"] < 0.01 < fp8.result["score_drop_high_frac"]
    assert (fp8.verdict, found.best) == ("untold", None)
    answer = found.answer()
    assert answer.startswith("fp8 gives 1.")
    assert "not surely within the limits." in answer
    assert "Whether scores drop by more than 1 % cannot be told: " in answer
    assert "fp8 (2.0 ± 6.1 %)" in answer
    assert found.to_json()["max_drop_frac"] == 0.01
    wide = module.formats(catalog.device("h200"), QWEN, work, ["fp8"], tolerance=module.Tolerance(drop_frac=0.1))
    assert wide.best.name == "fp8"
    assert "cannot be told" not in wide.answer()


def test_text_and_json_say_the_same(found):
    text, data = " ".join(found.text().split()), json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert found.answer() in text
    assert max(map(len, found.text().splitlines()[-6:])) <= module.TEXT_WIDTH
    assert data["answer"] == found.answer()
    assert data["best"] == "fp8"
    assert "fp8 pays: 1." in text
    assert "Ppl: rise of perplexity, on SmolLM2-135M, not your model." in text
    assert "Other software, which vLLM 0.33.0 does not run:" in text
    assert "qserve: no KV type of vLLM 0.33.0; omniserve" in text
    assert "qserve" not in found.answer()
    assert max(map(len, found.text().splitlines()[3:7])) <= 110  # two columns of quality in place of one


def test_where_nothing_fits_the_answer_says_why():
    found = module.formats(catalog.device("rtx-4090"), QWEN, Workload(batch=1), ["fp8"])
    assert found.answer().startswith("No format runs here: ")
    assert found.best is None
    assert "no fit" in found.text()
    assert of_answer.chart_of(found).panels


def test_windows_in_every_layer_leave_the_context_without_a_limit():
    model = catalog.model("mixtral-8x7b-oaken")
    found = module.formats(catalog.device("a800-80gb"), model, Workload(batch=4, tp=4), ["fp8"])
    (longest,) = (column for column in found.columns() if column.title == "longest context")
    assert [longest.cell(one) for one in found.formats] == ["any", "any"]


def test_where_only_fewer_bits_fit_they_run_alone():
    """An A100 has some 8 GB beside these weights: 32,000 tokens in 16 bits (262,144 B each), 64,000 in 8 bits."""
    found = module.formats(catalog.device("a100-80gb"), QWEN, Workload(batch=1, input_tokens=40_000), ["fp8", "qserve"])
    assert [one.verdict for one in found.formats] == ["out", "alone", "refused"]
    assert "fp8 does." in found.answer()
    assert found.answer().startswith("fp16 does not run here; ")
    assert found.table["gain"].isna().all()
    assert of_answer.chart_of(found).panels


def test_the_figure_tells_measured_kernels_from_assumed_ones(found):
    chart = of_answer.chart_of(found)
    gains = {s.name: s for s in chart.panels[0].series if s.kind == "scatter"}
    assert gains["kernels measured"].opened == (False, False)
    assert gains["kernels assumed, not measured"].opened == (True,)
    assert {s.name for s in chart.legend()} >= {"kernels measured", "kernels assumed, not measured"}
    rows = found.table.set_index("format")
    assert gains["kernels assumed, not measured"].x == (rows.loc["int8_per_token_head", "gain"],)
    assert [text for _, text in chart.panels[0].y.ticks][::-1] == [PRINTED[name] for name in rows.index]
    assert FIGURES["formats"].chart(found.table).panels == chart.panels


def test_bad_names_are_refused():
    for names, said in (
        ([], "at least one"),
        (["fp8", "fp8"], "names one twice"),
        (["fp9"], "fp9"),
        (["fp8_ds_mla"], "latent"),
    ):
        with pytest.raises(InputError, match=said):
            module.formats(H200, QWEN, WORK, names)


def test_where_neither_kernels_nor_cores_are_known_no_format_pays_for_sure():
    """An M4 Max has neither: what it unpacks may be a tenth of what is assumed; its intervals are below its rates."""
    work = Workload(batch=8, input_tokens=4096, admission="paged")
    found = module.formats(
        catalog.device("m4-max"), catalog.model("llama3.1-8b"), work, ["q8_0", "q4_0"], has_starts=False
    )
    assert {one.verdict for one in found.formats[1:]} == {"room"}
    assert all(one.gain.low < one.gain.ratio < 1 < one.gain.high and one.sure < 0.5 for one in found.formats[1:])
    assert found.notes()[0].startswith("In brackets: 80 % intervals.")


@pytest.mark.parametrize(("device", "runs"), [("mi300x", "vllm-rocm"), ("mi355x", "vllm-rocm"), ("h200", "vllm")])
def test_fp8_runs_by_vllm_on_gpus_of_both_vendors(device, runs):
    assert catalog.implementation(catalog.device(device), "fp8", "vllm", "").name == runs
    assert catalog.implementation(catalog.device("m4-max"), "q8_0", None, "").name == "llama.cpp"
    assert catalog.implementation(catalog.device("mi210"), "fp8", "vllm", "") is None  # no FP8 arithmetic


def test_a_format_that_packs_many_groups_is_left_out_but_where_it_is_named():
    """4 M tokens in groups of 128 are 31,250; what does not fit needs no counting and stays."""
    model, work = catalog.model("llama3.2-1b"), Workload(output_tokens=4_000_000, other_software=True)
    found = module.formats(H200, model, work, has_starts=False)
    assert "kivi" in found.left_out[module.TAKES_LONG]
    assert {"fp8", "kivi"} & {one.name for one in found.formats} == {"fp8"}
    assert f"{module.TAKES_LONG}: kivi" in found.text().replace("\n", " ")
    assert common.design(H200, model, "kivi").takes_long(work)
    too_long = replace(work, output_tokens=2**24)
    assert not common.design(H200, QWEN, "kivi").takes_long(too_long)
    named = module.formats(H200, QWEN, too_long, ["kivi"], has_starts=False)
    assert [one.verdict for one in named.formats] == ["out", "out"]
    assert not named.left_out


def drawn(n_questions):
    """Answers of devices, models and workloads that are drawn by lot, the same ones each time."""
    lot = random.Random(45)
    devices = ["h200", "b200", "a100-80gb", "h100", "mi300x", "m4-max", "attacc-a100", "l40s"]
    models = ["qwen3-32b", "llama3.1-8b", "qwen3-30b-a3b", "gpt-oss-120b", "llama2-13b"]
    for _ in range(n_questions):
        work = Workload(
            batch=2 ** lot.randrange(9),
            input_tokens=lot.randrange(64, 16384),
            output_tokens=lot.randrange(16, 2048),
            admission=lot.choice(["paged", "reserve"]),
            tp=lot.choice([1, 1, 2, 4]),
            other_software=lot.random() < 0.5,
        )
        device, model = catalog.device(lot.choice(devices)), catalog.model(lot.choice(models))
        with contextlib.suppress(DseError):  # a device that is not split so
            yield module.formats(device, model, work, has_starts=False)


def test_verdict_gain_sure_and_interval_never_contradict_each_other():
    n_rows = 0
    for found in drawn(24):
        data = found.to_json()
        for one, row in zip(found.formats, data["formats"], strict=True):
            if one.gain is None:
                continue
            n_rows += 1
            assert row["gain_low"] <= row["gain"] <= row["gain_high"]
            assert (row["gain"] > 1 + 1e-9) == (row["sure"] > 0.5 + 1e-9), (found.context, row)
            assert row["sure"] == one.sure
            assert module.chance_text(one).strip("<>%") in (f"{100 * row['sure']:.0f}", "99", "1")
            if one.verdict in ("pays", "open"):
                assert row["gain"] > 1
            assert (one.verdict == "pays") == (row["gain_low"] > 1)
        if found.best:
            assert found.best.sure >= 0.9
    assert n_rows > 100


def test_no_place_of_a_map_crowns_what_is_likelier_slower():
    """At peak rates, and by kernels that may be far slower than computed, most throughput as computed is not enough."""
    model, batches, inputs = catalog.model("llama2-13b"), (1, 16, 64), (512, 4096)
    n_other = 0
    for name, kind in (("attacc-a100", "ideal"), ("h200", "auto"), ("m4-max", "auto")):
        designs = [common.design(catalog.device(name), model, one) for one in ("fp16", "sinkq", "nvfp4", "fp8")]
        cells = best_map.best_map(designs, Workload(model_kind=kind), batches=batches, inputs=inputs).cells
        for cell in cells:
            assert all(gain.sure >= 0.5 - 1e-9 for gain in cell.gains.values())
            n_other += cell.best[0] != max(cell.values, key=lambda name: cell.values[name])
    assert n_other


def test_without_a_batch_the_server_is_as_full_as_the_format_that_holds_the_most():
    answer = module.formats(catalog.device("h100"), catalog.model("llama3-8b"), Workload(), ["fp8"])
    fits = {one.name: one.result["max_batch"] for one in answer.formats}
    assert answer.batch == fits["fp8"]
    # half the bytes a token: twice the requests, to one that a block's rest decides
    assert abs(answer.batch - 2 * fits["fp16"]) <= 1
