"""Write tests/data/models: tiny random models of each architecture, and what transformers computes with them.

Needs torch and transformers, which the project does not: python -m venv ref; ref/bin/pip install torch==2.13.0
transformers==5.24.0; ref/bin/python scripts/tiny_models.py. Weights are drawn, so a new run gives new files throughout.
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

OUT = Path(__file__).parents[1] / "tests" / "data" / "models"
N_TOKENS, VOCABULARY = 40, 64
#: sizes that all share: head dimension other than hidden / heads where an architecture allows it
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": False}),
    "mistral": ("Mistral", {"sliding_window": 8, "head_dim": 16}),
    "qwen2": ("Qwen2", {"use_sliding_window": False, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16, "use_sliding_window": False}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24, "num_hidden_layers": 4}),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 16,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "num_hidden_layers": 3,
            "rope_parameters": GEMMA3_ROPE,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 8}),
}


def main() -> None:
    """Write a directory a model."""
    torch.manual_seed(2026)
    for name, (family, more) in MODELS.items():
        suffix = "TextConfig" if family == "Gemma3" else "Config"
        config = getattr(transformers, family + suffix)(**SIZES | more)
        config._attn_implementation = "eager"  # soft caps are in this one alone
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # larger than the usual start, so that attention is not flat
                is_map = parameter.dim() > 1
                drawn = torch.randn_like(parameter) * (0.25 if is_map else 0.3)
                parameter.copy_((drawn if is_map else parameter + drawn).half().float())
        folder = OUT / name
        copy.deepcopy(model).half().save_pretrained(folder)  # a copy: half() rounds RoPE's frequencies too
        (folder / "generation_config.json").unlink(missing_ok=True)
        tokens = torch.randint(3, VOCABULARY, (1, N_TOKENS))
        with torch.no_grad():
            found = model(tokens, use_cache=True)
        arrays = {"tokens": tokens[0].numpy(), "logits": found.logits[0].numpy()}
        for i, layer in enumerate(found.past_key_values.layers):
            arrays |= {f"key{i}": layer.keys[0].numpy(), f"value{i}": layer.values[0].numpy()}
        np.savez_compressed(folder / "reference.npz", **arrays)
        about = json.loads((folder / "config.json").read_text())
        print(name, about.get("rope_parameters"), about.get("layer_types"), round(float(arrays["logits"].std()), 2))


if __name__ == "__main__":
    main()
