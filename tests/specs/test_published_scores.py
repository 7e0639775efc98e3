"""Published scores: losses by hand from rows of the table, how they are pooled, and which rows count."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse import quantizers
from dse.core.errors import InputError
from dse.specs import published_scores
from dse.specs.published_scores import Score, losses, pooled, rows

BY_ID = {row["id"]: row for row in rows()}
#: how names of formats of the table begin that no quantizer here stores
WITHOUT = (
    *(
        "quanto",
        "logquant",
        "exl2",
        "turbo",
        "oscar",
        "quarot",
        "flexgen",
        "nf2",
        "nf3",
        "nf4",
        "polarquant",
        "saw_int4",
    ),
    *(
        "kvarn",
        "inquant",
        "zipcache",
        "rotatekv",
        "ott",
        "rotorquant",
        "kitty",
        "kivi*",
        "iq4_nl ",
        "q3_K",
        "q2_K",
        "q1_0",
    ),
    *("int2", "int3", "int4", "int8", "kivi:bits=3 (", "kivi:bits=5 (", "kivi:bits=2,sink", "per_token"),
    *("q8_0 ", "q4_0 ", "kvquant:", "atom:", "turboquant:", "turboquant_3bit (", "xquant:", "xquant-cl:"),
    *("mixkvq:", "kvtuner:", "pm-kvq", "kivi (4x)", "(MLA)"),
)


def score(loss, error=None, source="a"):
    return Score(model="m", format="fp8", family="short", source=source, loss=loss, error=error)


def one(found, family):
    return next(loss for loss in found if loss.family == family)


def test_a_row_by_hand():
    # Qwen3-30B-A3B, MRCR of 256K, AUC: 45.8 % with 16 bits, 31.2 with turboquant_3bit_nc (vLLM's post of May 2026)
    loss = one(losses("turboquant_3bit_nc", "qwen3-30b-a3b"), "long_context")
    assert (loss.of, loss.n_rows, loss.n_sources) == ("qwen3-30b-a3b", 1, 1)
    assert loss.loss == pytest.approx(1 - 31.2 / 45.8)
    assert loss.within is None
    assert loss.verdict.startswith("not known")


def test_printed_errors_and_samples_by_hand():
    row = next(row for row in rows() if row["stderr"] == "0.0132" and row["baseline_stderr"] == "0.0131")
    assert published_scores._error(row) == pytest.approx(math.hypot(0.0132, 0.0131) / float(row["baseline_score"]))
    # of 198 questions 60 % right with 16 bits and 50 % without
    drawn = {**row, "metric": "accuracy_percent", "n_samples": "198 questions", "stderr": "", "score": "50"}
    variance = (0.5 * 0.5 + 0.6 * 0.4) / 198
    assert published_scores._error({**drawn, "baseline_score": "60"}) == pytest.approx(math.sqrt(variance) / 0.6)
    assert published_scores._error({**drawn, "n_samples": "5 repetitions", "baseline_score": "60"}) is None


def test_rows_that_must_not_be_set_against_16_bits_do_not_count():
    # with the rows of buggy kernels FP8's worst long context would be at 0.143 of 16 bits, without them at 0.930
    fp8 = [s.loss for s in published_scores.published() if s.format == "fp8" and s.family == "long_context"]
    assert max(fp8) < 0.15
    bugs = [row for row in rows() if row["comparability"] == "kernel bug"]
    assert bugs
    assert (
        len(published_scores.published())
        < sum(row["comparability"] in published_scores.COMPARABLE for row in rows())
        < len(rows())
    )


def test_sources_are_weighed_not_rows():
    loss, within = pooled([score(0.1), score(0.1), score(0.1), score(0.3, source="b")])
    assert loss == pytest.approx(0.2)
    assert within == pytest.approx(12.71 * 0.1)  # two means, 0.1 and 0.3: deviation 0.1414, over the root of two
    assert pooled([score(0.1, 0.03), score(0.3, 0.04)]) == pytest.approx((0.2, 1.96 * 0.05 / 2))
    assert pooled([score(0.1), score(0.3)]) == pytest.approx((0.2, None))


LOSSES = st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1), st.sampled_from("abc")), min_size=1, max_size=8)


@given(LOSSES)
def test_a_mean_lies_among_its_rows_and_its_interval_is_no_less_than_nothing(drawn):
    found = [score(loss, error, source) for loss, error, source in drawn]
    loss, within = pooled(found)
    assert min(s.loss for s in found) - 1e-12 <= loss <= max(s.loss for s in found) + 1e-12
    assert within is None or within >= 0


def test_hybrid_models_say_nothing_of_others():
    found = losses("fp8", "llama3.1-8b")
    assert {loss.of for loss in found} <= {"llama3.1-8b", "llama3.1 models", "other models"}
    assert not any(
        published_scores.HYBRID.search(published_scores.plain(model)) for loss in found for model in loss.models
    )


def test_models_are_found_as_they_are_written():
    assert published_scores.plain("Llama-3.1-8B-Instruct") == "llama3.1-8b-instruct"
    assert published_scores.series("Qwen3-30B-A3B-Instruct-2507") == "qwen3"
    assert one(losses("kivi", "llama3-8b"), "long_context").of in ("llama3-8b", "llama3 models", "other models")
    assert published_scores.is_of(score(0.0), "m")
    assert not published_scores.is_of(score(0.0), "mistral")


def test_every_format_is_a_quantizer_or_known_not_to_be_one():
    for name in {side for row in rows() for side in (row["kv_keys"], row["kv_values"])}:
        try:
            quantizers.parse(published_scores.name_of(name))
        except InputError:
            known = [
                *WITHOUT,
                "int4",
                "int8",
                "fp8",
                "fp4",
                "q8_0",
                "q4_0",
                "q5",
                "kvquant",
                "atom",
                "turboquant",
                "xquant",
            ]
            assert name.startswith(tuple(known)), name


def test_rows_of_llama_cpps_types_tell_whether_channels_were_rotated():
    """Pull request 21551, Llama-2-7b: 6.4648 and 6.3243 for 6.3123 of 16 bits."""
    found = {name: one(losses(name, "llama2-7b"), "perplexity").loss for name in ("q4_0:rotate=off", "q4_0")}
    assert found == pytest.approx({"q4_0:rotate=off": 6.4648 / 6.3123 - 1, "q4_0": 6.3243 / 6.3123 - 1})
    assert published_scores.format_of("q8_0 +rot", "turbo4") == "K q8_0 / V turbo4"
    assert published_scores.format_of("q8_0", "f16") == "K q8_0:rotate=off / V fp16"


def test_the_command(run):
    code, out, _ = run("scores", "--quantizer", "fp8_e4m3", "--model", "llama3.1-8b")
    assert code == 0
    assert out.startswith("tasks")
    assert "llama3.1-8b" in out
    assert "fp8 " in run("scores")[1]
    assert run("scores", "--quantizer", "kivi", "--model", "qwen3.5-35b-a3b")[1].startswith("kivi: no score of qwen3.5")
    code, _, err = run("scores", "--quantizer", "int5")
    assert code == 2
    assert err == "error: quantizer = 'int5': no published score: did you mean int4, int8?\n"
    assert "unknown model 'lama3.1-8b'" in run("scores", "--quantizer", "fp8", "--model", "lama3.1-8b")[2]
    of_model = run("scores", "--model", "qwen3-30b-a3b")[1].splitlines()
    assert of_model[1].split()[:2] == ["fp8", "10"]
    assert of_model[-1] == "What one costs: dse scores --quantizers fp8 --model qwen3-30b-a3b"
    assert run("scores", "--model", "opt-30b")[2].startswith("error: model = 'opt-30b': nobody published a score")
    both = run("scores", "--quantizers", "kvquant:bits=2,outliers=1%,fp8", "--model", "llama3.1-8b")[1].split("\n\n")
    assert [part.split("\n")[0] for part in both] == ["kvquant:bits=2,outliers=1%", "fp8"]
    assert both[1].strip() == "fp8\n" + out.strip()


def test_rows_of_few_right_answers_weigh_little():
    """By hand: an error of 12 % is thrice the usual 4 %, so that the row counts a ninth."""
    loss, within = pooled([score(0.0), score(-0.3, 0.12)])
    assert loss == pytest.approx(-0.3 / 9 / (1 + 1 / 9))
    assert within is None
    # two sources, 1 and 1/9 of the weight: mean 0.01, deviations 0.01 and 0.09
    loss, within = pooled([score(0.0), score(0.1, 0.12, source="b")])
    assert loss == pytest.approx(0.01)
    assert within == pytest.approx(12.71 * math.sqrt((0.01**2 + 0.09**2 / 9) / (10 / 9)))
    # FP8's long context, of which one row of a small test is 25 % better than 16 bits
    row = next(one for one in published_scores.published() if one.format == "fp8" and one.loss < -0.2)
    assert row.error > 0.1
    others = [one for one in published_scores.published() if (one.format, one.family) == ("fp8", row.family)]
    assert pooled(others)[0] > -0.001
    assert pooled([Score(**{**vars(one), "error": None}) for one in others])[0] < -0.004


def test_a_rise_of_perplexity_is_no_drop_of_scores(run):
    found = {one["family"]: one for one in json.loads(run("scores", "--quantizer", "fp8", "--json")[1])}
    assert found["short"]["score_drop_frac"] is not None
    assert found["perplexity"]["score_drop_frac"] is None
    assert found["perplexity"]["perplexity_rise_frac"] is not None
    assert found["kld"]["divergence_nats"] is not None
    head = run("scores", "--quantizer", "fp8")[1].splitlines()[0].split("  ")
    assert {"accuracy loss", "rise of perplexity", "divergence"} <= {*map(str.strip, head)}


def drop_of(monkeypatch, *scores):
    monkeypatch.setattr(published_scores, "published", lambda: scores)
    return published_scores.drop.__wrapped__("fp8", "qwen3-8b")


def test_the_largest_drop_and_between_what_it_lies(monkeypatch):
    def of(family, loss, error, model="Qwen3-8B"):
        return Score(model=model, format="fp8", family=family, source="a", loss=loss, error=error)

    short, long = of("short", 0.001, 0.002), of("long_context", 0.012, 0.004)
    found = drop_of(monkeypatch, short, long)
    assert (found.loss.family, found.loss.of, found.loss.loss) == ("long_context", "qwen3-8b", 0.012)
    assert (found.low, found.high) == pytest.approx((0.012 - 1.96 * 0.004, 0.012 + 1.96 * 0.004))
    # a model whose own scores tell a drop is not judged by the worst family of others
    others = of("long_context", 0.05, 0.001, "Qwen3-32B")
    assert drop_of(monkeypatch, short, others).loss == drop_of(monkeypatch, short).loss
    # the model's own mean goes before its kin's, however wide its interval
    noisy, kin = of("long_context", 0.03, 0.02), of("long_context", 0.02, 0.001, "Qwen3-32B")
    found = drop_of(monkeypatch, short, noisy, kin)
    assert (found.loss.of, found.loss.loss) == ("qwen3-8b", 0.03)
    assert (found.low, found.high) == pytest.approx((0.001 - 1.96 * 0.002, 0.03 + 1.96 * 0.02))
    # a row without an interval counts only where no other family has one
    alone = of("long_generation", 0.3, None)
    assert drop_of(monkeypatch, short, alone).loss.loss == 0.001
    only = drop_of(monkeypatch, alone)
    assert (only.loss.loss, only.low, only.high) == (0.3, None, None)
    # perplexities, divergences and pictures are no scores
    assert drop_of(monkeypatch, of("perplexity", 0.2, 0.01), of("multimodal", 0.2, 0.01), of("kld", 0.5, 0.1)) is None


def test_a_models_own_mean_goes_first():
    """vLLM's and TensorRT-LLM's long contexts of Qwen3-30B-A3B under FP8: 3.7 % with an interval of 7."""
    found = published_scores.drop("fp8", "qwen3-30b-a3b")
    assert (found.loss.of, found.loss.family) == ("qwen3-30b-a3b", "long_context")
    assert found.loss.loss == pytest.approx(0.0372, abs=5e-4)
    assert found.loss.within == pytest.approx(0.07, abs=1e-3)
