"""Every architecture among the configurations that aiconfigurator-core ships: read, counted, and computed with.

Bytes are by hand, in 16 bits, from the shapes that the models' reports give; what each token adds beyond all windows,
what a window's token takes, what an index keeps of a token, and what a request keeps whatever its length.
"""

import json

import pytest

from cases import each
from dse import quantizers
from dse.core import specfile
from dse.core.errors import InputError, SpecError
from dse.model import kv_bytes, kv_layout
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.huggingface import config as hf_config
from dse.specs.quantity import Quantity
from dse.specs.workload import Workload
from factories import PACKAGED, PACKAGED_CONFIGS, SHIPPED
from naive import naive_states_bytes

needs_package = pytest.mark.skipif(not PACKAGED_CONFIGS, reason="aiconfigurator-core is not for this system")
FAR = 3_000_000

#: model -> bytes that a token adds far beyond all windows, of a token of all windows together, of a token's index, and
#: of states
BYTES = {
    "Qwen--Qwen3.5-27B": (16 * 2 * 4 * 256 * 2, 0, 0, 48 * (48 * 128 * 128 * 4 + (2 * 16 + 48) * 128 * 3 * 2)),
    "Qwen--Qwen3.5-35B-A3B": (10 * 2 * 2 * 256 * 2, 0, 0, 30 * (32 * 128 * 128 * 4 + (2 * 16 + 32) * 128 * 3 * 2)),
    "Qwen--Qwen3.5-122B-A10B": (12 * 2 * 2 * 256 * 2, 0, 0, 36 * (64 * 128 * 128 * 4 + (2 * 16 + 64) * 128 * 3 * 2)),
    "Qwen--Qwen3.5-397B-A17B": (15 * 2 * 2 * 256 * 2, 0, 0, 45 * (64 * 128 * 128 * 4 + (2 * 16 + 64) * 128 * 3 * 2)),
    "nvidia--Qwen3.6-27B-NVFP4": (65_536, 0, 0, 153_944_064),
    "google--gemma-4-26B-A4B": (5 * 2 * 2 * 512 * 2, 25 * 2 * 8 * 256 * 2, 0, 0),
    "nvidia--Gemma-4-31B-IT-NVFP4": (10 * 2 * 4 * 512 * 2, 50 * 2 * 16 * 256 * 2, 0, 0),
    "XiaomiMiMo--MiMo-V2-Flash": (9 * 4 * (192 + 128) * 2, 39 * 8 * (192 + 128) * 2, 0, 0),
    "XiaomiMiMo--MiMo-7B-Base": (36 * 2 * 8 * 128 * 2, 0, 0, 0),
    "stepfun-ai--Step-3.7-Flash": (12 * 2 * 8 * 128 * 2, 33 * 2 * 8 * 128 * 2, 0, 0),
    # keys of 128 in 16 bits in the 57 layers that read 16 blocks of 128
    "MiniMaxAI--MiniMax-M3": (60 * 2 * 4 * 128 * 2, 0, 57 * 128 * 2, 0),
    "MiniMaxAI--MiniMax-M2.5": (62 * 2 * 8 * 128 * 2, 0, 0, 0),
    # 21 layers of 78 have an index of 128 bytes and a scale, which the others share
    "zai-org--GLM-5.2": (78 * 576 * 2, 0, 21 * 132, 0),
    "zai-org--GLM-5": (78 * 576 * 2, 0, 78 * 132, 0),
    "deepseek-ai--DeepSeek-V3.2": (61 * 576 * 2, 0, 61 * 132, 0),
    "deepseek-ai--DeepSeek-V3": (61 * 576 * 2, 0, 0, 0),
    # 21 layers keep an entry of 512 for 4 tokens, and 64 bytes of index; 20 one for 128; all a window of 128. Waiting
    # for an entry: 2 values, FP32, of 2 x 4 x (512 + 128) and of 128 x 512 (as aiconfigurator-core counts them)
    "deepseek-ai--DeepSeek-V4-Flash": (
        21 * 1024 // 4 + 20 * 1024 // 128,
        43 * 1024,
        21 * 64 // 4,
        21 * 8 * 8 * 640 + 20 * 8 * 128 * 512,
    ),
    "deepseek-ai--DeepSeek-V4-Pro": (
        30 * 1024 // 4 + 31 * 1024 // 128,
        61 * 1024,
        30 * 64 // 4,
        30 * 8 * 8 * 640 + 31 * 8 * 128 * 512,
    ),
    "moonshotai--Kimi-K3": (24 * 576 * 2, 0, 0, 69 * (96 * 128 * 128 * 4 + 3 * 96 * 128 * 3 * 2)),
    "moonshotai--Kimi-K2.5": (61 * 576 * 2, 0, 0, 0),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (
        6 * 2 * 2 * 128 * 2,
        0,
        0,
        23 * (64 * 64 * 128 * 4 + (64 * 64 + 2 * 8 * 128) * 3 * 2),
    ),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": (
        8 * 2 * 2 * 128 * 2,
        0,
        0,
        40 * (128 * 64 * 128 * 4 + (128 * 64 + 2 * 8 * 128) * 3 * 2),
    ),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": (
        12 * 2 * 2 * 128 * 2,
        0,
        0,
        48 * (256 * 64 * 128 * 4 + (256 * 64 + 2 * 8 * 128) * 3 * 2),
    ),
    "nvidia--Nemotron-H-56B-Base-8K": (
        10 * 2 * 8 * 128 * 2,
        0,
        0,
        54 * (256 * 64 * 256 * 4 + (256 * 64 + 2 * 8 * 256) * 3 * 2),
    ),
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": (49 * 2 * 8 * 128 * 2, 0, 0, 0),
    "openai--gpt-oss-120b": (18 * 2 * 8 * 64 * 2, 18 * 2 * 8 * 64 * 2, 0, 0),
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": (12 * 2 * 8 * 128 * 2, 36 * 2 * 8 * 128 * 2, 0, 0),
    "Qwen--Qwen3-VL-8B-Instruct": (36 * 2 * 8 * 128 * 2, 0, 0, 0),
}
#: model -> published parameters in billions: in its name, or its card
PUBLISHED = {
    "Qwen--Qwen3.5-27B": 27,
    "Qwen--Qwen3.5-35B-A3B": 35,
    "Qwen--Qwen3.5-122B-A10B": 122,
    "Qwen--Qwen3.5-397B-A17B": 397,
    "nvidia--Gemma-4-31B-IT-NVFP4": 31,
    "XiaomiMiMo--MiMo-V2-Flash": 309,
    "stepfun-ai--Step-3.7-Flash": 196,
    "deepseek-ai--DeepSeek-V4-Flash": 284,
    "deepseek-ai--DeepSeek-V4-Pro": 1600,
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 120,
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 550,
    "nvidia--Nemotron-H-56B-Base-8K": 56,
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": 49.9,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31.6,
    "zai-org--GLM-5.2": 744,
    "MiniMaxAI--MiniMax-M2.5": 229,
    "moonshotai--Kimi-K2.5": 1026,
    "openai--gpt-oss-120b": 116.8,
    "deepseek-ai--DeepSeek-V3.2": 671,
}


