"""The page that answers: its verdict, the table, next steps of a design, and what designs differ in."""

import json
import shlex

import pytest
from click.testing import CliRunner

from dse.cli.main import cli
from dse.explorer import bench, cards, common_fields, request, tray, verdict
from dse.explorer import opened as row_of
from dse.explorer.badge import badge_of
from dse.explorer.pages import answer
from dse.questions.common import ends_text
from dse.report import present
from dse.specs import catalog
from explorer_page import of, opened, plain, said, values_of, wrong


def is_enough(here, found):
    """Whether a design is one to take, after a step."""
    return verdict.is_enough(found, found.request, request.limits_s(here.values))


LLAMA = {"model": "llama3.1-70b", "quantizer": "fp8"}


def test_a_design_that_does_not_fit_says_by_what_and_what_to_do():
    """141 GB of weights in BF16 are more than an H200's 135 GB for a server: weights in FP8 or a second device."""
    here = of(LLAMA, batch=1, input=32768)
    row = here.current
    assert present.fits_text(row.result).startswith("Does not fit: ")
    steps = {step.label: step for step in row_of.next_steps(here, row)}
    assert steps["Weights in fp8"].design == {"weights": "fp8"}
    assert steps["2 devices"].design == {"tp": 2}
    assert badge_of(row).text == "does not fit"


def test_a_format_that_the_server_refuses_is_said_in_its_row_and_is_never_taken():
    """By vLLM 0.33.0's table NVFP4 has no kernel for heads of 64 with sinks; as `dse point` says of the design."""
    nvfp4 = {"device": "h100", "model": "gpt-oss-120b", "tp": 2, "quantizer": "nvfp4"}
    here = of(nvfp4, {**nvfp4, "quantizer": "fp8"}, batch=64)
    refused, fp8 = here.answered
    assert badge_of(refused).text == "not run by vLLM"
    assert refused.refusals["nvfp4"].startswith("vLLM 0.33.0 refuses it: no backend")
    assert fp8.refusals == {}
    one = "device.h100~model.gpt-oss-120b~tp.2~quantizer."
    app = opened("answer", batch="64", designs=f"{one}nvfp4~~{one}fp8")
    assert any("refuses it" in line for line in wrong(app))
    assert verdict.verdict(here).taken is fp8


def test_a_hybrid_with_too_many_requests_for_its_states_is_offered_fewer():
    """vLLM starts it with 872 or fewer (`tests/model/test_starts.py`); 96 of the requests fit in memory."""
    hybrid = {"device": "h100", "model": "qwen3.6-27b", "weights": "fp8-block", "max_model_len": 262_144}
    here = of(hybrid, gpu_memory_utilization=0.95)
    first = row_of.next_steps(here, here.current)[0]
    assert (first.label, first.design) == ("Concurrency at most 96", {"max_num_seqs": 96})
    again = of({**hybrid, **first.design}, gpu_memory_utilization=0.95).current
    assert again.refusals == {}
    assert again.result["running_batch"] == 96


@pytest.mark.parametrize("allowed", [False, True])
def test_what_no_engine_of_a_chip_runs_is_in_no_verdict(allowed):
    """SinkQ on Oaken's chip, as fast as it would be at an assumed rate; other software lets it compete, marked."""
    oaken = {"device": "oaken-hbm", "model": "llama2-13b", "quantizer": "oaken", "other_software": allowed}
    here = of(oaken, {**oaken, "quantizer": "sinkq"}, batch=64)
    own, other = here.answered
    assert other.result["throughput_tokens_per_s"] > 0
    assert badge_of(other).text == "not run by its software"
    assert other.refusals == {"sinkq": "no engine of Oaken-HBM runs it"}
    assert bool(verdict.lead(other, own)) == allowed
    assert verdict.verdict(here).taken is own
    assert ("sinkq tie" in verdict.verdict(here).head) == allowed
    said = answer.cached_speeds(tuple((row.name, row.request) for row in here.answered), ()).verdict
    assert said.startswith("Most tokens a device: sinkq" if allowed else "Most tokens a device: oaken")


