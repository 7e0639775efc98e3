"""Configurations as transformers 5.24.0 writes them (tests/golden/transformers.json.gz), read as published ones.

Words of lists by hand below; the slow tests read what the classes made of whole files.
"""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from cases import each
from dse.core.errors import DseError, SpecError
from dse.core.specfile import Document
from dse.specs import catalog
from dse.specs.huggingface import spelling
from dse.specs.huggingface.keys import Keys
from factories import PACKAGED_CONFIGS

GOLDEN = Path(__file__).parents[1] / "golden"
#: what a class fills in where the published file is silent, or says in other places
FILLED = {"name", "title", "source", "notes", "rotary_elements", "max_position_tokens", "tower_parameters"}


def told(model_type, **config):
    keys = Keys(Document("config.json", {"model_type": model_type, **config}))
    spelling.as_published(keys, model_type)
    return keys


def test_words_of_layers_are_what_published_files_say():
    full, linear, window = "full_attention", "linear_attention", "sliding_attention"
    kinds = [window, "compressed_sparse_attention", "heavily_compressed_attention"]
    assert told("deepseek_v4", layer_types=kinds).get("compress_ratios") == [0, 4, 128]
    blocks = [linear, "moe", full, "mlp"]
    assert told("nemotron_h", layers_block_type=blocks).get("layers_block_type") == ["mamba", "moe", "attention", "mlp"]
    kimi = told("kimi_linear", layer_types=[linear, full], linear_num_heads=32, linear_head_dim=128)
    assert kimi.get("linear_attn_config.kda_layers") == [1]
    assert kimi.get("linear_attn_config.full_attn_layers") == [2]
    assert kimi.get("linear_attn_config.num_heads") == 32
    m3 = told("minimax_m3_vl_text", layer_types=[full, "minimax_m3_sparse"], index_block_size=128, index_topk_blocks=16)
    assert m3.get("sparse_attention_config.sparse_attention_freq") == [0, 1]
    assert m3.get("sparse_attention_config.sparse_block_size") == 128
    # the token that reads is one of transformers' window, not of SGLang's (configuration_mimo_v2_flash.py)
    mimo = told("mimo_v2_flash", layer_types=[full, window], sliding_window=129)
    assert (mimo.get("hybrid_layer_pattern"), mimo.get("sliding_window")) == ([0, 1], 128)
    step = told("step3p5", layer_types=[full, window], num_attention_heads=64, num_sliding_attention_heads=96)
    assert step.get("num_attention_heads") == [64, 96]
    gemma = told("gemma4_text", layer_types=[window, full], per_layer_config={"01": {"head_dim": 512}})
    assert gemma.get("global_head_dim") == 512
    wide = told("olmo3", num_hidden_layers=2, num_key_value_heads=8, per_layer_config={"1": {"num_key_value_heads": 4}})
    assert wide.get("num_key_value_heads") == [8, 4]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"model_type": "deepseek_v4", "layer_types": ["full_attention"]},
            "layer_types = ['full_attention']: must be a list of",
        ),
        (
            {"model_type": "gemma4_text", "layer_types": ["full_attention"], "per_layer_config": {"0": {"rank": 1}}},
            "per_layer_config = ",
        ),
        (
            {"model_type": "olmo3", "num_hidden_layers": 1, "per_layer_config": [1]},
            "per_layer_config = [1]: must be a table of",
        ),
    ],
)
def test_a_word_that_is_not_known_is_said_by_the_key_of_the_file(config, says, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(SpecError) as error:
        catalog.model(str(path))
    assert f"config.json:1: {says}" in str(error.value)


@pytest.fixture(scope="module")
def stored():
    return SimpleNamespace(**json.loads(gzip.decompress((GOLDEN / "transformers.json.gz").read_bytes())))


@pytest.mark.slow
def test_what_the_newest_classes_write_is_read_as_what_was_published(stored, tmp_path):
    published = {
        path.stem.removesuffix("_config"): path for path in (*PACKAGED_CONFIGS, *(GOLDEN / "hf_configs").glob("*.json"))
    }
    n_read = 0
    for name, config in stored.written.items():
        if name not in published:
            continue  # aiconfigurator-core is not for this system
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        before, after = (catalog.model(str(file)).model_dump(exclude=FILLED) for file in (published[name], path))
        assert after == before, name
        n_read += 1
    assert n_read > 80


@pytest.mark.slow
def test_a_type_that_is_not_read_says_which_key(stored, tmp_path):
    path, n_read = tmp_path / "config.json", 0
    for model_type, config in stored.defaults.items():
        path.write_text(json.dumps(config))
        try:
            n_read += catalog.model(str(path)).parameters > 0
        except DseError as error:
            first = str(error).split("; ")[0]
            assert first.startswith(str(path)), model_type
            assert any(f"{key}" in first for key in (*config, *config.get("text_config", {}), "missing")), first
    assert n_read >= 176


#: default configuration -> model that it is, and billions of parameters on its card: all, and active for a token
CARDS = {
    "glm4_moe_lite": ("GLM-4.7-Flash: 30B-A3B", 30, 3.9),
    "mistral4": ("Mistral Small 4: 119B, 6.5B active", 119, 6.5),
    "ernie4_5_moe": ("ERNIE-4.5-21B-A3B", 21.8, 3.3),
    "solar_open": ("Solar Open 100B: 102.6B, 12B active", 102.6, 12),
    "axk1": ("A.X K1: 519B, 33B active", 519, 33),
    "hy_v3": ("Hy3: 295B, 21B active", 295, 21),
    "mistral_large4": ("Mistral Large 4: 1.05T, 52B active", 1050, 52),
    "longcat_flash": ("LongCat-Flash: 560B, 18.6B to 31.3B active, 27B on average", 560, 27.5),
    "muse_spark": ("Muse Spark Open: 816B-A42B", 816, 42),
    "beam": ("Beam 1.0: 501B-A23B", 501, 23),
    "ministral3": ("Ministral 3 8B: 8.4B language model", 8.4, 8.4),
}


@pytest.mark.parametrize("model_type", CARDS)
def test_families_of_2026_have_the_parameters_of_their_cards(model_type, stored, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(stored.defaults[model_type]))
    model = catalog.model(str(path))
    _, billions, active = CARDS[model_type]
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.015)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.03)


