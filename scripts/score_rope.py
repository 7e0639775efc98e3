"""Makes the table of what YaRN and LongRoPE do to SmolLM2-135M's keys before and after RoPE.

`python -m scripts.score_rope MODEL.gguf TEXT OUT.csv`. The keys of one text before RoPE, of the model as it is (nothing
is fine-tuned), are turned by each scaling to four times the context, then quantized; beside them the same keys
quantized before RoPE and turned afterwards. LongRoPE's factors are a search's of another model in its paper: here they
are those of its start, position interpolation by 4 of each pair but the fastest quarter (assumed).
"""

import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pandas as pd

from dse import quantizers
from dse.transformer import caches, in_loop, load, tokenizer
from dse.transformer.checkpoint import Rotation, Said
from dse.transformer.forward import turned
from dse.transformer.hugging_face import longrope, yarn

N_TOKENS, FACTOR = 512, 4
FORMATS = ("int4_per_token_head", "kivi:bits=2", "sinkq:bits=2")


def rotations(plain: Rotation, original: int) -> dict[str, Rotation]:
    """Each scaling of a plain rotation to FACTOR times its context; LongRoPE as a long text has it."""
    n, long = len(plain.frequencies), FACTOR * original
    slowed = [1.0] * (n // 4) + [float(FACTOR)] * (n - n // 4)
    said = {"factor": float(FACTOR), "original_max_position_embeddings": original}
    other = longrope(
        Said("", {**said, "short_factor": [1.0] * n, "long_factor": slowed}.get), plain.frequencies, plain.theta, long
    )
    return {
        "plain": plain,
        "yarn": yarn(Said("", said.get), plain.frequencies, plain.theta, long),
        "longrope": Rotation(plain.frequencies / np.array(slowed), plain.theta, False, other.length),
    }


def _silent(items: Any, **_: Any) -> Any:
    return nullcontext(items)


def write(arguments: Sequence[str]) -> None:
    """Write the table: a row a scaling and format, means over the layers."""
    model = load.load(arguments[0])
    of = model.architecture
    tokens = tokenizer.tokens_of(arguments[1], model.encode, N_TOKENS, of.context_tokens, model.name)
    known = in_loop.calibrate(model, tokens, _silent)
    rows = []
    for name, rotation in rotations(of.rotations[0], of.context_tokens).items():
        after = [turned(key[0].astype(np.float32), rotation).astype(np.float16)[None] for key in known.key_before]
        norms = [_norm(a) / _norm(b) for a, b in zip(after, known.key_before, strict=True)]
        for method in FORMATS:
            spec = quantizers.parse(method)
            errors = []
            for keys in (known.key_before, after):
                layer_caches = caches.caches(spec, model, known)
                pairs = zip(layer_caches, keys, known.value, strict=True)
                errors.append(float(np.mean([_error(cache, key, value) for cache, key, value in pairs])))
            rows.append(
                {"scaling": name, "method": spec.name, "norm_ratio": float(np.mean(norms))}
                | {"error_before": errors[0], "error_after": errors[1]}
            )
    pd.DataFrame(rows).to_csv(arguments[2], index=False, float_format="%.5g")


def _error(cache: Any, key: np.ndarray, value: np.ndarray) -> float:
    """Relative error of the packed keys."""
    seen = caches.decoded(cache, key, value)
    n = seen.n_key(key.shape[2])
    exact = key[:, :, :n].astype(np.float64)
    return _norm(seen.key[:, :, :n].astype(np.float64) - exact) / _norm(exact)


def _norm(x: np.ndarray) -> float:
    """Root of the sum of squares, beyond FP16."""
    return math.sqrt(float(np.square(x.astype(np.float64)).sum()))


if __name__ == "__main__":
    write(sys.argv[1:])
