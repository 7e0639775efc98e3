"""The language model: forward pass against torch's and a naive one, KV caches, perplexity, and `--perplexity`."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import numpy_torch
from dse import quantizers
from dse.core.errors import InputError
from dse.measure import errors as measure_errors
from dse.transformer import caches as kv
from dse.transformer.forward import nats, rotate
from factories import TOY_SIZES, assert_one_line, toy_weights, write_weights
from studies import kv_dump, perplexity, text, weights
from studies import run as lm_run
from studies.calibrate import calibrate
from studies.forward import attend, forward, rotations


def exact(model):
    return [kv.FloatCache() for _ in model.layers]


def naive_logits(arrays, sizes, tokens):
    """One sequence in float64, loops over heads and positions."""
    w = {name: x.astype(np.float64) for name, x in arrays.items()}
    d, half = sizes["head_dim"], sizes["head_dim"] // 2

    def norm(v, weight):
        return v / np.sqrt((v * v).mean() + 1e-5) * weight

    def turn(v, position):
        out = v.copy()
        for i in range(half):
            angle = position * 10000.0 ** (-2 * i / d)
            out[i] = v[i] * np.cos(angle) - v[i + half] * np.sin(angle)
            out[i + half] = v[i + half] * np.cos(angle) + v[i] * np.sin(angle)
        return out

    x = [w["embedding"][t] for t in tokens]
    group = sizes["n_q_heads"] // sizes["n_kv_heads"]
    for layer in range(sizes["n_layers"]):
        p = f"layers.{layer}."
        h = [norm(v, w[p + "attention_norm"]) for v in x]
        q, k, v = ([w[p + name + ".weight"] @ one for one in h] for name in "qkv")
        for t in range(len(tokens)):
            heads = []
            for head in range(sizes["n_q_heads"]):
                at = slice(head // group * d, (head // group + 1) * d)
                query = turn(q[t][head * d : (head + 1) * d], t)
                scores = np.array([query @ turn(k[s][at], s) for s in range(t + 1)]) / np.sqrt(d)
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                heads.append(sum(share * v[s][at] for s, share in enumerate(shares)))
            x[t] = x[t] + w[p + "o.weight"] @ np.concatenate(heads)
            m = norm(x[t], w[p + "mlp_norm"])
            gate = w[p + "gate.weight"] @ m
            x[t] = x[t] + w[p + "down.weight"] @ (gate / (1 + np.exp(-gate)) * (w[p + "up.weight"] @ m))
    return np.array([w["embedding"] @ norm(v, w["final_norm"]) for v in x])


def test_forward_is_the_naive_network(model, tokens):
    found = forward(model, tokens[:1, :20], exact(model))[0]
    want = naive_logits(toy_weights(), TOY_SIZES, tokens[0, :20])
    assert np.abs(found - want).max() < 1e-5 * np.abs(want).max()


def logits_as_trained(torch, tokens):
    """Logits of studies/training/model.py, run with `torch`."""
    code = weights.DATA.parent / "training" / "model.py"
    found = {"__name__": "training_model"}
    exec(compile(code.read_text(), code, "exec"), found)
    network = found["Transformer"](TOY_SIZES)
    network.load_state_dict({name: torch.from_numpy(x) for name, x in toy_weights().items()})
    with torch.no_grad():
        return network(torch.from_numpy(tokens)).numpy()


@pytest.mark.parametrize("positions", [80, 200])
def test_forward_is_that_of_training(model, positions, monkeypatch):
    """By the stand-in for torch; 200 positions are two blocks of training's attention."""
    sequences = np.random.default_rng(1).integers(0, 256, (2, positions))
    for name in ("torch", "torch.nn", "torch.nn.functional"):
        monkeypatch.setitem(sys.modules, name, getattr(numpy_torch, name.rpartition(".")[2], numpy_torch))
    want = logits_as_trained(numpy_torch, sequences)
    found = forward(model, sequences, exact(model))
    assert found.shape == want.shape
    assert np.abs(found - want).max() < 1e-5 * np.abs(want).max()


if find_spec("torch"):  # 200 MB, which no other test needs: with it, the stand-in is held to it

    def test_forward_is_torchs(model, tokens):
        import torch

        found, want = forward(model, tokens, exact(model)), logits_as_trained(torch, tokens)
        assert np.abs(found - want).max() < 1e-5 * np.abs(want).max()


def test_stored_activations(model, tokens):
    # logits of studies/training/model.py in torch 2.13.0 (CPU, float32) for these weights: (sequence, position, token)
    found = forward(model, tokens, exact(model))
    at = ((0, 0, 0), (0, 40, 97), (1, 79, 256), (2, 63, 10))
    want = STORED
    assert [float(found[i]) for i in at] == pytest.approx(want, rel=2e-4, abs=2e-4)


