"""`dse ask devices`: every split, and the fewest devices that hold a batch."""

import json

import pytest

from dse import quantizers
from dse.model import kv_layout, uncertainty
from dse.questions import common
from dse.questions.devices import devices
from dse.specs import catalog
from dse.specs.workload import Workload

ASK = ["ask", "devices", "--device", "h100", "--model", "llama3.1-70b"]


def answer(batch=64, most=8, any_size=False, **asked):
    plan = kv_layout.build(catalog.model("llama3.1-70b"), *[quantizers.parse("fp16")] * 2)
    return devices(catalog.device("h100"), plan, Workload(batch=batch, **{"memory": "paper", **asked}), most, any_size)


def test_the_fewest_devices_are_those_whose_memory_holds_weights_and_cache():
    # 141.1 GB of weights on 80 GB each: two hold (160 - 141.1) GB / 0.671 GB = 28 requests, three do not divide, four
    # hold (320 - 141.1) / 0.671 = 266
    found = answer()
    assert [split["n_devices"] for split in found.splits] == [1, 2, 2, 4, 4, 4, 8, 8, 8, 8]
    # 5 stages of 16 layers too, which nobody rents
    assert [split["n_devices"] for split in answer(any_size=True).splits] == [1, 2, 2, 4, 4, 4, 5, 8, 8, 8, 8]
    assert [split["max_batch"] for split in found.splits[:4]] == [0, 28, 28, 266]
    assert (found.fewest["tp"], found.fewest["pp"]) == (4, 1)
    assert answer(batch=28).fewest["n_devices"] == 2
    assert answer(weights_bits=4, batch=1).fewest["n_devices"] == 1
    assert answer(batch=100_000).fewest is None


def test_the_command_prints_the_table_and_says_what_to_do(run):
    code, out, _ = run(*ASK, "--batch", "64", "--most", "4")
    assert code == 0
    answer = out.rstrip().splitlines()[-1]
    assert answer.startswith(
        "Fewest devices that hold the whole batch at once: 4 (--tp 4); the fastest split of them, "
    )
    assert "does not fit" in out
    code, out, _ = run(*ASK, "--batch", "64", "--most", "2")
    assert "ask for more with --most" in out
    code, out, _ = run(*ASK, "--batch", "64", "--most", "4", "--json")
    found = json.loads(out)
    assert found["fewest_devices"] == 4
    assert {split["tp"] * split["pp"] for split in found["splits"]} == {1, 2, 4}
    assert 0.5 < found["sure_of_split"] <= 1
    low, high = found["splits"][-1]["intervals"]["throughput_tokens_per_s"]
    assert low < found["splits"][-1]["throughput_tokens_per_s"] < high
    assert found["splits"][0]["intervals"] == {}  # does not fit


@pytest.mark.parametrize(
    ("device", "most", "lacks"),
    [
        ("h20", 8, "has 8 devices a node, not"),
        ("dgx-spark", 2, "has 2 devices a node, not"),
        ("gh200-96gb", 1, "has 1 device a node, not"),
        ("m3-ultra", 1, "has no link_bandwidth"),
    ],
)
def test_by_default_as_many_as_the_device_file_allows(run, device, most, lacks):
    ask = ["ask", "devices", "--device", device, "--model", "llama3.1-8b", "--quantizer", "fp8", "--batch", "16"]
    code, out, err = run(*ask)
    assert (code, err) == (0, "")
    assert f"\nUp to {most} device" in out
    assert lacks in out
    code, by_hand, _ = run(*ask, "--most", str(most))
    assert code == 0
    assert [line for line in out.splitlines() if not line.startswith("Up to")] == by_hand.splitlines()
    code, out, err = run(*ask, "--most", "16")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert lacks in err
    assert err.endswith(f"or ask for --most {most}\n")


def test_by_default_up_to_sixteen_where_nothing_is_missing():
    found = answer(most=None)
    assert {split["n_devices"] for split in found.splits} == {1, 2, 4, 8, 16}
    # three servers of eight as 3 stages do not divide 80 layers
    assert found.note == found.to_json()["note"] == ""


def test_other_sizes_than_people_rent_are_asked_for(run):
    _, usual, _ = run(*ASK, "--batch", "64", "--most", "5", "--json")
    _, every, _ = run(*ASK, "--batch", "64", "--most", "5", "--any", "--json")
    sizes = [{split["n_devices"] for split in json.loads(out)["splits"]} for out in (usual, every)]
    assert sizes == [{1, 2, 4}, {1, 2, 4, 5}]


def test_where_the_file_allows_no_more_the_answer_asks_for_none(run):
    _, out, _ = run("ask", "devices", "--device", "m3-ultra", "--model", "llama3.1-405b")
    assert out.endswith("On none of them the whole batch fits at once.\n")


def test_bad_input_is_one_line(run):
    for more, said in ((["--most", "0"], "most = 0"), (["--most", "2000"], "most = 2000")):
        code, out, err = run(*ASK, *more)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err


def test_latent_heads_are_shared_by_requests_or_tokens_where_plain_tp_copies_them():
    """DeepSeek-V3, 32 x 132,096 tokens: 576 values of 2 bytes in 61 layers are 297 GB, copied on each
    of eight H200 beside 85.5 GB of weights; shared by eight they are 37.1 GB."""
    plan = kv_layout.build(catalog.model("deepseek-v3"), *[quantizers.parse("fp16")] * 2)
    work = Workload(batch=32, input_tokens=131_072, output_tokens=1_024)
    found = devices(catalog.device("h200"), plan, work)
    assert found.fewest["n_devices"] == 8
    (by_tokens,) = [split for split in found.splits if split["tp"] == 8 and split["pp"] == 1]
    assert by_tokens["dcp"] == 8
    assert by_tokens["kv_bytes"] == 32 * 132_096 * 576 * 2 * 61 // 8
    assert "; the fastest split of them, 5" in found.text()  # as fast, nearly: which of both is first is a coin's throw
    assert "runner-up: --tp 8 --dcp 8" in found.text()
    # what is asked for is kept: experts in slices, every request on all devices
    alone = devices(catalog.device("h200"), plan, Workload(**{**vars(work), "dcp": 2}), most=8)
    assert {split["dcp"] for split in alone.splits} == {2}


def test_the_crown_is_who_is_likelier_better_than_each_other():
    """Of three, by chances: b over a as computed first, and c over none; in a ring all tie."""
    middles = {("a", "b"): 0.9, ("a", "c"): 1.2, ("b", "c"): 1.1}

    def gain(one, other):
        middle = middles.get((one, other)) or 1 / middles[other, one]
        return uncertainty.gain_within(middle / 1.5, middle * 1.5)

    best, gains = common.crowned(["a", "b", "c"], gain)
    assert best == ("b",)
    assert all(one.sure > 0.5 for one in gains.values())
    middles["b", "c"] = 0.8  # b over a, c over b, a over c
    assert set(common.crowned(["a", "b", "c"], gain)[0]) == {"a", "b", "c"}
    middles.update({("a", "b"): 1.0, ("a", "c"): 1.2, ("b", "c"): 1.2})
    assert common.crowned(["a", "b", "c"], gain)[0] == ("a", "b")
