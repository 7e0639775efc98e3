"""The plan's sums and ledgers against loops over tokens, for random models and quantizers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from dse import plan, quantizers
from dse.specs import LayerKV, ModelSpec

QUANTIZERS = [
    "fp16", "fp8", "int8", "int4", "nqkv:block=64", "qserve", "atom", "tender", "kvquant", "oaken",
    "oaken:groups=2/2/90/6,outlier_bits=4", "kivi:bits=4,group=8,residual=16", "kivi:group=16,residual=32",
    "sinkq:group=16,residual=8", "sinkq:group=32,residual=5,sinks=2,evicted=1",
]  # fmt: skip


def model(*layers, n_q_heads=8):
    return ModelSpec(
        name="toy",
        source="test",
        hidden_size=64,
        vocab_size=100,
        n_q_heads=n_q_heads,
        layers=tuple(layers),
        dense_parameters=1000,
        activation_elements=64,
    )


def layer(n_layers=2, n_kv_heads=2, dim=24, window=None, stored=True):
    return LayerKV(
        n_layers=n_layers,
        n_kv_heads=n_kv_heads,
        key_dim=dim,
        value_dim=dim,
        window=window,
        stored=stored,
        score_dim=2 * dim,
    )


LAYERS = st.builds(
    layer,
    n_layers=st.integers(1, 4),
    n_kv_heads=st.integers(1, 3),
    dim=st.integers(1, 40),
    window=st.none() | st.integers(1, 120),
    stored=st.booleans(),
)
PLANS = st.builds(
    lambda first, layers, key, value: plan.build(
        model(first.model_copy(update={"stored": True}), *layers), quantizers.parse(key), quantizers.parse(value)
    ),
    LAYERS,
    st.lists(LAYERS, max_size=2),
    st.sampled_from(QUANTIZERS),
    st.sampled_from(QUANTIZERS),
)
NO_PATHS = {"key": "fused", "value": "fused"}


def as_groups(kv, read=False):
    return [
        (
            g.n_read_layers if read else g.n_stored_layers,
            Fraction(g.packed_bits),
            g.full_bits,
            g.once_bits,
            g.pool_bits,
            g.step_tokens,
            g.residual_tokens,
            g.window_tokens,
        )
        for g in kv.groups
    ]


@given(PLANS, st.integers(1, 200))
def test_bits_are_the_loop_over_tokens(kv, n):
    assert kv.bits(n) == naive.sequence_bits(as_groups(kv), n)
    assert kv.read_bits(n) == naive.sequence_bits(as_groups(kv, read=True), n)


@given(PLANS, st.integers(1, 200), st.integers(1, 20))
def test_ledger_adds_up_to_the_bits(kv, n, page):
    assert sum(kv.ledger(n, page).values()) * kv.den == kv.bits(n) + kv.padding_bits(n, page)


@given(PLANS, st.integers(0, 120), st.integers(1, 120), st.integers(1, 20))
def test_sums_over_a_generation_are_the_loop(kv, n_in, n_out, page):
    lengths = range(n_in + 1, n_in + n_out + 1)
    assert kv.sum_of_bits(lengths[0], lengths[-1]) == sum(kv.bits(n) for n in lengths)
    assert kv.sum_of_padding_bits(lengths[0], lengths[-1], page) == sum(kv.padding_bits(n, page) for n in lengths)


@given(PLANS, st.integers(0, 120), st.integers(1, 120))
def test_pieces_cover_every_step_exactly(kv, n_in, n_out):
    seen = []
    for piece in kv.pieces(n_in + 1, n_in + n_out, NO_PATHS):
        for i in range(piece.n_steps):
            n = piece.start + i
            seen.append(n)
            assert piece.read_bits + piece.read_slope * i == kv.read_bits(n)
            assert piece.flops + piece.flops_slope * i == kv.flops(n)
            first, slope = piece.unpacked["fused"]
            unpacked = sum(
                g.n_read_layers
                * g.n_elements
                * naive.packed_tokens(min(n, g.window_tokens), g.step_tokens, g.residual_tokens)
                for g in kv.groups
                if g.layout.needs_unpacking
            )
            assert first + slope * i == unpacked
    assert seen == list(range(n_in + 1, n_in + n_out + 1))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_sixty_bit_sizes_stay_exact_integers(name):
    quantizer = quantizers.parse(name)
    kv = plan.build(model(layer(n_layers=100, n_kv_heads=64, dim=128)), quantizer, quantizer)
    n = 2**60
    packed = {g.which: n - (n - g.packed(n)) for g in kv.groups}
    by_hand = sum(
        Fraction(
            g.n_stored_layers
            * (packed[g.which] * g.packed_bits + (n - packed[g.which]) * g.full_bits + g.once_bits + g.pool_bits)
        )
        for g in kv.groups
    )
    assert isinstance(kv.bits(n), int)
    assert kv.bits(n) == by_hand


def llama2_7b_bits(name, which="key", n_heads=32, head_dim=128):
    return quantizers.parse(name).layout(quantizers.TensorShape(which, n_heads, head_dim)).effective_bits


@pytest.mark.parametrize(
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
    ],
)
def test_effective_bits_by_hand(name, which, bits):
    assert llama2_7b_bits(name, which) == bits


def test_oaken_stored_bits_count_the_chunks():
    # Oaken packed layout: + 8 * ceil(d / 64) / d = 0.125 at d = 4096
    layout = quantizers.parse("oaken").layout(quantizers.TensorShape("key", 32, 128))
    assert layout.packed_bits_per_token / 4096 == Fraction("4.8") + Fraction(96, 4096) + Fraction(1, 8)


def test_sinkq_keeps_no_sinks_in_the_first_two_layers():
    kv = plan.build(model(layer(n_layers=5)), *[quantizers.parse("sinkq:group=16,residual=8")] * 2)
    # 5 layers, 2 shallow; d = 48; 3 sinks of 16-bit keys and values and one 32-bit position a head
    assert kv.ledger(100)["sinks"] == 3 * (3 * 2 * 16 * 48 + 3 * 32 * 2)
    assert kv.ledger(23)["sinks"] == 0  # nothing is packed before 24 tokens


def test_mla_stores_the_latent_once():
    latent = LayerKV(n_layers=61, n_kv_heads=1, key_dim=576, value_dim=0, score_dim=1088)
    kv = plan.build(model(latent, n_q_heads=128), *[quantizers.parse("fp16")] * 2)
    assert kv.bits(1) == 61 * 576 * 16  # DeepSeek-V3: 70,272 bytes a token


def test_a_layer_that_reads_anothers_cache_stores_nothing():
    kv = plan.build(model(layer(n_layers=3), layer(n_layers=2, stored=False)), *[quantizers.parse("fp16")] * 2)
    assert kv.bits(10) == 3 * 2 * 48 * 16 * 10
    assert kv.read_bits(10) == 5 * 2 * 48 * 16 * 10