def read(name):
    return catalog.model(str(PACKAGED / f"{name}_config.json"))


def plan_of(model):
    fp16 = quantizers.parse("fp16")
    return kv_layout.build(model, fp16, fp16)


@needs_package
@each("path", PACKAGED_CONFIGS)
def test_every_configuration_is_read(path):
    model = catalog.model(str(path))
    assert model.parameters > 0
    found = evaluate(Point(catalog.device("b300"), plan_of(model), Workload(2, 1000, 100, tp=1, weights="nvfp4")))
    assert found["kv_bytes"] > 0


@needs_package
def test_there_are_as_many_as_were_counted():
    assert len(PACKAGED_CONFIGS) == 89


@needs_package
@each("name", BYTES)
def test_bytes_by_hand(name):
    grows, windows, index, states = BYTES[name]
    model = read(name)
    plan = plan_of(model)
    per_byte = 8 * plan.den
    assert (plan.bits(FAR + 1) - plan.bits(FAR)) / per_byte == grows
    assert plan.bits(1) / per_byte == pytest.approx(grows + windows)
    assert model.index_bits / 8 == index
    assert model.state_bytes == states
    point = Point(catalog.device("b300"), plan, Workload(1, 4096, 1, admission="reserve"))
    counted = kv_bytes.sequence_bits(point.design, point.made.limits, 4097) / point.unit
    assert counted == pytest.approx(plan.bits(4097) / per_byte + 4097 * index + states)
    assert evaluate(point)["state_bytes"] == (states or None)


