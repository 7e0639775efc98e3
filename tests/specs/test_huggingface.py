"""Hugging Face configs: KV bytes and parameters of known models, refusals, and random damage."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from counted import COUNTED
from dse.core import specfile
from dse.core.errors import InputError, SpecError
from dse.specs.device_and_model import ModelSpec
from dse.specs.huggingface import config as hf_config

GOLDEN = Path(__file__).parents[1] / "golden" / "hf_configs"

# active parameters per token, in billions, as the models' reports give them, and the tolerance of that rounding
ACTIVE = {
    "mixtral-8x7b": (12.9, 0.1),
    "deepseek-v2": (21, 0.5),
    "deepseek-v3": (37, 0.6),
    "kimi-k2": (32, 0.9),
    "qwen3-30b-a3b": (3.3, 0.1),
    "qwen1.5-moe-a2.7b": (2.7, 0.05),
    "dbrx": (36, 0.5),
    "llama-4-scout": (17, 0.3),
    "llama-4-maverick": (17, 0.3),
}

# (layers in a row, window) from the first layer on, as the models' reports describe them
WINDOWS = {
    "llama-3.1-8b": [(32, None)],
    "mistral-7b-v0.1": [(32, 4096)],
    "mistral-7b-v0.3": [(32, None)],
    "mixtral-8x7b": [(32, None)],
    "qwen2.5-7b": [(28, None)],
    "phi-3-mini-4k": [(32, 2047)],
    "starcoder2-7b": [(32, 4096)],
    "gemma-2-9b": [(1, 4096), (1, None)] * 21,
    "gemma-3-4b": [(5, 1024), (1, None)] * 5 + [(4, 1024)],
    "gemma-3n-e4b": [(4, 512), (1, None)] * 7,
    "command-r7b": [(3, 4096), (1, None)] * 8,
    "gpt-oss-20b": [(1, 128), (1, None)] * 12,
    "llama-4-scout": [(3, 8192), (1, None)] * 12,
    "llama-4-maverick": [(3, 8192), (1, None)] * 12,
    "gpt-neo-1.3b": [(1, None), (1, 256)] * 12,
}


def load(name: str) -> ModelSpec:
    return hf_config.from_document(specfile.read(GOLDEN / f"{name}.json"))


def parse(data: dict, folder: Path) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(data, indent=1))
    return hf_config.from_document(specfile.read(path))


def raw(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def test_every_file_has_expected_values():
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(COUNTED)


@each("name", COUNTED)
def test_kv_bytes_and_parameters(name):
    """Parameters within half a percent, or 2 % where only a rounded size is published."""
    model, (kv_bytes, parameters) = load(name), COUNTED[name]
    stored = [group for group in model.layers if group.stored]
    assert sum(g.n_layers * g.n_kv_heads * (g.key_dim + g.value_dim) * 2 for g in stored) == kv_bytes
    if isinstance(parameters, int | float):
        parameters = pytest.approx(parameters, rel=0.005)
    assert parameters is None or model.parameters == parameters


@pytest.mark.parametrize(
    ("model_type", "more", "kv_heads"),
    [
        ("RefinedWeb", {"n_head_kv": 8}, 8),  # the first file of Falcon 40B: groups, though multi_query is true
        ("RefinedWeb", {}, 1),
        ("RefinedWebModel", {}, 1),  # of Falcon 7B
        ("falcon", {"n_head_kv": 8}, 1),  # later files say new_decoder_architecture instead
        ("falcon", {"n_head_kv": 8, "new_decoder_architecture": True}, 8),
    ],
)
def test_kv_heads_of_falcon_before_and_after_it_had_a_model_type(tmp_path, model_type, more, kv_heads):
    old = {"model_type": model_type, "hidden_size": 8192, "n_head": 128, "n_layer": 60, "vocab_size": 65024}
    (group,) = parse(
        {**old, "multi_query": True, "alibi": False, "bias": False, "parallel_attn": True, **more}, tmp_path
    ).layers
    assert (group.n_layers, group.n_kv_heads, group.key_dim) == (60, kv_heads, 64)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters(name):
    billions, tolerance = ACTIVE[name]
    assert float(load(name).active_parameters) / 1e9 == pytest.approx(billions, abs=tolerance)


def test_of_three_layers_the_second_has_experts_where_every_second_has(tmp_path):
    """Of an even number of layers as many have experts whichever comes first."""
    data = raw("llama-4-maverick")
    data["text_config"] |= {"num_hidden_layers": 3, "no_rope_layers": [1, 1, 1]}
    assert parse(data, tmp_path).expert_parameters == 1 * 128 * 3 * 5120 * 8192


@each("name", WINDOWS)
def test_windows_by_layer(name):
    each = [g.window for g in load(name).layers for _ in range(g.n_layers)]
    assert each == [window for n, window in WINDOWS[name] for _ in range(n)]


def test_equal_neighbours_are_one_group():
    assert [g.n_layers for g in load("gemma-3-4b").layers] == [5, 1] * 5 + [4]
    assert [(g.n_layers, g.n_kv_heads) for g in load("openelm-270m").layers] == [(5, 3), (7, 4), (4, 5)]


def test_latent_attention_is_one_head():
    (group,) = load("deepseek-v3").layers
    assert (group.n_kv_heads, group.key_dim, group.value_dim, group.score_dim) == (1, 576, 0, 576 + 512)


def test_latent_attention_with_an_index(tmp_path):
    """DeepSeek-V3.2 and GLM-5: 128 FP8 elements and an FP32 scale of every token and layer, 2,048 tokens read."""
    index = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
    plain, model = load("deepseek-v3"), parse(raw("deepseek-v3") | {"model_type": "deepseek_v32"} | index, tmp_path)
    assert model.read_limit_tokens == 2048
    (layer,) = model.layers
    assert (layer.index_bits, layer.index_flops) == (128 * 8 + 32, 2 * 64 * 128)
    assert layer.model_copy(update={"index_bits": 0, "index_flops": 0, "read_limit_tokens": None}) == plain.layers[0]
    assert model.index_bits == 61 * 1056
    # of a layer: 1536 * 64 * 128 queries, 7168 * 128 keys with a norm of 2 * 128, 7168 * 64 weights of heads
    assert model.parameters - plain.parameters == 61 * (12_582_912 + 917_504 + 256 + 458_752)
    assert model.attention_parameters - plain.attention_parameters == model.parameters - plain.parameters
    shared = parse(
        raw("deepseek-v3")
        | {"model_type": "deepseek_v32"}
        | index
        | {"indexer_types": ["full", "shared"] * 30 + ["full"], "index_topk_freq": 2},
        tmp_path,
    )
    assert shared.index_bits == 31 * 1056
    assert {group.read_limit_tokens for group in shared.layers} == {2048}
    for change in (
        {"indexer_types": ["shared"] * 61},
        {"indexer_types": ["full"]},
        {"layer_types": ["full_attention"] * 61},
    ):
        with pytest.raises(SpecError, match=f"{next(iter(change))} = .*must be a list"):
            parse(raw("deepseek-v3") | {"model_type": "deepseek_v32"} | index | change, tmp_path)
    with pytest.raises(SpecError, match="index_topk = 2048: must be absent or null"):
        parse(raw("deepseek-v3") | index, tmp_path)


def test_dense_and_sparse_layers_by_a_list(tmp_path):
    """`mlp_layer_types` says what `first_k_dense_replace` says."""
    data = raw("deepseek-v3") | {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 58}
    assert parse(data, tmp_path).parameters == load("deepseek-v3").parameters
    with pytest.raises(SpecError, match=r"mlp_layer_types = .*must be a list of 61 entries"):
        parse(data | {"mlp_layer_types": ["dense"]}, tmp_path)


def test_minimax_attends_in_full_where_its_list_says_so(tmp_path):
    data = raw(L) | {"model_type": "minimax_m2", "use_qk_norm": True, "attn_type_list": [1] * 32}
    model = parse(data, tmp_path)
    assert model.layers == load(L).layers
    assert model.parameters == load(L).parameters + 32 * (4096 + 1024)  # a norm over all query and key channels
    with pytest.raises(SpecError, match=r"attn_type_list = .*must be absent or null"):
        parse(data | {"attn_type_list": [0] * 31 + [1]}, tmp_path)


def test_vision_keys_of_kimi_hold_no_cache(tmp_path):
    data = {"model_type": "kimi_k25", "use_unified_vision_chunk": True, "text_config": raw("kimi-k2")}
    assert parse(data, tmp_path).layers == load("kimi-k2").layers


def test_shared_layers_are_marked():
    layers = load("gemma-3n-e4b").layers
    assert sum(g.n_layers for g in layers if not g.stored) == 15
    assert [g.stored for g in layers] == sorted((g.stored for g in layers), reverse=True)


def test_experts():
    model = load("deepseek-v3")
    assert (model.n_experts, model.n_active_experts) == (256, 8)
    assert model.expert_parameters == 58 * 256 * 3 * 7168 * 2048  # the first 3 of 61 layers are dense
    assert load("llama-3-8b").n_experts == 1


def test_activation_elements():
    # two rows of 4096 and the widest of qkv (6144), gate and up (2 * 14336), logits (128256)
    assert load("llama-3-8b").activation_elements == 2 * 4096 + 128_256


def test_notes_and_names(tmp_path):
    notes = load("gpt2").notes
    assert "kv heads = attention heads: key num_key_value_heads absent" in notes
    assert any("quantization_config ignored" in note for note in load("deepseek-v3").notes)
    assert load("gpt-oss-20b").released == "mxfp4-experts"
    assert any("auto_map ignored" in note for note in load("deepseek-v3").notes)
    assert any("multi-token prediction" in note for note in load("deepseek-v3").notes)
    assert load("gpt2").name == "gpt2"
    folder = tmp_path / "My Model"
    folder.mkdir()
    model = parse(raw("llama-3-8b") | {"num_key_value_heads": None, "model_type": "novel"}, folder)
    assert model.name == "My-Model"
    assert "kv heads = attention heads: key num_key_value_heads null" in model.notes
    assert any("'novel' unknown" in note for note in model.notes)
    assert model.layers[0].n_kv_heads == 32


def test_looks_like_config():
    assert all(hf_config.looks_like_config(json.loads(path.read_text())) for path in GOLDEN.glob("*.json"))
    assert not hf_config.looks_like_config({"name": "x", "n_layers": 2, "hidden_size": 8, "n_q_heads": 2})
    assert not hf_config.looks_like_config({})


def test_all_problems_at_once_with_lines(tmp_path):
    data = {"model_type": "llama", "hidden_size": 0, "num_hidden_layers": "32", "num_attention_heads": True}
    with pytest.raises(SpecError) as caught:
        parse(data, tmp_path)
    lines = caught.value.lines()
    path = tmp_path / "config.json"
    assert f"{path}:3: hidden_size = 0: must be a whole number in 1..1,048,576" in lines
    assert f"{path}:4: num_hidden_layers = '32': must be a whole number in 1..10,000" in lines
    assert any(line.startswith(f"{path}:5: num_attention_heads = True: must be") for line in lines)
    assert f"{path}: vocab_size: is missing: add it" in lines
    assert f"{path}: intermediate_size: is missing: add it" in lines


def test_qwen2_windows_start_at_a_layer(tmp_path):
    model = parse(raw("qwen2.5-7b") | {"use_sliding_window": True, "max_window_layers": 20}, tmp_path)
    assert [(g.n_layers, g.window) for g in model.layers] == [(20, None), (8, 131072)]


def test_layer_types_win(tmp_path):
    types = ["full_attention"] * 31 + ["sliding_attention"]
    model = parse(raw("mistral-7b-v0.1") | {"layer_types": types}, tmp_path)
    assert [(g.n_layers, g.window) for g in model.layers] == [(31, None), (1, 4096)]


def test_window_that_the_type_does_not_use_is_noted(tmp_path):
    model = parse(raw("llama-3-8b") | {"sliding_window": 4096}, tmp_path)
    assert model.layers[0].window is None
    assert any("sliding_window ignored" in note for note in model.notes)


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_nested_section(tmp_path, key):
    model = parse({"model_type": "some_vlm", key: raw("llama-3-8b")}, tmp_path)
    assert model.parameters == 8_030_261_248
    with pytest.raises(SpecError, match=rf"config.json:\d+: {key}.num_hidden_layers = 0: must be"):
        parse({"model_type": "some_vlm", key: raw("llama-3-8b") | {"num_hidden_layers": 0}}, tmp_path)


DELETE = object()
L, Q, M, D, G = "llama-3-8b", "qwen2.5-7b", "mixtral-8x7b", "deepseek-v3", "gemma-2-9b"
BAD = [
    (L, "num_hidden_layers", DELETE, "num_hidden_layers: is missing: add it"),
    (L, "num_hidden_layers", None, "num_hidden_layers = None: must be a number"),
    (L, "num_hidden_layers", 0, "num_hidden_layers = 0: must be"),
    (L, "num_hidden_layers", -1, "num_hidden_layers = -1: must be"),
    (L, "num_hidden_layers", 32.0, "num_hidden_layers = 32.0: must be a whole number"),
    (L, "num_hidden_layers", True, "num_hidden_layers = True: must be a whole number"),
    (L, "num_hidden_layers", "32", "num_hidden_layers = '32': must be a whole number"),
    (L, "num_hidden_layers", 10**12, "num_hidden_layers = 1000000000000: must be a whole number in 1..10,000"),
    (L, "n_layer", 31, "n_layer = 31: must be equal to num_hidden_layers = 32"),
    (L, "hidden_size", DELETE, "hidden_size: is missing"),
    (L, "vocab_size", DELETE, "vocab_size: is missing"),
    (L, "vocab_size", [1], r"vocab_size = \[1\]: must be"),
    (L, "intermediate_size", DELETE, "intermediate_size: is missing"),
    (L, "intermediate_size", [14336], "intermediate_size = .*: must be a list of 32 entries"),
    (L, "num_attention_heads", 0, "num_attention_heads = 0: must be"),
    (L, "num_attention_heads", DELETE, "num_attention_heads: is missing"),
    (L, "num_key_value_heads", 0, "num_key_value_heads = 0: must be"),
    (L, "num_key_value_heads", 7, "num_key_value_heads = 7: must be a divisor of num_attention_heads = 32"),
    (L, "num_key_value_heads", 64, "num_key_value_heads = 64: must be a divisor"),
    (L, "num_key_value_heads", [8, 8], "num_key_value_heads = .*: must be a list of 32 entries"),
    (L, "num_key_value_heads", [8] * 31 + ["x"], "num_key_value_heads = .*: must be a list of whole numbers"),
    (L, "hidden_size", 4100, "hidden_size = 4100: must be a multiple of num_attention_heads = 32"),
    (L, "head_dim", 0, "head_dim = 0: must be"),
    (L, "head_dim", "128", "head_dim = '128': must be"),
    (L, "model_type", 5, "model_type = 5: must be a text"),
    (L, "model_type", "t5", "model_type = 't5': must be a decoder-only model"),
    (L, "model_type", "mamba2", "model_type = 'mamba2': must be a decoder-only model"),
    (L, "is_encoder_decoder", True, "is_encoder_decoder = True: must be false"),
    (L, "tie_word_embeddings", "yes", "tie_word_embeddings = 'yes': must be true or false"),
    (L, "text_config", "x", "text_config = 'x': must be a table"),
    (L, "layer_types", ["full_attention"], "layer_types = .*: must be a list of 32 entries"),
    (L, "layer_types", "full_attention", "layer_types = .*: must be a list of 32 entries"),
    (L, "layer_types", ["linear_attention"] * 32, r"layer_types\[0\] = 'linear_attention': must be full_attention"),
    (L, "layer_types", ["full_attention"] * 31 + ["mamba"], r"layer_types\[31\] = 'mamba': must be full_attention"),
    (L, "layer_types", ["full_attention"] * 31 + [[]], r"layer_types\[31\] = \[\]: must be full_attention"),
    (L, "layer_types", ["sliding_attention"] * 32, "sliding_window: is missing"),
    (L, "layer_types", ["chunked_attention"] * 32, "attention_chunk_size: is missing"),
    ("mistral-7b-v0.1", "sliding_window", -1, "sliding_window = -1: must be"),
    (G, "sliding_window", 0, "sliding_window = 0: must be"),
    (G, "sliding_window_pattern", 0, "sliding_window_pattern = 0: must be"),
    (G, "model_type", "novel", "sliding_window = 4096: must be null, or layer_types be given"),
    (Q, "use_sliding_window", "no", "use_sliding_window = 'no': must be true or false"),
    (M, "num_experts_per_tok", 9, "num_experts_per_tok = 9: must be at most num_local_experts = 8"),
    (M, "num_experts_per_tok", DELETE, "num_experts_per_tok: is missing"),
    (M, "num_local_experts", 1, "num_experts_per_tok = 2: must be at most the number of experts"),
    (M, "num_local_experts", -8, "num_local_experts = -8: must be"),
    (D, "moe_layer_freq", [1, 0], "moe_layer_freq = .*: must be a list of 61 entries"),
    (D, "moe_layer_freq", 0, "moe_layer_freq = 0: must be"),
    (D, "qk_rope_head_dim", DELETE, "qk_rope_head_dim: is missing"),
    (D, "intermediate_size", DELETE, "config.json: intermediate_size: is missing: add it"),
    (D, "kv_lora_rank", 1.5, "kv_lora_rank = 1.5: must be"),
    (D, "kv_lora_rank", None, "qk_rope_head_dim = 64: must be absent or null: it changes what a layer caches"),
    (D, "index_head_dim", 128, "index_head_dim = 128: must be absent or null"),
    ("qwen3-30b-a3b", "mlp_only_layers", [99], r"mlp_only_layers = \[99\]: must be a list of layer numbers"),
    ("qwen3-30b-a3b", "decoder_sparse_step", 0, "decoder_sparse_step = 0: must be"),
    ("gemma-3n-e4b", "text_config.num_kv_shared_layers", 35, "num_kv_shared_layers = 35: must be"),
    ("openelm-270m", "ffn_multipliers", [1.0], "ffn_multipliers = .*: must be a list of 16 numbers"),
    ("opt-6.7b", "max_position_embeddings", DELETE, "max_position_embeddings: is missing"),
    ("mpt-7b", "attn_config.attn_type", "ring", "attn_config.attn_type = 'ring': must be multihead_attention"),
    ("mpt-7b", "attn_config.sliding_window_size", 512, "attn_config.sliding_window_size = 512: must be absent"),
    ("gpt-neo-1.3b", "attention_layers", ["global"], "attention_layers = .*: must be a list of 24"),
]
# keys of published hybrid, pruned and layer-sharing models, none of which a plain decoder has
UNREAD = {
    "block_configs": [{"attention": {"n_heads_in_group": 8}}],
    "attn_layer_period": 8,
    "mamba_d_state": 16,
    "state_size": 128,
    "ssm_cfg": {"d_state": 16},
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_attn_config": {"kda_layers": [1]},
    "hybrid_override_pattern": "M-M*",
    "layers_block_type": ["mamba"],
    "block_types": ["recurrent", "attention"],
    "attention_window_size": 2048,
    "lru_width": 2560,
    "attn_type_list": [0, 1],
    "cla_share_factor": 2,
    "use_yoco": True,
    "cross_attention_layers": [3, 8],
    "num_key_value_layers": 16,
    "kv_sharing_map": {"1": 0},
    "swa_num_key_value_heads": 8,
    "global_head_dim": 512,
    "attention_k_eq_v": True,
    "num_attention_groups": 1,
    "qk_nope_head_dim": 128,
    "latent_dim": 64,
    "num_moe_experts": 8,
}
HARMLESS = {
    "attention_dropout": 0.1,
    "attn_pdrop": 0.1,
    "attn_logit_softcapping": 50.0,
    "attn_implementation": "flash",
    "_attn_implementation": "sdpa",
    "scale_attn_by_inverse_layer_idx": True,
    "attention_multiplier": None,
    "block_configs": None,
    "use_mamba": False,
    "state_size": 0,
    "cross_attention_hidden_size": None,
    "router_aux_loss_coef": 0.1,
    "norm_topk_prob": True,
    "rope_scaling": {"type": "yarn", "factor": 4.0},
    "vision_config": {"num_attention_heads": 16, "window_size": 112},
    "quantization_config": {"kv_cache_scheme": {"num_bits": 8}},
    "trust_remote_code": True,
}


def edited(name: str, key: str, value: object) -> dict:
    data = raw(name)
    *parents, last = key.split(".")
    inner = data
    for parent in parents:
        inner = inner[parent]
    if value is DELETE:
        inner.pop(last)
    else:
        inner[last] = value
    return data


@each(("name", "key", "value", "message"), BAD, ids=lambda v: "missing" if v is DELETE else str(v)[:24])
def test_bad_input_is_one_line_naming_file_and_key(tmp_path, name, key, value, message):
    with pytest.raises(SpecError, match=message) as caught:
        parse(edited(name, key, value), tmp_path)
    assert all(line.startswith(str(tmp_path / "config.json")) for line in caught.value.lines())


@each("key", UNREAD)
def test_key_that_changes_the_cache_is_refused_by_name(tmp_path, key):
    match = rf"config.json:\d+: {key} = .*: must be absent or null: it changes .* and is not understood"
    with pytest.raises(SpecError, match=match):
        parse(raw(L) | {key: UNREAD[key]}, tmp_path)


@each("key", HARMLESS)
def test_harmless_keys_change_nothing(tmp_path, key):
    model = parse(raw(L) | {key: HARMLESS[key]}, tmp_path)
    assert model.layers == load(L).layers
    assert model.parameters == load(L).parameters


ALL = {path.stem: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.json"))}
NAMES = sorted({key for data in ALL.values() for key in [*data, *data.get("text_config", {})]} | set(UNREAD))
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["llama", "gemma3", "falcon", "mpt", "openelm", "gpt_neo", "opt", "chatglm", "llama4"]),
    st.lists(st.one_of(st.integers(-1, 40), st.none(), st.sampled_from(["full_attention", "x"])), max_size=40),
    st.dictionaries(
        st.sampled_from(NAMES), st.one_of(st.none(), st.integers(0, 40), st.lists(st.integers())), max_size=3
    ),
)


@settings(max_examples=6 * settings.default.max_examples)
@given(st.sampled_from(sorted(ALL)), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), st.data())
def test_damaged_configs_end_in_a_model_or_a_clean_error(name, changes, draw):
    data = copy.deepcopy(ALL[name])
    target = data.get("text_config", data) if draw.draw(st.booleans()) else data
    target.update(changes)
    for key in draw.draw(st.lists(st.sampled_from(sorted(target)), max_size=2, unique=True)):
        del target[key]
    lines = []
    try:
        model = hf_config.from_document(specfile.Document("config.json", data))
    except InputError as error:
        lines = error.lines()
    else:
        assert 1 <= model.n_layers <= 10_000
        assert model.parameters > 0
    assert all("\n" not in line and line.startswith("config.json: ") and len(line) <= 300 for line in lines)


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131_072),  # 4 * 32768
        ({"type": "yarn", "factor": 2.0}, 65_536),  # of its own 32,768
        ({"rope_type": "yarn", "factor": 0.5}, 32_768),
        ({"rope_type": "longrope", "factor": 4.0}, 32_768),
    ],
)
def test_yarn_stretches_the_positions(tmp_path, scaling, positions):
    config = json.loads((GOLDEN / "qwen2.5-0.5b.json").read_text()) | {"rope_scaling": scaling}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert hf_config.from_document(specfile.read(path)).max_position_tokens == positions