STORED = (-1.5223972, -0.6339000, 1.5857673, -2.0606816)


@pytest.mark.parametrize("cut", [1, 17, 79])
def test_a_prompt_and_steps_are_the_whole(model, tokens, cut):
    whole = forward(model, tokens, exact(model))
    found = exact(model)
    parts = [forward(model, tokens[:, :cut], found, own=True)]
    parts += [forward(model, tokens[:, i : i + 1], found, first=i) for i in range(cut, tokens.shape[1])]
    assert np.allclose(np.concatenate(parts, axis=1), whole, rtol=1e-4, atol=1e-4)


def test_keys_before_rope_give_the_same(model, tokens):
    before = exact(model)
    for cache in before:
        cache.before_rope = True
    assert np.allclose(forward(model, tokens, before), forward(model, tokens, exact(model)), rtol=1e-4, atol=1e-4)


def test_rope_is_that_of_measured_dumps(model):
    x = np.random.default_rng(2).normal(size=(2, 7, 16)).astype(np.float32)
    want = measure_errors.rotated(x, np.arange(5, 12), model.rope_theta)
    assert np.allclose(rotate(x, *rotations(model, 5, 7)), want, atol=1e-5)


def test_attention_of_equal_keys_is_the_mean_of_the_past():
    value = np.arange(6, dtype=np.float32).reshape(1, 1, 6, 1) * np.ones(4, np.float32)
    found = attend(np.ones((1, 2, 3, 4), np.float32), np.ones((1, 1, 6, 4), np.float32), value)
    # queries are tokens 3, 4, 5: means of 0..3, 0..4, 0..5
    assert found[0, :, :, 0].tolist() == [[1.5, 2.0, 2.5]] * 2


def test_nats_of_even_logits():
    assert nats(np.zeros((2, 8), np.float32), np.array([0, 3])) == pytest.approx(np.log(8))


def test_fp16_cache_is_no_cache_to_1e_3(model, tokens, known):
    asked = perplexity.Windows(tokens, 40)
    bench = perplexity.PerplexityBench(model, asked, known, 0)
    fp16 = quantizers.parse("fp16")
    score = bench.score(fp16, fp16)
    free = nats(forward(model, tokens[:, :-1], exact(model))[:, 39:], tokens[:, 40:])
    assert score.perplexity == pytest.approx(np.exp(free.mean()), rel=1e-3)
    assert score.prompt_perplexity == pytest.approx(np.exp(free.mean()), rel=1e-3)
    assert (score.stored_bits, score.n_scored_tokens, score.log_ratio_se) == (16, 120, 0)
    assert score.log_ratios == (0.0,) * len(tokens)


@pytest.mark.parametrize(
    "name", ["int8", "fp8", "oaken", "kvquant", "nqkv:block=16", "qserve", "int8:granularity=tensor"]
)
def test_methods_by_token_see_the_same_at_once_and_step_by_step(model, tokens, known, name):
    # a token's own bytes decide what it decodes to, so one pass over a full cache equals token by token
    spec, tokens = quantizers.parse(name), tokens[:1, :20]
    whole = forward(model, tokens, kv.caches(spec, model, known))
    found = kv.caches(spec, model, known)
    steps = [forward(model, tokens[:, i : i + 1], found, first=i) for i in range(tokens.shape[1])]
    # other sums round otherwise, and where that turns a code over its neighbour, a step of the method is seen
    lost = np.abs(whole - forward(model, tokens, exact(model))).mean()
    assert np.abs(np.concatenate(steps, axis=1) - whole).mean() < 0.1 * lost


@pytest.mark.parametrize(
    "name", ["kivi:bits=2,group=16,residual=16", "sinkq:bits=2,group=16,residual=8", "tender", "bf16"]
)
def test_other_caches_hold_what_their_methods_store(model, tokens, known, name):
    spec = quantizers.parse(name)
    found = kv.caches(spec, model, known)
    perplexity.Prompted(model, tokens[:, :64]).fill(found)
    if name.startswith("kivi"):
        # 2-bit codes and 2 * 16 / 16 bits of scale and minimum; all 64 keys packed; 48 values packed, 16 in FP16
        assert kv.stored_bits(found) == pytest.approx((4 + (48 * 4 + 16 * 16) / 64) / 2)
    key, value = found[2].seen()
    assert key.shape == value.shape == (3, 2, 64, 16)
    free = calibrate(model, tokens[:, :64])
    error = np.abs(key.astype(float) - free.key[2]).mean() / np.abs(free.key[2].astype(float)).mean()
    assert 0 < error < 0.4


