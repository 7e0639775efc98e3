"""Logits, keys and values of tiny random models beside those of transformers 5.24 (scripts/tiny_models.py)."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import model_files
from dse.transformer import forward, gguf_file, load
from dse.transformer.checkpoint import Said

MODELS = Path(__file__).parents[1] / "data" / "models"
NAMES = sorted(folder.name for folder in MODELS.iterdir() if folder.is_dir())


def silent(items, label, length):
    return nullcontext(items)


def run(model, tokens):
    """Logits, and keys after RoPE and values of each layer."""
    kept = []
    attention = forward.exact(model.architecture)

    def keep(layer, heads):
        kept.append((forward.turned(heads.key, model.architecture.rotations[layer]), heads.value))
        return attention(layer, heads)

    (states,) = forward.hidden_states(model, tokens, [keep], silent, "")
    return forward.logits_of(model, states, forward.head_of(model)), kept


@pytest.mark.parametrize("name", NAMES)
def test_logits_keys_and_values_are_those_of_transformers(name):
    expected = np.load(MODELS / name / "reference.npz")
    logits, kept = run(load.load(str(MODELS / name)), expected["tokens"])
    assert np.abs(logits - expected["logits"]).max() < 2e-5
    for i, layer in enumerate(kept):
        for side, own in zip(("key", "value"), layer, strict=True):
            cached = expected[f"{side}{i}"]  # of a layer with a window, its last tokens
            assert np.abs(own[:, -cached.shape[1] :] - cached).max() < 2e-5


#: gemma2 and gemma3 here have a query scale, and gemma3 layers, that GGUF files do not say
@pytest.mark.parametrize("name", ["llama", "llama3", "qwen2", "qwen3", "phi3"])
def test_a_gguf_file_gives_the_same_as_the_directory(name, tmp_path):
    expected = np.load(MODELS / name / "reference.npz")
    logits, kept = run(load.load(str(model_files.gguf_file(tmp_path, name))), expected["tokens"])
    assert np.abs(logits - expected["logits"]).max() < 3e-5
    assert np.abs(kept[0][0][:, -7:] - expected["key0"][:, -7:]).max() < 2e-5


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_a_gguf_file_of_gemma_agrees_but_for_what_it_does_not_say(name, tmp_path):
    tokens = np.load(MODELS / name / "reference.npz")["tokens"]
    ours, theirs = (load.load(str(path)) for path in (model_files.gguf_file(tmp_path, name), MODELS / name))
    of = replace(theirs.architecture, query_scale=ours.architecture.query_scale)
    if name == "gemma3":  # 5 local layers to a global one, at a local base of 10,000, in every file
        assert ours.architecture.windows == (8, 8, 8)
        assert ours.architecture.rotations[0].theta == 10_000
        of = replace(of, windows=ours.architecture.windows, rotations=ours.architecture.rotations)
    assert of.windows == ours.architecture.windows
    assert np.abs(run(ours, tokens)[0] - run(replace(theirs, architecture=of), tokens)[0]).max() < 3e-5


#: family, layers, hidden size, heads, head dimension, and query_pre_attn_scalar of the publisher's config.json
GEMMAS = [
    ("gemma2", 26, 2304, 8, 256, 256),
    ("gemma2", 42, 3584, 16, 256, 256),
    ("gemma2", 46, 4608, 32, 128, 144),
    ("gemma3", 34, 2560, 8, 256, 256),
    ("gemma3", 48, 3840, 16, 256, 256),
    ("gemma3", 62, 5376, 32, 128, 168),
]


@pytest.mark.parametrize(("family", "n_layers", "hidden", "n_heads", "head_dim", "scalar"), GEMMAS)
def test_queries_of_gemma_are_scaled_as_its_config_says(family, n_layers, hidden, n_heads, head_dim, scalar):
    """GGUF files do not say it: the 27 B models divide by hidden size / heads, the others by the head dimension."""
    said = {
        "block_count": n_layers,
        "embedding_length": hidden,
        "attention.head_count": n_heads,
        "attention.key_length": head_dim,
        "context_length": 8192,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    meta = {f"{family}.{key}": value for key, value in said.items()}
    file = SimpleNamespace(tensors={})
    of = gguf_file._architecture("a file", family, Said("a file", lambda key: meta.get(f"{family}.{key}")), file)
    assert of.query_scale == pytest.approx(scalar**-0.5, rel=1e-12)
    assert of.embedding_scale == pytest.approx(hidden**0.5)


def test_blocks_of_attention_change_nothing(monkeypatch):
    model, tokens = load.load(str(MODELS / "gemma2")), np.load(MODELS / "gemma2" / "reference.npz")["tokens"]
    whole = run(model, tokens)[0]
    monkeypatch.setattr(forward, "BLOCK_TOKENS", 7)
    assert np.abs(run(model, tokens)[0] - whole).max() < 2e-5
