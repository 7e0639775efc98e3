"""What to run: beside a twin that evaluates every deployment by itself, prices by hand, and what is refused."""

import gc
import json
import math
import random
import re
import weakref
from functools import cache
from itertools import count, product
from pathlib import Path

import pytest

import dse
from cases import each, quick_first
from dse.core.errors import InputError, LimitError
from dse.model import uncertainty
from dse.questions import common, measured_fronts, recommend, search
from dse.specs import prices, server_flags
from dse.specs.prices import Offer, Price
from dse.specs.workload import SETTINGS

#: of small models and few devices, so that the twin ends
MODELS = ("llama3.1-8b", "qwen3-8b", "gpt-oss-20b", "mistral-7b")
#: with recurrent states, of every fifth problem
HYBRID = "nemotron-nano-12b-v2"
DEVICES = ("h100", "l40s", "a100-80gb", "b200", "rtx-4090")
TIE = 1 + 1e-9
#: a design and its load are evaluated once, however many servers of it are tried
evaluate, load = cache(dse.evaluate), cache(dse.load)


def problem(seed):
    """A drawn question: what `dse.recommend` is given."""
    lot = random.Random(seed)
    asked = {
        "model": lot.choice(MODELS),
        "devices": lot.sample(DEVICES, lot.choice((1, 2))),
        "engines": [lot.choice(("vllm", "sglang"))],
        "quantizers": lot.sample(("fp16", "fp8"), lot.choice((1, 2))),
        "input_tokens": lot.choice((200, 2048, 8192)),
        "output_tokens": lot.choice((50, 500)),
        "max_tpot": lot.choice((None, "20 ms", "60 ms")),
        "max_ttft": lot.choice((None, "1 s", "3 s")),
        "most": lot.choice((2, 4)),
    }
    # of the engine's settings those that are not said are tried
    values = {"max_num_seqs": (32, 256), "prompt_budget_tokens": (2048, 8192), "gpu_memory_utilization": (0.85, 0.9)}
    said = lot.sample(sorted(values), lot.choice((1, 2, 2, 3)))
    asked |= {name: lot.choice(values[name]) for name in said}
    if seed % 5 == 1:
        asked["model"] = HYBRID
    if seed % 2:
        return {**asked, "rate": lot.choice((0.5, 3.0, 11.0))}
    return {**asked, "requests": lot.choice((3, 17, 60))}


def settings_of(asked):
    """All settings of the engine that are not said: its own, and those that are tried."""
    tried = server_flags.engines()[asked["engines"][0]].tried
    axes = {name: [asked[name]] if name in asked else [None, *tried[name]] for name in SETTINGS}
    return [{n: v for n, v in zip(axes, values, strict=True) if v is not None} for values in product(*axes.values())]


def splits(most):
    return [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2, 4) if tp * pp <= most]


def limits_of(asked):
    """Seconds by column."""
    texts = {"tpot_s": asked["max_tpot"], "ttft_s": asked["max_ttft"]}
    return {name: float(text.split()[0]) / (1e3 if "ms" in text else 1) for name, text in texts.items() if text}


def holds_at_once(asked, design, n):
    """Whether a server surely keeps the limits with `n` requests at all times, all of them in memory."""
    found = evaluate(*design[:3], batch=n, **design[3])
    if not found["feasible"] or not found["runs"] or not found["fits_whole_batch"]:
        return False
    return all(uncertainty.ends(found, name)[1] <= limit * TIE for name, limit in limits_of(asked).items())


def holds_rate(asked, design, rate):
    """Whether a server surely keeps the limits at a rate, up to 0.9 of what it serves at the low end when full."""
    full = evaluate(*design[:3], **design[3])
    if not full["feasible"] or not full["runs"]:
        return False
    found = load(*design[:3], loads=(0.9,), **design[3])
    low = min(uncertainty.of_column(full, uncertainty.RATE).low, 1.0)
    if rate > 0.9 * low * found.full_requests_per_s * TIE:
        return False
    waits = found.at(rate)
    return all(waits[name] * found.server.late[name] <= limit * TIE for name, limit in limits_of(asked).items())


def twin(asked):
    """The least USD an hour and the deployments that cost it: devices, format, tp, pp, servers, type of states, prefix
    cache and settings; each by itself. States in fewer bits than the model's count where nothing else holds the load.
    """
    held = holds_rate if "rate" in asked else holds_at_once
    costs = {}
    for device in asked["devices"]:
        usd = dse.device(device).usd_per_hour.si
        for quantizer in asked["quantizers"]:
            for tp, pp in splits(asked["most"]):
                more = {name: asked[name] for name in ("input_tokens", "output_tokens")}
                more |= {"tp": tp, "pp": pp, "stack": asked["engines"][0]}
                ways = [more, {**more, "ep": tp}] if "oss" in asked["model"] and tp > 1 else [more]
                ways += [{**more, "state_type": "bfloat16"}] * (asked["model"] == HYBRID)
                ways += [{**way, "prefix_cache": "off"} for way in ways] * (asked["model"] == HYBRID)
                for way, settings in product(ways, settings_of(asked)):
                    way = way | settings | ({"pp_batches": 1} if "rate" in asked and pp > 1 else {})
                    for n in count(1):
                        load = asked["rate"] / n if "rate" in asked else math.ceil(asked["requests"] / n)
                        if held(asked, (device, asked["model"], quantizer, way), load):
                            of_settings = tuple(way.get(name) for name in SETTINGS)
                            of_hybrid = way.get("state_type"), way.get("prefix_cache")
                            name = device, quantizer, tp, pp, way.get("ep", 1), n, *of_hybrid, of_settings
                            costs[name] = n * tp * pp * usd
                            break
                        if load < 0.02 or n == asked.get("requests"):
                            break
    if not all(name[6] for name in costs):
        costs = {name: usd for name, usd in costs.items() if not name[6]}
    best = min(costs.values(), default=None)
    return best, {name for name, usd in costs.items() if best and usd <= best * TIE}


