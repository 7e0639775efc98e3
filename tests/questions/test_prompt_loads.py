"""Sessions and traces as loads of a recommendation: beside `ask hits`, by hand, and every server by itself."""

import json
import math
import random

import pytest

import dse
from dse.core.errors import InputError
from dse.serving.trace_tables import load
from dse.specs import server_flags
from tests.cases import quick_first

AGENTS = {"turns": 20, "growth": 1200, "shared": 6000, "think": "8 s"}
LIMITS = {"max_tpot": "40 ms", "max_ttft": "2 s"}
HOST = {"host_cache": 64 * 10**9, "host_link": "50 GB/s"}
ASKED = {"model": "qwen3-32b", "engines": ["vllm"], "quantizers": ["fp16", "fp8"], "most": 2, **LIMITS}


def hits_of(server, n, **more):
    """The row of `dse hits` of a server with so many sessions."""
    work = {name: getattr(server.work, name) for name in ("tp", "pp", "stack", "max_model_len")}
    found = dse.hits(
        server.design.device.name.lower(), "qwen3-32b", [server.design.name], sessions=n, **work, **AGENTS, **more
    )
    return next(row for row in found.rows if row["name"] == server.design.name)


@pytest.fixture(scope="module")
def forty():
    return dse.recommend(devices=["h100", "h200"], sessions=40, **ASKED, **AGENTS)


def test_the_numbers_are_those_of_hits(forty):
    for card in forty.cards.values():
        row = hits_of(card.server, int(card.each))
        for name in ("tpot_s", "ttft_s", "hit_rate"):
            assert card.results[name] == pytest.approx(row[name])
        tokens = card.n_servers * row["requests_per_s"] * 256
        assert card.tokens_per_s == pytest.approx(tokens * 40 / card.each / card.n_servers)


def keeps(server, n, **more):
    """Whether a server surely keeps the limits with n sessions, none of which waits."""
    row = hits_of(server, n, **more)
    times = server.late
    is_in = row["requests_per_s"] is not None and not row["waiting"]
    return is_in and row["tpot_s"] * times["tpot_s"] <= 0.040 and row["ttft_s"] * times["ttft_s"] <= 2.0


def test_what_it_holds_is_the_most_that_keeps_the_limits(forty):
    """One more session breaks a limit, or waits for a place where the server is as slow as it may be."""
    server = forty.first.server
    assert keeps(server, int(server.holds))
    assert server.demand.load.traffic(server, 1, False).places >= 1
    assert not keeps(server, int(server.holds) + 1) or server.holds == server.holds_within({})


@quick_first(2, "seed", range(8))
def test_the_cheapest_is_that_of_every_server_by_itself(seed):
    """Each server's most sessions found one after the other, and as few of it as hold all."""
    rng = random.Random(seed)
    sessions = rng.choice([5, 12, 30])
    asked = {
        **ASKED,
        "devices": rng.sample(["h100", "h200", "l40s"], 2),
        "max_tpot": rng.choice(["25 ms", "60 ms"]),
        "turns": rng.choice([3, 12]),
        "growth": rng.choice([600, 1500]),
        "think": rng.choice(["1 s", "20 s"]),
    }
    found = dse.recommend(sessions=sessions, **asked)
    limits, load = found.search.demand.limits, found.search.demand.load
    costs = []
    for server in found.search.grid.servers:
        n = 0
        while n < sessions and server.starts and load._keeps(server, n + 1, limits, True, False):
            n += 1
        if n:
            n_servers = math.ceil(sessions / n)
            costs.append(found.search.price(server).usd_per_hour(server.n_devices, n_servers))
    assert found.best["usd_per_hour"] == pytest.approx(min(costs))


def test_one_agent_by_hand():
    """Little's law of one: a turn every 8 s and its response; of 20 turns the last prompt is all but the first found.

    Prompts: 6,000 + 1,200 t - 256, whose mean is 18,344. Found: 6,000 of the first turn, then 6,000 + 1,200 (t - 1): a
    mean of 17,400, in whole blocks of 16 tokens all but 16 at most.
    """
    found = dse.recommend(devices=["h200"], sessions=1, **ASKED, **AGENTS)
    row = found.first.results
    assert row["input_tokens"] == 18_344
    assert 17_384 / 18_344 - 0.002 <= row["hit_rate"] <= 17_400 / 18_344 + 0.002
    rate = found.first.tokens_per_s / 256
    assert rate * (8 + row["ttft_s"] + 256 * row["tpot_s"]) == pytest.approx(1, rel=0.01)
    assert "--max-model-len 30000" in found.command


