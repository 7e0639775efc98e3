"""Hits by KV format: agents by hand and drawn, the loop by Little's law, and where fewer bits bring none."""

import json

import numpy as np
import pytest

import dse
from dse.core.errors import InputError, LimitError
from dse.questions.hits import KNEE_SHARE
from dse.serving.agents import Agents, requests_of_agents
from dse.serving.stack_distances import hits

OF = {"device": "h200", "model": "qwen3-32b", "shared": 6000, "growth": 1200}


def test_agents_are_drawn_as_they_are_asked_for():
    """Contexts grow by 100 a turn from 1,000 shared, prompts are the answer of 30 shorter; 7 turns alike in number."""
    requests, first = requests_of_agents(Agents(5, 7, 100, 2.0, 1000, 30), answer_s=0.5)
    assert sorted(set(requests.input_tokens.tolist())) == [1000 + 100 * turn - 30 for turn in range(1, 8)]
    assert (np.diff(requests.arrival_s) >= 0).all()
    counted = requests.input_tokens[first:]
    assert len(counted) > 3000
    assert counted.mean() == pytest.approx(1000 + 100 * 4 - 30, rel=0.01)
    # five at a time, a turn each 0.5 + 2 s in the mean
    assert len(requests.arrival_s) / requests.arrival_s[-1] == pytest.approx(5 / 2.5, rel=0.05)
    path = slice(requests.blocks.first[-2], requests.blocks.first[-1])
    assert requests.blocks.ids[path][0] == -1
    assert requests.blocks.end_tokens[path][0] == 1000
    assert requests.blocks.end_tokens[path][-1] == requests.input_tokens[-1] + 30


def test_what_a_cache_without_limit_finds_of_agents_by_hand():
    """Of turn t of T all before it is found, answers included; of the first turn what is shared.

    Prompts: 1,000 + 96 t - 32. Found: 992 of the first (62 whole blocks of 16), then 1,000 + 96 (t - 1) in whole
    blocks, 1,096 being 68.5 of them.
    """
    requests, first = requests_of_agents(Agents(9, 5, 96, 1.0, 1000, 32), answer_s=0.1)
    found = [992, 1088, 1184, 1280, 1376]
    prompts = [1000 + 96 * turn - 32 for turn in range(1, 6)]
    assert hits(requests, 16, first_counted=first).endless_rate == pytest.approx(sum(found) / sum(prompts), rel=2e-3)


@pytest.fixture(scope="module")
def thirty_two():
    return dse.hits(quantizers=["fp8"], sessions=32, **OF)


def test_fp8_keeps_what_sixteen_bits_do_not(thirty_two):
    """32 sessions of 12,600 tokens in the mean beyond the shared; about 20 and 40 such fit."""
    plain, fp8 = thirty_two.rows
    assert (plain["name"], fp8["name"]) == ("fp16", "fp8")
    assert fp8["pool_tokens"] == pytest.approx(2 * plain["pool_tokens"], rel=1e-3)
    assert plain["hit_rate"] < 0.6 < 0.9 < fp8["hit_rate"] <= thirty_two.endless_rate
    assert fp8["ttft_s"] < plain["ttft_s"] / 10
    assert thirty_two.best["name"] == "fp8"
    assert thirty_two.answer().startswith("fp8 pays: it finds 9")


def test_the_loop_keeps_littles_law(thirty_two):
    """Sessions = requests/s x (think + TTFT + output x TPOT)."""
    for row in thirty_two.rows:
        response_s = row["ttft_s"] + 256 * row["tpot_s"]
        assert row["requests_per_s"] * (8 + response_s) == pytest.approx(32, rel=0.01)


def test_agents_that_fit_find_the_share_of_the_knee(thirty_two):
    """As many as each pool keeps, drawn anew."""
    for row in thirty_two.rows:
        fitting = dse.hits(quantizers=["fp8"], sessions=row["agents"], **OF)
        again = next(other for other in fitting.rows if other["name"] == row["name"])
        assert again["hit_rate"] == pytest.approx(KNEE_SHARE * fitting.endless_rate, abs=0.04)


