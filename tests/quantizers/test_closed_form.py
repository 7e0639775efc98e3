"""Methods in closed form: bits by hand and from papers, a naive count, what is recomputed; none is measured."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import model_files
from cases import each, quick_first
from dse import data, quantizers
from dse.core.errors import InputError
from dse.measure import kernels
from dse.measure.kernels import Settings
from dse.model import kv_bytes
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.quantizers import FAMILIES, TensorShape
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import assert_one_line, build, layer, model, point_of, sequence
from kernels_ref.zipcache import ZipCache, block_bits

NAMES = [name for name, family in FAMILIES.items() if family.kernel is None and not family.exact]


def layout(name, which="key", n_heads=32, head_dim=128, hidden_size=0, alone=False):
    shape = TensorShape(which, n_heads, head_dim, alone=alone, hidden_size=hidden_size)
    return quantizers.parse(name).layout(shape)


def of_both(name, **shape):
    """Bits of an element of keys and values together."""
    sides = [layout(name, which, **shape) for which in ("key", "value")]
    return sum(side.effective_bits for side in sides) / 2


@each(
    ("name", "bits"),
    [  # by hand, 32 heads of 128; after ;, what a paper prints
        ("rotated", Fraction("4.25")),  # QuaRot and SpinQuant: 4 + (16 + 16) / 128
        ("rotated:zero=code", 4 + Fraction(20, 128)),
        ("rotated:index=2", Fraction("2.25")),
        ("rotated:index=8,dim=2,group=1024,zero=none", Fraction("4.015625")),  # HIGGS p = 2, n = 256; 4.02
        ("rotated:index=6,dim=2,group=1024,zero=none", Fraction("3.015625")),  # n = 64; 3.02
        ("rotated:index=4,dim=2,group=1024,zero=none", Fraction("2.015625")),  # n = 16; 2.02
        ("rotated:index=5,dim=1,group=64,scale_bits=8,zero=none", Fraction("5.125")),
        ("aquakv", Fraction("2.015625")),
        ("aquakv:index=6", Fraction("3.015625")),
        # X of multi-head attention is half of K and V: (4 + (16 + 4) / 128) / 2; 16 / 2.078 = 7.7
        ("xquant", Fraction("2.078125")),
        ("xquant:bits=3,zero=full", Fraction("1.625")),
        ("xquant:store=latent", Fraction("4.15625")),
        # 2 + 32 / 64 + 0.02 * 32 + 16 * 4 / 128 (A); B once: 16 * 4 bits a channel
        ("gear", Fraction("3.64")),
        ("gear:rank=0,outliers=0", Fraction("2.5")),  # KIVI in groups of 64
        ("gear:rank=0,outliers=0", of_both("kivi:group=64")),
        ("gear:outliers=0", Fraction(3)),
        ("gear:outlier_bits=48", Fraction("3.96")),
        ("gear:outliers=0,chunk=128", Fraction("3.5")),  # and B: 16 * 4 / 128
    ],
)
def test_bits_by_hand(name, bits):
    assert of_both(name) == bits


def test_xquant_saves_what_its_paper_prints():
    # section 1: about 7.7 times less memory than FP16 at 4 bits; "immediately" 2 times before any quantization
    assert round(float(16 / of_both("xquant")), 1) == 7.7
    assert of_both("xquant:bits=8") / of_both("rotated:index=8,zero=code") == Fraction(1, 2)


def test_inputs_of_a_model_with_fewer_kv_heads_take_twice_as_much():
    # XQuant section 3.3: of Llama-3.1-8B 4,096 elements of X a token in place of 2,048 of K and V
    assert of_both("xquant", n_heads=8, hidden_size=4096) == 2 * Fraction("4.15625")
    assert of_both("xquant:store=latent", n_heads=8, hidden_size=4096) == Fraction("4.15625")
    kv = build("llama3.1-8b", "xquant")
    # 32 layers of 4,096 codes of 4 bits and 32 groups with 20 bits
    assert kv.bits(1) == kv.den * 32 * (4096 * 4 + 32 * 20)


def test_inputs_are_stored_once_for_both_sides_and_whole_for_one():
    both = [layout("xquant", which).packed_bits_per_token for which in ("key", "value")]
    assert both[0] == both[1] == Fraction(layout("xquant", alone=True).packed_bits_per_token, 2)
    kv = build("llama2-7b", "xquant", "fp16")
    assert kv.bits(1) == kv.den * 32 * (4096 * 4 + 32 * 20 + 4096 * 16)


def test_a_served_slot_of_higgs():
    # 512 channels of a latent in pairs of 16 grid points: 128 bytes of indices and an FP16 scale
    slot = layout("rotated:index=4,dim=2,group=512,zero=none", n_heads=1, head_dim=512)
    assert slot.ledger(1) == {**dict.fromkeys(slot.ledger(0), 0), "payload": 8 * 128, "scales": 16}


def test_a_layer_more_in_a_plan_gives_aquakvs_mean():
    # AQUA-KV keeps the first layer at 4 bits: over the 28 layers of Llama-3.2-3B (4.016 + 27 * 2.016) / 28 = 2.09
    first = of_both("rotated:index=8,dim=2,group=1024,zero=none", n_heads=8)
    assert round(float((first + 27 * of_both("aquakv", n_heads=8)) / 28), 2) == 2.09


def naive_by_token(n, dim, index, group, scale_bits, zero_bits):
    """Bits of a token: walk over its channels."""
    bits = sum(index for channel in range(n) if channel % dim == 0)
    bits += -bits % 8
    return bits + sum(scale_bits + zero_bits for channel in range(n) if channel % group == 0)


@given(
    st.integers(1, 8),
    st.integers(1, 70),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 12),
    st.integers(1, 40),
    st.sampled_from([8, 16, 32]),
    st.sampled_from(["full", "code", "none"]),
    st.integers(0, 9),
    st.integers(0, 30),
)
def test_rotated_is_the_walk_over_channels_and_tokens(
    n_heads, head_dim, dim, index, of_dim, scale, zero, residual, n_tokens
):
    group = dim * of_dim
    name = f"rotated:dim={dim},index={index},group={group},scale_bits={scale},zero={zero},residual={residual}"
    found, n = layout(name, n_heads=n_heads, head_dim=head_dim), n_heads * head_dim
    zero_bits = {"full": scale, "code": index, "none": 0}[zero]
    each = naive_by_token(n, dim, index, group, scale, zero_bits)
    stored = sum(each if token < n_tokens - residual else 16 * n for token in range(n_tokens))
    assert sum(found.ledger(n_tokens).values()) == stored


@given(
    st.integers(1, 4),
    st.sampled_from([10, 24, 33]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([8, 16]),
    st.integers(0, 6),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 100),
    st.sampled_from(["key", "value"]),
)
def test_gear_is_the_walk_over_channels_and_tokens(
    n_heads, head_dim, bits, group, rank, of_group, of_buffer, n_tokens, which
):
    buffer = group * of_group
    chunk = buffer * of_buffer
    name = f"gear:bits={bits},group={group},rank={rank},outliers=0.125,buffer={buffer},chunk={chunk}"
    found, n = layout(name, which, n_heads, head_dim), n_heads * head_dim
    packed = 0
    while packed + buffer <= n_tokens:
        packed += buffer
    codes = packed * n * bits
    if which == "value":
        codes += packed * (-n * bits % 8)
    outliers = sum(Fraction(32, 8) for token in range(packed) for channel in range(n))
    if which == "key":
        groups = sum(1 for token in range(packed) if token % group == 0) * n
    else:
        groups = sum(1 for token in range(packed) for channel in range(n) if channel % group == 0)
    rows, channels = packed * n_heads * rank * 16, n * rank * 16
    n_sets = Fraction(packed, chunk) if chunk else int(packed > 0)
    stored = codes + outliers + 32 * groups + rows + channels * n_sets + (n_tokens - packed) * n * 16
    assert sum(found.ledger(n_tokens).values()) == stored
    assert found.ledger(n_tokens)["low_rank"] == rows + channels * n_sets


def test_what_a_step_recomputes_by_hand():
    # K = X W_k and V = X W_v, a multiplication and an addition each; latent: square matrices of the KV width
    for name, hidden, flops in (
        ("xquant", 4096, 2 * 2 * 4096 * 1024),
        ("xquant:store=latent", 4096, 2 * 2 * 1024**2),
        ("xquant", 0, 2 * 2 * 1024**2),
        ("aquakv", 4096, 2 * (1024**2 + 2 * 1024**2)),
        ("gear", 4096, 0),
        ("rotated", 4096, 0),
    ):
        sides = [layout(name, which, 8, 128, hidden) for which in ("key", "value")]
        assert sum(side.read_flops for side in sides) == flops, name


def test_recomputation_counts_in_decode_steps_and_in_no_prompt():
    shape = layer(n_layers=3, n_kv_heads=2, dim=24, window=50)
    plain, xquant = (build(model(shape), name) for name in ("rotated:index=2,group=48", "xquant"))
    # 64 elements of X, 48 of K and V; at most 50 tokens
    more = 3 * 50 * 2 * 2 * 64 * 48
    assert sequence(xquant).flops(80) - sequence(plain).flops(80) == more
    designs = [point_of(kv).design for kv in (plain, xquant)]
    of_prompt = [kv_bytes.prompt_flops(design.layers, 2**40, 80) for design in designs]
    assert of_prompt[0] == of_prompt[1]
    # where kernels are measured, too
    by_name = {}
    for name in ("rotated:index=2", "xquant"):
        kv = build("llama2-7b", name)
        by_name[name] = Point(catalog.device("a100-80gb"), kv, Workload()).design.kernels
    pairs = zip(*by_name.values(), strict=True)
    assert {new.token_flops - old.token_flops for old, new in pairs} == {4 * 4096**2}


def test_more_heads_of_keys_and_values_take_more_time():
    found = {
        name: evaluate(
            Point(
                catalog.device("a100-80gb"),
                build("llama2-7b", name),
                Workload(batch=8, input_tokens=4096, model_kind="ideal"),
            )
        )
        for name in ("fp16", "rotated:index=2", "xquant")
    }
    assert found["xquant"]["kv_bytes"] < found["rotated:index=2"]["kv_bytes"] < found["fp16"]["kv_bytes"]
    assert found["xquant"]["attention_s"] > found["fp16"]["attention_s"] > found["rotated:index=2"]["attention_s"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rotated:dim=4,group=126", "group = 126: must be a multiple of dim = 4"),
        ("rotated:dim=3", "must be one of 1, 2, 4, 8"),
        ("aquakv:group=1023", "group = 1023: must be a multiple of dim = 2"),
        ("gear:buffer=65", "buffer = 65: must be a multiple of group = 64"),
        ("gear:chunk=100", "chunk = 100: must be 0 or a multiple of buffer = 64"),
        ("gear:outliers=1.5", "a number from 0 to 1"),
        ("xquant:store=k", "must be one of x, latent"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(name, words):
    with pytest.raises(InputError, match=words):
        quantizers.parse(name)


@pytest.mark.parametrize("name", NAMES)
def test_none_is_measured_and_none_is_taken_unasked(name):
    assert not quantizers.FAMILIES[name].by_default
    with pytest.raises(InputError, match=f"'{name}': has no kernel: its bits are known, its error is not; known: "):
        kernels.check(quantizers.parse(name), Settings())


@quick_first(
    1,
    "command, words",
    [
        ("measure SOURCE --quantizers gear", "quantizer = 'gear': has no kernel: its bits are known, its error is not"),
        (
            "measure --perplexity --model MODEL --text TEXT --tokens 40 --quantizers xquant",
            "quantizer = 'xquant': has no cache",
        ),
        ("lab --quantizer rotated", "quantizer = 'rotated': has no kernel"),
    ],
)
def test_commands_that_measure_refuse_them_in_a_line(run, tmp_path, command, words):
    text = tmp_path / "text.txt"
    text.write_text(model_files.TEXT)
    named = {
        "SOURCE": str(Path(data.__file__).parent / "smollm2.npz"),
        "MODEL": str(model_files.directory(tmp_path)),
        "TEXT": str(text),
    }
    asked = [named.get(word, word) for word in command.split()]
    assert_one_line(run(*asked, "--out", tmp_path / "out"), 2, words)


def test_a_family_says_what_it_takes_beside_the_cache(run):
    def shown(name):
        rows = json.loads(run("show", name, "--json")[1])
        return {row["name"]: row["value"] for row in rows if row["unit"] in ("parameter", "FLOP")}

    assert shown("aquakv") == {"predictor_parameters": 3 * 4096**2, "read_flops": 6 * 4096**2}
    assert shown("xquant") == {"read_flops": 4 * 4096**2}
    assert shown("xquant:store=latent") == {"projection_parameters": 2 * 4096**2, "read_flops": 4 * 4096**2}
    assert shown("gear") == shown("kivi") == {}


@pytest.mark.parametrize("salient", ["0", "0.2", "0.6", "1"])
def test_zipcache_is_what_its_kernel_counts(salient):
    spec = quantizers.parse(f"zipcache:salient={salient}")
    own = ZipCache(float(salient))
    for side in ("key", "value"):
        layout = spec.family.layout(dict(spec.values), TensorShape(side, 3, 64))
        # whole blocks of 100 tokens, and 5 in FP16
        bits = sum(layout.ledger(205).values())
        assert bits == 2 * block_bits(own, side, 192) + 5 * 16 * 192