@quick_first(4, "seed", range(60))
def test_the_cheapest_is_that_of_every_deployment_evaluated_by_itself(seed):
    asked = problem(seed)
    usd, names = twin(asked)
    if usd is None:
        with pytest.raises(InputError):
            dse.recommend(**asked)
        return
    best = dse.recommend(**asked).best
    assert best["usd_per_hour"] == pytest.approx(usd)
    name = best["device"].lower(), *(best[name] for name in ("quantizer", "tp", "pp", "ep", "n_servers"))
    name = *name, best["settings"].get("state_type"), best["settings"].get("prefix_cache")
    said = {key: asked[key] for key in SETTINGS if key in asked}
    assert (*name, tuple({**said, **best["settings"]}.get(key) for key in SETTINGS)) in names
    # the engine's own settings, where they do as well
    own = tuple(said.get(key) for key in SETTINGS)
    assert not {*best["settings"]} & {*SETTINGS} or (*name, own) not in names
    # and its prefix cache, where as cheap a server in as many bits keeps it
    assert best["settings"].get("prefix_cache") is None or not any(
        kept is None for _, quantizer, *_, kept, _ in names if quantizer == best["quantizer"]
    )


ASKED = {"model": "qwen3-32b", "input_tokens": 4096, "output_tokens": 500, "max_tpot": "30 ms", "max_ttft": "1 s"}


@pytest.fixture(scope="module")
def found():
    return dse.recommend(devices=["h100", "b200", "l40s"], rate=20, **ASKED)


def test_cards_keep_their_promises(found):
    cards = found.cards
    assert list(cards) == ["cheapest", "fastest", "most room"]
    cheapest, fastest, roomiest = cards.values()
    assert cheapest.usd_per_hour == min(found.table["usd_per_hour"])
    assert max(fastest.usd_per_hour, roomiest.usd_per_hour) <= 2 * cheapest.usd_per_hour
    assert fastest.time_s <= min(cheapest.time_s, roomiest.time_s)
    assert roomiest.holds >= max(cheapest.holds, fastest.holds)
    for card in cards.values():
        assert card.load == 20 <= card.holds
        assert card.usd_per_million_tokens == pytest.approx(card.usd_per_hour / (3600 * 20 * 500) * 1e6)


def test_the_figure_is_that_of_plot(found, tmp_path):
    assert found.plot().to_json() == dse.plot(found).to_json()
    found.plot(out=tmp_path / "cost.csv")
    assert (tmp_path / "cost.csv").read_text().startswith("device,")


def test_answers_of_one_token_have_a_time_to_the_first_alone():
    asked = {"model": "qwen3-8b", "devices": ["h100"], "engines": ["vllm"], "output_tokens": 1, "rate": 2}
    found = dse.recommend(**asked)
    assert "TPOT" not in found.text()
    assert "TTFT at most" in found.text()
    assert found.table["time_high_s"].iloc[0] == pytest.approx(found.best["ttft_s_high"], rel=1e-6)


def test_what_it_holds_is_what_load_says():
    """The same number wherever it is read: `dse load` at the limits, where a limit binds and not saturation."""
    asked = {**ASKED, "max_tpot": "20 ms"}
    best = dse.recommend(devices=["h100"], quantizers=["fp8"], engines=["vllm"], rate=2, **asked).best
    assert best["first_limit"] == "TPOT"
    limits = {name: asked[name] for name in ("max_tpot", "max_ttft")}
    one = dse.load(
        "h100", "qwen3-32b", "fp8", input_tokens=4096, output_tokens=500, tp=best["tp"], stack="vllm", **limits
    )
    assert best["holds"] == pytest.approx(best["n_servers"] * one.most_within(one.limits))


def test_more_load_costs_no_less(found):
    usd = [found.search.at(load).usd_per_hour for load in (10, 12, 15, 20, 25, 31, 40)]
    assert usd == sorted(usd)
    assert found.other_loads["twice the load"].usd_per_hour == usd[-1]
    for load, factor in ((40, 2), (10, 0.5)):
        again = dse.recommend(devices=["h100", "b200", "l40s"], rate=load, **ASKED)
        assert again.first.usd_per_hour == pytest.approx(found.search.at(20 * factor).usd_per_hour)


def test_the_answer_turns_where_it_says(found):
    for upward in (True, False):
        load, other = found.search.turns_at(upward)
        rate = load * (1 + 1e-6 * (1 if upward else -1))
        at = dse.recommend(devices=["h100", "b200", "l40s"], rate=rate, **ASKED)
        assert at.first.server.name == other.server.name != found.first.server.name


def test_as_much_as_the_devices_hold_is_what_interactivity_says_of_that_layout():
    """DeepSeek-R1 on 8 H200 within 50 ms: one promise, by both questions; the layouts that promise more likely give
    less, or by no more than what two runs differ by in fewer bits."""
    asked = {"input_tokens": 4096, "output_tokens": 500, "max_tpot": "50 ms"}
    found = dse.recommend(model="deepseek-r1", devices=["8xh200"], engines=["vllm"], most=8, **asked)
    best, first = found.best, found.first
    assert best["n_devices"] == 8
    assert best["quantizer"] == "fp16"
    layout = {name: best[name] for name in ("tp", "ep", "dp_attention", "dcp")}
    curve = dse.interactivity("h200", "deepseek-r1", ["fp16"], stack="vllm", **asked, **layout).best
    assert best["load"] == curve["batch"]
    assert best["tokens_per_s"] == pytest.approx(curve["throughput_tokens_per_s"])
    others = [one.likely_tokens_per_s for one in found.search.ranked[1:] if one.server.is_exact]
    assert first.likely_tokens_per_s >= max(others)
    assert first.likely_tokens_per_s >= 0.96 * max(one.likely_tokens_per_s for one in found.search.ranked)


def test_a_server_likely_holds_the_load_whose_time_lies_about_its_limit(found):
    """No less than it surely holds; there the middle of the interval is at the limit, within a step of one request and
    what the interval changes up to there."""
    asked = {"input_tokens": 1024, "output_tokens": 1024, "max_tpot": "30 ms"}
    at_once = dse.recommend(model="qwen3-32b", devices=["4xh100"], engines=["vllm"], **asked)
    for fleet in at_once.search.ranked:
        server = fleet.server
        n = server.likely_holds
        assert n >= server.holds
        if server.holds < n < server.most:
            row = server.results(n)
            middle = row["tpot_s"] * uncertainty.middle(*uncertainty.of_column(row, "tpot_s")[:2])
            assert middle == pytest.approx(0.030, rel=0.05)
    for fleet in found.search.ranked[:3]:
        assert fleet.server.likely_holds >= fleet.server.holds


