"""Scores of a model of one's own that are kept as they are found, so that a run that was stopped goes on."""

import hashlib
from dataclasses import asdict, replace

import numpy as np

from dse import quantizers
from dse.core.progress import Progress
from dse.core.version import VERSION
from dse.measure.parts import opened
from dse.specs import tokens as token_policies
from dse.transformer import in_loop
from dse.transformer.checkpoint import Checkpoint
from dse.transformer.in_loop import LoopScore, Scoring

#: methods that run beside each other, and are lost together where a run is stopped
N_AT_ONCE = 8


def scores(
    model: Checkpoint, tokens: np.ndarray, calibration: np.ndarray, scoring: Scoring, out: str, progress: Progress
) -> list[LoopScore]:
    """Score as `in_loop.scores` does; what `out` holds of the same model, texts, sides and layers is taken from there.

    Raises InputError for a directory of something else, and as `in_loop.scores` does.
    """
    names = list(dict.fromkeys(map(in_loop.canonical, scoring.methods)))
    identity = {
        "dse": VERSION,
        "model": _sha256(model.embedded(np.arange(16))),
        "layers of": model.n_layers,
        "text": _sha256(tokens),
        "calibration": _sha256(calibration),
        "sides": list(scoring.sides),
        "only-layers": None if scoring.layers is None else sorted(set(scoring.layers)),
        "by-layer": scoring.by_layer,
        **({"prompt": scoring.prompt_tokens} if scoring.prompt_tokens else {}),
    }
    in_loop.checked(model, scoring)
    with opened(out, identity) as store:
        held = {name: store.load(0, _key(name)) for name in ("fp16", *names)}
        missing = [name for name in names if held[name] is None]
        for start in range(0, len(missing), N_AT_ONCE):
            group = missing[start : start + N_AT_ONCE]
            fresh = in_loop.scores(model, tokens, calibration, replace(scoring, methods=group), progress)
            for name in ("fp16", *group):
                rows = [asdict(score) for score in fresh if score.method == name]
                store.save(0, _key(name), rows, [])
                held[name] = {"rows": rows}
    return [LoopScore(**row) for part in held.values() if part for row in part["rows"]]


def _sha256(x: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()


def _key(name: str) -> str:
    """Key of a method: a plan by layer with its methods, since its file may change."""
    if token_policies.is_policy(name):
        return name
    spec = quantizers.parse(name)
    return " ".join([spec.name, *(side.name for layer in spec.layers for side in layer)])