def test_fewer_bits_hold_more_sessions_on_fewer_servers(forty):
    by_name = {
        (s.asked, s.design.name): s.holds for s in forty.search.grid.servers if s.n_devices == 2 and s.work.pp == 1
    }
    assert by_name["h100", "fp8"] > 1.5 * by_name["h100", "fp16"]
    assert "Without its prefix cache" in forty.text()
    later = {**ASKED, "max_ttft": "30 s", **AGENTS}
    on, off = (
        dse.recommend(devices=["h100", "h200"], sessions=40, prefix_cache=cache, **later) for cache in (None, "off")
    )
    assert off.best["usd_per_hour"] > on.best["usd_per_hour"]
    assert off.best["hit_rate"] == 0
    assert "--no-enable-prefix-caching" in off.command
    alike = next(s for s in off.search.grid.servers if s.name == on.first.server.name)
    assert on.first.server.in_settings({"prefix_cache": "off"}).holds == alike.holds


def test_host_memory_is_used_where_it_holds_more_and_the_command_says_it():
    asked = {**ASKED, "quantizers": ["fp16"], "sessions": 20, **AGENTS}
    without, found, slow = (
        dse.recommend(devices=["h100"], **asked, **more) for more in ({}, HOST, {**HOST, "host_link": "20 MB/s"})
    )
    assert found.best["usd_per_hour"] <= without.best["usd_per_hour"]
    used = [(s, s.demand.load.flags(s)) for s in found.search.grid.servers if s.most]
    hosted = [server for server, flags in used if flags]
    assert hosted
    for server in hosted:
        plain = next(s for s in without.search.grid.servers if s.name == server.name)
        assert server.holds > 1.02 * plain.holds
        # GiB of all devices together, whole ones
        gib = 64 * 10**9 * server.n_devices // 2**30
        assert server.command.line.endswith(f"--kv-offloading-size {gib}")
        read = server_flags.read(server.command.line)
        assert read.left_out == [f"--kv-offloading-size {gib}"]
        assert read.values["tp"] == server.work.tp if server.work.tp > 1 else "tp" not in read.values
    assert not any(s.demand.load.flags(s) for s in slow.search.grid.servers if s.most)
    trtllm = dse.recommend(devices=["h100"], **{**asked, "engines": ["trtllm"]}, **HOST)
    assert not any(trtllm.search.demand.load.flags(s) for s in trtllm.search.grid.servers)


def test_sglang_says_its_host_memory_by_device():
    asked = {**ASKED, "engines": ["sglang"], "quantizers": ["fp16"], "sessions": 20, **AGENTS}
    found = dse.recommend(devices=["h100"], **asked, **HOST)
    hosted = [s for s in found.search.grid.servers if s.most and found.search.demand.load.flags(s)]
    assert all("--enable-hierarchical-cache --hicache-size 64" in server.command.line for server in hosted)
    off = dse.recommend(devices=["h100"], prefix_cache="off", **{**asked, "max_ttft": "30 s"})
    assert "--disable-radix-cache" in off.command


def test_more_sessions_cost_no_less_and_a_plan_is_kept(forty, tmp_path, run):
    loads = (20, 40, 80)
    usd = [forty.search.at(load).usd_per_hour for load in loads]
    assert usd == sorted(usd)
    assert forty.other_loads["twice the load"].usd_per_hour == usd[-1]
    line = f"recommend --model qwen3-32b --devices h200 --engines vllm --sessions 9 --out {tmp_path}/plan"
    status, text, _ = run(*line.split())
    assert status == 0
    assert text.startswith("What to run: qwen3-32b, 9 agents of 20 turns: 1,200 more a turn, 8 s between turns\n")
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert plan["asked"]["agents"]["sessions"] == 9
    assert plan["requests"] is plan["requests_per_s"] is None
    assert run(*line.split(), "--json")[0] == 0


def trace_file(folder, n=400, n_users=20):
    """Users in turn, each of whose prompts goes on from the last one by a block of 512 tokens: all before is found."""
    file, rows = folder / "users.jsonl", []
    for r in range(n):
        user, turn = r % n_users, r // n_users
        ids = [1000 * user + block for block in range(turn + 1)]
        rows.append({"timestamp": 500 * r, "input_length": 512 * (turn + 1), "output_length": 64, "hash_ids": ids})
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


