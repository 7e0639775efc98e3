"""Tiny models as a user has them: the Hugging Face directories of tests/data/models with a tokenizer, or as GGUF."""

import json
import math
import shutil
from pathlib import Path

import gguf
import numpy as np
import tokenizers

from dse.measure.dumps import open_dump

MODELS = Path(__file__).parent / "data" / "models"
#: 64 tokens, as the tiny models have
TOKENS = [
    *("<pad>", "<s>", "</s>"),
    *(chr(code) for code in range(ord("a"), ord("z") + 1)),
    *("Ġ", "Ċ", ".", ",", "th", "Ġt", "Ġth", "Ġthe", "he", "in", "er", "an", "Ġa", "Ġo"),
    *(f"<{i}>" for i in range(21)),
]
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "e r", "a n", "Ġ a", "Ġ o"]
TEXT = "the rain in the other land, and a hen then ran on. " * 3
_GGUF = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def directory(folder, name="llama", **changes):
    """A copy of a tiny model with a tokenizer.json; changes are to its config."""
    path = folder / name
    shutil.copytree(MODELS / name, path, dirs_exist_ok=True)
    config = path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    library = tokenizers
    made = library.Tokenizer(
        library.models.BPE({token: i for i, token in enumerate(TOKENS)}, [tuple(m.split()) for m in MERGES])
    )
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = library.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.save(str(path / "tokenizer.json"))
    return path


def _turned(weight, n_heads):
    """Rows of Q and K in the order of llama.cpp's converter: both channels of a pair beside each other."""
    return (
        weight.reshape(n_heads, 2, len(weight) // n_heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def gguf_file(folder, name="llama", family=None, **changes):
    """A tiny model as llama.cpp's converter would write it; changes are to its metadata, None leaves a key out."""
    config = json.loads((MODELS / name / "config.json").read_text())
    own = {"llama": "llama", "llama3": "llama", "mistral": "llama"}.get(name, name)
    gemma, path = own.startswith("gemma"), folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(str(path), family or own)
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    head_dim = config.get("head_dim") or config["hidden_size"] // heads["q"]
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    meta = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "attention.head_count": heads["q"],
        "attention.head_count_kv": heads["k"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(rope["rope_theta"]),
        "attention.sliding_window": config.get("sliding_window") if own in ("gemma2", "gemma3", "phi3") else None,
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
    }
    meta = {f"{own}.{key}": value for key, value in meta.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
    }
    for key, value in (meta | changes).items():
        add = {str: writer.add_string, float: writer.add_float32, bool: writer.add_bool, list: writer.add_array}
        if value is not None:
            add.get(type(value), writer.add_uint32)(key, value)
    with open_dump(MODELS / name / "model.safetensors") as dump:
        for tensor in dump.tensors:
            weight = dump.read(tensor.name)
            start, _, suffix = tensor.name.rpartition(".")
            if gemma and start.endswith("norm"):
                weight = dump.read(tensor.name).astype(np.float32) + 1
            if start in _OUTSIDE:
                writer.add_tensor(f"{_OUTSIDE[start]}.{suffix}", weight)
                continue
            _, _, layer, inner = start.split(".", 3)
            if own == "llama" and inner[-6:] in ("q_proj", "k_proj"):
                weight = _turned(weight, heads[inner[-6]])
            weight = np.ascontiguousarray(weight, np.float32)
            writer.add_tensor(f"blk.{layer}.{(_GGUF | (_GEMMA if gemma else {}))[inner]}.{suffix}", weight)
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _divisors(rope, head_dim))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _divisors(rope, head_dim):
    """Llama 3.1's divisors of frequencies, in plain loops (`generate_extra_tensors` of convert_hf_to_gguf.py)."""
    found = []
    for i in range(0, head_dim, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        old, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
        if wave < old / high:
            found.append(1.0)
        elif wave > old / low:
            found.append(rope["factor"])
        else:
            smooth = (old / wave - low) / (high - low)
            found.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(found, np.float32)
