"""How weights are stored by a file's own words: formats, modules left in 16 bits, and bytes, each by hand."""

import json

import pytest

from cases import each
from dse.core import specfile
from dse.core.errors import InputError
from dse.model import kv_layout, lower
from dse.quantizers import parse
from dse.specs import catalog, deployment, hub
from dse.specs.device_and_model import Wide
from dse.specs.huggingface import config as hf_config
from dse.specs.workload import Workload
from factories import PACKAGED, PACKAGED_CONFIGS

#: three layers of the gated delta rule and one of attention, 8 experts and a shared one in each
HYBRID = {
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "vocab_size": 1000,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attn_output_gate": True,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
#: parameters: queries with their gate, keys, values, output; of one layer of states, what goes in and comes out
Q, K, V, OUT = 64 * 128, 64 * 32, 64 * 32, 64 * 64
QKV, Z, A, B, LINEAR_OUT = 64 * 64, 64 * 32, 64 * 4, 64 * 4, 32 * 64
FULL, LINEAR = Q + K + V + OUT, QKV + Z + A + B + LINEAR_OUT
SHARED, EXPERTS, HEAD = 3 * 64 * 32, 8 * 3 * 64 * 32, 1000 * 64
ATTENTION = FULL + 3 * LINEAR


def model(quantized, **more):
    data = HYBRID | {"quantization_config": quantized} | more
    return hf_config.from_document(specfile.parse("config.json", json.dumps(data), is_json=True))


def groups(bits: int, size: int, ignore: list[str], targets: tuple[str, ...] = ("Linear",)) -> dict:
    """A quantization_config of compressed-tensors with one group of integers."""
    weights = {"type": "int", "num_bits": bits, "group_size": size}
    group = {"targets": list(targets), "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ignore}


#: cyankiwi's recipe of Qwen3-Next: experts alone
ALL_BUT_EXPERTS = ["lm_head", "re:.*mlp.gate$", "re:.*shared_expert.*", "re:.*linear_attn.*", "re:.*self_attn.*"]
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = GPTQ | {"quant_method": "awq"}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
#: an FP8 parameter in a checkpoint of NVFP4 has 8 - 4.5 of the 16 - 4.5 bits that one in 16 bits has more
MIXED_Q, MIXED_KV, MIXED_OUT = Q * 28 // 92, 2 * (K * 28 // 92), OUT * 28 // 92
MIXED = {
    **{f"model.layers.3.self_attn.{name}_proj": {"quant_algo": "FP8"} for name in "qkvo"},
    **{f"model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(4)},
    "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
}


@each(
    ("quantized", "name", "wide"),
    [
        (groups(4, 32, ALL_BUT_EXPERTS), "int4-experts", {}),
        (
            groups(4, 32, [*ALL_BUT_EXPERTS, "re:.*layers\\.0\\..*"]),
            "int4-of-32",
            {"attention": ATTENTION, "rest": 4 * SHARED, "experts": EXPERTS},
        ),
        (groups(4, 128, ["lm_head"], ("re:.*mlp.experts.*",)), "int4", {"attention": ATTENTION, "rest": 4 * SHARED}),
        # Qwen3.5-27B-GPTQ-Int4
        (
            GPTQ | {"dynamic": {"lm_head": {}, "-:.*attn.*": {}, "-:.*mtp.*": {}, "-:.*visual.*": {}}},
            "int4",
            {"attention": ATTENTION},
        ),
        # 8 bits in groups of 128 have 65 - 33 of the 128 - 33 eighths that 16 bits have more
        (GPTQ | {"dynamic": {"+:.*self_attn.o_proj$": {"bits": 8}}}, "int4", {"attention": OUT * 32 // 95}),
        (AWQ | {"modules_to_not_convert": ["linear_attn", "mlp.gate", "visual"]}, "int4", {"attention": 3 * LINEAR}),
        (AWQ | {"modules_to_not_convert": ["gate"]}, "int4", {}),  # the router, not gate_proj
        (AWQ | {"group_size": 32}, "int4-of-32", {}),
        (AWQ | {"group_size": 48}, "bf16", {}),
        # AutoRound: projections that do not divide
        (
            GPTQ
            | {
                "quant_method": "auto-round",
                "extra_config": {
                    "model.layers.0.linear_attn.in_proj_a": {"bits": 16},
                    "model.layers.[12].linear_attn.in_proj_b": {"bits": 16, "data_type": "fp"},
                },
            },
            "int4",
            {"attention": A + 2 * B},
        ),
        (NVFP4 | {"ignore": ["lm_head", "model.layers.0.linear_attn*"]}, "nvfp4", {"attention": LINEAR}),
        (NVFP4 | {"exclude_modules": ["*self_attn*", "*.linear_attn.*"]}, "nvfp4-ffn", {}),
        # layers of drafts and of a tower have numbers too
        (NVFP4 | {"ignore": ["mtp.layers.0*", "model.visual.layers.1.attn*"]}, "nvfp4", {}),
        (NVFP4 | {"ignore": ["model.layers.1*"]}, "nvfp4", {"attention": LINEAR, "rest": SHARED, "experts": EXPERTS}),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": MIXED},
            "nvfp4",
            {"attention": 3 * LINEAR + MIXED_Q + MIXED_KV + MIXED_OUT, "rest": 4 * SHARED, "narrow_head": HEAD},
        ),
        (FP8 | {"modules_to_not_convert": ["model.layers.3.self_attn.o_proj"]}, "fp8-block", {"attention": OUT}),
        (FP8 | {"ignored_layers": ["model.layers.3.self_attn.qkv_proj"]}, "fp8-block", {"attention": Q + K + V}),
        (NVFP4 | {"ignore": ["re:.*layers.*"]}, "bf16", {}),  # nothing is left
    ],
)
def test_modules_left_in_more_bits(quantized, name, wide):
    found = model(quantized)
    assert found.released == name
    assert {key: n for key, n in found.wide.get(name, Wide()).model_dump().items() if n and key != "source"} == wide


def test_bytes_are_those_of_every_module():
    work = Workload()
    quantized = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": MIXED}
    plain, mixed = model(None), model(quantized)
    form = work.of_model(mixed).weight_format
    # of the layers nothing else has a format: norms, convolutions, routers are in none of these lists, and count as
    # the narrowest, which is less than a hundredth of a percent of a real model
    others = plain.dense_parameters - 2 * HEAD - ATTENTION - 4 * SHARED
    by_hand = 2 * HEAD + 4.5 / 8 * HEAD + FULL + 2 * (3 * LINEAR + 4 * SHARED) + 4.5 / 8 * (4 * EXPERTS + others)
    assert form.name == "nvfp4"
    assert lower.own_bytes(mixed, work.of_model(mixed)) == pytest.approx(by_hand, abs=8)  # each matrix is cut once


@each("tp", [1, 2, 4])
def test_devices_share_what_is_wide(tp):
    whole = model(NVFP4 | {"ignore": ["*linear_attn*", "model.layers.1.mlp*"]})
    part = deployment.rank_of(whole, Workload(tp=tp))
    wide = part.wide["nvfp4"]
    assert wide.rest == SHARED // tp
    assert wide.experts == EXPERTS // tp
    # keys and values of two heads are copied on four devices, so that a device has more than its part of attention
    assert 3 * LINEAR / tp <= wide.attention <= 1.25 * 3 * LINEAR / tp


def test_experts_left_in_16_bits_are_counted():
    quantized, fp16 = model(NVFP4 | {"ignore": ["model.layers.1.mlp.experts*"]}), parse("fp16")
    work = Workload().of_model(quantized)
    plain = model(NVFP4)
    one, other = (lower.beside_bytes(kv_layout.build(spec, fp16, fp16), work) for spec in (quantized, plain))
    assert one - other == EXPERTS * (128 - 36) // 64


@each(
    ("patterns", "said"),
    [
        (["re:(a+)+$"], "(a+)+$"),
        (["re:["], "re:["),
        (["re:" + ".*a" * 9], "a.*a"),
        (["*a*b*c*d*e*f*"], "*a*b"),
        (["model.layers.0.other"], "other"),
        (["x" * 400], "xxx"),
    ],
)
def test_what_is_not_understood_is_a_note(patterns, said):
    found = model(NVFP4 | {"ignore": [*patterns, "lm_head"]})
    (note,) = [note for note in found.notes if "no module that is known" in note]
    assert said in note
    assert found.released == "nvfp4"
    assert found.wide == {}


@each("quantized", [7, [], "fp8", {}, {"quant_method": 3}, {"quant_method": "awq", "bits": "4"}, {"quant_algo": []}])
def test_nonsense_counts_16_bits(quantized):
    assert model(quantized).released == "bf16"


@each(
    "nonsense",
    [
        {"ignore": 3},
        {"ignore": [None, 1, {}]},
        {"exclude_modules": {"a": 1}},
        {"extra_config": {"a": {"bits": "x"}}},
        {"dynamic": {"-:[": {}, "+:a": 3}},
    ],
)
def test_lists_that_are_none_are_left_out(nonsense):
    assert model(GPTQ | nonsense).released == "int4"


def test_lists_of_every_expert():
    names = [f"model.layers.{i % 4}.mlp.experts.{i}.down_proj" for i in range(20_000)]
    assert model(NVFP4 | {"ignore": names}).wide["nvfp4"].experts == 4 * EXPERTS // 3


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}
    quantization["exclude_modules"] = ["lm_head", "model.layers.0.linear_attn*"]
    said = {"producer": {"name": "modelopt", "version": "0.40"}, "quantization": quantization}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    return tmp_path


@each("named", ["", "config.json", "hf_quant_config.json"])
def test_modelopts_file_is_read_beside_config_json(folder, named):
    found = catalog.model(str(folder / named))
    assert (found.released, found.wide["nvfp4"].attention) == ("nvfp4", LINEAR)
    assert found.released_source == "hf_quant_config.json beside its config.json"
    assert any("kv_cache_quant_algo = 'FP8'" in note for note in found.notes)


def test_config_json_says_more_than_the_file_beside_it(folder):
    (folder / "config.json").write_text(json.dumps(HYBRID | {"quantization_config": AWQ}))
    assert catalog.model(str(folder)).released == "int4"


def test_a_config_of_another_name_has_nothing_beside_it(folder):
    (folder / "config.json").rename(folder / "mine.json")
    assert catalog.model(str(folder / "mine.json")).released == "bf16"
    with pytest.raises(InputError, match=r"hf_quant_config.json: says how weights are stored alone: put the model's"):
        catalog.model(str(folder / "hf_quant_config.json"))


def test_a_broken_file_is_named(folder):
    (folder / "hf_quant_config.json").write_text("{")
    with pytest.raises(InputError, match=r"hf_quant_config.json:1: is not valid JSON"):
        catalog.model(str(folder))


def test_an_added_model_keeps_what_is_wide(folder):
    assert hub.find(str(folder)).document.data["quantization_config"]["quantization"]["quant_algo"] == "NVFP4"


@pytest.mark.skipif(not PACKAGED_CONFIGS, reason="aiconfigurator-core is not for this system")
@each(
    ("name", "repository"),
    [
        ("qwen3.6-27b", "nvidia--Qwen3.6-27B-NVFP4"),
        ("qwen3.6-35b-a3b", "nvidia--Qwen3.6-35B-A3B-NVFP4"),
        ("deepseek-v3.2", "nvidia--DeepSeek-V3.2-NVFP4"),
        ("deepseek-v4-pro", "nvidia--DeepSeek-V4-Pro-NVFP4"),
        ("deepseek-v4-flash", "nvidia--DeepSeek-V4-Flash-NVFP4"),
        ("minimax-m3", "nvidia--MiniMax-M3-NVFP4"),
        ("nemotron-3-nano-30b-a3b", "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"),
    ],
)
def test_shipped_models_have_what_the_makers_files_say(tmp_path, name, repository):
    tmp_path.mkdir(exist_ok=True)
    for file in ("config.json", "hf_quant_config.json"):
        (tmp_path / file).write_bytes((PACKAGED / f"{repository}_{file}").read_bytes())
    found, shipped = catalog.model(str(tmp_path)), catalog.model(f"nvidia/{name}-NVFP4")
    assert shipped.released == found.released == "nvfp4"
    assert shipped.wide["nvfp4"].model_dump(exclude={"source"}) == found.wide["nvfp4"].model_dump(exclude={"source"})