TRACE = {"model": "llama3.1-8b", "devices": ["h100"], "engines": ["vllm"], "most": 1}


def test_a_trace_by_hand(tmp_path):
    """Two requests a second: 399 in 199.5 s and one. Of turn t of 20 all but the last block is found: 19 / 21.

    The mean turn has (1 + 20) / 2 blocks, of which (20 - 1) / 2 are found.
    """
    found = dse.recommend(**TRACE, trace=trace_file(tmp_path), max_ttft="2 s")
    best = found.best
    assert found.search.demand.amount == pytest.approx(400 / 199.5, rel=0.01)
    assert best["hit_rate"] == pytest.approx(19 / 21, rel=1e-3)
    assert (best["input_tokens"], best["output_tokens"]) == (512 * 21 / 2, 64)
    assert "--max-model-len 10304" in found.command
    off = dse.recommend(**TRACE, trace=trace_file(tmp_path), max_ttft="2 s", prefix_cache="off")
    assert off.first.server.holds < found.first.server.holds
    faster = dse.recommend(**TRACE, trace=trace_file(tmp_path), rate=30, max_ttft="2 s")
    assert faster.first.load == 30


def test_a_part_of_a_trace_finds_as_much_as_more_memory(tmp_path):
    """At half of the trace's rate a server finds what all of it would in twice the pool; of all, as `dse hits` does."""
    file = trace_file(tmp_path, 4000, 200)
    found = dse.recommend(**TRACE, trace=file, quantizers=["fp16"], rate=1)
    traffic, server = found.search.demand.load, found.first.server
    rate = traffic.own_rate
    shares = [traffic.traffic(server, part * rate).reused.mean_found_tokens for part in (4, 2, 1, 0.5)]
    assert shares == sorted(shares)
    row = dse.hits("h100", "llama3.1-8b", ["fp16"], trace=file, stack="vllm").rows[0]
    # in steps of the pool of 9 %
    assert shares[2] == pytest.approx(row["saved_tokens"], rel=0.1)
    assert shares[2] <= row["saved_tokens"] <= traffic.traffic(server, 0.9 * rate).reused.mean_found_tokens


def test_a_trace_without_blocks_is_one_of_lengths():
    found = dse.recommend(**TRACE, trace="azure-conv", max_ttft="1 s")
    assert found.search.demand.amount == pytest.approx(load("azure-conv").moments.rate_per_s)
    assert "names no blocks of its prompts: none is found" in " ".join(found.text().split())
    assert "hit_rate" not in found.best


@pytest.mark.parametrize("option", ["turns 20", "growth 1200", "think 8s", "shared 0"])
def test_a_default_that_has_no_effect_is_refused_too(option, run):
    status, out, err = run(*f"recommend --model qwen3-32b --devices h100 --rate 3 --{option}".split())
    assert (status, out) == (2, "")
    assert "has no effect without --sessions: leave it out" in err


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"sessions": 3, "rate": 1}, "sessions = 3: cannot stand beside --rate"),
        ({"sessions": 3, "trace": "azure-conv"}, "cannot stand beside --trace"),
        ({"requests": 3, "trace": "azure-conv"}, "cannot stand beside --requests"),
        ({"rate": 3, "turns": 2}, "turns = 2: has no effect without --sessions"),
        ({"rate": 3, "growth": 2000}, "growth = 2000: has no effect without --sessions"),
        ({"sessions": 3, "prefix_cache": "off", **HOST}, "with --prefix-cache off: it keeps what"),
        ({"sessions": 3, "input_tokens": 20}, "has no effect with --sessions"),
        ({"sessions": 3, "objective": "energy"}, "is not known of prompts that are found"),
        ({"sessions": 3, "growth": 9000}, "the longest context is 131,072"),
        ({"sessions": 3, "engines": ["llama.cpp"]}, "a slot keeps its own last prompt"),
        ({"sessions": 3, "max_tpot": "1 ms"}, "nothing surely keeps TPOT 1 ms"),
        ({"trace": "no-such.jsonl"}, "cannot be read: no such file"),
        ({"trace": "azure-cnv"}, "did you mean azure-conv"),
        ({"trace": "azure-conv", **HOST}, "names no blocks of its prompts"),
    ],
)
def test_what_is_wrong_is_a_line(asked, says):
    with pytest.raises(InputError) as error:
        dse.recommend(**{**TRACE, **asked})
    assert says in str(error.value)
    assert "\n" not in str(error.value)
