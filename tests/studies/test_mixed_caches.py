"""Plans by layer through the language model's streaming caches: each side is what its own method makes of it."""

import json

import numpy as np
import pytest

import kernels_ref
from dse import quantizers
from dse.core.errors import InputError
from dse.transformer import caches as kv
from factories import assert_one_line, plan_file
from studies import perplexity
from studies import run as lm_run
from studies.forward import forward

# sinks are kept from the third layer on: chosen by keys after RoPE, though KVQuant's are packed before it
PAIRS = [
    ("int8", "nqkv:block=16"),
    ("sinkq:bits=4,group=16,residual=8", "kvquant"),
    ("kvquant", "sinkq:bits=4,group=16,residual=8"),
]
MORE = [("tender", "fp16"), ("oaken", "kivi:bits=4,group=16,residual=16"), ("kivi:bits=4,group=16,residual=16", "bf16")]


def filled(spec, model, known, tokens):
    found = kv.caches(spec, model, known)
    perplexity.Prompted(model, tokens).fill(found)
    return found


@pytest.mark.parametrize("pairs", [PAIRS, MORE])
def test_each_side_is_what_its_method_gives_alone(model, known, tokens, tmp_path, pairs):
    plan = quantizers.parse("plan:" + plan_file(tmp_path, pairs))
    mixed = filled(plan, model, known, tokens[:, :60])
    for layer, names in enumerate(pairs):
        for side, name in enumerate(names):
            alone = filled(quantizers.parse(name), model, known, tokens[:, :60])[layer]
            assert np.array_equal(mixed[layer].seen()[side], alone.seen()[side])
        assert mixed[layer].before_rope == (names[0] == "kvquant")


def test_a_plan_of_one_method_is_that_method(model, known, tokens, tmp_path):
    # to the last bit: the same caches serve
    name = "kivi:bits=2,group=16,residual=16"
    plan = quantizers.parse("plan:" + plan_file(tmp_path, [(name, name)] * 3))
    found = [filled(spec, model, known, tokens) for spec in (plan, quantizers.parse(name))]
    assert kv.stored_bits(found[0]) == kv.stored_bits(found[1])
    a, b = (forward(model, tokens[:, -1:], caches, first=80) for caches in found)
    assert np.array_equal(a, b)


def test_bits_are_those_of_the_sides(model, known, tokens, tmp_path):
    # 64 tokens, 2 heads of 16 channels: INT8 8 + 32 / 32 = 9 bits; NF4 in blocks of 16 4 + 16 / 16 = 5;
    # KIVI's 2-bit keys, all packed, 2 + 2 * 16 / 16 = 4; FP16 16
    pairs = [("int8", "nqkv:block=16"), ("kivi:bits=2,group=16,residual=16", "fp16"), ("fp16", "int8")]
    found = filled(quantizers.parse("plan:" + plan_file(tmp_path, pairs)), model, known, tokens[:, :64])
    assert [cache.stored_bits for cache in found] == [(9 + 5) / 2, (4 + 16) / 2, (16 + 9) / 2]


def test_sinks_beside_another_method_keep_their_positions(model, known, tokens, tmp_path):
    name = "sinkq:bits=4,group=16,residual=8"
    pairs = [("fp16", "fp16"), ("fp16", "fp16"), ("int8", name)]
    found = filled(quantizers.parse("plan:" + plan_file(tmp_path, pairs)), model, known, tokens[:, :64])[2]
    alone = filled(quantizers.parse(name), model, known, tokens[:, :64])[2].cache
    assert isinstance(alone, kernels_ref.SinkQCache)
    assert alone.buffers["key_positions"].size
    n_bytes = alone.packed("value")[0].stored_bytes + alone.buffers["key_positions"].nbytes
    assert found.stored_bits == (9 + 8 * n_bytes / (3 * 64 * 32)) / 2


def test_the_command_scores_a_plan_and_sees_that_its_file_has_changed(run, path, tmp_path, monkeypatch):
    monkeypatch.setattr(lm_run.run, "__defaults__", ((2, 24, 6, 4),))
    plan = plan_file(tmp_path, PAIRS)
    words = (
        "measure",
        "--perplexity",
        "--models",
        path,
        "--methods",
        f"plan:{plan}",
        "--json",
        "--out",
        tmp_path / "o",
    )
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    (before,) = json.loads(out)
    assert before["method"] == f"plan:{plan}"
    plan_file(tmp_path, [("int8", "int8")] * 3)
    (after,) = json.loads(run(*words)[1])
    assert after["stored_bits"] == 9 != before["stored_bits"]


def test_a_plan_for_another_model_is_one_line(model, known, tmp_path):
    plan = quantizers.parse("plan:" + plan_file(tmp_path, [("int8", "fp16")] * 2))
    with pytest.raises(InputError, match="has 2 layers, toy has 3"):
        kv.caches(plan, model, known)


def test_a_plan_is_not_measured_as_one_method(run, path, tmp_path):
    plan = plan_file(tmp_path, PAIRS)
    words = ("measure", f"lm:{path}", "--methods", f"plan:{plan}", "--out", tmp_path / "o")
    assert_one_line(run(*words), 2, "a plan is made of methods", "int8, nqkv:block=16", "--perplexity")
    assert not (tmp_path / "o").exists()