@pytest.mark.parametrize(
    ("device", "model", "why"),
    [
        ("a100-80gb", "glm-5", "vLLM 0.33.0 refuses it: no backend: compute capability"),
        ("h200", "deepseek-v4-flash", "vLLM 0.33.0 stores it as fp8_ds_mla"),
        ("h200", "deepseek-v3", ""),
    ],
)
def test_sixteen_bits_that_the_server_does_not_keep_are_said(device, model, why):
    """A model without a backend on the device, and one whose keys and values are stored otherwise."""
    row = of({"device": device, "model": model, "tp": 8}, batch=1, input=128).current
    assert row.refusals.get("fp16", "").startswith(why)
    assert bool(row.refusals) == bool(why)


def test_no_step_has_a_format_for_which_no_kernel_of_the_device_is_known():
    """A V100 has no FP8, and no table of an engine tells of it."""
    here = of({"device": "v100-32gb", "model": "llama3.1-8b"}, batch=64, input=32768)
    assert not any("fp8" in step.label for step in row_of.next_steps(here, here.current))


def test_heads_that_all_devices_hold_fit_in_stages_of_layers():
    """DeepSeek's latent heads lie whole on each of 8 devices, and on one where each has an eighth of the layers."""
    here = of({"device": "h200", "model": "deepseek-v3", "tp": 8}, batch=64, input=65536)
    step = row_of.next_steps(here, here.current)[0]
    assert (step.label, step.design) == ("Stages of layers (tp 1, pp 8)", {"tp": 1, "pp": 8})
    then = of({"device": "h200", "model": "deepseek-v3", **step.design}, batch=64, input=65536)
    assert verdict.keeps(then.current, {})


def test_by_default_as_many_run_as_fit():
    here = of({}, {"device": "oaken-hbm"})
    for row in here.answered:
        most = row.result["max_batch"]
        assert row.result["batch"] == row.result["running_batch"] == most
        assert present.fits_text(row.result, True) == f"Runs {most:,} requests at once: as many as fit."
    assert [row.result["admission"] for row in here.answered] == ["paged", "reserve"]


def test_a_prompt_that_is_too_long_fits_in_fewer_bits_on_more_devices_or_shorter():
    here = of({"quantizer": "fp8"}, input=2**20)
    steps = [(step.design, step.question) for step in row_of.next_steps(here, here.current)]
    assert ({"tp": 2}, {}) in steps
    (shorter,) = [workload["input"] for _, workload in steps if workload]
    assert of({"quantizer": "fp8"}, input=shorter).current.result["feasible"]


def after(here, step, **own):
    """The answer of a design, `own` what it differs in from the defaults, once a step is taken."""
    design = tray.TrayDesign(values={**own, **step.design})
    asked = {**here.values, **tray.values_of(design, common_fields.DESIGN), **step.question}
    return request.answer(request.point_request(asked), request.load_request(asked))


def test_a_batch_that_exceeds_memory_has_three_ways_out():
    """Of 64 requests 28 run at once in fp16 and 56 in fp8: it takes 4 bits, a second device, or a smaller batch.

    At their full length, 9,216 tokens, 2 x 64 layers x 8 heads x 128 x 2 B: 2.416 GB each in 68.4 GB.
    """
    here = of({}, batch=64, input=8192)
    row, result = here.current, here.current.result
    assert result["max_batch"] == result["free_bytes"] // (2 * 64 * 8 * 128 * 2 * 9216) == 28
    assert present.fits_text(result) == "Exceeds memory: at most 28 of 64 requests run at once, the others wait."
    fewer, more, smaller = row_of.next_steps(here, row)
    assert of({"quantizer": "fp8"}, batch=64, input=8192).current.result["max_batch"] < 64
    assert fewer.design["quantizer"] == "int4_per_token_head"
    assert "perplexity +6.1 %" in fewer.outcome
    assert (more.design, more.outcome.partition(",")[0]) == ({"tp": 2}, "64 of 82 at once")
    assert f"{after(here, more).result['throughput_tokens_per_s']:,.0f} tok/s" in more.outcome
    assert "USD per million tokens" in more.outcome
    assert smaller.question == {"batch": 28}
    for step in (fewer, more, smaller):
        assert is_enough(here, after(here, step)), step