def test_the_order_counts_how_layouts_were_measured(monkeypatch):
    """The layout that was measured to give twice what is computed beside the others goes first, and the answer says
    so."""
    asked = {"model": "qwen3-32b", "devices": ["4xh100"], "engines": ["vllm"], "quantizers": ["fp16"]}
    asked |= {"input_tokens": 1024, "output_tokens": 1024, "max_tpot": "30 ms"}
    before = dse.recommend(**asked)
    last = before.search.ranked[-1].server
    assert before.runner_up is not None
    layout = tuple(getattr(last.work, name) for name in measured_fronts.LAYOUT)
    key = "qwen3-32b", "H100", "vllm", "bf16", *layout
    monkeypatch.setattr(measured_fronts, "layout_factors", lambda: {key: {(1024, 1024): 8.0, (8192, 1024): 2.0}})
    after = dse.recommend(**asked)
    assert after.first.server.name == last.name
    assert "Layouts measured side by side: the first gave 4.00 times what is computed of it" in after.text()
    assert after.to_json()["measured_times"] == pytest.approx(4)


def test_text_and_json_of_the_command(run):
    line = "recommend --model qwen3-8b --devices h100,rtx-4090 --requests 20 --input 2k --output 100 --tpot 30ms"
    status, text, _ = run(*line.split())
    assert status == 0
    assert text.startswith("What to run: qwen3-8b, 20 requests at once of 2,048 + 100 tokens, TPOT 30 ms\n\nRun ")
    for word in (
        "cheapest",
        "a million tokens",
        "Runner-up:",
        "twice the load",
        "half the load",
        "Prices an hour: h100 3",
    ):
        assert word in text
    assert max(len(line) for line in text.splitlines() if "serve" not in line) <= 120
    document = json.loads(run(*line.split(), "--json")[1])
    assert document["requests"] == 20
    assert document["cards"]["cheapest"]["sure"] >= 0.9


@each(
    ("more", "says"),
    [
        ({"max_tpot": "1 ms", "rate": 1}, "nothing surely keeps TPOT 1 ms"),
        ({"max_ttft": "1 ms", "rate": 1}, "--max-ttft"),
        ({"rate": 1, "requests": 2}, "give one of both"),
        ({}, "--devices 8xh100"),
        ({"rate": 1, "devices": []}, "such as h100,l40s or 8xh200, or --cloud aws for all it has"),
        ({"rate": 1, "devices": [], "cloud": "gcp"}, "cloud = 'gcp'"),
        ({"model": "", "rate": 1, "start": "vllm serve no/one"}, "names no model that is known here: add --model"),
        ({"rate": 50, "budget": "1/h"}, "one device costs 3 USD"),
        ({"rate": 50, "budget": "7/h"}, "raise --budget, or ask for"),
        ({"rate": 50, "budget": "free"}, "must be USD an hour above 0"),
        ({"rate": 50, "devices": ["1xh100"]}, "those that there are hold less than 50 requests/s"),
        ({"rate": 1, "price": ["h100=0"]}, "above 0"),
        ({"rate": 1, "price": ["b200=2"]}, "no such device is compared"),
        ({"rate": 1, "cloud": "gcp"}, "cloud = 'gcp'"),
        ({"rate": 1, "cloud": "aws", "devices": ["h200"]}, "no list price of h200 here (of a100-40gb, "),
        ({"rate": 1, "devices": ["mi300x"]}, "the file of MI300X has none"),
        ({"rate": 1, "devices": ["h100", "h100"]}, "is there twice"),
        ({"rate": 1, "engines": ["vlm"]}, "vlm"),
        ({"rate": 0.0}, "rate = 0"),
        ({"rate": math.inf}, "rate = inf"),
        ({"rate": 2e12}, "rate = 2e+12: must be a number from 1e-06 to 1,000,000,000,000"),
        ({"rate": 1, "max_drop": 2.0}, "max-drop = 2: must be a share from 0 to 1, such as 1% or 0.01"),
        ({"devices": ["1xh100"], "quantizers": ["oaken"]}, "no server here starts: oaken: no KV type of vLLM 0.33.0;"),
        (
            {"rate": 2, "engines": ["trtllm"], "quantizers": ["int4_per_token_head"]},
            "no server here starts: int4_per_token_head: no KV type of TensorRT-LLM 1.4: --engines vllm runs "
            "int4_per_token_head on h100; name other --quantizers; --other-software compares all",
        ),
        (
            {"model": "qwen3-30b-a3b", "rate": 2, "engines": ["vllm"], "tp": 4, "ep": 2},
            "ep 1 or 4: --engines sglang runs fp16 on h100; --engines trtllm runs fp16 on h100;",
        ),
        ({"rate": 2, "most": 1, "tp": 4}, "most = 1: the given layout takes 4 devices: give --most 4, or fewer (--tp"),
        ({"rate": 2, "most": 7, "tp": 4, "pp": 2}, "most = 7: the given layout takes 8 devices: give --most 8"),
        ({"rate": 1, "devices": ["rtx-4090"], "model": "llama3.1-405b", "most": 1}, "a larger --most"),
        ({"rate": 1, "devices": ["1xrtx-4090"], "model": "llama3.1-70b"}, "more of them (--devices 8xrtx-4090)"),
    ],
)
def test_refused_in_a_line(more, says):
    asked = {"model": "qwen3-8b", "devices": ["h100"], "quantizers": ["fp16"], **more}
    with pytest.raises(InputError) as error:
        dse.recommend(**asked)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_bare_one_may_be_one_percent_or_all_of_it(run):
    status, out, err = run(*["recommend", "--model", "qwen3-8b", "--devices", "h100", "--rate", "1", "--max-drop", "1"])
    assert (status, out) == (2, "")
    assert "max-drop = '1': must be a share from 0 to 1, such as 1% or 0.01" in err


def test_a_drop_of_scores_that_is_not_known_to_be_small_is_left_out():
    best = dse.recommend(devices=["h100"], rate=5, max_drop=0.01, **ASKED)
    assert set(best.table["quantizer"]) == {"fp16"}