@needs_package
@each("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    assert read(name).parameters == pytest.approx(PUBLISHED[name] * 1e9, rel=0.02)


@needs_package
def test_a_million_tokens_of_deepseek_v4_are_the_published_9_62_gib():
    """Published of V4-Pro in BF16, index keys too (April 2026); here they are FP4, a quarter of that."""
    model = read("deepseek-ai--DeepSeek-V4-Pro")
    grows = BYTES["deepseek-ai--DeepSeek-V4-Pro"][0] + 30 * 128 * 2 // 4
    assert 2**20 * grows / 2**30 == pytest.approx(9.62, abs=0.01)
    assert model.index_bits == 30 * 128 * 4 // 4


@needs_package
@pytest.mark.parametrize("name", ["Qwen--Qwen3.5-27B", "moonshotai--Kimi-K3", "deepseek-ai--DeepSeek-V4-Flash"])
@pytest.mark.parametrize("batch", [1, 7])
def test_states_are_read_and_written_in_every_step(name, batch):
    """At peak rates what a step takes is its bytes over the bandwidth: keys and values once, states twice."""
    model = read(name)
    large = Quantity(value=8, unit="TB", source="made up, to hold the weights", kind="assumed")
    device = catalog.device("h200").with_memory(large)
    work = Workload(batch, 900, 50, model_kind="ideal", memory="paper")
    found = evaluate(Point(device, plan_of(model), work))
    want = naive_states_bytes(model, 900, 50) / 50 / device.memory_bandwidth.si
    assert found["attention_s"] == pytest.approx(batch * want, rel=1e-9)


@needs_package
def test_tensor_parallel_devices_split_states_and_copy_what_waits():
    for name, tp, states in (
        ("Qwen--Qwen3.5-27B", 4, 153_944_064 // 4),
        ("deepseek-ai--DeepSeek-V4-Flash", 4, BYTES["deepseek-ai--DeepSeek-V4-Flash"][3]),
    ):
        found = evaluate(Point(catalog.device("b200"), plan_of(read(name)), Workload(1, 100, 10, tp=tp)))
        assert found["state_bytes"] == states


@needs_package
def test_what_nobody_measured_of_states_is_marked():
    """Kernels of the gated delta rule were measured on an H200; of Mamba-2 the recurrence was not."""
    device, work = catalog.device("h200"), Workload(4, 1000, 100)
    marks = {
        name: "nearest_kernels" in evaluate(Point(device, plan_of(read(name)), work))["assumptions"]
        for name in ("Qwen--Qwen3.5-27B", "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    }
    assert marks == {"Qwen--Qwen3.5-27B": False, "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": True}


@needs_package
@each("key", ["intermediate_size", "mamba_num_heads", "ssm_state_size"])
def test_a_size_that_a_hybrid_lacks_is_named(key):
    data = json.loads((PACKAGED / "nvidia--Nemotron-H-56B-Base-8K_config.json").read_text())
    del data[key]
    with pytest.raises(SpecError, match=f"^config.json: {key}: is missing: add it$"):
        hf_config.from_document(specfile.Document("config.json", data))


OURO = {
    "model_type": "ouro",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "vocab_size": 49152,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}


def document(data):
    return specfile.Document("ouro.json", data)


def test_an_unknown_type_may_have_no_unknown_key():
    """Ouro runs its layers four times and keeps a cache for each (`total_ut_steps`)."""
    assert hf_config.from_document(document(OURO)).name == "ouro"
    with pytest.raises(
        SpecError, match="total_ut_steps = 4: is not understood, and model_type 'ouro' is unknown"
    ) as told:
        hf_config.from_document(document(OURO | {"total_ut_steps": 4}))
    assert len(told.value.lines()) == 1
    assert "--assume-like llama" in str(told.value)


def test_read_as_another_type_the_name_says_so():
    token = hf_config.ASSUMED_LIKE.set("llama")
    try:
        found = hf_config.from_document(document(OURO | {"total_ut_steps": 4}))
    finally:
        hf_config.ASSUMED_LIKE.reset(token)
    assert found.name == "ouro-as-llama"
    assert [note for note in found.notes if "ouro" in note] == ["model_type 'ouro' unknown: read as llama, assumed"]
    assert not [note for note in found.notes if "counted as for" in note]
    with pytest.raises(InputError, match="assume-like = 'lama': is no model_type that is known: did you mean llama"):
        hf_config.check_like("lama")


@needs_package
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("deepseek-ai--DeepSeek-V4-Flash", {"compress_ratios": [0, 3] * 22}, "compress_ratios = .*: 0, 4 or 128"),
        ("deepseek-ai--DeepSeek-V4-Flash", {"compress_ratios": None}, "compress_ratios = None: must be a list of 43"),
        ("nvidia--Nemotron-H-56B-Base-8K", {"hybrid_override_pattern": None}, "hybrid_override_pattern = None"),
        ("deepseek-ai--DeepSeek-V4-Flash", {"head_dim": 500}, "head_dim = 500: must be a multiple of 128"),
        ("nvidia--Nemotron-H-56B-Base-8K", {"hybrid_override_pattern": "MX"}, "hybrid_override_pattern = 'MX'"),
        ("nvidia--Nemotron-H-56B-Base-8K", {"mamba_ssm_cache_dtype": "int3"}, "mamba_ssm_cache_dtype = 'int3'"),
        ("nvidia--Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": []}, "block_configs = .*: must be a list of 80"),
        ("MiniMaxAI--MiniMax-M3", {"sparse_attention_config": {"use_sparse_attention": True}}, "sparse_attention_freq"),
        ("zai-org--GLM-5.2", {"indexer_types": ["shared"] * 78}, "indexer_types = .*: must be a list that begins"),
    ],
)
def test_what_is_wrong_is_named(name, change, message):
    data = specfile.read(str(PACKAGED / f"{name}_config.json")).data
    with pytest.raises(SpecError, match=message) as told:
        hf_config.from_document(document(data | change))
    assert len(told.value.lines()) < 7


@needs_package
@each("name", SHIPPED)
def test_shipped_files_are_what_the_reader_finds(name):
    shipped, found = catalog.model(name), read(SHIPPED[name])
    for field in ("layers", "parameters", "attention_parameters", "expert_parameters", "n_q_heads", "hidden_size"):
        assert getattr(shipped, field) == getattr(found, field), field
    if shipped.published_parameters:
        assert shipped.parameters == pytest.approx(shipped.published_parameters, rel=0.03)


IGNORED = "quantization_config ignored: weights count 16 bits unless --weights says otherwise"
FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}
EXPERTS_ALONE = [
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    "re:.*lm_head.*",
]


