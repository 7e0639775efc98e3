"""Makes the tables of what KV formats cost SmolLM2-135M, from its file and five texts (dse/data/README.md names them).

`python -m scripts.score_sample MODEL.gguf TEXTS SCRATCH FOLDER`: TEXTS has prose, code, dialogue, novel and calibration
.txt; finished parts are kept in SCRATCH, so that a run that was stopped goes on. Some two hours of one core.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dse.measure import run
from dse.measure.options import MeasureOptions
from dse.specs.sample_scores import LAYERS, SCORES
from dse.transformer import dump, in_loop, load, tokenizer
from dse.transformer.checkpoint import Checkpoint
from scripts.ship_sample import METHODS

#: tokens of each text, and of the one that thresholds and constants come from
TEXTS = {"prose": 1024, "code": 1024, "dialogue": 1024, "novel": 4096}
CALIBRATION, N_CALIBRATION = "calibration", 1024
#: the text whose keys and values are quantized apart, too
APART = "prose"
#: last queries that the error of the attention output is of, a head
N_QUERIES = 64
#: methods that run beside each other
N_AT_ONCE = 8


def _silent(items: Any, **_: Any) -> Any:
    return nullcontext(items)


def scores(model: Checkpoint, texts: Path, scratch: Path) -> pd.DataFrame:
    """Rows of perplexity, divergence and agreement: a text, a method and the quantized sides."""
    known = _tokens(model, texts, CALIBRATION, N_CALIBRATION)
    asked = [(text, ("both",)) for text in TEXTS] + [(APART, ("key", "value"))]
    found = []
    for text, sides in asked:
        tokens = _tokens(model, texts, text, TEXTS[text])
        for start in range(0, len(METHODS), N_AT_ONCE):
            methods = METHODS[start : start + N_AT_ONCE]
            kept = scratch / f"{text}.{'-'.join(sides)}.{start}.json"
            if not kept.exists():
                own = in_loop.scores(model, tokens, known, in_loop.Scoring(methods, sides), _silent)
                kept.write_text(json.dumps([asdict(score) for score in own[1:]]))
            found += [{"text": text, **row} for row in json.loads(kept.read_text())]
    return pd.DataFrame(found).drop(columns=["model", "layer", "n_quantized_layers"])


def layers(model: Checkpoint, texts: Path, scratch: Path) -> pd.DataFrame:
    """Relative error of the attention output, keys and values quantized, by method and layer: a column a text."""
    found = []
    for text, n_tokens in TEXTS.items():
        out, dumped = scratch / f"{text}.measured", scratch / f"{text}.safetensors"
        if not (out / "measured.parquet").exists():
            tokens = _tokens(model, texts, text, n_tokens)
            dump.write(model, tokens, str(dumped), "after", N_QUERIES, text, _silent)
            asked = MeasureOptions(_thresholds(model, texts, scratch), str(n_tokens), n_queries=N_QUERIES)
            run.run(str(dumped), METHODS, str(out), asked, _silent)
            dumped.unlink()
        table = pd.read_parquet(out / "measured.parquet").query("side == 'both'")
        sums = table.groupby(["method", "layer"])[["squared_output_error", "squared_output"]].sum()
        found.append(np.sqrt(sums["squared_output_error"] / sums["squared_output"]).rename(text))
    return pd.concat(found, axis=1).reset_index()


def _thresholds(model: Checkpoint, texts: Path, scratch: Path) -> str:
    from dse.measure import dump as profiled

    path, dumped = scratch / "thresholds.toml", scratch / "calibration.safetensors"
    if not path.exists():
        dump.write(model, _tokens(model, texts, CALIBRATION, N_CALIBRATION), str(dumped), "after", 0, "", _silent)
        profiled.profile_to([str(dumped)], str(path), "4/90/6", "SmolLM2-135M", 2**30, _silent)
        dumped.unlink()
    return str(path)


def _tokens(model: Checkpoint, texts: Path, name: str, n_tokens: int) -> np.ndarray:
    path, context = str(texts / f"{name}.txt"), model.architecture.context_tokens
    return tokenizer.tokens_of(path, model.encode, n_tokens, context, model.name)


def write(arguments: Sequence[str]) -> None:
    """Write both tables."""
    model, texts, scratch, folder = load.load(arguments[0]), *map(Path, arguments[1:])
    scratch.mkdir(exist_ok=True)
    for name, table in ((LAYERS, layers(model, texts, scratch)), (SCORES, scores(model, texts, scratch))):
        table.to_csv(folder / name, index=False, float_format="%.5g")


if __name__ == "__main__":
    import sys

    write(sys.argv[1:])