def test_a_cache_that_is_large_enough_is_told(tmp_path):
    answer = dse.hits(quantizers=["fp8"], sessions=6, **OF)
    assert "Your cache is large enough: fewer bits bring no hits" in answer.answer()
    assert answer.rows[0]["hit_rate"] == answer.rows[1]["hit_rate"] == pytest.approx(answer.endless_rate)
    assert json.loads(json.dumps(answer.to_json()))["knee_tokens"] == answer.knee_tokens


def test_gains_fall_to_those_of_a_step_beyond_the_knee(thirty_two):
    curves = thirty_two.curves
    fp8 = curves[curves["format"] == "fp8"].set_index("plain_pool_tokens")
    assert fp8[fp8["is_own"]]["gain"].iloc[0] > 2 > 1.2 > fp8["gain"].iloc[-1]
    assert (np.diff(fp8["hit_rate"]) >= 0).all()


def test_formats_that_wait_for_a_group_find_nothing():
    answer = dse.hits(quantizers=["kivi"], sessions=4, other_software=True, **OF)
    assert answer.rows[1]["hit_rate"] == 0
    assert "No hits: kivi (keeps tokens back until a group is packed" in " ".join(answer.text().split())


def test_states_have_blocks_that_grow_as_bits_fall():
    answer = dse.hits("h100", "qwen3.6-35b-a3b", ["fp8"], sessions=16, tp=2, shared=3000)
    assert {row["name"]: row["block_tokens"] for row in answer.rows} == {"fp16": 1056, "fp8": 2096}
    assert "which hold a state and grow as bits fall" in " ".join(answer.text().split())


HOST = {"host_cache": 256 * 10**9, "host_link": "50 GB/s"}


def test_host_memory_finds_what_the_pool_gives_up():
    """64 bytes x 1024 x 4 a token of Qwen3-32B in 16 bits (64 layers, 8 heads of 128, keys and values): 262,144."""
    answer = dse.hits(quantizers=["fp8"], sessions=32, **OF, **HOST)
    plain, fp8 = answer.rows
    assert plain["host_tokens"] == pytest.approx(256e9 / 262_144, rel=1e-3)
    assert plain["hit_rate"] < 0.6 < 0.9 < plain["host_hit_rate"]
    assert plain["host_gain"] > 2 > 1.05 > fp8["host_gain"]
    assert "Host memory brings fp8 no requests/s" in answer.answer()
    assert "With host memory behind the device" in answer.text()


def test_the_format_of_host_memory_is_its_own():
    """FP8 in host memory behind 16 bits on the device: twice the tokens, over a link of twice the tokens a second."""
    plain = dse.hits(quantizers=["fp8"], sessions=32, **OF, **HOST).rows[0]
    kept = dse.hits(quantizers=["fp8"], sessions=32, host_format="fp8", **OF, **HOST).rows[0]
    assert kept["host_tokens"] == pytest.approx(2 * plain["host_tokens"], rel=1e-3)
    assert kept["hit_rate"] == plain["hit_rate"]


def test_a_slow_link_loses():
    answer = dse.hits(quantizers=["fp8"], sessions=32, **OF, host_cache=256 * 10**9, host_link="50 MB/s")
    assert answer.rows[0]["host_gain"] < 0.9
    assert answer.rows[0]["fetch_from_tokens"] is None


def test_of_states_every_block_in_host_memory_has_one():
    """Blocks of 1,056 tokens and three groups of states of the same size: four blocks for 1,056 tokens.

    A device of two has 10 layers of one KV head, 256 wide, keys and values in 16 bits: 10,240 bytes a token of 10,240.
    """
    found = dse.hits("h100", "qwen3.6-35b-a3b", ["fp8"], sessions=16, tp=2, **HOST)
    assert found.rows[0]["host_tokens"] == pytest.approx(256e9 / (4 * 10 * 2 * 256 * 2), rel=0.01)
    # of which a prompt needs the last alone: its keys and values come back
    assert found.servers[0].token_bytes == pytest.approx(10 * 2 * 256 * 2, rel=0.01)