class TestPrices:
    def test_of_whole_instances(self):
        """AWS, 2026-10-01: a p5.4xlarge has 1 H100 for 6.88 USD, a p5.48xlarge 8 for 55.04."""
        h100 = prices.clouds()["aws"]["h100"]
        assert h100.usd_per_hour(1, 3) == pytest.approx(3 * 6.88)
        assert h100.usd_per_hour(2, 3) == pytest.approx(55.04)
        assert h100.usd_per_hour(4, 3) == pytest.approx(2 * 55.04)
        assert h100.usd_per_hour(16, 2) == pytest.approx(4 * 55.04)

    def test_the_cheapest_mix_of_instances(self):
        """Beside every way to fill up to 5 instances of each kind."""
        price = Price((Offer(1, 1.0), Offer(4, 3.5), Offer(8, 6.0)), "by hand", True)
        for n, servers in [(n, servers) for n in (1, 2, 4) for servers in range(1, 12)]:
            ways = [(a, b, c) for a in range(12) for b in range(12) for c in range(8)]
            costs = [a + 3.5 * b + 6 * c for a, b, c in ways if a * (1 // n) + b * (4 // n) + c * (8 // n) >= servers]
            assert price.usd_per_hour(n, servers) == pytest.approx(min(costs))

    def test_a_price_of_ones_own_comes_first(self):
        device = dse.device("h100")
        assert prices.prices_of({"h100": device}, "aws", {"h100": 2.1})["h100"].usd_per_hour(4, 2) == pytest.approx(
            16.8
        )
        assert prices.prices_of({"h100": device})["h100"].usd_per_hour(1, 1) == device.usd_per_hour.si

    def test_devices_without_a_list_price_are_left_out(self, run):
        asked = "recommend --model qwen3-8b --devices h200,h100 --rate 1 --cloud aws --engines vllm --quantizers fp16"
        status, text, err = run(*asked.split())
        assert status == 0
        assert "left out, as aws has no list price of them here: h200: add --price h200=USD" in err
        offers = "h100 1 for 6.88 (p5.4xlarge), 8 for 55.04 (p5.48xlarge) USD (list price of aws,"
        assert offers in " ".join(text.split())


def test_other_engines_and_devices_have_a_line(found):
    """The least cost of each that is within what was tried, and none of a dearer one."""
    said = " ".join(found.text().split())
    ranked, twice = found.search.ranked, 2 * found.first.usd_per_hour
    vllm = next(d for d in ranked if d.server.work.stack == "vllm")
    assert f"Other engines at best: vllm {vllm.usd_per_hour:.2f} USD an hour ({recommend.words(vllm)});" in said
    assert min(d.usd_per_hour for d in ranked if d.server.work.stack == "sglang") > twice
    assert "sglang none that runs within the limits at up to twice the cost." in said
    assert "Other devices at best: h100 " in said
    assert "Accuracy losses, as published: fp8 of other models, long context." in said


def test_a_device_at_the_same_price_is_as_cheap():
    asked = {"model": "qwen3-8b", "rate": 1, "engines": ["vllm"], "quantizers": ["fp16"]}
    same = dse.recommend(devices=["h100", "h200"], price=["h100=2", "h200=2"], **asked).text()
    assert "As cheap at today's prices: h" in same
    assert "0 % less" not in same


def test_half_the_price_changes_the_answer_where_it_says(found):
    """The line of prices: H100 at the price that it names is as cheap."""
    h100 = next(d for d in found.search.ranked if d.server.asked == "h100")
    factor = found.first.usd_per_hour / h100.usd_per_hour
    cheaper = dse.recommend(devices=["h100", "b200", "l40s"], rate=20, price=[f"h100={3 * factor * 0.99}"], **ASKED)
    assert cheaper.best["device"] == "H100"


#: a server of today, and its load
LINE = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4"
LOAD = {"rate": 5, "input_tokens": 4096, "output_tokens": 500, "max_tpot": "30 ms", "max_ttft": "1 s"}
#: a line that holds less than it might, and the lengths of its load
SLOW = "vllm serve meta-llama/Llama-3.1-8B-Instruct --kv-cache-dtype fp8 --max-num-seqs 64"
SHORT = {"input_tokens": 2048, "output_tokens": 300}
LOGS = Path(__file__).parents[1] / "validate" / "logs"
#: of a server that does not start
FAILS = (LOGS / "vllm-0.19-llama-3.1-8b.log").read_text().partition("Available KV cache")[0] + (
    "\nValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n"
)


def test_contexts_beyond_the_positions_of_a_model_are_said_below_the_verdict():
    """By hand: 102,400 + 1,024 tokens of a model of 40,960; none of 39,936 + 1,024."""
    asked = {"model": "qwen3-32b", "devices": ["h100"], "engines": ["vllm"], "quantizers": ["fp8"], "rate": 2}
    found = dse.recommend(input_tokens=102_400, **asked)
    says = (
        "qwen3-32b has 40,960 positions: contexts of 103,424 tokens need rope scaling (YaRN), which no command here "
        "says."
    )
    assert found.positions_text == says
    assert f"{found.verdict} {says} cheapest" in " ".join(found.text().split())
    assert not dse.recommend(input_tokens=39_936, **asked).positions_text


def test_a_command_is_a_line_alone_and_what_it_lacks_another():
    found = dse.recommend(
        model="qwen3-32b", devices=["h100"], engines=["vllm"], quantizers=["fp8"], rate=2, input_tokens=102_400
    )
    lines = found.text().splitlines()
    at = next(at for at, line in enumerate(lines) if line.endswith(f": {found.command}"))
    assert lines[at + 1] == "Not in this line: context of 103,424 tokens: the model has 40,960 positions"


class TestFromToday:
    def test_doing_nothing_is_an_answer(self):
        found = dse.recommend(devices=["h100"], engines=["vllm"], start=LINE, **LOAD)
        assert found.changes.is_nothing
        assert found.changes.today.fleet.usd_per_hour == found.best["usd_per_hour"]
        assert "Do nothing" in found.text()

    def test_each_flag_says_what_it_gives(self):
        line = f"{LINE.removesuffix('4')}8 --pipeline-parallel-size 2 --max-num-seqs 4 --max-num-seqz 5"
        changes = dse.recommend(devices=["h100"], engines=["vllm"], start=line, **LOAD).changes
        assert changes.left_out == ("--max-num-seqz 5 (did you mean --max-num-seqs?)",)
        split, others = changes.single
        assert (split.what, others.what) == ("tp 8, pp 2 -> tp 4", "without --max-num-seqs")
        today, split, best = changes.today.fleet, split.fleet, changes.best
        assert changes.saves_usd == pytest.approx(today.usd_per_hour - best.usd_per_hour)
        assert split.usd_per_hour < today.usd_per_hour
        assert best.server.work.max_num_seqs is None

    def test_weights_and_model_are_those_of_the_line(self):
        found = dse.recommend(devices=["h100"], start="vllm serve Qwen/Qwen3-32B-FP8", **LOAD)
        assert found.best["weights"] == "fp8-block"

    def test_weights_of_the_line_are_todays_whatever_weights_are_asked_for(self):
        found = dse.recommend(devices=["h100", "b200"], engines=["vllm"], start=LINE, weights="fp8", **LOAD)
        work = found.changes.today.fleet.server.work
        assert work.of_model(dse.model("qwen3-32b")).weights_text == "bf16 weights"
        assert "bf16 weights -> fp8 weights" in [one.what for one in found.changes.single]
        assert "Compared on h100, the first device given." in " ".join(found.text().split())

    def test_a_start_up_log_says_what_runs(self):
        """By hand: options that the log prints; the same server as a command says it, but for the release."""
        log = LOGS / "vllm-0.19-llama-3.1-8b-tp4.log"
        line = "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 4 --gpu-memory-utilization 0.95 --max-model-len 8192"
        of_log, of_line = (dse.recommend(devices=["h100"], start=str(start), **LOAD) for start in (log, line))
        today, same = (found.changes.today.fleet for found in (of_log, of_line))
        work = today.server.work
        assert (work.tp, work.stack, work.gpu_memory_utilization) == (4, "vllm@0.19.0", 0.95)
        assert (work.max_model_len, today.server.design.name) == (8192, "fp16")
        assert (today.n_servers, today.usd_per_hour) == (same.n_servers, same.usd_per_hour)
        assert [one.what for one in of_log.changes.single[1:]] == [one.what for one in of_line.changes.single[-2:]]
        assert dse.recommend(devices=["h100"], start=log.read_text(), **LOAD).changes.today.fleet.server.work == work

    @pytest.mark.parametrize(
        ("log", "says"),
        [
            ("hello\nworld\n", "has no start-up lines of"),
            ("no-such.log", "cannot be read"),
            (str(LOGS), "is a directory"),
            (f"{LOGS}/llamacpp-llama-3.1-8b-q4_k_m.log", "the log names 'NVIDIA GeForce RTX 4090': give that one"),
            (f"{LOGS}/vllm-0.24-qwen3.6-35b-a3b-nvfp4.log", "the log names 'NVIDIA GeForce RTX 5090': give that one"),
            (f"{LOGS}/vllm-0.6-llama-3.1-8b.log", "the log's has 23.69 GiB"),
            (FAILS, "does not start"),
        ],
    )
    def test_logs_of_no_server_of_today_are_refused(self, log, says, run):
        status, out, err = run("recommend", "--devices", "h100", "--rate", "1", "--from", log)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert says in err

    def test_a_log_of_llama_cpp_says_what_runs(self):
        log = LOGS / "llamacpp-llama-3.1-8b-q4_k_m.log"
        found = dse.recommend(devices=["rtx-4090"], start=str(log), requests=1)
        assert found.changes.today.fleet.server.work.stack == "llama.cpp"
        assert all("->" not in one.what for one in found.changes.single)

    @pytest.mark.parametrize(
        "line",
        [
            "docker run --gpus all vllm/vllm-openai:v0.19.0 --model Qwen/Qwen3-32B -tp 2 --max-num-batched-tokens 4096",
            "python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-32B -tp 2 --max-num-batched-tokens 4096",
        ],
    )
    def test_other_starts_of_vllm_are_its_own(self, line):
        """An image, and the module of before: what is not read is said, flags are those of the engine."""
        found = dse.recommend(devices=["h100"], engines=["vllm"], quantizers=["fp16"], start=line, **LOAD)
        assert found.changes.today.fleet.server.work.stack == "vllm"
        assert found.changes.single[-1].what == "without --max-num-batched-tokens"
        assert ("the image's release v0.19.0" in found.changes.left_out) == ("docker" in line)

    def test_a_model_beside_that_of_the_line_is_said(self):
        line = "vllm serve Qwen/Qwen3-32B -tp 2"
        asked = {"devices": ["h100"], "engines": ["vllm"], "quantizers": ["fp16"], "requests": 1, "start": line}
        assert dse.recommend(model="qwen3-8b", **asked).changes.left_out == (
            "its model Qwen/Qwen3-32B, as --model is given",
        )
        assert not dse.recommend(model="Qwen3-32B", **asked).changes.left_out

    def test_to_do_nothing_is_the_first_that_is_said(self):
        best = dse.recommend(model="qwen3-8b", devices=["h100"], engines=["vllm"], quantizers=["fp16"], requests=8)
        again = dse.recommend(devices=["h100"], engines=["vllm"], quantizers=["fp16"], requests=8, start=best.command)
        assert again.changes.is_nothing
        keep = "Keep today's server: no change of it saves or gives much. Without it: r"
        assert again.verdict == keep + best.verdict[1:]

    def test_a_line_is_one_server_of_which_the_load_takes_some(self):
        """By hand: 5 requests/s over what one such server holds."""
        asked = {"devices": ["l40s"], "engines": ["vllm"], "quantizers": ["fp16"], **SHORT}
        best = dse.recommend(model="llama3.1-8b", rate=5, **asked)
        again = dse.recommend(start=best.command, rate=5, **asked)
        today = again.changes.today.fleet
        assert today.server.holds == dse.recommend(start=best.command, rate=0.1, **asked).changes.today.fleet.holds
        assert again.changes.n_today == today.n_servers == math.ceil(5 / today.server.holds) == 3
        said = " ".join(again.text().split())
        assert f"One server as today's holds {today.server.holds:.3g} of 5 requests/s: the load takes 3." in said
        assert "Keep today's server, 3 of it: no change of it saves or gives much." in said
        assert "Do nothing: 3 of today's server hold the load" in said
        assert "today's server holds the load" not in said

    def test_more_of_todays_server_than_there_are_hold_no_load(self):
        """One L40S, of which the load takes two as they run today, and one as they might."""
        asked = {"devices": ["1xl40s"], "engines": ["vllm"], "start": SLOW, **SHORT}
        found = dse.recommend(rate=3.1, **asked)
        holds = dse.recommend(rate=1, **asked).changes.today.fleet.holds
        assert 3.1 / 2 < holds < 3.1
        assert (found.changes.today.fleet, found.changes.n_today, found.best["n_devices"]) == (None, 0, 1)
        takes = f"Today's server holds {holds:.3g} of 3.1 requests/s: the load takes 2 of it (2 L40S, and 1 is there)."
        assert takes in " ".join(found.text().split())
        assert "2 x 1 L40S" not in found.text().partition("from today")[2].partition("\n\n")[0]
        full = dse.recommend(devices=["4xh100"], engines=["vllm"], start=f"{LINE.removesuffix('4')}8")
        assert full.changes.today.why == "takes 8 H100, and 4 are there"

    @pytest.mark.parametrize(
        ("flags", "why"),
        [
            (
                "--max-model-len 999999 --kv-cache-dtype fp9",
                "--kv-cache-dtype fp9: no KV type of vLLM 0.33.0; --max-model-len 999999: qwen3-32b has 40,960 "
                "positions",
            ),
            ("--kv-cache-dtype q4_0", "--kv-cache-dtype q4_0: no KV type of vLLM 0.33.0"),
            ("--max-model-len 40961", "--max-model-len 40961: qwen3-32b has 40,960 positions"),
            ("--max-model-len 40960", ""),
            ("--kv-cache-dtype octave_k3v4", ""),  # of the release, and of no format here
            ('--max-model-len 99999 --hf-overrides \'{"rope_parameters": {"factor": 4}}\'', ""),
        ],
    )
    def test_a_line_that_its_engine_refuses_is_no_server_of_today(self, flags, why):
        asked = {"devices": ["h100"], "engines": ["vllm"], "quantizers": ["fp16"], **LOAD}
        found = dse.recommend(start=f"{LINE} {flags}", **asked)
        said = " ".join(found.text().split())
        assert (f"Today's server does not start: {why}." in said) == bool(why)
        assert (found.changes.today.fleet is None) == bool(why) == ("from today" not in said)
        if why:
            assert found.changes.today.why == f"does not start: {why}"
            assert not found.changes.left_out
            assert found.best == dse.recommend(model="qwen3-32b", **asked).best

    def test_a_layout_that_its_engine_refuses_is_no_server_of_today(self):
        line = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp-size 3"
        asked = {"devices": ["h100"], "engines": ["vllm"], "quantizers": ["fp16"]}
        found = dse.recommend(start=line, **asked, **LOAD)
        assert found.changes.today.why.startswith("does not run this: tp = 3: ")
        assert "from today" in found.text()
        ep = dse.recommend(start="vllm serve Qwen/Qwen3-30B-A3B -tp 4 --ep 2", **asked, **LOAD).changes.today.why
        assert ep == "does not start: ep 2: vLLM spreads whole experts over all devices or over none: ep 1 or 4"

    @pytest.mark.parametrize("line", ["", "-", "echo hello", "vllm serve nobody/knows-this"])
    def test_lines_that_start_no_server_are_refused(self, line, run):
        status, out, err = run("recommend", "--devices", "h100", "--rate", "1", "--from", line)
        assert (status, out, err.count("\n")) == (2, "", 1)


def test_too_many_servers_say_what_to_leave_out(monkeypatch):
    monkeypatch.setattr("dse.questions.grid.MAX_SERVERS", 10)
    with pytest.raises(LimitError, match="name fewer --devices, --quantizers or --engines") as error:
        dse.recommend(devices=["h100", "l40s"], **LOAD, model="qwen3-8b")
    assert "\n" not in str(error.value)


def test_what_is_measured_and_what_would_settle_it_stand_in_the_answer():
    """Of one device and engine, where the runner-up may well be better; its chance is that of two runs, turned."""
    found = dse.recommend(
        devices=["8xh200"],
        model="gpt-oss-120b",
        engines=["trtllm"],
        input_tokens=922,
        output_tokens=7373,
        max_tpot="10 ms",
        most=8,
    )
    sure = recommend.ahead(found.first, found.runner_up).sure
    assert recommend.ahead(found.runner_up, found.first).sure == pytest.approx(1 - sure)
    assert sure <= 1 - common.NAMED_FROM
    assert found.two_runs
    assert found.measured_front
    document = found.to_json()
    assert document["runner_up"]["sure"] == pytest.approx(1 - sure)
    for named, key in ((found.two_runs, "two_runs"), (found.measured_front, "measured_front")):
        assert document[key] == named.to_json()
        assert named.text().partition(" (")[0].partition(":")[0] in " ".join(found.text().split())
    rival = common.sure_text(1 - sure)  # one chance, of one of both
    assert f" {rival} sure to give more after all." in " ".join(found.text().split())
    assert f" ({rival} sure now of the second, " in found.text()


def test_an_objective_without_a_load_is_refused(run):
    status, out, err = run("recommend", "--model", "qwen3-8b", "--devices", "2xh100", "--objective", "energy")
    assert (status, out) == (2, "")
    assert err.startswith("error: objective = 'energy': has no effect without --rate or --requests")


def test_what_is_searched_anyway_may_be_said():
    asked = {"model": "qwen3-8b", "devices": ["2xh100"], "engines": ["vllm"], "quantizers": ["fp16"]}
    assert dse.recommend(objective="throughput", **asked).best == dse.recommend(**asked).best


def test_the_devices_of_a_cloud_and_engines_as_people_write_them():
    asked = {"model": "qwen3-8b", "rate": 1, "quantizers": ["fp16"]}
    found = dse.recommend(cloud="aws", engines=["vLLM", "TensorRT-LLM"], **asked)
    assert found.search.grid.devices == tuple(prices.clouds()["aws"])
    assert found.search.grid.engines == ("vllm", "trtllm")


def test_layers_in_16_bits_are_judged_and_have_their_command():
    """Of the three engines vLLM alone leaves some in 16 bits; its command is read back as the same server."""
    asked = {"devices": ["h100"], "quantizers": ["fp8:skip=0+1"], "requests": 8}
    found = dse.recommend(model="llama3.1-8b", **asked)
    assert {fleet.server.fixed["stack"] for fleet in found.search.ranked} == {"vllm"}
    command = found.best["command"]
    assert command.endswith("--kv-cache-dtype fp8 --kv-cache-dtype-skip-layers 0 1")
    again = dse.recommend(start=command, **asked)
    assert again.changes.is_nothing
    assert again.changes.left_out == ()
    assert again.changes.today.fleet.server.design.name == "fp8:skip=0+1"


def test_any_number_of_servers_is_counted_at_once():
    """1e12 requests a second: what turns the answer is looked for among the nearest numbers of servers alone."""
    found = dse.recommend(model="qwen3-8b", devices=["h100"], engines=["vllm"], quantizers=["fp16"], rate=1e12)
    assert found.best["n_servers"] == math.ceil(1e12 / found.first.server.holds)
    assert "At another load: " in found.text() or "no other server is better" in found.text()


def test_a_runner_up_lost_by_the_numbers_of_the_order():
    """Of full devices the likely rates, which the order counts, whatever the promised ones say; close numbers apart."""
    found = dse.recommend(model="llama3.1-70b", devices=["4xh100"], quantizers=["fp8"], engines=["vllm", "trtllm"])
    first, rival = found.first, found.runner_up
    said = f"It lost as it likely gives {rival.likely_tokens_per_s:,.0f} tok/s at the most load, not "
    assert f"{said}{first.likely_tokens_per_s:,.0f};" in " ".join(found.text().split())
    assert rival.likely_tokens_per_s < first.likely_tokens_per_s
    assert recommend.ahead(rival, first).sure < 0.5
    assert recommend._apart(7.7812, 7.7834) == ["7.781", "7.783"]
    assert recommend._apart(842.0, 844.0) == ["842", "844"]


def test_other_software_needs_no_command():
    found = dse.recommend(model="llama3.1-8b", devices=["1xh100"], quantizers=["oaken"], other_software=True)
    assert (found.best["quantizer"], found.command) == ("oaken", "")
    assert "no command: " in found.text()


@quick_first(4, "seed", range(24))
def test_fastest_and_roomiest_are_those_of_every_number_of_every_server(seed):
    """Nothing that the search leaves out, nor another number of servers, is faster or holds more for the money, of
    servers as engines have them, and in the settings that save some."""
    asked = problem(seed)
    try:
        found = dse.recommend(**asked)
    except InputError:
        return
    amount, usd = float(found.search.demand.amount), found.search.spent_usd
    fleets = []
    for server in {*found.search.grid.servers, *(fleet.server for fleet in found.search.found)}:
        if not (common.competes(server.fixed) and server.holds and server.starts):
            continue
        if server.is_unscored and not found.first.server.is_unscored:
            continue
        price = found.search.price(server)
        for n in count(server.count(amount)):
            cost = price.usd_per_hour(server.n_devices, n)
            if cost > usd * TIE or n > (asked.get("requests", n)):
                break
            fleets.append(search.Fleet(server, n, cost, amount))
    assert found.search.fastest.time_s == pytest.approx(min(fleet.time_s for fleet in fleets))
    assert found.search.roomiest.holds == pytest.approx(max(fleet.holds for fleet in fleets))


def test_a_file_of_llama_cpp_is_run_by_llama_cpp():
    found = dse.recommend(model="Qwen3-32B-Q4_K_M.gguf", devices=["1xrtx-4090"], input_tokens=4096, output_tokens=500)
    assert {row["stack"] for row in found.table.to_dict("records")} == {"llama.cpp"}
    assert found.command.startswith("llama-server ")


def test_what_alternatives_give_is_in_the_measure_of_the_order():
    """Of full devices: the card, the table and other engines name what is likely, and none more than the first."""
    asked = {"model": "llama3.1-70b", "devices": ["8xh100"], "input_tokens": 8192, "output_tokens": 1024}
    full = dse.recommend(max_tpot="50 ms", quantizers="fp16,fp8", **asked)
    likely = list(full.table["likely_tokens_per_s"])
    assert full.best["likely_tokens_per_s"] == likely[0] > full.best["tokens_per_s"]
    assert [*likely] == sorted(likely, reverse=True)
    vllm = full.table[full.table["stack"] == "vllm"].iloc[0]
    assert f"vllm likely {vllm['likely_tokens_per_s']:,.0f} tok/s" in " ".join(str(full).split())


@each("weights", ["bf16", "fp8"])
def test_the_interval_of_a_card_is_what_limits_are_tested_on(weights):
    """A limit at the upper end of an INT4 card's TPOT needs no more servers, one just below does."""
    asked = {"model": "llama3.1-8b", "devices": "l40s", "rate": 5, "input_tokens": 2048, "output_tokens": 300}
    asked |= {"weights": weights, "quantizers": "int4_per_token_head", "engines": "vllm", "most": 1}
    asked |= {"prompt_budget_tokens": 2048, "max_num_seqs": 256, "gpu_memory_utilization": 0.92}
    card = dse.recommend(**asked).best
    high = card["tpot_s_high"]
    assert card["time_high_s"] == high > card["tpot_s"]
    assert dse.recommend(max_tpot=1.001 * high, **asked).best["n_servers"] == card["n_servers"]
    assert dse.recommend(max_tpot=0.98 * high, **asked).best["n_servers"] > card["n_servers"]


def test_a_format_without_scores_of_long_tasks_is_recommended_where_it_is_named():
    """Scores of INT4 a token and head: two of one test of short answers, one without an interval (kv_scores.csv)."""
    asked = {"model": "llama3.1-8b", "devices": "l40s", "rate": 5, "engines": "vllm"}
    name = "int4_per_token_head"
    assert name in dse.recommend(**asked).search.grid.left_out
    assert name in dse.recommend(max_drop=0.2, **asked).search.grid.left_out
    assert "fp8" in dse.recommend(**asked).search.grid.formats  # whose own scores of llama3.1-8b are of short answers
    assert dse.recommend(quantizers=name, max_drop=0.2, **asked).best["quantizer"] == name


def test_full_devices_give_the_most_tokens_for_a_budget():
    """One server of 8 H200 costs more than one of 4 B200, and gives more tokens for the same 40 USD."""
    asked = {"input_tokens": 4096, "output_tokens": 1024, "max_tpot": "50 ms", "budget": "40/h"}
    both = dse.recommend(model="kimi-k2.5", devices=["8xh200", "8xb200"], **asked).best
    alone = dse.recommend(model="kimi-k2.5", devices=["8xh200"], **asked).best
    assert both["tokens_per_s"] >= alone["tokens_per_s"]


def test_todays_server_on_full_devices_is_changed_for_more_throughput():
    today = "vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8"
    asked = {"input_tokens": 4096, "output_tokens": 1024, "max_tpot": "50 ms"}
    found = dse.recommend(devices=["8xh200"], start=today, **asked)
    assert "deepseek-ai/DeepSeek-R1" in found.command
    assert not found.changes.is_nothing
    assert found.changes.times == pytest.approx(found.best["tokens_per_s"] / found.changes.today.fleet.tokens_per_s)


def most_is_held(asked):
    """Whether an answer names the most load, by its own search: that is held, 5 % more is not and names the same."""
    with pytest.raises(InputError) as error:
        dse.recommend(**asked)
    if not (said := re.search(r"or ask for (\S+) request\S*( at once)? at most$", str(error.value))):
        return False
    name, most = ("requests", int(said[1])) if "requests" in asked else ("rate", float(said[1]))
    assert dse.recommend(**{**asked, name: most}).first.holds >= most
    with pytest.raises(InputError) as error:
        dse.recommend(**{**asked, name: 1.05 * most if name == "rate" else math.ceil(1.05 * most)})
    assert f"ask for {said[1]} request" in str(error.value)
    return True


class TestHints:
    """What an answer says would change it, typed."""

    @pytest.mark.parametrize(
        "asked",
        [
            {"model": "llama3.1-70b", "devices": ["8xh100"], "requests": 77, "input_tokens": 8192, "max_tpot": "50 ms"},
            {"model": "qwen3-32b", "devices": ["8xh100"], "rate": 20_000, **ASKED},
            {"model": "gpt-oss-120b", "devices": ["h100"], "rate": 10, "budget": "20/h", "cloud": "aws"},
            {"model": "qwen3-8b", "devices": ["8xh100", "4xl40s"], "rate": 900, "objective": "throughput"},
        ],
    )
    def test_the_most_load_is_held_and_five_percent_more_is_not(self, asked):
        asked = {"engines": ["vllm"], "quantizers": ["fp16"], **asked}
        assert most_is_held(asked)

    @quick_first(2, "seed", range(30))
    def test_the_most_load_of_drawn_questions(self, seed):
        asked = problem(seed)
        name, much = ("rate", 1e5) if "rate" in asked else ("requests", 100_000)
        lot = random.Random(seed)
        if lot.random() < 0.5:
            asked["devices"] = [f"{lot.choice((1, 2, 8))}x{device}" for device in asked["devices"]]
        else:
            asked["budget"] = f"{lot.choice((8, 20, 33))}/h"
        asked[name] = much
        most_is_held(asked)

    def test_within_the_budget_is_what_is_said_of_what_it_leaves_out(self):
        """By hand, prices of AWS: 20 USD buy two H100 of 6.88, a third is 20.64; 28 USD are beyond twice the best."""
        asked = {"model": "gpt-oss-120b", "rate": 10, "input_tokens": 2048, "output_tokens": 500, "cloud": "aws"}
        asked |= {"devices": ["h100", "a100-80gb"], "engines": ["vllm"]}
        less, more = (" ".join(dse.recommend(budget=f"{usd}/h", **asked).text().split()) for usd in (20, 28))
        assert "16-bit keys and values: none that runs within the budget." in less
        assert "a100-80gb none that runs within the budget." in less
        assert "twice the load nothing within the budget -" in less
        assert "16-bit keys and values: 20.64 USD an hour (3 x H100" in more

    def test_nothing_but_what_is_given_is_said_to_limit(self):
        found = dse.recommend(model="qwen3-8b", devices=["1xl40s"], engines=["vllm"], quantizers=["fp16"], rate=0.9)
        assert "twice the load nothing within the devices -" in " ".join(found.text().split())
        assert recommend._within(["the limits", "the devices", "the budget"]) == (
            " within the limits, the devices and the budget"
        )

    def test_the_load_just_below_which_another_is_best_is_typed(self, found):
        said = " ".join(found.text().split())
        for word, factor in (("below", 1 - 1e-6), ("above", 1 + 1e-6)):
            load, servers, device = re.search(rf"just {word} (\S+) requests/s (\d+) x (?:\d )?(\w+),", said).groups()
            best = dse.recommend(devices=["h100", "b200", "l40s"], rate=float(load) * factor, **ASKED).best
            assert (best["n_servers"], best["device"]) == (int(servers), device)

    def test_a_limit_that_few_servers_keep_is_named_where_none_keeps_it(self):
        asked = {"model": "qwen3-8b", "devices": ["h100", "l40s"], "engines": ["vllm"], "rate": 5}
        with pytest.raises(InputError) as error:
            dse.recommend(max_ttft="1 ms", **asked)
        limit, n, idle = re.search(
            r"allow --max-ttft (\S+) or more, which (\d+) x .* keeps at this load, an idle server TTFT (\S+) ms ",
            str(error.value),
        ).groups()
        few, many = (dse.recommend(max_ttft=limit, **asked) for limit in (limit, f"{idle} ms"))
        assert few.best["n_servers"] <= int(n) == 1
        assert few.best["usd_per_hour"] < many.best["usd_per_hour"] / 10

    def test_the_engine_limits_requests_where_memory_has_room(self):
        """vLLM takes 1,024 on a B200 though 1,047 of these fit."""
        found = dse.recommend(
            model="qwen3-32b",
            devices=["1xb200"],
            engines=["vllm"],
            quantizers=["int4_per_token_head"],
            requests=1000,
            input_tokens=1024,
            output_tokens=500,
        )
        assert found.best["holds"] == 1024 < found.first.server.point.max_batch
        assert found.best["first_limit"] == "requests at once of the engine"
        full = dse.recommend(model="qwen3-32b", devices=["1xb200"], engines=["vllm"], quantizers=["fp16"], requests=9)
        assert full.best["first_limit"] == "memory"

    @pytest.mark.parametrize("size", ["10GB", "256GiB", "1500MB", "12345"])
    def test_bytes_are_said_as_they_are_written(self, size, run):
        line = f"recommend --model qwen3-8b --devices h100 --rate 1 --host-cache {size}"
        assert f"host-cache = {size}: has no effect without" in run(*line.split())[2]

    def test_words_of_one_request_and_of_means(self):
        found = dse.recommend(model="qwen3-8b", devices=["h100"], engines=["vllm"], quantizers=["fp16"], rate=1)
        said = " ".join(found.text().split())
        assert "qwen3-8b, 1 request/s of 1,024" in said
        assert "to each server its share; times are means of all requests." in said


@each(
    ("number", "digits", "down", "up"),
    [
        (74.63, 3, 74.6, 74.7),
        (7.2, 3, 7.2, 7.2),
        (76.0, 3, 76, 76),
        (12_345, 3, 12_300, 12_400),
        (0.0518, 2, 0.051, 0.052),
    ],
)
def test_rounded(number, digits, down, up):
    assert (recommend.rounded(number, False, digits), recommend.rounded(number, True, digits)) == (down, up)


@pytest.mark.parametrize("load", [{"rate": 5}, {"requests": 50}, {"devices": ["2xh100"]}], ids=str)
def test_a_search_is_freed_as_soon_as_its_answer_is(load):
    """Nothing that it holds holds it: else a server of many readers keeps searches until garbage is looked for."""
    found = dse.recommend(
        **{"model": "llama3.1-8b", "devices": ["h100"], "output_tokens": 200, "max_tpot": "50 ms", **load}
    )
    servers = [weakref.ref(server) for server in found.search.grid.servers]
    settings = [
        weakref.ref(other)
        for server in found.search.grid.servers
        for other in server.found.values()
        if type(other) is type(server)
    ]
    gc.disable()
    try:
        del found
        assert not [ref for ref in (*servers, *settings) if ref() is not None]
        assert servers
    finally:
        gc.enable()
