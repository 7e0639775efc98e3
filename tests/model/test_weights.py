"""Formats of weights: bytes by hand, and beside the sizes of published checkpoints."""

import pytest

from dse import quantizers
from dse.core.errors import InputError
from dse.model import deployed, engine, kv_layout, lower
from dse.model.formulas.weights import stored_weight_bytes
from dse.model.point import Point
from dse.specs import catalog, weights
from dse.specs.workload import Workload

#: bytes of 1,024 weights, codes and scales counted one by one
BY_HAND = {
    "bf16": 1024 * 2,
    "fp32": 1024 * 4,
    "fp8-tensor": 1024,
    "mxfp8": 1024 + 1024 // 32,  # an 8-bit exponent for every 32
    "int8": 1024,
    "w8a16": 1024 + 2 * (1024 // 128),
    "nvfp4-ffn": 1024 // 2 + 1024 // 16,
    "mxfp4": 1024 // 2 + 1024 // 32,
    "nf4": 1024 // 2 + 2 * (1024 // 128),  # scales of 64 in 8 bits, and scales of these
    "fp8-mxfp4-experts": 1024 // 2 + 1024 // 32,
    # blocks of 32: 2 bytes of scale and 8, 5 or 4 bits each, for q5_1 and q4_1 2 bytes of minimum as well
    "q8_0": 34 * 32,
    "q5_0": 22 * 32,
    "q5_1": 24 * 32,
    "q4_0": 18 * 32,
    "q4_1": 20 * 32,
    # blocks of 256 of 210 bytes, to an eighth of a bit: 6.5625 -> 6.625
    "q6_k": 1024 * 53 // 64,
    # mixes, bits a weight of Llama-3.1-8B in llama.cpp's table, to an eighth: 5.7036, 5.5704, 4.8944, 4.6672, ...
    "q5_k_m": 1024 * 46 // 64,
    "q5_k_s": 1024 * 45 // 64,
    "q4_k_m": 1024 * 39 // 64,
    "q4_k_s": 1024 * 37 // 64,
    "iq4_nl": 1024 * 37 // 64,
    "iq4_xs": 1024 * 36 // 64,
    "iq3_s": 1024 * 28 // 64,
    "iq3_xxs": 1024 * 25 // 64,
    "mxfp4_moe": 1024 // 2 + 1024 // 32,
    "q3_k_l": 1024 * 34 // 64,
    "q3_k_m": 1024 * 31 // 64,
    "q3_k_s": 1024 * 28 // 64,
    "q2_k": 1024 * 24 // 64,
    "iq3_m": 1024 * 29 // 64,
    "iq3_xs": 1024 * 26 // 64,
    "q2_k_s": 1024 * 22 // 64,
    "iq2_m": 1024 * 22 // 64,
    "iq2_s": 1024 * 20 // 64,
    "iq2_xs": 1024 * 19 // 64,
    "iq2_xxs": 1024 * 17 // 64,
    "iq1_m": 1024 * 15 // 64,
    "iq1_s": 1024 * 14 // 64,
    # by their blocks of 256, of 66 and 54 bytes, and of 128 in 18: 2.0625, 1.6875, 1.125
    "tq2_0": 1024 * 17 // 64,
    "tq1_0": 1024 * 14 // 64,
    "q1_0": 18 * 8,
    # of ik_llama.cpp, bits a weight of its blocks: 6.5, 6.625, 5.5, 5.25, 4.5, 4.25, 4, 4.125, 4, 3.4375, 3.1875, ...
    "q6_0": 26 * 32,
    "iq6_k": 212 * 4,
    "iq5_k": 176 * 4,
    "iq5_ks": 168 * 4,
    "iq4_k": 144 * 4,
    "iq4_ks": 136 * 4,
    "iq4_kss": 128 * 4,
    "iq4_kt": 1024 * 33 // 64,
    "iq3_kl": 1024 * 4 // 8,
    "iq3_k": 1024 * 28 // 64,
    "iq3_ks": 1024 * 26 // 64,
    "iq3_kt": 100 * 4,
    "iq2_kl": 1024 * 22 // 64,
    "iq2_k": 76 * 4,
    "iq2_ks": 1024 * 18 // 64,
    "iq2_kt": 68 * 4,
    "iq2_bn": 64 * 4,
    "iq1_kt": 56 * 4,
    "iq1_bn": 1024 * 13 // 64,
    # 4 bytes of scale and bias for 64
    **{f"mlx-{bits}bit": 1024 * bits // 8 + 4 * (1024 // 64) for bits in (2, 3, 4, 5, 6, 8)},
    # mixes of publishers, as the nearest of llama.cpp's
    "q8_k_xl": 34 * 32,
    **dict.fromkeys(("q6_k_xl", "q6_k_l"), 1024 * 53 // 64),
    **dict.fromkeys(("q5_k_xl", "q5_k_l"), 1024 * 46 // 64),
    **dict.fromkeys(("q4_k_xl", "q4_k_l"), 1024 * 39 // 64),
    "q3_k_xl": 1024 * 34 // 64,
    **dict.fromkeys(("q2_k_xl", "q2_k_l"), 1024 * 24 // 64),
    "fp8": 1024,
    "fp8-block": 1024,  # a 4-byte scale for 16,384 weights is not counted
    "nvfp4": 1024 // 2 + 1024 // 16,  # half a byte each, an FP8 scale for every 16
    "int4": 1024 // 2 + 2 * (1024 // 128),  # a 16-bit scale for every 128
    "int4-ffn": 1024 // 2 + 2 * (1024 // 128),
    "int4-of-64": 1024 // 2 + 2 * (1024 // 64),
    "int4-of-32": 1024 // 2 + 2 * (1024 // 32),
    "mxfp4-experts": 1024 // 2 + 1024 // 32,  # an 8-bit exponent for every 32
    "nvfp4-experts": 1024 // 2 + 1024 // 16,
    "int4-experts": 1024 // 2 + 2 * (1024 // 32),
}


#: eighths of a bit outside experts of GGUF mixes of few bits, by the table: 3.7628, 3.6606, 3.4977, 3.2548, 4.0, 3.64,
#: 3.1593, 2.9697, 2.9294, 2.7403, 2.5882, 2.3824, 2.1460, 2.0042. Experts have less: of IQ1_S's 2.0042 of 8.03 G of
#: parameters, 2.625 and 5.5 of 0.525 G each are embeddings and head, which leaves 1.694 of 6.98 G: 14 eighths
OUTSIDE_EXPERTS = {
    "iq3_m": 30,
    "iq3_s": 29,
    "iq3_xs": 28,
    "iq3_xxs": 26,
    "q3_k_m": 32,
    "q3_k_s": 29,
    **dict.fromkeys(("q2_k", "q2_k_xl", "q2_k_l"), 25),
    "q2_k_s": 24,
    "iq2_m": 23,
    "iq2_s": 22,
    "iq2_xs": 21,
    "iq2_xxs": 19,
    "iq1_m": 17,
    "iq1_s": 16,
}


def test_every_format_is_counted_here():
    assert set(BY_HAND) == set(weights.FORMATS)


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_bytes_of_a_thousand_weights_by_hand(name):
    form = weights.parse(name)
    assert stored_weight_bytes(0, 0, 1024, form.dense_eighths, form.expert_eighths) == BY_HAND[name]
    alone = {
        **{code: 1024 * eighths // 64 for code, eighths in OUTSIDE_EXPERTS.items()},
        "fp8-mxfp4-experts": 1024,
        "mxfp4_moe": 34 * 32,
        **dict.fromkeys(("nvfp4-experts", "mxfp4-experts", "int4-experts"), 2 * 1024),
    }
    dense = alone.get(name, BY_HAND[name])
    assert stored_weight_bytes(1024, 0, 0, form.dense_eighths, form.expert_eighths) == dense
    # of these, 256 in 16 bits: embeddings and output head
    kept = stored_weight_bytes(1024, 256, 0, form.dense_eighths, form.expert_eighths)
    assert kept == 2 * 256 + dense * 3 // 4


def bytes_of(model, name):
    """Bytes of a checkpoint, which no kernel has padded and no device copied."""
    found, form = catalog.model(model), weights.parse(name)
    kept, eighths = found.kept_parameters(form), (form.dense_eighths, form.expert_eighths)
    return stored_weight_bytes(found.dense_parameters, kept, found.expert_parameters, *eighths)


@pytest.mark.parametrize(
    ("model", "name", "published", "within"),
    [
        # gpt-oss model card (arXiv:2508.10925), Table 1: checkpoints of 60.8 GiB and 12.8 GiB
        ("gpt-oss-120b", "mxfp4-experts", 60.8 * 2**30, 0.01),
        ("gpt-oss-20b", "mxfp4-experts", 12.8 * 2**30, 0.02),
        # DeepSeek-R1 on Hugging Face: 689 GB, of which 14 are the module of multi-token prediction, which is not
        # modelled
        ("deepseek-v3", "fp8-block", 689e9 - 14e9, 0.01),
        # Kimi-K2.5 on Hugging Face: 594 GB
        ("kimi-k2.5", "int4-experts", 594e9, 0.01),
        # Llama-3.1-70B-Instruct in BF16: 141.1 GB
        ("llama3.1-70b", "bf16", 141.1e9, 0.01),
    ],
)
def test_checkpoints_have_their_published_size(model, name, published, within):
    assert bytes_of(model, name) == pytest.approx(published, rel=within)


@pytest.mark.parametrize(
    ("model", "tp", "printed_gib"),
    [
        # "Model loading took" of vLLM a device: 0.12 on RTX 5000 Ada and A100, 0.19 on H100, 0.20 on DGX Spark
        ("RedHatAI/Qwen3-14B-FP8-dynamic", 1, 15.34),
        ("cpatonn/Qwen3-Coder-30B-A3B-Instruct-GPTQ-4bit", 1, 15.61),
        ("openai/gpt-oss-20b", 1, 13.70),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", 1, 5.38),
        ("RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w8a8", 2, 12.11),
        ("Qwen3.5-27B-NVFP4", 1, 18.48),
        # vllm-project/recipes, pull request 810: two RTX 5090
        ("Inferact/Qwen3.8-27B-NVFP4", 2, 12.02),
        ("Qwen/Qwen3.8-27B-FP8", 2, 14.28),
    ],
)
def test_weights_take_what_servers_print(model, tp, printed_gib):
    spec, fp16 = catalog.model(model), quantizers.parse("fp16")
    work = Workload(tp=tp).of_model(spec)
    plan = deployed.on_one_device(kv_layout.build(spec, fp16, fp16), work)
    n_bytes = lower.own_bytes(plan.model, work) + lower.beside_bytes(plan, work)
    assert n_bytes / 2**30 == pytest.approx(printed_gib, rel=0.02)


@pytest.mark.parametrize("memory", ["server", "paper"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_a_size_takes_the_place_of_what_is_counted(memory, tp, pp):
    spec, fp16 = catalog.model("llama3.1-8b"), quantizers.parse("fp16")
    size = 10 * 2**30 + 1
    work = Workload(tp=tp, pp=pp, memory=memory, weights="int4", weights_size_bytes=size)
    found = engine.evaluate(Point(catalog.device("h100"), kv_layout.build(spec, fp16, fp16), work))
    assert found["weight_bytes"] == -(-size // (tp * pp))


@pytest.mark.parametrize("size", [2**29, 100 * 2**30])
def test_a_size_that_no_checkpoint_has_is_refused(size):
    spec, fp16 = catalog.model("llama3.1-8b"), quantizers.parse("fp16")
    work = Workload(weights_size_bytes=size)
    with pytest.raises(InputError, match=r"weights-size = .* GiB: of llama3.1-8b's 8.03 G parameters: give all bytes"):
        engine.evaluate(Point(catalog.device("h100"), kv_layout.build(spec, fp16, fp16), work))


def test_names_are_those_of_servers():
    assert weights.parse(" NVFP4_experts ") is weights.FORMATS["nvfp4-experts"]
    with pytest.raises(InputError, match=r"weights = 'fp9': is not known: did you mean"):
        weights.parse("fp9")
    with pytest.raises(InputError, match=r"'mxfp6': is not known: did you mean mxfp4, mxfp8"):
        weights.parse("mxfp6")


@pytest.mark.parametrize(
    ("bits", "activations", "code"), [(16, 16, "bf16"), (8, 8, "fp8"), (8, 16, "int8"), (4, 16, "int4")]
)
def test_bits_without_a_name_count_no_scales(bits, activations, code):
    found = weights.weight_format(None, bits, activations)
    assert (found.dense_eighths, found.expert_eighths) == (8 * bits, 8 * bits)
    assert {found.dense_code, found.expert_code} == {code}


def test_a_name_goes_before_bits():
    assert weights.weight_format("nvfp4", 16, 16) is weights.FORMATS["nvfp4"]
    with pytest.raises(InputError, match="leave out --weights-bits"):
        Workload(1, 16, 16, weights="fp8", weights_bits=8, activation_bits=8)