def test_a_server_of_fewer_requests_has_a_larger_pool():
    """1,024 rows of 248,320 logits of 14 bytes are 3.6 GB, 256 of them 0.9: 2.7 GB more for keys and values."""
    asked = {"sessions": 16, "tp": 2, "gpu_memory_utilization": 0.55}
    plain, fewer = (
        dse.hits("h100", "qwen3.6-35b-a3b", ["fp16"], **asked, **limit) for limit in ({}, {"max_num_seqs": 256})
    )
    more_bytes = fewer.servers[0].result["free_bytes"] - plain.servers[0].result["free_bytes"]
    assert more_bytes == pytest.approx(768 * 248_320 * 14, rel=0.2)  # other activations fill a part of it
    assert fewer.rows[0]["pool_tokens"] > plain.rows[0]["pool_tokens"]


def test_each_group_of_requests_has_a_pool():
    """DeepSeek-V3 keeps 61 x 576 x 2 = 70,272 bytes a token on each device; eight have a pool each."""
    asked = {"sessions": 64, "tp": 8, "ep": 8, "dp_attention": True, "weights": "fp8", "max_num_seqs": 64}
    found = dse.hits("h200", "deepseek-v3", ["fp16"], **asked, **HOST)
    free_bytes = found.servers[0].result["free_bytes"]
    assert found.rows[0]["pool_tokens"] == pytest.approx(8 * free_bytes / 70_272, rel=1e-3)
    assert found.rows[0]["host_tokens"] == pytest.approx(8 * 256e9 / 70_272, rel=1e-3)


def trace(folder, rows):
    file = folder / "trace.jsonl"
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    file.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    return str(file)


def test_a_trace_on_a_full_server(tmp_path):
    """Two prompts of 1,000 tokens in blocks of 512: the second finds 512 of its own and none of the third's."""
    file = trace(tmp_path, [(0, 1000, 10, [1, 2]), (5, 1000, 10, [1, 3]), (9, 1000, 10, [4, 5])])
    answer = dse.hits("h200", "qwen3-32b", ["fp8"], trace=file)
    assert answer.endless_rate == pytest.approx(512 / 3000)
    assert [row["hit_rate"] for row in answer.rows] == pytest.approx([512 / 3000] * 2)
    assert answer.rows[0]["agents"] is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sessions": 0}, "sessions = 0: must be a whole number from 1"),
        ({"sessions": 2, "think": "-1 s"}, "think = '-1 s': must be 0 s"),
        ({"sessions": 2, "growth": 256}, "growth = 256: must be more than the answer of 256 tokens"),
        (
            {"sessions": 2, "growth": 3000},
            "growth = 3,000: 20 turns end at 60,000 tokens, the longest context is 40,960",
        ),
        ({"trace": "azure-conv"}, "trace = azure-conv: has no block hashes: give a .jsonl file"),
        ({}, "sessions is missing"),
        ({"sessions": 2, "host_format": "fp8"}, "host_format = 'fp8': has no effect without --host-cache"),
        ({"sessions": 2, "prefix_cache": "off"}, "prefix-cache = off: then no prompt is found: leave it out"),
        ({"sessions": 2, "batching": "static"}, "batching = static: waits for whole batches"),
        ({"sessions": 2, "stack": "llama.cpp"}, "stack = llama.cpp: a slot keeps its own last prompt"),
    ],
)
def test_what_is_wrong_is_a_line(asked, message):
    with pytest.raises(InputError, match=message):
        dse.hits("h200", "qwen3-32b", ["fp8"], **asked)


def test_too_many_turns_are_refused():
    with pytest.raises(LimitError, match="ask for fewer"):
        requests_of_agents(Agents(100_000, 100, 10, 1.0, 0, 1), 1.0)


def test_no_more_requests_run_than_have_places_for_their_states():
    """Of SGLang: five states a request, in 0.9 / 1.9 of the pool."""
    asked = {"sessions": 200, "turns": 2, "growth": 500, "think": "1 s", "stack": "sglang"}
    row = dse.hits("h100", "nemotron-nano-12b-v2", ["fp16"], **asked).rows[0]
    found = dse.evaluate("h100", "nemotron-nano-12b-v2", "fp16", stack="sglang", input_tokens=500, output_tokens=256)
    assert row["running"] <= found.max_batch
    assert row["waiting"] > 0
