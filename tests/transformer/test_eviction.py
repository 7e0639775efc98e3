"""Token policies in a model: which tokens stay, by hand; attention over them as plain loops have it."""

from contextlib import nullcontext

import numpy as np
import pytest

import model_files
from dse.core.errors import InputError
from dse.specs import tokens as token_policies
from dse.transformer import eviction, forward, in_loop, load
from dse.transformer.forward import LayerHeads

#: attention that four queries pay to the tokens before them, one head
DRAWN = np.array([[[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.6, 0.2, 0], [0.1, 0.5, 0.1, 0.3]]])
MODEL = load.load(str(model_files.MODELS / "llama3"))
TOKENS = np.load(model_files.MODELS / "llama3" / "reference.npz")["tokens"]


def silent(items, label, length):
    return nullcontext(items)


#: keys and values are in FP16
NEAR = {"rtol": 0, "atol": 4e-3}


def heads_of(n, seed=1):
    of, rng = MODEL.architecture, np.random.default_rng(seed)
    return LayerHeads(
        *(rng.normal(size=(k, n, of.head_dim)).astype(np.float32) for k in (of.n_q_heads, of.n_kv_heads, of.n_kv_heads))
    )


def test_h2o_keeps_the_greatest_sums_and_the_last():
    rule = eviction.HeavyHitters(n_heavy=1, n_recent=1, rolls=True)
    # sums over the queries: 1.8, 1.6, 0.3, 0.3
    assert rule.after_prompt(DRAWN).tolist() == [[0, 3]]
    # 1.8 + 0.1, 0.3 + 1.7, new 0.2: the new one is recent, token 3 passes token 0
    assert rule.after_token(np.array([[0.1, 1.7, 0.2]])).tolist() == [[1, 2]]


def test_h2o_that_evicts_the_prompt_alone_keeps_what_is_generated():
    rule = eviction.HeavyHitters(n_heavy=1, n_recent=1, rolls=False)
    rule.after_prompt(DRAWN)
    assert rule.after_token(np.array([[0.1, 0.2, 0.7]])) is None


def test_scissorhands_counts_queries_that_paid_less_than_an_even_share(monkeypatch):
    monkeypatch.setattr(eviction, "RECENT_TOKENS", 1)
    rule = eviction.LowCounts(budget=4)
    assert rule.after_prompt(DRAWN) is None
    # below 1, 1/2, 1/3, 1/4 by query: token 0 twice, token 2 twice; below 1/5: tokens 0, 2, 3; so 3, 0, 3, 1, 0 times.
    # Two of five stay: half of the budget leaves at once
    assert rule.after_token(np.array([[0.1, 0.4, 0.1, 0.1, 0.3]])).tolist() == [[1, 4]]


def test_scissorhands_forgets_queries_before_its_history(monkeypatch):
    monkeypatch.setattr(eviction, "RECENT_TOKENS", 0)
    monkeypatch.setattr(eviction, "HISTORY_QUERIES", 1)
    rule = eviction.LowCounts(budget=2)
    rule.after_prompt(np.array([[[0.9, 0.1]]]))
    # the one query that counts: tokens 1 and 2 are not below 1/3
    assert rule.after_token(np.array([[0.1, 0.45, 0.45]])).tolist() == [[1]]


def test_snapkv_pools_votes_and_keeps_its_window():
    drawn = np.zeros((1, 32, 50))
    drawn[..., 6] = 0.5  # pooled: 3 to 9
    drawn[..., 8] = 0.1
    kept = eviction.ObservedVotes(budget=37).after_prompt(drawn)
    # 5 of the 18 before the window stay: 6 and 8 have votes of their own, then the earliest of their neighbors
    assert kept.tolist() == [[3, 4, 5, 6, 8, *range(18, 50)]]


@pytest.mark.parametrize(
    "policy", ["streaming:sinks=2,window=60", "window:tokens=60", "full", "scissorhands:budget=40"]
)
def test_a_policy_that_keeps_all_is_full_attention(policy):
    of, heads, bits = MODEL.architecture, heads_of(40), []
    rule = token_policies.parse(policy)
    mixed = eviction.attention(of, rule, 20, bits)(0, heads)
    np.testing.assert_allclose(mixed, forward.exact(of)(0, heads), **NEAR)


def naive_h2o(heads, of, n_prompt, n_heavy, n_recent):
    """Mixed values [query heads, tokens, head_dim], a head, a token and a score at a time."""
    rotation = of.rotations[0]
    query, key = forward.turned(heads.query, rotation), forward.turned(heads.key, rotation)
    n_q, n, d = query.shape
    n_group, mixed = n_q // len(key), np.zeros((n_q, n, d))
    for j in range(len(key)):
        held, sums = [], {}
        for t in range(n):
            held.append(t)
            sums[t] = 0.0
            for i in range(j * n_group, (j + 1) * n_group):
                e = np.array([np.exp(float(query[i, t] @ key[j, s]) * of.query_scale) for s in held])
                for s, share in zip(held, e / e.sum(), strict=True):
                    mixed[i, t] += share * heads.value[j, s]
                    sums[s] += share
            if t >= n_prompt - 1:
                old = sorted(held[:-n_recent], key=lambda s: -sums[s])[:n_heavy]
                held = sorted([*old, *held[-n_recent:]])
    return mixed


def test_h2o_attends_as_a_plain_loop_does():
    of, heads = MODEL.architecture, heads_of(30)
    rule = eviction.HeavyHitters(3, 2, rolls=True)
    mixed, most = eviction.evicted(heads, of, of.rotations[0], rule, 12)
    assert most == 5
    np.testing.assert_allclose(mixed, naive_h2o(heads, of, 12, 3, 2), **NEAR)


def test_streaming_turns_keys_by_their_place_in_the_cache():
    of, heads = MODEL.architecture, heads_of(20)
    mixed = eviction.streamed(heads, of, of.rotations[0], sinks=2, window=3)
    # the last query holds tokens 0, 1, 17, 18, 19 at positions 0 to 4, itself at 4: a text of these five alone
    five = LayerHeads(*(x[:, [0, 1, 17, 18, 19]] for x in (heads.query, heads.key, heads.value)))
    np.testing.assert_allclose(mixed[:, -1], forward.exact(of)(0, five)[:, -1], **NEAR)


def test_scores_are_of_what_comes_behind_the_prompt():
    n_prompt = len(TOKENS) // 2
    methods = ("full", "snapkv:budget=4", "fp16")
    scoring = in_loop.Scoring(methods, prompt_tokens=n_prompt)
    exact, full, snapkv, fp16 = in_loop.scores(MODEL, TOKENS, TOKENS, scoring, silent)
    assert {score.n_scored_tokens for score in (exact, full, snapkv, fp16)} == {len(TOKENS) - n_prompt - 1}
    assert full.perplexity == pytest.approx(exact.perplexity, rel=1e-4)
    assert full.kl_nats == pytest.approx(0, abs=1e-4)
    assert snapkv.kl_nats > 1e-4
    # 4 of the prompt, and all but the last generated before it was read
    assert snapkv.stored_bits == pytest.approx(16 * (4 + len(TOKENS) - n_prompt) / len(TOKENS))


@pytest.mark.parametrize(
    ("scoring", "part"),
    [
        (in_loop.Scoring(["sparse"]), "is not run in a model: known: full, window"),
        (in_loop.Scoring(["h2o"], sides=("key",)), "takes neither sides nor layers"),
    ],
)
def test_what_cannot_be_run_is_one_line(scoring, part):
    with pytest.raises(InputError, match=part):
        in_loop.checked(MODEL, scoring)