@pytest.mark.parametrize(
    ("device", "model", "words"),
    [
        # 671 GB of experts in blocks of 8 bits, as they were released: more than 4 of 135 GB for a server
        ("h200", "deepseek-v3", "8 devices"),
        # 810 GB in 16 bits, and half of that in 8: more than four or eight of 78 GB
        ("h100", "llama3.1-405b", "Weights in fp8 on 8 devices"),
        # a trillion parameters in 8 bits on devices of 40 GB leave 150 MB: 3 requests of 38 MB
        ("a100-40gb", "kimi-k2", "32 devices"),
    ],
)
def test_several_changes_at_once_make_large_models_fit(device, model, words):
    here = of({"device": device, "model": model}, batch=3)
    assert not here.current.result["feasible"]
    first, *others = row_of.next_steps(here, here.current)
    assert first.label == words
    for step in (first, *others):
        assert is_enough(here, after(here, step, own_device=device, own_model=model)), step
        assert ("weights is not known" in step.outcome) == ("weights" in step.design)


def test_no_step_leads_to_what_the_engine_does_not_run():
    """vLLM has no FP8 keys and values for gpt-oss's sinks on an A100, and a chip with engines runs their formats."""
    here = of({"device": "a100-80gb", "model": "gpt-oss-120b"}, batch=64, input=65536)
    found = row_of.next_steps(here, here.current)
    assert found
    assert {step.design.get("quantizer") for step in found} <= {None, "int4_per_token_head"}
    chip = of({"device": "oaken-lpddr", "model": "llama2-13b"}, batch=256, input=2048)
    found = row_of.next_steps(chip, chip.current)
    assert {step.design["quantizer"] for step in found if "quantizer" in step.design} == {"oaken"}


def test_a_step_is_one_click_and_changes_its_design_alone():
    app = opened("answer", batch="64", input="8192")
    step = next(button for button in app.button if "KV in int4" in button.label)
    step.click().run()
    assert not app.exception
    assert "".join(app.query_params["designs"]).split("~~")[:2] == ["quantizer.int4_per_token_head", "quantizer.fp8"]


def test_a_design_that_fits_within_its_limits_has_no_next_step():
    here = of({"quantizer": "fp8"}, batch=8, input=1024, tpot_limit=100.0, ttft_limit=60.0)
    assert verdict.keeps(here.current, request.limits_s(here.values))
    assert row_of.next_steps(here, here.current) == []


def test_limits_are_met_or_missed_in_the_units_of_their_fields():
    """Limits: seconds to the first token, milliseconds per token."""
    result = {"ttft_s": 1.5, "tpot_s": 0.05}
    values = {"ttft_limit": 1.5, "tpot_limit": 49.0}
    assert request.limits_s(values) == {"tpot_s": 0.049, "ttft_s": 1.5}
    assert cards.time_text("ttft_s", result, request.limits_s(values)) == "1.5 s"
    assert cards.time_text("tpot_s", result, request.limits_s(values)) == "50 ms > 49 ms"
    assert cards.time_text("tpot_s", result, {}) == "50 ms"
    # an answer of one token has no time between tokens
    assert set(request.limits_s({**values, "output": 1})) == {"ttft_s"}


def test_a_missed_limit_proposes_a_smaller_batch_that_meets_it():
    here = of({"quantizer": "fp8"}, batch=32, input=2048, tpot_limit=25.0)
    assert " > 25 ms" in cards.design_table(here).loc[0, "TPOT"]
    steps = row_of.next_steps(here, here.current)
    assert steps[-1].label.startswith("Batch ")
    for step in steps:
        assert is_enough(here, after(here, step, quantizer="fp8")), step


def test_weights_as_released_are_not_noted():
    released = of({"model": "deepseek-v3", "tp": 8}, batch=8)
    assert cards.keeps_weights(released.current.request.model_spec(), released.current.result)
    assert "--weights" not in " ".join(row_of.notes(released.current))


def test_a_step_to_more_devices_gives_them_to_all_designs():
    """Of a design with a layout of its own it is that design's: the others lie on as many as the question has."""
    for designs, wanted in (("-~~quantizer.fp8", {"devices": "2"}), ("tp.1~~quantizer.fp8", {})):
        app = opened("answer", batch="64", input="8192", model="qwen3-32b", designs=designs)
        next(button for button in app.button if button.label.startswith("2 devices")).click().run()
        assert not app.exception
        query = {key: "".join(value) for key, value in app.query_params.items()}
        assert ({"devices": query["devices"]} if "devices" in query else {}) == wanted
        assert query["designs"] == ("-~~quantizer.fp8" if wanted else "tp.2~~quantizer.fp8")


