"""What to run: beside a twin that evaluates every deployment by itself, prices by hand, and what is refused."""

import json
import math
import random
from collections import defaultdict
from functools import cache
from itertools import count
from pathlib import Path
from statistics import median

import pytest

import dse
from cases import each, quick_first
from dse.core.errors import InputError, LimitError
from dse.model import uncertainty
from dse.questions import common, demand, measured_fronts, recommend, search, server_design
from dse.specs import prices
from dse.specs.prices import Offer, Price
from dse.specs.workload import Workload

#: of small models and few devices, so that the twin ends
MODELS = ("llama3.1-8b", "qwen3-8b", "gpt-oss-20b", "mistral-7b")
DEVICES = ("h100", "l40s", "a100-80gb", "b200", "rtx-4090")
TIE = 1 + 1e-9


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
    if seed % 2:
        return {**asked, "rate": lot.choice((0.5, 3.0, 11.0))}
    return {**asked, "requests": lot.choice((3, 17, 60))}


def splits(most):
    return [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2, 4) if tp * pp <= most]


def limits_of(asked):
    """Seconds by column."""
    texts = {"tpot_s": asked["max_tpot"], "ttft_s": asked["max_ttft"]}
    return {name: float(text.split()[0]) / (1e3 if "ms" in text else 1) for name, text in texts.items() if text}


def holds_at_once(asked, design, n):
    """Whether a server surely keeps the limits with `n` requests at all times, all of them in memory."""
    found = dse.evaluate(*design[:3], batch=n, **design[3])
    if not found["feasible"] or not found["runs"] or not found["fits_whole_batch"]:
        return False
    return all(uncertainty.ends(found, name)[1] <= limit * TIE for name, limit in limits_of(asked).items())


def holds_rate(asked, design, rate):
    """Whether a server surely keeps the limits at a rate, up to 0.9 of what it serves at the low end when full."""
    full = dse.evaluate(*design[:3], **design[3])
    if not full["feasible"] or not full["runs"]:
        return False
    found = dse.load(*design[:3], loads=[0.9], **design[3])
    low = min(uncertainty.of_column(full, uncertainty.RATE).low, 1.0)
    if rate > 0.9 * low * found.full_requests_per_s * TIE:
        return False
    waits = found.at(rate)
    return all(waits[name] * found.server.late[name] <= limit * TIE for name, limit in limits_of(asked).items())


def twin(asked):
    """The least USD an hour and the deployments that cost it: devices, format, tp, pp and servers; each by itself."""
    held = holds_rate if "rate" in asked else holds_at_once
    costs = {}
    for device in asked["devices"]:
        usd = dse.device(device).usd_per_hour.si
        for quantizer in asked["quantizers"]:
            for tp, pp in splits(asked["most"]):
                more = {name: asked[name] for name in ("input_tokens", "output_tokens")}
                more |= {"tp": tp, "pp": pp, "stack": asked["engines"][0]}
                ways = [more, {**more, "ep": tp}] if "oss" in asked["model"] and tp > 1 else [more]
                for way in ways:
                    way |= {"pp_batches": 1} if "rate" in asked and pp > 1 else {}
                    for n in count(1):
                        load = asked["rate"] / n if "rate" in asked else math.ceil(asked["requests"] / n)
                        if held(asked, (device, asked["model"], quantizer, way), load):
                            costs[device, quantizer, tp, pp, way.get("ep", 1), n] = n * tp * pp * usd
                            break
                        if load < 0.02 or n == asked.get("requests"):
                            break
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
    assert (best["device"].lower(), *(best[name] for name in ("quantizer", "tp", "pp", "ep", "n_servers"))) in names


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
    """The same number wherever it is read, whether a limit binds or saturation."""
    for tpot, binds in (("20 ms", "TPOT"), ("9 s", "saturated rate")):
        asked = {**ASKED, "max_tpot": tpot, "max_ttft": "20 s"}
        best = dse.recommend(devices=["h100"], quantizers=["fp8"], engines=["vllm"], rate=2, **asked).best
        assert best["first_limit"] == binds
        design = {name: asked[name] for name in ("input_tokens", "output_tokens", "max_tpot", "max_ttft")}
        one = dse.load("h100", "qwen3-32b", "fp8", tp=best["tp"], stack="vllm", **design)
        assert best["holds"] == best["n_servers"] * one.most_within(one.limits)


