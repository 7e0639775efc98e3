"""Formats of weights: bytes by hand, and beside the sizes of published checkpoints."""

import pytest

from dse.core.errors import InputError
from dse.model.evaluate import Point
from dse.model.formulas.weights import stored_weight_bytes
from dse.model.kv_layout import build
from dse.quantizers import parse as quantizer
from dse.specs import catalog, weights
from dse.specs.workload import Workload

#: bytes of 1,024 weights, codes and scales counted one by one
BY_HAND = {
    "bf16": 1024 * 2,
    "fp8": 1024,
    "fp8-block": 1024,  # a 4-byte scale for 16,384 weights is not counted
    "nvfp4": 1024 // 2 + 1024 // 16,  # half a byte each, an FP8 scale for every 16
    "int4": 1024 // 2 + 2 * (1024 // 128),  # a 16-bit scale for every 128
    "mxfp4-experts": 1024 // 2 + 1024 // 32,  # an 8-bit exponent for every 32
    "nvfp4-experts": 1024 // 2 + 1024 // 16,
    "int4-experts": 1024 // 2 + 2 * (1024 // 128),
}


def test_every_format_is_counted_here():
    assert set(BY_HAND) == set(weights.FORMATS)


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_bytes_of_a_thousand_weights_by_hand(name):
    form = weights.parse(name)
    assert stored_weight_bytes(0, 1024, form.dense_eighths, form.expert_eighths) == BY_HAND[name]
    dense = 2 * 1024 if name.endswith("-experts") else BY_HAND[name]
    assert stored_weight_bytes(1024, 0, form.dense_eighths, form.expert_eighths) == dense


def bytes_of(model, name):
    kv = build(catalog.model(model), *[quantizer("fp16")] * 2)
    return Point(catalog.device("b300"), kv, Workload(1, 16, 16, weights=name, tp=8)).weight_bytes * 8


@pytest.mark.parametrize(
    ("model", "name", "published", "within"),
    [
        # gpt-oss model card (arXiv:2508.10925), Table 1: checkpoints of 60.8 GiB and 12.8 GiB
        ("gpt-oss-120b", "mxfp4-experts", 60.8 * 2**30, 0.01),
        ("gpt-oss-20b", "mxfp4-experts", 12.8 * 2**30, 0.02),
        # DeepSeek-R1 on Hugging Face: 689 GB, of which 14 are the module of multi-token prediction, which is not
        # modelled
        ("deepseek-v3", "fp8-block", 689e9 - 14e9, 0.01),
        # Kimi-K2.5 on Hugging Face: 594 GB, groups of 32 in place of 128: 16 / 32 - 16 / 128 bits a weight more
        ("kimi-k2.5", "int4-experts", 594e9, 0.09),
        # Llama-3.1-70B-Instruct in BF16: 141.1 GB
        ("llama3.1-70b", "bf16", 141.1e9, 0.01),
    ],
)
def test_checkpoints_have_their_published_size(model, name, published, within):
    counted = bytes_of(model, name)
    # KV heads that several devices copy are counted on each: a percent at most
    assert counted == pytest.approx(published, rel=within + 0.01)


def test_names_are_those_of_servers():
    assert weights.parse(" NVFP4_experts ") is weights.FORMATS["nvfp4-experts"]
    with pytest.raises(InputError, match=r"weights = 'fp9': is not known: did you mean"):
        weights.parse("fp9")
    with pytest.raises(InputError, match=r"'mxfp4': is not known: did you mean mxfp4-experts, nvfp4\?"):
        weights.parse("mxfp4")


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