def test_a_rate_has_one_number_of_servers_and_the_interval_on_which_limits_are_tested():
    """As the command of each row prints them; the verdict takes the designs in the settings that they have."""
    here = of(
        {"quantizer": "fp8"},
        {"quantizer": "int4_per_token_head"},
        **{"load": "rate", "rate": 20.0, "input": 4096, "output": 500, "tpot_limit": 50.0, "ttft_limit": 2.0},
    )
    found = verdict.verdict(here)
    assert f"Run {found.taken.answer.n_servers} x H200" in found.said
    for row in here.rows:
        command = shlex.split(request.command(row.asked, row.load, row.answer))
        card = json.loads(CliRunner().invoke(cli, [*command[1:], "--json"]).stdout)["cards"]["most throughput"]
        assert {f"{name}_high": late for name, late in row.answer.late_s.items()} == {
            name: card[name] for name in ("tpot_s_high", "ttft_s_high")
        }
        assert row.answer.n_servers == card["n_servers"]
        assert ends_text(row.result, "tpot_s", card["tpot_s_high"]) in row_of._number(row, "tpot_s").replace("\\", "")


def test_where_only_the_middle_of_an_interval_keeps_a_limit_the_verdict_says_so_and_opens_what_is_nearest():
    app = opened("answer", input="8192", tpot_limit="50", ttft_limit="2", at="2")
    text = plain(app.markdown[0].value)
    assert "No design surely keeps TPOT 50 ms and TTFT 2 s. fp16 comes nearest:" in text.replace("**", "")
    assert "TTFT 786.2 ms (487.4 ms to 2.013 s)" in text
    assert next(iter(app.dataframe[0].value["Fits"])) == "0 of 28 at once"
    next(button for button in app.button if button.label == "Open fp16").click().run()
    assert "at" not in app.query_params
    assert not any(button.label == "Open fp16" for button in app.button)


def address_at(app):
    """Which design is open, as the address has it."""
    return "".join(app.query_params["at"])


def test_bars_and_table_count_what_is_surely_within_the_limits():
    here = of({}, {"quantizer": "fp8"}, batch=64, input=4096, output=500, tpot_limit=30.0, ttft_limit=1.0)
    assert [cards.held_of(row) for row in here.rows] == [int(row.answer.holds) for row in here.rows] == [6, 6]
    assert cards.design_table(here)["Fits"].tolist() == ["6 of 56 at once", "6 of 113 at once"]
    # FP16 has no room for 64, and its TTFT is five times the limit
    assert verdict.verdict(here).nearest is here.rows[1]
    assert "fp8 comes nearest" in verdict.verdict(here).said


def test_a_design_that_holds_none_of_a_load_has_no_numbers_of_another():
    asked = {"load": "rate", "rate": 5.0, "input": 4096, "output": 500, "tpot_limit": 30.0, "ttft_limit": 1.0}
    here = of({"quantizer": "fp8"}, {"quantizer": "int4_per_token_head"}, **asked)
    table = cards.design_table(here)
    assert table["Servers"].tolist()[1] == "none holds it"
    assert (table.loc[1, ["tok/s a device", "tok/s a user", "TPOT", "USD/M out"]] == "").all()
    assert all(table.loc[0, ["tok/s a device", "TPOT", "USD/M out"]])
    query = {key: str(value) for key, value in asked.items()}
    app = opened("answer", designs="quantizer.fp8~~quantizer.int4_per_token_head", at="2", **query)
    assert any("No server holds any of this load within the limits" in line for line in wrong(app))
    assert "against fp8" not in said(app)


def test_the_address_says_which_design_is_open_without_its_designs_too():
    app = opened("answer", batch="32", at="2")
    assert address_at(app) == "2"
    assert app.selectbox(key="quantizer").value == "fp8"
    app = opened("answer", at="99")
    assert any("at = " in one.value for one in app.code)


def test_scores_of_short_answers_are_called_so():
    """INT4 a token and head has two published scores, both of one test of short answers."""
    here = of({"quantizer": "fp8"}, {"quantizer": "int4_per_token_head"}, {"quantizer": "nqkv"}, batch=8)
    losses = cards.design_table(here)["Accuracy loss"].tolist()
    assert [text.endswith(", short answers") for text in losses] == [False, True, False]


def test_a_drop_of_scores_says_that_it_leaves_narrower_weights_out():
    """What weights in fewer bits than the model's release lose is published nowhere here."""
    here = of({}, {"weights": "fp8"}, batch=8)
    assert cards.design_table(here)["Accuracy loss"].tolist() == ["0.0 %", "0.0 %, weights not known"]
    assert "weights not known" in verdict.verdict(of({"weights": "fp8"}, batch=8)).said


