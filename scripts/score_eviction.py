"""Makes the table of what token policies cost SmolLM2-135M beside KV formats, from its file and two texts.

`python -m scripts.score_eviction MODEL.gguf TEXTS FOLDER`: TEXTS has prose, dialogue and calibration .txt.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd

from dse.transformer import in_loop, load, tokenizer

TEXTS = ("prose", "dialogue")
#: tokens of a text, and those of it that are the prompt
N_TOKENS, N_PROMPT = 512, 256
#: shares of the prompt that stay
SHARES = (0.125, 0.25, 0.5)
#: formats of about as many bytes
FORMATS = ("int4_per_token_head", "kivi:bits=2")


def policies() -> Iterator[str]:
    """Each policy with budgets of the same tokens; StreamingLLM also without its sinks."""
    for share in SHARES:
        budget = int(share * N_PROMPT)
        yield f"streaming:sinks=4,window={budget - 4}"
        yield f"window:tokens={budget}"
        yield f"h2o:heavy={share / 2},recent={share / 2}"
        yield f"scissorhands:budget={budget}"
        yield f"snapkv:budget={budget}"


def _silent(items: Any, **_: Any) -> Any:
    return nullcontext(items)


def write(arguments: Sequence[str]) -> None:
    """Write smollm2.eviction.csv."""
    model, texts, folder = load.load(arguments[0]), Path(arguments[1]), Path(arguments[2])
    context, rows = model.architecture.context_tokens, []
    for text in TEXTS:
        tokens, known = (
            tokenizer.tokens_of(str(texts / f"{name}.txt"), model.encode, N_TOKENS, context, model.name)
            for name in (text, "calibration")
        )
        scoring = in_loop.Scoring((*policies(), *FORMATS), prompt_tokens=N_PROMPT)
        scores = in_loop.rows(in_loop.scores(model, tokens, known, scoring, _silent))
        rows += [{"text": text, **row} for row in scores]
        table = pd.DataFrame(rows).drop(columns=["model", "sides", "n_quantized_layers", "layer"])
        table.to_csv(folder / "smollm2.eviction.csv", index=False, float_format="%.5g")


if __name__ == "__main__":
    write(sys.argv[1:])