def compressed(form: str = "", activations: int | None = None, **weights) -> dict:
    """A quantization_config of compressed-tensors with one group."""
    given = None if activations is None else {"num_bits": activations}
    groups = {"group_0": {"weights": weights, "input_activations": given, "targets": ["Linear"]}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


NVFP4 = {"quant_algo": "NVFP4", "quant_method": "modelopt"}


@each(
    ("config", "more", "weights"),
    [
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, {}, "mxfp4-experts"),
        (FP8_BLOCK, {}, "fp8-block"),
        (FP8_BLOCK | {"modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}, {}, "fp8-block"),
        (FP8_BLOCK | {"modules_to_not_convert": ["model.layers.0.self_attn.o_proj"]}, {}, "fp8-block"),
        (FP8_BLOCK, {"expert_dtype": "fp4"}, "fp8-mxfp4-experts"),  # DeepSeek-V4
        (FP8_BLOCK, {"expert_dtype": "fp3"}, ""),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, {}, ""),
        ({"quant_method": "fp8", "activation_scheme": "static"}, {}, "fp8"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, {}, ""),
        ({"quant_algo": "FP8", "quant_method": "modelopt", "ignore": ["lm_head"]}, {}, "fp8"),
        (NVFP4 | {"ignore": ["lm_head"]}, {}, "nvfp4"),
        # as NVIDIA's checkpoints leave attention; which modules are left is counted in test_released.py
        (NVFP4 | {"ignore": ["model.layers.*.self_attn*"]}, {}, "nvfp4-ffn"),
        (NVFP4 | {"ignore": ["model.layers.0.self_attn*"]}, {}, "nvfp4"),
        (NVFP4 | {"ignore": ["model.layers.0.self_attn*", "model.layers.0.other"]}, {}, "nvfp4"),
        ({"quant_algo": "MIXED_PRECISION", "quant_method": "modelopt"}, {}, ""),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, {}, "int4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, {}, "w8a16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, {}, "int4-of-32"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 48}, {}, ""),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, {}, "nf4"),
        (compressed("mxfp4-pack-quantized") | {"ignore": EXPERTS_ALONE}, {}, ""),  # of a dense model nothing is left
        (compressed("pack-quantized", type="int", num_bits=4, group_size=128), {}, "int4"),
        (compressed("pack-quantized", type="int", num_bits=4, group_size=32), {}, "int4-of-32"),
        (compressed("int-quantized", 8, type="int", num_bits=8, strategy="channel"), {}, "int8"),
        (compressed("float-quantized", 8, type="float", num_bits=8, strategy="channel"), {}, "fp8"),
        (compressed("float-quantized", 8, type="float", num_bits=8, block_structure=[128, 128]), {}, "fp8-block"),
        (compressed() | {"ignore": EXPERTS_ALONE}, {}, ""),
        ("fp8", {}, ""),
    ],
)
def test_weights_are_as_the_file_says_they_were_released(config, more, weights):
    llama = OURO | {"model_type": "llama", "quantization_config": config} | more
    found = hf_config.from_document(document(llama))
    assert found.released == (weights or "bf16")
    assert ([note for note in found.notes if "quantization" in note] == [IGNORED]) is (weights == "")