def test_a_rate_on_devices_without_a_price_is_told_in_devices():
    unpriced = next(name for name in catalog.device_files() if not catalog.device(name).usd_per_hour)
    here = of({"device": unpriced}, model="llama3.1-8b", load="rate", rate=0.5)
    said = verdict.verdict(here).said
    assert "no price is known" in said
    assert "USD" not in said
    for load, is_said in (("rate", True), ("batch", False)):
        page = opened("answer", device=unpriced, model="llama3.1-8b", load=load, rate="0.5")
        assert not page.exception
        commands = [one.value for one in page.code]
        assert any(f"--price {unpriced}=1" in one for one in commands) == is_said
        assert any("1 USD an hour stands for it" in one.value for one in page.caption) == is_said


def test_a_design_with_requests_of_its_own_is_not_sized_by_the_rate():
    here = of({}, {"own_batch": 8}, load="rate", rate=5.0, tpot_limit=50.0)
    assert [row.answer.n_servers > 1 for row in here.rows] == [True, False]
    assert verdict.verdict(here).taken is here.rows[0]
    alone = verdict.verdict(of({"own_batch": 8}, load="rate", rate=5.0))
    assert alone.head.startswith("each design has requests at once of its own: empty that field")


@pytest.mark.parametrize(
    ("second", "other"),
    [
        ({"quantizer": "fp8"}, []),
        ({"weights": "fp8"}, ["weights"]),
        ({"tp": 2}, ["devices"]),
        ({"own_batch": 8}, ["loads"]),
        ({"admission": "reserve"}, ["KV allocation"]),
        ({"device": "oaken-hbm"}, ["devices", "KV allocation", "timing model", "memory rule"]),
    ],
)
def test_what_is_not_alike_is_said(second, other):
    assert bench.differences(of({}, second).rows) == ", ".join(other)


def test_designs_are_called_for_what_differs_and_equal_ones_are_numbered():
    assert [row.name for row in of({}, {"quantizer": "fp8"}, {"quantizer": "fp8", "tp": 2}).rows] == [
        "fp16, tp 1",
        "fp8, tp 1",
        "fp8, tp 2",
    ]
    assert [row.name for row in of({}, {}).rows] == ["fp16", "fp16 (2)"]
    named = bench.evaluate(values_of(), tray.Tray((tray.TrayDesign("Mine", {}), tray.TrayDesign("Mine", {"tp": 3}))))
    assert [row.name for row in named.rows] == ["Mine", "Mine (2)"]
    assert named.rows[1].wrong is not None


def test_a_device_whose_numbers_were_changed_is_not_called_measured():
    """An H200 at 9.6 TB/s was measured by nobody."""
    row = of({}, {"edits": "memory_bandwidth=9.6 TB/s"}).rows[1]
    assert badge_of(row).text.endswith("what-if")


def test_one_word_for_what_fits():
    """22 GB of Llama 3.1 8B beside 24 GB: some of 256 requests run at once."""
    rows = of({"device": "h200"}, {"device": "l4"}, batch=256, input=8192).rows
    words = [cards.fits(row.result) for row in rows]
    most = rows[1].result["max_batch"]
    assert words[1] == (f"{most} of 256" if rows[1].result["feasible"] else "does not fit")
    table = cards.design_table(of({"device": "h200"}, batch=1, input=64))
    assert table["Fits"].tolist() == ["1 of 254 at once"] or table["Fits"].str.startswith("1 of ").all()


def test_the_memory_bar_adds_up_to_the_device():
    """64 requests of 9,216 tokens need 77.3 GB of a pool of 68.4: it is full; weights 65.5 GB, the rest reserved."""
    result = of({"quantizer": "fp8"}, batch=64, input=8192).current.result
    parts = cards.memory_parts(result)
    assert list(parts) == ["weights", "reserved", "keys and values"]
    assert sum(parts.values()) == result["capacity_bytes"]
    assert parts["keys and values"] == result["free_bytes"] < result["kv_bytes"]
    few = cards.memory_parts(of({"quantizer": "fp8"}, batch=2, input=8192).current.result)
    assert few["keys and values"] == 2 * 9216 * 131072
    assert few["free"] == result["free_bytes"] - 2 * 9216 * 131072
    bar = cards.memory_bar(result, "fp8")
    assert "Memory of a device, fp8: 150.1 of 150.1 GB" in bar
    assert '150.1 GB: weights 65.5 GB, reserved 16.2 GB, keys and values 68.4 GB"' in bar


