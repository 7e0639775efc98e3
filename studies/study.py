"""`dse study`: a language model's own keys and values, and the papers' experiments on it, as one table.

Columns: experiment, series, layer (-1: all), side, x, metric, value. docs/explanation/language_model.md lists them.
"""

import hashlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dse.core import files
from dse.core.version import VERSION
from dse.measure.kernels import Progress
from dse.measure.parts import Store, opened
from dse.transformer import caches
from studies import weights
from studies.calibrate import calibrate
from studies.perplexity import windows
from studies.streamed import streamed_nats
from studies.study_looks import Row, looks, row
from studies.study_points import TEXTS, StudyPoint, points, quantize_of
from studies.text import CALIBRATION, SCORED, held_out
from studies.weights import ByteModel

#: windows and their tokens; the later half of each is scored
N_WINDOWS, N_TOKENS = 24, 512
COLUMNS = ("experiment", "series", "layer", "side", "x", "metric", "value")


def sha256(source: str) -> str:
    """SHA-256 of the weights' file."""
    if source not in weights.SHIPPED:
        return hashlib.sha256(Path(source).read_bytes()).hexdigest()
    file = weights.DATA / f"{source}.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def calibration_tokens(name: str, n_tokens: int, scored: np.ndarray) -> np.ndarray:
    """Tokens that thresholds and scales come from: see `studies.study_points.TEXTS`."""
    if name == "scored":
        return scored
    if name == "random":
        text = np.random.default_rng(2025).integers(0, 256, 4 * n_tokens).astype(np.uint8)
        return windows(text, 2, n_tokens)
    return windows(held_out((name,) if name else CALIBRATION), 2, n_tokens)


class _Scorer:
    """Scores points; FP16's nats and calibrations are kept."""

    def __init__(self, model: ByteModel, n_windows: int, n_tokens: int) -> None:
        self.model, self.n_tokens = model, n_tokens
        self.tokens = windows(held_out(SCORED), n_windows, n_tokens)
        self._known: dict[str, caches.Calibration] = {}
        self._fp16: np.ndarray | None = None

    def known(self, text: str) -> caches.Calibration:
        if text not in self._known:
            tokens = calibration_tokens(text, self.n_tokens, self.tokens)
            self._known[text] = calibrate(self.model, tokens)
        return self._known[text]

    def _nats(self, point: StudyPoint) -> tuple[np.ndarray, float]:
        quantize, before, found = quantize_of(point, self.model, self.known(point.text))
        nat = streamed_nats(self.model, quantize, self.tokens, self.n_tokens // 2, before)
        return nat, float(caches.stored_bits(found)) if found else math.nan

    def score(self, point: StudyPoint) -> list[Row]:
        if self._fp16 is None:
            self._fp16 = self._nats(StudyPoint("methods", "fp16", 0, "fp16"))[0]
        nat, bits = self._nats(point)
        off = nat.mean(axis=1) - self._fp16.mean(axis=1)
        found = {"perplexity": math.exp(nat.mean()), "log_ratio": float(off.mean())}
        if len(off) > 1:
            found["log_ratio_se"] = float(off.std(ddof=1)) / math.sqrt(len(off))
        # two methods lose on the same windows: their difference is surer than both errors together
        found |= {f"log_ratio_{i}": float(value) for i, value in enumerate(off)}
        if not math.isnan(bits):
            found["stored_bits"] = bits
        return [row("", metric, value) for metric, value in found.items()]


def run(
    source: str, out: str, command: str, progress: Progress, n_windows: int = N_WINDOWS, n_tokens: int = N_TOKENS
) -> Path:
    """Study a model (a name that ships or a .safetensors file); writes out/NAME.study.csv and NAME.study.json.

    Finished parts are kept in `out`, so that the same command goes on. Raises InputError and OutputError.
    """
    model = weights.load(source)
    about = {
        "model": model.name,
        "weights_sha256": sha256(source),
        "dse": VERSION,
        "n_windows": n_windows,
        "n_tokens": n_tokens,
    }
    asked = points(model)
    unique = list({point.key: point for point in asked}.values())
    scorer, scored = _Scorer(model, n_windows, n_tokens), {}
    with (
        opened(out, {"study": about}) as store,
        progress([None, *unique], label="study", length=1 + len(unique)) as steps,
    ):
        for point in steps:
            if point is None:
                texts = [*CALIBRATION, *SCORED]
                tokens = np.concatenate([windows(held_out((name,)), 1, n_tokens) for name in texts])
                found = _part(store, "looks", lambda tokens=tokens, texts=texts: list(looks(model, tokens, texts)))
            else:
                scored[point.key] = _part(store, point.key, lambda point=point: scorer.score(point))
        for point in asked:
            placed = {"experiment": point.experiment, "series": point.series, "x": float(point.x)}
            found += [{**one, **placed} for one in scored[point.key]]
        path = Path(out) / f"{model.name}.study.csv"
        text = io.StringIO()
        pd.DataFrame(found, columns=list(COLUMNS)).to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
        files.write(path, text.getvalue().encode())
        more = {
            **about,
            "command": command,
            "scored": list(SCORED),
            "texts": list(TEXTS),
            "first_scored": n_tokens // 2,
        }
        files.write(Path(out) / f"{model.name}.study.json", (json.dumps(more, indent=1) + "\n").encode())
    return path


def _part(store: Store, name: str, make: Any) -> list[Row]:
    held = store.load(0, name)
    if held and held["rows"] and all(set(one) == set(COLUMNS) for one in held["rows"]):
        kept: list[Row] = held["rows"]
        return kept
    rows: list[Row] = make()
    store.save(0, name, rows, [])
    return rows