@needs_package
@pytest.mark.parametrize(
    ("name", "config", "weights"),
    [
        ("gpt-oss-120b", "openai--gpt-oss-120b", "mxfp4-experts"),
        ("kimi-k3", SHIPPED["kimi-k3"], "mxfp4-experts"),
        ("deepseek-v3", "deepseek-ai--DeepSeek-V3", "fp8-block"),
        ("deepseek-v3", "deepseek-ai--DeepSeek-R1", "fp8-block"),
        ("deepseek-v3.2", "deepseek-ai--DeepSeek-V3.2", "fp8-block"),
        ("minimax-m2.5", "MiniMaxAI--MiniMax-M2.5", "fp8-block"),
        ("mimo-v2-flash", SHIPPED["mimo-v2-flash"], "fp8-block"),
        ("kimi-k2.5", "moonshotai--Kimi-K2.5", "int4-experts"),
        ("kimi-k2", "moonshotai--Kimi-K2-Instruct", "fp8-block"),
        ("deepseek-v4-pro", SHIPPED["deepseek-v4-pro"], "fp8-mxfp4-experts"),
        ("qwen3.5-27b", SHIPPED["qwen3.5-27b"], "bf16"),
    ],
)
def test_shipped_files_have_the_weights_that_the_reader_finds(name, config, weights):
    shipped, found = catalog.model(name), catalog.model(str(PACKAGED / f"{config}_config.json"))
    assert shipped.released == found.released == weights
    assert bool(shipped.released_source) == (weights != "bf16")