def test_the_fewest_devices_and_what_other_numbers_of_them_hold(run):
    """Beside `dse.evaluate`: of each layout the most that fit at once; the fastest of the fewest is the answer."""
    lengths = {"input_tokens": 1024, "output_tokens": 1024}
    asked = {"model": "llama3.1-70b", "devices": ["h100"], "quantizers": ["fp16"], "engines": ["vllm"], "most": 4}
    found = dse.recommend(requests=64, objective="devices", **asked, **lengths)
    table, points = found.table, {}
    assert set(table["n_devices_a_server"]) == {2, 4}  # 141.1 GB of weights do not fit on one
    for row in table.to_dict("records"):
        point = dse.evaluate("h100", "llama3.1-70b", tp=row["tp"], pp=row["pp"], **lengths)
        assert row["holds"] == row["n_servers"] * point["max_batch"]
        each = dse.evaluate("h100", "llama3.1-70b", tp=row["tp"], pp=row["pp"], batch=64, **lengths)
        if row["n_servers"] == 1:
            assert row["tokens_per_s"] == pytest.approx(each["throughput_tokens_per_s"])
            points[row["tp"]] = row["tokens_per_s"]
    assert (found.best["n_devices"], found.best["tp"]) == (4, max(points, key=points.get))
    assert "devices a server" in found.text()
    code, out, err = run("ask", "devices", "--device", "h100")
    assert (code, out) == (2, "")
    assert "it is `dse recommend --devices h100" in err


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
        ({}, "rate is missing"),
        ({"rate": 50, "budget": "1/h"}, "one device costs 3 USD"),
        ({"rate": 50, "budget": "7/h"}, "raise --budget"),
        ({"rate": 50, "budget": "free"}, "must be USD an hour above 0"),
        ({"rate": 50, "devices": ["1xh100"]}, "those that there are hold less than 50 requests/s"),
        ({"rate": 1, "price": ["h100=0"]}, "above 0"),
        ({"rate": 1, "price": ["b200=2"]}, "no such device is compared"),
        ({"rate": 1, "cloud": "gcp"}, "cloud = 'gcp'"),
        ({"rate": 1, "cloud": "aws", "devices": ["h200"]}, "no list price of H200"),
        ({"rate": 1, "devices": ["mi300x"]}, "the file of MI300X has none"),
        ({"rate": 1, "devices": ["h100", "h100"]}, "is there twice"),
        ({"rate": 1, "engines": ["vlm"]}, "vlm"),
        ({"rate": 0.0}, "rate = 0"),
        ({"devices": ["1xh100"], "quantizers": ["oaken"]}, "No design here is run"),
        ({"rate": 1, "devices": ["rtx-4090"], "model": "llama3.1-405b", "most": 1}, "no layout fits"),
    ],
)
def test_refused_in_a_line(more, says):
    asked = {"model": "qwen3-8b", "devices": ["h100"], "quantizers": ["fp16"], **more}
    with pytest.raises(InputError) as error:
        dse.recommend(**asked)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


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


def test_half_the_price_changes_the_answer_where_it_says(found):
    """The line of prices: H100 at the price that it names is as cheap."""
    h100 = next(d for d in found.search.ranked if d.server.asked == "h100")
    factor = found.first.usd_per_hour / h100.usd_per_hour
    cheaper = dse.recommend(devices=["h100", "b200", "l40s"], rate=20, price=[f"h100={3 * factor * 0.99}"], **ASKED)
    assert cheaper.best["device"] == "H100"


#: a server of today, and its load
LINE = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4"
LOAD = {"rate": 5, "input_tokens": 4096, "output_tokens": 500, "max_tpot": "30 ms", "max_ttft": "1 s"}
LOGS = Path(__file__).parents[1] / "validate" / "logs"
#: of a server that does not start
FAILS = (LOGS / "vllm-0.19-llama-3.1-8b.log").read_text().partition("Available KV cache")[0] + (
    "\nValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n"
)


class TestFromToday:
    def test_doing_nothing_is_an_answer(self):
        found = dse.recommend(devices=["h100"], engines=["vllm"], start=LINE, **LOAD)
        assert found.changes.is_nothing
        assert found.changes.today.fleet.usd_per_hour == found.best["usd_per_hour"]
        assert "Do nothing" in found.text()

    def test_each_flag_says_what_it_gives(self):
        line = f"{LINE.removesuffix('4')}8 --pipeline-parallel-size 2 --max-num-seqs 4 --enable-foo"
        changes = dse.recommend(devices=["h100"], engines=["vllm"], start=line, **LOAD).changes
        assert changes.left_out == ("--enable-foo",)
        split, others = changes.single
        assert (split.what, others.what) == ("tp 8, pp 2 -> tp 4", "without --max-num-seqs")
        today, split, best = changes.today.fleet, split.fleet, changes.best
        assert changes.saves_usd == pytest.approx(today.usd_per_hour - best.usd_per_hour)
        assert split.usd_per_hour < today.usd_per_hour
        assert best.server.work.max_num_seqs is None

    def test_weights_and_model_are_those_of_the_line(self):
        found = dse.recommend(devices=["h100"], start="vllm serve Qwen/Qwen3-32B-FP8", **LOAD)
        assert found.best["weights"] == "fp8-block"

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
            (f"{LOGS}/llamacpp-llama-3.1-8b-q4_k_m.log", "must be of vLLM, SGLang or TensorRT-LLM"),
            (f"{LOGS}/vllm-0.24-qwen3.6-35b-a3b-nvfp4.log", "the log names 'NVIDIA GeForce RTX 5090': give that one"),
            (f"{LOGS}/vllm-0.6-llama-3.1-8b.log", "the log's has 23.69 GiB"),
            (FAILS, "does not start"),
        ],
    )
    def test_logs_of_no_server_of_today_are_refused(self, log, says, run):
        status, out, err = run("recommend", "--devices", "h100", "--rate", "1", "--from", log)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert says in err

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
        assert named.text().partition(":")[0] in " ".join(found.text().split())


