"""Traces as tables: moments, quantiles of prompts, answers and gaps, and answers given the prompt.

The Azure LLM inference traces of 2023 ship in this form (dse/data/*.traffic.toml, by `scripts/traffic_tables.py`).
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dse import data
from dse.core.errors import InputError, LimitError, did_you_mean, show
from dse.core.field import check_whole
from dse.serving.requests import Floats, Ints, Lengths, Moments, Requests

#: requests that a sample may have: 24 bytes each
MAX_SAMPLE = 20_000_000
#: requests that stand for a whole trace where its distribution is asked for (`typical`)
N_TYPICAL = 2**16
#: batches whose largest answer and longest prompt are kept exactly
LARGEST_BATCHES = tuple(2**k for k in range(1, 11))
#: bins of equally many requests by the length of their prompt, each with quantiles of its answers
N_BINS = 32
_ENDING = ".traffic.toml"
_QUANTILES = ("input_tokens", "output_tokens", "gap_s")


def levels(n_even: int, last: int) -> Floats:
    """Shares 0 to 1 in `n_even` even steps, the last one halved down to 1 / `last`: batches wait for the tail."""
    tail = [1 - 1 / 2**k for k in range(1, 60) if n_even < 2**k <= last]
    return np.array([*(i / n_even for i in range(n_even)), *tail, 1.0])


LEVELS = levels(256, 2**14)
BIN_LEVELS = levels(64, 2**9)


@dataclass(frozen=True)
class TraceTables:
    """A trace as tables. `input_tokens`, `output_tokens` and `gap_s` (between arrivals) are quantiles at LEVELS.

    `joint` has a row for each of N_BINS bins of the prompt's rank: the mean answer between neighbouring BIN_LEVELS.
    `moments` are exact, of the trace itself; what is sampled from the tables is near them.
    """

    name: str
    title: str
    source: str
    licence: str
    attribution: str
    moments: Moments
    #: prompt and answer of the longest request together: none that is sampled is longer
    longest_tokens: int
    input_tokens: Floats
    output_tokens: Floats
    gap_s: Floats
    joint: Floats
    #: batch -> E[largest answer], E[longest prompt] of so many requests, exact
    largest: Mapping[int, tuple[float, float]]

    def at(self, input_share: Floats, output_share: Floats) -> tuple[Ints, Ints]:
        """Prompts at the given shares of the prompts, and answers at the given shares of those with such prompts."""
        inputs = np.rint(np.interp(input_share, LEVELS, self.input_tokens)).astype(np.int64)
        bins = np.minimum((input_share * N_BINS).astype(np.int64), N_BINS - 1)
        cells = np.minimum(np.searchsorted(BIN_LEVELS, output_share, "right") - 1, len(BIN_LEVELS) - 2)
        # where the share lies within its cell rounds the cell's mean up or down, so that the mean stays
        within = (output_share - BIN_LEVELS[cells]) / np.diff(BIN_LEVELS)[cells]
        outputs = np.floor(self.joint[bins, cells] + within).astype(np.int64)
        return inputs, np.maximum(np.minimum(outputs, self.longest_tokens - inputs), 1)

    def quantiles(self, shares: Iterable[float]) -> tuple[list[int], list[int]]:
        """Prompt and answer that the given shares of the requests do not exceed."""
        at = np.asarray(list(shares))
        n_in, n_out = (np.rint(np.interp(at, LEVELS, table)) for table in (self.input_tokens, self.output_tokens))
        return [int(n) for n in n_in], [int(n) for n in n_out]

    def lengths(self) -> Lengths:
        """Frequency of lengths of the typical requests; the largest of a batch exact at LARGEST_BATCHES."""
        return replace(Lengths.of(self.typical()), known_largest=self.largest)

    def typical(self, n: int = N_TYPICAL) -> Requests:
        """`n` requests that stand for the trace, the same every time: evenly spread over prompts and answers.

        They arrive evenly at the trace's mean rate.
        """
        _check_n(n)
        k = np.arange(n)
        # the bits of k in reverse: any 2^b neighbours have answers in each of as many equal parts of the shares
        n_bits = max((n - 1).bit_length(), 1)
        reverse = sum(((k >> b) & 1) / 2 ** (b + 1) for b in range(n_bits)) + 1 / 2 ** (n_bits + 1)
        inputs, outputs = self.at(k / max(n - 1, 1), reverse)
        return Requests(k * self.moments.duration_s / (self.moments.n_requests - 1), inputs, outputs)


def files() -> dict[str, Path]:
    """Shipped traces by name."""
    return {path.name.removesuffix(_ENDING): path for path in sorted(data.FOLDER.glob(f"*{_ENDING}"))}


@cache
def _shipped(path: Path) -> TraceTables:
    document: dict[str, Any] = tomllib.loads(data.text(path.name))
    about = {name: document[name] for name in ("name", "title", "source", "licence", "attribution")}
    quantiles = {name: np.array(document["quantiles"][name], np.float64) for name in _QUANTILES}
    joint = np.array(document["joint"]["output_tokens"], np.float64)
    moments, longest = Moments(**document["moments"]), document["longest_tokens"]
    kept = document["largest"]
    largest = {
        batch: (n_out, n_in)
        for batch, n_out, n_in in zip(kept["batches"], kept["output_tokens"], kept["input_tokens"], strict=True)
    }
    return TraceTables(**about, moments=moments, longest_tokens=longest, joint=joint, largest=largest, **quantiles)  # type: ignore[arg-type]


def load(name: str) -> TraceTables:
    """A shipped trace by name, such as azure-conv. Raises InputError."""
    known = files()
    if name not in known:
        raise InputError(f"trace = {show(name)}: is not shipped: {did_you_mean(name, known)}")
    return _shipped(known[name])


def sample(
    trace: str | TraceTables, n: int, rate_per_s: float | None = None, seed: int = 0, arrivals: str = "poisson"
) -> Requests:
    """`n` requests like those of a shipped trace (or of `TraceTables`), the same for the same seed.

    `rate_per_s` is the mean rate of arrivals, by default the trace's own. `arrivals`: "poisson", or "trace" for gaps
    with the trace's own distribution, drawn one by one (so without its longer bursts). Raises InputError, LimitError.
    """
    tables = load(trace) if isinstance(trace, str) else trace
    _check_n(n)
    rate = tables.moments.rate_per_s if rate_per_s is None else rate_per_s
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 1e-9 <= rate <= 1e9:
        raise InputError(f"rate = {show(rate)}: must be from 1e-9 to 1e9 requests per second")
    check_whole("seed", seed, 0, 2**63 - 1)
    if arrivals not in ("poisson", "trace"):
        raise InputError(f"arrivals = {show(arrivals)}: must be poisson or trace")
    rng = np.random.Generator(np.random.PCG64(seed))
    inputs, outputs = tables.at(rng.random(n), rng.random(n))
    if arrivals == "poisson":
        gaps = rng.exponential(1.0, n)
    else:
        mean_gap = float(np.sum(np.diff(LEVELS) * (tables.gap_s[1:] + tables.gap_s[:-1]) / 2))
        gaps = np.interp(rng.random(n), LEVELS, tables.gap_s) / mean_gap
    gaps[0] = 0.0
    return Requests(np.cumsum(gaps) / rate, inputs, outputs)


def _check_n(n: int) -> None:
    if isinstance(n, int) and n > MAX_SAMPLE:
        raise LimitError(f"requests = {n:,}: at most {MAX_SAMPLE:,}: give fewer")
    check_whole("requests", n, 1, MAX_SAMPLE)
