"""`dse study`: a language model's own keys and values, and the papers' experiments on it, as one table.

Columns: experiment, series, layer (-1: all), side, x, metric, value. docs/explanation/language_model.md lists them.
"""

import hashlib
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dse.core import files
from dse.core.progress import Progress
from dse.core.version import VERSION
from dse.measure.kernels import sha256
from dse.measure.parts import Store, opened
from dse.transformer import caches, in_loop, tokenizer
from dse.transformer.checkpoint import Checkpoint
from dse.transformer.in_loop import LoopRun
from studies import experiments
from studies.experiments import StudyPoint
from studies.observations import ELIMINATED_AT, N_RUNS, RUN_TOKENS, Row, eliminated, looks, row, runs

#: settings that run beside each other
N_AT_ONCE = 8
COLUMNS = ("experiment", "series", "layer", "side", "x", "metric", "value")


class Texts:
    """Tokens of the texts that are scored (of a window its later half) and of the one for calibration, each from its
    start on."""

    def __init__(self, model: Checkpoint, paths: Sequence[str], calibration: str, n_windows: int, n_tokens: int):
        """Raises InputError for a text that is too short, and for two of one name."""
        self.model, self.calibration_name = model, Path(calibration).stem
        self.names = [Path(path).stem for path in paths]
        self.n_windows, self.n_tokens = n_windows, n_tokens
        n_runs = -(-N_RUNS // len(paths))
        context, needs = model.architecture.context_tokens, max(n_windows * n_tokens, n_runs * RUN_TOKENS)
        #: each from its start on, as long as SinkQ's sinks are followed
        self.n_followed = min(context, needs, ELIMINATED_AT[-1])
        # a stretch is a text of its own: together they may be longer than the context
        read = [tokenizer.tokens_of(path, model.encode, needs, max(needs, context), model.name) for path in paths]
        self.windows = np.concatenate([x[: n_windows * n_tokens].reshape(n_windows, n_tokens) for x in read])
        self.runs = np.concatenate([x[: n_runs * RUN_TOKENS].reshape(n_runs, RUN_TOKENS) for x in read])[:N_RUNS]
        self.followed = np.stack([x[: self.n_followed] for x in read])
        self.run_texts = [name for name in self.names for _ in range(n_runs)][:N_RUNS]
        self.calibration = tokenizer.tokens_of(calibration, model.encode, 2 * n_tokens, max(needs, context), model.name)
        self.vocabulary = model.tensor("embedding").shape[0]

    def of(self, name: str) -> np.ndarray:
        """Tokens that thresholds and scales come from, for a `StudyPoint.text`."""
        if name == experiments.CALIBRATION:
            return self.calibration
        if name == experiments.RANDOM:
            return np.random.default_rng(2025).integers(0, self.vocabulary, 2 * self.n_tokens)
        first = self.windows[:: self.n_windows]
        return first.reshape(-1) if name == experiments.SCORED else first[self.names.index(name)]

    def sha256(self) -> str:
        """Hash of all tokens."""
        return hashlib.sha256(b"".join(x.tobytes() for x in (self.windows, self.runs, self.calibration))).hexdigest()


class _Scorer:
    """Scores points; the nats of 16 bits and calibrations are kept."""

    def __init__(self, model: Checkpoint, texts: Texts) -> None:
        self.model, self.texts = model, texts
        self._known: dict[str, caches.Calibration] = {}

    def known(self, text: str) -> caches.Calibration:
        if text not in self._known:
            self._known[text] = in_loop.calibrate(self.model, self.texts.of(text), _silent)
        return self._known[text]

    def score(self, points: Sequence[StudyPoint]) -> list[list[Row]]:
        """Rows of each point: all in one pass over each window."""
        nats, bits = [], np.full(len(points), math.nan)
        for tokens in self.texts.windows:
            loop_runs = [
                LoopRun(method=point.method, caches=experiments.caches_of(point, self.model, self.known(point.text)))
                for point in points
            ]
            exact = in_loop.exact_run(self.model.n_layers)
            losses = in_loop.token_nats(self.model, tokens, [exact, *loop_runs], _silent)
            nats.append(losses[:, self.texts.n_tokens // 2 - 1 :])
            bits = np.array([np.mean(run.bits) for run in loop_runs])
        return [self._rows(np.array(nats), i, bits[i - 1]) for i in range(1, 1 + len(points))]

    def _rows(self, nats: np.ndarray, i: int, bits: float) -> list[Row]:
        """`nats` [windows, runs, tokens]; run 0 has 16 bits."""
        off = (nats[:, i] - nats[:, 0]).mean(axis=1)
        metrics = {"perplexity": math.exp(nats[:, i].mean()), "log_ratio": float(off.mean())}
        if len(off) > 1:
            metrics["log_ratio_se"] = float(off.std(ddof=1)) / math.sqrt(len(off))
        # two methods lose on the same windows: their difference is surer than both errors together
        metrics |= {f"log_ratio_{j}": float(value) for j, value in enumerate(off)}
        if not math.isnan(bits):
            metrics["stored_bits"] = float(bits)
        return [row("", metric, value) for metric, value in metrics.items()]


def run(texts: Texts, name: str, out: str, command: str, progress: Progress) -> Path:
    """Study a model on texts; writes out/NAME.study.csv and NAME.study.json.

    Finished parts are kept in `out`, so that the same command goes on. Raises InputError and OutputError.
    """
    model = texts.model
    weights = [path for path in ([Path(model.path)] if Path(model.path).is_file() else Path(model.path).iterdir())]
    about = {
        "model": name,
        "weights_sha256": [sha256(path) for path in sorted(weights) if path.suffix in (".gguf", ".safetensors")],
        "dse": VERSION,
        "n_windows": texts.n_windows,
        "n_tokens": texts.n_tokens,
        "texts": texts.names,
        "tokens_sha256": texts.sha256(),
    }
    of = model.architecture
    planned = experiments.points(model, of.n_kv_heads * of.head_dim, texts.names)
    unique = list({point.key: point for point in planned}.values())
    scorer, scored = _Scorer(model, texts), dict[str, list[Row]]()
    with opened(out, {"study": about}) as store:
        first = texts.windows[:: texts.n_windows]
        lines = _part(store, "looks", lambda: list(looks(model, first, texts.names, progress)))
        lines += _part(store, "runs", lambda: list(runs(model, texts.runs, texts.run_texts, progress)))
        lines += _part(store, "eliminated", lambda: list(eliminated(model, texts.followed, texts.names, progress)))
        scored = {point.key: rows for point in unique if (rows := _held(store, point.key))}
        missing = [point for point in unique if point.key not in scored]
        groups = [missing[start : start + N_AT_ONCE] for start in range(0, len(missing), N_AT_ONCE)]
        with progress(groups, label="scoring", length=len(groups)) as shown:
            for group in shown:
                for point, rows in zip(group, scorer.score(group), strict=True):
                    store.save(0, point.key, rows, [])
                    scored[point.key] = rows
        for point in planned:
            placed = {"experiment": point.experiment, "series": point.series, "x": float(point.x)}
            lines += [{**line, **placed} for line in scored[point.key]]
        path = Path(out) / f"{name}.study.csv"
        text = io.StringIO()
        pd.DataFrame(lines, columns=list(COLUMNS)).to_csv(text, index=False, float_format="%.5g", lineterminator="\n")
        files.write(path, text.getvalue().encode())
        more = {**about, "command": command, "calibration": texts.calibration_name, "first_scored": texts.n_tokens // 2}
        files.write(Path(out) / f"{name}.study.json", (json.dumps(more, indent=1) + "\n").encode())
    return path


def _silent(items: Any, **_: Any) -> Any:
    from contextlib import nullcontext

    return nullcontext(items)


def _held(store: Store, name: str) -> list[Row]:
    """Rows of a part that is there; none where it is missing or of another form."""
    held = store.load(0, name)
    if held and held["rows"] and all(set(line) == set(COLUMNS) for line in held["rows"]):
        kept: list[Row] = held["rows"]
        return kept
    return []


def _part(store: Store, name: str, make: Callable[[], list[Row]]) -> list[Row]:
    rows = _held(store, name)
    if not rows:
        rows = make()
        store.save(0, name, rows, [])
    return rows
