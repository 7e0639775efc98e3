"""A language model's own keys, values and queries as a dump that `dse measure` takes (docs/reference/dumps.md)."""

import json
from pathlib import Path

import numpy as np

from dse.transformer.caches import FloatCache
from studies import weights
from studies.forward import forward
from studies.perplexity import windows
from studies.text import SCORED, held_out

#: what names a model in place of a dump: lm:mha
PREFIX = "lm:"
N_WINDOWS, N_TOKENS = 4, 512


def write(source: str, folder: Path, n_windows: int = N_WINDOWS, n_tokens: int = N_TOKENS) -> Path:
    """Write the dump of `source` (lm:mha, lm:FILE.safetensors) into `folder`; the same bytes every time.

    FP16, after RoPE: layerN.key, .value [windows, n_kv_heads, tokens, head_dim], .query [windows, n_q_heads, ...].
    Raises InputError for an unknown model.
    """
    model = weights.load(source.removeprefix(PREFIX))
    kept: list[np.ndarray] = []
    caches = [FloatCache("fp16") for _ in model.layers]
    forward(model, windows(held_out(SCORED), n_windows, n_tokens), caches, last_only=True, queries=kept)
    about = {
        "model": f"dse {model.name}",
        "rope": "after",
        "rope_theta": f"{model.rope_theta:.10g}",
        "note": f"{n_windows} windows of held-out text",
    }
    tensors = {"meta": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for i, cache in enumerate(caches):
        tensors[f"layer{i}.key"], tensors[f"layer{i}.value"] = cache.seen()
        tensors[f"layer{i}.query"] = kept[i].astype(np.float16)
    path = folder / f"lm_{model.name}.npz"
    with path.open("wb") as file:
        np.savez(file, **tensors)  # type: ignore[arg-type]
    return path