def test_states_of_short_convolutions_and_mamba_by_hand(tmp_path):
    """A short convolution of 3 keeps 2 inputs of 2,048 channels in 16 bits, makes 3 and gives 1; Granite's Mamba-2 a
    matrix of 48 x 64 by 128 and 3 inputs of 3,072 + 2 x 128 channels."""
    path = tmp_path / "config.json"
    base = {"vocab_size": 1000, "hidden_size": 2048, "intermediate_size": 12288, "num_hidden_layers": 3}
    base |= {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True}
    lfm = {"model_type": "lfm2", "conv_L_cache": 3, "full_attn_idxs": [2], "block_auto_adjust_ff_dim": True}
    path.write_text(json.dumps(base | lfm | {"block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0}))
    model = catalog.model(str(path))
    assert [layer.state_bytes for layer in model.layers] == [2 * 2048 * 2, 0]
    # 2 x (4 x 2,048^2 + 2,048 x 3), one attention of 2,048 x (32 + 2 x 8 + 32) x 64 and its two norms
    attention = 2 * (4 * 2048**2 + 2048 * 3) + 2048 * 80 * 64 + 2 * 64
    assert model.attention_parameters == attention
    # 12,288 x 2 / 3 = 8,192 channels of three matrices, two norms a layer, one at the end
    assert model.parameters == attention + 3 * 3 * 2048 * 8192 + 2048 * 7 + 1000 * 2048
    # Liquid's own files name the width and the tie otherwise, and the width is adjusted unless they deny it
    ours = ("intermediate_size", "tie_word_embeddings", "block_auto_adjust_ff_dim")
    theirs = {key: value for key, value in (base | lfm).items() if key not in ours}
    path.write_text(json.dumps(theirs | {"block_ff_dim": 12288, "tie_embedding": True, "block_dim": 2048}))
    assert catalog.model(str(path)).parameters == model.parameters
    path.write_text(json.dumps(theirs | {"block_ff_dim": 8192, "block_auto_adjust_ff_dim": False}))
    assert catalog.model(str(path)).parameters == model.parameters
    mamba = {"heads": 48, "head": 64, "groups": 1, "state": 128, "conv": 4}
    names = {"heads": "n_heads", "head": "d_head", "groups": "n_groups", "state": "d_state", "conv": "d_conv"}
    granite = {"model_type": "granitemoehybrid", "layer_types": ["mamba", "mamba", "attention"], "num_local_experts": 0}
    granite |= {"shared_intermediate_size": 4096} | {f"mamba_{names[name]}": size for name, size in mamba.items()}
    path.write_text(json.dumps(base | granite))
    assert catalog.model(str(path)).layers[0].state_bytes == 2 * (48 * 64 * 128 + 3 * (48 * 64 + 2 * 128))


def test_minimax_text_01_has_states_of_lightning_attention_and_the_size_of_its_card(tmp_path):
    """456B parameters, 45.9B of them for a token but for the two embeddings; seven of eight layers keep
    64 matrices of 128 x 128 in FP32."""
    path = tmp_path / "config.json"
    kinds = (["linear_attention"] * 7 + ["full_attention"]) * 10
    shape = {"hidden_size": 6144, "intermediate_size": 9216, "vocab_size": 200064, "head_dim": 128}
    shape |= {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
    shape |= {"num_local_experts": 32, "num_experts_per_tok": 2, "tie_word_embeddings": False, "rotary_dim": 64}
    path.write_text(json.dumps({"model_type": "minimax", "layer_types": kinds} | shape))
    model = catalog.model(str(path))
    assert model.parameters / 1e9 == pytest.approx(456, rel=0.005)
    assert (model.active_parameters - 2 * 200_064 * 6144) / 1e9 == pytest.approx(45.9, rel=0.002)
    assert [(layer.n_layers, layer.state_bytes) for layer in model.layers[:2]] == [(7, 4 * 64 * 128 * 128), (1, 0)]


def _mistral(sources, folder):
    path, n = folder / "config.json", 4
    shape = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 100, "num_hidden_layers": n}
    shape |= {"num_attention_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
    shape |= {"v_head_dim": 16, "no_rope_layers": [1, 0, 1, 0], "kv_source_layers": sources}
    path.write_text(json.dumps({"model_type": "mistral_large4_text", "tie_word_embeddings": False} | shape))
    return catalog.model(str(path))


def test_a_layer_of_mistral_large_4_reads_the_latent_of_an_earlier_one(tmp_path):
    own, shared = _mistral([0, 1, 2, 3], tmp_path), _mistral([0, 1, 2, 1], tmp_path)
    assert [layer.key_dim for layer in own.layers] == [40, 32, 40, 32]  # without a rotary part in each second
    assert [layer.stored for layer in own.layers] == [True] * 4
    assert [layer.stored for layer in shared.layers] == [True, True, True, False]
    assert [layer.key_dim for layer in shared.layers] == [40, 32, 40, 32]


@each("sources", ([0, 1, 2], [0, 1, 3, 3], [0, 0, 1, 3], [0, 1, 2, 9], [0, 1, 2, "3"], 7))
def test_sources_that_are_no_earlier_layers_are_refused(sources, tmp_path):
    with pytest.raises(SpecError) as error:
        _mistral(sources, tmp_path)
    assert "kv_source_layers = " in str(error.value)
    assert "must be a list of 4 layers, each itself or an earlier one that is itself" in str(error.value)