def test_agreement_counts_places_and_the_common_start():
    # first row: 3 of 4 equal, 1 before the first other; second: all
    assert perplexity.agreement(np.array([[1, 2, 3, 4], [5, 6, 7, 8]]), np.array([[1, 9, 3, 4], [5, 6, 7, 8]])) == (
        7 / 8,
        2.5,
    )


def test_greedy_takes_the_likeliest(model, tokens):
    prompted = perplexity.Prompted(model, tokens[:, :10])
    found = exact(model)
    prompted.fill(found)
    chosen = perplexity.greedy(prompted, found, 4)
    fed = np.concatenate((tokens[:, :10], chosen), axis=1)
    assert np.array_equal(forward(model, fed, exact(model))[:, 9:13, :256].argmax(axis=-1), chosen)


def test_held_out_text_is_the_list_that_ships():
    import csv
    import hashlib

    listed = (weights.DATA.parent / "training" / "files.csv").read_text().splitlines()
    rows = [row for row in csv.DictReader(listed) if row["part"] == "held_out"]
    assert {row["path"] for row in rows} == {f"{name}.py" for name in (*text.CALIBRATION, *text.SCORED)}
    folder = weights.DATA / "held_out"
    for row in rows:
        assert hashlib.sha256((folder / f"{row['path']}.txt").read_bytes()).hexdigest() == row["sha256"]
    assert not set(text.CALIBRATION) & set(text.SCORED)


def test_command_gives_rows_and_goes_on(run, path, tmp_path, monkeypatch):
    monkeypatch.setattr(lm_run.run, "__defaults__", ((2, 24, 6, 4),))
    words = (
        "measure",
        "--perplexity",
        "--models",
        path,
        "--methods",
        "int8,kivi:bits=2,group=16,residual=16",
        "--json",
    )
    code, out, err = run(*words, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert [(row["model"], row["method"]) for row in rows] == [("toy", "int8"), ("toy", "kivi:group=16,residual=16")]
    # INT8 per token: 8 bits and an FP32 scale over 2 * 16 channels
    assert rows[0]["stored_bits"] == 9
    assert all(row["perplexity"] > 1 and row["n_scored_tokens"] == 12 for row in rows)
    monkeypatch.setattr(perplexity.PerplexityBench, "score", None)  # nothing is scored again
    assert run(*words, "--out", tmp_path / "out")[1] == out
    code, shown, _ = run(*words[:-1], "--out", tmp_path / "out")
    assert "perplexity" in shown


def test_the_models_own_keys_are_a_dump(run, path, tmp_path):
    code, out, err = run("measure", f"lm:{path}", "--check", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [found[name] for name in ("n_layers", "n_query_layers", "batch", "n_heads", "n_tokens", "head_dim")] == [
        3,
        3,
        4,
        2,
        512,
        16,
    ]
    assert (found["rope"], found["model"], found["synthetic"]) == ("after", "dse toy", False)
    a, b = (kv_dump.write(f"lm:{path}", tmp_path, 1, 20).read_bytes() for _ in range(2))
    assert a == b
    with np.load(tmp_path / "lm_toy.npz") as dump:
        assert dump["layer2.query"].shape == (1, 4, 20, 16)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("measure",), ("SOURCE is missing",)),
        (("measure", "--models", "mha", "x.npz"), ("models", "has no effect")),
        (("measure", "x.npz", "--perplexity"), ("source", "has no effect")),
        (("measure", "--perplexity", "--seed", "3"), ("seed", "has no effect")),
        (("measure", "lm:llama"), ("model", "mha")),
        (("measure", "--perplexity", "--models", "llama"), ("model", "mha")),
        (("measure", "--perplexity", "--methods", "nonsense"), ("unknown quantizer",)),
    ],
)
def test_bad_words(run, words, parts):
    assert_one_line(run(*words), 2, *parts)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda x: x.pop("layers.1.o.weight"), "is missing"),
        (lambda x: x.update(spare=np.zeros(3, np.float32)), "is not of a model"),
        (lambda x: x.update(embedding=np.zeros((257, 31), np.float32)), "must be [257, 32]"),
        (lambda x: x.update(final_norm=np.full(32, np.nan, np.float32)), "NaN"),
    ],
)
def test_bad_weights(tmp_path, change, problem):
    arrays = toy_weights()
    change(arrays)
    with pytest.raises(InputError, match=problem.replace("[", r"\[")):
        weights.load(write_weights(tmp_path / "bad.safetensors", arrays))


@pytest.mark.parametrize("change", [{"n_layers": "0"}, {"n_kv_heads": "3"}, {"rope_theta": "nan"}, {"head_dim": "1e9"}])
def test_bad_metadata(tmp_path, change):
    with pytest.raises(InputError, match="in the metadata"):
        weights.load(write_weights(tmp_path / "bad.safetensors", toy_weights(), **change))
