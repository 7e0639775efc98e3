"""Drafts of speculative decoding: what is asked for, and the weights and layers of what drafts, by hand."""

import json

import pytest

from dse.core.errors import InputError
from dse.specs import catalog, drafts
from dse.specs.weights import FORMATS


def asked(**fields):
    return drafts.parse(json.dumps(fields))


@pytest.mark.parametrize(
    ("fields", "method", "model", "slots", "lookahead"),
    [
        # slots of a request: vLLM, max_num_new_slots_for_drafting, with 8 drafted tokens (a test of vllm-ascend)
        ({"method": "mtp"}, "mtp", "", 0, 8),
        ({"method": "deepseek_mtp"}, "mtp", "", 0, 8),
        ({"method": "qwen3_next_mtp", "model": "Qwen/Qwen3-Next-80B-A3B-Instruct"}, "mtp", "", 0, 8),
        ({"method": "eagle3", "model": "x/y"}, "eagle3", "", 0, 8),
        ({"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}, "eagle3", "", 0, 8),
        ({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B"}, "eagle", "", 0, 8),
        ({"method": "eagle3", "parallel_drafting": True}, "eagle3", "", 7, 8),
        ({"model": "Qwen/Qwen3-0.6B"}, "draft_model", "Qwen/Qwen3-0.6B", 1, 8),
        (
            {"method": "draft_model", "model": "qwen3-0.6b", "parallel_drafting": True},
            "draft_model",
            "qwen3-0.6b",
            8,
            8,
        ),
        ({"method": "ngram", "prompt_lookup_max": 4}, "ngram", "", 0, 0),
        ({"model": "ngram"}, "ngram", "", 0, 0),
        ({"method": "suffix"}, "ngram", "", 0, 0),
    ],
)
def test_what_is_asked_for(fields, method, model, slots, lookahead):
    draft = asked(num_speculative_tokens=8, **fields)
    assert (draft.method, draft.model, draft.slots, draft.lookahead_tokens) == (method, model, slots, lookahead)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eagle3", "must be a JSON object"),
        ("[2]", "must be a JSON object"),
        ('{"method": "mtp"}', "num_speculative_tokens = None: must be a whole number from 1 to 64"),
        ('{"method": "mtp", "num_speculative_tokens": true}', "num_speculative_tokens = True"),
        ('{"method": "mtp", "num_speculative_tokens": 65}', "from 1 to 64"),
        ('{"method": "dflash", "num_speculative_tokens": 2}', "method = 'dflash': is not modeled: use one of mtp"),
        ('{"method": "draft_model", "num_speculative_tokens": 2}', "model: is missing"),
        ('{"model": ["x"], "num_speculative_tokens": 2}', "must be a name"),
    ],
)
def test_what_cannot_be_asked_for(text, said):
    with pytest.raises(InputError) as error:
        drafts.parse(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("model", "method", "parameters", "within"),
    [
        # model card of DeepSeek-V3: 14B of the module's weights, 11.5B of them its own
        ("deepseek-v3", "mtp", 11.5e9, 0.04),
        # files on the hub: 850 MB and 1.57 GB in 16 bits
        ("llama3.1-8b", "eagle3", 0.425e9, 0.01),
        ("qwen3-32b", "eagle3", 0.785e9, 0.03),
        # 0.5 GB: a layer of Llama 3 8B and the product that joins two hidden states, embeddings shared
        ("llama3.1-8b", "eagle", 218_112_000 + 2 * 4096**2, 0.001),
    ],
)
def test_parameters_of_what_drafts(model, method, parameters, within):
    made = drafts.model_of(asked(method=method, num_speculative_tokens=1), catalog.model(model))
    assert made.parameters == pytest.approx(parameters, rel=within)
    assert made.n_layers == 1


def test_a_hybrid_drafts_with_a_layer_that_keeps_all_tokens():
    made = drafts.model_of(asked(method="mtp", num_speculative_tokens=1), catalog.model("qwen3.6-27b"))
    (layer,) = made.layers
    assert (layer.n_kv_heads, layer.key_dim, layer.state_bytes) == (4, 256, 0)


def test_files_of_four_bits_leave_the_layers_that_draft_in_sixteen():
    mtp, target = asked(method="mtp", num_speculative_tokens=1), catalog.model("qwen3.6-27b")
    formats = {
        name: drafts.format_of(mtp, target, FORMATS[name]).name for name in ("bf16", "fp8-block", "nvfp4", "int4")
    }
    assert formats == {"bf16": "bf16", "fp8-block": "fp8-block", "nvfp4": "bf16", "int4": "bf16"}
    own = catalog.model("deepseek-v4-flash")
    assert drafts.format_of(mtp, own, FORMATS[own.released]).name == own.released
    eagle = asked(method="eagle3", num_speculative_tokens=1)
    assert drafts.format_of(eagle, target, FORMATS["fp8-block"]).name == "bf16"