def _shortfalls(cells, key):
    """How far the measured deployment with the largest key is below the best of each cell, as sorted shares."""
    best = [max(one.ratio for one in cell) for cell in cells]
    return sorted(1 - max(cell, key=key).ratio / most for cell, most in zip(cells, best, strict=True))


@pytest.mark.slow
def test_recommended_among_measured_deployments():
    """The deployment that the search ranks first of those measured for one model, lengths and limit on TPOT, over
    devices, engines and layouts (InferenceX and others): in the median the best measured, and better than rules."""
    cells = defaultdict(list)
    for one in measured_fronts.shipped():
        if one.limit_s:
            cells[one.model, one.input_tokens, one.output_tokens, one.limit_s].append(one)
    cells = [cell for cell in cells.values() if len({one.ratio for one in cell}) > 1]
    assert len(cells) == 227

    @cache
    def served(one):
        fields = {name: getattr(one, name) for name in ("input_tokens", "output_tokens", *measured_fronts.LAYOUT)}
        work = Workload(**fields, weights=one.weights or None, stack=one.engine)
        limits = {"tpot_s": one.limit_s}
        design = common.design(one.device.lower(), one.model, one.kv or "fp16")
        return server_design.ServerDesign(one.device, design, work, demand.Demand(demand.AtOnce(None), limits))

    @cache
    def computed(one):
        """Tokens a second and device at the most requests that surely keep the limit; then as computed."""
        server = served(one)
        held = server.holds, server.holds_within({"tpot_s": one.limit_s}, False)
        return tuple(server.results(n)["throughput_tokens_per_s"] / one.n_devices if n else 0.0 for n in held)

    ours = _shortfalls(cells, computed)
    rules = {
        "fewest devices": _shortfalls(cells, lambda one: -one.n_devices),
        "newest": _shortfalls(cells, lambda one: (one.month, one.release)),
        "FP8 always": _shortfalls(cells, lambda one: (one.kv == "fp8", -one.n_devices)),
    }
    # where more load was measured to break the limit: the load that is promised was measured to keep it
    picked = [one for cell in cells if not (one := max(cell, key=computed)).is_open and served(one).holds]
    assert len(picked) >= 80
    assert sum(served(one).holds <= one.requests for one in picked) >= 0.9 * len(picked)
    assert median(ours) <= 0.05
    assert sum(shortfall <= 0.05 for shortfall in ours) >= 0.75 * len(ours)
    assert ours[int(0.9 * len(ours))] <= 0.35  # a third fewer tokens in one of ten
    for rule in rules.values():
        assert median(ours) < median(rule)
        assert ours[int(0.9 * len(ours))] < rule[int(0.9 * len(rule))]


def test_an_objective_without_a_load_is_refused(run):
    status, out, err = run("recommend", "--model", "qwen3-8b", "--devices", "2xh100", "--objective", "energy")
    assert (status, out) == (2, "")
    assert err.startswith("error: objective = 'energy': has no effect without --rate or --requests")


def test_other_software_needs_no_command():
    found = dse.recommend(model="llama3.1-8b", devices=["1xh100"], quantizers=["oaken"], other_software=True)
    assert (found.best["quantizer"], found.command) == ("oaken", "")
    assert "no command: " in found.text()


@quick_first(4, "seed", range(24))
def test_fastest_and_roomiest_are_those_of_every_number_of_every_server(seed):
    """Nothing that the search leaves out, nor another number of servers, is faster or holds more for the money."""
    asked = problem(seed)
    try:
        found = dse.recommend(**asked)
    except InputError:
        return
    amount, usd = float(found.search.demand.amount), found.search.spent_usd
    fleets = []
    for server in found.search.grid.servers:
        if not (common.competes(server.fixed) and server.holds and server.starts):
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
