"""Fit what servers do beside kernels, by stack and release, to whole measured steps: after kernels, and few numbers.

A measured time per output token is a decode step of the requests that decode, their part of the prompts that come in,
and `layer * n_layers + step + sequence * n`. The three are fitted for all stacks together, then for each stack and each
release where rows allow, pulled towards what the level above found. docs/calibration.md, Whole steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.calibrate.fit import percent
from dse.calibrate.servers import Row, read
from dse.calibrate.solve import Floats
from dse.core import files, specfile, units
from dse.core.errors import DseError, InputError
from dse.specs.device_and_model import load
from dse.specs.stack import ServerSpec

_US = units.to_base(1, "us")
#: layer, step, sequence: in seconds where one of each is usual
SCALE = np.array([5e-6, 3e-4, 2e-5])
USUAL = np.array([1.0, 1.0, 1.0])
#: relative error from which on a row pulls with constant force: releases and recipes differ by as much
HUBER = 0.1
#: how strongly a stack keeps to all stacks, and a release to its stack, in rows of that error
STACK_PULL, RELEASE_PULL = 3.0, 1.0
FEWEST_ROWS = 10
#: rows that are no measurement of what they state: model, release, why
SUSPECT = (
    ("deepseek-v3", "1.2.0rc6.post3", "half the time of 1.2.0rc6.post2 in one and the same recipe: several tokens a step "
     "(MTP), which rows do not state"),
    ("qwen3-235b-a22b", "0.12.0", "three times the time beside kernels of any other release: not run as graphs"),
    ("qwen3-32b", "1.3.0rc1", "times fall and rise with the load, by a factor of five"),
    ("qwen3-32b", "1.2.0rc6.post1", "three rows, half of their time unexplained"),
)  # fmt: skip


@dataclass(frozen=True)
class Features:
    """What rows say of a server's own time; the three of `host` times `n_*` make up what is left."""

    rows: list[Row]
    #: seconds that kernels, exchanges and prompts explain, and what was measured
    explained_s: Floats
    #: of it, the prompts
    prompts_s: Floats
    measured_s: Floats
    #: layers, 1, sequences
    counts: NDArray[np.float64]
    #: the same of a first token: explained, and measured (nan: none)
    first_s: Floats
    first_measured_s: Floats
    is_mixture: NDArray[np.bool_]

    def take(self, mask: NDArray[Any]) -> "Features":
        """The rows where `mask` is true."""
        return Features(
            [row for row, keep in zip(self.rows, mask, strict=True) if keep], self.explained_s[mask],
            self.prompts_s[mask], self.measured_s[mask], self.counts[mask], self.first_s[mask], self.first_measured_s[mask],
            self.is_mixture[mask],
        )  # fmt: skip

    def of(self, **wanted: str) -> NDArray[np.bool_]:
        """Which rows have these fields."""
        return np.array([all(getattr(row, name) == value for name, value in wanted.items()) for row in self.rows])


def is_suspect(row: Row) -> bool:
    """True for a row that is no measurement of what it states (SUSPECT)."""
    name = row.spec.name if row.spec else ""
    return any((name, row.release) == (model, release) for model, release, _ in SUSPECT)


def features(rows: Iterable[Row]) -> Features:
    """What kernels explain of each row that has a time per output token, at the requests that decoded in it."""
    kept, numbers = [], []
    for row in rows:
        if row.tpot_s is None or row.reason or row.work is None or row.spec is None:
            continue
        try:
            point = row.point()
            output = row.work.output_tokens
            decodes = row.tpot_s * output
            n = max(1, round(row.concurrency * decodes / ((row.ttft_s or 0.0) + decodes)))
            run = point.run(min(n, max(point.max_batch, 1)))
            own_s = run.wave.host_s + point.terms.host_s / output
            explained = run.wave.decode_step_s + run.wave.prefill_s / output - own_s
            steady = point.results
            first = (steady["steady_ttft_s"] or np.nan) - point.design.stack.host_prompt_s - point.terms.host_s
        except DseError:
            continue
        kept.append(row)
        numbers.append((explained, run.wave.prefill_s / output, row.tpot_s, row.spec.n_layers, 1.0, run.n, first, row.ttft_s or np.nan,
                        row.spec.n_experts > 1))  # fmt: skip
    if not kept:
        raise InputError("no row has a time per output token and can be predicted: give measured rows")
    table = np.array(numbers, float)
    return Features(
        kept, table[:, 0], table[:, 1], table[:, 2], table[:, 3:6], table[:, 6], table[:, 7], table[:, 8].astype(bool)
    )


def _weights(rows: Features) -> Floats:
    """Groups of one model, device, stack and release count as the root of their rows."""
    names = [(row.model, row.system, row.stack, row.release, row.precision) for row in rows.rows]
    return np.array([names.count(name) ** -0.5 for name in names])


def fit(rows: Features, prior: Floats, pull: float) -> Floats:
    """(layer, step, sequence) in SCALE that explain what kernels leave, pulled to `prior` as so many rows would."""
    from scipy.optimize import least_squares

    weights = np.sqrt(_weights(rows))

    def residuals(values: Floats) -> Floats:
        off = np.log((rows.explained_s + rows.counts @ (values * SCALE)) / rows.measured_s)
        far = np.abs(off) / HUBER
        robust = np.where(far > 1, np.sqrt(2 * np.maximum(far, 1) - 1), far) * HUBER * np.sign(off)
        return np.concatenate((weights * robust, pull * HUBER * (values - prior)))

    found = least_squares(residuals, np.maximum(prior, 1e-3), bounds=(np.zeros(3), np.full(3, 60.0)))
    return found.x


@dataclass(frozen=True)
class Hosts:
    """Fits at every level: of all stacks, of each stack, of each release; (layer, step, sequence) in SCALE."""

    everywhere: Floats
    stacks: dict[str, Floats]
    releases: dict[tuple[str, str], Floats]

    def of(self, row: Row) -> Floats:
        """The nearest fit to a row."""
        return self.releases.get((row.stack, row.release), self.stacks.get(row.stack, self.everywhere))

    def predict_s(self, rows: Features) -> Floats:
        """Times per output token of all rows."""
        own = np.array([self.of(row) for row in rows.rows]) * SCALE
        return rows.explained_s + (rows.counts * own).sum(axis=1)


def fit_all(rows: Features) -> Hosts:
    """All levels, from rows that are measurements of what they state."""
    rows = rows.take(np.array([not is_suspect(row) for row in rows.rows]))
    everywhere = fit(rows, USUAL, 1.0)
    stacks = {}
    releases = {}
    for stack in sorted({row.stack for row in rows.rows}):
        own = rows.take(rows.of(stack=stack))
        stacks[stack] = fit(own, everywhere, STACK_PULL)
        for release in sorted({row.release for row in own.rows}):
            of_release = own.take(own.of(release=release))
            if len(of_release.rows) >= FEWEST_ROWS:
                releases[stack, release] = fit(of_release, stacks[stack], RELEASE_PULL)
    return Hosts(everywhere, stacks, releases)


def left_out(rows: Features) -> Floats:
    """Times per output token of each row by fits that saw no row of its model."""
    found = np.full(len(rows.rows), np.nan)
    names = np.array([row.spec.name if row.spec else "" for row in rows.rows])
    for name in sorted(set(names)):
        own = names == name
        if (~own).any():
            found[own] = fit_all(rows.take(~own)).predict_s(rows.take(own))
    return found
