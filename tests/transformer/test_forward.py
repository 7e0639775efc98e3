"""Logits, keys and values of tiny random models beside those of transformers 5.24 (scripts/tiny_models.py)."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from dse.transformer import forward, load

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
