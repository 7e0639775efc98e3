"""Bits by token, their sums and ledgers against loops over tokens, for random models and quantizers."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

import naive
from cases import each
from dse import quantizers
from dse.model import kv_bytes
from dse.model import kv_layout as plan
from dse.model.generation import pieces_of
from dse.specs.device_and_model import LayerKV
from factories import (
    CHUNKED_PLANS,
    PLANS,
    QUANTIZERS,
    Sequence,
    as_groups,
    build,
    layer,
    model,
    point_of,
    seen,
    sequence,
    unused_bits,
    whole,
)


@given(CHUNKED_PLANS, st.integers(1, 200))
def test_bits_are_the_loop_over_tokens(kv, n):
    counted = sequence(kv)
    stored = naive.sequence_bits(as_groups(kv), n)
    assert counted.bits(n) == kv.bits(n) == stored
    read = [(seen(kv, g, n), group) for g, group in zip(kv.groups, as_groups(kv, read=True), strict=True)]
    assert counted.read_bits(n) == sum(naive.sequence_bits([group], kept) for kept, group in read)


@given(PLANS, st.integers(1, 200), st.integers(1, 20))
def test_a_whole_sequence_is_its_tokens_and_the_rest_of_its_last_pages(kv, n, page):
    design, unused = point_of(kv, page=page).design, unused_bits(kv, n, page)
    limits = kv_bytes.limits_for(design.policy, 1)
    assert kv_bytes.sequence_bits(design, limits, n) == naive.sequence_bits(as_groups(kv), n) + unused
    assert sequence(kv).padding_bits(n, page) == unused
    without = design._replace(load=design.load._replace(has_cache=0))
    assert kv_bytes.sequence_bits(without, limits, n) == 0


@given(CHUNKED_PLANS, st.integers(0, 120), st.integers(1, 120), st.sampled_from(["fused", "materialised"]))
def test_pieces_cover_every_step_exactly(kv, n_in, n_out, path):
    design = point_of(kv, dequant_path=path).design._replace(input_tokens=n_in, output_tokens=n_out)
    counted = Sequence(design)
    n = n_in
    for piece in pieces_of(design, counted.limits)[0]:
        read, slope = whole(piece.read_bytes * 8 * kv.den), whole(piece.read_slope * 8 * kv.den)
        for i in range(piece.n_steps):
            n += 1
            assert read + slope * i == counted.read_bits(n)
            pairs = sum(
                each.n_layers
                * naive.seen_tokens(n, each.window or n, each.chunked)
                * 2
                * kv.model.n_q_heads
                * each.score_dim
                for each in kv.model.layers
            )
            recomputed = sum(g.n_read_layers * seen(kv, g, n) * g.layout.read_flops for g in kv.groups)
            assert piece.flops + piece.flops_slope * i == counted.flops(n) == pairs + recomputed
            unpacked = sum(
                g.n_read_layers * g.n_elements * naive.packed_tokens(seen(kv, g, n), g.step_tokens, g.residual_tokens)
                for g in kv.groups
                if g.layout.needs_dequantizing
            )
            by_cores, copied = unpacked * (path == "fused"), unpacked * (path == "materialised")
            assert piece.by_cores + piece.by_cores_slope * i == by_cores
            assert piece.copied_bytes + piece.copied_slope * i == 4 * copied  # written and read in FP16
            assert piece.by_engine == piece.by_engine_slope == 0
    assert n == n_in + n_out


@each("name", QUANTIZERS)
def test_sixty_bit_sizes_stay_exact_integers(name):
    quantizer = quantizers.parse(name)
    kv = plan.build(model(layer(n_layers=100, n_kv_heads=64, dim=128)), quantizer, quantizer)
    n = 2**60
    by_hand = 0
    for g in kv.groups:
        packed = (n - g.residual_tokens) // g.step_tokens * g.step_tokens
        bits = packed * g.packed_bits + (n - packed) * g.full_bits + g.once_bits + g.pool_bits
        by_hand += g.n_stored_layers * bits
    for found in (kv.bits(n), sequence(kv).bits(n)):
        assert isinstance(found, int)
        assert found == by_hand


def llama2_7b_bits(name, which="key", n_heads=32, head_dim=128):
    return quantizers.parse(name).layout(quantizers.TensorShape(which, n_heads, head_dim)).effective_bits


@each(
    ("name", "which", "bits"),
    [  # by hand, d = 4096 in 32 heads of 128
        ("fp16", "key", 16),
        ("bf16", "value", 16),
        ("fp8", "key", 8),
        ("int8", "key", 8 + Fraction(32, 4096)),
        ("int8:granularity=tensor", "key", 8),
        ("int4:scale=fp16", "value", 4 + Fraction(16, 4096)),
        ("kivi", "key", 3),  # 2 + 32/32
        ("kivi:bits=4,group=128", "value", Fraction(17, 4)),
        ("sinkq", "key", Fraction(9, 4)),  # 2 + 32/128
        ("sinkq:group=256", "value", Fraction(9, 4)),  # values group inside the head: 2 + 32/128
        ("nqkv", "key", 4 + Fraction(16, 256)),
        ("nqkv:absmax=fp32", "key", 4 + Fraction(32, 256)),
        ("qserve", "value", Fraction(17, 4)),
        ("qserve:mode=artifact", "value", 4 + Fraction(32, 4096)),
        ("atom", "key", Fraction(17, 4)),
        ("tender", "key", 4 + Fraction(16, 128)),
        ("tender", "value", 4),
        ("kvquant", "key", Fraction("4.32")),
        ("oaken", "key", Fraction("4.8") + Fraction(96, 4096)),
        ("oaken:outer=0.6,inner=0.3", "key", Fraction("11.2") + Fraction(96, 4096)),
        ("oaken:groups=2/2/90/6,outlier_bits=4", "key", Fraction("4.8") + Fraction(128, 4096)),
        ("oaken:groups=2/2/90/6", "key", Fraction("5.6") + Fraction(128, 4096)),
        ("q8_0", "key", Fraction("8.5")),  # 34, 22, 24, 18 and 20 bytes for 32 elements
        ("q5_0", "value", Fraction("5.5")),
        ("q5_1", "key", 6),
        ("q4_0", "value", Fraction("4.5")),
        ("q4_1", "key", 5),
        ("nvfp4", "key", Fraction("4.5")),  # 4 + 8/16; the factor is stored once
        ("nvfp4_4over6", "value", Fraction("4.5")),
        ("mxfp4:rule=rceil", "key", Fraction("4.25")),  # 4 + 8/32
        ("mxfp8", "value", Fraction("8.25")),
        ("fp4_mx_block16", "key", Fraction("4.5")),
    ],
)
def test_effective_bits_by_hand(name, which, bits):
    assert llama2_7b_bits(name, which) == bits


def test_oaken_stored_bits_count_the_chunks():
    # Oaken packed layout: + 8 * ceil(d / 64) / d = 0.125 at d = 4096
    layout = quantizers.parse("oaken").layout(quantizers.TensorShape("key", 32, 128))
    assert layout.packed_bits_per_token / 4096 == Fraction("4.8") + Fraction(96, 4096) + Fraction(1, 8)


def test_nvfp4_keeps_a_factor_for_keys_and_one_for_values_of_a_layer():
    kv = build(model(layer(n_layers=5, dim=32)), "nvfp4")
    # 5 layers; 2 heads of 32 elements of 4.5 bits for keys and as many for values; 32 bits each once
    assert kv.bits(7) == 5 * 2 * (7 * 64 * 9 // 2 + 32)


def test_sinkq_keeps_no_sinks_in_the_first_two_layers():
    kv = build(model(layer(n_layers=5)), "sinkq:group=16,residual=8")
    # 5 layers, 2 shallow; d = 48; 3 sinks of 16-bit keys and values and one 32-bit position a head
    assert point_of(kv).ledger(100)["sinks"] == 3 * (3 * 2 * 16 * 48 + 3 * 32 * 2)
    assert point_of(kv).ledger(23)["sinks"] == 0  # nothing is packed before 24 tokens


def test_llama_4_reads_its_own_chunk_alone():
    """Of 16,384 tokens 36 layers of Scout read 8,192 each, of 16,385 one; all store 8,192."""
    kv = build("llama4-scout", "fp16")
    for n, in_chunks in ((8192, 8192), (16_384, 8192), (16_385, 1), (20_000, 3616)):
        assert sequence(kv, n).read_bits(n) == (36 * in_chunks + 12 * n) * 2 * 8 * 128 * 16
        assert sequence(kv, n).bits(n) == (36 * min(n, 8192) + 12 * n) * 2 * 8 * 128 * 16
    # scores and sums of 40 heads of 128, over each chunk's triangle and that of all tokens
    triangle = 8192 * 8193 // 2
    assert sequence(kv).prompt_flops(16_385) == (36 * (2 * triangle + 1) + 12 * 16_385 * 16_386 // 2) * 4 * 40 * 128


def test_a_token_adds_its_latent_and_its_index():
    """DeepSeek-V3.2: 576 values of 16 bits, and of its index 128 of 8 bits and a scale of 32."""
    counted = sequence(build("deepseek-v3.2", "fp16"), 100)
    latent = counted.design.tensors[0]
    assert kv_bytes.stored_bits_slope(latent, counted.limits, 5000) == 576 * 16 + 128 * 8 + 32
    assert kv_bytes.stored_bits(latent, counted.limits, 5000) == 5000 * (576 * 16 + 128 * 8 + 32)


def test_mla_stores_the_latent_once():
    latent = LayerKV(n_layers=61, n_kv_heads=1, key_dim=576, value_dim=0, score_dim=1088)
    kv = build(model(latent, n_q_heads=128), "fp16")
    assert kv.bits(1) == 61 * 576 * 16  # DeepSeek-V3: 70,272 bytes a token


def test_a_layer_that_reads_anothers_cache_stores_nothing():
    kv = plan.build(model(layer(n_layers=3), layer(n_layers=2, stored=False)), *[quantizers.parse("fp16")] * 2)
    assert kv.bits(10) == 3 * 2 * 48 * 16 * 10
    assert sequence(kv).read_bits(10) == 5 * 2 * 48 * 16 * 10
