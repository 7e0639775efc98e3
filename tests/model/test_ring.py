"""Ring attention: against loops over tokens and devices, numbers of its paper, and one device alone."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.cli import main as cli
from dse.core.errors import InputError
from dse.model import engine, ring
from dse.model.formulas import ring as formulas
from dse.model.point import Point
from dse.model.results.ring import RING
from dse.specs import catalog
from dse.specs import device_and_model as specs
from dse.specs.workload import Workload
from factories import PLANS, build, device, layer, model


def link(value):
    return specs.Quantity(value=value, unit="B/s", source="test", kind="measured")


@given(st.integers(1, 25), st.integers(1, 6), st.integers(1, 120))
def test_block_pairs_are_the_loop(block, distance, window):
    pairs = sum(
        distance * block + a - b < window for a in range(block) for b in range(block)
    )  # a: query in the later block, b: key
    assert formulas.ring_block_pairs(block, distance, window) == pairs


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 100))
def test_all_blocks_together_are_causal_attention(block, n_ring, window):
    """Every pair of a windowed causal context is computed by some device in some hop, none twice."""
    n = block * n_ring
    all_pairs = sum(0 <= q - k < window for q in range(n) for k in range(n))
    own = sum(0 <= q - k < window for q in range(block) for k in range(block))
    hops = sum((n_ring - d) * formulas.ring_block_pairs(block, d, window) for d in range(1, n_ring))
    assert n_ring * own + hops == all_pairs


def naive_prompt(kv, dev, batch, n_in, n_ring, bandwidth, hop):
    """Seconds beyond each device's own block: device by device, hop by hop, in exact fractions."""
    block = -(-n_in // n_ring)
    n_blocks = -(-n_in // block)
    total = exposed = Fraction(0)
    for shape in kv.model.layers:
        pair = Fraction(2 * kv.model.n_q_heads * shape.score_dim * batch) / Fraction(dev.peak_flops.si)
        window = shape.window or 10**9

        def busiest(hop_index, window=window):  # pairs of the device with most to do
            found = [0]
            for i in range(hop_index, n_blocks):
                pairs = 0
                for q in range(i * block, (i + 1) * block):
                    for k in range((i - hop_index) * block, (i - hop_index + 1) * block):
                        pairs += 0 <= q - k < window
                found.append(pairs)
            return max(found)

        n_bytes = batch * block * shape.n_kv_heads * (shape.key_dim + shape.value_dim) * 2
        transfer = Fraction(hop) + Fraction(n_bytes) / Fraction(bandwidth)
        computing, at = busiest(0) * pair, Fraction(0)
        for h in range(1, n_blocks):
            if not busiest(h):
                break
            at += max(computing, transfer)  # the next block arrives while this one is computed
            exposed += shape.n_layers * max(0, transfer - computing)
            computing = busiest(h) * pair
        total += shape.n_layers * (at + computing - busiest(0) * pair)
    return float(total), float(exposed)


@given(
    PLANS,
    st.integers(1, 3),
    st.integers(1, 24),
    st.integers(1, 5),
    st.sampled_from([1e6, 1e8, 1e11]),
    st.sampled_from([1e9, 1e12]),
    st.sampled_from([0.0, 3e-6]),
)
def test_the_prompt_is_the_loop_over_devices_and_hops(kv, batch, n_in, n_ring, bandwidth, peak, hop):
    dev = device(peak=peak, launch=hop)
    found = ring.evaluate(dev, kv, Workload(batch, n_in, 1), n_ring, link(bandwidth))
    block = -(-n_in // n_ring)
    alone = engine.evaluate(Point(dev, kv, Workload(batch, block, 1)))["prefill_s"]
    total, exposed = naive_prompt(kv, dev, batch, n_in, n_ring, bandwidth, dev.kernel_launch.si)
    assert found["prefill_s"] == pytest.approx(alone + total, rel=1e-12)
    assert found["exposed_transfer_s"] == pytest.approx(exposed, rel=1e-12, abs=1e-15)


@given(PLANS, st.integers(1, 8), st.integers(1, 200))
def test_a_ring_of_one_is_the_device_alone(kv, batch, n_in):
    found = ring.evaluate(device(), kv, Workload(batch, n_in, 1), 1)
    alone = engine.evaluate(Point(device(), kv, Workload(batch, n_in, 1)))
    assert {name: found[name] for name in ("prefill_s", "max_context_tokens")} == {
        name: alone[name] for name in ("prefill_s", "max_context_tokens")
    }
    half = min(max(g.step_tokens for g in kv.groups) // 2, n_in - 1)  # the mean over a packed group around the end
    around = engine.evaluate(Point(device(), kv, Workload(batch, n_in - half, max(2 * half, 1))))
    same = ("linear_s", "attention_s", "quantize_s", "dequantize_s", "decode_step_s")
    assert {name: found[name] for name in same} == {name: around[name] for name in same}
    assert found["pass_s"] == found["exposed_transfer_s"] == 0
    assert found["max_context_tokens"] == found["max_context_tokens_alone"]


def test_block_size_that_hides_transfers_as_the_paper_has_it():
    # arXiv:2310.01889, 3: with MHA the block must be at least FLOPS / bandwidth: 4 d c^2 / F >= 4 c d / B
    a100 = catalog.device("a100-80gb")  # 312 TFLOP/s over 300 GB/s: 1,040
    found = ring.evaluate(a100, build("llama2-7b", "fp16"), Workload(1, 4096, 1, model_kind="ideal"), 4)
    assert found["hiding_block_tokens"] == 1040
    # six blocks of b * c * h elements in FP16: 4096 / 4 + 1 tokens of 4,096
    assert found["block_tokens"] == 1025
    assert found["buffer_bytes_per_device"] == 6 * 1025 * 4096 * 2
    grouped = ring.evaluate(a100, build("llama2-70b", "fp16"), Workload(1, 4096, 1, model_kind="ideal"), 1)
    assert grouped["hiding_block_tokens"] == 130  # 64 query heads share 8: an eighth of the bytes


def test_times_by_hand():
    dev = device(bandwidth=1e9, peak=1e9, launch=2e-6)
    kv = build(model(layer(n_layers=3, n_kv_heads=2, dim=8), n_q_heads=4), "fp16")
    found = ring.evaluate(dev, kv, Workload(2, 30, 2, model_kind="ideal"), 4, link(1e6))
    assert found["block_tokens"] == 8
    hop = dev.kernel_launch.si
    message = 2 * 4 * (2 * 16 + 8)  # 2 requests, 4 heads, query and output of 8 FP16 each, two statistics
    assert found["pass_s"] == pytest.approx(3 * 3 * (2 * hop + message / 1e6), rel=1e-12)
    attention = max(2 * 8 * 4 * 2 * 16 * 3 / 1e9, 2 * 8 * 3 * 2 * 16 * 2 / 1e9)  # 8 tokens a device
    assert found["attention_s"] == pytest.approx(attention, rel=1e-12)
    # prompt: 4 blocks of 8; a transfer of 2 * 8 * 32 * 2 B = 1,024 us, a block of 64 pairs 64 * 256 ns = 16.4 us
    transfer, block, first = hop + 1024e-6, 64 * 256e-9, 36 * 256e-9
    waits = (transfer - first) + 2 * (transfer - block)
    assert found["exposed_transfer_s"] == pytest.approx(3 * waits, rel=1e-12)


def test_longest_context_fits_and_one_token_more_a_block_does_not():
    kv, dev = build("llama3.1-8b", "fp16"), catalog.device("h100")
    found = ring.evaluate(dev, kv, Workload(2, 1000, 1, memory="paper"), 8)
    block = found["max_context_tokens"] // 8
    free = 80_000_000_000 - 2 * 8_030_261_248
    activations = 2 * kv.model.activation_elements
    per_token = 131_072 + 2 * (2 * 2 * 8 * 128 + 2 * 4096)  # FP16 KV; keys and values twice, query and output
    assert 2 * (block * per_token + activations) <= free < 2 * ((block + 1) * per_token + activations)
    over = ring.evaluate(dev, kv, Workload(2, found["max_context_tokens"], 1, memory="paper"), 8)
    assert not over["feasible"]
    assert over["prefill_s"] is None


def test_links_come_from_data_sheets_or_are_assumed():
    kv = build("llama2-7b", "oaken")
    assert catalog.device("h100").link_bandwidth.si == 450e9
    assert "link_bandwidth" not in ring.evaluate(catalog.device("h100"), kv, Workload(), 2)["assumptions"]
    oaken = ring.evaluate(catalog.device("oaken-lpddr"), kv, Workload(), 2)
    assert "link_bandwidth" in oaken["assumptions"]
    assert oaken["link_bytes_per_s"] == 32e9
    assert "link_bandwidth" not in ring.evaluate(catalog.device("oaken-lpddr"), kv, Workload(), 1)["assumptions"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--devices", "0"], "devices = 0: must be a whole number from 1 to 4,096"),
        (["--link", "fast"], "link = 'fast': must be a number and a unit of B/s"),
        (["--link", "3 GB"], "link = '3 GB': unit must be one of"),
        (["--link", "1e99 GB/s"], "link = '1e99 GB/s': must be"),
        (["--tp", "2"], "tp = 2: devices of a ring hold all weights each: leave it out"),
        (["--input", "x"], "input = 'x': must be a whole number"),
    ],
)
def test_bad_input_is_one_line(args, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["ring", "--device", "h100", "--model", "llama2-7b", *args])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_what_a_ring_does_not_know_is_refused():
    kv = build("llama2-7b", "fp16")
    for change in ({"tokens": "h2o"}, {"admission": "paged"}, {"prefix_tokens": 5}):
        with pytest.raises(InputError, match=r"a ring knows .* only"):
            ring.evaluate(device(), kv, Workload(**change), 2)


@pytest.mark.parametrize(("change", "said"), [({"tp": 2}, "tp = 2"), ({"dp_attention": True}, "dp-attention = True")])
def test_a_ring_splits_no_model(change, said):
    with pytest.raises(InputError, match=f"{said}: devices of a ring hold all weights each"):
        ring.evaluate(device(), build("llama2-7b", "fp16"), Workload(**change), 2)


def test_command_line(capsys):
    words = ["ring", "--device", "a100-80gb", "--model", "mistral-7b", "--quantizer", "kivi", "--devices", "4"]
    with pytest.raises(SystemExit, match="0"):
        cli.main([*words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(RING)
    with pytest.raises(SystemExit, match="0"):
        cli.main([*words, "--link", "12 GB/s"])
    assert "12 GB/s" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        cli.main([*words, "--input", "1000000000"])
    assert "Does not fit" in capsys.readouterr().out or found["max_context_tokens"] is None


def test_windows_pass_only_the_blocks_they_reach():
    windowed = build(model(layer(window=10)), "fp16")
    near = ring.evaluate(device(), windowed, Workload(1, 64, 1), 8, link(1e6))  # blocks of 8: one hop back reaches 9
    far = ring.evaluate(device(), build(model(layer()), "fp16"), Workload(1, 64, 1), 8, link(1e6))
    assert 0 < near["exposed_transfer_s"] < far["exposed_transfer_s"]
