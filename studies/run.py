"""`dse measure --perplexity`: the models that ship, scored under quantizers on the held-out text."""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from dse import quantizers
from dse.core.errors import InputError
from dse.core.version import VERSION
from dse.measure.kernels import Progress
from dse.measure.parts import Store, opened
from dse.measure.study_table import WINDOW
from dse.quantizers import QuantizerSpec
from dse.transformer import caches
from studies import weights
from studies.calibrate import calibrate
from studies.perplexity import PerplexityBench, Score, Windows, windows
from studies.text import CALIBRATION, SCORED, held_out

#: windows that are scored, tokens of their prompts, and tokens generated and scored behind them
N_WINDOWS, N_PROMPT, N_GENERATED, N_GREEDY = 8, 256, 256, 256
#: windows of the calibration text and their tokens
N_CALIBRATION, CALIBRATION_TOKENS = 4, 512
#: several bit-widths; what fits into 10 minutes on 2 cores for both models
METHODS = (
    "fp16",
    "fp8",
    "int8",
    "int4",
    "nqkv:block=64",
    "oaken",
    "qserve",
    "atom:group=64",
    "tender",
    "kvquant",
    "kivi:bits=4",
    "kivi:bits=2",
    "sinkq:bits=4",
    "sinkq:bits=2",
)
MAX_METHODS = 1000
_FIELDS = {field.name for field in fields(Score)}


def run(
    models: Sequence[str],
    methods: Sequence[str],
    out: str | None,
    progress: Progress,
    asked: tuple[int, int, int, int] = (N_WINDOWS, N_PROMPT, N_GENERATED, N_GREEDY),
) -> list[Score]:
    """Score each model (default: those that ship) under each method (default: METHODS).

    asked: windows, prompt tokens, generated and greedy tokens. With `out`, a directory, finished scores are kept there
    and a run that was stopped goes on. All methods are checked before the first is run. Raises InputError, OutputError.
    """
    specs = list({spec.name: spec for spec in map(quantizers.parse, methods or METHODS)}.values())
    if len(specs) > MAX_METHODS:
        raise InputError(f"methods = {len(specs)}: must be 1 to {MAX_METHODS}: name fewer")
    loaded = [weights.load(name) for name in (models or weights.SHIPPED)]
    if len({model.name for model in loaded}) < len(loaded):
        raise InputError("models: two have the same name: name each once")
    calibration = windows(held_out(CALIBRATION), N_CALIBRATION, CALIBRATION_TOKENS)
    known = {model.name: calibrate(model, calibration) for model in loaded}
    for model in loaded:
        for spec in specs:
            caches.caches(spec, model, known[model.name])
    shapes = [(model.name, model.n_params, float(model.embedding.sum())) for model in loaded]
    identity = {"dse": VERSION, "perplexity": [list(map(str, shape)) for shape in shapes], "asked": list(asked)}
    with opened(out, identity) if out is not None else contextlib.nullcontext() as store:
        steps = [(i, model, spec) for i, model in enumerate(loaded) for spec in specs]
        scores, bench = [], _Benches(loaded, known, asked)
        with progress(steps, label="scoring", length=len(steps)) as shown:
            for i, _, spec in shown:
                scores.append(_score(store, bench, i, spec))
    return scores


class _Benches:
    """The bench of one model at a time, made when a score is not there yet."""

    def __init__(
        self, loaded: list[Any], known: dict[str, caches.Calibration], asked: tuple[int, int, int, int]
    ) -> None:
        self._loaded, self._known, self._asked = loaded, known, asked
        self._held: tuple[int, PerplexityBench] | None = None

    def of(self, i: int) -> PerplexityBench:
        if self._held is None or self._held[0] != i:
            n_windows, n_prompt, n_generated, n_greedy = self._asked
            tokens = windows(held_out(SCORED), n_windows, n_prompt + n_generated)
            model = self._loaded[i]
            self._held = i, PerplexityBench(model, Windows(tokens, n_prompt), self._known[model.name], n_greedy)
        return self._held[1]


def _score(store: Store | None, benches: _Benches, i: int, spec: QuantizerSpec) -> Score:
    held = store.load(i, _key(spec)) if store is not None else None
    if held and len(held["rows"]) == 1 and held["rows"][0].keys() == _FIELDS:
        return Score(**{**held["rows"][0], "log_ratios": tuple(held["rows"][0]["log_ratios"])})
    score = benches.of(i).score(spec, quantizers.parse("fp16"))
    if store is not None:
        store.save(i, _key(spec), [asdict(score)], [])
    return score


def _key(spec: QuantizerSpec) -> str:
    """Key of a kept score: a plan by layer includes its methods, since its file may change."""
    return " ".join([spec.name, *(side.name for sides in spec.layers for side in sides)])


def rows(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """A row a model and method, for JSON; `log_ratio_0`, `log_ratio_1` ... are the windows' own, in nats a byte."""
    found = []
    for score in scores:
        row = asdict(score)
        windows_own = row.pop("log_ratios")
        found.append(row | {f"log_ratio_{i}": value for i, value in enumerate(windows_own)})
    return found


def readable(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with as many digits as say something, without the single windows."""
    digits = {
        "stored_bits": 2,
        "perplexity": 4,
        "prompt_perplexity": 4,
        "greedy_agreement_frac": 3,
        "greedy_common_tokens": 1,
        "log_ratio_se": 4,
    }
    return [
        {
            name: f"{value:.{digits[name]}f}" if name in digits and value is not None else value
            for name, value in row.items()
            if not WINDOW.fullmatch(name)
        }
        for row in found
    ]