def test_blocks_that_a_request_takes_whole_are_not_free():
    """A request of 2,048 tokens with four drafted ones has 21 blocks of vLLM's 1,354: 64 fit, by their bytes 259."""
    drafts = '{"method": "mtp", "num_speculative_tokens": 4}'
    result = of({"model": "qwen3.6-27b", "speculative_config": drafts}).current.result
    parts = cards.memory_parts(result)
    assert result["running_batch"] == 64
    assert "free" not in parts
    assert parts["keys and values"] + parts["rest of their blocks"] == result["free_bytes"]
    half = cards.memory_parts(of({"model": "qwen3.6-27b", "speculative_config": drafts}, batch=32).current.result)
    assert half["free"] == pytest.approx(result["free_bytes"] / 2)


def test_a_page_asks_for_what_the_stack_and_the_model_have():
    def asked(**values):
        keys = {field.key for field in common_fields.DESIGN}
        app = opened("answer", **values)
        return keys & {one.key for one in (*app.number_input, *app.selectbox, *app.text_input)}

    plain = asked()
    assert {"speculative_config", "cuda_graph_max_bs", "stack"} <= plain
    assert not {"max_total_tokens", "n_gpu_layers", "state_type"} & plain
    both = {"max_total_tokens", "swa_full_tokens_ratio"}
    assert asked(stack="sglang") - plain == both
    assert asked(stack="llama.cpp") - plain == {*both, "n_gpu_layers", "n_cpu_moe"}
    assert asked(model="qwen3.6-27b") - plain == {"state_type"}
    # a value that was given can be taken back
    assert "n_gpu_layers" in asked(n_gpu_layers="8")


def test_weights_of_another_format_draw_the_page():
    """The address of the report: Find sets `weights` where it is given Qwen/Qwen3-32B-FP8."""
    app = opened("answer", designs="-~~weights.fp8")
    assert not app.exception
    assert wrong(app) == []
    assert "sure to be more" in said(app)


def test_a_defect_of_a_row_is_a_sentence_in_it(monkeypatch, caplog):
    monkeypatch.setattr(row_of, "notes", lambda row: {}["linear_s"])
    app = opened("answer")
    assert not app.exception
    assert wrong(app) == ["A defect of dse, please report it: KeyError: 'linear_s'"]
    assert "Traceback" in caplog.text
    caplog.clear()


def test_a_page_that_fails_says_so_between_its_question_and_its_designs(monkeypatch, caplog):
    monkeypatch.setattr(answer, "verdict", lambda bench: {}["model"])
    app = opened("answer")
    assert not app.exception
    assert wrong(app) == ["A defect of dse, please report it: KeyError: 'model'"]
    assert app.selectbox(key="device").value == "h200"
    assert app.selectbox(key="quantizer").value == "fp16"
    caplog.clear()


def test_a_defect_of_an_answer_is_a_sentence_in_its_row(monkeypatch, caplog):
    monkeypatch.setattr(request, "answer", lambda asked, load: {}["kv_bytes"])
    bench.cached_answer.clear()
    app = opened("answer")
    defect = "A defect of dse, please report it: KeyError: 'kv_bytes'"
    assert {f"{name}: {defect}" for name in ("fp16", "fp8", "int4_per_token_head")} < set(wrong(app))
    assert app.selectbox(key="device").value == "h200"
    caplog.clear()


def test_a_row_has_the_command_that_starts_its_design_and_what_it_lacks():
    one = "device.h100~model.qwen3-32b~quantizer."
    text = f"{one}fp8~~{one}fp8~weights.int4~~{one}kivi"
    for at, begins in (("1", "vllm serve Qwen/Qwen3-32B --max-model-len 2048"), ("2", "vllm serve"), ("3", "")):
        app = opened("answer", batch="16", designs=text, at=at)
        lines = [code.value for code in app.code if code.value.startswith("vllm serve")]
        assert bool(lines) == bool(begins)  # vLLM runs no KIVI
        assert not lines or lines[0].startswith(begins)
        assert any("int4 weights: name a checkpoint" in plain(text.value) for text in app.caption) == (at == "2")
