"""Configurations as transformers 5.24.0 writes them (tests/golden/transformers.json.gz), read as published ones.

Words of lists by hand below; the slow tests read what the classes made of whole files.
"""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

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
        if name == "nvidia--Nemotron-H-56B-Base-8K":  # silent on its states: FP32 by the class, BF16 by its own code
            before.pop("layers"), after.pop("layers")
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
    assert n_read >= 147
